"""FedPW: weights from losses and from agreement with the sum, and a step without each client's smallest entries."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import SLACK, combine, directions, dots, simplex
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Setup, State
from equipoise.system.ranges import number, uniform

EVERY = 10  # entry of which the mean is taken
CANCELS = 1e-12  # of the sum of sizes: a smaller sum is rounding


def portions(x: Tensor) -> Tensor:
    """The columns of ``x`` [M, 2] divided by their sums; equal where a sum is zero up to rounding."""
    total = x.sum(0)
    return torch.where(total.abs() > CANCELS * x.abs().sum(0), x / total, 1 / len(x))


def dropped(u: Tensor, w: Tensor, share: Tensor, rate: float) -> tuple[Tensor, float]:
    """The step [n] of a tensor from updates ``u`` [M, n], weights ``w`` [M] and shares to drop [M]; and the factor of its rescaled entries."""
    sparse, means, n = u.clone(), [], u.shape[1]
    counts = (n * share * (1 + SLACK)).long().tolist()
    for row, ascending, count in zip(sparse, u.abs().argsort(dim=1, stable=True), counts, strict=True):
        means.append(row[ascending[:count:EVERY]].abs().double().mean())
        row[ascending[:count]] = 0
    step = combine(sparse, w)
    columns = directions(directions(sparse.double()).T)  # [n, M]
    spread = columns.std(1, correction=0).where(columns.any(1), torch.inf).float()  # rounding must not decide ties
    agreed = spread.argsort(stable=True)[: int(n * rate * (1 + SLACK))]
    lost, left = torch.stack(means).mean(), step[agreed[::EVERY]].abs().double().mean()
    factor = 1 + float(lost / left) if len(u) > 1 and lost < left else 1.0
    step[agreed] *= factor
    return step, factor


@dataclass(frozen=True)
class FedPW(LossRule):
    r"""Weigh clients by their losses and by their agreement with the sum, and let those that are better off send fewer entries.

    .. math:: P^F_m \gets \frac{P^F_m + \mu^F_m}{\sum_j (P^F_j + \mu^F_j)}, \quad \mu^F_m \gets (1 - \beta^F) \mu^F_m + \beta^F \frac{F_m}{\sum_j F_j},
        \quad \beta^F = \beta \frac{\sum_j F_j}{\sum_j F^0_j}

    and the same for :math:`v_m = \langle \Delta_m, \sum_j \Delta_j \rangle` instead of :math:`F_m`. The weights are
    :math:`w = \rho P^F + (1 - \rho) P^v`, :math:`\rho = \sigma(P^F) / (\sigma(P^F) + \sigma(P^v))`. From the second round on, in every
    tensor, client m loses the share :math:`\min(1, M \cdot \text{rate} \cdot F_m^{-1} / \sum_j F_j^{-1})` of its entries, the smallest. Of
    the weighted sum, the share ``rate`` on which clients agree most is multiplied by 1 + D / R, if D < R: the mean sizes of entries
    lost and rescaled. Guan, Huang, Guo, Yuan, Yang, Ye, NeurIPS 2025, by the authors' code.

    Parameters
    ----------
    beta : weight of the present in the momentum, in [0, 1].
    rate : mean share of the entries that clients lose, and share that is rescaled, in [0, 1].

    Server state: ``p`` and ``m`` [N, 2], for losses and agreement; ``first`` [2], their means in the first round.
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: the updates.
    Traffic: one number up. One more pass over the local data.
    Differs: the loss is that of the model received, not the mean over batches during training. Running statistics lose no entries, and
    are averaged with the weights that are positive. Clients may be absent, and keep P and mu; sums are over those present, over which P is
    scaled to one. The first of equal entries is taken. A sum that cancels gives equal portions, and without any spread rho is 1/2.
    """

    owns = frozenset({"weights", "mask", "direction"})
    beta: float = number(0.3, low=0, high=1, search=uniform(0.1, 0.5))
    rate: float = number(0.3, low=0, high=1, search=uniform(0.1, 0.5))

    def server_state(self, setup: Setup) -> State:
        zero = torch.zeros(setup.n_clients, 2, dtype=torch.float64, device=setup.initial.device)
        return {"p": zero, "m": zero, "first": zero[0]}

    def _share(self, loss: Tensor) -> Tensor:
        """Share of its entries that each client loses [M]."""
        return (len(loss) * self.rate * simplex(1 / loss)).clamp(max=1)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        ids, loss, u = cohort.ids, cohort.reports["loss"].double(), cohort.updates
        x = torch.stack([loss, dots(u, u.sum(0))], 1)
        first = x.mean(0) if cohort.t == 0 else state["first"]
        beta = self.beta * torch.where(first == 0, 1, x.mean(0) / first)
        m = (1 - beta) * state["m"][ids] + beta * portions(x)
        p = portions(state["p"][ids] + m)
        spread = p.std(0, correction=0)
        rho = spread[0] / spread.sum() if spread.sum() > 0 else 0.5
        w = rho * p[:, 0] + (1 - rho) * p[:, 1]
        moved = None
        if cohort.t > 0:
            parts = [dropped(part, w, self._share(loss), self.rate)[0] for part in u.split(cohort.layout, 1)]
            moved = cohort.stepped(torch.cat(parts))
        state = {"p": state["p"].index_copy(0, ids, p), "m": state["m"].index_copy(0, ids, m), "first": first}
        return state, replace(cohort, weights=simplex(w.clamp(min=0)), coefficients=w, moved=moved)


CATALOGUE = CatalogueEntry(
    (FedPW,), "weights by loss and agreement, fewer entries of those better off", "Guan et al., NeurIPS 2025"
)
