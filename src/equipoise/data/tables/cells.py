"""The cells of a table's columns, as numbers or as codes of words; missing ones stay missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.columns import option
from equipoise.data.tables.numbers import LARGEST, faults
from equipoise.data.tables.schema import CATEGORY, DATE, NUMBER, Feature, Schema, plain
from equipoise.data.tables.words import COMMAS, grouped_pattern, missing, number_pattern
from equipoise.data.tables.words import NUMBER as NUMERIC

TRUTH = {**dict.fromkeys(("true", "t", "yes", "y", "1"), 1.0), **dict.fromkeys(("false", "f", "no", "n", "0"), 0.0)}
UNDEFINED = ("nan", "<NA>", "NaT")  # what NumPy and pandas call what is not there
Place = Callable[[int], str]


@dataclass(frozen=True)
class Words:
    """A column of text: the code [n] of every cell, and the word that each code stands for; one word may have several codes."""

    codes: NDArray[np.integer[Any]]
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    @staticmethod
    def of(cells: Iterable[Any]) -> Words:
        """Cells of any kind as text."""
        code: dict[str, int] = {}
        codes = np.fromiter((code.setdefault(word_of(cell), len(code)) for cell in cells), np.int64)
        return Words(codes, tuple(code))

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each word occurs, without blanks around it."""
        made: dict[str, int] = {}
        for word, n in zip(self.words, np.bincount(self.codes, minlength=len(self.words)).tolist(), strict=True):
            made[word.strip()] = made.get(word.strip(), 0) + n
        return {word: n for word, n in made.items() if n}

    def mapped(self, meaning: Callable[[str], float]) -> NDArray[np.float64]:
        """A number for every cell."""
        numbers: NDArray[np.float64] = np.array([meaning(word.strip()) for word in self.words], np.float64)[self.codes]
        return numbers

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing [n]."""
        gone: NDArray[np.bool_] = np.array([missing(word) for word in self.words], bool)[self.codes]
        return gone


def word_of(cell: Any) -> str:
    """A cell as text without blanks around it; nothing of None and NaN, and whole numbers without a point."""
    if cell is None or (not isinstance(cell, str) and str(cell) in UNDEFINED):
        return ""
    if isinstance(cell, float | np.floating) and float(cell).is_integer() and abs(float(cell)) < 2**53:
        return str(int(cell))
    return str(cell).strip()


Raw = NDArray[Any] | Words  # a column as a reader gives it: numbers, of which NaN are missing, or text


@dataclass(frozen=True)
class Cells:
    """One column: numbers [n], float64, of which NaN are missing; or codes [n], int64, of ``words``, of which -1 are missing."""

    values: NDArray[Any]
    words: tuple[str, ...] = ()

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing [n]."""
        return np.isnan(self.values) if self.values.dtype.kind == "f" else self.values < 0


@dataclass(frozen=True)
class RawTable:
    """Columns of a table that are to become inputs, by name, and the schema which says how."""

    schema: Schema
    columns: Mapping[str, Cells]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).values)

    def numbers(self) -> NDArray[np.float64]:
        """All columns as numbers [n, D], categories by their codes; of missing cells a number less than all others."""
        made = np.empty((len(self), len(self.columns)))
        for k, name in enumerate(self.schema.names):
            cells = self.columns[name]
            values, gone = cells.values.astype(np.float64), cells.missing
            made[:, k] = np.where(gone, values[~gone].min(initial=0) - 1, values)
        return made


def read_cells(feature: Feature, raw: Raw, at: Place) -> tuple[Cells, list[str]]:
    """The cells of one column and what is wrong with them, in sentences; ``at(k)`` is the place of row k."""
    marks = feature.missing_values
    if feature.kind != NUMBER and not isinstance(raw, Words):
        raw = Words.of(raw.tolist())
    if isinstance(raw, Words):
        if feature.kind == CATEGORY:
            cells = _codes(raw, (*feature.not_missing, *feature.categories), marks)
            return cells, _refused(feature, cells.missing, at)
        dated = feature.kind == DATE
        numbers = days_of(map(str.strip, raw.words), feature.form)[raw.codes] if dated else _numbers(raw, feature)
        gone = raw.missing | np.array([plain(word.strip()) in marks for word in raw.words], bool)[raw.codes]
    else:
        numbers = raw.astype(np.float64)
        gone = np.isnan(numbers)
    gone = gone | np.isin(numbers, [float(word) for word in marks if NUMERIC.fullmatch(word)])
    numbers, problems = np.where(gone, np.nan, numbers), []
    if len(wrong := np.flatnonzero(~(np.abs(numbers) <= LARGEST) & ~gone)):
        words = [raw.words[raw.codes[k]] if isinstance(raw, Words) else str(raw[k]) for k in wrong.tolist()]
        kind = f"no date of the form {feature.form}" * (feature.kind == DATE)
        advice, comma = "", all("," in word and COMMAS.fullmatch(word.strip()) for word in words)
        if comma and (feature.kind, feature.decimal) == (NUMBER, "."):
            advice = (
                f" If the comma is before the digits of a fraction: {option('decimal', ',')} (pandas: decimal=',')."
            )
        problems.append(f"column {feature.name}: {faults(words, wrong.tolist(), at, len(numbers), kind)}.{advice}")
    for edge, beyond in ((feature.low, np.less), (feature.high, np.greater)):
        if edge is not None and len(outside := np.flatnonzero(beyond(numbers, edge))):
            side = "less than low" if beyond is np.less else "more than high"
            first = ", ".join(f"{numbers[k]:g} in {at(k)}" for k in outside[:3].tolist())
            problems.append(f"column {feature.name}: {len(outside):,} numbers are {side} = {edge:g} ({first}).")
    return Cells(numbers), problems + _refused(feature, gone, at)


def _refused(feature: Feature, gone: NDArray[np.bool_], at: Place) -> list[str]:
    if feature.missing != "refuse" or not gone.any():
        return []
    first = ", ".join(at(k) for k in np.flatnonzero(gone)[:3].tolist())
    return [f'column {feature.name}: {int(gone.sum()):,} cells are missing ({first}), and missing = "refuse".']


def _codes(text: Words, names: Sequence[str], marks: Sequence[str]) -> Cells:
    """Codes of the different words in the order of the alphabet; ``names`` are not missing, and ``marks`` are."""
    words = tuple(sorted({plain(word) for word in text.counts if not missing(word) or word in names} - {*marks}))
    code = {word: k for k, word in enumerate(words)}
    place = np.array([code.get(plain(word.strip()), -1) for word in text.words], np.int64)
    return Cells(place[text.codes], words)


def _numbers(text: Words, feature: Feature) -> NDArray[np.float64]:
    """Numbers that are text; NaN of all other words."""
    pattern = re.compile(number_pattern("."), re.ASCII)
    grouped = re.compile(grouped_pattern(feature.thousands, feature.decimal) + r"([eE][+-]?\d+)?", re.ASCII)
    truth = TRUTH if all(word.casefold() in TRUTH or missing(word) for word in text.counts) else {}

    def meaning(word: str) -> float:
        plain = word.replace(feature.unit, "", 1).strip() if feature.unit else word
        if feature.thousands:
            if not grouped.fullmatch(plain):
                return truth.get(word.casefold(), np.nan)
            plain = plain.replace(feature.thousands, "")
        plain = plain.replace(feature.decimal, ".")
        return float(plain) if pattern.fullmatch(plain) else truth.get(word.casefold(), np.nan)

    return text.mapped(meaning)


def days_of(words: Iterable[str], form: str) -> NDArray[np.float64]:
    """Days since 1970-01-01, of which parts are times; NaN of words that are no date of this form."""
    import pandas as pd

    dates = pd.to_datetime(pd.Series(list(words), dtype=object), format=form, errors="coerce", utc=True)
    return np.asarray((dates - pd.Timestamp(1970, 1, 1, tz="UTC")) / pd.Timedelta(days=1), np.float64)
