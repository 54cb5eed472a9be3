"""A page: a title, the answer, and sections of texts, tables and pictures; its writers in HTML, Markdown, LaTeX and CSV."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from equipoise.report.formatting import Cell, Grid, Rows, grid_of
from equipoise.report.layout import Sheet
from equipoise.system.files import write_atomically
from equipoise.system.text import csv_text, markdown as escaped, visible

if TYPE_CHECKING:
    from jinja2 import Template

    from equipoise.records.history import History
    from equipoise.report.answer import Panel

ENDS: Final = re.compile(r"(?<=[+,(=])")  # where a line of a name may end
ROWS: Final = 6  # of the first figure and table; more are folded
SHOWN: Final = "shown"  # the name of a section in words, which is above the tables in LaTeX
SPECIAL: Final = str.maketrans(  # what LaTeX reads as something else
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": "$<$", ">": "$>$", "±": r"$\pm$", "≈": r"$\approx$", "×": r"$\times$", "†": r"$\dagger$"}
    | {"−": "$-$", "–": "--", "\u00a0": "~", "₀": "$_0$", "²": "$^2$"}
)


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
    sheets : the tables for a paper or the terminal, if they are not those of the sections.
    names : by method the name that papers print.
    numbers : the lines of its CSV file, titles first, if these are not the cells of the tables.
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
    sheets: Sequence[Sheet] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[Collection[object]] = ()

    @property
    def tables(self) -> Sequence[Sheet]:
        """The tables for a paper or the terminal, each with the sentences of its section."""
        return self.sheets or [
            Sheet(x.name, x.title, f"{x.title}.", table.grid, bullets_of(x), prose=table.kind == "settings", head=table.head)
            for section in self.sections for x in (section, *section.parts) for table in tables_of(x)
        ]  # fmt: skip

    def html(self) -> str:
        """One HTML file that needs nothing else."""
        return _template().render(page=self, rows=ROWS, style=_file("page.css"), script=_file("page.js"))

    def markdown(self) -> str:
        """The page in Markdown, without its figures."""
        answer = [*map(Text, filter(None, (" · ".join(self.facts), self.headline))), *self.first, Bullets(self.notices)]
        lines = [f"# {escaped(self.title)}", "", *in_markdown(answer)]
        for section in self.sections:
            lines += [f"## {escaped(section.title)}", "", *in_markdown(section.blocks)]
            for part in section.parts:
                lines += [f"### {escaped(part.title)}", "", *in_markdown(part.blocks)]
        return "\n".join([*lines, self.footer, ""])

    def latex(self) -> str:
        """The tables in LaTeX for the package booktabs, below what they show in words; wide ones fit a page turned on its side."""
        texts = [text for section in self.sections if section.name == SHOWN for text in texts_of(section)]
        comments = (f"% {text}" for text in ("needs the package booktabs", *texts))
        return "\n".join([*comments, *(latex_sheet(sheet, self.names) for sheet in self.tables)])

    def csv(self) -> str:
        """The numbers for a program: by default a line per cell of the tables."""
        rows = [(x.name, name, zip(x.grid.titles, row, strict=True)) for x in self.tables for name, row in x.grid.rows]
        cells = [(sheet, name, title, x.mean, x.half or x.ends) for sheet, name, row in rows for title, x in row]
        return csv_text(self.numbers or [("table", "row", "column", "number", "interval"), *cells])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, atomically; return its path, whose suffix .md, .tex or .csv chooses the form; else it is HTML."""
        forms = {".md": self.markdown, ".tex": self.latex, ".csv": self.csv}
        return write_atomically(Path(path), forms.get(Path(path).suffix, self.html)())


def made_with(versions: Iterable[tuple[str, str]]) -> str:
    """Packages and their versions in a line, for the foot of a page."""
    return " · ".join(f"{package} {version}" for package, version in versions)


def tables_of(section: Section) -> list[Table]:
    """The tables of a section."""
    return [block for block in section.blocks if isinstance(block, Table)]


def bullets_of(section: Section) -> list[str]:
    """The sentences of its lists."""
    return [text for block in section.blocks if isinstance(block, Bullets) for text in block.texts]


def texts_of(section: Section) -> list[str]:
    """Its paragraphs and sentences."""
    return [*(block.text for block in section.blocks if isinstance(block, Text)), *bullets_of(section)]


def of_texts(rows: Rows, titles: Iterable[str], head: str, heading: str = "", kind: str = "settings") -> Table:
    """A table of texts."""
    return Table(grid_of(rows, titles), heading, head, kind)


@cache
def _file(name: str) -> str:
    return resources.files("equipoise.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    """The template of all pages, compiled once: that takes longer than to fill it in."""
    from jinja2 import Environment, StrictUndefined

    functions = {"pieces": ENDS.split, "form": lambda block: type(block).__name__, "address": _address}
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_without_signs
    ).from_string(_file("page.html.j2"), globals=functions)


def _address(link: str) -> str:
    """A place on the page, or a file next to it, whose name nothing is read from."""
    return link if link.startswith("#") else quote(link)


def _without_signs(value: object) -> object:
    """What a page shows of a value: text without signs that steer; markup and all else as it is."""
    return visible(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


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


def latex_sheet(sheet: Sheet, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """One table in LaTeX, for the package booktabs: a caption of one sentence, a label, and the notes below the table.

    Methods are called as in ``names``, where these have them.
    """
    titles, rows = sheet.grid

    def entry(cell: Cell) -> str:
        mean = tex(cell.mean)
        mean = rf"\textbf{{{mean}}}" if cell.best else mean
        beside = rf"$\pm$\,{cell.half}" if cell.half else tex(cell.ends)
        return rf"{mean}\,{{\scriptsize{beside}}}" if beside else mean

    of_methods = sheet.head.startswith("Method")
    body = [[tex(_printed(name, names) if of_methods else name), *map(entry, cells)] for name, cells in rows]
    label = re.sub(r"[^\w.-]+", "-", sheet.name)
    caption, _, more = sheet.caption.partition(". ")
    texts = [more, *sheet.sentences]
    notes = " ".join(text for text in texts if "--" not in text).strip()  # options are for who runs it
    comments = [text for text in texts if "--" in text]
    head, form = [sheet.head, *(tex(names.get(title, title)) for title in titles)], "l" + "r" * len(titles)
    if sheet.prose:  # which would leave the page
        form = rf"p{{{0.9 / len(head):.2f}\textwidth}}" * len(head)
    kind, size = ("table*", r"\scriptsize") if sheet.prose else ("table", r"\centering")
    first, *others = (f"    {' & '.join(row)} \\\\" for row in (head, *body))
    return "\n".join([
        rf"\begin{{{kind}}}",
        f"  {size}",
        rf"  \caption{{{tex(caption.removesuffix('.'))}.}}",
        rf"  \label{{tab:{label}}}",
        rf"  \begin{{tabular}}{{{form}}}",
        r"    \toprule", first, r"    \midrule", *others, r"    \bottomrule",
        r"  \end{tabular}",
        *[rf"  \par\smallskip\footnotesize {tex(notes)}"] * bool(notes),
        rf"\end{{{kind}}}",
        *("% " + " ".join(text.split()) for text in (*comments, *sheet.test, *sheet.differences)),
        "",
    ])  # fmt: skip


def printed_names(histories: Iterable[History]) -> dict[str, str]:
    """By label of a method the name that papers print; none of a label that the user gave, and of runs that do not record it."""
    return {run.label: run.meta["printed"] for run in histories if run.meta.get("printed") and run.label == run.method}


def _printed(row: str, names: Mapping[str, str]) -> str:
    """The name of a row with that of its method as papers print it; what follows the method stays."""
    method = max((name for name in names if re.match(rf"{re.escape(name)}(,? |$)", row)), key=len, default="")
    return names.get(method, "") + row.removeprefix(method)


def tex(text: str) -> str:
    """Text for LaTeX, with what it reads as something else escaped."""
    return visible(text).translate(SPECIAL)
