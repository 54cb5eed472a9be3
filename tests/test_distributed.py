"""One federation over several processes: the bits of one process, whatever their number, and one error if any of them is lost."""

# ruff: noqa: F811 (a fixture)

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import distributed_cases
import equipoise as eq
from equipoise.engines import distributed
from equipoise.engines.distributed import deal
from equipoise.system.errors import InputError
from helpers import federation, identical
from run_helpers import equipoise  # noqa: F401 (a fixture)

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE)]), "OMP_NUM_THREADS": "1"}


def started(*words: object) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    return subprocess.run(command, env=variables(), capture_output=True, text=True, timeout=240)


def script(case: str, folder: Path, rounds: int, workers: int | None, *more: str) -> subprocess.CompletedProcess[str]:
    """Train a case by so many ranks that it starts itself."""
    return started(*PYTHON, distributed_cases.__file__, case, folder, rounds, workers, *more)


def left(folder: Path) -> list[str]:
    """Processes that were started with a folder, and have not ended."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if str(folder) in line]


def gone(folder: Path) -> bool:
    """Whether all processes that were started with a folder end soon."""
    for _ in range(100):
        if not left(folder):
            return True
        time.sleep(0.1)
    return False


def same(case: str, folder: Path, *rounds: int) -> bool:
    """Whether the run in a folder has the bits, and the records, of the sequential engine that trains the same rounds, at once or in parts."""
    fed, other = (distributed_cases.make(case, folder, "sequential") for _ in range(2))
    for n in rounds:
        fed.fit(n, progress=False)
    other.resume(folder / "run")
    return other.progress.t == sum(rounds) and identical(fed, other) and untimed(fed) == untimed(other)


def untimed(fed: eq.Federation) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in fed.records]


# dealing
COSTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=30)


@given(COSTS, st.integers(1, 5))
def test_dealing_is_balanced(costs: list[float], n: int) -> None:
    rows = deal(costs, n)
    assert sorted(row for its in rows for row in its) == [*range(len(costs))]
    assert len(rows) == n
    assert max(sum(costs[row] for row in its) for its in rows) <= sum(costs) / n + max(costs) + 1e-9


def test_the_longest_are_dealt_first() -> None:
    assert deal([1, 5, 1, 1, 2], 2) == [[1], [4, 0, 2, 3]]
    assert deal([1, 1, 1, 1], 2) == [[0, 2], [1, 3]]
    assert deal([3, 1, 1, 1], 2) == [[0], [1, 2, 3]]


# messages
def test_what_is_sent_arrives() -> None:
    wire: list[Tensor] = []
    tensors = {
        "a": torch.randn(3, 4)[:, 1],
        "b": torch.tensor(True),
        "c": torch.empty(0, 2),
        "d": torch.arange(3, dtype=torch.int64),
        "e": torch.randn(2, 2, dtype=torch.float64).t(),
    }
    distributed._send(lambda x: wire.append(x.clone()), {"why": "ü"}, tensors)
    message, arrived = distributed._receive(lambda x: x.copy_(wire.pop(0)))
    assert message["why"] == "ü"
    assert not wire
    assert arrived.keys() == tensors.keys()
    assert all(torch.equal(x, arrived[name]) and x.dtype == arrived[name].dtype for name, x in tensors.items())


# what is refused
def test_without_processes_the_error_says_how_to_start_them(equipoise: Any) -> None:
    with pytest.raises(InputError, match=r"torchrun --nproc-per-node 2 .* workers=2"):
        federation("fedavg", engine="distributed")
    assert "torchrun --nproc-per-node 2" in equipoise("run", "--engine", "distributed").err


def test_what_contradicts_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"workers=2, and torchrun has started 3 processes"):
        federation("fedavg", engine="distributed", workers=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(InputError, match=r"rank 1 of .* finds 1.*at most one process for each GPU"):
        distributed.require(None, "cuda")


def test_a_console_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python"])
    with pytest.raises(InputError, match=r"notebook or a console cannot.*engine='workers'"):
        federation("fedavg", engine="distributed", workers=2)


def test_several_runs_at_once_are_refused(equipoise: Any, tmp_path: Path) -> None:
    engine = ("--engine", "distributed", "--runs", tmp_path)
    assert "engine distributed trains a single run" in equipoise("compare", "fedavg", "afl", *engine).err
    assert "each in a process" in equipoise("tune", "fedavg", *engine).err
    assert "torchrun starts the processes" in equipoise("run", "--on", "ray", *engine).err
    assert not [*tmp_path.iterdir()]


# the same bits
def test_one_rank_is_the_sequential_engine() -> None:
    one, other = (federation("scaffold", engine=e, workers=1) for e in ("sequential", "distributed"))
    for fed in (one, other):
        fed.fit(2, progress=False)
    assert identical(one, other)


@pytest.mark.share(6)
def test_two_ranks_give_the_bits_of_one(tmp_path: Path) -> None:
    ended = script("scaffold", tmp_path, 3, 2)
    assert ended.returncode == 0, ended.stderr
    assert same("scaffold", tmp_path, 3)
    assert gone(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", distributed_cases.METHODS)
def test_number_of_ranks_does_not_change_a_bit(case: str, tmp_path: Path) -> None:
    for n in (1, 2, 3, 4):
        folder = tmp_path / str(n)
        folder.mkdir()
        ended = script(case, folder, 3, n)
        assert ended.returncode == 0, ended.stderr
        assert same(case, folder, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["absent", "batchnorm", "dropout", "streamed", "flips", "transform", "failing", "alone", "validated"]
)
def test_other_clients_networks_and_data(case: str, tmp_path: Path) -> None:
    ended = script(case, tmp_path, 3, 3)
    assert ended.returncode == 0, ended.stderr
    assert same(case, tmp_path, 3)


@pytest.mark.slow
def test_a_rank_loads_the_data_of_its_own_clients(tmp_path: Path) -> None:
    ended = script("lazy", tmp_path, 1, 3)
    assert ended.returncode == 0, ended.stderr
    loads = [path.name.split("-") for path in (tmp_path / "loads").iterdir()]
    by_client = {m: {rank for client, rank in loads if client == m} for m in "1234"}  # all look at the first client
    assert all(len(ranks) == 1 for ranks in by_client.values())
    assert len(set().union(*by_client.values())) > 1
    assert same("lazy", tmp_path, 1)


@pytest.mark.slow
def test_data_that_cannot_be_loaded_concern_one_client(tmp_path: Path) -> None:
    ended = script("broken", tmp_path, 1, 2)
    assert ended.returncode == 0, ended.stderr
    fed = distributed_cases.make("lazy", tmp_path, "sequential")
    fed.resume(tmp_path / "run")
    assert [q["reason"] for q in fed.records[0]["quarantined"]] == ["OSError: no such disk"]


@pytest.mark.slow
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    ended = started(*RUN, 3, distributed_cases.__file__, "ditto", tmp_path, 3)
    assert ended.returncode == 0, ended.stderr
    assert same("ditto", tmp_path, 3)
    assert ended.stdout.count("trained by distributed") == 1  # what follows the constructor is for rank 0 alone


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks_and_another_engine(tmp_path: Path) -> None:
    for rounds, n in ((2, 3), (4, 2), (6, 1)):
        ended = script("feddyn", tmp_path, rounds, n)
        assert ended.returncode == 0, ended.stderr
    fed = distributed_cases.make("feddyn", tmp_path, "sequential")
    fed.resume(tmp_path / "run")
    fed.fit(2, directory=tmp_path / "run", progress=False)
    assert same("feddyn", tmp_path, 2, 2, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [[], [*RUN, "2"]])
def test_the_command_line_trains_the_same(launch: list[str], tmp_path: Path) -> None:
    words = ["-m", "equipoise", "run", "--rounds", "2", "--set", "clients=4", "--runs", tmp_path, "--network", "mlp"]
    ours = [*launch, *words] if launch else [*PYTHON, *words, "--workers", "2"]
    ended = started(*ours, "--name", "a", "--engine", "distributed")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("run: ") == 1
    assert started(*PYTHON, *words, "--name", "b", "--engine", "sequential").returncode == 0
    first, second = ((tmp_path / name / "checkpoint" / "state-000002.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    again = started(*launch, *([] if launch else PYTHON), *words[:2], "resume", tmp_path / "a")
    assert "is finished" in " ".join(again.stdout.split())
    exported = started(*PYTHON, *words[:2], "export", tmp_path / "a", "--output", tmp_path / "model.safetensors")
    assert exported.returncode == 0, exported.stderr
    assert gone(tmp_path)


# whoever is lost on the way
@pytest.mark.slow
@pytest.mark.parametrize("launch", [[], RUN])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("kill", "rank 1 on .* (was killed by signal 9|has ended)"),
        ("stop", "rank 1 on .* has given no sign of life for 3 seconds"),
        ("raise", "rank 1 on .* failed: KeyError: 'oh'"),
        (
            "settings",
            "rank 1 on .* cannot train this federation: it has other settings: batch_size is 9 there and 8 here",
        ),
        ("data", "rank 1 on .* cannot train this federation: it has other .*data"),
        ("leave", "rank 1 on .* ended with status 3 before any training"),
    ],
)
def test_a_rank_in_trouble_is_named_and_all_end(launch: list[str], what: str, words: str, tmp_path: Path) -> None:
    if launch and what in ("stop", "leave"):
        pytest.skip("torchrun waits half a minute for a stopped process, and names one that leaves")
    trouble = ["fedavg", tmp_path, 6]
    if launch:
        ended = started(*launch, 3, distributed_cases.__file__, *trouble, "", what)
    else:
        ended = started(*PYTHON, distributed_cases.__file__, *trouble, 3, what)
    assert ended.returncode != 0
    assert any(re.search(words, line) for line in ended.stderr.splitlines()), ended.stderr
    assert "terminate called" not in ended.stderr
    assert gone(tmp_path)
    if what in ("kill", "stop"):  # the same command goes on
        assert script("fedavg", tmp_path, 6, 2).returncode == 0
        assert same("fedavg", tmp_path, 6)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [[], [*RUN, "3"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_leaves_no_process(launch: list[str], number: int, tmp_path: Path) -> None:
    if launch and number == signal.SIGKILL:
        pytest.skip("of its agent, torchrun's processes take no notice: rank 0 trains to the end")
    words = ["-m", "equipoise", "run", "--rounds", "500", "--engine", "distributed", "--runs", tmp_path, "--name", "a"]
    command = [str(word) for word in ([*launch, *words] if launch else [*PYTHON, *words, "--workers", "3"])]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(command, env=variables(), stdout=said, stderr=said)
        records = tmp_path / "a" / "metrics.jsonl"
        for _ in range(600):
            if records.exists() and records.read_text().count("\n") > 1:
                break
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) != 0
    assert gone(tmp_path)
    text = (tmp_path / "said").read_text()
    assert "terminate called" not in text
    assert ("Stopped. The same command continues" in text) == (number != signal.SIGKILL), text


DYING = """
import os, signal
from equipoise.engines import distributed
from helpers import federation

if os.environ.get("RANK") == "1":
    welcomed = distributed._welcomed

    def die(store):
        welcomed(store)
        os.kill(os.getpid(), signal.SIGKILL)

    distributed._welcomed = die
federation("fedavg", engine="distributed", workers=2).fit(1, progress=False)
"""
SECOND = """
from helpers import federation

first = federation("fedavg", engine="distributed", workers=2)
first.fit(1, progress=False)
print("first is done", flush=True)
federation("fedavg", engine="distributed", workers=2)
"""


KILLED = """
import os, signal, threading
from helpers import federation

fed = federation("scaffold", engine="distributed", workers=4)
fed.fit(2, progress=False)
threading.Timer(0.1, os.kill, (fed.trial.engine.children[0].pid, signal.SIGKILL)).start()
fed.fit(3000, progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DYING, r"RunError: rank 1 on \S+ cannot connect to the others: was killed by signal 9"),
        (SECOND, "RunError: There is a federation with this engine already, in other processes"),
        (KILLED, r"RunError: rank 1 on \S+ was killed by signal 9"),  # not one that waited for rank 1
    ],
)
def test_ranks_that_cannot_meet_or_go_on_end_with_an_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    done = started(*PYTHON, path)
    assert done.returncode
    assert re.search(message, done.stderr)
    assert gone(tmp_path)


@pytest.mark.slow
def test_a_pack_of_several_processes_is_repeated_by_one(tmp_path: Path) -> None:
    run = ("run", "--engine", "distributed", "--workers", 2, "--rounds", 2, "--runs", tmp_path, "--name", "v")
    for words in (
        run,
        ("pack", tmp_path / "v", "--output", tmp_path / "v.zip"),
        ("verify", tmp_path / "v.zip", "--run-code"),
    ):
        done = started(*PYTHON, "-m", "equipoise", *words)
        assert done.returncode == 0, done.stderr
    assert gone(tmp_path)


def test_only_this_host_reaches_the_store() -> None:
    store = distributed._own_store()
    with socket.create_connection(("127.0.0.1", store.port), timeout=5):
        pass
    for place in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {
        "127.0.0.1",
        "127.0.1.1",
    }:
        with pytest.raises(OSError):
            socket.create_connection((place, store.port), timeout=1)
