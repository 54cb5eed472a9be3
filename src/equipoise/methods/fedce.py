"""FedCE: weigh clients by what their update and their data add to the others'."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from equipoise.core.maths import gram, simplex
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Presets, Rule, Setup, State, Visit
from equipoise.system.ranges import among, choice, number

# With all but ALONE of the weight a client leaves no model of the others; contributions up to TINY are the rounding of 0.
ALONE, TINY = 1e-6, 1e-12


def without(theta: Tensor, own: Tensor, c: Tensor) -> Tensor:
    r"""The model of the others, :math:`(\theta - c\, \theta_m) / (1 - c)`, of shape [..., G]; ``c`` [..., 1]."""
    return (theta - c * own) / (1 - c)


def cosines(K: Tensor, c: Tensor) -> Tensor:
    """Cosine of each update with the rest of the consensus [M], from their Gram matrix ``K`` [M, M]; 0 without length."""
    others = c.expand_as(K) - c.diag()
    square = (others @ K * others).sum(1)
    enough = square > 1e-12 * others.square() @ K.diagonal()  # otherwise the others cancel, and rounding is left
    length = (square * K.diagonal()).clamp(min=0).sqrt()
    cosine = (others @ K).diagonal() / torch.where(length > 0, length, 1)
    return torch.where(enough & (length > 0), cosine, 0).clamp(-1, 1)


@dataclass(frozen=True)
class FedCE(Rule):
    r"""Weigh clients by their contribution in gradient space times their contribution in data space.

    .. math:: a_m = 1 - \overline{\cos}\Big(\Delta_m, \sum_{j \ne m} c_j \Delta_j\Big), \qquad
        b_m = 1 - \overline{Acc_m\left(\theta_{-m}\right)}, \qquad c \propto a\, b, \qquad
        \theta_{-m} = \frac{\theta^t - c_m \theta_m}{1 - c_m}

    Bars are means over the rounds so far; a and b are scaled to sum one first; :math:`\theta_m` is the client's own model
    of the last round and :math:`c_m` its weight in it. Jiang, Roth, Li, Yang, Zhao, Nath, Xu, Dou, Xu, CVPR 2023.

    Parameters
    ----------
    mode : ``"times"``, or ``"plus"`` for :math:`c \propto a + b`.
    coef_average : use the mean of a client's coefficients over its rounds, instead of the last ones.
    prior : the c in a: the ``"last"`` weights or ``"uniform"``.
    first_zero : count the first round, in which there is no :math:`\theta_{-m}` yet, as an accuracy of 0.
    floor : least a and b, >= 0. 2 is the most a can be, so from there on the weights are equal.
    floors : apply the floor ``"before"`` scaling, or ``"after"`` every scaling (then also to c).
    metric : ``"balanced"`` accuracy (mean over a client's classes) or ``"accuracy"``, on the training data.

    Client state: ``previous`` [G], its last model. Server state: ``c`` [N]; ``used`` [N], the weights in the last step
    (-1: absent); sums over rounds ``cos``, ``metric``, ``total`` and their counts ``visits``, ``measured``, each [N].
    Reports: ``metric``, accuracy on its training data of the model of the others; ``measured``, whether there is one.
    Server sees: inner products of updates.
    Traffic: one number down, two up. One more pass over the local data.
    Differs: weights are always scaled to sum one, also where NVFlare's floors of 2023 leave another sum. Accuracy on
    training data takes the place of the Dice score on validation data. :math:`\theta_{-m}` is measured only by clients
    that took part in the last round without being all of it, and where the step was the weighted mean (SCAFFOLD with
    another eta, FedDyn: never); a client not measured yet has the mean b. Those present share out the weight they had
    together (the paper assumes no absent clients). A client that did not move, or whose others cancel, has cosine 0.
    """

    needs = frozenset({"classes"})
    # the model of the others is known if weights alone made the step
    owns = frozenset({"weights", "mask", "direction"})
    reports = "its accuracy without its own last update"
    ranges = MappingProxyType({"metric": Bounds(0, 1), "measured": Bounds(0, 1)})
    mode: str = choice("times", "plus", search=among("times", "plus"))
    coef_average: bool = True
    prior: str = choice("last", "uniform")
    first_zero: bool = False
    floor: float = number(1e-6, low=0)
    floors: str = choice("before", "after")
    metric: str = choice("balanced", "accuracy")

    def client_state(self, setup: Setup) -> State:
        return {"previous": setup.initial.clone()}

    def server_state(self, setup: Setup) -> State:
        sums = ("cos", "visits", "metric", "measured", "total")
        ones = torch.ones_like(setup.sizes)
        return {"c": simplex(ones), "used": -ones, **{k: torch.zeros_like(ones) for k in sums}}

    def message(self, state: State, m: int) -> State:
        return {"c": state["used"][m]}

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        ask = visit.oracle.accuracy if self.metric == "accuracy" else visit.oracle.balanced_accuracy
        c = visit.message["c"].to(visit.received.dtype).unsqueeze(-1)
        defined = (c >= 0) & (c < 1 - ALONE)
        others = torch.where(defined, without(visit.received, visit.state["previous"], c), visit.received)
        measured = defined.squeeze(-1).to(others.dtype)
        return {"metric": ask(others) * measured, "measured": measured}, {"previous": visit.trained}

    def _coefficients(self, a: Tensor, b: Tensor) -> Tensor:
        """The coefficients of a round [M] from both contributions [M]."""
        first, then = (self.floor, 0.0) if self.floors == "before" else (0.0, self.floor)
        a, b = (simplex(v.where(v > TINY, 0).clamp(min=first)).clamp(min=then) for v in (a, b))
        return simplex(a * b if self.mode == "times" else a + b).clamp(min=then)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, mass = cohort.ids, state["c"][cohort.ids].sum()
        now = {k: v.to(mass.dtype) for k, v in cohort.reports.items()}
        K = gram(cohort.updates).to(mass.dtype)
        now["cos"] = cosines(K, cohort.uniform if self.prior == "uniform" else simplex(state["c"][i]))
        now["visits"] = torch.ones_like(now["cos"])
        if self.first_zero:
            now["measured"] = torch.where(state["visits"][i] == 0, 1, now["measured"])
        new = {k: state[k][i] + v for k, v in now.items()}
        b = 1 - new["metric"] / new["measured"].clamp(min=1)
        measured = new["measured"] > 0
        b = torch.where(measured, b, b[measured].mean()) if measured.any() else b
        c = self._coefficients(1 - new["cos"] / new["visits"], b)
        new["total"] = state["total"][i] + mass * c
        weights = simplex(new["total"] / new["visits"] if self.coef_average else c)
        plain = cohort.scale == 1 and cohort.shift is None
        new |= {"c": mass * weights, "used": weights if plain else -torch.ones_like(weights)}
        old = {**state, "used": torch.full_like(state["used"], -1)}
        return {k: v.index_copy(0, i, new[k]) for k, v in old.items()}, replace(cohort, weights=weights)


PRESETS: Presets = {
    "ffl4mia": {"first_zero": True, "floor": 0.0},
    "nvflare2026": {"mode": "plus", "coef_average": False, "first_zero": True},
    "nvflare2023": {"coef_average": False, "prior": "uniform", "first_zero": True, "floor": 0.001, "floors": "after"},
}
CATALOGUE = CatalogueEntry(
    (FedCE,), "weights by what a client's update and data add to the others'", "Jiang et al., CVPR 2023", PRESETS
)
