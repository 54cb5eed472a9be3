"""Variables of MATLAB files."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_bytes
from equipoise.data.formats.arrays import named, of_arrays
from equipoise.data.tables.columns import Columns, UserData, listed
from equipoise.data.tables.words import EXACT

# Of a number; 8 of all others.
BYTES = {"uint8": 1, "int8": 1, "logical": 1, "uint16": 2, "int16": 2, "single": 4, "uint32": 4, "int32": 4}
MATLAB_73, HDF = b"MATLAB 7.3", b"\x89HDF"  # begin files of this version, with and without a text before


def read(path: Path, columns: Columns) -> UserData:
    """Read variables of a MATLAB file: x with the samples along its first or last side, y, and client, group and split.

    They are of the class that they have in MATLAB, which stores doubles that are whole as bytes.
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
        variables = {name: (shape, kind) for name, shape, kind in whosmat(path)}
        used = named(path, [*variables], columns)
        check_bytes(
            path, sum(math.prod(variables[name][0]) * BYTES.get(variables[name][1], 8) for name in used.values())
        )
        content = loadmat(path, variable_names=[*used.values()], mat_dtype=True)
    except DataError:
        raise
    except Exception as error:  # SciPy raises many kinds for a damaged file
        raise DataError(
            f"{path} cannot be read as a MATLAB file ({type(error).__name__}: {error}). Is it damaged, or cut short?"
        ) from None
    arrays = {name: _plain(path, name, content[name]) for name in used.values()}
    for name in {*used.values()} - {used["x"]}:
        cells = arrays[name].reshape(
            -1
        )  # MATLAB has no arrays of one side, and its whole numbers are doubles as a rule
        whole = cells.dtype.kind == "f" and (np.abs(cells) < EXACT).all() and (cells == np.rint(cells)).all()
        arrays[name] = cells.astype(np.int64) if whole else cells
    x, n = arrays[used["x"]], len(arrays[used["label"]])
    unused = [name for name in variables if name not in used.values()]
    notes = [f"{path.name}: {listed(unused)} {'are' if len(unused) > 1 else 'is'} not used."] if unused else []
    if x.shape[-1] == n != x.shape[0]:
        arrays[used["x"]] = np.ascontiguousarray(np.moveaxis(x, -1, 0))
        notes.append(f"{path.name}: {used['x']} {list(x.shape)} has the samples last, as there are {n} labels.")
    elif x.shape[-1] == n == x.shape[0]:
        notes.append(
            f"{path.name}: {used['x']} {list(x.shape)} has as many rows as columns; a row is taken as a sample."
        )
    own = of_arrays(path, arrays, columns, {"file": path.name, "bytes": path.stat().st_size})
    return replace(own, notes=(*own.notes, *notes))


def _plain(path: Path, name: str, variable: Any) -> NDArray[Any]:
    """A variable of numbers, or of words as cells or as rows of characters."""
    kind = variable.dtype.kind if isinstance(variable, np.ndarray) else ""
    if kind == "U":
        return np.array([word.strip() for word in variable.reshape(-1).tolist()])
    cells = variable.reshape(-1) if kind == "O" else ()
    words = [cell.reshape(-1).tolist() for cell in cells if isinstance(cell, np.ndarray)]
    if words and len(words) == variable.size and all(len(word) == 1 for word in words):
        return np.array([str(word[0]) for word in words])
    if not kind or kind not in "biuf":
        raise DataError(
            f"{path}: {name} is neither an array of numbers nor cells with words. In MATLAB, {name} = full({name}) makes one of a "
            f"sparse matrix, and {name} = cellstr({name}) cells of strings."
        )
    return variable  # type: ignore[no-any-return]
