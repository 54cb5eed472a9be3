"""FedMGDA+: a step that no client's normalised update opposes, as far as weights near given ones allow."""

from dataclasses import dataclass, replace

import torch

from equipoise.core.maths import bounded, gram, simplex
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, State
from equipoise.system.ranges import choice, log_uniform, number, uniform

SHORTEST = 1e-12  # an update that is not longer has no direction


@dataclass(frozen=True)
class FedMGDA(Rule):
    r"""Normalise the updates, and take the shortest combination of them whose weights are near given ones.

    .. math:: \theta^{t+1} = \theta^t + \eta \sum_m \lambda_m \frac{\Delta_m}{\lVert \Delta_m \rVert}, \qquad
        \lambda = \operatorname{argmin}_\lambda \Big\lVert \sum_m \lambda_m \frac{\Delta_m}{\lVert \Delta_m \rVert} \Big\rVert^2
        \quad \text{with } \sum_m \lambda_m = 1, \; \lambda_m \ge 0, \; |\lambda_m - \lambda^0_m| \le \epsilon

    Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-Objective Optimization, IEEE Transactions on Network Science and
    Engineering, 2022. The problem is solved exactly, from the Gram matrix of the updates.

    Parameters
    ----------
    eps : how far a weight may be from its prior, in [0, 1]: 0 is the mean of normalised updates, 1 sets no bound.
    eta : length of the step if all updates agree, > 0. It is a learning rate: tune it.
    prior : ``"uniform"``, or ``"samples"``, in proportion to the clients' samples.

    Server sees: inner products of updates.
    Presets: ``flgo`` has the prior of the library FLGo.
    Differs: a client whose update has no length is left out, where public code divides 0 by 0. The step has at most length eta
    whatever the learning rate of the clients, so with eta = 1 it may be far longer than FedAvg's, or far shorter.
    """

    owns = frozenset({"weights", "mask", "direction"})
    eps: float = number(0.1, low=0, high=1, search=uniform(0, 1))
    eta: float = number(1.0, low=0, above=True, search=log_uniform(0.01, 3))
    prior: str = choice("uniform", "samples")

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        K = gram(cohort.updates)
        length = K.diagonal().clamp(min=0).sqrt()
        live = length > SHORTEST
        c = torch.zeros_like(length)
        if live.any():
            near = simplex((cohort.uniform if self.prior == "uniform" else cohort.sizes)[live].double())
            low, high = (near - self.eps).clamp(min=0), (near + self.eps).clamp(max=1)
            P = K[live][:, live] / torch.outer(length[live], length[live])
            c[live] = self.eta * bounded(P, torch.zeros_like(near), low, high) / length[live]
        return state, replace(cohort, weights=cohort.uniform, coefficients=c)


CATALOGUE = CatalogueEntry(
    (FedMGDA,),
    "the shortest combination of normalised updates",
    "Hu et al., IEEE TNSE 2022",
    {"flgo": {"prior": "samples"}},
    printed="FedMGDA+",
)
