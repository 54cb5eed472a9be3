"""Krum and Multi-Krum: take the updates that lie among others, and leave out the rest."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import gram, square_distances_between
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.system.errors import RunError
from equipoise.system.ranges import number
from equipoise.system.text import plural


@dataclass(frozen=True)
class Krum(Rule):
    r"""Average the m clients whose nearest neighbours are nearest; with m = 1, one client's update is the step.

    .. math:: s(i) = \sum_{i \to j} \lVert V_i - V_j \rVert^2, \qquad \theta^{t+1} = \theta^t + \frac1m \sum_{i \in \text{the m least } s} \Delta_i

    over the n - f - 2 clients j whose :math:`V_j` are nearest to :math:`V_i`, what client i sends, of n. Of equal scores, the
    first client's counts. Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, Section 4; m > 1 is Multi-Krum, Section 6.

    Parameters
    ----------
    f : clients of a round that may lie, 2 f + 2 < n. None for as many as there may be, (n - 3) / 2 rounded down.
    m : clients that are averaged, at most all. 0 for n - f.

    Server sees: distances between updates.
    Differs: the paper has gradients, here updates of local training. V also holds the running statistics of BatchNorm, so that
    a client cannot be chosen for its parameters and bring in any statistics; those of the chosen are averaged. Of one or two
    clients, without f, nobody can be chosen, and their plain mean is taken. Clients count alike, whatever their samples. The
    first version of the paper chooses one client after the other and scores the rest again.
    """

    owns = frozenset({"mask", "weights", "direction"})
    f: int | None = number(None, low=0, whole=True)
    m: int = number(1, low=0)

    def _tolerated(self, n: int) -> int:
        """How many of n clients may lie.

        Raises
        ------
        RunError : the paper's condition does not hold.
        """
        if self.f is None:
            return max((n - 3) // 2, 0)
        if n < 2 * self.f + 3:
            raise RunError(
                f"krum with f={self.f} needs at least {2 * self.f + 3} clients in a round (2 f + 2 < n); found {n}. "
                "Lower f, or let more clients take part."
            )
        return self.f

    def server_state(self, setup: Setup) -> State:
        self._tolerated(setup.asked or setup.n_clients)  # an error that comes before the first round
        return {}

    def doubt(self, setup: Setup) -> str:
        n = setup.asked or setup.n_clients
        few = f"of {plural(n, 'client')} in a round nobody can be told to lie, so this is the plain mean. Three are needed."
        return few if n < 3 else ""

    def _scores(self, K: Tensor, *parts: Tensor) -> Tensor:
        """The scores s [n] of clients with the Gram matrix ``K`` [n, n] of what they send; see :func:`equipoise.core.maths.square_distances_between`."""
        n = len(K)
        return square_distances_between(K, parts).sort(1).values[:, : n - self._tolerated(n) - 2].sum(1)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        n = len(cohort.ids)
        f = self._tolerated(n)
        if n < 3:
            return state, replace(cohort, weights=cohort.uniform)
        m = min(self.m or n - f, n)
        parts = cohort.updates, cohort.buffer_updates
        chosen = self._scores(gram(parts[0]) + gram(parts[1]), *parts).argsort(stable=True)[:m]
        return state, replace(cohort, weights=torch.zeros_like(cohort.weights).index_fill(0, chosen, 1 / m))


CITATION = "Blanchard et al., NeurIPS 2017"
CATALOGUE = {
    "krum": CatalogueEntry((Krum,), "the update nearest to the others, against clients that lie", CITATION),
    "multi-krum": CatalogueEntry(
        (Krum,), "the mean of the updates nearest to each other", CITATION, values={"m": 0}, printed="Multi-Krum"
    ),
}
