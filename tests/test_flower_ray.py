"""The command that simulates many clients on a Ray cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

import equipoise as eq
from equipoise.flower.deploy import cluster
from equipoise.flower.deploy.superlink import FlowerError
from run_helpers import cache
from test_flower_loopback import app, lines, simulated_blobs

__all__ = ["cache"]

CLIENTS, LIMIT = 4, 300.0  # seconds for a command
PLAIN = "epochs=1 lr=0.05 momentum=0.0 weight-decay=0.0 batch-size=8"
BROKEN = """
def task(node_config, run_config):
    if node_config.get("partition-id") == 2:
        raise RuntimeError("there is no scanner")
    return good(node_config, run_config)
"""


def equipoise(*words: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equipoise", "flower", "ray", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_clients_on_ray_are_the_simulator(method: str, tmp_path: Path) -> None:
    """To the last digit; and what the clients remember is where the sites of `up` have it."""
    directory = app(tmp_path / "app")
    done = equipoise(directory, "--clients", CLIENTS, "-c", f'{PLAIN} rounds=2 method="{method}"', "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert lines(directory / "runs/flower") == simulated_blobs(
        directory, CLIENTS, method, 2, solver=eq.SGD(0.05), batch_size=8, engine="sequential"
    )
    kept = sorted(path.parent.parent.parent.name for path in directory.glob("local/sites/*/*/*/*.safetensors"))
    assert set(kept) == {f"site-{k}" for k in range(CLIENTS)}


@pytest.mark.slow
def test_a_task_that_fails_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    directory = app(tmp_path / "app")
    (directory / "mytask.py").write_text((directory / "mytask.py").read_text().replace("def task", "def good") + BROKEN)
    done = equipoise(directory, "--clients", CLIENTS, "-c", PLAIN)
    assert done.returncode == 1, done.stdout
    assert "site-0, site-1, site-3" in done.stderr  # who is there
    assert "there is no scanner" in done.stderr  # and why the other is not: these clients are all ours


def test_apps_of_a_project_are_found_in_its_folder(tmp_path: Path) -> None:
    directory = app(tmp_path / "app").resolve()
    with pytest.raises(FlowerError, match="there is no module 'nothing' here"):
        cluster.Reference(directory, "nothing:client").load()
    with pytest.raises(FlowerError, match="no module 'json' here, but one in"):
        cluster.Reference(directory, "json:client").load()
    (directory / "empty_of_apps.py").write_text("")
    with pytest.raises(FlowerError, match="has no 'client'"):
        cluster.Reference(directory, "empty_of_apps:client").load()


def test_a_client_takes_something() -> None:
    with pytest.raises(ValueError, match="cpus > 0"):
        cluster.Cluster(cpus=0)
    with pytest.raises(ValueError, match="memory >= 0"):
        cluster.Cluster(memory=-1)


@pytest.mark.parametrize(
    ("asked", "found"),
    [({"cpus": 2}, 2), ({"cpus": 0.5}, 0.5), ({"memory": 3}, 4), ({"memory": 30}, None), ({"gpus": 1}, None), ({"cpus": 9}, None)],
)  # fmt: skip
def test_as_many_clients_at_a_time_as_fit(
    asked: dict[str, float], found: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    machines = [{"Alive": True, "Resources": {"CPU": 8.0, "memory": 8e9}}, {"Alive": False, "Resources": {}}]
    monkeypatch.setattr(ray, "nodes", lambda: machines)
    if found is None:
        with pytest.raises(FlowerError, match=r"8 CPUs, 0 GPUs, 8\.0 GB"):
            cluster.Cluster(**asked).share()  # type: ignore[arg-type]
    else:
        assert cluster.Cluster(**asked).share()["num_cpus"] == found  # type: ignore[arg-type]


def test_clients_are_told_who_they_are(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def client(_: Any, context: Context) -> Any:
        seen.append({**context.node_config, "rounds": context.run_config["rounds"]})
        context.state["mine"] = ConfigRecord({"seen": 1})

    sites = {"north": {"data-path": "/n"}, "south": {}}
    app = cluster.Virtual(client, {"rounds": 2}, {"threads": 1}, sites, tmp_path)  # type: ignore[arg-type]
    told = Context(1, 7, {"partition-id": 1, "num-partitions": 2}, RecordDict(), {})
    app(None, told)  # type: ignore[arg-type]
    where = str(tmp_path / "south")
    assert seen == [
        {"partition-id": 1, "num-partitions": 2, "site": "south", "threads": 1, "state-dir": where, "rounds": 2}
    ]
    assert Path(where).is_dir()
    assert told.run_config == {}  # Flower wants it back as it was
    assert "mine" in told.state
    with pytest.raises(ValueError, match="all 3 clients; found 2"):
        cluster.simulate(None, None, 3, sites=sites)  # type: ignore[arg-type]


def test_settings_that_cannot_be_used_start_nothing(tmp_path: Path) -> None:
    with pytest.raises(FlowerError, match="Nothing was started"):
        cluster.run(app(tmp_path / "app"), CLIENTS, {"method": "fedavgg"})


def test_a_grid_says_when_the_simulation_is_over() -> None:
    """Otherwise the server would wait for clients that are no more."""
    import threading

    over = threading.Event()
    watched = cluster.Watched([1, 2], over)  # type: ignore[arg-type]
    assert watched.count(1) == 1
    over.set()
    with pytest.raises(FlowerError, match="over"):
        watched.count(1)
