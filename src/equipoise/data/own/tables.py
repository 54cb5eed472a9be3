"""A table with a row per sample, and arrays."""

from __future__ import annotations

import csv as csv_
import math
import zipfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_npz, lines
from equipoise.data.own.columns import (
    Column,
    Columns,
    UserData,
    class_names,
    column,
    filled,
    listed,
    single,
    splits,
)
from equipoise.data.pictures import of_files

Where = Callable[[int], str]  # the place of a sample, for errors
DELIMITERS = ",;\t"
LARGEST = 3e38  # a larger number is infinite in float32
ROLES = ("client", "group", "split")
FIXES = "{fix}; leave the column out, --set leave_out={name}; or give its purpose, such as --set group={name}"


def csv(path: Path, columns: Columns) -> UserData:
    """Read a table: a row per sample, its class, and the path of an image or a number in every other column.

    The delimiter is a comma, semicolon or tabulator, whichever is most frequent in the header. Empty lines are ignored.

    Raises
    ------
    DataError : a wrong column or cell; names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = next(lines(file, path), "")
            file.seek(0)
            reader = csv_.reader(lines(file, path), delimiter=max(DELIMITERS, key=first.count))
            try:
                return _table(path, columns, reader)
            except csv_.Error as error:
                if "field limit" in str(error):
                    most = f"{csv_.field_size_limit():,} characters"
                    raise DataError(
                        f"{path}, line {reader.line_num}: a cell has more than {most}. Is a quotation mark open?"
                    ) from None
                raise
    except (UnicodeDecodeError, csv_.Error) as error:
        raise DataError(f"{path} cannot be read as a table ({error}). Expected UTF-8 text with a header.") from None


def _table(path: Path, columns: Columns, reader: Any) -> UserData:
    header: list[str] = next(reader, [])
    if doubled := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{path}: two columns are called {doubled[0]!r}. Rename one.")
    used = {role: column(header, getattr(columns, role), role, path.name) for role in ("label", *ROLES)}
    used["path"] = column(header, columns.image, "path", path.name)
    if used["label"] is None:
        raise DataError(
            f"{path} has no column label; its columns are {listed(header) or 'none'}. "
            "Name the one with the class: --set label=COLUMN."
        )
    if twice := [name for name in header if list(used.values()).count(name) > 1]:
        raise DataError(f"{path}: the column {twice[0]} is named for two purposes. Name another one.")
    for name in columns.leave_out:
        column(header, name, "", path.name)
    rest = [name for name in header if name not in used.values() and name not in columns.leave_out]
    if not rest and used["path"] is None:
        raise DataError(f"{path} has neither a column path nor columns of numbers, so there is nothing to learn from.")
    at = {role: header.index(name) for role, name in used.items() if name is not None}
    wanted = [] if used["path"] is not None else [(header.index(name), name) for name in rest]
    cells: dict[str, list[str]] = {role: [] for role in at}
    numbers, lines = array("f"), list[int]()
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {reader.line_num}: found {len(row)} cells, and the header has {len(header)}."
            )
        lines.append(reader.line_num)
        for role, k in at.items():
            cells[role].append(row[k])
        numbers.extend(_number(path, reader.line_num, name, row[k]) for k, name in wanted)

    def where(role: str) -> Where:
        return lambda k: f"{path}, line {lines[k]}, column {used[role]}"

    roles = _roles(cells, where)
    notes: list[str] = []
    inputs: Any = np.frombuffer(numbers, np.float32).reshape(len(lines), len(wanted))
    if used["path"] is not None:
        files, notes = _files(path, cells["path"], roles["label"], where("path"))
        inputs = of_files(files)
        if rest:
            are = "s {} are" if len(rest) > 1 else " {} is"
            notes.append(f"{path.name}: the column{are.format(listed(rest))} not used.")
    return UserData(
        source=str(path),
        layout="a table of images" if used["path"] is not None else f"a table of {len(rest)} numbers per row",
        inputs=inputs,
        features=tuple(name for _, name in wanted),
        names=tuple(cells["path"]) if used["path"] is not None else tuple(f"line {line}" for line in lines),
        about={"file": path.name, "bytes": path.stat().st_size},
        notes=tuple(notes),
        **roles,
    )


def _number(path: Path, line: int, name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in cell or abs(value) > LARGEST:
        found, fix = (f"found {cell.strip()!r}", "Correct it") if cell.strip() else ("it is empty", "Fill it in")
        fixes = FIXES.format(fix=fix, name=name)
        raise DataError(f"{path}, line {line}, column {name}: expected a number, {found}. {fixes}.")
    return value


def _roles(cells: dict[str, Any], where: Callable[[str], Where]) -> dict[str, Any]:
    """Class, client, group and split of every sample, if there are such columns."""
    roles: dict[str, Column] = {"label": class_names(cells["label"], where("label"))}
    for role in ("client", "group"):
        if role in cells:
            roles[role] = filled(cells[role], role, where(role))
    if "split" in cells:
        roles["split"] = splits(cells["split"], where("split"))
    return roles


def _files(path: Path, cells: Sequence[str], labels: Sequence[str], where: Where) -> tuple[tuple[Path, ...], list[str]]:
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
    cells = {role: _words(arrays[name]) for role, name in used.items() if name is not None}

    def where(role: str) -> Where:
        return lambda k: f"{path}, {used[role]}[{k}]"

    tokens = "function" in about and x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim > 1 and 0 not in x.shape
    inputs = x.astype(np.int64) if tokens else _inputs(path, str(x_name), x)
    unused = [name for name in known if name not in (x_name, *used.values(), *columns.leave_out)]
    kind = "images" if inputs.dtype == np.uint8 else "numbers"
    return UserData(
        source=str(path),
        layout=f"arrays: {kind} {list(inputs.shape[1:])}",
        inputs=inputs,
        names=tuple(f"{x_name}[{k}]" for k in range(len(x))),
        about=about,
        notes=(f"{file}: {listed(unused)} {'are' if len(unused) > 1 else 'is'} not used.",) if unused else (),
        **_roles(cells, where),
    )


def _words(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "S":
        return [word.decode(errors="replace") for word in values.tolist()]
    if values.dtype.kind == "b":
        return [str(int(value)) for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def _inputs(path: Path | str, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Numbers float32 [n, ...], or images uint8 [n, C, H, W] from [n, H, W], [n, H, W, C] or [n, C, H, W]."""
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
    return single(x, lambda at: f"{path}: {name}{at}")
