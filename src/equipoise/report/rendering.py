"""Tables as text: for the terminal, for Markdown, for LaTeX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from equipoise.report import answer, layout
from equipoise.report.answer import headline, panels, warnings
from equipoise.report.document import Document
from equipoise.report.formatting import lines
from equipoise.report.layout import Sheet, sheets
from equipoise.report.page import Bullets, Table, in_markdown, latex_sheet, printed_names
from equipoise.report.sentences import verdict
from equipoise.report.statistics import Comparison
from equipoise.system.files import write_atomically
from equipoise.system.text import markdown as escaped

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable

    from equipoise.records.history import History

NAME: Final = 26  # characters of a method's name in a line of the terminal


def rich_table(comparison: Document, width: int = 1000, details: bool = True, explain: bool = True) -> Group:
    """A comparison for the terminal: the headline, a table with a row per method, in bold what is told apart as best, and what to be careful with.

    Parameters
    ----------
    comparison : what `comparison` returned.
    width : columns of the terminal, >= 1; columns that do not fit go into another table below.
    details : every table with its differences and tests, and the verdict; else that of the main measure, and above it, where the data
        are about people, clients or rewards, the numbers of the first figure of the report.
    explain : what the columns mean, once, below the first table that has them.
    """
    from rich.console import Group
    from rich.text import Text

    main, *others = sheets(comparison)
    others = others if details else _beyond_groups(comparison)
    main = main if details else replace(main, test=(), differences=())
    if not explain:
        main, *others = (replace(sheet, explanations=(), notes=()) for sheet in (main, *others))
    # That of the accuracy says all its sentences.
    first_table, *tables = rich_sheets((main, *others), width)
    parts = [part for table in (*tables, first_table) for part in ("", table)]
    notes = [Text(f"! {text}", style="yellow") for text in warnings(comparison)]
    options = [*["every table and test: --details"] * (not details), *["what columns mean: --explain"] * (not explain)]
    more = [Text(f"{'; '.join(options)}; the report has both.".capitalize(), style="dim")] * bool(options)
    end: list[str | Text] = ["", Text(verdict(comparison))] if details else []
    return Group(Text(headline(comparison), style="bold"), *parts, *notes, *more, *end)


def rich_sheets(sheets: Iterable[Sheet], width: int) -> list[Group]:
    """Tables for the terminal, with every sentence below the first table that it is about, and as wide as the table."""
    from rich.console import Group

    stated: set[str] = set()
    parts = ([_rich_table(part, stated, min(60, width)) for part in _folded(sheet, width)] for sheet in sheets)
    return [Group(*[part for table in tables for part in ("", table)][1:]) for tables in parts]


def _beyond_groups(comparison: Document) -> list[Sheet]:
    """The numbers of the first figure, where the table of the groups does not have them."""
    of_figure = panels(comparison)
    in_table = {"mean", "worst", "spread"} if len(comparison["methods"][0]["groups"]) > 1 else {"mean"}
    if {panel.about for panel in of_figure} <= in_table:
        return []
    grid = answer.table(of_figure)
    narrow = {title: title.replace(" ", "\n") for title in grid.titles}
    caption = "As in the first figure of the report."
    return [Sheet("answer", "The answer", caption, grid, narrow=True, narrow_titles=narrow)]


def _folded(sheet: Sheet, width: int) -> list[Sheet]:
    """The table; if it is wider than the terminal, several tables with some of the columns each."""
    if sheet.narrow:  # its names are folded
        return [sheet]
    names = max(len(line) for name in ("method", *(name for name, _ in sheet.grid.rows)) for line in lines(name, NAME))
    blocks: list[list[int]] = [[]]
    free = room = width - names - 2  # an edge on either side
    for k, title in enumerate(sheet.grid.titles):
        column = [row[k] for _, row in sheet.grid.rows]
        texts = [text for cell in column for text in (*cell.mean.split("\n"), f"±{cell.half}", cell.ends)]
        need = 1 + max(6, len(title), *map(len, texts))
        if blocks[-1] and need > free:
            blocks.append([])
            free = room
        blocks[-1].append(k)
        free -= need

    silent = replace(sheet, explanations=(), notes=(), test=(), differences=())
    captions = [sheet.caption, *[""] * (len(blocks) - 1)]
    # The sentences go below the last part.
    parts = zip([*[silent] * (len(blocks) - 1), sheet], blocks, captions, strict=True)
    return [replace(part, grid=sheet.grid.at(block), caption=caption) for part, block, caption in parts]


def _rich_table(sheet: Sheet, stated: set[str], min_width: int) -> RichTable:
    """One table. Sentences that were `stated` below another table are left out; the others are added to `stated`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0), title_style="italic", min_width=min_width)
    sentences = [s for s in (*sheet.sentences, *sheet.test) if s not in stated]
    stated.update(sentences)
    table.title, table.caption = Text(sheet.caption), Text("\n".join([*sentences, *sheet.differences]))
    table.title_justify = table.caption_justify = "left"
    table.add_column(sheet.head.lower(), no_wrap=not sheet.narrow, overflow="fold" if sheet.narrow else "ellipsis")
    for title in sheet.grid.titles:
        name, width = (sheet.narrow_titles.get(title, title), 4) if sheet.narrow else (title, 6)
        justify: Literal["left", "right"] = "left" if sheet.prose else "right"
        table.add_column(Text(name), justify=justify, no_wrap=not sheet.prose, overflow="fold", min_width=width)
    for name, cells in sheet.grid.rows:
        texts = []
        for cell in cells:
            text = Text(cell.mean, style="bold green" if cell.best else "")
            below = f"±{cell.half}" if cell.half else cell.ends
            text.append(f"\n{below}" if below else "", style="not bold dim default")
            texts.append(text)
        table.add_row(Text(name if sheet.narrow else "\n".join(lines(name, NAME))), *texts)
    return table


def markdown(comparison: Document) -> str:
    """A comparison as Markdown, a table per measure: in bold what is told apart as best, differences in a list below."""
    return "\n".join(map(_markdown, sheets(comparison)))


def _markdown(sheet: Sheet) -> str:
    notes = in_markdown([Bullets([*sheet.sentences, *sheet.test, *sheet.differences])])
    return "\n".join([escaped(sheet.caption), "", *markdown_grid(sheet), "", *notes]).rstrip() + "\n"


def markdown_grid(sheet: Sheet) -> list[str]:
    """The lines of a table without its caption and sentences."""
    kind = "settings" if sheet.prose else "numbers"
    return in_markdown([Table(sheet.grid, "", sheet.head if sheet.prose else "method", kind)])[:-1]


def latex(comparison: Document | Comparison) -> str:
    """A comparison in LaTeX for the package booktabs: a `table` per measure, in bold what is told apart as best.

    Of an `equipoise.Comparison` methods have the names that papers print; its document has their labels only.
    """
    names = printed_names(comparison.histories if isinstance(comparison, Comparison) else ())
    return "\n".join(latex_sheet(sheet, names) for sheet in sheets(cast(Document, comparison)))


def save_latex(histories: Sequence[History] | Comparison, directory: str | os.PathLike[str]) -> list[Path]:
    """Write every table of the report as a LaTeX file, to be taken into a paper by input; return the paths.

    The tables of the measures, what clients get for what they give, every index of spread, the paired tests, the traffic.
    They need the package booktabs; the wider ones fit a page turned on its side.

    Parameters
    ----------
    histories : runs of one scenario, or a comparison of them; the first method is the one the others are compared with.
    directory : where to write; made if missing.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    compared, folder = Comparison.of(histories), Path(directory)
    names = printed_names(compared.histories)
    return [write_atomically(folder / f"{sheet.name}.tex", latex_sheet(sheet, names)) for sheet in tables(compared)]


def tables(compared: Comparison) -> list[Sheet]:
    """Every table of the report that a paper may have."""
    of_clients = [layout.every_client(compared), *layout.people_of_clients(compared), layout.communication(compared)]
    measured = sheets(compared.document)
    over_all = [*measured, *layout.over_groups(compared), *layout.over_clients(compared)]
    return [sheet for sheet in [*over_all, *of_clients, *layout.paired_tests(measured)] if sheet]
