"""IAFL: each client gets the mean of as many updates as it contributes."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.core import draws
from equipoise.core.maths import combine
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State, needed
from equipoise.system.ranges import choice, number, uniform

SLACK = 1e-9  # of a number of clients, against rounding


def sharing(gamma: Tensor, kappa: float, lots: Tensor) -> Tensor:
    r"""Weights [M, M] of the updates that each client gets: its own, and :math:`\lceil \gamma_i^{1 - \kappa} (M - 1) \rceil` others of least ``lots`` [M, M]."""
    M = len(gamma)
    n = (gamma ** (1 - kappa) * (M - 1) - SLACK).ceil()
    # its own is 0
    rank = lots.masked_fill(torch.eye(M, dtype=torch.bool, device=lots.device), -1).argsort(1).argsort(1)
    included = (rank <= n[:, None]).to(gamma)
    return included / included.sum(1, keepdim=True)


@dataclass(frozen=True)
class IAFL(Rule):
    r"""Reward contributions with updates of others: every client trains its own model, to which it gets the mean of a random part of them.

    .. math:: \theta_i \gets \theta_i + \frac{1}{1 + n_i} \Big( \Delta_i + \sum_{j \in R_i} \Delta_j \Big), \qquad
        n_i = \lceil \gamma_i^{1 - \kappa} (M - 1) \rceil, \qquad \gamma_i = \frac{c_i}{\max_j c_j}

    with a random set :math:`R_i` of :math:`n_i` other clients in every round. The global model takes the mean of all updates; with probability q a client
    gets it instead. Wu, Mohammadi Amiri, Raskar, Low: Incentive-Aware Federated Learning with Training-Time Model Rewards, ICLR 2024, by the
    authors' code.

    Parameters
    ----------
    q : chance of a client to get the global model after a round, in [0, 1]; 1 is FedAvg with equal weights.
    kappa : sharing, in [0, 1]; 0 rewards in proportion to contributions, 1 gives everybody the updates of all.
    contribution : c, a client's ``"samples"``, as the code has it, or the ``"accuracy"`` that it reaches alone.

    Server state: ``size`` [N], samples over the largest number of them.
    Server sees: each client's update, of which it sends sums to others.
    Traffic: nothing more. With ``accuracy`` every client is first trained alone.
    Differs: absent clients keep their model; the authors' code rewards them, too. The global model is the mean of all updates present, where the code takes
    the updates given to the client of the largest contribution, which are all of them if it is there. A client that gets the global
    model has it from the end of a round, not from the start of the next. Running statistics of BatchNorm are given whole.
    """

    owns = frozenset({"mask", "weights", "direction", "reward"})
    q: float = number(0.0, low=0, high=1, search=uniform(0, 0.5))
    kappa: float = number(0.0, low=0, high=1, search=uniform(0, 0.9))
    contribution: str = choice("samples", "accuracy")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"contribution"} if self.contribution == "accuracy" else ())

    def server_state(self, setup: Setup) -> State:
        return {"size": setup.sizes / setup.sizes.max()}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, replace(cohort, weights=cohort.uniform)

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        c = state["size"] if self.contribution == "samples" else needed(cohort.contribution, "contributions")
        gamma = (c / c.max() if c.max() > 0 else torch.ones_like(c))[cohort.ids].double()
        ids, P = cohort.ids.tolist(), len(cohort.theta)
        lots = draws.bits(cohort.seed, cohort.t, ids, draws.REWARDS, np.tile(np.array(ids), (len(ids), 1)))
        drawn = torch.from_numpy((lots >> np.uint64(11)).astype(np.float64)).to(gamma.device)
        steps = torch.stack([combine(cohort.updates, w) for w in sharing(gamma, self.kappa, drawn)])
        own = torch.cat([cohort.kept[:, :P] + steps, given[:, P:]], 1)
        chance = torch.from_numpy(draws.uniform(cohort.seed, cohort.t, ids, draws.RECOVERY)).to(gamma.device)
        return state, torch.where((chance < self.q)[:, None], given, own)


CATALOGUE = CatalogueEntry(
    (IAFL,),
    "to each client the mean of a part of the updates, larger for those who contribute more",
    "Wu et al., ICLR 2024",
    {"accuracy": {"contribution": "accuracy"}},
)
