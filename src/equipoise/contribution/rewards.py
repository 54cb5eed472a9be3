"""The division of a budget by values, and values as shares of their sum."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from equipoise.contribution.game import Array
from equipoise.system.errors import InputError

SMALLEST = 1e-3  # sum of values, as a multiple of the largest, of which shares mean anything


class Reward(NamedTuple):
    """Amounts [n], what is left of the budget, and whether shares are equal because no value is positive."""

    amounts: Array
    left: float
    equal: bool


def reward(values: ArrayLike, budget: float, floor: float = 0.0, cap: float = math.inf) -> Reward:
    r"""Amounts in proportion to the positive values.

    .. math:: r_i = f + (B - n f) \frac{\max(\varphi_i, 0)}{\sum_j \max(\varphi_j, 0)}

    Nobody receives more than the cap: what is cut goes to the other positive values in proportion, again and again, and the rest is left. If
    no value is positive, shares are equal.

    Parameters
    ----------
    values : phi [n], finite.
    budget : B >= 0.
    floor : f of each, in [0, B / n].
    cap : of each, >= f.

    Raises
    ------
    InputError : values that are not finite numbers, or bounds that contradict each other.
    """
    phi = _finite(values)
    if not 0 <= len(phi) * floor <= budget < math.inf or not cap >= floor:
        raise InputError(
            f"A reward needs 0 <= {len(phi)} * floor <= budget and floor <= cap; found floor {floor:g}, cap {cap:g}, budget {budget:g}."
        )
    share = phi.clip(min=0)
    equal = not share.any()
    share = np.ones_like(phi) if equal else share / share.max()
    amounts, rest, room = np.full_like(phi, floor), budget - len(phi) * floor, share > 0
    while rest > 0 and room.any():
        offer = amounts + np.where(room, share, 0) * (rest / share[room].sum())
        capped = room & (offer > cap)
        amounts = np.where(capped, cap, amounts) if capped.any() else offer
        rest, room = (budget - amounts.sum(), room & ~capped) if capped.any() else (0.0, room)
    return Reward(amounts, max(0.0, budget - float(amounts.sum())), equal)


def shares(values: ArrayLike) -> Array:
    """Values divided by their sum [n], with their signs.

    Parameters
    ----------
    values : phi [n], finite.

    Raises
    ------
    InputError : the sum is negative, or below 1/1000 of the largest absolute value, so shares would explode.
    """
    phi = _finite(values)
    if not phi.sum() > SMALLEST * np.abs(phi).max(initial=0):
        raise InputError(
            f"Values that sum to {phi.sum():g} have no shares: expected a positive sum, of at least 1/1000 of the largest value. Compare the "
            "values themselves."
        )
    return np.asarray(phi / phi.sum())


def _finite(values: ArrayLike) -> Array:
    phi = np.asarray(values, dtype=np.float64)
    if phi.ndim != 1 or not np.isfinite(phi).all():
        raise InputError("Values must be a list of finite numbers. Leave out clients that were in no round.")
    return phi
