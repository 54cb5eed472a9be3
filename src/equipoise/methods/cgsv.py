"""CGSV: every client gets the largest part of the aggregate that its reputation earns."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import add_largest, gram, simplex
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State, needed
from equipoise.system.ranges import among, choice, log_uniform, number

EPS = 1e-7  # added to the length of an update before dividing by it
LEAST = 1e-3  # of a reputation, before they are scaled to sum one


def unit(length: Tensor, gamma: float) -> Tensor:
    """The factor that brings an update of a given length [M] to length ``gamma``; one that does not move stays."""
    return gamma / (length + EPS)


def consensus(K: Tensor, c: Tensor) -> Tensor:
    """Cosine of each update with their sum under ``c`` [M], from their Gram matrix ``K`` [M, M]; 0 without length: [M]."""
    dots, squares = K @ c, K.diagonal()
    square = c @ dots
    enough = square > 1e-12 * c.square() @ squares  # otherwise they cancel, and rounding is left
    length = (square * squares).clamp(min=0).sqrt()
    return torch.where(enough & (length > 0), dots / torch.where(length > 0, length, 1), 0).clamp(-1, 1)


def share(standing: Tensor, beta: float) -> Tensor:
    """The share of the step that each standing [N] earns, in [0, 1]; all of it where none stands above zero."""
    t = torch.tanh(beta * standing)
    return t / t.max() if t.max() > 0 else torch.ones_like(t)


def rewarded(cohort: Cohort, given: Tensor, q: Tensor, sparsify: str) -> Tensor:
    """What each client holds and the share ``q`` [M] of the step; buffers, which are statistics, as ``given`` [M, G]."""
    P = len(cohort.theta)
    models = add_largest(cohort.kept[:, :P], cohort.step(), q, cohort.layout, sparsify)
    return torch.cat([models, given[:, P:]], 1)


@dataclass(frozen=True)
class CGSV(Rule):
    r"""Reputations from cosines with the aggregate, and for each client the part of the aggregate they earn.

    .. math:: u_m = \Gamma \frac{\Delta_m}{\lVert \Delta_m \rVert}, \qquad u = \sum_m r_m u_m, \qquad
        r_m \gets \alpha r_m + (1 - \alpha) \cos(u_m, u), \qquad
        \theta_m \gets \theta_m + \operatorname{top}_{q_m}(u), \quad q_m = \frac{\tanh(\beta r_m)}{\max_j \tanh(\beta r_j)}

    Every client trains its own model :math:`\theta_m`, sends :math:`\Delta_m` and goes back to :math:`\theta_m`. The cosine
    stands for the cosine gradient Shapley value. r starts at 0, is at least 0.001 after every round and then scaled to sum one;
    as long as there is none, u weighs clients by samples. Xu, Lyu, Ma, Miao, Foo, Low: Gradient Driven Rewards to
    Guarantee Fairness in Collaborative Machine Learning, NeurIPS 2021, with the constants of the released code.

    Parameters
    ----------
    alpha : share of the past in a reputation, in [0, 1]. Released: 0.95.
    beta : altruism, >= 0: how little the shares q differ. Released: 0.5 to 2, and 1e7, which gives every client everything.
        0, which does not define q, also does.
    gamma : length of every update, > 0; with the solver's rate it sets the size of a step. Released: 0.15 to 1.
    sparsify : which entries of u are the largest, see :func:`equipoise.core.maths.add_largest`: of every tensor
        (``"exact_layer"``), as the released code counts them (``"released_layer"``), or of the vector (``"paper_global"``).
    reputation : q from the client's ``"own"`` reputation, or from its ``"contribution"``, what it reaches alone. u weighs by
        reputations always.

    Server state: ``r`` [N].
    Server sees: inner products of updates.
    Traffic: nothing more up; down, only the entries a client is given. With ``contribution`` every client is first
    trained alone.
    Presets: ``contribution`` is one reading of FedSAC's remark that all its baselines reward by contribution.
    Differs: as released even q = 1 leaves out the smallest entry of every tensor, and a tensor of one entry is an
    error; the default counts exactly, and of equal entries takes those that stand first. Running statistics of
    BatchNorm are given whole: they describe, and have no direction. Absent clients (the paper has none) keep their
    model and r, which is scaled with the others'; q refers to the largest r of all; r of a client that was never there
    is 0, and so is its weight in its first round, if that is not the first of all. A sum that cancels out has no
    direction: its cosines are 0.
    """

    owns = frozenset({"mask", "weights", "direction", "reward"})  # the cosines are those of whole updates
    alpha: float = number(0.95, low=0, high=1)
    beta: float = number(1.0, low=0, search=among(0.5, 1.0, 1.2, 1.5, 2.0))
    gamma: float = number(0.5, low=0, above=True, search=log_uniform(0.15, 1))
    sparsify: str = choice("exact_layer", "released_layer", "paper_global")
    reputation: str = choice("own", "contribution")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"contribution"} if self.reputation == "contribution" else ())

    def server_state(self, setup: Setup) -> State:
        return {"r": torch.zeros_like(setup.sizes)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, r = cohort.ids, state["r"]
        a = simplex(r[i] if r[i].sum() > 0 else cohort.sizes)
        K = gram(cohort.updates)
        c = a * unit(K.diagonal().sqrt(), self.gamma)
        mixed = self.alpha * r[i] + (1 - self.alpha) * consensus(K, c)
        r = simplex(r.index_copy(0, i, mixed.clamp(min=LEAST)))
        notes = {**cohort.notes, "reputation": r[i].tolist()}
        return {"r": r}, replace(cohort, weights=a, coefficients=c, notes=notes)

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        standing = state["r"] if self.reputation == "own" else needed(cohort.contribution, "contributions")
        return state, rewarded(cohort, given, share(standing, self.beta)[cohort.ids], self.sparsify)


CATALOGUE = CatalogueEntry(
    (CGSV,),
    "to each client the part of the aggregate that its cosine with it earns",
    "Xu, Lyu, Ma, Miao, Foo, Low, NeurIPS 2021",
    {
        "released": {"sparsify": "released_layer"},
        "paper-global": {"sparsify": "paper_global"},
        "contribution": {"reputation": "contribution"},
    },
)
