"""The progress bar of a training on a terminal."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from equipoise.federation.records import Record
from equipoise.system.terminal import Terminal

BAR = 20  # columns that the bar has at least
BESIDE = 12  # columns of the time that is left, and of the gaps


def progress_bar(wanted: bool) -> Progress:
    """A bar on standard error, if that is a terminal; its tasks have a field ``accuracy``."""
    console = Terminal(stderr=True)
    return Progress(
        _Name(Column(no_wrap=True)),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        _Accuracies(console),
        console=console,
        disable=not (wanted and console.is_terminal),
    )


def accuracies(record: Record) -> list[str]:
    """The accuracy of a round on each test set."""
    return [f"{name} {100 * score['accuracy']:.0f}%" for name, score in record.get("groups", {}).items()]


class _Name(ProgressColumn):
    """What is done, shortened."""

    def render(self, task: Task) -> Text:
        text = Text(task.description, no_wrap=True)
        text.truncate(24, overflow="ellipsis")
        return text


class _Accuracies(ProgressColumn):
    """As many accuracies as there is room for beside the bar."""

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
