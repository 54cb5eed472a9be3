"""Figures for a paper: functions of histories that return matplotlib figures, at the width of a column."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from equipoise.history import History
from equipoise.metrics.performance import last_rounds
from equipoise.report.table import by_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Vector = NDArray[np.float64]

WIDTH: Final = 3.4  # inches: one column of a two-column paper
INK: Final = "#222222"
FAINT: Final = "#dddddd"
# Okabe and Ito (2008), without yellow and black: distinct for colour-blind readers, on white and on dark grey.
PALETTE: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", ":", "-.")


def bars(histories: Sequence[History], last: int = 5) -> "Figure":
    """Accuracy of the global model on every group, one bar per method; whiskers are the std (ddof 1) over seeds.

    The bars lie when there are too many, or the names of the groups are too long, to stand side by side.

    Parameters
    ----------
    histories
        Runs of one scenario.
    last
        How many of the last evaluated rounds to average.

    Raises
    ------
    ValueError
        No run was evaluated on groups.
    """
    runs = _with(histories, _has_groups, "an accuracy on groups")
    groups = list(dict.fromkeys(group for seeds in runs.values() for run in seeds for group in run.groups))
    lying = len(runs) * len(groups) > 20 or sum(len(group) + 2 for group in groups) > 44
    figure, (axes,) = _panels(1, height=0.075 * (len(runs) + 2) * len(groups) if lying else 1.9)
    width = 0.8 / len(runs)
    for i, (label, seeds) in enumerate(runs.items()):
        found = [dict(zip(run.groups, 100 * last_rounds(run.group_table()[1], last), strict=True)) for run in seeds]
        table = np.array([[of_run.get(group, np.nan) for group in groups] for of_run in found])  # [seeds, D]
        draw: Callable[..., object] = axes.barh if lying else axes.bar
        draw(
            np.arange(len(groups)) + (i - (len(runs) - 1) / 2) * width,
            table.mean(axis=0),
            0.9 * width,
            **{"xerr" if lying else "yerr": table.std(axis=0, ddof=1) if len(table) > 1 else None},
            label=_name(label),
            color=_color(i),
            hatch=["", "////", "...."][i // len(PALETTE) % 3],
            edgecolor="white",
            linewidth=0,
            error_kw={"elinewidth": 0.8, "ecolor": INK},
        )
    along, across = (axes.yaxis, axes.xaxis) if lying else (axes.xaxis, axes.yaxis)
    along.set_ticks(range(len(groups)), list(map(_name, groups)))
    along.set_tick_params(length=0)
    across.set_label_text("accuracy (%)", size=8, color=INK)
    if lying:
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color=FAINT, linewidth=0.5)
    (axes.set_xlim if lying else axes.set_ylim)(0, 100)
    _legend(figure, axes, list(runs))
    return figure


def convergence(histories: Sequence[History]) -> "Figure":
    """Average and worst group over the rounds, one line per method; bands are the std (ddof 1) over seeds.

    Parameters
    ----------
    histories
        Runs of one scenario.

    Raises
    ------
    ValueError
        No run was evaluated on groups.
    """
    runs = _with(histories, _has_groups, "an accuracy on groups")
    reductions: list[tuple[Callable[..., Vector], str]] = [(np.mean, "average (%)"), (np.min, "worst group (%)")]
    if max(len(run.groups) for seeds in runs.values() for run in seeds) == 1:
        reductions = [(np.mean, "accuracy (%)")]
    figure, panels = _panels(len(reductions), height=1.5, sharex=True)
    for axes, (reduce, name) in zip(panels, reductions, strict=True):
        for i, (label, seeds) in enumerate(runs.items()):
            curves = [
                dict(zip(rounds, 100 * reduce(table, axis=1), strict=True))
                for rounds, table in (run.group_table() for run in seeds)
            ]
            rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = np.array([[curve[t] for t in rounds] for curve in curves])  # [seeds, R]
            mean = values.mean(axis=0)
            axes.plot(rounds, mean, color=_color(i), linestyle=_dash(i), linewidth=1.4, label=_name(label))
            if len(rounds) == 1:
                axes.plot(rounds, mean, color=_color(i), marker="o", markersize=3)
            if len(values) > 1:
                std = values.std(axis=0, ddof=1)
                axes.fill_between(rounds, mean - std, mean + std, color=_color(i), alpha=0.18, linewidth=0)
        axes.set_ylabel(name, size=8, color=INK)
    panels[-1].set_xlabel("round", size=8, color=INK)
    _whole_numbers(panels[-1])
    _legend(figure, panels[0], list(runs))
    return figure


def weights(histories: Sequence[History]) -> "Figure":
    """Weight of every client over the rounds, coloured by group, with the mean of each group; one panel per method.

    The dashed line is an equal share.  Of several seeds the lowest is drawn; of very many clients or rounds, every
    n-th.

    Parameters
    ----------
    histories
        Runs of one scenario.

    Raises
    ------
    ValueError
        No run recorded weights.
    """
    runs = _with(histories, _has_weights, "the clients' weights")
    firsts = {label: seeds[0] for label, seeds in runs.items()}
    groups = list(dict.fromkeys(group for run in firsts.values() for group in run.client_groups))
    figure, panels = _panels(len(firsts), columns=min(2, len(firsts)), height=1.35 if len(firsts) > 1 else 1.9)
    for axes, (label, run) in zip(panels, firsts.items(), strict=True):
        frame = 100 * run.weights()
        rounds, table = frame.index.to_numpy(), frame.to_numpy()  # [R, N]
        of_client = np.array(run.client_groups)
        for i, group in enumerate(groups):
            members = table[:, of_client == group]
            for column in members.T[:: 1 + len(members.T) // 100]:
                active = np.flatnonzero(np.isfinite(column))
                active = active[:: 1 + len(active) // 200]
                axes.plot(rounds[active], column[active], color=_color(i), linewidth=0.6, alpha=0.35)
            count = np.isfinite(members).sum(axis=1)
            mean = np.nansum(members, axis=1)[count > 0] / count[count > 0]
            axes.plot(rounds[count > 0], mean, color=_color(i), linestyle=_dash(i), linewidth=1.6, label=_name(group))
        share = 100 / np.isfinite(table).sum(axis=1).clip(1)
        axes.plot(rounds, share, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
        axes.set_title(_name(label), size=8, color=INK, loc="left")
        _whole_numbers(axes)
    panels[0].set_ylim(0, 1.05 * max(axes.dataLim.ymax for axes in panels))
    figure.supxlabel("round", size=8, color=INK)
    figure.supylabel("weight (%)", size=8, color=INK)
    if any(groups):
        _legend(figure, panels[0], groups)
    return figure


def consistency(histories: Sequence[History]) -> "Figure":
    """How steadily parameters were pushed one way, early and at the end: Fig. 2 of FedHEAL; one panel per method.

    The consistency of a parameter is the share of the rounds so far in which a client moved it the way it moves it now
    (Chen et al. 2024, Eq. 7).  Bars are the last recorded round, the outline is round 9, or the first recorded
    after it.  Counts of several seeds are added.

    Parameters
    ----------
    histories
        Runs of one scenario.

    Raises
    ------
    ValueError
        No run recorded a histogram of consistency.
    """
    runs = _with(histories, _has_consistency, "the consistency of updates")
    figure, panels = _panels(len(runs), columns=min(2, len(runs)), height=1.6 if len(runs) > 1 else 2.0)
    for axes, (label, seeds) in zip(panels, runs.items(), strict=True):
        found = [{r["round"]: r["consistency"] for r in run.records if r.get("consistency")} for run in seeds]
        late = min(max(of_run) for of_run in found)
        early = next((t for t in sorted(found[0]) if t >= 9), late)
        for t in dict.fromkeys((late, early)):
            counts = np.array([of_run[t] for of_run in found if t in of_run], dtype=np.float64).sum(axis=0)
            edges = np.linspace(0, 1, len(counts) + 1)
            how: dict[str, Any] = {"color": _color(0), "fill": True, "alpha": 0.75}
            if t != late:
                how = {"color": INK, "linewidth": 1.1}
            axes.stairs(100 * counts / max(counts.sum(), 1), edges, label=f"round {t}", **how)
        axes.set_xlim(0, 1)
        axes.set_title(_name(label) if len(runs) > 1 else "", size=8, color=INK, loc="left")
        axes.legend(fontsize=7, frameon=False, labelcolor=INK, loc="upper left")
    figure.supxlabel("update consistency", size=8, color=INK)
    figure.supylabel("parameters (%)", size=8, color=INK)
    return figure


def spread(histories: Sequence[History], last: int = 5) -> "Figure":
    """Accuracy of every client's model, clients sorted from worst to best; several seeds are averaged rank by rank.

    Parameters
    ----------
    histories
        Runs of one scenario.
    last
        How many of the last evaluated rounds to average.

    Raises
    ------
    ValueError
        No run evaluated its clients.
    """
    runs = _with(histories, _has_clients, "the clients' accuracies")
    figure, (axes,) = _panels(1, height=1.9)
    for i, (label, seeds) in enumerate(runs.items()):
        curves = [np.sort(100 * last_rounds(run.client_table()[1], last)) for run in seeds]
        n = min(map(len, curves))
        mean = np.mean([curve[:n] for curve in curves], axis=0)
        axes.plot(
            range(1, n + 1),
            mean,
            color=_color(i),
            linestyle="",
            marker=MARKERS[i % len(MARKERS)],
            markersize=3.2 if n <= 50 else 2,
            markeredgewidth=0.6,
            fillstyle="none" if i // len(PALETTE) % 2 else "full",
            label=_name(label),
        )
    axes.set_xlabel("client, from worst to best", size=8, color=INK)
    axes.set_ylabel("accuracy (%)", size=8, color=INK)
    _whole_numbers(axes)
    _legend(figure, axes, list(runs))
    return figure


def draw_all(histories: Sequence[History]) -> dict[str, "Figure"]:
    """Every figure that the histories hold the data for, by name.

    Parameters
    ----------
    histories
        Runs of one scenario.
    """
    return {
        draw.__name__: draw(histories)
        for draw, has in (
            (bars, _has_groups),
            (convergence, _has_groups),
            (spread, _has_clients),
            (weights, _has_weights),
            (consistency, _has_consistency),
        )
        if any(map(has, histories))
    }


def save_all(
    histories: Sequence[History], directory: str | os.PathLike[str], formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Write every figure that the histories hold the data for; return the paths.

    Parameters
    ----------
    histories
        Runs of one scenario.
    directory
        Where to write; made if missing.
    formats
        Endings that matplotlib knows; `pdf` and `svg` are vector graphics, `png` is written at 300 dots per inch.
    """
    return save(draw_all(histories), directory, formats)


def save(
    figures: Mapping[str, "Figure"], directory: str | os.PathLike[str], formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Write figures by name, fit for a paper and the same bytes every time; return the paths.

    Parameters
    ----------
    figures
        By the name of their files.
    directory, formats
        As in `save_all`.
    """
    import matplotlib

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "equipoise"}):
        for name, figure in figures.items():
            for ending in formats:
                path = directory / f"{name}.{ending}"
                date = {"pdf": "CreationDate", "svg": "Date"}.get(ending)
                figure.savefig(path, dpi=300, metadata={date: None} if date else None)
                paths.append(path)
    return paths


def _with(histories: Sequence[History], has: Callable[[History], bool], what: str) -> dict[str, list[History]]:
    """Runs by label that have the data of a figure."""
    runs = {label: [run for run in seeds.values() if has(run)] for label, seeds in by_label(histories).items()}
    runs = {label: seeds for label, seeds in runs.items() if seeds}
    if not runs:
        labels = ", ".join(dict.fromkeys(history.label for history in histories))
        raise ValueError(f"this figure shows {what}, which no record of {labels} holds.")
    return runs


def _has_groups(run: History) -> bool:
    return bool(run.groups)


def _has_clients(run: History) -> bool:
    return any(record.get("clients", {}).get("accuracy") for record in run.records)


def _has_weights(run: History) -> bool:
    return any(record.get("weights") for record in run.records)


def _has_consistency(run: History) -> bool:
    return any(record.get("consistency") for record in run.records)


def _panels(n: int, *, height: float, columns: int = 1, sharex: bool = False) -> tuple["Figure", list["Axes"]]:
    """A figure of one column's width holding `n` panels of the given height in inches, with shared vertical axes."""
    from matplotlib.figure import Figure

    rows = -(-n // columns)
    figure = Figure(figsize=(WIDTH, rows * height + 0.35), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=columns > 1)
    for axes in grid.flat[n:]:
        axes.remove()
    panels = list(grid.flat[:n])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.6)
        axes.tick_params(labelsize=7, width=0.6, length=2.5, color=INK, labelcolor=INK)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
    return figure, panels


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))


def _legend(figure: "Figure", axes: "Axes", labels: Sequence[str]) -> None:
    """One legend above all panels, in as many columns as fit the width; none for a single name."""
    if len(labels) < 2:
        return
    handles, names = axes.get_legend_handles_labels()
    fit = int((WIDTH - 0.1) / (0.45 + 0.062 * max(map(len, labels))))
    columns = max(1, min(len(names), fit))
    figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(names) // columns))
    figure.legend(
        handles,
        names,
        loc="outside upper center",
        ncols=columns,
        fontsize=7.5,
        frameon=False,
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _name(text: str) -> str:
    """A name as plain text: matplotlib reads dollars as mathematics and hides labels that start with an underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _color(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def _dash(i: int) -> str:
    return DASHES[i // len(PALETTE) % len(DASHES)]
