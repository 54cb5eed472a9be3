"""FAEL, the second half of FedHEAL: weigh clients by how far they moved."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import simplex, square_distances, square_norms
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.methods.fphl import PAPER
from equipoise.system.ranges import choice, number, uniform

MEASURED = 1 << 24  # entries of all updates up to which the variance of Eq. 10 is measured: a tenth of a second


@dataclass(frozen=True)
class FAEL(Rule):
    r"""Give more weight to clients whose (kept) parameters moved further.

    .. math:: d_m = \lVert c_m \odot \Delta_m \rVert^2, \qquad
        \Delta p_m \gets (1 - \beta) \Delta p_m + \beta \frac{d_m}{\sum_j d_j}, \qquad
        p_m \gets \frac{p_m + \Delta p_m}{\sum_j (p_j + \Delta p_j)}

    Federated Aggregation-Equalized Learning: Chen, Huang, Ye, CVPR 2024, Eqs. 11-12. The mask c is FPHL's where FPHL is
    part of the method. Eq. 11 as printed squares a sum; it is read as the squared length.

    Parameters
    ----------
    beta : in [0, 1]; share of this round's distances in the change. 0 keeps the first weights: FedAvg.
    distance : ``"squared"`` as above; ``"norms"`` sums the lengths of the model's tensors (released code).
    init : first weights, by ``"samples"`` or ``"uniform"`` (released code).
    carry : carry the ``"normalised"`` weights to the next round, or the ``"raw"`` sum (released code).

    Server state: ``p`` [N], ``dp`` [N].
    Server sees: the length of each update.
    Differs: Eq. 11 as printed squares a sum; it is read as the squared length. Absent clients (the paper assumes none)
    keep p and dp; those present share out the weight they had together. A client with noisy labels moves far and gains
    weight; so does one that takes more local steps.

    Every record has ``distances`` [M], d, and ``distance_variance``, the two numbers
    :math:`\operatorname{Var}_m \lVert \sum_j p_j c_j \odot \Delta_j - c_m \odot \Delta_m \rVert^2` of Eq. 10 for p by samples and for the
    weights used; only while all updates together have at most 16,777,216 (:math:`2^{24}`) entries.
    """

    owns = frozenset({"weights"})
    sees = "scalars+sum"  # length of the update
    beta: float = number(0.4, low=0, high=1, search=uniform(0.1, 1))
    distance: str = choice("squared", "norms")
    init: str = choice("samples", "uniform")
    carry: str = choice("normalised", "raw")

    def server_state(self, setup: Setup) -> State:
        p = simplex(setup.sizes if self.init == "samples" else torch.ones_like(setup.sizes))
        return {"p": p, "dp": torch.zeros_like(p)}

    def _distances(self, cohort: Cohort) -> Tensor:
        """How far each client moved [M], after the mask."""
        if self.distance == "squared":
            return square_norms(cohort.updates, cohort.mask)
        return square_norms(cohort.updates, cohort.mask, cohort.layout).sqrt().sum(1)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i = cohort.ids
        mass = state["p"][i].sum() if self.carry == "normalised" else 1.0
        p = simplex(state["p"][i]) if self.carry == "normalised" else state["p"][i]
        d, dp = self._distances(cohort), state["dp"][i]
        if d.sum() > 0:  # otherwise no client moved: the share is 0/0, and nothing is learnt
            dp = (1 - self.beta) * dp + self.beta * simplex(d)
            p = p + dp
        weights = simplex(p)
        notes = {**cohort.notes, "distances": d.tolist()}
        if cohort.updates.numel() <= MEASURED:
            both = square_distances(cohort.updates, torch.stack([simplex(cohort.sizes), weights]), cohort.mask)
            notes["distance_variance"] = both.var(1, correction=0).tolist()
        carried = mass * weights if self.carry == "normalised" else p
        state = {"p": state["p"].index_copy(0, i, carried), "dp": state["dp"].index_copy(0, i, dp)}
        return state, replace(cohort, weights=weights, notes=notes)


RELEASED = {"distance": "norms", "init": "uniform", "carry": "raw"}
CATALOGUE = CatalogueEntry((FAEL,), "weigh clients by how far they moved", PAPER, {"released": RELEASED})
