"""Golden entries about collaborative fairness: what clients get for what they contribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from equipoise.metrics import (
    bounded_fairness,
    class_counts,
    client_range,
    collaboration_gain,
    collaborative_fairness,
    parity,
)

Inputs = dict[str, Any]
Fields = dict[str, Any]


def fairness(i: Inputs) -> Fields:
    found = collaborative_fairness(i["contribution"], i["reward"])
    return {"gamma": found.value if found.defined else None, "defined": found.defined}


def bounds(i: Inputs) -> Fields:
    found = bounded_fairness(i["contribution"], i["reward"])
    return {
        "upper_bound": found.upper.tolist(),
        "lower_violations": found.lower_violations,
        "upper_violations": found.upper_violations,
        "literal_upper_violations": found.literal_upper_violations,
        "lower_margin": found.lower_margin.tolist(),
        "upper_margin": found.upper_margin.tolist(),
        "rate": found.rate.value,
    }


def extremes(i: Inputs) -> Fields:
    return dict(zip(("max", "mean", "min"), (found.value for found in client_range(i["reward"])), strict=True))


def gain(i: Inputs) -> Fields:
    found = collaboration_gain(i["contribution"], i["reward"])
    return {
        "gain": found.gains.tolist(),
        "mcg": found.mean.value,
        "cgs": found.std.value,
        "negative": found.worse_off,
    }


def groups(i: Inputs) -> Fields:
    drawn = list(zip(i["group"], i["y_true"], i["y_pred"], strict=True))
    counts = {str(g): class_counts(*zip(*((y, p) for k, y, p in drawn if k == g), strict=True), 2) for g in (0, 1)}
    found = parity(counts)
    zero, one = found.rates["0"], found.rates["1"]
    rates = {name: [getattr(of, name)[1].value for of in (zero, one)] for name in ("tpr", "fpr", "selection_rate")}
    signed = {name: first - second for name, (first, second) in rates.items()}
    accuracy = [zero.accuracy.value, one.accuracy.value]
    for measure, rate in (("demographic_parity", "selection_rate"), ("equal_opportunity", "tpr")):
        assert abs(getattr(found, measure).value - abs(signed[rate])) < 1e-12
    return rates | {
        "accuracy": accuracy,
        "demographic_parity_diff": signed["selection_rate"],
        "equal_opportunity_diff": signed["tpr"],
        "equalized_odds_max": found.equalised_odds.value,
        "average_odds_diff": (signed["tpr"] + signed["fpr"]) / 2,
        "worst_group_accuracy": min(accuracy),
    }


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "metric.collaborative_fairness": fairness,
    "metric.collaborative_fairness.example": fairness,
    "metric.collaborative_fairness.constant": fairness,
    "metric.bcf": bounds,
    "metric.bcf.example": bounds,
    "metric.client_max_min": extremes,
    "metric.collaboration_gain": gain,
    "metric.group": groups,
}
