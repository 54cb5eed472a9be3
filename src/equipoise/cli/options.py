"""Options that several commands have: the settings of training, said once, and a few small ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass, field, fields, make_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_type_hints

from typer import Argument, Option, Typer

import equipoise as eq
from equipoise.cli import completion, console
from equipoise.core.settings import RunSettings, Settings
from equipoise.system import ranges, suggestions
from equipoise.system.workers import PER_DEVICE, read_jobs

Values = Mapping[str, Any]  # what the user gave, by the names of TRAINING; None for what was not given

SETTINGS = {f.name: f for f in (*fields(Settings), *fields(RunSettings))}


def help_of(name: str) -> str:
    """The text of ``--help`` about a setting."""
    f = SETTINGS[name]
    text = ranges.meaning(f)
    return f"{text[0].upper()}{text[1:]} [default: {ranges.usual(f)}]."


def option(default: Any, help_: str, flags: str = "", **how: Any) -> Any:
    """An option, see :func:`command`: its default, its help, and its flags if they are not its name; a flag without a dash names an argument.

    An option, or argument, that must be given has the default ``...``.
    """
    return field(default=default, metadata={"help": help_, "flags": flags, **how})


def kind_of(name: str) -> type:
    """The type of a setting as an option has it."""
    allowed = SETTINGS[name].metadata.get("allowed")
    return str if not isinstance(allowed, ranges.Range) else int if allowed.whole else float


def option_of(name: str, flags: str = "") -> Any:
    """The option of a setting, with its range and meaning."""
    kind = kind_of(name)
    low = SETTINGS[name].metadata["allowed"].low if kind is int else None
    return option(None, help_of(name), flags, min=low, metavar={int: "N", float: "X"}.get(kind))


TASK = option(
    None,
    "What your own labels are: `classification`, `regression`, `regression(loss=huber)`, or your own task, `mine.py:Counts` "
    "[default: classification].",
)


@dataclass(frozen=True)
class _First:
    """The options of training that come first in ``--help``."""

    scenario: str | None = option(
        None,
        "Data and their division, with options: `digits(clients=8)` [default: digits; with --data: own].",
        "--scenario -s",
        autocompletion=completion.scenarios,
    )
    data: str | None = option(
        None,
        "Your files: a folder, CSV, NPZ, `hub:OWNER/NAME`, or `data.py:clients`; for a scenario of a paper the folder with its data sets.",
        "--data -d",
        metavar="PATH",
    )
    task: str | None = TASK
    config_file: Path | None = option(
        None, "A file as `equipoise init` writes it; options given here override it.", "--config -c", metavar="FILE"
    )
    rounds: int | None = option_of("rounds", "--rounds -r")
    set_: list[str] | None = option(
        None,
        "A hyper-parameter, `fedheal.tau=0.4`, or without a dot an option of the scenario, `clients=8`, `group=sex,age:40,60`. Repeatable.",
        "--set",
        metavar="NAME=VALUE",
    )
    network: str | None = option(
        None,
        "mlp, cnn, `resnet10(width=64)`, or your own, `nets.py:build(width=32)` [default: the scenario's].",
        autocompletion=completion.networks,
    )


if TYPE_CHECKING:
    Training: TypeAlias = Any
else:  # a group of options, see :func:`command`
    others = [name for name in SETTINGS if name not in ("method", "seed", "rounds")]
    settings = [(name, kind_of(name) | None, option_of(name)) for name in others]
    Training = make_dataclass("Training", settings, bases=(_First,), frozen=True)
TRAINING: dict[str, Field[Any]] = {f.name: f for f in fields(Training)}

# what --help shows together, in this order, with the settings of the group; the first ten fit one screen
CHOICE = "Choice of settings"
PANELS = {
    "Method and data": "method methods scenario data task config_file rounds set_ network seed seeds name",
    "Training": "",
    "Clients": "",
    "Evaluation and output": "bounds base label json_ report figures details explain",
    CHOICE: "tune draws by trials halving sampler search",
    "Advanced": "dry_run workers jobs",
}
OTHERS = {name: panel for panel, names in PANELS.items() for name in names.split()}
PANEL = {name: f.metadata["group"] for name, f in SETTINGS.items() if name not in OTHERS} | OTHERS

WORKERS = option(None, "Clients visited at a time; the result does not depend on it [default: the cores].", min=1)
JOBS = option(
    None,
    "Runs at a time; the results do not depend on it [default: cores / threads; on a GPU 1].",
    "--jobs -j",
    min=1,
)


def _checked_jobs(given: str | None) -> str | None:
    """What ``--jobs`` was given: a number, or that of each device."""
    if given is not None:
        read_jobs(given)
    return given


JOBS_OF_PLAN = option(
    None,
    f"Runs at a time, or on each of --devices (`2{PER_DEVICE}`); the results do not depend on it [default: cores / threads; on each GPU 1].",
    "--jobs -j",
    metavar="N",
    callback=_checked_jobs,
)
BASE = option(Path("runs"), "Where runs are kept.", "--runs")
Json = Annotated[bool, Option("--json", help="Print one JSON document and nothing else.")]
FIGURES = option(False, "Also write every figure as PDF and PNG, and every table as LaTeX.")
DETAILS = option(False, "Also print the tables of other measures, and the tests against the first method.")
EXPLAIN = option(False, "Also say what the columns of tables mean.")


def _pairs(given: list[str] | None) -> list[str] | None:
    """What ``--label`` was given, where it renames methods; a column of the data is something else."""
    for pair in given or ():
        if "=" not in pair:
            raise ValueError(
                f"--label {pair}: expected METHOD=LABEL, the name of a method in tables. For the column of your data with the labels: "
                f"--set label={pair}"
            )
    return given


LABEL = option(
    None,
    "What tables, figures and the report call a method, for example `fedheal=FedHEAL`. Repeatable.",
    callback=_pairs,
    metavar="METHOD=LABEL",
)


@dataclass(frozen=True)
class Place:
    """Where a command keeps its runs."""

    name: str | None = option(None, "Write to RUNS/NAME; the same command again continues where it stopped.")
    base: Path = BASE

    def folder(self, usual: str) -> Path:
        """The folder that was asked for, or a free one near the ``usual`` name."""
        from equipoise.runs import directory as runs

        return runs.place(self.base, self.name, usual)


@dataclass(frozen=True)
class Shown:
    """What a command shows of its results."""

    json_: Json = False
    report: bool = option(True, "Write report.html.", "--report/--no-report")
    details: bool = DETAILS
    explain: bool = EXPLAIN


@dataclass(frozen=True)
class Output(Shown):
    """The same of results that are new, with figures and labels."""

    figures: bool = FIGURES
    label: list[str] | None = LABEL

    def check(self) -> None:
        """Refuse options about results that are not shown."""
        require_text(self.json_, self.details, self.explain)
        suggestions.require_use({"--figures": self.figures and not self.report}, together="--no-report")


def require_text(json_: bool, details: bool, explain: bool) -> None:
    """Refuse options about text where there is none."""
    asked = {"--details": json_ and details, "--explain": json_ and explain}
    suggestions.require_use(asked, together="--json, which prints everything")


Run = Annotated[Path, Argument(metavar="RUN", help="Directory of the run.", autocompletion=completion.runs)]
MOVED = option(
    None,
    "Where the data of the run are now, if not where they were; they must be the same.",
    metavar="PATH",
    show_default=False,
)
Runs = Annotated[
    list[Path],
    Argument(metavar="RUN...", help="Directories of runs, or of comparisons.", autocompletion=completion.runs),
]


def pairs_of(option: str, texts: Sequence[str] | None, expected: str = "NAME=VALUE") -> dict[str, str]:
    """The values of an option that is given as pairs, by their names, as they are written.

    Raises
    ------
    ValueError : a text that is no such pair, or a name that is given twice.
    """
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{option} {text}: expected {expected}.")
        if name.strip() in pairs:
            raise ValueError(f"{option} {text}: {name.strip()} is given twice. Leave one out.")
        pairs[name.strip()] = value
    return pairs


def reading_of(texts: Sequence[str] | None, allowed: Collection[str]) -> dict[str, str]:
    """How a table is written, by ``--set``, of ``allowed`` options."""
    pairs = pairs_of("--set", texts)
    if strange := [name for name in pairs if name not in allowed]:
        raise ValueError(f"--set: {suggestions.unknown('option', strange[0], allowed)}")
    return pairs


def new_labels(pairs: Sequence[str] | None, called: Mapping[str, str]) -> dict[str, str]:
    """What ``--label`` asks for: new labels, by the label that the runs of a method have.

    Parameters
    ----------
    pairs : as they were given, ``METHOD=LABEL``.
    called : the label that runs have, by every name by which the user may call their method.
    """
    labels: dict[str, str] = {}
    for pair in pairs or ():
        name = max((name for name in called if pair.startswith(f"{name}=")), key=len, default="")
        label = pair[len(name) + 1 :].strip()
        if not name or not label:
            guess = "" if name else suggestions.near(pair.rpartition("=")[0] or pair, called)
            methods = ", ".join(dict.fromkeys(called.values()))
            raise ValueError(f"--label {pair}: expected METHOD=LABEL with one of the methods {methods}.{guess}")
        if labels.setdefault(called[name], label) != label:
            raise ValueError(f"--label {pair}: {name} has the label {labels[called[name]]!r} already. Leave one out.")
    owners: dict[str, str] = {}
    for method in called.values():
        label = labels.get(method, method)
        if owners.setdefault(label, method) != method:
            raise ValueError(f"--label: {owners[label]} and {method} would both be {label!r}. Give each its own label.")
    return labels


def relabelled(histories: Sequence[eq.History], labels: Mapping[str, str]) -> list[eq.History]:
    """The same runs, where a label is replaced by a new one."""
    return [replace(run, meta={**run.meta, "label": labels.get(run.label, run.label)}) for run in histories]


def command(function: Callable[..., object]) -> Callable[..., None]:
    """A command of a function, in whose parameters options are fields.

    A parameter is a dataclass, whose fields are options, a default of :func:`option`, or as Typer has it. A function that yields its
    document has the option ``--json``, by which the document is printed, and nothing that follows is done.
    """
    signature = inspect.signature(function, eval_str=True)
    kinds: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values()}
    groups = {name: kind for name, kind in kinds.items() if hasattr(kind, "__dataclass_fields__")}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if group := groups.get(parameter.name):
            hints = get_type_hints(group, include_extras=True)
            parameters += [_parameter(f.name, hints[f.name], f) for f in fields(group)]
        elif isinstance(parameter.default, Field):
            parameters.append(_parameter(parameter.name, parameter.annotation, parameter.default))
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    own_json = "json_" in [parameter.name for parameter in parameters]
    if inspect.isgeneratorfunction(function) and not own_json:
        parameters.append(inspect.Parameter("json_", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json))
    if Training in groups.values():
        panels, names = [*PANELS], [*PANEL]
        parameters = [*map(_in_panel, parameters)]
        parameters.sort(key=lambda p: (panels.index(PANEL[p.name]), names.index(p.name)))

    @wraps(function)
    def call(**values: Any) -> None:
        made = {name: cls(**{f.name: values.pop(f.name) for f in fields(cls)}) for name, cls in groups.items()}
        json_ = values.get("json_") if own_json else values.pop("json_", False)
        documents: Any = function(**made, **values) or ()
        for document in documents:
            if json_:
                console.print_json(document)
                break

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def add(app: Typer, *examples: str, **how: Any) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Add a function to an app as a :func:`command`, with examples in its help."""
    epilog = f"Example: {'; '.join(examples)}" if examples else None
    return lambda function: app.command(epilog=epilog, **how)(command(function))


def _parameter(name: str, kind: Any, f: Field[Any]) -> inspect.Parameter:
    """The parameter of an option; :func:`option` says how it is given, others have it in their type."""
    how = dict(f.metadata)
    flags = how.pop("flags", "") or f"--{name.replace('_', '-')}"
    if how:
        kind = Annotated[kind, Option(*flags.split(), **how) if flags[0] == "-" else Argument(metavar=flags, **how)]
    default = inspect.Parameter.empty if f.default is ... else f.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _in_panel(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same, shown by ``--help`` where it belongs."""
    kind, how = get_args(parameter.annotation)
    how = copy(how)
    how.rich_help_panel = PANEL[parameter.name]
    return parameter.replace(annotation=Annotated[kind, how])
