"""The median and the trimmed mean of every single coordinate, instead of the mean of the updates."""

from dataclasses import dataclass, replace
from math import ceil

from equipoise.core.maths import trimmed_mean
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.system.ranges import number
from equipoise.system.text import plural


def without_ends(cohort: Cohort, cut: int) -> Cohort:
    """The cohort whose step, and whose buffers, are the means of each coordinate without ``cut`` entries at either end."""
    step, buffers = trimmed_mean(cohort.updates, cut), trimmed_mean(cohort.buffer_updates, cut)
    agreed = buffers.expand_as(cohort.buffer_updates)
    return replace(cohort, weights=cohort.uniform, moved=cohort.stepped(step), buffer_updates=agreed)


@dataclass(frozen=True)
class Median(Rule):
    r"""Take the median of every coordinate, which fewer than half of the clients cannot move out of the range of the others.

    .. math:: \theta^{t+1} = \theta^t + \operatorname{med}\{\Delta_m : m \in S_t\}, \qquad
        \operatorname{med}\{x_m\}_i = \operatorname{med}\{x_{m,i}\}

    Yin, Chen, Ramchandran, Bartlett, ICML 2018, Definition 1. Of an even number, it is the mean of the middle two. Every client
    counts alike, whatever its samples, which it could make up.

    Server sees: updates, coordinate by coordinate.
    Differs: the paper takes the median of gradients, here of updates after local training. Running statistics of BatchNorm are
    their medians, too. A parameter that most clients do not train (their own, or outside their submodel) does not move. Where
    clients differ, the median is no estimate of the mean: what few of them know is lost.
    """

    owns = frozenset({"mask", "weights", "direction"})

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, without_ends(cohort, (len(cohort.ids) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    r"""Average every coordinate without its largest and smallest entries.

    .. math:: \theta^{t+1}_i = \theta^t_i + \frac{1}{|U_i|} \sum_{x \in U_i} x, \qquad |U_i| = |S_t| - 2 \lfloor \beta |S_t| \rfloor

    with :math:`U_i` what is left of :math:`\{\Delta_{m,i} : m \in S_t\}` without the :math:`\lfloor \beta |S_t| \rfloor` largest and
    as many smallest. Yin, Chen, Ramchandran, Bartlett, ICML 2018, Definition 2. It withstands as many clients as it cuts off at
    either end. Every client counts alike, whatever its samples, which it could make up.

    Parameters
    ----------
    beta : share that is cut off at either end, in [0, 1/2): at least the share of the clients that may lie. 0 is the plain mean.

    Server sees: updates, coordinate by coordinate.
    Differs: the paper's beta m is whole, here it is rounded down: with beta = 0.1 and fewer than ten clients nothing is cut off,
    which a message states before the first round. Updates are of local training, where the paper has gradients. Running statistics of
    BatchNorm are trimmed in the same way.
    """

    owns = frozenset({"mask", "weights", "direction"})
    beta: float = number(0.1, low=0, high=0.5, below=True)

    def _cut(self, M: int) -> int:
        """How many of M entries are left out at either end."""
        return min(int(self.beta * M + 1e-9), (M - 1) // 2)

    def doubt(self, setup: Setup) -> str:
        M = setup.asked or setup.n_clients
        if self._cut(M) or not self.beta:
            return ""
        return (
            f"with {plural(M, 'client')} in a round beta={self.beta:g} cuts nothing off, so this is the plain mean, which one "
            f"client can move anywhere. {f'Take beta={ceil(100 / M) / 100:g} or more.' if M > 2 else 'Three are needed for more.'}"
        )

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, without_ends(cohort, self._cut(len(cohort.ids)))


PAPER = "Yin et al., ICML 2018"
CATALOGUE = {
    "median": CatalogueEntry((Median,), "the median of every parameter, against clients that lie", PAPER),
    "trimmed-mean": CatalogueEntry(
        (TrimmedMean,), "the mean of every parameter without its extremes", PAPER, printed="Trimmed mean"
    ),
}
