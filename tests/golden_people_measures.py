"""Adapters of the golden entries about rates of groups of people, their gaps, and intervals of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.metrics.calibration import calibration_of_sums
from equipoise.metrics.groups import Counts, Gap, Parity, parity, rates_of
from equipoise.metrics.intervals import newcombe, wilson
from equipoise.metrics.performance import Value
from equipoise.records.treatment import errors
from helpers import rate_gaps

Inputs = dict[str, Any]
Fields = dict[str, Any]


def counts(n: Any, pos: Any) -> dict[str, Counts]:
    """By the code of a group its counts, of samples and those predicted 1 by class and group [2, A]."""
    n, pos = np.asarray(n), np.asarray(pos)
    return {
        str(a): {
            "true": n[:, a].tolist(),
            "right": [int(n[0, a] - pos[0, a]), int(pos[1, a])],
            "chosen": [int((n - pos)[:, a].sum()), int(pos[:, a].sum())],
        }
        for a in range(n.shape[1])
    }


def shown(value: Value) -> float | None:
    return value.value if value.defined else None


def everywhere(i: Inputs, least: int = 1) -> Parity:
    return parity(counts(np.sum(i["n"], 0), np.sum(i["pos"], 0)), least=least)


def at_sites(i: Inputs) -> list[Parity]:
    return [parity(counts(n, pos)) for n, pos in zip(i["n"], i["pos"], strict=True)]


def rate(fairness: Parity, key: str) -> list[float | None]:
    return [shown(rates.of(key, 1)) for rates in fairness.rates.values()]


def both(gap: Gap) -> Fields:
    return {"difference": shown(gap.difference), "ratio": shown(gap.ratio)}


def demographic_parity(i: Inputs) -> Fields:
    return {
        "rate": rate(everywhere(i), "selection_rate"),
        **both(everywhere(i).gap("selection_rate")),
        "site_rate": [rate(site, "selection_rate") for site in at_sites(i)],
        "site_difference": [shown(site.demographic_parity) for site in at_sites(i)],
    }


def equal_opportunity(i: Inputs) -> Fields:
    return {
        "rate": rate(everywhere(i), "tpr"),
        **both(everywhere(i).gap("tpr")),
        "site_difference": [shown(site.equal_opportunity) for site in at_sites(i)],
    }


def equalised_odds(i: Inputs) -> Fields:
    fairness = everywhere(i)
    gaps = [fairness.gap(key) for key in ("tpr", "fpr")]
    return {
        "tpr_difference": gaps[0].difference.value,
        "fpr_difference": gaps[1].difference.value,
        "worst_case": shown(fairness.equalised_odds),
        "mean": sum(gap.difference.value for gap in gaps) / 2,
        "ratio": min(gap.ratio.value for gap in gaps),
    }


def accuracy_parity(i: Inputs) -> Fields:
    fairness = everywhere(i)
    gap = fairness.gap("accuracy")
    n, pos = np.sum(i["n"], (0, 2)), np.sum(i["pos"], (0, 2))
    return {
        "rate": rate(fairness, "accuracy"),
        "overall": rates_of(counts(n[:, None], pos[:, None])["0"]).accuracy.value,
        "difference": shown(fairness.accuracy),
        "worst": fairness.rates[gap.lowest].accuracy.value,
        "worst_group": int(gap.lowest),
        "to_overall": shown(gap.to_overall),
    }


def predictive_parity(i: Inputs) -> Fields:
    fairness = everywhere(i)
    return {
        "ppv": rate(fairness, "ppv"),
        "npv": rate(fairness, "npv"),
        "ppv_difference": shown(fairness.predictive_parity),
        "npv_difference": shown(fairness.gap("npv").difference),
    }


def to_overall(i: Inputs) -> Fields:
    fairness = everywhere(i)
    return {"dp": shown(fairness.gap("selection_rate").to_overall), "eo": shown(fairness.gap("tpr").to_overall)}


def undefined(i: Inputs) -> Fields:
    every, large = everywhere(i), everywhere(i, i["least"])
    return {
        "tpr": rate(every, "tpr"),
        "tpr_difference": shown(large.equal_opportunity),
        "selection_difference": shown(large.demographic_parity),
        "too_small_tpr": [value is None for value in rate(large, "tpr")],
        "too_small_selection": [value is None for value in rate(large, "selection_rate")],
    }


def intersection(i: Inputs) -> Fields:
    n, pos = np.sum(i["n"], 0), np.sum(i["pos"], 0)

    def gap(n: Any, pos: Any) -> float | None:
        return shown(parity(counts(n, pos)).demographic_parity)

    return {
        "first": gap(n.sum(2), pos.sum(2)),
        "second": gap(n.sum(1), pos.sum(1)),
        "intersection": gap(n.reshape(2, -1), pos.reshape(2, -1)),
    }


def calibration(i: Inputs) -> Fields:
    sums = np.stack([np.sum(i[key], 0) for key in ("n", "sum_score", "sum_y")], 1)  # [A, 3, B]
    of_groups = [calibration_of_sums(each) for each in sums]
    ece, large = ([values[k].value for values in of_groups] for k in (0, 1))
    return {
        "ece": ece,
        "large": large,
        "ece_difference": max(ece) - min(ece),
        "large_difference": max(large) - min(large),
    }


def regression(i: Inputs) -> Fields:
    y, p, a = (np.array(i[key]) for key in ("y", "p", "a"))
    rows = {}
    for code in np.unique(a).tolist():
        e = (p - y)[a == code]
        sums = {"n": len(e), "squares": (e**2).sum(), "absolute": abs(e).sum(), "error": e.sum()}
        rows[str(code)] = {key: np.asarray(value) for key, value in {**sums, "target": y[a == code].sum()}.items()}
    numbers = errors([rows])
    assert numbers is not None
    ours = {"mae": "mae", "rmse": "rmse", "mean_prediction": "prediction", "bias": "error"}
    fields: Fields = {
        name: [group[key] for group in numbers["groups"].values()]  # type: ignore[literal-required]
        for name, key in ours.items()
    }
    gaps = {f"{name}_difference": numbers[f"{key}_gap"] for name, key in ours.items()}  # type: ignore[literal-required]
    return {**fields, **gaps, "worst_mae": max(fields["mae"])}


def of_wilson(i: Inputs) -> Fields:
    ends = [wilson(x / n, n) for x, n in zip(i["x"], i["n"], strict=True)]
    return {"low": [end.low for end in ends], "high": [end.high for end in ends]}


def of_newcombe(i: Inputs) -> Fields:
    pairs = [*zip(i["x1"], i["n1"], i["x2"], i["n2"], strict=True)]
    ends = [newcombe(x / m, wilson(x / m, m), y / n, wilson(y / n, n)) for x, m, y, n in pairs]
    difference = [x / m - y / n for x, m, y, n in pairs]
    return {"difference": difference, "low": [end.low for end in ends], "high": [end.high for end in ends]}


def of_gap(i: Inputs) -> Fields:
    gap = everywhere(i).gap("tpr")
    ends = rate_gaps(counts(np.sum(i["n"], 0), np.sum(i["pos"], 0)))["equal_opportunity"]
    pair = [int(gap.highest), int(gap.lowest)]
    return {"pair": pair, "difference": shown(gap.difference), "low": ends.low, "high": ends.high}


ADAPTERS = {
    "people.measure.demographic_parity": demographic_parity,
    "people.measure.equal_opportunity": equal_opportunity,
    "people.measure.equalised_odds": equalised_odds,
    "people.measure.accuracy_parity": accuracy_parity,
    "people.measure.predictive_parity": predictive_parity,
    "people.measure.to_overall": to_overall,
    "people.measure.undefined": undefined,
    "people.measure.intersection": intersection,
    "people.measure.calibration": calibration,
    "people.measure.regression": regression,
    "people.interval.wilson": of_wilson,
    "people.interval.newcombe": of_newcombe,
    "people.interval.gap": of_gap,
}
