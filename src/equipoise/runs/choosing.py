"""Settings of methods chosen by runs in directories, which have no test data; the choice is on the disk before any run has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final, Unpack

from equipoise import scenarios
from equipoise.federation.method import Method, MethodError, parse
from equipoise.metrics.classification import RATES
from equipoise.records.criteria import COLLABORATION, LEAVE_OUT, ORACLE, rungs
from equipoise.records.directory import TRIALS, manifest
from equipoise.records.identity import Identity
from equipoise.records.meta import Content, Tuned
from equipoise.runs import directory as runs, tuning, unchanged
from equipoise.runs.configuration import FLOWER, Layer, RunConfig, configure, layered, overrides_of, stacked
from equipoise.runs.plan import Cell, How, Outcome, finish, fitting
from equipoise.runs.tuning import RATE, Budget, Trial, Tuning
from equipoise.scenarios.scenario import REGRESSION, Description, kind_of
from equipoise.system import files, hashes, own_code, places
from equipoise.system.errors import CODE, SETTINGS, RunError
from equipoise.system.grouping import grouped
from equipoise.system.ranges import marked
from equipoise.system.search import Space
from equipoise.system.suggestions import unknown
from equipoise.system.workers import Workers

APART: Final = marked(RunConfig, "apart")
TRIAL: Final = "trial"  # kind of errors: a trial failed for another reason than its settings
FOLDER: Final = "choosing"  # of a comparison whose settings are chosen
BY_LAST: Final = "settings are chosen by the last rounds, the same for all draws"

Configure = Callable[..., Any]  # of a label, settings by name and a seed


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
        return {label: self.config(label, {}, seed=tuning.FIRST_SEED) for label in self.methods}

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
        shared = {name: value for name, value in stacked([self.shared]).items() if "." not in name}
        options = {name: value for name, value in shared.pop("scenario_options", {}).items() if value is not None}
        columns = {"columns": columns} if (columns := options.pop("columns", None)) else {}
        if inside := ", ".join(f"{name}={value}" for name, value in shared.pop("network_options", {}).items()):
            network = shared.get("network") or self.config(next(iter(self.methods)), {}).network
            shared["network"] = f"{network}({inside})"
        shared, options = (places.replaced(each, places.CODE, own_code.whole) for each in (shared, options))
        return {"scenario": shared.pop("scenario"), **shared, **({"set": options} if options else {}), **columns}

    def sealed(self, budget: Budget) -> Configure:
        """With what runs that choose have: no test data, rows held out, counts to recognise a model that guesses, and few checkpoints."""
        described = scenarios.describe(self.first.scenario, self.first.data, **self.first.scenario_options)
        require_data(budget.by, described, self.first)
        more = _seals(budget.by, budget.validation)
        if kind_of(described.task) != REGRESSION:
            measured = str(self.shared.table.get("measures") or "")
            more["measures"] = ", ".join(filter(None, [measured, RATES * (RATES not in measured)]))
        if self.first.checkpoint_every == 1:  # a kill costs no more than the first rung
            more["checkpoint_every"] = min(rungs(self.first.rounds))
        return replace(self, shared=replace(self.shared, table={**self.shared.table, **more})).config

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
    names = {name for m in methods.values() for name, *_ in tuning.hyper_parameters(m) if name not in m.typed} | {RATE}
    for name in search:
        if name in typed - names:
            raise ValueError(
                f"search {name}: it has a value already, which would not be searched. Leave one of them out."
            )
        if name not in names:
            raise ValueError(f"search {name}: {unknown('setting', name, sorted(names))}")
    runs.distinct([*methods])
    return {label: tuning.space_of(method, search) for label, method in methods.items()}


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
    """

    methods: Mapping[str, Method]
    spaces: Mapping[str, Mapping[str, Space]]
    rates: Mapping[str, Any]
    rounds: int
    sealed: Callable[[Budget], Configure]
    without: Callable[[Budget], Mapping[str, Configure]]
    conditions: Callable[[Budget, Path], Mapping[str, Content]]


def choose(
    subject: Subject,
    budget: Budget,
    base: Path,
    train: Callable[[Sequence[Cell]], Iterable[Outcome]],
    shared: Mapping[str, Any],
    *,
    folder: Path | None = None,
    page: bool = True,
) -> Tuning:
    """Choose the settings of every method, and write them to ``base``; the same call continues after a stop, bit for bit.

    Parameters
    ----------
    subject : the methods and their data.
    budget : how many draws, and by what they are judged.
    base : the directory of the choice.
    train : trains cells, or continues them, and returns their outcomes.
    shared : what a file with the choices has of all methods.
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
    tuning.claim(base, budget, rounds, methods if folder is None else None)

    def advance(trials: Sequence[Trial], until: int, leave_out: bool) -> dict[Trial, list[Outcome]]:
        cells = [
            Cell(
                trial,
                configured(trial.label, trial.settings, seed=seed),
                _place(runs_in, trial, f"{seed}{name}"),
                until,
            )
            for trial in trials
            for seed in budget.seeds
            for name, configured in (others if leave_out else {"": sealed}).items()
        ]
        return _by_trial([*train(cells)])

    with files.claimed(base):
        chosen = tuning.choose(subject.spaces, subject.rates, budget, rounds, advance)
        chosen = replace(chosen, methods=methods, conditions=subject.conditions(budget, runs_in))
        return tuning.write(chosen, base, shared, page=page)


def choose_in_processes(
    candidates: Candidates, budget: Budget, base: Path, folder: Path | None = None, **how: Unpack[How]
) -> Tuning:
    """The same by runs in processes; ``how`` they are trained: see :class:`equipoise.runs.plan.How`."""
    methods = candidates.parsed
    spaces = check(methods, budget, candidates.search)
    for name in ("patience", "select"):
        if candidates.shared.table.get(name) not in (None, "last"):
            raise ValueError(f"--{name}: {BY_LAST}. Leave it out.")
    if candidates.shared.table.get("engine") == FLOWER:
        raise ValueError(
            f"--engine {FLOWER}: settings are chosen in simulations. Choose another engine, or leave it out."
        )
    plain, rounds, done = candidates.plain, candidates.first.rounds, 0
    rates = {label: config.lr for label, config in plain.items()}
    of_data = candidates.sealed, candidates.without, candidates.conditions
    subject = Subject(methods, spaces, rates, rounds, *of_data)

    workers, on_progress = how.get("workers"), how.get("on_progress")

    def train(cells: Sequence[Cell]) -> list[Outcome]:
        total, before = budget.planned(rounds) * len(plain), done

        def shown(now: int, _: int) -> None:
            nonlocal done
            done = before + now
            if on_progress is not None:
                on_progress(min(done, total), total)

        return _trained(cells, how | {"on_progress": shown})

    with nullcontext(workers) if workers else Workers() as kept:
        how |= {"jobs": how.get("jobs") or fitting([*plain.values()]), "workers": kept}
        return choose(subject, budget, base, train, candidates.file(), folder=folder)


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
    return Identity(
        {name: x for key in ("options", "settings", "python") for name, x in conditions.get(key, {}).items()}
    )


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
        if others and (len(others) == len(errors) or CODE in [error.kind for error in others]):
            raise RunError(f"{label} cannot be tuned: {others[0]}.", TRIAL)
    return grouped((outcome.cell.key, outcome) for outcome in outcomes)
