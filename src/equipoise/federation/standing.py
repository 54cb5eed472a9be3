"""How far a run is, for logs and for tables of runs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any

from equipoise.core.rates import at, rate
from equipoise.metrics.groups import large
from equipoise.system.terminal import Terminal
from equipoise.system.text import visible

LAST = 10  # rounds whose mean time is that of those to come
TENTH = "worst tenth of the clients"
EVERY = 60.0  # seconds between the lines of a log
AGO = "%Y-%m-%d %H:%M"


Accuracies = tuple[float | None, float | None, str]  # the mean, the worst, whose that is


@dataclass(frozen=True)
class Standing:
    """How far a run is.

    Parameters
    ----------
    round, rounds : complete, and planned.
    accuracy : in [0, 1], mean over the groups in the last evaluation, or over the clients where there is one group; None before one.
    worst, whose : the lowest accuracy of a group, and which it is, or that of the worst tenth of ten or more clients; None of fewer.
    seconds : that a round takes, the mean of the last ones; None before the first.
    """

    round: int
    rounds: int
    accuracy: float | None = None
    worst: float | None = None
    whose: str = ""
    seconds: float | None = None

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], rounds: int, least: int = 1) -> Standing:
        """That after some records, or the last of them; of groups with so many test samples at ``least``."""
        if not records:
            return cls(0, rounds)
        seconds = [record["seconds"] for record in records[-LAST:] if "seconds" in record]
        none: Accuracies = (None, None, "")
        accuracy, worst, whose = next((of for r in reversed(records) if (of := _accuracies(r, least))), none)
        round_time = fmean(seconds) if seconds else None
        return cls(records[-1]["round"] + 1, rounds, accuracy, worst, whose, round_time)

    def ends(self, since: float) -> datetime | None:
        """When the run ends, if the last round ended ``since`` (seconds since 1970) and the others take as long as the last ones."""
        return (
            None if self.seconds is None else datetime.fromtimestamp(since + self.seconds * (self.rounds - self.round))
        )

    def __str__(self) -> str:
        """``round 37 of 500, accuracy 81.2, worst 63.1 (north)``."""
        accuracy = "" if self.accuracy is None else f", accuracy {100 * self.accuracy:.1f}"
        worst = "" if self.worst is None else f", worst {100 * self.worst:.1f} ({visible(self.whose)})"
        return f"round {self.round} of {self.rounds}{accuracy}{worst}"


def _accuracies(record: Mapping[str, Any], least: int) -> Accuracies | None:
    """Mean accuracy, the worst one and whose it is, of a record; by group, or by client where there is one group."""
    every = {name: of["accuracy"] for name, of in large(record, least).items()}
    groups = {name: a for name, a in every.items() if a is not None and math.isfinite(a)}
    if len(groups) > 1:
        whose = min(groups, key=lambda name: groups[name])
        return fmean(groups.values()), groups[whose], whose
    clients = record.get("clients") or {}
    values = clients.get("accuracy") or ()
    sizes = clients.get("n") or [least] * len(values)
    each = sorted(a for a, n in zip(values, sizes, strict=True) if n >= least and a is not None and math.isfinite(a))
    if len(each) > 1:
        return fmean(each), *((fmean(each[: len(each) // 10]), TENTH) if len(each) >= 10 else (None, ""))
    return (fmean(groups.values()), None, "") if groups else None


def shown_rate(lr: Any, t: int, rounds: int) -> str:
    """The learning rate of round ``t`` for people."""
    now = at(rate(lr), min(t, rounds - 1), rounds)
    return f"{now:.3g}" if isinstance(now, float | int) else str(now)


def clock(moment: datetime) -> str:
    """A time of day, with its date unless that is today's."""
    return f"{moment:%H:%M}" if moment.date() == datetime.now().date() else f"{moment:{AGO}}"


class ProgressLog:
    """Lines on standard error about a run where there is no terminal for a bar: after its first round, and then about one a minute.

    Parameters
    ----------
    wanted : whether there are lines at all.
    """

    def __init__(self, wanted: bool) -> None:
        self.console = Terminal(stderr=True)
        self.wanted = wanted and not self.console.is_terminal and not self.console.is_jupyter
        self.lines: dict[str, tuple[float, float]] = {}  # when the first and the last line about each run were written

    def due(self, name: str, *, ends: bool = False) -> bool:
        """Whether a line about a run is due: its first, one after a minute, and at its end one if it took so long."""
        now = time.monotonic()
        first, last = self.lines.get(name, (now, -math.inf))
        if not self.wanted or now - (first if ends else last) < EVERY:
            return False
        self.lines[name] = first, now
        return True

    def say(self, name: str, standing: Standing | str, lr: str = "", since: float | None = None) -> None:
        """Write a line about a run whose last round ended ``since``."""
        rest = f", lr {lr}" if lr else ""
        if isinstance(standing, Standing) and standing.round < standing.rounds:
            moment = standing.ends(time.time() if since is None else since)
            rest += f", ends about {clock(moment)}" if moment else ""
        text = f"{datetime.now():{AGO}} {name}: {standing}{rest}"
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)
