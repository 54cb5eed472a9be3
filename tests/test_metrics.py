"""Accuracy, spread and statistics against hand-computed values, naive loops, known answers and invariants."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from equipoise.metrics import (
    MEASURES,
    classification,
    paired,
    performance,
    spread,
    summary_over_seeds,
)
from equipoise.metrics.classification import chosen
from equipoise.metrics.performance import last_rounds, last_rounds_of, last_rounds_together, mean, moments, std, worst
from helpers import in_one

accuracies = st.lists(st.floats(1e-3, 1, allow_subnormal=False), min_size=1, max_size=40)


# Hand-computed: four clients at 0.2, 0.4, 0.4, 1.0; sum 2, mean 0.5, sum of squares 1.36.
HAND = [0.4, 0.2, 1.0, 0.4]


@in_one(
    ("name", "expected"),
    [
        ("mean", 0.5),
        ("worst", 0.2),
        ("best", 1.0),
        ("gap", 0.8),
        ("std", math.sqrt((0.01 + 0.09 + 0.25 + 0.01) / 3)),
        ("variance", 900.0),
        ("worst_share", 0.2),
        ("best_share", 1.0),
        ("coefficient_of_variation", 0.6),
        ("jain", 4 / (4 * 1.36)),
        ("cosine", 2 / (2 * math.sqrt(1.36))),
        ("angle", math.degrees(math.acos(1 / math.sqrt(1.36)))),
        ("entropy", -(0.1 * math.log(0.1) + 0.4 * math.log(0.2) + 0.5 * math.log(0.5))),
        ("kl_uniform", math.log(4) + 0.1 * math.log(0.1) + 0.4 * math.log(0.2) + 0.5 * math.log(0.5)),
        ("gini", (0.2 + 0.2 + 0.6 + 0.6 + 0.8) * 2 / (2 * 16 * 0.5)),
    ],
)
def test_value_by_hand(name, expected):
    value, defined = getattr(performance, name)(HAND)
    assert defined
    assert value == pytest.approx(expected, abs=1e-12)


def naive(a):
    """Every formula as loops over single numbers."""
    k = len(a)
    mean = sum(a) / k
    square = sum(x * x for x in a)
    std = math.sqrt(sum((x - mean) ** 2 for x in a) / k)
    shares = [x / sum(a) for x in a]
    entropy = -sum(u * math.log(u) for u in shares if u > 0)
    n = max(1, k // 10)
    return {
        "mean": 100 * mean,
        "std": 100 * std,
        "variance": sum((100 * x - 100 * mean) ** 2 for x in a) / k,
        "worst10": 100 * sum(sorted(a)[:n]) / n,
        "best10": 100 * sum(sorted(a, reverse=True)[:n]) / n,
        "min": 100 * min(a),
        "max": 100 * max(a),
        "gap": 100 * (max(a) - min(a)),
        "cov": std / mean,
        "jain": sum(a) ** 2 / (k * square),
        "cosine": sum(a) / math.sqrt(k * square),
        "angle": math.degrees(math.acos(min(1.0, sum(a) / math.sqrt(k * square)))),
        "entropy": entropy,
        "kl": math.log(k) - entropy,
        "gini": sum(abs(x - y) for x in a for y in a) / (2 * k * k * mean),
    }


@given(accuracies)
def test_spread_equals_naive_loops(a):
    found = spread(a)
    expected = naive(a)
    assert list(found) == list(expected)
    for name, value in expected.items():
        tolerance = 1e-5 if name == "angle" else 1e-8  # the arc cosine itself loses digits near 1
        assert found[name].value == pytest.approx(value, rel=1e-8, abs=tolerance), name


def test_known_answers_for_the_spread_over_clients():
    """Golden `metric.uniformity`: the formulas of the q-FFL plot script on 20 clients."""
    acc = [0.666, 0.776, 0.565, 0.52, 0.573, 0.664, 0.858, 0.57, 0.845, 0.375]
    acc += [0.419, 0.742, 0.866, 0.676, 0.749, 0.845, 0.442, 0.93, 0.617, 0.542]
    expected = {
        "variance": 249.108,
        "std": 15.78315557802051,
        "worst10": 39.7,
        "best10": 89.8,
        "gap": 55.5,
        "cov": 0.2384162474021225,
        "jain": 0.9462149587999522,
        "gini": 0.1363972809667674,
        "cosine": 0.9727358114102472,
        "angle": 13.409902251862004,
        "entropy": 2.9665714504447918,
        "kl": 0.029160823109199097,
    }
    found = {name: spread(acc)[name].value for name in expected}
    assert found == pytest.approx(expected, abs=1e-10, rel=1e-10)


DOMAINS = [  # golden metric.fedheal.avg_std: seven rounds, four domains, percent
    [88.86, 93.43, 79.0, 42.66],
    [90.42, 92.57, 80.26, 41.81],
    [87.4, 93.77, 77.95, 40.33],
    [89.21, 93.53, 80.92, 41.95],
    [87.49, 93.11, 79.83, 42.01],
    [89.59, 92.75, 80.62, 43.62],
    [88.65, 92.8, 78.99, 44.1],
]


def test_known_answers_for_fedheal():
    found = last_rounds(DOMAINS)
    assert found == pytest.approx([88.468, 93.192, 79.662, 42.402], abs=1e-10)
    assert (mean(found).value, std(found).value) == pytest.approx((75.931, 23.045120177599426), abs=1e-10)
    assert worst(found).value == pytest.approx(42.402, abs=1e-10)


def test_fedheal_reproduces_a_printed_row():
    """FedAvg on Digits, FedHEAL Table 2: MNIST, USPS, SVHN, SYN, and the printed AVG and STD."""
    found = last_rounds([89.84, 93.25, 79.54, 41.35])
    assert mean(found).value == pytest.approx(76.00, abs=0.01)
    assert std(found).value == pytest.approx(23.82, abs=0.01)
    assert worst(found).value == 41.35


@given(
    st.integers(1, 8).flatmap(
        lambda d: st.lists(st.lists(st.floats(0, 1), min_size=d, max_size=d), min_size=1, max_size=9)
    ),
    st.integers(1, 6),
)
def test_order_of_reduction(table, last):
    found, rows = last_rounds(table, last), table[-last:]
    assert last_rounds_of(table, last).tolist() == rows
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    assert mean(found).value == pytest.approx(sum(means) / len(means), abs=1e-12)
    assert worst(found).value == pytest.approx(min(means), abs=1e-12)
    assert std(found).defined == (len(table[0]) > 1)
    if std(found).defined:
        assert std(found).value <= mean([std(row).value for row in rows]).value + 1e-12


@given(accuracies)
def test_ranges(a):
    found = {name: value.value for name, value in spread(a).items()}
    k = len(a)
    assert 1 / k - 1e-12 <= found["jain"] <= 1
    assert found["jain"] == pytest.approx(found["cosine"] ** 2)
    assert found["jain"] == pytest.approx(1 / (1 + found["cov"] ** 2))
    assert 0 <= found["gini"] <= 1 - 1 / k + 1e-12
    assert 0 <= found["kl"] <= math.log(k) + 1e-12
    assert 0 <= found["angle"] <= 90
    assert found["min"] <= found["worst10"] <= found["mean"] + 1e-9
    assert found["mean"] - 1e-9 <= found["best10"] <= found["max"]


@given(accuracies, st.floats(0.1, 10))
def test_scale_free_measures_do_not_see_the_scale(a, factor):
    before, after = spread(a), spread([factor * x for x in a])
    for name in ("cov", "jain", "cosine", "angle", "entropy", "kl", "gini"):
        assert after[name].value == pytest.approx(before[name].value, rel=1e-6, abs=1e-5), name
    assert after["variance"].value == pytest.approx(factor**2 * before["variance"].value, rel=1e-6, abs=1e-9)


@given(accuracies, st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(a, random):
    shuffled = random.sample(a, len(a))
    for name, value in spread(a).items():
        assert spread(shuffled)[name].value == pytest.approx(value.value, rel=1e-9, abs=1e-6), name


@in_one("k", [1, 2, 7, 100])
@in_one("value", [0.1, 0.3, 1.0])
def test_equal_clients_are_perfectly_fair(k, value):
    found = spread([value] * k)
    for name in ("gap", "gini"):
        assert found[name].value == 0, name
    for name in ("std", "variance", "cov", "kl", "angle"):
        assert found[name].value == pytest.approx(0, abs=1e-6), name
    assert found["jain"].value == pytest.approx(1)
    assert found["cosine"].value == pytest.approx(1)
    assert found["entropy"].value == pytest.approx(math.log(k))


def test_one_client_has_everything():
    found = spread([0, 0, 0, 0.8])
    assert found["jain"].value == pytest.approx(1 / 4)
    assert found["gini"].value == pytest.approx(3 / 4)
    assert found["entropy"].value == 0
    assert found["angle"].value == pytest.approx(60)


@in_one("a", [[], [0.5, math.nan], [math.inf, 0.1], [None, 0.3]])
def test_nothing_to_measure_is_undefined_not_an_error(a):
    assert all(not defined and math.isnan(value) for value, defined in spread(a).values())
    assert not performance.std(a).defined


def test_undefined_where_the_formula_divides_by_zero():
    found = spread([0, 0, 0])
    undefined = {name for name, value in found.items() if not value.defined}
    assert undefined == {"cov", "jain", "cosine", "angle", "entropy", "kl", "gini"}
    assert not performance.std([0.5]).defined


def test_a_group_missing_in_one_round_is_undefined():
    torn = last_rounds([[0.5, 0.6], [0.5, math.nan]])
    assert not any(measure(torn).defined for measure in (mean, std, worst))
    assert mean(last_rounds([[0.5, math.nan], [0.5, 0.6]], last=1)).value == pytest.approx(0.55)


@in_one(("k", "n"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (30, 3), (100, 10)])
def test_worst_tenth_counts_clients(k, n):
    a = [i / k for i in range(k)]
    assert performance.worst_share(a).value == pytest.approx(sum(a[:n]) / n)
    assert performance.best_share(a).value == pytest.approx(sum(a[-n:]) / n)


@in_one(
    ("call", "message"),
    [
        (lambda: performance.mean([[0.1, 0.2]]), r"expected shape \[K\], found \(1, 2\)"),
        (lambda: last_rounds(np.zeros((2, 2, 2))), r"expected shape \[R, D\] or \[D\], found \(2, 2, 2\)"),
        (lambda: last_rounds([0.1, 0.2], last=0), "at least 1, found 0"),
        (lambda: summary_over_seeds([[1.0]]), r"expected shape \[n\]"),
        (lambda: paired([1.0, 2.0], [1.0]), "found 2 and 1"),
    ],
)
def test_errors_say_what_was_found(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_summary_over_seeds_by_hand():
    found = summary_over_seeds([80.0, 82.0, 84.0])
    assert found == pytest.approx((82, 2, 4.302652729911275 * 2 / math.sqrt(3), 3))  # t_{0.975, 2} = 4.3027


def test_one_seed_has_a_mean_and_nothing_else():
    mean, std, ci95, n = summary_over_seeds([0.7])
    assert (mean, n) == (0.7, 1)
    assert math.isnan(std)
    assert math.isnan(ci95)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=12))
@settings(max_examples=60)
def test_paired_equals_scipy(pairs):
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    if np.ptp(a - b) < 1e-6:
        return
    found = paired(a, b)
    expected = stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.95)
    assert found.defined
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.difference == pytest.approx((low + high) / 2, rel=1e-6, abs=1e-9)
    assert found.ci95 == pytest.approx((high - low) / 2, rel=1e-6)
    assert paired(b, a).difference == pytest.approx(-found.difference)


@in_one(
    ("a", "b", "n"),
    [
        ([], [], 0),
        ([0.5], [0.4], 1),
        ([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], 3),
        ([1, 1], [1, 1], 2),
        ([1, math.nan], [1, 2], 2),
    ],
)
def test_paired_is_undefined_without_spread(a, b, n):
    found = paired(a, b)
    assert not found.defined
    assert found.n == n
    assert math.isnan(found.p)
    assert math.isnan(found.ci95)


def test_paired_keeps_the_difference_of_one_seed():
    assert paired([0.5], [0.4]).difference == pytest.approx(0.1)


# --- one classifier on one data set


def test_classification_by_hand():
    """Three classes; one sample of class 1 is taken for class 0."""
    p = [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    found = classification(p, [0, 0, 1, 1, 2])
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["balanced"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert found["auc"] == found["auc_ovr"] == 1  # each class has its highest probabilities on its own samples
    assert found["missing"] == ()
    p[0], p[2] = p[2], p[0]  # p_0 is now 0.5, 0.6 on class 0 and 0.7, 0.1 on class 1; p_1 is 0.4, 0.3 and 0.2, 0.8
    found = classification(p, [0, 0, 1, 1, 2])
    assert found["auc"] == pytest.approx(((2 / 4 + 2 / 4) / 2 + 1 + (1.5 / 2 + 1) / 2) / 3)
    assert found["auc_ovr"] == pytest.approx((2 * 4 / 6 + 2 * 3.5 / 6 + 1) / 5)


def area(positive, negative):
    """The share of pairs in the right order, equal ones counting one half."""
    pairs = [(a > b) + (a == b) / 2 for a in positive for b in negative]
    return sum(pairs) / len(pairs)


def naive_classification(p, y):
    """Every measure as loops over classes and pairs of samples."""
    classes = sorted(set(y))
    of = {c: [row for row, label in zip(p, y, strict=True) if label == c] for c in classes}
    hits = {c: sum(row.index(max(row)) == c for row in rows) for c, rows in of.items()}
    found = {
        "accuracy": sum(hits.values()) / len(y),
        "balanced": sum(hits[c] / len(of[c]) for c in classes) / len(classes),
    }
    column = lambda rows, c: [row[c] for row in rows]  # noqa: E731
    pairs = [(a, b) for a in classes for b in classes if a < b]
    both = [(area(column(of[a], a), column(of[b], a)) + area(column(of[b], b), column(of[a], b))) / 2 for a, b in pairs]
    found["auc"] = sum(both) / len(both)
    against = [(area(column(of[c], c), [r[c] for d in classes if d != c for r in of[d]]), len(of[c])) for c in classes]
    found["auc_ovr"] = sum(a * n for a, n in against) / len(y)
    return found


@given(st.integers(2, 4), st.integers(4, 25), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_classification_equals_naive_loops(C, n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, n)
    if len(set(y.tolist())) < 2:
        return
    p = rng.integers(1, 6, (n, C)).astype(float)  # few values: many ties
    p /= p.sum(axis=1, keepdims=True)
    if C == 2:
        p = np.round(p, 3)  # so that 1 - p orders the samples exactly the other way round
        p[:, 1] = 1 - p[:, 0]
    found = classification(p, y)
    expected = naive_classification(p.tolist(), y.tolist())
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert found["missing"] == tuple(sorted(set(range(C)) - set(y.tolist())))


def test_classes_without_a_sample_are_left_out_and_named():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), 30)
    y = rng.choice([0, 2, 4], 30)
    found = classification(p, y)
    assert found["missing"] == (1, 3)
    expected = naive_classification(p.tolist(), y.tolist())
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_logits_are_compared_as_probabilities():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    measured = lambda *given, **how: [classification(*given, **how)[name] for name in MEASURES]  # noqa: E731
    found = measured(logits, y, logits=True)
    assert found == pytest.approx(measured(p, y))
    shift = 1000 * rng.normal(size=(40, 1))
    assert measured(logits + shift, y, logits=True) == pytest.approx(found)
    huge = classification([[1e4, 0.0], [0.0, 1e4]], [0, 1], logits=True)
    assert [huge[name] for name in MEASURES] == [1, 1, 1, 1]


@in_one(
    ("p", "y", "undefined"),
    [
        (np.full((3, 2), 0.5), [1, 1, 1], {"auc", "auc_ovr"}),
        (np.full((3, 4), 0.25), [2, 2, 2], {"auc", "auc_ovr"}),
        (np.empty((0, 3)), np.empty(0, int), set(MEASURES)),
        ([[math.nan, 1.0], [0.5, 0.5]], [0, 1], {"auc", "auc_ovr"}),
    ],
)
def test_classification_without_meaning_is_nan(p, y, undefined):
    found = classification(p, y)
    assert {name for name in MEASURES if math.isnan(found[name])} == undefined


def test_only_the_measures_asked_for_are_made():
    assert classification([[0.9, 0.1]], [0], ["balanced"]) == {"balanced": 1.0, "missing": (1,)}


@in_one(
    ("call", "message"),
    [
        (lambda: classification([0.1, 0.2], [0, 1]), r"expected scores \[n, C\] and labels \[n\], found \(2,\)"),
        (lambda: classification([[0.5, 0.5]], [0, 1]), r"found \(1, 2\) and \(2,\)"),
        (lambda: classification([[0.5, 0.5]], [2]), r"labels must be in 0..1: found 2..2"),
        (lambda: classification([[0.5, 1.5]], [1]), "sum to 1. Give logits=True for logits"),
        (lambda: classification([[0.5, 0.5]], [1], ["acu"]), "Unknown measure 'acu'. Did you mean 'auc'?"),
        (lambda: last_rounds_together([[[0.5, 0.5]], [[0.5]]]), r"over the same groups only: found \[1, 2\]"),
        (lambda: last_rounds_together([[0.5, 0.5]], last=0), "at least 1, found 0"),
        (lambda: performance.client_std([0.5, 0.5], [1]), r"expected shape \(2,\), found \(1,\)"),
    ],
)
def test_classification_and_pooling_say_what_was_found(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_chosen_measures_are_in_order_with_the_accuracy():
    assert chosen(()) == ("accuracy",)
    assert chosen(["auc", "balanced", "auc"]) == ("accuracy", "balanced", "auc")
    with pytest.raises(TypeError, match="several names"):
        chosen("auc")


# --- FedISM+'s reduction


def test_rounds_of_runs_together_by_hand():
    """Two runs, two rounds of each count."""
    rows = last_rounds_together([[[0.0, 0.0], [0.8, 0.6], [0.9, 0.5]], [[0.7, 0.7], [0.5, 0.9]]], last=2)
    assert rows.tolist() == [[0.8, 0.6], [0.9, 0.5], [0.7, 0.7], [0.5, 0.9]]
    assert moments(rows[:, 0]) == pytest.approx((0.725, np.std([0.8, 0.9, 0.7, 0.5])))
    assert moments([worst(row).value for row in rows]) == pytest.approx((0.575, np.std([0.6, 0.5, 0.7, 0.5])))


def test_moments_without_groups_or_numbers():
    assert not performance.client_std([0.5, 0.6], None).defined
    assert not performance.client_std([0.5, 0.6], [0, 0]).defined
    assert moments([0.5]) == (0.5, 0)
    assert all(math.isnan(value) for values in ([], [0.5, math.nan]) for value in moments(values))
    assert last_rounds_together([]).shape == (0, 0)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=5))
def test_client_std_is_the_std_over_clients_with_the_value_of_their_group(groups):
    values, counts = zip(*groups, strict=True)
    clients = [value for value, n in groups for _ in range(n)]
    found = performance.client_std(values, counts)
    assert found.defined == bool(clients)
    if clients:
        assert found.value == pytest.approx(np.std(clients), abs=1e-12)


def test_client_std_does_not_ask_for_a_group_without_clients():
    assert performance.client_std([0.5, math.nan, 0.7], [1, 0, 1]).value == pytest.approx(0.1)
    assert not performance.client_std([0.5, math.nan], [1, 1]).defined


def test_best_round_is_over_the_rounds_that_are_known():
    assert performance.best_round([[0.5, 0.7], [0.9, math.nan], [0.4, 0.6]]).value == pytest.approx(0.6)
    assert not performance.best_round(np.empty((0, 2))).defined


@pytest.mark.parametrize("seed", range(20))
def test_areas_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    C, n = int(random.integers(2, 6)), int(random.integers(4, 60))
    p = random.integers(1, 4, (n, C)).astype(float)  # few values, so many are equal
    p /= p.sum(1, keepdims=True)
    y = random.integers(0, C, n)
    if len(set(y)) < 2:
        y[:2] = 0, 1
    found = classification(p, y, ["auc", "auc_ovr"])
    if C == 2:
        assert found["auc"] == pytest.approx(roc_auc_score(y, p[:, 1]), abs=1e-14)
        return
    there = np.unique(y)
    assert found["auc"] == pytest.approx(
        roc_auc_score(y, p, multi_class="ovo", average="macro", labels=np.arange(C)), abs=1e-14
    )
    assert found["auc_ovr"] == pytest.approx(
        roc_auc_score(y[:, None] == there, p[:, there], average="weighted"), abs=1e-14
    )
