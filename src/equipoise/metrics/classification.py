"""Scores of a classifier on one labelled data set: accuracy, balanced accuracy, areas under the ROC curve, and the user's own measures."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.groups import class_counts
from equipoise.metrics.measures import CLASSIFICATION, REGRESSION
from equipoise.system import own_code
from equipoise.system.ranges import check_option
from equipoise.system.suggestions import require_known, unknown

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
    require_known("measure", every, *sorted(names))
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


def pairs_in_order(scores: NDArray[Any], positive: NDArray[Any]) -> float:
    """The Mann-Whitney statistic: pairs of a positive and another sample where the positive one has the larger score; half a pair where equal."""
    others, own = np.sort(scores[~positive]), scores[positive]
    return float(np.searchsorted(others, own, "left").sum() + np.searchsorted(others, own, "right").sum()) / 2


def area(scores: NDArray[Any], positive: NDArray[Any]) -> float:
    """The area under the ROC curve of the scores [n] of samples, some positive [n] and some not."""
    m = int(positive.sum())
    return pairs_in_order(scores, positive) / (m * (len(positive) - m))


def _auc(p: NDArray[Any], predicted: NDArray[Any], y: NDArray[Any], present: NDArray[Any]) -> float:
    """Of two classes, or the mean over pairs of classes that there are, each way (Hand and Till 2001)."""
    if len(present) < 2 or (predicted < 0).any():
        return math.nan
    if p.shape[1] == 2:
        return area(p[:, 1], y == 1)
    pairs = [(p[(y == a) | (y == b)], y[(y == a) | (y == b)], a, b) for a, b in combinations(present, 2)]
    areas = [(area(rows[:, a], true == a) + area(rows[:, b], true == b)) / 2 for rows, true, a, b in pairs]
    return float(np.mean(areas))


def _auc_ovr(p: NDArray[Any], predicted: NDArray[Any], y: NDArray[Any], present: NDArray[Any]) -> float:
    """The mean over classes, each against the others, weighted by their samples."""
    if len(present) < 2 or p.shape[1] == 2 or (predicted < 0).any():
        return _auc(p, predicted, y, present)
    return float(np.average([area(p[:, c], y == c) for c in present], weights=[(y == c).sum() for c in present]))


# other measures: well-known ones by name, and the user's own
Array = NDArray[Any]
Found = tuple[float | None, str]  # a value, or None and why
BINS: Final = 15  # of confidences, as Guo et al., ICML 2017
UNDECIDED: Final = (
    "it is a function of probabilities and labels, and here the predictions are not the most probable classes. Give the function a third "
    "parameter, predicted, the classes [n] that are predicted"
)


@dataclass(frozen=True)
class Measure:
    """The user's own measure: a function of probabilities [n, C] and labels [n], NumPy arrays, that returns a number.

    A parameter called ``predicted`` receives the predictions [n], as the task, the method or a threshold decides. Without it, a measure of
    classes has no access to them: it is null if they are not the most probable classes.

    Parameters
    ----------
    function : what computes it. Where it raises an error, or gives no finite number, the measure is null, with the reason.
    name : in records and tables; default: the function's.
    better : ``"higher"``, ``"lower"``, or None where neither is.

    Raises
    ------
    TypeError, ValueError : no function, or another ``better``.
    """

    function: Callable[..., Any]
    name: str = ""
    better: Literal["higher", "lower"] | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"Measure: expected a function of probabilities and labels; found {self.function!r}.")
        check_option("Measure: better", self.better, ("higher", "lower", None))
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "name", name)

    def __call__(self, p: Array, y: Array, predicted: Array | None = None) -> Found:
        """Its value on probabilities [n, C], labels [n] and predictions [n]; None: the most probable classes."""
        if not np.isfinite(p).all():
            return None, "the model's outputs are not finite"
        most = p.argmax(1) if p.ndim == 2 else p
        decided = {"predicted": (most if predicted is None else predicted).copy()} if _decides(self.function) else {}
        if p.ndim == 2 and predicted is not None and not decided and (predicted != most).any():
            return None, UNDECIDED
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the record says what cannot be computed
                value = float(self.function(p.copy(), y.copy(), **decided))
        except Exception as error:  # of the user's function
            return None, f"{type(error).__name__}: {error}"
        return (value, "") if math.isfinite(value) else (None, f"its value is {value}")


def _decides(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter for what is predicted."""
    try:
        return "predicted" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some built-in ones
        return False


def _sklearn(name: str, *, mixed: bool = True, **options: Any) -> Callable[..., Any]:
    """A function of scikit-learn of labels and predictions; a ``mixed`` one is 0 / 0 where either are all of one class."""

    def compute(p: Array, y: Array, predicted: Array) -> Any:
        from sklearn import metrics

        for what, classes in (("samples", y), ("predictions", predicted)):
            if mixed and len(np.unique(classes)) < 2:
                raise ValueError(f"all {what} are of one class")
        return getattr(metrics, name)(y, predicted, **options)

    return compute


def _ece(p: Array, y: Array, predicted: Array) -> float:
    """The mean over samples of how far accuracy and confidence are apart in their bin of equal width: of the most probable class."""
    sure = p.max(1)
    bins = np.minimum(np.ceil(sure * BINS).astype(int), BINS) - 1
    return float(np.abs(np.bincount(bins, (p.argmax(1) == y) - sure)).sum() / len(y))


KNOWN: Final = {
    measure.name: measure
    for measure in (
        Measure(_sklearn("f1_score", mixed=False, average="macro", zero_division=0), "f1", "higher"),
        Measure(_sklearn("matthews_corrcoef"), "mcc", "higher"),
        Measure(_sklearn("cohen_kappa_score"), "kappa", "higher"),
        Measure(_ece, "ece", "lower"),
        Measure(lambda p, y, predicted: np.square(p - np.eye(p.shape[1])[y]).sum(1).mean(), "brier", "lower"),
        Measure(lambda p, y, predicted: -np.log(p[np.arange(len(y)), y]).mean(), "log_loss", "lower"),
    )
}


def divided(measures: Iterable[Any]) -> tuple[tuple[str, ...], tuple[Measure, ...]]:
    """Names of ``metrics.MEASURES`` and `"rates"`; and all others: names of ``KNOWN``, references, functions, :class:`Measure`.

    Raises
    ------
    TypeError, ValueError : something else, a name that is not known, or two of one name.
    """
    if isinstance(measures, str) or not isinstance(measures, Iterable):
        raise TypeError(f'measures must be several, such as ("accuracy", "f1"); found {measures!r}.')
    each = list(dict.fromkeys(measures))
    names = [measure for measure in each if measure in (*MEASURES, RATES)]
    own = [_measure(measure) for measure in each if measure not in names]
    for k, measure in enumerate(own):
        if measure.name in (*MEASURES, RATES, *(other.name for other in own[:k])):
            raise ValueError(f"Two measures are called {measure.name!r}. Rename one: Measure(function, name=...).")
    return tuple(names), tuple(own)


def _measure(asked: Any) -> Measure:
    if isinstance(asked, str) and not own_code.is_reference(asked):
        if asked in {measure.name for measure in REGRESSION}:
            raise ValueError(f"Measure {asked!r} is recorded of every regression, and of nothing else. Leave it out.")
        if asked not in KNOWN:
            raise ValueError(f"{unknown('measure', asked, [*MEASURES, RATES, *KNOWN])} Or your own: mine.py:cost.")
        return KNOWN[asked]
    loaded: Any = own_code.load(asked) if isinstance(asked, str) else asked
    if isinstance(loaded, type) and hasattr(loaded, "higher_is_better"):

        def torchmetric(p: Array, y: Array, predicted: Array) -> Any:
            import torch

            try:
                return loaded(num_classes=p.shape[1])(torch.from_numpy(predicted), torch.from_numpy(y))
            except ValueError:  # a measure of probabilities takes no classes
                return loaded(num_classes=p.shape[1])(torch.from_numpy(p), torch.from_numpy(y))

        directions: dict[Any, Any] = {True: "higher", False: "lower"}
        return Measure(torchmetric, loaded.__name__, directions.get(loaded.higher_is_better))
    return loaded if isinstance(loaded, Measure) else Measure(loaded)


def recorded(measures: Iterable[Measure], computed: Mapping[tuple[str, str], list[Found] | None]) -> dict[str, Any]:
    """The entry of a record, from what the measures are by kind (group, client, all) and name; None where it was not tested."""
    record = {}
    for k, measure in enumerate(measures):
        of_measure = {where: (None, "") if values is None else values[k] for where, values in computed.items()}
        record[measure.name] = {
            "better": measure.better,
            "groups": {name: value for (kind, name), (value, _) in of_measure.items() if kind == "group"},
            "clients": [value for (kind, _), (value, _) in of_measure.items() if kind == "client"],
            "all": of_measure["all", "samples"][0],
            "undefined": {" ".join(where): why for where, (_, why) in of_measure.items() if why},
        }
    return record


def failures(record: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """For each undefined measure of a record: where it is undefined first, and why."""
    every = record.get("measures", {}).items()
    return {name: next(iter(entry["undefined"].items())) for name, entry in every if entry["undefined"]}
