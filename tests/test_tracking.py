"""Runs sent to experiment trackers, and read back from them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.runs import comparison, tracking
from equipoise.runs import directory as runs
from equipoise.runs.trackers import TRACKERS, Tracked, numbers
from equipoise.runs.tracking import Follower, Tracking, TrackingError, of_round, track
from equipoise.system import workers
from run_helpers import TINY, InProcess, cache, config, equipoise, started  # noqa: F401 (fixtures)

NOWHERE = "mlflow:http://127.0.0.1:9"  # a port that nobody listens at


class Fake:
    """A tracker that keeps what it gets, by the first hash of a run."""

    known: dict[str, dict[str, Any]]

    def __init__(self, run: Tracked, place: str) -> None:
        self.kept = self.known.setdefault(run.first, {"rounds": [], "group": run.group, "name": run.path.name})
        self.begin = len(self.kept["rounds"])

    def log(self, t: int, values: dict[str, float]) -> None:
        self.kept["rounds"].append((t, values))

    def close(self, run: Tracked, *, complete: bool) -> None:
        self.kept |= {"complete": complete, "files": [path.name for path in run.files]}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    Fake.known = {}
    monkeypatch.setitem(TRACKERS, "json", Fake)  # `json` is a module, as the package of every tracker is
    return Fake.known


def test_numbers_are_found_by_their_path() -> None:
    table = {"a": {"b": 1, "c": True, "d": "x", "e": math.nan, "f": {"g": 2.5}}, "h": None, "i": [1, 2]}
    assert numbers(table) == {"a/b": 1.0, "a/f/g": 2.5}


def test_a_round_has_every_number_of_its_record() -> None:
    groups = {"p": {"accuracy": 0.5, "loss": 1.0}, "q": {"accuracy": 0.9, "loss": 0.2}}
    record = {"round": 3, "groups": groups, "clients": {"accuracy": [0.4, None]}, "seconds": 2.0, "bytes": {"full": 8}}
    found = of_round(record, ["a", "b"])
    assert found["groups/loss/q"] == 0.2
    assert found["clients/accuracy/a"] == 0.4
    assert "clients/accuracy/b" not in found
    assert found["accuracy/avg"] == pytest.approx(0.7)
    assert found["accuracy/worst"] == 0.5
    assert found["accuracy/std"] == pytest.approx(0.4 / math.sqrt(2))
    assert not {"round", "bytes/full"} & set(found)


def test_each_round_arrives_once_however_often_it_is_sent(tmp_path: Path, fake: dict[str, Any]) -> None:
    run = started(tmp_path / "runs" / "one")
    follower = Follower(run, "json")
    runs.execute(run, progress=False, on_round=lambda _: follower.look())
    (kept,) = fake.values()
    assert [t for t, _ in kept["rounds"]] == [0, 1, 2, 3]
    assert not kept.get("complete")  # its summary was not written yet when the last round ended
    follower.look()
    assert kept["complete"]
    assert track(run, "json") == 4
    assert [t for t, _ in kept["rounds"]] == [0, 1, 2, 3]
    assert kept["complete"]
    assert kept["group"] == ""
    records = eq.History.from_run(run).records
    assert kept["rounds"][2][1] == of_round(records[2], eq.History.from_run(run).client_names)


def test_a_comparison_is_one_group(tmp_path: Path, fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [config("fedavg", rounds=2, seed=seed, track="json") for seed in (0, 1)]
    with Tracking(tmp_path / "sweep", "json"):
        monkeypatch.setattr(workers, "Worker", InProcess)
        comparison.compare(configs, tmp_path / "sweep", jobs=1)
    assert {(kept["group"], kept["name"]) for kept in fake.values()} == {
        ("sweep", "fedavg-seed0"),
        ("sweep", "fedavg-seed1"),
    }
    assert all([t for t, _ in kept["rounds"]] == [0, 1] and kept["complete"] for kept in fake.values())


def test_a_run_is_complete_with_its_report(tmp_path: Path, fake: dict[str, Any], equipoise: Any) -> None:  # noqa: F811
    done = equipoise("run", *TINY, "--rounds", 2, "--track", "json", "--name", "a", "--runs", tmp_path)
    assert done.status == 0, done.err
    (kept,) = fake.values()
    assert kept["complete"]
    assert {"report.html", "summary.json"} <= set(kept["files"])


def test_a_run_from_python_is_followed(tmp_path: Path, fake: dict[str, Any]) -> None:
    import torch

    data = [(torch.randn(12, 3), torch.randint(0, 2, (12,))) for _ in range(2)]
    fed = eq.Federation(torch.nn.Linear(3, 2), data, tests={"all": data[0]})
    with eq.Tracking(tmp_path / "mine", "json"):  # a run that ends early is complete, too
        fed.fit(9, directory=tmp_path / "mine", stop=lambda records: len(records) == 3, progress=False)
    (kept,) = fake.values()
    assert [t for t, _ in kept["rounds"]] == [0, 1, 2]
    assert kept["complete"]


@pytest.mark.slow
def test_a_tracker_that_fails_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tracking.QUICK, "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = started(tmp_path / "run", config(track=NOWHERE))
    with Tracking(run, NOWHERE):
        history = runs.execute(run, progress=False)
    assert len(history.records) == 4
    (said,) = [r.getMessage() for r in caplog.records if "does not take" in r.getMessage()]
    assert f"equipoise track {run} --to {NOWHERE}" in said
    with pytest.raises(TrackingError, match=r"did not take the records of .*run"):
        track(run, NOWHERE)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_another_tracker_is_no_other_run(tmp_path: Path) -> None:
    run = started(tmp_path / "run", config(track="mlflow", rounds=1))
    runs.execute(run, progress=False)
    before = (run / "metrics.jsonl").read_bytes()
    runs.start(config(track="tensorboard", rounds=1), run)
    assert runs.load(run).track == "tensorboard"
    assert runs.finished(run)
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("mlfow", "Unknown tracker 'mlfow'. Did you mean 'mlflow'? All: mlflow, tensorboard, wandb, trackio."),
        ("trackio", "The tracker trackio is not installed. Install it: pip install 'equipoise[trackio]'."),
    ],
)
def test_bad_trackers(tmp_path: Path, to: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="^" + expected.replace("[", r"\[").replace("?", r"\?")):
        track(tmp_path, to)


def test_nothing_to_send(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run that has finished a round"):
        track(tmp_path, "mlflow")


def test_tensorboard_reads_back_what_was_recorded(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = started(tmp_path / "runs" / "one", config(rounds=2))
    runs.execute(run, progress=False)
    for _ in range(2):
        track(run, "tensorboard")
    (folder,) = (tmp_path / "runs" / "tensorboard").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    records = eq.History.from_run(run).records
    for group in records[0]["groups"]:
        found = [(e.step, e.value) for e in events.Scalars(f"groups/accuracy/{group}")]
        assert found == [(t, pytest.approx(records[t]["groups"][group]["accuracy"])) for t in (0, 1)]


def _mlflow(path: Path) -> tuple[Any, list[Any]]:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{path}")
    experiment = client.get_experiment_by_name("equipoise")
    assert experiment is not None
    return client, list(client.search_runs([experiment.experiment_id]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries of the tracker
def test_mlflow_shows_a_sweep_as_nested_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where MLflow keeps the files of runs
    to = f"mlflow:sqlite:///{tmp_path}/mlflow.db"
    configs = [config("fedavg", rounds=2, seed=seed) for seed in (0, 1)]
    comparison.compare(configs, tmp_path / "sweep", jobs=1)
    for _ in range(2):
        track(tmp_path / "sweep", to)
    client, found = _mlflow(tmp_path / "mlflow.db")
    (parent,) = [r for r in found if "mlflow.parentRunId" not in r.data.tags]
    children = [r for r in found if r is not parent]
    assert {r.info.run_name for r in children} == {"fedavg-seed0", "fedavg-seed1"}
    assert {r.data.tags["mlflow.parentRunId"] for r in children} == {parent.info.run_id}
    for child in children:
        records = eq.History.from_run(tmp_path / "sweep" / child.info.run_name).records
        for group in records[0]["groups"]:
            history = client.get_metric_history(child.info.run_id, f"groups/accuracy/{group}")
            assert [(m.step, m.value) for m in history] == [
                (t, records[t]["groups"][group]["accuracy"]) for t in (0, 1)
            ]
        assert child.data.params["method"] == "fedavg"
        assert child.info.status == "FINISHED"
        assert "metrics.jsonl" in {f.path for f in client.list_artifacts(child.info.run_id)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries of the tracker
def test_a_killed_run_goes_on_in_the_same_run_of_mlflow(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/mlflow.db"
    command = [
        sys.executable, "-P", "-m", "equipoise", "run", *TINY, "--rounds", "60", "--runs", str(tmp_path), "--name", "run",
        "--no-report", "--track", f"mlflow:{place}",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path)
    end, lines = time.monotonic() + 120, 0
    while time.monotonic() < end and process.poll() is None and lines < 5:
        time.sleep(0.05)
        path = tmp_path / "run" / "metrics.jsonl"
        lines = len(path.read_text().splitlines()) if path.exists() else 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command, cwd=tmp_path, check=True)
    client, found = _mlflow(tmp_path / "mlflow.db")
    (run,) = found
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round")] == list(range(60))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries of the tracker
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = started(tmp_path / "run", config(rounds=2))
    runs.execute(run, progress=False)
    assert track(run, "wandb") == 2
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["hash"]
    (folder,) = (tmp_path / "wandb").glob(f"offline-run-*-{first}")
    assert list(folder.glob("*.wandb"))
