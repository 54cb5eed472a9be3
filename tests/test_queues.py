"""Calls in a queue of a cluster and by executors of other libraries: answered once, whatever is lost on the way."""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from equipoise.runs import plan
from equipoise.system import queues
from equipoise.system.errors import SETTINGS, RunError
from equipoise.system.queues import JOB, Launch, Others, Slurm, launch_of

SBATCH = """#!/bin/bash
# A queue of one machine: every task of an array is a process in the background.
[ -e "$QUEUE/refuses" ] && { echo "sbatch: error: $(cat "$QUEUE/refuses")" >&2; exit 1; }
job=$(($(ls "$QUEUE" | grep -c '^job') + 1)); cat > "$QUEUE/job$job"; echo "$*" > "$QUEUE/options$job"
last=$(echo "$*" | sed 's/.*--array=0-\\([0-9]*\\).*/\\1/')
for k in $(seq 0 "$last"); do
  touch "$QUEUE/task_${job}_$k"
  export SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$k
  bash -c 'bash "$QUEUE/job$SLURM_ARRAY_JOB_ID"; rm -f "$QUEUE/task_${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' > /dev/null 2>&1 &
done
echo "$job"
"""
SQUEUE = """#!/bin/bash
ls "$QUEUE" | sed -n 's/^task_//p'
"""
WORK = """
import json, os, pathlib, sys, time
agreed, name, arguments, keywords = json.loads(sys.stdin.readline())
folder = pathlib.Path(arguments[0])
tries = len([*folder.glob("try*")])
(folder / f"try{tries}").touch()
while (folder / "wait").exists(): time.sleep(0.02)
if tries < arguments[1]: sys.exit(1)  # ends without an answer, as a killed task
print(json.dumps([2, "settings", "it diverged"] if "bad" in arguments[2:] else [0, "", ""]))
"""


def called(folder: str, losses: int, *more: str) -> None:
    """Stands for what a task does."""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "slurm"
    place.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(place))
    monkeypatch.setattr(queues, "LOOK", 0.05)
    monkeypatch.setattr(Slurm, "pause", 0.05)
    monkeypatch.setattr(queues, "python", lambda *_: [sys.executable, "-c", WORK])
    yield place
    while [*place.glob("task_*")]:
        time.sleep(0.05)


def _folders(tmp_path: Path, n: int) -> list[Path]:
    folders = [tmp_path / "runs" / str(k) for k in range(n)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


def _tries(folder: Path) -> int:
    return len([*folder.glob("try*")])


def test_calls_of_a_moment_are_one_array(queue: Path, tmp_path: Path) -> None:
    folders = _folders(tmp_path, 5)
    launch = Launch(partition="gpu", time="2:00:00", gpus=1, width=3, extra="--constraint=a100 --nice")
    with Slurm(tmp_path / "queue", launch, _tries) as executor:
        futures = [executor.submit(called, str(folder), 0) for folder in folders]
        assert [future.result(60) for future in futures] == [None] * 5
    assert [_tries(folder) for folder in folders] == [1] * 5
    (options,) = [path.read_text() for path in queue.glob("options*")]
    for option in (
        "--array=0-4%3",
        "--partition=gpu",
        "--time=2:00:00",
        "--gres=gpu:1",
        "--constraint=a100",
        "--nice",
        "--requeue",
    ):
        assert option in options
    assert not [*tmp_path.rglob(JOB)]


def test_a_lost_task_is_submitted_again_while_it_makes_progress(queue: Path, tmp_path: Path) -> None:
    once, never = _folders(tmp_path, 2)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        future = executor.submit(called, str(once), 5)  # more losses than tries, each with progress
        assert future.result(60) is None
    assert _tries(once) == 6
    with Slurm(tmp_path / "queue", Launch(), lambda _: 0) as executor:
        future = executor.submit(called, str(never), 100)
        with pytest.raises(RunError, match=r"3 times without progress. Its log: .*\.log"):
            future.result(60)
    assert _tries(never) == 3


def test_an_error_comes_back_with_its_kind(queue: Path, tmp_path: Path) -> None:
    (folder,) = _folders(tmp_path, 1)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        future = executor.submit(called, str(folder), 0, "bad")
        with pytest.raises(RunError, match="it diverged") as caught:
            future.result(60)
    assert caught.value.kind == SETTINGS


def test_tasks_outlive_the_command_and_are_followed_by_the_next(
    queue: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder,) = _folders(tmp_path, 1)
    (folder / "wait").touch()
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        first = executor.submit(called, str(folder), 0)
        while not _tries(folder):
            time.sleep(0.02)
    assert not first.done()
    assert "1 run is left where they are. The same command follows them." in caplog.text.replace("it is", "they are")
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        second = executor.submit(called, str(folder), 0)
        time.sleep(0.3)
        assert not second.done()
        (folder / "wait").unlink()
        assert second.result(60) is None
    assert _tries(folder) == 1
    assert len([*queue.glob("job*")]) == 1


def test_what_the_queue_refuses_is_an_error(queue: Path, tmp_path: Path) -> None:
    (folder,) = _folders(tmp_path, 1)
    (queue / "refuses").write_text("invalid partition specified: gpus")
    with Slurm(tmp_path / "queue", Launch(partition="gpus"), _tries) as executor:
        future = executor.submit(called, str(folder), 0)
        with pytest.raises(RunError, match="sbatch refuses the runs: invalid partition specified: gpus"):
            future.result(60)


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="no sbatch on this machine"):
        Slurm(tmp_path, Launch(), _tries)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pbs", "found 'pbs'"),
        ("slurm(time=5", r"found 'slurm\(time=5'"),
        ("slurm(gpu=1)", "Did you mean 'gpus'"),
        ("slurm(gpus=-1)", "gpus"),
        ("slurm(gpus=many)", "gpus"),
        ("slurm(gpu)", "gpu"),
    ],
)
def test_a_wrong_place_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launch_of(text)


def test_what_a_cluster_is_asked_for_is_read_as_a_call() -> None:
    assert launch_of("slurm") == ("slurm", Launch())
    place, launch = launch_of("slurm(partition=gpu, time=2:00:00, gpus=2, extra='--constraint=a100 --nice')")
    assert (place, launch.time, launch.gpus) == ("slurm", "2:00:00", 2)
    assert launch.options(3)[-2:] == ["--constraint=a100", "--nice"]
    assert launch_of("dask://host:8786")[0] == "dask://host:8786"


class Losing:
    """The executor of a library whose workers get lost, and whose answers are no futures of Python."""

    def __init__(self, losses: int) -> None:
        self.losses, self.pool = losses, ThreadPoolExecutor(2)

    def submit(self, function: Any, line: str) -> Any:
        self.losses -= 1
        if self.losses >= 0:
            job: Future[Any] = Future()
            job.set_exception(ConnectionError("a worker was lost"))
            return job
        return self.pool.submit(function, line)


@pytest.mark.parametrize("losses", [0, 2, 3])
def test_another_library_may_lose_workers(losses: int, tmp_path: Path) -> None:
    with Others(Losing(losses), plan.answered) as executor:
        future = executor.submit(plan.train, str(tmp_path / "none"))
        with pytest.raises(RunError, match="ConnectionError: a worker was lost" if losses == 3 else "none"):
            future.result(60)


def test_a_call_is_a_line_of_json(tmp_path: Path) -> None:
    (folder,) = _folders(tmp_path, 1)
    lines: list[str] = []

    class Noting(ThreadPoolExecutor):
        def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
            lines.append(*arguments)
            return super().submit(function, *arguments, **keywords)

    with Noting(1) as pool, Others(pool, plan.answered) as executor, pytest.raises(RunError):
        executor.submit(plan.train, str(folder), 1, needs="x").result(60)
    assert json.loads(lines[0])[1:] == ["equipoise.runs.plan:train", [str(folder), 1], {"needs": "x"}]
