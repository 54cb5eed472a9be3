"""GIFAIR-FL: what a client does with its multiplier, and groups of clients."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.methods.gifair import GIFAIR, ranks
from helpers import Server, clients, federation, network, one_step_gradient, oracle_of, tensor


def test_a_multiplier_scales_the_gradient() -> None:
    x, y = clients()[0]
    oracle = oracle_of(network(), x, y, eq.SGD(1.0))
    theta = oracle.evaluator.model.initial
    plain = one_step_gradient((), oracle, theta, theta, [], [])
    scaled = one_step_gradient((GIFAIR(form="local"),), oracle, theta, theta, [{}], [{"multiplier": tensor(1.5)}])
    assert torch.allclose(scaled, 1.5 * plain, rtol=0, atol=1e-12)


def test_a_client_whose_loss_is_not_known_trains_as_usual() -> None:
    server = Server("gifair:released", tensor([0.0]), [10, 20, 30, 40])
    server.round(torch.zeros(2, 1).double(), [1, 3], [{"loss": tensor([2.0, 1.0])}])
    multiplier = server.state[0]["multiplier"]
    assert multiplier[[0, 2]].tolist() == [1.0, 1.0]
    assert multiplier[1] > 1 > multiplier[3]


def test_groups_of_clients_are_compared_not_their_members() -> None:
    loss, group = tensor([1.0, 5.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 1])
    assert ranks(loss, group).tolist() == [1, 1, -1, -1]
    server = Server("gifair(groups=[0, 0, 0, 0])", tensor([0.0]), [1, 2, 3, 4])
    assert torch.allclose(
        server.round(torch.zeros(4, 1).double(), reports=[{"loss": loss}]).weights, tensor([1, 2, 3, 4]) / 10
    )
    with pytest.raises(ValueError, match="groups has 2 numbers, and there are 4 clients"):
        Server("gifair(groups=[0, 1])", tensor([0.0]), [1, 2, 3, 4])


def test_the_local_form_needs_steps_in_proportion_to_the_gradient() -> None:
    federation("gifair", solver=eq.Adam(0.01))
    with pytest.raises(TypeError):
        federation("gifair:released", solver=eq.Adam(0.01))
