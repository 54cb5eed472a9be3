"""FedMinMax: weights of groups of people that climb on their losses."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core import cells
from equipoise.core.maths import project_to_simplex
from equipoise.core.rule import CatalogueEntry, Cohort, Setup, State
from equipoise.system.ranges import choice, log_uniform, number


def project(v: Tensor, floor: float) -> Tensor:
    """The nearest point to ``v`` [A] of those that add up to 1 and are nowhere below ``floor``, which is less than 1 / A."""
    left = 1 - floor * len(v)
    return floor + left * project_to_simplex((v - floor) / left)


@dataclass(frozen=True)
class FedMinMax(cells.WeighingRule):
    r"""Minimise the loss of the worst mixture of groups of people, wherever they are.

    .. math:: \mu \gets \Pi(\mu + \eta\, r), \qquad w_a = \mu_a / \rho_a

    with the mean loss :math:`r_a` of group a over all clients, its share :math:`\rho_a` of the samples, and the nearest point :math:`\Pi`
    of the simplex above a floor; first :math:`\mu = \rho`. Papadaki, Martinez, Bertran, Sapiro, Rodrigues, FAccT 2022.

    Parameters
    ----------
    groups : ``"a"``, the groups of people; ``"cells"``, each class of them.
    eta : ascent rate, in [0, 1000]; 0 is FedAvg.
    floor : the least :math:`\mu_a`, in [0, 0.1]: with 0 a group may vanish from the training.
    attribute : the sensitive attribute whose values are the groups; several joined by ``*``; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``w`` [C, A], and ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each class and group, and ``loss`` [R, A], the sum of their losses under the received model.
    Server sees: sums of updates and of the reports.
    Traffic: C A numbers down, 2 C A up. One more pass over the local data.
    Differs: the paper's rate and floor are not known to us; ``"cells"`` is ours. Counts are of the clients present. It protects the
    group with the larger loss, which need not be the one with fewer positive predictions.
    """

    reports = "samples of each class and group, and the sums of their losses"
    ranges = cells.reported("loss")
    binary = False
    groups: str = choice("a", "cells")
    eta: float = number(0.1, low=0, high=1000, search=log_uniform(0.01, 1))
    floor: float = number(0.001, low=0, high=0.1)
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    def server_state(self, setup: Setup) -> State:
        state = cells.server_state(self, setup)
        A = state["w"].shape[1] if self.groups == "a" else state["w"].numel()
        if A * self.floor >= 1:
            raise ValueError(
                f"FedMinMax: floor={self.floor:g} is 1 or more for {A} groups together. Choose one below {1 / A:g}."
            )
        return state

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums, w = cells.total(cohort), state["w"]
        n, loss = (x.sum(0, keepdim=True) if self.groups == "a" else x for x in (sums["n"], sums["loss"]))
        present, share, old = n > 0, n / n.sum().clamp(min=1), w[: len(n)]
        mu = old * share
        if present.any():
            mu = mu.masked_scatter(present, project((mu + self.eta * loss / n)[present], self.floor))
        return {**state, "w": (mu / share).where(n > 0, old).expand_as(w).clone()}, cohort


CATALOGUE = CatalogueEntry(
    (FedMinMax,), "weights of groups of people that climb on their losses", "Papadaki et al., FAccT 2022"
)
