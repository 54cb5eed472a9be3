"""What a number of a model on a data set is called, in which unit it is shown, and which way of it is better."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics import performance
from equipoise.metrics.performance import Value
from equipoise.system.suggestions import require_known


@dataclass(frozen=True)
class Measure:
    """A measure of a model on a data set, as all that shows its numbers must know it.

    Parameters
    ----------
    name : in records and options.
    title : of its table.
    unit : in which it is shown, a symbol; empty where it has none.
    low, high : between which it lies, in the unit of the records.
    better : which way is better.
    scale : what turns a number of the records into the one that is shown.
    digits : behind the point.
    main : whether models are judged by it.
    of_target : whether its unit is that of the target.
    loss : the unit of the loss beside it, as a part of a sentence.
    formula, source : what the legend says.
    varying : what must differ within a test set for it to be defined, in a sentence.
    """

    name: str
    title: str
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    better: Literal["higher", "lower"] = "higher"
    scale: float = 1
    digits: int = 2
    main: bool = False
    of_target: bool = False
    loss: str = ""
    formula: str = ""
    source: str = "–"
    varying: str = ""

    @property
    def noun(self) -> str:
        """In a sentence."""
        short = self.title.split(" (")[0]
        return short[0].lower() + short[1:] if short[1:2].islower() else short

    @property
    def plural(self) -> str:
        """Several of its numbers, in a sentence."""
        return f"{self.noun[:-1]}ies" if self.noun.endswith("y") else self.noun

    @property
    def highest(self) -> str:
        """What the best of its numbers is."""
        return "highest" if self.better == "higher" else "lowest"

    @property
    def lowest(self) -> str:
        """What the worst of its numbers is."""
        return "lowest" if self.better == "higher" else "highest"

    @property
    def words(self) -> str:
        """Its unit as a part of a sentence."""
        return " in percent" if self.unit == "%" else f" in {self.unit}" if self.unit else ""

    @property
    def squared(self) -> str:
        """The square of its unit, as a part of a sentence."""
        plain = self.unit == "%" or self.unit.isalnum()
        return f"{self.words}²" if plain else f" in ({self.unit})²" if self.unit else ""

    @property
    def points(self) -> str:
        """The unit of differences, in words."""
        return "points" if self.unit == "%" else self.unit

    def fill(self, text: str) -> str:
        """A text about its numbers with its own words in place of `{lowest}`, `{better}` and the like."""
        up = self.better == "higher"
        ends = {"min": "min" if up else "max", "lowest": self.lowest, "highest": self.highest}
        better, worse = ("better", "worse") if up else ("worse", "better")
        scale, squared = f"{self.scale:g} " if self.scale != 1 else "", self.squared and f",{self.squared}"
        return text.format(**ends, better=better, worse=worse, scale=scale, squared=squared)

    def point(self, value: float) -> float:
        """So small a difference of its numbers, as they are shown, that little depends on it: a point of percent, else a hundredth."""
        return 1.0 if self.unit == "%" else abs(value) / 100

    def ahead(self, a: float, b: float) -> float:
        """By how much one number is better than another."""
        return a - b if self.better == "higher" else b - a

    @property
    def ends(self) -> tuple[float, float]:
        """Between which it lies, as it is shown."""
        return self.scale * self.low, self.scale * self.high

    def sized(self, *values: float) -> "Measure":
        """The same with four digits of the largest of some numbers, where they may be of any size."""
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        return replace(self, digits=max(0, 3 - math.floor(math.log10(largest)))) if self.of_target and largest else self

    def brief(self, value: float, digits: int = 1) -> str:
        """A number of the records in a line about a run that goes on, with few digits and without a unit."""
        shown = self.scale * value
        return f"{shown:.{max(0, self.sized(shown).digits - 1) if self.of_target else digits}f}"

    def axis(self, what: str = "", *, points: bool = False) -> str:
        """The title of an axis: `accuracy (%)`."""
        unit = self.points if points else self.unit
        return f"{what or self.noun}{f' ({unit})' if unit else ''}"

    def shown(self, value: Value) -> float | None:
        """A number as it is shown; None where it is not defined."""
        return self.scale * value.value if value.defined else None

    def worst(self, values: ArrayLike) -> Value:
        """The worst of some numbers."""
        return (performance.worst if self.better == "higher" else performance.best)(values)

    def best(self, values: ArrayLike) -> Value:
        """The best of some numbers."""
        return (performance.best if self.better == "higher" else performance.worst)(values)

    def worst_share(self, values: ArrayLike) -> Value:
        """The mean of the worst tenth of some numbers."""
        return (performance.worst_share if self.better == "higher" else performance.best_share)(values)

    def best_share(self, values: ArrayLike) -> Value:
        """The mean of the best tenth of some numbers."""
        return (performance.best_share if self.better == "higher" else performance.worst_share)(values)

    def worst_at(self, values: ArrayLike) -> int:
        """Where the worst of some numbers stands; of those that only rounding tells apart, the first."""
        return performance.extreme_at(values, np.argmin if self.better == "higher" else np.argmax)


ISM: Final = "FedISM+: Wu et al., arXiv 2503.09587"
_SHARE: Final[Mapping[str, Any]] = {"unit": "%", "low": 0, "high": 1, "scale": 100, "loss": " in nats"}
CLASSIFICATION: Final = (
    Measure("accuracy", "Accuracy", main=True, **_SHARE),
    Measure(
        "balanced",
        "Balanced accuracy (ACC of FedISM+)",
        formula="mean over the classes of the share of their samples that is recognised",
        source=ISM,
        **_SHARE,
    ),
    Measure(
        "auc",
        "One-vs-one macro AUC (AUC of FedISM+)",
        formula="mean over the pairs of classes {i, j} of (AUC(pᵢ; i against j) + AUC(pⱼ; j against i)) / 2",
        source=f"Hand and Till, Machine Learning 2001; {ISM}",
        **_SHARE,
    ),
    Measure(
        "auc_ovr",
        "One-vs-rest weighted AUC",
        formula="Σ_c n_c AUC(p_c; c against the rest) / Σ_c n_c, with n_c samples of class c",
        source="Provost and Domingos 2000",
        **_SHARE,
    ),
)
_ERROR: Final[Mapping[str, Any]] = {"low": 0, "better": "lower", "of_target": True}
REGRESSION: Final = (
    Measure("rmse", "RMSE", main=True, formula="√( Σᵢ (yᵢ − ŷᵢ)² / n ) over the n samples i", **_ERROR),
    Measure("mae", "MAE", formula="Σᵢ |yᵢ − ŷᵢ| / n over the n samples i", **_ERROR),
    Measure(
        "r2",
        "R²",
        high=1,
        digits=3,
        varying="targets",
        formula="1 − Σᵢ (yᵢ − ŷᵢ)² / Σᵢ (yᵢ − ȳ)², 0 for their mean, 1 for no error",
    ),
)
TASKS: Final = {"classification": CLASSIFICATION, "regression": REGRESSION}  # of each its main measure first
ACCURACY: Final = CLASSIFICATION[0]


def measures_of(meta: Mapping[str, Any]) -> tuple[Measure, ...]:
    """The measures of a run's task, the main one first, in the unit of its target.

    Parameters
    ----------
    meta : `"task"`, by default classification, and `"unit"`, of its target.

    Raises
    ------
    ValueError : there is no such task.
    """
    require_known("task", TASKS, task := meta.get("task") or "classification")
    unit = str(meta.get("unit") or "")
    return tuple(replace(measure, unit=unit) if measure.of_target else measure for measure in TASKS[task])


def main_of(meta: Mapping[str, Any]) -> Measure:
    """The main measure of a run, by which its models are judged; as `measures_of`."""
    return measures_of(meta)[0]


def main_in(scores: Iterable[str]) -> Measure:
    """The main measure of the task that has these scores, without the unit of its target."""
    return next((measures[0] for measures in TASKS.values() if measures[0].name in scores), ACCURACY)


def named(measures: Iterable[Measure], name: str) -> Measure:
    """One of some measures.

    Raises
    ------
    ValueError : none of that name.
    """
    by_name = {measure.name: measure for measure in measures}
    require_known("measure", by_name, name)
    return by_name[name]
