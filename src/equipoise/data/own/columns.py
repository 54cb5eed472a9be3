"""The columns of the user's data: for every sample its label, client, group, part and inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.pictures import Pictures
from equipoise.system.suggestions import unknown

SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}
SHOWN = 5  # names in a sentence

Column = tuple[str, ...]  # one word per sample


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table, where they differ from the usual ones.

    Parameters
    ----------
    label, client, group, split : column of the class, the client, the group of people and the part (train, test or
        validation) of each sample; ``None`` for the usual name.
    image : column of the image files, or of the images of a data set of the Hub.
    leave_out : columns that are no features.
    """

    label: str | None = None
    client: str | None = None
    group: str | None = None
    split: str | None = None
    image: str | None = None
    leave_out: tuple[str, ...] = ()

    @property
    def named(self) -> dict[str, str]:
        """The columns that the user named, by their role."""
        roles = {name: getattr(self, name) for name in ("label", "client", "group", "split", "image")}
        return {role: name for role, name in roles.items() if name is not None}


@dataclass(frozen=True)
class UserData:
    """The content of the user's files, with images not decoded yet.

    Parameters
    ----------
    source : the folder, file or address.
    layout : a description of the files.
    label : per sample, the class as the files have it.
    inputs : numbers float32 [n, ...] or images uint8 [n, C, H, W]; or those of image files, not decoded yet.
    client, group, split : per sample, its client (``""`` in a test set common to all), the group of people it belongs to,
        and ``"train"``, ``"test"`` or ``"validation"``; ``None`` if the files do not contain it.
    features : names of the columns of numbers, if they have names.
    names : file or row of each sample.
    about : JSON-able facts for the record of a run.
    notes : sentences about what was ignored.
    """

    source: str
    layout: str
    label: Column
    inputs: NDArray[Any] | Pictures
    client: Column | None = None
    group: Column | None = None
    split: Column | None = None
    features: Column = ()
    names: Column = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    @property
    def classes(self) -> Column:
        """Names of the classes, in the order of their numbers: whole numbers by value, words by the alphabet."""
        return ordered(self.label)

    @property
    def clients(self) -> Column:
        """Names of the clients; empty if the files do not name any."""
        return ordered(name for name in self.client or () if name)


def ordered(words: Iterable[str]) -> Column:
    """Different words, sorted: whole numbers by value, then words by the alphabet, with numbers in them by value."""
    return tuple(sorted(set(words), key=_natural))


def _natural(word: str) -> tuple[Any, ...]:
    """A key that puts client-2 before client-10, and -1 before 0."""
    try:
        return (0, int(word), word)
    except ValueError:
        parts: list[tuple[int, int, str]] = []
        digits = ""
        for c in word + "\0":
            if c.isdecimal():
                digits += c
                continue
            if digits:
                parts.append((0, int(digits), ""))
                digits = ""
            parts.append((1, 0, c))
        return (1, tuple(parts), word)


def listed(words: Iterable[str]) -> str:
    """The first words, and how many more there are."""
    every = list(words)
    more = len(every) - SHOWN
    return ", ".join(every[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def splits(words: Sequence[str], where: Callable[[int], str]) -> Column:
    """Train, test or validation of each sample, from the words of the user.

    Raises
    ------
    DataError : another word; ``where(k)`` says at which place.
    """
    for k, word in enumerate(words):
        if word.strip().lower() not in SPLITS:
            raise DataError(f"{where(k)}: expected train, test or validation, found {word!r}.")
    return tuple(SPLITS[word.strip().lower()] for word in words)


def column(known: Sequence[str], given: str | None, usual: str, what: str) -> str | None:
    """The column that the user named, or the usual one if there is one, in any capitals.

    Raises
    ------
    DataError : the user named a column that does not exist.
    """
    if given is not None:
        if str(given) not in known:
            raise DataError(f"{what}: {unknown('column', given, known)}")
        return str(given)  # the command line reads 7 as a number
    return next((name for name in known if name.strip().lower() == usual), None)


def whole(words: Sequence[str]) -> Column:
    """Labels as text; numbers such as 1.0, which some programs write for 1, as whole ones."""
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return tuple(words)
    if all(number.is_integer() for number in numbers):
        return tuple(str(int(number)) for number in numbers)
    return tuple(words)


def class_names(words: Sequence[str], where: Callable[[int], str]) -> Column:
    """Labels as text, none of them empty, no measurements.

    Raises
    ------
    DataError : a label is missing, or labels are numbers with fractions; ``where(k)`` says where.
    """
    for k, word in enumerate(words):
        if not word.strip() or word.strip().lower() == "nan":
            raise DataError(f"{where(k)}: the label is missing. Fill it in, or remove the sample.")
    names = whole([word.strip() for word in words])
    for k, word in enumerate(names):
        if _fraction(word):
            raise DataError(
                f"{where(k)}: the label is {word}, and labels are classes: words or whole numbers. "
                "Divide measurements into classes first, such as low and high."
            )
    return names


def _fraction(word: str) -> bool:
    try:
        return not float(word).is_integer()
    except ValueError:
        return False


def filled(words: Sequence[str], what: str, where: Callable[[int], str]) -> Column:
    """Names, stripped of spaces, none of them empty.

    Raises
    ------
    DataError : one is missing; ``where(k)`` says where.
    """
    for k, word in enumerate(words):
        if not word.strip():
            raise DataError(f"{where(k)}: the {what} is missing. Fill it in, or remove the sample.")
    return tuple(word.strip() for word in words)


def single(x: NDArray[Any], where: Callable[[list[int]], str]) -> NDArray[np.float32]:
    """Numbers as float32.

    Raises
    ------
    DataError : one is not finite, or becomes infinite; ``where(indices)`` says where.
    """
    with np.errstate(over="ignore"):
        short = x.astype(np.float32)
    finite = np.isfinite(short)
    if not finite.all():
        at = np.argwhere(~finite)[0].tolist()
        found, among = x[tuple(at)], int((~finite).reshape(len(x), -1).any(1).sum())
        what = f"{found:g}, too large for float32," if np.isfinite(found) else "not a finite number,"
        raise DataError(
            f"{where(at)} is {what} in {among} sample{'s' * (among > 1)} in all. Correct or scale it, or remove these samples."
        )
    return short


def counts(words: Iterable[str]) -> dict[str, int]:
    """How often each word occurs, in the order of :func:`ordered`."""
    counter = Counter(words)
    return {word: counter[word] for word in ordered(counter)}
