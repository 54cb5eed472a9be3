"""The page "Fair to people": its commands on a table nobody here has seen, and the tool that fills its tables in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import people
import pytest
from scipy import stats

import equipoise as eq
from equipoise.metrics import class_counts
from equipoise.records import treatment
from run_helpers import cache, equipoise
from test_docs import ROOT, blocks

__all__ = ["cache", "equipoise"]


def strange_table(path: Path, rows: int = 600) -> None:
    """Work, sex, race and salary of people who do not exist, with the columns that the page names and one that it does not."""
    rng = np.random.default_rng(0)
    lines = ["workclass,sex,race,shoe,hours,fnlwgt,education-num,salary"]
    for k in range(rows):
        sex, race, hours = rng.choice(["Female", "Male"]), rng.choice(["a", "b"]), rng.normal(40, 9)
        rich = hours + 8 * (sex == "Male") + rng.normal(0, 5) > 44
        lines.append(
            f"{rng.choice(['north', 'south', 'west'])},{sex},{race},{rng.integers(30, 47)},{hours:.1f},{k * 7 % 101},"
            f"{rng.integers(1, 16)},{'>50K' if rich else '<=50K'}"
        )
    path.write_text("\n".join(lines) + "\n")


def commands() -> list[str]:
    page = "\n".join(blocks(ROOT / "docs" / "fair-to-people.md", "sh")).replace("\\\n", " ")
    return [line for line in page.splitlines() if "by-sex" in line or "by-both" in line]


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_commands_of_the_page_on_a_strange_table(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    strange_table(tmp_path / "adult.csv")
    assert len(commands()) == 3
    for line in commands()[:count]:
        _, *words = shlex.split(line)
        done = equipoise(*words, *(["--rounds", "2", "--seeds", "1", "--details"] if words[0] == "compare" else []))
        assert done.status == 0, f"{line}\n{done.err}"
        assert "equal opportunity" in " ".join(done.out.split()) or words[0] == "report"
    inputs = json.loads(Path("runs/by-sex/fairgrad-seed0/manifest.json").read_text())["data"]["inputs"]
    assert not [name for name in inputs if name.startswith(("sex", "fnlwgt"))]
    assert count == 1 or "Female" in Path("by-sex.html").read_text()
    fills_a_page(monkeypatch)


def fills_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool, on these runs; its bounds are replaced by a model that is always right, which has no gap in the true positive rate."""
    right = lambda made, *_: [("all right", np.concatenate([data[1] for data in made.tests.values()]))]  # noqa: E731
    monkeypatch.setattr(people, "pooled", right)
    Path("page.md").write_text("before\n<!-- by-sex -->\nold\n<!-- /by-sex -->\nafter\n")
    people.main(["runs/by-sex", "--page", "page.md"])
    before, _, head, _, *rows, _, seeds, _, after = Path("page.md").read_text().splitlines()
    assert seeds == "Seeds: 0."
    assert (before, after) == ("before", "after")
    assert head.startswith("| method | accuracy |")
    names = ["`fedavg`", "`fairgrad`", "`fedfb`", "`reweighing`", "`fedavg+thresholds`", "pooled: all right"]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == names
    assert rows[-1].startswith("| pooled: all right | 100.0 | 0.0 | ")


def score(eo: float, dp: float = 20.0, worse_for: str = "f") -> people.Score:
    return people.Score(80.0 + eo / 10, eo, dp, eo, np.nan, dp, worse_for)


def test_a_row_tests_whether_the_gap_is_halved() -> None:
    reference = {k: score(eo) for k, eo in enumerate([12.0, 14.0, 9.0])}
    mine = {k: score(eo, 19.0, "m" if k else "f") for k, eo in enumerate([2.0, 5.5, 1.0])}
    cells = [cell.strip() for cell in people.row("`x`", mine, reference).strip("|").split("|")]
    p = stats.ttest_rel([2.0, 5.5, 1.0], [6.0, 7.0, 4.5], alternative="less").pvalue
    assert cells == ["`x`", "80.3 ±0.2", "2.8 ±2.4", f"{p:.3f}", "varies", "19.0 ±0.0", "2.8", "–/19"]
    alone = [cell.strip() for cell in people.row("`y`", reference, reference).strip("|").split("|")]
    assert alone[3] == ""
    *_, last = people.table({"`y`": reference, "`x`": {k: mine[k] for k in (1, 2)}})
    assert last == "Seeds: 1, 2."


def test_pooled_bounds_are_measured_as_runs_are() -> None:
    """On a part of Adult: the gaps of every bound are those of its predictions in a plain loop, and reweighing removes the dependence."""
    made = eq.scenario("adult", client="sex", clients=2, alpha=100, test=0.05, bias=["Female", "Male"], drop=0.9)
    y = np.concatenate([data[1] for data in made.tests.values()])
    s = np.concatenate([data[2][:, 0] for data in made.tests.values()])
    guess = (np.arange(len(y)) % 3 == 0).astype(int)
    groups = {name: class_counts(y[s == k], guess[s == k], 2) for k, name in enumerate(made.attributes["sex"])}
    treated = treatment.rates([(0, groups)], 1)
    assert treated is not None
    measured = people.measured(made, "sex", guess)
    rates = [guess[(s == k) & (y == 1)].mean() for k in range(2)]
    assert measured.eo == pytest.approx(100 * abs(rates[0] - rates[1]))
    assert measured.dp == pytest.approx(100 * abs(guess[s == 0].mean() - guess[s == 1].mean()))
    assert measured.accuracy == pytest.approx(100 * (guess == y).mean())
    assert measured.worse_for == made.attributes["sex"][int(np.argmin(rates))]
