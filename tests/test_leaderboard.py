"""The leaderboard of a benchmark: what it states, what it shows of gaps and failures, and its page in a real browser."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from browser import DARK, measured, needs_chromium, opened, printed, screenshot
from equipoise.report.leaderboard import Leaderboard, leaderboard
from equipoise.report.rendering import rich_sheets
from test_report import Page
from test_report_page import CONTRAST, CUT

pytestmark = pytest.mark.share(0.8)

METHODS = ["fedavg", "qffl", "fedheal", "fedprox(mu=0.1)", "afl"]
SCENARIOS = ["digits", "label-skew", "adult", "quality", "diabetes"]


def cell(scenario: str, method: str, gain: float = 0.0, holm: float = 0.5, std: float = 0.0) -> dict[str, Any]:
    """Results with a difference to the reference."""
    i, j = SCENARIOS.index(scenario), METHODS.index(method) if method in METHODS else 0
    numbers = {"mean": 70.0 + i + gain, "worst": 50.0 + i + gain, "std": 9.0 + std}
    tests = {
        key: {"difference": d, "low": d - 0.5, "high": d + 0.5, "p": holm / 4, "holm": holm}
        for key, d in {"mean": gain, "worst": gain, "std": std}.items()
    }
    return numbers | {
        "seconds": 12.5 + j, "bytes": 1.2e6 * (1 + j), "tuning_seconds": 60.0 + j, "tuning_rounds": 1000 + j,
        "settings": {"lr": 0.05, f"{method}.x": 0.1 * j}, "failed": None, "tuning": f"tuning/{scenario}.html",
        "versus": None if method == "fedavg" else tests,
    }  # fmt: skip


def document(**gains: tuple[float, float, float]) -> dict[str, Any]:
    """All cells, equal to the reference; by method another gain, p-value by Holm and difference of the STD on all scenarios."""
    return {
        "title": "fair-small",
        "about": "Five embedded scenarios, small enough for one night.",
        "reference": "fedavg",
        "budget": {"draws": 8, "by": "worst", "seeds": 5, "validation": 0.2},
        "scenarios": [{"name": s, "title": f"All of {s}", "rounds": 20, "shown": "after the last round", "report": f"reports/{s} 1.html"} for s in SCENARIOS],
        "methods": list(METHODS),
        "cells": {s: {m: cell(s, m, *gains.get(m, (0.0,))) for m in METHODS} for s in SCENARIOS},
    }  # fmt: skip


@pytest.fixture
def gaps() -> Leaderboard:
    """Cells that are missing, that failed, and a scenario without STD."""
    made = document(qffl=(3.0, 0.001, 0.0), afl=(-2.0, 0.2, -3.0))
    made["cells"]["adult"]["fedheal"] = None
    made["cells"]["digits"]["afl"] |= {"failed": "diverged in round 3", "mean": None, "worst": None, "std": 0.0}
    for each in made["cells"]["diabetes"].values():
        each["std"] = None
    return leaderboard(made)


# what is stated
def test_that_nothing_beats_tuned_fedavg_is_the_headline() -> None:
    board = leaderboard(document(qffl=(0.8, 0.001, 0.0), afl=(-4.0, 0.001, 0.0)))
    assert board.headline == (
        "If fedavg is tuned as well, over the scenarios no method beats it, neither by the mean nor by the worst group or client nor by the STD. "
        "In single scenarios some do, by the worst group or client: on digits qffl; on label-skew qffl; on adult qffl; on quality qffl; on diabetes qffl."
    )
    assert board.standings["mean"]["qffl"][:3] == (5, 0, 0)  # sure in each scenario, and too little to matter
    assert board.standings["mean"]["qffl"].probabilities.equal > 0.99
    assert board.standings["mean"]["afl"][:3] == (0, 0, 5)


def test_a_lower_std_is_a_win_and_the_headline_names_it() -> None:
    board = leaderboard(document(afl=(-4.0, 0.001, -4.0), qffl=(3.0, 0.2, 0.5)))
    assert board.standings["std"]["afl"][:3] == (5, 0, 0)
    assert board.standings["mean"]["qffl"][:3] == (0, 5, 0)
    assert board.headline == (
        "2 methods beat tuned fedavg: qffl by the mean and the worst group or client; afl by the STD, with a lower mean."
    )
    assert board.order[0] == "qffl"
    assert [board.standings[key]["afl"].rank for key in ("mean", "std")] == [5.0, 1.0]
    assert leaderboard(document(qffl=(3.0, 0.2, 0.0))).headline.endswith(
        "1 method beats tuned fedavg: qffl by the mean and the worst group or client. None does by the STD."
    )


def test_a_reference_that_failed_is_no_victory_of_its_own() -> None:
    made = document()
    for n, scenario in enumerate(SCENARIOS, 1):
        made["cells"][scenario]["fedavg"] |= {"failed": "diverged", "mean": None, "worst": None, "std": None}
        headline = leaderboard(copy.deepcopy(made)).headline
        assert headline.startswith("Tuned fedavg has no result on digits (failed)")
        assert headline.endswith("So nothing can be stated.") == (n == len(SCENARIOS))


def test_gaps_and_failures_are_named_and_count(gaps: Leaderboard) -> None:
    assert gaps.headline.startswith(
        "Not complete (24 of 25 cells have run). 1 method beats tuned fedavg: qffl by the mean"
    )
    assert "Not run on adult: fedheal." in gaps.notes
    assert "Failed on digits: afl (diverged in round 3)." in gaps.notes
    mean = gaps.standings["mean"]
    assert mean["afl"][:3] == (0, 4, 1)
    assert mean["afl"].rank == pytest.approx((4 + 4 * 4) / 5)
    assert mean["fedheal"].rank is None
    assert sum(mean["fedheal"][:3]) == 4
    assert gaps.rankings["mean"][:2] == (4, 5)
    assert gaps.rankings["std"][:2] == (4, 4)
    assert gaps.standings["std"]["afl"].losses == 1  # not the best STD
    assert sum(gaps.standings["std"]["qffl"][:3]) == 4


def test_a_failed_reference_loses(gaps: Leaderboard) -> None:
    made = copy.deepcopy(gaps.document)
    made["cells"]["digits"]["fedavg"]["failed"] = "guesses"
    board = leaderboard(made)
    assert board.standings["mean"]["fedheal"][:3] == (1, 3, 0)
    assert sum(board.standings["mean"]["afl"][:3]) == 4  # both failed: not compared
    for each in made["cells"].values():
        each["fedavg"] = None
    board = leaderboard(made)
    assert "Tuned fedavg has not run on every scenario, so nothing can be stated." in board.headline
    assert board.standings["mean"]["qffl"].probabilities is None


def test_settings_chosen_by_test_data_are_marked_in_every_row() -> None:
    made = document()
    made["budget"]["by"] = "oracle"
    board = leaderboard(made)
    names = [name for sheet in board.sheets() for name, _ in sheet.grid.rows]
    assert all(name.endswith(" (oracle)") for name in names)
    assert "qffl (oracle)" in {row[0] for row in Page(board.page.html()).tables[0]}
    assert ",qffl (oracle)," in board.page.csv()


def test_a_method_that_is_left_out_loses_nothing() -> None:
    made = document(qffl=(3.0, 0.001, 0.0))
    for method in ("qffl", "afl"):
        made["cells"]["adult"][method] = {
            **dict.fromkeys(cell("adult", method)),
            "settings": {},
            "tuning": "",
            "skipped": "needs a server's data",
        }
    made["scenarios"][0]["report"] = ""
    board = leaderboard(made)
    assert board.standings["mean"]["qffl"][:3] == (4, 0, 0)
    assert board.standings["mean"]["qffl"].rank is None
    assert board.headline.startswith("1 method beats tuned fedavg: qffl")
    assert "Left out on adult: qffl (needs a server's data), afl (needs a server's data)." in board.notes
    assert board.as_dict["skipped"] == {"adult": [f"{m} (needs a server's data)" for m in ("qffl", "afl")]}
    assert "adult,qffl,,," in board.page.csv()
    assert ">left out</a>" in board.page.html()
    assert ["qffl", "adult", "–", "left out: needs a server's data", "", ""] in Page(board.page.html()).tables[-1]
    assert 'href=""' not in board.page.html()


def test_a_scenario_without_the_reference_is_not_counted() -> None:
    made = document()
    made["cells"]["adult"]["fedavg"] |= {"skipped": "needs a server's data"}
    board = leaderboard(made)
    assert board.headline.startswith("Tuned fedavg has no result on adult (left out). If fedavg is tuned")
    assert board.sheets()[0].caption.endswith("over 4 scenarios.")
    assert "(Bayesian signed-rank test over 4 scenarios)" in board.notes[0]


def test_captions_state_the_rounds_of_each_scenario() -> None:
    made = document()
    mean = "Mean in percent, higher is better"
    assert leaderboard(made).sheets()[1].caption == f"{mean}, after the last round."
    made["scenarios"][1]["shown"] = "mean over the last 5 evaluated rounds"
    assert leaderboard(made).sheets()[1].caption == (
        f"{mean}. On digits, adult, quality and diabetes: after the last round. On label-skew: mean over the last 5 evaluated rounds."
    )


def test_before_anything_has_run() -> None:
    made = document()
    made["cells"] = {}
    board = leaderboard(made)
    assert "0 of 25" in board.headline
    assert board.rankings == {}
    assert "not run" in board.page.html()
    assert board.order == METHODS


def test_the_power_of_ranks_is_stated() -> None:
    made, extra = document(), [f"m{k}" for k in range(15)]
    made["methods"] += extra
    for scenario, cells in made["cells"].items():
        cells |= {m: cell(scenario, m, gain=k / 10) for k, m in enumerate(extra)}
    (power,) = {str(ranking) for ranking in leaderboard(made).rankings.values()}
    assert power == (
        "Nemenyi's critical difference is 13.3 of at most 19 ranks: with the 20 methods that ran on every scenario (5), mean ranks can show next to nothing."
    )
    assert {
        power,
        "Nothing corrects these probabilities for the number of methods: of 19 rivals, one can pass by chance.",
    } < {*leaderboard(made).notes}


# files
def test_csv_has_every_number_and_latex_every_table(gaps: Leaderboard, tmp_path: Path) -> None:
    path = gaps.save(tmp_path / "board.html")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "leaderboard.csv").read_text())))
    assert len(rows) == 25
    by_name = {(row["scenario"], row["method"]): row for row in rows}
    assert by_name["digits", "qffl"] | {
        "mean": "73.0", "mean_holm": "0.001", "worst_low": "2.5", "bytes": "2400000.0", "settings": "lr=0.05, qffl.x=0.1",
    } == by_name["digits", "qffl"]  # fmt: skip
    assert by_name["adult", "fedheal"]["failed"] == "not run"
    assert by_name["digits", "afl"]["failed"] == "diverged in round 3"
    latex = (tmp_path / "leaderboard.tex").read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\bottomrule") == len(gaps.sheets()) == 8
    assert re.findall(r"\\label\{tab:(\w+)\}", latex) == [sheet.name for sheet in gaps.sheets()]
    assert latex.isascii() or set(re.sub(r"%.*", "", latex)) <= set(map(chr, range(128)))
    assert path == tmp_path / "board.html"


def test_plain_types_and_the_terminal(gaps: Leaderboard) -> None:
    plain = json.loads(json.dumps(gaps.as_dict, allow_nan=False))
    assert plain["standings"]["mean"]["qffl"]["probabilities"]["better"] > 0.9
    assert plain["standings"]["mean"]["fedavg"]["probabilities"] is None
    console = Console(width=100, record=True, file=io.StringIO())
    for table in rich_sheets(gaps.sheets(), 100):
        console.print(table)
    text = console.export_text()
    assert "+3.0 [+2.5, +3.5] .001" in text
    assert "failed" in text
    assert "Scenarios: digits (All of digits, 20 rounds);" in " ".join(gaps.notes)
    assert max(map(len, text.splitlines())) <= 100


# the page
def test_every_choice_curve_and_failure_is_a_click_away(gaps: Leaderboard) -> None:
    text = gaps.page.html()
    page = Page(text)
    assert len(gaps.answer.split()) <= 25
    assert gaps.answer == "Over the scenarios qffl beats tuned fedavg by the mean and the worst group or client."
    assert all(len({len(row) for row in table}) == 1 for table in page.tables)
    links = [value for name, value in page.attributes if name == "href"]
    ids = {value for name, value in page.attributes if name == "id"}
    within = {link[1:] for link in links if link.startswith("#")}
    assert within == {"overall", *(i for i in ids if i.startswith("choice-"))}
    assert within <= ids
    assert "reports/digits%201.html" in links
    assert "tuning/digits.html" in links
    assert "diverged in round 3" in text
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)


def test_names_of_others_are_harmless() -> None:
    made = document()
    made["title"] = made["about"] = made["scenarios"][0]["title"] = "<script>alert(1)</script>\x1b"
    made["scenarios"][0]["report"] = "javascript:alert(1)"
    made["cells"]["digits"]["qffl"] |= {"failed": "<img src=x>", "settings": {"=1+1": 2}}
    board = leaderboard(made)
    text = board.page.html()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert 'href="javascript:' not in text
    assert "\u02bc=1+1=2" in board.page.csv()


NAMES = (
    """[...page.querySelector("#mean tbody").rows].filter(row => !row.hidden).map(row => row.cells[0].textContent)"""
)


@pytest.mark.slow
@needs_chromium
def test_the_page_sorts_and_filters_in_a_browser(gaps: Leaderboard, tmp_path: Path) -> None:
    path = gaps.save(tmp_path / "board.html")
    for options in ((), (DARK,)):
        assert opened(path, *options)[1] == []
        assert measured(path, CONTRAST, 1000, *options) >= 4.5
    click = 'const b = page.querySelectorAll("#mean th button"); b[{column}].click(); {again}'
    ranked = measured(path, f"(() => {{ {click.format(column=1, again='')} return {NAMES}; }})()", 1000)
    assert ranked == ["qffl", *[m for m in gaps.order if m not in ("qffl", "afl")], "afl"]
    assert measured(
        path, f"(() => {{ {click.format(column=0, again='b[0].click();')} return {NAMES}; }})()", 1000
    ) == sorted(METHODS)
    typed = """(() => { const i = page.querySelector("#choices .filter"); i.value = "QFFL"; i.dispatchEvent(new Event("input"));
      return [...page.querySelector("#choices tbody").rows].filter(row => !row.hidden).map(row => row.cells[0].textContent); })()"""
    assert measured(path, typed, 1000) == ["qffl"] * 5
    for width in (360, 1200):
        too_wide, cut = measured(
            path,
            f"[page.documentElement.scrollWidth - page.documentElement.clientWidth, {CUT}]",
            width,
        )
        assert (too_wide, cut) == (0, [])
    assert screenshot(path, tmp_path / "board.png").stat().st_size > 10_000
    assert printed(path, tmp_path / "board.pdf") <= 6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex on PATH")
def test_latex_compiles(gaps: Leaderboard, tmp_path: Path) -> None:
    (tmp_path / "a.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + gaps.page.latex() + "\\end{document}\n"
    )
    subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"], cwd=tmp_path, check=True, timeout=60
    )


def test_numbers_agree_with_a_plain_loop() -> None:
    made = document()
    rng = np.random.default_rng(0)
    for scenario in SCENARIOS:
        for method in METHODS[1:]:
            made["cells"][scenario][method] = cell(
                scenario, method, float(rng.normal(0, 3)), float(rng.uniform(0, 0.1))
            )
    board = leaderboard(made)
    for method in METHODS[1:]:
        tests = [made["cells"][s][method]["versus"]["mean"] for s in SCENARIOS]
        wins, losses = (sum(t["holm"] < 0.05 and sign * t["difference"] > 0 for t in tests) for sign in (1, -1))
        assert board.standings["mean"][method][:3] == (wins, 5 - wins - losses, losses)
