"""Thresholds by group: what is reported, chosen and decided, on every engine and between sites."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

import equipoise as eq
from equipoise.bundle.files import cautions
from equipoise.flower.app import in_process
from equipoise.methods.thresholds import Thresholds
from equipoise.metrics.thresholds import Metric, edges, rates, taken
from equipoise.records.threshold import USES_GROUP

METRICS: tuple[Metric, ...] = ("dp", "eo", "eodds")
NAMES = {"sex": ["f", "m"]}


def people(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of which group 0 scores lower than group 1, and some of an unknown group."""
    rng = torch.Generator().manual_seed(seed)
    s = torch.randint(0, 2, (n,), generator=rng)
    y = torch.randint(0, 2, (n,), generator=rng)
    x = torch.randn(n, 2, generator=rng) + torch.stack([2.0 * y + 1.5 * s, 0.0 * y], 1)
    return x, y, torch.where(torch.arange(n) % 11 == 0, -1, s)


def federation(method: str, **more: object) -> eq.Federation:
    net = eq.network("mlp", (2,), 2, seed=0, hidden=[])
    tests = {"all": people(4000, 9)}
    more = {"attributes": NAMES, "positive": 1, "measures": ["accuracy", "rates"], **more}
    return eq.Federation(net, [people(1200, 1), people(900, 2)], method, eq.SGD(0.2), epochs=3, tests=tests, **more)


def gap(fed: eq.Federation) -> float:
    """Difference of the groups' true-positive rates on the test set, in the last record."""
    sums = fed.records[-1]["by"]["groups"]["all"][0]
    tpr = [right[1] / true[1] for right, true in zip(sums["right"], sums["true"], strict=True)]
    return abs(tpr[0] - tpr[1])


def test_rates_become_alike_and_training_stays_as_it_was() -> None:
    plain, decided = federation("fedavg"), federation("fedavg+thresholds")
    for fed in (plain, decided):
        fed.fit(4, progress=False)
    assert torch.equal(plain.progress.vector, decided.progress.vector)
    assert gap(plain) > 0.15
    assert gap(decided) < 0.06
    first, second = (fed.records[-1]["groups"]["all"] for fed in (plain, decided))
    assert first["loss"] == second["loss"]
    assert first["accuracy"] != second["accuracy"]
    assert second["accuracy"] == decided.evaluate()["all"]["accuracy"]


def test_unknown_people_and_those_without_attributes_keep_one_half() -> None:
    fed, plain = federation("thresholds"), federation("fedavg")
    for each in (fed, plain):
        each.fit(3, progress=False)
    x, y, s = people(300, 5)
    unknown = fed.evaluate(x, y, torch.full_like(s, -1))["accuracy"]
    assert unknown == fed.evaluate(x, y)["accuracy"] == plain.evaluate(x, y)["accuracy"]
    assert unknown != fed.evaluate(x, y, s)["accuracy"] == float((fed.predict(x, s) == y).double().mean())
    assert torch.equal(fed.predict(x), plain.predict(x))


def test_decisions_are_those_of_the_bins() -> None:
    fed = federation("thresholds(bins=10)")
    fed.fit(2, progress=False)
    state, (x, y, s) = fed.progress.server[0], people(300, 5)
    bins = (fed.predict_proba(x)[:, 1].double() * 10).long().clamp(max=9)
    expected = state["chance"][s.clamp(min=0), bins] > 0
    expected = torch.where(s < 0, fed.predict(x) == 1, expected)
    assert fed.evaluate(x, y, s)["accuracy"] == pytest.approx(float((expected == (y == 1)).double().mean()))


def test_randomised_decisions_are_the_same_every_time() -> None:
    fed = federation("thresholds:randomised(metric=eodds)")
    fed.fit(3, progress=False)
    chance = fed.progress.server[0]["chance"]
    assert ((chance > 0) & (chance < 1)).any()
    assert fed.evaluate() == fed.evaluate()


@pytest.mark.parametrize("engine", ["stacked", "workers"])
def test_engines_agree(engine: str) -> None:
    one, other = federation("thresholds", engine="sequential"), federation("thresholds", engine=engine, workers=2)
    for fed in (one, other):
        fed.fit(2, progress=False)
    assert torch.equal(one.progress.server[0]["chance"], other.progress.server[0]["chance"])


def test_sites_decide_as_the_simulator_does(tmp_path: Path) -> None:
    from equipoise.flower import in_process

    simulated = federation("fedavg+thresholds", validation=0.2)
    clients = [people(1200, 1), people(900, 2)]
    sites = in_process(
        simulated.network(), clients, "fedavg+thresholds", eq.SGD(0.2), epochs=3, tests={"all": people(4000, 9)},
        groups=["all", "all"], attributes=NAMES, positive=1, measures=["accuracy", "rates"], validation=0.2, states=tmp_path,
    )  # fmt: skip
    for fed in (simulated, sites):
        fed.fit(3, progress=False)
    for mine, theirs in zip(simulated.records, sites.records, strict=True):
        assert mine["groups"]["all"]["accuracy"] == theirs["groups"]["all"]["accuracy"]
        assert mine["validation"]["accuracy"] == pytest.approx(theirs["validation"]["accuracy"])


def test_small_groups_are_not_reported() -> None:
    """A client with fewer samples than least_count in a cell reports zeros for it, and others are not affected."""
    fed = federation("thresholds(least_count=1000)")
    fed.fit(1, progress=False)
    half = torch.arange(100) >= 50
    assert torch.equal(fed.progress.server[0]["chance"].bool(), half.expand(2, -1))


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=30, deadline=None)
@given(
    hist=hnp.arrays(
        np.float64, st.tuples(st.integers(1, 3), st.just(2), st.integers(2, 4)), elements=st.integers(0, 5)
    ),
    eps=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_bins_are_the_best_of_all(metric: Metric, hist: np.ndarray, eps: float) -> None:
    hist[:, :, 0] += 1
    A, _, B = hist.shape
    above, tables = taken(hist), rates(hist, metric)

    def judged(bins: tuple[int, ...]) -> tuple[float, float]:
        right = sum(above[a, 1, t] + hist[a, 0].sum() - above[a, 0, t] for a, t in enumerate(bins))
        return right, max(float(np.ptp([table[a, t] for a, t in enumerate(bins)])) for table in tables)

    right, found = judged(tuple(edges(hist, metric, eps).tolist()))
    every = map(judged, itertools.product(range(B + 1), repeat=A))
    assert found <= eps + 1e-9
    assert right == max(correct for correct, apart in every if apart <= eps + 1e-12)


def test_a_group_without_a_class_keeps_the_middle() -> None:
    hist = np.zeros((3, 2, 10))
    hist[0, :, 2], hist[1, :, 7], hist[2, 0, 3] = 5, 5, 5
    assert edges(hist, "eo", 0.02)[2] == 5
    assert (edges(np.zeros((2, 2, 10)), "dp", 0.02) == 5).all()


def test_only_one_rule_decides() -> None:
    @dataclass(frozen=True)
    class Never(eq.Rule):
        owns = frozenset({"decision"})

    with pytest.raises(ValueError, match="each set which class is predicted"):
        eq.Method((Thresholds(), Never()))


def test_a_bundle_decides_as_the_run_does(tmp_path: Path) -> None:
    fed = federation("fedavg+thresholds(metric=dp)")
    fed.fit(2, progress=False)
    fed.save_bundle(tmp_path / "model")
    model, (x, y, s) = eq.load(tmp_path / "model"), people(500, 5)
    with pytest.warns(UserWarning, match="the group is not known"):
        predicted = model.predict(x.numpy(), groups=[["f", "m", "?"][k] for k in s.tolist()])
    right = [str(word) == str(k) for word, k in zip(predicted, y.tolist(), strict=True)]
    assert np.mean(right) == fed.evaluate(x, y, s)["accuracy"]
    assert (
        model.predict(x.numpy(), groups=["f"] * 500).tolist() != model.predict(x.numpy(), groups=["m"] * 500).tolist()
    )
    card = (tmp_path / "model" / "README.md").read_text()
    assert "The numbers of this card are those of these decisions." in card
    assert "uses sex of each person at prediction" in card
    assert "disparate treatment" in card
    assert "at 0.5" not in card
    assert cautions(tmp_path / "model") == [USES_GROUP.format("sex")]
    assert fed.history.meta["decides"] == "sex"
    assert "decides" not in federation("fedavg").history.meta
    fed.save_bundle(tmp_path / "plain", threshold=0.4)
    plain = (tmp_path / "plain" / "README.md").read_text()
    assert "It replaces the decisions that fedavg+thresholds(metric=dp) makes by sex." in plain
    assert "The numbers of this card are those of these decisions." in plain
    assert cautions(tmp_path / "plain") == []
    assert json.loads((tmp_path / "plain" / "bundle.json").read_text())["decision"]["groups"] == []


def test_decisions_about_one_of_three_classes_are_in_no_bundle(tmp_path: Path) -> None:
    parts = [(x, y + (x[:, 1] > 1), s) for x, y, s in (people(300, 1), people(300, 2))]
    net = eq.network("mlp", (2,), 3, seed=0, hidden=[])
    more = {"tests": {"all": parts[0]}, "attributes": NAMES, "positive": 1}
    fed = eq.Federation(net, parts, "fedavg+thresholds", eq.SGD(0.2), **more)
    fed.fit(1, progress=False)
    with pytest.raises(ValueError, match=r"decides by group .* one of 3 classes.*equipoise export RUN"):
        fed.save_bundle(tmp_path / "model")
    assert fed.network() is not None


@pytest.mark.parametrize(("attribute", "named"), [("", "sex"), ("attribute=sex*age", "sex*age")])
def test_a_server_of_sites_knows_by_what_it_decides(attribute: str, named: str) -> None:
    age = {"age": ["young", "old"]}
    parts = [(x, y, torch.stack([s, s], 1)) for x, y, s in (people(60, 1), people(60, 2))]
    net = eq.network("mlp", (2,), 2, seed=0, hidden=[])
    method = f"fedavg+thresholds({attribute})"
    fed = in_process(net, parts, method, eq.SGD(0.2), tests={"all": parts[0]}, attributes=NAMES | age, positive=1)
    assert fed.history.meta["decides"] == named


def test_decisions_by_chance_are_in_no_bundle(tmp_path: Path) -> None:
    fed = federation("thresholds:randomised")
    fed.fit(2, progress=False)
    with pytest.raises(ValueError, match="decides by chance"):
        fed.save_bundle(tmp_path / "model")


def test_taking_no_one_is_so_in_a_bundle_too() -> None:
    rule = Thresholds(bins=4)
    state = {"chance": torch.tensor([[0.0, 0, 0, 0], [0, 1, 1, 1]])}
    name, least = rule.edges(state) or ("", torch.zeros(0))
    assert (name, least[1]) == ("", 0.25)
    assert least[0] > 1


def test_one_class_of_three_is_in_no_bundle(tmp_path: Path) -> None:
    x, y, s = people(300, 1)
    net = eq.network("mlp", (2,), 3, seed=0, hidden=[])
    fed = eq.Federation(net, [(x, y + (x[:, 1] > 1), s)], "thresholds", attributes=NAMES, positive=1, epochs=1)
    fed.fit(1, progress=False)
    with pytest.raises(ValueError, match="decisions between two only"):
        fed.save_bundle(tmp_path / "model")
