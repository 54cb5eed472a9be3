"""FedAvgM: averaging with momentum at the server."""

from dataclasses import dataclass, replace

import torch

from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.system.ranges import among, log_uniform, number


@dataclass(frozen=True)
class FedAvgM(Rule):
    r"""Let the steps of the server gather momentum.

    .. math:: v \gets \beta v + \Delta, \qquad \theta^{t+1} = \theta^t + \eta v, \qquad \Delta = \sum_{m \in S_t} p_m \Delta_m

    Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019, Section 4.2.

    Parameters
    ----------
    beta : momentum, in [0, 1); 0.7 to 0.99. 0 with ``eta`` 1 is FedAvg.
    eta : server learning rate, > 0.

    Server state: ``v`` [P].
    Server sees: sums of updates.
    Differs: in a sum, Delta is the step as the other rules combine it. Running statistics of BatchNorm are averaged, without momentum.
    """

    owns = frozenset({"step"})
    sees = "sum"
    beta: float = number(0.9, 0, 1, below=True, search=among(0.7, 0.9, 0.97, 0.99))
    eta: float = number(1.0, 0, above=True, search=log_uniform(0.1, 1))

    def server_state(self, setup: Setup) -> State:
        return {"v": torch.zeros_like(setup.theta)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        v = self.beta * state["v"] + cohort.step()
        return {"v": v}, replace(cohort, moved=self.eta * v)


CATALOGUE = CatalogueEntry((FedAvgM,), "momentum at the server", "Hsu, Qi, Brown, 2019")
