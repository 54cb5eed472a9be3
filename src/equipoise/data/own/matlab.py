"""Variables of MATLAB files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_bytes
from equipoise.data.own.arrays import of_arrays
from equipoise.data.own.columns import Columns, UserData, column

MATLAB_73, HDF = b"MATLAB 7.3", b"\x89HDF"  # begin files of this version, with and without a text before


def read(path: Path, columns: Columns) -> UserData:
    """Read variables of a MATLAB file: x with the samples along its first or last side, y, and client, group and split.

    Raises
    ------
    DataError : it is of version 7.3, damaged or too large, or a variable is missing or wrong.
    """
    with path.open("rb") as file:
        begin = file.read(len(MATLAB_73))
    if begin == MATLAB_73 or begin.startswith(HDF):
        raise DataError(
            f"{path} is a MATLAB file of version 7.3, which is not read. Save it in MATLAB as one of version 7: "
            f"load('{path.name}'); save('{path.stem}-v7.mat', '-v7')"
        )
    from scipy.io import loadmat, whosmat

    try:
        known = [(name, shape) for name, shape, _ in whosmat(path)]
        check_bytes(path, sum(8 * math.prod(shape) for _, shape in known))
        content = loadmat(path, variable_names=[name for name, _ in known])
    except DataError:
        raise
    except Exception as error:  # SciPy raises many kinds for a damaged file
        raise DataError(
            f"{path} cannot be read as a MATLAB file ({type(error).__name__}: {error}). Is it damaged, or cut short?"
        ) from None
    arrays = {name: array for name, _ in known if (array := _plain(content[name])) is not None}
    names = [
        column([*arrays], given, usual, path.name)
        for given, usual in ((columns.image, "x"), (columns.label, "y"), (None, "label"))
    ]
    x, y = names[0], names[1] or names[2]
    notes: list[str] = []
    if x is not None and y is not None:
        n = arrays[y].size
        for name in (name for name in arrays if name != x and arrays[name].size == n):
            arrays[name] = arrays[name].reshape(-1)  # MATLAB has no arrays of one side
        shape = arrays[x].shape
        if shape[-1] == n != shape[0]:
            arrays[x] = np.ascontiguousarray(np.moveaxis(arrays[x], -1, 0))
            notes.append(f"{path.name}: {x} {list(shape)} has the samples last, as {y} has {n} labels.")
        elif shape[-1] == n == shape[0]:
            notes.append(f"{path.name}: {x} {list(shape)} has as many rows as columns; a row is taken as a sample.")
    elif arrays:
        raise DataError(
            f"{path} holds {', '.join(arrays)}. Say which has the samples and which the labels: --set image=NAME --set label=NAME."
        )
    own = of_arrays(path, arrays, columns, {"file": path.name, "bytes": path.stat().st_size})
    return replace(own, notes=(*own.notes, *notes))


def _plain(variable: Any) -> NDArray[Any] | None:
    """A variable of numbers, or of words as cells or as rows of characters; None of another one."""
    if not isinstance(variable, np.ndarray) or variable.dtype.kind not in "biufOU":
        return None
    if variable.dtype.kind != "O":
        return np.array([word.strip() for word in variable.tolist()]) if variable.dtype.kind == "U" else variable
    words = [cell.reshape(-1).tolist() for cell in variable.reshape(-1) if isinstance(cell, np.ndarray)]
    if len(words) < variable.size or any(len(word) != 1 for word in words):
        return None
    return np.array([str(word[0]) for word in words])
