"""Loss and sharpness of clients at growing search distances, and the command that draws them."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.analysis.landscape import States, perturbed_losses, states
from equipoise.report import analysis as draw
from equipoise.runs import directory as runs
from helpers import network, oracle_of, samples
from run_helpers import equipoise
from test_analysis import run_of

RHO = [0.0, 0.05, 0.2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "saga"):
        runs.execute(run_of(base / method, method), progress=False)
    return base


def naive(net: nn.Module, x: torch.Tensor, y: torch.Tensor, rho: float) -> float:
    """Autograd on the whole data set, and the loss where the step along the gradient leads."""
    net.eval()
    start = nn.utils.parameters_to_vector(net.parameters()).detach()
    g = torch.cat([x.flatten() for x in torch.autograd.grad(nn.functional.cross_entropy(net(x), y), net.parameters())])
    nn.utils.vector_to_parameters(start + rho * g / g.norm(), net.parameters())
    with torch.no_grad():
        found = float(nn.functional.cross_entropy(net(x), y))
    nn.utils.vector_to_parameters(start, net.parameters())
    return found


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_the_definition(kind: str) -> None:
    x, y = samples(13, 1)
    oracle = oracle_of(network(kind), x, y, eq.SGD(1.0))
    found = perturbed_losses(oracle, oracle.evaluator.model.initial, RHO)
    assert found == pytest.approx([naive(network(kind), x, y, rho) for rho in RHO], abs=1e-10)
    assert found[0] < found[1] < found[2]


def test_of_every_client_of_a_run(trained: Path) -> None:
    heard: list[tuple[int, int]] = []
    found = states(
        [trained / "fedavg", trained / "saga"], rho_max=0.2, points=3, on_client=lambda *now: heard.append(now)
    )
    assert heard == 2 * [(m, 4) for m in (1, 2, 3, 4)]
    for path, one in zip(("fedavg", "saga"), found, strict=True):
        fed, data = runs.federation(runs.load(trained / path))
        fed.resume(trained / path)
        assert one.groups == tuple(data.client_groups)
        assert one.rho.tolist() == pytest.approx([0, 0.1, 0.2])
        assert not one.sharpness[:, 0].any()
        for losses, samples_of in zip(one.loss, fed.trial.data, strict=True):
            batch = samples_of.batch(torch.arange(samples_of.size), None)
            assert losses.tolist() == pytest.approx(
                [naive(fed.network(), batch.x, batch.y, rho) for rho in one.rho], rel=1e-4
            )
    frame = found[0].frame()
    assert frame.groupby("client")["group"].first().tolist() == list(found[0].groups)
    assert frame["loss"].tolist() == found[0].loss.ravel().tolist()
    assert frame["sharpness"].tolist() == found[0].sharpness.ravel().tolist()


def test_bad_numbers(trained: Path, tmp_path: Path) -> None:
    for how, message in (({"rho_max": 0}, "rho_max must be > 0"), ({"points": 1}, "points must be")):
        with pytest.raises(ValueError, match=message):
            states([trained / "fedavg"], **how)
    with pytest.raises(ValueError, match="at least one run"):
        states([])
    with pytest.raises(ValueError, match="holds no trained model yet"):
        states([run_of(tmp_path / "begun")])
    with pytest.raises(ValueError, match="every client trains alone, and there is no global model"):
        states([run_of(tmp_path / "alone", "standalone")])


def test_the_figure_has_a_panel_for_each_group_and_a_line_for_each_run() -> None:
    loss = np.array([[1.0, 2.0], [1.0, 4.0], [3.0, 3.5]])
    one = States("a", 0, ("x", "x", "y"), np.array([0.0, 0.1]), loss)
    other = States("b", 0, ("x",), np.array([0.0, 0.1]), loss[:1])
    x, y = draw.states([one, other], "sharpness").axes
    assert [line.get_ydata().tolist() for line in x.lines] == [[0, 2], [0, 1]]
    assert [line.get_ydata().tolist() for line in y.lines] == [[0, 0.5]]
    assert x.collections[0].get_paths()[0].vertices[:, 1].max() == 3
    assert draw.states([one, other], "loss").axes[0].lines[0].get_ydata().tolist() == [1, 3]


def test_the_command(trained: Path, tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = equipoise("analyse", "states", str(trained), "--points=3", "--rho-max=0.1")
    assert done.status == 0, done.err
    assert "ρ = 0.05" in done.out
    names = {f"states-{what}.{ending}" for what in ("loss", "sharpness", "rounds") for ending in ("pdf", "png")}
    assert {path.name for path in (tmp_path / "states").iterdir()} == {"states.csv", *names}
    assert len(pd.read_csv(tmp_path / "states/states.csv")) == 2 * 4 * 3
    done = equipoise("analyse", "states", str(trained / "fedavg"), "--points=2", "--json")
    assert [row["rho"] for row in json.loads(done.out)] == 4 * [0.0, 0.2]
    refused = equipoise("analyse", "states", str(trained / "fedavg"), "--points=2", "--json", "-o", "none")
    assert (refused.status, (tmp_path / "none").exists()) == (2, False)
