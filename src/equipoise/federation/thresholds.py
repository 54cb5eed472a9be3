"""What is made of a trained model: a threshold chosen on validation rows, with its rates by group on test rows, and a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.bundle.saving import Trained
from equipoise.core.outputs import Outputs
from equipoise.core.rule import State
from equipoise.core.task import Classification, Regression
from equipoise.data.samples import loaded
from equipoise.federation.evaluation import EvaluationSets, answers, published
from equipoise.federation.trial import Trial
from equipoise.metrics.calibration import Decision, Recalibration, auc, calibration, histogram, reliability, roc
from equipoise.metrics.classification import RATES
from equipoise.metrics.gaps import Group
from equipoise.metrics.groups import people_of
from equipoise.metrics.intervals import Interval
from equipoise.metrics.performance import Value
from equipoise.metrics.thresholds import Aim, choose
from equipoise.privacy.suppression import enough
from equipoise.records.history import History
from equipoise.records.meta import Meta
from equipoise.records.record import Record
from equipoise.records.threshold import FILE, USES_GROUP, ByGroup, Chosen, Estimate, RatesAt, Recalibrated, mark, masked
from equipoise.system.files import write_atomically
from equipoise.system.seals import sealed_json, typed
from equipoise.system.suggestions import some, unknown
from equipoise.system.tensor_files import as_bytes

if TYPE_CHECKING:
    from equipoise.federation.federation import Federation

MOST: Final = 50  # clients that are listed
CLIENT: Final = "client"
HALF: Final = Decision()  # for the more probable class
# probabilities of the positive class, and which samples are of it
Scores = tuple[NDArray[np.float64], NDArray[np.bool_]]
NO_ROWS = (
    "This federation holds out no rows for validation, and a threshold must not be chosen on training or test rows. Give each client rows "
    "to hold out, --validation 0.2 (Python: validation=0.2), or the server some, --set server_validation=0.1 (Python: server_validation)."
)


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
        decision = Decision.at(self.value, self.document["by_group"])
        if groups is None and (by := decision.attribute):
            raise ValueError(f"These thresholds are by {by}: give groups, the {by} of each sample.")
        codes = {name: code for code, name in enumerate(decision.groups)}
        return decision(probabilities, [codes.get(str(group), -1) for group in groups or ()] if codes else None)

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
    ValueError : an aim that is no such, not two classes, a method that decides itself, no validation or test rows, or a group without rows of
        both classes.
    """
    aim = Aim.of(sensitivity, specificity, cost, youden)
    trained = _Deciding.of(federation)
    if (by := federation.history.meta.get("decides")) is not None:
        raise ValueError(
            f"{federation.method} decides itself{f', by {by}' * bool(by)}, and its report and its bundle have these decisions: another threshold "
            "would undo them. Choose one for the run of a method that leaves the decision open, such as fedavg."
        )
    source, rows = trained.validation
    scores, cases = trained.scores(rows)
    try:
        value = choose(aim, scores, cases)
    except ValueError as error:
        raise ValueError(f"The validation rows: {error}") from None
    groups = None if by_group is False else trained.by_group(aim, by_group)
    every = trained.every
    person = None if every.person is None else every.person.cpu().numpy()
    record = next(each for each in federation.records if each["round"] == federation.chosen.t - 1)
    rates = partial(trained.rates, decision=Decision.at(value, groups))
    sha256 = hashlib.sha256(scores.tobytes() + cases.tobytes()).hexdigest()
    validation = {"all": rows}
    if groups is not None:
        by = groups["attribute"]
        validation |= {f"{by} {name}": part for name, part in trained.by(rows, by).items()}
    document: Chosen = {
        "positive": federation.classes[trained.positive],
        "threshold": value,
        "by_group": groups,
        "rule": str(aim),
        "aim": {"kind": aim.kind, "value": aim.value},
        "rows": {"source": source, "n": len(cases), "of_class": int(cases.sum()), "sha256": sha256},
        "validation": {name: rates(part) for name, part in validation.items()},
        "hash": hashlib.sha256(as_bytes(trained.vector)).hexdigest(),
        "round": record["round"],
        "record": mark(record),
        "least": 0,
        "everyone": rates(every),
        "divisions": [
            {"by": by, "groups": {name: rates(part) for name, part in parts.items()}}
            for by, parts in trained.divisions()
        ],
        "reliability": [
            {"edges": [low, high], "n": n, "score": score, **_estimate(Value(share, True), interval)}
            for low, high, n, score, share, interval in reliability(*trained.scores(every), person=person)
        ],
        "recalibration": None if recalibrate is None else trained.recalibrated(recalibrate),
        "notes": [*trained.notes(groups)],
    }
    return Threshold(masked(document, federation.least_group))


def recalibrated(federation: Federation, kind: str) -> Recalibrated:
    """A function of the probabilities of the positive class that is fitted to validation rows, and what it does on test rows.

    Raises
    ------
    ValueError : another kind than ``"platt"`` and ``"isotonic"``, not two classes, or no validation or test rows.
    """
    return _Deciding.of(federation).recalibrated(kind)


@dataclass(frozen=True)
class _Deciding:
    """A trained federation with two classes, the number of the ``positive`` one, and the values of its global model."""

    federation: Federation
    positive: int
    vector: Tensor

    @classmethod
    def of(cls, federation: Federation) -> Self:
        """The federation, if its global model decides between two classes."""
        if not isinstance(federation.model.task, Classification) or len(federation.classes) != 2:
            classes = f"{len(federation.classes)} classes" if federation.classes else "numbers to predict"
            raise ValueError(f"A threshold decides between two classes, and this federation has {classes}.")
        if not federation.method.sharing.global_model:
            raise ValueError(
                f"{federation.method} has no global model, for which a threshold could be chosen: every client has its own."
            )
        if not federation.progress.t:
            raise ValueError("The model has not been trained: call fit first.")
        assert federation.positive is not None  # of two classes one is
        return cls(federation, federation.positive.number, published(federation.trial, federation.chosen))

    def outputs(self, sets: Iterable[Any]) -> Outputs:
        """The outputs of the global model for the samples of several sets."""
        return Outputs.joined(answers(self.federation.trial, self.vector, [loaded(data) for data in sets], ()))

    def scores(self, outputs: Outputs) -> Scores:
        """The probabilities of the positive class [n], and which samples are of it [n]."""
        p, y, _ = outputs.given
        return p[:, self.positive], y == self.positive

    def by(self, outputs: Outputs, attribute: str) -> dict[str, Outputs]:
        """The outputs for the samples with each value of an attribute."""
        attributes = self.federation.attributes
        codes = outputs.codes([*attributes].index(attribute))
        return {value: outputs.take(codes == k) for k, value in enumerate(attributes[attribute])}

    @cached_property
    def validation(self) -> tuple[str, Outputs]:
        """Whose validation rows there are, and the outputs for them."""
        if self.federation.held is not None:
            return "clients", self.outputs(d for d in self.federation.held.sets if d is not None)
        if (data := self.federation.inputs.server_validation) is not None:
            return "server", self.outputs([data])
        raise ValueError(NO_ROWS)

    @cached_property
    def tested(self) -> dict[str, Outputs]:
        """The outputs for every test set."""
        if not self.federation.tests.sets:
            raise ValueError("This federation has no test rows, on which a threshold could be measured: give tests.")
        return {name: self.outputs([data]) for name, data in self.federation.tests.sets.items()}

    @cached_property
    def every(self) -> Outputs:
        """The outputs for all test sets."""
        return Outputs.joined([*self.tested.values()])

    def by_group(self, aim: Aim, by_group: bool | str) -> ByGroup:
        """The threshold of each value of an attribute."""
        attributes = self.federation.attributes
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
        parts = {value: self.scores(part) for value, part in self.by(self.validation[1], name).items()}
        poor = [f"{value} {y.sum()} and {(~y).sum()}" for value, (_, y) in parts.items() if len(set(y.tolist())) < 2]
        if poor:
            raise ValueError(
                f"--by-group: a threshold needs validation rows of both classes in every group, and of {name} these have so many of class "
                f"{self.federation.classes[self.positive]} and others: {some(poor, 10)}. Hold out more rows, or choose one threshold for all."
            )
        return {"attribute": name, "thresholds": {value: choose(aim, *part) for value, part in parts.items()}}

    def divisions(self) -> list[tuple[str, dict[str, Outputs]]]:
        """The divisions of test samples: by attribute, by test set unless an attribute is that, and by client."""
        attributes, names, tested = self.federation.attributes, self.federation.names, self.tested
        divisions = [
            (name, self.by(self.every, name))
            for k, name in enumerate(attributes)
            if bool((self.every.codes(k) >= 0).any())
        ]
        if len(tested) > 1 and not any({*tested} <= {*values} for values in attributes.values()):
            divisions.append((CLIENT if {*tested} <= {*names} else "test set", tested))
        own = self.federation.tests.of_clients
        if own is not None and len(names) <= MOST and not any(by == CLIENT for by, _ in divisions):
            mine = {n: self.outputs([d]) for n, d in zip(names, own, strict=True) if d is not None}
            divisions.append((CLIENT, mine))
        return divisions

    def rates(self, outputs: Outputs, decision: Decision) -> RatesAt:
        """How some samples are treated, however few they are."""
        names, c = [*self.federation.attributes], self.positive
        scores, cases = self.scores(outputs)
        codes = outputs.codes(names.index(decision.attribute)).unique().tolist() if decision.attribute else [-1]
        edges = {decision.edges[k] for k in codes}  # the last one where it is not known, -1
        group = Group.of(outputs.decided(decision, c, names).counts)
        n, of_class, others = (int(group.people[key][c]) for key in ("accuracy", "tpr", "fpr"))
        measures = calibration(scores, cases)
        return {
            "n": n,
            "of_class": of_class,
            "threshold": edges.pop() if len(edges) == 1 and n else None,
            "sensitivity": _estimate(group.rates.of("tpr", c), group.interval("tpr", c)),
            "specificity": _estimate(group.rates.of("tpr", 1 - c), group.interval("tpr", 1 - c)),
            "selection_rate": _estimate(group.rates.of("selection_rate", c), group.interval("selection_rate", c)),
            "auc": _estimate(*auc(scores, cases, (of_class, others))),
            "roc": roc(scores, cases).tolist() if of_class and others else None,
            "brier": measures["brier"],
            "ece": measures["ece"],
            "withheld": False,
        }

    def recalibrated(self, kind: str) -> Recalibrated:
        """A function of the probabilities that is fitted to validation rows, and what it does on test rows."""
        (scores, cases), of_validation = self.scores(self.every), self.scores(self.validation[1])
        fit = Recalibration.fitted(kind, histogram(*of_validation))
        many = enough(people_of(self.every.counts)["accuracy"][0], self.federation.least_group)
        before, after = (calibration(p, cases) if many else {} for p in (scores, fit(scores)))
        return {
            "kind": fit.kind,
            "numbers": list(fit.numbers),
            "n": len(of_validation[0]),
            "brier": after.get("brier"),
            "ece": after.get("ece"),
            "before": {"brier": before.get("brier"), "ece": before.get("ece")},
        }

    def notes(self, groups: ByGroup | None) -> Iterator[str]:
        """What to know about the choice: that it uses the group, and on how few rows it was made."""
        federation, rows = self.federation, self.validation[1]
        if federation.personal:
            yield "Clients predict with models of their own: this threshold, and its rates, are of the global model."
        yield from federation.repeated
        parts = {"": rows}
        if groups is not None:
            yield USES_GROUP.format(groups["attribute"])
            parts = {f" for {value}": part for value, part in self.by(rows, groups["attribute"]).items()}
        counts = {name: people_of(part.counts)["tpr"][self.positive] for name, part in parts.items()}
        if few := [name for name, n in counts.items() if not enough(n, federation.least_group)]:
            yield (
                f"Chosen on fewer than {federation.least_group} validation rows of class {federation.classes[self.positive]}"
                f"{' and'.join(few)}: other rows would give another threshold."
            )


def _estimate(value: Value, interval: Interval) -> Estimate:
    number, low, high = (value.value, *interval) if value.defined else (None, None, None)
    return {"value": number, "low": low, "high": high}


def _text(estimate: Estimate) -> str:
    if estimate["value"] is None:
        return "of too few"
    return "{value:.3f} [{low:.3f}, {high:.3f}]".format(**estimate)


# the bundle of a trained model
def measure_bundle(trial: Trial, tests: EvaluationSets, server: Sequence[State], t: int, draft: Trained) -> Trained:
    """The bundle of a model after ``t`` rounds, with its scores on test sets by the decisions that the bundle makes.

    Parameters
    ----------
    server : the states of the server by which rules decide.
    draft : all but these decisions and the record; its history has no record yet.

    Raises
    ------
    ValueError : the method decides by chance, or by several attributes together.
    """
    record: Record = {"round": t - 1}
    history, chosen = draft.history, draft.chosen
    by_group = chosen and chosen["by_group"]
    decision = Decision.at(draft.threshold, by_group) if by_group or draft.threshold != 0.5 else HALF
    if chosen is None and decision == HALF:
        decision = decision_of(trial, server, history.attributes) or HALF
    decision = replace(decision, calibration=draft.recalibration and typed(Recalibration, draft.recalibration))
    meta: Meta = {**history.meta, "select": "last"}
    if tests.sets:
        rates = () if isinstance(trial.model.task, Regression) else (RATES,)
        measures = tuple(dict.fromkeys((*tests.measures, *rates)))
        sets, positive = replace(tests, measures=measures), history.positive
        answered = sets.answered(trial, draft.vector, ())
        if decision != HALF and positive is not None and len(history.classes) == 2:
            answered = {
                name: outputs.decided(decision, positive.number, history.attributes)
                for name, outputs in answered.items()
            }
        record = {**sets.record_global(trial, answered, t, t), **record}
        meta["measures"] = list(measures)
    return replace(draft, history=History((record,), meta), decision=None if decision == HALF else decision)


def decision_of(trial: Trial, server: Sequence[State], attributes: Mapping[str, Sequence[str]]) -> Decision | None:
    """How the rules of a method decide, if it is not for the most probable class: by an edge for each value of one attribute."""
    for k in trial.method.overriding("decide"):
        made = trial.method.rules[k].edges(server[k])
        name = (made[0] or next(iter(attributes), "")) if made else ""
        if made is None or len(attributes.get(name, ())) != len(made[1]):
            raise ValueError(
                f"{trial.method} decides by chance, or by values of attributes that have no names here, which a bundle does not. Name the groups, "
                "take a form of the method without chance, or replace its decisions, in Python save_bundle(..., threshold=0.4)."
            )
        return Decision(name, tuple(attributes[name]), (*made[1].tolist(), 0.5))
    return None
