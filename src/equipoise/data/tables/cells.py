"""The cells of a table's columns, as numbers or as codes of words; missing ones stay missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.options import option
from equipoise.data.tables.schema import CATEGORY, DATE, NUMBER, Feature, Schema, plain
from equipoise.data.tables.words import COMMAS, LARGEST, NUMBER as NUMERIC, Signs, faults, kind_of, missing, truth_of

if TYPE_CHECKING:
    import pandas as pd

DIGITS_OF_DAY = "%Y%m%d"
UNDEFINED = ("nan", "<NA>", "NaT", "NaN")  # what NumPy, pandas and Decimal call what is not there
Place = Callable[[int], str]


@dataclass(frozen=True)
class Words:
    """A column of text: the code [n] of every cell, and the word that each code stands for; one word may have several codes.

    Parameters
    ----------
    numbers, days : by code, what cells of another type hold: numbers, and dates as days since 1970. These are no text, and never parsed.
    """

    codes: NDArray[np.integer[Any]]
    words: tuple[str, ...]
    numbers: Mapping[int, float] = field(default_factory=dict)
    days: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.codes)

    @staticmethod
    def of(cells: Iterable[Any]) -> Words:
        """Cells of any kind."""
        code: dict[tuple[str, bool], int] = {}
        numbers, days, codes = dict[int, float](), dict[int, float](), list[int]()
        for cell in cells:
            word = word_of(cell)
            k = code.setdefault((word, isinstance(cell, str)), len(code))
            codes.append(k)
            if word and isinstance(cell, Number | Decimal | np.bool_):
                numbers[k] = float(cell)  # type: ignore[arg-type]
            elif word and isinstance(cell, date | np.datetime64):
                days[k] = float(days_between(np.array([_utc(cell)], "M8[us]"))[0])
        return Words(np.array(codes, np.int64), tuple(word for word, _ in code), numbers, days)

    @staticmethod
    def from_text(cells: Sequence[str]) -> Words:
        """Cells that are all text."""
        code: dict[str, int] = {}
        codes = np.array([code.setdefault(cell, len(code)) for cell in cells], np.int32)
        return Words(codes, tuple(code))

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each word occurs, without blanks around it."""
        made: dict[str, int] = {}
        for word, n in zip(self.words, np.bincount(self.codes, minlength=len(self.words)).tolist(), strict=True):
            made[word.strip()] = made.get(word.strip(), 0) + n
        return {word: n for word, n in made.items() if n}

    @cached_property
    def present(self) -> dict[str, int]:
        """How often each word occurs that is not missing."""
        return {word: n for word, n in self.counts.items() if not missing(word)}

    @cached_property
    def texts(self) -> list[str]:
        """The different words that are text, without missing ones."""
        used = np.bincount(self.codes, minlength=len(self.words)) > 0
        typed = self.numbers.keys() | self.days.keys()
        words = (word.strip() for k, word in enumerate(self.words) if used[k] and k not in typed)
        return [word for word in dict.fromkeys(words) if not missing(word)]

    def mapped(self, meaning: Callable[[Sequence[str]], NDArray[np.float64]], typed: Mapping[int, float]) -> Any:
        """A number for every cell [n]: what it holds, or the ``meaning`` of its word."""
        numbers = meaning([word.strip() for word in self.words])
        other = (self.numbers.keys() | self.days.keys()) - typed.keys()  # a date is no number
        for k in range(len(numbers)) if typed or other else ():
            numbers[k] = typed.get(k, np.nan if k in other else numbers[k])
        return numbers[self.codes]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing [n]."""
        return np.isin(self.codes, [k for k, word in enumerate(self.words) if missing(word)])


def word_of(cell: Any) -> str:
    """A cell as text without blanks around it; nothing of None and NaN, whole numbers without a point, and midnights without a time."""
    if isinstance(cell, str):
        return cell.strip()
    if cell is None or str(cell) in UNDEFINED:
        return ""
    if isinstance(cell, bytes):
        return cell.decode().strip()
    if isinstance(cell, np.ndarray):
        return repr(cell.tolist())
    if isinstance(cell, float | np.floating | Decimal) and float(cell).is_integer() and abs(float(cell)) < 2**53:
        return str(int(cell))
    return str(cell).removesuffix(" 00:00:00") if isinstance(cell, date) else str(cell).strip()


def _utc(cell: Any) -> np.datetime64:
    if isinstance(cell, np.datetime64):
        return cell
    import pandas as pd

    at = pd.Timestamp(cell)
    return (at.tz_convert("UTC").tz_localize(None) if at.tzinfo else at).to_datetime64()


Raw = NDArray[Any] | Words  # a column as a reader gives it: numbers or dates, of which NaN and NaT are missing, or text


def typed_numbers(raw: Raw) -> NDArray[np.float64]:
    """The finite numbers of a column that are no text."""
    typed = raw.numbers.values() if isinstance(raw, Words) else raw if raw.dtype.kind == "f" else ()
    numbers = np.array([*typed], np.float64)
    return numbers[np.isfinite(numbers)]


def taken(raw: Raw, rows: NDArray[np.int64]) -> Raw:
    """The cells of some rows."""
    return replace(raw, codes=raw.codes[rows]) if isinstance(raw, Words) else raw[rows]


def cells_of(column: pd.Series) -> list[Any]:
    """The cells of a column of pandas, None where there is nothing; bytes are text."""
    cells = [None if lost else cell for cell, lost in zip(column.tolist(), column.isna(), strict=True)]
    return [cell.decode() if isinstance(cell, bytes) else cell for cell in cells]


def raw_of(column: Any) -> Raw:
    """A column of pandas, an array or a list as numbers, as dates in UTC, or as words, if its cells are neither all numbers nor all dates."""
    import pandas as pd

    if not isinstance(column, pd.Series):
        column = pd.Series(column, dtype=None if isinstance(column, np.ndarray) else object)
    if column.dtype.kind in "iuf":
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    if column.dtype.kind == "M" and not str(column.dtype).startswith(("date32", "date64")):
        return np.asarray(column.to_numpy(f"datetime64[{column.dt.unit}]"))
    cells = cells_of(column)
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    if kinds and all(issubclass(kind, date) for kind in kinds):
        return np.array([*map(_utc, cells)], "M8[us]")
    return Words.of(cells)


@dataclass(frozen=True)
class Cells:
    """One column: numbers [n], float64, of which NaN are missing; or codes [n], int64, of ``words``, of which -1 are missing."""

    values: NDArray[Any]
    words: tuple[str, ...] = ()

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing [n]."""
        return np.isnan(self.values) if self.values.dtype.kind == "f" else self.values < 0

    @property
    def counts(self) -> dict[str, int]:
        """How often each word occurs."""
        n = np.bincount(self.values[self.values >= 0], minlength=len(self.words)).tolist()
        return dict(zip(self.words, n, strict=True))


@dataclass(frozen=True)
class RawTable:
    """Columns of a table that are to become inputs, by name, and the schema which says how.

    ``examples`` has, of columns of text, two rows with their cells as they are written, and ``others`` what else a column may be.
    """

    schema: Schema
    columns: Mapping[str, Cells]
    examples: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    others: Mapping[str, tuple[Feature, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).values)

    def numbers(self) -> NDArray[np.float64]:
        """All columns as numbers [n, D], categories by their codes; of missing cells a number less than all others."""
        made = np.array([self.columns[name].values for name in self.schema.names], np.float64)
        for k in np.flatnonzero(self.missing.any(1)).tolist():
            made[k][self.missing[k]] = made[k][~self.missing[k]].min(initial=0) - 1
        return made.T

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing [D, n], of the columns in the order of the schema."""
        return np.array([self.columns[name].missing for name in self.schema.names])


def read_cells(feature: Feature, raw: Raw, at: Place) -> tuple[Cells, list[str]]:
    """The cells of one column and what is wrong with them, in sentences; ``at(k)`` is the place of row k."""
    if isinstance(raw, np.ndarray) and (feature.kind == CATEGORY or (feature.kind == DATE and raw.dtype.kind != "M")):
        raw = Words.of(map(word_of, raw.tolist()) if raw.dtype.kind != "M" else np.datetime_as_string(raw, unit="auto"))
    problems = list[str]()
    if isinstance(raw, Words) and feature.kind == CATEGORY:
        cells = _codes(raw, (*feature.not_missing, *feature.categories), feature.missing_values)
        gone = cells.missing
    else:
        numbers, gone = _numbers_and_gaps(feature, raw)
        cells = Cells(np.where(gone, np.nan, numbers) if gone.any() else numbers)
        if len(wrong := np.flatnonzero(~(np.abs(cells.values) <= LARGEST) & ~gone)):
            problems.append(_not_read(feature, raw, wrong.tolist(), at))
        for side, beyond, edge in (
            ("less than low", np.less, feature.low),
            ("more than high", np.greater, feature.high),
        ):
            if edge is not None and len(outside := np.flatnonzero(beyond(cells.values, edge))):
                first = ", ".join(f"{cells.values[k]:g} in {at(k)}" for k in outside[:3].tolist())
                problems.append(f"column {feature.name}: {len(outside):,} numbers are {side} = {edge:g} ({first}).")
    if feature.missing == "refuse" and gone.any():
        cells_are = f"{int(gone.sum()):,} cells are missing ({', '.join(map(at, np.flatnonzero(gone)[:3].tolist()))})"
        problems.append(f'column {feature.name}: {cells_are}, and missing = "refuse".')
    return cells, problems


def _numbers_and_gaps(feature: Feature, raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A column of numbers or dates as numbers [n], and which cells are missing [n]."""
    marks = feature.missing_values
    if isinstance(raw, Words):
        if feature.kind == DATE:
            numbers = raw.mapped(lambda words: days_of(words, feature.form, feature.latest), raw.days)
        else:
            signs, pair = Signs(feature.thousands, feature.decimal, feature.unit), feature.truth
            if not pair and len(pair := truth_of(raw.texts)) > 2:  # words for 0 and 1 that are not declared
                pair = ()
            truth = {word.casefold(): float(k % 2) for k, word in enumerate(pair)}
            numbers = raw.mapped(lambda words: signs.numbers(words, truth), raw.numbers)
        gone = raw.missing | np.array([plain(word.strip()) in marks for word in raw.words], bool)[raw.codes]
    elif raw.dtype.kind == "M":
        numbers = days_between(raw)
        gone = np.isnan(numbers) | np.isin(numbers, [*days_of(marks, feature.form), *days_of(marks, "ISO8601")])
        if feature.kind == NUMBER:
            numbers = np.full(len(raw), np.nan)
    else:
        numbers = raw.astype(np.float64, copy=False)
        gone = np.isnan(numbers)
    if marks and feature.kind == NUMBER:
        gone = gone | np.isin(numbers, [float(word) for word in marks if NUMERIC.fullmatch(word)])
    return numbers, gone


def _not_read(feature: Feature, raw: Raw, rows: Sequence[int], at: Place) -> str:
    """That the cells in some rows of a column are no numbers or dates, and what they are."""
    signs = Signs(feature.thousands, feature.decimal, feature.unit)
    words = [raw.words[raw.codes[k]] if isinstance(raw, Words) else str(raw[k]) for k in rows]
    advice, comma = "", all("," in word and COMMAS.fullmatch(word.strip()) for word in words)
    if comma and (feature.kind, feature.decimal) == (NUMBER, "."):
        advice = f" If the comma is before the digits of a fraction: {option('decimal', ',')} (pandas: decimal=',')."

    def kind(word: str) -> str:
        return f"no date of the form {feature.form}" if feature.kind == DATE else kind_of(word, signs)

    return f"column {feature.name}: {faults(words, rows, at, len(raw), kind)}.{advice}"


def _codes(text: Words, names: Sequence[str], marks: Sequence[str]) -> Cells:
    """Codes of the different words in the order of the alphabet; ``names`` are not missing, and ``marks`` are."""
    present = [word for word in text.counts if not missing(word) or word in names]
    name_of = {word: word if word in names else plain(word) for word in present}
    words = tuple(sorted({*name_of.values()} - {*marks}))
    code = {word: k for k, word in enumerate(words)}
    place = np.array([code.get(name_of.get(word.strip(), ""), -1) for word in text.words], np.int64)
    return Cells(place[text.codes], words)


def days_of(words: Iterable[str], form: str, latest: int | None = None) -> NDArray[np.float64]:
    """Days since 1970-01-01, of which parts are times; NaN of words that are no date of this form.

    Years of two digits are the last ones up to ``latest``; without it those from 1969 to 2068.
    """
    import pandas as pd

    cells = [word if form != DIGITS_OF_DAY or len(word) == 8 else "" for word in words]  # pandas reads 2020111
    dates = pd.to_datetime(pd.Series(cells, dtype=object), format=form, errors="coerce", utc=True)
    if latest is not None:
        dates = dates.where(~(dates.dt.year > latest), dates - pd.DateOffset(years=100))
        dates = dates.where(~(dates.dt.year <= latest - 100), dates + pd.DateOffset(years=100))
    return days_between(dates.dt.tz_localize(None).to_numpy())


def days_between(dates: NDArray[Any]) -> NDArray[np.float64]:
    """Days since 1970-01-01 of dates [n], NaN where there is none."""
    return np.asarray((dates - np.datetime64(0, "D")) / np.timedelta64(1, "D"), np.float64)
