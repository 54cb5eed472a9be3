"""The form of ``threshold.json``, which `equipoise threshold` writes into the directory of a run."""

import hashlib
import math
from collections.abc import Collection
from typing import Any, Final, TypedDict

from equipoise.privacy.suppression import Key, OfClass, Publication, enough, hidden
from equipoise.records.record import Record, Score, line, number

FILE: Final = "threshold.json"
USES_GROUP: Final = (
    "A threshold by {0} uses {0} of each person at prediction: it must be known then, and laws may forbid to treat people by it "
    "(disparate treatment). Ask before you use it."
)


class Estimate(TypedDict):
    """A number in [0, 1] with the ends of its 95 % interval; all null where it is about too few samples."""

    value: float | None
    low: float | None
    high: float | None


class RatesAt(TypedDict):
    """How a group of samples is treated.

    Attributes
    ----------
    n, of_class : people, or samples if they are not named, and those of the positive class; null if they, or for ``of_class`` the others, are too few to be shown.
    withheld : whether numbers are null because they and the totals would tell those of a smaller group.
    threshold : which decides about them; null where people in the group have several.
    sensitivity, specificity, selection_rate : of the decisions (Wilson).
    auc : area under the ROC curve (Newcombe).
    roc : true-positive rates at the false-positive rates 0, 0.01, ..., 1; null if the samples are too few.
    brier, ece : of the probabilities, see `equipoise.metrics.calibration.calibration`; null if the samples are too few.
    """

    n: int | None
    of_class: int | None
    threshold: float | None
    sensitivity: Estimate
    specificity: Estimate
    selection_rate: Estimate
    auc: Estimate
    roc: list[float] | None
    brier: float | None
    ece: float | None
    withheld: bool


class Division(TypedDict):
    """The rates by group of one division of the test samples: a sensitive attribute, the test sets, or the clients' own test samples."""

    by: str
    groups: dict[str, RatesAt]


class ByGroup(TypedDict):
    """The threshold of each value of a sensitive attribute; people of whom the value is not known have the common one."""

    attribute: str
    thresholds: dict[str, float]


class Recalibrated(TypedDict):
    """A function of the probabilities, fitted to ``n`` validation rows, and the measures on test rows after it and before."""

    kind: str
    numbers: list[float]
    n: int
    brier: float | None
    ece: float | None
    before: dict[str, float | None]


class Chosen(TypedDict):
    """A threshold and what it does.

    Attributes
    ----------
    positive : the name of the class that is predicted where its probability is at least the threshold.
    threshold, by_group : for everyone; and by group, null where one is for all.
    rule, aim : how it was chosen, in words, and as kind and value, see `equipoise.metrics.thresholds.Aim`.
    rows, validation : the validation rows on which it was chosen: their `source`, `n`, those of the positive class (`of_class`, null if too few)
        and `sha256` of scores and classes; and the rates on them: of ``"all"``, and by group, if the threshold is.
    hash : SHA-256 of the values of the global model.
    round, record : the round after which the model was, from 0, and the :func:`mark` of its record.
    least : fewest samples that a number is about.
    everyone, divisions : rates on all test rows, and by group.
    reliability : of all test rows, by bin of scores in (low edge, high edge]: `edges`, how many samples (`n`), their mean `score`, and the share
        that is positive as in `Estimate`.
    recalibration : null unless it was asked for.
    notes : sentences about the choice.
    """

    positive: str
    threshold: float
    by_group: ByGroup | None
    rule: str
    aim: dict[str, str | float]
    rows: dict[str, Any]
    validation: dict[str, RatesAt]
    hash: str
    round: int
    record: str
    least: int
    everyone: RatesAt
    divisions: list[Division]
    reliability: list[dict[str, Any]]
    recalibration: Recalibrated | None
    notes: list[str]


def mark(record: Record) -> str:
    """SHA-256 of a record: a model that was trained again, with the same result, has another, as it took another time."""
    return hashlib.sha256(line(record, None).encode()).hexdigest()


NOTHING: Final[Estimate] = {"value": None, "low": None, "high": None}


def masked(chosen: Chosen, least: int) -> Chosen:
    """The same without numbers about fewer than ``least`` samples, where it was made with fewer."""
    if least <= chosen["least"]:
        return chosen
    rows = chosen["rows"]
    everyone, (every, *parts) = chosen["everyone"], chosen["validation"].items()
    divisions: list[Division] = [
        {**division, "groups": _shown(everyone, division["groups"], least)} for division in chosen["divisions"]
    ]
    bins = {str(k): entry for k, entry in enumerate(chosen["reliability"])}
    sizes = {k: int(entry["n"]) for k, entry in bins.items()}
    gone = hidden(sizes, least, (everyone["n"] or 0) - sum(sizes.values()))
    return {
        **chosen,
        "least": least,
        "rows": {**rows, "of_class": None if _masked(every[1], least)["of_class"] is None else rows["of_class"]},
        "validation": {every[0]: _masked(every[1], least), **_shown(every[1], dict(parts), least)},
        "everyone": _masked(everyone, least),
        "divisions": divisions,
        "reliability": [entry for k, entry in bins.items() if k not in gone],
    }


def score_of(chosen: Chosen) -> Score:
    """Counts and ranks of all test rows at the threshold, as a record has them, see :mod:`equipoise.metrics.failure`; empty if they are hidden."""
    everyone = chosen["everyone"]
    estimates = (everyone["specificity"], everyone["sensitivity"], everyone["auc"])
    specificity, sensitivity, area = (number(estimate["value"]) for estimate in estimates)
    n, P = everyone["n"], everyone["of_class"]
    if n is None or P is None or math.isnan(specificity + sensitivity + area):
        return {}
    tn, tp, weight = round(specificity * (n - P)), round(sensitivity * P), P * (n - P) / (n + 1)
    counts = {"right": [tn, tp], "true": [n - P, P], "chosen": [P - tp + tn, n - P - tn + tp]}
    return {"rates": counts, "ranks": [[weight, weight * (area - 0.5)]] * 2}


def _masked(rates: RatesAt, least: int) -> RatesAt:
    n, of_class = rates["n"] or 0, rates["of_class"] or 0
    few, few_cases = not enough(n, least), not enough(of_class, least)
    few_others = rates["of_class"] is not None and not enough(n - of_class, least)
    gone: dict[str, Any] = {**_OF_ALL, **_OF_BOTH} if few else dict(_OF_BOTH) if few_cases or few_others else {}
    gone |= {"sensitivity": NOTHING} if few or few_cases else {}
    gone |= {"specificity": NOTHING} if few or few_others else {}
    return {**rates, **gone}  # type: ignore[typeddict-item]


def _shown(everyone: RatesAt, groups: dict[str, RatesAt], least: int) -> dict[str, RatesAt]:
    """The rates of the groups of a division, without those of few, and without counts from which, with the total of all, such follow."""
    made, rest, of_class = Publication(least), everyone["n"] or 0, everyone["of_class"] or 0
    for name, rates in groups.items():
        if (n := rates["n"]) is not None:
            made.add(name, n, {} if (k := rates["of_class"]) is None else {1: (k, n - k)})
            rest, of_class = rest - n, of_class - (k or 0)
    of_rest = {1: (max(0, of_class), max(0, rest - of_class))}
    made.total([name for name in groups if name in made.n], rest=rest, of_class=of_rest)
    return _without({name: _masked(rates, least) for name, rates in groups.items()}, made.hidden())


def _without(groups: dict[str, RatesAt], gone: Collection[Key], by: str = "", c: int = 1) -> dict[str, RatesAt]:
    """Groups without what tells those of a smaller one, by the keys of counts: names, or with ``by`` pairs of both."""
    shown = dict(groups)
    for name, rates in groups.items():
        key = (by, name) if by else name
        if key in gone and rates["n"] is not None:
            shown[name] = {**rates, **_GONE}  # type: ignore[typeddict-item]
        elif OfClass(key, c) in gone and rates["of_class"] is not None:
            shown[name] = {**rates, **_GONE_BY_CLASS}  # type: ignore[typeddict-item]
    return shown


def without(chosen: Chosen, gone: Collection[Key], c: int) -> Chosen:
    """The same without counts that other tables of the run hide, by their keys, and those of class ``c``."""
    divisions: list[Division] = [
        {**division, "groups": _without(division["groups"], gone, division["by"], c)}
        for division in chosen["divisions"]
    ]
    return {**chosen, "divisions": divisions}


def hidden_in(chosen: Chosen, c: int) -> set[Key]:
    """The keys of counts that are not shown, as pairs of a division and a group."""
    groups = [((part["by"], name), rates) for part in chosen["divisions"] for name, rates in part["groups"].items()]
    few = {key for key, rates in groups if rates["n"] is None}
    return few | {OfClass(key, c) for key, rates in groups if rates["of_class"] is None}


_OF_ALL: Final = {"n": None, "selection_rate": NOTHING, "brier": None, "ece": None}  # what is about all samples
_OF_BOTH: Final = {"of_class": None, "auc": NOTHING, "roc": None}  # what is about both classes
_GONE_BY_CLASS: Final = {**_OF_BOTH, "sensitivity": NOTHING, "specificity": NOTHING, "withheld": True}
_GONE: Final = {**_GONE_BY_CLASS, **_OF_ALL}
