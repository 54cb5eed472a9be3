"""The vector algebra against its definitions, across the borders of blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import maths
from helpers import normal, tensor

values = st.floats(-5, 5, allow_nan=False)
vectors = st.lists(values, min_size=1, max_size=8)
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 13), st.integers(0, 10**6))


def widths() -> Iterator[int]:
    """Reduce in blocks of four columns, so that small matrices have several, and as shipped."""
    original = maths.blocks
    for width in (4, maths.BLOCK):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maths, "blocks", lambda n, block=width: original(n, block))
            yield width


def matrix(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Random updates [M, G], weights [M] that sum to 1.7, some of them 0, and a mask [M, G] with empty columns."""
    M, G, seed = shape
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(M, G, generator=generator, dtype=torch.float64)
    w = torch.rand(M, generator=generator, dtype=torch.float64) * (torch.rand(M, generator=generator) < 0.8)
    mask = torch.rand(M, G, generator=generator) < 0.6
    return u, 1.7 * maths.simplex(w), mask


@given(vectors)
def test_simplex(v: list[float]) -> None:
    w = tensor(v).abs()
    got = maths.simplex(w)
    assert float(got.sum()) == pytest.approx(1)
    if float(w.sum()) > 0:
        assert torch.allclose(got * w.sum(), w)
    else:
        assert got.tolist() == pytest.approx([1 / len(v)] * len(v))


@given(
    seed=st.integers(0, 10**6), M=st.integers(1, 8), rank=st.integers(1, 8), scale=st.sampled_from([1e-12, 1.0, 1e9])
)
def test_least_square_on_the_simplex(seed: int, M: int, rank: int, scale: float) -> None:
    """On the simplex, and no corner lies downhill: the gradient there is least on the support."""
    root = normal(M, rank, seed=seed)
    P = scale * (root @ root.T + torch.diag(normal(M, seed=seed + 1).abs()))
    a = maths.min_on_simplex(P, torch.zeros(M, dtype=torch.float64))
    assert bool((a >= 0).all())
    assert float(a.sum()) == pytest.approx(1, abs=1e-12)
    downhill = P @ a - a @ P @ a
    assert float(downhill.min()) >= -1e-8 * float(P.abs().max())
    assert float((downhill * a).abs().max()) <= 1e-8 * float(P.abs().max())


def test_least_square_on_the_simplex_where_there_is_none() -> None:
    """Nothing to minimise, or nothing that could be: what was given is given back. A singular matrix has a point."""
    otherwise = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for P in ([[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [2.0, 1.0]]):
        assert maths.min_on_simplex(tensor(P), otherwise) is otherwise
    assert maths.min_on_simplex(tensor([[1.0, 1.0], [1.0, 1.0]]), otherwise).tolist() == pytest.approx([0.5, 0.5])
    assert maths.min_on_simplex(tensor([[0.0, 0.0], [0.0, 1.0]]), otherwise).tolist() == pytest.approx([1.0, 0.0])


@given(vectors)
def test_projection_is_the_nearest_point(v: list[float]) -> None:
    """On the simplex, and v - x makes no acute angle with the way to any corner: the condition for a projection."""
    x = maths.project_to_simplex(tensor(v))
    assert bool((x >= 0).all())
    assert float(x.sum()) == pytest.approx(1, abs=1e-12)
    away = tensor(v) - x
    for corner in torch.eye(len(v), dtype=torch.float64):
        assert float(away @ (corner - x)) <= 1e-10


@given(vectors)
def test_projection_of_a_point_of_the_simplex_is_itself(v: list[float]) -> None:
    w = maths.simplex(tensor(v).abs())
    assert torch.allclose(maths.project_to_simplex(w), w, rtol=0, atol=1e-12)
    assert torch.allclose(
        maths.project_to_simplex(w + 3.5), w, rtol=0, atol=1e-12
    )  # nearest is the same along (1, ..., 1)


@given(SHAPES)
def test_shares_typed_out(shape: tuple[int, int, int]) -> None:
    u, w, mask = matrix(shape)
    q = maths.shares(w, mask)
    for i in range(u.shape[1]):
        total = sum(float(w[m]) for m in range(len(u)) if mask[m, i])
        for m in range(len(u)):
            expected = float(w[m]) / total * float(w.sum()) if mask[m, i] and total > 0 else 0.0
            assert float(q[m, i]) == pytest.approx(expected, abs=1e-14)


@given(SHAPES)
def test_combine_is_the_dense_sum(shape: tuple[int, int, int]) -> None:
    u, w, mask = matrix(shape)
    everything = torch.ones_like(mask)
    for _ in widths():
        assert torch.allclose(maths.combine(u, w), (w[:, None] * u).sum(0), rtol=0, atol=1e-13)
        assert torch.allclose(maths.combine(u, w, mask), (maths.shares(w, mask) * u).sum(0), rtol=0, atol=1e-13)
        assert torch.allclose(maths.combine(u, w, everything), maths.combine(u, w), rtol=0, atol=1e-13)


@given(SHAPES)
def test_norms_and_products_are_the_dense_ones(shape: tuple[int, int, int]) -> None:
    u, _, mask = matrix(shape)
    for c in (c for _ in widths() for c in (None, mask)):
        kept = u if c is None else u * c
        assert torch.allclose(maths.square_norms(u, c), (kept * kept).sum(1), rtol=1e-13, atol=1e-13)
        assert torch.allclose(maths.gram(u, c), kept @ kept.T, rtol=1e-13, atol=1e-13)


def test_across_a_real_border() -> None:
    """More columns than one block holds, and one more: the last block has a single column."""
    G = 2 * maths.BLOCK + 1
    u = normal(3, G)
    mask = normal(3, G, seed=1) > -0.5
    w = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert torch.allclose(maths.gram(u, mask), (u * mask) @ (u * mask).T, rtol=1e-12)
    assert torch.allclose(maths.square_norms(u), u.square().sum(1), rtol=1e-12)
    assert torch.allclose(maths.combine(u, w, mask), (maths.shares(w, mask) * u).sum(0), rtol=0, atol=1e-13)


def test_blocks_cover_every_column_once() -> None:
    for n in (1, 4, 5, 11, maths.BLOCK, maths.BLOCK + 1):
        covered = torch.cat([torch.arange(n)[part] for part in maths.blocks(n)])
        assert torch.equal(covered, torch.arange(n))


def test_sums_are_in_float64() -> None:
    """A million ones and one large value: float32 would lose all the ones."""
    u = torch.ones(1, 1_000_001, dtype=torch.float32)
    u[0, 0] = 1e5
    assert float(maths.square_norms(u)) == 1e10 + 1e6
    assert float(maths.gram(u)) == 1e10 + 1e6
    assert maths.combine(u, torch.ones(1, dtype=torch.float64)).dtype == torch.float32


def test_pick_takes_rows_for_one_and_for_a_stack() -> None:
    table, index = normal(2, 4, 3), torch.tensor([[0, 3, 3], [2, 1, 0]])
    stacked = maths.pick(table, index)
    for m in range(2):
        alone = maths.pick(table[m], index[m])
        assert torch.equal(alone, table[m][index[m]])
        assert torch.equal(stacked[m], alone)


@given(n=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_class_means_typed_out(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    z, y, ok = (
        normal(2, n, 3, seed=seed),
        torch.from_numpy(generator.integers(0, 4, (2, n))),
        torch.from_numpy(generator.random((2, n)) < 0.7),
    )
    sums, counts = maths.class_sums(z, y, ok, 4)
    means = maths.class_means(sums, counts)
    for m in range(2):
        for c in range(4):
            mine = [z[m, k] for k in range(n) if y[m, k] == c and ok[m, k]]
            assert float(counts[m, c]) == len(mine)
            expected = torch.stack(mine).mean(0) if mine else torch.zeros(3, dtype=torch.float64)
            assert torch.allclose(means[m, c], expected, rtol=0, atol=1e-13)
