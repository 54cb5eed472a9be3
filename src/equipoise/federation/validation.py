"""What clients hold out of their own training samples: how the models do on it, which model is best, and when to stop.

No function here is given test data.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.core import task
from equipoise.data.samples import Absent, Samples, Stream, loaded
from equipoise.federation.evaluation import answers, costly, deployable, personal, published
from equipoise.federation.records import Record, number
from equipoise.federation.trial import Progression, Trial
from equipoise.system.ranges import check_fields, choice
from equipoise.system.ranges import number as number_field

log = logging.getLogger(__name__)

EVERYBODY = "all"  # what the clients are called together where they belong to no groups

Held = Samples | Stream | Absent | None
Found = tuple[int, float, int] | None  # right predictions, mean loss, samples; None: not measured


@dataclass(frozen=True)
class HeldOut:
    """The samples that each client holds out, None where it has too few, and the group it belongs to."""

    sets: tuple[Held, ...]
    groups: tuple[str, ...] | None

    @cached_property
    def _together(self) -> tuple[list[int], Samples | None]:
        """The clients whose samples are in memory, and all of these as one data set."""
        here = {m: d for m, d in enumerate(self.sets) if isinstance(d, Samples)}
        if not here:
            return [], None
        first = next(iter(here.values()))
        x, y = torch.cat([d.x for d in here.values()]), torch.cat([d.y for d in here.values()])
        return list(here), Samples(x, y, torch.tensor(len(y), device=y.device), first.dtype, first.transform)

    def header(self, names: Sequence[str], share: float) -> list[str]:
        """A line about what is held out, and who holds out nothing."""
        lacking = [name for name, d in zip(names, self.sets, strict=True) if d is None]
        held = sum(d.size for d in self.sets if d is not None)
        line = f"validation: each client holds out {100 * share:g} % of its own training samples, {held} in all"
        if lacking:
            more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
            line += f"; too few to hold one out, so no validation of {', '.join(lacking[:3])}{more}"
        return [line]

    def record(self, trial: Trial, p: Progression, rounds: int) -> Record:
        """How the model with which each client predicts does on what it held out; personal models in rounds of costly evaluations."""
        if not personal(trial, p):
            return pooled(self._shared(trial, published(trial, p)), self.groups)
        if not costly(p.t, rounds):
            return {}
        return pooled([self._personal(trial, p, m) for m in range(len(self.sets))], self.groups)

    def _shared(self, trial: Trial, vector: Tensor) -> list[Found]:
        """Of one model [G], for all clients: those in memory in one pass, the others one after another."""
        found: list[Found] = [None] * len(self.sets)
        here, data = self._together
        if data is not None:
            ((logits, y),) = answers(trial, vector, [data])
            sizes = [d.size for m in here if (d := self.sets[m]) is not None]
            for m, of, labels in zip(here, logits.split(sizes), y.split(sizes), strict=True):
                found[m] = _counted(of, labels)
        for m, d in enumerate(self.sets):
            if d is not None and not isinstance(d, Samples):
                found[m] = measured(trial, vector, d, trial.names[m])
        return found

    def _personal(self, trial: Trial, p: Progression, m: int) -> Found:
        data = self.sets[m]
        return None if data is None else measured(trial, deployable(trial, p, m), data, trial.names[m])


def measured(trial: Trial, vector: Tensor, data: Samples | Stream | Absent, who: str) -> Found:
    """How a whole vector [G] does on one client's samples; None, with a warning, if they cannot be read."""
    try:
        ((logits, y),) = answers(trial, vector, [loaded(data)])
    except Exception as error:  # whatever a user's data set raises concerns this client only
        if isinstance(data, Samples):
            raise
        log.warning("%s is not validated: its data cannot be read: %s: %s", who, type(error).__name__, error)
        return None
    return _counted(logits, y)


def _counted(logits: Tensor, y: Tensor) -> Found:
    return int(task.correct(logits, y).sum()), float(task.losses(logits, y).double().mean()), len(y)


def pooled(found: Sequence[Found], groups: Sequence[str] | None) -> Record:
    """The entry of a record: over all samples that are held out, by group and by client."""
    groups = [EVERYBODY] * len(found) if groups is None else groups
    of: dict[str, list[Found]] = {}
    for group, one in zip(groups, found, strict=True):
        of.setdefault(group, []).append(one)
    every = _mean(found)
    if every is None:
        return {}
    clients = {
        "accuracy": [None if one is None else one[0] / one[2] for one in found],
        "loss": [None if one is None else one[1] for one in found],
    }
    by_group = {group: score for group, several in of.items() if (score := _mean(several))}
    return {"validation": {**every, "groups": by_group, "clients": clients}}


def _mean(found: Iterable[Found]) -> dict[str, Any] | None:
    known = [one for one in found if one is not None]
    n = sum(size for _, _, size in known)
    if not n:
        return None
    loss = sum(loss * size for _, loss, size in known) / n
    return {"accuracy": sum(right for right, _, _ in known) / n, "loss": loss, "n": n}


def value(record: Record, measure: str) -> float | None:
    """A measure of a round on what clients hold out, the higher the better; None where it was not measured."""
    if not (found := record.get("validation")):
        return None
    if measure == "worst":
        return min(number(of["accuracy"]) for of in found["groups"].values())
    of = number(found[measure])
    of = -of if measure == "loss" else of
    return of if math.isfinite(of) else -math.inf


def selected(records: Iterable[Record]) -> int | None:
    """The round with the best accuracy on what clients hold out; of equal ones the lower loss, then the earlier round."""
    best: tuple[float, float] | None = None
    found = None
    for record in records:
        accuracy, loss = value(record, "accuracy"), value(record, "loss")
        if accuracy is not None and loss is not None and (best is None or (accuracy, loss) > best):
            best, found = (accuracy, loss), int(record["round"])
    return found


@dataclass(frozen=True)
class EarlyStopping:
    """Stop where validation has not improved for ``patience`` rounds: ``fit(100, stop=EarlyStopping(10))``.

    A pure function of the records, so that a resumed run stops in the same round. Prechelt: Early Stopping - But When?, 1998.

    Parameters
    ----------
    patience : rounds without an improvement, >= 1.
    measure : "accuracy" or "loss", over all samples that clients hold out, or "worst", the accuracy of the worst group (of all
        clients together where they belong to no groups).
    on : "validation"; results on test data would no longer hold for new data if training had looked at them.
    min_delta : what counts as an improvement, >= 0: accuracies in [0, 1], losses in nats.

    Raises
    ------
    ValueError : naming the parameter, what was expected and what was found.
    """

    patience: int = number_field(10, 1)
    measure: str = choice("accuracy", "loss", "worst")
    on: str = "validation"
    min_delta: float = number_field(0.0, 0, below=True)

    def __post_init__(self) -> None:
        check_fields(self, "EarlyStopping: ")
        if self.on != "validation":
            why = "a model that is chosen by test data looks better on them than on new data" if self.on == "test" else ""
            raise ValueError(
                f"EarlyStopping: on must be 'validation', what clients hold out of their own samples; found {self.on!r}"
                f"{why and ': '}{why}."
            )

    def __call__(self, records: Sequence[Record]) -> str:
        """Why to stop after these rounds; empty to go on.

        Raises
        ------
        ValueError : nothing was held out.
        """
        best, at = -math.inf, None
        for record in records:
            of = value(record, self.measure)
            if of is not None and (at is None or of > best + self.min_delta):
                best, at = of, int(record["round"])
        if at is None:
            if records:
                raise ValueError("EarlyStopping needs validation, and no client holds samples out. Give validation=0.2.")
            return ""
        if int(records[-1]["round"]) - at < self.patience:
            return ""
        what = {"accuracy": "accuracy", "loss": "loss", "worst": "accuracy of the worst group"}[self.measure]
        better = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"the validation {what} has not improved{better} for {self.patience} round{'s' * (self.patience > 1)}"
