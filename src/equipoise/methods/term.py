"""TERM: tilt the mean over clients, or over the samples of a batch, towards large losses."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Out, Presets, Rule, Setup, State, Visit
from equipoise.system.ranges import choice, log_uniform, number

LEAST = -1e30  # a tilted loss of padding: it counts as nothing next to a sample's


@dataclass(frozen=True)
class Term(LossRule):
    r"""Minimise the tilted mean :math:`\tfrac1t \log \sum_m p_m e^{t F_m}`: weigh clients by the exponential of their losses.

    .. math:: w_m = p_m e^{t F_m} \Big/ \sum_{j \in S} p_j e^{t F_j}

    with :math:`F_m = F_m(\theta)` of the model sent out on the client's training data. Li, Beirami, Sanjabi, Smith, ICLR 2021.

    Parameters
    ----------
    t : tilt, in [-1000, 1000]; 0 is FedAvg, large values approach the worst client, negative ones play down large losses. 0.01 to 10; tune it.
    prior : p, by ``"samples"`` or ``"uniform"``.
    form : ``"released"`` is the step of the authors' code, see the presets.

    Server state: ``z``, if ``released``.
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: the ``loss``.
    Traffic: one number up. One more pass over the local data.
    Presets: ``paper`` (also ``aaggff``) has equal p. ``released`` smooths the sum of exponentials over the rounds and divides by M once more, so its
    step is about 1/M of FedAvg's: multiply the learning rate by M before you compare. ``fedeba`` is the aggregation of FedEBA+ at tau = 1/2.
    Differs: p is by samples, as in ``qffl``, so that t = 0 is FedAvg. FedEBA+ has the same weights for t = 1/tau; its alignment of
    gradients is left out, and the value of tau is ours.
    """

    sees = "scalars+sum"
    t: float = number(1.0, low=-1000, high=1000, search=log_uniform(0.01, 10))
    prior: str = choice("samples", "uniform")
    form: str = choice("normalised", "released")

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"weights", "direction"} if self.form == "released" else {"weights"})

    def server_state(self, setup: Setup) -> State:
        return {"z": torch.zeros_like(setup.sizes[0])} if self.form == "released" else {}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        tilted = self.t * cohort.reports["loss"].double()
        if self.form == "normalised":
            prior = (cohort.sizes if self.prior == "samples" else cohort.uniform).double()
            return state, replace(cohort, weights=torch.softmax(tilted + prior.log(), 0))
        e = (tilted - tilted.max()).exp()
        z = state["z"] / 2 + e.mean() / 2
        return {"z": z}, replace(cohort, weights=cohort.uniform, coefficients=e / (z * len(e) ** 2))


@dataclass(frozen=True)
class TermSample(Rule):
    r"""Tilt the mean loss of each batch towards its samples of large loss.

    .. math:: F_m(\theta) = \tfrac1t \log \operatorname{mean}_i e^{t \ell_i}

    over the samples i of the batch, whose gradients count by the softmax of :math:`t \ell_i`. Li, Beirami, Sanjabi, Smith, ICLR 2021.

    Parameters
    ----------
    t : tilt, in [-1000, 1000]; 0 is the mean, large values approach the worst sample, negative ones play down outliers. 0.01 to 10; tune it.

    Differs: it is the tilt of each batch, whose mean differs from the tilt of all data; the paper's running estimate of the
    sum of exponentials is left out, as in the authors' federated code. Losses that rules measure are not tilted. With t = 1 some runs
    of `digits-pow` diverge, so the default is 0.1.
    """

    t: float = number(0.1, low=-1000, high=1000, search=log_uniform(0.01, 10))

    def loss(self, out: Out, visit: Visit) -> Tensor | float:
        if self.t == 0:
            return 0.0
        samples = torch.ones_like(out.losses) if out.ok is None else out.ok.to(out.losses)  # [..., B]
        n = samples.sum(-1)
        total = torch.logsumexp(torch.where(samples > 0, self.t * out.losses, LEAST), -1)
        return torch.where(n > 0, (total - n.clamp(min=1).log()) / self.t, 0) - out.cross_entropy


PAPER = "Li et al., ICLR 2021"
PRESETS: Presets = {
    "paper": {"prior": "uniform"},
    "aaggff": {"prior": "uniform"},
    "released": {"prior": "uniform", "form": "released"},
    "fedeba": {"prior": "uniform", "t": 2.0},
}
CATALOGUE = {
    "term": CatalogueEntry(
        (Term,), "weights by the exponential of the clients' losses", PAPER, PRESETS, printed="TERM"
    ),
    "term-sample": CatalogueEntry(
        (TermSample,), "the samples of large loss in each batch count more", PAPER, printed="TERM (samples)"
    ),
}
