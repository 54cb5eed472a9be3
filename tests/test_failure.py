"""Models that diverged or only guess, intervals over test samples, and verdicts that claim no more than they can."""

from __future__ import annotations

import io
import itertools
import json
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rich.console import Console
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

import equipoise as eq
import helpers
from equipoise.federation.history import History
from equipoise.flower import in_process
from equipoise.metrics import class_counts, definitions, diverged, guesses, holm, seeds_needed
from equipoise.metrics.calibration import auc
from equipoise.metrics.failure import ranks, usefulness
from equipoise.metrics.intervals import Draws, Outcome, difference, interval, resampled
from equipoise.metrics.measures import ACCURACY
from equipoise.records.criteria import failed
from equipoise.records.threshold import score_of
from equipoise.report import comparison, markdown, render, rich_table, verdict
from equipoise.report.layout import over_clients, sheets
from equipoise.report.sentences import evidence
from equipoise.report.statistics import Comparison
from helpers import in_one, rate_gaps

OVER_GROUPS = [column for column in definitions.GROUPS if column.draws]


def scores(predicted: Any, y: Any, loss: float = 1.0, C: int = 4) -> dict[str, Any]:
    """What is recorded of one test set."""
    predicted, y = np.asarray(predicted), np.asarray(y)
    right = predicted == y
    rates = class_counts(y, predicted, C)
    correct = np.packbits(right).tobytes().hex()
    return {"accuracy": float(right.mean()), "loss": loss, "n": len(y), "rates": rates, "correct": correct}


def run(method: str, groups: list[dict[str, Any]], seed: int = 0, **meta: Any) -> History:
    records = [{"round": t, "groups": of} for t, of in enumerate(groups)]
    return History(records, {"method": method, "seed": seed, "scenario": "made-up", "measures": ["accuracy"], **meta})


# --- a model of no use
@in_one("loss", [math.nan, math.inf, 4e12, 10.1 * math.log(4)])
def test_a_loss_far_above_that_of_guessing_is_a_training_that_diverged(loss: float) -> None:
    assert "its test loss is" in diverged({"a": scores([0, 1], [0, 1], loss)})
    assert diverged({"a": scores([0, 1], [0, 1], 9.9 * math.log(4))}) == ""
    assert diverged({"a": {"accuracy": 0.5}}) == ""  # no loss is known
    assert diverged({"a": {"accuracy": 0.5, "loss": 99.0}}) == "" != diverged({"a": {"loss": 99.0}}, 4)


def test_a_null_loss_in_a_record_is_one_that_was_not_finite() -> None:
    assert diverged({"a": {"accuracy": 0.1, "loss": None}}) == "its test loss is not a finite number"


def test_who_answers_with_one_class_or_by_chance_guesses() -> None:
    y = np.arange(400) % 4
    rng = np.random.default_rng(0)
    assert "one class for every sample" in guesses([{"a": scores(np.zeros_like(y), y)}])
    assert guesses([{"a": scores(rng.integers(0, 4, 400), y)}])
    learned = np.where(rng.random(400) < 0.2, y, rng.integers(0, 4, 400))
    assert guesses([{"a": scores(learned, y)}]) == ""
    rare = np.where(np.arange(400) < 380, 0, 1)  # 95 % of one class
    assert "always answering with the most frequent class gives 95.00" in guesses(
        [{"a": scores(np.zeros_like(rare), rare, C=2)}]
    )
    finds = np.where((np.arange(400) >= 380) | (rng.random(400) < 0.1), 1, 0)  # finds the rare class, so it has learned
    assert (finds == rare).mean() < 0.95
    assert guesses([{"a": scores(finds, rare, C=2)}]) == ""
    assert guesses([{"a": scores([0, 0], [0, 0], C=1)}]) == ""  # there is nothing to learn
    assert guesses([{"a": {"accuracy": 0.1}}]) == ""


def test_one_in_forty_guessers_at_most_passes_for_a_model() -> None:
    rng = np.random.default_rng(1)
    y = np.arange(200) % 4
    passed = sum(not guesses([{"a": scores(rng.integers(0, 4, 200), y)}]) for _ in range(400))
    assert passed / 400 < 0.06


# --- a model that ranks
def rare(n: int, seed: int, effect: float = 1.3, share: float = -4.0) -> tuple[Any, Any]:
    """Samples of which few are of the second class, the more probable the larger their first number."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = rng.random(n) < 1 / (1 + np.exp(-(share + effect * x[:, 0])))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y.astype(int))


def judged(p: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """What is recorded of probabilities [n, C]."""
    return {**scores(p.argmax(1), y, C=p.shape[1]), "ranks": ranks(p, y)}


@given(st.integers(2, 60), st.integers(2, 60), st.floats(-1, 3), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_a_model_ranks_if_one_half_is_not_in_the_interval_of_its_area(m: int, n: int, effect: float, seed: int) -> None:
    """Of two classes the test is that of Newcombe's interval; data sets add up, and a second round says nothing new."""
    rng = np.random.default_rng(seed)
    y = np.arange(m + n) < m
    p = 0.4 / (1 + np.exp(-rng.normal(effect * y)))
    both = np.stack([1 - p, p], 1)  # always the first class
    (area, ends), ((weight, excess), second) = auc(p, y), ranks(both, y)
    assert second == pytest.approx([weight, excess])
    assert 0.5 + excess / weight == pytest.approx(area.value, abs=1e-6)
    score = {**judged(both, y.astype(int)), "rates": class_counts(y, np.zeros_like(y), 2)}
    assert (guesses([{"a": score}]) == "") == (ends.low > 0.5) or abs(ends.low - 0.5) < 1e-6
    assert guesses([{"a": score}, {"a": score}]) == guesses([{"a": score}])


def test_sites_too_small_to_rank_by_themselves_rank_together() -> None:
    sets, alone = {}, []
    for k in range(40):
        x, y = rare(60, k, share=-2.5)
        risk = (0.01 + 0.4 / (1 + torch.exp(-x[:, 0]))).numpy()
        sets[str(k)] = judged(np.stack([1 - risk, risk], 1), y.numpy())
        alone.append(guesses([{"a": sets[str(k)]}]))
    assert sum(map(bool, alone)) > 5
    assert guesses([sets]) == ""
    assert usefulness([*sets.values()])["ranks"][0][0] == pytest.approx(
        sum(score["ranks"][0][0] for score in sets.values())
    )


def test_what_neither_decides_nor_ranks_is_of_no_use() -> None:
    y = (np.arange(600) % 20 == 0).astype(int)
    constant = np.tile([0.9, 0.1], (600, 1))
    why = guesses([{"a": judged(constant, y)}])
    assert "it predicts one class for every sample" in why
    assert "its AUC is 50.0" in why
    worse = np.stack([1 - 0.4 * (1 - y), 0.4 * (1 - y)], 1)
    assert "its AUC is 0.0" in guesses([{"a": judged(worse, y)}])  # the wrong way round is no use either
    noise = np.random.default_rng(0).uniform(0, 0.4, 600)
    assert guesses([{"a": judged(np.stack([1 - noise, noise], 1), y)}])
    without = {key: x for key, x in judged(np.stack([1 - 0.4 * y, 0.4 * y], 1), y).items() if key != "ranks"}
    assert guesses([{"a": without}])  # records of earlier versions
    assert guesses([{"a": judged(np.stack([1 - 0.4 * y, 0.4 * y], 1), y)}]) == ""


def test_of_many_classes_the_areas_count_together() -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(4, 800, p=[0.7, 0.1, 0.1, 0.1])
    p = rng.dirichlet([40, 5, 5, 5], 800)
    assert guesses([{"a": judged(p, y)}])
    better = p + 0.05 * np.eye(4)[y]
    better /= better.sum(1, keepdims=True)
    better[:, 0] += 1  # still the first class of everybody
    assert (better.argmax(1) == 0).all()
    assert guesses([{"a": judged(better, y)}]) == ""


def test_guessers_that_pass_are_few_where_ranks_count_too() -> None:
    rng = np.random.default_rng(1)
    y = np.arange(200) % 4
    passed = sum(not guesses([{"a": judged(rng.dirichlet([1] * 4, 200), y)}]) for _ in range(400))
    assert passed / 400 < 0.08


@pytest.mark.parametrize("kind", ["federation", "held out", "sites", "clients"])
def test_a_model_of_a_rare_outcome_that_ranks_is_of_use(kind: str, tmp_path: Path) -> None:
    """It predicts one class at 0.5; it is judged so by every way to a record."""
    more: dict[str, Any] = {"measures": ["rates"], "tests": {"t": rare(3000, 9)}}
    more |= {"client_tests": [rare(900, 20), rare(900, 21)]} if kind == "clients" else {}
    more |= {"validation": 0.4} if kind == "held out" else {}
    make = in_process if kind == "sites" else eq.Federation
    for effect, useful in ((1.3, True), (0.0, False)):
        clients = [rare(2000, 1, effect), rare(1500, 2, effect)]
        if not useful:
            more["tests"] = {"t": rare(3000, 9, 0.0)}
        net = eq.network("mlp", (2,), 2, hidden=[], seed=0)
        history = make(net, clients, "fedavg", eq.SGD(0.2), batch_size=64, **more).fit(4, progress=False)
        counts = history.records[-1]["groups"]["t"]["rates"]
        assert counts["chosen"][1] <= 5
        assert bool(history.failure()) != useful, history.failure()
        if kind == "held out":
            assert bool(failed(history)) != useful


def test_at_a_chosen_threshold_a_model_is_judged_there(tmp_path: Path) -> None:
    """By its decisions there: a model that ranks some people only may be of use at one threshold, and at no other."""
    options = {"validation": 0.4, "measures": ["rates"], "tests": {"t": rare(3000, 9)}, "classes": ["no", "yes"]}
    net = eq.network("mlp", (2,), 2, hidden=[], seed=0)
    fed = eq.Federation(net, [rare(2000, 1), rare(1500, 2)], "fedavg", eq.SGD(0.2), **options)
    fed.fit(4, progress=False)
    chosen = eq.choose_threshold(fed, sensitivity=0.8).document
    counts = score_of(chosen)["rates"]
    x, y = rare(3000, 9)
    taken = (fed.predict_proba(x)[:, 1] >= chosen["threshold"]).long()
    assert counts == class_counts(y, taken, 2)
    history = replace(fed.history, meta={**fed.history.meta, "threshold": chosen})
    assert history.threshold == chosen
    assert history.failure() == ""
    half = {"value": 0.5, "low": 0.4, "high": 0.6}
    everyone = {**chosen["everyone"], "sensitivity": half, "specificity": half, "auc": half}
    dull = replace(history, meta={**history.meta, "threshold": {**chosen, "everyone": everyone}})
    assert "its AUC is 50.0" in dull.failure()
    assert score_of({**chosen, "everyone": {**everyone, "of_class": None}}) == {}


def test_a_run_says_at_once_that_it_diverged(caplog: pytest.LogCaptureFixture) -> None:
    tests = {"a": helpers.samples(40, 8), "b": helpers.samples(40, 9)}
    with caplog.at_level(logging.WARNING):
        fed = helpers.fitted("fedavg", rounds=3, solver=eq.SGD(1e6), tests=tests)
    said = [r.getMessage() for r in caplog.records if "diverged" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("fedavg has diverged in round")
    assert any("test loss" in record.get("diverged", "") for record in fed.records)
    assert fed.history.summary()["failure"].startswith("training diverged: its test loss is")
    good = helpers.fitted("fedavg", tests={"a": helpers.samples(60, 0), "b": helpers.samples(60, 1)})
    assert good.history.summary()["failure"] is None


def failing(C: int = 4) -> tuple[History, History, History]:
    """Runs that learned, that diverged, and that answer with one class."""
    rng = np.random.default_rng(2)
    y = {g: rng.integers(0, C, n) for g, n in (("a", 300), ("b", 200))}
    p = {"a": 0.9, "b": 0.6}
    good = [{g: scores(np.where(rng.random(len(of)) < p[g], of, 0), of) for g, of in y.items()} for _ in range(6)]
    bad = [{g: scores(np.zeros_like(of), of, 4e12) for g, of in y.items()} for _ in range(6)]
    dull = [{g: scores(np.zeros_like(of), of, 1.4) for g, of in y.items()} for _ in range(6)]
    return run("good", good), run("bad", bad), run("dull", dull)


def test_who_has_learned_nothing_is_never_the_best_and_is_marked_everywhere() -> None:
    good, bad, dull = failing()
    found = comparison([good, bad, dull])
    assert found["methods"][1]["std"]["mean"] < found["methods"][0]["std"]["mean"]  # as if it were fairer
    text = verdict(found)
    assert text.startswith(
        "bad and dull diverged, or are no better than guessing, so their numbers show neither fairness"
    )
    reasons = evidence(found)
    assert reasons[0].startswith("bad, seed 0: training diverged (its test loss is 4e+12")
    assert reasons[1].startswith(
        "dull, seed 0: the global model is no better than guessing (it predicts one class for every"
    )
    assert "Only good is better than guessing" in text
    assert "fairest" not in text
    assert found["leaders"] == {}
    for shown in (markdown(found), render([good, bad, dull]), on_screen(found)):
        assert "bad †" in shown
        assert "dull †" in shown
    assert all(not cell.best for sheet in sheets(found) for name, row in sheet.grid.rows for cell in row if "†" in name)


def test_if_nobody_has_learned_nobody_is_compared() -> None:
    _, bad, dull = failing()
    text = verdict(comparison([bad, dull]))
    for claim in ("fair:", "fairest", "best", "distinguishable", "most accurate"):
        assert claim not in text


def test_the_same_numbers_are_a_tie_without_brackets() -> None:
    one, two = (run(m, [{"a": {"accuracy": 0.5}, "b": {"accuracy": 0.7}}]) for m in ("one", "two"))
    found = comparison([one, two])
    assert verdict(found).startswith(
        "Neither method is shown to be the fairest, the best for the worst group or the most"
    )
    assert "The fairest: the lowest STD is that of one, 14.14 points; not distinguishable from two." in evidence(found)
    assert not any("In brackets" in text for text in evidence(found))


# --- undefined is not equal
def test_clients_that_share_model_and_test_set_have_no_spread() -> None:
    tests = {"a": helpers.samples(40, 8), "b": helpers.samples(40, 9)}
    fed = helpers.fitted("fedavg", rounds=2, tests=tests)
    history = fed.history
    assert not history.spreads
    assert history.summary()["clients"] == {}
    assert over_clients(Comparison.of([history])) == []
    own = helpers.fitted("fedbn", rounds=2, tests=tests, kind="batchnorm").history
    assert own.spreads
    assert own.summary()["clients"]["gap"] > 0


def test_clients_are_tested_on_their_own_samples_beside_the_groups() -> None:
    tests = {"a": helpers.samples(40, 8), "b": helpers.samples(40, 9)}
    mine = [helpers.samples(20, k) if k else None for k in range(len(helpers.UNEQUAL))]
    for method, kind in (("fedavg", "mlp"), ("fedbn", "batchnorm")):
        fed = helpers.fitted(method, rounds=2, tests=tests, client_tests=mine, kind=kind)
        found = fed.records[-1]["clients"]["accuracy"]
        assert found[0] is None
        for m in range(1, len(mine)):
            expected = fed.evaluate(mine[m], client=m if method == "fedbn" else None)["accuracy"]
            assert found[m] == pytest.approx(expected)
        assert fed.history.spreads
    with pytest.raises(
        ValueError, match=r"client_tests must have a test set, or None, for each of the \d clients; found 1"
    ):
        helpers.federation("fedavg", tests=tests, client_tests=mine[:1])
    alone = helpers.fitted("fedavg", rounds=1, client_tests=mine)
    assert list(alone.tests.sets) == list(alone.names[1:])


# --- intervals
def outcomes(rng: np.random.Generator, p: np.ndarray, sizes: list[int], shared: float) -> list[list[Outcome]]:
    """Two models on the same samples; `shared` is how often both have the same luck."""
    models: list[list[Outcome]] = [[], []]
    for d, n in enumerate(sizes):
        u = rng.random(n)
        v = np.where(rng.random(n) < shared, u, rng.random(n))
        for k, luck in enumerate((u, v)):
            right = (luck < p[k, d]).astype(float)
            models[k].append(Outcome(float(right.mean()), n, right))
    return models


def coverage(p: np.ndarray, sizes: list[int], shared: float, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """How often 95 % intervals hold the truth: of the difference, and of the first model, by statistic."""
    rng = np.random.default_rng(3)
    hits = np.zeros((2, len(OVER_GROUPS)))
    for trial in range(trials):
        a, b = resampled(outcomes(rng, p, sizes, shared), 500, trial)
        for k, each in enumerate(OVER_GROUPS):
            for row, found, truth in (
                (0, difference(a, b, each), each.draws(p[0]) - each.draws(p[1])),
                (1, interval(a, each), each.draws(p[0])),
            ):
                hits[row, k] += found.low <= truth <= found.high
    return hits[0] / trials, hits[1] / trials


@pytest.mark.parametrize("shared", [0.0, pytest.param(0.8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "sizes", [[15] * 4, *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ([90] * 4, [500] * 4, [300, 30]))]
)
def test_intervals_hold_the_truth_as_often_as_they_say(sizes: list[int], shared: float) -> None:
    K = len(sizes)
    p = np.stack([np.linspace(0.6, 0.95, K), np.linspace(0.62, 0.9, K)])
    of_differences, alone = coverage(p, sizes, shared, 300)
    assert of_differences.min() > 0.9  # 0.92, less what 300 trials may miss
    assert of_differences[0] < 0.985
    assert alone.min() > 0.9


@pytest.mark.slow
def test_intervals_of_ties_and_of_one_sample_are_not_too_narrow() -> None:
    near = np.array([[0.8, 0.81, 0.81, 0.82], [0.82, 0.81, 0.8, 0.79]])
    of_differences, alone = coverage(near, [200] * 4, 0.0, 200)
    assert of_differences.min() > 0.9
    assert alone[[0, 1, 3]].min() > 0.9  # of the worst group it is lower, about 0.85
    tiny = np.array([[0.6, 0.7, 0.8, 0.9], [0.62, 0.7, 0.79, 0.87]])
    of_differences, alone = coverage(tiny, [1, 30, 100, 300], 0.0, 200)
    assert min(of_differences.min(), alone.min()) > 0.9


def test_draws_are_the_posterior_of_jeffreys() -> None:
    right = np.r_[np.ones(30), np.zeros(10)]
    ((draws, _),) = resampled([[Outcome(0.75, 40, right)]], 20000)
    expected = stats.beta(30.5, 10.5).ppf([0.025, 0.25, 0.5, 0.75, 0.975])
    assert np.quantile(draws, [0.025, 0.25, 0.5, 0.75, 0.975]) == pytest.approx(expected, abs=0.005)
    low, high = interval(resampled([[Outcome(1.0, 1)]])[0], OVER_GROUPS[0])
    assert 0 < low < 0.2 < 0.9 < high


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=6),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_an_interval_holds_what_was_observed(groups: list[tuple[int, int]], known: bool, random: Random) -> None:
    """Of a model and a second one, of every statistic; without an error it ends at 1 exactly, without a success at 0."""
    counts = [(min(k, n), n) for k, n in groups]
    other = [(random.randint(0, n), n) for _, n in counts]
    models = [[Outcome(k / n, n, np.arange(n) < k if known else None) for k, n in model] for model in (counts, other)]
    a, b = resampled(models, 200)
    for each in (*OVER_GROUPS, *(index for index in definitions.INDICES if index.draws)):
        values = float(each.draws(a.observed)), float(each.draws(b.observed))
        if math.isfinite(values[0]):
            found = interval(a, each)
            assert found.low <= values[0] <= found.high
            apart = difference(a, b, each)
            assert apart.low <= values[0] - values[1] <= apart.high
    for column, (k, n) in enumerate(counts):
        low, high = interval(Draws(a.others[:, [column]], a.observed[[column]]), OVER_GROUPS[0])
        assert (high == 1) is (k == n)
        assert (low == 0) is (k == 0)


def test_gaps_of_rates_hold_what_was_observed() -> None:
    perfect = class_counts([0, 1] * 9, [0, 1] * 9, 2)
    wrong = class_counts([0, 1] * 9, [1, 0] * 9, 2)
    apart = rate_gaps({"f": perfect, "m": wrong})
    assert [apart[key].high for key in ("accuracy_gap", "equal_opportunity", "equalised_odds")] == [1, 1, 1]
    assert apart["demographic_parity"].low == 0


def test_gaps_of_rates_hold_the_truth() -> None:
    rng = np.random.default_rng(8)
    sizes, share, tpr, fpr = {"f": 300, "m": 200}, {"f": 0.3, "m": 0.5}, {"f": 0.9, "m": 0.7}, {"f": 0.1, "m": 0.3}
    hits = np.zeros(3)
    for _ in range(150):
        counts = {}
        for g, n in sizes.items():
            y = (rng.random(n) < share[g]).astype(int)
            counts[g] = class_counts(y, (rng.random(n) < np.where(y, tpr[g], fpr[g])).astype(int), 2)
        found = rate_gaps(counts)
        chosen = {g: share[g] * tpr[g] + (1 - share[g]) * fpr[g] for g in sizes}
        truth = {"equal_opportunity": 0.2, "equalised_odds": 0.2, "demographic_parity": chosen["m"] - chosen["f"]}
        hits += [found[key].low <= of <= found[key].high for key, of in truth.items()]
    assert (hits / 150 > 0.9).all()
    same = rate_gaps({g: class_counts([0, 1] * 50, [0, 1] * 50, 2) for g in sizes})
    assert all(same[key].low == 0 for key in truth)  # nothing shows that the groups differ
    assert same["demographic_parity_ratio"].high == 1
    one = rate_gaps({"f": class_counts([1, 1], [1, 1], 2), "m": class_counts([0, 0], [0, 0], 2)})
    assert math.isnan(one["equal_opportunity"].low)  # no two groups have a positive sample


def test_samples_known_one_by_one_make_differences_narrower() -> None:
    rng = np.random.default_rng(4)
    models = outcomes(rng, np.array([[0.7, 0.8], [0.72, 0.8]]), [400, 400], 0.9)
    known = difference(*resampled(models), OVER_GROUPS[0])
    apart = difference(*resampled([[of._replace(right=None) for of in m] for m in models]), OVER_GROUPS[0])
    assert known.high - known.low < 0.6 * (apart.high - apart.low)


@in_one("column", OVER_GROUPS)
def test_statistics_draws_are_those_of_the_tables(column: definitions.Statistic) -> None:
    a = np.random.default_rng(5).random((7, 3))
    assert column.draws(a) == pytest.approx([column.compute(row, None, ACCURACY).value for row in a])


@in_one(("d", "n"), [(0.1, 787), (0.5, 34), (1.0, 10), (2.0, 5)])
def test_the_number_of_seeds_is_that_of_known_tables_of_power(d: float, n: int) -> None:
    """The sample sizes that G*Power gives for a two-sided paired test at 5 % with power 0.8, and those of statsmodels."""
    x = np.random.default_rng(6).normal(size=6)
    assert seeds_needed((x - x.mean()) / x.std(ddof=1) + d) == n
    assert math.ceil(TTestPower().solve_power(effect_size=d, power=0.8, alpha=0.05)) == n
    assert seeds_needed([1.0, 1.0, 1.0]) is None
    assert seeds_needed([1.0, -1.0, 0.001]) is None


def test_holm_is_that_of_statsmodels() -> None:
    for n in (1, 2, 7):
        p = np.random.default_rng(n).random(n) ** 3
        assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


# --- every sentence against the numbers
def on_screen(found: Any) -> str:
    text = io.StringIO()
    Console(file=text, width=250).print(rich_table(found, 250))
    return text.getvalue()


KINDS = ("good", "even", "same", "diverged", "constant")


def drawn(rng: np.random.Generator) -> list[History]:
    """Random runs: diverged, constant, tied; one seed or several; no groups, missing groups, groups of one sample."""
    C, names = int(rng.integers(2, 5)), list("abcd"[: rng.integers(1, 5)])
    sizes = {g: int(rng.choice([1, 5, 60, 400])) for g in names}
    seeds, kinds = int(rng.integers(1, 4)), rng.choice(KINDS, rng.integers(1, 4), replace=False)
    histories = []
    for seed, (k, kind) in itertools.product(range(seeds), enumerate(kinds)):
        luck = np.random.default_rng([seed, 0 if kind == "same" else k])
        y = {g: np.random.default_rng([seed, 9]).integers(0, C, n) for g, n in sizes.items()}
        records = []
        for _ in range(int(rng.integers(1, 7))):
            of = {}
            for d, (g, labels) in enumerate(y.items()):
                p = {"good": 0.9 - 0.15 * d, "even": 0.7}.get(str(kind), 0.6 + 0.1 * d)
                known = np.where(luck.random(len(labels)) < p, labels, luck.integers(0, C, len(labels)))
                answers = np.zeros_like(labels) if kind in ("constant", "diverged") else known
                of[g] = scores(answers, labels, 1e9 if kind == "diverged" else 0.5, C)
                if rng.random() < 0.1:
                    del of[g]["correct"]
            if len(of) > 1 and rng.random() < 0.05:
                del of[names[0]]
            records.append(of)
        histories.append(run(f"{kind}{k}", records, seed))
    return histories


CLAIMS = {
    r"(\S+) is the fairest": ("std", min),
    r"(\S+) serves the worst group best:": ("worst", max),
    r"(\S+) is the most accurate, at": ("avg", max),
}


@in_one("draw", range(60))
def test_no_sentence_claims_more_than_its_interval(draw: int) -> None:
    histories = drawn(np.random.default_rng([7, draw]))
    found = comparison(histories)
    json.dumps(found, allow_nan=False)
    text, methods = verdict(found), {m["method"]: m for m in found["methods"]}
    below = " ".join(evidence(found))
    failed = {label for label, m in methods.items() if m["failed"]}
    assert failed >= {label for label in methods if label.startswith("diverged")}
    for pattern, (key, choose) in CLAIMS.items():
        for label in re.findall(pattern, text):
            assert label not in failed
            others = [m for m in methods if m != label and m not in failed and methods[m][key]["mean"] is not None]
            assert others
            assert (
                choose([methods[label], *(methods[m] for m in others)], key=lambda m: m[key]["mean"]) is methods[label]
            )
            for other in others:
                versus = found["leaders"][key]["versus"][other]
                a, b = ([h.summary()[key] for h in histories if h.label == m] for m in (label, other))
                assert versus["difference"] == pytest.approx(np.mean(np.subtract(a, b)))
                if len(a) > 1:
                    assert stats.ttest_rel(a, b).pvalue == pytest.approx(versus["p"])
                    assert versus["p"] <= versus["holm"] < 0.05
                else:
                    assert versus["low"] > 0 or versus["high"] < 0
                assert f"{abs(versus['difference']):.2f} [" in below
    screen = " ".join(on_screen(found).split())
    for label in methods:
        assert (f"{label} †" in screen) == (label in failed)
    for sheet in sheets(found):
        for name, row in sheet.grid.rows:
            assert not ("†" in name and any(cell.best for cell in row))
    for h in histories:
        summary = h.summary()
        assert summary["clients"] == {}  # no client was tested
        assert (summary["std"] is None) >= (len(h.groups) < 2)
        for key in ("avg", "std", "worst"):
            assert summary[key] is None or math.isfinite(summary[key])


# --- the loss in training
def test_the_loss_of_every_client_in_training_is_recorded() -> None:
    """One step of the whole data at a tiny learning rate: the loss is that of the first model; several steps: their mean."""
    still = {"solver": eq.SGD(1e-12), "participation": 1.0, "epochs": 1}
    net = helpers.network()
    expected = [float(torch.nn.functional.cross_entropy(net(x), y).detach()) for x, y in helpers.clients()]
    for size in (64, 8):  # one batch, and several of which the last is smaller
        for method in ("fedavg", "sam", "ditto"):  # sam evaluates two gradients in a step
            fed = helpers.fitted(method, 1, batch_size=size, **still)
            assert fed.records[0]["losses"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("engine", ["workers", "stacked", pytest.param("processes", marks=pytest.mark.slow)])
def test_every_engine_records_the_same_losses(engine: str) -> None:
    one, two = helpers.fitted("fedprox", 2), helpers.fitted("fedprox", 2, engine=engine)
    for a, b in zip(one.records, two.records, strict=True):
        assert len(a["losses"]) == len(a["ids"])
        assert a["losses"] == pytest.approx(b["losses"], rel=1e-12)


def test_clients_with_models_of_their_own_are_not_judged_by_the_global_one() -> None:
    """Standalone clients learn, each alone; the mean of their models, which nobody uses, may only guess."""
    tests = {name: helpers.samples(60, k) for k, name in enumerate("abcde")}
    fed = helpers.fitted("standalone", 2, tests=tests, groups=list("abcde"))
    assert fed.history.meta["personal"]
    _, bad, _ = failing()
    records = [{**r, "clients": {"accuracy": [0.9, 0.8]}} for r in bad.records]
    own, shared = (
        History(records, {**bad.meta, "personal": personal, "client_tests": True}) for personal in (True, False)
    )
    assert [name for name, _ in over_clients(Comparison.of([own]))[0].grid.rows] == ["bad"]
    assert [name for name, _ in over_clients(Comparison.of([shared]))[0].grid.rows] == ["bad †"]
