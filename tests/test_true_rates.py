"""Fairness between groups where it is easily told wrongly: other measures asked for, few people, several seeds and classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.federation.history import History
from equipoise.metrics import class_counts
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
@pytest.mark.parametrize("measures", [None, "balanced, auc", "f1", "rates, auc"])
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
    said = equipoise("report", str(tmp_path / "r"), "-o", str(tmp_path / "r.html")).out
    assert "true-positive" in said
    assert "Rates by group" in (tmp_path / "r.html").read_text()


def test_a_class_that_is_given_asks_for_rates() -> None:
    drawn = people("f", 1, 20, 15) + people("m", 1, 20, 18) + people("f", 0, 20, 15) + people("m", 0, 20, 18)
    about = {"measures": ["accuracy", "balanced"], "classes": ["well", "sick"]}
    assert run(drawn, **about).summary()["group_fairness"] is None
    assert run(drawn, **about, positive="sick").summary()["group_fairness"]["equal_opportunity"] == pytest.approx(15)


@pytest.mark.parametrize("key", ["measures", "client_names", "client_groups", "classes", "header"])
def test_text_in_place_of_a_list_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=rf'meta\["{key}"\] must be a list of names: found \'rates, auc\''):
        run(people("f", 1, 20, 15), **{key: "rates, auc"})
