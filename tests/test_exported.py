"""An exported model says all that is needed to predict with it; a folder of runs says which runs are in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from equipoise import networks
from equipoise.data.tables.coding import Coder
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

N = 90


def table(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    draw = np.random.default_rng(3)
    y = draw.permutation(np.arange(N) % 2)
    x = np.round(
        np.stack([50 + 9 * draw.normal(size=N) + 6 * y, 1e-3 * draw.normal(size=N), draw.integers(0, 4, N)], 1), 5
    )
    rows = [
        f"{a},{b},{int(c)},{('well', 'ill')[k]},{'pq'[j % 2]}"
        for j, ((a, b, c), k) in enumerate(zip(x, y, strict=True))
    ]
    path.write_text("\n".join(["age,crp,stage,label,client", *rows]) + "\n")
    return x


def test_the_file_alone_predicts_as_the_run_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv")
    run = ("run", "--data", "t.csv", "--rounds", "2", "--network", "mlp(hidden=[7])", "--name", "a", "--no-report")
    assert equipoise(*run).status == 0
    done = equipoise("export", "runs/a")
    assert (done.status, "describe it: method, classes" in done.out) == (0, True)
    path = tmp_path / "runs/a/models/global.safetensors"
    with safe_open(path, "pt") as file:
        about = file.metadata()
    assert json.loads(about["inputs"]) == ["age", "crp", "stage"]
    x, _ = Coder.of(json.loads(about["schema"])).encode_frame(pd.read_csv("t.csv"))
    classes = json.loads(about["classes"])
    assert about["network"] == "mlp(hidden=[7])"
    net = networks.build("mlp", (3,), len(classes), hidden=[7])
    net.load_state_dict(load_file(path))
    with torch.no_grad():
        made = net(torch.from_numpy(x)).argmax(1)
    tests = json.loads(Path("runs/a/manifest.json").read_text())["data"]["tests"]
    label = [line.split(",")[3] for line in Path("t.csv").read_text().splitlines()[1:]]
    last = json.loads(Path("runs/a/metrics.jsonl").read_text().splitlines()[-1])
    for name, rows in tests.items():
        right = np.mean([classes[int(made[row])] == label[row] for row in rows])
        assert last["groups"][name]["accuracy"] == pytest.approx(right), last


def test_a_folder_of_runs_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for k in range(12):
        (tmp_path / "runs/both" / f"fedavg-seed{k:02}").mkdir(parents=True)
        (tmp_path / "runs/both" / f"fedavg-seed{k:02}/config.toml").write_text("")
    for command in ("export", "resume"):
        said = equipoise(command, "runs/both").err
        assert "Give one of the runs in it: runs/both/fedavg-seed00, runs/both/fedavg-seed01" in said
        assert "and 2 more." in said
        assert "Runs are in runs/" in equipoise(command, "runs").err
