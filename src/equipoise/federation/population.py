"""Clients that are not in this process: what a federation leaves to whoever reaches them."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from equipoise.engines.choose import EngineChoice
from equipoise.federation.evaluation import EvaluationSets
from equipoise.federation.records import Record
from equipoise.federation.trial import Progression, Trial


class Population(Protocol):
    """The clients of a federation who keep their data, their states and their test sets where they are."""

    @property
    def choice(self) -> EngineChoice:
        """The name of the engine that asks them, and why, for readers of the results."""

    @property
    def tested(self) -> bool:
        """Whether every client has test sets."""

    def train(self, trial: Trial, now: Progression, rounds: int) -> tuple[Progression, Record]:
        """One round, as :func:`equipoise.federation.round.one_round` is."""

    def test(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """How well the models do after a round; ``tests`` are the server's own."""

    def standalone(self, trial: Trial, tests: EvaluationSets, rounds: int) -> dict[str, Any]:
        """What each client reaches alone, as :meth:`equipoise.Federation.standalone` gives it."""

    def deployed(self, trial: Trial, now: Progression, m: int) -> Tensor:
        """The model [G] that client ``m`` predicts with.

        Raises
        ------
        ValueError : the server does not have it.
        """

    def saved(self, now: Progression) -> None:
        """Take note that the run can go on from here: a checkpoint of it was written, or read."""
