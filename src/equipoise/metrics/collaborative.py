"""Collaborative fairness: whether clients that contribute more get a better model; pure functions of accuracies."""

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import UNDEFINED, Value, Vector, best, mean, std, worst
from equipoise.metrics.statistics import ranks

SERVER: Final = "the server's validation data"  # on which rewards are compared while settings are chosen, as a test set
TIE: Final = 1e-12  # of accuracies that are k / n: what differs by less differs by rounding


class Bounds(NamedTuple):
    """The clients that violate the bounds of bounded collaborative fairness, by their places, from 0.

    `upper` [K] are the upper bounds, `lower_margin` [K] and `upper_margin` [K] the distances of each client to its
    bounds (negative: outside), `worst_lower` and `worst_upper` the smallest of them, over the clients to which a bound
    applies.  `rate` is the share of clients without a violation, `satisfied` whether there is none.
    """

    upper: Vector
    lower_violations: tuple[int, ...]
    upper_violations: tuple[int, ...]
    literal_upper_violations: tuple[int, ...]
    lower_margin: Vector
    upper_margin: Vector
    worst_lower: Value
    worst_upper: Value
    rate: Value
    satisfied: bool


class Gain(NamedTuple):
    """What clients gain by collaborating: `gains` [K], their mean and std (ddof 0), how many are worse off."""

    gains: Vector
    mean: Value
    std: Value
    worse_off: int


def collaborative_fairness(contribution: ArrayLike, reward: ArrayLike) -> Value:
    """Linear correlation of what clients contribute and what they get, `100 Pearson(c, theta*)`, in [-100, 100].

    FedSAC (Wang et al., KDD 2024), after CFFL and CGSV.  Contribution: the accuracy of the model a client
    trains alone.  Reward: the accuracy of the model it owns in the end.  Both on one test set that all clients share.

    Parameters
    ----------
    contribution, reward : one accuracy per client, in [0, 1]; shape [K].  Undefined where either is the same for all
        clients, as the reward is when they share one model; with two clients it is always 100 or -100.

    Raises
    ------
    ValueError : the two do not have the same shape [K].
    """
    c, r = _both(contribution, reward)
    if not np.isfinite([c, r]).all() or _constant(c) or _constant(r):
        return UNDEFINED
    value = float(_unit(c - c.mean()) @ _unit(r - r.mean()))
    return Value(100 * min(1.0, max(-1.0, value)), True)  # a correlation rounds to 1 + 1e-16


def rank_fairness(contribution: ArrayLike, reward: ArrayLike) -> Value:
    """Rank correlation of what clients contribute and what they get, `100 Spearman(c, theta*)`, in [-100, 100].

    The companion of `collaborative_fairness`, which a single client far from the others can decide; ties have the mean
    of their ranks.

    Parameters
    ----------
    contribution, reward : as there; shape [K].

    Raises
    ------
    ValueError : the two do not have the same shape [K].
    """
    c, r = _both(contribution, reward)
    if not (np.isfinite(c).all() and np.isfinite(r).all()):
        return UNDEFINED
    return collaborative_fairness(ranks(c), ranks(r))


def bounded_fairness(contribution: ArrayLike, reward: ArrayLike) -> Bounds:
    """Bounded collaborative fairness: no client is worse off than alone, or rewarded far beyond its contribution.

    For every client `c_i < theta*_i < (c_i + max_j theta*_j) / 2` (FedSAC, Wang et al., KDD 2024, Definition 1).

    Differs: the upper bound does not apply to clients with the highest reward, where it would be `theta*_i < c_i`,
    against the lower one; `literal_upper_violations` has them too.

    Parameters
    ----------
    contribution, reward : one accuracy per client, in [0, 1] (or both in percent); shape [K].  Where one is not known,
        `rate` is undefined.

    Raises
    ------
    ValueError : the two do not have the same shape [K].
    """
    c, r = _both(contribution, reward)
    top = r.max() if r.size else math.nan
    upper = (c + top) / 2  # [K]
    below, above = r - c, upper - r
    tie = TIE * _size(c, r)
    applies = r < top - tie
    defined = bool(r.size) and bool(np.isfinite(below + above).all())
    low, literal = below <= tie, above <= tie
    high = literal & applies
    violated = low | high
    places = _places(low), _places(high), _places(literal)
    worst_upper, rate = (worst(above[applies]), mean(~violated)) if defined else (UNDEFINED, UNDEFINED)
    return Bounds(upper, *places, below, above, worst(below), worst_upper, rate, defined and not violated.any())


def collaboration_gain(contribution: ArrayLike, reward: ArrayLike) -> Gain:
    """What every client gains over training alone, `g_i = theta*_i - c_i`; its mean and its spread over clients.

    MCG and CGS of CYCle (Tastan et al. 2025).  A correlation does not see clients that federation hurts; this does.

    Parameters
    ----------
    contribution, reward : one accuracy per client, in [0, 1]; shape [K].  Mean and std are undefined where one is not
        known.

    Raises
    ------
    ValueError : the two do not have the same shape [K].
    """
    c, r = _both(contribution, reward)
    gains = r - c
    return Gain(gains, mean(gains), std(gains, ddof=0), int((gains < -TIE * _size(c, r)).sum()))


def noise(accuracy: ArrayLike, n: float) -> Value:
    """Standard error of an accuracy on test samples, `√(p (1 − p) / n)`, p the mean of those given; in [0, 0.5].

    Two models tested on samples of their own differ by `√2` times as much by chance, on the same samples by less, as they err alike.

    Parameters
    ----------
    accuracy : in [0, 1]; shape [K].
    n : > 0, test samples of each.  Undefined where it is not known (NaN).
    """
    p = mean(accuracy)
    return Value(math.sqrt(p.value * (1 - p.value) / n), True) if p.defined and n > 0 else UNDEFINED


def client_range(reward: ArrayLike) -> tuple[Value, Value, Value]:
    """Highest, mean and lowest accuracy of what clients own (FedSAC, Tables 2 and 7); shape [K]."""
    return best(reward), mean(reward), worst(reward)


def _both(contribution: ArrayLike, reward: ArrayLike) -> tuple[Vector, Vector]:
    c, r = (np.asarray(values, dtype=np.float64) for values in (contribution, reward))
    if c.ndim != 1 or c.shape != r.shape:
        raise ValueError(
            "contribution and reward must hold one accuracy per client each: expected the same shape [K], "
            f"found {c.shape} and {r.shape}. Give the accuracies of all clients in one order."
        )
    return np.where(np.isfinite(c), c, np.nan), np.where(np.isfinite(r), r, np.nan)


def _size(*values: Vector) -> float:
    """The largest size of a number: differences of accuracies in percent round like percent."""
    return max((float(np.nanmax(np.abs(v))) for v in values if np.isfinite(v).any()), default=0.0)


def _constant(values: Vector) -> bool:
    return not values.size or bool(np.ptp(values) <= TIE * _size(values))


def _unit(values: Vector) -> Vector:
    # exact, so that no square of a tiny number is lost
    scaled = np.ldexp(values, -int(np.frexp(np.abs(values).max())[1]))
    return np.asarray(scaled / np.linalg.norm(scaled), dtype=np.float64)


def _places(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())
