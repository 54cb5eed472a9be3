"""Fairness between two groups of people a classifier decides about: rates per group and their differences."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.performance import UNDEFINED, Value, worst


class Groups(NamedTuple):
    """Rates of two groups, in [0, 1], and the measures made of them; differences are the first less the second.

    `names` are the two groups in increasing order; `tpr`, `fpr`, `selection_rate` and `accuracy` have one `Value` each.
    """

    names: tuple[object, object]
    tpr: tuple[Value, Value]
    fpr: tuple[Value, Value]
    selection_rate: tuple[Value, Value]
    accuracy: tuple[Value, Value]
    demographic_parity: Value
    equal_opportunity: Value
    equalised_odds: Value
    average_odds: Value
    worst_accuracy: Value


def group_fairness(group: ArrayLike, labels: ArrayLike, predicted: ArrayLike, positive: object = 1) -> Groups:
    """How differently a classifier treats two groups.

    With `TPR_g = P(yhat = 1 | y = 1, g)`, `FPR_g = P(yhat = 1 | y = 0, g)` and d the first group less the second:
    demographic parity `d P(yhat = 1 | g)`, equal opportunity `d TPR` (Hardt et al. 2016; FairFed's EOD), equalised odds
    `max(|d TPR|, |d FPR|)`, average odds `(d TPR + d FPR) / 2`; and the lower accuracy of the two (group DRO).

    Parameters
    ----------
    group
        The group of every sample, two different values; shape [n].
    labels, predicted
        True and predicted class of every sample; shape [n].
    positive
        The class that counts as positive, against all others.  A rate is undefined, and not 0, for a group without a
        sample of the class the rate is about, and so is what is made of it.

    Raises
    ------
    ValueError
        The shapes differ, or there are not two groups.
    """
    g, y, yhat = (np.asarray(values) for values in (group, labels, predicted))
    if g.ndim != 1 or not g.shape == y.shape == yhat.shape:
        raise ValueError(
            "group, labels and predicted must hold one entry per sample each: expected the same shape [n], "
            f"found {g.shape}, {y.shape} and {yhat.shape}."
        )
    names = np.unique(g).tolist()
    if len(names) != 2:
        raise ValueError(
            f"these measures compare two groups: expected two different values of group, found {len(names)}. "
            "Compare more groups pair by pair, or one against the rest."
        )
    first, second = (g == name for name in names)
    true, chosen, right = y == positive, yhat == positive, y == yhat
    tpr, fpr, selected, accuracy = (
        (_share(of, first & among), _share(of, second & among))
        for of, among in ((chosen, true), (chosen, ~true), (chosen, True), (right, True))
    )
    d_tpr, d_fpr = _difference(*tpr), _difference(*fpr)
    return Groups(
        (names[0], names[1]),
        tpr,
        fpr,
        selected,
        accuracy,
        _difference(*selected),
        d_tpr,
        _value(max(abs(d_tpr.value), abs(d_fpr.value)) if d_tpr.defined and d_fpr.defined else math.nan),
        _value((d_tpr.value + d_fpr.value) / 2),
        worst([share.value for share in accuracy]),
    )


def _share(of: ArrayLike, among: ArrayLike) -> Value:
    found = np.asarray(of)[np.asarray(among)]
    return Value(float(found.mean()), True) if found.size else UNDEFINED


def _difference(first: Value, second: Value) -> Value:
    return _value(first.value - second.value)


def _value(value: float) -> Value:
    return Value(value, True) if math.isfinite(value) else UNDEFINED
