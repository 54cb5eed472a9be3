"""USPS digits, in the text format of libsvm."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import facts, located, of_the_system
from equipoise.data.sets.idx import DIGITS

FILES = {"train": "usps.bz2", "test": "usps.t.bz2"}
SIDE = 16


def read(root: Path, split: str) -> Contents:
    """USPS: images uint8 [n, 1, 16, 16]; ``split`` is train or test.

    A line is ``label 1:v 2:v ... 256:v`` with label 1..10, where 1 is the digit 0, and v in [-1, 1], which becomes
    ``(v + 1) / 2 * 255`` without its fraction. A number that is left out is 0.

    Raises
    ------
    DataError : a missing, damaged or cut file, or a line of another form.
    """
    path = located("usps", root, (FILES[split], f"USPS/{FILES[split]}"))
    pixels, digits = bytearray(), []
    try:
        with bz2.open(path, "rt", encoding="ascii") as file:
            for number, line in enumerate(file, 1):
                if words := line.split():
                    digit, image = _parsed(words, f"{path}, line {number}")
                    digits.append(digit)
                    pixels += image.tobytes()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        if of_the_system(error):
            raise
        raise DataError(f"{path}: cannot be unpacked ({error}). It is damaged or cut short: get it again.") from None
    if not digits:
        raise DataError(f"{path}: expected a digit on every line; found no line. Get it again.")
    x = torch.frombuffer(pixels, dtype=torch.uint8).view(-1, 1, SIDE, SIDE)
    return Contents((x, torch.tensor(digits)), DIGITS, about=facts([path]))


def _parsed(words: list[str], where: str) -> tuple[int, NDArray[np.uint8]]:
    """The digit, and the pixels uint8 [256], of one line."""
    values = np.zeros(SIDE * SIDE, np.float32)
    try:
        label = float(words[0])
        pairs = [word.partition(":") for word in words[1:]]
        places = np.array([int(place) for place, _, _ in pairs], np.int64)
        given = np.array([float(value) for _, _, value in pairs], np.float32)
    except ValueError:
        raise DataError(f"{where}: expected 'label 1:v 2:v ...', found {' '.join(words)[:40]!r}.") from None
    if label not in range(1, 11):
        raise DataError(f"{where}: expected a label 1..10, where 1 is the digit 0; found {words[0]}.")
    if len(places) and not (places.min() > 0 and places.max() <= values.size and (abs(given) <= 1).all()):
        raise DataError(f"{where}: expected places 1..{values.size} and values in [-1, 1].")
    values[places - 1] = given
    return int(label) - 1, ((values + 1) / 2 * 255).astype(np.uint8)
