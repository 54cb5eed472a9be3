"""PropFair: what it refuses, and the branch that is not taken."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.core.rule import Out
from equipoise.methods.propfair import PropFair


def test_a_baseline_below_eps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^propfair: M=0\.1 must be above eps=0\.2, or every batch"):
        eq.parse("propfair(M=0.1)")


def test_a_loss_beyond_the_baseline_has_a_gradient() -> None:
    """The logarithm there would be undefined, and so would its gradient, though it is not used."""
    z = torch.tensor([[[9.0, 0.0]]]).requires_grad_()
    out = Out(z, z, torch.tensor([[1]]), None, lambda v: (v, v))
    term = PropFair().loss(out, visit=None)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad((term + out.cross_entropy).sum(), z)
    plain = torch.autograd.grad(Out(z, z, out.y, None, out.ask).cross_entropy.sum(), z)[0]
    assert torch.allclose(gradient, plain / 2)
