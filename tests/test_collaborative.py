"""Contribution and reward: hand-computed values, naive loops, SciPy, invariants, and what a history makes of them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from scipy import stats

from equipoise.federation.history import History
from equipoise.metrics import (
    Traffic,
    bounded_fairness,
    client_range,
    collaboration_gain,
    collaborative_fairness,
    full_model,
    rank_fairness,
    traffic,
)
from equipoise.report.figures_of_clients import unit_table
from helpers import in_one, write_records

PERCENT = st.integers(0, 1000).map(lambda k: k / 1000)  # accuracies on 1000 samples: ties are common
PAIRS = st.lists(st.tuples(PERCENT, PERCENT), min_size=2, max_size=25)

C = [0.2, 0.3, 0.4, 0.6]
R = [0.5, 0.25, 0.6, 0.7]


def sides(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    c, r = zip(*pairs, strict=True)
    return list(c), list(r)


def naive_pearson(c: list[float], r: list[float]) -> float:
    K = len(c)
    mc, mr = sum(c) / K, sum(r) / K
    top = sum((a - mc) * (b - mr) for a, b in zip(c, r, strict=True))
    return top / math.sqrt(sum((a - mc) ** 2 for a in c) * sum((b - mr) ** 2 for b in r))


# the correlation
@given(PAIRS)
def test_fairness_equals_a_naive_loop_and_scipy(pairs: list[tuple[float, float]]) -> None:
    c, r = sides(pairs)
    varied = len(set(c)) > 1 and len(set(r)) > 1
    for found, expected in (
        (collaborative_fairness(c, r), lambda: naive_pearson(c, r)),
        (rank_fairness(c, r), lambda: stats.spearmanr(c, r).statistic),
    ):
        assert found.defined == varied
        if varied:
            assert -100 <= found.value <= 100
            assert found.value == pytest.approx(100 * expected(), abs=1e-8)
        else:
            assert math.isnan(found.value)


def test_the_example_of_the_paper() -> None:
    """Figure 1 of FedSAC: 98.97."""
    assert collaborative_fairness([1, 9, 11], [99, 99.2, 99.3]).value == pytest.approx(98.97, abs=0.005)
    assert rank_fairness([1, 9, 11], [99, 99.2, 99.3]).value == pytest.approx(100)


@given(PAIRS, st.floats(0.5, 3), st.floats(-1, 1))
def test_fairness_does_not_see_the_unit(pairs: list[tuple[float, float]], scale: float, shift: float) -> None:
    c, r = sides(pairs)
    assume(np.ptp(c) > 0 and np.ptp(r) > 0)
    found = collaborative_fairness(c, r).value
    assert collaborative_fairness([100 * a for a in c], r).value == pytest.approx(found, abs=1e-8)
    assert collaborative_fairness(c, [scale * b + shift for b in r]).value == pytest.approx(found, abs=1e-7)
    assert collaborative_fairness(c, [-b for b in r]).value == pytest.approx(-found, abs=1e-8)
    assert collaborative_fairness(r, c).value == pytest.approx(found, abs=1e-8)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(pairs: list[tuple[float, float]], random: Any) -> None:
    shuffled = random.sample(pairs, len(pairs))
    for measure in (collaborative_fairness, rank_fairness):
        a, b = measure(*sides(pairs)), measure(*sides(shuffled))
        assert a.defined == b.defined
        assert a.value == pytest.approx(b.value, abs=1e-8, nan_ok=True)
    a, b = (bounded_fairness(*sides(p)) for p in (pairs, shuffled))
    assert a.rate == pytest.approx(b.rate)
    assert [shuffled.index(pairs[k]) in b.lower_violations for k in a.lower_violations] == [True] * len(
        a.lower_violations
    )


def test_one_model_for_all_has_no_fairness() -> None:
    for reward in ([0.1] * 3, [0.7, 0.7 + 1e-16, 0.7], [0.1 + 0.2, 0.3, 0.3]):
        found = collaborative_fairness([0.1, 0.2, 0.3], reward)
        assert (found.defined, math.isnan(found.value)) == (False, True)
        assert not collaborative_fairness(reward, [0.1, 0.2, 0.3]).defined
    assert collaborative_fairness([0.1, 0.2, 0.3], [0.7, 0.7001, 0.7]).defined


def test_few_clients() -> None:
    assert collaborative_fairness([0.1, 0.2], [0.8, 0.9]).value == pytest.approx(100)
    assert collaborative_fairness([0.1, 0.2], [0.9, 0.8]).value == pytest.approx(-100)
    for one in ([], [0.5]):
        assert not collaborative_fairness(one, one).defined
        assert not rank_fairness(one, one).defined


def test_an_outlier_moves_pearson_and_not_spearman() -> None:
    c, r = [0.1, 0.50, 0.51, 0.52, 0.53], [0.2, 0.74, 0.73, 0.72, 0.71]
    assert collaborative_fairness(c, r).value > 95
    assert rank_fairness(c, r).value == pytest.approx(0)


@pytest.mark.parametrize("reward", [[0.5, math.nan, 0.6], [0.5, None, 0.6], [0.5, math.inf, 0.6]])
def test_an_unknown_accuracy_is_undefined_not_an_error(reward: list[float]) -> None:
    c = [0.1, 0.2, 0.3]
    for found in (
        collaborative_fairness(c, reward),
        rank_fairness(c, reward),
        bounded_fairness(c, reward).rate,
        bounded_fairness(c, reward).worst_lower,
        bounded_fairness(c, reward).worst_upper,
        collaboration_gain(c, reward).mean,
        *client_range(reward),
    ):
        assert (found.defined, math.isnan(found.value)) == (False, True)
    assert not bounded_fairness(c, reward).satisfied


# the bounds
def test_bounds_by_hand() -> None:
    """The highest reward is 0.7; the first client is at its bound of 0.45 or beyond, the second worse off than alone."""
    found = bounded_fairness(C, R)
    assert found.upper == pytest.approx([0.45, 0.5, 0.55, 0.65])
    assert found.lower_violations == (1,)
    assert found.upper_violations == (0, 2)
    assert found.literal_upper_violations == (0, 2, 3)
    assert found.lower_margin == pytest.approx([0.3, -0.05, 0.2, 0.1])
    assert found.upper_margin == pytest.approx([-0.05, 0.25, -0.05, -0.05])
    assert (found.worst_lower.value, found.worst_upper.value) == pytest.approx((-0.05, -0.05))
    assert found.rate.value == pytest.approx(1 / 4)
    assert not found.satisfied


def test_bounds_that_hold() -> None:
    found = bounded_fairness([0.5, 0.6, 0.8], [0.6, 0.7, 0.82])
    assert (found.lower_violations, found.upper_violations) == ((), ())
    assert found.literal_upper_violations == (2,)
    assert found.satisfied
    assert found.rate.value == 1
    assert found.worst_upper.value == pytest.approx(0.01)


@given(PAIRS)
def test_bounds_equal_naive_loops(pairs: list[tuple[float, float]]) -> None:
    """In whole thousandths, so that equality is equality."""
    c, r = sides(pairs)
    whole = [(round(1000 * a), round(1000 * b)) for a, b in pairs]
    top = max(b for _, b in whole)
    lower = tuple(k for k, (a, b) in enumerate(whole) if b <= a)
    literal = tuple(k for k, (a, b) in enumerate(whole) if 2 * b >= a + top)
    upper = tuple(k for k in literal if whole[k][1] < top)
    found = bounded_fairness(c, r)
    assert found.lower_violations == lower
    assert found.literal_upper_violations == literal
    assert found.upper_violations == upper
    assert found.rate.value == pytest.approx(1 - len({*lower, *upper}) / len(c))
    assert found.satisfied == (not lower and not upper)
    in_percent = bounded_fairness([100 * a for a in c], [100 * b for b in r])
    assert (in_percent.lower_violations, in_percent.upper_violations) == (lower, upper)


@given(PAIRS)
def test_nobody_can_keep_both_literal_bounds_with_the_highest_reward(pairs: list[tuple[float, float]]) -> None:
    c, r = sides(pairs)
    found, best = bounded_fairness(c, r), max(r)
    for k, reward in enumerate(r):
        if reward == best:
            assert k in found.lower_violations or k in found.literal_upper_violations


# the gain, the extremes
@given(PAIRS)
def test_gain_and_extremes_equal_naive_loops(pairs: list[tuple[float, float]]) -> None:
    c, r = sides(pairs)
    gains = [b - a for a, b in pairs]
    mean = sum(gains) / len(gains)
    found = collaboration_gain(c, r)
    assert found.gains == pytest.approx(gains)
    assert found.mean.value == pytest.approx(mean, abs=1e-12)
    assert found.std.value == pytest.approx(math.sqrt(sum((g - mean) ** 2 for g in gains) / len(gains)), abs=1e-12)
    assert found.worse_off == sum(b < a for a, b in pairs)
    assert [value for value, _ in client_range(r)] == pytest.approx([max(r), sum(r) / len(r), min(r)])


def test_gains_that_correlation_cannot_see() -> None:
    """Everybody loses by collaborating, in perfect proportion."""
    reward = [a - 0.05 for a in C]
    assert collaborative_fairness(C, reward).value == pytest.approx(100)
    assert collaboration_gain(C, reward).worse_off == 4
    assert collaboration_gain(C, C).worse_off == 0
    assert bounded_fairness(C, C).lower_violations == (0, 1, 2, 3)  # nobody is better off


@in_one(
    "measure",
    [collaborative_fairness, rank_fairness, bounded_fairness, collaboration_gain],
)
@in_one(("c", "r"), [([0.1, 0.2], [0.1]), ([[0.1]], [[0.1]]), ([0.1, 0.2], [[0.1, 0.2]]), (0.5, 0.5)])
def test_wrong_shapes(measure: Any, c: Any, r: Any) -> None:
    with pytest.raises(ValueError, match=r"one accuracy per client each: expected the same shape \[K\], found \("):
        measure(c, r)


# bytes
def test_bytes_of_clients_and_of_the_model() -> None:
    records = [
        {"round": 0, "ids": [0, 2], "bytes": {"down": [10, 100], "up": [1, 50], "full": 400}},
        {"round": 1},
        {"round": 2, "ids": [2], "bytes": {"down": [300], "up": [70], "full": 400}},
    ]
    assert traffic(records) == Traffic(410 / 3, 121 / 3)
    assert full_model(records) == (400.0, True)
    assert not full_model(records[1:2]).defined
    assert not full_model([{"bytes": {"down": [1], "up": [1]}}]).defined


# a history
def run(rewards: list[list[float | None]], **meta: Any) -> History:
    records = [
        {
            "round": 5 * t,
            "clients": {"accuracy": row},
            "ids": [0, 1],
            "bytes": {"down": [10, 30], "up": [4, 6], "full": 80},
        }
        for t, row in enumerate(rewards)
    ]
    return History(records, {"method": "fedsac", "contribution": {"standalone_test": C, "standalone_val": None}} | meta)


def test_summary_of_the_last_evaluated_round() -> None:
    rewards = [[0.2] * 4, [0.4, 0.3, 0.5, 0.6], [0.7, 0.6, 0.5, 0.4], R]
    history = run(rewards)
    fairness = [collaborative_fairness(C, row).value for row in rewards]
    found = history.summary()["collaboration"]
    assert (found["round"], found["clients"]) == (15, 4)
    assert found["fairness"] == pytest.approx(100 * naive_pearson(C, R))
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(C, R).statistic)
    assert found["fairness_mean"] is None  # the first round had one model for all
    assert history.summary(3)["collaboration"]["fairness_mean"] == pytest.approx(np.mean(fairness[1:]))
    assert found["fairness_oracle"] == max(fairness[1:])
    assert found["fairness_oracle"] > found["fairness"]
    assert [found[key] for key in ("max", "mean", "min")] == pytest.approx([70, 51.25, 25])
    gains = [30, -5, 20, 10]
    assert found["gain"] == pytest.approx({"mean": 13.75, "std": np.std(gains), "worse_off": 1})
    assert found["bcf"] == {
        "rate": pytest.approx(25),
        "satisfied": False,
        "lower_violations": [1],
        "upper_violations": [0, 2],
        "literal_upper_violations": [0, 2, 3],
        "lower_margin": pytest.approx(-5),
        "upper_margin": pytest.approx(-5),
    }
    assert found["bytes"] == {"down": 20, "up": 5, "full": 80}
    json.dumps(found, allow_nan=False)
    np.testing.assert_array_equal(history.contribution, C)


def test_summary_where_it_is_not_defined() -> None:
    found = run([[0.7] * 4]).summary()["collaboration"]
    assert [found[key] for key in ("fairness", "spearman", "fairness_mean", "fairness_oracle")] == [None] * 4
    assert (found["max"], found["bcf"]["upper_margin"], found["bcf"]["satisfied"]) == (70, None, True)
    torn = run([[0.7, None, 0.6, 0.5]]).summary()["collaboration"]
    assert (torn["fairness"], torn["max"], torn["bcf"]["rate"], torn["gain"]["worse_off"]) == (None,) * 4
    json.dumps([found, torn], allow_nan=False)


def test_without_contributions_or_clients_there_is_no_collaboration() -> None:
    plain = run([R], contribution=None)
    assert plain.contribution is None
    assert plain.summary()["collaboration"] is None
    assert run([R], contribution={"standalone_test": None, "standalone_val": C}).summary()["collaboration"] is None
    assert run([R]).summary(measure="auc")["collaboration"] is None
    assert run([]).summary()["collaboration"] is None
    unsent = History([{"round": 0, "clients": {"accuracy": R}}], run([R]).meta)
    assert unsent.summary()["collaboration"]["bytes"] is None


@pytest.mark.parametrize(
    ("contribution", "message"),
    [
        ({"standalone_test": C[:3]}, "one contribution per client of the federation: expected 4, found 3"),
        (C, r'expected meta\["contribution"\] as \{"standalone_test": \[one accuracy per client\]\}, found \[0.2'),
        ({"standalone_test": "0.5"}, "one accuracy per client"),
    ],
)
def test_wrong_contributions(contribution: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run([R], contribution=contribution)


UNITS = {"names": ["first", "second"], "sizes": [7, 4]}


def test_who_holds_which_unit() -> None:
    tables = [np.random.default_rng(seed).random((4, 11)) < 0.5 for seed in (0, 1)]
    hexes = [[np.packbits(row).tobytes().hex() for row in table] for table in tables]
    records = [
        {"round": 0, "units": {"held": [], "bits": hexes[0]}},
        {"round": 10, "units": {"held": [], "bits": hexes[1]}},
        {"round": 11, "units": {"held": []}},
    ]
    history = History(records, {"method": "fedsac", "units": UNITS})
    found = unit_table(history)
    assert found is not None
    assert found[0] == 10
    np.testing.assert_array_equal(found[1], tables[1])
    assert unit_table(History(records, {"method": "m"})) is None
    assert unit_table(History(records[2:], {"method": "m", "units": UNITS})) is None


def test_contributions_and_units_come_from_the_manifest(tmp_path: Any) -> None:
    """And not from the configuration, where a word of the same name may say how they were made."""
    history = run([R])
    (tmp_path / "config.toml").write_text('method = "fedsac"\ncontribution = "standalone_test"\n')
    write_records(history, tmp_path / "metrics.jsonl")
    assert History.from_run(tmp_path).contribution is None
    told = {"contribution": history.meta["contribution"], "units": UNITS}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    (tmp_path / "summary.json").write_text(json.dumps(history.summary()))
    found = History.from_run(tmp_path)
    np.testing.assert_array_equal(found.contribution, C)
    assert found.meta["units"] == UNITS
    assert found.summary() == history.summary()
