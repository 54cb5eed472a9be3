"""Statistics over seeds: what several runs of the same experiment can and cannot show."""

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
    half: NDArray[np.float64] = np.asarray(
        float(stdtrit(len(v) - 1, 0.975)) * v.std(axis=0, ddof=1) / math.sqrt(len(v))
    )
    return half


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

    p = 2 * float(stdtr(n - 1, -abs(difference) * math.sqrt(n) / std))
    return Paired(difference, ci95, p, n, True)


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
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.maximum.accumulate(np.minimum(1, factors * raw[order]))
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
