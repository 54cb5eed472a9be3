"""FedRAC: submodels of the units trained least so far, as accurate as each client's reputation."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.rule import Briefing, CatalogueEntry, Cohort, Rule, Setup, State, needed
from equipoise.methods.fedsac import FedSAC, allocate, average_holders, reputations
from equipoise.system.ranges import choice, log_uniform, number

ZETA, KAPPA = 0.3, 3.0


def prefixes(A: Tensor, r: Tensor, c: Tensor, form: str = "exact") -> Tensor:
    """How many packs of units each client gets [N]: of the prefixes with accuracies ``A`` [S], the largest of at most ``r`` [N].

    Clients with more contribution ``c`` [N] get no fewer, and those with the most all. ``"released"`` gives one pack less
    than it compares, and more than the client before.
    """
    S, least, packs = len(A), 0, torch.full((len(c),), len(A), device=c.device)
    for i in c.argsort(stable=True)[: (c < c.max()).sum() if form == "exact" else -1].tolist():
        first = least + (form == "released")
        fitting = [s for s in range(first, S) if A[s] <= r[i]]
        least = fitting[-1] if fitting else min(first, S - 1)
        packs[i] = least + (form == "exact")
    return packs


@dataclass(frozen=True)
class FedRAC(Rule):
    r"""Give every client a submodel of the units trained least so far, as accurate as its reputation in this round.

    .. math:: r_i^t = c_i + (A^t - \lambda A^t (1 - 1 / \log(0.3 t + 3))) \frac{e^{\beta c_i}}{\max_j e^{\beta c_j}}, \qquad
        \theta^{t+1} = \theta^t + \frac{\sum_i M_i \odot \Delta_i}{\sum_i M_i}

    Hidden units are sorted by how often clients held them, f. The server measures the accuracy of the global model on its validation data, A,
    and of the first 1, 2, ..., S packs of units. Client i gets the largest of these submodels whose accuracy is at most
    :math:`r_i`, and no smaller one than clients of less contribution; those of the most get all units. In the first round everybody
    does. :math:`c_i` is the accuracy that client i reaches alone. Rounds count from 1 in this equation. Wang, Fu, Du, Yuan, Liu, Liao, Wang, Wang, CVPR 2026.

    Parameters
    ----------
    beta : >= 0; the larger, the less a low contributor gets.
    lam : lambda, in [0, 1], up to round ``turn``; a smaller one gives low contributors more.
    late : lambda after it, in [0, 1].
    turn : >= 0.
    packs : S, >= 2, submodels that are measured in every round.
    source : contributions measured on the server's validation data, or, as released, on the test data, which then leak into training.
    prefix : ``"released"`` is what the authors' code does, see the presets.
    min_per_layer : units held least of every layer that all clients hold, >= 0; 0 may leave a layer empty.
    count : those who hold a parameter (``"structural"``), or of these only whose update is not zero (``"update_nonzero"``).

    Server state: ``r`` [N], ``units`` [N, K], ``f`` [K].
    Model sent: submodel.
    Server sees: each client's model trained alone, whose accuracy is its contribution, unless contributions are given;
    of the submodels only sums.
    Traffic: the entries of the submodel each way, and one bit for each hidden unit down. S + 1 passes over the validation data a round. What each
    client reaches alone is measured before the first round, see ``fedsac``.
    Presets: ``released`` measures contributions on the test data, counts changed parameters, gives each client one pack less than the submodel that
    it compares, and strictly more than the client before; of several with the most contribution one gets all.
    Differs: we read the authors' code, and of the paper a summary and reviews with these equations. Neither the rule by which a submodel is
    chosen for a reputation, nor lambda, are in them: these are the code's. The code counts no holder in the first round; nor do we.
    ``min_per_layer`` is ours. With partial participation r stays relative to all clients, f counts those present, and the mean is over them.
    """

    owns = frozenset({"submodel", "start", "reward", "mask", "weights"})
    beta: float = number(80.0, low=0, search=log_uniform(1, 100))
    lam: float = number(0.2, low=0, high=1)
    late: float = number(0.8, low=0, high=1)
    turn: int = number(100, low=0)
    packs: int = number(50, low=2)
    source: str = choice("standalone_val", "standalone_test")
    prefix: str = choice("exact", "released")
    min_per_layer: int = number(1, low=0)
    count: str = choice("structural", "update_nonzero")

    needs = FedSAC.needs  # by the source

    def server_state(self, setup: Setup) -> State:
        K = 0 if setup.neurons is None else setup.neurons.n
        everything = torch.ones(setup.n_clients, K, dtype=torch.bool, device=setup.initial.device)
        r, f = torch.ones_like(setup.sizes), torch.zeros(K, device=setup.initial.device)
        return {"r": r, "units": everything, "f": f}

    def prepare(self, state: State, briefing: Briefing) -> State:
        if briefing.t == 0:
            return state
        c, neurons = needed(briefing.contribution, "contributions"), needed(briefing.neurons, "hidden units")
        oracle, K = needed(briefing.oracle, "validation data"), neurons.n
        order = state["f"].argsort(stable=True)
        border = (torch.arange(1, self.packs + 1, device=order.device) * K / self.packs).ceil().long()
        submodels = allocate(order, border, neurons.sizes, self.min_per_layer)  # [S, K]
        A = torch.stack([oracle.accuracy(briefing.vector.where(neurons.held(units), 0)) for units in submodels])
        whole, lam = oracle.accuracy(briefing.vector), self.lam if briefing.t < self.turn else self.late
        reached = whole * (1 - lam * (1 - 1 / math.log(ZETA * (briefing.t + 1) + KAPPA)))
        r = c + reached * reputations(c, self.beta) / 100
        packs = prefixes(A.to(r), r, c, self.prefix)
        units = allocate(order, border[packs.clamp(min=1) - 1] * (packs > 0), neurons.sizes, self.min_per_layer)
        return {"r": r.to(state["r"]), "units": units, "f": state["f"] + units[briefing.ids].sum(0)}

    def submodel(self, state: State, m: int) -> Tensor:
        return state["units"][m]

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        notes = {**cohort.notes, "reputation": state["r"][cohort.ids].tolist()}
        return state, replace(average_holders(cohort, self.count), notes=notes)


RELEASED = {"source": "standalone_test", "prefix": "released", "min_per_layer": 0, "count": "update_nonzero"}
CATALOGUE = CatalogueEntry(
    (FedRAC,),
    "submodels of the units trained least so far, as accurate as each client's reputation",
    "Wang et al.: FedRAC: Rolling Submodel Allocation for Collaborative Fairness, CVPR 2026",
    {"released": RELEASED},
)
