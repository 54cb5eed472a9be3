"""What is sent: bytes per client and round, and the overhead of FedISM+ (Table V of its paper)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core import wire
from equipoise.core.rule import Briefing, Cohort, Rule, Setup, State, Visit
from equipoise.federation.method import Method, parse
from equipoise.metrics import Traffic, overhead, traffic
from helpers import UNEQUAL, KeepHead, KeepNorm, federation, fitted, network, others_slow


def single(method: object, **settings: object) -> eq.Federation:
    """A few rounds of a float32 network."""
    kind = settings.pop("kind", "mlp")
    return fitted(method, 3, net=network(kind).float(), kind=kind, **settings)


def sent(fed: eq.Federation, way: str) -> set[int]:
    return {n for record in fed.records for n in record["bytes"][way]}


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_fedavg_sends_the_model_both_ways(kind: str) -> None:
    fed = single("fedavg", kind=kind)
    G = fed.model.size
    assert sent(fed, "down") == sent(fed, "up") == {4 * G}
    assert all(len(r["bytes"][way]) == len(r["ids"]) for r in fed.records for way in ("down", "up"))
    assert traffic(fed.records) == Traffic(4 * G, 4 * G)


@pytest.mark.parametrize("engine", others_slow(["sequential", "stacked"], fast=(1,)))
@pytest.mark.parametrize(
    "method", others_slow(["fedism+", "fedism+:L", "fedism", "saga", "logit-adjust+fedism+"], fast=(0, 2, 3))
)
def test_fedism_sends_one_number_more(method: str, engine: str) -> None:
    """4 bytes in a float32 network, up only, in every round and for every client."""
    fed, plain = single(method, engine=engine), single("fedavg", engine=engine)
    assert sent(fed, "up") == {4 * fed.model.size + 4}
    assert sent(fed, "down") == {4 * fed.model.size}
    assert traffic(fed.records).total - traffic(plain.records).total == 4
    double = fitted(method, 1, engine=engine)
    assert sent(double, "up") == {8 * double.model.size + 8}


@pytest.mark.parametrize("method", ["sam", "gsam", "logit-adjust"])
def test_local_methods_send_nothing_more(method: str) -> None:
    assert traffic(single(method).records) == traffic(single("fedavg").records)


def test_table_v() -> None:
    """ResNet-18 with 1000 classes: 11,689,512 parameters, 46,758,048 bytes, and a ratio printed as 1.00000004."""
    small = single("fedism+")
    up, G = traffic(small.records).up, small.model.size
    assert (up - 4) / G == 4
    one_way = 4 * 11_689_512
    assert one_way == 46_758_048
    ratio = overhead(2 * one_way + 4, 2 * one_way)
    assert f"{ratio:.8f}" == "1.00000004"
    assert ratio == pytest.approx(1.0000000427733853, rel=1e-15)


@pytest.mark.parametrize(("rule", "kind"), [(KeepNorm(), "batchnorm"), (KeepHead(), "mlp")])
def test_what_is_private_is_not_sent(rule: eq.Rule, kind: str) -> None:
    """So a method with private layers sends less than FedAvg, and with FedISM+ on top one number more than that."""
    plain, kept = single("fedavg", kind=kind), single(rule, kind=kind)
    private = int(rule.private(kept.model).sum())
    assert private > 0
    assert sent(kept, "up") == sent(kept, "down") == {4 * (kept.model.size - private)}
    assert overhead(traffic(kept.records).total, traffic(plain.records).total) < 1
    both = single(Method((rule, *parse("fedism+").rules)), kind=kind)
    assert traffic(both.records).total == traffic(kept.records).total + 4


def test_messages_and_reports_are_counted() -> None:
    """SCAFFOLD sends a control variate of P numbers each way."""
    fed = single("scaffold")
    P, G = fed.model.n_params, fed.model.size
    assert traffic(fed.records) == Traffic(4 * (G + P), 4 * (G + P))


def test_the_mean_is_over_clients_and_rounds() -> None:
    records = [{"bytes": {"down": [2, 4], "up": [1, 1]}}, {"round": 1}, {"bytes": {"down": [9], "up": [4]}}]
    assert traffic(records) == Traffic(5.0, 2.0)
    assert traffic(records).total == 7.0


def test_from_a_history() -> None:
    fed = federation("fedism+", net=network().float(), data=None)
    history = fed.fit(2, progress=False)
    assert traffic(history.records) == traffic(fed.records)
    assert len(history.records[0]["bytes"]["up"]) == round(0.7 * len(UNEQUAL))


def test_nothing_sent_is_an_error() -> None:
    for records in ([], [{"round": 0}]):
        with pytest.raises(ValueError, match="at least one round with its bytes"):
            traffic(records)
    with pytest.raises(ValueError, match=r"must be > 0; found 0"):
        overhead(1.0, 0.0)
    assert overhead(3, 2) == 1.5


# rewards and uploads that are less than a model
@dataclass(frozen=True)
class Handful(Rule):
    """Client m is given the first m entries of the step, and sends the first two entries of its update."""

    owns = frozenset({"reward", "upload"})

    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return update * (torch.arange(update.shape[-1]) < 2)

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        some = torch.arange(given.shape[1]) < cohort.ids[:, None]
        return state, torch.where(some, given, cohort.kept)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_reward_costs_what_it_changes(engine: str) -> None:
    fed = fitted(Handful(), 3, engine=engine, participation=1.0)
    G = fed.model.size
    assert fed.records[0]["bytes"]["down"] == [8 * G] * 5  # the first model
    for record in fed.records:
        assert record["bytes"]["up"] == [wire.change_size(2, G, 8)] * 5
        assert record["bytes"]["full"] == 8 * G
    for record in fed.records[1:]:  # only the first two entries ever move
        assert record["bytes"]["down"] == [wire.change_size(k, G, 8) for k in (0, 1, 2, 2, 2)]


def test_who_was_absent_is_charged_for_the_reward_it_has_not_fetched() -> None:
    fed = federation(Handful(), participation=0.6)
    fed.fit(4, progress=False)
    seen: set[int] = set()
    for record in fed.records:
        for m, down in zip(record["ids"], record["bytes"]["down"], strict=True):
            small = wire.change_size(min(m, 2), fed.model.size, 8)
            assert down == (small if m in seen else 8 * fed.model.size)
            seen.add(m)


def test_what_is_sent_is_what_the_server_sees() -> None:
    fed, plain = fitted(Handful(), 1, participation=1.0), fitted("fedavg", 1, participation=1.0)
    change = fed.progress.vector - fed.model.initial
    assert torch.allclose(change[:2], (plain.progress.vector - plain.model.initial)[:2], atol=1e-14)
    assert not change[2:].any()


@dataclass(frozen=True)
class Clock(Rule):
    """Remembers when the server prepared a round, and tells it."""

    def server_state(self, setup: Setup) -> State:
        return {"seen": torch.zeros(1, dtype=torch.float64), "vector": torch.zeros_like(setup.initial)}

    def prepare(self, state: State, briefing: Briefing) -> State:
        return {"seen": state["seen"] + 10.0**briefing.t, "vector": briefing.vector.clone()}

    def message(self, state: State, m: int) -> State:
        return {"seen": state["seen"]}

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {"told": visit.message["seen"][..., 0]}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, replace(cohort, notes={"told": cohort.reports["told"].tolist()})


def test_the_server_prepares_before_it_hands_out() -> None:
    vectors = []
    fed = federation(Clock(), participation=1.0)
    vectors.append(fed.progress.vector.clone())
    fed.fit(3, progress=False, on_round=lambda _: vectors.append(fed.progress.vector.clone()))
    assert [r["told"] for r in fed.records] == [[1.0] * 5, [11.0] * 5, [111.0] * 5]
    assert torch.equal(fed.progress.server[0]["vector"], vectors[2])  # the model that the last round began with


@dataclass(frozen=True)
class Spy(Rule):
    """A server that looks for what should have stayed at home."""

    def server_state(self, setup: Setup) -> State:
        return {"seen": setup.initial.new_zeros(2, setup.n_clients, len(setup.initial))}

    def prepare(self, state: State, briefing: Briefing) -> State:
        seen = state["seen"].clone()
        seen[0] = briefing.received
        return {"seen": seen}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        seen = state["seen"].clone()
        seen[1] = cohort.received
        return {"seen": seen}, cohort


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_the_server_does_not_see_what_is_private(kind: str) -> None:
    rule = KeepNorm() if kind == "batchnorm" else KeepHead()
    fed = fitted((rule, Spy()), 3, kind=kind, participation=1.0)
    private = fed.trial.private
    seen = fed.progress.server[1]["seen"][:, :, private]
    assert torch.equal(seen, fed.model.initial[private].expand_as(seen))
    assert not torch.equal(fed.progress.own[:, private], seen[0])
