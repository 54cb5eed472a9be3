"""Columns that are no features: names of classes, clients and groups, or numbers to predict."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from equipoise.data.own.columns import Columns, option
from equipoise.data.own.numbers import LARGEST, described, faults
from equipoise.data.own.words import COMMAS, Names, Origin, number_pattern, read_role


def read_column(values: Iterable[Any], role: str, origin: Origin, columns: Columns) -> Names:
    """The names in a column, see :func:`read_role`; in regression labels are numbers, as Python writes float64: no digit is lost."""
    if role != "label" or not columns.regression:
        return read_role(values, role, origin, columns.not_missing)
    cells, pattern = _cells(values), re.compile(number_pattern(columns.decimal or "."), re.ASCII)
    words = [cell.replace(columns.decimal or ".", ".") if pattern.fullmatch(cell) else "" for cell in cells]
    bad = [k for k, word in enumerate(words) if not word or not abs(float(word)) <= LARGEST]
    if bad:
        wrong = [cells[k] for k in bad]
        todo = "Correct these cells, or remove their samples."
        if not any(words):
            todo = "If these are classes, leave task=regression out; else name the column with the number to predict."
        if columns.decimal is None and all(map(COMMAS.fullmatch, wrong)):
            todo = f"Write fractions with a point; or, in a table that is text: {option('decimal', ',')}."
        said = described(faults(wrong, bad, origin.at), len(cells))
        return Names((), (f"{origin.what}: expected a number to predict of every sample; {said}. {todo}",))
    label = tuple(repr(float(word)) for word in words)
    if len(set(label)) == 1:
        every = f"in all {len(label):,} samples ({origin.places(range(len(label)))})"
        return Names(
            label, (f"{origin.what}: the number to predict is {label[0]} {every}, so there is nothing to learn.",)
        )
    return Names(label)


def _cells(values: Iterable[Any]) -> list[str]:
    """Cells as text without blanks around it; of floating-point numbers all digits."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "biuf":
            return [*map(repr, values.astype(np.float64).tolist())]
        values = np.datetime_as_string(values).tolist() if values.dtype.kind == "M" else values.tolist()
    return [_cell(cell) for cell in values]


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool | float | np.bool_ | np.floating):
        return repr(float(cell))
    return (cell.decode() if isinstance(cell, bytes) else str(cell)).strip()
