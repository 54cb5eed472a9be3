"""Columns of numbers: what is none, what only counts the rows, and standardising without losing what they say."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.tables.columns import MANY, listed, option
from equipoise.data.tables.words import FIRST, NUMBER, missing

MISSING_CELLS = "missing"  # a kind of cells
LARGEST = 3e38  # a larger number is infinite in float32
# what pandas, pyarrow and R call such a column
NAMELESS = re.compile(r"(Unnamed: [\d.]+|__index_level_\d+__|\.\.\.\d+)?")
LEAST = 8  # rows from which on a column that counts them does so on purpose
BLOCK = 1 << 20  # numbers that are standardised at once
Where = Callable[[list[int]], str]


def nameless(names: Sequence[str], keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns without a name, or with the one that programs give to an index without a name; and all others, with those of ``keep``."""
    unnamed = {name: None for name in names if NAMELESS.fullmatch(name) and name not in keep}
    return [*unnamed], [name for name in names if name not in unnamed]


def faults(cells: Sequence[str], rows: Sequence[int], at: Callable[[int], str], n: int, kind: str = "") -> str:
    """What is wrong with a column of ``n`` cells, of which ``cells`` in ``rows`` are no numbers that float32 holds, or no such ``kind``."""
    kinds: dict[str, list[int]] = {}
    meaning = {cell: kind or _kind(cell) for cell in set(cells)}
    for k, cell in enumerate(cells):
        kinds.setdefault(meaning[cell], []).append(k)
    said = []
    for what, which in kinds.items():
        first: dict[str | int, int] = {}  # of the same cells one is enough, unless they are missing
        for k in which:
            first.setdefault(k if what == MISSING_CELLS else cells[k].strip(), k)
        examples = [
            f"{cells[k].strip()[:40]!r} in {at(rows[k])}" if cells[k].strip() else f"empty in {at(rows[k])}"
            for k in [*first.values()][:FIRST]
        ]
        share = (
            f"all {n:,} are" if len(which) == n > 1 else f"{len(which):,} of {n:,} {'are' if len(which) > 1 else 'is'}"
        )
        said.append(f"{share} {what} ({', '.join(examples)}{', ...' * (len(which) > len(examples))})")
    return " and ".join(said)


def _kind(cell: str) -> str:
    return MISSING_CELLS if missing(cell) else "too large" if NUMBER.fullmatch(cell.strip()) else "no number"


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
        what = f"{number:g}, too large for float32," if np.isfinite(number) else "not a finite number,"
        raise DataError(
            f"{where(at)} is {what} in {among} sample{'s' * (among > 1)} in all. Correct or scale it, or remove these samples."
        )
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


def left_out(columns: Sequence[str], before: Sequence[str], source: str, why: str) -> str:
    """A note on columns that are left out, as ``why`` says of each, with the option that puts them back beside those of ``before``."""
    s = "s" * (len(columns) > 1)
    return (
        f"{source}: the column{s} {listed(columns)} {'are' if s else 'is'} left out: {why}. "
        f"If {'they are features' if s else 'it is a feature'}: {option('keep', [*before, *columns][:MANY])}."
    )
