"""The vector algebra that rules share: simplex, class means, and reductions over the update matrix.

Reductions over the ``P`` columns of a matrix ``[M, P]`` work in blocks, so that no second matrix is built, and
accumulate in float64. Several threads share the blocks; the result has the same bits for any number of threads.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equipoise.core.compiled import LANES, Array, as_rows, loops
from equipoise.system import threads

BLOCK = 1 << 19  # entries of a block, 2 MiB in float32: larger ones leave the cache, smaller ones cost overhead
ON_DEVICE = 1 << 25  # the same on a GPU, where every block costs the start of some ten kernels
RUNS = 32  # at most this number of runs of blocks, each summed separately; threads take them in turn
FEW, LONG = 32, 4096  # at most so many rows, of at least so many columns, are sorted by exchanges
TILE = 8  # rows of a Gram matrix at a time on a CPU: only what is on and above the diagonal is computed
SHORTEST = 4  # least blocks of a run: fewer take less time than starting a thread
LEAST = 1e-30  # sums and powers from here to 1 / LEAST are in the range of every type; others are scaled first
CLOSE = 1e-9  # relative: shorter squared distances are not differences of squared lengths
SHORT, TALL = 1e-6, 1e15  # between them, squares and their sums are in the range of every type, with all their digits
FAR = 2.0**10  # entries beyond this are moved to 0 before they are projected: the sum of one would be lost in theirs
Result = TypeVar("Result")


def simplex(w: Tensor) -> Tensor:
    """Scale non-negative weights ``[M]`` to sum one; all zero gives equal weights, infinite ones share all, and NaN stays."""
    total = w.sum()
    if LEAST < total < 1 / LEAST or total.isnan():
        return w / total
    if not total > 0:
        return torch.full_like(w, 1 / len(w))
    largest = w.max()
    scaled = w / largest if largest.isfinite() else w.isinf().to(w.dtype)
    return scaled / scaled.sum()


def unit_of(x: Tensor, q: float) -> Tensor | float:
    """What to divide ``x`` >= 0 [M] by, so that the q-th power of the largest is in the range of numbers: 1 if it is there already."""
    largest = x.max()
    return 1.0 if LEAST < largest**q < 1 / LEAST or not largest > 0 else largest


def powers(x: Tensor, q: float) -> Tensor:
    """:math:`x^q` of ``x`` >= 0 [M], by a power of :func:`unit_of`; ones where all are zero, as where all are equal."""
    return (x / unit_of(x, q)) ** q if x.max() > 0 else torch.ones_like(x)


def directions(x: Tensor) -> Tensor:
    """Each vector of ``x`` [..., D] at length one, however long it is; of a zero one, and of its gradient, zeros."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    far = (largest > 0) & ((largest < SHORT) | (largest > TALL))
    x = x / largest.where(far, 1)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(largest == 0, 0, x / length.where(largest != 0, 1))


def cut(x: Tensor, most: float) -> Tensor:
    """The entries of ``x`` [...] within [-most, most], also where their type holds no number as large as ``most``."""
    most = min(most, torch.finfo(x.dtype).max)
    return x.clamp(-most, most)


def project_to_simplex(v: Tensor) -> Tensor:
    r"""Nearest point of the simplex to ``v`` ``[M]``.

    .. math:: x = \max(v - \theta, 0), \quad \theta = (\sum_{i \le \rho} u_i - 1) / \rho

    with ``u`` the sorted ``v`` and ``rho`` the largest ``j`` with ``u_j > (sum_{i<=j} u_i - 1) / j``.
    Duchi, Shalev-Shwartz, Singer, Chandra, ICML 2008, Figure 1.
    """
    if v.max().abs() > FAR:  # the nearest point does not change
        v = v - v.max()
    u = v.sort(descending=True).values
    excess = u.cumsum(0) - 1
    rank = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    rho = int((u * rank > excess).nonzero()[-1])
    return (v - excess[rho] / (rho + 1)).clamp(min=0)


def min_on_simplex(P: Tensor, otherwise: Tensor) -> Tensor:
    r"""The point of the simplex at which :math:`a^\top P a` is least, for a positive semi-definite ``P`` [M, M].

    It is the :math:`b \ge 0` of least :math:`\tfrac12 b^\top P b - \sum_m b_m`, scaled to sum one; b is found by non-negative
    least squares with a Cholesky factor of P, and solved for once more on its support. :math:`10^{-12}` of the mean of the
    diagonal is added to it, so that there is one such point. ``otherwise`` [M] is returned if P is zero or not semi-definite.
    """
    from scipy.optimize import nnls  # here, because its import takes half a second

    mean = float(P.trace()) / len(P)
    if not mean > 0:
        return otherwise
    Q = (P + P.T).double() / (2 * mean) + 1e-12 * torch.eye(len(P), dtype=torch.float64, device=P.device)
    factor, failed = torch.linalg.cholesky_ex(Q)
    ones = torch.ones(len(P), 1, dtype=torch.float64, device=P.device)
    if failed:
        return otherwise
    target = torch.linalg.solve_triangular(factor, ones, upper=False).flatten()
    b = torch.from_numpy(nnls(factor.T.cpu().numpy(), target.cpu().numpy(), maxiter=100 * len(P))[0]).to(P.device)
    on = b > 1e-9 * b.sum()
    a = torch.zeros_like(b)
    a[on] = torch.linalg.solve(Q[on][:, on], ones[on]).flatten().clamp(min=0)
    return simplex(a).to(otherwise)


def bounded(P: Tensor, q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    r"""The ``a`` [M] of sum one within ``low`` [M] and ``high`` [M] at which :math:`\tfrac12 a^\top P a + q^\top a` is least.

    ``P`` [M, M] is positive semi-definite; :math:`10^{-12}` of the mean of its diagonal is added to the diagonal. The entries that no
    bound holds are solved for; the first that would cross a bound is held there, and the one that gains most is let go again.
    """
    scale = float(P.trace()) / len(P) or 1.0
    Q, c, least, most = (x.double().cpu().numpy() for x in ((P + P.T) / (2 * scale), q / scale, low, high))
    Q, free = Q + 1e-12 * np.eye(len(Q)), most > least
    a = least + (most - least) * ((1 - least.sum()) / ((most - least).sum() or 1.0))
    for _ in range(100 * len(Q) if free.any() else 0):
        inner = np.block([[Q[free][:, free], np.ones((free.sum(), 1))], [np.ones(free.sum()), 0]])
        rest = 1 - a[~free].sum()
        solution = np.linalg.solve(inner, np.append(-c[free] - Q[free][:, ~free] @ a[~free], rest))
        best, level = solution[:-1], solution[-1]
        best += (rest - best.sum()) / free.sum()  # rounding may miss it where slopes are steep
        way = np.zeros_like(a)
        way[free] = best - a[free]
        room = np.where(way > 0, most - a, a - least)
        share = np.divide(room, abs(way), out=np.full_like(a, np.inf), where=abs(way) > 1e-15)
        k = share.argmin()
        a = (a + min(share[k], 1.0) * way).clip(least, most)
        if share[k] < 1 and free.sum() > 1:
            a[k], free[k] = most[k] if way[k] > 0 else least[k], False
            continue
        slope = Q @ a + c + level
        gain = np.where(free | (most == least), 0, np.where(a > least, slope, -slope))
        if gain.max() <= 1e-11 * (1 + abs(c).max()):
            break
        free[gain.argmax()] = True
    return torch.from_numpy(a).to(low)


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Rows of ``table`` ``[..., C, D]`` named by ``index`` ``[..., B]``: ``[..., B, D]``, for one client or a stack."""
    return torch.take_along_dim(table, index.unsqueeze(-1), dim=-2)


def class_sums(features: Tensor, y: Tensor, ok: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Sum the features of each class.

    ``features`` [..., n, D], labels ``y`` [..., n] and ``ok`` [..., n] (false where padded) give sums [..., C, D] and
    counts [..., C].
    """
    member = (y.unsqueeze(-1) == torch.arange(n_classes, device=y.device)) & ok.unsqueeze(-1)  # [..., n, C]
    member = member.to(features.dtype)
    return member.mT @ features, member.sum(-2)


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """Mean feature of each class [..., C, D]; zero where the class has no sample."""
    return sums / counts.clamp(min=1).unsqueeze(-1)


def blocks(n_rows: int, n_columns: int, entries: int | None = None) -> list[slice]:
    """Slices of some ``entries`` (None: :data:`BLOCK`) that cover the columns of a matrix; each begins at a whole byte of bits."""
    width = max((entries or BLOCK) // max(n_rows, 1) // 64, 1) * 64
    return [slice(start, min(start + width, n_columns)) for start in range(0, max(n_columns, 1), width)]


def over_columns(work: Callable[[list[slice]], Result], matrix: Tensor) -> list[Result]:
    """Apply ``work`` to each run of blocks of ``matrix`` [M, P]; results in the order of the columns.

    :func:`equipoise.system.threads.allowed` threads share the runs. These depend on the shape alone, so results added up
    in order have the same bits for any number of threads.
    """
    M, P = matrix.shape
    if matrix.device.type != "cpu":
        return [work(blocks(M, P, ON_DEVICE))]
    parts = blocks(M, P)
    n = max(SHORTEST, -(-len(parts) // RUNS))
    return threads.run_in_order([parts[k : k + n] for k in range(0, len(parts), n)], lambda: work, threads.allowed())


def packed(x: Tensor) -> Tensor:
    """Bytes ``x`` [M, n] of 0 or 1 as bits [M, ceil(n / 8)], the first column lowest."""
    return torch.from_numpy(np.packbits(x.numpy(), axis=1, bitorder="little")) if x.device.type == "cpu" else _packed(x)


def unpacked(x: Tensor) -> Tensor:
    """The bytes [M, 8 n] of 0 or 1 of bits ``x`` [M, n]."""
    return torch.from_numpy(np.unpackbits(x.numpy(), 1, None, "little")) if x.device.type == "cpu" else _unpacked(x)


def _packed(x: Tensor) -> Tensor:
    """The same on any device."""
    eight: Tensor = functional.pad(x, (0, -x.shape[1] % 8)).unflatten(1, (-1, 8))
    return torch.bitwise_left_shift(eight, torch.arange(8, device=x.device)).sum(-1).to(torch.uint8)


def _unpacked(x: Tensor) -> Tensor:
    """The same on any device."""
    return (x[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=x.device)).bitwise_and_(1).flatten(1)


@dataclass(frozen=True)
class Bits:
    """A boolean matrix [M, n] of which each entry takes one bit: ``bits`` [M, ceil(n / 8)] (uint8), ``width`` is n."""

    bits: Tensor
    width: int

    @staticmethod
    def empty(matrix: Tensor) -> Bits:
        """Bits of the shape of ``matrix`` [M, n], undefined until :meth:`put`."""
        return Bits(matrix.new_empty(len(matrix), -(-matrix.shape[1] // 8), dtype=torch.uint8), matrix.shape[1])

    def put(self, part: slice, block: Tensor) -> None:
        """Set the columns ``part``, one of the :func:`blocks`, to bytes of 0 or 1 [M, n], while the matrix is made."""
        self.bits[:, part.start // 8 : -(-part.stop // 8)] = packed(block)

    def block(self, part: slice) -> Tensor:
        """Any columns, as bytes of 0 or 1: [M, n]."""
        first = part.start // 8
        return unpacked(self.bits[:, first : -(-part.stop // 8)])[:, part.start - 8 * first : part.stop - 8 * first]

    def dense(self) -> Tensor:
        """The matrix as a boolean tensor [M, n]."""
        return self.block(slice(0, self.width)).bool()


Mask = Tensor | Bits


def _bytes(mask: Mask, part: slice) -> Tensor:
    """Columns of a boolean mask as bytes of 0 or 1, which are faster to convert; of another mask, as they are."""
    if isinstance(mask, Bits):
        return mask.block(part)
    return mask[:, part].view(torch.uint8) if mask.dtype == torch.bool else mask[:, part]


Block = tuple[slice, Tensor, Tensor | None]


def _masked(rows: Tensor, mask: Mask | None, parts: list[slice]) -> Iterator[Block]:
    """The place of each block, its (masked) columns, and its mask in their dtype; the next block overwrites both."""
    if mask is None:
        yield from ((part, rows[:, part], None) for part in parts)
        return
    space = rows.new_empty(2, len(rows), parts[0].stop - parts[0].start)
    for part in parts:
        c, u = space[:, :, : part.stop - part.start]
        c.copy_(_bytes(mask, part))
        yield part, torch.mul(c, rows[:, part], out=u), c


def _doubled(rows: Tensor, mask: Mask | None, parts: list[slice]) -> Iterator[tuple[slice, Tensor]]:
    """The place of each block, and its (masked) columns in float64; the next block overwrites them."""
    space = rows.new_empty(len(rows), parts[0].stop - parts[0].start, dtype=torch.float64)
    for part, u, _ in _masked(rows, mask, parts):
        yield part, space[:, : u.shape[1]].copy_(u)


def _total(sums: Sequence[Tensor]) -> Tensor:
    """Their sum, from the first to the last."""
    return reduce(torch.add, sums)


def combine(updates: Tensor, weights: Tensor, mask: Mask | None = None, origin: Tensor | None = None) -> Tensor:
    """Sum the rows of ``updates`` [M, P], less an ``origin`` [P], with ``weights`` [M]: [P]; with a ``mask`` [M, P], by their :func:`shares`."""
    w, exact = weights.to(updates.dtype), weights.detach().double()
    if len(updates) > 1 and updates.stride(0) == 0 and mask is None:  # all rows are one
        return updates[0] * w.sum()
    step = torch.empty_like(updates[0])
    entries = mask.bits if isinstance(mask, Bits) else mask if mask is not None and mask.dtype == torch.bool else None
    fast = loops(updates) if entries is not None and entries.is_contiguous() else None

    def some(parts: list[slice]) -> None:
        if fast is not None and entries is not None:
            place, marks = (parts[0].start, parts[-1].stop), entries.view(torch.uint8).numpy()
            fast.masked_mean(as_rows(updates), marks, isinstance(mask, Bits), exact.numpy(), *place, step.numpy())
        else:
            for part, u, c in _masked(updates, mask, parts):
                u = u if origin is None else u - origin[part]
                step[part] = torch.mv(u.T, w) if c is None else masked_mean(u, c, exact)

    over_columns(some, updates)
    return step


def _downwards(x: Tensor) -> Tensor:
    """Sum [n] of the rows of ``x`` [M, n], on a CPU one after the other."""
    if x.device.type != "cpu":
        return x.sum(0)
    rows = x.numpy()
    # of one column NumPy would add pairs
    return torch.from_numpy(np.add.reduce(rows, 0) if rows.shape[1] > 1 else np.add.accumulate(rows, 0)[-1])


def masked_mean(u: Tensor, c: Tensor, w: Tensor) -> Tensor:
    """Mean [n] of masked columns ``u`` [M, n] with weights ``w`` [M], scaled to those that ``c`` [M, n] keeps; in float64."""
    weight = w[:, None]
    above, below, total = map(_downwards, (u.detach() * weight, c * weight, weight))
    scale = total / below
    return (above * torch.nan_to_num_(scale, 0, 0, 0)).to(u.dtype)


def trimmed_mean(rows: Tensor, cut: int) -> Tensor:
    """Mean [P] of each column of ``rows`` [M, P] without its ``cut`` least and its ``cut`` largest entries, in float64."""
    step = torch.empty_like(rows[0])
    fast = loops(rows) if len(rows) <= FEW**2 else None

    def some(parts: list[slice]) -> None:
        if fast is not None:
            span = parts[0].start, parts[-1].stop
            fast.middle_means(as_rows(rows), exchanges(len(rows), cut), cut, *span, step.numpy())
            return
        for part in parts:
            middle = ascending(rows[:, part], cut)
            step[part] = _downwards(middle.double()) / len(middle)

    over_columns(some, rows)
    return step


def median(x: Tensor) -> Tensor:
    """The median of ``x`` [n]: of an even number, the mean of the middle two."""
    return trimmed_mean(x[:, None], (len(x) - 1) // 2)[0]


def square_sums(v: Tensor) -> Tensor:
    """Sums [M, LANES] of the columns of squares ``v`` [M, n], each of every :data:`LANES`-th column from its own on, one after the other."""
    whole = v.shape[1] // LANES * LANES
    lanes = v.new_zeros(len(v), LANES)
    if whole:
        folded = v[:, :whole].unflatten(1, (-1, LANES))
        lanes += torch.from_numpy(np.add.reduce(folded.numpy(), 1)) if v.device.type == "cpu" else folded.sum(1)
    lanes[:, : v.shape[1] - whole] += v[:, whole:]
    return lanes


def _pieces(sizes: Sequence[int], part: slice) -> Iterator[tuple[int, slice]]:
    """The tensors of ``sizes``, by number, that the columns ``part`` belong to, and which columns of them."""
    borders = np.cumsum([0, *sizes]).tolist()
    for k in range(bisect(borders, part.start) - 1, bisect_left(borders, part.stop)):
        yield k, slice(max(borders[k], part.start), min(borders[k + 1], part.stop))


def square_norms(rows: Tensor, mask: Mask | None = None, layout: Sequence[int] = ()) -> Tensor:
    """Squared length of each (masked) row of [M, P], summed in float64: [M]; with a ``layout``, of each of its T tensors: [M, T]."""
    sizes = layout or rows.shape[1:]
    fast = loops(rows) if mask is None or isinstance(mask, Bits) else None
    bits = mask.bits.numpy() if fast is not None and isinstance(mask, Bits) else None

    def some(parts: list[slice]) -> Tensor:
        lanes = torch.zeros(len(sizes), len(rows), LANES, dtype=torch.float64, device=rows.device)
        if fast is not None:
            for k, piece in (pair for part in parts for pair in _pieces(sizes, part)):
                fast.square_sums(as_rows(rows), bits, piece.start, piece.stop, lanes[k].numpy())
        else:
            for part, u in _doubled(rows.detach(), mask, parts):
                v = u.square_()
                for k, piece in _pieces(sizes, part):
                    lanes[k] += square_sums(v[:, piece.start - part.start : piece.stop - part.start])
        while lanes.shape[-1] > 1:
            lanes = lanes[..., : lanes.shape[-1] // 2] + lanes[..., lanes.shape[-1] // 2 :]
        return lanes[..., 0].T

    total = _total(over_columns(some, rows))
    return total if layout else total[:, 0]


Add = Callable[[Tensor, slice, Tensor], object]


def _accumulated(rows: Tensor, mask: Mask | None, lead: tuple[int, ...], add: Add) -> Tensor:
    """The total [*lead, M] of what ``add(total, part, block)`` adds for every block of the (masked) rows, in float64."""

    def some(parts: list[slice]) -> Tensor:
        total = torch.zeros(*lead, len(rows), dtype=torch.float64, device=rows.device)
        for part, u in _doubled(rows, mask, parts):
            add(total, part, u)
        return total

    return _total(over_columns(some, rows))


def dots(rows: Tensor, vector: Tensor) -> Tensor:
    """Inner product of each row of [M, P] with ``vector`` [P], in float64: [M]."""
    return _accumulated(rows, None, (), lambda total, part, u: total.addmv_(u, vector[part].double()))


def gram(rows: Tensor, mask: Mask | None = None, layout: Sequence[int] = ()) -> Tensor:
    """Inner products of the (masked) rows of [M, P], summed in float64: [M, M]; with a ``layout``, of each of its T tensors: [T, M, M]."""
    sizes, M = layout or rows.shape[1:], len(rows)
    fast = loops(rows) if mask is None and M <= FEW else None
    tile = TILE if rows.device.type == "cpu" else M

    def some(parts: list[slice]) -> Tensor:
        K = torch.zeros(len(sizes), M + M % 2, M + M % 2, dtype=torch.float64, device=rows.device)
        if fast is not None:
            for k, piece in _pieces(sizes, slice(parts[0].start, parts[-1].stop)):
                fast.products(as_rows(rows), piece.start, piece.stop, K[k].numpy())
            return K
        for part, u in _doubled(rows.detach(), mask, parts):
            for k, piece in _pieces(sizes, part):
                v = u[:, piece.start - part.start : piece.stop - part.start]
                for i in range(0, M, tile):
                    K[k, i : min(i + tile, M), i:M].addmm_(v[i : i + tile], v[i:].T)
        return K

    K = _total(over_columns(some, rows))[:, :M, :M].triu()
    K += K.triu(1).mT
    return K if layout else K[0]


def square_distances(rows: Tensor, weights: Tensor, mask: Mask | None = None) -> Tensor:
    """Squared distance of each (masked) row of [M, P] to the mean of all by each of several ``weights`` [K, M], in float64: [K, M]."""
    weights = weights.double()
    return _square_distances(rows, mask, len(weights), lambda part, u: (w @ u for w in weights))


def square_distances_to_mean(K: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    """Squared distance of each of ``rows`` [M, P] to their sum by ``w`` [M], from their Gram matrix ``K``: [M].

    Where rounding would be left of the difference, all are measured on the rows.
    """
    square = K.diagonal() + w @ K @ w
    apart = square - 2 * K @ w
    return apart if bool((apart >= CLOSE * square).all()) else square_distances(rows, w[None])[0]


def square_distances_to(rows: Tensor, point: Tensor) -> Tensor:
    """Squared distance of each row of [M, P] to ``point`` [P], in float64: [M]."""
    return _square_distances(rows, None, 1, lambda part, u: (point[part],))[0]


def square_distances_between(K: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Squared distances [n, n] of rows from their Gram matrix ``K``; infinite from each to itself.

    Where rounding would be left of the difference, they are measured on the rows: ``parts`` [n, P], side by side.
    """
    square = K.diagonal()
    apart = square[:, None] + square - 2 * K
    near = (apart < CLOSE * (square[:, None] + square)).fill_diagonal_(False)
    for i in near.any(1).nonzero().flatten().tolist() if parts else ():
        exact = torch.stack([square_distances_to(part, part[i]) for part in parts]).sum(0)
        apart[i] = torch.where(near[i], exact, apart[i])
    return apart.clamp(min=0).fill_diagonal_(torch.inf)


def _square_distances(
    rows: Tensor, mask: Mask | None, K: int, centres: Callable[[slice, Tensor], Iterable[Tensor]]
) -> Tensor:
    """Squared distances to K ``centres``, each given by its part at a block and the block itself: [K, M]."""

    def add(total: Tensor, part: slice, u: Tensor) -> None:
        for distances, centre in zip(total, centres(part, u), strict=True):
            distances += (u - centre).square_().sum(1)

    return _accumulated(rows, mask, (K,), add)


def at_least(x: Tensor, bound: float, *, above: bool = False) -> Tensor:
    """Where ``x`` [...] >= ``bound``, or, with ``above``, > ``bound``: as bytes of 0 or 1."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):  # NumPy is eight times as fast
        y = x.detach().numpy()
        return torch.from_numpy((y > bound if above else y >= bound).view(np.uint8))
    return (x > bound if above else x >= bound).view(torch.uint8)


def ascending(x: Tensor, cut: int = 0) -> Tensor:
    """The entries of ``x`` [n], or of each column of ``x`` [M, n], from the least to the largest, without ``cut`` at either end; none may be NaN."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):  # NumPy is four to fifteen times as fast
        y = x.detach().numpy()
        wide = y.ndim == 2 and len(y) <= FEW and y.shape[1] >= LONG
        return torch.from_numpy(_exchanged(y, cut) if wide else np.sort(y, 0)[cut : len(y) - cut])
    return x.detach().sort(0).values[cut : len(x) - cut]


def _exchanged(x: Array, cut: int = 0) -> Array:
    """The same by exchanges of whole rows, where few rows make that two to eight times as fast."""
    rows, spare = list(x.copy()), np.empty_like(x[0])
    for i, j in exchanges(len(rows), cut):
        least = np.minimum(rows[i], rows[j], out=spare)
        np.maximum(rows[i], rows[j], out=rows[j])
        rows[i], spare = least, rows[i]
    return np.stack(rows[cut : len(rows) - cut])


@cache
def exchanges(n: int, cut: int = 0) -> Array:
    """Pairs i < j [C, 2] of n places that, put in order one after the other, sort all but the ``cut`` first and last ones.

    Knuth, TAOCP 3, 5.2.2, Algorithm M, without the pairs on which no other place depends.
    """
    top, pairs = 1 << max(n - 1, 1).bit_length() - 1, []
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            d, q, r = q - p, q // 2, p
        p //= 2
    used, needed = {*range(cut, n - cut)}, []
    for pair in reversed(pairs):
        if not used.isdisjoint(pair):
            used.update(pair)
            needed.append(pair)
    return np.array(needed[::-1], int).reshape(-1, 2)


def in_memory(table: Tensor) -> bool:
    """Whether ``table`` [N, ...] is a tensor, not rows on disk that look like one."""
    return bool(torch.is_tensor(table))


def all_rows(table: Tensor, ids: Tensor) -> bool:
    """Whether ``ids`` [M] are all rows of ``table`` [N, ...] in their order, and it is in memory."""
    n = len(table)
    return in_memory(table) and len(ids) == n and torch.equal(ids, torch.arange(n, device=ids.device))


def take(table: Tensor, ids: Tensor) -> Tensor:
    """The rows ``ids`` [M] of ``table`` [N, ...], not to be changed: the table itself if they are all."""
    return table if all_rows(table, ids) else table[ids]


def put(table: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """``table`` [N, ...] with its rows ``ids`` [M] replaced by ``rows`` [M, ...]: ``rows`` itself if they are all."""
    return rows if all_rows(table, ids) else table.index_copy(0, ids, rows)


SLACK = 1e-12  # relative; for the rounding error of a share such as 1 or 3 / n


def add_largest(rows: Tensor, vector: Tensor, share: Tensor, layout: Sequence[int], form: str) -> Tensor:
    r"""Add to row m of ``rows`` [M, G] the share :math:`q_m` of ``vector`` [P] that is largest in size; P <= G.

    ``share`` is q [M] in [0, 1], ``layout`` the sizes of the tensors, ``form`` how many of their entries that is:

    - ``"exact_layer"``: of each tensor of n entries, :math:`\lceil q n \rceil`; of equal ones, the first.
    - ``"released_layer"``: :math:`\min(\lceil q n \rceil, n - 1)` and all that equal the least of them. So even q = 1 leaves
      out the smallest. A tensor of one entry, which this would always leave out, is treated as in ``"exact_layer"``.
    - ``"paper_global"``: :math:`\lfloor q P \rfloor` of the whole vector.

    Every tensor is sorted once for all rows.
    """
    out, start = rows.clone(), 0
    for n in (len(vector),) if form == "paper_global" else layout:
        part = vector[start : start + n]
        size = part.abs()
        ordered, exact = ascending(size), share.double() * n
        k = (exact * (1 + SLACK)).floor() if form == "paper_global" else (exact * (1 - SLACK)).ceil()
        k = k.long().clamp(max=max(n - 1, 1) if form == "released_layer" else n)
        least = ordered[(n - k).clamp(max=n - 1)]
        tied = n - torch.searchsorted(ordered, least) - k  # surplus entries that equal the least one
        for row, count, bound, surplus in zip(out, k.tolist(), least.tolist(), tied.tolist(), strict=True):
            if count:
                taken = at_least(size, bound)
                if surplus and form != "released_layer":
                    taken[(size == bound).nonzero().flatten()[-surplus:]] = 0
                row[start : start + n].addcmul_(part, taken.to(part.dtype))
        start += n
    return out
