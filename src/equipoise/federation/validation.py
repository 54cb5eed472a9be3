"""How models do on what clients hold out of their own training samples."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

from torch import Tensor

from equipoise.core.outputs import Outputs
from equipoise.core.rule import State
from equipoise.core.tally import Tally, together
from equipoise.core.task import Task
from equipoise.data.samples import Absent, Samples, joined, loaded
from equipoise.federation.evaluation import answers, costly, deciding, deployable, personal, published
from equipoise.federation.trial import Progression, Trial
from equipoise.metrics.classification import RATES
from equipoise.metrics.failure import of_use
from equipoise.records.record import Record, Validation

log = logging.getLogger(__name__)

EVERYBODY = "all"  # what the clients are called together where they belong to no groups

Held = Samples | Absent | None
Found = Tally | None  # None: not measured


@dataclass(frozen=True)
class HeldOut:
    """The samples that each client holds out, None where it has too few, and the group it belongs to."""

    sets: tuple[Held, ...]
    groups: tuple[str, ...] | None

    @cached_property
    def _together(self) -> tuple[list[int], Samples | None]:
        """The clients whose samples are in memory and of one kind, and all of these as one data set."""
        here = {m: d for m, d in enumerate(self.sets) if isinstance(d, Samples)}
        kinds = {m: d.content.kind for m, d in here.items() if d.content is not None}
        alike = [m for m, kind in kinds.items() if kind == next(iter(kinds.values()))]
        return alike, joined([here[m] for m in alike]) if alike else None

    def header(self, names: Sequence[str], share: float) -> list[str]:
        """A line about what is held out, and who holds out nothing."""
        lacking = [name for name, d in zip(names, self.sets, strict=True) if d is None]
        held = sum(d.size for d in self.sets if d is not None)
        people = any(d is not None and d.persons < d.size for d in self.sets)
        source = "the people in its training samples" if people else "its own training samples"
        line = f"validation: each client holds out {100 * share:g} % of {source}, {held} samples in all"
        if lacking:
            more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
            line += f"; too few to hold one out, so no validation of {', '.join(lacking[:3])}{more}"
        return [line]

    def record(self, trial: Trial, p: Progression, rounds: int, measures: Sequence[str] = ()) -> Record:
        """How the model with which each client predicts does on what it held out; personal models in rounds of costly evaluations.

        ``measures`` are recorded by group, as far as they follow from sums; sums by sensitive attribute in rounds of costly evaluations.
        """
        if not personal(trial, p):
            tallies, answered = self._shared(trial, published(trial, p), p.server)
        elif costly(p.t, rounds):
            each = [
                None
                if d is None
                else measured(trial, deployable(trial, p, m), d, self._name(trial, m), deciding(trial, p, m))
                for m, d in enumerate(self.sets)
            ]
            tallies = [None if outputs is None else outputs.tally for outputs in each]
            answered = [*filter(None, each)]
        else:
            return {}
        record = pooled(trial.model.task, tallies, self.groups, measures)
        if record and costly(p.t, rounds):
            if people := Outputs.joined(answered).people(joined=False):
                record["validation"]["by"] = people
            wanted = (RATES,) if RATES in measures else (trial.model.task.main,)
            cast(dict[str, Any], record["validation"]).update(of_use([outputs.score(wanted) for outputs in answered]))
        return record

    @staticmethod
    def _name(trial: Trial, m: int) -> str:
        return trial.names[m] if m < len(trial.names) else f"client {m}"

    def _shared(self, trial: Trial, vector: Tensor, server: Sequence[State]) -> tuple[list[Found], list[Outputs]]:
        """Of one model [G], for all clients: those in memory in one pass, the others one after another; and all its outputs."""
        tallies: list[Found] = [None] * len(self.sets)
        answered: list[Outputs] = []
        here, data = self._together
        if data is not None:
            [outputs] = answers(trial, vector, [data], server)
            answered.append(outputs)
            sizes = [d.size for m in here if (d := self.sets[m]) is not None]
            for m, n, end in zip(here, sizes, accumulate(sizes), strict=True):
                tallies[m] = outputs.take(slice(end - n, end)).tally
        for m, d in enumerate(self.sets):
            if d is not None and m not in here:
                outputs_of_client = measured(trial, vector, d, self._name(trial, m), server)
                if outputs_of_client is not None:
                    tallies[m] = outputs_of_client.tally
                    answered.append(outputs_of_client)
        return tallies, answered


def measured(trial: Trial, vector: Tensor, data: Samples | Absent, who: str, server: Sequence[State]) -> Outputs | None:
    """The outputs of a whole vector [G] for one client's samples; None, with a warning, if they cannot be read."""
    try:
        outputs = answers(trial, vector, [loaded(data)], server)[0]
        _ = outputs.tally  # or what a user's task raises
        return outputs
    except Exception as error:  # whatever a user's data set raises concerns this client only
        if data.content is not None:
            raise
        log.warning("%s is not validated: its data cannot be read: %s: %s", who, type(error).__name__, error)
        return None


def pooled(
    task: Task, tallies_of_clients: Sequence[Found], groups: Sequence[str] | None, measures: Sequence[str] = ()
) -> Record:
    """The entry of a record: over all samples that are held out, by group, with more ``measures``, and by client."""
    groups = [EVERYBODY] * len(tallies_of_clients) if groups is None else groups
    members: dict[str, list[Found]] = {}
    for group, tally in zip(groups, tallies_of_clients, strict=True):
        members.setdefault(group, []).append(tally)
    by_group = {group: together(tallies) for group, several in members.items() if (tallies := [*filter(None, several)])}
    if not by_group:
        return {}
    clients = {
        task.main: [None if tally is None else tally.main for tally in tallies_of_clients],
        "loss": [None if tally is None else float(tally.mean_loss) for tally in tallies_of_clients],
    }
    groups_of = {group: tally.score(measures) for group, tally in by_group.items()}
    every = together(filter(None, tallies_of_clients)).score()
    return {"validation": cast(Validation, {**every, "groups": groups_of, "clients": clients})}
