"""Measures in addition to those of :mod:`equipoise.metrics.classification`: well-known ones by name, and the user's own."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.classification import MEASURES, RATES
from equipoise.metrics.measures import REGRESSION
from equipoise.system import own_code
from equipoise.system.ranges import check_option
from equipoise.system.suggestions import unknown

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

    function: Callable[[Array, Array], Any]
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
    """By measure of a record that is not defined somewhere: the first such place, and why."""
    every = record.get("measures", {}).items()
    return {name: next(iter(entry["undefined"].items())) for name, entry in every if entry["undefined"]}
