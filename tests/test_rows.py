"""Rows on disk are a tensor [N, ...] that nobody changes in place: same values, old versions, checkpoints, and every method."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import equipoise as eq
from equipoise.core import client_rows as rows
from equipoise.core.client_rows import Rows
from equipoise.core.maths import put
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation import checkpoint
from equipoise.federation.trial import begin
from equipoise.methods import METHODS
from equipoise.system.tree import flatten, tree_map, unflatten
from helpers import KeepHead, Portion, clients, fast_first, federation, in_one, others_slow, samples, told

META = {"t": 0, "rounds": 9, "fingerprint": {}}


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.contiguous().numpy().tobytes() == b.numpy().tobytes()


def written(x: Rows) -> int:
    """Places that the file behind some rows has and that are in use."""
    return x._file.end - len(x._file.free)


@pytest.fixture
def everything_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "IN_MEMORY", 0)


# like a tensor
@in_one(
    "default",
    [
        torch.tensor([0.5, -0.0, float("nan")]),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.tensor([[1.5]], dtype=torch.bfloat16),
    ],
)
def test_many_changes_give_what_they_give_a_tensor(default: Tensor) -> None:
    N, draw = 12, torch.Generator().manual_seed(0)
    tensor, ours = default.expand(N, *default.shape).clone(), Rows(default, N)
    assert (len(ours), ours.shape, ours.dtype, ours.dim()) == (N, tensor.shape, tensor.dtype, tensor.dim())
    versions = []
    for m in [3, 1, N, 0, 5, 7, 12, 2]:
        ids = torch.randperm(N, generator=draw)[:m]
        values = torch.randn(m, *default.shape, generator=draw).mul(3).to(default.dtype)
        tensor, ours = tensor.index_copy(0, ids, values), ours.index_copy(0, ids, values)
        versions.append((tensor, ours))
        del values
    for expected, found in versions:  # those from before are what they were
        for key in (0, -1, slice(None), slice(3, 9, 2), [4, 1, 1], [], torch.tensor([11, 0]), torch.tensor(5)):
            bits = [x[key].contiguous().reshape(-1).view(torch.uint8) for x in (expected, found)]
            assert expected[key].shape == found[key].shape
            assert torch.equal(*bits)


def test_what_is_read_is_a_copy() -> None:
    ours = Rows(torch.zeros(3), 4).index_copy(0, torch.tensor([1]), torch.ones(1, 3))
    for key in (0, 1, slice(None)):
        ours[key].fill_(7)
    assert ours[:].sum() == 3


def test_a_row_like_the_default_takes_no_place_and_signs_and_nan_count() -> None:
    default = torch.tensor([0.0, float("nan")])
    ours = Rows(default, 5).index_copy(0, torch.tensor([2, 4]), default.expand(2, 2))
    assert written(ours) == 0
    signed = ours.index_copy(0, torch.tensor([2]), torch.tensor([[-0.0, float("nan")]]))
    assert written(signed) == 1
    assert torch.signbit(signed[2][0])


def test_places_are_used_again_when_no_version_needs_them() -> None:
    ours = Rows(torch.zeros(8), 100)
    for k in range(50):
        ours = ours.index_copy(0, torch.arange(k, k + 10), torch.full((10, 8), float(k + 1)))
    assert written(ours) == len(ours.slots) == 59
    assert ours._file.end <= 69  # as many again as one change writes
    old, ours = ours, ours.index_copy(0, torch.arange(59), torch.zeros(59, 8))
    assert written(ours) == 118
    del old
    gc.collect()
    assert written(ours) == 59


def test_the_file_has_no_name_and_ends_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours = Rows(torch.zeros(8), 100).index_copy(0, torch.tensor([1]), torch.ones(1, 8))
    descriptor = ours._file.file.fileno()
    assert list(tmp_path.iterdir()) == []
    del ours
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_a_full_disk_is_named_and_leaves_the_rows_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Rows(torch.zeros(8), 10).index_copy(0, torch.tensor([1]), torch.ones(1, 8))

    class Full:
        def __init__(self, file: Any) -> None:
            self.seek, self.readinto, self.close = file.seek, file.readinto, file.close

        def write(self, part: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ours._file, "file", Full(ours._file.file))
    with pytest.raises(
        OSError, match=r"for the states of absent clients: 4 rows of 32 bytes\. Free some, or set TMPDIR"
    ):
        ours.index_copy(0, torch.tensor([1, 2, 3]), torch.ones(3, 8))
    assert ours[:].sum() == 8
    assert written(ours) == 1


def test_short_writes_and_reads_are_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Rows(torch.zeros(50), 10)

    class Slow:
        def __init__(self, file: Any) -> None:
            self.file, self.seek, self.close = file, file.seek, file.close

        def write(self, part: memoryview) -> int:
            return int(self.file.write(part[:7]))

        def readinto(self, part: memoryview) -> int:
            return int(self.file.readinto(part[:11]))

    monkeypatch.setattr(ours._file, "file", Slow(ours._file.file))
    values = torch.randn(4, 50)
    assert torch.equal(ours.index_copy(0, torch.arange(4), values)[:4], values)


def test_what_does_not_fit_is_refused() -> None:
    ours = Rows(torch.zeros(3), 4)
    with pytest.raises(ValueError, match=r"shape \[1, 3\] of torch\.float32 .* found \[1, 2\]"):
        ours.index_copy(0, torch.tensor([0]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"found \[1, 3\] of torch\.float64"):
        ours.index_copy(0, torch.tensor([0]), torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(IndexError):
        ours[4]


# in a tree
def test_rows_are_a_leaf() -> None:
    tree = {"a": [{"c": Rows(torch.zeros(2), 3)}], "b": torch.ones(3)}
    leaves = flatten(tree)
    assert leaves["a/0/c"] is tree["a"][0]["c"]
    assert unflatten(tree, leaves)["a"][0]["c"] is tree["a"][0]["c"]
    assert tree_map(len, tree) == {"a": [{"c": 3}], "b": 3}


def test_where_all_rows_are_new_nothing_is_copied() -> None:
    old, new = torch.zeros(3, 2), torch.ones(3, 2)
    assert put(old, torch.arange(3), new) is new
    assert torch.equal(put(old, torch.tensor([0, 2]), new[:2]), torch.tensor([[1.0, 1], [0, 0], [1, 1]]))


@pytest.mark.parametrize(
    ("asked", "n", "size", "on_disk"),
    [(2, 10, 1, True), (2, 10, 0, False), (6, 10, 1, False), (10, 10, 1, False), (None, 10, 1, False)],
)
def test_state_goes_to_disk_where_it_is_large_and_most_clients_are_absent(
    asked: int | None, n: int, size: int, on_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "IN_MEMORY", 39)
    setup = eq.Setup(torch.zeros(1), (1,), torch.ones(n), asked=asked)
    state = setup.per_client(torch.full((size,), 2.0))  # 4 bytes a row
    assert isinstance(state, Rows) == on_disk
    assert torch.equal(state[:], torch.full((n, size), 2.0))


# checkpoints
def state(seed: int, n: int = 40) -> tuple[Rows, Tensor]:
    """Rows of which most were written, and the same as a tensor."""
    x = torch.randn(n, 64, generator=torch.Generator().manual_seed(seed))
    x[5] = 0
    return Rows(torch.zeros(64), n).index_copy(0, torch.arange(n), x), x


def listing(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def changed(x: Rows, ids: list[int], value: float) -> Rows:
    return x.index_copy(0, torch.tensor(ids), torch.full((len(ids), 64), value))


def test_a_checkpoint_gives_back_rows_bit_for_bit(tmp_path: Path) -> None:
    ours, tensor = state(0)
    other = Rows(torch.tensor(7), 5)
    checkpoint.write(tmp_path, {"v": torch.ones(2), "c/0": ours, "d": other, "also": ours}, META)
    found, meta = checkpoint.read(tmp_path)
    assert {k: meta[k] for k in META} == META
    assert found.keys() == {"v", "c/0", "d", "also"}
    assert all(isinstance(found[k], Rows) for k in ("c/0", "d", "also"))
    assert all(same_bits(found[k][:], tensor) for k in ("c/0", "also"))
    assert same_bits(found["d"][:], torch.full((5,), 7))
    assert isinstance(found["v"], Tensor)


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    ours, _ = state(0)
    checkpoint.write(tmp_path, {"c": ours}, META)
    before = listing(tmp_path)
    ours = changed(ours, [3, 8], 2.0)
    checkpoint.write(tmp_path, {"c": ours}, {**META, "t": 1})
    after = listing(tmp_path)
    fresh = [name for name in after.keys() - before.keys() if name.startswith("rows")]
    assert len(fresh) == 1
    assert load_file(tmp_path / fresh[0])["c:ids"].tolist() == [3, 8]
    assert {name: at for name, at in before.items() if name.startswith("rows")}.items() <= after.items()
    assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], ours[:])


def test_a_checkpoint_that_was_read_is_gone_on_with(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {"c": state(0)[0]}, META)
    found = checkpoint.read(tmp_path)[0]["c"]
    before = listing(tmp_path)
    ours = changed(found, [3], 2.0)
    checkpoint.write(tmp_path, {"c": ours}, {**META, "t": 1})
    fresh = [name for name in listing(tmp_path).keys() - before.keys() if name.startswith("rows")]
    assert [load_file(tmp_path / name)["c:ids"].tolist() for name in fresh] == [[3]]
    assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], ours[:])


def test_a_row_is_taken_from_the_checkpoint_it_belongs_to(tmp_path: Path) -> None:
    """New rows under an old name, with other defaults, in files beside old ones; another directory; a deleted one."""
    ours, _ = state(0)
    checkpoint.write(tmp_path / "a", {"c": ours}, META)
    fresh = changed(Rows(torch.ones(64), 40), [2], 9.0)
    checkpoint.write(tmp_path / "a", {"c": fresh, "old": ours}, {**META, "t": 1})
    found = checkpoint.read(tmp_path / "a")[0]
    assert same_bits(found["c"][:], fresh[:])
    assert same_bits(found["old"][:], ours[:])
    checkpoint.write(tmp_path / "b", {"c": ours}, META)
    assert same_bits(checkpoint.read(tmp_path / "b")[0]["c"][:], ours[:])
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    checkpoint.write(tmp_path / "b", {"c": ours}, META)
    assert same_bits(checkpoint.read(tmp_path / "b")[0]["c"][:], ours[:])


def test_old_files_are_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 4096)  # 16 rows of 256 bytes
    ours, _ = state(0)
    draw = random.Random(3)
    most = 0
    for t in range(60):
        ours = changed(ours, sorted(draw.sample(range(40), 4)), float(t))
        checkpoint.write(tmp_path, {"c": ours}, {**META, "t": t})
        bytes_ = sum(path.stat().st_size for path in tmp_path.glob("rows-*"))
        most = max(most, bytes_)
        assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], ours[:])
    live = 40 * 256
    assert most < 3.5 * live  # twice the rows, those just written, and headers
    assert len(list(tmp_path.iterdir())) < 40


def test_checkpoints_that_are_kept_share_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 4096)
    ours, _ = state(0)
    draw = random.Random(3)
    seen: dict[int, Tensor] = {}
    most = 0
    for t in range(30):
        ours = changed(ours, sorted(draw.sample(range(40), 4)), float(t))
        seen[t] = ours[:]
        checkpoint.write(tmp_path, {"c": ours}, {**META, "t": t, "keep": 3})
        most = max(most, sum(path.stat().st_size for path in tmp_path.glob("rows-*")))
        kept = [one["t"] for one in checkpoint.kept(tmp_path)]
        assert kept == [t, t - 1, t - 2][: t + 1]
        assert all(same_bits(checkpoint.read(tmp_path, k)[0]["c"][:], seen[k]) for k in kept)
    assert most < 4 * 1.1 * 40 * 256  # what a forecast says, and headers
    files = {file for one in checkpoint.kept(tmp_path) for file, _ in one["rows"]["files"]}
    assert {path.name for path in tmp_path.glob("rows-*")} == files
    assert files > {file for file, _ in checkpoint.about(tmp_path)["rows"]["files"]}
    back = checkpoint.read(tmp_path, 27)[0]
    checkpoint.keep(tmp_path, checkpoint.kept(tmp_path, 27))
    again = changed(back["c"], [3], 1.0)
    checkpoint.write(tmp_path, {"c": again}, {**META, "t": 28, "keep": 3})
    assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], again[:])
    assert same_bits(checkpoint.read(tmp_path, 27)[0]["c"][:], seen[27])


def test_pieces_hold_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 1000)  # three rows of 256 bytes
    ours, tensor = state(0)
    checkpoint.write(tmp_path, {"c": ours}, META)
    files = list(tmp_path.glob("rows-*"))
    assert len(files) == 13  # of 39 rows: one equals the default
    assert all(len(load_file(path)["c:ids"]) <= 3 for path in files)
    assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], tensor)


@pytest.mark.parametrize("keep", others_slow([1, 3], fast=(1,)))
def test_a_death_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """A child writes a second checkpoint and is killed before its k-th change of a file, for every k."""
    monkeypatch.setattr(checkpoint, "PIECE", 4096)
    first, tensor = state(0)
    second = changed(first, list(range(0, 40, 2)), 2.0)
    outcomes = set()
    for k in range(1, 40):
        directory = tmp_path / str(k)
        checkpoint.write(directory, {"c": first}, META)
        if (child := os.fork()) == 0:
            _write_and_die(directory, second, k, keep)
        died = os.waitpid(child, 0)[1] != 0
        found, meta = checkpoint.read(directory)
        assert same_bits(found["c"][:], second[:] if meta["t"] else tensor)
        outcomes.add(meta["t"])
        assert keep == 1 or same_bits(checkpoint.read(directory, 0)[0]["c"][:], tensor)
        if not died:
            break
        checkpoint.write(directory, {"c": second}, {**META, "t": 1})  # and the next one clears up
        assert same_bits(checkpoint.read(directory)[0]["c"][:], second[:])
        named = {"checkpoint.json", "state-000001.safetensors"} | {
            file for file, _ in checkpoint.about(directory)["rows"]["files"]
        }
        assert listing(directory).keys() == named
    else:
        pytest.fail("the child never reached the end")
    assert outcomes == {0, 1}
    assert k > 8


def test_a_death_while_a_round_is_saved_again_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who resumes saves the round once more; its rows may then be told in other words."""
    ours = Rows(torch.ones(64), 40)
    for t, names in enumerate([[5, 6], [3, 4], [5]]):
        ours = changed(ours, names, t + 2.0)
        checkpoint.write(tmp_path, {"c": ours}, {**META, "t": t})
    ours = ours.index_copy(0, torch.tensor([3]), torch.ones(1, 64))  # the default again: no place when it is read
    checkpoint.write(tmp_path, {"c": ours}, {**META, "t": 3})
    again = checkpoint.read(tmp_path)[0]
    write_atomically = checkpoint.write_atomically

    def dying(path: Path, content: bytes, **how: bool) -> Path:
        if path.name == checkpoint.POINTER:
            raise KeyboardInterrupt
        return write_atomically(path, content, **how)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", dying)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write(tmp_path, again, {**META, "t": 3})
    assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], ours[:])
    for _ in range(3):
        checkpoint.write(tmp_path, again, {**META, "t": 3})
        assert same_bits(checkpoint.read(tmp_path)[0]["c"][:], ours[:])
        assert len(list(tmp_path.glob("state-*"))) == 1


def _write_and_die(directory: Path, x: Rows, at: int, keep: int) -> None:
    seen = 0

    def count(*_: Any, **__: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

    status = 1
    try:
        replaced, unlinked = Path.replace, Path.unlink
        Path.replace = lambda self, to: (count(), replaced(self, to))[1]  # type: ignore[method-assign]
        Path.unlink = lambda self, missing_ok=False: (count(), unlinked(self, missing_ok))[1]  # type: ignore[method-assign]
        checkpoint.write(directory, {"c": x}, {**META, "t": 1, "keep": keep})
        status = 0
    finally:
        os._exit(status)


def test_damage_is_named(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {"c": state(0)[0]}, META)
    (path,) = tmp_path.glob("rows-*")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(eq.CheckpointError, match=rf"{path.name} is damaged: its content is not what was written"):
        checkpoint.read(tmp_path)
    path.unlink()
    with pytest.raises(eq.CheckpointError, match=rf"{path.name} is missing"):
        checkpoint.read(tmp_path)
    pointer = tmp_path / "checkpoint.json"
    pointer.write_text(pointer.read_text().replace(f'"{path.name}"', "3"))
    with pytest.raises(eq.CheckpointError, match=r"checkpoint\.json is damaged"):
        checkpoint.read(tmp_path)


# every method
NAMES = [
    *(name for name in METHODS if name != "centralised"),  # which has no clients
    "scaffold+fedheal",
    "ditto+fedfv",
    "moon+qffl",
    "fedpac+fedbn",
    "scaffold+cgsv",
    "fedprox+cffl(theta_u=0.4)",
]
BROKEN = (1, 0)  # round, row


def breaks(job: Job) -> Iterator[Answer]:
    """In one round one client answers with what is not a number."""
    for answer in sequential(job):
        broken = (job.t, answer.rows[0]) == BROKEN
        yield replace(answer, trained=answer.trained * float("nan")) if broken else answer


def built(method: Any, **settings: Any) -> eq.Federation:
    tests = {"a": samples(30, 1), "b": samples(20, 3)}
    return federation(method, participation=0.5, engine=breaks, tests=tests, **settings)


def tensors(fed: eq.Federation) -> dict[str, Tensor]:
    return {name: x[...] for name, x in fed.progress.tensors().items()}


RULES = (KeepHead(), Portion(), (KeepHead(), Portion()))
FAST = {*((case, "mlp") for case in ("fedproto+afl", "fedpac", "fedsac", "cffl", *RULES)), ("scaffold", "batchnorm")}
CASES = [(method, "mlp") for method in (*NAMES, *RULES)]
CASES += [(name, "batchnorm") for name in ("scaffold", "fedbn", "fedpac", "cgsv", "standalone", "fedsac")]


@pytest.mark.parametrize("case", fast_first(CASES, FAST))
def test_every_method_gives_the_same_bits(
    case: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, on disk, and on disk with a stop and a return after two of three rounds."""
    method, kind = case
    memory = built(method, kind=kind)
    memory.fit(3, progress=False)
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    monkeypatch.setattr(rows, "too_large", lambda *_: True)
    disk = built(method, kind=kind)
    disk.fit(3, progress=False, directory=tmp_path / "whole")
    stopped = built(method, kind=kind)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.fit(3, progress=False, directory=tmp_path / "stopped", on_round=stop)
    again = built(method, kind=kind)
    assert again.resume(tmp_path / "stopped") == 1
    again.fit(1, progress=False, directory=tmp_path / "stopped")
    expected = tensors(memory)
    for fed in (disk, again):
        found = tensors(fed)
        assert found.keys() == expected.keys()
        wider = {k: x.to(found[k].dtype) if k.endswith("/ups") else x for k, x in expected.items()}  # FPHL's counts
        assert [k for k in found if not same_bits(wider[k], found[k])] == []
        assert told(fed) == told(memory)
        assert [fed.predict(samples(9, 0)[0], client=m).tolist() for m in (0, 3)] == [
            memory.predict(samples(9, 0)[0], client=m).tolist() for m in (0, 3)
        ]
    if any(x.numel() for state in memory.progress.clients for x in state.values()):
        assert any(isinstance(x, Rows) for state in disk.progress.clients for x in state.values())
    assert len(memory.records[1]["quarantined"]) == 1


@pytest.mark.usefixtures("everything_on_disk")
def test_what_each_remembers_is_on_disk() -> None:
    fed = built("scaffold")
    assert isinstance(begin(fed.trial).clients[0]["c_i"], Rows)
    assert isinstance(built(KeepHead()).progress.own, Rows)
    rewarded = built(Portion())
    rewarded.fit(1, progress=False)
    assert isinstance(rewarded.progress.given, Rows)
    assert isinstance(built("fedfv").progress.server[0]["last_update"], Rows)
    assert isinstance(built("fedpac").progress.server[0]["heads"], Rows)


@pytest.mark.parametrize(
    "method",
    others_slow(["scaffold", KeepHead(), Portion(), "fedfv", "fedheal"], fast=(0, 2, 4)),
    ids=str,
)
@pytest.mark.parametrize("first", ["memory", "disk"])
def test_a_checkpoint_is_read_whatever_kept_the_rows(
    method: Any, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"memory": 1 << 30, "disk": 0}
    second = "disk" if first == "memory" else "memory"
    whole = built(method)
    whole.fit(3, progress=False)
    monkeypatch.setattr(rows, "IN_MEMORY", limits[first])
    built(method).fit(2, progress=False, directory=tmp_path)
    monkeypatch.setattr(rows, "IN_MEMORY", limits[second])
    fed = built(method)
    fed.resume(tmp_path)
    fed.fit(1, progress=False, directory=tmp_path)
    expected, found = tensors(whole), tensors(fed)
    assert found.keys() == expected.keys()
    assert [k for k in found if not torch.equal(expected[k], found[k].to(expected[k].dtype))] == []


@pytest.mark.usefixtures("everything_on_disk")
def test_everybody_alone_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = built("fedavg").standalone(2, progress=False)
    monkeypatch.setattr(rows, "IN_MEMORY", 1 << 30)
    memory = built("fedavg").standalone(2, progress=False)
    assert disk == memory
    assert len(disk["standalone_test"]) == len(clients())


# the updates of a round
LARGE = """
import resource
import sys
import torch
from torch import nn
import equipoise as eq

torch.set_num_threads(1)
made = torch.Generator().manual_seed(0)
data = [(torch.randn(4, 1000, generator=made), torch.tensor([0, 1, 2, 3])) for _ in range(60)]

def bits():
    net = nn.Sequential(nn.Linear(1000, 1500), nn.Linear(1500, 4))
    with torch.no_grad():
        [x.fill_(0.01) for x in net.parameters()]
    fed = eq.Federation(net, data, "fedavg", eq.SGD(lr=0.1), batch_size=4, engine="sequential", workers=1)
    fed.fit(2, progress=False)
    return fed.progress.vector.double().sum().item(), fed.progress.vector[::997].tolist()

if sys.argv[1:]:
    kilobytes = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, ((kilobytes + (220 << 10)) << 10,) * 2)
print(bits())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the memory of a process so")
def test_the_updates_of_a_round_need_no_memory(tmp_path: Path) -> None:
    """60 clients of 1.5 million numbers, 360 MB, where the process may take 220 MiB; without the file it fails."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TMPDIR": str(tmp_path), **variables}
        command = [sys.executable, "-c", LARGE, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    whole, small = run(), run("limited", EQUIPOISE_MEMORY="100MiB")
    assert (small.returncode, small.stdout) == (0, whole.stdout), small.stderr
    failed = run("limited", EQUIPOISE_MEMORY="8GiB")
    assert failed.returncode
    assert "allocate" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_has_no_room_for_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rows, "too_large", lambda *_: True)
    monkeypatch.setattr(rows.os, "posix_fallocate", refuse, raising=False)
    with pytest.raises(OSError, match=r"No space is left in \S+ for the models of 3 clients: 60 bytes\. Free some"):
        rows.matrix(3, torch.zeros(5))


def test_an_engine_that_answers_twice_is_named() -> None:
    def twice(job: Job) -> Iterator[Answer]:
        first, *others = sequential(job)
        yield from (first, *others[:-1], first)

    with pytest.raises(ValueError, match="The engine answers twice for client 0: it must yield each row of a job once"):
        federation("fedavg", engine=twice, quorum=0.2, participation=1.0).fit(1, progress=False)


def test_no_rows_and_whole_numbers() -> None:
    assert rows.matrix(0, torch.zeros(5)).shape == (0, 5)
    assert rows.matrix(3, torch.zeros(0)).shape == (3, 0)
    assert rows.matrix(2, torch.zeros(5, dtype=torch.int64)).dtype == torch.int64
