"""FedDyn: align the stationary points of the clients with the server's."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Cohort, Presets, Rule, Setup, State, Visit
from equipoise.system.ranges import choice, log_uniform, number


@dataclass(frozen=True)
class FedDyn(Rule):
    r"""Dynamic regularisation.

    .. math:: F_m(\theta) - \langle g_m, \theta \rangle + \tfrac{\alpha}{2} \lVert \theta - \theta^t \rVert^2, \qquad
        g_m \gets g_m - \alpha \Delta_m, \qquad
        h \gets h - \tfrac{\alpha}{N} \sum_{m \in S} \Delta_m, \qquad
        \theta^{t+1} = \theta^t + \tfrac{1}{|S|} \sum_{m \in S} \Delta_m - h / \alpha

    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, Algorithm 1.

    Parameters
    ----------
    alpha : strength, > 0; 0.001 to 0.1.
    evaluate : the model to evaluate and give out: ``"cloud"``, the one broadcast, or ``"mean_active"``, the mean of the
        clients of the round.
    server : False leaves out h (plain averaging on the server).

    Client state: ``g`` [P], sum of its updates, times -alpha. Server state: ``u`` = h / alpha [P], which does not
    depend on alpha.
    Differs: the first step is up to twice FedAvg's, which is right: h already holds the first mean. The authors' code
    plots the mean of all clients' latest models; here it is the model broadcast. With a rule that sets the weights
    (``feddyn+fedheal``) h still compensates the plain mean. MarsFL's FedDyn has no effect on training (its penalty does
    not depend on the local model, and it keeps no h), so results published with it are those of FedAvg.
    """

    sees = "sum"
    reports = ""
    alpha: float = number(0.01, low=0, above=True, search=log_uniform(1e-3, 0.1))
    evaluate: str = choice("cloud", "mean_active")
    server: bool = True

    def client_state(self, setup: Setup) -> State:
        return {"g": torch.zeros_like(setup.theta)}

    def server_state(self, setup: Setup) -> State:
        return {"u": torch.zeros_like(setup.theta)}

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return self.alpha * (theta - visit.start) - visit.state["g"]

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {}, {"g": visit.state["g"] - self.alpha * (theta - visit.start)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        cohort = replace(cohort, weights=cohort.uniform)
        if not self.server:
            return state, cohort
        u = state["u"] - cohort.updates.sum(0) / cohort.n_clients
        return {"u": u}, replace(cohort, shift=-u if cohort.shift is None else cohort.shift - u)

    def publish(self, theta: Tensor, state: State) -> Tensor:
        return theta + state["u"] if self.evaluate == "mean_active" else theta


PRESETS: Presets = {"no-server-state": {"server": False}}
CATALOGUE = CatalogueEntry(
    (FedDyn,), "dynamic regularisation aligns stationary points", "Acar et al., ICLR 2021", PRESETS
)
