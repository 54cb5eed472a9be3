"""The command line: reading arguments and printing, nothing else."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save

from equipoise import __version__, networks, scenarios
from equipoise.cli.analyse import app as analyse
from equipoise.cli.data import app as data_sets
from equipoise.cli.flower import app as flower
from equipoise.cli.init import init
from equipoise.cli.init import read as read_config
from equipoise.cli.privacy import privacy
from equipoise.cli.reproduce import reproduce
from equipoise.core.rule import Sees
from equipoise.federation.checkpoint import CheckpointError
from equipoise.federation.forecast import Forecast, ForecastError
from equipoise.federation.guard import QuorumError, ServerError
from equipoise.federation.history import History
from equipoise.federation.method import MethodError, parse, read_value
from equipoise.methods import ALIASES, METHODS
from equipoise.report.html import write as write_report
from equipoise.report.table import comparison, rich_table
from equipoise.runs import directory as runs
from equipoise.runs.comparison import compare as run_all
from equipoise.runs.comparison import fitting, members
from equipoise.system import environment
from equipoise.system.files import write_atomically
from equipoise.system.ranges import Range, describe

app = typer.Typer(
    name="equipoise",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Fair federated learning: published methods, exactly as published, that combine freely.",
    epilog="Start with `equipoise compare fedavg fedheal`. Add `--debug` to any command for a traceback.",
)
app.add_typer(analyse)
app.add_typer(data_sets)
app.add_typer(flower)
app.command(epilog="Example: `equipoise privacy --noise 20 --rounds 40`")(privacy)
app.command(epilog="Example: `equipoise init --data my/ --output equipoise.toml`")(init)
app.command(epilog="Example: `equipoise reproduce fedheal/table2 --embedded --seeds 1`")(reproduce)
NEEDS = {
    "contribution": "what each client reaches alone, on the server's validation data (found out by itself)",
    "contribution_on_test": "what each client reaches alone, on the test data (found out by itself)",
    "neurons": "a network whose hidden units can be removed one by one",
    "validation": "validation data of the server's own (scenarios digits-pow, digits-cla, digits-dir)",
}
SIGHTS: dict[Sees, str] = {
    "nothing": "nothing",
    "sum": "sums over the clients, with weights known before the round",
    "scalars+sum": "a few numbers of each client, then sums over the clients",
    "matrix": "what each client sends",
}
out = Console()
err = Console(stderr=True)

Scenario = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        "-s",
        help="Data and its partition, with options in brackets: `digits(clients=8)`; see `equipoise scenarios` "
        "[default: digits; with --data: own].",
    ),
]
DataPath = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="PATH",
        help="Your files: a folder per client with a folder per class, a CSV, an NPZ, `hub:OWNER/NAME`; or, for a scenario of "
        "a paper, the folder with its data sets.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="A configuration as `equipoise init` writes it; what the command tells goes before it.",
    ),
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", "-r", min=1, help="Communication rounds [default: the scenario's].")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[PART.]NAME=VALUE",
        help="A hyper-parameter, for example `fedheal.tau=0.4`; without a dot an option of the scenario, for example "
        "`clients=8`. Repeatable.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="mlp, cnn or resnet10, with options in brackets: `resnet10(width=64)` [default: the scenario's].",
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Local epochs [default: the scenario's].")]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1, help="Local steps per round, as many for every client, in place of --epochs [default: the scenario's]."
    ),
]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Local batch size [default: the scenario's].")]
Lr = Annotated[float | None, typer.Option(help="Local learning rate [default: the scenario's].")]
Momentum = Annotated[float | None, typer.Option(help="Momentum of SGD [default: the scenario's].")]
Decay = Annotated[float | None, typer.Option("--weight-decay", help="Weight decay [default: the scenario's].")]
Optimizer = Annotated[str | None, typer.Option(help="sgd, adam or adamw [default: sgd].")]
Clip = Annotated[float | None, typer.Option(help="Largest norm of a local gradient.")]
Participation = Annotated[
    float | None, typer.Option(help="Share of the clients that train in a round, in (0, 1] [default: the scenario's].")
]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", help="auto, sequential, workers, processes, stacked or flower-inproc [default: auto]."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Clients visited at a time; the result does not depend on it [default: the cores]."),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1, help="Most clients of a stack, with --engine stacked [default: a quarter of those that train]."
    ),
]
Precision = Annotated[
    str | None, typer.Option(help="full, or bf16: faster where the hardware has it, less exact [default: full].")
]
Quorum = Annotated[
    float | None, typer.Option(help="Least share of clients that must answer well, in [0, 1] [default: 0.5].")
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processor threads of a run [default: 1, which gives the same bits on every machine of a kind]."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda [default: cpu].")]
Name = Annotated[str | None, typer.Option(help="Write to RUNS/NAME. The same command again goes on where it stopped.")]
Base = Annotated[Path, typer.Option("--runs", help="Where runs are kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")]
Figures = Annotated[
    bool, typer.Option("--figures", help="Also write every figure as PDF and PNG, and every table as LaTeX.")
]


@app.command(epilog="Example: `equipoise run --method fedproto+fedheal --rounds 40 --set fedheal.tau=0.4`")
def run(
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="One method or a sum of parts; see `equipoise methods` [default: fedavg]."),
    ] = None,
    scenario: Scenario = None,
    data: DataPath = None,
    config_file: ConfigFile = None,
    rounds: Rounds = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Decides data, first model and every random choice [default: 0].")
    ] = None,
    set_: Set = None,
    network: Network = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = None,
    lr: Lr = None,
    momentum: Momentum = None,
    weight_decay: Decay = None,
    optimizer: Optimizer = None,
    clip: Clip = None,
    participation: Participation = None,
    engine: EngineName = None,
    workers: Workers = None,
    chunk: Chunk = None,
    precision: Precision = None,
    quorum: Quorum = None,
    threads: Threads = None,
    device: Device = None,
    name: Name = None,
    base: Base = Path("runs"),
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say how much memory, disk and time the run would take; train and write nothing."
        ),
    ] = False,
    json_: Json = False,
    report: Report = True,
    figures: Figures = False,
) -> None:
    """Train one method and show how fair it is."""
    of_file = _configured(config_file)
    overrides, options = _settings(set_)
    choices = _choices(
        of_file.choices, scenario, data, options, network,
        rounds=rounds, epochs=epochs, steps=steps, batch_size=batch_size, lr=lr, momentum=momentum, weight_decay=weight_decay,
        optimizer=optimizer, clip=clip, participation=participation, engine=engine, chunk=chunk, precision=precision, quorum=quorum, threads=threads, device=device,
    )  # fmt: skip
    overrides = {**(of_file.overrides if method is None else of_file.of(method)), **overrides}
    method = of_file.method if method is None else method
    seed = of_file.seed if seed is None else seed
    config = runs.configure(method, overrides=overrides, seed=seed, **choices)
    if dry_run:
        _foretell(runs.plan(config, base, workers=workers, progress=not json_), json_)
        return
    directory = runs.place(base, name, f"{runs.slug(config.label)}-{config.scenario}-seed{seed}")
    runs.start(config, directory)
    _finish([_execute(directory, quiet=json_, workers=workers)], directory, json_, report, figures)


@app.command(epilog="Example: `equipoise compare fedavg afl fedavg+qffl fedheal --seeds 3 --jobs 2`")
def compare(
    methods: Annotated[list[str], typer.Argument(help="The methods; the others are tested against the first.")],
    scenario: Scenario = None,
    data: DataPath = None,
    config_file: ConfigFile = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, ...")] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Runs at a time; the results do not depend on it [default: cores / threads; on a GPU 1].",
        ),
    ] = None,
    set_: Set = None,
    network: Network = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = None,
    lr: Lr = None,
    momentum: Momentum = None,
    weight_decay: Decay = None,
    optimizer: Optimizer = None,
    clip: Clip = None,
    participation: Participation = None,
    engine: EngineName = None,
    chunk: Chunk = None,
    precision: Precision = None,
    quorum: Quorum = None,
    threads: Threads = None,
    device: Device = None,
    name: Name = None,
    base: Base = Path("runs"),
    json_: Json = False,
    report: Report = True,
    figures: Figures = False,
) -> None:
    """Run several methods over seeds and compare them: mean, spread, 95 % interval, paired test."""
    of_file = _configured(config_file)
    overrides, options = _settings(set_)
    choices = _choices(
        of_file.choices, scenario, data, options, network,
        rounds=rounds, epochs=epochs, steps=steps, batch_size=batch_size, lr=lr, momentum=momentum, weight_decay=weight_decay,
        optimizer=optimizer, clip=clip, participation=participation, engine=engine, chunk=chunk, precision=precision, quorum=quorum, threads=threads, device=device,
    )  # fmt: skip
    configs = []
    for method in methods:
        own = of_file.of(method) | {k: v for k, v in overrides.items() if k.split(".", 1)[0] in _parts(method)}
        configs += [runs.configure(method, overrides=own, seed=seed, **choices) for seed in range(seeds)]
    for key in overrides:
        if not any(key.split(".", 1)[0] in _parts(method) for method in methods):
            raise MethodError(f"--set {key}: {key.split('.', 1)[0]!r} is not part of any of {', '.join(methods)}.")
    directory = runs.place(base, name, f"compare-{configs[0].scenario}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=json_ or not err.is_terminal) as bar:
        task = bar.add_task(f"{len(configs)} runs", total=sum(c.rounds for c in configs))
        histories = run_all(
            configs,
            directory,
            jobs=jobs or fitting(configs),
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _finish(histories, directory, json_, report, figures)


@app.command(epilog="Example: `equipoise resume runs/fedheal-digits-seed0`")
def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors, and write no report.")] = False,
    workers: Workers = None,
    json_: Json = False,
    report: Report = True,
) -> None:
    """Go on with a run that was stopped or killed; the result is the same, bit for bit."""
    history = _execute(directory, quiet=quiet or json_, workers=workers)
    if json_ or not quiet:
        _finish([history], directory, json_, report and not quiet, False)


@app.command(epilog="Example: `equipoise export runs/fedsac-digits-pow-seed0 --client all`")
def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.")],
    client: Annotated[
        str | None,
        typer.Option(
            help="Name of a client, whose own model is written; `all` for every client [default: the global model]."
        ),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="A client of FedSAC: the really smaller network of what it holds.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the files [default: RUN/models].")
    ] = None,
) -> None:
    """Write trained models as safetensors: the global one, or what clients own."""
    if compact and client is None:
        raise ValueError("--compact makes the smaller network of one client: add --client NAME, or --client all.")
    fed = runs.trained(directory)
    names = fed.experiment.names
    chosen: list[int | None] = (
        [None] if client is None else list(range(len(names))) if client == "all" else [_client(client, names)]
    )
    for number in chosen:
        written = (
            output or directory / "models"
        ) / f"{'global' if number is None else runs.slug(names[number])}.safetensors"
        state = fed.network(client=number, compact=compact).state_dict()
        written.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(written, save({name: tensor.contiguous().clone() for name, tensor in state.items()}))
        size = sum(t.numel() for t in state.values())
        out.print(f"{written}: {size:,} numbers", soft_wrap=True, highlight=False)


def _client(text: str, names: Sequence[str]) -> int:
    if text in names:
        return names.index(text)
    raise ValueError(
        f"--client {text}: the run has no such client. Give a name ({', '.join(names[:4])}{', ...' * (len(names) > 4)}), or all."
    )


@app.command(name="report", epilog="Example: `equipoise report runs/quickstart/*/ --output report.html --figures`")
def report_(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of runs, or of comparisons.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    figures: Figures = False,
    json_: Json = False,
) -> None:
    """Write one self-contained HTML report of any runs."""
    histories = [History.from_run(run) for path in directories for run in members(path)]
    if not histories:
        raise ValueError(f"No run in {', '.join(map(str, directories))}: expected directories with a config.toml.")
    written = write_report(histories, output, figures=figures)
    if json_:
        print(json.dumps(comparison(histories), indent=1))  # noqa: T201
        return
    out.print(rich_table(comparison(histories), out.width))
    out.print(f"report: {written}", soft_wrap=True, highlight=False)


@app.command(name="methods", epilog="Example: `equipoise methods fedheal`")
def methods_(
    name: Annotated[str | None, typer.Argument(help="One method, in full.")] = None,
    json_: Json = False,
) -> None:
    """List the methods: what they do, their hyper-parameters, where they come from."""
    name = ALIASES.get(name, name) if name is not None else None
    if name is not None and name not in METHODS:
        parse(name)  # says what is wrong, with a suggestion
        raise MethodError(f"{name!r} is a sum; ask for its parts one by one.")
    chosen = METHODS if name is None else {name: METHODS[name]}
    if json_:
        print(json.dumps({n: _described(n) for n in chosen}, indent=1))  # noqa: T201
        return
    if name is not None:
        _show_method(name)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("method", "what it does", "hyper-parameters", "server sees", "from"):
        table.add_column(column, overflow="fold", no_wrap=column in ("method", "server sees"))
    for n in METHODS:
        d = _described(n)
        main = [p for p in d["hyper_parameters"] if p["main"]]
        table.add_row(
            f"[bold]{n}[/]",
            d["summary"],
            " ".join(f"{p['name']}={p['default']}" for p in main),
            d["sees"],
            d["citation"].split(":")[0],
        )
    out.print(table)
    out.print(
        "\nSums combine them: [bold]fedproto+fedheal[/], [bold]moon+afl[/]. One in full, with its presets: [bold]equipoise methods fedheal[/]."
    )


def _show_method(name: str) -> None:
    d = _described(name)
    out.print(f"[bold]{name}[/]: {d['summary']}\n{d['citation']}\nparts: {', '.join(d['parts'])}\n", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("hyper-parameter", "default", "values"):
        table.add_column(column)
    for p in d["hyper_parameters"]:
        table.add_row(p["name"], str(p["default"]), p["values"])
    out.print(table)
    for preset, values in d["presets"].items():
        shown = ", ".join(f"{k}={v}" for k, v in values.items()) or "the defaults"
        out.print(f"{name}:{preset}  {shown}", highlight=False)
    out.print(f"the server must see: {SIGHTS[parse(name).sees]}", highlight=False)
    if d["needs"]:
        out.print(f"needs: {'; '.join(d['needs'])}", highlight=False)
    if d["preset_in_a_sum"]:
        out.print(f"As one part of a sum, {name} means {name}:{d['preset_in_a_sum']}.", highlight=False)
    for rule in METHODS[name].rules:
        out.print("\n" + escape(_plain(rule.__doc__ or "")), highlight=False)


def _plain(docstring: str) -> str:
    """A docstring without its indentation and markup; equations stay in LaTeX."""
    text = inspect.cleandoc(docstring).replace(".. math:: ", "    ").replace("``", "")
    return re.sub(r":(?:math|func|meth|class):`([^`]*)`", r"\1", text)


def _described(name: str) -> dict[str, Any]:
    entry = METHODS[name]
    parameters: dict[str, dict[str, Any]] = {}
    for rule in entry.rules:
        for f in fields(rule):
            found = parameters.setdefault(f.name, {"name": f.name, "default": entry.defaults[f.name], "part": ""})
            found |= {"values": describe(f), "main": isinstance(f.metadata.get("allowed"), Range)}
            found["part"] += (" and " if found["part"] else "") + rule.__name__  # both rules of FedISM+ have a radius
    hooks = (
        "private",
        "prepare",
        "submodel",
        "begin",
        "trains",
        "loss",
        "correction",
        "gradient",
        "upload",
        "finish",
        "aggregate",
        "reward",
        "deploy",
        "publish",
    )
    return {
        "summary": entry.summary,
        "citation": entry.citation,
        "parts": [f"{r.__name__} ({', '.join(h for h in hooks if h in vars(r))})" for r in entry.rules],
        "hyper_parameters": list(parameters.values()),
        "presets": {"paper": {}, **{k: dict(v) for k, v in entry.presets.items()}},
        "preset_in_a_sum": entry.summed,
        "needs": [NEEDS[need] for need in sorted(parse(name).needs)],
        "sees": parse(name).sees,
    }


@app.command(name="scenarios", epilog="Example: `equipoise scenarios --json`")
def scenarios_(json_: Json = False) -> None:
    """List the scenarios and the networks."""
    listed = {
        "scenarios": {n: e.summary for n, e in scenarios.SCENARIOS.items()},
        "networks": {n: e.summary for n, e in networks.NETWORKS.items()},
    }
    if json_:
        print(json.dumps(listed, indent=1))  # noqa: T201
        return
    for title, entries in listed.items():
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title.removesuffix("s"))
        table.add_column("what it is", overflow="fold")
        for n, summary in entries.items():
            table.add_row(f"[bold]{n}[/]", summary)
        out.print(table)
        out.print()


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    portable: Annotated[
        bool,
        typer.Option(
            "--portable",
            help="Before the command: take only instructions that processors of Intel and AMD have in common, so that with SGD "
            "the bits of a run do not depend on which it is. Slower for dense networks.",
        ),
    ] = False,
) -> None:
    if version:
        out.print(f"equipoise {__version__}", highlight=False)
        raise typer.Exit
    if portable:  # libraries read these switches when they are loaded
        arguments = [a for a in sys.argv[1:] if a != "--portable"]
        os.execve(sys.executable, [sys.executable, "-P", "-m", "equipoise", *arguments], environment.portable())


def _choices(
    file: Mapping[str, Any],
    scenario: str | None,
    data: str | None,
    options: dict[str, Any],
    network: str | None,
    **values: Any,
) -> dict[str, Any]:
    """Fields of a configuration: those of a file, and what the command tells, which wins."""
    told = {name: value for name, value in values.items() if value is not None}
    told |= {"data": runs.whole(data)} if data else {}
    if scenario is None and file:
        told["scenario_options"] = {**file["scenario_options"], **options}
    else:
        file = {k: v for k, v in file.items() if k not in ("data", "scenario", "scenario_options")}
        scenario = scenario or ("own" if data else "digits")
        name, bracketed = runs.called("--scenario", scenario, "digits(clients=8)")
        for option in options.keys() & bracketed.keys():
            raise ValueError(f"{option} is told twice: in --scenario {scenario} and by --set. Leave one out.")
        told |= {"scenario": name, "scenario_options": {**bracketed, **options}}
    if network is not None:
        name, bracketed = runs.called("--network", network, "resnet10(width=64)")
        told |= {"network": name, "network_options": bracketed}
    return {**file, **told}


class _File(NamedTuple):
    """What a configuration file tells."""

    method: str = "fedavg"
    overrides: Mapping[str, Any] = {}
    seed: int = 0
    choices: Mapping[str, Any] = {}

    def of(self, method: str) -> dict[str, Any]:
        """Its hyper-parameters, as far as a method has such parts."""
        return {k: v for k, v in self.overrides.items() if k.split(".", 1)[0] in _parts(method)}


def _configured(path: Path | None) -> _File:
    return _File() if path is None else _File(*read_config(path))


def _settings(pairs: Sequence[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read ``--set``: hyper-parameters by ``part.name``, and options of the scenario by name."""
    values: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise MethodError(
                f"--set {pair}: expected PART.NAME=VALUE, for example fedheal.tau=0.4, or NAME=VALUE for an option of the "
                "scenario, for example clients=8."
            )
        if key in values:
            raise MethodError(f"--set {pair}: {key} is told twice. Leave one out.")
        values[key] = read_value(value)
    return {k: v for k, v in values.items() if "." in k}, {k: v for k, v in values.items() if "." not in k}


def _parts(method: str) -> set[str]:
    return set(parse(method).parts)


def _execute(directory: Path, *, quiet: bool, workers: int | None) -> History:
    if not quiet and runs.finished(directory):
        out.print(f"{directory} is finished; its results:", highlight=False)
    return runs.execute(directory, progress=not quiet, workers=workers)


def _finish(histories: list[History], directory: Path, json_: bool, report: bool, figures: bool) -> None:
    found = comparison(histories)
    written = write_report(histories, directory / "report.html", figures=figures) if report else None
    if json_:
        print(json.dumps(found, indent=1))  # noqa: T201
        return
    for line in histories[0].meta.get("header", []) if len(histories) == 1 else []:
        out.print(f"[dim]{escape(line)}[/]", highlight=False)
    out.print(rich_table(found, out.width))
    for history in histories:
        for line in _quarantined(history):
            out.print(f"[yellow]quarantined[/] {escape(line)}", highlight=False)
    out.print(f"run: {directory}" + (f"\nreport: {written}" if written else ""), soft_wrap=True, highlight=False)


def _foretell(plan: Forecast, json_: bool) -> None:
    if json_:
        print(json.dumps(plan.as_dict(), indent=1))  # noqa: T201
    else:
        out.print(escape(str(plan)), soft_wrap=True, highlight=False)
    plan.check()


def _quarantined(history: History) -> list[str]:
    found: dict[tuple[str, str], list[int]] = {}
    for record in history.records:
        for q in record.get("quarantined", []):
            found.setdefault((q["name"], q["reason"]), []).append(record["round"])
    return [
        f"{history.label} seed {history.seed}: {name}: {reason} "
        f"({len(rounds)} round{'s' * (len(rounds) > 1)}, first in round {rounds[0]})"
        for (name, reason), rounds in found.items()
    ]


class Stopped(BaseException):
    """Ctrl-C or a polite kill; not a KeyboardInterrupt, on which Typer ends without a word."""


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(number)


def main() -> NoReturn:
    """Run the command line; user errors exit with 2, failures with 1, a stop with 130 or 143, all with one line."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a sign shows "?" for it
            stream.reconfigure(errors="replace")
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        app(arguments, prog_name="equipoise", standalone_mode=True)
    except (QuorumError, ServerError, CheckpointError, ForecastError, runs.RunError) as error:
        _fail(str(error), 1, debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(
            f"{where}{error.strerror or error}. What was complete is kept; mend this, then give the same command again.",
            1,
            debug,
        )
    except (ValueError, TypeError, ImportError) as error:  # of an import: an extra that is not installed
        _fail(str(error), 2, debug)
    except Stopped as stop:
        message = "Stopped. The same command (or equipoise resume) goes on from the last complete round."
        _fail(" ".join(getattr(stop, "__notes__", ())) or message, 128 + int(stop.args[0]), debug)
    except Exception as error:
        _fail(f"{type(error).__name__}: {error}. This is a defect of Equipoise; --debug shows where.", 1, debug)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _flush(debug)
    raise SystemExit(0)


def _flush(debug: bool) -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter will flush once more
        if not isinstance(error, BrokenPipeError):  # which means that the reader, such as head, has seen enough
            _fail(f"standard output: {error.strerror}.", 1, debug)


def _fail(message: str, status: int, debug: bool) -> NoReturn:
    if debug:
        err.print_exception()
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)
    raise SystemExit(status)
