"""AFL: minimise the loss of the worst mixture of clients."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import FAR, project_to_simplex, simplex
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Presets, Setup, State
from equipoise.system.ranges import log_uniform, number


@dataclass(frozen=True)
class AFL(LossRule):
    r"""Weigh clients by multipliers that climb on their losses.

    .. math:: \theta^{t+1} = \theta^t + \sum_m \lambda_m^t \Delta_m, \qquad
        \lambda^{t+1} = \Pi_\Delta(\lambda^t + \gamma\, \ell^t)

    with :math:`\ell_m^t = F_m(\theta^t)` on the client's training data. Mohri, Sivek, Suresh, ICML 2019, Section 4.

    Parameters
    ----------
    gamma : ascent rate, >= 0; 0.001 to 0.1. 0 keeps equal weights.
    averaged : evaluate the mean of the global models so far, the output of the original, instead of the last one.
    importance : scale the losses of the clients present by N / |S|.
    memory : False starts the climb from equal multipliers every round and uses its result at once, as MarsFL does.
    floor : least multiplier used, in [0, 1).
    worst : copy the model of the client with the largest loss, as FFL4MIA does for AFL; of equals the first. The
        multipliers climb, but are not used.

    Server state: ``lam`` [N]; ``mean`` [P] if ``averaged``.
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: the ``loss``.
    Traffic: one number up. One more pass over the local data.
    Differs: the original takes one gradient step per round; here an update is a whole local training. Absent clients
    (the paper assumes that all take part) add no loss; the others' weights are scaled to one. A weight may reach 0 and
    come back. The multipliers are kept over rounds and never see test data, unlike in MarsFL; preset ``marsfl`` forgets
    them as MarsFL does, but climbs on training losses.
    """

    owns = frozenset({"weights"})
    sees = "scalars+sum"
    gamma: float = number(0.01, low=0, search=log_uniform(1e-3, 1))
    averaged: bool = False
    importance: bool = False
    memory: bool = True
    floor: float = number(0.0, low=0, high=1)
    worst: bool = False

    def server_state(self, setup: Setup) -> State:
        lam = torch.full_like(setup.sizes, 1 / setup.n_clients)
        return {"lam": lam, "mean": setup.theta.clone()} if self.averaged else {"lam": lam}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i = cohort.ids
        lam = state["lam"] if self.memory else torch.full_like(state["lam"], 1 / cohort.n_clients)
        factor = cohort.n_clients / len(i) if self.importance else 1.0
        loss, rate = cohort.reports["loss"].to(lam.dtype), self.gamma * factor
        climbed, most = lam.index_add(0, i, rate * loss), rate * loss.max()
        if most > FAR:  # less the same for all, which moves no projection, lam keeps its digits
            climbed = (lam - most).index_copy(0, i, lam[i] + rate * (loss - loss.max()))
        after = project_to_simplex(climbed)
        used = (lam if self.memory else after)[i].clamp(min=self.floor)
        if self.worst:
            used = torch.zeros_like(used).index_fill(0, cohort.reports["loss"].argmax(), 1)
        return {**state, "lam": after}, replace(cohort, weights=simplex(used))

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        if self.averaged:
            state = {**state, "mean": state["mean"] + (cohort.theta - state["mean"]) / (cohort.t + 1)}
        return state, given

    def publish(self, theta: Tensor, state: State) -> Tensor:
        return state["mean"] if self.averaged else theta


PRESETS: Presets = {"marsfl": {"memory": False, "floor": 0.001}, "worst-client": {"worst": True}}
CATALOGUE = CatalogueEntry(
    (AFL,), "weights that climb on the clients' losses (agnostic FL)", "Mohri et al., ICML 2019", PRESETS
)
