"""USPS digits, in the text format of libsvm or in that of The Elements of Statistical Learning."""

import bz2
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError
from equipoise.data.declared import lines
from equipoise.data.locations import facts, of_the_system
from equipoise.data.sets.idx import DIGITS

FORMS = {"train": ("usps.bz2", "zip.train.gz", "zip.train"), "test": ("usps.t.bz2", "zip.test.gz", "zip.test")}
FILES = {split: (tuple(f"{at}{form}" for form in forms for at in ("", "USPS/")),) for split, forms in FORMS.items()}
SIDE = 16


def read(paths: Sequence[Path]) -> Contents:
    """USPS: images uint8 [n, 1, 16, 16] of one file.

    In libsvm's ``usps.bz2`` a line is ``label 1:v 2:v ... 256:v`` with label 1..10, where 1 is the digit 0, and a number that is
    left out is 0. In ``zip.train.gz`` of The Elements of Statistical Learning it is the digit and 256 numbers. Each v in [-1, 1]
    becomes ``(v + 1) / 2 * 255`` without its fraction.
    """
    (path,) = paths
    opened = {".bz2": bz2.open, ".gz": gzip.open}.get(path.suffix, open)
    pixels, digits = bytearray(), []
    try:
        with opened(path, "rt", encoding="ascii") as file:
            for number, line in enumerate(lines(file, path), 1):
                if words := line.split():
                    digit, image = _parsed(words, f"{path}, line {number}", path.suffix != ".bz2")
                    digits.append(digit)
                    pixels += image.tobytes()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        if of_the_system(error):
            raise
        raise DataError(f"{path}: cannot be unpacked ({error}). It is damaged or cut short: get it again.") from None
    if not digits:
        raise DataError(f"{path}: expected a digit on every line; found no line. Get it again.")
    x = torch.frombuffer(pixels, dtype=torch.uint8).view(-1, 1, SIDE, SIDE)
    return Contents((x, torch.tensor(digits)), DIGITS, about=facts(paths))


def _parsed(words: list[str], where: str, book: bool) -> tuple[int, NDArray[np.uint8]]:
    """The digit, and the pixels uint8 [256], of one line of libsvm's file, or of the book's."""
    values, first = np.zeros(SIDE * SIDE, np.float32), 0 if book else 1
    try:
        label = float(words[0])
        pairs = (
            [(f"{k}", ":", v) for k, v in enumerate(words[1:], 1)] if book else [w.partition(":") for w in words[1:]]
        )
        places = np.array([int(place) for place, _, _ in pairs], np.int64)
        numbers = np.array([float(value) for _, _, value in pairs], np.float32)
    except ValueError:
        form = f"a digit and {values.size} numbers" if book else "'label 1:v 2:v ...'"
        raise DataError(f"{where}: expected {form}, found {' '.join(words)[:40]!r}.") from None
    if label not in range(first, first + 10):
        kind = "digit 0..9" if book else "label 1..10, where 1 is the digit 0"
        raise DataError(f"{where}: expected a {kind}; found {words[0]}.")
    if book and len(places) != values.size:
        raise DataError(f"{where}: expected a digit and {values.size} numbers, found {len(places)} numbers.")
    if len(places) and not (places.min() > 0 and places.max() <= values.size and (abs(numbers) <= 1).all()):
        raise DataError(f"{where}: expected places 1..{values.size} and values in [-1, 1].")
    values[places - 1] = numbers
    return int(label) - first, ((values + 1) / 2 * 255).astype(np.uint8)
