"""Tables of results in docs/data, a CSV file each, and the short forms of them that pages show."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

DATA = Path(__file__).parents[1] / "docs" / "data"
MARKS = {"holds": "✓", "does not hold here": "✗", "cannot be told": "?"}

Rows = Sequence[Sequence[str]]  # the first has the titles


def place(name: str) -> Path:
    """The file of a table."""
    return DATA / f"{re.sub(r'[^a-z0-9]+', '-', name)}.csv"


def stored(name: str) -> list[list[str]]:
    """The rows of a table, the titles first."""
    with place(name).open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


def store(name: str, rows: Iterable[Iterable[str]]) -> None:
    """Write a table."""
    with place(name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def without_rule(lines: Iterable[str]) -> list[list[str]]:
    """The rows of the lines of a Markdown table."""
    head, _, *rest = lines
    return [cells(line) for line in (head, *rest)]


def grid(rows: Iterable[Iterable[str]], align: str = "---:|") -> Iterator[str]:
    """The lines of a Markdown table; ``align`` is for all columns except the first."""
    for number, row in enumerate(rows):
        texts = [*row]
        yield f"| {' | '.join(texts)} |"
        if not number:
            yield f"|---|{align * (len(texts) - 1)}"


def selected(rows: Rows, titles: Sequence[str]) -> Iterator[list[str]]:
    """Some columns, in this order."""
    places = [rows[0].index(title) for title in titles]
    yield from ([row[place] for place in places] for row in rows)


def pivot(entries: Iterable[tuple[str, str, str]], corner: str) -> Iterator[list[str]]:
    """A table of entries (row, column, cell), in the order in which rows and columns first occur; a missing cell is empty.

    Raises
    ------
    ValueError : two entries have the same place.
    """
    table: dict[tuple[str, str], str] = {}
    for row, column, cell in entries:
        if (row, column) in table:
            raise ValueError(f"Expected one entry of {row} in {column}; found two.")
        table[row, column] = cell
    columns = [*dict.fromkeys(column for _, column in table)]
    yield [corner, *columns]
    for row in dict.fromkeys(row for row, _ in table):
        yield [row, *(table.get((row, column), "") for column in columns)]


def axes(ran: str, where: str) -> dict[str, str]:
    """What is compared, by what measure, and where, of the cell "A − B, MEASURE: DIRECTION" of a table of claims."""
    row, _, rest = ran.partition(" − ")
    than, _, measure = rest.partition(", ")
    return {"what": f"{row} − {than}", "measure": measure.partition(" (")[0], "where": where}


def verdicts(rows: Rows, down: Sequence[str], across: Sequence[str]) -> Iterator[list[str]]:
    """A table of claims in few rows: the mark of the verdict, the difference, and the number of seeds.

    ``down`` and ``across`` are the keys of :func:`axes` that make rows and columns.
    """
    claims = [(axes(ran, where), difference, seeds, verdict) for _, where, ran, difference, seeds, verdict in rows[1:]]
    return pivot(
        (
            (
                ", ".join(key[name] for name in down),
                ", ".join(key[name] for name in across),
                f"{MARKS[verdict.partition(':')[0]]} {difference} ({seeds})",
            )
            for key, difference, seeds, verdict in claims
        ),
        "",
    )
