"""Adapters of the golden entries about metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.metrics import classification, performance, spread
from equipoise.metrics.performance import last_rounds_together, moments

Inputs = dict[str, Any]
Fields = dict[str, Any]


def avg_std_per_round(i: Inputs) -> Fields:
    rows = performance.last_rounds_of(i["domain_acc"], 5)
    reduced = {"avg": performance.mean, "std": performance.std}
    return {name: performance.mean([reduce(row).value for row in rows]).value for name, reduce in reduced.items()}


def avg_std(i: Inputs) -> Fields:
    found = performance.last_rounds(i["domain_acc"])
    return {
        "per_domain": found.tolist(),
        "avg": performance.mean(found).value,
        "std": performance.std(found).value,
    }


def fedism_table(i: Inputs) -> Fields:
    tables = [np.stack(run, axis=1) for run in zip(i["clean"], i["corrupted"], strict=True)]
    rows, counts = last_rounds_together(tables), [i["K"] - i["m"], i["m"]]
    return {
        "clean": moments(rows[:, 0]),
        "corrupted": moments(rows[:, 1]),
        "average": moments([performance.mean(row).value for row in rows]),
        "worst": moments([performance.worst(row).value for row in rows]),
        "client_std": moments([performance.client_std(row, counts).value for row in rows]),
    }


def acc_auc(i: Inputs) -> Fields:
    found = classification(i["prob"], i["y"])
    return {
        "acc": found["accuracy"],
        "bacc": found["balanced"],
        "auc_ovo_macro": found["auc"],
        "auc_ovr_weighted": found["auc_ovr"],
    }


def uniformity(i: Inputs) -> Fields:
    units = {"std": 100, "worst10": 100, "best10": 100, "gap": 100}  # ours are percent, the entry's fractions
    names = {"variance": "variance_pp2", "angle": "angle_deg", "kl": "kl_uniform"}
    return {names.get(k, k): found.value / units.get(k, 1) for k, found in spread(i["acc"]).items()}


ADAPTERS = {
    "metric.fedheal.avg_std": avg_std,
    "metric.fedheal.avg_std.per_round": avg_std_per_round,
    "metric.fedism.table": fedism_table,
    "metric.fedism.acc_auc": acc_auc,
    "metric.uniformity": uniformity,
}
