"""Golden entries of the rules that combine the updates to one direction: FedMGDA+."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from equipoise.methods.fedmgda import FedMGDA
from helpers import Server, tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]


def fedmgda(i: Inputs) -> Fields:
    updates = tensor(i["updates"])
    server = Server(FedMGDA(eps=i["eps"], eta=i["eta"], prior=i["centre"]), tensor(i["theta"]), i["sizes"])
    c = server.round(updates).coefficients
    return {"lambda": c * updates.norm(dim=1) / i["eta"], "coefficients": c, "theta_next": server.theta}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    **{f"fedmgda.lambda.{name}": fedmgda for name in ("free", "box", "box_samples", "eps0")},
    **{f"fedmgda.{name}": fedmgda for name in ("zero_update", "opposed", "parallel")},
}
