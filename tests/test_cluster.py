"""Runs on real clusters of this machine: Slurm, Dask and Ray train what one process trains, bit for bit, whatever is lost on the way."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROUNDS = 6
COMPARE = [
    "compare", "fedavg", "qffl", "--scenario", "digits(train=[24, 20, 28, 32], test=[30, 30, 30, 30])", "--seeds", "3", "--rounds",
    str(ROUNDS), "--network", "mlp(hidden=[8])", "--name", "c",
]  # fmt: skip
SLURM = """
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/d
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def started(runs: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "equipoise", *COMPARE, *more, "--runs", str(runs), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert out.startswith("{"), out
    return json.loads(out)["methods"]


def rounds(runs: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in runs.glob("c/*/metrics.jsonl"))


def wait_for(runs: Path, n: int) -> None:
    deadline = time.monotonic() + 200
    while rounds(runs) < n:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def recorded(runs: Path) -> dict[str, list[Any]]:
    """What every run has recorded, without times; each round once."""
    content = {}
    for path in sorted(runs.glob("c/*/metrics.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [record["round"] for record in records] == [*range(ROUNDS)]
        content[path.parent.name] = [[record["ids"], record["groups"], record["weights"]] for record in records]
    assert len(content) == 6
    return content


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, list[Any]]]:
    runs = tmp_path_factory.mktemp("alone")
    return ended(started(runs, "--jobs", "2")), recorded(runs)


def ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node with two slots."""
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
        pytest.skip("Slurm cannot be started here: apt-get install slurm-wlm munge, as root")
    for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        Path(folder).mkdir(exist_ok=True)
        shutil.chown(folder, "munge", "munge")
    subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=False, capture_output=True)  # it may run already
    for name in ("ctld", "d"):
        (tmp_path / name).mkdir()
    settings = tmp_path / "slurm.conf"
    settings.write_text(SLURM.format(host=socket.gethostname().split(".")[0], folder=tmp_path, ports=ports(2)))
    monkeypatch.setenv("SLURM_CONF", str(settings))
    for daemon in ("slurmctld", "slurmd"):
        subprocess.run([daemon, "-f", str(settings)], check=True)
    deadline = time.monotonic() + 60
    while "idle" not in subprocess.run(["sinfo", "-h"], capture_output=True, text=True, check=False).stdout:
        assert time.monotonic() < deadline, (tmp_path / "ctld.log").read_text()
        time.sleep(0.5)
    yield
    subprocess.run(["scancel", "--user=root"], check=False)
    for name in ("ctld.pid", "d.pid"):
        os.kill(int((tmp_path / name).read_text()), signal.SIGTERM)


def tasks(state: str) -> list[str]:
    listed = ["squeue", "--noheader", "--array", f"--states={state}", "--format=%F_%K"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def test_the_queue_trains_what_one_process_trains(slurm: None, alone: tuple[Any, Any], tmp_path: Path) -> None:
    place = ("--on", "slurm(time=5)")
    process = started(tmp_path / "runs", *place)
    wait_for(tmp_path / "runs", 2)
    process.send_signal(signal.SIGINT)  # the command is left
    _, err = process.communicate(timeout=100)
    assert "The same command follows them." in err
    wait_for(tmp_path / "runs", min(rounds(tmp_path / "runs") + 1, 6 * ROUNDS))  # without the command
    process = started(tmp_path / "runs", *place)
    wait_for(tmp_path / "runs", 4)
    for task in tasks("R")[:1]:
        subprocess.run(["scancel", task], check=True)
    ended_with = ended(process)
    assert ended_with == alone[0]
    assert recorded(tmp_path / "runs") == alone[1]


def test_a_dask_cluster_may_lose_a_worker(alone: tuple[Any, Any], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options, local_directory=str(tmp_path / "dask")) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        process = started(tmp_path / "runs", "--on", address)
        wait_for(tmp_path / "runs", 3)
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
        assert ended(process) == alone[0]
    assert recorded(tmp_path / "runs") == alone[1]


@pytest.mark.filterwarnings("ignore")  # Ray leaves files open
def test_a_ray_cluster_may_lose_a_node(alone: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        process = started(tmp_path / "runs", "--on", "ray")
        wait_for(tmp_path / "runs", 3)
        cluster.remove_node(node, allow_graceful=False)
        assert ended(process) == alone[0]
    finally:
        cluster.shutdown()
    assert recorded(tmp_path / "runs") == alone[1]
