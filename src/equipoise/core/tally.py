"""Sums of a model on a data set, from which its scores follow: those of a union are the sums of both."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.metrics.classification import RATES, balanced
from equipoise.metrics.groups import by_person, moments, people_of_rates
from equipoise.records.record import Score, Sums

Array = NDArray[Any]
Persons = Array | None  # whom each sample is about; None: each is about another


@dataclass(frozen=True)
class Tally(ABC):
    """What a model does on a data set, or on each of a stack of them, as sums over the samples.

    ``n`` samples [...], and the sum of their losses [...] in float64.
    """

    n: Tensor
    loss: Tensor

    @classmethod
    @abstractmethod
    def of(cls, loss: Tensor, predicted: Tensor, y: Tensor, present: Tensor, width: int) -> Self:
        """Of the sum of losses [...], predictions and targets [..., B] by a network of so many outputs, of the samples ``present`` [..., B]."""

    @abstractmethod
    def vector(self, *, classes: bool = False) -> Tensor:
        """The sums that a site tells [K], in float64, those by class only if asked; vectors add as the sums do."""

    @classmethod
    @abstractmethod
    def from_vector(cls, vector: Tensor, width: int, sets: int = 1) -> Self:
        """What :meth:`vector` gave, or the sum of what it gave for so many ``sets``, by so many classes; with 1, of all classes together.

        Raises
        ------
        ValueError : it cannot be.
        """

    @staticmethod
    @abstractmethod
    def sums_by_value(predicted: Array, y: Array, value: Array, V: int, width: int, person: Persons = None) -> Sums:
        """Sums over the samples with each of V values of a sensitive attribute, given by ``value`` [n], also by ``person`` [n]; all in one pass."""

    def __add__(self, other: Self) -> Self:
        return together([self, other])

    def _union(self, parts: Sequence[Self]) -> Self:
        """Of several data sets of which this is one."""
        names = [part.name for part in fields(self)]
        return replace(self, **{name: _total([getattr(part, name) for part in parts]) for name in names})

    @property
    def mean_loss(self) -> Tensor:
        """Mean loss [...]."""
        return self.loss / self.n

    @property
    @abstractmethod
    def main(self) -> float:
        """The main measure of the task."""

    @property
    @abstractmethod
    def goodness(self) -> Tensor:
        """What a larger number of is better [...], in float64: accuracy, or minus the mean squared error."""

    @abstractmethod
    def score(self, measures: Iterable[str] = ()) -> Score:
        """The main measure, the loss, the number of samples, and those of ``measures`` that follow from sums."""

    def rounded(self, digits: int) -> Self:
        """With a mean loss, and other means over the samples, of so many digits after the point; counts stay."""
        return replace(self, loss=self.mean_loss.round(decimals=digits) * self.n)


AnyTally = TypeVar("AnyTally", bound=Tally)
ROUNDED = 0.015  # what :meth:`Tally.rounded` may change of a root or a mean
TINY = 1e-130  # squares that are too small to be kept


def together(tallies: Iterable[AnyTally]) -> AnyTally:
    """The tally of the union of one data set or more."""
    parts = list(tallies)
    return parts[0] if len(parts) == 1 else parts[0]._union(parts)


@dataclass(frozen=True)
class ClassTally(Tally):
    """Of a classifier, per class [..., C]: samples of it that are recognised, samples of it, and samples taken for it."""

    right: Tensor
    true: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, loss: Tensor, predicted: Tensor, y: Tensor, present: Tensor, width: int) -> Self:
        """As :meth:`Tally.of`; a prediction of -1 is none."""
        zeros = torch.zeros(*y.shape[:-1], width, dtype=torch.int64, device=y.device)

        def counts(classes: Tensor, which: Tensor) -> Tensor:
            return zeros.scatter_add(-1, classes, which.long())

        chosen = counts(predicted.clamp(min=0), present & (predicted >= 0))
        return cls(present.sum(-1), loss, counts(y, present & (predicted == y)), counts(y, present), chosen)

    def vector(self, *, classes: bool = False) -> Tensor:
        """As :meth:`Tally.vector`: n, loss, and by class right, true and chosen."""
        counts = [x if classes else x.sum(-1, keepdim=True) for x in (self.right, self.true, self.chosen)]
        return torch.cat([self.n[None], self.loss[None], *counts]).double()

    @classmethod
    def from_vector(cls, vector: Tensor, width: int, sets: int = 1) -> Self:
        """As :meth:`Tally.from_vector`; a loss that is no number is judged by others."""
        n, loss, rest = _counted(vector, 2 + 3 * width)
        right, true, chosen = counts = rest.long().view(3, width)
        fits = (counts == rest.view(3, width)) & (counts <= n) & (right >= 0) & (right <= true.minimum(chosen))
        if not fits.all() or true.sum() != n or chosen.sum() > n or loss < 0:
            raise ValueError("counts")
        return cls(n, loss, right, true, chosen)

    @staticmethod
    def sums_by_value(predicted: Array, y: Array, value: Array, V: int, width: int, person: Persons = None) -> Sums:
        """As :meth:`Tally.sums_by_value`, by class."""

        def counts(classes: Array, which: Array) -> list[list[int]]:
            return np.bincount(value[which] * width + classes[which], minlength=V * width).reshape(V, width).tolist()

        true, chosen = counts(y, y >= 0), counts(predicted, predicted >= 0)
        sums: Sums = {"right": counts(y, predicted == y), "true": true, "chosen": chosen}
        if person is not None:
            hit, ones = predicted == y, np.ones((len(y), width))
            is_true, is_chosen = (classes[:, None] == np.arange(width) for classes in (y, predicted))
            parts = np.stack([is_true & hit[:, None], is_true, is_chosen, ones, ones * hit[:, None]], -1).astype(float)
            personal = by_person(parts, value, person)
            sums["persons"], products = moments(*personal, V)
            sums["moments"], sums["people"] = products.tolist(), people_of_rates(*personal, V)
        return sums

    @property
    def main(self) -> float:
        """The accuracy."""
        return float(self.goodness)

    @property
    def goodness(self) -> Tensor:
        """The accuracy [...]."""
        return self.right.sum(-1).double() / self.n

    @property
    def balanced(self) -> Tensor:
        """Mean over the classes of the share of their samples that is recognised [...], in float64."""
        recall = self.right.double() / self.true.clamp(min=1)
        return recall.sum(-1) / (self.true > 0).sum(-1)

    def score(self, measures: Iterable[str] = ()) -> Score:
        """As :meth:`Tally.score`, and how many samples are without a prediction, if any."""
        right, true, chosen = (counts.cpu().numpy() for counts in (self.right, self.true, self.chosen))
        n = int(true.sum())  # as self.n, for which a GPU would be waited for once more
        score: Score = {"accuracy": int(right.sum()) / n, "loss": float(self.loss) / n, "n": n}
        if undefined := int(true.sum() - chosen.sum()):
            score["undefined"] = undefined
        if "balanced" in measures:
            score["balanced"] = balanced(right, true)
        if RATES in measures:
            score[RATES] = {"right": right.tolist(), "true": true.tolist(), "chosen": chosen.tolist()}
        return score


@dataclass(frozen=True)
class NumberTally(Tally):
    r"""Of predicted numbers, [...] each: sums of the errors' ``squares`` and sizes; ``mean`` of the targets, and the ``spread`` about it.

    .. math:: \mathrm{RMSE} = \sqrt{\frac{\sum e^2}{n}}, \quad \mathrm{MAE} = \frac{\sum |e|}{n}, \quad
        R^2 = 1 - \frac{\sum e^2}{\sum (y - \bar y)^2}, \quad e = \hat y - y

    A mean that is NaN is not known, and neither is the spread of a union with it.
    """

    squares: Tensor
    absolute: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, loss: Tensor, predicted: Tensor, y: Tensor, present: Tensor, width: int) -> Self:
        """As :meth:`Tally.of`."""
        n, y = present.sum(-1), y.double()
        first, error = y[..., :1], predicted - y
        mean = first.squeeze(-1) + (y - first).where(present, 0).sum(-1) / n.clamp(min=1)  # of equal ones exact
        parts = (error.square(), error.abs(), (y - mean.unsqueeze(-1)).square())
        squares, absolute, spread = (part.where(present, 0).sum(-1) for part in parts)
        return cls(n, loss, squares, absolute, mean, spread)

    def vector(self, *, classes: bool = False) -> Tensor:
        """As :meth:`Tally.vector`: n, loss, squares, absolute and spread; the mean of the targets is not told."""
        return torch.stack([self.n.double(), self.loss, self.squares, self.absolute, self.spread])

    @classmethod
    def from_vector(cls, vector: Tensor, width: int, sets: int = 1) -> Self:
        r"""As :meth:`Tally.from_vector`. Without the means of the targets the spread of several sets is not known.

        Errors may be no numbers, as those of a model that diverged. Where they are, up to rounding, :math:`\sum e^2 \le (\sum |e|)^2
        \le n \sum e^2` (Cauchy-Schwarz).
        """
        n, loss, (squares, absolute, spread) = _counted(vector, 5)
        root, slack = squares.sqrt(), 1 + ROUNDED
        fits = root <= slack * absolute + TINY and absolute <= slack * (n.double().sqrt() * root + TINY)
        fits = fits and 0 <= spread < math.inf
        if (vector[2:4].isfinite().all() and not fits) or squares < 0 or absolute < 0:
            raise ValueError("errors")
        nan = torch.full_like(spread, math.nan)
        return cls(n, loss, squares, absolute, nan, spread if sets == 1 else nan)

    @staticmethod
    def sums_by_value(predicted: Array, y: Array, value: Array, V: int, width: int, person: Persons = None) -> Sums:
        """As :meth:`Tally.sums_by_value`."""
        error = predicted - y
        terms = {"squares": error**2, "absolute": np.abs(error), "error": error, "target": y}
        sums = {name: np.bincount(value, weights=x, minlength=V).tolist() for name, x in terms.items()}
        parts = np.stack([np.ones(len(y)), error, terms["absolute"], terms["squares"], predicted], -1)
        persons, products = moments(*by_person(parts, value, person), V)
        n = np.bincount(value, minlength=V).tolist()
        return cast(Sums, {"n": n, **sums, "persons": persons, "moments": products.tolist()})

    def _union(self, parts: Sequence[Self]) -> Self:
        whole = super()._union(parts)
        mean = self.mean + _total([part.n * (part.mean - self.mean) for part in parts]) / whole.n.clamp(min=1)
        between = _total([part.n * (part.mean - mean).square() for part in parts])  # Chan, Golub, LeVeque 1979
        return replace(whole, mean=mean, spread=whole.spread + between)

    @property
    def main(self) -> float:
        """The RMSE."""
        return math.sqrt(float(self.squares / self.n))

    @property
    def goodness(self) -> Tensor:
        """Minus the mean squared error [...]."""
        return -self.squares / self.n

    def score(self, measures: Iterable[str] = ()) -> Score:
        """As :meth:`Tally.score`: RMSE, MAE, R², None where the targets are all the same; without it where their spread is not known."""
        score: Score = {"rmse": self.main, "mae": float(self.absolute / self.n)}
        if not self.spread.isnan():
            score["r2"] = float(1 - self.squares / self.spread) if self.spread > 0 else None
        return {**score, "loss": float(self.mean_loss), "n": int(self.n)}

    def rounded(self, digits: int) -> Self:
        """As :meth:`Tally.rounded`: RMSE and MAE, of small ones so many significant digits, and R², from which the spread follows."""
        squares = _significant((self.squares / self.n).sqrt(), digits).square() * self.n
        absolute = _significant(self.absolute / self.n, digits) * self.n
        unexplained = (self.squares / self.spread).round(decimals=digits).clamp(min=0.5 * 10.0**-digits)
        spread = (squares / unexplained).where(squares > 0, _significant(self.spread, digits))
        spread = spread.where(self.spread > 0, self.spread)
        return replace(super().rounded(digits), squares=squares, absolute=absolute, spread=spread)


def _significant(x: Tensor, digits: int) -> Tensor:
    """With so many digits after the point, or significant ones where x >= 0 is smaller than one."""
    scale = 10.0 ** (digits - 1 - x.log10().floor()).clamp(min=digits)
    return ((x * scale).round() / scale).where(x > 0, x)


def _total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape, one after another."""
    return torch.stack([*parts]).cumsum(0)[-1]


def _counted(vector: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """The samples, the loss and the other sums in a vector of so many numbers."""
    if vector.shape != (length,) or vector.dtype != torch.float64 or not 1 <= (n := float(vector[0])) < 2**53 or n % 1:
        raise ValueError("counts")
    return vector[0].long(), vector[1], vector[2:]
