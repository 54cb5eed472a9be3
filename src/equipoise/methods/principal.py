"""FedLD's aggregation: every client moves along the principal axes of all updates, as far as its own update is long."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import gram
from equipoise.core.rule import CatalogueEntry, Cohort, Presets, Rule, Setup, State
from equipoise.methods.margin import PAPER
from equipoise.system.ranges import choice, number, uniform

TINY = 1e-12  # relative: shorter axes, and products nearer to a right angle, are rounding
CLOSE = 1e-6  # relative: nearer than this to a tie, another machine may take another side


def axes(K: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [..., M] of K / M for Gram matrices ``K`` [..., M, M], largest first, and unit eigenvectors [..., M, M] as columns."""
    lam, e = torch.linalg.eigh(K / K.shape[-1])
    return lam.flip(-1).clamp(min=0), e.flip(-1)


def beside_mean(K: Tensor, C: Tensor, p: Tensor) -> dict[str, float | None]:
    """Length of the step with the coefficients ``C`` [T, M], relative to that of the mean with ``p`` [M], and the cosine between them.

    ``K`` [T, M, M] are the Gram matrices of the T parts of the updates; None where a length is 0.
    """
    step, both, mean = (C * (K @ C[..., None])[..., 0]).sum(), (C * (K @ p)).sum(), (p * (K @ p)).sum()
    length = float((step / mean).sqrt()) if mean > 0 < step else None
    return {"step_length": length, "step_cosine": float(both / (step * mean).sqrt()) if length else None}


@dataclass(frozen=True)
class Principal(Rule):
    r"""Replace every update by a sum of the principal axes of all updates, and keep its length.

    .. math:: \bar\Delta = \sum_m p_m \lVert \Delta_m \rVert \sum_{l \le L} \omega_l \operatorname{sign}\langle \Delta_m, v_l \rangle
        \frac{v_l}{\lVert v_l \rVert}, \qquad v_l = \sum_m e_{l,m} \Delta_m, \quad L = \max(1, \lfloor \kappa M \rfloor)

    with :math:`(\lambda_l, e_l)` the eigenpairs of :math:`K / M`, largest first, and K the Gram matrix of the updates. Zeng, Guo,
    Wang, Wang, Zhou, Qu, MICCAI 2024, Eqs. 4-7. Axes lie in the span of the updates, so K and M coefficients are enough.

    Parameters
    ----------
    keep : kappa, the share of axes kept, in (0, 1]. Paper: 0.8.
    eigen : omega. ``"l2_kept"``: :math:`\lambda_l / \lVert (\lambda_1, \ldots, \lambda_L) \rVert`, which keeps the length; ``"literal"``: 1, which
        makes updates :math:`\sqrt L` times as long; ``"l1_all"``: :math:`\lambda_l / \sum_j \lambda_j`, released, which shortens them.
    scope : axes of every ``"tensor"`` by itself, as released (a tensor of one element is averaged), or of the whole ``"model"``. A
        client counts by length and signs alone: over the whole model a few large tensors can turn the step against the mean.
    weights : p is by ``"samples"`` (or the weights of another rule), or ``"uniform"``.
    warm_start : take the plain mean until one that is not zero has been seen (of this tensor), as released.

    Server state: with ``warm_start``, ``seen`` [1], or [T] for tensors.
    Server sees: inner products of updates.
    Notes: ``principal_axes`` is L, ``principal_tie`` whether the result jumps nearby (eigenvalues or signs near a tie),
    ``eigenvalues`` [M] are summed over the tensors, ``step_length`` is relative to the mean with p, ``step_cosine`` the cosine to it.
    Differs: Eq. 7 prints omega as 1; ``"l2_kept"`` follows its text. A client that does not move adds nothing
    and an axis below :math:`10^{-12} \lambda_1` is left out, where released code divides by zero. One client's update
    passes unchanged. Eq. 6 turns axes, which changes nothing.
    """

    keep: float = number(0.8, low=0, high=1, above=True, search=uniform(0.5, 1))
    eigen: str = choice("l2_kept", "literal", "l1_all")
    scope: str = choice("tensor", "model")
    weights: str = choice("samples", "uniform")
    warm_start: bool = False

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"mask", "direction"} | ({"weights"} if self.weights == "uniform" else set()))

    def server_state(self, setup: Setup) -> State:
        parts = len(setup.layout) if self.scope == "tensor" else 1
        return {"seen": setup.initial.new_zeros(parts, dtype=torch.bool)} if self.warm_start else {}

    def _kept(self, M: int) -> int:
        """Number L of axes of M updates."""
        return max(1, int(self.keep * M + 1e-9))

    def _coefficients(self, K: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """Coefficients [M] of the updates with Gram matrix ``K`` [M, M], and whether the result jumps nearby."""
        if not K.trace() > 0:
            return p, False
        L, K = self._kept(len(p)), K / K.trace()  # neither large nor small updates leave the range of squares
        lam, e = axes(K)
        leading, norms, part = lam[:L], K.diagonal().sqrt(), e[:, :L].abs()
        live = leading > TINY * lam[0]
        total = {"l2_kept": leading.norm(), "literal": leading, "l1_all": lam.sum()}[self.eigen]
        long = (len(p) * leading).sqrt()  # lengths of the axes v_l
        signs = e[:, :L].sign() * (part * long > TINY * norms[:, None])  # [M, L]
        a = torch.where(live, leading / total / long * (p * norms @ signs), 0)
        gaps = -lam[: L + 1].diff()  # to the next axis, also of the last one kept to the first one dropped
        jumps = (gaps < CLOSE * lam[0])[live[: len(gaps)]].any() | (part[norms > 0][:, live] < CLOSE).any()
        return e[:, :L] @ a, bool(jumps)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        weights = cohort.uniform if self.weights == "uniform" else cohort.weights
        layout = cohort.layout if self.scope == "tensor" else cohort.theta.shape
        p, K = weights.cpu(), gram(cohort.updates, layout=layout).cpu()  # small matrices: a GPU is slower
        seen = state["seen"].cpu() if self.warm_start else torch.ones(len(layout), dtype=torch.bool)
        columns, ties = list[Tensor](), list[bool]()
        for n, products, begun in zip(layout, K, seen.tolist(), strict=True):
            plain = (self.scope == "tensor" and n == 1) or not begun
            c, tie = (p, False) if plain else self._coefficients(products, p)
            columns, ties = [*columns, c], [*ties, tie]
        c = torch.stack(columns, 1) if self.scope == "tensor" else columns[0]
        notes = {**cohort.notes, "principal_axes": self._kept(len(p)), "principal_tie": any(ties)}
        notes |= beside_mean(K, torch.stack(columns), p) | {"eigenvalues": axes(K)[0].sum(0).tolist()}
        state = {"seen": (seen | (p @ K @ p > 0)).to(weights.device)} if self.warm_start else state
        return state, replace(cohort, weights=weights, coefficients=c.to(weights.device), notes=notes)


WHOLE = {"scope": "model"}
RELEASED = {"eigen": "l1_all", "scope": "tensor", "weights": "uniform", "warm_start": True}
PRESETS: Presets = {"paper": WHOLE, "released": RELEASED}
CATALOGUE = CatalogueEntry((Principal,), "move along the principal axes of the updates", PAPER, PRESETS)
