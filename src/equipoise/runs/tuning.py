"""Settings chosen in the open: equal draws for every method, successive halving, and a criterion on held-out training samples.

Nothing here trains: :func:`choose` asks its caller to train runs up to a round, and ranks what they recorded.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

import tomli_w

from equipoise.core.rates import Rate, rate, scaled, text
from equipoise.core.settings import documented
from equipoise.core.solver import Solver
from equipoise.federation.method import Method
from equipoise.metrics.statistics import spearman
from equipoise.records import criteria
from equipoise.records.criteria import COLLABORATION, CRITERIA, LEAVE_OUT, ORACLE, rungs
from equipoise.records.directory import CHOSEN, CONDITIONS, ORDER, stored
from equipoise.records.history import History
from equipoise.records.identity import Identity
from equipoise.records.meta import Content, Contribution, Tuned
from equipoise.report import tuning as report
from equipoise.runs.plan import Outcome
from equipoise.system import own_code, trust
from equipoise.system.errors import RunError
from equipoise.system.files import write_atomically
from equipoise.system.ranges import check_fields, choice, fitting, marked, number, setting
from equipoise.system.seals import sealed_json, sealed_text
from equipoise.system.search import Interval, Space, log_uniform, share
from equipoise.system.suggestions import unknown

log = logging.getLogger(__name__)

RATE: Final = "lr"  # what every method is tuned by
AROUND: Final = Interval(0.1, 10, logarithmic=True)  # as a multiple of the given learning rate
FIRST_SEED: Final = 10_000  # of runs that choose; those that report have smaller ones
TUNING, PAGE = "tuning.json", "tuning.html"
WAVES: Final = 4  # in which a sampler that learns asks for its draws


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


Train = Callable[
    [Sequence[Trial], int, bool], Mapping[Trial, Sequence[Outcome]]
]  # up to a round, or without each client


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
    given = dict(search or {})
    spaces = {RATE: given[RATE]} if RATE in given else dict[str, Space]()
    for end in spaces[RATE].ends if spaces else ():
        try:
            rate(end)
        except ValueError as error:
            raise ValueError(f"search {RATE}: {error}") from None
    for name, parameter, value in hyper_parameters(method):
        space = given.get(name)
        if space is None and value == parameter.default:
            space = parameter.metadata.get("search")
        if space is not None and name not in method.typed:
            spaces[name] = fitting(f"search {name}", space, parameter)
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
    why = next((outcome.why for outcome in outcomes if outcome.why), "")
    numbers = [{**criteria.scores(run), **({ORACLE: criteria.tested(run)} if by == ORACLE else {})} for run in ended]
    useless = History.failure if by == ORACLE else criteria.failed
    why = why or next((text for run in ended if (text := useless(run))), "")
    names = dict.fromkeys(name for each in numbers for name in each)
    means = {name: fmean(each[name] for each in numbers) for name in names}
    seconds = sum(float(record.get("seconds", 0)) for run in every for record in run.records)
    trained = sum(len(run.records) for run in every)
    for run in every:  # what each client reaches alone was found before the first round
        alone = run.meta.get("contribution") or Contribution()
        trained, seconds = trained + (alone.get("rounds") or 0), seconds + alone.get("seconds", 0)
    return Result(rounds, means, why, len(outcomes), trained, seconds)


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

    def only(self, label: str) -> Tuning:
        """The choice for one method.

        Raises
        ------
        ValueError : no method has this label.
        """
        if label not in self.choices:
            raise ValueError(unknown("method", label, self.choices))
        return replace(self, choices={label: self.choices[label]})

    def tuned(self, label: str) -> Tuned:
        """What a run with the chosen settings records about the choice."""
        chosen, budget = self.choices[label], self.budget
        default = next((t for t in chosen.finished if t.trial.draw == 0), None)
        of_use = {"score": chosen.taken if chosen.settled else None, "default": default}
        defined = {name: score for name, t in of_use.items() if t and math.isfinite(score := t.rank(budget.by))}
        n_runs, trained, seconds = chosen.cost
        tuned: Content = {
            "by": budget.by,
            "draws": budget.draws,
            "useless": sum(bool(tried.last.failed) for tried in chosen.tried),
            "settings": dict(chosen.settings),
            "defaults": self.defaults(label),
            "edges": edges(chosen.spaces, chosen.taken.trial.shares),
            "seeds": [*budget.seeds],
            "validation": budget.validation,
            "rounds": self.rounds,
            "runs": n_runs,
            "trained": trained,
            "seconds": round(seconds, 3),
            "chosen": self.digest,
            "code": own_code.version(str(self.methods.get(label, label))),
        }
        return cast(Tuned, tuned | defined)

    def defaults(self, label: str) -> Content:
        """The values of draw 0, by the names of what was searched."""
        chosen = self.choices[label]
        values = {name: value for name, _, value in hyper_parameters(self.methods.get(label, Method(())))}
        return {RATE: _plain(chosen.lr), **{name: values[name] for name in chosen.spaces if name in values}}

    def document(self) -> Content:
        """Everything in plain JSON types."""
        return {
            "budget": self.budget.conditions(self.rounds),
            "rungs": [*self.budget.rungs(self.rounds)],
            "methods": {label: self._of(label) for label in self.choices},
            "chosen": self.digest,
        }

    def _of(self, label: str) -> Content:
        chosen = self.choices[label]
        return {
            "score": None,
            "default": None,
            **self.tuned(label),
            "draw": chosen.taken.trial.draw,
            "spaces": {RATE: around(chosen.lr), **{name: str(s) for name, s in chosen.spaces.items()}},
            "given": {name: value for name, value in self._fixed(label).items() if name not in chosen.spaces},
            "by_criterion": {name: tried.trial.draw for name, tried in chosen.by_criterion().items()},
            "agreement": [{"rounds": n, "spearman": _number(value)} for n, value in chosen.agreement()],
            "trials": [
                {
                    "draw": tried.trial.draw,
                    "settings": dict(tried.trial.settings),
                    "failed": tried.last.failed or None,
                    "seconds": round(tried.last.seconds, 3),
                    "rungs": [
                        {"rounds": r.rounds, **{name: _number(value) for name, value in r.scores.items()}}
                        for r in tried.results
                    ],
                }
                for tried in chosen.tried
            ],
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


def choose(
    spaces: Mapping[str, Mapping[str, Space]],
    rates: Mapping[str, Any],
    budget: Budget,
    rounds: int,
    train: Train,
) -> Tuning:
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
        searched = spaces[label][RATE].ends if RATE in spaces[label] else ()
        if not isinstance(lr, float) and any(isinstance(end, int | float) for end in searched):
            raise ValueError(
                f"search {RATE}: numbers would replace the schedule {shown(lr)}. Leave it out, so that multiples of the schedule are "
                "searched, or give a learning rate that is a number."
            )
    tried: dict[Trial, list[Result]] = {}
    alive: dict[str, list[Trial]] = {label: [] for label in spaces}

    def advance(trials: Sequence[Trial], until: int) -> None:
        runs = train(trials, until, False)
        for trial in trials:
            tried.setdefault(trial, []).append(judged(runs[trial], early, until))

    for wave in _waves(budget):
        drawn = []
        for label, space in spaces.items():
            earlier = [Tried(trial, tuple(tried[trial])) for trial in alive[label]]
            for d in wave:
                shares = _ask(space, budget, d, earlier, early) if d else {}
                drawn.append(Trial(label, d, settled(space, lrs[label], shares) if d else {}, shares))
        advance(drawn, min(halvings))
        alive = {label: [*alive[label], *(trial for trial in drawn if trial.label == label)] for label in spaces}
    for before, until in pairwise(halvings):
        for label, trials in alive.items():
            best = sorted(trials, key=lambda trial: _order(early, Tried(trial, tuple(tried[trial]))))
            alive[label] = best[: -(-len(trials) // 2 ** halvings[before])]
        advance([trial for trials in alive.values() for trial in trials], until)
    if budget.by == LEAVE_OUT:
        last = [trial for trials in alive.values() for trial in trials]
        for trial, runs in train(last, rounds, True).items():
            result = tried[trial][-1]
            why = next((run.why for run in runs if run.why), "")
            ended = [criteria.left_out(run.history) for run in runs if run.history is not None]
            score = fmean(ended) if ended and not why else math.nan
            more = judged(runs, ORACLE, rounds)
            tried[trial][-1] = replace(
                result,
                scores={**result.scores, LEAVE_OUT: score},
                failed=result.failed or why,
                runs=result.runs + more.runs,
                trained=result.trained + more.trained,
                seconds=result.seconds + more.seconds,
            )

    def place(tried_trial: Tried) -> tuple[int, tuple[bool, bool, float, int]]:
        ended = tried_trial.last.rounds == rounds
        return -len(tried_trial.results), _order(budget.by if ended else early, tried_trial)

    choices = {}
    for label in spaces:
        of_method = [Tried(trial, tuple(results)) for trial, results in tried.items() if trial.label == label]
        order = tuple(sorted(of_method, key=place))
        choices[label] = Choice(label, order, spaces[label], lrs[label], budget.by, rounds)
    return Tuning(choices, budget, rounds)


def _early(by: str) -> str:
    """By what draws are ranked while they train."""
    return "mean" if by == LEAVE_OUT else by


def _waves(budget: Budget) -> list[range]:
    """The draws that are asked for at once: all, or a quarter where the sampler learns from the results of earlier ones."""
    size = budget.draws if budget.sampler == "random" else -(-budget.draws // WAVES)
    return [range(k, min(k + size, budget.draws)) for k in range(0, budget.draws, size)]


def _ask(spaces: Mapping[str, Space], budget: Budget, d: int, trials: Sequence[Tried], by: str) -> dict[str, float]:
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
        score, shares = earlier.results[0].scores.get(by, math.nan), earlier.trial.shares
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
            raise RunError(
                f"{directory} holds a choice with {name}={earlier}: {why}. Choose another name or directory."
            )
    for _, name, earlier, value in changes:
        log.warning("%s holds a choice with %s=%s; one with %s replaces it.", directory, name, earlier, value)
    if dropped := [label for label in before.get("methods", {}) if methods is not None and label not in methods]:
        log.warning("%s holds a choice for %s, too; without these it is written again.", directory, ", ".join(dropped))


def write(tuning: Tuning, directory: Path, shared: Mapping[str, Any], *, page: bool = True) -> Tuning:
    """Write the choices, and a document and a ``page`` with all draws, to the disk, before any run has test data; return them with the hash of the choices."""
    text = sealed_text(tuning.toml(shared))
    digest = hashlib.sha256(text.encode()).hexdigest()
    written = replace(tuning, digest=digest)
    directory.mkdir(parents=True, exist_ok=True)
    names = [*trust.named(tomllib.loads(text)), *filter(None, [shared.get("track")])]
    trust.enter(trust.settings_file(directory / CHOSEN, names))  # the user's own, who has just chosen
    write_atomically(directory / CHOSEN, text)
    write_atomically(directory / TUNING, sealed_json(written.document()))
    if page:
        written.report(directory / PAGE)
    return written
