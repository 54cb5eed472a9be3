"""The threshold of a binary classifier: chosen on validation rows, with what it does by group on test rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.core.outputs import Outputs
from equipoise.core.task import Classification
from equipoise.data.samples import loaded
from equipoise.federation.evaluation import answers, published
from equipoise.metrics.calibration import Recalibration, auc, calibration, histogram, reliability, roc
from equipoise.metrics.decision import Decision
from equipoise.metrics.intervals import Interval
from equipoise.metrics.performance import Value
from equipoise.metrics.thresholds import Aim, choose, decided, rates_at
from equipoise.records.meta import REPEATED, TOGETHER
from equipoise.records.threshold import FILE, USES_GROUP, ByGroup, Chosen, Estimate, RatesAt, Recalibrated, mark, masked
from equipoise.system.files import write_atomically
from equipoise.system.seals import sealed_json
from equipoise.system.suggestions import some, unknown
from equipoise.system.tensor_files import as_bytes

if TYPE_CHECKING:
    from equipoise.federation.federation import Federation

MOST: Final = 50  # clients that are listed
CLIENT: Final = "client"
NO_ROWS = (
    "This federation holds out no rows for validation, and a threshold must not be chosen on training or test rows. Give each client rows "
    "to hold out, --validation 0.2 (Python: validation=0.2), or the server some, --set server_validation=0.1 (Python: server_validation)."
)


@dataclass(frozen=True)
class Rows:
    """The scores of some samples, whether each is positive, and codes of their ``attributes`` [n, A], -1 where one is not known."""

    scores: NDArray[np.float64]
    positive: NDArray[np.bool_]
    s: NDArray[np.int64]
    attributes: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def of(cls, outputs: Outputs, positive: int, attributes: Mapping[str, Sequence[str]]) -> Rows:
        """What the outputs of a model are for the positive class; samples without attributes have unknown ones."""
        p, y = outputs.given
        s = np.full((len(y), len(attributes)), -1) if outputs.s is None else outputs.s.cpu().numpy()
        return cls(p[:, positive], y == positive, s, attributes)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Several together."""
        scores, positive, s = (
            np.concatenate(x) for x in zip(*((r.scores, r.positive, r.s) for r in parts), strict=True)
        )
        return cls(scores, positive, s, parts[0].attributes)

    def codes(self, attribute: str) -> NDArray[np.int64]:
        """The codes [n] of an attribute; -1 of one without a name, which none has."""
        return self.s[:, [*self.attributes].index(attribute)] if attribute else np.full(len(self), -1)

    def by(self, attribute: str) -> dict[str, Rows]:
        """The samples with each value of an attribute."""
        masks = {value: self.codes(attribute) == k for k, value in enumerate(self.attributes[attribute])}
        return {
            value: Rows(self.scores[mask], self.positive[mask], self.s[mask], self.attributes)
            for value, mask in masks.items()
        }


@dataclass(frozen=True)
class Threshold:
    """A threshold that :func:`choose_threshold` chose.

    Parameters
    ----------
    document : all of it, as ``threshold.json`` holds it: see :class:`equipoise.records.threshold.Chosen`.
    """

    document: Chosen

    @property
    def value(self) -> float:
        """The threshold for everyone, or for people of whom the group is not known."""
        return self.document["threshold"]

    @property
    def by_group(self) -> dict[str, float]:
        """The threshold of each group; empty where one is for all."""
        by_group = self.document["by_group"]
        return {} if by_group is None else dict(by_group["thresholds"])

    def decide(self, probabilities: ArrayLike, groups: Sequence[str] | None = None) -> NDArray[np.bool_]:
        """Which samples are taken for the positive class, from its probabilities [n], and the group of each if there are thresholds by group."""
        by_group = self.document["by_group"]
        if by_group is None:
            return decided(probabilities, self.value)
        if groups is None:
            by = by_group["attribute"]
            raise ValueError(f"These thresholds are by {by}: give groups, the {by} of each sample.")
        return decided(probabilities, [self.by_group.get(str(group), self.value) for group in groups])

    def save(self, directory: str | Path) -> Path:
        """Write ``threshold.json`` into the directory of the run, atomically: its reports show it."""
        return write_atomically(Path(directory) / FILE, sealed_json(self.document))

    def __repr__(self) -> str:
        groups = ", ".join(f"{name} {value:.3g}" for name, value in self.by_group.items())
        shown = self.document["everyone"]
        rates = f"sensitivity {_text(shown['sensitivity'])}, specificity {_text(shown['specificity'])} on {shown['n'] or 'few'} test rows"
        return f"Threshold({groups or format(self.value, '.3g')} for class {self.document['positive']}: {self.document['rule']}; {rates})"


def choose_threshold(
    federation: Federation,
    *,
    sensitivity: float | None = None,
    specificity: float | None = None,
    cost: float | str | None = None,
    youden: bool = False,
    by_group: bool | str = False,
    recalibrate: str | None = None,
) -> Threshold:
    """Choose the threshold of the global model on validation rows, and measure it by group on test rows.

    Validation rows are those that clients hold out (setting ``validation``), else the server's. A sample is taken for the positive class if
    its probability is at least the threshold. Give one of the first four.

    Parameters
    ----------
    federation : trained, of a task with two classes.
    sensitivity, specificity : in (0, 1], at least so much on the validation rows; the other is then as large as it can be.
    cost : what a missed case costs in false alarms, > 0, or text such as ``"5:1"``: the least cost.
    youden : the largest sensitivity + specificity - 1.
    by_group : a threshold for each value of a sensitive attribute: its name, or True if there is one only. It uses the attribute at prediction.
    recalibrate : ``"platt"`` or ``"isotonic"``: also fit a function that turns probabilities into better ones, on the same rows. The
        threshold stays one on the probabilities as they are.

    Raises
    ------
    ValueError : an aim that is no such, not two classes, no validation or test rows, or a group without rows of both classes.
    """
    aim = Aim.of(sensitivity, specificity, cost, youden)
    positive = _positive(federation)
    source, rows = _validation(federation, positive)
    value = _chosen(aim, rows)
    groups = None if by_group is False else _by_group(federation, aim, rows, by_group)
    vector = published(federation.trial, federation.chosen)
    tested = _tested(federation, positive)
    every = Rows.joined([*tested.values()])
    record = next(each for each in federation.records if each["round"] == federation.chosen.t - 1)
    decision = Decision.at(value, groups)
    validation = {"all": rows}
    if groups is not None:
        by = groups["attribute"]
        validation |= {f"{by} {name}": part for name, part in rows.by(by).items()}
    document: Chosen = {
        "positive": federation.classes[positive],
        "threshold": value,
        "by_group": groups,
        "rule": str(aim),
        "aim": {"kind": aim.kind, "value": aim.value},
        "rows": {
            "source": source,
            "n": len(rows),
            "of_class": int(rows.positive.sum()),
            "sha256": hashlib.sha256(rows.scores.tobytes() + rows.positive.tobytes()).hexdigest(),
        },
        "validation": {name: _rates(part, decision) for name, part in validation.items()},
        "hash": hashlib.sha256(as_bytes(vector)).hexdigest(),
        "round": record["round"],
        "record": mark(record),
        "least": 0,
        "everyone": _rates(every, decision),
        "divisions": [
            {"by": by, "groups": {name: _rates(part, decision) for name, part in parts.items()}}
            for by, parts in _divided(federation, tested)
        ],
        "reliability": [
            {"edges": [low, high], "n": n, "score": score, **_estimate(Value(share, True), interval)}
            for low, high, n, score, share, interval in reliability(every.scores, every.positive)
        ],
        "recalibration": None
        if recalibrate is None
        else _recalibrated(recalibrate, rows, every, federation.least_group),
        "notes": [*_notes(federation, rows, groups)],
    }
    return Threshold(masked(document, federation.least_group))


def _notes(federation: Federation, rows: Rows, groups: ByGroup | None) -> Iterator[str]:
    """What to know about the choice: that it uses the group, and on how few rows it was made."""
    if federation.personal:
        yield "Clients predict with models of their own: this threshold, and its rates, are of the global model."
    if {REPEATED, TOGETHER} & {*federation.header}:
        yield REPEATED
    counts = {"": int(rows.positive.sum())}
    if groups is not None:
        yield USES_GROUP.format(groups["attribute"])
        counts = {f" for {v}": int(part.positive.sum()) for v, part in rows.by(groups["attribute"]).items()}
    if few := [which for which, n in counts.items() if n < federation.least_group]:
        yield (
            f"Chosen on fewer than {federation.least_group} validation rows of class {federation.classes[_positive(federation)]}"
            f"{' and'.join(few)}: other rows would give another threshold."
        )


def _positive(federation: Federation) -> int:
    """The number of the positive class of two."""
    if not isinstance(federation.model.task, Classification) or len(federation.classes) != 2:
        what = f"{len(federation.classes)} classes" if federation.classes else "numbers to predict"
        raise ValueError(f"A threshold decides between two classes, and this federation has {what}.")
    if not federation.method.sharing.global_model:
        raise ValueError(
            f"{federation.method} has no global model, for which a threshold could be chosen: every client has its own."
        )
    if not federation.progress.t:
        raise ValueError("The model has not been trained: call fit first.")
    assert federation.positive is not None  # of two classes one is
    return federation.positive.number


def _validation(federation: Federation, positive: int) -> tuple[str, Rows]:
    """Whose validation rows there are, and the scores of the global model on them."""
    if federation.held is not None:
        return "clients", _scored(federation, positive, [d for d in federation.held.sets if d is not None])
    if (data := federation.inputs.server_validation) is not None:
        return "server", _scored(federation, positive, [data])
    raise ValueError(NO_ROWS)


def _scored(federation: Federation, positive: int, sets: Iterable[Any]) -> Rows:
    vector = published(federation.trial, federation.chosen)
    every = answers(federation.trial, vector, [loaded(data) for data in sets], ())
    return Rows.joined([Rows.of(outputs, positive, federation.attributes) for outputs in every])


def _tested(federation: Federation, positive: int) -> dict[str, Rows]:
    """The scores of the global model on every test set."""
    if not federation.tests.sets:
        raise ValueError("This federation has no test rows, on which a threshold could be measured: give tests.")
    return {name: _scored(federation, positive, [data]) for name, data in federation.tests.sets.items()}


def _chosen(aim: Aim, rows: Rows) -> float:
    try:
        return choose(aim, rows.scores, rows.positive)
    except ValueError as error:
        raise ValueError(f"The validation rows: {error}") from None


def _by_group(federation: Federation, aim: Aim, rows: Rows, by_group: bool | str) -> ByGroup:
    """The threshold of each value of an attribute."""
    attributes = federation.attributes
    if not attributes:
        raise ValueError(
            "--by-group: samples have no sensitive attribute. Name its column, --set group=COLUMN (Python: give clients as (x, y, s))."
        )
    if by_group is True and len(attributes) > 1:
        raise ValueError(
            f"--by-group: there are several attributes ({some([*attributes])}). Name one: --attribute NAME (Python: by_group=NAME)."
        )
    name = next(iter(attributes)) if by_group is True else str(by_group)
    if name not in attributes:
        raise ValueError(f"--attribute: {unknown('attribute', name, attributes)}")
    parts = rows.by(name)
    poor = [
        f"{value} {int(part.positive.sum())} and {int((~part.positive).sum())}"
        for value, part in parts.items()
        if len(set(part.positive.tolist())) < 2
    ]
    if poor:
        raise ValueError(
            f"--by-group: a threshold needs validation rows of both classes in every group, and of {name} these have so many of class "
            f"{federation.classes[_positive(federation)]} and others: {some(poor, 10)}. Hold out more rows, or choose one threshold for all."
        )
    return {
        "attribute": name,
        "thresholds": {value: choose(aim, part.scores, part.positive) for value, part in parts.items()},
    }


def _divided(federation: Federation, tested: Mapping[str, Rows]) -> list[tuple[str, dict[str, Rows]]]:
    """The divisions of test samples: by attribute, by test set unless an attribute is that, and by client."""
    every, names = Rows.joined([*tested.values()]), federation.names
    divisions = [(name, every.by(name)) for name in federation.attributes if (every.codes(name) >= 0).any()]
    if len(tested) > 1 and not any({*tested} <= {*values} for values in federation.attributes.values()):
        divisions.append((CLIENT if {*tested} <= {*names} else "test set", dict(tested)))
    own = federation.tests.of_clients
    if own is not None and len(names) <= MOST and not any(by == CLIENT for by, _ in divisions):
        positive = _positive(federation)
        mine = {n: _scored(federation, positive, [d]) for n, d in zip(names, own, strict=True) if d is not None}
        divisions.append((CLIENT, mine))
    return divisions


def _rates(rows: Rows, decision: Decision) -> RatesAt:
    """How some samples are treated, however few they are."""
    codes = rows.codes(decision.attribute)
    edges = {decision.edges[k] for k in codes.tolist()}  # the last one where it is not known, -1
    rates = rates_at(decision(rows.scores, codes), rows.positive)
    measures = calibration(rows.scores, rows.positive)
    return {
        "n": rates.n,
        "of_class": rates.of_class,
        "threshold": edges.pop() if len(edges) == 1 else None,
        "sensitivity": _estimate(*rates.sensitivity),
        "specificity": _estimate(*rates.specificity),
        "selection_rate": _estimate(*rates.selection_rate),
        "auc": _estimate(*auc(rows.scores, rows.positive)),
        "roc": roc(rows.scores, rows.positive).tolist() if 0 < rates.of_class < rates.n else None,
        "brier": _number(measures, "brier"),
        "ece": _number(measures, "ece"),
        "withheld": False,
    }


def _estimate(value: Value, interval: Interval) -> Estimate:
    numbers = (value.value, *interval) if value.defined else (None, None, None)
    return {"value": numbers[0], "low": numbers[1], "high": numbers[2]}


def _number(measures: Mapping[str, Value], name: str) -> float | None:
    return measures[name].value if name in measures and measures[name].defined else None


def recalibrated(federation: Federation, kind: str) -> Recalibrated:
    """A function of the probabilities of the positive class that is fitted to validation rows, and what it does on test rows.

    Raises
    ------
    ValueError : another kind than ``"platt"`` and ``"isotonic"``, not two classes, or no validation or test rows.
    """
    positive = _positive(federation)
    tested = Rows.joined([*_tested(federation, positive).values()])
    return _recalibrated(kind, _validation(federation, positive)[1], tested, federation.least_group)


def _recalibrated(kind: str, rows: Rows, tested: Rows, least: int) -> Recalibrated:
    fit = Recalibration.fitted(kind, histogram(rows.scores, rows.positive))
    before, after = (
        calibration(scores, tested.positive) if len(tested) >= least else {}
        for scores in (tested.scores, fit(tested.scores))
    )
    return {
        "kind": fit.kind,
        "numbers": list(fit.numbers),
        "n": len(rows),
        "brier": _number(after, "brier"),
        "ece": _number(after, "ece"),
        "before": {"brier": _number(before, "brier"), "ece": _number(before, "ece")},
    }


def _text(estimate: Estimate) -> str:
    if estimate["value"] is None:
        return "of too few"
    return "{value:.3f} [{low:.3f}, {high:.3f}]".format(**estimate)
