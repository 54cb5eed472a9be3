"""Local training: the training loop of the whole library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from equipoise.core.draws import Schedule
from equipoise.core.model import Evaluator, Objective
from equipoise.core.rule import Gradient, Out
from equipoise.core.solver import Solver

Terms = Callable[[Out], Tensor]  # what is minimised on a batch: [...]
Corrections = Callable[[Tensor], Tensor | float]
Wrap = Callable[[Gradient, Tensor], Tensor]


class Source(Protocol):
    """Samples of one client, or of a stack of clients, ready for the network."""

    @property
    def size(self) -> int:
        """Samples of the client, or of the largest of the stack."""
        ...

    @property
    def sizes(self) -> Tensor:
        """Samples of each client [...]."""
        ...

    def batch(self, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs [..., B, *shape] and labels [..., B] of the samples ``rows`` [..., B] of each client."""
        ...

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [..., B] of the samples ``rows`` [..., B] of each client."""
        ...


@dataclass(frozen=True)
class Training:
    """What one visit minimises, and how its gradient is changed; None changes nothing.

    ``terms`` is minimised on every batch (default: the loss), ``correction`` is added to its gradient, and ``wrap`` may
    evaluate the gradient elsewhere. Coordinates outside ``only`` [..., P] keep their value.
    """

    terms: Terms | None = None
    correction: Corrections | None = None
    wrap: Wrap | None = None
    only: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the gradient is used as autograd gives it, in the cheapest parts."""
        return self.correction is None and self.wrap is None and self.only is None

    def run(
        self, evaluator: Evaluator, source: Source, solver: Solver, schedule: Schedule, theta: Tensor, buffers: Tensor
    ) -> Tensor:
        """Move ``theta`` [..., P] and ``buffers`` [..., G - P] in place through the batches of a schedule.

        A step that is padding for a client does not change its values. Returns the mean cross-entropy [...] over the samples
        in the order in which they were trained on, each with the model of its step.
        """
        seen: list[Tensor] = []
        steps: list[int] = []
        parts = evaluator.cut(theta) if self.plain else (theta,)
        slots = solver.init(parts)
        index = schedule.index
        fixed = None if self.only is None else theta.clone()
        counts = schedule.counts.reshape(-1, index.shape[-2])  # samples in each batch: [m or 1, K]
        fewest, most = counts.amin(0).tolist(), counts.amax(0).tolist()
        for k, width in enumerate(most):
            if not width:
                continue
            rows, ok, live = index[..., k, :width], None, None  # padding comes last
            if fewest[k] < width:
                ok = rows >= 0
                rows, live = rows.clamp(min=0), None if fewest[k] else ok.any(-1, keepdim=True)
            shift = None if schedule.shift is None else schedule.shift[..., k, :width, :]
            moving = (theta, buffers, *(s for name in slots for s in slots[name]))
            before = () if live is None else tuple(value.clone() for value in moving)
            x, y = source.batch(rows, shift)
            objective = self._objective(evaluator, x, y, ok, theta.shape[-1], seen)
            if self.plain:
                solver.step(parts, evaluator.gradients(theta, buffers, x, objective), slots)
            else:
                gradient = self._gradient(evaluator, theta, buffers, x, objective)
                if self.correction is not None:
                    gradient = gradient + self.correction(theta)
                if self.only is not None:  # as if the others had no gradient ...
                    gradient = gradient * self.only
                solver.step(parts, [gradient], slots)
                if self.only is not None and fixed is not None:  # ... and no weight decay
                    theta.copy_(torch.where(self.only, theta, fixed))
            if live is not None:
                for value, old in zip(moving, before, strict=True):
                    value.copy_(torch.where(live, value, old))
            steps.append(k)
            del seen[len(steps) :]  # a rule may evaluate a gradient more than once in a step
        taken = counts[:, steps].T.to(theta)  # [K, m or 1]
        losses = torch.stack(seen).reshape(taken.shape) if seen else taken
        return ((losses * taken).sum(0) / taken.sum(0)).reshape(theta.shape[:-1])

    def _objective(
        self, evaluator: Evaluator, x: Tensor, y: Tensor, ok: Tensor | None, n_params: int, seen: list[Tensor]
    ) -> Objective:
        """What is minimised on a batch; the cross-entropy of every evaluation is appended to ``seen``."""

        def ask(vector: Tensor) -> tuple[Tensor, Tensor]:
            return evaluator.forward(vector[..., :n_params], vector[..., n_params:].clone(), x)

        def objective(logits: Tensor, features: Tensor) -> Tensor:
            out = Out(logits, features, y, ok, ask)
            seen.append(out.cross_entropy.detach())
            return out.cross_entropy if self.terms is None else self.terms(out)

        return objective

    def _gradient(
        self, evaluator: Evaluator, theta: Tensor, buffers: Tensor, x: Tensor, objective: Objective
    ) -> Tensor:
        """Gradient [..., P] on a batch, which ``wrap`` may evaluate elsewhere."""
        if self.wrap is None:
            return evaluator.gradient(theta, buffers, x, objective)
        first = True

        def grad(at: Tensor) -> Tensor:
            nonlocal first
            # a second evaluation must not move the BatchNorm statistics twice
            statistics = buffers if first else buffers.clone()
            first = False
            gradient = evaluator.gradient(at, statistics, x, objective)
            # coordinates that do not move must not count in a search distance
            return gradient.clone() if self.only is None else gradient * self.only

        return self.wrap(grad, theta)
