"""Fairness between groups: counts, rates and gaps, what is recorded of them, and where they are shown."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairlearn import metrics as fairlearn
from hypothesis import given, settings, strategies as st
from sklearn.metrics import confusion_matrix, precision_score, recall_score

import equipoise as eq
from equipoise import report
from equipoise.federation.history import History
from equipoise.metrics import class_counts, classification, parity, rates_of
from equipoise.records.record import line
from equipoise.report import layout
from helpers import in_one

samples = st.lists(st.tuples(st.sampled_from("fmx"), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=80)


def by_group(drawn: list[tuple[str, int, int]], C: int = 3) -> dict[str, dict[str, list[int]]]:
    names = sorted({g for g, _, _ in drawn})
    return {
        name: class_counts([y for g, y, _ in drawn if g == name], [p for g, _, p in drawn if g == name], C)
        for name in names
    }


@given(samples)
def test_counts_are_those_of_scikit_learn(drawn: list[tuple[str, int, int]]) -> None:
    _, y, predicted = zip(*drawn, strict=True)
    matrix = confusion_matrix(y, predicted, labels=range(3))
    found = class_counts(y, predicted, 3)
    assert found == {
        "right": matrix.diagonal().tolist(),
        "true": matrix.sum(1).tolist(),
        "chosen": matrix.sum(0).tolist(),
    }
    rates = rates_of(found)
    recall = recall_score(y, predicted, labels=range(3), average=None, zero_division=np.nan)
    assert [value.value for value in rates.tpr] == pytest.approx(recall.tolist(), nan_ok=True)
    assert rates.accuracy.value == pytest.approx(matrix.trace() / matrix.sum())


@given(samples)
@settings(max_examples=100)
def test_gaps_by_a_naive_loop(drawn: list[tuple[str, int, int]]) -> None:
    """As fairlearn defines them, one class against the others, but for rates of nothing, which are left out."""

    def gap(rates: list[float | None]) -> float | None:
        known = [rate for rate in rates if rate is not None]
        return max(known) - min(known) if len(known) > 1 else None

    def share(of: list[bool]) -> float | None:
        return sum(of) / len(of) if of else None

    names = sorted({g for g, _, _ in drawn})
    opportunity, odds, selected = [], [], []
    for c in range(3):
        tpr = gap([share([p == c for g, y, p in drawn if g == name and y == c]) for name in names])
        fpr = gap([share([p == c for g, y, p in drawn if g == name and y != c]) for name in names])
        opportunity.append(tpr)
        odds.append(None if tpr is None or fpr is None else max(tpr, fpr))
        selected.append(gap([share([p == c for g, y, p in drawn if g == name]) for name in names]))
    found = parity(by_group(drawn))
    for value, expected in (
        (found.equal_opportunity, opportunity),
        (found.equalised_odds, odds),
        (found.demographic_parity, selected),
        (found.accuracy, [gap([share([y == p for g, y, p in drawn if g == name]) for name in names])]),
    ):
        known = [number for number in expected if number is not None]
        assert value.defined == bool(known)
        assert not known or value.value == pytest.approx(max(known))


def test_gaps_are_those_of_fairlearn() -> None:
    """Where every group has samples of every class; fairlearn takes a rate of nothing for 0."""
    precision = fairlearn.make_derived_metric(metric=precision_score, transform="difference")
    draw = np.random.default_rng(0)
    for _ in range(5):
        y, predicted, group = draw.integers(0, 2, 90), draw.integers(0, 2, 90), draw.choice(list("abc"), 90)
        found = parity(by_group(list(zip(group.tolist(), y.tolist(), predicted.tolist(), strict=True)), 2))
        for value, theirs in (
            (found.demographic_parity, fairlearn.demographic_parity_difference),
            (found.equal_opportunity, fairlearn.equal_opportunity_difference),
            (found.equalised_odds, fairlearn.equalized_odds_difference),
            (found.accuracy, fairlearn.accuracy_score_difference),
            (found.gap("selection_rate").ratio, fairlearn.demographic_parity_ratio),
            (found.gap("tpr").ratio, fairlearn.true_positive_rate_ratio),
            (found.predictive_parity, precision),
            (found.gap("npv").difference, partial(precision, pos_label=0)),
        ):
            assert value.value == pytest.approx(theirs(y, predicted, sensitive_features=group))


def test_two_classes_by_hand() -> None:
    """fairlearn gives 0.25, 1/3 and 0.5 for these."""
    y, predicted, group = [1, 0, 1, 1, 1, 1, 0, 0], [1, 0, 0, 1, 1, 1, 1, 0], list("aaaabbbb")
    found = parity(by_group(list(zip(group, y, predicted, strict=True)), 2))
    assert found.classes == (1,)
    assert found.demographic_parity.value == pytest.approx(3 / 4 - 2 / 4)
    assert found.equal_opportunity.value == pytest.approx(1 - 2 / 3)
    assert found.equalised_odds.value == pytest.approx(1 / 2)
    assert found.undefined == ()
    assert parity(by_group(list(zip(group, y, predicted, strict=True)), 2), positive=0).classes == (0,)


def test_a_rate_of_nothing_is_undefined_and_not_zero() -> None:
    """fairlearn would say that the second group has a TPR of 0, and the largest gap there can be."""
    found = parity({"a": class_counts([1, 1, 0], [1, 1, 0], 2), "b": class_counts([0, 0, 0], [0, 1, 0], 2)})
    assert found.undefined == (("b", "tpr", 1),)
    assert not found.equal_opportunity.defined
    assert not found.equalised_odds.defined
    assert found.demographic_parity.value == pytest.approx(2 / 3 - 1 / 3)
    assert "equal_opportunity" not in found.widest


@in_one(
    "counts",
    [
        {"right": [2], "true": [1], "chosen": [1]},
        {"right": [0, 0], "true": [1, 1], "chosen": [1, 2]},
        {"right": [-1, 0], "true": [1, 1], "chosen": [1, 1]},
        {"right": [0], "true": [1, 1], "chosen": [1, 1]},
    ],
)
def test_counts_that_do_not_fit(counts: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match="expected right, true and chosen samples"):
        rates_of(counts)


def test_groups_that_do_not_fit() -> None:
    one, other = class_counts([0], [0], 2), class_counts([0], [0], 3)
    with pytest.raises(ValueError, match=r"found \[2, 3\] classes"):
        parity({"a": one, "b": other})
    with pytest.raises(ValueError, match=r"found \[\] classes"):
        parity({})
    with pytest.raises(ValueError, match=r"a whole number in 0\.\.1, one of the classes; found 2"):
        parity({"a": one}, positive=2)


def test_rates_among_other_measures() -> None:
    found = classification([[0.9, 0.1], [0.4, 0.6]], [0, 0], ["balanced", "rates"])
    assert found == {"balanced": 0.5, "rates": {"right": [1, 0], "true": [2, 0], "chosen": [1, 1]}, "missing": (1,)}
    assert math.isnan(classification(np.empty((0, 2)), [], ["rates"])["rates"])


# in a federation
def federation(n_classes: int = 2) -> eq.Federation:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(30, 3, generator=draw), torch.randint(0, n_classes, (30,), generator=draw)) for _ in range(2)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Linear(3, n_classes)
    return eq.Federation(net, data, tests={"f": data[0], "m": data[1]}, measures=("rates",), seed=0)


def test_a_federation_records_counts(tmp_path: Path) -> None:
    fed = federation()
    history = fed.fit(rounds=6, progress=False, directory=tmp_path)
    recorded = [record["round"] for record in history.records if "rates" in record["groups"]["f"]]
    assert recorded == [1, 2, 3, 4, 5]  # what costs much is for some rounds
    of = history.records[-1]["groups"]["f"]
    held = fed.tests.sets["f"].content
    assert held is not None
    assert of["rates"] == class_counts(held.y, fed.predict(held.x), 2)
    assert sum(of["rates"]["right"]) / 30 == pytest.approx(of["accuracy"])
    assert "rates" not in history.measures  # it is no number
    read = History.from_run(tmp_path)
    assert read.group_fairness() == history.group_fairness()
    json.dumps(read.summary()["group_fairness"], allow_nan=False)
    assert history.summary(measure="balanced")["group_fairness"] is None


def test_history_sums_the_last_rounds() -> None:
    chosen = lambda right, chosen: {"accuracy": 0.5, "rates": {"right": right, "true": [2, 2], "chosen": chosen}}  # noqa: E731
    records = [
        {"round": 0, "groups": {"a": chosen([0, 0], [2, 2]), "b": chosen([2, 2], [2, 2])}},
        {"round": 1, "groups": {"a": chosen([2, 2], [2, 2]), "b": chosen([2, 1], [3, 1])}},
        {"round": 2, "groups": {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.5}}},
        {"round": 3, "groups": {"a": chosen([2, 2], [2, 2]), "b": chosen([2, 0], [4, 0])}},
    ]
    found = History(records, {"method": "m", "least_group": 1}).group_fairness(last=2)
    assert found is not None
    assert found["averaged"] == [1, 3]
    of = found["groups"]["b"]
    assert (of["accuracy"], of["tpr"], of["fpr"], of["selection_rate"]) == (62.5, [25.0], [0.0], [12.5])
    assert (of["n"], of["of_class"], of["worst_recall"], of["worst_class"]) == (4, [2], 25.0, 1)
    assert (found["accuracy_gap"], found["equal_opportunity"], found["demographic_parity"]) == (37.5, 75.0, 37.5)
    assert found["of_class"] == {"equal_opportunity": 1, "equalised_odds": 1, "demographic_parity": 1}
    assert History(records[2:3], {"method": "m"}).group_fairness() is None
    one = [{"round": 0, "groups": {"a": chosen([1, 1], [2, 2])}}]
    assert History(one, {"method": "m"}).group_fairness() is None
    with pytest.raises(ValueError, match="last must be a whole number >= 1, the rounds to average; found 0"):
        History(records, {"method": "m"}).group_fairness(0)


def test_no_counts_where_there_is_no_number() -> None:
    """A model of NaN has no rates; the record holds null, and nothing stumbles over it."""
    group = {"accuracy": 0.5, "loss": math.nan, "rates": math.nan}
    history = History([{"round": 0, "groups": {"a": group, "b": group}}], {"method": "m"})
    assert history.group_fairness() is None
    assert '"rates":null' in line(history.records[0])


# in tables
def run(label: str, seed: int, right: list[int], **meta: Any) -> History:
    of = {
        "a": {"right": [30, 30], "true": [40, 40], "chosen": [40, 40]},
        "b": {"right": [10 * k for k in right], "true": [40, 40], "chosen": [40, 40]},
    }
    groups = {name: {"accuracy": sum(c["right"]) / 80, "loss": 1.0, "rates": c} for name, c in of.items()}
    return History([{"round": 0, "groups": groups}], {"method": label, "scenario": "toy", "seed": seed, **meta})


def of_gaps(histories: list[History]) -> layout.Sheet | None:
    """The table of how differently the groups are treated, if there is one."""
    return next(
        (sheet for sheet in layout.sheets(report.comparison(histories)) if sheet.name == "group-fairness"), None
    )


def test_table_of_gaps() -> None:
    histories = [run("fedavg", 0, [1, 1]), run("fedavg", 1, [2, 2]), run("afl", 0, [3, 3]), run("afl", 1, [3, 3])]
    found = of_gaps(histories)
    assert found is not None
    gaps = ("accuracy gap", "equal opportunity", "equalised odds", "demographic parity")
    assert found.grid.titles == (*gaps, "selection ratio", "predictive parity")
    cells = {name.removesuffix(" †"): row for name, row in found.grid.rows}  # fedavg guesses with one of the seeds
    assert [cell.mean for cell in cells["fedavg"]] == ["37.50", "37.50", "37.50", "0.00", "100.00", "37.50"]
    assert [cell.mean for cell in cells["afl"]] == [*["0.00"] * 4, "100.00", "0.00"]
    assert not cells["afl"][0].best  # the other is no better than guessing, so there is none to be better than
    assert found.differences[0].startswith("afl: accuracy gap −37.50")
    assert "The positive class is 1." in found.explanations
    content = report.comparison(histories)
    json.dumps(content["group_fairness"], allow_nan=False)
    assert content["group_fairness"]["methods"][0]["accuracy_gap"]["mean"] == pytest.approx(37.5)
    for text in (report.markdown(content), report.latex(content)):
        assert "Group fairness on toy" in text
        assert "equal opportunity" in text


def test_table_names_the_class_and_says_who_has_none() -> None:
    absent = {"right": [3, 0], "true": [4, 0], "chosen": [3, 1]}
    record = {"accuracy": 0.75, "loss": 1.0, "rates": absent}
    one = run("fedavg", 0, [2, 2], data={"classes": ["well", "sick"]}, positive="sick", least_group=1)
    history = History([{"round": 0, "groups": {**one.records[0]["groups"], "c": record}}], one.meta)
    found = of_gaps([history])
    assert found is not None
    assert "The positive class is sick." in found.explanations
    assert (
        "c has no test sample of class sick, so it has no true positive rate there and is left out."
        in found.explanations
    )
    several = of_gaps([run("fedavg", 0, [2, 2]), History(one.records, {"method": "afl", "scenario": "toy"})])
    assert several is not None
    without = History([{"round": 0, "groups": {"a": {"accuracy": 0.5}}}], {"method": "q", "scenario": "toy"})
    partly = of_gaps([run("fedavg", 0, [2, 2]), without])
    assert partly is not None
    assert "q recorded no rates." in partly.explanations
    assert of_gaps([without]) is None


def test_more_classes_are_compared_one_by_one() -> None:
    history = federation(3).fit(rounds=2, progress=False)
    found = history.group_fairness()
    assert found is not None
    assert found["classes"] == [0, 1, 2]
    assert len(found["groups"]["f"]["tpr"]) == 3
    shown = of_gaps([history])
    assert shown is not None
    assert "Compare one class with all others: --positive CLASS, in Python positive=." in shown.explanations
