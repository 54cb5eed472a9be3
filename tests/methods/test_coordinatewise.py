"""The coordinate-wise median and trimmed mean, beside Python's own statistics of every coordinate."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Setup
from equipoise.federation.method import MethodError
from equipoise.methods.coordinatewise import Median, TrimmedMean
from helpers import Server, fitted, in_one, normal, tensor


def naive(updates: Tensor, beta: float | None) -> list[float]:
    """Of every coordinate, the median, or the mean of what is left."""
    made = []
    for column in updates.T.tolist():
        if beta is None:
            made.append(statistics.median(column))
            continue
        kept = sorted(column)
        for _ in range(int(beta * len(column) + 1e-9)):
            kept.remove(max(kept))
            kept.remove(min(kept))
        made.append(statistics.fmean(kept))
    return made


def after(rule: object, updates: Tensor, buffers: Tensor | None = None) -> Server:
    width = 0 if buffers is None else buffers.shape[1]
    sizes = [float(1 + 9 * m) for m in range(len(updates))]  # which count for nothing
    server = Server(rule, updates.new_zeros(updates.shape[1]), sizes, buffers=updates.new_zeros(width))
    server.round(updates, buffer_updates=buffers)
    return server


@given(
    M=st.integers(1, 9), P=st.integers(1, 12), seed=st.integers(0, 10**6), beta=st.sampled_from([None, 0, 0.2, 0.49])
)
def test_every_coordinate_typed_out(M: int, P: int, seed: int, beta: float | None) -> None:
    updates = normal(M, P, seed=seed).round(decimals=1)  # with ties
    server = after(Median() if beta is None else TrimmedMean(beta=beta), updates, updates.flip(1))
    assert server.theta.tolist() == pytest.approx(naive(updates, beta), abs=1e-13)
    assert server.buffers.tolist() == pytest.approx(naive(updates.flip(1), beta), abs=1e-13)


def test_by_hand() -> None:
    four = tensor([[1.0, 9.0], [2.0, -4.0], [3.0, 5.0], [100.0, 6.0]])
    assert after(Median(), four).theta.tolist() == [2.5, 5.5]
    assert after(Median(), four[:3]).theta.tolist() == [2.0, 5.0]
    assert after(TrimmedMean(beta=0.25), four).theta.tolist() == [2.5, 5.5]
    assert after(TrimmedMean(beta=0), four).theta.tolist() == [26.5, 4.0]


@in_one(("beta", "M", "cut"), [(0.1, 9, 0), (0.1, 10, 1), (0.3, 10, 3), (0.2, 5, 1), (0.499, 4, 1), (0.49, 1, 0)])
def test_how_many_are_cut_off(beta: float, M: int, cut: int) -> None:
    assert TrimmedMean(beta=beta)._cut(M) == cut


@in_one("rule", [Median(), TrimmedMean(beta=0.2), TrimmedMean(beta=0.4)])
@in_one("attack", [1e30, -1e30, 3e38])
def test_a_client_that_lies_moves_nothing_out_of_the_range_of_the_others(rule: object, attack: float) -> None:
    """In float32, where a sum with what it sends would be useless or infinite."""
    updates, buffers = normal(5, 40).float(), normal(5, 6, seed=1).float()
    updates[3], buffers[3] = attack, attack
    server = after(rule, updates, buffers)
    for got, sent in ((server.theta, updates), (server.buffers, buffers)):
        honest = sent[[0, 1, 2, 4]]
        assert bool(((honest.amin(0) <= got) & (got <= honest.amax(0))).all())


def test_two_that_lie_about_as_far_as_numbers_go_are_not_added_up() -> None:
    """Half of the clients: nobody can be told to lie, but the step is finite where float32 holds it."""
    updates = torch.tensor([[1.0], [2.0], [3e38], [3e38]])
    assert after(TrimmedMean(beta=0), updates).theta.tolist() == pytest.approx([1.5e38])


def test_scale_and_shift_of_other_rules_count() -> None:
    updates = normal(5, 4)
    server = Server(Median(), torch.zeros(4, dtype=torch.float64), [1.0] * 5)
    server.round(updates, scale=0.5, shift=tensor([1.0, 2.0, 3.0, 4.0]))
    assert torch.allclose(
        server.theta, 0.5 * updates.median(0).values + tensor([1.0, 2.0, 3.0, 4.0]), rtol=0, atol=1e-15
    )


def test_momentum_at_the_server_takes_the_median() -> None:
    updates = normal(5, 4)
    server = Server("fedavgm(beta=0.5)+median", torch.zeros(4, dtype=torch.float64), [1.0] * 5)
    for _ in range(2):
        server.round(updates)
    assert torch.allclose(server.theta, 2.5 * updates.median(0).values, rtol=0, atol=1e-14)


def test_what_trims_nothing_is_said_before_the_first_round() -> None:
    def doubt(rule: TrimmedMean, clients: int, asked: int | None = None) -> str:
        return rule.doubt(Setup(torch.zeros(4), (4,), torch.ones(clients), asked=asked))

    assert "with 9 clients in a round beta=0.1 cuts nothing off" in doubt(TrimmedMean(), 9)
    assert "Take beta=0.12 or more" in doubt(TrimmedMean(), 9)
    assert TrimmedMean(beta=0.12)._cut(9) == TrimmedMean(beta=0.34)._cut(3) == 1
    assert "Take beta=0.34 or more" in doubt(TrimmedMean(), 20, asked=3)
    assert "with 1 client in a round" in doubt(TrimmedMean(), 1)
    assert not doubt(TrimmedMean(), 10)
    assert not doubt(TrimmedMean(beta=0), 3)


def test_threads_give_the_same_bits() -> None:
    """Matrices of several runs of blocks."""
    a, b = (fitted("median", 2, workers=n) for n in (1, 3))
    assert torch.equal(a.progress.vector, b.progress.vector)


@in_one("other", ["trimmed-mean", "krum", "geometric-median", "centred-clipping", "fedheal", "afl", "fedgh", "fednova"])
def test_two_that_decide_the_step_are_refused(other: str) -> None:
    with pytest.raises(MethodError, match=r"each set .* Keep one of them"):
        eq.parse(f"median+{other}")


def test_ranges() -> None:
    for beta in (-0.1, 0.5):
        with pytest.raises(ValueError, match=r"TrimmedMean: beta must be in \[0, 0.5\)"):
            TrimmedMean(beta=beta)
