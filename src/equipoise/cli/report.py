"""The commands ``equipoise report`` and ``equipoise audit``, which write a page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option

from equipoise.cli import options
from equipoise.cli.console import note, out, print_json, say
from equipoise.cli.init import ABOUT, about_in
from equipoise.data.tables.options import WRITTEN
from equipoise.system.files import ANYWHERE, read_regular
from equipoise.system.ranges import check_option
from equipoise.system.seals import open_toml
from equipoise.system.suggestions import require_use

if TYPE_CHECKING:
    from equipoise.records.meta import About
    from equipoise.report.statistics import Comparison

READING = (*WRITTEN, "not_missing")  # of a table that is text
SEVERAL = "a folder of several comparisons, of which an index is written"
READERS = ("researchers", COMMITTEE := "committee")


@dataclass(frozen=True)
class Page:
    """The page to write, and for whom."""

    output: Path = options.option_field(Path("report.html"), "The file to write.", "--output -o")
    for_: str = options.option_field(
        READERS[0],
        "Who reads it: researchers, or a committee, which gets two pages in words.",
        "--for",
        metavar="READER",
    )
    about: Path | None = options.option_field(
        None,
        "With --for committee: a TOML file whose table [report] has title, purpose, author and contact [default: that of the run].",
        metavar="FILE",
    )


@dataclass(frozen=True)
class Changes:
    """Settings that a report may change."""

    positive: str | None = options.option_field(None, options.help_of("positive"))
    least_group: int | None = options.option_field(None, options.help_of("least_group"), min=1)


@options.grouped
def report(
    directories: options.Runs,
    *,
    page: Page,
    label: options.Labels = None,
    changes: Changes,
    figures: options.Figures = False,
    details: options.Details = False,
    explain: options.Explain = False,
    json_: options.Json = False,
) -> None:
    """Write one self-contained HTML report of any runs."""
    check_option("--for", page.for_, READERS)
    require_use({"--figures": page.for_ == COMMITTEE and figures}, together="--for committee")
    require_use({"--about": page.for_ != COMMITTEE and page.about}, without="--for committee")
    require_use(
        {"--details": json_ and details, "--explain": json_ and explain}, together="--json, which prints everything"
    )
    words = None if page.about is None else _words(page.about)
    from equipoise.federation.history import History
    from equipoise.records.directory import all_members, comparisons
    from equipoise.records.meta import Meta
    from equipoise.report import committee, index
    from equipoise.report.html import write
    from equipoise.report.rendering import rich_table
    from equipoise.report.statistics import Comparison

    if len(directories) == 1 and (inside := comparisons(directories[0])):
        given = {
            "--for": page.for_ == COMMITTEE,
            "--label": label,
            "--figures": figures,
            "--details": details,
            "--explain": explain,
            "--json": json_,
        }
        require_use({**given, "--positive": changes.positive, "--least-group": changes.least_group}, together=SEVERAL)
        every = {run.name: _compared(run) for run in inside}
        pages = {
            run.name: relpath(file, page.output.parent) for run in inside if (file := run / "report.html").exists()
        }
        made = index.page(directories[0].resolve().name, every, pages)
        say(f"index: {made.save(page.output)}")
        return
    recorded = [History.from_run(run) for run in all_members(directories)]
    called = {run.method: run.label for run in recorded} | {run.label: run.label for run in recorded}
    asked = {name: value for name, value in vars(changes).items() if value is not None}
    histories = [replace(history, meta={**history.meta, **cast(Meta, asked)}) for history in recorded]
    compared = Comparison.of(options.relabelled(histories, options.new_labels(label, called)))
    before = Comparison.of(options.relabelled(recorded, options.new_labels(label, called))).document if asked else None
    if asked and _numbers(before) == _numbers(compared.document):
        note(f"--{', --'.join(asked).replace('_', '-')}: no number of these runs depends on it.")
    if page.for_ == COMMITTEE:
        written = committee.write(compared, page.output, words)
    else:
        written = write(compared, page.output, figures=figures)
    if json_:
        print_json(compared.document)
        return
    out.print(rich_table(compared.document, out.width, details, explain))
    say(f"report: {written}")


def _compared(folder: Path) -> Comparison | str:
    """The runs in a folder, or why they cannot be compared, such as one that has just begun."""
    from equipoise.federation.history import History
    from equipoise.records.directory import all_members
    from equipoise.report.statistics import Comparison

    try:
        return Comparison.of([History.from_run(run) for run in all_members([folder])])
    except ValueError as error:
        return str(error)


def _numbers(document: object) -> object:
    """A document without the least group sizes that it states."""
    if isinstance(document, dict):
        return {name: _numbers(value) for name, value in document.items() if name not in ("least", "least_group")}
    return [*map(_numbers, document)] if isinstance(document, list | tuple) else document


def _words(path: Path) -> About:
    """The table [report] of a file."""
    try:
        table = open_toml(read_regular(path, ANYWHERE).decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"--about {path}: it is no TOML file that can be read ({error}).") from None
    if not (words := about_in(path, table)):
        raise ValueError(f"--about {path}: it has no table [report] with {', '.join(ABOUT)}.")
    return words


@dataclass(frozen=True)
class Predictions:
    """What the table of predictions holds, as :func:`equipoise.report.audit.audit` takes it."""

    label: str | None = options.option_field(None, "What is true of the person [default: label].", metavar="COLUMN")
    probability: str | None = options.option_field(
        None, "The probability of the positive class, in [0, 1].", metavar="COLUMN"
    )
    prediction: str | None = options.option_field(
        None, "The predicted class, or number, instead of a threshold.", metavar="COLUMN"
    )
    group: list[str] | None = options.option_field(
        None, "A group of people, `sex` or `age:40,60`; several times for several [default: group].", metavar="COLUMN"
    )
    site: str | None = options.option_field(
        None, "The site, in each of which groups are compared, too [default: site].", metavar="COLUMN"
    )
    subject: str | None = options.option_field(
        None, "The person, if one has several rows: intervals take these together [default: subject].", metavar="COLUMN"
    )
    positive: str | None = options.option_field(
        None, "The class that rates are about [default: the second of two].", metavar="CLASS"
    )
    threshold: float | None = options.option_field(
        None, "The positive class is predicted from this probability on [default: 0.5].", min=0, max=1
    )
    least: int = options.option_field(30, "People that a number must be about.", min=1, metavar="N")
    task: str | None = options.option_field(
        None, "`regression` for numbers to predict [default: classification].", metavar="TASK"
    )


@options.grouped
def audit(
    source: Annotated[
        Path, Argument(metavar="PREDICTIONS", help="A table with a row per person: .csv, .tsv, .xlsx or .parquet.")
    ],
    *,
    asked: Predictions,
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="How the table is written: sep, decimal, encoding, not_missing."),
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="The page to write.")] = Path("audit.html"),
    json_: options.Json = False,
) -> None:
    """Measure how differently any model treats groups of people, from its predictions; nothing is trained."""
    from equipoise.report.audit import SITE, audit as audited
    from equipoise.report.page import bullets_of
    from equipoise.report.rendering import rich_sheets
    from equipoise.system.suggestions import unknown

    if asked.task not in (None, "classification", "regression"):
        raise ValueError(f"--task: {unknown('task', asked.task, ('classification', 'regression'))}")
    group = asked.group[0] if asked.group and len(asked.group) == 1 else asked.group
    made = audited(source, **{**vars(asked), "group": group, **options.reading_of(set_, READING)})
    written = made.save(output)
    if json_:
        print_json(made.document)
        return
    say(made.summary)
    for shown in rich_sheets([sheet for sheet in made.page.tables if sheet.head != SITE], out.width):
        out.print("", shown)
    for text in bullets_of(made.page.sections[-1]):
        say(text)
    say(f"audit: {written}")
