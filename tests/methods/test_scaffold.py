"""SCAFFOLD against Algorithm 1 typed out, on quadratic clients whose minima are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.rule import State
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.scaffold import Scaffold
from helpers import Quadratic, Server, in_one, normal

N, G = 3, 4


def quadratics(n: int = N) -> list[Quadratic]:
    made = []
    for m in range(n):
        root = normal(G, G, seed=10 + m)
        made.append(Quadratic(root @ root.T / G + 0.5 * torch.eye(G, dtype=torch.float64), normal(G, seed=20 + m)))
    return made


def rounds_of(
    rule: Scaffold | FedAvg, solver: eq.SGD, steps: list[int], cohorts: list[list[int]], W: Tensor
) -> tuple[Server, list[State]]:
    clients = quadratics()
    server = Server(rule, W, [10, 30, 5])
    states = [rule.client_state(server.setup) for _ in range(N)]
    for ids in cohorts:
        told, trained = [], []
        for m in ids:
            oracle = clients[m].oracle(solver, steps[m])
            y, (report,), (states[m],), _ = visit_client(
                [rule], oracle, server.t, 9, server.theta, [states[m]], [rule.message(server.state[0], m)]
            )
            trained.append(y)
            told.append(report)
        reports = {k: torch.stack([r[k] for r in told]) for k in told[0]}
        server.round(torch.stack(trained) - server.theta, ids, [reports])
    return server, states


def naive(
    option: int, eta: float, absent: bool, lr: float, steps: list[int], cohorts: list[list[int]], W: list[float]
) -> tuple[list[float], list[float], list[list[float]]]:
    """Algorithm 1 in scalars."""
    A = [q.A.tolist() for q in quadratics()]
    b = [q.b.tolist() for q in quadratics()]

    def gradient(m: int, y: list[float]) -> list[float]:
        return [sum(A[m][i][j] * y[j] for j in range(G)) - b[m][i] for i in range(G)]

    c, own = [0.0] * G, [[0.0] * G for _ in range(N)]
    for ids in cohorts:
        dy, dc = [0.0] * G, [0.0] * G
        for m in ids:
            y = list(W)
            for _ in range(steps[m]):
                g = gradient(m, y)
                y = [y[i] - lr * (g[i] - own[m][i] + c[i]) for i in range(G)]
            if option == 1:
                new = gradient(m, W)
            else:
                new = [own[m][i] - c[i] + (W[i] - y[i]) / (steps[m] * lr) for i in range(G)]
            dy = [dy[i] + (y[i] - W[i]) / len(ids) for i in range(G)]
            dc = [dc[i] + (new[i] - own[m][i]) / (N if absent else len(ids)) for i in range(G)]
            own[m] = new
        W = [W[i] + eta * dy[i] for i in range(G)]
        c = [c[i] + dc[i] for i in range(G)]
    return W, c, own


@in_one("option", [1, 2])
@in_one(("eta", "absent"), [(1.0, True), (0.5, True), (0.25, False)])
def test_algorithm_1_typed_out(option: int, eta: float, absent: bool) -> None:
    """Clients that take 2, 5 and 3 steps, of which two take part."""
    steps, cohorts, W = [2, 5, 3], [[0, 1, 2], [0, 2], [1, 2], [0, 1]], normal(G, seed=5)
    server, states = rounds_of(Scaffold(eta=eta, option=option, absent=absent), eq.SGD(0.1), steps, cohorts, W)
    theta, c, own = naive(option, eta, absent, 0.1, steps, cohorts, W.tolist())
    assert server.theta.tolist() == pytest.approx(theta, abs=1e-13)
    assert server.state[0]["c"].tolist() == pytest.approx(c, abs=1e-13)
    for m in range(N):
        assert states[m]["c_i"].tolist() == pytest.approx(own[m], abs=1e-13)


def test_the_first_round_is_uniform_fedavg() -> None:
    W = normal(G, seed=5)
    ours, _ = rounds_of(Scaffold(), eq.SGD(0.1), [2, 5, 3], [[0, 1, 2]], W)
    plain, _ = rounds_of(FedAvg(weights="uniform"), eq.SGD(0.1), [2, 5, 3], [[0, 1, 2]], W)
    assert torch.allclose(ours.theta, plain.theta, rtol=0, atol=1e-15)


def test_drift_is_gone() -> None:
    """With ten local steps FedAvg stops away from the minimum of the mean loss; SCAFFOLD reaches it."""
    clients, W = quadratics(), torch.zeros(G, dtype=torch.float64)
    best = torch.linalg.solve(sum(q.A for q in clients), sum(q.b for q in clients))
    cohorts = [[0, 1, 2]] * 300
    plain, _ = rounds_of(FedAvg(weights="uniform"), eq.SGD(0.05), [10] * N, cohorts, W)
    ours, states = rounds_of(Scaffold(), eq.SGD(0.05), [10] * N, cohorts, W)
    assert float((plain.theta - best).norm()) > 1e-2
    assert float((ours.theta - best).norm()) < 1e-8
    for client, state in zip(clients, states, strict=True):  # each control variate is the client's gradient there
        assert torch.allclose(state["c_i"], client.A @ best - client.b, rtol=0, atol=1e-7)


@in_one("momentum", [0.0, 0.5, 0.9])
@in_one("steps", [1, 4, 25])
def test_the_control_variate_of_a_constant_gradient_is_that_gradient(momentum: float, steps: int) -> None:
    """With momentum the parameters travel further than K eta; divided by that, c_i would be up to ten times too long."""
    g = normal(G, seed=3)
    flat = Quadratic(torch.zeros(G, G, dtype=torch.float64), -g)
    c, c_i, rule = normal(G, seed=4), normal(G, seed=6), Scaffold()
    oracle = flat.oracle(eq.SGD(0.1, momentum), steps)
    _, (report,), (state,), _ = visit_client([rule], oracle, 0, 1, normal(G, seed=7), [{"c_i": c_i}], [{"c": c}])
    assert torch.allclose(state["c_i"], g, rtol=0, atol=1e-12)
    assert torch.allclose(report["dc"], g - c_i, rtol=0, atol=1e-12)


def test_absent_clients_keep_their_control_variate() -> None:
    _, states = rounds_of(Scaffold(), eq.SGD(0.1), [2, 2, 2], [[0, 2]], normal(G))
    assert states[0]["c_i"].any()
    assert not states[1]["c_i"].any()


def test_adam_has_no_travel() -> None:
    with pytest.raises(TypeError, match="Use SGD"):
        rounds_of(Scaffold(), eq.Adam(), [1] * N, [[0]], normal(G))


def test_the_marsfl_preset() -> None:
    assert eq.parse("scaffold:marsfl").rules == (Scaffold(eta=0.25, absent=False),)
    assert eq.parse("scaffold").rules == (Scaffold(eta=1.0, option=2, absent=True),)
