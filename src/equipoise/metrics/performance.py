"""Accuracy and its spread over groups or clients: pure functions of arrays of accuracies in [0, 1]."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


class Value(NamedTuple):
    """A number and whether it means anything; `value` is NaN where `defined` is false."""

    value: float
    defined: bool


UNDEFINED: Final = Value(math.nan, False)


def _measure(accuracies: ArrayLike, formula: Callable[[Vector], Any]) -> Value:
    a = np.asarray(accuracies, dtype=np.float64)
    if a.ndim != 1:
        raise ValueError(f"accuracies must hold one number per client or group: expected shape [K], found {a.shape}.")
    if not a.size or not np.isfinite(a).all():
        return UNDEFINED
    with np.errstate(all="ignore"):
        value = float(formula(a))
    return Value(value, True) if math.isfinite(value) else UNDEFINED


def extreme_at(values: ArrayLike, choose: Callable[[Vector], np.intp] = np.argmin) -> int:
    """Where the lowest value stands; of values that only rounding tells apart, the first.

    Parameters
    ----------
    values : finite numbers of groups; shape [K], K >= 1.
    choose : `numpy.argmin`, or `numpy.argmax` for the highest.
    """
    a = np.asarray(values, dtype=np.float64)
    return int((np.abs(a - a[choose(a)]) <= 1e-12 * np.abs(a).max()).argmax())


def mean(accuracies: ArrayLike) -> Value:
    """Mean over groups, `sum_k a_k / K`.

    Parameters
    ----------
    accuracies : one accuracy per client or group, in [0, 1]; shape [K].  Undefined when empty or when any entry is NaN.
    """
    return _measure(accuracies, np.mean)


def std(accuracies: ArrayLike, ddof: int = 1) -> Value:
    """Standard deviation over groups, `sqrt(sum_k (a_k - mean)^2 / (K - ddof))`.

    With `ddof=1` this is the STD of FedHEAL (Chen et al. 2024, Table 2).

    Parameters
    ----------
    accuracies : one accuracy per client or group, in [0, 1]; shape [K].  Undefined unless K > ddof.
    ddof : 1 for a few groups (FedHEAL), 0 for all clients of a federation (q-FFL).
    """
    return _measure(accuracies, lambda a: float(np.std(a, ddof=ddof)) if a.size > ddof else math.nan)


def worst(accuracies: ArrayLike) -> Value:
    """Accuracy of the worst-off client or group, `min_k a_k`; shape [K]."""
    return _measure(accuracies, np.min)


def best(accuracies: ArrayLike) -> Value:
    """Accuracy of the best-off client or group, `max_k a_k`; shape [K]."""
    return _measure(accuracies, np.max)


def last_rounds(table: ArrayLike, last: int = 5) -> Vector:
    """Average every group over the last evaluated rounds: the first step of FedHEAL's reduction.

    Parameters
    ----------
    table : accuracy of the global model on every group after every evaluated round, in [0, 1]; shape [R, D], or [D] for
        one round.
    last : how many rounds to average, at least 1; fewer are used when the table is shorter.

    Returns
    -------
    One accuracy per group, shape [D]; NaN where a group was not evaluated in one of these rounds.
    """
    rows = last_rounds_of(table, last)
    return rows.mean(axis=0) if len(rows) else np.full(rows.shape[1], math.nan)  # [D]


def last_rounds_of(table: ArrayLike, last: int) -> Vector:
    """The last rows of a table [R, D], or the one row [D] that it is; shape [min(last, R), D].

    Parameters
    ----------
    table : values by evaluated round and group; shape [R, D], or [D] for one round.
    last : how many rounds to keep, at least 1.

    Raises
    ------
    ValueError : the table has another number of dimensions, or `last` is below 1.
    """
    rows = np.asarray(table, dtype=np.float64)
    if rows.ndim not in (1, 2):
        raise ValueError(
            f"the table must hold accuracies by round and group: expected shape [R, D] or [D], found {rows.shape}."
        )
    if last < 1:
        raise ValueError(f"last counts the rounds to average: expected at least 1, found {last}.")
    return np.atleast_2d(rows)[-last:]


def best_round(table: ArrayLike, choose: Callable[[ArrayLike], Value] = best) -> Value:
    """The best average over groups of any evaluated round: what "best accuracy" means in FedLD's kind of report.

    It uses the test data to choose the round, so it is too high by an unknown amount; it is recorded, not tabulated.

    Parameters
    ----------
    table : accuracies in [0, 1], shape [R, D], or [D] for one round.
    choose : what is the best of some averages.
    """
    return choose([value for value, defined in map(mean, last_rounds_of(table, np.size(table) or 1)) if defined])


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


def variance(accuracies: ArrayLike, scale: float = 100) -> Value:
    """Variance over clients in percent^2, `mean_k (100 a_k - 100 mean)^2` (q-FFL, Ditto: ddof 0); shape [K].

    Parameters
    ----------
    accuracies : one accuracy per client, in [0, 1]; shape [K].
    scale : what turns them into the unit that is squared.
    """
    return _measure(accuracies, lambda a: float(np.var(scale * a)))


def worst_share(accuracies: ArrayLike) -> Value:
    """Mean accuracy of the worst-off tenth of the clients (q-FFL, Table 1); shape [K]."""
    return _measure(accuracies, lowest_tenth)


def best_share(accuracies: ArrayLike) -> Value:
    """Mean accuracy of the best-off tenth of the clients (q-FFL, Table 1); shape [K]."""
    return _measure(accuracies, highest_tenth)


def lowest_tenth(a: Vector) -> Vector:
    """Mean of the lowest 10 % of values [..., K]: [...]."""
    return np.asarray(np.sort(a, -1)[..., : tenth(a.shape[-1])].mean(-1))


def highest_tenth(a: Vector) -> Vector:
    """Mean of the highest 10 % of values [..., K]: [...]."""
    return np.asarray(np.sort(a, -1)[..., -tenth(a.shape[-1]) :].mean(-1))


def tenth(k: int) -> int:
    """How many of k clients are the worst, or the best, 10 % of them: 0.1 k rounded down, and at least one (q-FFL's script)."""
    return max(1, math.floor(0.1 * k + 1e-9))  # 1e-9: 0.1 * 30 is 3 clients


def gap(accuracies: ArrayLike) -> Value:
    """Distance between the best-off and the worst-off client, `max_k a_k - min_k a_k`; shape [K]."""
    return _measure(accuracies, np.ptp)


def client_std(groups: ArrayLike, counts: ArrayLike | None) -> Value:
    """Standard deviation over clients that each have the value of their group: Table IV of FedISM+.

    With the share `s_d` of the clients in group d: `sqrt(sum_d s_d (a_d - sum_e s_e a_e)^2)` (ddof 0), for two groups
    `sqrt(f (1 - f)) |a_1 - a_2|` with the share f of the clients in one of them.

    Parameters
    ----------
    groups : one value per group; shape [D].  Undefined when a group that has clients has none.
    counts : clients of each group; shape [D].  None, or none at all: undefined.
    """
    if counts is None:
        return UNDEFINED
    n, shape = np.asarray(counts, dtype=np.float64), np.shape(groups)
    if n.shape != shape:
        raise ValueError(f"counts must hold one number per group: expected shape {shape}, found {n.shape}.")
    share = n[n > 0] / n.sum() if n.any() else n
    inhabited = np.asarray(groups, dtype=np.float64)[n > 0]
    return _measure(inhabited, lambda a: math.sqrt(share @ np.square(a - share @ a)))


def coefficient_of_variation(accuracies: ArrayLike) -> Value:
    """Spread relative to the mean, `std(a, ddof=0) / mean(a)`; shape [K], undefined when the mean is 0."""
    return _measure(accuracies, lambda a: np.std(a) / a.mean())


def jain(accuracies: ArrayLike) -> Value:
    """Jain's index, `(sum a)^2 / (K sum a^2)`, in [1/K, 1]; 1 when all are equal (Jain et al. 1984).

    Parameters
    ----------
    accuracies : one accuracy per client, in [0, 1]; shape [K].  Undefined when all are 0.
    """
    return _measure(accuracies, lambda a: np.minimum(a.sum() ** 2 / (a.size * (a @ a)), 1))


def cosine(accuracies: ArrayLike) -> Value:
    """Cosine between the accuracies and the all-ones vector, `sum a / (sqrt(K) |a|)` (q-FFL, appendix); shape [K]."""
    return _measure(accuracies, lambda a: np.minimum(a.sum() / (math.sqrt(a.size) * np.linalg.norm(a)), 1))


def angle(accuracies: ArrayLike) -> Value:
    """Angle between the accuracies and the all-ones vector in degrees, the arc cosine of `cosine`; shape [K].

    Computed as `atan2(|a - mean|, sqrt(K) mean)`, which stays exact for nearly equal clients.
    """

    def formula(a: Vector) -> float:
        unequal = float(np.linalg.norm(a - a.mean()))
        return math.degrees(math.atan2(unequal, math.sqrt(a.size) * a.mean())) if a.any() else math.nan

    return _measure(accuracies, formula)


def entropy(accuracies: ArrayLike) -> Value:
    """Entropy of the normalised accuracies in nats, `-sum u ln u` with `u = a / sum a` (q-FFL, appendix).

    Parameters
    ----------
    accuracies : one accuracy per client, in [0, 1]; shape [K].  `0 ln 0 = 0`; undefined when all are 0.
    """
    return _measure(accuracies, lambda a: 0.0 - _log_sum(a / a.sum(), 1))


def kl_uniform(accuracies: ArrayLike) -> Value:
    """Divergence of the normalised accuracies from uniform in nats, `ln K - entropy` (q-FFL, appendix); shape [K]."""
    return _measure(accuracies, lambda a: np.maximum(_log_sum(a / a.sum(), a.size), 0))


def _log_sum(u: Vector, scale: float) -> float:
    return float((u * np.log(np.where(u == 0, 1, scale * u))).sum())


def gini(accuracies: ArrayLike) -> Value:
    """Gini coefficient, `sum_ij |a_i - a_j| / (2 K^2 mean)`; 0 when all are equal.

    Computed from the K - 1 gaps between the sorted accuracies, `sum_k k (K - k) gap_k / (K^2 mean)`.

    Parameters
    ----------
    accuracies : one accuracy per client, in [0, 1]; shape [K].  Undefined when all are 0.
    """

    def formula(a: Vector) -> float:
        k = np.arange(1, a.size)
        return float((k * (a.size - k) * np.diff(np.sort(a))).sum() / (a.size * a.sum()))

    return _measure(accuracies, formula)


def gap_between(values: Iterable[float | None]) -> float | None:
    """The largest less the smallest of those that are known; None of fewer than two."""
    defined = [value for value in values if value is not None]
    return or_none(gap(defined)) if len(defined) > 1 else None


def percent(value: Value) -> float | None:
    """A share in percent; None where it is not defined."""
    return 100 * value.value if value.defined else None


def or_none(value: Value) -> float | None:
    """A number; None where it is not defined."""
    return value.value if value.defined else None
