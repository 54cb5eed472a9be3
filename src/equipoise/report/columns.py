"""Which statistics tables show, and how pages explain them; what they are is in `equipoise.metrics.definitions`."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from operator import attrgetter
from typing import Final

from equipoise.metrics import definitions
from equipoise.metrics.definitions import Statistic
from equipoise.metrics.measures import Measure


def over_groups(measure: Measure) -> tuple[Statistic, ...]:
    """The statistics over groups of a measure."""
    return tuple(sorted((statistic.of(measure) for statistic in definitions.GROUPS), key=attrgetter("place")))


def blocks_over_clients(measure: Measure) -> tuple[tuple[Statistic, ...], ...]:
    """The indices of the spread of a measure over clients: level, distance and evenness."""
    placed = sorted((index.of(measure) for index in definitions.INDICES), key=attrgetter("place"))
    return tuple(tuple(index for index in placed if index.place[0] == block) for block in range(3))


def spread_of(measure: Measure) -> tuple[Statistic, ...]:
    """What a table of many clients shows of a measure."""
    return tuple(index.of(measure) for index in definitions.INDICES if index.shown(measure))


def collaboration() -> tuple[Statistic, ...]:
    """What clients get for what they contribute."""
    return tuple(number for number in definitions.COLLABORATION if number.column)


_LOW: Final = {"ₖ": "k", "ᵢ": "i", "ⱼ": "j", "₀": "0"}


# what a page explains: formula, direction and source of every column
def terms_of(measures: Sequence[Measure]) -> dict[str, Statistic]:
    """What a page explains, by the title of the column, in numbers of the first of some measures.

    Parameters
    ----------
    measures : of the task, the main one first.
    """

    def explained(*statistics: Statistic) -> dict[str, Statistic]:
        """Those with a formula, by title."""
        return {statistic.title: statistic.of(measures[0]) for statistic in statistics if statistic.formula}

    p = "P(|T| ≥ |t|) for Student's T with n − 1 degrees of freedom and t = d̄ √n / sd(d), d the differences of n seeds"
    holm = "the i-th smallest of m p-values, counted from 0, becomes the largest of min(1, (m − j) pⱼ) over j ≤ i"
    return {
        **explained(*definitions.GROUPS),
        **{m.title: Statistic(m.name, None, m.better, m.formula, m.source) for m in measures if m.formula},
        **explained(*definitions.INDICES, *definitions.COLLABORATION, *definitions.PARITY),
        "p": Statistic("p", formula=p, source="Student 1908"),
        "Holm p": Statistic("holm", formula=holm, source="Holm 1979"),
        **explained(*(definitions.ERRORS if measures[0].of_target else ())),
    }


def notation(measure: Measure, when: str) -> str:
    """What the letters of formulas are, with a main measure; ``when`` are the rounds that tables are of."""
    text = (
        f"aₖ is the {measure.noun}{' in [0, 1]' if measure.unit == '%' else measure.words} of group or client k, {when}; "
        "K is their number, ā their mean, and ‖a‖ = √(Σₖ aₖ²)."
    )
    if measure.unit != "%":
        return text
    return f"{text} Tables print percent. cₖ is the {measure.noun} that client k reaches alone, θₖ that of the model it owns in the end."


def anchor(title: str, terms: Mapping[str, Statistic]) -> str:
    """The id of the explanation of a title on a page."""
    return f"term-{list(terms).index(title)}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"


def typeset(formula: str) -> str:
    """A formula in HTML, escaped, with subscripts."""
    return re.sub(r"_(\w)|([ₖᵢⱼ₀])", lambda low: f"<sub>{low[1] or _LOW[low[2]]}</sub>", escape(formula))


def hint(title: str, terms: Mapping[str, Statistic]) -> str:
    """The tooltip of a title: formula and direction in a line, or nothing for a title without a term."""
    term = terms.get(title)
    return "" if term is None else f"{term.formula}.{f' {term.better.capitalize()} is better.' if term.better else ''}"
