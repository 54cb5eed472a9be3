"""FedLF: common descent in every tensor, and what is left out of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from equipoise.methods.fedlf import FedLF
from equipoise.methods.fedmdfg import FedMDFG
from helpers import Server, in_one, normal, tensor


def step(updates: Tensor, losses: list[float], layout: list[int] | None = None) -> Tensor:
    server = Server(FedLF(), torch.zeros(updates.shape[1], dtype=torch.float64), [1.0] * len(updates), layout)
    server.round(updates, reports=[{"loss": tensor(losses)}])
    return server.theta


def test_by_hand() -> None:
    """Equal losses: in every tensor the middle of two updates at a right angle, at the length of the mean of both."""
    updates = tensor([[3.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    d = tensor([1.0, 1.0, 1.0])  # of tensors scaled to lengths 2 and 1
    expected = d / d.norm() * updates.mean(0).norm()
    assert torch.allclose(step(updates, [1.0, 1.0], [2, 1]), expected, rtol=0, atol=1e-9)


@in_one("losses", [[1.0] * 3, [4.0, 3.0, 1.0], [0.0] * 3])
def test_no_update_opposes_the_step_in_any_tensor(losses: list[float]) -> None:
    updates = normal(3, 17, seed=2) * tensor([1e-3, 1.0, 50.0])[:, None]
    d = step(updates, losses, [9, 8])
    for u, part in zip(updates.split([9, 8], 1), d.split([9, 8]), strict=True):
        assert float((u / u.norm(dim=1, keepdim=True) @ part).min()) > -1e-9
    assert float(d.norm()) == pytest.approx(float(updates.mean(0).norm()))


def test_a_tensor_without_common_descent_stands_still() -> None:
    updates = torch.cat([normal(2, 6), tensor([[1.0], [-2.0]])], 1)
    d = step(updates, [1.0, 2.0], [6, 1])
    assert float(d[6].abs()) < 1e-9 < float(d[:6].norm())


def test_a_client_without_an_update_of_a_tensor_is_left_out_of_it() -> None:
    updates = normal(3, 6)
    updates[1, :3] = 0
    assert bool(step(updates, [1.0] * 3, [3, 3])[:3].any())
    assert not step(torch.zeros(2, 3, dtype=torch.float64), [1.0, 2.0]).any()


def test_in_a_single_tensor_it_is_fedmdfg() -> None:
    """Up to the length of the step, if losses are equal."""
    updates = normal(4, 9)
    server = Server(FedMDFG(), torch.zeros(9, dtype=torch.float64), [1.0] * 4)
    server.round(updates, reports=[{"loss": tensor([1.0] * 4)}])
    d = step(updates, [1.0] * 4)
    assert torch.allclose(d / d.norm(), server.theta / server.theta.norm(), rtol=0, atol=1e-9)


def test_a_single_client_takes_its_own_update() -> None:
    assert torch.allclose(step(u := normal(1, 5), [2.0], [3, 2]), u[0], rtol=0, atol=1e-12)


def test_absent_clients_are_a_shift_in_every_tensor() -> None:
    servers = [Server(f"scaffold(eta={eta})+fedlf", normal(5), [1.0] * 4, [3, 2]) for eta in (1, 0.5)]
    shifts = []
    for t, ids in enumerate([[0, 1], [2, 3], [2, 3], [2, 3], [2, 3]]):
        updates, report = normal(2, 5, seed=t), {"loss": tensor([1.0, 2.0])}
        a, b = (server.round(updates, ids, [{"dc": 0 * updates}, report]) for server in servers)
        assert torch.allclose(0.5 * a.step(), b.step(), rtol=0, atol=1e-14)
        shifts.append(a.shift is not None)
    assert shifts == [False, False, True, False, False]
