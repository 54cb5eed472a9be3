"""What the columns of a table are and how each becomes inputs: read from the table, written as TOML, and kept with a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from equipoise.data.contents import DataError
from equipoise.data.tables.words import EXACT, NUMBER as NUMERIC
from equipoise.system.suggestions import some, unknown

NUMBER, CATEGORY, DATE, LEFT_OUT = "number", "category", "date", "left out"
KINDS = (NUMBER, CATEGORY, DATE)
SCALINGS = ("standard", "robust", "log", "none")
CHOICES = {"kind": (*KINDS, LEFT_OUT), "scaling": SCALINGS, "coding": ("one-hot", "ordinal")}
RARE = ' Of many categories: one-hot with a higher "least", so that rare ones share an input.'
FILLS = {**dict.fromkeys((NUMBER, DATE), ("median", "mean", "refuse")), CATEGORY: ("own", "most-frequent", "refuse")}
EXPONENT = r"\d{1,3}[eE]\d{1,2}"  # 1E1, which is ten or a code
CODE = re.compile(rf"[+-]?0\d|{EXPONENT}$")  # what a code begins with that could be a number
CHOSEN = "the schema leaves it out"
OPTIONS = {  # of each kind, in addition to its kind and what stands for a missing cell
    NUMBER: {"scaling", "low", "high", "thousands", "decimal", "unit", "truth"},
    DATE: {"scaling", "low", "high", "form", "latest"},
    CATEGORY: {"coding", "categories", "least", "not_missing"},
}


def plain(word: str) -> str:
    """The name of a category; of a whole number the shortest, so that 1.0, which a column with missing cells may hold, is 1 in one without.

    A code with zeros before it, 007, stays, and so do one with a letter E, 1E1, and one with zeros after a fraction, 3.10; programs
    write 1e+01 for ten.
    """
    if not NUMERIC.fullmatch(word) or CODE.match(word) or not abs(number := float(word)) < EXACT:
        return word
    return str(int(number)) if number.is_integer() else word


def number_of(word: str) -> str:
    """The number that a word is, in one spelling, so that 2.50 and 2.5 are alike; all other words as they are."""
    return repr(float(word)) if NUMERIC.fullmatch(word) and not CODE.match(word) and float(word) < EXACT else word


@dataclass(frozen=True)
class Feature:
    """One column of a table, and how it becomes inputs.

    Parameters
    ----------
    name : of the column; columns are matched by it, wherever they stand.
    kind : ``"number"``, ``"category"``, or ``"date"``, which is the number of days since 1970.
    scaling : of numbers. ``"standard"``: ``(x - mean) / STD``; ``"robust"``: ``(x - median) / (upper quartile - lower quartile)``;
        ``"log"``: ``log(1 + x)`` of numbers >= 0, then standard; ``"none"``.
    coding : of categories. ``"one-hot"``: an input for each; ``"ordinal"``: their place in ``categories``, scaled as a number.
    missing : what stands for a missing cell. Of numbers the ``"median"`` or ``"mean"`` of the training rows, with an input that
        flags it; of categories one of its ``"own"``, or the ``"most-frequent"``; ``"refuse"``: such a table is refused.
    categories : the categories, in order; empty: those of at least ``least`` training rows, in the order of the alphabet.
        All others are joined as one.
    least : >= 1, training rows of a category that has an input of its own.
    low, high : numbers beyond these are refused; None: any.
    form : of dates, as :func:`datetime.datetime.strptime` reads them, such as ``"%d.%m.%Y"``.
    thousands, decimal : the signs in numbers that are text.
    unit : a sign in every number, such as ``"%"`` or ``"€"``, which is ignored.
    not_missing : words that usually mark a missing cell, and are categories here, such as ``"None"``.
    missing_values : numbers or words that mark a missing cell here, such as ``0`` of a blood pressure, or ``"unknown"``.
    truth : the words for 0 and 1, such as ``("no", "yes")``, in turn if there are several pairs.
    latest : of dates whose years have two digits, the last year that they may be: 2026 for years from 1927 to 2026.
    """

    name: str
    kind: str = NUMBER
    scaling: str = "standard"
    coding: str = "one-hot"
    missing: str | None = None
    categories: tuple[str, ...] = ()
    least: int = 1
    low: float | None = None
    high: float | None = None
    form: str = ""
    thousands: str = ""
    decimal: str = "."
    unit: str = ""
    not_missing: tuple[str, ...] = ()
    missing_values: tuple[str, ...] = ()
    truth: tuple[str, ...] = ()
    latest: int | None = None

    def __post_init__(self) -> None:
        if tuple(vars(self).values())[1:] == PLAIN:
            object.__setattr__(self, "missing", FILLS[NUMBER][0])
            return
        for fault in self._faults():
            raise DataError(f"column {self.name}: {fault}")
        object.__setattr__(self, "missing", self.missing or FILLS[self.kind][0])
        object.__setattr__(self, "missing_values", tuple(plain(str(word).strip()) for word in self.missing_values))
        for option in ("categories", "truth"):
            object.__setattr__(self, option, tuple(str(word).strip() for word in getattr(self, option)))
        object.__setattr__(self, "not_missing", tuple(map(str, self.not_missing)))

    def _faults(self) -> Iterator[str]:
        """What is wrong with the options."""
        for option, options in CHOICES.items():
            if (value := getattr(self, option)) not in options or value == LEFT_OUT:
                yield unknown(option, value, options) + RARE * (option == "coding")
        if self.missing not in (None, *FILLS[self.kind]):
            yield f"missing must be {some(FILLS[self.kind])} of a {self.kind}; found {self.missing!r}."
        if self.thousands == self.decimal:
            yield f"thousands and decimal are both {self.decimal!r}. Write decimal, too."
        if (self.scaling, self.missing) == ("log", "mean"):
            yield 'with scaling = "log" the mean would be that of logarithms, not of the column. Take missing = "median".'
        if isinstance(self.least, bool) or self.least != int(self.least) or self.least < 1:
            yield f"least must be a whole number >= 1; found {self.least!r}."
        if self.kind == DATE and not self.form:
            yield 'a date needs its form, such as form = "%Y-%m-%d".'
        yield from self._faults_of_words()

    def _faults_of_words(self) -> Iterator[str]:
        """What is wrong with the options about words, and that others are of another kind."""
        if self.latest is not None and (type(self.latest) is not int or "%y" not in self.form):
            yield f"latest must be a year, such as 2026, of a form with %y; found {self.latest!r}."
        if self.truth and (len(self.truth) % 2 or len({*map(str.casefold, map(str, self.truth))}) < len(self.truth)):
            yield f'truth must be the words for 0 and 1, such as ["no", "yes"]; found {list(self.truth)!r}.'
        counts = Counter(str(word).strip() for word in self.categories)
        if doubled := sorted(word for word, n in counts.items() if n > 1):
            yield f"categories has {some(list(map(repr, doubled)))} twice. Leave one out."
        own = OPTIONS[self.kind]
        for name, usual in USUAL.items():
            if name not in ("missing", "missing_values", *own) and getattr(self, name) != usual:
                yield f"{name} is no option of a {self.kind}, whose options are missing, missing_values, {some(sorted(own))}."

    def written(self) -> dict[str, Any]:
        """What differs from the defaults, and the kind: as TOML has it."""
        options = vars(self)
        changed = {name: options[name] for name, value in WITHOUT[self.kind].items() if options[name] != value}
        return {"kind": self.kind} | {name: list(v) if isinstance(v, tuple) else v for name, v in changed.items()}


USUAL = {f.name: f.default for f in fields(Feature) if f.name not in ("name", "kind")}
WITHOUT = {kind: USUAL | {"missing": FILLS[kind][0]} for kind in KINDS}  # what columns have without any option
PLAIN = (NUMBER, *USUAL.values())  # a column of numbers without any option
NAME = "\0"  # of a column, in a template
LATER = {"missing_values", "truth", "latest"}  # options without which a schema has the hash of earlier versions


@dataclass(frozen=True)
class Schema:
    """The columns that become inputs, in the order of the inputs, and those that are left out, each with the reason."""

    features: tuple[Feature, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that become inputs."""
        return tuple(feature.name for feature in self.features)

    def as_json(self) -> dict[str, Any]:
        """As a mapping that JSON and TOML hold."""
        columns = {feature.name: feature.written() for feature in self.features}
        return {"columns": columns, "left_out": dict(self.left_out)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that decides how a table is coded."""
        templates = dict[tuple[Any, ...], str]()  # of columns that differ only in their names
        columns = []
        for f in self.features:
            key = (*vars(f).values(), type(f.low), type(f.high), type(f.least))[1:]
            if key not in templates:
                options = vars(f) | {"name": NAME}
                decisive = sorted((name, value) for name, value in options.items() if value or name not in LATER)
                templates[key] = json.dumps([NAME, decisive])
            columns.append(templates[key].replace(json.dumps(NAME), json.dumps(f.name)))
        return hashlib.sha256(f"[{', '.join(columns)}]".encode()).hexdigest()

    @staticmethod
    def of(columns: Mapping[str, Any], left_out: Mapping[str, str] | None = None) -> Schema:
        """The schema of ``[columns.NAME]`` tables of a TOML file; a column whose kind is ``"left out"`` becomes no input.

        Raises
        ------
        DataError : an option or a value that does not exist, with the column's name.
        """
        features, left = [], dict(left_out or {})
        for name, written in columns.items():
            if isinstance(written, Mapping) and written.get("kind") == LEFT_OUT:
                left[name] = CHOSEN
            else:
                features.append(Feature(name, **_options(name, written)))
        return Schema(tuple(features), left)

    def merged(self, columns: Mapping[str, Any]) -> Schema:
        """A schema with the options of some of its columns replaced, as a user writes them."""
        if not columns:
            return self
        features, left = [], {}
        for name, before in ({f.name: f for f in self.features} | dict(self.left_out)).items():
            written = _options(name, columns[name]) if name in columns else {}
            feature = before if isinstance(before, Feature) else None
            kind = kind_of(written) if feature is None else written.get("kind", feature.kind)
            if kind == LEFT_OUT or not (feature or written):
                left[name] = CHOSEN if isinstance(before, Feature) else before
            else:
                same = feature.written() if feature and kind == feature.kind else {}
                features.append(Feature(name, **same | {"kind": kind} | written))
        return Schema(tuple(features), left)


def kind_of(options: Mapping[str, Any]) -> str:
    """The kind of a column by the options that a user wrote."""
    if "kind" in options:
        return str(options["kind"])
    if {"form", "latest"} & options.keys():
        return DATE
    return CATEGORY if {"categories", "coding", "least", "not_missing"} & options.keys() else NUMBER


def _options(name: str, written: object) -> dict[str, Any]:
    """The options of a column, as a user wrote them."""
    if not isinstance(written, Mapping):
        raise DataError(f'column {name}: expected a table such as {{ kind = "number" }}; found {written!r}.')
    for option in ("categories", "not_missing", "missing_values", "truth"):
        if not isinstance(written.get(option, ()), list | tuple):
            raise DataError(
                f'column {name}: {option} must be a list, such as ["low", "high"]; found {written[option]!r}.'
            )
    for option in ("low", "high", "least"):
        value = written.get(option)
        if isinstance(value, bool) or not isinstance(value, int | float | None) or value != value:
            raise DataError(f"column {name}: {option} must be a number; found {value!r}.")
    if wrong := sorted({*map(str, written)} - {"kind", *USUAL}):
        raise DataError(f"column {name}: {unknown('option', wrong[0], sorted({'kind', *USUAL}))}")
    return dict(written)
