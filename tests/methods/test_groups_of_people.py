"""Rules for groups of people: what holds for all of them, which of them refuse more than two groups, and what their clients send."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import cells
from equipoise.core.rule import Cohort, Out, Setup, State, Visit
from equipoise.federation.method import parse
from equipoise.methods.fairbatch import shifted
from helpers import Server, federation, in_one, tensor

RULES = [
    "reweighing",
    *(f"fairgrad(metric={m}, eta=0.7)" for m in ("eo", "eodds", "acc", "dp")),
    *(f"fairbatch(metric={m}, alpha=0.07)" for m in ("eo", "eodds", "dp")),
    *(f"fedfb(metric={m}, alpha=0.07)" for m in ("eo", "eodds", "dp")),
    *(f"fedminmax(groups={g}, eta=0.4, floor=0)" for g in ("a", "cells")),
    *(f"fedgft(metric={m}, reg={r})" for m in ("eo", "dp") for r in ("l2", "id")),
    *(f"ffalm(metric={m}, eta=0.3, beta=0.2)" for m in ("eo", "loss")),
]
OFF = {  # by the beginning of a rule's text: the strengths that turn it off
    "fairgrad": {"eta": 0.0},
    "fairbatch": {"alpha": 0.0},
    "fedfb": {"alpha": 0.0},
    "fedminmax": {"eta": 0.0},
    "fedgft": {"gamma": 0.0},
    "ffalm": {"eta": 0.0, "beta": 0.0},
}


class People(Server):
    """A server of clients with samples of two classes and A groups."""

    def __init__(self, method: Any, n: Tensor) -> None:
        self.A = n.shape[2]
        super().__init__(method, torch.zeros(1, dtype=torch.float64), n.sum((1, 2)).clamp(min=1), n_classes=2)

    def made(self, *about: Any) -> Setup:
        return Setup(*about, attributes={"a": self.A}, positive=1)

    def told(self, n: Tensor, sums: Tensor) -> Cohort:
        """A round in which clients report counts, and ``sums`` [K, 2, A] instead of every other sum."""
        report = {key: n if key == "n" else sums for key in self.rules[0].declared.ranges}
        return self.round(n.new_zeros(len(n), 1), reports=[report])


def tables(method: Any, n: Tensor, rounds: Tensor) -> list[State]:
    """The tables after each round, of sums [T, K, 2, A]."""
    server, seen = People(method, n), []
    for sums in rounds:
        server.told(n, sums)
        seen.append({key: server.state[0][key] for key in ("w", "c") if key in server.state[0]})
    return seen


@st.composite
def reports(draw: st.DrawFn, least: int = 0, A: int = 2) -> tuple[Tensor, Tensor]:
    """Counts [K, 2, A] and sums [T, K, 2, A] up to them, in eighths: these add up without rounding, so equal gaps are equal."""
    K, T = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(least, 30), min_size=K * 2 * A, max_size=K * 2 * A))
    eighths = draw(st.lists(st.integers(0, 8), min_size=T * K * 2 * A, max_size=T * K * 2 * A))
    n = tensor(counts).view(K, 2, A)
    assume(n.sum() > 0)
    return n, n * tensor(eighths).view(T, K, 2, A) / 8


def same(a: list[State], b: list[State]) -> None:
    for x, y in zip(a, b, strict=True):
        for key in x:
            assert torch.allclose(x[key], y[key], rtol=1e-9, atol=1e-9), (key, x[key], y[key])


@settings(max_examples=15)
@given(reported=reports())
def test_without_strength_it_is_fedavg(reported: tuple[Tensor, Tensor]) -> None:
    for name in RULES[1:]:
        short = name.partition("(")[0]
        for table in tables(parse(name, {f"{short}.{key}": x for key, x in OFF[short].items()}), *reported):
            assert torch.allclose(table["w"], torch.ones_like(table["w"]), rtol=0, atol=1e-14), name
            assert not table.get("c", torch.zeros(1)).any()


@settings(max_examples=15)
@given(reported=reports())
def test_exchanging_the_groups_exchanges_their_weights(reported: tuple[Tensor, Tensor]) -> None:
    n, rounds = reported
    for name in RULES:
        exchanged = tables(name, n.flip(-1), rounds.flip(-1))
        same(tables(name, n, rounds), [{key: x.flip(-1) for key, x in table.items()} for table in exchanged])


@settings(max_examples=15)
@given(reported=reports(least=1))
def test_the_mean_weight_of_all_samples_is_one(reported: tuple[Tensor, Tensor]) -> None:
    n, rounds = reported
    for name in RULES:
        if name.startswith(("ffalm", "fairgrad(metric=dp")):
            continue
        for table in tables(name, n, rounds):
            assert float((table["w"] * n.sum(0)).sum() / n.sum()) == pytest.approx(1, abs=1e-9), name


@settings(max_examples=15)
@given(reported=reports())
def test_divided_data_give_the_tables_of_all(reported: tuple[Tensor, Tensor]) -> None:
    n, rounds = reported
    for name in RULES:
        same(tables(name, n, rounds), tables(name, n.sum(0, keepdim=True), rounds.sum(1, keepdim=True)))


@pytest.mark.parametrize("name", [name for name in RULES if "cells" not in name])
def test_one_group_has_nothing_to_be_compared_with(name: str) -> None:
    n = tensor([[[3, 0], [4, 0]], [[2, 0], [5, 0]]])
    for table in tables(name, n, torch.rand(3, 2, 2, 2, dtype=torch.float64)):
        assert torch.allclose(table["w"], torch.ones(2, 2, dtype=torch.float64), rtol=0, atol=1e-14)
        assert not table.get("c", torch.zeros(1)).any()


@pytest.mark.parametrize("name", RULES)
def test_an_absent_cell_keeps_its_weight_and_the_rest_go_on(name: str) -> None:
    """Two clients, of which the one with the second group is absent in a round: nothing is divided by zero, and the groups are compared again."""
    n = tensor([[[6, 0], [4, 0]], [[2, 5], [5, 7]]])
    server, part = People(name, n), torch.full((2, 2, 2), 0.25, dtype=torch.float64)
    part[1, 1, 1] = 0.75
    for ids in ([0, 1], [0], [0, 1], [1]):
        report = {key: n[ids] if key == "n" else (n * part)[ids] for key in server.rules[0].declared.ranges}
        server.round(n.new_zeros(len(ids), 1), ids, reports=[report])
        assert all(x.isfinite().all() for x in server.state[0].values())


# who can be compared
@in_one("name", ["fairbatch", "fedfb", "fedfb(metric=eodds)", "fedgft", "ffalm", "fairfed", "fairfed(metric=spd)"])
def test_two_groups_are_compared_and_no_more(name: str) -> None:
    n = torch.ones(2, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"compares two groups of people, and 'a' has 3\. Choose another attribute"):
        People(name, n)


@in_one(
    "name", ["reweighing", "fairgrad", "fedfb(metric=dp)", "fedminmax", "fairfed:extended", "fairfed:fedfb_authors"]
)
def test_these_take_any_number_of_groups(name: str) -> None:
    n = torch.ones(2, 2, 3, dtype=torch.float64)
    assert People(name, n).state[0]["w"].shape == (2, 3)


def test_floors_add_up_to_less_than_one() -> None:
    with pytest.raises(ValueError, match=r"floor=0\.1 is 1 or more for 12 groups together\. Choose one below 0\.0833"):
        People("fedminmax(floor=0.1)", torch.ones(1, 2, 12, dtype=torch.float64))


def test_groups_are_intersections_of_attributes() -> None:
    """Of two attributes with unknown values; and the same in one round of either order of their names."""
    one, other = (federation(f"fedminmax(attribute={a}, eta=1)", people=True) for a in ("side*less", "less*side"))
    for fed in (one, other):
        fed.fit(2, progress=False)
    w = one.progress.server[0]["w"]
    assert w.shape == (3, 4)
    assert len(w[0].unique()) > 1
    assert torch.allclose(w.view(3, 2, 2).mT.flatten(1), other.progress.server[0]["w"])
    assert torch.allclose(one.progress.vector, other.progress.vector)


# FairFed, which weighs clients
@settings(max_examples=15)
@given(reported=reports(least=1), beta=st.sampled_from([0.0, 0.3, 2.0]))
def test_fairfed_does_not_depend_on_which_group_is_first(reported: tuple[Tensor, Tensor], beta: float) -> None:
    n, rounds = reported
    for metric in ("eod", "spd", "dp", "eodds"):
        weights = []
        for order in (1, -1):
            server = People(f"fairfed(metric={metric}, beta={beta})", n)
            for sums in rounds:
                here, right = (n, sums) if order == 1 else (n.flip(-1), sums.flip(-1))
                accuracy = right.sum((1, 2)) / here.sum((1, 2))
                report = {"n": here, "right": right, "accuracy": accuracy}
                cohort = server.round(n.new_zeros(len(n), 1), reports=[report])
            weights.append(cohort.weights)
        assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-9)
        if beta == 0:
            assert torch.allclose(weights[0], n.sum((1, 2)) / n.sum(), rtol=0, atol=1e-12)


def test_fairfed_counts_are_of_the_model_that_was_sent() -> None:
    """One round of a federation, against counts made here; two of its five clients have nobody of a group among the positives."""
    fed = federation("fairfed(beta=0.4, attribute=side)", participation=1.0)
    data = [(d.content.x, d.content.y, d.content.s[:, 0]) for d in fed.inputs.data]
    gap, accuracy, sizes = [], [], []
    true, of = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for x, y, a in data:
        predicted = fed.model.network(fed.model.initial)(x).argmax(-1)
        hits = tensor([float(((predicted == 1) & (y == 1) & (a == g)).sum()) for g in (0, 1)])
        n = tensor([float(((y == 1) & (a == g)).sum()) for g in (0, 1)])
        true, of = true + hits, of + n
        gap.append(hits[0] / n[0] - hits[1] / n[1])
        accuracy.append((predicted == y).double().mean())
        sizes.append(float(len(y)))
    p = tensor(sizes) / sum(sizes)
    F, acc = true[0] / of[0] - true[1] / of[1], torch.stack(accuracy)
    delta = torch.stack([(acc[m] - p @ acc).abs() if g.isnan() else (g - F).abs() for m, g in enumerate(gap)])
    bar = (p - 0.4 * (delta - delta.mean())).clamp(min=0)
    fed.fit(1, progress=False)
    assert fed.records[0]["weights"] == pytest.approx((bar / bar.sum()).tolist(), abs=1e-9)


# FedGFT, whose gap is of the batch
def test_the_penalty_has_the_gradient_of_half_the_squared_gap() -> None:
    """Of a batch whose groups have the shares of all samples; and a batch of one group is compared with the others' mean in the round before."""
    n = tensor([[[2.0, 1.0], [3.0, 2.0]]])
    server = People("fedgft(metric=dp, gamma=3)", n)
    server.told(n, n * tensor([0.25, 0.5]))
    y, a = torch.tensor([0, 0, 1, 1, 1, 0, 1, 1]), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    logit = torch.linspace(-2, 1, 8, dtype=torch.float64).requires_grad_()

    def penalty(rows: slice) -> Tensor:
        z, nothing = torch.stack([torch.zeros_like(logit), logit], -1)[rows], logit[rows, None]
        out = Out(z, nothing, y[rows], None, lambda _: (z, nothing), s=a[rows, None])
        oracle: Any = None
        visit = Visit(server.theta, 1, {}, server.rules[0].message(server.state[0], 0), oracle, 0, 1)
        return torch.as_tensor(server.rules[0].loss(out, visit))

    p = logit.sigmoid()
    F = p[:5].mean() - p[5:].mean()
    expected = torch.autograd.grad(1.5 * F.square(), logit, retain_graph=True)[0]
    assert torch.allclose(torch.autograd.grad(penalty(slice(None)), logit)[0], expected)
    one = (p[:5].mean() - 0.5) * 3 * p[:5].mean() * 8 / 5
    assert float(penalty(slice(5)).detach()) == pytest.approx(float(one.detach()))


def test_long_local_training_does_not_overshoot() -> None:
    """Of the last rounds of ten; with the gap of the round before, that of the model swings ever more."""
    draw = torch.Generator().manual_seed(0)
    s = (torch.arange(400) % 4 > 0).long()
    y = (torch.rand(400, generator=draw) < torch.where(s == 0, 0.35, 0.65)).long()
    x = torch.stack([s.float(), y + torch.randn(400, generator=draw)], 1)
    swing = {}
    for name in ("fedgft", "fedgft:published"):
        net, gaps = torch.nn.Linear(2, 2), []
        fed = eq.Federation(
            net, [(x[k::2], y[k::2], s[k::2]) for k in (0, 1)], f"{name}(metric=dp, gamma=4)", eq.SGD(0.3), steps=60
        )
        for _ in range(10):
            fed.fit(1, progress=False)
            p = fed.predict_proba(x)[:, 1]
            gaps.append(float(p[s == 0].mean() - p[s == 1].mean()))
        swing[name] = max(gaps[5:]) - min(gaps[5:])
    assert swing["fedgft"] < 0.1
    assert swing["fedgft:published"] > 0.5


# what is suppressed
@pytest.mark.parametrize(
    "name", ["fairgrad(least_count=1000)", "fedgft(least_count=1000)", "fedminmax(least_count=1000)"]
)
def test_small_cells_are_reported_as_empty(name: str) -> None:
    """If every cell is too small nothing is learnt of groups, and the rule is FedAvg."""
    fed, plain = federation(name), federation("fedavg", people=True)
    for federated in (fed, plain):
        federated.fit(2, progress=False)
    assert torch.allclose(fed.progress.vector, plain.progress.vector, rtol=0, atol=1e-12)


def test_they_combine() -> None:
    for text in (
        "scaffold+fairfed",
        "fairfed+reweighing:local",
        "fedprox+fairgrad",
        "fedfb+fedheal",
        "moon+fedgft+dp(noise=0)",
    ):
        fed = federation(text)
        fed.fit(2, progress=False)
        assert fed.progress.vector.isfinite().all()
    with pytest.raises(ValueError, match="each set"):
        eq.parse("fairfed+afl")
    with pytest.raises(ValueError, match="'fedgft' lets each client send samples of each class and group"):
        eq.parse("fedgft+dp")


# what hides the number of groups, or brings other groups
def test_clients_elsewhere_need_named_values() -> None:
    """Without names the number of groups is that of the clients here, and the others' groups would have no weight."""
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    more = [(x, y, torch.arange(20) % k) for k in (2, 3)]
    lazy = [more[0], eq.Lazy(lambda: more[1], 20)]
    with pytest.raises(ValueError, match="may have other values of s"):
        eq.Federation(torch.nn.Linear(3, 2), lazy, "fairgrad", steps=1)
    named = eq.Federation(torch.nn.Linear(3, 2), lazy, "fairgrad", steps=1, attributes={"g": ["a", "b", "c"]})
    assert named.progress.server[0]["w"].shape == (2, 3)
    assert eq.Federation(torch.nn.Linear(3, 2), more, "fairgrad", steps=1).progress.server[0]["w"].shape == (2, 3)


def test_sites_need_named_values() -> None:
    from equipoise.flower import in_process

    x, y, s = torch.randn(20, 3), torch.arange(20) % 2, torch.arange(20) // 10
    with pytest.raises(ValueError, match="treats groups of people"):
        in_process(torch.nn.Linear(3, 2), [(x, y, s)] * 2, "fairgrad", eq.SGD(0.1), tests={"all": (x, y, s)})


def test_a_code_beyond_the_names_is_no_other_group() -> None:
    """Of two attributes whose codes are added up, as sex=0, race=3 would be sex=1, race=0."""
    setup = Setup(torch.zeros(3), (3,), torch.ones(2), n_classes=2, attributes={"sex": 2, "race": 3}, positive=1)
    message = cells.server_state(parse("fairgrad(attribute=sex*race)").rules[0], setup)
    s = torch.tensor([[0, 3], [1, 0], [0, 2], [-1, 1], [2, 0]])
    assert cells.group_of(message, s).tolist() == [6, 3, 2, 6, 6]


@pytest.mark.parametrize("metric", ["eo", "eodds"])
def test_a_round_with_one_group_changes_no_share(metric: str) -> None:
    """Whichever it is: a row of which one cell is empty keeps its weights."""
    rule = parse(f"fairbatch(metric={metric}, alpha=0.1)").rules[0]
    w, n = torch.tensor([[0.8, 1.2], [0.6, 1.4]]).double(), torch.tensor([[50.0, 50], [40, 60]]).double()
    for empty in (0, 1):
        here = n.clone()
        here[:, empty] = 0
        assert torch.equal(shifted(w, here, torch.full((2,), rule.alpha).double()), w)
