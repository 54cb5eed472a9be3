"""The page of what the defaults reach: every method has its row, and a row comes out again."""

from __future__ import annotations

from pathlib import Path

import defaults
import pytest

from equipoise.federation.history import History
from equipoise.methods import METHODS
from equipoise.runs import directory as runs
from equipoise.runs.comparison import complete

LINES = [
    line.strip("|\n ").split(" | ") for line in defaults.PAGE.read_text(encoding="utf-8").splitlines() if "|" in line
]
SHOWN = [name.strip("`") for name in LINES[0][1:]]
ROWS = {line[0].strip("`"): dict(zip(SHOWN, line[1:], strict=True)) for line in LINES[2:]}


def test_the_page_has_every_method_on_every_scenario_it_is_meant_for() -> None:
    assert list(ROWS) == list(METHODS)
    assert set(SHOWN) <= set(defaults.SCENARIOS)
    assert {"digits", "digits-label-skew", "digits-quality", "digits-pow"} <= set(SHOWN)
    for method, cells in ROWS.items():
        for scenario, cell in cells.items():
            assert (cell == "–") is not defaults.meant(method, scenario), (method, scenario, cell)


def test_a_cell_says_how_many_have_learnt_nothing() -> None:
    assert defaults.cell([]) == "–"
    assert defaults.cell([(80.0, True), (82.0, True), (90.0, True)]) == "84.0 (80–90)"
    assert defaults.cell([(10.0, False), (90.0, True)]) == "50.0 (10–90) **1 of 2 learnt nothing**"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SHOWN)
def test_a_row_of_the_page_comes_out_again(tmp_path: Path, scenario: str) -> None:
    planned = {defaults.place(tmp_path, config): config for config in defaults.configs("principal", scenario)}
    for path, config in planned.items():
        runs.start(config, path)
    assert not complete(list(planned), 1)
    again = [defaults.reached(History.from_run(path)) for path in planned]
    there = ROWS["principal"][scenario]
    assert ("learnt nothing" in there) is not all(use for _, use in again)
    # other processors round otherwise, and runs go apart by some points
    mean = float(there.split()[0])
    assert sum(value for value, _ in again) / len(again) == pytest.approx(mean, abs=5)
