"""Options that several commands have: the settings of training, said once, and a few small ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import completion

Values = Mapping[str, Any]  # what the user gave, by the names of TRAINING; None for what was not given

TRAINING: dict[str, Any] = {  # by the parameter's name, in the order of --help
    "scenario": Annotated[
        str | None,
        typer.Option(
            "--scenario",
            "-s",
            help="Data and its partition, with options in brackets: `digits(clients=8)`; see `equipoise scenarios` "
            "[default: digits; with --data: own].",
            autocompletion=completion.scenarios,
        ),
    ],
    "data": Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="PATH",
            help="Your files: a folder per client with a folder per class, a CSV, an NPZ, `hub:OWNER/NAME`; or, for a "
            "scenario of a paper, the folder with its data sets.",
        ),
    ],
    "config_file": Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="A configuration as `equipoise init` writes it; options of the command line override it.",
        ),
    ],
    "rounds": Annotated[
        int | None, typer.Option("--rounds", "-r", min=1, help="Communication rounds [default: the scenario's].")
    ],
    "set_": Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[PART.]NAME=VALUE",
            help="A hyper-parameter, for example `fedheal.tau=0.4`; without a dot an option of the scenario, for example "
            "`clients=8`. Repeatable.",
        ),
    ],
    "network": Annotated[
        str | None,
        typer.Option(
            "--network",
            help="mlp, cnn or resnet10, with options in brackets: `resnet10(width=64)` [default: the scenario's].",
            autocompletion=completion.networks,
        ),
    ],
    "epochs": Annotated[int | None, typer.Option(min=1, help="Local epochs [default: the scenario's].")],
    "steps": Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Local steps per round, the same for every client, in place of --epochs [default: the scenario's].",
        ),
    ],
    "batch_size": Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Local batch size [default: the scenario's].")
    ],
    "lr": Annotated[float | None, typer.Option(help="Local learning rate [default: the scenario's].")],
    "momentum": Annotated[float | None, typer.Option(help="Momentum of SGD [default: the scenario's].")],
    "weight_decay": Annotated[
        float | None, typer.Option("--weight-decay", help="Weight decay [default: the scenario's].")
    ],
    "optimizer": Annotated[str | None, typer.Option(help="sgd, adam or adamw [default: sgd].")],
    "clip": Annotated[float | None, typer.Option(help="Largest norm of a local gradient.")],
    "participation": Annotated[
        float | None,
        typer.Option(help="Share of the clients that train in a round, in (0, 1] [default: the scenario's]."),
    ],
    "engine": Annotated[
        str | None,
        typer.Option(
            "--engine", help="auto, sequential, workers, processes, stacked or flower-inproc [default: auto]."
        ),
    ],
    "chunk": Annotated[
        int | None,
        typer.Option(
            min=1, help="Most clients of a stack, with --engine stacked [default: a quarter of those that train]."
        ),
    ],
    "precision": Annotated[
        str | None, typer.Option(help="full, or bf16: faster where the hardware has it, less exact [default: full].")
    ],
    "quorum": Annotated[
        float | None, typer.Option(help="Least share of clients that must answer well, in [0, 1] [default: 0.5].")
    ],
    "threads": Annotated[
        int | None,
        typer.Option(
            min=1, help="Processor threads of a run [default: 1, which gives the same bits on every machine of a kind]."
        ),
    ],
    "device": Annotated[str | None, typer.Option(help="cpu or cuda [default: cpu].")],
}

Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Clients visited at a time; the result does not depend on it [default: the cores]."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        help="Runs at a time; the results do not depend on it [default: cores / threads; on a GPU 1].",
    ),
]
Name = Annotated[
    str | None, typer.Option(help="Write to RUNS/NAME. The same command again continues where it stopped.")
]
Base = Annotated[Path, typer.Option("--runs", help="Where runs are kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")]
Figures = Annotated[
    bool, typer.Option("--figures", help="Also write every figure as PDF and PNG, and every table as LaTeX.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", autocompletion=completion.runs)]
Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Directories of runs, or of comparisons.", autocompletion=completion.runs),
]


def training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of ``TRAINING``, in place of its parameter ``given``, which receives their values by name."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "given":
            options = TRAINING.items()
            parameters += [inspect.Parameter(n, parameter.KEYWORD_ONLY, default=None, annotation=a) for n, a in options]
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @wraps(command)
    def complete(**values: Any) -> None:
        given = {name: values.pop(name) for name in TRAINING}
        command(given=given, **values)

    complete.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return complete
