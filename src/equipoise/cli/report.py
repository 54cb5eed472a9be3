"""The command ``equipoise report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from equipoise.cli.console import note, out, print_json, say
from equipoise.cli.init import ABOUT, about_in
from equipoise.cli.options import Details, Figures, Json, Labels, Runs, help_of, new_labels, relabelled
from equipoise.system.ranges import check_option
from equipoise.system.seals import open_toml
from equipoise.system.suggestions import require_use

if TYPE_CHECKING:
    from equipoise.records.meta import About

READERS = ("researchers", COMMITTEE := "committee")


def report(
    directories: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    for_: Annotated[
        str,
        typer.Option(
            "--for", metavar="READER", help="Who reads it: researchers, or a committee, which gets two pages in words."
        ),
    ] = READERS[0],
    about: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --for committee: a TOML file whose table [report] has title, purpose, author and contact [default: that of the run].",
        ),
    ] = None,
    label: Labels = None,
    positive: Annotated[str | None, typer.Option(help=help_of("positive"))] = None,
    least_group: Annotated[int | None, typer.Option(min=1, help=help_of("least_group"))] = None,
    figures: Figures = False,
    details: Details = False,
    json_: Json = False,
) -> None:
    """Write one self-contained HTML report of any runs."""
    check_option("--for", for_, READERS)
    require_use({"--figures": for_ == COMMITTEE and figures}, together="--for committee")
    require_use({"--about": for_ != COMMITTEE and about}, without="--for committee")
    require_use({"--details": json_ and details}, together="--json, which prints everything")
    words = None if about is None else _words(about)
    from equipoise.federation.history import History
    from equipoise.records.directory import all_members
    from equipoise.records.meta import Meta
    from equipoise.report import committee
    from equipoise.report.html import write
    from equipoise.report.rendering import rich_table
    from equipoise.report.statistics import Comparison

    recorded = [History.from_run(run) for run in all_members(directories)]
    called = {run.method: run.label for run in recorded} | {run.label: run.label for run in recorded}
    options = (("positive", positive), ("least_group", least_group))
    asked = {name: value for name, value in options if value is not None}
    histories = [replace(history, meta={**history.meta, **cast(Meta, asked)}) for history in recorded]
    compared = Comparison.of(relabelled(histories, new_labels(label, called)))
    before = Comparison.of(relabelled(recorded, new_labels(label, called))).document if asked else None
    if asked and _numbers(before) == _numbers(compared.document):
        note(f"--{', --'.join(asked).replace('_', '-')}: no number of these runs depends on it.")
    written = (
        committee.write(compared, output, words) if for_ == COMMITTEE else write(compared, output, figures=figures)
    )
    if json_:
        print_json(compared.document)
        return
    out.print(rich_table(compared.document, out.width, details))
    say(f"report: {written}")


def _numbers(document: object) -> object:
    """A document without the least group sizes that it states."""
    if isinstance(document, dict):
        return {name: _numbers(value) for name, value in document.items() if name not in ("least", "least_group")}
    return [*map(_numbers, document)] if isinstance(document, list | tuple) else document


def _words(path: Path) -> About:
    """The table [report] of a file."""
    try:
        table = open_toml(path.read_bytes().decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"--about {path}: it is no TOML file that can be read ({error}).") from None
    if not (words := about_in(path, table)):
        raise ValueError(f"--about {path}: it has no table [report] with {', '.join(ABOUT)}.")
    return words
