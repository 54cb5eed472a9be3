"""Golden entries of CFFL, of q-FFL as FedSAC compares with it, and of FedAvg with one more epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core import maths
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Cohort, Setup, State, Visit
from equipoise.core.solver import SGD
from equipoise.methods.cffl import CFFL, judged, largest
from equipoise.methods.finetune import FineTune
from golden_weights import qfedavg
from helpers import full_batches, oracle_of, tensor, visit_of

Inputs = dict[str, Any]
Fields = dict[str, Any]


def flat(layers: Sequence[Any]) -> Tensor:
    return torch.cat([tensor(part).flatten() for part in layers])


def unflat(vector: Tensor, like: Sequence[Any]) -> list[Tensor]:
    shapes = [tensor(part).shape for part in like]
    parts = vector.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def setup_for(sizes: Any, n_params: int = 1) -> Setup:
    return Setup(torch.zeros(n_params, dtype=torch.float64), (n_params,), tensor(sizes))


def cffl_reputation(i: Inputs) -> Fields:
    """The released code takes 1/6 for class imbalance whatever it was given."""
    N = len(i["val_acc"][0])
    coef = 1 / 6 if i["split"] == "classimbalance" else i["coef"]
    rule = CFFL(alpha=i["alpha0"], decay=True, fade=bool(i["fade"]), coef=coef)
    state, rounds = rule.server_state(setup_for([1.0] * N)), []
    for t, accuracy in enumerate(tensor(i["val_acc"])):
        alpha = rule._strength(t, i["rounds"])
        here = torch.ones(N, dtype=torch.bool)
        state = judged(state, here, accuracy, alpha, rule.old, rule.coef)
        R = state["reputable"]
        rounds.append(
            {
                "alpha": alpha,
                "reputation": state["reputation"],
                "threshold": rule.coef / int(R.sum()),
                "reputable": R.nonzero().flatten(),
            }
        )
    return {"rounds": rounds}


def cffl_upload(i: Inputs) -> Fields:
    """As a stack of clients; with everything uploaded, what is sent is the clipped update."""
    updates = torch.stack([flat(layers) for layers in i["updates"]])
    oracle = oracle_of(
        nn.Linear(4, 2).double(), torch.zeros(1, 4).double(), torch.zeros(1, dtype=torch.int64), SGD(1.0)
    )
    fields = {}
    for name, theta_u in (("clipped", 1.0), ("uploaded", i["theta_u"])):
        rule = CFFL(theta_u=theta_u, clip=i["clip"])
        visit = visit_of(oracle, torch.zeros_like(updates), {"residual": torch.zeros_like(updates)})
        sent = rule.upload(updates, visit)
        fields[name] = [unflat(u, layers) for u, layers in zip(sent, i["updates"], strict=True)]
    return fields


def rewarded(i: Inputs, aggregation: str) -> tuple[CFFL, State, Cohort, Tensor]:
    """One round with the given reputations, and what every client is given."""
    rule = CFFL(aggregation=aggregation, reputation="contribution", theta_u=0.5, clip=1.0)
    start, uploaded = (torch.stack([flat(layers) for layers in i[key]]) for key in ("start_models", "uploaded"))
    N, P = start.shape
    sizes = tensor(i["n_samples"])
    cohort = Cohort(
        t=0,
        rounds=1,
        n_clients=N,
        theta=start.new_zeros(P),
        updates=uploaded,
        ids=torch.arange(N),
        sizes=sizes,
        weights=maths.simplex(sizes),
        layout=(6, 4),
        buffer_updates=start.new_zeros(N, 0),
        received=start,
        kept=start,
        contribution=tensor(i["reputation"]),
    )
    state, cohort = rule.aggregate(rule.server_state(setup_for(sizes, P)), cohort)
    state, given = rule.reward(state, cohort, start)
    return rule, state, cohort, given


def models(i: Inputs, rule: CFFL, given: Tensor) -> list[list[Tensor]]:
    """What clients predict with: what they were given, and what they did not upload."""
    found = []
    for w, clipped, uploaded in zip(given, i["clipped"], i["uploaded"], strict=True):
        visit = Visit(w, len(w), {"residual": flat(clipped) - flat(uploaded)}, {}, None, 1, 1)  # type: ignore[arg-type]
        found.append(unflat(rule.deploy(w, visit), clipped))
    return found


def cffl_allocate(aggregation: str) -> Any:
    def adapter(i: Inputs) -> Fields:
        rule, state, cohort, given = rewarded(i, aggregation)
        like = i["uploaded"][0]
        step, share = cohort.step(), state["share"]
        found = largest(step.abs()[None], share[:, None], (len(step),), up=False)
        _, released = rule.reward({**state, "share": torch.where(found.any(1), share, 1.0)}, cohort, given)
        return {
            "aggregate": unflat(step, like),
            "num_downloads": found.sum(1),
            "allocated": [unflat(row, like) for row in given - cohort.kept],
            "models": models(i, rule, given),
            "models_released": models(i, rule, released),  # who is to get nothing gets all
        }

    return adapter


def qffl(i: Inputs) -> Fields:
    found = qfedavg({"params": i["W"], "client_params": i["local"], "loss": i["loss"], "q": i["q"], "lr": i["lr"]})
    return {"h": found["h"], "W_next": found["params_new"]}


def extra_epoch(i: Inputs) -> Fields:
    W, personal = tensor(i["W"]), []
    C, d = W.shape
    model = Model(nn.Linear(d, C, bias=False).double())
    for x, y in zip(i["client_X"], i["client_y"], strict=True):
        data = oracle_of(model.net, tensor(x), torch.tensor(y), SGD(i["lr"]))
        plan = replace(full_batches(len(y), 1), index=torch.arange(len(y)).view(-1, i["batch_size"]))
        oracle = Oracle(Bound(model), data.source, SGD(i["lr"]), plan, model.n_params)
        received = W.flatten()
        personal.append(FineTune().deploy(received, visit_of(oracle, received)).view(C, d))
    return {"personal": personal, "W_after": W}


ADAPTERS = {
    **{f"cffl.reputation.{s}.fade{f}": cffl_reputation for s in ("powerlaw", "classimbalance") for f in (0, 1)},
    "cffl.upload": cffl_upload,
    "cffl.allocate.sum": cffl_allocate("sum"),
    "cffl.allocate.mean": cffl_allocate("mean"),
    "cffl.allocate.zero_download": cffl_allocate("sum"),
    **{f"qffl.aggregate.q{q}": qffl for q in ("0.0", "1.0", "5.0")},
    "fedavg.extra_epoch": extra_epoch,
}
