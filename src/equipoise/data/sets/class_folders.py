"""Images in one folder per class: the synthetic digits of Roy et al. (2018), and Office-Caltech10."""

from collections.abc import Sequence
from pathlib import Path

from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import entries, plain
from equipoise.data.sets.digits import DIGITS
from equipoise.data.sets.image_lists import contents
from equipoise.system.grouping import grouped

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
    wrong = {
        "missing": [label for key, label in keys.items() if key not in by_class],
        "unknown": [paths[0].name for key, paths in by_class.items() if key not in keys],
        "one class in two folders": [
            " and ".join(path.name for path in paths) for paths in by_class.values() if len(paths) > 1
        ],
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
