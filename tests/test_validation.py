"""What clients hold out of their own samples: the division, early stopping, and the choice of the exported model."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn, strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import equipoise as eq
from equipoise.core.tally import Tally
from equipoise.core.task import CLASSIFICATION
from equipoise.data.memory_mapped import Mapped
from equipoise.data.samples import Samples, divided, n_held, read
from equipoise.federation import checkpoint
from equipoise.federation.evaluation import EvaluationSets
from equipoise.flower.server.scores import held_out
from equipoise.flower.settings import AppSettings
from equipoise.records.validation import selected, value
from equipoise.report.html import write
from equipoise.report.layout import other_rounds, sheets
from equipoise.report.statistics import Comparison
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system.errors import RunError
from helpers import clients, consortium, federation, in_one, samples
from run_helpers import TINY, Zygote, assert_same_run, cache, config, equipoise, executed, records, started, zygote

Call = Callable[..., Any]
CPU = torch.device("cpu")
SETS = {"a": samples(20, 11), "b": samples(20, 12)}
GROUPS = ["a", "a", "b", "b", "b"]


class Forbidden(Dataset[tuple[torch.Tensor, int]]):
    """Test data that nobody may look at, once they are in the federation."""

    def __init__(self) -> None:
        self.x, self.y = samples(40, 5)
        self.closed = False

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if self.closed:
            raise AssertionError("the test data were read")
        return self.x[row] + 1e-3 * torch.rand(()), int(self.y[row])  # random, so that it is streamed


def rounds_of(*accuracies: float, losses: tuple[float, ...] = ()) -> list[dict[str, Any]]:
    """Records of rounds with one group, whose accuracy is that of all."""
    return [
        {"round": t, "validation": {"accuracy": a, "loss": losses[t] if losses else 1.0, "n": 10, "groups": {"all": {"accuracy": a}}}}
        for t, a in enumerate(accuracies)
    ]  # fmt: skip


def bits(state: dict[str, torch.Tensor]) -> bytes:
    return b"".join(x.numpy().tobytes() for x in state.values())


def rounds_until(fed: eq.Federation, rounds: int) -> dict[str, torch.Tensor]:
    """The global model of the same federation after some rounds."""
    fed.fit(rounds, progress=False)
    return fed.state_dict()


# the division
@in_one(("n", "share"), [(40, 0.2), (37, 0.5), (11, 0.1), (100, 0.29), (5, 0.99)])
def test_a_share_of_each_class_is_held_out(n: int, share: float) -> None:
    y = torch.arange(n) % 3
    data = read((torch.arange(n, dtype=torch.float32)[:, None], y), "c", torch.float32, CPU)
    own, held = divided(data, share, 0, "c")
    assert isinstance(own, Samples)
    assert isinstance(held, Samples)
    assert held.size == int(share * n + 1e-9)
    assert sorted([*own.content.x[:, 0].tolist(), *held.content.x[:, 0].tolist()]) == list(range(n))
    found = held.content.y.bincount(minlength=3).double()
    assert ((found - held.size * y.bincount() / n).abs() <= 1).all()
    again, other = divided(data, share, 0, "c")[1], divided(data, share, 1, "c")[1]
    assert isinstance(again, Samples)
    assert isinstance(other, Samples)
    assert torch.equal(again.content.x, held.content.x)
    if n > 30:
        assert not torch.equal(other.content.x, held.content.x)


def test_all_kinds_of_data_are_divided_alike(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (30, 1, 2, 2), dtype=torch.uint8)
    y = torch.arange(30) % 4
    np.save(tmp_path / "x.npy", images.numpy())
    kinds = {
        "tensors": (images, y),
        "data set": TensorDataset(images, y),
        "lazy": eq.Lazy(lambda: (images, y), 30),
        "mapped": Mapped(tmp_path / "x.npy", np.arange(30), y),
    }
    found = {}
    for name, given in kinds.items():
        parts = divided(read(given, "c", torch.float32, CPU), 0.3, 7, "c")
        read_ = [getattr(part, "load", lambda part=part: part)() for part in parts]
        assert [part.size for part in parts if part is not None] == [21, 9] == [part.size for part in read_]
        found[name] = [torch.cat([b.x.flatten(), b.y]).tolist() for part in read_ for b in [part.batch(torch.arange(part.size), None)]]  # fmt: skip
    assert all(of == found["tensors"] for of in found.values())
    streamed = read(TensorDataset(images, y), "c", torch.float32, CPU, memory=0)
    assert isinstance(streamed, Samples)
    assert streamed.content is None
    own, held = divided(streamed, 0.3, 7, "c")
    assert held is not None
    assert (own.size, held.size) == (21, 9)


@pytest.mark.parametrize(
    "engine", ["sequential", "stacked", "workers", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_the_division_does_not_depend_on_the_engine(engine: str) -> None:
    fed = federation(validation=0.3, engine=engine, tests=SETS, groups=GROUPS)
    assert fed.held is not None
    assert [d.size for d in fed.trial.data] == fed.trial.setup.sizes.tolist()
    sizes = [len(y) for _, y in clients()]
    assert [d.size + (0 if h is None else h.size) for d, h in zip(fed.trial.data, fed.held.sets, strict=True)] == sizes
    (record,) = fed.fit(1, progress=False).records
    (expected,) = federation(validation=0.3, tests=SETS, groups=GROUPS).fit(1, progress=False).records
    assert record["validation"]["accuracy"] == expected["validation"]["accuracy"]
    assert record["validation"]["loss"] == pytest.approx(expected["validation"]["loss"], rel=1e-5)


def test_a_client_with_too_few_samples_trains_and_is_named() -> None:
    data = [samples(40, 1), samples(3, 2), samples(30, 3)]
    fed = federation(data=data, validation=0.2)
    assert "14 samples in all; too few to hold one out, so no validation of client-1" in fed.header[-1]
    found = fed.fit(1, progress=False).records[-1]["validation"]
    assert found["clients"]["accuracy"][1] is None
    assert found["n"] == 14
    with pytest.raises(ValueError, match=r"no client has more than 3 samples\. Take a share of at least 0\.33"):
        federation(data=data[1:2], validation=0.2)


@in_one(
    ("given", "error"),
    [
        ({"validation": samples(5, 1)}, "server_validation=\\(x, y\\)"),
        ({"validation": 1.0}, r"validation must be in \[0, 1\); found 1.0"),
        ({"select": "best"}, "select must be one of last, best-validation; found 'best'"),
        ({"select": "best-validation"}, r"needs what clients hold out of their own samples: give validation=0\.2"),
    ],
)
def test_what_does_not_fit_is_said(given: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        federation(**given)


# the records
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_the_record_is_of_the_model_that_each_client_predicts_with(method: str) -> None:
    fed = federation(method, validation=0.3, tests=SETS, groups=GROUPS)
    found = fed.fit(2, progress=False).records[-1]["validation"]
    assert fed.held is not None
    right: dict[str, int] = {}
    size: dict[str, int] = {}
    for m, (data, group) in enumerate(zip(fed.held.sets, GROUPS, strict=True)):
        if data is None:
            assert found["clients"]["accuracy"][m] is None
            continue
        assert isinstance(data, Samples)
        own = fed.predict(data.content.x, client=m if method == "ditto" else None) == data.content.y
        assert found["clients"]["accuracy"][m] == float(own.double().mean())
        right[group], size[group] = right.get(group, 0) + int(own.sum()), size.get(group, 0) + data.size
    assert {g: of["accuracy"] for g, of in found["groups"].items()} == {g: right[g] / size[g] for g in right}
    assert found["accuracy"] == sum(right.values()) / sum(size.values())
    assert found["n"] == sum(size.values())


def test_personal_models_are_validated_when_they_are_tested() -> None:
    history = federation("ditto", validation=0.3, tests=SETS, groups=GROUPS).fit(12, progress=False)
    assert ["validation" in r for r in history.records] == ["clients" in r for r in history.records]
    assert sum("validation" in r for r in history.records) < 12
    assert list(history.validation().columns) == ["round", "accuracy", "loss", "worst"]
    every = federation("ditto", validation=0.3).fit(4, stop=eq.EarlyStopping(100), progress=False)
    assert all("validation" in r for r in every.records)


def test_a_client_whose_data_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def load() -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("gone")
        return samples(20, 3)

    data = [samples(30, 1), samples(30, 2), eq.Lazy(load, 20)]
    fed = federation(data=data, validation=0.2, participation=1.0)
    fed.fit(2, progress=False)
    assert fed.records[-1]["validation"]["clients"]["accuracy"][2] is None
    assert "client-2 is not validated: its data cannot be read: OSError: gone" in caplog.text


def test_sites_hold_out_the_same_samples(tmp_path: Path) -> None:
    for method in ("fedavg", "ditto"):
        ours = federation(method, validation=0.3, tests=SETS, groups=GROUPS).fit(2, progress=False).records
        theirs = consortium(method, validation=0.3, tests=SETS, groups=GROUPS).fit(2, progress=False).records
        for one, other in zip(ours, theirs, strict=True):
            assert one["validation"]["clients"]["accuracy"] == other["validation"]["clients"]["accuracy"]
            assert one["validation"]["loss"] == pytest.approx(other["validation"]["loss"])
    with pytest.raises(RunError, match="no site holds any out"):
        consortium(validation=0.01).fit(1, progress=False)
    with pytest.raises(ValueError, match="sites keep no state of an earlier round"):
        configure("fedavg", engine="flower-inproc", validation=0.2, select="best-validation")


def sent_score(right: Any = 1, loss: Any = 0.5, n: Any = 2, **other: Any) -> list[Any]:
    return [n, loss, right, other.get("true", n), other.get("chosen", n)]


@in_one("sent", [
    sent_score(1.5), sent_score(loss="x"), {"right": [1], "loss": 0.5}, sent_score(-1), sent_score(n=2**60), sent_score(n=2**70), sent_score(n=4),
    sent_score(n=3), sent_score(loss=-0.5), sent_score(math.nan), [1, 0.5, 2], "x", sent_score(true=[1, 1]), sent_score(chosen=3),
    sent_score(2, chosen=1), sent_score(true=1), sent_score(n=0), sent_score(n=math.nan), sent_score(n=-2), [*sent_score(), 0.0],
])  # fmt: skip
def test_scores_of_what_a_site_holds_out_are_checked(sent: Any) -> None:
    assert held_out({"found": sent}, 8, 0.2, CLASSIFICATION) == "sent scores that cannot be used"
    tally = held_out({"found": sent_score()}, 8, 0.2, CLASSIFICATION)
    assert isinstance(tally, Tally)
    assert tally.vector().tolist() == sent_score()
    assert held_out({"found": None}, 8, 0.2, CLASSIFICATION) is None


@drawn(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_what_a_site_can_hold_out_is_what_it_holds_out(n: int, share: float) -> None:
    held = n_held(n, share)
    if held:
        tally = held_out({"found": sent_score(held, 0.5, held)}, n - held, share, CLASSIFICATION)
        assert isinstance(tally, Tally)
        assert tally.score() == {"accuracy": 1.0, "loss": pytest.approx(0.5 / held), "n": held}


# when to stop, and which round is the best
def test_the_best_round_has_the_best_accuracy_then_loss_then_comes_first() -> None:
    assert selected([]) is None
    assert selected(rounds_of(0.5, 0.7, 0.7, 0.6)) == 1
    assert selected(rounds_of(0.5, 0.7, 0.7, 0.7, losses=(1, 0.9, 0.8, 0.8))) == 2
    assert selected(rounds_of(0.5, 0.7, 0.7, losses=(1, math.nan, 2.0))) == 2


def test_early_stopping_is_a_function_of_the_records() -> None:
    stop = eq.EarlyStopping(2)
    assert [bool(stop(rounds_of(0.5, 0.7, 0.6, 0.7, 0.8)[:k])) for k in range(6)] == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]
    assert stop(rounds_of(0.5, 0.4, 0.4)) == "the validation accuracy has not improved for 2 rounds"
    assert not eq.EarlyStopping(2)(rounds_of(0.5, 0.51, 0.52))
    assert "by more than 0.1 " in eq.EarlyStopping(2, min_delta=0.1)(rounds_of(0.5, 0.51, 0.52))
    assert eq.EarlyStopping(2, "loss")(rounds_of(0.1, 0.2, 0.3, losses=(1, 2, math.inf)))
    assert not eq.EarlyStopping(2, "loss")(rounds_of(0.3, 0.2, 0.1, losses=(3, 2, 1)))
    worst = rounds_of(0.5, 0.6, 0.7)
    for record, accuracy in zip(worst, (0.3, 0.2, 0.1), strict=True):
        record["validation"]["groups"]["b"] = {"accuracy": accuracy}
    assert value(worst[0], "worst") == 0.3
    assert eq.EarlyStopping(2, "worst")(worst)
    assert not stop(worst)


@in_one(
    ("given", "error"),
    [
        ({"on": "test"}, "on must be 'validation'.*found 'test': a model that is chosen by test data looks better"),
        ({"patience": 0}, "patience must be"),
        ({"measure": "auc"}, "measure must be one of accuracy, loss, worst"),
        ({"min_delta": -1}, "min_delta must be"),
    ],
)
def test_early_stopping_says_what_it_takes(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        eq.EarlyStopping(**given)


@pytest.mark.parametrize("stop", [5, eq.EarlyStopping])
def test_stop_is_a_function(stop: Any) -> None:
    fed = federation(validation=0.3)
    with pytest.raises(TypeError, match=r"stop must be a function of all records, such as EarlyStopping\(10\); found"):
        fed.fit(3, stop=stop, progress=False)
    assert fed.progress.t == 0


def test_stopping_needs_validation_before_the_first_round() -> None:
    fed = federation()
    with pytest.raises(ValueError, match=r"EarlyStopping needs what clients hold out.*give validation=0\.2"):
        fed.fit(3, stop=eq.EarlyStopping(2), progress=False)
    assert fed.progress.t == 0


def test_on_round_that_returns_true_pauses(tmp_path: Path) -> None:
    fed = federation()
    assert (
        len(fed.fit(9, directory=tmp_path, progress=False, on_round=lambda r: r["round"] == 3, checkpoint_every=9)) == 4
    )
    other = federation()
    assert other.resume(tmp_path) == 5
    other.fit(5, directory=tmp_path, progress=False, on_round=lambda r: "any other value")  # type: ignore[arg-type,return-value]
    assert bits(other.state_dict()) == bits(rounds_until(federation(), 9))


def test_a_stopped_run_stays_stopped_and_may_go_on(caplog: pytest.LogCaptureFixture) -> None:
    fed = federation(validation=0.3, participation=1.0)
    stop = eq.EarlyStopping(2)
    history = fed.fit(60, stop=stop, progress=False)
    n = len(history)
    assert 2 < n < 60
    assert [bool(r.get("stopped")) for r in history.records] == [False] * (n - 1) + [True]
    assert history.stopped == history.summary()["stopped"] == "the validation accuracy has not improved for 2 rounds"
    assert history.summary()["stopped_round"] == n - 1
    assert not caplog.messages
    assert len(fed.fit(5, stop=stop, progress=False)) == n
    assert caplog.messages == [f"No round is trained: {history.stopped}."]
    assert len(fed.fit(2, progress=False)) == n + 2
    assert fed.history.stopped == ""


def test_the_model_of_the_best_round_is_used(tmp_path: Path) -> None:
    def made(**more: Any) -> eq.Federation:
        return federation("ditto", validation=0.3, select="best-validation", tests=SETS, groups=GROUPS, **more)

    fed = made(solver=eq.SGD(1.0))
    fed.fit(8, directory=tmp_path, progress=False)
    best = fed.history.selected_round
    assert best == selected(fed.records) != 7
    assert fed.chosen.t == best + 1
    known = federation("ditto", validation=0.3, solver=eq.SGD(1.0))
    assert bits(fed.state_dict()) == bits(rounds_until(known, best + 1))
    assert bits(fed.state_dict(client=1)) == bits(known.state_dict(client=1))
    known.fit(7 - best, progress=False)
    assert bits(fed.state_dict()) != bits(known.state_dict())
    again = made(solver=eq.SGD(1.0))
    again.resume(tmp_path)
    assert bits(again.state_dict(client=1)) == bits(fed.state_dict(client=1))
    assert [p.name for p in (tmp_path / "best").iterdir()] == [f"{best + 1:06d}"]
    assert fed.evaluate()["a"]["accuracy"] == fed.records[best]["groups"]["a"]["accuracy"]
    for other, what in (({"validation": 0.4}, "validation is 0.3 there and 0.4 here"), ({"validation": 0.0}, "validation is 0.3 there and 0.0 here")):  # fmt: skip
        with pytest.raises(eq.CheckpointError, match=what):
            federation("ditto", solver=eq.SGD(1.0), tests=SETS, groups=GROUPS, **other).resume(tmp_path)


def test_a_run_begun_without_the_best_model_is_refused(tmp_path: Path) -> None:
    federation(validation=0.3).fit(2, directory=tmp_path, progress=False)
    with pytest.raises(eq.CheckpointError, match="begun with select='last', and kept no best model"):
        federation(validation=0.3, select="best-validation").resume(tmp_path)


def test_no_test_data_are_read_to_validate_stop_and_select(monkeypatch: pytest.MonkeyPatch) -> None:
    test = Forbidden()
    fed = federation(validation=0.3, select="best-validation", tests={"all": test})
    test.closed = True
    with pytest.raises(AssertionError, match="the test data were read"):
        fed.fit(1, progress=False)  # the results of the round on test data are all that reads them
    monkeypatch.setattr(EvaluationSets, "record", lambda *_: {})
    history = fed.fit(60, stop=eq.EarlyStopping(2), progress=False)
    assert history.stopped
    assert fed.chosen.t - 1 == history.selected_round
    assert fed.predict(samples(4, 1)[0]).shape == (4,)
    monkeypatch.undo()
    with_tests = federation(validation=0.3, select="best-validation", tests=SETS).fit(60, stop=eq.EarlyStopping(2), progress=False)  # fmt: skip
    assert [r["validation"] for r in with_tests.records] == [r["validation"] for r in history.records]


# runs
def settings(**changes: Any) -> Any:
    return config("ditto+afl", **{"rounds": 6, "validation": 0.3, "patience": 4, "select": "best-validation", **changes})  # fmt: skip


@pytest.mark.parametrize("step", [140, pytest.param(7, marks=pytest.mark.slow)])
def test_death_at_any_moment_keeps_the_best_model(zygote: Zygote, tmp_path: Path, step: int) -> None:
    whole = executed(tmp_path / "whole", settings())
    best = [p.name for p in (whole / "best").iterdir()]
    n = 0
    for at in range(35, 1000, step):
        directory = started(tmp_path / str(at), settings())
        if zygote.die(directory, at) == 0:
            break
        if checkpoint.exists(directory / "checkpoint") and checkpoint.about(directory / "checkpoint")["t"]:
            fed = runs.trained(directory)
            assert fed.chosen.t - 1 == selected(fed.records)
        assert zygote.die(directory) == 0
        assert_same_run(whole, directory)
        assert [p.name for p in (directory / "best").iterdir()] == best
        files = [(d / "best" / best[0] / f"state-{best[0]}.safetensors").read_bytes() for d in (whole, directory)]
        assert files[0] == files[1]
        n += 1
    assert n > 0


def test_the_command_line_validates_stops_and_exports_the_best(equipoise: Call, tmp_path: Path) -> None:
    options = [*TINY, "--method", "fedavg", "--runs", tmp_path, "--name", "x", "--rounds", "60", "--no-report"]
    for more, error in (
        (["--patience", 3], "--patience 3 needs what clients hold out of their own samples. Add --validation 0.2"),
        (["--select", "best-validation"], "--select best-validation needs"),
        (["--validation", 0.2, "--stop-on", "worst"], "--stop-on worst is the measure of --patience"),
        (["--validation", 0.2, "--select", "best"], "select must be one of last, best-validation"),
        (["--validation", 1.5], "validation must be in [0, 1)"),
    ):
        done = equipoise("run", *options, *more)
        assert done.status != 0
        assert error in " ".join(done.err.split())
    more = ["--validation", 0.3, "--patience", 3, "--stop-on", "loss", "--select", "best-validation", "--lr", 0.5]
    done = equipoise("run", *options, *more, "--details", "--explain")
    assert done.status == 0
    text = " ".join(done.out.split())
    run = tmp_path / "x"
    found = json.loads((run / "summary.json").read_text())
    n = len(records(run))
    assert n < 60
    assert found["stopped_round"] == n - 1
    assert found["selected_round"] == selected(records(run))
    assert f"stopped after {n} of 60 rounds: the validation loss has not improved for 3 rounds." in text
    assert f"exports the model of round {found['selected_round']}, which has the best validation" in text
    assert "which is exported: accuracy in percent and loss in nats" in text  # the table
    again = equipoise("resume", run, "--no-report")
    assert "is finished; its results" in " ".join(again.out.split())
    assert len(records(run)) == n
    assert equipoise("export", run).status == 0
    fed = runs.trained(run)
    assert fed.chosen.t - 1 == found["selected_round"]
    exported = Path(run / "models" / "global.safetensors").read_bytes()
    assert b"".join(x.numpy().tobytes() for x in fed.network().state_dict().values())[:64] in exported


def test_a_file_may_say_it(equipoise: Call, tmp_path: Path) -> None:
    executed(tmp_path / "x", settings(rounds=2))
    written = (tmp_path / "x" / "config.toml").read_text()
    assert "validation = 0.3" in written
    assert 'select = "best-validation"' in written
    table = AppSettings.of({"validation": 0.2, "patience": 4, "stop-on": "worst"})
    assert (table.validation, table.patience, table.stop_on) == (0.2, 4, "worst")
    assert eq.EarlyStopping.of(table) == eq.EarlyStopping(4, "worst")


def test_reports_say_which_model_their_numbers_are_of(tmp_path: Path) -> None:
    fed = federation(validation=0.3, select="best-validation", tests=SETS, groups=GROUPS, solver=eq.SGD(0.5))
    history = fed.fit(8, progress=False)
    best = history.selected_round
    assert best is not None
    assert best < 7
    found = Comparison.of([history])
    other = other_rounds(found)
    assert other is not None
    assert "The model of the round with the best validation accuracy, which is exported" in other.explanations[0]
    exact = {g: 100 * of["accuracy"] for g, of in history.records[best]["groups"].items()}
    assert {g: of["mean"] for g, of in found["other_rounds"]["methods"][0]["groups"].items()} == pytest.approx(exact)
    (table,) = (sheet for sheet in sheets(found) if sheet.name == "validation")
    assert [cell.mean for cell in table.grid.rows[0][1]][:2] == [str(best), f"{100 * history.records[best]['validation']['accuracy']:.2f}"]  # fmt: skip
    one = Comparison.of([history], 1)
    assert {g: of["mean"] for g, of in one["methods"][0]["groups"].items()} == pytest.approx(exact)
    assert "after the round with the best validation accuracy" in sheets(one)[0].caption
    page = write([history], tmp_path / "report.html").read_text()
    assert f"exports the model of round {best}" in page
    plain = Comparison.of([federation(tests=SETS, groups=GROUPS).fit(2, progress=False)])
    assert plain["validation"] is None
    assert "The model of the last round, which is exported" in (other_rounds(plain) or table).explanations[0]
    last = Comparison.of(plain.histories, 1)  # two rounds were run
    assert "Mean over the last 2 evaluated rounds" in (other_rounds(last) or table).explanations[0]


def test_a_run_that_diverges_after_its_best_round_exports_a_good_model() -> None:
    def made(lr: Any, scenario: str) -> eq.History:
        x = [torch.randn(60, 6, generator=torch.Generator().manual_seed(k)) for k in range(3)]
        data = [(each, (each[:, 0] > 0).long()) for each in x]
        fed = eq.Federation(
            nn.Linear(6, 2), data, solver=eq.SGD(lr), tests={"a": data[0]}, validation=0.2, select="best-validation"
        )
        history = fed.fit(8, progress=False)
        return eq.History(history.records, {**history.meta, "scenario": scenario})

    for scenario, main in (("", True), ("own", False)):
        found = Comparison.of([made(lambda t: 0.5 if t < 6 else 1e6, scenario)])
        of_exported, others = found["validation"]["methods"][0], found["other_rounds"]["methods"][0]
        assert bool(found["methods"][0]["failed"]) is main
        assert (of_exported["failed"], others["failed"]) == (False, not main)
        assert ("†: diverged" in other_rounds(found).explanations[0]) is not main
