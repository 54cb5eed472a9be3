"""FedAvg: the weighted mean of the clients' models."""

from dataclasses import dataclass, replace
from typing import Literal

from equipoise.core.catalogue import CatalogueEntry
from equipoise.core.rule import Cohort, Rule, Setup, State
from equipoise.system.ranges import choice


@dataclass(frozen=True)
class FedAvg(Rule):
    r"""Average the clients' models.

    .. math:: \theta^{t+1} = \theta^t + \sum_{m \in S_t} p_m \Delta_m, \quad p_m = N_m / \sum_{j \in S_t} N_j

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, Algorithm 1.

    Parameters
    ----------
    weights : ``"samples"`` as above; ``"uniform"`` for :math:`1/|S_t|`; ``"population"`` divides by the samples of all
        clients, present or not, so that a small cohort makes a small step.

    Differs: nothing. In a sum it adds nothing, and a rule that sets the weights replaces its own.
    """

    sees = "sum"
    weights: Literal["samples", "uniform", "population"] = choice("samples", "uniform", "population")

    def server_state(self, setup: Setup) -> State:
        return {"total": setup.sizes.sum()}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        if self.weights == "uniform":
            cohort = replace(cohort, weights=cohort.uniform)
        if self.weights == "population":
            cohort = replace(cohort, scale=cohort.scale * float(cohort.sizes.sum() / state["total"]))
        return state, cohort


CATALOGUE = {
    "fedavg": CatalogueEntry(
        (FedAvg,),
        "the mean of the clients' models, by samples",
        "McMahan et al., AISTATS 2017",
        {"uniform": {"weights": "uniform"}},
    ),
}
