"""FedMDFG: a step that no client's update opposes, and that makes the losses more equal."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.maths import directions, gram, min_on_simplex, put, take
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Setup, State
from equipoise.system.ranges import among, number

SHORTEST = 1e-6  # an update that is not longer is left out
EQUAL = 1e-12  # sine of the angle within which losses are equal
ROUNDING = 1e-5  # of the mean's length: a shorter combination is rounding


def pull(loss: Tensor) -> Tensor:
    """How updates with losses ``loss`` [M] make them equal: a combination [M] whose length is the sine of their angle with (1, ..., 1), or 0."""
    L = directions(loss.double())
    p = torch.full_like(L, len(L) ** -0.5)
    h = (p @ L) * L - p if L.any() else L
    return h if h.norm() > EQUAL else torch.zeros_like(h)


def stretch(square: Tensor, target: Tensor) -> Tensor:
    """The factor that brings a combination of this squared length to a squared length ``target``; 0 if it is rounding."""
    return torch.where(square > ROUNDING**2 * target, target / square, 0.0).sqrt()


def is_forced(loss: Tensor, expected: Tensor, n_clients: int) -> bool:
    """Whether some losses, not those of all ``n_clients``, are above the expected ones."""
    return 0 < int((loss > expected).sum()) < n_clients


@dataclass(frozen=True)
class FedMDFG(LossRule):
    r"""Descend along the shortest combination of the updates and, if losses are unequal, of a direction that makes them equal.

    .. math:: \theta^{t+1} = \theta^t + \Big\lVert \tfrac{1}{M} \sum_m s_m \Big\rVert \frac{d}{\lVert d \rVert}, \qquad
        d = \sum_i \lambda_i q_i, \quad \lambda = \operatorname{argmin}_\lambda \Big\lVert \sum_i \lambda_i q_i \Big\rVert^2

    over the simplex. The :math:`q_i` are the updates :math:`s_m`, scaled to their mean length; the fair direction :math:`\sum_m h_m s_m`,
    :math:`h \propto (p \cdot \hat F) \hat F - p`, with :math:`\hat F` the losses and p = (1, ..., 1), both of length one; and the scaled
    updates of clients that took part in the last round only. The fair direction counts if the angle of F and p is above ``theta``, or
    if some losses, not those of all N clients, are above what earlier ones let expect. Pan, Wang, Li, Wang, Tang, Zhao, AAAI 2023.

    Parameters
    ----------
    theta : tolerated angle in degrees, in [0, 90]. Published: 11.25 and 5.625.

    Server state: ``last`` [N, P] and ``factor`` [N], updates and their scales; ``round`` [N], the last round of each (-1: never);
    ``expected`` and ``visits`` [N].
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: inner products of updates, from earlier rounds too.
    Traffic: one number up. One more pass over the local data.
    Differs: there is no line search, which needs several more exchanges with the clients in every round, up to 2s + 1 evaluations with
    s = 5. The paper's tables have it, so they do not hold for this rule. Gradients are the updates of local training. Equal losses have
    no fair direction, and a combination that is zero up to rounding is no step. Absent clients have the scale of their own round.
    """

    owns = frozenset({"weights", "mask", "direction"})
    theta: float = number(11.25, low=0, high=90, search=among(5.625, 11.25))

    def server_state(self, setup: Setup) -> State:
        zero = torch.zeros(setup.n_clients, dtype=torch.float64, device=setup.initial.device)
        state = {"expected": zero, "visits": zero, "factor": zero, "round": zero.long() - 1}
        return {"last": setup.per_client(torch.zeros_like(setup.theta)), **state}

    def _absent(self, state: State, cohort: Cohort) -> Tensor:
        """Clients of the last round only, whose updates had a length."""
        recent = (state["round"] == cohort.t - 1) & (state["factor"] > 0)
        return recent.index_fill(0, cohort.ids, False).nonzero().flatten()

    def _rows(self, loss: Tensor, factor: Tensor, forced: bool) -> Tensor:
        """The combinations q [R, M + A] of M updates scaled by ``factor`` [M + A], the fair direction, and A earlier ones; none of length 0."""
        M, every = len(loss), factor.diag()
        live = factor[:M] > 0
        h = torch.zeros_like(factor)
        h[:M][live] = pull(loss[live])
        sine = float(h.norm())
        active = sine > (0 if forced else math.sin(math.radians(self.theta)))
        fair = (h * factor / (sine or 1))[None] if active else every[:0]
        return torch.cat([every[:M][live], fair, every[M:]])

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        ids, loss, M = cohort.ids, cohort.reports["loss"].double(), len(cohort.ids)
        past, n = state["expected"][ids], state["visits"][ids]
        expected = torch.where((n == 0) | (loss <= past), (n * past + loss) / (n + 1), past)
        last = put(state["last"], ids, cohort.updates)
        rows = torch.cat([ids, self._absent(state, cohort)])
        K = gram(take(last, rows))
        length = K.diagonal()[:M].clamp(min=0).sqrt()
        live = length > SHORTEST
        scale = torch.where(live, (length * live).sum() / live.sum() / length, 0.0)
        factor = torch.cat([scale, state["factor"][rows[M:]]])
        a = torch.zeros_like(factor)
        if live.any():
            Q = self._rows(loss, factor, is_forced(loss, expected, cohort.n_clients))
            a = min_on_simplex(Q @ K @ Q.T, Q.new_full((len(Q),), 1 / len(Q))) @ Q
            mean = scale / live.sum()
            a = a * stretch(a @ K @ a, mean @ K[:M, :M] @ mean)
        renewed = {"expected": expected, "visits": n + 1, "factor": scale, "round": torch.full_like(ids, cohort.t)}
        state = {key: state[key].index_copy(0, ids, x) for key, x in renewed.items()}
        return {"last": last, **state}, cohort.directed(a, last[rows[M:]])


CATALOGUE = CatalogueEntry(
    (FedMDFG,), "common descent that makes losses equal, without line search", "Pan et al., AAAI 2023"
)
