"""Random tables whose meaning is drawn first and written second: nothing here asks Equipoise what a cell means.

A :class:`Column` has the cells as a person writes them, the same cells as a program holds them, and what they mean: numbers, words or both.
A :class:`Table` has columns that become inputs and columns with other purposes. A writer turns it into a file and states what has to be
declared so that the file has one meaning.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import Generator

from equipoise.data.tables.schema import Feature

Meaning = tuple[Any, ...]
EPOCH = datetime(1970, 1, 1)
GAPS = ("", "NA", "NaN", "n/a", "-", "?", "null", ".", "None", "#N/A", "<NA>", "NULL")
BETWEEN = (",", ".", "'", "’", " ", "\u00a0", "\u202f", "_")
UNITS = ("{} kg", "{} mmHg", "{}%", "{} %", "€ {}", "${}", "{}‰", "{} °C", "{}ms", "£{}")
MARKS = (666, 777, -888, 300, 1_000_000, -2147483648, 9999, -999, 99999, -99, 8888)
OPTIONS = {f.name for f in fields(Feature)}  # that a column may have


@dataclass(frozen=True)
class Column:
    """One column: what was drawn, and how it may be written.

    Parameters
    ----------
    name, tag : of the column, and the kind of meaning that was drawn.
    text : its cells as a person writes them.
    typed : its cells as a program holds them; None is missing.
    numbers, words : what cells mean, where None is missing; both if a column may be taken for either.
    exact : of numbers all digits, with a point.
    declared, declared_typed : the options of the column that leave one meaning, as text and as typed cells.
    clear : whether the text has one meaning without these.
    """

    name: str
    tag: str
    text: tuple[str, ...]
    typed: Meaning
    numbers: Meaning = ()
    words: Meaning = ()
    exact: tuple[str | None, ...] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)
    declared_typed: Mapping[str, Any] = field(default_factory=dict)
    clear: bool = True

    def take(self, rows: Sequence[int]) -> Column:
        """The same column of some rows."""
        parts = {
            name: tuple(cells[k] for k in rows)
            for name in ("text", "typed", "numbers", "words", "exact")
            if (cells := getattr(self, name))
        }
        return replace(self, **parts)


@dataclass(frozen=True)
class Table:
    """Columns that become inputs, columns by purpose, options of the whole table, and the sign before fractions in its text."""

    seed: int
    columns: tuple[Column, ...]
    roles: Mapping[str, Column]
    options: Mapping[str, Any]
    decimal: str
    declares: bool
    edges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.roles["label"].text)

    @property
    def regression(self) -> bool:
        return self.options.get("task") == "regression"

    def without(self, names: set[str]) -> Table:
        """The same table without some columns of inputs."""
        return replace(self, columns=tuple(column for column in self.columns if column.name not in names))

    def take(self, rows: Sequence[int]) -> Table:
        """The same table with some rows."""
        roles = {role: column.take(rows) for role, column in self.roles.items()}
        return replace(self, columns=tuple(column.take(rows) for column in self.columns), roles=roles)

    def ordered(self) -> list[Column]:
        """All columns in the order of the file."""
        every = [*self.columns, *self.roles.values()]
        order = np.random.default_rng([self.seed, 1]).permutation(len(every))
        return [every[k] for k in order]


# numbers
def drawn_numbers(rng: Generator, n: int) -> tuple[list[str], str]:
    """Numbers with all their digits, and what they are like."""
    kind = str(
        rng.choice(
            ["normal", "offset", "tiny", "large", "ages", "few", "skewed", "share", "year", "negative", "three", "two"]
        )
    )
    if kind == "normal":
        p = int(rng.integers(1, 7))
        return [f"{x:.{p}f}" for x in rng.normal(rng.choice([0, 5, 40]), rng.choice([0.1, 1, 20]) + 10.0**-p, n)], kind
    if kind == "offset":
        return [f"{x:.2f}" for x in rng.normal(3e7, 1.5, n)], kind
    if kind == "tiny":
        return [f"{x:.9f}" for x in rng.normal(0, 1e-6, n)], kind
    if kind == "large":
        return [f"{x:.0f}" for x in rng.lognormal(17, 3, n)], kind
    if kind == "ages":
        return [str(x) for x in rng.integers(18, 95, n)], kind
    if kind == "few":
        return [str(x) for x in rng.integers(0, 5, n)], kind
    if kind == "skewed":
        return [f"{x:.2f}" for x in rng.lognormal(5, 1.5, n)], kind
    if kind == "share":
        return [f"{x:.3f}" for x in rng.random(n)], kind
    if kind == "year":
        return [str(x) for x in rng.integers(1950, 2021, n)], kind
    if kind == "negative":
        return [f"{x:.1f}" for x in -rng.gamma(3, 20, n)], kind
    if kind == "two":
        return [str(x) for x in rng.choice([3, 8], n)], kind
    return [f"{x:.3f}" for x in rng.uniform(1, 400, n)], kind  # 76.586, of which the point may be one between thousands


def typed_number(exact: str) -> float | int:
    """A number as a program holds it."""
    return int(exact) if exact.lstrip("+-").isdigit() else float(exact)


def grouped(exact: str, between: str, decimal: str) -> str:
    """A number with a sign between thousands."""
    whole, _, digits = exact.lstrip("-").partition(".")
    made = f"{int(whole):,}".replace(",", between) + (decimal + digits if digits else "")
    return "-" * exact.startswith("-") + made


def sign_between(rng: Generator, decimal: str) -> str:
    """A sign between thousands, in half of all cases the one that could be before fractions."""
    other = "." if decimal == "," else ","
    return other if rng.random() < 0.5 else str(rng.choice([sign for sign in BETWEEN if sign not in (decimal, other)]))


def numbers(rng: Generator, n: int, name: str, decimal: str) -> Column:
    """A column of numbers in one of many spellings."""
    exact, like = drawn_numbers(rng, n)
    spelling = str(
        rng.choice(
            ["plain", "thousands", "unit", "exponent", "plus", "bare", "minus", "scaled"],
            p=[0.29, 0.3, 0.13, 0.05, 0.05, 0.05, 0.05, 0.08],
        )
    )
    declared: dict[str, Any] = {"kind": "number"} | ({"decimal": decimal} if decimal != "." else {})
    typed_options: dict[str, Any] = {}
    clear = like not in ("three", "share")
    if spelling == "thousands":
        p, high = int(rng.choice([0, 0, 1, 3])), float(rng.choice([900, 90_000, 90_000, 9_000_000]))
        exact = [f"{x:.{p}f}" for x in high * rng.uniform(0.1, 1, n) ** 3]
        between = sign_between(rng, decimal)
        text = [grouped(x, between, decimal) for x in exact]
        declared |= {"thousands": between}
        clear = False
    elif spelling == "unit":
        unit = str(rng.choice(UNITS))
        text = [unit.format(x.replace(".", decimal)) for x in exact]
        declared |= {"unit": unit.format("").strip()}
        clear = unit.format("").strip() in "%‰€$£"
    elif spelling == "exponent":
        exact = [f"{float(x):.{rng.integers(0, 5)}e}" for x in exact]
        text = [x.replace(".", decimal) for x in exact]
        clear = all("." in x for x in text)
    elif spelling == "plus":
        text = [(x if x.startswith("-") else f"+{x}").replace(".", decimal) for x in exact]
    elif spelling == "bare":
        text = [
            x.replace("-0.", "-.") if x.startswith("-0.") else x.removeprefix("0") if x.startswith("0.") else x
            for x in exact
        ]
        text = [x.replace(".", decimal) for x in text]
    elif spelling == "minus":
        text = [x.replace("-", "\u2212").replace(".", decimal) for x in exact]
        clear = all("\u2212" not in x for x in text)
    else:
        text = [x.replace(".", decimal) for x in exact]
    if spelling == "scaled":
        low = min(map(float, exact))
        made = {"scaling": str(rng.choice(["log", "none", "robust"] if low > -0.99 else ["none", "robust"]))}
        declared, typed_options = declared | made, made
    if rng.random() < 0.08 and spelling in ("plain", "unit", "thousands"):
        declared, typed_options = declared | {"missing": "mean"}, {**typed_options, "missing": "mean"}
    made_numbers = tuple(map(float, exact))
    return Column(
        name, f"number: {spelling}", tuple(text), tuple(map(typed_number, exact)), made_numbers, (), tuple(exact), declared, typed_options,
        clear or spelling == "scaled",
    )  # fmt: skip


def marked(rng: Generator, n: int, name: str, decimal: str) -> Column:
    """Numbers, of which one that comes again and again, far from the rest, stands for a missing one."""
    p = int(rng.choice([0, 0, 1, 2]))
    exact = [f"{x:.{p}f}" for x in np.clip(rng.normal(50, 12, n), 10, 98)]
    mark = f"{int(rng.choice(MARKS)):.{p}f}"
    gone = rng.random(n) < rng.uniform(0.08, 0.25)
    gone[rng.choice(n, 4, replace=False)] = True
    cells = [mark if lost else x for x, lost in zip(exact, gone, strict=True)]
    options = {"kind": "number", "missing_values": [mark if p else int(mark)]}
    return Column(
        name, "number: stand-in", tuple(x.replace(".", decimal) for x in cells), tuple(map(typed_number, cells)),
        tuple(None if lost else float(x) for x, lost in zip(exact, gone, strict=True)), (), tuple(cells),
        options | ({"decimal": decimal} if decimal != "." else {}), options, False,
    )  # fmt: skip


# words
CATEGORIES: Mapping[str, Sequence[Sequence[str]]] = {
    "plain": [
        ["nurse", "driver", "clerk", "pilot"], ["Ärztin", "Öl", "naïve", "ß"], ["north east", "south; west", 'a "b"', "c,d"], ["A", "B"],
        ["M", "F"], ["May", "June", "July"],
    ],
    "zeros": [["007", "012", "101", "099"], ["0", "00", "000"], ["01", "02", "10"], ["007", "7", "07"], ["00501", "10115"]],
    "points": [["3.10", "3.1", "3.2"], ["345.1", "345.10", "250.0"], ["1.0", "1.00", "1.1"]],
    "points and words": [["3.10", "3.1", "beta"], ["E11.9", "E11.90", "I10"], ["1.2.3", "1.10.0", "1.2.30"], ["1.0", "1", "rc"]],
    "exponents": [["1E1", "2E5", "3E2"], ["1E1", "10", "2E2"], ["1E1", "1E01", "10E0"], ["1E5", "5D2", "7A1"]],
    "pairs": [["F", "N"], ["F", "N", "T"], ["T", "N"], ["Y", "F"], ["yes", "f"], ["no", "F"], ["0", "N"], ["1", "Y"], ["t", "y"]],
    "ranges": [["10-19", "20-29", "30-39"], ["<5", "5-10", ">10"], ["1/2", "1/4", "3/4"], ["2019-2020", "2020-2021"], ["1-2", "3-4", "5-6"], ["0-9", "10-99"]],
    "gaps": [["none", "mild", "severe"], ["NA", "EU", "AS"], ["-", "+", "++"], ["None", "Some"], ["nil", "low", "high"]],
    "numbers": [["1", "2", "3"], ["10", "20", "1"], ["1.5", "2.5"], ["1", "2"], ["1.0", "2.0"], ["100", "1000", "10000"]],
    "commas": [["1,5", "2,5", "3,5"], ["1,000", "2,000", "5,000"], ["1,2", "1,20"]],
    "odd": [
        ["+1", "1", "-1"], ["1st", "2nd"], ["inf", "low"], ["Infinity", "NaNo"], ["１", "２"], ["0x10", "16"], ["1_0", "2_0"], ["a", "A"],
        ["true", "false", "unknown"], ["@x", "=y"], ["1 000", "2 000"], ["12:30", "9:15"], ["$", "€"], ["%", "#"],
    ],
}  # fmt: skip


def drawn_words(rng: Generator, n: int, words: Sequence[str]) -> list[str]:
    """Words, each of which occurs, not all equally often."""
    cells = [words[k] for k in rng.choice(len(words), n, p=rng.dirichlet([3] * len(words)))]
    for k, row in enumerate(rng.permutation(n)[: 4 * len(words)].tolist()):
        cells[row] = words[k % len(words)]
    return cells


def categories(rng: Generator, n: int, name: str) -> Column:
    """A column of categories, also such as look like something else."""
    tag = str(rng.choice([*CATEGORIES]))
    words = CATEGORIES[tag][rng.integers(len(CATEGORIES[tag]))]
    cells = drawn_words(rng, n, words)
    declared: dict[str, Any] = {"kind": "category"}
    values = [float(word) for word in words if re.fullmatch(r"[+-]?\d+(\.\d*)?", word, re.ASCII)]
    respelt = len({*values}) < len(values)  # one number in several ways
    if respelt:
        declared["categories"] = sorted(words)
    if tag == "gaps":
        declared["not_missing"] = [words[0]]
    if rng.random() < 0.1 and tag == "plain":
        declared["missing"] = "most-frequent"
    typed: Meaning = tuple(cells)
    if tag == "numbers" and rng.random() < 0.4 and all(word.isdigit() for word in words):
        typed = tuple(map(int, cells))
    text = [f" {cell}" if rng.random() < 0.03 else cell for cell in cells]
    return Column(
        name, f"category: {tag}", tuple(text), typed, (), tuple(cells), (), declared, declared,
        tag in ("plain", "zeros", "points and words") and not respelt,
    )  # fmt: skip


TRUTH = [
    ("no", "yes"),
    ("N", "Y"),
    ("false", "true"),
    ("False", "True"),
    ("FALSE", "TRUE"),
    ("F", "T"),
    ("0", "1"),
    ("nein", "ja"),
    ("non", "oui"),
    ("n", "y"),
]


def truth(rng: Generator, n: int, name: str) -> Column:
    """A column of two words for false and true, or of the words of two pairs."""
    pairs = [TRUTH[k] for k in rng.choice(len(TRUTH), rng.choice([1, 1, 1, 2]), replace=False)]
    meant = drawn_words(rng, n, ["0", "1"])
    cells = [pairs[rng.integers(len(pairs))][int(x)] for x in meant]
    words = sorted({word for pair in pairs for word in pair})
    numbers_meant = tuple(map(float, meant))
    if len(pairs) == 1:
        first, second = pairs[0]
        declared = {"kind": "number", "truth": [first, second]}
        typed: Meaning = tuple(map(bool, map(int, meant))) if first.casefold() == "false" else tuple(cells)
        if first == "0":
            declared, typed = {"kind": "number"}, tuple(map(int, meant))
        typed_options = declared if isinstance(typed[0], str) else {}
        return Column(
            name, f"truth: {first}", tuple(cells), typed, numbers_meant, tuple(cells), (), declared, typed_options, first not in ("nein", "non")
        )  # fmt: skip
    options = {"kind": "category"}  # which words mean the same, no option can tell
    if len(words) < 4:  # no of no/yes and of no/ja
        return Column(name, "truth: pairs", tuple(cells), tuple(cells), (), tuple(cells), (), options, options, False)
    return Column(
        name, "truth: pairs", tuple(cells), tuple(cells), numbers_meant, tuple(cells), (), options, options, False
    )


# dates
FORMS = (  # and whether the text has one meaning
    ("%Y-%m-%d", True), ("%d.%m.%Y", True), ("%d/%m/%Y", False), ("%m/%d/%Y", False), ("%Y/%m/%d", True), ("%d-%m-%Y", False),
    ("%d.%m.%y", False), ("%m/%d/%y", False), ("%y-%m-%d", False), ("%Y%m%d", False), ("%d %b %Y", True), ("%d-%b-%Y", True), ("%d%b%Y", True),
    ("%b %d, %Y", True), ("%d %B %Y", True), ("%Y-%m", False), ("%m/%Y", False), ("%Y-%m-%d %H:%M:%S", True), ("%Y-%m-%dT%H:%M:%S", True),
    ("%Y-%m-%d %H:%M", True), ("%d.%m.%Y %H:%M", True), ("%m/%d/%Y %I:%M %p", False), ("%Y-%m-%d %H:%M:%S.%f", True), ("%Y-%m-%dT%H:%M:%SZ", True),
    ("%Y-%m-%dT%H:%M:%S%z", True), ("%Y-%m-%d %H:%M:%S%z", True), ("%H:%M", False), ("%H:%M:%S", False), ("%d.%m.%y %H:%M", False),
)  # fmt: skip


def dates(rng: Generator, n: int, name: str) -> Column:
    """A column of dates of one form."""
    form, clear = FORMS[rng.integers(len(FORMS))]
    births = rng.random() < 0.4
    first, last = (
        (datetime(1928, 1, 1), datetime(2012, 12, 31)) if births else (datetime(2015, 1, 1), datetime(2023, 12, 31))
    )
    days = rng.integers(0, (last - first).days, n).tolist()
    seconds = rng.integers(0, 86400, n).tolist()
    whole = not ("%H" in form or "%I" in form)
    moments = [
        first + timedelta(days=d) + timedelta(seconds=0 if whole else s) for d, s in zip(days, seconds, strict=True)
    ]
    if rng.random() < 0.25 and (
        "%m/%d" in form or "%d/%m" in form or "%d-%m" in form
    ):  # no day tells itself from a month
        moments = [moment.replace(day=1 + moment.day % 12) for moment in moments]
    if "%f" in form:
        moments = [
            moment + timedelta(microseconds=int(m))
            for moment, m in zip(moments, rng.integers(0, 10**6, n), strict=True)
        ]
    if "%S" not in form and not whole:
        moments = [moment.replace(second=0) for moment in moments]
    if "%d" not in form and whole:
        moments = [moment.replace(day=1) for moment in moments]
    if form.startswith("%H"):
        moments = [moment.replace(year=1970, month=1, day=1) for moment in moments]
    if not whole and rng.random() < 0.2 and not form.startswith("%H"):
        moments = [moment.replace(hour=0, minute=0, second=0, microsecond=0) for moment in moments]
    if "%z" in form:
        zones = [timezone(timedelta(hours=int(rng.choice([0, 2])))) for _ in range(1 + int(rng.random() < 0.5))]
        moments = [m.replace(tzinfo=zones[rng.integers(len(zones))]) for m in moments]
    if form.endswith("Z"):
        moments = [m.replace(tzinfo=UTC) for m in moments]
    text = [moment.strftime(form) for moment in moments]
    declared: dict[str, Any] = {"kind": "date", "form": form}
    if "%y" in form:
        declared["latest"] = 2012 if births else 2023
    typed: Meaning = tuple(moment.date() if whole else moment for moment in moments)
    if form.startswith("%H"):
        typed = tuple(text)
    instants = [moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment for moment in moments]
    meant = tuple((moment - EPOCH) / timedelta(days=1) for moment in instants)
    typed_options = declared if form.startswith("%H") else {}
    return Column(
        name,
        f"date: {form}",
        tuple(text),
        typed,
        meant,
        (),
        (),
        declared,
        typed_options,
        clear and (not births or "%y" not in form),
    )


def marked_dates(rng: Generator, n: int, name: str) -> Column:
    """Dates, of which one that comes again and again, far from the rest, stands for a missing one."""
    form = str(rng.choice(["%Y-%m-%d", "%d.%m.%Y"]))
    moments = [datetime(2015, 1, 1) + timedelta(days=int(d)) for d in rng.integers(0, 3000, n)]
    mark = [datetime(9999, 12, 31), datetime(1804, 5, 6), datetime(2999, 12, 31), datetime(1753, 1, 1)][rng.integers(4)]
    gone = rng.random(n) < 0.15
    gone[rng.choice(n, 4, replace=False)] = True
    cells = [mark if lost else moment for moment, lost in zip(moments, gone, strict=True)]
    meant = tuple(
        None if lost else (moment - EPOCH) / timedelta(days=1) for moment, lost in zip(moments, gone, strict=True)
    )
    declared = {"kind": "date", "form": form, "missing_values": [mark.strftime(form)]}
    typed_options = {"kind": "date", "form": "%Y-%m-%d", "missing_values": [mark.strftime("%Y-%m-%d")]}
    text = tuple(cell.strftime(form) for cell in cells)
    return Column(
        name,
        "date: stand-in",
        text,
        tuple(cell.date() for cell in cells),
        meant,
        (),
        (),
        declared,
        typed_options,
        False,
    )


# columns that are no features
def special(rng: Generator, n: int, name: str) -> Column:
    """A column that is the same in every row, empty, counts the rows, or names them."""
    kind = str(
        rng.choice(
            [
                "constant number",
                "constant word",
                "constant date",
                "empty",
                "counting",
                "identifier",
                "long identifier",
                "name",
            ]
        )
    )
    tag = f"special: {kind}"
    if kind == "constant number":
        exact = str(rng.choice(["5", "0", "0.10", "1e3", "12.50"]))
        return Column(
            name,
            tag,
            (exact,) * n,
            (float(exact),) * n,
            (float(exact),) * n,
            (),
            (exact,) * n,
            {"kind": "number"},
            {"kind": "number"},
            False,
        )
    if kind == "constant word":
        word = str(rng.choice(["all", "yes", "F", "007", "1E1"]))
        return Column(
            name, tag, (word,) * n, (word,) * n, (), (word,) * n, (), {"kind": "category"}, {"kind": "category"}
        )
    if kind == "constant date":
        day = datetime(2020, 2, 29)
        return Column(name, tag, ("2020-02-29",) * n, (day.date(),) * n, ((day - EPOCH).days,) * n, (), (), {}, {})
    if kind == "empty":
        gap = str(rng.choice(["", "NA", "-"]))
        return Column(name, tag, (gap,) * n, (None,) * n, (None,) * n, (None,) * n)
    if kind == "name":
        words = tuple("".join(rng.choice([*string.ascii_lowercase], 8)) for _ in range(n))
        return Column(name, tag, words, words, (), words)
    start = int(rng.choice([0, 1, 1000]))
    whole = [*range(start, start + n)]
    if kind != "counting":
        low, high = (10_000, 99_999) if kind == "identifier" else (10**11, 10**12)
        whole = (
            rng.choice(np.arange(low, low + 80_000), n, replace=False).tolist()
            if high < 10**6
            else rng.integers(low, high, n).tolist()
        )
    exact_ = tuple(map(str, whole))
    return Column(name, tag, exact_, tuple(whole), tuple(map(float, whole)), exact_, exact_)


def with_gaps(column: Column, rng: Generator) -> Column:
    """The same column, of which some cells are missing, in one word or in several."""
    n = len(column.text)
    words = [word for word in GAPS if word not in {*column.text}]
    spelled = [words[k] for k in rng.choice(len(words), rng.choice([1, 1, 2, 3]), replace=False)]
    share = float(rng.choice([0.04, 0.15, 0.4]))
    gone = rng.random(n) < share
    gone[rng.integers(n)] = True
    text = tuple(
        spelled[rng.integers(len(spelled))] if lost else cell for cell, lost in zip(column.text, gone, strict=True)
    )

    def lost_in(cells: Meaning) -> Meaning:
        return tuple(None if lost else cell for cell, lost in zip(cells, gone, strict=True)) if cells else ()

    return replace(
        column, text=text, typed=lost_in(column.typed), numbers=lost_in(column.numbers), words=lost_in(column.words), exact=lost_in(column.exact)
    )  # fmt: skip


# whole tables
NAMES = ("weight {}", "c{}", "Größe {}", "dose, total {}", "x_{} (mmHg)", "PULS{}", "lab.{}", "q{}?", "élan {}")
MAKERS: tuple[tuple[float, Callable[[Generator, int, str, str], Column]], ...] = (
    (0.36, numbers),
    (0.08, marked),
    (0.22, lambda rng, n, name, decimal: categories(rng, n, name)),
    (0.1, lambda rng, n, name, decimal: truth(rng, n, name)),
    (0.13, lambda rng, n, name, decimal: dates(rng, n, name)),
    (0.03, lambda rng, n, name, decimal: marked_dates(rng, n, name)),
    (0.08, lambda rng, n, name, decimal: special(rng, n, name)),
)


def feature(rng: Generator, n: int, name: str, decimal: str) -> Column:
    """A column that may become inputs."""
    make = MAKERS[rng.choice(len(MAKERS), p=[share for share, _ in MAKERS])][1]
    column = make(rng, n, name, decimal)
    if rng.random() < 0.35 and not column.tag.startswith("special"):
        column = with_gaps(column, rng)
    return column


LABELS = (
    ("no", "yes"),
    ("well", "ill"),
    ("a", "b", "c"),
    ("0", "1"),
    ("1", "2"),
    ("10", "20", "30"),
    ("01", "02"),
    ("False", "True"),
    ("N", "Y"),
    ("low", "mid", "high", "top"),
    ("E11.9", "E11.90"),
    ("-1", "1"),
    ("T", "F"),
)


def label(rng: Generator, n: int, name: str, decimal: str, regression: bool) -> Column:
    """The column of the label."""
    if regression:
        p = int(rng.choice([0, 1, 2, 3]))
        exact = [f"{x:.{p}f}" for x in rng.lognormal(6, 1.2, n)]
        spelling = str(rng.choice(["plain", "plain", "thousands", "unit"]))
        options: dict[str, Any] = {"kind": "number"}
        text = [x.replace(".", decimal) for x in exact]
        if spelling == "thousands":
            between = sign_between(rng, decimal)
            text, options = [grouped(x, between, decimal) for x in exact], {**options, "thousands": between}
        if spelling == "unit":
            text, options = [f"{x} €" for x in text], {**options, "unit": "€"}
        typed = tuple(map(typed_number, exact))
        return Column(
            name,
            f"label: {spelling}",
            tuple(text),
            typed,
            tuple(map(float, exact)),
            (),
            tuple(exact),
            options,
            {},
            spelling == "plain",
        )
    classes = LABELS[rng.integers(len(LABELS))]
    cells = drawn_words(rng, n, classes)
    typed = tuple(cells)
    if classes[0] == "False":
        typed = tuple(cell == "True" for cell in cells)
    elif (
        all(str(int(word)) == word for word in classes if word.lstrip("-").isdigit())
        and classes[0].lstrip("-").isdigit()
    ):
        typed = tuple(map(int, cells))
    return Column(name, "label: classes", tuple(cells), typed, (), tuple(cells))


CLIENTS = (("north", "south"), ("a", "b", "c"), ("007", "07", "7"), ("1", "2", "10"), ("St. Ägid", "West"))
GROUPS = (
    ("f", "m"),
    ("F", "N"),
    ("0", "1"),
    ("x", "y", "z"),
    ("3.1", "3.10"),
    ("1E1", "10"),
    ("Yes", "No"),
    ("<65", "≥65"),
    ("01", "1"),
)
PARTS = (("train", "test"), ("Train", "TEST"), ("training", "testing"))


def draw(seed: int, *, sites: bool = False, rows: int | None = None) -> Table:
    """A table of a seed; with ``sites`` such as several sites agree on, which is declared and has test rows of its own."""
    rng = np.random.default_rng([seed, 0])
    n = rows or int(rng.integers(36, 90))
    decimal = "," if rng.random() < 0.4 else "."
    regression = bool(rng.random() < 0.2)
    used = rng.choice(len(NAMES), 12).tolist()
    names = [NAMES[used[k]].format(k) for k in range(12)]
    columns = tuple(feature(rng, n, name, decimal) for name in names[: int(rng.integers(2, 6))])
    plain = bool(rng.random() < 0.5)  # usual names
    roles = {"label": label(rng, n, "label" if plain else "outcome", decimal, regression)}
    options: dict[str, Any] = {} if plain else {"label": "outcome"}
    if regression:
        options["task"] = "regression"

    def words(role: str, name: str, choices: Sequence[Sequence[str]], p: float) -> None:
        if rng.random() < p:
            picked = choices[rng.integers(len(choices))]
            cells = drawn_words(rng, n, picked)
            typed: Meaning = tuple(cells)
            if all(word.isdigit() and str(int(word)) == word for word in picked) and rng.random() < 0.5:
                typed = tuple(map(int, cells))
            roles[role] = Column(role if plain else name, f"{role}: words", tuple(cells), typed, (), tuple(cells))
            if not plain:
                options[role] = name

    if not sites:
        words("client", "hospital", CLIENTS, 0.75)
    if "client" not in roles:
        options["clients"] = 2
    words("split", "part", PARTS, 1.0 if sites else 0.3)
    edges: dict[str, tuple[float, ...]] = {}
    if rng.random() < 0.3:
        words("group", "sex", GROUPS, 1)
    elif rng.random() < 0.35:  # bands of numbers, also with signs
        p = int(rng.choice([0, 0, 2]))
        exact = [f"{x:.{p}f}" for x in rng.uniform(200, 90_000, n)]
        if rng.random() < 0.5:
            exact = [f"{x:.1f}" for x in rng.uniform(18, 90, n)]
        values = np.array([*map(float, exact)])
        low, high = (float(f"{q:.3g}") for q in np.quantile(values, [0.33, 0.66]))
        between = sign_between(rng, decimal) if rng.random() < 0.4 else ""
        text = tuple(grouped(x, between, decimal) if between else x.replace(".", decimal) for x in exact)
        declared = (
            {"kind": "number"}
            | ({"thousands": between} if between else {})
            | ({"decimal": decimal} if decimal == "," else {})
        )
        tag = "group: bands, thousands" if between else "group: bands"
        roles["group"] = Column(
            "income",
            tag,
            text,
            tuple(map(typed_number, exact)),
            tuple(values.tolist()),
            (),
            tuple(exact),
            declared,
            {},
            not between,
        )
        options["group"] = f"income:{low:g},{high:g}"
        edges["income"] = low, high
    if "split" not in roles and rng.random() < 0.2:
        people = [f"{k:03d}" for k in rng.integers(0, n // 2, n)]
        roles["subject"] = Column(
            "subject" if plain else "patient", "subject", tuple(people), tuple(people), (), tuple(people)
        )
        if not plain:
            options["subject"] = "patient"
    return Table(seed, columns, roles, options, decimal, sites or bool(rng.random() < 0.5), edges)


# writers
@dataclass(frozen=True)
class Written:
    """A file, the options with which it has one meaning, and of text by hand the sign between its cells."""

    path: Path
    options: Mapping[str, Any]
    how: str
    sep: str = ""


def declared(table: Table, rng: Generator, *, typed: bool, every: bool = False) -> dict[str, Any]:
    """The options of columns that are declared: all of them, or those that must be, or none; only such as a column may have."""
    made = {}
    for column in [*table.columns, *table.roles.values()]:
        options = column.declared_typed if typed else column.declared
        must = (
            column.tag in ("category: numbers", "category: commas", "category: odd", "number: scaled")
            or "missing" in options
        )
        wanted = every or (not column.clear or rng.random() < 0.3 if table.declares else False) or must
        if options and wanted:
            made[column.name] = {name: value for name, value in options.items() if name in OPTIONS}
    return made


def delimited(names: Sequence[str], rows: Sequence[Sequence[str]], rng: Generator, sep: str, end: str) -> str:
    """The text of a table."""
    file = io.StringIO()
    quoting = csv.QUOTE_ALL if rng.random() < 0.15 else csv.QUOTE_MINIMAL
    writer = csv.writer(file, delimiter=sep, lineterminator=end, quoting=quoting)
    writer.writerow(names)
    blank = set(rng.choice(len(rows), 2).tolist()) if rng.random() < 0.1 else set()
    for k, row in enumerate(rows):
        if k in blank:
            file.write(end)
        writer.writerow(row)
    return file.getvalue()


def by_hand(table: Table, folder: Path, rng: Generator, **how: Any) -> Written:
    """A text file as people and small programs write it."""
    columns = table.ordered()
    sep = str(how.get("sep") or rng.choice([",", ";", "\t", "|"], p=[0.45, 0.35, 0.12, 0.08]))
    text = delimited(
        [column.name for column in columns],
        [*zip(*(column.text for column in columns), strict=True)],
        rng,
        sep,
        str(rng.choice(["\n", "\r\n"])),
    )
    encoding = str(
        how.get("encoding") or rng.choice(["utf-8", "utf-8-sig", "latin-1", "utf-16"], p=[0.7, 0.12, 0.1, 0.08])
    )
    try:
        data = text.encode(encoding)
    except UnicodeEncodeError:
        encoding = "utf-8"
        data = text.encode()
    packed, pack = [
        ("", bytes),
        ("", bytes),
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
    ][rng.integers(6)]  # type: ignore[var-annotated]
    path = folder / f"t{table.seed}.{'tsv' if sep == chr(9) and not packed else 'csv'}{packed}"
    path.write_bytes(pack(data))
    options: dict[str, Any] = {"encoding": "latin-1"} if encoding == "latin-1" else {}
    if how.get("declare_sep") or rng.random() < 0.2:
        options["sep"] = "tab" if sep == "\t" else sep
    if table.decimal == "," and (table.declares or rng.random() < 0.3):
        options["decimal"] = ","
    return Written(
        path, options | {"columns": declared(table, rng, typed=False)}, f"by hand, sep {sep!r}, {encoding}", sep
    )


STYLES = ("usual", "nullable", "object", "decimal")


def moment(cell: Any) -> Any:
    """A date as the moment at which it begins; others as they are."""
    return cell if cell is None or isinstance(cell, datetime) else datetime.combine(cell, datetime.min.time())


def series(column: Column, style: str, rng: Generator) -> pd.Series[Any]:
    """A column of a frame, in one of the types that pandas has for it."""
    cells = list(column.typed)
    if not any(cell is not None for cell in cells):
        return pd.Series(cells, dtype=["object", "float64"][rng.integers(2)])
    first = next(cell for cell in cells if cell is not None)
    gaps = any(cell is None for cell in cells)
    if isinstance(first, bool):
        return pd.Series(
            cells,
            dtype="boolean"
            if style == "nullable" or (gaps and style != "object")
            else "object"
            if style == "object"
            else "bool",
        )
    if isinstance(first, int | float):
        whole = all(isinstance(cell, int) for cell in cells if cell is not None)
        if style == "object":
            return pd.Series(cells, dtype=object)
        if style == "decimal" and column.exact and all(abs(Decimal(x)) < 10**12 for x in column.exact if x is not None):
            return pd.Series([None if x is None else Decimal(x) for x in column.exact], dtype=object)
        if style == "nullable":
            return pd.Series(cells, dtype="Int64" if whole else "Float64")
        return pd.Series(cells, dtype="int64" if whole and not gaps else "float64")
    if isinstance(first, str):
        dtype = {"usual": "str", "nullable": "string", "object": "object", "decimal": "category"}[style]
        return pd.Series(cells, dtype=dtype)
    if style == "object":
        return pd.Series(cells, dtype=object)
    aware = getattr(first, "tzinfo", None) is not None
    moments = [cell.astimezone(UTC) if aware and cell is not None else moment(cell) for cell in cells]
    return pd.Series(
        pd.to_datetime(pd.Series(moments, dtype=object)).astype("datetime64[us, UTC]" if aware else "datetime64[us]")
    )


def frame_of(table: Table, rng: Generator, style: str | None = None, *, roles: bool = True) -> pd.DataFrame:
    """The table as a frame, of one style, or of all of them."""
    names = {column.name for column in table.columns}
    columns = [column for column in table.ordered() if roles or column.name in names]
    return pd.DataFrame(
        {column.name: series(column, style or STYLES[rng.integers(len(STYLES))], rng) for column in columns}
    )


def by_pandas(table: Table, folder: Path, rng: Generator, **how: Any) -> Written:
    """What ``DataFrame.to_csv`` writes."""
    frame = frame_of(table, rng, str(how.get("style") or rng.choice(["usual", "nullable", "object"])))
    comma = table.decimal == ","
    sep = str(how.get("sep") or rng.choice([";", "\t"] if comma else [",", ";", "\t"]))
    na = str(rng.choice(["", "", "NA", "nan"]))
    if any(na in column.words for column in table.columns):
        na = ""
    path = folder / f"t{table.seed}.csv"
    frame.to_csv(path, index=bool(rng.random() < 0.2), sep=sep, na_rep=na, decimal="," if comma else ".")
    options: dict[str, Any] = {"decimal": ","} if comma and (table.declares or rng.random() < 0.3) else {}
    return Written(path, options | {"columns": declared(table, rng, typed=True)}, f"pandas.to_csv, sep {sep!r}")


def by_pandas_parquet(table: Table, folder: Path, rng: Generator, **how: Any) -> Written:
    """What ``DataFrame.to_parquet`` writes."""
    frame = frame_of(table, rng)
    for name in frame:  # pyarrow refuses to guess the type of mixed objects, such as times of several zones
        if frame[name].dtype == object and len({type(cell) for cell in frame[name] if cell is not None}) > 1:
            frame[name] = frame[name].astype(float)
    if rng.random() < 0.2:
        frame = frame.set_index(str(frame.columns[0]))
    elif rng.random() < 0.2:
        frame.index = pd.Index(rng.permutation(len(frame)))
    path = folder / f"t{table.seed}.parquet"
    frame.to_parquet(path)
    return Written(path, {"columns": declared(table, rng, typed=True)}, "pandas.to_parquet")


def arrow(column: Column, rng: Generator) -> pa.Array:
    """A column in one of the types that pyarrow has for it."""
    cells = list(column.typed)
    first = next((cell for cell in cells if cell is not None), None)

    def of(values: Sequence[Any], *types: pa.DataType) -> pa.Array:
        return pa.array(values, types[rng.integers(len(types))])

    if first is None:
        return of(cells, pa.null(), pa.float64(), pa.string())
    if isinstance(first, bool):
        return pa.array(cells, pa.bool_())
    if isinstance(first, int | float):
        numbers = [cell for cell in cells if cell is not None]
        whole = all(isinstance(cell, int) for cell in numbers)
        types = [pa.int64(), pa.float64()] if whole else [pa.float64()]
        low, high = min(numbers), max(numbers)
        if whole:
            types += (
                [pa.int16()] * (abs(low) < 2**15 > abs(high))
                + [pa.uint32()] * (low >= 0 and high < 2**32)
                + [pa.uint64()] * (low >= 0)
            )
        if all(float(np.float32(x)) == x for x in numbers):
            types += [pa.float32()]
        if (
            column.exact
            and all(abs(Decimal(x)) < 10**12 for x in column.exact if x is not None)
            and rng.random() < 0.35
        ):
            return pa.array([None if x is None else Decimal(x) for x in column.exact], pa.decimal128(30, 12))
        made: pa.Array = (
            of([None if x is None else float(x) for x in cells], *types) if not whole else pa.array(cells, pa.int64())
        )
        return made.cast(types[rng.integers(len(types))], safe=False) if whole else made
    if isinstance(first, str):
        kind = rng.integers(5)
        if kind == 4:
            return pa.array([None if cell is None else cell.encode() for cell in cells], pa.binary())
        made = pa.array(cells, [pa.string(), pa.large_string(), pa.string(), pa.string()][kind])
        return made.dictionary_encode() if kind == 2 else made
    if not isinstance(first, datetime):
        made = pa.array(cells, pa.date32())
        return made if rng.random() < 0.5 else made.cast(pa.timestamp(str(rng.choice(["ms", "us"]))))
    if first.tzinfo is not None:
        return pa.array(cells, pa.timestamp("us", str(rng.choice(["UTC", "+02:00"]))))
    exact = all(cell is None or cell.microsecond == 0 for cell in cells)
    return of(cells, pa.timestamp("us"), pa.timestamp("us" if not exact else "ms"))


def by_pyarrow(table: Table, folder: Path, rng: Generator, **how: Any) -> Written:
    """A Parquet file with the types that pandas lacks."""
    path = folder / f"t{table.seed}.parquet"
    columns = table.ordered()
    pq.write_table(pa.table({column.name: arrow(column, rng) for column in columns}), path)
    return Written(path, {"columns": declared(table, rng, typed=True)}, "pyarrow")


def by_text_parquet(table: Table, folder: Path, rng: Generator, **how: Any) -> Written:
    """A Parquet file in which every cell is text, as a person writes it."""
    path = folder / f"t{table.seed}.parquet"
    pq.write_table(pa.table({column.name: pa.array(list(column.text)) for column in table.ordered()}), path)
    return Written(path, {"columns": declared(table, rng, typed=False)}, "text in Parquet")


def by_excel(table: Table, folder: Path, rng: Generator, **how: Any) -> Written:
    """A sheet with typed cells."""
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    columns = table.ordered()
    sheet.append([column.name for column in columns])
    for row in zip(*(column.typed for column in columns), strict=True):
        sheet.append(
            [cell.astimezone(UTC).replace(tzinfo=None) if getattr(cell, "tzinfo", None) else cell for cell in row]
        )
    for row in sheet.iter_rows():  # words that begin with = are no formulas
        for cell in row:
            if cell.data_type == "f":
                cell.data_type = "s"
    path = folder / f"t{table.seed}.xlsx"
    book.save(path)
    return Written(path, {"columns": declared(table, rng, typed=True)}, "Excel")


Writer = Callable[..., Written]
WRITERS: Mapping[str, Writer] = {
    "hand": by_hand,
    "pandas csv": by_pandas,
    "pandas parquet": by_pandas_parquet,
    "pyarrow": by_pyarrow,
    "text parquet": by_text_parquet,
    "excel": by_excel,
}


def writers_of(table: Table, excel: bool) -> Iterator[str]:
    """The writers that can hold a table."""
    far = any(column.tag == "date: stand-in" for column in table.columns)
    for name in WRITERS:
        if name == "excel" and (not excel or far):
            continue
        yield name


# the independent reading
def kinds(column: Column) -> list[str]:
    """The ways in which a column may be coded without a change of its meaning."""
    made = ["number"] * bool(column.numbers) + ["category"] * bool(column.words)
    return made + ["two"] * (len({*column.words} - {None}) in (1, 2))


@dataclass(frozen=True)
class Coded:
    """Numbers as inputs [n], of which NaN are missing; the least and the most that a missing one counts as; and what was learnt."""

    values: np.ndarray[Any, Any]
    low: float
    high: float
    centre: float
    scale: float

    @property
    def gone(self) -> np.ndarray[Any, Any]:
        """Which are missing."""
        return np.isnan(self.values)


def coded_numbers(column: Column, train: Sequence[int], options: Mapping[str, Any]) -> Coded:
    """The numbers of a column as inputs, of which the rows ``train`` are learnt; of ``robust`` they are not coded."""
    scaling, missing = options.get("scaling", "standard"), options.get("missing", "median")
    values = np.array([math.nan if x is None else x for x in column.numbers], np.float64)
    learnt = values[train]
    learnt = learnt[~np.isnan(learnt)]
    spread, whole = float(learnt.std()), 0.5 * (not (learnt % 1).any())
    low = float(np.quantile(learnt, 0.44, method="lower")) - 0.05 * spread - whole
    high = float(np.quantile(learnt, 0.56, method="higher")) + 0.05 * spread + whole
    if missing == "mean":
        low = high = float(learnt.mean())
    if scaling == "log":
        values, learnt, low, high = np.log1p(values), np.log1p(learnt), math.log1p(max(low, -0.99)), math.log1p(high)
    if scaling in ("none", "robust"):
        return Coded(values, low, high, 0.0, 1.0)
    centre = learnt[0] + math.fsum((learnt - learnt[0]).tolist()) / len(learnt)
    scale = math.sqrt(math.fsum(np.square(learnt - centre).tolist()) / len(learnt))
    if len(np.unique(learnt)) == 1:
        scale = 1.0
    return Coded((values - centre) / scale, (low - centre) / scale, (high - centre) / scale, centre, scale)
