"""``equipoise reproduce``: a table or figure of a paper, run and compared with the published numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from typer import Argument, Option

from equipoise.cli import completion
from equipoise.cli.console import err, out, plain_table, print_json, progress_bar, say
from equipoise.cli.options import Base, Jobs, Json, grouped, help_of, option_field
from equipoise.system.errors import RunError
from equipoise.system.files import write_atomically
from equipoise.system.suggestions import require_use

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.federation.history import History
    from equipoise.report import reproduction
    from equipoise.runs.experiment import PaperExperiment
    from equipoise.runs.reproduce import ReproductionPlan


@dataclass(frozen=True)
class Asked:
    """What of an experiment is run, and how, as :func:`equipoise.runs.reproduce.plan` takes it, and how many runs at a time."""

    data: str | None = option_field(
        None, "The folder with the paper's data sets; see `equipoise data`.", "--data -d", metavar="DIR"
    )
    embedded: bool = option_field(
        False, "Take embedded stand-in data, scaled down: nothing is downloaded, and the values are not the paper's."
    )
    seeds: int | None = option_field(None, "How many seeds: 0, 1, ... [default: the experiment's].", min=1)
    divisions: int | None = option_field(
        None, "How many divisions of the data, each with all seeds [default: the experiment's, else one a seed].", min=1
    )
    part: list[str] | None = option_field(None, "Only this block of columns. Repeatable.")
    row: list[str] | None = option_field(None, "Only this row. Repeatable.")
    rounds: int | None = option_field(None, "Fewer rounds than the experiment's, to try it.", "--rounds -r", min=1)
    quick: bool = option_field(False, "The few rounds and seeds that the experiment has for a quick trial.")
    jobs: Jobs = None
    device: str | None = option_field(None, help_of("device"))
    precision: str | None = option_field(None, help_of("precision"))
    weights: str | None = option_field(
        None,
        "Weights that ResNet-18 or ResNet-50 starts from, in torchvision's naming (.safetensors or .pth).",
        metavar="FILE",
    )


@grouped
def reproduce(
    name: Annotated[
        str | None,
        Argument(
            metavar="[PAPER/ITEM]",
            help="An experiment, such as `fedheal/table2`, or a file of your own, `mine.toml`; none lists them.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    *,
    asked: Asked,
    base: Base = Path("runs"),
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="List the runs, and say what they would take, after one round of each row and part that is thrown away.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Run a table or figure of a paper, cell by cell, and compare the results with the published numbers.

    Finished runs are not repeated, and a stopped run continues: give the same command again. Writes the table as
    Markdown, LaTeX, CSV and HTML, and figures as PDF and PNG.
    """
    from equipoise.runs import directory as runs, reproduce as reproductions
    from equipoise.runs.configuration import whole
    from equipoise.runs.experiment import read_experiment

    data, embedded, rounds, quick, jobs = asked.data, asked.embedded, asked.rounds, asked.quick, asked.jobs
    chosen = {f"--{option}": value for option, value in vars(asked).items() if option not in ("data", "embedded")}
    if name is None:
        placed = {"--data": data, "--embedded": embedded, "--dry-run": dry_run}
        require_use(chosen | placed, without="an experiment, such as `equipoise reproduce fedheal/table2`")
        _list(json_)
        return
    if embedded and data is not None:
        raise ValueError("--data and --embedded: give one of them, the paper's data or the stand-in.")
    if quick and (rounds is not None or asked.seeds is not None):
        raise ValueError("--quick has rounds and seeds of its own: leave --rounds and --seeds out, or --quick.")
    if dry_run and data is None and not embedded and (experiment := read_experiment(name)).reads:
        require_use(chosen, without="--data DIR or --embedded")
        _outline(experiment, json_)
        return
    stem = Path(name).stem if name.endswith(".toml") else name.replace("/", "-")
    trial = "-quick" * quick if rounds is None else f"-{rounds}-rounds"  # which must not take the place of the table
    folder = base / "reproduce" / (runs.slug(stem) + "-embedded" * embedded + trial)
    with err.status("Looking at the runs ..."):
        settings = {option: value for option, value in vars(asked).items() if option not in ("part", "row", "jobs")}
        settings |= {option: whole(path) for option in ("data", "weights") if (path := settings[option]) is not None}
        plan = reproductions.plan(name, base / "reproduce", parts=asked.part or (), rows=asked.row or (), **settings)
    if dry_run:
        _show_forecast(plan, folder, jobs, json_)
    else:
        _run_and_show(plan, folder, jobs, json_)


def _run_and_show(plan: ReproductionPlan, folder: Path, jobs: int | None, json_: bool) -> None:
    from equipoise.report import reproduction
    from equipoise.runs import agreement, reproduce as reproductions

    plan, failed = _run(plan, jobs, quiet=json_)
    histories = reproductions.histories(plan)
    result = agreement.collect(plan, failed, histories)
    written = _write(plan, result, histories, folder)
    if json_:
        print_json(reproduction.as_dict(result))
    else:
        out.print(reproduction.rich_tables(result, out.width))
        for path in written:
            say(str(path))
    if failed:
        named = "\n".join(f"{p}/{r}: {why}" for (p, r), why in failed.items())
        others = {(run.part, run.row) for run in plan.runs} - failed.keys()
        shown = ", the others are shown" if others else ""
        raise RunError(
            f"{len(failed)} of {len(failed) + len(others)} cells failed{shown}.\n{named}\nThe same command runs them again."
        )


def _run(
    plan: ReproductionPlan, jobs: int | None, *, quiet: bool
) -> tuple[ReproductionPlan, dict[tuple[str, str], str]]:
    """Choose, calibrate, and run: the plan with what was chosen, and why the cells that failed did."""
    from equipoise.report import reproduction
    from equipoise.runs import agreement, reproduce as reproductions
    from equipoise.runs.plan import fitting

    at_once = jobs or fitting([run.config for run in (*plan.trials, *plan.first, *plan.runs)])
    with progress_bar("rounds", shown=not quiet) as bar:
        task = bar.add_task(f"{len(plan.trials)} trial runs", total=None)

        def shown(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        plan = reproductions.choose(plan, jobs=at_once, on_progress=shown, lines=not quiet)
        failed = {cell: plan.skipped[cell] for cell, choice in plan.chosen.items() if choice.taken is None}
        if not plan.runs:
            raise RunError("\n".join(f"{p}/{r}: {why}" for (p, r), why in failed.items()))
        if plan.calibration is not None and plan.first:
            bar.update(task, description=f"{len(plan.first)} runs that calibrate")
            failed |= reproductions.run(plan.calibration, jobs=at_once, on_progress=shown, lines=not quiet)
            for part, rows in () if quiet else groupby(agreement.calibrated(plan, failed), key=lambda row: row.part):
                say(f"{part}: {reproduction.calibration([*rows])}")
        bar.update(task, description=f"{len(plan.runs)} runs")
        return plan, failed | reproductions.run(plan, jobs=at_once, on_progress=shown, lines=not quiet)


def _write(
    plan: ReproductionPlan, result: reproduction.Result, histories: dict[tuple[str, str], list[History]], folder: Path
) -> list[Path]:
    """The table in four forms, the figures, and for every part the full report of its runs."""
    from equipoise.analysis import reproduced
    from equipoise.report import reproduced_figures, reproduction
    from equipoise.report.drawing import save
    from equipoise.report.html import write as write_report
    from equipoise.report.reproduction import claims_csv
    from equipoise.runs import reproduce as reproductions
    from equipoise.runs.agreement import division
    from equipoise.scenarios import DATA_SEED
    from equipoise.system.environment import environment

    reports: dict[str, str] = {}
    seeds = {part: plan.seeds(part, [row for where, row in histories if where == part]) for part, _ in histories}
    if (plan.experiment.divisions or 1) > 1:  # reports and figures are of the first
        plan = replace(plan, runs=tuple(run for run in plan.runs if not run.config.scenario_options[DATA_SEED]))
        histories = {cell: [h for h in runs if not division(h)] for cell, runs in histories.items()}
    histories = {(part, row): [h for h in runs if h.seed in seeds[part]] for (part, row), runs in histories.items()}
    for part in seeds:
        of_part: list[History] = [run for (where, _), runs in histories.items() if where == part for run in runs]
        reports[part] = f"{part}/report.html"
        write_report(of_part, folder / reports[part])
    figures: dict[str, Figure] = {}
    if plan.experiment.kind == "figure":
        figures = reproduced_figures.draw(plan.experiment, result, histories) | reproduced.drawn(
            plan.experiment.figure, reproductions.directories(plan)
        )
    table = reproduction.page(result)
    written = [table.save(folder / f"table.{form}") for form in ("md", "tex", "csv")]
    if result.claims:
        written.append(write_atomically(folder / "claims.csv", claims_csv(result.claims)))
    if figures:
        written += save(figures, folder)
    packages = [(package, str(version)) for package, version in environment()["versions"].items()]
    return [*written, reproduction.page(result, figures, reports, packages).save(folder / "index.html")]


def _list(json_: bool) -> None:
    from equipoise.runs.experiment import experiment_names, read_experiment

    every = {name: read_experiment(name) for name in experiment_names()}
    if json_:
        print_json(
            {n: {"title": e.title, "kind": e.kind, "paper": e.paper, "runs": e.runs()} for n, e in every.items()}
        )
        return
    columns = ("experiment", "what it is", "runs", "embedded")
    table = plain_table(*columns, fold=columns, right=("runs",))
    for name, e in every.items():
        without = [part.name for part in e.part if part.embedded is None]
        few = ", ".join(without) if len(without) < 3 else f"{len(without)} of {len(e.part)} parts"
        stands = "yes" if not without else "no" if len(without) == len(e.part) else f"without {few}"
        stands = stands if e.reads else "not needed"
        table.add_row(f"[bold]{name}[/]", escape(e.title), str(e.runs()), stands)
    out.print(table)
    out.print("\nBegin with [bold]equipoise reproduce fedheal/table5 --embedded --seeds 1[/].", highlight=False)


def _outline(experiment: PaperExperiment, json_: bool) -> None:
    """What can be said of an experiment without its data."""
    if json_:
        names = {part.name: [row.name for row in experiment.of(part)] for part in experiment.part}
        parts = [
            {"part": part.name, "scenario": part.scenario, "rows": names[part.name], "train": part.train}
            for part in experiment.part
        ]
        print_json({"runs": experiment.runs(), "parts": parts})
        return
    out.print(f"{experiment.paper}: {experiment.title}: {experiment.runs()} runs", highlight=False)
    for part in experiment.part:
        rows = experiment.of(part)
        trained = ", ".join(f"{k}={v}" for k, v in part.train.items()) or "the scenario's own settings"
        out.print(
            f"  {part.title or part.name}: {part.scenario}, {part.network or 'its network'}, {trained}; {len(rows)} rows x {part.seeds or experiment.seeds} seeds"
            + (f" x {experiment.divisions} divisions" if experiment.divisions else ""),
            highlight=False,
        )
    out.print("Time and memory depend on the data: add --data DIR or --embedded.", highlight=False)


def _show_forecast(plan: ReproductionPlan, folder: Path, jobs: int | None, json_: bool) -> None:
    """What the missing runs would take: one of every row and part is tried."""
    from equipoise.runs import directory as runs
    from equipoise.runs.plan import fitting

    at_once = jobs or fitting([cell.config for cell in plan.runs])
    lines, seconds, most = [], 0.0, 0.0
    shown = {}
    paths = {cell.path for cell in plan.runs}
    every = [*(cell for cell in plan.first if cell.path not in paths), *plan.runs]
    for trial, cell in [*((True, cell) for cell in plan.trials), *((False, cell) for cell in every)]:
        key = (cell.part, cell.row, trial)
        if key not in shown:  # the first candidate's, for all that may be taken
            with err.status(f"Trying {cell.part}: {cell.row} ..."):
                shown[key] = runs.plan(cell.config, folder, workers=1, progress=False)
        forecast = shown[key]
        finished = runs.finished(cell.path)
        seconds += 0.0 if finished else forecast.seconds
        most = max(most, forecast.needed)
        about = {"part": cell.part, "row": cell.row, "trial": trial, "seed": cell.seed, "finished": finished}
        lines.append({**about, "seconds": round(forecast.seconds, 3), "memory": forecast.needed})
    if json_:
        print_json({"runs": lines, "seconds": round(seconds / at_once, 3), "memory": most * at_once, "jobs": at_once})
        return
    numbers = ("seeds", "finished", "minutes each", "memory each")
    table = plain_table("part", "row", *numbers, right=numbers)
    for key, forecast in shown.items():
        where, row, trial = key
        of_row = [line for line in lines if (line["part"], line["row"], line["trial"]) == key]
        done = sum(bool(line["finished"]) for line in of_row)
        called, needs = escape(row) + " (trial runs)" * trial, f"{forecast.needed / 2**20:,.0f} MiB"
        table.add_row(where, called, str(len(of_row)), str(done), f"{forecast.seconds / 60:.1f}", needs)
    out.print(table)
    left = sum(not line["finished"] for line in lines)
    out.print(
        f"{left} of {len(lines)} runs are left: about {seconds / 60 / at_once:.0f} minutes with {at_once} at a time, and {most * at_once / 2**30:.1f} GiB of memory.",
        highlight=False,
    )
