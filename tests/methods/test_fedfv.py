"""FedFV: Algorithms 1 to 3 in scalars on vectors, where the product works on a Gram matrix."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import maths
from equipoise.methods.feddyn import FedDyn
from equipoise.methods.fedfv import FedFV
from helpers import Server, federation, fitted, in_one, normal, scripted

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def minus(a: Vector, scale: float, b: Vector) -> Vector:
    return [x - scale * y for x, y in zip(a, b, strict=True)]


def mean(rows: list[Vector]) -> Vector:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


class Naive:
    """The server of FedFV as the paper has it: gradients g = W - w, a history, loops over clients."""

    def __init__(self, alpha: float, tau: int, lags: str) -> None:
        self.alpha, self.tau, self.lags, self.t = alpha, tau, lags, 0
        self.history: dict[int, tuple[Vector, int]] = {}

    def internal(self, g: list[Vector], losses: list[float]) -> list[Vector]:
        S = len(g)
        order = sorted(range(S), key=lambda k: losses[k])
        keep = S - math.ceil((S - 1) * (1 - self.alpha)) if self.alpha > 0 else 0
        left_alone = order[S - keep :]
        projected = []
        for m in range(S):
            u = list(g[m])
            for j in order:
                if j != m and m not in left_alone and dot(g[j], u) < 0:
                    u = minus(u, dot(g[j], u) / dot(g[j], g[j]), g[j])
            projected.append(u)
        return projected

    def direction(self, ids: list[int], g: list[Vector], losses: list[float]) -> Vector:
        t = self.t
        self.t += 1
        for m, row in zip(ids, g, strict=True):
            self.history[m] = (row, t)
        d = mean(self.internal(g, losses))
        lags = range(self.tau, 0, -1) if self.lags == "paper" else range(self.tau - 1, -1, -1)
        if t + (self.lags == "released") >= self.tau:
            for lag in lags:
                conflicting = [row for row, last in self.history.values() if last == t - lag and dot(d, row) < 0]
                if conflicting:
                    C = [sum(column) for column in zip(*conflicting, strict=True)]
                    if dot(d, C) < 0:
                        d = minus(d, dot(d, C) / dot(C, C), C)
        length = math.sqrt(dot(d, d))
        plain = mean(g)
        return [x * math.sqrt(dot(plain, plain)) / length for x in d] if length else [0.0] * len(d)


@in_one("lags", ["paper", "released"])
@in_one(("alpha", "tau"), [(0.0, 1), (0.1, 1), (0.1, 3), (0.5, 2), (1.0, 2), (0.2, 0)])
def test_algorithms_typed_out(lags: str, alpha: float, tau: int) -> None:
    """Seven rounds of changing cohorts: some clients conflict from one, two and three rounds ago."""
    G = 4
    W = normal(G)
    server, naive = Server(FedFV(alpha=alpha, tau=tau, lags=lags), W, [1.0] * 6), Naive(alpha, tau, lags)
    theta = W.tolist()
    cohorts = [[0, 1, 2, 3, 4, 5], [0, 3], [1, 2, 5], [4], [0, 1], [2, 3, 4], [0, 5]]
    for t, ids in enumerate(cohorts):
        updates, losses = normal(len(ids), G, seed=10 + t), normal(len(ids), seed=40 + t).abs()
        server.round(updates, ids, [{"loss": losses}])
        theta = minus(theta, 1.0, naive.direction(ids, (-updates).tolist(), losses.tolist()))
        assert server.theta.tolist() == pytest.approx(theta, abs=1e-11), t


def coefficients(updates: Tensor, losses: Tensor, rule: FedFV) -> Tensor:
    return rule._internal(maths.gram(updates), losses)


@given(seed=st.integers(0, 10**6))
def test_two_clients_have_no_conflict_left(seed: int) -> None:
    updates, losses = normal(2, 5, seed=seed), normal(2, seed=seed + 1)
    projected = coefficients(updates, losses, FedFV(alpha=0.0)) @ updates
    for m in range(2):
        assert float(projected[m] @ updates[1 - m]) >= -1e-12


@given(seed=st.integers(0, 10**6), M=st.integers(2, 6))
def test_the_last_projection_leaves_no_conflict_with_its_own_client(seed: int, M: int) -> None:
    """Later projections may bring earlier conflicts back, so the claim holds for the one with the largest loss."""
    updates, losses = normal(M, 5, seed=seed), normal(M, seed=seed + 1)
    projected = coefficients(updates, losses, FedFV(alpha=0.0)) @ updates
    last = int(losses.argmax())
    for m in set(range(M)) - {last}:
        assert float(projected[m] @ updates[last]) >= -1e-10


@given(seed=st.integers(0, 10**6), M=st.integers(1, 6), alpha=st.floats(0, 1))
def test_the_length_of_the_mean_is_kept(seed: int, M: int, alpha: float) -> None:
    updates, losses = normal(M, 5, seed=seed), normal(M, seed=seed + 1)
    server = Server(FedFV(alpha=alpha), torch.zeros(5, dtype=torch.float64), [1.0] * M)
    server.round(updates, reports=[{"loss": losses}])
    assert float(server.theta.norm()) == pytest.approx(float(updates.mean(0).norm()), rel=1e-8, abs=1e-12)


def test_without_conflict_it_is_the_mean() -> None:
    updates = normal(3, 4).abs()
    server = Server(FedFV(), torch.zeros(4, dtype=torch.float64), [1, 10, 5])
    server.round(updates, reports=[{"loss": torch.tensor([1.0, 2.0, 3.0])}])
    assert torch.allclose(server.theta, updates.mean(0), rtol=0, atol=1e-14)


def test_by_hand() -> None:
    """(1, 0) and (-1, 1) conflict: the first loses its part along (-1, 1), the second its part along (1, 0)."""
    updates = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    projected = coefficients(updates, torch.tensor([1.0, 2.0]), FedFV(alpha=0.0)) @ updates
    assert projected.tolist() == [[0.5, 0.5], [0.0, 1.0]]
    server = Server(FedFV(alpha=0.0), torch.zeros(2, dtype=torch.float64), [1, 1])
    server.round(updates, reports=[{"loss": torch.tensor([1.0, 2.0])}])
    expected = torch.tensor([0.25, 0.75]) / math.hypot(0.25, 0.75) * math.hypot(0.0, 0.5)
    assert server.theta.tolist() == pytest.approx(expected.tolist())


def test_under_full_participation_the_lag_has_no_effect() -> None:
    a, b = (fitted(f"fedfv(tau={tau})", 3, participation=1.0) for tau in (0, 3))
    assert torch.equal(a.progress.vector, b.progress.vector)
    c, d = (fitted(f"fedfv(tau={tau})", 5, participation=0.4) for tau in (0, 3))
    assert not torch.equal(c.progress.vector, d.progress.vector)


def test_under_full_participation_nothing_is_copied() -> None:
    """What is remembered is the matrix of the round itself; a round in another order is sorted in, as any other."""
    server = Server(FedFV(), torch.zeros(4, dtype=torch.float64), [1.0] * 3)
    updates, losses = normal(3, 4), torch.tensor([3.0, 1.0, 2.0])
    server.round(updates, reports=[{"loss": losses}])
    assert server.state[0]["last_update"] is updates
    other = Server(FedFV(), torch.zeros(4, dtype=torch.float64), [1.0] * 3)
    other.round(updates[[2, 0, 1]], [2, 0, 1], [{"loss": losses[[2, 0, 1]]}])
    assert torch.equal(other.state[0]["last_update"], updates)
    assert torch.allclose(other.theta, server.theta, rtol=0, atol=1e-15)


@pytest.mark.parametrize("signs", [[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]], ids=["still", "opposite"])
def test_no_direction_means_no_step(signs: list[float]) -> None:
    """Nothing is divided by 0, and the record of the round stays a number."""
    updates = torch.tensor(signs, dtype=torch.float64)[:, None].expand(3, federation().model.size)
    engine = scripted([updates], lambda job: [{"loss": torch.ones(3)}])
    fed = federation("fedfv", sizes=(5, 5, 5), participation=1.0, engine=engine)
    fed.fit(1, progress=False)
    assert torch.equal(fed.progress.vector, fed.model.initial)
    assert fed.records[0]["weights"] == [0.0] * 3  # nobody counted


def test_with_feddyn_the_servers_shift_is_kept() -> None:
    """Also where absent clients conflict, whose part of the direction is a shift as well."""
    G = 4
    both, alone = Server("feddyn+fedfv(tau=2)", normal(G), [1.0] * 4), Server(FedFV(tau=2), normal(G), [1.0] * 4)
    moved = False
    for t, ids in enumerate([[0, 1, 2, 3], [0, 1], [2, 3], [1, 2]]):
        updates, report = normal(len(ids), G, seed=t), {"loss": normal(len(ids), seed=20 + t).abs()}
        before = both.theta
        plain = alone.round(updates, ids, [report])
        cohort = both.round(updates, ids, [{}, report])
        u = both.state[both.position(FedDyn)]["u"]
        assert torch.allclose(both.theta - before, plain.step() - u, rtol=0, atol=1e-12)
        assert torch.equal(cohort.coefficients, plain.coefficients)
        moved = moved or plain.shift is not None
    assert moved


def test_a_server_rate_scales_the_whole_direction() -> None:
    whole, half = (
        Server("scaffold+fedfv(tau=2)", normal(4), [1.0] * 4),
        Server("scaffold(eta=0.5)+fedfv(tau=2)", normal(4), [1.0] * 4),
    )
    for t, ids in enumerate([[0, 1, 2, 3], [0, 1], [2, 3]]):
        updates, report = normal(len(ids), 4, seed=t), {"loss": normal(len(ids), seed=20 + t).abs()}
        a, b = (server.round(updates, ids, [{"dc": 0 * updates}, report]) for server in (whole, half))
        assert torch.allclose(0.5 * a.step(), b.step(), rtol=0, atol=1e-14)
    assert a.shift is not None


def test_the_released_preset() -> None:
    assert eq.parse("fedfv:released").rules == (FedFV(lags="released"),)
    assert eq.parse("fedfv").rules == (FedFV(alpha=0.1, tau=1, lags="paper"),)
