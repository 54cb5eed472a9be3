"""What every command prints with: standard output, standard error, tables, progress bars, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from equipoise.system.terminal import Terminal

if TYPE_CHECKING:
    from rich.progress import Progress

out = Terminal()
err = Terminal(stderr=True)


def say(text: str) -> None:
    """Print a line as it is, whatever brackets are in it."""
    out.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Print a note on the standard error stream, as it is."""
    err.print(f"note: {text}", soft_wrap=True, highlight=False, markup=False, emoji=False)


def print_json(document: object) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=1))  # noqa: T201


def plain_table(
    *columns: str, right: Collection[str] = (), fold: Collection[str] = (), whole: Collection[str] = ()
) -> Table:
    """An empty table without lines: numbers are to the ``right``, long texts ``fold``, and names stay ``whole``."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in whole)
        table.columns[-1].overflow = "fold" if name in fold else "ellipsis"
    return table


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], **kinds: Collection[str]) -> None:
    """Print rows below the titles of their columns, whose kinds are as of :func:`plain_table`."""
    table = plain_table(*columns, **kinds)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def progress_bar(unit: str = "", *, shown: bool = True) -> Progress:
    """A progress bar on standard error, if that is a terminal, for numbers of ``unit``, or for ``bytes``."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counted = [DownloadColumn()] if unit == "bytes" else [MofNCompleteColumn(), *(TextColumn(unit),) * bool(unit)]
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn())
    return Progress(*columns, console=err, disable=not shown or not err.is_terminal)


@contextmanager
def counted(description: str, unit: str = "", *, shown: bool = True) -> Iterator[Callable[..., None]]:
    """A progress bar of one task; call what it gives with what is done, of how much, and with changes of the bar."""
    with progress_bar(unit, shown=shown) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total, **changes: bar.update(task, completed=done, total=total, **changes)


@contextmanager
def stopping(left: str) -> Iterator[None]:
    """Add to a stop of the command what it leaves."""
    try:
        yield
    except BaseException as stop:
        if not isinstance(stop, Exception):  # Ctrl-C, a polite kill
            stop.add_note(left)
        raise


def require_free(output: Path, force: bool) -> None:
    """Require that a file is new, or may be replaced."""
    if output.exists() and not force:
        raise ValueError(f"{output} exists already. Add --force to replace it, or write elsewhere with --output.")
