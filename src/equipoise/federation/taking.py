"""What a bundle is made of: a model of a federation, or of a site, with what it does on test sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from equipoise.bundle.saving import Trained
from equipoise.core.rule import State
from equipoise.core.task import Regression
from equipoise.data.samples import Samples
from equipoise.federation.evaluation import EvaluationSets
from equipoise.federation.trial import Trial
from equipoise.metrics.calibration import Decision, Recalibration
from equipoise.metrics.classification import RATES
from equipoise.records.history import History
from equipoise.records.meta import Meta
from equipoise.records.record import Record
from equipoise.records.threshold import Chosen, Recalibrated
from equipoise.system.seals import typed

HALF = Decision()  # for the more probable class


def trained(
    trial: Trial,
    vector: Tensor,
    t: int,
    tests: EvaluationSets,
    meta: Meta,
    *,
    samples: Samples,
    client: str,
    data: Mapping[str, Any],
    server: Sequence[State],
    threshold: float = 0.5,
    chosen: Chosen | None = None,
    recalibration: Recalibrated | None = None,
) -> Trained:
    """The model with the values ``vector`` [G] after ``t`` rounds, measured on test sets by the decisions that the bundle makes.

    Parameters
    ----------
    meta : what the run was; its ``classes`` are those of the bundle.
    samples, client, data, threshold, chosen, recalibration : as of :class:`equipoise.bundle.saving.Trained`.
    server : the states of the server by which rules decide.

    Raises
    ------
    ValueError : the method decides by chance, or by several attributes together.
    """
    about: Meta = {**meta, "select": "last"}
    record: Record = {"round": t - 1}
    history = History((), about)
    by_group = chosen and chosen["by_group"]
    decision = Decision.at(threshold, by_group) if by_group or threshold != 0.5 else HALF
    if chosen is None and decision == HALF:
        decision = decision_of(trial, server, history.attributes) or HALF
    decision = replace(decision, calibration=recalibration and typed(Recalibration, recalibration))
    if tests.sets:
        rates = () if isinstance(trial.model.task, Regression) else (RATES,)
        measures = tuple(dict.fromkeys((*tests.measures, *rates)))
        sets, positive = replace(tests, measures=measures), history.positive
        answered = sets.answered(trial, vector, ())
        if decision != HALF and positive is not None and len(history.classes) == 2:
            answered = {
                name: outputs.decided(decision, positive.number, history.attributes)
                for name, outputs in answered.items()
            }
        record = {**sets.of_global(trial, answered, t, t), **record}
        about["measures"] = list(measures)
    made = History((record,), about)
    decides = None if decision == HALF else decision
    return Trained(trial.model, vector, samples, made, client, data, decides, threshold, chosen, recalibration)


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
