"""Predictions of any model, a row per person: what was predicted, what is true, the groups, and the site."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.formats.table import Frame, is_present, opened
from equipoise.data.tables.cells import word_of
from equipoise.data.tables.columns import Column, Columns, check_purposes, column, numbered, ordered, together
from equipoise.data.tables.roles import Group, groups_of, read_column, read_numbers, with_signs
from equipoise.data.tables.words import Origin, alike, unit_of
from equipoise.metrics.groups import Positive, positive_class
from equipoise.metrics.thresholds import decided
from equipoise.system.suggestions import some

Judged = tuple[Column, Positive | None, NDArray[Any], NDArray[Any], NDArray[np.float64] | None]  # see Predictions
USUAL: Final = ("label", "site", "subject")  # roles whose columns may have these names


@dataclass(frozen=True)
class Predictions:
    """What a model predicted for people, and what is true of them.

    Parameters
    ----------
    source : the file, or what was given.
    classes, positive : names of the classes, and the one that rates are about, if any; no classes of numbers to predict.
    y, predicted : [n], numbers of classes, or numbers to predict.
    scores : probabilities of the positive class [n]; None if none were given.
    attributes : by the name of an attribute the names of its values.
    s : the codes of the attributes [n, A]; -1 is not known.
    sites : of every person [n]; None if none were given.
    person : the code of whom each row is about [n]; None if each is about another.
    """

    source: str
    classes: tuple[str, ...]
    positive: Positive | None
    y: NDArray[Any]
    predicted: NDArray[Any]
    scores: NDArray[np.float64] | None
    attributes: Mapping[str, tuple[str, ...]]
    s: NDArray[np.int64]
    sites: NDArray[Any] | None
    person: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.y)


def read(
    source: Any,
    columns: Columns,
    *,
    probability: str | None = None,
    prediction: str | None = None,
    site: str | None = None,
    subject: str | None = None,
    positive: object = None,
    threshold: float = 0.5,
) -> Predictions:
    """Read predictions from a table: a file, or a frame of pandas.

    Parameters
    ----------
    source : the path, or the frame.
    columns : names of the columns of labels and groups, and how a table that is text is written.
    probability, prediction : columns of the probability of the positive class, of the predicted class, or of predicted numbers: one at least.
    site, subject : columns of the site, and of the person whom a row is about.
    positive, threshold : see :func:`equipoise.report.audit.audit`.

    Raises
    ------
    DataError : columns are missing, cells cannot be read, or there is nothing to compare.
    """
    frame = hasattr(source, "columns") and hasattr(source, "iloc")
    if not frame and not isinstance(source, str | os.PathLike):
        raise DataError(f"expected the path of a table, or a frame of pandas; found {type(source).__name__}.")
    what = "the frame" if frame else str(source)
    columns.require_none(("sep", "encoding") if frame else (), what, "a table that is text")
    table = Frame.of(source, what) if frame else opened(Path(source), columns)
    given = {"site": site, "subject": subject, "probability": probability, "prediction": prediction}
    used, groups = _used(what, table.names, columns, given)
    wanted = [*used.values(), *(group.column for group in groups.values())]
    cells, n = table.words([name for name in wanted if name is not None]), len(table)
    if not n:
        raise DataError(f"{what} has no rows.")
    people = _People(what, table.at, columns, cells)
    with _collecting(people.problems):
        groups = with_signs(groups, cells, columns, what, "", [])
    attributes, codes = _attributes(people, groups.values())
    sites = None if used["site"] is None else np.array(people.words(used["site"], "site"), object)
    whose = () if used["subject"] is None else people.words(used["subject"], "subject")
    person = numbered(whose, sorted({*whose})) if 0 < len({*whose}) < n else None
    label = str(used["label"])
    if columns.regression:
        made: Judged = (), None, people.numbers(label), people.numbers(str(prediction)), None
    else:
        made = _classes(people, label, probability, prediction, positive, threshold)
    if people.problems:
        raise _error(what, people.problems)
    return Predictions(what, *made, attributes, np.stack(codes, 1), sites, person)


@dataclass(frozen=True)
class _People:
    """Columns of a table with a row per person, how they are read, and what is wrong with those that were."""

    what: str
    at: Callable[[int], str]
    columns: Columns
    cells: Mapping[str, Sequence[Any]]
    problems: list[str] = field(default_factory=list)

    def words(self, name: str, role: str, rows: Sequence[int] | None = None, noun: str = "") -> tuple[str, ...]:
        """The names in a column, of some rows or of all; a problem calls them by a noun, if not by their role."""
        at, origin = range(len(self.cells[name])) if rows is None else rows, self.origin(name)
        place = replace(origin, at=lambda k: self.at(at[k]))
        names = read_column([self.cells[name][k] for k in at], role, place, self.columns)
        self.problems.extend(text.replace(f"the {role}", f"the {noun or role}") for text in names.problems)
        self.problems.extend(alike(origin.what, names.words))
        return names.words

    def numbers(self, name: str) -> NDArray[np.float64]:
        """The numbers in a column; NaN where a cell is none."""
        values, wrong, _ = read_numbers(self.cells[name], self.origin(name), self.columns)
        self.problems.extend(wrong)
        return np.array(values)

    def probabilities(self, name: str) -> NDArray[np.float64]:
        """The numbers in a column, which should be between 0 and 1."""
        scores, origin = self.numbers(name), self.origin(name)
        if unit := unit_of([*filter(None, map(word_of, self.cells[name]))]):
            self.problems.append(f"{origin.what}: every probability has {unit!r}. Write numbers between 0 and 1.")
        if len(outside := np.flatnonzero((scores < 0) | (scores > 1))):
            first = ", ".join(f"{scores[k]:g} in {origin.at(k)}" for k in outside[:3].tolist())
            fault = f"{len(outside):,} of {len(scores):,} probabilities are outside [0, 1] ({first})"
            todo = "Divide percent by 100, and turn other scores into probabilities first."
            self.problems.append(f"{origin.what}: {fault}. {todo}")
        return scores

    def origin(self, name: str) -> Origin:
        """Where a column is from."""
        return Origin(f"{self.what}, column {name}", self.at)


def _attributes(people: _People, groups: Iterable[Group]) -> tuple[dict[str, Column], list[NDArray[np.int64]]]:
    """By attribute the names of its values; and the codes of each [n], -1 where it is not known."""
    attributes, codes = dict[str, Column](), list[NDArray[np.int64]]()
    for group in groups:
        what, cells = people.origin(group.column).what, people.cells[group.column]
        with _collecting(people.problems):
            if not (rows := [k for k, cell in enumerate(cells) if is_present(cell, people.columns)]):
                raise DataError(f"{what}: every cell is missing.")
            words = people.words(group.column, "group", rows)
            values = group.values(words, people.columns, people.what, client=False)
            attributes[group.name] = ordered(values)
            codes.append(np.full(len(cells), -1))
            codes[-1][rows] = numbered(values, attributes[group.name])
            if len(attributes[group.name]) < 2:
                everybody = f"everybody is {values[0]!r}, and two groups or more are compared"
                raise DataError(f"{what}: {everybody}. Name another --group.")
    return attributes, codes


def _classes(
    people: _People, label: str, probability: str | None, prediction: str | None, positive: object, threshold: float
) -> Judged:
    """The names of the classes, the positive one, the true and predicted classes [n], and the probabilities of the positive one."""
    problems, truth = people.problems, people.words(label, "label")
    classes, what = ordered(truth), people.origin(label).what
    about: Positive | None = None
    y, predicted = numbered(truth, classes), np.zeros(len(truth), np.int64)
    with _collecting(problems):
        about = _positive(positive, classes, what, probability)
    scores = None if probability is None else people.probabilities(probability)
    if prediction is not None:
        names = people.words(prediction, "label", noun="prediction")
        if strange := [*dict.fromkeys(word for word in names if word not in classes)]:
            fault = f"{some([*map(repr, strange)])} is no class of column {label} ({some(classes)})"
            todo = "Write classes the same way in both; of numbers between 0 and 1 it is --probability."
            problems.append(f"{people.origin(prediction).what}: {fault}. {todo}")
        else:
            predicted = numbered(names, classes)
    if about is not None and probability is not None and len(classes) > 2:  # one against the rest
        y, predicted = ((codes == about.number).astype(np.int64) for codes in (y, predicted))
        classes, about = (f"not {about.name}", about.name), about._replace(number=1, other=f"not {about.name}")
    if prediction is None and about is not None and scores is not None and not problems:
        predicted = np.where(decided(scores, threshold), about.number, 1 - about.number)
    return classes, about, y, predicted, scores


def _used(
    what: str, names: Sequence[str], columns: Columns, given: Mapping[str, str | None]
) -> tuple[dict[str, str | None], dict[str, Group]]:
    """The columns by role, of those that are ``given`` or usual, and those of groups."""
    problems: list[str] = []
    used: dict[str, str | None] = {}
    groups: dict[str, Group] = {}
    for role, asked in {"label": columns.label, **given}.items():
        with _collecting(problems):
            used[role] = column(names, asked, role if role in USUAL else "", what)
    with _collecting(problems):
        groups = groups_of(columns, names, what)
    predicted = {given["probability"], given["prediction"]} != {None}
    lacking = {
        "the column with what is true of everybody, --label COLUMN": used.get("label", "") is None,
        "what was predicted, --probability COLUMN or --prediction COLUMN": not predicted,
        "a column of groups of people, --group COLUMN": not groups and columns.group is None,
    }
    problems += [f"{what}: name {role}. Columns: {some(names)}." for role, lacks in lacking.items() if lacks]
    if problems:
        raise _error(what, problems)
    check_purposes({**used, **{role: group.column for role, group in groups.items()}}, what)
    return used, groups


@contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Add the text of an error to the problems, and continue after the block."""
    try:
        yield
    except DataError as error:
        problems.append(str(error))


def _error(what: str, problems: Sequence[str]) -> DataError:
    """All problems, with the options of the command as they are typed."""
    text = together(what, [*dict.fromkeys(problems)])
    return DataError(re.sub(r"--set ('?)(group|label)=", r"--\2 \1", text))


def _positive(asked: object, classes: Sequence[str], what: str, probability: str | None) -> Positive | None:
    """The class that a probability and rates are about."""
    if not classes:
        return None
    if len(classes) == 1:
        raise DataError(f"{what}: everybody is of class {classes[0]!r}, so no rates can be compared.")
    try:
        about = positive_class(asked, classes)
    except ValueError as error:
        raise DataError(f"{what}: {error}") from None
    if about is not None and about.why == "assumed" and probability is not None:
        ways = " or ".join(f"--positive {shlex.quote(name)}" for name in classes)
        raise DataError(
            f"{what} has the classes {some(classes)}, and no name says of which column {probability} is the probability. Say it: {ways} (Python: positive=)."
        )
    if about is None and probability is not None:
        fault = (
            f"{what} has {len(classes)} classes ({some(classes)}), and column {probability} is the probability of one"
        )
        raise DataError(f"{fault}. Name it, --positive CLASS; or give the predicted classes, --prediction COLUMN.")
    return about
