"""FedSAC: submodels of one network, larger for those who contribute more."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.rule import Briefing, CatalogueEntry, Cohort, Presets, Rule, Setup, State, needed
from equipoise.submodels.importance import ablation
from equipoise.system.ranges import choice, log_uniform, number

log = logging.getLogger(__name__)
SLACK = 1e-9  # of a cumulative score, against rounding


def reputations(c: Tensor, beta: float) -> Tensor:
    r"""Reputation :math:`r_i = 100\, e^{\beta c_i} / \max_j e^{\beta c_j}` of contributions ``c`` [N] (Eqs. 5-6)."""
    return 100 * torch.exp(beta * (c - c.max()))


def scores(importance: Tensor, form: str = "clip") -> Tensor:
    """Importances [K] as percentages (Eq. 4); equal ones where none is positive.

    Harmful units cost nothing (``"clip"``) or less than nothing (``"paper"``); infinite ones share everything.
    """
    if importance.isinf().any():
        importance = importance.isinf().to(importance.dtype)
    share = importance if form == "paper" else importance.clamp(min=0)
    total = share.sum()
    return 100 * share / total if total.abs() > 1e-12 else torch.full_like(share, 100 / len(share))


def prefixes(S: Tensor, r: Tensor, form: str = "largest_le") -> Tensor:
    """How many units, in ascending order of importance, each reputation ``r`` [N] buys: [N].

    ``S`` [K] are cumulative scores; the largest prefix that costs at most r, or the smallest that costs at least r.
    """
    number = torch.arange(1, len(S) + 1, device=S.device)
    if form == "largest_le":
        k = (number * (r[:, None] + SLACK >= S)).amax(1)
    else:
        k = torch.where(r[:, None] - SLACK > S, len(S), number).amin(1)
    return torch.where(r >= 100 - SLACK, len(S), k)


def allocate(order: Tensor, k: Tensor, sizes: Sequence[int] = (), least: int = 0) -> Tensor:
    """The first ``k`` [N] units of ``order`` [K] for each client, and the first ``least`` of each layer for all: [N, K]."""
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
    units = place < k[:, None]
    if least:
        first = [part.argsort().argsort() < least for part in place.split(list(sizes))]
        units |= torch.cat(first)
    return units


def average_holders(cohort: Cohort, count: str) -> Cohort:
    """Each parameter averaged over the clients that hold it, or, with ``"update_nonzero"``, that also changed it."""
    held = needed(cohort.held, "submodels")
    mask, buffer_mask = held.tensor_split([cohort.updates.shape[1]], 1)
    if count == "update_nonzero":
        mask = (cohort.updates != 0).logical_and_(mask)
        buffer_mask = (cohort.buffer_updates != 0).logical_and_(buffer_mask)
    return replace(cohort, weights=cohort.uniform, mask=mask, buffer_mask=buffer_mask)


@dataclass(frozen=True)
class FedSAC(Rule):
    r"""Give every client a submodel as good as its contribution; average each parameter over those who hold it.

    .. math:: I_k = F(\theta_{-k}) - F(\theta), \qquad s_k = 100 \frac{\max(I_k, 0)}{\sum_j \max(I_j, 0)}, \qquad
        r_i = 100 \frac{e^{\beta c_i}}{\max_j e^{\beta c_j}}

    .. math:: k_i = \max\Big\{k : \sum_{j \le k} s_{o_j} \le r_i\Big\}, \qquad
        \theta^{t+1} = \theta^t + \frac{\sum_i M_i \odot \Delta_i}{\sum_i M_i}

    Client i holds the :math:`k_i` least important hidden units of the order o, and every weight between two units it holds,
    which :math:`M_i` marks; a parameter that no client holds does not change. F is the loss on the server's validation data,
    :math:`c_i` the accuracy client i reaches alone. Wang, Wang, Lyu, Peng, Yang, Wen, Yu, Wang, Fan, KDD 2024, Eqs. 3-9.

    Parameters
    ----------
    beta : >= 0; 0 gives every client the whole network. 1 to 25: the larger, the less a low contributor gets.
    every : rounds between two computations of the importances, >= 1.
    source : contributions measured on the server's validation data, or, as published, on the test data, which then leak
        into training.
    scores : harmful units cost nothing (``"clip"``), or the value of Eq. 4 (``"paper"``).
    prefix : the largest prefix worth at most r (``"largest_le"``) or the smallest worth at least r (``"smallest_ge"``).
    min_per_layer : least important units of every layer that all clients hold, >= 0; 0 may leave a layer empty.
    count : those who hold a parameter (``"structural"``), or of these only whose update is not zero (``"update_nonzero"``).
    allocation : by importance, or a new ``"random"`` order each time (the paper's ablation).
    aggregation : by ``"frequency"``, as above, or as FedAvg by ``"samples"`` (the paper's ablation).

    Server state: ``r`` [N], ``units`` [N, K], ``importance`` [K] (without ``"random"``).
    Model sent: submodel.
    Server sees: each client's model trained alone, whose accuracy is its contribution, unless contributions are given;
    of the submodels only sums.
    Traffic: the entries of the submodel each way, and one bit for each hidden unit down. What each client reaches alone
    is measured before the first round, by training every client as ``standalone`` does, unless
    ``Federation(contribution=[...])`` gives it. A client that only trains (without other local rules) trains a
    smaller network; otherwise the whole one is masked, with the same numbers.
    Presets: ``published`` measures contributions on the test data; ``cla`` and ``dir2`` have the beta of the paper's
    tables for those partitions, where its beta for POW and DIR(1) is 10; ``literal`` has the equations as printed;
    ``fedrac`` counts as a later code of the first author.
    Differs: the authors released no code. The prefix begins at the least important unit: who contributes little holds
    many units, but not the best ones. All submodels are nested, so what one client learns is valid in the others. Units
    that add a NaN or an infinity to the loss count as the most important. Importances are compared to seven digits.
    With partial participation r stays relative to all clients, and the mean is over those present. Every record has
    ``reputation`` [M], r, and those of rounds in which importances are computed have ``importance`` [K], null where not finite.
    """

    beta: float = number(10.0, low=0, search=log_uniform(1, 25))
    every: int = number(10, low=1)
    source: str = choice("standalone_val", "standalone_test")
    scores: str = choice("clip", "paper")
    prefix: str = choice("largest_le", "smallest_ge")
    min_per_layer: int = number(1, low=0)
    count: str = choice("structural", "update_nonzero")
    allocation: str = choice("importance", "random")
    aggregation: str = choice("frequency", "samples")

    @property
    def owns(self) -> frozenset[str]:
        own = {"submodel", "start", "reward"}  # a model kept from another round would lack the units of this one
        return frozenset(own | {"mask", "weights"} if self.aggregation == "frequency" else own)

    @property
    def needs(self) -> frozenset[str]:
        judged = "contribution" if self.source == "standalone_val" else "contribution_on_test"
        return frozenset({"neurons", "validation", judged})

    def server_state(self, setup: Setup) -> State:
        K = 0 if setup.neurons is None else setup.neurons.n
        everything = torch.ones(setup.n_clients, K, dtype=torch.bool, device=setup.initial.device)
        state = {"r": torch.full_like(setup.sizes, 100.0), "units": everything}
        if self.allocation == "importance":
            state["importance"] = torch.zeros(K, dtype=torch.float64, device=setup.initial.device)
        return state

    def prepare(self, state: State, briefing: Briefing) -> State:
        if briefing.t % self.every:
            return state
        r, sizes = state["r"], needed(briefing.neurons, "hidden units").sizes
        if briefing.t == 0:
            r = reputations(needed(briefing.contribution, "contributions"), self.beta)
        measured = {} if self.allocation == "random" else {"importance": self._importances(briefing)}
        order, S = self._ranked(briefing, sum(sizes), **measured)
        k = prefixes(S, r, self.prefix)
        return {"r": r, "units": allocate(order, k, sizes, self.min_per_layer), **measured}

    def _ranked(self, briefing: Briefing, K: int, importance: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hidden units in ascending order of importance (None: in a random one), and their scores added up: [K] each."""
        if importance is None:
            drawn = torch.Generator().manual_seed((briefing.seed * 1_000_003 + briefing.t) % 2**63)
            device = briefing.vector.device
            return torch.randperm(K, generator=drawn).to(device), torch.arange(1, K + 1, device=device) * (100 / K)
        order = importance.argsort(stable=True)
        return order, scores(importance, self.scores)[order].cumsum(0)

    def _importances(self, briefing: Briefing) -> Tensor:
        """The importance of every hidden unit [K], infinite where it is not finite."""
        oracle = needed(briefing.oracle, "validation data")
        without, whole = ablation(needed(briefing.neurons, "hidden units"), briefing.vector, oracle.batches())
        # To seven digits, so that rounding does not decide between equals; what is not finite is the most important.
        I = ((without - whole) * 1e7).round() / 1e7
        I = torch.where(I.isfinite(), I, torch.inf)
        if I.isinf().any():
            log.warning("fedsac: the loss is not finite without some hidden units, which then count as most important")
        return I

    def submodel(self, state: State, m: int) -> Tensor:
        return state["units"][m]

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        notes = {**cohort.notes, "reputation": state["r"][cohort.ids].tolist()}
        if cohort.t % self.every == 0 and "importance" in state:
            notes["importance"] = [x if math.isfinite(x) else None for x in state["importance"].tolist()]
        cohort = replace(cohort, notes=notes)
        if self.aggregation == "samples":
            return state, cohort
        return state, average_holders(cohort, self.count)


PAPER = "Wang et al.: FedSAC: Dynamic Submodel Allocation for Collaborative Fairness, KDD 2024"
PRESETS: Presets = {
    "published": {"source": "standalone_test"},
    "cla": {"beta": 3.0},
    "dir2": {"beta": 5.0},
    "literal": {"scores": "paper", "min_per_layer": 0},
    "fedrac": {"count": "update_nonzero"},
}
CATALOGUE = {
    "fedsac": CatalogueEntry(
        (FedSAC,), "submodels of one network, larger for those who contribute more", PAPER, PRESETS
    ),
    "fedsac-no-allocation": CatalogueEntry(
        (FedSAC,),
        "FedSAC's submodels drawn at random, of the same size",
        PAPER,
        values={"allocation": "random"},
        remarks='The ablation "w/o allocation" of Tables 3 and 4: at every measurement a new random order of all hidden units. The '
        "paper states only that all units are treated equally; in the order of their numbers the second layer would be emptied "
        "first. ``scores`` has no effect.",
        printed="FedSAC (no allocation)",
    ),
    "fedsac-no-aggregation": CatalogueEntry(
        (FedSAC,),
        "FedSAC's submodels averaged as by FedAvg",
        PAPER,
        values={"aggregation": "samples"},
        remarks='The ablation "w/o aggregation" of Tables 3 and 4. The average is of updates: averaging submodels padded with '
        "zeros would pull parameters that few hold towards zero. The weights are free, so ``fedsac-no-aggregation+afl`` is "
        "possible. ``count`` has no effect.",
        printed="FedSAC (no aggregation)",
    ),
}
