"""Variances of rates and means if one person may have several rows: from the sums over the rows of each person, which add up over data sets."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# of a person: rows of a class, as `class_counts` has them, all, and those that are right
OF_CLASS: Final = ("right", "true", "chosen", "n", "hits")
OF_NUMBERS: Final = ("n", "error", "absolute", "squares", "prediction")  # of a person: rows, and sums over them
# of sums of `OF_CLASS`: what is divided by what
RATES: Final[Mapping[str, tuple[Sequence[float], Sequence[float]]]] = {
    "tpr": ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0)),
    "fpr": ((-1, 0, 1, 0, 0), (0, -1, 0, 1, 0)),
    "selection_rate": ((0, 0, 1, 0, 0), (0, 0, 0, 1, 0)),
    "ppv": ((1, 0, 0, 0, 0), (0, 0, 1, 0, 0)),
    "npv": ((1, -1, -1, 1, 0), (0, 0, -1, 1, 0)),
    "accuracy": ((0, 0, 0, 0, 1), (0, 0, 0, 1, 0)),
}


def by_person(parts: Array, value: Array, person: Array | None = None) -> tuple[Array, Array]:
    """The sums over the rows of each person with one value [m, ..., K], and this value [m].

    Parameters
    ----------
    parts : what is summed of every row [n, ..., K].
    value : the value of each row [n].
    person : the person of each row [n]; None: each row is a person.
    """
    if person is None:
        return parts, value
    (values, _), at = np.unique(np.stack([value, person]), axis=1, return_inverse=True)
    sums = np.zeros((len(values), *parts.shape[1:]))
    np.add.at(sums, at.reshape(-1), parts)
    return sums, values


def people_of_rates(sums: Array, values: Array, V: int) -> list[list[list[int]]]:
    """By value from 0 to V - 1, class and rate of `RATES`, how many people with the sums `OF_CLASS` [m, C, 5] it is about: [V, C, 6]."""
    about = sums @ np.array([bottom for _, bottom in RATES.values()]).T > 0
    return [about[values == v].sum(0).tolist() for v in range(V)]


def moments(sums: Array, values: Array, V: int) -> tuple[list[int], Array]:
    """By value from 0 to V - 1, how many people there are [V], and sums over them of the products [V, ..., K, K] of what :func:`by_person` returns."""
    products = [np.einsum("p...j,p...k->...jk", rows, rows) for rows in (sums[values == v] for v in range(V))]
    return np.bincount(values, minlength=V).tolist(), np.array(products).reshape(V, *sums.shape[1:], sums.shape[-1])


def variance(
    sums: Array, people: float, total: float, ratio: float, top: Sequence[float], bottom: Sequence[float]
) -> float:
    r"""Variance of a ratio R of two sums over m people, y by x (Cochran 1977, 6.3): :math:`\frac{m}{m-1} \sum (y - R x)^2 / (\sum x)^2`.

    Parameters
    ----------
    sums : of the products [K, K] of one value, see :func:`moments`.
    people : m; NaN is returned for fewer than 2.
    total : the sum of x.
    ratio : R.
    top, bottom : y and x as factors [K] of what was summed.
    """
    if people < 2 or total <= 0:
        return float("nan")
    residual = np.asarray(top) - ratio * np.asarray(bottom)
    return float(np.maximum(0, residual @ sums @ residual)) * people / (people - 1) / total**2


def effective(sums: Array, people: float, n: float, share: float, rate: str) -> float:
    """How many independent rows a rate of n rows is worth, at most n: n by the design effect, the ratio of its variance to share (1 - share) / n.

    If the share is 0 or 1, the rows of a person are taken for one.
    """
    top, bottom = RATES[rate]
    if not 0 < share < 1 or people < 2:
        squares = float(np.asarray(bottom) @ sums @ np.asarray(bottom))
        return float(np.minimum(n, n**2 / squares)) if squares > 0 else n
    spread = variance(sums, people, n, share, top, bottom)
    return n / max(1.0, spread * n / (share * (1 - share)))
