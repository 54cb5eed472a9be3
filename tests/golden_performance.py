"""Golden entries of the rules for equal performance that weigh clients or samples by their losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core.client import visit_client
from equipoise.core.maths import simplex
from equipoise.core.rule import Cohort, Out
from equipoise.core.solver import SGD
from equipoise.federation.method import parse
from equipoise.methods.aaggff import CDFS, responses
from equipoise.methods.gifair import group_losses, pulls, ranks
from equipoise.methods.term import TermSample
from helpers import Server, oracle_of, tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]
NO_VISIT: Any = None  # of a rule whose loss does not look at the visit


def weighed(method: str, *settings: str) -> Callable[[Inputs], Fields]:
    """The weights of a round in which clients report losses, and the model after it if the entry has updates."""

    def adapter(i: Inputs) -> Fields:
        losses = tensor(i["losses"])
        ids = i.get("ids", range(len(losses)))
        theta = tensor(i.get("theta", [0.0]))
        updates = tensor(i.get("updates", torch.zeros(len(ids), 1)))
        name = method.split(":")[0]
        rule = parse(method, {f"{name}.{key}": i[key] for key in settings})
        server = Server(rule, theta, i.get("sizes", torch.ones(len(losses))))
        cohort = server.round(updates, list(ids), reports=[{"loss": losses[list(ids)]}])
        return {"weights": cohort.weights, "theta_next": server.theta}

    return adapter


def released_rounds(i: Inputs) -> Fields:
    losses = tensor(i["losses"])
    server = Server(parse("term:released", {"term.t": i["t"]}), tensor([0.0]), torch.ones(losses.shape[1]))
    rounds = []
    for loss in losses:
        cohort = server.round(torch.zeros(len(loss), 1).double(), reports=[{"loss": loss}])
        rounds.append({"estimate": server.state[0]["z"], "coefficients": cohort.coefficients})
    return {"rounds": rounds}


def batch_of(logits: Tensor, y: list[int], ok: list[int] | None = None) -> Out:
    return Out(
        logits, logits, torch.tensor(y), None if ok is None else torch.tensor(ok) > 0, lambda vector: (vector, vector)
    )


def tilted_batch(i: Inputs) -> Fields:
    z = tensor(i["logits"]).requires_grad_()
    out = batch_of(z, i["y"], i.get("ok"))
    loss = out.cross_entropy + TermSample(i["t"]).loss(out, NO_VISIT)
    gradient, sample_weights = torch.autograd.grad(loss, (z, out.losses))
    return {"loss": loss.detach(), "gradient": gradient, "sample_weights": sample_weights}


def utilities(i: Inputs) -> Fields:
    """The batch losses of PropFair: one sample a client, whose loss is given."""
    rule = parse(f"propfair(M={i['M']}, eps={i['eps']}, huber={i['huber']})").rules[0]
    loss = tensor(i["loss"])[:, None].requires_grad_()
    out = batch_of(torch.zeros(len(loss), 1, 1).double(), [[0]] * len(loss))
    vars(out)["losses"] = loss
    value = out.cross_entropy + rule.loss(out, NO_VISIT)
    (slope,) = torch.autograd.grad(value.sum(), loss)
    return {"value": value.detach(), "slope": slope.flatten()}


def propfair_training(i: Inputs) -> Fields:
    """One epoch over all samples in the order of the entry; each batch by itself for its loss and slope."""
    rule, W, trace = parse(f"propfair(M={i['M']}, eps={i['eps']})").rules, tensor(i["W"]), []
    for x, y in zip(tensor(i["X"]), torch.tensor(i["y"]), strict=True):
        net = nn.Linear(x.shape[1], len(W), bias=False, dtype=torch.float64)
        oracle = oracle_of(net, x, y, SGD(i["lr"]))
        mean = oracle.loss(W.flatten())
        slope = utilities({**i, "loss": [float(mean)], "huber": False})["slope"][0]
        trace.append([mean, slope])
        W = visit_client(rule, oracle, 0, 1, W.flatten(), [{}], [{}])[0].view_as(W)
    return {"W_after": W, "trace": trace}


def gifair_server(i: Inputs, method: str, **settings: Any) -> tuple[Server, Cohort]:
    losses = tensor(i["losses"])
    server = Server(
        parse(method, {f"gifair.{key}": value for key, value in settings.items()}), tensor([0.0]), i["sizes"]
    )
    return server, server.round(torch.zeros(len(losses), 1).double(), reports=[{"loss": losses}])


def gifair_multiplier(i: Inputs) -> Fields:
    server, _ = gifair_server(i, "gifair:released")
    everyone = torch.arange(len(i["sizes"]))
    _, most = pulls(tensor(i["losses"]), simplex(server.sizes), everyone)
    return {"r": ranks(tensor(i["losses"]), everyone), "lam": most / 2, "multiplier": server.state[0]["multiplier"]}


def gifair_groups(i: Inputs) -> Fields:
    losses, group = tensor(i["losses"]), torch.tensor(i["groups"])
    _, most = pulls(losses, simplex(tensor(i["sizes"])), group)
    settings = {"groups": i["groups"], "coeff": i["lam"] / float(most)}
    local, _ = gifair_server(i, "gifair:released", **settings)
    _, cohort = gifair_server(i, "gifair", **settings)
    level = group_losses(losses, group)[0]
    return {
        "group_loss": [level[i["groups"].index(k)] for k in sorted(set(i["groups"]))],
        "r": ranks(losses, group),
        "multiplier": local.state[0]["multiplier"],
        "weights": cohort.weights,
    }


def aaggff_responses(i: Inputs) -> Fields:
    losses = tensor(i["losses"])
    return {**{name: responses(losses, name) for name in CDFS}, "response": responses(losses, "normal-released")}


def aaggff_rounds(method: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        server, rounds = Server(parse(method, {"aaggff.cdf": i["cdf"]}), tensor([0.0]), torch.ones(i["N"])), []
        for told in i["rounds"]:
            before, losses = server.state[0], tensor(told["losses"])
            start = before["p"] * (i.get("C", 1.0) if "released" in method and not rounds else 1)
            cohort = server.round(torch.zeros(len(losses), 1).double(), told["ids"], [{"loss": losses}])
            after = server.state[0]
            gradient = after["g"] - before["g"]
            mean = i.get("C", 0.0) * float(responses(losses, i["cdf"]).mean())
            rounds.append(
                {
                    "response": torch.zeros(i["N"])
                    .double()
                    .index_copy(0, torch.tensor(told["ids"]), responses(losses, i["cdf"]) / i["N"]),
                    "estimate": -gradient * (1 + mean * start.sum()),
                    "gradient": gradient,
                    "decision": after["p"],
                    "weights": cohort.weights,
                }
            )
        return {"rounds": rounds}

    return adapter


def eagle(i: Inputs) -> Fields:
    server = Server(parse("eagle", {"eagle.lam": i["lam"]}), tensor([0.0]), i["sizes"])
    gap = tensor(i["losses"]) - tensor(i["best"])
    return {"coefficients": server.round(torch.zeros(len(gap), 1).double(), reports=[{"gap": gap}]).coefficients}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    **{f"aaggff.response{case}": aaggff_responses for case in ("", ".normal_released", ".zero")},
    **{f"aaggff.s.{case}": aaggff_rounds("aaggff") for case in ("equal", "rounds.partial", "rounds.uniform")},
    "aaggff.s.rounds.released": aaggff_rounds("aaggff:released"),
    "aaggff.d.rounds.doubly_robust": aaggff_rounds("aaggff:device"),
    "aaggff.d.rounds.released": aaggff_rounds("aaggff:device(released=true)"),
    "drfl.weights": weighed("qffl:drfl"),
    "fedeba.weights": lambda i: weighed("term:fedeba", "t")({**i, "t": 1 / i["tau"]}),
    "eagle.coefficients": eagle,
    "gifair.groups": gifair_groups,
    "gifair.multiplier.released": gifair_multiplier,
    "gifair.sign.ties": lambda i: {"r": ranks(tensor(i["losses"]), torch.arange(len(i["losses"])))},
    "gifair.weights": lambda i: {"weights": gifair_server(i, "gifair", coeff=i["coeff"])[1].weights},
    **{f"propfair.loss.{case}": utilities for case in ("default", "huber", "M5")},
    "propfair.local_sgd": propfair_training,
    "term.rounds.released": released_rounds,
    **{f"term.sample.{case}": tilted_batch for case in ("value", "negative", "zero", "large", "padded")},
    **{
        f"term.weights.{case}": weighed("term", "t")
        for case in ("samples", "partial", "stable", "zero_t", "negative_t")
    },
    "term.weights.uniform": weighed("term:paper", "t"),
}
