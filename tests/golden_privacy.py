"""Golden entries of clip-and-noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from equipoise.core import draws
from equipoise.core.solver import SGD
from equipoise.methods.dp import DP
from helpers import Quadratic, Server, tensor, visit_of

Inputs = dict[str, Any]
Fields = dict[str, Any]


def normal(i: Inputs) -> Fields:
    key = draws.key(i["seed"], i["t"], i["client"])
    secret = draws.key(i["seed"], i["t"], i["client"], bytes.fromhex(i["secret"]))
    drawn = draws.normal(key, i["purpose"], max(i["positions"]) + 1)
    return {"key": key.hex(), "secret_key": secret.hex(), "normal": drawn[i["positions"]]}


def clipped_and_noised(i: Inputs) -> Fields:
    """Each client sends its update alone; the server averages what was sent."""
    W, rule = tensor(i["theta"]), DP(i["clip"], i["noise"])
    P = len(W)
    oracle = Quadratic(torch.eye(P, dtype=torch.float64), W).oracle(SGD(0.1), 1)
    sent = []
    for m, update in enumerate(tensor(i["updates"])):
        drawn = partial(draws.normal, draws.key(i["seed"], i["t"], m), "DP", P)
        sent.append(rule.upload(update, replace(visit_of(oracle, W, t=i["t"]), normal=drawn)))
    server = Server(rule, W, i["n_samples"])
    server.round(torch.stack(sent))
    return {"sent": torch.stack(sent), "W_next": server.theta}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {"dp.normal": normal, "dp.round": clipped_and_noised}
