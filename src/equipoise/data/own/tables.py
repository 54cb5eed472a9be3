"""A table with a row per sample, and arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_npz
from equipoise.data.own import delimited, parquet
from equipoise.data.own.columns import MANY, Column, Columns, UserData, column, listed, option, splits
from equipoise.data.own.delimited import COMPRESSED
from equipoise.data.own.numbers import counting, finite, left_out, nameless, numbering, refusal, single
from equipoise.data.own.words import Origin, read_classes, read_names, settled
from equipoise.data.pictures import of_files

ROLES = ("client", "group", "split")


class Table(Protocol):
    """A table with named columns, whose cells are read when they are asked for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what was left out."""

    def __len__(self) -> int: ...

    def at(self, row: int) -> str:
        """The place of a row, for errors."""

    def words(self, names: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """The cells of some columns, from which names are made."""

    def numbers(self, names: Sequence[str]) -> tuple[NDArray[np.float64], dict[str, str]]:
        """The cells of some columns as numbers [n, D], and what is wrong with columns that hold others, by name."""

    def commas(self, names: Sequence[str]) -> bool:
        """Whether some column holds nothing but numbers with a comma in them."""

    def merged(self, names: Sequence[str], x: NDArray[np.float64]) -> list[str]:
        """Columns with whole numbers so long that different ones are the same in double precision."""


def text(path: Path, columns: Columns) -> UserData:
    """Read a table that is text, see :func:`equipoise.data.own.delimited.read` and :func:`of_table`."""
    return of_table(path, columns, delimited.read(path, columns))


def parquet_file(path: Path, columns: Columns) -> UserData:
    """Read a Parquet file, see :func:`of_table`."""
    return of_table(path, columns, parquet.read(path))


def of_table(path: Path, columns: Columns, table: Table) -> UserData:
    """The user's data in a table: a row per sample, its class, and the path of an image or a number in every other column.

    Raises
    ------
    DataError : wrong columns or cells; names all of them.
    """
    header = table.names
    used = {role: column(header, getattr(columns, role), role, path.name) for role in ("label", *ROLES)}
    used["path"] = column(header, columns.image, "path", path.name)
    there = {role: name for role, name in used.items() if name is not None}
    if twice := [name for name in header if list(there.values()).count(name) > 1]:
        raise DataError(f"{path}: the column {twice[0]} is named for two purposes. Name another one.")
    for name in (*columns.leave_out, *columns.keep):
        column(header, name, "", path.name)
    apart = {*there.values(), *columns.leave_out}
    rest = [name for name in header if name not in apart]
    problems: list[str] = []
    notes = list(table.notes)
    roles, cells = _roles(path, columns, table, there, problems, notes)
    inputs: Any = None
    if used["path"] is None:
        inputs, rest = _numbers(path, columns, table, rest, problems, notes)
    if problems:
        raise DataError(_together(path, problems))
    if used["path"] is not None:
        files, more = _files(
            path, cells["path"], roles["label"], lambda k: f"{path}, {table.at(k)}, column {used['path']}"
        )
        inputs = of_files(files)
        if rest:
            are = "s {} are" if len(rest) > 1 else " {} is"
            more.append(f"{path.name}: the column{are.format(listed(rest))} not used.")
        notes += more
    return UserData(
        source=str(path),
        layout="a table of images" if used["path"] is not None else f"a table of {len(rest)} numbers per row",
        inputs=inputs,
        features=() if used["path"] is not None else tuple(rest),
        names=tuple(cells["path"]) if used["path"] is not None else tuple(map(table.at, range(len(table)))),
        about={"file": path.name, "bytes": path.stat().st_size},
        notes=tuple(notes),
        **roles,
    )


def _roles(
    path: Path, columns: Columns, table: Table, used: Mapping[str, str], problems: list[str], notes: list[str]
) -> tuple[dict[str, Column], Mapping[str, Sequence[Any]]]:
    """Class, client, group and split of every sample, if there are such columns, and the cells of these and the images."""
    cells = table.words([*used.values()])
    roles: dict[str, Column] = {}
    if "label" not in used:
        every = f"{', '.join(table.names[:MANY])}{f' and {len(table.names) - MANY:,} more' * (len(table.names) > MANY)}"
        problems.append(
            f"{path} has no column label; its columns are {every or 'none'}. Name the one with the class: --set label=COLUMN."
        )
    for role in ("label", "client", "group"):
        if role in used:
            origin = Origin(f"{path}, column {used[role]}", table.at)
            if role == "label":
                names = read_classes(cells[used[role]], origin, columns.not_missing)
            else:
                names = read_names(cells[used[role]], role, origin, columns.not_missing)
            roles[role] = names.words
            problems += names.problems
            notes += names.notes
    if "split" in used:
        try:
            roles["split"] = splits(
                [str(cell) for cell in cells[used["split"]]],
                lambda k: f"{path}, {table.at(k)}, column {used['split']}",
            )
        except DataError as error:
            problems.append(str(error))
    return roles, {role: [str(cell) for cell in cells[name]] for role, name in used.items() if role == "path"}


def _numbers(
    path: Path, columns: Columns, table: Table, rest: list[str], problems: list[str], notes: list[str]
) -> tuple[NDArray[np.float64], list[str]]:
    """The features [n, D] and their names: what has a name and does not only count the rows."""
    unnamed = [name for name in rest if nameless(name) and name not in columns.keep]
    rest = [name for name in rest if name not in set(unnamed)]
    empty = {name for name, cells in table.words(unnamed).items() if not any(str(cell).strip() for cell in cells)}
    x, wrong = table.numbers(rest)
    if wrong:
        problems.append(f"{path}: {refusal(wrong, commas=table.commas(list(wrong)))}")
        return x, rest
    if merged := table.merged(rest, x):
        notes.append(
            f"{path.name}: {listed(merged)}: whole numbers of so many digits that different ones are the same in double precision. "
            "Divide them into several columns if the last digits matter."
        )
    counts = [rest[k] for k in counting(x) if rest[k] not in columns.keep]
    if unnamed := [name for name in unnamed if name not in empty]:
        notes.append(left_out(unnamed, path.name, "a column without a name is an index of the rows as a rule"))
    if counts:
        notes.append(left_out(counts, path.name, "it holds nothing but the numbers of the rows"))
        keep = [name not in set(counts) for name in rest]
        x, rest = x[:, keep], [name for name in rest if name not in set(counts)]
    if increasing := [rest[k] for k in numbering(x) if rest[k] not in columns.keep]:
        notes.append(
            f"{path.name}: {listed(increasing)}: whole numbers that increase from row to row. If they number the rows, the order of the "
            f"file is learnt from them: {option('leave_out', [*columns.leave_out, *increasing])}."
        )
    if not rest and not problems:
        why = f" ({notes[-1]})" if counts or unnamed else ""
        problems.append(
            f"{path} has neither a column path nor columns of numbers, so there is nothing to learn from.{why}"
        )
    return x, rest


def _together(path: Path, problems: Sequence[str]) -> str:
    """All problems of a table as one text; each names the file."""
    if len(problems) == 1:
        return problems[0]
    said = (
        f"({k}) {problem.removeprefix(f'{path}, ').removeprefix(f'{path}: ')}" for k, problem in enumerate(problems, 1)
    )
    return f"{path} has {len(problems)} problems: {' '.join(said)}"


def _files(
    path: Path, cells: Sequence[str], labels: Sequence[str], where: Callable[[int], str]
) -> tuple[tuple[Path, ...], list[str]]:
    """The images of a table, which must exist, and a note if some are repeated."""
    files = tuple(path.parent / cell.strip() for cell in cells)
    lost = [
        k for k, (cell, file) in enumerate(zip(cells, files, strict=True)) if not cell.strip() or not file.is_file()
    ]
    if lost:
        more = f", and {len(lost) - 1} more are missing" if len(lost) > 1 else ""
        raise DataError(
            f"{where(lost[0])}: there is no image {files[lost[0]]}{more}. Paths are relative to the folder of {path.name}."
        )
    seen: dict[Path, int] = {}
    again = 0
    for k, file in enumerate(files):
        first = seen.setdefault(file, k)
        again += first != k
        if labels[first] != labels[k]:
            raise DataError(
                f"{where(k)}: {cells[k]} is {labels[k]!r} here and {labels[first]!r} before ({where(first)}). An image has one class."
            )
    repeat = "line repeats an image of another" if again == 1 else "lines repeat images of others"
    note = f"{path.name}: {again} {repeat}; it counts each time, perhaps in training and in test data."
    return files, [note] if again else []


def npz(path: Path, columns: Columns) -> UserData:
    """Read arrays: x [n, ...] and y [n], and client, group and split [n] if they exist.

    Raises
    ------
    DataError : an array is missing or wrong.
    """
    with path.open("rb") as file:
        if file.read(2) != b"PK":  # of a zip file
            raise DataError(f"{path} cannot be read: it is no NPZ file. Write it with np.savez(...).")
    try:
        check_npz(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: x for name in archive.files if isinstance(x := archive[name], np.ndarray)}
    except DataError:
        raise
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise DataError(
                f"{path}: an array holds Python objects, which are not read because they could run code. "
                "Save numbers, or text as np.array(list_of_words)."
            ) from None
        raise DataError(f"{path} cannot be read ({error}). Write it with np.savez(...).") from None
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}). Write it with np.savez(...).") from None
    return of_arrays(path, arrays, columns, {"file": path.name, "bytes": path.stat().st_size})


def of_arrays(
    path: Path | str, arrays: Mapping[str, NDArray[Any]], columns: Columns, about: Mapping[str, Any]
) -> UserData:
    """The user's data in arrays by name; ``path`` says where they are from. Whole numbers of a function stay so."""
    file, known = Path(path).name, list(arrays)
    used = {role: column(known, getattr(columns, role), role, file) for role in ROLES}
    used["label"] = column(known, columns.label, "y", file) or column(known, None, "label", file)
    x_name = column(known, columns.image, "x", file)
    for what, name in (("x", x_name), ("y", used["label"])):
        if name is None:
            raise DataError(
                f"{path} has no array {what}; it holds {listed(known) or 'nothing'}. Expected x [n, ...] and y [n]."
            )
    x = arrays[str(x_name)]
    for role, name in used.items():
        if name is not None and arrays[name].shape != x.shape[:1]:
            raise DataError(
                f"{path}: {name} has shape {list(arrays[name].shape)} and {x_name} {list(x.shape)}; "
                f"expected one {role} per sample, [{len(x) if x.ndim else 'n'}]."
            )
        if name is not None and arrays[name].dtype.kind == "c":
            raise DataError(f"{path}: {name} holds complex numbers; expected words or whole numbers.")
    function = "function" in about
    tokens = function and x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim > 1 and 0 not in x.shape
    inputs = x.astype(np.int64) if tokens else _inputs(path, str(x_name), x)
    if function and inputs.dtype.kind in "bf":
        inputs = single(inputs, lambda at: f"{path}: {x_name}{at}")
    unused = [name for name in known if name not in (x_name, *used.values(), *columns.leave_out)]
    notes = [f"{file}: {listed(unused)} {'are' if len(unused) > 1 else 'is'} not used."] if unused else []
    roles: dict[str, Column] = {}
    for role, name in used.items():
        if name is None:
            continue
        origin = Origin(f"{path}, {name}", partial("{}[{}]".format, name))
        if role == "label":
            roles[role] = settled(read_classes(arrays[name], origin, columns.not_missing), notes)
        elif role == "split":
            roles[role] = splits(
                [str(cell) for cell in _decoded(arrays[name])], lambda k: f"{path}, {used['split']}[{k}]"
            )
        else:
            roles[role] = settled(read_names(arrays[name], role, origin, columns.not_missing), notes)
    if inputs.ndim == 2 and inputs.dtype.kind in "iuf" and not function:
        which = [f"{x_name}[:, {k}]" for k in counting(inputs)]
        if which:
            notes.append(
                f"{file}: {listed(which)} holds nothing but the numbers of the rows. Remove it if it is no feature."
            )
    kind = "images" if inputs.dtype == np.uint8 else "numbers"
    return UserData(
        source=str(path),
        layout=f"arrays: {kind} {list(inputs.shape[1:])}",
        inputs=inputs,
        names=tuple(f"{x_name}[{k}]" for k in range(len(x))),
        about=about,
        notes=tuple(notes),
        **roles,
    )


def _decoded(words: NDArray[Any]) -> list[Any]:
    return [word.decode() if isinstance(word, bytes) else word for word in words.tolist()]


def _inputs(path: Path | str, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Finite numbers [n, ...], or images uint8 [n, C, H, W] from [n, H, W], [n, H, W, C] or [n, C, H, W]."""
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(
            f"{path}: {name} must hold numbers [n, ...], at least one per sample; found {x.dtype} {list(x.shape)}."
        )
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        if x.shape[1] in (1, 3):
            return x
        if x.shape[3] in (1, 3):
            return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        raise DataError(
            f"{path}: {name} holds bytes {list(x.shape)}: images have 1 or 3 channels, as [n, C, H, W] or [n, H, W, C]."
        )
    return finite(x, lambda at: f"{path}: {name}{at}")


TEXT = (".csv", ".tsv")
READERS: Mapping[str, Callable[[Path, Columns], UserData]] = {
    ".csv": text,
    ".tsv": text,
    ".parquet": parquet_file,
    ".npz": npz,
}


def reader(path: Path) -> Callable[[Path, Columns], UserData] | None:
    """What reads a file of this name, which may end in ``.gz``, ``.bz2`` or ``.xz`` if it is text."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED and Path(path.stem).suffix.lower() in TEXT:
        return text
    return READERS.get(suffix)
