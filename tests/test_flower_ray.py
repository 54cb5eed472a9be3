"""Many clients of a project on Ray, by the file that the page on sites shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import equipoise as eq
from run_helpers import cache
from test_docs import ROOT, blocks
from test_flower_loopback import app, lines, simulated_blobs

__all__ = ["cache"]

CLIENTS, LIMIT = 4, 900.0  # of the file; seconds for a command


@pytest.mark.slow
def test_clients_on_ray_are_the_simulator(tmp_path: Path) -> None:
    """To the last digit; and what the clients remember is where the sites of `up` have it."""
    pytest.importorskip("ray")
    directory = app(tmp_path / "app")
    (many,) = blocks(ROOT / "docs" / "sites.md", "py")
    plain = '"rounds": 2, "epochs": 1, "lr": 0.05, "momentum": 0.0, "weight-decay": 0.0, "batch-size": 8, "method": "scaffold"'
    (directory / "many.py").write_text(many.replace('"rounds": 2', plain))
    done = subprocess.run(
        [sys.executable, "many.py"], cwd=directory, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert lines(directory / "runs/many") == simulated_blobs(
        directory, CLIENTS, "scaffold", 2, solver=eq.SGD(0.05), batch_size=8, engine="sequential"
    )
    kept = {path.parent.parent.parent.name for path in directory.glob("local/sites/*/*/*/*.safetensors")}
    assert kept == {f"site-{k}" for k in range(CLIENTS)}
