"""Fairness between groups of people a classifier decides about: rates per group and their differences.

Ours rather than those of fairlearn or torchmetrics, because these take a rate of nothing for 0, which makes a gap where
nothing is known, and need all predictions in one place, where sites send counts.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from numbers import Real
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.performance import UNDEFINED, Value
from equipoise.privacy.suppression import enough
from equipoise.system.ranges import check_whole
from equipoise.system.suggestions import shorten, unknown
from equipoise.system.text import Said

Counts = Mapping[str, Sequence[int]]  # see `class_counts`

NEGATIVE: Final = frozenset(
    ["0", "no", "n", "false", "f", "negative", "neg", "control", "controls", "absent", "-1", "-"]
)
POSITIVE: Final = frozenset(["1", "yes", "y", "true", "t", "positive", "pos", "case", "cases", "present", "+1", "+"])
OF_CLASS: Final = ("tpr", "fpr", "selection_rate", "ppv", "npv")  # rates of one class against all others
# by measure of `Parity` the rates whose gaps it is the largest of
MEASURED: Final[Mapping[str, Sequence[str]]] = {
    "equal_opportunity": ("tpr",),
    "equalised_odds": ("tpr", "fpr"),
    "demographic_parity": ("selection_rate",),
    "predictive_parity": ("ppv",),
}
# people in each group from which on a gap can be estimated: its standard error is below 13 points
ESTIMABLE: Final = 30
POSITIVE_CLASS: Final = "positive class"  # key of the sentence that names it


# variances of rates and means if one person may have several rows, from the sums over the rows of each person, which add up over data sets
Array = NDArray[Any]

OF_NUMBERS: Final = ("n", "error", "absolute", "squares", "prediction")  # of a person: rows, and sums over them
# numerator and denominator of each rate, as factors of five sums over the rows of a person: right, true, chosen, all, hits; the first three of
# the class
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
    """By value from 0 to V - 1, class and rate of `RATES`, how many people with the five sums of `RATES` [m, C, 5] it is about: [V, C, 6]."""
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


class Positive(NamedTuple):
    """The class that true-positive rates are about.

    `number` is that of its labels, `name` what it is called; `why` says how it is known: "given" by the user, by the "names"
    of the two classes (0 and 1, no and yes, control and case), or "assumed": the second of two, which names do not tell.
    `other` is the name of the other of two classes; empty where there are more.
    """

    number: int
    name: str
    why: Literal["given", "names", "assumed"]
    other: str = ""

    @property
    def sentence(self) -> str:
        """Which class is positive, and where that is assumed how to say it."""
        if self.why != "assumed":
            rest = "" if self.other else ", against all others"
            return Said(f"The positive class is {self.name}{rest}.", POSITIVE_CLASS)
        return Said(
            f"The positive class is {self.name}: an assumption, as neither {self.other} nor {self.name} says which it is, and it "
            f"comes second. Choose the other with --positive {shlex.quote(self.other)}, in Python positive={self.other!r}, "
            f"between sites -c {shlex.quote(f'positive={json.dumps(self.other, ensure_ascii=False)}')}.",
            POSITIVE_CLASS,
        )


def positive_class(given: object, classes: Sequence[str]) -> Positive | None:
    """Which class is positive; None of more than two classes where none is given: then each is compared with all others.

    Parameters
    ----------
    given : the name of a class, as text or as the number that this is; None: not given.
    classes : the names of the classes, in the order of their numbers.

    Raises
    ------
    ValueError : there is no such class.
    """
    if given is not None:
        exact = [k for k, name in enumerate(classes) if name == str(given)]
        named = exact or [k for k, name in enumerate(classes) if _same(given, name)]
        if len(named) != 1:
            raise ValueError(f"positive: {unknown('class', given, classes)}")
        k = named[0]
        return Positive(k, classes[k], "given", classes[1 - k] if len(classes) == 2 else "")
    if len(classes) != 2:
        return None
    words = [name.strip().casefold() for name in classes]
    for k in (1, 0):
        if words[k] in POSITIVE and words[1 - k] in NEGATIVE:
            return Positive(k, classes[k], "names", classes[1 - k])
    return Positive(1, classes[1], "assumed", classes[0])


def _same(given: object, name: str) -> bool:
    """Whether a value that was read from text, 1000.0 of 1e3 or True of true, is that of a class."""
    if isinstance(given, bool):
        return str(given).casefold() == name.strip().casefold()
    try:
        return isinstance(given, Real) and float(name) == float(given)
    except ValueError:
        return False


class Rates(NamedTuple):
    """How a classifier treats one group: in [0, 1], with one `Value` per class for every rate.

    `hardest` is the class that is recognised worst, the first of those that are equal; None where no class has a rate, and
    beside other groups where a class has none that has one in another group.
    """

    accuracy: Value
    tpr: tuple[Value, ...]
    fpr: tuple[Value, ...]
    selection_rate: tuple[Value, ...]
    ppv: tuple[Value, ...]
    npv: tuple[Value, ...]
    hardest: int | None

    @property
    def worst_recall(self) -> Value:
        """The true-positive rate of the hardest class."""
        return UNDEFINED if self.hardest is None else self.tpr[self.hardest]

    def of(self, key: str, c: int) -> Value:
        """The rate of this name, of class c if classes have one each."""
        value = getattr(self, key)
        return cast(Value, value[c] if key in OF_CLASS else value)


class Gap(NamedTuple):
    """How far a rate differs between the groups that have it, of which `lowest` and `highest` are two.

    `difference` is the highest less the lowest, `ratio` the lowest by the highest; `to_overall` is the largest distance of a group to the
    rate of all groups together, as FairBatch and FedFB measure it. They are undefined of fewer than two groups.
    """

    difference: Value = UNDEFINED
    ratio: Value = UNDEFINED
    to_overall: Value = UNDEFINED
    lowest: str = ""
    highest: str = ""
    groups: int = 0


class Parity(NamedTuple):
    """How differently a classifier treats groups: the largest difference between any two, in [0, 1].

    `rates` has those of every group; `classes` are the classes that were compared; `widest` says for a measure in which of
    them the difference is largest; `undefined` lists group, rate and class where a group has no sample the rate is about, or
    fewer than a rate must be about. `gaps` are those of each rate in each class, with class 0 of rates that classes do not have.
    """

    accuracy: Value
    equal_opportunity: Value
    equalised_odds: Value
    demographic_parity: Value
    predictive_parity: Value
    worst_recall: Value
    rates: Mapping[str, Rates]
    gaps: Mapping[tuple[str, int], Gap]
    classes: tuple[int, ...]
    widest: Mapping[str, int]
    undefined: tuple[tuple[str, str, int], ...]

    def gap(self, key: str) -> Gap:
        """The gap of a rate, in the class in which it is widest."""
        every = [gap for (rate, _), gap in self.gaps.items() if rate == key]
        return max(every, key=lambda gap: gap.difference.value if gap.difference.defined else -1.0)


def class_counts(labels: ArrayLike, predicted: ArrayLike, n_classes: int) -> dict[str, list[int]]:
    """Counts from which all rates of a group are computed; counts of parts of a group add up to those of the group.

    Parameters
    ----------
    labels, predicted : True and predicted class of every sample, in 0..n_classes - 1; shape [n].
    n_classes : how many classes there are, C.

    Returns
    -------
    `{"right": [C], "true": [C], "chosen": [C]}`: per class, samples of it that are recognised, samples of it, and samples
    taken for it.  A sample predicted as -1, no class, is among the true ones only.
    """
    y, yhat = np.asarray(labels, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    parts = {"right": y[y == yhat], "true": y, "chosen": yhat[yhat >= 0]}
    return {name: np.bincount(part, minlength=n_classes).tolist() for name, part in parts.items()}


def sizes_of(counts: Counts) -> dict[str, list[float]]:
    """By the name of a rate, how many samples it is about for each class: its denominator."""
    true, chosen = counts["true"], counts["chosen"]
    n: float = sum(true)
    return {
        "tpr": [*true],
        "fpr": [n - k for k in true],
        "selection_rate": [n for _ in true],
        "ppv": [*chosen],
        "npv": [n - k for k in chosen],
        "accuracy": [n for _ in true],
    }


def people_of(counts: Mapping[str, Any]) -> dict[str, list[float]]:
    """By the name of a rate, how many people it is about for each class; samples, if people are not named."""
    if "people" not in counts:
        return sizes_of(counts)
    return dict(zip(RATES, np.transpose(counts["people"]).tolist(), strict=True))


def rates_of(counts: Counts, least: int = 1) -> Rates:
    """Accuracy, and per class against all others the share of its samples taken for it, of others, and of all; and how often that is true.

    With n samples: `TPR_c = right_c / true_c`, `FPR_c = (chosen_c - right_c) / (n - true_c)`, selection rate
    `chosen_c / n`, predictive values `PPV_c = right_c / chosen_c` and `NPV_c = 1 - (true_c - right_c) / (n - chosen_c)`.

    Parameters
    ----------
    counts : what `class_counts` returned, or a sum of such.
    least : >= 1, people that a rate must be about, see `people_of`: one of fewer is undefined.

    Raises
    ------
    ValueError : these are no counts.
    """

    def share(part: float, whole: float, people: float) -> Value:
        return Value(float(part / whole), True) if enough(people, least) else UNDEFINED

    right, true, chosen = (np.asarray(counts[name], dtype=np.float64) for name in ("right", "true", "chosen"))
    alike = right.ndim == 1 and right.shape == true.shape == chosen.shape
    fits = alike and true.sum() * (1 + 1e-12) >= chosen.sum()  # means of counts round
    if not fits or (right < 0).any() or (right > np.minimum(true, chosen)).any():
        raise ValueError(f"expected right, true and chosen samples of every class, found {shorten(repr(counts))}.")
    n, people = true.sum(), people_of(counts)
    tpr = tuple(map(share, right, true, people["tpr"]))
    return Rates(
        share(right.sum(), n, max(people["accuracy"], default=0)),
        tpr,
        tuple(map(share, chosen - right, n - true, people["fpr"])),
        tuple(share(c, n, k) for c, k in zip(chosen, people["selection_rate"], strict=True)),
        tuple(map(share, right, chosen, people["ppv"])),
        tuple(map(share, n - chosen - true + right, n - chosen, people["npv"])),
        min((c for c, value in enumerate(tpr) if value.defined), key=lambda c: tpr[c].value, default=None),
    )


def added(parts: Sequence[Mapping[str, Any]], factor: float = 1) -> dict[str, Any]:
    """The sums of what all of some counts have, times a factor."""
    keys = [key for key in parts[0] if all(key in counts for counts in parts)]  # earlier versions recorded less
    return {key: (factor * np.sum([counts[key] for counts in parts], axis=0)).tolist() for key in keys}


def parity(groups: Mapping[str, Counts], positive: int | None = None, least: int = 1) -> Parity:
    """The largest differences between groups in how a classifier treats them.

    With `gap_g x = max_g x - min_g x` over groups: demographic parity `gap selection rate`, equal opportunity `gap TPR`
    (Hardt et al. 2016), equalised odds `max(gap TPR, gap FPR)`; as `demographic_parity_difference`,
    `equal_opportunity_difference` and `equalized_odds_difference` of fairlearn. Of more than two classes each is compared
    with all others, and the largest difference counts. Predictive parity is `gap PPV`.

    Parameters
    ----------
    groups : counts of every group, see `class_counts`.
    positive : the class that counts as positive; by default the second of two, and every one of more.
    least : >= 1, people that a rate must be about.

    Returns
    -------
    `worst_recall` is the gap of the true-positive rate of the class that is worst in its group, over groups with a rate of every
    class that has one in any: the worst of one class and the worst of five cannot be compared. A rate is undefined, and not 0 as in
    fairlearn, for a group without a sample that it is about, or with fewer than `least`. A gap is over the groups
    that have the rate, and undefined if fewer than two have it; equalised odds need both gaps.

    Raises
    ------
    ValueError : there is no group, groups have different numbers of classes, or `positive` is none of the classes.
    """
    sizes = {len(counts["true"]) for counts in groups.values()}
    if len(sizes) != 1:
        raise ValueError(f"expected counts of the same classes for every group, found {sorted(sizes)} classes.")
    (C,) = sizes
    if positive is not None:
        check_whole("positive", positive, 0, C - 1, ", one of the classes")
    classes = (positive,) if positive is not None else (1,) if C == 2 else tuple(range(C))
    rates = _comparable({name: rates_of(counts, least) for name, counts in groups.items()})
    overall = rates_of(added([*groups.values()]), least)
    gaps = {
        (key, c): _gap({name: values.of(key, c) for name, values in rates.items()}, overall.of(key, c))
        for key in (*OF_CLASS, "accuracy", "worst_recall")
        for c in (classes if key in OF_CLASS else (0,))
    }
    measured = {name: _largest(gaps, keys, classes) for name, keys in MEASURED.items()}
    places = product(rates, ("tpr", "fpr"), classes)
    undefined = tuple((name, rate, c) for name, rate, c in places if not rates[name].of(rate, c).defined)
    return Parity(
        gaps["accuracy", 0].difference,
        **{name: _value(max(by_class.values(), default=math.nan)) for name, by_class in measured.items()},
        worst_recall=gaps["worst_recall", 0].difference,
        rates=rates,
        gaps=gaps,
        classes=classes,
        widest={name: max(by_class, key=by_class.__getitem__) for name, by_class in measured.items() if by_class},
        undefined=undefined,
    )


def _gap(rates: Mapping[str, Value], overall: Value) -> Gap:
    """The gap of a rate between groups, given that of all groups together."""
    values = {name: rate.value for name, rate in rates.items() if rate.defined}
    if len(values) < 2:
        return Gap(groups=len(values))
    lowest, highest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    low, high = values[lowest], values[highest]
    distance = max(abs(value - overall.value) for value in values.values())
    ratio = Value(low / high, True) if high > 0 else UNDEFINED
    return Gap(Value(high - low, True), ratio, _value(distance), lowest, highest, len(values))


def _comparable(rates: Mapping[str, Rates]) -> dict[str, Rates]:
    """The same rates, without the hardest class of a group where a class has no recall that has one in another group."""
    rated = {name: {c for c, value in enumerate(values.tpr) if value.defined} for name, values in rates.items()}
    every = set[int]().union(*rated.values())
    return {name: values if rated[name] == every else values._replace(hardest=None) for name, values in rates.items()}


def _largest(gaps: Mapping[tuple[str, int], Gap], keys: Sequence[str], classes: Sequence[int]) -> dict[int, float]:
    """The largest of the gaps of some rates, by class: of those in which each of these is defined."""
    differences = {c: [gaps[key, c].difference for key in keys] for c in classes}
    return {c: max(x.value for x in each) for c, each in differences.items() if all(x.defined for x in each)}


def _value(value: float) -> Value:
    return Value(value, True) if math.isfinite(value) else UNDEFINED
