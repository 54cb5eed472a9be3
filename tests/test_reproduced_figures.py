"""The papers' figures: what is drawn is what was measured."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.analysis import reproduced
from equipoise.federation.history import History
from equipoise.report import reproduced_figures as drawing
from equipoise.report.reproduction import Block, ReproducedValue, Result
from equipoise.runs import reproduce
from helpers import in_one


def run(
    label: str, finals: dict[str, float], seed: int = 0, rounds: int = 4, alone: list[float] | None = None
) -> History:
    """A run whose groups climb to their final accuracy, the AUC measured in every second round."""
    records = []
    for t in range(rounds):
        groups = {}
        for group, final in finals.items():
            a = final * (t + 1) / rounds + 0.01 * seed
            groups[group] = {"accuracy": a, "loss": 1 - a} | ({"auc": a / 2} if t % 2 else {})
        clients = [min(finals.values()) + 0.01 * m for m in range(len(alone or ()))]
        records.append(
            {"round": t, "groups": groups, "ids": [0], "weights": [1.0]}
            | ({"clients": {"accuracy": clients}} if clients else {})
        )
        records[-1]["consistency"] = [1, 2, 3, 4]
    meta = {"method": "fedavg", "label": label, "seed": seed, "scenario": "digits"}
    return History(records, meta | ({"contribution": {"standalone_test": alone}} if alone else {}))


def entry(*values: float) -> ReproducedValue:
    over = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return ReproducedValue(tuple(values), float(np.mean(values)) if values else math.nan, over, math.nan)


def block(name: str, cells: dict[tuple[str, str], ReproducedValue], title: str | None = None) -> Block:
    rows, columns = (tuple(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    return Block(name, title or name, "digits", columns, rows, cells)


def result(*parts: Block) -> Result:
    return Result("", "", "", "", embedded=True, parts=parts, ours=(), settings={})


def experiment(figure, columns, rows):
    made = [SimpleNamespace(**({"series": "", "x": None} | row)) for row in rows]
    return SimpleNamespace(figure=figure, columns=columns, row=made)


FINALS = {"easy": 0.9, "hard": 0.5}


@in_one(
    ("spec", "last"),
    [
        ("avg", 70),
        ("last", 70),
        ("worst", 50),
        ("gap", 40),
        ("std", 100 * math.sqrt(0.08)),
        ("group:easy", 90),
        ("avg auc", 35),
        ("group:hard auc", 25),
    ],
)
def test_a_column_over_rounds(spec: str, last: float) -> None:
    found = drawing.over_rounds(run("a", FINALS), spec)
    assert found[3] == pytest.approx(last)
    assert list(found) == ([1, 3] if "auc" in spec else [0, 1, 2, 3])
    assert found[1] == pytest.approx(last / 2)  # half way up


def test_a_column_that_no_round_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'fairness' is not drawn over rounds\. Choose group:NAME or one of: avg"):
        drawing.over_rounds(run("a", FINALS), "fairness")
    with pytest.raises(ValueError, match="no group 'mnist': the run has easy, hard"):
        drawing.over_rounds(run("a", FINALS), "group:mnist")


def test_one_group_has_no_spread() -> None:
    assert drawing.over_rounds(run("a", {"all": 0.5}), "std") == {}


def test_curves_are_means_over_seeds_with_a_panel_per_series() -> None:
    rows = [
        {"name": "FedAvg", "series": "FedAvg"},
        {"name": "FedAvg+X", "series": "FedAvg"},
        {"name": "MOON", "series": "MOON"},
        {"name": "MOON+X", "series": "MOON"},
    ]
    found = {("p", row["name"]): [run(row["name"], FINALS, seed) for seed in (0, 1)] for row in rows}
    (figure,) = drawing.draw(
        experiment({"draw": "curves", "y": "AVG"}, {"AVG": "avg"}, rows),
        result(block("p", {("FedAvg", "AVG"): entry(70)})),
        found,
    ).values()
    assert [axes.get_title("left") for axes in figure.axes] == ["FedAvg", "MOON"]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["without", "+X"]
        assert axes.lines[0].get_ydata()[-1] == pytest.approx(70.5)  # seeds 70 and 71
        assert len(axes.collections) == 2  # a band each
    assert figure.get_supylabel() == "AVG (%)"


def test_curves_without_series_share_a_panel() -> None:
    rows = [{"name": "a"}, {"name": "b"}]
    found = {("p", "a"): [run("a", FINALS)], ("p", "b"): [run("b", FINALS)], ("other", "a"): [run("a", FINALS)]}
    drawn = drawing.draw(
        experiment({"draw": "curves", "y": "easy"}, {"easy": "group:easy"}, rows),
        result(block("p", {("a", "easy"): entry(1)})),
        found,
    )
    assert list(drawn) == ["p"]  # one figure per part of the result
    (axes,) = drawn["p"].axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert not axes.collections  # one seed: no band


def test_a_sweep_has_a_line_per_series_and_levels() -> None:
    rows = [
        {"name": "A1", "series": "A", "x": 1.0},
        {"name": "A2", "series": "A", "x": 0.1},
        {"name": "B1", "series": "B", "x": 1.0},
        {"name": "level"},
    ]
    cells = {
        ("A1", "AVG"): entry(50, 52),
        ("A2", "AVG"): entry(40, 40),
        ("B1", "AVG"): entry(),  # not run
        ("level", "AVG"): entry(45, 47),
    }
    found = {("p", "A1"): [run("A1", FINALS)]}
    (figure,) = drawing.draw(
        experiment({"draw": "sweep", "x": {"p": "q"}, "y": ["AVG"]}, {"AVG": "avg"}, rows),
        result(block("p", cells)),
        found,
    ).values()
    (axes,) = figure.axes
    line = axes.containers[0].lines[0]
    assert line.get_xdata().tolist() == [0.1, 1.0]  # in the order of x
    assert line.get_ydata().tolist() == [40, 51]
    level = next(line for line in axes.lines if line.get_label() == "level")
    assert level.get_ydata() == [46, 46]
    assert axes.get_xlabel() == "q"


def test_a_plane_puts_the_parts_of_a_data_set_together() -> None:
    def cells(shift: float) -> dict[tuple[str, str], ReproducedValue]:
        return {
            ("A", "fairness"): entry(90 + shift, 92 + shift),
            ("A", "max"): entry(40, 42),
            ("B", "fairness"): entry(),  # not defined
            ("B", "max"): entry(44),
        }

    parts = (
        block("c-pow", cells(0), "CIFAR, POW"),
        block("c-cla", cells(1), "CIFAR, CLA"),
        block("s", cells(2), "SVHN, POW"),
    )
    drawn = drawing.draw(experiment({"draw": "plane", "x": "fairness", "y": "max"}, {}, []), result(*parts), {})
    assert list(drawn) == ["cifar", "svhn"]
    (axes,) = drawn["cifar"].axes
    points = [(c.lines[0].get_xdata()[0], c.lines[0].get_ydata()[0]) for c in axes.containers]
    assert points == [(91, 41), (92, 41)]
    marks = {c.lines[0].get_marker() for c in axes.containers}
    assert len(marks) == 2  # one per part


def test_runs_are_drawn_as_in_reports() -> None:
    alone = [0.2, 0.3, 0.4, 0.5, 0.6]
    found = {("p", "A"): [run("A", FINALS, alone=alone)], ("p", "B"): [run("B", FINALS, alone=alone)]}
    shown = result(block("p", {("A", "x"): entry(1)}), block("empty", {("A", "x"): entry()}))
    for kind in ("bars", "contributions", "clients", "spread"):
        drawn = drawing.draw(experiment({"draw": kind}, {}, []), shown, found)
        assert list(drawn) == ["p"]  # nothing of a part without runs


def test_figures_of_models_are_not_drawn_from_histories() -> None:
    found = {("p", "A"): [run("A", FINALS)]}
    for kind in drawing.OF_MODELS:
        assert drawing.draw(experiment({"draw": kind}, {}, []), result(block("p", {("A", "x"): entry(1)})), found) == {}
    assert reproduced.drawn({"draw": "curves"}, {}) == {}
    assert reproduced.drawn({"draw": "heterogeneity"}, {}) == {}
    assert reproduced.drawn({"draw": "landscape"}, {}) == {}
    assert reproduced.drawn({"draw": "consistency"}, {}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedld/figure2", "fedism/figure7"])
def test_figures_of_models_end_to_end(name, tmp_path) -> None:
    parts = ["alpha-100", "alpha-1"] if name == "fedld/figure2" else []
    planned = reproduce.plan(name, tmp_path, embedded=True, rounds=1, parts=parts)
    assert reproduce.run(planned, jobs=2) == {}
    directories = reproduce.directories(planned)
    assert len(directories) == (2 if parts else 4)
    small = {"points": 3, "grid": 3, "draws": 1}
    drawn = reproduced.drawn(planned.experiment.figure | small, directories)
    if parts:
        shift, aggregation, total = drawn["heterogeneity"].axes[:3]
        assert sorted(shift.lines[0].get_xdata().tolist()) == [1, 100]
        assert len(aggregation.lines) == len(total.lines) == 5  # FedAvg and the four that are tried
    else:
        assert list(drawn) == ["rsna-noise-line", "rsna-noise-plane"]
        labels = [line.get_label() for line in drawn["rsna-noise-line"].axes[0].lines]
        assert labels == ["FedAvg", "FedGA", "FedISM", "FedISM+"]
