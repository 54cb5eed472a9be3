"""What the columns of the tables mean: formula, which way is better, and where it comes from."""

import re
from html import escape
from typing import Final, NamedTuple

from equipoise.metrics.classification import MEASURES


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
_HEAL: Final = "FedHEAL: Chen, Huang and Ye, CVPR 2024, Table 2"
_QFFL: Final = "q-FFL: Li, Sanjabi, Beirami and Smith, ICLR 2020"
_ISM: Final = "FedISM+: Wu et al., arXiv 2503.09587"
_SAC: Final = "FedSAC: Wang et al., KDD 2024"
TERMS: Final[dict[str, Term]] = {  # by the title of the column
    "AVG": Term("ā = Σₖ aₖ / K over the groups, each counting the same", "higher", _HEAL),
    "STD": Term("√( Σₖ (aₖ − ā)² / (K − 1) ) over the groups", "lower", _HEAL),
    "worst": Term("minₖ aₖ over the groups", "higher", "AFL: Mohri, Sivek and Suresh, ICML 2019"),
    "gap": Term("maxₖ aₖ − minₖ aₖ", "lower", f"{_ISM}, for two groups"),
    "client STD": Term(
        "√( Σ_g s_g (a_g − Σ_h s_h a_h)² ), with the share s_g of the clients that are in group g",
        "lower",
        f"{_ISM}, Table IV",
    ),
    MEASURES["balanced"]: Term(
        "mean over the classes of the share of their samples that is recognised", "higher", _ISM
    ),
    MEASURES["auc"]: Term(
        "mean over the pairs of classes {i, j} of (AUC(pᵢ; i against j) + AUC(pⱼ; j against i)) / 2",
        "higher",
        f"Hand and Till, Machine Learning 2001; {_ISM}",
    ),
    MEASURES["auc_ovr"]: Term(
        "Σ_c n_c AUC(p_c; c against the rest) / Σ_c n_c, with n_c samples of class c",
        "higher",
        "Provost and Domingos 2000",
    ),
    "mean": Term("ā = Σₖ aₖ / K over the clients", "higher", _QFFL),
    "min": Term("minₖ aₖ", "higher"),
    "max": Term("maxₖ aₖ", "higher"),
    "worst 10\u00a0%": Term("mean of the max(1, ⌊0.1 K⌋) lowest aₖ", "higher", f"{_QFFL}, Table 1"),
    "best 10\u00a0%": Term("mean of the max(1, ⌊0.1 K⌋) highest aₖ", "higher", f"{_QFFL}, Table 1"),
    "STD₀": Term("√( Σₖ (aₖ − ā)² / K ): the standard deviation with ddof 0", "lower", _QFFL),
    "variance": Term("Σₖ (100 aₖ − 100 ā)² / K, in percent²", "lower", f"{_QFFL}; Ditto: Li et al., ICML 2021"),
    "CoV": Term("STD₀ / ā, the coefficient of variation", "lower", "Jain, Chiu and Hawe, DEC TR-301, 1984"),
    "Jain": Term(
        "(Σₖ aₖ)² / (K Σₖ aₖ²), from 1/K to 1, which is equality", "higher", "Jain, Chiu and Hawe, DEC TR-301, 1984"
    ),
    "cosine": Term("Σₖ aₖ / (√K ‖a‖), to the vector of ones", "higher", f"{_QFFL}, appendix"),
    "angle": Term("arccos(cosine), in degrees", "lower", f"{_QFFL}, appendix"),
    "entropy": Term("−Σₖ uₖ ln uₖ with uₖ = aₖ / Σⱼ aⱼ, in nats, at most ln K", "higher", f"{_QFFL}, appendix"),
    "KL": Term("ln K − entropy: the divergence from equality, in nats", "lower", f"{_QFFL}, appendix"),
    "Gini": Term("Σᵢⱼ |aᵢ − aⱼ| / (2 K² ā), 0 for equality", "lower", "Gini 1912"),
    "fairness": Term("100 · Pearson correlation over the clients of cₖ and θₖ, from −100 to 100", "higher", _SAC),
    "Spearman": Term("100 · Pearson correlation of the ranks of cₖ and θₖ", "higher", "Spearman 1904"),
    "gain": Term("Σₖ (θₖ − cₖ) / K", "higher", "CYCle: mean collaboration gain"),
    "worse off": Term("number of clients with θₖ < cₖ", "lower"),
    "BCF": Term(
        "share of the clients with cₖ < θₖ < (cₖ + maxⱼ θⱼ) / 2; the upper bound is not asked of the best",
        "higher",
        f"{_SAC}, Definition 1",
    ),
    "down": Term("bytes a client receives in a round, in percent of the whole model"),
    "up": Term("bytes a client sends in a round, in percent of the whole model"),
    "accuracy gap": Term("max_g accuracy(g) − min_g accuracy(g) over the groups g", "lower"),
    "equal opportunity": Term(
        "max_g TPR(g) − min_g TPR(g) with TPR(g) = P(ŷ = 1 | y = 1, g); of several classes, the largest of any class "
        "against all others",
        "lower",
        "Hardt, Price and Srebro, NIPS 2016",
    ),
    "equalised odds": Term(
        "the larger of max_g TPR(g) − min_g TPR(g) and max_g FPR(g) − min_g FPR(g) with FPR(g) = P(ŷ = 1 | y = 0, g)",
        "lower",
        "Hardt, Price and Srebro, NIPS 2016",
    ),
    "demographic parity": Term(
        "max_g P(ŷ = 1 | g) − min_g P(ŷ = 1 | g): people of every group are chosen as often, whatever is true of them",
        "lower",
        "Dwork et al., ITCS 2012",
    ),
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
    """Where the page explains a title: an id.

    Parameters
    ----------
    title
        A key of `TERMS`.
    """
    return f"term-{list(TERMS).index(title)}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"


def typeset(formula: str) -> str:
    """A formula in HTML: what stands low in plain text is set low.

    Parameters
    ----------
    formula
        Of a term; the result is escaped, and safe in a page.
    """
    return re.sub(r"_(\w)|([ₖᵢⱼ₀])", lambda low: f"<sub>{low[1] or _LOW[low[2]]}</sub>", escape(formula))


def hint(title: str) -> str:
    """What a reader sees who points at a title: formula and direction in a line, or nothing for what explains itself.

    Parameters
    ----------
    title
        A title of a column.
    """
    term = TERMS.get(title)
    return "" if term is None else f"{term.formula}.{f' {term.better.capitalize()} is better.' if term.better else ''}"
