r"""The models that a round would have given to coalitions of its clients, by the rules of the run, and their utilities.

.. math:: U_t(S) = V(\theta^t + R_t(S)), \quad U_t(\{\}) = V(\theta^t)

:math:`R_t(S)` is what the rules add for the clients S alone, from the server's state at the beginning of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.contribution.game import Game, members
from equipoise.core.maths import simplex
from equipoise.core.model import Stacked
from equipoise.core.oracle import EVALUATION_BATCH
from equipoise.core.rule import Cohort, Combine, State
from equipoise.core.tally import Tally, together
from equipoise.data.samples import Samples, at_once
from equipoise.federation.guard import ServerError
from equipoise.federation.round import Played, combined, stepped
from equipoise.federation.trial import Trial
from equipoise.system.errors import InputError, RunError
from equipoise.system.suggestions import require_known
from equipoise.system.tree import span, tree_map

CHUNK = 32 << 20  # bytes of models at a time
Numbers = NDArray[np.float64]

# what is best when it is largest, from the tally of all samples, and the goodness [groups, S] in each group
UTILITIES: Mapping[str, Callable[[Tally, Numbers], Numbers]] = {
    "loss": lambda tally, groups: -tally.mean_loss.double().cpu().numpy(),
    "accuracy": lambda tally, groups: tally.goodness.double().cpu().numpy(),
    "worst": lambda tally, groups: groups.min(axis=0),
    "std": lambda tally, groups: -groups.std(axis=0),
    "gap": lambda tally, groups: groups.min(axis=0) - groups.max(axis=0),
}
OF_GROUPS = ("worst", "std", "gap")


def check_utilities(names: Sequence[str], groups: int) -> None:
    """Require known utilities, each once, and of groups only where there are two or more.

    Raises
    ------
    InputError : naming the one that cannot be had.
    """
    require_known("utility", UTILITIES, *names)
    if not names or len({*names}) < len(names):
        raise InputError(f"Give one utility or more, each once; found {', '.join(names) or 'none'}.")
    if groups < 2 and (asked := [name for name in names if name in OF_GROUPS]):
        raise InputError(
            f"The utility {asked[0]} compares groups, and the validation data are of one. Take loss, or accuracy."
        )


@dataclass(frozen=True)
class Mixture:
    """Models [S, G] that are sums: ``origin`` [G] + ``coefficients`` [S, K] of ``parts`` [K, G]."""

    origin: Tensor
    parts: Tensor
    coefficients: Tensor

    def __len__(self) -> int:
        return len(self.coefficients)

    def models(self) -> Tensor:
        """[S, G]."""
        return torch.addmm(self.origin, self.coefficients.to(self.parts), self.parts)


def tally_of(trial: Trial, models: Tensor, data: Samples) -> Tally:
    """What each of a stack of models [S, G] does on a data set."""
    network, theta, buffers = Stacked(trial.model), models[:, : trial.model.n_params], models[:, trial.model.n_params :]
    parts = list[Tally]()
    for rows in torch.arange(data.size, device=models.device).split(at_once(data, EVALUATION_BATCH)):
        batch = data.batch(rows, None)
        x = tree_map(lambda leaf: leaf.expand(len(models), *leaf.shape), batch.x)
        logits, _ = network.forward(theta, buffers.clone(), x)
        parts.append(trial.model.task.tally(logits, batch.y.expand(len(models), -1)))
    return together(parts)


def utilities(trial: Trial, models: Tensor, sets: Mapping[str, Samples], names: Sequence[str]) -> Numbers:
    """Some of :data:`UTILITIES` of models [S, G] on the validation data of groups: [S, K]."""
    tallies = [tally_of(trial, models, data) for data in sets.values()]
    goodness = np.stack([tally.goodness.double().cpu().numpy() for tally in tallies])
    whole = together(tallies)
    return np.stack([UTILITIES[name](whole, goodness) for name in names], axis=1)


@dataclass(frozen=True)
class RoundGame:
    """The game of a round: its players are the clients that count in it, in the order of the cohort.

    Parameters
    ----------
    trial, played : the round.
    sets : validation data by group.
    names : of :data:`UTILITIES`.
    """

    trial: Trial
    played: Played
    sets: Mapping[str, Samples]
    names: tuple[str, ...]

    def game(self) -> Game:
        """The game with the utilities of nobody and of everybody, which are those of the run."""
        game = Game(len(self.played.cohort.ids), self.utilities, self.names, self.scale())
        game([0, game.everyone])
        return game

    def scale(self) -> Numbers:
        """The loss of the model before the round for a loss, otherwise 1 [K]."""
        before = self.published(self.played.before.vector, self.played.before.server)
        loss = abs(utilities(self.trial, before[None], self.sets, ["loss"])[0, 0])
        return np.array([loss if name == "loss" else 1.0 for name in self.names])

    def utilities(self, coalitions: Sequence[int]) -> Numbers:
        """[S, K]; minus infinity of a coalition whose model leaves the range of numbers."""
        every = np.full((len(coalitions), len(self.names)), -np.inf)
        for places, models in self.models(coalitions):
            every[places] = utilities(self.trial, models, self.sets, self.names)
        return np.where(np.isnan(every), -np.inf, every)

    def models(self, coalitions: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """The models [s, G] of coalitions, some at a time, with their places among these; without those that leave the range of numbers.

        Raises
        ------
        RunError : the rules need more clients than a coalition has.
        """
        vector, cohort = self.played.before.vector, self.played.cohort
        parts = torch.cat([cohort.updates, cohort.buffer_updates], 1)
        size = max(1, CHUNK // max(1, vector.nbytes))
        for first in range(0, len(coalitions), size):
            models = vector.repeat(min(size, len(coalitions) - first), 1)
            rows, coefficients, places = list[int](), list[Tensor](), list[int]()
            for k, coalition in enumerate(coalitions[first : first + size]):
                ways = self._combined(coalition)
                if isinstance(ways, _Weights):
                    rows.append(k)
                    coefficients.append(ways.row)
                elif ways is not None:
                    models[k] = ways
                if ways is not None:
                    places.append(k)
            if rows:
                c = torch.stack(coefficients).to(parts)
                P = self.trial.model.n_params
                models[rows, :P] = torch.addmm(vector[:P], c[:, 0], parts[:, :P])
                models[rows, P:] = torch.addmm(vector[P:], c[:, 1], parts[:, P:])
            yield [first + k for k in places], models[places]

    def _combined(self, coalition: int) -> _Weights | Tensor | None:
        """The weights of the updates, if they are all that the rules change; else the model [G]; None: it leaves the range of numbers."""
        if not coalition:
            return self.published(self.played.before.vector, self.played.before.server)
        try:
            server, cohort = combined(self.trial, part_of(self.played, coalition))
            plain = isinstance(cohort.direction, Combine) and cohort.mask is None and cohort.shift is None
            everyone = coalition.bit_count() == len(self.played.cohort.ids)
            if (
                plain
                and not everyone
                and not self.trial.method.overriding("publish")
                and self.played.before.given is None
            ):
                return _Weights.of(cohort, members(coalition), len(self.played.cohort.ids))
            return self.published(stepped(self.trial, self.played.before, cohort), server)
        except ServerError:
            return None
        except RunError as error:
            raise RunError(
                f"{error} A coalition of {coalition.bit_count()} clients has no model, so exact values cannot be had: take "
                "the evaluator loo, which leaves out one client at a time."
            ) from error

    def published(self, vector: Tensor, server: Sequence[State]) -> Tensor:
        """The model [G] that is tested where this one is broadcast."""
        theta = vector[: self.trial.model.n_params]
        for rule, state in zip(self.trial.method.rules, server, strict=True):
            theta = rule.publish(theta, state)
        return torch.cat([theta, vector[self.trial.model.n_params :]])


@dataclass(frozen=True)
class _Weights:
    """The weights of all updates, and of all changes of buffers, in a model: ``row`` [2, M]."""

    row: Tensor

    @staticmethod
    def of(cohort: Cohort, rows: Sequence[int], n: int) -> _Weights:
        weights = cohort.weights if cohort.coefficients is None else cohort.coefficients
        row = weights.new_zeros(2, n, dtype=torch.float64)
        row[:, list(rows)] = torch.stack([cohort.scale * weights, simplex(cohort.weights)]).double()
        return _Weights(row)


def part_of(played: Played, coalition: int) -> Played:
    """A round as if only some of its clients had answered."""
    rows, cohort = span(members(coalition)), played.cohort
    names = ("updates", "buffer_updates", "ids", "sizes", "received", "kept", "held")
    parts = {name: None if (x := getattr(cohort, name)) is None else x[rows] for name in names}
    sizes = cohort.sizes[rows]
    part = replace(cohort, **parts, weights=sizes / sizes.sum())
    return Played(played.before, part, tree_map(lambda leaf: leaf[rows], played.reports))
