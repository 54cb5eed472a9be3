"""The loss of a federation as a sum of what each client leaves, what their difference costs and what averaging costs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Decomposition(NamedTuple):
    """The three terms of FedLD's Eq. 2, signed; their sum is the global model's loss."""

    local: float
    shift: float
    aggregation: float

    @property
    def total(self) -> float:
        """Loss of the global model over all clients."""
        return self.local + self.shift + self.aggregation


def decompose(cross: ArrayLike, after: ArrayLike, sizes: ArrayLike) -> Decomposition:
    r"""Split the loss of a global model into local, distribution-shift and aggregation loss.

    With :math:`E_{ij} = L_j(w_i)` the loss of client i's model on client j's data, :math:`\ell_j = L_j(w)` that of the
    aggregated model and :math:`p = n / \sum n`:

    .. math:: L(w) = \underbrace{\sum_i p_i E_{ii}}_{\text{local}}
        + \underbrace{\sum_{ij} p_i p_j (E_{ij} - E_{ii})}_{\text{distribution shift}}
        + \underbrace{\sum_j p_j \ell_j - \sum_{ij} p_i p_j E_{ij}}_{\text{aggregation}}

    Zeng et al., MICCAI 2024, Eq. 2. The paper calls the absolute values the two losses; the aggregation term is negative
    where the average is better than the local models.

    Parameters
    ----------
    cross : E, shape [m, m].
    after : losses of the aggregated model, shape [m].
    sizes : samples of each client, > 0, shape [m].

    Raises
    ------
    ValueError : shapes that do not belong together.
    """
    e, ell, n = (np.asarray(x, dtype=np.float64) for x in (cross, after, sizes))
    m = len(n)
    if e.shape != (m, m) or ell.shape != (m,):
        raise ValueError(
            f"decompose: expected losses [{m}, {m}] and [{m}] for {m} sizes; found {list(e.shape)} and {list(ell.shape)}."
        )
    p = n / n.sum()
    local, elsewhere = float(p @ np.diag(e)), float(p @ e @ p)
    return Decomposition(local, elsewhere - local, float(p @ ell) - elsewhere)
