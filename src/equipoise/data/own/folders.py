"""A folder per client with a folder per class of images in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from equipoise.data.contents import DataError
from equipoise.data.decoding import decoded
from equipoise.data.own.columns import SPLITS, UserData, listed

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SYSTEM = ("thumbs.db", "desktop.ini", "__macosx")  # what systems leave in folders; and all that begins with a dot
FORM = (
    "Expected CLIENT/CLASS/image.jpg everywhere; where there are parts train, test or val, all of PART/CLIENT/CLASS/image.jpg "
    "or all of CLIENT/PART/CLASS/image.jpg."
)


@dataclass(frozen=True)
class _Tree:
    """Image files below a folder, with the folders they are in, and what else there is."""

    images: tuple[tuple[tuple[str, ...], Path], ...]
    others: tuple[Path, ...]
    empty: tuple[tuple[str, ...], ...]


def read(top: Path) -> UserData:
    """Find the images below a folder, and what their folders say.

    Raises
    ------
    DataError : no image there, or folders that are not of the form that is expected.
    """
    tree = _look(top)
    if not tree.images:
        kinds = Counter(path.suffix.lower() or "no suffix" for path in tree.others)
        found = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common(3)) or "nothing"
        raise DataError(f"{top} has no images ({', '.join(SUFFIXES)}); found {found}. {FORM} Or one .csv or .npz file.")
    clients, splits, labels = zip(*_meant(top, tree), strict=True)
    files = tuple(path for _, path in tree.images)
    names = tuple(path.relative_to(top).as_posix() for path in files)
    notes = []
    if tree.others:
        notes.append(
            f"{len(tree.others)} file{'s are' if len(tree.others) > 1 else ' is'} no image and passed over: "
            f"{listed(path.relative_to(top).as_posix() for path in tree.others)}."
        )
    if tree.empty:
        notes.append(f"No image in {listed('/'.join(parts) for parts in tree.empty)}: passed over.")
    owned = any(clients)
    return UserData(
        source=str(top),
        layout="a folder per client, with a folder per class" if owned else "a folder per class",
        label=labels,
        inputs=partial(decoded, files, what="own data"),
        client=clients if owned else None,
        split=None if splits[0] is None else splits,
        names=names,
        about={"files": len(files), "bytes": sum(path.stat().st_size for path in files)},
        notes=tuple(notes),
    )


def _look(top: Path) -> _Tree:
    images: list[tuple[tuple[str, ...], Path]] = []
    others: list[Path] = []
    empty: list[tuple[str, ...]] = []

    def walk(folder: Path, parts: tuple[str, ...], above: tuple[Path, ...]) -> int:
        here = folder.resolve()
        if here in above:
            raise DataError(f"{folder} is a link to a folder that it is in. Remove the link.")
        found = 0
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name.lower() in SYSTEM:
                continue
            if path.is_dir():
                found += walk(path, (*parts, path.name), (*above, here))
            elif path.suffix.lower() not in SUFFIXES:
                others.append(path)
            elif path.exists():
                images.append((parts, path))
                found += 1
            else:
                raise DataError(f"{path} is a link to a file that is not there. Mend the link, or remove it.")
        if not found and parts:
            empty.append(parts)
        return found

    walk(top, (), ())
    within = {parts[:k] for parts in empty for k in range(1, len(parts))}  # a folder is named, not those above it
    return _Tree(tuple(images), tuple(others), tuple(e for e in empty if e not in within))


def _meant(top: Path, tree: _Tree) -> list[tuple[str, str | None, str]]:
    """Client ("": nobody's), split (None: the folders do not say) and class of every image.

    Raises
    ------
    DataError : folders that are not of the form that is expected.
    """
    first = list(dict.fromkeys(parts[0] for parts, _ in tree.images if len(parts) > 1))
    outer = [name for name in first if name.lower() in SPLITS]
    if outer and len(outer) < len(first):
        other = next(name for name in first if name not in outer)
        raise DataError(
            f"{top}: found {outer[0]} beside {other}. Either all folders there are parts of the data, or none. {FORM}"
        )
    found: list[tuple[str, str | None, str]] = []
    for parts, path in tree.images:
        split, rest = None, parts
        if outer and parts:
            split, rest = SPLITS.get(parts[0].lower()), parts[1:]
        elif len(parts) == 3 and parts[1].lower() in SPLITS:
            split, rest = SPLITS[parts[1].lower()], (parts[0], parts[2])
        if len(rest) not in (1, 2) or (found and (split is None) != (found[0][1] is None)):
            raise _misfit(top, path)
        found.append((rest[0] if len(rest) == 2 else "", split, rest[-1]))
    if all(label.lower() in SPLITS for _, _, label in found):
        names = listed(sorted({label for _, _, label in found}))
        raise DataError(f"{top}: {names} hold images directly, and there are no folders of classes. {FORM}")
    owned = any(client for client, split, _ in found if split in (None, "train"))
    if all(split not in (None, "train") for _, split, _ in found):
        return found  # of no use, and that is said elsewhere
    for (client, split, _), (_, path) in zip(found, tree.images, strict=True):
        if (bool(client) != owned and split in (None, "train")) or (client and not owned):
            raise _misfit(top, path)
    return found


def _misfit(top: Path, path: Path) -> DataError:
    return DataError(f"{path} does not lie where the other images of {top} do, or where they should. {FORM}")
