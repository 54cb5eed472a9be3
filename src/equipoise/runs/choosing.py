"""Settings chosen in the open: equal draws for every method, successive halving, and a criterion on held-out training samples.

They are chosen by runs in directories, which have no test data; the choice is on the disk before any run has them.
"""

import hashlib
import json
import logging
import math
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import Field, dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Self, Unpack, cast

import tomli_w

from equipoise import scenarios
from equipoise.core.rates import Rate, rate, scaled, text
from equipoise.core.settings import documented
from equipoise.core.solver import Solver
from equipoise.engines import distributed
from equipoise.federation.method import Method, MethodError, parse
from equipoise.metrics.classification import RATES
from equipoise.metrics.statistics import spearman
from equipoise.records import criteria, history
from equipoise.records.criteria import COLLABORATION, CRITERIA, LEAVE_OUT, ORACLE, rungs
from equipoise.records.directory import CHOSEN, CONDITIONS, ORDER, TRIALS, manifest, stored
from equipoise.records.identity import Identity
from equipoise.records.meta import Content, Contribution, Tuned
from equipoise.report import tuning as report
from equipoise.runs import directory as runs, unchanged
from equipoise.runs.configuration import FLOWER, Layer, RunConfig, configure, layered, overrides_of, stacked
from equipoise.runs.plan import Cell, How, Outcome, at_once, finish
from equipoise.scenarios.scenario import REGRESSION, Description, kind_of
from equipoise.system import claims, files, grouping, hashes, own_code, places, seals, suggestions, trust
from equipoise.system.errors import CODE, MEMORY, SETTINGS, RunError
from equipoise.system.ranges import check_fields, choice, fitting as fitting_space, marked, number, setting
from equipoise.system.search import Interval, Space, log_uniform, share
from equipoise.system.workers import Workers

log = logging.getLogger(__name__)

RATE: Final = "lr"  # what every method is tuned by
AROUND: Final = Interval(0.1, 10, logarithmic=True)  # as a multiple of the given learning rate
FIRST_SEED: Final = 10_000  # of runs that choose; those that report have smaller ones
TUNING, PAGE = "tuning.json", "tuning.html"
WAVES: Final = 4  # in which a sampler that learns asks for its draws
APART: Final = marked(RunConfig, "apart")
TRIAL: Final = "trial"  # kind of errors: a trial failed for another reason than its settings
FOLDER: Final = "choosing"  # of a comparison whose settings are chosen
BY_LAST: Final = "settings are chosen by the last rounds, the same for all draws"

Spaces = Mapping[str, Mapping[str, Space]]  # by label and name, where settings are searched
Configure = Callable[..., Any]  # of a label, settings by name and a seed


@documented
@dataclass(frozen=True)
class Budget:
    """How settings are chosen; the same for every method."""

    draws: int = setting(number(16, 1), "settings that are tried per method, the defaults with them", marks="free")
    by: str = setting(choice(*CRITERIA), "the criterion, one of `equipoise.records.criteria.CRITERIA`", marks="free")
    trials: int = setting(number(1, 1), "runs of each draw, with seeds of their own", marks="free")
    validation: float = setting(
        number(0.2, 0, 1, above=True, below=True),
        "share of each client's training samples that is held out and judged by",
    )
    halving: bool = setting(field(default=True), "whether only the better half continues after a rung", marks="free")
    sampler: str = setting(
        choice("random", "optuna"), "how draws are made; optuna learns from the first rung of others"
    )
    seed: int = setting(number(0, 0), "decides the draws")

    def __post_init__(self) -> None:
        check_fields(self, "tune: ")

    def rungs(self, rounds: int) -> dict[int, int]:
        """The rounds after which draws are ranked, and how often they are halved there; the last is the end."""
        most = int(math.log2(self.draws)) - 1 if self.halving and self.draws > 2 else 0
        return rungs(rounds, min(criteria.MOST, most))

    def planned(self, rounds: int) -> int:
        """The rounds of all trials of a method."""
        total, before, alive = 0, 0, self.draws
        for until, halvings in self.rungs(rounds).items():
            total += alive * (until - before)
            before, alive = until, -(-alive // 2**halvings)
        return total * self.trials

    def conditions(self, rounds: int) -> Content:
        """Everything that decides a choice, by name, with the rounds of a whole run."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"rounds": rounds}

    @property
    def seeds(self) -> range:
        """Of the runs that choose."""
        return range(FIRST_SEED, FIRST_SEED + self.trials)


@dataclass(frozen=True)
class Trial:
    """Settings to try for a method: its label, the number of the draw (0: the defaults), the values by name, and their shares of the spaces."""

    label: str
    draw: int
    settings: Mapping[str, Any] = field(hash=False)
    shares: Mapping[str, float] = field(hash=False, default_factory=dict)

    def __str__(self) -> str:
        values = ", ".join(f"{name}={shown(value)}" for name, value in self.settings.items())
        return f"{self.label}, draw {self.draw}" + (f" ({values})" if values else "")


@dataclass(frozen=True)
class Result:
    """What a trial reached by a rung: its criteria, the higher the better, why it is of no use (else empty), and its cost so far."""

    rounds: int
    scores: Mapping[str, float]
    failed: str = ""
    runs: int = 0
    trained: int = 0
    seconds: float = 0.0


TrainCells = Callable[[Sequence[Cell]], Iterable[Outcome]]
# up to a round, or without each client
Train = Callable[[Sequence[Trial], int, bool], Mapping[Trial, Sequence[Outcome]]]


def shown(value: object) -> str:
    """A value as tables show it."""
    return text(value) if isinstance(value, float) else str(value)


def space_of(method: Method, search: Mapping[str, Space] | None = None) -> dict[str, Space]:
    """Where the hyper-parameters of a method are searched, by ``part.name``: as its rules declare it, or as the user gave it.

    A value that was written is not searched. One of a rule or a preset that differs from the rule's default is searched only if the user says where.

    Raises
    ------
    ValueError : a value of a space that the rule does not take.
    """
    given = search or {}
    spaces = {RATE: given[RATE]} if RATE in given else dict[str, Space]()
    try:
        for end in spaces[RATE].ends if spaces else ():
            rate(end)
    except ValueError as error:
        raise ValueError(f"search {RATE}: {error}") from None
    for name, parameter, value in hyper_parameters(method):
        space = given.get(name)
        if space is None and value == parameter.default:
            space = parameter.metadata.get("search")
        if space is not None and name not in method.typed:
            spaces[name] = fitting_space(f"search {name}", space, parameter)
    return spaces


def hyper_parameters(method: Method) -> Iterator[tuple[str, Field[Any], Any]]:
    """Those of all rules of a method: by ``part.name``, what each may be, and its value."""
    for rule, part in zip(method.rules, method.parts, strict=True):
        for parameter in fields(rule):
            yield f"{part}.{parameter.name}", parameter, getattr(rule, parameter.name)


def random_shares(spaces: Mapping[str, Space], seed: int, d: int) -> dict[str, float]:
    """The shares of draw ``d``, which a name has for all methods: DomainBed's draws (Gulrajani, Lopez-Paz, ICLR 2021)."""
    return {name: share(seed, d, name) for name in dict.fromkeys((RATE, *spaces))}


def around(lr: Rate) -> str:
    """Where a given learning rate is searched, in words."""
    if isinstance(lr, float):
        return str(log_uniform(AROUND.low * lr, AROUND.high * lr))
    return f"{AROUND.low:g} to {AROUND.high:g} times {shown(lr)}"


def settled(spaces: Mapping[str, Space], lr: Rate, shares: Mapping[str, float]) -> dict[str, Any]:
    """The values at some shares of their spaces; the learning rate is a multiple of the given one, unless it has a space."""
    multiple = AROUND.low * (AROUND.high / AROUND.low) ** shares[RATE]
    return {RATE: _plain(scaled(lr, multiple)), **{name: space.at(shares[name]) for name, space in spaces.items()}}


def _plain(lr: Rate) -> float | str:
    return lr if isinstance(lr, float) else text(lr)


def tuned_method(method: Method, solver: Solver, settings: Mapping[str, Any]) -> tuple[Method, Solver]:
    """A method and a solver with settings by name."""
    changes = [  # rules of one part share its name, and each takes its own
        {f.name: settings[name] for f in fields(rule) if (name := f"{part}.{f.name}") in settings}
        for rule, part in zip(method.rules, method.parts, strict=True)
    ]
    if any(changes):
        rules = tuple(replace(rule, **own) for rule, own in zip(method.rules, changes, strict=True))
        method = Method(rules, parts=method.parts)
    lr = {RATE: rate(settings[RATE])} if RATE in settings else {}
    return method, replace(cast(Any, solver), **lr)


def edges(spaces: Mapping[str, Space], shares: Mapping[str, float]) -> dict[str, str]:
    """The settings whose values are close to an end of their interval, by their shares of it, and which end."""
    ends = {name: space.edge(shares[name]) for name, space in {RATE: AROUND, **spaces}.items() if name in shares}
    return {name: end for name, end in ends.items() if end}


def judged(outcomes: Sequence[Outcome], by: str, rounds: int) -> Result:
    """The result of the runs of one trial after so many rounds, whether or not they went on: every criterion is the mean over its seeds."""
    begun = [(replace(o.history, records=o.history.records[:rounds]), o.why) for o in outcomes if o.history is not None]
    every, ended = [run for run, _ in begun], [run for run, why in begun if not why]
    numbers = [{**criteria.scores(run), **({ORACLE: criteria.tested(run)} if by == ORACLE else {})} for run in ended]
    useless = map(history.History.failure if by == ORACLE else criteria.failed, ended)
    why = next(filter(None, chain((outcome.why for outcome in outcomes), useless)), "")
    means = {name: fmean(each[name] for each in numbers) for name in dict.fromkeys(chain(*numbers))}
    # what each client reaches alone was found before the first round
    alone = [run.meta.get("contribution") or Contribution() for run in every]
    trained = sum(len(run.records) for run in every) + sum(each.get("rounds") or 0 for each in alone)
    seconds = sum(float(record.get("seconds", 0)) for run in every for record in run.records)
    return Result(rounds, means, why, len(outcomes), trained, sum((each.get("seconds", 0) for each in alone), seconds))


@dataclass(frozen=True)
class Tried:
    """A trial with its results at the rungs that it reached."""

    trial: Trial
    results: tuple[Result, ...]

    @property
    def last(self) -> Result:
        """The result at its last rung."""
        return self.results[-1]

    def rank(self, by: str) -> float:
        """What it is ranked by: minus infinity if it is of no use, or the criterion is not defined."""
        score = self.last.scores.get(by, math.nan)
        return -math.inf if self.last.failed or math.isnan(score) else score


@dataclass(frozen=True)
class Choice:
    """What became of a method: all its trials, the best first, and the one that is taken.

    ``spaces`` are where its values were searched, ``lr`` the given learning rate.
    """

    label: str
    tried: tuple[Tried, ...]
    spaces: Mapping[str, Space]
    lr: Rate
    by: str
    rounds: int

    @property
    def finished(self) -> list[Tried]:
        """Those that were trained to the end."""
        return [tried for tried in self.tried if tried.last.rounds == self.rounds]

    @property
    def taken(self) -> Tried:
        """The best by the criterion; the defaults if no draw is of any use."""
        return self.finished[0] if self.settled else next(t for t in self.tried if t.trial.draw == 0)

    @property
    def settled(self) -> bool:
        """Whether a draw that was trained to the end is of use by the criterion."""
        return self.finished[0].rank(self.by) > -math.inf

    @property
    def settings(self) -> Mapping[str, Any]:
        """The chosen values by name; empty: the defaults."""
        return self.taken.trial.settings

    def by_criterion(self) -> dict[str, Tried]:
        """The best trial by each criterion, of those trained to the end."""
        every = [name for name in CRITERIA if any(name in tried.last.scores for tried in self.finished)]
        best = {name: min(self.finished, key=partial(_order, name)) for name in every}
        return {name: tried for name, tried in best.items() if tried.rank(name) > -math.inf}

    def agreement(self) -> list[tuple[int, float]]:
        """At each rung before the last the rank correlation (Spearman) with the final criterion, over those trained to the end."""
        final = [tried.rank(self.by) for tried in self.finished]
        if len({*final}) < 4:  # a correlation of fewer says nothing
            return []
        by = _early(self.by)
        early = zip(*([result.scores.get(by, math.nan) for result in t.results] for t in self.finished), strict=True)
        rounds = [result.rounds for result in self.taken.results[:-1]]
        return [(n, spearman(values, final)) for n, values in zip(rounds, early, strict=False)]

    @property
    def cost(self) -> tuple[int, int, float]:
        """Runs of all its trials, and their rounds and seconds of training."""
        last = [tried.last for tried in self.tried]
        return sum(each.runs for each in last), sum(each.trained for each in last), sum(each.seconds for each in last)


@dataclass(frozen=True)
class Tuning:
    """All choices, and how they were made."""

    choices: Mapping[str, Choice]
    budget: Budget
    rounds: int
    digest: str = ""  # of the file with the choices
    methods: Mapping[str, Method] = field(default_factory=dict)  # as they were given
    solver: Solver | None = None
    conditions: Mapping[str, Content] = field(default_factory=dict)  # by label, on what else the choice depends

    @property
    def chosen(self) -> dict[str, tuple[Method, Solver]]:
        """From Python: by label the method and the solver with the chosen settings, as a federation takes them."""
        if self.solver is None:
            return {}
        return {label: tuned_method(m, self.solver, self.choices[label].settings) for label, m in self.methods.items()}

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page with all draws; return its path."""
        return report.page(self.document()).save(path)

    def __str__(self) -> str:
        document = self.document()
        lines = ["  ".join(row) for row in report.aligned([report.COLUMNS, *report.rows(document)])]
        return "\n".join([*map(str.rstrip, lines), *report.sentences(document)])

    def only(self, label: str) -> Self:
        """The choice for one method.

        Raises
        ------
        ValueError : no method has this label.
        """
        if label not in self.choices:
            raise ValueError(suggestions.unknown("method", label, self.choices))
        return replace(self, choices={label: self.choices[label]})

    def tuned(self, label: str) -> Tuned:
        """What a run with the chosen settings records about the choice."""
        chosen, budget = self.choices[label], self.budget
        default = next((t for t in chosen.finished if t.trial.draw == 0), None)
        of_use = {"score": chosen.taken if chosen.settled else None, "default": default}
        defined = {name: score for name, t in of_use.items() if t and math.isfinite(score := t.rank(budget.by))}
        n_runs, trained, seconds = chosen.cost
        useless = sum(bool(tried.last.failed) for tried in chosen.tried)
        tuned: Content = {"by": budget.by, "draws": budget.draws, "useless": useless, "settings": {**chosen.settings}}
        tuned |= {"defaults": self.defaults(label), "edges": edges(chosen.spaces, chosen.taken.trial.shares)}
        tuned |= {"seeds": [*budget.seeds], "validation": budget.validation, "rounds": self.rounds}
        tuned |= {"runs": n_runs, "trained": trained, "seconds": round(seconds, 3), "chosen": self.digest}
        return cast(Tuned, {**tuned, "code": own_code.version(str(self.methods.get(label, label))), **defined})

    def defaults(self, label: str) -> Content:
        """The values of draw 0, by the names of what was searched."""
        chosen = self.choices[label]
        values = {name: value for name, _, value in hyper_parameters(self.methods.get(label, Method(())))}
        return {RATE: _plain(chosen.lr), **{name: values[name] for name in chosen.spaces if name in values}}

    def document(self) -> Content:
        """Everything in plain JSON types."""
        about = {"budget": self.budget.conditions(self.rounds), "rungs": [*self.budget.rungs(self.rounds)]}
        return {**about, "methods": {label: self._of(label) for label in self.choices}, "chosen": self.digest}

    def _of(self, label: str) -> Content:
        chosen = self.choices[label]
        trials = []
        for tried in chosen.tried:
            trial, last = tried.trial, tried.last
            about = {"draw": trial.draw, "settings": {**trial.settings}, "failed": last.failed or None}
            rungs = [{"rounds": r.rounds, **{n: _number(x) for n, x in r.scores.items()}} for r in tried.results]
            trials.append({**about, "seconds": round(last.seconds, 3), "rungs": rungs})
        return {
            "score": None,
            "default": None,
            **self.tuned(label),
            "draw": chosen.taken.trial.draw,
            "spaces": {RATE: around(chosen.lr), **{name: str(s) for name, s in chosen.spaces.items()}},
            "given": {name: value for name, value in self._fixed(label).items() if name not in chosen.spaces},
            "by_criterion": {name: tried.trial.draw for name, tried in chosen.by_criterion().items()},
            "agreement": [{"rounds": n, "spearman": _number(value)} for n, value in chosen.agreement()],
            "trials": trials,
        }

    def toml(self, shared: Mapping[str, Any]) -> str:
        """The choices as a configuration file for ``run``, ``compare`` and Flower: what methods share, and a table of settings for each."""
        tuned = {label: {**self.tuned(label), "conditions": self.conditions.get(label, {})} for label in self.choices}
        about = f"# chosen by {self.budget.by}: {CRITERIA[self.budget.by]}\n"
        return about + tomli_w.dumps({**shared, "methods": self.settings(), "tuned": tuned})

    def settings(self) -> dict[str, dict[str, Any]]:
        """The chosen values by method, those that were searched and the user's also where they are the defaults."""
        return {
            label: {**self._fixed(label), **self.defaults(label), **each.settings}
            for label, each in self.choices.items()
        }

    def _fixed(self, label: str) -> Content:
        """The values of a method that were written, or are not its rules' defaults."""
        method = self.methods.get(label, Method(()))
        every = [(n, v) for n, f, v in hyper_parameters(method) if n in method.typed or v != f.default]
        return {name: value for name, value in every if value is not None}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def decide(spaces: Spaces, rates: Mapping[str, Any], budget: Budget, rounds: int, train: Train) -> Tuning:
    """Choose settings for every method.

    Parameters
    ----------
    spaces : by label where hyper-parameters are searched.
    rates : by label the given learning rate.
    budget : how many draws, and by what they are judged.
    rounds : of a whole run.
    train : trains trials up to a round, from where they are, and returns their runs; if ``leave_out`` is its third argument, one for
        every client, which takes no part.
    """
    lrs = {label: rate(lr) for label, lr in rates.items()}
    halvings, early = budget.rungs(rounds), _early(budget.by)
    for label, lr in lrs.items():
        _check_rate(lr, spaces[label].get(RATE))
    tried: dict[Trial, Tried] = {}
    alive: dict[str, list[Trial]] = {label: [] for label in spaces}

    def advance(trials: Sequence[Trial], until: int) -> None:
        runs = train(trials, until, False)
        for trial in trials:
            earlier = tried[trial].results if trial in tried else ()
            tried[trial] = Tried(trial, (*earlier, judged(runs[trial], early, until)))

    # the draws that are asked for at once: all, or a quarter where the sampler learns from the results of earlier ones
    size = budget.draws if budget.sampler == "random" else -(-budget.draws // WAVES)
    for start in range(0, budget.draws, size):
        drawn = []
        for label, space in spaces.items():
            earlier = [tried[trial] for trial in alive[label]]
            for d in range(start, min(start + size, budget.draws)):
                shares = _ask(space, budget, d, earlier) if d else {}
                drawn.append(Trial(label, d, settled(space, lrs[label], shares) if d else {}, shares))
        advance(drawn, min(halvings))
        for trial in drawn:
            alive[trial.label].append(trial)
    for before, until in pairwise(halvings):
        for label, trials in alive.items():
            best = sorted(trials, key=lambda trial: _order(early, tried[trial]))
            alive[label] = best[: -(-len(trials) // 2 ** halvings[before])]
        advance([*chain.from_iterable(alive.values())], until)
    if budget.by == LEAVE_OUT:
        for trial, runs in train([*chain.from_iterable(alive.values())], rounds, True).items():
            tried[trial] = _with_left_out(tried[trial], runs)

    def place(each: Tried) -> tuple[int, tuple[bool, bool, float, int]]:
        return -len(each.results), _order(budget.by if each.last.rounds == rounds else early, each)

    every = grouping.grouped((trial.label, each) for trial, each in tried.items())
    order = {label: tuple(sorted(of_method, key=place)) for label, of_method in every.items()}
    choices = {
        label: Choice(label, order[label], space, lrs[label], budget.by, rounds) for label, space in spaces.items()
    }
    return Tuning(choices, budget, rounds)


def _check_rate(lr: Rate, space: Space | None) -> None:
    """Refuse to search numbers that would replace a schedule."""
    if space is not None and not isinstance(lr, float) and any(isinstance(end, int | float) for end in space.ends):
        raise ValueError(
            f"search {RATE}: numbers would replace the schedule {shown(lr)}. Leave it out, so that multiples of the schedule are "
            "searched, or give a learning rate that is a number."
        )


def _with_left_out(tried: Tried, runs: Sequence[Outcome]) -> Tried:
    """A trial with what the runs without each client add to its last result."""
    last, more = tried.last, judged(runs, ORACLE, tried.last.rounds)
    why = next((run.why for run in runs if run.why), "")
    ended = [criteria.left_out(run.history) for run in runs if run.history is not None]
    scores = {**last.scores, LEAVE_OUT: fmean(ended) if ended and not why else math.nan}
    cost = {name: getattr(last, name) + getattr(more, name) for name in ("runs", "trained", "seconds")}
    return Tried(tried.trial, (*tried.results[:-1], replace(last, scores=scores, failed=last.failed or why, **cost)))


def _early(by: str) -> str:
    """By what draws are ranked while they train."""
    return "mean" if by == LEAVE_OUT else by


def _ask(spaces: Mapping[str, Space], budget: Budget, d: int, trials: Sequence[Tried]) -> dict[str, float]:
    """The shares of draw ``d``: at random, or by a sampler that is told the results so far.

    A new sampler with its own seed is told all of them in the order of the draws: one that is stopped and continued would draw otherwise.
    """
    if budget.sampler == "random" or not trials:
        return random_shares(spaces, budget.seed, d)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes: dict[str, Any] = {name: optuna.distributions.FloatDistribution(0, 1) for name in random_shares(spaces, 0, d)}
    seed = int(share(budget.seed, d, "sampler") * 2**32)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for earlier in sorted(trials, key=lambda each: each.trial.draw):
        score, shares = earlier.results[0].scores.get(_early(budget.by), math.nan), earlier.trial.shares
        if shares and math.isfinite(score) and not earlier.results[0].failed:
            study.add_trial(optuna.trial.create_trial(params=dict(shares), distributions=axes, value=score))
    return dict(study.ask(axes).params)


def _order(by: str, tried: Tried) -> tuple[bool, bool, float, int]:
    """What sorts trials from the best to the worst, those of no use last; of equal ones the lower draw is first.

    Those for which the criterion is not defined, or not yet, come after the others, by their means.
    """
    score, mean = (tried.last.scores.get(name, math.nan) for name in (by, "mean"))
    place = mean if (undefined := math.isnan(score)) else score
    return bool(tried.last.failed), undefined, math.inf if math.isnan(place) else -place, tried.trial.draw


def claim(directory: Path, budget: Budget, rounds: int, methods: Collection[str] | None) -> None:
    """Require that a directory has no other runs, and say if a choice in it is made again, from the same runs, or for other ``methods``.

    Raises
    ------
    RunError : a directory of runs that do not choose, or that cannot serve this choice.
    """
    if any((directory / name).exists() for name in (ORDER, CONDITIONS, "config.toml")):
        raise RunError(f"{directory} holds runs that choose no settings. Choose another name or directory.")
    if directory.is_file():
        raise RunError(f"{directory} is a file. Choose another directory.")
    before = stored(directory / TUNING)
    used = (directory.parent / ORDER).exists()
    conditions, free = budget.conditions(rounds), marked(Budget, "free") if budget.sampler == "random" else ()
    changes = Identity(conditions | before.get("budget", {})).differences(Identity(conditions))
    for _, name, earlier, value in changes:
        serves = name in free and not {earlier, value} & {ORACLE, COLLABORATION}
        if used or not serves:
            reuse = f"its runs cannot serve one with {name}={value}"
            why = f"runs beside it have its settings, and {name}={value} was given" if used else reuse
            advice = "Choose another name or directory."
            raise RunError(f"{directory} holds a choice with {name}={earlier}: {why}. {advice}")
    for _, name, earlier, value in changes:
        log.warning("%s holds a choice with %s=%s; one with %s replaces it.", directory, name, earlier, value)
    if dropped := [label for label in before.get("methods", {}) if methods is not None and label not in methods]:
        log.warning("%s holds a choice for %s, too; without these it is written again.", directory, ", ".join(dropped))


def write(tuning: Tuning, directory: Path, shared: Mapping[str, Any], *, page: bool = True) -> Tuning:
    """Write the choices, and a document and a ``page`` with all draws, to the disk, before any run has test data; return them with the hash of the choices."""
    text = seals.sealed_text(tuning.toml(shared))
    digest = hashlib.sha256(text.encode()).hexdigest()
    written = replace(tuning, digest=digest)
    directory.mkdir(parents=True, exist_ok=True)
    names = [*trust.named(tomllib.loads(text)), *filter(None, [shared.get("track")])]
    trust.enter(trust.settings_file(directory / CHOSEN, names))  # the user's own, who has just chosen
    files.write_atomically(directory / CHOSEN, text)
    files.write_atomically(directory / TUNING, seals.sealed_json(written.document()))
    if page:
        written.report(directory / PAGE)
    return written


@dataclass(frozen=True)
class Candidates:
    """The methods to tune, by label; what they share, as a layer; and spaces of the user's own, by name."""

    methods: Mapping[str, str]
    shared: Layer
    search: Mapping[str, Space] = field(default_factory=dict)

    @property
    def parsed(self) -> dict[str, Method]:
        """The methods with the user's hyper-parameters."""
        return {label: parse(text, overrides_of(text, [self.shared])) for label, text in self.methods.items()}

    @cached_property
    def plain(self) -> dict[str, RunConfig]:
        """By label the configuration without anything that is chosen."""
        return {label: self.config(label, {}, seed=FIRST_SEED) for label in self.methods}

    @property
    def first(self) -> RunConfig:
        """That of the first method."""
        return next(iter(self.plain.values()))

    def config(self, label: str, settings: Mapping[str, Any], **more: Any) -> RunConfig:
        """The configuration of a run of a method with settings by name."""
        tried = Layer("draw", {"method": self.methods[label], "label": label, **settings, **more})
        return layered([self.shared, tried])[0]

    def file(self) -> dict[str, Any]:
        """What the methods share, as a configuration file has it."""
        places_of_runs = ("on", "devices")  # of this choice, not of what is made with it
        shared = {n: v for n, v in stacked([self.shared]).items() if "." not in n and n not in places_of_runs}
        options = {name: value for name, value in shared.pop("scenario_options", {}).items() if value is not None}
        columns = {"columns": columns} if (columns := options.pop("columns", None)) else {}
        if inside := ", ".join(f"{name}={value}" for name, value in shared.pop("network_options", {}).items()):
            network = shared.get("network") or self.config(next(iter(self.methods)), {}).network
            shared["network"] = f"{network}({inside})"
        shared, options = (places.replaced(each, places.CODE, own_code.whole) for each in (shared, options))
        return {"scenario": shared.pop("scenario"), **shared, **({"set": options} if options else {}), **columns}

    def sealed(self, budget: Budget) -> Configure:
        """With what runs that choose have: no test data, rows held out, counts to recognise a model that guesses, and few checkpoints."""
        first, table = self.first, {**self.shared.table, **_seals(budget.by, budget.validation)}
        described = scenarios.describe(first.scenario, first.data, **first.scenario_options)
        require_data(budget.by, described, first)
        if kind_of(described.task) != REGRESSION:
            measured = str(table.get("measures") or "")
            table["measures"] = ", ".join(filter(None, [measured, RATES * (RATES not in measured)]))
        if first.checkpoint_every == 1:  # a kill costs no more than the first rung
            table["checkpoint_every"] = min(rungs(first.rounds))
        return replace(self, shared=replace(self.shared, table=table)).config

    def without(self, _: Budget) -> dict[str, Configure]:
        """By the name of each client, on the data of the others, with its own as test data."""
        return {n: partial(self.config, left_out=n) for n in unchanged.data_of(self.first).client_names}

    def conditions(self, _: Budget, folder: Path) -> dict[str, Content]:
        """By label what the choice depends on, with the hashes of the data that the first of its runs in a folder saw."""
        first = self.first
        contents = manifest(_place(folder, Trial(first.label, 0, {}), str(first.seed))).get("contents", {})
        conditions = {**_conditions(first), "contents": {**contents, **_file(first)}}
        return dict.fromkeys(self.methods, conditions)


LACKING: Final = {  # what criteria need of the data
    "eo": "classes, and groups of people (sensitive attributes). Name their column: --set group=COLUMN, in a suite the option group, in Python clients (x, y, s)",
    COLLABORATION: "data for collaborative fairness, with validation data of the server's. Choose digits-pow, digits-cla, digits-dir or a "
    "scenario of FedSAC, in Python give collaborative=True, server_validation=(x, y) and no groups",
    LEAVE_OUT: "at least two clients. Divide the data among more",
    ORACLE: "test data. Give tests={...} or client_tests=[...]",
}


def require_models(by: str, methods: Mapping[str, Method]) -> None:
    """Refuse to compare what clients receive where that is the same for all, by every method.

    Raises
    ------
    ValueError : naming the methods.
    """
    if by == COLLABORATION and not any(method.differing for method in methods.values()):
        raise ValueError(
            f"by={by}: every client receives the same model by {', '.join(methods)}, so that nothing is to compare. "
            "Add a method such as fedsac or cgsv, or choose by another criterion."
        )


def require(by: str, present: Mapping[str, Callable[[], bool]]) -> None:
    """Refuse a criterion whose data are not ``present``.

    Raises
    ------
    ValueError : naming what it needs.
    """
    if by in present and not present[by]():
        raise ValueError(f"by={by} needs {LACKING[by]}, or choose by another criterion.")


def require_data(by: str, described: Description, first: RunConfig) -> None:
    """Refuse a criterion that the data of a run do not define.

    Raises
    ------
    ValueError : naming what it needs.
    """
    present = {
        "eo": lambda: kind_of(described.task) != REGRESSION and bool(unchanged.data_of(first).attributes),
        COLLABORATION: lambda: described.collaborative and described.has_server_validation,
        LEAVE_OUT: lambda: len(unchanged.data_of(first).clients) > 1,
    }
    require(by, present)


def check(methods: Mapping[str, Method], budget: Budget, search: Mapping[str, Space]) -> dict[str, dict[str, Space]]:
    """By label where settings are searched; refuse what would look at test data while settings are chosen, and spaces of settings that no method has.

    Raises
    ------
    MethodError : naming the method, and what to use instead.
    ValueError : naming the setting.
    """
    for label, method in methods.items():
        if "contribution_on_test" in method.needs and budget.by != ORACLE:
            raise MethodError(
                f"{label} measures contributions on test data before the first round, and test data are sealed while settings are chosen. "
                "Use a form that measures them on the server's validation data, such as fedsac, or leave it out."
            )
        if budget.by == LEAVE_OUT and not (method.sharing.global_model and method.sharing.clients):
            raise MethodError(
                f"{label} has no global model for a client that takes no part. Choose by another criterion, or leave it out."
            )
    typed = {name for method in methods.values() for name in method.typed}
    names = {name for m in methods.values() for name, *_ in hyper_parameters(m) if name not in m.typed} | {RATE}
    for name in search:
        if name not in names:
            has_value = "it has a value already, which would not be searched. Leave one of them out."
            why = has_value if name in typed else suggestions.unknown("setting", name, sorted(names))
            raise ValueError(f"search {name}: {why}")
    runs.distinct([*methods])
    return {label: space_of(method, search) for label, method in methods.items()}


@dataclass(frozen=True)
class Subject:
    """Methods whose settings are chosen, on data: as a command has them (:class:`Candidates`), or Python.

    Parameters
    ----------
    methods, spaces : by label, of :func:`check`.
    rates, rounds : the given learning rate by label, and the rounds of a whole run.
    sealed : what makes configurations of runs that choose; an error if the data are not as the budget needs them.
    without : by the name of each client, what makes those of runs on the data of the others.
    conditions : by label what the choice depends on, of runs in a folder.
    shared : what a file with the choices has of all methods.
    """

    methods: Mapping[str, Method]
    spaces: Spaces
    rates: Mapping[str, Any]
    rounds: int
    sealed: Callable[[Budget], Configure]
    without: Callable[[Budget], Mapping[str, Configure]]
    conditions: Callable[[Budget, Path], Mapping[str, Content]]
    shared: Mapping[str, Any] = field(default_factory=dict)


def choose(
    subject: Subject, budget: Budget, base: Path, train: TrainCells, folder: Path | None = None, *, page: bool = True
) -> Tuning:
    """Choose the settings of every method, and write them to ``base``; the same call continues after a stop, bit for bit.

    Parameters
    ----------
    subject : the methods and their data.
    budget : how many draws, and by what they are judged.
    base : the directory of the choice.
    train : trains cells, or continues them, and returns their outcomes.
    folder : where the runs are kept, which other choices use, too; None: in ``base``.
    page : whether to write a page with all draws.

    Raises
    ------
    ValueError : the data are not as the budget needs them.
    RunError : a directory that holds something else; or, of the kind :data:`TRIAL`, a trial failed for another reason than its settings.
    """
    methods, rounds, runs_in = subject.methods, subject.rounds, folder or base / TRIALS
    sealed = subject.sealed(budget)
    clients = subject.without(budget).items() if budget.by == LEAVE_OUT else ()
    others = {f"-without-{k}-{name}": configure for k, (name, configure) in enumerate(clients)}
    claim(base, budget, rounds, methods if folder is None else None)

    def advance(trials: Sequence[Trial], until: int, leave_out: bool) -> dict[Trial, list[Outcome]]:
        cells = []
        for trial, seed, name in product(trials, budget.seeds, others if leave_out else [""]):
            config = others.get(name, sealed)(trial.label, trial.settings, seed=seed)
            cells.append(Cell(trial, config, _place(runs_in, trial, f"{seed}{name}"), until))
        return _by_trial([*train(cells)])

    with claims.claimed(base):
        chosen = decide(subject.spaces, subject.rates, budget, rounds, advance)
        chosen = replace(chosen, methods=methods, conditions=subject.conditions(budget, runs_in))
        return write(chosen, base, subject.shared, page=page)


def choose_in_processes(
    candidates: Candidates, budget: Budget, base: Path, folder: Path | None = None, **how: Unpack[How]
) -> Tuning:
    """The same by runs in processes; ``how`` they are trained: see :class:`equipoise.runs.plan.How`."""
    methods = candidates.parsed
    spaces = check(methods, budget, candidates.search)
    for name in ("patience", "select"):
        if candidates.shared.table.get(name) not in (None, "last"):
            raise ValueError(f"--{name}: {BY_LAST}. Leave it out.")
    if (engine := candidates.shared.table.get("engine")) in (FLOWER, distributed.NAME):
        raise ValueError(
            f"--engine {engine}: settings are chosen in simulations, each in a process. Choose another engine, or leave it out."
        )
    plain, rounds = candidates.plain, candidates.first.rounds
    rates = {label: config.lr for label, config in plain.items()}
    of_data = candidates.sealed, candidates.without, candidates.conditions
    subject = Subject(methods, spaces, rates, rounds, *of_data, candidates.file())
    total, workers, on_progress = budget.planned(rounds) * len(plain), how.get("workers"), how.get("on_progress")

    reached: dict[Path, int] = {}  # after how many rounds each run pauses; the next rung goes on from there

    def train(cells: Sequence[Cell]) -> list[Outcome]:
        others = sum(reached.values()) - sum(reached.get(cell.folder, 0) for cell in cells)
        reached.update({cell.folder: cell.goal for cell in cells})

        def add_progress(now: int, _: int) -> None:
            if on_progress is not None:
                on_progress(min(others + now, total), total)

        return _trained(cells, how | {"on_progress": add_progress})

    with nullcontext(workers) if workers else Workers() as kept:
        how |= {"jobs": at_once(how.get("jobs"), [*plain.values()]), "workers": kept}
        return choose(subject, budget, base, train, folder)


def _trained(cells: Sequence[Cell], how: How) -> list[Outcome]:
    """The outcomes of runs, which are begun where they are not."""
    for cell in cells:
        runs.start(cell.config, cell.folder)
    return finish(cells, **how)


def _seals(by: str, validation: float) -> dict[str, Any]:
    """What decides the data of a run that chooses by a criterion."""
    rewarded = {"rewarded": True} if by == COLLABORATION else {}
    return {"validation": validation, "sealed": by != ORACLE, **rewarded}


def _conditions(config: RunConfig) -> Content:
    """What a choice depends on, but its budget and the settings of methods: of a configuration, with hashes in place of the user's code."""
    weights = {} if config.weights is None else {"weights": hashes.file_hash(config.weights)}
    table = {**vars(config), "network_options": {**config.network_options, **weights}}
    options = {**scenarios.SCENARIOS[config.scenario].options, **config.scenario_options}
    options["task"] = options["task"] or "classification"  # as is assumed of own data

    def coded(value: object) -> object:
        own = isinstance(value, str) and own_code.split(value)[0]
        return f"{own_code.nameless(str(value))} {own_code.version(str(value))}" if own else value

    tables = {"settings": conditional(table), "options": plain(options)}
    return {key: {name: coded(value) for name, value in each.items()} for key, each in tables.items()}


def conditional(settings: Mapping[str, Any]) -> Content:
    """Those of some settings that a choice depends on, in plain JSON types."""
    return plain({name: value for name, value in settings.items() if name not in APART})


def plain(table: Mapping[str, Any]) -> Content:
    """A table in plain JSON types, without what is None."""
    kept = {name: value for name, value in table.items() if value is not None}
    return dict(json.loads(json.dumps(kept, default=str)))


def _file(config: RunConfig) -> dict[str, str]:
    """The hash of the user's file, whatever a run takes from it."""
    path = Path(config.data or "")
    return {"file": hashes.file_hash(path)} if path.is_file() else {}


def changed(tuned: Tuned, conditions: Content, config: RunConfig) -> list[str]:
    """What decides the results of a run, by ``conditions`` of a choice, and is not as it was, by its names; data in words."""
    now, by_python = _conditions(config), ["all that Python was given"] * ("python" in conditions)
    usual = {f.name: f.default for f in fields(RunConfig)} | plain(scenarios.SCENARIOS[config.scenario].options)
    changes = identity({**conditions, "python": {}}).differences(identity(now), usual)
    names = [change.name for change in changes if not by_python or change.name in conditions["settings"]]
    if tuned["by"] != "eo" and "positive" in names:  # no other criterion looks at it
        names.remove("positive")
    if config.validation not in (0, tuned["validation"]):
        names.append("validation")
    contents = conditions.get("contents", {})
    if contents and now["options"] == conditions["options"]:
        more = {"seed": tuned["seeds"][0], "tuned": None, **_seals(tuned["by"], tuned["validation"])}
        names += _data_changed(contents, replace(config, **more))
    return [*by_python, *names]


def identity(conditions: Content) -> Identity:
    """What the conditions of a choice state, but its data."""
    options, settings, python = (conditions.get(key, {}) for key in ("options", "settings", "python"))
    return Identity(options | settings | python)


@lru_cache(maxsize=4)  # for all methods and seeds of a command
def _contents(decisive: str) -> dict[str, Any]:
    """The hashes of the user's data, by the fields of a configuration that decide them, as JSON."""
    return unchanged.contents(configure("fedavg", **json.loads(decisive)))


def _data_changed(contents: Content, config: RunConfig) -> list[str]:
    """In words, which of the user's data are not those that chose; the name of their file where only what did not choose differs."""
    file, its_file = contents.get("file"), _file(config).get("file")
    if file is not None and file == its_file:
        return []
    now = Identity(data=_contents(json.dumps({name: getattr(config, name) for name in marked(RunConfig, "data")})))
    changes = [c for c in Identity(data=contents).differences(now) if c.name not in ("file", "weights")]
    rows = [Path(config.data or "").name] * (None not in (file, its_file))
    return [*map(str, changes)] or rows


def _place(trials_in: Path, trial: Trial, seed: str) -> Path:
    """The directory of a run of a trial."""
    return trials_in / f"{runs.slug(trial.label)}-draw{trial.draw:02d}-seed{runs.slug(seed)}"


def _by_trial(outcomes: Sequence[Outcome]) -> dict[Trial, list[Outcome]]:
    """The outcomes of the runs of each trial, if those that failed did by their settings."""
    for label in {outcome.cell.key.label for outcome in outcomes}:
        errors = [outcome.error for outcome in outcomes if outcome.cell.key.label == label]
        others = [error for error in errors if error is not None and error.kind != SETTINGS]
        if others and (len(others) == len(errors) or {CODE, MEMORY} & {error.kind for error in others}):
            raise RunError(f"{label} cannot be tuned: {others[0]}.", TRIAL)
    return grouping.grouped((outcome.cell.key, outcome) for outcome in outcomes)
