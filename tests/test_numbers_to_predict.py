"""Labels that are numbers to predict: own data with ``task="regression"``, and the scenario diabetes."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

import equipoise as eq
from equipoise import scenarios
from equipoise.cli.export import _about
from equipoise.cli.init import read
from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.memory_mapped import labels
from equipoise.data.tables import checks
from equipoise.data.tables.columns import Columns, UserData
from equipoise.data.tables.roles import read_column
from equipoise.data.tables.words import Origin
from equipoise.flower.app import check_site, make_client_app
from equipoise.flower.settings import AppSettings
from equipoise.flower.site.task import Task
from equipoise.runs.configuration import configure
from equipoise.runs.directory import federation
from equipoise.scenarios import partition
from equipoise.scenarios.own import divided
from equipoise.scenarios.scenario import Description, Protocol, Scenario
from helpers import in_one
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

REUSED = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = Columns(label="price", task="regression")
HERE = Origin("here", "sample {}".format)
PRICES = [f"{10 + 7 * k % 31}.{k % 10}" for k in range(60)]


def table(path: Path, prices: Sequence[object], **more: Any) -> Path:
    """Homes with a price, a seller, and a city."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, **more)
        out.writerow(["area", "rooms", "city", "seller", "price"])
        out.writerows([k * k % 97 + 0.5, k % 5, "ab"[k % 2], "xyz"[k % 3], price] for k, price in enumerate(prices))
    return path


def homes(path: Path, prices: Sequence[object] = PRICES, **options: Any) -> Scenario:
    table(path, prices)
    return scenarios.load(
        "own", 0, path, **{"label": "price", "client": "city", "group": "seller", "task": "regression", **options}
    )


# reading


@REUSED
@given(st.lists(st.floats(-1e38, 1e38), min_size=2, max_size=20, unique=True))
def test_targets_are_read_to_the_last_bit(tmp_path: Path, values: list[float]) -> None:
    """Of a table as text, of arrays, of Parquet's cells: the numbers of Python."""
    rows = [*values, *values]
    text = read_user_data(
        table(tmp_path / "t.csv", map(repr, rows)), Columns("price", "city", leave_out=("seller",), task="regression")
    )  # type: ignore[arg-type]
    assert text.targets.dtype == np.float64
    assert text.targets.tolist() == rows
    for cells in (np.array(rows), rows, np.array(list(map(str, rows)))):
        assert [*map(float, read_column(cells, "label", HERE, NUMBERS).words)] == rows
    single = np.array([*values, 0.5, 1.5], np.float32)
    assert [*map(float, read_column(single, "label", HERE, NUMBERS).words)] == single.astype(np.float64).tolist()


@in_one(
    ("cells", "numbers"),
    [
        ([" 1", "2 ", "+3.50", "-4e-1", ".5", "1e3"], [1, 2, 3.5, -0.4, 0.5, 1000]),
        ([1, 2.5, np.float32(0.5), np.int64(2**53 - 1), True], [1, 2.5, 0.5, 2**53 - 1, 1]),
        (np.array([2**60, 3], np.int64), [2**60, 3]),
        (np.array([True, False]), [1, 0]),
        ([b"1.5", "2"], [1.5, 2]),
        (["1", "1.0", "2"], [1, 1, 2]),
    ],
)
def test_all_forms_of_numbers(cells: Any, numbers: list[float]) -> None:
    found = read_column(cells, "label", HERE, NUMBERS)
    assert (found.problems, [*map(float, found.words)]) == ((), numbers)


def test_a_decimal_comma_is_read(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [price.replace(".", ",") for price in PRICES], delimiter=";")
    path.write_text(path.read_text().replace(".5;", ",5;"))
    found = read_user_data(path, Columns("price", leave_out=("city", "seller", "area"), task="regression"))
    assert found.targets.tolist() == [*map(float, PRICES)]
    given = Columns("price", leave_out=("city", "seller"), decimal=",", task="regression")
    assert read_user_data(path, given).targets.tolist() == [*map(float, PRICES)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({3: "cheap"}, "1 of 60 is no number ('cheap' in line 5). Correct"),
        ({3: "NaN", 9: ""}, "2 of 60 are missing ('NaN' in line 5, empty in line 11). Correct"),
        ({0: "inf", 7: "-Infinity"}, "2 of 60 are no number ('inf' in line 2, '-Infinity' in line 9). Correct"),
        ({0: "1e39"}, "1 of 60 is too large ('1e39' in line 2). Correct"),
        ({5: "1.000,5", 6: "?"}, "1 of 60 is no number ('1.000,5' in line 7) and 1 of 60 is missing ('?' in line 8). Correct"),
        ({8: "0x10", 10: "12 EUR", 12: "１２"}, "3 of 60 are no number ('0x10' in line 10, '12 EUR' in line 12, '１２' in line 14). Correct"),
        (dict.fromkeys(range(60), "high"), "all 60 are no number ('high' in line 2, ...). If these are classes, leave task=regression out"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_named_with_its_column_and_rows(tmp_path: Path, cells: dict[int, str], said: str) -> None:
    path = table(tmp_path / "t.csv", [cells.get(k, price) for k, price in enumerate(PRICES)])
    with pytest.raises(DataError) as error:
        read_user_data(path, Columns("price", "city", "seller", task="regression"))
    assert str(error.value).startswith(f"{path}, column price: expected a number to predict of every sample; {said}")


def test_one_constant_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "t.csv", ["5", "5.0"] * 30)
    with pytest.raises(
        DataError, match=r"column price: the number to predict is 5\.0 in all 60 samples \(line 2, .*nothing to learn"
    ):
        read_user_data(path, Columns("price", "city", "seller", task="regression"))
    split = np.array(["train"] * 6 + ["test"] * 6)
    np.savez(tmp_path / "a.npz", x=np.arange(24.0).reshape(12, 2), y=np.repeat([1.5, 2.5], 6), split=split)
    with pytest.raises(DataError, match=r"the number to predict is 1\.5 in all training samples"):
        read_user_data(tmp_path / "a.npz", Columns(task="regression"))
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import numpy as np\ndef clients():\n    return [(np.eye(4), np.array([1.0, np.nan, 2, np.inf]))] * 2\n"
    )
    with pytest.raises(
        DataError, match=r"1 of 8 .*'nan' in y\[1\]|2 of 8 are missing \('nan' in y\[1\], 'nan' in y\[5\]\)"
    ):
        read_user_data("mine.py:clients", Columns(task="regression"))


def test_fractions_name_the_task_and_whole_numbers_stay_classes(tmp_path: Path, equipoise: Any) -> None:
    """Without a task; the advice works as printed."""
    path = table(tmp_path / "t.csv", PRICES)
    refused = equipoise(
        "init", "-d", str(path), "--set", "label=price", "--set", "client=city", "--set", "group=seller"
    )
    assert refused.status == 2
    assert '--task regression, in Python task="regression"' in refused.err
    as_before = read_user_data(table(path, [k % 3 for k in range(60)]), Columns("price", "city", "seller"))
    assert as_before.classes == ("0", "1", "2")
    assert as_before.targets.dtype == np.int64
    assert not any("numbers to predict" in note for note in as_before.notes)
    many = read_user_data(table(path, [k * k % 61 for k in range(60)]), Columns("price", "city", "seller"))
    assert any("31 different whole numbers" in note and "--task regression" in note for note in many.notes)
    told = read_user_data(path, Columns("price", "city", "seller", task="classification"))
    assert not any("--task" in note for note in told.notes)


def test_folders_may_be_named_after_numbers(tmp_path: Path) -> None:
    for client in "ab":
        for age in ("7", "12.5", "40"):
            (tmp_path / client / age).mkdir(parents=True)
            for k in range(2):
                Image.new("RGB", (8, 8), (k, int(float(age)), 0)).save(tmp_path / client / age / f"{k}.png")
    made = scenarios.load("own", 0, tmp_path, task="regression", size=8)
    assert sorted(set(torch.cat([labels(of) for of in (*made.clients, *made.tests.values())]).tolist())) == [
        7,
        12.5,
        40,
    ]
    (tmp_path / "b" / "old").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "b" / "old" / "0.png")
    with pytest.raises(DataError, match=r"1 of 13 is no number \('old' in b/old/0\.png\)"):
        scenarios.load("own", 0, tmp_path, task="regression", size=8)


def test_columns_that_tell_the_target_are_said(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=200)
    noise = np.random.default_rng(1).normal(size=200)
    x = np.stack([np.exp(y), -3 * y, np.round(2 * y), y + 0.1 * noise, noise, y > 1.9], axis=1)
    assert checks.follows(x, y) == [0, 1]
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.arange(200) % 3)
    (note,) = (n for n in read_user_data(tmp_path / "a.npz", Columns(task="regression")).notes if "tell" in n)
    assert note.startswith(
        "a.npz: the columns x[:, 0]; x[:, 1] tell, each alone, the number to predict of all 200 samples."
    )


# dividing


def of_numbers(y: Sequence[float], client: Sequence[str] | None = None, group: Sequence[str] | None = None) -> UserData:
    attributes = {} if group is None else {"group": tuple(group)}
    whose = None if client is None else tuple(client)
    label = tuple(map(repr, y))
    return UserData("here", "numbers", label, np.zeros((len(y), 1)), whose, attributes, regression=True)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=60), st.integers(1, 12))
def test_bands_keep_equal_numbers_together_and_others_in_order(numbers: list[float], count: int) -> None:
    found = partition.bands(numbers, count)
    assert set(found.tolist()) == set(range(found.max() + 1))
    assert len(set(found.tolist())) <= count
    order = np.argsort(numbers, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert all(len({int(found[k]) for k, x in enumerate(numbers) if x == value}) == 1 for value in numbers)
    even = partition.bands(range(60), count)
    assert np.ptp(np.bincount(even)) <= 1


def test_tests_are_drawn_evenly_over_the_numbers_and_the_groups() -> None:
    y = np.random.default_rng(0).exponential(size=600)
    group = np.where(np.arange(600) % 3, "f", "m")
    own = of_numbers(y.tolist(), np.array(["a", "b"])[np.arange(600) // 300].tolist(), group.tolist())
    parts = divided(own, 0)
    for rows in parts.test.values():
        assert len(rows) == 60
        band = partition.bands(y, 10)[rows]
        assert np.bincount(band, minlength=10).min() >= 3
        assert abs(int((group[rows] == "m").sum()) - 20) <= 3
    assert sorted(parts.training + [row for rows in parts.test.values() for row in rows]) == list(range(600))
    assert divided(own, 0) == parts != divided(own, 1)


def test_data_without_clients_are_divided_by_bands() -> None:
    y = np.random.default_rng(0).normal(size=800)
    spread = {}
    for alpha in (0.1, 1000.0):
        parts = divided(of_numbers(y.tolist()), 0, clients=5, alpha=alpha)
        spread[alpha] = np.std([y[rows].mean() for rows in parts.train.values()])
    assert spread[0.1] > 0.4
    assert spread[1000.0] < 0.15
    few = divided(of_numbers(y[:12].tolist()), 0, clients=3)  # where most bands of ten would go to the last client
    assert len(few.train) == 3
    with pytest.raises(DataError, match="does not say whose the samples are: numbers, numbers to predict"):
        divided(of_numbers([1.0, 2.0]), 0)


# the scenario


def test_a_scenario_of_numbers(tmp_path: Path) -> None:
    made = homes(tmp_path / "t.csv")
    assert (made.task, made.outputs, made.n_classes, made.classes) == ("regression", 1, 0, ())
    assert (made.network, set(made.tests), made.client_names) == ("mlp", {"x", "y", "z"}, ("a", "b"))
    assert "rates" not in made.measures
    rows = [row for part in made.manifest["clients"].values() for row in part]
    y = torch.cat([labels(of) for of in made.clients])
    assert y.dtype == torch.float64
    assert y.tolist() == [float(PRICES[row]) for row in rows]
    assert made.manifest["task"] == "regression"
    assert homes(tmp_path / "t.csv", task="regression(loss=huber)").task == "regression(loss=huber)"
    with pytest.raises(ValueError, match="positive=x names a class, and numbers to predict have none"):
        homes(tmp_path / "t.csv", positive="x")
    assert homes(tmp_path / "t.csv", task=" regression ").outputs == 1
    for task in ("regresion", "Regression", "regresion(loss=huber)"):
        with pytest.raises(ValueError, match=r"Unknown task '.*'\. Did you mean 'regression'\?"):
            homes(tmp_path / "t.csv", task=task)


@in_one(
    ("y", "task", "said"),
    [
        ([1, 2], "regression", "float64 labels"),
        ([1.5, float("nan")], "regression", "all finite"),
        ([], "regression", "at least one label"),
        ([0.5, 1.0], "classification", "int64 labels"),
    ],
)
def test_labels_that_are_not_of_the_task(y: list[float], task: str, said: str) -> None:
    data = torch.zeros(len(y), 2), torch.tensor(y, dtype=torch.float64 if not y else None)
    data = (data[0], data[1].double() if data[1].is_floating_point() else data[1])
    protocol = Protocol(1, 1, 1, 0.1, 0, 0)
    known = Description(name="it", summary="", transform=None, n_classes=0, network="mlp", protocol=protocol, task=task)
    with pytest.raises(ValueError, match=said):
        Scenario(**vars(known), clients=(data,), client_names=("a",), client_groups=None, tests={}, manifest={})


def test_the_task_of_other_scenarios_is_theirs() -> None:
    assert scenarios.describe("digits", task="classification").task == "classification"
    assert scenarios.describe("diabetes", task="regression(loss=absolute)").task == "regression(loss=absolute)"
    for name, task in (("digits", "regression"), ("diabetes", "classification")):
        with pytest.raises(ValueError, match=f"scenario {name}: its task is .*; found task={task}"):
            scenarios.describe(name, task=task)


# the command line


def test_the_task_is_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    """As an option, in the file that `init` writes, and as an option of the scenario: the same configuration."""
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), PRICES)
    columns = ["--set", "label=price", "--set", "client=city", "--set", "group=seller"]
    shown = equipoise("init", "-d", "t.csv", *columns, "--task", "regression", "--json")
    assert json.loads(shown.out)["target"] == pytest.approx(
        {"least": min(y := [*map(float, PRICES)]), "largest": max(y), "mean": np.mean(y), "std": np.std(y)}
    )
    text = Path("equipoise.toml").read_text()
    assert tomllib.loads(text)["task"] == "regression"
    assert len(re.findall(r"^(?:# )?task = ", text, flags=re.M)) == 1
    config = configure(**read(Path("equipoise.toml")))
    schema = {"area": {"kind": "number"}, "rooms": {"kind": "number"}}
    named = {"label": "price", "client": "city", "group": "seller"}
    inputs = {"inputs": ["area", "rooms"], "columns": schema}
    assert config.scenario_options == {"task": "regression", **named, **inputs}
    words = equipoise("init", "-d", "t.csv", *columns, "--task", "regression", "--force").out
    assert f"numbers to predict: {min(y):g} to {max(y):g}, mean {np.mean(y):g}" in words
    assert "class" not in words
    assert "Unknown task 'regresion'" in equipoise("init", "-d", "t.csv", "--task", "regresion", "--force").err
    for twice in (["--set", "task=regression"], ["--scenario", "own(task=regression)"]):
        refused = equipoise("run", "-d", "t.csv", "--task", "regression", *twice)
        assert (refused.status, "task is given twice" in refused.err) == (2, True)
    Path("two.toml").write_text('data = "t.csv"\ntask = "regression"\n[set]\ntask = "regression"\n')
    assert "task is given twice" in equipoise("run", "--config", "two.toml").err
    Path("typed.toml").write_text('data = "t.csv"\ntask = 1\n')
    assert "task must be text in quotes" in equipoise("run", "--config", "typed.toml").err
    refused = equipoise("run", "-d", "t.csv", *columns, "--task", "regression", "--positive", "x")
    assert "--positive x names a class" in refused.err
    assert "its task is classification" in equipoise("run", "--task", "regression").err


def test_a_table_from_the_command_line_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    """Trained, reported, exported, analysed: in the unit of the target, and of classes not a word."""
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), PRICES)
    columns = ["--set", "label=price", "--set", "client=city", "--set", "group=seller"]
    done = equipoise(
        "run", "-d", "t.csv", "--task", "regression(unit=EUR)", *columns, "--rounds", "2", "--name", "homes"
    )
    assert (done.status, "RMSE" in done.out, "EUR" in done.out) == (0, True, True)
    again = equipoise("report", "runs/homes", "--output", "again.html")
    exported = equipoise("export", "runs/homes")
    losses = equipoise("analyse", "decomposition", "runs/homes")
    assert "A prediction is centre + scale * output" in exported.out
    for shown in (done, again, exported, losses):
        assert shown.status == 0
        assert not re.search(r"accuracy|class(?!ifier)|nats", shown.out)
    record = json.loads(Path("runs/homes/metrics.jsonl").read_text().splitlines()[-1])
    assert {*record["groups"]["x"]} >= {"rmse", "mae", "r2", "loss", "n"}
    assert json.loads(Path("runs/homes/manifest.json").read_text())["unit"] == "EUR"


def test_a_model_says_how_its_outputs_become_predictions(tmp_path: Path) -> None:
    homes(tmp_path / "t.csv")
    options = {"label": "price", "client": "city", "group": "seller", "task": "regression(unit=EUR)"}
    fed, data = federation(configure("fedavg", "own", data=str(tmp_path / "t.csv"), scenario_options=options))
    about, x = _about(fed), data.tests["x"][0]  # type: ignore[index]
    y = torch.cat([labels(of) for of in data.clients])
    assert [float(about[name]) for name in ("centre", "scale")] == pytest.approx(
        [float(y.mean()), float(y.std(correction=0))]
    )
    assert (about["unit"], "classes" in about) == ("EUR", False)
    outputs = fed.network()(x).squeeze(1).double()
    torch.testing.assert_close(fed.predict(x), float(about["centre"]) + float(about["scale"]) * outputs)


# sites


def test_sites_take_the_task_of_the_run() -> None:
    """From the run's configuration, checked there; what the app's own function says must not contradict it."""
    x, y = torch.randn(12, 2), torch.randn(12).double()

    def looked_at(told: str, **of_task: Any) -> tuple[bool, str]:
        app = make_client_app(lambda node, config: Task(torch.nn.Linear(2, 1), (x, y), **of_task), "fedavg")
        return check_site(app, "north", {}, {**AppSettings(method="fedavg").table(), "task": told})["data"]

    numbers = "regression(centre=1, scale=2)"
    assert looked_at(numbers)[0]
    assert looked_at("", task=numbers)[0]
    assert looked_at(numbers, task=numbers)[0]
    for task, more, said in (
        ("", {}, "y must be one integer label per sample"),
        ("regression", {}, "needs a centre and a scale"),
        (numbers, {"task": "regression(centre=0, scale=2)"}, "Leave one of them out"),
        ("regresion", {}, "Unknown task 'regresion'"),
    ):
        with pytest.raises(ValueError, match=said) if not more and task else nullcontext():
            good, words = looked_at(task, **more)
            assert (good, said in words) == (False, True)
    assert AppSettings(task=numbers).config()["task"] == numbers
    assert "task" not in AppSettings().config()  # as in runs of earlier versions


# diabetes


def test_diabetes_is_that_of_scikit_learn() -> None:
    from sklearn.datasets import load_diabetes

    raw, y = load_diabetes(return_X_y=True, scaled=False)
    made = scenarios.load("diabetes")
    rows = {name: [*part, *made.manifest["tests"][name]] for name, part in made.manifest["clients"].items()}
    assert sorted([row for part in rows.values() for row in part]) == list(range(442))
    ages = [raw[part, 0] for part in rows.values()]
    assert all(low.max() < high.min() for low, high in pairwise(ages))
    train = [row for part in made.manifest["clients"].values() for row in part]
    x = torch.cat([of[0] for of in made.clients])  # type: ignore[index]
    expected = (raw[train] - raw[train].mean(0)) / raw[train].std(0)
    torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float32))
    assert torch.cat([labels(of) for of in made.clients]).tolist() == y[train].tolist()
    assert [len(labels(of)) for of in made.tests.values()] == [
        sum(raw[row, 1] == s for part in made.manifest["tests"].values() for row in part) for s in (1, 2)
    ]
    assert made.client_tests is not None
    assert [*map(len, made.manifest["tests"].values())] == [
        len(labels(of)) for of in made.client_tests if of is not None
    ]
    assert (made.task, made.outputs) == ("regression", 1)
    assert eq.network(made.network, made.shape, made.outputs, **made.network_options)(x).shape == (len(x), 1)


def test_diabetes_by_shares_of_ages() -> None:
    def spread(**options: Any) -> float:
        made = scenarios.load("diabetes", clients=4, **options)
        means = [float(of[0][:, 0].mean()) for of in made.clients]  # type: ignore[index]
        return float(np.std(means))

    assert spread(alpha=1000.0) < spread(alpha=0.3) < spread() < 1.5
    first, again, other = (scenarios.load("diabetes", seed, alpha=0.5).manifest for seed in (0, 0, 1))
    assert first == again
    assert first["clients"] != other["clients"]
    assert len(scenarios.load("diabetes", clients=1).clients) == 1
    assert len(scenarios.load("diabetes", clients=20).clients) == 20
    for wrong in ({"clients": 0}, {"clients": 21}, {"alpha": 0.0}, {"test": 0.0}, {"test": 0.6}, {"clients": 2.5}):
        with pytest.raises(ValueError, match=f"diabetes: {next(iter(wrong))} must be"):
            scenarios.describe("diabetes", **wrong)


# what new users met
def test_init_writes_the_settings_of_a_regression(tmp_path: Path, equipoise: Any) -> None:
    path, file = table(tmp_path / "t.csv", PRICES), tmp_path / "of.toml"
    equipoise(
        "init", "-d", str(path), "--task", "regression(unit=EUR)", "--set", "label=price", "--set", "client=city",
        "--set", "group=seller", "-o", str(file),
    )  # fmt: skip
    lines = {line.removeprefix("# ").partition(" ")[0]: line for line in file.read_text().splitlines()}
    assert lines["task"].startswith('task = "regression(unit=EUR)"')
    assert "with their unit" in lines["task"]
    assert not {"positive", "contribution_rounds"} & lines.keys()
    said = file.read_text()
    for word in ("f1,", "auc", "class that", "the accuracy", "classes differ", "column of the class"):
        assert word not in said, word
    assert read(file)["scenario_options"]["task"] == "regression(unit=EUR)"
    equipoise("init", "-d", str(table(path, [k % 3 for k in range(60)])), "--set", "label=price", "--set",
              "client=city", "--set", "group=seller", "-o", str(file), "--force")  # fmt: skip
    assert {"positive", "contribution_rounds", "measures"} <= {
        line.removeprefix("# ").partition(" ")[0] for line in file.read_text().splitlines()
    }


@pytest.mark.parametrize(
    ("labels", "noted"),
    [
        ([1 + k % 7 for k in range(60)], "7 different whole numbers from 1 to 7"),
        ([(0, 3, 14)[k % 3] for k in range(60)], "3 different whole numbers from 0 to 14"),
        ([(-2, -1, 0)[k % 3] for k in range(60)], "3 different whole numbers from -2 to 0"),
        ([k % 7 for k in range(60)], ""),
        ([1 + k % 2 for k in range(60)], ""),
        (["abc"[k % 3] for k in range(60)], ""),
    ],
)
def test_few_whole_numbers_that_may_be_measurements_are_noted(labels: list[Any], noted: str, tmp_path: Path) -> None:
    """As days or points are; codes from 0 up, and those of two classes, say nothing."""
    columns = Columns("price", "city", "seller")
    notes = [n for n in read_user_data(table(tmp_path / "t.csv", labels), columns).notes if "whole numbers" in n]
    assert len(notes) == bool(noted)
    assert all(noted in note and "--task regression" in note for note in notes)
    told = read_user_data(tmp_path / "t.csv", Columns("price", "city", "seller", task="classification"))
    assert not any("whole numbers" in note for note in told.notes)


def test_gaps_in_measurements_are_no_names(tmp_path: Path) -> None:
    """A cell NA among fractions is no class that is called NA; among words it may be."""
    columns = Columns("price", "city", "seller")
    with pytest.raises(DataError) as mixed:
        read_user_data(table(tmp_path / "t.csv", [*PRICES[:59], "NA"]), columns)
    assert "is missing in 1 of 60" in str(mixed.value)
    assert "not_missing" not in str(mixed.value)
    with pytest.raises(DataError, match="If NA is a name: --set not_missing=NA"):
        read_user_data(table(tmp_path / "t.csv", [*("ab" * 29), "b", "NA"]), columns)
    with pytest.raises(DataError) as numbers:
        read_user_data(table(tmp_path / "t.csv", [*PRICES[:59], "NA"]), Columns("price", "city", "seller", task="regression"))  # fmt: skip
    assert "class" not in str(numbers.value)
    assert "expected a number to predict of every sample; 1 of 60 is missing ('NA' in line 61)" in str(numbers.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run --group sex", "It is an option of your data: --set group=COLUMN."),
        ("compare fedavg --client site", "It is an option of your data: --set client=COLUMN."),
        ("init --data t.csv --image path", "It is an option of your data: --set image=COLUMN."),
        ("run --leave-out id", "It is an option of your data: --set leave_out=VALUE."),
        ("compare fedavg --draws 3", "It is an option of equipoise tune; here give --tune N."),
        ("compare fedavg --no-halving", "It is an option of equipoise tune; compare takes its result by --config."),
        ("run --draws 3", "No such option '--draws'."),
        ("run --mu 0.1", "It is a hyper-parameter of fedprox, moon: --set fedprox.mu=VALUE."),
        ("run --roundz 3", "'--rounds'"),
        ("methods --group x", "No such option '--group'."),
    ],
)
def test_options_that_are_given_with_set(command: str, said: str, equipoise: Any) -> None:
    done = equipoise(*command.split())
    assert done.status == 2
    assert said in " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.err).split())


def test_scenarios_say_what_is_predicted_and_for_whom(equipoise: Any) -> None:
    said = {name: " ".join(equipoise("scenarios", name).out.split()) for name in ("diabetes", "digits(clients=4)")}
    assert "Predicted: how far the disease has gone after a year, a number from 25 to 346." in said["diabetes"]
    assert "the test sets sex-1, sex-2. Sensitive attribute sex: 1, 2." in said["diabetes"]
    digits = said["digits(clients=4)"]
    assert "Predicted: the digit, one of 10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in digits
    assert "Sensitive" not in digits
    found = json.loads(equipoise("scenarios", "diabetes", "--json").out)
    assert found["attributes"] == {"sex": ["1", "2"]}
    assert found["predicted"].startswith("how far")
    assert {"clients", "tests", "classes"} <= found.keys()
