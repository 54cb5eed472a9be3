"""Gaps between groups of people beyond the four of fairlearn, their intervals, and what few people cannot show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import ttest_ind
from statsmodels.stats.proportion import confint_proportions_2indep

import equipoise as eq
from equipoise.core.task import CLASSIFICATION
from equipoise.metrics import class_counts, parity
from equipoise.metrics.calibration import calibration_of_sums, reliability, sums_of_scores
from equipoise.metrics.groups import OF_CLASS
from equipoise.metrics.intervals import newcombe, wilson
from equipoise.report import html
from equipoise.report.layout import sheets
from equipoise.report.statistics import Comparison
from helpers import rate_gaps
from test_group_rates import SICK, clinic, run
from test_people import history

share = st.tuples(st.integers(1, 200), st.floats(0, 1)).map(lambda drawn: (round(drawn[0] * drawn[1]), drawn[0]))


@given(share, share)
@settings(max_examples=60)
def test_newcombe_is_that_of_statsmodels(first: tuple[int, int], second: tuple[int, int]) -> None:
    (x, m), (y, n) = first, second
    theirs = confint_proportions_2indep(x, m, y, n, method="newcomb", compare="diff", correction=False)
    assert newcombe(x / m, wilson(x / m, m), y / n, wilson(y / n, n)) == pytest.approx(theirs, abs=1e-9)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 1)), min_size=8, max_size=60),
    st.integers(1, 9),
)
@settings(max_examples=60)
def test_gaps_hold_whatever_the_order_and_the_names(drawn: list[tuple[str, int, int]], least: int) -> None:
    """Sums of parts give the same; names do not count; every interval holds its gap; a rate counts with enough in its own denominator."""

    def counted(names: dict[str, str]) -> dict[str, dict[str, list[int]]]:
        return {
            names[g]: class_counts([y for a, y, _ in drawn if a == g], [p for a, _, p in drawn if a == g], 2)
            for g in sorted({g for g, _, _ in drawn}, key=names.__getitem__)
        }

    groups, turned = counted({g: g for g in "abc"}), counted(dict(zip("abc", "cab", strict=True)))
    ours, theirs = parity(groups, least=least), parity(turned, least=least)
    for key in (*OF_CLASS, "accuracy", "worst_recall"):
        assert ours.gap(key)[0].defined == theirs.gap(key)[0].defined
        if ours.gap(key).difference.defined:
            mine, other = ([value.value for value in fairness.gap(key)[:3]] for fairness in (ours, theirs))
            assert mine == pytest.approx(other, nan_ok=True)
    about = {
        "tpr": lambda y, p: y == 1,
        "fpr": lambda y, p: y == 0,
        "ppv": lambda y, p: p == 1,
        "npv": lambda y, p: p == 0,
    }
    for name, rates in ours.rates.items():
        for key, among in about.items():
            n = sum(1 for g, y, p in drawn if g == name and among(y, p))
            assert rates.of(key, 1).defined == (n >= least)
    for key, ends in rate_gaps(groups, least=least).items():
        if key == "demographic_parity_ratio":
            ratio = ours.gap("selection_rate").ratio
            assert ratio.defined or np.isnan(ends.low)
            assert np.isnan(ends.low) or 0 <= ends.low <= ratio.value + 1e-12 <= ends.high + 2e-12 <= 1 + 3e-12
            continue
        value = getattr(ours, "accuracy" if key == "accuracy_gap" else key)
        assert np.isfinite(ends.low) == value.defined
        assert not value.defined or 0 <= ends.low <= value.value + 1e-12 <= ends.high + 2e-12


def test_intervals_of_gaps_hold_the_truth() -> None:
    """Three groups of equal rates: the interval begins at 0 in about 95 % of the cases."""
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(200):
        groups = {g: class_counts(np.ones(60, int), rng.random(60) < 0.7, 2) for g in "abc"}
        above += rate_gaps(groups)["equal_opportunity"].low > 0
    assert above <= 16


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.integers(-1, 2)), min_size=1, max_size=80))
@settings(max_examples=40)
def test_calibration_from_sums_is_that_of_the_samples(drawn: list[tuple[float, bool, int]]) -> None:
    p, y, a = (np.array(each) for each in zip(*drawn, strict=True))
    half = len(p) // 2
    sums = sums_of_scores(p[half:], y[half:], a[half:], 3)
    if half:
        sums = sums + sums_of_scores(p[:half], y[:half], a[:half], 3)
    for k in range(3):
        error, large = calibration_of_sums(sums[k])
        inside = a == k
        assert error.defined == large.defined == inside.any()
        assert not calibration_of_sums(sums[k], int(inside.sum()) + 1)[0].defined
        if inside.any():
            bins = reliability(p[inside], y[inside])
            assert error.value == pytest.approx(sum(b.n * abs(b.score - b.share) for b in bins) / inside.sum())
            assert large.value == pytest.approx(p[inside].mean() - y[inside].mean())


@pytest.mark.parametrize(
    ("sick", "said"), [(12, "12 of class sick in women"), (5, "< 10 of class sick in women"), (100, "")]
)
def test_few_people_show_nothing(sick: int, said: str) -> None:
    drawn = [x for k, x in enumerate(clinic()) if x[:2] != ("women", 1) or k < sick]
    found = Comparison.of([run(drawn, **SICK)])
    (sheet,) = (sheet for sheet in sheets(found) if sheet.name == "group-fairness")
    text = " ".join(sheet.explanations)
    assert ("With fewer than 30 people in a group" in text and f"equal opportunity ({said})" in text) == bool(said)
    assert ("read the intervals, not the numbers: equal opportunity" in text) == (sick == 12)  # there are some
    assert "accuracy gap (" not in text


# inside every site
def site(rates: tuple[float, float], n: int = 200) -> tuple[list[int], list[int], list[int]]:
    """Predictions, classes and sexes of people of whom everybody is of the class, and these shares are recognised."""
    predicted = [int(k < n * rate) for rate in rates for k in range(n)]
    return predicted, [1] * (2 * n), [0] * n + [1] * n


def legend(found: Comparison) -> str:
    return " ".join(text for sheet in sheets(found) if sheet.name == "people-1-gaps" for text in sheet.explanations)


def test_a_fair_whole_does_not_hide_unfair_sites() -> None:
    """One site favours women as much as the other favours men."""
    found = Comparison.of([history([{"north": site((0.8, 0.5)), "south": site((0.5, 0.8))}], positive="yes")])
    inside = found["people"]["sex"]["methods"][0]
    assert inside["equal_opportunity"]["mean"] == 0
    assert inside["largest"]["equal_opportunity"] == {
        "gap": {"mean": pytest.approx(30), "std": None, "ci95": None},
        "worst": {"north": 1},
        "sites": 2,
        "few": [0, 0],
        "larger": {"north": 1, "south": 1},
    }
    assert "hides sites with a larger one in equal opportunity, beyond chance: m in north and south." in legend(found)
    page = html.render(found)
    assert "Inside every site by sex" in page
    fair = Comparison.of([history([{"north": site((0.6, 0.5)), "south": site((0.6, 0.5))}], positive="yes")])
    assert "hides" not in legend(fair)
    assert "equal opportunity 10.0 in north" in legend(fair)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("n", [9, 12, 30])
def test_sites_of_few_have_no_gap(n: int, own: bool) -> None:
    sets: Any = {"north": site((0.8, 0.5)), "south": site((0.9, 0.1), n)}
    meta: Any = {"client_names": ["north", "south"], "client_tests": True} if own else {}
    run_ = history([sets, sets], [*sets.values()] if own else None, positive="yes", **(meta | {"least_group": 10}))
    found = run_.people(2)["sex"]["sites"]
    assert found["north"]["gaps"] == {"demographic_parity": pytest.approx(30), "equal_opportunity": pytest.approx(30)}
    south = found["south"]
    assert (south["gaps"]["equal_opportunity"] is None) == (n < 30)
    assert (south["groups"]["f"]["n"], south["groups"]["f"]["tpr"] is None) == ((None, True) if n < 10 else (n, False))
    few = "1 of 2 sites has too few people"
    assert (few in legend(Comparison.of([run_]))) == (n < 30)


def test_of_many_sites_no_count_by_site_is_shown() -> None:
    found = history([{f"site {k}": site((0.8, 0.5), 40) for k in range(21)}], positive="yes").people(1)["sex"]["sites"]
    groups = [group for inside in found.values() for group in inside["groups"].values()]
    assert len(groups) == 42
    assert {group["n"] for group in groups} == {group["of_class"] for group in groups} == {None}
    assert all(group["tpr"] is not None for group in groups)


def test_sites_are_those_of_a_plain_loop() -> None:
    """Over rounds; and its interval is for all sites together."""
    rng = np.random.default_rng(0)
    y, s = ({name: rng.integers(0, 2, n) for name, n in (("a", 150), ("b", 240))} for _ in range(2))
    rounds: Any = [{name: (rng.integers(0, 2, len(y[name])), y[name], s[name]) for name in y} for _ in range(3)]
    found = history(rounds, positive="yes").people(3)["sex"]["sites"]
    for name, inside in found.items():
        for k, value in enumerate("fm"):
            those = [p[s[name] == k].mean() for p, _, _ in (of[name] for of in rounds)]
            assert inside["groups"][value]["selection_rate"] == pytest.approx(100 * np.mean(those))
        counts = {
            value: class_counts(np.tile(y[name][s[name] == k], 3), np.concatenate([of[name][0][s[name] == k] for of in rounds]), 2)
            for k, value in enumerate("fm")
        }  # fmt: skip
        assert inside["gaps"]["equal_opportunity"] == pytest.approx(100 * parity(counts).equal_opportunity.value)
        ends = rate_gaps(counts, rounds=3, level=1 - 0.05 / 2)["equal_opportunity"]
        assert inside["intervals"]["equal_opportunity"] == pytest.approx([100 * ends.low, 100 * ends.high])


def test_people_without_a_positive_class_have_no_sites() -> None:
    three = history([{"a": site((0.8, 0.5))}], classes=["x", "y", "z"])
    assert three.people()["sex"]["sites"] == {}


# calibration
def test_a_run_records_what_calibration_follows_from() -> None:
    """Of two classes; what is shown is that of the samples."""
    draw = torch.Generator().manual_seed(0)

    def people(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, generator=draw)
        s = torch.randint(-1, 2, (n, 1), generator=draw)
        return x, (x[:, 0] + torch.randn(n, generator=draw) > 0).long(), s

    tests = {"a": people(200), "b": people(150)}
    names: Any = {"attributes": {"sex": ["f", "m"]}, "classes": ["no", "yes"]}
    fed = eq.Federation(torch.nn.Linear(3, 2), [people(60) for _ in range(2)], tests=tests, **names)
    treated: Any = fed.fit(1, progress=False).people(1)["sex"]["treated"]
    x, y, s = (torch.cat(parts) for parts in zip(*tests.values(), strict=True))
    p = fed.predict_proba(x)[:, 1]
    for k, sex in enumerate("fm"):
        inside = s[:, 0] == k
        bias = 100 * float(p[inside].double().mean() - y[inside].double().mean())
        assert treated["groups"][sex]["bias"] == pytest.approx(bias, abs=1e-4)
    gap = abs(treated["groups"]["f"]["bias"] - treated["groups"]["m"]["bias"])
    assert treated["calibration_gap"] == pytest.approx(gap)
    text = legend(Comparison.of([fed.history]))
    assert f"calibration gap {gap:.1f}." in text
    assert "Calibration of fedavg" in text


def test_probabilities_that_are_no_numbers_count_in_no_calibration() -> None:
    nan = torch.tensor([math.nan, 0.5, 0.25])
    zeros = torch.zeros(3, dtype=torch.long)
    (sums,) = CLASSIFICATION.people(zeros, zeros, zeros[:, None], 2, nan)
    assert np.asarray(sums["scores"])[0].sum(1).tolist() == [2, 0.75, 0]


@pytest.mark.parametrize("own", [False, True])
def test_errors_inside_sites_are_those_of_a_plain_loop(own: bool) -> None:
    """With too few women in the south for a gap there, and intervals for the one site that has it."""
    rng = np.random.default_rng(0)
    sexes = {"north": np.arange(80) % 2, "south": (np.arange(60) < 20).astype(int)}
    sets: Any = {
        name: (rng.normal(size=len(s)) + (3 * s if name == "north" else 0), rng.normal(size=len(s)), s)
        for name, s in sexes.items()
    }
    meta: Any = {"client_names": [*sets], "client_tests": True} if own else {}
    run_ = history([sets, sets], [*sets.values()] if own else None, task="regression", **(meta | {"least_group": 10}))
    found = run_.people(2)["sex"]["sites"]
    for name, (p, y, s) in sets.items():
        errors = [(p - y)[s == k] for k in (0, 1)]
        for value, of in zip("fm", errors, strict=True):
            assert found[name]["groups"][value] == {
                "n": len(of),
                "mae": pytest.approx(np.abs(of).mean()),
                "error": pytest.approx(of.mean()),
            }
        large = min(map(len, errors)) >= 30
        expected = {
            "mae_gap": abs(np.subtract(*(np.abs(of).mean() for of in errors))),
            "error_gap": abs(np.subtract(*(of.mean() for of in errors))),
        }
        assert found[name]["gaps"] == (pytest.approx(expected) if large else dict.fromkeys(expected))
        ends = ttest_ind(errors[1], errors[0], equal_var=False).confidence_interval()
        assert found[name]["intervals"]["error_gap"] == (pytest.approx([ends.low, ends.high]) if large else None)
    text = legend(Comparison.of([run_]))
    assert "mean error gap" in text.partition("Largest gap inside a site")[2]
    assert "1 of 2 sites has too few people" in text
    assert "hides sites with a larger one in mean error gap, beyond chance: m in north." in text
    page = html.render([run_])
    assert "Inside every site by sex" in page
    assert "mean error gap" in page[page.index("Inside every site by sex") :]


def test_rounds_of_an_earlier_version_join_those_of_this_one() -> None:
    """Which recorded less: what only some rounds have is left out, and the gaps are the same."""
    rng = np.random.default_rng(1)
    y, s = rng.integers(0, 2, (2, 120))
    sets: Any = [{name: (rng.integers(0, 2, 120), y, s) for name in "ab"} for _ in range(2)]
    plain, mixed = (history(sets, positive="yes") for _ in range(2))
    for sums in mixed.records[1]["by"]["groups"].values():
        sums[0] |= {"scored": [60, 60], "bias": [[[60, 0], [0, 3]]] * 2}  # type: ignore[typeddict-item]
    assert mixed.people(2) == plain.people(2)
    numbers: Any = [{"a": (rng.normal(size=120), rng.normal(size=120), s)} for _ in range(2)]
    old = history(numbers, task="regression")
    new = old.people(2)["sex"]["treated"]
    for key in ("persons", "moments"):
        old.records[0]["by"]["groups"]["a"][0].pop(key)  # type: ignore[misc]
    early = old.people(2)["sex"]["treated"]
    assert early is not None
    assert new is not None
    assert {*early["intervals"].values()} == {None}
    assert {**early, "intervals": None} == {**new, "intervals": None}
