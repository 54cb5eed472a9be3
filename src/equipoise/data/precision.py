"""Arrays of numbers: what float32 holds, what becomes the same in it, and standardising."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.system.suggestions import some
from equipoise.system.text import plural

LOST = 0.01  # share of a feature's different numbers, from which on their loss is said
LOOKED_AT = 1 << 21  # numbers whose differences are counted, at most
BLOCK = 1 << 20  # of these at once, and that are standardised at once
SHOWN = 5  # features in a sentence
LEAST = 8  # rows from which on a column that counts them does so on purpose
Where = Callable[[list[int]], str]


def lost(x: NDArray[np.generic], rounded: NDArray[np.float32], name: Callable[[int], str]) -> str:
    """A sentence on features of ``x`` [n, ...] whose different numbers became fewer by rounding; empty if hardly any did.

    Parameters
    ----------
    x, rounded : the numbers, before and after; of many samples some are looked at.
    name : what the feature of a number is called.
    """
    if x.dtype.itemsize < 4 or not x.size:
        return ""
    wide, narrow = x.reshape(len(x), -1), rounded.reshape(len(x), -1)
    every, step = -(-x.size // LOOKED_AT), max(1, BLOCK // len(x))
    losses = []
    for k in range(0, wide.shape[1], step):
        ordered = (np.sort(block[::every, k : k + step], axis=0) for block in (wide, narrow))
        before, after = ((block[1:] != block[:-1]).sum(0) + 1 for block in ordered)
        losses += [
            f"{name(k + int(j))} ({before[j]:,} different numbers become {after[j]:,})"
            for j in np.flatnonzero(before - after > LOST * before)
        ]
    if not losses:
        return ""
    return f"rounding to single precision (float32), in which networks compute, makes different numbers the same: {some(losses, SHOWN)}."


def counting(x: NDArray[Any]) -> list[int]:
    """Columns of ``x`` [n, D] that count the rows one by one, up or down, from whatever number."""
    n = len(x)
    if n < LEAST:
        return []
    first, last = x[0].astype(np.float64), x[-1].astype(np.float64)
    maybe = np.flatnonzero((np.abs(last - first) == n - 1) & (np.rint(first) == first))
    return [int(k) for k in maybe if (np.abs(np.diff(x[:, k].astype(np.float64))) == 1).all()]


def finite(x: NDArray[np.generic], where: Where) -> NDArray[np.generic]:
    """The same numbers, of which float32 holds every one."""
    with np.errstate(over="ignore"):
        good = np.isfinite(x) if x.dtype.itemsize <= 4 else np.abs(x) <= np.finfo(np.float32).max
    if not good.all():
        at = np.argwhere(~good)[0].tolist()
        number, among = x[tuple(at)], int((~good).reshape(len(x), -1).any(1).sum())
        fault = f"{number:g}, too large for float32," if np.isfinite(number) else "not a finite number,"
        raise DataError(f"{where(at)} is {fault} in {plural(among, 'sample')} in all. Correct, scale or remove them.")
    return x


def single(x: NDArray[np.generic], where: Where) -> NDArray[np.float32]:
    """Numbers as float32.

    Raises
    ------
    DataError : one is not finite, or becomes infinite; ``where(indices)`` says where.
    """
    return finite(x, where).astype(np.float32)


def standardised(
    x: NDArray[np.generic], rows: Sequence[int] | NDArray[np.int64], where: Where
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Numbers less their mean, by their standard deviation, both over ``rows``; in double precision, and then rounded.

    Every feature has its own mean; of images [n, C, H, W] every channel. What is the same in all ``rows`` is not divided.

    Returns
    -------
    The numbers as float32, the means and the standard deviations.

    Raises
    ------
    DataError : a number of another row is so far off that it becomes infinite; ``where(indices)`` says where.
    """
    axes = (0, 2, 3) if x.ndim == 4 else 0
    training = x[rows].astype(np.float64)
    low, high = training.min(axes, keepdims=True), training.max(axes, keepdims=True)
    mean = np.where(low == high, low, training.mean(axes, keepdims=True))
    scale = np.exp2(np.frexp(np.maximum(high - mean, mean - low))[1])  # without it, squares of tiny numbers are 0
    std = np.sqrt(np.square((training - mean) / scale).mean(axes, keepdims=True)) * scale
    divisor = np.where(std > 0, std, 1)
    made = np.empty(x.shape, np.float32)
    step = max(1, BLOCK // max(1, x[0].size))
    for k in range(0, len(x), step):
        part = (x[k : k + step].astype(np.float64) - mean) / divisor
        made[k : k + step] = single(part, lambda at, k=k: where([at[0] + k, *at[1:]]))  # type: ignore[misc]
    return made, mean, std
