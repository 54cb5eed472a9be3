"""How tables show the numbers of runs, a column each, and how pages explain them; what they are is in `equipoise.metrics.definitions`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final, NamedTuple

from equipoise.metrics import definitions
from equipoise.metrics.classification import AREAS
from equipoise.metrics.measures import CLASSIFICATION, Measure

_POWERS: Final = {statistic.key: statistic.power for statistic in (*definitions.GROUPS, *definitions.INDICES)}


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
# of the indices over clients: level, distance and evenness
_BLOCKS: Final = (
    ("mean", "worst10", "min", "max", "best10"),
    ("gap", "std", "variance"),
    ("cov", "jain", "cosine", "angle", "entropy", "kl", "gini"),
)
_INDICES: Final = {
    index.key: Column(index.key, index.heading, 2 if index.power or index.key == "angle" else 4)
    for index in definitions.INDICES
}
_ONE_DIGIT: Final = ("worse_off", "bcf", "down", "up")
_NARROW: Final = {"fairness": "fair-\nness", "spearman": "Spear-\nman", "worse_off": "worse\noff"}
COLLABORATION: Final = tuple(
    Column(number.key, number.heading, 1 if number.key in _ONE_DIGIT else 2, _NARROW.get(number.key, ""))
    for number in definitions.COLLABORATION
    if number.better or number.formula
)
PARITY: Final = tuple(Column(gap.key, gap.heading, narrow=gap.heading.replace(" ", "\n")) for gap in definitions.PARITY)
ERRORS: Final = tuple(Column(gap.key, gap.heading) for gap in definitions.ERRORS)
OWN: Final = (Column("avg", "AVG", 4), Column("std", "STD", 4), Column("worst", "worst", 4))


def over_groups(measure: Measure) -> tuple[Column, ...]:
    """The statistics over groups of a measure."""
    return tuple(column.of(measure) for column in _GROUPS)


def blocks_over_clients(measure: Measure) -> tuple[tuple[Column, ...], ...]:
    """The indices of the spread of a measure over clients: level, distance and evenness."""
    return tuple(tuple(_INDICES[key].of(measure) for key in block) for block in _BLOCKS)


def spread_of(measure: Measure) -> tuple[Column, ...]:
    """What a table of many clients shows of a measure, as q-FFL and Ditto do."""
    keys = ("mean", "std", "worst10", "best10", "min" if measure.better == "higher" else "max")
    return tuple(_INDICES[key].of(measure) for key in keys)


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


# what a page explains: formula, direction and source of every column
class Term(NamedTuple):
    """A measure: its formula in plain text, which way is better (`""` where neither is), and its source."""

    formula: str
    better: str = ""
    source: str = "–"


_LOW: Final = {"ₖ": "k", "ᵢ": "i", "ⱼ": "j", "₀": "0"}


def _explained(statistics: Iterable[definitions.Statistic], measure: Measure) -> dict[str, Term]:
    explained = [statistic.of(measure) for statistic in statistics if statistic.formula]
    return {entry.heading: Term(entry.formula, entry.better, entry.source) for entry in explained}


def terms_of(measures: Sequence[Measure]) -> dict[str, Term]:
    """What a page explains, by the title of the column, in numbers of the first of some measures.

    Parameters
    ----------
    measures : of the task, the main one first.
    """
    main = measures[0]
    return {
        **_explained(definitions.GROUPS, main),
        **{m.title: Term(m.formula, m.better, m.source) for m in measures if m.formula},
        **_explained(definitions.INDICES, main),
        **_explained((*definitions.COLLABORATION, *definitions.PARITY), main),
        "p": Term(
            "P(|T| ≥ |t|) for Student's T with n − 1 degrees of freedom and t = d̄ √n / sd(d), d the differences of n seeds",
            "",
            "Student 1908",
        ),
        "Holm p": Term(
            "the i-th smallest of m p-values, counted from 0, becomes the largest of min(1, (m − j) pⱼ) over j ≤ i",
            "",
            "Holm 1979",
        ),
        **(_explained(definitions.ERRORS, main) if main.of_target else {}),
    }


TERMS: Final = terms_of(CLASSIFICATION)


def notation(measure: Measure, when: str) -> str:
    """What the letters of formulas are, with a main measure; ``when`` are the rounds that tables are of."""
    share = measure.unit == "%"
    return (
        f"aₖ is the {measure.noun}{' in [0, 1]' if share else measure.words} of group or client k, {when}; "
        "K is their number, ā their mean, and ‖a‖ = √(Σₖ aₖ²)."
        + f" Tables print percent. cₖ is the {measure.noun} that client k reaches alone, θₖ that of the model it owns in the end."
        * share
    )


def anchor(title: str, terms: Mapping[str, Term] = TERMS) -> str:
    """The id of the explanation of a title on a page."""
    return f"term-{list(terms).index(title)}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"


def typeset(formula: str) -> str:
    """A formula in HTML, escaped, with subscripts."""
    return re.sub(r"_(\w)|([ₖᵢⱼ₀])", lambda low: f"<sub>{low[1] or _LOW[low[2]]}</sub>", escape(formula))


def hint(title: str, terms: Mapping[str, Term] = TERMS) -> str:
    """The tooltip of a title: formula and direction in a line, or nothing for a title without a term."""
    term = terms.get(title)
    return "" if term is None else f"{term.formula}.{f' {term.better.capitalize()} is better.' if term.better else ''}"
