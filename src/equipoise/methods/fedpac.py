"""FedPAC: shared features pulled to class prototypes, and for each client a mixture of the others' classifiers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import gram, min_on_simplex, pick
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Out, Rule, Setup, State, Visit
from equipoise.methods.fedproto import global_prototypes, local_prototypes, no_prototypes, prototype_bounds
from equipoise.system.ranges import log_uniform, number


@dataclass(frozen=True)
class FedPAC(Rule):
    r"""Train the classifier, then the features close to class prototypes; mix the classifiers for every client.

    .. math:: F_m + \frac{\lambda}{n D} \sum_i \lVert z_i - c_{y_i} \rVert^2, \qquad
        \phi_m = \sum_j a_{mj} \phi_j, \quad a_m = \operatorname*{argmin}_{a \in \Delta} \sum_j a_j^2 V_j + \lVert H_m - \sum_j a_j H_j \rVert^2

    with :math:`H_m[c] = P_m(c)\, \mu_{m,c}` from the class means :math:`\mu` and class shares P of the client's features at the model it
    receives, and :math:`V_m = (\operatorname{mean} \lVert z \rVert^2 - \lVert H_m \rVert^2) / n_m`. Xu, Tong, Huang, ICLR 2023,
    in the form of the released code. First one epoch of the classifier alone, from the client's mixture and on cross-entropy; then the features alone.

    Parameters
    ----------
    lam : strength of the alignment, >= 0. Released: 1. Without any prototype, as in the first round, there is none.
    head_lr : learning rate of the epoch of the classifier, > 0. Released: 0.1.
    threshold : shares up to this are set to 0 before the rest is scaled to one, in [0, 1). Released: 0.001.
    weighted : weigh each client's prototype by its samples of the class, instead of equally.

    Client state: ``where`` [h], where the classifier stands. Server state: ``heads`` [N, h], their coordinates
    ``where`` [h], ``proto`` [C, D], ``known`` [C, 1].
    Reports: ``H`` [C, D], mean features of each class times the share of the class; ``V``, variance of features over
    samples; ``share`` [C], samples of each class, or one for each that it holds if they do not weigh; ``proto`` [C, D], mean
    features of each class times its share.
    Server sees: each classifier, which is mixed for others; ``H`` and ``V``.
    Traffic: the classifier, C D and C numbers down; 2 C D, C and 1 up. Two more passes over the local data, and one
    epoch of training.
    Differs: the problem is solved exactly, where released code uses an iterative solver and repairs its matrix; where
    no mixture can be computed a client gets its own classifier. A sample whose class has no global prototype is pulled
    to the client's own mean of before training. A class that no client holds keeps its prototype, where released code
    fails. Absent clients keep their classifier. The global model's classifier is the mean of the clients'. Losses that
    other rules add act on the features only.
    """

    uses = frozenset({"features", "classifier"})
    owns = frozenset({"start"})
    needs = frozenset({"classes"})
    reports = "its class means and variances"
    lam: float = number(1.0, low=0, search=log_uniform(0.1, 10))
    head_lr: float = number(0.1, low=0, above=True, search=log_uniform(0.01, 1))
    threshold: float = number(0.001, low=0, high=1)
    weighted: bool = True

    @property
    def ranges(self) -> dict[str, Bounds]:
        return {"H": Bounds(length="client"), "V": Bounds(0), **prototype_bounds(self.weighted)}

    def client_state(self, setup: Setup) -> State:
        head = torch.zeros(0) if setup.head is None else setup.head
        return {"where": head.nonzero().flatten()}

    def server_state(self, setup: Setup) -> State:
        where = self.client_state(setup)["where"]
        return {"heads": setup.per_client(setup.theta[where]), "where": where, **no_prototypes(setup)}

    def message(self, state: State, m: int) -> State:
        return {"head": state["heads"][m], "proto": state["proto"], "known": state["known"]}

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        asked = visit.oracle
        solver = replace(asked.solver, lr=self.head_lr)  # type: ignore[type-var]  # solvers are frozen dataclasses
        return asked.solve(self.deploy(start, visit), only=asked.head, epochs=1, solver=solver)

    def trains(self, visit: Visit) -> Tensor:
        return ~visit.oracle.head

    def _targets(self, y: Tensor, visit: Visit) -> Tensor:
        """What the features of samples with labels ``y`` [..., B] are pulled to [..., B, D]."""
        proto, defined = visit.message["proto"], visit.message["known"]
        own, _, _ = visit.oracle.moments(visit.received, proto.shape[-2])
        return pick(torch.where(defined > 0, proto, own.to(proto.dtype)), y)

    def loss(self, out: Out, visit: Visit) -> Tensor:
        gap = (out.features - self._targets(out.y, visit)).square().mean(-1)  # [..., B]
        return self.lam * out.mean(gap) * visit.message["known"].amax((-2, -1))

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        C = visit.message["proto"].shape[-2]
        mean, count, square = visit.oracle.moments(visit.received, C)
        n = count.sum(-1)
        H = mean * (count / n.unsqueeze(-1)).unsqueeze(-1)
        V = (square - H.square().sum((-2, -1))).clamp(min=0) / n
        return {"H": H.to(theta), "V": V.to(theta), **local_prototypes(visit, C, self.weighted)}, visit.state

    def _mixtures(self, H: Tensor, V: Tensor) -> Tensor:
        """Share [M, M] of every classifier in each client's, from ``H`` [M, C, D] and ``V`` [M]."""
        rows = []
        for own, h in zip(torch.eye(len(V), dtype=torch.float64, device=V.device), H, strict=True):
            a = min_on_simplex(V.double().diag() + gram((h - H).flatten(1)), own)
            a = torch.where(a > self.threshold, a, 0)
            rows.append(a / a.sum() if a.sum() > 0 else own)
        return torch.stack(rows)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        where, reports = state["where"], cohort.reports
        trained = cohort.received[:, where] + cohort.updates[:, where]
        mixed = self._mixtures(reports["H"], reports["V"]).to(trained.dtype) @ trained
        heads = state["heads"].index_copy(0, cohort.ids, mixed)
        return {"heads": heads, "where": where, **global_prototypes(state, reports)}, cohort

    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        return received.scatter(-1, visit.state["where"], visit.message["head"])


CATALOGUE = CatalogueEntry(
    (FedPAC,), "aligned features, and a mixture of classifiers for each client", "Xu, Tong, Huang, ICLR 2023"
)
