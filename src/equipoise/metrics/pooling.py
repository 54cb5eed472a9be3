"""FedISM+'s way from rounds and runs to one number: every round of every run first, then mean and std over all."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import Value, client_std, gap, last_rounds_of, mean, std, worst


class Moments(NamedTuple):
    """Mean and standard deviation (ddof 0) over the pooled values, NaN where one of them is not defined."""

    mean: float
    std: float


class Pooled(NamedTuple):
    """Moments of every group and of what is made of the groups in one round; `n` is how many values were pooled."""

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
    tables
        For each run the values of the global model on every group after every evaluated round; shape [R, D] each.
    last
        How many of the last rounds of each run to pool, at least 1.
    counts
        Clients of each group; shape [D].  None: `client_std` is not defined.

    Raises
    ------
    ValueError
        The runs have different groups, or `last` is below 1.
    """
    rows = [last_rounds_of(table, last) for table in tables]
    if len({block.shape[1] for block in rows}) > 1:
        raise ValueError(f"runs can be pooled over the same groups only: found {sorted({b.shape[1] for b in rows})}.")
    values = np.concatenate(rows) if rows else np.empty((0, 0))  # [rounds x runs, D]

    def over(reduced: list[Value]) -> Moments:
        return _moments(np.array([value for value, _ in reduced]))

    return Pooled(
        tuple(_moments(column) for column in values.T),
        over([mean(row) for row in values]),
        over([std(row) for row in values]),
        over([worst(row) for row in values]),
        over([gap(row) for row in values]),
        over([client_std(row, counts) for row in values]),
        len(values),
    )


def _moments(values: NDArray[np.float64]) -> Moments:
    known = values.size > 0 and bool(np.isfinite(values).all())
    return Moments(float(values.mean()), float(values.std())) if known else Moments(math.nan, math.nan)
