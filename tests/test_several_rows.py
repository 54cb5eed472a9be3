"""Intervals of gaps: ratios, means of numbers, calibration, and people with several rows; against statsmodels, SciPy and simulation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from hypothesis import given, settings
from scipy.stats import ttest_ind
from statsmodels.stats.proportion import confint_proportions_2indep

import equipoise as eq
from equipoise.metrics.groups import RATES, by_person, class_counts, effective, moments, variance
from equipoise.metrics.intervals import log_ratio, means_gap
from equipoise.records.meta import TOGETHER
from helpers import rate_gaps
from test_measures_of_people import share


def table(people: int, rows: int, seed: int, *, gap: float = 0.0, effect: float = 0.0) -> pd.DataFrame:
    """So many rows of each person, whose outcomes are alike if there is an effect of the person."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), rows)
    sex, own = np.arange(people) % 2, rng.normal(size=people) * effect
    p = 1 / (1 + np.exp(-(own + rng.normal(size=(rows, people)) + gap * sex).T.ravel()))
    y = rng.random(people * rows) < 0.5
    return pd.DataFrame({"y": y.astype(int), "p": p, "pred": (p > 0.5).astype(int), "sex": sex[who], "who": who})


def measured(frame: pd.DataFrame, **options: Any) -> dict[str, Any]:
    given_ = {"label": "y", "group": "sex", "positive": "1", "prediction": "pred", "least": 10} | options
    treated: dict[str, Any] = eq.audit(frame, **given_).document["people"]["sex"]["treated"]
    return treated


@given(share, share)
@settings(max_examples=60)
def test_the_interval_of_a_ratio_is_that_of_statsmodels(first: tuple[int, int], second: tuple[int, int]) -> None:
    (x, m), (y, n) = first, second
    theirs = confint_proportions_2indep(x, m, y, n, method="log-adjusted", compare="ratio", correction=False)
    assert log_ratio(x / m, m, y / n, n) == pytest.approx(theirs)


def test_gaps_of_numbers_have_the_intervals_of_welch() -> None:
    """With the root of the mean square by the delta method; of three groups the pair that attains the gap, corrected for three pairs."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 240)
    y = rng.normal(50, 9, 240)
    frame = pd.DataFrame({"y": y, "pred": y + rng.normal(group, 1 + group), "sex": group})
    treated = measured(frame, task="regression", positive=None)
    error = frame["pred"] - y
    for key, values in (("error", error), ("mae", error.abs()), ("prediction", frame["pred"])):
        means = values.groupby(group).mean()
        high, low = values[group == means.idxmax()], values[group == means.idxmin()]
        ends = ttest_ind(high, low, equal_var=False).confidence_interval(1 - 0.05 / 3)
        assert treated["intervals"][f"{key}_gap"] == pytest.approx([max(0, ends.low), ends.high])
    square = error**2
    roots = np.sqrt(square.groupby(group).mean())
    spread = (square.groupby(group).sem() / (2 * roots)) ** 2
    low, high = treated["intervals"]["rmse_gap"]
    assert low < roots.max() - roots.min() < high
    half = np.sqrt(spread[roots.idxmax()] + spread[roots.idxmin()])
    assert 2.35 * half < (high - low) / 2 < 2.55 * half  # Student's t at 1 - 0.05 / 3


def test_calibration_and_selection_ratio_have_intervals() -> None:
    frame = table(300, 1, 1, gap=1.0)
    treated = measured(frame, probability="p")
    bias = 100 * (frame["p"] - frame["y"])
    ends = ttest_ind(bias[frame["sex"] == 1], bias[frame["sex"] == 0], equal_var=False).confidence_interval()
    assert treated["intervals"]["calibration_gap"] == pytest.approx([max(0, ends.low), ends.high], abs=1e-3)
    of = frame.groupby("sex")["pred"].agg(["sum", "count"]).to_numpy()
    theirs = confint_proportions_2indep(*of[0], *of[1], method="log-adjusted", compare="ratio", correction=False)
    assert treated["intervals"]["demographic_parity_ratio"] == pytest.approx([100 * end for end in theirs])


@pytest.mark.parametrize("task", [None, "regression"])
def test_rows_of_a_person_count_together(task: str | None) -> None:
    """Each row five times is worth as much as once; without the column of people intervals are narrower."""
    once = table(160, 1, 2, gap=0.7)
    five = once.loc[once.index.repeat(5)].reset_index(drop=True)
    options: dict[str, Any] = {"task": task, "positive": None, "prediction": "p"} if task else {"probability": "p"}
    first, again, rows = (
        measured(frame, **options)["intervals"]
        for frame in (once.drop(columns="who"), five.rename(columns={"who": "subject"}), five.drop(columns="who"))
    )
    widths = [{key: np.ptp(ends) for key, ends in each.items() if ends} for each in (first, again, rows)]
    assert len(widths[0]) >= 4
    for key, width in widths[0].items():
        assert widths[1][key] == pytest.approx(width, rel=0.02)
        assert widths[2][key] < 0.75 * width


def test_rows_of_a_person_count_together_in_runs(tmp_path: Path) -> None:
    """In test sets of Python, and in those of a table with a column of people."""
    draw = torch.Generator().manual_seed(0)

    def samples(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, generator=draw)
        s = torch.arange(n) % 2
        return x, (x[:, 0] + s + torch.randn(n, generator=draw) > 0).long(), s

    train, tested = [samples(60) for _ in range(2)], samples(200)
    rows = tuple(part.repeat_interleave(5, 0) for part in tested)
    given_: Any = {"attributes": {"sex": ["f", "m"]}, "classes": ["no", "yes"]}
    net, ends = torch.nn.Linear(3, 2), []
    for test in (tested, eq.OfPeople(rows, np.arange(1000) // 5), rows):
        fed = eq.Federation(net, train, tests={"all": test}, **given_)
        treated: Any = fed.fit(1, progress=False).people(1)["sex"]["treated"]
        ends.append(treated["intervals"])
        assert (TOGETHER in fed.header) == isinstance(test, eq.OfPeople)
    for key in ("equal_opportunity", "demographic_parity", "demographic_parity_ratio", "calibration_gap"):
        widths = [np.ptp(each[key]) for each in ends]
        assert widths[1] == pytest.approx(widths[0], rel=0.02)
        assert widths[2] < 0.75 * widths[0]
    visits = table(120, 4, 6).rename(columns={"who": "subject", "y": "label", "p": "dose", "sex": "group"})
    visits.drop(columns="pred").assign(client=visits["subject"] % 3).to_csv(tmp_path / "t.csv", index=False)
    made = eq.scenario("own", 0, data=tmp_path / "t.csv")
    sets, own = made.test_sets
    small = eq.network("mlp", made.shape, 2, hidden=[2])
    fed = eq.Federation(
        small,
        made.holders,
        tests=sets,
        client_tests=own,
        attributes=made.attributes,
        names=made.client_names,
        measures=["accuracy", "rates"],
    )
    fed.fit(1, progress=False)
    by = fed.records[-1]["by"]["groups"]
    for name, (sums,) in by.items():
        people = {*sets[name].people.tolist()}  # type: ignore[union-attr]
        assert sum(sums["persons"]) == len(people)
        assert sum(map(sum, sums["true"])) == 4 * len(people)
    assert TOGETHER in fed.header
    people_of = fed.history.people(1)["group"]["treated"]
    by_group = fed.history.group_fairness(1)
    assert by_group is not None
    assert people_of is not None
    assert {*by_group["groups"]} == {"0", "1"} == {*people_of["groups"]}  # the test sets are the groups
    assert by_group["intervals"]["demographic_parity"] == pytest.approx(people_of["intervals"]["demographic_parity"])


def test_variances_are_those_of_cluster_robust_regression() -> None:
    """People with one to five rows, also of a rate of some of the rows; moments of parts add up."""
    rng = np.random.default_rng(3)
    frame = table(90, 5, 3, effect=1.5)[rng.random(450) < 0.5]
    y, pred, who, sex = (frame[name].to_numpy() for name in ("y", "pred", "who", "sex"))
    one, hit = np.ones(len(y)), (y == pred)
    parts = np.stack([y * pred, y, pred, one, hit], -1).astype(float)
    people, sums = moments(*by_person(parts, sex, who), 2)
    north = who % 3 == 0
    of_parts = [moments(*by_person(parts[rows], sex[rows], who[rows]), 2) for rows in (north, ~north)]
    assert np.add(*(each[0] for each in of_parts)).tolist() == people
    assert np.allclose(sum(each[1] for each in of_parts), sums)
    for a in (0, 1):
        rows = sex == a
        for key, values in (("selection_rate", pred), ("accuracy", hit)):
            fit = sm.OLS(values[rows].astype(float), one[rows]).fit(
                cov_type="cluster", cov_kwds={"groups": who[rows]}, use_t=False
            )
            mean = values[rows].mean()
            ours = variance(sums[a], people[a], rows.sum(), mean, *RATES[key])
            assert ours == pytest.approx(float(fit.bse[0]) ** 2)
            worth = effective(sums[a], people[a], rows.sum(), mean, key)
            assert worth == pytest.approx(min(rows.sum(), mean * (1 - mean) / ours))
        rate = pred[rows & (y == 1)].mean()
        residuals = [
            sum(y[k] * (pred[k] - rate) for k in np.flatnonzero(rows & (who == person))) for person in {*who[rows]}
        ]
        m, total = people[a], y[rows].sum()
        expected = m / (m - 1) * np.square(residuals).sum() / total**2
        assert variance(sums[a], m, total, rate, *RATES["tpr"]) == pytest.approx(expected)
    assert effective(np.diag([0, 9, 0, 9, 0.0]), 1, 3, 1.0, "tpr") == 1  # three rows of one person, all recognised


def test_of_independent_rows_nothing_changes() -> None:
    """Nor if people with one row each are named: their rates are worth what they are of."""
    frame = table(120, 1, 4)
    groups: dict[str, Any] = {}
    for a in (0, 1):
        rows = frame[frame["sex"] == a]
        groups[str(a)] = class_counts(rows["y"], rows["pred"], 2)
    for named in (frame.drop(columns="who"), frame.rename(columns={"who": "subject"})):
        ends = measured(named)["intervals"]["equal_opportunity"]
        assert ends == pytest.approx(rate_gaps(groups)["equal_opportunity"].percent)


def test_intervals_hold_the_truth_where_people_have_several_rows() -> None:
    """Two groups of equal rates: with the people known the interval begins above 0 in about 1 of 20 cases, without more often."""
    above = np.zeros(2)
    for seed in range(80):
        frame = table(80, 6, seed, effect=2.0)
        for k, name in enumerate(("subject", "other")):
            ends = measured(frame.rename(columns={"who": name}))["intervals"]["demographic_parity"]
            above[k] += ends[0] > 0
    assert above[0] <= 9
    assert above[1] >= 16


def test_a_gap_of_means_has_no_interval_if_the_variance_of_a_group_is_not_known() -> None:
    assert means_gap({"a": (1.0, math.nan, 1), "b": (2.0, 0.1, 40)}).ends is None
