"""What a comparison says of the gaps between people: against fairlearn's gaps, SciPy's paired test and Holm's correction of statsmodels."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
from fairlearn.metrics import demographic_parity_difference, equal_opportunity_difference
from scipy.stats import ttest_rel
from statsmodels.stats.multitest import multipletests

from equipoise.records.history import History
from equipoise.report import html
from equipoise.report.comparisons import Comparison
from test_people import history

GAPS = {"equal opportunity": equal_opportunity_difference, "demographic parity": demographic_parity_difference}
RATES = {  # of people of the class and others, women first: how many are taken for the class
    "plain": (0.4, 0.8, 0.2, 0.4),
    "fair": (0.6, 0.6, 0.3, 0.3),
    "same": (0.4, 0.8, 0.2, 0.4),
    "parity": (0.8, 0.2, 0.1, 0.7),
}


def drawn(rates: tuple[float, ...], seed: int, n: int = 400) -> tuple[Any, Any, Any]:
    """Predictions, labels and sexes of people."""
    rng = np.random.default_rng([seed, *(int(100 * rate) for rate in rates)])
    y, s = np.repeat([1, 1, 0, 0], n), np.repeat([0, 1, 0, 1], n)
    return (rng.random(4 * n) < np.repeat(rates, n)).astype(int), y, s


def compared(names: list[str], seeds: int) -> tuple[dict[str, list[History]], dict[str, dict[str, list[float]]]]:
    """Runs of methods, and the gaps of every seed in points."""
    sets = {name: [drawn(RATES[name], seed + 10 * k) for seed in range(seeds)] for k, name in enumerate(names)}
    runs = {
        name: [history([{"all": one}], label=name, seed=k, positive="yes") for k, one in enumerate(each)]
        for name, each in sets.items()
    }
    gaps = {
        title: {n: [100 * gap(y, p, sensitive_features=s) for p, y, s in each] for n, each in sets.items()}
        for title, gap in GAPS.items()
    }
    return runs, gaps


def changed(values: dict[str, list[float]], first: str) -> dict[str, int]:
    """Of each method against the first one, -1 or 1 if its gap is shown to be smaller or larger: of all pairs that a column tests."""
    means = {name: np.mean(each) for name, each in values.items()}
    leading = min(means, key=means.__getitem__)
    pairs = [(a, b) for a, b in combinations(values, 2) if {a, b} & {first, leading}]
    holm = multipletests([ttest_rel(values[a], values[b]).pvalue for a, b in pairs], method="holm")[1]
    shown = dict(zip(pairs, holm, strict=True))
    return {
        name: int(np.sign(means[name] - means[first])) * (shown[first, name] < 0.05) for name in values if name != first
    }


def test_the_verdict_says_what_happened_to_both_gaps() -> None:
    runs, gaps = compared([*RATES], 6)
    found = Comparison.of([run for each in runs.values() for run in each])
    ours = {title: changed(values, "plain") for title, values in gaps.items()}
    assert ours == {
        "equal opportunity": {"fair": -1, "same": 0, "parity": 1},
        "demographic parity": {"fair": -1, "same": 0, "parity": -1},
    }
    said = found.verdict.partition("By sex, ")[2]
    both = {name: [f"{np.mean(gaps[title][name]):.1f}" for title in GAPS] for name in RATES}
    first = found["people"]["sex"]["methods"][0]
    ends = [first["intervals"][key] for key in ("equal_opportunity", "demographic_parity")]
    noise = [f"[{low:.1f}, {high:.1f}]" for low, high in ends]
    expected = (
        f"plain's gaps are {both['plain'][0]} points in equal opportunity and {both['plain'][1]} points in demographic parity; the people of one "
        f"test set alone leave {noise[0]} and {noise[1]} (95 % interval). Paired over seeds (Holm, p < 0.05), in brackets the gaps "
        f"in equal opportunity and demographic parity: both gaps are smaller with fair "
        f"({both['fair'][0]} and {both['fair'][1]}); no change is shown with same ({both['same'][0]} and {both['same'][1]}); the gap in equal "
        f"opportunity is larger and the gap in demographic parity is smaller with parity ({both['parity'][0]} and {both['parity'][1]})."
    )
    assert said.replace("\u00a0", " ") == expected
    spread = [np.std(gaps[title]["plain"], ddof=1) for title in GAPS]
    assert all(
        0.5 < (high - low) / (4 * sd) < 2 for (low, high), sd in zip(ends, spread, strict=True)
    )  # seeds draw new people here
    page = re.sub(r"(\s*<[^>]*>\s*)+", " ", html.render(found))
    assert "both gaps are smaller with fair" in page.partition("Who has what")[0]


def test_one_seed_tests_nothing_and_few_people_have_no_gap() -> None:
    runs, gaps = compared(["plain", "fair"], 1)
    both = " and ".join(f"{gaps[title]['fair'][0]:.1f}" for title in GAPS)
    verdict = Comparison.of([runs["plain"][0], runs["fair"][0]]).verdict
    assert verdict.endswith(f"They are {both} with fair, and one seed tests no difference.")
    few = [history([{"all": ([1, 0] * 3, [1] * 6, [0, 0, 0, 1, 1, 1])}], least_group=10, positive="yes", label="m")]
    assert Comparison.of(few).verdict.endswith(
        "By sex, no gap in equal opportunity or demographic parity is estimable: too few people."
    )
    one_known = [0] * 40 + [1] * 40
    part = Comparison.of([history([{"a": (one_known, [1] * 5 + [0] * 75, one_known)}], least_group=10, positive="yes")])
    assert (
        "gaps are not estimable in equal opportunity (< 10 of class yes in f) and 100.0 points in demographic parity"
        in part.verdict
    )


def test_numbers_to_predict_have_two_gaps_too() -> None:
    rng = np.random.default_rng(0)
    y, s = rng.normal(size=90), rng.integers(0, 2, 90)
    p = y + rng.normal(s, 0.1)
    said = Comparison.of([history([{"all": (p, y, s)}], task="regression")]).verdict
    assert re.search(
        r"By sex, m's gaps are [\d.]+ in mean error and [\d.]+ in MAE; the people of one test set alone leave \[-?[\d.−]+, [\d.]+\] and \[-?[\d.−]+, [\d.]+\] \(95",
        said,
    ), said
