"""RFA's smoothed Weiszfeld, typed out over lists."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.methods.geometric_median import GeometricMedian
from helpers import Server, normal, tensor


def naive(points: Tensor, alpha: list[float], nu: float, R: int, start: str) -> list[float]:
    """v after R steps."""
    rows, total = points.tolist(), sum(alpha)
    v = [0.0] * points.shape[1]
    if start == "mean":
        v = [sum(a / total * row[c] for a, row in zip(alpha, rows, strict=True)) for c in range(len(v))]
    for _ in range(R):
        beta = [a / total / max(nu, math.dist(v, row)) for a, row in zip(alpha, rows, strict=True)]
        v = [sum(b * row[c] for b, row in zip(beta, rows, strict=True)) / sum(beta) for c in range(len(v))]
    return v


def after(rule: object, updates: Tensor, sizes: list[float], buffers: Tensor | None = None) -> Server:
    width = 0 if buffers is None else buffers.shape[1]
    server = Server(rule, updates.new_zeros(updates.shape[1]), sizes, buffers=updates.new_zeros(width))
    server.round(updates, buffer_updates=buffers)
    return server


@given(
    M=st.integers(1, 6),
    P=st.integers(1, 8),
    R=st.integers(1, 6),
    nu=st.sampled_from([1e-6, 0.5, 3.0]),
    start=st.sampled_from(["model", "mean"]),
    seed=st.integers(0, 10**6),
)
def test_the_steps_typed_out(M: int, P: int, R: int, nu: float, start: str, seed: int) -> None:
    updates, buffers = normal(M, P, seed=seed), 50 * normal(M, 3, seed=seed + 1)
    sizes = [float(1 + 3 * k) for k in range(M)]
    server = after(GeometricMedian(nu=nu, R=R, start=start), updates, sizes, buffers)
    assert server.theta.tolist() == pytest.approx(naive(updates, sizes, nu, R, start), abs=1e-9)
    assert server.buffers.tolist() == pytest.approx(naive(buffers, sizes, nu, R, start), abs=1e-7)


def test_by_hand() -> None:
    """From 0, the updates 1 and 4 with equal weights have beta 1 and 1/4: v = (1 + 1) / (5/4)."""
    assert after(GeometricMedian(R=1), tensor([[1.0], [4.0]]), [1.0, 1.0]).theta.tolist() == pytest.approx([1.6])
    assert after(GeometricMedian(R=1), tensor([[1.0], [4.0]]), [1.0, 4.0]).theta.tolist() == pytest.approx([2.5])
    assert after(
        GeometricMedian(R=1, start="mean"), tensor([[0.0], [0.0], [3.0]]), [1.0] * 3
    ).theta.tolist() == pytest.approx([0.6])


def test_many_steps_reach_the_point_of_least_distances() -> None:
    """The corners of a triangle of equal sides: its centre. On a line, with more than half of the weight: the client itself."""
    corners = tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]]) + tensor([3.0, 1.0])
    assert after(GeometricMedian(R=200), corners, [1.0] * 3).theta.tolist() == pytest.approx([3.0, 1.0], abs=1e-6)
    line = tensor([[2.0], [5.0], [-7.0]])
    assert after(GeometricMedian(R=200), line, [6.0, 2.0, 3.0]).theta.tolist() == pytest.approx([2.0], abs=1e-5)


def test_much_smoothing_is_the_mean() -> None:
    updates, sizes = normal(4, 5), [1.0, 2.0, 3.0, 4.0]
    expected = tensor(sizes) / 10 @ updates
    assert torch.allclose(after(GeometricMedian(nu=1e9), updates, sizes).theta, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("attack", [1e30, -3e38])
def test_a_client_that_lies_pulls_no_harder_than_others(attack: float) -> None:
    """The step stays as near as the theory of medians has it: within 2 / (1 - 2/5) of the others' reach, also after R = 3 steps."""
    updates, buffers = normal(5, 40).float(), normal(5, 6, seed=1).float()
    updates[3], buffers[3] = attack, attack
    server = after(GeometricMedian(), updates, [1.0] * 5, buffers)
    for got, sent in ((server.theta, updates), (server.buffers, buffers)):
        honest = sent[[0, 1, 2, 4]]
        assert bool(got.isfinite().all())
        assert float(got.norm()) < 2 / (1 - 2 / 5) * float(honest.norm(dim=1).max())


def test_from_the_mean_a_few_steps_do_not_come_back() -> None:
    """As released, which the docstring says; many do."""
    updates = normal(5, 4)
    updates[3] = 1e12
    reach = [float(after(GeometricMedian(R=R, start="mean"), updates, [1.0] * 5).theta.norm()) for R in (3, 60)]
    assert reach[0] > 1e9
    assert reach[1] < 10


def test_weights_are_those_of_another_rule() -> None:
    updates = normal(4, 6)
    report = {"loss": torch.ones(4, dtype=torch.float64)}
    both = Server("geometric-median+afl(gamma=0)", torch.zeros(6, dtype=torch.float64), [1.0, 2.0, 50.0, 3.0])
    both.round(updates, reports=[report, report])
    assert torch.allclose(both.theta, after(GeometricMedian(), updates, [1.0] * 4).theta, rtol=0, atol=1e-14)


def test_updates_at_the_start_and_all_alike() -> None:
    for updates in (torch.zeros(3, 4), normal(1, 4).float().expand(3, -1)):
        assert torch.allclose(after(GeometricMedian(), updates, [1.0] * 3).theta, updates[0], atol=1e-6)


def test_names_and_ranges() -> None:
    assert eq.parse("geometric-median:released").rules == (GeometricMedian(nu=1e-5, R=4, start="mean"),)
    with pytest.raises(ValueError, match="geometric-median: nu must be > 0; found 0"):
        eq.parse("geometric-median(nu=0)")
    with pytest.raises(ValueError, match="R must be a whole number >= 1"):
        GeometricMedian(R=0)
