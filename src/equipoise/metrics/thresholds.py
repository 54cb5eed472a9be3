"""Thresholds on the probability of the positive class, one or one for each group: how they are chosen, and what they decide."""

import math
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kind = Literal["sensitivity", "specificity", "cost", "youden"]
WAYS: Final = "--sensitivity 0.9, --specificity 0.9, --cost 5:1 or --youden (Python: sensitivity=0.9, ..., youden=True)"
CERTAIN: Final = float(np.nextafter(np.float32(1), np.float32(2)))  # no probability reaches it
SLACK: Final = 1e-9  # of a number of samples, for the rounding of share * n


@dataclass(frozen=True)
class Aim:
    """What a threshold should reach.

    Parameters
    ----------
    kind : ``"sensitivity"`` or ``"specificity"`` of at least `value`; the lowest ``"cost"``, where a missed case costs `value` times a
        false alarm; or the largest ``"youden"`` index, sensitivity + specificity - 1 (Youden 1950).
    value : in (0, 1] of sensitivity and specificity, > 0 of cost; without a meaning of Youden's index.
    """

    kind: Kind
    value: float = 1.0

    @classmethod
    def of(
        cls,
        sensitivity: float | None = None,
        specificity: float | None = None,
        cost: float | str | None = None,
        youden: bool = False,
    ) -> Self:
        """The aim that was given; a cost is a number, or text such as ``"5:1"``, false negative : false positive.

        Raises
        ------
        ValueError : none was given, several, or one out of its range.
        """
        aims: dict[Kind, float | str | None] = {
            "sensitivity": sensitivity,
            "specificity": specificity,
            "cost": cost,
            "youden": 1.0 if youden else None,
        }
        named = [kind for kind, value in aims.items() if value is not None]
        if len(named) != 1:
            raise ValueError(f"A threshold is chosen in one way: {WAYS}. Found {', '.join(named) or 'none'}.")
        (kind,) = named
        value = _ratio(aims[kind]) if kind == "cost" else aims[kind]
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0 < number < math.inf or (kind != "cost" and number > 1):
            expected = "two positive numbers such as 5:1" if kind == "cost" else "a number in (0, 1], such as 0.9"
            raise ValueError(f"{kind} must be {expected}; found {aims[kind]!r}.")
        return cls(kind, float(number))

    def __str__(self) -> str:
        if self.kind == "youden":
            return "the largest sum of sensitivity and specificity (Youden)"
        if self.kind == "cost":
            return f"the lowest cost, where a missed case costs {self.value:g} times a false alarm"
        return f"a {self.kind} of at least {self.value:g}"


def _ratio(cost: float | str | None) -> float | str | None:
    """The cost of a missed case in false alarms; what cannot be read stays as it is."""
    try:
        missed, alarm = str(cost).split(":") if ":" in str(cost) else (str(cost), "1")
        return float(missed) / float(alarm) if float(missed) > 0 and float(alarm) > 0 else cost
    except ValueError:
        return cost


def choose(aim: Aim, scores: ArrayLike, positive: ArrayLike) -> float:
    """The threshold t that reaches an aim on some samples, which are taken for positive if their score is at least t.

    Of all t it is the highest with the wanted sensitivity `TP / (TP + FN)`, the lowest with the wanted specificity
    `TN / (TN + FP)`, or that with the least `value FN + FP`, or the largest Youden index `TP / (TP + FN) + TN / (TN + FP) - 1`, of
    equal ones the lowest. It stands between two neighbouring scores, so rounding of a score changes no decision.

    Parameters
    ----------
    aim : what it should reach.
    scores : probabilities of the positive class, in [0, 1]; shape [n].
    positive : whether each sample is of the positive class; shape [n].

    Raises
    ------
    ValueError : no probabilities, or samples of one class only.
    """
    p, y = checked(scores, positive)
    P, N = int(y.sum()), int((~y).sum())
    if not (P and N):
        raise ValueError(f"a threshold needs samples of both classes; found {P} of the positive class and {N} others.")
    values, at = np.unique(p, return_inverse=True)
    tp = np.append(np.bincount(at, y)[::-1].cumsum()[::-1], 0)  # the k-th value and all above are positive, k = 0..K
    tn = np.append(0, np.bincount(at, ~y).cumsum())
    match aim.kind:
        case "sensitivity":
            k = int(np.flatnonzero(tp >= aim.value * P - SLACK)[-1])
        case "specificity":
            k = int(np.flatnonzero(tn >= aim.value * N - SLACK)[0])
        case "cost":
            k = int(np.argmin(aim.value * (P - tp) + N - tn))
        case "youden":
            k = int(np.argmax(tp * N + tn * P))
    return _between(values, k)


def decided(scores: ArrayLike, threshold: ArrayLike) -> NDArray[np.bool_]:
    """Which samples are taken for positive, in double precision: those with a score of at least the threshold, one or one per sample."""
    return np.asarray(np.asarray(scores, dtype=np.float64) >= np.asarray(threshold, dtype=np.float64))


def _between(values: NDArray[np.float64], k: int) -> float:
    """A threshold below the k-th of some scores and above the one before it, which single precision holds where it can."""
    low = values[k - 1] if k else 0.0
    high = values[k] if k < len(values) else 1.0 if low < 1 else CERTAIN
    if k == 0:
        return 0.0
    middle = float(np.float32((low + high) / 2))
    return middle if low < middle <= high else float(high)


def checked(scores: ArrayLike, positive: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Probabilities [n] of the positive class, and whether each sample is of it [n].

    Raises
    ------
    ValueError : they are something else.
    """
    p, y = np.asarray(scores, dtype=np.float64), np.asarray(positive)
    if p.ndim != 1 or y.shape != p.shape:
        raise ValueError(f"expected scores [n] and classes [n]; found {p.shape} and {y.shape}.")
    if not set(np.unique(y).tolist()) <= {0, 1}:
        raise ValueError(f"positive must be true or false, 1 or 0, for each sample; found {np.unique(y)[:4].tolist()}.")
    if bad := int((~((p >= 0) & (p <= 1))).sum()):
        raise ValueError(f"scores must be probabilities in [0, 1]; {bad} of {len(p)} are not.")
    return p, y.astype(np.bool_)


# A threshold on the probability of the positive class for each group of people, from histograms of it.
# ``hist`` [A, 2, B] counts the samples of group a and class y (0: all others, 1: positive) in bin b of B; histograms of clients add.
# Taking samples of bin t and above for positive, t = 0..B, gives a group a rate: the selection rate (``"dp"``, demographic parity), the
# true-positive rate (``"eo"``, equal opportunity), or this and the false-positive rate (``"eodds"``, equalised odds).
Array = NDArray[np.float64]
Metric = Literal["dp", "eo", "eodds"]


def taken(hist: Array) -> Array:
    """Samples of each group and class in bin t and above [A, 2, B + 1]."""
    return np.append(np.flip(np.flip(hist, -1).cumsum(-1), -1), np.zeros((*hist.shape[:2], 1)), -1)


def rates(hist: Array, metric: Metric) -> list[Array]:
    """The rates [A, B + 1] that the metric compares, with each bin as the first that is taken; NaN for a group without samples for it."""
    above, n = taken(hist), hist.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        if metric == "dp":
            return [above.sum(1) / n.sum(1)]
        return [above[:, y] / n[:, y] for y in ((1,) if metric == "eo" else (1, 0))]


def edges(hist: Array, metric: Metric, eps: float) -> NDArray[np.int64]:
    """For each group the first bin [A] that is taken for positive, B for none: the most correct decisions with rates at most ``eps`` apart.

    The search is exact: for each rate r that a group can have, every group takes its best bin with a rate in [r, r + eps]. Of equal solutions
    that with the smallest gap, then with the lowest bins. A group without samples for a rate keeps the middle, and constrains no other.
    """
    above, tables = taken(hist), rates(hist, metric)
    usable = np.isfinite(tables).all((0, 2))
    chosen = np.full(len(hist), -(-hist.shape[-1] // 2))
    if not usable.any():
        return chosen
    right = (above[:, 1] + hist[:, 0].sum(-1, keepdims=True) - above[:, 0])[usable]
    tables = [table[usable] for table in tables]
    within = [[(low - 1e-12 <= table) & (table <= low + eps + 1e-12) for low in np.unique(table)] for table in tables]
    others = np.array(within[1]) if len(within) > 1 else np.ones((1, 1, 1), dtype=bool)
    best: tuple[float, float, tuple[int, ...]] | None = None
    for first in within[0]:
        each = np.where(first & others, right, -np.inf)  # [lows, A, B + 1]
        total = each.max(-1).sum(-1)
        for k in np.flatnonzero((total == total.max()) & np.isfinite(total)):
            bins = each[k].argmax(-1)
            gap = max(float(np.ptp(np.take_along_axis(table, bins[:, None], 1))) for table in tables)
            candidate = (-float(total[k]), gap, tuple(bins.tolist()))
            best = candidate if best is None else min(best, candidate)
    assert best is not None  # taking nobody is always possible
    chosen[usable] = best[2]
    return chosen


def hull(points: Array) -> NDArray[np.int64]:
    """Which points (x, y) [n, 2] form the upper convex hull, by x; those on a chord are left out."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    kept: list[int] = []
    for k in order.tolist():
        while kept and (
            points[kept[-1], 0] == points[k, 0] or (len(kept) > 1 and _turn(points, kept[-2], kept[-1], k) >= 0)
        ):
            kept.pop()
        kept.append(k)
    return np.array(kept)


def _turn(points: Array, a: int, b: int, c: int) -> float:
    """Positive if c is to the left of the line from a to b, 0 if on it."""
    (ax, ay), (bx, by), (cx, cy) = points[a], points[b], points[c]
    return float((bx - ax) * (cy - ay) - (by - ay) * (cx - ax))


def chances(hist: Array, metric: Metric, grid: int = 1000) -> Array:
    """The probability [A, B] of taking a sample for positive: two thresholds at random for each group, with equal rates of all groups.

    Hardt, Price, Srebro, NeurIPS 2016, as fairlearn's ThresholdOptimizer computes it: of the common rates 0, 1/grid, ..., 1 the first with
    the highest accuracy. A group without samples for a rate keeps the middle.
    """
    above, n = taken(hist), hist.sum(-1)
    tables, r = rates(hist, metric), np.linspace(0, 1, grid + 1)
    B = hist.shape[-1]
    usable = np.isfinite(tables).all((0, 2))
    steps = np.arange(B)[None] >= np.arange(B + 1)[:, None]  # [t, b]
    chance = np.tile(steps[-(-B // 2)].astype(float), (len(hist), 1))
    curves, heights = {}, {}
    for a in np.flatnonzero(usable):
        x = tables[-1][a]
        y = tables[0][a] if metric == "eodds" else (above[a, 1] + n[a, 0] - above[a, 0]) / n[a].sum()
        curves[a] = x, hull(np.stack([x, y], 1))
        heights[a] = np.interp(r, x[curves[a][1]], y[curves[a][1]])
    if not curves:
        return chance
    sizes = n[usable].sum(0)
    lowest = np.minimum.reduce([*heights.values()])
    if metric == "eodds":
        accuracy = (lowest * sizes[1] + (1 - r) * sizes[0]) / sizes.sum()
    else:
        accuracy = np.sum([n[a].sum() / sizes.sum() * y for a, y in heights.items()], 0)
    best = int(accuracy.round(15).argmax())
    for a, (x, bins) in curves.items():
        right = min(int(np.searchsorted(x[bins], r[best])), len(bins) - 1)
        left = max(right - 1, 0)
        width = x[bins[right]] - x[bins[left]]
        share = (x[bins[right]] - r[best]) / width if width > 0 else 0.0
        chance[a] = share * steps[bins[left]] + (1 - share) * steps[bins[right]]
        if metric == "eodds" and heights[a][best] > r[best]:
            mixed = (heights[a][best] - lowest[best]) / (heights[a][best] - r[best])
            chance[a] = mixed * r[best] + (1 - mixed) * chance[a]
    return chance
