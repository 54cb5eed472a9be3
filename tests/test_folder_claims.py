"""Claims on folders: one owner at a time, whatever ends or suspends it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.federation import directory
from equipoise.system import claims
from equipoise.system.claims import CLAIM, Claim, Held, claimed, owner, require_claim, take
from equipoise.system.errors import RunError

HOLD = "import sys, time; from pathlib import Path; from equipoise.system.claims import take; take(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


@contextmanager
def holding(path: Path) -> Iterator[Held]:
    held = take(path)
    try:
        yield held
    finally:
        held.release()


def _holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def _elsewhere(path: Path, age: float) -> Claim:
    """Write a claim of another machine that was last touched some seconds ago."""
    claim = Claim("node7 boot pid", 4711, "12", "abc")
    path.write_text(json.dumps(claim.__dict__))
    os.utime(path, (time.time() - age,) * 2)
    return claim


def test_a_claim_has_one_owner_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".claim"
    with holding(path):
        assert str(owner(path)) == str(os.getpid())
        with pytest.raises(BlockingIOError, match=str(os.getpid())):
            take(path)
    assert owner(path) is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the start of a process cannot be read here")
def test_a_killed_process_gives_up_its_claim_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".claim"
    process = _holder(path)
    with pytest.raises(BlockingIOError, match=str(process.pid)):
        take(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert owner(path) is None
    take(path).release()


def test_a_number_that_another_process_has_now_is_no_claim(tmp_path: Path) -> None:
    path = tmp_path / ".claim"
    with holding(path) as held:
        reused = replace(held.claim, started="1")
    path.write_text(json.dumps(reused.__dict__))
    assert owner(path) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process cannot be read here")
def test_a_killed_process_that_nobody_asks_for_has_no_claim(tmp_path: Path) -> None:
    path = tmp_path / ".claim"
    process = _holder(path)
    process.send_signal(signal.SIGKILL)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert owner(path) is None
    take(path).release()
    process.communicate()


def test_a_link_that_leads_nowhere_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".claim").symlink_to("nothing")
    with pytest.raises(BlockingIOError, match="unknown"):
        take(tmp_path / ".claim")


def test_a_full_disk_leaves_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        take(tmp_path / ".claim")
    assert [*tmp_path.iterdir()] == []


def test_a_claim_is_touched_again_after_it_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.01)
    path, aside, looks = tmp_path / ".claim", tmp_path / "aside", []
    read = Claim.read

    def flaky(path: Path) -> Claim | None:
        looks.append(path)
        if len(looks) == 1:
            raise OSError(116, "Stale file handle")
        return read(path)

    with holding(path):
        monkeypatch.setattr(Claim, "read", flaky)
        path.rename(aside)
        while len(looks) < 3:
            time.sleep(0.01)
        os.utime(aside, (1, 1))
        aside.rename(path)
        deadline = time.monotonic() + 20
        while path.stat().st_mtime == 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 1
        require_claim(tmp_path)


@pytest.mark.parametrize("age", [0, claims.PATIENCE / 2, claims.PATIENCE + 5])
def test_a_claim_of_another_machine_lasts_while_it_is_touched(tmp_path: Path, age: float) -> None:
    path = tmp_path / ".claim"
    _elsewhere(path, age)
    if age < claims.PATIENCE:
        with pytest.raises(BlockingIOError, match="4711 on node7"):
            take(path)
    else:
        take(path).release()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "1234",
        '{"machine": 1}',
        "[]",
        '{"machine": "", "process": 1e999, "started": "", "token": ""}',
        "[" * 990,
    ],
)
def test_a_damaged_claim_counts_until_it_is_old(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".claim"
    path.write_text(text)
    with pytest.raises(BlockingIOError, match="unknown"):
        take(path)
    os.utime(path, (time.time() - claims.PATIENCE - 5,) * 2)
    take(path).release()


def test_the_owner_touches_its_claim_and_notices_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.05)
    path = tmp_path / ".claim"
    with holding(path):
        os.utime(path, (time.time() - 1000,) * 2)
        deadline = time.monotonic() + 20
        while claims._age(path) > 500 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert claims._age(path) < 500
        require_claim(tmp_path)
        other = _elsewhere(path, 0)
        with pytest.raises(RunError, match="4711 on node7"):
            require_claim(tmp_path)
    assert Claim.read(path) == other  # what others hold stays


def test_a_claim_that_was_replaced_meanwhile_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / ".claim"
    stale = _elsewhere(path, claims.PATIENCE + 5)
    claims._remove(path, stale)
    with holding(path) as held:
        claims._remove(path, stale)  # as a slower process would, that had read the old one
        assert held.ours
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("over", [False, True])
def test_a_process_that_was_given_up_records_no_round(tmp_path: Path, *, over: bool) -> None:
    (tmp_path / "config.toml").touch()
    if not over:
        _elsewhere(tmp_path / CLAIM, 0)
    with pytest.raises(RunError, match="was taken over by process unknown" if over else "4711 on node7"):
        directory.append(tmp_path, {"round": 2})
    assert not (tmp_path / directory.METRICS).exists()


def test_a_claimed_folder_names_who_has_it(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "new"),
        pytest.raises(
            RunError, match=rf"Process {os.getpid()} is at .*new already\. Wait until it ends, or stop it first\."
        ),
    ):
        claimed(tmp_path / "new").__enter__()
    (tmp_path / "new" / "a.txt").touch()
    with pytest.raises(RunError, match="is not empty and holds no comparison"):
        claimed(tmp_path / "new", "comparison", "order.json").__enter__()
    _elsewhere(tmp_path / CLAIM, 0)
    with pytest.raises(RunError, match="Process 4711 on node7 is at"):
        claimed(tmp_path).__enter__()


def _race(arguments: tuple[str, str, int]) -> int:
    path, log, times = Path(arguments[0]), Path(arguments[1]), arguments[2]
    got = 0
    for _ in range(times):
        try:
            with holding(path) as held:
                with log.open("a") as file:
                    file.write(f"+{held.claim.token}\n")
                got += 1
                with log.open("a") as file:
                    file.write(f"-{held.claim.token}\n")
        except BlockingIOError:
            time.sleep(0.001)
        if os.urandom(1)[0] < 30 and not path.exists():  # now and then an abandoned claim lies there
            try:
                with path.open("x") as file:
                    file.write(
                        json.dumps(
                            {"machine": claims.machine(), "process": 1, "started": "no", "token": os.urandom(4).hex()}
                        )
                    )
            except FileExistsError:
                pass
    return got


def test_never_two_owners_while_four_processes_race(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = (str(tmp_path / ".claim"), str(log), 60)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        got = pool.map(_race, [arguments] * 4)
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * sum(got) > 0
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert begin[0] == "+"
        assert end == f"-{begin[1:]}"
