"""Reweighing: weights that make the label independent of the group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Out, Presets, State, Visit
from equipoise.system.ranges import choice


def independent(n: Tensor) -> Tensor:
    """Weights [..., C, A] with which classes and groups are independent, of counts ``n`` [..., C, A]; 1 for an empty cell."""
    expected = n.sum(-1, keepdim=True) * n.sum(-2, keepdim=True) / n.sum((-2, -1), keepdim=True)
    return torch.where(n > 0, expected / n, 1.0)


@dataclass(frozen=True)
class Reweighing(cells.WeighingRule):
    r"""Weigh samples so that every group has the same share of each class.

    .. math:: w_{y,a} = \frac{n_y n_a}{n \, n_{y,a}}

    Kamiran, Calders, KAIS 2012; in federated learning Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig 2020.

    Parameters
    ----------
    scope : ``"global"`` counts over all clients, ``"local"`` over the client's own samples, which it does not report.
    attribute : the sensitive attribute whose values are the groups; several joined by ``*``; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``w`` [R, A], a row for each class, ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [R, A], samples of each class and group; none with local counts.
    Server sees: sums of updates, and of ``n``.
    Traffic: R A numbers down, R A up. One more pass over the local data.
    Differs: the weights of all clients follow from the first round's counts, so the first round has weights 1. Abay et al. add noise to
    the counts, which is not part of this rule.
    """

    binary = False
    scope: str = choice("global", "local")
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    @property
    def reports(self) -> str:
        return "" if self.scope == "local" else "samples of each class and group"

    @property
    def ranges(self) -> dict[str, Bounds]:
        return {} if self.scope == "local" else cells.reported()

    server_state = cells.server_state

    def loss(self, out: Out, visit: Visit) -> Tensor:
        w = visit.message["w"] if self.scope == "global" else independent(cells.own_counts(visit))
        return cells.weighted(out, visit, w)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        if self.scope == "local":
            return state, cohort
        return {**state, "w": independent(cells.total(cohort)["n"])}, cohort


PRESETS: Presets = {"local": {"scope": "local"}}
CATALOGUE = CatalogueEntry(
    (Reweighing,), "weights that make the label independent of the group", "Kamiran, Calders, KAIS 2012", PRESETS
)
