"""Decode image files once, into one file that is read in parts: nothing assumes that the images fit in memory."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError, check_pixels, opened, reason
from equipoise.system.files import cache_directory, locked, write_atomically
from equipoise.system.workers import cores

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

log = logging.getLogger(__name__)

VERSION = 1  # of what a file becomes; another one makes every kept file anew
WORDS = 1 << 16  # different numbers of 16 bits
BLOCK = 1 << 20  # numbers that are converted at a time
PATIENCE = 2.0  # seconds without a progress bar

Pixels = NDArray[np.uint8]
Load = Callable[[Path], NDArray[Any]]  # pixels [H, W] or [H, W, C] on the scale 0..255
Fit = Literal["stretch", "crop"]
Size = int | tuple[int, int]
Item = TypeVar("Item")
Done = TypeVar("Done")


def picture(path: Path) -> Pixels:
    """Pixels [H, W, 3] of an image file, as stored: a note of the camera on how to turn them is not followed.

    Raises
    ------
    OSError, ValueError : the file cannot be decoded.
    """
    with opened(path) as stored:
        if stored.mode.startswith("I"):  # 16 bits of grey: Pillow's own conversion would cut all above 255
            grey = np.asarray(stored).astype(np.int64)
            if grey.min() < 0 or grey.max() > 65535:
                raise ValueError(f"expected grey levels in 0..65535, found {grey.min()}..{grey.max()}")
            return (grey >> 8).astype(np.uint8)
        if stored.mode == "F":
            raise ValueError("its pixels are floating-point numbers of unknown scale")
        return colours(stored)


def colours(stored: ImageFile) -> Pixels:
    """Pixels [H, W, 3] of an open image; a palette with transparent colours becomes RGBA first, as Pillow asks."""
    if stored.mode == "P" and "transparency" in stored.info:
        return np.asarray(stored.convert("RGBA").convert("RGB"))
    return np.asarray(stored.convert("RGB"))


def array(path: Path) -> NDArray[Any]:
    """Pixels of a ``.npy`` file, [H, W] or [H, W, C], uint8 or floating-point on the scale 0..255.

    Raises
    ------
    OSError, ValueError : the file holds no such array.
    """
    pixels: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)  # takes no memory yet
    check_pixels(*pixels.shape)
    return np.array(pixels)


def finite(numbers: NDArray[Any]) -> NDArray[Any]:
    """The same numbers, none of which is NaN or infinite."""
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise ValueError("some of its numbers are not finite")
    return numbers


def levels(numbers: NDArray[Any], low: float, high: float) -> Pixels:
    """Bytes: 0 up to ``low``, 255 from ``high`` on, linear and rounded between."""
    if numbers.dtype.kind in "iu" and numbers.dtype.itemsize == 2 and numbers.size > WORDS:  # each is worked out once
        native = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
        every = np.arange(WORDS).astype(np.uint16).view(native.dtype)
        table: Pixels = levels(every, low, high)
        return table[native.view(np.uint16)]
    made = np.empty(numbers.shape, np.uint8)
    rows = max(1, BLOCK // max(1, math.prod(numbers.shape[1:])))
    for begin in range(0, len(numbers), rows):  # a large image is not copied whole in double precision
        part = numbers[begin : begin + rows].astype(np.float64)
        share = (part - (low + high) / 2) / (high - low) + 0.5
        made[begin : begin + rows] = np.rint(share.clip(0, 1) * 255)
    return made


def resized(pixels: NDArray[Any], size: tuple[int, int], fit: Fit = "stretch") -> Pixels:
    """An image as uint8 [3, height, width], interpolated linearly.

    Parameters
    ----------
    pixels : [H, W] or [H, W, C]; one channel becomes three, of more than three the first three count. Numbers that are not
        uint8 are cut to 0..255 and lose their fraction.
    size : height and width.
    fit : "stretch" ignores the shape of the image; "crop" keeps it, and cuts what is too long on both sides.
    """
    from PIL import Image

    if pixels.dtype.kind not in "uif" or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise ValueError(f"expected numbers [H, W] or [H, W, C], found {pixels.dtype} {list(pixels.shape)}")
    if pixels.ndim == 3 and pixels.shape[2] == 2:
        raise ValueError(f"expected 1, 3 or more channels, found {list(pixels.shape)}")
    if finite(pixels).dtype.kind == "f" and 0 < pixels.max() <= 1:
        raise ValueError(f"expected numbers in 0..255, found none above {pixels.max():.3g}; multiply them by 255")
    if pixels.dtype != np.uint8:
        pixels = pixels.clip(0, 255).astype(np.uint8)
    if pixels.ndim == 3:
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]
    height, width = size
    check_pixels(height, width)
    resampled = Image.fromarray(np.ascontiguousarray(pixels))
    if resampled.size != (width, height):
        bilinear = Image.Resampling.BILINEAR
        if fit == "stretch":
            resampled = resampled.resize((width, height), bilinear)
        else:
            w, h = resampled.size
            tall = w * height < h * width  # the sizes of torchvision's Resize, then of its CenterCrop
            sides = (width, max(height, int(width * h / w))) if tall else (max(width, int(height * w / h)), height)
            check_pixels(*sides)
            resampled = resampled.resize(sides, bilinear)
            left, top = round((resampled.size[0] - width) / 2), round((resampled.size[1] - height) / 2)
            resampled = resampled.crop((left, top, left + width, top + height))
    return np.ascontiguousarray(np.asarray(resampled.convert("RGB")).transpose(2, 0, 1))


def decoded(files: Sequence[Path], side: Size, *, what: str, load: Load = picture, fit: Fit = "stretch") -> Path:
    """Decode images into one ``.npy`` file of the cache, unless it is there; see ``Mapped`` for how it is read.

    The file is named by the names, sizes and times of change of the images, by ``side``, ``load`` and ``fit``. It is
    written whole by one process; others that need it wait. One that was cut short is made anew.

    Parameters
    ----------
    files : the images, in the order in which they are to be kept.
    side : height and width of the kept images, or both by one number.
    what : what the images are, for the progress bar, the name of the file and errors: the name of a data set.
    load : a function of a module that reads one image; its name is part of the file's name.
    fit : "stretch" ignores the shape of an image; "crop" keeps it, and cuts what is too long on both sides.

    Returns
    -------
    The file: uint8 [n, 3, height, width], in the order of ``files``.

    Raises
    ------
    ValueError : no files, or sides below one.
    DataError : an image is missing or cannot be decoded, or the cache's folder cannot be written or is full.
    """
    size = (side, side) if isinstance(side, int) else side
    if not files or min(size) < 1:
        raise ValueError(f"{what}: expected at least one image and sides >= 1; found {len(files)} and {size}.")
    stem = "".join(c if c.isalnum() else "-" for c in what.lower())
    # what the file depends on, as 32 hexadecimal digits
    recipe = dated(files, json.dumps([VERSION, size, f"{load.__module__}.{load.__qualname__}", fit]))
    shape, stem = (len(files), 3, *size), f"{stem}-{recipe}"
    return kept(stem, shape, lambda: ahead(lambda path: image(path, size, load, fit), files), what=what)


def kept(
    stem: str, shape: tuple[int, ...], images: Callable[[], Iterator[Pixels]], *, what: str, doing: str = "decoding"
) -> Path:
    """Keep images in a ``.npy`` file of the cache, unless it is there, as :func:`decoded` does.

    Parameters
    ----------
    stem : name of the file, without what ends it; it must name everything that the images depend on.
    shape : [n, C, H, W], of all images.
    images : gives them one after the other, uint8 [C, H, W].
    what : as for :func:`decoded`.
    doing : what is done to them, for the progress bar.

    Raises
    ------
    DataError : the cache's folder cannot be written or is full.
    """
    path = cache_directory() / f"{stem}.npy"
    if _whole(path, shape):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock"), wait=True):
            if not _whole(path, shape):  # another process may have made it meanwhile
                needed, free = math.prod(shape), shutil.disk_usage(path.parent).free
                if free < needed:
                    raise OSError(f"they take {needed / 1e9:.1f} GB, and it has {free / 1e9:.1f} GB free")
                # whole or not at all, in order and not through a map: a full disk is an error then, no crash
                write_atomically(path, _content(shape, images(), f"{doing} {what}, once"))
    except OSError as error:
        fault = f"{what}: its decoded images cannot be kept in {path.parent} ({error.strerror or error})"
        todo = "Make room there, or set EQUIPOISE_CACHE to a folder that can be written."
        raise DataError(f"{fault}. {todo}") from error
    return path


def dated(files: Sequence[Path], about: str = "") -> str:
    """What changes with the names, sizes and times of files, as 32 hexadecimal digits; where their folder is does not matter."""
    top = os.path.commonpath([path.absolute().parent for path in files])
    total = hashlib.sha256(about.encode())
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}). Is the data set complete?") from None
        total.update(json.dumps([os.path.relpath(path.absolute(), top), status.st_size, status.st_mtime_ns]).encode())
    return total.hexdigest()[:32]


def _whole(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether a kept file says and has what it should."""
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        expected = images.offset + math.prod(shape)
        good = bool(images.shape == shape and images.dtype == np.uint8 and path.stat().st_size == expected)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, EOFError, AttributeError):
        good = False
    if not good:
        log.info("%s is damaged: decoding its images again.", path)
    return good


def image(path: Path, size: tuple[int, int], load: Load = picture, fit: Fit = "stretch") -> Pixels:
    """One image as uint8 [3, height, width]."""
    try:
        return resized(load(path), size, fit)
    except Exception as error:  # Pillow, NumPy and pydicom raise many kinds for a damaged file
        raise DataError(f"{path}: this image cannot be decoded ({reason(error)}). Replace or remove it.") from error


def ahead(make: Callable[[Item], Done], items: Iterable[Item]) -> Iterator[Done]:
    """``map(make, items)`` by as many threads as there are cores, with few results ahead of their use."""
    waiting: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(cores()) as pool:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > 4 * cores():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _content(shape: tuple[int, ...], images: Iterator[Pixels], doing: str) -> Iterator[bytes | memoryview]:
    """A ``.npy`` file in parts."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    yield header.getvalue()
    yield from (pixels.data for pixels in bar(doing, shape[0], images))


def bar(doing: str, total: int, items: Iterable[Item]) -> Iterator[Item]:
    """The ``items``, of which a bar on a terminal shows how many were used, once :data:`PATIENCE` is over."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from equipoise.system.terminal import Terminal

    console = Terminal(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task(doing, total=total)
    begin = time.monotonic()
    try:
        for item in items:
            yield item
            progress.advance(task)
            if not progress.live.is_started and time.monotonic() - begin > PATIENCE and not progress.finished:
                progress.start()
    finally:
        progress.stop()
