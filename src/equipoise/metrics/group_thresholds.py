"""A threshold on the probability of the positive class for each group of people, from histograms of it.

``hist`` [A, 2, B] counts the samples of group a and class y (0: all others, 1: positive) in bin b of B; histograms of clients add. Taking
samples of bin t and above for positive, t = 0..B, gives a group a rate: the selection rate (``"dp"``, demographic parity), the true-positive
rate (``"eo"``, equal opportunity), or this and the false-positive rate (``"eodds"``, equalised odds).
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
