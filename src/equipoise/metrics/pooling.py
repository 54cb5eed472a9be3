"""FedISM+'s way from rounds and runs to one number: every round of every run first, then mean and std over all."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import client_std, gap, last_rounds_of, mean, std, worst


class Moments(NamedTuple):
    """Mean and standard deviation (ddof 0) over the pooled values, NaN where one of them is not defined."""

    mean: float
    std: float


class Pooled(NamedTuple):
    """Moments of every group and of the statistics over groups in one round; `n` is how many values were pooled."""

    groups: tuple[Moments, ...]
    average: Moments
    std: Moments
    worst: Moments
    gap: Moments
    client_std: Moments
    n: int


def pooled(tables: Sequence[ArrayLike], last: int = 5, counts: ArrayLike | None = None) -> Pooled:
    """Mean and std over the last rounds of all runs, of numbers made in every round of every run.

    In round t of run r: `average = mean_d a_d`, `std` over the groups (ddof 1), `worst = min_d a_d`,
    `gap = max_d a_d - min_d a_d`, and `client_std`, the standard deviation (ddof 0) over clients that each have the
    value of their group.  Then mean and standard deviation (ddof 0) over all rounds and runs: Tables II to IV of FedISM+,
    which pool five rounds of three runs.

    Parameters
    ----------
    tables : for each run the values of the global model on every group after every evaluated round; shape [R, D] each.
    last : how many of the last rounds of each run to pool, at least 1.
    counts : clients of each group; shape [D].  None: `client_std` is not defined.

    Raises
    ------
    ValueError : the runs have different groups, or `last` is below 1.
    """
    values = last_rounds_together(tables, last)
    average, deviation, lowest, distance = (
        moments([reduce(row).value for row in values]) for reduce in (mean, std, worst, gap)
    )
    over_clients = moments([client_std(row, counts).value for row in values])
    groups = tuple(moments(column) for column in values.T)
    return Pooled(groups, average, deviation, lowest, distance, over_clients, len(values))


def last_rounds_together(tables: Sequence[ArrayLike], last: int = 5) -> NDArray[np.float64]:
    """The last rounds of all runs, one below the other; shape [rounds x runs, D].

    Parameters
    ----------
    tables, last : as in `pooled`.

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
    known = np.asarray(values, dtype=np.float64)
    if not known.size or not np.isfinite(known).all():
        return Moments(math.nan, math.nan)
    return Moments(float(known.mean()), float(known.std()))
