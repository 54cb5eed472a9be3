"""Golden entries about collaborative fairness: what clients get for what they contribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from equipoise.metrics import (
    alpha_bounded_rate,
    bounded_fairness,
    client_range,
    collaboration_gain,
    collaborative_fairness,
    group_fairness,
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


def alpha_rate(i: Inputs) -> Fields:
    return {"rate": alpha_bounded_rate(i["contribution"], i["reward"], i["alpha"]).value}


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
    found = group_fairness(i["group"], i["y_true"], i["y_pred"])
    rates = {name: [v.value for v in getattr(found, name)] for name in ("tpr", "fpr", "selection_rate", "accuracy")}
    return rates | {
        "demographic_parity_diff": found.demographic_parity.value,
        "equal_opportunity_diff": found.equal_opportunity.value,
        "equalized_odds_max": found.equalised_odds.value,
        "average_odds_diff": found.average_odds.value,
        "worst_group_accuracy": found.worst_accuracy.value,
    }


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "metric.collaborative_fairness": fairness,
    "metric.collaborative_fairness.example": fairness,
    "metric.collaborative_fairness.constant": fairness,
    "metric.bcf": bounds,
    "metric.bcf.example": bounds,
    "metric.bcf.fedrac_rate": alpha_rate,
    "metric.client_max_min": extremes,
    "metric.collaboration_gain": gain,
    "metric.group": groups,
}
