"""Golden entries of the methods that reward with gradients: CGSV and FedAVE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.core import maths
from equipoise.core.rule import Cohort, Rule, Setup
from equipoise.federation.method import parse
from equipoise.methods.cffl import CFFL
from equipoise.methods.cgsv import consensus, share
from equipoise.methods.fedave import divergence, likeness
from helpers import tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]


def flat(layers: list[Any]) -> Tensor:
    return torch.cat([tensor(layer).flatten() for layer in layers])


class Layers(NamedTuple):
    """Shapes of the tensors of a model."""

    shapes: list[tuple[int, ...]]

    @classmethod
    def of(cls, layers: list[Any]) -> Layers:
        return cls([tuple(tensor(layer).shape) for layer in layers])

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    def cut(self, vector: Tensor) -> list[Any]:
        parts = vector.split(self.sizes)
        return [part.view(shape).tolist() for part, shape in zip(parts, self.shapes, strict=True)]


class Judge:
    """The accuracies of trained models on the server's data, one after the other, as an entry has them."""

    def __init__(self, accuracies: list[float]) -> None:
        self.accuracies = iter(accuracies)

    def tally(self, vector: Tensor) -> SimpleNamespace:
        return SimpleNamespace(goodness=tensor(next(self.accuracies)))


class Run:
    """Server and clients of a rule that rewards, all models at 0, with updates that are given."""

    def __init__(self, rule: Rule, i: Inputs, layers: Layers) -> None:
        P = sum(layers.sizes)
        sizes = tensor(i["n_samples"])
        self.rule, self.layers, self.sizes, self.t = rule, layers, sizes, 0
        self.server, self.models = sizes.new_zeros(P), sizes.new_zeros(len(sizes), P)
        self.state = rule.server_state(Setup(self.server, layers.sizes, sizes))

    def round(self, updates: list[Any], **told: Any) -> tuple[Cohort, Fields]:
        N, u = len(self.sizes), torch.stack([flat(update) for update in updates])
        ids, rest, p = torch.arange(N), u.new_zeros(N, 0), maths.simplex(self.sizes)
        before = (self.models, self.models)
        cohort = Cohort(self.t, 10, N, self.server, u, ids, self.sizes, p, self.layers.sizes, rest, *before)
        state, cohort = self.rule.aggregate(self.state, replace(cohort, **told))
        self.server = self.server + cohort.step()
        given = self.server.expand(N, -1)
        self.state, after = self.rule.reward(state, replace(cohort, theta=self.server), given)
        fields = {
            "aggregate": self.layers.cut(replace(cohort, scale=1.0).step()),
            "rewards": [self.layers.cut(row) for row in after - self.models],
            "models": [self.layers.cut(row) for row in after],
            "server": self.layers.cut(self.server),
        }
        self.models, self.t = after, self.t + 1
        return cohort, fields


def named(method: str, i: Inputs) -> Rule:
    name = method.split(":")[0]
    return parse(method, {f"{name}.{key.lower()}": i[key] for key in ("alpha", "beta", "Gamma")}).rules[0]


def cgsv(method: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        run, rounds = Run(named(method, i), i, Layers.of(i["updates"][0][0])), []
        for updates in i["updates"]:
            cohort, fields = run.round(updates)
            phi, r = consensus(maths.gram(cohort.updates), cohort.coefficients), run.state["r"]
            rounds.append({"weights": cohort.weights, "phi": phi, "r": r, "q": share(r, run.rule.beta), **fields})
        return {"rounds": rounds}

    return adapter


def ties(i: Inputs) -> Fields:
    layers, vector = Layers.of(i["layers"]), flat(i["layers"])
    kept = {
        form: maths.add_largest(torch.zeros(1, len(vector)).double(), vector, tensor([i["q"]]), layers.sizes, form)[0]
        for form in ("released_layer", "exact_layer")
    }
    return {"released": layers.cut(kept["released_layer"]), "exact": layers.cut(kept["exact_layer"])}


def fedave(method: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        run, rounds = Run(named(method, i), i, Layers.of(i["rounds"][0]["updates"][0])), []
        for told in i["rounds"]:
            pairs = zip(told["client_batch_losses"], told["server_batch_losses"], strict=True)
            kl = torch.stack([divergence(tensor(o), torch.ones(len(o)) > 0, tensor(s)) for o, s in pairs])
            _, fields = run.round(told["updates"], reports={"kl": kl}, oracle=Judge(told["val_acc"]))
            k, rep = likeness(kl, run.rule.eps), run.state["rep"]
            fields |= {"k": k, "weights": tensor(told["val_acc"]) * k**2}
            rounds.append({**fields, "reputation": rep, "q": share(rep, run.rule.beta) * run.state["k"]})
        return {"rounds": rounds}

    return adapter


def by_contribution(i: Inputs) -> Fields:
    c, n = tensor(i["contribution"]), tensor(i["n_samples"])
    q = share(c, i["beta"])  # CGSV and FedAVE, which then has no other factor, ask the same function
    return {"cgsv_q": q, "fedave_q": q, "cffl_share": CFFL(reputation="contribution")._shares(c, n / n.max())}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "cgsv.rounds.exact_layer": cgsv("cgsv"),
    "cgsv.rounds.released_layer": cgsv("cgsv:released"),
    "cgsv.rounds.paper_global": cgsv("cgsv:paper-global"),
    "cgsv.zero_update": cgsv("cgsv:released"),
    "cgsv.mask.ties.case1": ties,
    "cgsv.mask.ties.case2": ties,
    "cgsv.mask.ties.case3": ties,
    "fedave.rounds.released": fedave("fedave"),
    "fedave.rounds.exact": fedave("fedave:exact"),
    "baseline.contribution_reward": by_contribution,
}
