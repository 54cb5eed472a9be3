"""Logit adjustment: train against the class frequencies of each client."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Out, Rule, Visit
from equipoise.system.ranges import number, uniform

STRONG = 10.0


@dataclass(frozen=True)
class LogitAdjust(Rule):
    r"""Train on logits shifted by the logarithm of the client's own class frequencies; predict without the shift.

    .. math:: F_m(\theta) = \operatorname{mean}_i \operatorname{CE}(z_i + \tau \log \pi, y_i)

    Menon, Jayasumana, Rawat, Jain, Veit, Kumar, ICLR 2021, Eq. 10, per client. A class without a local sample has
    probability and gradient exactly 0. Counts do not leave the client.

    Parameters
    ----------
    tau : strength, >= 0; 0 is FedAvg. 1 fits the balanced error.

    Differs: predictions, and the losses that rules measure, are those of the logits without the shift.
    """

    needs = frozenset({"classes"})
    tau: float = number(1.0, low=0, search=uniform(0.5, 1.5))

    def loss(self, out: Out, visit: Visit) -> Tensor:
        counts = visit.oracle.class_counts(out.logits.shape[-1]).to(out.logits.dtype)
        # a strong shift is against the most frequent class, which changes no loss: the logits keep their digits
        unit = counts.amax(-1, keepdim=True) if self.tau > STRONG else counts.sum(-1, keepdim=True)
        tau = min(self.tau, torch.finfo(counts.dtype).max)
        shift = torch.xlogy(tau, counts / unit)  # 0 log 0 is 0, tau log 0 is -inf
        adjusted = out.logits + shift.unsqueeze(-2)  # [..., B, C]
        return out.mean(out.task.losses(adjusted, out.y) - out.task.losses(out.logits, out.y))


CATALOGUE = CatalogueEntry(
    (LogitAdjust,),
    "train against each client's class frequencies",
    "Menon et al., ICLR 2021",
    printed="Logit adjustment",
)
