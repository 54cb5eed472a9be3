"""q-FFL: q-FedAvg in scalars, its limits, and the form that only weighs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.methods.qffl import QFFL
from helpers import UNEQUAL, Server, clients, federation, in_one, normal


@in_one("weighted", [False, True])
@in_one("q", [0.0, 0.5, 1.0, 2.0])
def test_algorithm_2_typed_out(q: float, weighted: bool) -> None:
    lr, eps, sizes, ids = 0.05, 1e-10, [10, 30, 5, 15], [0, 2, 3]
    W, updates, losses = normal(5, seed=1), normal(3, 5, seed=2), normal(3, seed=3).abs()
    server = Server(QFFL(q=q, form="full", sample_weights=weighted), W, sizes, solver=eq.SGD(lr))
    server.round(updates, ids, [{"loss": losses}])
    L, here = 1 / lr, sum(sizes[m] for m in ids)
    top, bottom = [0.0] * 5, 0.0
    for k, m in enumerate(ids):
        F, p = float(losses[k]) + eps, sizes[m] / here if weighted else 1.0
        g = [-L * float(u) for u in updates[k]]  # L (W - w)
        top = [t + p * F**q * x for t, x in zip(top, g, strict=True)]
        bottom += p * (q * F ** (q - 1) * sum(x * x for x in g) + L * F**q)
    expected = [float(w) - t / bottom for w, t in zip(W, top, strict=True)]
    assert server.theta.tolist() == pytest.approx(expected, abs=1e-13)


@given(q=st.floats(0.01, 5), losses=st.lists(st.floats(0.01, 10), min_size=2, max_size=6))
def test_the_step_shrinks(q: float, losses: list[float]) -> None:
    """For q > 0 the coefficients are positive and sum to less than one, and larger losses count more."""
    M = len(losses)
    server = Server(QFFL(q=q, form="full", lipschitz=2.0), torch.zeros(3, dtype=torch.float64), [1] * M)
    cohort = server.round(normal(M, 3), reports=[{"loss": torch.tensor(losses, dtype=torch.float64)}])
    a = cohort.coefficients
    assert bool((a > 0).all())
    assert float(a.sum()) < 1
    order = sorted(range(M), key=lambda m: losses[m])
    assert all(a[i] <= a[j] * (1 + 1e-12) for i, j in pairwise(order))


def test_q_0_is_the_plain_mean() -> None:
    W, updates = normal(4), normal(3, 4, seed=1)
    server = Server(QFFL(q=0, form="full"), W, [1, 50, 3], solver=eq.SGD(0.1))
    server.round(updates, reports=[{"loss": torch.tensor([0.0, 3.0, 1.0])}])
    assert torch.allclose(server.theta, W + updates.mean(0), rtol=0, atol=1e-15)


def test_a_loss_of_zero_freezes_the_round_and_is_told() -> None:
    """0 < q < 1: F^(q - 1) explodes; the note says which share of the sum one client holds."""
    W, updates = normal(4), normal(3, 4, seed=1)
    server = Server(QFFL(q=0.5, form="full"), W, [1, 1, 1], solver=eq.SGD(0.1))
    cohort = server.round(updates, reports=[{"loss": torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64)}])
    assert cohort.notes["qffl_largest_h"] > 0.99
    assert float((server.theta - W).norm()) < 1e-3 * float(updates.norm())
    assert bool(server.theta.isfinite().all())


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_nothing_to_learn_changes_nothing(q: float) -> None:
    W = normal(4)
    for losses, updates in (
        ([0.0, 0.0], normal(2, 4, seed=1)),
        ([0.0, 0.0], 0 * normal(2, 4)),
        ([1.0, 2.0], 0 * normal(2, 4)),
    ):
        server = Server(QFFL(q=q, form="full", eps=0), W, [1, 1], solver=eq.SGD(0.1))
        server.round(updates, reports=[{"loss": torch.tensor(losses, dtype=torch.float64)}])
        assert torch.equal(server.theta, W)


def test_the_lipschitz_constant_is_one_over_the_rate() -> None:
    for rule, solver, L in (
        (QFFL(form="full"), eq.SGD(0.05), 20),
        (QFFL(form="full", lipschitz=3.0), eq.SGD(0.05), 3),
        (QFFL(form="full"), eq.SGD(0.5), 2),
    ):
        assert float(Server(rule, normal(2), [1], solver=solver).state[0]["L"]) == pytest.approx(L)


@pytest.mark.parametrize("q", [0.0, 1.0, 2.5])
def test_the_form_that_only_weighs(q: float) -> None:
    losses, sizes = [0.2, 1.5, 0.9], [10, 5, 20]
    server = Server(QFFL(q=q, form="weights"), normal(4), sizes)
    cohort = server.round(normal(3, 4, seed=1), reports=[{"loss": torch.tensor(losses, dtype=torch.float64)}])
    raw = [n * (F + 1e-10) ** q for n, F in zip(sizes, losses, strict=True)]
    assert cohort.weights.tolist() == pytest.approx([r / sum(raw) for r in raw], abs=1e-14)
    assert cohort.coefficients is None


@pytest.mark.parametrize("q", [0.0, 0.5, 2.5])
def test_the_form_that_only_weighs_by_losses(q: float) -> None:
    """FFL4MIA: the samples do not count."""
    losses = [0.2, 1.5, 0.9]
    server = Server(eq.parse("qffl:ffl4mia", {"qffl.q": q}), normal(4), [10, 5, 20])
    cohort = server.round(normal(3, 4, seed=1), reports=[{"loss": torch.tensor(losses, dtype=torch.float64)}])
    raw = [(F + 1e-10) ** q for F in losses]
    assert cohort.weights.tolist() == pytest.approx([r / sum(raw) for r in raw], abs=1e-14)
    assert cohort.coefficients is None


def test_the_forms_that_weigh_do_not_turn_the_step() -> None:
    assert QFFL(form="full").owns == {"weights", "direction"}
    assert QFFL(form="weights").owns == QFFL(form="losses").owns == {"weights"}
    assert QFFL(form="losses") in eq.parse("scaffold+qffl:ffl4mia").rules


def test_buffers_are_a_plain_mean() -> None:
    buffers = normal(2, 3)
    server = Server(
        QFFL(q=2, form="full", lipschitz=1.0), normal(4), [1, 9], buffers=torch.zeros(3, dtype=torch.float64)
    )
    server.round(normal(2, 4), reports=[{"loss": torch.tensor([0.1, 5.0])}], buffer_updates=buffers)
    assert torch.allclose(server.buffers, buffers.mean(0))


def test_alone_and_in_a_sum_it_is_the_same_form() -> None:
    assert eq.parse("qffl").rules == (QFFL(form="weights"),)
    assert QFFL(form="weights") in eq.parse("fedprox+qffl").rules
    assert eq.parse("qffl:full").rules == eq.parse("qffl:paper").rules == (QFFL(form="full"),)


def test_the_loss_is_that_of_the_received_model() -> None:
    fed = federation("qffl(form=weights, q=2)", participation=1.0)
    losses = [fed.evaluate(x, y)["loss"] for x, y in clients()]
    fed.fit(1, progress=False)
    raw = [n * F**2 for n, F in zip(UNEQUAL, losses, strict=True)]
    assert fed.records[0]["weights"] == pytest.approx([r / sum(raw) for r in raw], rel=1e-8)
