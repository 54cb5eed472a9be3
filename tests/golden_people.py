"""Golden entries of the rules that weigh groups of people, and of whole rounds with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.rule import Cohort, Out, Setup, Visit
from equipoise.federation.method import parse
from equipoise.methods.fairbatch import gaps
from equipoise.methods.fairfed import unfairness
from equipoise.methods.fairgrad import constants
from equipoise.methods.fedfb import disparity
from equipoise.methods.fedgft import soft_gap
from equipoise.methods.fedminmax import project
from equipoise.methods.logofair import cost, shift
from equipoise.methods.reweighing import independent
from equipoise.metrics.thresholds import chances, edges, rates, taken
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

    def __init__(self, method: Any, n: Tensor) -> None:
        self.n = n
        super().__init__(method, torch.zeros(1, dtype=torch.float64), n.sum((1, 2)), n_classes=n.shape[1])

    def made(self, *about: Any) -> Setup:
        return Setup(*about, attributes={"a": self.n.shape[2]}, positive=1)

    @property
    def sum_of_losses(self) -> str:
        """The report that is not the counts."""
        [name] = self.rules[0].declared.ranges.keys() - {"n"}
        return name

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


# rules of losses
def share_rounds(method: str) -> Callable[[Inputs], Fields]:
    """FairBatch and FedFB: the shares of the samples that the weights stand for, after each round."""

    def adapter(i: Inputs) -> Fields:
        n = tensor(i["n"])
        server = PeopleServer(parse(method, {f"{method.partition(':')[0].partition('(')[0]}.alpha": i["alpha"]}), n)
        rounds = []
        for loss in tensor(i["loss_rounds"]):
            server.reported(**{server.sum_of_losses: loss})
            w, share = server.state[0]["w"], n.sum(0) / n.sum()
            rounds.append({"share": w * share, "weight": w})
        return {"rounds": rounds}

    return adapter


def fedfb_released(i: Inputs) -> Fields:
    n = tensor(i["n"])
    n_a, rounds = n.sum((0, 1)), []
    for loss, fields in zip(tensor(i["loss_rounds"]), share_rounds("fedfb:released")(i)["rounds"], strict=True):
        lam = fields["weight"] * n_a / n.sum()
        f = disparity(n.sum(0), loss.sum(0), len(n))[1:]
        rounds.append({"f": f, "lam": lam, "sample_weight": lam / n_a})
    return {"rounds": rounds}


def fedminmax_rounds(i: Inputs) -> Fields:
    """The entries have groups only; here all samples are of class 1."""
    counts = tensor(i["n"])
    n = torch.stack([torch.zeros_like(counts), counts], 1)
    server = PeopleServer(method_of("fedminmax", {key: i[key] for key in ("eta", "floor")}), n)
    n_a, rounds = counts.sum(0), []
    for loss in tensor(i["loss_rounds"]):
        server.reported(loss=torch.stack([torch.zeros_like(loss), loss], 1))
        weight = server.state[0]["w"][1]
        rounds.append(
            {
                "risk": loss.sum(0) / n_a,
                "mu": weight * n_a / n_a.sum(),
                "weight": weight,
                "site_weight_sum": counts @ weight,
            }
        )
    return {"rounds": rounds}


def fedgft_step(i: Inputs) -> Fields:
    n, chance, batch = tensor(i["n"]), tensor(i["p_sum"]), i["batch"]
    server = PeopleServer(method_of("fedgft:published", {key: i[key] for key in ("gamma", "reg", "metric")}), n)
    server.reported(chance=chance)
    rows = slice(1, None) if i["metric"] == "eo" else slice(None)
    share = n[:, rows].sum((0, 1)) / n.sum()
    own = chance[:, rows].sum(1) / n.sum((1, 2))[:, None] / share  # [K, 2]
    y, s, logit = torch.tensor(batch["y"]), torch.tensor(batch["a"])[:, None], tensor(batch["p"]).logit()
    logit.requires_grad_()
    out = Out(torch.stack([torch.zeros_like(logit), logit], -1), logit[:, None], y, None, lambda _: (logit, logit), s=s)
    no_oracle: Any = None
    visit = Visit(server.theta, 1, {}, server.rules[0].message(server.state[0], 0), no_oracle, 0, 1)
    penalty = torch.as_tensor(server.rules[0].loss(out, visit))
    [gradient] = torch.autograd.grad(penalty, logit)
    return {
        "term": own[:, 0] - own[:, 1],
        "F": soft_gap(n[:, rows].sum((0, 1)), chance[:, rows].sum((0, 1))),
        "cell": server.state[0]["c"],
        "penalty": penalty.detach(),
        "gradient": gradient,
    }


def ffalm_global(i: Inputs) -> Fields:
    counts = tensor(i["n"])
    n = torch.stack([torch.zeros_like(counts), counts], 1)
    server = PeopleServer(method_of("ffalm", {"metric": "loss", "eta": i["eta"], "beta": i["beta"]}), n)
    server.state[0] = {**server.state[0], "lam": tensor(i["lam"])}
    loss = tensor(i["loss_sum"])
    server.reported(loss=torch.stack([torch.zeros_like(loss), loss], 1))
    gap = -gaps(counts.sum(0, keepdim=True), loss.sum(0, keepdim=True))[0]
    return {"gap": gap, "lam": server.state[0]["lam"], "weight": server.state[0]["w"][1]}


# FairFed
def fairfed_rounds(settings: str = "") -> Callable[[Inputs], Fields]:
    """The weights of every round, from the samples that each site's model takes for positive."""

    def adapter(i: Inputs) -> Fields:
        n, metric, rounds = tensor(i["n"]), i["metric"], []
        server = PeopleServer(f"fairfed(metric={metric}, beta={i['beta']}, {settings})", n)
        present = i.get("present", [[*range(len(n))]] * len(i["pos_rounds"]))
        for ids, positive in zip(present, tensor(i["pos_rounds"]), strict=True):
            hits, here = right(n, positive)[ids], n[ids]
            cohort = server.reported(ids, right=hits, accuracy=hits.sum((1, 2)) / here.sum((1, 2)))
            own, overall = unfairness(here, hits, metric), unfairness(here.sum(0, True), hits.sum(0, True), metric)
            rounds.append(
                {
                    "F": overall[0],
                    "F_site": [None if F.isnan() else F for F in own],
                    "delta": server.rules[0]._gap(cohort.reports, cohort.sizes / cohort.sizes.sum()),
                    "bar": server.state[0]["bar"],
                    "weight": cohort.weights if cohort.coefficients is None else cohort.coefficients,
                }
            )
        return {"rounds": rounds}

    return adapter


def fairfed_global(i: Inputs) -> Fields:
    n, positive = tensor(i["n"]), tensor(i["pos_rounds"])[0]
    total = (n.sum(0, True), right(n, positive).sum(0, True))
    terms = positive[:, 1] / n[:, 1].sum(0)
    eod, spd = (unfairness(*total, metric)[0] for metric in ("eod", "spd"))
    return {"eod": eod, "spd": spd, "eod_terms": terms[:, 0] - terms[:, 1]}


def last_fairfed_round(settings: str, *names: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        last = fairfed_rounds(settings)(i)["rounds"][-1]
        return {name: last[name] for name in names}

    return adapter


def fairfed_declearn(i: Inputs) -> Fields:
    """Its weights are in samples, ours are shares of them."""
    last = last_fairfed_round("form=declearn, clip=false", "F", "delta", "bar", "weight")(i)
    return {**last, "bar": last["bar"] * tensor(i["n"]).sum()}


def fairfed_under(names: tuple[str, ...], settings: str) -> Callable[[Inputs], Fields]:
    """One round, under the names of the entry for F, the sites' F and others."""

    def adapter(i: Inputs) -> Fields:
        last = fairfed_rounds(settings)(i)["rounds"][-1]
        return dict(
            zip(names, (last["F"], last["F_site"], last["weight" if "weight" in names else "delta"]), strict=True)
        )

    return adapter


def fairfed_weights(form: str) -> Callable[[Inputs], Fields]:
    return lambda i: {"weight": [fields["weight"] for fields in fairfed_rounds(f"form={form}")(i)["rounds"]]}


# thresholds
def thresholds(i: Inputs) -> Fields:
    hist, metric = np.array(i["hist"], dtype=float).sum(0), i["constraint"]
    n, r = hist.sum(-1), np.linspace(0, 1, i.get("grid", 1) + 1)
    if "eps" in i:
        bins = edges(hist, metric, i["eps"])
        above = np.take_along_axis(taken(hist), bins[:, None, None], -1)[..., 0]
        gap = max(np.ptp(np.take_along_axis(table, bins[:, None], 1)) for table in rates(hist, metric))
        return {
            "threshold": bins.tolist(),
            "gap": gap,
            "accuracy": (above[:, 1] + n[:, 0] - above[:, 0]).sum() / n.sum(),
        }
    chance = chances(hist, metric, i["grid"])
    right = (hist[:, 1] * chance).sum() + (hist[:, 0] * (1 - chance)).sum()
    parts = {"dp": hist.sum(1), "eo": hist[:, 1], "eodds": hist[:, 0]}[metric]
    common = ((parts * chance).sum(-1) / parts.sum(-1)).tolist()
    assert np.ptp(common) < 1e-9
    return {"probability": chance.tolist(), "objective": right / n.sum(), "rate": r[np.abs(r - common[0]).argmin()]}


def logofair(i: Inputs) -> Fields:
    """The cost of a client has the prices of its own budget, and its part of that of all."""
    mu, lam, thresholds, costs = tensor(i["mu"]), tensor([i["lam"]]), [], []
    sites = [*zip(*i["score"], strict=True)]
    n = tensor([[float(len(scores)) for scores in site] for site in sites])
    for k, site in enumerate(sites):
        score = torch.nn.utils.rnn.pad_sequence([tensor(scores) for scores in site], batch_first=True)
        weight = (torch.arange(score.shape[1]) < n[k][:, None]).double()
        u = (mu[k, 0] - mu[k, 1])[None]
        thresholds.append(0.5 + shift(n.sum(0), n[k], lam, u)[0] / (2 * n[k] / n.sum()))
        price = i["delta_local"] * mu[k].sum() + i["delta_global"] * abs(i["lam"]) / len(sites)
        costs.append(cost(score, weight, n.sum(0), lam, u)[0] + price)
    return {"threshold": thresholds, "H": costs, "H_total": sum(costs)}


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
    **{f"people.thresholds.{name}": thresholds for name in ("dp", "eo", "eodds", "three")},
    **{f"people.thresholds.deterministic.{name}": thresholds for name in ("dp", "eo", "eodds")},
    "people.round.reweighing-local": local_rounds,
    "people.round.reweighing-global": whole_rounds("reweighing", counted=True),
    "people.round.fairgrad.eo": whole_rounds("fairgrad"),
    "people.round.fairgrad.dp": whole_rounds("fairgrad"),
    **{f"people.fairbatch.{m}": share_rounds(f"fairbatch(metric={m})") for m in ("eo", "eodds", "dp")},
    "people.fairbatch.dp.declearn": share_rounds("fairbatch:declearn"),
    **{f"people.fedfb.{m}": share_rounds(f"fedfb(metric={m})") for m in ("eo", "eodds", "dp")},
    "people.fedfb.dp.many": share_rounds("fedfb(metric=dp)"),
    **{f"people.fedfb.{m}.declearn": share_rounds(f"fedfb:declearn(metric={m})") for m in ("eo", "eodds", "dp")},
    "people.fedfb.dp.released": fedfb_released,
    "people.fedminmax.project": lambda i: {"mu": [project(v, i["floor"]) for v in tensor(i["v"])]},
    **{f"people.fedminmax.{case}": fedminmax_rounds for case in ("rounds", "boundary", "absent")},
    **{f"people.fedgft.{case}": fedgft_step for case in ("dp.l2", "eo.l2", "eo.id")},
    "people.ffalm.global": ffalm_global,
    "people.logofair.dp": logofair,
    **{
        f"people.fairfed.{case}": fairfed_rounds("clip=false")
        for case in ("round.eod", "round.spd", "fallback", "rounds")
    },
    "people.fairfed.clip": fairfed_rounds(),
    "people.fairfed.global": fairfed_global,
    "people.fairfed.partial": last_fairfed_round("", "bar", "weight"),
    "people.fairfed.declearn": fairfed_declearn,
    "people.fairfed.extended": fairfed_under(("value", "site_value", "delta"), ""),
    "people.fairfed.exponential": fairfed_under(("disparity", "site_disparity", "weight"), "form=fedfb"),
    "people.fairfed.fedgft_authors": fairfed_weights("fedgft"),
    "people.fairfed.ffalm_authors": fairfed_weights("ffalm"),
    **{f"people.round.{name}": whole_rounds(name) for name in ("fedfb", "fedminmax", "fairfed")},
    "people.round.fedgft": whole_rounds("fedgft:published"),
}
LAG = "an exchange before training, which the contract has not; measured, it changes accuracy by 0.1 points at most"
SKIPPED = {
    **{f"people.round.{name}.lag0": LAG for name in ("fairgrad.eo", "fairgrad.dp", "fedfb", "fedminmax", "fedgft")},
    **{
        f"people.fairbatch.authors.{m}": "a step after each mini-batch, of the sizes of batches, which weights replace"
        for m in ("dp", "eqopp", "eqodds")
    },
}
NOT_OFFERED = {  # though they are not optional
    "people.fairbatch.site_probability": "the chance to draw a sample, which weights replace: no batch is drawn by cells",
    "people.fedfb.cp.released": "depends on which client is first, which the contract forbids; afl does the same",
    "people.ffalm.round": "the gap of the last batch of local training, which no hook sees",
}
