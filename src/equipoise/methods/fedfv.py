"""FedFV: take the conflicts out of the updates before they are averaged."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.maths import gram, put, take
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Presets, Setup, State
from equipoise.system.ranges import among, choice, number, uniform


@dataclass(frozen=True)
class FedFV(LossRule):
    r"""Project conflicting updates on each other's normal planes, worst losses last, then keep the length of the mean.

    For clients in ascending order of loss, all but the last ``alpha`` share:
    :math:`u_m \gets u_m - \frac{\langle u_m, g_j \rangle}{\lVert g_j \rVert^2} g_j` wherever the product is negative; then the
    mean :math:`\bar g` is freed in the same way from conflicts with clients last seen :math:`\tau, \ldots, 1` rounds ago and scaled to
    :math:`\lVert \operatorname{mean} g_m \rVert`. Wang, Fan, Qi, Wen, Wang, Yu, IJCAI 2021, Algorithms 1-3.

    Everything lies in the span of the updates, so the rule is algebra on their Gram matrix.

    Parameters
    ----------
    alpha : share of clients, those with the largest losses, whose updates stay as they are, in [0, 1].
    tau : rounds to look back for absent clients, >= 0. Under full participation it has no effect.
    lags : ``"paper"`` looks back tau ... 1 rounds; ``"released"``, tau - 1 ... 0 with rounds counted from 1.

    Server state: ``last_update`` [N, P], ``last_round`` [N] (-1: never).
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: inner products of updates, from earlier rounds too.
    Traffic: one number up. One more pass over the local data.
    Differs: clients are drawn without replacement; the authors draw them in proportion to their samples, with
    replacement.
    """

    owns = frozenset({"weights", "mask", "direction"})
    alpha: float = number(0.1, low=0, high=1, search=uniform(0, 0.5))
    tau: int = number(1, low=0, search=among(0, 1, 3, 10))
    lags: str = choice("paper", "released")

    def server_state(self, setup: Setup) -> State:
        never = torch.full((setup.n_clients,), -1, dtype=torch.int64, device=setup.initial.device)
        return {"last_update": setup.per_client(torch.zeros_like(setup.theta)), "last_round": never}

    def _internal(self, K: Tensor, loss: Tensor) -> Tensor:
        """Coefficients [M, M] of each projected update in the updates, from their Gram matrix ``K`` [M, M]."""
        M = len(loss)
        order = loss.argsort(stable=True).tolist()
        unchanged = order[math.ceil((M - 1) * (1 - self.alpha) - 1e-9) :] if self.alpha > 0 else []
        a = torch.eye(M, dtype=K.dtype, device=K.device)
        for m in set(order) - set(unchanged):
            for j in order:
                if j != m and (dot := a[m] @ K[:, j]) < 0:
                    a[m, j] -= dot / K[j, j]
        return a

    def _external(self, a: Tensor, K: Tensor, lag: Tensor) -> Tensor:
        """Free the direction ``a`` from conflicts with clients last seen ``lag`` [n] rounds ago, oldest first."""
        first = 0 if self.lags == "released" else 1
        for i in range(self.tau - 1 + first, first - 1, -1):
            conflict = ((lag == i) & (K @ a < 0)).to(a.dtype)
            dot, square = a @ K @ conflict, conflict @ K @ conflict
            if dot < 0 and square > 0:
                a = a - dot / square * conflict
        return a

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        updates = put(state["last_update"], cohort.ids, cohort.updates)
        last = state["last_round"].index_fill(0, cohort.ids, cohort.t)
        recent = (last >= max(0, cohort.t - self.tau)).index_fill(0, cohort.ids, False)
        rows = torch.cat([cohort.ids, recent.nonzero().flatten()])  # those present first
        M = len(cohort.ids)
        K = gram(take(updates, rows))
        a = torch.cat([self._internal(K[:M, :M], cohort.reports["loss"]).mean(0), K.new_zeros(len(rows) - M)])
        if cohort.t + (self.lags == "released") >= self.tau:
            a = self._external(a, K, cohort.t - last[rows])
        mean = K[:M, :M].mean().clamp(min=0).sqrt()  # the length of the mean update
        length = (a @ K @ a).clamp(min=0).sqrt()
        a = a * mean / length if length > 0 else torch.zeros_like(a)
        return {"last_update": updates, "last_round": last}, cohort.directed(a, updates[rows[M:]])


PRESETS: Presets = {"released": {"lags": "released"}}
CATALOGUE = CatalogueEntry((FedFV,), "project conflicting updates on each other", "Wang et al., IJCAI 2021", PRESETS)
