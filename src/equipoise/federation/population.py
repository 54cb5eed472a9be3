"""The interface to clients in other processes or on other machines."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from equipoise.engines.choose import EngineChoice
from equipoise.federation.checkpoint import Kept
from equipoise.federation.evaluation import EvaluationSets
from equipoise.federation.trial import Progression, Trial
from equipoise.records.meta import Contribution
from equipoise.records.record import Record


class Population(Protocol):
    """The clients of a federation, which hold their data, states and test sets themselves."""

    @property
    def choice(self) -> EngineChoice:
        """The name of the engine and the reason for it, as results show them."""

    @property
    def tested(self) -> bool:
        """Whether every client has test sets."""

    def train(self, trial: Trial, now: Progression, rounds: int) -> tuple[Progression, Record]:
        """One round, as :func:`equipoise.federation.round.one_round` is."""

    def test(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """Scores of the models after a round; ``tests`` are the server's own test sets."""

    def validate(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """As :meth:`equipoise.federation.validation.HeldOut.record`, on what the clients hold out; ``tests`` know their groups."""

    def standalone(self, trial: Trial, tests: EvaluationSets, rounds: int) -> Contribution:
        """The accuracy of each client that trains alone, as :meth:`equipoise.Federation.standalone` gives it."""

    def deployed(self, trial: Trial, now: Progression, m: int) -> Tensor:
        """The model [G] that client ``m`` predicts with.

        Raises
        ------
        ValueError : the server does not have it.
        """

    def saved(self, kept: Sequence[Kept]) -> None:
        """Called when a checkpoint was written or read, with all that are kept: ``away`` has the round of each client's state."""
