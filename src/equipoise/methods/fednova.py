"""FedNova: updates divided by how far their clients could have moved."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from equipoise.core.maths import simplex
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Rule, State, Visit
from equipoise.core.solver import Solver, proportional


@dataclass(frozen=True)
class FedNova(Rule):
    r"""Normalise every update by the distance of its client's steps, so that more steps do not mean more weight.

    .. math:: \theta^{t+1} = \theta^t + \tau_{eff} \sum_{m \in S_t} p_m \frac{\Delta_m}{\lVert a_m \rVert_1}, \qquad
        \tau_{eff} = \sum_{m \in S_t} p_m \lVert a_m \rVert_1

    with :math:`\lVert a_m \rVert_1` the distance that the steps of client m go along a constant unit gradient: the number of steps K for
    SGD, :math:`[K - \rho (1 - \rho^K)/(1 - \rho)] / (1 - \rho)` with momentum :math:`\rho`. Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020.

    Reports: ``a``, the distance of its steps.
    Server sees: ``a``.
    Traffic: one number up.
    Differs: a client that takes no step, whose update is 0, adds nothing. The learning rate, the same for all, is left in ``a``, where
    it cancels. There is no server momentum: ``fednova+fedavgm``. A proximal term (``fedprox+fednova``) is not counted in ``a``. It needs
    SGD. Running statistics of BatchNorm are averaged by samples.
    """

    owns = frozenset({"direction"})
    sees = "scalars+sum"
    reports = "the number of its steps"
    ranges = MappingProxyType({"a": Bounds(0, steps=True)})

    def check(self, solver: Solver) -> None:
        proportional(solver)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {"a": visit.travel.amax(-1)}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        a, p = cohort.reports["a"].double(), simplex(cohort.weights)
        return state, replace(cohort, coefficients=torch.where(a > 0, p * torch.sum(p * a) / a, 0))


CATALOGUE = CatalogueEntry((FedNova,), "updates normalised by local steps", "Wang et al., NeurIPS 2020")
