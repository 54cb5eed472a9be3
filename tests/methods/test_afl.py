"""AFL: the climbing weights in scalars, absent clients, and the mean of the iterates."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.methods.afl import AFL
from helpers import Server, clients, federation, fitted, normal, tensor


def naive_projection(v: list[float]) -> list[float]:
    u = sorted(v, reverse=True)
    rho = max(j for j in range(1, len(u) + 1) if u[j - 1] + (1 - sum(u[:j])) / j > 0)
    theta = (sum(u[:rho]) - 1) / rho
    return [max(x - theta, 0.0) for x in v]


@pytest.mark.parametrize("importance", [False, True])
def test_algorithm_typed_out(importance: bool) -> None:
    """Aggregate with the old weights, then climb; absent clients climb by nothing."""
    N, G, gamma = 4, 3, 0.4
    W = normal(G)
    server = Server(AFL(gamma=gamma, importance=importance), W, [5, 50, 1, 9])
    lam, theta = [1 / N] * N, W.tolist()
    for t, ids in enumerate([[0, 1, 2, 3], [1, 2], [0, 2, 3], [3], [0, 1]]):
        updates, losses = normal(len(ids), G, seed=10 + t), normal(len(ids), seed=30 + t).abs()
        cohort = server.round(updates, ids, [{"loss": losses}])
        total = sum(lam[m] for m in ids)
        w = [lam[m] / total if total > 0 else 1 / len(ids) for m in ids]
        theta = [theta[i] + sum(w[k] * float(updates[k, i]) for k in range(len(ids))) for i in range(G)]
        climbed = list(lam)
        for k, m in enumerate(ids):
            climbed[m] += gamma * (N / len(ids) if importance else 1) * float(losses[k])
        lam = naive_projection(climbed)
        assert cohort.weights.tolist() == pytest.approx(w, abs=1e-14)
        assert server.theta.tolist() == pytest.approx(theta, abs=1e-13)
        assert server.state[0]["lam"].tolist() == pytest.approx(lam, abs=1e-14)
        assert sum(lam) == pytest.approx(1)


def test_one_round_by_hand() -> None:
    """Losses 1 and 2, gamma 0.2: (0.5 + 0.2, 0.5 + 0.4) lies 0.6 above the simplex, so 0.3 is taken from each."""
    server = Server(AFL(gamma=0.2), torch.zeros(1, dtype=torch.float64), [1, 1])
    server.round(torch.tensor([[2.0], [4.0]], dtype=torch.float64), reports=[{"loss": torch.tensor([1.0, 2.0])}])
    assert float(server.theta) == 3.0  # the old, equal weights
    assert server.state[0]["lam"].tolist() == pytest.approx([0.4, 0.6])


def test_the_worst_client_takes_all() -> None:
    server = Server(AFL(gamma=0.1), torch.zeros(1, dtype=torch.float64), [1, 1, 1])
    for _ in range(100):
        server.round(torch.zeros(3, 1, dtype=torch.float64), reports=[{"loss": torch.tensor([0.5, 0.9, 0.75])}])
    assert server.state[0]["lam"].tolist() == pytest.approx([0, 1, 0], abs=1e-9)


def test_clients_without_weight_share_equally_when_alone() -> None:
    server = Server(AFL(gamma=10.0), torch.zeros(1, dtype=torch.float64), [1, 5, 1])
    server.round(torch.zeros(3, 1, dtype=torch.float64), reports=[{"loss": torch.tensor([9.0, 0.1, 0.1])}])
    assert server.state[0]["lam"].tolist() == [1, 0, 0]
    cohort = server.round(torch.zeros(2, 1, dtype=torch.float64), [1, 2], [{"loss": torch.zeros(2)}])
    assert cohort.weights.tolist() == [0.5, 0.5]


def test_the_loss_is_that_of_the_received_model_on_all_training_data() -> None:
    fed = federation("afl(gamma=0.05)", participation=1.0)
    losses = tensor([fed.evaluate(x, y)["loss"] for x, y in clients()])
    fed.fit(1, progress=False)
    expected = naive_projection((0.2 + 0.05 * losses).tolist())
    assert fed.progress.server[0]["lam"].tolist() == pytest.approx(expected, abs=1e-12)


def test_the_mean_of_the_iterates_is_given_out() -> None:
    """The first model is not in it, and training goes on from the last one."""
    seen = []
    fed = federation("afl(averaged=true)")
    fed.fit(4, progress=False, on_round=lambda _: seen.append(fed.progress.vector))
    published = torch.cat([p.reshape(-1) for p in fed.network().parameters()])
    assert torch.allclose(published, torch.stack(seen).mean(0), rtol=0, atol=1e-13)
    assert torch.equal(fitted("afl", 4).progress.vector, fed.progress.vector)


@pytest.mark.parametrize(("losses", "first"), [([0.2, 0.9, 0.5], 1), ([0.7, 0.1, 0.7], 0), ([3.0, 3.0, 3.0], 0)])
def test_the_worst_client_alone(losses: list[float], first: int) -> None:
    """FFL4MIA: the new model is that of the client with the largest loss, buffers too; of equals the first."""
    W, updates, buffers = normal(4), normal(3, 4, seed=1), normal(3, 2, seed=2)
    server = Server(eq.parse("afl:worst-client"), W, [1, 50, 3], buffers=normal(2, seed=3))
    before = server.buffers
    cohort = server.round(updates, reports=[{"loss": tensor(losses)}], buffer_updates=buffers)
    assert cohort.weights.tolist() == [float(m == first) for m in range(3)]
    assert torch.equal(server.theta, W + updates[first])
    assert torch.equal(server.buffers, before + buffers[first])
    cohort = server.round(updates[:2], [2, 0], [{"loss": tensor([0.1, 0.3])}], buffers[:2])
    assert cohort.weights.tolist() == [0.0, 1.0]


def test_the_worst_client_does_not_depend_on_the_multipliers() -> None:
    one, two = (fitted(f"afl(worst=true, gamma={gamma}, floor=0.3)", 4) for gamma in (0.0, 0.5))
    assert torch.equal(one.progress.vector, two.progress.vector)
    assert all(sorted(r["weights"]) == [0.0, 0.0, 0.0, 1.0] for r in one.records)
