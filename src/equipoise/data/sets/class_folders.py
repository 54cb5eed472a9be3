"""Images in one folder per class: the synthetic digits of Roy et al. (2018), and Office-Caltech10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import Files, entries, located, plain
from equipoise.data.sets.idx import DIGITS
from equipoise.data.sets.image_lists import mapped, weight

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's ImageFolder
OFFICE = (
    "back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
OTHER_NAMES = {"laptop_computer": ("laptop",), "caltech": ("caltech10",)}  # of classes and domains, in other copies
OFFICE_FOLDERS = ("office_caltech_10", "office_caltech", "OfficeCaltechDomainAdaptation/images")
SYN = {"train": ("train", "imgs_train"), "test": ("val", "imgs_valid")}


def syn(root: Path, split: str) -> Contents:
    """SYN of FedHEAL: images uint8 [n, 3, 32, 32]; ``split`` is train or test, whose folder is called val."""
    return _read("syn", located("syn", root, syn_needs(split)[0]).parent, DIGITS, 32)


def syn_needs(split: str) -> Files:
    """The folder of the first class of a split."""
    ours, theirs = SYN[split]
    return ((f"syn/{ours}/0", f"synthetic_digits/{theirs}/0", f"syn/{theirs}/0"),)


def office(root: Path, split: str, side: int = 192) -> Contents:
    """Office-Caltech10: all images of one domain, uint8 [n, 3, side, side], sorted by class and file name.

    ``split`` is amazon, caltech, dslr or webcam.
    """
    return _read("office-caltech10", located("office-caltech10", root, office_needs(split)[0]), OFFICE, side)


def office_needs(split: str) -> Files:
    """The folder of a domain."""
    return (tuple(f"{folder}/{name}" for folder in OFFICE_FOLDERS for name in _names(split)),)


def _names(name: str) -> tuple[str, ...]:
    """What a domain or a class is called, here and in other copies."""
    return name, *OTHER_NAMES.get(name, ())


def _read(name: str, folder: Path, classes: Sequence[str], side: int) -> Contents:
    """Images of a folder with one folder per class, whose names are compared without case and underscores.

    Raises
    ------
    DataError : a class that is missing, there twice, empty or unknown, or an image that cannot be decoded.
    """
    class_of = {plain(name): label for label in classes for name in _names(label)}
    found: dict[str, list[Path]] = {label: [] for label in classes}
    strangers = []
    for entry in entries(folder):
        if entry.is_dir():
            found[class_of[plain(entry.name)]].append(entry) if plain(entry.name) in class_of else strangers.append(
                entry.name
            )
    missing = [label for label, folders in found.items() if not folders]
    twice = [" and ".join(entry.name for entry in folders) for folders in found.values() if len(folders) > 1]
    if missing or strangers or twice:
        what = {"missing": missing, "unknown": strangers, "one class in two folders": twice}
        wrong = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in what.items() if names)
        raise DataError(f"{folder}: expected one folder per class, {', '.join(classes)}; {wrong}.")
    images = [_images(folders[0]) for folders in found.values()]
    files = [path for group in images for path in group]
    y = [k for k, group in enumerate(images) for _ in group]
    data = mapped(files, y, side, f"{name} {folder.name}")
    return Contents(data, tuple(classes), tuple(str(file.relative_to(folder)) for file in files), about=weight(files))


def _images(folder: Path) -> list[Path]:
    """Image files of a folder in the order of their names."""
    files = [entry for entry in entries(folder) if entry.suffix.lower() in ENDINGS]
    if not files:
        raise DataError(f"{folder}: expected images ({', '.join(ENDINGS[:3])}, ...), found none.")
    return files
