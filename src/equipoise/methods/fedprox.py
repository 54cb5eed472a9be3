"""FedProx: stay near the received model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.maths import directions
from equipoise.core.rule import CatalogueEntry, Presets, Rule, Visit
from equipoise.system.ranges import choice, log_uniform, number


def unit(vector: Tensor, layout: Sequence[int]) -> Tensor:
    """Each tensor's part of ``vector`` [..., P] at length one; a part of length 0 stays 0."""
    return torch.cat([directions(part) for part in vector.split(layout, -1)], -1)


@dataclass(frozen=True)
class FedProx(Rule):
    r"""Add a proximal term to the local loss; what is added to its gradient is :math:`\mu (\theta - \theta^t)`.

    .. math:: F_m(\theta) + \tfrac{\mu}{2} \lVert \theta - \theta^t \rVert^2

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, Eq. 2.

    Parameters
    ----------
    mu : strength, >= 0; 0 is FedAvg. Common: 0.001 to 1.
    form : ``"squared"`` as above; ``"norm"`` is mu times the sum of the tensors' distances, whose pull does not fade.

    Differs: the term goes through momentum like the rest of the gradient. MarsFL, a library with several of these
    methods, multiplies it by a further 0.01; preset ``marsfl`` is its effective default. The baseline in FedLD's code
    has distances that are not squared, one per tensor (preset ``fedld``); values of mu of the two forms cannot be
    compared.
    """

    mu: float = number(0.01, low=0, search=log_uniform(1e-3, 1))
    form: str = choice("squared", "norm")

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        gap = theta - visit.start
        return self.mu * (gap if self.form == "squared" else unit(gap, visit.oracle.layout))


PRESETS: Presets = {"marsfl": {"mu": 1e-4}, "fedld": {"form": "norm"}}
CATALOGUE = CatalogueEntry((FedProx,), "stay near the model sent out", "Li et al., MLSys 2020", PRESETS)
