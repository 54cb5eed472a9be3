"""The solvers against PyTorch's own, and the distance they travel."""

from __future__ import annotations

import pytest
import torch

from equipoise.core.solver import SGD, Adam
from helpers import Quadratic, in_one, normal

G = 5


def quadratic() -> Quadratic:
    root = normal(G, G)
    return Quadratic(root @ root.T / G, normal(G, seed=1))


def ours(solver: SGD | Adam, start: torch.Tensor, steps: int) -> torch.Tensor:
    client = quadratic()
    theta = start.clone()
    slots = solver.init([theta])
    for _ in range(steps):
        gradient = theta @ client.A - client.b  # [..., P]
        solver.step([theta], [gradient], slots)
    return theta


def theirs(
    make: type[torch.optim.Optimizer], start: torch.Tensor, steps: int, clip: float | None = None, **settings: object
) -> torch.Tensor:
    client = quadratic()
    theta = start.clone().requires_grad_()
    optimiser = make([theta], **settings)
    for _ in range(steps):
        theta.grad = (client.A @ theta - client.b).detach()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_([theta], clip)
        optimiser.step()
    return theta.detach()


@in_one("momentum", [0.0, 0.9])
@in_one("decay", [0.0, 1e-2])
@in_one("clip", [None, 0.5, 100.0])
def test_sgd_is_pytorchs(momentum: float, decay: float, clip: float | None) -> None:
    start = normal(G, seed=2)
    expected = theirs(torch.optim.SGD, start, 7, clip, lr=0.1, momentum=momentum, weight_decay=decay)
    assert torch.allclose(ours(SGD(0.1, momentum, decay, clip), start, 7), expected, rtol=0, atol=1e-14)


@in_one("decay", [0.0, 1e-2])
@in_one("decoupled", [False, True])
def test_adam_is_pytorchs(decay: float, decoupled: bool) -> None:
    start = normal(G, seed=2)
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    expected = theirs(make, start, 7, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=decay)
    assert torch.allclose(ours(Adam(0.05, (0.8, 0.95), 1e-6, decay, decoupled), start, 7), expected, rtol=0, atol=1e-13)


@in_one(
    "solver",
    [SGD(0.1), SGD(0.1, 0.9, 1e-2, 0.5), Adam(0.05, weight_decay=0.1), Adam(decoupled=True, weight_decay=0.1)],
)
def test_a_stack_steps_as_its_rows(solver: SGD | Adam) -> None:
    start = normal(3, G, seed=3)
    together = ours(solver, start, 6)
    for m in range(3):
        assert torch.allclose(together[m], ours(solver, start[m], 6), rtol=0, atol=1e-14)


@in_one("momentum", [0.0, 0.3, 0.9])
@in_one("steps", [1, 2, 17])
def test_travel_is_what_a_unit_gradient_moves(momentum: float, steps: int) -> None:
    solver = SGD(0.1, momentum)
    theta = torch.zeros(1, dtype=torch.float64)
    slots = solver.init([theta])
    for _ in range(steps):
        solver.step([theta], [torch.ones(1, dtype=torch.float64)], slots)
    got = solver.travel(torch.tensor([float(steps)], dtype=torch.float64))
    assert got.dtype == torch.float64
    assert -float(theta) == pytest.approx(float(got), rel=1e-12)


def test_adam_has_no_travel() -> None:
    with pytest.raises(TypeError, match="Use SGD"):
        Adam().travel(torch.ones(1))


@in_one(
    ("make", "message"),
    [
        (lambda: SGD(0), r"SGD: lr must be > 0.*; found 0\."),
        (lambda: SGD(0.1, 1.0), r"SGD: momentum must be in \[0, 1\); found 1\."),
        (lambda: SGD(0.1, weight_decay=-1), r"SGD: weight_decay must be >= 0.*; found -1\."),
        (lambda: Adam(-1), r"Adam: lr must be > 0.*; found -1\."),
        (lambda: Adam(betas=(0.9, 1.0)), r"Adam: beta2 must be in \[0, 1\); found 1\."),
    ],
)
def test_settings_out_of_range(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
