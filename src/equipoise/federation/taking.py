"""What a bundle is made of: a model of a federation, or of a site, with what it does on test sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from equipoise.bundle.saving import Trained
from equipoise.core.task import Regression
from equipoise.data.samples import Samples
from equipoise.federation.evaluation import EvaluationSets
from equipoise.federation.trial import Trial
from equipoise.metrics.classification import RATES
from equipoise.metrics.groups import Positive
from equipoise.records.history import History
from equipoise.records.meta import Meta
from equipoise.records.record import Record


def trained(
    trial: Trial,
    vector: Tensor,
    t: int,
    tests: EvaluationSets,
    meta: Meta,
    *,
    samples: Samples,
    positive: Positive | None,
    client: str,
    data: Mapping[str, Any],
) -> Trained:
    """The model with the values ``vector`` [G] after ``t`` rounds, measured on test sets.

    Parameters
    ----------
    meta : what the run was; its ``classes`` are those of the bundle.
    samples, positive, client, data : as of :class:`equipoise.bundle.saving.Trained`.
    """
    about: Meta = {**meta, "select": "last"}
    record: Record = {"round": t - 1}
    regression = isinstance(trial.model.task, Regression)
    if tests.sets:
        measures = tuple(dict.fromkeys((*tests.measures, *(() if regression else (RATES,)))))
        sets = replace(tests, measures=measures)
        record = {**sets.of_global(trial, sets.answered(trial, vector, ()), t, t), **record}
        about["measures"] = list(measures)
    classes = () if regression else meta["classes"]
    return Trained(trial.model, vector, samples, History((record,), about), classes, positive, client, data)
