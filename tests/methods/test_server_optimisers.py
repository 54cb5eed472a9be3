"""FedAvgM, FedAdagrad, FedAdam, FedYogi and FedNova against their equations typed out, and against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import equipoise as eq
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.method import MethodError
from helpers import Server, federation, normal

SIZES = [10.0, 30.0, 60.0]


def rounds(method: str, T: int = 4, G: int = 5) -> tuple[Server, list[torch.Tensor]]:
    """A server after some rounds, and the mean update of each, by samples."""
    server = Server(eq.parse(method), normal(G, seed=1), SIZES)
    deltas = []
    for t in range(T):
        updates = normal(3, G, seed=10 + t)
        deltas.append(sum(p / 100 * row for p, row in zip(SIZES, updates, strict=True)))
        server.round(updates, [0, 1, 2])
    return server, deltas


def test_fedavgm_is_sgd_with_momentum_of_pytorch() -> None:
    server, deltas = rounds("fedavgm(beta=0.7, eta=0.5)")
    theta = normal(5, seed=1).requires_grad_()
    optimiser = torch.optim.SGD([theta], lr=0.5, momentum=0.7)
    for delta in deltas:
        theta.grad = -delta
        optimiser.step()
    assert torch.allclose(server.theta, theta.detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_adaptive_servers_typed_out(kind: str) -> None:
    eta, b1, b2, tau = 0.3, 0.8, 0.9, 0.05
    second = "" if kind == "adagrad" else f", beta2={b2}"
    server, deltas = rounds(f"fed{kind}(eta={eta}, beta1={b1}, tau={tau}{second})")
    for i, start in enumerate(normal(5, seed=1).tolist()):
        theta, m, v = start, 0.0, tau**2
        for delta in (float(d[i]) for d in deltas):
            m = b1 * m + (1 - b1) * delta
            if kind == "adagrad":
                v = v + delta**2
            elif kind == "adam":
                v = b2 * v + (1 - b2) * delta**2
            else:
                v = v - (1 - b2) * delta**2 * math.copysign(1, v - delta**2)
            theta += eta * m / (math.sqrt(v) + tau)
        assert float(server.theta[i]) == pytest.approx(theta, abs=1e-14)


def test_fedadagrad_is_adagrad_of_pytorch() -> None:
    """PyTorch adds tau (its eps) to the root as well; its sum of squares begins at tau^2."""
    server, deltas = rounds("fedadagrad(eta=0.3, tau=0.05)")
    theta = normal(5, seed=1).requires_grad_()
    optimiser = torch.optim.Adagrad([theta], lr=0.3, initial_accumulator_value=0.05**2, eps=0.05)
    for delta in deltas:
        theta.grad = -delta
        optimiser.step()
    assert torch.allclose(server.theta, theta.detach(), rtol=0, atol=1e-14)


def test_yogi_forgets_slowly_where_adam_forgets_fast() -> None:
    """Known answer: after one large update and many of none, Yogi's second moment stays, Adam's decays."""
    adam, yogi = (Server(eq.parse(name), torch.zeros(1, dtype=torch.float64), [1.0]) for name in ("fedadam", "fedyogi"))
    for value in (10.0, *[0.0] * 100):
        for server in (adam, yogi):
            server.round(torch.tensor([[value]], dtype=torch.float64), [0])
    first = 1e-6 * 0.99 + 0.01 * 100
    assert float(adam.state[0]["v"]) == pytest.approx(first * 0.99**100, rel=1e-12)
    assert float(yogi.state[0]["v"]) == pytest.approx(1e-6 + 0.01 * 100, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_typed_out(momentum: float) -> None:
    """With clients of 8, 16 and 40 samples in batches of 8: 1, 2 and 5 steps."""
    sizes, solver = (8, 16, 40), eq.SGD(0.05, momentum)
    same = {"sizes": sizes, "solver": solver, "epochs": 1, "batch_size": 8, "participation": 1.0}
    start = federation("fedavg", **same).progress.vector
    seen: list[torch.Tensor] = []

    def spy(job: Job) -> Iterator[Answer]:
        for answer in sequential(job):
            seen.append(answer.trained.clone() - job.received[list(answer.rows)])
            yield answer

    fed = federation("fednova", **{**same, "engine": spy})
    fed.fit(1, progress=False)
    updates = torch.cat(seen)
    a = []
    for K in (1, 2, 5):
        b = total = 0.0
        for _ in range(K):  # heavy ball along a constant unit gradient
            b = momentum * b + 1
            total += b
        a.append(total)
    p = [n / sum(sizes) for n in sizes]
    tau = sum(w * x for w, x in zip(p, a, strict=True))
    step = tau * sum(w / x * u for w, x, u in zip(p, a, updates, strict=True))
    assert torch.allclose(fed.progress.vector, start + step, rtol=0, atol=1e-12)


def test_fednova_takes_no_adam() -> None:
    with pytest.raises(TypeError, match="steps are proportional to the gradient"):
        federation("fednova", solver=eq.Adam())


def test_the_server_optimises_what_other_rules_combine() -> None:
    """One half of FedHEAL decides the step, and the optimiser of the server makes momentum of it."""
    plain, heavy = (
        Server(eq.parse("fedheal"), normal(5, seed=1), SIZES),
        Server(eq.parse("fedheal+fedavgm(beta=0.5)"), normal(5, seed=1), SIZES),
    )
    v = torch.zeros(5, dtype=torch.float64)
    expected = normal(5, seed=1)
    for t in range(3):
        updates = normal(3, 5, seed=10 + t)
        before = plain.theta.clone()
        plain.round(updates, [0, 1, 2])
        v = 0.5 * v + plain.theta - before
        expected = expected + v
        heavy.round(updates, [0, 1, 2])
    assert torch.allclose(heavy.theta, expected, rtol=0, atol=1e-12)


def test_two_optimisers_of_the_server_are_refused() -> None:
    with pytest.raises(MethodError, match="'fedadam' and 'fedavgm' each set the step of the server"):
        eq.parse("fedadam+fedavgm")
