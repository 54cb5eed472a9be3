"""``equipoise reproduce``: a table or figure of a paper, run and compared with the published numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from equipoise.cli import completion
from equipoise.cli.console import counted, err, out, print_json, print_table, say
from equipoise.cli.options import BASE, JOBS_OF_PLAN, Json, help_of, option
from equipoise.system import errors, suggestions
from equipoise.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.report import reproduction
    from equipoise.runs.agreement import Ended
    from equipoise.runs.experiment import PaperExperiment
    from equipoise.runs.reproduce import ReproductionPlan


@dataclass(frozen=True)
class Asked:
    """What of an experiment is run, and how, as :func:`equipoise.runs.reproduce.plan` takes it, and how many runs at a time."""

    data: str | None = option(
        None, "The folder with the paper's data sets; see `equipoise data`.", "--data -d", metavar="DIR"
    )
    embedded: bool = option(
        False, "Take embedded stand-in data, scaled down: nothing is downloaded, and the values are not the paper's."
    )
    seeds: int | None = option(None, "How many seeds: 0, 1, ... [default: the experiment's].", min=1)
    divisions: int | None = option(
        None, "How many divisions of the data, each with all seeds [default: the experiment's, else one a seed].", min=1
    )
    part: list[str] | None = option(None, "Only this block of columns. Repeatable.")
    row: list[str] | None = option(None, "Only this row. Repeatable.")
    rounds: int | None = option(None, "Fewer rounds than the experiment's, to try it.", "--rounds -r", min=1)
    quick: bool = option(False, "The few rounds and seeds that the experiment has for a quick trial.")
    jobs: str | None = JOBS_OF_PLAN
    on: str | None = option(None, help_of("on"))
    devices: str | None = option(None, help_of("devices"))
    device: str | None = option(None, help_of("device"))
    precision: str | None = option(None, help_of("precision"))
    weights: str | None = option(
        None,
        "Weights that ResNet-18 or ResNet-50 starts from, in torchvision's naming (.safetensors or .pth).",
        metavar="FILE",
    )

    def check(self) -> None:
        """Require options that go together."""
        if self.embedded and self.data is not None:
            raise ValueError("--data and --embedded: give one of them, the paper's data or the stand-in.")
        if self.quick and (self.rounds is not None or self.seeds is not None):
            raise ValueError("--quick has rounds and seeds of its own: leave --rounds and --seeds out, or --quick.")


def reproduce(
    name: str | None = option(
        None,
        "An experiment, such as `fedheal/table2`, or a file of your own, `mine.toml`; none lists them.",
        "[PAPER/ITEM]",
        autocompletion=completion.experiments,
    ),
    *,
    asked: Asked,
    base: Path = BASE,
    dry_run: bool = option(
        False, "List the runs, and say what they would take, after one round of each row and part that is thrown away."
    ),
    json_: Json = False,
) -> Iterator[object]:
    """Run a table or figure of a paper, cell by cell, and compare the results with the published numbers.

    Finished runs are not repeated, and a stopped run continues: give the same command again. Writes the table as
    Markdown, LaTeX, CSV and HTML, and figures as PDF and PNG.
    """
    from equipoise.runs import configuration, directory as runs, experiment as papers, reproduce as reproductions

    data, embedded, rounds, jobs = asked.data, asked.embedded, asked.rounds, asked.jobs
    suggestions.require_use({"--jobs": jobs} if asked.on else {}, together="--on")
    chosen = {f"--{key}": value for key, value in vars(asked).items() if key not in ("data", "embedded")}
    if name is None:
        placed = {"--data": data, "--embedded": embedded, "--dry-run": dry_run}
        suggestions.require_use(chosen | placed, without="an experiment, such as `equipoise reproduce fedheal/table2`")
        yield from _list()
        return
    asked.check()
    if dry_run and data is None and not embedded and (experiment := papers.read_experiment(name)).reads:
        suggestions.require_use(chosen, without="--data DIR or --embedded")
        yield from _outline(experiment)
        return
    stem = Path(name).stem if name.endswith(".toml") else name.replace("/", "-")
    trial = "-quick" * asked.quick if rounds is None else f"-{rounds}-rounds"  # a trial does not replace the table
    folder = base / "reproduce" / (runs.slug(stem) + "-embedded" * embedded + trial)
    with err.status("Looking at the runs ..."):
        settings = {key: value for key, value in vars(asked).items() if key not in ("part", "row", "jobs")}
        paths = {key: path for key in ("data", "weights") if (path := settings[key]) is not None}
        settings |= {key: configuration.whole(path) for key, path in paths.items()}
        plan = reproductions.plan(name, base / "reproduce", parts=asked.part or (), rows=asked.row or (), **settings)
    if dry_run:
        yield from _show_forecast(plan, folder, jobs)
    else:
        _run_and_show(plan, folder, asked, json_)


def _run_and_show(plan: ReproductionPlan, folder: Path, asked: Asked, json_: bool) -> None:
    from equipoise.report import reproduction
    from equipoise.runs import agreement, reproduce as reproductions

    plan, failed = _run(plan, asked, quiet=json_)
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
        raise errors.RunError(
            f"{len(failed)} of {len(failed) + len(others)} cells failed{shown}.\n{named}\nThe same command runs them again."
        )


def _run(plan: ReproductionPlan, asked: Asked, *, quiet: bool) -> tuple[ReproductionPlan, dict[tuple[str, str], str]]:
    """Choose, calibrate, and run: the plan with what was chosen, and why the cells that failed did."""
    from equipoise.report import reproduction
    from equipoise.runs import agreement, plan as plans, reproduce as reproductions

    jobs = plans.at_once(asked.jobs, [run.config for run in (*plan.trials, *plan.first, *plan.runs)])
    with counted(f"{len(plan.trials)} trial runs", "rounds", shown=not quiet) as on_progress:
        how = plans.How(jobs=jobs, on_progress=on_progress, lines=not quiet)
        plan = reproductions.choose(plan, **how)
        failed = {cell: plan.skipped[cell] for cell, choice in plan.chosen.items() if choice.taken is None}
        if not plan.runs:
            raise errors.RunError("\n".join(f"{p}/{r}: {why}" for (p, r), why in failed.items()))
        if plan.calibration is not None and plan.first:
            on_progress(0, None, description=f"{len(plan.first)} runs that calibrate")
            failed |= reproductions.run(plan.calibration, **how)
            for part, rows in () if quiet else groupby(agreement.calibrated(plan, failed), key=lambda row: row.part):
                say(f"{part}: {reproduction.calibration([*rows])}")
        on_progress(0, None, description=f"{len(plan.runs)} runs")
        return plan, failed | reproductions.run(plan, **how)


def _write(plan: ReproductionPlan, result: reproduction.Result, histories: Ended, folder: Path) -> list[Path]:
    """The table in four forms, the figures, and for every part the full report of its runs."""
    from equipoise.analysis import reproduced
    from equipoise.report import drawing, html, reproduced_figures, reproduction
    from equipoise.runs import agreement, reproduce as reproductions
    from equipoise.scenarios import DATA_SEED
    from equipoise.system.environment import environment

    reports: dict[str, str] = {}
    seeds = {part: plan.seeds(part, [row for where, row in histories if where == part]) for part, _ in histories}
    if (plan.experiment.divisions or 1) > 1:  # reports and figures are of the first
        plan = replace(plan, runs=tuple(run for run in plan.runs if not run.config.scenario_options[DATA_SEED]))
        histories = {cell: [h for h in runs if not agreement.division(h)] for cell, runs in histories.items()}
    histories = {(part, row): [h for h in runs if h.seed in seeds[part]] for (part, row), runs in histories.items()}
    for part in seeds:
        of_part = [run for (where, _), runs in histories.items() if where == part for run in runs]
        reports[part] = f"{part}/report.html"
        html.write(of_part, folder / reports[part])
    figures: dict[str, Figure] = {}
    if plan.experiment.kind == "figure":
        figures = reproduced_figures.draw(plan.experiment, result, histories)
        figures |= reproduced.drawn(plan.experiment.figure, reproductions.directories(plan))
    table = reproduction.page(result)
    written = [table.save(folder / f"table.{form}") for form in ("md", "tex", "csv")]
    if result.claims:
        written.append(write_atomically(folder / "claims.csv", reproduction.claims_csv(result.claims)))
    if figures:
        written += drawing.save(figures, folder)
    packages = [(package, str(version)) for package, version in environment()["versions"].items()]
    return [*written, reproduction.page(result, figures, reports, packages).save(folder / "index.html")]


def _list() -> Iterator[object]:
    from equipoise.runs.experiment import experiment_names, read_experiment

    every = {name: read_experiment(name) for name in experiment_names()}
    yield {n: {"title": e.title, "kind": e.kind, "paper": e.paper, "runs": e.runs()} for n, e in every.items()}
    columns, rows = ("experiment", "what it is", "runs", "embedded"), []
    for name, e in every.items():
        without = [part.name for part in e.part if part.embedded is None]
        few = ", ".join(without) if len(without) < 3 else f"{len(without)} of {len(e.part)} parts"
        stands = "yes" if not without else "no" if len(without) == len(e.part) else f"without {few}"
        stands = stands if e.reads else "not needed"
        rows.append((f"[bold]{name}[/]", escape(e.title), str(e.runs()), stands))
    print_table(columns, rows, fold=columns, right=("runs",))
    out.print("\nBegin with [bold]equipoise reproduce fedheal/table5 --embedded --seeds 1[/].", highlight=False)


def _outline(experiment: PaperExperiment) -> Iterator[object]:
    """What can be said of an experiment without its data."""
    rows = {part.name: [row.name for row in experiment.of(part)] for part in experiment.part}
    parts = [
        {"part": part.name, "scenario": part.scenario, "rows": rows[part.name], "train": part.train}
        for part in experiment.part
    ]
    yield {"runs": experiment.runs(), "parts": parts}
    out.print(f"{experiment.paper}: {experiment.title}: {experiment.runs()} runs", highlight=False)
    for part in experiment.part:
        trained = ", ".join(f"{k}={v}" for k, v in part.train.items()) or "the scenario's own settings"
        where = f"{part.title or part.name}: {part.scenario}, {part.network or 'its network'}"
        times = f"{len(rows[part.name])} rows x {part.seeds or experiment.seeds} seeds"
        times += f" x {experiment.divisions} divisions" * bool(experiment.divisions)
        out.print(f"  {where}, {trained}; {times}", highlight=False)
    out.print("Time and memory depend on the data: add --data DIR or --embedded.", highlight=False)


def _show_forecast(plan: ReproductionPlan, folder: Path, jobs: str | None) -> Iterator[object]:
    """What the missing runs would take: one of every row and part is tried."""
    from equipoise.runs import directory as runs, plan as plans

    n_jobs = plans.at_once(jobs, [cell.config for cell in plan.runs])
    paths = {cell.path for cell in plan.runs}
    every = [*(cell for cell in plan.first if cell.path not in paths), *plan.runs]
    lines, seconds, forecasts = [], 0.0, {}
    for trial, cell in [*((True, cell) for cell in plan.trials), *((False, cell) for cell in every)]:
        key = (cell.part, cell.row, trial)
        if key not in forecasts:  # the first candidate's, for all that may be taken
            with err.status(f"Trying {cell.part}: {cell.row} ..."):
                forecasts[key] = runs.plan(cell.config, folder, workers=1, progress=False)
        finished = runs.finished(cell.path)
        seconds += 0.0 if finished else forecasts[key].seconds
        about = {"part": cell.part, "row": cell.row, "trial": trial, "seed": cell.seed, "finished": finished}
        lines.append({**about, "seconds": round(forecasts[key].seconds, 3), "memory": forecasts[key].needed})
    most = max((forecast.needed for forecast in forecasts.values()), default=0)
    yield {"runs": lines, "seconds": round(seconds / n_jobs, 3), "memory": most * n_jobs, "jobs": n_jobs}
    numbers, rows = ("seeds", "finished", "minutes each", "memory each"), []
    for (where, row, trial), forecast in forecasts.items():
        of_row = [line for line in lines if (line["part"], line["row"], line["trial"]) == (where, row, trial)]
        done = sum(bool(line["finished"]) for line in of_row)
        called, needs = escape(row) + " (trial runs)" * trial, f"{forecast.needed / 2**20:,.0f} MiB"
        rows.append((where, called, str(len(of_row)), str(done), f"{forecast.seconds / 60:.1f}", needs))
    print_table(("part", "row", *numbers), rows, right=numbers)
    left = sum(not line["finished"] for line in lines)
    out.print(
        f"{left} of {len(lines)} runs are left: about {seconds / 60 / n_jobs:.0f} minutes with {n_jobs} at a time, and {most * n_jobs / 2**30:.1f} GiB of memory.",
        highlight=False,
    )
