"""Every number that a table can show, an entry each: how it is made, what it is called, what it means.

A new column of a table is a new entry of one of the lists `GROUPS`, `INDICES`, `COLLABORATION` and `PARITY`: summaries, tables,
tests, LaTeX, the JSON document and the legend follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from numpy.typing import ArrayLike

from equipoise.metrics.classification import AREAS
from equipoise.metrics.measures import ACCURACY, ISM, Measure
from equipoise.metrics.performance import (
    Value,
    angle,
    best,
    client_std,
    coefficient_of_variation,
    cosine,
    entropy,
    gap,
    gini,
    jain,
    kl_uniform,
    mean,
    std,
    variance,
    worst,
)

_HEAL: Final = "FedHEAL: Chen, Huang and Ye, CVPR 2024, Table 2"
_QFFL: Final = "q-FFL: Li, Sanjabi, Beirami and Smith, ICLR 2020"
_SAC: Final = "FedSAC: Wang et al., KDD 2024"
_JAIN: Final = "Jain, Chiu and Hawe, DEC TR-301, 1984"
_HARDT: Final = "Hardt, Price and Srebro, NIPS 2016"


@dataclass(frozen=True)
class Column:
    """One number of a run, and a column of a table.

    Parameters
    ----------
    key : its name in `History.summary()` and in the JSON document.
    title : of the column.
    compute : makes the number; what it takes is said at each list.
    better : which way is better; as it is for the measure; empty where neither is, and then no value is the best of its column.
    formula, source : what the legend says; empty where another column of the same title says it. `{min}`, `{lowest}` and `{highest}`
        are of a measure of which higher is better, and the other way round for others.
    digits : behind the point, where `power` is 0.
    place : where it stands, counted from the left; those of one place are in the order of the list. None: in the JSON
        document only.
    narrow : the title in a narrow terminal, if another.
    explanation : a sentence below the table.
    tested : whether differences to the first method are tested and shown.
    shown : of `GROUPS`: whether the table of a measure with so many groups shows it.
    optional : of `GROUPS`: whether it is left out where no run has the number.
    power : of the unit of the measure in its own; 0 where it has none.
    block : of `INDICES`: the table it is in.
    rewards : of `COLLABORATION`: whether it compares rewards with contributions, which for clients that receive nothing
        are the same.
    """

    key: str
    title: str
    compute: Callable[..., Any]
    better: Literal["higher", "lower", "as measured", ""] = ""
    formula: str = ""
    source: str = "–"
    digits: int = 2
    place: int | None = 99
    narrow: str = ""
    explanation: str = ""
    tested: bool = True
    shown: Callable[[Measure, int], bool] = lambda measure, groups: measure.main or groups > 1
    optional: bool = False
    power: int = 1
    block: Literal["level", "distance", "evenness"] = "evenness"
    rewards: bool = False

    def of(self, measure: Measure) -> "Column":
        """The same column, of numbers of a measure."""
        up = measure.better == "higher"
        words = {
            "min": "min" if up else "max",
            "lowest": measure.lowest,
            "highest": measure.highest,
            "better": "better" if up else "worse",
            "worse": "worse" if up else "better",
            "scale": f"{measure.scale:g} " if measure.scale != 1 else "",
            "squared": measure.squared and f",{measure.squared}",
        }
        return replace(
            self,
            better=measure.better if self.better == "as measured" else self.better,
            digits={0: self.digits, 1: measure.digits, 2: max(1, 2 * measure.digits - 3)}[self.power],
            formula=self.formula.format(**words),
            explanation=self.explanation.format(**words),
        )


class Legend(NamedTuple):
    """What is said of a column: `formula` and `source` in the legend, `explanation` below the table."""

    formula: str
    source: str = "–"
    explanation: str = ""


def _columns(legend: Mapping[str, Legend], *columns: Column) -> tuple[Column, ...]:
    """Columns with what is said of them, by key."""
    said = [(column, legend.get(column.key, Legend(""))) for column in columns]
    return tuple(replace(c, formula=of.formula, source=of.source, explanation=of.explanation) for c, of in said)


# Of the values of the groups [D], how many clients each group has [D] or None, and the measure: a `Value` in the unit of the values.
GROUPS: Final = _columns(
    {
        "avg": Legend("ā = Σₖ aₖ / K over the groups, each counting the same", _HEAL),
        "std": Legend(
            "√( Σₖ (aₖ − ā)² / (K − 1) ) over the groups",
            _HEAL,
            "STD: standard deviation over the groups (ddof 1), lower is fairer.",
        ),
        "worst": Legend("{min}ₖ aₖ over the groups", "AFL: Mohri, Sivek and Suresh, ICML 2019"),
        "gap": Legend(
            "maxₖ aₖ − minₖ aₖ",
            f"{ISM}, for two groups",
            "gap: the {better} group less the {worse}, lower is fairer.",
        ),
        "client_std": Legend(
            "√( Σ_g s_g (a_g − Σ_h s_h a_h)² ), with the share s_g of the clients that are in group g",
            f"{ISM}, Table IV",
            "client STD: standard deviation over clients that each have the value of their group (ddof 0).",
        ),
    },
    Column(
        "avg", "AVG", lambda a, counts, measure: mean(a), "as measured", place=0, shown=lambda measure, groups: True
    ),
    Column(
        "std",
        "STD",
        lambda a, counts, measure: std(a),
        "lower",
        place=1,
        shown=lambda measure, groups: groups > 1 and (measure.main or groups > 2),
    ),
    Column(
        "worst",
        "worst",
        lambda a, counts, measure: measure.worst(a),
        "as measured",
        place=2,
        shown=lambda measure, groups: groups > 1,
    ),
    Column(
        "gap",
        "gap",
        lambda a, counts, measure: gap(a),
        "lower",
        place=1,
        shown=lambda measure, groups: not measure.main and groups == 2,
    ),
    Column(
        "client_std",
        "client STD",
        lambda a, counts, measure: client_std(a, counts),
        "lower",
        place=3,
        optional=True,
        shown=lambda measure, groups: measure.name in AREAS and groups > 1,
    ),
)

# Of the values of a measure, one per client or group [K], and the measure: a `Value`, which is scaled as those are shown where `power` is 1.
INDICES: Final = _columns(
    {
        "mean": Legend("ā = Σₖ aₖ / K over the clients", _QFFL),
        "std": Legend("√( Σₖ (aₖ − ā)² / K ): the standard deviation with ddof 0", _QFFL),
        "variance": Legend("Σₖ ({scale}aₖ − {scale}ā)² / K{squared}", f"{_QFFL}; Ditto: Li et al., ICML 2021"),
        "worst10": Legend("mean of the max(1, ⌊0.1 K⌋) {lowest} aₖ", f"{_QFFL}, Table 1"),
        "best10": Legend("mean of the max(1, ⌊0.1 K⌋) {highest} aₖ", f"{_QFFL}, Table 1"),
        "min": Legend(
            "minₖ aₖ",
        ),
        "max": Legend(
            "maxₖ aₖ",
        ),
        "cov": Legend("STD₀ / ā, the coefficient of variation", _JAIN),
        "jain": Legend("(Σₖ aₖ)² / (K Σₖ aₖ²), from 1/K to 1, which is equality", _JAIN),
        "cosine": Legend("Σₖ aₖ / (√K ‖a‖), to the vector of ones", f"{_QFFL}, appendix"),
        "angle": Legend("arccos(cosine), in degrees", f"{_QFFL}, appendix"),
        "entropy": Legend("−Σₖ uₖ ln uₖ with uₖ = aₖ / Σⱼ aⱼ, in nats, at most ln K", f"{_QFFL}, appendix"),
        "kl": Legend("ln K − entropy: the divergence from equality, in nats", f"{_QFFL}, appendix"),
        "gini": Legend("Σᵢⱼ |aᵢ − aⱼ| / (2 K² ā), 0 for equality", "Gini 1912"),
    },
    Column("mean", "mean", lambda a, measure: mean(a), "as measured", place=0, block="level"),
    Column("std", "STD₀", lambda a, measure: std(a, ddof=0), "lower", place=1, block="distance"),
    Column(
        "variance",
        "variance",
        lambda a, measure: variance(a, measure.scale),
        "lower",
        digits=1,
        place=2,
        power=2,
        block="distance",
    ),
    Column(
        "worst10", "worst 10\u00a0%", lambda a, measure: measure.worst_share(a), "as measured", place=1, block="level"
    ),
    Column("best10", "best 10\u00a0%", lambda a, measure: measure.best_share(a), "as measured", place=4, block="level"),
    Column("min", "min", lambda a, measure: worst(a), "as measured", place=2, block="level"),
    Column("max", "max", lambda a, measure: best(a), "as measured", place=3, block="level"),
    Column("gap", "gap", lambda a, measure: gap(a), "lower", place=0, block="distance"),
    Column("cov", "CoV", lambda a, measure: coefficient_of_variation(a), "lower", digits=4, power=0),
    Column("jain", "Jain", lambda a, measure: jain(a), "higher", digits=4, power=0),
    Column("cosine", "cosine", lambda a, measure: cosine(a), "higher", digits=4, power=0),
    Column("angle", "angle", lambda a, measure: angle(a), "lower", power=0),
    Column("entropy", "entropy", lambda a, measure: entropy(a), "higher", digits=4, power=0),
    Column("kl", "KL", lambda a, measure: kl_uniform(a), "lower", digits=4, power=0),
    Column("gini", "Gini", lambda a, measure: gini(a), "lower", digits=4, power=0),
)


def _entry(*keys: str) -> Callable[[Mapping[str, Any]], Any]:
    """The value under nested keys."""

    def compute(found: Mapping[str, Any]) -> Any:
        value: Any = found
        for key in keys:
            value = value[key]
        return value

    return compute


def _share(way: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Bytes in one direction, in percent of the whole model."""

    def compute(found: Mapping[str, Any]) -> float | None:
        sent = found["bytes"] or {}
        return 100 * sent[way] / sent["full"] if sent.get("full") else None

    return compute


def groups_of(measure: Measure) -> tuple[Column, ...]:
    """The columns of `GROUPS`, of numbers of a measure."""
    return tuple(column.of(measure) for column in GROUPS)


def indices_of(measure: Measure) -> tuple[Column, ...]:
    """The columns of `INDICES`, of numbers of a measure."""
    return tuple(column.of(measure) for column in INDICES)


def spread_of(measure: Measure) -> tuple[Column, ...]:
    """What a table of many clients shows of a measure, as q-FFL and Ditto do."""
    by_key = {column.key: column for column in indices_of(measure)}
    return tuple(
        by_key[key] for key in ("mean", "std", "worst10", "best10", "min" if measure.better == "higher" else "max")
    )


# Of `History.summary()["collaboration"]` with `contribution` and `reward`, the accuracy in [0, 1] that each client reaches alone and
# that of the model it owns in the end [N]: a number, or None where it is not defined.
COLLABORATION: Final = _columns(
    {
        "fairness": Legend("100 · Pearson correlation over the clients of cₖ and θₖ, from −100 to 100", _SAC),
        "spearman": Legend("100 · Pearson correlation of the ranks of cₖ and θₖ", "Spearman 1904"),
        "gain": Legend("Σₖ (θₖ − cₖ) / K", "CYCle: mean collaboration gain"),
        "worse_off": Legend(
            "number of clients with θₖ < cₖ",
        ),
        "bcf": Legend(
            "share of the clients with cₖ < θₖ < (cₖ + maxⱼ θⱼ) / 2; the upper bound does not apply to the best",
            f"{_SAC}, Definition 1",
        ),
        "down": Legend(
            "bytes a client receives in a round, in percent of the whole model",
        ),
        "up": Legend(
            "bytes a client sends in a round, in percent of the whole model",
        ),
    },
    Column("fairness", "fairness", _entry("fairness"), "higher", narrow="fair-\nness", rewards=True),
    Column("spearman", "Spearman", _entry("spearman"), "higher", narrow="Spear-\nman", tested=False, rewards=True),
    Column("max", "max", _entry("max"), "higher"),
    Column("mean", "mean", _entry("mean"), "higher"),
    Column("min", "min", _entry("min"), "higher", tested=False),
    Column("gain", "gain", _entry("gain", "mean"), "higher", tested=False),
    Column("worse_off", "worse off", _entry("gain", "worse_off"), "lower", digits=1, narrow="worse\noff", tested=False),
    # Where fairness is not defined, neither are bounds on it.
    Column(
        "bcf",
        "BCF",
        lambda found: None if found["fairness"] is None else found["bcf"]["rate"],
        "higher",
        digits=1,
        tested=False,
    ),
    Column("down", "down", _share("down"), digits=1, tested=False),
    Column("up", "up", _share("up"), digits=1, tested=False),
    Column("fairness_mean", "mean fairness", _entry("fairness_mean"), place=None, tested=False),
    Column("fairness_oracle", "best fairness", _entry("fairness_oracle"), place=None, tested=False),
)

# Of `History.group_fairness()`: a number in points, or None where it is not defined.
PARITY: Final = _columns(
    {
        "accuracy_gap": Legend(
            "max_g accuracy(g) − min_g accuracy(g) over the groups g",
        ),
        "equal_opportunity": Legend(
            "max_g TPR(g) − min_g TPR(g) with TPR(g) = P(ŷ = 1 | y = 1, g); of several classes, the largest of any class "
            "against all others",
            _HARDT,
        ),
        "equalised_odds": Legend(
            "the larger of max_g TPR(g) − min_g TPR(g) and max_g FPR(g) − min_g FPR(g) with FPR(g) = P(ŷ = 1 | y = 0, g)",
            _HARDT,
        ),
        "demographic_parity": Legend(
            "max_g P(ŷ = 1 | g) − min_g P(ŷ = 1 | g): people of every group are chosen as often, whatever is true of them",
            "Dwork et al., ITCS 2012",
        ),
        "worst_recall": Legend(
            "max_g R(g) − min_g R(g) with the recall R(g) of the class that is recognised worst in group g, min_c P(ŷ = c | y = c, g)",
        ),
    },
    *(
        Column(key, key.replace("_", " "), _entry(key), "lower", narrow=key.replace("_", "\n"))
        for key in ("accuracy_gap", "equal_opportunity", "equalised_odds", "demographic_parity", "worst_recall")
    ),
)


# Of `History.people()` of a regression: differences between groups, in the unit of the target.
ERRORS: Final = tuple(
    Column(key, title, _entry(key), "lower", formula, power=1)
    for key, title, formula in (
        ("rmse_gap", "RMSE gap", "max_g RMSE(g) − min_g RMSE(g) over the groups g"),
        ("mae_gap", "MAE gap", "max_g MAE(g) − min_g MAE(g)"),
        ("error_gap", "mean error gap", "max_g ē(g) − min_g ē(g) with the mean ē(g) of the errors ŷᵢ − yᵢ in group g"),
    )
)


def parity_columns(several: bool) -> tuple[Column, ...]:
    """Those of `PARITY` that tables show.

    Parameters
    ----------
    several : every one of more than two classes is compared with all others: the largest difference of any class is near 100 where
        classes are rare, and says little. The class that is recognised worst in each group takes its place.
    """
    shown = (
        ("accuracy_gap", "worst_recall")
        if several
        else [column.key for column in PARITY if column.key != "worst_recall"]
    )
    return tuple(column for column in PARITY if column.key in shown)


def placed(columns: Sequence[Column]) -> list[Column]:
    """The columns that tables show, from left to right.

    Parameters
    ----------
    columns : one of the lists, or some of its entries.
    """
    return sorted((c for c in columns if c.place is not None), key=lambda c: c.place or 0)


def spread(values: ArrayLike, measure: Measure = ACCURACY) -> dict[str, Value]:
    """Every index of the spread over clients, in the unit it is usually reported in.

    In the unit of the measure, percent of accuracies: `mean`, `std` (ddof 0), `worst10`, `best10`, `min`, `max`, `gap`.  Its square:
    `variance`.  Degrees: `angle`.  Nats: `entropy`, `kl`.  No unit: `cov`, `jain`, `cosine`, `gini`.

    Parameters
    ----------
    values : one per client, accuracies in [0, 1]; shape [K].
    measure : what they are.
    """
    return {
        column.key: Value(measure.scale * value if column.power == 1 else value, defined)
        for column in INDICES
        for value, defined in (column.compute(values, measure),)
    }
