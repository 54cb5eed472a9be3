"""Files in the idx format: MNIST and Fashion-MNIST."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError
from equipoise.data.declared import check_bytes
from equipoise.data.locations import Files, facts, find

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FOLDERS = {"mnist": ("MNIST/raw", "MNIST"), "fashion-mnist": ("FashionMNIST/raw", "FashionMNIST")}


def _files(stem: str, folders: Sequence[str]) -> Files:
    """Images and labels of a split, packed or not."""
    ends = [f"{at}/{stem}-{{}}-ubyte{end}" for at in folders for end in ("", ".gz")]
    return tuple(tuple(end.format(what) for end in ends) for what in ("images-idx3", "labels-idx1"))


FILES = {name: {"train": _files("train", at), "test": _files("t10k", at)} for name, at in FOLDERS.items()}


def array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes: magic ``00 00 08 d``, d big-endian sizes of four bytes each, then the numbers.

    Parameters
    ----------
    path : the file; if its name ends in ``.gz`` it is unpacked on the way.
    dimensions : d, how many the array must have.
    """
    magic, start = bytes([0, 0, 8, dimensions]), 4 + 4 * dimensions
    content = bytearray()  # grows in place, and can be written to, which torch wants
    shape: tuple[int, ...] = ()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content += file.read(start)
            if content[:4] == magic and len(content) == start:
                shape = struct.unpack(f">{dimensions}I", content[4:])
                check_bytes(path, math.prod(shape))
            while len(content) <= start + math.prod(shape) and (chunk := file.read(1 << 18)):  # no more than declared
                content += chunk
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}). It is damaged or cut short: get it again.") from None
    if content[:4] != magic or len(content) < start:
        raise DataError(
            f"{path}: expected an idx file of bytes in {dimensions} dimension{'s' * (dimensions > 1)}, which begins with "
            f"{magic.hex(' ')}; found {content[:4].hex(' ') or 'an empty file'}. Get it again."
        )
    if (length := len(content) - start) != math.prod(shape):
        raise DataError(
            f"{path}: its header states {' x '.join(map(str, shape))} = {math.prod(shape)} bytes, and there are "
            f"{length}{' or more' * (length > math.prod(shape))}. It is cut short or damaged: get it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def astray(name: str, root: Path) -> str:
    """What to do about files in a folder that does not say whose they are."""
    ours = [places for files in FILES[name].values() for places in files]
    bare = find(root, [Path(place).name for places in ours for place in places])
    if bare is None or any(find(root, places) for places in ours):
        return ""
    return (
        f"{bare}: MNIST and Fashion-MNIST have the same file names, so the folder must tell which it is: "
        f"for {name}, put its four files into {root / FOLDERS[name][0]}."
    )


def read(paths: Sequence[Path], classes: tuple[str, ...]) -> Contents:
    """Images uint8 [n, 1, 28, 28] and their labels, of one file each."""
    x, y = array(paths[0], 3), array(paths[1], 1)
    if len(x) != len(y) or len(y) == 0:
        raise DataError(f"{paths[1]}: expected a label for each of the {len(x)} images beside it; found {len(y)}.")
    if y.max() >= len(classes):
        raise DataError(f"{paths[1]}: expected labels 0..{len(classes) - 1}; found {y.max()}. Get it again.")
    data = torch.from_numpy(x)[:, None], torch.from_numpy(y).long()
    return Contents(data, classes, about=facts(paths))
