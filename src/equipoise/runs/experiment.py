"""The papers' tables and figures as files: which conditions, which methods, which columns, which published numbers."""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from equipoise.core.settings import RunSettings, Settings
from equipoise.federation.method import parse
from equipoise.methods import METHODS
from equipoise.metrics import statistics
from equipoise.metrics.classification import MEASURES
from equipoise.report.reproduction import STATISTICS
from equipoise.scenarios import SCENARIOS
from equipoise.system import seals, trust
from equipoise.system.errors import InputError
from equipoise.system.suggestions import unknown

FOLDER = Path(__file__).with_name("experiments")
ENTRIES = {"part": "name", "row": "name", "ours": "what"}  # and what they are called by
NEEDED = {"scenario", "method", "why"}  # what a part, a row and a choice of ours cannot do without
# What an experiment takes from the one that it is like.
INHERITED = {"paper", "seeds", "divisions", "columns", "beside", "choice", "calibration", *ENTRIES}
TRAINED = {f.name for f in (*fields(Settings), *fields(RunSettings)) if "planned" not in f.metadata["marks"]}


class Strict(BaseModel):
    """A table of a file of an experiment or a suite: no key that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Condition(Strict):
    """Data and how to train on them; what is not said is as the scenario recommends."""

    scenario: str
    options: dict[str, Any] = {}
    network: str | None = None
    train: dict[str, Any] = {}
    columns: list[str] = []


class ColumnGroup(Condition):
    """A block of columns: one condition, and that to take for ``--embedded``.

    ``set`` are hyper-parameters of the rows that have such a part, ``seeds`` go before the experiment's.
    """

    name: str
    title: str = ""
    set: dict[str, Any] = {}
    seeds: int | None = Field(ge=1, default=None)
    embedded: Condition | None = None

    @property
    def every_column(self) -> list[str]:
        """Its columns, and those of its stand-in."""
        return [*self.columns, *(self.embedded.columns if self.embedded else ())]

    def condition(self, *, embedded: bool) -> Condition:
        """The real data, or their stand-in if there is one."""
        if not embedded or self.embedded is None:
            return self
        return self.embedded.model_copy(update={"columns": self.embedded.columns or self.columns})


class Row(Strict):
    """A method with its hyper-parameters; ``parts`` are those it is run on (none: all), ``skip`` says why it cannot be run.

    ``series`` and ``x`` place it in a figure, ``train`` and ``options`` go before the part's. ``choose`` are values to try, of
    hyper-parameters (``method.name``) and settings of training; :class:`Choice` says how one is taken.
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
    choose: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """All combinations of the values to try, the first first; none for a row that does not choose."""
        every = product(*self.choose.values()) if self.choose else ()
        return [dict(zip(self.choose, values, strict=True)) for values in every]

    def taking(self, settings: Mapping[str, Any]) -> Self:
        """The same with these hyper-parameters (``method.name``) and settings of training."""
        kinds: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        for key, value in settings.items():
            kinds["." in key][key] = value
        return self.model_copy(update={"train": self.train | kinds[False], "set": self.set | kinds[True]})


class Choice(Strict):
    """How rows choose: trial runs with these seeds, in which every client holds out a share of its own training samples.

    ``by`` is the criterion, see `equipoise.records.criteria`.
    """

    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    validation: float = Field(gt=0, lt=1, default=0.2)
    rounds: int | None = Field(ge=1, default=None)
    by: Literal["samples", "mean", "worst", "mean-std", "worst10", "eo"] = "samples"


class Quick(Strict):
    """What ``--quick`` takes in place of the experiment's."""

    rounds: int | None = Field(ge=1, default=None)
    seeds: int | None = Field(ge=1, default=None)


class Calibration(Strict):
    """Rows whose published numbers in a column say whether a division is the paper's, the plainest first.

    ``of`` is the experiment that has them, in parts of the same names; the same if empty.
    """

    rows: list[str] = Field(min_length=1)
    column: str
    of: str = ""


class Claim(Strict):
    """What a paper says of a column of a row: less that of the row ``than``, or less ``value``, it has a direction.

    ``margin`` (points) is what still counts as equal, for the two directions with "not"; ``parts`` none: all that have what it names.
    ``seeds`` are how many its rows have at least, by part.
    """

    text: str
    source: str
    column: str
    row: str
    than: str | None = None
    value: float | None = Field(allow_inf_nan=False, default=None)
    direction: statistics.Direction
    margin: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    parts: list[str] = []
    seeds: dict[str, Annotated[int, Field(ge=1)]] = {}

    @property
    def rows(self) -> list[str]:
        """The rows it needs."""
        return [self.row] if self.than is None else [self.row, self.than]


class Assumption(Strict):
    """What a paper left out: what was taken, and why."""

    what: str
    why: str


class PaperExperiment(Strict):
    """A table or figure of a paper, as its file describes it.

    ``divisions`` are how many divisions of the data there are, each with all seeds; None if each seed draws its own. ``beside`` are columns
    that stand beside the published numbers of another.
    """

    title: str
    paper: str
    citation: str
    kind: Literal["table", "figure"] = "table"
    about: str
    seeds: int = Field(ge=1, default=3)
    divisions: int | None = Field(ge=1, default=None)
    note: str = ""
    columns: dict[str, str]
    beside: dict[str, str] = {}
    calibration: Calibration | None = None
    part: list[ColumnGroup] = Field(min_length=1)
    row: list[Row] = Field(min_length=1)
    figure: dict[str, Any] = {}
    ours: list[Assumption] = []
    claim: list[Claim] = []
    choice: Choice | None = None
    quick: Quick | None = None

    @property
    def reads(self) -> list[str]:
        """The scenarios that read the user's files."""
        named = dict.fromkeys(part.scenario for part in self.part)
        return [name for name in named if SCENARIOS[name].reads]

    def left_out(self, part: ColumnGroup, *, embedded: bool) -> bool:
        """Whether a part has no stand-in and needs one."""
        return embedded and part.embedded is None and part.scenario in self.reads

    def why_left_out(self, part: ColumnGroup, row: Row, *, embedded: bool) -> str:
        """Why a row is not run in a part; empty if it is."""
        return "there is no embedded stand-in for these data" if self.left_out(part, embedded=embedded) else row.skip

    def runs(self, *, embedded: bool = False) -> int:
        """How many runs it has, trial runs with them, with the stand-ins or without."""
        trials = 0 if self.choice is None else len(self.choice.seeds)
        return (self.divisions or 1) * sum(
            self.seeds_of(part, row) + len(row.candidates) * trials
            for part in self.part
            for row in self.of(part)
            if not row.skip and not self.left_out(part, embedded=embedded)
        )

    def seeds_of(self, part: ColumnGroup, row: Row) -> int:
        """How many seeds a row has in a part: those of the part, and more if a claim about the row asks for more."""
        asked = [claim.seeds.get(part.name, 0) for claim in self.claim if row.name in claim.rows]
        return max(part.seeds or self.seeds, *asked, 0)

    def claimed(self, claim: Claim) -> list[ColumnGroup]:
        """The parts for which a claim is made."""
        if claim.parts:
            return [part for part in self.part if part.name in claim.parts]
        having = [part for part in self.part if claim.column in part.every_column]
        return [part for part in having if {*claim.rows} <= {row.name for row in self.of(part)}]

    def of(self, part: ColumnGroup) -> list[Row]:
        """The rows that are run on a part."""
        return [row for row in self.row if not row.parts or part.name in row.parts]


def experiment_names() -> list[str]:
    """The experiments that come with the library, such as ``fedheal/table2``."""
    return [f"{path.parent.name}/{path.stem}" for path in sorted(FOLDER.glob("*/*.toml"))]


def experiment_file(name: str) -> Path:
    """The file of an experiment: one of ``experiment_names()``, or a path that ends in ``.toml``.

    Raises
    ------
    InputError : there is none of that name.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise InputError(
                f"{name}: there is no such file. Give an experiment's name ({', '.join(experiment_names()[:3])}, ...) or its file."
            )
        return Path(name)
    if name not in experiment_names():
        raise InputError(unknown("experiment", name, experiment_names()))
    return FOLDER / f"{name}.toml"


def faults(table: type[Strict], error: ValidationError) -> str:
    """Every entry of a file that is not right, what was expected and what was found."""
    return " ".join(_fault(table, fault) for fault in error.errors())


def _fault(table: type[Strict], fault: ErrorDetails) -> str:
    *outer, last = fault["loc"]
    where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in fault["loc"])
    match fault["type"], fault["input"]:
        case "missing", _:
            return f"{where} is missing."
        case "extra_forbidden", _:
            for part in outer:
                if isinstance(part, str):
                    kind = table.model_fields[part].annotation
                    table = next(t for t in (*get_args(kind), kind) if isinstance(t, type) and issubclass(t, Strict))
            return f"{where}: {unknown('key', last, table.model_fields)}"
        case "list_type", dict():
            return f"{where}: expected [[{last}]], once for each; found [{last}]."
    return f"{where}: {fault['msg']}; found {fault['input']!r}."


def read_experiment(name: str) -> PaperExperiment:
    """Read an experiment by name or file.

    Raises
    ------
    InputError : naming the file, the entry, what was expected and what was found.
    """
    try:
        experiment = PaperExperiment(**_written(name))
    except ValidationError as error:
        raise InputError(f"{name}: {faults(PaperExperiment, error)}") from None
    for wrong in (_wrong_names, _wrong_settings, _wrong_columns, _wrong_choices, _wrong_claims):
        for problem in wrong(experiment):
            raise InputError(f"{name}: {problem}")
    return experiment


def _written(name: str) -> dict[str, Any]:
    """What a file says, with what its parts and rows share and what it takes from the experiment that it is ``like``."""
    file = experiment_file(name)
    try:
        own = seals.open_toml(file.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: expected text in UTF-8; found {error.reason} at byte {error.start}.") from None
    except ValueError as error:
        raise InputError(f"{file.name}: {str(error).rstrip('.')}.") from None
    if name.endswith(".toml"):
        trust.require_file(Path(name), own)
    like, shared = own.pop("like", None), {kind: own.pop(f"{kind}s", {}) for kind in ("part", "row")}
    for kind, table in shared.items():
        if not isinstance(table, dict):
            raise InputError(f"{name}: {kind}s: expected a table of what all {kind}s share; found {table!r}.")
    if like is not None and like not in experiment_names():
        raise InputError(f"{name}: like: {unknown('experiment', str(like), experiment_names())}")
    other = {} if like is None else {key: value for key, value in _written(like).items() if key in INHERITED}
    if "columns" in own:  # the other's parts show columns that this file does not have
        other.pop("beside", None)
        for part in other.get("part", []):
            part.pop("columns")
            part.get("embedded", {}).pop("columns", None)
    columns = (other | own).get("columns")
    last = {"part": {"columns": list(columns)}} if isinstance(columns, dict) else {}
    for kind, key in ENTRIES.items():
        inherited = {entry[key]: entry for entry in other.get(kind, []) if kind != "row" or _placed(entry, own["part"])}
        entries = own.setdefault(kind, [{key: entry_name} for entry_name in inherited])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            continue  # the check of types says what is wrong
        entries = [_completed(entry, shared.get(kind, {})) for entry in entries]
        for entry in entries if like is not None else ():
            # else a row would be FedAvg by another name
            if not entry.keys() & NEEDED and entry.get(key) not in inherited:
                raise InputError(f"{name}: like {like}: {unknown(kind, entry.get(key), inherited)}")
        own[kind] = [_completed(e, inherited.get(str(e.get(key)), {}), last.get(kind, {})) for e in entries]
    return other | own


def _placed(row: dict[str, Any], parts: Any) -> bool:
    """Take from an inherited row the parts that are left out; whether it has any left."""
    names = [part.get("name") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if not (asked := row.get("parts")):
        return True
    row["parts"] = [name for name in asked if name in names]
    return bool(row["parts"])


def _completed(own: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """A table with what it leaves out as the first of the others that has it; so are tables inside it."""
    for other in others:
        both = {key for key in own.keys() & other.keys() if isinstance(own[key], dict) and isinstance(other[key], dict)}
        own = other | own | {key: _completed(own[key], other[key]) for key in both}
    return own


def strange(where: str, kind: str, names: Iterable[str], allowed: Collection[str]) -> Iterator[str]:
    """What is not right ``where`` some names of a kind are given: those that are not allowed."""
    return (f"{where}: {unknown(kind, name, allowed)}" for name in names if name not in allowed)


def _wrong_names(experiment: PaperExperiment) -> Iterator[str]:
    parts = [part.name for part in experiment.part]
    for what, names in (("row", [r.name for r in experiment.row]), ("part", parts)):
        for k, word in enumerate(names):
            if word in names[:k]:
                yield f"two entries [[{what}]] are called {word!r}. Give each a name of its own."
    for row in experiment.row:
        yield from strange(f"row {row.name}", "part", row.parts, parts)
    for part in experiment.part:
        used = [word.scenario for word in (part, part.embedded) if word is not None]
        yield from strange(f"part {part.name}", "column", part.every_column, experiment.columns)
        yield from strange(f"part {part.name}", "scenario", used, SCENARIOS)
    yield from strange("beside", "column", experiment.beside, experiment.columns)


def _wrong_settings(experiment: PaperExperiment) -> Iterator[str]:
    for part in experiment.part:
        for key in part.set:
            method, _, parameter = key.partition(".")
            if method not in METHODS and not any(method in parse(row.method).parts for row in experiment.row):
                yield f"part {part.name}: set: {key}: {unknown('method', method, METHODS)}"
            if method in METHODS:
                where, defaults = f"part {part.name}: set: {key}", METHODS[method].defaults
                yield from strange(where, "hyper-parameter", [parameter], defaults)


def _wrong_columns(experiment: PaperExperiment) -> Iterator[str]:
    for column, spec in experiment.columns.items():
        statistic, _, measure = spec.partition(" ")
        yield from strange(f"column {column}", "measure", filter(None, [measure]), MEASURES)
        if not statistic.startswith("group:"):
            yield from strange(f"column {column}", "statistic", [statistic], [*STATISTICS, "group:NAME"])


def _wrong_choices(experiment: PaperExperiment) -> Iterator[str]:
    """What is not right in what rows choose, and in the trials they choose by."""
    if experiment.quick == Quick():
        yield "quick: expected rounds, seeds or both; found neither."
    for row in experiment.row:
        plain = [key for key in row.choose if "." not in key]
        yield from strange(f"row {row.name}: choose", "setting of training", plain, sorted(TRAINED))
        for key in row.choose:
            if key in row.set or key in row.train:
                yield f"row {row.name}: {key} is both chosen and given. Leave it out of choose, or of set and train."
        if row.choose and experiment.choice is None:
            yield f"row {row.name}: choose needs trial runs. Say with which seeds: [choice] with seeds = [100, 101], for example."
    if experiment.choice is not None:
        seeds = experiment.choice.seeds
        most = max(experiment.seeds_of(part, row) for part in experiment.part for row in experiment.of(part))
        if not any(row.choose for row in experiment.row):
            yield "choice: no row chooses. Leave [choice] out, or give a row choose = {...}."
        if len({*seeds}) < len(seeds) or min(seeds) < most:
            yield f"choice.seeds: expected different seeds of {most} or more, as the runs themselves have 0 to {most - 1}; found {seeds}."


def _wrong_claims(experiment: PaperExperiment) -> Iterator[str]:
    """What is not right in the claims."""
    for k, claim in enumerate(experiment.claim, 1):
        yield from strange(f"claim {k}", "row", claim.rows, [row.name for row in experiment.row])
        yield from strange(f"claim {k}", "column", [claim.column], experiment.columns)
        yield from strange(f"claim {k}", "part", [*claim.parts, *claim.seeds], [part.name for part in experiment.part])
        if (claim.than is None) == (claim.value is None):
            yield f"claim {k}: expected than (a row) or value (a number); found {'both' if claim.than else 'neither'}."
        if claim.than == claim.row:
            yield f"claim {k}: row and than are both {claim.row}. Name two rows."
        if claim.direction.startswith("not") != (claim.margin is not None):
            margin = "none" if claim.margin is None else f"{claim.margin:g}"
            yield f"claim {k}: margin: expected with not lower and not higher, and only there; found {margin} with {claim.direction}."
        for name in claim.seeds.keys() - {part.name for part in experiment.claimed(claim)}:
            yield f"claim {k}: seeds: it is not made for part {name}."
        for part in experiment.claimed(claim) if claim.parts else ():
            for row in {*claim.rows} - {row.name for row in experiment.of(part)}:
                yield f"claim {k}: part {part.name} has no row {row}."
            if claim.column not in part.every_column:
                yield f"claim {k}: part {part.name} has no column {claim.column}."
        if not experiment.claimed(claim):
            yield f"claim {k}: no part has the column {claim.column} and {' and '.join(claim.rows)}."


def published(name: str) -> dict[tuple[str, str, str], tuple[float, float | None]]:
    """The paper's numbers, mean and spread, by row, part and column; empty if the paper prints none."""
    path = experiment_file(name).with_suffix(".csv")
    if not path.is_file():
        return {}
    lines = [text for text in path.read_text(encoding="utf-8").splitlines() if text and not text.startswith("#")]
    return {
        (line["row"], line["part"], line["column"]): (float(line["mean"]), float(line["std"]) if line["std"] else None)
        for line in csv.DictReader(lines)
    }
