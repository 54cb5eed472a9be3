"""Text that comes from others: names in data, in records of old runs, of sites, made harmless where it is read and shown."""

import ast
import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Self

LONGEST = 200  # characters of a name
JOINERS = "\u200c\u200d"  # of letters and emoji, in honest words of many languages
# Unicode's classes of controls, formats (direction, invisible), halves, separators.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class Said(str):
    """A sentence with a key, by which pages choose what they show: nothing decides by its words."""

    key: str

    def __new__(cls, text: str, key: str = "") -> Self:
        """A text, and its key."""
        said = super().__new__(cls, text)
        said.key = key
        return said


def visible(text: object, *, lines: bool = False) -> str:
    r"""Text in which every sign that steers a terminal or the direction of reading is written out, ``\x1b`` for ESC.

    Parameters
    ----------
    text : what is shown.
    lines : leave line ends and tabulators as they are.
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    kept = JOINERS + "\n\t" * lines
    return "".join(
        c
        if c in kept or unicodedata.category(c) not in HIDDEN
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in shown
    )


def name(text: object) -> str:
    """A name for records and pages: :func:`visible`, of at most :data:`LONGEST` characters."""
    shown = visible(text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def plural(n: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{n} {noun}{'s' if n != 1 else ''}"


def markdown(text: str) -> str:
    """Text in a Markdown page or table, with what would begin code, a link, HTML or another cell escaped."""
    return re.sub(r"[\\|`]|<(?=[A-Za-z/!?])|\](?=[(\[:])", r"\\\g<0>", visible(text))


def cell(value: object) -> object:
    """A cell of a CSV file: text that a spreadsheet would run as a formula begins with an apostrophe; numbers stay numbers."""
    if not isinstance(value, str) or len(value) < 2 or value[0] not in "=+-@\t\r":
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value


def formulas(values: Iterable[object]) -> list[str]:
    """A note on cells of a CSV file that a spreadsheet would run as formulas; none if it has no such cells."""
    risky = [value for value in values if cell(value) != value]
    advice = "A spreadsheet may run it as a formula: import the file with its columns as text."
    return [f"{plural(len(risky), 'cell')} of the file: {value!r}, for example. {advice}" for value in risky[:1]]


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as a CSV file has them."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def read_value(text: str) -> object:
    """Read a hyper-parameter's value: number, true or false, none, or a word."""
    word = text.strip()
    words = {"true": True, "false": False, "none": None, "inf": math.inf}
    if word.lower() in words:
        return words[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two of signs or brackets without end
        return word
