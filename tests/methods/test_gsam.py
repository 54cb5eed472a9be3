"""GSAM: its direction in scalars, its limits, and the part that is orthogonal."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.methods.gsam import GSAM, orthogonal
from equipoise.methods.sam import SAM
from helpers import Quadratic, difference, fitted, identical, normal


def quadratic(n: int = 4, seed: int = 0) -> Quadratic:
    root = normal(n, n, seed=seed)
    return Quadratic(root @ root.T / n, normal(n, seed=seed + 1))


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.7])
def test_the_step_typed_out(alpha: float) -> None:
    client, rho, t, rounds = quadratic(), 0.3, 1, 5
    theta = normal(4, seed=5).tolist()
    A, b = client.A.tolist(), client.b.tolist()
    grad = lambda y: [sum(a * x for a, x in zip(row, y, strict=True)) - c for row, c in zip(A, b, strict=True)]  # noqa: E731
    dot = lambda u, v: sum(x * y for x, y in zip(u, v, strict=True))  # noqa: E731
    oracle = client.oracle(eq.SGD(0.1), 2)
    start = torch.tensor(theta, dtype=torch.float64)
    got, _, _, _ = visit_client([GSAM(rho, 0.5, alpha)], oracle, t, rounds, start, [{}], [{}])
    for _ in range(2):
        g = grad(theta)
        far = rho * math.sqrt((t + 1) / rounds) / math.sqrt(dot(g, g))
        g_p = grad([x + far * y for x, y in zip(theta, g, strict=True)])
        share = dot(g, g_p) / dot(g_p, g_p)
        used = [p - alpha * (x - share * p) for x, p in zip(g, g_p, strict=True)]
        theta = [x - 0.1 * y for x, y in zip(theta, used, strict=True)]
    assert got.tolist() == pytest.approx(theta, abs=1e-10)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 1e3))
def test_the_orthogonal_part(seed: int, scale: float) -> None:
    g, g_p = normal(3, 6, seed=seed), scale * normal(3, 6, seed=seed + 1)
    part = orthogonal(g, g_p)
    assert float(((part * g_p).sum(-1) / g_p.norm(dim=-1)).abs().max()) < 1e-8
    assert torch.allclose(orthogonal(part, g_p), part, rtol=0, atol=1e-8)
    assert torch.allclose(orthogonal(g_p, g_p), torch.zeros_like(g), rtol=0, atol=1e-7)


def test_without_a_direction_nothing_is_divided_by_zero() -> None:
    g, zero = normal(2, 5), torch.zeros(2, 5, dtype=torch.float64)
    assert torch.equal(orthogonal(g, zero), g)
    assert torch.equal(orthogonal(zero, g), zero)
    still = Quadratic(torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    after, _, _, _ = visit_client([GSAM()], still.oracle(eq.SGD(0.1), 1), 0, 1, normal(3), [{}], [{}])
    assert torch.equal(after, normal(3))


def test_alpha_0_is_sam() -> None:
    a, b = fitted(GSAM(0.2, 0.5, 0.0), 3), fitted(SAM(0.2, 0.5), 3)
    assert identical(a, b)


@pytest.mark.parametrize("solver", [eq.SGD(0.05, 0.9), eq.Adam(0.01)])
def test_engines_agree_with_any_solver(solver: eq.SGD | eq.Adam) -> None:
    a, b = (fitted("gsam(rho=0.1, tau=0.5)", 3, solver=solver, engine=e) for e in ("sequential", "stacked"))
    assert difference(a, b) < 1e-10


def test_ranges() -> None:
    with pytest.raises(ValueError, match=r"GSAM: alpha must be >= 0; found -0\.5\."):
        GSAM(alpha=-0.5)
