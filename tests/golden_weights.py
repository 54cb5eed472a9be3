"""Golden entries of the rules that weigh clients: q-FFL, AFL, FairFed, FedCE, FedGA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.core.maths import gram, simplex
from equipoise.core.rule import Rule
from equipoise.core.solver import SGD
from equipoise.federation.method import parse
from equipoise.methods.afl import AFL
from equipoise.methods.fairfed import FairFed, gaps
from equipoise.methods.fedce import cosines, without
from equipoise.methods.fedga import FedGA
from equipoise.methods.qffl import QFFL
from helpers import Server, tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]


def qfedavg(i: Inputs) -> Fields:
    W, losses = tensor(i["params"]), tensor(i["loss"])
    updates = tensor(i["client_params"]) - W
    server = Server(QFFL(q=i["q"], form="full"), W, torch.ones_like(losses), solver=SGD(i["lr"]))
    _, h = server.rules[0]._terms(losses, updates, server.state[0]["L"], torch.ones_like(losses))
    server.round(updates, reports=[{"loss": losses}])
    return {"h": h, "params_new": server.theta}


def weighed_by_loss(method: str) -> Callable[[Inputs], Fields]:
    """The new model does not depend on the one handed out, for which the entry has no value."""

    def adapter(i: Inputs) -> Fields:
        models, losses = tensor(i["client_params"]), tensor(i["loss"])
        W = models[0] + 1
        server = Server(parse(method, {"qffl.q": i["q"]} if "q" in i else None), W, [5.0, 1.0, 2.0, 3.0])
        cohort = server.round(models - W, reports=[{"loss": losses}])
        return {"w": cohort.weights, "params_new": server.theta}

    return adapter


def afl_rounds(i: Inputs) -> Fields:
    losses = tensor(i["loss"])
    _, K, G = tensor(i["grads"]).shape
    server = Server(AFL(gamma=i["lr_lambda"], averaged=True), torch.zeros(G, dtype=torch.float64), [1.0] * K)
    lambdas, params, means = [server.state[0]["lam"]], [], []
    for g, loss in zip(tensor(i["grads"]), losses, strict=True):
        server.round(-i["lr"] * g, reports=[{"loss": loss}])
        lambdas.append(server.state[0]["lam"])
        params.append(server.theta)
        means.append(server.rules[0].publish(server.theta, server.state[0]))
    return {"lambdas": lambdas, "params": params, "averaged_params": means}


def rounds_of(rule: Rule, n: list[float], accuracy: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What the server remembers and what the clients count, after each round."""
    server = Server(rule, torch.zeros(1, dtype=torch.float64), n)
    bars, used = [], []
    for values in accuracy:
        cohort = server.round(torch.zeros(len(n), 1, dtype=torch.float64), reports=[{"accuracy": values}])
        bars.append(server.state[0]["bar"])
        used.append(cohort.weights if cohort.coefficients is None else cohort.coefficients)
    return bars, used


def fairfed(i: Inputs) -> Fields:
    accuracy, p = tensor(i["accuracy"]), simplex(tensor(i["n"]))
    bars, used = rounds_of(FairFed(metric="accuracy", beta=i["beta"], clip=i["clip"]), i["n"], accuracy)
    delta = [gaps(values, p) for values in accuracy]
    return {"global_accuracy": accuracy @ p, "delta": delta, "omega_bar": bars, "omega": used}


def fairfed_metric(i: Inputs) -> Fields:
    rule, p = FairFed(metric="accuracy", beta=i["beta"], clip=i["clip"]), simplex(tensor(i["n"]))
    bar, shown = p, []
    for local, overall, accuracy in zip(i["F_local"], i["F_global"], tensor(i["accuracy"]), strict=True):
        delta = gaps(accuracy, p, tensor([float("nan") if F is None else F for F in local]), overall)
        bar = rule._update(bar, delta)
        shown.append((delta, bar, bar / bar.sum()))
    return dict(zip(("delta", "omega_bar", "omega"), map(list, zip(*shown, strict=True)), strict=True))


def fairfed_released(i: Inputs) -> Fields:
    rule = parse("fairfed:ffl4mia", {"fairfed.beta": i["beta"]}).rules[0]
    return {"w": rounds_of(rule, i["n"], tensor(i["accuracy"]))[1]}


def fedce(preset: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        updates, metric = tensor(i["updates"]), tensor(i["minus_metric"])
        server = Server(parse(preset, {"fedce.mode": i["mode"]}), tensor(i["params0"]), [1.0] * updates.shape[1])
        rule, shown, before = server.rules[0], [], torch.zeros(updates.shape[1], dtype=torch.float64)
        for t, (u, M) in enumerate(zip(updates, metric, strict=True)):
            prior = torch.full_like(M, 1 / len(M)) if rule.prior == "uniform" else server.state[0]["c"]
            report = {"metric": M, "measured": torch.full_like(M, float(t > 0))}
            cohort = server.round(u, reports=[report])
            of_round = server.state[0]["total"] - before
            before = server.state[0]["total"]
            shown.append((cosines(gram(u), prior), of_round, cohort.weights, server.theta))
        names = ("cosine", "round_coefficients", "coefficients", "global_params")
        return dict(zip(names, map(list, zip(*shown, strict=True)), strict=True))

    return adapter


def fedce_minus(i: Inputs) -> Fields:
    models, c = tensor(i["client_params"]), tensor(i["coefficients"])
    theta = c @ models
    return {"global_params": theta, "minus_params": without(theta, models, c[:, None])}


def fedga_weights(rule: FedGA, gaps: Tensor, R: int) -> list[Tensor]:
    """The weights used in rounds 0, 1, ...; the gaps of a round are reported in the next one."""
    _, K = gaps.shape
    server = Server(rule, torch.zeros(1, dtype=torch.float64), [1.0] * K)
    state, used = server.state[0], []
    for t, gap in enumerate([torch.zeros_like(gaps[0]), *gaps]):
        cohort = replace(server.cohort(torch.zeros(K, 1, dtype=torch.float64)), t=t, rounds=R)
        report = {"gap": gap, "seen": torch.full_like(gap, float(t > 0))}
        state, cohort = rule.aggregate(state, replace(cohort, reports=report))
        used.append(cohort.weights)
    return used


def fedga(i: Inputs) -> Fields:
    used = fedga_weights(FedGA(d=i["d"], relative=False), tensor(i["gaps"]), i["R"])
    assert used[0].tolist() == i["start"]
    return {"w": used[1:]}


def fedga_released(i: Inputs) -> Fields:
    rule = parse("fedga:released", {"fedga.d": i["d"]}).rules[0]
    return {"w": fedga_weights(rule, tensor(i["global_loss"]) - tensor(i["local_loss"]), i["R"])}


def fedga_official(preset: str, sign: int) -> Callable[[Inputs], Fields]:
    """The client turns the sign of an accuracy's gap."""

    def adapter(i: Inputs) -> Fields:
        rule = parse(preset, {"fedga.d": i["step_size"]}).rules[0]
        return {"w": fedga_weights(rule, sign * tensor(i["gaps"]), i["comm"])[1:]}

    return adapter


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "qfedavg_paper_q0": qfedavg,
    "qfedavg_paper_q1": qfedavg,
    "qfedavg_paper_q2": qfedavg,
    "qfedavg_released_q0.5": weighed_by_loss("qffl:ffl4mia"),
    "qfedavg_released_q2": weighed_by_loss("qffl:ffl4mia"),
    "afl_released_worst_client": weighed_by_loss("afl:worst-client"),
    "afl_paper_3rounds": afl_rounds,
    "fairfed_paper_accgap": fairfed,
    "fairfed_paper_accgap_clip": fairfed,
    "fairfed_paper_metric": fairfed_metric,
    "fairfed_released": fairfed_released,
    "fedce_released_times": fedce("fedce:ffl4mia"),
    "fedce_released_plus": fedce("fedce:ffl4mia"),
    "fedce_nvflare2026_plus": fedce("fedce:nvflare2026"),
    "fedce_nvflare2023_times": fedce("fedce:nvflare2023"),
    "fedce_minus_model": fedce_minus,
    "fedga_paper_3rounds": fedga,
    "fedga_edge_equal_gaps": fedga,
    "fedga_released": fedga_released,
    "fedga_official_loss": fedga_official("fedga:official", 1),
    "fedga_official_acc": fedga_official("fedga:official-acc", -1),
}
