"""AAggFF: weights that an online algorithm learns from the clients' losses."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import bounded, simplex
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Setup, State
from equipoise.system.ranges import among, choice

MANY = 200  # clients, from which on the quadratic problem of ``silo`` takes long
CURVATURE = 4.0  # alpha
CDFS: dict[str, Callable[[Tensor], Tensor]] = {
    "frechet": lambda x: (-1 / x).exp(),
    "weibull": lambda x: 1 - (-x.square()).exp(),
    "exponential": lambda x: 1 - (-x).exp(),
    "gumbel": lambda x: (-(1 - x).exp()).exp(),
    "logistic": lambda x: (x - 1).sigmoid(),
    "normal": lambda x: torch.special.ndtr(x - 1),
    "normal-released": lambda x: 1.5 - torch.special.ndtr(x - 1),
}


def responses(loss: Tensor, cdf: str) -> Tensor:
    """The distribution function at each loss over the mean loss [M]; at 1, if all are 0."""
    mean = loss.mean()
    return CDFS[cdf](loss / mean if mean > 0 else torch.ones_like(loss))


@dataclass(frozen=True)
class AAggFF(LossRule):
    r"""Choose weights by online convex optimisation, so that clients with larger losses over all rounds count more.

    .. math:: q = -\frac{r}{1 + p^\top r}, \quad g \gets g + q, \quad H \gets H + q q^\top, \qquad
        p = \operatorname{argmin}_{p \in \Delta}\; g^\top p + \tfrac{\alpha}{2} \lVert p \rVert^2 + \tfrac{\beta}{2} p^\top H p

    with the responses :math:`r_m = \mathrm{CDF}(F_m / \bar F) / N`, 0 for absent clients, :math:`\alpha = 4`, :math:`\beta = N / 4` and first
    :math:`H = \alpha I` (``silo``). For ``device``, with the share C of clients present and the mean m of :math:`x = C \cdot \mathrm{CDF}(F / \bar F)`:

    .. math:: \tilde r_k = m \;\text{(absent)}, \quad m + (x_k - m) / C \;\text{(present)}, \qquad
        p = \operatorname{softmax}\Big( \frac{\sqrt{\log N}}{(2 + C) \sqrt{t + 2}} \sum_\tau \frac{\tilde r^\tau}{1 + m^\tau} \Big)

    The clients present count by their p, scaled to sum one. Hahn, Kim, Lee, ICML 2024.

    Parameters
    ----------
    form : ``"silo"``, for few clients that take part in every round; ``"device"``, for many, of which a part does.
    cdf : the response to a loss; the choice is part of tuning. ``"normal-released"``, for reproduction only, falls in the loss.
    released : as the authors' code begins and estimates, see the presets.

    Server state: ``p``, ``g`` [N]; ``H`` [N, N], if ``silo``.
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: the ``loss``.
    Traffic: one number up. One more pass over the local data.
    Presets: ``released`` begins with p = 1 (``silo``) or C (``device``) in every entry, and estimates (x - m) / C for those present, without
    m: clients count less for being there.
    Differs: the quadratic problem is the authors': alpha counts twice, and the textbook step has another linear term. Absent clients in
    ``silo`` are our extension. Over many rounds with the same order of losses, the weight of a client whose loss is always low reaches 0.
    """

    owns = frozenset({"weights"})
    sees = "scalars+sum"
    form: str = choice("silo", "device")
    cdf: str = choice(*CDFS, search=among(*[*CDFS][:-1]))
    released: bool = False

    def doubt(self, setup: Setup) -> str:
        many = self.form == "silo" and setup.n_clients > MANY
        return many * f"aaggff solves a problem in {setup.n_clients} weights after every round. Use form=device."

    def server_state(self, setup: Setup) -> State:
        ones = torch.ones_like(setup.sizes)
        state = {"p": ones if self.released else ones / len(ones), "g": 0 * ones}
        return state if self.form == "device" else {**state, "H": CURVATURE * ones.diag()}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        N, C = cohort.n_clients, len(cohort.ids) / cohort.n_clients
        p = state["p"] * (C if self.released and cohort.t == 0 else 1)
        r = responses(cohort.reports["loss"].double(), self.cdf).to(p)
        if self.form == "silo":
            r = torch.zeros_like(p).index_copy(0, cohort.ids, r / N)
            q = -r / (1 + p @ r)
            g, H = state["g"] + q, state["H"] + torch.outer(q, q)
            p = bounded(CURVATURE * torch.ones_like(p).diag() + N / 4 * H, g, torch.zeros_like(p), torch.ones_like(p))
            return {"p": p, "g": g, "H": H}, replace(cohort, weights=simplex(p[cohort.ids]))
        x, m = C * r, C * r.mean()
        estimate = m.expand(N).index_copy(0, cohort.ids, (x - m) / C + (0 if self.released else m))
        g = state["g"] - estimate / (1 + m * p.sum())
        p = torch.softmax(-g * math.sqrt(math.log(N) / (cohort.t + 2)) / (2 + C), 0)
        return {"p": p, "g": g}, replace(cohort, weights=simplex(p[cohort.ids]))


CATALOGUE = CatalogueEntry(
    (AAggFF,),
    "weights that an online algorithm learns from the losses of all rounds",
    "Hahn et al., ICML 2024",
    {"device": {"form": "device"}, "released": {"released": True}},
)
