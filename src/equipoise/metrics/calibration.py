"""Whether probabilities of the positive class are what they claim: reliability, ROC, recalibration from sums over sites, and decisions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.classification import KNOWN, area
from equipoise.metrics.intervals import Interval, wilson
from equipoise.metrics.performance import UNDEFINED, Value
from equipoise.metrics.thresholds import checked, decided
from equipoise.system.suggestions import require_known

Table = NDArray[np.float64]
Z: Final = 1.959963984540054  # of 95 %
FINE: Final = 1000  # bins of the scores of a site, from which models are recalibrated
EDGE: Final = 1e-6  # how close to 0 and 1 a probability counts in a logit


class Bin(NamedTuple):
    """Samples whose scores lie in one bin: the mean score, and the share that is positive with its 95 % interval (Wilson)."""

    low: float
    high: float
    n: int
    score: float
    share: float
    interval: Interval


def reliability(
    scores: ArrayLike, positive: ArrayLike, bins: int = 10, person: NDArray[np.int64] | None = None
) -> list[Bin]:
    """Mean score and share of positive samples in bins (low, high] of equal width over [0, 1]; 0 is in the first, empty bins are left out.

    Parameters
    ----------
    scores, positive : as in :func:`equipoise.metrics.thresholds.choose`.
    bins : >= 1.
    person : whom each sample is about [n], if several may be about one: then a bin has this number of people.
    """
    n, total, true = sums_of_scores(scores, positive, np.zeros(np.shape(scores)), 1, bins)[0]
    people = n
    if person is not None:
        first = np.unique(np.stack([_bins(np.asarray(scores, np.float64), bins), person]), axis=1)[0]
        people = np.bincount(first, minlength=bins)
    return [
        Bin(
            k / bins, (k + 1) / bins, int(people[k]), total[k] / n[k], share := true[k] / n[k], wilson(share, people[k])
        )
        for k in np.flatnonzero(n)
    ]


def sums_of_scores(scores: ArrayLike, positive: ArrayLike, group: ArrayLike, A: int, bins: int = 10) -> Table:
    """By group, from 0 to A - 1, what calibration follows from: samples, sums of their scores, and of the positive class; [A, 3, bins].

    Bins are of equal width, as in :func:`reliability`, and the sums of parts of a group add up; samples of group -1 are in none.
    """
    p, y = checked(scores, positive)
    a = np.asarray(group, np.int64)
    at = a * bins + _bins(p, bins)
    sums = [np.bincount(at[a >= 0], weights[a >= 0], A * bins) for weights in (np.ones(len(p)), p, y)]
    return np.asarray(sums, dtype=np.float64).reshape(3, A, bins).swapaxes(0, 1)


def _bins(p: Table, bins: int) -> NDArray[np.int64]:
    """The number of the bin of each probability."""
    return np.maximum(np.ceil(p * bins).astype(np.int64), 1) - 1


def calibration_of_sums(sums: ArrayLike, least: int = 1) -> tuple[Value, Value]:
    """Of one group from :func:`sums_of_scores` [3, bins]: calibration error, and mean score less share of the positive class; both in [-1, 1].

    The error is `sum_b n_b / n |mean score_b - share_b|` over the bins. Undefined of fewer than ``least`` samples.
    """
    n, score, true = np.asarray(sums, dtype=np.float64)
    total = n.sum()
    if total < max(least, 1):
        return UNDEFINED, UNDEFINED
    return Value(float(np.abs(score - true).sum() / total), True), Value(float((score - true).sum() / total), True)


def calibration(scores: ArrayLike, positive: ArrayLike) -> dict[str, float | None]:
    """The measures `brier` and `ece` of :mod:`equipoise.metrics.classification` of a binary classifier, lower is better.

    The Brier score is `mean (p - y)^2 + mean ((1 - p) - (1 - y))^2`, in [0, 2]: twice scikit-learn's `brier_score_loss`. The expected
    calibration error is over 15 bins of equal width of the confidence `max(p, 1 - p)` (Guo et al. 2017): the mean over samples of the distance
    between accuracy and confidence in their bin. None without samples.
    """
    p, y = checked(scores, positive)
    both = np.stack([1 - p, p], 1)
    return {name: KNOWN[name](both, y.astype(np.int64))[0] if len(p) else None for name in ("brier", "ece")}


def auc(scores: ArrayLike, positive: ArrayLike, people: tuple[int, int] | None = None) -> tuple[Value, Interval]:
    r"""Area under the ROC curve, and its 95 % interval, which is no single point where no pair is in the wrong order.

    With m positive and n other samples, or ``people`` with such if some have several, the ends are the solutions t of

    .. math:: |A - t| = z \sqrt{V(t)}, \qquad
        V(t) = \frac{t (1 - t)}{m n} \left(1 + (q - 1) \Big(\frac{1 - t}{2 - t} + \frac{t}{1 + t}\Big)\right), \quad q = \frac{m + n}{2}

    Method 5 of Newcombe, *Statistics in Medicine* 25, 2006, part 2, after the variance of Hanley and McNeil 1982.
    """
    p, y = checked(scores, positive)
    m, n = int(y.sum()), int((~y).sum())
    if not (m and n):
        return UNDEFINED, Interval(math.nan, math.nan)
    m, n = people or (m, n)
    from scipy.optimize import brentq

    A = area(p, y)

    def beyond(t: float) -> float:
        spread = 1 + ((m + n) / 2 - 1) * ((1 - t) / (2 - t) + t / (1 + t))
        return float((A - t) ** 2 - Z**2 * t * (1 - t) * spread / (m * n))

    low = 0.0 if A == 0 else brentq(beyond, 0, A) if A < 1 else brentq(beyond, 0, 1 - 1e-12)
    high = 1.0 if A == 1 else brentq(beyond, A, 1) if A > 0 else brentq(beyond, 1e-12, 1)
    return Value(A, True), Interval(float(low), float(high))


def roc(scores: ArrayLike, positive: ArrayLike, points: int = 101) -> Table:
    """The largest true-positive rate at false-positive rates of at most 0, ..., 1, in equal steps; both classes must be there.

    Parameters
    ----------
    scores, positive : as in :func:`equipoise.metrics.thresholds.choose`.
    points : >= 2.
    """
    from sklearn.metrics import roc_curve

    p, y = checked(scores, positive)
    fpr, tpr, _ = roc_curve(y, p, drop_intermediate=False)
    return np.asarray(tpr[np.searchsorted(fpr, np.linspace(0, 1, points), side="right") - 1])


# recalibration
def histogram(scores: ArrayLike, positive: ArrayLike, bins: int = FINE) -> Table:
    """The score histogram of a site: samples of the other and of the positive class by bin of equal width [2, bins]. Those of sites add up."""
    p, y = checked(scores, positive)
    at = np.minimum((p * bins).astype(np.int64), bins - 1)
    return np.stack([np.bincount(at[~y], minlength=bins), np.bincount(at[y], minlength=bins)]).astype(np.float64)


@dataclass(frozen=True)
class Recalibration:
    """A function from probabilities to probabilities that never falls, unless Platt's a is negative: the model then orders worse than chance.

    Decisions stay on the probabilities as they are, on which a threshold was chosen.

    Parameters
    ----------
    kind : ``"platt"``, `1 / (1 + exp(-(a logit p + b)))` with numbers `(a, b)`; or ``"isotonic"``, straight lines between points.
    numbers : of platt `(a, b)`; of isotonic the scores of the points, then their probabilities.
    """

    kind: str
    numbers: tuple[float, ...]

    def __call__(self, scores: ArrayLike) -> Table:
        """Recalibrated probabilities, of the same shape."""
        p = np.asarray(scores, dtype=np.float64)
        if self.kind == "platt":
            a, b = self.numbers
            return np.asarray(1 / (1 + np.exp(-(a * _logit(p) + b))))
        x, y = np.array(self.numbers).reshape(2, -1)
        return np.asarray(np.interp(p, x, y))

    @classmethod
    def fitted(cls, kind: str, counts: ArrayLike) -> Self:
        """Fit to a histogram: of one site, or pooled, the sum over sites. Scores count as the middle of their bin.

        Platt's method is a logistic regression on the logit, with his targets `(P + 1) / (P + 2)` and `1 / (N + 2)` instead of 1 and 0 for P
        positive and N other samples (Platt 1999), so it is defined of classes that do not overlap. Isotonic: scikit-learn's
        `IsotonicRegression`, weighted by the samples of a bin (Zadrozny and Elkan 2002).

        Raises
        ------
        ValueError : another kind, or samples of one class only.
        """
        require_known("recalibration", ("platt", "isotonic"), kind)
        negative, positive = np.asarray(counts, dtype=np.float64)
        N, P = negative.sum(), positive.sum()
        if not (N and P):
            raise ValueError(
                f"recalibration needs samples of both classes; found {P:g} of the positive class and {N:g} others."
            )
        middle = (np.arange(len(positive)) + 0.5) / len(positive)
        used = negative + positive > 0
        x, neg, pos = middle[used], negative[used], positive[used]
        if kind == "isotonic":
            from sklearn.isotonic import IsotonicRegression

            fit = IsotonicRegression(y_min=0, y_max=1).fit(x, pos / (neg + pos), neg + pos)
            return cls(kind, (*fit.X_thresholds_.tolist(), *fit.y_thresholds_.tolist()))
        from sklearn.linear_model import LogisticRegression

        high, low = (P + 1) / (P + 2), 1 / (N + 2)
        weights = np.concatenate([neg * (1 - low) + pos * (1 - high), neg * low + pos * high])
        logits = np.tile(_logit(x), 2)[:, None]
        fit = LogisticRegression(C=math.inf, tol=1e-10, max_iter=1000).fit(logits, np.repeat([0, 1], len(x)), weights)
        return cls(kind, (float(fit.coef_[0, 0]), float(fit.intercept_[0])))


def _logit(p: Table) -> Table:
    inside = p.clip(EDGE, 1 - EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


# from probabilities to decisions: recalibrated, and by an edge for all or for each group
@dataclass(frozen=True)
class Decision:
    """What is shown and what is decided of probabilities.

    Parameters
    ----------
    attribute : whose value chooses the edge; empty where one edge is for all.
    groups : its values, in the order of their codes.
    edges : in [0, 1], the probabilities before recalibration from which on the positive class is predicted: of every group, then of people
        of whom the group is not known; shape [G + 1]. Empty: the more probable class, after recalibration.
    calibration : of the probabilities that are shown; None leaves them as they are.
    """

    attribute: str = ""
    groups: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    calibration: Recalibration | None = None

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.groups) + 1 and (self.edges or self.groups):
            raise ValueError(
                f"expected {len(self.groups) + 1} edges, one for each group and one for others; found {len(self.edges)}."
            )

    @classmethod
    def at(
        cls, threshold: float, by_group: Mapping[str, Any] | None = None, calibration: Recalibration | None = None
    ) -> Self:
        """By a threshold, or by those of groups, an ``attribute`` and its ``thresholds``, and one for people of whom the group is not known."""
        groups = by_group["thresholds"] if by_group else {}
        edges = (*groups.values(), float(threshold))
        return cls(by_group["attribute"] if by_group else "", tuple(groups), edges, calibration)

    def __call__(self, scores: ArrayLike, codes: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Which samples are taken for positive [n], of their probabilities [n] and codes of their groups [n], -1 where one is not known."""
        if not self.edges:
            return decided(self.shown(scores), 0.5)
        return decided(scores, np.array(self.edges)[-1 if codes is None else np.asarray(codes)])

    def shown(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Probabilities [n] after recalibration."""
        return np.asarray(scores, np.float64) if self.calibration is None else self.calibration(scores)
