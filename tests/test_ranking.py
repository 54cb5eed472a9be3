"""Many methods on several data sets: ranks, critical differences and the signed-rank test, against tables and published examples."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chi2, spearmanr

from equipoise.metrics.statistics import Probabilities, critical_difference, friedman, mean_ranks, signed_rank, spearman
from helpers import in_one

# J48 less naive Bayes on 54 data sets, mean accuracy in percent: the example in the documentation of baycomp.
J48 = [
    2.7, 5.83, -6.14, -0.49, 7.33, 0.07, 0.07, -1.66, 11.4, -2.87, 0.38, -10.46, -0.52, 0.0, -5.12, -3.84, 0.87, 0.71, 0.27, 11.65, -1.8, 0.0,
    -8.73, 1.43, 23.17, 2.53, 4.24, 6.88, -13.58, 3.23, -7.25, 0.9, -0.94, 1.67, -6.19, 3.0, 3.36, 3.36, 4.03, -2.04, 0.44, 3.03, 1.84, -1.25,
    4.47, 15.6, 0.46, 17.75, -5.1, -3.98, -7.98, -2.16, -0.54, -1.37,
]  # fmt: skip
# Demšar 2006, Table 6: C4.5, with m, with cf, with both, on 14 data sets; its text has the ranks and both tests.
AUC = [
    (0.763, 0.768, 0.771, 0.798), (0.599, 0.591, 0.590, 0.569), (0.954, 0.971, 0.968, 0.967), (0.628, 0.661, 0.654, 0.657),
    (0.882, 0.888, 0.886, 0.898), (0.936, 0.931, 0.916, 0.931), (0.661, 0.668, 0.609, 0.685), (0.583, 0.583, 0.563, 0.625),
    (0.775, 0.838, 0.866, 0.875), (1.000, 1.000, 1.000, 1.000), (0.940, 0.962, 0.965, 0.962), (0.619, 0.666, 0.614, 0.669),
    (0.972, 0.981, 0.9751, 0.975), (0.957, 0.978, 0.946, 0.970),
]  # fmt: skip


def test_ranks_of_the_published_example() -> None:
    ranks = mean_ranks(AUC)
    assert ranks == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert mean_ranks(-np.array(AUC), higher=False).tolist() == ranks.tolist()
    ties = 60 + 3 * 6  # t^3 - t of four equal values once, of two equal values three times
    assert friedman(AUC) == pytest.approx(chi2.sf(9.28 / (1 - ties / (14 * 60)), 3), abs=1e-3)
    assert critical_difference(4, 14, 0.1) == pytest.approx(1.12, abs=5e-3)


def test_rank_correlation_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    for n in range(3, 20):
        x, y = generator.integers(0, 6, n) / 3, generator.normal(size=n)
        assert spearman(x, y) == spearmanr(x, y).statistic
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert math.isnan(spearman([1, 2, 3], [1, math.nan, 3]))


@in_one(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_values_of_the_printed_table(methods: int, q: float) -> None:
    """Demšar 2006, Table 5a: for N = k (k + 1) / 6 the critical difference is q."""
    assert critical_difference(methods, 1) == pytest.approx(q * math.sqrt(methods * (methods + 1) / 6), abs=2e-3)


def test_twenty_methods_on_five_data_sets_show_next_to_nothing() -> None:
    assert critical_difference(20, 5) == pytest.approx(13.3, abs=0.05)
    assert critical_difference(20, 25) == pytest.approx(5.93, abs=0.03)


def test_pairs_beyond_the_difference_are_those_of_scikit_posthocs() -> None:
    posthocs = pytest.importorskip("scikit_posthocs")
    scores = np.random.default_rng(3).normal(size=(12, 6)) + np.arange(6) * 0.6
    p, ranks = posthocs.posthoc_nemenyi_friedman(scores).to_numpy(), mean_ranks(scores)
    pairs = list(combinations(range(6), 2))
    beyond = [abs(ranks[i] - ranks[j]) > critical_difference(6, 12) for i, j in pairs]
    assert beyond == [p[i, j] < 0.05 for i, j in pairs]
    assert any(beyond)
    assert not all(beyond)
    i, j = pairs[3]
    assert critical_difference(6, 12, p[i, j]) == pytest.approx(abs(ranks[i] - ranks[j]), abs=1e-6)


@in_one("scores", [[[1, 2, 3]], [[1, 2], [2, 1]], [[1, 1, 1], [2, 2, 2]]])
def test_what_has_no_ranks_to_compare_has_no_p(scores: list[list[float]]) -> None:
    assert math.isnan(friedman(scores))


def test_signed_rank_of_the_published_example() -> None:
    """Baycomp documents (0.23124, 0.00666, 0.7621), by 50,000 samples."""
    assert signed_rank(J48, 1) == pytest.approx((0.231, 0.007, 0.762), abs=6e-3)


def test_signed_rank_is_the_double_loop() -> None:
    differences, region, samples = [0.4, 3.0, 2.0, -1.2], 1.0, 300
    z, counted = [0.0, *differences], np.zeros(3)
    for weights in np.random.default_rng(5).dirichlet([0.5, 1, 1, 1, 1], samples):
        shares = [0.0, 0.0, 0.0]
        for i, a in enumerate(z):
            for j, b in enumerate(z):
                mean, product = (a + b) / 2, weights[i] * weights[j]
                if abs(mean) == region:  # on the border: half to each side
                    shares[1] += product / 2
                    shares[0 if mean < 0 else 2] += product / 2
                else:
                    shares[0 if mean < -region else 2 if mean > region else 1] += product
        counted[int(np.argmax(shares))] += 1
    assert signed_rank(differences, region, samples=samples, seed=5) == pytest.approx(counted / samples)


def test_exchanging_both_methods_exchanges_the_probabilities() -> None:
    for region in (0.0, 1.0):
        there, back = (signed_rank([sign * d for d in J48[:7]], region, samples=2000) for sign in (1, -1))
        assert there == back[::-1]
        assert sum(there) == pytest.approx(1)
    assert signed_rank([0.0] * 5, 1.0) == Probabilities(0.0, 1.0, 0.0)
    assert signed_rank([0.0] * 5, 0.0, samples=100).worse == 0.5
    assert signed_rank([9.0] * 5, 1.0).better > 0.99


def test_ties_share_a_rank() -> None:
    assert mean_ranks([[3, 3, 1], [2, 1, 1]]).tolist() == [1.25, 2.0, 2.75]
