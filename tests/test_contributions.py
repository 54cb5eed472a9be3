"""What each client reaches alone: found out once, kept, recorded, and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.federation.history import History
from equipoise.report.statistics import Comparison
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from helpers import fast_first, federation, fitted, identical, in_one, others_slow, samples

SMALL = {"clients": 3, "samples": 90, "test": [10, 10, 20, 20]}
TESTS = {"a": samples(40, 1)}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How often clients were trained alone, with a cache of their own."""
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    asked: list[int] = []
    original = eq.Federation.standalone

    def standalone(self: eq.Federation, rounds: int, *, progress: bool = True) -> Any:
        asked.append(rounds)
        return original(self, rounds, progress=progress)

    monkeypatch.setattr(eq.Federation, "standalone", standalone)
    return asked


def ran(directory: Path, method: str, **choices: Any) -> History:
    config = configure(
        method,
        "digits-pow",
        scenario_options=SMALL,
        network="mlp",
        network_options={"hidden": [8]},
        rounds=2,
        **choices,
    )
    runs.start(config, directory)
    return runs.execute(directory, progress=False)


def test_methods_on_the_same_data_share_the_answer(counted: list[int], tmp_path: Path) -> None:
    histories = [ran(tmp_path / m, m) for m in ("fedavg", "fedsac", "cgsv", "standalone")]
    assert counted == [2]
    alone = [h.meta["contribution"]["standalone_test"] for h in histories]
    assert alone[0] == alone[1] == alone[2] == alone[3]
    assert histories[1].meta["contribution"]["used"] == "standalone_val"
    assert histories[0].meta["contribution"]["used"] is None
    assert histories[3].records[-1]["clients"]["accuracy"] == pytest.approx(alone[3])
    ran(tmp_path / "seed", "fedavg", seed=1)
    ran(tmp_path / "lr", "fedavg", lr=0.01)
    assert counted == [2, 2, 2]


@pytest.mark.parametrize(
    "content", fast_first(["", "[1, 2", "[]", '{"standalone_test": [0.1], "standalone_val": null}'], ("[1, 2",))
)
def test_a_damaged_answer_costs_only_the_time(counted: list[int], tmp_path: Path, content: str) -> None:
    first = ran(tmp_path / "a", "fedavg")
    (kept,) = (tmp_path / "cache").glob("alone-*.json")
    kept.write_text(content)
    again = ran(tmp_path / "b", "fedavg").meta["contribution"]
    assert {**again, "seconds": 0} == {**first.meta["contribution"], "seconds": 0}
    assert counted == [2, 2]
    assert json.loads(kept.read_text())["standalone_test"] == first.meta["contribution"]["standalone_test"]


def test_a_cache_that_cannot_be_written(counted: list[int], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert len(ran(tmp_path / "a", "fedavg").meta["contribution"]["standalone_val"]) == 3
    assert counted == [2]


def test_a_resumed_run_keeps_its_contributions(counted: list[int], tmp_path: Path) -> None:
    fed = federation("fedsac", tests=TESTS)
    fed.fit(2, directory=tmp_path / "run", progress=False)
    again = federation("fedsac", tests=TESTS)
    again.resume(tmp_path / "run")
    assert again.alone == fed.alone
    r = again.progress.server[0]["r"]
    again.fit(1, progress=False)
    assert counted == [2, 3]  # what clients reach alone in as many rounds as the federation has had
    fed.fit(1, progress=False)
    assert again.history.meta["contribution"] == fed.history.meta["contribution"]
    assert torch.equal(again.progress.server[0]["r"], r)
    assert identical(again, fed)


def test_nobody_trains_alone_unless_asked(counted: list[int]) -> None:
    fitted("fedavg", 2, tests=TESTS)
    fitted("cgsv", 2, tests=TESTS)
    assert counted == []
    asked = fitted("fedavg", 2, tests=TESTS, collaborative=True)
    assert counted == [2]
    assert len(asked.history.contribution) == 5
    given = fitted("fedavg", 2, tests=TESTS, contribution=[0.1, 0.2, 0.3, 0.4, 0.5])
    assert counted == [2]
    assert given.history.meta["contribution"]["standalone_test"] == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize(("last", "rounds"), others_slow([(1, 3), (2, 3), (3, 3), (5, 3), (3, 1)], fast=(1, 3)))
def test_alone_is_the_mean_over_the_last_rounds(last: int, rounds: int) -> None:
    """As training alone for fewer rounds gives each of them, one by one."""
    fed = federation("fedsac", tests=TESTS, contribution_rounds=last)
    alone, n = fed.standalone(rounds, progress=False), min(last, rounds)
    each = [federation("fedsac", tests=TESTS).standalone(t, progress=False) for t in range(rounds - n + 1, rounds + 1)]
    for name in ("standalone_test", "standalone_val"):
        assert alone[name] == pytest.approx([sum(of) / n for of in zip(*(one[name] for one in each), strict=True)])
    assert alone.get("averaged", 1) == n
    if n > 1:
        columns = torch.tensor([one["standalone_test"] for one in each], dtype=torch.float64)
        assert alone["spread"] == pytest.approx(columns.std(dim=0).tolist())
    else:
        assert alone == federation("fedsac", tests=TESTS).standalone(rounds, progress=False)
    again = fed.standalone(rounds + 1, progress=False)
    assert again == federation("fedsac", tests=TESTS, contribution_rounds=last).standalone(rounds + 1, progress=False)


def test_the_mean_decides_reputations_and_is_recorded(tmp_path: Path) -> None:
    fed = fitted("fedsac", 3, tests=TESTS, contribution_rounds=2)
    alone = federation("fedsac", tests=TESTS, contribution_rounds=2).standalone(3, progress=False)
    assert fed.history.meta["contribution"] == {**alone, "used": "standalone_val"}
    assert fed.trial.contribution.tolist() == alone["standalone_val"]
    known = fed.history.summary()["collaboration"]["alone"]
    assert known["spread"] == pytest.approx(100 * sum(alone["spread"]) / len(alone["spread"]))
    assert known["rounds"] == 2
    fed.save(tmp_path)
    with pytest.raises(eq.CheckpointError, match="contribution_rounds"):
        federation("fedsac", tests=TESTS).resume(tmp_path)


def test_where_nothing_is_measured_there_is_nothing_to_average(tmp_path: Path) -> None:
    for more in ({}, {"contribution": [0.1, 0.2, 0.3, 0.4, 0.5]}):
        with pytest.raises(ValueError, match=r"contribution_rounds=2: .* Leave it out"):
            federation("fedavg", tests=TESTS, contribution_rounds=2, **more)
    with pytest.raises(ValueError, match="contribution_rounds=2: nobody's contribution is measured"):
        runs.federation(configure("fedavg", "digits", contribution_rounds=2))
    with pytest.raises(ValueError, match="contribution_rounds must be"):
        configure("fedavg", "digits-pow", contribution_rounds=0)


def test_runs_average_and_keep_each_answer(counted: list[int], tmp_path: Path) -> None:
    plain = ran(tmp_path / "plain", "fedavg")
    averaged = ran(tmp_path / "averaged", "fedavg", contribution_rounds=2)
    assert counted == [2, 2]
    assert plain.contribution.tolist() != averaged.contribution.tolist()
    assert (
        ran(tmp_path / "again", "fedsac", contribution_rounds=2).contribution.tolist() == averaged.contribution.tolist()
    )
    assert counted == [2, 2]
    (note,) = [n for n in Comparison.of([averaged])["collaboration"]["notes"] if "reaches alone" in n]
    assert note.startswith(
        "What a client reaches alone is the mean over the last 2 rounds of training alone, between which"
    )
    assert "over the last" not in " ".join(Comparison.of([plain])["collaboration"]["notes"])
    assert "contribution_rounds" not in runs.load(tmp_path / "plain").key()  # a run of before is found by the same name
    assert runs.load(tmp_path / "averaged").key()["contribution_rounds"] == 2


def test_without_validation_data_or_tests() -> None:
    alone = federation("fedavg", server_validation=None).standalone(1, progress=False)
    assert alone == {"standalone_test": None, "standalone_val": None, "rounds": 1}


def test_alone_for_as_long_as_together() -> None:
    """Round by round, as at once: training alone goes on where it was."""
    fed = federation("fedavg", tests=TESTS, collaborative=True)
    for _ in range(4):
        fed.fit(1, progress=False)
    assert (
        fed.history.meta["contribution"]
        == fitted("fedavg", 4, tests=TESTS, collaborative=True).history.meta["contribution"]
    )


def test_a_client_that_cannot_train_alone_keeps_its_last_model(caplog: pytest.LogCaptureFixture) -> None:
    data = [samples(12, k) for k in range(4)]
    data[1][0][0, 0] = float("nan")
    fed = fitted("fedsac", 2, data=data, tests=TESTS)
    plain = federation("fedavg", tests=TESTS, data=data).evaluate()["a"]["accuracy"]
    assert fed.history.contribution[1] == pytest.approx(plain)  # the first model
    assert "client-1 cannot train alone to the end" in caplog.text
    nobody = federation(
        "fedavg", data=[(torch.full((4, 6), float("nan")).double(), torch.zeros(4).long())], tests=TESTS
    )
    assert nobody.standalone(2, progress=False)["standalone_test"] == [pytest.approx(plain)]


class Noisy(torch.utils.data.Dataset[Any]):
    """Validation data that are other ones whenever they are read."""

    def __init__(self) -> None:
        self.x, self.y = samples(30, 2)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        return self.x[k] + torch.randn(6, dtype=torch.float64), int(self.y[k])


@pytest.mark.parametrize("method", others_slow(["fedsac", "cffl", "fedave"], fast=(1,)))
def test_random_validation_data_follow_the_seed(method: str) -> None:
    torch.manual_seed(1)
    a = fitted(method, 3, server_validation=Noisy())
    torch.manual_seed(2)
    b = fitted(method, 3, server_validation=Noisy())
    assert identical(a, b)
    assert a.alone == b.alone


def test_a_checkpoint_of_other_units_or_validation_data(tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    ).double()
    first, second = ("first", (["0"], ["2"])), ("second", (["2"], ["4"]))
    given = [0.1, 0.2, 0.3, 0.4, 0.5]
    settings = {"net": net, "contribution": given}
    federation("fedsac", neurons=dict([first, second]), **settings).fit(1, directory=tmp_path, progress=False)
    for groups in ([second, first], [first]):
        with pytest.raises(eq.CheckpointError, match="hidden units"):
            federation("fedsac", neurons=dict(groups), **settings).resume(tmp_path)
    with pytest.raises(eq.CheckpointError, match="validation"):
        federation("fedsac", neurons=dict([first, second]), server_validation=samples(20, 9), **settings).resume(
            tmp_path
        )
    assert federation("fedsac", neurons=dict([first, second]), **settings).resume(tmp_path) == 0


# bad input
def test_a_scenario_that_holds_no_data_out() -> None:
    with pytest.raises(
        ValueError, match=r"fedsac measures on validation data .* scenario digits holds none out.*digits-pow"
    ):
        configure("fedsac", "digits")


def test_steps_and_epochs() -> None:
    with pytest.raises(ValueError, match="--epochs 2 and --steps 5: give one of them"):
        configure("fedavg", "digits", epochs=2, steps=5)
    assert configure("fedavg", "digits-pow", scenario_options=SMALL).steps == 15
    assert configure("fedavg", "digits-pow", scenario_options=SMALL, epochs=2).steps is None
    assert configure("fedavg", "digits", steps=4).steps == 4


@in_one("steps", [0, -1, 1.5, True])
def test_bad_steps(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps must be a whole number >= 1"):
        federation("fedavg", steps=steps)
