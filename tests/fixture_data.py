"""Tiny data sets in the exact formats of the real ones. Every maker returns what it wrote: per split, pixels and labels."""

from __future__ import annotations

import bz2
import gzip
import pickle
import struct
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

Written = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]  # pixels [n, C, H, W], labels [n]

OFFICE = ("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug", "projector")  # fmt: skip
DOMAINS = ("amazon", "caltech", "dslr", "webcam")


def pixels(n: int, channels: int, side: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of noise, brighter the larger the label, so that a network can learn something; labels go round 0..9."""
    rng = np.random.default_rng([seed, n, channels, side])
    y = np.arange(n) % 10
    x = rng.integers(0, 100, (n, channels, side, side)) + 15 * y[:, None, None, None]
    return x.astype(np.uint8), y


def _splits(train: int, test: int, channels: int, side: int, seed: int) -> Written:
    sizes = {"train": train, "test": test}
    return {split: pixels(n, channels, side, 2 * seed + k) for k, (split, n) in enumerate(sizes.items())}


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


# idx
def idx(values: NDArray[Any]) -> bytes:
    """Magic number, big-endian sizes, bytes."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def mnist(
    root: Path, train: int = 40, test: int = 20, *, folder: str = "MNIST/raw", packed: bool = False, seed: int = 0
) -> Written:
    """MNIST, or under another folder Fashion-MNIST."""
    made = _splits(train, test, 1, 28, seed)
    for split, (x, y) in made.items():
        stem = {"train": "train", "test": "t10k"}[split]
        for name, values in ((f"{stem}-images-idx3-ubyte", x[:, 0]), (f"{stem}-labels-idx1-ubyte", y)):
            path = _made(root / folder / (name + ".gz" * packed))
            path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return made


def fashion(root: Path, train: int = 40, test: int = 20, *, seed: int = 1) -> Written:
    """Fashion-MNIST: the same file names as MNIST, in another folder."""
    return mnist(root, train, test, folder="FashionMNIST/raw", packed=True, seed=seed)


# USPS
def usps(root: Path, train: int = 40, test: int = 20, *, seed: int = 2) -> Written:
    """USPS as the LIBSVM collection has it: label 1 is the digit 0, values in [-1, 1]."""
    made = _splits(train, test, 1, 16, seed)
    for split, (x, y) in made.items():
        lines = []
        for image, digit in zip(x.reshape(len(x), -1), y, strict=True):
            # a little above the exact value, so that rounding down gives the byte again
            values = (image + 0.25) / 255 * 2 - 1
            lines.append(f"{digit + 1} " + " ".join(f"{k}:{v:.5g}" for k, v in enumerate(values, 1)) + " \n")
        name = {"train": "usps.bz2", "test": "usps.t.bz2"}[split]
        _made(root / name).write_bytes(bz2.compress("".join(lines).encode()))
    return made


def usps_of_the_book(root: Path, train: int = 40, test: int = 20, *, packed: bool = True, seed: int = 2) -> Written:
    """USPS as The Elements of Statistical Learning has it: the digit and 256 numbers on a line, with a blank at its end."""
    made = _splits(train, test, 1, 16, seed)
    for split, (x, y) in made.items():
        values = (x.reshape(len(x), -1) + 0.25) / 255 * 2 - 1
        lines = "".join(f"{k:.4f} {' '.join(f'{v:.5f}' for v in image)} \n" for k, image in zip(y, values, strict=True))
        path = _made(root / f"zip.{split}{'.gz' * packed}")
        path.write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())
    return made


# MATLAB
def mat(path: Path, x: NDArray[np.uint8], y: NDArray[np.int64], *, compressed: bool = True) -> None:
    """X [32, 32, 3, n] with the images last, y [n, 1] with 10 for the digit 0."""
    told = {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y).astype(np.uint8)[:, None]}
    savemat(_made(path), told, do_compression=compressed)


def svhn(root: Path, train: int = 40, test: int = 20, *, extra: int = 0, seed: int = 3) -> Written:
    """SVHN, cropped digits."""
    made = _splits(train, test, 3, 32, seed)
    if extra:
        made["extra"] = pixels(extra, 3, 32, seed + 100)
    for split, (x, y) in made.items():
        mat(root / f"{split}_32x32.mat", x, y)
    return made


def synth(root: Path, train: int = 40, test: int = 20, *, seed: int = 4) -> Written:
    """The synthetic digits of Ganin and Lempitsky."""
    made = _splits(train, test, 3, 32, seed)
    for split, (x, y) in made.items():
        mat(root / f"synth_{split}_32x32.mat", x, y)
    return made


# CIFAR-10
class Python2(pickle._Pickler):
    """Writes strings as Python 2 did: as bytes, with the opcodes of the real archive."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        raw = value.encode("ascii") if isinstance(value, str) else value
        self.write((b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))) + raw)
        self.memoize(value)

    def save_name(self, value: Any, name: str | None = None) -> None:
        if getattr(value, "__module__", "") == "numpy._core.multiarray":  # NumPy 2; the real files are older
            self.write(b"cnumpy.core.multiarray\n" + value.__name__.encode() + b"\n")
            self.memoize(value)
        else:
            self.save_global(value, name)

    dispatch[bytes] = dispatch[str] = save_string
    dispatch[types.FunctionType] = dispatch[types.BuiltinFunctionType] = save_name


def batch(path: Path, x: NDArray[np.uint8], y: NDArray[np.int64]) -> None:
    """One file of CIFAR-10: rows of 1024 red, 1024 green, 1024 blue."""
    told = {
        "batch_label": path.name,
        "labels": [int(k) for k in y],
        "data": x.reshape(len(x), -1),
        "filenames": [f"image_{k}.png" for k in range(len(x))],
    }
    with _made(path).open("wb") as file:
        Python2(file, 2).dump(told)


def cifar10(root: Path, train: int = 50, test: int = 20, *, seed: int = 5) -> Written:
    """CIFAR-10, Python version; ``train`` is divided among five files."""
    made = _splits(train, test, 3, 32, seed)
    folder = root / "cifar-10-batches-py"
    x, y = made["train"]
    for k, rows in enumerate(np.array_split(np.arange(train), 5), 1):
        batch(folder / f"data_batch_{k}", x[rows], y[rows])
    batch(folder / "test_batch", *made["test"])
    with (folder / "batches.meta").open("wb") as file:
        Python2(file, 2).dump({"num_cases_per_batch": 10, "label_names": ["airplane"], "num_vis": 3072})
    return made


# images in folders
def image(path: Path, values: NDArray[np.uint8]) -> None:
    """An image file of pixels [C, H, W]; one channel makes a grey one."""
    Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0)).save(_made(path))


def syn(root: Path, train: int = 40, test: int = 20, *, kaggle: bool = False, side: int = 32, seed: int = 6) -> Written:
    """SYN: ``syn/{train,val}/<digit>``, or as Kaggle's archive unpacks. The result is in the order of reading, by digit."""
    made = {}
    for split, (x, y) in _splits(train, test, 3, side, seed).items():
        name = (
            {"train": "imgs_train", "test": "imgs_valid"}[split] if kaggle else {"train": "train", "test": "val"}[split]
        )
        folder = root / ("synthetic_digits" if kaggle else "syn") / name
        for k, digit in enumerate(y):
            image(folder / str(digit) / f"{digit}_{k:05d}.png", x[k])
        order = np.argsort(y, kind="stable")
        made[split] = (x[order], y[order])
    return made


def office(root: Path, each: int = 10, *, folder: str = "office_caltech_10", side: int = 24, seed: int = 7) -> None:
    """Office-Caltech10: ``each`` JPEG images of every class and domain; the first of each class of caltech is grey."""
    for d, domain in enumerate(DOMAINS):
        for k, label in enumerate(OFFICE):
            x, _ = pixels(each, 3, side, seed + 10 * d + k)
            for i in range(each):
                name = f"{k + 3:03d}_{i + 1:04d}.jpg" if domain == "caltech" else f"frame_{i + 1:04d}.jpg"
                grey = domain == "caltech" and i == 0
                image(root / folder / domain / label / name, x[i][:1] if grey else np.roll(x[i], k, axis=2))


def digits(root: Path, train: int = 40, test: int = 20) -> Path:
    """The four domains of FedHEAL's Digits in one folder."""
    for maker in (mnist, usps, svhn, syn):
        maker(root, train, test)
    return root
