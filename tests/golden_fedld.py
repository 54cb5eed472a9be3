"""Golden entries of FedLD and the methods it is compared with: from an entry's inputs to its fields.

An adapter knows the layout of an entry and nothing of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core import maths
from equipoise.core.client import visit_client
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Out, Rule, State, Visit
from equipoise.core.solver import SGD
from equipoise.federation.method import parse
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedbn import FedBN
from equipoise.methods.fedgh import FedGH
from equipoise.methods.fedpac import FedPAC
from equipoise.methods.fedprox import FedProx
from equipoise.methods.margin import Margin
from equipoise.methods.principal import Principal, axes
from helpers import Server, one_step_gradient, oracle_of, out_of, reported_prototypes, tensor, visit_of

Inputs = dict[str, Any]
Fields = dict[str, Any]


# the server side
def weighted_average(i: Inputs) -> Fields:
    models = tensor(i["client_params"])
    server = Server(FedAvg(), torch.zeros_like(models[0]), i["weights"])
    server.round(models)
    return {"params_new": server.theta}


def principal_fields(rule: Principal, updates: Tensor, sizes: Any) -> Fields:
    """What a server with this rule makes of one round of updates [M, G]."""
    server = Server(rule, torch.zeros_like(updates[0]), sizes)
    cohort = server.round(updates)
    K = maths.gram(updates)
    one_by_one = torch.stack([rule._coefficients(K, alone)[0] for alone in torch.eye(len(K), dtype=K.dtype)])
    c = cohort.coefficients
    return {
        "eigenvalues": axes(K)[0],
        "L": cohort.notes["principal_axes"],
        "revised": one_by_one @ updates,
        "coefficients": c if c.dim() == 1 else c[:, 0],
        "aggregated": server.theta,
    }


def principal(scope: str = "model") -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        rule = Principal(keep=i["keep"], eigen=i["eigen_norm"], weights=i["client_weight"], scope=scope)
        return principal_fields(rule, tensor(i["updates"]), i["n"])

    return adapter


def principal_history(i: Inputs) -> Fields:
    """The history of the released code, kept here: the rule needs only whether it is zero."""
    updates = tensor(i["updates"])
    _, M, G = updates.shape
    layout = [length for _, length in i["layers"]]
    method = parse("principal:released", {"principal.keep": i["k_proportion"]})
    server = Server(method, updates.new_zeros(G), [1.0] * M, layout)
    steps: list[Tensor] = []
    for u in updates:
        before = server.theta
        server.round(u)
        steps.append(server.theta - before)
    mean = lambda h, step: i["gamma"] * h + (1 - i["gamma"]) * step  # noqa: E731
    return {"aggregated": torch.stack(steps), "history": torch.stack(list(accumulate(steps, mean)))}


def harmonised(i: Inputs) -> Fields:
    updates, form = tensor(i["updates"]), i["mode"].removeprefix("original_")
    rule = FedGH(form=form)
    server = Server(rule, torch.zeros_like(updates[0]), i["n"])
    server.round(updates)
    return {"harmonized": rule._harmonised(maths.gram(updates)) @ updates, "aggregated": server.theta}


def hierarchical(i: Inputs) -> Fields:
    updates = tensor(i["updates"])
    _, M, G = updates.shape
    server = Server(
        parse("fedhgd", {"fedhgd.gamma": i["gamma"]}), updates.new_zeros(G), [1.0] * M, [n for _, n in i["layers"]]
    )
    steps = []
    for u in updates:
        before = server.theta
        server.round(u)
        steps.append(server.theta - before)
    return {"aggregated": torch.stack(steps)}


def classifier_weights(i: Inputs) -> Fields:
    """The heads come as trained models of which nothing else is known; client 0 to 3 take part."""
    heads, H, V = tensor(i["heads"]), tensor(i["H"]), tensor(i["V"])
    M, size = heads.shape
    rule = FedPAC(threshold=i["threshold"])
    server = Server(rule, heads.new_zeros(size), [1.0] * M, n_classes=H.shape[1], n_features=H.shape[2])
    server.setup = replace(server.setup, head=torch.ones(size, dtype=torch.bool))
    server.state = [rule.server_state(server.setup)]
    reports = {"H": H, "V": V, "proto": torch.zeros_like(H), "share": H.new_zeros(H.shape[:2])}
    server.round(heads, reports=[reports])
    return {
        "alpha_raw": replace(rule, threshold=0.0)._mixtures(H, V),
        "alpha": rule._mixtures(H, V),
        "personal_heads": server.state[0]["heads"],
    }


def rows(table: Fields, like: int, width: int) -> Tensor:
    """Prototypes [C, D] from class id to vector; zero where there is none."""
    return tensor([table.get(str(c), [0.0] * width) for c in range(like)])


def prototypes(i: Inputs) -> Fields:
    counts = tensor(i["counts"])
    M, C = counts.shape
    D = len(next(iter(i["local_prototypes"][0].values())))
    local = torch.stack([rows(table, C, D) for table in i["local_prototypes"]])
    server = Server(FedPAC(), local.new_zeros(1), [1.0] * M, n_classes=C, n_features=D)
    reports = {"H": local, "V": local.new_ones(M), **reported_prototypes(local, counts, weighted=True)}
    server.round(local.new_zeros(M, 1), reports=[reports])
    return {"global_prototypes": {str(c): server.state[0]["proto"][c] for c in range(C)}}


# the client side
class Linear(nn.Linear):
    """Logits of a linear layer, whose inputs are the features."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, dtype=torch.float64)


def linear_oracle(x: Any, y: Any, lr: float = 1.0, steps: int = 1) -> Oracle:
    """A client with a linear classifier of three classes."""
    x = tensor(x)
    return oracle_of(Linear(x.shape[1], 3), x, torch.tensor(y), SGD(lr), steps)


def margin(form: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        rule, theta, oracle = Margin(lam=i["lam"], form=form), tensor(i["params"]), linear_oracle(i["X"], i["y"])
        visit = visit_of(oracle, theta)
        out = out_of(oracle, theta)
        z = out.logits.detach().requires_grad_()
        there = replace(out, logits=z)
        loss = there.cross_entropy + rule.loss(there, visit)
        (dz,) = torch.autograd.grad(loss, z)
        grad = one_step_gradient((rule,), oracle, theta, theta, [{}], [{}])
        return {"loss": loss.detach(), "grad": grad, "logits": out.logits, "grad_logits": dz}

    return adapter


def one_round(i: Inputs) -> Fields:
    values = {"fedld.lam": i["lam"], "fedld.keep": i["keep"], "fedld.eigen": i["eigen_norm"]}
    start = tensor(i["params_global"])
    server = Server(parse("fedld:paper", values), start, [float(len(y)) for y in i["y"]], layout=(9, 3))
    losses, updates = [], []
    for x, y in zip(i["X"], i["y"], strict=True):
        oracle = linear_oracle(x, y, i["lr"])
        out, visit = out_of(oracle, start), visit_of(oracle, start)
        losses.append(out.cross_entropy + sum(rule.loss(out, visit) for rule in server.rules))
        trained, _, _, _ = visit_client(server.rules, oracle, 0, 1, start, [{}, {}], [{}, {}])
        updates.append(trained - start)
    cohort = server.round(torch.stack(updates))
    return {
        "client_loss": losses,
        "updates": updates,
        "L": cohort.notes["principal_axes"],
        "aggregated": cohort.step(),
        "params_new": server.theta,
    }


def proximal(form: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        """A norm is its gradient times its argument, a square half of that."""
        theta, start = tensor(i["params"]), tensor(i["params_global"])
        oracle = linear_oracle([[0.0] * 3], [0])
        assert list(oracle.layout) == i.get("tensor_lengths", [9, 3])
        grad = FedProx(mu=i["mu"], form=form).correction(theta, visit_of(oracle, start))
        return {"penalty": grad @ (theta - start) / (2 if form == "squared" else 1), "grad": grad}

    return adapter


class Shortcut(nn.Module):
    """Modules as named in a state dictionary: ``downsample.1`` is a BatchNorm by type, not by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2)
        self.downsample = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2))
        self.fc = nn.Linear(2, 2)


def key_partition(by: str) -> Callable[[Inputs], Fields]:
    def adapter(i: Inputs) -> Fields:
        """The counters are not in the vector: they stay with the rest of their module."""
        net = Shortcut()
        assert list(net.state_dict()) == i["state_keys"]
        model = Model(net)
        private = FedBN(by=by).private(model)
        parts = model.parts(private[: model.n_params], private[model.n_params :])
        modules = {name.rpartition(".")[0] for name, part in parts.items() if part.all()}
        assert all(part.all() or not part.any() for part in parts.values())
        local = [key for key in i["state_keys"] if key.rpartition(".")[0] in modules]
        return {"local_keys": local, "shared_keys": [key for key in i["state_keys"] if key not in local]}

    return adapter


def no_message(C: int, D: int) -> State:
    zero = torch.zeros(C, D, dtype=torch.float64)
    return {"proto": zero, "known": zero[:, :1]}


def statistics(i: Inputs) -> Fields:
    """The features of a linear classifier are its inputs."""
    reports = []
    for x, y in zip(i["features"], i["labels"], strict=True):
        oracle = linear_oracle(x, y, steps=0)
        G, C, D = oracle.n_params, i["num_classes"], len(x[0])
        head = torch.arange(G)
        vector = torch.zeros(G, dtype=torch.float64)
        message = {"head": vector, **no_message(C, D)}
        _, (report,), _, _ = visit_client((FedPAC(),), oracle, 0, 1, vector, [{"where": head}], [message])
        reports.append(report)
    return {"V": [r["V"] for r in reports], "H": [r["H"] for r in reports]}


def alignment(i: Inputs) -> Fields:
    z, y = tensor(i["features"]).requires_grad_(), torch.tensor(i["y"])
    C, D = len(i["local_prototypes"]), z.shape[1]
    known = tensor([[float(str(c) in i["global_prototypes"])] for c in range(C)])
    own = rows(i["local_prototypes"], C, D)
    oracle: Any = SimpleNamespace(moments=lambda vector, n_classes: (own, None, None))
    message = {"proto": rows(i["global_prototypes"], C, D), "known": known}
    nothing = torch.zeros(0, dtype=torch.float64)
    visit = Visit(nothing, 0, {}, message, oracle, 1, 2)
    rule: Rule = FedPAC(lam=i["lam"])
    loss = rule.loss(Out(z, z, y, None, lambda vector: z), visit)
    (grad,) = torch.autograd.grad(loss, z)
    return {"targets": FedPAC()._targets(y, visit), "loss": loss.detach(), "grad": grad}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "weighted_average": weighted_average,
    "fedld_principal_l2_kept": principal(),
    "fedld_principal_literal": principal(),
    "fedld_principal_l1_all": principal(),
    "fedld_principal_released_onelayer": principal("tensor"),
    "fedld_released_layers_history_3rounds": principal_history,
    "fedld_edge_duplicate_clients": principal(),
    "fedld_edge_zero_client": principal(),
    "fedld_edge_single_client": lambda i: principal()({"client_weight": "samples", **i}),
    "fedld_margin_paper": margin("paper"),
    "fedld_margin_released": margin("released"),
    "fedld_one_round": one_round,
    "fedbn_key_partition": key_partition("type"),
    "fedbn_key_partition_released": key_partition("name"),
    "fedprox_paper": proximal("squared"),
    "fedprox_released": proximal("norm"),
    "fedgh_pairwise_original": harmonised,
    "fedgh_pairwise_sequential": harmonised,
    "fedgh_pairwise_original_accumulate": harmonised,
    "fedgh_released_hgd_M5": hierarchical,
    "fedgh_released_hgd_M4": hierarchical,
    "fedpac_statistics": statistics,
    "fedpac_classifier_weights": classifier_weights,
    "fedpac_prototypes": prototypes,
    "fedpac_alignment_loss": alignment,
}
