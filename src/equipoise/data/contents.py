"""The content of files as a reader returns it, and the size that a file declares."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import numpy as np
import torch

from equipoise.data.memory_mapped import Data, labels
from equipoise.system import memory
from equipoise.system.errors import InputError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile


class DataError(InputError):
    """A file or folder that is not what it should be; says which, what was expected and found, and what to do."""


@dataclass(frozen=True)
class Contents:
    """Samples as they lie in the files of a data set, and what else the files say.

    Parameters
    ----------
    data : the samples.
    classes : names of the classes; label k is the k-th.
    names : file name or id of every sample, if it has one.
    parts : natural clients or published splits: the rows of each.
    about : JSON-able facts for the record of a run: which files were read, how large they are.
    """

    data: Data
    classes: tuple[str, ...]
    names: tuple[str, ...] | None = None
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(labels(self.data))


def reason(error: Exception) -> str:
    """What an error of a reader states, in one line without a full stop; the name of its type if it states nothing."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "it is no image of a format that is read"
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, KeyError) and " " in str(error.args[0] if error.args else ""):  # a sentence of a library
        return str(error.args[0]).rstrip(".")
    return f"{text} is missing" if isinstance(error, KeyError) else text


@contextmanager
def explain_damage(expected: str, advice: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Turn what a reader raises because of the content of a file into a DataError; errors of the system, such as a missing permission, stay.

    Parameters
    ----------
    expected : the file, and that it is not what it should be.
    advice : what to do, in sentences.
    kinds : what the reader raises for a damaged file.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, DataError | MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise DataError(f"{expected} ({reason(error)}). {advice}".rstrip()) from None


def optional_package(name: str, readers: str, install: str, advice: str = "") -> Any:
    """A package that some files need; ``install`` is what pip installs for them."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there, and lacks another one
            raise
        raise DataError(f"{readers} need the package {name}: pip install {install}.{advice}") from None


# the size that a file declares, compared with the room for it before it is read
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # of images; others, such as EPS, start programs
PIXELS = 100_000_000  # of an image, at most
HONEST = 1 << 44  # bytes that one file may have
SWITCH = "EQUIPOISE_PIXELS"  # environment variable: another limit
LINE = 1 << 24  # characters of a line of a table, at most
ROW = 128  # bytes that the name, the class and the place of a row take
JSON = 16  # times the size of its text that JSON takes in memory, at most
LOOK = 1 << 22  # bytes of a text between two looks at the memory
# of a number of MATLAB; 8 of all others
MATLAB = {"uint8": 1, "int8": 1, "logical": 1, "uint16": 2, "int16": 2, "single": 4, "uint32": 4, "int32": 4}


def check_bytes(what: object, size: int) -> None:
    """Require that what a file holds fits into half of the memory that is free: it is converted, beside itself."""
    free = memory.free(torch.device("cpu"))
    if free is not None and size > free // 2:
        right = f" If it is right, take a machine with more memory, or set {memory.LIMIT}={2 * size}." * (size < HONEST)
        fault = f"would take {_bytes(size)} of memory, and at most {_bytes(free // 2)} are taken, half of what is free"
        raise DataError(f"{what} {fault}. It is damaged, or made to fill the memory.{right}")


def check_pixels(*sides: int) -> None:
    """Require an image of a size that is decoded."""
    limit = _limit()
    if (pixels := math.prod(sides)) > limit:
        size = " x ".join(f"{side:,}" for side in sides)
        raise ValueError(f"it has {size} pixels; at most {limit:,} are decoded; if it is right, set {SWITCH}={pixels}")


def _limit() -> int:
    given = os.environ.get(SWITCH, "")
    if given and not given.isdecimal():
        raise DataError(f"{SWITCH}={given}: expected a number of pixels, such as {PIXELS}.")
    return int(given) if given else PIXELS


@contextmanager
def opened(source: Path | IO[bytes]) -> Iterator[ImageFile]:
    """An image file of a known format and of a size that is decoded; nothing of its pixels is read yet.

    Raises
    ------
    OSError, ValueError : it is of another format, damaged or too large.
    """
    from PIL import Image

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # what is too large is an error here
    if os.environ.get(SWITCH):
        Image.MAX_IMAGE_PIXELS = _limit()  # Pillow has a limit of its own
    with Image.open(source, formats=FORMATS) as image:
        check_pixels(*image.size)
        yield image


def check_zip(archive: zipfile.ZipFile, growth: float = 1) -> None:
    """Require that the parts of a zip file fit into memory, where they take ``growth`` times their size.

    Raises
    ------
    DataError : they do not.
    zipfile.BadZipFile : one is packed in another way than deflate, of which Python unpacks any number of bytes at once.
    """
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"{member.filename} is packed in way {member.compress_type}, expected is deflate")
    check_bytes(archive.filename, int(growth * sum(member.file_size for member in archive.infolist())))


def check_npz(path: Path) -> None:
    """Require that all arrays of an NPZ file fit into memory.

    Raises
    ------
    DataError : they do not.
    ValueError, OSError, zipfile.BadZipFile : the file is damaged.
    """
    total = 0
    with zipfile.ZipFile(path) as archive:
        check_zip(archive)
        for member in archive.infolist():
            size, header = member.file_size, np.lib.format
            if member.filename.endswith(".npy"):
                with archive.open(member) as file:
                    first = header.read_magic(file) == (1, 0)
                    shape, _, dtype = (header.read_array_header_1_0 if first else header.read_array_header_2_0)(file)
                size = max(size, math.prod(shape) * (dtype.itemsize or ROW))
            check_bytes(f"{path}, {member.filename.removesuffix('.npy')}", size)
            total += size
    check_bytes(path, total)


def read_matlab(
    path: Path, choose: Callable[[list[str]], Mapping[str, str]], **options: Any
) -> tuple[list[str], Mapping[str, str], Any]:
    """The names of all variables of a MATLAB file, those that ``choose`` takes of them by role, and their content, which fits into memory.

    Raises
    ------
    DataError : the file is damaged, or they do not fit; and what ``choose`` raises.
    """
    from scipy.io import loadmat, whosmat

    advice = "Is it damaged, or cut short? Get it again, or save it again."
    with explain_damage(f"{path}: cannot be read as a MATLAB file", advice):  # SciPy raises many kinds
        sizes = {name: math.prod(shape) * MATLAB.get(kind, 8) for name, shape, kind in whosmat(path)}
        chosen = choose([*sizes])
        check_bytes(path, sum(sizes.get(name, 0) for name in chosen.values()))
        return [*sizes], chosen, loadmat(path, variable_names=[*chosen.values()], **options)


def lines(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a text file, which may be packed: neither one of them nor all together fill the memory."""
    number, size, looked = 0, 0, LOOK
    while line := file.readline(LINE + 1):
        number += 1
        size += len(line) + ROW
        if len(line) > LINE:
            raise DataError(f"{path}, line {number} has more than {LINE:,} characters, as no line of a table has.")
        if size > looked:
            check_bytes(path, size)
            looked = size + LOOK
        yield line


def _bytes(n: int) -> str:
    power = min(5, max(0, (n.bit_length() - 1) // 10))
    return f"{n / 1024**power:,.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
