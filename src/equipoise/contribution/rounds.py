"""Values of clients over the rounds of a run, whose games have different players."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.contribution.game import Array, Values
from equipoise.system.errors import InputError


@dataclass(frozen=True)
class Rounds:
    """The values of N clients in each of T rounds.

    Parameters
    ----------
    by_round : [T, N, K]; 0 of a client that was no player of the round.
    attended : 1 if a client was a player of the round, else 0 [T, N].
    total : the sum over the rounds; NaN of a client that was in no round.
    """

    by_round: Array
    attended: Array
    total: Values

    @property
    def per_round(self) -> Array:
        """The mean value over the rounds that a client attended [N, K]; NaN if there are none."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.by_round.sum(axis=0) / self.attended.sum(axis=0)[:, None])

    def weighted(self, weights: ArrayLike) -> Array:
        """The sum over the rounds with a weight [T] for each, such as :func:`halting` or :func:`decay` [N, K]; NaN of a client that was in none."""
        return np.tensordot(np.asarray(weights), self.by_round, axes=1) + _missing(self.attended)

    def normalised(self) -> Array:
        """Each round divided by the L2 norm of its values, if that is not 0 [T, N, K]; sums of these are no gain, and not additive.

        Wang et al. 2020, section 5.3, which does not name the norm.
        """
        norms = np.linalg.norm(self.by_round, axis=1, keepdims=True)
        return self.by_round / np.where(norms > 0, norms, 1)


def sum_of_rounds(n: int, rounds: Sequence[tuple[Sequence[int], Values]]) -> Rounds:
    r"""The sum of a client's values over the games of the rounds, 0 where it was no player.

    .. math:: \varphi_i = \sum_{t : i \in I_t} \varphi_i^t

    Of Shapley values these are MR (Song et al. 2019), the federated Shapley value (Wang et al. 2020, Definition 1, Eq. 3-4), and sum to
    V(theta^T) - V(theta^0). Rounds without players add 0.

    Parameters
    ----------
    n : number of clients N.
    rounds : for each round the ids of its clients, in the order of the players, and their values; at least one round.

    Raises
    ------
    InputError : ids that are not different ones in 0..N - 1, one for each player.
    """
    parts = [values for _, values in rounds]
    by_round, variances = np.zeros((2, len(parts), n, len(parts[0].names)))
    attended = np.zeros((len(parts), n))
    for t, (ids, values) in enumerate(rounds):
        places = [*ids]
        if len({*ids} & {*range(n)}) != len(places) or len(places) != len(values.values):
            wanted = f"{len(values.values)} different ids in 0..{n - 1}, one for each player"
            raise InputError(f"Round {t} needs {wanted}; found {places}.")
        by_round[t, places], attended[t, places] = values.values, 1
        variances[t, places] = 0 if values.errors is None else values.errors**2
    total = Values(
        parts[0].names,
        by_round.sum(axis=0) + _missing(attended),
        np.sum([part.gain for part in parts], axis=0),
        sum(part.evaluations for part in parts),
        sum(part.coalitions for part in parts),
        None if all(part.errors is None for part in parts) else np.sqrt(variances.sum(axis=0)),
        all(part.converged for part in parts),
        dict(sum((Counter(part.notes) for part in parts), Counter())),
    )
    return Rounds(by_round, attended, total)


def halting(rounds: int, last: int) -> Array:
    """Weights (R - t) / R of rounds t = 0, 1, ..., and 0 from R on [T]; Geimer et al., arXiv 2405.08044, Eq. 2."""
    return np.maximum(0.0, 1 - np.arange(rounds) / last)


def decay(rounds: int, factor: float, threshold: float) -> Array:
    """Weights lambda^t of rounds t = 0, 1, ..., and 0 below the threshold [T].

    TMR of Wei et al. 2020, as Liu et al. 2022, section 2.5, describe it. They do not state the first index, nor whether a weight that is equal
    to the threshold counts.
    """
    weights = factor ** np.arange(rounds, dtype=np.float64)
    return np.where(weights < threshold, 0.0, weights)


def _missing(attended: Array) -> Array:
    """NaN for a client that was in no round, else 0 [N, 1]."""
    return np.where(attended.sum(axis=0)[:, None] > 0, 0.0, np.nan)
