"""Numbers that are text: the signs between thousands and before fractions, units, and words for true and false."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.columns import THOUSANDS
from equipoise.data.tables.words import FIRST, NUMBER, missing

LARGEST = 3e38  # a larger number is infinite in float32
PAIRS = (("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y"), ("0", "1"))  # words for 0 and for 1
LONG = re.compile(r"[+-]?\d{5}", re.ASCII)  # what a sign between thousands would divide
GROUPED = re.compile(r"[1-9]\d{0,2}([.,])\d{3}", re.ASCII)  # 1.234, which may be a thousand or a fraction
MISSING_CELLS = "missing"  # a kind of cells


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
        """A word without the unit."""
        return word.replace(self.unit, "", 1).strip() if self.unit else word

    def number(self, word: str) -> float:
        """The number that a word is; NaN if it is none."""
        word = self.bare(word)
        if not self.pattern.fullmatch(word):
            return math.nan
        return float(word.replace(self.thousands, "").replace(self.decimal, "."))

    def numbers(self, words: Iterable[str]) -> NDArray[np.float64]:
        """The numbers that words are [n]; NaN of the others."""
        return np.array([self.number(word) for word in words], np.float64)

    def changed(self) -> dict[str, Any]:
        """The signs that are not the usual ones, by name."""
        usual = {"thousands": "", "decimal": ".", "unit": ""}
        return {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}


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
    between = [sign for sign in THOUSANDS if any(sign in word for word in bare)] if thousands is None else [thousands]
    for before in decimal or ".,":
        for sign in dict.fromkeys(["", *between]):
            signs = Signs(sign, before, unit)
            if sign == before or not all(map(signs.pattern.fullmatch, bare)):
                continue
            if sign and thousands is None and any(LONG.match(word) for word in bare):
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
    shown = {each.decimal for each, words in once if any({*word} & {each.decimal, each.thousands} for word in words)}
    shown |= {*others}
    return shown.pop() if len(shown) == 1 else ""


def agreeing(signs: Sequence[Signs], shown: str) -> list[Signs]:
    """The readings that agree with the sign that a table shows, if one does; else all."""
    return [each for each in signs if each.decimal == shown] or [*signs]


def unit_of(words: Sequence[str]) -> str:
    """The sign of a currency or of percent that every word has once; empty if there is none."""
    marks = [c for c in words[0] if c in "%‰" or unicodedata.category(c) == "Sc"] if words else []
    return next((mark for mark in marks if all(word.count(mark) == 1 for word in words)), "")


def truth_of(words: Iterable[str]) -> tuple[str, ...]:
    """The words for 0 and 1, in turn, of which a column consists: one pair, or several of which both words occur; else nothing."""
    present = {word.casefold() for word in words}
    pairs = [pair for pair in PAIRS if present & {*pair}]
    if not present <= {word for pair in pairs for word in pair}:
        return ()
    return (
        tuple(word for pair in pairs for word in pair) if len(pairs) == 1 or all({*p} <= present for p in pairs) else ()
    )


def respelt(words: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of words that are one number with other zeros at its end: 3.1 and 3.10."""
    first: dict[str, str] = {}
    pairs = []
    for word in words:
        if re.fullmatch(r"[+-]?\d+[.,]\d+", word, re.ASCII):
            other = first.setdefault(word.rstrip("0"), word)
            pairs += [(other, word)] * (other != word)
    return pairs


def faults(
    cells: Sequence[str], rows: Sequence[int], at: Callable[[int], str], n: int, kind: Callable[[str], str]
) -> str:
    """What is wrong with a column of ``n`` cells, of which ``cells`` in ``rows`` are of a wrong ``kind``: first examples of each."""
    kinds: dict[str, list[int]] = {}
    meaning = {cell: MISSING_CELLS if missing(cell) else kind(cell.strip()) for cell in set(cells)}
    for k, cell in enumerate(cells):
        kinds.setdefault(meaning[cell], []).append(k)
    said = []
    for name, which in kinds.items():
        first: dict[str | int, int] = {}  # of the same cells one is enough, unless they are missing
        for k in which:
            first.setdefault(k if name == MISSING_CELLS else cells[k].strip(), k)
        examples = [
            f"{cells[k].strip()[:40]!r} in {at(rows[k])}" if cells[k].strip() else f"empty in {at(rows[k])}"
            for k in [*first.values()][:FIRST]
        ]
        share = (
            f"all {n:,} are" if len(which) == n > 1 else f"{len(which):,} of {n:,} {'are' if len(which) > 1 else 'is'}"
        )
        said.append(f"{share} {name} ({', '.join(examples)}{', ...' * (len(which) > len(examples))})")
    return " and ".join(said)


def kind_of(word: str, signs: Signs) -> str:
    """What is wrong with a word that is no number that float32 holds."""
    if not math.isnan(signs.number(word)):
        return "too large"
    other = NUMBER.fullmatch(word.replace(",", "."))
    written = ", ".join(f'{name} = "{sign}"' for name, sign in signs.changed().items())
    return f"no number with {written}" if other and written else "no number"
