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
from equipoise.core.rule import Cohort, Combine, State
from equipoise.core.tally import Tally, together
from equipoise.data.samples import Samples
from equipoise.federation.guard import ServerError
from equipoise.federation.round import Played, combined, stepped
from equipoise.federation.scoring import CHUNK, Mixture, Models, tally_of
from equipoise.federation.trial import Trial
from equipoise.system.errors import InputError, RunError
from equipoise.system.suggestions import require_known
from equipoise.system.tree import span, tree_map

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


def utilities(trial: Trial, models: Models, sets: Mapping[str, Samples], names: Sequence[str]) -> Numbers:
    """Some of :data:`UTILITIES` of models [S, G] on the validation data of groups: [S, K]."""
    tallies = [tally_of(trial.model, models, data) for data in sets.values()]
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

    def models(self, coalitions: Sequence[int]) -> Iterator[tuple[list[int], Models]]:
        """The models [s, G] of coalitions, some at a time, with their places among these; without those that leave the range of numbers.

        Raises
        ------
        RunError : the rules need more clients than a coalition has.
        """
        vector, cohort, P = self.played.before.vector, self.played.cohort, self.trial.model.n_params
        parts = torch.cat([cohort.updates, cohort.buffer_updates], 1)
        size = max(1, CHUNK // max(1, vector.nbytes))
        weighted, single = dict[int, Tensor](), dict[int, Tensor]()
        for place, coalition in enumerate(coalitions):
            way = self._combined(coalition)
            if isinstance(way, _Weights):
                weighted[place] = way.row
            elif way is not None:
                single[place] = way
            if len(single) == size:
                yield [*single], torch.stack([*single.values()])
                single.clear()
        if single:
            yield [*single], torch.stack([*single.values()])
        if not weighted:
            return
        c, places = torch.stack([*weighted.values()]).to(parts), [*weighted]
        if len(vector) == P:
            yield places, Mixture(vector, parts, c[:, 0].contiguous())
            return
        for first in range(0, len(c), size):
            some = c[first : first + size]
            both = [
                torch.addmm(vector[at], some[:, k], parts[:, at]) for k, at in enumerate((slice(P), slice(P, None)))
            ]
            yield places[first : first + size], torch.cat(both, 1)

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
    sizes = cohort.sizes[rows]
    part = replace(
        cohort,
        updates=cohort.updates[rows],
        buffer_updates=cohort.buffer_updates[rows],
        ids=cohort.ids[rows],
        sizes=sizes,
        received=cohort.received[rows],
        weights=sizes / sizes.sum(),
        kept=cohort.kept[rows],
        held=None if cohort.held is None else cohort.held[rows],
    )
    return Played(played.before, part, tree_map(lambda leaf: leaf[rows], played.reports))
