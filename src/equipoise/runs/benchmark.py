"""A suite of scenarios on which methods are tuned and tested alike, cell by cell: a cell is a method on a scenario."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final, Literal, Unpack

from pydantic import Field, ValidationError

from equipoise import scenarios
from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.records.directory import CHOSEN, CONDITIONS, TRIALS, stored
from equipoise.records.identity import Identity, stated
from equipoise.records.meta import Content, Tuned
from equipoise.report import html, notes, page, sentences, statistics
from equipoise.runs import choosing, directory as runs, plan, unchanged
from equipoise.runs.configuration import Layer, RunConfig, whole
from equipoise.runs.experiment import TRAINED, Strict, faults, strange
from equipoise.scenarios.scenario import REGRESSION, kind_of
from equipoise.system import own_code, seals, tree, trust
from equipoise.system.errors import RunError
from equipoise.system.files import ANYWHERE, read_regular, require_own, write_atomically
from equipoise.system.suggestions import unknown

log = logging.getLogger(__name__)

FOLDER: Final = Path(__file__).with_name("suites")
FAILED: Final = "failed.json"
SUBMITTED: Final = "submitted"  # in CONDITIONS: methods that are not the suite's
RUNS, REPORT = "runs", "report.html"
WRITTEN: Final = (CONDITIONS, "leaderboard.html", "leaderboard.csv", "leaderboard.tex")  # next to folders of scenarios
SETTABLE: Final = TRAINED | {"rounds", "network", "network_options"}  # in a scenario of a suite
STATISTICS: Final = {"mean": "avg", "worst": "worst", "std": "std"}  # by their names in a comparison


class Part(Strict):
    """A scenario of a suite, with its options, and settings of training that differ from those it recommends."""

    name: str
    scenario: str
    title: str = ""
    data: str | None = None  # the user's files, from the folder of the suite's file
    options: dict[str, Any] = Field(default={})
    train: dict[str, Any] = Field(default={})
    skip: dict[str, str] = Field(default={})  # methods that cannot be run here, and why


class Suite(Strict):
    """What is run: methods, of which the first is the reference, scenarios, and how settings are chosen."""

    title: str
    about: str = ""
    methods: list[str] = Field(min_length=2)
    draws: int = Field(ge=1, default=8)
    by: str = "worst"
    validation: float = Field(gt=0, lt=1, default=0.2)
    seeds: int = Field(ge=1, default=5)
    scenario: list[Part] = Field(min_length=1)

    @property
    def budget(self) -> choosing.Budget:
        """How settings are chosen."""
        return choosing.Budget(draws=self.draws, by=self.by, validation=self.validation)


def suites() -> list[str]:
    """The suites that come with the library."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_suite(name: str) -> Suite:
    """A suite by its name, or of a file that ends in ``.toml``.

    Raises
    ------
    RunError : naming the file, the entry, what was expected and what was found.
    RunError : it names code or addresses, and the user has not agreed to these.
    """
    own = name.endswith(".toml")
    if not own and name not in suites():
        raise RunError(f"{unknown('suite', name, suites())} Or give the path of your own, which ends in .toml.")
    text, content = "", dict[str, Any]()
    try:
        read = read_regular(Path(name), ANYWHERE) if own else (FOLDER / f"{name}.toml").read_bytes()
        text = read.decode()
        content = seals.open_toml(text)
        if own:
            trust.require_file(Path(name), content)
        suite = Suite(**content)
        parts = [
            part.model_copy(update={"data": part.data and whole(part.data, Path(name).parent)})
            for part in suite.scenario
        ]
        suite = suite.model_copy(update={"scenario": parts})
    except ValidationError as error:
        strange_keys = (_key(content, fault["loc"]) for fault in error.errors() if fault["type"] == "extra_forbidden")
        outside = "".join(f" {place}" for each in strange_keys if (place := _place(*each)))
        raise RunError(f"{name}: {faults(Suite, error)}{outside}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        advice = f"Give the path of a TOML file, or one of {', '.join(suites())}"
        if re.search(r"^[ \t]*\[\s*scenario\s*\]", text, re.MULTILINE):
            advice = "Begin each scenario with [[scenario]], in two brackets"
        raise RunError(f"{name} cannot be read: {why}. {advice}.") from None
    for problem in _problems(suite):
        raise RunError(f"{name}: {problem}")
    return suite


def _problems(suite: Suite) -> Iterator[str]:
    """What is not right in a suite whose entries have the right types."""
    names = [part.name for part in suite.scenario]
    if twice := [method for method in suite.methods if suite.methods.count(method) > 1]:
        yield f"methods: {twice[0]} is given twice. Name each once."
    described, plain = dict[str, scenarios.Description](), dict[str, RunConfig]()
    for part in suite.scenario:
        if runs.slug(part.name) != part.name or not part.name.strip(".") or part.name in WRITTEN:
            example = runs.slug(part.name).strip(".") or "mine"
            rule = "its name is that of a folder, so it may hold letters, digits and . _ + = - only"
            yield f"scenario {part.name!r}: {rule}, for example {example!r}, and is none of {', '.join(WRITTEN)}."
        yield from strange(f"scenario {part.name}", "scenario", [part.scenario], scenarios.SCENARIOS)
        options = scenarios.SCENARIOS[part.scenario].options
        for table, keys in (("train", SETTABLE), ("options", options)):
            for key in [key for key in getattr(part, table) if key not in keys]:
                problem = f"{unknown('key', key, sorted(keys))} {_place(key, options)}".strip()
                yield f"scenario {part.name}: {table}: {problem}"
        try:
            if part.data is None:
                scenarios.folder(part.scenario, None)
        except ValueError:
            files = ", ".join(scenarios.SCENARIOS[part.scenario].reads)
            example = "table.csv" if part.scenario == "own" else "data"
            yield f'scenario {part.name} reads {files}: state where the files are, data = "{example}" for example.'
        try:
            described[part.name] = scenarios.describe(part.scenario, part.data, **part.options)
            plain[part.name] = _plain(part)
        except ValueError as error:
            yield f"scenario {part.name}: {error}"
        if kind_of(described[part.name].task) == REGRESSION:
            yield f"scenario {part.name} has numbers to predict, and a suite compares percent. Leave it out."
        yield from strange(f"scenario {part.name}: skip", "method", part.skip, suite.methods)
        if (reference := suite.methods[0]) in part.skip:
            advice = "Do not skip it: leave the scenario out, or put another method first"
            yield f"scenario {part.name}: skip: all methods are compared with the first, {reference}. {advice}."
        if names.count(part.name) > 1:
            yield f"two scenarios are called {part.name}. Give each its own name."
    try:
        runs.distinct(suite.methods)
        choosing.require_models(suite.budget.by, {method: parse(method) for method in suite.methods})
        for part in suite.scenario if suite.by in choosing.LACKING else ():
            choosing.require_data(suite.by, described[part.name], plain[part.name])
    except ValueError as error:
        yield str(error)


def _plain(part: Part) -> RunConfig:
    """A run on a scenario of a suite, by a method that is none of the user's own."""
    return Cell(part, "fedavg", Path()).candidates(["fedavg"]).config("fedavg", {})


def _key(content: Content, place: Sequence[int | str]) -> tuple[str, Iterable[str]]:
    """A key that is at a place of a suite's content, and the options of the scenario that it is in."""
    part = content["scenario"][place[1]] if len(place) > 2 else {}
    entry = scenarios.SCENARIOS.get(str(part.get("scenario")))
    return str(place[-1]), entry.options if entry else ()


def _place(key: str, options: Iterable[str]) -> str:
    """The table of a scenario with some options in which a key belongs; empty if none."""
    if key in SETTABLE:
        return f"{key} is a setting of training: train = {{ {key} = ... }}."
    if key in options:
        return f"{key} is an option of the data: options = {{ {key} = ... }}."
    return ""


@dataclass(frozen=True)
class Cell:
    """A method on a scenario of a suite, whose results are in folders below ``base``."""

    part: Part
    method: str
    base: Path

    @property
    def folder(self) -> Path:
        """Where its choice is."""
        return self.base / self.part.name / self.stem

    @property
    def stem(self) -> str:
        """The method as a part of file names; a rule whose code has changed is another method."""
        return runs.slug("-".join(filter(None, [own_code.short(self.method), own_code.version(self.method)])))

    @property
    def failure(self) -> dict[str, str]:
        """Why it has no results, as `"failed"`, or as `"skipped"` if the method does not fit the scenario; empty if it has, or may have."""
        if why := self.part.skip.get(self.method):
            return {"skipped": why}
        return stored(self.folder / FAILED)

    @property
    def chosen(self) -> bool:
        """Whether its settings are chosen."""
        return (self.folder / CHOSEN).exists()

    def place(self, seed: int) -> Path:
        """The directory of a run that is reported."""
        return self.base / self.part.name / RUNS / f"{self.stem}-seed{seed}"

    def finished(self, seeds: int) -> bool:
        """Whether nothing is left to run."""
        return bool(self.failure) or (self.chosen and all(runs.finished(self.place(seed)) for seed in range(seeds)))

    def fail(self, why: str, kind: Literal["failed", "skipped"] = "failed") -> None:
        """Record why it has no results."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / FAILED, seals.sealed_json({kind: why}))
        log.warning("%s on %s: %s", self.method, self.part.name, why)

    def candidates(self, methods: Sequence[str]) -> choosing.Candidates:
        """Methods to tune on its scenario."""
        of_data = {"scenario": self.part.scenario, "data": self.part.data, "scenario_options": self.part.options}
        return choosing.Candidates({method: method for method in methods}, Layer("suite", self.part.train | of_data))

    @property
    def choice(self) -> Content:
        """What was chosen, as :meth:`equipoise.runs.choosing.Tuning.document` has it."""
        return dict(stored(self.folder / choosing.TUNING)["methods"][self.method])

    def config(self, seed: int) -> RunConfig:
        """A run that is reported, with the chosen settings."""
        choice = self.choice
        tuned = {key: choice[key] for key in Tuned.__annotations__ if choice.get(key) is not None}
        config = self.candidates([self.method]).config(self.method, choice["settings"], seed=seed, tuned=tuned)
        return replace(config, label=own_code.short(self.method))


def cells(suite: Suite, base: Path, methods: Sequence[str] = (), shard: tuple[int, int] = (1, 1)) -> list[Cell]:
    """The cells of a suite, or those of the k-th of n machines that share its folder; ``methods`` instead of the suite's."""
    every = [Cell(part, method, base) for part in suite.scenario for method in methods or suite.methods]
    return every[shard[0] - 1 :: shard[1]]


def run(
    suite: Suite,
    base: Path,
    *,
    methods: Sequence[str] = (),
    shard: tuple[int, int] = (1, 1),
    retry: bool = False,
    where: Mapping[str, str] = MappingProxyType({}),
    **how: Unpack[plan.How],
) -> None:
    """Tune and test the cells that are missing; what is finished is taken as it is, and what was stopped continues.

    Parameters
    ----------
    suite, base : what to run, and the folder that all shards share.
    methods : instead of those of the suite.
    shard : which of how many machines this is, from 1.
    retry : run cells that failed to run once more, from where they are, and log which.
    where : runs are trained, by the settings ``on`` and ``devices``.
    how : the runs are trained, see :class:`equipoise.runs.plan.How`; ``on_progress`` is also given the scenario as ``description``.
    """
    for method in methods:
        parse(method)
    _settle(suite, base, methods)
    parts = [part.model_copy(update={"train": {**part.train, **where}}) for part in suite.scenario]
    if where:  # no condition of the results, and no fault of a cell
        _plain(parts[0])
    suite = suite.model_copy(update={"scenario": parts})
    reference = suite.methods[0]
    if reference not in (methods or suite.methods) and not all(
        cell.finished(suite.seeds) for cell in cells(suite, base, [reference])
    ):
        lacks = "%s lacks results of %s, with which %s is compared. Run the suite itself, too."
        log.warning(lacks, base, reference, ", ".join(map(own_code.short, methods)))
    own, on_progress = cells(suite, base, methods, shard), how.get("on_progress")
    if retry:
        _forget_failures(own)
    for part in suite.scenario:
        if on_progress is not None:
            how["on_progress"] = partial(on_progress, description=part.name)
        left = [cell for cell in own if cell.part == part and not cell.finished(suite.seeds)]
        _choose(suite, [cell for cell in left if not cell.chosen], shard, **how)
        _test(suite, [cell for cell in left if cell.chosen], **how)


def _forget_failures(own: Iterable[Cell]) -> None:
    """Let cells that failed to run be run again, and log which."""
    failed = [cell for cell in own if (cell.folder / FAILED).exists()]
    for cell in failed:
        (cell.folder / FAILED).unlink()
    names = ", ".join(f"{cell.method} on {cell.part.name}" for cell in failed)
    log.warning("Run again: %s.", names or "nothing, as no cell failed to run (one that guesses did run)")


def _settle(suite: Suite, base: Path, methods: Sequence[str]) -> None:
    """Require that results in a folder were reached under the conditions of the suite, and note these, and methods that were submitted.

    Raises
    ------
    RunError : naming the condition that differs; or a folder of something else.
    """
    path = base / CONDITIONS
    require_own(base, "results of a suite", CONDITIONS, another="Choose another --name")
    before, now = stored(base / CONDITIONS), Content(draws=suite.draws, by=suite.by, validation=suite.validation)
    for part in suite.scenario:
        data = {} if part.data is None else {"data": Path(part.data).name}
        now[f"scenario {part.name}"] = part.model_dump(include={"scenario", "options", "train"}) | data
        now |= {f"content of {name} in scenario {part.name}": what for name, what in _contents(part).items()}
    if changes := _identity(before, now).differences(_identity(now, before)):
        raise RunError(f"{base} has results with {stated(changes)}. Choose another --name.")
    base.mkdir(parents=True, exist_ok=True)
    submitted = [*dict.fromkeys([*before.get(SUBMITTED, []), *methods])]
    write_atomically(path, seals.sealed_json({**before, **now, SUBMITTED: submitted}))


def _identity(conditions: Content, others: Content) -> Identity:
    """What conditions state, of those that others have, too: a folder may have fewer scenarios than its suite, or more."""
    both = {name: what for name, what in conditions.items() if name in others and name != SUBMITTED}
    data = {f"the {name}": both.pop(name) for name in [*both] if name.startswith("content of ")}
    settings: Content = tree.flatten(both, sep=": ")
    paths = {name: Path(x).name for name, x in settings.items() if name.endswith(": data")}  # of an earlier version
    return Identity({**settings, **paths}, data=data)


def _contents(part: Part) -> dict[str, Any]:
    """Hashes of all files of the user's that every method of a scenario takes: data, first weights, network and other code."""
    config = _plain(part)
    of_data, files = unchanged.contents(config), config.own_code or {}
    if config.weights is not None:
        files = {**files, str(config.weights): of_data.pop("weights")}
    names = {file: Path(file).name for file in files}  # files of one name in several folders are compared together
    by_name = {name: sorted(files[file] for file in names if names[file] == name) for name in names.values()}
    return by_name if part.data is None else {**by_name, Path(part.data).name: of_data}


def _choose(suite: Suite, missing: Sequence[Cell], shard: tuple[int, int], **how: Unpack[plan.How]) -> None:
    """Choose the settings of cells of one scenario, together, so that processes are not started for each."""
    usable = []
    for cell in missing:
        try:
            runs.check_networks([cell.candidates([cell.method]).config(cell.method, {})])
            choosing.check({cell.method: parse(cell.method)}, suite.budget, {})
            usable.append(cell)
        except (ValueError, TypeError, RunError) as error:
            cell.fail(str(error), "skipped")
    if not usable:
        return
    first = usable[0]
    where = first.base / first.part.name
    candidates = first.candidates([cell.method for cell in usable])
    place, versions = where / f"shard-{shard[0]}-of-{shard[1]}", (own_code.version(cell.method) for cell in usable)
    trials = where / "-".join([TRIALS, *filter(None, versions)])
    try:
        every = choosing.choose_in_processes(candidates, suite.budget, place, trials, **how)
    except RunError as error:
        if error.kind != choosing.TRIAL:
            raise
        for cell in usable[1:] and usable:  # the others are chosen all the same
            _choose(suite, [cell], shard, **how)
        if len(usable) == 1:
            first.fail(str(error))
        return
    for cell in usable:
        choosing.write(every.only(cell.method), cell.folder, candidates.file())


def _test(suite: Suite, chosen: Sequence[Cell], **how: Unpack[plan.How]) -> None:
    """Test the chosen settings with the seeds of the suite, in new processes, which build test data."""
    if not chosen:
        return
    every = [plan.Cell((cell, k), cell.config(k), cell.place(k)) for cell in chosen for k in range(suite.seeds)]
    for run in every:
        runs.start(run.config, run.folder)
    for outcome in plan.finish(every, **how):
        if outcome.why:
            cell, seed = outcome.cell.key
            cell.fail(f"seed {seed}: {outcome.why}")


def document(suite: Suite, base: Path, methods: Sequence[str] = ()) -> Content:
    """The results of a suite so far, as :func:`equipoise.report.leaderboard.leaderboard` takes them; writes a report of each scenario.

    Methods that were submitted before are part of them, unless their code has changed since, or is not where it was.
    """
    submitted = [
        method
        for method in stored(base / CONDITIONS).get(SUBMITTED, [])
        if any(Cell(part, method, base).folder.exists() for part in suite.scenario)
    ]
    every = [*dict.fromkeys([*suite.methods, *submitted, *methods])]
    parts: list[Content] = []
    results: dict[str, dict[str, Content | None]] = {}
    for part in suite.scenario:
        of_part = {method: Cell(part, method, base) for method in every}
        histories = {
            method: [History.from_run(cell.place(seed)) for seed in range(suite.seeds)]
            for method, cell in of_part.items()
            if not cell.failure and cell.finished(suite.seeds)
        }
        report, rounds, shown_rounds = base / part.name / REPORT, 0, ""
        compared: statistics.Comparison | None = None
        if histories:
            compared = statistics.Comparison.of([run for of_method in histories.values() for run in of_method])
            rounds, shown_rounds = int(compared["rounds"]), sentences.when(compared.document)
            html.write(compared, report)
        results[part.name] = {
            method: _result(cell, histories.get(method), compared, suite.methods[0] in histories)
            for method, cell in of_part.items()
        }
        titles = {"name": part.name, "title": part.title or part.name, "rounds": rounds, "shown": shown_rounds}
        parts.append({**titles, "report": f"{part.name}/{REPORT}" if histories else ""})
    budget = {"draws": suite.draws, "by": suite.by, "seeds": suite.seeds, "validation": suite.validation}
    about = {"title": suite.title, "about": suite.about, "reference": suite.methods[0], "budget": budget}
    return {**about, "scenarios": parts, "methods": every, "cells": results}


def _result(
    cell: Cell, histories: Sequence[History] | None, compared: statistics.Comparison | None, referred: bool
) -> Content | None:
    """The numbers of a cell, with the differences if they are ``referred`` to the reference; None if it was not run yet."""
    choice: Content = {}
    if cell.chosen and "skipped" not in cell.failure:
        choice = {key: dict(cell.choice.get(key, {})) for key in ("settings", "defaults")}
        choice["tuning"] = f"{cell.part.name}/{cell.stem}/tuning.html"
    if cell.failure:
        return _empty() | choice | cell.failure
    if histories is None or compared is None:
        return None
    tuned = histories[0].tuned or {}
    label = notes.marked(histories[0].label, tuned.get("by"))
    row = next(method for method in compared["methods"] if method["method"] == label)
    versus = row["versus"]
    return _empty() | {
        **choice,
        **{name: row[key]["mean"] for name, key in STATISTICS.items()},
        "printed": page.printed_names(histories).get(histories[0].label),
        "seconds": fmean(sum(float(r.get("seconds", 0)) for r in run.records) for run in histories),
        "bytes": _bytes(histories[0]),
        "tuning_seconds": tuned.get("seconds"),
        "tuning_rounds": tuned.get("trained"),
        "failed": "; ".join(dict.fromkeys(map(str, row["failed"].values()))) or None,
        "versus": {name: versus[key] for name, key in STATISTICS.items()} if versus and referred else None,
    }


def _empty() -> Content:
    numbers = ("mean", "worst", "std", "seconds", "bytes", "tuning_seconds", "tuning_rounds", "failed", "versus")
    return {**dict.fromkeys(numbers), "settings": {}, "tuning": ""}


def _bytes(history: History) -> float | None:
    """Bytes to and from all clients in a round, on average."""
    rounds = [record["bytes"] for record in history.records if "bytes" in record]
    return fmean(sum(each["down"]) + sum(each["up"]) for each in rounds) if rounds else None


def shard_of(text: str) -> tuple[int, int]:
    """Which of how many machines, from ``3/8``.

    Raises
    ------
    ValueError : it is not K/N with 1 <= K <= N.
    """
    k, slash, n = text.partition("/")
    if not (slash and k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise ValueError(f"--shard must be K/N with K from 1 to N, such as 3/8; found {text!r}.")
    return int(k), int(n)
