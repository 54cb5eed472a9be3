"""How certain values are, whether they rank clients, and whether they keep the axioms."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from equipoise.contribution.exact import coefficients, shapley_weights
from equipoise.contribution.game import Array
from equipoise.contribution.sampled import standard_errors
from equipoise.metrics.statistics import holm, ranks


class Interval(NamedTuple):
    """Means, their standard errors, the quantile t of Student's distribution, and the ends of the interval; shapes [n, ...]."""

    mean: Array
    error: Array
    t: float
    low: Array
    high: Array


class Pair(NamedTuple):
    """The mean difference of the values of two players, its t statistic, and its two-sided p-value, corrected by Holm for all pairs."""

    first: int
    second: int
    difference: float
    t: float
    p: float


class Stability(NamedTuple):
    """Mean Kendall tau-b and mean Spearman correlation over pairs of draws, and the share of draws in which a player is first [n]."""

    kendall: float
    spearman: float
    first: Array


class Axioms(NamedTuple):
    """The sum of the values less U(N) - U({}) of each utility [K], players whose marginals are all 0, and pairs of equal players."""

    efficiency_gap: Array
    null_players: list[int]
    twins: list[tuple[int, int]]


def interval(samples: ArrayLike, level: float = 0.95) -> Interval:
    r"""The interval of a mean over independent draws, ``mean ± t s / sqrt(B)``, by Student's t with B - 1 degrees of freedom.

    Draws are orders (of GTG-Shapley means over n orders, :func:`equipoise.contribution.sampled.block_means`), test samples
    (:func:`per_sample`) or seeds. Intervals of test samples are about this run, not about the next.

    Parameters
    ----------
    samples : values by draw [B, n, ...], B >= 2.
    level : in (0, 1).
    """
    from scipy.special import stdtrit

    x = np.asarray(samples, dtype=np.float64)
    mean, error, t = x.mean(axis=0), standard_errors(x), float(stdtrit(len(x) - 1, (1 + level) / 2))
    error = np.full_like(mean, math.nan) if error is None else error
    return Interval(mean, error, t, mean - t * error, mean + t * error)


def per_sample(utilities: ArrayLike) -> Array:
    """Shapley values by test sample [V, n], of utilities [2^n, V] that are means over samples, such as right or wrong; their mean is the value."""
    U = np.asarray(utilities, dtype=np.float64)
    return np.asarray((coefficients(shapley_weights(len(U).bit_length() - 1)) @ U).T)


def pairs(samples: ArrayLike) -> list[Pair]:
    """The paired t-test of every two players over draws [B, n], ``t = mean(d) / (s_d / sqrt(B))``; p is NaN without any spread.

    Differences below 1e-12 times the largest value are rounding, and count as 0.
    """
    from scipy.special import stdtr

    x = np.asarray(samples, dtype=np.float64)
    couples = [*itertools.combinations(range(x.shape[1]), 2)]
    differences = np.array([x[:, i] - x[:, j] for i, j in couples]).reshape(len(couples), len(x)).T
    mean, error, *_ = interval(np.where(np.abs(differences) > 1e-12 * np.abs(x).max(initial=0), differences, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, mean / error)
    p = holm(np.where(error > 0, 2 * stdtr(len(x) - 1, -np.abs(t)), math.nan))
    return [Pair(*couple, *row) for couple, row in zip(couples, np.stack([mean, t, p], axis=1).tolist(), strict=True)]


def indistinguishable(tests: list[Pair], level: float = 0.05) -> list[tuple[int, int]]:
    """The pairs of players whose values do not differ at a level, in this run; pairs without any spread if their difference is 0."""
    return [(i, j) for i, j, difference, _, p in tests if (difference == 0 if math.isnan(p) else p >= level)]


def stability(values: ArrayLike) -> Stability:
    """How much the ranking changes between draws, such as seeds, rules or halves of the test data.

    Kendall's tau-b: concordant less discordant pairs, over the root of the products of the numbers of pairs that are not tied. Spearman: the
    correlation of ranks. NaN if there is one draw, or all values of a draw are equal. Players that tie for the first place share it.

    Parameters
    ----------
    values : by draw [B, n].
    """
    x = np.asarray(values, dtype=np.float64)
    i, j = np.triu_indices(x.shape[1], 1)
    order, leads = np.array([ranks(row) for row in x]), x == x.max(axis=1, keepdims=True)
    first = (leads / leads.sum(axis=1, keepdims=True)).mean(axis=0)
    return Stability(_agreement(np.sign(x[:, i] - x[:, j])), _agreement(order - order.mean()), first)


def _agreement(rows: Array) -> float:
    """The mean cosine of two different rows."""
    with np.errstate(invalid="ignore"):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(len(rows), 1)]
    return float(cosines.mean()) if cosines.size else math.nan


def detection(values: ArrayLike, bad: ArrayLike) -> float:
    """The chance that a bad client has a lower value than another one, ties one half: the AUC of low values; NaN without both kinds."""
    v, marked = np.asarray(values, dtype=np.float64), np.asarray(bad, dtype=bool)
    below = np.sign(v[~marked][None, :] - v[marked][:, None])
    return float((1 + below.mean()) / 2) if below.size else math.nan


def axioms(utilities: ArrayLike, values: ArrayLike, tolerance: float = 1e-12) -> Axioms:
    """What values must satisfy, and what follows from a full table.

    Parameters
    ----------
    utilities : U [2^n] or [2^n, K].
    values : phi [n] or [n, K] that are checked.
    tolerance : marginals, and differences of twins, up to this count as 0.
    """
    U, phi = np.asarray(utilities, dtype=np.float64), np.asarray(values, dtype=np.float64)
    masks, n = np.arange(len(U)), len(phi)

    def same(without: int, flip: int, inside: int) -> bool:
        """Whether flipping players changes no utility of coalitions with ``inside`` among the players ``without``."""
        S = masks[masks & without == inside]
        return bool(np.abs(U[S] - U[S ^ flip]).max(initial=0) <= tolerance)

    null = [i for i in range(n) if same(1 << i, 1 << i, 0)]
    twins = [(i, j) for i, j in itertools.combinations(range(n), 2) if same(both := 1 << i | 1 << j, both, 1 << i)]
    return Axioms(np.atleast_1d(phi.sum(axis=0) - (U[-1] - U[0])), null, twins)


def additivity_gap(total: ArrayLike, parts: ArrayLike, weights: ArrayLike) -> float:
    """The largest difference of values [n] from the weighted sum of those of the parts [n, G], such as groups weighted by their size."""
    return float(np.abs(np.asarray(total) - np.asarray(parts) @ np.asarray(weights)).max(initial=0))
