"""Every statistic of a run, an entry each: how it is computed, what it means, which way is better, and how it is shown.

Summaries, tests, columns, sentences, the JSON document, the legend and the documentation follow from the lists `GROUPS`, `INDICES`,
`COLLABORATION`, `PARITY` and `ERRORS`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics import performance
from equipoise.metrics.classification import AREAS
from equipoise.metrics.groups import MEASURED
from equipoise.metrics.measures import ACCURACY, ISM, Measure

_HEAL: Final = "FedHEAL: Chen, Huang and Ye, CVPR 2024, Table 2"
_QFFL: Final = "q-FFL: Li, Sanjabi, Beirami and Smith, ICLR 2020"
_APPENDIX: Final = f"{_QFFL}, appendix"
_TABLE_1: Final = f"{_QFFL}, Table 1"
_SAC: Final = "FedSAC: Wang et al., KDD 2024"
_JAIN: Final = "Jain, Chiu and Hawe, DEC TR-301, 1984"
_HARDT: Final = "Hardt, Price and Srebro, NIPS 2016"


Better = Literal["higher", "lower", "as measured", ""]


@dataclass(frozen=True)
class Statistic:
    """One number of a run, and its column.

    Parameters
    ----------
    key : its name in `History.summary()` and in the JSON document.
    compute : makes the number; its arguments are stated at each list. By default of a gap the largest of those of its `rates`; of others
        what is there under the key.
    better : which way is better; as it is for the measure; empty where neither is, and then no value is the best.
    formula, source : of the legend and the documentation; without formula and direction it is in results only, without a column.
        `{min}`, `{lowest}` and `{highest}` are of a measure of which higher is better, and the other way round for others.
    power : of the unit of the measure in its own; 0 where it has none.
    tested : whether differences to the first method are tested and shown.
    title : of its column; by default its key in words.
    rewards : of `COLLABORATION`: whether it compares rewards with contributions, which for clients that receive nothing are the same.
    digits : behind the point; of numbers with a unit those of their measure.
    narrow : the title in a narrow terminal, if another.
    explanation : a sentence below the table.
    shown : whether a table shows it; its arguments are stated at each list.
    optional : whether it is left out where no run has the number.
    place : by which columns are in order; of `INDICES` the first number is a block: level, distance or evenness.
    draws : the number [...] of accuracies [..., K], by which it has an interval over test samples; None of statistics without one.
    rates : of gaps: the rates of the groups, or their errors, between which it is; empty if these are no rates.
    difference : of gaps that are differences: what differs, `of the accuracy`; ``{seeds}`` names each seed, if there are several.
    stated : of gaps: the two of those in a table with the largest numbers are in sentences, and inside sites.
    """

    key: str
    compute: Any = None
    better: Better = ""
    formula: str = ""
    source: str = "–"
    power: int = 1
    tested: bool = True
    rewards: bool = False
    title: str = ""
    digits: int = 2
    narrow: str = ""
    explanation: str = ""
    shown: Callable[..., bool] = lambda *_: True
    optional: bool = False
    place: tuple[int, int] = (2, 0)
    draws: Any = None
    rates: Sequence[str] = ()
    difference: str = ""
    stated: int = 0

    def __post_init__(self) -> None:
        usual = (lambda between: between.largest(*self.rates)) if self.rates else itemgetter(self.key)
        object.__setattr__(self, "compute", self.compute or usual)
        object.__setattr__(self, "title", self.title or self.key.replace("_", " "))

    @property
    def column(self) -> bool:
        """Whether it has a column."""
        return bool(self.better or self.formula)

    def of(self, measure: Measure) -> "Statistic":
        """The same of numbers of a measure."""
        better = measure.better if self.better == "as measured" else self.better
        digits = (self.digits, measure.digits, max(1, 2 * measure.digits - 3))[self.power]
        formula, explanation = map(measure.fill, (self.formula, self.explanation))
        return replace(self, better=better, formula=formula, explanation=explanation, digits=digits)


_MEAN, _MIN = methodcaller("mean", -1), methodcaller("min", -1)  # of accuracies [..., K]
# Of the values of the groups [D], how many clients each group has [D] or None, and the measure: a `Value` in the unit of the values. Shown
# by the measure and the number of groups.
GROUPS: Final = (
    Statistic(
        "avg",
        lambda a, counts, measure: performance.mean(a),
        "as measured",
        "ā = Σₖ aₖ / K over the groups, each counting the same",
        _HEAL,
        title="AVG",
        draws=_MEAN,
    ),
    Statistic(
        "std",
        lambda a, counts, measure: performance.std(a),
        "lower",
        "√( Σₖ (aₖ − ā)² / (K − 1) ) over the groups",
        _HEAL,
        title="STD",
        explanation="STD: standard deviation over the groups (ddof 1), lower is fairer.",
        shown=lambda measure, groups: groups > 1 and (measure.main or groups > 2),
        draws=lambda a: a.std(-1, ddof=1) if a.shape[-1] > 1 else math.nan * a[..., 0],
    ),
    Statistic(
        "worst",
        lambda a, counts, measure: measure.worst(a),
        "as measured",
        "{min}ₖ aₖ over the groups",
        "AFL: Mohri, Sivek and Suresh, ICML 2019",
        shown=lambda measure, groups: groups > 1,
        place=(2, 1),
        draws=_MIN,
    ),
    Statistic(
        "gap",
        lambda a, counts, measure: performance.gap(a),
        "lower",
        "maxₖ aₖ − minₖ aₖ",
        f"{ISM}, for two groups",
        explanation="gap: the {better} group less the {worse}, lower is fairer.",
        shown=lambda measure, groups: not measure.main and groups == 2,
        draws=lambda a: np.ptp(a, -1) if a.shape[-1] > 1 else math.nan * a[..., 0],
    ),
    Statistic(
        "client_std",
        lambda a, counts, measure: performance.client_std(a, counts),
        "lower",
        "√( Σ_g s_g (a_g − Σ_h s_h a_h)² ), with the share s_g of the clients that are in group g",
        f"{ISM}, Table IV",
        title="client STD",
        explanation="client STD: standard deviation over clients that each have the value of their group (ddof 0).",
        shown=lambda measure, groups: measure.name in AREAS and groups > 1,
        optional=True,
        place=(2, 1),
    ),
)


def _index(key: str, place: tuple[int, int], index: Any, better: Any, *text: Any, **more: Any) -> Statistic:
    return Statistic(key, lambda a, measure: index(a), better, *text, **{"place": place, **more})


def _even(title: str, index: Callable[[ArrayLike], Any], better: Any, *text: Any, digits: int = 4) -> Statistic:
    """An index without a unit."""
    more: Any = {"title": title, "power": 0, "digits": digits, "shown": lambda measure: False}
    return _index(title.lower(), (2, 0), index, better, *text, **more)


_TENTH: Final = "mean of the max(1, ⌊0.1 K⌋) {%s} aₖ"
# Of the values of a measure, one per client or group [K], and the measure: a `Value`, which is scaled as those are shown where `power` is 1.
# Shown in the table of many clients by the measure, as q-FFL and Ditto do.
INDICES: Final = (
    _index("mean", (0, 0), performance.mean, "as measured", "ā = Σₖ aₖ / K over the clients", _QFFL, draws=_MEAN),
    _index(
        "std",
        (1, 1),
        partial(performance.std, ddof=0),
        "lower",
        "√( Σₖ (aₖ − ā)² / K ): the standard deviation with ddof 0",
        _QFFL,
        title="STD₀",
        draws=lambda a: a.std(-1),
    ),
    Statistic(
        "variance",
        lambda a, measure: performance.variance(a, measure.scale),
        "lower",
        "Σₖ ({scale}aₖ − {scale}ā)² / K{squared}",
        f"{_QFFL}; Ditto: Li et al., ICML 2021",
        power=2,
        place=(1, 2),
        shown=lambda measure: False,
    ),
    *(
        Statistic(key, compute, "as measured", _TENTH % which, _TABLE_1, title=title, place=place, draws=draws)
        for key, title, place, compute, which, draws in (
            ("worst10", "worst 10\u00a0%", (0, 1), lambda a, m: m.worst_share(a), "lowest", performance.lowest_tenth),
            ("best10", "best 10\u00a0%", (0, 4), lambda a, m: m.best_share(a), "highest", performance.highest_tenth),
        )
    ),
    _index(
        "min", (0, 2), performance.worst, "as measured", "minₖ aₖ", draws=_MIN, shown=lambda m: m.better == "higher"
    ),
    _index("max", (0, 3), performance.best, "as measured", "maxₖ aₖ", shown=lambda m: m.better == "lower"),
    _index("gap", (1, 0), performance.gap, "lower", shown=lambda measure: False),
    _even("CoV", performance.coefficient_of_variation, "lower", "STD₀ / ā, the coefficient of variation", _JAIN),
    _even("Jain", performance.jain, "higher", "(Σₖ aₖ)² / (K Σₖ aₖ²), from 1/K to 1, which is equality", _JAIN),
    _even("cosine", performance.cosine, "higher", "Σₖ aₖ / (√K ‖a‖), to the vector of ones", _APPENDIX),
    _even("angle", performance.angle, "lower", "arccos(cosine), in degrees", _APPENDIX, digits=2),
    _even(
        "entropy", performance.entropy, "higher", "−Σₖ uₖ ln uₖ with uₖ = aₖ / Σⱼ aⱼ, in nats, at most ln K", _APPENDIX
    ),
    _even("KL", performance.kl_uniform, "lower", "ln K − entropy: the divergence from equality, in nats", _APPENDIX),
    _even("Gini", performance.gini, "lower", "Σᵢⱼ |aᵢ − aⱼ| / (2 K² ā), 0 for equality", "Gini 1912"),
)
# Of the values of a user's measure on the groups [D], and which way of it is better, if that is known: a `Value`. Shown by the latter.
OWN: Final = (
    Statistic("avg", lambda a, _: performance.mean(a), title="AVG", digits=4),
    Statistic("std", lambda a, _: performance.std(a), title="STD", digits=4),
    Statistic("worst", lambda a, way: (performance.best, performance.worst)[way == "higher"](a), digits=4, shown=bool),
)


def _entry(key: str, better: Any = "", *text: Any, **more: Any) -> Statistic:
    """A number that is there under its key, or follows, and by default is not tested."""
    return Statistic(key, more.pop("compute", None), better, *text, **{"tested": False, **more})


def _share(way: str, summary: Mapping[str, Any]) -> float | None:
    """Bytes in one direction, in percent of the whole model."""
    sent = summary["bytes"] or {}
    return 100 * sent[way] / sent["full"] if sent.get("full") else None


_SENT: Final = "bytes a client %s in a round, in percent of the whole model"
# Of `History.summary()["collaboration"]`: a number, or None where it is not defined.
COLLABORATION: Final = (
    _entry(
        "fairness",
        "higher",
        "100 · Pearson correlation over the clients of cₖ and θₖ, from −100 to 100",
        _SAC,
        tested=True,
        rewards=True,
        narrow="fair-\nness",
    ),
    _entry(
        "spearman",
        "higher",
        "100 · Pearson correlation of the ranks of cₖ and θₖ",
        "Spearman 1904",
        rewards=True,
        title="Spearman",
        narrow="Spear-\nman",
    ),
    _entry("max", "higher", tested=True),
    _entry("mean", "higher", tested=True),
    _entry("min", "higher"),
    _entry("gain", "higher", "Σₖ (θₖ − cₖ) / K", "CYCle: mean collaboration gain", compute=lambda x: x["gain"]["mean"]),
    _entry(
        "worse_off",
        "lower",
        "number of clients with θₖ < cₖ",
        compute=lambda x: x["gain"]["worse_off"],
        digits=1,
        narrow="worse\noff",
    ),
    # Where fairness is not defined, neither are bounds on it.
    _entry(
        "bcf",
        "higher",
        "share of the clients with cₖ < θₖ < (cₖ + maxⱼ θⱼ) / 2; the upper bound does not apply to the best",
        f"{_SAC}, Definition 1",
        compute=lambda x: None if x["fairness"] is None else x["bcf"]["rate"],
        title="BCF",
        digits=1,
    ),
    *(
        _entry(way, "", _SENT % does, compute=partial(_share, way), digits=1)
        for way, does in (("down", "receives"), ("up", "sends"))
    ),
    _entry("fairness_mean"),
    _entry("fairness_oracle"),
)


def _gap(key: str, formula: str = "", difference: str = "", source: str = "–", **more: Any) -> Statistic:
    """A gap between groups, by default the largest of those of some rates, which are published under its key or named after it."""
    more = {"rates": MEASURED.get(key, (key.removesuffix("_gap"),)), "better": "lower", **more}
    return Statistic(key, formula=formula, difference=difference, source=source, **more)


def _of_decisions(key: str, *text: str, **more: Any) -> Statistic:
    """The same of rates of decisions, by default of one class, with a word a line in a narrow terminal."""
    narrow = more.get("title", key).replace("_", " ").replace(" ", "\n")
    return _gap(key, *text, narrow=narrow, **{"shown": lambda several, _: not several, **more})


# Of how a classifier decides about groups of people, `Decisions`: an `Estimate` in points. Shown by whether every one of more than two classes
# is compared with all others, and whether gaps of probabilities are wanted. Of several classes the largest difference of any is near 100 where
# classes are rare, and states little: the class that is recognised worst in each group replaces it.
PARITY: Final = (
    _of_decisions(
        "accuracy_gap",
        "max_g accuracy(g) − min_g accuracy(g) over the groups g",
        "of the accuracy",
        shown=lambda *_: True,
        stated=2,
    ),
    _of_decisions(
        "equal_opportunity",
        "max_g TPR(g) − min_g TPR(g) with TPR(g) = P(ŷ = 1 | y = 1, g); of several classes, the largest of any class against all others",
        "of the true positive rate",
        _HARDT,
        stated=4,
    ),
    _of_decisions(
        "equalised_odds",
        "the larger of max_g TPR(g) − min_g TPR(g) and max_g FPR(g) − min_g FPR(g) with FPR(g) = P(ŷ = 1 | y = 0, g)",
        "the larger of those of the true and the false positive rate",
        _HARDT,
    ),
    _of_decisions(
        "demographic_parity",
        "max_g P(ŷ = 1 | g) − min_g P(ŷ = 1 | g): people of every group are chosen as often, whatever is true of them",
        "of the share of samples predicted as the class, the selection rate",
        "Dwork et al., ITCS 2012",
        stated=3,
    ),
    _of_decisions(
        "demographic_parity_ratio",
        "min_g P(ŷ = 1 | g) / max_g P(ŷ = 1 | g), in percent",
        source="Feldman et al., KDD 2015",
        rates=("selection_rate",),
        compute=lambda between: between.ratio("selection_rate"),
        better="higher",
        title="selection ratio",
        explanation="Selection ratio: the lowest selection rate in percent of the highest, higher is fairer.",
    ),
    _of_decisions(
        "predictive_parity",
        "max_g PPV(g) − min_g PPV(g) with PPV(g) = P(y = 1 | ŷ = 1, g): being chosen means the same in every group",
        "of the share of these that are of the class",
        "Chouldechova, Big Data 5, 2017",
    ),
    _of_decisions(
        "negative_predictive_parity", compute=lambda between: between.largest("npv")._replace(ends=None), better=""
    ),
    _of_decisions(
        "calibration_gap",
        "max_g b(g) − min_g b(g) with the bias b(g) = mean p − mean y of the probability p of the positive class in group g",
        source="Kleinberg et al., ITCS 2017",
        rates=("bias",),
        compute=attrgetter("bias"),
        shown=lambda several, calibration: calibration and not several,
    ),
    _of_decisions(
        "calibration_error_gap",
        "max_g e(g) − min_g e(g) with the mean distance e(g) of p and y in ten bins of p",
        compute=attrgetter("calibration_error"),
        shown=lambda several, calibration: calibration and not several,
    ),
    _of_decisions(
        "worst_recall",
        "max_g R(g) − min_g R(g) with the recall R(g) of the class that is recognised worst in group g, min_c P(ŷ = c | y = c, g)",
        "of the recall of the class that is recognised worst in its group{seeds}",
        shown=lambda several, _: several,
        stated=1,
    ),
)

# Of the errors of a regression by group, `Errors`: an `Estimate` in the unit of the target. All are shown.
ERRORS: Final = (
    _gap("rmse_gap", "max_g RMSE(g) − min_g RMSE(g) over the groups g", "of the RMSE", title="RMSE gap"),
    _gap("mae_gap", "max_g MAE(g) − min_g MAE(g)", "of the MAE", title="MAE gap", stated=1),
    _gap(
        "error_gap",
        "max_g ē(g) − min_g ē(g) with the mean ē(g) of the errors ŷᵢ − yᵢ in group g",
        "of the mean error",
        title="mean error gap",
        stated=2,
    ),
    _gap(
        "prediction_gap",
        "max_g p̄(g) − min_g p̄(g) with the mean p̄(g) of the predictions ŷᵢ in group g",
        "of the mean prediction",
        better="",
    ),
)


def two_stated(gaps: Iterable[Statistic]) -> list[Statistic]:
    """Those two of some gaps that are in sentences, the first one last, as inside sites."""
    return sorted(gaps, key=attrgetter("stated"))[-2:]


def spread(values: ArrayLike, measure: Measure = ACCURACY) -> dict[str, performance.Value]:
    """Every index of the spread over clients, in the unit it is usually reported in.

    In the unit of the measure, percent of accuracies: `mean`, `std` (ddof 0), `worst10`, `best10`, `min`, `max`, `gap`.  Its square:
    `variance`.  Degrees: `angle`.  Nats: `entropy`, `kl`.  No unit: `cov`, `jain`, `cosine`, `gini`.

    Parameters
    ----------
    values : one per client, accuracies in [0, 1]; shape [K].
    measure : what they are.
    """
    return {
        index.key: performance.Value(measure.scale * value if index.power == 1 else value, defined)
        for index in INDICES
        for value, defined in (index.compute(values, measure),)
    }
