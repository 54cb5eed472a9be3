"""Thresholds: one for each group of people, chosen by the server from histograms of the clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Rule, Setup, State, Visit
from equipoise.metrics.thresholds import CERTAIN, Metric, chances, edges
from equipoise.system.ranges import choice, number


@dataclass(frozen=True)
class Thresholds(Rule):
    r"""Take a sample for positive if its probability reaches the threshold of its group, whatever the method trains.

    .. math:: \max_{t_1 ... t_A} \sum_a \text{correct}_a(t_a) \quad \text{with} \quad \max_a r_a(t_a) - \min_a r_a(t_a) \le \epsilon

    where :math:`r_a` is the true-positive rate of group a (for equalised odds also the false-positive rate; for demographic parity the
    selection rate) on all clients' training samples, from histograms of the probability. ``form="randomised"`` is Hardt, Price, Srebro,
    NeurIPS 2016: two thresholds for each group, between which chance decides, and equal rates.

    Parameters
    ----------
    metric : ``"eo"``, equal opportunity; ``"eodds"``, equalised odds, for which an ``eps`` of 0.05 is usual; ``"dp"``, demographic parity.
    eps : difference of rates that is allowed, in [0, 1]. At 0 often no one is taken for positive.
    bins : of equal width, of the histograms, in 2..200. For ``"eodds"`` the search takes time by the square of groups times bins.
    form : ``"deterministic"`` or ``"randomised"``, whose decisions about the same person may differ from time to time.
    attribute : the sensitive attribute whose values are the groups; several joined by ``*``; empty: the first.
    least_count : >= 0; a client with fewer samples of a class and group reports zeros for them.

    Server state: ``chance`` [A, B], of taking a sample in each of B bins for positive, and ``w`` [R, A], ``row`` [C], ``factor`` [K], see
    ``core/cells.py``.
    Reports: ``hist`` [R, A, B], samples of each class, group and bin.
    Server sees: sums of updates and histograms.
    Traffic: R A numbers down, R A B up. One more pass over the local data.
    Presets: ``randomised``.
    Differs: histograms are of the model sent out, so the thresholds of a model are those chosen for the one before. A sample of an unknown
    group keeps 1/2, and a group without samples of a class the edge in the middle. One bin may hold a single person: ``least_count`` is about
    a class and group. The decisions need the attribute at prediction, which laws may forbid.
    Losses and areas under curves are of the probabilities, which do not change.
    """

    needs = cells.NEEDS
    owns = frozenset({"decision"})
    sees = "sum"
    reports = "a histogram of its probabilities by class and group"
    ranges = {"hist": Bounds(0, samples=True)}  # noqa: RUF012
    binary = True
    metric: Metric = choice("eo", "eodds", "dp")  # noqa: RUF009
    eps: float = number(0.02, low=0, high=1)
    bins: int = number(100, low=2, high=200)
    form: str = choice("deterministic", "randomised")
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    message = cells.message

    def server_state(self, setup: Setup) -> State:
        state = cells.server_state(self, setup)
        half = torch.arange(self.bins, dtype=torch.float64) >= self.bins / 2
        return {**state, "chance": half.to(state["w"]).expand(state["w"].shape[1], -1).clone()}

    def no_report(self, setup: Setup) -> State:
        return {"hist": setup.initial.new_zeros(2, cells.factors(setup, self.attribute)[1], self.bins)}

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        hist = cells.histogram(visit, self.bins)
        enough = hist.sum(-1, keepdim=True) >= self.least_count
        return {"hist": (hist * enough).to(theta.dtype)}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        hist = cohort.reports["hist"].double().sum(0).transpose(0, 1).cpu().numpy()
        if self.form == "randomised":
            chance = torch.from_numpy(chances(hist, self.metric))
        else:
            first = torch.from_numpy(edges(hist, self.metric, self.eps))
            chance = (torch.arange(self.bins) >= first[:, None]).double()
        return {**state, "chance": chance.to(state["chance"])}, cohort

    def decide(self, predicted: Tensor, outputs: Tensor, s: Tensor | None, state: State) -> Tensor:
        if s is None:
            return predicted
        group, row, chance = cells.group_of(state, s), state["row"], state["chance"]
        share = torch.cat([chance, chance[:1]])[group, cells.bin_of(outputs, row, self.bins)]
        drawn = torch.rand(len(s), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(share.device)
        return cells.decided(predicted, outputs, row, drawn < share, group < len(chance))

    def edges(self, state: State) -> tuple[str, Tensor] | None:
        if self.form == "randomised":
            return None
        least = (self.bins - state["chance"].sum(1)) / self.bins
        return self.attribute, least.where(least < 1, CERTAIN)  # CERTAIN: no one


CATALOGUE = CatalogueEntry(
    (Thresholds,),
    "a threshold for each group of people, after any training",
    "Hardt, Price, Srebro, NeurIPS 2016",
    {"randomised": {"form": "randomised"}},
)
