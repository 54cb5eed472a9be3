"""SAGA: weigh clients by how sharp their loss is at the global model."""

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import pad

from equipoise.core.maths import simplex
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Presets, Rule, Setup, State, Visit
from equipoise.methods.sam import perturbation, radius
from equipoise.system.ranges import among, choice, log_uniform, number, uniform


@dataclass(frozen=True)
class SAGA(Rule):
    r"""Raise each client's sharpness (S) or perturbed loss (L) to a power, and smooth the weights over the rounds.

    .. math:: L_m = F_m(\theta^t + \rho_t \tfrac{\nabla F_m}{\lVert \nabla F_m \rVert}), \qquad S_m = L_m - F_m(\theta^t),
        \qquad \tilde w_m = \frac{v_m^q}{\sum_j v_j^q}, \qquad w^t = \beta \tilde w^t + (1 - \beta) w^{t-1}

    with :math:`v = \max(S, \epsilon)` or :math:`\max(L, \epsilon)` and :math:`\rho_t = \rho (t / T)^\tau`. Wu, Kuang, Yan,
    Wang, Yu, arXiv 2503.09587, Eqs. 9-12 and 16-18. Measured on the model sent out, over all training samples of the
    client, with plain cross-entropy in eval mode.

    Parameters
    ----------
    variant : ``"S"`` matches sharpness, ``"L"`` the perturbed loss.
    rho : search distance in the last round, >= 0; 0.05 to 0.2. For small rho, S is rho times the gradient's length.
    tau : growth of the distance, >= 0; 0 keeps it constant. 0.1 to 1.
    q : power, >= 0; 0 gives equal weights. 0.5 to 5.
    beta : share of the new weights in the moving average, in (0, 1]; 1 does not smooth.
    floor : least value, > 0; where no sharpness is positive, weights are equal.
    offset : added to the values once they sum to one, >= 0; the released code adds 1e-10.

    Server state: ``w`` [N], the last weight of each client, 0 before its first round.
    Reports: ``value``, sharpness, or perturbed loss, of the model it received on its training data.
    Server sees: ``value``; by the protocols of secure sums not even that. Records have it as ``sharpness`` [M] or ``perturbed_loss``
    [M]; with ``S``, a simulation also records the perturbed loss, which a site does not send; with secure sums, neither is recorded.
    Traffic: one number up. ``S`` takes three forward passes and one backward pass over the local data, ``L`` two and
    one.
    Differs: the released code measures with the training's random augmentations, drawn again for each pass; here there
    are none, because that noise can exceed S in early rounds. It offers S only. The paper has no partial participation:
    here the last weights are those of the clients present, scaled to one.
    """

    owns = frozenset({"weights"})
    sees = "scalars+sum"
    stays = frozenset({"perturbed_loss"})
    reports = "its sharpness or perturbed loss"
    variant: str = choice("S", "L")
    rho: float = number(0.1, low=0, search=log_uniform(0.05, 0.2))
    tau: float = number(0.5, low=0, search=among(0.0, 0.1, 0.5, 1.0))
    q: float = number(2.0, low=0, search=log_uniform(0.5, 5))
    beta: float = number(0.5, low=0, high=1, above=True, search=uniform(0.1, 1))
    floor: float = number(1e-10, low=0, above=True)
    offset: float = number(0.0, low=0)

    @property
    def ranges(self) -> dict[str, Bounds]:
        if self.variant == "L":
            return {"value": Bounds(0)}
        return {"value": Bounds(), "perturbed_loss": Bounds(0)}  # a loss may fall along its gradient

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        e = perturbation(visit.oracle.gradient(visit.received), radius(self.rho, self.tau, visit))
        moved = visit.received + pad(e, (0, visit.received.shape[-1] - visit.n_params))  # buffers stay
        L = visit.oracle.tally(moved).mean_loss  # float64: S is a difference of nearly equal means
        if self.variant == "L":
            return {"value": L.to(visit.received.dtype)}, visit.state
        S = L - visit.oracle.tally(visit.received).mean_loss
        return {"value": S.to(visit.received.dtype), "perturbed_loss": L.to(visit.received.dtype)}, visit.state

    def server_state(self, setup: Setup) -> State:
        return {"w": 0 * setup.sizes}

    def _fresh(self, value: Tensor) -> Tensor:
        """The weights [M] of one round alone, from one value per client [M]; powers as exponents of logarithms."""
        v = value.double().clamp(min=self.floor)
        v = simplex(v) + self.offset if self.offset else v
        return (self.q * v.log()).softmax(0)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        w, last = self._fresh(cohort.reports["value"]), state["w"][cohort.ids].double()
        if last.sum() > 0:
            w = self.beta * w + (1 - self.beta) * simplex(last)
        w = w.to(state["w"].dtype)
        names = {"value": "sharpness" if self.variant == "S" else "perturbed_loss"}
        recorded = {names.get(key, key): x.tolist() for key, x in cohort.reports.items()}
        state = {"w": state["w"].index_copy(0, cohort.ids, w)}
        return state, replace(cohort, weights=w, notes={**cohort.notes, **recorded})


PAPER = "Wu, Kuang, Yan, Wang, Yu: Inter-Client Progressive State Matching, arXiv 2503.09587 (2025)"
PRESETS: Presets = {"L": {"variant": "L"}, "released": {"offset": 1e-10}}
CATALOGUE = CatalogueEntry((SAGA,), "weigh clients by the sharpness of their loss", PAPER, PRESETS)
