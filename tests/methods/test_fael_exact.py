"""FedHEAL's Eq. 10 solved exactly: against a general solver, closed forms and random search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize
from torch import Tensor

from equipoise.core import maths
from equipoise.methods.fael_exact import FAELExact, equidistant
from helpers import Server, in_one, normal


def solve(models: Tensor, p0: Tensor | None = None) -> Tensor:
    K = maths.gram(models - models.mean(0))
    return equidistant(K, torch.full((len(models),), 1 / len(models), dtype=torch.float64) if p0 is None else p0)


def variance(models: Tensor, p: Tensor) -> float:
    """The objective by its definition: population variance of the squared distances to the mean model."""
    U = sum(float(w) * row for w, row in zip(p, models, strict=True))
    d = [float((U - row).square().sum()) for row in models]
    return sum((x - sum(d) / len(d)) ** 2 for x in d) / len(d)


def on_simplex(p: Tensor) -> bool:
    return bool((p >= 0).all()) and abs(float(p.sum()) - 1) < 1e-12


@in_one("seed", range(6))
def test_against_slsqp(seed: int) -> None:
    models = normal(3 + seed % 4, 8, seed=seed)
    M = len(models)
    p = solve(models)
    assert on_simplex(p)
    X = models.numpy()

    def objective(w: np.ndarray) -> float:
        d = ((w @ X - X) ** 2).sum(1)
        return float(d.var())

    best = min(
        minimize(
            objective,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * M,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        ).fun
        for start in [np.full(M, 1 / M), *np.random.default_rng(seed).dirichlet(np.ones(M), 3)]
    )
    assert variance(models, p) <= best + 1e-7


@given(seed=st.integers(0, 10**6), M=st.integers(2, 6), G=st.integers(1, 8))
@settings(max_examples=25)
def test_nothing_near_or_far_is_better(seed: int, M: int, G: int) -> None:
    """Random weights, and small moves towards them; also with fewer dimensions than clients, where p is not unique."""
    models = normal(M, G, seed=seed)
    p = solve(models)
    assert on_simplex(p)
    found = variance(models, p)
    generator = np.random.default_rng(seed)
    for other in generator.dirichlet(np.ones(M), 40):
        q = torch.from_numpy(other)
        for step in (1.0, 0.1, 0.01):
            assert found <= variance(models, (1 - step) * p + step * q) + 1e-7 * (1 + found)


def test_inside_the_hull_all_distances_are_equal() -> None:
    """An acute triangle holds its circumcentre: the classic weights sin 2A : sin 2B : sin 2C."""
    triangle = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    p = solve(triangle)
    d = maths.square_norms(p @ triangle - triangle)
    assert d.tolist() == pytest.approx([5.0, 5.0, 5.0], abs=1e-6)  # centre (2, 1)
    assert (p @ triangle).tolist() == pytest.approx([2.0, 1.0], abs=1e-7)


def test_two_clients_meet_in_the_middle() -> None:
    assert solve(normal(2, 5)).tolist() == pytest.approx([0.5, 0.5], abs=1e-8)


def test_orthogonal_updates_have_a_closed_form() -> None:
    """p_m = (1 - (M - 2) / (a_m sum 1 / a)) / 2 with a_m the squared lengths, where that is not negative."""
    for a in ([1.0, 2.0, 3.0], [2.0, 2.5, 3.0, 2.2]):
        lengths = torch.tensor(a, dtype=torch.float64)
        harmonic = (1 / lengths).sum()
        expected = (1 - (len(a) - 2) / (lengths * harmonic)) / 2
        assert bool((expected > 0).all())
        assert solve(torch.diag(lengths.sqrt())).tolist() == pytest.approx(expected.tolist(), abs=1e-7)
    assert solve(torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).sqrt())).tolist() == pytest.approx(
        [5 / 22, 4 / 11, 9 / 22], abs=1e-7
    )


def test_many_clients_with_one_short_update() -> None:
    """Orthogonal, M = 20: a client a fifth below the harmonic mean gets nothing."""
    lengths = torch.ones(20, dtype=torch.float64)
    lengths[0] = 0.8
    p = solve(torch.diag(lengths.sqrt()))
    assert float(p[0]) == 0
    assert p[1:].tolist() == pytest.approx([1 / 19] * 19, abs=1e-7)


def test_equal_models_leave_the_sample_weights() -> None:
    p0 = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    assert torch.equal(solve(torch.ones(3, 4, dtype=torch.float64), p0), p0)
    assert torch.equal(solve(torch.ones(1, 4, dtype=torch.float64), torch.ones(1)), torch.ones(1))


def test_twins_share_by_their_samples() -> None:
    """Clients 0 and 1 sent the same model: what they have together is fixed, the split is nearest to p0."""
    models = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    p = solve(models, torch.tensor([0.4, 0.2, 0.4], dtype=torch.float64))
    # any p with p_2 = 1/2 has all distances 1; the nearest to (0.4, 0.2, 0.4) takes 0.05 from each twin
    assert p.tolist() == pytest.approx([0.35, 0.15, 0.5], abs=1e-6)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-6, 1.0, 1e5]))
@settings(max_examples=20)
def test_neither_the_origin_nor_the_unit_matters(seed: int, scale: float) -> None:
    models = normal(4, 6, seed=seed)
    assert torch.allclose(solve(scale * (models + 3)), solve(models), rtol=0, atol=1e-6)


def test_the_rule_solves_on_masked_updates_and_blends() -> None:
    server = Server("fphl(tau=0.6)", normal(5), [1, 2, 3])
    rule = FAELExact(beta=0.25)
    server = Server((*server.rules, rule), normal(5), [1, 2, 3])
    p = torch.tensor([1 / 6, 2 / 6, 3 / 6], dtype=torch.float64)
    for t in range(4):
        updates = normal(3, 5, seed=t)
        cohort = server.round(updates)
        best = solve(updates * cohort.mask.dense(), torch.tensor([1 / 6, 2 / 6, 3 / 6], dtype=torch.float64))
        p = 0.75 * p + 0.25 * best
        assert torch.allclose(cohort.weights, p, rtol=0, atol=1e-7)
        assert torch.allclose(server.state[1]["p"], p, rtol=0, atol=1e-7)
    assert not bool(cohort.mask.dense().all())


def test_absent_clients_keep_their_weight() -> None:
    server = Server(FAELExact(beta=0.5), normal(5), [1, 2, 3, 4])
    server.round(normal(2, 5), [1, 3])
    p = server.state[0]["p"]
    assert p[[0, 2]].tolist() == pytest.approx([0.1, 0.3])
    assert float(p.sum()) == pytest.approx(1)
    assert p[[1, 3]].tolist() == pytest.approx([0.6 * (0.5 * 1 / 3 + 0.25), 0.6 * (0.5 * 2 / 3 + 0.25)], abs=1e-7)


def test_beta_is_above_zero() -> None:
    with pytest.raises(ValueError, match=r"FAELExact: beta must be in \(0, 1\]; found 0\."):
        FAELExact(beta=0)
