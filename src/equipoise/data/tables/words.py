"""Cells as text: which are missing, how numbers are written, and what classes, clients and groups are called."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.options import LEAVE_OUT, THOUSANDS, listed, option
from equipoise.system.grouping import grouped

# What programs write where there is nothing, in small letters: databases, spreadsheets, R, pandas, SAS, UCI, MATLAB, JavaScript.
MISSING = {
    *("", "-", "--", "---", "–", "—", ".", "..", "...", "?", "??", "*", "na", "n/a", "n.a.", "n.a", "<na>", "#n/a", "#n/a n/a", "#na"),
    *("nan", "-nan", "+nan", "nan()", "nat", "null", "(null)", "<null>", "#null!", "none", "(none)", "<none>", "nil", r"\n", "undefined"),
    *("1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind", "#value!", "#ref!", "#div/0!", "#name?", "#num!"),
}  # fmt: skip
FIRST = 3  # places in a sentence
# a number as programs write floating-point ones
WHOLE = re.compile(r"[+-]?\d{1,300}\.\d*(?:[eE][+-]?\d{1,3})?", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d++\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
EXACT = 2.0**53  # from which on neighbouring whole numbers are one floating-point number
EXPONENT = re.compile(r"[+-]?\d+\.\d*[eE][+-]?\d{1,4}", re.ASCII)  # as programs write large floating-point numbers
EXPONENTS = re.compile(r"[eE][+-]?\d+", re.ASCII)
COMMAS = re.compile(r"[+-]?\d+(?:,\d+)?", re.ASCII)
LARGEST = 3e38  # a larger number is infinite in float32
PAIRS = (("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y"), ("0", "1"))  # words for 0 and for 1
UNIT = re.compile(r"[\W\d_]*\d\s*(°?[^\W\d_]\D*\d?)")  # 4 °C or 24 kg/m2
MULTIPLES = ("k", "K", "M", "bn", "Tsd", "Mio", "Mrd")  # of the number before them
PAIR = re.compile(r"\d{3}\D\d{3}", re.ASCII)  # two codes, or a number of thousands
UNITS = 3  # of a column, at most
LONGEST = 1000  # characters of a name that is compared with others, as the time may grow with their square
LONG = re.compile(r"[+-]?\d{5}", re.ASCII)  # what a sign between thousands would divide
MISSING_CELLS = "missing"  # a kind of cells
UNNAMED = {  # what else to do about samples without a name
    "group": f" To keep these people apart: {option('unknown', 'unknown')}.",
    "label": f" To leave such rows of a table out: {option('unlabelled', LEAVE_OUT)}.",
}


def missing(word: str) -> bool:
    """Whether a cell says, in any capitals, that its value is missing."""
    return word.strip().casefold() in MISSING


@dataclass(frozen=True)
class Origin:
    """Where a column is from: ``what``, as ``t.csv, column label``, and the place of row k, as ``line 3``."""

    what: str
    at: Callable[[int], str]

    def places(self, rows: Sequence[int]) -> str:
        """The first places, and how many more there are."""
        more = len(rows) - FIRST
        return ", ".join(map(self.at, rows[:FIRST])) + f" and {more:,} more" * (more > 0)

    def of(self, codes: NDArray[np.int64], cells: Sequence[int]) -> str:
        """The places of the rows whose ``codes`` [n] are among those of some cells."""
        return self.places(np.flatnonzero(np.isin(codes, cells)).tolist())


@dataclass(frozen=True)
class Names:
    """Names of every sample, what is wrong with them, and what should be known of them, in sentences."""

    words: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_role(values: Iterable[Any], role: str, origin: Origin, not_missing: Sequence[str] = ()) -> Names:
    """What classes, clients or groups are called: text without blanks around it, one per sample, none of them missing.

    Where all labels are whole numbers that are written as floating-point ones, 1.0 as some programs write 1, they are the
    whole numbers. All other text stays as it is: 007 is not 07, and no digit of a long code is lost.

    Parameters
    ----------
    values : text, numbers, dates or what else tells them apart; ``None`` and NaN are missing.
    role : ``"client"``, ``"group"`` or ``"label"``, whose names are no measurements.
    origin : where they are from.
    not_missing : words of :data:`MISSING` that are names here, such as NA for Namibia.
    """
    texts, codes, large = _texts(values)
    words = [text.strip() for text in texts]
    lost = [k for k, word in enumerate(words) if missing(word) and word not in not_missing]
    measured = list[int]()
    if role == "label":
        words, measured = _labels(words, {*lost})
    problems = list[str]()
    if lost:
        examples, advice = _spelled([words[k] for k in lost], not_missing)
        problems.append(  # measurements have no names to keep
            f"{origin.what}: the {role} is missing in {np.isin(codes, lost).sum():,} of {len(codes):,} samples{examples}: {origin.of(codes, lost)}. "
            f"Fill it in, or remove the sample.{advice * (not measured)}{UNNAMED.get(role, '')}"
        )
    if large:
        number = f"the floating-point number {texts[large[0]].strip()} ({origin.of(codes, large)}), and of such numbers neighbours are the same"
        problems.append(f"{origin.what}: the {role} is {number}. Save names as whole numbers (int64) or as text.")
    if measured:
        problems.append(
            f"{origin.what}: the label is {words[measured[0]]} ({origin.of(codes, measured)}), and labels are classes: words or whole numbers. "
            'If they are numbers to predict: --task regression, in Python task="regression". Or divide measurements into classes first, such as low and high.'
        )
    same = same_numbers(words, names=True)
    for group in same:
        names = {*group}
        problems += [
            f"{origin.what}: the {role} is {whole} in some samples and {word} in others, which is one number. Write it the same way everywhere."
            for word in group
            if (whole := re.sub(r"\.0*$", "", word)) != word and whole in names
        ]
    spellings = grouped((word, text) for text, word in zip(texts, words, strict=True) if word)
    merged = [(word, cells) for word, cells in spellings.items() if len(cells) > 1][:FIRST]
    notes = [f"{origin.what}: {listed(map(repr, cells))} are read as {word!r}." for word, cells in merged]
    apart = "are kept apart, although they are one number or look the same"
    notes += [f"{origin.what}: {listed(map(repr, group))} {apart}." for group in same[:FIRST]]
    return Names(tuple(np.array(words, object)[codes].tolist()), tuple(problems), tuple(notes))


def _labels(words: list[str], lost: Set[int]) -> tuple[list[str], list[int]]:
    """The words of labels, whole numbers without a point if all that are present are such; and which of them are measurements."""
    present = [word for k, word in enumerate(words) if k not in lost]
    if present and all(WHOLE.fullmatch(word) and _whole(word) for word in present):
        return [word if k in lost else str(int(Decimal(word))) for k, word in enumerate(words)], []
    fractions = [k for k, word in enumerate(words) if NUMBER.fullmatch(word) and not _whole(word)]
    if not fractions and all(map(COMMAS.fullmatch, words)):  # 0,5 as much of Europe writes it
        fractions = [k for k, word in enumerate(words) if "," in word]
    return words, fractions


def _spelled(lost: Sequence[str], not_missing: Sequence[str]) -> tuple[str, str]:
    """How missing names are written, if they are, and what to do if that is a name."""
    if not (spelled := [word for word in lost if word]):
        return "", ""
    advice = f" If {spelled[0]} is a name: {option('not_missing', [*not_missing, spelled[0]])}."
    return f" ({listed(map(repr, spelled))}{' or nothing' * (len(spelled) < len(lost))})", advice


def _whole(word: str) -> bool:
    number = Decimal(word)
    return number == number.to_integral_value()


def _texts(values: Iterable[Any]) -> tuple[list[str], NDArray[np.int64], list[int]]:
    """The different cells as text; for every sample which of them is its own; and those in which neighbouring whole numbers are one."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufM":
        different, inverse = np.unique(values, return_inverse=True)
        codes = inverse.reshape(-1).astype(np.int64)
        if different.dtype.kind == "M":
            return np.datetime_as_string(different).tolist(), codes, []
        large: list[int] = []
        if different.dtype.kind == "f":
            limit = 2.0 ** (np.finfo(different.dtype).nmant + 1)
            large = np.flatnonzero(np.isfinite(different) & (np.abs(different) >= limit)).tolist()
        return [_text(cell) for cell in different.tolist()], codes, large
    number: dict[str, int] = {}
    cells = values.tolist() if isinstance(values, np.ndarray) else values
    codes = np.fromiter((number.setdefault(_text(cell), len(number)) for cell in cells), np.int64)
    texts = list(number)
    large = [k for k, text in enumerate(texts) if EXPONENT.fullmatch(text.strip()) and abs(float(text)) >= EXACT]
    return texts, codes, large


def _text(cell: Any) -> str:
    """One cell as text; ``None`` is empty, and NaN a word for what is missing."""
    if isinstance(cell, str):
        return cell
    if cell is None:
        return ""
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    if isinstance(cell, bytes):
        return cell.decode()
    if isinstance(cell, float | np.floating) and np.isfinite(cell) and abs(float(cell)) >= EXACT:
        return f"{cell:e}"
    return str(cell)


def twins(words: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Pairs of names that differ only in capital letters or spaces."""
    seen: dict[str, str] = {}
    for word in dict.fromkeys(words):
        key = " ".join(word.split()).casefold()
        if key in seen:
            yield seen[key], word
        seen[key] = word


def alike(where: str, words: Iterable[str], noun: str = "") -> Iterable[str]:
    """A sentence for every pair of names that differ only in capital letters or spaces."""
    for first, other in twins(words):
        pair = f"{noun} {first!r} and {noun} {other!r}" if noun else f"{first!r} and {other!r}"
        yield f"{where}: {pair} differ only in capital letters or spaces. Rename one if they are the same, or make the names differ more."


@dataclass(frozen=True)
class Signs:
    """How the numbers of a column are written: a sign between thousands, one before fractions, and a unit such as ``"%"``."""

    thousands: str = ""
    decimal: str = "."
    unit: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Of a number without its unit."""
        if not self.thousands:
            return re.compile(NUMBER.pattern.replace(r"\.", re.escape(self.decimal)), re.ASCII)
        between, before = re.escape(self.thousands), re.escape(self.decimal)
        return re.compile(rf"[+-]?(\d+|[1-9]\d{{0,2}}({between}\d{{3}})+)({before}\d+)?([eE][+-]?\d{{1,4}})?", re.ASCII)

    def bare(self, word: str) -> str:
        """A word without the unit, which it must have at one end; else nothing."""
        sign = word[:1] if self.unit and word[:1] in ("+", "-") else ""
        rest = word[len(sign) :]
        number = rest.removesuffix(self.unit) if rest.endswith(self.unit) else rest.removeprefix(self.unit)
        return sign + number.strip() if number != rest else "" if self.unit else word

    def number(self, word: str) -> float:
        """The number that a word is; NaN if it is none."""
        word = self.bare(word)
        if not self.pattern.fullmatch(word):
            return math.nan
        return float(word.replace(self.thousands, "").replace(self.decimal, "."))

    def numbers(self, words: Iterable[str], truth: Mapping[str, float] = MappingProxyType({})) -> NDArray[np.float64]:
        """The numbers that words are [n], of words for 0 and 1 as ``truth`` has them; NaN of the others."""
        return np.array([truth.get(word.casefold(), self.number(word)) for word in words], np.float64)

    def changed(self) -> dict[str, Any]:
        """The signs that are not the usual ones, by name."""
        return {f.name: sign for f in fields(self) if (sign := getattr(self, f.name)) != f.default}


PLAIN = Signs()


def readings(words: Sequence[str], thousands: str | None = None, decimal: str | None = None) -> list[Signs]:
    """The signs with which all words are numbers, of readings that differ in a number; plain numbers first.

    Parameters
    ----------
    words : without missing ones.
    thousands, decimal : signs that the user declared; None: any.
    """
    unit = unit_of(words)
    bare = [Signs(unit=unit).bare(word) for word in words] if unit else words
    choices: list[tuple[Signs, NDArray[np.float64]]] = []
    between = [sign for sign in THOUSANDS if sign in "".join(bare)] if thousands is None else [thousands]
    for before in decimal or ".,":
        for sign in dict.fromkeys(["", *between]):
            signs = Signs(sign, before, unit)
            if sign == before or not all(map(signs.pattern.fullmatch, bare)):
                continue
            pairs = sign not in (".", ",") and all(map(PAIR.fullmatch, bare))
            if sign and thousands is None and (pairs or any(LONG.match(word) for word in bare)):
                continue
            values = signs.numbers(words)
            if not any((values == others).all() for _, others in choices):
                choices.append((signs, values))
    return [signs for signs, _ in choices]


def shown_by(columns: Iterable[tuple[Sequence[Signs], Sequence[str]]], others: str = "") -> str:
    """The sign before fractions of a table, which has one: that of columns with one reading and a sign; nothing if none shows it, or two differ.

    Parameters
    ----------
    columns : of each the readings and the words.
    others : the sign that columns show which were read as numbers at once.
    """
    once = [(signs[0], words) for signs, words in columns if len(signs) == 1]
    signs = {form: {form.decimal, form.thousands} & {*".,"} for form, _ in once}  # 1 000 shows nothing
    shown = {form.decimal for form, words in once if any({*word} & signs[form] for word in words)}
    shown |= {*others}
    return shown.pop() if len(shown) == 1 else ""


def agreeing(signs: Sequence[Signs], shown: str) -> list[Signs]:
    """The readings that agree with the sign that a table shows, if one does; else all."""
    return [reading for reading in signs if reading.decimal == shown] or [*signs]


def unit_of(words: Sequence[str]) -> str:
    """The sign of a currency or of percent, or the words after the number, that every word has once; empty if there are none."""
    first = words[0] if words else ""
    marks = [c for c in first if c in "%‰" or unicodedata.category(c) == "Sc"]
    if (unit := UNIT.fullmatch(first)) and not EXPONENTS.match(unit[1]) and unit[1].strip() not in MULTIPLES:
        marks.append(unit[1].strip())

    def once(mark: str) -> bool:
        return all(word.count(mark) == 1 and Signs(unit=mark).bare(word) for word in words)

    return next(filter(once, dict.fromkeys(marks)), "")


def units_of(counts: Mapping[str, int]) -> Counter[str]:
    """The units of words that are numbers with one, by the cells that have each; an ordinal, 2nd, and a code, 2a, have none."""
    units = Counter[str]()
    for word, n in counts.items():
        unit = unit_of([word])
        number = Signs(unit=unit).bare(word) if unit else ""
        code = len(unit) == 1 and unit.isalpha() and word == number + unit
        if NUMBER.fullmatch(number.replace(",", ".")) and not code and unit not in ("st", "nd", "rd", "th"):
            units[unit] += n
    return units if len(units) <= UNITS else Counter()


def truth_of(words: Iterable[str]) -> tuple[str, ...]:
    """The words for 0 and 1, in turn, of which a column consists: one pair, or several of which both words occur; else nothing."""
    present = {word.casefold() for word in words}
    pairs = [pair for pair in PAIRS if present & {*pair}]
    words = tuple(word for pair in pairs for word in pair)
    whole = len(pairs) == 1 or present >= {*words}
    return words if whole and present <= {*words} else ()


def same_numbers(words: Iterable[str], *, names: bool = False) -> list[list[str]]:
    """Groups of different words that are one number, 250 and 250.0 or 007 and 7; of ``names`` also 10 and 1E1, and those that look the same."""
    same: dict[object, dict[str, None]] = {}
    for word in words:
        plain = unicodedata.normalize("NFKC", word) if names and len(word) <= LONGEST else word
        number = NUMBER.fullmatch(plain) and (names or not plain.isalnum() or plain.isdigit())
        same.setdefault(Decimal(plain) if number else plain, {})[word] = None
    return [[*group] for group in same.values() if len(group) > 1]


def respelt(words: Iterable[str]) -> bool:
    """Whether some words are one number with other zeros at its end: 3.1 and 3.10."""
    fractions = {word for word in words if re.fullmatch(r"[+-]?\d+[.,]\d+", word, re.ASCII)}
    return len({word.rstrip("0") for word in fractions}) < len(fractions)


def faults(
    cells: Sequence[str], rows: Sequence[int], at: Callable[[int], str], n: int, kind: Callable[[str], str]
) -> str:
    """What is wrong with a column of ``n`` cells, of which ``cells`` in ``rows`` are of a wrong ``kind``: first examples of each."""
    words = [cell.strip() for cell in cells]
    meaning = {word: MISSING_CELLS if missing(word) else kind(word) for word in {*words}}
    kinds = grouped((meaning[word], k) for k, word in enumerate(words))
    shares = []
    for name, which in kinds.items():
        first: dict[str | int, int] = {}  # of the same cells one is enough, unless they are missing
        for k in which:
            first.setdefault(k if name == MISSING_CELLS else words[k], k)
        shown = [*first.values()][:FIRST]
        examples = [f"{repr(words[k][:40]) if words[k] else 'empty'} in {at(rows[k])}" for k in shown]
        are = "are" if len(which) > 1 else "is"
        share = f"all {n:,} are" if len(which) == n > 1 else f"{len(which):,} of {n:,} {are}"
        shares.append(f"{share} {name} ({', '.join(examples)}{', ...' * (len(which) > len(examples))})")
    return " and ".join(shares)


def kind_of(word: str, signs: Signs) -> str:
    """What is wrong with a word that is no number that float32 holds."""
    if not math.isnan(signs.number(word)):
        return "too large"
    other = NUMBER.fullmatch(word.replace(",", "."))
    written = ", ".join(f'{name} = "{sign}"' for name, sign in signs.changed().items())
    return f"no number with {written}" if other and written else "no number"
