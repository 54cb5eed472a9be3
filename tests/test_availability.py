"""Clients that come and go in simulation: the draws, the rounds, what is recorded, and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.analysis.decomposition import trace
from equipoise.cli.run import _who_trained
from equipoise.core import draws
from equipoise.core.settings import SIMULATED, ByName, Settings
from equipoise.core.simulation import Presence
from equipoise.flower.settings import AppSettings
from equipoise.records.history import ATTENDANCE
from equipoise.report.html import render
from equipoise.report.layout import who_was_there
from equipoise.report.statistics import Comparison
from equipoise.runs.configuration import configure
from equipoise.system.ranges import Range
from helpers import clients, consortium, federation, fitted, identical, in_one, samples, told

NAMES = ("a", "b", "c", "d", "e")
GROUPS = ("north", "north", "south", "south", "south")
COMING = {"availability": "0.8, client-2=0.3", "joins": "client-4=2", "dropout": 0.2, "seed": 5}


def presence(n: int = 400, sizes: list[int] | None = None, groups: list[str] | None = None, **given: Any) -> Presence:
    found = Presence.of(Settings(**given), [f"client-{m}" for m in range(n)], groups, sizes or [10] * n)
    assert found is not None
    return found


# draws
def test_clients_are_there_as_often_as_was_asked() -> None:
    there = presence(availability="0.7, client-1=0.2")
    absent = np.array([np.isin(range(400), there.round(t, 1.0)[1]["absent"]) for t in range(200)])
    others = np.delete(absent, 1, 1)
    deviation = math.sqrt(0.7 * 0.3 / others.size)
    assert abs(others.mean() - 0.3) < 4 * deviation
    assert abs(absent[:, 1].mean() - 0.8) < 4 * math.sqrt(0.2 * 0.8 / 200)
    # independent over clients and over rounds: sums over either vary as binomials do
    for axis in (0, 1):
        assert others.sum(axis).var() == pytest.approx(0.21 * others.shape[axis], rel=0.35)


def test_dropouts_are_a_share_of_those_selected_and_independent_of_absence() -> None:
    there = presence(availability=0.5, dropout=0.25)
    rounds = [there.round(t, 1.0) for t in range(100)]
    trained, dropped = (
        sum(map(len, of)) for of in ([ids for ids, _ in rounds], [lost["dropped"] for _, lost in rounds])
    )
    assert dropped / (trained + dropped) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 20_000))


def test_a_share_of_all_clients_is_selected_among_those_there() -> None:
    there = presence(100, availability=0.5)
    for t in range(20):
        ids, lost = there.round(t, 0.2)
        assert len(ids) == 20
        assert not set(ids.tolist()) & set(lost["absent"])
        ids, lost = there.round(t, 0.9)
        assert len(ids) == min(90, 100 - len(lost["absent"]))
    everybody = draws.participants(3, 7, 50, 0.3, np.ones(50, np.bool_))
    assert torch.equal(everybody, draws.participants(3, 7, 50, 0.3))


def test_late_clients_against_a_plain_loop() -> None:
    sizes = [int(n) for n in np.random.default_rng(0).integers(5, 60, 101)]
    for limit, spread, steps in ((2.0, 0.5, None), (1.2, 0.0, None), (1.5, 1.0, 7)):
        there = presence(101, sizes, time_limit=limit, speed_spread=spread, steps=steps, seed=4)
        lots = draws.uniform(4, 0, there.keys, draws.SPEED)
        times = []
        for size, u in zip(sizes, lots.tolist(), strict=True):
            z = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * u - 1, dtype=torch.float64)))
            times.append((size if steps is None else 1) / math.exp(spread * z))
        late = [m for m, time in enumerate(times) if time > limit * sorted(times)[50]]
        assert 0 < len(late) < 50
        for t in (0, 9):
            ids, lost = there.round(t, 1.0)
            assert lost == {"absent": [], "late": late, "dropped": []}
            assert ids.tolist() == [m for m in range(101) if m not in late]


# rounds
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedheal", pytest.param("ditto", marks=pytest.mark.slow)])
def test_engines_agree(method: str) -> None:
    groups, tests = list(GROUPS), {"north": samples(9, 7), "south": samples(9, 8)}
    given = {**COMING, "availability": "0.9, south=0.5", "groups": groups, "tests": tests, "participation": 0.8}
    a = fitted(method, 6, **given)
    assert {kind for record in a.records for kind in ("absent", "dropped") if record[kind]} == {"absent", "dropped"}
    b = fitted(method, 6, engine="stacked", chunk=2, **given)
    c = consortium(method, **given)
    c.fit(6, progress=False)
    d = fitted(method, 6, engine="workers", workers=2, **given)
    for other in (b, c, d):
        for one, two in zip(a.records, other.records, strict=True):
            for key in ("ids", "absent", "late", "dropped"):
                assert one[key] == two[key]
            assert one["weights"] == pytest.approx(two["weights"], abs=1e-9)
        assert torch.allclose(a.progress.vector, other.progress.vector, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["fedavg", "scaffold+fedheal"])
def test_resumed_in_the_middle_it_is_the_same_bit_for_bit(method: str, tmp_path: Any) -> None:
    whole = fitted(method, 7, **COMING)
    part = federation(method, **COMING)
    part.fit(7, directory=tmp_path, progress=False, on_round=lambda record: record["round"] == 3)
    again = federation(method, **COMING)
    again.fit(again.resume(tmp_path), progress=False)
    assert identical(whole, again)
    assert told(whole) == told(again)
    with pytest.raises(eq.CheckpointError, match="availability"):
        federation(method, **{**COMING, "availability": 0.9}).resume(tmp_path)


def test_renumbering_clients_renumbers_who_is_there() -> None:
    order, names = [3, 0, 4, 2, 1], list(NAMES)
    whole = {
        "batch_size": 64,
        "participation": 1.0,
        "availability": 0.6,
        "dropout": 0.2,
        "time_limit": 1.5,
        "speed_spread": 1.0,
    }
    a = fitted("scaffold", 6, names=names, **whole)
    b = fitted("scaffold", 6, names=[names[m] for m in order], data=[clients()[m] for m in order], **whole)
    for one, two in zip(a.records, b.records, strict=True):
        for key in ("ids", "absent", "late", "dropped"):
            assert one[key] == sorted(order[m] for m in two[key])
    assert len({len(record["ids"]) for record in a.records}) > 1
    assert torch.allclose(a.progress.vector, b.progress.vector, rtol=0, atol=1e-9)


@in_one("method", ["fedavg", "fedavgm", "fedheal", "fedave", "cgsv", "fedproc+afl"])
def test_a_round_with_nobody_changes_nothing(method: str) -> None:
    """Also where the round after it is the first: nothing is asked of the rules."""
    fed = federation(
        method, joins=2, server_validation=samples(70, 2), contribution=[0.5] * 5, tests={"all": samples(9, 1)}
    )
    begun = {name: x.clone() for name, x in fed.progress.tensors().items()}
    seen: list[int] = []
    fed.fit(2, progress=False, on_round=lambda record: seen.append(len(record["ids"])))
    assert seen == [0, 0]
    assert fed.progress.t == 2
    assert all(torch.equal(x, begun[name]) for name, x in fed.progress.tensors().items())
    assert fed.records[0]["absent"] == [0, 1, 2, 3, 4]
    fed.fit(2, progress=False)
    assert [len(record["ids"]) for record in fed.records] == [0, 0, 4, 4]
    assert fed.history.weights().isna().all(axis=1).tolist() == [True, True, False, False]


def test_who_drops_or_is_late_is_as_one_that_was_not_selected() -> None:
    """The state of each stays, the others are averaged among themselves, and the quorum counts the others only."""
    fed = federation("scaffold", sizes=(9, 9, 9, 200), participation=1.0, time_limit=2.0, quorum=1.0)
    before = {name: x.clone() for name, x in fed.progress.tensors().items()}
    fed.fit(2, progress=False)
    assert [record["late"] for record in fed.records] == [[3], [3]]
    assert fed.records[1]["weights"] == pytest.approx([1 / 3] * 3)
    moved = {name for name, x in fed.progress.tensors().items() if name.startswith("clients")}
    assert moved
    assert all(torch.equal(fed.progress.tensors()[name][3], before[name][3]) for name in moved)
    assert any(not torch.equal(fed.progress.tensors()[name][0], before[name][0]) for name in moved)


def test_what_clients_reach_alone_and_centralised_training_know_no_absence() -> None:
    tests = {"all": samples(20, 1)}
    fed, plain = (federation("fedavg", tests=tests, **given) for given in (COMING, {"seed": 5}))
    assert fed.standalone(2, progress=False) == plain.standalone(2, progress=False)
    a, b = (fitted("centralised", 2, tests=tests, **given) for given in (COMING, {"seed": 5}))
    assert identical(a, b)
    assert "absent" not in a.records[0]


def test_defaults_change_nothing() -> None:
    a = fitted("scaffold", 3)
    b = fitted("scaffold", 3, availability=1, joins=0, dropout=0, speed_spread=0)
    assert a.trial.presence is b.trial.presence is None
    assert identical(a, b)
    assert told(a) == told(b)
    assert not {"absent", "late", "dropped"} & a.records[0].keys()
    assert a.history.attendance is None
    assert a.history.presence().empty
    sure = fitted("scaffold", 3, joins="client-0=0")  # used, but nobody is ever away
    assert identical(a, sure)
    assert [{k: v for k, v in r.items() if k not in ("absent", "late", "dropped")} for r in told(sure)] == told(a)


# results
def test_history_counts_what_each_client_did() -> None:
    history = fitted("fedavg", 9, **COMING).history
    table = history.presence()
    assert table[list(ATTENDANCE)].sum(axis=1).tolist() == [9] * 5
    for m, row in table.iterrows():
        assert row["trained"] == sum(m in record["ids"] for record in history.records)
        assert row["absent"] == sum(m in record["absent"] for record in history.records)
        assert row["dropped"] == sum(m in record["dropped"] for record in history.records)


def test_the_report_says_who_was_there() -> None:
    tests = {"north": samples(20, 7), "south": samples(20, 8)}
    given = {"groups": list(GROUPS), "tests": tests, "participation": 1.0}
    history = fitted("fedavg", 10, availability="south=0.3", **given).history
    table = history.presence()
    sheet = who_was_there(Comparison.of([history]))
    assert sheet is not None
    assert sheet.head == "Group"
    shown = {name: [float(cell.mean) for cell in cells] for name, cells in sheet.grid.rows}
    for name in tests:
        mine = table[table.group == name]
        assert shown[name] == pytest.approx([10 * mine[what].mean() for what in ATTENDANCE], abs=0.051)
    assert shown["north"] == [100, 0, 0, 0, 0]
    assert history.attendance is not None
    line = _who_trained(history, history.attendance)
    least = table.trained.min()
    assert line.startswith(f"fedavg seed 3: clients trained in {least} to 10 of 10 rounds (fewest: client-")
    assert line.endswith(
        f"{table.absent.sum()} times one was absent, 0 late, 0 dropped out; in 0 rounds nobody trained"
    )
    assert who_was_there(Comparison.of([fitted("fedavg", 2, **given).history])) is None


@pytest.mark.slow
def test_the_page_has_the_section_only_where_clients_come_and_go() -> None:
    tests = {"north": samples(20, 7), "south": samples(20, 8)}
    runs = [fitted("fedavg", 3, groups=list(GROUPS), tests=tests, availability=p) for p in (0.5, 1)]
    page, always = (render([run.history]) for run in runs)
    assert 'id="presence"' in page
    assert 'id="figure-presence"' in page
    assert "Who was there" not in always
    assert "presence" not in always


def test_a_round_with_nobody_cannot_be_taken_apart() -> None:
    fed = federation("fedavg", joins=1, tests={"all": samples(9, 1)})
    with pytest.raises(ValueError, match=r"^In round 0 nobody was there to train"):
        trace(fed, 2)
    assert [row["round"] for row in trace(federation("fedavg", joins=1, tests={"all": samples(9, 1)}), 2, every=2)] == [
        1
    ]


# settings
def test_text_numbers_and_tables_say_the_same() -> None:
    allowed = ByName(Range(0, 1, above=True))
    assert allowed.read("0.9, south=0.3") == allowed.read({"": 0.9, "south": 0.3}) == {"": 0.9, "south": 0.3}
    odd = {'a "b", c': 0.5, "x=y": 0.25, "Clinic (west)": 0.1, "": 1}
    assert allowed.read(allowed.plain(odd)) == odd
    assert Settings(availability={"south": 0.3}) == Settings(availability="south=0.3")
    assert Settings(availability=" 1 ") == Settings(availability=1) == Settings()
    assert configure("fedavg", "digits", joins="client-0=3").joins == "client-0=3"


@in_one(
    ("given", "message"),
    [
        ({"availability": 0}, r"^availability must be in \(0, 1\], or by name of a group or client, .*; found 0\.$"),
        ({"availability": 1.2}, r"^availability must be in \(0, 1\].*; found 1\.2\.$"),
        ({"availability": "north"}, r"^availability must be .*; found 'north'\.$"),
        ({"availability": "north=0.5, north=0.4"}, r"^availability must be .*; found 'north=0.5, north=0.4'\.$"),
        (
            {"availability": "cycle(0.3, 2, period=24)"},
            r"^availability must be .*found 'cycle\(0.3, 2, period=24\)'\.$",
        ),
        ({"availability": {"north": 0}}, r"^availability must be .*; found \{'north': 0\}\.$"),
        ({"availability": True}, r"^availability must be .*; found True\.$"),
        (
            {"availability": "nowhere=1"},
            r"^availability: no group or client is called 'nowhere'\. There are: client-0, ",
        ),
        ({"dropout": "client-44=0.5"}, r"^dropout: no group or client .*Did you mean 'client-4'\?"),
        ({"dropout": 1}, r"^dropout must be in \[0, 1\)"),
        ({"joins": -1}, r"^joins must be a whole number >= 0.*; found -1\.$"),
        ({"joins": "client-0=1.5"}, r"^joins must be a whole number"),
        ({"time_limit": 0}, r"^time_limit must be >= 1 and finite, or None; found 0\.$"),
        ({"speed_spread": 0.5}, r"^speed_spread=0\.5 has no effect without a time limit"),
    ],
)
def test_bad_input_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federation("fedavg", **given)


def test_who_joins_after_the_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    fitted("fedavg", 2, joins="client-3=2")
    assert [r.message for r in caplog.records] == [
        "The last round is 1, and joins lets client-3 begin later, so never."
    ]


def test_sites_are_not_simulated() -> None:
    with pytest.raises(
        ValueError, match=r"^time-limit is for simulation: what sites do, they do themselves\. Leave it out\.$"
    ):
        AppSettings.of({"time-limit": 2.0})
    assert not {name.replace("_", "-") for name in SIMULATED} & AppSettings().table().keys()
