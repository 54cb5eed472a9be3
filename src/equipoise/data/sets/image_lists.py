"""Images as data sets ship them: listed in files, with draws of a test part where none is shipped, or in one folder per class."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError, explain_damage, lines
from equipoise.data.decoding import decoded
from equipoise.data.locations import entries, plain
from equipoise.data.memory_mapped import Mapped
from equipoise.data.sets.digits import DIGITS
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import some

SHOWN = 3  # names that an error lists


def cells(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, as line number and cells without spaces around them."""
    expected = f"{path}: expected a CSV file of text"
    with explain_damage(expected, "Is it damaged?"), path.open(encoding="utf-8-sig", newline="") as file:
        rows = enumerate(csv.reader(lines(file, path)), 1)
        return [(number, [*map(str.strip, row)]) for number, row in rows if any(map(str.strip, row))]


def table(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV file with a header, as text by column."""
    lines = cells(path)
    header = lines[0][1] if lines else []
    if missing := [column for column in columns if column not in header]:
        first = ",".join(header[:10]) or "an empty file"
        raise DataError(f"{path}: expected a first line with {','.join(columns)}; {missing[0]} is missing in {first}.")
    for number, row in lines[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: expected {len(header)} cells, found {len(row)}. Is it complete?")
        yield dict(zip(header, row, strict=True))


def ids(path: Path, n_classes: int) -> dict[str, int]:
    """Classes by id, in the order of a list with the header ``id,class``."""
    if not path.is_file():
        raise DataError(f"{path}: expected a list of images with the header id,class; there is no such file.")
    classes: dict[str, int] = {}
    for row in table(path, ("id", "class")):
        if row["id"] in classes:
            raise DataError(f"{path}: {row['id']} is listed twice; each image must be listed once.")
        classes[row["id"]] = label(row["class"], n_classes, f"{path}: {row['id']}")
    if not classes:
        raise DataError(f"{path}: expected images under the header id,class; found none.")
    return classes


def label(text: str, n_classes: int, where: str) -> int:
    """A class from text such as ``1`` or ``1.0``."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if value not in range(n_classes):
        raise DataError(f"{where}: expected a class in 0..{n_classes - 1}, found '{text}'.")
    return int(value)


def present(files: Sequence[Path], what: str) -> None:
    """Require files."""
    # One look at a folder, not one at each of its files: there may be hundreds of thousands on a slow disk.
    inside = {path for folder in {path.parent for path in files} if folder.is_dir() for path in folder.iterdir()}
    if missing := [path for path in files if path not in inside]:
        names = some([path.name for path in missing], SHOWN)
        raise DataError(
            f"{what}: {len(missing)} of {len(files)} listed images are missing in {missing[0].parent}: {names}. Is the data set unpacked completely?"
        )


def contents(
    what: str,
    files: Sequence[Path],
    chosen: Mapping[str, int],
    classes: Sequence[str],
    side: int,
    about: Mapping[str, Any],
    parts: Mapping[str, tuple[int, ...]] | None = None,
    **how: Any,
) -> Contents:
    """The images of files that must all be there, decoded once, with their classes and what a record of a run says about them.

    Parameters
    ----------
    what, side, how : see :func:`equipoise.data.decoding.decoded`.
    files, chosen : one file for each of the ids, and the classes by id.
    classes, parts : see :class:`equipoise.data.contents.Contents`.
    about : other facts for the record.
    """
    present(files, what)
    y = torch.tensor([*chosen.values()], dtype=torch.int64)
    data = Mapped(decoded(files, side, what=what, **how), np.arange(len(files)), y)
    about = {**about, "images": len(files), "bytes": sum(path.stat().st_size for path in files)}
    return Contents(data, tuple(classes), tuple(chosen), parts or {}, about)


def sample(classes: Mapping[str, int], n: int, rng: np.random.Generator) -> dict[str, int]:
    """Draw ``n`` ids so that every class keeps its share, to one id; all of them if there are no more.

    Parameters
    ----------
    classes : classes by id; its order does not matter.
    n : >= 1, how many.
    rng : decides which.

    Returns
    -------
    Class by class, the ids of a class in random order.
    """
    groups = _shuffled(classes, rng)
    total = len(classes)
    shares = {k: min(n, total) * len(group) / total for k, group in groups.items()}
    counts = {k: int(share) for k, share in shares.items()}
    for k in sorted(shares, key=lambda k: counts[k] - shares[k])[: min(n, total) - sum(counts.values())]:
        counts[k] += 1  # largest remainders
    return {name: k for k, group in groups.items() for name in group[: counts[k]]}


def divided(
    classes: Mapping[str, int], test: float, rng: np.random.Generator, group: Callable[[str], str] | None = None
) -> dict[str, dict[str, int]]:
    """Divide ids into "train" and "test".

    Parameters
    ----------
    classes : classes by id; its order does not matter.
    test : in (0, 1), share of the test part: of every class, rounded up (as the lists of FedISM+ have it), or of all ids
        where they are drawn in groups.
    rng : decides which.
    group : the group of an id, such as a patient; all ids of a group go to the same part. ``None`` divides class by class.

    Returns
    -------
    Classes by id, of each part: class by class, the ids of a class in random order.
    """
    shuffled = _shuffled(classes, rng)
    if group is None:
        tested = {name for names in shuffled.values() for name in names[: _ceil(test, len(names))]}
    else:
        members = grouped((group(name), name) for name in sorted(classes))
        keys = sorted(members)
        tested = set()
        for k in rng.permutation(len(keys)):
            if len(tested) >= _ceil(test, len(classes)):
                break
            tested.update(members[keys[k]])
    ordered = {name: k for k, names in shuffled.items() for name in names}
    return {
        "train": {name: k for name, k in ordered.items() if name not in tested},
        "test": {name: k for name, k in ordered.items() if name in tested},
    }


def _ceil(share: float, n: int) -> int:
    return int(np.ceil(round(share * n, 9)))  # 0.2 * 5 is not to become 2


def _shuffled(classes: Mapping[str, int], rng: np.random.Generator) -> dict[int, list[str]]:
    """Ids of every class in random order, whatever the order they were given in."""
    names: NDArray[np.str_] = np.array(sorted(classes))
    y = np.array([classes[name] for name in names.tolist()])
    return {int(k): rng.permutation(names[y == k]).tolist() for k in np.unique(y)}


# images in one folder per class: the synthetic digits of Roy et al. (2018), and Office-Caltech10
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's ImageFolder
OFFICE = (
    "back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
ALSO = {"laptop": "laptopcomputer"}  # what other copies call a class
OFFICE_FOLDERS = ("office_caltech_10", "office_caltech", "OfficeCaltechDomainAdaptation/images")
DOMAINS = {"amazon": ("amazon",), "caltech": ("caltech", "caltech10"), "dslr": ("dslr",), "webcam": ("webcam",)}
OFFICE_FILES = {
    domain: (tuple(f"{at}/{name}" for at in OFFICE_FOLDERS for name in names),) for domain, names in DOMAINS.items()
}
SYN = {  # the folder of the first class
    split: ((f"syn/{ours}/0", f"synthetic_digits/{theirs}/0", f"syn/{theirs}/0"),)
    for split, ours, theirs in (("train", "train", "imgs_train"), ("test", "val", "imgs_valid"))
}


def syn(paths: Sequence[Path]) -> Contents:
    """SYN of FedHEAL: images uint8 [n, 3, 32, 32] of the folder of the first class and those beside it."""
    return _read("syn", paths[0].parent, DIGITS, 32)


def office(paths: Sequence[Path], side: int = 192) -> Contents:
    """Office-Caltech10: all images of the folder of one domain, uint8 [n, 3, side, side], sorted by class and file name."""
    return _read("office-caltech10", paths[0], OFFICE, side)


def _read(name: str, folder: Path, classes: Sequence[str], side: int) -> Contents:
    """Images of a folder with one folder per class, whose names are compared without case and underscores."""
    folders = filter(Path.is_dir, entries(folder))
    by_class = grouped((ALSO.get(plain(entry.name), plain(entry.name)), entry) for entry in folders)
    keys = {plain(label): label for label in classes}
    twice = [" and ".join(path.name for path in paths) for paths in by_class.values() if len(paths) > 1]
    wrong = {
        "missing": [label for key, label in keys.items() if key not in by_class],
        "unknown": [paths[0].name for key, paths in by_class.items() if key not in keys],
        "one class in two folders": twice,
    }
    if any(wrong.values()):
        problems = "; ".join(f"{fault}: {', '.join(names)}" for fault, names in wrong.items() if names)
        raise DataError(f"{folder}: expected one folder per class, {', '.join(classes)}; {problems}.")
    class_of = {path: k for k, key in enumerate(keys) for path in _images(by_class[key][0])}
    chosen = {str(path.relative_to(folder)): k for path, k in class_of.items()}
    return contents(f"{name} {folder.name}", [*class_of], chosen, classes, side, {})


def _images(folder: Path) -> list[Path]:
    """Image files of a folder in the order of their names."""
    files = [entry for entry in entries(folder) if entry.suffix.lower() in ENDINGS]
    if not files:
        raise DataError(f"{folder}: expected images ({', '.join(ENDINGS[:3])}, ...), found none.")
    return files
