"""The image files that a table names, also one that was made on Windows; and files of operating systems, which are no data."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from equipoise.data.contents import DataError
from equipoise.system.suggestions import some

SYSTEM = ("thumbs.db", "desktop.ini", ".ds_store", "__macosx", "ehthumbs.db", "$recycle.bin")
DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")  # begins a path that holds on one machine only


def of_a_system(name: str) -> bool:
    """Whether an operating system writes files or folders of this name beside those of its user."""
    return name.lower() in SYSTEM or name.startswith("._")


def needless(cell: str) -> bool:
    """Whether a path of a table is that of such a file."""
    return any(of_a_system(part) for part in cell.strip().replace("\\", "/").split("/"))


def located(table: Path, cells: Sequence[str], at: Callable[[int], str]) -> tuple[tuple[Path, ...], list[str]]:
    r"""The files of a column of paths, and notes on what was read in another way than written.

    Paths are relative to the table's folder. Where there is no such file, ``\`` is read as ``/``, and then capital letters and
    the form of accents do not count, as on the systems of others.
    """
    files: list[Path] = []
    lost: list[str] = []
    turned, spelled = list[int](), list[int]()
    entries = lru_cache(maxsize=None)(_entries)
    for k, cell in enumerate(map(str.strip, cells)):
        path: Path | None = table.parent / cell
        if not _is_file(table.parent / cell):
            path = table.parent / cell.replace("\\", "/")
            if DRIVE.match(cell) or not cell:
                path = None
            elif _is_file(path):
                turned.append(k)
            elif (path := _spelled(path, entries)) is not None:
                spelled.append(k)
        if path is None:
            lost.append(f"{at(k)} ({cell or 'empty'})")
        files.append(path or table)
    if lost:
        first = next((cell.strip() for cell in cells if DRIVE.match(cell.strip())), None)
        raise DataError(
            f"{table}: there is no image for {len(lost):,} of {len(cells):,} rows: {some(lost)}. "
            f"Paths are relative to the folder of {table.name}.{'' if first is None else _of_another_machine(table, first)}"
        )
    notes = []
    if turned or any("\\" in cells[k] for k in spelled):
        notes.append(f"{table.name}: \\ in paths is read as /.")
    if spelled:
        k, more = spelled[0], f" and in {len(spelled) - 1:,} more" if len(spelled) > 1 else ""
        notes.append(
            f"{table.name}: {cells[k].strip()} is the file {files[k].name}, although capital letters or "
            f"accents differ{more}."
        )
    return tuple(files), notes


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the cell is too long to be a name
        return False


def _entries(folder: Path) -> dict[str, list[str]]:
    """What a folder holds, by names without what spellings differ in."""
    spellings: dict[str, list[str]] = {}
    if folder.is_dir():
        for path in folder.iterdir():
            spellings.setdefault(_plain(path.name), []).append(path.name)
    return spellings


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _spelled(path: Path, entries: Callable[[Path], dict[str, list[str]]]) -> Path | None:
    """The one file whose path differs in spelling only."""
    place = Path(path.anchor)
    for part in path.parts[bool(path.anchor) :]:
        try:
            names = [part] if part == ".." or (place / part).exists() else entries(place).get(_plain(part), [])
        except OSError:  # as above, or nobody may look there
            names = []
        if len(names) != 1:
            return None
        place /= names[0]
    return place if _is_file(place) else None


def _of_another_machine(table: Path, cell: str) -> str:
    r"""What to do with paths such as ``C:\study\a.png``."""
    parts = cell.replace("\\", "/").split("/")
    for k in range(1, len(parts)):
        if (table.parent / "/".join(parts[k:])).is_file():
            return f" Remove {cell[: -len('/'.join(parts[k:]))]} at the beginning of each path: the rest is here."
    return f" {cell} is a path of another machine: put the images into the table's folder, and give their paths relative to it."
