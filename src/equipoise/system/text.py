"""Text that comes from others: names in data, in records of old runs, of sites, made harmless where it is read and shown."""

import ast
import csv
import math
import re
import unicodedata
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Self

LONGEST = 200  # characters of a name
JOINERS = "\u200c\u200d"  # of letters and emoji, in honest words of many languages
# Unicode's classes of controls, formats (direction, invisible), halves, separators.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
MARK = "\u02bc"  # looks like an apostrophe; in words it is between letters, and no data have it before these signs
_ENDS = ";|\t-\r\x1c-\x1e\x85\u2028\u2029"  # of cells and lines, in one spreadsheet or another
_SIGNS = "[-=+@\uff1d\uff0b\uff0d\uff20]"
FORMULA = re.compile(rf"(^|[{_ENDS}])((?:[^\S{_ENDS}]|[\"\ufeff{MARK}])*+)({_SIGNS})")
BEGIN = re.compile(rf"{_SIGNS}(?<![^,;|\s\"\ufeff{MARK}].)")  # of every formula, and of some that are none


class Said(str):
    """A sentence with a key, by which pages choose what they show: nothing decides by its words."""

    key: str

    def __new__(cls, text: str, key: str = "") -> Self:
        """A text, and its key."""
        sentence = super().__new__(cls, text)
        sentence.key = key
        return sentence


def key_of(text: str) -> str:
    """The key of a sentence, empty if it has none."""
    return str(getattr(text, "key", ""))


def visible(text: object, *, lines: bool = False) -> str:
    r"""Text in which every sign that steers a terminal or the direction of reading is written out, ``\x1b`` for ESC.

    Parameters
    ----------
    text : what is shown.
    lines : leave line ends and tabulators as they are.
    """
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    steering = [c for c in {*plain} - {*JOINERS, *("\n\t" * lines)} if unicodedata.category(c) in HIDDEN]
    return plain.translate({ord(c): c.encode("unicode_escape", "surrogatepass").decode() for c in steering})


def name(text: object) -> str:
    """A name for records and pages: :func:`visible`, of at most :data:`LONGEST` characters."""
    plain = visible(text)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"


def noun(word: str, n: int) -> str:
    """`seed` for one, `seeds` for any other number."""
    return word if n == 1 else f"{word}s"


def plural(n: int, word: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{n} {noun(word, n)}"


def span(*ends: object) -> str:
    """From the lowest to the highest: `3 to 5`; `3` where both are."""
    return " to ".join(dict.fromkeys(map(str, ends)))


def markdown(text: str) -> str:
    """Text in a Markdown page or table, with what would begin code, a link, HTML or another cell escaped."""
    return re.sub(r"[\\|`]|<(?=[A-Za-z/!?])|\](?=[(\[:])", r"\\\g<0>", visible(text))


def cell(value: object, *, first: bool = False) -> object:
    """A cell of a CSV file in which no spreadsheet finds a formula, wherever it divides the line; :func:`plain_cell` reads it again.

    :data:`MARK` precedes a sign that begins a formula, where a separator or the end of a line may begin a cell. Numbers, and signs
    alone, stay: but not those that are ``first`` in a line, as with another separator the next cells are part of them.
    """
    if not isinstance(value, str) or (not first and (len(value) == 1 or _is_number(value))):
        return value
    return FORMULA.sub(rf"\1\2{MARK}\3", value)


def plain_cell(text: str) -> str:
    """The text of which :func:`cell` made this one."""
    return FORMULA.sub(lambda m: f"{m[1]}{m[2].removesuffix(MARK)}{m[3]}", text) if MARK in text else text


def _is_number(text: str) -> bool:
    """Whether a text is a number, without blanks around it."""
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text


def formulas(values: Iterable[object]) -> list[str]:
    """A note on cells of a CSV file that a spreadsheet would run as formulas; none if it has no such cells."""
    if (risky := next((value for value in values if cell(value) != value), None)) is None:
        return []
    return [
        f"A spreadsheet would run cells of the file as formulas, such as {risky!r}: they have {MARK} before the sign, and Equipoise reads "
        "them without it."
    ]


def csv_text(rows: Collection[Collection[object]]) -> str:
    """Rows as a CSV file has them, without formulas."""
    plain = _written(rows)
    if not BEGIN.search(plain):  # which takes less time than a look at every cell
        return plain
    return _written([cell(value, first=not k) for k, value in enumerate(row)] for row in rows)


def _written(rows: Iterable[Iterable[object]]) -> str:
    lines = list[str]()
    csv.writer(SimpleNamespace(write=lines.append)).writerows(rows)  # quotes both signs in which its lines end
    return "".join(f"{line[:-2]}\n" for line in lines)


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
