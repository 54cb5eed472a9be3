"""A cooperative game, the utilities of coalitions of players, and the values of its players."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.system.errors import InputError
from equipoise.system.ranges import check_fields

Array = NDArray[np.float64]
UNDEFINED: Final = "undefined utility"  # the kind of the error of a game that has no values


@dataclass(frozen=True)
class Game:
    r"""Players 0..n - 1, and utilities of every coalition: ``U: 2^players -> R^K``.

    A coalition is a whole number whose bit k is set if player k is in it, so there may be more than 64 players. Each coalition is
    evaluated once. A utility that is infinite counts as the worst finite one so far, see :attr:`clipped`.

    Parameters
    ----------
    n : number of players, >= 0.
    evaluate : the utilities [len, K] of a list of different coalitions, more is better; it is called with as many as possible at once.
    names : of the K utilities.
    scale : what thresholds are multiples of, for each utility [K] or all, > 0: 1 for an accuracy, the loss of the initial model for a loss.
    evaluated : utilities [K] by coalition, as ``evaluate`` gave them; those given here are not asked for.
    """

    n: int
    evaluate: Callable[[list[int]], ArrayLike]
    names: tuple[str, ...] = ("utility",)
    scale: ArrayLike = 1.0
    evaluated: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def table(cls, values: ArrayLike, names: Sequence[str] = (), scale: ArrayLike = 1.0) -> Self:
        """The game with the utilities [2^n] or [2^n, K] of all coalitions; the index is the coalition.

        Raises
        ------
        InputError : the number of coalitions is not a power of two.
        """
        U = np.asarray(values, dtype=np.float64)
        U = U[:, None] if U.ndim == 1 else U
        n = len(U).bit_length() - 1
        if U.ndim != 2 or len(U) != 1 << n:
            raise InputError(f"A table of n players has 2^n rows, one for each coalition; found the shape {U.shape}.")
        return cls(n, U.__getitem__, tuple(names) or ("utility",) * U.shape[1], scale)

    def __call__(self, coalitions: Iterable[int]) -> Array:
        """The utilities [len, K] of coalitions.

        Raises
        ------
        InputError : a utility is not a number, or none is finite (its kind is :data:`UNDEFINED`), or their shape is not [len, K].
        """
        asked = list(coalitions)
        if new := [mask for mask in dict.fromkeys(asked) if mask not in self.evaluated]:
            U = np.asarray(self.evaluate(new), dtype=np.float64)
            if U.shape != (shape := (len(new), len(self.names))):
                raise InputError(f"The utilities of {len(new)} coalitions need the shape {shape}; found {U.shape}.")
            self.evaluated.update(zip(new, U, strict=True))
        values = np.array([self.evaluated[mask] for mask in asked]).reshape(len(asked), len(self.names))
        return values if np.isfinite(values).all() else self._finite(asked, values)

    def _finite(self, asked: list[int], values: Array) -> Array:
        """Utilities with the worst finite ones in the place of infinite ones."""
        every = np.array([*self.evaluated.values()])
        worst = np.where(np.isfinite(every), every, np.inf).min(axis=0)
        if (undefined := np.isnan(values).any(axis=1) | np.isinf(worst).any()).any():
            coalition = f"The utility of the coalition of players {members(asked[int(undefined.argmax())])}"
            raise InputError(f"{coalition} is not a number, so no player has a value. Leave this game out.", UNDEFINED)
        return np.where(np.isfinite(values), values, worst)

    @property
    def everyone(self) -> int:
        """The coalition of all players."""
        return (1 << self.n) - 1

    @property
    def gain(self) -> Array:
        """U(N) - U({}) [K], what all players together are worth."""
        return np.asarray(np.diff(self([0, self.everyone]), axis=0)[0])

    @property
    def clipped(self) -> tuple[int, ...]:
        """The coalitions of which a utility was infinite."""
        return tuple(mask for mask, U in self.evaluated.items() if not np.isfinite(U).all())

    def settled(self, between: float) -> bool:
        """Whether the game changes none of its utilities by more than ``between`` times their scale, so that all values are 0."""
        return bool((np.abs(self.gain) <= between * np.asarray(self.scale)).all())


@dataclass(frozen=True)
class Values:
    """The values of the players of a game, or of several games together.

    Parameters
    ----------
    names : of the K utilities.
    values : [n, K], in the unit of the utilities; NaN of a player that was in no game.
    gain : U(N) - U({}) [K].
    evaluations : number of coalitions that were evaluated, {} and N included.
    coalitions : number of all coalitions, 2^n.
    errors : standard errors [n, K] of sampled values; None if they are exact, or there are too few samples.
    converged : whether sampling ended by its own rule, and not at its bound; of ComFedSV, whether its starts agree.
    notes : facts by name: the numbers of ``clipped`` coalitions, ``permutations``, ``sets`` and ``skipped`` games, as far as they are not 0. Of
        ComFedSV also those of :func:`equipoise.contribution.completion.complete`, a list over the utilities each.
    """

    names: tuple[str, ...]
    values: Array
    gain: Array
    evaluations: int
    coalitions: int
    errors: Array | None = None
    converged: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gap(self) -> Array:
        """How much the sum of the values exceeds the gain [K]; 0 if they are efficient."""
        return np.asarray(np.nansum(self.values, axis=0) - self.gain)


def values_of(game: Game, values: Array, errors: Array | None = None, converged: bool = True, **notes: int) -> Values:
    """The values [n, K] of a game's players with what they took; notes that are 0 are left out."""
    gain, counts = game.gain, {"clipped": len(game.clipped), **notes}
    facts = {name: count for name, count in counts.items() if count}
    return Values(game.names, values, gain, len(game.evaluated), 1 << game.n, errors, converged, facts)


def skipped(game: Game) -> Values:
    """The values of a game that is not looked at: all are 0."""
    return values_of(game, np.zeros((game.n, len(game.names))), skipped=1)


class Evaluator:
    """What computes the values of the players of a game, ``evaluator(game, generator)``; all random numbers are the generator's.

    It is a frozen dataclass, whose fields are options with their ranges and meanings.
    """

    __call__: Callable[..., Any]

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}: ")


def members(coalition: int) -> tuple[int, ...]:
    """The players of a coalition, ascending."""
    return tuple(k for k in range(coalition.bit_length()) if coalition >> k & 1)


def coalition_of(players: Iterable[int]) -> int:
    """The coalition of some players."""
    return sum(1 << int(k) for k in set(players))
