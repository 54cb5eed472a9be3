"""The content of a table: its cells and rows."""

from collections.abc import Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """One entry of a table: a number, half of its 95 % interval, the difference to the first method, whether it is the best.

    `interval` are the ends of the 95 % interval of the difference, where it has one; `ends` is that of the number itself, as text.
    """

    mean: str
    half: str = ""
    difference: str = ""
    best: bool = False
    interval: tuple[str, str] | None = None
    ends: str = ""

    @property
    def text(self) -> str:
        """Number and half of its interval, or its ends, in one line."""
        return f"{self.mean} ±{self.half}" if self.half else f"{self.mean} {self.ends}" if self.ends else self.mean


class Grid(NamedTuple):
    """Titles of the columns, and name and cells of every row."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


class Section(NamedTuple):
    """A heading with paragraphs, then tables, sentences below them, and a figure, which is SVG, with its caption.

    It has one table, whose names have the title `head`, or several with their headings; `name` is its id on a page.
    """

    title: str
    paragraphs: Sequence[str]
    grid: Grid | None = None
    head: str = ""
    below: Sequence[str] = ()
    figure: str = ""
    caption: str = ""
    tables: Sequence[tuple[str, Grid]] = ()
    name: str = ""
