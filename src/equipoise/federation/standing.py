"""How far a run is: for logs, for tables of runs, and as a bar on a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from importlib import import_module
from statistics import fmean
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from equipoise.core.rates import RateLike, at, rate
from equipoise.metrics.measures import ACCURACY, Measure, main_in
from equipoise.metrics.performance import tenth
from equipoise.records.record import Record, by_client, judged_by, number
from equipoise.system.terminal import Terminal
from equipoise.system.text import Said, visible

LAST = 10  # rounds whose mean time is that of those to come
TENTH = Said("worst tenth of the clients", "tenth")
EVERY = 60.0  # seconds between the lines of a log
AGO = "%Y-%m-%d %H:%M"
BAR = 20  # columns that the bar has at least
BESIDE = 12  # columns of the time that is left, and of the gaps


@dataclass(frozen=True)
class Standing:
    """How far a run is.

    Parameters
    ----------
    round, rounds : complete, and planned.
    mean, over : of the main measure, mean over the groups in their last evaluation, or over the clients where no group is tested, and
        which of them it is; None before one.
    worst, whose : that of the worst group, and which it is, or that of the worst tenth of ten or more clients in their last
        evaluation; None of fewer.
    when : the round of that evaluation where it is not the one of ``mean``.
    measure : what they are; accuracies in [0, 1].
    seconds : that a round takes, the mean of the last ones; None before the first.
    """

    round: int
    rounds: int
    mean: float | None = None
    over: str = ""
    worst: float | None = None
    whose: str = ""
    when: str = ""
    seconds: float | None = None
    measure: Measure = ACCURACY

    @classmethod
    def of(cls, records: Sequence[Record], rounds: int) -> Standing:
        """That after some records, or the last of them, see `equipoise.records.record.large`."""
        if not records:
            return cls(0, rounds)
        seconds = [record["seconds"] for record in records[-LAST:] if "seconds" in record]
        measure = judged_by(records) or ACCURACY
        now = cls(records[-1]["round"] + 1, rounds, seconds=fmean(seconds) if seconds else None)
        tested, groups = next(((r["round"], by) for r in reversed(records) if (by := _groups(r))), (-1, {}))
        asked, clients = next(((r["round"], each) for r in reversed(records) if (each := _clients(r))), (-1, []))
        if groups:
            over = next(iter(groups)) if len(groups) == 1 else f"mean of {len(groups)} groups"
            now = replace(now, mean=fmean(groups.values()), over=over, measure=measure)
        elif len(clients) > 1:
            now = replace(now, mean=fmean(clients), over=f"mean of {len(clients)} clients", measure=measure)
        if len(groups) > 1:
            whose = (min if measure.better == "higher" else max)(groups, key=lambda name: groups[name])
            return replace(now, worst=groups[whose], whose=whose)
        if len(clients) >= 10:
            ordered = sorted(clients, reverse=measure.better == "lower")
            when = "" if asked == tested or not groups else f"round {asked + 1}"
            return replace(now, worst=fmean(ordered[: tenth(len(clients))]), whose=TENTH, when=when)
        return now

    @property
    def worst_of(self) -> str:
        """Whose number the worst is, and when."""
        return ", ".join(filter(None, (self.whose, self.when)))

    def ends(self, since: float) -> datetime | None:
        """When the run ends, if the last round ended ``since`` (seconds since 1970) and the others take as long as the last ones."""
        left = self.rounds - self.round
        return None if self.seconds is None else datetime.fromtimestamp(since + self.seconds * left)

    def __str__(self) -> str:
        """``round 37 of 500, accuracy 81.2 (mean of 3 groups), worst 63.1 (north)``."""
        measure = self.measure
        mean = "" if self.mean is None else f", {measure.noun} {measure.brief(self.mean)} ({visible(self.over)})"
        worst = "" if self.worst is None else f", worst {measure.brief(self.worst)} ({visible(self.worst_of)})"
        return f"round {self.round} of {self.rounds}{mean}{worst}"


def _groups(record: Record) -> dict[str, float]:
    """The main measure of every group."""
    every = {name: number(scores.get(main_in(scores).name)) for name, scores in record.get("groups", {}).items()}
    return {name: a for name, a in every.items() if math.isfinite(a)}


def _clients(record: Record) -> list[float]:
    """The main measure of the clients that were tested."""
    clients = record.get("clients") or {}
    return [a for a in map(number, by_client(clients, main_in(clients))) if math.isfinite(a)]


def shown_rate(lr: RateLike, t: int, rounds: int) -> str:
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

    def say(
        self,
        name: str,
        standing: Standing | str,
        lr: str = "",
        since: float | None = None,
        all_end: datetime | None = None,
    ) -> None:
        """Write a line about a run whose last round ended ``since``, one of several that will ``all_end`` then."""
        rest = f", lr {lr}" if lr else ""
        if isinstance(standing, Standing) and standing.round < standing.rounds:
            moment = standing.ends(time.time() if since is None else since)
            rest += f", ends about {clock(moment)}" if moment else ""
        rest += f", all end about {clock(all_end)}" if all_end else ""
        text = f"{datetime.now():{AGO}} {name}: {standing}{rest}"
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


# on a terminal, or in a notebook
def progress_bar(wanted: bool) -> Progress:
    """A bar on standard error, if that is a terminal, or in the output of a notebook; its tasks have a field ``accuracy``."""
    console = Terminal(stderr=True)
    if wanted and console.is_jupyter:
        return _InNotebook(disable=True)  # rich's own needs ipywidgets there
    name, times = _Name(Column(no_wrap=True)), (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    columns = (name, *times, _Accuracies(console))
    return Progress(*columns, console=console, disable=not (wanted and console.is_terminal))


def accuracies(record: Record, digits: int = 0) -> list[str]:
    """The accuracy of a round, or another main measure, on each test set."""
    scores = {name: (main_in(score), score) for name, score in record.get("groups", {}).items()}
    return [f"{name} {main.brief(score[main.name], digits)}{main.unit}" for name, (main, score) in scores.items()]  # type: ignore[literal-required]


class _InNotebook(Progress):
    """The bar as HTML, in an output that is replaced by the next."""

    _output: Any = None  # IPython's, which has no types

    def update(self, *args: Any, **fields: Any) -> None:
        """Note how far a task is, and show it."""
        super().update(*args, **fields)
        shown = "<br>".join(
            f'<progress value="{task.completed:g}" max="{task.total:g}"></progress> '
            + escape(
                visible(f"{task.description} {task.completed:g}/{task.total:g} {' '.join(task.fields['accuracy'])}")
            )
            for task in self.tasks
        )
        display = import_module("IPython.display")
        if self._output is None:
            self._output = display.display(display.HTML(shown), display_id=True)
        else:
            self._output.update(display.HTML(shown))


class _Name(ProgressColumn):
    """What is done, shortened."""

    def render(self, task: Task) -> Text:
        text = Text(task.description, no_wrap=True)
        text.truncate(24, overflow="ellipsis")
        return text


class _Accuracies(ProgressColumn):
    """The accuracies that fit next to the bar."""

    def __init__(self, console: Terminal) -> None:
        super().__init__(Column(no_wrap=True))  # so that it is the bar that gives way
        self.console = console

    def render(self, task: Task) -> Text:
        room = self.console.width - BAR - BESIDE - min(24, len(task.description)) - 2 * len(str(task.total)) - 1
        shown = ""
        for accuracy in task.fields["accuracy"]:
            if len(shown) + 1 + len(accuracy) > room:
                break
            shown += f" {accuracy}" if shown else accuracy
        return Text(shown, no_wrap=True)
