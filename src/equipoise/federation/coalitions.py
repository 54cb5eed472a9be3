r"""The models that a round would have given to coalitions of its clients, by the rules of the run, and their utilities.

.. math:: U_t(S) = V(\theta^t + R_t(S)), \quad U_t(\{\}) = V(\theta^t)

:math:`R_t(S)` is what the rules add for the clients S alone, from the server's state at the beginning of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.contribution.game import UNDEFINED, Game, coalition_of, members
from equipoise.contribution.sampled import membership
from equipoise.core.maths import simplex
from equipoise.core.rule import Cohort, Combine, State
from equipoise.core.tally import Tally, together
from equipoise.data.samples import Samples
from equipoise.federation.guard import ServerError
from equipoise.federation.round import Played, combined, prepared, rewarded, stepped
from equipoise.federation.scoring import CHUNK, Mixture, Models, tally_of
from equipoise.federation.trial import Progression, Trial
from equipoise.system.errors import InputError, RunError
from equipoise.system.suggestions import require_known
from equipoise.system.tree import span, tree_map

Numbers = NDArray[np.float64]
FEW = 4  # coalitions of whose models each is made by the rules
Made = tuple[list[int], Models]

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


def check_game(trial: Trial) -> None:
    """Require a method whose coalitions have models, and answers of which each is known.

    Raises
    ------
    InputError : naming the method, or the setting.
    """
    if not (sharing := trial.method.sharing).federated:
        shared = "put their data together" if sharing.global_model else "share no model"
        raise InputError(
            f"{trial.method}: its clients {shared}, so a coalition of them has no model. Take another method."
        )
    if trial.summed:
        raise InputError(
            "secure=true: the server has only the sum of the updates, so no coalition has a model. Set secure=false."
        )


@dataclass(frozen=True)
class RunGame:
    r"""The game of rounds with the updates that were recorded, in which nobody trains again.

    .. math:: U(S) = V\big(\theta^0 + \sum_t R_t(S \cap I_t)\big)

    Of all rounds of a run it is the one-round reconstruction (OR) of Song et al. 2019. The server's state is carried from round to round as the
    rules leave it for the coalition; a round in which nobody of it took part adds nothing. Coordinates that clients keep to themselves have the
    server's values in every coalition. What is predicted is the class with the largest output, whatever a rule decides instead
    (:meth:`equipoise.Rule.decide`).

    Parameters
    ----------
    trial, rounds : the rounds, in their order, at least one.
    sets : validation data by group.
    names : of :data:`UTILITIES`.

    Raises
    ------
    InputError : coalitions have no models, or there are no such utilities.
    """

    trial: Trial
    rounds: tuple[Played, ...]
    sets: Mapping[str, Samples]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_game(self.trial)
        check_utilities(self.names, len(self.sets))
        if not self.rounds:
            raise InputError("No client took part in a round of which the updates are known, so there is no game.")

    @cached_property
    def ids(self) -> list[int]:
        """The players: the clients that counted in a round, ascending."""
        return sorted({m for played in self.rounds for m in played.cohort.ids.tolist()})

    def game(self) -> Game:
        """The game with the utilities of nobody and of everybody, which are those of the run.

        Raises
        ------
        InputError : one of these two is not finite (its kind is ``contribution.game.UNDEFINED``).
        """
        ends = 0, (1 << len(self.ids)) - 1
        U = self.utilities(ends)
        if not np.isfinite(U).all():
            rounds = " to ".join(str(t) for t in sorted({self.rounds[k].before.t for k in (0, -1)}))
            text = f"The model before or after round {rounds} has utilities ({', '.join(self.names)}) that are no finite numbers"
            raise InputError(f"{text}, so no client has a value. Leave it out.", UNDEFINED)
        scale = [abs(before) if name == "loss" else 1.0 for name, before in zip(self.names, U[0], strict=True)]
        return Game(len(self.ids), self.utilities, self.names, scale, dict(zip(ends, U, strict=True)))

    def utilities(self, coalitions: Sequence[int]) -> Numbers:
        """[S, K]; minus infinity of a coalition whose model leaves the range of numbers."""
        every = np.full((len(coalitions), len(self.names)), -np.inf)
        for places, models in self.models(coalitions):
            every[places] = utilities(self.trial, models, self.sets, self.names)
        return np.where(np.isnan(every), -np.inf, every)

    def models(self, coalitions: Sequence[int]) -> Iterator[Made]:
        """The models [s, G] of coalitions, some at a time, with their places among these; without those that leave the range of numbers.

        Raises
        ------
        RunError : the rules need more clients than a coalition has.
        """
        vector, cohort, P = self.rounds[0].before.vector, self.rounds[0].cohort, self.trial.model.n_params
        size, at = max(1, CHUNK // max(1, vector.nbytes)), self.trial.model.variances
        weighted, single = self._by_factors(coalitions), dict[int, Tensor]()
        for place, coalition in enumerate(coalitions):
            if place in weighted:
                continue
            model = self._model(coalition)
            if model is None or not bool((model.row if isinstance(model, _Weights) else model).isfinite().all()):
                continue
            if isinstance(model, _Weights):
                weighted[place] = model.row
            else:
                single[place] = model
            if len(single) == size:
                yield [*single], torch.stack([*single.values()])
                single.clear()
        if single:
            yield [*single], torch.stack([*single.values()])
        if not weighted:
            return
        c, places = torch.stack([*weighted.values()]).to(vector), [*weighted]
        if len(vector) == P:
            yield places, Mixture(vector, cohort.updates, c[:, 0].contiguous())
            return
        for first in range(0, len(c), size):
            some = c[first : first + size]
            ends = (vector[:P], some[:, 0], cohort.updates), (vector[P:], some[:, 1], cohort.buffer_updates)
            models = torch.cat([torch.addmm(*end) for end in ends], 1)
            models[:, at] = models[:, at].clamp(min=0)  # means of variances, except for rounding
            yield places[first : first + size], models

    @cached_property
    def _factors(self) -> Tensor | None:
        """The factors [M] of the updates of a round in their mean, if the rules do nothing but weigh by them, as two coalitions show."""
        n, factors = len(self.ids), self.trial.factors
        if len(self.rounds) > 1 or n < 3 or factors is None:
            return None
        factors = factors[self.rounds[0].cohort.ids].double()
        for coalition in (1, (1 << n) - 2):
            model, row = self._model(coalition), factors * torch.from_numpy(membership([coalition], n))
            alike = isinstance(model, _Weights) and torch.allclose(model.row, row / row.sum(), rtol=0, atol=1e-12)
            if not alike:
                return None
        return factors

    def _by_factors(self, coalitions: Sequence[int]) -> dict[int, Tensor]:
        """The weights [2, M] of the updates in coalitions, by their places, where they follow from factors; of neither nobody nor everybody."""
        n, everyone = len(self.ids), (1 << len(self.ids)) - 1
        places = [k for k, coalition in enumerate(coalitions) if 0 < coalition < everyone]
        if len(places) < FEW or self._factors is None:
            return {}
        rows = self._factors * torch.from_numpy(membership([coalitions[k] for k in places], n))
        rows = (rows / rows.sum(1, keepdim=True)).unsqueeze(1).expand(-1, 2, -1)
        return {k: row for k, row in zip(places, rows, strict=True) if row.isfinite().all()}

    def _model(self, coalition: int) -> _Weights | Tensor | None:
        """The model [G], or of one round the weights of the updates, if they are all that the rules change; None: it leaves the range of numbers."""
        chosen, now = {self.ids[k] for k in members(coalition)}, self.rounds[0].before
        simple = len(self.rounds) == 1 and len(chosen) < len(self.ids) and not self.trial.method.overriding("publish")
        for played in self.rounds:
            rows = [k for k, m in enumerate(played.cohort.ids.tolist()) if m in chosen]
            if not played.cohort.sizes[rows].sum() > 0:
                continue
            part = part_of(played, coalition_of(rows))
            try:
                heard, server, cohort = self._heard(part, now)
                if simple and _plain(heard, cohort):
                    return _Weights.of(cohort, rows, len(self.ids))
                now = self._next(now, part.before, cohort, server)
            except ServerError:
                return None
            except RunError as error:
                n = len(played.cohort.ids)
                loo = " Or take the evaluator loo, which leaves out one client at a time." * (len(rows) < n - 1)
                text = f"A coalition of {len(rows)} of {n} clients has no model: {error}{loo}"
                raise RunError(text, error.kind) from error
        return self._published(now)

    def _heard(self, part: Played, now: Progression) -> tuple[Cohort, list[State], Cohort]:
        """The cohort of some clients of a round, and the server's state and the cohort when the rules have combined them."""
        cohort = replace(part.cohort, theta=now.vector[: self.trial.model.n_params])
        server = now.server
        if part.before is not self.rounds[0].before:  # which is prepared
            at = replace(now, t=cohort.t)
            server = prepared(self.trial, at, cohort.ids, cohort.received, cohort.rounds).server
        # who was absent has buffers that differ from the recorded model's
        return cohort, *combined(self.trial, Played(replace(part.before, server=server), cohort, part.reports))

    def _next(self, now: Progression, before: Progression, cohort: Cohort, server: list[State]) -> Progression:
        """What the server remembers after a round of which this is ``before`` in the run."""
        vector = stepped(self.trial, now, cohort)
        if self.trial.method.overriding("reward"):
            done = replace(cohort, theta=vector[: self.trial.model.n_params])
            server, *_ = rewarded(self.trial, before, done, vector, server)
        return replace(now, vector=vector, server=server)

    def _published(self, now: Progression) -> Tensor:
        """The model [G] that is tested where this one is broadcast."""
        theta = now.vector[: self.trial.model.n_params]
        for rule, state in zip(self.trial.method.rules, now.server, strict=True):
            theta = rule.publish(theta, state)
        return torch.cat([theta, now.vector[self.trial.model.n_params :]])


class RoundGame(RunGame):
    """The game of one round, whose players are the clients that count in it: see :class:`RunGame`."""

    def __init__(self, trial: Trial, played: Played, sets: Mapping[str, Samples], names: tuple[str, ...]) -> None:
        super().__init__(trial, (played,), sets, names)


def _plain(before: Cohort, after: Cohort) -> bool:
    """Whether the rules have given the updates weights, and changed nothing else."""
    same = after.updates is before.updates and after.buffer_updates is before.buffer_updates
    masks = after.mask, after.buffer_mask, after.shift
    return same and isinstance(after.direction, Combine) and all(x is None for x in masks)


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
    parts: dict[str, Any] = {name: None if (x := getattr(cohort, name)) is None else x[rows] for name in names}
    part = replace(cohort, weights=parts["sizes"] / parts["sizes"].sum(), **parts)
    return Played(played.before, part, tree_map(lambda leaf: leaf[rows], played.reports))
