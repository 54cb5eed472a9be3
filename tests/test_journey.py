"""The page "From a table to a model": its ten commands, one after the other, on its table or a part of it; and those for three sites."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import equipoise as eq
from equipoise.system.seals import open_json
from run_helpers import cache, equipoise
from test_docs import blocks

__all__ = ["cache", "equipoise"]

PAGE = Path(__file__).parents[1] / "docs" / "from-table-to-model.md"


def settings(path: Path) -> None:
    """Change a file of ``init`` as the page says: a column, and the table [report]."""
    (change,) = blocks(PAGE, "toml")
    tables, text = tomllib.loads(change), path.read_text()
    for name in tables["columns"]:
        (line,) = re.findall(rf"^{name} = .*$", change, flags=re.M)
        text, n = re.subn(rf"^{name} = .*$", line, text, flags=re.M)
        assert n == 1
    written = "\n".join(f"{key} = {json.dumps(value)}" for key, value in tables["report"].items())
    text = re.sub(r"^\[report\].*?\n(# .*\n)*", f"[report]\n{written}\n", text, flags=re.M)
    path.write_text(text)
    assert tomllib.loads(text)["report"] == tables["report"]


@pytest.mark.parametrize("every", [30, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.share(10)
def test_ten_commands(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (python,) = blocks(PAGE, "python")
    exec(python, {})
    header, *rows = Path("adult.csv").read_text().splitlines(keepends=True)
    Path("adult.csv").write_text("".join([header, *rows[::every]]))
    commands = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    assert len(commands) == 10
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "equipoise"
        done = equipoise(*words)
        assert done.status == 0, f"{line}\n{done.err}"
        if "--output" in words and words[0] == "init":
            settings(tmp_path / "adult.toml")
    chosen = open_json(Path("runs/first/threshold.json").read_text())
    committee = Path("committee.html").read_text()
    assert "Who earns more than $50,000" in committee
    assert f"Threshold {chosen['threshold']:.4g}: class" in committee
    assert "fnlwgt" not in str(eq.load("income").feature_names_in_)
    with Path("predictions.csv").open() as file:
        predictions = list(csv.DictReader(file))
    assert len(predictions) == 1000
    for row in predictions:
        taken = float(row["probability >50K"]) >= chosen["threshold"]
        assert row["prediction"] == (">50K" if taken else "<=50K")
    assert Path("first.zip").exists()


@pytest.mark.slow
def test_three_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second half of the page: its shell blocks one after the other, on a tenth of the table, with real processes."""
    monkeypatch.chdir(tmp_path)
    (python,) = blocks(PAGE, "python")
    exec(python, {})
    header, *rows = Path("adult.csv").read_text().splitlines(keepends=True)
    Path("adult.csv").write_text("".join([header, *rows[::10]]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(PAGE.parents[1] / "src"), "COLUMNS": "200"}
    script = "\n".join(blocks(PAGE, "bash"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Counts of fewer than 10 rows are joined" in done.stdout
    assert "#" not in Path("agreed.toml").read_text(), "nothing about the data of one site"
    assert re.search(r"rows of 3 sites: [\d,]+ of site-0", Path("sites.html").read_text())
    of_all, of_site = (json.loads(Path(f"income-of-{name}/bundle.json").read_text()) for name in ("all", "site-0"))
    weights = [Path(f"income-of-{name}/model.safetensors").read_bytes() for name in ("all", "site-0")]
    assert weights[0] == weights[1]
    assert [*of_site["measures"]["sets"]] == ["site-0"]
    assert of_site["measures"]["sets"]["site-0"] == of_all["measures"]["sets"]["site-0"]
    assert of_all["measures"]["sets"].keys() == {"site-0", "site-1", "site-2"}
    with Path("predictions-of-site-0.csv").open() as file:
        predictions = list(csv.DictReader(file))
    assert [row["prediction"] for row in predictions] == eq.load("income-of-all").predict(
        pd.read_csv("new.csv")
    ).tolist()
