"""Golden entries of the rules that weigh groups of people, and of whole rounds with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.rule import Cohort, Setup
from equipoise.federation.method import parse
from equipoise.methods.fairgrad import constants
from equipoise.methods.reweighing import independent
from helpers import Server, tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]


class Logistic(nn.Module):
    """Logits 0 and w x + b."""

    def __init__(self, theta: Sequence[float]) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1, dtype=torch.float64)
        self.line.weight.data, self.line.bias.data = tensor(theta[:2])[None], tensor(theta[2:])

    def forward(self, x: Tensor) -> Tensor:
        z = self.line(x)
        return torch.cat([torch.zeros_like(z), z], 1)


class PeopleServer(Server):
    """A server of clients with one attribute of A values, and samples of each cell ``n`` [K, R, A]."""

    def __init__(self, method: str, n: Tensor) -> None:
        self.n = n
        super().__init__(method, torch.zeros(1, dtype=torch.float64), n.sum((1, 2)), n_classes=n.shape[1])

    def made(self, *about: Any) -> Setup:
        return Setup(*about, attributes={"a": self.n.shape[2]}, positive=1)

    def reported(self, ids: Sequence[int] | None = None, **sums: Tensor) -> Cohort:
        """One round in which clients report sums by cell [M, R, A]."""
        here = self.n if ids is None else self.n[list(ids)]
        return self.round(here.new_zeros(len(here), 1), ids, reports=[{"n": here, **sums}])


def method_of(name: str, settings: Inputs) -> str:
    inside = ", ".join(f"{key}={value}" for key, value in settings.items() if key != "lag")
    return f"{name}({inside})"


def right(n: Tensor, positive: Tensor) -> Tensor:
    """Recognised samples of each cell [..., 2, A], from those taken for positive."""
    return torch.stack([n[..., 0, :] - positive[..., 0, :], positive[..., 1, :]], -2)


# reweighing
def reweighed(scope: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        n = tensor(i["n"])
        weight = independent(n if scope == "local" else n.sum(0))
        return {"weight": weight}

    return adapter


def reweighed_with_empty(i: Inputs) -> Fields:
    n = tensor(i["n"])
    weight = independent(n)
    assert (weight[n == 0] == 1).all()  # null there
    return {"weight": filled(weight.tolist(), n.tolist())}


def filled(weight: Any, n: Any) -> Any:
    """The weights as lists, null for an empty cell."""
    if isinstance(n, list):
        return [filled(w, k) for w, k in zip(weight, n, strict=True)]
    return weight if n else None


def removes(i: Inputs) -> Fields:
    n = tensor(i["n"]).sum(0)
    mass = n * independent(n)
    return {"weighted_rate": mass[1] / mass.sum(0), "base_rate": float(n[1].sum() / n.sum())}


# FairGrad
def fairgrad_constants(metric: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        start, C = constants(tensor(i["n"]), metric)
        return {"C0": start.flatten(), "C": C.flatten(2).flatten(0, 1)}

    return adapter


def fairgrad_level(metric: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        n, positive = tensor(i["n"]), tensor(i["pos"])
        n, positive = (n.sum(0), positive.sum(0)) if n.dim() == 3 else (n, positive)
        start, C = constants(n, metric)
        error = (n - right(n, positive)) / n
        return {"F": (start + (C * error).sum((2, 3))).flatten()}

    return adapter


def fairgrad_rounds(i: Inputs) -> Fields:
    n = tensor(i["n"])
    server = PeopleServer(method_of("fairgrad", {key: i[key] for key in ("metric", "eta", "eps")}), n)
    rounds = []
    for positive in tensor(i["pos_rounds"]):
        level = fairgrad_level(i["metric"])({"n": i["n"], "pos": positive})["F"]
        server.reported(right=right(n, positive))
        state, share = server.state[0], n.sum(0) / n.sum()
        rounds.append(
            {
                "F": level,
                "upper": state["up"].flatten(),
                "lower": state["low"].flatten(),
                "weight": state["w"].flatten(),
                "group_weight": (share * state["w"]).flatten(),
            }
        )
    return {"rounds": rounds}


def fairgrad_package(i: Inputs) -> Fields:
    y, a, h = (torch.tensor(i[key]) for key in ("y", "a", "h"))
    cells = [((y == k) & (a == g)) for k in (0, 1) for g in (0, 1)]
    n = tensor([[float(c.sum()) for c in cells]]).view(1, 2, 2)
    hits = tensor([[float((c & (h == y)).sum()) for c in cells]]).view(1, 2, 2)
    server = PeopleServer(f"fairgrad:package(eta={i['eta'] / 2})", n)
    server.reported(right=hits)
    positive = torch.stack([n[:, 0] - hits[:, 0], hits[:, 1]], 1)
    return {"F": fairgrad_level("acc")({"n": n, "pos": positive})["F"], "weight": server.state[0]["w"].flatten()}


# whole rounds of logistic regression
def whole_rounds(name: str, counted: bool = False) -> Callable[[Inputs], Fields]:
    """By the product's federation; if ``counted``, the server knows the clients' counts before the first round, which ours learns in it."""

    def adapter(i: Inputs) -> Fields:
        data = [(tensor(x), torch.tensor(y), torch.tensor(a)) for x, y, a in zip(i["x"], i["y"], i["a"], strict=True)]
        fed = eq.Federation(
            Logistic(i["theta"]),
            data,
            parse(method_of(name, i["settings"])),
            eq.SGD(i["lr"]),
            steps=i["local_steps"],
            batch_size=100,
            attributes={"a": ("0", "1")},
            positive=1,
        )
        if counted:
            w = independent(sum(counts(i)))
            fed.progress = replace(fed.progress, server=[{**fed.progress.server[0], "w": w}])
        rounds = []
        for _ in range(i["rounds"]):
            before = fed.progress.server[0]
            [record] = fed.fit(1, progress=False).records[-1:]
            table = {key: before[key] for key in ("w", "c") if key in before}
            rounds.append({"theta": fed.progress.vector, "aggregation": record["weights"], **renamed(table)})
        return {"rounds": rounds}

    return adapter


def renamed(table: dict[str, Tensor]) -> Fields:
    return {"weight": table.get("w"), "cell": table.get("c")}


def local_rounds(i: Inputs) -> Fields:
    """As above, with weights of each site's own, which stay there."""
    weight = independent(torch.stack(counts(i)))
    return {"rounds": [{**fields, "weight": weight} for fields in whole_rounds("reweighing:local")(i)["rounds"]]}


def counts(i: Inputs) -> list[Tensor]:
    """Samples of each cell [2, 2] of each client."""
    cells = [torch.tensor(y) * 2 + torch.tensor(a) for y, a in zip(i["y"], i["a"], strict=True)]
    return [torch.bincount(cell, minlength=4).view(2, 2).double() for cell in cells]


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "people.reweighing.local": reweighed("local"),
    "people.reweighing.global": reweighed("global"),
    "people.reweighing.empty": reweighed_with_empty,
    "people.reweighing.many": reweighed("global"),
    "people.reweighing.removes": removes,
    **{f"people.fairgrad.constants.{m}": fairgrad_constants(m) for m in ("dp", "eo", "eodds", "acc")},
    **{f"people.fairgrad.level.{m}": fairgrad_level(m) for m in ("dp", "eo", "eodds", "acc")},
    **{f"people.fairgrad.rounds.{m}": fairgrad_rounds for m in ("dp", "eo", "eodds", "acc")},
    "people.fairgrad.package.acc": fairgrad_package,
    "people.round.reweighing-local": local_rounds,
    "people.round.reweighing-global": whole_rounds("reweighing", counted=True),
    "people.round.fairgrad.eo": whole_rounds("fairgrad"),
    "people.round.fairgrad.dp": whole_rounds("fairgrad"),
}
LAG = "an exchange before training, which the contract has not; measured, it changes accuracy by 0.1 points at most"
SKIPPED = {f"people.round.{name}.lag0": LAG for name in ("fairgrad.eo", "fairgrad.dp", "fedfb", "fedminmax", "fedgft")}
