"""What is said of runs that nobody looks at: lines of a log where there is no terminal, and the command ``status``."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.federation import standing as standings
from equipoise.federation.history import History
from equipoise.federation.standing import ProgressLog, Standing, shown_rate
from equipoise.records.record import large
from equipoise.runs import directory as runs
from equipoise.runs.status import RunStatus, Watch, all_end, below, run_status
from equipoise.system.claims import CLAIM, claimed, owner
from equipoise.system.errors import RunError
from run_helpers import LINE, cache, config, equipoise, executed, started


def data(seed: int = 0) -> Any:
    draw = torch.Generator().manual_seed(seed)
    x = [torch.randn(20, 3, generator=draw) + k for k in range(3)]
    return {f"site {k}": (each, (each[:, 0] > k).long()) for k, each in enumerate(x)}


def federation(**more: Any) -> eq.Federation:
    sets = data()
    return eq.Federation(torch.nn.Linear(3, 2), sets.values(), tests=sets, names=[*sets], groups=[*sets], **more)


# lines
def lines(text: str) -> list[re.Match[str]]:
    found = [LINE.match(line) for line in text.splitlines()]
    assert all(found), text
    return [one for one in found if one]


def test_a_line_after_the_first_round_and_then_one_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 25))  # each look at it is 25 seconds later
    monkeypatch.setattr(standings.time, "monotonic", lambda: next(clock))
    fed = federation(solver=eq.SGD("step(0.1, every=4, gamma=0.5)"))
    fed.fit(8)
    said = lines(capsys.readouterr().err)
    assert [int(one["t"]) for one in said] == [1, 4, 7, 8]
    assert {one["name"] for one in said} == {"fedavg, seed 0"}
    assert [one["lr"] for one in said] == ["0.1", "0.05", "0.05", "0.05"]
    last = {name: score["accuracy"] for name, score in fed.records[-1]["groups"].items()}
    assert last[said[-1]["whose"]] == min(last.values())
    assert float(said[-1]["worst"]) == pytest.approx(100 * min(last.values()), abs=0.05)
    fed.fit(1, progress=False)
    assert capsys.readouterr().err == ""


def test_a_run_of_one_round_has_no_line_and_a_comparison_names_each(capsys: pytest.CaptureFixture[str]) -> None:
    federation().fit(1)
    assert capsys.readouterr().err == ""
    sets = data()
    eq.compare(torch.nn.Linear(3, 2), sets.values(), ["fedavg", "fedprox"], 2, rounds=2, tests=sets)
    said = lines(capsys.readouterr().err)
    assert [one["name"] for one in said] == [
        f"run {1 + i + 2 * k} of 4, {name}, seed {k}" for k in (0, 1) for i, name in enumerate(("fedavg", "fedprox"))
    ]
    assert [bool(one["all"]) for one in said] == [True, True, True, False]  # the last one's own end is the end


def test_what_clients_reach_alone_is_logged_too(capsys: pytest.CaptureFixture[str]) -> None:
    federation(collaborative=True).fit(2)
    assert "every client alone, before the first round: round 1 of 2" in capsys.readouterr().err


def test_several_runs_of_the_command_line_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        started(tmp_path / name, config(label, label=label)) for name, label in (("a", "fedavg"), ("b", "fedprox"))
    ]
    watch = Watch(paths, True)
    watch.look()
    assert capsys.readouterr().err == ""  # nothing has been done
    runs.execute(paths[0], progress=False, on_round=lambda record: record["round"] == 1)
    watch.look()
    watch.look()
    (said,) = lines(capsys.readouterr().err)
    assert (said["name"], said["t"], said["rounds"], said["lr"]) == ("run 1 of 2, fedavg, seed 0", "2", "4", "0.05")
    assert said["all"]
    Watch(paths, True).look()
    assert capsys.readouterr().err == ""  # what an earlier command has done does not say when this one ends
    for path in paths:
        runs.execute(path, progress=False)
    watch.look()
    watch.look()
    ended = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2].split(", acc")[0] for line in ended] == [
        "run 1 of 2, fedavg, seed 0: complete, round 4 of 4",
        "run 2 of 2, fedprox, seed 0: complete, round 4 of 4",
    ]
    Watch(paths, True).look()
    assert capsys.readouterr().err == ""  # those that were complete before


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1) | st.none() | st.just(float("nan"))), max_size=6),
    st.integers(6, 50),
)
def test_standing_is_that_of_the_last_evaluation(groups: list[dict[str, float | None]], rounds: int) -> None:
    records = [
        {"round": t, "seconds": 2.0, **({"groups": {g: {"accuracy": a} for g, a in of.items()}} if of else {})}
        for t, of in enumerate(groups)
    ]
    now = Standing.of(records, rounds)
    assert (now.round, now.rounds) == (len(records), rounds)
    finite = [{g: a for g, a in of.items() if a is not None and a == a} for of in groups]
    known = next((of for of in reversed(finite) if of), {})
    assert now.mean == (pytest.approx(sum(known.values()) / len(known)) if known else None)
    assert (now.worst is None) == (len(known) < 2)
    if now.worst is not None:
        assert now.worst == min(known.values()) == known[now.whose]
    ends = now.ends(1e9)
    assert ends == (datetime.fromtimestamp(1e9 + 2 * (rounds - len(records))) if records else None)


def test_few_people_are_not_shown_and_every_rate_is_text() -> None:
    record: dict[str, Any] = {
        "round": 0,
        "groups": {"all": {"accuracy": 0.5}},
        "clients": {"accuracy": [0.9, 0.1, None]},
    }
    assert str(Standing.of([record], 3)) == "round 1 of 3, accuracy 50.0 (all)"  # no picture of a single client
    record["clients"]["accuracy"] = [k / 40 for k in range(40)]
    assert str(Standing.of([record], 3)) == "round 1 of 3, accuracy 50.0 (all), worst 3.8 (worst tenth of the clients)"
    record["groups"] = {
        name: {"accuracy": a, "n": n} for name, a, n in (("a\x1b[2J", 0.5, 40), ("b", 0.7, 10), ("c", 0.1, 9))
    }
    assert (
        str(Standing.of([large(record, 10)], 3))
        == r"round 1 of 3, accuracy 60.0 (mean of 2 groups), worst 50.0 (a\x1b[2J)"
    )
    assert str(Standing.of([{"round": 4}], 9)) == "round 5 of 9"
    assert shown_rate("cosine(0.1)", 5, 10) == "0.05"
    assert shown_rate("layers(0.01, head=0.1)", 0, 10) == "layers(0.01, head=0.1)"


@given(st.lists(st.sampled_from(["groups", "both", "neither"]), min_size=1, max_size=8), st.integers(10, 60))
def test_a_run_has_one_measure_and_the_clients_of_the_report(kinds: list[str], n: int) -> None:
    """Rounds that do not test the clients change neither what the accuracy is of, nor whose the worst is."""
    accuracies, sizes = [(k * 7 % n) / n for k in range(n)], [9 + k % 3 for k in range(n)]
    clients = {"clients": {"accuracy": accuracies, "n": sizes}}
    records = [
        {
            "round": t,
            **({} if kind == "neither" else {"groups": {"all": {"accuracy": t / 10, "loss": 1.0}}}),
            **(clients if kind == "both" else {}),
        }
        for t, kind in enumerate(kinds)
    ]
    now = Standing.of([large(record, 10, [*map(str, range(n))]) for record in records], 10)
    tested = [t for t, kind in enumerate(kinds) if kind != "neither"]
    assert (now.mean, now.over) == ((tested[-1] / 10, "all") if tested else (None, ""))
    counted = sorted(accuracies)  # clients of a simulation are no people
    if "both" in kinds and len(counted) >= 10:
        assert now.worst == pytest.approx(sum(counted[: len(counted) // 10]) / (len(counted) // 10))
        summary = History(
            records,
            {
                "method": "fedavg",
                "client_tests": True,
                "least_group": 10,
                "client_names": [*map(str, range(n))],
            },
        ).summary(1)
        assert 100 * now.worst == pytest.approx(summary["clients"]["worst10"])
        asked = max(t for t, kind in enumerate(kinds) if kind == "both")
        assert now.worst_of == "worst tenth of the clients" + (f", round {asked + 1}" if asked != tested[-1] else "")
    else:
        assert now.worst is None
    alone = Standing.of([large({"round": 0, **clients}, 10, [*map(str, range(n))])], 10)
    assert alone.over == ("" if len(counted) < 2 else f"mean of {len(counted)} clients")


@pytest.mark.parametrize(("jobs", "hours"), [(1, 7), (2, 4), (5, 4)])
def test_when_all_runs_end(jobs: int, hours: float) -> None:
    def run(state: str, t: int, seconds: float | None) -> RunStatus:
        return RunStatus(Path("r"), "fedavg", 0, state, Standing(t, 4, seconds=seconds))

    found = [run("complete", 4, 3600), run("running", 1, 3600), run("not begun", 0, None), run("failed", 2, 3600)]
    end = all_end(found, jobs)
    assert end is not None
    assert (end - datetime.now()).total_seconds() == pytest.approx(3600 * hours, abs=60)
    assert all_end([run("not begun", 0, None)], jobs) is None


def test_a_name_is_found_in_what_status_prints_to_a_file(tmp_path: Path, equipoise: Any) -> None:
    name = "fedprox-with-a-long-name+" + "x" * 90
    run = executed(tmp_path / "runs" / name)
    record = {
        "round": 4,
        "groups": {"all": {"accuracy": 0.5}},
        "clients": {"accuracy": [k / 40 for k in range(40)]},
    }
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    shown = equipoise("status", tmp_path / "runs").out.splitlines()
    assert sum(name in line for line in shown) == 1
    assert "worst tenth of the clients" in shown[0]
    assert sum("worst tenth" in line for line in shown) == 1
    assert "accuracy: in percent, all" in shown


# status
def test_status_of_runs_in_every_state(tmp_path: Path, equipoise: Any) -> None:
    base = tmp_path / "runs"
    executed(base / "night" / "fedavg-seed0", config("fedavg"))
    runs.execute(
        started(base / "night" / "fedprox-seed0", config("fedprox")), progress=False, on_round=lambda r: r["round"] == 1
    )
    started(base / "new", config())
    federation().fit(3, directory=base / "python", progress=False)
    (base / "python" / "other.txt").write_text("x")
    failing = started(base / "fails", config("fedavg"))
    with pytest.raises(ZeroDivisionError):
        runs.execute(failing, progress=False, on_round=lambda record: 1 / (1 - record["round"]))
    (base / "odd").mkdir()
    (base / "odd" / "config.toml").write_text("rounds = ")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in base.rglob("*") if path.is_file()}
    done = equipoise("status", base, "--json")
    assert done.status == 0
    found = {Path(run["directory"]).relative_to(base).as_posix(): run for run in json.loads(done.out)}
    told = {name: (run["state"], run["round"], run["rounds"]) for name, run in found.items()}
    assert told == {
        "fails": ("failed", 2, 4),
        "new": ("not begun", 0, 4),
        "night/fedavg-seed0": ("complete", 4, 4),
        "night/fedprox-seed0": ("stopped", 2, 4),
        "odd": ("damaged", 0, 0),
        "python": ("complete", 3, 3),
    }
    assert found["fails"]["why"] == "division by zero"
    history = eq.History.from_run(base / "night" / "fedavg-seed0")
    last = {name: score["accuracy"] for name, score in history.records[-1]["groups"].items()}
    run = found["night/fedavg-seed0"]
    assert run["worst"] == min(last.values()) == last[run["worst_of"]]
    assert run["accuracy"] == pytest.approx(sum(last.values()) / len(last))
    shown = equipoise("status", base)
    assert "2 complete, 1 stopped, 1 failed, 1 not begun, 1 damaged" in shown.out
    assert "fails failed: division by zero" in shown.out
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in base.rglob("*") if path.is_file()}
    runs.execute(failing, progress=False)
    assert run_status(failing).state == "complete"
    assert not (failing / "failed.json").exists()


def test_a_run_that_goes_on_is_running_and_is_not_disturbed(tmp_path: Path) -> None:
    seen = []

    def look(_: Any) -> None:
        run = run_status(tmp_path / "run")
        other = "import sys, equipoise.runs.status as s, pathlib; r = s.run_status(pathlib.Path(sys.argv[1])); print(r.state, r.process)"
        seen.append((run.state, run.process, run.standing.round))
        if len(seen) == 2:
            done = subprocess.run([sys.executable, "-c", other, tmp_path / "run"], capture_output=True, text=True)
            assert done.stdout.split() == ["running", str(os.getpid())]
            assert run.ends is not None

    runs.execute(started(tmp_path / "run"), progress=False, on_round=look)
    assert seen == [("running", str(os.getpid()), t) for t in (1, 2, 3, 4)]
    states = []
    federation().fit(2, directory=tmp_path / "python", progress=False, on_round=lambda _: states.append(run_status(tmp_path / "python").state))  # fmt: skip
    assert states == ["running", "complete"]


def test_who_holds_a_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / CLAIM
    assert owner(path) is None
    with claimed(tmp_path):
        assert str(owner(path)) == str(os.getpid())
        with pytest.raises(RunError, match=f"Process {os.getpid()} is at"):
            federation().fit(1, directory=tmp_path, progress=False)
    assert owner(path) is None


def test_a_folder_without_runs(tmp_path: Path, equipoise: Any) -> None:
    assert "There is no run in" in equipoise("status", tmp_path).err
    assert "is no folder" in equipoise("status", tmp_path / "none").err


def test_a_torn_last_line_and_long_records(tmp_path: Path) -> None:
    run = executed(tmp_path / "run")
    (run / "summary.json").unlink()
    path = run / "metrics.jsonl"
    long = json.dumps({"round": 4, "seconds": 1.0, "groups": {"a": {"accuracy": 0.25}}, "x": "y" * 200_000})
    path.write_text(f"{path.read_text()}{long}\n{long[:100]}")
    (found,) = below(tmp_path)
    assert (found.standing.round, found.standing.mean) == (5, 0.25)
