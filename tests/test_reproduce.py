"""A paper's table from a file: planned, run cell by cell, and set beside the published numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from equipoise.federation.history import History
from equipoise.networks.resnet import resnet18
from equipoise.report import reproduction
from equipoise.report.reproduction import Block, ReproducedValue, Result
from equipoise.runs import agreement, reproduce
from equipoise.runs.experiment import read_experiment
from equipoise.system import workers
from equipoise.system.errors import InputError
from run_helpers import InProcess

MINE = """
title = "Two ways"
paper = "Mine"
citation = "Nobody 2026"
about = "A small one."
seeds = 2

[columns]
AVG = "avg"
street = "group:street"
loss = "worst"

[[part]]
name = "digits"
title = "Digits"
scenario = "fedheal-digits"
columns = ["AVG"]
set = {"fedheal.tau" = 0.4, "fedprox.mu" = 0.5}
train = {rounds = 200}

[part.embedded]
scenario = "digits"
options = {clients = 4, train = [8, 8, 8, 8], test = [10, 10, 10, 10]}
network = "mlp(hidden=[8])"
train = {rounds = 2, epochs = 1, batch_size = 4, lr = 0.1}
columns = ["AVG", "street"]

[[row]]
name = "Plain & simple"

[[row]]
name = "FedHEAL"
method = "fedheal"
set = {"fedheal.beta" = 0.2}
train = {rounds = 1}

[[row]]
name = "Unknown"
skip = "its authors keep it to themselves"

[[ours]]
what = "Everything."
why = "It is an example."
"""
PUBLISHED = "# source: nobody\nrow,part,column,mean,std\nPlain & simple,digits,AVG,70.5,1.5\nFedHEAL,digits,AVG,72,\nUnknown,digits,AVG,80,\n"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text(MINE)
    (tmp_path / "mine.csv").write_text(PUBLISHED)
    return str(tmp_path / "mine.toml")


# reading
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('columns = ["AVG"]', 'columns = ["AVGE"]', "part digits: Unknown column 'AVGE'.*AVG"),
        ('AVG = "avg"', 'AVG = "average"', "column AVG: Unknown statistic 'average'"),
        ('name = "FedHEAL"', 'name = "Plain & simple"', r"two entries \[\[row\]\] are called 'Plain & simple'"),
        ('AVG = "avg"', 'AVG = "avg balance"', "column AVG: Unknown measure 'balance'.*balanced"),
        ("seeds = 2", "seeds = 0", "seeds: .*greater than or equal to 1; found 0"),
        ("seeds = 2", "seed = 2", "seed: Unknown key 'seed'. Did you mean 'seeds'"),
        ("seeds = 2", "seeds = ", "Invalid value"),
        ('method = "fedheal"\n', 'method = "fedheal"\nparts = ["digit"]\n', "row FedHEAL: Unknown part 'digit'"),
    ],
)
def test_a_file_that_is_not_right_is_refused(mine: str, old: str, new: str, message: str) -> None:
    path = Path(mine)
    assert old in MINE
    path.write_text(MINE.replace(old, new))
    with pytest.raises(InputError, match=message):
        read_experiment(mine)


def test_unknown_names_get_a_suggestion(mine: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown experiment 'fedheal/table22'.*fedheal/table2"):
        read_experiment("fedheal/table22")
    with pytest.raises(InputError, match="there is no such file"):
        read_experiment(str(tmp_path / "other.toml"))
    with pytest.raises(InputError, match=r"Unknown row 'fedhael'.*FedHEAL"):
        reproduce.plan(mine, tmp_path, embedded=True, rows=["fedhael"])
    with pytest.raises(InputError, match=r"--data DIR.*--embedded"):
        reproduce.plan(mine, tmp_path)
    with pytest.raises(InputError, match="nothing to run: its authors keep it"):
        reproduce.plan(mine, tmp_path, embedded=True, rows=["Unknown"])


def test_a_plan_is_complete(mine: str, tmp_path: Path) -> None:
    plan = reproduce.plan(mine, tmp_path / "r", embedded=True)
    assert [(c.row, c.seed) for c in plan.runs] == [(r, s) for r in ("Plain & simple", "FedHEAL") for s in (0, 1)]
    plain, heal = plan.runs[0].config, plan.runs[2].config
    assert (plain.rounds, heal.rounds) == (2, 1)  # the row's before the part's
    assert plain.method == "fedavg"
    assert "tau=0.4" in heal.method
    assert "beta=0.2" in heal.method
    assert plain.network_options == {"hidden": [8]}
    assert (plain.label, heal.label) == ("Plain & simple", "FedHEAL")
    assert len({c.path for c in plan.runs}) == 4
    assert sum(c.config.rounds for c in plan.runs) == 6
    assert plan.skipped == {("digits", "Unknown"): "its authors keep it to themselves"}
    fewer = reproduce.plan(mine, tmp_path / "r", embedded=True, seeds=1, rounds=1, rows=["FedHEAL"])
    assert [(c.seed, c.config.rounds) for c in fewer.runs] == [(0, 1)]


# running
@pytest.mark.slow
def test_cells_are_run_once_and_shown_beside_the_paper(mine: str, tmp_path: Path) -> None:
    plan = reproduce.plan(mine, tmp_path / "r", embedded=True)
    seen: list[tuple[int, int]] = []
    assert reproduce.run(plan, jobs=2, on_progress=lambda done, total: seen.append((done, total))) == {}
    assert seen[-1] == (6, 6)
    written = [(c.path / "metrics.jsonl").read_bytes() for c in plan.runs]
    times = [(c.path / "summary.json").stat().st_mtime_ns for c in plan.runs]
    (plan.runs[1].path / "summary.json").unlink()  # as if it had been killed before the last step
    assert reproduce.run(plan, jobs=2) == {}
    assert [(c.path / "metrics.jsonl").read_bytes() for c in plan.runs] == written
    again = [(c.path / "summary.json").stat().st_mtime_ns for c in plan.runs]
    assert [k for k in range(4) if again[k] != times[k]] == [1]  # the others were not touched
    result = agreement.collect(plan)
    (part,) = result.parts
    assert part.columns == ("AVG", "street")
    assert part.rows == ("Plain & simple", "FedHEAL", "Unknown")
    entry = part.entries["Plain & simple", "AVG"]
    values = [History.from_run(c.path).summary()["avg"] for c in plan.runs[:2]]
    assert entry.values == pytest.approx(values)
    assert entry.mean == pytest.approx(np.mean(values))
    assert entry.std == pytest.approx(np.std(values, ddof=1))
    assert entry.ci95 == pytest.approx(stats.t.ppf(0.975, 1) * np.std(values, ddof=1) / math.sqrt(2))
    assert (entry.paper, entry.paper_std) == (70.5, 1.5)
    assert math.isnan(part.entries["Unknown", "AVG"].mean)
    assert part.missing == {"Unknown": "its authors keep it to themselves"}
    street = [History.from_run(c.path).summary()["groups"]["street"] for c in plan.runs[:2]]
    assert part.entries["Plain & simple", "street"].values == pytest.approx(street)


@pytest.mark.slow
def test_a_cell_that_fails_does_not_take_the_others_along(mine: str, tmp_path: Path) -> None:
    path = Path(mine)
    path.write_text(MINE.replace("train = {rounds = 1}", "train = {rounds = 1, lr = 1e30}"))
    plan = reproduce.plan(mine, tmp_path / "r", embedded=True, seeds=1)
    failed = reproduce.run(plan, jobs=2)
    assert list(failed) == [("digits", "FedHEAL")]
    assert failed["digits", "FedHEAL"].startswith("seed 0: ")
    (part,) = agreement.collect(plan, failed).parts
    assert len(part.entries["Plain & simple", "AVG"].values) == 1
    assert part.missing["FedHEAL"] == failed["digits", "FedHEAL"]


def test_experiments_share_their_runs(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Worker", InProcess)
    other = tmp_path / "other.toml"
    other.write_text(MINE.replace('name = "FedHEAL"', 'name = "Ours"').replace("beta = 0.2", "beta = 0.20"))
    first, second = (
        reproduce.plan(name, tmp_path / "r", embedded=True, seeds=1, rows=[row])
        for name, row in ((mine, "FedHEAL"), (str(other), "Ours"))
    )
    reproduce.run(first)
    found = reproduce.histories(second)  # nothing was run for it
    assert [h.label for h in found["digits", "Ours"]] == ["Ours"]
    assert second.runs[0].path == first.runs[0].path
    changed = reproduce.plan(mine, tmp_path / "r", embedded=True, seeds=1, rounds=3, rows=["FedHEAL"])
    assert changed.runs[0].path != first.runs[0].path
    assert reproduce.histories(changed) == {}


def measured(clients: list[float], groups: list[float], **more: object) -> History:
    """Seven rounds with the accuracies of one client and of one test set."""
    records = [
        {"round": t, "groups": {"test": {"accuracy": g, "loss": 1.0}}, "clients": {"accuracy": [c, c]}}
        for t, (c, g) in enumerate(zip(clients, groups, strict=True))
    ]
    return History(tuple(records), {"method": "fedavg", **more})


def test_what_stands_beside_the_last_round_is_of_the_last_round() -> None:
    """The mean over clients that all have the global model is the global model's."""
    run = measured([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8])
    assert agreement.value(run, "mean_client") == pytest.approx(80)
    assert agreement.value(run, "last") == pytest.approx(80)
    assert agreement.value(run, "avg") == pytest.approx(100 * (0.3 + 0.4 + 0.5 + 0.6 + 0.8) / 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedheal/table2", "of the last five rounds that were evaluated, in percent"),
        ("fedld/table1", "of the last round that was evaluated, in percent"),
        ("fedism/table5", "in MiB, of one client in one round"),
        pytest.param("fedsac/table1", "100 times the correlation, in the last round that was evaluated", marks=pytest.mark.slow),
        ("fedsac/figure3", "fairness 100 times the correlation, in the last round that was evaluated; max of the last round"),
    ],
)  # fmt: skip
def test_a_table_says_of_which_rounds_and_in_which_unit_it_is(name: str, said: str, tmp_path: Path) -> None:
    rows = [read_experiment(name).row[0].name]
    result = agreement.collect(reproduce.plan(name, tmp_path, embedded=True, seeds=1, rounds=1, rows=rows))
    assert said in reproduction.sentences(result, result.parts[0])[0]


def test_what_makes_numbers_less_than_they_seem_is_said(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = reproduce.plan(mine, tmp_path, embedded=True, rounds=1, rows=["Plain & simple"])
    data = {0: "one", 1: "one"}

    def found(_: object) -> dict[tuple[str, str], list[History]]:
        values = {0: [0.5, 0.6], 1: [0.5, math.nan]}
        runs = [measured(v, v, seed=seed, data={"sha256": data[seed]}) for seed, v in values.items()]
        return {("digits", "Plain & simple"): runs}

    monkeypatch.setattr(agreement, "histories", found)
    (part,) = agreement.collect(plan).parts
    assert part.doubts == (
        "These are numbers after 1 round; the experiment has 2.",
        "Not defined, and left out of the means: Plain & simple AVG with 1 of 2, Plain & simple street with 2 of 2 seeds.",
    )
    assert reproduction.sentences(agreement.collect(plan), part)[1:3] == list(part.doubts)
    whole = reproduce.plan(mine, tmp_path, embedded=True)
    (part,) = agreement.collect(whole).parts
    assert not any("numbers after" in said for said in part.doubts)


def test_a_run_that_diverged_is_said_below_the_table(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = reproduce.plan(mine, tmp_path, embedded=True, seeds=1, rows=["FedHEAL"])
    bad = {"round": 0, "groups": {"test": {"accuracy": 0.1, "loss": None}}, "clients": {"accuracy": [0.1]}}
    run = History((bad,), {"method": "fedheal"})
    monkeypatch.setattr(agreement, "histories", lambda _: {("digits", "FedHEAL"): [run]})
    (part,) = agreement.collect(plan).parts
    assert "FedHEAL, seed 0: training diverged: its test loss is not a finite number." in part.doubts


def test_runs_on_files_that_changed_meanwhile_are_not_mixed_in_silence(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = reproduce.plan(mine, tmp_path, embedded=True, seeds=1)
    data = {"Plain & simple": "one", "FedHEAL": "one"}

    def found(_: object) -> dict[tuple[str, str], list[History]]:
        return {("digits", row): [measured([0.5], [0.5], seed=0, data={"sha256": sha})] for row, sha in data.items()}

    monkeypatch.setattr(agreement, "histories", found)
    (part,) = agreement.collect(plan).parts
    assert not any("same data" in said for said in part.doubts)
    data["FedHEAL"] = "other"
    (part,) = agreement.collect(plan).parts
    assert any("Not all of these runs saw the same data" in said for said in part.doubts)


def test_parts_that_cannot_be_run_are_named(tmp_path: Path) -> None:
    plan = reproduce.plan("fedheal/table5", tmp_path, embedded=True, seeds=1, rounds=1, rows=["FedAvg"])
    result = agreement.collect(plan)
    assert [part.name for part in result.parts] == ["digits"]
    said = "Not run: Office-Caltech10: there is no embedded stand-in for these data."
    assert said in result.note
    assert said in reproduction.page(result).markdown()
    assert said in json.dumps(reproduction.as_dict(result))
    only = reproduce.plan(
        "fedheal/table5", tmp_path, embedded=True, seeds=1, rounds=1, rows=["FedAvg"], parts=["digits"]
    )
    assert "Not run" not in agreement.collect(only).note


def test_weights_decide_the_run_by_what_is_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace('"mlp(hidden=[8])"', '"resnet18(stem=small)"'))
    file = tmp_path / "weights.pth"
    stems = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.save(resnet18((3, 32, 32), 10, stem="small").state_dict(), file)
        os.utime(file, ns=(seed, seed))
        plan = reproduce.plan(str(path), tmp_path, embedded=True, seeds=1, rows=["Plain & simple"], weights=str(file))
        stems.add(plan.runs[0].path)
    assert len(stems) == 2
    path.write_text(MINE.replace('network = "mlp(hidden=[8])"\n', ""))
    with pytest.raises(InputError, match=r"part digits: digits has a network of its own .*--weights"):
        reproduce.plan(str(path), tmp_path, embedded=True, weights=str(file))


# showing
def shown(*, embedded: bool) -> Result:
    nan = math.nan
    entries = {
        ("a_1", "AVG"): ReproducedValue((70.0, 72.0), 71.0, 1.4, 2.0, 70.5, 1.5),
        ("b", "AVG"): ReproducedValue((60.0, 61.0), 60.5, 0.7, 1.0, 65.0, None),
        ("c", "AVG"): ReproducedValue((-5.0, -5.0), -5.0, 0.0, 0.0, 66.0, None),
        ("d", "AVG"): ReproducedValue((), nan, nan, nan, 80.0, None),
    }
    part = Block("digits", "Digits & co", "digits", ("AVG",), ("a_1", "b", "c", "d"), entries, {"d": "not released"}, 2)
    return Result(
        "Mine: title", "Nobody", "About.", "", embedded, (part,), (("Mu is 1 %.", "Why not?"),), {"digits": "5 rounds"}
    )


def test_every_form_says_the_same() -> None:
    real, stand_in = shown(embedded=False), shown(embedded=True)
    text = reproduction.page(real).markdown()
    assert "| a_1 | 71.00 ±2.00 paper 70.50 ±1.50 (+0.50) |\n" in text
    assert "| c | −5.00 ±0.00 paper 66.00 (−71.00) |\n" in text
    assert "| d | – paper 80.00 |\n" in text
    assert "The order of our rows has a Kendall's tau of +0.33 with the paper's, where 1 is the same." in text
    assert "d: not released." in text
    assert "- Mu is 1 %. Why not?" in text
    other = reproduction.page(stand_in).markdown()
    assert "(+0.50)" not in other  # numbers on other data are no difference
    assert reproduction.EMBEDDED in other
    assert reproduction.EMBEDDED not in text
    source = reproduction.page(real).latex()
    assert r"a\_1 & 71.00 $\pm$2.00 \\" in source
    assert source.count(r"\begin{") == source.count(r"\end{")
    assert r"Digits \& co" in source
    lines = list(csv.DictReader(io.StringIO(reproduction.page(real).csv())))
    assert [line["difference"] for line in lines] == ["0.5", "-4.5", "-71.0", ""]
    assert [line["mean"] for line in lines] == ["71.0", "60.5", "-5.0", ""]
    assert {line["difference"] for line in csv.DictReader(io.StringIO(reproduction.page(stand_in).csv()))} == {""}
    assert json.loads(json.dumps(reproduction.as_dict(real), allow_nan=False))["cells"][3]["mean"] is None
    page = reproduction.page(real, reports={"digits": "digits/report.html"}).html()
    assert "Digits &amp; co" in page
    assert '<td class="">71.00 ±2.00 <small>paper 70.50 ±1.50 (+0.50)</small></td>' in page
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert 'href="digits/report.html"' in page


def test_the_order_of_the_rows_is_compared() -> None:
    (part,) = shown(embedded=True).parts
    found = part.agreement("AVG")
    assert found is not None
    assert found[1] == 3  # the row without ours does not count
    assert found[0] == pytest.approx(stats.kendalltau([71, 60.5, -5], [70.5, 65, 66]).statistic)
    assert "Kendall's tau" in " ".join(reproduction.sentences(shown(embedded=True), part))


# the command
@pytest.mark.slow
def test_the_command_writes_the_table_and_goes_on(mine: str, tmp_path: Path) -> None:
    def call(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "equipoise", "reproduce", mine, "--runs", str(tmp_path / "runs"), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = call("--embedded", "--seeds", "1", "--json")
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert [c["paper"] for c in cells if c["column"] == "AVG"] == [70.5, 72.0, 80.0]
    folder = tmp_path / "runs" / "reproduce" / "mine-embedded"
    assert {"table.md", "table.tex", "table.csv", "index.html", "digits"} <= {p.name for p in folder.iterdir()}
    assert (folder / "digits" / "report.html").is_file()
    refused = call("--embedded", "--data", "x")
    assert refused.returncode == 2
    assert "--data and --embedded: give one of them" in refused.stderr


@pytest.mark.slow
def test_a_plan_can_be_seen_first(mine: str, tmp_path: Path) -> None:
    def call(*more: str) -> str:
        command = [sys.executable, "-m", "equipoise", "reproduce", mine, "--runs", str(tmp_path / "runs"), "--dry-run"]
        return subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout

    told = json.loads(call("--embedded", "--json"))
    assert len(told["runs"]) == 4
    assert told["memory"] > 0
    assert told["seconds"] > 0
    without = call()
    assert "fedheal-digits" in without
    assert "rounds=200" in without
    assert not (tmp_path / "runs").exists()
