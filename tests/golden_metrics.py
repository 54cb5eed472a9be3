"""Adapters of the golden entries about metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.metrics import avg_std_worst, classification, performance, pooled, spread

Inputs = dict[str, Any]
Fields = dict[str, Any]


def avg_std_per_round(i: Inputs) -> Fields:
    found = performance.avg_std_worst_per_round(i["domain_acc"])
    return {"avg": found.avg.value, "std": found.std.value}


def avg_std(i: Inputs) -> Fields:
    found = avg_std_worst(i["domain_acc"])
    return {
        "per_domain": performance.last_rounds(i["domain_acc"]).tolist(),
        "avg": found.avg.value,
        "std": found.std.value,
    }


def fedism_table(i: Inputs) -> Fields:
    tables = [np.stack(run, axis=1) for run in zip(i["clean"], i["corrupted"], strict=True)]
    found = pooled(tables, counts=[i["K"] - i["m"], i["m"]])
    clean, corrupted = found.groups
    return {
        "clean": clean,
        "corrupted": corrupted,
        "average": found.average,
        "worst": found.worst,
        "client_std": found.client_std,
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
