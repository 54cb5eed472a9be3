"""Rows of a table as inputs of a network, as a schema and what was learnt from training rows say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.tables.cells import Cells, Place, Raw, RawTable, raw_of, read_cells
from equipoise.data.tables.columns import require_columns, together
from equipoise.data.tables.schema import CATEGORY, NUMBER, Feature, Schema, number_of
from equipoise.data.tables.sums import Fitted, Rows, fit, logarithm
from equipoise.system.seals import typed
from equipoise.system.suggestions import some

OTHER, MISSING = "other", "missing"  # names of inputs
MANY, UNLIKE = 10, 3.0  # rows, and standard deviations from the mean: a median so far off is noted
FAR = {"standard": 20.0, "log": 20.0}  # standard deviations from the mean: such a number is noted


@dataclass(frozen=True)
class Coder:
    """Makes inputs of rows, each on its own: a row has the same inputs in every table."""

    schema: Schema
    fitted: Mapping[str, Fitted]

    @staticmethod
    def fitted_to(table: RawTable, clients: Iterable[Rows]) -> Coder:
        """What is learnt from the training rows of every client."""
        return Coder(table.schema, fit(table, list(clients)))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs, in order: ``age``, ``age missing``, ``sex=Male``."""
        return tuple(name for f in self.schema.features for name in input_names(f, self.fitted[f.name]))

    def __call__(self, columns: Mapping[str, Cells]) -> NDArray[np.float32]:
        """The inputs [n, D] of rows."""
        made, first = np.empty((len(next(iter(columns.values())).values), len(self.names)), np.float32), 0
        for feature in self.schema.features:  # one at a time, as all in double precision take three times the memory
            part = _coded(feature, self.fitted[feature.name], columns[feature.name])
            made[:, first : first + part.shape[1]] = part
            first += part.shape[1]
        if not np.isfinite(made).all():
            row, column = np.argwhere(~np.isfinite(made))[0].tolist()
            raise DataError(
                f"input {self.names[column]} of row {row + 1} is too large for float32. Correct or scale it."
            )
        return made

    def of_frame(self, frame: Any, source: str = "the table") -> tuple[NDArray[np.float32], list[str]]:
        """The inputs of a pandas frame, whose columns are matched by name, and notes on what training has not seen.

        Raises
        ------
        DataError : columns are missing, or cells are not what the schema says; all problems at once.
        """
        names = [str(name).strip() for name in frame.columns]
        if doubled := {name for name in self.schema.names if names.count(name) > 1}:
            raise DataError(f"{source}: two columns are called {some(sorted(doubled))}. Rename one.")
        require_columns(names, self.schema.names, source)
        raw = {f.name: raw_column(frame.iloc[:, names.index(f.name)]) for f in self.schema.features}
        return self.of_raw(raw, source, lambda k: f"row {k + 1}")

    def of_raw(
        self, raw: Mapping[str, Raw], source: str, at: Place, signs: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], list[str]]:
        """The inputs of columns as a reader gives them, and notes; ``at(k)`` is the place of row k, ``signs`` options of this table."""
        if not len(next(iter(raw.values()))):
            raise DataError(f"{source} holds no row, so there is nothing to predict.")
        columns, problems = {}, list[str]()
        for feature in self.schema.features:
            if signs and feature.kind == NUMBER:
                feature = replace(feature, **signs)
            columns[feature.name], wrong = read_cells(feature, raw[feature.name], at)
            problems += wrong
        notes = self.notes(columns, source, problems)
        return self(columns), notes

    def notes(self, columns: Mapping[str, Cells], source: str, problems: Sequence[str] = ()) -> list[str]:
        """Notes on cells that training has not seen.

        Raises
        ------
        DataError : there are ``problems``, or most cells of a column seem to be written otherwise than in training.
        """
        each = [strangers(f, self.fitted[f.name], columns[f.name]) for f in self.schema.features]
        if problems := [*problems, *(problem for strange, _ in each for problem in strange)]:
            raise DataError(together(source, problems))
        return [note for _, said in each for note in said]

    def as_json(self) -> dict[str, Any]:
        """As a mapping that JSON holds, with the schema's hash."""
        return self.schema.as_json() | {
            "sha256": self.schema.digest,
            "fitted": {
                name: vars(learnt) | {"categories": [*learnt.categories]} for name, learnt in self.fitted.items()
            },
        }

    @staticmethod
    def of(content: Mapping[str, Any]) -> Coder:
        """What :meth:`as_json` gave."""
        return Coder(Schema.of(content["columns"], content["left_out"]), typed(dict[str, Fitted], content["fitted"]))


def raw_column(column: Any) -> Raw:
    """A column of a pandas frame: numbers and dates as they are, and what else it holds as words."""
    if column.dtype.kind in "biuf":
        numbers: NDArray[Any] = column.to_numpy(np.float64, na_value=np.nan)
        return numbers
    if column.dtype.kind == "M":
        return np.asarray((column.dt.tz_convert("UTC").dt.tz_localize(None) if column.dt.tz else column).to_numpy())
    return raw_of(column.tolist())


def strangers(feature: Feature, fitted: Fitted, cells: Cells) -> tuple[list[str], list[str]]:
    """Problems and notes on cells of a column that training has not seen: other categories, missing ones, numbers far from all others.

    A column of which most cells are unknown categories is a problem, as it is probably written otherwise. Where training joined rare ones,
    their names are not kept, so that it is one only if a cell is a category in other capitals, or without its leading zeros.
    """
    column, notes = f"column {feature.name}:", list[str]()
    gone, n = int(cells.missing.sum()), len(cells.values)
    if n >= MANY and gone == n:
        return [], [
            f"{column} every cell of {n:,} is missing, and counts as {fitted.fill}. Is the column empty at its source?"
        ]
    if gone and not fitted.flagged:
        stands = "none of its categories" if feature.kind == CATEGORY and feature.missing == "own" else f"{fitted.fill}"
        lost = f"{gone:,} cells are missing, and count" if gone > 1 else "1 cell is missing, and counts"
        notes.append(f"{column} {lost} as {stands}; in training none was missing.")
    if feature.kind != CATEGORY:
        away = np.abs(logarithm(feature, cells.values[~cells.missing]) - fitted.centre) / fitted.scale
        if feature.scaling in FAR and (far := int((away > FAR[feature.scaling]).sum())):
            numbers = "numbers are" if far > 1 else "number is"
            notes.append(f"{column} {far:,} {numbers} very far from those of training. Is the unit the same?")
        elif n - gone >= MANY and feature.scaling in FAR and np.median(away) > UNLIKE:
            middle = float(np.nanmedian(cells.values))
            notes.append(f"{column} the median is {middle:g}, far from the numbers of training. Is its unit the same?")
        return [], notes
    counts = np.bincount(cells.values[~cells.missing], minlength=len(cells.words)).tolist()
    place = places_of(fitted, cells.words)
    new = {word: n for word, n in zip(cells.words, counts, strict=True) if n and word not in place}
    strange, present = sum(new.values()), sum(counts)
    most = 2 * strange > present > 1
    if not new or (fitted.joined and not most):
        return [], notes
    spelled = {_spelling(word): word for word in fitted.categories}
    meant = [f"{word!r} for {spelled[_spelling(word)]!r}" for word in new if _spelling(word) in spelled]
    named = some([f"{word!r} in {n:,}" for word, n in new.items()], 5)
    if most and (meant or not fitted.joined):
        why = "It is written otherwise than in training" if meant else "Is it written as in training"
        how = f": {some(meant, 3)}." if meant else "?"
        if any(word.isdigit() for word in new):
            how += f" In pandas, read it as text, dtype={{{feature.name!r}: str}}."
        return [
            f"{column} {strange:,} of {present:,} cells are no category of training ({named}; in training "
            f"{some([*map(repr, fitted.categories)], 5)}). {why}{how}"
        ], notes
    if fitted.joined:
        notes.append(
            f"{column} {strange:,} of {present:,} cells are rare or unknown categories. Is it written as in training?"
        )
    else:
        stands = "halfway between its two" if _single(fitted) else "none of its"
        notes.append(
            f"{column} {strange:,} of {present:,} cells did not occur in training ({named}), and count as {stands} categories."
        )
    return [], notes


def places_of(fitted: Fitted, words: Iterable[str]) -> dict[str, int]:
    """The places of the words that are categories: as they are written, or as the only category that is the same number."""
    exact, alike = {word: k for k, word in enumerate(fitted.categories)}, dict[str, list[int]]()
    for word, k in exact.items():
        alike.setdefault(number_of(word), []).append(k)
    places = dict[str, int]()
    for word in words:
        same = [exact[word]] if word in exact else alike.get(number_of(word), [])
        if len(same) == 1:
            places[word] = same[0]
    return places


def _spelling(word: str) -> str:
    """A category without what programs change: capitals and leading zeros."""
    return word.casefold().lstrip("0") or "0"


def input_names(feature: Feature, fitted: Fitted) -> list[str]:
    """The inputs that a column becomes, in order."""
    flag = [f"{feature.name} {MISSING}"] * fitted.flagged
    if feature.kind != CATEGORY or feature.coding == "ordinal":
        return [feature.name, *flag]
    shown = fitted.categories[1:] if _single(fitted) else fitted.categories
    return [*(f"{feature.name}={word}" for word in shown), *[f"{feature.name} {OTHER}"] * fitted.joined, *flag]


def _single(fitted: Fitted) -> bool:
    """Whether one input says all of two categories."""
    return len(fitted.categories) == 2 and not fitted.joined and not fitted.flagged


def _coded(feature: Feature, fitted: Fitted, cells: Cells) -> NDArray[np.float64]:
    gone = cells.missing
    flag = gone[:, None].astype(np.float64)[:, : int(fitted.flagged)]
    if feature.kind != CATEGORY:
        values = logarithm(feature, np.where(gone, fitted.fill, cells.values))
        return np.concatenate([((values - fitted.centre) / fitted.scale)[:, None], flag], axis=1)
    codes = _places(fitted, cells)
    if feature.missing != "own":
        codes = np.where(
            gone, fitted.categories.index(str(fitted.fill)) if fitted.fill in fitted.categories else -1, codes
        )
    if feature.coding == "ordinal":
        values = np.where((codes < 0) | (codes == len(fitted.categories)), fitted.centre, codes)
        return np.concatenate([((values - fitted.centre) / fitted.scale)[:, None], flag], axis=1)
    if _single(fitted):  # halfway where it is neither
        return np.where(codes < 0, 0.5, codes)[:, None].astype(np.float64)
    one_hot = codes[:, None] == np.arange(len(fitted.categories) + int(fitted.joined))
    return np.concatenate([one_hot.astype(np.float64), flag], axis=1)


def _places(fitted: Fitted, cells: Cells) -> NDArray[np.int64]:
    """The place of every cell's category; of others the one after the last if they are joined; -1 for none."""
    place, rest = places_of(fitted, cells.words), len(fitted.categories) if fitted.joined else -1
    lookup = np.array([*(place.get(word, rest) for word in cells.words), -1], np.int64)
    places: NDArray[np.int64] = lookup[cells.values]  # -1 is the last
    return places
