"""Columns that are no features: names of classes, clients and groups, or numbers to predict."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.contents import DataError
from equipoise.data.tables import words as spelling
from equipoise.data.tables.cells import Raw, Words, raw_of, typed_numbers
from equipoise.data.tables.checks import standing_in
from equipoise.data.tables.columns import ROLES, SPLITS, Column, Columns, column
from equipoise.data.tables.options import option, several
from equipoise.data.tables.reading import agreed_and_dropped, by_other_columns, question
from equipoise.data.tables.words import PLAIN, Names, Origin, Signs

MOST = 20  # groups that different numbers make without bands
CLASSES = "If these are classes, leave task=regression out; else name the column with the number to predict."
Values = Iterable[Any]  # the cells of a column, of any kind


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
            fault = f"{what}: {self.column} has {len(different):,} different numbers, and each would be a group"
            written = option("group", bands if len(bands) > 1 else bands[0])
            todo = f"Choose bands, such as < {low}, >= {low} and < {high}, >= {high}: {written}"
            raise DataError(f"{fault}. {todo}. If the numbers are codes, put a letter before them.")
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
        if parts and word not in names and not math.isnan(PLAIN.number(word)):  # 60 of age:40,60
            parts[-1] += f",{word}"
        else:
            parts.append(word)
    groups = [_group(part, names, what) for part in parts]
    if len({group.column for group in groups}) < len(groups):
        raise DataError(f"{what}: group={','.join(parts)} names a column twice. Name each once.")
    return {f"group {group.name}" if len(groups) > 1 else "group": group for group in groups}


def described(groups: Mapping[str, Group], columns: Columns) -> dict[str, Any]:
    """What the record of a run has of groups, so that others find them in another table; nothing if there are none."""
    unknown = {} if columns.unknown is None else {"unknown": columns.unknown}
    kept = [group for role, group in groups.items() if role != "label"]
    made = {g.name: {"column": g.column, "bands": [*g.edges], **g.signs.changed(), **unknown} for g in kept}
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
    whole = part in names or ":" not in part
    name, _, text = (part, "", "") if whole else part.rpartition(":")
    edges = [] if whole else [PLAIN.number(word.strip()) for word in text.split(",")]
    if not all(map(math.isfinite, edges)) or edges != sorted({*edges}):
        raise DataError(
            f"{what}: the edges of the bands in {role}={part} must be increasing numbers, such as {name}:40,60."
        )
    return Group(name, str(column(names, name, role, what)), tuple(edges), role)


def named_columns(
    columns: Columns, names: Sequence[str], what: str, roles: Sequence[str] = ROLES
) -> dict[str, str | None]:
    """By role the column that the user named or that is usual, if there is one; groups are roles of their own."""
    used = {role: column(names, getattr(columns, role), role, what) for role in roles}
    return used | {role: group.column for role, group in groups_of(columns, names, what).items()}


def read_roles(
    source: Path | str,
    columns: Columns,
    used: Mapping[str, str],
    groups: Mapping[str, Group],
    cells: Callable[[str], Values],
    origin: Callable[[str], Origin],
    shown: str = "",
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Class, client, person, groups and part of every sample, as far as there are such columns; what is wrong with them; and notes on names.

    Parameters
    ----------
    used, groups : columns by role, and what is said of those of groups, and of a label whose bands are classes.
    cells, origin : of a column by its name.
    shown : the sign before fractions in the other columns, if they are text and show one.
    """
    roles, problems, notes = dict[str, Any](), list[str](), list[str]()
    for role in (role for role in dict.fromkeys(("label", "client", "subject", *groups)) if role in used):
        kind = "group" if role in groups else role  # numbers with bands may have fractions
        names = read_column(cells(used[role]), kind, origin(used[role]), columns, shown)
        roles[role] = names.words
        problems += [problem.replace(f": the {kind} ", f": the {role.split()[0]} ") for problem in names.problems]
        notes += names.notes
    if "split" in used:
        words, place = map(_cell, cells(used["split"])), origin(used["split"])
        roles["split"] = tuple(SPLITS.get(word.lower(), word) for word in words)
        if wrong := [k for k, word in enumerate(roles["split"]) if word not in SPLITS.values()]:
            first = roles["split"][wrong[0]]
            expected = f"expected train, test or validation, found {first!r}"
            problems.append(f"{place.what} ({place.places(wrong)}): {expected}.")
    if not problems:
        made = {
            role: group.values(roles.pop(role), columns, source, client=used.get("client") == group.column)
            for role, group in groups.items()
        }
        roles |= {"label": made.pop("label")} if "label" in made else {}
        roles["attributes"] = {groups[role].name: words for role, words in made.items()}
    return roles, problems, notes


def with_signs(
    groups: dict[str, Group], cells: Mapping[str, Values], columns: Columns, what: object, shown: str, notes: list[str]
) -> dict[str, Group]:
    """Groups with the signs in their numbers, where these are divided into bands."""
    made = dict(groups)
    for role, group in groups.items():
        if group.edges:
            signs = signs_in_role(cells[group.column], group.column, columns, what, shown, notes)
            made[role] = replace(group, signs=signs)
    return made


def signs_in_role(values: Values, name: str, columns: Columns, what: object, shown: str, notes: list[str]) -> Signs:
    """The signs in the numbers of a column that is no feature; usual ones where cells are numbers already.

    If other columns decide, the other readings are added to ``notes``.

    Raises
    ------
    DataError : its cells can be read in two ways.
    """
    raw = raw_of(values if isinstance(values, np.ndarray) else [*values])
    notes += _odd(name, what, raw)
    if not isinstance(raw, Words) or not (texts := [word for word in raw.texts if word not in columns.not_missing]):
        return Signs()
    possible = spelling.readings(texts, columns.thousands, columns.decimal)
    features, dropped = agreed_and_dropped(name, possible, shown)
    if len(features) > 1:
        raise DataError(f"{what}: {question(features, raw, role=True)}")
    if dropped:
        notes.append(f"{what}: {by_other_columns(features[0], dropped, raw)}")
    signs = next(iter(spelling.agreeing(possible, shown)), Signs(columns.thousands or "", columns.decimal or "."))
    if raw.numbers and signs != PLAIN:
        raise DataError(
            f"{what}: column {name}: some cells are numbers, and others text such as {texts[0]!r}. Write them alike."
        )
    if signs.unit:
        notes.append(f"{what}: column {name}: {texts[0]!r} is {signs.number(texts[0]):g}, without {signs.unit!r}.")
    notes += _odd(name, what, signs.numbers([word for word, n in raw.counts.items() for _ in range(n)]))
    return signs


def _odd(name: str, what: object, raw: Raw) -> list[str]:
    """Notes on numbers far from all others, which may stand for missing ones."""
    numbers = typed_numbers(raw)
    return [f"{what}: column {name} is {text}" for text in standing_in(numbers)] if len(numbers) else []


def read_column(values: Values, role: str, origin: Origin, columns: Columns, shown: str = "") -> Names:
    """The names in a column, see :func:`read_role`; in regression labels are numbers, as Python writes float64: no digit is lost.

    Missing cells of a group are the group ``columns.unknown``, if there is one.
    """
    if role == "label" and columns.regression:
        numbers, problems, notes = read_numbers(values, origin, columns, shown, label=True)
        label = () if problems else tuple(map(repr, numbers))
        if len(set(label)) == 1:
            every = f"{label[0]} in all {len(label):,} samples ({origin.places(range(len(label)))})"
            problems = (f"{origin.what}: the number to predict is {every}, so there is nothing to learn.",)
        return Names(label, problems, () if problems else tuple(notes))
    unknown, not_missing = columns.unknown, columns.not_missing
    if role != "group" or unknown is None:
        return spelling.read_role(values, role, origin, not_missing)
    values = [*values]
    lost = [spelling.missing(word := _cell(cell)) and word not in not_missing for cell in values]
    filled = [unknown if gone else cell for cell, gone in zip(values, lost, strict=True)]
    names = spelling.read_role(filled, "group", origin, not_missing)
    note = f"{origin.what}: {sum(lost):,} of {len(lost):,} samples have no group, and are the group {unknown!r}."
    if unknown in {word for word, gone in zip(names.words, lost, strict=True) if not gone}:
        problem = f"{origin.what}: unknown={unknown} would join people whose group is missing and a group of this name. Choose another name."
        return replace(names, problems=(*names.problems, problem))
    return replace(names, notes=(*names.notes, note)) if any(lost) else names


def read_numbers(
    values: Values, origin: Origin, columns: Columns, shown: str = "", *, label: bool = False
) -> tuple[list[float], tuple[str, ...], list[str]]:
    """The numbers in a column, NaN where a cell is none; a problem if there is such a cell; and notes. A ``label`` is a number to predict."""
    values = values if isinstance(values, np.ndarray) else [*values]
    source, _, name = origin.what.rpartition(", column ")
    dates = isinstance(values, np.ndarray) and values.dtype.kind == "M"
    notes, cells = list[str](), [_cell(cell) for cell in (np.datetime_as_string(values) if dates else values)]
    signs = signs_in_role(values, name, columns, source or name, shown, notes)
    numbers = signs.numbers(cells).tolist()
    bad = [k for k, number in enumerate(numbers) if not abs(number) <= spelling.LARGEST]
    if not bad:
        return numbers, (), notes
    wrong = [cells[k] for k in bad]
    expected, rows = ("a number to predict of every sample", "samples") if label else ("a number in every row", "rows")
    todo = f"Correct these cells, or remove their {rows}."
    if label and all(map(math.isnan, numbers)):
        todo = CLASSES
    if columns.decimal is None and all(map(spelling.COMMAS.fullmatch, wrong)):
        todo = f"Write fractions with a point; or, in a table that is text: {option('decimal', ',')}."
    fault = spelling.faults(wrong, bad, origin.at, len(cells), lambda word: spelling.kind_of(word, signs))
    return numbers, (f"{origin.what}: expected {expected}; {fault}. {todo}",), notes


def _cell(cell: Any) -> str:
    """A cell as text without blanks around it; of a floating-point number all digits."""
    if cell is None:
        return ""
    if isinstance(cell, bool | float | np.bool_ | np.floating):
        return repr(float(cell))
    return (cell.decode() if isinstance(cell, bytes) else str(cell)).strip()
