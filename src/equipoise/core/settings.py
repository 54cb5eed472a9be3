"""The settings of training, defined once: each with its default, its range and its meaning.

The options of the command line, the keys of configuration files and of Flower projects, and the keywords of a federation
are generated from these fields. This module imports no library, so that help is quick.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from equipoise.system import own_code
from equipoise.system.ranges import Range, Rates, check_fields, choice, marked, meaning, number, rates, setting, text
from equipoise.system.suggestions import require_known, unknown

if TYPE_CHECKING:
    from equipoise.core.solver import Solver

Made = TypeVar("Made")
Engine = Callable[[Any], Iterator[Any]]  # from a job to answers, see equipoise.engines.job, which stands above
ATTACKS = ("label-flip", "sign-flip", "scaling", "model-replacement", "alie", "ipm", "free-rider")
SCENARIO = "the scenario's"  # the default of a run of a scenario


@dataclass(frozen=True)
class ByName:
    """Numbers in ``each``, for all clients or by name."""

    each: Range

    def __contains__(self, value: object) -> bool:
        try:
            return all(number in self.each for number in self.read(value).values())
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.each}, or by name of a group or client, such as south={10 if self.each.whole else 0.3}"

    def read(self, value: object) -> dict[str, Any]:
        """The number of each name; that of all others has the name ``""``, if it is given."""
        if isinstance(value, str):
            pieces = next(csv.reader([value], skipinitialspace=True), [])  # a name with a comma is in quotes
            pairs = [piece.rpartition("=")[::2] for piece in pieces]
            kind = int if self.each.whole else float
            numbers: dict[str, Any] = {name.strip(): kind(number) for name, number in pairs}
            if not pairs or len(numbers) < len(pairs):
                raise ValueError(value)
            return numbers
        if not isinstance(value, Mapping):
            return {"": value}
        if not value or not all(isinstance(name, str) for name in value):
            raise ValueError(value)
        return dict(value)

    def plain(self, value: object) -> float | str:
        """A number, or the text that :meth:`read` reads."""
        numbers = self.read(value)
        if numbers.keys() == {""}:
            return int(numbers[""]) if self.each.whole else float(numbers[""])
        pieces = [f"{name}={number}" if name else str(number) for name, number in numbers.items()]
        return ", ".join('"' + p.replace('"', '""') + '"' if {",", '"'} & {*p} else p for p in pieces)


def by_name(default: float, low: float, high: float = Range.high, **ends: bool) -> Any:
    """A field that holds a number in [low, high], or such numbers by group or client; ``ends`` as of :class:`Range`."""
    allowed = ByName(Range(low, high, whole=isinstance(default, int), **ends))
    return field(default=default, metadata={"allowed": allowed})


basic = partial(setting, group="Method and data", marks="planned")
solving = partial(setting, marks="solver")
joint = partial(setting, group="Clients", marks="together")
present = partial(setting, group="Clients", marks="together simulated presence")
attacking = partial(setting, group="Clients", marks="together simulated")
measuring = partial(setting, group="Evaluation and output")
choosing = partial(measuring, marks="together")
showing = partial(measuring, marks="shown free apart")
computing = partial(setting, group="Advanced", marks="machine apart")
operating = partial(setting, group="Advanced", marks="operation free apart")
placing = partial(setting, group="Advanced", marks="operation about free apart newer local")


def documented(cls: type[Made]) -> type[Made]:
    """Add the settings of a class to its docstring."""
    listed = "".join(f"    {f.name} : {meaning(f)}. Default: {f.default}.\n" for f in fields(cls))  # type: ignore[arg-type]
    faults = "    ValueError : naming the setting, what was expected and what was found.\n"
    cls.__doc__ = f"{cls.__doc__}\n\n    Parameters\n    ----------\n{listed}\n    Raises\n    ------\n{faults}    "
    return cls


@documented
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a federation."""

    seed: int = basic(
        number(0, 0, 2**63 - 1),
        "decides every random choice: the division of the data, the first model, the batches",
        marks="data planned apart",
    )
    epochs: int = setting(number(1, 1), "passes of a client over its data in one round", SCENARIO)
    steps: int | None = setting(
        number(None, 1, whole=True),
        "local steps per round instead of epochs, the same number for every client",
        SCENARIO,
        example=20,
    )
    batch_size: int = setting(number(32, 1), "samples in a local step", SCENARIO)
    participation: float = joint(
        number(1.0, 0, 1, above=True), "share of the clients that train in a round, rounded down", SCENARIO
    )
    availability: float | str | Mapping[str, float] = present(
        by_name(1.0, 0, 1, above=True),
        "chance that a client is there in a round: for all, or by group or client, 0.9, south=0.3",
    )
    joins: int | str | Mapping[str, int] = present(
        by_name(0, 0), "first round, counted from 0, in which a client can be there, by group or client"
    )
    dropout: float | str | Mapping[str, float] = present(
        by_name(0.0, 0, 1, below=True),
        "chance that a selected client fails in the middle of a round, given as availability is",
    )
    time_limit: float | None = present(
        number(None, 1, below=True),
        "longest time of a client in a round, as a multiple of the median client's, at least 1; slower clients are late and do not count",
        "none",
        example=2.0,
    )
    speed_spread: float = present(
        number(0.0, 0, below=True), "how much clients differ in speed: standard deviation of its logarithm"
    )
    attack: str | None = attacking(choice(None, *ATTACKS), f"an attack: {', '.join(ATTACKS)}", "none", example="alie")
    attackers: float | str | Mapping[str, float] = attacking(
        by_name(0.0, 0, 1),
        "share of the clients that attack, rounded down: of all, or by group or client, south=0.5, client-7=1",
    )
    attack_scale: float | None = attacking(
        number(None, 0, above=True, below=True), "number in the equation of the attack", "the attack's", example=1.5
    )
    validation: float = measuring(
        number(0.0, 0, 1, below=True),
        "share of each client's own training samples that it holds out, on which models are validated; 0 for none",
        marks="data planned apart",
    )
    contribution_rounds: int = measuring(
        number(1, 1),
        "{last rounds of training alone over which the accuracy that a client reaches alone is averaged, where contributions are measured|}",
        marks="newer",
    )
    engine: str | Engine = computing(  # noqa: RUF009
        field(default="auto"),
        "how clients are visited: auto, sequential, workers, processes, stacked, distributed or flower-inproc; results differ by rounding only",
        marks="machine local free apart",
    )
    chunk: int | None = computing(
        number(None, 1, whole=True),
        "most clients of a stack, with engine stacked",
        "a quarter of those that train, from 20 to 256",
        example=64,
        marks="machine local free apart",
    )
    precision: str = setting(
        choice("full", "bf16"),
        "how numbers are rounded: full, or bf16, which is faster where the hardware has it and less exact",
        group="Advanced",
    )
    norm_limit: float | None = joint(
        number(None, 1, below=True),
        "longest update or report, as a multiple of the median of its round (with two clients, of its own past ones), at least 1; longer ones do not count",
        "none",
        example=100.0,
        marks="free",
    )
    quorum: float = joint(
        number(0.5, 0, 1), "least share of the selected clients that must answer well", marks="together free"
    )
    device: str = computing(text("cpu"), "where to compute: cpu or cuda", marks="machine local free apart")

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", str(self.device))
        check_settings(self)
        if self.chunk is not None and self.engine not in ("auto", "stacked"):
            raise ValueError(f"chunk belongs to the engine stacked; {self.engine} makes no stacks. Leave it out.")

    @property
    def settings(self) -> Settings:
        """The settings of this class alone, without those of a subclass."""
        return Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})

    def steps_of(self, size: int) -> int:
        """The gradient steps of a client with ``size`` samples in one round."""
        return -(-size // self.batch_size) * self.epochs if self.steps is None else self.steps

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that must not change when a run is resumed."""
        return {f.name: getattr(self, f.name) for f in fields(Settings) if "free" not in f.metadata["marks"]}


COMING = marked(Settings, "presence")  # of clients that come and go
SIMULATED = marked(Settings, "simulated")


def simulated(settings: Settings, names: Iterable[str] = SIMULATED) -> dict[str, object]:
    """The settings that only a simulation has, or some of them, where they are not their defaults."""
    return {name: value for name in names if (value := getattr(settings, name)) != getattr(Settings, name)}


@documented
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run that are not keywords of a federation: method, rounds, local optimiser, threads."""

    method: str = basic(
        text("fedavg"),
        "one method or a sum of parts, such as fedprox+fedheal; see `equipoise methods`; a part may be your own, mine.py:Prox",
        marks="together planned apart",
    )
    rounds: int = basic(number(20, 1), "communication rounds", SCENARIO)
    optimizer: str = setting(
        choice("sgd", "adam", "adamw", own=True),
        "local optimiser: sgd, adam, adamw, or your own, solvers.py:Mine",
        SCENARIO,
    )
    lr: float | str = solving(
        rates(0.01),
        "local learning rate: a number, cosine(0.1, warmup=5), step(0.1, every=10, gamma=0.5), exponential(0.1, gamma=0.95), or by "
        "layers, layers(0.01, head=0.1, blocks=0)",
        SCENARIO,
        marks="solver apart",
    )
    momentum: float = solving(number(0.0, 0, 1, below=True), "momentum of sgd", SCENARIO)
    weight_decay: float = solving(number(0.0, 0, below=True), "how strongly weights are pulled to zero", SCENARIO)
    clip: float | None = solving(
        number(None, 0, above=True, below=True), "largest norm of a local gradient", "none", example=10.0
    )
    head: str | None = setting(
        text(None),
        "the network's classifier, a module by its name: what enters it are the features",
        "found by a look at the network",
        example="classifier",
        marks="local",
    )
    threads: int = computing(
        number(1, 1, 1024), "processor threads of a run; 1 gives the same bits on every machine of a kind"
    )
    keep_checkpoints: int = operating(number(1, 1), "number of kept checkpoints, to continue from one of them")
    on: str | None = placing(
        text(None),
        "where the runs of a plan are trained: slurm, in brackets what the cluster is asked for, slurm(partition=gpu, time=2:00:00), ray, or "
        "dask://HOST:PORT",
        "this machine",
        example="slurm(time=2:00:00)",
    )
    devices: str | None = placing(
        text(None),
        "the GPUs of this machine on which the runs of a plan are trained, each on one: cuda:0,cuda:1, or auto for all",
        "that of --device",
        example="auto",
    )
    track: str | None = showing(
        text(None),
        "tracker to which records are sent while it trains: mlflow, tensorboard, wandb or trackio, with a place after a colon",
        "none",
        example="mlflow:http://localhost:5000",
        marks="shown local free apart",
    )
    measures: str | None = measuring(
        text(None),
        "measured in addition to {the accuracy, with commas: balanced, auc, f1, mcc, kappa, ece, brier, log_loss, or your own, mine.py:cost|RMSE, "
        "MAE and R²: your own}",
        "the scenario's",
        example="f1, mine.py:cost",
        marks="local apart",
    )
    positive: str | None = showing(
        text(None),
        "{the class that true-positive rates, equal opportunity and missed cases are about, by its name, against all others|}",
        "by the names of two classes (1, yes, true, positive, case), else the second of two",
        example="disease",
        marks="shown free",
    )
    least_group: int = showing(
        number(10, 1),
        "fewest test samples of a group of which numbers are shown, and of a client whose number is shown; smaller groups are in no AVG, STD or worst",
    )
    select: str = choosing(
        choice("last", "best-validation"),
        "which model is exported: last, or best-validation, that of the round with the best {accuracy|RMSE} on what clients hold out",
    )
    patience: int | None = choosing(
        number(None, 1, whole=True), "stop when validation has not improved for so many rounds", "none", example=10
    )
    stop_on: str = choosing(
        choice("accuracy", "loss", "worst"),
        "what patience looks at: {validation accuracy, loss, or the worst group's accuracy|accuracy (here the validation RMSE), loss, or worst "
        "(the worst group's RMSE)}",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def solver(self) -> Solver:
        """The local optimiser."""
        from equipoise.core.solver import SGD, Adam, checked  # torch, which is slow to load

        if own_code.split(self.optimizer)[0]:
            given = {name: getattr(self, name) for name in OF_SOLVER}
            made: Any = own_code.call("optimizer", self.optimizer, given, {})
            if not is_dataclass(made):
                raise TypeError(f"optimizer {self.optimizer} must be, or give, a frozen dataclass; found {made!r}.")
            return checked(made)
        if self.optimizer == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay, self.clip)
        return Adam(self.lr, weight_decay=self.weight_decay, decoupled=self.optimizer == "adamw", clip=self.clip)


OF_SOLVER = marked(RunSettings, "solver")


def check_settings(holder: Any) -> None:
    """Check the fields of a frozen dataclass, and convert integers to floats where the field is a float."""
    check_fields(holder)
    for f in fields(holder):
        allowed, value = f.metadata.get("allowed"), getattr(holder, f.name)
        if isinstance(allowed, Range) and not allowed.whole and value is not None:
            object.__setattr__(holder, f.name, float(value))
        if isinstance(allowed, Rates | ByName):
            object.__setattr__(holder, f.name, allowed.plain(value))


def changed(settings: Settings | None, changes: Mapping[str, Any], others: Iterable[str] | None = None) -> Settings:
    """Settings (default: all defaults) with changes by name; ``others`` are further keywords to suggest in errors.

    Raises
    ------
    TypeError : an unknown name, or ``settings`` of another kind.
    ValueError : a value out of its range.
    """
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings must be equipoise.Settings(epochs=2, ...); found {settings!r}.")
    names = [f.name for f in fields(Settings)]
    if not isinstance(share := changes.get("validation", 0.0), int | float):
        raise TypeError(
            "validation is the share of each client's own samples that it holds out, such as 0.2; found "
            f"{type(share).__name__}. Data that the server holds are given as server_validation=(x, y)."
        )
    for name in changes:
        if name in OF_SOLVER:
            raise TypeError(f"{name} belongs to the local optimiser: solver=eq.SGD(lr=0.1, momentum=0.9), for example.")
        if name not in names:
            raise TypeError(unknown("keyword", name, dict.fromkeys((*(others or ()), *names))))
    return replace(settings or Settings(), **changes)


def made(cls: type[Made], table: Mapping[str, Any]) -> Made:
    """A dataclass of settings from a table of a file.

    Raises
    ------
    ValueError : an unknown or missing name, or a value out of its range.
    """
    by_name: dict[str, Field[Any]] = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    require_known("setting", by_name, *table)
    for name, f in by_name.items():
        if name not in table and f.default is f.default_factory is MISSING:
            raise ValueError(f"{name} is missing.")
    return cls(**table)
