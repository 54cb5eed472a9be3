"""TERM: the limits of the tilt, and a batch that is padding."""

from __future__ import annotations

import torch

from equipoise.core.rule import Out
from equipoise.methods.term import Term, TermSample
from helpers import Server, in_one, tensor

LOSSES = tensor([0.5, 2.0, 1.0])


@in_one(("t", "expected"), [(1000.0, [0, 1, 0]), (-1000.0, [1, 0, 0]), (0.0, [0.1, 0.3, 0.6])])
def test_far_tilts_leave_one_client(t: float, expected: list[float]) -> None:
    server = Server(Term(t=t), torch.zeros(1).double(), [1, 3, 6])
    assert torch.allclose(
        server.round(torch.zeros(3, 1).double(), reports=[{"loss": LOSSES}]).weights, tensor(expected)
    )


def test_the_released_step_is_divided_by_the_clients_twice() -> None:
    """Once the smoothed sum is that of every round."""
    server = Server(Term(form="released"), torch.zeros(1).double(), [1, 1, 1])
    for _ in range(40):
        cohort = server.round(torch.zeros(3, 1).double(), reports=[{"loss": LOSSES}])
    assert torch.allclose(cohort.counted, torch.softmax(LOSSES, 0))
    assert abs(float(cohort.coefficients.sum()) - 1 / 3) < 1e-9


def test_a_batch_of_padding_has_no_loss_and_no_gradient() -> None:
    """One client of the stack has three samples, the other none."""
    z = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = Out(z, z, torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[True] * 3, [False] * 3]), lambda v: (v, v))
    tilt = TermSample(t=2.0).loss(out, visit=None)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(tilt.sum(), z)
    assert tilt[1] == 0
    assert tilt[0] > 0
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()
