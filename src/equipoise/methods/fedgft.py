"""FedGFT: a penalty on the gap between two groups' probabilities, over all clients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.catalogue import CatalogueEntry
from equipoise.core.rule import Cohort, Out, Rule, Setup, State, Visit
from equipoise.system.ranges import choice, number
from equipoise.system.search import log_uniform


def soft_gap(n: Tensor, chance: Tensor) -> Tensor:
    """The mean probability of the first group minus that of the second, of counts ``n`` [2] and sums ``chance`` [2]; 0 if one is empty."""
    mean = chance / n.clamp(min=1)
    return torch.where((n > 0).all(), mean[0] - mean[1], 0.0)


@dataclass(frozen=True)
class FedGFT(Rule):
    r"""Add a penalty on the gap F between the mean probabilities that the model gives to two groups of people.

    .. math:: \min_\theta L(\theta) + \tfrac{\gamma}{2} F(\theta)^2, \qquad F = \bar p_0 - \bar p_1

    The loss of a sample gains :math:`\gamma F c_a \, p_i`, where :math:`p_i` is the probability of the positive class, :math:`c_0 = 1 / P_0` and
    :math:`c_1 = - 1 / P_1` of the groups' shares of all samples, and F is of the model of the round before. Wang, Payani, Lee, Kompella,
    TMLR 2024, by its authors' code.

    Parameters
    ----------
    metric : ``"eo"``, equal opportunity: F among the samples of the positive class; ``"dp"``, demographic parity: among all.
    gamma : strength, in [0, 1000]; 0 is FedAvg.
    reg : ``"l2"``, the penalty above; ``"id"``, :math:`\gamma |F|`.
    attribute : the sensitive attribute, with two values, that are the groups; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``c`` [2, 2], and ``w`` [2, 2] of 1, ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each cell, and ``chance`` [R, A], the sum of their probabilities under the received model.
    Server sees: sums of updates and of the reports.
    Traffic: 8 numbers down, 8 up. One more pass over the local data.
    Presets: ``released`` has the authors' strength, for Adam with a rate of 0.002. F is as old as the local training is long: with SGD at a rate of
    0.2 and one epoch a strength of 5 overshoots, and 20 destroys the model.
    Differs: F is of the model of the round before. Counts are of the clients present. The authors' penalty for calibration is left out.
    """

    needs = cells.NEEDS
    sees = "sum"
    reports = "samples of each class and group, and the sums of their predicted probabilities"
    ranges = cells.reported("chance")
    binary = True
    metric: Literal["eo", "dp"] = choice("eo", "dp")
    gamma: float = number(1.0, low=0, high=1000, search=log_uniform(0.01, 10))
    reg: Literal["l2", "id"] = choice("l2", "id")
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    finish = cells.finish
    no_report = cells.no_report

    def server_state(self, setup: Setup) -> State:
        state = cells.two_groups(self, setup)
        return {**state, "c": torch.zeros_like(state["w"])}

    def message(self, state: State, m: int) -> State:
        return {**cells.message(self, state, m), "c": state["c"]}

    def loss(self, out: Out, visit: Visit) -> Tensor:
        cell = cells.cell_of(visit.message, out.y, cells.sensitive(out.s))
        c = cells.of_cells(visit.message["c"].to(out.logits.dtype), cell, 0.0)
        return out.mean(c * cells.log_chance_of_last(visit.message, out.logits).exp())

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums = cells.total(cohort)
        rows = slice(1, None) if self.metric == "eo" else slice(None)
        n = sums["n"][rows].sum(0)
        F = soft_gap(n, sums["chance"][rows].sum(0))
        slope = self.gamma * (F if self.reg == "l2" else F.sign())
        c = torch.zeros_like(state["c"])
        c[rows] = slope * n.new_tensor([1, -1]) * sums["n"].sum() / n.clamp(min=1)
        return {**state, "c": c}, cohort


CATALOGUE = {
    "fedgft": CatalogueEntry(
        (FedGFT,),
        "a penalty on the gap between two groups' probabilities",
        "Wang et al., TMLR 2024",
        {"released": {"gamma": 20.0}},
    ),
}
