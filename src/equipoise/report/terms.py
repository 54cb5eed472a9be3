"""What the page explains: formula, direction and source of every column."""

import re
from collections.abc import Iterable
from html import escape
from typing import Final, NamedTuple

from equipoise.metrics.classification import MEASURES
from equipoise.metrics.columns import COLLABORATION, GROUPS, INDICES, PARITY, Column


class Term(NamedTuple):
    """A measure: its formula in plain text, which way is better (`""` where neither is), and its source."""

    formula: str
    better: str = ""
    source: str = "–"


NOTATION: Final = (
    "aₖ is the accuracy in [0, 1] of group or client k, averaged over the last evaluated rounds first; K is their number, "
    "ā their mean, and ‖a‖ = √(Σₖ aₖ²). Tables print percent. cₖ is the accuracy that client k reaches alone, "
    "θₖ that of the model it owns in the end."
)
_LOW: Final = {"ₖ": "k", "ᵢ": "i", "ⱼ": "j", "₀": "0"}


def _explained(columns: Iterable[Column]) -> dict[str, Term]:
    return {column.title: Term(column.formula, column.better, column.source) for column in columns if column.formula}


TERMS: Final[dict[str, Term]] = {  # by the title of the column
    **_explained(GROUPS),
    MEASURES["balanced"]: Term(
        "mean over the classes of the share of their samples that is recognised",
        "higher",
        "FedISM+: Wu et al., arXiv 2503.09587",
    ),
    MEASURES["auc"]: Term(
        "mean over the pairs of classes {i, j} of (AUC(pᵢ; i against j) + AUC(pⱼ; j against i)) / 2",
        "higher",
        "Hand and Till, Machine Learning 2001; FedISM+: Wu et al., arXiv 2503.09587",
    ),
    MEASURES["auc_ovr"]: Term(
        "Σ_c n_c AUC(p_c; c against the rest) / Σ_c n_c, with n_c samples of class c",
        "higher",
        "Provost and Domingos 2000",
    ),
    **_explained((*INDICES, *COLLABORATION, *PARITY)),
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
}


def anchor(title: str) -> str:
    """The id of the explanation of a title on a page."""
    return f"term-{list(TERMS).index(title)}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"


def typeset(formula: str) -> str:
    """A formula in HTML, escaped, with subscripts."""
    return re.sub(r"_(\w)|([ₖᵢⱼ₀])", lambda low: f"<sub>{low[1] or _LOW[low[2]]}</sub>", escape(formula))


def hint(title: str) -> str:
    """The tooltip of a title: formula and direction in a line, or nothing for a title without a term."""
    term = TERMS.get(title)
    return "" if term is None else f"{term.formula}.{f' {term.better.capitalize()} is better.' if term.better else ''}"
