"""A page: a title, the answer, and sections of texts, tables and pictures; its writers in HTML and Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from equipoise.report.formatting import Cell, Grid
from equipoise.system.text import markdown as escaped, visible

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
    The rows of one with a `name` have the ids NAME-0, NAME-1, and so on.
    """

    grid: Grid
    heading: str = ""
    head: str = "Method"
    kind: str = "numbers"
    totals: int = 0
    name: str = ""


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
    """Lines to copy, in a language."""

    lines: Sequence[str]
    language: str = ""


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
    panels, legend : the figure that shows it, none where there is nothing to compare; and what its marks are.
    first : further blocks of the answer, below the figure.
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
    legend: str = ""
    first: Sequence[Block] = ()
    notices: Sequence[str] = ()
    links: Sequence[Link] = ()
    sections: Sequence[Section] = ()
    folded: bool = False
    methods: Sequence[str] = ()
    terms: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    footer: str = ""
    narrow: bool = False


def tables_of(section: Section) -> list[Table]:
    """The tables of a section."""
    return [block for block in section.blocks if isinstance(block, Table)]


def bullets_of(section: Section) -> list[str]:
    """The sentences of its lists."""
    return [text for block in section.blocks if isinstance(block, Bullets) for text in block.texts]


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
    ).from_string(
        _file(name), globals={"pieces": ENDS.split, "form": lambda block: type(block).__name__, "address": _address}
    )


def _address(link: str) -> str:
    """A place on the page, or a file next to it, whose name nothing is read from."""
    return link if link.startswith("#") else quote(link)


def shown(value: object) -> object:
    """What a page shows of a value: text without signs that steer; markup and all else as it is."""
    return visible(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


def markdown(page: Page) -> str:
    """The page in Markdown, without its figures."""
    answer = [*map(Text, filter(None, (" · ".join(page.facts), page.headline))), *page.first, Bullets(page.notices)]
    lines = [f"# {escaped(page.title)}", "", *in_markdown(answer)]
    for section in page.sections:
        lines += [f"## {escaped(section.title)}", "", *in_markdown(section.blocks)]
        for part in section.parts:
            lines += [f"### {escaped(part.title)}", "", *in_markdown(part.blocks)]
    return "\n".join([*lines, page.footer, ""])


def in_markdown(blocks: Sequence[Block]) -> list[str]:
    """The lines of blocks but figures, an empty one behind each: in bold what is told apart as best."""
    lines: list[str] = []
    for block in blocks:
        match block:
            case Text(text, kind):
                lines += [f"**{escaped(text)}**" if kind == "note" else escaped(text), ""]
            case Bullets(texts) if texts:
                lines += [*(f"- {escaped(text)}" for text in texts), ""]
            case Table(grid, heading, head, kind):
                lines += [escaped(heading), ""] * bool(heading)
                lines += [f"| {' | '.join(map(escaped, (head, *grid.titles)))} |"]
                lines += [f"|---|{('---|' if kind == 'settings' else '---:|') * len(grid.titles)}"]
                for name, cells in grid.rows:
                    row = [f"**{escaped(cell.text)}**" if cell.best else escaped(cell.text) for cell in cells]
                    lines += [f"| {' | '.join((escaped(name), *row))} |"]
                lines += [""]
            case Code(code, language):
                lines += [f"```{language}", *code, "```", ""]
            case Link(text, address):
                lines += [f"[{escaped(text)}]({_address(address)})", ""]
    return lines
