"""Image files: a folder per client with a folder per class, the paths that a table names, and files of operating systems."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from equipoise.data.contents import DataError
from equipoise.data.pictures import from_files, is_dicom
from equipoise.data.tables.columns import SPLITS, Columns, UserData, file_totals, together
from equipoise.data.tables.options import listed
from equipoise.data.tables.roles import read_column
from equipoise.data.tables.words import Origin
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import some

SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".npy", ".dcm", ".dicom",
)  # fmt: skip
FORM = "Expected CLIENT/CLASS/image.jpg everywhere; where there are parts train, test or val, all of PART/CLIENT/CLASS/image.jpg or all of CLIENT/PART/CLASS/image.jpg."
SYSTEM = ("thumbs.db", "desktop.ini", ".ds_store", "__macosx", "ehthumbs.db", "$recycle.bin")
DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")  # begins a path that holds on one machine only


@dataclass(frozen=True)
class _Tree:
    """Image files below a folder, with the folders they are in; other files; folders without an image; and what systems write."""

    images: list[tuple[tuple[str, ...], Path]] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    empty: list[tuple[str, ...]] = field(default_factory=list)
    systems: list[Path] = field(default_factory=list)


def read(top: Path, columns: Columns) -> UserData:
    """Find the images below a folder, with the client, part and class that their folders name."""
    tree = _tree(top)
    if not tree.images:
        suffixes = Counter(path.suffix.lower() or "no suffix" for path in tree.others)
        kinds = ", ".join(f"{count} of {kind}" for kind, count in suffixes.most_common(3)) or "nothing"
        raise DataError(f"{top} has no images ({', '.join(SUFFIXES)}); found {kinds}. {FORM} Or one .csv or .npz file.")
    clients, splits, labels = zip(*_meanings(top, tree), strict=True)
    files = tuple(path for _, path in tree.images)
    names = tuple(path.relative_to(top).as_posix() for path in files)
    called = {"label": labels, "client": [client or "common" for client in clients]}
    origin = Origin(str(top), names.__getitem__)
    roles = {role: read_column(words, role, origin, columns) for role, words in called.items()}
    if problems := [problem for role in roles.values() for problem in role.problems]:
        raise DataError(together(top, problems))
    by_client = any(clients)
    return UserData(
        source=str(top),
        layout="a folder per client, with a folder per class" if by_client else "a folder per class",
        label=roles["label"].words if columns.regression else labels,
        inputs=from_files(files, str(top), names),
        client=clients if by_client else None,
        split=None if splits[0] is None else splits,
        names=names,
        about=file_totals(files),
        notes=tuple(_notes(top, tree)),
    )


def _notes(top: Path, tree: _Tree) -> Iterator[str]:
    """What is no image, in sentences."""
    for paths, single, several in (
        (tree.others, " is no image and ignored", "s are no image and ignored"),
        (tree.systems, " of operating systems is left out", "s of operating systems are left out"),
    ):
        if paths:
            named = listed(path.relative_to(top).as_posix() for path in paths)
            yield f"{len(paths)} file{several if len(paths) > 1 else single}: {named}."
    if tree.empty:
        yield f"No image in {listed('/'.join(parts) for parts in tree.empty)}: ignored."


def _tree(top: Path) -> _Tree:
    tree = _Tree()

    def walk(folder: Path, parts: tuple[str, ...], above: tuple[Path, ...]) -> None:
        here, before = folder.resolve(), len(tree.images) + len(tree.empty)
        if here in above:
            raise DataError(f"{folder} is a link to a folder that it is in. Remove the link.")
        for path in sorted(folder.iterdir()):
            if is_system_file(path.name):
                tree.systems.append(path)
            elif path.name.startswith("."):
                continue
            elif path.is_dir():
                walk(path, (*parts, path.name), (*above, here))
            elif not path.exists():
                raise DataError(f"{path} is a link to a file that does not exist. Correct the link, or remove it.")
            elif path.suffix.lower() in SUFFIXES or _without_suffix(path):
                tree.images.append((parts, path))
            else:
                tree.others.append(path)
        if len(tree.images) + len(tree.empty) == before and parts:  # only the lowest empty folders are named
            tree.empty.append(parts)

    walk(top, (), ())
    return tree


def _without_suffix(path: Path) -> bool:
    """Whether a file is an image whose name does not say so, as those of scanners."""
    if path.suffix.lstrip(".").isalpha() or not path.is_file():
        return False
    with suppress(OSError), path.open("rb") as file:  # nobody may read it
        return is_dicom(file)
    return False


def _meanings(top: Path, tree: _Tree) -> list[tuple[str, str | None, str]]:
    """Client ("": none), split (None: none) and class of every image."""
    outer = _outer(top, tree)
    meanings: list[tuple[str, str | None, str]] = []
    for parts, path in tree.images:
        split, rest = _split(parts, outer=outer)
        if len(rest) not in (1, 2) or (meanings and (split is None) != (meanings[0][1] is None)):
            raise _misfit(top, path)
        meanings.append((rest[0] if len(rest) == 2 else "", split, rest[-1]))
    if all(label.lower() in SPLITS for _, _, label in meanings):
        names = listed(sorted({label for _, _, label in meanings}))
        raise DataError(f"{top}: {names} hold images directly, and there are no folders of classes. {FORM}")
    trained = [bool(client) for client, split, _ in meanings if split in (None, "train")]
    if not trained:
        return meanings  # no training data: reading.py raises the error
    owned = any(trained)
    for (client, split, _), (_, path) in zip(meanings, tree.images, strict=True):
        if (bool(client) != owned and split in (None, "train")) or (client and not owned):
            raise _misfit(top, path)
    return meanings


def _outer(top: Path, tree: _Tree) -> bool:
    """Whether the outermost folders are the parts of the data."""
    first = list(dict.fromkeys(parts[0] for parts, _ in tree.images if len(parts) > 1))
    outer = [name for name in first if name.lower() in SPLITS]
    if outer and len(outer) < len(first):
        other = next(name for name in first if name not in outer)
        raise DataError(f"{top}: {outer[0]} is next to {other}. All folders there must be parts, or none. {FORM}")
    return bool(outer)


def _split(parts: tuple[str, ...], *, outer: bool) -> tuple[str | None, tuple[str, ...]]:
    """The part of the data that a folder names, the outermost one or the one above the class, and the others."""
    if outer and parts:
        return SPLITS.get(parts[0].lower()), parts[1:]
    if len(parts) == 3 and parts[1].lower() in SPLITS:
        return SPLITS[parts[1].lower()], (parts[0], parts[2])
    return None, parts


def _misfit(top: Path, path: Path) -> DataError:
    return DataError(f"{path} is not in folders of the same form as the other images of {top}. {FORM}")


def is_system_file(name: str) -> bool:
    """Whether an operating system writes files or folders of this name beside those of its user."""
    return name.lower() in SYSTEM or name.startswith("._")


def needless(cell: str) -> bool:
    """Whether a path of a table is that of such a file."""
    return any(is_system_file(part) for part in cell.strip().replace("\\", "/").split("/"))


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
        todo = f"Paths are relative to the folder of {table.name}.{'' if first is None else _relative_advice(table, first)}"
        raise DataError(f"{table}: there is no image for {len(lost):,} of {len(cells):,} rows: {some(lost)}. {todo}")
    notes = []
    if turned or any("\\" in cells[k] for k in spelled):
        notes.append(f"{table.name}: \\ in paths is read as /.")
    if spelled:
        k, more = spelled[0], f" and in {len(spelled) - 1:,} more" if len(spelled) > 1 else ""
        differ = f"although capital letters or accents differ{more}"
        notes.append(f"{table.name}: {cells[k].strip()} is the file {files[k].name}, {differ}.")
    return tuple(files), notes


def _is_file(path: Path) -> bool:
    with suppress(OSError):  # the cell is too long to be a name
        return path.is_file()
    return False


def _entries(folder: Path) -> dict[str, list[str]]:
    """What a folder holds, by names without what spellings differ in."""
    return grouped((_plain(path.name), path.name) for path in (folder.iterdir() if folder.is_dir() else ()))


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


def _relative_advice(table: Path, cell: str) -> str:
    r"""What to do with paths such as ``C:\study\a.png``."""
    parts = cell.replace("\\", "/").split("/")
    for k in range(1, len(parts)):
        if (table.parent / "/".join(parts[k:])).is_file():
            return f" Remove {cell[: -len('/'.join(parts[k:]))]} at the beginning of each path: the rest is here."
    return f" {cell} is a path of another machine: put the images into the table's folder, and give their paths relative to it."
