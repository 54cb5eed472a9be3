"""Comparisons: the same numbers however many run at once, whatever is killed on the way."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli.options import new_labels
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunError, configure
from equipoise.runs.plan import Outcome, at_once, compare, directories
from equipoise.system import workers
from equipoise.system.claims import CLAIM, claimed
from helpers import in_one
from run_helpers import (
    TINY,
    Zygote,
    assert_same_run,
    cache,
    config,
    equipoise,
    executed,
    records,
    zygote,
)

Call = Callable[..., Any]
METHODS = ("fedheal:office", "fedavg")
SMALL = {"network": "mlp", "network_options": {"hidden": [8]}, "epochs": 1, "batch_size": 8, "rounds": 3}


def arguments(compared: Path, *more: Any) -> list[str]:
    return ["compare", *METHODS, *TINY, "--rounds", "3", "--runs", str(compared), "--name", "both", *map(str, more)]


@pytest.fixture(scope="session")
def compared(cache: Path) -> Path:
    """Two methods, two seeds, two at a time, from a directory whose files have the names of modules; made once."""
    base = cache.parent / "compared"
    try:
        base.mkdir()
    except FileExistsError:  # another worker is making it
        for _ in range(1800):
            if (base / "done").exists():
                return base / "runs"
            time.sleep(0.1)
        pytest.fail("the other worker did not make the comparison")
    for name in ("torch", "equipoise", "json"):
        (base / f"{name}.py").write_text("raise SystemExit('a file of the current directory was imported')")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        sizes = config().scenario_options
        configs = [configure(m, scenario_options=sizes, **SMALL, seed=k) for m in METHODS for k in range(2)]
        done: list[tuple[int, int]] = []
        compare(configs, Path("runs/both"), jobs=2, on_progress=lambda *now: done.append(now))
    assert done[-1] == (12, 12)
    assert sorted(done) == done
    (base / "done").touch()
    return base / "runs"


# the same numbers
@pytest.mark.slow
def test_runs_side_by_side_are_those_alone(compared: Path, tmp_path: Path) -> None:
    found = sorted(path.name for path in (compared / "both").iterdir() if path.is_dir())
    assert found == ["fedavg-seed0", "fedavg-seed1", "fedheal-office-seed0", "fedheal-office-seed1"]
    for name in found[::3]:
        directory = compared / "both" / name
        assert_same_run(executed(tmp_path / name, runs.load(directory)), directory)


@pytest.mark.slow
def test_the_number_of_jobs_changes_nothing(compared: Path, tmp_path: Path) -> None:
    paths = sorted(path for path in (compared / "both").iterdir() if path.is_dir())
    compare([runs.load(path) for path in paths], tmp_path, jobs=1)
    for path in paths:
        assert_same_run(path, tmp_path / path.name)


# what is shown
def test_the_json_document_of_a_comparison(compared: Path, equipoise: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # all runs are finished
    ended = equipoise(*arguments(compared, "--seeds", 2, "--json"))
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert (found["scenario"], found["rounds"], found["seeds"]) == ("digits", 3, [0, 1])
    assert [method["method"] for method in found["methods"]] == list(METHODS)  # as typed, in the order typed
    groups = {"optdigits", "photo", "fonts", "street"}
    for method in found["methods"]:
        assert method["seeds"] == [0, 1]
        assert method["groups"].keys() == groups
        for value in (*(method[key] for key in ("avg", "std", "worst")), *method["groups"].values()):
            assert value.keys() == {"mean", "std", "ci95"}
            assert all(isinstance(number, float) for number in value.values())
            assert 0 <= value["mean"] <= 100
        accuracies = [group["mean"] for group in method["groups"].values()]
        assert method["avg"]["mean"] == pytest.approx(sum(accuracies) / 4)
    first, second = found["methods"]
    assert first["versus"] is None
    assert (second["versus"]["method"], second["versus"]["seeds"]) == (METHODS[0], 2)
    for key in ("avg", "std", "worst"):
        assert second["versus"][key].keys() == {
            "difference",
            "ci95",
            "low",
            "high",
            "p",
            "holm",
            "family",
            "seeds",
            "apart",
        }
        assert second["versus"][key]["difference"] == pytest.approx(second[key]["mean"] - first[key]["mean"])
    assert (compared / "both" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_the_same_command_again_prints_the_result(
    compared: Path, equipoise: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    ended = equipoise(*arguments(compared, "--seeds", 2, "--no-report"))
    assert (ended.status, ended.err) == (0, "")
    table = ended.out.split("STD:")[0]
    rows = [line.split()[0] for line in table.splitlines() if line.strip().startswith(METHODS)]
    assert rows == list(METHODS)
    assert f"run: {compared / 'both'}" in ended.out
    assert "report:" not in ended.out


def test_a_report_of_comparisons_and_runs(compared: Path, equipoise: Call, tmp_path: Path) -> None:
    page = tmp_path / "of a comparison.html"
    ended = equipoise("report", compared / "both", "-o", page, "--json")
    assert (ended.status, ended.err) == (0, "")
    assert {m["method"] for m in json.loads(ended.out)["methods"]} == set(METHODS)
    assert page.read_text().startswith("<!DOCTYPE html>")
    ended = equipoise("report", compared / "both" / "fedavg-seed0", compared / "both" / "fedavg-seed1", "-o", page)
    assert (ended.status, ended.err) == (0, "")
    assert f"report: {page}" in ended.out
    ended = equipoise("report", compared / "both" / "fedavg-seed0", compared / "both", "-o", page)
    assert (ended.status, ended.out) == (2, "")
    assert "fedavg with seed 0 is given twice" in ended.err


def test_a_report_of_a_folder_is_an_index_of_its_comparisons(compared: Path, equipoise: Call, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    assert equipoise("report", compared / "both", "-o", compared / "both" / "report.html").status == 0
    ended = equipoise("report", compared, "-o", page)
    assert (ended.status, ended.err, ended.out) == (0, "", f"index: {page}\n")
    text = page.read_text()
    assert re.search(r'<th scope="row">both<wbr></th>', text)
    assert "of 1 comparison show" in text
    (address,) = re.findall(r'<td class=""><a href="([^"]+)">report</a></td>', text)
    assert (page.parent / address).resolve() == (compared / "both" / "report.html").resolve()
    half = tmp_path / "runs"
    shutil.copytree(compared, half)
    next((half / "both").glob("*/metrics.jsonl")).unlink()
    assert equipoise("report", half, "-o", page).status == 0
    assert "The run has not finished its first round." in page.read_text()
    refused = equipoise("report", compared, "--details", "-o", page)
    assert refused.status == 2
    assert "--details has no effect together with a folder of several comparisons" in refused.err


def test_a_comparison_ends_with_one_table_and_the_details_on_demand(
    compared: Path, equipoise: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    command = arguments(compared, "--seeds", 2, "--no-report")
    short, full = (" ".join(equipoise(*command, *more).out.split()) for more in ((), ("--details",)))
    assert "Differences are to" not in short
    assert "Every table and test: --details; what columns mean: --explain; the report has both." in short
    assert "n: test samples." not in short
    assert "n: test samples." in " ".join(equipoise(*command, "--explain").out.split())
    assert "Differences are to fedheal:office" in full


def test_methods_are_called_what_the_user_says(
    compared: Path, equipoise: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    page = tmp_path / "renamed.html"
    given = ("--label", "fedheal:office=FedHEAL, Office", "--label", "fedavg=FedAvg")
    ended = equipoise("report", compared / "both", *given, "-o", page, "--details")
    assert (ended.status, ended.err) == (0, "")
    assert "Differences are to FedHEAL, Office" in " ".join(ended.out.split())
    assert "fedheal:office" not in ended.out
    assert "FedHEAL, Office" in page.read_text()
    for more, called in ((given, ["FedHEAL, Office", "FedAvg"]), ((), list(METHODS))):  # nothing is kept
        ended = equipoise(*arguments(compared, "--seeds", 2, "--no-report", "--json"), *more)
        assert [m["method"] for m in json.loads(ended.out)["methods"]] == called
    for command in (arguments(compared, "--seeds", 2), ["report", str(compared / "both"), "-o", str(page)]):
        ended = equipoise(*command, "--label", "fedhael:office=x")
        assert (ended.status, ended.out) == (2, "")
        assert ended.err == (
            "error: --label fedhael:office=x: expected METHOD=LABEL with one of the methods fedheal:office, fedavg. "
            "Did you mean 'fedheal:office'?\n"
        )


@in_one(
    ("pairs", "said"),
    [
        (["a="], r"--label a=: expected METHOD=LABEL with one of the methods a\(q=1\), b\.$"),
        (["a"], "--label a: expected METHOD=LABEL"),
        (["a=x", "b=x"], r"--label: a\(q=1\) and b would both be 'x'. Give each its own label."),
        (["a=b"], r"a\(q=1\) and b would both be 'b'"),
        (["a=x", "a(q=1)=y"], r"--label a\(q=1\)=y: a\(q=1\) has the label 'x' already. Leave one out."),
    ],
)
def test_labels_that_cannot_be_given(pairs: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        new_labels(pairs, {"a": "a(q=1)", "a(q=1)": "a(q=1)", "b": "b"})
    assert new_labels(["a(q=1)=x=y", "b=a"], {"a": "a(q=1)", "a(q=1)": "a(q=1)", "b": "b"}) == {
        "a(q=1)": "x=y",
        "b": "a",
    }


def test_a_hyper_parameter_reaches_the_methods_that_have_it(
    equipoise: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("equipoise.runs.plan.compare", lambda configs, *_, **__: seen.extend(configs) or [][0])
    equipoise("compare", "fedprox", "fedavg", "fedprox+fedheal", *TINY, "--set", "fedprox.mu=0.5", "--runs", tmp_path)
    assert [c.method for c in seen] == ["fedprox(mu=0.5)", "fedavg", "fedprox(mu=0.5)+fedheal"]
    assert [c.label for c in seen] == ["fedprox(mu=0.5)", "fedavg", "fedprox(mu=0.5)+fedheal"]


def test_by_default_there_are_as_many_runs_at_a_time_as_cores(
    equipoise: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        "equipoise.runs.plan.compare", lambda configs, _, jobs, **__: seen.append(at_once(jobs, configs)) or [][0]
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    for given in ([], ["--seeds", 9], ["--seeds", 9, "--threads", 2], ["--seeds", 9, "--threads", 50], ["-j", 4]):
        equipoise("compare", "fedavg", *TINY, *given, "--runs", tmp_path)
    assert seen == [1, 6, 3, 1, 4]
    assert at_once(None, [config(device="cuda")] * 9) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # unknown
    assert at_once(None, [config()] * 9) == 1


# interrupted
@pytest.mark.slow
def test_a_dead_or_failing_run_is_reported_and_the_others_are_complete(tmp_path: Path) -> None:
    configs = [config("ditto+afl", rounds=60, lr=0.01), config("fedprox", lr=1e30), config("fedavg")]
    dead, failing, fine = directories(tmp_path / "both", configs)

    def kill(*_: int) -> None:
        if (dead / "metrics.jsonl").exists() and not killed:
            killed.append(json.loads((dead / CLAIM).read_text())["process"])
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    with pytest.raises(RunError) as error:
        compare(configs, tmp_path / "both", jobs=3, on_progress=kill)
    told = str(error.value)
    assert told.startswith("2 of 3 runs failed.\n")
    assert f"{dead.name}: killed by signal 9" in told
    assert f"{failing.name}: training diverged in 3 of 3 clients in round 0: lower the learning rate (1e+30)" in told
    assert told.endswith(f"\nThe others are complete; their page: equipoise report {tmp_path / 'both'}")
    assert len(told.splitlines()) == 4
    assert [runs.finished(path) for path in (dead, failing, fine)] == [False, False, True]
    assert_same_run(executed(tmp_path / "fine", configs[2]), fine)
    assert 0 < len(records(dead)) < 60
    found = compare([configs[0], configs[2]], tmp_path / "both")  # goes on where the dead one stopped
    assert [history.label for history in found] == ["ditto+afl", "fedavg"]
    assert_same_run(executed(tmp_path / "whole", configs[0]), dead)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_stopped_comparison_leaves_no_process_and_goes_on(
    equipoise: Call, zygote: Zygote, tmp_path: Path, number: int
) -> None:
    given = [
        "compare",
        "fedheal",
        "fedavg",
        *TINY,
        "--rounds",
        "30",
        "-j",
        "1",
        "--runs",
        str(tmp_path),
        "--name",
        "both",
    ]
    pid = zygote.begin(arguments=given, errors=str(tmp_path / "errors"))
    first, second = tmp_path / "both" / "fedheal-seed0", tmp_path / "both" / "fedavg-seed0"
    while not (first / "metrics.jsonl").exists() or not (first / "metrics.jsonl").stat().st_size:
        time.sleep(0.01)
    os.kill(pid, number)
    assert zygote.end() == 128 + number
    said = (tmp_path / "errors").read_text()
    assert (
        said
        == "error: Stopped. The same command continues after the last complete round; of a single run, equipoise resume does, too.\n"
    )
    with claimed(first):  # its process is gone
        assert 0 < len(records(first)) < 30
    assert not (second / "metrics.jsonl").exists()
    ended = equipoise(*given, "--json")
    assert (ended.status, ended.err) == (0, "")
    assert [method["method"] for method in json.loads(ended.out)["methods"]] == ["fedheal", "fedavg"]
    for path in (first, second):
        assert_same_run(executed(tmp_path / path.name, runs.load(path)), path)


def test_what_can_hardly_learn_is_said_once_and_before_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("equipoise.runs.plan.finish", lambda cells, *_, **__: [Outcome(cells[0], RunError("not run"))])
    sizes = config().scenario_options
    configs = [configure(m, scenario_options=sizes, **SMALL, seed=k) for m in ("fedavg", "dp") for k in range(2)]
    with pytest.raises(RunError, match="not run"):
        compare(configs, tmp_path / "c")
    (said,) = caplog.messages
    assert said.startswith("dp: the noise in the mean of ")


# refused
@in_one(
    ("method", "said"),
    [
        ("fairgrad(attribute=sex*age)", r"attribute='sex*age': Unknown attribute 'age'"),
        ("fedavg+thresholds(attribute=shoe)", r"attribute='shoe': Unknown attribute 'shoe'"),
        ("reweighing(attribute=sex*sex)", "names an attribute twice"),
        ("ffalm(attribute=race)", "compares two groups of people, and 'race' has 3"),
    ],
)
def test_groups_that_are_not_there_are_told_before_any_method_trains(method: str, said: str, tmp_path: Path) -> None:
    rows = "".join(f"{'ab'[k % 2]},{'xy'[k % 4 // 2]},{'fm'[k % 3 > 0]},{'rst'[k % 3]},{k}.5\n" for k in range(60))
    (tmp_path / "t.csv").write_text("label,client,sex,race,v\n" + rows)
    options = {"group": "sex,race"}
    made = [
        configure(m, "own", data=str(tmp_path / "t.csv"), scenario_options=options, rounds=1)
        for m in ("fedavg", method)
    ]
    with pytest.raises(ValueError, match=re.escape(said)):
        compare(made, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_comparison_that_cannot_be_made_is_refused(compared: Path, equipoise: Call, tmp_path: Path) -> None:
    for given, expected in (
        (["compare", "fedavg", "afl", "fedavg"], "The method fedavg is given twice."),
        (["compare", "fedavg", "afl+qffl"], "'afl' and 'qffl' each set the weights of the clients"),
        (["compare", "fedavg", "fedheal", "--set", "moon.mu=1"], "'moon' is not part of any of fedavg, fedheal"),
        (
            ["compare", "fedavg", "fedheal", "--set", "tau=0.3"],
            "Write the part of the method before it: --set PART.tau=0.3.",
        ),
        (
            ["compare", "fedavg", "fairgrad", "--set", "attribute=sex*race"],
            "Write the part of the method before it: --set 'PART.attribute=sex*race'.",
        ),
        (["compare", "fairgrad", "fedavg", "--set", "attribute=sex"], "before it: --set fairgrad.attribute=sex."),
        (["compare", "fedavg", "fedheal", "--set", "fedheal.tau=2"], "tau must be in [0, 1]; found 2"),
    ):
        ended = equipoise(*given, *TINY, "--runs", tmp_path)
        assert (ended.status, ended.out) == (2, "")
        assert expected in ended.err
        assert len(ended.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    ended = equipoise(*arguments(compared, "--rounds", 4))
    assert (ended.status, ended.out) == (1, "")
    assert "holds a run with other settings" in ended.err
    with pytest.raises(ValueError, match="jobs must be >= 1; found 0"):
        compare([config()], tmp_path, jobs=0)


def test_a_process_that_cannot_be_started_is_an_error_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> workers.Worker:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(workers, "Worker", refuse)
    with workers.Processes(1) as where:
        calls = [where.submit(print), where.submit(print)]
        assert [str(call.exception(timeout=60)) for call in calls] == ["too many processes"] * 2
