"""A Markdown extension for the docstrings of the package: sections in numpy's form become tables, LaTeX becomes MathML, references become links.

A formula needs no script in the browser, and the pages need no network.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

SECTION = re.compile(r"^(Parameters|Attributes|Raises|Returns|Yields)\n-{3,}\n", flags=re.M)
FORMULA = re.compile(r"^\.\. math::(.*(?:\n +.*)*)", flags=re.M)


@dataclass(frozen=True)
class Section:
    """One section of a docstring: its title, the names with their meanings (none in a section without names), the text."""

    title: str
    items: dict[str, str]
    text: str = ""


def parts(docstring: str) -> tuple[str, list[Section], str]:
    """A docstring's text before its sections, the sections, and the text after the last one.

    Parameters
    ----------
    docstring : as it stands in the source.
    """
    before, *rest = SECTION.split(inspect.cleandoc(docstring))
    sections, after = [], []
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        # a section ends at the first blank line that no indented line follows
        inside, *outside = re.split(r"\n[ \t]*\n(?=\S)", body.rstrip(), maxsplit=1)
        after += outside
        sections.append(Section(title, {}, inside) if title in ("Returns", "Yields") else Section(title, items(inside)))
    if not sections and (labelled := re.search(r"\n\n(?=[A-Z][a-z]+(?: [a-z]+)?: )", before)):
        before, after = before[: labelled.start()], [before[labelled.end() :]]
    return before.rstrip(), sections, "\n\n".join(after)


def items(text: str) -> dict[str, str]:
    """The names of a section and their meanings, written ``name : meaning`` or as a name above an indented meaning."""
    found = {}
    for entry in re.split(r"\n(?=\S)", text):
        head, _, tail = entry.partition("\n")
        name, _, first = head.partition(" : ")
        found[name.strip()] = " ".join(f"{first} {tail}".split())
    return found


def table(section: Section) -> str:
    """A section as Markdown."""
    if not section.items:
        return f"**{section.title}:** {section.text}"
    rows = [
        f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {meaning} |"
        for names, meaning in section.items.items()
    ]
    return "\n".join([f"| {section.title.lower()} | |", "|---|---|", *rows])


def to_markdown(docstring: str) -> str:
    """A docstring with its sections as tables; formulas and references are left to the extension."""
    before, sections, after = parts(docstring)
    return "\n\n".join(filter(None, [before, *map(table, sections), after]))


def mathml(latex: str, display: str = "inline") -> str:
    """A formula in LaTeX as MathML.

    Raises
    ------
    ValueError : what cannot be converted.
    """
    try:
        found = convert(re.sub(r"\\[Bb]igg?[lr]?(?![A-Za-z])", "", " ".join(latex.split())), display=display)
    except Exception as error:
        raise ValueError(f"cannot convert the formula {latex!r} to MathML: {error!r}") from error
    if "\\" in found:
        raise ValueError(f"latex2mathml does not know a command in the formula {latex!r}: it gives {found}.")
    return found


def displayed(latex: str) -> str:
    r"""A formula of its own, as one block for each part between which it has ``\qquad``, so that lines may break there."""
    blocks = "".join(mathml(part, "block") for part in re.split(r"\\qquad", latex) if part.strip())
    return f'<div class="formula">{blocks}</div>'


class Sections(Preprocessor):
    """Sections to tables, and formulas of their own to MathML."""

    def run(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        text = to_markdown(text) if SECTION.search(text) else text
        return FORMULA.sub(lambda m: f"\n{self.md.htmlStash.store(displayed(m[1]))}\n", text).split("\n")


class Role(InlineProcessor):
    """``:math:`` to MathML, and ``:func:``, ``:class:`` and their like to links, where the target is on a page."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[ElementTree.Element | str, int, int]:  # noqa: N802
        role, text = m[1], m[2]
        if role == "math":
            return self.md.htmlStash.store(mathml(text)), m.start(), m.end()
        link = ElementTree.Element("autoref", {"optional": "", "identifier": text.lstrip("~")})
        ElementTree.SubElement(link, "code").text = text.rpartition(".")[2]
        return link, m.start(), m.end()


class Docstrings(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.preprocessors.register(Sections(md), "docstring sections", 24)  # after code blocks have been set aside
        md.inlinePatterns.register(Role(r":(math|func|meth|class|attr|mod|data):`([^`]+)`", md), "docstring roles", 195)
