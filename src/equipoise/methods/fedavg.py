"""FedAvg: the weighted mean of the clients' models."""

from dataclasses import dataclass, replace

from equipoise.core.maths import simplex
from equipoise.core.rule import CatalogueEntry, Cohort, Presets, Rule, Setup, State, read_per_client
from equipoise.system.ranges import choice


@dataclass(frozen=True)
class FedAvg(Rule):
    r"""Average the clients' models.

    .. math:: \theta^{t+1} = \theta^t + \sum_{m \in S_t} p_m \Delta_m, \quad p_m = N_m / \sum_{j \in S_t} N_j

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, Algorithm 1.

    Parameters
    ----------
    weights : ``"samples"`` as above; ``"uniform"`` for :math:`1/|S_t|`; ``"population"`` divides by the samples of all
        clients, present or not, so that a small cohort makes a small step. Or a list with a number >= 0 for each client, in
        their order, such as ``[1, 2, 3]``: those of the clients present are scaled to sum one, and count equally if all are 0.

    Server state: ``total``, the samples of all clients; ``fixed`` [N], if weights are given.
    Differs: nothing. In a sum it adds nothing, and a rule that sets the weights replaces its own.
    """

    sees = "sum"
    weights: str | tuple[float, ...] = choice("samples", "uniform", "population", numbers=True)

    def server_state(self, setup: Setup) -> State:
        total = {"total": setup.sizes.sum()}
        if isinstance(self.weights, str):
            return total
        return {**total, "fixed": read_per_client(self.weights, setup, "FedAvg: weights")}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        if "fixed" in state:
            cohort = replace(cohort, weights=simplex(state["fixed"][cohort.ids]))
        if self.weights == "uniform":
            cohort = replace(cohort, weights=cohort.uniform)
        if self.weights == "population":
            cohort = replace(cohort, scale=cohort.scale * float(cohort.sizes.sum() / state["total"]))
        return state, cohort


PRESETS: Presets = {"uniform": {"weights": "uniform"}}
CATALOGUE = CatalogueEntry(
    (FedAvg,), "the mean of the clients' models, by samples", "McMahan et al., AISTATS 2017", PRESETS
)
