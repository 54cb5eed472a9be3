"""FedProto: share the mean feature of each class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import maths
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Out, Presets, Rule, Setup, State, Visit
from equipoise.system.ranges import log_uniform, number


def no_prototypes(setup: Setup) -> State:
    """State of a server that has seen no class yet: prototypes [C, D] and which are known [C]."""
    proto = setup.initial.new_zeros(setup.n_classes, setup.n_features)
    return {"proto": proto, "known": proto.new_zeros(setup.n_classes, 1)}


def prototype_bounds(weighted: bool = False) -> dict[str, Bounds]:
    """The bounds of what :func:`local_prototypes` reports."""
    if weighted:
        return {"proto": Bounds(length="sample"), "share": Bounds(0, samples=True)}
    return {"proto": Bounds(length="client"), "share": Bounds(0, 1, samples=True)}


def local_prototypes(visit: Visit, n_classes: int, weighted: bool = False) -> State:
    """The share [..., C] of a client in the prototype of each class, and its mean feature times that [..., C, D], at the trained model in eval mode.

    The share is one for a class that the client holds, or, if ``weighted``, how many samples of it.
    """
    sums, counts = maths.class_sums(*visit.oracle.features(visit.trained), n_classes)
    share = counts if weighted else counts.clamp(max=1)
    return {"proto": maths.class_means(sums, counts) * share.unsqueeze(-1), "share": share}


def global_prototypes(state: State, reports: State) -> State:
    """Mean over the clients that hold a class, by their shares; a class that no client holds keeps its prototype."""
    total = reports["share"].sum(0)[:, None]  # [C, 1]
    present = total > 0
    mean = reports["proto"].sum(0) / total.where(present, 1)
    return {"proto": torch.where(present, mean, state["proto"]), "known": torch.where(present, 1.0, state["known"])}


class PrototypeRule(Rule):
    """A rule whose server makes a prototype of each class from :func:`local_prototypes`, and sends them to all clients."""

    needs = frozenset({"classes"})
    uses = frozenset({"features"})
    sees = "sum"
    reports = "its class prototypes"

    def server_state(self, setup: Setup) -> State:
        return no_prototypes(setup)

    def message(self, state: State, m: int) -> State:
        return state

    def no_report(self, setup: Setup) -> State:
        proto = setup.initial.new_zeros(setup.n_classes, setup.n_features)
        return {"proto": proto, "share": proto[:, 0]}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return global_prototypes(state, cohort.reports), cohort


@dataclass(frozen=True)
class FedProto(PrototypeRule):
    r"""Pull the features of every sample to the global prototype of its class.

    .. math:: F_m(\theta) + \frac{\lambda}{n D} \sum_i \lVert z_i - P_{y_i} \rVert^2, \qquad
        P_k = \operatorname{mean}_{m\ \mathrm{holds}\ k} \bar z_{m,k}

    Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022, Eqs. 6-8. A sample whose class has no prototype yet adds 0.

    Parameters
    ----------
    lam : strength, >= 0; 0 is FedAvg. Released code: 1.
    weighted : weigh each client's prototype by its samples of the class, instead of equally.

    Server state: ``proto`` [C, D], ``known`` [C, 1].
    Reports: ``share`` [C], one for each class that it holds, or its samples if they weigh; ``proto`` [C, D], mean features of each class times its share.
    Server sees: sums of updates, ``proto`` and ``share``.
    Traffic: C D numbers down; C D and C up. One more pass over the local data.
    Differs: the original shares prototypes only; here the model is averaged too, as in every table that compares
    FedProto with methods that share a model. The pull is per sample and the mean over holders plain, as in the released
    code (Eq. 6 as printed divides by the number of holders twice).
    """

    lam: float = number(1.0, low=0, search=log_uniform(0.1, 10))
    weighted: bool = False

    @property
    def ranges(self) -> dict[str, Bounds]:
        return prototype_bounds(self.weighted)

    def loss(self, out: Out, visit: Visit) -> Tensor:
        gap = (out.features - maths.pick(visit.message["proto"], out.y)).square().mean(-1)  # [..., B]
        defined = maths.pick(visit.message["known"], out.y).squeeze(-1)
        return self.lam * out.mean(gap * defined)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return local_prototypes(visit, visit.message["proto"].shape[-2], self.weighted), visit.state


PRESETS: Presets = {"weighted": {"weighted": True}, "marsfl": {"lam": 2.0}}
CATALOGUE = CatalogueEntry((FedProto,), "pull features to shared class prototypes", "Tan et al., AAAI 2022", PRESETS)
