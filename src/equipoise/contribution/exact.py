"""Values that follow from all coalitions, or from the few that an equation names: Shapley, Banzhaf, leave-one-out, alone."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from equipoise.contribution.game import Array, Evaluator, Game, Values, skipped, values_of
from equipoise.system.errors import InputError
from equipoise.system.ranges import number, setting

PLAYERS: Final = 16  # most players whose 2^n coalitions are all evaluated


@dataclass(frozen=True)
class Exact(Evaluator):
    r"""The Shapley value.

    .. math:: \varphi_i = \sum_{S \not\ni i} \frac{|S|! (n - 1 - |S|)!}{n!} \big(U(S \cup i) - U(S)\big)

    Shapley 1953. The values sum to U(N) - U({}). Twins have exactly the same value, and a null player exactly 0. All 2^n coalitions of at most
    16 players are evaluated. With ``between`` this is the truncated multi-round form (TMR) that the authors of GTG-Shapley released.

    Parameters
    ----------
    between : a game that changes no utility by more than this many times its scale gives every player 0, after two evaluations; None: no game.
    """

    between: float | None = setting(number(None, 0), "largest change of a round that counts as none", example=0.01)

    def __call__(self, game: Game, generator: np.random.Generator | None = None) -> Values:
        """The values of at most 16 players."""
        if self.between is not None and game.settled(self.between):
            return skipped(game)
        return semivalue(game, shapley_weights(game.n))


@dataclass(frozen=True)
class Banzhaf(Evaluator):
    r"""The Banzhaf value, not normalised.

    .. math:: \varphi_i = \frac{1}{2^{n-1}} \sum_{S \not\ni i} \big(U(S \cup i) - U(S)\big)

    Wang, Jia, Data Banzhaf, AISTATS 2023, Eq. 3. The values need not sum to U(N) - U({}). All 2^n coalitions of at most 16 players are evaluated.
    """

    def __call__(self, game: Game, generator: np.random.Generator | None = None) -> Values:
        """The values of at most 16 players."""
        return semivalue(game, np.full(game.n, 2.0 ** (1 - game.n)))


@dataclass(frozen=True)
class LeaveOneOut(Evaluator):
    r"""What all others would miss.

    .. math:: \varphi_i = U(N) - U(N \setminus i)

    Wang et al., A principled approach to data valuation for federated learning, 2020, section 5.1. It takes n + 2 evaluations. Both players of
    a pair of duplicates are worth about 0.
    """

    def __call__(self, game: Game, generator: np.random.Generator | None = None) -> Values:
        """The values."""
        U = game([0, game.everyone, *(game.everyone ^ 1 << i for i in range(game.n))])
        return values_of(game, U[1] - U[2:])


@dataclass(frozen=True)
class Alone(Evaluator):
    r"""What a player reaches without the others.

    .. math:: \varphi_i = U(\{i\}) - U(\{\})

    It takes n + 2 evaluations.
    """

    def __call__(self, game: Game, generator: np.random.Generator | None = None) -> Values:
        """The values."""
        U = game([0, game.everyone, *(1 << i for i in range(game.n))])
        return values_of(game, U[2:] - U[0])


def semivalue(game: Game, weights: ArrayLike) -> Values:
    r"""A weighted sum of a player's marginals, whose weights depend on the size of the coalition only.

    .. math:: \varphi_i = \sum_{S \not\ni i} w_{|S|} \big(U(S \cup i) - U(S)\big)

    Sums are rounded once, so their order, and with it the number of a player, does not matter.

    Parameters
    ----------
    game : of n players.
    weights : w [n], of the sizes 0..n - 1.

    Raises
    ------
    InputError : more than 16 players.
    """
    if game.n > PLAYERS:
        raise InputError(
            f"Exact values of {game.n} players need {1 << game.n:,} evaluations; expected at most {PLAYERS} players, "
            f"{1 << PLAYERS:,} evaluations. Choose an evaluator that samples, such as gtg."
        )
    U, A = game(range(1 << game.n)), coefficients(weights)
    phi = [[math.fsum((row * column).tolist()) for column in U.T] for row in A]
    return values_of(game, np.reshape(phi, (game.n, len(game.names))))


def coefficients(weights: ArrayLike) -> Array:
    """The matrix A [n, 2^n] of a :func:`semivalue`, whose values are ``A @ U``; so are those of each test sample, of U [2^n, V]."""
    w = np.append(np.asarray(weights, dtype=np.float64), 0.0)
    inside = np.arange(1 << len(w) - 1) >> np.arange(len(w) - 1)[:, None] & 1
    size = inside.sum(axis=0)
    return np.asarray(np.where(inside, w[size - 1], -w[size]))


def shapley_weights(n: int) -> Array:
    """Of a coalition of s others, 1 / (n C(n - 1, s)) [n]."""
    return np.array([1 / (n * math.comb(n - 1, s)) for s in range(n)])


def owen_weights(n: int, chances: ArrayLike) -> Array:
    """The mean over chances q of q^s (1 - q)^(n - 1 - s) [n]: :class:`equipoise.contribution.sampled.Owen` with infinitely many sets."""
    q, s = np.asarray(chances, dtype=np.float64)[:, None], np.arange(n)
    return np.asarray((q**s * (1 - q) ** (n - 1 - s)).mean(axis=0))
