"""The papers' tables and figures as files: which conditions, which methods, which columns, which published numbers."""

from __future__ import annotations

import csv
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.metrics.classification import MEASURES
from equipoise.report.reproduction import STATISTICS
from equipoise.system.suggestions import unknown

FOLDER = resources.files("equipoise.runs") / "experiments"


class Strict(BaseModel):
    """A table of an experiment file: no key that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Condition(Strict):
    """Data and how to train on them; what is not said is as the scenario recommends."""

    scenario: str
    options: dict[str, Any] = {}
    network: str | None = None
    train: dict[str, Any] = {}
    columns: list[str] = []


class ColumnGroup(Condition):
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


class Assumption(Strict):
    """What a paper left out: what was taken, and why."""

    what: str
    why: str


class PaperExperiment(Strict):
    """A table or figure of a paper, as its file describes it."""

    title: str
    paper: str
    citation: str
    kind: Literal["table", "figure"] = "table"
    about: str
    seeds: int = Field(ge=1, default=3)
    note: str = ""
    columns: dict[str, str]
    part: list[ColumnGroup] = Field(min_length=1)
    row: list[Row] = Field(min_length=1)
    figure: dict[str, Any] = {}
    ours: list[Assumption] = []

    def of(self, part: ColumnGroup) -> list[Row]:
        """The rows that are run on a part."""
        return [row for row in self.row if not row.parts or part.name in row.parts]


class ExperimentError(ValueError):
    """An experiment that is not there, or whose file is not right."""


def experiment_names() -> list[str]:
    """The experiments that come with the library, such as ``fedheal/table2``."""
    papers = sorted((p for p in FOLDER.iterdir() if p.is_dir()), key=lambda p: p.name)
    return [
        f"{paper.name}/{name.removesuffix('.toml')}"
        for paper in papers
        for name in sorted(f.name for f in paper.iterdir())
        if name.endswith(".toml")
    ]


def experiment_file(name: str) -> Traversable:
    """The file of an experiment: one of ``experiment_names()``, or a path that ends in ``.toml``.

    Raises
    ------
    ExperimentError : there is none of that name.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ExperimentError(
                f"{name}: there is no such file. Give an experiment's name ({', '.join(experiment_names()[:3])}, ...) or its file."
            )
        return Path(name)
    if name not in experiment_names():
        raise ExperimentError(unknown("experiment", name, experiment_names()))
    paper, item = name.split("/")
    return FOLDER / paper / f"{item}.toml"


def read_experiment(name: str) -> PaperExperiment:
    """Read an experiment by name or file.

    Raises
    ------
    ExperimentError : naming the file, the entry, what was expected and what was found.
    """
    file = experiment_file(name)
    try:
        experiment = PaperExperiment(**tomllib.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{file.name}: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        raise ExperimentError(f"{name}: {where}: {first['msg']}; found {first['input']!r}.") from None
    _check(name, experiment)
    return experiment


def _check(name: str, experiment: PaperExperiment) -> None:
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
    file = experiment_file(name)
    path: Any = file.with_suffix(".csv") if isinstance(file, Path) else FOLDER / f"{name}.csv"
    if not path.is_file():
        return {}
    lines = [text for text in path.read_text(encoding="utf-8").splitlines() if text and not text.startswith("#")]
    return {
        (line["row"], line["part"], line["column"]): (float(line["mean"]), float(line["std"]) if line["std"] else None)
        for line in csv.DictReader(lines)
    }
