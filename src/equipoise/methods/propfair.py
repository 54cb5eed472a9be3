"""PropFair: minimise the negative logarithm of each client's utility."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Out, Presets, Rule, Visit
from equipoise.system.ranges import among, number


@dataclass(frozen=True)
class PropFair(Rule):
    r"""Minimise :math:`-\sum_m p_m \log(M - F_m)`, so that the product of the clients' utilities :math:`M - F_m` is large.

    .. math:: \ell \mapsto \begin{cases} -\log(1 - \ell / M) & M - \ell \ge \epsilon \\ \ell / M & \text{otherwise} \end{cases}

    for the mean loss :math:`\ell` of each batch. Zhang, Malekmohammadi, Chen, Yu, TMLR 2023. A batch counts by 1 / (M - loss), so a larger
    loss counts more; a batch on the linear branch counts by 1 / M.

    Parameters
    ----------
    M : baseline, > eps; 2 to 5. For C classes the first loss is about ln C: with M below it, training begins on the linear branch.
    eps : > 0; a batch whose utility is below it is on the linear branch.
    huber : the linear branch is loss / eps, so that the slope is continuous (the value is not).

    Traffic: none.
    Differs: the sum over clients is inside the logarithm of each batch, as in the authors' code, not of each client. All learning
    rates change: by 1 / M on the linear branch, by 1 / (M - loss) on the other. Tune the learning rate together with M.
    """

    M: float = number(2.0, low=0, above=True, search=among(2.0, 3.0, 5.0))
    eps: float = number(0.2, low=0, above=True)
    huber: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps >= self.M:
            raise ValueError(
                f"PropFair: M={self.M:g} must be above eps={self.eps:g}, or every batch is on the linear branch. "
                "Choose a larger M or a smaller eps."
            )

    def loss(self, out: Out, visit: Visit) -> Tensor:
        mean = out.cross_entropy
        bent = self.M - mean >= self.eps
        # the branch not taken would have an undefined gradient
        curve = -torch.log1p(-torch.where(bent, mean, 0) / self.M)
        return torch.where(bent, curve, mean / (self.eps if self.huber else self.M)) - mean


PRESETS: Presets = {"huber": {"huber": True}}
CATALOGUE = CatalogueEntry(
    (PropFair,), "the logarithm of the clients' utilities: large losses count more", "Zhang et al., TMLR 2023", PRESETS
)
