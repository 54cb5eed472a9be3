"""FedBN: every client keeps its BatchNorm layers."""

import logging
from dataclasses import dataclass

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.core.model import Model
from equipoise.core.rule import CatalogueEntry, Presets, Rule
from equipoise.system.ranges import choice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FedBN(Rule):
    r"""Average everything but BatchNorm: its scales, shifts and running statistics never leave the client.

    .. math:: \theta_s^{t+1} = \theta_s^t + \sum_m p_m \Delta_{m,s}, \qquad \theta_{m,bn}^{t+1} = \theta_{m,bn}^t + \Delta_{m,bn}

    with s the coordinates that are shared. Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, Algorithm 1.

    Parameters
    ----------
    by : BatchNorm is known by the ``"type"`` of the module (all BatchNorm classes), or, as released, by ``"bn"`` in the
        ``"name"`` of the tensor, which misses those of the shortcuts of a ResNet.

    Model sent: without BatchNorm.
    Client state: BatchNorm layers with their statistics.
    Server sees: sums of the rest.
    Traffic: less, by the size of these layers.
    Differs: nothing in training. A client predicts with its own BatchNorm; the global model, which the groups are
    tested on, has the mean of the clients' (by samples), as the authors advise for a client from outside. Who is absent
    keeps its own; the first visit starts from the initial model's. A network without BatchNorm is trained as by FedAvg,
    with a warning in the log.
    """

    by: str = choice("type", "name")

    def private(self, model: Model) -> Tensor:
        own = model.inside(_BatchNorm) if self.by == "type" else model.named("bn")
        if not own.any():
            where = "no BatchNorm layer" if self.by == "type" else "no tensor with 'bn' in its name"
            log.warning("fedbn: the network has %s, so nothing stays with the clients and this is FedAvg.", where)
        return own


PRESETS: Presets = {"released": {"by": "name"}}
CATALOGUE = CatalogueEntry((FedBN,), "every client keeps its BatchNorm layers", "Li et al., ICLR 2021", PRESETS)
