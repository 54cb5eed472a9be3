"""ComFedSV: the utilities of coalitions that were never in one round together follow from those that were, by a matrix of low rank."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from equipoise.contribution.exact import Exact
from equipoise.contribution.game import Array, Evaluator, Game, coalition_of, members, values_of
from equipoise.contribution.rounds import Rounds, sum_of_rounds
from equipoise.contribution.sampled import Order, Permutations, random_orders
from equipoise.system.errors import InputError
from equipoise.system.ranges import number, setting
from equipoise.system.suggestions import some

Mask = NDArray[np.bool_]
# for each round the ids of its clients, in the order of the players, and its game
Played = Sequence[tuple[Sequence[int], Game]]
RANKS: Final = (1, 2, 3)
WEIGHTS: Final = (1e-4, 1e-3, 1e-2, 1e-1)  # lambda, as multiples of the mean square of the observed utilities
HELD_OUT: Final = 0.1  # share of the observed utilities on which rank and lambda are chosen
STARTS: Final = 5  # uniform ones, in addition to the cosines; of normal ones many end far from the lowest objective
SPREAD: Final = 0.05  # of values between starts, beyond which they cannot be told
EXACT: Final = 10  # most clients whose 2^N coalitions are all columns; of more, prefixes of N log N orders are


@dataclass(frozen=True)
class ComFedSV(Evaluator):
    r"""ComFedSV: the sum over the rounds of Shapley values among all clients, also those that were not in the round.

    .. math:: \min_{W, H} \sum_{(t, S) : S \subseteq I_t} (U_{tS} - w_t^\top h_S)^2 + \lambda (\|W\|^2 + \|H\|^2), \qquad
        \varphi_i = \sum_t \operatorname{Shapley}_i(w_t^\top h_\cdot)

    Fan et al., Improving fairness for data valuation in horizontal federated learning, ICDE 2022, Eq. 9-13 and Algorithm 1. U_tS is the
    utility less that of the round's initial model. Columns are all coalitions of at most 10 clients, else the prefixes of N log N orders.
    The paper states neither the rank r nor lambda: both are chosen on held-out utilities. Twins that attended differently are treated alike up to
    the error of the completion. A solution need not be unique: ``converged`` is false, and no ranking should be shown, if the starts differ by
    more than 5 % (``spread``).

    Parameters
    ----------
    rank : r; None: chosen among 1, 2, 3.
    """

    rank: int | None = setting(number(None, 1, whole=True), "rank of the matrix of utilities", "chosen among 1, 2, 3")

    def __call__(self, n: int, rounds: Played, generator: np.random.Generator) -> Rounds:
        """The values of n clients; each round has the ids of its clients, in the order of the players, and its game.

        Raises
        ------
        InputError : no round had all clients that were in any, so that some coalitions were never observed.
        """
        clients = sorted({i for ids, _ in rounds for i in ids})
        _require_all(clients, [ids for ids, _ in rounds])
        orders, columns = _columns(len(clients), generator)
        U, seen = observe([([clients.index(i) for i in ids], game) for ids, game in rounds], columns)

        def worth(X: Array) -> Array:
            utilities = dict(zip(columns, X.T, strict=True))
            game = Game(len(clients), lambda masks: [utilities[S] for S in masks], ("",) * len(X))
            return (Permutations().of_orders(game, orders) if orders else Exact()(game)).values

        ranks = RANKS if self.rank is None else (self.rank,)
        parts = [complete(U[..., k], seen, worth, generator, ranks) for k in range(U.shape[-1])]
        run = sum_of_rounds(n, [(ids, values_of(game, np.zeros((game.n, U.shape[-1])))) for ids, game in rounds])
        run.by_round[:, clients] = np.stack([worth(X).T for X, _ in parts], axis=-1)
        notes = {**run.total.notes, **{key: [facts[key] for _, facts in parts] for key in parts[0][1]}}
        told = all(spread <= SPREAD for spread in notes["spread"])
        total = replace(run.total, values=run.weighted(np.ones(len(rounds))), converged=told, notes=notes)
        return replace(run, total=total)


def _columns(n: int, generator: np.random.Generator) -> tuple[list[Order], list[int]]:
    """Orders of n clients, none if these are few, and the coalitions that are columns of the matrix."""
    if n <= EXACT:
        return [], [*range(1 << n)]
    orders = [*itertools.islice(random_orders(n, generator), math.ceil(n * math.log(n)))]
    return orders, [*dict.fromkeys(coalition_of(order[:k]) for order in orders for k in range(n + 1))]


def _require_all(clients: Sequence[int], cohorts: Sequence[Sequence[int]]) -> None:
    """Require a round of all clients."""
    if any({*ids} == {*clients} for ids in cohorts):
        return
    met = {pair for ids in cohorts for pair in itertools.combinations(sorted(ids), 2)}
    apart = [f"{i} and {j}" for i, j in itertools.combinations(clients, 2) if (i, j) not in met]
    raise InputError(
        f"comfedsv needs a round of all {len(clients)} clients: other coalitions were never observed. Never in one round: "
        f"{some(apart, 5) or 'all of them'}. Let all clients take part in the first round, or choose another evaluator."
    )


def observe(rounds: Played, columns: Sequence[int]) -> tuple[Array, Mask]:
    """The utilities less that of {} [T, C, K], 0 where they are not observed, and where they are [T, C]: of subsets of a round's players."""
    cohorts = [coalition_of(ids) for ids, _ in rounds]
    seen = np.array([[not S & ~cohort for S in columns] for cohort in cohorts])
    U = np.zeros((*seen.shape, len(rounds[0][1].names)))
    for t, (ids, game) in enumerate(rounds):
        player = {i: k for k, i in enumerate(ids)}
        inside = [coalition_of(player[i] for i in members(columns[c])) for c in np.flatnonzero(seen[t]).tolist()]
        none, *values = game([0, *inside])
        U[t, seen[t]] = values - none
    return U, seen


def complete(
    U: Array, seen: Mask, worth: Callable[[Array], Array], generator: np.random.Generator, ranks: Sequence[int] = RANKS
) -> tuple[Array, dict[str, float]]:
    """The completed utilities X [T, C], whose rank and lambda are chosen on held-out ones, from several starts; and how far they are determined.

    ``rank`` and ``weight`` are r and lambda, ``error`` is the root mean squared error on held-out utilities as a multiple of their root mean
    square, NaN if none can be held out. ``spread`` is the largest difference of a value between starts that end within 1e-6 of the lowest
    objective, as a multiple of the largest value, NaN if only one does. ``unique`` is that of :func:`certified`.

    Parameters
    ----------
    U : utilities [T, C], 0 where not observed.
    seen : where they are observed [T, C].
    worth : the values [N, T] of the clients by a completed matrix, for the spread.
    generator : of the held-out utilities and of the starts.
    ranks : that are tried, ascending.
    """
    scale, held = float((U[seen] ** 2).mean()) or 1.0, _held_out(seen, generator)
    tried = [(r, weight * scale) for r in sorted({min(r, *U.shape) for r in ranks}) for weight in WEIGHTS]
    fits = [factorise(U, seen & ~held, cosines(len(U), r), weight, 300)[0] for r, weight in tried]
    squares, (rank, weight) = min((((X - U)[held] ** 2).sum(), choice) for X, choice in zip(fits, tried, strict=True))
    error = math.sqrt(squares / held.sum() / scale) if held.any() else math.nan
    starts = [cosines(len(U), rank), *generator.random((STARTS, len(U), rank))]
    solutions = sorted((factorise(U, seen, W, weight) for W in starts), key=lambda solution: solution[1])
    near = np.array([worth(X).sum(axis=1) for X, value in solutions if value <= solutions[0][1] * (1 + 1e-6)])
    size = np.abs(near[0]).max(initial=0) or 1.0
    spread = float(np.ptp(near, axis=0).max(initial=0) / size) if len(near) > 1 else math.nan
    X, facts = solutions[0][0], {"rank": rank, "weight": weight, "error": error, "spread": spread}
    return X, {**facts, "unique": certified(U, seen, X, weight)}


def _held_out(seen: Mask, generator: np.random.Generator) -> Mask:
    """Observed utilities to hold out, at most one of a column, of columns and rounds that have others."""
    others = (seen.sum(axis=0) > 1) & (seen.sum(axis=1, keepdims=True) > 2)
    draws = np.where(seen & others, generator.random(seen.shape), 0.0)
    draws[:, 0] = 0.0  # {}, whose utility is 0 by definition
    draws[draws < draws.max(axis=0)] = 0.0
    count = min(max(1, round(HELD_OUT * seen.sum())), draws.size - 1)
    return np.asarray(draws > np.sort(draws, axis=None)[-1 - count])


def cosines(rounds: int, rank: int) -> Array:
    """The start W[t, k] = cos(pi k (t + 1/2) / T)."""
    return np.asarray(np.cos(np.pi * np.arange(rank) * (np.arange(rounds)[:, None] + 0.5) / rounds))


def factorise(U: Array, seen: Mask, W: Array, weight: float, sweeps: int = 1000) -> tuple[Array, float]:
    """A local minimum X = W H^T [T, C] of Eq. 9 and its objective, by alternating ridge regressions.

    After each sweep both factors are those of the singular values of X, which leaves X as it is and lowers the penalty. Columns that were
    never observed are 0.

    Parameters
    ----------
    U : utilities [T, C]; those not observed do not count.
    seen : where they are observed [T, C].
    W : start [T, r].
    weight : lambda > 0.
    sweeps : the largest number; it ends when no entry of X changes by more than 1e-10 times the largest.
    """
    U, X = np.where(seen, U, 0.0), np.full_like(U, np.inf)
    for _ in range(sweeps):
        H = _ridge(U, seen, W, weight)
        W = _ridge(U.T, seen.T, H, weight)
        (left, a), (right, b) = np.linalg.qr(W), np.linalg.qr(H)
        P, s, Q = np.linalg.svd(a @ b.T)
        W, H = left @ P * np.sqrt(s), right @ Q.T * np.sqrt(s)
        before, X = X, W @ H.T
        if np.abs(X - before).max() <= 1e-10 * np.abs(X).max():
            break
    return X, objective(U, seen, W, H, weight)


def _ridge(U: Array, seen: Mask, W: Array, weight: float) -> Array:
    """H [C, r], the minimum for given W [T, r]."""
    r = W.shape[1]
    squares = (seen.T @ (W[:, :, None] * W[:, None, :]).reshape(len(W), r * r)).reshape(-1, r, r)
    return np.asarray(np.linalg.solve(squares + weight * np.eye(r), (U.T @ W)[..., None])[..., 0])


def objective(U: Array, seen: Mask, W: Array, H: Array, weight: float) -> float:
    """Eq. 9: the squared errors of W [T, r] and H [C, r] where U is observed, and lambda times the squares of both."""
    return float(((U - W @ H.T)[seen] ** 2).sum() + weight * ((W**2).sum() + (H**2).sum()))


def certified(U: Array, seen: Mask, X: Array, weight: float) -> bool:
    """Whether X certainly is the only minimum of Eq. 9 over all ranks, with the nuclear norm 2 lambda |X|_* as penalty.

    With G = (U - X) / lambda where U is observed, X is a minimum if no singular value of G exceeds 1. If P, Q are the k singular vectors
    whose value is 1, it is the only one if P A Q^T is not 0 on all observed entries, for every symmetric A. Sufficient, not necessary.
    """
    P, s, Q = np.linalg.svd(np.where(seen, (U - X) / weight, 0.0), full_matrices=False)
    k = int((s > 1 - 1e-4).sum())
    pairs = itertools.combinations_with_replacement(range(k), 2)
    basis = np.array([(np.outer(P[:, a], Q[b]) + np.outer(P[:, b], Q[a]))[seen] for a, b in pairs])
    return bool(s.max(initial=0) < 1 + 1e-4) and (not k or int(np.linalg.matrix_rank(basis)) == len(basis))
