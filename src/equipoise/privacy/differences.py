"""What follows about few people from sums that are given, by adding and subtracting them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TINY = 1e-7  # of lengths and products of vectors of ones


def exposed(sums: NDArray[np.bool_], cell: NDArray[Any], person: NDArray[Any], least: int) -> NDArray[np.bool_]:
    """The cells [m] in parts of fewer than ``least`` people, of which alone a combination of sums is made.

    A part are cells that every sum counts alike. A combination tells of few if it leaves out every part that is large.

    Parameters
    ----------
    sums : which cells each of them counts [K, m].
    cell : the cell of each row, in 0..m - 1 [n].
    person : whom each row is about [n].
    least : >= 1, people.
    """
    parts, part = np.unique(sums, axis=1, return_inverse=True)
    part = part.reshape(-1)
    few = people_in(part[cell], person, parts.shape[1]) < least
    large = (parts * ~few).astype(float)
    size, basis = np.linalg.eigh(large @ large.T)
    alone: NDArray[np.bool_] = few & (np.abs(basis[:, size < TINY].T @ parts) > TINY).any(0)
    return alone[part]


def people_in(part: NDArray[Any], person: NDArray[Any], m: int) -> NDArray[np.int64]:
    """How many people there are in each of ``m`` parts, by the part and the person of each row [n]."""
    number = np.unique(person, return_inverse=True)[1]
    return np.bincount(np.unique(part * len(number) + number) // max(len(number), 1), minlength=m)


def shown(codes: NDArray[np.int64], person: NDArray[Any], least: int) -> NDArray[np.bool_]:
    """The rows [n] whose attributes may count in sums by attribute, next to the sum of all rows; the others are unknown in every attribute.

    Rows in small cells go first, then those of the smallest combination of values, until the rest, too, is of ``least`` people or more.

    Parameters
    ----------
    codes : the value of each attribute [n, A], -1 if it is not known.
    person, least : as of :func:`exposed`.
    """
    values, cell = np.unique(codes, axis=0, return_inverse=True)
    cell, seen = cell.reshape(-1), np.ones(len(values), dtype=bool)
    sizes = people_in(cell, person, len(values))
    while seen.any():
        sums = [seen & (column == value) for column in values.T for value in np.unique(column[column >= 0])]
        alone = exposed(np.stack([np.ones_like(seen), *sums]), cell, person, least)
        if not alone.any():
            break
        if not (seen & alone).any():  # the rest is
            alone = np.arange(len(seen)) == np.where(seen, sizes, sizes.max() + 1).argmin()
        seen &= ~alone
    return seen[cell]
