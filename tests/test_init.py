"""``equipoise init`` looks at data and writes a configuration; reading one, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from equipoise import scenarios
from equipoise.cli.init import MEANINGS, OPTIONS, SETTINGS, TABLE, read
from equipoise.runs.configuration import RunConfig, configure
from run_helpers import cache, complaints, equipoise

__all__ = ["cache", "equipoise"]

ROWS = [(k % 7, 3 * k % 5, ("yes", "no")[k % 7 > 3], "abc"[k % 3], "fm"[k % 2]) for k in range(42)]

U_V = {"u": {"kind": "number"}, "v": {"kind": "number"}}  # the schema of the table here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [("u", "v", "label", "client", "sex"), *ROWS]
    (tmp_path / "t.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return tmp_path


def test_what_is_found_is_printed_and_written(here: Path, equipoise: Any) -> None:
    done = equipoise("init", "--data", "t.csv", "--set", "group=sex")
    assert (done.status, complaints(done.err)) == (0, [])
    for text in (
        "t.csv: a table of 2 columns",
        "42 samples, 3 clients",
        "2 classes: no 18, yes 24",
        "2 features: u, v",
        "groups: f 21, m 21",
        "20% of each client's samples were drawn for testing",
        "wrote equipoise.toml. Start it: equipoise run --config equipoise.toml",
    ):
        assert text in done.out
    text = (here / "equipoise.toml").read_text()
    assert "#   2 classes: no 18, yes 24\n" in text
    assert tomllib.loads(text) == {
        "method": "fedavg",
        "data": "t.csv",
        "seed": 0,
        "set": {"group": "sex", "inputs": ["u", "v"]},
        "report": {},
        "columns": U_V,
    }


def test_every_setting_is_in_the_file_and_may_be_told(here: Path, equipoise: Any) -> None:
    """With every # of a setting removed the file still reads, and says what holds without it."""
    equipoise("init", "-d", "t.csv", "--set", "group=sex")
    text = (here / "equipoise.toml").read_text()
    free = tomllib.loads(re.sub(r"^# (?=[\w.]+ = )", "", text, flags=re.M))
    assert [name for name in free if name not in ("set", "report", TABLE)] == list(MEANINGS)
    assert list(free["set"]) == ["fedheal", *(name for name in OPTIONS if name not in MEANINGS and name != TABLE)]
    assert free[TABLE] == U_V
    protocol = vars(scenarios.load("own", 0, here / "t.csv", group="sex").protocol)
    for name, value in free.items():
        if protocol.get(name) is not None:
            assert value == protocol[name], name
    for name in ("quorum", "threads", "device", "engine", "precision"):
        assert free[name] == SETTINGS[name].default


def test_settings_are_those_of_a_run() -> None:
    known = {f.name for f in fields(RunConfig)} - {
        "label",
        "scenario_options",
        "network_options",
        "checkpoint_every",
        "own_code",
        "report",
        "sealed",
        "rewarded",
        "left_out",
        "tuned",
        "origins",
    }
    assert set(MEANINGS) == known | {"task"}  # an option of the scenario, which is said at the top


def test_options_are_those_of_the_scenario() -> None:
    assert OPTIONS.keys() == scenarios.SCENARIOS["own"].options.keys()


def test_run_with_the_file(here: Path, equipoise: Any) -> None:
    equipoise("init", "-d", "t.csv", "--set", "group=sex", "--output", "sub/my.toml")
    assert tomllib.loads((here / "sub/my.toml").read_text())["data"] == "../t.csv"  # found from any folder
    done = equipoise("run", "--config", "sub/my.toml", "--rounds", "2", "--no-report", "--name", "x")
    assert (done.status, complaints(done.err)) == (0, [])
    config = tomllib.loads((here / "runs/x/config.toml").read_text())
    assert (config["method"], config["scenario"], config["rounds"]) == ("fedavg", "own", 2)
    assert config["scenario_options"] == {"group": "sex", "inputs": ["u", "v"], "columns": U_V}
    assert config["data"] == "t.csv"


def test_a_file_is_not_overwritten(here: Path, equipoise: Any) -> None:
    (here / "equipoise.toml").write_text("mine")
    done = equipoise("init", "--data", "t.csv", "--set", "group=sex")
    assert done.status == 2
    assert "equipoise.toml exists already. Add --force" in done.err
    assert (here / "equipoise.toml").read_text() == "mine"
    assert equipoise("init", "--data", "t.csv", "--set", "group=sex", "--force").status == 0
    assert (here / "equipoise.toml").read_text() != "mine"


def test_without_data_it_is_about_digits(here: Path, equipoise: Any) -> None:
    assert equipoise("init").status == 0
    assert read(Path("equipoise.toml")) == {"method": "fedavg", "seed": 0, "scenario": "digits", "scenario_options": {}}
    done = equipoise("init", "--force", "--set", "size=8")
    assert "Give their path with --data" in done.err


def test_data_that_say_no_client_are_divided(here: Path, equipoise: Any) -> None:
    (here / "t.csv").write_text("label,v\n" + "".join(f"{k % 2},{k * 7 % 60}\n" for k in range(60)))
    done = equipoise("init", "--data", "t.csv", "--json")
    assert done.status == 0
    found = json.loads(done.out)
    assert len(found["clients"]) == 8
    assert sum(of["train"] + of["test"] for of in found["clients"].values()) == found["samples"] == 60
    assert read(Path("equipoise.toml"))["scenario_options"] == {
        "clients": 8,
        "inputs": ["v"],
        "columns": {"v": U_V["v"]},
    }


def test_names_cannot_break_the_file(here: Path, equipoise: Any) -> None:
    (here / "t.csv").write_text('label,client,v\n"a\nlr = 9",x,1\nb,x,2\n"a\nlr = 9",x,1\nb,x,2\n')
    assert equipoise("init", "--data", "t.csv").status == 0
    assert "lr" not in tomllib.loads((here / "equipoise.toml").read_text())


def test_unknown_option_of_the_data(here: Path, equipoise: Any) -> None:
    done = equipoise("init", "--data", "t.csv", "--set", "grup=sex")
    assert done.status == 2
    assert "Unknown option of your own data: 'grup'. Did you mean 'group'?" in done.err
    assert not (here / "equipoise.toml").exists()


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text)
    return path


def test_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(
        tmp_path,
        'method = "fedheal"\nseed = 3\nlr = 0.1\nscenario = "digits(clients=8)"\nnetwork = "cnn(width=8)"\n'
        "[set]\nfedheal.tau = 0.4\ntrain = [9, 9, 9, 9]\n",
    )
    assert read(path) == {
        "method": "fedheal",
        "seed": 3,
        "lr": 0.1,
        "scenario": "digits",
        "scenario_options": {"clients": 8, "train": [9, 9, 9, 9]},
        "network": "cnn",
        "network_options": {"width": 8},
        "fedheal.tau": 0.4,
    }
    monkeypatch.setenv("EQUIPOISE_TRUST", "everything")
    quoted = config(tmp_path, 'data = "hub:a/b"\n[set]\n"fedheal.tau" = 0.4\n')
    assert read(quoted) == {"data": "hub:a/b", "scenario": "own", "scenario_options": {}, "fedheal.tau": 0.4}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr 0.1", r"my\.toml is no TOML file"),
        ("round = 3", r"my\.toml: Unknown setting 'round'\. Did you mean 'rounds'\?"),
        ("size = 3", r"Unknown setting 'size'.* are in the table \[set\]"),
        ("seed = 'a'", "seed must be a whole number; found 'a'"),
        ("method = 3", "method must be text in quotes; found 3"),
        ("set = 3", r"set must be a table, \[set\]"),
        ("scenario = 'digits(clients=8)'\n[set]\nclients = 4", "clients is given twice"),
        ("network = 'cnn(8'", r"network =.*write NAME=VALUE in the brackets"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(config(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml cannot be read .*equipoise init"):
        read(tmp_path / "none.toml")


@pytest.mark.parametrize("more", [["--positive", "no"], ["--set", "positive=no"]])
def test_a_setting_of_runs_is_written_once(here: Path, equipoise: Any, more: list[str]) -> None:
    assert equipoise("init", "-d", "t.csv", "--set", "group=sex", *more, "--set", "measures=auc").status == 0
    text = (here / "equipoise.toml").read_text()
    assert tomllib.loads(text) == {
        "method": "fedavg",
        "data": "t.csv",
        "positive": "no",
        "measures": "auc",
        "seed": 0,
        "set": {"group": "sex", "inputs": ["u", "v"]},
        "report": {},
        "columns": U_V,
    }
    for name in ("positive", "measures"):
        assert len(re.findall(rf"^(?:# )?{name} = ", text, flags=re.M)) == 1
    assert configure(**read(here / "equipoise.toml")).positive == "no"
    (here / "n.csv").write_text("v,label\n" + "".join(f"{k},{k % 2}\n" for k in (3, 4, 8, 2, 5, 9, 7, 6)))
    assert equipoise("init", "-d", "n.csv", "--positive", "0", "-o", "n.toml").status == 0
    assert configure(**read(here / "n.toml")).positive == "0"
    refused = equipoise("init", "-d", "t.csv", "--set", "group=sex", "--positive", "nope", "--force")
    assert (refused.status, "yes" in refused.err) == (2, True)


def test_all_features_are_shown(here: Path, equipoise: Any) -> None:
    names = [f"v{k}" for k in range(130)]
    rows = [",".join([*(str((k * j) % 7 + j) for j in range(130)), "xy"[k % 2]]) for k in range(12)]
    (here / "w.csv").write_text("\n".join([",".join([*names, "label"]), *rows]) + "\n")
    assert (
        f"130 features: {', '.join(names[:100])} and 30 more, which --json shows"
        in equipoise("init", "-d", "w.csv").out
    )
    shown = equipoise("init", "-d", "w.csv", "--force", "--json").out
    assert json.loads(shown)["features"] == names


def test_a_file_that_exists_is_said_before_anything_is_read(here: Path, equipoise: Any) -> None:
    (here / "equipoise.toml").write_text("")
    done = equipoise("init", "-d", "no-such.csv")
    assert (done.status, "exists already" in done.err, "no-such" in done.err) == (2, True, False)


def test_columns_have_options_of_their_own(here: Path, equipoise: Any) -> None:
    """As they are with --set: several groups one after another, or one option each."""
    (here / "t.csv").write_text(
        "u,v,sick,ward,sex,old,who\n"
        + "".join(
            f"{k % 7},{3 * k % 5},{'yn'[k % 7 > 3]},{'ab'[k % 2]},{'fm'[k % 3 > 1]},{'ny'[k % 5 > 2]},{k // 2}\n"
            for k in range(60)
        )
    )
    names = ("--label", "sick", "--client", "ward", "--subject", "who")
    written = []
    for groups in (("--group", "sex", "old"), ("--group", "sex", "--group", "old"), ("--set", "group=['sex', 'old']")):
        done = equipoise("init", "--data", "t.csv", *names, *groups, "--force")
        assert (done.status, complaints(done.err)) == (0, []), done.err
        written.append((here / "equipoise.toml").read_text())
    assert written[0] == written[1] == written[2]
    settings = tomllib.loads(written[0])["set"]
    named = {"label": "sick", "client": "ward", "subject": "who", "group": ["sex", "old"]}
    assert settings == {**named, "inputs": ["u", "v"]}
    assert read(here / "equipoise.toml")["scenario_options"]["group"] == ["sex", "old"]
    one = equipoise("init", "--data", "t.csv", "--label", "sick", "--client", "ward", "--group", "sex", "--force")
    assert (one.status, tomllib.loads((here / "equipoise.toml").read_text())["set"]["group"]) == (0, "sex")


def test_columns_that_are_given_twice_or_without_data(here: Path, equipoise: Any) -> None:
    for arguments, said in (
        (("--data", "t.csv", "--label", "u", "--set", "label=v"), "label is given twice, also as --label"),
        (("t.csv",), "unexpected argument: t.csv. Give your data with --data t.csv"),
        (("--label", "u"), "label: this is an option of your own data"),
        (("--data", "t.csv", "--group", "sex", "nose"), "Unknown column 'nose'"),
    ):
        done = equipoise("init", *arguments)
        assert (done.status, said in done.err) == (2, True), done.err


def test_categories_are_written_with_the_rows_they_need(here: Path, equipoise: Any) -> None:
    (here / "t.csv").write_text(
        "w,label,client\n" + "".join(f"{'pqr'[k % 3]},{'xy'[k % 2]},{'ab'[k % 4 > 1]}\n" for k in range(48))
    )
    assert equipoise("init", "--data", "t.csv").status == 0
    assert tomllib.loads((here / "equipoise.toml").read_text())["columns"]["w"] == {"kind": "category", "least": 1}


@pytest.mark.parametrize(
    ("words", "chosen", "other"),
    [
        (["250", "250.0", "low", "mid", "high"], ["250", "high", "low", "mid"], '"250", "250.0", "high"'),
        (["1", "1.0", "one", "two", "many"], ["1", "many", "one", "two"], '"1", "1.0", "many"'),
        (["007", "7", "12", "12", "101"], ["007", "101", "12", "7"], 'kind = "number"'),
    ],
)
def test_one_number_in_two_spellings_is_chosen_in_the_file(
    here: Path, equipoise: Any, words: list[str], chosen: list[str], other: str
) -> None:
    lines = [("u", "label", "client", "ward"), *((u, y, c, words[k % 5]) for k, (u, _, y, c, _) in enumerate(ROWS))]
    (here / "t.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    done = equipoise("run", "--data", "t.csv", "--rounds", "1")
    assert done.status == 2
    assert f"column ward: more than one reading is possible, as {words[0]!r} in 9 cells and {words[1]!r} in" in done.err
    assert equipoise("init", "--data", "t.csv").status == 0
    text = (here / "equipoise.toml").read_text()
    assert tomllib.loads(text)["columns"]["ward"]["categories"] == chosen
    assert other in next(line for line in text.splitlines() if line.startswith("ward = ")).partition("#")[2]
    assert equipoise("run", "--config", "equipoise.toml", "--rounds", "1", "--no-report").status == 0
