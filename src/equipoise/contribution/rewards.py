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

    No amount is above the cap: what is cut goes to the other positive values in proportion, repeatedly, and the rest is left. If no value is
    positive, shares are equal.

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
        bounds = f"floor {floor:g}, cap {cap:g} and budget {budget:g}"
        raise InputError(f"A reward needs 0 <= {len(phi)} * floor <= budget and floor <= cap; found {bounds}.")
    equal = not (phi > 0).any()
    share = np.ones_like(phi) if equal else phi.clip(min=0)
    amounts, room = np.full_like(phi, floor), share > 0
    for _ in phi:
        open_shares = np.where(room, share, 0.0)
        offers = amounts + open_shares * (budget - amounts.sum()) / max(open_shares.sum(), 1e-300)
        amounts, room = np.minimum(offers, cap), room & (offers < cap)
    return Reward(amounts, 0.0 if room.any() else max(0.0, budget - float(amounts.sum())), equal)


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
        expected = "expected a positive sum, above 1/1000 of the largest value. Compare the values themselves."
        raise InputError(f"Values that sum to {phi.sum():g} have no shares: {expected}")
    return np.asarray(phi / phi.sum())


def _finite(values: ArrayLike) -> Array:
    phi = np.asarray(values, dtype=np.float64)
    if phi.ndim != 1 or not np.isfinite(phi).all():
        raise InputError("Values must be a list of finite numbers. Leave out clients that were in no round.")
    return phi
