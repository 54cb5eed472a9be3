"""Loops over the update matrix that Numba compiles, where it is installed (the extra ``fast``) and the matrix is large.

Each does the operations of the other form, in :mod:`equipoise.core.maths` or in FPHL, in the same order, so that the bits are the same;
but it passes over the matrix once, and a block stays in the nearest cache. Only inner products are added up in another order.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

# entries from which on compiling, which takes seconds in every process, pays after tens of rounds
LARGE: Final = 1 << 25
LANES: Final = 64  # sums that are made side by side
FEW: Final = 20  # rounds up to which every number of them is looked for, many bytes at a time
SAME: Final = 256  # bytes at a time
WIDTH: Final = 4096  # columns at a time; whole bytes of bits
NARROW: Final = 512  # the same where all rows are needed at a time
EIGHT: Final = np.uint64(0x0101010101010101)  # a byte, eight times
PICK: Final = np.uint64(0x8040201008040201)  # of byte k, bit k
GATHER: Final = np.uint64(0x0102040810204080)  # brings the lowest bits of eight bytes into the highest byte
TOP: Final = np.uint64(56)

Array = NDArray[Any]
Arrays = tuple[Array, ...]


def agreements(matrices: Arrays, limits: Arrays, place: tuple[int, int, bool, bool], tally: Array, bits: Array) -> None:
    """FPHL's counts of columns ``first`` to ``last``: rises into ``after``, agreements into ``tally`` [L, n], and which of them reach ``need`` into ``bits``.

    ``matrices`` are the updates and the counts ``before`` and ``after`` [M, P]; ``limits`` are the rounds, ``need``, and ``kind``, the row
    of ``tally`` of each client [M]; ``place`` is first, last, whether only what is above 0 rises, and whether this round counts.
    """
    (updates, before, after), (rounds, need, kind), (first, last, above, inclusive) = matrices, limits, place
    agree = np.empty(WIDTH, before.dtype)
    kept, same = np.zeros(WIDTH, np.uint8), np.empty(SAME, np.uint8)
    eight = kept.view(np.uint64)
    counts = np.zeros((4, tally.shape[1]), np.int64)  # four at a time: one would wait for itself
    for m in range(len(updates)):
        counts[:] = 0
        n, least = rounds[m], need[m]
        for start in range(first, last, WIDTH):
            width = min(WIDTH, last - start)
            part = slice(start, start + width)
            u, old, new = updates[m, part], before[m, part], after[m, part]
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
            if n < FEW:
                agree[width:] = FEW
                for number in np.arange(n + 1).astype(before.dtype):
                    same[:] = 0
                    for j in range(0, WIDTH, SAME):
                        for k in range(SAME):
                            same[k] += agree[j + k] == number
                    counts[0, number] += same.sum()
            else:
                for j in range(width):
                    counts[j % 4, agree[j]] += 1
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
    eight = np.empty((2, WIDTH // 8), np.uint64)
    marks = eight.view(np.uint8)
    total = 0.0
    for w in weights:  # in this order
        total += w
    for start in range(first, last, WIDTH):
        width = min(WIDTH, last - start)
        above[:width] = 0
        below[:width] = 0
        for m in range(0, len(rows), 2):  # two at a time; an odd last one with itself, weightless
            pair = m, min(m + 1, len(rows) - 1)
            for r in range(2):
                if in_bits:
                    for k in range((width + 7) // 8):
                        eight[r, k] = (np.uint64(kept[pair[r], start // 8 + k]) * EIGHT) & PICK
                else:
                    marks[r, :width] = kept[pair[r], start : start + width]
            row, other = rows[m, start : start + width], rows[pair[1], start : start + width]
            v, w = weights[m], weights[pair[1]] if pair[1] > m else 0.0
            for j in range(width):
                c, d = v if marks[0, j] else 0.0, w if marks[1, j] else 0.0
                below[j] = below[j] + c + d
                above[j] = above[j] + c * np.float64(row[j]) + d * np.float64(other[j])
        for j in range(width):
            scale = total / below[j]
            out[start + j] = above[j] * scale if np.isfinite(scale) else 0.0


def middle_means(rows: Array, pairs: Array, cut: int, first: int, last: int, out: Array) -> None:
    """The means of columns ``first`` to ``last`` without ``cut`` entries at either end: see ``maths.trimmed_mean``.

    ``pairs`` [C, 2] are the rows that are put in order, one pair after the other, in columns that stay in the nearest cache.
    """
    x, total, n = np.zeros((len(rows), NARROW), rows.dtype), np.empty(NARROW, np.float64), len(rows) - 2 * cut
    for start in range(first, last, NARROW):
        width = min(NARROW, last - start)
        for m in range(len(rows)):
            row = rows[m, start : start + width]
            for k in range(width):
                x[m, k] = row[k]
        for i, j in pairs:
            low, high = x[i], x[j]
            for k in range(NARROW):
                a, b = low[k], high[k]
                low[k], high[k] = a if a <= b else b, a if a >= b else b
        total[:] = 0
        for m in range(cut, cut + n):
            for k in range(NARROW):
                total[k] += x[m, k]
        for k in range(width):
            out[start + k] = total[k] / n


def products(rows: Array, first: int, last: int, out: Array) -> None:
    """Add the inner products of the rows' columns ``first`` to ``last`` to ``out`` on and above its diagonal.

    ``out`` [M, M], or [M + 1, M + 1] if M is odd: two rows at a time meet two others.
    """
    for start in range(first, last, NARROW):
        x = np.empty((len(rows), min(NARROW, last - start)), np.float64)
        for m in range(len(x)):
            row = rows[m, start : start + NARROW]
            for k in range(x.shape[1]):
                x[m, k] = row[k]
        for i in range(0, len(x), 2):
            a, b = x[i], x[min(i + 1, len(x) - 1)]
            for j in range(i, len(x), 2):
                c, d = x[j], x[min(j + 1, len(x) - 1)]
                ac = ad = bc = bd = 0.0
                for k in range(len(a)):
                    ac, ad = ac + a[k] * c[k], ad + a[k] * d[k]
                    bc, bd = bc + b[k] * c[k], bd + b[k] * d[k]
                out[i, j], out[i, j + 1] = out[i, j] + ac, out[i, j + 1] + ad
                out[i + 1, j], out[i + 1, j + 1] = out[i + 1, j] + bc, out[i + 1, j + 1] + bd


@cache
def _compiled() -> SimpleNamespace | None:
    """The loops by name."""
    try:
        from numba import njit
    except ImportError:
        return None
    exact, reordered = (njit(nogil=True, error_model="numpy", fastmath=x) for x in (False, {"reassoc", "contract"}))
    same = {loop.__name__: exact(loop) for loop in (agreements, square_sums, masked_mean, middle_means)}
    return SimpleNamespace(**same, products=reordered(products))


def loops(matrix: Tensor) -> SimpleNamespace | None:
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
