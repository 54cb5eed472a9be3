"""FedMGDA+: by hand, what the box allows, and that only the directions of updates count."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.methods.fedmgda import FedMGDA
from helpers import Server, in_one, normal, tensor


def step(updates: Tensor, sizes: list[float], **given: float | str) -> Tensor:
    server = Server(FedMGDA(**given), torch.zeros(updates.shape[1], dtype=torch.float64), sizes)  # type: ignore[arg-type]
    server.round(updates)
    return server.theta


def test_by_hand() -> None:
    """Two updates at a right angle: halves in the middle, and the weights nearest to them that the box allows."""
    updates = tensor([[3.0, 0.0], [0.0, 0.1]])
    assert step(updates, [1, 3], eps=1).tolist() == pytest.approx([0.5, 0.5])
    assert step(updates, [1, 3], eps=0.1, prior="samples", eta=2.0).tolist() == pytest.approx([0.7, 1.3])
    assert step(updates, [1, 3], eps=0, prior="samples").tolist() == pytest.approx([0.25, 0.75])


@in_one("eps", [0.0, 0.1, 1.0])
def test_the_step_is_no_longer_than_eta_and_blind_to_lengths(eps: float) -> None:
    updates, lengths = normal(4, 6), tensor([1e-6, 1.0, 30.0, 1e9])
    one, other = (step(u, [1.0] * 4, eps=eps, eta=0.3) for u in (updates, updates * lengths[:, None]))
    assert torch.allclose(one, other, rtol=0, atol=1e-12)
    assert float(one.norm()) <= 0.3


def test_without_bounds_no_client_is_worse_off() -> None:
    """The shortest combination d has <d, v_m> >= |d|^2 for every normalised update v_m: to first order, every loss falls."""
    updates = normal(5, 8, seed=3)
    d = step(updates, [1.0] * 5, eps=1)
    assert float((updates / updates.norm(dim=1, keepdim=True) @ d).min()) >= float(d @ d) - 1e-10


def test_clients_without_an_update_are_left_out() -> None:
    updates = normal(3, 4, seed=1)
    with_none = torch.cat([updates, torch.zeros(1, 4, dtype=torch.float64)])
    assert torch.allclose(step(with_none, [1.0] * 4), step(updates, [1.0] * 3), rtol=0, atol=1e-14)
    assert not step(torch.zeros(2, 4, dtype=torch.float64), [1, 1]).any()


def test_buffers_are_averaged_equally() -> None:
    server = Server(FedMGDA(), normal(2), [1, 9], buffers=torch.zeros(1, dtype=torch.float64))
    server.round(normal(2, 2), buffer_updates=tensor([[1.0], [3.0]]))
    assert server.buffers.tolist() == [2.0]


def test_presets_and_range() -> None:
    assert eq.parse("fedmgda").rules == (FedMGDA(eps=0.1, eta=1.0, prior="uniform"),)
    assert eq.parse("fedmgda:flgo").rules == (FedMGDA(prior="samples"),)
    with pytest.raises(ValueError, match="eta must be > 0"):
        FedMGDA(eta=0)
    assert math.isclose(float(step(tensor([[2.0]]), [1], eta=0.25)), 0.25)
