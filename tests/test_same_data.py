"""A run that goes on, or is taken as it is, saw the data and the code of now; where it did not, that is said."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.data.memory_mapped import Mapped
from equipoise.records.identity import PARTS
from equipoise.report.notes import releases
from equipoise.runs import directory as runs, plan, reproduce as reproductions, unchanged
from equipoise.runs.configuration import RunConfig, RunError, configure
from equipoise.runs.experiment import read_experiment
from equipoise.system import environment, hashes, seals
from helpers import clients, federation, identical, samples
from run_helpers import cache, equipoise

Call = Callable[..., Any]
OLD = "is of an earlier version, which kept no hash of its data: that they are the same could not be checked."


# federations from Python
def small(**changes: Any) -> eq.Federation:
    given = {"tests": {"a": samples(20, 1), "b": samples(20, 2)}, "groups": ["a", "a", "b", "b", "b"]}
    return federation(changes.pop("method", "fedavg"), **(given | changes))


def other(which: int = 3) -> list[tuple[Tensor, Tensor]]:
    """The clients' data with one number changed by its last bit; all labels as before."""
    data = clients()
    x, y = data[which]
    x = x.clone()
    x[-1, -1] = torch.nextafter(x[-1, -1], torch.tensor(9.0, dtype=x.dtype))
    return [*data[:which], (x, y), *data[which + 1 :]]


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "an input": ({"data": other()}, "the training data of the clients"),
    "labels": ({"data": [(x, y.flip(0)) for x, y in clients()]}, "the training data of the clients"),
    "a test set": ({"tests": {"a": samples(20, 1), "b": samples(20, 3)}}, "the test sets"),
    "its name": ({"tests": {"a": samples(20, 1), "c": samples(20, 2)}, "groups": list("aaccc")}, "the test sets and the groups"),
    "no test set": ({"tests": None, "groups": None}, "the test sets and the groups of the clients"),
    "groups": ({"groups": ["a", "b", "b", "b", "b"]}, "the groups of the clients"),
    "validation data": ({"server_validation": (samples(70, 2)[0] + 1e-9, samples(70, 2)[1])}, "the validation data"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_data_are_refused_by_name(tmp_path: Path, change: str) -> None:
    changes, what = CHANGES[change]
    method = "fedave" if "server_validation" in changes else "fedavg"
    small(method=method, data=clients()).fit(1, directory=tmp_path, progress=False)
    assert small(method=method, data=clients()).resume(tmp_path) == 0
    with pytest.raises(eq.CheckpointError) as error:
        small(method=method, **changes).resume(tmp_path)
    assert str(error.value).startswith(f"The run in {tmp_path} was begun with other data: {what}")
    assert str(error.value).endswith(". Give the same again, or choose another directory.")


def test_the_order_of_test_sets_and_the_hash_decide_nothing(tmp_path: Path) -> None:
    fed = small()
    fed.fit(2, directory=tmp_path, progress=False)
    plain = small()
    plain.fit(2, progress=False)
    assert identical(fed, plain)
    assert small(tests={"b": samples(20, 2), "a": samples(20, 1)}).resume(tmp_path) == 0


def test_images_on_disk_are_known_by_their_file(tmp_path: Path, cache: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (12, 3, 8, 8), np.uint8)
    path = tmp_path / "x.npy"

    def made() -> eq.Federation:
        np.save(path, pixels)
        data = Mapped(path, np.arange(12), torch.arange(12) % 2)
        net = eq.network("mlp", in_shape=(3, 8, 8), n_classes=2, hidden=(2,))
        return eq.Federation(net, [data, data.take([1, 2])], transform=eq.Images(mean=(0.5,), std=(0.25,)))

    made().fit(1, directory=tmp_path / "run", progress=False)
    assert made().resume(tmp_path / "run") == 0
    pixels[7, 0, 0, 0] ^= 1
    with pytest.raises(eq.CheckpointError, match=r"the training data of the clients\."):
        made().resume(tmp_path / "run")


class Drawn(Dataset[tuple[Tensor, int]]):
    """Samples that are read when they are needed; ``jitter`` makes them others each time."""

    def __init__(self, jitter: float = 0.0, shift: float = 0.0) -> None:
        self.jitter, self.shift, self.reads = jitter, shift, 0

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.reads += 1
        x = torch.full((6,), row / 4000 + self.shift, dtype=torch.float64) + self.jitter * torch.randn(6)
        return x, row % 3


def test_of_streamed_data_a_few_samples_are_looked_at(tmp_path: Path) -> None:
    def made(**drawn: float) -> tuple[eq.Federation, Drawn]:
        data = Drawn(**drawn)
        return federation(data=[data, clients()[1]], memory=0, server_validation=None), data

    first, data = made()
    assert data.reads < 100
    first.save(tmp_path)
    assert data.reads < 130  # nobody reads all of it for a hash
    assert made()[0].resume(tmp_path) == 0
    with pytest.raises(eq.CheckpointError, match=r"the training data of the clients\."):
        made(shift=1.0)[0].resume(tmp_path)
    jittered, _ = made(jitter=1.0)
    before = torch.get_rng_state()
    jittered.save(tmp_path / "jittered")
    assert torch.equal(torch.get_rng_state(), before)
    assert made(jitter=1.0)[0].resume(tmp_path / "jittered") == 0  # what changes each time says nothing


def test_of_lazy_clients_the_first_is_loaded(tmp_path: Path) -> None:
    def made(data: list[tuple[Tensor, Tensor]]) -> eq.Federation:
        return federation(data=[eq.Lazy(lambda k=k: loads.append(k) or data[k], len(data[k][1])) for k in range(5)])

    loads: list[int] = []
    fed = made(clients())
    fed.save(tmp_path)
    assert set(loads) == {0}
    assert made(clients()).resume(tmp_path) == 0
    with pytest.raises(eq.CheckpointError, match=r"the training data of the clients\."):
        made(other(0)).resume(tmp_path)


def test_a_checkpoint_without_hashes_goes_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small().fit(1, directory=tmp_path, progress=False)
    path = tmp_path / "checkpoint" / "checkpoint.json"
    about = seals.open_json(path.read_text())
    del about["fingerprint"]["data"]
    path.write_text(json.dumps(about))
    assert small(data=other()).resume(tmp_path) == 0
    assert caplog.messages == [f"{tmp_path} {OLD}"]
    fed = small(data=[(x, y.flip(0)) for x, y in clients()])
    with pytest.raises(eq.CheckpointError, match="was begun with other data: the labels of the clients"):
        fed.resume(tmp_path)


# the user's files
@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return write(tmp_path / "my.npz")


def write(path: Path, seed: int = 0, age: float = 10.0) -> Path:
    """Twelve samples of each of three clients; the file is ``age`` seconds old."""
    x = np.random.default_rng(seed).normal(size=(36, 4)).astype(np.float32)
    y = np.arange(36) % 2  # the same for every seed
    np.savez(path, x=x, y=y, client=np.array([f"c{k % 3}" for k in range(36)]))
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return path


def own(path: Path, method: str = "fedavg", **changes: Any) -> RunConfig:
    small = {"network": "mlp", "network_options": {"hidden": [2]}, "rounds": 2, "epochs": 1}
    return configure(method, "own", data=str(path), **(small | changes))


def test_another_file_under_a_finished_run_is_refused(mine: Path, tmp_path: Path, equipoise: Call) -> None:
    configs = [own(mine), own(mine, "fedprox")]
    for config, path in zip(configs, plan.directories(tmp_path / "cmp", configs), strict=True):
        runs.start(config, path)
        runs.execute(path, progress=False)
    assert [len(run) for run in plan.compare(configs, tmp_path / "cmp")] == [2, 2]  # taken as they are
    write(mine, seed=1)
    with pytest.raises(RunError) as error:
        plan.compare([*configs, own(mine, "fedheal")], tmp_path / "cmp")
    assert str(error.value) == (
        f"{tmp_path}/cmp/fedavg-seed0 holds a run on other data: the training data of the clients and the test sets are not "
        f"those it was begun with. {mine} has changed since. Put the old files back, choose another --name, or delete "
        f"{tmp_path}/cmp."
    )
    assert not (tmp_path / "cmp" / "fedheal-seed0").exists()
    again = equipoise("resume", tmp_path / "cmp" / "fedavg-seed0")
    assert again.status == 1
    assert again.err.startswith(f"error: {tmp_path}/cmp/fedavg-seed0 holds a run on other data")
    write(mine)  # put back, though at another time
    assert len(plan.compare(configs, tmp_path / "cmp")) == 2


def test_another_file_under_a_killed_run_is_refused(mine: Path, tmp_path: Path, equipoise: Call) -> None:
    runs.start(own(mine), tmp_path / "run")
    runs.execute(tmp_path / "run", progress=False)
    (tmp_path / "run" / "summary.json").unlink()
    write(mine, seed=1)
    found = equipoise("resume", tmp_path / "run")
    assert (found.status, found.out) == (1, "")
    assert f"{tmp_path}/run holds a run on other data" in found.err
    (tmp_path / "run" / "manifest.json").unlink()  # the checkpoint knows, too
    found = equipoise("resume", tmp_path / "run")
    assert "was begun with other data: the training data of the clients and the test sets." in found.err


def test_a_planned_experiment_takes_no_run_of_other_data(mine: Path, tmp_path: Path) -> None:
    cell = reproductions.PlannedRun("part", "row", 0, own(mine), tmp_path / "cells" / "one", rounds=1)
    plan = reproductions.ReproductionPlan(read_experiment("fedheal/table2"), (cell,))
    runs.start(cell.config, cell.path)
    runs.execute(cell.path, progress=False)
    assert reproductions.run(plan) == {}
    write(mine, seed=1)
    with pytest.raises(RunError, match="cells/one holds a run on other data"):
        reproductions.run(plan)


def test_a_run_of_an_earlier_version_says_that_its_data_are_not_known(
    mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs.start(own(mine), tmp_path / "run")
    runs.execute(tmp_path / "run", progress=False)
    path = tmp_path / "run" / "manifest.json"
    known = seals.open_json(path.read_text())
    del known["contents"]
    path.write_text(json.dumps(known))
    runs.execute(tmp_path / "run", progress=False)
    assert caplog.messages == [f"{tmp_path / 'run'} {OLD}"]
    mine.unlink()
    path.write_text(seals.sealed_json(known | {"contents": {"inputs": "1"}}))
    caplog.clear()
    runs.execute(tmp_path / "run", progress=False)  # only to be shown
    assert "that its data are the same could not be checked: " in caplog.messages[0]


def test_other_weights_of_the_first_model_are_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(write(tmp_path / "my.npz"))
    weights = tmp_path / "first.pth"
    weights.write_bytes(b"1")
    named = replace(config, network_options={"weights": str(weights)})
    (tmp_path / "manifest.json").write_text(seals.sealed_json({"contents": unchanged.contents(named)}))
    unchanged.check(named, tmp_path)
    weights.write_bytes(b"2")
    with pytest.raises(RunError, match="other data: the weights of the first model are not those"):
        unchanged.check(named, tmp_path)
    assert unchanged.contents(replace(named, data=None)).keys() == {"weights"}


def test_files_are_read_again_only_where_something_changed(
    mine: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own(mine)
    first = unchanged.contents(config)
    assert {*first} == {*PARTS} - {"weights", "labels"}
    with monkeypatch.context() as patch:
        patch.setattr(unchanged.scenarios, "load", None)
        if hashes.stamp(mine) is not None:  # its status changed long enough ago
            assert unchanged.contents(config) == first
    write(mine, seed=1)
    assert unchanged.contents(config)["inputs"] != first["inputs"]
    assert unchanged.contents(own(mine, seed=1)) != unchanged.contents(config)  # another division


# remembered hashes
@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "SETTLED", -1.0)
    return tmp_path / "cache" / hashes.FILE


def test_a_hash_is_remembered_until_the_file_changes(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"1")
    one = hashes.file_hash(path)
    with monkeypatch.context() as patch:
        patch.setattr(hashes.hashlib, "file_digest", None)
        assert hashes.file_hash(path) == one
    path.write_bytes(b"22")
    two = hashes.file_hash(path)
    assert two != one
    for damage in (kept.read_bytes().replace(two.encode(), one.encode()), b"{", b"[]", b"\xff"):
        kept.write_bytes(damage)
        assert hashes.file_hash(path) == two
    kept.unlink()
    kept.mkdir()  # cannot be written
    assert hashes.file_hash(path) == two


def test_the_cache_of_hashes_stays_small(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "MOST", 3)
    for k in range(5):
        assert hashes.remembered(str(k), "now", lambda k=k: f"of {k}") == f"of {k}"
    assert list(seals.open_json(kept.read_text())["hashes"]) == ["2", "3", "4"]
    assert hashes.remembered("4", "now", lambda: "again") == "of 4"
    assert hashes.remembered("4", "later", lambda: "again") == "again"


def test_a_young_file_is_not_remembered(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change again within the resolution of the clock."""
    monkeypatch.setattr(hashes, "SETTLED", 2.0)
    path = tmp_path / "young"
    path.write_bytes(b"1")
    assert hashes.stamp(path) is None
    hashes.file_hash(path)
    assert not kept.exists()


def test_the_stamp_of_a_folder_knows_every_file(kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.jpg").write_bytes(b"1")
    (folder / "a" / "round").symlink_to(folder)  # in a circle
    (folder / "nowhere").symlink_to(folder / "gone")
    found = {hashes.stamp(folder)}
    (folder / "a" / "x.jpg").write_bytes(b"22")
    found.add(hashes.stamp(folder))
    (folder / "b").write_bytes(b"")
    found.add(hashes.stamp(folder))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "y.jpg").write_bytes(b"1")
    (folder / "linked").symlink_to(elsewhere)
    found.add(hashes.stamp(folder))
    (elsewhere / "y.jpg").write_bytes(b"22")
    found.add(hashes.stamp(folder))
    assert len(found) == 5
    assert None not in found


# the code
def test_a_run_that_another_version_began_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = small()
    first.fit(1, directory=tmp_path, progress=False)
    assert list(releases([first.history])) == []
    monkeypatch.setattr(environment, "source", lambda: "0123456789abcdef")
    (note,) = releases([first.history])
    assert note.startswith(
        f"Computed by another version of Equipoise ({environment.release(first.machines[0])}) than this "
    )
    assert note.endswith("source 0123456789abcdef), which may give other results.")
    earlier = [{k: v for k, v in machine.items() if k not in ("source", "equipoise")} for machine in first.machines]
    (note,) = releases([first.history, eq.History((), {"method": "fedprox", "machines": earlier})])
    assert "; an earlier one): results may differ" in note
    later = small()
    later.resume(tmp_path)
    assert not caplog.messages
    later.fit(1, directory=tmp_path, progress=False)
    (said,) = caplog.messages
    assert "fedavg, seed 3: rounds before 1 were computed by Equipoise " in said
    assert ", source 0123456789abcdef: results may differ" in said
    assert [machine["round"] for machine in later.machines] == [0, 1]
    (note,) = releases([later.history])
    assert note.startswith("Computed by different versions of Equipoise (")
    (note,) = eq.History.from_run(tmp_path).meta["machines"][1:]
    assert note["source"] == "0123456789abcdef"


def test_the_source_is_that_of_the_code_that_computes() -> None:
    home = Path(environment.__file__).parent.parent
    assert all((home / package / "__init__.py").exists() for package in environment.DECISIVE)
    assert len(environment.source()) == 16
    assert environment.release({"torch": "2"}) == ""
