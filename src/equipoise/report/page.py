"""A page: a title, the answer, and sections of texts, tables and pictures, which writers turn into HTML or Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

from equipoise.report.formatting import Cell, Grid
from equipoise.system.text import visible

if TYPE_CHECKING:
    from jinja2 import Template

    from equipoise.report.answer import Panel

ENDS: Final = re.compile(r"(?<=[+,(=])")  # where a line of a name may end
ROWS: Final = 6  # of the first figure and table; more are folded


class Text(NamedTuple):
    """A paragraph; its `kind` is "", "caption", "note" or "heading"."""

    text: str
    kind: str = ""


class Bullets(NamedTuple):
    """Sentences, a line each."""

    texts: Sequence[str]


class Table(NamedTuple):
    """A table with a heading, which is empty where the section has said it.

    `kind` is "numbers", "lines" (cells are a number and a line below it) or "settings" (texts). The first ``totals`` columns sum up others.
    """

    grid: Grid
    heading: str = ""
    head: str = "Method"
    kind: str = "numbers"
    totals: int = 0


class Picture(NamedTuple):
    """A figure in SVG, with a heading and a caption."""

    name: str
    heading: str
    svg: str
    caption: str = ""


class Pictures(NamedTuple):
    """Figures side by side."""

    pictures: Sequence[Picture]


class Code(NamedTuple):
    """Lines to copy."""

    lines: Sequence[str]


class Link(NamedTuple):
    """A sentence that leads to another page."""

    text: str
    address: str


Block = Text | Bullets | Table | Pictures | Code | Link


class Section(NamedTuple):
    """A part of a page below its heading; ``parts`` have headings of their own."""

    name: str
    title: str
    blocks: Sequence[Block] = ()
    parts: Sequence[Section] = ()


@dataclass(frozen=True)
class Page:
    """A page that needs nothing else.

    Parameters
    ----------
    kind : what it is, above the title.
    title : in the reader's words.
    facts : how much it is about, in a line.
    headline : the answer, in a sentence.
    panels, table, legend : the figure and the table that show it, none where there is nothing to compare; and what their marks are.
    notices : what to be careful with.
    links : to other pages.
    sections : the evidence; ``folded`` until the reader asks.
    methods : which can be switched off in all figures at once.
    terms : by title of a column the id of its explanation, and the explanation in a line.
    footer : by what it was made.
    narrow : for reading and printing rather than looking.
    """

    title: str
    kind: str = ""
    facts: Sequence[str] = ()
    headline: str = ""
    panels: Sequence[Panel] = ()
    table: Grid | None = None
    legend: str = ""
    notices: Sequence[str] = ()
    links: Sequence[Link] = ()
    sections: Sequence[Section] = ()
    folded: bool = False
    methods: Sequence[str] = ()
    terms: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    footer: str = ""
    narrow: bool = False


def texts(rows: Sequence[tuple[str, Sequence[str]]], titles: Sequence[str]) -> Grid:
    """A table of texts."""
    return Grid((*titles,), tuple((name, tuple(map(Cell, cells))) for name, cells in rows))


def html(page: Page) -> str:
    """The page as one HTML file that needs nothing else."""
    return template("page.html.j2").render(page=page, rows=ROWS, style=_file("page.css"), script=_file("page.js"))


@cache
def _file(name: str) -> str:
    return resources.files("equipoise.report").joinpath(name).read_text(encoding="utf-8")


@cache
def template(name: str) -> Template:
    """A page's template, compiled once: that takes longer than to fill it in."""
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=shown
    ).from_string(_file(name), globals={"pieces": ENDS.split, "form": lambda block: type(block).__name__})


def shown(value: object) -> object:
    """What a page shows of a value: text without signs that steer; markup and all else as it is."""
    return visible(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value
