"""The command line: what it prints, where, and with which exit status."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from describe import VISIBILITY
from rich.console import Console
from safetensors.torch import load_file

from equipoise import METHODS, NETWORKS, SCENARIOS, __version__, parse
from equipoise.cli import main as cli
from equipoise.federation import checkpoint, guard, standing
from equipoise.runs import configuration, directory as runs
from equipoise.runs.configuration import called, configure
from equipoise.system.seals import open_json
from helpers import fast_first, in_one
from run_helpers import (
    LINE,
    TINY,
    Zygote,
    assert_same_run,
    cache,
    command,
    config,
    equipoise,
    executed,
    process,
    records,
    started,
    tensors,
    zygote,
)

Call = Callable[..., Any]
COMMANDS = ("run", "compare", "resume", "report", "export", "methods", "scenarios")
RUN = ("run", "-m", "fedheal", *TINY, "--rounds", "2")
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Where the command line made a run called ``one``."""
    base = tmp_path_factory.mktemp("cli runs")  # a path with a space
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["equipoise", *RUN, "--runs", str(base), "--name", "one"])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert end.value.code == 0
    return base


# help
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(equipoise: Call, name: str) -> None:
    ended = equipoise(name, "--help")
    assert (ended.status, ended.err) == (0, "")
    text = " ".join(ended.out.split())
    assert f"Usage: equipoise {name}" in text
    assert f"Example: equipoise {name}" in text


def test_help_and_version(equipoise: Call) -> None:
    ended = equipoise("--help")
    assert (ended.status, ended.err) == (0, "")
    assert all(name in ended.out for name in COMMANDS)
    assert "Start with equipoise quickstart." in ended.out
    assert equipoise("--version") == (0, f"equipoise {__version__}\n", "")


# lists
def test_the_methods(equipoise: Call) -> None:
    ended = equipoise("methods")
    assert (ended.status, ended.err) == (0, "")
    assert all(name in ended.out for name in METHODS)
    listed = json.loads(equipoise("methods", "--json").out)
    assert list(listed) == list(METHODS)
    for entry in listed.values():
        assert entry.keys() == {
            "summary",
            "citation",
            "printed",
            "parts",
            "hyper_parameters",
            "presets",
            "remarks",
            "needs",
            "sees",
        }
        assert entry["sees"] in VISIBILITY
        assert all(
            p.keys() == {"name", "default", "values", "search", "part", "main"} for p in entry["hyper_parameters"]
        )


@pytest.mark.parametrize("name", fast_first(METHODS))
def test_a_method_in_full(equipoise: Call, name: str) -> None:
    ended = equipoise("methods", name)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"{name}: ")
    assert METHODS[name].citation.split(",")[0] in " ".join(ended.out.split())
    assert all(field.name in ended.out for rule in METHODS[name].rules for field in fields(rule))
    for preset in ("paper", *METHODS[name].presets):
        assert f"{name}:{preset}" in ended.out
    assert f"the server must see: {VISIBILITY[parse(name).sees]}\n" in ended.out
    assert list(json.loads(equipoise("methods", name, "--json").out)) == [name]


def test_the_scenarios_and_networks(equipoise: Call) -> None:
    ended = equipoise("scenarios")
    assert (ended.status, ended.err) == (0, "")
    assert all(name in ended.out for name in (*SCENARIOS, *NETWORKS))
    listed = json.loads(equipoise("scenarios", "--json").out)
    assert (list(listed["scenarios"]), list(listed["networks"])) == (list(SCENARIOS), list(NETWORKS))


# the bar
@in_one("method", ["fedavg", "fedproto(mu=0.001)+fedheal(tau=0.4)"])
@in_one("width", [80, 120])
def test_the_bar_has_room(method: str, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standing, "Terminal", lambda **_: console)
        bar = standing.progress_bar(True)
    groups = {name: {"accuracy": 0.9} for name in ("[red]optdigits", "photo", "fonts", "street", "a hospital far away")}
    task = bar.add_task(method, total=4000, completed=1200, accuracy="")
    bar.update(task, advance=1, accuracy=standing.accuracies({"round": 0, "groups": groups}))
    console.print(bar.get_renderable())
    (line,) = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(line) <= width
    assert line.index("1201/4000") - line.index("━") - 1 >= 20
    assert " [red]optdigits 90%" in line or width == 80


# a run
def test_a_run_is_where_it_was_asked_for_with_all_its_files(base: Path) -> None:
    run = base / "one"
    assert {p.name for p in run.iterdir()} == {
        "config.toml", "manifest.json", "metrics.jsonl", "checkpoint", "summary.json", "report.html",
    }  # fmt: skip
    page = (run / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert re.search(r'(src|srcset|@import|<link[^>]*href)="?https?:', page) is None  # it needs no network
    assert_same_run(run, executed(base / "again", runs.load(run)))


def test_the_same_command_again_prints_the_finished_result(base: Path, equipoise: Call) -> None:
    before = (base / "one" / "metrics.jsonl").stat().st_mtime_ns
    ended = equipoise(*RUN, "--runs", base, "--name", "one")
    assert (ended.status, ended.err) == (0, "")
    assert f"{base / 'one'} is finished; its results:" in " ".join(ended.out.split())  # of however long a path
    assert "method fedheal · 4 clients, 4 a round" in ended.out
    assert "AVG" in ended.out
    assert f"run: {base / 'one'}\nreport: {base / 'one' / 'report.html'}\n" in ended.out
    assert (base / "one" / "metrics.jsonl").stat().st_mtime_ns == before


def test_the_same_name_with_other_settings_is_refused(base: Path, equipoise: Call) -> None:
    ended = equipoise(*RUN, "--rounds", 3, "--runs", base, "--name", "one")
    assert (ended.status, ended.out) == (1, "")
    assert (
        "holds a run with other settings: rounds is 2 there and 3 here. Choose another --name, or delete it."
        in ended.err
    )


def test_without_a_name_every_run_is_new(tmp_path: Path, equipoise: Call) -> None:
    for _ in range(2):
        assert equipoise(*RUN, "--rounds", 1, "--runs", tmp_path, "--no-report", "--json").status == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fedheal-digits-seed0", "fedheal-digits-seed0-2"]
    assert not list(tmp_path.glob("*/report.html"))


def test_a_run_is_called_what_the_user_says(base: Path, equipoise: Call) -> None:
    ended = equipoise(*RUN, "--runs", base, "--name", "one", "--label", "fedheal=FedHEAL, ours", "--no-report")
    assert (ended.status, ended.err) == (0, "")
    assert " FedHEAL, ours " in ended.out
    ended = equipoise(*RUN, "--runs", base, "--name", "never", "--label", "fedavg=x")
    assert (ended.status, ended.out) == (2, "")
    assert "--label fedavg=x: expected METHOD=LABEL with one of the methods fedheal." in ended.err
    assert not (base / "never").exists()


def schema(text: str, method: str, rounds: int) -> None:
    """One JSON document as documented, and nothing else."""
    found = json.loads(text)
    measures = found.pop("measures")
    assert found.pop("collaboration") is None  # nobody was asked what clients reach alone
    assert found.pop("other_rounds")["averaged"] == 1  # the exported model
    assert found.pop("group_fairness") is None  # nobody asked for the gaps between groups
    assert found.pop("validation") is None  # nobody held samples out
    assert found.pop("own_measures") == {}
    assert found.pop("in_force").keys() == {method}
    assert found.pop("spread") is None  # clients share the test sets of their groups
    assert found.keys() == {
        "scenario",
        "exported",
        "exports",
        "shown",
        "measure",
        "title",
        "rounds",
        "averaged",
        "counted",
        "sizes",
        "small",
        "least",
        "seeds",
        "notes",
        "methods",
        "leaders",
    }
    assert (found["measure"], found["title"]) == ("accuracy", "Accuracy")
    assert measures == {"accuracy": found}
    assert (found["scenario"], found["rounds"], found["seeds"]) == ("digits", rounds, [0])
    (entry,) = found["methods"]
    statistics = {"avg", "std", "worst", "gap", "client_std"}
    assert entry.keys() == {
        "method",
        "bound",
        "seeds",
        *statistics,
        "groups",
        "clients",
        "failed",
        "intervals",
        "versus",
        "pooled",
        "untested",
        "guessed",
        "worst_groups",
    }
    assert entry["pooled"].keys() == {"groups", *statistics, "n"}
    assert entry["method"] == method
    assert list(entry["groups"]) == ["optdigits", "photo", "fonts", "street"]
    for value in (entry["avg"], entry["std"], entry["worst"], *entry["groups"].values()):
        assert value.keys() == {"mean", "std", "ci95"}
        assert value["std"] is value["ci95"] is None  # one seed
    assert entry["worst"]["mean"] == min(group["mean"] for group in entry["groups"].values())
    assert 1 < entry["avg"]["mean"] <= 100  # percent


def test_json_is_one_document_and_nothing_else(base: Path, equipoise: Call) -> None:
    ended = equipoise(*RUN, "--runs", base, "--name", "json", "--json")
    assert (ended.status, ended.err) == (0, "")
    schema(ended.out, "fedheal", 2)
    again = equipoise(*RUN, "--runs", base, "--name", "json", "--json", "--no-report")
    assert again.out == ended.out
    assert equipoise("resume", base / "json", "--json", "--no-report").out == ended.out
    assert equipoise("resume", base / "json", "--json", "--quiet").out == ended.out
    assert equipoise("report", base / "json", "--json", "-o", base / "r.html").out == ended.out


def test_hyper_parameters_network_and_scenario_are_as_given(equipoise: Call, tmp_path: Path) -> None:
    given = [
        "--set",
        "fedheal.tau=0.4",
        "--set",
        "fedprox.mu=1e-3",
        "--seed",
        3,
        "--lr",
        0.1,
        "--clip",
        2,
        "--momentum",
        0,
        "--engine",
        "stacked",
    ]
    ended = equipoise(
        "run", "-m", "fedprox+fedheal", *TINY, "--rounds", 1, *given, "--runs", tmp_path, "--name", "x", "--json"
    )
    assert (ended.status, ended.err) == (0, "")
    found = runs.load(tmp_path / "x")
    assert found.method == found.label == "fedprox(mu=0.001)+fedheal(tau=0.4)"
    assert (found.seed, found.lr, found.clip, found.momentum, found.engine) == (3, 0.1, 2.0, 0.0, "stacked")
    assert found.network_options == {"hidden": [8]}
    assert found.scenario_options == config().scenario_options
    assert (found.rounds, found.epochs, found.batch_size) == (1, 1, 8)


@in_one(
    ("text", "expected"),
    [
        ("cnn", ("cnn", {})),
        ("cnn()", ("cnn", {})),
        (" cnn ( width = 4 , norm = batch ) ", ("cnn", {"width": 4, "norm": "batch"})),
        ("mlp(hidden=[64, 32])", ("mlp", {"hidden": [64, 32]})),
        ("mlp(hidden=(64,))", ("mlp", {"hidden": (64,)})),
        ("x(a=motion-blur)", ("x", {"a": "motion-blur"})),
        ("x(a=-1e-3, b=true, c='d e')", ("x", {"a": -0.001, "b": True, "c": "d e"})),
        ("x(a=~/my net-1.pth, b=2)", ("x", {"a": "~/my net-1.pth", "b": 2})),
        ("x(a=/data/net (1).pth)", ("x", {"a": "/data/net (1).pth"})),
    ],
)
def test_options_in_brackets(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert called("--network", text, "") == expected


@in_one(
    "text",
    [
        "cnn(",
        "cnn(4)",
        "cnn(width)",
        "cnn(width=)",
        "cnn(width=4",
        "cnn(width=4))",
        "cnn(a=1)(b=2)",
        "cnn(a=1)+x(b=1)",
        "cnn(*a)",
    ],
)
def test_brackets_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="write NAME=VALUE in the brackets and close them, for example"):
        called("--network", text, "resnet10(width=64)")


def test_an_option_of_the_scenario_can_be_set(equipoise: Call, tmp_path: Path) -> None:
    given = ["-s", "digits(clients=4, test=[20, 20, 20, 20])", *TINY[2:], "--rounds", 1, "--json"]
    sets = ["--set", "train=[24, 20, 28, 16]", "--set", "fedheal.tau=0.4"]
    ended = equipoise("run", "-m", "fedheal", *given, *sets, "--runs", tmp_path, "--name", "x")
    assert (ended.status, ended.err) == (0, "")
    found = runs.load(tmp_path / "x")
    assert found.scenario_options == config().scenario_options
    assert found.method == "fedheal(tau=0.4)"
    assert_same_run(tmp_path / "x", executed(tmp_path / "again", found))


QUALITY = ["-s", "digits-quality(train=[24, 20, 28, 16], test=[20, 20, 20, 20], clients=5)", *TINY[2:], "--rounds", 6]


@pytest.mark.slow
def test_a_scenario_with_measures_from_end_to_end(equipoise: Call, tmp_path: Path) -> None:
    given = ["compare", "fedavg", "qffl", *QUALITY, "--set", "corruption=motion-blur", "--set", "corrupted=1"]
    ended = equipoise(*given, "--seeds", 2, "--runs", tmp_path, "--name", "x", "--details")
    assert ended.status == 0
    assert all(", seed " in line for line in ended.err.splitlines())  # how far every run is
    text = " ".join(ended.out.split())
    for title in (
        "Accuracy of",
        "Balanced accuracy (ACC of FedISM+) of",
        "One-vs-one macro AUC (AUC of FedISM+) of",
        "One-vs-rest weighted AUC of",
    ):
        assert text.count(f"{title} the global model on digits-quality in percent") == 1
    assert "client STD" in text
    assert (tmp_path / "x" / "report.html").read_text().count(" on every group</h3>") == 4
    run = tmp_path / "x" / "qffl-seed1"
    assert runs.load(run).scenario_options.items() >= {"corruption": "motion-blur", "corrupted": 1}.items()
    assert json.loads((run / "manifest.json").read_text())["measures"] == ["accuracy", "balanced", "auc", "auc_ovr"]
    assert [r["round"] for r in records(run) if "auc" in r["groups"]["clean"]] == [1, 2, 3, 4, 5]
    assert_same_run(run, executed(tmp_path / "again", runs.load(run)))
    found = json.loads(equipoise("report", tmp_path / "x", "--json", "-o", tmp_path / "r.html").out)
    assert list(found["measures"]) == ["accuracy", "balanced", "auc", "auc_ovr"]
    pooled = found["measures"]["auc"]["methods"][1]["pooled"]
    assert pooled["n"] == 10
    assert pooled["client_std"]["mean"] == pytest.approx(0.4 * pooled["gap"]["mean"])  # one client of five


# the user's errors
WRONG: list[tuple[list[Any], str]] = [
    (["-m", "fedheel"], "Unknown method 'fedheel' in 'fedheel'. Did you mean 'fedheal'?"),
    (["-m", ""], "The method is empty"),
    (["-m", "fedavg+"], "Expected '+' and a method after 'fedavg'"),
    (["-m", "afl+fael"], "'afl' and 'fael' each set the weights of the clients. Keep one of them."),
    (["-m", "fedavg+fedavg"], "'fedavg' appears twice"),
    (["-m", "fedheal:paper2"], "fedheal has no preset 'paper2'"),
    (["-m", "fedprox(mu"], "The bracket after 'fedprox'"),
    (["-m", "fedheal", "--set", "fedheal.tau=7"], "tau must be in [0, 1]; found 7"),
    (["-m", "fedheal", "--set", "fedheal.tau=high"], "tau must be a number in [0, 1]; found 'high'"),
    (["-m", "fedheal", "--set", "fedheal.tua=1"], "fedheal has no hyper-parameter 'tua'. Did you mean 'tau'?"),
    (["-m", "fedheal", "--set", "moon.mu=1"], "'moon' is not part of 'fedheal'"),
    (["-m", "fedheal", "--set", "fedheal.tau"], "--set fedheal.tau: expected PART.NAME=VALUE"),
    (["-m", "fedheal", "--set", "=1"], "or NAME=VALUE for an option of the scenario, for example clients=8"),
    (["-m", "fedheal", "--set", "fedheal.tau=0.2", "--set", "fedheal.tau=0.3"], "fedheal.tau is given twice"),
    (["--set", "tau=1"], "tau=1: this is no option of scenario 'digits', but a hyper-parameter of"),
    (["--set", "clients=8"], "clients is given twice: in --scenario digits(train"),
    (["-s", "digits", "--set", "clients=8", "--set", "clients = 8"], "clients is given twice. Leave one out."),
    (["-s", "digits", "--set", "clients=5"], "clients must be a multiple of 4, the domains; found 5"),
    (["-s", "digitz"], "Unknown scenario 'digitz'. Did you mean 'digits'?"),
    (["-s", "digits(cleints=4)"], "'cleints'. Did you mean 'clients'?"),
    (["-s", "digits(clients=5)"], "clients must be a multiple of 4, the domains; found 5"),
    (["-s", "digits(clients=many)"], "digits: clients must be a whole number; found 'many'"),
    (["--network", "resnet11"], "Unknown network 'resnet11'. Did you mean 'resnet18'?"),
    (["--network", "cnn(wdith=4)"], "'wdith'. Did you mean 'width'?"),
    (["--network", "cnn(width=3)"], "width must be >= 1, and a multiple of 4"),
    (["--network", "mlp(hidden=64)"], "hidden must be a list of whole numbers >= 1, such as [200, 200]; found 64"),
    (["--network", "cnn(width=4"], "--network cnn(width=4: write NAME=VALUE in the brackets and close them"),
    (
        ["--engine", "warp"],
        "Unknown engine 'warp'. Choose one of: auto, sequential, workers, processes, stacked, distributed, flower-inproc.",
    ),
    (
        ["--optimizer", "lion"],
        "optimizer must be one of sgd, adam, adamw, or a reference to your own, FILE.py:NAME; found 'lion'",
    ),
    (["--optimizer", "adam", "--momentum", "0.9"], "--momentum belongs to SGD"),
    (["--engine", "workers", "--chunk", "4"], "chunk belongs to the engine stacked"),
    (["--participation", "0"], "participation must be in (0, 1]; found 0.0"),
    (["--participation", "2"], "participation must be in (0, 1]; found 2.0"),
    (["--participation", "nan"], "participation must be in (0, 1]; found nan"),
    (["--lr", "inf"], "lr must be > 0 and finite, or a schedule such as cosine(0.1, warmup=5); found 'inf'"),
    (["--lr", "-1"], "lr must be > 0 and finite, or a schedule such as cosine(0.1, warmup=5); found '-1'"),
    (["--clip", "0"], "clip must be > 0 and finite, or None; found 0.0"),
    (["--quorum", "1.1"], "quorum must be in [0, 1]; found 1.1"),
    (["--momentum", "1"], "momentum must be in [0, 1); found 1.0"),
    (["--seed", str(2**63)], "seed must be a whole number in 0..9223372036854775807"),
    (["--threads", "100000"], "threads must be a whole number in 1..1024; found 100000"),
    (["--name", "a/b"], "a run's name may hold up to 120 letters, digits and . _ + = - only, for example 'a-b'"),
    (["--name", "日本"], "a run's name may hold"),
    (["--device", "banana"], "Unknown device 'banana'. Choose cpu or cuda."),
]


@pytest.mark.parametrize(("given", "expected"), WRONG, ids=[" ".join(map(str, given)) or "empty" for given, _ in WRONG])
def test_a_users_error_is_one_line_and_leaves_nothing(
    equipoise: Call, tmp_path: Path, given: list[Any], expected: str
) -> None:
    ended = equipoise("run", *TINY, *given, "--runs", tmp_path / "runs")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert expected in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["run", "--rounds", "0"], "--rounds"),
        (["run", "--rounds", "many"], "--rounds"),
        (["run", "--batch-size", "0"], "--batch-size"),
        (["run", "--epochs", "0"], "--epochs"),
        (["run", "--threads", "0"], "--threads"),
        (["run", "--seed", "-1"], "--seed"),
        (["run", "--sed", "1"], "No such option"),
        (["run", "fedavg"], "unexpected extra argument"),
        (["compare"], "Missing argument"),
        (["compare", "fedavg", "--jobs", "0"], "--jobs"),
        (["compare", "fedavg", "--seeds", "0"], "--seeds"),
        (["resume"], "Missing argument"),
        (["report"], "Missing argument"),
        (["methods", "fedheel"], "Did you mean 'fedheal'?"),
        (["methods", "fedprox(mu=1)"], "has values or a preset; ask for fedprox."),
        (["methods", "moon+afl"], "'moon+afl' is a sum; ask for its parts one by one."),
        (["resume", "nowhere"], "nowhere is not a run: it has no config.toml"),
        (["report", "nowhere"], "No run in nowhere: expected directories with a config.toml"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_a_wrong_command_is_said_to_be_so(
    equipoise: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = equipoise(*given)
    assert (ended.status, ended.out) == (2, "")
    assert expected in ended.err
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["report", "analyse decomposition", "analyse landscape", "analyse states"])
def test_every_directory_must_hold_a_run(
    equipoise: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/los", "runs/none"):
        Path(name).mkdir(parents=True)
    Path("runs/los/config.toml").write_text('method = "fedavg"')
    for given in (
        ["runs/los", "runs/nowhere"],
        ["runs/nowhere", "runs/los"],
        ["runs/los", "runs/nowhere", "runs/none"],
    ):
        ended = equipoise(*command.split(), *given)
        named = ", ".join(name for name in given if name != "runs/los")
        assert (ended.status, ended.out) == (2, "")
        assert f"No run in {named}: expected directories with a config.toml." in " ".join(ended.err.split())
        assert not Path("report.html").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_before_anything_is_written(equipoise: Call, tmp_path: Path) -> None:
    ended = equipoise(*RUN, "--device", "cuda", "--runs", tmp_path)
    assert (ended.status, ended.out) == (2, "")
    assert "device 'cuda' needs a CUDA build of PyTorch and a GPU; found none." in ended.err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback_and_keeps_the_status(equipoise: Call) -> None:
    ended = equipoise("run", "-m", "fedheel", "--debug")
    assert (ended.status, ended.out) == (2, "")
    assert "Traceback (most recent call last)" in ended.err
    assert "error: Unknown method 'fedheel'" in ended.err


# failures
def test_a_place_that_cannot_be_written_is_named(equipoise: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = equipoise(*RUN, "--runs", tmp_path / "file", "--name", "x")
    assert (ended.status, ended.out) == (1, "")
    assert f"{tmp_path / 'file' / 'x'}: Not a directory." in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_missed_quorum_names_the_clients_and_keeps_a_checkpoint(equipoise: Call, tmp_path: Path) -> None:
    ended = equipoise("run", "-m", "fedavg", *TINY, "--rounds", 3, "--lr", 1e30, "--runs", tmp_path, "--name", "x")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "error: training diverged in 4 of 4 clients in round 0: lower the learning rate (1e+30).\n"
    known = open_json((tmp_path / "x" / "failed.json").read_text())
    names = ("optdigits-1", "photo-1", "fonts-1", "street-1")
    reason = "training diverged: lower the learning rate (1e+30)"
    assert known["quarantined"] == [{"name": name, "reason": reason} for name in names]
    _, meta = checkpoint.read(tmp_path / "x" / "checkpoint")
    assert (meta["t"], meta["rounds"]) == (0, 3)


def test_quarantined_clients_are_shown(equipoise: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finite, rounds = guard.finite, iter([True, True, True, False])  # one answer per client, or one of all

    def one_bad(answer: Any) -> torch.Tensor:
        found = finite(answer)
        if 1 in answer.rows and next(rounds):
            found[answer.rows.index(1)] = False
        return found

    monkeypatch.setattr(guard, "finite", one_bad)
    monkeypatch.setattr(guard, "not_finite", lambda _: {1: "the update holds [NaN]"})
    ended = equipoise(*RUN, "--rounds", 4, "--runs", tmp_path, "--name", "x", "--no-report")
    assert ended.status == 0
    assert "quarantined fedheal seed 0: photo-1: the update holds [NaN] (3 rounds, first in round 0)" in " ".join(
        ended.out.split()
    )
    assert [record.get("quarantined") is not None for record in records(tmp_path / "x")] == [True, True, True, False]


def test_a_defect_is_called_one(equipoise: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes [2, 3]")

    monkeypatch.setattr(configuration, "layered", fail)
    ended = equipoise(*RUN)
    assert ended == (1, "", "error: RuntimeError: shapes [2, 3]. This is a defect of Equipoise; --debug shows where.\n")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_stop_is_told_in_one_line_and_nothing_is_lost(
    equipoise: Call, zygote: Zygote, base: Path, tmp_path: Path, number: int
) -> None:
    given = [*RUN, "--rounds", "20", "--runs", str(tmp_path), "--name", "x"]
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    pid = zygote.begin(arguments=given, errors=str(tmp_path / "errors"))
    while not (tmp_path / "x" / "metrics.jsonl").exists():
        time.sleep(0.01)
    os.kill(pid, number)
    assert zygote.end() == 128 + number
    *logged, said = (tmp_path / "errors").read_text().splitlines(keepends=True)
    assert (
        said
        == "error: Stopped. The same command continues after the last complete round; of a single run, equipoise resume does, too.\n"
    )
    assert all(LINE.match(line) for line in logged)  # that of the first round, if the stop came after it
    assert equipoise(*given, "--json").status == 0
    assert_same_run(tmp_path / "x", executed(tmp_path / "whole", runs.load(tmp_path / "x")))
    assert {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} == before


# other surroundings
def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = line.replace(
        "equipoise",
        " ".join([sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:typer", "-m", "equipoise"]),
    )
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
    )


@pytest.mark.parametrize("line", ["methods", "scenarios --json"])  # written at once, and when the process ends
def test_a_reader_that_leaves_early_is_no_error(line: str) -> None:
    ended = shell(f"equipoise {line} | true")  # which ends long before the first line is written
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.slow
def test_a_full_standard_output_is_an_error_without_traceback() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    ended = shell("equipoise scenarios --json > /dev/full")
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_narrow_plain_terminal_gets_narrow_plain_text() -> None:
    ended = shell("equipoise scenarios", COLUMNS="40", TERM="dumb", NO_COLOR="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert max(map(len, ended.stdout.splitlines())) <= 40
    assert ESCAPE not in ended.stdout


@pytest.mark.slow
def test_a_terminal_without_greek_letters_gets_question_marks(base: Path) -> None:
    path = started(base / "ü ✓", config(rounds=1))
    line = f"equipoise resume '{path}' --no-report"
    ended = shell(line, LC_ALL="POSIX", PYTHONUTF8="0", PYTHONIOENCODING="ascii", PYTHONCOERCECLOCALE="0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "method scaffold+fedheal ? 4 clients" in ended.stdout


def test_from_any_directory_without_a_home(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("EQUIPOISE_CACHE")
    ended = equipoise(*RUN, "--name", "x", "--no-report", "--json")
    assert (ended.status, ended.err) == (0, "")
    assert_same_run(base / "one", tmp_path / "runs" / "x")


# models out
def test_the_global_model_is_exported(base: Path, equipoise: Call, tmp_path: Path) -> None:
    ended = equipoise("export", base / "one", "-o", tmp_path / "out")
    assert (ended.status, ended.err) == (0, "")
    state = load_file(tmp_path / "out" / "global.safetensors")
    fed = runs.trained(base / "one")
    net = fed.network()
    net.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in fed.state_dict().items())
    assert f"{sum(p.numel() for p in state.values()):,} numbers" in ended.out


def test_what_clients_own_is_exported(equipoise: Call, tmp_path: Path) -> None:
    options = {"clients": 3, "samples": 90, "test": [10, 10, 20, 20]}
    settings = configure(
        "fedsac", "digits-pow", scenario_options=options, network="mlp", network_options={"hidden": [8, 8]}, rounds=1
    )
    runs.start(settings, tmp_path / "run")
    assert equipoise("export", tmp_path / "run").err.count("has no checkpoint yet") == 1
    runs.execute(tmp_path / "run", progress=False)
    assert equipoise("export", tmp_path / "run", "--client", "all", "--compact").status == 0
    files = sorted((tmp_path / "run" / "models").iterdir())
    assert [file.name for file in files] == [f"client-{k}.safetensors" for k in (1, 2, 3)]
    fed = runs.trained(tmp_path / "run")
    held = torch.tensor(fed.records[-1]["units"]["held"])
    for file, kept in zip(files, held.tolist(), strict=True):
        state = load_file(file)
        assert [len(state["hidden.0.bias"]), len(state["hidden.1.bias"])] == kept
    assert equipoise("export", tmp_path / "run", "--client", "client-2", "-o", tmp_path / "one").status == 0
    whole = load_file(tmp_path / "one" / "client-2.safetensors")
    assert all(torch.equal(value, whole[name]) for name, value in fed.state_dict(client=1).items())
    assert "--compact has no effect without --client NAME" in equipoise("export", tmp_path / "run", "--compact").err
    for bad in ("client-9", "1"):
        ended = equipoise("export", tmp_path / "run", f"--client={bad}")
        assert ended.status == 2
        assert f"--client {bad}: the run has no such client. Give a name (client-1, client-2, client-3" in ended.err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_comes_in_panels_of_which_the_first_fits_a_screen(
    command: str, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = equipoise(command, "--help").out.splitlines()
    titles = [line.split(" ─")[0].removeprefix("╭─ ") for line in lines if line.startswith("╭")]
    choice = ["Choice of settings"] * (command == "compare")
    panels = ["Method and data", "Training", "Clients", "Evaluation and output", *choice, "Advanced"]
    assert titles[-len(panels) :] == panels
    assert next(i for i, line in enumerate(lines) if "Training ─" in line) < 50


def test_a_column_given_as_a_label_of_a_method_is_told_before_data_are_read(equipoise: Any) -> None:
    for words in (("run", "--data", "nowhere.csv"), ("compare", "fedavg", "fedheal", "--data", "nowhere.csv")):
        told = equipoise(*words, "--label", "readmitted").err
        assert told == (
            "error: --label readmitted: expected METHOD=LABEL, the name of a method in tables. For the column of your data with the labels: "
            "--set label=readmitted\n"
        )
