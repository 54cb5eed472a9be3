"""CIFAR-10 in its Python version, read without running what a pickle may ask for."""

import codecs
import pickle
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError, explain_damage
from equipoise.data.locations import facts, find
from equipoise.data.sets.download import Address

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER, ARCHIVE, META = "cifar-10-batches-py", "cifar-10-python.tar.gz", "batches.meta"
NAMES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
PLACES = (FOLDER, f"CIFAR10/{FOLDER}", "CIFAR-10")
FILES = {split: tuple(tuple(f"{at}/{name}" for at in PLACES) for name in names) for split, names in NAMES.items()}
MD5 = (  # of the files of NAMES, as torchvision gives them
    "c99cafc152244af753f735de768cd75f", "d4bba439e000b95fd0a9bffe97cbabec", "54ebc095f3ab1f0389bbae665268c751",
    "634d18415352ddfa80567beed471001a", "482c414d41f54cd18b22e5b47cb7c3cb", "40351d587109b95175f43aff81a1287e",
)  # fmt: skip
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
INSIDE = tuple(f"{FOLDER}/{name}" for name in (*NAMES["train"], *NAMES["test"], META))
ADDRESS = Address(URL, ARCHIVE, 170498071, "c58f30108f718f92721af3b95e74349a", unpack=INSIDE, inside=MD5)
GLOBALS: dict[tuple[str, str], Any] = {  # all that an array of numbers needs; a name is looked up here and nowhere else
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0] for core in ("core", "_core")},
}


class Arrays(pickle.Unpickler):
    """Reads dictionaries of arrays, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle calls by name: one of the few harmless things that arrays are made of."""
        if (module, name) not in GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data needs")
        return GLOBALS[module, name]


def read(paths: Sequence[Path]) -> Contents:
    """CIFAR-10: images uint8 [n, 3, 32, 32], of some files.

    The files are pickles of Python 2: a dictionary with ``data`` uint8 [n, 3072], all red, then all green, then all blue
    pixels of an image, and ``labels``, a list.

    Raises
    ------
    DataError : a damaged or cut file, or one that is more than data.
    """
    batches = [_batch(path) for path in paths]
    x, y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*batches, strict=True))
    return Contents((x, y), CLASSES, about=facts(paths))


def astray(root: Path) -> str:
    """What to do about the archive."""
    if (archive := find(root, (ARCHIVE, f"CIFAR10/{ARCHIVE}"))) is None:
        return ""
    return f"{archive}: must be unpacked first: {shlex.join(['tar', '-xzf', str(archive), '-C', str(archive.parent)])}"


def _batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [n, 3, 32, 32] and labels [n] of one file."""
    advice = f"It is damaged or cut short: unpack {ARCHIVE} again."
    with explain_damage(f"{path}: expected a pickled dictionary with data and labels", advice), path.open("rb") as file:
        try:
            content = Arrays(file, encoding="bytes").load()
        except pickle.UnpicklingError as error:
            raise DataError(f"{path}: refused, because {error}. Use the files of {ARCHIVE}.") from None
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        images, labels = batch["data"], np.array(batch["labels"])
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        raise DataError(f"{path}: expected data to be uint8 n x 3072. Unpack {ARCHIVE} again.")
    complete = labels.dtype.kind == "i" and len(labels) > 0 and labels.shape == images.shape[:1]
    if not complete or not {*labels.tolist()} <= {*range(len(CLASSES))}:
        raise DataError(
            f"{path}: expected a label 0..9 for each of the {len(images)} images; found {labels.size}. Unpack {ARCHIVE} again."
        )
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)
