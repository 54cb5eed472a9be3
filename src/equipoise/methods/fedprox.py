"""FedProx: stay near the model that was handed out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.hyper import number
from equipoise.rule import Rule, Visit


@dataclass(frozen=True)
class FedProx(Rule):
    r"""Add a proximal term to the local loss; what is added to its gradient is :math:`\mu (\theta - \theta^t)`.

    .. math:: F_m(\theta) + \tfrac{\mu}{2} \lVert \theta - \theta^t \rVert^2

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, Eq. 2.

    Parameters
    ----------
    mu : strength, >= 0; 0 is FedAvg. Common: 0.001 to 1.

    Differs: MarsFL multiplies the term by a stray 0.01; preset ``marsfl``.
    """

    mu: float = number(0.01, low=0)

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return self.mu * (theta - visit.start)
