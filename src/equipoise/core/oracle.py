"""What a rule may compute on a client's data set: loss, gradient, accuracy, features, and local training."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from equipoise.core import maths
from equipoise.core.draws import Schedule
from equipoise.core.model import Evaluator
from equipoise.core.solver import Solver
from equipoise.core.tally import ClassTally, Tally, together
from equipoise.core.task import Task
from equipoise.core.training import Corrections, Terms, Training, Wrap
from equipoise.data.batch import Batch, Inputs
from equipoise.data.samples import Source, at_once

EVALUATION_BATCH = 512  # samples per forward pass, over all clients of a stack


class Oracle:
    """One data set (or a stack of them) under one network and solver.

    It has many methods because it is all that a rule may compute on data: each serves some rule.

    Parameters
    ----------
    evaluator : the network at given vectors.
    source : the samples.
    solver : the local optimiser.
    schedule : the batches of this visit.
    n_params : number P of parameters, which come first in a whole vector [..., G].
    """

    def __init__(self, evaluator: Evaluator, source: Source, solver: Solver, schedule: Schedule, n_params: int) -> None:
        self.evaluator, self.source, self.n_params = evaluator, source, n_params
        self.solver, self.schedule = solver, schedule
        self._once: dict[object, Tensor] = {}
        self._moments: tuple[Tensor, tuple[Tensor, Tensor, Tensor]] | None = None

    @property
    def task(self) -> Task:
        """What the targets mean."""
        return self.evaluator.model.task

    # questions about the whole data set, at a whole vector [..., G], in eval mode and without crops
    def passes(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor, Batch, Tensor]]:
        """Logits [..., B, C], features [..., B, D] and the batch, block by block; false in the last [..., B] is padding."""
        theta, buffers = vector[..., : self.n_params], vector[..., self.n_params :].clone()
        for batch, ok in self.samples():
            logits, features = self.evaluator.forward(theta, buffers, batch.x)
            yield logits, features, batch, ok

    def samples(self) -> Iterator[tuple[Batch, Tensor]]:
        """All samples [..., B], block by block, without crops; false in the last [..., B] is padding."""
        return ((self.source.batch(rows, None), ok) for rows, ok in self._blocks())

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        sizes, longest = self.source.sizes, self.source.size
        width = max(1, at_once(self.source, EVALUATION_BATCH) // max(1, sizes.numel()))
        for start in range(0, longest, width):
            rows = torch.arange(start, min(start + width, longest), device=sizes.device)
            ok = rows < sizes.unsqueeze(-1)  # [..., B]
            yield torch.where(ok, rows, 0), ok

    def tally(self, vector: Tensor) -> Tally:
        """What the model does on the data set, or each of a stack of them."""
        return together(self.task.tally(logits, batch.y, ok=ok) for logits, _, batch, ok in self.passes(vector))

    def loss(self, vector: Tensor) -> Tensor:
        """Mean loss over the data set [...]."""
        return self.tally(vector).mean_loss.to(vector.dtype)

    def accuracy(self, vector: Tensor) -> Tensor:
        """Share of samples classified correctly [...]; of a regression minus the mean squared error."""
        return self.tally(vector).goodness.to(vector.dtype)

    def balanced_accuracy(self, vector: Tensor) -> Tensor:
        """Mean recall over the classes of the data set [...]."""
        return cast(ClassTally, self.tally(vector)).balanced.to(vector.dtype)

    def batches(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs and labels [B] of the whole data set of one client, batch by batch."""
        batches = (self.source.batch(rows[ok], None) for rows, ok in self._blocks())
        return ((batch.x, batch.y) for batch in batches)

    def batch_losses(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of each batch of the first epoch of this visit, and whether the batch exists: [..., K] both.

        At a whole vector [..., G], in eval mode and without crops, in float64; 0 for a batch that does not exist.
        """
        theta, buffers = vector[..., : self.n_params], vector[..., self.n_params :].clone()
        index = self.schedule.first(1).index
        exists, losses = index >= 0, []
        width = max(1, at_once(self.source, EVALUATION_BATCH) // max(1, index.shape[-1] * self.source.sizes.numel()))
        for some in index.split(width, -2):  # several batches in one pass
            batch = self.source.batch(some.clamp(min=0).flatten(-2), None)
            sample_losses = self.task.losses(self.evaluator.forward(theta, buffers, batch.x)[0], batch.y).double()
            losses.append((sample_losses.view(some.shape) * (some >= 0)).sum(-1))
        return torch.cat(losses, -1) / exists.sum(-1).clamp(min=1), exists.any(-1)

    def class_counts(self, n_classes: int) -> Tensor:
        """Samples of each class [..., C]."""

        def count() -> Tensor:
            total = torch.zeros((), dtype=torch.int64, device=self.source.sizes.device)
            for rows, ok in self._blocks():
                total = total + (functional.one_hot(self.source.labels(rows), n_classes) * ok.unsqueeze(-1)).sum(-2)
            return total

        return self.once("class counts", count)

    def once(self, name: object, compute: Callable[[], Tensor]) -> Tensor:
        """What ``compute`` gives at its first call of this ``name``, so that a rule may ask on every batch of a visit."""
        if name not in self._once:
            self._once[name] = compute()
        return self._once[name]

    @property
    def head(self) -> Tensor:
        """True on the classifier's coordinates [P]."""
        return self.evaluator.model.head[: self.n_params]

    @property
    def layout(self) -> tuple[int, ...]:
        """Sizes of the trainable tensors, in the order of the vector."""
        return self.evaluator.model.layout

    def features(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features [..., n, D], labels [..., n], and false [..., n] where a sample is padding."""
        passes = [(features, batch.y, ok) for _, features, batch, ok in self.passes(vector)]
        features, y, ok = (torch.cat(part, -2 if k == 0 else -1) for k, part in enumerate(zip(*passes, strict=True)))
        return features, y, ok

    def moments(self, vector: Tensor, n_classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mean feature of each class [..., C, D], samples of each [..., C], and mean squared length of a feature [...], in float64.

        The last result is cached, so that a rule may call this on every batch of a visit.
        """
        if self._moments is None or self._moments[0] is not vector:
            sums = count = square = torch.zeros((), dtype=torch.float64, device=vector.device)
            for _, features, batch, ok in self.passes(vector):
                wide = features.double()  # variances are differences of these
                more, n = maths.class_sums(wide, batch.y, ok, n_classes)
                sums, count = sums + more, count + n
                square = square + (wide.square().sum(-1) * ok).sum(-1)
            self._moments = vector, (maths.class_means(sums, count), count, square / self.source.sizes)
        return self._moments[1]

    def gradient(self, vector: Tensor) -> Tensor:
        """Gradient [..., P] of :meth:`loss`."""
        theta, buffers = vector[..., : self.n_params], vector[..., self.n_params :].clone()
        total = torch.zeros_like(theta)
        for rows, ok in self._blocks():
            batch = self.source.batch(rows, None)

            def share(logits: Tensor, features: Tensor, y: Tensor = batch.y, ok: Tensor = ok) -> Tensor:
                return (self.task.losses(logits, y) * ok).sum(-1) / self.source.sizes

            total = total + self.evaluator.gradient(theta, buffers, batch.x, share, train=False)
        return total

    # local training
    @property
    def steps(self) -> Tensor:
        """Steps K that each client takes in this visit [..., 1]."""
        return (self.schedule.index >= 0).any(-1).sum(-1, keepdim=True)

    @property
    def travel(self) -> Tensor:
        """Distance that these steps move the parameters along a constant unit gradient [..., 1], or each of them [..., P]."""
        return self.solver.travel(self.steps.double())

    def solve(self, start: Tensor, *terms: Any, **options: Any) -> Tensor:
        """Train from a whole vector ``start`` [..., G] through the batches of this visit: the trained vector [..., G].

        It takes what :meth:`train` takes, which also gives the loss.
        """
        return self.train(start, *terms, **options)[0]

    def train(
        self,
        start: Tensor,
        terms: Terms | None = None,
        correction: Corrections | None = None,
        wrap: Wrap | None = None,
        only: Tensor | None = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        solver: Solver | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Train as :meth:`solve` does: the trained vector [..., G], and the mean cross-entropy [...] of the batches.

        ``terms``, ``correction``, ``wrap`` and ``only`` : see :class:`equipoise.core.training.Training`. ``epochs`` stops after
        that many epochs of the visit; ``steps`` takes that many batches, from the first again after the last; ``solver``
        replaces that of the visit.
        """
        theta, buffers = start[..., : self.n_params].clone(), start[..., self.n_params :].clone()
        schedule = self.schedule if epochs is None else self.schedule.first(epochs)
        schedule = schedule if steps is None else schedule.cycle(steps)
        training = Training(terms, correction, wrap, only)
        loss = training.run(self.evaluator, self.source, solver or self.solver, schedule, theta, buffers)
        return torch.cat([theta, buffers], -1) if buffers.shape[-1] else theta, loss
