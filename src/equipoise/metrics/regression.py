"""How far predicted numbers are from the right ones: root mean squared error, mean absolute error, R²."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Sums:
    r"""Sums over samples from which all measures follow; those of a union are the sums of both.

    .. math:: \mathrm{RMSE} = \sqrt{\frac{\sum e^2}{n}}, \quad \mathrm{MAE} = \frac{\sum |e|}{n}, \quad
        R^2 = 1 - \frac{\sum e^2}{\sum (y - \bar y)^2}, \quad e = \hat y - y

    ``n`` samples; ``squares`` and ``absolute`` of the errors, ``mean`` of the targets and ``spread``, the sum of their squared distances from it.
    """

    n: int
    squares: float
    absolute: float
    mean: float
    spread: float

    @staticmethod
    def of(predicted: ArrayLike, y: ArrayLike) -> Sums:
        """The sums of predictions [n] for targets [n].

        Raises
        ------
        ValueError : they are not as many, or none.
        """
        p, right = np.asarray(predicted, np.float64), np.asarray(y, np.float64)
        if p.shape != right.shape or right.ndim != 1 or not len(right):
            raise ValueError(
                f"expected predictions and targets of one shape [n], n >= 1; found {p.shape} and {right.shape}."
            )
        e, mean = p - right, float(right.mean())
        return Sums(len(right), float(e @ e), float(np.abs(e).sum()), mean, float(np.square(right - mean).sum()))

    def __add__(self, other: Sums) -> Sums:
        n = self.n + other.n
        gap, mean = other.mean - self.mean, (self.n * self.mean + other.n * other.mean) / n
        spread = self.spread + other.spread + gap * gap * self.n * other.n / n  # Chan, Golub, LeVeque 1979
        return Sums(n, self.squares + other.squares, self.absolute + other.absolute, mean, spread)

    @property
    def measures(self) -> dict[str, Any]:
        """RMSE, MAE and R²; R² is None where the targets are all the same."""
        r2 = 1 - self.squares / self.spread if self.spread > 0 else None
        return {"rmse": math.sqrt(self.squares / self.n), "mae": self.absolute / self.n, "r2": r2}
