"""The papers' tables and figures: experiments as files, run cell by cell, and set beside the published numbers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.data.locations import digest
from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.metrics.classification import MEASURES
from equipoise.metrics.statistics import summary_over_seeds
from equipoise.report.notes import mixed_machines
from equipoise.report.reproduction import AVERAGED, STATISTICS, Block, ReproducedValue, Result, of_groups
from equipoise.runs import directory as runs
from equipoise.runs.comparison import complete
from equipoise.runs.configuration import RunConfig, called, configure
from equipoise.system.files import locked
from equipoise.system.suggestions import unknown


class Strict(BaseModel):
    """A table of an experiment file: no key that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Condition(Strict):
    """Data and how to train on them; what is not told is the scenario's own."""

    scenario: str
    options: dict[str, Any] = {}
    network: str | None = None
    train: dict[str, Any] = {}
    columns: list[str] = []


class Part(Condition):
    """A block of columns: one condition, and that to take for ``--embedded``.

    ``set`` are hyper-parameters of the rows that have such a part.
    """

    name: str
    title: str = ""
    set: dict[str, Any] = {}
    embedded: Condition | None = None

    def condition(self, *, embedded: bool) -> Condition:
        """The real data, or their stand-in."""
        if not embedded:
            return self
        assert self.embedded is not None
        return self.embedded.model_copy(update={"columns": self.embedded.columns or self.columns})


class Row(Strict):
    """A method with its hyper-parameters; ``parts`` are those it is run on (none: all), ``skip`` says why it cannot be run.

    ``series`` and ``x`` place it in a figure, ``train`` and ``options`` go before the part's.
    """

    name: str
    method: str = "fedavg"
    set: dict[str, Any] = {}
    parts: list[str] = []
    series: str = ""
    x: float | None = None
    train: dict[str, Any] = {}
    options: dict[str, Any] = {}
    skip: str = ""


class Choice(Strict):
    """What a paper left out: what was taken, and why."""

    what: str
    why: str


class Experiment(Strict):
    """A table or figure of a paper, as a file tells it."""

    title: str
    paper: str
    citation: str
    kind: Literal["table", "figure"] = "table"
    about: str
    seeds: int = Field(ge=1, default=3)
    note: str = ""
    columns: dict[str, str]
    part: list[Part] = Field(min_length=1)
    row: list[Row] = Field(min_length=1)
    figure: dict[str, Any] = {}
    ours: list[Choice] = []

    def of(self, part: Part) -> list[Row]:
        """The rows that are run on a part."""
        return [row for row in self.row if not row.parts or part.name in row.parts]


class ExperimentError(ValueError):
    """An experiment that is not there, or whose file is not right."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment and where it is kept."""

    part: str
    row: str
    seed: int
    config: RunConfig
    path: Path


@dataclass(frozen=True)
class Plan:
    """The runs of an experiment, and the cells that cannot be run, with the reason."""

    experiment: Experiment
    cells: tuple[PlannedRun, ...]
    skipped: Mapping[tuple[str, str], str] = field(default_factory=dict)
    embedded: bool = False
    published: Mapping[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Rounds of all runs together."""
        return sum(cell.config.rounds for cell in self.cells)


def known() -> list[str]:
    """The experiments that come with the library, such as ``fedheal/table2``."""
    root = resources.files("equipoise.runs") / "experiments"
    papers = sorted((p for p in root.iterdir() if p.is_dir()), key=lambda p: p.name)
    return [
        f"{paper.name}/{name.removesuffix('.toml')}"
        for paper in papers
        for name in sorted(f.name for f in paper.iterdir())
        if name.endswith(".toml")
    ]


def find(name: str) -> Traversable:
    """The file of an experiment: one of ``known()``, or a path that ends in ``.toml``.

    Raises
    ------
    ExperimentError : there is none of that name.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ExperimentError(
                f"{name}: there is no such file. Give an experiment's name ({', '.join(known()[:3])}, ...) or its file."
            )
        return Path(name)
    if name not in known():
        raise ExperimentError(unknown("experiment", name, known()))
    paper, item = name.split("/")
    return resources.files("equipoise.runs") / "experiments" / paper / f"{item}.toml"


def read(name: str) -> Experiment:
    """Read an experiment by name or file.

    Raises
    ------
    ExperimentError : naming the file, the entry, what was expected and what was found.
    """
    file = find(name)
    try:
        experiment = Experiment(**tomllib.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{file.name}: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        raise ExperimentError(f"{name}: {where}: {first['msg']}; found {first['input']!r}.") from None
    _check(name, experiment)
    return experiment


def _check(name: str, experiment: Experiment) -> None:
    """Require names of their own, and columns and parts that exist."""
    for what, names in (("row", [r.name for r in experiment.row]), ("part", [p.name for p in experiment.part])):
        for k, one in enumerate(names):
            if one in names[:k]:
                raise ExperimentError(
                    f"{name}: two entries [[{what}]] are called {one!r}. Give each a name of its own."
                )
    parts = [part.name for part in experiment.part]
    for row in experiment.row:
        for part_name in row.parts:
            if part_name not in parts:
                raise ExperimentError(f"{name}: row {row.name}: {unknown('part', part_name, parts)}")
    for part in experiment.part:
        for column in [*part.columns, *(part.embedded.columns if part.embedded else ())]:
            if column not in experiment.columns:
                raise ExperimentError(
                    f"{name}: part {part.name}: {unknown('column', column, list(experiment.columns))}"
                )
    for column, spec in experiment.columns.items():
        statistic, _, measure = spec.partition(" ")
        if measure and measure not in MEASURES:
            raise ExperimentError(f"{name}: column {column}: {unknown('measure', measure, MEASURES)}")
        if not statistic.startswith("group:") and statistic not in STATISTICS:
            raise ExperimentError(
                f"{name}: column {column}: {unknown('statistic', statistic, [*STATISTICS, 'group:NAME'])}"
            )


def published(name: str) -> dict[tuple[str, str, str], tuple[float, float | None]]:
    """The paper's numbers, mean and spread, by row, part and column; empty if the paper prints none."""
    file = find(name)
    path: Any = (
        file.with_suffix(".csv")
        if isinstance(file, Path)
        else resources.files("equipoise.runs") / "experiments" / f"{name}.csv"
    )
    if not path.is_file():
        return {}
    lines = [text for text in path.read_text(encoding="utf-8").splitlines() if text and not text.startswith("#")]
    return {
        (line["row"], line["part"], line["column"]): (float(line["mean"]), float(line["std"]) if line["std"] else None)
        for line in csv.DictReader(lines)
    }


def plan(
    name: str,
    base: Path,
    *,
    data: str | None = None,
    embedded: bool = False,
    seeds: int | None = None,
    parts: Sequence[str] = (),
    rows: Sequence[str] = (),
    **choices: Any,
) -> Plan:
    """Say which runs an experiment takes, and where each is kept.

    Parameters
    ----------
    name : as in ``known()``, or a file.
    base : the directory of all experiments' runs, which share what they have in common.
    data : the folder with the real data sets.
    embedded : take the stand-ins that need no files.
    seeds : how many, 0, 1, ...; None for as many as the file says.
    parts, rows : names of those to run; empty for all.
    choices : fields of :class:`equipoise.runs.configuration.RunConfig` that win over the file's, such as ``rounds=2``; and ``weights``, a file
        that the networks start from.

    Raises
    ------
    ExperimentError : an unknown part or row, or nothing to run.
    ValueError : a setting that does not fit.
    """
    experiment = read(name)
    if not embedded and data is None:
        reads = dict.fromkeys(part.scenario for part in experiment.part)
        raise ExperimentError(
            f"{name} trains on the data of the paper ({', '.join(reads)}): say where they are, with --data DIR, or take the "
            "stand-ins that need no download, with --embedded."
        )
    for what, asked, there in (
        ("part", parts, [part.name for part in experiment.part]),
        ("row", rows, [row.name for row in experiment.row]),
    ):
        for one in asked:
            if one not in there:
                raise ExperimentError(f"{name}: {unknown(what, one, there)}")
    cells: list[PlannedRun] = []
    skipped: dict[tuple[str, str], str] = {}
    for part in experiment.part:
        if parts and part.name not in parts:
            continue
        if embedded and part.embedded is None:
            skipped |= {
                (part.name, row.name): "there is no embedded stand-in for these data" for row in experiment.of(part)
            }
            continue
        condition = part.condition(embedded=embedded)
        for row in experiment.of(part):
            if rows and row.name not in rows:
                continue
            if row.skip:
                skipped[part.name, row.name] = row.skip
                continue
            for seed in range(seeds or experiment.seeds):
                config = _config(part, condition, row, seed, None if embedded else data, choices)
                cells.append(
                    PlannedRun(part.name, row.name, seed, config, base / "cells" / config.scenario / _stem(config))
                )
    if not cells:
        reasons = "; ".join(dict.fromkeys(skipped.values()))
        raise ExperimentError(f"{name}: nothing to run{f': {reasons}' if reasons else ''}.")
    return Plan(experiment, tuple(cells), skipped, embedded, published(name))


def _config(
    part: Part, condition: Condition, row: Row, seed: int, data: str | None, choices: Mapping[str, Any]
) -> RunConfig:
    has = parse(row.method).parts
    overrides = {key: value for key, value in part.set.items() if key.split(".", 1)[0] in has} | row.set
    weights = choices.get("weights")
    chosen = {k: v for k, v in choices.items() if v is not None and k != "weights"}
    told: dict[str, Any] = {**condition.train, **row.train, **chosen}
    if condition.network is not None:
        network, options = called("network", condition.network, "resnet10(width=64)")
        told |= {"network": network, "network_options": {**options, **({"weights": weights} if weights else {})}}
    elif weights:
        raise ExperimentError(
            f"part {part.name}: {condition.scenario} has a network of its own here, which takes no weights, and --weights "
            "would do nothing. Leave it out."
        )
    options = {**condition.options, **row.options}
    config = configure(
        row.method, condition.scenario, overrides=overrides, seed=seed, scenario_options=options, data=data, **told
    )
    return replace(config, label=row.name)


def _stem(config: RunConfig) -> str:
    """A name for all that decides a run's result, so that every experiment that needs the run finds it."""
    about = {name: value for name, value in config.table().items() if name != "label"}
    if config.weights is not None:
        about["weights"] = _digest(config.weights, config.weights.stat().st_mtime_ns)  # the file's path says little
    told = json.dumps(about, sort_keys=True)
    name = runs.slug(config.method.split("(")[0])
    return f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:10]}-seed{config.seed}"


@lru_cache(maxsize=2)
def _digest(path: Path, changed: int) -> str:
    """Checksum of a file, made once for all cells; ``changed`` is its time of change."""
    return digest(path)


def run(
    planned: Plan, *, jobs: int = 1, on_progress: Callable[[int, int], None] | None = None
) -> dict[tuple[str, str], str]:
    """Run what is missing, every cell in a process of its own; why those that failed did, by part and row.

    A finished run of the same settings is taken as it is, whichever experiment made it; a killed one goes on from its last
    complete round.
    """
    own = {cell.path: cell.config for cell in planned.cells}  # two rows may be the same run
    for path, config in own.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent / f".{path.name}.lock", wait=True):
            runs.start(config, path)
    total = sum(config.rounds for config in own.values())
    failed = complete(list(own), jobs, None if on_progress is None else lambda done: on_progress(done, total))
    reasons: dict[tuple[str, str], str] = {}
    for cell in planned.cells:
        if cell.path in failed:
            reasons.setdefault((cell.part, cell.row), f"seed {cell.seed}: {failed[cell.path]}")
    return reasons


def histories(planned: Plan) -> dict[tuple[str, str], list[History]]:
    """The finished runs, by part and row, in the order of the seeds."""
    found: dict[tuple[str, str], list[History]] = {}
    for cell in planned.cells:
        if runs.finished(cell.path):
            run = History.from_run(cell.path)
            # An experiment that shares the run may call it otherwise.
            found.setdefault((cell.part, cell.row), []).append(replace(run, meta={**run.meta, "label": cell.row}))
    return found


def directories(planned: Plan) -> dict[tuple[str, str], list[Path]]:
    """Where the finished runs are, by part and row, in the order of the seeds."""
    found: dict[tuple[str, str], list[Path]] = {}
    for cell in planned.cells:
        if runs.finished(cell.path):
            found.setdefault((cell.part, cell.row), []).append(cell.path)
    return found


def value(history: History, spec: str, last: int = 5) -> float:
    """The number of one run that a column shows, in percent; NaN where it is not defined.

    Parameters
    ----------
    spec : ``"STATISTIC [MEASURE]"``: avg, std, worst, gap, client_std or group:NAME of a measure (accuracy); or fairness,
        spearman, max, mean or min, of what clients get for what they contribute; or mean_client, the accuracy of the
        clients' own models, or traffic, the MiB that a client receives and sends in a round.
    last : rounds that make a number of the first kind but ``last`` and ``best``; all others are of the last round.
    """
    statistic, _, measure = spec.partition(" ")
    if statistic.startswith("group:"):
        group = statistic.removeprefix("group:")
        found = of_groups(history, last, measure or "accuracy").get("groups", {}).get(group)
    else:
        found = STATISTICS[statistic].compute(history, last, measure or "accuracy")
    return math.nan if found is None else float(found)


def collect(
    planned: Plan,
    failed: Mapping[tuple[str, str], str] | None = None,
    found: Mapping[tuple[str, str], Sequence[History]] | None = None,
) -> Result:
    """Ours beside the paper's: every cell with its mean, its spread over seeds and the published number.

    Parameters
    ----------
    planned : the runs.
    failed : what :func:`run` gave.
    found : what :func:`histories` gave; None reads them.
    """
    found = histories(planned) if found is None else found
    experiment = planned.experiment
    reasons = {**planned.skipped, **(failed or {})}
    shown = []
    for part in experiment.part:
        if not any(cell.part == part.name for cell in planned.cells):
            continue
        condition = part.condition(embedded=planned.embedded)
        columns = condition.columns
        entries: dict[tuple[str, str], ReproducedValue] = {}
        rows = [
            row
            for row in experiment.of(part)
            if (part.name, row.name) in {(c.part, c.row) for c in planned.cells} or (part.name, row.name) in reasons
        ]
        for row in rows:
            for column in columns:
                ours = [value(h, experiment.columns[column]) for h in found.get((part.name, row.name), [])]
                seen = [v for v in ours if not math.isnan(v)]
                over = summary_over_seeds(seen) if seen else None
                mean, std = planned.published.get((row.name, part.name, column), (None, None))
                entries[row.name, column] = ReproducedValue(
                    tuple(seen), over.mean if over else math.nan, over.std if over else math.nan,
                    over.ci95 if over else math.nan, mean, std,
                )  # fmt: skip
        shown.append(
            Block(
                part.name, part.title or part.name, condition.scenario, tuple(columns), tuple(row.name for row in rows), entries,
                {row.name: reasons[part.name, row.name] for row in rows if (part.name, row.name) in reasons},
                max((len(found.get((part.name, row.name), [])) for row in rows), default=0),
                _measured({column: experiment.columns[column] for column in columns}), tuple(_doubts(planned, part.name, entries, found)),
            )
        )  # fmt: skip
    left = {part.title or part.name: planned.skipped[part.name, row.name] for part in experiment.part for row in experiment.of(part)
            if (part.name, row.name) in planned.skipped and part.name not in {one.name for one in shown}}  # fmt: skip
    note = " ".join([*experiment.note.split(), *(f"Not run: {title}: {why}." for title, why in left.items())])
    return Result(
        title=f"{experiment.paper}: {experiment.title}", citation=experiment.citation, about=" ".join(experiment.about.split()),
        note=note, embedded=planned.embedded, parts=tuple(shown), ours=tuple((c.what, c.why) for c in experiment.ours),
        settings={part: _settings(planned, part) for part in dict.fromkeys(cell.part for cell in planned.cells)},
    )  # fmt: skip


def _measured(columns: Mapping[str, str]) -> str:
    """In which unit and rounds the numbers of columns are, by what the file says of them."""
    of: dict[str, list[str]] = {}
    for column, spec in columns.items():
        statistic = STATISTICS.get(spec.split(" ")[0])
        of.setdefault(AVERAGED if statistic is None else statistic.measured, []).append(column)
    return next(iter(of)) if len(of) == 1 else "; ".join(f"{', '.join(names)} {how}" for how, names in of.items())


def _doubts(
    planned: Plan,
    part: str,
    entries: Mapping[tuple[str, str], ReproducedValue],
    found: Mapping[tuple[str, str], Sequence[History]],
) -> Iterator[str]:
    """What makes the numbers of a part less than they seem."""
    cells = [cell for cell in planned.cells if cell.part == part]
    condition = next(p for p in planned.experiment.part if p.name == part).condition(embedded=planned.embedded)
    rows = {row.name: row for row in planned.experiment.row}
    fewer = {
        (cell.config.rounds, meant)
        for cell in cells
        if (meant := rows[cell.row].train.get("rounds", condition.train.get("rounds", 0))) > cell.config.rounds
    }
    for rounds, meant in sorted(fewer):
        yield f"These are numbers after {rounds} round{'s' * (rounds != 1)}; the experiment has {meant}."
    undefined = [
        f"{row} {column} with {lost} of {runs_}"
        for (row, column), entry in entries.items()
        if (lost := (runs_ := len(found.get((part, row), ()))) - len(entry.values))
    ]
    if undefined:
        yield f"Not defined, and left out of the means: {', '.join(undefined)} seeds."
    trained: dict[str, set[str]] = {}
    for cell in cells:
        for history in found.get((part, cell.row), ()):
            if history.seed == cell.seed:
                same = json.dumps([cell.config.scenario_options, cell.seed], sort_keys=True)
                trained.setdefault(same, set()).add(str(history.meta.get("data", {}).get("sha256")))
    if any(len(of) > 1 for of in trained.values()):
        where = {str(cell.path.parent) for cell in cells}
        yield f"Not all of these runs saw the same data: the files changed between them. Delete {', '.join(sorted(where))}, and run all again."
    yield from mixed_machines(history for cell in cells for history in found.get((part, cell.row), ()))


def _settings(planned: Plan, part: str) -> str:
    """How the runs of a part were trained, in one line: of the first of its cells."""
    c = next(cell.config for cell in planned.cells if cell.part == part)
    work = f"{c.steps} local steps" if c.steps else f"{c.epochs} local epoch{'s' * (c.epochs != 1)}"
    momentum = f", momentum {c.momentum:g}" if c.optimizer == "sgd" else ""
    options = f"({', '.join(f'{k}={v}' for k, v in c.network_options.items())})" if c.network_options else ""
    return (
        f"{c.scenario}, {c.network}{options}: {c.rounds} rounds, {work} of batch {c.batch_size}, {c.optimizer} with learning rate "
        f"{c.lr:g}{momentum}, weight decay {c.weight_decay:g}"
    )
