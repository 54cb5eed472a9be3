r"""What many models of one network do on a data set, together: of dense networks by products of whole stacks, of others one after another.

.. math:: z_1(\theta + \sum_k c_k u_k) = z_1(\theta) + \sum_k c_k z_1(u_k)

So where models are sums of few vectors, the first layer is computed for these vectors only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from equipoise.core.dense import ACTIVATIONS, Dense
from equipoise.core.model import Bound, Model, Stacked
from equipoise.core.oracle import EVALUATION_BATCH
from equipoise.core.tally import Tally, together
from equipoise.core.task import Classification
from equipoise.data.batch import Batch
from equipoise.data.samples import Samples, at_once, in_cache
from equipoise.system import threads
from equipoise.system.tree import aligned, tree_map

CHUNK = 32 << 20  # most bytes of models at a time, and of the first layer of all parts of a mixture
CACHE = 2 << 20  # bytes of the widest layer of the models at a time: more leave the cache
AT_ONCE = 64  # most models at a time


@dataclass(frozen=True)
class Mixture:
    """Models [S, G] that are sums: ``origin`` [G] + ``coefficients`` [S, K] of ``parts`` [K, G]."""

    origin: Tensor
    parts: Tensor
    coefficients: Tensor

    def __len__(self) -> int:
        return len(self.coefficients)

    def __getitem__(self, rows: slice) -> Tensor:
        """Some of the models."""
        return torch.addmm(self.origin, self.coefficients[rows], self.parts)


Models = Tensor | Mixture
Score = Callable[[slice], Tally]  # of some of the models


def tally_of(model: Model, models: Models, data: Samples) -> Tally:
    """What each of several models [S, G] does on a data set, as a tally of [S].

    Threads share the models; the result does not depend on their number.
    """
    dense, item = model.dense, model.initial.element_size()
    most, bytes_of_one = EVALUATION_BATCH, item * model.size
    if dense is not None:
        heights = [dense.shapes[layer.weight][0] for layer in dense.layers]
        of_parts = item * heights[0] * (len(models.parts) + 1 if isinstance(models, Mixture) else 1)
        most = max(1, min(most, CHUNK // of_parts))
    most = at_once(data, most)
    size = CHUNK // bytes_of_one
    if dense is not None:
        size = min(size, CACHE // (item * max(heights) * min(most, data.size)))
    size = max(1, min(size, AT_ONCE))
    chunks = [slice(first, min(first + size, len(models))) for first in range(0, len(models), size)]
    tallies = list[Tally]()
    for rows in torch.arange(data.size, device=model.initial.device).split(most):
        batch = data.batch(rows, None)
        if dense is not None:
            make = partial(_given, _by_layers(model, _Stack(dense, models), batch))
        elif model.initial.device.type == "cpu":
            make = partial(_one_by_one, model, models, batch, in_cache(data, most))
        else:
            make = partial(_mapped, model, models, batch)
        parts = threads.run_in_order(chunks, make, threads.allowed())
        tallies.append(_stacked(parts))
    return together(tallies)


def _given(score: Score) -> Score:
    return score


def _stacked(parts: Sequence[Tally]) -> Tally:
    """The tally of [S] from those of some of the models each."""
    names = [part.name for part in fields(parts[0])]
    return replace(parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _one_by_one(model: Model, models: Models, batch: Batch, width: int) -> Score:
    """Models in turn, as views of their vectors, on so many samples at a time."""
    bound, P = Bound(model), model.n_params
    inputs = batch.x.split(width) if isinstance(batch.x, Tensor) else [batch.x]

    def score(rows: slice) -> Tally:
        logits = list[Tensor]()
        for theta in aligned(models[rows]):
            buffers = theta[P:].clone()
            logits.append(torch.cat([bound.forward(theta[:P], buffers, x)[0] for x in inputs]))
        return model.task.tally(torch.stack(logits), batch.y.expand(len(logits), -1))

    return score


def _mapped(model: Model, models: Models, batch: Batch) -> Score:
    """Models by ``torch.vmap``, on a GPU."""
    network, P = Stacked(model), model.n_params

    def score(rows: slice) -> Tally:
        some = models[rows]
        x = tree_map(lambda leaf: leaf.expand(len(some), *leaf.shape), batch.x)
        logits, _ = network.forward(some[:, :P], some[:, P:].clone(), x)
        return model.task.tally(logits, batch.y.expand(len(some), -1))

    return score


@dataclass(frozen=True)
class _Stack:
    """The tensors of several dense networks."""

    dense: Dense
    models: Models

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors of all models [S, ...]; or those of the origin and of the parts [K + 1, ...]."""
        if isinstance(self.models, Tensor):
            return self.dense.cut(self.models)
        return self.dense.cut(torch.cat([self.models.origin[None], self.models.parts]))

    @cached_property
    def factors(self) -> Tensor | None:
        """Of the origin, which are 1, and of the parts [S, K + 1]; None: the models are no mixture."""
        return None if isinstance(self.models, Tensor) else functional.pad(self.models.coefficients, (1, 0), value=1.0)

    def tensor(self, place: int | None, rows: slice) -> Tensor | None:
        """A tensor of some of the models [s, ...]; None: there is none."""
        if place is None:
            return None
        x = self.tensors[place]
        return x[rows] if self.factors is None else (self.factors[rows] @ x.flatten(1)).view(-1, *x.shape[1:])

    def first(self, x: Tensor) -> Callable[[slice], Tensor]:
        """The first layer of some of the models [s, H, B], before its activation; they have the same inputs [d, B]."""
        weight, bias, _ = self.dense.layers[0]
        factors = self.factors
        if factors is None or factors.shape[1] >= len(x):
            return lambda rows: _first(cast(Tensor, self.tensor(weight, rows)), self.tensor(bias, rows), x)
        z = _first(self.tensors[weight], None if bias is None else self.tensors[bias], x)
        flat = z.flatten(1)
        return lambda rows: (factors[rows] @ flat).view(-1, *z.shape[1:])


def _first(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """A layer [s, H, B] with the same inputs [d, B] for all models, as one product."""
    z = (weight.flatten(0, 1) @ x).view(*weight.shape[:2], -1)
    return z if bias is None else z.add_(bias.unsqueeze(-1))


@torch.no_grad()
def _by_layers(model: Model, stack: _Stack, batch: Batch) -> Score:
    """Dense networks by products of stacks, whose samples are the last axis, [s, H, B]."""
    first = stack.first(cast(Tensor, batch.x).flatten(1).mT.contiguous())

    @torch.no_grad()
    def score(rows: slice) -> Tally:
        z = first(rows)
        for k, (weight, bias, activations) in enumerate(stack.dense.layers):
            if k:
                W, b = cast(Tensor, stack.tensor(weight, rows)), stack.tensor(bias, rows)
                z = W @ z if b is None else torch.baddbmm(b.unsqueeze(-1), W, z)
            for activation in activations:
                z = z.relu_() if activation == "ReLU" else ACTIVATIONS[activation].forward(z)
        y = batch.y.expand(len(z), -1)
        return _classes(z, y) if type(model.task) is Classification else model.task.tally(z.mT, y)

    return score


def _classes(z: Tensor, y: Tensor) -> Tally:
    """What :meth:`equipoise.core.task.Task.tally` gives of a classification, for logits [s, C, B] whose classes are not last."""
    C, B = z.shape[1:]
    top = z.amax(1)
    below = z - top.unsqueeze(1)  # 0 where it is the largest
    chosen = below.sign().mul_(C).sub_(torch.arange(C).to(z).unsqueeze(-1)).amax(1).neg_()  # the lowest class of these
    predicted = chosen.where(top.isfinite(), -1).long()
    at_label = below.gather(1, y.unsqueeze(1)).squeeze(1)
    losses = below.exp_().sum(1).log_().sub_(at_label)
    loss = losses.double().mean(-1) * B  # as there
    return Classification.sums.of(loss, predicted, y, torch.ones_like(y, dtype=torch.bool), C)
