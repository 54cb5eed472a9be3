"""Where the files of a data set lie below the folder that the user names."""

import gzip
import hashlib
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from equipoise.data.contents import DataError
from equipoise.system.suggestions import some

MISSING = "missing"  # kind of errors: nothing of a data set, or of one of its splits, is where it was looked for; ``lost`` are their names
SHOWN = 8  # entries of a folder that an error lists
# each file (or folder) of a split as the places where it may lie, the usual one first
Files = tuple[tuple[str, ...], ...]


def plain(name: str) -> str:
    """A file name without what spellings differ in: case, and all but letters and digits."""
    return "".join(c for c in name.lower() if c.isalnum())


def find(root: Path, places: Iterable[str]) -> Path | None:
    """The first place that exists, see :func:`existing`."""
    return next(existing(root, places), None)


def existing(root: Path, places: Iterable[str]) -> Iterator[Path]:
    """The places that exist, in their order, none of them twice or inside another; ``root`` may be any of the folders on the way.

    ``MNIST/raw/x`` is found as ``root/MNIST/raw/x``, as ``root/raw/x`` if ``root`` is called MNIST, and as ``root/x`` if it
    is called MNIST/raw. Names are compared by :func:`plain`.
    """
    above = [plain(part) for part in Path(os.path.abspath(root)).parts]  # noqa: PTH100 (a link keeps its own name)
    before: list[Path] = []
    for place in places:
        parts = place.split("/")
        for k in range(len(parts) + 1):
            if k == 0 or above[-k:] == [plain(part) for part in parts[:k]]:
                path: Path | None = root if root.exists() else None
                for part in parts[k:]:
                    path = _child(path, part) if path is not None else None
                if path is not None and not any(path.resolve().is_relative_to(other) for other in before):
                    before.append(path.resolve())
                    yield path


def _child(folder: Path, name: str) -> Path | None:
    """What is in a folder under a name, exactly so or else by :func:`plain`."""
    if (folder / name).exists():
        return folder / name
    return next((entry for entry in entries(folder) if plain(entry.name) == plain(name)), None)


def entries(folder: Path) -> list[Path]:
    """What a folder holds, sorted by name, without hidden files; nothing if it cannot be read."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX")))
    except OSError:
        return []


def located(name: str, root: Path, places: Sequence[str]) -> Path:
    """The first of a data set's places that exists.

    Parameters
    ----------
    name : the data set's name in the catalogue.
    root : the folder that the user names.
    places : paths below it, the usual one first; see :func:`existing`.
    """
    path = find(root, places)
    if path is None:
        expected = " or ".join(places)
        raise DataError(f"{name}: expected {expected} in {root}; {holds(root)}. {where_from([name], root)}", MISSING)
    return path


def holds(root: Path) -> str:
    """What is in a folder, in words."""
    if not root.is_dir():
        return "that is a file and no folder" if root.exists() else "there is no such folder"
    names = [entry.name + "/" * entry.is_dir() for entry in entries(root)]
    return f"found there: {some(names, SHOWN)}" if names else "that folder is empty"


def where_from(names: Sequence[str], root: Path) -> str:
    """The commands that say where to get data sets."""
    commands = [f"`equipoise data get {name} --data {shlex.quote(str(root))}`" for name in names]
    says, pronoun = ("say", "them") if len(names) > 1 else ("says", "it")
    return f"{' and '.join(commands)} {says} where to get {pronoun}."


def facts(paths: Iterable[Path]) -> dict[str, Any]:
    """What a record of a run says about files: by name, how many bytes they have and which, as a sha256."""
    return {"files": {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths}}


def digest(path: Path, algorithm: str = "sha256", *, unpacked: bool = False) -> str:
    """Checksum of a file, in hexadecimal; ``unpacked``: of what gzip has packed in it, or nothing if that is damaged."""
    try:
        with gzip.open(path) if unpacked else path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""
