"""FedLF: for every tensor a step that no client's update opposes, and that makes the losses more equal."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.maths import gram, min_on_simplex, put, take
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Setup, State
from equipoise.methods.fedmdfg import ROUNDING, pull, stretch


def lag(last: Tensor, M: int) -> int:
    """How many rounds an absent client counts for, by the ``last`` rounds [N] of all; none if no more than M were ever seen."""
    participants = int((last >= 0).sum())
    return participants // M if participants > M else 0


@dataclass(frozen=True)
class FedLF(LossRule):
    r"""Descend, in every tensor, along the shortest combination of the updates and of a direction that makes the losses equal.

    .. math:: \theta^{t+1} = \theta^t + \Big\lVert \tfrac{1}{M} \sum_m \Delta_m \Big\rVert \frac{d}{\lVert d \rVert}, \qquad
        d_l = \sum_i \lambda_{l,i} q_{l,i}, \quad \lambda_l = \operatorname{argmin}_\lambda \Big\lVert \sum_i \lambda_i q_{l,i} \Big\rVert^2

    over the simplex, for every tensor l. The :math:`q_{l,i}` are the present clients' parts of their updates, their fair combination
    :math:`\sum_m h_m q_{l,m}`, and the last updates of absent clients, all scaled to the mean length of the present ones.
    :math:`h \propto (p \cdot \hat F) \hat F - p` with :math:`\hat F` the losses and p = (1, ..., 1), both of length one. A client
    that is absent counts for as many rounds as cohorts of this size have all clients that were ever seen.
    Pan, Li, Yu, Wang, Wang, Tang, Zhao, AAAI 2024, Equations 5-8 and Algorithm 1.

    Server state: ``last`` [N, P], updates; ``round`` [N], the last round of each (-1: never).
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: inner products of updates, from earlier rounds too.
    Traffic: one number up. One more pass over the local data.
    Differs: a layer is a tensor, and updates are scaled before they are combined fairly, as in the authors' code. A tensor without common
    descent stands still, as there; the paper joins it with the next layer. This often concerns tensors with fewer entries than clients,
    such as biases. Equal losses have no fair direction, a client without an update of a tensor is left out of it, and combinations
    that are zero up to rounding are no step.
    """

    owns = frozenset({"weights", "mask", "direction"})

    def server_state(self, setup: Setup) -> State:
        never = torch.full((setup.n_clients,), -1, dtype=torch.int64, device=setup.initial.device)
        return {"last": setup.per_client(torch.zeros_like(setup.theta)), "round": never}

    def _absent(self, state: State, cohort: Cohort) -> Tensor:
        """Absent clients whose last updates count."""
        last = state["round"]
        recent = (last >= 0) & (cohort.t - last <= lag(last, len(cohort.ids)))
        return recent.index_fill(0, cohort.ids, False).nonzero().flatten()

    def _rows(self, K: Tensor, h: Tensor) -> Tensor:
        """The combinations q [R, M + A] of updates with inner products ``K`` [M + A, M + A] and weights ``h`` [M] of the fair one."""
        M, length = len(h), K.diagonal().clamp(min=0).sqrt()
        live = length > 0
        mu = length[:M].sum() / live[:M].sum().clamp(min=1)
        factor = torch.where(live, mu / length, 0.0)
        fair = factor * torch.cat([h, h.new_zeros(len(K) - M)])
        size = (fair @ K @ fair).clamp(min=0).sqrt()
        fair = (fair * mu / size)[None] if size > ROUNDING * h.norm() * mu else K[:0]
        return torch.cat([factor.diag()[:M][live[:M]], fair, factor.diag()[M:][live[M:]]])

    def _shortest(self, K: Tensor, h: Tensor) -> Tensor:
        """The shortest combination of the rows q in the updates [M + A]; 0 if it has no length."""
        Q = self._rows(K, h)
        products = Q @ K @ Q.T
        if not products.any():
            return torch.zeros_like(K[0])
        a = min_on_simplex(products, products[0]) @ Q
        return a * (a @ K @ a > ROUNDING**2 * products.diagonal().mean())

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        ids, M = cohort.ids, len(cohort.ids)
        rows = torch.cat([ids, self._absent(state, cohort)])
        last = put(state["last"], ids, cohort.updates)
        h = pull(cohort.reports["loss"])
        products = gram(take(last, rows), layout=cohort.layout)  # [T, M + A, M + A]
        d = torch.stack([self._shortest(K, h) for K in products])
        square = torch.einsum("ti,tij,tj->", d, products, d)
        d = d * stretch(square, products[:, :M, :M].mean((1, 2)).sum())
        state = {"last": last, "round": state["round"].index_fill(0, ids, cohort.t)}
        return state, cohort.directed(d.T, last[rows[M:]])


CATALOGUE = CatalogueEntry((FedLF,), "common descent in every tensor that makes losses equal", "Pan et al., AAAI 2024")
