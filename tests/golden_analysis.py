"""Golden entries of the analyses: the loss decomposition and the loss landscape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.analysis import filter_normalised
from equipoise.core.solver import SGD
from equipoise.metrics.decomposition import decompose
from helpers import oracle_of, tensor

Fields = dict[str, Any]


def decomposition(i: Fields) -> Fields:
    found = decompose(i["cross_loss"], i["global_model_loss"], i["n"])
    return {
        "local_loss": found.local,
        "distribution_shift_signed": found.shift,
        "aggregation_signed": found.aggregation,
        "distribution_shift_loss": abs(found.shift),
        "aggregation_loss": abs(found.aggregation),
        "global_loss": found.total,
    }


def decomposition_released(i: Fields) -> Fields:
    """The removed code summed over m clients where Eq. 2 with equal clients takes the mean."""
    m = len(i["cross_loss"])
    found = decompose(i["cross_loss"], i["global_model_loss"], [1] * m)
    return {
        "supervised_loss": m * found.local,
        "dist_shift_loss": m * found.shift,
        "aggregation_loss": m * found.aggregation,
    }


def normalisation(i: Fields) -> Fields:
    weights, raw = ([tensor(part) for part in i[key]] for key in ("weights", "raw_direction"))
    flat = [torch.cat([part.flatten() for part in parts]) for parts in (raw, weights)]
    found = filter_normalised(*flat, [w.shape for w in weights]).split([w.numel() for w in weights])
    return {"direction": [part.view(w.shape) for part, w in zip(found, weights, strict=True)]}


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x)))


def curve(i: Fields) -> Fields:
    theta, raw = tensor(i["params"]), tensor(i["raw_direction"])
    oracle = oracle_of(Tanh(), tensor(i["X"]), torch.tensor(i["y"]), SGD(1.0))
    direction = filter_normalised(raw, theta, [(2, 2), (2,), (2, 2), (2,)])
    return {"direction": direction, "losses": [oracle.loss(theta + a * direction) for a in i["alphas"]]}


ADAPTERS: dict[str, Callable[[Fields], Fields]] = {
    "fedld_loss_decomposition": decomposition,
    "fedld_loss_decomposition_released": decomposition_released,
    "landscape_filter_normalisation": normalisation,
    "landscape_1d_curve": curve,
}
