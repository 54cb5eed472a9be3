"""Rates by group: against fairlearn and statsmodels, in every table, sentence and figure; and what is not shown of few people."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from fairlearn.metrics import MetricFrame, false_positive_rate, selection_rate, true_positive_rate
from hypothesis import given, settings, strategies as st
from sklearn.metrics import accuracy_score
from statsmodels.stats.proportion import proportion_confint

from equipoise import report
from equipoise.federation.history import History
from equipoise.metrics import class_counts, parity
from equipoise.metrics.intervals import wilson
from equipoise.report import html, rates
from equipoise.report.comparisons import Comparison
from equipoise.report.layout import sheets
from equipoise.report.rendering import save_latex
from equipoise.report.sentences import verdict

Sample = tuple[str, int, int]  # group, label, prediction
people = st.lists(st.tuples(st.sampled_from("fmx"), st.integers(0, 1), st.integers(0, 1)), min_size=20, max_size=120)


def record(drawn: list[Sample], classes: int = 2, t: int = 0) -> dict[str, Any]:
    groups = {}
    for name in sorted({g for g, _, _ in drawn}):
        y, predicted = zip(*[(y, p) for g, y, p in drawn if g == name], strict=True)
        right = float(np.mean([a == b for a, b in zip(y, predicted, strict=True)]))
        groups[name] = {"accuracy": right, "loss": 1.0, "n": len(y), "rates": class_counts(y, predicted, classes)}
    return {"round": t, "groups": groups}


def run(drawn: list[Sample], label: str = "fedavg", seed: int = 0, n_classes: int = 2, **meta: Any) -> History:
    return History([record(drawn, n_classes)], {"method": label, "scenario": "toy", "seed": seed, "rounds": 1, **meta})


def clinic(missed_women: int = 41, missed_men: int = 9, few: int = 0) -> list[Sample]:
    """A hundred sick and a hundred well of each sex, and a third group of a few."""
    drawn = [("women", 1, int(k >= missed_women)) for k in range(100)] + [
        ("men", 1, int(k >= missed_men)) for k in range(100)
    ]
    drawn += [(sex, 0, int(k < 20 and sex == "men")) for sex in ("women", "men") for k in range(100)]
    return drawn + [("other", k % 2, 1) for k in range(few)]


SICK = {"classes": ["well", "sick"], "positive": "sick"}


@given(st.integers(1, 400), st.data())
def test_wilson_is_that_of_statsmodels(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    assert wilson(k / n, n) == pytest.approx(proportion_confint(k, n, method="wilson"), abs=1e-12)


@given(people)
@settings(max_examples=40)
def test_rates_are_those_of_fairlearn_where_they_are_about_enough_people(drawn: list[Sample]) -> None:
    group, y, predicted = map(np.array, zip(*drawn, strict=True))
    found = run(drawn).group_fairness()
    if len(set(group.tolist())) < 2:
        assert found is None
        return
    assert found is not None
    measures = {
        "accuracy": accuracy_score,
        "tpr": true_positive_rate,
        "fpr": false_positive_rate,
        "selection_rate": selection_rate,
    }
    theirs = MetricFrame(metrics=measures, y_true=y, y_pred=predicted, sensitive_features=group).by_group
    for name, ours in found["groups"].items():
        inside = group == name
        about = {"accuracy": inside, "selection_rate": inside, "tpr": inside & (y == 1), "fpr": inside & (y == 0)}
        for key, among in about.items():
            value = ours[key] if key == "accuracy" else ours[key][0]
            ends = ours["intervals"][key] if key == "accuracy" else ours["intervals"][key][0]
            if among.sum() < 10:
                assert value is None
                assert ends is None
                continue
            assert value == pytest.approx(100 * theirs.loc[name, key])
            right = round(value / 100 * among.sum())
            assert ends == pytest.approx([100 * end for end in proportion_confint(right, among.sum(), method="wilson")])
        sizes = sorted((int(sum(group == other)), other) for other in set(group.tolist()))
        left, large = sum(n for n, _ in sizes if n < 10), [other for n, other in sizes if n >= 10]
        told = inside.sum() < 10 or (0 < left < 10 and name == large[0])  # its number would tell that of the others
        assert ours["n"] == (None if told else inside.sum())


def test_who_is_missed_how_often_is_the_first_sentence() -> None:
    """Men have the lower accuracy, and sick women are missed four times as often."""
    found = Comparison.of([run(clinic(missed_women=20, missed_men=5), **SICK)])
    assert verdict(found).startswith(
        "Of 100 test samples of class sick, fedavg misses 20 in group women (13 to 29) and 5 in group men (2 to 11). "
    )
    assert found["group_fairness"]["methods"][0]["groups"]["men"]["accuracy"]["mean"] == pytest.approx(87.5)
    page = html.render(found)
    assert (
        "on average; of class sick it misses 20\u00a0% in women, 5\u00a0% in men.</p>"
        in page[: page.index("fedavg misses 20 in group women")]
    )
    for text in (str(found), report.latex(found.document), report.markdown(found.document), page):
        flat = " ".join(re.sub(r"<[^>]*>|[\\~{}$]", " ", text).split())
        for said in ("80.0", "71.1, 86.7", "95.0", "88.8, 97.8", "fedavg misses 20 in group women"):
            assert said in flat


def test_methods_beside_and_several_seeds() -> None:
    found = Comparison.of([run(clinic(30 + s, 10), "fedavg", s, **SICK) for s in range(3)]
                          + [run(clinic(20 + s, 10), "afl", s, **SICK) for s in range(3)])  # fmt: skip
    assert verdict(found).startswith(
        "Of 100 test samples of class sick, fedavg misses 31 in group women (23 to 41) and 10 in group men (6 to 17); afl 21 and 10."
    )
    women = found["group_fairness"]["methods"][0]["groups"]["women"]["tpr"]
    assert (women["mean"], women["std"]) == (pytest.approx(69), pytest.approx(1))
    assert women["ci95"] == pytest.approx(
        4.302653 / 3**0.5, abs=1e-5
    )  # Student's t, which says little of a hundred women
    ends = [[100 * end for end in proportion_confint(70 - s, 100, method="wilson")] for s in range(3)]
    assert [women["low"], women["high"]] == pytest.approx(np.mean(ends, axis=0).tolist())
    (sheet,) = (sheet for sheet in sheets(found) if sheet.name == "group-rates")
    assert [name for name, _ in sheet.grid.rows] == [f"{m}, {g}" for m in ("fedavg", "afl") for g in ("men", "women")]
    assert sheet.grid.titles[:3] == ("n", "accuracy (%)", "of sick")
    assert any("Student" in text for text in sheet.explanations)


@pytest.mark.parametrize("n", [1, 9, 10])
def test_a_group_of_few_is_not_shown(n: int, tmp_path: Any) -> None:
    """Not in a table, an average, a sentence, a figure, or JSON."""
    with_few, without = (Comparison.of([run(clinic(few=k), **SICK)]) for k in (n, 0))
    hidden = n < 10
    assert with_few["small"] == ["other"] * hidden
    for key in ("avg", "std", "worst"):
        assert (with_few["methods"][0][key] == without["methods"][0][key]) == hidden
    assert ("other" in with_few["methods"][0]["groups"]) == (not hidden)
    rate = with_few["group_fairness"]["methods"][0]["groups"]["other"]
    assert (rate["n"] is None) == hidden
    assert rate["tpr"]["mean"] is None  # of ten there are five sick
    assert (
        with_few["group_fairness"]["methods"][0]["equal_opportunity"]
        == without["group_fairness"]["methods"][0]["equal_opportunity"]
    )
    (accuracy, *_), text = sheets(with_few), json.dumps(with_few.document)
    cells = dict(zip(accuracy.grid.titles, accuracy.grid.rows[0][1], strict=True))
    assert (cells["other"].mean == "n < 10") == hidden
    if hidden:
        assert with_few.histories[0].summary()["groups"].keys() == {"men", "women"}
        assert set(with_few.histories[0].frame()["group"]) == {"men", "women"}
        ticks = [label.get_text() for label in with_few.figure("bars").axes[0].get_xticklabels()]
        assert ticks == ["men", "women"]
        assert f'"n": {n},' not in text
        assert "of class sick there are fewer than 10 in group other" in verdict(with_few)
        everything = [run(clinic(few=n), **SICK, least_group=1)]
        assert "other" in Comparison.of(everything)["methods"][0]["groups"]


def test_a_group_that_is_small_with_one_seed_is_left_out_with_all() -> None:
    found = Comparison.of([run(clinic(few=9), seed=0, **SICK), run(clinic(few=12), seed=1, **SICK)])
    assert found["small"] == ["other"]
    assert found["methods"][0]["groups"].keys() == {"men", "women"}
    assert not any("same groups" in note for note in found["notes"])


def test_nothing_but_small_groups() -> None:
    found = Comparison.of([run([("a", 0, 0), ("b", 1, 1)])])
    assert "Every test set has fewer than 10 samples" in verdict(found)
    html.render(found)
    assert "n < 10" in str(found)


def test_of_many_classes_the_worst_by_group() -> None:
    """A rare class that one group lacks makes every gap 100; the recall of the worst class says more."""
    drawn = [("a", c, c if k < 15 else 0) for c in range(3) for k in range(20)]
    drawn += [("b", c, c if k < 18 - 6 * (c == 2) else 0) for c in range(3) for k in range(20)] + [("b", 3, 0)]
    drawn += [("a", 3, 3)]
    history = run(drawn, n_classes=4, data={"classes": list("pqrs")})
    found = Comparison.of([history])
    gaps, by_group = (next(s for s in sheets(found) if s.name == name) for name in ("group-fairness", "group-rates"))
    assert gaps.grid.titles == ("accuracy gap", "worst recall")
    assert [cell.mean for cell in gaps.grid.rows[0][1]][1] == "15.00"
    assert [[cell.mean for cell in cells][-2:] for _, cells in by_group.grid.rows] == [["75.0", "q"], ["60.0", "r"]]
    assert verdict(found).startswith(
        "Of 100 test samples of the class that it recognises worst, fedavg misses 40 in group b, class r, (22 to 61) and 25 in group a, class q,"
    )
    one = Comparison.of([History(history.records, {**history.meta, "positive": "r"})])
    assert [s.grid.titles[0] for s in sheets(one) if s.name == "group-fairness"] == ["accuracy gap"]
    assert "Of 100 test samples of class r" in verdict(one)


def test_a_rate_counts_only_where_it_is_about_enough() -> None:
    few = {"a": class_counts([1] * 9 + [0] * 20, [0] * 29, 2), "b": class_counts([1] * 20 + [0] * 20, [1] * 40, 2)}
    assert parity(few).equal_opportunity.value == 1
    found = parity(few, least=10)
    assert not found.equal_opportunity.defined
    assert found.undefined == (("a", "tpr", 1),)
    assert found.accuracy.defined


@pytest.mark.parametrize(("groups", "methods"), [(2, 1), (3, 4), (12, 2)])
def test_the_figure_has_every_group_and_method(groups: int, methods: int) -> None:
    draw = np.random.default_rng(0)
    each = [(f"group {g}", int(y), int(p)) for g in range(groups) for y, p in draw.integers(0, 2, (40, 2))]
    found = Comparison.of([run(each, f"m{k}") for k in range(methods)])
    figure = found.figure("rates")
    assert len(figure.axes) == 4
    assert [len(axes.get_yticks()) for axes in figure.axes] == [groups] * 4
    assert all(len(axes.containers) == methods for axes in figure.axes)
    if groups > rates.FEW:
        assert f"the most and the fewest of {groups} groups" in verdict(found)


def test_latex_files(tmp_path: Any) -> None:
    paths = save_latex([run(clinic(few=3), **SICK)], tmp_path)
    text = (tmp_path / "group-rates.tex").read_text()
    assert tmp_path / "group-rates.tex" in paths
    assert "n $<$ 10" in text


def test_values_that_are_no_words_have_the_name_of_their_column() -> None:
    config = {"scenario_options": {"group": "sex"}}
    drawn = [({"women": "0", "men": "1", "other": "2"}[g], y, p) for g, y, p in clinic(few=3)]
    found = Comparison.of([run(drawn, config=config, **SICK)])
    assert "misses 41 in group sex 0 (32 to 51) and 9 in group sex 1" in verdict(found)
