"""The threshold on the probability of the positive class: how it is chosen, and what it decides."""

import math
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kind = Literal["sensitivity", "specificity", "cost", "youden"]
WAYS: Final = "--sensitivity 0.9, --specificity 0.9, --cost 5:1 or --youden (Python: sensitivity=0.9, ..., youden=True)"
CERTAIN: Final = float(np.nextafter(np.float32(1), np.float32(2)))  # no probability reaches it
SLACK: Final = 1e-9  # of a number of samples, for the rounding of share * n


@dataclass(frozen=True)
class Aim:
    """What a threshold should reach.

    Parameters
    ----------
    kind : ``"sensitivity"`` or ``"specificity"`` of at least `value`; the lowest ``"cost"``, where a missed case costs `value` times a
        false alarm; or the largest ``"youden"`` index, sensitivity + specificity - 1 (Youden 1950).
    value : in (0, 1] of sensitivity and specificity, > 0 of cost; without a meaning of Youden's index.
    """

    kind: Kind
    value: float = 1.0

    @classmethod
    def of(
        cls,
        sensitivity: float | None = None,
        specificity: float | None = None,
        cost: float | str | None = None,
        youden: bool = False,
    ) -> Self:
        """The aim that was given; a cost is a number, or text such as ``"5:1"``, false negative : false positive.

        Raises
        ------
        ValueError : none was given, several, or one out of its range.
        """
        aims: dict[Kind, float | str | None] = {
            "sensitivity": sensitivity,
            "specificity": specificity,
            "cost": cost,
            "youden": 1.0 if youden else None,
        }
        named = [kind for kind, value in aims.items() if value is not None]
        if len(named) != 1:
            raise ValueError(f"A threshold is chosen in one way: {WAYS}. Found {', '.join(named) or 'none'}.")
        (kind,) = named
        value = _ratio(aims[kind]) if kind == "cost" else aims[kind]
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0 < number < math.inf or (kind != "cost" and number > 1):
            expected = "two positive numbers such as 5:1" if kind == "cost" else "a number in (0, 1], such as 0.9"
            raise ValueError(f"{kind} must be {expected}; found {aims[kind]!r}.")
        return cls(kind, float(number))

    def __str__(self) -> str:
        if self.kind == "youden":
            return "the largest sum of sensitivity and specificity (Youden)"
        if self.kind == "cost":
            return f"the lowest cost, where a missed case costs {self.value:g} times a false alarm"
        return f"a {self.kind} of at least {self.value:g}"


def _ratio(cost: float | str | None) -> float | str | None:
    """The cost of a missed case in false alarms; what cannot be read stays as it is."""
    try:
        missed, alarm = str(cost).split(":") if ":" in str(cost) else (str(cost), "1")
        return float(missed) / float(alarm) if float(missed) > 0 and float(alarm) > 0 else cost
    except ValueError:
        return cost


def choose(aim: Aim, scores: ArrayLike, positive: ArrayLike) -> float:
    """The threshold t that reaches an aim on some samples, which are taken for positive if their score is at least t.

    Of all t it is the highest with the wanted sensitivity `TP / (TP + FN)`, the lowest with the wanted specificity
    `TN / (TN + FP)`, or that with the least `value FN + FP`, or the largest Youden index `TP / (TP + FN) + TN / (TN + FP) - 1`, of
    equal ones the lowest. It stands between two neighbouring scores, so rounding of a score changes no decision.

    Parameters
    ----------
    aim : what it should reach.
    scores : probabilities of the positive class, in [0, 1]; shape [n].
    positive : whether each sample is of the positive class; shape [n].

    Raises
    ------
    ValueError : no probabilities, or samples of one class only.
    """
    p, y = checked(scores, positive)
    P, N = int(y.sum()), int((~y).sum())
    if not (P and N):
        raise ValueError(f"a threshold needs samples of both classes; found {P} of the positive class and {N} others.")
    values, at = np.unique(p, return_inverse=True)
    tp = np.append(np.bincount(at, y)[::-1].cumsum()[::-1], 0)  # the k-th value and all above are positive, k = 0..K
    tn = np.append(0, np.bincount(at, ~y).cumsum())
    match aim.kind:
        case "sensitivity":
            k = int(np.flatnonzero(tp >= aim.value * P - SLACK)[-1])
        case "specificity":
            k = int(np.flatnonzero(tn >= aim.value * N - SLACK)[0])
        case "cost":
            k = int(np.argmin(aim.value * (P - tp) + N - tn))
        case "youden":
            k = int(np.argmax(tp * N + tn * P))
    return _between(values, k)


def decided(scores: ArrayLike, threshold: ArrayLike) -> NDArray[np.bool_]:
    """Which samples are taken for positive, in double precision: those with a score of at least the threshold, one or one per sample."""
    return np.asarray(np.asarray(scores, dtype=np.float64) >= np.asarray(threshold, dtype=np.float64))


def _between(values: NDArray[np.float64], k: int) -> float:
    """A threshold below the k-th of some scores and above the one before it, which single precision holds where it can."""
    low = values[k - 1] if k else 0.0
    high = values[k] if k < len(values) else 1.0 if low < 1 else CERTAIN
    if k == 0:
        return 0.0
    middle = float(np.float32((low + high) / 2))
    return middle if low < middle <= high else float(high)


def checked(scores: ArrayLike, positive: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Probabilities [n] of the positive class, and whether each sample is of it [n].

    Raises
    ------
    ValueError : they are something else.
    """
    p, y = np.asarray(scores, dtype=np.float64), np.asarray(positive)
    if p.ndim != 1 or y.shape != p.shape:
        raise ValueError(f"expected scores [n] and classes [n]; found {p.shape} and {y.shape}.")
    if not set(np.unique(y).tolist()) <= {0, 1}:
        raise ValueError(f"positive must be true or false, 1 or 0, for each sample; found {np.unique(y)[:4].tolist()}.")
    if bad := int((~((p >= 0) & (p <= 1))).sum()):
        raise ValueError(f"scores must be probabilities in [0, 1]; {bad} of {len(p)} are not.")
    return p, y.astype(np.bool_)
