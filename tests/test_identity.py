"""What two runs differ in, and directories of runs that earlier versions made, which are named by their commits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.records.identity import Identity, stated
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError, configure

EARLIER = Path(__file__).parent / "earlier"


def test_what_was_not_recorded_is_not_compared_and_a_newer_setting_had_its_default() -> None:
    then = Identity({"lr": 0.1}, data={"inputs": "a", "labels": "x"}, machine={"torch": "2.6"})
    now = Identity({"lr": 0.1, "zeal": 1}, data={"inputs": "a", "labels": "x", "attributes": "b"})
    assert then.differences(now, {"zeal": 1}) == [("machine", "torch", "2.6", None)]
    assert stated(then.differences(now, {"zeal": 2})) == "other settings: zeal is 2 there and 1 here"
    assert stated(then.differences(now)) == "other settings: zeal is not given there and 1 here"
    assert str(then.differences(now)[-1]) == "torch is 2.6 there and missing here"


def test_a_sentence_names_all_of_the_first_kind() -> None:
    then = Identity(code={"mine.py": "1", "more.py": "2"}, data={"inputs": 1, "tests": 1, "groups": 1, "labels": 1})
    data = then.differences(Identity(code=then.code))
    assert stated(data) == "other data: the training data of the clients, the test sets and the groups of the clients"
    assert stated(then.differences(Identity(code={"mine.py": "3"}))).startswith("other code: mine.py has changed since")
    labels = Identity(data={**then.data, "labels": 2})
    assert (
        stated(then.differences(Identity(code=then.code, data=labels.data))) == "other data: the labels of the clients"
    )


# directories of earlier versions
@pytest.fixture(params=["dd58923", "702c05d1"])
def study(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs of a version, in a copied project."""
    shutil.copytree(EARLIER, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")
    return tmp_path / "study" / str(request.param)


def config(**more: Any) -> RunConfig:
    """What the run on digits was begun with."""
    sizes = {"train": [24, 20, 28, 16], "test": [20, 20, 20, 20], "clients": 4}
    given = {"scenario_options": sizes, "network": "mlp", "network_options": {"hidden": [1]}, "rounds": 2, **more}
    return configure("mine.py:Mine+fedavgm", "digits", keep_checkpoints=2, **given)


def test_a_run_of_an_earlier_version_is_read_and_continues(study: Path) -> None:
    before = eq.History.from_run(study / "digits")
    assert (len(before), before.label) == (2, "mine.py:Mine+fedavgm")
    runs.start(config(), study / "digits")
    again = runs.execute(study / "digits", progress=False, from_round=1)
    losses, repeated = ([r["groups"]["photo"]["loss"] for r in history.records] for history in (before, again))
    assert repeated == pytest.approx(losses, rel=1e-6)


def test_a_run_of_an_earlier_version_is_compared(study: Path) -> None:
    with pytest.raises(RunError, match=r"other settings: .*rounds is 2 there and 4 here"):
        runs.start(config(rounds=4), study / "digits")
    code = Path("mine.py")
    code.write_text(code.read_text() + "# changed\n")
    with pytest.raises(RunError, match=r"was begun with other code|with other settings: method is .*mine\.py:Mine"):
        runs.start(config(), study / "digits")


def test_the_table_of_an_earlier_version_is_the_same_where_it_is_read_alike(study: Path) -> None:
    options = {"client": "site", "label": "ill"}
    given: dict[str, Any] = {"data": "table.csv", "scenario_options": options, "rounds": 3, "keep_checkpoints": 2}
    now = configure("mine.py:Mine+fedavgm", "own", network="mlp", network_options={"hidden": [3]}, **given)
    if study.name == "702c05d1":
        runs.start(now, study / "table")
    table = Path("table.csv")
    table.write_text(table.read_text().replace("north,74", "north,47"))
    with pytest.raises(
        RunError, match=r"other data: the training data of the clients.*version of Equipoise reads them"
    ):
        runs.start(now, study / "table")


def part(k: int) -> tuple[Tensor, Tensor]:
    x = torch.arange(80.0).reshape(20, 4).add(7 * k).remainder(5) / 5
    return x, (x.sum(1) > 1.5 + 0.1 * k).long()


def test_a_comparison_of_an_earlier_version_is_taken_as_it_is(study: Path) -> None:
    net, methods = nn.Linear(4, 2), {"plain": "fedavg", "prox": "fedprox(mu=1)"}
    for p in net.parameters():
        nn.init.constant_(p, 0.25)
    given: dict[str, Any] = {"seeds": 1, "rounds": 2, "directory": study / "python", "progress": False}
    given |= {"solver": eq.SGD(0.1), "tests": {"a": part(3)}}
    before = [eq.History.from_run(study / "python" / f"{label}-seed0").records for label in methods]
    compared = eq.compare(net, [part(k) for k in range(3)], methods, **given)
    assert [history.records for history in compared.histories] == before
    with pytest.raises(eq.CheckpointError, match=r"begun with other settings: solver is SGD\(lr=0\.1"):
        eq.compare(net, [part(k) for k in range(3)], methods, **{**given, "solver": eq.SGD(0.2)})
