"""The commands ``equipoise status``, how the runs below a folder are going, and ``equipoise track``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from equipoise.cli import completion
from equipoise.cli.console import out, plain_table, say
from equipoise.cli.options import Runs, option
from equipoise.system.text import key_of, plural, visible

if TYPE_CHECKING:
    from equipoise.runs.status import RunStatus

WIDEST = 1000  # signs of a line, more than any name has


def status(
    folder: Path = option(Path("runs"), "A run, or a folder of runs.", "[FOLDER]", autocompletion=completion.runs),
) -> Iterator[object]:
    """Show how all runs below a folder are going: the round, the last accuracy, whether a process is at it, when it ends.

    You can call it while they run: it changes nothing and waits for nothing.
    """
    from equipoise.metrics.measures import ACCURACY
    from equipoise.records.directory import CHOSEN
    from equipoise.runs.status import below

    runs = list(below(folder))
    if not runs:
        advice = "Give a folder with runs in it: equipoise status runs"
        if (chosen := min(folder.rglob(CHOSEN), default=None)) is not None:
            advice = f"Settings were chosen in {chosen.parent}: see its tuning.html."
        raise ValueError(f"There is no run in {folder}. {advice}")
    yield [_row(run) for run in runs]
    measures = list(dict.fromkeys(run.standing.measure for run in runs if run.standing.over)) or [ACCURACY]
    _print_table(runs, folder, ", ".join(measure.noun for measure in measures))
    _print_counts(runs)
    for measure in measures:
        over = sorted({at.over for run in runs if (at := run.standing).over and at.measure == measure})
        if over:
            unit = ["in percent"] * bool(measure.unit)
            out.print(escape(f"{measure.noun}: {', '.join([*unit, ' or '.join(map(visible, over))])}"), highlight=False)
    for run in runs:
        if run.why:
            say(f"{_name(run, folder)} {run.state}: {run.why}")


def track(
    directories: Runs,
    to: str = option(..., "mlflow, tensorboard, wandb or trackio; after a colon where: `mlflow:http://host:5000`.", ""),
) -> Iterator[object]:
    """Send runs to an experiment tracker; what it has already is not sent twice."""
    from equipoise.runs.tracking import track as send

    rounds = {str(path): send(path, to) for path in directories}
    yield {"to": to, "rounds": rounds}
    for path, n in rounds.items():
        say(f"{path}: {plural(n, 'round')} in {to}")


def _print_table(runs: Sequence[RunStatus], folder: Path, measured: str) -> None:
    """A row per run, without the columns in which no run has anything."""
    from equipoise.federation.standing import TENTH

    worst_of = [run.standing.whose for run in runs if run.standing.whose]
    common = TENTH if {*map(key_of, worst_of)} == {TENTH.key} else ""  # said once, in the title
    about = () if all(map(_tells, runs)) else ("method", "seed")
    titles = ("run", *about, "round", "state", measured, common or "worst", "ends", "last")
    seeds = ["" if run.seed is None else str(run.seed) for run in runs]
    named = [(_name(r, folder), *(r.method, s)[: len(about)]) for r, s in zip(runs, seeds, strict=True)]
    rows = [[*names, *_cells(run, common)] for names, run in zip(named, runs, strict=True)]
    shown = [k for k in range(len(titles)) if any(row[k] for row in rows)]
    table = plain_table(*(titles[k] for k in shown), right=("round", measured), whole=titles)
    for row in rows:
        table.add_row(*(escape(row[k]) for k in shown))
    table.width = max(out.width, out.measure(table, options=out.options.update(width=WIDEST)).maximum)
    out.print(table, soft_wrap=True)  # names stay whole, also in a pipe


def _print_counts(runs: Sequence[RunStatus]) -> None:
    """How many runs are in which state, and when all end."""
    from equipoise.federation.standing import clock
    from equipoise.runs.status import STATES, all_end

    counts = {state: n for state in STATES if (n := sum(run.state == state for run in runs))}
    running = counts.get("running", 0)
    end = (
        all_end(runs, running)
        if running and running + counts.get("queued", 0) + counts.get("not begun", 0) > 1
        else None
    )
    said = ", ".join(f"{n} {state}" for state, n in counts.items())
    out.print(f"{said}, all end about {clock(end)}" if end else said, highlight=False)


def _name(run: RunStatus, folder: Path) -> str:
    return run.directory.name if run.directory == folder else run.directory.relative_to(folder).as_posix()


def _tells(run: RunStatus) -> bool:
    """Whether the name of a run's directory contains its method and seed."""
    from equipoise.runs.directory import slug

    name = run.directory.name
    return name.startswith(slug(run.method)) and name.endswith(f"seed{run.seed}")


def _cells(run: RunStatus, common: str) -> list[str]:
    from equipoise.federation.standing import clock

    at = run.standing
    mean, worst = ("" if number is None else at.measure.brief(number) for number in (at.mean, at.worst))
    whose = "" if at.worst is None else at.when if common else at.worst_of
    times = ("" if time is None else clock(datetime.fromtimestamp(time)) for time in (run.ends, run.written))
    return [f"{at.round}/{at.rounds}", run.state, mean, f"{worst} {whose}".strip(), *times]


def _row(run: RunStatus) -> dict[str, Any]:
    at = run.standing
    return {
        "directory": run.directory.as_posix(), "method": run.method, "seed": run.seed, "state": run.state,
        "process": run.process, "round": at.round, "rounds": at.rounds,
        at.measure.name: at.mean, f"{at.measure.name}_of": at.over or None,
        "worst": at.worst, "worst_of": at.worst_of or None, "learning_rate": run.lr or None,
        "seconds_per_round": at.seconds, "last_round_ended": _utc(run.written), "ends_about": _utc(run.ends),
        "why": run.why or None,
    }  # fmt: skip


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
