"""FedISM+'s way from rounds and runs to one number: every round of every run first, then mean and std over all.

Tables II to IV of FedISM+ pool five rounds of three runs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import last_rounds_of


class Moments(NamedTuple):
    """Mean and standard deviation (ddof 0) over the pooled values, NaN where one of them is not defined."""

    mean: float
    std: float


def last_rounds_together(tables: Sequence[ArrayLike], last: int = 5) -> NDArray[np.float64]:
    """The last rounds of all runs, one below the other; shape [rounds x runs, D].

    Parameters
    ----------
    tables : for each run the values on every group after every evaluated round; shape [R, D] each.
    last : how many of the last rounds of each run, at least 1.

    Raises
    ------
    ValueError : the runs have different groups, or `last` is below 1.
    """
    rows = [last_rounds_of(table, last) for table in tables]
    if len({block.shape[1] for block in rows}) > 1:
        raise ValueError(f"runs can be pooled over the same groups only: found {sorted({b.shape[1] for b in rows})}.")
    return np.concatenate(rows) if rows else np.empty((0, 0))


def moments(values: ArrayLike) -> Moments:
    """Mean and standard deviation (ddof 0) of some values; NaN where there is none, or one of them is not finite.

    Parameters
    ----------
    values : what was pooled; shape [n].
    """
    pooled = np.asarray(values, dtype=np.float64)
    if not pooled.size or not np.isfinite(pooled).all():
        return Moments(math.nan, math.nan)
    return Moments(float(pooled.mean()), float(pooled.std()))
