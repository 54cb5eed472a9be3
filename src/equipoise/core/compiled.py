"""Loops over the update matrix that Numba compiles, where it is installed (the extra ``fast``) and the matrix is large.

Each does the operations of the other form, in :mod:`equipoise.core.maths` or in FPHL, in the same order, so that the bits are the same;
but it passes over the matrix once, and a block stays in the nearest cache.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

# entries from which on compiling, which takes seconds in every process, pays after tens of rounds
LARGE: Final = 1 << 25
LANES: Final = 64  # sums that are made side by side
WIDTH: Final = 4096  # columns at a time; whole bytes of bits
EIGHT: Final = np.uint64(0x0101010101010101)  # a byte, eight times
PICK: Final = np.uint64(0x8040201008040201)  # of byte k, bit k
GATHER: Final = np.uint64(0x0102040810204080)  # brings the lowest bits of eight bytes into the highest byte
TOP: Final = np.uint64(56)

Array = NDArray[Any]


def agreements(
    updates: Array,
    before: Array,
    after: Array,
    rounds: Array,
    need: Array,
    kind: Array,
    first: int,
    last: int,
    above: bool,
    inclusive: bool,
    tally: Array,
    bits: Array,
) -> None:
    """FPHL's counts of columns ``first`` to ``last``: rises into ``after``, agreements into ``tally`` [L, n], and which of them reach ``need`` into ``bits``.

    ``kind`` [M] is the row of ``tally`` of each client.
    """
    agree = np.empty(WIDTH, before.dtype)
    kept = np.zeros(WIDTH, np.uint8)
    eight = kept.view(np.uint64)
    counts = np.zeros((4, tally.shape[1]), np.int64)  # four at a time: one would wait for itself
    for m in range(len(updates)):
        counts[:] = 0
        n, least = rounds[m], need[m]
        for start in range(first, last, WIDTH):
            width = min(WIDTH, last - start)
            u = updates[m, start : start + width]
            old = before[m, start : start + width]
            new = after[m, start : start + width]
            for j in range(width):
                up = u[j] > 0 if above else u[j] >= 0
                new[j] = old[j] + up
                ups = new[j] if inclusive else old[j]
                agree[j] = ups if up else n - ups
            wrong = False
            for j in range(width):
                kept[j] = agree[j] >= least
                wrong |= (agree[j] > n) | (agree[j] < 0)
            if wrong:
                raise ValueError("A client has risen in more rounds than it took part in: the counts are damaged.")
            kept[width:] = 0
            for j in range(0, width - 3, 4):
                counts[0, agree[j]] += 1
                counts[1, agree[j + 1]] += 1
                counts[2, agree[j + 2]] += 1
                counts[3, agree[j + 3]] += 1
            for j in range(width // 4 * 4, width):
                counts[0, agree[j]] += 1
            for k in range((width + 7) // 8):
                bits[m, start // 8 + k] = np.uint8((eight[k] * GATHER) >> TOP)
        tally[kind[m]] += counts.sum(0)


def square_sums(rows: Array, bits: Array | None, first: int, last: int, out: Array) -> None:
    """Add the squares of every row's (masked) columns ``first`` to ``last``, as lanes, to ``out`` [M, LANES]: see ``maths.square_sums``."""
    lanes = np.empty(LANES, np.float64)
    eight = np.full(WIDTH // 8 + 1, PICK)  # a tensor may begin inside a byte of bits
    marks = eight.view(np.uint8)
    for m in range(len(rows)):
        lanes[:] = 0
        for start in range(first, last, WIDTH):
            width = min(WIDTH, last - start)
            row, skip, whole = rows[m, start : start + width], start % 8, width // LANES * LANES
            if bits is not None:
                for k in range((skip + width + 7) // 8):
                    eight[k] = (np.uint64(bits[m, start // 8 + k]) * EIGHT) & PICK
            for j in range(0, whole, LANES):
                for lane in range(LANES):
                    x = np.float64(row[j + lane]) if marks[skip + j + lane] else 0.0
                    lanes[lane] += x * x
            for j in range(whole, width):
                x = np.float64(row[j]) if marks[skip + j] else 0.0
                lanes[j - whole] += x * x
        out[m] += lanes


def masked_mean(rows: Array, kept: Array, in_bits: bool, weights: Array, first: int, last: int, out: Array) -> None:
    """The mean of columns ``first`` to ``last`` over the rows that keep them: see ``maths.masked_mean``.

    ``kept`` is a bit for each entry of ``rows`` if ``in_bits``, else a byte.
    """
    above, below = np.empty(WIDTH, np.float64), np.empty(WIDTH, np.float64)
    eight = np.empty(WIDTH // 8, np.uint64)
    marks = eight.view(np.uint8)
    total = 0.0
    for w in weights:  # in this order
        total += w
    for start in range(first, last, WIDTH):
        width = min(WIDTH, last - start)
        above[:width] = 0
        below[:width] = 0
        for m in range(len(rows)):
            w, row = weights[m], rows[m, start : start + width]
            if in_bits:
                for k in range((width + 7) // 8):
                    eight[k] = (np.uint64(kept[m, start // 8 + k]) * EIGHT) & PICK
            else:
                marks[:width] = kept[m, start : start + width]
            for j in range(width):
                c = w if marks[j] else 0.0
                below[j] += c
                above[j] += c * np.float64(row[j])
        for j in range(width):
            scale = total / below[j]
            out[start + j] = above[j] * scale if np.isfinite(scale) else 0.0


class Loops(NamedTuple):
    """The three, compiled."""

    agreements: Callable[..., None]
    square_sums: Callable[..., None]
    masked_mean: Callable[..., None]


@cache
def _compiled() -> Loops | None:
    try:
        from numba import njit
    except ImportError:
        return None
    compiled = njit(nogil=True, error_model="numpy")
    return Loops(compiled(agreements), compiled(square_sums), compiled(masked_mean))


def loops(matrix: Tensor) -> Loops | None:
    """The loops, if they are to be used for ``matrix`` [M, P]."""
    readable = matrix.device.type == "cpu" and matrix.dtype in (torch.float32, torch.float64)
    neighbours = matrix.stride(1) == 1 and (len(matrix) == 1 or matrix.stride(0) >= matrix.shape[1])
    return _compiled() if readable and neighbours and matrix.numel() >= LARGE else None


def as_rows(matrix: Tensor) -> Array:
    """The array of ``matrix`` [M, n] with all columns between its rows, so that its entries are known to be neighbours; only n may be read."""
    array: Array = matrix.detach().numpy()
    if array.flags.c_contiguous:
        return array
    return as_strided(array, (len(array), array.strides[0] // array.itemsize))
