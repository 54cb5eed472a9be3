"""FedGFT: a penalty on the gap between two groups' probabilities, over all clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.rule import CatalogueEntry, Cohort, Out, Presets, Setup, State, Visit
from equipoise.system.ranges import choice, log_uniform, number


def soft_gap(n: Tensor, chance: Tensor) -> Tensor:
    """The mean probability of the first group minus that of the second, of counts ``n`` [2] and sums ``chance`` [2]; 0 if one is empty."""
    mean = chance / n.clamp(min=1)
    return torch.where((n > 0).all(), mean[0] - mean[1], 0.0)


def gap_of_batch(out: Out, sign: Tensor, chance: Tensor, mean: Tensor) -> Tensor:
    """The gap [...] of a batch: of ``chance`` [..., B] where ``sign`` is positive, minus where it is negative; a ``mean`` [..., 2] for an absent group."""
    means = []
    for a, mine in enumerate((sign > 0, sign < 0)):
        share = out.mean(mine.to(chance.dtype))
        means.append(torch.where(share > 0, out.mean(mine * chance) / share, mean[..., a]))
    return means[0] - means[1]


@dataclass(frozen=True)
class FedGFT(cells.WeighingRule):
    r"""Add a penalty on the gap F between the mean probabilities that the model gives to two groups of people.

    .. math:: \min_\theta L(\theta) + \tfrac{\gamma}{2} F(\theta)^2, \qquad F = \bar p_0 - \bar p_1

    The loss of a sample gains :math:`\gamma F c_a \, p_i`, where :math:`p_i` is the probability of the positive class, :math:`c_0 = 1 / P_0` and
    :math:`c_1 = - 1 / P_1` of the groups' shares of all samples. F is of the batch and the current model; of a group that the batch lacks,
    the mean is that of all clients in the round before. Wang, Payani, Lee, Kompella, TMLR 2024, by its authors' code.

    Parameters
    ----------
    metric : ``"eo"``, equal opportunity: F among the samples of the positive class; ``"dp"``, demographic parity: among all.
    gamma : strength, in [0, 1000]; 0 is FedAvg.
    gap : ``"batch"``, F as above; ``"round"``, as published: of all clients with the model of the round before, the same in every step.
    reg : ``"l2"``, the penalty above; ``"id"``, :math:`\gamma |F|`.
    attribute : the sensitive attribute, with two values, that are the groups; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``c`` [2, 2] and ``sign`` [2, 2], of samples with F known and unknown, ``mean`` [2], and ``w`` [2, 2] of 1, ``row`` [C], ``factor``
    [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each cell, and ``chance`` [R, A], the sum of their probabilities under the received model.
    Server sees: sums of updates and of the reports.
    Traffic: 14 numbers down, 8 up. One more pass over the local data.
    Presets: ``published`` has the gap of the round. ``released`` has the authors' strength, too, for Adam with a rate of 0.002. With
    ``gap="round"`` long local training overshoots: on Adult with momentum the gap swings by 40 points from round to round at gamma 1.
    Differs: F is of the batch; with ``"round"`` it is of the model of the round before. Counts are of the clients present. The authors' penalty for
    calibration is left out.
    """

    reports = "samples of each class and group, and the sums of their predicted probabilities"
    ranges = cells.reported("chance")
    binary = True
    metric: str = choice("eo", "dp")
    gamma: float = number(1.0, low=0, high=1000, search=log_uniform(0.01, 10))
    gap: str = choice("batch", "round")
    reg: str = choice("l2", "id")
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    def server_state(self, setup: Setup) -> State:
        state = cells.two_groups(self, setup)
        zeros = torch.zeros_like(state["w"])
        return {**state, "c": zeros, "sign": zeros, "mean": zeros[0]}

    def message(self, state: State, m: int) -> State:
        return {**cells.message(self, state, m), **{key: state[key] for key in ("c", "sign", "mean")}}

    def _slope(self, F: Tensor) -> Tensor:
        """The derivative of the penalty by the gap."""
        return self.gamma * (F if self.reg == "l2" else F.sign())

    def loss(self, out: Out, visit: Visit) -> Tensor:
        message, cell = visit.message, cells.cell_of(visit.message, out.y, cells.sensitive(out.s))
        chance = cells.log_chance_of_last(message, out.logits).exp()
        if self.gap == "round":
            return out.mean(cells.cell_entries(message["c"].to(chance.dtype), cell, 0.0) * chance)
        sign = cells.cell_entries(message["sign"].to(chance.dtype), cell, 0.0)
        F = gap_of_batch(out, sign, chance.detach(), message["mean"].to(chance.dtype))
        return self._slope(F) * out.mean(sign * chance)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums = cells.total(cohort)
        rows = slice(1, None) if self.metric == "eo" else slice(None)
        n, chance = (sums[key][rows].sum(0) for key in ("n", "chance"))
        sign = torch.zeros_like(state["sign"])
        sign[rows] = (n > 0).all() * n.new_tensor([1, -1]) * sums["n"].sum() / n.clamp(min=1)
        c, mean = self._slope(soft_gap(n, chance)) * sign, chance / n.clamp(min=1)
        return {**state, "c": c, "sign": sign, "mean": mean}, cohort


PRESETS: Presets = {"published": {"gap": "round"}, "released": {"gamma": 20.0, "gap": "round"}}
CATALOGUE = CatalogueEntry(
    (FedGFT,), "a penalty on the gap between two groups' probabilities", "Wang et al., TMLR 2024", PRESETS
)
