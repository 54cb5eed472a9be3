"""The papers' figures, drawn from reproduced runs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from equipoise.metrics.performance import gap, mean, std, worst
from equipoise.records.history import History
from equipoise.report import drawing
from equipoise.report.drawing import INK, MARKERS, Curve, Figure
from equipoise.report.figures_of_clients import clients, contributions, spread
from equipoise.report.figures_of_groups import bars
from equipoise.report.reproduction import Block, ReproducedValue, Result
from equipoise.report.statistics import Comparison
from equipoise.system.grouping import grouped

Places = Mapping[str, tuple[str, float | None]]  # by row: its series, and where it stands on the axis

# drawn of the runs of a part as they are
OF_RUNS: Final = {"bars": bars, "clients": clients, "contributions": contributions, "spread": spread}
PER_ROUND: Final = {"avg": mean, "last": mean, "std": std, "worst": worst, "gap": gap}
OF_TABLES: Final = ("curves", "plane", "sweep")
# Drawn by `equipoise.analysis.reproduced`, from the models.
OF_MODELS: Final = ("consistency", "heterogeneity", "landscape")
KINDS: Final = (*OF_RUNS, *OF_TABLES, *OF_MODELS)


def draw(experiment: Any, result: Result, histories: Mapping[tuple[str, str], Sequence[History]]) -> dict[str, Figure]:
    """The figures that an experiment's file asks for, by the name of their files: one per part, of `plane` one per data set.

    `figure.draw` is one of

    - `curves`: the column `figure.y` over the rounds, a line per row, a panel per `series` of the rows;
    - `sweep`: each of the columns `figure.y` against the rows' `x`, a line per `series`; a row without `x` is a level;
    - `plane`: the column `figure.x` against the column `figure.y`, a point per row and part; parts whose titles begin
      alike, up to a comma, share a figure;
    - `bars`, `clients`, `contributions`, `spread`: figures of the report.

    Lines and points are means over the seeds, bands and crosses their 95 % intervals.

    Parameters
    ----------
    experiment : what `equipoise.runs.experiment.read_experiment` returned.
    result : what `equipoise.runs.agreement.collect` returned.
    histories : the finished runs, by part and row.

    Returns
    -------
    Nothing for a part without runs, and for figures of models (`consistency`, `heterogeneity`, `landscape`).
    """
    figure = experiment.figure
    kind = figure["draw"]
    if kind == "plane":
        return _planes(result.parts, figure["x"], figure["y"])
    drawn: dict[str, Figure] = {}
    at = {row.name: (row.series, row.x) for row in experiment.row}
    for part in result.parts:
        of_rows = {row: runs for (where, row), runs in histories.items() if where == part.name and runs}
        if of_rows and kind in OF_RUNS:
            drawn[part.name] = OF_RUNS[kind](Comparison.of([run for runs in of_rows.values() for run in runs]))
        elif of_rows and kind == "curves":
            series = {row: name for row, (name, _) in at.items()}
            drawn[part.name] = curves(of_rows, experiment.columns[figure["y"]], figure["y"], series)
        elif of_rows and kind == "sweep":
            x = figure["x"] if isinstance(figure["x"], str) else figure["x"][part.name]
            drawn[part.name] = sweep(part, at, x, figure["y"])
    return drawn


def curves(
    runs_by_row: Mapping[str, Sequence[History]], spec: str, name: str, series: Mapping[str, str] | None = None
) -> Figure:
    """A column over the rounds, one line per row and one panel per series; bands are 95 % intervals over seeds.

    Parameters
    ----------
    runs_by_row : runs by row, one per seed.
    spec, name : the column: what `over_rounds` takes, and what to call it.
    series : of the rows; rows of one series share a panel, in which a row is called by what its name adds to the
        series.
    """
    panel_of = {row: (series or {}).get(row, "") for row in runs_by_row}
    titles = list(dict.fromkeys(panel_of.values()))
    columns = min(2, len(titles))
    figure, panels = drawing.panels(titles, columns=columns, height=1.9 if len(titles) == 1 else 1.2, sharex=True)
    called = {row: row.removeprefix(panel_of[row]) or "without" if panel_of[row] else row for row in runs_by_row}
    names = list(dict.fromkeys(called.values()))
    for axes, title in zip(panels, titles, strict=True):
        for row, runs in runs_by_row.items():
            if panel_of[row] == title:
                of_seeds = [over_rounds(run, spec) for run in runs]
                drawing.mean_line(axes, of_seeds, called[row], names.index(called[row]), linewidth=1.3)
        drawing.whole_numbers(axes)
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)  # also above a place that is left free
    drawing.labels(figure, "round", f"{name} (%)")
    return drawing.legend(figure, max(panels, key=lambda axes: len(axes.lines)), names)


def over_rounds(history: History, spec: str) -> Curve:
    """A column in every round in which it was measured, in percent.

    Parameters
    ----------
    history : a run.
    spec : `"STATISTIC [MEASURE]"`: avg, last, std, worst, gap or group:NAME of a measure (accuracy) of the global
        model.

    Raises
    ------
    ValueError : the statistic has no value in a single round, or there is no such group.
    """
    statistic, _, measure = spec.partition(" ")
    rounds, table = history.group_table(measure or history.main.name)
    if statistic.startswith("group:"):
        group = statistic.removeprefix("group:")
        if group not in history.groups:
            raise ValueError(f"There is no group {group!r}: the run has {', '.join(history.groups)}.")
        values = table[:, history.groups.index(group)] if len(table) else table.reshape(0)
    elif statistic in PER_ROUND:
        values = np.array([PER_ROUND[statistic](row).value for row in table])
    else:
        choices = ", ".join(PER_ROUND)
        raise ValueError(f"{statistic!r} is not drawn over rounds. Choose group:NAME or one of: {choices}.")
    return {t: 100 * value for t, value in zip(rounds, values.tolist(), strict=True) if np.isfinite(value)}


def sweep(part: Block, at: Places, x: str, columns: Sequence[str]) -> Figure:
    """Columns against what was varied, one panel per column and one line per series; rows that vary nothing are levels.

    Parameters
    ----------
    part : a block of the result.
    at : by row: its series, and where it stands on the axis, `None` for a level.
    x : what was varied.
    columns : names of columns of the part.
    """
    figure, panels = drawing.panels(len(columns), height=1.5 if len(columns) > 1 else 1.9, sharex=True)
    series = list(dict.fromkeys(at[row][0] for row in part.rows if at[row][1] is not None))
    levels = [row for row in part.rows if at[row][1] is None]
    for axes, column in zip(panels, columns, strict=True):
        for i, name in enumerate(series):
            by_x = _by_place(part, at, name, column)
            look: drawing.Style = {"color": drawing.color(i), "linestyle": drawing.dash(i), "linewidth": 1.3}
            look |= {"marker": MARKERS[i % len(MARKERS)], "markersize": 3.5, "elinewidth": 0.8}
            means = [entry.mean for entry in by_x.values()]
            axes.errorbar([*by_x], means, _spread(by_x.values()), label=drawing.plain(name or "ours"), **look)
        for i, row in enumerate(levels, len(series)):
            if np.isfinite(mean := part.entries[row, column].mean):
                look = {"color": drawing.color(i), "linewidth": 1.1, "linestyle": (0, (4, 2))}
                axes.axhline(mean, label=drawing.plain(row), **look)
        drawing.labels(axes, y=f"{column} (%)")
    places = sorted({place for row in part.rows if (place := at[row][1]) is not None})
    if len(places) > 2 and places[0] > 0 and places[-1] / places[0] >= 20:
        panels[-1].set_xscale("log")
        panels[-1].set_xticks(places, [f"{place:g}" for place in places])
        panels[-1].minorticks_off()
    drawing.labels(panels[-1], x)
    figure.align_ylabels(panels)
    return drawing.legend(figure, panels[0], [*series, *levels])


def _by_place(part: Block, at: Places, series: str, column: str) -> dict[float, ReproducedValue]:
    """The numbers of a series in a column by where they stand on the axis, in its order."""
    rows = {x: row for row in part.rows if at[row][0] == series and (x := at[row][1]) is not None}
    entries = {x: part.entries[rows[x], column] for x in sorted(rows)}
    return {x: entry for x, entry in entries.items() if np.isfinite(entry.mean)}


def _spread(entries: Collection[ReproducedValue]) -> list[float] | None:
    """Half-lengths of error bars; none where there is one seed."""
    several = [entry for entry in entries if len(entry.values) > 1]
    return [entry.ci95 if len(entry.values) > 1 else 0.0 for entry in entries] if several else None


def _planes(parts: Sequence[Block], x: str, y: str) -> dict[str, Figure]:
    """One figure per data set: colours are rows, marks are parts."""
    drawn = {}
    for title, of_set in grouped((part.title.partition(", ")[0], part) for part in parts).items():
        if any(np.isfinite(part.entries[row, y].mean) for part in of_set for row in part.rows):
            drawn["-".join(title.lower().split())] = plane(of_set, x, y)
    return drawn


def plane(parts: Sequence[Block], x: str, y: str) -> Figure:
    """One column against another: colours are rows, marks are parts, crosses 95 % intervals over seeds.

    Parameters
    ----------
    parts : blocks of a result; what follows the comma in their titles tells them apart.
    x, y : names of columns of each of them.
    """
    from matplotlib.lines import Line2D

    figure, axes = drawing.plane(2.6)
    rows = list(dict.fromkeys(row for part in parts for row in part.rows))
    look: drawing.Style = {"linestyle": "", "markersize": 4.5}
    for k, part in enumerate(parts):
        for row in part.rows:
            across, along = part.entries[row, x], part.entries[row, y]
            if np.isfinite([across.mean, along.mean]).all():
                colour, mark = drawing.color(rows.index(row)), MARKERS[k % len(MARKERS)]
                ends: drawing.Style = {"xerr": _spread([across]), "yerr": _spread([along]), "elinewidth": 0.7}
                axes.errorbar(across.mean, along.mean, color=colour, marker=mark, **ends, **look)
    drawing.labels(axes, x, f"{y} (%)")
    scenes = [part.title.partition(", ")[2] or part.title for part in parts]
    for i, row in enumerate(rows):
        axes.add_line(Line2D([], [], color=drawing.color(i), marker="s", **look, label=drawing.plain(row)))
    for k, scene in enumerate(scenes if len(scenes) > 1 else ()):
        look |= {"marker": MARKERS[k % len(MARKERS)], "fillstyle": "none"}
        axes.add_line(Line2D([], [], color=INK, label=drawing.plain(scene), **look))
    return drawing.legend(figure, axes, [*rows, *scenes])
