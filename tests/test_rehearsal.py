"""The dress rehearsal: an experiment of each paper, from files in the layout of the real ones to the page in a browser."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import browser
import fixture_data as plain
import fixture_medical as medical


def few_digits(root: Path) -> None:
    plain.mnist(root, 600, 20)  # a client has one in a hundred
    plain.usps(root, 500, 20)
    plain.svhn(root, 700, 20)
    plain.syn(root, 500, 20)


REHEARSED: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...], set[str]]] = {
    "fedheal/table5": (few_digits, "digits", ("FedAvg", "FPHL + FAEL"), {"mnist", "usps", "svhn", "syn", "AVG", "STD"}),
    "fedld/table2": (lambda root: medical.retina(root, test=12), "split-1", ("FedAvg", "Margin + Principal"), set()),
    "fedism/table1": (
        lambda root: medical.ready(root, "ICH_20", "png", 5, 60, 20),
        "rsna-noise",
        ("FedAvg", "FedISM+ (S)"),
        set(),
    ),
    "fedsac/table7": (lambda root: plain.cifar10(root, 23_000, 200), "cifar10-pow", ("FedSAC (β = 2)",), set()),
}


@pytest.mark.slow
@browser.needs_chromium
@pytest.mark.parametrize("name", REHEARSED)
def test_an_experiment_runs_from_its_files_to_the_page(name: str, tmp_path: Path) -> None:
    make, part, rows, columns = REHEARSED[name]
    make(tmp_path / "data")
    command = [sys.executable, "-m", "equipoise", "reproduce", name, "--data", str(tmp_path / "data"), "--part", part]
    command += ["--seeds", "1", "--rounds", "1", "--runs", str(tmp_path / "runs"), "--json"]
    command += [word for row in rows for word in ("--row", row)]
    place = {**os.environ, "EQUIPOISE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=place, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert {cell["row"] for cell in cells} == set(rows)
    assert all(cell["mean"] is not None and cell["paper"] is not None for cell in cells), cells
    assert not columns or {cell["column"] for cell in cells} == columns
    folder = tmp_path / "runs" / "reproduce" / f"{name.replace('/', '-')}-1-rounds"
    with (folder / "table.csv").open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [float(line["mean"]) for line in written] == pytest.approx([cell["mean"] for cell in cells], abs=1e-3)
    for page in (folder / "index.html", folder / part / "report.html"):
        dom, said = browser.opened(page)
        assert said == []
        assert dom.count("<table") >= 1
        for row in rows:
            assert row in dom.replace("&amp;", "&").replace("<wbr>", "")
        picture = browser.screenshot(page, page.with_suffix(".png"))
        assert picture.stat().st_size > 20_000  # something is drawn
        dark = browser.screenshot(page, page.with_suffix(".dark.png"), browser.DARK)
        assert dark.read_bytes() != picture.read_bytes()
    again = subprocess.run(command, capture_output=True, text=True, env=place, check=True)
    assert json.loads(again.stdout)["cells"] == cells  # nothing is run twice, and nothing changes
