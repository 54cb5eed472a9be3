"""Every sentence, table and mark of a report is true for its runs."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.federation.history import History
from equipoise.metrics import class_counts
from equipoise.report import booktabs, markdown, render, rich_table
from equipoise.report.layout import sheets
from equipoise.report.statistics import Comparison
from equipoise.runs.configuration import configure
from run_helpers import cache, equipoise, executed

Call = Callable[..., Any]


def run(
    method: str, seed: int = 0, rounds: int = 3, groups: Sequence[str] = ("a", "b"), *, rates: bool = False, **meta: Any
) -> History:
    """A run whose accuracies follow from method and seed."""
    rng = np.random.default_rng([seed, *method.encode()])
    records = []
    for t in range(rounds):
        scores: dict[str, Any] = {}
        for group in groups:
            y = rng.integers(0, 2, 60)
            predicted = np.where(rng.random(60) < 0.8, y, 1 - y)
            scores[group] = {"accuracy": float((predicted == y).mean()), "loss": 0.5, "n": 60}
            if rates:
                scores[group]["rates"] = class_counts(y, predicted, 2)
        records.append({"round": t, "seconds": 0.1, "groups": scores})
    return History(records, {"method": method, "seed": seed, "scenario": "own", "rounds": rounds, **meta})


# --- a table shows what there is
def everything(histories: Sequence[History], tmp_path: Path) -> str:
    """Every form in which runs are shown."""
    found = Comparison.of(histories)
    booktabs.save(found, tmp_path)
    return markdown(found) + str(found) + render(found)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rates": {"rates": True},
    "other groups": {"groups": ("b", "c", "d")},
    "one group": {"groups": ("c",)},
    "lower bound": {"bound": "lower"},
    "upper bound": {"bound": "upper", "rates": True},
}


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("kinds", [*itertools.permutations(KINDS, 2)], ids=" then ".join)
def test_runs_with_different_measures_stand_in_one_table(kinds: tuple[str, str], seeds: int) -> None:
    histories = [run(kind.replace(" ", "-"), seed, **KINDS[kind]) for kind in kinds for seed in range(seeds)]
    found = Comparison.of(histories)
    json.dumps(found.document, allow_nan=False)
    assert str(found)
    for sheet in sheets(found):
        assert all(len(cells) == len(sheet.grid.titles) for _, cells in sheet.grid.rows)


@pytest.mark.drawn
def test_own_measures_that_some_runs_lack(tmp_path: Path) -> None:
    def with_measure(method: str, name: str, better: str) -> History:
        plain = run(method)
        of = {"value": None, "better": better, "groups": {"a": 0.3, "b": 0.4}, "undefined": {}}
        return History([{**r, "measures": {name: of}} for r in plain.records], plain.meta)

    text = everything([run("none"), with_measure("cost", "cost", "lower"), with_measure("size", "size", "")], tmp_path)
    assert "Measure cost" in text
    assert "Measure size" in text


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A table of people of two groups at three sites."""
    rng = np.random.default_rng(0)
    with (tmp_path / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "height", "label", "client", "group"])
        for k in range(120):
            age, height = rng.normal(size=2)
            writer.writerow([age, height, "yes" if age > 0 else "no", f"site-{k % 3}", "fm"[k % 2]])
    return tmp_path / "people.csv"


def test_bounds_beside_groups_of_people(tmp_path: Path, people: Path, equipoise: Call) -> None:
    """`compare --bounds` on a table with clients and groups: clients that train alone have no rates."""
    for method in ("fedavg", "standalone", "centralised"):
        told = {"scenario": "own", "data": str(people), "rounds": 2, "batch_size": 32}
        executed(tmp_path / "runs" / method, configure(method, **told))
    ended = equipoise("report", *(tmp_path / "runs").iterdir(), "--output", tmp_path / "report.html")
    assert (ended.status, ended.err) == (0, "")
    text = (tmp_path / "report.html").read_text()
    assert "Group fairness" in text
    assert "recorded no rates" in text


def test_training_is_not_lost_with_a_report(
    tmp_path: Path, people: Path, equipoise: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise KeyError("accuracy_gap")

    monkeypatch.setattr("equipoise.report.html.write", fails)
    ended = equipoise(
        "run", "--method", "fedavg", "--data", people, "--rounds", 1, "--runs", tmp_path, "--name", "kept"
    )
    assert ended.status == 1
    (command,) = re.findall(r"`(equipoise report [^`]+)`", ended.err)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    again = equipoise(*shlex.split(command)[1:])
    assert (again.status, again.err) == (0, "")
