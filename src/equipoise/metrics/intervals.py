"""Intervals of one trained model, or of the difference of two, over the test samples: what another test set might have shown.

They say nothing about another seed. Groups are drawn apart from each other, so each keeps its number of samples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.definitions import Statistic
from equipoise.metrics.groups import effective, rates_of, sizes_of

Table = NDArray[np.float64]

DRAWS: Final = 4000


class Draws(NamedTuple):
    """Accuracies that a model might have on other samples of the same kind [draws, D], and those that were observed [D]."""

    others: Table
    observed: Table


class Outcome(NamedTuple):
    """A model on one test set: its accuracy, how many people, and if known how often each was right [n], and how many samples each has [n] if not one."""

    accuracy: float
    n: int
    right: Table | None = None
    visits: Table | None = None


class Interval(NamedTuple):
    """The ends of a 95 % interval, NaN if there is none."""

    low: float
    high: float

    def holding(self, observed: float) -> "Interval":
        """The same, extended to the observed number: without an error it ends at 1, without a success at 0."""
        return Interval(min(self.low, observed), max(self.high, observed)) if math.isfinite(self.low) else self

    def times(self, factor: float) -> "Interval":
        """The same of the number times a factor above 0."""
        return Interval(factor * self.low, factor * self.high)

    @property
    def ends(self) -> list[float] | None:
        """`[low, high]`; None where there is no interval."""
        return [*self] if math.isfinite(self.low) else None

    @property
    def percent(self) -> list[float] | None:
        """The same of a share, in percent."""
        return self.times(100).ends


NONE: Final = Interval(math.nan, math.nan)


def resampled(models: Sequence[Sequence[Outcome]], draws: int = DRAWS, seed: int = 0) -> list[Draws]:
    """Accuracies that the models might have on other samples of the same kind, on the same ones for all models.

    The Bayesian bootstrap (Rubin 1981): each sample counts with a weight from Gamma(1), and in each group one more in the
    share Beta(1/2, 1/2) is right, drawn for each model. Of a model that is right or wrong on every sample the accuracy then
    is Beta(right + 1/2, wrong + 1/2), the posterior of Jeffreys' prior: a group of one sample, or one without an error,
    has an interval too. Models of which is not known which samples are right are drawn apart, which makes differences wider.

    Parameters
    ----------
    models : for each model its results on the same test sets, in the same order.
    draws : >= 1.
    seed : >= 0, of the draws.

    Returns
    -------
    Of each model its accuracies in [0, 1]. A person with several samples has one weight, and the one more as many as the mean person.
    """
    rng = np.random.default_rng(seed)
    accuracies = np.empty((len(models), draws, len(models[0])))
    for d, group in enumerate(zip(*models, strict=True)):
        right = [outcome.right for outcome in group]
        share = rng.beta(0.5, 0.5, (len(group), draws))
        more = rng.standard_gamma(1.0, draws)
        if all(rows is not None and len(rows) == group[0].n for rows in right):
            visits = np.ones(group[0].n) if group[0].visits is None else group[0].visits
            rows, counts = np.unique(np.stack([visits, *right], 1), axis=0, return_counts=True)
            weights, more = rng.standard_gamma(counts, (draws, len(counts))), more * visits.mean()
            total = (weights * rows[:, 0]).sum(1) + more
            accuracies[:, :, d] = ((weights @ np.ascontiguousarray(rows[:, 1:])).T + more * share) / total
        else:
            for k, (accuracy, n, *_) in enumerate(group):
                accuracies[k, :, d] = rng.beta(n * accuracy + 0.5, n * (1 - accuracy) + 0.5, draws)
    return list(map(Draws, accuracies, [np.array([outcome.accuracy for outcome in model]) for model in models]))


def difference(a: Draws, b: Draws, statistic: Statistic, level: float = 0.95) -> Interval:
    """Interval of a statistic over the groups, or clients, of one model less that of another.

    Parameters
    ----------
    a, b : what `resampled` returned for the two.
    statistic : one with a form for draws, `draws`.
    level : in (0, 1).
    """
    observed = float(statistic.draws(a.observed) - statistic.draws(b.observed))
    return _quantiles(statistic.draws(a.others) - statistic.draws(b.others), level).holding(observed)


def interval(draws: Draws, statistic: Statistic, level: float = 0.95) -> Interval:
    """Interval of a statistic over the groups, or clients, of one model.

    Noise makes groups look more different than they are. So the draws are moved towards their mean until the variance over
    groups that they are expected to have is the observed one, and the interval of STD and gap begins at 0 where a
    chi-squared test (Cochran's Q) does not find the groups different.

    Parameters
    ----------
    draws : what `resampled` returned for the model.
    statistic, level : as in `difference`.
    """
    a, compute = draws.others, statistic.draws
    observed = float(compute(draws.observed))
    if statistic.key not in ("avg", "mean") and a.shape[1] > 1:
        from scipy.special import chdtri

        mean, noise = a.mean(0), a.var(0, ddof=1)
        seen = float(mean.var(ddof=1))
        factor = math.sqrt(max(0.0, 1 - float(noise.mean()) / seen)) if seen > 0 else 0.0
        a = a + (factor - 1) * (mean - mean.mean())
        Q = float(((mean - np.average(mean, weights=1 / noise)) ** 2 / noise).sum())
        if statistic.key in ("std", "gap") and chdtri(a.shape[1] - 1, (1 - level) / 2) > Q:
            return Interval(0.0, _quantiles(compute(a), level).high).holding(observed)
    return _quantiles(compute(a), level).holding(observed)


def wilson(share: float, n: float, level: float = 0.95) -> Interval:
    """Interval of a share of independent samples, Wilson's (1927), which has its level for few samples, and for none or all of them.

    With the normal quantile z: `(p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)`.

    Parameters
    ----------
    share : p, in [0, 1].
    n : samples it is of, > 0.
    level : in (0, 1).
    """
    from statistics import NormalDist

    if not (math.isfinite(share) and n > 0):
        return NONE
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return Interval(0.0 if share == 0 else max(0.0, low), 1.0 if share == 1 else min(1.0, high))


def newcombe(first: float, of_first: Sequence[float], second: float, of_second: Sequence[float]) -> Interval:
    """Interval of the difference of two shares of independent samples, p - q: Newcombe's (1998) method 10, without continuity correction.

    With the ends (l, u) of p and (v, w) of q: from `p - q - sqrt((p - l)^2 + (w - q)^2)` to `p - q + sqrt((u - p)^2 + (q - v)^2)`.

    Parameters
    ----------
    first, second : p and q, in [0, 1].
    of_first, of_second : Wilson's interval of each.
    """
    (low, high), (below, above), difference = of_first, of_second, first - second
    down, up = math.hypot(first - low, above - second), math.hypot(high - first, second - below)
    return Interval(difference - down, difference + up)


def log_ratio(first: float, m: float, second: float, n: float, level: float = 0.95) -> Interval:
    """Interval of the ratio of two shares of independent samples, p / q, on the scale of its logarithm, with half a success more in each (Walter 1975).

    With successes x = m p and y = n q: `log((x + 1/2) / (m + 1/2)) - log((y + 1/2) / (n + 1/2)) -+ z sqrt(v)`, where
    `v = 1 / (x + 1/2) - 1 / (m + 1/2) + 1 / (y + 1/2) - 1 / (n + 1/2)`.

    Parameters
    ----------
    first, second : p and q, in [0, 1].
    m, n : samples they are of, > 0.
    level : in (0, 1).
    """
    from statistics import NormalDist

    x, y, m, n = m * first + 0.5, n * second + 0.5, m + 0.5, n + 0.5
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(max(0.0, 1 / x - 1 / m + 1 / y - 1 / n))
    middle = math.log(x / m) - math.log(y / n)
    return Interval(math.exp(middle - half), math.exp(middle + half))


def welch(difference: float, first: float, m: float, second: float, n: float, level: float = 0.95) -> Interval:
    """Interval of the difference of two means of m and n people with the variances ``first`` and ``second`` of these means (Welch 1947)."""
    from scipy.special import stdtrit

    spread = first + second
    if not (math.isfinite(spread) and min(m, n) > 1):
        return NONE
    free = spread**2 / (first**2 / (m - 1) + second**2 / (n - 1)) if spread > 0 else m + n - 2
    half = float(stdtrit(free, (1 + level) / 2)) * math.sqrt(spread)
    return Interval(difference - half, difference + half)


def means_gap(means: Mapping[str, tuple[float, float, float]], level: float = 0.95) -> Interval:
    """Interval of the gap between the highest and the lowest of means of groups, each with its variance and its number of people.

    It is Welch's of the pair of groups that attains it, at level `1 - (1 - level) / (A (A - 1) / 2)` for A groups, and ends at 0.
    """
    if len(means) < 2:
        return NONE
    ordered = sorted(means.values())
    (low, first, m), (high, second, n) = ordered[0], ordered[-1]
    below, above = welch(high - low, first, m, second, n, 1 - (1 - level) / (len(means) * (len(means) - 1) / 2))
    return Interval(max(0.0, below), above) if math.isfinite(below) else NONE


def sizes_by(counts: Mapping[str, Any], rounds: float = 1) -> dict[str, list[float]]:
    """By the name of a rate, how many independent samples it is about for each class, in each of the rounds that counts are the sum of.

    These are the samples, or fewer if people have several rows: see `equipoise.metrics.groups.effective`.
    """
    sizes = {key: [n / rounds for n in every] for key, every in sizes_of(counts).items()}
    if "moments" not in counts:
        return sizes
    rates, people = rates_of(counts), float(counts["persons"]) / rounds
    return {
        key: [effective(np.asarray(counts["moments"][c]) / rounds, people, n, rates.of(key, c).value, key) for c, n in enumerate(every)]
        for key, every in sizes.items()
    }  # fmt: skip


def _quantiles(values: Table, level: float) -> Interval:
    if not np.isfinite(values).all():
        return NONE
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
