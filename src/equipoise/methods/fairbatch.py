"""FairBatch: weights of cells that move between two groups with the sign of a gap between their losses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, State
from equipoise.system.ranges import choice, log_uniform, number


def shifted(w: Tensor, n: Tensor, step: Tensor) -> Tensor:
    """Weights [R, 2] after the second cell of each row took ``step`` [R] of the first one's share of all samples, of weights ``w`` and counts ``n``.

    The share of a row never changes, and none falls below 0; a row with an empty cell keeps its weights.
    """
    share = n / n.sum().clamp(min=1)
    row = share.sum(1)
    second = (w[:, 1] * share[:, 1] + step).clamp(min=0).minimum(row)
    return torch.where((n > 0).all(1, keepdim=True), torch.stack([row - second, second], 1) / share, w)


def gaps(n: Tensor, sums: Tensor) -> Tensor:
    """The mean of the second group minus that of the first [R], of ``sums`` [R, 2] over ``n`` samples; 0 if one is empty."""
    mean = sums / n.clamp(min=1)
    return torch.where((n > 0).all(1), mean[:, 1] - mean[:, 0], 0.0)


@dataclass(frozen=True)
class FairBatch(cells.WeighingRule):
    r"""Move a fixed share of the samples of a class from the group with the smaller loss to that with the larger one, every round.

    .. math:: q_{y,1} \gets \Big[ q_{y,1} + \alpha \, \operatorname{sign}(\bar\ell_{y,1} - \bar\ell_{y,0}) \Big]_0^{P(y)}, \quad
        q_{y,0} = P(y) - q_{y,1}, \quad w_{y,a} = q_{y,a} / P(y, a)

    with mean losses of the cells, and first :math:`q_{y,a} = P(y, a)`. Roh, Lee, Whang, Suh, ICLR 2021, by its authors' code; over clients as in
    declearn. For demographic parity the sums are of the losses of predicting the positive class, over all samples of the group,
    and :math:`r_y = q_{y,1} / P(y)` moves by :math:`\alpha`: with the sign of the gap for the positive class, against it for the other.

    Parameters
    ----------
    metric : ``"eo"``, equal opportunity, moves the positive class; ``"eodds"``, equalised odds, and ``"dp"``, demographic parity, move the class
        with the larger gap. For ``"dp"`` an ``alpha`` of 0.02 is usual.
    alpha : step, in [0, 1]; 0 is FedAvg.
    attribute : the sensitive attribute, with two values, that are the groups; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.
    form : ``"declearn"`` is what declearn computes for ``"dp"``, not recommended: it takes the losses of the true classes for those of predicting
        the positive one, moves shares inside a group, and widens the gap. The other metrics are the same.

    Server state: ``w`` [2, 2], and ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each cell, ``loss`` [R, A], the sum of their losses under the received model; for ``"dp"``
        ``loss_as_positive`` [R, A], that of the losses of predicting the positive class.
    Server sees: sums of updates and of the reports.
    Traffic: 4 numbers down, 8 up. One more pass over the local data.
    Differs: weights of samples, instead of batches with a number of samples from each cell; the expectation is the same. Once a round on all samples,
    instead of once a batch, and with the model of the round before. Of equal gaps the positive class moves for
    ``"eodds"``, the other for ``"dp"``. Counts are of the clients present.
    """

    reports = "samples of each class and group, and the sums of their losses"
    binary = True
    metric: str = choice("eo", "eodds", "dp")
    alpha: float = number(0.005, low=0, high=1, search=log_uniform(5e-4, 0.05))
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()
    form: str = choice("authors", "declearn")

    @property
    def ranges(self) -> dict[str, Bounds]:
        return cells.reported("loss_as_positive" if (self.metric, self.form) == ("dp", "authors") else "loss")

    server_state = cells.two_groups

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums = cells.total(cohort)
        w, n, (loss,) = state["w"], sums.pop("n"), sums.values()
        dp = self.metric == "dp"
        gap = gaps(n.sum(0).expand_as(n) if dp else n, loss)
        size = gap.abs()
        last = size[1] > size[0] if dp else (size[1] >= size[0]) | (self.metric == "eo")
        step = self.alpha * gap.sign() * torch.stack([~last, last])
        if not dp:
            return {**state, "w": shifted(w, n, step)}, cohort
        step = step * step.new_tensor([-1, 1])
        if self.form == "declearn":
            return {**state, "w": shifted(w.T, n.T, step).T}, cohort
        return {**state, "w": shifted(w, n, step * n.sum(1) / n.sum().clamp(min=1))}, cohort


CATALOGUE = CatalogueEntry(
    (FairBatch,),
    "weights that move to the group with the larger loss, in fixed steps",
    "Roh et al., ICLR 2021",
    {"declearn": {"metric": "dp", "form": "declearn"}},
)
