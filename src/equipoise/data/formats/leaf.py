"""The JSON files of LEAF (Caldas et al. 2018): users with their samples; the users are the clients."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_bytes
from equipoise.data.formats.arrays import OfClient, of_arrays, of_clients
from equipoise.data.tables.columns import Columns, UserData, listed, of_files_read, together
from equipoise.data.tables.words import NUMBER

KEYS = ("users", "num_samples", "user_data", "hierarchies")
BEGIN = re.compile(rb'\s*\{\s*"(?:' + "|".join(KEYS).encode() + rb')"')
LOOKED_AT = 1 << 12  # bytes
GROWTH = 16  # times the size of its file that JSON takes in memory, at most
TEXT = (
    " Networks here take numbers: make them of text in a function of your own, --data my.py:clients. Of names of images make a "
    "table with the columns path, label and client."
)


def is_leaf(path: Path) -> bool:
    """Whether a file is one of LEAF, by how it begins."""
    with path.open("rb") as file:
        return BEGIN.match(file.read(LOOKED_AT)) is not None


def parts(folder: Path) -> dict[str, list[Path]]:
    """The files of LEAF in a folder, or in its folder ``data``: of ``train`` and ``test``, or else its own, or of ``all_data``."""
    for base in (folder, folder / "data"):
        train, test, whole = (_files(base / name) for name in ("train", "test", "all_data"))
        if train and test:
            return {"train": train, "test": test}
        if every := _files(base) or whole:
            return {"": every}
    return {}


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith(".") and is_leaf(path))


def read(path: Path, columns: Columns, files: Mapping[str, Sequence[Path]]) -> UserData:
    """Read the users of all files, by the part that these belong to (``""``: none), one file at a time."""
    users: list[OfClient] = []
    file_of: dict[tuple[str, str], Path] = {}
    problems: list[str] = []
    every = [file for of_part in files.values() for file in of_part]
    for part, file in ((part, file) for part, of_part in files.items() for file in of_part):
        for user, x, y in _users(file, problems):
            if (first := file_of.setdefault((part, user), file)) != file:
                problems.append(f"{file.name}, user {user}: also in {first.name}.")
            users.append((part, user, x, y))
        check_bytes(path, sum(x.nbytes for _, _, x, _ in users))  # there again when all are put together
    shapes = {x.shape[1:]: user for _, user, x, _ in users if len(x)}
    if len(shapes) > 1:
        each = ", ".join(f"{list(shape)} of user {user}" for shape, user in shapes.items())
        problems.append(f"samples must have one shape, found {each}.")
    if problems:
        raise DataError(together(path, problems) + TEXT * any("x holds text" in problem for problem in problems))
    arrays = of_clients(users)
    own, files_ = of_arrays(path, arrays, columns, of_files_read(every)), f"{len(every)} file{'s' * (len(every) > 1)}"
    return replace(own, layout=f"users of LEAF, {files_}: {own.layout.removeprefix('arrays: ')}")


def _users(file: Path, problems: list[str]) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Every user of a file, with samples [n, ...] and labels; adds to ``problems`` what is wrong."""
    check_bytes(file, GROWTH * file.stat().st_size)
    try:
        content = json.loads(file.read_bytes(), object_pairs_hook=_unique)
        names, data, counts = content["users"], content["user_data"], content.get("num_samples")
        pairs = [(str(user), data[user]["x"], data[user]["y"]) for user in names]
        if counts is None or len(counts) != len(names):
            counts = [None] * len(names)
        if lost := listed(sorted(data.keys() - set(names))):
            problems.append(f"{file.name}: {lost} in user_data, but not in users.")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DataError(
            f'{file} cannot be read as JSON of LEAF ({reason}). Expected {{"users": [...], "num_samples": [...], '
            '"user_data": {USER: {"x": [...], "y": [...]}}}.'
        ) from None
    for (user, x, y), count in zip(pairs, counts, strict=True):
        samples = _samples(x, y, count)
        if isinstance(samples, str):
            problems.append(f"{file.name}, user {user}: {samples}.")
        else:
            yield user, samples, np.array([str(int(k)) if isinstance(k, bool) else str(k) for k in y])


def _samples(x: Any, y: Any, count: Any) -> NDArray[Any] | str:
    """Samples [n, ...] of a user of whom a file declares so many; in words, what is wrong with them."""
    if not isinstance(x, list) or not isinstance(y, list):
        return "x and y must be lists"
    if len(x) != len(y) or count not in (None, len(y)):
        declared = "" if count is None else f", num_samples is {count}"
        return f"{len(x)} samples and {len(y)} labels{declared}"
    if strange := [label for label in y if not isinstance(label, str | int | float)]:
        return f"a label is {str(strange[0])[:40]}, expected a word or a number"
    samples = _numbers(x)
    if isinstance(samples, str):
        return f"x holds text ({samples[:40]!r})"
    return "samples have different lengths, or are no numbers" if samples is None else samples


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, none of whose names comes twice: JSON would keep the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(a for (a, _), (b, _) in pairwise(sorted(pairs, key=lambda pair: pair[0])) if a == b)
        raise ValueError(f"{twice!r} is there twice")
    return made


def _numbers(x: Sequence[Any]) -> NDArray[Any] | str | None:
    """Samples [n, ...]; the first text among them; None of what is neither."""
    first: Any = x
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, str):
        return first
    try:
        made = np.array(x)
    except ValueError:  # of different lengths
        return None
    if made.dtype.kind == "U":
        return next((str(word) for word in made.flat if not NUMBER.fullmatch(word)), str(made.flat[0]))
    return (made[:, None] if made.ndim == 1 else made) if made.dtype.kind in "biuf" else None
