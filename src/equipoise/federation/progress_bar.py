"""The progress bar of a training on a terminal."""

from collections.abc import Collection
from html import escape
from importlib import import_module
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from equipoise.metrics.groups import large
from equipoise.metrics.measures import main_in
from equipoise.records.record import Record
from equipoise.system.terminal import Terminal
from equipoise.system.text import visible

BAR = 20  # columns that the bar has at least
BESIDE = 12  # columns of the time that is left, and of the gaps


def progress_bar(wanted: bool) -> Progress:
    """A bar on standard error, if that is a terminal, or in the output of a notebook; its tasks have a field ``accuracy``."""
    console = Terminal(stderr=True)
    if wanted and console.is_jupyter:
        return _InNotebook(disable=True)  # rich's own needs ipywidgets there
    return Progress(
        _Name(Column(no_wrap=True)),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        _Accuracies(console),
        console=console,
        disable=not (wanted and console.is_terminal),
    )


def accuracies(record: Record, least: int = 1, simulated: Collection[str] = ()) -> list[str]:
    """The accuracy of a round, or another main measure, on each test set with so many people at least, or of a simulated client."""
    shown = {name: (main_in(score), score) for name, score in large(record, least, simulated).items()}
    return [f"{name} {main.brief(score[main.name], 0)}{main.unit}" for name, (main, score) in shown.items()]


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
