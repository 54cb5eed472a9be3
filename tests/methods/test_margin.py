"""FedLD's margin control against sums over samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Out
from equipoise.methods.margin import Margin
from helpers import federation, fitted, normal, oracle_of, samples, visit_of

ORACLE = oracle_of(torch.nn.Linear(6, 3).double(), *samples(4, 1), eq.SGD(1.0))
VISIT = visit_of(ORACLE, torch.zeros(21, dtype=torch.float64))


def batch(logits: Tensor, ok: Tensor | None = None) -> Out:
    return Out(logits, logits, torch.zeros(logits.shape[:-1], dtype=torch.int64), ok, lambda vector: logits)


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(x) for x in row]
    return [x / sum(powers) for x in powers]


def test_equation_3_typed_out() -> None:
    z = normal(5, 3, seed=1)
    expected = 0.1 * sum(math.log(1 + sum(x * x for x in row)) for row in z.tolist()) / 5
    assert float(Margin(lam=0.1).loss(batch(z), VISIT)) == pytest.approx(expected, abs=1e-14)
    squares = sum(p * p for row in z.tolist() for p in softmax(row))
    released = Margin(lam=0.1, form="released").loss(batch(z), VISIT)
    assert float(released) == pytest.approx(0.1 * math.log(1 + squares), abs=1e-14)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_padding_of_a_stack_does_not_count(form: str) -> None:
    """Two clients, the second with three samples of five, get what each would get alone."""
    z = normal(2, 5, 3, seed=2)
    ok = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    rule = Margin(lam=0.7, form=form)
    together = rule.loss(batch(z, ok), VISIT)
    alone = [rule.loss(batch(z[0]), VISIT), rule.loss(batch(z[1, :3]), VISIT)]
    assert together.shape == (2,)
    assert torch.allclose(together, torch.stack(alone), rtol=0, atol=1e-14)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100))
def test_the_pull_is_bounded_and_falls(seed: int, scale: float) -> None:
    """Per sample the gradient is 2 lam |z| / (1 + |z|^2) long: at most lam, at length one."""
    z = (scale * normal(1, 4, seed=seed)).requires_grad_()
    (g,) = torch.autograd.grad(Margin(lam=0.3).loss(batch(z), VISIT), z)
    length = float(z.detach().norm())
    assert float(g.norm()) == pytest.approx(0.6 * length / (1 + length**2), rel=1e-9)
    assert float(g.norm()) <= 0.3 + 1e-12


def test_the_released_term_knows_the_size_of_the_batch() -> None:
    """Between lam log(1 + B / C) and lam log(1 + B): a short batch is penalised less."""
    B, C = 8, 4
    even, sure = torch.zeros(B, C, dtype=torch.float64), 1e3 * torch.eye(C, dtype=torch.float64).repeat(2, 1)
    rule = Margin(lam=1.0, form="released")
    assert float(rule.loss(batch(even), VISIT)) == pytest.approx(math.log(1 + B / C))
    assert float(rule.loss(batch(sure), VISIT)) == pytest.approx(math.log(1 + B))
    assert float(rule.loss(batch(sure[:2]), VISIT)) == pytest.approx(math.log(3))


def test_logits_end_up_smaller() -> None:
    x, _ = samples(30, 1)
    lengths = [float(fitted(f"margin(lam={lam})", 6).logits(x).norm()) for lam in (0, 0.3, 3)]
    assert lengths[0] > lengths[1] > lengths[2]


def test_presets_and_bad_input() -> None:
    assert eq.parse("margin").rules == (Margin(lam=0.03, form="paper"),)
    assert eq.parse("margin:released").rules == (Margin(form="released"),)
    assert [type(rule).__name__ for rule in eq.parse("fedld").rules] == ["Margin", "Principal"]
    with pytest.raises(ValueError, match=r"Margin: lam must be >= 0; found -1\."):
        Margin(lam=-1)
    with pytest.raises(ValueError, match="margin: form must be one of paper, released; found 'softmax'"):
        federation("margin(form=softmax)")
