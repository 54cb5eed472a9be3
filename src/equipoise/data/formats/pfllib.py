"""A file of arrays per client and part, as PFLlib has them."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.data.contents import DataError
from equipoise.data.declared import check_bytes
from equipoise.data.formats.arrays import OfClient, PickledError, of_arrays, of_clients, opened
from equipoise.data.tables.columns import Columns, UserData, column, of_files_read, together

PARTS = ("train", "test")


def files(folder: Path) -> list[Path]:
    """The files ``train/CLIENT.npz`` and, if there are any, ``test/CLIENT.npz`` of a folder."""
    train, test = (sorted((folder / part).glob("*.npz")) for part in PARTS)
    return [*train, *test] if train else []


def read(folder: Path, columns: Columns, files: Sequence[Path]) -> UserData:
    """Read a file per client and part, as PFLlib has them, each with arrays x and y."""
    parts: list[OfClient] = []
    problems: list[str] = []
    total = 0
    for path in files:
        try:
            arrays = opened(path)
        except PickledError:
            raise DataError(_conversion(folder, path)) from None
        named = [
            column([*arrays], asked, usual, path.name) for asked, usual in ((columns.image, "x"), (columns.label, "y"))
        ]
        if None in named:
            problems.append(f"{path.parent.name}/{path.name} holds {', '.join(arrays) or 'nothing'}, expected x and y.")
            continue
        x, y = (arrays[str(name)] for name in named)
        if y.shape != x.shape[:1]:
            problems.append(f"{path.parent.name}/{path.name}: x is {list(x.shape)} and y {list(y.shape)}.")
        parts.append((path.parent.name, path.stem, x, y))
        total += x.nbytes  # there again when all are put together
        check_bytes(folder, total)
    if len(kinds := {f"{x.dtype} {list(x.shape[1:])}" for _, _, x, _ in parts}) > 1:
        problems.append(f"samples must be of one type and shape, found {' and '.join(sorted(kinds))}.")
    if problems:
        raise DataError(together(folder, problems))
    own = of_arrays(folder, of_clients(parts), replace(columns, image=None, label=None), of_files_read(files))
    return replace(own, layout=f"a file per client and part: {own.layout.removeprefix('arrays: ')}")


def _conversion(folder: Path, path: Path) -> str:
    """What to do with the files of PFLlib, whose one array is a pickled dictionary."""
    new = f"{folder.absolute()}.npz"
    code = (
        "import numpy as np, pathlib; "
        f'f = [p for s in ({json.dumps(PARTS[0])}, {json.dumps(PARTS[1])}) for p in sorted(pathlib.Path({json.dumps(str(folder.absolute()))}, s).glob("*.npz"))]; '
        'd = [np.load(p, allow_pickle=True)["data"].item() for p in f]; n = [len(e["y"]) for e in d]; '
        f'np.savez({json.dumps(new)}, x=np.concatenate([e["x"] for e in d]), y=np.concatenate([e["y"] for e in d]), '
        "client=np.repeat([p.stem for p in f], n), split=np.repeat([p.parent.name for p in f], n))"
    )
    return (
        f"{path} holds Python objects, as PFLlib saves them, which are not read because they could run code. If you trust who made them, "
        f"make arrays of them, and give these with --data {shlex.quote(new)}:\n\npython -c {shlex.quote(code)}\n"
    )
