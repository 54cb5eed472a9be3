"""LoGoFair: budgets for the gap of selection rates over all clients and inside each, and decisions by a client's own state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.methods.logofair import cost
from equipoise.metrics.calibration import Decision

SHIFTS = (1.5, -1.0)  # by which the second group scores higher, at each client


def people(n: int, seed: int, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Samples with a probability of the positive class that rises with x, which the second group has more of."""
    rng = torch.Generator().manual_seed(seed)
    s = torch.randint(0, 2, (n,), generator=rng)
    x = torch.randn(n, 1, generator=rng) + shift * s[:, None]
    return x, (torch.rand(n, generator=rng) < torch.sigmoid(1.5 * x[:, 0])).long(), s


def federation(method: str) -> eq.Federation:
    return eq.Federation(
        eq.network("mlp", (1,), 2, seed=0, hidden=[]),
        [people(4000, k, shift) for k, shift in enumerate(SHIFTS)],
        method,
        eq.SGD(1.0),
        batch_size=250,
        tests={"all": people(100, 7, 0.0)},
        client_tests=[people(6000, 10 + k, shift) for k, shift in enumerate(SHIFTS)],
        attributes={"sex": ["f", "m"]},
        positive=1,
        names=["one", "two"],
    )


def gaps(fed: eq.Federation) -> tuple[float, list[float]]:
    """The difference of selection rates over the clients' test sets together, and in each."""
    sets = [sums[0] for sums in fed.records[-1]["by"]["clients"] if sums]
    chosen, n = (torch.tensor([sums[key] for sums in sets]).double() for key in ("chosen", "true"))
    taken, size = chosen[..., 1], n.sum(-1)
    each = taken / size
    together = taken.sum(0) / size.sum(0)
    return float((together[0] - together[1]).abs()), (each[:, 0] - each[:, 1]).abs().tolist()


def test_a_local_budget_closes_the_gap_inside_clients_that_a_global_one_leaves() -> None:
    plain, common, local = (federation(m) for m in ("fedavg", "logofair(local=1)", "logofair"))
    for fed in (plain, common, local):
        fed.fit(8, progress=False)
    assert torch.equal(plain.progress.vector, local.progress.vector)
    assert gaps(common)[0] < 0.05 < min(gaps(common)[1])  # opposite gaps, which make up for each other
    assert max(gaps(local)[1]) < 0.06 < min(gaps(plain)[1])
    assert gaps(local)[0] < 0.05


def test_a_client_decides_by_its_own_thresholds_and_nobody_else_does(tmp_path: Path) -> None:
    fed = federation("logofair")
    fed.fit(6, progress=False)
    x, y, s = people(500, 3, 0.0)
    p, state, edges = fed.predict_proba(x)[:, 1].double(), fed.progress.server[0], []
    for client in (None, 0, 1):
        own = {} if client is None else {"hist": fed.progress.clients[0]["hist"][client]}
        edges.append(fed.method.rules[0].edges({**state, **own})[1])
        assert torch.equal(fed.predict(x, s, client=client), (p >= edges[-1][s]).long())
        fed.save_bundle(tmp_path / str(client), client=client)
        decision = eq.load(tmp_path / str(client)).content.decision
        assert isinstance(decision, Decision)
        assert decision.edges[:2] == pytest.approx(edges[-1].tolist(), abs=1e-12)
    assert edges[0].tolist() != edges[1].tolist() != edges[2].tolist()
    assert fed.evaluate(x, y, s, client=0)["accuracy"] == float((fed.predict(x, s, client=0) == y).double().mean())
    assert "hist" not in fed.method.rules[0].message(state, 0)


def test_shifts_are_the_best_of_all() -> None:
    """Of a client's histogram, against every u on a fine grid; none is better with a price of 1, or at a client with one group."""
    rule = eq.parse("logofair(bins=20, local=0.03)").rules[0]
    hist = torch.randint(0, 9, (2, 20), generator=torch.Generator().manual_seed(0)).double()
    n, lam = hist.sum(-1) * 3, torch.tensor([-0.1, 0.0, 0.04]).double()
    u, priced = rule._best(hist, n, lam)
    tried = torch.linspace(-0.5, 0.5, 4001).double()
    score = ((torch.arange(20) + 0.5) / 20).double().expand(2, -1)
    for k in range(3):
        every = cost(score, hist, n, lam[k].expand(4001), tried) + 0.03 * tried.abs()
        assert float(priced[k]) <= float(every.min()) + 1e-9
    assert u.abs().max() > 0
    assert eq.parse("logofair(bins=20, local=1)").rules[0]._best(hist, n, lam)[0].abs().max() < 1e-9
    assert not rule._best(hist * torch.tensor([[1.0], [0.0]]), n, lam)[0].any()
