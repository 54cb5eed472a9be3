"""Groups of people in the test sets of sites: the server's table is the simulator's, and no count is about a few people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.flower.app import in_process
from equipoise.flower.codec import Parcel
from equipoise.flower.server import scores as received
from equipoise.flower.server.consortium import description
from equipoise.flower.site.site import open_site, without_small_cells
from equipoise.flower.site.store import Store
from equipoise.flower.site.task import Task
from lying import bent
from test_flower_tallies import rows, sites

NAMED = {"sex": ["f", "m"], "ward": ["a", "b", "c"]}
RATES = ("accuracy", "rates")


def people(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Samples with two attributes, of which some are not known."""
    x, y = rows(n, seed)
    draw = torch.Generator().manual_seed(seed)
    return x, y, torch.stack([torch.randint(-1, 2, (n,), generator=draw), torch.randint(0, 3, (n,), generator=draw)], 1)


def with_people(m: int, task: Task) -> Task:
    return replace(task, train=people(20, m), test={"all": people(60, m + 9)}, attributes=NAMED)


def sent(fed: eq.Federation) -> list[dict[str, Any]]:
    """The scores that sites send in one round."""
    scores: list[dict[str, Any]] = []

    def look(asked: str, site: str, answer: Parcel) -> Parcel:
        if asked == "evaluate":
            scores.append(answer.fields["scores"])
        return answer

    bent(fed, look).fit(1, progress=False)
    return scores


@pytest.mark.parametrize("method", ["fedavg", "fairgrad", "fedavg+thresholds", "logofair"])
def test_the_table_of_the_server_is_that_of_the_simulator(method: str) -> None:
    """Each site with its own test set, which in the simulator is that of its group."""
    clients = [(x, y, s) for x, y, s in (people(40, k) for k in range(3))]
    names, tests = ["one", "two", "three"], {name: people(90, 20 + k) for k, name in enumerate(["one", "two", "three"])}
    more: dict[str, Any] = {"names": names, "groups": names, "measures": RATES, "attributes": NAMED, "positive": 1}
    net, each = eq.network("mlp", (3,), 2, seed=0, hidden=[]), []
    for make in (eq.Federation, in_process):
        fed = make(net, clients, method, eq.SGD(0.1), tests=tests, **more)
        fed.fit(2, progress=False)
        each.append(fed.history.people(last=1))
    for name in NAMED:
        here, there = (found[name] for found in each)
        assert here["unknown"] == there["unknown"]
        for key in ("demographic_parity", "equal_opportunity", "equalised_odds"):
            assert here["treated"][key] == there["treated"][key] is not None
        assert here["sites"].keys() == there["sites"].keys() == {*names}
        for site in names:
            assert here["sites"][site]["gaps"] == there["sites"][site]["gaps"]


def test_a_site_sends_counts_of_people_only_if_its_own_config_names_a_least(tmp_path: Path) -> None:
    for k, (node, measures) in enumerate([({}, RATES), ({"least-count": 5}, ("accuracy",))]):
        fed = sites(tmp_path / str(k), change=with_people, node={"least-group": 1, **node}, measures=measures)
        assert not any("people" in each for scores in sent(fed) for each in scores.values())
        assert "by" not in fed.records[-1]


def test_no_cell_and_no_difference_to_a_class_is_about_a_few_people(tmp_path: Path) -> None:
    fed = sites(tmp_path, change=with_people, node={"least-group": 1, "least-count": 4}, measures=RATES, values=NAMED)
    scores = sent(fed)
    assert len(scores) == 4
    for each in scores:
        by_class = torch.tensor(each["all"]["sums"][2:]).view(3, 2)[1]
        for sums in each["all"]["people"]:
            assert sums.keys() <= {"value", "unknown", "right", "true", "chosen"}
            true = torch.tensor(sums["true"])
            for left in (true, by_class - true.sum(0)):
                assert not ((left > 0) & (left < 4)).any()
    assert fed.records[-1]["by"]["groups"].keys() == {"all"}
    assert fed.history.people()["ward"]["treated"]["demographic_parity"] is not None


@pytest.mark.parametrize("method", ["fedavg", "fedavg+thresholds", "logofair"])
@pytest.mark.parametrize("least", [None, 6, 7])
def test_decisions_of_the_server_count_no_group(method: str, least: int | None, tmp_path: Path) -> None:
    """Six women with label 1, and many of all others: no numbers without least-count, or with more."""
    y, s = torch.arange(60) % 2, torch.ones(60, 1, dtype=torch.int64)
    s[:30:2], s[1:12:2] = 0, 0
    task = Task(
        torch.nn.Linear(3, 2), (torch.randn(60, 3), y, s), (torch.randn(60, 3), y, s), attributes={"sex": ["f", "m"]}
    )
    fields = description(eq.Method.of(method), eq.SGD(0.1), eq.Settings(validation=0.5), ("accuracy",), "run")
    site = open_site("a", task, fields, Store(tmp_path), node_config={} if least is None else {"least-count": least})
    sizes = site.answer("query.describe", Parcel()).fields["test_sizes"]
    assert sizes == {"a": 60 if method == "fedavg" or least == 6 else 0}
    asked = Parcel({"own": False, "model": {}}, {"model/values": site.trial.setup.initial})
    if method != "fedavg":  # of held-out rows there are three women with label 1
        assert site.answer("evaluate.validation", asked).fields == {"found": None}


@pytest.mark.parametrize("least", [5, 61])
def test_a_table_without_a_cell_has_a_shape(least: int, tmp_path: Path) -> None:
    """Honest sites whose cells are all small, and one lying site that hides all."""
    fed = sites(
        tmp_path, change=with_people, node={"least-group": 1, "least-count": least}, measures=RATES, values=NAMED
    )

    def bend(kind: str, site: str, answer: Parcel) -> Parcel:
        if kind != "evaluate" or site != "ward-1":
            return answer
        none = [{"value": [], "right": [], "true": [], "chosen": [], "unknown": 60}] * 2
        return Parcel({**answer.fields, "scores": {"all": {**answer.fields["scores"]["all"], "people": none}}})

    bent(fed, bend).fit(1, progress=False)
    assert "unmeasured" not in fed.records[0]
    every = fed.records[0]["by"]["groups"]["all"]
    assert [sums["value"] == [] for sums in every] == [least > 60] * 2
    assert fed.history.people(last=1) is not None


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 3)), min_size=1, max_size=60), st.integers(1, 9))
def test_hidden_cells_cannot_be_subtracted(samples: list[tuple[int, int]], least: int) -> None:
    y, s = (torch.tensor(column) for column in zip(*samples, strict=True))
    codes = without_small_cells(y, s[:, None], least)[:, 0]
    for c in y.unique():
        shown, before = codes[y == c], s[y == c]
        sizes = shown[shown >= 0].unique(return_counts=True)[1]
        left_over = int((shown < 0).sum())
        assert (sizes >= least).all()
        assert not len(sizes) or left_over == 0 or left_over >= least
        assert torch.equal(shown[shown >= 0], before[shown >= 0])  # of what is shown everything
    if least == 1:
        assert torch.equal(codes, s)


@pytest.mark.parametrize(
    "change",
    [
        {"true": [[4, 4], [4, 5]]},  # more than the class has
        {"right": [[3, 3], [4, 3]]},  # more than there are
        {"value": [1, 0]},
        {"value": [0, 2]},
        {"unknown": 3},
        {"true": [[2, 3]]},
        {"true": [[2, "x"], [4, 3]]},
        {"true": [[2, 10**40], [4, 3]]},
        {"right": [[-1, 2], [3, 3]]},
    ],
)
def test_sums_of_people_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    people = {
        "value": [0, 1],
        "unknown": 2,
        "right": [[2, 2], [3, 3]],
        "true": [[2, 3], [4, 3]],
        "chosen": [[3, 2], [3, 4]],
    }
    task = eq.Classification()
    for told, fine in ((people, True), ({**people, **change}, False)):
        fields = {"scores": {"all": {"sums": [14.0, 3.0, 6, 6, 7, 7, 7, 7], "people": [told]}}}
        tested = received.Tested.of(fields, {"all": 14}, RATES, 2, task, values=[2])
        assert isinstance(tested, received.Tested) == fine, tested
