"""FedMDFG: common descent, fair descent, and what is left out or not scaled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.methods.fedmdfg import FedMDFG, pull
from helpers import Server, in_one, normal, tensor


def step(updates: Tensor, losses: list[float], theta: float = 11.25) -> Tensor:
    server = Server(FedMDFG(theta=theta), torch.zeros(updates.shape[1], dtype=torch.float64), [1.0] * len(updates))
    server.round(updates, reports=[{"loss": tensor(losses)}])
    return server.theta


def test_by_hand() -> None:
    """At a right angle, the middle, as long as the mean of the scaled updates; the larger loss then gets more of it."""
    updates = tensor([[3.0, 0.0], [0.0, 1.0]])
    assert step(updates, [1.0, 1.0]).tolist() == pytest.approx([1.0, 1.0])
    fair = pull(tensor([3.0, 1.0]))  # (0.8, 0.4) of (3, 1) / |(3, 1)|, less (1, 1) / sqrt(2)
    assert float(fair[0]) > 0 > float(fair[1])
    assert float(fair @ tensor([3.0, 1.0])) == pytest.approx(0, abs=1e-12)
    x, y = step(updates, [3.0, 1.0])
    assert x > y > 0


@in_one("theta", [0.0, 90.0])
@in_one("losses", [[1.0] * 4, [4.0, 3.0, 2.0, 1.0], [0.5, 0.5, 0.5, 5.0], [0.0] * 4])
def test_no_update_opposes_the_step(theta: float, losses: list[float]) -> None:
    updates = normal(4, 9, seed=2)
    d = step(updates, losses, theta)
    scaled = updates / updates.norm(dim=1, keepdim=True) * updates.norm(dim=1).mean()
    assert float((updates @ d).min()) > -1e-9
    assert float(d.norm()) == pytest.approx(float(scaled.mean(0).norm()))
    if theta == 0 and len(set(losses)) > 1:
        assert float(pull(tensor(losses)) @ scaled @ d) > -1e-9  # to first order, the losses become more equal


def test_updates_without_common_descent_are_not_scaled_up() -> None:
    """In float32 their combination is rounding, which a factor would make a step."""
    updates = torch.cat([u := normal(2, 50).float(), -u.sum(0, keepdim=True)])
    assert float(step(updates.double(), [1.0] * 3).norm()) < 1e-5
    assert float(step(normal(4, 9), [0.0, 0.0, 0.0, 5.0], 0.0).norm()) < 1e-9  # others' losses must rise for equal ones
    assert not step(torch.zeros(3, 4, dtype=torch.float64), [1.0, 2.0, 3.0]).any()


def test_absent_clients_count_for_one_round() -> None:
    """They are a shift, which a server rate scales like the rest."""
    servers = [Server(f"scaffold(eta={eta})+fedmdfg", normal(4), [1.0] * 4) for eta in (1, 0.5)]
    shifts = []
    for t, ids in enumerate([[0, 1], [2, 3], [2, 3]]):
        updates, report = normal(2, 4, seed=t), {"loss": tensor([1.0, 2.0])}
        a, b = (server.round(updates, ids, [{"dc": 0 * updates}, report]) for server in servers)
        assert torch.allclose(0.5 * a.step(), b.step(), rtol=0, atol=1e-14)
        shifts.append(a.shift is not None)
    assert shifts == [False, True, False]


def test_default() -> None:
    assert eq.parse("fedmdfg").rules == (FedMDFG(theta=11.25),)
