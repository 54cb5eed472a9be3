"""The vector algebra that rules share: simplex, class means, and reductions over the update matrix.

Reductions over the ``P`` columns of a matrix ``[M, P]`` work in blocks, so that nothing of the size of the matrix is
ever built beside it, and accumulate in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

BLOCK = 1 << 16  # columns per block: 20 clients x 65,536 float32 columns are 5 MiB, which stays in the cache


def simplex(w: Tensor) -> Tensor:
    """Scale non-negative weights ``[M]`` to sum one; all zero gives equal weights."""
    total = w.sum()
    return w / total if total > 0 else torch.full_like(w, 1 / len(w))


def project_to_simplex(v: Tensor) -> Tensor:
    r"""Nearest point of the simplex to ``v`` ``[M]``.

    .. math:: x = \max(v - \theta, 0), \quad \theta = (\sum_{i \le \rho} u_i - 1) / \rho

    with ``u`` the sorted ``v`` and ``rho`` the largest ``j`` with ``u_j > (sum_{i<=j} u_i - 1) / j``.
    Duchi, Shalev-Shwartz, Singer, Chandra, ICML 2008, Figure 1.
    """
    u = v.sort(descending=True).values
    excess = u.cumsum(0) - 1
    rank = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    rho = int((u * rank > excess).nonzero()[-1])
    return (v - excess[rho] / (rho + 1)).clamp(min=0)


def min_on_simplex(P: Tensor, otherwise: Tensor) -> Tensor:
    r"""The point of the simplex at which :math:`a^\top P a` is least, for a positive semi-definite ``P`` [M, M].

    It is the :math:`b \ge 0` of least :math:`\tfrac12 b^\top P b - \sum_m b_m`, scaled to sum one; b is found by non-negative
    least squares with a Cholesky factor of P, and solved for once more on its support. :math:`10^{-12}` of the mean of the
    diagonal is added to it, so that there is one such point. ``otherwise`` [M] is given where P is zero, or not semi-definite.
    """
    from scipy.optimize import nnls  # half a second, which every other start would pay

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


def blocks(n_columns: int, block: int = BLOCK) -> Iterator[slice]:
    """Slices that cover ``n_columns`` columns."""
    return (slice(start, min(start + block, n_columns)) for start in range(0, n_columns, block))


def shares(weights: Tensor, mask: Tensor) -> Tensor:
    r"""Weight of each client in each column when some are masked (FedHEAL, Eq. 9).

    .. math:: q_{m,i} = \frac{c_{m,i}\, p_m}{\sum_j c_{j,i}\, p_j} \sum_j p_j

    ``weights`` [M] and a boolean ``mask`` [M, G] give [M, G]; a column that every client masks gives 0, so that its
    parameter stays as it is.
    """
    kept = weights[:, None] * mask
    total = kept.sum(0)
    scale = torch.where(total != 0, weights.sum() / torch.where(total != 0, total, 1), 0)
    return kept * scale


def combine(updates: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum the rows of ``updates`` [M, P] with ``weights`` [M], rescaled per column where a ``mask`` [M, P] is given."""
    w = weights.to(updates.dtype)
    if mask is None:
        return w @ updates
    step = torch.empty_like(updates[0])
    for part in blocks(updates.shape[1]):
        step[part] = (shares(w, mask[:, part]) * updates[:, part]).sum(0)
    return step


def _doubled(rows: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Blocks of (masked) columns in float64, all in one piece of memory: asking for more each time costs the most."""
    held = torch.empty(len(rows), min(BLOCK, rows.shape[1]), dtype=torch.float64, device=rows.device)
    for part in blocks(rows.shape[1]):
        u = held[:, : part.stop - part.start].copy_(rows[:, part])
        yield u if mask is None else u.mul_(mask[:, part])


def square_norms(rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Squared length of each (masked) row of [M, P], summed in float64: [M]."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for u in _doubled(rows, mask):
        total += u.square_().sum(1)
    return total


def gram(rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Inner products of the (masked) rows of [M, P], summed in float64: [M, M]."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for u in _doubled(rows, mask):
        total.addmm_(u, u.T)
    return total


Sparsify = Literal["exact_layer", "released_layer", "paper_global"]
SLACK = 1e-12  # relative; a share that should be 1, or 3 / n, may come out of a quotient a little off


def add_largest(rows: Tensor, vector: Tensor, share: Tensor, layout: Sequence[int], form: Sparsify) -> Tensor:
    r"""Add to row m of ``rows`` [M, G] the share :math:`q_m` of ``vector`` [P] that is largest in size; P <= G.

    ``share`` is q [M] in [0, 1], ``layout`` the sizes of the tensors, ``form`` how many of their entries that is:

    - ``"exact_layer"``: of each tensor of n entries, :math:`\lceil q n \rceil`; of equal ones, those that stand first.
    - ``"released_layer"``: :math:`\min(\lceil q n \rceil, n - 1)` and all that equal the least of them. So even q = 1 leaves
      out the smallest. A tensor of one entry, for which this gives nothing, is given like the others.
    - ``"paper_global"``: :math:`\lfloor q P \rfloor` of the whole vector.

    Every tensor is sorted once for all rows.
    """
    out, start = rows.clone(), 0
    for n in (len(vector),) if form == "paper_global" else layout:
        part = vector[start : start + n]
        size, order = part.abs().sort(descending=True, stable=True)
        asked = share.double() * n
        k = (asked * (1 + SLACK)).floor() if form == "paper_global" else (asked * (1 - SLACK)).ceil()
        k = k.long().clamp(max=n)
        if form == "released_layer":
            k = k.clamp(max=max(n - 1, 1))
            tied = n - torch.searchsorted(size.flip(0), size[(k - 1).clamp(min=0)])  # entries of at least that size
            k = torch.where(k > 0, tied, 0)
        for row, taken in zip(out, k.tolist(), strict=True):
            row[start + order[:taken]] += part[order[:taken]]
        start += n
    return out
