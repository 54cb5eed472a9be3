"""MOON: model-contrastive local training."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise.core.maths import directions
from equipoise.core.rule import CatalogueEntry, Out, Rule, Setup, State, Visit
from equipoise.system.ranges import among, log_uniform, number


def contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    r"""The model-contrastive loss of each sample [..., B] from representations [..., B, D].

    .. math:: -\log \frac{e^{\cos(z, z_g)/T}}{e^{\cos(z, z_g)/T} + e^{\cos(z, z_p)/T}}

    Li, He, Song, CVPR 2021, Eq. 3; computed as softplus of the difference of both similarities. The cosine with zero is 0.
    """
    near, far = ((directions(z) * directions(other)).sum(-1) for other in (z_global, z_previous))
    return softplus((far - near) / temperature)


@dataclass(frozen=True)
class Moon(Rule):
    r"""Pull a client's features to the global model's and push them from its own previous ones.

    .. math:: F_m(\theta) + \mu\, \ell_{con}(z, z_{glob}, z_{prev})

    Li, He, Song, CVPR 2021, Eq. 4. Features are what enters the classifier. A client that never took part has no
    previous model and no contrastive term.

    Parameters
    ----------
    mu : strength, >= 0; 0 is FedAvg. Paper: 1 to 5.
    temperature : >= 1e-6; 0.5.

    Client state: ``previous`` [G], its last model; ``seen`` [1], whether there is one.
    Traffic: none. Each batch takes two more forward passes.
    Differs: features are what enters the classifier; the paper puts a projection head of two layers before it (give
    your network one to have it). A client that never took part has no previous model and no contrastive term. Both
    reference models are in evaluation mode.
    """

    uses = frozenset({"features"})
    reports = ""
    mu: float = number(1.0, low=0, search=log_uniform(0.1, 10))
    temperature: float = number(0.5, low=1e-6, search=among(0.1, 0.5, 1.0))

    def client_state(self, setup: Setup) -> State:
        return {"previous": setup.initial.clone(), "seen": torch.zeros_like(setup.initial[:1])}

    def loss(self, out: Out, visit: Visit) -> Tensor:
        (_, z_global), (_, z_previous) = out.ask(visit.received), out.ask(visit.state["previous"])
        term = contrast(out.features, z_global, z_previous, self.temperature)
        return self.mu * visit.state["seen"].squeeze(-1) * out.mean(term)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {}, {"previous": visit.trained, "seen": torch.ones_like(visit.state["seen"])}


CATALOGUE = CatalogueEntry(
    (Moon,),
    "contrast features with the global and the previous model",
    "Li, He, Song, CVPR 2021",
    {"cifar10": {"mu": 5.0}},
    printed="MOON",
)
