"""Federations of real processes on this machine; every wait in them has a limit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.flower.deploy import project
from equipoise.flower.deploy.certificates import make_certificates
from equipoise.flower.deploy.local import LocalFederation
from equipoise.flower.deploy.superlink import Outcome
from equipoise.system.errors import RunError
from run_helpers import cache, process

__all__ = ["cache"]

LIMIT = 1800.0  # seconds for a run; about one minute if nothing else runs


class Killed(Exception):  # noqa: N818
    """What a test raises once it has killed a server."""


BLOBS = """
import time
from pathlib import Path

import torch
from torch import nn

from equipoise.federation import guard
from equipoise.flower import Task


def blobs(k, n=24):
    draw = torch.Generator().manual_seed(k)
    y = torch.arange(n) % 3
    return torch.randn(n, {width}, generator=draw) + y[:, None], y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear({width}, {hidden}), nn.ReLU(), nn.Linear({hidden}, 3))


def task(node_config, run_config):
    if "partition-id" not in node_config:
        return Task(network())
    k = node_config["partition-id"]
    calls = Path(node_config["state-dir"]) / "calls"  # one for each message: the first one asks who the site is
    n = int(calls.read_text()) + 1 if calls.exists() else 1
    calls.write_text(str(n))
    (x, y), how = blobs(k), node_config.get("data-how", "well")
    if how == "raises" and n > 1:
        raise RuntimeError("patient %d of /data/ward-%d" % (4711, 7))  # words that the source, which travels, does not have
    if how == "stalls" and n == 2:
        time.sleep(600)
    if how == "lies" and n > 1:
        x, guard.inspect = torch.full_like(x, torch.inf), lambda *_: []
    return Task(network(), train=(x, y), test=blobs(100 + k))
"""


def app(directory: Path, width: int = 8, hidden: int = 6) -> Path:
    """A project whose sites have two easy blobs, and misbehave as their node configuration says."""
    project.init(directory, 2)
    (directory / "mytask.py").write_text(BLOBS.replace("{width}", str(width)).replace("{hidden}", str(hidden)))
    apps = directory / "myapp.py"
    apps.write_text(apps.read_text().replace("(task, METHOD)", "(task)"))  # these sites take part in any run
    return directory


def blobs(directory: Path) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec((directory / "mytask.py").read_text(), space)
    return space


def lines(directory: Path) -> list[dict[str, Any]]:
    """The records of a run without what depends on how it was made: its times, and what sites and server exchanged."""
    rows = [json.loads(row) for row in (directory / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.get("clients", {}).pop(
            "n", None
        )  # a site's test samples are its own, where clients of a simulation share them
    return [{k: v for k, v in row.items() if k not in ("seconds", "times", "sent", "hash")} for row in rows]


def simulated(
    net: Any, data: Sequence[Any], tests: Sequence[Any], method: str, rounds: int, **settings: Any
) -> list[dict[str, Any]]:
    """The same records from a simulation of sites of these names."""
    names = [f"site-{k}" for k in range(len(data))]
    fed = eq.Federation(
        net, data, method, tests=dict(zip(names, tests, strict=True)), groups=names, names=names, **settings
    )
    fed.fit(rounds, progress=False)
    rows = [
        {k: v for k, v in json.loads(json.dumps(row)).items() if k not in ("seconds", "losses")} for row in fed.records
    ]
    for row in rows:  # which samples are right, how classes are taken for others, and ranks are the sites' own
        row["groups"] = {
            g: {k: v for k, v in of.items() if k not in ("rates", "correct", "ranks")}
            for g, of in row["groups"].items()
        }
    return rows


def simulated_blobs(directory: Path, n: int, method: str, rounds: int, **settings: Any) -> list[dict[str, Any]]:
    space = blobs(directory)
    data = [space["blobs"](k) for k in range(n)]
    tests = [space["blobs"](100 + k) for k in range(n)]
    return simulated(space["network"](), data, tests, method, rounds, **settings)


def changes(run: Path, **more: Any) -> dict[str, Any]:
    plain = {"epochs": 1, "lr": 0.05, "momentum": 0.0, "weight-decay": 0.0, "batch-size": 8, "wait": 120.0}
    return {**plain, "run-dir": str(run), **{key.replace("_", "-"): value for key, value in more.items()}}


def assert_completed(outcome: Outcome, local: LocalFederation) -> None:
    logs = "\n".join(f"--- {name}\n{local.log(name)[-3000:]}" for name in ("run", "superlink", *local.sites))
    assert outcome.completed, f"{outcome}\n{logs}"


def left_running(local: LocalFederation) -> list[bytes]:
    """Processes whose environment names the federation's directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={local.directory}".encode() in entry.read_bytes():
                found.append((entry.parent / "cmdline").read_bytes())
        except OSError:  # it ended, or is not ours
            continue
    return [words for words in found if words]


def assert_nothing_runs(local: LocalFederation) -> None:
    limit = time.monotonic() + 20  # what a site that was refused had started ends on its own
    while left_running(local) and time.monotonic() < limit:
        time.sleep(0.1)
    assert left_running(local) == []


@pytest.mark.slow  # the test with TLS and keys takes the same way, and more
def test_two_sites_without_encryption(tmp_path: Path, cache: Path) -> None:
    """The project as it is written for a newcomer, one round; and a run that fails says why."""
    project.init(tmp_path / "app", 2)
    run = tmp_path / "run"
    with LocalFederation(tmp_path / "local", tmp_path / "app", 2) as local:
        assert_completed(local.run({"rounds": 1, "run-dir": str(run), "log": "json"}, limit=LIMIT), local)
        said = [json.loads(line) for line in local.log("run").splitlines() if line.startswith("{")]
        failed = local.run({"sites": "site-7", "wait": 0.5, "run-dir": str(tmp_path / "other")}, limit=LIMIT)
    assert_nothing_runs(local)
    assert failed.finished
    assert not failed.completed
    assert "site-7" in failed.reason
    files = {"config.toml", "manifest.json", "metrics.jsonl", "summary.json", "report.html", "checkpoint"}
    assert files <= {path.name for path in run.iterdir()}
    (record,) = lines(run)
    assert record["groups"].keys() == {"site-0", "site-1"}
    assert "quarantined" not in record
    assert [line["message"][:16] for line in said if line.get("round") == 0] == ["round 1: 2 sites"]
    (times,) = [json.loads(row)["times"] for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < site < answered for site, answered in zip(times["site"], times["answered"], strict=True))
    assert "equipoise_site_training_seconds" in (run / "metrics.prom").read_text()
    ours = [
        path for name in ("*.log", "*.toml", "sites/**/*", "home/config.toml") for path in local.directory.glob(name)
    ]
    assert {path.name for path in ours} >= {
        "site-0.log",
        "superlink.log",
        "run.log",
        "site-1.toml",
        "model.safetensors",
    }
    assert not [path for path in (local.directory, *ours) if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_two_sites_with_tls_and_keys_are_the_simulator(tmp_path: Path, cache: Path) -> None:
    """Two rounds, equal to the last digit that is printed; and a site whose key is not registered stays out."""
    project.init(tmp_path / "app", 2)
    run = tmp_path / "run"
    with LocalFederation(tmp_path / "local", tmp_path / "app", 2, tls=True) as local:
        assert_completed(local.run({"rounds": 2, "run-dir": str(run)}, limit=LIMIT), local)
        make_certificates(local.certificates, (), ["stranger"])
        local.kill("site-1")
        with pytest.raises(RunError, match="site-1 ended with status") as refused:
            local.start_site("site-1", key=local.certificates / "stranger")
    assert_nothing_runs(local)
    assert "Exit Code: 305" in str(refused.value)
    assert "Failed to activate SuperNode" in str(refused.value)
    digits = eq.scenario("digits", seed=0)
    clients = [0, 5]
    expected = simulated(
        eq.network("cnn", seed=0), [digits.clients[k] for k in clients],
        [digits.tests[digits.client_groups[k]] for k in clients],  # type: ignore[index]
        "fedheal", 2, solver=eq.SGD(0.02, 0.9, 1e-5), epochs=2, batch_size=32, seed=0, transform=digits.transform,
    )  # fmt: skip
    assert lines(run) == expected


@pytest.mark.slow
def test_the_command_line_stops_what_it_started(tmp_path: Path) -> None:
    """Ctrl-C while the processes start: they end, and so does the command, with status 130."""
    base = app(tmp_path / "app")
    words = [sys.executable, "-m", "equipoise", "flower", "up", str(base), "--sites", "2"]
    up = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        limit = time.monotonic() + 60
        while not (base / "local" / "site-0.log").exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
        up.send_signal(signal.SIGINT)
        _, told = up.communicate(timeout=LIMIT)
    finally:
        up.kill()
        up.wait()
    assert up.returncode == 130
    assert "Stopped" in told
    assert_nothing_runs(LocalFederation(base / "local", base))


@pytest.mark.slow
def test_the_command_line_runs_a_federation(tmp_path: Path) -> None:
    """Up with TLS from a file of node configurations; and a run that cannot be in the same place ends with status 1."""
    base = app(tmp_path / "app")
    (tmp_path / "nodes.toml").write_text("[north]\n[south]\ndata-how = 'well'\n")
    words = [
        "flower",
        "up",
        base,
        "--tls",
        "--node-config",
        tmp_path / "nodes.toml",
        "-c",
        "rounds=1 lr=0.05",
        "--json",
    ]
    done = process(*words)
    assert done.returncode == 0, done.stderr
    assert "fedheal" in done.stdout
    assert json.loads(done.stdout)
    (record,) = lines(base / "runs" / "flower")
    assert record["groups"].keys() == {"north", "south"}
    failed = process(*words[:-2], "rounds=2 lr=0.05")
    assert failed.returncode == 1
    assert "other settings" in failed.stderr


@pytest.mark.slow
def test_a_site_that_is_killed_is_left_out(tmp_path: Path) -> None:
    """SIGKILL in the middle of its training: the round and the run complete without it."""
    run, told = tmp_path / "run", {"site-2": {"data-how": "stalls"}}
    with LocalFederation(tmp_path / "local", app(tmp_path / "app"), 3, node_config=told) as local:
        calls = local.directory / "sites" / "site-2" / "calls"
        killed = []

        def watch() -> None:
            if not killed and calls.exists() and calls.read_text() == "2":
                killed.append(local.kill("site-2"))

        outcome = local.run(changes(run, method="fedavg", rounds=2, min_sites=3), limit=LIMIT, watch=watch)
        assert_completed(outcome, local)
    assert killed
    first, second = lines(run)
    assert [q["name"] for q in first["quarantined"]] == ["site-2"]
    assert first["ids"] == second["ids"] == [0, 1]


@pytest.mark.slow
def test_sites_that_raise_or_lie_are_left_out(tmp_path: Path) -> None:
    """An exception and an update that is not finite; of what a site said in its exception nothing leaves it."""
    run, told = tmp_path / "run", {"site-1": {"data-how": "raises"}, "site-2": {"data-how": "lies"}}
    with LocalFederation(tmp_path / "local", app(tmp_path / "app"), 4, node_config=told) as local:
        outcome = local.run(changes(run, method="fedavg", rounds=1, min_sites=4), limit=LIMIT)
        assert_completed(outcome, local)
        (record,) = lines(run)
        reasons = {q["name"]: q["reason"] for q in record["quarantined"]}
        assert reasons.keys() == {"site-1", "site-2"}
        assert "RuntimeError" in reasons["site-1"]
        assert "NaN" in reasons["site-2"]
        assert record["ids"] == [0, 3]
        assert "patient 4711" in local.log("site-1")
        told_to_server = [local.log("superlink"), local.log("run"), *(p.read_text() for p in run.glob("*.json*"))]
        assert not any("4711" in text or "ward-7" in text for text in told_to_server)
    database = [path.read_bytes() for path in local.directory.glob("superlink.db*")]
    assert database
    assert not any(b"patient 4711" in content or b"ward-7" in content for content in database)


@pytest.mark.slow
def test_a_run_goes_on_after_its_server_was_killed(tmp_path: Path) -> None:
    """SIGKILL of SuperLink and ServerApp after the first round; the second attempt ends as a simulation does."""
    run, method = tmp_path / "run", "scaffold+fedheal"
    told = changes(run, method=method, rounds=2)

    with LocalFederation(tmp_path / "local", app(tmp_path / "app"), 2, tls=True) as local:

        def watch() -> None:
            if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 1:
                local.kill("superlink")
                raise Killed

        with pytest.raises(Killed):
            local.run(told, limit=LIMIT, watch=watch)
        done = len(lines(run))
        local.start_server()
        assert_completed(local.run(told, limit=LIMIT), local)
    assert done == 1
    expected = simulated_blobs(tmp_path / "app", 2, method, 2, solver=eq.SGD(0.05), batch_size=8)
    assert lines(run) == expected


@pytest.mark.slow
def test_large_states_are_not_lost(tmp_path: Path) -> None:
    """A model of 50 MB and a control variate of 50 MB at every site; the second round needs those of the first."""
    run, width, hidden = tmp_path / "run", 2048, 6144
    settings = changes(run, method="scaffold", rounds=2, lr=0.001)
    with LocalFederation(tmp_path / "local", app(tmp_path / "app", width, hidden), 2) as local:
        assert_completed(local.run(settings, limit=LIMIT), local)
        states = list((local.directory / "sites").rglob("state-*.safetensors"))
    assert min(path.stat().st_size for path in states) > 50e6
    expected = simulated_blobs(tmp_path / "app", 2, "scaffold", 2, solver=eq.SGD(0.001), batch_size=8)
    assert lines(run) == expected
    assert torch.tensor([group["loss"] for row in expected for group in row["groups"].values()]).isfinite().all()
