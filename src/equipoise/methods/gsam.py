"""GSAM: SAM that also closes the gap between the loss and the highest loss nearby."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.maths import directions
from equipoise.core.rule import CatalogueEntry, Gradient, Rule, Visit
from equipoise.methods.sam import perturbation, radius
from equipoise.system.ranges import log_uniform, number, uniform


def orthogonal(g: Tensor, g_p: Tensor) -> Tensor:
    """The part [..., P] of ``g`` that is orthogonal to ``g_p``; all of ``g`` where ``g_p`` is zero."""
    unit = directions(g_p)
    return g - (g * unit).sum(-1, keepdim=True) * unit


@dataclass(frozen=True)
class GSAM(Rule):
    r"""Step with the perturbed gradient, minus a share of the plain gradient's component orthogonal to it.

    .. math:: e = \rho_t \frac{g}{\lVert g \rVert}, \qquad g_p = \nabla F_m(\theta + e), \qquad
        \theta \gets \theta - \eta (g_p - \alpha g_\perp)

    with :math:`g_\perp` the part of :math:`g = \nabla F_m(\theta)` orthogonal to :math:`g_p`. Zhuang, Gong, Yuan, Cui,
    Adam, Dvornek, Tatikonda, Duncan, Liu, ICLR 2022, Algorithm 1. Norms and products are over all trainable parameters.

    Parameters
    ----------
    rho : search distance, >= 0, in the unit of the parameters; 0.01 to 0.2. 0 is FedAvg.
    tau : growth of the distance over the rounds, rho (t / T)^tau, >= 0; 0 keeps it constant.
    alpha : share of the orthogonal part, >= 0; 0.05 to 0.5. 0 is SAM.

    Traffic: none. Two forward and two backward passes per batch.
    Differs: the original ties rho to the learning rate; here it depends on the round only, as in FedISM+. 0.1 for alpha
    is that of FedISM's code.
    """

    owns = frozenset({"gradient"})
    rho: float = number(0.05, low=0, search=log_uniform(0.01, 0.2))
    tau: float = number(0.0, low=0)
    alpha: float = number(0.1, low=0, search=uniform(0.05, 0.5))

    def gradient(self, grad: Gradient, theta: Tensor, visit: Visit) -> Tensor:
        g = grad(theta)
        g_p = grad(theta + perturbation(g, radius(self.rho, self.tau, visit)))
        return g_p - self.alpha * orthogonal(g, g_p)


CATALOGUE = CatalogueEntry(
    (GSAM,), "SAM that also closes the gap to the highest loss nearby", "Zhuang et al., ICLR 2022"
)
