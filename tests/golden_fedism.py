"""How the golden entries of SAM, GSAM, logit adjustment and FedISM are asked of the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Out, State
from equipoise.core.solver import SGD, Adam, Solver
from equipoise.core.task import CLASSIFICATION
from equipoise.engines.job import Answer, Job
from equipoise.federation.method import parse
from equipoise.federation.round import one_round
from equipoise.methods.gsam import orthogonal
from equipoise.methods.logit_adjust import LogitAdjust
from equipoise.methods.saga import SAGA
from equipoise.methods.sam import perturbation, radius
from equipoise.metrics import overhead, traffic
from helpers import Server, oracle_of, tensor, visit_of, watched

Inputs = dict[str, Any]
Fields = dict[str, Any]


def tanh_network() -> nn.Module:
    """Logits W2 tanh(W1 x + b1) + b2 with two inputs, hidden units and classes; parameters W1, b1, W2, b2."""
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()


def asked(i: Inputs, solver: Solver, k: int | None = None) -> tuple[Tensor, Oracle]:
    """The parameters [12] of an entry and the oracle of its client, or of client ``k``."""
    X, y = (i["X"], i["y"]) if k is None else (i["X"][k], i["y"][k])
    return tensor(i["params"]), oracle_of(tanh_network(), tensor(X), torch.tensor(y), solver)


def one_step(method: str, i: Inputs, solver: Solver) -> Tensor:
    """The parameters after one full-batch step of local training."""
    theta, oracle = asked(i, solver)
    rules = parse(method).rules
    empty: list[State] = [{} for _ in rules]
    trained, _, _, _ = visit_client(rules, oracle, 0, 1, theta, empty, empty)
    return trained


def sam_step(i: Inputs) -> Fields:
    theta, oracle = asked(i, SGD(i["lr"]))
    g = oracle.gradient(theta)
    e = perturbation(g, i["rho"])
    return {
        "loss": oracle.loss(theta),
        "grad": g,
        "perturbation": e,
        "perturbed_loss": oracle.loss(theta + e),
        "perturbed_grad": oracle.gradient(theta + e),
        "params_new": one_step(f"sam(rho={i['rho']})", i, SGD(i["lr"])),
    }


def sam_released(i: Inputs) -> Fields:
    return {"params_new": one_step(f"sam:ffl4mia(rho={i['rho']})", i, SGD(i["lr"]))}


def gsam(i: Inputs) -> Fields:
    theta, oracle = asked(i, SGD(1.0))
    g = oracle.gradient(theta)
    g_p = oracle.gradient(theta + perturbation(g, i["rho"]))
    method = f"gsam(rho={i['rho']}, alpha={i['alpha']})"
    adam = i["adam"]
    return {
        "grad": g,
        "perturbed_grad": g_p,
        "grad_orthogonal": orthogonal(g, g_p),
        "direction": theta - one_step(method, i, SGD(1.0)),
        "params_after_sgd": one_step(method, i, SGD(i["lr_sgd"])),
        "params_after_first_adam_step": one_step(
            method, i, Adam(adam["lr"], tuple(adam["betas"]), adam["eps"], adam["weight_decay"])
        ),
    }


def measured(i: Inputs, variant: str, rho: float, k: int | None = None) -> Tensor:
    """What the client reports."""
    theta, oracle = asked(i, SGD(1.0), k)
    rule = SAGA(variant=variant, rho=rho, tau=0.0)
    return rule.finish(theta, visit_of(oracle, theta))[0]["value"]


def sharpness(i: Inputs) -> Fields:
    theta, oracle = asked(i, SGD(1.0))
    values = {v: torch.stack([measured(i, v, rho) for rho in i["rho"]]) for v in "SL"}
    return {"loss": oracle.loss(theta), **values}


def logit_adjusted(i: Inputs) -> Fields:
    z, y = tensor(i["logits"]).requires_grad_(), torch.tensor(i["y"])
    labels = torch.arange(len(i["class_counts"])).repeat_interleave(torch.tensor(i["class_counts"]))
    net = nn.Linear(2, len(i["class_counts"])).double()
    visit = visit_of(oracle_of(net, torch.zeros(len(labels), 2).double(), labels, SGD(1.0)), torch.zeros(0).double())
    out = Out(z, z, y, None, lambda vector: vector)
    loss = CLASSIFICATION.losses(z, y).mean() + LogitAdjust(i["tau"]).loss(out, visit)
    (g,) = torch.autograd.grad(loss, z)
    return {"loss": loss.detach(), "grad_logits": g}


def schedule(i: Inputs) -> Fields:
    theta = torch.zeros(12, dtype=torch.float64)
    oracle = oracle_of(tanh_network(), torch.zeros(1, 2).double(), torch.zeros(1).long(), SGD(1.0))

    def at(case: Inputs, t: int) -> float:
        return radius(case["rho_max"], case["tau"], visit_of(oracle, theta, t=t - 1, rounds=case["T"]))

    return {"rho": [[at(case, t) for t in case["t"]] for case in i["cases"]]}


def saga_rounds(variant: str, offset: float = 0.0) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        before, after = tensor(i["loss"]), tensor(i["perturbed_loss"])
        value = after - before if variant == "S" else after
        rule = SAGA(variant=variant, q=i["q"], beta=i["beta"], floor=i["floor"], offset=offset)
        server = Server(rule, torch.zeros(1).double(), [1.0] * value.shape[1])
        cohorts = [server.round(torch.zeros(len(v), 1).double(), reports=[{"value": v}]) for v in value]
        return {
            "values": value.clamp(min=i["floor"]),
            "S": value,
            "w_tilde": torch.stack([rule._fresh(v) for v in value]),
            "w": torch.stack([cohort.weights for cohort in cohorts]),
        }

    return adapter


def saga_edge(i: Inputs) -> Fields:
    server = Server(SAGA(q=i["q"], beta=i["beta"], floor=i["floor"]), torch.zeros(1).double(), [1.0] * len(i["S"][0]))
    rounds = [server.round(torch.zeros(len(v), 1).double(), reports=[{"value": tensor(v)}]) for v in i["S"]]
    return {"w": torch.stack([cohort.weights for cohort in rounds])}


def saga_partial(i: Inputs) -> Fields:
    rule = SAGA(q=i["q"], beta=i["beta"])
    server = Server(rule, torch.zeros(1).double(), [1.0] * (1 + max(map(max, i["participants"]))))
    rounds = []
    for ids, values in zip(i["participants"], i["S"], strict=True):
        previous, v = server.state[0]["w"][ids], tensor(values)
        cohort = server.round(torch.zeros(len(v), 1).double(), ids, [{"value": v}])
        rounds.append({"w_tilde": rule._fresh(v), "previous": previous, "w": cohort.weights})
    return {"rounds": rounds}


def fedism_first(i: Inputs) -> Fields:
    clients = range(len(i["X"]))
    theta = tensor(i["params"])
    fed = federated(f"fedism(rho={i['rho']}, q={i['q']})", i, SGD(0.1))
    fed.fit(1, progress=False)
    return {
        "loss": torch.stack([asked(i, SGD(1.0), k)[1].loss(theta) for k in clients]),
        "perturbed_loss": torch.stack([measured(i, "L", i["rho"], k) for k in clients]),
        "S": torch.stack([measured(i, "S", i["rho"], k) for k in clients]),
        "w": fed.records[0]["weights"],
    }


def federated(
    method: str, i: Inputs, solver: Solver, engine: Callable[[Job], Iterator[Answer]] | str = "sequential"
) -> eq.Federation:
    """The entry's clients, each taking one full-batch step a round from the entry's parameters."""
    net = tanh_network()
    nn.utils.vector_to_parameters(tensor(i["params"]), net.parameters())
    data = [(tensor(x), torch.tensor(y)) for x, y in zip(i["X"], i["y"], strict=True)]
    return eq.Federation(net, data, method, solver, epochs=1, batch_size=64, engine=engine)


def two_rounds(method: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        solver = SGD(i["lr"]) if "lr" in i else Adam(3e-4, weight_decay=5e-4)
        settings = {"rho": i["rho_max"], "tau": i["tau"], "q": i["q"], "beta": i["beta"], "alpha": i["alpha"]}
        chosen = parse(f"logit-adjust+{method}", {f"fedism+.{k}": v for k, v in settings.items()})
        seen: list[tuple[Job, Answer]] = []
        fed = federated(chosen, i, solver, watched(seen))
        now, rounds = fed.progress, []
        for t in range(2):
            seen.clear()
            now, record = one_round(fed.trial, now, i["T"])
            (saga,) = (r for r in chosen.rules if isinstance(r, SAGA))
            value = torch.cat([answer.reports[chosen.rules.index(saga)]["value"] for _, answer in seen])
            visit = visit_of(asked(i, SGD(1.0), 0)[1], now.vector, t=t, rounds=i["T"])
            rounds.append(
                {
                    "rho": radius(saga.rho, saga.tau, visit),
                    "value": value,
                    "w_tilde": saga._fresh(value),
                    "w": record["weights"],
                    "local_params": torch.cat([answer.trained for _, answer in seen]),
                    "params_new": now.vector,
                }
            )
        return {"rounds": rounds}

    return adapter


def table_v(i: Inputs) -> Fields:
    """Bytes of real rounds of a small float32 network, whose model is scaled to the entry's number of parameters."""
    data = [(torch.randn(5, 4, generator=torch.Generator().manual_seed(k)), torch.arange(5) % 2) for k in range(3)]

    def bytes_of(method: str) -> tuple[int, float]:
        fed = eq.Federation(nn.Linear(4, 2), data, method, engine="sequential")
        fed.fit(2, progress=False)
        return fed.model.size, traffic(fed.records).total

    (G, plain), (_, fair) = bytes_of("fedavg:uniform"), bytes_of("fedism+")
    one_way = plain / 2 / G * i["resnet18_parameters"]
    whole = 2 * one_way + (fair - plain)
    return {
        "one_way_bytes": one_way,
        "one_way_mib": one_way / 2**20,
        "fedavg_bytes": 2 * one_way,
        "fedism_plus_bytes": whole,
        "ratio": overhead(whole, 2 * one_way),
    }


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "sam_step": sam_step,
    "sam_step_ffl4mia_unused": sam_released,
    "gsam_direction": gsam,
    "sharpness_and_perturbed_loss": sharpness,
    "logit_adjusted_ce": logit_adjusted,
    "fedism_plus_rho_schedule": schedule,
    "saga_S_3rounds": saga_rounds("S"),
    "saga_L_3rounds": saga_rounds("L"),
    "saga_S_released_q2.0": saga_rounds("S", offset=1e-10),
    "saga_S_released_q0.5": saga_rounds("S", offset=1e-10),
    "fedism_weights_3rounds": saga_rounds("S"),
    "saga_edge_no_positive_sharpness": saga_edge,
    "saga_partial_participation": saga_partial,
    "fedism_first_round_weights": fedism_first,
    "fedism_plus_S_two_rounds_sgd": two_rounds("fedism+"),
    "fedism_plus_L_two_rounds_sgd": two_rounds("fedism+:L"),
    "fedism_plus_S_two_rounds_released": two_rounds("fedism+:released"),
    "table_v_overhead": table_v,
}
