"""Figures of analyses: functions of plain tables that return matplotlib figures, at the width of a column."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.statistics import half_interval
from equipoise.report import drawing
from equipoise.report.document import Numbers
from equipoise.report.drawing import INK, MARKERS, PALETTE, WIDTH, Figure
from equipoise.report.figures_of_clients import density_of

if TYPE_CHECKING:
    import pandas as pd

TERMS: Final = {"local": "local loss", "shift": "distribution shift", "aggregation": "aggregation"}

NATS: Final = "(nats)"  # the unit of cross-entropies


def decomposition(rows: Mapping[str, Sequence[Mapping[str, float]]], unit: str = NATS) -> Figure:
    """Local, distribution-shift and aggregation loss over the rounds, one panel per term, one line per run.

    The terms are signed: an aggregation loss below the line at 0 means that the average is better than the local models.

    Parameters
    ----------
    rows : by name of the run, its rows with `round`, `local`, `shift` and `aggregation`.
    unit : of losses, in brackets; empty if they have none.
    """
    figure, panels = drawing.panels(len(TERMS), height=1.25, sharex=True)
    for axes, (term, title) in zip(panels, TERMS.items(), strict=True):
        for i, (label, records) in enumerate(rows.items()):
            rounds, values = [row["round"] for row in records], [row[term] for row in records]
            drawing.line(axes, rounds, values, label, i)
        if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
            axes.axhline(0, color=INK, linewidth=0.6)
        drawing.labels(axes, y=f"{title}\n{unit}".rstrip())
    drawing.labels(panels[-1], "round")
    drawing.whole_numbers(panels[-1])
    figure.align_ylabels(panels)
    return drawing.legend(figure, panels[0], list(rows))


def heterogeneity(frame: "pd.DataFrame", last: int = 5) -> Figure:
    """Size of the distribution-shift and the aggregation loss of one round against the label skew: FedLD's Fig. 2.

    The shift loss belongs to the local training, so methods that differ on the server only share a line there. The last
    panel is the loss of the global model: where aggregation makes the loss smaller, a smaller term is no gain.

    Lines with hollow marks have margin control. Means over the last measured rounds and the seeds; bands are 95 %
    intervals over seeds.

    Parameters
    ----------
    frame : columns `method, alpha, seed, round, shift, aggregation`.
    last : how many of the last measured rounds to average.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    tail = frame.sort_values("round").groupby(["method", "alpha", "seed"], sort=False).tail(last)
    values = tail.groupby(["method", "alpha", "seed"])[["shift", "aggregation", "total"]].mean().abs()
    methods = list(dict.fromkeys(frame["method"]))
    alphas = sorted(frame["alpha"].unique(), reverse=True)
    bases = list(dict.fromkeys(_aggregation(method) for method in methods))
    figure, panels = drawing.panels(3, height=1.45, sharex=True)
    titles = {"shift": "|shift loss|", "aggregation": "|aggregation loss|", "total": "global loss"}
    for axes, (term, title) in zip(panels, titles.items(), strict=True):
        drawn: list[object] = []
        for method in methods:
            own = values.loc[method, term].unstack("seed")  # [alphas, seeds]
            if term == "shift" and own.to_numpy().tolist() in drawn:
                continue  # the same local training
            drawn.append(own.to_numpy().tolist())
            i, margin = bases.index(_aggregation(method)), "margin" in method or method.startswith("fedld")
            measured = [a for a in alphas if a in own.index]
            by_alpha = [own.loc[a].dropna().to_numpy() for a in measured]
            mean = np.array([v.mean() for v in by_alpha])
            look = {"linestyle": "--", "fillstyle": "none"} if margin else {"linestyle": "-", "fillstyle": "full"}
            marker = MARKERS[i % len(MARKERS)]
            drawing.line(axes, measured, mean, method, i, marker=marker, markersize=3.5, linewidth=1.2, **look)
            if min(map(len, by_alpha)) > 1:
                half = np.array([half_interval(v) for v in by_alpha])
                drawing.band(axes, measured, mean - half, mean + half, i)
        drawing.labels(axes, y=f"{title}\n(nats)")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    panels[-1].set_xscale("log")
    panels[-1].set_xlim(1.5 * alphas[0], alphas[-1] / 1.5)
    panels[-1].set_xticks(alphas, [f"{a:g}" for a in alphas])
    panels[-1].minorticks_off()
    drawing.labels(panels[-1], "Dirichlet α (to the right: more skewed)")
    figure.align_ylabels(panels)
    return drawing.legend(figure, panels[1], methods)


def _aggregation(method: str) -> str:
    """What a method does on the server, for its colour: FedLD is principal with margin control."""
    rest = [part for part in method.split("+") if not part.startswith("margin")]
    return ("+".join(rest) or "fedavg").replace("fedld", "principal")


def lines(runs: Sequence[Any], unit: str = NATS) -> Figure:
    """Loss of trained models along filter-normalised random directions: mean and range over the directions, per run."""
    figure, (axes,) = drawing.panels(1, height=1.9)
    names = _names(runs)
    for i, (name, run) in enumerate(zip(names, runs, strict=True)):
        drawing.line(axes, run.at, run.line.mean(axis=0), name, i)
        if len(run.line) > 1:
            drawing.band(axes, run.at, run.line.min(axis=0), run.line.max(axis=0), i)
    drawing.labels(axes, "step along the direction (in filter norms)", f"loss on {runs[0].group} {unit}".rstrip())
    axes.set_ylim(bottom=0)
    return drawing.legend(figure, axes, names)


def consistency(windows_of_runs: Sequence[Sequence[Numbers]]) -> Figure:
    """How steadily clients pushed the parameters of a layer one way, a panel per window of rounds: FedHEAL's Fig. 2."""
    figure, panels = drawing.panels(len(windows_of_runs[0]), height=1.2, sharex=True)
    for axes, *windows in zip(panels, *windows_of_runs, strict=True):
        density, edges = density_of(windows)
        axes.stairs(density, edges, color=drawing.color(0), fill=True, alpha=0.75)
        drawing.title(axes, f"rounds {windows[0]['first']} to {windows[0]['end'] - 1}")
    panels[-1].set_xlim(-0.06, 1.06)
    drawing.labels(panels[-1], "update consistency")
    drawing.labels(figure, y=f"density of {windows_of_runs[0][0]['layer']}")
    return figure


STATES: Final = {"sharpness": "sharpness S(ρ)", "loss": "perturbed loss L(ρ)"}


def states(runs: Sequence[Any], quantity: str, unit: str = NATS) -> Figure:
    """Loss or sharpness over the search distance: a panel per group of clients, a line per run; the band is from the lowest to the highest client."""
    groups, names = list(dict.fromkeys(group for run in runs for group in run.groups)), _names(runs)
    columns = min(2, len(groups))
    figure, panels = drawing.panels(groups, columns=columns, height=1.9 if columns == 1 else 1.5)
    for axes, group in zip(panels, groups, strict=True):
        for i, (name, run) in enumerate(zip(names, runs, strict=True)):
            if len(of_group := getattr(run, quantity)[np.array(run.groups) == group]):
                drawing.line(axes, run.rho, of_group.mean(axis=0), name, i)
                drawing.band(axes, run.rho, of_group.min(axis=0), of_group.max(axis=0), i)
    drawing.labels(figure, "search distance ρ", f"{STATES[quantity]} {unit}".rstrip())
    return drawing.legend(figure, max(panels, key=lambda axes: len(axes.lines)), names)


def planes(runs: Sequence[Any], unit: str = NATS) -> Figure:
    """Loss of trained models over a plane of two random directions: contours at the same levels, one panel per run."""
    from matplotlib.colors import LinearSegmentedColormap

    columns = min(3 if len(runs) > 4 else 2, len(runs))
    figure, panels = drawing.panels(len(runs), columns=columns, height=(WIDTH - 0.5) / columns, sharex=True)
    levels = _levels([run.grid for run in runs])
    colors = LinearSegmentedColormap.from_list("one hue", ["#f2f7fb", PALETTE[5], PALETTE[0], "#00263d"])
    for axes, name, run in zip(panels, _names(runs), runs, strict=True):
        axes.grid(visible=False)
        drawn = axes.contourf(run.grid_at, run.grid_at, run.grid, levels=levels, cmap=colors, extend="both")
        axes.contour(run.grid_at, run.grid_at, run.grid, levels=levels, colors=INK, linewidths=0.3)
        axes.plot(0, 0, marker="x", color=INK, markersize=4, markeredgewidth=1.2)
        axes.set_title(drawing.plain(name), size=8, color=INK, loc="left")
        axes.set_aspect("equal")
    bar = figure.colorbar(drawn, ax=panels, shrink=0.8, pad=0.02)
    bar.ax.tick_params(labelsize=7, width=0.6, length=2.5)
    bar.set_label(f"loss on {runs[0].group} {unit}".rstrip(), size=8, color=INK)
    drawing.labels(figure, "second direction (filter norms)", "first direction (filter norms)")
    return figure


def _levels(grids: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Ten levels between the lowest loss and that of the middle of the edge, evenly spaced in its logarithm."""
    low = min(float(np.nanmin(grid)) for grid in grids)
    edge = float(np.median([np.median(np.concatenate([g[0], g[-1], g[:, 0], g[:, -1]])) for g in grids]))
    low = max(low, 1e-3)
    return np.geomspace(low, max(edge, 1.1 * low), 10)


def _names(runs: Sequence[Any]) -> list[str]:
    several = len({run.seed for run in runs}) > 1
    return [f"{run.label}, seed {run.seed}" if several else run.label for run in runs]
