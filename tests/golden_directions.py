"""Golden entries of the rules that combine the updates to one direction: FedMGDA+, FedMDFG, FedLF, FedPW."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from equipoise.core.maths import gram, min_on_simplex
from equipoise.methods.fedlf import FedLF, lag
from equipoise.methods.fedmdfg import FedMDFG, is_forced, pull
from equipoise.methods.fedmgda import FedMGDA
from equipoise.methods.fedpw import FedPW, dropped
from helpers import Server, tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]


def fedmgda(i: Inputs) -> Fields:
    updates = tensor(i["updates"])
    server = Server(FedMGDA(eps=i["eps"], eta=i["eta"], prior=i["centre"]), tensor(i["theta"]), i["sizes"])
    c = server.round(updates).coefficients
    return {"lambda": c * updates.norm(dim=1) / i["eta"], "coefficients": c, "theta_next": server.theta}


def fedmdfg(i: Inputs) -> Fields:
    """Clients absent now are those of the round before, with scale 1; forced where the first alone is above the loss expected of it."""
    g, loss = tensor(i["grads"]), tensor(i["losses"])
    absent = tensor(i["absent"]) if "absent" in i else g[:0]
    M, A, lr = len(g), len(absent), i.get("lr", 1.0)
    theta = tensor(i.get("theta", [0.0] * g.shape[1]))
    server = Server(rule := FedMDFG(theta=i["theta_deg"]), theta, [1.0] * (M + A))
    past = torch.cat([loss * tensor([0.5] + [2.0] * (M - 1)) if i.get("forced") else loss, loss.new_zeros(A)])
    factor, turns = torch.cat([g.new_zeros(M), g.new_ones(A)]), torch.zeros(M + A, dtype=torch.int64)
    server.state = [{"expected": past, "visits": torch.ones_like(past), "factor": factor, "round": turns}]
    server.state[0]["last"], server.t = -torch.cat([g, absent]), 1
    step = server.round(-g, list(range(M)), [{"loss": loss}]).step()
    live, scales = server.state[0]["factor"][:M] > 0, server.state[0]["factor"]
    Q = rule._rows(loss, scales, i.get("forced", False))
    products = Q @ gram(torch.cat([g, absent])) @ Q.T
    h = pull(loss[live])
    return {
        "angle": math.degrees(math.asin(h.norm())),
        "h": h / h.norm(),
        "active": len(Q) > int(live.sum()) + A,
        "lambda": min_on_simplex(products, products[0]),
        "direction": -step,
        "theta_next": theta + lr * step,
        "live": live,
    }


def fedmdfg_forced(i: Inputs) -> Fields:
    losses = tensor(i["losses"])
    server, rounds = Server(FedMDFG(), losses.new_zeros(2), torch.ones_like(losses[0])), []
    for loss in losses:
        server.round(
            torch.eye(2, dtype=torch.float64)[torch.zeros(len(loss), dtype=torch.long)], reports=[{"loss": loss}]
        )
        expected = server.state[0]["expected"]
        rounds.append({"expected": expected, "forced": is_forced(loss, expected, len(loss))})
    return {"rounds": rounds}


def fedmdfg_rounds(i: Inputs) -> Fields:
    rule, rounds = FedMDFG(theta=i["theta_deg"]), []
    server = Server(rule, tensor(i["theta"]), [1.0] * i["N"])
    for given in i["rounds"]:
        ids, loss, updates = given["ids"], tensor(given["losses"]), tensor(given["updates"])
        absent = rule._absent(server.state[0], server.cohort(updates, ids))
        server.round(updates, ids, [{"loss": loss}])
        after = server.state[0]
        forced = is_forced(loss, after["expected"][ids], i["N"])
        active = len(rule._rows(loss, after["factor"][ids], forced)) > len(ids)
        rounds.append({"absent": absent, "forced": forced, "active": active, "theta": server.theta})
    return {"rounds": rounds}


def fedlf(i: Inputs) -> Fields:
    """Clients absent now are those of the round before."""
    g, loss = tensor(i["grads"]), tensor(i["losses"])
    absent = tensor(i["absent"]) if "absent" in i else g[:0]
    M, A, lr = len(g), len(absent), i.get("lr", 1.0)
    theta = tensor(i.get("theta", [0.0] * g.shape[1]))
    server = Server(rule := FedLF(), theta, [1.0] * (M + A), i["layout"])
    server.state = [{"last": -torch.cat([g, absent]), "round": torch.zeros(M + A, dtype=torch.int64)}]
    server.t = 1
    step = server.round(-g, list(range(M)), [{"loss": loss}]).step()
    lambdas = []
    for part in torch.cat([g, absent]).split(i["layout"], 1):
        Q = rule._rows(K := gram(part), pull(loss))
        lambdas.append(min_on_simplex(Q @ K @ Q.T, K[0]))
    h = pull(loss) / loss.norm()
    return {"h": h, "lambda": lambdas, "direction": -step, "theta_next": theta + lr * step}


def fedlf_absent(i: Inputs) -> Fields:
    last, present = torch.tensor(i["last"]), i["present"]
    server = Server(FedLF(), tensor([0.0]), torch.ones(len(last)))
    server.t = i["now"]
    cohort = server.cohort(torch.zeros(len(present), 1), present)
    return {"tau": lag(last, len(present)), "absent": FedLF()._absent({"round": last}, cohort)}


def fedlf_rounds(i: Inputs) -> Fields:
    rule, rounds = FedLF(), []
    server = Server(rule, tensor(i["theta"]), [1.0] * i["N"], i["layout"])
    for given in i["rounds"]:
        ids, updates = given["ids"], tensor(given["updates"])
        absent = rule._absent(server.state[0], server.cohort(updates, ids))
        server.round(updates, ids, [{"loss": tensor(given["losses"])}])
        rounds.append({"absent": absent, "theta": server.theta})
    return {"rounds": rounds}


def fedpw_rounds(i: Inputs) -> Fields:
    """Of all clients, unless an entry names those of a round; the last ratio follows from the weights and both portions."""
    first = i["rounds"][0]
    P, N = len(first["updates"][0]), i.get("N", len(first["losses"]))
    server = Server(
        FedPW(beta=i["beta"], rate=i.get("rate", 0.3)), tensor(i.get("theta", [0.0] * P)), [1.0] * N, i.get("layout")
    )
    rounds = []
    for given in i["rounds"]:
        ids = given.get("ids", list(range(N)))
        cohort = server.round(tensor(given["updates"]), ids, [{"loss": tensor(given["losses"])}])
        loss, dot = server.state[0]["p"][ids].T
        ratio = (cohort.coefficients - dot) @ (loss - dot) / (loss - dot).square().sum()
        shown = {"p_loss": loss, "p_dot": dot, "loss_ratio": float(ratio), "theta": server.theta}
        rounds.append({**shown, "weights": cohort.coefficients})
    return {"rounds": rounds}


def fedpw_drop_rate(i: Inputs) -> Fields:
    return {"drop": FedPW(rate=i["rate"])._share(tensor(i["losses"]))}


def fedpw_step(i: Inputs) -> Fields:
    parts = tensor(i["updates"]).split(i["layout"], 1)
    steps, factors = zip(*(dropped(u, tensor(i["weights"]), tensor(i["drop"]), i["rate"]) for u in parts), strict=True)
    step = torch.cat(steps)
    return {"step": step, "factors": factors, "theta_next": tensor(i.get("theta", [0.0] * len(step))) - step}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    **{f"fedmgda.lambda.{name}": fedmgda for name in ("free", "box", "box_samples", "eps0")},
    **{f"fedmgda.{name}": fedmgda for name in ("zero_update", "opposed", "parallel")},
    **{f"fedmdfg.direction.{name}": fedmdfg for name in ("unfair", "fair", "forced", "absent", "dead")},
    "fedmdfg.forced": fedmdfg_forced,
    "fedmdfg.rounds.partial": fedmdfg_rounds,
    **{f"fedlf.direction{case}": fedlf for case in ("", ".absent", ".equal")},
    "fedlf.absent_set": fedlf_absent,
    "fedlf.rounds.partial": fedlf_rounds,
    "fedpw.weights": fedpw_rounds,
    "fedpw.rounds.partial": fedpw_rounds,
    "fedpw.drop_rate": fedpw_drop_rate,
    "fedpw.drop_rate.cap": fedpw_drop_rate,
    "fedpw.step": fedpw_step,
    "fedpw.step.no_drop": fedpw_step,
}
