"""FairGrad: weights of cells that climb while a group is favoured or disfavoured."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.rule import CatalogueEntry, Cohort, Presets, Setup, State
from equipoise.system.ranges import choice, log_uniform, number


def constants(n: Tensor, metric: str) -> tuple[Tensor, Tensor]:
    """The constants C0 [R, A] and C [R, A, R, A] of the levels of unfairness ``F_k = C0_k + sum_j C_kj P(error | j)``.

    Of counts ``n`` [R, A] in float64: cells k = (y, a), j = (y', a').
    """
    R, A = n.shape
    n_y, n_a, total = n.sum(1), n.sum(0), n.sum().clamp(min=1)
    same_y, same_a = (torch.eye(size, dtype=n.dtype, device=n.device) for size in (R, A))
    same_y, same_a = same_y[:, None, :, None], same_a[None, :, None, :]
    if metric in ("eo", "eodds"):
        C = same_y * (n / n_y[:, None].clamp(min=1) - same_a)
        rows = torch.ones_like(n_y) if metric == "eodds" else (torch.arange(R, device=n.device) == R - 1).to(n.dtype)
        return torch.zeros_like(n), C * rows[:, None, None, None]
    C = n / total - same_a * n / n_a.clamp(min=1)
    if metric == "acc":
        return torch.zeros_like(n), C.expand(R, A, R, A)
    return n / n_a.clamp(min=1) - n_y[:, None] / total, C * (2 * same_y - 1)


@dataclass(frozen=True)
class FairGrad(cells.WeighingRule):
    r"""Raise the weights of disfavoured cells, and lower those of favoured ones, in proportion to how long they have been.

    .. math:: w_k = 1 + \frac1{P_k} \sum_j C_{jk} (u_j - l_j), \qquad
        u \gets [u + \eta (F - \epsilon)]_+, \quad l \gets [l - \eta (F + \epsilon)]_+

    for cells k of a class and a group with the share :math:`P_k` of the samples, where :math:`F_k = C^0_k + \sum_j C_{kj} P(\text{error} \mid j)` is
    positive for a favoured cell. For equal opportunity :math:`F_{1,a}` is the true-positive rate of group a minus that of all.
    Maheshwari, Perrot, TMLR 2023; once a round on all samples, as declearn computes it.

    Parameters
    ----------
    metric : ``"eo"``, equal opportunity of the positive class; ``"eodds"``, equalised odds; ``"acc"``, equal accuracy; ``"dp"``,
        demographic parity, for which an ``eta`` of 0.2 is usual.
    eta : step, in [0, 100]; 0 is FedAvg.
    eps : unfairness that is allowed, in [0, 1].
    clip : keep the weights >= 0. Published, and the default: a weight may be negative.
    attribute : the sensitive attribute whose values are the groups; several joined by ``*``; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``up``, ``low``, ``w`` [R, A], and ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each cell, and ``right`` [R, A], those of them that the received model predicts.
    Server sees: sums of updates and of the reports.
    Traffic: R A numbers down, 2 R A up. One more pass over the local data.
    Presets: ``declearn`` has its defaults, ``package`` halves the step of ``acc``, as the authors' package does.
    Differs: the authors step once a mini-batch, on the rates of the batch. The weights of a round follow from the model of the round
    before. Counts are of the clients present.
    """

    reports = "samples of each class and group, and how many of them are recognised"
    ranges = cells.reported("right")
    metric: str = choice("eo", "eodds", "acc", "dp")
    eta: float = number(0.05, low=0, high=100, search=log_uniform(5e-3, 0.5))
    eps: float = number(0.0, low=0, high=1)
    clip: bool = False
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    @property
    def binary(self) -> bool:
        return self.metric in ("eo", "dp")

    def server_state(self, setup: Setup) -> State:
        state = cells.server_state(self, setup)
        return {**state, "up": torch.zeros_like(state["w"]), "low": torch.zeros_like(state["w"])}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums = cells.total(cohort)
        n, error = sums["n"], (sums["n"] - sums["right"]) / sums["n"].clamp(min=1)
        start, C = constants(n, self.metric)
        level = torch.where(n > 0, start + (C * error).sum((2, 3)), 0.0)
        up = (state["up"] + self.eta * (level - self.eps)).clamp(min=0)
        low = (state["low"] - self.eta * (level + self.eps)).clamp(min=0)
        share = n / n.sum().clamp(min=1)
        w = torch.where(n > 0, 1 + (C * (up - low)[:, :, None, None]).sum((0, 1)) / share, 1.0)
        return {**state, "up": up, "low": low, "w": w.clamp(min=0) if self.clip else w}, cohort


PRESETS: Presets = {"declearn": {"eta": 0.01, "eps": 1e-6}, "package": {"metric": "acc", "eta": 0.025}}
CATALOGUE = CatalogueEntry(
    (FairGrad,), "weights that climb on the groups' disadvantage", "Maheshwari, Perrot, TMLR 2023", PRESETS
)
