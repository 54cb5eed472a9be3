"""FedGA: more weight to clients on which averaging costs most (generalisation adjustment)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import simplex
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Presets, Rule, Setup, State, Visit
from equipoise.system.ranges import choice, number, uniform


@dataclass(frozen=True)
class FedGA(Rule):
    r"""Raise the weight of clients on which the averaged model is worse than their own.

    .. math:: a_m \gets a_m + d_r \frac{G_m - \bar G}{\max_j |G_j - \bar G|}, \qquad a \gets \frac{\max(a, 0)}{\sum_j \max(a_j, 0)},
        \qquad d_r = \left(1 - \tfrac{r}{R}\right) \frac{d}{N}, \qquad G_m = F_m(\theta^r) - F_m(\theta_m^{r-1})

    with :math:`\theta^r` sent out in round r (counted from 0) and :math:`\theta_m^{r-1}` the client's own model of its
    visit before, on its training data; R rounds are planned. Weights are equal at first. The step uses the weights after
    the change. Zhang, Xu, Yao, Zhang, Tian, Wang, Federated Domain Generalization with Generalization Adjustment, CVPR 2023.

    Parameters
    ----------
    d : the most that a weight changes in a round, in [0, 1000], as a part of the equal weight 1/N; 0.05 to 0.2. 0 keeps equal
        weights.
    relative : False takes d itself, without N.
    metric : gaps of ``"loss"``, or of ``"accuracy"`` with the sign turned, so that a loss of accuracy raises the weight.
    form : ``"released"`` scales to sum one before it clips at 0, as FFL4MIA does; ``"official"`` is the authors' code,
        which does not centre the gaps, takes :math:`(1 - (r - 2)/R)` and clips to [0, 1].

    Client state: ``last``, loss or accuracy of its last model; ``seen``, whether there is one. Server state: ``a`` [N].
    Reports: ``gap``, how much worse, on its training data, the model it received is than its own last one; ``seen``,
    whether there is one.
    Server sees: ``gap`` and ``seen``.
    Traffic: two numbers up. Two more passes over the local data.
    Presets: ``released`` as FFL4MIA has it; ``official`` and ``official-acc`` as the authors' code, whose 1/3 is 1/N
    for three domains.
    Differs: the gap of a round is reported at the start of the client's next visit, so that no further exchange is
    needed; the weights are used when the equation requires. It is a gap on training data. Equal gaps leave the weights as
    they are. Absent clients keep their weight, newcomers too, and the others share out the weight they had together.
    """

    owns = frozenset({"weights"})
    sees = "scalars+sum"
    reports = "how its loss changed by averaging"
    d: float = number(0.2, low=0, high=1000, search=uniform(0.05, 0.2))
    relative: bool = True
    metric: str = choice("loss", "accuracy")
    form: str = choice("paper", "released", "official")

    @property
    def ranges(self) -> dict[str, Bounds]:
        return {"gap": Bounds() if self.metric == "loss" else Bounds(-1, 1), "seen": Bounds(0, 1)}

    def client_state(self, setup: Setup) -> State:
        return {"last": setup.initial.new_zeros(()), "seen": setup.initial.new_zeros(())}

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        ask, sign = (visit.oracle.loss, 1) if self.metric == "loss" else (visit.oracle.accuracy, -1)
        last, seen = visit.state["last"], visit.state["seen"]
        gap = sign * seen * (ask(visit.received) - last)
        return {"gap": gap, "seen": seen}, {"last": ask(visit.trained), "seen": torch.ones_like(seen)}

    def server_state(self, setup: Setup) -> State:
        return {"a": simplex(torch.ones_like(setup.sizes))}

    def _adjust(self, a: Tensor, spread: Tensor, d: float, mass: Tensor) -> Tensor:
        """Weights [m] of the clients with (centred) gaps ``spread`` [m] after a step of at most ``d``, of sum ``mass``."""
        a = a + d * spread / spread.abs().max()
        if self.form == "released":
            return (mass * simplex(a)).clamp(min=0)
        return mass * simplex(a.clamp(min=0, max=1 if self.form == "official" else None))

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        a, seen, official = state["a"], cohort.reports["seen"] > 0, self.form == "official"
        ids, gap = cohort.ids[seen], cohort.reports["gap"][seen].to(a.dtype)
        spread = gap if official else gap - gap.mean()
        if len(ids) and spread.abs().max() > 1e-12 * gap.abs().max():  # otherwise all are equal: nothing is learnt
            left = max(0.0, 1 - (cohort.t - 2 * official) / cohort.rounds)
            d = left * self.d / (cohort.n_clients if self.relative else 1)
            mass = a.new_tensor(len(ids) / len(a)) if self.form == "released" else a[ids].sum()
            a = a.index_copy(0, ids, self._adjust(a[ids], spread, d, mass))
        return {"a": a}, replace(cohort, weights=simplex(a[cohort.ids]))


PRESETS: Presets = {
    "released": {"d": 0.05, "form": "released"},
    "official": {"form": "official"},
    "official-acc": {"metric": "accuracy", "form": "official"},
}
CATALOGUE = CatalogueEntry(
    (FedGA,), "more weight where averaging costs most (generalisation adjustment)", "Zhang et al., CVPR 2023", PRESETS
)
