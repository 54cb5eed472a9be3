"""The commands ``equipoise analyse``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import equipoise as eq
from equipoise.cli import completion
from equipoise.cli.console import counted, note, out, print_table, progress_bar, say
from equipoise.cli.options import Json, Runs, add, option
from equipoise.system import files, own_code, suggestions
from equipoise.system.text import csv_text, formulas

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from equipoise.runs.configuration import RunConfig

app = typer.Typer(
    name="analyse",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Take trained runs apart: where their loss comes from, how flat their minimum is, how sharp each client's loss is.",
)

FOLDER = option(None, "Directory for figures and data [default: the name of the command].", "--output -o")


@add(app, "`equipoise analyse decomposition runs/compare-digits-label-skew --every 5`")
def decomposition(
    directories: Runs,
    every: int = option(1, "Measure every so many rounds, and the last.", min=1),
    others: list[str] | None = option(
        None,
        "Also one round of this method from the same models. Repeatable.",
        "--try",
        metavar="METHOD",
        autocompletion=completion.methods,
    ),
    output: Path | None = option(
        None, "Directory for figure and data [default: the run's own, or analysis/].", "--output -o"
    ),
    quiet: bool = option(False, "Print nothing but errors, and draw nothing."),
    json_: Json = False,
) -> Iterator[object]:
    """Split the loss of each round into local, distribution-shift and aggregation loss (FedLD, Eq. 2).

    Each run is trained again, which gives the same local models; the measurements stay with the run.
    """
    silent = quiet or json_
    suggestions.require_use({"--output": output and silent}, together="--quiet or --json, which write no files")
    from equipoise.analysis.decomposition import decomposition as decompose
    from equipoise.records.directory import all_members
    from equipoise.report import analysis as draw
    from equipoise.runs import directory as runs

    paths = all_members(directories)
    configs = [runs.load(path) for path in paths]
    measured: dict[str, list[dict[str, float]]] = {}
    with progress_bar(shown=not silent) as bar:
        task, before = bar.add_task("rounds", total=sum(config.rounds for config in configs)), 0
        for path, config in zip(paths, configs, strict=True):
            rows = decompose(path, every, others or (), on_round=lambda _, __: bar.advance(task))
            before += config.rounds
            bar.update(task, completed=before)
            for row in rows:
                method = row.pop("method")
                own = method == own_code.short(str(eq.parse(config.method)))
                name = _named(path, config, configs) + ("" if own else f", one round of {method}")
                measured.setdefault(name, []).append(row)
    yield measured
    if quiet:
        return
    cells = [
        (name, str(int(row["round"])), *(f"{row[key]:+.4f}" for key in ("local", "shift", "aggregation", "total")))
        for name, rows in measured.items()
        for row in (rows if len(measured) == 1 else rows[-1:])
    ]
    _print(("run", "round", "local", "shift", "aggregation", "global"), cells)
    nats = _nats(paths)
    out.print(
        f"Mean {'cross-entropy in nats' if nats else 'loss'}; local + shift + aggregation = global. FedLD reports absolute values."
    )
    where = output or (paths[0] if len(paths) == 1 else Path("analysis"))
    _drawn({"decomposition": draw.decomposition(measured, nats)}, where)
    if len(paths) > 1:
        say(f"wrote {files.write_atomically(where / 'decomposition.json', json.dumps(measured, indent=1))}")


def _nats(paths: Sequence[Path]) -> str:
    """The unit of the losses of runs, in brackets; empty where they have none."""
    from equipoise.metrics.measures import main_of
    from equipoise.report.analysis import NATS

    return NATS if main_of(eq.History.from_run(paths[0]).meta).loss else ""


@dataclass(frozen=True)
class Directions:
    """Where the loss is measured, as :func:`equipoise.analysis.landscape.landscape` takes it."""

    points: int = option(51, "Points of a line, odd.", min=3)
    grid: int = option(21, "Points along each axis of the plane, odd; 0 for none.", min=0)
    draws: int = option(3, "Random directions that are averaged.", min=1)
    span: float = option(1.0, "How far to go, in filter norms.")
    seed: int = option(0, "Decides the directions.", min=0)


@add(app, "`equipoise analyse landscape runs/compare-digits-quality --group corrupted`")
def landscape(
    directories: Runs,
    *,
    group: str | None = option(None, "Test set [default: the worst of the first run]."),
    along: Directions,
    output: Path | None = FOLDER,
    json_: Json = False,
) -> Iterator[object]:
    """Draw how the loss rises around the trained models, in one and two dimensions (FedISM+, Fig. 7)."""
    suggestions.require_use({"--output": output and json_}, together="--json, which writes no files")
    import pandas as pd

    from equipoise.analysis.landscape import landscape as measure
    from equipoise.records.directory import all_members
    from equipoise.report import analysis as draw

    paths = all_members(directories)
    with counted("points", shown=not json_) as on_point:
        landscapes = measure(paths, group, on_point=on_point, **vars(along))
    frame = pd.concat([surface.frame() for surface in landscapes], ignore_index=True)
    yield frame.to_dict("records")
    rows = []
    for surface in landscapes:
        mean, quarter = surface.line.mean(axis=0), len(surface.at) // 4
        half, edge = (mean[quarter] + mean[-1 - quarter]) / 2, (mean[0] + mean[-1]) / 2
        losses = (mean[len(surface.at) // 2], half, edge)
        rows.append((surface.label, str(surface.seed), *(f"{loss:.4f}" for loss in losses)))
    _print(("run", "seed", "loss", f"at ±{along.span / 2:g}", f"at ±{along.span:g}"), rows)
    nats = _nats(paths)
    out.print(
        f"Loss on {landscapes[0].group}{' in nats' * bool(nats)}, mean over {along.draws} directions; a smaller rise is a flatter minimum."
    )
    output = output or Path("landscape")
    _wrote_table(output / "landscape.csv", frame)
    planes = {"landscape-2d": draw.planes(landscapes, nats)} if along.grid else {}
    _drawn({"landscape-1d": draw.lines(landscapes, nats)} | planes, output)


@add(app, "`equipoise analyse states runs/compare-digits-quality`")
def states(
    directories: Runs,
    rho_max: float = option(0.2, "Largest search distance."),
    points: int = option(21, "Distances from 0 to the largest.", min=2),
    output: Path | None = FOLDER,
    json_: Json = False,
) -> Iterator[object]:
    """Draw loss and sharpness of the clients at growing search distances (FedISM+, Section III-C).

    On each client's training data, from the global models; where runs recorded them, also over the rounds.
    """
    suggestions.require_use({"--output": output and json_}, together="--json, which writes no files")
    import pandas as pd

    from equipoise.analysis.landscape import states as measure
    from equipoise.records.directory import all_members
    from equipoise.report import analysis as draw, figures_of_clients, statistics

    paths = all_members(directories)
    compared = statistics.Comparison.of([eq.History.from_run(path) for path in paths])
    with counted("clients", shown=not json_) as on_client:
        curves = measure(paths, on_client=on_client, rho_max=rho_max, points=points)
    frame = pd.concat([run.frame() for run in curves], ignore_index=True)
    yield frame.to_dict("records")
    shown = sorted({round((points - 1) * share) for share in (0, 0.25, 0.5, 1)})
    rows, several = [], frame["seed"].nunique() > 1
    mean = frame.groupby(["method", "seed", "group", "rho"], sort=False)[list(draw.STATES)].mean()
    for method, seed, group in dict.fromkeys(key[:3] for key in mean.index):
        name = f"{method}, seed {seed}" if several else method
        for sign, what in (("S", "sharpness"), ("L", "loss")):
            values = mean.loc[(method, seed, group), what].to_numpy()[shown]
            rows.append((name, group or "all", sign, *(f"{value:.4f}" for value in values)))
    _print(("run", "clients", "", *(f"ρ = {curves[0].rho[k]:.3g}" for k in shown)), rows)
    nats = _nats(paths)
    out.print(f"Mean over the clients of a group{', in nats' * bool(nats)}. S = L less the loss at ρ = 0.")
    output = output or Path("states")
    _wrote_table(output / "states.csv", frame)
    drawn = {f"states-{what}": draw.states(curves, what, nats) for what in draw.STATES}
    recorded = figures_of_clients.measured_in(compared.histories, ("sharpness", "perturbed_loss"))
    _drawn(drawn | ({"states-rounds": figures_of_clients.measured(compared, recorded)} if recorded else {}), output)


def _named(path: Path, config: RunConfig, others: Sequence[RunConfig]) -> str:
    """What to call a run among others: its method, and what sets it apart."""
    name = config.label
    if len({other.seed for other in others}) > 1:
        name += f", seed {config.seed}"
    options = [k for k in config.scenario_options if len({str(o.scenario_options.get(k)) for o in others}) > 1]
    name += "".join(f", {k}={config.scenario_options[k]}" for k in options)
    same = [(other.label, other.seed, other.scenario_options) for other in others]
    alone = same.count((config.label, config.seed, config.scenario_options)) == 1
    return name if alone else f"{name} ({path.name})"


def _print(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    print_table(columns, rows, right=columns[1:], whole=columns)


def _drawn(figures: dict[str, Figure], directory: Path) -> None:
    from equipoise.report.drawing import save

    say("\n".join(f"wrote {path}" for path in save(figures, directory)))


def _wrote_table(path: Path, frame: pd.DataFrame) -> None:
    rows = frame.astype(object).where(frame.notna(), None).to_numpy()
    say(f"wrote {files.write_atomically(path, csv_text([frame.columns, *rows]))}")
    for text in formulas(frame.to_numpy().flat):
        note(text)
