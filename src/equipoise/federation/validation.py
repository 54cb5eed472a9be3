"""How models do on what clients hold out of their own training samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from equipoise.core import task
from equipoise.data.samples import Absent, Samples, Stream, loaded, stack
from equipoise.federation.evaluation import answers, costly, deployable, personal, published
from equipoise.federation.trial import Progression, Trial
from equipoise.records.record import Record

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
        """The clients whose samples are in memory and of one kind, and all of these as one data set."""
        here = {m: d for m, d in enumerate(self.sets) if isinstance(d, Samples)}
        here = {m: d for m, d in here.items() if d.kind == next(iter(here.values())).kind}
        if not here:
            return [], None
        whole = stack(list(here.values()))
        return list(here), replace(whole, sizes=whole.sizes.sum(), first=None, longest=None)

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
        return pooled(
            [
                None if d is None else measured(trial, deployable(trial, p, m), d, self._name(trial, m))
                for m, d in enumerate(self.sets)
            ],
            self.groups,
        )

    @staticmethod
    def _name(trial: Trial, m: int) -> str:
        return trial.names[m] if m < len(trial.names) else f"client {m}"

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
            if d is not None and m not in here:
                found[m] = measured(trial, vector, d, self._name(trial, m))
        return found


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
