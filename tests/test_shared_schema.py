"""Tables of several sites: what each gives, the schema that this makes, and rows coded by it."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file

import equipoise as eq
from equipoise.bundle.files import KEPT
from equipoise.cli.init import read
from equipoise.data.contents import DataError
from equipoise.data.tables.coding import Sums
from equipoise.flower.deploy import project
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
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))  # where no other test has given sums of these rows
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
    options = {**read(here / "agreed.toml")["scenario_options"], **more}
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
    assert "schema.json exists already. Add --force" in equipoise("schema", "join", "north.json", "south.json").err
    damaged = equipoise("schema", "join", "north.json", "south.json", "--force")
    assert "north.json was changed or is damaged" in damaged.err
    again = ("schema", "sums", "south.csv", "--config", "agreed.toml", "-o", "south.csv", "--least", "1")
    assert "south.csv exists already. Add --force" in equipoise(*again).err
    alone = equipoise("schema", "join", "south.json", "-o", "alone.json")
    assert "south.json are the sums of one site" in alone.err
    assert not (here / "alone.json").exists()
    with pytest.raises(DataError, match=r"south: made with other options than north\. All sites need the same file"):
        join({"north": north, "south": {**north, "options": {}}})


@pytest.mark.parametrize("least", [2, 10, 30])
def test_small_counts_do_not_leave_a_site(here: Path, least: int) -> None:
    options = read(here / "agreed.toml")["scenario_options"]
    for name in SITES:
        content = site_sums(f"{name}.csv", options, least=least)
        for sums in (*content["columns"].values(), content["label"], *content["values"].values()):
            assert all(n >= least for n in sums["words"].values())
            assert all(n >= least for n in sums["counts"])
            assert len(sums["counts"]) == len(sums["points"])
            assert sum(sums["words"].values()) + sum(sums["counts"]) in (sums["present"], 0)
        json.dumps(content)  # nothing but JSON
    exact, coarse = shared(here).coder.fitted, shared(here, 10).coder.fitted
    assert coarse["income"].centre == exact["income"].centre
    assert coarse["age"].fill == pytest.approx(exact["age"].fill, abs=12)  # groups of ten rows


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"a": 100, "b": 60, "c": 4}, {"a": 100, "b": 54, "": 10}),  # b keeps its name
        ({"a": 100, "b": 12, "c": 4}, {"a": 100, "": 16}),  # b would keep fewer than ten
        ({"a": 100, "b": 6, "c": 5}, {"a": 100, "": 11}),
        ({"a": 30, "": 4}, {"a": 24, "": 10}),  # missing values of an attribute
        ({"a": 30, "": 12, "b": 3}, {"a": 30, "": 15}),
        ({"a": 30, "b": 20}, {"a": 30, "b": 20}),
        ({"a": 6, "b": 6}, {"": 12}),
        ({"a": 6, "b": 3}, {}),
    ],
)
def test_counts_that_a_subtraction_would_tell_are_joined(words: dict[str, int], told: dict[str, int]) -> None:
    n = sum(words.values())
    assert dict(Sums(n, n, words=words).suppressed(10).words) == told


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1), st.integers(1, 12))
def test_no_count_below_the_least_follows_from_what_is_told(words: dict[str, int], least: int) -> None:
    n = sum(words.values())
    told = Sums(n, n, words=words).suppressed(least)
    assert all(count >= least for count in told.words.values())
    assert sum(told.words.values()) == told.present
    assert all(told.words[word] <= words[word] for word in told.words if word)
    assert {word for word in words if words[word] >= 3 * least} <= {*told.words}, "frequent categories keep their names"


def test_rare_rows_give_the_same_sums_however_many_they_are() -> None:
    told = [Sums(164, 164, words={"a": 100, "b": 64 - k, "c": k}).suppressed(10) for k in range(1, 10)]
    assert all(each == told[0] for each in told)


def test_columns_that_a_site_lacks_are_named(here: Path, equipoise: Any, caplog: pytest.LogCaptureFixture) -> None:
    """All cells of age are missing at south; a column that all sites lack; a site whose file has other columns; few rows; two numbers."""
    assert (
        "column age: every cell is missing at client south, and not elsewhere."
        in equipoise("init", "--data", "all.csv", "--set", "label=sick", "--set", "client=site", "-o", "own.toml").out
    )
    options = read(here / "agreed.toml")["scenario_options"]
    for name in SITES:
        equipoise("schema", "sums", f"{name}.csv", "--config", "agreed.toml", "-o", f"{name}.json")
    done = equipoise("schema", "join", *(f"{name}.json" for name in SITES))
    assert "age: no sums of south.json" in done.out
    rows = [{**row, "age": "", "income": ""} for row in people()]
    for name in SITES:
        write(here / f"{name}.csv", [row for row in rows if row["site"] == name], COLUMNS[1:])
    empty = {name: site_sums(f"{name}.csv", options) for name in SITES}
    with pytest.raises(DataError, match=r'columns age, income: no site .*age = { kind = "left out" }, income = { kind'):
        join(empty)
    fewer = {**options, "columns": {"job": options["columns"]["job"]}}
    with pytest.raises(
        DataError, match=r"west: made with other options than north\. west has no sums of age, income\."
    ):
        join({**empty, "west": site_sums("west.csv", fewer)})
    write(here / "west.csv", rows[2:20:3], COLUMNS[1:])
    with pytest.raises(DataError, match=r"west\.csv has 5 training rows.*--least 5"):
        site_sums("west.csv", options)
    write(here / "west.csv", [{**row, "income": int(k < 4)} for k, row in enumerate(rows)], COLUMNS[1:])
    site_sums("west.csv", options)
    assert "column income: two numbers, of which fewer than 10 rows have one" in caplog.text


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


def train_at_sites(here: Path, task: Any, method: str, name: str = "run", **node: Any) -> None:
    """A run across the three sites, whose states are in one folder."""
    from flwr.app import Context, RecordDict

    from equipoise.flower import InProcessGrid, make_client_app, make_server_app

    settings = {"method": method, "rounds": 2, "lr": 0.1, "min-sites": 3, "run-dir": str(here / name), "seed": 0}
    settings["secure"] = bool(node.get("secure"))
    nodes = [{"site": site, "state-dir": str(here / "states"), **node} for site in SITES]
    client, server = make_client_app(task), make_server_app(task)
    server(InProcessGrid(client, nodes, settings), Context(1, 0, {}, RecordDict(), settings))


def train_on_tables(here: Path, method: str, name: str = "run", **node: Any) -> None:
    from equipoise.flower import Task

    schema = shared(here)

    def task(node_config: Any, _: Any) -> Task:
        return Task.of_table(network(), schema, f"{node_config['site']}.csv" if "site" in node_config else None)

    train_at_sites(here, task, method, name, **node)


def network() -> torch.nn.Module:
    return eq.network("mlp", (7,), 2, hidden=[5], seed=0)


def simulated(method: str) -> tuple[eq.Federation, Any]:
    whole = eq.scenario("own", data="all.csv", label="sick", client="site", group="sex", tests="clients")
    about = {"names": whole.client_names, "classes": whole.classes, "attributes": whole.attributes}
    fed = eq.Federation(
        network(), whole.clients, method, eq.SGD(lr=0.1), tests=whole.tests, seed=0, task=whole.task, **about
    )
    fed.fit(2, progress=False)
    return fed, whole


def test_a_federation_of_sites_gives_the_bundle_of_the_simulator(here: Path, equipoise: Any) -> None:
    """The server's bundle, taken home, predicts with the simulator's bits."""
    import pandas as pd

    train_on_tables(here, "fedavg")
    done = equipoise("export", "run", "--bundle", "home")
    assert (done.status, "server's last model" in done.out) == (0, True)
    assert "change README.md and card.html of the copy" in equipoise("export", "run", "--bundle", "h", "--use", "x").err
    assert 'eq.load("home")' in Path("home/README.md").read_text()
    fed, _ = simulated("fedavg")
    frame = pd.read_csv("all.csv")
    inputs, _ = shared(here).coder.encode_frame(frame)
    weights = load_file("home/model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in fed.state_dict().items())
    probabilities = torch.from_numpy(eq.load("home").predict_proba(frame))
    net = fed.network().eval()
    with torch.no_grad():
        assert torch.equal(probabilities, net(torch.from_numpy(inputs)).softmax(1).to(probabilities))


def test_the_card_of_a_site_says_that_rows_of_one_person_are_not_independent(here: Path) -> None:
    from equipoise.flower import Task
    from equipoise.records.meta import REPEATED

    schema = shared(here)

    def task(node_config: Any, _: Any) -> Task:
        made = Task.of_table(network(), schema, f"{node_config['site']}.csv" if "site" in node_config else None)
        if node_config.get("site") != "north":
            return made
        return replace(made, train=eq.OfPeople(made.train, torch.arange(len(made.train[1])) // 2))

    train_at_sites(here, task, "fedavg")
    cards = {path.parent.parent.name: path.read_text() for path in (here / "states").rglob("card.html")}
    assert {site: REPEATED in card for site, card in cards.items()} == {site: site == "north" for site in SITES}


@pytest.mark.parametrize("method", ["fedavg", "standalone", "ditto-personal", "fedavg-finetune"])
def test_a_site_takes_the_model_that_the_simulator_gives_this_client(method: str, here: Path, equipoise: Any) -> None:
    """Its own, bit for bit, with the same measures on its own test rows, and nothing of the rows of others."""
    train_on_tables(here, method)
    fed, whole = simulated(method)
    for m, name in enumerate(SITES):
        run = next((here / "states").glob("*/")).name
        done = equipoise("flower", "take", "states", "--bundle", f"of-{name}", "--run", f"{run}/{name}")
        assert (done.status, f"of {run}/{name}" in done.out) == (0, True)
        fed.save_bundle(f"simulated-{name}", client=m, data=whole.manifest)
        mine, theirs = (load_file(f"{folder}-{name}/model.safetensors") for folder in ("of", "simulated"))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        schemas = [(here / f"{folder}-{name}/schema.json").read_bytes() for folder in ("of", "simulated")]
        assert schemas[0] == schemas[1]
        site, client = (
            json.loads((here / f"{folder}-{name}/bundle.json").read_text()) for folder in ("of", "simulated")
        )
        assert site["measures"]["sets"] == {name: client["measures"]["sets"][name]}
        same = ("classes", "positive", "network", "method", "seed", "round", "rounds", "client", "inputs", "task")
        assert {key: site[key] for key in same} == {key: client[key] for key in same}
        card = (here / f"of-{name}/README.md").read_text()
        assert f"test samples of {name} and of no other site" in card
        assert f"of {name}, and of other sites, of which nothing is known here" in card
        assert f"# of-{name}\n" in card
        for kind in ("README.md", "card.html"):
            text = html.unescape((here / f"of-{name}" / kind).read_text())
            assert f'eq.load("of-{name}")' in text
            assert KEPT not in text
        rows = [row for row in people() if row["site"] == name]
        write(here / "new.csv", rows, COLUMNS[1:])
        again = [equipoise("predict", f"{folder}-{name}", "new.csv").out for folder in ("of", "simulated")]
        assert again[0] == again[1]


def test_sites_with_images_and_numbers_to_predict_take_their_models_too(tmp_path: Path) -> None:
    """Private BatchNorm layers of images, and a regression of arrays, with no schema of tables."""
    from equipoise.flower import Task, take

    draw = torch.Generator().manual_seed(0)
    images, numbers = torch.rand(3, 24, 1, 16, 16, generator=draw), torch.randn(3, 24, 4, generator=draw)
    labels, values = torch.arange(24) % 2, numbers.sum(2).double() * 30 + 100
    net = eq.network("cnn", (1, 16, 16), 2, norm="batch", seed=0)
    cases = {
        "fedbn": (net, [(x, labels) for x in images], "classification"),
        "ditto": (
            eq.network("mlp", (4,), 1, seed=0),
            [*zip(numbers, values, strict=True)],
            "regression(centre=100, scale=60)",
        ),
    }
    for method, (network, data, task) in cases.items():
        home = tmp_path / method
        sets = dict(zip(SITES, data, strict=True))

        def at_site(node: Any, _: Any, network: Any = network, sets: Any = sets, task: Any = task) -> Task:
            own = sets.get(node.get("site"))
            return Task(network, own, own, task=task)

        train_at_sites(home, at_site, method)
        fed = eq.Federation(network, data, method, eq.SGD(lr=0.1), tests=sets, names=SITES, task=task, seed=0)
        fed.fit(2, progress=False)
        run = next((home / "states").glob("*/")).name
        for m, name in enumerate(SITES):
            take(home / "states", home / name, run=f"{run}/{name}")
            fed.save_bundle(home / f"simulated-{name}", client=m)
            mine, theirs = (load_file(home / folder / "model.safetensors") for folder in (name, f"simulated-{name}"))
            assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
            x = data[m][0].numpy()
            assert np.array_equal(eq.load(home / name).predict(x), eq.load(home / f"simulated-{name}").predict(x))


def test_a_network_of_the_users_own_is_stored_and_take_states_why_it_is_no_bundle(tmp_path: Path) -> None:
    from equipoise.flower import Task, take

    x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2

    def task(node: Any, _: Any) -> Task:
        return Task(torch.nn.Linear(4, 2), *[(x, y)] * 2 * ("site" in node))

    train_at_sites(tmp_path, task, "fedavg")
    (run,) = (tmp_path / "states").glob("*/")
    assert (run / "west" / "model.safetensors").exists()
    with pytest.raises(ValueError, match=r"and no bundle of them\. The network is your own code \(Linear\)"):
        take(tmp_path / "states", tmp_path / "home", run=f"{run.name}/west")


def test_after_masked_rounds_server_and_sites_take_the_same_model(here: Path, equipoise: Any) -> None:
    from equipoise.flower import take

    train_on_tables(here, "fedavg", secure=True)
    assert equipoise("export", "run", "--bundle", "home").status == 0
    (run,) = (here / "states").glob("*/")
    take("states", "mine", run=f"{run.name}/south")
    assert Path("home/model.safetensors").read_bytes() == Path("mine/model.safetensors").read_bytes()
    assert json.loads(Path("mine/bundle.json").read_text())["measures"]["sets"].keys() == {"south"}


def test_numbers_about_too_few_test_rows_are_not_in_the_bundle_of_a_site(here: Path) -> None:
    from equipoise.flower import take

    train_on_tables(here, "fedavg", **{"least-group": 20})
    run = next((here / "states").glob("*/")).name
    assert take("states", "home", run=f"{run}/north") == f"{run}/north"
    assert json.loads((here / "home/bundle.json").read_text())["measures"] == {}
    assert "It was not tested." in (here / "home/README.md").read_text()


def test_a_site_with_several_runs_is_asked_which_one(here: Path, equipoise: Any) -> None:
    from equipoise.flower import take

    with pytest.raises(ValueError, match=r"nowhere holds no model\. Give the state-dir"):
        take("nowhere", "home")
    for name in ("first", "second"):
        train_on_tables(here, "fedavg", name)
    for site in SITES:
        for folder in (here / "states").glob(f"*/{site}"):
            folder.rename(here / f"{site}-{folder.parent.name}")
            (here / site / folder.parent.name).mkdir(parents=True)
            (here / f"{site}-{folder.parent.name}").rename(here / site / folder.parent.name / site)
    runs = sorted(path.name for path in (here / "north").iterdir())
    asked = equipoise("flower", "take", "north", "--bundle", "home")
    assert asked.status == 2
    assert f"north holds the models of 2 runs: {runs[0]}, {runs[1]}. Say which one" in asked.err
    assert f"--run {runs[1]}" in asked.err
    assert not (here / "home").exists()
    assert "--run third: not the name" in equipoise("flower", "take", "north", "--bundle", "home", "--run", "third").err
    assert equipoise("flower", "take", "north", "--bundle", "home", "--run", runs[0]).status == 0
    assert "replaces nothing" in equipoise("flower", "take", "north", "--bundle", "home", "--run", runs[0]).err
    shutil.rmtree(here / "north" / runs[1] / "north" / "bundle")
    with pytest.raises(ValueError, match=r"has the weights, model\.safetensors, and no bundle of them"):
        take("north", "other", run=runs[1])
    (here / "north" / runs[0] / "north" / "bundle" / "model.safetensors").write_bytes(b"another")
    with pytest.raises(ValueError, match="was edited"):
        take("north", "other", run=runs[0])


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


def test_a_project_of_tables_states_that_its_sums_were_not_masked(here: Path, equipoise: Any) -> None:
    for name in SITES:
        done = equipoise("schema", "sums", f"{name}.csv", "--config", "agreed.toml", "-o", f"{name}.json")
        assert "The sums are not masked: whoever gets this file sees those of this site." in done.out
    assert equipoise("schema", "join", *(f"{name}.json" for name in SITES)).status == 0
    made = equipoise("flower", "init", "trial", "--schema", "schema.json")
    assert "secure = true masks the updates of rounds, and never these sums" in made.out
    assert "those for the digits, with the method fedheal. To take those of a file of `equipoise init`" in made.out
    readme = Path("trial/README.md").read_text()
    assert "The sums that made this schema were not masked" in readme
    assert 'data-path = "/data/site-2.csv"' in readme
    assert "digits that come" not in readme
    assert equipoise("flower", "init", "plain").status == 0
    readme = Path("plain/README.md").read_text()
    assert "masked" not in readme
    assert "digits that come with Equipoise: site-0, site-1, site-2." in readme
    for command in ("sums", "join"):
        assert "not masked" in " ".join(equipoise("schema", command, "--help").out.split())


@pytest.mark.parametrize(
    ("written", "reaches"),
    [
        ('method = "fedavg"\n', {"method": "fedavg", "lr": 0.02, "rounds": 30}),
        (
            'method = "fedprox+fedheal"\nseed = 3\nrounds = 7\npositive = "yes"\n[set]\n"fedheal.tau" = 0.45\n',
            {"method": "fedprox+fedheal(tau=0.45)", "seed": 3, "rounds": 7, "positive": "yes"},
        ),
        ('optimizer = "adam"\nbatch_size = 8\n', {"optimizer": "adam", "lr": 0.001, "momentum": 0.0, "batch-size": 8}),
        ('steps = 5\nnetwork = "cnn(width=8)"\nengine = "stacked"\n', {"steps": 5}),
    ],
)
def test_a_project_has_the_settings_of_the_file_that_sites_agreed_on(
    tmp_path: Path, written: str, reaches: dict[str, Any], equipoise: Any
) -> None:
    (tmp_path / "agreed.toml").write_text(written)
    done = equipoise("flower", "init", tmp_path / "trial", "--config", tmp_path / "agreed.toml")
    assert done.status == 0, done.err
    settings = project.settings(tmp_path / "trial")
    assert reaches == {name: settings[name] for name in reaches}
    assert f'METHOD = "{settings["method"]}"' in (tmp_path / "trial/myapp.py").read_text()
    assert ("not taken, as each site has its own or the schema has it: network, engine" in done.out) == (
        "network" in written
    )


def test_sums_of_few_rows_give_no_number_and_no_wrong_scale(here: Path) -> None:
    options = read(here / "agreed.toml")["scenario_options"]
    options["columns"] = {"age": {"kind": "number", "scaling": "robust"}, "income": {"kind": "number"}}
    rows = [row for row in people() if row["site"] == "north"]
    for k, row in enumerate(rows):
        row["age"] = 41 if k == 3 else ""
    write(here / "north.csv", rows, COLUMNS[1:])
    age = site_sums("north.csv", options)["columns"]["age"]
    assert (age["present"], age["total"], age["points"]) == (0, 0.0, ())
    schema = join({name: site_sums(f"{name}.csv", options, least=15) for name in SITES})
    assert schema.coder.fitted["age"].scale > 0


def test_words_that_sites_write_in_two_ways_are_refused(here: Path) -> None:
    options = read(here / "agreed.toml")["scenario_options"]
    loud = [{**row, "sick": row["sick"].upper()} for row in people() if row["site"] == "south"]
    write(here / "south.csv", loud, COLUMNS[1:])
    with pytest.raises(
        DataError, match=r"class: 'NO' and 'no'.* differ only in capital letters, spaces or zeros between sites"
    ):
        join({name: site_sums(f"{name}.csv", options, least=1) for name in SITES})


def test_a_regression_keeps_its_loss_and_unit(here: Path) -> None:
    columns = {"age": {"kind": "number"}}
    schema = shared(here, label="income", task="regression(loss=huber, unit=EUR)", columns=columns)
    assert schema.task.startswith("regression(loss=huber, unit=EUR, centre=")


@pytest.mark.parametrize("word", ["None", "NA", "-"])
def test_a_class_of_few_rows_whose_name_looks_missing_is_refused(here: Path, word: str) -> None:
    """It is no unknown class: its rows would be trained on as class -1."""
    rows = people()
    for row in [row for row in rows if row["split"] == "train"][:2]:
        row["sick"] = word
    for name in SITES:
        write(here / f"{name}.csv", [row for row in rows if row["site"] == name], COLUMNS[1:])
    options = {**read(here / "agreed.toml")["scenario_options"], "not_missing": [word]}
    assert word in join({name: site_sums(f"{name}.csv", options, least=1) for name in SITES}).classes
    schema = join({name: site_sums(f"{name}.csv", options, least=5) for name in SITES})
    assert word not in schema.classes
    with pytest.raises(DataError, match=rf"class '{word}' is not in the schema, whose values are no, yes"):
        schema.read("south.csv")


def test_a_site_with_another_unit_is_named(here: Path, equipoise: Any) -> None:
    """By the server, from the sums; and in the log of the site, that reads its table by the schema of the others."""
    rows = people()
    for row in rows:
        row["income"] = float(row["income"]) / 1000 if row["site"] == "west" else row["income"]
    for name in SITES:
        write(here / f"{name}.csv", [row for row in rows if row["site"] == name], COLUMNS[1:])
        assert equipoise("schema", "sums", f"{name}.csv", "--config", "agreed.toml", "-o", f"{name}.json").status == 0
    done = equipoise("schema", "join", *(f"{name}.json" for name in SITES))
    assert re.search(r"column income: the median at site west is 3\d+.*, and 3.*e\+07 elsewhere. Is its unit", done.out)


def test_a_site_reads_what_is_doubtful_before_it_sends_sums(
    here: Path, equipoise: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"label": "sick", "columns": {"income": {"kind": "number"}, "age": {"kind": "number"}}}
    rows = [row for row in people() if row["site"] == "north"]
    for k, row in enumerate(rows):
        row["income"] = 0 if k % 9 == 0 else 40_000 + 37 * k
        row["age"] = -999 if k % 11 == 0 else 30 + k % 40
    write(here / "north.csv", rows, ["income", "age", "sick"])
    (here / "north.toml").write_text(tomli_w.dumps({"columns": options.pop("columns"), "set": options}))
    done = equipoise("schema", "sums", "north.csv", "--config", "north.toml", "-o", "sums.json")
    assert done.status == 0, done.err
    assert "income is 0 in 9 of 80 rows" in caplog.text
    assert "age is -999 in 8 rows" in caplog.text
    assert "is 0 in" not in (here / "sums.json").read_text()


def test_a_site_whose_column_is_far_from_all_others_logs_it(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = shared(here)
    caplog.clear()
    schema.read("north.csv")
    assert not caplog.records
    rows = [{**row, "income": float(row["income"]) / 1000} for row in people() if row["site"] == "north"]
    write(here / "north.csv", rows, COLUMNS[1:])
    schema.read("north.csv")
    assert re.search("north.csv: column income: 80 numbers are very far.* Is the unit the same", caplog.text)
    age = [row for row in people() if row["site"] == "north"]
    write(here / "north.csv", [{**row, "age": 130 + k % 9} for k, row in enumerate(age)], COLUMNS[1:])
    schema.read("north.csv")
    assert "column age: the median is 134, far from the numbers of training. Is its unit the same?" in caplog.text
    write(here / "north.csv", [{**row, "job": ""} for row in rows], COLUMNS[1:])
    schema.read("north.csv")
    assert "north.csv: column job: every cell of 80 is missing, and counts as" in caplog.text


def test_a_site_with_test_rows_only_has_no_training_rows(here: Path) -> None:
    """It is read, as its rows may be tested on."""
    schema = shared(here)
    write(here / "north.csv", [{**row, "split": "test"} for row in people()[::3]], COLUMNS[1:])
    with pytest.raises(DataError, match="no sample is marked as train"):
        schema.read("north.csv")
