"""What clients are worth: axioms on random games, every evaluator against a plain loop, rounds, completion, checks and rewards."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr, ttest_rel
from sklearn.metrics import roc_auc_score

from equipoise.contribution import checks, completion, directions, exact, rewards, sampled
from equipoise.contribution.completion import ComFedSV
from equipoise.contribution.evaluators import EVALUATORS, evaluate, read, text_of
from equipoise.contribution.exact import Alone, Banzhaf, Exact, LeaveOneOut
from equipoise.contribution.game import UNDEFINED, Evaluator, Game, Values, coalition_of, members, values_of
from equipoise.contribution.rounds import sum_of_rounds
from equipoise.contribution.sampled import GTG, Owen, Permutations, SampledBanzhaf, Strata
from equipoise.system.errors import InputError
from helpers import in_one

pytestmark = pytest.mark.share(5)
SIZES = (1, 2, 4, 5, 6)
NAMES = ("accuracy", "minus loss")


def table(n: int, seed: int = 0, K: int = 2) -> np.ndarray:
    """Random utilities [2^n, K]."""
    return np.random.default_rng(seed).normal(size=(1 << n, K))


def rising(n: int, seed: int = 0) -> np.ndarray:
    """Utilities [2^n, 2] that grow with the coalition, ever more slowly, with some noise."""
    generator = np.random.default_rng(seed)
    parts = generator.uniform(0.2, 1, size=n)
    sums = np.array([sum(parts[i] for i in members(S)) for S in range(1 << n)])
    U = 1 - np.exp(-sums)
    return np.stack([U, 2 * U], axis=1) + generator.normal(0, 0.01, size=(1 << n, 2))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def orders_of(n: int, count: int, seed: int = 0) -> list[Sequence[int]]:
    return [*itertools.islice(sampled.random_orders(n, rng(seed)), count)]


# plain loops
def subsets(players: Sequence[int]) -> list[int]:
    return [coalition_of(S) for size in range(len(players) + 1) for S in itertools.combinations(players, size)]


def weighted(U: np.ndarray, weight: Callable[[int], float]) -> np.ndarray:
    n = len(U).bit_length() - 1
    phi = np.zeros((n, U.shape[1]))
    for i in range(n):
        for S in subsets([j for j in range(n) if j != i]):
            phi[i] += weight(S.bit_count()) * (U[S | 1 << i] - U[S])
    return phi


def plain_shapley(U: np.ndarray) -> np.ndarray:
    """The mean over all orders."""
    n = len(U).bit_length() - 1
    return plain_orders(U, [*itertools.permutations(range(n))])


def plain_orders(U: np.ndarray, orders: Sequence[Sequence[int]], epsilon: float | None = None) -> np.ndarray:
    phi, k = np.zeros((len(U).bit_length() - 1, U.shape[1])), 0
    for order in orders:
        S, v = 0, U[0]
        for i in order:
            S |= 1 << i
            near = epsilon is not None and (np.abs(U[-1] - v) < epsilon).all()
            phi[i] += 0 if near else U[S] - v
            v = v if near else U[S]
        k += 1
    return phi / k


# the game
class Counted:
    """A table that counts what it is asked for."""

    def __init__(self, U: np.ndarray) -> None:
        self.U, self.batches = U, list[list[int]]()
        self.game = Game(len(U).bit_length() - 1, self.evaluate, NAMES)

    def evaluate(self, masks: list[int]) -> np.ndarray:
        self.batches.append(masks)
        return self.U[masks]


@in_one("name", [name for name in EVALUATORS if name != "comfedsv"])
def test_a_coalition_is_evaluated_once(name: str) -> None:
    counted = Counted(rising(5))
    values = read(name)(counted.game, rng())
    asked = [S for batch in counted.batches for S in batch]
    assert len(asked) == len({*asked}) == values.evaluations == len(counted.game.evaluated)
    assert values.coalitions == 32
    assert values.names == NAMES
    assert values.values.shape == (5, 2)


@in_one("evaluator", [Exact(), Banzhaf(), LeaveOneOut(), Alone(), Permutations(), SampledBanzhaf(), Owen(), Strata()])
def test_all_coalitions_that_are_known_are_asked_for_at_once(evaluator: Evaluator) -> None:
    counted = Counted(rising(6))
    evaluator(counted.game, rng())
    assert len(counted.batches) <= 2  # the second: U({}) and U(N), of which the gain follows


def test_a_block_of_orders_is_evaluated_place_by_place() -> None:
    counted = Counted(rising(6))
    values = GTG()(counted.game, rng())
    blocks = values.notes["permutations"] / 6
    assert len(counted.batches) <= 1 + 6 * blocks


def test_utilities_that_are_given_are_not_evaluated() -> None:
    U = table(3)
    game = Game(3, lambda masks: U[masks], NAMES, evaluated={0: U[0], 7: U[7]})
    assert game([0, 7]).tolist() == [*U[[0, 7]].tolist()]
    counted = Counted(U)
    counted.game.evaluated.update({0: U[0] + 1, 7: U[7]})
    assert (LeaveOneOut()(counted.game).gain == U[7] - U[0] - 1).all()
    assert sorted(S for batch in counted.batches for S in batch) == [3, 5, 6]


def test_an_infinite_utility_counts_as_the_worst_finite_one() -> None:
    U = rising(4)
    worse = U.copy()
    worse[[2, 5], 0] = -np.inf, np.inf
    expected = U.copy()
    expected[[2, 5], 0] = worse[np.isfinite(worse[:, 0]), 0].min()
    game = Game.table(worse)
    values = Exact()(game)
    assert values.notes == {"clipped": 2}
    assert game.clipped == (2, 5)
    assert values.values == pytest.approx(plain_shapley(expected), abs=1e-12)


@in_one("bad", [[np.nan, 0], [0, np.nan]])
def test_a_game_with_an_undefined_utility_has_no_values(bad: list[float]) -> None:
    U = rising(3)
    U[5] = bad
    with pytest.raises(InputError, match=r"players \(0, 2\) is not a number") as error:
        Exact()(Game.table(U))
    assert error.value.kind == UNDEFINED


def test_a_game_without_any_finite_utility_has_no_values() -> None:
    with pytest.raises(InputError) as error:
        Exact()(Game.table(np.full(4, np.inf)))
    assert error.value.kind == UNDEFINED


def test_bad_tables_and_utilities_are_refused() -> None:
    with pytest.raises(InputError, match=r"2\^n rows"):
        Game.table([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"\(2, 1\); found \(2,\)"):
        Game(1, lambda masks: [0.0] * len(masks))([0, 1])


def test_there_may_be_more_than_64_players() -> None:
    game = Game(70, lambda masks: [[float(S.bit_count())] for S in masks])
    for evaluator in (
        LeaveOneOut(),
        Alone(),
        Permutations(count=3),
        GTG(most=1),
        Owen(points=2, count=1),
        SampledBanzhaf(10),
    ):
        values = evaluator(game, rng())
        assert values.coalitions == 1 << 70
        if not isinstance(evaluator, SampledBanzhaf):
            assert values.values == pytest.approx(np.ones((70, 1)))
    with pytest.raises(InputError, match="1,180,591,620,717,411,303,424 evaluations; expected at most 16 players"):
        Exact()(game)


@in_one("name", [name for name in EVALUATORS if name != "comfedsv"])
def test_games_of_none_and_of_one(name: str) -> None:
    evaluator: Any = read(name)
    assert evaluator(Game.table(np.ones((1, 2))), rng()).values.shape == (0, 2)
    assert evaluator(Game.table([[0.5, 2.0], [0.75, 4.0]]), rng()).values.tolist() == [[0.25, 2.0]]


@in_one("name", [name for name in EVALUATORS if name != "comfedsv"])
def test_a_constant_game_is_worth_nothing(name: str) -> None:
    evaluator: Any = read(name)
    values = evaluator(Game.table(np.full((32, 2), 0.3)), rng())
    assert values.values == pytest.approx(np.zeros((5, 2)), abs=1e-15)


# exact values
@in_one("n, seed", [(n, seed) for n in SIZES for seed in (0, 1)])
def test_shapley_is_the_mean_over_all_orders(n: int, seed: int) -> None:
    U = table(n, seed)
    values = Exact()(Game.table(U))
    assert values.values == pytest.approx(plain_shapley(U), abs=1e-12)
    assert values.values.sum(axis=0) == pytest.approx(U[-1] - U[0], abs=1e-12)
    assert np.abs(values.gap).max() < 1e-12
    assert values.errors is None


@in_one("n, seed", [(n, seed) for n in SIZES for seed in (0, 1)])
def test_banzhaf_leave_one_out_and_alone(n: int, seed: int) -> None:
    U, full = table(n, seed), (1 << n) - 1
    game = Game.table(U)
    assert Banzhaf()(game).values == pytest.approx(weighted(U, lambda s: 2.0 ** (1 - n)), abs=1e-12)
    assert LeaveOneOut()(game).values == pytest.approx(np.array([U[full] - U[full & ~(1 << i)] for i in range(n)]))
    assert Alone()(game).values == pytest.approx(np.array([U[1 << i] - U[0] for i in range(n)]))


def renumbered(U: np.ndarray, new: Sequence[int]) -> np.ndarray:
    """The game in which player i is called new[i]."""
    result = np.empty_like(U)
    for S in range(len(U)):
        result[coalition_of(new[i] for i in members(S))] = U[S]
    return result


@in_one("n, seed", [(n, seed) for n in (3, 5, 7) for seed in range(3)])
def test_values_are_not_about_numbers_of_players(n: int, seed: int) -> None:
    """Exactly, so twins have exactly the same value."""
    U, new = table(n, seed), rng(seed).permutation(n)
    for evaluator in (Exact(), Banzhaf(), LeaveOneOut(), Alone()):
        before = evaluator(Game.table(U), rng()).values
        after = evaluator(Game.table(renumbered(U, new)), rng()).values
        assert (after[new] == before).all()


@in_one("n, seed", [(n, seed) for n in (3, 5, 7) for seed in range(3)])
def test_twins_and_null_players(n: int, seed: int) -> None:
    U = table(n, seed)
    for S in range(1 << n):  # players 0 and 1 are twins, player 2 is null
        U[S] = U[(S & ~3 | (1 if S & 3 else 0) | (2 if S & 3 == 3 else 0)) & ~4]
    values = Exact()(Game.table(U)).values
    assert (values[0] == values[1]).all()
    assert (values[2] == 0).all()
    report = checks.axioms(U, values)
    assert report.null_players == [2]
    assert report.twins == [(0, 1)]
    assert np.abs(report.efficiency_gap).max() < 1e-12


@in_one("n, seed", [(n, seed) for n in (3, 5, 7) for seed in range(3)])
def test_values_are_additive(n: int, seed: int) -> None:
    U, weights = table(n, seed, K=3), np.array([0.5, -2.0, 3.0])
    for evaluator in (Exact(), Banzhaf(), Strata()):
        parts = evaluator(Game.table(U), rng()).values
        total = evaluator(Game.table(U @ weights), rng()).values[:, 0]
        assert checks.additivity_gap(total, parts, weights) < 1e-11


def test_a_round_that_changes_little_is_worth_nothing() -> None:
    U = rising(4)
    U[-1] = U[0] + [0.01, -0.02]
    for evaluator in (Exact(between=0.01), GTG()):
        skipping = evaluator(Game.table(U, scale=[1.0, 2.0]), rng())
        assert not skipping.values.any()
        assert (skipping.evaluations, skipping.notes) == (2, {"skipped": 1})
        assert evaluator(Game.table(U), rng()).values.all()  # one of the two utilities changes by more


# samples
@in_one("n, seed", [(n, seed) for n in (4, 5, 6) for seed in (0, 1)])
def test_orders_against_a_plain_loop(n: int, seed: int) -> None:
    U, orders = rising(n, seed), orders_of(n, 20, seed)
    for epsilon in (None, 0.0, 0.05, 0.3):
        values = Permutations(within=epsilon).of_orders(Game.table(U), orders)
        assert values.values == pytest.approx(plain_orders(U, orders, epsilon), abs=1e-12)
        assert np.abs(values.gap).max() < (epsilon or 1e-12)


def test_thresholds_are_multiples_of_the_scale() -> None:
    U, orders = rising(5)[:, :1], orders_of(5, 10)
    small = sampled.marginals(Game.table(U), orders, 0.1)
    assert sampled.marginals(Game.table(8 * U, scale=8.0), orders, 0.1) == pytest.approx(8 * small)
    few = GTG()(Game.table(U), rng()).notes["permutations"]
    assert GTG()(Game.table(8 * U, scale=[8.0]), rng()).notes["permutations"] == few


def test_each_utility_of_several_has_the_values_that_it_has_alone() -> None:
    U = rising(6)
    for evaluator in (Permutations(20), Permutations(20, antithetic=True), SampledBanzhaf(), Owen(), Strata()):
        together = evaluator(Game.table(U), rng()).values
        for k in range(2):
            assert evaluator(Game.table(U[:, k]), rng()).values[:, 0] == pytest.approx(together[:, k], abs=1e-12)


def test_standard_errors_of_orders_and_pairs() -> None:
    U, orders = rising(5), orders_of(5, 12)
    records = sampled.marginals(Game.table(U), orders)
    values = Permutations().of_orders(Game.table(U), orders)
    assert values.errors == pytest.approx(records.std(axis=0, ddof=1) / math.sqrt(12))
    pairs = records.reshape(6, 2, 5, 2).mean(axis=1)
    paired = Permutations().of_orders(Game.table(U), orders, 2)
    assert paired.errors == pytest.approx(pairs.std(axis=0, ddof=1) / math.sqrt(6))
    assert Permutations().of_orders(Game.table(U), orders[:1]).errors is None


def test_standard_errors_are_those_of_the_estimates() -> None:
    U = rising(6)
    for evaluator in (Permutations(30), Permutations(30, antithetic=True), SampledBanzhaf(60), Owen(4, 6)):
        drawn = [evaluator(Game.table(U), rng(seed)) for seed in range(60)]
        spread = np.std([values.values for values in drawn], axis=0, ddof=1)
        stated = np.mean([values.errors for values in drawn], axis=0)
        assert (stated / spread).mean() == pytest.approx(1, abs=0.2), evaluator


def test_gtg_leads_with_each_player_equally_often() -> None:
    orders = [*itertools.islice(sampled.guided(4, sampled.random_orders(4, rng())), 12)]
    assert [order[0] for order in orders] == [0, 1, 2, 3] * 3
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    pairs = [*itertools.islice(sampled.guided(4, sampled.random_orders(4, rng()), 2), 12)]
    assert [tuple(order[:2]) for order in pairs] == [*itertools.permutations(range(4), 2)]


@in_one("n, seed", [(n, seed) for n in (3, 5, 7) for seed in (0, 1)])
def test_gtg_without_truncation_is_efficient(n: int, seed: int) -> None:
    U = rising(n, seed)
    values = GTG(between=0, within=0)(Game.table(U), rng(seed))
    assert np.abs(values.gap).max() < 1e-12
    assert values.converged
    assert values.notes["permutations"] % n == 0
    assert values.notes["permutations"] >= 30
    truth = Exact()(Game.table(U)).values
    assert np.abs(values.values - truth).max() < 0.15 * np.abs(truth).max()
    cut = GTG(within=0.02)(Game.table(U), rng(seed))
    assert np.abs(cut.gap).max() < 0.02
    assert cut.evaluations <= values.evaluations


def test_gtg_against_a_plain_loop() -> None:
    U = rising(4)
    orders = [*itertools.islice(sampled.guided(4, sampled.random_orders(4, rng())), 400)]
    values = GTG(within=0.05, floor=0).of_orders(Game.table(U), iter(orders))
    for k in range(32, 401, 4):
        means = [plain_orders(U, orders[: k - m], 0.05) for m in range(11)]
        changes = [np.abs((means[0] - means[m]) / means[0]).sum(axis=0) for m in range(1, 11)]
        if (sum(changes) / 40).max() < 0.05:
            break
    assert values.notes["permutations"] == k
    assert values.values == pytest.approx(plain_orders(U, orders[:k], 0.05), abs=1e-12)


def test_gtg_reports_that_it_did_not_converge() -> None:
    values = GTG(tolerance=1e-9, most=20)(Game.table(rising(5)), rng())
    assert not values.converged
    assert values.notes["permutations"] == 100
    assert not GTG().of_orders(Game.table(rising(5)), iter(orders_of(5, 10))).converged  # no more orders


def test_a_value_of_about_zero_does_not_keep_gtg_from_stopping() -> None:
    U = rising(4)[:, :1]
    U = np.concatenate([U, U + rng().normal(0, 1e-4, size=U.shape)])  # player 4 adds noise only
    U[16:][[0, -1]] = U[:16][[0, -1]]
    orders = [*itertools.islice(sampled.guided(5, sampled.random_orders(5, rng())), 500)]
    with_floor, without = (GTG(floor=floor, within=0).of_orders(Game.table(U), iter(orders)) for floor in (1e-3, 0))
    assert with_floor.converged
    assert with_floor.notes["permutations"] < without.notes["permutations"]


@in_one("n", [4, 5, 6])
def test_sampled_banzhaf_against_a_plain_loop(n: int) -> None:
    U = rising(n)
    sets = [int(S) for S in rng(n).integers(0, 1 << n, size=25)]
    values = SampledBanzhaf().of_sets(Game.table(U), sets)
    for i in range(n):
        inside, outside = ([U[S] for S in sets if (S >> i & 1) == bit] for bit in (1, 0))
        assert values.values[i] == pytest.approx(np.mean(inside, axis=0) - np.mean(outside, axis=0))
    many = SampledBanzhaf(20000)(Game.table(U), rng())
    assert many.values == pytest.approx(Banzhaf()(Game.table(U)).values, abs=0.02)
    never = SampledBanzhaf().of_sets(Game.table(U), [1, 3, 3])
    assert not never.values[0].any()
    assert not never.values[2:].any()
    assert never.values[1] == pytest.approx(U[3] - U[1])


@in_one("n", [4, 5, 6])
def test_owen_against_a_plain_loop(n: int) -> None:
    U, full = rising(n), (1 << n) - 1
    others = [[int(S) & ~(1 << i) for S in rng(i).integers(0, 1 << n, size=6)] for i in range(n)]
    for antithetic in (False, True):
        values = Owen(3, 2, antithetic=antithetic).of_sets(Game.table(U), others)
        for i in range(n):
            sets = others[i] + [full & ~(1 << i) & ~S for S in others[i]] * antithetic
            assert values.values[i] == pytest.approx(np.mean([U[S | 1 << i] - U[S] for S in sets], axis=0))


@in_one("ends", [False, True])
def test_owen_tends_to_its_expectation(ends: bool) -> None:
    U, evaluator = rising(5), Owen(4, 1500, ends=ends)
    expected = exact.semivalue(Game.table(U), exact.owen_weights(5, evaluator.chances))
    assert evaluator(Game.table(U), rng()).values == pytest.approx(expected.values, abs=0.01)


def test_midpoints_are_nearer_to_shapley_than_a_grid_with_its_ends() -> None:
    game = Game.table(rising(6))
    truth = Exact()(game).values
    errors = [
        np.abs(exact.semivalue(game, exact.owen_weights(6, Owen(5, ends=ends).chances)).values - truth).max()
        for ends in (False, True)
    ]
    assert errors[0] < errors[1] / 5


@in_one("n", [2, 4, 5, 6, 8])
def test_strata(n: int) -> None:
    U = rising(n)
    values = Strata()(Game.table(U), rng())
    truth = Exact()(Game.table(U)).values
    assert values.evaluations == (1 << n if n <= 4 else 2 + 2 * n + n * (n - 1))
    assert np.abs(values.gap).max() < 1e-12
    assert values.values == pytest.approx(truth, abs=1e-12 if n <= 4 else 0.02)
    additive = np.array([[sum(members(S))] for S in range(1 << n)], dtype=float)
    assert Strata()(Game.table(additive), rng()).values[:, 0] == pytest.approx(np.arange(n))


def test_draws_follow_from_the_generator_alone() -> None:
    for name in ("permutations", "gtg", "owen", "banzhaf-sampled"):
        evaluator: Any = read(name)
        first, second, other = (evaluator(Game.table(rising(6)), rng(seed)).values for seed in (1, 1, 2))
        assert (first == second).all()
        assert (first != other).any()


# rounds
def played(ids: Sequence[int], U: np.ndarray) -> tuple[list[int], Values]:
    return [*ids], Exact()(Game.table(U))


def test_a_client_of_no_round_has_no_value() -> None:
    rounds = sum_of_rounds(4, [played([2, 0], rising(2)), played([0], rising(1)), played([], rising(0))])
    first, second = Exact()(Game.table(rising(2))).values, Exact()(Game.table(rising(1))).values
    assert rounds.total.values[0] == pytest.approx(first[1] + second[0])
    assert rounds.total.values[2] == pytest.approx(first[0])
    assert np.isnan(rounds.total.values[[1, 3]]).all()
    assert not rounds.by_round[:, [1, 3]].any()
    assert rounds.per_round[0] == pytest.approx((first[1] + second[0]) / 2)
    assert np.isnan(rounds.per_round[[1, 3]]).all()
    assert np.isnan(rounds.weighted([1, 1, 1])[1]).all()
    assert rounds.attended.tolist() == [[1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert (rounds.total.evaluations, rounds.total.coalitions) == (7, 7)
    assert np.abs(rounds.total.gap).max() < 1e-12
    assert rounds.total.errors is None


def test_errors_convergence_and_notes_of_rounds_add_up() -> None:
    games = [Game.table(rising(3, seed)) for seed in range(3)]
    parts = [Permutations(10)(games[0], rng()), GTG(tolerance=1e-9, most=10)(games[1], rng()), Exact()(games[2])]
    total = sum_of_rounds(3, [([0, 1, 2], part) for part in parts]).total
    assert total.errors == pytest.approx(np.sqrt(parts[0].errors ** 2 + parts[1].errors ** 2))  # type: ignore[operator]
    assert not total.converged
    assert total.notes == {"permutations": 40}


@in_one("ids", [[0, 0], [0, 5], [0], [0, 1, 2], [-1, 0]])
def test_ids_of_a_round_must_fit_its_players(ids: list[int]) -> None:
    with pytest.raises(InputError, match=r"Round 0 needs 2 different ids in 0\.\.4, one for each player; found \["):
        sum_of_rounds(5, [(ids, Exact()(Game.table(rising(2))))])


def test_the_evaluator_is_called_for_each_round() -> None:
    games = [([0, 1, 2], Game.table(rising(3))), ([0, 2], Game.table(rising(2)))]
    rounds = evaluate(read("auto"), 3, games, rng())
    assert rounds.total.values == pytest.approx(
        sum_of_rounds(3, [played(ids, game(range(1 << game.n))) for ids, game in games]).total.values
    )
    completed = evaluate(read("comfedsv"), 3, games, rng())
    assert completed.by_round.sum(axis=0) == pytest.approx(completed.total.values)


# completion
def planted(
    n: int, cohorts: Sequence[Sequence[int]], seed: int = 0, rank: int = 1, noise: float = 0.0
) -> tuple[list[tuple[Sequence[int], Game]], np.ndarray]:
    """Rounds of a matrix of low rank, with different utilities of {}, and the values of all clients if all were in every round."""
    generator = rng(seed)
    W, H = generator.uniform(0.5, 1.5, size=(len(cohorts), rank)), generator.uniform(0.2, 1, size=(rank, 1 << n))
    H[:, 0] = 0
    U = W @ H + noise * generator.normal(size=(len(cohorts), 1 << n))
    U[:, 0] = 0
    base = generator.normal(size=len(cohorts))
    rounds = []
    for t, ids in enumerate(cohorts):
        masks = [coalition_of(ids[k] for k in members(S)) for S in range(1 << len(ids))]
        rounds.append((ids, Game.table(U[t, masks] + base[t])))
    return rounds, Exact()(Game.table(U.sum(axis=0))).values


COHORTS = [[0, 1, 2, 3], [1, 0], [2, 1], [3, 0, 1], [2], [3, 2]]


@in_one("seed", range(2))
def test_comfedsv_completes_a_matrix_of_rank_one(seed: int) -> None:
    rounds, truth = planted(4, COHORTS, seed)
    values = ComFedSV(rank=1)(4, rounds, rng(seed)).total
    assert values.converged
    assert values.values == pytest.approx(truth, abs=0.01 * np.abs(truth).max())
    chosen = ComFedSV()(4, rounds, rng(seed)).total
    assert chosen.notes["rank"] == [1]
    assert chosen.notes["error"][0] < 0.01
    assert chosen.values == pytest.approx(values.values, rel=1e-6)
    assert chosen.evaluations == values.evaluations == 16 + 4 + 4 + 8 + 2 + 4


def test_comfedsv_treats_twins_alike_who_attended_differently() -> None:
    """The federated Shapley value is proportional to the attendance instead."""
    cohorts = [[0, 1, 2], [0, 2], [0, 2], [0, 2], [1, 2]]
    rounds, _ = planted(3, cohorts)
    swap = {S: coalition_of({0: 1, 1: 0}.get(i, i) for i in members(S)) for S in range(8)}
    h = rng().uniform(0.2, 1, size=8)
    h = (h + h[[swap[S] for S in range(8)]]) / 2
    h[0] = 0
    rounds = [
        (ids, Game.table(w * h[[coalition_of(ids[k] for k in members(S)) for S in range(1 << len(ids))]]))
        for w, ids in zip((1.0, 0.8, 1.2, 0.9, 1.1), cohorts, strict=True)
    ]
    values = ComFedSV()(3, rounds, rng()).total.values[:, 0]
    by_rounds = evaluate(Exact(), 3, rounds, rng())
    plain = by_rounds.total.values[:, 0]
    assert abs(values[0] - values[1]) < 0.03 * values[0]
    assert abs(plain[0] - plain[1]) > 0.4 * plain[0]


def test_comfedsv_of_full_attendance_is_the_federated_shapley_value() -> None:
    rounds, _ = planted(3, [[0, 1, 2]] * 5, rank=2, noise=0.01)
    values = ComFedSV()(3, rounds, rng()).total
    plain = evaluate(Exact(), 3, rounds, rng())
    assert values.values == pytest.approx(plain.total.values, abs=0.02)
    assert np.abs(values.gap).max() < 0.05
    assert values.gain == pytest.approx(plain.total.gain)


def test_comfedsv_of_many_clients_uses_prefixes_of_orders() -> None:
    n = 12
    parts = np.linspace(0.2, 1, n)
    ws = (1.0, 0.8, 1.3)
    cohorts = [[*range(n)], [*range(0, n, 2)], [*range(1, n)]]

    def game(ids: list[int], w: float) -> Game:
        return Game(len(ids), lambda masks: [[w * sum(parts[ids[k]] for k in members(S))] for S in masks])

    rounds = [(ids, game(ids, w)) for ids, w in zip(cohorts, ws, strict=True)]
    values = ComFedSV()(n + 1, rounds, rng()).total
    assert values.values[:n, 0] == pytest.approx(sum(ws) * parts, rel=0.01)  # additive: every order gives the truth
    assert np.isnan(values.values[n])
    assert values.evaluations < 1000


def test_comfedsv_needs_a_round_of_all() -> None:
    rounds, _ = planted(4, COHORTS[1:])
    with pytest.raises(InputError, match=r"a round of all 4 clients.*Never in one round: 0 and 2\."):
        ComFedSV()(4, rounds, rng())
    triangle, _ = planted(3, [[0, 1], [1, 2], [0, 2]])
    with pytest.raises(InputError, match="Never in one round: all of them"):
        ComFedSV()(3, triangle, rng())
    assert np.isnan(
        ComFedSV()(9, planted(4, COHORTS)[0], rng()).total.values[4:]
    ).all()  # who was in no round is no player


def test_comfedsv_says_when_starts_differ() -> None:
    """Utilities of a known answer that several matrices of rank 3 fit equally well."""
    entries = json.loads((Path(__file__).parent / "golden/contribution.json").read_text())
    i = next(entry["inputs"] for entry in entries if entry["id"] == "contribution.comfedsv.not_unique")
    U = np.array(i["U"], dtype=float)

    def worth(X: np.ndarray) -> np.ndarray:
        sums = dict(zip(i["columns"], X.sum(axis=0), strict=True))
        return Permutations().of_orders(Game(4, lambda masks: [[sums[S]] for S in masks]), i["perms"]).values

    _, facts = completion.complete(np.nan_to_num(U), np.isfinite(U), worth, rng(2), ranks=(3,))
    assert facts["spread"] > completion.SPREAD
    assert not facts["unique"]


def test_comfedsv_does_not_rely_on_one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, _ = planted(4, COHORTS)
    factorise, worse = completion.factorise, itertools.count()
    monkeypatch.setattr(completion, "factorise", lambda *given: (factorise(*given)[0], 1.0 + next(worse)))
    values = ComFedSV()(4, rounds, rng()).total
    assert math.isnan(values.notes["spread"][0])
    assert not values.converged


def test_the_spread_is_over_the_best_solutions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, _ = planted(4, COHORTS)
    factorise, calls = completion.factorise, itertools.count()

    def some_worse(*given: Any) -> tuple[np.ndarray, float]:
        X, lowest = factorise(*given)
        return (2 * X, 1.5 * lowest) if next(calls) % 2 else (X, lowest)

    monkeypatch.setattr(completion, "factorise", some_worse)
    assert ComFedSV(rank=1)(4, rounds, rng()).total.notes["spread"][0] < 1e-6


def test_a_rank_is_at_most_the_number_of_rounds() -> None:
    rounds, _ = planted(3, [[0, 1, 2], [0, 1]])
    values = ComFedSV(rank=5)(3, rounds, rng()).total
    assert values.notes["rank"] == [2]


def test_comfedsv_of_one_round_and_of_constant_utilities() -> None:
    one_round, truth = planted(3, [[0, 1, 2]])
    values = ComFedSV()(3, one_round, rng()).total
    assert values.values == pytest.approx(truth, abs=0.01)
    assert math.isnan(values.notes["error"][0])
    assert np.isnan(ComFedSV()(3, [([], Game.table([0.5]))], rng()).total.values).all()  # no client at all
    constant = [(ids, Game.table(np.full((1 << len(ids), 2), 0.4))) for ids in COHORTS]
    assert not ComFedSV()(4, constant, rng()).total.values.any()


def test_columns_that_were_never_observed_are_zero() -> None:
    U, seen = np.ones((3, 4)), np.array([[1, 1, 0, 0], [1, 1, 0, 1], [1, 0, 0, 1]], dtype=bool)
    X, _ = completion.factorise(U * seen, seen, completion.cosines(3, 1), 0.01)
    assert not X[:, 2].any()
    assert X[seen] == pytest.approx(1, abs=0.02)


def test_held_out_utilities_leave_others_in_their_column_and_round() -> None:
    seen = rng().random((6, 16)) < 0.6
    seen[0] = True
    held = completion._held_out(seen, rng())
    assert held.sum() == max(1, round(0.1 * seen.sum()))
    assert not (held & ~seen).any()
    assert not held[:, 0].any()
    rest = seen & ~held
    assert (rest.any(axis=0) == seen.any(axis=0)).all()
    assert (rest.sum(axis=1)[seen.sum(axis=1) > 1] >= 2).all()


# directions
def test_cosines_of_updates() -> None:
    u, w = rng().normal(size=(5, 40)), np.array([1.0, 2, 3, 4, 5])
    u[3] = 0
    total = w @ u
    expected = [u[i] @ total / np.linalg.norm(u[i]) / np.linalg.norm(total) if i != 3 else 0 for i in range(5)]
    assert directions.cosines_with_sum(u @ u.T, w) == pytest.approx(expected)
    tiny = 1e-9 * u
    assert directions.cosines_with_sum(tiny @ tiny.T, w) == pytest.approx(expected)
    copied = np.concatenate([u, u[1:2]])
    assert directions.most_alike(copied @ copied.T) == (1, 5, pytest.approx(1))


@in_one("length", [1.0, 1e-9])
def test_the_cosine_game_is_that_of_vectors(length: float) -> None:
    u = length * rng().normal(size=(4, 10))
    game, total = directions.cosine_game(u @ u.T), u.sum(axis=0)
    for S in range(1, 16):
        part = u[[*members(S)]].sum(axis=0)
        assert game([S])[0, 0] == pytest.approx(part @ total / np.linalg.norm(part) / np.linalg.norm(total))
    values = Exact()(game)
    assert values.values.sum() == pytest.approx(1)
    cancelled = np.stack([u[0], -u[0] * (1 + 1e-15), u[1]])
    assert directions.cosine_game(cancelled @ cancelled.T)([3])[0, 0] == 0


def test_shapfed_has_momentum_on_its_cosines_and_the_released_form_on_its_values() -> None:
    head, w = rng().normal(size=(3, 4, 6)), [0.5, 0.3, 0.2]
    now, before = directions.shapfed(head, w), rng(1).uniform(-1, 1, size=(3, 4))
    later = directions.shapfed(head, w, before, momentum=0.75)
    assert later.cosines == pytest.approx(0.75 * before + 0.25 * now.cosines)
    assert later.values == pytest.approx((1 + later.cosines).mean(axis=1) / 2)
    released = directions.shapfed_released(head, w, [0.1, 0.2, 0.3], 0.75)
    assert released.values == pytest.approx(0.75 * np.array([0.1, 0.2, 0.3]) + 0.25 * now.cosines.mean(axis=1))
    first = directions.shapfed_released(head, w)
    assert first.values == pytest.approx(now.cosines.mean(axis=1))


# checks
def test_values_by_sample_have_the_value_as_their_mean() -> None:
    right = (rng().random((32, 50)) < 0.7).astype(float)
    rows = checks.per_sample(right)
    assert rows.mean(axis=0) == pytest.approx(Exact()(Game.table(right.mean(axis=1))).values[:, 0])
    assert rows[7] == pytest.approx(Exact()(Game.table(right[:, 7])).values[:, 0])


def test_pairs_are_those_of_scipy_with_holm() -> None:
    rows = rng().normal([0, 0.1, 1.0], 1, size=(40, 3))
    tests = checks.pairs(rows)
    raw = [ttest_rel(rows[:, i], rows[:, j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert [test.t for test in tests] == pytest.approx([test.statistic for test in raw])
    order = np.argsort([test.pvalue for test in raw])
    worst = 0.0
    for place, k in enumerate(order):
        worst = max(worst, min(1.0, (3 - place) * raw[k].pvalue))
        assert tests[k].p == pytest.approx(worst)
    assert checks.indistinguishable(tests) == [(0, 1)]
    same = checks.pairs(np.stack([np.arange(4.0), np.arange(4.0), np.arange(4.0) + 1], axis=1))
    assert checks.indistinguishable(same) == [(0, 1)]  # no spread: equal, or not
    assert math.isnan(same[0].p)
    twins = rng().normal(size=(40, 1)) * [1.0, 1.0 + 3e-16]
    assert checks.indistinguishable(checks.pairs(twins)) == [(0, 1)]  # twins up to rounding


@in_one("seed", range(3))
def test_stability_is_that_of_scipy(seed: int) -> None:
    values = rng(seed).integers(0, 5, size=(4, 6)).astype(float)
    pairs = [*itertools.combinations(values, 2)]
    result = checks.stability(values)
    assert result.kendall == pytest.approx(np.mean([kendalltau(a, b).statistic for a, b in pairs]))
    assert result.spearman == pytest.approx(np.mean([spearmanr(a, b).statistic for a, b in pairs]))
    assert result.first.sum() == pytest.approx(1)
    assert checks.stability([[3.0, 3.0, 1.0]]).first.tolist() == [0.5, 0.5, 0.0]
    assert math.isnan(checks.stability(values[:1]).kendall)


def test_detection_is_an_area_under_the_curve() -> None:
    values, bad = rng().integers(0, 6, size=20).astype(float), rng(1).random(20) < 0.4
    assert checks.detection(values, bad) == pytest.approx(roc_auc_score(bad, -values))
    assert math.isnan(checks.detection(values, np.zeros(20)))


def test_an_interval_of_one_draw_is_not_known() -> None:
    result = checks.interval([[1.0, 2.0]])
    assert result.mean.tolist() == [1, 2]
    assert np.isnan([result.error, result.low, result.high]).all()


# rewards
@in_one("seed", range(20))
def test_rewards_keep_their_bounds(seed: int) -> None:
    generator = rng(seed)
    values = generator.normal(0.2, 1, size=7)
    budget = 100.0
    floor = float(generator.uniform(0, budget / 7))
    cap = float(generator.uniform(floor, budget / 2))
    result = rewards.reward(values, budget, floor, cap)
    assert result.amounts.sum() + result.left == pytest.approx(budget)
    assert (result.amounts >= floor).all()
    assert (result.amounts <= cap).all()
    positive = values > 0
    assert result.amounts[~positive] == pytest.approx(floor)
    free = positive & (result.amounts < cap)
    if free.any():
        above = (result.amounts - floor)[free] / values[free]
        assert above == pytest.approx(above[0])  # in proportion
        assert result.left == pytest.approx(0)
        assert (result.amounts - floor)[positive & ~free] == pytest.approx(
            np.minimum(cap - floor, above[0] * values[positive & ~free])
        )


def test_equal_rewards_when_no_value_is_positive() -> None:
    assert rewards.reward([-1.0, 0.0], 10).equal
    capped = rewards.reward([-1.0, 0.0], 10, cap=2)
    assert capped.amounts.tolist() == [2, 2]
    assert capped.left == 6
    assert not rewards.reward([1.0, 0.0], 10).equal
    assert rewards.reward([3e-5, 1e-5], 8).amounts == pytest.approx([6, 2])


@in_one(
    "values, options",
    [([1, 2], {"floor": 6}), ([1, 2], {"floor": 3, "cap": 2}), ([1, math.nan], {}), ([1, 2], {"floor": -1})],
)
def test_bounds_that_contradict_each_other_are_refused(values: list[float], options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"floor|finite"):
        rewards.reward(values, 10, **options)


def test_shares_are_refused_when_they_would_explode() -> None:
    assert rewards.shares([3.0, -1.0]).tolist() == [1.5, -0.5]
    assert rewards.shares([3e-9, -1e-9]) == pytest.approx([1.5, -0.5])
    for values in ([1.0, -0.9999], [-1.0, 0.5], [0.0, 0.0]):
        with pytest.raises(InputError, match="have no shares"):
            rewards.shares(values)


# the catalogue
@in_one("name", EVALUATORS)
def test_every_evaluator_is_read_back_from_its_text(name: str) -> None:
    evaluator = read(name)
    assert read(text_of(evaluator)) == evaluator == EVALUATORS[name]
    documented = type(evaluator).__doc__ or ""
    for option in fields(evaluator):
        assert f"{option.name} : " in documented
        assert option.metadata["meaning"]


def test_options_of_evaluators() -> None:
    assert read("gtg(between=0.02, within=0)") == GTG(between=0.02, within=0)
    assert read("permutations(20, antithetic=true)") == Permutations(20, antithetic=True)
    assert text_of(Permutations(20, within=0.1)) == "permutations(count=20, within=0.1)"
    assert read("tmc(30)") == Permutations(30, within=0.05)


@in_one(
    "text, message",
    [
        ("gtt", "Did you mean 'gtg'"),
        ("gtg(0.1", "Unknown evaluator"),
        ("gtg(betwen=1)", "Did you mean 'between'"),
        ("gtg(0.1, between=2)", "each once; found 'between'"),
        ("loo(3)", "expected no option, each once; found '3'"),
        ("gtg(between=-1)", "GTG: between must be >= 0; found -1"),
        ("gtg(between=x)", "GTG: between must be a number >= 0"),
        ("permutations(2.5)", "count must be a whole number"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_auto_is_exact_for_few_players_and_gtg_for_more() -> None:
    few, many = Game.table(rising(4)), Game.table(rising(11))
    assert (read("auto")(few, rng()).values == Exact()(few).values).all()
    assert "permutations" in read("auto")(many, rng()).notes
    assert "permutations" in read("auto(3)")(few, rng()).notes


def test_no_pytorch_is_needed() -> None:
    code = "import sys, equipoise.contribution.evaluators, equipoise.contribution.checks; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "pandas"} & {*modules}


def test_values_of_a_game_state_what_they_took() -> None:
    game = Game.table(rising(3))
    values = values_of(game, np.ones((3, 2)), permutations=0, sets=4)
    assert values.notes == {"sets": 4}
    assert values.gap == pytest.approx(3 - values.gain)
