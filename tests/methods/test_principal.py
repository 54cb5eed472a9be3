"""FedLD's aggregation: Eqs. 4 to 7 on vectors, by a singular value decomposition, where the product works on a Gram matrix."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import maths
from equipoise.federation.method import MethodError
from equipoise.methods.principal import Principal
from helpers import Server, federation, fitted, in_one, normal, scripted

EIGEN = ("l2_kept", "literal", "l1_all")


def naive(updates: Tensor, p: list[float], keep: float, eigen: str) -> tuple[Tensor, Tensor]:
    """Revised updates [M, G] and their mean, with axes of the size of the model and loops over clients and axes."""
    M = len(updates)
    _, singular, axes = torch.linalg.svd(updates, full_matrices=False)
    lam = singular**2 / M
    L = max(1, math.floor(keep * M + 1e-9))
    revised = torch.zeros_like(updates)
    for axis in range(min(L, len(lam))):
        v = axes[axis]
        if float(v @ updates.mean(0)) < 0:  # Eq. 6
            v = -v
        if float(lam[axis]) <= 1e-12 * float(lam[0]):
            continue
        total = {"l2_kept": lam[:L].norm(), "literal": lam[axis], "l1_all": lam.sum()}[eigen]
        for i, u in enumerate(updates):
            along = (u @ v) * v
            if float(along.norm()) > 1e-12 * float(u.norm()):
                revised[i] += lam[axis] / total * u.norm() / along.norm() * along
    return revised, sum(share * row for share, row in zip(p, revised, strict=True))


@in_one("eigen", EIGEN)
@in_one(("M", "G", "keep"), [(5, 12, 0.8), (4, 9, 0.5), (2, 7, 0.8), (6, 4, 1.0), (12, 30, 0.8)])
def test_equations_4_to_7_typed_out(eigen: str, M: int, G: int, keep: float) -> None:
    updates, W, sizes = normal(M, G, seed=1), normal(G, seed=2), [float(3 + k * k) for k in range(M)]
    server = Server(Principal(keep=keep, eigen=eigen, scope="model"), W, sizes)
    cohort = server.round(updates)
    _, step = naive(updates, [n / sum(sizes) for n in sizes], keep, eigen)
    assert torch.allclose(server.theta, W + step, rtol=0, atol=1e-11)
    assert cohort.notes["principal_axes"] == max(1, math.floor(keep * M + 1e-9))
    assert cohort.notes["principal_tie"] is False


@pytest.mark.parametrize(("apart", "tie"), [(0.5e-6, True), (2e-6, False)])
def test_eigenvalues_tie_relative_to_the_largest(apart: float, tie: bool) -> None:
    """Two updates of one length, whose axes lie between them; the largest eigenvalue is half of the trace."""
    for scale in (1e-6, 1.0, 1e6):
        products = scale * torch.tensor([[1, apart / 2], [apart / 2, 1]], dtype=torch.float64)
        assert Principal(keep=0.5)._coefficients(products, torch.ones(2, dtype=torch.float64) / 2)[1] is tie


def test_per_tensor_is_the_rule_on_each_tensor() -> None:
    layout, updates = (5, 1, 8), normal(4, 14, seed=3)
    server = Server(Principal(scope="tensor"), torch.zeros(14, dtype=torch.float64), [1.0, 2.0, 3.0, 4.0], layout)
    cohort = server.round(updates)
    p = [0.1, 0.2, 0.3, 0.4]
    parts = updates.split(layout, 1)
    one = torch.tensor(p, dtype=torch.float64) @ parts[1]  # one element: the plain mean
    expected = [naive(parts[0], p, 0.8, "l2_kept")[1], one, naive(parts[2], p, 0.8, "l2_kept")[1]]
    assert torch.allclose(server.theta, torch.cat(expected), rtol=0, atol=1e-12)
    assert cohort.coefficients.shape == (4, 3)


@given(seed=st.integers(0, 10**6), M=st.integers(1, 7), eigen=st.sampled_from(EIGEN), scale=st.floats(-100, 100))
def test_odd_and_homogeneous(seed: int, M: int, eigen: str, scale: float) -> None:
    updates, p = normal(M, 9, seed=seed), maths.simplex(normal(M, seed=seed + 1).abs())
    rule = Principal(eigen=eigen)
    one, other = (rule._coefficients(maths.gram(u), p)[0] @ u for u in (updates, scale * updates))
    assert torch.allclose(other, scale * one, rtol=0, atol=1e-9 * max(1, abs(scale)))


@given(seed=st.integers(0, 10**6), M=st.integers(2, 7))
def test_a_rotation_turns_the_result_and_the_order_of_clients_does_not(seed: int, M: int) -> None:
    updates, p = normal(M, 9, seed=seed), maths.simplex(normal(M, seed=seed + 1).abs())
    turn, _ = torch.linalg.qr(normal(9, 9, seed=seed + 2))
    order = torch.randperm(M, generator=torch.Generator().manual_seed(seed))

    def step(u: Tensor, share: Tensor) -> Tensor:
        return Principal()._coefficients(maths.gram(u), share)[0] @ u

    assert torch.allclose(step(updates @ turn, p), step(updates, p) @ turn, rtol=0, atol=1e-8)
    assert torch.allclose(step(updates[order], p[order]), step(updates, p), rtol=0, atol=1e-8)


@given(seed=st.integers(0, 10**6), M=st.integers(1, 7))
def test_every_client_keeps_its_length(seed: int, M: int) -> None:
    updates = normal(M, 9, seed=seed)
    K = maths.gram(updates)
    for eigen, factor in (("l2_kept", 1.0), ("literal", math.sqrt(max(1, math.floor(0.8 * M + 1e-9))))):
        for m, alone in enumerate(torch.eye(M, dtype=torch.float64)):
            revised = Principal(eigen=eigen)._coefficients(K, alone)[0] @ updates
            assert float(revised.norm()) == pytest.approx(factor * float(updates[m].norm()), rel=1e-6)


ODD = {
    "nothing moves": torch.zeros(3, 6, dtype=torch.float64),
    "one client does not move": torch.cat([normal(2, 6), torch.zeros(1, 6, dtype=torch.float64)]),
    "duplicates": normal(1, 6).expand(4, -1),
    "two duplicates": torch.cat([normal(2, 6), normal(1, 6, seed=1).expand(2, -1)]),
    "opposite": torch.cat([normal(1, 6), -normal(1, 6)]),
    "more clients than parameters": normal(7, 2),
    "one client": normal(1, 6),
    "one client that does not move": torch.zeros(1, 6, dtype=torch.float64),
    "orthogonal": torch.eye(3, 6, dtype=torch.float64),
    "tiny": 1e-150 * normal(3, 6),
}


@in_one("scope", ["model", "tensor"])
@in_one("eigen", EIGEN)
@in_one("case", ODD)
def test_odd_updates_give_finite_steps(case: str, eigen: str, scope: str) -> None:
    updates = ODD[case]
    G = updates.shape[1]
    for dtype in (torch.float64, torch.float32):
        start = torch.zeros(G, dtype=dtype)
        server = Server(Principal(eigen=eigen, scope=scope), start, [1.0] * len(updates), (G - 1, 1))
        cohort = server.round(updates.to(dtype))
        assert bool(server.theta.isfinite().all())
        assert server.theta.dtype == dtype
        assert float(server.theta.norm()) <= 3 * float(updates.norm()) + 1e-30
        assert bool(cohort.counted.isfinite().all())


@pytest.mark.parametrize("eigen", EIGEN)
def test_one_client_passes_through(eigen: str) -> None:
    updates = normal(1, 6)
    server = Server(Principal(eigen=eigen), torch.zeros(6, dtype=torch.float64), [7.0])
    server.round(updates)
    assert torch.allclose(server.theta, updates[0], rtol=1e-14, atol=0)


def test_ties_are_told() -> None:
    """Orthogonal updates of one length have no axes of their own, and a client at a right angle has no sign."""
    for updates, tie in (
        (torch.eye(4, 8), True),
        (normal(4, 8).float(), False),
        (torch.diag(torch.tensor([3.0, 2, 1])), True),
    ):
        server = Server(Principal(), torch.zeros(updates.shape[1]), [1.0] * len(updates))
        assert server.round(updates).notes["principal_tie"] is tie


def test_the_plain_mean_until_something_was_seen() -> None:
    layout, still = (4, 3), torch.zeros(3, 3, dtype=torch.float64)
    start = torch.zeros(7, dtype=torch.float64)
    server = Server(Principal(scope="tensor", warm_start=True), start, [1.0, 2.0, 5.0], layout)
    warm = Server(Principal(scope="tensor"), start, [1.0, 2.0, 5.0], layout)
    p = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64) / 8
    first = torch.cat([normal(3, 4), still], 1)
    server.round(first)
    assert server.state[0]["seen"].tolist() == [True, False]
    assert torch.allclose(server.theta, p @ first, rtol=0, atol=1e-15)
    second = normal(3, 7, seed=5)
    before = server.theta
    server.round(second)
    warm.round(second)
    step = server.theta - before
    assert torch.allclose(step[:4], warm.theta[:4], rtol=0, atol=1e-14)
    assert torch.allclose(step[4:], (p @ second)[4:], rtol=0, atol=1e-14)
    assert server.state[0]["seen"].tolist() == [True, True]
    assert Server(Principal(scope="model", warm_start=True), start, [1.0], layout).state[0]["seen"].tolist() == [False]


def test_weights_are_those_of_another_rule_or_equal() -> None:
    updates = normal(3, 6)
    server = Server("principal+afl(gamma=0)", torch.zeros(6, dtype=torch.float64), [1.0, 2.0, 50.0])
    same = Server(Principal(weights="uniform"), torch.zeros(6, dtype=torch.float64), [1.0, 2.0, 50.0])
    buffers = normal(3, 2)
    same.buffers = torch.zeros(2, dtype=torch.float64)
    server.round(updates, reports=[{"loss": torch.ones(3, dtype=torch.float64)}] * 2)
    same.round(updates, buffer_updates=buffers)
    assert torch.allclose(server.theta, same.theta, rtol=0, atol=1e-14)
    assert torch.allclose(same.buffers, buffers.mean(0))
    with pytest.raises(MethodError, match="each set the weights"):
        eq.parse("afl+principal(weights=uniform)")
    for other in ("fedheal", "fedfv", "fedgh"):
        with pytest.raises(MethodError):
            eq.parse(f"principal+{other}")


def test_the_step_of_scaffold_keeps_its_length() -> None:
    """Another rule's eta is not lost."""
    updates = normal(3, 6)
    steps = []
    for eta in (1.0, 0.25):
        server = Server(f"scaffold(eta={eta})+principal", torch.zeros(6, dtype=torch.float64), [1.0] * 3)
        server.round(updates, reports=[{"dc": torch.zeros(3, 6, dtype=torch.float64)}, {}])
        steps.append(server.theta)
    assert torch.allclose(steps[1], 0.25 * steps[0], rtol=0, atol=1e-15)


def test_what_is_recorded() -> None:
    updates = [normal(3, federation().model.size, seed=k) for k in range(2)]
    fed = federation("principal", sizes=(5, 5, 5), participation=1.0, engine=scripted(updates))
    fed.fit(2, progress=False)
    assert [r["principal_axes"] for r in fed.records] == [2, 2]
    assert [r["principal_tie"] for r in fed.records] == [False, False]


def test_presets_and_bad_input() -> None:
    released = Principal(eigen="l1_all", scope="tensor", weights="uniform", warm_start=True)
    assert eq.parse("principal:released").rules == (released,)
    assert released in eq.parse("fedld:released").rules
    assert fitted("fedld:released", 3).records
    for value in (0, 1.1):
        with pytest.raises(ValueError, match=r"Principal: keep must be in \(0, 1\]"):
            Principal(keep=value)


@pytest.mark.parametrize("scope", ["tensor", "model"])
def test_the_record_sets_the_step_beside_the_mean(scope: str) -> None:
    layout, sizes = (5, 1, 8), [1.0, 2.0, 3.0, 4.0]
    updates = normal(4, 14, seed=3)
    server = Server(Principal(scope=scope), torch.zeros(14, dtype=torch.float64), sizes, layout)
    notes, step = server.round(updates).notes, server.theta
    mean = torch.tensor(sizes, dtype=torch.float64) / 10 @ updates
    assert notes["step_length"] == pytest.approx(float(step.norm() / mean.norm()), abs=1e-12)
    assert notes["step_cosine"] == pytest.approx(float(step @ mean / step.norm() / mean.norm()), abs=1e-12)
    parts = updates.split(layout, 1) if scope == "tensor" else [updates]
    squares = [
        torch.zeros(4, dtype=torch.float64).index_copy(0, torch.arange(len(s)), s**2)
        for s in map(torch.linalg.svdvals, parts)
    ]
    assert notes["eigenvalues"] == pytest.approx((sum(squares) / 4).tolist(), abs=1e-12)


def test_without_a_step_there_is_nothing_beside_the_mean() -> None:
    server = Server(Principal(), torch.zeros(6, dtype=torch.float64), [1.0, 2.0])
    notes = server.round(torch.zeros(2, 6, dtype=torch.float64)).notes
    assert notes["step_length"] is None
    assert notes["step_cosine"] is None
