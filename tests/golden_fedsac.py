"""How the golden entries of FedSAC are asked of the product; those of single hidden units are in golden_neurons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core.client import visit_client
from equipoise.core.draws import Schedule
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Briefing, Setup, State
from equipoise.core.solver import SGD
from equipoise.data.samples import read
from equipoise.federation.method import parse
from equipoise.methods.fedsac import FedSAC, allocate, prefixes, reputations, scores
from equipoise.submodels.discovery import find
from equipoise.submodels.importance import ablation
from helpers import Server, oracle_of, tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]
NAMES = ("W1", "b1", "W2", "b2", "W3", "b3")


def network(i: Inputs) -> tuple[Model, Neurons]:
    """The entry's network of two hidden layers."""
    W = [tensor(i[name]) for name in NAMES]
    layers = [nn.Linear(w.shape[1], len(w), dtype=torch.float64) for w in W[::2]]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    for p, w in zip(net.parameters(), W, strict=True):
        p.data = w.clone()
    model = Model(net)
    x = torch.randn(4, W[0].shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return model, find(model, x)


def flat(params: Inputs) -> Tensor:
    return torch.cat([tensor(params[name]).flatten() for name in NAMES])


def named(vector: Tensor, like: Inputs) -> Fields:
    shapes = [tensor(like[name]).shape for name in NAMES]
    parts = vector.split([s.numel() for s in shapes])
    return {name: part.view(shape) for name, part, shape in zip(NAMES, parts, shapes, strict=True)}


def normalised(form: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        I = tensor(i["importance"])
        return {"score": scores(I, form), "order_ascending": I.argsort(stable=True)}

    return adapter


def ordered(i: Inputs) -> Fields:
    return {"order_ascending": tensor(i["importance"]).argsort(stable=True)}


def reputation(i: Inputs) -> Fields:
    return {"reputation": reputations(tensor(i["contribution"]), i["beta"])}


def submodel(form: str = "clip", prefix: str = "largest_le") -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        I, r = tensor(i["importance"]), tensor(i["reputation"])
        order, s = I.argsort(stable=True), scores(I, form)
        S = s[order].cumsum(0)
        k = prefixes(S, r, prefix)
        units = allocate(order, k, i.get("layer_sizes", ()), i.get("min_per_layer", 0))
        return {"score": s, "order": order, "cumulative": S, "k": k, "neuron_mask": units.int()}

    return adapter


def without_allocation(i: Inputs) -> Fields:
    order = torch.tensor(i["permutation"])
    K = len(order)
    k = prefixes(torch.arange(1, K + 1) * (100 / K), tensor(i["reputation"]))
    return {"k": k, "neuron_mask": allocate(order, k).int()}


def aggregate(text: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        _, neurons = network(i["global_params"])
        theta = flat(i["global_params"])
        units = torch.cat([torch.tensor(i["mask1"]), torch.tensor(i["mask2"])], 1).bool()
        ids = i.get("participants", list(range(len(units))))
        held = neurons.held(units)[ids]
        trained = torch.stack([flat(p) for p in i["client_params"]])[ids]
        server = Server(parse(text), theta, i.get("n_samples", [1.0] * len(units)))
        updates = (trained - theta) * held
        done = server.round(updates, ids, held=held)
        count = held.sum(0) if done.mask is None else done.mask.sum(0)
        like = i["global_params"]
        return {"params": named(server.theta, like), "count": named(count, like)}

    return adapter


def briefed(i: Inputs, model: Model, neurons: Neurons, t: int = 0) -> Briefing:
    N = len(i["contribution"])
    oracle = oracle_of(model.net, tensor(i["X"]), torch.tensor(i["y"]), SGD(1.0), steps=0)
    received = model.initial.expand(N, -1)
    return Briefing(
        t, 99, model.n_params, model.initial, received, torch.arange(N), torch.ones(N, dtype=torch.float64),
        oracle=oracle, contribution=tensor(i["contribution"]), neurons=neurons,
    )  # fmt: skip


def end_to_end(i: Inputs) -> Fields:
    model, neurons = network(i)
    rule = FedSAC(beta=i["beta"])
    setup = Setup(model.initial, model.layout, torch.ones(3, dtype=torch.float64), neurons=neurons)
    briefing = briefed(i, model, neurons)
    state = rule.prepare(rule.server_state(setup), briefing)
    without, whole = ablation(neurons, model.initial, briefing.oracle.batches())
    I = without - whole
    order = I.argsort(stable=True)
    k = prefixes(scores(I)[order].cumsum(0), state["r"])
    held = neurons.held(state["units"])
    start = model.initial * held
    trained = []
    for m in range(3):
        x, y = tensor(i["client_X"][m]).flatten(0, 1), torch.tensor(i["client_y"][m]).flatten()
        data = read((x, y), "client", torch.float64, torch.device("cpu"))
        oracle = Oracle(Bound(model), data, SGD(i["lr"]), Schedule(torch.arange(6).view(2, 3), None), model.n_params)
        trained.append(visit_client((rule,), oracle, 0, 1, start[m], [{}], [{}], None, held[m])[0])
    server = Server(rule, model.initial, [1.0] * 3)
    server.round(torch.stack(trained) - start, held=held)
    return {
        "reputation": state["r"],
        "score": scores(I),
        "order": order,
        "k": k,
        "neuron_mask": state["units"].int(),
        "delta": (model.initial - start).norm(dim=1),
        "val_loss": [briefing.oracle.loss(v) for v in start],
        "client_params": [named(v, i) for v in trained],
        "new_global": named(server.theta, i),
    }


def refreshes(i: Inputs) -> Fields:
    """Rounds in which the rule looks at the importances: those in which it asks the validation data."""
    model, neurons = network(FIXED)
    rule = FedSAC(every=i["every"])
    asked: list[int] = []

    class Watched(Oracle):
        def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
            asked.append(t)
            return super().batches()

    inner = briefed(FIXED, model, neurons)
    oracle = Watched(inner.oracle.evaluator, inner.oracle.source, SGD(1.0), inner.oracle.schedule, model.n_params)
    state: State = rule.server_state(Setup(model.initial, model.layout, torch.ones(3), neurons=neurons))
    for t in range(i["rounds"]):
        state = rule.prepare(state, replace(inner, t=t, oracle=oracle))
    return {"refresh_rounds": asked}


FIXED: Inputs = {
    "W1": [[1.0, -0.5], [0.3, 0.8]], "b1": [0.1, 0.2], "W2": [[0.7, -0.2], [0.4, 0.9]], "b2": [0.0, 0.1],
    "W3": [[1.0, -1.0], [-0.3, 0.6]], "b3": [0.0, 0.0], "X": [[1.0, 0.5], [-0.4, 0.9], [0.2, -1.0]], "y": [0, 1, 1],
    "contribution": [0.2, 0.4, 0.5],
}  # fmt: skip


def theorem(i: Inputs) -> Fields:
    """The isotropic quadratic F = L/2 |theta - theta*|^2 at nested submodels of theta_g."""
    g, star, L = tensor(i["theta_g"]), tensor(i["theta_star"]), i["L"]
    a, b = (g * tensor(i[name]) for name in ("mask_i", "mask_j"))
    d_i, d_j = (g - a).norm(), (g - b).norm()
    F = [L / 2 * (v - star).square().sum() for v in (a, b)]
    return {
        "delta_i": d_i,
        "delta_j": d_j,
        "grad_norm": (L * (g - star)).norm(),
        "grad_bound": L * (d_i**2 - d_j**2).abs() / (2 * (a - b).norm()),
        "F_i": F[0],
        "F_j": F[1],
    }


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "fedsac.importance.normalise.clip": normalised("clip"),
    "fedsac.importance.normalise.paper": normalised("paper"),
    "fedsac.importance.normalise.fallback": normalised("clip"),
    "fedsac.importance.ties": ordered,
    "fedsac.reputation.case1": reputation,
    "fedsac.reputation.case2": reputation,
    "fedsac.reputation.equal": reputation,
    "fedsac.reputation.stable": reputation,
    "fedsac.submodel.largest_le": submodel(),
    "fedsac.submodel.smallest_ge": submodel(prefix="smallest_ge"),
    "fedsac.submodel.negative.clip": submodel(),
    "fedsac.submodel.negative.paper": submodel("paper"),
    "fedsac.submodel.min_per_layer": submodel(),
    "fedsac.ablation.wo_allocation": without_allocation,
    "fedsac.aggregate.dynamic": aggregate("fedsac"),
    "fedsac.aggregate.update_nonzero": aggregate("fedsac:fedrac"),
    "fedsac.ablation.wo_aggregation": aggregate("fedsac-no-aggregation"),
    "fedsac.aggregate.partial": aggregate("fedsac"),
    "fedsac.refresh_schedule": refreshes,
    "fedsac.round.end_to_end": end_to_end,
    "fedsac.theorem1.property": theorem,
}
