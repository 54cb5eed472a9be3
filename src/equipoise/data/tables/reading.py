"""A table's columns as a reader gives them, with the schema that they suggest or that a user wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from equipoise.data.tables.cells import Cells, Place, Raw, RawTable, Words, read_cells
from equipoise.data.tables.checks import odd_zeros
from equipoise.data.tables.columns import MANY, Columns, listed, option, require_columns
from equipoise.data.tables.inference import infer
from equipoise.data.tables.numbers import counting, left_out
from equipoise.data.tables.schema import CATEGORY, DATE, NUMBER, Feature, Schema
from equipoise.data.tables.words import missing, twins

CODES = 10  # different whole numbers that may be codes of categories
SIGNS = ("thousands", "unit")
INDEX = "it holds nothing but the numbers of the rows"


def read_raw(source: str, raw: Mapping[str, Raw], options: Columns, at: Place) -> tuple[RawTable, list[str], list[str]]:
    """The columns of a table, what is wrong with them, and what is left out and why.

    Parameters
    ----------
    source : what the table is called.
    raw : its columns, without those that have another purpose.
    options : what the user said of columns, such as ``schema``, options of :class:`Feature` by name.
    at : the place of a row.
    """
    if options.agreed:
        return _agreed(source, raw, options, at)
    features, left, notes = [], {}, list[str]()
    for name, cells in raw.items():
        guess: Feature | str = Feature(name, NUMBER)
        if isinstance(cells, Words):
            guess = infer(name, cells, options.decimal)
            if isinstance(guess, Feature) and guess.kind == CATEGORY:
                guess, said = _named(source, guess, cells, options.not_missing)
                notes += said
        elif name not in options.keep and counting(cells[:, None]):
            guess = INDEX
        if isinstance(guess, Feature):
            features.append(guess)
        else:
            left[name] = guess
    schema = Schema(tuple(features), left).merged(json.loads(options.schema or "{}"))
    table, problems = _read(schema, raw, options, at)
    return table, problems, notes + notes_of(source, schema, options.keep)


def _agreed(source: str, raw: Mapping[str, Raw], options: Columns, at: Place) -> tuple[RawTable, list[str], list[str]]:
    """The columns that several sites agreed on, wherever they are in this table."""
    schema = Schema.of(json.loads(options.schema))
    require_columns([*raw], schema.names, source, "the schema names")
    table, problems = _read(schema, raw, options, at)
    if rest := [name for name in raw if name not in {*schema.names, *schema.left_out}]:
        return table, problems, [f"{source}: {listed(rest)}: not in the schema, and not used."]
    return table, problems, []


def _read(schema: Schema, raw: Mapping[str, Raw], options: Columns, at: Place) -> tuple[RawTable, list[str]]:
    """The cells of all columns of a schema, and what is wrong with them."""
    columns, problems = {}, list[str]()
    faulty = []
    for feature in schema.features:
        columns[feature.name], wrong = read_cells(feature, raw[feature.name], at)
        problems += wrong
        faulty += [feature.name] * bool(wrong)
    if faulty:
        s = "s" * (len(faulty) > 1)
        problems[-1] += (
            f" Correct these cells, or leave the column{s} out: {option('leave_out', [*options.leave_out, *faulty][:MANY])}."
        )
    return RawTable(schema, columns), problems


def _named(source: str, feature: Feature, text: Words, names: Sequence[str]) -> tuple[Feature, list[str]]:
    """A column of categories with those of ``names`` that usually mark missing cells, and notes on words with two meanings."""
    words = [word for word in text.counts if missing(word)]
    kept = tuple(word for word in words if word in names)
    notes = []
    if lost := [word for word in words if word.isalpha() and word not in names]:
        cells = sum(text.counts[word] for word in lost)
        notes.append(
            f"{source}: column {feature.name}: {listed(map(repr, lost))} in {cells:,} cells marks a missing cell. "
            f"If it is a category: {option('not_missing', [*names, *lost])}."
        )
    if same := [*twins(word for word in text.counts if not missing(word))]:
        pairs = listed(f"{first!r} and {other!r}" for first, other in same)
        notes.append(
            f"{source}: column {feature.name}: {pairs} differ only in capital letters or spaces, and are different categories. "
            "Write them alike if they are the same."
        )
    return replace(feature, not_missing=kept), notes


def notes_of(source: str, schema: Schema, keep: Sequence[str]) -> list[str]:
    """Sentences on the columns that are left out, and how to put them back."""
    counts = [name for name, why in schema.left_out.items() if why == INDEX]
    notes = [left_out(counts, keep, source, INDEX)] if counts else []
    return notes + [
        f"{source}: the column {name} is left out: {why}. To use it: give its kind under [columns] in the file that `equipoise init` writes."
        for name, why in schema.left_out.items()
        if why != INDEX
    ]


def described(feature: Feature, cells: Cells) -> str:
    """What is in a column, in a line: the range of its numbers, or its most frequent categories; and how many cells are missing."""
    gone, n = int(cells.missing.sum()), len(cells.values)
    if feature.kind == CATEGORY:
        counts = np.bincount(cells.values[cells.values >= 0], minlength=len(cells.words))
        order = np.argsort(-counts, kind="stable").tolist()
        said = f"{len(cells.words)} categories: {listed(f'{cells.words[k]} {counts[k]:,}' for k in order)}"
    elif gone < n:
        low, high = np.nanmin(cells.values), np.nanmax(cells.values)
        present = cells.values[~cells.missing]
        zeros = odd_zeros(present) if feature.kind == NUMBER else None
        said = f"{day(low)} to {day(high)}" if feature.kind == DATE else f"{low:g} to {high:g}"
        said += f", 0 in {zeros[0]:,} rows and next {zeros[1]:g}: missing? then missing_values = [0]" if zeros else ""
        if (few := len(np.unique(present))) <= CODES and not (present % 1).any():
            said += f', {few} whole numbers: if they are codes, kind = "category"' * (few > 2)
    else:
        said = "nothing"
    return said + f"; {gone:,} missing" * (gone > 0)


def day(days: float) -> str:
    """The date of so many days since 1970."""
    return str(np.datetime64(int(days), "D"))


def key_of(name: str) -> str:
    """A column's name as a key of TOML."""
    return (
        name if re.fullmatch(r"[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*", name) else json.dumps(name, ensure_ascii=False)
    )


def signed(schema: str) -> set[str]:
    """The columns of a schema that are read as text: their numbers have signs, 2.000 may be two thousand; or are codes, 1E1."""
    written = {name: options for name, options in json.loads(schema or "{}").items() if isinstance(options, dict)}
    return {name for name, column in written.items() if any(map(column.get, SIGNS)) or column.get("kind") == CATEGORY}
