"""Standalone: every client trains alone, from the common start."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.model import Model
from equipoise.core.rule import CatalogueEntry, Rule
from equipoise.records.meta import Sharing


@dataclass(frozen=True)
class Standalone(Rule):
    r"""Keep the whole model private: what a client reaches without the others, in rounds of the same length.

    .. math:: \theta_m^{t+1} = \theta_m^t + \Delta_m, \qquad \theta_m^0 = \theta^0

    The measure that collaborative fairness is taken against: Lyu, Xu, Wang, Yu, Collaborative Fairness in Federated
    Learning, 2020; Wang et al., FedSAC, KDD 2024, Definition 1.

    Model sent: nothing.
    Client state: the whole model.
    Differs: nothing. Rounds and epochs are those of the other methods, so that accuracies at the end compare; train at
    full participation, because who is absent does not train. A client predicts with its last model; what is tested as
    the global model is the mean of the clients', by samples. Rules that change the local loss act; rules of the server
    have nothing to work on. Methods that need each client's contribution make this run by themselves.
    """

    sees = "nothing"
    sharing = Sharing.NOTHING

    def private(self, model: Model) -> Tensor:
        return torch.ones(model.size, dtype=torch.bool)


CATALOGUE = CatalogueEntry(
    (Standalone,), "every client trains alone", "Lyu, Xu, Wang, Yu: Collaborative Fairness in Federated Learning, 2020"
)
