"""LoGoFair: thresholds by group with a budget for the gap of all clients, and one for the gap inside each."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Rule, Setup, State, Visit
from equipoise.metrics.thresholds import CERTAIN
from equipoise.system.ranges import number

TRIED = torch.linspace(-1, 1, 31, dtype=torch.float64)  # values of lam about the last one, as multiples of the width
SIGN = torch.tensor([1.0, -1.0], dtype=torch.float64)


def shift(n: Tensor, own: Tensor, lam: Tensor, u: Tensor) -> Tensor:
    """By how much the group's thresholds differ from 1/2, times twice its share of all samples [..., L, 2], for ``lam`` and ``u`` [..., L].

    ``n`` [..., 2] are the samples of each group, ``own`` [..., 2] the client's.
    """
    return SIGN.to(n) * (lam.unsqueeze(-1) * (own / n.clamp(min=1)).unsqueeze(-2) + u.unsqueeze(-1))


def cost(score: Tensor, weight: Tensor, n: Tensor, lam: Tensor, u: Tensor) -> Tensor:
    """A client's part H [..., L] of the dual problem for ``lam`` and ``u`` [..., L], without the prices of the budgets.

    ``score`` [..., 2, B] are probabilities of each group, that ``weight`` [..., 2, B] samples of the client have; ``n`` [..., 2] are all samples.
    """
    own, total = weight.sum(-1), n.sum(-1, keepdim=True)
    gain = (own / total).unsqueeze(-1) * (2 * score - 1)
    over = (gain.unsqueeze(-3) - shift(n, own, lam, u).unsqueeze(-1)).relu() * weight.unsqueeze(-3)
    return (over.sum(-1) / own.clamp(min=1).unsqueeze(-2)).sum(-1)


@dataclass(frozen=True)
class LoGoFair(Rule):
    r"""Decide by thresholds that keep the gap of selection rates small over all clients, and inside each client.

    .. math:: t_{0k} = \tfrac12 + \frac{\lambda}{2 p_0} + \frac{u_k}{2 \pi_{0k}}, \qquad t_{1k} = \tfrac12 - \frac{\lambda}{2 p_1} - \frac{u_k}{2 \pi_{1k}}

    with a group's share :math:`p_a` of all samples and that of client k's samples of it, :math:`\pi_{ak}`; :math:`\lambda` and :math:`u_k` minimise
    :math:`\sum_k (H_k(\lambda, u_k) + \delta_k |u_k|) + \delta |\lambda|`. For each of 31 values of :math:`\lambda` a client finds its best :math:`u_k`
    alone, and reports only what the sum then is. Zhang et al., AAAI 2025, for demographic parity.

    Parameters
    ----------
    budget : of the gap of selection rates over all clients, in [0, 1].
    local : of the gap inside each client, in [0, 1]; at 1 all clients have the same thresholds.
    bins : of equal width, of a client's histograms of the probability, in 2..1000.
    attribute : the sensitive attribute, with two values, that are the groups; empty: the first.
    least_count : >= 0; a client with fewer samples in a group keeps the common thresholds, and reports zeros for it.

    Client state: ``hist`` [A, B], samples of each group and bin, which stay there.
    Server state: ``lam``, the ``width`` of its search, ``n`` [2], samples of each group, and ``w`` [2, 2], ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``n`` [A], samples of each group, and ``cost`` [31], the best H for each value of :math:`\lambda`.
    Server sees: sums of updates and of the reports.
    Traffic: 8 numbers down, 33 up. One more pass over the local data.
    Differs: exact searches replace the authors' smoothed gradient steps; the search for :math:`\lambda` narrows from round to round. Probabilities are
    the model's, and not calibrated again. They are of the model sent out, so thresholds are those for the model of the round before. Equalised odds are
    left out. Test sets that belong to no client are decided with u = 0. The decisions need the attribute at prediction, which laws may forbid.
    """

    needs = cells.NEEDS
    owns = frozenset({"decision"})
    sees = "sum"
    reports = "samples of each group, and a sum over them for each of 31 shifts of the thresholds"
    ranges = {"n": Bounds(0, samples=True), "cost": Bounds(0)}  # noqa: RUF012
    binary = True
    budget: float = number(0.02, low=0, high=1)
    local: float = number(0.02, low=0, high=1)
    bins: int = number(100, low=2, high=1000)
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    def client_state(self, setup: Setup) -> State:
        return {"hist": torch.zeros(2, self.bins, dtype=torch.float64, device=setup.initial.device)}

    def server_state(self, setup: Setup) -> State:
        state = cells.two_groups(self, setup)
        zero = state["w"].new_zeros(())
        return {**state, "lam": zero, "width": zero + 0.5, "n": torch.zeros_like(state["w"][0])}

    def no_report(self, setup: Setup) -> State:
        return {"n": setup.initial.new_zeros(2), "cost": setup.initial.new_zeros(len(TRIED))}

    def message(self, state: State, m: int) -> State:
        return {**cells.message(self, state, m), **{key: state[key] for key in ("lam", "width", "n")}}

    def _best(self, hist: Tensor, n: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The best u [..., L] of a client for each ``lam`` [..., L], and its H with the price; u is 0 at a client with one group."""
        score = ((torch.arange(self.bins) + 0.5) / self.bins).to(hist).expand_as(hist)
        both = (hist.sum(-1) > 0).all(-1, keepdim=True)

        def priced(u: Tensor) -> Tensor:
            return cost(score, hist, n, lam, u) + self.local * u.abs()

        low, high = torch.full_like(lam, -1), torch.full_like(lam, 1)
        for _ in range(60):  # convex in u: the best third is never cut off
            a, b = (2 * low + high) / 3, (low + 2 * high) / 3
            left = priced(a) <= priced(b)
            low, high = torch.where(left, low, a), torch.where(left, b, high)
        u = (low + high) / 2 * both
        return u, priced(u)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        message, hist = visit.message, cells.histogram(visit, self.bins).sum(-3)
        hist = hist * (hist.sum(-1, keepdim=True) >= self.least_count)
        tried = message["lam"].unsqueeze(-1) + message["width"].unsqueeze(-1) * TRIED.to(hist)
        own = hist.sum(-1)
        n = torch.where(message["n"] > 0, message["n"], own.clamp(min=1))  # not known in the first round
        return {"n": own.to(theta), "cost": self._best(hist, n, tried)[1].to(theta)}, {"hist": hist}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        sums, (lam, width) = cells.total(cohort), (state["lam"], state["width"])
        tried = lam + width * TRIED.to(lam)
        k = (sums["cost"] + self.budget * tried.abs()).argmin()
        inside, counted = (k > 0) & (k < len(TRIED) - 1), (state["n"] > 0).all()
        width = torch.where(counted, torch.where(inside, width / 2, width * 2).clamp(0.002, 0.5), width)
        n = torch.where((sums["n"] > 0).all(), sums["n"], state["n"])
        return {**state, "lam": torch.where(counted, tried[k], lam), "width": width, "n": n}, cohort

    def _limits(self, state: State) -> Tensor:
        """The least probabilities [2] that are taken for positive, of the server's ``state``, or of that and a client's."""
        n, lam = state["n"].clamp(min=1), state["lam"][None]
        u, own = lam * 0, n
        if "hist" in state:
            u, own = self._best(state["hist"], n, lam)[0], state["hist"].sum(-1).clamp(min=1)
        return 0.5 + (shift(n, own, lam, u)[0] / (2 * own / n.sum()))

    def decide(self, predicted: Tensor, outputs: Tensor, s: Tensor | None, state: State) -> Tensor:
        if s is None:
            return predicted
        group, row, least = cells.group_of(state, s), state["row"], self._limits(state)
        taken = cells.chance_of_positive(outputs, row) >= torch.cat([least, least[:1]])[group]
        return cells.decided(predicted, outputs, row, taken, group < 2)

    def edges(self, state: State) -> tuple[str, Tensor] | None:
        return self.attribute, self._limits(state).clamp(0, CERTAIN)


CATALOGUE = CatalogueEntry(
    (LoGoFair,), "thresholds by group, with budgets over all clients and inside each", "Zhang et al., AAAI 2025"
)
