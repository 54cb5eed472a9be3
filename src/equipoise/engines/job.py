"""What an engine is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.data.samples import Samples, Stream
from equipoise.draws import Plan, plan
from equipoise.model import Model
from equipoise.rule import Rule, State
from equipoise.solver import Solver
from equipoise.tree import tree_map


@dataclass(frozen=True)
class Job:
    """The client side of one round.

    ``ids`` are the M clients, ``received`` [M, G] the models they start from (a view where all get the same),
    ``states`` and ``messages`` one dictionary per rule with values [M, ...], ``data`` their samples. ``private`` [G] marks
    what never leaves a client.
    """

    model: Model
    rules: tuple[Rule, ...]
    solver: Solver
    seed: int
    t: int
    rounds: int
    epochs: int
    batch_size: int
    crop: int
    ids: tuple[int, ...]
    received: Tensor
    states: list[State]
    messages: list[State]
    data: Sequence[Samples | Stream]
    private: Tensor | None = None

    def plan(self, rows: Sequence[int]) -> Plan:
        """The batches of the clients that stand at ``rows`` of this job."""
        drawn = plan(
            self.seed,
            self.t,
            [self.ids[r] for r in rows],
            [self.data[r].size for r in rows],
            self.epochs,
            self.batch_size,
            crop=self.crop,
            drop_single=self.model.batch_norm,
        )
        device = self.received.device
        shift = None if drawn.shift is None else drawn.shift.to(device)
        return Plan(drawn.index.to(device), shift, drawn.epochs)

    def take(self, trees: list[State], rows: slice | int | list[int]) -> list[State]:
        """The entries of the clients at ``rows``."""
        taken: list[State] = tree_map(lambda leaf: leaf[rows], trees)
        return taken


@dataclass(frozen=True)
class Answer:
    """What the clients at ``rows`` of a job sent: trained models [m, G] and, per rule, reports and states [m, ...].

    ``error`` says why they sent nothing, and ``cause`` is what was raised.
    """

    rows: tuple[int, ...]
    trained: Tensor
    reports: list[State]
    states: list[State]
    error: str | None = None
    cause: Exception | None = None

    @staticmethod
    def failed(row: int, error: Exception) -> Answer:
        """The answer of a client that raised."""
        return Answer((row,), torch.empty(0), [], [], f"{type(error).__name__}: {error}", error)


Engine = Callable[[Job], Iterator[Answer]]
