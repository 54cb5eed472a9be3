"""Runs sent to experiment trackers, and read back from them."""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.runs import directory as runs, plan, tracking
from equipoise.runs.trackers import TRACKERS, Tracked, escaped, numbers, part, rounds_in
from equipoise.runs.tracking import Follower, Tracking, round_numbers, track
from equipoise.system import workers
from equipoise.system.errors import RunError
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
    found = round_numbers(record, ["a", "b"])
    assert found["groups/loss/q"] == 0.2
    assert found["clients/accuracy/a"] == 0.4
    assert "clients/accuracy/b" not in found
    assert found["accuracy/avg"] == pytest.approx(0.7)
    assert found["accuracy/worst"] == 0.5
    assert found["accuracy/std"] == pytest.approx(0.4 / math.sqrt(2))
    assert not {"round", "bytes/full"} & set(found)


NAMES = [
    "<65",
    "≥65",
    "50%",
    "50+",
    "https://north.example.org",
    "./a",
    "Site 1/",
    "a/b",
    "a_b",
    "..",
    "_x003C_65",
    "Ü 1",
]


def decoded(text: str) -> str:
    return re.sub(r"_x([0-9A-F]*)_", lambda match: chr(int(match[1], 16)) if match[1] else "", text)


@given(st.text(alphabet=st.sampled_from("ax_0F3C<≥é /.:-\n😀"), max_size=12) | st.text(max_size=12))
def test_a_name_comes_back_from_its_part_of_a_metric(name: str) -> None:
    assert decoded(escaped(name)) == name
    metric = f"groups/accuracy/{part(name)}"
    assert re.fullmatch(r"[/\w.\- ]+", metric)  # what MLflow takes on every system
    assert posixpath.normpath(metric) == metric
    assert metric.count("/") == 2


def test_usual_names_are_metrics_as_they_are() -> None:
    assert [part(name) for name in ("photo", "Site 1", "st._mary-2", "été", "group_x")] == [
        "photo",
        "Site 1",
        "st._mary-2",
        "été",
        "group_x",
    ]
    assert [part(name) for name in ("<65", "", ".", 3)] == ["_x003C_65", "_x_", "_x002E_", "3"]


def test_long_names_are_short_metrics_of_their_own(tmp_path: Path) -> None:
    long = ["hospital " * 20 + end for end in ("a", "b")] + ["(!)" * 60]
    assert len({part(name) for name in long}) == 3
    assert max(len(part(name)) for name in long) <= 100
    run = named(tmp_path / "run", long)
    names = Tracked(run, "0" * 64, "").settings["long_names"]
    assert names == {part(name): name for name in eq.History.from_run(run).client_names}
    assert "long_names" not in Tracked(named(tmp_path / "other", NAMES), "0" * 64, "").settings


def named(path: Path, names: list[str], rounds: int = 1) -> Path:
    """A run from Python with these clients and groups, which goes on where it is."""
    torch.manual_seed(0)
    data = [(torch.randn(12, 3) + k, torch.randint(0, 2, (12,))) for k in range(len(names))]
    tests = dict(zip(names, data, strict=True))
    fed = eq.Federation(torch.nn.Linear(3, 2), data, tests=tests, names=names, groups=names)
    if path.exists():
        fed.resume(path)
    fed.fit(rounds, directory=path, progress=False)
    return path


def test_every_group_and_client_has_its_metric(tmp_path: Path, fake: dict[str, Any]) -> None:
    run = named(tmp_path / "run", NAMES)
    track(run, "json")
    ((_, values),) = next(iter(fake.values()))["rounds"]
    record = eq.History.from_run(run).records[0]
    for name in NAMES:
        assert values[f"groups/accuracy/{part(name)}"] == record["groups"][name]["accuracy"]
    clients = [values[f"clients/accuracy/{part(name)}"] for name in NAMES]
    assert clients == record["clients"]["accuracy"]
    summary = Tracked(run, "0" * 64, "").summary
    assert [summary[f"summary/groups/{part(name)}"] for name in NAMES] == [
        pytest.approx(100 * record["groups"][name]["accuracy"]) for name in NAMES
    ]


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
    assert kept["rounds"][2][1] == round_numbers(records[2], eq.History.from_run(run).client_names)


def test_a_comparison_is_one_group(tmp_path: Path, fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [config("fedavg", rounds=2, seed=seed, track="json") for seed in (0, 1)]
    with Tracking(tmp_path / "sweep", "json"):
        monkeypatch.setattr(workers, "Worker", InProcess)
        plan.compare(configs, tmp_path / "sweep", jobs=1)
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
    with pytest.raises(RunError, match=r"did not take the records of .*run"):
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


def test_tensorboard_has_every_name_and_one_summary(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, folder = tmp_path / "run", tmp_path / "board"
    for _ in range(2):  # continued
        named(run, NAMES)
        for _ in range(2):
            track(run, f"tensorboard:{folder}")
    (events,) = (EventAccumulator(str(path)).Reload() for path in folder.iterdir())
    for name in NAMES:
        assert [e.step for e in events.Scalars(f"groups/accuracy/{part(name)}")] == [0, 1]
    assert [(e.step, e.value) for e in events.Scalars("summary/rounds")] == [(0, 1.0), (1, 2.0)]


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
    plan.compare(configs, tmp_path / "sweep", jobs=1)
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
def test_mlflow_takes_every_name_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where MLflow keeps the files of runs
    run = named(tmp_path / "run", [*NAMES, "(hospital) " * 18])
    for _ in range(2):
        track(run, f"mlflow:sqlite:///{tmp_path}/mlflow.db")
    client, (entry,) = _mlflow(tmp_path / "mlflow.db")
    record = eq.History.from_run(run).records[0]
    for name in record["groups"]:
        (metric,) = client.get_metric_history(entry.info.run_id, f"groups/accuracy/{part(name)}")
        assert metric.value == record["groups"][name]["accuracy"]
    assert len(client.get_metric_history(entry.info.run_id, "summary/rounds")) == 1


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
    run = named(tmp_path / "run", NAMES, rounds=2)
    for rounds in (2, 2, 3, 5):  # sent again, and continued
        if len(eq.History.from_run(run).records) < rounds:
            named(run, NAMES, rounds)
        assert track(run, "wandb") == len(eq.History.from_run(run).records)
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["hash"]
    written = [rounds_in(path) for path in (tmp_path / "wandb").glob(f"offline-run-*-{first}/*.wandb")]
    assert sorted(t for rounds in written for t in rounds) == [*range(len(eq.History.from_run(run).records))]


def test_rounds_are_read_from_blocks_of_an_offline_file(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    content = b":W&B\x17\xbe\x00"
    for t in range(300):  # in many blocks of 32,768 bytes, in which a head never ends one
        record = Record()
        for name in ("round", f"{'x' * (t % 97)}-round"):
            record.history.item.add(nested_key=[name], value_json=str(t if name == "round" else 7))
        record.history.item.add(nested_key=["groups"], value_json="1" * (137 * t % 40_000))
        left, kind = record.SerializeToString(), 2
        while True:
            room = 32768 - len(content) % 32768
            if room < 7:
                content += b"\0" * room
                continue
            piece, left = left[: room - 7], left[room - 7 :]
            kind = (1 if kind == 2 else 4) if not left else (2 if kind == 2 else 3)
            content += bytes(4) + len(piece).to_bytes(2, "little") + bytes([kind]) + piece
            if not left:
                break
    path = tmp_path / "run.wandb"
    path.write_bytes(content)
    assert [*rounds_in(path)] == [*range(300)]
    path.write_bytes(content[:-3])  # killed in the middle of the last record
    assert [*rounds_in(path)] == [*range(299)]
    path.write_bytes(b"")
    assert [*rounds_in(path)] == []
