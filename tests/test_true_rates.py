"""Fairness between groups where it is easily told wrongly: other measures asked for, few people, several seeds and classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.colors import to_hex

from equipoise.federation.history import History
from equipoise.metrics import class_counts, parity, rates_of
from equipoise.metrics.intervals import wilson
from equipoise.report.comparisons import Comparison
from equipoise.report.layout import sheets
from equipoise.report.notes import UNPROTECTED
from equipoise.report.sentences import verdict
from helpers import in_one, others_slow
from run_helpers import cache, equipoise, without_figures

__all__ = ["cache", "equipoise"]

Sample = tuple[str, int, int]  # group, label, prediction


def counted(drawn: list[Sample], n_classes: int = 2) -> dict[str, Any]:
    groups = {}
    for name in sorted({g for g, _, _ in drawn}):
        y, predicted = zip(*[(y, p) for g, y, p in drawn if g == name], strict=True)
        right = float(np.mean(np.equal(y, predicted)))
        groups[name] = {"accuracy": right, "loss": 1.0, "n": len(y), "rates": class_counts(y, predicted, n_classes)}
    return groups


def run(drawn: list[Sample], label: str = "fedavg", seed: int = 0, n_classes: int = 2, **meta: Any) -> History:
    known = {"method": label, "scenario": "toy", "seed": seed, "rounds": 1, **meta}
    return History([{"round": 0, "groups": counted(drawn, n_classes)}], known)


def people(group: str, label: int, n: int, right: int) -> list[Sample]:
    """So many of one group and class, and how many of them are recognised (of two classes)."""
    return [(group, label, label if k < right else 1 - label) for k in range(n)]


SICK = {"classes": ["well", "sick"], "positive": "sick"}


# other measures
@pytest.mark.parametrize("measures", others_slow([None, "balanced, auc", "f1", "rates, auc"], fast=(0, 3)))
def test_rates_are_shown_with_a_column_of_groups_whatever_else_is_measured(
    tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch, measures: str | None
) -> None:
    without_figures(monkeypatch)
    draw = np.random.default_rng(0)
    rows = [f"{draw.normal():.3f},{'fm'[k % 2]},{('no', 'yes')[k // 2 % 2]},{'xyz'[k % 3]}" for k in range(240)]
    (tmp_path / "t.csv").write_text("\n".join(["a,sex,label,client", *rows]) + "\n")
    more = [] if measures is None else ["--measures", measures]
    arguments = [
        "--data",
        str(tmp_path / "t.csv"),
        "--set",
        "group=sex",
        "--rounds",
        "1",
        "--runs",
        str(tmp_path),
        *more,
    ]
    done = equipoise("run", *arguments, "--name", "r", "--no-report")
    assert done.status == 0, done.err
    history = History.from_run(tmp_path / "r")
    found = history.summary()["group_fairness"]
    assert found["groups"].keys() == {"f", "m"}
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["group_fairness"] == found
    said = equipoise("report", str(tmp_path / "r"), "-o", str(tmp_path / "r.html"), "--details").out
    assert "true-positive" in said
    assert "Rates by group" in (tmp_path / "r.html").read_text()


def test_a_class_that_is_given_asks_for_rates() -> None:
    drawn = people("f", 1, 20, 15) + people("m", 1, 20, 18) + people("f", 0, 20, 15) + people("m", 0, 20, 18)
    about = {"measures": ["accuracy", "balanced"], "classes": ["well", "sick"]}
    assert run(drawn, **about).summary()["group_fairness"] is None
    assert run(drawn, **about, positive="sick").summary()["group_fairness"]["equal_opportunity"] == pytest.approx(15)


@in_one("key", ["measures", "client_names", "client_groups", "classes", "header"])
def test_text_in_place_of_a_list_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=rf'meta\["{key}"\] must be a list of names: found \'rates, auc\''):
        run(people("f", 1, 20, 15), **{key: "rates, auc"})


# several classes
def diagnoses(group: str, true: list[int], right: list[int]) -> list[Sample]:
    """So many of each class, of which so many are recognised, and the others taken for the first."""
    return [(group, c, c if k < right[c] else 0) for c, n in enumerate(true) for k in range(n)]


MEN = diagnoses("man", [31, 18, 20, 16, 12], [29, 9, 0, 0, 0])
WOMEN = diagnoses("woman", [27, 7, 1, 2, 1], [22, 3, 0, 0, 0])


def test_the_worst_of_one_class_is_not_compared_with_the_worst_of_five() -> None:
    found = Comparison.of([run(MEN + WOMEN, n_classes=5, data={"classes": list("01234")})])
    between = found["group_fairness"]["methods"][0]
    assert between["worst_recall"]["mean"] is None
    assert between["intervals"]["worst_recall"] is None
    assert between["groups"]["woman"]["worst_recall"]["mean"] is None
    assert (between["groups"]["man"]["worst_recall"]["mean"], between["groups"]["man"]["worst_class"]) == (0, "2")
    notes = " ".join(next(sheet for sheet in sheets(found) if sheet.name == "group-fairness").explanations)
    assert "largest difference counts" not in notes  # of no column of this table
    assert (
        "woman has fewer than 10 test samples of classes 1, 2, 3, 4, so it has no recall of a worst class there"
        in notes
    )
    assert "81" not in verdict(found)
    everything = run(MEN + WOMEN, n_classes=5, least_group=1).group_fairness()
    assert everything is not None
    assert everything["worst_recall"] == 0


@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=4), st.data())
@settings(max_examples=60)
def test_the_gap_of_the_worst_class_is_over_groups_with_the_same_classes(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    groups = {}
    for g, true in enumerate(sizes):
        right = [data.draw(st.integers(0, n)) for n in true]
        groups[str(g)] = {"right": right, "true": true, "chosen": right}
    classes = {name: {c for c, n in enumerate(of["true"]) if n >= 10} for name, of in groups.items()}
    every = set.union(*classes.values())
    same = {g: rates_of(groups[g], 10) for g, of in classes.items() if of == every and every}
    worst = [min(of.tpr[c].value for c in every) for of in same.values()]
    found = parity(groups, least=10)
    assert {g for g, of in found.rates.items() if of.worst_recall.defined} == same.keys()
    assert found.worst_recall.defined == (len(same) > 1)
    assert not found.worst_recall.defined or found.worst_recall.value == pytest.approx(max(worst) - min(worst))


# several seeds
def hospital(sick_women: int, right: int, seed: int, label: str = "fedavg", **meta: Any) -> History:
    drawn = people("woman", 1, sick_women, right) + people("woman", 0, 30, 29)
    return run(drawn + people("man", 1, 90, 80) + people("man", 0, 55, 35), label, seed, **SICK, **meta)


@pytest.mark.parametrize("sizes", others_slow([[11, 10, 10, 10, 9, 10], [9, 9, 12], [10, 9], [10, 10]], fast=(0, 2)))
def test_seeds_that_have_enough_people_are_not_hidden_by_one_that_has_not(sizes: list[int]) -> None:
    found = Comparison.of([hospital(n, 6, seed, label) for label in ("fedavg", "afl") for seed, n in enumerate(sizes)])
    enough = [n for n in sizes if n >= 10]
    fedavg, afl = found["group_fairness"]["methods"]
    woman = fedavg["groups"]["woman"]
    assert woman["tpr"]["mean"] == pytest.approx(np.mean([600 / n for n in enough]))
    assert (woman["tpr"]["seeds"], woman["accuracy"]["seeds"]) == (len(enough), len(sizes))
    assert woman["of_class"] == round(np.mean(enough))
    assert fedavg["equal_opportunity"]["mean"] == pytest.approx(np.mean([80 / 90 - 6 / n for n in enough]) * 100)
    assert afl["versus"]["equal_opportunity"]["difference"] == pytest.approx(0)
    assert afl["versus"]["seeds"] == len(sizes)
    assert "fewer than" not in verdict(found)
    text = " ".join(sheet_text for sheet in sheets(found) for sheet_text in sheet.explanations)
    some = f"True-positive rate in group woman over {len(enough)} of {len(sizes)} seeds: with the others about fewer than 10"
    assert (some in text) == (len(enough) < len(sizes))
    few = f"woman has fewer than 10 test samples of class sick with {len(sizes) - len(enough)} of {len(sizes)} seeds"
    assert (few in text) == (len(enough) < len(sizes))


@pytest.mark.parametrize("away", [[4], [1, 4], [2], []])
def test_a_group_has_one_size_where_a_site_was_away(away: list[int]) -> None:
    """Two sites test women: where one is away, there are fewer of them."""
    there = [*people("f", 0, 31, 20), *people("f", 1, 22, 11), *people("m", 0, 40, 30), *people("m", 1, 40, 30)]
    fewer = [sample for k, sample in enumerate(there) if k >= 53 or k % 2]
    records = [{"round": t, "groups": counted(fewer if t in away else there)} for t in range(5)]
    history = History(records, {"method": "fedavg", **SICK})
    found = history.group_fairness()
    assert found is not None
    of = found["groups"]["f"]
    assert of["n"] == history.sizes["f"] == history.summary()["sizes"]["f"] == (26 if 4 in away else 53)
    assert of["of_class"] == [records[4]["groups"]["f"]["rates"]["true"][1]]
    shown = Comparison.of([history])
    assert shown["group_fairness"]["methods"][0]["groups"]["f"]["n"] == shown["sizes"]["f"] == of["n"]


def test_what_is_hidden_with_every_seed_stays_hidden() -> None:
    found = Comparison.of([hospital(9, 6, seed) for seed in range(3)])
    woman = found["group_fairness"]["methods"][0]["groups"]["woman"]
    assert (woman["tpr"]["mean"], woman["tpr"]["low"], woman["of_class"]) == (None, None, None)
    assert found["group_fairness"]["methods"][0]["equal_opportunity"]["mean"] is None
    assert "of class sick there are fewer than 10 in group woman" in verdict(found)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=4))
@settings(max_examples=25)
def test_seeds_that_agree_make_no_interval_narrower_than_the_people(wrong: list[int]) -> None:
    """Every seed draws from the same people, so one false positive of thirty with each is still one of thirty."""
    histories = [
        run(people("woman", 0, 30, 30 - k) + people("woman", 1, 12, 9) + people("man", 0, 60, 30) + people("man", 1, 60, 50),
            seed=seed, **SICK) for seed, k in enumerate(wrong)
    ]  # fmt: skip
    found = Comparison.of(histories)["group_fairness"]["methods"][0]
    rate = found["groups"]["woman"]["fpr"]
    low, high = (float(np.mean(ends)) for ends in zip(*(wilson(k / 30, 30) for k in wrong), strict=True))
    assert rate["low"] <= 100 * low + 1e-9
    assert rate["high"] >= 100 * high - 1e-9
    if len(set(wrong)) > 1:
        assert rate["low"] <= max(0, rate["mean"] - rate["ci95"]) + 1e-9
        assert rate["high"] >= min(100, rate["mean"] + rate["ci95"]) - 1e-9
    assert found["intervals"]["demographic_parity"] is not None


def test_what_is_not_shown_is_not_said_to_be_protected() -> None:
    """With n, accuracy, false positive and selection rate the true positives can be counted."""
    for drawn, said in ((9, True), (10, False)):
        (found,) = (Comparison.of([hospital(drawn, 6, 0)]),)
        (sheet,) = (sheet for sheet in sheets(found) if sheet.name == "group-rates")
        assert any(UNPROTECTED in text for text in sheet.explanations) == said
    few = Comparison.of([run([*people("man", 1, 30, 20), *people("woman", 1, 9, 3)], **SICK)])
    assert any(UNPROTECTED in text for text in sheets(few)[0].explanations)
    negatives = Comparison.of(
        [run(people("man", 1, 30, 20) + people("man", 0, 9, 3) + people("woman", 1, 30, 3), **SICK)]
    )
    (sheet,) = (sheet for sheet in sheets(negatives) if sheet.name == "group-rates")
    assert any(UNPROTECTED in text for text in sheet.explanations)


# what is bold
@given(st.lists(st.lists(st.floats(0.4, 0.9), min_size=4, max_size=4), min_size=2, max_size=5))
@settings(max_examples=10, deadline=None)
def test_nothing_is_bold_beside_something_better_that_is_not(accuracies: list[list[float]]) -> None:
    """A noisy method that cannot be told apart from the best may be below one that can."""
    histories = [
        History(
            [{"round": 0, "groups": {g: {"accuracy": a + d, "loss": 1.0} for g, d in (("a", 0.0), ("b", 0.05))}}],
            {"method": f"m{k}", "seed": seed, "scenario": "toy"},
        )
        for k, of in enumerate(accuracies)
        for seed, a in enumerate(of)
    ]
    found = Comparison.of(histories)
    grid = sheets(found)[0].grid
    for column, title in enumerate(grid.titles):
        bold = [name for name, cells in grid.rows if cells[column].best]
        assert len(bold) <= 1
        if bold and title in ("AVG", "worst"):
            values = {name: float(cells[column].mean) for name, cells in grid.rows}
            assert values[bold[0]] == max(values.values())
            assert found["leaders"][title.lower()]["best"] == bold[0]


# figures
def bounded(label: str, seed: int, bound: str = "") -> History:
    """Ten people of each kind; `alone` has neither losses nor rates, as it has no global model."""
    drawn = [
        one for group in "ab" for y in (0, 1) for one in people(group, y, 20, 12 + (1 + seed) ** 2 * len(label) % 7)
    ]
    groups = counted(drawn)
    kept = {"accuracy"} if bound == "lower" else {"accuracy", "loss", "n", "rates"}
    shown = {name: {key: value for key, value in of.items() if key in kept} for name, of in groups.items()}
    about = {"method": label, "seed": seed, "scenario": "toy", "bound": bound, **SICK}
    return History([{"round": t, "groups": shown} for t in range(2)], about)


@pytest.mark.parametrize("bounds", others_slow([[], ["lower"], ["upper"], ["lower", "upper"]], fast=(3,)))
def test_a_method_has_one_colour_in_all_figures(bounds: list[str]) -> None:
    methods = [("fedavg", ""), ("afl", ""), *((f"{bound} bound", bound) for bound in bounds)]
    found = Comparison.of([bounded(label, seed, bound) for label, bound in methods for seed in range(3)])
    colours: dict[str, set[str]] = {}
    for name in ("bars", "tradeoff", "convergence", "losses", "rates"):
        axes = found.figure(name).axes[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            first = next(iter(handle)) if isinstance(handle, tuple) else handle
            shown = first.get_facecolor() if hasattr(first, "get_facecolor") else first.get_color()
            colours.setdefault(label, set()).add(to_hex(shown))
    assert colours.keys() == {label for label, _ in methods}
    assert all(len(of) == 1 for of in colours.values()), colours
    assert len({of.copy().pop() for of in colours.values()}) == len(methods)
    rows = [text.get_text() for text in found.figure("differences").axes[0].get_yticklabels()]
    assert rows == ["afl"]  # no empty row of what is not tested
