"""The vector algebra against its definitions, across the borders of blocks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from equipoise.core import maths
from equipoise.core.compiled import Array
from helpers import bits, in_one, normal, shares, tensor

values = st.floats(-5, 5, allow_nan=False)
vectors = st.lists(values, min_size=1, max_size=8)
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 29), st.integers(0, 10**6))


def widths() -> Iterator[int]:
    """Reduce in blocks of eight columns, in runs of one, so that small matrices have several, and as shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maths, "SHORTEST", 1)
        patch.setattr(maths, "blocks", lambda M, n: [slice(k, min(k + 8, n)) for k in range(0, max(n, 1), 8)])
        yield 8
    yield maths.BLOCK


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


def least_by_enumeration(P: Array, q: Array, low: Array, high: Array) -> float:
    """The least value over all choices of the entries that are at their lower or upper bound."""
    least = np.inf
    for held in itertools.product((-1, 0, 1), repeat=len(q)):
        free, a = np.equal(held, 0), np.where(np.less(held, 0), low, high)
        n = free.sum()
        inner = np.block([[P[free][:, free], np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
        a[free] = np.linalg.lstsq(inner, np.append(-q[free] - P[free][:, ~free] @ a[~free], 1 - a[~free].sum()))[0][:n]
        if abs(a.sum() - 1) < 1e-10 and (a >= low - 1e-12).all() and (a <= high + 1e-12).all():
            least = min(least, 0.5 * a @ P @ a + q @ a)
    return least


@given(
    seed=st.integers(0, 10**6),
    M=st.integers(1, 4),
    rank=st.integers(1, 4),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    slope=st.sampled_from([0.0, 0.1, 10.0]),
    width=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
)
def test_least_square_in_a_box(seed: int, M: int, rank: int, scale: float, slope: float, width: float) -> None:
    """Also singular matrices, equal rows, slopes that outweigh the square, and a box that is a point."""
    root = normal(M, rank, seed=seed)[torch.arange(M) // (1 + seed % 2)]
    P, q = scale * root @ root.T, scale * slope * normal(M, seed=seed + 1)
    low, high = tensor([max(1 / M - width, 0)] * M), tensor([min(1 / M + width, 1)] * M)
    a = maths.bounded(P, q, low, high)
    assert bool(((a >= low) & (a <= high)).all())
    assert float(a.sum()) == pytest.approx(1, abs=1e-12)
    of_scale_one = (P / scale).numpy(), (q / scale).numpy()  # the enumeration's own systems are accurate only there
    least = scale * least_by_enumeration(*of_scale_one, low.numpy(), high.numpy())
    assert float(0.5 * a @ P @ a + q @ a) == pytest.approx(least, abs=1e-9 * scale * (1 + slope))


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
    q = shares(w, mask)
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
        for c in (mask, bits(mask)):
            assert torch.allclose(maths.combine(u, w, c), (shares(w, mask) * u).sum(0), rtol=0, atol=1e-13)
        assert torch.allclose(maths.combine(u, w, everything), maths.combine(u, w), rtol=0, atol=1e-13)


@given(SHAPES)
def test_norms_and_products_are_the_dense_ones(shape: tuple[int, int, int]) -> None:
    u, _, mask = matrix(shape)
    before = u.clone()
    for c in (c for _ in widths() for c in (None, mask, bits(mask))):
        kept = u if c is None else u * mask
        assert torch.allclose(maths.square_norms(u, c), (kept * kept).sum(1), rtol=1e-13, atol=1e-13)
        assert torch.allclose(maths.gram(u, c), kept @ kept.T, rtol=1e-13, atol=1e-13)
    assert torch.equal(u, before)


@given(SHAPES, st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_norms_of_tensors(shape: tuple[int, int, int], layout: list[int]) -> None:
    """Their borders and those of the blocks fall together or not."""
    u, _, mask = matrix((shape[0], sum(layout), shape[2]))
    for c in (c for _ in widths() for c in (None, mask, bits(mask))):
        kept = u if c is None else u * mask
        expected = torch.stack([part.square().sum(1) for part in kept.split(layout, 1)], 1)
        assert torch.allclose(maths.square_norms(u, c, layout), expected, rtol=1e-13, atol=1e-13)


@given(SHAPES, st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_products_of_tensors(shape: tuple[int, int, int], layout: list[int]) -> None:
    u, _, mask = matrix((5 * shape[0], sum(layout), shape[2]))  # up to more rows than are multiplied at a time
    for c in (c for _ in widths() for c in (None, mask, bits(mask))):
        kept = u if c is None else u * mask
        expected = torch.stack([part @ part.T for part in kept.split(layout, 1)])
        assert torch.allclose(maths.gram(u, c, layout), expected, rtol=1e-13, atol=1e-13)


@given(SHAPES, st.sampled_from([0.0, 1e-9, 1e-3, 1.0]))
def test_distances_to_a_mean_from_products(shape: tuple[int, int, int], spread: float) -> None:
    """Also of rows that hardly differ, or not at all, whose products leave only rounding."""
    u, w, _ = matrix(shape)
    u, w = u[:1] + spread * u, maths.simplex(w)
    expected = (u - w @ u).square().sum(1)
    got = maths.square_distances_to_mean(u @ u.T, w, u)
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-24)


@given(SHAPES, st.data())
def test_bits_are_the_matrix(shape: tuple[int, int, int], data: st.DataObject) -> None:
    """Whole, and any of its columns, at whole bytes or not."""
    _, _, mask = matrix(shape)
    made = next(bits(mask) for _ in widths())
    assert made.bits.shape == (len(mask), -(-mask.shape[1] // 8))
    assert torch.equal(made.dense(), mask)
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, mask.shape[1])] * 2)))
    assert torch.equal(made.block(slice(first, last)).bool(), mask[:, first:last])


@given(SHAPES)
def test_packing_is_the_same_on_every_device(shape: tuple[int, int, int]) -> None:
    """The plain expressions, which run where NumPy cannot."""
    x = matrix(shape)[2].to(torch.uint8)
    there = maths._packed(x)
    assert torch.equal(there, maths.packed(x))
    assert torch.equal(maths._unpacked(there), maths.unpacked(there))
    assert torch.equal(maths._unpacked(there)[:, : x.shape[1]], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_at_least_and_ascending(dtype: torch.dtype) -> None:
    x = torch.tensor([[-1.0, 0.0, -0.0], [2.0, 0.5, -3.0]], dtype=dtype)
    assert maths.at_least(x, 0).tolist() == [[0, 1, 1], [1, 1, 0]]
    assert maths.at_least(x, 0, above=True).tolist() == [[0, 0, 0], [1, 1, 0]]
    assert maths.at_least(x, 0).dtype == torch.uint8
    assert maths.ascending(x.flatten()).tolist() == sorted(x.flatten().tolist())


@in_one("M", range(1, 13))
def test_exchanges_sort_whatever_there_is(M: int) -> None:
    """What sorts every column of zeros and ones sorts every column (Knuth, The Art of Computer Programming 3, 5.3.4, Theorem Z)."""
    every = (np.arange(1 << M) >> np.arange(M)[:, None] & 1).astype(np.float32)
    for cut in range((M + 1) // 2):
        assert np.array_equal(maths._exchanged(every, cut), np.sort(every, 0)[cut : M - cut])


@in_one("dtype", [torch.float32, torch.float64])
@in_one("M", [1, 2, 5, 20, maths.FEW, maths.FEW + 1])
def test_long_rows_are_sorted_as_short_ones(M: int, dtype: torch.dtype) -> None:
    x = normal(M, maths.LONG + 3).round(decimals=1).to(dtype)  # with many that are equal
    before = x.clone()
    assert torch.equal(maths.ascending(x), torch.cat([maths.ascending(part) for part in x.split(100, 1)], 1))
    assert torch.equal(x, before)


@given(SHAPES)
def test_what_is_trimmed_is_sorted_away(shape: tuple[int, int, int]) -> None:
    u, _, _ = matrix(shape)
    for _ in widths():
        for cut in range((len(u) + 1) // 2):
            expected = u.sort(0).values[cut : len(u) - cut].mean(0)
            assert torch.allclose(maths.trimmed_mean(u, cut), expected, rtol=0, atol=1e-14)
            assert torch.allclose(maths.trimmed_mean(u.float(), cut).double(), expected, rtol=0, atol=1e-6)


@given(vectors)
def test_median(v: list[float]) -> None:
    assert float(maths.median(tensor(v))) == pytest.approx(float(np.median(v)), abs=1e-14)


@given(SHAPES)
def test_distances_to_a_point(shape: tuple[int, int, int]) -> None:
    u, _, _ = matrix(shape)
    point = normal(u.shape[1], seed=shape[2] + 1)
    for _ in widths():
        assert torch.allclose(maths.square_distances_to(u, point), (u - point).square().sum(1), rtol=1e-13, atol=1e-13)


def test_across_a_real_border() -> None:
    """More columns than eight blocks hold, and one more: the last block has a single column."""
    G = 8 * (maths.BLOCK // 3 // 64) * 64 + 1
    u = normal(3, G)
    mask = normal(3, G, seed=1) > -0.5
    w = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert len(maths.blocks(3, G)) == 9
    for c in (mask, bits(mask)):
        assert torch.allclose(maths.gram(u, c), (u * mask) @ (u * mask).T, rtol=1e-12)
        assert torch.allclose(maths.square_norms(u, c), (u * mask).square().sum(1), rtol=1e-12)
        assert torch.allclose(maths.combine(u, w, c), (shares(w, mask) * u).sum(0), rtol=0, atol=1e-13)


@given(M=st.integers(1, 5000), n=st.integers(0, 10**7))
def test_blocks_cover_every_column_once(M: int, n: int) -> None:
    """In order; each begins at a whole byte of bits; and they are as few as fit in a block, but for 64 columns at least."""
    parts = maths.blocks(M, n)
    assert parts[0].start == 0
    assert parts[-1].stop == n
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert all(part.start % 64 == 0 for part in parts)
    assert all((part.stop - part.start) * M <= max(maths.BLOCK, 64 * M) for part in parts)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set the number of threads inside operations for the time of a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("masked", [False, True])
def test_the_same_bits_for_any_number_of_threads(threads: Callable[[int], None], masked: bool) -> None:
    """Float32 sums depend on their order; the order of these depends on the shape alone."""
    M, G = 6, 20 * (maths.BLOCK // 6) + 77
    u, w, mask = normal(M, G).float(), torch.rand(M), bits(normal(M, G, seed=1) > 0) if masked else None
    results = []
    for n in (1, 2, 3):
        threads(n)
        found = maths.combine(u, w, mask), maths.square_norms(u, mask), maths.gram(u, mask)
        others = () if masked else (maths.trimmed_mean(u, 2), maths.square_distances_to(u, u[0] / 2))
        results.append(found + others)
        assert torch.get_num_threads() == n
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_few_blocks_are_done_here_and_many_by_threads(threads: Callable[[int], None]) -> None:
    def who(parts: list[slice]) -> tuple[int, int]:
        time.sleep(0.01)
        return threading.get_ident(), torch.get_num_threads()

    threads(2)
    few, many = torch.empty(64, 64), torch.empty(64, 32 * maths.BLOCK // 64)
    assert set(maths.over_columns(who, few)) == {(threading.get_ident(), 1)}
    found = maths.over_columns(who, many)
    assert len(found) == len({part.start for part in maths.blocks(*many.shape)}) // maths.SHORTEST
    assert len(set(found)) == 2
    assert {n for _, n in found} == {1}
    assert threading.get_ident() not in {name for name, _ in found}
    assert torch.get_num_threads() == 2


def test_an_error_in_a_thread_is_an_error_here(threads: Callable[[int], None]) -> None:
    def fails(parts: list[slice]) -> None:
        if parts[-1].stop == many.shape[1]:
            raise ArithmeticError("the last run")

    threads(2)
    many = torch.empty(64, 32 * maths.BLOCK // 64)
    with pytest.raises(ArithmeticError, match="the last run"):
        maths.over_columns(fails, many)
    assert torch.get_num_threads() == 2


def test_sums_are_in_float64() -> None:
    """A million ones and one large value: float32 would lose all the ones."""
    u = torch.ones(1, 1_000_001, dtype=torch.float32)
    u[0, 0] = 1e5
    assert float(maths.square_norms(u)) == pytest.approx(1e10 + 1e6, rel=1e-15)
    assert float(maths.gram(u)) == 1e10 + 1e6
    assert maths.combine(u, torch.ones(1, dtype=torch.float64)).dtype == torch.float32


def test_take_and_put_leave_out_nobody() -> None:
    """Rows of some are a copy, those of all, in their order, the table itself."""
    table = normal(4, 3)
    for ids in ([0, 1, 2, 3], [2, 0], [3, 2, 1, 0], [0]):
        i = torch.tensor(ids)
        rows = maths.take(table, i)
        assert torch.equal(rows, table[i])
        assert (rows is table) == (ids == [0, 1, 2, 3])
        after = maths.put(table, i, rows + 1)
        assert torch.equal(after, table.index_copy(0, i, rows + 1))
    assert torch.equal(table, normal(4, 3))


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
