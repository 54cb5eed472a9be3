"""Krum and Multi-Krum, beside their scores typed out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import maths
from equipoise.core.rule import Setup
from equipoise.methods.krum import Krum
from equipoise.system.errors import RunError
from helpers import Server, federation, in_one, normal, tensor


def chosen(V: Tensor, f: int, m: int) -> list[int]:
    """The m clients of the least scores, in their order."""
    n = len(V)
    scores = []
    for i in range(n):
        others = sorted(
            sum((a - b) ** 2 for a, b in zip(V[i].tolist(), V[j].tolist(), strict=True)) for j in range(n) if j != i
        )
        scores.append(sum(others[: n - f - 2]))
    return sorted(sorted(range(n), key=lambda i: (scores[i], i))[:m])


def after(rule: object, updates: Tensor, buffers: Tensor | None = None) -> tuple[Server, list[float]]:
    width = 0 if buffers is None else buffers.shape[1]
    sizes = [float(1 + 9 * k) for k in range(len(updates))]  # which count for nothing
    server = Server(rule, updates.new_zeros(updates.shape[1]), sizes, buffers=updates.new_zeros(width))
    return server, server.round(updates, buffer_updates=buffers).weights.tolist()


@given(n=st.integers(3, 9), P=st.integers(1, 8), seed=st.integers(0, 10**6), few=st.integers(0, 3), m=st.integers(0, 9))
def test_the_scores_typed_out(n: int, P: int, seed: int, few: int, m: int) -> None:
    f = max((n - 3) // 2 - few, 0)
    updates, buffers = normal(n, P, seed=seed), normal(n, 3, seed=seed + 1)
    server, weights = after(Krum(f=f, m=m), updates, buffers)
    kept = chosen(torch.cat([updates, buffers], 1), f, min(m or n - f, n))
    assert weights == pytest.approx([1 / len(kept) if k in kept else 0 for k in range(n)])
    assert torch.allclose(server.theta, updates[kept].mean(0), rtol=0, atol=1e-14)
    assert torch.allclose(server.buffers, buffers[kept].mean(0), rtol=0, atol=1e-14)


def test_by_hand() -> None:
    """f = 1 of 5 on a line: two neighbours each. Scores: 0: 1 + 4, 1: 1 + 1, 2: 1 + 4, 10 and 11: 1 + 64, 1 + 81."""
    updates = tensor([[2.0], [0.0], [1.0], [10.0], [11.0]])
    assert Krum(f=1)._scores(maths.gram(updates)).tolist() == [5.0, 5.0, 2.0, 65.0, 82.0]
    assert after(Krum(f=1), updates)[0].theta.tolist() == [1.0]
    assert after(Krum(f=1, m=2), updates)[0].theta.tolist() == [1.5]  # of the two scores of 5, the first client's
    assert after(Krum(f=1, m=3), updates)[0].theta.tolist() == pytest.approx([1.0])
    assert after("multi-krum(f=1)", updates)[0].theta.tolist() == [3.25]


def test_equal_scores_take_the_first_client() -> None:
    assert after(Krum(), tensor([[5.0], [5.0], [5.0]]))[1] == [1, 0, 0]
    assert after(Krum(), tensor([[9.0], [5.0], [5.0]]))[1] == [0, 1, 0]


def test_all_of_them_are_the_plain_mean() -> None:
    updates = normal(6, 4)
    for rule in (Krum(f=0, m=6), Krum(f=0, m=99), Krum(f=0, m=0), Krum(f=1, m=6)):
        assert torch.allclose(after(rule, updates)[0].theta, updates.mean(0), rtol=0, atol=1e-15)


@in_one("text", ["krum", "multi-krum", "krum(f=1, m=2)"])
@in_one("attack", [1e30, -3e38])
def test_a_client_that_lies_is_not_chosen(text: str, attack: float) -> None:
    updates, buffers = normal(6, 40).float(), normal(6, 5, seed=1).float()
    updates[2] = attack
    server, weights = after(text, updates, buffers)
    honest = updates[[0, 1, 3, 4, 5]]
    assert weights[2] == 0
    assert bool(((honest.amin(0) <= server.theta) & (server.theta <= honest.amax(0))).all())


def test_nor_one_that_lies_about_its_statistics_alone() -> None:
    """What it sends lies far from the rest, though its parameters are in the middle."""
    updates, buffers = 0.1 * normal(5, 8), normal(5, 3, seed=1)
    updates[2], buffers[2] = 0, 1e9
    assert after(Krum(), updates)[1][2] == 1
    server, weights = after(Krum(), updates, buffers)
    assert weights[2] == 0
    assert float(server.buffers.abs().max()) < 10


@in_one(("n", "f"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (20, 8)])
def test_by_default_as_many_may_lie_as_the_paper_allows(n: int, f: int) -> None:
    assert Krum()._tolerated(n) == f
    assert n < 3 or 2 * f + 2 < n <= 2 * (f + 1) + 2


def test_of_one_or_two_nobody_is_chosen() -> None:
    updates = normal(2, 4)
    assert after(Krum(), updates)[1] == [0.5, 0.5]
    assert after("multi-krum", updates[:1])[1] == [1.0]
    two = Setup(torch.zeros(4), (4,), torch.ones(2))
    assert "of 2 clients in a round nobody can be told to lie" in Krum().doubt(two)
    assert not Krum().doubt(Setup(torch.zeros(4), (4,), torch.ones(3)))


def test_too_few_clients() -> None:
    message = r"krum with f=2 needs at least 7 clients in a round \(2 f \+ 2 < n\); found 5\. Lower f, or let more"
    with pytest.raises(RunError, match=message):
        federation("krum(f=2)", participation=1.0)
    with pytest.raises(RunError, match="found 4"):
        federation("krum(f=1)", participation=0.8)
    server = Server(
        Krum(f=1), torch.zeros(4, dtype=torch.float64), [1.0] * 5
    )  # in a round in which one does not answer
    with pytest.raises(RunError, match=r"needs at least 5 clients in a round .* found 4"):
        server.round(normal(4, 4), ids=[0, 1, 2, 4])


def test_names_and_ranges() -> None:
    assert eq.parse("krum").rules == (Krum(m=1),)
    assert eq.parse("multi-krum").rules == (Krum(m=0),)
    assert eq.parse("multi-krum(f=1, m=3)").rules == (Krum(f=1, m=3),)
    with pytest.raises(ValueError, match="krum: f must be a whole number >= 0, or None; found -1"):
        eq.parse("krum(f=-1)")
