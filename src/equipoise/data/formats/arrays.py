"""Arrays x and y: of an ``.npz`` file, of a function, or of another reader."""

import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_npz
from equipoise.data.precision import lost
from equipoise.data.tables.columns import SPLITS, WRITTEN, Columns, UserData, check_purposes, column, listed, together
from equipoise.data.tables.groups import groups_of
from equipoise.data.tables.numbers import counting, finite, single
from equipoise.data.tables.roles import named_columns, read_roles
from equipoise.data.tables.words import Origin

# Of inputs and labels.
PAIRS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("{}_x", "{}_y"), ("{}_data", "{}_labels"))

Arrays = Mapping[str, NDArray[Any]]
OfClient = tuple[str, str, NDArray[Any], NDArray[Any]]  # part of the data ("": none), client, samples and labels


class PickledError(DataError):
    """An array holds Python objects."""


def npz(path: Path, columns: Columns) -> UserData:
    """Read arrays: x [n, ...] and y [n], and client, group and split [n] if they exist; or those of MedMNIST and Keras.

    Raises
    ------
    DataError : an array is missing or wrong.
    """
    arrays: Arrays = opened(path)
    if not {"x", columns.image} & arrays.keys():
        arrays = joined(path, arrays)
    return of_arrays(path, arrays, columns, {"file": path.name, "bytes": path.stat().st_size})


def opened(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file, which fit into memory and hold no Python objects."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":  # of a zip file
            raise DataError(f"{path} cannot be read: it is no NPZ file. Write it with np.savez(...).")
    try:
        check_npz(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: x for name in archive.files if isinstance(x := archive[name], np.ndarray)}
    except DataError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, ValueError) and "pickle" in str(error).lower():
            raise PickledError(
                f"{path}: an array holds Python objects, which are not read because they could run code. "
                "Save numbers, or text as np.array(list_of_words)."
            ) from None
        raise DataError(f"{path} cannot be read ({error}). Write it with np.savez(...).") from None


def joined(path: Path, arrays: Arrays) -> Arrays:
    """Arrays with x, y and split, of those that have a pair of arrays for each part: ``train_images`` and ``train_labels``."""
    forms, parts = _pairs(arrays)
    if not parts:
        return arrays
    if lone := [next(filter(None, pair)) for pair in parts.values() if None in pair]:
        expected = " and ".join(form.format("PART") for form in forms)
        raise DataError(f"{path}: {lone[0]} is there without its pair; expected {expected} for each part.")
    x, y = ([arrays[str(pair[k])] for pair in parts.values()] for k in (0, 1))
    y = [labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels for labels in y]
    if many := [labels.shape for labels in y if labels.ndim != 1]:
        raise DataError(_choice(path, many[0], forms[1].format("")))
    if len(kinds := {f"{samples.dtype} {list(samples.shape[1:])}" for samples in x}) > 1:
        raise DataError(
            f"{path}: samples of all parts must be of one type and shape; found {' and '.join(sorted(kinds))}."
        )
    used = {name for pair in parts.values() for name in pair}
    made = {"x": np.concatenate(x), "y": np.concatenate(y), "split": np.repeat([*parts], [*map(len, y)])}
    return made | {name: array for name, array in arrays.items() if name not in used | made.keys()}


def _pairs(arrays: Arrays) -> tuple[tuple[str, str], dict[str, list[str | None]]]:
    """How pairs of arrays are called, and those of each part; none if there is none for training."""
    names = {name.lower(): name for name in arrays}
    for forms in PAIRS:
        pairs = {part: [names.get(form.format(part)) for form in forms] for part in SPLITS}
        parts = {part: pair for part, pair in pairs.items() if any(pair)}
        if None not in parts.get("train", [None]):
            return forms, parts
    return PAIRS[0], {}


def _choice(path: Path, shape: tuple[int, ...], labels: str) -> str:
    """What to do with samples of several labels, in columns."""
    new = str(path.with_name(f"{path.stem}-0.npz").absolute())
    code = (
        f"import numpy as np; d = dict(np.load({json.dumps(str(path.absolute()))})); "
        f"d.update({{k: v[:, [0]] for k, v in d.items() if {json.dumps(labels)} in k.lower()}}); np.savez({json.dumps(new)}, **d)"
    )
    return (
        f"{path}: the labels are {list(shape)}, several for each sample, and a sample has one class here. Choose one of them, here that "
        f"of column 0, and give the result with --data {shlex.quote(new)}:\n\npython -c {shlex.quote(code)}\n"
    )


def of_arrays(path: Path | str, arrays: Arrays, columns: Columns, about: Mapping[str, Any]) -> UserData:
    """The user's data in arrays by name; ``path`` says where they are from. Whole numbers of a function stay so."""
    file, names = Path(path).name, list(arrays)
    columns.require_none((*WRITTEN, "keep", "inputs", "unlabelled", "leave_out", "schema"), path, "a table")
    used = named(path, names, columns)
    x_name = used.pop("x")
    _check_roles(path, arrays, x_name, used)
    x = arrays[x_name]
    inputs, of_inputs = _inputs(path, x_name, np.ascontiguousarray(x), "function" in about)
    unused = [name for name in names if name not in (x_name, *used.values())]
    notes = [f"{file}: {listed(unused)} {'are' if len(unused) > 1 else 'is'} not used."] if unused else []
    notes += of_inputs
    groups = groups_of(columns, names, file)

    def origin(name: str) -> Origin:
        return Origin(f"{path}, {name}", partial("{}[{}]".format, name))

    roles, problems = read_roles(path, columns, used, groups, arrays.__getitem__, origin, notes)
    if problems:
        raise DataError(together(path, problems))
    numbers = inputs.ndim == 2 and inputs.dtype.kind in "iuf" and "function" not in about
    if which := [f"{x_name}[:, {k}]" for k in (counting(inputs) if numbers else ())]:
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


def of_clients(parts: Sequence[OfClient]) -> dict[str, NDArray[Any]]:
    """The samples of all clients one after another, and whose each is; also the parts of the data, where some have a name."""
    splits, names, samples, labels = zip(*parts, strict=True) if parts else ((), (), (), ())
    sizes = [*map(len, labels)]
    arrays = {"x": np.concatenate([x for x in samples if len(x)] or [np.empty((0, 1))])}
    arrays |= {"y": np.concatenate(labels or [np.empty(0)]), "client": np.repeat(names, sizes)}
    return arrays | ({"split": np.repeat(splits, sizes)} if any(splits) else {})


def named(path: Path | str, names: Sequence[str], columns: Columns) -> dict[str, str]:
    """The array of the samples, ``"x"``, and that of each role there is."""
    file = Path(path).name
    used = named_columns(columns, names, file)
    used["label"] = column(names, columns.label, "y", file) or column(names, None, "label", file)
    used["x"] = column(names, columns.image, "x", file)
    for what, role in (("x", "x"), ("y", "label")):
        if used[role] is None:
            raise DataError(
                f"{path} has no array {what}; it holds {listed(names) or 'nothing'}. Expected x [n, ...] and y [n], or others by their "
                "names: --set image=NAME --set label=NAME."
            )
    check_purposes(used, path)
    return {role: name for role, name in used.items() if name is not None}


def _check_roles(path: Path | str, arrays: Arrays, x_name: str, roles: Mapping[str, str]) -> None:
    """Require an entry per sample in the array of each role."""
    x = arrays[x_name]
    for role, name in roles.items():
        if arrays[name].shape != x.shape[:1]:
            raise DataError(
                f"{path}: {name} has shape {list(arrays[name].shape)} and {x_name} {list(x.shape)}; "
                f"expected one {role} per sample, [{len(x) if x.ndim else 'n'}]."
            )
        if arrays[name].dtype.kind == "c":
            raise DataError(f"{path}: {name} holds complex numbers; expected words or real numbers.")


def _inputs(path: Path | str, name: str, x: NDArray[Any], function: bool) -> tuple[NDArray[Any], list[str]]:
    """Finite numbers [n, ...], or images uint8 [n, C, H, W] from [n, H, W], [n, H, W, C] or [n, C, H, W]; and notes.

    Of a function numbers become float32, or int64 where they are whole, and their sides stay.
    """
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(
            f"{path}: {name} must hold numbers [n, ...], at least one per sample; found {x.dtype} {list(x.shape)}."
        )
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None], []
    if x.dtype == np.uint8 and x.ndim == 4:
        images = _channels_first(x)
        if images.shape[1] not in (1, 3):
            raise DataError(
                f"{path}: {name} holds bytes {list(x.shape)}: images have 1 or 3 channels, as [n, C, H, W] or [n, H, W, C]."
            )
        return images, []

    def where(at: list[int]) -> str:
        return f"{path}: {name}{at}"

    file, notes = Path(path).name, []
    if function and x.dtype != np.uint8:
        if x.dtype.kind in "iu":
            return x.astype(np.int64), []
        rounded = single(x, where)
        if rounding := lost(x, rounded, lambda k: f"number {k} of a sample"):
            notes.append(f"{file}: {rounding} Subtract their mean, in double precision, before you return them.")
        return rounded, notes
    images = _channels_first(x)
    if images is not x:
        notes.append(f"{file}: {name} is taken as images with the channels last, and becomes {list(images.shape)}.")
    return finite(images, where), notes


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """Images [n, C, H, W] from [n, H, W, C]; all other numbers as they are."""
    last = x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if last else x
