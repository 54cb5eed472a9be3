"""The compiled loops give the bits of the forms beside them, whatever the shape, the dtype and where a row lies in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from equipoise.core import compiled, maths
from equipoise.methods.fphl import FPHL
from equipoise.system import threads
from helpers import bits, others_slow, shares

SHAPES = [(1, 1), (2, 63), (3, 64), (3, 65), (4, 4096), (5, 4097), (3, 20_000), (20, 60_001)]


def drawn(M: int, n: int, dtype: torch.dtype, wide: bool) -> Tensor:
    """Normal numbers [M, n], some of them 0; with ``wide``, of rows that lie further apart."""
    draw = torch.Generator().manual_seed(M * n)
    matrix = torch.randn(M, n + 5 * wide, generator=draw, dtype=dtype)
    matrix[torch.rand(matrix.shape, generator=draw) < 0.05] = 0
    return matrix[:, 5 * wide // 2 :][:, :n]


def several(matrix: Tensor, compute: Callable[[], tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """Without the loops, and with them in one thread and in two; in blocks so small that there are several runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maths, "BLOCK", 1 << 12)
        patch.setattr(maths, "SHORTEST", 1)
        for large, n in ((1 << 62, 1), (0, 1), (0, 2)):
            patch.setattr(compiled, "LARGE", large)
            assert (compiled.loops(matrix) is None) == (large > 0)
            with threads.allow(n):
                yield compute()


def same(matrix: Tensor, compute: Callable[[], tuple[Tensor, ...]]) -> None:
    plain, *fast = several(matrix, compute)
    for found in fast:
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


@pytest.fixture
def numba() -> None:
    pytest.importorskip("numba")


def kept_of(shape: tuple[int, int]) -> tuple[Tensor, maths.Bits]:
    """A mask with a column that nobody keeps, and its bits."""
    kept = drawn(*shape, torch.float64, False) > -0.5
    kept[:, :: shape[1] // 2 + 1] = False
    return kept, bits(kept)


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wide", others_slow([False, True], fast=(1,)))
def test_reductions_have_the_same_bits(shape: tuple[int, int], dtype: torch.dtype, wide: bool) -> None:
    u = drawn(*shape, dtype, wide)
    kept, mask = kept_of(shape)
    convex = maths.simplex(torch.rand(shape[0], dtype=torch.float64))
    signed = torch.randn(shape[0], dtype=torch.float64)  # as FairFed's coefficients may be
    layout = [n for n in (shape[1] // 3, shape[1] - shape[1] // 3) if n]

    def compute() -> tuple[Tensor, ...]:
        every = [maths.square_norms(u, c, of) for c in (None, mask) for of in ((), layout)]
        return *every, *(maths.combine(u, w, c) for w in (convex, signed, 0 * convex) for c in (mask, kept))

    same(u, compute)
    assert torch.allclose(maths.square_norms(u, mask), (u.double() * kept).square().sum(1), rtol=1e-12)
    expected = (shares(convex, kept) * u.double()).sum(0)
    assert torch.allclose(
        maths.combine(u, convex, mask).double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-12
    )


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wide", others_slow([False, True], fast=(1,)))
def test_middle_means_have_the_same_bits(shape: tuple[int, int], dtype: torch.dtype, wide: bool) -> None:
    """Of all cuts, and with many equal entries."""
    u = drawn(*shape, dtype, wide)
    cuts = {0, 1, (shape[0] - 1) // 2} if shape[0] > 2 else {0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maths, "LONG", 1)
        same(u, lambda: tuple(maths.trimmed_mean(u, cut) for cut in sorted(cuts)))


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wide", others_slow([False, True], fast=(1,)))
def test_inner_products_differ_by_the_order_of_sums(shape: tuple[int, int], wide: bool) -> None:
    """And with the loop have the same bits for any number of threads."""
    u = drawn(*shape, torch.float32, wide)
    layout = [n for n in (shape[1] // 3, shape[1] - shape[1] // 3) if n]
    plain, one, two = several(u, lambda: (maths.gram(u), maths.gram(u, layout=layout)))
    for a, b, c in zip(plain, one, two, strict=True):
        assert torch.equal(b, c)
        assert torch.equal(b, b.mT)
        assert torch.allclose(a, b, rtol=0, atol=1e-13 * float(a.abs().max()))
    assert torch.allclose(one[0], u.double() @ u.double().T, rtol=0, atol=1e-13 * float(one[0].abs().max()))


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("history", ["inclusive", "exclusive"])
@pytest.mark.parametrize("strict", others_slow([False, True], fast=(1,)))
@pytest.mark.parametrize("zero", ["up", "down"])
@pytest.mark.parametrize("counts", [torch.uint8, pytest.param(torch.int16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wide", [False, True])
def test_masks_counts_and_tallies_are_the_same(
    history: str, strict: bool, zero: str, counts: torch.dtype, wide: bool
) -> None:
    M, n = 4, 9_001
    rule = FPHL(tau=0.6, history=history, strict=strict, zero=zero)  # type: ignore[arg-type]
    u = drawn(M, n, torch.float32, wide)
    rounds = torch.tensor([7, 0, 40, 7], dtype=torch.int16) + 1  # few and many
    before = (torch.rand(M, n + 3 * wide) * rounds[:, None]).to(counts)[:, 3 * wide :]
    seen = rounds if history == "inclusive" else rounds - 1

    def compute() -> tuple[Tensor, ...]:
        after = torch.empty_like(before)
        mask, tally = rule._keep(u, before, after, seen)
        return mask.bits, tally, after

    same(u, compute)


@pytest.mark.usefixtures("numba")
def test_counts_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LARGE", 0)
    before = torch.full((2, 100), 9, dtype=torch.uint8)
    with pytest.raises(ValueError, match="more rounds than it took part in"):
        FPHL()._keep(torch.ones(2, 100), before, torch.empty_like(before), torch.tensor([3, 3], dtype=torch.int16))


def test_which_matrices_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, those on a device, of another dtype, and those whose entries are no neighbours or whose rows overlap."""
    assert compiled.loops(torch.empty(2, 3)) is None
    monkeypatch.setattr(compiled, "LARGE", 0)
    assert compiled.loops(torch.empty(4, 4, device="meta")) is None
    assert compiled.loops(torch.empty(4, 4, dtype=torch.float16)) is None
    assert compiled.loops(torch.empty(4, 4).T) is None
    assert compiled.loops(torch.empty(1, 4).expand(3, -1)) is None
    assert compiled.loops(torch.empty(12).as_strided((3, 4), (2, 1))) is None


def test_without_numba_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled._compiled.cache_clear()
    try:
        monkeypatch.setitem(sys.modules, "numba", None)
        monkeypatch.setattr(compiled, "LARGE", 0)
        assert compiled.loops(torch.empty(2, 3)) is None
    finally:
        compiled._compiled.cache_clear()


def test_lengths_of_updates_that_require_gradients_are_numbers() -> None:
    u = torch.ones(2, 3, requires_grad=True)
    assert maths.square_norms(u).tolist() == [3, 3]
