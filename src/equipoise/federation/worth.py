"""What each client of a run gave: the values of the clients in the games of its rounds, measured on rows that nobody trained on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.contribution import evaluators
from equipoise.contribution.completion import ComFedSV
from equipoise.contribution.directions import cosines
from equipoise.contribution.game import UNDEFINED, Evaluator, Game, Values, members
from equipoise.contribution.rounds import Rounds, sum_of_rounds
from equipoise.core import draws
from equipoise.core.maths import gram
from equipoise.core.simulation import Presence
from equipoise.data.samples import Samples, joined, loaded
from equipoise.federation.coalitions import RoundGame, check_game, check_utilities, utilities as of_models
from equipoise.federation.evaluation import published
from equipoise.federation.federation import Federation
from equipoise.federation.round import Played, one_round
from equipoise.federation.trial import begin
from equipoise.records.record import Record
from equipoise.system.errors import InputError, RunError
from equipoise.system.grouping import grouped
from equipoise.system.ranges import check_whole

UNTOLD = "no validation data"  # the kind of the error where contributions have nothing to be measured on
OTHERS = "others"  # groups of few samples, together
SERVER = "the server's own data"


@dataclass(frozen=True)
class Ledger:
    """What each client gave over a run, and in each round.

    Parameters
    ----------
    clients : their names.
    utilities : what the values are of, see :data:`equipoise.federation.coalitions.UTILITIES`.
    evaluator : how they are computed, as text.
    measured_on : validation samples by group.
    rounds : the values by round, and their sum. Its ``total`` has what everybody together changed, and how many coalitions were evaluated.
    refused : rounds without values, because a utility is not a number.
    cosines : mean cosine of the updates of each two clients over the rounds in which both were [N, N]; NaN if there were none.
    """

    clients: tuple[str, ...]
    utilities: tuple[str, ...]
    evaluator: str
    measured_on: Mapping[str, int]
    rounds: Rounds
    refused: int
    cosines: NDArray[np.float64]

    @property
    def values(self) -> NDArray[np.float64]:
        """The values of the clients [N, K] over all rounds; NaN of one that was in none."""
        return self.rounds.total.values

    @property
    def alike(self) -> tuple[str, str, float] | None:
        """The two clients whose updates are most alike, and their mean cosine: 1 of a copy; None without two."""
        upper = np.where(np.triu(np.ones_like(self.cosines, dtype=bool), 1), self.cosines, np.nan)
        if np.isnan(upper).all():
            return None
        i, j = np.unravel_index(int(np.nanargmax(upper)), upper.shape)
        return self.clients[i], self.clients[j], float(upper[i, j])


def validation_of(fed: Federation) -> dict[str, Samples]:
    """What contributions are measured on, by group: what clients hold out, or the server's own data; never test data.

    Groups of fewer samples than ``least_group`` count together.

    Raises
    ------
    RunError : there are no such data.
    """
    if (held := fed.held) is not None:
        names = held.groups or fed.names
        sets = {
            name: joined(parts)
            for name, parts in grouped((n, loaded(d)) for n, d in zip(names, held.sets, strict=True) if d).items()
        }
    elif (own := fed.inputs.server_validation) is not None:
        sets = {SERVER: own}
    else:
        raise RunError(
            "What clients are worth is measured on samples that nobody trains on, never on test samples, and here are none. Let clients "
            "hold some out: --validation 0.2, in Python validation=0.2.",
            UNTOLD,
        )
    small = [name for name, data in sets.items() if data.persons < fed.least_group]
    large = {name: data for name, data in sets.items() if name not in small}
    return large | ({OTHERS: joined([sets[name] for name in small])} if small else {})


def ledger(
    fed: Federation,
    rounds: int,
    evaluator: str | Evaluator = "auto",
    utilities: Sequence[str] = ("loss", "accuracy"),
    *,
    on_round: Callable[[int, Record], object] | None = None,
) -> Ledger:
    """Train a federation, and value what each client gives in every round.

    Parameters
    ----------
    fed : it trains as without this.
    rounds : >= 1.
    evaluator : of :data:`equipoise.contribution.evaluators.EVALUATORS`, also with options as text. Random numbers follow from the seed.
    utilities : of :data:`equipoise.federation.coalitions.UTILITIES`.
    on_round : called with the number of each round and its record.

    Raises
    ------
    RunError : nothing to measure on, see :func:`validation_of`.
    InputError : a utility, or an evaluator, that is not there; a method without a model of all clients.
    """
    how, sets = _checked(fed, rounds, evaluator, utilities)
    n, seed = len(fed.names), fed.trial.settings.seed
    completes, refused, products = isinstance(how, ComFedSV), 0, np.zeros((2, n, n))
    games, values = list[tuple[list[int], Game]](), list[tuple[list[int], Values]]()
    for _ in range(rounds):
        played = list[Played]()
        following, record = one_round(fed.trial, fed.progress, fed.trial.rounds, played.append)
        for each in played:
            ids = each.cohort.ids.tolist()
            products[:, np.array(ids)[:, None], ids] += np.stack(
                [alike := cosines(gram(each.cohort.updates).cpu()), np.ones_like(alike)]
            )
            try:
                game = RoundGame(fed.trial, each, sets, tuple(utilities)).game()
                if completes:  # from all rounds together
                    games.append((ids, game))
                else:
                    values.append((ids, how(game, np.random.default_rng([seed, each.cohort.t]))))
            except InputError as error:
                if error.kind != UNDEFINED:
                    raise
                refused += 1
        fed.progress = following
        if on_round is not None:
            on_round(record["round"], record)
    if not games and not values:
        raise RunError("No round has clients whose updates count, so nobody is worth anything.")
    summed = how(n, games, np.random.default_rng(seed)) if completes else sum_of_rounds(n, values)
    with np.errstate(invalid="ignore"):
        mean = products[0] / products[1]
    return Ledger(
        fed.names,
        tuple(utilities),
        evaluators.text_of(how),
        {name: d.size for name, d in sets.items()},
        summed,
        refused,
        mean,
    )


@dataclass(frozen=True)
class _Only:
    """Clients that come in every round; the others never do. It stands for :class:`equipoise.core.simulation.Presence`."""

    clients: tuple[int, ...]
    n: int
    seed: int

    def round(self, t: int, share: float) -> tuple[Tensor, Record]:
        """The clients of round ``t``, and a record of the others."""
        here = np.isin(np.arange(self.n), self.clients)
        return draws.participants(self.seed, t, self.n, share, here), {}


def retrained(
    fed: Federation,
    rounds: int,
    evaluator: str | Evaluator = "exact",
    utilities: Sequence[str] = ("loss", "accuracy"),
    *,
    on_round: Callable[[int, int], object] | None = None,
) -> Ledger:
    r"""What each client gives, from a federation of every coalition, trained from the first model as if the others had never come.

    .. math:: U(S) = V(\theta^T_S), \quad U(\{\}) = V(\theta^0)

    This is what values of rounds approximate; of n clients it takes 2^n times as long as the run.

    Parameters
    ----------
    fed : it does not change.
    rounds, evaluator, utilities : as in :func:`ledger`.
    on_round : called with the rounds that are done, and those of the coalitions that are known to be needed.

    Raises
    ------
    RunError, InputError : as in :func:`ledger`; clients that come and go.
    """
    how, sets = _checked(fed, rounds, evaluator, utilities)
    trial, n = fed.trial, len(fed.names)
    if trial.presence is not None:
        raise InputError(
            "Clients come and go in this run, so a coalition has no run of its own. Value the rounds instead."
        )
    done = itertools.count(1)

    def evaluate(coalitions: Sequence[int]) -> NDArray[np.float64]:
        models = []
        for coalition in coalitions:
            only = cast(Presence, _Only(members(coalition), n, trial.settings.seed))
            own, now = replace(trial, presence=only), begin(trial)
            for _ in range(rounds if coalition else 0):
                now, _ = one_round(own, now, rounds)
                if on_round is not None:
                    on_round(next(done), rounds * len(coalitions))
            models.append(published(trial, now))
        return of_models(trial, torch.stack(models), sets, utilities)

    game = Game(n, evaluate, tuple(utilities))
    values = sum_of_rounds(n, [(range(n), how(game, np.random.default_rng(trial.settings.seed)))])
    sizes = {name: data.size for name, data in sets.items()}
    return Ledger(fed.names, tuple(utilities), evaluators.text_of(how), sizes, values, 0, np.full((n, n), np.nan))


def _checked(
    fed: Federation, rounds: int, evaluator: str | Evaluator, utilities: Sequence[str]
) -> tuple[Evaluator, dict[str, Samples]]:
    """The evaluator and the validation data of a federation whose clients can be valued so; prepared for so many rounds more."""
    check_whole("rounds", rounds, 1)
    how = evaluators.read(evaluator) if isinstance(evaluator, str) else evaluator
    check_game(fed.trial)
    sets = validation_of(fed)
    check_utilities(utilities, len(sets))
    fed.prepare(fed.progress.t + rounds, progress=False)
    return how, sets


def contradictions(
    clients: Sequence[str], utilities: Sequence[str], values: NDArray[np.float64]
) -> Iterator[tuple[str, str, str]]:
    """Clients whose value [N, K] is the largest by one utility and the least by another: name, utility, utility."""
    if len(present := np.flatnonzero(~np.isnan(values[:, 0]))) < 3:
        return
    best, worst = present[values[present].argmax(0)], present[values[present].argmin(0)]
    for k, j in itertools.permutations(range(len(utilities)), 2):
        if best[k] == worst[j]:
            yield clients[best[k]], utilities[k], utilities[j]
