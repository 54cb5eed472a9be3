"""Tables as text: for the terminal, for Markdown, for LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise.report.layout import Cell, Grid, Sheet, sheets

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

Numbers = Mapping[str, Any]


def rich_table(comparison: Numbers, width: int = 1000) -> Group:
    """A comparison for the terminal: one row per method, the best value of each column in bold; one table per measure.

    Parameters
    ----------
    comparison : what `comparison` returned.
    width : columns of the terminal, >= 1; columns that do not fit go into another table below.
    """
    from rich.console import Group

    said: set[str] = set()
    shown: list[Table | str] = []
    for sheet in sheets(comparison):
        # The sentences take the width of the table, and that of the accuracy is wide enough.
        for part in _folded(sheet, width):
            shown += [*([""] if shown else []), _rich_table(part, said, 60 if shown else None)]
    return Group(*shown)


def _folded(sheet: Sheet, width: int) -> list[Sheet]:
    """The table; if it is wider than the terminal, several tables with some of the columns each."""
    if sheet.narrow:  # its names are folded
        return [sheet]
    names = max(len("method"), *(len(name) for name, _ in sheet.grid.rows))
    blocks: list[list[int]] = [[]]
    free = room = width - names - 2  # an edge on either side
    for k, title in enumerate(sheet.grid.titles):
        cells = [text for _, row in sheet.grid.rows for text in (row[k].mean, f"±{row[k].std}")]
        need = 1 + max(6, len(title), *map(len, cells))
        if blocks[-1] and need > free:
            blocks.append([])
            free = room
        blocks[-1].append(k)
        free -= need
    parts = [
        replace(
            sheet,
            grid=Grid(
                tuple(sheet.grid.titles[k] for k in block),
                tuple((name, tuple(row[k] for k in block)) for name, row in sheet.grid.rows),
            ),
            caption=sheet.caption if block is blocks[0] else "",
            explanations=(),
            notes=(),
            test=(),
            differences=(),
        )
        for block in blocks
    ]
    # The sentences go below the last part.
    last = replace(sheet, caption=parts[-1].caption, grid=parts[-1].grid)
    return [*parts[:-1], last]


def _rich_table(sheet: Sheet, said: set[str], min_width: int | None) -> Table:
    """One table. Sentences that were `said` below another table are left out; the others are added to `said`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0),
        title=Text(sheet.caption),
        title_justify="left",
        title_style="italic",
        min_width=min_width,
    )
    sentences = [s for s in (*sheet.sentences, *sheet.test) if s not in said]
    said.update(sentences)
    table.caption = Text("\n".join([*sentences, *sheet.differences]))
    table.caption_justify = "left"
    table.add_column("method", no_wrap=not sheet.narrow, overflow="fold" if sheet.narrow else "ellipsis")
    for title in sheet.grid.titles:
        name, width = (sheet.narrow_titles.get(title, title), 4) if sheet.narrow else (title, 6)
        table.add_column(Text(name), justify="right", no_wrap=True, min_width=width)
    for name, cells in sheet.grid.rows:
        texts = []
        for cell in cells:
            text = Text(cell.mean, style="bold green" if cell.best else "")
            text.append(f"\n±{cell.std}" if cell.std else "", style="not bold dim default")
            texts.append(text)
        table.add_row(Text(name), *texts)
    return table


def markdown(comparison: Numbers) -> str:
    """A comparison as Markdown, a table per measure: the best of each column in bold, differences in a list below.

    Parameters
    ----------
    comparison : what `comparison` returned.
    """
    return "\n".join(map(_markdown, sheets(comparison)))


def _markdown(sheet: Sheet) -> str:
    titles, rows = sheet.grid

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [sheet.caption, "", row(["method", *titles]), "|---|" + "---:|" * len(titles)]
    lines += [row([name, *(f"**{cell.text}**" if cell.best else cell.text for cell in cells)]) for name, cells in rows]
    notes = [*sheet.sentences, *sheet.test, *sheet.differences]
    lines += ["", *(f"- {text}" for text in notes)]
    return "\n".join(lines).rstrip() + "\n"


def latex(comparison: Numbers) -> str:
    """A comparison in LaTeX for the package booktabs: a `table` per measure, the best value of each column in bold."""
    return "\n".join(map(latex_sheet, sheets(comparison)))


def latex_sheet(sheet: Sheet) -> str:
    """One table in LaTeX, for the package booktabs.

    Parameters
    ----------
    sheet : the table.
    """
    titles, rows = sheet.grid

    def entry(cell: Cell) -> str:
        mean = tex(cell.mean)
        mean = rf"\textbf{{{mean}}}" if cell.best else mean
        return rf"{mean}\,{{\scriptsize$\pm$\,{cell.std}}}" if cell.std else mean

    body = [" & ".join([tex(name), *map(entry, cells)]) + r" \\" for name, cells in rows]
    text = " ".join([sheet.caption, *sheet.sentences])
    comments = [*sheet.test, *sheet.differences]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{tex(text)}}}",
            rf"  \begin{{tabular}}{{l{'r' * len(titles)}}}",
            r"    \toprule",
            "    " + " & ".join([sheet.head, *map(tex, titles)]) + r" \\",
            r"    \midrule",
            *("    " + line for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            *("% " + " ".join(comment.split()) for comment in comments),
            "",
        ]
    )


def tex(text: str) -> str:
    """Text for LaTeX, with what it reads as something else escaped.

    Parameters
    ----------
    text : plain text.
    """
    special = {character: "\\" + character for character in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "\u00a0": "~",
        "₀": "$_0$",
        "²": "$^2$",
        "×": r"$\times$",
        "†": r"$\dagger$",
    }
    return "".join(special.get(character, character) for character in text)
