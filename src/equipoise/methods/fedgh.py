"""FedGH: take the conflicts out of every pair of updates before they are averaged."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import combine, dots, gram
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.methods.fedhgd import deconflict
from equipoise.system.ranges import choice, number

TINY = 1e-12  # relative: a shorter square is rounding


@dataclass(frozen=True)
class FedGH(Rule):
    r"""Project the updates of every conflicting pair, :math:`\langle \Delta_i, \Delta_j \rangle < 0`, on each other's normal planes.

    .. math:: g_i \gets g_i - \frac{\langle g_i, \Delta_j \rangle}{\lVert \Delta_j \rVert^2} \Delta_j, \qquad
        g_j \gets g_j - \frac{\langle g_j, \Delta_i \rangle}{\lVert \Delta_i \rVert^2} \Delta_i, \qquad \bar\Delta = \sum_m p_m g_m

    over the pairs i < j in the order of the clients, from :math:`g = \Delta`. Zhang, Sun, Chen, IEEE Signal Processing Letters 31,
    2024. Everything lies in the span of the updates, so the rule is algebra on their Gram matrix.

    Parameters
    ----------
    form : ``"original"`` as above; ``"sequential"`` tests and projects on what the other has become; ``"accumulate"``
        takes the components along all original conflicts off at once; ``"hierarchical"`` is FedDM's rule, which the code
        of FedLD has under this name (``fedhgd``): per tensor, equal weights, pairs by agreement with past steps.
    gamma : share of the past in the history of ``"hierarchical"``, in [0, 1]. Released: 0.99.

    Server state: with ``"hierarchical"``, the mean of past steps ``h`` [P]; a tensor without one takes the plain mean.
    Server sees: inner products of updates.
    Presets: ``fedgh:released`` is what the code of FedLD has under this name, and most likely what the rows called
    FedGH in its tables are.
    Differs: the paper leaves open whether a pair is tested and projected on the updates as they came or as they have
    become; hence two forms. Pairs come in the order of the clients, and where conflicts overlap the result depends on
    it (not with ``"accumulate"``). A client that does not move conflicts with no other. Not the FedGH of 2023, which
    shares a header.
    """

    form: str = choice("original", "sequential", "accumulate", "hierarchical")
    gamma: float = number(0.99, low=0, high=1)

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"mask", "direction"} | ({"weights"} if self.form == "hierarchical" else set()))

    def server_state(self, setup: Setup) -> State:
        return {"h": torch.zeros_like(setup.theta)} if self.form == "hierarchical" else {}

    def _harmonised(self, K: Tensor) -> Tensor:
        """Coefficients [M, M] of each projected update in the updates, from their Gram matrix ``K`` [M, M]."""
        M, a, ratio = len(K), torch.eye(len(K), dtype=K.dtype, device=K.device), K / K.diagonal()
        if self.form == "accumulate":
            return a - torch.where(K < 0, ratio, 0)
        if self.form == "original":  # the pairs of one client come in the order of the others
            for j in range(M):
                a[:, j] -= torch.where(K[:, j] < 0, a @ ratio[:, j], 0)
            return a
        for i, j in torch.combinations(torch.arange(M)).tolist():
            x, y = a[i].clone(), a[j].clone()
            enough = min(x @ K @ x / K[i, i], y @ K @ y / K[j, j]) > TINY  # else what is left of one is rounding
            if enough and (dot := x @ K @ y) < 0:
                a[i], a[j] = x - dot / (y @ K @ y) * y, y - dot / (x @ K @ x) * x
        return a

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        if self.form != "hierarchical":
            return state, replace(cohort, coefficients=cohort.weights @ self._harmonised(gram(cohort.updates)))
        columns, after = [], torch.empty_like(state["h"])
        parts = zip(*(x.split(cohort.layout, -1) for x in (cohort.updates, state["h"], after)), strict=True)
        for u, h, place in parts:
            begun = bool(h.any())
            c = deconflict(gram(u), dots(u, h)) / len(u) if begun else cohort.uniform
            columns.append(c)
            place.copy_(combine(u, c).lerp(h, self.gamma if begun else 0.0))
        return {"h": after}, replace(cohort, weights=cohort.uniform, coefficients=torch.stack(columns, 1))


CATALOGUE = {
    "fedgh": CatalogueEntry(
        (FedGH,),
        "take the conflicts out of every pair of updates",
        "Zhang, Sun, Chen, IEEE Signal Processing Letters 2024",
        {"released": {"form": "hierarchical"}},
    ),
    "fedhgd": CatalogueEntry(
        (FedGH,),
        "take the conflicts out of the updates, pair by pair and tensor by tensor (FedDM)",
        "Zhu et al., IEEE Transactions on Medical Imaging 2023",
        values={"form": "hierarchical"},
        remarks="Hierarchical gradient de-conflicting, the server's side of FedDM (Zhu, Chen, Yuan). For each tensor, while "
        "more than two vectors are left: rank them by their product with h, pair the best with the worst, the second with the "
        "second worst and so on, project the two of a pair with a negative product on each other's normal planes, and replace "
        "them by their sum. Of the last two project the first, then the second on the first as it now is. With s their sum, "
        "the step is s / M and h becomes gamma h + (1 - gamma) s / M. The released code divides by all clients instead of "
        "those of the round, fails with one client, scores a tensor without history with 0 / 0 (here it takes the plain "
        "mean), and treats running statistics like parameters (here they are averaged).",
        printed="FedHGD",
    ),
}
