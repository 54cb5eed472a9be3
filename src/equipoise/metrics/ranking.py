"""Many methods on several data sets: mean ranks, what differences of ranks can show, and whether one of two methods is better in practice."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Probabilities(NamedTuple):
    """That a method is worse than another, equal to it in practice, or better, on the next data set; they sum to 1."""

    worse: float
    equal: float
    better: float


def mean_ranks(scores: ArrayLike, *, higher: bool = True) -> NDArray[np.float64]:
    """Mean rank of every method over data sets, 1 for the best; methods with equal scores share the mean of their ranks.

    Parameters
    ----------
    scores : a row per data set, a column per method, without NaN; shape [N, k].
    higher : whether higher scores are better.
    """
    from scipy.stats import rankdata

    s = np.asarray(scores, dtype=np.float64)
    mean: NDArray[np.float64] = rankdata(-s if higher else s, axis=1).mean(axis=0)
    return mean


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1, ties with the mean of theirs; shape [K]."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which], dtype=np.float64)


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation (1904), where equal numbers share the mean of their ranks; NaN if all of a list are equal, or one is NaN.

    SciPy's needs ``scipy.stats``, whose import takes as long as that of a third of PyTorch.

    Parameters
    ----------
    x, y : numbers, of equal length.
    """
    both = [np.asarray(values, dtype=np.float64) for values in (x, y)]
    if any(np.isnan(values).any() or np.unique(values).size < 2 for values in both):
        return math.nan
    correlations = np.corrcoef(np.column_stack([ranks(values) for values in both]), rowvar=False)
    return float(np.atleast_2d(correlations)[1, 0])


def friedman(scores: ArrayLike) -> float:
    """p-value of Friedman's test (1937) that all methods have the same mean rank.

    NaN for fewer than two data sets or three methods, and if all methods are equal on all data sets.

    Parameters
    ----------
    scores : as for :func:`mean_ranks`.
    """
    from scipy.stats import friedmanchisquare

    s = np.asarray(scores, dtype=np.float64)
    if len(s) < 2 or s.shape[1] < 3 or (s == s[:, :1]).all():
        return math.nan
    return float(friedmanchisquare(*s.T).pvalue)


def critical_difference(methods: int, data_sets: int, level: float = 0.05) -> float:
    """Nemenyi's critical difference: the smallest difference of two mean ranks that is distinguishable among all pairs of methods.

    `CD = q / sqrt(2) * sqrt(k (k + 1) / (6 N))`, with q the quantile of the studentised range of k methods (Demšar, JMLR 2006).

    Parameters
    ----------
    methods : k >= 2.
    data_sets : N >= 1.
    level : of the test, in (0, 1).
    """
    from scipy.stats import studentized_range

    k = methods
    return float(studentized_range.ppf(1 - level, k, math.inf)) * math.sqrt(k * (k + 1) / (12 * data_sets))


def signed_rank(differences: ArrayLike, region: float, *, samples: int = 50_000, seed: int = 0) -> Probabilities:
    """Bayesian signed-rank test of a method against another, with a region in which both are equal in practice.

    Weights of the differences are drawn from a Dirichlet distribution: 1 for each difference, and the prior, .5 at 0. In each sample the mean of
    two differences is below, inside or above the region with some weight, and the largest of the three counts (Benavoli et al., ICML 2014 and
    JMLR 2017).

    Parameters
    ----------
    differences : one per data set, positive where the method is better; shape [N], N >= 1.
    region : half its width, >= 0, in the unit of the differences.
    samples : how many weights are drawn.
    seed : of the weights.
    """
    z = np.concatenate([[0.0], np.asarray(differences, dtype=np.float64)])
    weights = np.random.default_rng(seed).dirichlet(np.where(np.arange(z.size) == 0, 0.5, 1.0), samples)
    sums = z[:, None] + z
    better, worse = (
        ((weights @ (np.heaviside(side * sums - 2 * region, 0.5))) * weights).sum(axis=1) for side in (1, -1)
    )
    shares = np.stack([worse, 1 - (worse + better), better], axis=1)  # [samples, 3]
    largest = shares == shares.max(axis=1, keepdims=True)
    return Probabilities(*(largest / largest.sum(axis=1, keepdims=True)).mean(axis=0).tolist())
