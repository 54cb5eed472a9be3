"""A run that dies at any moment and goes on gives the same bits as one that never died."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import CheckpointError, QuorumError
from equipoise.federation import checkpoint, guard
from equipoise.federation.directory import append, trim
from equipoise.runs import directory as runs
from equipoise.system import files
from equipoise.system.claims import claimed
from helpers import others_slow
from run_helpers import (
    TINY,
    Zygote,
    assert_same_run,
    cache,
    command,
    config,
    equipoise,
    executed,
    records,
    started,
    tensors,
    zygote,
)

pytestmark = pytest.mark.share(1)

Call = Callable[..., Any]
STATEFUL = ("scaffold+fedheal", "moon+fedheal", "ditto+afl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that never died."""
    return executed(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def begun(whole: Path, tmp_path: Path) -> Path:
    """A run that was stopped after 2 of 4 rounds."""
    directory = started(tmp_path / "begun")
    stopping = iter([False, True])

    def stop(_: Any) -> None:
        if next(stopping):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.execute(directory, progress=False, on_round=stop)
    assert checkpoint.read(directory / "checkpoint")[1]["t"] == len(records(directory)) == 2
    assert not runs.finished(directory)
    return directory


def deaths(zygote: Zygote, base: Path, moments: range, method: str) -> Iterator[Path]:
    """Run, die once at each of the moments, go on; the finished runs."""
    for at in moments:
        directory = started(base / str(at), config(method))
        if zygote.die(directory, at) == 0:
            return
        assert zygote.die(directory) == 0
        yield directory


# killed
def test_death_before_a_change_of_a_file_changes_nothing(zygote: Zygote, whole: Path, tmp_path: Path) -> None:
    n = 0
    for directory in deaths(zygote, tmp_path, range(2, 1000, 23), STATEFUL[0]):
        assert_same_run(whole, directory)
        n += 1
    assert n > 2


@pytest.mark.slow
@pytest.mark.parametrize(("method", "first", "step"), [(STATEFUL[0], 1, 1), (STATEFUL[1], 1, 4), (STATEFUL[2], 3, 4)])
def test_death_before_every_change_of_a_file_changes_nothing(
    zygote: Zygote, tmp_path: Path, method: str, first: int, step: int
) -> None:
    """Every change of one method; the others write the same files, with other states in them."""
    reference = executed(tmp_path / "whole", config(method))
    n = 0
    for directory in deaths(zygote, tmp_path, range(first, 1000, step), method):
        assert_same_run(reference, directory)
        shutil.rmtree(directory)
        n += 1
    assert n > 60 // step


@pytest.mark.slow
@pytest.mark.parametrize("method", STATEFUL)
def test_deaths_at_random_moments_change_nothing(zygote: Zygote, tmp_path: Path, method: str) -> None:
    settings = config(method, rounds=16, checkpoint_every=2)
    reference = executed(tmp_path / "whole", settings)
    directory = started(tmp_path / "killed", settings)
    moments = random.Random(4)
    killed = 0
    for _ in range(8):
        pid = zygote.begin(directory=str(directory), at=0)
        time.sleep(moments.uniform(0.05, 0.8))
        if not runs.finished(directory):
            os.kill(pid, signal.SIGKILL)
        killed += zygote.end() == signal.SIGKILL
    assert zygote.die(directory) == 0
    assert killed > 0
    assert_same_run(reference, directory)


@pytest.mark.slow
def test_a_killed_command_goes_on_when_given_again(equipoise: Call, tmp_path: Path) -> None:
    arguments = ["run", "-m", STATEFUL[0], *TINY, "--rounds", 30, "--participation", 0.75, "--runs", tmp_path]
    assert equipoise(*arguments, "--name", "whole", "--json").status == 0
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        command(*arguments, "--name", "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (killed / "metrics.jsonl").exists():
        time.sleep(0.01)
        assert process.poll() is None
    time.sleep(0.2)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 0 < len(records(killed)) < 30
    assert equipoise(*arguments, "--name", "killed", "--json").status == 0
    assert_same_run(tmp_path / "whole", killed)


def test_a_torn_last_line_is_dropped(whole: Path, begun: Path) -> None:
    with (begun / "metrics.jsonl").open("ab") as file:
        file.write('{"round":2,"ids":[0,1],"groups":{"Zürich'.encode()[:-5])  # inside a letter of two bytes
    runs.execute(begun, progress=False)
    assert_same_run(whole, begun)


def test_a_run_of_the_command_line_goes_on_in_python(whole: Path, begun: Path) -> None:
    fed, _ = runs.federation(runs.load(begun))
    fed.fit(fed.resume(begun), directory=begun, progress=False)
    assert records(begun) == records(whole)


def test_metrics_ahead_of_the_checkpoint_are_dropped(whole: Path, begun: Path) -> None:
    ahead = [json.loads(text) for text in (begun / "metrics.jsonl").read_text().splitlines()]
    with claimed(begun):
        for record in ({**ahead[-1], "round": 2}, {**ahead[-1], "round": 3}):
            append(begun, {key: value for key, value in record.items() if key != "hash"})
    assert len(eq.History.from_run(begun)) == 4
    runs.execute(begun, progress=False)
    assert_same_run(whole, begun)


def test_rare_checkpoints_change_nothing_but_the_work_done_again(zygote: Zygote, whole: Path, tmp_path: Path) -> None:
    directory = started(tmp_path / "rare", config(checkpoint_every=3))
    at = 30
    assert zygote.die(directory, at) == signal.SIGKILL
    assert checkpoint.read(directory / "checkpoint")[1]["t"] < len(
        (directory / "metrics.jsonl").read_text().splitlines()
    )
    assert zygote.die(directory) == 0
    assert_same_run(whole, directory)


def test_metrics_without_a_checkpoint_are_those_of_a_run_begun_again(whole: Path, begun: Path) -> None:
    shutil.rmtree(begun / "checkpoint")  # what the message about a damaged checkpoint advises
    runs.execute(begun, progress=False)
    assert_same_run(whole, begun)


def test_a_death_while_the_directory_is_made_does_not_block_the_name(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.123.part").write_text("meth")
    assert_same_run(executed(tmp_path), executed(tmp_path / "other"))


# interrupted in other ways
def test_a_stop_between_any_two_rounds_changes_nothing(whole: Path, begun: Path) -> None:
    runs.execute(begun, progress=False)
    assert_same_run(whole, begun)


@pytest.mark.parametrize("at", others_slow([1, 2, 3, 5, 8, 11, 14], fast=(1, 4, 6)))
def test_a_full_disk_stops_the_run_and_nothing_is_lost(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    directory = started(tmp_path / "run")
    left = iter(range(at - 1, -1, -1))
    sync = os.fsync

    def full(descriptor: int) -> None:
        if next(left, 0) == 0:  # and from then on
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 11))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            runs.execute(directory, progress=False)
    assert list(directory.rglob("*.part")) == []
    runs.execute(directory, progress=False)
    assert_same_run(whole, directory)


@pytest.mark.slow
def test_a_command_on_a_full_disk_says_so_and_goes_on_with_room(whole: Path, begun: Path) -> None:
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); from equipoise.cli.main import main; main()"
    limited = [sys.executable, "-c", code, "resume", str(begun)]
    before = tensors(begun)
    ended = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "File too large. Complete results are kept" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert all((tensors(begun)[k] == v).all() for k, v in before.items())
    runs.execute(begun, progress=False)
    assert_same_run(whole, begun)


def test_a_missed_quorum_names_the_clients_and_the_run_goes_on_when_they_are_mended(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = started(tmp_path / "run")
    rounds = iter(range(4))
    misfit = guard.misfit

    def broken(*given: Any) -> str:
        return "the update holds NaN" if broken.t == 2 else misfit(*given)  # type: ignore[attr-defined]

    def count(_: Any) -> None:
        broken.t = next(rounds) + 1  # type: ignore[attr-defined]

    broken.t = 0  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(guard, "misfit", broken)
        with pytest.raises(
            QuorumError,
            match=r"0 of 3 clients answered well, and the quorum is 50%. 3 of 3 clients: the update holds NaN. The state before round 2 is kept.",
        ):
            runs.execute(directory, progress=False, on_round=count)
    assert checkpoint.read(directory / "checkpoint")[1]["t"] == 2
    runs.execute(directory, progress=False)
    assert_same_run(whole, directory)


# damaged
def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def pointer(directory: Path, **changes: Any) -> None:
    path = directory / "checkpoint" / "checkpoint.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def state(directory: Path) -> Path:
    return next((directory / "checkpoint").glob("*.safetensors"))


DAMAGES: dict[str, tuple[Call, str]] = {
    "flipped byte": (lambda d: flip(state(d)), "is damaged: its content is not what was written"),
    "truncated": (lambda d: state(d).write_bytes(state(d).read_bytes()[:-1]), "is damaged: its content"),
    "empty": (lambda d: state(d).write_bytes(b""), "is damaged: its content"),
    "missing tensors": (lambda d: state(d).unlink(), "state-000002.safetensors is missing"),
    "torn pointer": (
        lambda d: (d / "checkpoint" / "checkpoint.json").write_text('{"t": 2, "ten'),
        "checkpoint.json is damaged",
    ),
    "binary pointer": (
        lambda d: (d / "checkpoint" / "checkpoint.json").write_bytes(b"\xff\xfe\x00"),
        "checkpoint.json is damaged",
    ),
    "pointer of another kind": (
        lambda d: (d / "checkpoint" / "checkpoint.json").write_text("[1]"),
        "checkpoint.json is damaged",
    ),
    "no hash": (lambda d: pointer(d, sha256=...), "checkpoint.json is damaged"),
    "no round": (lambda d: pointer(d, t=...), "checkpoint.json is damaged"),
    "round of another kind": (lambda d: pointer(d, t="two"), "checkpoint.json is damaged"),
    "no fingerprint": (lambda d: pointer(d, fingerprint=...), "checkpoint.json is damaged"),
    "metrics damaged before the checkpoint": (
        lambda d: (d / "metrics.jsonl").write_bytes(b"\x00" + (d / "metrics.jsonl").read_bytes()),
        "line 1 is damaged",
    ),
    "metrics without a round": (
        lambda d: (d / "metrics.jsonl").write_bytes((d / "metrics.jsonl").read_bytes().split(b"\n")[0] + b"\n"),
        "lacks round 1",
    ),
    "no metrics": (lambda d: (d / "metrics.jsonl").unlink(), "lacks round 0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_refused_in_one_line(equipoise: Call, begun: Path, damage: str) -> None:
    hurt, expected = DAMAGES[damage]
    hurt(begun)
    before = {path: path.read_bytes() for path in begun.rglob("*.jsonl")}
    found = equipoise("resume", begun)
    assert (found.status, found.out) == (1, "")
    assert found.err.startswith("error: ")
    assert expected in found.err
    assert "start the run again" in found.err
    assert len(found.err.splitlines()) == 1
    assert {path: path.read_bytes() for path in begun.rglob("*.jsonl")} == before  # a hand can still mend it


def test_a_checkpoint_of_another_experiment_is_refused(equipoise: Call, begun: Path, tmp_path: Path) -> None:
    other = started(tmp_path / "other", config("moon+fedheal"))
    shutil.copytree(begun / "checkpoint", other / "checkpoint")
    found = equipoise("resume", other)
    assert (found.status, found.out) == (1, "")
    assert "was begun with other settings: method is scaffold+fedheal there and moon+fedheal here" in found.err


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("seed", 1, "seed is 0 there and 1 here"),
        ("batch_size", 4, "batch_size is 8 there and 4 here"),
        ("lr", 0.1, "solver is SGD(lr=0.05"),
        ("network_options", {"hidden": [9]}, " parameters is"),
        ("rounds", 6, "plans 6 rounds, and the run was begun with 4"),
    ],
)
def test_settings_of_a_begun_run_cannot_change(
    equipoise: Call, begun: Path, field: str, value: Any, expected: str
) -> None:
    (begun / "config.toml").unlink()
    moved = begun.rename(begun.with_name("moved"))
    fresh = started(begun, config(**{field: value}))
    shutil.copytree(moved / "checkpoint", fresh / "checkpoint")
    shutil.copy(moved / "metrics.jsonl", fresh)
    found = equipoise("resume", fresh)
    assert (found.status, found.out) == (1, "")
    assert expected in found.err


def test_a_write_that_fails_leaves_the_checkpoint_before(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors_before, meta = checkpoint.read(begun / "checkpoint")
    for fail_at in (1, 2):
        left = iter(range(fail_at - 1, -1, -1))

        def replace(self: Path, target: Path, left: Iterator[int] = left, rename: Any = os.replace) -> None:
            if next(left, 0) == 0:  # and from then on
                raise OSError(errno.EIO, "Input/output error")
            rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(OSError, match="Input/output"):
                checkpoint.write(begun / "checkpoint", {"x": tensors_before["vector"]}, {**meta, "t": 3})
        after, meta_after = checkpoint.read(begun / "checkpoint")
        assert meta_after == meta
        assert after.keys() == tensors_before.keys()


# trim
def test_trim_keeps_what_the_checkpoint_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert trim(path, 3) == []
    lines = ['{"round":0,"groups":{"a\u2028b":{"accuracy":0.5}}}\n', '{"round":1}\n', '{"round":2}\n']
    for t in range(4):
        path.write_text("".join(lines) + '{"rou', encoding="utf-8")
        assert [record["round"] for record in trim(path, t)] == list(range(t))
        assert re.sub(',"hash":"[0-9a-f]{32}"', "", path.read_text(encoding="utf-8")) == "".join(lines[:t])
    path.write_text(lines[0] + "??\n" + lines[2])
    assert len(trim(path, 1)) == 1  # the damage lies behind the checkpoint
    path.write_text(lines[0] + "??\n" + lines[2])
    with pytest.raises(CheckpointError, match="line 2 is damaged"):
        trim(path, 3)
    assert path.read_text() == lines[0] + "??\n" + lines[2]


# two at once
@pytest.mark.share(4)
def test_a_second_process_on_the_same_run_is_refused(equipoise: Call, zygote: Zygote, tmp_path: Path) -> None:
    settings = config(rounds=24)
    directory = started(tmp_path / "run", settings)
    pid = zygote.begin(directory=str(directory), at=0)
    while not (directory / "metrics.jsonl").exists():
        time.sleep(0.01)
    second = equipoise("resume", directory)
    os.kill(pid, signal.SIGKILL)
    assert zygote.end() == signal.SIGKILL
    assert (second.status, second.out) == (1, "")
    assert second.err == f"error: Process {pid} is at {directory} already. Wait until it ends, or stop it first.\n"
    third = equipoise("resume", directory, "--json")  # the dead process holds nothing
    assert third.status == 0
    assert_same_run(executed(tmp_path / "whole", settings), directory)


def test_a_lock_ends_with_its_block_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("99999999 is gone")
    for _ in range(2):
        with files.locked(path):
            assert path.read_text() == str(os.getpid())
            with pytest.raises(BlockingIOError, match=str(os.getpid())), files.locked(path):
                pass


def test_who_looks_at_a_lock_for_a_moment_stops_nobody(tmp_path: Path) -> None:
    """As ``equipoise flower status`` does, which may ask at the moment in which a run begins."""
    path, taken = tmp_path / ".lock", threading.Event()

    def look() -> None:
        with files.locked(path):
            taken.set()
            time.sleep(0.05)

    looking = threading.Thread(target=look)
    looking.start()
    assert taken.wait(10)
    with files.locked(path):
        pass
    looking.join()


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with files.locked(tmp_path / ".lock"):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
