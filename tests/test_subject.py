"""Rows of one person are in one part: for training, for testing, at the server or held out; in the simulator and at sites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

import equipoise as eq
from equipoise.cli.init import read
from equipoise.core.task import CLASSIFICATION
from equipoise.data.contents import DataError
from equipoise.data.samples import held_rows
from equipoise.data.tables.columns import UserData
from equipoise.flower.server.scores import held_out
from equipoise.records.meta import REPEATED
from equipoise.report.statistics import Comparison
from equipoise.scenarios.own import divided
from equipoise.scenarios.shared import join, site_sums
from run_helpers import equipoise

__all__ = ["equipoise"]  # a fixture

QUICK = settings(max_examples=60, deadline=None)
Row = dict[str, Any]


def visits(n: int = 240, people: int = 60) -> list[Row]:
    """Visits of people, of whom some come to both hospitals."""
    draw = np.random.default_rng(3)
    rows = []
    for _ in range(n):
        who = int(draw.integers(people))
        site = ["north", "south"][int(draw.integers(2))] if who < 5 else ["north", "south"][who % 2]
        rows.append(
            {"age": int(20 + who), "dose": round(float(draw.gamma(2.0)), 3), "patient": f"p{who}", "site": site, "label": ["sick", "well"][who // 2 % 2]}
        )  # fmt: skip
    return rows


def write(path: Path, rows: list[Row]) -> Path:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@st.composite
def people_of_clients(draw: st.DrawFn) -> UserData:
    n = draw(st.integers(8, 60))

    def words(letters: str, most: int) -> tuple[str, ...]:
        return tuple(f"{letters}{k}" for k in draw(st.lists(st.integers(0, most), min_size=n, max_size=n)))

    client = words("c", draw(st.integers(0, 3))) if draw(st.booleans()) else None
    return UserData(
        "t.csv", "a table", words("y", 2), np.zeros((n, 1)), client=client, subject=words("p", draw(st.integers(3, 40)))
    )


@QUICK
@given(people_of_clients(), st.integers(0, 2**16), st.floats(0.05, 0.5), st.sampled_from([0.0, 0.2]))
def test_no_person_is_in_two_parts(own: UserData, seed: int, test: float, server: float) -> None:
    assume(len({*(own.subject or ())}) >= 4)
    options = {} if own.client is not None else {"clients": 2, "alpha": 100.0}
    parts = divided(own, seed, test=test, server_validation=server, **options)  # type: ignore[arg-type]
    tested = [row for rows in parts.test.values() for row in rows]
    assert sorted([*parts.training, *tested, *parts.validation]) == list(range(len(own)))
    assert own.subject is not None
    named = [{own.subject[row] for row in rows} for rows in (parts.training, tested, parts.validation)]
    assert sum(map(len, named)) == len({*own.subject})
    assert {own.label[row] for row in parts.training} == {*own.label}
    assert parts == divided(own, seed, test=test, server_validation=server, **options)  # type: ignore[arg-type]
    if own.client is None:  # each is dealt to one client
        of_clients = [{own.subject[row] for row in rows} for rows in parts.train.values()]
        assert sum(map(len, of_clients)) == len(set[str]().union(*of_clients))


@QUICK
@given(st.lists(st.integers(-1, 9), min_size=1, max_size=60), st.floats(0.01, 0.99), st.integers(0, 99))
def test_people_are_held_out_whole_or_not_at_all(people: list[int], share: float, seed: int) -> None:
    who = np.array(people)
    held = held_rows(len(who), who % 3, share, seed, "north", who)
    inside, outside = {*who[held].tolist()}, {*who[~held].tolist()}
    assert not inside & outside
    assert -1 not in inside
    eligible = len({*people} - {-1})
    assert len(inside) == max(0, min(int(share * eligible + 1e-9), eligible - 1))


def test_a_person_each_is_as_without_people() -> None:
    y = np.arange(50) % 3
    assert (held_rows(50, y, 0.3, 4, "x", np.arange(50)) == held_rows(50, y, 0.3, 4, "x")).all()


def test_a_run_holds_people_out_and_learns_from_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", visits())
    made = eq.scenario("own", 4, data=path, client="site", subject="patient", validation=0.3)
    assert "patient" not in str(made.manifest["inputs"])
    fed = eq.Federation(
        eq.network("mlp", made.shape, 2, hidden=[2]), made.holders, seed=4, validation=0.3, names=made.client_names, tests={}
    )  # fmt: skip
    assert fed.held is not None
    ages = (
        [{*d.content.x[:, 0].tolist()} for d in fed.trial.data],
        [{*d.content.x[:, 0].tolist()} for d in fed.held.sets],
    )  # type: ignore[union-attr]
    trained, held = (set[float]().union(*each) for each in ages)  # the age is that of one person
    assert trained
    assert held
    assert not trained & held
    assert not held & {*torch.cat([x for x, _ in made.tests.values()])[:, 0].tolist()}
    x = torch.cat([d.content.x for d in fed.trial.data]).numpy()  # type: ignore[union-attr]
    assert (x.mean(0), x.std(0)) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    assert any(
        "5 people have training rows at several clients" in note or "people have training rows" in note
        for note in made.manifest["notes"]
    )


@pytest.mark.parametrize("engine", ["auto", "flower-inproc"])
def test_from_the_command_line(
    tmp_path: Path, equipoise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", visits())
    done = equipoise("init", "--data", "t.csv", "--set", "client=site", "--set", "subject=patient")
    assert (done.status, "subjects: 60, each with all rows in one part" in done.out) == (0, True)
    assert read(Path("equipoise.toml"))["scenario_options"]["subject"] == "patient"
    more = (
        "--rounds",
        1,
        "--validation",
        0.3,
        "--seed",
        4,
        "--no-report",
        "--engine",
        engine,
        "--name",
        "r",
        "--runs",
        ".",
    )
    done = equipoise("run", "--config", "equipoise.toml", *more)
    assert done.status == 0, done.err
    record = json.loads((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()[-1])
    parts = eq.scenario("own", 4, data="t.csv", client="site", subject="patient", validation=0.3)
    held = [
        held_rows(len(y), y.numpy(), 0.3, 4, name, who.numpy())
        for (_, y), name, who in zip(parts.clients, parts.client_names, parts.people or (), strict=True)
    ]
    assert record["validation"]["n"] == sum(int(rows.sum()) for rows in held)


def test_sites_hold_the_same_people_out(tmp_path: Path) -> None:
    rows = [
        {**row, "split": "test" if int(row["patient"][1:]) % 5 == 0 else "train"}
        for row in visits()
        if int(row["patient"][1:]) >= 5
    ]
    whole = eq.scenario(
        "own", 2, data=write(tmp_path / "t.csv", rows), client="site", subject="patient", validation=0.25
    )
    columns = {"age": {"kind": "number"}, "dose": {"kind": "number"}}
    options, sums = {"subject": "patient", "columns": columns}, {}
    for site in ("north", "south"):
        path = write(
            tmp_path / f"{site}.csv",
            [{k: v for k, v in row.items() if k != "site"} for row in rows if row["site"] == site],
        )
        sums[site] = site_sums(path, options, least=1, seed=2, validation=0.25, site=site)
    schema = join(sums)
    assert schema.coder.as_json()["fitted"] == whole.manifest["schema"]["fitted"]
    for site, theirs in zip(("north", "south"), whole.holders, strict=True):
        mine = schema.samples(tmp_path / f"{site}.csv")[0]
        assert isinstance(mine, eq.OfPeople)
        assert isinstance(theirs, eq.OfPeople)
        same = [
            held_rows(len(each.people), each.data[1].numpy(), 0.25, 2, site, np.asarray(each.people))
            for each in (mine, theirs)
        ]
        assert (same[0] == same[1]).all()
        assert all(torch.equal(a, b) for a, b in zip(mine.data, theirs.data, strict=True))
        assert torch.equal(schema.read(tmp_path / f"{site}.csv")[0][0], mine.data[0])


def test_parts_that_divide_a_person_are_refused(tmp_path: Path) -> None:
    rows = [{**row, "split": "test" if k % 9 == 0 else "train"} for k, row in enumerate(visits())]
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(DataError, match=r"\d+ of \d+ people \(p.* have rows in several parts of the column split"):
        eq.scenario("own", data=path, client="site", subject="patient")
    with pytest.raises(DataError, match="several parts"):
        site_sums(path, {"subject": "patient", "columns": {"age": {"kind": "number"}}})


def test_people_that_are_not_one_for_each_sample_are_refused() -> None:
    x, y = torch.randn(6, 2), torch.arange(6) % 2
    for people in (range(5), [0.5] * 6, [[0]] * 6):
        with pytest.raises(
            ValueError, match=r"client-0: people must be whole numbers \[n\], one for each of 6 samples"
        ):
            eq.Federation(torch.nn.Linear(2, 2), [eq.OfPeople((x, y), people)], tests={})
    with pytest.raises(ValueError, match="not Lazy"):
        eq.Federation(torch.nn.Linear(2, 2), [eq.OfPeople(eq.Lazy(lambda: (x, y), 6), range(6))], tests={})


def test_arrays_have_people_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    who = np.arange(60) % 20
    np.savez(tmp_path / "a.npz", x=draw.normal(size=(60, 2)), y=who % 2, client=who % 3, subject=who)
    made = eq.scenario("own", data=tmp_path / "a.npz")
    assert made.people is not None
    assert {*torch.cat(made.people).tolist()} < {*range(20)}
    assert all(len(rows) % 3 == 0 for rows in made.manifest["clients"].values())


def test_folders_have_no_people(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(DataError, match="subject is an option of"):
        eq.scenario("own", data=tmp_path, subject="patient")


def test_a_server_takes_any_number_of_rows_of_people() -> None:
    """As the share is one of people, and these have different numbers of rows; of rows the number must be right."""
    scores = [2, 0.5, 1, 2, 2]  # samples, loss, and how many are right, true and chosen
    assert not isinstance(held_out({"found": scores}, 8, 0.2, CLASSIFICATION), str)
    assert held_out({"found": scores}, 20, 0.2, CLASSIFICATION) == "sent scores that cannot be used"
    assert not isinstance(held_out({"found": scores}, 20, 0.2, CLASSIFICATION, people=True), str)


def test_rows_that_are_there_twice_are_counted(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    rows = [
        {
            "a": round(float(draw.normal()), 4),
            "b": k % 3,
            "site": "xy"[k % 2],
            "label": "uv"[k // 2 % 2],
            "split": "train",
        }
        for k in range(60)
    ]
    notes = eq.scenario(
        "own", data=write(tmp_path / "t.csv", [*rows, {**rows[0], "split": "test", "a": 9}]), client="site"
    ).manifest["notes"]
    assert not any("the same" in note for note in notes)
    copies = [{**row, "split": "test"} for row in rows[:7]] + [{**row, "site": "y"} for row in rows[20:26:2]]
    notes = eq.scenario("own", data=write(tmp_path / "t.csv", [*rows, *copies]), client="site").manifest["notes"]
    assert any(note.startswith("7 of 7 test rows are the same as a training row, in all columns") for note in notes)
    assert any(note.startswith("3 different rows are at several clients for training") for note in notes)


@pytest.mark.parametrize(("people", "said"), [([0, 0, 1, 1], True), ([0, 1, 2, 3], False), ([-1, -1, 0, 1], True)])
def test_runs_say_that_rows_of_one_person_are_not_independent(tmp_path: Path, people: list[int], said: bool) -> None:
    """The report, the committee's page, the threshold and the card."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 2, generator=draw), torch.arange(80) % 2
    who = torch.tensor(people).repeat(20) + torch.arange(20).repeat_interleave(4) * 4 * (
        torch.tensor(people).repeat(20) >= 0
    )
    fed = eq.Federation(
        eq.network("mlp", (2,), 2, seed=0, hidden=[]), [eq.OfPeople((x, y), who)], "fedavg", eq.SGD(0.1),
        tests={"all": (x, y)}, validation=0.3, positive=1,
    )  # fmt: skip
    fed.fit(1, progress=False)
    assert (REPEATED in fed.header) == said
    assert (REPEATED in Comparison.of([fed.history])["notes"]) == said
    assert (REPEATED in eq.choose_threshold(fed, youden=True).document["notes"]) == said
    fed.save_bundle(tmp_path / "b")
    assert (REPEATED in (tmp_path / "b" / "card.html").read_text()) == said
