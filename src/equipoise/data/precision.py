"""Numbers that differ, and are the same in the precision in which a network computes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from equipoise.system.suggestions import some

LOST = 0.01  # share of a feature's different numbers, from which on their loss is said
LOOKED_AT = 1 << 21  # numbers whose differences are counted, at most
BLOCK = 1 << 20  # of these at once
SHOWN = 5  # features in a sentence


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
    said = []
    for k in range(0, wide.shape[1], step):
        before, after = (different(block[::every, k : k + step]) for block in (wide, narrow))
        said += [
            f"{name(k + int(j))} ({before[j]:,} different numbers become {after[j]:,})"
            for j in np.flatnonzero(before - after > LOST * before)
        ]
    if not said:
        return ""
    return (
        "rounding to single precision (float32), in which networks compute, makes different numbers the same: "
        f"{some(said, SHOWN)}."
    )


def different(x: NDArray[np.generic]) -> NDArray[np.int64]:
    """How many different numbers each column of ``x`` [n, D] has."""
    ordered = np.sort(x, axis=0)
    count: NDArray[np.int64] = (ordered[1:] != ordered[:-1]).sum(0) + 1
    return count
