"""A suite of scenarios: methods tuned and tested alike, cell by cell, on several machines, and beside them a method of one's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.runs import benchmark
from equipoise.runs.benchmark import Cell, cells, document, read_suite, run, shard_of
from equipoise.runs.configuration import RunError
from equipoise.system.seals import sealed_json
from run_helpers import SIZES, equipoise as equipoise, here as here

pytestmark = pytest.mark.usefixtures("here")

FILE = f"""
title = "Tiny"
about = "For tests."
methods = ["fedavg", "qffl", "fedsac"]
draws = 2
by = "mean"
seeds = 2

[[scenario]]
name = "tiny"
scenario = "digits"
options = {{ train = {SIZES["train"]}, test = {SIZES["test"]}, clients = 4 }}
train = {{ rounds = 2, epochs = 1, batch_size = 8, network = "mlp", network_options = {{ hidden = [8] }} }}
"""


@pytest.fixture
def suite(tmp_path: Path) -> benchmark.Suite:
    (tmp_path / "tiny.toml").write_text(FILE)
    return read_suite(str(tmp_path / "tiny.toml"))


def test_shards_divide_the_cells() -> None:
    suite = read_suite("fair-small")
    every = cells(suite, Path())
    assert len(every) == len(suite.scenario) * len(suite.methods)
    parts = [cells(suite, Path(), shard=(k, 3)) for k in (1, 2, 3)]
    names = sorted((cell.part.name, cell.method) for part in parts for cell in part)
    assert names == sorted((cell.part.name, cell.method) for cell in every)


def test_the_small_suite_is_what_it_promises() -> None:
    suite = read_suite("fair-small")
    assert (len(suite.methods) >= 20, len(suite.scenario), suite.seeds, suite.draws) == (True, 5, 5, 8)
    assert suite.methods[0] == "fedavg"
    for part in suite.scenario:
        Cell(part, "fedavg", Path()).candidates(["fedavg"]).config("fedavg", {})  # or a wrong option


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_wrong_shards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--shard must be K/N"):
        shard_of(text)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("draws = 2", "draws = 0", "draws: Input should be greater than or equal to 1; found 0"),
        (
            "draws = 2",
            'draws = "2"\nsedes = 1',
            "valid integer; found '2'. sedes: Unknown key 'sedes'. Did you mean 'seeds'?",
        ),
        ("[[scenario]]", "[scenario]", "expected [[scenario]], once for each; found [scenario]"),
        ("[[scenario]]", "[scenario]\n[scenario]", "Begin each scenario with [[scenario]], in two brackets"),
        ("[[scenario]]", "[[scenarios]]", "Did you mean 'scenario'?"),
        (
            'name = "tiny"',
            'name = "tiny"\nclients = 4',
            "clients is an option of the data: options = { clients = ... }",
        ),
        ("rounds = 2", "clients = 4", "clients is an option of the data: options = { clients = ... }"),
        ("clients = 4", "client = 4", "Did you mean 'clients'? All: clients, data_seed, task, test, train.\n"),
        ("rounds = 2", "rounds = 0", "x.toml: scenario tiny: rounds must be a whole number >= 1; found 0"),
        ('name = "tiny"', 'name = "../zz"', "scenario '../zz': its name is that of a folder, so it may hold letters"),
        ('name = "tiny"', 'name = ""', "for example 'mine'"),
        ('name = "tiny"', 'name = "a b/c"', "for example 'a-b-c'"),
        ('name = "tiny"', 'name = "conditions.json"', "is none of conditions.json"),
        ("clients = 4", "lr = 4", "lr is a setting of training: train = { lr = ... }"),
        ("clients = 4", "clients = 5", "x.toml: scenario tiny: digits: clients must be a multiple of 4"),
        ('scenario = "digits"', 'scenario = "digots"', "Did you mean 'digits'"),
        ('"qffl"', '"qfll"', "Did you mean 'qffl'"),
        ('title = "Tiny"', "title = ", "cannot be read"),
        ('scenario = "digits"\noptions', 'scenario = "diabetes"\n# options', "numbers to predict"),
        ("rounds = 2", "runds = 2", "Did you mean 'rounds'"),
        ('name = "tiny"', 'name = "tiny"\nskip = { qfll = "slow" }', "Did you mean 'qffl'"),
        (
            'name = "tiny"',
            'name = "tiny"\nskip = { fedavg = "slow" }',
            "all methods are compared with the first, fedavg",
        ),
        ('scenario = "digits"\noptions', 'scenario = "own"\n# options', 'are, data = "table.csv" for example.'),
        ('"qffl"', '"fedavg"', "methods: fedavg is given twice. Name each once."),
        ('by = "mean"', 'by = "wrst"', "by must be one of mean"),
        ('by = "mean"', 'by = "eo"', "by=eo needs classes, and groups of people"),
        ('by = "mean"', 'by = "collaboration"', "needs data for collaborative fairness"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, before: str, after: str, text: str) -> None:
    (tmp_path / "x.toml").write_text(FILE.replace(before, after))
    with pytest.raises((RunError, ValueError)) as error:
        read_suite(str(tmp_path / "x.toml"))
    assert text in f"{error.value}\n"
    for name, advice in (("fair-smal", "Did you mean 'fair-small'"), ("nowhere.toml", "or one of fair-small")):
        with pytest.raises(RunError, match=advice):
            read_suite(name)


def test_the_users_own_data_are_a_scenario(tmp_path: Path) -> None:
    rows = [f"{k % 7},{k % 5},{'yes' if k % 7 > 3 else 'no'},{'ab'[k % 2]}" for k in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["age,weight,sick,hospital", *rows]))
    options = 'scenario = "own"\ndata = "PATH"\noptions = { label = "sick", client = "hospital" }\n# options'
    text = FILE.replace('scenario = "digits"\noptions', options.replace("PATH", "t.csv"))
    (tmp_path / "x.toml").write_text(text)
    suite = read_suite(str(tmp_path / "x.toml"))
    run(suite, tmp_path / "b", jobs=1)
    cell = document(suite, tmp_path / "b")["cells"]["tiny"]["qffl"]
    assert cell["failed"] is None
    assert cell["mean"] >= 0
    conditions = tmp_path / "b" / "conditions.json"
    before = json.loads(conditions.read_text())
    before["scenario tiny"]["data"] = "data/t.csv"  # as an earlier version
    conditions.write_text(sealed_json({key: value for key, value in before.items() if key != "seal"}))
    run(suite, tmp_path / "b", jobs=1)
    (tmp_path / "t.csv").write_text("\n".join(["age,weight,sick,hospital", *rows[1:]]))
    with pytest.raises(
        RunError, match=r"has results with other data: the content of .*t\.csv in scenario tiny\. Choose"
    ):
        run(suite, tmp_path / "b", jobs=1)


def test_a_folder_has_results_of_one_network_with_one_start(
    suite: benchmark.Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "bnet.py": "import sizes, torch\ndef net(weights): return torch.nn.Flatten()",
        "sizes.py": "H = 8",
        "start.pt": "8",
    }.items():
        Path(name).write_text(text)
    train = {"network": "bnet.py:net", "network_options": {"weights": "start.pt"}}
    part = suite.scenario[0].model_copy(update={"train": train, "skip": dict.fromkeys(suite.methods, "is slow")})
    suite = suite.model_copy(update={"scenario": [part]})
    run(suite, Path("b"))
    run(suite, Path("b"))
    for name in ("start.pt", "sizes.py"):
        before = Path(name).read_text()
        Path(name).write_text("H = 9")
        with pytest.raises(
            RunError, match=f"^b has results with other data: the content of {name} in scenario tiny. Choose"
        ):
            run(suite, Path("b"))
        Path(name).write_text(before)


@pytest.mark.parametrize("name", ["chosen.toml", "config.toml", "comparison.json"])
def test_a_folder_of_something_else_is_refused(suite: benchmark.Suite, tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RunError, match="is not empty and holds no results of a suite"):
        run(suite, tmp_path)


def test_cells_are_the_same_on_one_machine_and_on_two(
    suite: benchmark.Suite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for k in (2, 1):
        run(suite, tmp_path / "two", shard=(k, 2), jobs=1)
    run(suite, tmp_path / "one", jobs=2)
    one, two = (document(suite, tmp_path / name) for name in ("one", "two"))
    for results in (one, two):
        for result in results["cells"]["tiny"].values():
            result.pop("seconds"), result.pop("tuning_seconds")
    assert one == two
    failed = one["cells"]["tiny"]["fedsac"]
    assert failed["mean"] is None
    assert failed["failed"] is None
    assert "validation data of the server's own" in failed["skipped"]
    cell = one["cells"]["tiny"]["qffl"]
    histories = [
        eq.History.from_run(tmp_path / "one" / "tiny" / "runs" / f"{method}-seed{seed}")
        for method in ("fedavg", "qffl")
        for seed in (0, 1)
    ]
    compared = eq.Comparison.of(histories)
    row = compared["methods"][1]
    assert (cell["mean"], cell["worst"], cell["std"]) == tuple(row[key]["mean"] for key in ("avg", "worst", "std"))
    assert cell["versus"]["mean"] == row["versus"]["avg"]
    assert compared["notes"][0].startswith("Chosen by the mean over groups")
    assert (tmp_path / "one" / cell["tuning"]).exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("metrics.jsonl")}
    shutil.rmtree(tmp_path / "one" / "tiny" / "runs" / "qffl-seed1")
    run(suite, tmp_path / "one", jobs=1)  # of what is missing only
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("metrics.jsonl")}
    assert [path.parent.name for path in after if before.get(path) != after[path]] == ["qffl-seed1"]
    Cell(suite.scenario[0], "qffl", tmp_path / "one").fail("the disk was full")
    for retry, mean in {False: None, True: cell["mean"]}.items():
        run(suite, tmp_path / "one", jobs=1, retry=retry)
        result = document(suite, tmp_path / "one")["cells"]["tiny"]["qffl"]
        assert result["mean"] == mean
        assert [result[key] for key in ("settings", "defaults", "tuning")] == [
            cell[key] for key in ("settings", "defaults", "tuning")
        ]
        assert {*result["defaults"]} == {"lr", "qffl.q"}
    assert "Run again: qffl on tiny, fedsac on tiny." in caplog.text
    run(suite, tmp_path / "one", methods=["qffl"], retry=True)
    assert "Run again: nothing, as no cell failed to run" in caplog.text
    assert one["scenarios"][0]["shown"] == "mean over the last 2 evaluated rounds"


@pytest.mark.share(4)
def test_results_are_those_of_the_suite_and_against_its_reference(suite: benchmark.Suite, tmp_path: Path) -> None:
    run(suite, tmp_path / "b", methods=["qffl", "fedprox"], jobs=1)
    results = document(suite, tmp_path / "b")["cells"]["tiny"]  # with what was submitted before
    assert [*results] == [*suite.methods, "fedprox"]
    assert results["fedavg"] is None
    assert [results[method]["versus"] for method in ("qffl", "fedprox")] == [None, None]
    other = suite.scenario[0].model_copy(update={"train": {**suite.scenario[0].train, "rounds": 3}})
    for change, text in (
        ({"draws": 3}, "draws is 2 there and 3 here"),
        ({"by": "worst"}, "by is mean there and worst here"),
        ({"scenario": [other]}, "scenario tiny: train: rounds is 2 there and 3 here"),
    ):
        with pytest.raises(RunError, match=f"has results with other settings: {text}. Choose another --name."):
            run(suite.model_copy(update=change), tmp_path / "b", jobs=1)


def test_a_rule_of_ones_own_joins_the_stored_results(
    suite: benchmark.Suite, tmp_path: Path, equipoise: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n\nimport equipoise as eq\n\n\n@dataclass(frozen=True)\nclass Mine(eq.Rule):\n"
        "    strength: float = eq.number(0.5, low=0, search=eq.uniform(1, 2))\n"
    )
    own = f"{tmp_path / 'mine.py'}:Mine"
    assert "uniform(1, 2)" in equipoise("methods", own).out
    assert "Did you mean 'Mine'" in equipoise("benchmark", "submit", own[:-1], "--suite", tmp_path / "tiny.toml").err
    words = ("--suite", tmp_path / "tiny.toml", "--runs", tmp_path, "--name", "b", "--jobs", 1, "--json")
    done = equipoise("benchmark", "submit", own, *words)
    assert done.status == 0, done.err
    board = json.loads(done.out)
    assert board["cells"]["tiny"]["fedavg"] is None  # was not run here
    assert "lacks results of fedavg, with which mine.py:Mine is compared" in caplog.text
    result = board["cells"]["tiny"][own]
    assert result["mean"] is not None
    assert 1 <= result["settings"].get("Mine.strength", 1) <= 2
    assert "Not run on tiny: fedavg, qffl, fedsac." in equipoise("benchmark", "submit", own, *words[:-1]).out
    for name in ("leaderboard.html", "leaderboard.csv", "leaderboard.tex"):
        assert (tmp_path / "b" / name).exists()
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("uniform(1, 2)", "uniform(5, 6)"))
    changed = json.loads(equipoise("benchmark", "submit", own, *words).out)["cells"]["tiny"][own]["tuning"]
    assert changed != result["tuning"]  # a rule whose code has changed is another one
    wrong = equipoise("benchmark", "submit")
    assert (wrong.status, "name your rule" in wrong.err) == (2, True)
