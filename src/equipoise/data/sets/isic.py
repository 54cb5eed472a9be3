"""ISIC 2019: photographs of skin lesions, eight classes, six centres."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import facts, find, located
from equipoise.data.sets.image_lists import contents, divided, ids, table

NAME = "isic2019"
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
UNKNOWN = "UNK"  # a column that no training image is in
SMALLER = "_downsampled"  # ends the names of some images
FOLDERS = ("ISIC2019", "ISIC_2019")
TRUTH, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
HAM = ("HAM10000_metadata", "HAM10000_metadata.csv")
READY = "ISIC2019_20"
SIDE = 224
TEST = 0.2


def read(root: Path, split: str, *, lists: str | Path | None = None, seed: int = 0, side: int = SIDE) -> Contents:
    """Read the challenge's training files, or the ready-made ``ISIC2019_20/{train,test}/clean/<id>.jpg`` of FedISM's code.

    ``parts`` are the centres of the images, after FLamby: the first letters of ``lesion_id`` in the metadata, and for
    HAM10000 its four sources if its own table ``HAM10000_metadata`` lies beside them (the challenge's metadata do not name
    them). Images without a ``lesion_id`` are in no part.

    Parameters
    ----------
    root : the folder with the data sets, or that of this one.
    split : train or test.
    lists : folder with ``train.csv`` and ``test.csv`` of lines ``id,class``, such as those of FedISM's code; else 8 to 2 of
        every class are drawn.
    seed : >= 0, decides the draw.
    side : the images become ``side`` by ``side``, whatever their shape.
    """
    ready = find(root, (f"{READY}/train/clean",))
    if ready is not None:
        truth = _find(root, TRUTH)
        folder = ready.parent.parent / split / "clean"
        lists = ready.parent.parent if lists is None else lists
    else:
        truth = located(NAME, root, (*(f"{name}/{TRUTH}" for name in FOLDERS), TRUTH, f"{READY}/train/clean"))
        folder = truth.parent / "ISIC_2019_Training_Input"
    truths = {} if truth is None else labelled(truth)
    if lists is None:
        classes = divided(truths, TEST, np.random.default_rng([seed, 3]))[split]
        about: dict[str, Any] = {"test": TEST, "seed": seed, **facts([truth] if truth else [])}
    else:
        path = Path(lists).expanduser() / f"{split}.csv"
        classes = ids(path, len(CLASSES))
        _agree(path, classes, truths)
        about = facts([path])
    if not classes:
        raise DataError(f"{truth}: {len(truths)} images are too few for a {split} part.")
    files = [folder / f"{name}.jpg" for name in classes]
    metadata, ham = _find(root, METADATA), _find(root, HAM[0]) or _find(root, HAM[1])
    parts = {} if metadata is None else centres(list(classes), metadata, ham)
    return contents(f"{NAME} {split}", files, classes, CLASSES, side, about, parts)


def _find(root: Path, name: str) -> Path | None:
    return find(root, (*(f"{folder}/{name}" for folder in FOLDERS), f"{READY}/{name}", name))


def labelled(truth: Path) -> dict[str, int]:
    """Classes by image, of a table with one column of 0.0 and 1.0 for each class."""
    classes = {}
    for row in table(truth, ("image", *CLASSES)):
        marks = [column for column in (*CLASSES, UNKNOWN) if _number(row.get(column, "0"), truth, row["image"]) == 1]
        if len(marks) != 1 or marks[0] == UNKNOWN:
            raise DataError(
                f"{truth}: {row['image']} must be in exactly one of {', '.join(CLASSES)}; found {', '.join(marks) or 'none'}."
            )
        classes[row["image"]] = CLASSES.index(marks[0])
    if not classes:
        raise DataError(f"{truth}: expected images; found none.")
    return classes


def _number(text: str, path: Path, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{path}: {name}: expected 0.0 or 1.0, found '{text}'.") from None


def _agree(path: Path, classes: Mapping[str, int], truth: Mapping[str, int]) -> None:
    """Require of a list what the challenge's table says of its images."""
    for name, k in classes.items():
        if truth.get(name, k) != k:
            numbers = ", ".join(f"{i} {c}" for i, c in enumerate(CLASSES))
            raise DataError(
                f"{path}: {name} has class {k} ({CLASSES[k]}), and {TRUTH} says {CLASSES[truth[name]]}. Classes are {numbers}."
            )


def centres(names: Sequence[str], metadata: Path, ham: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Rows of the images of each centre, by name of the centre.

    Parameters
    ----------
    names : the images.
    metadata : the challenge's table with ``image`` and ``lesion_id``, whose first four letters name the centre.
    ham : the table of HAM10000 with ``image_id`` and ``dataset``, one of four sources; ``None`` leaves them one centre.

    Raises
    ------
    DataError : a table is damaged.
    """
    lesion = {row["image"].removesuffix(SMALLER): row["lesion_id"] for row in table(metadata, ("image", "lesion_id"))}
    theirs = () if ham is None else table(ham, ("image_id", "dataset"))
    source = {row["image_id"].removesuffix(SMALLER): row["dataset"] for row in theirs}
    parts: dict[str, list[int]] = {}
    for k, name in enumerate(names):
        plain = name.removesuffix(SMALLER)
        if centre := lesion.get(plain, "")[:4].rstrip("_"):
            parts.setdefault(f"{centre}-{source[plain]}" if plain in source else centre, []).append(k)
    return {centre: tuple(parts[centre]) for centre in sorted(parts)}
