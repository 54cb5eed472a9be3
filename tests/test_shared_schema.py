"""Tables of several sites: what each gives, the schema that this makes, and rows coded by it."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import equipoise as eq
from equipoise.cli.init import read
from equipoise.data.contents import DataError
from equipoise.scenarios.shared import SharedSchema, join, load_sums, site_sums
from run_helpers import equipoise

__all__ = ["equipoise"]  # a fixture

COLUMNS = ["site", "age", "income", "job", "sex", "split", "sick"]
SITES = ("north", "south", "west")


def people(n: int = 240) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    rows = []
    for k in range(n):
        site = SITES[k % 3]
        job = "pilot" if site == "west" and k % 4 == 0 else ["nurse", "driver", ""][int(draw.integers(3))]
        age = "" if site == "south" else int(draw.integers(20, 80))
        values = (site, age, round(float(draw.normal(3e7, 1.5)), 2), job, "fm"[k % 2], ["train", "test"][k % 5 == 0])
        rows.append(dict(zip(COLUMNS, (*values, ["no", "yes"][int(draw.integers(2))]), strict=True)))
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table of all, one for each site with its columns in another order, and the file of all sites."""
    monkeypatch.chdir(tmp_path)
    rows = people()
    write(tmp_path / "all.csv", rows, COLUMNS)
    for k, name in enumerate(SITES):
        mine = [row for row in rows if row["site"] == name]
        write(tmp_path / f"{name}.csv", mine, [*COLUMNS[k + 1 :], *COLUMNS[1 : k + 1]])
    (tmp_path / "agreed.toml").write_text(
        '[columns]\nage = { kind = "number" }\nincome = { kind = "number" }\njob = { kind = "category" }\n'
        '[set]\nlabel = "sick"\ngroup = "sex"\n'
    )
    return tmp_path


def shared(here: Path, least: int = 1, **more: Any) -> SharedSchema:
    options = {**read(here / "agreed.toml")[3]["scenario_options"], **more}
    return join({name: site_sums(f"{name}.csv", options, least=least) for name in SITES})


def test_sites_learn_what_the_simulator_learns_and_code_the_same_bits(here: Path) -> None:
    schema = shared(here)
    whole = eq.scenario("own", data="all.csv", label="sick", client="site", group="sex")
    assert schema.coder.as_json()["fitted"] == whole.manifest["schema"]["fitted"]
    assert schema.coder.schema.digest == whole.manifest["schema"]["sha256"]
    assert list(schema.inputs) == whole.manifest["inputs"]
    assert "job=pilot" in schema.inputs  # of one site only
    assert (schema.classes, dict(schema.values)) == (whole.classes, dict(whole.attributes or {}))
    for k, name in enumerate(whole.client_names):
        train, _ = schema.read(f"{name}.csv")
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(train, whole.clients[k], strict=True))


def test_the_commands_do_the_same(here: Path, equipoise: Any) -> None:
    for name in SITES:
        done = equipoise(
            "schema", "sums", f"{name}.csv", "--config", "agreed.toml", "-o", f"{name}.json", "--least", "1"
        )
        assert (done.status, "64 training rows, 3 columns" in done.out) == (0, True)
    done = equipoise("schema", "join", *(f"{name}.json" for name in SITES))
    assert done.status == 0
    assert "7 inputs, 2 classes, from 192 training rows of 3 sites" in done.out
    assert SharedSchema.load("schema.json") == shared(here)
    north = load_sums(Path("north.json"))
    (here / "north.json").write_text((here / "north.json").read_text().replace('"rows": 64', '"rows": 65', 1))
    assert "north.json was changed or is damaged" in equipoise("schema", "join", "north.json", "south.json").err
    with pytest.raises(DataError, match=r"south: made with other options than north\. All sites need the same file"):
        join({"north": north, "south": {**north, "options": {}}})


@pytest.mark.parametrize("least", [2, 10, 30])
def test_small_counts_do_not_leave_a_site(here: Path, least: int) -> None:
    options = read(here / "agreed.toml")[3]["scenario_options"]
    for name in SITES:
        content = site_sums(f"{name}.csv", options, least=least)
        for sums in (*content["columns"].values(), content["label"], *content["values"].values()):
            assert all(n >= least for word, n in sums["words"].items() if word)
            assert all(n >= least for n in sums["bins"].values())
            assert sum(sums["words"].values()) + sum(sums["bins"].values()) in (sums["present"], 0)
        json.dumps(content)  # nothing but JSON
    exact, coarse = shared(here).coder.fitted, shared(here, 10).coder.fitted
    assert coarse["income"].centre == exact["income"].centre
    assert coarse["age"].fill == pytest.approx(exact["age"].fill, abs=12)  # bins of ten rows


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row.pop("age"), r"has no column 'age', which the schema names"),
        (lambda row: row.update(sick="perhaps"), r"class 'perhaps' is not in the schema, whose values are no, yes"),
        (lambda row: row.update(sex="x"), r"sex 'x' is not in the schema, whose values are f, m"),
        (lambda row: row.update(age="old"), r"column age: all 80 are no number \('old' in line 2"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(here: Path, change: Any, said: str) -> None:
    schema = shared(here)
    rows = [row for row in people() if row["site"] == "north"]
    for row in rows:
        change(row)
    write(here / "new.csv", rows, [name for name in COLUMNS[1:] if name in rows[0]])
    with pytest.raises(DataError, match=said):
        schema.read("new.csv")


def test_a_site_of_one_class_and_numbers_to_predict(here: Path) -> None:
    schema = shared(here)
    write(here / "one.csv", [row for row in people() if row["sick"] == "no"], COLUMNS[1:])
    (_, y, _), _ = schema.read("one.csv")
    assert y.unique().tolist() == [schema.classes.index("no")]
    numbers = shared(here, label="income", task="regression", columns={"age": {"kind": "number"}})
    values = np.array([row["income"] for row in people() if row["split"] == "train"])
    assert (numbers.centre, numbers.scale) == pytest.approx((values.mean(), values.std()))
    assert numbers.task.startswith("regression(centre=")


def test_without_a_schema_a_site_is_told_how_to_make_one(here: Path) -> None:
    with pytest.raises(
        DataError, match=r"all sites need one schema\. Write it at one of them: equipoise init --data TABLE"
    ):
        site_sums("north.csv", {"label": "sick"})
    with pytest.raises(DataError, match="Make it: equipoise schema join SUMS"):
        SharedSchema.load("nothing.json")


def test_a_federation_of_sites_gives_the_bundle_of_the_simulator(here: Path, equipoise: Any) -> None:
    """The server's bundle, taken home, predicts with the simulator's bits."""
    import pandas as pd
    from flwr.app import Context, RecordDict

    from equipoise.flower import InProcessGrid, Task, make_client_app, make_server_app

    schema = shared(here)

    def task(node_config: Any, _: Any) -> Task:
        return Task.of_table(eq.network("mlp", (7,), 2, hidden=[5], seed=0), schema, node_config.get("data-path"))

    settings = {"method": "fedavg", "rounds": 2, "lr": 0.1, "min-sites": 3, "run-dir": str(here / "run"), "seed": 0}
    nodes = [{"site": name, "data-path": f"{name}.csv", "state-dir": str(here / "states")} for name in SITES]
    client, server = make_client_app(task), make_server_app(task)
    server(InProcessGrid(client, nodes, settings), Context(1, 0, {}, RecordDict(), settings))
    done = equipoise("export", "run", "--bundle", "home")
    assert (done.status, "server's last model" in done.out) == (0, True)
    assert "no prediction depends on them" in equipoise("export", "run", "--bundle", "h", "--use", "x").err

    whole = eq.scenario("own", data="all.csv", label="sick", client="site", group="sex")
    net = eq.network("mlp", (7,), 2, hidden=[5], seed=0)
    fed = eq.Federation(net, whole.clients, "fedavg", eq.SGD(lr=0.1), names=whole.client_names, seed=0, task=whole.task)
    fed.fit(2, progress=False)
    frame = pd.read_csv("all.csv")
    inputs, _ = schema.coder.of_frame(frame)
    weights = load_file("home/model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in fed.state_dict().items())
    probabilities = torch.from_numpy(eq.load("home").predict_proba(frame))
    with torch.no_grad():
        assert torch.equal(probabilities, fed.network()(torch.from_numpy(inputs)).softmax(1).to(probabilities))


def test_the_draw_of_test_rows_is_that_of_the_sums(here: Path) -> None:
    rows = [row for row in people() if row["site"] == "north"]
    write(here / "north.csv", rows, ["income", "job", "sex", "sick"])
    options = {"label": "sick", "columns": {"income": {"kind": "number"}, "job": {"kind": "category"}}}
    sums = site_sums("north.csv", options, seed=7, test=0.3, least=1)
    (x, *_), (tested, *_) = join({"north": sums}).read("north.csv")
    assert (len(x), len(tested)) == (sums["rows"], 80 - sums["rows"])
    assert float(x[:, 0].mean()) == pytest.approx(0, abs=1e-5)  # those of the sums
    with pytest.raises(DataError, match="made with other options than"):
        join({"north": sums, "again": site_sums("north.csv", options, seed=8, test=0.3, least=1)})


def test_sums_of_few_rows_give_no_number_and_no_wrong_scale(here: Path) -> None:
    options = read(here / "agreed.toml")[3]["scenario_options"]
    options["columns"] = {"age": {"kind": "number", "scaling": "robust"}, "income": {"kind": "number"}}
    rows = [row for row in people() if row["site"] == "north"]
    for k, row in enumerate(rows):
        row["age"] = 41 if k == 3 else ""
    write(here / "north.csv", rows, COLUMNS[1:])
    age = site_sums("north.csv", options)["columns"]["age"]
    assert (age["present"], age["total"], age["bins"]) == (0, 0.0, {})
    schema = join({name: site_sums(f"{name}.csv", options, least=15) for name in SITES})
    assert schema.coder.fitted["age"].scale > 0


def test_words_that_sites_write_in_two_ways_are_refused(here: Path) -> None:
    options = read(here / "agreed.toml")[3]["scenario_options"]
    loud = [{**row, "sick": row["sick"].upper()} for row in people() if row["site"] == "south"]
    write(here / "south.csv", loud, COLUMNS[1:])
    with pytest.raises(
        DataError, match=r"class: 'NO' and 'no'.* differ only in capital letters or spaces between sites"
    ):
        join({name: site_sums(f"{name}.csv", options, least=1) for name in SITES})


def test_a_regression_keeps_its_loss_and_unit(here: Path) -> None:
    columns = {"age": {"kind": "number"}}
    schema = shared(here, label="income", task="regression(loss=huber, unit=EUR)", columns=columns)
    assert schema.task.startswith("regression(loss=huber, unit=EUR, centre=")
