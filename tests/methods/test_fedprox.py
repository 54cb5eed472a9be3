"""FedProx against its definition and against minima known in closed form."""

import pytest
import torch

import equipoise as eq
from equipoise.client import visit_client
from equipoise.methods.fedprox import FedProx
from helpers import Quadratic, normal, visit_of


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
        trained, _, _ = visit_client([FedProx(1.0)], client.oracle(eq.SGD(0.1), steps), 0, 1, one, [{}], [{}])
        assert float(trained) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("mu", [0.0, 0.1, 10.0])
def test_long_training_reaches_the_proximal_point(mu: float) -> None:
    """The minimum of y'Ay/2 - b'y + mu/2 |y - W|^2 is (A + mu I)^-1 (b + mu W)."""
    client, W = quadratic(), normal(4, seed=9)
    trained, _, _ = visit_client([FedProx(mu)], client.oracle(eq.SGD(0.05), 2000), 0, 1, W, [{}], [{}])
    expected = torch.linalg.solve(client.A + mu * torch.eye(4, dtype=torch.float64), client.b + mu * W)
    assert torch.allclose(trained, expected, rtol=0, atol=1e-10)


def test_the_marsfl_preset_is_a_hundredth() -> None:
    assert eq.parse("fedprox:marsfl").rules == (FedProx(mu=0.01 * 0.01),)
    assert eq.parse("fedprox").rules == (FedProx(mu=0.01),)


def test_mu_is_not_negative() -> None:
    with pytest.raises(ValueError, match=r"FedProx: mu must be >= 0; found -0\.1\."):
        FedProx(mu=-0.1)
