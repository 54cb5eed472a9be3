"""With several rows of a person, every least number and every interval is of people; clients of a simulation are none; no table shows what another hides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

import equipoise as eq
from equipoise import report
from equipoise.data.samples import at_one_client, held_rows
from equipoise.flower.site.site import without_small_cells
from equipoise.report import html, layout
from equipoise.report.committee import render
from equipoise.report.statistics import Comparison

GROUPS = ("f", "m", "x")


def visits(people: dict[str, int], rows: int, seed: int = 0) -> tuple[Any, np.ndarray[Any, Any]]:
    """Samples of so many people of each group, and whom each is about."""
    rng = np.random.default_rng(seed)
    sex = np.repeat([GROUPS.index(name) for name in people], [*people.values()])
    who = np.repeat(np.arange(len(sex)), rows)
    x = torch.tensor(rng.normal(size=(len(who), 3)), dtype=torch.float32)
    y = torch.tensor((x[:, 0].numpy() + rng.normal(size=len(who)) > 0).astype(int))
    return (x, y, torch.tensor(sex[who])), who


def trained(tests: Any, least: int = 10, **more: Any) -> eq.Federation:
    """A federation of two clients after a round, with the sex of people."""
    torch.manual_seed(0)
    train = [visits({"f": 60, "m": 60, "x": 60}, 1, seed)[0] for seed in (1, 2)]
    given_: dict[str, Any] = {"attributes": {"sex": GROUPS}, "classes": ["no", "yes"], "positive": "yes"} | more
    fed = eq.Federation(eq.network("mlp", (3,), 2, seed=0, hidden=[]), train, tests=tests, least_group=least, **given_)
    fed.fit(1, progress=False)
    return fed


@pytest.mark.parametrize(("people", "rows"), [(2, 40), (9, 5), (1, 300)])
def test_few_people_with_many_rows_have_no_number(people: int, rows: int, tmp_path: Path) -> None:
    """In a run, its threshold, its report, the page of the committee and the card."""
    data, who = visits({"f": 80, "m": people}, rows)
    fed = trained({"all": eq.OfPeople(data, who)}, validation=0.3)
    groups: Any = fed.history.people(1)["sex"]["treated"]
    assert groups["groups"]["m"]["n"] is groups["groups"]["m"]["accuracy"] is None
    assert {*groups["groups"]["m"]["tpr"]} == {None}
    assert groups["accuracy_gap"] is None
    rates = eq.choose_threshold(fed, youden=True).document["divisions"][0]["groups"]["m"]
    assert rates["n"] is rates["sensitivity"]["value"] is None
    fed.save_bundle(tmp_path / "b")
    row = re.search(r"^\| m \|.*$", (tmp_path / "b" / "README.md").read_text(), re.M)
    assert row is not None
    assert not re.search(r"\d\d", row[0].replace("< 10", ""))
    assert "n: people" in html.render([fed.history])


@pytest.mark.parametrize("task", [None, "regression"])
def test_an_audit_counts_people(task: str | None) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"sex": ["m"] * 80 + ["f"] * 300, "subject": [k % 29 for k in range(80)] + [*range(100, 400)]})
    frame["y"], frame["p"] = rng.integers(0, 2, 380), rng.integers(0, 2, 380)
    made = eq.audit(frame, label="y", prediction="p", group="sex", least=30, task=task, positive=None if task else "1")
    groups = made.document["people"]["sex"]["treated"]["groups"]
    assert groups["m"]["n"] is None
    assert {groups["m"][key] for key in (("rmse", "mae") if task else ("accuracy",))} == {None}
    enough = eq.audit(
        frame, label="y", prediction="p", group="sex", least=29, task=task, positive=None if task else "1"
    )
    assert enough.document["people"]["sex"]["treated"]["groups"]["m"]["n"] == 29


def test_a_person_at_two_sites_is_one() -> None:
    """Also where a test set does not name its people, and where sites have models of their own."""
    frame = pd.DataFrame(
        {
            "sex": ["m"] * 24 + ["f"] * 60,
            "subject": [*range(12)] * 2 + [*range(100, 160)],
            "site": (["a"] * 12 + ["b"] * 12) + ["a", "b"] * 30,
        }
    )
    frame["y"] = frame["p"] = np.arange(84) % 2
    people = eq.audit(frame, label="y", prediction="p", group="sex", least=20, positive="1").document["people"]["sex"]
    assert people["treated"]["groups"]["m"]["n"] is None
    assert people["treated"]["groups"]["f"]["n"] == 60 or people["treated"]["groups"]["f"]["n"] is None
    data, who = visits({"f": 40, "m": 12}, 1)
    for method in ("fedavg", "standalone"):
        sets = [eq.OfPeople(data, who)] * 2
        fed = trained(
            {"all": eq.OfPeople(data, who), "again": eq.OfPeople(data, who)} if method == "fedavg" else None,
            20,
            method=method,
            client_tests=sets,
        )
        groups: Any = fed.history.people(1)["sex"]["treated"]
        assert groups["groups"]["m"]["accuracy"] is None


@pytest.mark.parametrize("least", [1, 10])
def test_intervals_of_accuracy_are_of_people(least: int, tmp_path: Path) -> None:
    """Five copies of each row are worth the row."""
    data, _ = visits({"f": 100, "m": 100}, 1)
    copies = tuple(part.repeat_interleave(5, 0) for part in data)
    widths, cards = [], []
    for test in (data, eq.OfPeople(copies, np.arange(1000) // 5), copies):
        fed = trained({"all": test}, least, validation=0.3)
        ends = Comparison.of([fed.history], 1).document["methods"][0]["intervals"]["groups"][0]
        widths.append(np.ptp(ends))
        threshold: Any = eq.choose_threshold(fed, youden=True).document["everyone"]
        cards.append(
            [threshold["n"], *(threshold[key]["high"] - threshold[key]["low"] for key in ("sensitivity", "auc"))]
        )
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
    assert widths[2] < 0.75 * widths[0]
    assert cards[1] == pytest.approx(cards[0], rel=0.05)


@given(st.lists(st.lists(st.integers(-3, 12), min_size=1, max_size=30), min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_nobody_is_held_out_at_one_client_and_trained_on_at_another(clients: list[list[int]], seed: int) -> None:
    people = [np.array(each) for each in clients]
    held = [held_rows(len(who), None, 0.5, seed, str(k), who) for k, who in enumerate(at_one_client(people))]
    out = {int(p) for who, rows in zip(people, held, strict=True) for p in who[rows]}
    kept = {int(p) for who, rows in zip(people, held, strict=True) for p in who[~rows]}
    assert not out & kept
    assert all(p >= 0 for p in out)


def test_own_tensors_keep_the_promise_of_tables() -> None:
    data, who = visits({"f": 30, "m": 30}, 3)
    x = data[0]
    clients = [eq.OfPeople((x[rows], data[1][rows]), who[rows]) for rows in (slice(120), slice(60, None))]
    fed = eq.Federation(torch.nn.Linear(3, 2), clients, tests={"t": (x, data[1])}, validation=0.3)
    assert fed.held is not None
    shared = {*who[60:120].tolist()}
    for held in fed.held.sets:
        assert held is not None
        assert held.people is not None
        assert not shared & {*held.people.tolist()}


def test_the_spread_counts_all_clients_of_a_simulation() -> None:
    """Those with few test samples too; at real sites such a client is still left out."""
    n = [3] * 15 + [40] * 10
    values = np.random.default_rng(0).uniform(0.3, 1, 25).round(3).tolist()
    record: Any = {"round": 0, "groups": {"all": {"accuracy": 0.6, "loss": 1.0, "n": sum(n)}}, "clients": {"accuracy": values, "n": n}}  # fmt: skip
    simulated = eq.History([record], {"method": "fedavg", "client_tests": True})
    assert (simulated.summary()["clients_counted"], simulated.small_clients) == (25, 0)
    assert simulated.summary()["clients"]["min"] == pytest.approx(100 * min(values))
    every: Any = layout.every_client(Comparison.of([simulated]))
    assert [cells[0].mean for _, cells in every.grid.rows] == ["< 10"] * 15 + ["40"] * 10
    assert all(cells[1].mean == f"{100 * a:.2f}" for a, (_, cells) in zip(values, every.grid.rows, strict=True))
    real = eq.History([record], {"method": "fedavg", "client_tests": True, "config": {"engine": "flower"}})
    assert (real.summary()["clients_counted"], real.small_clients) == (10, 15)


def test_cells_of_few_people_stay_at_the_site() -> None:
    """Twelve rows of three people of one class and group, and the next smallest cell with them."""
    y, s = torch.zeros(60, dtype=torch.int64), torch.tensor([0] * 12 + [1] * 20 + [2] * 28)[:, None]
    who = torch.tensor([k % 3 for k in range(12)] + [*range(10, 30)] + [*range(40, 68)])
    assert without_small_cells(y, s, 10)[:, 0].unique().tolist() == [0, 1, 2]
    assert without_small_cells(y, s, 10, who)[:, 0].unique().tolist() == [-1, 2]


def rows_of(text: str, name: str) -> list[list[str]]:
    """The cells of the rows of a group in the tables of a page or of Markdown."""
    html_rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.S)
    rows = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in html_rows
    ]
    rows += [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row[1:] for row in rows if row and row[0].removeprefix("sex ").split(",")[0] == name]


@pytest.mark.parametrize("seed", range(4))
def test_what_one_table_shows_another_does_not_hide(seed: int, tmp_path: Path) -> None:
    """Over random runs, no count that a table hides is in another output as the number of these people."""
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.choice([4, 7, 13, 37, 61, 83])) for name in GROUPS}
    data, who = visits(sizes, int(rng.integers(1, 4)), seed)
    masks = {name: data[2] == code for code, name in enumerate(GROUPS)}
    tests = {name: eq.OfPeople(tuple(part[mask] for part in data), who[mask.numpy()]) for name, mask in masks.items()}
    fed = trained(tests, validation=0.3)
    fed.save_bundle(tmp_path / "b")
    compared = Comparison.of([fed.history])
    shown = fed.history.shown_sizes
    rates: Any = fed.history.group_fairness(1)
    by: Any = fed.history.people(1)["sex"]["treated"]
    told: Any = eq.choose_threshold(fed, youden=True).document["divisions"][0]["groups"]
    for name, n in sizes.items():
        assert {rates["groups"][name]["n"], by["groups"][name]["n"], told[name]["n"], shown.get(name)} == {
            n if name in shown else None
        }
    outputs = [
        report.markdown(compared.document),
        html.render(compared),
        render(compared),
        (tmp_path / "b" / "README.md").read_text(),
    ]
    for text in outputs:
        for name, n in sizes.items():
            cells = [row[0] for row in rows_of(text, name)]
            assert {*cells} <= {f"{n}"} if name in shown else {*cells} <= {"–", "&lt; 10", "< 10", "n &lt; 10"}
    assert any(rows_of(text, name) for text in outputs for name in sizes)
    left = sum(sizes[name] for name in sizes.keys() - shown.keys())
    assert left == 0 or left >= 10 or not shown
