"""FedPW: by hand, what is dropped and rescaled, and sums that cancel."""

from __future__ import annotations

import pytest
import torch

from equipoise.methods.fedpw import FedPW, dropped
from helpers import Server, normal, tensor


def test_dropping_by_hand() -> None:
    """Each client loses its smaller entry; of the sum (1, 2), the entry on which both agree, 2, gets the lost share more."""
    u = tensor([[2.0, 4.0, 1.0], [0.5, 4.0, 0.1]])
    step, factor = dropped(u, tensor([0.5, 0.5]), tensor([0.4, 0.7]), 0.34)
    assert step.tolist() == pytest.approx([1.0, 4.0 * factor, 0.0])
    assert factor == pytest.approx(1 + (1.0 + 0.1) / 2 / 4)  # of both, every tenth dropped entry is the smallest
    assert torch.equal(u, tensor([[2.0, 4.0, 1.0], [0.5, 4.0, 0.1]]))


def test_nothing_to_drop_rescales_nothing() -> None:
    u, w = normal(3, 7), tensor([0.2, 0.3, 0.5])
    for share, rate in ((0.1, 0.5), (0.5, 0.1)):  # of 7 entries, 0.7 are none
        step, factor = dropped(u, w, tensor([share] * 3), rate)
        assert factor == 1
    assert torch.allclose(dropped(u, w, tensor([0.0] * 3), 0.5)[0], w @ u, rtol=0, atol=1e-15)
    assert not step[u.abs().argsort(1)[:, :3].flatten().bincount(minlength=7) == 3].any()


def test_better_off_clients_lose_more() -> None:
    assert FedPW(rate=0.3)._share(tensor([1.0, 2.0, 4.0])).tolist() == pytest.approx([3.6 / 7, 1.8 / 7, 0.9 / 7])
    assert FedPW(rate=0.3)._share(tensor([0.0, 2.0])).tolist() == pytest.approx([0.6, 0.0])
    assert FedPW(rate=0.3)._share(tensor([0.0, 0.0])).tolist() == pytest.approx([0.3, 0.3])


def test_weights_that_cannot_be_computed_are_equal() -> None:
    server = Server(FedPW(), normal(4), [1.0] * 2)
    for _ in range(2):
        cohort = server.round(torch.outer(tensor([1.0, -1.0]), normal(4)), reports=[{"loss": tensor([0.0, 0.0])}])
        assert cohort.coefficients is not None
        assert cohort.coefficients.tolist() == pytest.approx([0.5, 0.5])


def test_a_client_against_the_sum_has_a_negative_weight_and_no_buffers() -> None:
    server = Server(FedPW(), normal(2), [1.0] * 3, buffers=torch.zeros(1, dtype=torch.float64))
    u = tensor([[1.0, 0.0], [1.0, 0.1], [-0.9, 0.0]])
    cohort = server.round(u, reports=[{"loss": tensor([1.0] * 3)}], buffer_updates=tensor([[1.0], [1.0], [9.0]]))
    assert cohort.coefficients is not None
    assert float(cohort.coefficients[2]) < 0 == float(cohort.weights[2])
    assert server.buffers.tolist() == pytest.approx([1.0])


def test_a_single_client_takes_its_largest_entries() -> None:
    server = Server(FedPW(rate=0.5), torch.zeros(4, dtype=torch.float64), [3.0])
    for _ in range(2):
        step = server.round(tensor([[4.0, 1.0, 2.0, 3.0]]), reports=[{"loss": tensor([1.0])}]).step()
    assert step.tolist() == [4.0, 0.0, 0.0, 3.0]
