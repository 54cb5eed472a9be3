"""The progress bar of a training on a terminal."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from equipoise.federation.records import Record

SHOWN = 6  # test sets whose accuracy there is room for


def progress_bar(wanted: bool) -> Progress:
    """A bar on standard error, if that is a terminal; its tasks have a field ``accuracy``."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[accuracy]}"),
        console=console,
        disable=not (wanted and console.is_terminal),
    )


def accuracies(record: Record) -> str:
    """The accuracy of a round on the first test sets."""
    groups = list(record.get("groups", {}).items())[:SHOWN]
    return " ".join(f"{name} {100 * score['accuracy']:.0f}%" for name, score in groups)
