"""Golden entries of hidden units: their importance, the parameters of a submodel, its training, and its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core.draws import Schedule
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.solver import SGD
from equipoise.data.samples import read
from equipoise.submodels.discovery import find
from equipoise.submodels.importance import ablation, naive
from helpers import tensor

Inputs = Mapping[str, Any]
Fields = dict[str, Any]
TENSORS = ("W1", "b1", "W2", "b2", "W3", "b3")


def mlp(i: Inputs) -> tuple[Neurons, Tensor]:
    """The network of an entry, with its hidden units, and its vector."""
    values = [tensor(i[name]) for name in TENSORS]
    layers = [nn.Linear(w.shape[1], w.shape[0]).double() for w in values[::2]]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    vector = torch.cat([v.flatten() for v in values])
    model = Model(net)
    return find(model, tensor(i["X"]).flatten(0, -2)), vector


def named(neurons: Neurons, vector: Tensor) -> Fields:
    parts = neurons.model.parts(vector, vector[:0])
    return dict(zip(TENSORS, (parts[name] for name in neurons.model.names), strict=True))


def units(i: Inputs) -> Tensor:
    return torch.tensor([*i["mask1"], *i["mask2"]], dtype=torch.bool)


def importance(i: Inputs) -> Fields:
    neurons, vector = mlp(i)
    x, y = tensor(i["X"]), torch.tensor(i["y"])
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    losses, base = ablation(neurons, vector, batches)
    slow, whole = naive(neurons, vector, batches)
    assert (losses - slow).abs().max() < 1e-12
    assert (base - whole).abs() < 1e-12
    return {"base_loss": base, "ablated_loss": losses, "importance": losses - base}


def param_mask(i: Inputs) -> Fields:
    neurons, vector = mlp(i)
    held = neurons.held(units(i))
    n = int(held.sum())
    logits, _ = Bound(neurons.model).forward(vector * held, vector[:0], tensor(i["X"]))
    masks = {name: part.int() for name, part in named(neurons, held).items()}
    return {"masks": masks, "n_params": n, "payload_bytes_float32": 4 * n, "logits": logits}


def masked_sgd(i: Inputs) -> Fields:
    """The large network on held coordinates, and the small one by itself: they must agree."""
    neurons, vector = mlp(i)
    held = neurons.held(units(i))
    x, y = tensor(i["X"]), torch.tensor(i["y"])
    source = read((x.flatten(0, 1), y.flatten()), "client", torch.float64, torch.device("cpu"))
    plan = Schedule(torch.arange(y.numel()).view(y.shape), None)
    oracle = Oracle(Bound(neurons.model), source, SGD(i["lr"]), plan, neurons.model.n_params)
    theta = oracle.solve(vector * held, only=held)
    small, index = neurons.extract(units(i))
    alone = Oracle(Bound(small), source, SGD(i["lr"]), plan, small.n_params).solve(vector[index])
    assert (theta[index] - alone).abs().max() < 1e-12
    return {"theta": named(neurons, theta)}


def cost(i: Inputs) -> Fields:
    d, h1, h2, C = i["dims"]
    net = nn.Sequential(nn.Linear(d, h1), nn.ReLU(), nn.Linear(h1, h2), nn.ReLU(), nn.Linear(h2, C))
    neurons = find(Model(net), torch.ones(2, d))
    kept = torch.stack(
        [torch.cat([torch.arange(h) < k for h, k in zip((h1, h2), row, strict=True)]) for row in i["kept"]]
    )
    held = neurons.held(kept).sum(-1)
    for row, n in zip(kept, held, strict=True):
        small, index = neurons.extract(row)
        assert small.size == len(index) == n
    return {
        "n_params": held,
        "bytes": 4 * held,
        "bitmap_bytes": -(-neurons.n // 8),
        "ratio": held.double() / neurons.model.size,
    }


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "fedsac.importance.eq3": importance,
    "fedsac.param_mask": param_mask,
    "fedsac.local_training.masked_sgd": masked_sgd,
    "fedsac.cost.bytes": cost,
}
