"""FairFed: less weight to clients whose unfairness to groups of people is far from that of all clients."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core import cells
from equipoise.core.maths import simplex
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Presets, Rule, Setup, State, Visit
from equipoise.methods.fairgrad import constants
from equipoise.system.ranges import choice, number, uniform


def unfairness(n: Tensor, right: Tensor, metric: str) -> Tensor:
    """The ``metric`` of :class:`FairFed` [...], of counts ``n`` [..., R, A] and the recognised ones ``right``; NaN where a rate is undefined."""
    if metric == "eodds":
        clients = zip(n, right, strict=True)
        return torch.stack([(constants(a, metric)[1] * (a - b) / a).sum((2, 3)).abs().mean() for a, b in clients])
    positive = torch.stack([n[..., 0, :] - right[..., 0, :], right[..., 1, :]], -2)
    rows = slice(1, None) if metric == "eod" else slice(None)
    rate = positive[..., rows, :].sum(-2) / n[..., rows, :].sum(-2)
    if metric == "dp":
        overall = positive.sum((-2, -1)) / n.sum((-2, -1))
        return (rate - overall.unsqueeze(-1)).abs().amax(-1)
    return rate[..., 0] - rate[..., 1]


def gaps(accuracy: Tensor, p: Tensor, metric: Tensor | None = None, overall: Tensor | float = 0.0) -> Tensor:
    r"""How far each client is from the overall value [M]: :math:`|F_m - F|`, or :math:`|Acc_m - \sum_j p_j Acc_j|`.

    ``accuracy`` [M], shares of samples ``p`` [M]; a group metric F_m [M] (NaN where a client has none, whose accuracy
    counts instead) with its value ``overall`` is optional.
    """
    gap = (accuracy - p @ accuracy).abs()
    return gap if metric is None else torch.where(metric.isnan(), gap, (metric - overall).abs())


@dataclass(frozen=True)
class FairFed(Rule):
    r"""Take weight from clients whose unfairness differs more than average from that of all clients together.

    .. math:: \bar\omega_m \gets \bar\omega_m - \beta \left(\Delta_m - \tfrac1M \sum_j \Delta_j\right), \qquad
        \omega_m = \bar\omega_m / \sum_j \bar\omega_j, \qquad \Delta_m = | F_m - F |

    with F of the model sent out on the training data, of the client and of all clients; first :math:`\bar\omega = p`, the shares of samples.
    If :math:`F_m` is undefined, :math:`\Delta_m = | Acc_m - \sum_j p_j Acc_j |`. Ezzeldin, Yan, He, Ferrara, Avestimehr, AAAI 2023, Algorithm 1.
    It changes how clients count, not how they train: published numbers are of FairFed with a local rule, such as ``fairfed+reweighing:local``.

    Parameters
    ----------
    metric : F. ``"eod"``: the true-positive rate of the first group minus that of the second; ``"spd"``: the rates of positive
        predictions; ``"accuracy"``: none, all clients by their accuracy, which needs no attribute; ``"dp"``: the largest distance of a
        group's rate of positive predictions from that of all; ``"eodds"``: the mean over classes and groups of FairGrad's level for
        equalised odds. The last two are for any number of groups.
    beta : strength, in [0, 1000]; 0.1 to 1. 0 is FedAvg.
    clip : keep the weights >= 0. False is the published rule: a weight may turn negative, and then pushes away.
    balanced : accuracy as the mean over a client's classes.
    form : ``"paper"``, or what others compute under the name, see the presets; none of them is recommended.
    attribute : the sensitive attribute whose values are the groups; several joined by ``*``; empty: the first.
    least_count : >= 0; a client with fewer samples in a cell reports zeros for it.

    Server state: ``bar`` [N], not normalised, ``start`` [N], the shares of samples, and ``w`` [R, A], ``row`` [C], ``factor`` [K], see ``core/cells.py``.
    Reports: ``accuracy``, of the model it received on its training data, ``n`` [R, A], samples of each cell, and ``right`` [R, A], the recognised ones.
    Server sees: these reports of each client.
    Traffic: 2 R A + 1 numbers up; only one for ``metric="accuracy"``. Two more passes over the local data.
    Presets: ``accuracy`` was ``fairfed`` up to version 0.2. ``published`` does not clip. ``extended`` is for any number of groups. ``declearn``: beta is divided
        by the number of all samples, almost without effect. ``fedgft_authors``: first equal weights, and the normalised weights are
        carried. ``ffalm_authors``: these too, from the shares of samples, and F is the mean of the clients' absolute values. ``fedfb_authors``:
        :math:`\omega_m \propto p_m \exp(-\beta \Delta_m)` without memory. ``ffl4mia``: nothing in the first round, a mean accuracy without
        its sum, :math:`\Delta_m = Acc_m (1 - p_m)`, so that the accurate and the small lose weight, and the normalised weights are carried.
    Differs: weights are kept at 0 or above; without ``clip`` a weight may turn negative, and running statistics are
    then averaged without that client. Absent clients keep their weight; means and F are of those
    present; if those present have no weight left, they start again. Clients report counts, from which the server computes F and the gaps.
    """

    sees = "scalars+sum"
    metric: str = choice("eod", "spd", "accuracy", "dp", "eodds")
    beta: float = number(0.5, low=0, high=1000, search=uniform(0.1, 1))
    clip: bool = True
    balanced: bool = False
    form: str = choice("paper", "declearn", "fedgft", "ffalm", "fedfb", "ffl4mia")
    attribute: str = cells.attribute()
    least_count: int = cells.least_count()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"classes"}) if self.metric == "accuracy" else cells.NEEDS

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"weights"} if self.clip else {"weights", "direction"})

    @property
    def reports(self) -> str:
        counts = ", samples of each class and group, and how many of them are recognised"
        return "its accuracy" + counts * (self.metric != "accuracy")

    @property
    def ranges(self) -> dict[str, Bounds]:
        return {"accuracy": Bounds(0, 1), **({} if self.metric == "accuracy" else cells.reported("right"))}

    @property
    def binary(self) -> bool:
        return self.metric != "eodds"

    def server_state(self, setup: Setup) -> State:
        start = simplex(torch.ones_like(setup.sizes) if self.form == "fedgft" else setup.sizes)
        if self.metric == "accuracy":
            return {"bar": start, "start": start}
        table = (cells.two_groups if self.metric in ("eod", "spd") else cells.server_state)(self, setup)
        return {"bar": start, "start": start, **table}

    def message(self, state: State, m: int) -> State:
        return {} if self.metric == "accuracy" else cells.message(self, state, m)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        ask = visit.oracle.balanced_accuracy if self.balanced else visit.oracle.accuracy
        counts = {} if self.metric == "accuracy" else cells.finish(self, theta, visit)[0]
        return {"accuracy": ask(visit.received), **counts}, visit.state

    def _gap(self, reports: State, p: Tensor) -> Tensor:
        """How far each client is from the overall value [M]."""
        accuracy = reports["accuracy"].to(p.dtype)
        if self.form == "ffl4mia":
            return accuracy * (1 - p)
        if self.metric == "accuracy":
            return gaps(accuracy, p)
        n, right = reports["n"].double(), reports["right"].double()
        own, overall = unfairness(n, right, self.metric), unfairness(n.sum(0, True), right.sum(0, True), self.metric)
        if self.form == "ffalm":
            own, overall = own.abs(), (p * own.abs()).nansum()
        return gaps(accuracy, p, own, overall)

    def _update(self, bar: Tensor, gap: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """One step of the weights ``bar`` [M], from the gaps [M], with a ``share`` of beta."""
        if self.form == "fedfb":
            return bar * torch.exp(-self.beta * gap)
        bar = bar - self.beta * share * (gap - gap.mean())
        return bar.clamp(min=0) if self.clip else bar

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, p, first = cohort.ids, simplex(cohort.sizes), cohort.t == 0
        start = state["start"][i]
        old = start if self.form == "fedfb" else state["bar"][i]
        shares: dict[str, float | Tensor] = {
            "declearn": start.sum() / cohort.sizes.sum(),  # 1 / n
            "fedgft": 1 / cohort.n_clients if first else 1.0,
            "ffl4mia": 0.0 if first else 1.0,
        }
        bar = self._update(old, self._gap(cohort.reports, p), shares.get(self.form, 1.0))
        bar = bar if bar.sum() > 0 else start
        weights = bar / bar.sum()
        carried = old.sum() * weights if self.form in ("fedgft", "ffalm", "ffl4mia") else bar
        state = {**state, "bar": state["bar"].index_copy(0, i, carried)}
        if self.clip:
            return state, replace(cohort, weights=weights)
        convex = simplex(bar.clamp(min=0))  # for running variances, which must not turn negative
        return state, replace(cohort, weights=convex, coefficients=weights)


PRESETS: Presets = {
    "published": {"clip": False},
    "accuracy": {"metric": "accuracy"},
    "extended": {"metric": "eodds"},
    "declearn": {"form": "declearn", "beta": 1.0, "clip": False},
    "fedgft_authors": {"form": "fedgft", "beta": 1.0},
    "ffalm_authors": {"form": "ffalm", "metric": "spd", "beta": 0.2},
    "fedfb_authors": {"form": "fedfb", "metric": "dp", "beta": 1.0},
    "ffl4mia": {"metric": "accuracy", "form": "ffl4mia", "balanced": True},
}
CATALOGUE = CatalogueEntry(
    (FairFed,), "less weight to clients whose unfairness is far from that of all", "Ezzeldin et al., AAAI 2023", PRESETS
)
