"""Statistics over seeds and over data sets: what several runs can and cannot show."""

import math
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Direction = Literal["higher", "lower", "not lower", "not higher"]
Verdict = Literal["holds", "does not hold", "cannot be told"]
EXACT: Final = 1e-9  # points: what lies closer to a threshold lies on it
MOST: Final = 1000  # seeds that are tried


class Judgement(NamedTuple):
    """Mean over seeds, its 95 % interval, number of seeds, and what they say of a claim.

    ``seeds_needed`` would tell in four of five cases if mean and spread stayed as they are: ``MOST + 1`` if more than ``MOST``,
    infinite if no number would, NaN where that is not known or not asked.
    """

    mean: float
    low: float
    high: float
    n: int
    verdict: Verdict
    seeds_needed: float = math.nan


class Summary(NamedTuple):
    """Mean over seeds, standard deviation (ddof 1), half-width of the 95 % confidence interval, number of seeds."""

    mean: float
    std: float
    ci95: float
    n: int


class Paired(NamedTuple):
    """Mean difference over paired seeds, half-width of its 95 % interval, two-sided p-value, number of pairs."""

    difference: float
    ci95: float
    p: float
    n: int
    defined: bool


def summary_over_seeds(values: ArrayLike) -> Summary:
    """Mean, standard deviation and 95 % confidence interval of one number measured once per seed.

    `ci95 = t_{0.975, n-1} std / sqrt(n)` (Student 1908); NaN where it cannot be computed, so for one seed only the
    mean is a number.

    Parameters
    ----------
    values : one number per seed; shape [n].  A NaN makes every statistic NaN.

    Raises
    ------
    ValueError : the values are not one-dimensional.
    """
    v = _seeds(values, "values")
    return Summary(float(v.mean()) if v.size else math.nan, *_std_and_ci95(v), v.size)


def half_interval(values: ArrayLike) -> NDArray[np.float64]:
    """Half of the 95 % interval over seeds of one or many numbers, `t_{0.975, n-1} std / sqrt(n)`, as in `summary_over_seeds`.

    Parameters
    ----------
    values : a row per seed, n >= 2; shape [n, ...].
    """
    from scipy.special import stdtrit

    v = np.asarray(values, dtype=np.float64)
    return np.asarray(float(stdtrit(len(v) - 1, 0.975)) * v.std(axis=0, ddof=1) / math.sqrt(len(v)), dtype=np.float64)


def paired(a: ArrayLike, b: ArrayLike) -> Paired:
    """Paired t-test of two methods that ran with the same seeds.

    With `d = a - b`: the mean of `d`, `ci95 = t_{0.975, n-1} std(d) / sqrt(n)`, and the two-sided p-value of
    `t = mean(d) sqrt(n) / std(d)`.  Not defined (NaN interval and p-value) for fewer than two pairs, or when all
    differences are the same up to rounding: there is then no spread to judge the difference by.

    Parameters
    ----------
    a, b : one number per seed, in the same order of seeds; shape [n].

    Raises
    ------
    ValueError : the lengths differ.
    """
    x, y = _seeds(a, "a"), _seeds(b, "b")
    if x.size != y.size:
        raise ValueError(
            f"a paired test needs the same seeds on both sides: found {x.size} and {y.size} values. "
            "Keep the seeds that both methods ran with."
        )
    difference, std, ci95, n = summary_over_seeds(x - y)
    rounding = 1e-12 * max(np.abs(x).max(initial=0), np.abs(y).max(initial=0))
    if not math.isfinite(std) or std <= rounding:
        return Paired(difference, math.nan, math.nan, n, False)

    from scipy.special import stdtr

    return Paired(difference, ci95, 2 * float(stdtr(n - 1, -abs(difference) * math.sqrt(n) / std)), n, True)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """p-values corrected for the number of tests (Holm 1979).

    The i-th smallest of n, counted from 0, becomes `max_{j <= i} min(1, (n - j) p_j)`.  Calling all that stay below 0.05
    real is wrong about any of them in at most 5 % of such studies, whatever ties the tests to each other.

    Parameters
    ----------
    p : one p-value per test of a family; shape [n].  A NaN is no test: it stays NaN and does not count.
    """
    raw = np.asarray(p, dtype=np.float64)
    corrected = np.full(raw.shape, math.nan)
    order = [i for i in np.argsort(raw, kind="stable") if math.isfinite(raw[i])]
    corrected[order] = np.maximum.accumulate(np.minimum(1, np.arange(len(order), 0, -1) * raw[order]))
    return corrected


def seeds_needed(differences: ArrayLike, power: float = 0.8, most: int = 1000, level: float = 0.05) -> int | None:
    """Seeds with which a paired t-test at a level would find a difference like the one seen, with some probability.

    The smallest n for which `P(|T| > t_{1 - level/2, n-1}) >= power`, with T of the noncentral t-distribution with n - 1 degrees of
    freedom and noncentrality `sqrt(n) |mean(d)| / std(d)`. What is computed from few seeds is itself uncertain.

    Parameters
    ----------
    differences : one per seed; shape [n], n >= 2.
    power : in (0, 1).
    most : the largest number that is tried.
    level : in (0, 1), of the test; one that is corrected for m tests is 0.05 / m.

    Returns
    -------
    None if more would be needed than ``most``, or the differences have no spread.
    """
    from scipy.special import nctdtr, stdtrit

    d = _seeds(differences, "differences")
    std, _ = _std_and_ci95(d)
    if not math.isfinite(std) or std <= 1e-12 * np.abs(d).max():
        return None
    n = np.arange(2, most + 1)
    critical, shift = stdtrit(n - 1, 1 - level / 2), np.sqrt(n) * abs(float(d.mean())) / std
    other_side = np.nan_to_num(nctdtr(n - 1, shift, -critical))  # NaN where it vanishes
    reached = np.flatnonzero(1 - nctdtr(n - 1, shift, critical) + other_side >= power)
    return int(n[reached[0]]) if reached.size else None


def judge(differences: ArrayLike, direction: Direction, margin: float = 0.0) -> Judgement:
    """Say whether a claim of a direction holds, by the 95 % interval of Student's t over seeds.

    ``higher`` holds if the interval is above 0, and does not hold if it is below; ``not lower`` the same with ``-margin`` in
    place of 0; ``lower`` and ``not higher`` mirrored. Without spread the interval is a point; one seed has none.
    ``seeds_needed`` is that of :func:`seeds_needed` for the distances from the threshold.

    Parameters
    ----------
    differences : one per seed, finite, such as paired differences of two methods; shape [n].
    direction : what is claimed of them.
    margin : >= 0; how far on the wrong side still counts as equal, for the two directions with "not".
    """
    d = _seeds(differences, "differences")
    mean, std, ci95, _ = summary_over_seeds(d)
    if not math.isfinite(std):
        return Judgement(mean, math.nan, math.nan, d.size, "cannot be told")
    low, high = mean - ci95, mean + ci95
    sign = 1 if direction in ("higher", "not lower") else -1
    threshold = -sign * margin if direction.startswith("not") else 0.0
    near, far = sorted((sign * (low - threshold), sign * (high - threshold)))
    if near > EXACT or far < -EXACT:
        return Judgement(mean, low, high, d.size, "holds" if near > EXACT else "does not hold")
    needed = math.inf if abs(mean - threshold) <= EXACT else seeds_needed(d - threshold, most=MOST) or MOST + 1
    return Judgement(mean, low, high, d.size, "cannot be told", needed)


def _seeds(values: ArrayLike, name: str) -> NDArray[np.float64]:
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1:
        raise ValueError(f"{name} must hold one number per seed: expected shape [n], found {v.shape}.")
    return v


def _std_and_ci95(v: NDArray[np.float64]) -> tuple[float, float]:
    if v.size < 2 or not np.isfinite(v).all():
        return math.nan, math.nan
    return float(v.std(ddof=1)), float(half_interval(v))


# many methods on several data sets: mean ranks, and whether a method is better in practice
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
    return np.asarray(rankdata(-s if higher else s, axis=1).mean(axis=0), dtype=np.float64)


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
    return float(np.atleast_2d(np.corrcoef(np.column_stack([ranks(values) for values in both]), rowvar=False))[1, 0])


def friedman(scores: ArrayLike) -> float:
    """p-value of Friedman's test (1937) that all methods have the same mean rank.

    NaN for fewer than two data sets or three methods, and if all methods are equal on all data sets.

    Parameters
    ----------
    scores : as for :func:`mean_ranks`.
    """
    from scipy.stats import friedmanchisquare

    s = np.asarray(scores, dtype=np.float64)
    return math.nan if len(s) < 2 or s.shape[1] < 3 or (s == s[:, :1]).all() else float(friedmanchisquare(*s.T).pvalue)


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
    beyond = (np.heaviside(side * sums - 2 * region, 0.5) for side in (1, -1))
    better, worse = (((weights @ pairs) * weights).sum(axis=1) for pairs in beyond)
    shares = np.stack([worse, 1 - (worse + better), better], axis=1)  # [samples, 3]
    largest = shares == shares.max(axis=1, keepdims=True)
    return Probabilities(*(largest / largest.sum(axis=1, keepdims=True)).mean(axis=0).tolist())


def permuted(cases: NDArray[np.int64], hits: NDArray[np.int64], draws: int = 9999, seed: int = 0) -> float:
    """How probable it is that chance alone makes shares of groups differ at least so much, by chi-squared of permuted cases.

    Parameters
    ----------
    cases, hits : of each group, and how many of them are hits.
    draws : permutations, >= 1.
    seed : of the permutations.

    Returns
    -------
    The p-value; NaN if all cases are alike.
    """
    share = hits.sum() / cases.sum()
    if not 0 < share < 1:
        return math.nan
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(cases, hits.sum(), draws, method="marginals")
    far, drawn_far = (((counts - cases * share) ** 2 / cases).sum(-1) for counts in (hits, drawn))
    return float((1 + (drawn_far >= far * (1 - 1e-9)).sum()) / (1 + draws))
