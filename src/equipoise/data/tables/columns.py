"""The columns of the user's data: for every sample its label, client, group, part and inputs."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.pictures import Pictures
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.options import LEAVE_OUT, THOUSANDS
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import near, some

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}
ROLES = ("client", "split", "subject")  # of columns, in addition to labels, groups and inputs
PROBLEMS = 10  # in an error
MANY = 50  # columns in a sentence
INTEGER = re.compile(r"[+-]?\d{1,4000}", re.ASCII)  # more are text to Python

Column = tuple[str, ...]  # one word per sample


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table, where they differ from the usual ones.

    Parameters
    ----------
    label, client, split : column of the label, the client, and the part (train, test or validation) of each sample; ``None`` for the
        usual name.
    group : columns of groups of people, ``"sex"``, ``"sex,race"`` or ``("sex", "race")``; ``"age:40,60"`` divides numbers into bands,
        below 40, from 40 to below 60, and from 60.
    subject : column of the person whom a row is about: all rows of one person are for training, for testing, or for validation.
    image : column of the image files, or of the images of a data set of the Hub.
    leave_out : columns that are no features.
    keep : columns that are features, although they have no name or count the rows.
    not_missing : words that usually say that something is missing, and are names of classes, clients or groups here.
    inputs : the columns that may be features; None: all that have no other purpose.
    unlabelled : what happens to rows without a label: ``"leave-out"``; None: they are an error.
    unknown : the name of the group of people whose group is missing; None: they are an error.
    sep, decimal, thousands, encoding : of a table that is text: what is between its cells, the sign before the digits of a fraction,
        ``"."`` or ``","``, the one between thousands, and how letters are written, such as ``"latin-1"``; ``None`` for what is found,
        what the cells allow, and UTF-8.
    task : what labels are: ``"regression"``, numbers to predict; ``"classification"`` or None, classes.
    schema : JSON of what columns are, by name, where that is not what it seems; see :class:`equipoise.data.tables.schema.Feature`.
    choose : whether the first reading is taken of a column that has several; else that is an error.
    agreed : whether ``schema`` has every column that becomes inputs, as several sites agreed on, and a table may have one class.
    """

    label: str | None = None
    client: str | None = None
    group: str | tuple[str, ...] | None = None
    split: str | None = None
    subject: str | None = None
    image: str | None = None
    leave_out: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    not_missing: tuple[str, ...] = ()
    inputs: tuple[str, ...] | None = None
    unlabelled: str | None = None
    unknown: str | None = None
    sep: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None
    task: str | None = None
    schema: str = ""
    choose: bool = False
    agreed: bool = False

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise DataError(f"decimal must be '.' or ','; found {self.decimal!r}.")
        if self.thousands is not None and (self.thousands not in THOUSANDS or self.thousands == self.decimal):
            raise DataError(
                f"thousands must be {some([*map(repr, THOUSANDS)], MANY)}, and not the sign before fractions; found {self.thousands!r}."
            )
        if self.unlabelled not in (None, LEAVE_OUT):
            raise DataError(f"unlabelled must be {LEAVE_OUT!r}; found {self.unlabelled!r}.")
        if self.thousands in (".", ",") and self.decimal is None:
            object.__setattr__(self, "decimal", ",."[".,".index(self.thousands)])

    @property
    def regression(self) -> bool:
        """Whether labels are numbers to predict."""
        return self.task == "regression"

    def require_none(self, names: Sequence[str], what: object, others: str) -> None:
        """Require that none of these options was given, for ``what``, since they are those of ``others``."""
        if given := [name for name in names if getattr(self, name)]:
            name = "columns" if given[0] == "schema" else given[0]
            raise DataError(f"{what}: {name} is an option of {others}. Leave it out.")


OF_TABLES = [f.name for f in fields(Columns) if f.name not in ("not_missing", "task", "choose", "agreed")]


@dataclass(frozen=True)
class UserData:
    """The content of the user's files, with images not decoded yet.

    Parameters
    ----------
    source : the folder, file or address.
    layout : a description of the files.
    label : per sample, the class as the files have it; in regression the number, as Python writes it, which loses nothing.
    inputs : numbers [n, ...], of a function float32 or int64, or images uint8 [n, C, H, W]; those of image files, not decoded yet; or
        the columns of a table, not coded yet.
    client, split, subject : per sample, its client (``""`` in a test set common to all), ``"train"``, ``"test"`` or ``"validation"``, and
        the person whom it is about; ``None`` if the files do not contain it.
    attributes : by the name of each column of groups, the value of every sample.
    features : names of the columns of numbers, if they have names.
    names : file or row of each sample.
    about : JSON-able facts for the record of a run.
    notes : sentences about what was ignored.
    regression : whether labels are numbers to predict.
    """

    source: str
    layout: str
    label: Column
    inputs: NDArray[Any] | Pictures | RawTable
    client: Column | None = None
    attributes: Mapping[str, Column] = field(default_factory=dict)
    split: Column | None = None
    features: Column = ()
    names: Column = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    regression: bool = False
    subject: Column | None = None

    def __len__(self) -> int:
        return len(self.label)

    @property
    def classes(self) -> Column:
        """Names of the classes, in the order of their numbers: whole numbers by value, words by the alphabet; none in regression."""
        return () if self.regression else ordered(self.label)

    @cached_property
    def targets(self) -> NDArray[Any]:
        """What is to be predicted of every sample [n]: in regression numbers, float64, else those of the classes, int64."""
        if self.regression:
            return np.array([*map(float, self.label)], np.float64)
        return numbered(self.label, self.classes)

    @cached_property
    def group(self) -> Column | None:
        """The group of every sample, its values of all attributes; None if there are none."""
        return tuple(map(", ".join, zip(*self.attributes.values(), strict=True))) or None

    @property
    def values(self) -> dict[str, Column]:
        """By attribute, the names of its values in the order of their codes."""
        return {name: ordered(words) for name, words in self.attributes.items()}

    @property
    def codes(self) -> NDArray[np.int64] | None:
        """The codes of every sample's A sensitive attributes [n, A]; None if there are none."""
        codes = [numbered(words, ordered(words)) for words in self.attributes.values()]
        return np.stack(codes, 1) if codes else None

    @cached_property
    def people(self) -> NDArray[np.int64]:
        """The number of the person of every sample [n]; where it is not known, each sample is of another one."""
        if self.subject is None:
            return np.arange(len(self))
        return numbered(self.subject, sorted({*self.subject}))

    @property
    def clients(self) -> Column:
        """Names of the clients; empty if the files do not name any."""
        return ordered(name for name in self.client or () if name)


def numbered(words: Iterable[str], names: Sequence[str]) -> NDArray[np.int64]:
    """The number of each word among some names."""
    number = {name: k for k, name in enumerate(names)}
    return np.array([number[word] for word in words], np.int64)


def ordered(words: Iterable[str]) -> Column:
    """Different words, sorted: whole numbers by value, then words by the alphabet, with numbers in them by value."""
    return tuple(sorted(set(words), key=_natural))


def _natural(word: str) -> tuple[Any, ...]:
    """A key that puts client-2 before client-10, and -1 before 0."""
    if INTEGER.fullmatch(word):
        return (0, int(word), word)
    parts = re.split(r"(\d{1,4000})", f"{word}\0")  # of which every other is a number
    return (1, tuple(int(part) if k % 2 else part for k, part in enumerate(parts)), word)


def together(path: Path | str, problems: Sequence[str]) -> str:
    """All problems of a file or folder as a list: the first, and how many more; each ends with a full stop."""
    if len(problems) == 1:
        return problems[0] if problems[0].startswith(str(path)) else f"{path}: {problems[0]}"
    texts = [problem.removeprefix(f"{path}, ").removeprefix(f"{path}: ") for problem in problems]
    texts = [f"it {text[len(f'{path} ') :]}" if text.startswith(f"{path} ") else text for text in texts]
    lines = [f"({k}) {text}" for k, text in enumerate(texts[:PROBLEMS], 1)]
    lines += [f"And {len(texts) - PROBLEMS} more."] * (len(texts) > PROBLEMS)
    return "\n".join([f"{path} has {len(texts)} problems:", *lines])


def column(names: Sequence[str], asked: str | None, usual: str, what: str) -> str | None:
    """The column that the user named, or the usual one if there is one, in any capitals."""
    if asked is not None:
        if str(asked) not in names:
            raise DataError(f"{what}: Unknown column '{asked}'.{near(str(asked), names)} All: {some(names, MANY)}.")
        return str(asked)  # a configuration may say 7
    meant = [name for name in names if name.strip().lower() == usual]
    if len(meant) > 1:
        raise DataError(f"{what}: {' and '.join(map(repr, meant))} could both be the {usual}. Rename all but one.")
    return meant[0] if meant else None


def require_columns(
    names: Sequence[str], wanted: Iterable[str], what: str, why: str = "the model was trained with"
) -> None:
    """Require that a table whose columns are ``names`` has all that are wanted, ``which ...``."""
    if lost := [name for name in wanted if name not in names]:
        raise DataError(
            f"{what} has no column {some([*map(repr, lost)])}, which {why}. {f'Its columns are {some(names)}' if names else 'It is empty'}."
        )


def check_purposes(used: Mapping[str, str | None], what: object) -> None:
    """Require that no column has two purposes; that of the client may be that of the group, for rates by hospital."""
    roles = grouped((name, role) for role, name in used.items() if name is not None)
    for name, several_ in roles.items():
        if len(several_) > 1 and {role.split()[0] for role in several_} != {"client", "group"}:
            raise DataError(
                f"{what}: the column {name} is named for two purposes, {' and '.join(several_)}. Name another one."
            )


def file_totals(files: Sequence[Path]) -> dict[str, int]:
    """What a record of a run says of several files."""
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def counts(words: Iterable[str]) -> dict[str, int]:
    """How often each word occurs, in the order of :func:`ordered`."""
    counter = Counter(words)
    return {word: counter[word] for word in ordered(counter)}
