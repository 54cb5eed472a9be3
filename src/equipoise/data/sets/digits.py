"""Digits and clothes in small grey or coloured images: files in the idx format, of MATLAB, and of libsvm."""

import bz2
import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError, check_bytes, explain_damage, lines, read_matlab
from equipoise.data.locations import Files, facts, find
from equipoise.system.text import plural

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FOLDERS = {"mnist": ("MNIST/raw", "MNIST"), "fashion-mnist": ("FashionMNIST/raw", "FashionMNIST")}


def _files(stem: str, folders: Sequence[str]) -> Files:
    """Images and labels of a split, packed or not."""
    ends = [f"{at}/{stem}-{{}}-ubyte{end}" for at in folders for end in ("", ".gz")]
    return tuple(tuple(end.format(kind) for end in ends) for kind in ("images-idx3", "labels-idx1"))


IDX = {name: {"train": _files("train", at), "test": _files("t10k", at)} for name, at in FOLDERS.items()}


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
    with _unpacking(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content += file.read(start)
        if content[:4] == magic and len(content) == start:
            shape = struct.unpack(f">{dimensions}I", content[4:])
            check_bytes(path, math.prod(shape))
        while len(content) <= start + math.prod(shape) and (chunk := file.read(1 << 18)):  # no more than declared
            content += chunk
    if content[:4] != magic or len(content) < start:
        expected = f"an idx file of bytes in {plural(dimensions, 'dimension')}, which begins with {magic.hex(' ')}"
        begin = content[:4].hex(" ") or "an empty file"
        raise DataError(f"{path}: expected {expected}; found {begin}. Get it again.")
    if (length := len(content) - start) != math.prod(shape):
        raise DataError(
            f"{path}: its header states {' x '.join(map(str, shape))} = {math.prod(shape)} bytes, and there are "
            f"{length}{' or more' * (length > math.prod(shape))}. It is cut short or damaged: get it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _unpacking(path: Path) -> AbstractContextManager[None]:
    kinds = (OSError, EOFError, UnicodeDecodeError, zlib.error)
    return explain_damage(f"{path}: cannot be unpacked", "It is damaged or cut short: get it again.", kinds)


def astray(name: str, root: Path) -> str:
    """What to do about files in a folder that does not say whose they are."""
    ours = [places for files in IDX[name].values() for places in files]
    bare = find(root, [Path(place).name for places in ours for place in places])
    if bare is None or any(find(root, places) for places in ours):
        return ""
    return f"{bare}: MNIST and Fashion-MNIST have the same file names, so the folder must tell which: for {name}, put its four files into {root / FOLDERS[name][0]}."


def read_idx(paths: Sequence[Path], classes: tuple[str, ...]) -> Contents:
    """Images uint8 [n, 1, 28, 28] and their labels, of one file each."""
    x, y = array(paths[0], 3), array(paths[1], 1)
    if len(x) != len(y) or len(y) == 0:
        raise DataError(f"{paths[1]}: expected a label for each of the {len(x)} images beside it; found {len(y)}.")
    if y.max() >= len(classes):
        raise DataError(f"{paths[1]}: expected labels 0..{len(classes) - 1}; found {y.max()}. Get it again.")
    data = torch.from_numpy(x)[:, None], torch.from_numpy(y).long()
    return Contents(data, classes, about=facts(paths))


# SVHN, and the synthetic digits of Ganin and Lempitsky (2015), in MATLAB files
CHUNK = 256  # images turned at a time
SVHN = {split: ((f"{split}_32x32.mat", f"SVHN/{split}_32x32.mat"),) for split in ("train", "test", "extra")}
SYNTH = {
    split: (tuple(f"{at}synth_{split}_32x32.mat" for at in ("", "synth/", "syn/")),) for split in ("train", "test")
}


def read_mat(paths: Sequence[Path]) -> Contents:
    """Images uint8 [n, 3, 32, 32] of one file: ``X`` uint8 [H, W, 3, n], the images last, and ``y`` [n, 1], where 10 is the digit 0."""
    (path,) = paths
    *_, content = read_matlab(path, lambda _: {"images": "X", "digits": "y"})
    if missing := sorted({"X", "y"} - content.keys()):
        raise DataError(f"{path}: expected the variables X and y; {missing[0]!r} is missing. Get it again.")
    images, digits = content["X"], content["y"].reshape(-1)
    if images.ndim == 3:  # MATLAB drops a last dimension of one
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.size == 0:
        raise DataError(f"{path}: expected X to be uint8 32 x 32 x 3 x n; found {images.dtype} {list(images.shape)}.")
    if len(digits) != images.shape[3] or not np.isin(digits, range(11)).all():
        raise DataError(f"{path}: expected y to be a label 1..10 for each of the {images.shape[3]} images.")
    y = torch.from_numpy(digits.astype(np.int64) % 10)
    return Contents((torch.from_numpy(_upright(images)), y), DIGITS, about=facts([path]))


def _upright(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn [H, W, C, n] as MATLAB stores it into [n, C, H, W], in place: a second copy would be gigabytes."""
    turned = images.transpose(3, 2, 1, 0)  # [n, C, W, H], and in the order of the bytes
    if not (turned.flags.c_contiguous and turned.flags.writeable):
        turned = turned.copy()
    for begin in range(0, len(turned), CHUNK):
        part = turned[begin : begin + CHUNK]
        part[...] = part.transpose(0, 1, 3, 2).copy()
    return turned


# USPS, in the text format of libsvm or in that of The Elements of Statistical Learning
FORMS = {"train": ("usps.bz2", "zip.train.gz", "zip.train"), "test": ("usps.t.bz2", "zip.test.gz", "zip.test")}
USPS = {split: (tuple(f"{at}{form}" for form in forms for at in ("", "USPS/")),) for split, forms in FORMS.items()}
SIDE = 16


def read_usps(paths: Sequence[Path]) -> Contents:
    """USPS: images uint8 [n, 1, 16, 16] of one file.

    In libsvm's ``usps.bz2`` a line is ``label 1:v 2:v ... 256:v`` with label 1..10, where 1 is the digit 0, and a number that is
    left out is 0. In ``zip.train.gz`` of The Elements of Statistical Learning it is the digit and 256 numbers. Each v in [-1, 1]
    becomes ``(v + 1) / 2 * 255`` without its fraction.
    """
    (path,) = paths
    opened = {".bz2": bz2.open, ".gz": gzip.open}.get(path.suffix, open)
    pixels, digits = bytearray(), []
    with _unpacking(path), opened(path, "rt", encoding="ascii") as file:
        for number, line in enumerate(lines(file, path), 1):
            if words := line.split():
                digit, image = _parsed(words, f"{path}, line {number}", path.suffix != ".bz2")
                digits.append(digit)
                pixels += image.tobytes()
    if not digits:
        raise DataError(f"{path}: expected a digit on every line; found no line. Get it again.")
    x = torch.frombuffer(pixels, dtype=torch.uint8).view(-1, 1, SIDE, SIDE)
    return Contents((x, torch.tensor(digits)), DIGITS, about=facts(paths))


def _parsed(words: list[str], where: str, book: bool) -> tuple[int, NDArray[np.uint8]]:
    """The digit, and the pixels uint8 [256], of one line of libsvm's file, or of the book's."""
    size, first = SIDE * SIDE, 0 if book else 1
    try:
        pairs = enumerate(words[1:], 1) if book else (word.split(":") for word in words[1:])
        label, value_at = float(words[0]), {int(place): float(value) for place, value in pairs}
        numbers = np.array([*value_at.values()], np.float32)
        good = label in range(first, first + 10) and value_at.keys() <= {*range(1, size + 1)}
    except ValueError:
        good = False
    if not good or (book and len(numbers) < size) or not (abs(numbers) <= 1).all():
        form = "'label 1:v 2:v ...' with a label 1..10, where 1 is the digit 0, places 1..256 and values in [-1, 1]"
        form = f"a digit 0..9 and {size} numbers in [-1, 1]" if book else form
        raise DataError(f"{where}: expected {form}; found {' '.join(words)[:40]!r}, {len(words) - 1} values.")
    values = np.zeros(size, np.float32)
    values[[place - 1 for place in value_at]] = numbers
    return int(label) - first, ((values + 1) / 2 * 255).astype(np.uint8)
