"""Scores of a classifier on one labelled data set: accuracy, balanced accuracy, areas under the ROC curve."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.groups import class_counts
from equipoise.metrics.measures import CLASSIFICATION
from equipoise.system.suggestions import unknown

# in records and options: title of its table
MEASURES: Final = {measure.name: measure.title for measure in CLASSIFICATION}
AREAS: Final = ("auc", "auc_ovr")
RATES: Final = "rates"  # counts per class, see `class_counts`, from which fairness between groups is computed
CORRECT: Final = "correct"  # which samples are classified correctly: hexadecimal digits of `numpy.packbits`


def chosen(measures: Iterable[str]) -> tuple[str, ...]:
    """Accuracy and the named measures, each once and in the order of `MEASURES`; `"rates"` comes last.

    Raises
    ------
    ValueError : a name is unknown; the message names the nearest one.
    TypeError : one string instead of several.
    """
    if isinstance(measures, str) or not isinstance(measures, Iterable):
        raise TypeError(f'measures must be several names, such as ("accuracy", "auc"); found {measures!r}.')
    names, every = set(measures), (*MEASURES, RATES)
    for name in sorted(names - set(every)):
        raise ValueError(unknown("measure", name, every))
    return tuple(name for name in every if name in names or name == "accuracy")


def classification(
    scores: ArrayLike, y: ArrayLike, measures: Iterable[str] = tuple(MEASURES), *, logits: bool = False
) -> dict[str, Any]:
    """Accuracy, balanced accuracy and areas under the ROC curve, by scikit-learn.

    `balanced` is the mean over classes of the share of their samples classified correctly: `balanced_accuracy_score`,
    the ACC of FedISM+'s tables.  `auc` is the mean over pairs of classes of `(AUC(p_a; a, b) + AUC(p_b; b, a)) / 2` on the
    samples of the two: `roc_auc_score(multi_class="ovo", average="macro")`, their AUC.  `auc_ovr` is the mean over
    classes, weighted by their samples, of the AUC of the class against the rest.  Equal scores count one half.

    Parameters
    ----------
    scores : probabilities [n, C] whose rows sum to one, or logits [n, C]. A sample whose largest score is not finite has no
        prediction: it counts, and is never right.
    y : labels in 0..C - 1; shape [n].
    measures : names of `MEASURES`, or `"rates"` for the counts of `equipoise.metrics.class_counts`.
    logits : whether `scores` are logits: areas compare probabilities of different samples, which logits are not.

    Returns
    -------
    The ``measures``, NaN where not defined (no sample; for areas also one class only, or a sample without a prediction), and
    `missing`, the classes without a sample: they are left out of `balanced` and of both areas.

    Raises
    ------
    ValueError : the shapes do not fit, a label is out of range, or rows of probabilities do not sum to one.
    """
    p, labels = np.asarray(scores, dtype=np.float64), np.asarray(y)
    if p.ndim != 2 or labels.shape != p.shape[:1]:
        raise ValueError(f"expected scores [n, C] and labels [n], found {p.shape} and {labels.shape}.")
    n, C = p.shape
    if n and (labels.min() < 0 or labels.max() >= C):
        raise ValueError(f"labels must be in 0..{C - 1}: found {labels.min()}..{labels.max()}.")
    predicted = np.where(np.isfinite(p.max(axis=1)), p.argmax(axis=1), -1)
    if logits and (predicted >= 0).all():
        p = np.exp(p - p.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
    elif not logits and not np.allclose(p[predicted >= 0].sum(axis=1), 1):
        raise ValueError("every row of the probabilities must sum to 1. Give logits=True for logits.")
    counts = class_counts(labels, predicted, C)
    right, true = np.asarray(counts["right"]), np.asarray(counts["true"])
    present = np.flatnonzero(true)
    formulas: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: float(right.sum() / n),
        "balanced": lambda: balanced(right, true),
        "auc": lambda: _auc(p, predicted, labels, present),
        "auc_ovr": lambda: _auc_ovr(p, predicted, labels, present),
        RATES: lambda: counts,
    }
    chosen(measures)
    wanted = {name: formulas[name]() if n else math.nan for name in measures}
    return {**wanted, "missing": tuple(sorted(set(range(C)) - set(present.tolist())))}


def balanced(right: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """The mean over the classes that there are of the share of their samples that is recognised, from counts per class [C]."""
    return float((right[true > 0] / true[true > 0]).mean())


def _auc(p: NDArray[Any], predicted: NDArray[Any], y: NDArray[Any], present: NDArray[Any]) -> float:
    if len(present) < 2 or (predicted < 0).any():
        return math.nan
    from sklearn.metrics import roc_auc_score

    if p.shape[1] == 2:
        return float(roc_auc_score(y, p[:, 1]))
    return float(roc_auc_score(y, p, multi_class="ovo", average="macro", labels=np.arange(p.shape[1])))


def _auc_ovr(p: NDArray[Any], predicted: NDArray[Any], y: NDArray[Any], present: NDArray[Any]) -> float:
    if len(present) < 2 or p.shape[1] == 2 or (predicted < 0).any():
        return _auc(p, predicted, y, present)
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y[:, None] == present, p[:, present], average="weighted"))
