"""Calls in a queue of a cluster and by executors of other libraries: answered once, whatever is lost on the way."""

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.runs import benchmark, plan
from equipoise.system import queues
from equipoise.system.claims import PATIENCE
from equipoise.system.errors import CLAIMED, CODE, SETTINGS, RunError
from equipoise.system.queues import JOB, Launch, Others, Slurm, last_words, launch_of, seconds_of
from equipoise.system.workers import line_of
from helpers import until
from run_helpers import equipoise as equipoise

SBATCH = """#!/bin/bash
# A queue of one machine: every task of an array is a process in the background.
echo "$*" > "$QUEUE/options1"
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
state="R None"; [ -e "$QUEUE/waits" ] && state="PD $(cat "$QUEUE/waits")"
ls "$QUEUE" | sed -n "s/^task_\\(.*\\)/\\1 $state/p"
"""
SCONTROL = """#!/bin/bash
echo "MaxArraySize            = $(cat "$QUEUE/size" 2> /dev/null || echo 1001)"
"""
WORK = """
import json, os, pathlib, sys, time
agreed, name, arguments, keywords = json.loads(sys.stdin.readline())
folder = pathlib.Path(arguments[0])
tries = len([*folder.glob("try*")])
(folder / f"try{tries}").touch()
while (folder / "wait").exists(): time.sleep(0.02)
if "claimed" in arguments[2:] and not tries: print(json.dumps([1, "claimed", "another is there"])); sys.exit()
if tries < arguments[1]: sys.exit(1)  # ends without an answer, as a killed task
print(json.dumps([2, "settings", "it diverged"] if "bad" in arguments[2:] else [0, "", ""]))
"""


def called(folder: str, losses: int, *more: str) -> None:
    """Stands for what a task does."""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "slurm"
    place.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scontrol", SCONTROL)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(place))
    monkeypatch.setattr(queues, "LOOK", 0.05)
    monkeypatch.setattr(Slurm, "pause", 0.05)
    monkeypatch.setattr(queues, "python", lambda *_: [sys.executable, "-c", WORK])
    yield place
    until(lambda: not [*place.glob("task_*")])


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
    assert f"--job-name=equipoise-{tmp_path.name}" in options
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


@pytest.mark.parametrize("extra", ["--clusters=other", "-Mother", "--nice -a 0-3", "--output=x", "--wrap=true"])
def test_an_option_by_which_tasks_are_followed_is_refused(extra: str) -> None:
    with pytest.raises(ValueError, match=r"on: extra has -.* by which Equipoise follows the tasks"):
        Launch(extra=extra)


def test_why_tasks_wait_is_said_once(queue: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = _folders(tmp_path, 2)
    for folder in folders:
        (folder / "wait").touch()
    (queue / "waits").write_text("PartitionTimeLimit (or so)")
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        futures = [executor.submit(called, str(folder), 0) for folder in folders]
        time.sleep(1)
        (queue / "waits").unlink()
        for folder in folders:
            (folder / "wait").unlink()
        assert [future.result(60) for future in futures] == [None] * 2
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "PartitionTimeLimit" in text] == [
        "2 runs waiting in job 1: PartitionTimeLimit (or so)"
    ]


def test_arrays_are_as_large_as_the_cluster_allows(queue: Path, tmp_path: Path) -> None:
    (queue / "size").write_text("2")
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        futures = [executor.submit(called, str(folder), 0) for folder in _folders(tmp_path, 5)]
        assert [future.result(60) for future in futures] == [None] * 5
    jobs = [path.read_text().count(str(tmp_path / "runs")) for path in queue.glob("job?")]
    assert sum(jobs) == 5
    assert max(jobs) <= 2


def test_a_stop_notes_what_is_left(queue: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder,) = _folders(tmp_path, 1)
    (folder / "wait").touch()

    def leave() -> None:
        with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
            executor.submit(called, str(folder), 0)
            until(lambda: _tries(folder) > 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        leave()
    (folder / "wait").unlink()
    assert stopped.value.__notes__ == [
        "Stopped. Left in the queue: 1 run. The same command follows it. To end it: scancel 1"
    ]
    assert "Left" not in caplog.text


def test_tasks_of_an_earlier_command_are_named(queue: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder,) = _folders(tmp_path, 1)
    (folder / "wait").touch()
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        executor.submit(called, str(folder), 0)
        until(lambda: _tries(folder) > 0)
    assert "1 run in the queue: job 1" in caplog.messages
    with Slurm(tmp_path / "queue", Launch(partition="other"), _tries) as executor:
        future = executor.submit(called, str(folder), 0)
        text = "1 run in the queue from an earlier command, with its options: job 1"
        until(lambda: text in caplog.messages)
        (folder / "wait").unlink()
        future.result(60)
    assert caplog.messages.count(text) == 1


def test_a_run_with_a_task_is_queued(queue: Path, tmp_path: Path, equipoise: Any) -> None:
    base = tmp_path / "runs"
    one, other = (base / name for name in ("one", "other"))
    for path in (one, other):
        path.mkdir(parents=True)
        (path / "config.toml").write_text('method = "fedavg"\nscenario = "digits"\nrounds = 3\nseed = 0\n')
    (one / JOB).write_text(json.dumps(["7_0", "answer", [str(one)]]))
    (other / JOB).write_text(json.dumps(["3_0", "answer", [str(other)]]))
    (queue / "task_7_0").touch()
    (queue / "waits").write_text("Resources")
    told, text = json.loads(equipoise("status", base, "--json").out), equipoise("status", base).out
    (queue / "squeue").write_text("#!/bin/sh\nexit 1\n")  # no controller
    silent = equipoise("status", base).out
    (queue / "task_7_0").unlink()
    runs = {Path(run["directory"]).name: (run["state"], run["why"]) for run in told}
    assert runs == {"one": ("queued", "Resources"), "other": ("not begun", None)}
    assert "1 queued, 1 not begun" in text
    assert "2 not begun" in silent


@pytest.mark.parametrize("limit", ["", "1", "2:00", "2:00:00", "1-0", "1-12:30", "0-0:1:0", "0", "UNLIMITED"])
def test_a_time_limit_in_a_form_of_slurm(limit: str) -> None:
    assert Launch(time=limit).time == limit


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("30s", "must be as 90"),
        ("1:2:3:4", "must be as 90"),
        ("x-1", "must be as 90"),
        ("1-", "must be as 90"),
        ("0:30", "a minute or more"),
    ],
)
def test_another_time_limit_is_refused(limit: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"on: time .*{why}"):
        Launch(time=limit)


def test_seconds_of_limits() -> None:
    assert [seconds_of(text) for text in ("90", "2:30", "1:00:01", "1-2", "1-2:3", "1-2:3:4")] == [
        5400, 150, 3601, 93600, 93780, 93784,
    ]  # fmt: skip


def test_processes_at_a_time_are_the_clusters(queue: Path, equipoise: Any, tmp_path: Path) -> None:
    words = ("compare", "fedavg", "fedheal", "--seeds", "1", "--rounds", "1", "--runs", tmp_path, "--name", "c")
    done = equipoise(*words, "--on", "slurm", "--jobs", "2")
    assert done.status == 2
    assert "--jobs" in done.err
    assert "--on" in done.err


def test_a_lost_task_is_submitted_again_while_it_makes_progress(queue: Path, tmp_path: Path) -> None:
    once, never = _folders(tmp_path, 2)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        future = executor.submit(called, str(once), 5)  # more losses than tries, each with progress
        assert future.result(60) is None
    assert _tries(once) == 6
    with Slurm(tmp_path / "queue", Launch(), lambda _: 0) as executor:
        future = executor.submit(called, str(never), 100)
        with pytest.raises(
            RunError, match=r"3 times without progress. It has written no log: all machines need .*queue"
        ):
            future.result(60)
    assert _tries(never) == 3


@pytest.mark.parametrize(
    ("text", "words"), [("", "is empty."), ("begun\nbash: python: No such file\n", "ends: bash: python: No such")]
)
def test_the_last_words_of_a_task(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text(text)
    assert words in last_words(tmp_path / "0.answer")


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
    assert "Left in the queue: 1 run. The same command follows it. To end it: scancel 1" in caplog.text
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


@pytest.mark.parametrize("text", ["5", "[5, 5, 5]", '[["x"], "p", []]', "[NaN]", '["9_0", "/dev/zero", []]', "[" * 900])
def test_a_job_file_of_others_is_no_task(queue: Path, tmp_path: Path, text: str) -> None:
    folders = _folders(tmp_path, 2)
    (folders[0] / JOB).write_text(text)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        futures = [executor.submit(called, str(folder), 0) for folder in folders]
        assert [future.result(60) for future in futures] == [None] * 2


@pytest.mark.parametrize("text", ["5", "[null, 1, 2]", '[1e999, "", ""]', "link", "folder"])
def test_a_damaged_answer_is_none(queue: Path, tmp_path: Path, text: str) -> None:
    lost, other = folders = _folders(tmp_path, 2)
    for folder in folders:
        (folder / "wait").touch()
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        futures = [executor.submit(called, str(folder), losses) for folder, losses in ((lost, 1), (other, 0))]
        while not (_tries(lost) and _tries(other)):
            time.sleep(0.02)
        answer = executor.calls[futures[0]].answer
        if text == "link":
            answer.symlink_to("/etc/passwd")
        elif text == "folder":
            answer.mkdir()
        else:
            answer.write_text(text)
        (lost / "wait").unlink()
        while _tries(lost) < 2:
            assert not futures[1].done()
            time.sleep(0.02)
        (other / "wait").unlink()
        assert futures[1].result(60) is None


def test_a_refusal_is_none_of_the_runs_that_train(queue: Path, tmp_path: Path) -> None:
    trains, refused = _folders(tmp_path, 2)
    (trains / "wait").touch()
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        first = executor.submit(called, str(trains), 0)
        while not _tries(trains):
            time.sleep(0.02)
        (queue / "refuses").write_text("Socket timed out")
        with pytest.raises(RunError, match="Socket timed out"):
            executor.submit(called, str(refused), 0).result(60)
        (trains / "wait").unlink()
        assert first.result(60) is None


def test_tasks_that_nobody_could_follow_are_cancelled(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = _folders(tmp_path, 1)
    (queue / "scancel").write_text('#!/bin/bash\necho "$*" > "$QUEUE/cancelled"\n')
    (queue / "scancel").chmod(0o755)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(queues, "write_atomically", full)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor, pytest.raises(OSError, match="No space left"):
        executor.submit(called, str(folder), 0).result(60)
    assert (queue / "cancelled").read_text() == "1\n"


def test_the_task_of_another_call_is_awaited_and_does_not_answer(queue: Path, tmp_path: Path) -> None:
    (folder,) = _folders(tmp_path, 1)
    (folder / "wait").touch()
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        executor.submit(called, str(folder), 0, "until 2")
        while not _tries(folder):
            time.sleep(0.02)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        future = executor.submit(called, str(folder), 0, "until 4")
        (folder / "wait").unlink()
        assert future.result(60) is None
    assert _tries(folder) == 2


def test_a_run_that_another_task_has_is_awaited(queue: Path, tmp_path: Path) -> None:
    (folder,) = _folders(tmp_path, 1)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        assert executor.submit(called, str(folder), 0, CLAIMED).result(60) is None
    assert _tries(folder) == 2


def test_a_queue_that_is_silent_for_a_while_fails_no_run(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder,) = _folders(tmp_path, 1)
    (queue / "squeue").rename(queue / "away")
    (queue / "squeue").write_text('#!/bin/bash\ntouch "$QUEUE/silent"; echo "no controller" >&2; exit 1\n')
    (queue / "squeue").chmod(0o755)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        left = executor.submit(called, str(folder), 0)
        while not (queue / "silent").exists():
            time.sleep(0.02)
    assert not left.done()
    assert "1 run" in caplog.text
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        future = executor.submit(called, str(folder), 0)
        (queue / "away").rename(queue / "squeue")
        assert future.result(60) is None
    (queue / "squeue").write_text("#!/bin/bash\necho no controller >&2; exit 1\n")
    monkeypatch.setattr(queues, "SILENCE", 0)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor, pytest.raises(RunError, match="no controller"):
        executor.submit(called, str(folder), 0).result(60)


def test_many_calls_are_several_arrays(queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "ARRAY", 2)
    with Slurm(tmp_path / "queue", Launch(), _tries) as executor:
        with executor.lock:  # all in one moment
            calls = [executor.begin(line_of(called, [str(f), 0], {}), [str(f), 0]) for f in _folders(tmp_path, 5)]
            futures = [Future[Any]() for _ in calls]
            executor.calls.update(zip(futures, calls, strict=True))
        assert [future.result(60) for future in futures] == [None] * 5
    assert len([*queue.glob("job*")]) == 3


def test_a_strange_folder_holds_no_calls_and_no_links(queue: Path, tmp_path: Path) -> None:
    (folder,) = _folders(tmp_path, 1)
    place = tmp_path / "50%a $(x) 'q'" / "queue"
    with Slurm(place, Launch(), _tries) as executor:
        assert executor.submit(called, str(folder), 0).result(60) is None
    assert "/50%%a $(x)" in (queue / "options1").read_text()
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["0.answer"]
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(RunError, match="is a link, or of another user"):
        Slurm(tmp_path / "link", Launch(), _tries)


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
    """The executor of a library whose workers get lost; an equal call is the same call, as Dask's has it."""

    def __init__(self, losses: int) -> None:
        self.losses, self.pool, self.jobs = losses, ThreadPoolExecutor(2), dict[Any, Any]()

    def submit(self, function: Any, *arguments: Any) -> Any:
        if arguments not in self.jobs:
            self.losses -= 1
            self.jobs[arguments] = job = Future[Any]()
            if self.losses >= 0:
                job.set_exception(ConnectionError("a worker was lost"))
            else:
                self.jobs[arguments] = self.pool.submit(function, *arguments)
        return self.jobs[arguments]


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
            lines.append(arguments[0])
            return super().submit(function, *arguments, **keywords)

    with Noting(1) as pool, Others(pool, plan.answered) as executor, pytest.raises(RunError):
        executor.submit(plan.train, str(folder), 1, needs="x").result(60)
    assert json.loads(lines[0])[1:] == ["equipoise.runs.plan:train", [str(folder), 1], {"needs": "x"}]


def test_a_broken_executor_fails_only_what_it_lost(tmp_path: Path) -> None:
    class Broken(Losing):
        def submit(self, function: Any, *arguments: Any) -> Any:
            if self.losses < 1:
                raise ConnectionError("the scheduler is gone")
            return super().submit(function, *arguments)

    waits: Future[Any] = Future()
    with Others(Broken(1), plan.answered) as executor:
        with executor.lock:
            other = Future[Any]()
            executor.calls[other] = {"line": "", "job": waits, "tries": 1}
        with pytest.raises(ConnectionError, match="the scheduler is gone"):
            executor.submit(plan.train, str(tmp_path)).result(60)
        assert not other.done()
        waits.set_result((0, "", ""))
        assert other.result(60) is None


@pytest.mark.parametrize("progress", [0, 1])
def test_a_run_is_awaited_while_another_process_makes_progress(monkeypatch: pytest.MonkeyPatch, progress: int) -> None:
    clock, looks = itertools.count(0, PATIENCE), []

    def train(folder: str, until: int | None) -> None:
        looks.append(folder)
        if len(looks) < 20:
            raise RunError("another process has it", CLAIMED)

    monkeypatch.setattr(plan, "train", train)
    monkeypatch.setattr(plan, "_rounds", lambda _: progress * len(looks))
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    with contextlib.nullcontext() if progress else pytest.raises(RunError, match="another process has it"):
        plan.train_once_free("folder")
    assert (len(looks) == 20) == bool(progress)


def test_a_device_that_only_the_cluster_has_is_not_asked_for_here(queue: Path, tmp_path: Path, equipoise: Any) -> None:
    (queue / "refuses").write_text("reached")
    asked = ("compare", "fedavg", "qffl", "--rounds", 1, "--device", "cuda", "--runs", tmp_path / "runs")
    assert "sbatch refuses the runs: reached" in equipoise(*asked, "--on", "slurm(gpus=1)").err
    assert "--gres=gpu:1" in (queue / "options1").read_text()
    of_paper = ("--embedded", "--rounds", 1, "--seeds", 1, "--row", "FedAvg", "--device", "cuda", "--on", "slurm")
    assert "reached" in equipoise("reproduce", "fedheal/table2", *of_paper, "--runs", tmp_path / "papers").err


def test_a_refusal_of_the_queue_is_no_failure_of_a_method(queue: Path, tmp_path: Path, equipoise: Any) -> None:
    (queue / "refuses").write_text("no such account")
    suite = tmp_path / "mine.toml"
    suite.write_text(
        'title = "Small"\nabout = "One."\nmethods = ["fedavg", "qffl"]\ndraws = 4\nby = "worst"\nseeds = 2\n'
        '[[scenario]]\nname = "heart"\ntitle = "Heart"\nscenario = "heart"\ntrain = { rounds = 4 }\n'
    )
    for command in (("tune", "fedavg", "--draws", 4, "--rounds", 4), ("benchmark", suite)):
        ended = equipoise(*command, "--runs", tmp_path / command[0], "--on", "slurm")
        assert ended.status == 1
        assert "error: sbatch refuses the runs: no such account" in ended.err
        assert "cannot be tuned" not in ended.err
        assert not [*tmp_path.rglob(benchmark.FAILED)]


def test_an_experiment_asks_for_the_same_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    def refuse(on: Any, cells: Any) -> None:
        if cells:
            raise RunError(f"asked for {on or cells[0].config.on}")

    monkeypatch.setattr(plan, "executor", refuse)
    asked = ("--embedded", "--rounds", 1, "--seeds", 1, "--row", "FedAvg", "--on", "ray", "--runs", tmp_path)
    assert "asked for ray" in equipoise("reproduce", "fedheal/table2", *asked).err


def test_a_suite_asks_for_the_same_places_and_is_the_same_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Any] = []

    def refuse(on: Any, cells: Any) -> None:
        places.append(cells[0].config.on)
        raise RunError("asked")

    monkeypatch.setattr(plan, "executor", refuse)
    suite = benchmark.read_suite("fair-small")
    for place in ("ray", None):  # the folder of the one is that of the other
        with pytest.raises(RunError, match="asked"):
            benchmark.run(suite, tmp_path, where={"on": place} if place else {})
    assert places == ["ray", None]


def defective(folder: str) -> None:
    """Stands for a function with a defect."""
    with Path(folder, "calls").open("a") as file:
        file.write("called\n")
    raise KeyError("x")


def test_a_defect_is_an_answer_and_no_lost_worker(tmp_path: Path) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        Others(pool, plan.answered) as executor,
        pytest.raises(RunError, match="KeyError: 'x'") as caught,
    ):
        executor.submit(defective, str(tmp_path)).result(60)
    assert caught.value.kind == CODE
    assert (tmp_path / "calls").read_text() == "called\n"
