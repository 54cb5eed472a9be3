"""AAggFF over many rounds: what docs/decisions.md states of its published code."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core.rule import Setup
from equipoise.methods.aaggff import MANY, AAggFF
from helpers import Server, generator, in_one, tensor

LOSSES = tensor([0.5, 0.8, 1.0, 1.2, 3.0])


@in_one(
    ("cdf", "expected"),
    [("frechet", [0.00, 0.07, 0.15, 0.22, 0.56]), ("normal-released", [0.34, 0.27, 0.22, 0.17, 0.00])],
)
def test_constant_losses_over_sixty_rounds(cdf: str, expected: list[float]) -> None:
    server = Server(AAggFF(cdf=cdf, released=cdf == "normal-released"), tensor([0.0]), torch.ones(5))
    for _ in range(60):
        cohort = server.round(torch.zeros(5, 1).double(), reports=[{"loss": LOSSES}])
    assert torch.allclose(cohort.weights, tensor(expected), atol=0.005)


def attendance(released: bool) -> tuple[Tensor, Tensor]:
    """How often each of 20 clients of equal losses took part in 300 rounds, and its weight at the end."""
    server, drawn = Server(AAggFF(form="device", released=released), tensor([0.0]), torch.ones(20)), generator(0)
    visits = torch.zeros(20).double()
    for _ in range(300):
        ids = torch.randperm(20, generator=drawn)[:4]
        visits[ids] += 1
        server.round(torch.zeros(4, 1).double(), ids.tolist(), [{"loss": torch.ones(4).double()}])
    return visits, server.state[0]["p"]


def test_the_released_estimate_counts_attendance_against_a_client() -> None:
    assert torch.corrcoef(torch.stack(attendance(released=True)))[0, 1] < -0.99
    weights = attendance(released=False)[1]
    assert torch.allclose(weights, torch.full_like(weights, 1 / 20))


def test_a_single_client_counts_in_full() -> None:
    for form in ("silo", "device"):
        server = Server(AAggFF(form=form), tensor([0.0]), [5])
        assert server.round(torch.zeros(1, 1).double(), reports=[{"loss": tensor([2.0])}]).weights.tolist() == [1.0]


def test_many_clients_are_pointed_to_the_other_form() -> None:
    setup = Setup(torch.zeros(1), (1,), torch.ones(MANY + 1))
    assert "Use form=device" in AAggFF().doubt(setup)
    assert not AAggFF(form="device").doubt(setup)
