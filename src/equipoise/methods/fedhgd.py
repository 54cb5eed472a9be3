"""FedDM's hierarchical gradient de-conflicting, as algebra on inner products; a form of :class:`FedGH`."""

import torch
from torch import Tensor

EPS = 1e-7  # added to squared lengths, as released


def freed(a: Tensor, b: Tensor, K: Tensor, dot: Tensor) -> Tensor:
    """What is left of ``a`` [M] once ``dot`` / |b|^2 of ``b`` [M] is taken off; both are coefficients, K [M, M] inner products."""
    return a - dot / (b @ K @ b + EPS) * b


def deconflict(K: Tensor, score: Tensor) -> Tensor:
    """Coefficients [M] of the sum of the updates, freed pair by pair from conflicts.

    While more than two vectors are left, they are ranked by ``score`` [M] (their product with the history), the best is
    paired with the worst, the second with the second worst, and so on; a pair with a negative product is projected on
    each other's normal planes, and replaced by its sum. Of the last two, the second is freed from the already freed first.
    """
    rows: list[Tensor] = list(torch.eye(len(K), dtype=K.dtype, device=K.device))
    while len(rows) > 2:
        rows.sort(key=lambda a: -float(a @ score))
        half, pairs = len(rows) // 2, []
        for a, b in zip(rows[:half], reversed(rows), strict=False):
            dot = (a @ K @ b).clamp(max=0)
            pairs.append(freed(a, b, K, dot) + freed(b, a, K, dot))
        rows = pairs + rows[half : len(rows) - half]
    if len(rows) == 1:
        return rows[0]
    a, b = rows
    dot = (a @ K @ b).clamp(max=0)
    a = freed(a, b, K, dot)
    return a + freed(b, a, K, dot)
