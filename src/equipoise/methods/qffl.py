"""q-FFL: raise the losses to a power, so that the worse off count more."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from equipoise.core.maths import powers, simplex, square_norms, unit_of
from equipoise.core.rates import Layers
from equipoise.core.rule import Briefing, CatalogueEntry, Cohort, LossRule, Presets, Setup, State
from equipoise.core.solver import Solver
from equipoise.system.ranges import choice, log_uniform, number


@dataclass(frozen=True)
class QFFL(LossRule):
    r"""Minimise :math:`\sum_m p_m F_m^{q+1} / (q + 1)`: weigh clients by :math:`N_m F_m^q` or :math:`F_m^q`, or take the step of q-FedAvg.

    .. math:: \delta_m = -L F_m^q \Delta_m, \qquad h_m = q F_m^{q-1} \lVert L \Delta_m \rVert^2 + L F_m^q, \qquad
        \theta^{t+1} = \theta^t - \sum_m \delta_m / \sum_m h_m

    with :math:`F_m = F_m(\theta^t) + \epsilon` on the client's training data. Li, Sanjabi, Beirami, Smith, ICLR 2020,
    Algorithm 2.

    Parameters
    ----------
    q : >= 0; 0 is FedAvg (``weights``) or FedAvg with equal weights (``full``, ``losses``). 0.1 to 1; tune it.
    form : ``"weights"`` keeps the size of FedAvg's step: :math:`p_m \propto N_m F_m^q`, sum one; ``"full"`` is q-FedAvg, as published;
        ``"losses"``, as FFL4MIA computes, :math:`p_m \propto F_m^q` without the samples.
    lipschitz : L, > 0, or None for 1 / (learning rate). It sets the step of ``full``; with momentum or many local steps
        1 / lr is far too large and training stalls.
    sample_weights : multiply delta and h by N_m / sum N (for full participation with unequal sizes).
    eps : added to every loss, >= 0.

    Server state: ``L``.
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: the ``loss``; with ``form=full`` also the length of the update.
    Traffic: one number up. One more pass over the local data.
    Presets: ``drfl``, of Zhao, Joshi, ICASSP 2022, has the weights F / sum F, as ``ffl4mia`` computes.
    Differs: the form is ``weights``, because the step of ``full`` is estimated for plain gradient steps: with momentum or many
    local steps L is far too large and training stalls. With q below 1, a client of almost no loss can freeze a round of
    ``full``; the record then shows ``qffl_largest_h``, the largest client's share of the sum of h, near 1.
    """

    sees = "scalars+sum"  # loss and length of the update
    q: float = number(1.0, low=0, search=log_uniform(0.01, 5))
    form: str = choice("weights", "full", "losses")
    lipschitz: float | None = number(None, low=0, above=True)
    sample_weights: bool = False
    eps: float = number(1e-10, low=0)

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"weights", "direction"} if self.form == "full" else {"weights"})

    def check(self, solver: Solver) -> None:
        if self.form == "full" and self.lipschitz is None and isinstance(solver.lr, Layers):
            raise TypeError("qffl takes 1 / (learning rate) for L, and the layers have several. Set qffl.lipschitz.")

    def server_state(self, setup: Setup) -> State:
        lr = 1.0 if setup.solver is None or not isinstance(setup.solver.lr, float) else setup.solver.lr
        return {"L": torch.full_like(setup.sizes[0], self.lipschitz or 1 / lr)}

    def prepare(self, state: State, briefing: Briefing) -> State:
        if self.form != "full" or self.lipschitz is not None or briefing.solver is None:
            return state
        return {"L": torch.full_like(state["L"], 1 / cast(float, briefing.solver.lr))}

    def _terms(self, loss: Tensor, updates: Tensor, L: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """The factor of each update in the sum of -delta, and h, up to a common factor: both [M]."""
        loss, q = loss.double() + self.eps, self.q
        unit = unit_of(loss, q)
        curve = q * (loss / unit) ** (q - 1) * L**2 * square_norms(updates) / unit if q else torch.zeros_like(loss)
        return p * L * (loss / unit) ** q, p * (curve + L * (loss / unit) ** q)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        loss = cohort.reports["loss"]
        if self.form != "full":
            samples = cohort.sizes if self.form == "weights" else torch.ones_like(cohort.sizes)
            return state, replace(cohort, weights=simplex(samples * powers(loss.double() + self.eps, self.q)))
        p = simplex(cohort.sizes) if self.sample_weights else torch.ones_like(cohort.sizes)
        factor, h = self._terms(loss, cohort.updates, state["L"], p)
        coefficients = factor / h.sum() if h.sum() > 0 else torch.zeros_like(h)
        share = float(simplex(h).max()) if h.sum() > 0 else 0.0
        notes = {**cohort.notes, "qffl_largest_h": share}  # near 1: one client's tiny loss has frozen the round
        return state, replace(cohort, weights=cohort.uniform, coefficients=coefficients, notes=notes)


PRESETS: Presets = {
    "paper": {"form": "full"},
    "full": {"form": "full"},
    "ffl4mia": {"form": "losses"},
    "drfl": {"form": "losses"},
}
CATALOGUE = CatalogueEntry((QFFL,), "losses to the power q + 1", "Li et al., ICLR 2020", PRESETS, printed="q-FFL")
