"""What clients are worth by the directions of their updates alone: no data are needed, and no value is one of performance.

Most functions take the inner products G = u u^T [M, M] of the updates u [M, P].
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from equipoise.contribution.game import Array, Game
from equipoise.contribution.sampled import membership

CANCELLED = 1e-12  # the square of a sum below this many times that of its terms differs from 0 by rounding only


def cosines_with_sum(products: ArrayLike, weights: ArrayLike) -> Array:
    r"""CGSV: the cosine of each update with the weighted sum of all [M], in [-1, 1]; 0 of a zero update.

    .. math:: \varphi_i = \cos\Big(u_i, \sum_j w_j u_j\Big)

    Xu et al., Gradient driven rewards to guarantee fairness in collaborative machine learning, NeurIPS 2021.

    Parameters
    ----------
    products : G = u u^T [M, M].
    weights : w [M], >= 0; only their ratios count.
    """
    G, w = np.asarray(products, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    return _ratio(G @ w, np.sqrt(np.diag(G) * _squares(G, w)))


def cosine_game(products: ArrayLike) -> Game:
    r"""The game of which CGSV's cosine is an approximation; its exact Shapley values sum to 1.

    .. math:: \nu(S) = \cos\Big(\sum_{i \in S} u_i, \sum_{i \in N} u_i\Big), \qquad \nu(\{\}) = 0

    Parameters
    ----------
    products : G = u u^T [M, M].
    """
    G = np.asarray(products, dtype=np.float64)

    def evaluate(masks: list[int]) -> Array:
        inside = membership(masks, len(G)).astype(float)
        return _ratio(inside @ G.sum(axis=1), np.sqrt(_squares(G, inside) * _squares(G, np.ones(len(G)))))[:, None]

    return Game(len(G), evaluate, ("cosine",))


def cosines(products: ArrayLike) -> Array:
    """The cosines of each two updates [M, M], of their inner products G; 0 of a zero update."""
    G = np.asarray(products, dtype=np.float64)
    norms = np.sqrt(np.diag(G))
    return _ratio(G, np.outer(norms, norms))


def most_alike(products: ArrayLike) -> tuple[int, int, float]:
    """The two updates with the largest cosine, and that cosine: 1 of a copy. M >= 2."""
    every = cosines(products)
    upper = np.where(np.tri(len(every), dtype=bool), -np.inf, every)
    i, j = np.unravel_index(int(upper.argmax()), upper.shape)
    return int(i), int(j), float(upper[i, j])


class ByClass(NamedTuple):
    """ShapFed's cosines by class [M, C], the value of each client [M], and its share of their sum [M]."""

    cosines: Array
    values: Array
    shares: Array


def shapfed(head: ArrayLike, weights: ArrayLike, before: ArrayLike | None = None, momentum: float = 0.0) -> ByClass:
    r"""ShapFed: the cosine of each class's row of the last layer with that of the aggregate.

    .. math:: \Gamma_{ij} = \cos\Big(u_i^{(j)}, \sum_k w_k u_k^{(j)}\Big), \qquad \gamma_i = \frac{1}{C} \sum_j \frac{1 + \Gamma_{ij}}{2}

    Tastan et al., Redefining contributions: Shapley-driven federated learning, IJCAI 2024, Eq. 5-6. A zero row has the cosine 0.

    Parameters
    ----------
    head : updates of the weights of the last, linear layer [M, C, P].
    weights : of the aggregate [M].
    before : cosines of the round before [M, C]; None: the first round.
    momentum : mu, of the cosines before, in [0, 1).
    """
    u, w = np.asarray(head, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    total = np.tensordot(w, u, axes=1)
    cosines = _ratio((u * total).sum(axis=-1), np.linalg.norm(u, axis=-1) * np.linalg.norm(total, axis=-1))
    if before is not None:
        cosines = momentum * np.asarray(before) + (1 - momentum) * cosines
    gamma = (1 + cosines).mean(axis=1) / 2
    return ByClass(cosines, gamma, gamma / gamma.sum())


def shapfed_released(
    head: ArrayLike, weights: ArrayLike, before: ArrayLike | None = None, momentum: float = 0.9
) -> ByClass:
    """ShapFed as in the authors' code: values are means of the cosines, and have the momentum.

    Parameters
    ----------
    head : as in :func:`shapfed`, with the update of the bias as one more column.
    weights : of the aggregate [M].
    before : values of the round before [M]; None: the first round.
    momentum : of the values before, in [0, 1).
    """
    cosines = shapfed(head, weights).cosines
    now = cosines.mean(axis=1)
    values = now if before is None else momentum * np.asarray(before) + (1 - momentum) * now
    return ByClass(cosines, values, values / values.sum())


def _squares(G: Array, w: Array) -> Array:
    """The squared norms of sums of updates with weights [..., M]; 0 where they cancel."""
    squares = ((w @ G) * w).sum(axis=-1)
    return np.asarray(np.where(squares > CANCELLED * (w**2 @ np.diag(G)), squares, 0.0))


def _ratio(product: Array, norms: Array) -> Array:
    """The cosines; 0 of vectors of length 0."""
    return np.asarray(np.where(norms > 0, product / np.where(norms > 0, norms, 1.0), 0.0))
