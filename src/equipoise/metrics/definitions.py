"""Every number of a run that is computed of others, an entry each: how it is made, what it means, which way is better.

Summaries, tests, the JSON document and the legend follow from the lists `GROUPS`, `INDICES`, `COLLABORATION` and `PARITY`. What tables
show of them, and how, is in `equipoise.report.columns`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, Literal

from numpy.typing import ArrayLike

from equipoise.metrics import performance
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
    """One number of a run.

    Parameters
    ----------
    key : its name in `History.summary()` and in the JSON document.
    compute : makes the number; what it takes is said at each list.
    better : which way is better; as it is for the measure; empty where neither is, and then no value is the best.
    formula, source : what the legend says; empty where another of the same title says it. `{min}`, `{lowest}` and `{highest}` are of a
        measure of which higher is better, and the other way round for others.
    power : of the unit of the measure in its own; 0 where it has none.
    tested : whether differences to the first method are tested and shown.
    title : of its column; empty where that is its key in words.
    rewards : of `COLLABORATION`: whether it compares rewards with contributions, which for clients that receive nothing are the same.
    """

    key: str
    compute: Callable[..., Any]
    better: Better = ""
    formula: str = ""
    source: str = "–"
    power: int = 1
    tested: bool = True
    rewards: bool = False
    title: str = ""

    @property
    def heading(self) -> str:
        """The title of its column."""
        return self.title or self.key.replace("_", " ")

    def of(self, measure: Measure) -> "Statistic":
        """The same of numbers of a measure."""
        better = measure.better if self.better == "as measured" else self.better
        return replace(self, better=better, formula=measure.fill(self.formula))


# Of the values of the groups [D], how many clients each group has [D] or None, and the measure: a `Value` in the unit of the values.
GROUPS: Final = (
    Statistic(
        "avg",
        lambda a, counts, measure: performance.mean(a),
        "as measured",
        "ā = Σₖ aₖ / K over the groups, each counting the same",
        _HEAL,
        title="AVG",
    ),
    Statistic(
        "std",
        lambda a, counts, measure: performance.std(a),
        "lower",
        "√( Σₖ (aₖ − ā)² / (K − 1) ) over the groups",
        _HEAL,
        title="STD",
    ),
    Statistic(
        "worst",
        lambda a, counts, measure: measure.worst(a),
        "as measured",
        "{min}ₖ aₖ over the groups",
        "AFL: Mohri, Sivek and Suresh, ICML 2019",
    ),
    Statistic(
        "gap", lambda a, counts, measure: performance.gap(a), "lower", "maxₖ aₖ − minₖ aₖ", f"{ISM}, for two groups"
    ),
    Statistic(
        "client_std",
        lambda a, counts, measure: performance.client_std(a, counts),
        "lower",
        "√( Σ_g s_g (a_g − Σ_h s_h a_h)² ), with the share s_g of the clients that are in group g",
        f"{ISM}, Table IV",
        title="client STD",
    ),
)

_TENTH: Final = "mean of the max(1, ⌊0.1 K⌋) {%s} aₖ"
_EVENNESS: Final[Sequence[tuple[str, Callable[[ArrayLike], performance.Value], Better, str, str]]] = (
    ("CoV", performance.coefficient_of_variation, "lower", "STD₀ / ā, the coefficient of variation", _JAIN),
    ("Jain", performance.jain, "higher", "(Σₖ aₖ)² / (K Σₖ aₖ²), from 1/K to 1, which is equality", _JAIN),
    ("cosine", performance.cosine, "higher", "Σₖ aₖ / (√K ‖a‖), to the vector of ones", _APPENDIX),
    ("angle", performance.angle, "lower", "arccos(cosine), in degrees", _APPENDIX),
    ("entropy", performance.entropy, "higher", "−Σₖ uₖ ln uₖ with uₖ = aₖ / Σⱼ aⱼ, in nats, at most ln K", _APPENDIX),
    ("KL", performance.kl_uniform, "lower", "ln K − entropy: the divergence from equality, in nats", _APPENDIX),
    ("Gini", performance.gini, "lower", "Σᵢⱼ |aᵢ − aⱼ| / (2 K² ā), 0 for equality", "Gini 1912"),
)
# Of the values of a measure, one per client or group [K], and the measure: a `Value`, which is scaled as those are shown where `power` is 1.
INDICES: Final = (
    Statistic("mean", lambda a, measure: performance.mean(a), "as measured", "ā = Σₖ aₖ / K over the clients", _QFFL),
    Statistic(
        "std",
        lambda a, measure: performance.std(a, ddof=0),
        "lower",
        "√( Σₖ (aₖ − ā)² / K ): the standard deviation with ddof 0",
        _QFFL,
        title="STD₀",
    ),
    Statistic(
        "variance",
        lambda a, measure: performance.variance(a, measure.scale),
        "lower",
        "Σₖ ({scale}aₖ − {scale}ā)² / K{squared}",
        f"{_QFFL}; Ditto: Li et al., ICML 2021",
        power=2,
    ),
    *(
        Statistic(key, compute, "as measured", _TENTH % which, _TABLE_1, title=f"{key.removesuffix('10')} 10\u00a0%")
        for key, compute, which in (
            ("worst10", lambda a, measure: measure.worst_share(a), "lowest"),
            ("best10", lambda a, measure: measure.best_share(a), "highest"),
        )
    ),
    Statistic("min", lambda a, measure: performance.worst(a), "as measured", "minₖ aₖ"),
    Statistic("max", lambda a, measure: performance.best(a), "as measured", "maxₖ aₖ"),
    Statistic("gap", lambda a, measure: performance.gap(a), "lower"),
    *(
        Statistic(title.lower(), lambda a, measure, index=index: index(a), better, formula, source, 0, title=title)
        for title, index, better, formula, source in _EVENNESS
    ),
)


def _entry(key: str, better: Better = "", formula: str = "", source: str = "–", **more: Any) -> Statistic:
    """A number that is there under its key."""
    return Statistic(key, itemgetter(key), better, formula, source, **more)


def _share(way: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Bytes in one direction, in percent of the whole model."""

    def compute(summary: Mapping[str, Any]) -> float | None:
        sent = summary["bytes"] or {}
        return 100 * sent[way] / sent["full"] if sent.get("full") else None

    return compute


# Of `History.summary()["collaboration"]` with `contribution` and `reward`, the accuracy in [0, 1] that each client reaches alone and
# that of the model it owns in the end [N]: a number, or None where it is not defined.
COLLABORATION: Final = (
    _entry(
        "fairness",
        "higher",
        "100 · Pearson correlation over the clients of cₖ and θₖ, from −100 to 100",
        _SAC,
        rewards=True,
    ),
    _entry(
        "spearman",
        "higher",
        "100 · Pearson correlation of the ranks of cₖ and θₖ",
        "Spearman 1904",
        tested=False,
        rewards=True,
        title="Spearman",
    ),
    _entry("max", "higher"),
    _entry("mean", "higher"),
    _entry("min", "higher", tested=False),
    Statistic(
        "gain",
        lambda summary: summary["gain"]["mean"],
        "higher",
        "Σₖ (θₖ − cₖ) / K",
        "CYCle: mean collaboration gain",
        tested=False,
    ),
    Statistic(
        "worse_off",
        lambda summary: summary["gain"]["worse_off"],
        "lower",
        "number of clients with θₖ < cₖ",
        tested=False,
    ),
    # Where fairness is not defined, neither are bounds on it.
    Statistic(
        "bcf",
        lambda summary: None if summary["fairness"] is None else summary["bcf"]["rate"],
        "higher",
        "share of the clients with cₖ < θₖ < (cₖ + maxⱼ θⱼ) / 2; the upper bound does not apply to the best",
        f"{_SAC}, Definition 1",
        tested=False,
        title="BCF",
    ),
    Statistic(
        "down",
        _share("down"),
        formula="bytes a client receives in a round, in percent of the whole model",
        tested=False,
    ),
    Statistic(
        "up", _share("up"), formula="bytes a client sends in a round, in percent of the whole model", tested=False
    ),
    _entry("fairness_mean", tested=False),
    _entry("fairness_oracle", tested=False),
)

# Of `History.group_fairness()`: a number in points, or None where it is not defined.
PARITY: Final = (
    _entry("accuracy_gap", "lower", "max_g accuracy(g) − min_g accuracy(g) over the groups g"),
    _entry(
        "equal_opportunity",
        "lower",
        "max_g TPR(g) − min_g TPR(g) with TPR(g) = P(ŷ = 1 | y = 1, g); of several classes, the largest of any class "
        "against all others",
        _HARDT,
    ),
    _entry(
        "equalised_odds",
        "lower",
        "the larger of max_g TPR(g) − min_g TPR(g) and max_g FPR(g) − min_g FPR(g) with FPR(g) = P(ŷ = 1 | y = 0, g)",
        _HARDT,
    ),
    _entry(
        "demographic_parity",
        "lower",
        "max_g P(ŷ = 1 | g) − min_g P(ŷ = 1 | g): people of every group are chosen as often, whatever is true of them",
        "Dwork et al., ITCS 2012",
    ),
    _entry(
        "demographic_parity_ratio",
        "higher",
        "min_g P(ŷ = 1 | g) / max_g P(ŷ = 1 | g), in percent",
        "Feldman et al., KDD 2015",
        title="selection ratio",
    ),
    _entry(
        "predictive_parity",
        "lower",
        "max_g PPV(g) − min_g PPV(g) with PPV(g) = P(y = 1 | ŷ = 1, g): being chosen means the same in every group",
        "Chouldechova, Big Data 5, 2017",
    ),
    _entry(
        "calibration_gap",
        "lower",
        "max_g b(g) − min_g b(g) with the bias b(g) = mean p − mean y of the probability p of the positive class in group g",
        "Kleinberg et al., ITCS 2017",
    ),
    _entry(
        "calibration_error_gap",
        "lower",
        "max_g e(g) − min_g e(g) with the mean distance e(g) of p and y in ten bins of p",
    ),
    _entry(
        "worst_recall",
        "lower",
        "max_g R(g) − min_g R(g) with the recall R(g) of the class that is recognised worst in group g, min_c P(ŷ = c | y = c, g)",
    ),
)

# Of `History.people()` of a regression: differences between groups, in the unit of the target.
ERRORS: Final = (
    _entry("rmse_gap", "lower", "max_g RMSE(g) − min_g RMSE(g) over the groups g", title="RMSE gap"),
    _entry("mae_gap", "lower", "max_g MAE(g) − min_g MAE(g)", title="MAE gap"),
    _entry(
        "error_gap",
        "lower",
        "max_g ē(g) − min_g ē(g) with the mean ē(g) of the errors ŷᵢ − yᵢ in group g",
        title="mean error gap",
    ),
    _entry("prediction_gap", "", "max_g p̄(g) − min_g p̄(g) with the mean p̄(g) of the predictions ŷᵢ in group g"),
)


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
