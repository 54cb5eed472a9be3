"""What trains at the defaults: the table of docs/data, and one row of it trained again."""

from __future__ import annotations

from pathlib import Path

import defaults
import pytest
from stored import stored

from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.methods import METHODS

TITLES, *ROWS = stored("defaults")
CELLS = {name.strip("`"): cells for name, *cells in ROWS}
METHOD = "sam"  # at chance with the network that was the default before


def test_the_table_has_every_method_on_every_scenario_without_files() -> None:
    assert ["method", *(f"`{name}`" for name in defaults.EMBEDDED)] == TITLES
    assert [*CELLS] == [name for name in METHODS if "sensitive" not in parse(name).needs]
    for method, cells in CELLS.items():
        for scenario, cell in zip(defaults.EMBEDDED, cells, strict=True):
            assert (cell == "–") == (not defaults.configured(method, scenario)), (method, scenario)


def test_a_model_that_guesses_and_a_cell_that_cannot_be_run_are_marked() -> None:
    def history(right: int) -> History:
        rates = {"right": [right, 0], "true": [50, 50], "chosen": [50 + right, 50 - right]}
        groups = {"all": {"accuracy": right / 100, "loss": 0.7, "n": 100, "rates": rates}}
        return History([{"round": 0, "groups": groups, "clients": {"accuracy": [right / 100] * 2}}], {"method": "m"})

    assert defaults.shown([history(50), history(50), history(49)]) == "50†††"
    assert defaults.shown([]) == "–"
    good = {"right": [40, 41], "true": [50, 50], "chosen": [49, 51]}
    groups = {"all": {"accuracy": 0.81, "loss": 0.5, "n": 100, "rates": good}}
    assert (
        defaults.shown(
            [History([{"round": 0, "groups": groups, "clients": {"accuracy": [0.8, 0.82]}}], {"method": "m"})]
        )
        == "81"
    )


@pytest.mark.slow
def test_a_row_of_the_table_is_what_its_runs_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario of each kind, the first of three seeds, which differ, as processors do: within ten points."""
    row = dict(zip(defaults.EMBEDDED, CELLS[METHOD], strict=True))
    monkeypatch.setattr(defaults, "SEEDS", range(1))
    monkeypatch.setattr(defaults, "EMBEDDED", ("digits-quality", "digits-label-skew", "digits-cla"))
    cells = defaults.trained([METHOD], tmp_path, 2, progress=False)[METHOD]
    assert [*cells] == [*defaults.EMBEDDED]
    for scenario, cell in cells.items():
        assert [run.failure(defaults.LAST) for run in cell] == [""]
        assert abs(float(defaults.shown(cell)) - float(row[scenario])) < 10
