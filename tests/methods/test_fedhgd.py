"""FedDM's hierarchical de-conflicting on vectors, where the product works on inner products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.methods.fedhgd import EPS, deconflict
from helpers import Server, federation, fitted, in_one, normal


def projected(a: Tensor, b: Tensor, inner: Tensor) -> Tensor:
    return a - inner / (b @ b + EPS) * b if inner < 0 else a


def naive(updates: Tensor, history: Tensor) -> Tensor:
    """The sum over clients of one tensor's updates, as whole vectors."""
    left = list(updates)
    while len(left) > 2:
        left.sort(key=lambda g: float(g @ history / history.norm()), reverse=True)
        merged = []
        while len(left) > 1:
            best, worst = left.pop(0), left.pop()
            inner = best @ worst
            merged.append(projected(best, worst, inner) + projected(worst, best, inner))
        left = merged + left
    if len(left) == 1:
        return left[0]
    inner = left[0] @ left[1]
    first = projected(left[0], left[1], inner)
    return first + projected(left[1], first, inner)


@in_one("M", [1, 2, 3, 4, 5, 8])
def test_four_rounds_typed_out(M: int) -> None:
    layout, gamma = (5, 1, 9), 0.9
    server = Server(
        f"fedhgd(gamma={gamma})", torch.zeros(15, dtype=torch.float64), [float(k + 1) for k in range(M)], layout
    )
    history: Tensor | None = None
    for t in range(4):
        updates, before = normal(M, 15, seed=t), server.theta
        server.round(updates)
        if history is None:
            step = history = updates.mean(0)
        else:
            pairs = zip(updates.split(layout, 1), history.split(layout), strict=True)
            step = torch.cat([naive(u, h) / M for u, h in pairs])
            history = gamma * history + (1 - gamma) * step
        assert torch.allclose(server.theta - before, step, rtol=0, atol=1e-8), t  # opposite numbers leave rounding
        assert torch.allclose(server.state[0]["h"], history, rtol=0, atol=1e-8)


def test_a_tensor_without_a_history_takes_the_plain_mean() -> None:
    """Released code scores it with 0 / 0, and pairs at random."""
    layout = (3, 4)
    server = Server("fedhgd", torch.zeros(7, dtype=torch.float64), [1.0, 9.0, 4.0], layout)
    still = torch.cat([normal(3, 3), torch.zeros(3, 4, dtype=torch.float64)], 1)
    server.round(still)
    before, updates = server.theta, normal(3, 7, seed=4)
    server.round(updates)
    assert torch.allclose((server.theta - before)[3:], updates[:, 3:].mean(0), rtol=0, atol=1e-15)
    assert not torch.allclose((server.theta - before)[:3], updates[:, :3].mean(0), rtol=0, atol=1e-3)
    assert torch.allclose(server.state[0]["h"][3:], updates[:, 3:].mean(0), rtol=0, atol=1e-15)


def test_a_small_cohort_makes_a_whole_step() -> None:
    """Divided by the clients of the round, not by all."""
    server = Server("fedhgd", torch.zeros(4, dtype=torch.float64), [1.0] * 10)
    updates = normal(2, 4).abs()
    for _ in range(2):
        server.round(updates, [3, 7])
    assert torch.allclose(server.theta, 2 * updates.mean(0), rtol=0, atol=1e-12)


def test_without_conflict_it_is_the_mean() -> None:
    updates = normal(5, 6).abs()
    assert torch.allclose(deconflict(updates @ updates.T, updates.sum(1)), torch.ones(5, dtype=torch.float64))


def test_buffers_count_equally() -> None:
    fed = fitted("fedhgd", 2, kind="batchnorm", participation=1.0)
    assert fed.records[0]["weights"] == pytest.approx([0.2] * 5)


def test_it_is_a_form_of_fedgh() -> None:
    assert eq.parse("fedhgd") == eq.parse("fedgh:released")
    a, b = (fitted(name, 3) for name in ("fedhgd", "fedgh(form=hierarchical)"))
    assert torch.equal(a.progress.vector, b.progress.vector)
    with pytest.raises(ValueError, match=r"fedhgd: gamma must be in \[0, 1\]; found 2\."):
        federation("fedhgd(gamma=2.0)")
