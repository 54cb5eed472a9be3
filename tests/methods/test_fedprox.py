"""FedProx against its definition and against minima known in closed form."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.methods.fedprox import FedProx
from helpers import Quadratic, normal, oracle_of, samples, visit_of


def quadratic(n: int = 4, seed: int = 0) -> Quadratic:
    root = normal(n, n, seed=seed)
    return Quadratic(root @ root.T / n + torch.eye(n, dtype=torch.float64), normal(n, seed=seed + 1))


def test_correction_is_the_gradient_of_the_proximal_term() -> None:
    theta, start, mu = normal(5, seed=1), normal(5, seed=2), 0.7
    oracle = quadratic(5).oracle(eq.SGD(0.1), 1)
    got = FedProx(mu).correction(theta, visit_of(oracle, start))
    for i in range(5):
        up, down = theta.clone(), theta.clone()
        up[i] += 1e-4
        down[i] -= 1e-4
        term = [mu / 2 * sum((float(a) - float(b)) ** 2 for a, b in zip(w, start, strict=True)) for w in (up, down)]
        assert float(got[i]) == pytest.approx((term[0] - term[1]) / 2e-4, rel=1e-8)


def test_two_steps_by_hand() -> None:
    """F = y^2 / 2 from 1 with mu = 1, rate 0.1: 1 - 0.1 * 1 = 0.9, then 0.9 - 0.1 * (0.9 + (0.9 - 1)) = 0.82."""
    one = torch.ones(1, dtype=torch.float64)
    client = Quadratic(torch.eye(1, dtype=torch.float64), 0 * one)
    for steps, expected in ((1, 0.9), (2, 0.82)):
        trained, _, _, _ = visit_client([FedProx(1.0)], client.oracle(eq.SGD(0.1), steps), 0, 1, one, [{}], [{}])
        assert float(trained) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("mu", [0.0, 0.1, 10.0])
def test_long_training_reaches_the_proximal_point(mu: float) -> None:
    """The minimum of y'Ay/2 - b'y + mu/2 |y - W|^2 is (A + mu I)^-1 (b + mu W)."""
    client, W = quadratic(), normal(4, seed=9)
    trained, _, _, _ = visit_client([FedProx(mu)], client.oracle(eq.SGD(0.05), 2000), 0, 1, W, [{}], [{}])
    expected = torch.linalg.solve(client.A + mu * torch.eye(4, dtype=torch.float64), client.b + mu * W)
    assert torch.allclose(trained, expected, rtol=0, atol=1e-10)


def test_the_marsfl_preset_is_a_hundredth() -> None:
    assert eq.parse("fedprox:marsfl").rules == (FedProx(mu=0.01 * 0.01),)
    assert eq.parse("fedprox").rules == (FedProx(mu=0.01),)


def test_distances_that_are_not_squared() -> None:
    """Each tensor is pulled equally hard however near it is, and not at all where it has not moved."""
    oracle = oracle_of(torch.nn.Linear(6, 3).double(), *samples(4, 1), eq.SGD(1.0))
    start, gap = normal(21), normal(21, seed=1)
    gap[18:] = 0
    got = FedProx(0.5, "norm").correction(start + gap, visit_of(oracle, start))
    length = math.sqrt(sum(float(g) ** 2 for g in gap[:18]))
    assert got.tolist() == pytest.approx([0.5 * float(g) / length for g in gap], abs=1e-12)
    near = FedProx(0.5, "norm").correction(start + 1e-3 * gap, visit_of(oracle, start))
    assert torch.allclose(near, got, rtol=0, atol=1e-11)
    stack = FedProx(0.5, "norm").correction(torch.stack([start + gap, start]), visit_of(oracle, start.expand(2, -1)))
    assert torch.allclose(stack, torch.stack([got, 0 * got]), rtol=0, atol=1e-12)
    assert eq.parse("fedprox:fedld").rules == (FedProx(form="norm"),)


def test_mu_is_not_negative() -> None:
    with pytest.raises(ValueError, match=r"FedProx: mu must be >= 0; found -0\.1\."):
        FedProx(mu=-0.1)
