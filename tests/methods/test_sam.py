"""SAM in scalars on a quadratic, its schedule, and what the second gradient sees and leaves alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.rule import State
from equipoise.methods.sam import SAM, perturbation, radius
from helpers import (
    Quadratic,
    difference,
    federation,
    fitted,
    in_one,
    network,
    normal,
    one_step_gradient,
    oracle_of,
    samples,
    visit_of,
)


def quadratic(n: int = 4, seed: int = 0) -> Quadratic:
    root = normal(n, n, seed=seed)
    return Quadratic(root @ root.T / n + torch.eye(n, dtype=torch.float64), normal(n, seed=seed + 1))


def gradient(A: list[list[float]], b: list[float], theta: list[float]) -> list[float]:
    return [sum(a * x for a, x in zip(row, theta, strict=True)) - c for row, c in zip(A, b, strict=True)]


def trained(rule: SAM, client: Quadratic, start: Tensor, steps: int = 1, t: int = 0, rounds: int = 1) -> Tensor:
    return visit_client([rule], client.oracle(eq.SGD(0.1), steps), t, rounds, start, [{}], [{}])[0]


@in_one("added", [False, True])
@in_one(("tau", "t"), [(0.0, 0), (0.5, 2), (1.0, 3)])
def test_the_step_typed_out(tau: float, t: int, added: bool) -> None:
    client, rho, rounds = quadratic(), 0.3, 4
    theta = normal(4, seed=5).tolist()
    A, b = client.A.tolist(), client.b.tolist()
    got = trained(SAM(rho, tau, added), client, torch.tensor(theta, dtype=torch.float64), 3, t, rounds)
    for _ in range(3):
        g = gradient(A, b, theta)
        length = math.sqrt(sum(x * x for x in g))
        far = rho * ((t + 1) / rounds) ** tau / (length + 1e-12)
        there = gradient(A, b, [x + far * y for x, y in zip(theta, g, strict=True)])
        used = [x + y if added else y for x, y in zip(g, there, strict=True)]
        theta = [x - 0.1 * y for x, y in zip(theta, used, strict=True)]
    assert got.tolist() == pytest.approx(theta, abs=1e-12)


def test_one_step_by_hand() -> None:
    """F = y^2 / 2 from 1 with rho = 0.5: the gradient 1 is taken at 1.5, so a step of 0.1 leads to 0.85."""
    one = torch.ones(1, dtype=torch.float64)
    client = Quadratic(torch.eye(1, dtype=torch.float64), 0 * one)
    assert float(trained(SAM(0.5), client, one)) == pytest.approx(0.85, abs=1e-12)
    assert float(trained(SAM(0.5, added=True), client, one)) == pytest.approx(0.75, abs=1e-12)


def test_no_gradient_is_an_ordinary_step() -> None:
    client = quadratic()
    minimum = torch.linalg.solve(client.A, client.b)
    exact = Quadratic(client.A, client.A @ minimum)
    after = trained(SAM(0.5), exact, minimum)
    assert torch.allclose(after, minimum, rtol=0, atol=0.06)  # rounding may leave a direction, never a NaN
    zero = torch.zeros(3, dtype=torch.float64)
    assert torch.equal(perturbation(zero, 0.5), zero)
    still = Quadratic(torch.zeros(3, 3, dtype=torch.float64), zero)
    assert torch.equal(trained(SAM(0.5), still, normal(3)), normal(3))


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_the_perturbation_has_length_rho_for_each_client(shape: tuple[int, ...]) -> None:
    g = normal(*shape) * 100
    e = perturbation(g, 0.2)
    assert torch.allclose(e.norm(dim=-1), torch.tensor(0.2, dtype=torch.float64), rtol=1e-10, atol=0)
    assert torch.allclose(torch.nn.functional.cosine_similarity(e, g, dim=-1), e.new_ones(()), rtol=1e-12, atol=0)


def test_the_perturbation_in_float32() -> None:
    tiny = torch.full((4,), 1e-20)
    assert bool(perturbation(tiny, 0.1).isfinite().all())
    assert perturbation(torch.ones(4), 0.1).tolist() == pytest.approx([0.05] * 4)


def test_the_search_distance() -> None:
    """t = 1 ... T: never 0, rho in the last round, and constant for tau = 0."""
    oracle, theta = quadratic().oracle(eq.SGD(0.1), 1), normal(4)
    for tau in (0.0, 0.5, 1.0):
        found = [radius(0.1, tau, visit_of(oracle, theta, t=t, rounds=4)) for t in range(4)]
        assert found == pytest.approx([0.1 * ((t + 1) / 4) ** tau for t in range(4)])
        assert found[-1] == 0.1
        assert all(r > 0 for r in found)
    assert radius(0.0, 0.0, visit_of(oracle, theta)) == 0.0


def test_batch_norm_statistics_move_once() -> None:
    """The same running statistics as FedAvg after one step, from which both start at the same parameters."""
    x, y = samples(12, 1)
    oracle = oracle_of(network("batchnorm"), x, y, eq.SGD(0.1))
    start = federation(kind="batchnorm").model.initial
    plain, sharp = (visit_client(r, oracle, 0, 1, start, [{}], [{}])[0] for r in ([eq.Rule()], [SAM(0.5)]))
    P = oracle.n_params
    assert torch.equal(plain[P:], sharp[P:])
    assert not torch.equal(plain[P:], start[P:])
    assert float((plain[:P] - sharp[:P]).abs().max()) > 1e-4


def test_momentum_and_decay_see_only_the_gradient_used() -> None:
    """By hand: b = g_p + decay * theta, theta - lr * b, with the decay at theta and not at theta + e."""
    client, theta, decay = quadratic(), normal(4, seed=3), 0.3
    g = client.A @ theta - client.b
    there = client.A @ (theta + 0.2 * g / g.norm()) - client.b
    oracle = client.oracle(eq.SGD(0.1, weight_decay=decay), 1)
    after = visit_client([SAM(0.2)], oracle, 0, 1, theta, [{}], [{}])[0]
    assert torch.allclose(after, theta - 0.1 * (there + decay * theta), rtol=0, atol=1e-12)


def test_terms_of_other_rules_are_perturbed_too_and_corrections_are_not() -> None:
    x, y = samples(15, 2)
    oracle, theta = oracle_of(network(), x, y, eq.SGD(1.0)), normal(network_size())
    received = theta + 0.1 * normal(network_size(), seed=4)
    state: State = {}
    (adjust,), (prox,) = eq.parse("logit-adjust").rules, eq.parse("fedprox(mu=0.7)").rules
    plain = one_step_gradient([adjust], oracle, theta, received, [state], [{}])
    there = one_step_gradient([adjust], oracle, theta + 0.4 * plain / plain.norm(), received, [state], [{}])
    both = one_step_gradient([adjust, prox, SAM(0.4)], oracle, theta, received, [state] * 3, [{}] * 3)
    assert torch.allclose(both, there + 0.7 * (theta - received), rtol=0, atol=1e-10)


def network_size() -> int:
    return sum(p.numel() for p in network().parameters())


@pytest.mark.parametrize("solver", [eq.SGD(0.05, 0.9), eq.Adam(0.01)])
def test_engines_agree_with_any_solver(solver: eq.SGD | eq.Adam) -> None:
    a, b = (fitted("sam(rho=0.1, tau=0.5)", 3, solver=solver, engine=e) for e in ("sequential", "stacked"))
    assert difference(a, b) < 1e-10


def test_it_is_flatter_than_fedavg() -> None:
    """What SAM is for: after the same rounds the loss rises less along the gradient."""
    rises = []
    for method in ("fedavg", "sam(rho=0.5)"):
        fed = fitted(method, 30, participation=1.0, solver=eq.SGD(0.2))
        rise = 0.0
        for x, y in (samples(n, k) for k, n in enumerate((7, 13, 9, 4, 18))):
            oracle = oracle_of(network(), x, y, eq.SGD(1.0))
            at = fed.progress.vector
            rise += float(oracle.loss(at + perturbation(oracle.gradient(at), 0.5)) - oracle.loss(at))
        rises.append(rise)
    assert rises[1] < rises[0]


def test_preset_and_ranges() -> None:
    assert eq.parse("sam:ffl4mia").rules == (SAM(added=True),)
    for wrong in ({"rho": -0.1}, {"tau": -1.0}):
        with pytest.raises(ValueError, match=r"SAM: (rho|tau) must be >= 0; found"):
            SAM(**wrong)
