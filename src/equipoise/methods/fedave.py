"""FedAVE: rewards by the accuracy of a client's model and by how much its data is like the server's."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import simplex, square_norms
from equipoise.core.rule import Bounds, Briefing, CatalogueEntry, Cohort, Rule, Setup, State, Visit, needed
from equipoise.methods.cgsv import LEAST, rewarded, share, unit
from equipoise.system.ranges import among, choice, log_uniform, number

TINY = 1e-12


def divergence(own: Tensor, other: Tensor, server: Tensor, *, ordered: bool = False) -> Tensor:
    r"""KL divergence of two lists of batch losses, each scaled to sum one: :math:`\sum_b p_b \log(p_b / s_b)`, [...].

    ``own`` [..., K] of a client (those that are ``there`` [..., K] stand first), ``server`` [..., L]; the longer list is cut
    to the length of the shorter one, after sorting both if ``ordered``. Losses are at least 1e-12.
    """
    if ordered:
        own = torch.where(other, own, torch.inf).sort(-1).values
        server = server.sort(-1).values
    n = min(own.shape[-1], server.shape[-1])
    on = other[..., :n]
    p, s = (torch.where(on, x[..., :n].clamp(min=TINY), 0) for x in (own, server))
    p, s = (x / x.sum(-1, keepdim=True).clamp(min=TINY) for x in (p, s))
    return torch.where(on, p * (torch.where(on, p, 1) / torch.where(on, s, 1)).log(), 0).sum(-1)


def likeness(kl: Tensor, eps: float) -> Tensor:
    """The inverse of each divergence [M] and ``eps``, scaled so that the largest is 1."""
    k = simplex(1 / (kl.clamp(min=0) + eps))
    return k / k.max()


def accuracies(cohort: Cohort) -> Tensor:
    """Of each client's trained model on the server's validation data: [M]."""
    judge = needed(cohort.oracle, "validation data")
    updates = zip(cohort.received, cohort.updates, cohort.buffer_updates, strict=True)
    models = (received + torch.cat([update, buffers]) for received, update, buffers in updates)
    return torch.stack([judge.tally(model).goodness for model in models])


@dataclass(frozen=True)
class FedAVE(Rule):
    r"""Reputations from data values, and for each client the part of the aggregate they earn.

    .. math:: v_m = Acc_V(\theta_m + \Delta_m)\, k_m^2, \qquad rep_m \gets \alpha\, rep_m + (1 - \alpha)\, v_m, \qquad
        \theta_m \gets \theta_m + \operatorname{top}_{q_m}(u), \quad
        q_m = k_m \frac{\tanh(\beta\, rep_m)}{\max_j \tanh(\beta\, rep_j)}

    with :math:`u = \Gamma \sum_m p_m \Delta_m / \lVert \Delta_m \rVert`, p by samples, and :math:`k_m \propto 1 / KL(l_m, s_m)`,
    the largest 1, where l and s are the losses of :math:`\theta_m` on the batches of the client's training data and of the server's
    validation data V. In the first round rep is v, and nothing is given. Wang et al.: FedAVE: Adaptive data value
    evaluation framework for collaborative fairness in federated learning, Neurocomputing 2024, from the released code.

    Parameters
    ----------
    alpha : share of the past in a reputation, in [0, 1]. Released: 0.95.
    beta : >= 0: how little the tanh of reputations differ; 0 makes them equal. Released: 2 and 5.
    gamma : length of every update, > 0. Released: 0.5.
    sparsify : see :class:`equipoise.methods.cgsv.CGSV`.
    reputation : q from the client's ``"own"`` reputation, or from its ``"contribution"``, what it reaches alone; then k is not
        in it, no validation data is needed, and the clients report nothing.
    sort_losses : sort both lists of losses, so that the order of batches does not matter.
    eps : added to every KL, > 0. A client with one batch has a KL of 0, and as published gets all there is: with clients that
        small, take 0.01.

    Server state: ``rep`` [N]; ``k`` [N] of each client's last round; ``losses`` [N, L], s.
    Reports: ``kl``, divergence of its losses, batch by batch, from those on the server's data; none with
    ``reputation=contribution``.
    Server sees: each trained model, evaluated on the server's data.
    Traffic: one number per batch of V down, one up; of the model, only the entries a client is given. Two more passes
    over V and one over the local data per client.
    Differs: the released code shuffles V for every client; here its batches, of 64 samples, have one order. KL compares
    batch with batch of two lists without common order, so part of it is noise: ``sort_losses`` takes that out. Where
    some clients have a single batch, as in ``digits-pow``, use the preset ``stable``: such a client is else by far the
    most alike, and the others get next to nothing. In the first round no client gets anything, nor does the global model change,
    so that its work is lost, as released. Running statistics are given whole. Absent clients keep model and rep, which
    is scaled with the others'; k refers to those present.
    """

    owns = frozenset({"weights", "direction", "reward"})
    reports = "the divergence of its losses"
    alpha: float = number(0.95, low=0, high=1)
    beta: float = number(2.0, low=0, search=among(2.0, 5.0))
    gamma: float = number(0.5, low=0, above=True, search=log_uniform(0.15, 1))
    sparsify: str = choice("released_layer", "exact_layer", "paper_global")
    reputation: str = choice("own", "contribution")
    sort_losses: bool = False
    eps: float = number(1e-12, low=0, above=True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"validation" if self.reputation == "own" else "contribution"})

    @property
    def ranges(self) -> dict[str, Bounds]:
        return {"kl": Bounds(-1e-6)} if self.reputation == "own" else {}  # of equal lists, rounding

    def server_state(self, setup: Setup) -> State:
        rep = torch.zeros_like(setup.sizes)
        width = setup.n_validation if self.reputation == "own" else 0
        return {"rep": rep, "k": torch.zeros_like(rep), "losses": rep.new_zeros(len(rep), width)}

    def prepare(self, state: State, briefing: Briefing) -> State:
        if self.reputation == "contribution":
            return state
        oracle = needed(briefing.oracle, "validation data")
        losses = torch.stack([oracle.batch_losses(vector)[0] for vector in briefing.received])  # [M, L]
        return {**state, "losses": state["losses"].index_copy(0, briefing.ids, losses)}

    def message(self, state: State, m: int) -> State:
        return {"losses": state["losses"][m]} if self.reputation == "own" else {}

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        if self.reputation == "contribution":
            return {}, visit.state
        own, exists = visit.oracle.batch_losses(visit.received)
        return {"kl": divergence(own, exists, visit.message["losses"], ordered=self.sort_losses)}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, p = cohort.ids, simplex(cohort.sizes)
        c = p * unit(square_norms(cohort.updates).sqrt(), self.gamma)
        notes = dict(cohort.notes)
        if self.reputation == "own":
            k, past = likeness(cohort.reports["kl"], self.eps), state["rep"]
            v = accuracies(cohort) * k.square()
            rep = v if cohort.t == 0 else self.alpha * past[i] + (1 - self.alpha) * v
            past = simplex(past.index_copy(0, i, rep.clamp(min=LEAST)))
            state = {**state, "rep": past, "k": state["k"].index_copy(0, i, k)}
            notes |= {"reputation": past[i].tolist(), "likeness": k.tolist()}
        # in the first round no client gets anything, nor does the global model change
        scale = cohort.scale * (cohort.t > 0)
        return state, replace(cohort, weights=p, coefficients=c, scale=scale, notes=notes)

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        own = self.reputation == "own"
        q = share(state["rep"] if own else needed(cohort.contribution, "contributions"), self.beta)[cohort.ids]
        return state, rewarded(cohort, given, q * state["k"][cohort.ids] if own else q, self.sparsify)


CATALOGUE = CatalogueEntry(
    (FedAVE,),
    "to each client the part of the aggregate that the value of its data earns",
    "Wang et al.: FedAVE, Neurocomputing 2024",
    {
        "exact": {"sparsify": "exact_layer"},
        "stable": {"sort_losses": True, "eps": 0.01},
        "contribution": {"reputation": "contribution"},
    },
)
