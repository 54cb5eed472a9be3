"""How tables show the numbers of runs: a column each, from left to right; what they are is in `equipoise.metrics.definitions`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from equipoise.metrics.classification import AREAS
from equipoise.metrics.definitions import GROUPS, INDICES
from equipoise.metrics.measures import Measure

_POWERS: Final = {statistic.key: statistic.power for statistic in (*GROUPS, *INDICES)}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    key : of the number, see `equipoise.metrics.definitions.Statistic`.
    title : of the column.
    digits : behind the point; of numbers with a unit those of their measure.
    narrow : the title in a narrow terminal, if another.
    explanation : a sentence below the table.
    shown : of the groups: whether the table of a measure with so many groups shows it.
    optional : of the groups: whether it is left out where no run has the number.
    """

    key: str
    title: str
    digits: int = 2
    narrow: str = ""
    explanation: str = ""
    shown: Callable[[Measure, int], bool] = lambda measure, groups: measure.main or groups > 1
    optional: bool = False

    def of(self, measure: Measure) -> "Column":
        """The same of numbers of a measure."""
        digits = (self.digits, measure.digits, max(1, 2 * measure.digits - 3))[_POWERS.get(self.key, 1)]
        return replace(self, digits=digits, explanation=measure.fill(self.explanation))


_GROUPS = (
    Column("avg", "AVG", shown=lambda measure, groups: True),
    Column(
        "std",
        "STD",
        explanation="STD: standard deviation over the groups (ddof 1), lower is fairer.",
        shown=lambda measure, groups: groups > 1 and (measure.main or groups > 2),
    ),
    Column(
        "gap",
        "gap",
        explanation="gap: the {better} group less the {worse}, lower is fairer.",
        shown=lambda measure, groups: not measure.main and groups == 2,
    ),
    Column("worst", "worst", shown=lambda measure, groups: groups > 1),
    Column(
        "client_std",
        "client STD",
        explanation="client STD: standard deviation over clients that each have the value of their group (ddof 0).",
        shown=lambda measure, groups: measure.name in AREAS and groups > 1,
        optional=True,
    ),
)
_LEVEL = (
    Column("mean", "mean"),
    Column("worst10", "worst 10\u00a0%"),
    Column("min", "min"),
    Column("max", "max"),
    Column("best10", "best 10\u00a0%"),
)
_DISTANCE = (Column("gap", "gap"), Column("std", "STD₀"), Column("variance", "variance"))
_EVENNESS = (
    Column("cov", "CoV", 4),
    Column("jain", "Jain", 4),
    Column("cosine", "cosine", 4),
    Column("angle", "angle"),
    Column("entropy", "entropy", 4),
    Column("kl", "KL", 4),
    Column("gini", "Gini", 4),
)
COLLABORATION: Final = (
    Column("fairness", "fairness", narrow="fair-\nness"),
    Column("spearman", "Spearman", narrow="Spear-\nman"),
    Column("max", "max"),
    Column("mean", "mean"),
    Column("min", "min"),
    Column("gain", "gain"),
    Column("worse_off", "worse off", 1, "worse\noff"),
    Column("bcf", "BCF", 1),
    Column("down", "down", 1),
    Column("up", "up", 1),
)
PARITY: Final = tuple(
    Column(key, title, narrow=title.replace(" ", "\n"))
    for key, title in {
        "accuracy_gap": "accuracy gap",
        "equal_opportunity": "equal opportunity",
        "equalised_odds": "equalised odds",
        "demographic_parity": "demographic parity",
        "demographic_parity_ratio": "selection ratio",
        "predictive_parity": "predictive parity",
        "calibration_gap": "calibration gap",
        "calibration_error_gap": "calibration error gap",
        "worst_recall": "worst recall",
    }.items()
)
ERRORS: Final = (
    Column("rmse_gap", "RMSE gap"),
    Column("mae_gap", "MAE gap"),
    Column("error_gap", "mean error gap"),
    Column("prediction_gap", "prediction gap"),
)
OWN: Final = (Column("avg", "AVG", 4), Column("std", "STD", 4), Column("worst", "worst", 4))


def over_groups(measure: Measure) -> tuple[Column, ...]:
    """The statistics over groups of a measure."""
    return tuple(column.of(measure) for column in _GROUPS)


def blocks_over_clients(measure: Measure) -> tuple[tuple[Column, ...], ...]:
    """The indices of the spread of a measure over clients: level, distance and evenness."""
    return tuple(tuple(column.of(measure) for column in block) for block in (_LEVEL, _DISTANCE, _EVENNESS))


def spread_of(measure: Measure) -> tuple[Column, ...]:
    """What a table of many clients shows of a measure, as q-FFL and Ditto do."""
    by_key = {column.key: column for block in blocks_over_clients(measure) for column in block}
    keys = ("mean", "std", "worst10", "best10", "min" if measure.better == "higher" else "max")
    return tuple(by_key[key] for key in keys)


def parity(several: bool, calibration: bool = False) -> tuple[Column, ...]:
    """The gaps between groups that tables show.

    Parameters
    ----------
    several : every one of more than two classes is compared with all others: the largest difference of any class is near 100 where
        classes are rare, and says little. The class that is recognised worst in each group takes its place.
    calibration : also of probabilities.
    """
    if several:
        return (PARITY[0], PARITY[-1])
    return tuple(column for column in PARITY[:-1] if calibration or "calibration" not in column.key)
