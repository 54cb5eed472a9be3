"""Images in one folder per class: the synthetic digits of Roy et al. (2018), and Office-Caltech10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import entries, located, plain
from equipoise.data.sets.idx import DIGITS
from equipoise.data.sets.image_lists import mapped, weight

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's ImageFolder
OFFICE = (
    "back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
SYN = {"train": ("train", "imgs_train"), "test": ("val", "imgs_valid")}


def syn(root: Path, split: str) -> Contents:
    """SYN of FedHEAL: images uint8 [n, 3, 32, 32]; ``split`` is train or test, whose folder is called val."""
    ours, theirs = SYN[split]
    zero = located("syn", root, (f"syn/{ours}/0", f"synthetic_digits/{theirs}/0", f"syn/{theirs}/0"))
    return _read("syn", zero.parent, DIGITS, 32)


def office(root: Path, split: str, side: int = 192) -> Contents:
    """Office-Caltech10: all images of one domain, uint8 [n, 3, side, side], sorted by class and file name.

    ``split`` is amazon, caltech, dslr or webcam.
    """
    return _read("office-caltech10", located("office-caltech10", root, (f"office_caltech_10/{split}",)), OFFICE, side)


def _read(name: str, folder: Path, classes: Sequence[str], side: int) -> Contents:
    """Images of a folder with one folder per class, whose names are compared without case and underscores.

    Raises
    ------
    DataError : a class that is missing, empty or unknown, or an image that cannot be decoded.
    """
    found = {plain(entry.name): entry for entry in entries(folder) if entry.is_dir()}
    missing = [label for label in classes if plain(label) not in found]
    strangers = [entry.name for key, entry in found.items() if key not in {plain(label) for label in classes}]
    if missing or strangers:
        wrong = "; ".join(
            f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("unknown", strangers)) if names
        )
        raise DataError(f"{folder}: expected one folder per class, {', '.join(classes)}; {wrong}.")
    images = [_images(found[plain(label)]) for label in classes]
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
