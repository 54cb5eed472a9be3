"""FedAVE: clients and server typed out on real networks, the divergence of two lists, and the round that gives nothing."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn import functional

import equipoise as eq
from equipoise.core.model import Model
from equipoise.engines import ENGINES
from equipoise.engines.job import Answer, Job
from equipoise.federation.method import MethodError, parse
from equipoise.methods.fedave import FedAVE, divergence, likeness
from helpers import (
    UNEQUAL,
    clients,
    federation,
    fitted,
    identical,
    network,
    normal,
    oracle_of,
    samples,
    tensor,
    visit_of,
    watched,
)
from reward_helpers import Vector, one_round, top

VALIDATION = samples(150, 2)  # two whole batches of 64 and a rest


def kl(own: Vector, server: Vector, *, ordered: bool = False) -> float:
    """Of two lists of losses, cut to one length."""
    if ordered:
        own, server = sorted(own), sorted(server)
    n = min(len(own), len(server))
    own, server = own[:n], server[:n]
    p, s = ([x / sum(part) for x in part] for part in (own, server))
    return sum(a * math.log(a / b) for a, b in zip(p, s, strict=True))


def losses(network: torch.nn.Module, x: Tensor, y: Tensor, batches: list[list[int]]) -> Vector:
    with torch.no_grad():
        return [float(functional.cross_entropy(network(x[rows]), y[rows])) for rows in batches]


class Naive:
    """FedAVE with loops: what the server knows, and the models of the clients."""

    def __init__(self, rule: FedAVE, fed: eq.Federation) -> None:
        self.rule, self.fed = rule, fed
        self.rep = [0.0] * len(UNEQUAL)
        self.server = fed.model.initial.tolist()
        self.models = [list(self.server) for _ in UNEQUAL]

    def round(self, t: int, ids: list[int], plans: list[list[list[int]]], trained: Tensor) -> None:
        rule, network, data = self.rule, self.fed.model.network, clients()
        x, y = VALIDATION
        inverse, acc, sent = [], [], []
        for k, m in enumerate(ids):
            net = network(tensor(self.models[m]))
            own = losses(net, *data[m], plans[k])
            server = losses(net, x, y, [list(range(s, min(s + 64, len(y)))) for s in range(0, len(y), 64)])
            inverse.append(1 / (kl(own, server, ordered=rule.sort_losses) + rule.eps))
            acc.append(float((network(trained[k])(x).argmax(1) == y).double().mean()))
            delta = [a - b for a, b in zip(trained[k].tolist(), self.models[m], strict=True)]
            length = math.sqrt(sum(d * d for d in delta))
            sent.append([rule.gamma * d / (length + 1e-7) for d in delta])
        likely = [v / max(inverse) for v in inverse]
        n = sum(UNEQUAL[m] for m in ids)
        u = [sum(UNEQUAL[m] / n * v for m, v in zip(ids, column, strict=True)) for column in zip(*sent, strict=True)]
        for m, a, k in zip(ids, acc, likely, strict=True):
            value = a * k * k
            self.rep[m] = max(value if t == 0 else rule.alpha * self.rep[m] + (1 - rule.alpha) * value, 1e-3)
        total = sum(self.rep)
        self.rep = [r / total for r in self.rep]
        if t == 0:
            return
        self.server = [a + b for a, b in zip(self.server, u, strict=True)]
        most = max(math.tanh(rule.beta * r) for r in self.rep)
        for m, k in zip(ids, likely, strict=True):
            q = math.tanh(rule.beta * self.rep[m]) / most * k
            part = top(u, q, self.fed.model.layout, rule.sparsify)
            self.models[m] = [a + b for a, b in zip(self.models[m], part, strict=True)]


@pytest.mark.parametrize(
    ("rule", "participation"),
    [
        (FedAVE(alpha=0.6, gamma=0.7), 1.0),
        (FedAVE(beta=5.0), 0.6),
        (FedAVE(sparsify="exact_layer", sort_losses=True, eps=0.1), 0.6),
        (FedAVE(sparsify="paper_global"), 1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_typed_out(rule: FedAVE, participation: float, engine: str) -> None:
    """Networks that train; losses and accuracies by hand, at the model each client holds."""
    seen: list[tuple[Job, Answer]] = []
    fed = federation(
        rule, server_validation=VALIDATION, participation=participation, engine=watched(seen, ENGINES[engine](1, None))
    )
    naive = Naive(rule, fed)
    for t in range(4):
        seen.clear()
        fed.fit(1, progress=False)
        job, ids = seen[0][0], fed.records[-1]["ids"]
        rows = [row for _, answer in seen for row in answer.rows]
        trained = torch.cat([answer.trained for _, answer in seen])[torch.tensor(rows).argsort()]
        first = job.schedule(range(len(ids))).first(1).index.tolist()
        plans = [[[j for j in batch if j >= 0] for batch in plan if max(batch) >= 0] for plan in first]
        naive.round(t, ids, plans, trained)
        state = fed.progress
        assert state.server[0]["rep"].tolist() == pytest.approx(naive.rep, abs=1e-11)
        assert fed.records[-1]["reputation"] == pytest.approx([naive.rep[m] for m in ids], abs=1e-11)
        assert state.vector.tolist() == pytest.approx(naive.server, abs=1e-11)
        for m in range(len(UNEQUAL)):
            assert state.given[m].tolist() == pytest.approx(naive.models[m], abs=1e-11)
    assert len({tuple(row) for row in fed.progress.given.tolist()}) > 1


# the divergence
LOSSES = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


@given(own=LOSSES, server=LOSSES, padding=st.integers(0, 3), ordered=st.booleans())
def test_the_divergence_typed_out(own: Vector, server: Vector, padding: int, ordered: bool) -> None:
    """Beside other clients, whose lists may be longer."""
    told = tensor([own + [0.0] * padding, [1.0] * (len(own) + padding)])
    there = torch.tensor([[True] * len(own) + [False] * padding, [True] * (len(own) + padding)])
    found = divergence(told, there, tensor(server).expand(2, -1), ordered=ordered)
    assert float(found[0]) == pytest.approx(kl(own, server, ordered=ordered), abs=1e-12)
    assert float(divergence(tensor(own), there[0, : len(own)], tensor(server), ordered=ordered)) == float(found[0])


@given(own=LOSSES, server=LOSSES, seed=st.integers(0, 99))
def test_sorted_losses_have_no_order(own: Vector, server: Vector, seed: int) -> None:
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
    there = torch.ones(len(own)) > 0
    a, b = (divergence(x, there, tensor(server), ordered=True) for x in (tensor(own), tensor(own)[order]))
    assert torch.equal(a, b)
    assert float(a) > -1e-12


def test_unsorted_losses_have_one() -> None:
    there, server = torch.ones(3) > 0, tensor([1, 2, 3])
    assert float(divergence(tensor([1, 2, 3]), there, server)) == pytest.approx(0, abs=1e-15)
    assert float(divergence(tensor([3, 2, 1]), there, server)) > 0.1


@pytest.mark.parametrize("ordered", [False, True])
def test_losses_of_zero_and_lists_of_one_are_finite(ordered: bool) -> None:
    there = torch.ones(2) > 0
    for own, server in (([0, 1], [1, 1]), ([1, 1], [0, 1]), ([0, 0], [1, 2]), ([1, 2], [0, 0]), ([5, 1], [3])):
        found = divergence(tensor(own), there, tensor(server), ordered=ordered)
        assert bool(found.isfinite())
        assert float(found) == 0 if len(server) == 1 else float(found) > 0.01
    assert float(divergence(tensor([0, 0]), there, tensor([0, 0]))) == 0


def test_likeness_is_one_for_the_most_alike() -> None:
    assert likeness(tensor([0.2, 0.1, 0.4]), 1e-12).tolist() == pytest.approx([0.5, 1, 0.25], abs=1e-9)
    found = likeness(tensor([0.0, -1e-17, 0.5]), 1e-12)
    assert found.tolist() == pytest.approx([1, 1, 2e-12])
    assert likeness(tensor([0.0, 0.01, 0.04]), 0.01).tolist() == pytest.approx([1, 0.5, 0.2])


def test_a_client_of_one_batch_takes_it_all_unless_it_is_stable() -> None:
    """What the published rule makes of a list that says nothing."""
    settings = {"server_validation": VALIDATION, "sizes": (7, 40, 40), "participation": 1.0}
    alike = [fitted(f"fedave{preset}", 2, **settings).records[1]["likeness"] for preset in ("", ":stable")]
    assert alike[0][0] == alike[1][0] == 1
    assert max(alike[0][1:]) < 1e-6
    assert min(alike[1][1:]) > 0.1


def test_a_network_is_asked_batch_by_batch() -> None:
    """Of equal lists, those of a client that holds the server's data in the server's batches, the divergence is 0."""
    x, y = samples(20, 1)
    oracle = oracle_of(network(), x, y, eq.SGD(0.1), steps=2)
    at = Model(network()).initial
    found, there = oracle.batch_losses(at)
    report, _ = FedAVE().finish(at, visit_of(oracle, at, message={"losses": found}))
    assert found.shape == there.shape == (2,)
    assert float(found[0]) == pytest.approx(float(oracle.loss(at)))
    assert float(report["kl"]) == 0
    other, _ = FedAVE().finish(at, visit_of(oracle, at, message={"losses": found * tensor([1, 3])}))
    assert float(other["kl"]) > 0.1


# the round
def test_the_first_round_only_measures() -> None:
    """Nobody gets anything, the work of the clients is lost, and reputations are the values."""
    fed = fitted("fedave", 1, server_validation=VALIDATION, participation=1.0)
    start, rep = fed.model.initial, fed.progress.server[0]["rep"]
    assert torch.equal(fed.progress.vector, start)
    assert torch.equal(fed.progress.given, start.expand(5, -1))
    assert float(rep.sum()) == pytest.approx(1)
    assert float(rep.max() / rep.min()) > 2  # without (1 - alpha) to dampen them
    fed.fit(1, progress=False)
    length = float((fed.progress.vector - start).norm())
    assert 0.1 < length <= 0.5 + 1e-12


def test_the_likeness_counts_in_the_value_and_in_the_share() -> None:
    class Judge:
        def tally(self, vector: Tensor) -> SimpleNamespace:
            return SimpleNamespace(goodness=tensor(0.8))

    updates, told = normal(2, 8), {"reports": {"kl": tensor([0.1, 0.2])}, "oracle": Judge(), "t": 3}
    rule = FedAVE(alpha=0.0, beta=1.0, sparsify="exact_layer")
    start = {"rep": tensor([0.5, 0.5]), "k": torch.zeros(2).double(), "losses": torch.zeros(2, 0).double()}
    state, _, given = one_round(rule, updates, start, **told)
    assert state["k"].tolist() == pytest.approx([1, 0.5], abs=1e-9)
    assert state["rep"].tolist() == pytest.approx([0.8, 0.2], abs=1e-9)  # 1 : 0.5 squared
    q = math.tanh(0.2) / math.tanh(0.8) * 0.5
    assert (given != 0).sum(1).tolist() == [8, math.ceil(8 * q)]


def test_running_statistics_are_given_whole() -> None:
    fed = fitted("fedave", 3, kind="batchnorm", server_validation=VALIDATION, participation=1.0)
    P = fed.model.n_params
    assert torch.equal(fed.progress.given[:, P:], fed.progress.vector[P:].expand(5, -1))
    assert not torch.equal(fed.progress.given[0, :P], fed.progress.given[1, :P])


# contributions
def test_rewards_by_contribution_ask_for_nothing_else() -> None:
    c = [0.28, 0.35, 0.41, 0.1, 0.41]
    seen: list[tuple[Job, Answer]] = []
    rule = FedAVE(reputation="contribution", sparsify="exact_layer")
    settings = {"participation": 1.0, "contribution": c}
    fed = fitted(rule, 1, engine=watched(seen), **settings)
    assert torch.equal(fed.progress.given, fed.model.initial.expand(5, -1))
    fed.fit(1, progress=False)
    step = fed.progress.vector - fed.model.initial
    for m in range(5):
        q = math.tanh(2 * c[m]) / math.tanh(2 * 0.41)
        expected = fed.model.initial + tensor(top(step.tolist(), q, fed.model.layout, "exact_layer"))
        assert torch.allclose(fed.progress.given[m], expected, rtol=0, atol=1e-15)
    assert all(job.messages == [{}] and answer.reports == [{}] for job, answer in seen)
    with_data = fitted(rule, 2, server_validation=VALIDATION, **settings)
    assert torch.equal(fed.progress.given, with_data.progress.given)
    assert with_data.progress.server[0]["losses"].shape == (5, 0)


def test_a_run_by_contribution_resumes(tmp_path: Path) -> None:
    """Its state never changes, and stays what it is in a checkpoint."""
    make = lambda: federation("fedave:contribution", contribution=[0.1, 0.5, 0.2, 0.3, 0.4])  # noqa: E731
    never, again = make(), make()
    never.fit(3, progress=False)
    make().fit(2, directory=tmp_path, progress=False)
    again.resume(tmp_path)
    again.fit(1, progress=False)
    assert identical(never, again)


# what it needs, names and sums
def test_what_it_needs() -> None:
    assert FedAVE().needs == {"validation"}
    assert FedAVE(reputation="contribution").needs == {"contribution"}
    with pytest.raises(ValueError, match=r"validation data of the server's own, and this federation has none"):
        federation("fedave", server_validation=None)
    with pytest.raises(ValueError, match=r"needs validation data, and there is none"):
        one_round(FedAVE(), normal(2, 4), reports={"kl": tensor([0.1, 0.2])})


def test_presets_and_sums() -> None:
    assert parse("fedave:exact").rules == (FedAVE(sparsify="exact_layer"),)
    assert parse("fedave:stable").rules == (FedAVE(sort_losses=True, eps=0.01),)
    assert parse("fedave:contribution").rules == (FedAVE(reputation="contribution"),)
    assert len(parse("fedprox+moon+fedave").rules) == 3
    for other in ("fedheal", "qffl", "cgsv", "fedgh", "fedsac"):
        with pytest.raises(MethodError, match="each set"):
            parse(f"fedave+{other}")
