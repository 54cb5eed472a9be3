"""What many models do on a data set, in one pass: dense networks by products over all models, others one model after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from equipoise.core.dense import ACTIVATIONS, Dense
from equipoise.core.model import Bound
from equipoise.core.oracle import EVALUATION_BATCH
from equipoise.core.tally import ClassTally, Tally, together
from equipoise.core.task import Classification
from equipoise.data.batch import Inputs
from equipoise.data.samples import Samples, at_once
from equipoise.federation.trial import Trial
from equipoise.system.threads import run_in_order

LAYER = 2 << 20  # bytes of what a layer gives for models at a time, so that they stay in the cache


class Mixture(NamedTuple):
    """Of what models are sums: ``origin`` [G], and ``coefficients`` [S, K] of ``parts`` [K, G]."""

    origin: Tensor
    parts: Tensor
    coefficients: Tensor


@torch.no_grad()
def tally_of(trial: Trial, models: Tensor, data: Samples, mixture: Mixture | None = None) -> Tally:
    """What each of a stack of models [S, G] does on a data set; of what they are sums may be known."""
    dense, task = trial.model.dense, trial.model.task
    parts = list[Tally]()
    for rows in torch.arange(data.size, device=models.device).split(at_once(data, EVALUATION_BATCH)):
        batch = data.batch(rows, None)
        if dense is not None and type(task) is Classification:
            parts.append(_by_class(_dense(dense, models, cast(Tensor, batch.x), mixture), batch.y))
        elif dense is not None:
            outputs = torch.cat([*_dense(dense, models, cast(Tensor, batch.x), mixture)]).mT
            parts.append(task.tally(outputs, batch.y.expand(len(models), -1)))
        else:
            parts.append(task.tally(_one_by_one(trial, models, batch.x), batch.y.expand(len(models), -1)))
    return together(parts)


def _one_by_one(trial: Trial, models: Tensor, x: Inputs) -> Tensor:
    """The outputs [S, B, C] of models, computed by all workers, on which no bit depends."""
    P = trial.model.n_params

    def make() -> Callable[[int], Tensor]:
        bound = Bound(trial.model)
        return lambda k: bound.forward(models[k, :P], models[k, P:].clone(), x)[0]

    return torch.stack(run_in_order(range(len(models)), make, trial.workers))


def _dense(dense: Dense, models: Tensor, x: Tensor, mixture: Mixture | None) -> Iterator[Tensor]:
    """The outputs [s, C, B] of dense networks for the same inputs x [B, ...], some models at a time."""
    tensors, x = dense.cut(models), x.flatten(1).mT.contiguous()
    widest = max(tensors[layer.weight].shape[1] for layer in dense.layers)
    first = _first(dense, tensors, x, mixture)
    for some in torch.arange(len(models)).split(max(1, LAYER // (widest * x.shape[1] * x.element_size()))):
        part = slice(int(some[0]), int(some[-1]) + 1)
        h = first(part)
        for place, (weight, bias, activations) in enumerate(dense.layers):
            if place and bias is not None:
                h = torch.baddbmm(tensors[bias][part].unsqueeze(-1), tensors[weight][part], h)
            elif place:
                h = tensors[weight][part] @ h
            for activation in activations:
                h = ACTIVATIONS[activation].forward(h)
        yield h


def _first(dense: Dense, tensors: Sequence[Tensor], x: Tensor, mixture: Mixture | None) -> Callable[[slice], Tensor]:
    """What the first layer gives of inputs x [D, B] for some models [s, H, B]: one product, or sums of those of a mixture, if they are fewer."""
    weight, bias, _ = dense.layers[0]
    width, D = tensors[weight].shape[1:]

    def affine(own: Sequence[Tensor]) -> Tensor:
        h = (own[weight].reshape(-1, D) @ x).view(-1, width, x.shape[1])
        return h if bias is None else h.add_(own[bias].reshape(-1, width, 1))

    if mixture is None or len(mixture.parts) + 1 >= D:
        return lambda part: affine([t[part] for t in tensors])
    origin, parts = (affine(dense.cut(v)).flatten(1) for v in (mixture.origin[None], mixture.parts))
    c = mixture.coefficients.to(parts)
    return lambda part: torch.addmm(origin, c[part], parts).view(-1, width, x.shape[1])


def _by_class(outputs: Iterator[Tensor], y: Tensor) -> ClassTally:
    """The tally of classifiers with outputs [s, C, B]: sums over the last axis would cost more than the products."""
    sums = list[Sequence[Tensor]]()
    for logits in outputs:
        top, predicted = logits.max(1)
        right = logits.gather(1, y.expand(len(logits), 1, -1)).squeeze(1)
        losses = (logits - top.unsqueeze(1)).exp_().sum(1).log_() + (
            top - right
        )  # logsumexp less the logit of the class
        sums.append((losses.double().mean(-1) * len(y), predicted.masked_fill_(~top.isfinite(), -1)))
    loss, predicted = (torch.cat(parts) for parts in zip(*sums, strict=True))
    labels = y.expand_as(predicted)
    return ClassTally.of(loss, predicted, labels, torch.ones_like(labels, dtype=torch.bool), logits.shape[1])
