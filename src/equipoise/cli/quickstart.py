"""``equipoise quickstart``: a first comparison in one command."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from equipoise.cli.console import say
from equipoise.cli.options import Jobs
from equipoise.system.suggestions import unknown

STARTS = {  # the comparison that each stands for
    "digits": "fedavg afl qffl fedheal --scenario digits --rounds 25 --name quickstart",
    "fashion": "standalone fedavg-finetune cffl fedsac --scenario 'fedsac-fashion(scene=cla)' --rounds 40 --name quickstart-fashion",
}


def quickstart(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="`digits`, which are embedded, or `fashion`: photographs of clothes, Fashion-MNIST.")
    ] = "digits",
    data: Annotated[str | None, typer.Option("--data", "-d", metavar="DIR", help="Where Fashion-MNIST is.")] = None,
    jobs: Jobs = None,
) -> None:
    """Compare a few methods in two minutes, and show the command that did it."""
    if name not in STARTS:
        raise ValueError(unknown("quickstart", name, STARTS))
    words = ["compare", *shlex.split(STARTS[name]), *(["--data", data] if data else [])]
    words += ["--jobs", str(jobs)] if jobs else []
    say(shlex.join(["equipoise", *words]))
    context.find_root().command.main(words, standalone_mode=False)
