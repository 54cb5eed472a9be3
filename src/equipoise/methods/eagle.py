"""EAGLE: weigh clients by how far their loss is from what they reach alone."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from equipoise.core.maths import simplex
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Rule, Setup, State, Visit
from equipoise.system.ranges import log_uniform, number


@dataclass(frozen=True)
class EAGLE(Rule):
    r"""Penalise the variance of the clients' loss gaps :math:`r_k`, so that no client gains much less than the others.

    .. math:: \sum_k p_k F_k + \lambda \sum_k p_k (r_k - \bar r)^2, \qquad r_k = F_k - F_k^*, \qquad \bar r = \sum_k p_k r_k

    whose gradient weighs client k by :math:`p_k (1 + 2 \lambda (r_k - \bar r))`. :math:`F_k^*` is the least loss that the client has reached on
    its training data, before or after local training. Erraji, Perrot, Bellet 2026 (arXiv 2603.29818).

    Parameters
    ----------
    lam : lambda, in [0, 1000]; 0 is FedAvg. 0.01 to 10; tune it.
    alone : in round 0 a client repeats its local training this often, without the others, before :math:`F_k^*` is measured; 0 to 100.

    Client state: ``best`` [], the least loss.
    Reports: ``gap``, the loss of the model it received, less its least loss.
    Server sees: the ``gap``.
    Traffic: one number up. Two more passes over the local data; in round 0, ``alone`` more trainings.
    Differs: the constants are ours. We have a summary of the paper only: it states the variance of the gaps and that :math:`F_k^*` comes
    from local training, not the factors, nor at which side they are applied. A weight may be negative; running statistics of
    BatchNorm are averaged by the positive ones. Clients that are absent from round 0 do not train alone.
    """

    owns = frozenset({"mask", "weights", "direction"})  # a masked mean of signed weights may be divided by zero
    sees = "scalars+sum"
    reports = "the loss of its data, less the least one"
    ranges = MappingProxyType({"gap": Bounds(0)})
    lam: float = number(1.0, low=0, high=1000, search=log_uniform(0.01, 10))
    alone: int = number(5, low=0, high=100)

    def client_state(self, setup: Setup) -> State:
        return {"best": torch.full_like(setup.initial[0], torch.inf)}

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        model, loss = visit.trained, visit.oracle.loss(visit.received)
        for _ in range(self.alone if visit.t == 0 else 0):
            model = visit.oracle.solve(model)
        best = visit.state["best"].minimum(loss).minimum(visit.oracle.loss(model))
        return {"gap": loss - best}, {"best": best}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        p, gap = simplex(cohort.sizes.double()), cohort.reports["gap"].double()
        factor = p * (1 + 2 * self.lam * (gap - (p * gap).sum()))
        return state, replace(cohort, weights=simplex(factor.clamp(min=0)), coefficients=factor)


CATALOGUE = CatalogueEntry(
    (EAGLE,), "equal distance of the clients' losses from what they reach alone", "Erraji et al. 2026"
)
