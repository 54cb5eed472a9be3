"""A table's columns as a reader gives them, with the schema that they suggest or that a user wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.data.own.numbers import counting, left_out
from equipoise.data.schema.cells import Place, Raw, RawTable, Words, read_cells
from equipoise.data.schema.inference import infer
from equipoise.data.schema.schema import NUMBER, Feature, Schema

INDEX = "it holds nothing but the numbers of the rows"


def read_raw(
    source: str, raw: Mapping[str, Raw], wanted: Mapping[str, Any], keep: Sequence[str], at: Place
) -> tuple[RawTable, list[str], list[str]]:
    """The columns of a table, what is wrong with them, and what is left out and why.

    Parameters
    ----------
    source : what the table is called.
    raw : its columns, without those that have another purpose.
    wanted : options of columns that a user wrote, by name; see :class:`Feature`.
    keep : columns that are inputs although they count the rows.
    at : the place of a row.
    """
    features, left = [], {}
    for name, cells in raw.items():
        guess: Feature | str = infer(name, cells) if isinstance(cells, Words) else Feature(name, NUMBER)
        if isinstance(cells, np.ndarray) and name not in keep and counting(cells[:, None]):
            guess = INDEX
        if isinstance(guess, Feature):
            features.append(guess)
        else:
            left[name] = guess
    schema = Schema(tuple(features), left).merged(wanted)
    columns, problems = {}, []
    for feature in schema.features:
        columns[feature.name], wrong = read_cells(feature, raw[feature.name], at)
        problems += wrong
    return RawTable(schema, columns), problems, notes_of(source, schema, keep)


def notes_of(source: str, schema: Schema, keep: Sequence[str]) -> list[str]:
    """Sentences on the columns that are left out, and how to put them back."""
    counts = [name for name, why in schema.left_out.items() if why == INDEX]
    notes = [left_out(counts, keep, source, INDEX)] if counts else []
    for name, why in schema.left_out.items():
        if why != INDEX:
            notes.append(
                f"{source}: the column {name} is left out: {why}. To use it: [columns.{_key(name)}] in the file that `equipoise init` writes."
            )
    return notes


def _key(name: str) -> str:
    return (
        name
        if name.isascii() and name.replace("_", "").replace("-", "").isalnum()
        else json.dumps(name, ensure_ascii=False)
    )
