"""FedGH: pairs projected on vectors, where the product works on a Gram matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.core import maths
from equipoise.federation.method import MethodError
from equipoise.methods.fedgh import FedGH
from helpers import Server, in_one, normal

FORMS = ("original", "sequential", "accumulate")
Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def off(a: Vector, part: float, b: Vector) -> Vector:
    return [x - part * y for x, y in zip(a, b, strict=True)]


def naive(updates: list[Vector], form: str) -> list[Vector]:
    """The pairs i < j in the order of the clients, each form as it reads."""
    g = [list(u) for u in updates]
    for i in range(len(g)):
        for j in range(i + 1, len(g)):
            a, b = (g[i], g[j]) if form == "sequential" else (updates[i], updates[j])
            if dot(a, b) >= 0:
                continue
            x, y = (a, b) if form == "accumulate" else (g[i], g[j])
            g[i], g[j] = off(g[i], dot(x, b) / dot(b, b), b), off(g[j], dot(y, a) / dot(a, a), a)
    return g


@in_one("form", FORMS)
@in_one(("M", "G"), [(2, 5), (5, 4), (8, 6), (3, 40)])
def test_the_pairs_typed_out(form: str, M: int, G: int) -> None:
    updates, W, sizes = normal(M, G, seed=M), normal(G), [float(1 + k) for k in range(M)]
    server = Server(FedGH(form=form), W, sizes)
    server.round(updates)
    g = naive(updates.tolist(), form)
    expected = [
        float(w) + sum(n * row[c] for n, row in zip(sizes, g, strict=True)) / sum(sizes) for c, w in enumerate(W)
    ]
    assert server.theta.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_by_hand(form: str) -> None:
    """(1, 0) and (-1, 1) conflict: the first keeps (1/2, 1/2), the second (0, 1)."""
    updates = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert (FedGH(form=form)._harmonised(maths.gram(updates)) @ updates).tolist() == [[0.5, 0.5], [0.0, 1.0]]


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 10**6))
def test_two_clients_have_no_conflict_left(form: str, seed: int) -> None:
    updates = normal(2, 5, seed=seed)
    g = FedGH(form=form)._harmonised(maths.gram(updates)) @ updates
    for m in range(2):
        assert float(g[m] @ updates[1 - m]) >= -1e-12


@given(seed=st.integers(0, 10**6), M=st.integers(1, 6))
def test_the_last_projection_leaves_no_conflict_with_its_own_client(seed: int, M: int) -> None:
    updates = normal(M, 5, seed=seed)
    g = FedGH()._harmonised(maths.gram(updates)) @ updates
    for m in range(M - 1):
        if float(updates[m] @ updates[-1]) < 0:
            assert abs(float(g[m] @ updates[-1])) <= 1e-10


@pytest.mark.parametrize("form", FORMS)
def test_without_conflict_it_is_the_mean_by_samples(form: str) -> None:
    updates = normal(3, 4).abs()
    server = Server(FedGH(form=form), torch.zeros(4, dtype=torch.float64), [1, 10, 5])
    server.round(updates)
    assert torch.allclose(
        server.theta, torch.tensor([1, 10, 5], dtype=torch.float64) / 16 @ updates, rtol=0, atol=1e-15
    )


ODD = {
    "nothing moves": torch.zeros(3, 6),
    "one client does not move": torch.cat([normal(2, 6).float(), torch.zeros(1, 6)]),
    "duplicates": normal(1, 6).float().expand(4, -1),
    "opposite": torch.cat([normal(1, 6), -normal(1, 6)]).float(),
    "more clients than parameters": normal(7, 2).float(),
    "one client": normal(1, 6).float(),
}


@in_one("form", [*FORMS, "hierarchical"])
@in_one("case", ODD)
def test_odd_updates_give_finite_steps(case: str, form: str) -> None:
    updates = ODD[case]
    server = Server(FedGH(form=form), torch.zeros(updates.shape[1]), [1.0] * len(updates))
    for _ in range(3):
        server.round(updates)
    assert bool(server.theta.isfinite().all())
    if case == "one client":
        assert torch.allclose(server.theta, 3 * updates[0])
    if case == "opposite":
        assert float(server.theta.norm()) < 1e-5


def test_the_order_of_clients_matters_where_conflicts_overlap() -> None:
    """As published; the form that takes all components off at once does not mind."""
    updates = normal(5, 3, seed=2)
    order = [4, 2, 0, 1, 3]
    for form, same in (("original", False), ("sequential", False), ("accumulate", True)):
        a, b = (FedGH(form=form)._harmonised(maths.gram(u)) @ u for u in (updates, updates[order]))
        assert torch.allclose(a.mean(0), b.mean(0), rtol=0, atol=1e-12) is same


def test_weights_are_those_of_another_rule() -> None:
    updates, equal = normal(4, 6), {"loss": torch.ones(4, dtype=torch.float64)}
    both = Server("fedgh+afl(gamma=0)", torch.zeros(6, dtype=torch.float64), [1.0, 2.0, 50.0, 3.0])
    alone = Server(FedGH(), torch.zeros(6, dtype=torch.float64), [1.0] * 4)
    both.round(updates, reports=[equal, equal])
    alone.round(updates)
    assert torch.allclose(both.theta, alone.theta, rtol=0, atol=1e-14)


def test_presets_and_bad_input() -> None:
    assert eq.parse("fedgh").rules == (FedGH(form="original"),)
    assert eq.parse("fedgh:released").rules == eq.parse("fedhgd").rules == (FedGH(form="hierarchical"),)
    with pytest.raises(MethodError, match="each set the direction"):
        eq.parse("fedgh+principal")
    with pytest.raises(MethodError, match="each set the weights"):
        eq.parse("fedhgd+afl")
    with pytest.raises(ValueError, match="FedGH: form must be one of original, sequential, accumulate, hierarchical"):
        FedGH(form="pcgrad")


def test_sequential_with_updates_that_cancel_is_finite() -> None:
    """What is left of two opposite updates is rounding, on which nothing is projected."""
    rule = FedGH(form="sequential")
    for seed in range(200):
        u, v, w = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        rows = torch.stack([u, -(1 + seed / 50) * u, v, w])
        a = rule._harmonised(rows @ rows.T)
        assert bool(a.isfinite().all())
        assert float((a @ rows).norm(dim=1).max()) < 1e3 * float(rows.norm(dim=1).max())
