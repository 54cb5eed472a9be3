"""Values from a sample of coalitions: orders of the players, sets of any players, sets of the other players, small and large sets.

What is drawn, and what follows from orders and sets that are given, are separate functions.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, combinations, cycle, islice, permutations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.contribution.exact import Exact
from equipoise.contribution.game import Array, Evaluator, Game, Values, coalition_of, skipped, values_of
from equipoise.system.ranges import number, setting

Order = Sequence[int]
LAST = 10  # earlier estimates with which GTG-Shapley compares the newest


@dataclass(frozen=True)
class Permutations(Evaluator):
    r"""The mean of each player's marginals over random orders in which the players join.

    .. math:: \varphi_i = \frac{1}{|\Pi|} \sum_{\pi \in \Pi} \big(U(S_i^\pi \cup i) - U(S_i^\pi)\big), \qquad
        S_i^\pi = \{j : j \text{ is before } i \text{ in } \pi\}

    Wang et al. 2020, Algorithm 2, with U({}) at the start of each order; as printed, U is never reset. With ``within`` this is truncated
    Monte Carlo, see :func:`marginals`: the sum of the values misses U(N) - U({}) by less than that.

    Parameters
    ----------
    count : number of orders.
    antithetic : every order is followed by its reverse, which counts too.
    within : an order ends when U(N) is nearer than this many times the scale; None: never.
    """

    count: int = setting(number(100, 1), "number of orders")
    antithetic: bool = setting(field(default=False), "every order is followed by its reverse")
    within: float | None = setting(number(None, 0), "distance from U(N) at which an order ends", example=0.05)

    def __call__(self, game: Game, generator: np.random.Generator) -> Values:
        """The values."""
        block, orders = 1 + self.antithetic, random_orders(game.n, generator)
        drawn = islice(with_reverses(orders) if self.antithetic else orders, self.count)
        return self.of_orders(game, drawn, block)

    def of_orders(self, game: Game, orders: Iterable[Order], block: int = 1) -> Values:
        """The values by given orders; so many in sequence are one independent draw."""
        records = marginals(game, [*orders], self.within)
        return _mean(game, records, block, permutations=len(records))


@dataclass(frozen=True)
class GTG(Evaluator):
    r"""GTG-Shapley: the mean of truncated marginals over guided orders, until it stays.

    .. math:: \frac{1}{10 n} \sum_{m=1}^{10} \sum_i \frac{|\varphi_i^k - \varphi_i^{k-m}|}{|\varphi_i^k|} < 0.05

    Liu, Chen, Yu, Liu, Cui, GTG-Shapley, ACM TIST 2022, Algorithm 1 and Eq. 10. The paper does not state its thresholds; .01 and .001 are
    those of its code. Convergence is looked at after every n orders, so that each player has led equally often.

    Parameters
    ----------
    between : a game that changes no utility by more than this many times its scale gives every player 0.
    within : an order ends when U(N) is nearer than this many times the scale, see :func:`marginals`.
    tolerance : mean relative change of the values below which sampling stops.
    least : smallest number of orders; at least 11 are taken.
    most : largest number of orders, as a multiple of n; then ``converged`` is false.
    floor : values below this many times the gain U(N) - U({}) count as that much in the denominator, which would else be about 0.
    """

    between: float = setting(number(0.01, 0), "largest change of a round that counts as none")
    within: float = setting(number(0.001, 0), "distance from U(N) at which an order ends")
    tolerance: float = setting(number(0.05, 0, above=True), "relative change at which sampling stops")
    least: int = setting(number(30, 1), "smallest number of orders")
    most: int = setting(number(100, 1), "largest number of orders for each player")
    floor: float = setting(number(1e-3, 0), "smallest value in the relative change, as a share of the gain")

    def __call__(self, game: Game, generator: np.random.Generator) -> Values:
        """The values."""
        return self.of_orders(game, guided(game.n, random_orders(game.n, generator)))

    def of_orders(self, game: Game, orders: Iterator[Order]) -> Values:
        """The values by given orders; if these end, so does the sampling."""
        if game.settled(self.between):
            return skipped(game)
        records, converged = np.empty((0, game.n, len(game.names))), False
        while len(records) < self.most * game.n and not converged and (block := [*islice(orders, game.n)]):
            records = np.concatenate([records, marginals(game, block, self.within)])
            means = records.cumsum(axis=0) / np.arange(1, len(records) + 1)[:, None, None]
            enough = len(records) >= max(self.least, LAST + 1)
            converged = enough and change(means, self.floor * np.abs(game.gain)) < self.tolerance
        return _mean(game, records, game.n, converged, permutations=len(records))


@dataclass(frozen=True)
class SampledBanzhaf(Evaluator):
    r"""The Banzhaf value by maximum sample reuse: every set serves all players.

    .. math:: \varphi_i = \frac{1}{|\mathcal S_{\ni i}|} \sum_{S \ni i} U(S) - \frac{1}{|\mathcal S_{\not\ni i}|} \sum_{S \not\ni i} U(S)

    Wang, Jia, Data Banzhaf, AISTATS 2023, Eq. 5. A player that is in all sets, or in none, has the value 0.

    Parameters
    ----------
    count : number of sets, which each player joins with chance 1/2.
    """

    count: int = setting(number(500, 1), "number of sets")

    def __call__(self, game: Game, generator: np.random.Generator) -> Values:
        """The values."""
        return self.of_sets(game, coalitions_of(generator.random((self.count, game.n)) < 0.5))

    def of_sets(self, game: Game, sets: Sequence[int]) -> Values:
        """The values by given sets."""
        U, inside = game(sets), membership(sets, game.n)
        phi, errors = np.zeros((game.n, U.shape[1])), np.full((game.n, U.shape[1]), np.nan)
        for i, joins in enumerate(inside.T):
            joined, absent = U[joins], U[~joins]
            if 0 < len(joined) < len(U):
                phi[i] = joined.mean(axis=0) - absent.mean(axis=0)
            if 1 < len(joined) < len(U) - 1:
                errors[i] = np.sqrt(joined.var(axis=0, ddof=1) / len(joined) + absent.var(axis=0, ddof=1) / len(absent))
        return values_of(game, phi, errors, sets=len(sets))


@dataclass(frozen=True)
class Owen(Evaluator):
    r"""The mean of each player's marginals over sets that the others join with chance q, for several q: Owen's multilinear extension.

    .. math:: \varphi_i = \int_0^1 \mathbb E_q \big[U(S \cup i) - U(S)\big] \, dq

    Owen 1972. With the ends 0 and 1 of the grid of q, as in pyDVL, a plain mean counts both in full and is biased; midpoints (j + 1/2) / Q
    have less of that.

    Parameters
    ----------
    points : Q of the grid.
    count : sets for each player and q.
    ends : whether the grid has the ends 0 and 1; else midpoints.
    antithetic : also uses what each set leaves out, N without i and S.
    """

    points: int = setting(number(10, 1), "points of the grid of chances")
    count: int = setting(number(5, 1), "sets for each player and chance")
    ends: bool = setting(field(default=False), "whether the chances 0 and 1 are in the grid")
    antithetic: bool = setting(field(default=True), "also what each set leaves out")

    @property
    def chances(self) -> Array:
        """The grid [Q]."""
        return np.linspace(0, 1, self.points) if self.ends else (np.arange(self.points) + 0.5) / self.points

    def __call__(self, game: Game, generator: np.random.Generator) -> Values:
        """The values."""
        turns = np.tile(self.chances, self.count)[:, None]
        joined = generator.random((game.n, len(turns), game.n)) < turns
        return self.of_sets(game, [[S & ~(1 << i) for S in coalitions_of(rows)] for i, rows in enumerate(joined)])

    def of_sets(self, game: Game, others: Sequence[Sequence[int]]) -> Values:
        """The values by given sets without each player [n][sets], whose chances take turns."""
        if not game.n:
            return skipped(game)
        turns, sides = len(others[0]), 1 + self.antithetic
        sets = [
            (i, side) for i, own in enumerate(others) for S in own for side in (S, game.everyone ^ 1 << i ^ S)[:sides]
        ]
        U = game(S | bit << i for i, S in sets for bit in (0, 1)).reshape(game.n, turns, sides, 2, len(game.names))
        return _mean(game, np.diff(U, axis=3)[..., 0, :].mean(axis=2).swapaxes(0, 1), self.points, sets=len(sets))


@dataclass(frozen=True)
class Strata(Evaluator):
    r"""A Shapley value from the smallest and the largest coalitions; our proposal, no published method.

    .. math:: \varphi_i = \frac{1}{n} \sum_{k=0}^{n-1} \bar\Delta_{ik} + c, \qquad
        \bar\Delta_{ik} = \operatorname{mean}_{|S| = k} \big(U(S \cup i) - U(S)\big)

    The strata k = 0, 1, n - 2, n - 1 are exact. All others follow from these by least squares on 1, 1/(k+1), 1/(k+1)^2, and c makes the values
    sum to U(N) - U({}). It takes 2 + 2 n + n (n - 1) evaluations; up to 4 players the values are exact.
    """

    def __call__(self, game: Game, generator: np.random.Generator | None = None) -> Values:
        """The values."""
        if (n := game.n) <= 4:
            return Exact()(game)
        ends = np.array([0, 1, n - 2, n - 1])
        sets = [coalition_of(S) for size in {*ends, *(ends + 1)} for S in combinations(range(n), size)]
        U, inside = game(sets), membership(sets, n)
        joined = inside[:, :, None] & (inside.sum(axis=1)[:, None, None] == ends + 1)  # [sets, n, 4]
        absent = ~inside[:, :, None] & (inside.sum(axis=1)[:, None, None] == ends)
        means = [np.einsum("sik,su->kiu", part / part.sum(axis=0), U) for part in (joined, absent)]
        exact, basis = means[0] - means[1], np.vander(1 / np.arange(1.0, n + 1), 3)
        strata = np.tensordot(basis @ np.linalg.pinv(basis[ends]), exact, axes=1)
        strata[ends] = exact
        phi = strata.mean(axis=0)
        return values_of(game, phi + (game.gain - phi.sum(axis=0)) / n)


def marginals(game: Game, orders: Sequence[Order], within: float | None = None) -> Array:
    r"""What each player adds in each order [orders, n, K].

    .. math:: v_j = U(\{\pi_1, \dots, \pi_j\}) \text{ if } |U(N) - v_{j-1}| \ge \epsilon, \text{ else } v_{j-1}

    Truncation of GTG-Shapley (Liu et al. 2022, Algorithm 1) and of Monte Carlo. Only evaluated coalitions are kept, as in the paper: the
    released code also keeps v_j where it was not evaluated. Of several utilities an order ends when each is that near.

    Parameters
    ----------
    game : of n players.
    orders : of all players.
    within : epsilon, as a multiple of the utility's scale, >= 0; None: every coalition is evaluated.
    """
    masks = [[*accumulate(order, lambda S, i: S | 1 << i, initial=0)] for order in orders]
    none, *_, everyone = game([0, *(chain.from_iterable(masks) if within is None else ()), game.everyone])
    epsilon, running = (within or 0.0) * np.asarray(game.scale), np.arange(len(masks))
    v = np.tile(none, (len(masks), game.n + 1, 1))
    for j in range(1, game.n + 1):
        running = running[(np.abs(everyone - v[running, j - 1]) >= epsilon).any(axis=-1)]
        v[:, j] = v[:, j - 1]
        v[running, j] = game(masks[k][j] for k in running)
    places = np.argsort(np.reshape([*orders], (len(masks), game.n)), axis=1)  # of each player in the order
    return np.asarray(np.take_along_axis(np.diff(v, axis=1), places[..., None], axis=1))


def change(means: Array, least: ArrayLike = 0.0) -> float:
    """The mean relative change of the newest estimates since each of the ten before, GTG-Shapley Eq. 10; of K utilities the largest.

    Parameters
    ----------
    means : estimates after 1, 2, ... orders [k, n, K], k >= 11.
    least : smallest denominator, of each utility [K].
    """
    size = np.maximum(np.maximum(np.abs(means[-1]), least), 1e-12)
    return float((np.abs(means[-1] - means[-1 - LAST : -1]) / size).mean(axis=(0, 1)).max())


def random_orders(n: int, generator: np.random.Generator) -> Iterator[Order]:
    """Orders of n players, without end."""
    while True:
        yield generator.permutation(n).tolist()


def with_reverses(orders: Iterable[Order]) -> Iterator[Order]:
    """Every order, and then its reverse."""
    return chain.from_iterable((order, order[::-1]) for order in orders)


def guided(n: int, orders: Iterable[Order], lead: int = 1) -> Iterator[Order]:
    """Orders whose first ``lead`` places take turns: all orders of ``lead`` of n players, lexicographic, again and again (GTG-Shapley, section 4.3)."""
    for first, order in zip(cycle(permutations(range(n), lead)), orders, strict=False):
        yield [*first, *(player for player in order if player not in first)]


def coalitions_of(joined: ArrayLike) -> list[int]:
    """The coalitions of rows that state who joined [sets, n]."""
    return [coalition_of(np.flatnonzero(row)) for row in np.asarray(joined)]


def membership(coalitions: Sequence[int], n: int) -> np.ndarray:
    """Whether each of n players is in each coalition [len, n]."""
    return np.array([[S >> i & 1 for i in range(n)] for S in coalitions], dtype=bool).reshape(len(coalitions), n)


def _mean(game: Game, records: Array, block: int, converged: bool = True, **notes: int) -> Values:
    """The mean over records [draws, n, K], of which so many in sequence are one independent draw."""
    errors = standard_errors(block_means(records, block))
    return values_of(game, records.mean(axis=0), errors, converged, **notes)


def block_means(records: Array, size: int) -> Array:
    """Means of so many records in sequence [blocks, n, K], each of which is one independent draw; an incomplete block is left out."""
    blocks = len(records) // max(size, 1)
    return np.asarray(records[: blocks * size].reshape(blocks, size, *records.shape[1:]).mean(axis=1))


def standard_errors(samples: Array) -> Array | None:
    """The standard error of a mean over independent draws, s / sqrt(draws) with ddof 1; None for fewer than two."""
    return samples.std(axis=0, ddof=1) / math.sqrt(len(samples)) if len(samples) > 1 else None
