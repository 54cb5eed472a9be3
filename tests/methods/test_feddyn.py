"""FedDyn against Algorithm 1 typed out, the official server's other form, and quadratic clients."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.methods.feddyn import FedDyn
from helpers import Quadratic, Server, federation, fitted, normal, visit_of, watched

COHORTS = [[0, 1, 2, 3], [1, 3], [0, 2, 3], [2]]


def test_server_typed_out() -> None:
    alpha, N, G = 0.05, 4, 5
    W = normal(G, seed=1)
    server = Server(FedDyn(alpha=alpha), W, [10, 20, 30, 40])
    theta, h = W.tolist(), [0.0] * G
    for t, ids in enumerate(COHORTS):
        updates = normal(len(ids), G, seed=10 + t)
        cohort = server.round(updates, ids)
        rows = updates.tolist()
        for i in range(G):
            h[i] -= alpha / N * sum(row[i] for row in rows)
            theta[i] = sum(theta[i] + row[i] for row in rows) / len(ids) - h[i] / alpha
        assert server.theta.tolist() == pytest.approx(theta, abs=1e-12)
        assert (alpha * server.state[0]["u"]).tolist() == pytest.approx(h, abs=1e-14)
        assert cohort.weights.tolist() == pytest.approx([1 / len(ids)] * len(ids))


def test_the_official_server() -> None:
    """Released code keeps v_m, the sum of each client's moves: cloud = mean of active models + mean of v over all."""
    G, N = 5, 4
    W, v = normal(G, seed=1), torch.zeros(N, G, dtype=torch.float64)
    server = Server(FedDyn(alpha=0.3), W, [1.0] * N)
    for t, ids in enumerate(COHORTS):
        updates = normal(len(ids), G, seed=10 + t)
        models = server.theta + updates
        v[ids] += updates
        server.round(updates, ids)
        assert torch.allclose(server.theta, models.mean(0) + v.mean(0), rtol=0, atol=1e-12)


def test_correction_is_the_gradient_of_the_regulariser() -> None:
    start, g, alpha = normal(4, seed=1), normal(4, seed=2), 0.3
    theta = normal(4, seed=3).requires_grad_()
    (expected,) = torch.autograd.grad(-(g @ theta) + alpha / 2 * (theta - start).square().sum(), theta)
    visit = visit_of(Quadratic(torch.eye(4, dtype=torch.float64), start).oracle(eq.SGD(0.1), 1), start, {"g": g})
    assert torch.allclose(FedDyn(alpha=alpha).correction(theta.detach(), visit), expected, rtol=0, atol=1e-15)


def quadratic_rounds(rule: FedDyn, rounds: int, steps: int) -> tuple[Server, list[Quadratic], list[torch.Tensor]]:
    G = 3
    clients = []
    for m in range(3):
        root = normal(G, G, seed=10 + m)
        clients.append(Quadratic(root @ root.T / G + 0.5 * torch.eye(G, dtype=torch.float64), normal(G, seed=20 + m)))
    server = Server(rule, torch.zeros(G, dtype=torch.float64), [1.0] * 3)
    duals = [rule.client_state(server.setup) for _ in clients]
    for t in range(rounds):
        trained = []
        for m, client in enumerate(clients):
            y, _, (duals[m],), _ = visit_client(
                [rule], client.oracle(eq.SGD(0.3), steps), t, rounds, server.theta, [duals[m]], [{}]
            )
            trained.append(y)
        server.round(torch.stack(trained) - server.theta)
    return server, clients, [d["g"] for d in duals]


def test_stationary_points_align() -> None:
    """Local minimisation to the end, yet the rounds converge to the minimum of the mean loss; g_m is the gradient there."""
    server, clients, duals = quadratic_rounds(FedDyn(alpha=1.0), 80, 40)
    best = torch.linalg.solve(sum(q.A for q in clients), sum(q.b for q in clients))
    assert float((server.theta - best).norm()) < 1e-8
    for client, g in zip(clients, duals, strict=True):
        assert torch.allclose(g, client.A @ best - client.b, rtol=0, atol=1e-7)


def test_dual_after_one_visit_by_hand() -> None:
    """F = y^2 / 2 - 2y from 0, rate 0.5, alpha 0.1: one step to 1, then g = 0 - 0.1 * (1 - 0) = -0.1."""
    one = torch.ones(1, dtype=torch.float64)
    client, rule = Quadratic(torch.eye(1, dtype=torch.float64), 2 * one), FedDyn(alpha=0.1)
    y, _, (state,), _ = visit_client([rule], client.oracle(eq.SGD(0.5), 1), 0, 1, 0 * one, [{"g": 0 * one}], [{}])
    assert float(y) == 1.0
    assert float(state["g"]) == pytest.approx(-0.1)


def test_mean_of_the_active_clients_can_be_given_out() -> None:
    """The cloud model is further on by -h / alpha, and it is what is broadcast either way."""
    a, b = fitted("feddyn", 3), fitted("feddyn(evaluate=mean_active)", 3)
    assert torch.equal(a.progress.vector, b.progress.vector)
    P = a.model.n_params
    active = b.progress.vector[:P] + b.progress.server[0]["u"]
    assert torch.equal(torch.cat([p.reshape(-1) for p in b.network().parameters()]), active)
    assert torch.equal(torch.cat([p.reshape(-1) for p in a.network().parameters()]), a.progress.vector[:P])
    seen: list = []
    fed = federation("feddyn(evaluate=mean_active)", participation=1.0, engine=watched(seen))
    fed.fit(1, progress=False)
    mean = torch.cat([answer.trained for _, answer in seen]).mean(0)
    assert torch.allclose(torch.cat([p.reshape(-1) for p in fed.network().parameters()]), mean[:P], rtol=0, atol=1e-14)


def test_buffers_are_a_plain_mean() -> None:
    """-h / alpha is not for running variances, which must stay positive."""
    buffers = normal(2, 3, seed=4)
    server = Server(FedDyn(), normal(4), [10, 20], buffers=torch.zeros(3, dtype=torch.float64))
    server.round(normal(2, 4), buffer_updates=buffers)
    assert torch.allclose(server.buffers, buffers.mean(0))


def test_without_the_servers_state() -> None:
    assert eq.parse("feddyn:no-server-state").rules == (FedDyn(server=False),)
    W, updates = normal(4, seed=1), normal(2, 4, seed=2)
    server = Server(FedDyn(server=False), W, [10, 20, 5])
    server.round(updates, [0, 1])
    assert torch.allclose(server.theta, W + updates.mean(0))
    assert not server.state[0]["u"].any()


def test_alpha_is_positive() -> None:
    with pytest.raises(ValueError, match=r"FedDyn: alpha must be > 0; found 0\."):
        FedDyn(alpha=0)
