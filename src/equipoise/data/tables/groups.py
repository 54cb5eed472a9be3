"""Groups of people: columns whose values make them, and bands of a column of numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.data.contents import DataError
from equipoise.data.tables.columns import Column, Columns, column, option, several
from equipoise.data.tables.signs import PLAIN, Signs

MOST = 20  # groups that different numbers make without bands


@dataclass(frozen=True)
class Group:
    """A column of groups, and the attribute that it is; numbers, written with ``signs``, are divided into bands at ``edges``."""

    name: str
    column: str
    edges: tuple[float, ...] = ()
    role: str = "group"
    signs: Signs = PLAIN

    def values(self, words: Column, columns: Columns, what: object, *, client: bool) -> Column:
        """The value of every sample, from the words in the column, which may name the ``client``, too.

        Raises
        ------
        DataError : bands of words, or many different numbers without bands.
        """
        unknown = columns.unknown if self.role == "group" else None  # a group that is no number
        numbers = {word: self.signs.number(word) for word in dict.fromkeys(words) if word != unknown}
        if any(map(math.isnan, numbers.values())):
            if self.edges:
                raise DataError(f"{what}: {self.role}={self.column}:... needs a number in every row of {self.column}.")
            return words
        if self.edges:
            return tuple(word if word == unknown else band(numbers[word], self.edges) for word in words)
        different = sorted({*numbers.values()})
        if len(different) > MOST and not client:
            low, high = (f"{different[k * len(different) // 3]:g}" for k in (1, 2))
            others = several(columns.group or self.column)
            bands = [f"{name}:{low},{high}" if name == self.column else name for name in others]
            raise DataError(
                f"{what}: {self.column} has {len(different):,} different numbers, and each would be a group. Choose bands, such as "
                f"< {low}, >= {low} and < {high}, >= {high}: {option('group', bands if len(bands) > 1 else bands[0])}. "
                "If the numbers are codes, put a letter before them."
            )
        return words


def band(number: float, edges: Sequence[float]) -> str:
    """The name of a number's band: the lower edge is in it, the upper one is not."""
    k = sum(number >= edge for edge in edges)
    lower, upper = [f">= {edges[k - 1]:.15g}"] * (k > 0), [f"< {edge:.15g}" for edge in edges[k : k + 1]]
    return " and ".join(lower + upper)


def groups_of(columns: Columns, names: Sequence[str], what: str) -> dict[str, Group]:
    """The columns of groups by purpose: ``"group"``, or of several ``"group sex"`` and ``"group age"``.

    Raises
    ------
    DataError : no such column, or edges that do not increase.
    """
    asked = columns.group
    if asked is None:
        usual = column(names, None, "group", what)
        return {} if usual is None else {"group": Group("group", usual)}
    words = [asked] if isinstance(asked, str) and asked in names else several(asked)
    parts: list[str] = []
    for word in words:
        if parts and word not in names and _number(word) is not None:  # 60 of age:40,60
            parts[-1] += f",{word}"
        else:
            parts.append(word)
    groups = [_group(part, names, what) for part in parts]
    if len({group.column for group in groups}) < len(groups):
        raise DataError(f"{what}: group={','.join(parts)} names a column twice. Name each once.")
    return {f"group {group.name}" if len(groups) > 1 else "group": group for group in groups}


def described(groups: Iterable[Group], columns: Columns) -> dict[str, Any]:
    """What the record of a run has of groups, so that others find them in another table; nothing if there are none."""
    unknown = {} if columns.unknown is None else {"unknown": columns.unknown}
    made = {
        group.name: {"column": group.column, "bands": [*group.edges], **group.signs.changed(), **unknown}
        for group in groups
    }
    return {"groups": made} if made else {}


def label_of(columns: Columns, names: Sequence[str], what: str) -> Group | None:
    """The column of numbers whose bands are the classes, ``"num:1"``: below 1, and from 1; None if the label is a column as it is.

    Raises
    ------
    DataError : no such column, edges that do not increase, or numbers to predict, which have no bands.
    """
    label = str(columns.label)  # a configuration may say 7
    if label in names or ":" not in label:
        return None
    if columns.regression:
        raise DataError(f"{what}: the bands of label={label} are classes. Leave them out, or task=regression.")
    return _group(label, names, what, "label")


def _group(part: str, names: Sequence[str], what: str, role: str = "group") -> Group:
    name, colon, text = (part, "", "") if part in names else part.rpartition(":")
    if not colon:
        name, text = part, ""
    edges = [_number(word) for word in text.split(",")] if colon else []
    finite = [edge for edge in edges if edge is not None and math.isfinite(edge)]
    if colon and (len(finite) < len(edges) or finite != sorted({*finite})):
        raise DataError(
            f"{what}: the edges of the bands in {role}={part} must be increasing numbers, such as {name}:40,60."
        )
    return Group(name, str(column(names, name, role, what)), tuple(finite), role)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
