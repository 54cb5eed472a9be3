"""FedFB: weights of cells that move between groups in proportion to the gaps between their losses."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from equipoise.core import cells
from equipoise.core.rule import CatalogueEntry, Cohort, Presets, Setup, State
from equipoise.methods.fairbatch import gaps, shifted
from equipoise.system.ranges import choice, log_uniform, number


def disparity(n: Tensor, loss: Tensor, times: int = 1) -> Tensor:
    """How much more often each group [A] is taken for positive than the first, by the losses ``loss`` [2, A] of ``n`` samples; 0 if one is empty.

    With the 0-1 loss it is the difference of their rates of positive predictions, if its constant counts once; ``times`` is how often it does.
    """
    n_a = n.sum(0)
    level = (loss[0] - loss[1] - times * n[0]) / n_a.clamp(min=1)
    return torch.where((n_a > 0) & (n_a[0] > 0), level - level[0], 0.0)


def released(w: Tensor, n: Tensor, step: Tensor) -> Tensor:
    """Weights [2, A] of the authors' code, which has the first group's limits for all."""
    share = n.sum(0) / n.sum().clamp(min=1)
    first = (w[0] * share + step).clamp(min=0).minimum(2 * share[0])
    return torch.where(n > 0, torch.stack([first, 2 * share[0] - first]) / share, w)


@dataclass(frozen=True)
class FedFB(cells.WeighingRule):
    r"""Move shares of the samples to the groups with the larger losses, by steps of one length.

    .. math:: q_{y,1} \gets \Big[ q_{y,1} + \alpha \frac{d_y}{\lVert d \rVert_2} \Big]_0^{P(y)}, \quad q_{y,0} = P(y) - q_{y,1}, \quad
        w_{y,a} = q_{y,a} / P(y, a), \qquad d_y = \bar\ell_{y,1} - \bar\ell_{y,0}

    with mean losses of the cells, and first :math:`q_{y,a} = P(y, a)`; equal opportunity has only the positive class. For
    demographic parity shares move inside a group, for any number of groups:

    .. math:: q_{0,a} \gets \Big[ q_{0,a} + \alpha \frac{g_a}{\lVert g \rVert_2} \Big]_0^{P(a)}, \quad q_{1,a} = P(a) - q_{0,a}, \quad
        g = \Big(-\sum_a f_a, f_1, f_2, \dots\Big)

    with :math:`f_a = h_a - h_0`, :math:`h_a = (L_{0,a} - L_{1,a} - n_{0,a}) / n_a` of sums of losses L. Zeng, Chen, Lee 2021 (arXiv 2110.15545), by
    its authors' code for demographic parity.

    Parameters
    ----------
    metric : ``"eo"``, equal opportunity; ``"eodds"``, equalised odds; ``"dp"``, demographic parity.
    alpha : length of the step, in [0, 1]; 0 is FedAvg.
    attribute : the sensitive attribute whose values are the groups: two, except for ``"dp"``; several joined by ``*``; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.
    form : ``"declearn"`` and ``"released"`` are what declearn and the authors' code compute, not recommended: see the presets.

    Server state: ``w`` [2, A], and ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each cell, and ``loss`` [R, A], the sum of their losses under the received model.
    Server sees: sums of updates and of the reports.
    Traffic: 2 A numbers down, 4 A up. One more pass over the local data.
    Presets: ``declearn`` compares sums of losses, which are larger for the larger group, begins with exchanged shares for ``"eo"``, and moves both
    groups the same way for ``"dp"``. ``released``, for ``"dp"``, takes steps of alpha f over the square root of the round, with a constant of f
    once a client, and limits that depend on which group is first.
    Differs: the authors' result is another one if the groups exchange their places; with more than two groups ours depends on the first, too. Updates are averaged
    by samples, which the authors' code intends. Their parity between clients is left out: it depends on which client is first, and ``afl``
    does the same. Counts are of the clients present.
    """

    reports = "samples of each class and group, and the sums of their losses"
    ranges = cells.reported("loss")
    binary = True
    metric: str = choice("eo", "eodds", "dp")
    alpha: float = number(0.005, low=0, high=1, search=log_uniform(5e-4, 0.05))
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()
    form: str = choice("means", "declearn", "released")

    def server_state(self, setup: Setup) -> State:
        return cells.server_state(self, setup) if self.metric == "dp" else cells.two_groups(self, setup)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        w, sums, declearn = state["w"], cells.total(cohort), self.form == "declearn"
        n, loss = sums["n"], sums["loss"]
        if self.metric == "dp":
            f = disparity(n, loss, len(cohort.ids) if self.form == "released" else 1)
            g = torch.cat([-f.sum(0, keepdim=True), -f[1:] if declearn else f[1:]])
            if self.form == "released":
                return {**state, "w": released(w, n, self.alpha / math.sqrt(cohort.t + 1) * g)}, cohort
            return {**state, "w": shifted(w.T, n.T, -self.alpha * normalize(g, dim=0)).T}, cohort
        if declearn and self.metric == "eo" and cohort.t == 0:
            w = torch.stack([w[0], torch.where(n > 0, n.flip(1) / n, 1.0)[1]])
        d = gaps(n.sign() if declearn else n, loss)
        d = d * d.new_tensor([0, 1]) if self.metric == "eo" else d
        return {**state, "w": shifted(w, n, self.alpha * normalize(d, dim=0))}, cohort


PRESETS: Presets = {"declearn": {"form": "declearn"}, "released": {"metric": "dp", "form": "released", "alpha": 0.3}}
CATALOGUE = CatalogueEntry(
    (FedFB,), "weights that move to the groups with the larger losses", "Zeng et al. 2021", PRESETS
)
