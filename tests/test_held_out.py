"""What clients hold out for validation enters nothing that is learnt of a table: in runs, in Python and at sites."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data.contents import DataError
from equipoise.data.samples import held_rows
from equipoise.federation.method import Method
from equipoise.flower.server.consortium import description
from equipoise.flower.site.site import open_site
from equipoise.flower.site.store import Store
from equipoise.flower.site.task import Task
from equipoise.scenarios.shared import SharedSchema, join, site_sums
from equipoise.system.errors import SiteError
from run_helpers import equipoise

__all__ = ["equipoise"]  # a fixture

POISON = {"age": "1000000", "job": "poison", "dose": "", "since": "1700-01-01"}
COLUMNS = {
    "age": {"kind": "number", "scaling": "robust"},
    "dose": {"kind": "number"},
    "job": {"kind": "category"},
    "since": {"kind": "date", "form": "%Y-%m-%d"},
}
Rows = list[dict[str, str]]


def people(regression: bool, n: int = 90) -> Rows:
    draw = np.random.default_rng(1)
    return [
        {
            "age": str(draw.integers(20, 80)),
            "dose": f"{draw.gamma(2.0):.3f}",
            "job": ["nurse", "driver", "cook"][int(draw.integers(3))],
            "since": f"2015-0{1 + int(draw.integers(9))}-1{int(draw.integers(9))}",
            "site": ["north", "south"][k // 4 % 2],
            "split": ["train", "train", "train", "test"][k % 4],
            "label": f"{draw.normal(5):.3f}" if regression else ["sick", "well"][int(draw.integers(2))],
        }
        for k in range(n)
    ]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    return path


def poisoned(rows: Rows, share: float, seed: int, task: str) -> Rows:
    """The rows, of which those that a run holds out are changed, whatever is learnt of them."""
    made = [dict(row) for row in rows]
    order = sorted({row["label"] for row in rows}, key=float if task == "regression" else str)
    for site in ("north", "south"):
        mine = [k for k, row in enumerate(rows) if (row["site"], row["split"]) == (site, "train")]
        y = np.array([order.index(rows[k]["label"]) for k in mine])
        held = held_rows(len(mine), y, share, seed, site)
        assert held.any()
        for k in np.array(mine)[held].tolist():
            made[k] |= POISON
    return made


def learnt(path: Path, rows: Rows, seed: int, share: float, **options: Any) -> tuple[Any, Any]:
    """What a scenario learns of a file, and the scenario."""
    made = eq.scenario("own", seed, data=write(path, rows), client="site", columns=COLUMNS, validation=share, **options)
    return json.dumps(made.manifest["schema"]), made


@pytest.mark.parametrize(
    ("share", "seed", "more", "task"),
    [
        (0.2, 0, {}, "classification"),
        (0.5, 3, {"data_seed": 7}, "classification"),
        (0.31, 11, {}, "regression"),
        (0.05, 2, {"data_seed": 0}, "regression"),
    ],
)
def test_poisoned_validation_rows_change_nothing(
    tmp_path: Path, share: float, seed: int, more: dict[str, int], task: str
) -> None:
    rows = people(task == "regression")
    spoilt = poisoned(rows, share, seed, task)
    (clean, made), (same, spoilt_made) = (
        learnt(tmp_path / "t.csv", each, seed, share, task=task, **more) for each in (rows, spoilt)
    )
    assert clean == same
    assert clean != learnt(tmp_path / "t.csv", spoilt, seed, 0.0, task=task, **more)[0]
    assert clean != learnt(tmp_path / "t.csv", spoilt, seed + 1, share, task=task, **more)[0]
    kept = []
    for data in (made, spoilt_made):
        fed = eq.Federation(
            eq.network("mlp", data.shape, data.outputs, hidden=[2]), data.clients, seed=seed, validation=share,
            names=data.client_names, tests=data.tests, task=data.task,
        )  # fmt: skip
        kept.append([d.content.x for d in fed.trial.data])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*kept, strict=True))  # the rows that a run trains on


def test_targets_are_scaled_by_what_is_trained_on(tmp_path: Path) -> None:
    rows = people(regression=True)
    _, data = learnt(tmp_path / "t.csv", rows, 4, 0.3, task="regression")
    fed = eq.Federation(
        eq.network("mlp", data.shape, 1), data.clients, seed=4, validation=0.3, names=data.client_names, tests={}, task="regression"
    )  # fmt: skip
    y = torch.cat([d.content.y for d in fed.trial.data]).numpy()
    assert (fed.trial.model.task.centre, fed.trial.model.task.scale) == pytest.approx((y.mean(), y.std()))


def test_scenarios_of_the_package_learn_from_what_is_trained_on() -> None:
    made = eq.scenario("heart", 2, validation=0.25)
    fed = eq.Federation(
        eq.network("mlp", made.shape, 2), made.clients, seed=2, validation=0.25, names=made.client_names, tests={}
    )
    x = torch.cat([d.content.x for d in fed.trial.data]).numpy()[:, made.manifest["inputs"].index("age")]
    assert (x.mean(), x.std()) == pytest.approx((0, 1), abs=1e-5)
    assert abs(np.concatenate([c[0] for c in made.clients])[:, 0].mean()) > 1e-5


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_run_learns_from_what_it_trains_on(tmp_path: Path, equipoise: Callable[..., Any], task: str) -> None:
    """From the command line: the manifest of a run is that of the poisoned table, and so is its model."""
    rows, made = people(task == "regression"), []
    for name, each in (("clean", rows), ("spoilt", poisoned(rows, 0.2, 5, task))):
        path = write(tmp_path / f"{name}.csv", each)
        options = [f"--set={pair}" for pair in ("client=site", f"columns={json.dumps(COLUMNS)}")]
        where = ["--data", path, "--runs", tmp_path, "--name", name, "--task", task, "--no-report"]
        done = equipoise("run", *where, *options, "--rounds", 1, "--seed", 5, "--validation", 0.2)
        assert done.status == 0, done.err
        made.append(json.loads((tmp_path / name / "manifest.json").read_text())["data"])
        made.append(json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])["groups"])
    assert made[0]["schema"] == made[2]["schema"]
    assert made[0]["held_out"] == {"share": 0.2, "seed": 5}
    assert made[1] == made[3]  # the same model


def sums(tmp_path: Path, rows: Rows, sites: Sequence[str], **more: Any) -> dict[str, Any]:
    made = {}
    for site in sites:
        mine = [{k: v for k, v in row.items() if k != "site"} for row in rows if row["site"] == site]
        options = {"label": "label", "columns": COLUMNS}
        made[site] = site_sums(write(tmp_path / f"{site}.csv", mine), options, least=1, site=site, **more)
    return made


def test_sites_leave_out_what_they_hold_out_as_the_simulator_does(tmp_path: Path) -> None:
    rows = people(regression=False)
    spoilt = poisoned(rows, 0.2, 3, "classification")
    made = join(sums(tmp_path, spoilt, ("north", "south"), validation=0.2, seed=3))
    assert made.coder.as_json()["fitted"] == json.loads(learnt(tmp_path / "t.csv", rows, 3, 0.2)[0])["fitted"]
    made.save(tmp_path / "schema.json")
    again = SharedSchema.load(tmp_path / "schema.json")
    assert (again.validation, again.sites) == (0.2, ("north", "south"))
    assert again.doubt((0.2, 3), "north") == again.doubt((0.0, 9), "west") == ""
    for held, site in (((0.2, 4), "north"), ((0.3, 3), "north"), ((0.2, 3), "west")):
        assert f"--seed {held[1]} --site {site}" in again.doubt(held, site)
    plain = join(sums(tmp_path, rows, ("north", "south"), seed=3))
    assert "with nothing held out" in plain.doubt((0.2, 3), "north")
    assert plain.doubt((0.0, 3), "north") == ""


def test_sites_that_hold_out_without_a_name_or_by_several_shares_are_refused(tmp_path: Path) -> None:
    rows = people(regression=False)
    a, b = sums(tmp_path, rows, ["north"], validation=0.2), sums(tmp_path, rows, ["south"], validation=0.3)
    with pytest.raises(DataError, match="other options"):
        join(a | b)
    with pytest.raises(DataError, match="--site NAME"):
        site_sums(tmp_path / "north.csv", {"columns": COLUMNS}, validation=0.2)


def test_a_site_refuses_a_run_that_holds_out_what_was_learnt(tmp_path: Path) -> None:
    rows, fields = (
        people(regression=False),
        description(Method.of("fedavg"), eq.SGD(), eq.Settings(validation=0.2, seed=3), (), "x"),
    )
    for share in (0.2, 0.0):
        schema = join(sums(tmp_path, rows, ("north", "south"), validation=share, seed=3))
        task = Task.of_table(eq.network("mlp", (len(schema.inputs),), 2), schema, str(tmp_path / "north.csv"))
        if share:
            assert open_site("north", task, {**fields, "device": "cpu"}, Store(tmp_path), None).held is not None
            continue
        with pytest.raises(SiteError, match=r"was made with nothing held out.*--seed 3 --site north"):
            open_site("north", task, {**fields, "device": "cpu"}, Store(tmp_path), None)
