"""FairFed: less weight to clients whose accuracy is far from the others'."""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from equipoise.core.catalogue import CatalogueEntry
from equipoise.core.maths import simplex
from equipoise.core.rule import Bounds, Cohort, Rule, Setup, State, Visit
from equipoise.system.ranges import choice, number


def gaps(accuracy: Tensor, p: Tensor, metric: Tensor | None = None, overall: Tensor | float = 0.0) -> Tensor:
    r"""How far each client is from the overall value [M]: :math:`|F_m - F|`, or :math:`|Acc_m - \sum_j p_j Acc_j|`.

    ``accuracy`` [M], shares of samples ``p`` [M]; a group metric F_m [M] (NaN where a client has none, whose accuracy
    counts instead) with its value ``overall`` is optional.
    """
    gap = (accuracy - p @ accuracy).abs()
    return gap if metric is None else torch.where(metric.isnan(), gap, (metric - overall).abs())


@dataclass(frozen=True)
class FairFed(Rule):
    r"""Take weight from clients whose accuracy differs more than average from that of all clients.

    .. math:: \bar\omega_m \gets \bar\omega_m - \beta \left(\Delta_m - \tfrac1M \sum_j \Delta_j\right), \qquad
        \omega_m = \bar\omega_m / \sum_j \bar\omega_j, \qquad \Delta_m = \Big| Acc_m - \sum_j p_j Acc_j \Big|

    with :math:`Acc_m` of the model sent out on the client's training data, :math:`p_j` shares of samples; first
    :math:`\bar\omega = p`. Ezzeldin, Yan, He, Ferrara, Avestimehr, AAAI 2023, Algorithm 1.

    Parameters
    ----------
    beta : strength, in [0, 1000]; 0.1 to 1. 0 is FedAvg.
    clip : keep the weights >= 0. False is the published rule: a weight may turn negative, and then pushes away.
    balanced : accuracy as the mean over a client's classes.
    form : ``"released"`` is what FFL4MIA computes, not recommended: nothing in the first round; a mean accuracy
        without its sum, :math:`\Delta_m = Acc_m (1 - p_m)`, so that the accurate and the small lose weight; and the
        normalised weights are carried.

    Server state: ``bar`` [N], not normalised, and ``start`` [N], the shares of samples.
    Reports: ``accuracy``, of the model it received on its training data.
    Server sees: the ``accuracy``.
    Traffic: one number up. One more pass over the local data.
    Differs: weights are kept at 0 or above; without ``clip`` a weight may turn negative, and running statistics are
    then averaged without that client. The gaps are of accuracies, which the paper takes where a client has no group
    metric; in a rule of your own, :func:`gaps` takes both. Absent clients keep their weight, and means are over those
    present; if those present have no weight left, they start again.
    """

    needs = frozenset({"classes"})
    sees = "scalars+sum"
    reports = "its accuracy"
    ranges = MappingProxyType({"accuracy": Bounds(0, 1)})
    beta: float = number(0.5, low=0, high=1000)
    clip: bool = True
    balanced: bool = False
    form: Literal["paper", "released"] = choice("paper", "released")

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"weights"} if self.clip else {"weights", "direction"})

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        ask = visit.oracle.balanced_accuracy if self.balanced else visit.oracle.accuracy
        return {"accuracy": ask(visit.received)}, visit.state

    def server_state(self, setup: Setup) -> State:
        return {"bar": simplex(setup.sizes), "start": simplex(setup.sizes)}

    def update(self, bar: Tensor, gap: Tensor) -> Tensor:
        """One step of the weights ``bar`` [M], from the gaps [M]."""
        bar = bar - self.beta * (gap - gap.mean())
        return bar.clamp(min=0) if self.clip else bar

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, p, released = cohort.ids, simplex(cohort.sizes), self.form == "released"
        accuracy, old = cohort.reports["accuracy"].to(p.dtype), state["bar"][cohort.ids]
        gap = accuracy * (1 - p) if released else gaps(accuracy, p)
        bar = old if released and cohort.t == 0 else self.update(old, gap)
        bar = bar if bar.sum() > 0 else state["start"][i]
        weights = bar / bar.sum()
        state = {**state, "bar": state["bar"].index_copy(0, i, old.sum() * weights if released else bar)}
        if self.clip:
            return state, replace(cohort, weights=weights)
        convex = simplex(bar.clamp(min=0))  # for running variances, which must not turn negative
        return state, replace(cohort, weights=convex, coefficients=weights)


CATALOGUE = {
    "fairfed": CatalogueEntry(
        (FairFed,),
        "less weight to clients whose accuracy is far from the others'",
        "Ezzeldin et al., AAAI 2023",
        {"published": {"clip": False}, "ffl4mia": {"form": "released", "balanced": True}},
    ),
}
