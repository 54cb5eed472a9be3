"""Local training: the training loop of the whole library."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from equipoise.core.dense import Objective, Slopes, Steps, by_autograd
from equipoise.core.draws import Schedule
from equipoise.core.model import Evaluator
from equipoise.core.solver import SGD, Solver
from equipoise.core.task import Gradient, Out, Task
from equipoise.data.batch import Batch, Inputs
from equipoise.data.samples import Source
from equipoise.system.replay import in_turn

Terms = Callable[[Out], Tensor]  # what is minimised on a batch: [...]
Corrections = Callable[[Tensor], Tensor | float]
Wrap = Callable[[Gradient, Tensor], Tensor]


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
        """Whether the gradient is used as it is, in the cheapest parts."""
        return self.correction is None and self.wrap is None and self.only is None

    def run(
        self, evaluator: Evaluator, source: Source, solver: Solver, schedule: Schedule, theta: Tensor, buffers: Tensor
    ) -> Tensor:
        """Move ``theta`` [..., P] and ``buffers`` [..., G - P] in place through the batches of a schedule.

        A step that is padding for a client does not change its values. Returns the mean cross-entropy [...] over the samples
        in the order in which they were trained on, each with the model of its step.
        """
        parts = evaluator.cut(theta) if self.plain else (theta,)
        steps = self._steps(evaluator, solver, theta)
        slots = {} if steps else solver.init(parts)
        moving = (theta, buffers, *chain.from_iterable(slots.values()), *(steps.slots if steps else ()))
        fixed = None if self.only is None else theta.clone()
        counts = schedule.counts.reshape(-1, schedule.index.shape[-2])  # samples in each batch: [m or 1, K]
        widths = zip(counts.amax(0).tolist(), counts.amin(0).tolist(), strict=True)
        kinds = [(most, fewest < most, not fewest) for most, fewest in widths]
        losses = theta.new_zeros(len(kinds), len(counts))

        def step(k: int | Tensor, kind: tuple[int, bool, bool]) -> None:
            width, padded, ended = kind  # some clients have fewer samples in this batch, some none
            if not width:
                return
            rows, ok, live = _entry(schedule.index, k, -2)[..., :width], None, None  # padding comes last
            if padded:
                ok = rows >= 0
                rows, live = rows.clamp(min=0), ok.any(-1, keepdim=True) if ended else None
            shift = None if schedule.shift is None else _entry(schedule.shift, k, -3)[..., :width, :]
            before = () if live is None else tuple(value.clone() for value in moving)
            batch = source.batch(rows, shift)
            seen: list[Tensor] = []
            objective = self._objective(evaluator, batch, ok, theta.shape[-1], seen)
            if steps is not None:
                steps.step(batch.x, self._slopes(evaluator.model.task, batch, ok, objective, seen))
            elif self.plain:
                solver.step(parts, evaluator.gradients(theta, buffers, batch.x, objective), slots)
            else:
                gradient = self._gradient(evaluator, theta, buffers, batch.x, objective)
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
            if seen:  # a rule may evaluate a gradient more than once in a step, or never
                losses[k] = seen[0]

        # streamed samples come from elsewhere in every step, and random numbers from a generator that every client restarts
        in_turn(step, kinds, theta.device, replay=source.content is not None and not evaluator.model.random)
        used = [k for k, (width, *_) in enumerate(kinds) if width]
        taken = counts[:, used].T.to(theta)  # [K, m or 1]
        return ((losses[used] * taken).sum(0) / taken.sum(0)).reshape(theta.shape[:-1])

    def _steps(self, evaluator: Evaluator, solver: Solver, theta: Tensor) -> Steps | None:
        """Steps of a dense network without gradients in memory, if nothing else looks at these."""
        if not self.plain or type(solver) is not SGD or solver.clip is not None:
            return None
        layers, lr = evaluator.model.dense, solver.lr
        if layers is None or not isinstance(lr, float | int) or solver.weight_decay > solver.momentum > 0:
            return None  # as its momentum holds decay / momentum times the parameters
        return Steps(layers, theta, lr, solver.momentum, solver.weight_decay)

    def _slopes(self, task: Task, batch: Batch, ok: Tensor | None, objective: Objective, seen: list[Tensor]) -> Slopes:
        """The gradients of what is minimised by logits and features, in the cheapest way; the loss is appended to ``seen``."""

        def slopes(logits: Tensor, features: Tensor) -> tuple[Tensor | None, Tensor | None]:
            if self.terms is not None or (formula := task.slope(logits, batch.y, ok)) is None:
                return by_autograd(objective, logits, features)
            loss, slope = formula
            seen.append(loss)
            return slope, None

        return slopes

    def _objective(
        self, evaluator: Evaluator, batch: Batch, ok: Tensor | None, n_params: int, seen: list[Tensor]
    ) -> Objective:
        """What is minimised on a batch; the cross-entropy of every evaluation is appended to ``seen``."""

        def ask(vector: Tensor) -> tuple[Tensor, Tensor]:
            return evaluator.forward(vector[..., :n_params], vector[..., n_params:].clone(), batch.x)

        def objective(logits: Tensor, features: Tensor) -> Tensor:
            out = Out(logits, features, batch.y, ok, ask, evaluator.model.task, batch.s)
            seen.append(out.cross_entropy.detach())
            return out.cross_entropy if self.terms is None else self.terms(out)

        return objective

    def _gradient(
        self, evaluator: Evaluator, theta: Tensor, buffers: Tensor, x: Inputs, objective: Objective
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


def _entry(x: Tensor, k: int | Tensor, dim: int) -> Tensor:
    """The entry ``k`` of a dimension; where a device holds the number, without waiting for it."""
    return x.select(dim, k) if isinstance(k, int) else x.index_select(dim, k).squeeze(dim)
