"""Every option of every command is obeyed, or refused with the reason: a value of each changes something, or is an error."""

# ruff: noqa: F811 (a fixture)

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import scenarios
from equipoise.cli.main import commands
from equipoise.core.settings import Settings
from equipoise.scenarios import SCENARIOS
from equipoise.system.workers import Workers
from helpers import others_slow
from run_helpers import SCENARIO, equipoise, without_figures  # noqa: F401 (a fixture)

HERE = Path(__file__).parent
TINY = ["--scenario", SCENARIO, "--network", "mlp(hidden=[8])", "--batch-size", "8", "--rounds", "2"]


class CapturedError(Exception):
    """What a command would have called."""


@dataclass(frozen=True)
class Base:
    """A command that works, and by option what is added to it.

    A list must change what is seen: output, files, and the call of ``target`` if there is one, which is then not made. A pair of a list and a
    text must be refused with the text. A text is the file of tests that covers the option. A target returns the number after ``=``, if any.
    """

    arguments: str
    added: dict[str, list[str] | tuple[list[str], str] | str]
    targets: tuple[str, ...] = field(default=())


TRAINING: dict[str, list[str] | tuple[list[str], str] | str] = {
    "--scenario": ["--scenario", "digits-iid"],
    "--data": (["--data", "x"], "would not be read"),
    "--task": (["--task", "regression"], "its task is classification"),
    "--config": ["--config", "settings.toml"],
    "--rounds": ["--rounds", "3"],
    "--set": ["--set", "data_seed=3"],
    "--network": ["--network", "mlp(hidden=[4])"],
    "--epochs": ["--epochs", "5"],
    "--steps": ["--steps", "3"],
    "--batch-size": ["--batch-size", "4"],
    "--optimizer": ["--optimizer", "adam"],
    "--lr": ["--lr", "0.3"],
    "--momentum": ["--momentum", "0.1"],
    "--weight-decay": ["--weight-decay", "0.3"],
    "--clip": ["--clip", "0.01"],
    "--head": ["--head", "classifier"],
    "--participation": ["--participation", "0.5"],
    "--availability": ["--availability", "0.4"],
    "--joins": ["--joins", "1"],
    "--dropout": ["--dropout", "0.5"],
    "--time-limit": ["--time-limit", "1.1"],
    "--speed-spread": ["--speed-spread", "0.9", "--time-limit", "2"],
    "--attack": ["--attack", "sign-flip", "--attackers", "0.25"],
    "--attackers": ["--attackers", "0.25", "--attack", "ipm"],
    "--attack-scale": ["--attack-scale", "2", "--attack", "ipm", "--attackers", "0.25"],
    "--norm-limit": ["--norm-limit", "1"],
    "--quorum": ["--quorum", "0.9"],
    "--validation": ["--validation", "0.3"],
    "--patience": (["--patience", "3"], "needs what clients hold out"),
    "--stop-on": (["--stop-on", "loss"], "is the measure of --patience"),
    "--select": (["--select", "best-validation"], "needs what clients hold out"),
    "--measures": ["--measures", "f1"],
    "--positive": ["--positive", "3"],
    "--least-group": ["--least-group", "21"],
    "--contribution-rounds": ["--contribution-rounds", "2"],
    "--on": (["--on", "nowhere"], "on must be slurm, ray or dask://"),
    "--devices": (["--devices", "gpu"], "devices must be auto, or GPUs with commas"),
    "--track": ["--track", "tensorboard:runs"],
    "--engine": ["--engine", "sequential"],
    "--threads": ["--threads", "2"],
    "--device": (["--device", "nowhere"], "device"),
    "--precision": ["--precision", "bf16"],
    "--chunk": (["--chunk", "2", "--engine", "workers"], "chunk belongs to the engine stacked"),
    "--keep-checkpoints": ["--keep-checkpoints", "2"],
}
RUN = Base(
    " ".join(["run", "--name", "r"]),
    {
        **TRAINING,
        "--method": ["--method", "afl"],
        "--seed": ["--seed", "3"],
        "--name": "test_cli.py",
        "--runs": "test_cli.py",
        "--label": (["--label", "afl=X"], "expected METHOD=LABEL"),
        "--json": (["--json", "--details"], "--details has no effect together with --json"),
        "--report": (["--no-report", "--figures"], "--figures has no effect together with --no-report"),
        "--figures": (["--figures", "--no-report"], "--figures has no effect together with --no-report"),
        "--details": (["--details", "--json"], "--details has no effect together with --json"),
        "--explain": (["--explain", "--json"], "--explain has no effect together with --json"),
        "--dry-run": "test_forecast.py",
        "--workers": (["--workers", "0"], "0 is not in the range"),
    },
    ("equipoise.runs.directory:start",),
)
COMPARE = Base(
    "compare fedavg afl --name r",
    {
        **TRAINING,
        "--seeds": ["--seeds", "2"],
        "--bounds": ["--bounds"],
        "--name": ["--name", "other"],
        "--runs": ["--runs", "other"],
        "--label": (["--label", "qffl=X"], "expected METHOD=LABEL"),
        "--json": (["--json", "--details"], "--details has no effect together with --json"),
        "--report": (["--no-report", "--figures"], "--figures has no effect together with --no-report"),
        "--figures": (["--figures", "--no-report"], "--figures has no effect together with --no-report"),
        "--details": (["--details", "--json"], "--details has no effect together with --json"),
        "--explain": (["--explain", "--json"], "--explain has no effect together with --json"),
        "--tune": ["--tune", "4"],
        "--by": (["--by", "worst"], "--by has no effect without --tune"),
        "--search": (["--search", "lr=0.1"], "--search has no effect without --tune"),
        "--jobs": ["--jobs", "7"],
    },
    ("equipoise.runs.plan:compare", "equipoise.runs.choosing:_trained"),
)
TUNE = Base(
    "tune fedavg fedprox --name r",
    {
        **TRAINING,
        "--task": (["--task", "regression"], "its task is classification"),
        "--patience": (["--patience", "3", "--validation", "0.3"], "settings are chosen by the last rounds"),
        "--select": (["--select", "best-validation"], "settings are chosen by the last rounds"),
        "--engine": (["--engine", "flower-inproc"], "settings are chosen in simulations"),
        "--seed": ["--seed", "3"],
        "--name": ["--name", "other"],
        "--runs": ["--runs", "other"],
        "--json": "test_tuning.py",
        "--draws": ["--draws", "3"],
        "--by": (["--by", "collaboration"], "every client receives the same model"),
        "--trials": ["--trials", "2"],
        "--halving": ["--no-halving"],
        "--sampler": ["--sampler", "optuna"],
        "--search": ["--search", "fedprox.mu=0.1,0.2"],
        "--jobs": ["--jobs", "7"],
    },
    ("equipoise.runs.choosing:_trained",),
)
OTHERS = [
    Base("quickstart digits", {"--data": (["--data", "x"], "would not be read"), "--jobs": "test_quickstart.py"}),
    Base(
        "benchmark fair-small",
        {
            "--suite": (["--suite", "fair-small"], "name one suite"),
            "--shard": ["--shard", "1/2"],
            "--jobs": ["--jobs", "3"],
            "--on": ["--on", "ray"],
            "--devices": "test_gpus.py",
            "--name": ["--name", "x"],
            "--runs": ["--runs", "x"],
            "--retry": ["--retry"],
            "--json": ["--json"],
        },
        ("equipoise.runs.benchmark:run",),
    ),
    Base(
        "resume runs/a",
        {
            "--quiet": ["--quiet"],
            "--workers": ["--workers", "3"],
            "--from": ["--from", "1"],
            "--until": ["--until", "1"],
            "--norm-limit": ["--norm-limit", "9"],
            "--quorum": ["--quorum", "0.9"],
            "--data": ["--data", "table.csv"],
            "--track": (["--track", "nowhere"], "nowhere"),
            "--json": ["--json"],
            "--details": (["--details", "--quiet"], "--details has no effect"),
            "--explain": (["--explain", "--quiet"], "--explain has no effect"),
        },
        ("equipoise.runs.directory:execute",),
    ),
    Base("resume runs/a", {"--report": ["--no-report"]}),
    Base("status runs", {"--json": ["--json"]}),
    Base(
        "report runs/a",
        {
            "--output": ["--output", "other.html"],
            "--for": ["--for", "committee"],
            "--about": (["--about", "x.toml"], "--about has no effect without --for committee"),
            "--label": ["--label", "fedavg=X"],
            "--positive": ["--positive", "no"],
            "--least-group": ["--least-group", "5"],
            "--figures": (["--figures", "--for", "committee"], "--figures has no effect together with --for committee"),
            "--details": (["--details", "--json"], "--details has no effect together with --json"),
            "--explain": (["--explain", "--json"], "--explain has no effect together with --json"),
            "--json": ["--json"],
        },
    ),
    Base(
        "export runs/a",
        {
            "--client": ["--client", "c0"],
            "--compact": (["--compact"], "--compact has no effect without --client"),
            "--output": ["--output", "x"],
            "--bundle": ["--bundle", "x"],
            "--use": (["--use", "x"], "--use has no effect without --bundle"),
            "--license": (["--license", "x"], "--license has no effect without --bundle"),
            "--onnx": (["--onnx"], "--onnx has no effect without --bundle"),
            "--recalibrate": (["--recalibrate", "platt"], "--recalibrate has no effect without --bundle"),
            "--data": (["--data", "nowhere.csv"], "nowhere.csv"),
        },
    ),
    Base(
        "threshold runs/a --youden",
        {
            "--sensitivity": (["--sensitivity", "0.8"], "sensitivity"),
            "--specificity": (["--specificity", "0.8"], "specificity"),
            "--cost": (["--cost", "5:1"], "cost"),
            "--youden": "test_thresholds.py",
            "--by-group": "test_thresholds.py",
            "--attribute": (["--attribute", "colour"], "colour"),
            "--recalibrate": ["--recalibrate", "platt"],
            "--data": (["--data", "nowhere.csv"], "nowhere.csv"),
            "--json": ["--json"],
        },
    ),
    Base(
        "predict bundle people.csv --output p.csv --force",
        {
            "--output": ["--output", "q.csv"],
            "--id": ["--id", "sex"],
            "--set": (["--set", "sep"], "expected NAME=VALUE"),
        },
    ),
    Base("predict bundle people.csv --output p.csv", {"--force": ["--force"]}),
    Base(
        "audit p.csv --label label --group sex --probability p",
        {
            "--label": ["--label", "said"],
            "--probability": ["--probability", "q"],
            "--prediction": ["--prediction", "said"],
            "--group": ["--group", "client"],
            "--site": ["--site", "client"],
            "--subject": ["--subject", "who"],
            "--positive": ["--positive", "no"],
            "--threshold": ["--threshold", "0.3"],
            "--least": ["--least", "5"],
            "--task": (["--task", "regression"], "task=regression needs prediction"),
            "--set": (["--set", "sep"], "expected NAME=VALUE"),
            "--output": ["--output", "x.html"],
            "--json": ["--json"],
        },
    ),
    Base("methods", {"--check": (["--check"], "--check needs a method"), "--json": ["--json"]}),
    Base(
        "scenarios",
        {
            "--figure": (["--figure", "x.png"], "--figure has no effect without a scenario"),
            "--examples": (["--examples"], "--examples has no effect without a scenario"),
            "--data": (["--data", "nowhere.csv"], "nowhere.csv"),
            "--seed": (["--seed", "0"], "--seed has no effect without a scenario"),
            "--json": ["--json"],
        },
    ),
    Base(
        "scenarios diabetes(alpha=1)", {"--seed": ["--seed", "3"], "--examples": (["--examples"], "without --figure")}
    ),
    Base(
        "init --data people.csv --output made.toml --force",
        {
            "--data": (["--data", "nowhere.csv"], "nowhere.csv"),
            "--set": ["--set", "client=sex"],
            "--label": ["--label", "sex"],
            "--client": ["--client", "sex"],
            "--group": ["--group", "client"],
            "--subject": ["--subject", "age"],
            "--task": (["--task", "regression"], "people.csv"),
            "--positive": ["--positive", "no"],
            "--dry-run": ["--dry-run"],
            "--output": ["--output", "other.toml"],
            "--force": "test_init.py",
            "--json": ["--json"],
        },
    ),
    Base(
        "reproduce fedheal/table2 --embedded",
        {
            "--data": (["--data", "x"], "--data and --embedded"),
            "--embedded": "test_reproduce.py",
            "--seeds": ["--seeds", "1"],
            "--divisions": ["--divisions", "2"],
            "--part": ["--part", "digits"],
            "--row": ["--row", "fedavg"],
            "--rounds": ["--rounds", "2"],
            "--quick": ["--quick"],
            "--jobs": "test_experiments.py",
            "--on": "test_queues.py",
            "--devices": "test_gpus.py",
            "--device": ["--device", "cuda"],
            "--precision": ["--precision", "bf16"],
            "--weights": ["--weights", "x.pth"],
            "--runs": ["--runs", "x"],
            "--dry-run": "test_reproduce.py",
            "--json": "test_reproduce.py",
        },
        ("equipoise.runs.reproduce:plan",),
    ),
    Base(
        "reproduce",
        {
            name: ([name, *value], f"{name} has no effect without an experiment")
            for name, value in {
                "--seeds": ["1"],
                "--divisions": ["1"],
                "--part": ["x"],
                "--row": ["x"],
                "--rounds": ["1"],
                "--quick": [],
                "--jobs": ["1"],
                "--on": ["ray"],
                "--devices": ["auto"],
                "--device": ["cpu"],
                "--precision": ["bf16"],
                "--weights": ["x"],
                "--data": ["x"],
                "--embedded": [],
                "--dry-run": [],
            }.items()
        },
    ),
    Base(
        "pack runs/a --output a.zip",
        {
            "--output": ["--output", "b.zip"],
            "--with-data": ["--with-data"],
            "--include": ["--include", "settings.toml"],
            "--json": ["--json"],
        },
    ),
    Base(
        "verify packed.zip",
        {
            "--run-code": "test_pack.py",
            "--data": (["--data", "x"], "--data has no effect without --run-code"),
            "--jobs": (["--jobs", "2"], "--jobs has no effect without --run-code"),
            "--json": ["--json"],
        },
    ),
    Base(
        "track runs/a --to tensorboard",
        {"--to": ["--to", "mlflow"], "--json": ["--json"]},
        ("equipoise.runs.tracking:track=3",),
    ),
    Base(
        "privacy --noise 1.1 --rounds 40",
        {
            "--noise": ["--noise", "2"],
            "--epsilon": (["--epsilon", "2"], "expected a RUN"),
            "--rounds": ["--rounds", "2"],
            "--delta": ["--delta", "1e-3"],
            "--json": ["--json"],
        },
    ),
    Base(
        "analyse decomposition runs/a",
        {
            "--every": ["--every", "2"],
            "--try": ["--try", "afl"],
            "--output": (["--output", "x", "--json"], "--output has no effect"),
            "--quiet": (["--quiet", "--output", "x"], "--output has no effect"),
            "--json": (["--json", "--output", "x"], "--output has no effect"),
        },
        ("equipoise.analysis.decomposition:decomposition",),
    ),
    Base(
        "analyse landscape runs/a",
        {
            "--group": ["--group", "f"],
            "--points": ["--points", "5"],
            "--grid": ["--grid", "3"],
            "--draws": ["--draws", "1"],
            "--span": ["--span", "2"],
            "--seed": ["--seed", "3"],
            "--output": (["--output", "x", "--json"], "--output has no effect"),
            "--json": (["--json", "--output", "x"], "--output has no effect"),
        },
        ("equipoise.analysis.landscape:landscape",),
    ),
    Base(
        "analyse states runs/a",
        {
            "--rho-max": ["--rho-max", "0.5"],
            "--points": ["--points", "3"],
            "--output": (["--output", "x", "--json"], "--output has no effect"),
            "--json": (["--json", "--output", "x"], "--output has no effect"),
        },
        ("equipoise.analysis.landscape:states",),
    ),
    Base(
        "contribution runs/a",
        {
            "--evaluator": ["--evaluator", "loo"],
            "--utility": ["--utility", "loss"],
            "--budget": "test_worth.py",
            "--floor": (["--floor", "3"], "--floor has no effect"),
            "--output": (["--output", "x", "--json"], "--output has no effect"),
            "--json": (["--json", "--output", "x"], "--output has no effect"),
        },
        ("equipoise.analysis.contribution:contributions",),
    ),
    Base("data list", {"--json": ["--json"]}),
    Base(
        "data check mnist",
        {"--data": ["--data", "x"], "--only-present": "test_data_cli.py", "--json": ["--json"]},
    ),
    Base(
        "data get mnist", {"--data": ["--data", "x"], "--split": ["--split", "train"], "--download": "test_data_cli.py"}
    ),
    Base(
        "schema sums people.csv --config sites.toml --output made.json --force",
        {
            "--config": (["--config", "nowhere.toml"], "nowhere.toml"),
            "--output": ["--output", "other.json"],
            "--seed": ["--seed", "3"],
            "--site": (["--site", "north"], "--site has no effect without validation"),
            "--least": (["--least", "400"], "fewer than 400"),
            "--force": "test_shared_schema.py",
        },
    ),
    Base(
        "schema join one.json two.json",
        {"--output": (["--output", "table.csv"], "table.csv"), "--force": "test_shared_schema.py"},
    ),
    Base(
        "flower init project",
        {
            "--sites": "test_flower_project.py",
            "--schema": "test_shared_schema.py",
            "--config": "test_shared_schema.py",
            "--method": "test_tuning.py",
        },
    ),
    Base(
        "flower up project",
        {
            "--sites": "test_flower_project.py",
            "--tls": "test_flower_loopback.py",
            "--config": "test_flower.py",
            "--node-config": "test_flower_project.py",
            "--limit": (["--limit", "soon"], "not a valid float"),
            "--check": "test_flower_project.py",
            "--json": "test_flower_loopback.py",
        },
    ),
    Base("flower run project link", {"--config": "test_flower.py", "--json": "test_flower_loopback.py"}),
    Base(
        "flower check",
        {
            "--connection": "test_flower_project.py",
            "--certs": ["--certs", "nowhere"],
            "--host": (["--host", "fl.example.org"], "--host has no effect without --certs"),
            "--key": ["--key", "nowhere"],
            "--node-config": "test_flower_project.py",
            "--port": ["--port", "59999"],
            "--json": "test_flower_project.py",
        },
    ),
    Base(
        "flower certs made --site north",
        {
            "--host": ["--host", "fl.example.org"],
            "--site": ["--site", "south"],
            "--days": (["--days", "9"], "--days has no effect without --host or --renew"),
            "--renew": "test_flower_operation.py",
        },
    ),
    Base(
        "flower status runs/a",
        {
            "--connection": "test_flower_operation.py",
            "--certs": "test_flower_operation.py",
            "--json": ["--json"],
        },
    ),
    Base("flower stop link", {}),
    Base(
        "flower sites link",
        {
            "--remove": "test_flower_operation.py",
            "--yes": (["--yes"], "--yes has no effect without --remove"),
            "--json": "test_flower_operation.py",
        },
    ),
    Base("flower take states", {"--bundle": "test_shared_schema.py", "--run": "test_shared_schema.py"}),
    Base(
        "flower clean states",
        {
            "--older-than": "test_flower_operation.py",
            "--models": (["--models"], "--models has no effect without --older-than"),
            "--yes": (["--yes"], "--yes has no effect without --older-than"),
        },
    ),
    Base("work", {}),
]


# the parser
def walked(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Every command with its options, by the real parser."""
    command = command or commands()
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from walked(inner, (*path, name))
    else:
        yield " ".join(path), [p.opts[0] for p in command.params if p.param_type_name == "option"]


def named(base: Base) -> str:
    words = base.arguments.split()
    return " ".join(words[: 2 if words[0] in ("analyse", "data", "schema", "flower") else 1])


def test_every_option_has_an_entry() -> None:
    entries: dict[str, set[str]] = {}
    for base in (RUN, COMPARE, TUNE, *OTHERS):
        entries.setdefault(named(base), set()).update(base.added)
    assert {name: sorted(entries.get(name, {*()})) for name, _ in walked()} == {
        name: sorted(given) for name, given in walked()
    }


@pytest.mark.parametrize("base", [RUN, COMPARE, TUNE, *OTHERS], ids=named)
def test_files_that_cover_options_name_them(base: Base) -> None:
    for name, file in base.added.items():
        if isinstance(file, str):
            assert name in (HERE / file).read_text(), (base.arguments, name)


# what changes
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of people, a run on it, a bundle, predictions, and settings."""
    folder = tmp_path_factory.mktemp("options")
    rows = []
    for k in range(328):
        few = k >= 300
        rows.append(
            {
                "label": ("no", "yes")[k * 7 % 11 % 2],
                "age": 20 + k * 7 % 50,
                "bmi": 20 + k * 13 % 170 / 10,
                "sex": "x" if few else "mff"[k % 3],
                "client": "c4" if few else f"c{k % 4}",
                "split": ("train", "train", "test", "validation")[(k - 300) // 7 if few else k // 5 % 4],
            }
        )
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with (folder / "people.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["label", "age", "bmi", "sex", "client"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    with (folder / "p.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "sex", "client", "p", "q", "said", "who"])
        for k, row in enumerate(rows[:300]):
            said = ("no", "yes")[k % 5 % 2]
            writer.writerow(
                [row["label"], row["sex"], row["client"], k * 31 % 100 / 100, k * 17 % 90 / 100, said, k // 2]
            )
    (folder / "settings.toml").write_text('data = "table.csv"\nrounds = 1\nlr = 0.3\n\n[set]\ngroup = "sex"\n')
    (folder / "sites.toml").write_text(
        'data = "people.csv"\n\n[set]\nclient = "client"\n\n[columns]\nage = {kind = "number"}\nbmi = {kind = "number"}\n'
    )
    return folder


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    """The same with runs and a bundle."""
    from equipoise.runs import directory as runs
    from equipoise.runs.configuration import configure

    options_of = {"group": "sex", "data_seed": 0}
    config = configure(
        "fedavg", "own", data=str(place / "table.csv"), scenario_options=options_of, rounds=2, keep_checkpoints=2
    )
    with contextlib.chdir(place):  # the project of the run
        runs.start(config, place / "runs/a")
    runs.execute(place / "runs/a", progress=False)
    fed, about = runs.trained(place / "runs/a"), json.loads((place / "runs/a/manifest.json").read_text())
    fed.save_bundle(place / "bundle", data=about["data"])
    return place


def cleaned(text: str) -> str:
    """Text without times and hashes."""
    return re.sub(
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*|\b[0-9a-f]{12,}\b|\d+(\.\d+)? (milli)?s(econds?)?\b|\d+ (B|KiB|MiB)\b",
        "",
        text,
    )


def seen(call: Any, base: Base, more: list[str], patch: pytest.MonkeyPatch) -> tuple[int, Any]:
    """The status of a command, and what it leaves behind: output, files, calls that are not made."""
    calls: list[str] = []

    def captured(answer: str, *given: Any, **named_arguments: Any) -> int:
        shown = repr((given, sorted(named_arguments.items())))
        calls.append(re.sub(r" at 0x\w+|[0-9a-f]{32,}", "", shown))
        if not answer:
            raise CapturedError
        return int(answer)

    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    with patch.context() as context:
        for target in base.targets:
            module, name, answer = re.split("[:=]", f"{target}=")[:3]
            context.setattr(importlib.import_module(module), name, partial(captured, answer))
        if base.targets:
            context.setattr("equipoise.cli.run.started", lambda *_: nullcontext(Workers()))
        words = base.arguments.split()
        tiny = TINY if base in (RUN, COMPARE, TUNE) and not {"--scenario", "--config"} & {*more} else []
        status, out, err = call(*words, *tiny, *more)
    files = [p for p in Path().rglob("*") if p.is_file() and before.get(p) != p.stat().st_mtime_ns]
    written = {
        str(path): hashlib.sha256(cleaned(path.read_text(errors="replace")).encode()).hexdigest() for path in files
    }
    return status, (cleaned(out), "" if calls else cleaned(err), calls, written)


def cases(bases: list[Base]) -> list[Any]:
    return [
        pytest.param(base, added, id=f"{base.arguments} {name}")
        for base in bases
        for name, added in base.added.items()
        if not isinstance(added, str)
    ]


def require_effect(call: Any, base: Base, added: Any, patch: pytest.MonkeyPatch) -> None:
    more, refused = added if isinstance(added, tuple) else (added, None)
    status, after = seen(call, base, more, patch)
    if refused is not None:
        assert status
        assert refused in "".join(after[:2]), after
        return
    assert after[2] if base.targets else "error: " not in after[1], after
    assert seen(call, base, [], patch) != (status, after)


@pytest.mark.parametrize(("base", "added"), cases([RUN, COMPARE, TUNE]))
@pytest.mark.share(5)
def test_settings_of_training_reach_the_runs(
    place: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch, base: Base, added: Any
) -> None:
    monkeypatch.chdir(place)
    require_effect(equipoise, base, added, monkeypatch)


@pytest.mark.parametrize(("base", "added"), cases(OTHERS))
@pytest.mark.share(4)
def test_options_change_something_or_are_refused(
    trained: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch, base: Base, added: Any, tmp_path: Path
) -> None:
    import shutil

    copied = tmp_path / "copied"
    shutil.copytree(trained, copied)
    monkeypatch.chdir(copied)
    without_figures(monkeypatch)
    if "packed.zip" in base.arguments:
        assert not equipoise("pack", "runs/a", "--output", "packed.zip").status
    require_effect(equipoise, base, added, monkeypatch)


# scenarios
VALUES: dict[str, list[Any]] = {
    "task": ["regression(unit=mg)"],
    "train": [[20, 30, 40, 50]],
    "test": [[20, 30, 40, 50], 0.4],
    "clients": [4],
    "corrupted": [1],
    "alpha": [3.0],
    "corruption": ["box-blur"],
    "severity": [1],
    "samples": [100],
    "recipe": ["exact", "released", "capped"],
    "holdout": ["random"],
    "data_seed": [7],
    "server_validation": [0.1],
    "tests": ["groups"],
    "client": ["occupation"],
    "bias": ["Female"],
    "biased": [0.5],
    "drop": [0.9],
    "flip": [0.3],
}
EMBEDDED = [name for name, entry in SCENARIOS.items() if not entry.reads]


def made_of(scenario: Any) -> tuple[Any, ...]:
    """What a scenario made, as values that can be compared."""
    parts = (*scenario.clients, *scenario.tests.values(), *(scenario.client_tests or ()))
    digest = hashlib.sha256()
    for part in parts:
        for array in part:
            digest.update(array.numpy().tobytes())
    server = None if scenario.server_validation is None else len(scenario.server_validation[1])
    return digest.hexdigest(), server, [*scenario.tests], scenario.client_names, scenario.task, scenario.positive


@pytest.mark.parametrize("name", others_slow(EMBEDDED, {EMBEDDED.index("diabetes"), EMBEDDED.index("heart")}))
def test_options_of_a_scenario_change_the_data_or_are_refused(name: str) -> None:
    entry = SCENARIOS[name]
    small = {"train": [60] * 4, "test": [40] * 4, "clients": 8, "samples": 120, "corrupted": 2}
    given = {key: value for key, value in small.items() if name.startswith("digits") and key in entry.options}
    before = made_of(scenarios.load(name, **given))
    for option in entry.options:
        after = []
        for value in VALUES[option]:
            with contextlib.suppress(ValueError, TypeError):  # it is refused
                after.append(made_of(scenarios.load(name, **given | {option: value})))
        assert all(now != before for now in after) or option == "recipe", option
        assert any(now != before for now in after) or not after, option


OF_OWN: dict[str, Any] = {
    "task": "regression",
    "clients": 3,
    "alpha": 5.0,
    "test": 0.4,
    "server_validation": 0.2,
    "tests": "all",
    "size": 24,
    "measures": "auc",
    "label": "sex",
    "client": "sex",
    "group": "sex",
    "split": "sex",
    "subject": "age",
    "image": "sex",
    "leave_out": "bmi",
    "positive": "no",
    "range": "0,100",
    "keep": "sex",
    "not_missing": "f",
    "sep": ";",
    "decimal": ",",
    "encoding": "utf-16",
    "download": True,
    "inputs": "age",
    "unlabelled": "leave-out",
    "unknown": "unknown",
    "thousands": ";",
    "columns": {"age": {"kind": "category"}},
    "data_seed": 5,
}


def test_every_option_of_own_data_has_an_entry() -> None:
    assert {*OF_OWN} == {*SCENARIOS["own"].options}


@pytest.mark.parametrize(("option", "value"), OF_OWN.items())
def test_options_of_own_data_change_something_or_are_refused(place: Path, option: str, value: Any) -> None:
    def loaded(**given: Any) -> tuple[Any, ...]:
        scenario = scenarios.load("own", data=place / "people.csv", **given)
        return *made_of(scenario), scenario.attributes, scenario.measures, scenario.manifest["notes"]

    before = loaded()
    try:
        after = loaded(**{option: value})
    except (ValueError, TypeError):
        return
    assert after != before


# from Python
KEYWORDS: dict[str, Any] = {
    "method": "afl",
    "solver": eq.SGD(0.5),
    "settings": Settings(epochs=3),
    "tests": {"b": "other"},
    "transform": lambda x: 2 * x,
    "names": [*"abcd"],
    "groups": ["all"] * 4,
    "client_tests": ["other"] * 4,
    "head": "0",
    "task": "regression",
    "measures": ["auc"],
    "contribution": [0.1, 0.2, 0.3, 0.4],
    "collaborative": True,
    "classes": ["no", "yes"],
    "attributes": {"sex": ["f", "m"]},
    "positive": 0,
    "least_group": 41,
    "select": "best-validation",
    "seed": 3,
    "epochs": 2,
    "steps": 2,
    "batch_size": 4,
    "participation": 0.5,
    "availability": 0.3,
    "joins": 1,
    "dropout": 0.5,
    "time_limit": 1.1,
    "speed_spread": 0.5,
    "attack": "alie",
    "attackers": 0.25,
    "attack_scale": 2.0,
    "validation": 0.3,
    "contribution_rounds": 2,
    "engine": "sequential",
    "precision": "bf16",
    "norm_limit": 1.0,
    "workers": 3,
}
AS_BEFORE = {  # by what they change, or need
    "net",
    "clients",  # what is trained
    "memory",  # where samples are held
    "server_validation",  # of methods that judge models by it
    "neurons",  # of methods that divide networks
    "population",  # of sites
    "quorum",  # if clients fail
    "device",  # a second one is rare
    "chunk",  # of stacks
}


def sample_set(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > seed / 10).long()


def trained_with(rounds: int = 2, fit: dict[str, Any] | None = None, **given: Any) -> tuple[Any, ...]:
    """What a federation recorded, or why it was refused."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    other = sample_set(40, 8)
    for name in ("tests", "client_tests"):
        if name in given:
            listed = given[name]
            given[name] = [other] * len(listed) if isinstance(listed, list) else dict.fromkeys(listed, other)
    try:
        fed = eq.Federation(
            net, [sample_set(30, s) for s in range(4)], **{"tests": {"all": sample_set(40, 9)}, **given}
        )
        fed.fit(rounds, progress=False, **fit or {})
    except (ValueError, TypeError) as error:
        return ("refused", str(error))
    records = [{key: value for key, value in record.items() if key != "seconds"} for record in fed.records]
    meta = {key: value for key, value in fed.history.meta.items() if key not in ("environment", "machine")}
    return json.dumps([records, meta], default=str, sort_keys=True), fed.workers, str(fed.engine_choice)


def test_every_keyword_of_a_federation_has_an_entry() -> None:
    keywords = {*inspect.signature(eq.Federation).parameters} - {"changes"} | {f.name for f in fields(Settings)}
    assert {*KEYWORDS} | AS_BEFORE == keywords


@pytest.mark.parametrize("name", KEYWORDS)
def test_keywords_of_a_federation_change_something_or_are_refused(name: str) -> None:
    assert trained_with(**{name: KEYWORDS[name]}) != trained_with()


SWEEPS: dict[Any, dict[str, Any]] = {
    eq.compare: {
        "seeds": 1,
        "rounds": 3,
        "directory": "runs",
        "last": 1,
        "stop": eq.EarlyStopping(1),
        "tune": 1,
        "by": "worst",
        "on": "slurm",
    },
    eq.tune: {
        "rounds": 3,
        "draws": 3,
        "by": "worst",
        "trials": 2,
        "validation": 0.4,
        "halving": False,
        "sampler": "nowhere",
        "seed": 1,
        "search": {"lr": [0.1, 0.2]},
        "directory": "runs",
        "on": "slurm",
    },
}
OF_SWEEPS = {"net", "clients", "methods", "given", "progress"}  # as of a federation, and what is printed meanwhile


def swept(function: Any, place: Path, **given: Any) -> tuple[Any, ...]:
    """The document of a comparison or a choice without times, or why it was refused; and the files it left."""
    from unittest import mock

    with contextlib.chdir(place), mock.patch("time.perf_counter", return_value=0.0), torch.random.fork_rng():
        torch.manual_seed(0)
        net, clients = torch.nn.Linear(6, 2), [sample_set(30, s) for s in range(3)]
        usual = {"rounds": 8, "progress": False} | ({"seeds": 2} if function is eq.compare else {"draws": 2})
        given |= {"tests": {"all": sample_set(40, 9)}} if function is eq.compare else {}
        try:
            result = function(net, clients, ["fedavg", "fedprox"], **usual | given)
        except (ValueError, TypeError) as error:
            return ("refused", str(error))
        document = result.document if function is eq.compare else result.document()
    text = re.sub(r'"(seconds|chosen)": [^,}]+', "", json.dumps(document, default=str, sort_keys=True))
    return text, sorted(path.name for path in place.rglob("*"))


def test_every_keyword_of_comparisons_and_choices_has_an_entry() -> None:
    for function, keywords in SWEEPS.items():
        assert {*keywords} | OF_SWEEPS == {*inspect.signature(function).parameters}


@pytest.mark.parametrize(
    ("function", "name"), [(function, name) for function, keywords in SWEEPS.items() for name in keywords]
)
@pytest.mark.share(4)
def test_keywords_of_comparisons_and_choices_change_something_or_are_refused(
    function: Any, name: str, tmp_path: Path
) -> None:
    before = swept(function, tmp_path)
    assert before == swept(function, tmp_path)
    assert swept(function, tmp_path, **{name: SWEEPS[function][name]}) != before


def test_keywords_without_effect_are_refused_or_stated() -> None:
    assert "chunk belongs to the engine stacked" in trained_with(engine="sequential", chunk=2)[1]
    assert "no effect without a directory" in trained_with(fit={"keep_checkpoints": 2})[1]
    assert "no effect without a directory" in trained_with(fit={"checkpoint_every": 2})[1]
    alone = trained_with(method="standalone", attack="sign-flip", attackers=0.25)[0]
    assert "without effect here, as it is no federated learning: attack sign-flip, attackers 0.25" in alone
    assert "availability 0.5" in trained_with(method="centralised", availability=0.5)[0]
    assert "without effect" not in trained_with(method="standalone", availability=0.5)[0]


def test_a_report_says_if_an_option_changes_no_number(
    trained: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    without_figures(monkeypatch)
    assert "no number" not in equipoise("report", "runs/a", "--least-group", "5").err  # of seven people
    same = equipoise("report", "runs/a", "--least-group", "10")
    assert "--least-group: no number of these runs depends on it" in same.err
    assert "--positive: no number" in equipoise("report", "runs/a", "--positive", "yes").err


def test_values_of_an_audit_that_nothing_reads_are_refused(place: Path) -> None:
    given = {"label": "label", "group": "sex"}
    with pytest.raises(ValueError, match=r"threshold=0\.3 has no effect"):
        eq.audit(place / "p.csv", prediction="said", threshold=0.3, **given)
    with pytest.raises(ValueError, match="probability and positive are for classes"):
        eq.audit(place / "p.csv", prediction="p", positive="yes", task="regression", **given | {"label": "q"})


# tuning
@pytest.mark.parametrize(
    ("method", "typed", "searched"),
    [("fedprox", [], True), ("fedprox(mu=0.01)", [], False), ("fedprox", ["--set", "fedprox.mu=0.01"], False)],
)
@pytest.mark.slow
def test_what_was_typed_is_not_searched_and_what_was_searched_is_run(
    tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch, method: str, typed: list[str], searched: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "fedavg", method, *TINY, "--lr", "0.002", "--tune", "4", "--no-report", "--name", "t", *typed]
    status, out, err = equipoise(*words)
    assert not status, err
    tuning = json.loads(Path("runs/t/choosing/tuning.json").read_text())["methods"]
    for label, chosen in tuning.items():
        values = chosen["defaults"] | chosen["settings"]
        used = next(tomllib.loads(path.read_text()) for path in Path("runs/t").glob(f"{label[:7]}*-seed0/config.toml"))
        assert used["lr"] == pytest.approx(values["lr"])
        assert used["tuned"]["settings"] == chosen["settings"]
    own = tuning[method]
    assert ("fedprox.mu" in own["spaces"]) is searched
    assert own["given"] == ({} if searched else {"fedprox.mu": 0.01})
    assert ("not searched, as it was given: fedprox.mu=0.01" in out) is not searched


def test_a_space_of_what_was_typed_is_refused() -> None:
    clients = [sample_set(30, s) for s in range(3)]
    given: dict[str, Any] = {"rounds": 1, "draws": 2, "progress": False}
    for methods in (["fedprox(mu=0.3)"], {"a": "fedprox(mu=0.01)"}):
        with pytest.raises(ValueError, match=r"search fedprox\.mu: it has a value already"):
            eq.tune(torch.nn.Linear(6, 2), clients, methods, search={"fedprox.mu": [0.1, 1]}, **given)
    both = {"a": "fedprox(mu=0.01)", "b": "fedprox"}
    tuning = eq.tune(torch.nn.Linear(6, 2), clients, both, search={"fedprox.mu": [0.1, 1]}, **given)
    assert [label for label, choice in tuning.choices.items() if "fedprox.mu" in choice.spaces] == ["b"]
