"""The compiled loops give the bits of the forms beside them, whatever the shape, the dtype and where a row lies in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.core import compiled, maths
from equipoise.methods.fphl import FPHL

pytest.importorskip("numba")

SHAPES = [(1, 1), (2, 63), (3, 64), (3, 65), (4, 4096), (5, 4097), (3, 20_000), (20, 60_001)]


def drawn(M: int, n: int, dtype: torch.dtype, wide: bool) -> Tensor:
    """Normal numbers [M, n], some of them 0; with ``wide``, of rows that lie further apart."""
    draw = torch.Generator().manual_seed(M * n)
    matrix = torch.randn(M, n + 5 * wide, generator=draw, dtype=dtype)
    matrix[torch.rand(matrix.shape, generator=draw) < 0.05] = 0
    return matrix[:, 5 * wide // 2 :][:, :n]


def both(monkeypatch: pytest.MonkeyPatch, compute: Callable[[], tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """With and without the loops."""
    found = []
    for large in (0, 1 << 62):
        monkeypatch.setattr(compiled, "LARGE", large)
        found.append(compute())
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [False, True])
def test_reductions_have_the_same_bits(
    shape: tuple[int, int], dtype: torch.dtype, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    u = drawn(*shape, dtype, wide)
    kept = drawn(*shape, torch.float64, False) > -0.5
    kept[:, :: shape[1] // 2 + 1] = False  # a column that nobody keeps
    mask = maths.Bits.empty(u)
    for part in maths.blocks(*shape):
        mask.put(part, kept[:, part].to(torch.uint8))
    w = maths.simplex(torch.rand(shape[0], dtype=torch.float64))
    layout = [n for n in (shape[1] // 3, shape[1] - shape[1] // 3) if n]

    def compute() -> tuple[Tensor, ...]:
        every = [maths.square_norms(u, c, of) for c in (None, mask) for of in ((), layout)]
        return *every, maths.combine(u, w, mask)

    for fast, plain in zip(*both(monkeypatch, compute), strict=True):
        assert torch.equal(fast, plain)
    assert torch.equal(maths.square_norms(u, mask), maths.square_norms(u, kept))


@pytest.mark.parametrize("history", ["inclusive", "exclusive"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("zero", ["up", "down"])
@pytest.mark.parametrize("counts", [torch.uint8, torch.int16])
@pytest.mark.parametrize("wide", [False, True])
def test_masks_counts_and_tallies_are_the_same(
    history: str, strict: bool, zero: str, counts: torch.dtype, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    M, n = 4, 9_001
    rule = FPHL(tau=0.6, history=history, strict=strict, zero=zero)  # type: ignore[arg-type]
    u = drawn(M, n, torch.float32, wide)
    rounds = torch.tensor([7, 0, 7, 3], dtype=torch.int16) + 1
    before = (torch.rand(M, n + 3 * wide) * rounds[:, None]).to(counts)[:, 3 * wide :]
    seen = rounds if history == "inclusive" else rounds - 1

    def compute() -> tuple[Tensor, ...]:
        after = torch.empty_like(before)
        mask, tally = rule.keep(u, before, after, seen)
        return mask.dense(), tally, after

    for fast, plain in zip(*both(monkeypatch, compute), strict=True):
        assert torch.equal(fast, plain)


def test_small_matrices_and_those_on_a_device_have_none() -> None:
    assert compiled.loops(torch.empty(2, 3)) is None
    large = torch.empty(1, 1, device="meta").expand(1 << 12, 1 << 13)
    assert compiled.loops(large) is None
    assert compiled.loops(torch.empty(1, 1).expand(1 << 12, 1 << 13)) is None  # its entries are not neighbours


def test_without_numba_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    compiled._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(compiled, "LARGE", 0)
    assert compiled.loops(torch.empty(2, 3)) is None
    compiled._compiled.cache_clear()
