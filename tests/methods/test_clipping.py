"""Clipping of updates at the server, alone and before other rules, and centred clipping."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.federation.method import MethodError
from equipoise.methods.centred_clipping import CentredClipping
from equipoise.methods.clipping import Clipping, factors
from helpers import Server, fitted, in_one, normal, tensor

Vectors = list[list[float]]


def bounds(updates: list[float], buffers: list[float], longest: float | None) -> tuple[float, float]:
    """The largest lengths of both parts."""
    if longest is None:
        return statistics.median(updates), statistics.median(buffers)
    usual = statistics.median(updates)
    return longest, statistics.median(buffers) * longest / usual if usual else math.inf


def shortened(rows: Vectors, bound: float) -> Vectors:
    return [[x * min(1.0, bound / math.hypot(*row)) for x in row] for row in rows]


def server_of(rule: object, updates: Tensor, buffers: Tensor, sizes: list[float]) -> Server:
    return Server(rule, updates.new_zeros(updates.shape[1]), sizes, buffers=updates.new_zeros(buffers.shape[1]))


# clipping
@given(M=st.integers(1, 7), P=st.integers(1, 9), c=st.sampled_from([None, 0.5, 2.0, 1e9]), seed=st.integers(0, 10**6))
def test_every_update_typed_out(M: int, P: int, c: float | None, seed: int) -> None:
    updates, buffers = normal(M, P, seed=seed), 30 * normal(M, 4, seed=seed + 1)
    sizes = [float(1 + k) for k in range(M)]
    server = server_of(Clipping(c=c), updates, buffers, sizes)
    cohort = server.round(updates, buffer_updates=buffers)
    most = bounds([math.hypot(*row) for row in updates.tolist()], [math.hypot(*row) for row in buffers.tolist()], c)
    for got, made, rows, bound in (
        (server.theta, cohort.updates, updates.tolist(), most[0]),
        (server.buffers, cohort.buffer_updates, buffers.tolist(), most[1]),
    ):
        short = tensor(shortened(rows, bound))
        assert torch.allclose(made, short, rtol=0, atol=1e-12)
        assert torch.allclose(got, tensor(sizes) / sum(sizes) @ short, rtol=0, atol=1e-12)
    assert cohort.notes["clipped"] == sum(math.hypot(*row) > most[0] for row in updates.tolist())


def test_by_hand() -> None:
    """Lengths 5, 1 and 10: to 5, the median, or to 2."""
    updates = tensor([[3.0, 4.0], [0.0, 1.0], [10.0, 0.0]])
    theta = [server_of(Clipping(c=c), updates, updates[:, :0], [1.0] * 3) for c in (None, 2.0)]
    made = [server.round(updates).updates.tolist() for server in theta]
    assert made[0] == [[3.0, 4.0], [0.0, 1.0], [5.0, 0.0]]
    assert made[1] == [pytest.approx([1.2, 1.6]), [0.0, 1.0], [2.0, 0.0]]
    assert theta[0].theta.tolist() == pytest.approx([8 / 3, 5 / 3])


def test_what_need_not_be_clipped_is_not_copied() -> None:
    updates, buffers = normal(3, 4), normal(3, 2, seed=1)
    for c in (1e9, float("inf")):
        cohort = server_of(Clipping(c=c), updates, buffers, [1.0] * 3).round(updates, buffer_updates=buffers)
        assert cohort.updates is updates
        assert cohort.buffer_updates is buffers


def test_lengths_of_zero() -> None:
    """Nobody moves, or most do not: no division by zero."""
    assert factors([tensor([0.0, 0.0]), tensor([0.0, 3.0])], None)[0].tolist() == [1.0, 1.0]
    assert factors([tensor([0.0, 0.0, 8.0])], None)[0].tolist() == [1.0, 1.0, 0.0]
    assert factors([tensor([0.0, 0.0, 8.0]), tensor([0.0, 0.0, 0.0])], 2.0)[0].tolist() == [1.0, 1.0, 0.25]


@pytest.mark.parametrize("attack", [1e30, -3e38])
def test_a_client_that_lies_moves_no_farther_than_the_median(attack: float) -> None:
    updates, buffers = normal(5, 40).float(), normal(5, 6, seed=1).float()
    updates[3], buffers[3] = attack, attack
    server = server_of(Clipping(), updates, buffers, [1.0] * 5)
    server.round(updates, buffer_updates=buffers)
    for got, sent in ((server.theta, updates), (server.buffers, buffers)):
        lengths = sent.double().norm(dim=1)
        assert float(got.norm()) <= float(lengths.median()) * (1 + 1e-6)


@in_one("other", ["fedheal", "fael", "fphl", "principal", "median", "qffl:full", "scaffold", "feddyn", "fedavgm"])
def test_it_comes_first_wherever_it_is_written(other: str) -> None:
    a, b = eq.parse(f"clipping+{other}"), eq.parse(f"{other}+clipping")
    assert a.rules == b.rules
    assert type(a.rules[0]) is Clipping
    assert eq.parse(str(b)) == b


def test_fedheal_masks_and_weighs_what_was_clipped() -> None:
    updates = normal(5, 12)
    updates[1] *= 100
    short = tensor(shortened(updates.tolist(), statistics.median(updates.norm(dim=1).tolist())))
    both = Server("fedheal+clipping", torch.zeros(12, dtype=torch.float64), [1.0, 2.0, 3.0, 4.0, 5.0])
    alone = Server("fedheal", torch.zeros(12, dtype=torch.float64), [1.0, 2.0, 3.0, 4.0, 5.0])
    for _ in range(3):
        ours, theirs = both.round(updates), alone.round(short)
    assert torch.allclose(ours.weights, theirs.weights, rtol=0, atol=1e-12)
    assert torch.allclose(both.theta, alone.theta, rtol=0, atol=1e-12)


def test_a_rule_that_changes_nothing_but_reads_updates_comes_after() -> None:
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Look(eq.Rule):
        def aggregate(self, state: dict[str, Tensor], cohort: eq.Cohort) -> tuple[dict[str, Tensor], eq.Cohort]:
            seen.append(cohort.updates)
            return state, cohort

    fitted((Look(), Clipping(c=1e-3)), 1)
    assert float(seen[0].norm(dim=1).max()) <= 1e-3 * (1 + 1e-12)


def test_two_are_refused() -> None:
    with pytest.raises(MethodError, match="appears twice"):
        eq.parse("clipping+fedheal+clipping(c=1)")


# centred clipping
def centred(rows: list[Vectors], centre: list[list[float]], tau: float | None, iterations: int) -> list[list[float]]:
    """v of the updates and of the buffers, after all iterations."""
    for _ in range(iterations):
        apart = [[math.dist(row, v) for row in part] for part, v in zip(rows, centre, strict=True)]
        after = []
        for part, v, far, bound in zip(rows, centre, apart, bounds(*apart, tau), strict=True):
            share = [min(1.0, bound / d) if d else 1.0 for d in far]
            after.append(
                [
                    x + sum(s * (row[c] - x) for s, row in zip(share, part, strict=True)) / len(part)
                    for c, x in enumerate(v)
                ]
            )
        centre = after
    return centre


@given(
    M=st.integers(1, 6),
    P=st.integers(1, 8),
    tau=st.sampled_from([None, 0.5, 2.0, 1e9]),
    iterations=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)
def test_the_iterations_typed_out(M: int, P: int, tau: float | None, iterations: int, seed: int) -> None:
    """Over three rounds, each from where the last one ended."""
    server = server_of(
        CentredClipping(tau=tau, iterations=iterations),
        normal(1, P),
        normal(1, 3),
        [float(1 + 5 * k) for k in range(M)],
    )
    centre, total = [[0.0] * P, [0.0] * 3], [[0.0] * P, [0.0] * 3]
    for t in range(3):
        updates, buffers = normal(M, P, seed=seed + t), 20 * normal(M, 3, seed=seed + 10 + t)
        server.round(updates, buffer_updates=buffers)
        centre = centred([updates.tolist(), buffers.tolist()], centre, tau, iterations)
        total = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(total, centre, strict=True)]
        assert server.state[0]["v"].tolist() == pytest.approx(centre[0], abs=1e-10)
        assert server.theta.tolist() == pytest.approx(total[0], abs=1e-10)
        assert server.buffers.tolist() == pytest.approx(total[1], abs=1e-9)


def test_centred_by_hand() -> None:
    """From 0 with tau = 1: (1 + 1 - 0.5) / 3; from there again, 3 and 4 are cut to 1, and -0.5 moves the whole way of -1."""
    updates = tensor([[3.0], [4.0], [-0.5]])
    server = server_of(CentredClipping(tau=1.0), updates, updates[:, :0], [1.0] * 3)
    cohort = server.round(updates)
    assert server.theta.tolist() == pytest.approx([0.5])
    assert cohort.counted.tolist() == pytest.approx([4 / 19, 3 / 19, 12 / 19])  # shares 1/3, 1/4 and 1
    server.round(updates)
    assert server.theta.tolist() == pytest.approx([0.5 + 0.5 + (1 + 1 - 1) / 3])


def test_a_wide_radius_is_the_plain_mean() -> None:
    updates, buffers = normal(4, 5), normal(4, 2, seed=1)
    for tau in (1e9, float("inf")):
        server = server_of(CentredClipping(tau=tau), updates, buffers, [1.0, 2.0, 3.0, 4.0])
        server.round(updates, buffer_updates=buffers)
        assert torch.allclose(server.theta, updates.mean(0), rtol=0, atol=1e-15)
        assert torch.allclose(server.buffers, buffers.mean(0), rtol=0, atol=1e-15)


@in_one("tau", [None, 1.0])
@in_one("attack", [1e30, -3e38])
def test_a_client_that_lies_moves_v_by_the_radius_over_n(tau: float | None, attack: float) -> None:
    updates, buffers = normal(5, 40).float(), normal(5, 6, seed=1).float()
    lies = updates.clone(), buffers.clone()
    for x in lies:
        x[3] = attack
    servers = [server_of(CentredClipping(tau=tau), updates, buffers, [1.0] * 5) for _ in range(2)]
    servers[0].round(updates, buffer_updates=buffers)
    servers[1].round(lies[0], buffer_updates=lies[1])
    for a, b, honest in (
        (servers[0].theta, servers[1].theta, updates),
        (servers[0].buffers, servers[1].buffers, buffers),
    ):
        assert bool(b.isfinite().all())
        assert float((a - b).norm()) <= 2 * float(honest.norm(dim=1).max()) / 5


def test_scale_and_shift_of_other_rules_count() -> None:
    updates = normal(5, 4)
    server = server_of(CentredClipping(tau=1e9), updates, updates[:, :0], [1.0] * 5)
    server.round(updates, scale=0.5, shift=tensor([1.0, 2.0, 3.0, 4.0]))
    assert torch.allclose(server.theta, 0.5 * updates.mean(0) + tensor([1.0, 2.0, 3.0, 4.0]), rtol=0, atol=1e-15)
    assert torch.allclose(server.state[0]["v"], updates.mean(0), rtol=0, atol=1e-15)


def test_ranges() -> None:
    for text in ("clipping(c=0)", "centred-clipping(tau=0)", "centred-clipping(iterations=0)"):
        with pytest.raises(ValueError, match=r"must be"):
            eq.parse(text)
