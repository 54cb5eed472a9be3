"""Ditto: a personal model per client, tied to the global one."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Rule, Setup, State, Visit
from equipoise.system.ranges import log_uniform, number


class PersonalRule(Rule):
    """A rule whose clients remember, and predict with, a model ``v`` [G] of their own."""

    reports = ""

    def client_state(self, setup: Setup) -> State:
        return {"v": setup.initial.clone()}

    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        return visit.state["v"]


@dataclass(frozen=True)
class Ditto(PersonalRule):
    r"""Train the personal model and send it: the global model is the mean of the personal ones.

    .. math:: v_m \gets \operatorname{argmin}_v F_m(v) + \tfrac{\lambda}{2} \lVert v - \theta^t \rVert^2, \qquad
        \theta^{t+1} = \sum_m p_m v_m

    Local training starts from the client's own persistent ``v_m``. This is how the FedHEAL paper's Table 3 uses Ditto
    ("personalised models aggregated into global model"); the original with its two tracks is ``ditto-personal``.
    Li, Hu, Beirami, Smith, ICML 2021; Chen, Huang, Ye, CVPR 2024, Table 3.

    Parameters
    ----------
    lam : lambda, >= 0; 0.1 to 2. The anchor is the model received this round.

    Client state: ``v`` [G], the model that it sent last.
    Differs: the paper of FedHEAL gives no more details, and its code for it is not public; this is the reading in
    which personal models persist. A client's accuracy is that of its own v, the groups' is that of the global model.
    """

    owns = frozenset({"start"})
    lam: float = number(1.0, low=0, search=log_uniform(0.1, 2))

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        return visit.state["v"]

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return self.lam * (theta - visit.start)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {}, {"v": visit.trained}


@dataclass(frozen=True)
class DittoPersonal(PersonalRule):
    r"""Train a personal model in addition to the global one; only the global track is sent.

    .. math:: v_m \gets v_m - \eta (\nabla F_m(v_m) + \lambda (v_m - \theta^t))

    Li, Hu, Beirami, Smith, ICML 2021, Algorithm 1. Costs a second local training.

    Parameters
    ----------
    lam : lambda, >= 0; 0.1 to 2. 0 trains ``v`` on its own.

    Client state: ``v`` [G], its personal model.
    Differs: both tracks use the same batches, one after the other, which is equivalent because the anchor is the model
    received.
    """

    lam: float = number(1.0, low=0, search=log_uniform(0.1, 2))

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        pull = lambda v: self.lam * (v - visit.start)  # noqa: E731
        return {}, {"v": visit.oracle.solve(visit.state["v"], correction=pull, only=visit.held)}


CATALOGUE = {
    "ditto": CatalogueEntry(
        (Ditto,),
        "personal models, averaged into the global one",
        "Li et al., ICML 2021, as in Chen, Huang, Ye: Fair Federated Learning under Domain Skew, CVPR 2024",
    ),
    "ditto-personal": CatalogueEntry(
        (DittoPersonal,),
        "a personal model in addition to the global one",
        "Li et al., ICML 2021",
        printed="Ditto (personal)",
    ),
}
