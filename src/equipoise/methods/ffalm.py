"""FFALM: an augmented Lagrangian of the gap between two groups' losses."""

from dataclasses import dataclass

import torch

from equipoise.core import cells
from equipoise.core.rule import CatalogueEntry, Cohort, Setup, State
from equipoise.methods.fairbatch import gaps
from equipoise.system.ranges import choice, log_uniform, number


@dataclass(frozen=True)
class FFALM(cells.WeighingRule):
    r"""Weigh two groups of people by a multiplier that climbs on the gap between their mean losses.

    .. math:: \min_\theta \max_\lambda L(\theta) + \lambda g(\theta) + \tfrac{\beta}{2} g(\theta)^2, \qquad g = \bar\ell_0 - \bar\ell_1

    Once a round :math:`\lambda \gets \lambda + \eta g`, and the samples of the groups weigh :math:`1 + (\lambda + \beta g) / P_0` and
    :math:`1 - (\lambda + \beta g) / P_1`, with the groups' shares of all samples: the gradient of the function above. Dunda, Song 2023 (arXiv 2307.04417).

    Parameters
    ----------
    metric : ``"eo"``, the losses of the positive class; ``"loss"``, of all samples, as published.
    eta : step of the multiplier, in [0, 1000].
    beta : strength of the square, in [0, 1000]; with an ``eta`` of 0 too it is FedAvg.
    attribute : the sensitive attribute, with two values, that are the groups; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``lam``, ``w`` [2, 2], and ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each cell, and ``loss`` [R, A], the sum of their losses under the received model.
    Server sees: sums of updates and of the reports.
    Traffic: 4 numbers down, 8 up. One more pass over the local data.
    Differs: the authors' gap and multiplier are of one batch of one client, the multipliers are averaged, and eta falls while beta grows. Ours
    are of all samples of the clients present, under the model of the round before. A weight may be negative.
    """

    reports = "samples of each class and group, and the sums of their losses"
    ranges = cells.reported("loss")
    binary = True
    metric: str = choice("eo", "loss")
    eta: float = number(0.01, low=0, high=1000, search=log_uniform(1e-3, 0.1))
    beta: float = number(0.02, low=0, high=1000)
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    def server_state(self, setup: Setup) -> State:
        state = cells.two_groups(self, setup)
        return {**state, "lam": state["w"].new_zeros(())}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums = cells.total(cohort)
        rows = slice(1, None) if self.metric == "eo" else slice(None)
        n, loss = (sums[key][rows].sum(0, keepdim=True) for key in ("n", "loss"))  # [1, 2]
        gap = -gaps(n, loss)[0]
        lam = state["lam"] + self.eta * gap
        w = torch.ones_like(state["w"])
        w[rows] += (lam + self.beta * gap) * n.new_tensor([1, -1]) * sums["n"].sum() / n.clamp(min=1)
        return {**state, "lam": lam, "w": w if (n > 0).all() else state["w"]}, cohort


CATALOGUE = CatalogueEntry(
    (FFALM,), "a multiplier that climbs on the gap between two groups' losses", "Dunda, Song 2023"
)
