"""SCAFFOLD: control variates against client drift."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Presets, Rule, Setup, State, Visit
from equipoise.core.solver import Solver, proportional
from equipoise.system.ranges import choice, number, uniform


@dataclass(frozen=True)
class Scaffold(Rule):
    r"""Correct every local gradient by the difference of the server's and the client's control variate.

    .. math:: y \gets y - \eta_l (g_i(y) - c_i + c), \qquad
        c_i^+ = c_i - c + \frac{\theta - y}{K \eta_l}, \qquad
        \theta \gets \theta + \frac{\eta}{|S|} \sum_{i \in S} \Delta y_i, \qquad
        c \gets c + \frac{1}{N} \sum_{i \in S} (c_i^+ - c_i)

    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1 (option II; option I is
    :math:`c_i^+ = \nabla F_i(\theta)`).

    Parameters
    ----------
    eta : server learning rate, > 0; 0.25 to 1.
    option : 1 or 2, the update of the control variate.
    absent : whether absent clients count in the update of ``c`` (1/N, the paper); False divides by |S|.

    Client state: ``c_i`` [P], control variate. Server state: ``c`` [P].
    Reports: ``dc`` [P], change of its control variate, a gradient of its data.
    Server sees: sums of updates and of ``dc``.
    Traffic: P more in each direction; option 1 costs one more gradient over all local data.
    Differs: with momentum the steps travel further than K eta; the control variate is divided by the distance a
    constant gradient would really travel, which is K eta without momentum. It needs SGD: Adam's steps are not
    proportional to the gradient. Clients are averaged equally unless another rule sets the weights.
    """

    sees = "sum"
    reports = "its control variate"
    ranges = MappingProxyType({"dc": Bounds(length="client")})
    eta: float = number(1.0, low=0, above=True, search=uniform(0.25, 1))
    option: int = choice(2, 1)
    absent: bool = True

    def check(self, solver: Solver) -> None:
        proportional(solver)

    def client_state(self, setup: Setup) -> State:
        return {"c_i": torch.zeros_like(setup.theta)}

    def server_state(self, setup: Setup) -> State:
        return {"c": torch.zeros_like(setup.theta)}

    def message(self, state: State, m: int) -> State:
        return state

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return visit.message["c"] - visit.state["c_i"]

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        drift = (visit.begun - theta) / visit.travel - self.correction(theta, visit)
        new = drift if self.option == 2 else visit.oracle.gradient(visit.received)
        return {"dc": new - visit.state["c_i"]}, {"c_i": new}

    def no_report(self, setup: Setup) -> State:
        return {"dc": torch.zeros_like(setup.theta)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        c = state["c"] + cohort.reports["dc"].sum(0) / (cohort.n_clients if self.absent else len(cohort.ids))
        return {"c": c}, replace(cohort, weights=cohort.uniform, scale=cohort.scale * self.eta)


PRESETS: Presets = {"marsfl": {"eta": 0.25, "absent": False}}
CATALOGUE = CatalogueEntry(
    (Scaffold,), "control variates against client drift", "Karimireddy et al., ICML 2020", PRESETS, printed="SCAFFOLD"
)
