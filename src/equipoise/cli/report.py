"""The commands ``equipoise report`` and ``equipoise audit``, which write a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, cast

import equipoise as eq
from equipoise.cli import init, options
from equipoise.cli.console import note, out, say
from equipoise.cli.options import option
from equipoise.data.tables.options import WRITTEN
from equipoise.system import ranges, seals
from equipoise.system.files import ANYWHERE, read_regular
from equipoise.system.suggestions import require_use, unknown

if TYPE_CHECKING:
    from equipoise.records.meta import About
    from equipoise.report.statistics import Comparison

READING = (*WRITTEN, "not_missing")  # of a table that is text
SEVERAL = "a folder of several comparisons, of which an index is written"
READERS = ("researchers", COMMITTEE := "committee")


@dataclass(frozen=True)
class Page:
    """The page to write, and for whom."""

    output: Path = option(Path("report.html"), "The file to write.", "--output -o")
    for_: str = option(
        READERS[0],
        "Who reads it: researchers, or a committee, which gets two pages in words.",
        "--for",
        metavar="READER",
    )
    about: Path | None = option(
        None,
        "With --for committee: a TOML file whose table [report] has title, purpose, author and contact [default: that of the run].",
        metavar="FILE",
    )


@dataclass(frozen=True)
class Changes:
    """Settings that a report may change."""

    positive: str | None = option(None, options.help_of("positive"))
    least_group: int | None = option(None, options.help_of("least_group"), min=1)


def report(
    directories: options.Runs,
    *,
    page: Page,
    label: list[str] | None = options.LABEL,
    changes: Changes,
    figures: bool = options.FIGURES,
    details: bool = options.DETAILS,
    explain: bool = options.EXPLAIN,
    json_: options.Json = False,
) -> Iterator[object]:
    """Write one self-contained HTML report of any runs."""
    ranges.check_option("--for", page.for_, READERS)
    require_use({"--figures": page.for_ == COMMITTEE and figures}, together="--for committee")
    require_use({"--about": page.for_ != COMMITTEE and page.about}, without="--for committee")
    options.require_text(json_, details, explain)
    words = None if page.about is None else _words(page.about)
    from equipoise.records import directory, meta
    from equipoise.report import committee, html, index, rendering, statistics

    if len(directories) == 1 and (inside := directory.comparisons(directories[0])):
        of_one = {"--for": page.for_ == COMMITTEE, "--label": label, "--figures": figures, "--details": details}
        of_one |= {"--explain": explain, "--json": json_}
        require_use({**of_one, "--positive": changes.positive, "--least-group": changes.least_group}, together=SEVERAL)
        every = {run.name: _compared(run) for run in inside}
        files = {run.name: file for run in inside if (file := run / "report.html").exists()}
        pages = {name: relpath(file, page.output.parent) for name, file in files.items()}
        made = index.page(directories[0].resolve().name, every, pages)
        say(f"index: {made.save(page.output)}")
        return
    recorded = [eq.History.from_run(run) for run in directory.all_members(directories)]
    called = {run.method: run.label for run in recorded} | {run.label: run.label for run in recorded}
    asked = {name: value for name, value in vars(changes).items() if value is not None}
    named = options.relabelled(recorded, options.new_labels(label, called))
    compared = statistics.Comparison.of([replace(run, meta={**run.meta, **cast(meta.Meta, asked)}) for run in named])
    if asked and _numbers(statistics.Comparison.of(named).document) == _numbers(compared.document):
        note(f"--{', --'.join(asked).replace('_', '-')}: no number of these runs depends on it.")
    if page.for_ == COMMITTEE:
        written = committee.write(compared, page.output, words)
    else:
        written = html.write(compared, page.output, figures=figures)
    yield compared.document
    out.print(rendering.rich_table(compared.document, out.width, details, explain))
    say(f"report: {written}")


def _compared(folder: Path) -> Comparison | str:
    """The runs in a folder, or why they cannot be compared, such as one that has just begun."""
    from equipoise.records.directory import all_members
    from equipoise.report.statistics import Comparison

    try:
        return Comparison.of([eq.History.from_run(run) for run in all_members([folder])])
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
        table = seals.open_toml(read_regular(path, ANYWHERE).decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"--about {path}: it is no TOML file that can be read ({error}).") from None
    if not (words := init.about_in(path, table)):
        raise ValueError(f"--about {path}: it has no table [report] with {', '.join(init.ABOUT)}.")
    return words


@dataclass(frozen=True)
class Predictions:
    """What the table of predictions holds, as :func:`equipoise.report.audit.audit` takes it."""

    label: str | None = option(None, "What is true of the person [default: label].", metavar="COLUMN")
    probability: str | None = option(None, "The probability of the positive class, in [0, 1].", metavar="COLUMN")
    prediction: str | None = option(None, "The predicted class, or number, instead of a threshold.", metavar="COLUMN")
    group: list[str] | None = option(
        None, "A group of people, `sex` or `age:40,60`; several times for several [default: group].", metavar="COLUMN"
    )
    site: str | None = option(
        None, "The site, in each of which groups are compared, too [default: site].", metavar="COLUMN"
    )
    subject: str | None = option(
        None, "The person, if one has several rows: intervals take these together [default: subject].", metavar="COLUMN"
    )
    positive: str | None = option(None, "The class that rates are about [default: the second of two].", metavar="CLASS")
    threshold: float | None = option(
        None, "The positive class is predicted from this probability on [default: 0.5].", min=0, max=1
    )
    least: int = option(30, "People that a number must be about.", min=1, metavar="N")
    task: str | None = option(None, "`regression` for numbers to predict [default: classification].", metavar="TASK")


def audit(
    source: Path = option(..., "A table with a row per person: .csv, .tsv, .xlsx or .parquet.", "PREDICTIONS"),
    *,
    asked: Predictions,
    set_: list[str] | None = option(
        None, "How the table is written: sep, decimal, encoding, not_missing.", "--set", metavar="NAME=VALUE"
    ),
    output: Path = option(Path("audit.html"), "The page to write.", "--output -o"),
) -> Iterator[object]:
    """Measure how differently any model treats groups of people, from its predictions; nothing is trained."""
    from equipoise.report import audit as audits, page, rendering

    if asked.task not in (None, "classification", "regression"):
        raise ValueError(f"--task: {unknown('task', asked.task, ('classification', 'regression'))}")
    group = asked.group[0] if asked.group and len(asked.group) == 1 else asked.group
    made = audits.audit(source, **{**vars(asked), "group": group, **options.reading_of(set_, READING)})
    written = made.save(output)
    yield made.document
    say(made.summary)
    for shown in rendering.rich_sheets([sheet for sheet in made.page.tables if sheet.head != audits.SITE], out.width):
        out.print("", shown)
    for text in page.bullets_of(made.page.sections[-1]):
        say(text)
    say(f"audit: {written}")
