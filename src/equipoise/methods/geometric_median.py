"""RFA: the geometric median of the updates instead of their mean."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import FEW, gram, simplex, square_distances, square_distances_to_mean
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, State
from equipoise.system.ranges import choice, number


@dataclass(frozen=True)
class GeometricMedian(Rule):
    r"""Go to the point from which the distances to all updates have the least sum, in a few steps of smoothed Weiszfeld.

    .. math:: v^{(r+1)} = \frac{\sum_k \beta_k^{(r)} \Delta_k}{\sum_k \beta_k^{(r)}}, \qquad
        \beta_k^{(r)} = \frac{\alpha_k}{\max(\nu, \lVert v^{(r)} - \Delta_k \rVert)}, \qquad \theta^{t+1} = \theta^t + v^{(R)}

    for r = 0, ..., R - 1. Pillutla, Kakade, Harchaoui, IEEE Transactions on Signal Processing 70, 2022, Algorithm 2. A client
    pulls with strength alpha at any distance, so less than half of the weight cannot pull the median away.

    Parameters
    ----------
    nu : smoothing, > 0: nearer than this, a client pulls less.
    R : steps, >= 1; those that would change nothing are left out.
    start : where they begin, :math:`v^{(0)}`. ``"model"``: 0, the model sent out; ``"mean"``: the mean with alpha, as
        released. From a mean that one client has moved far, R steps do not come back.

    Server sees: distances of updates from points between them.
    Presets: ``released`` has the values of the authors' code.
    Differs: alpha is by samples, as in the paper, or the weights of another rule. The code stops early where the sum of distances
    hardly changes; here all R steps are taken. Running statistics of BatchNorm are their own geometric median, with the same
    alpha, so that large ones do not hide the parameters.
    """

    owns = frozenset({"mask", "direction"})
    nu: float = number(1e-6, low=0, above=True)
    R: int = number(3, low=1)
    start: str = choice("model", "mean")

    def _weights(self, x: Tensor, alpha: Tensor) -> Tensor:
        """Weights [M] with which the mean of ``x`` [M, P] is v after R steps."""
        w = alpha if self.start == "mean" else torch.zeros_like(alpha)
        K = gram(x) if len(x) <= FEW * self.R else None  # of many, products take longer than the steps
        for _ in range(self.R):
            apart = square_distances(x, w[None])[0] if K is None else square_distances_to_mean(K, w, x)
            before, w = w, simplex(alpha / apart.sqrt().clamp(min=self.nu))
            if torch.equal(before, w):
                break
        return w

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        alpha, buffers = simplex(cohort.weights.double()), cohort.buffer_updates
        c = self._weights(cohort.updates, alpha)
        return state, replace(cohort, coefficients=c, weights=self._weights(buffers, alpha) if buffers.shape[1] else c)


CATALOGUE = CatalogueEntry(
    (GeometricMedian,),
    "the geometric median of the updates (RFA), against clients that lie",
    "Pillutla, Kakade, Harchaoui, IEEE Transactions on Signal Processing 2022",
    {"released": {"nu": 1e-5, "R": 4, "start": "mean"}},
    printed="Geometric median",
)
