"""SAM: take the gradient where the loss is highest nearby."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Gradient, Presets, Rule, Visit
from equipoise.system.ranges import log_uniform, number


def length(g: Tensor) -> Tensor:
    """Euclidean length over the parameters: [..., 1] from [..., P]; NaN where its square leaves the range of numbers."""
    norm: Tensor = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    return norm + (norm - norm)  # an infinite length would make the perturbation 0 without a word


def perturbation(g: Tensor, rho: float) -> Tensor:
    r"""The step [..., P] of length rho uphill: :math:`\rho\, g / (\lVert g \rVert + 10^{-12})`; zero where g is zero."""
    return rho * g / (length(g) + 1e-12)


def radius(rho: float, tau: float, visit: Visit) -> float:
    r"""The search distance of a round: :math:`\rho (t / T)^\tau` with t = 1 ... T (Wu et al., arXiv 2503.09587, Eq. 12)."""
    return float(rho * ((visit.t + 1) / visit.rounds) ** tau)


@dataclass(frozen=True)
class SAM(Rule):
    r"""Step with the gradient at the worst point nearby, evaluated on the same batch.

    .. math:: e = \rho_t \frac{g}{\lVert g \rVert}, \qquad g = \nabla F_m(\theta), \qquad
        \theta \gets \theta - \eta \nabla F_m(\theta + e)

    Foret, Kleiner, Mobahi, Neyshabur, ICLR 2021, Eqs. 2-3, and Algorithm 1. The norm is over all trainable parameters.
    Momentum and weight decay are the solver's and see only the gradient used; corrections of other rules (SCAFFOLD,
    FedProx) are added to it. BatchNorm statistics move with the first pass only.

    Parameters
    ----------
    rho : search distance, >= 0, in the unit of the parameters; 0.01 to 0.2. 0 is FedAvg.
    tau : growth of the distance over the rounds, rho (t / T)^tau, >= 0; 0 keeps it constant.
    added : add the gradient at theta itself, as a class of FFL4MIA does that its training never uses; not recommended.

    Traffic: none. Two forward and two backward passes per batch.
    Differs: nothing. 1e-12 is added to the norm, and a gradient of zero gives an ordinary step. Terms that other rules
    add to the loss (``moon``, ``logit-adjust``) are part of F here.
    """

    owns = frozenset({"gradient"})
    rho: float = number(0.05, low=0, search=log_uniform(0.01, 0.2))
    tau: float = number(0.0, low=0)
    added: bool = False

    def gradient(self, grad: Gradient, theta: Tensor, visit: Visit) -> Tensor:
        g = grad(theta)
        perturbed = grad(theta + perturbation(g, radius(self.rho, self.tau, visit)))
        return g + perturbed if self.added else perturbed


PRESETS: Presets = {"ffl4mia": {"added": True}}
CATALOGUE = CatalogueEntry((SAM,), "the gradient where the loss is highest nearby", "Foret et al., ICLR 2021", PRESETS)
