"""Figures of the clients, for a paper: their models, what they contribute, and the hidden units and rounds of each.

All take a comparison of runs, and raise a ``ValueError`` if no run has the data that they show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, MARKERS, PALETTE, WIDTH
from equipoise.report.formatting import UNDEFINED
from equipoise.report.holdings import ROWS
from equipoise.report.layout import attended
from equipoise.report.statistics import Comparison, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.records.history import History

# From dark to light, without the ends, which vanish on a white or dark page.
SEQUENCE: Final = ("plasma", 0.15, 0.82, 24)


def spread(compared: Comparison) -> Figure:
    """The main measure of every client's model, clients sorted from worst to best; several seeds are averaged rank by rank.

    Where runs count different numbers of clients, the axis is the share of the clients, and curves are interpolated linearly
    between the worst client, at 0, and the best, at 100 %.
    """
    measure = compared.measure
    runs = drawing.runs_with(compared, _has_clients, f"the clients' {measure.plural}")
    figure, (axes,) = drawing.panels(1, height=1.9)
    way = 1 if measure.better == "higher" else -1
    curves = {
        label: [np.sort(measure.scale * run.shown.over_clients(compared.last))[::way] for run in seeds]
        for label, seeds in runs.items()
    }
    numbers = {len(curve) for seeds in curves.values() for curve in seeds}
    n = max(numbers)
    shares = np.linspace(0, 1, n)
    for i, (label, seeds) in zip(drawing.places(compared, runs), curves.items(), strict=True):
        at = range(1, n + 1) if len(numbers) == 1 else 100 * shares
        ranked = np.mean([np.quantile(curve, shares)[::way] for curve in seeds] if len(numbers) > 1 else seeds, axis=0)
        axes.plot(at, ranked, markersize=3.2 if n <= 50 else 2, markeredgewidth=0.6, **drawing.mark(label, i))
    share = "" if len(numbers) == 1 else "share of the clients (%)"
    drawing.labels(axes, f"{share or 'client'}, from worst to best", measure.axis())
    drawing.whole_numbers(axes)
    drawing.legend(figure, axes, list(runs))
    return figure


def contributions(compared: Comparison) -> Figure:
    """What every client reaches alone beside what it owns in the end: Fig. 4 of FedSAC; one panel per method.

    Clients are in the order of what they reach alone, so that bars rise where reward follows contribution; of more than
    20 what they reach alone is a mark on the bar.  The number is the fairness.  Of several seeds the lowest is drawn.
    """
    runs = drawing.runs_with(compared, has_contribution, "what clients reach alone")
    n = max(len(seeds[0].contribution) for seeds in runs.values())
    columns = 1 if n > 20 or len(runs) == 1 else 2
    height = 1.9 if len(runs) == 1 else 1.25 if n <= 20 else 1.0
    figure, panels = drawing.panels(len(runs), columns=columns, height=height, sharey=True)
    for axes, (label, seeds) in zip(panels, runs.items(), strict=True):
        alone, owned = seeds[0].contribution, seeds[0].reward
        order = np.argsort(alone, kind="stable")
        alone, owned, at = 100 * alone[order], 100 * owned[order], np.arange(len(alone))
        many = len(alone) > 20
        if many:
            axes.bar(at, owned, 0.8, color=drawing.color(0), linewidth=0, label="owned")
            axes.hlines(alone, at - 0.5, at + 0.5, color=PALETTE[1], linewidth=1.4, label="alone")
        else:
            axes.bar(at - 0.21, alone, 0.38, color=PALETTE[6], linewidth=0, label="alone")
            axes.bar(at + 0.21, owned, 0.38, color=drawing.color(0), linewidth=0, label="owned")
            axes.set_xticks(at, [str(m) for m in order])
            axes.tick_params(axis="x", length=0)
        axes.margins(x=0.01)
        fairness = seeds[0].summary["collaboration"]["fairness"]
        drawing.title(axes, label, UNDEFINED if fairness is None else f"{fairness:.1f}")
        if many:
            axes.set_xticks([])
    both = np.concatenate([np.r_[run.contribution, run.reward] for run, *_ in runs.values()])
    low, high = (reduce(100 * both) for reduce in (np.nanmin, np.nanmax))
    panels[0].set_ylim(max(0.0, low - 0.35 * (high - low) - 1), min(100.0, high + 0.05 * (high - low) + 0.5))
    whose = (
        "clients in the order of what they reach alone" if n > 20 else "client, in the order of what it reaches alone"
    )
    drawing.labels(figure, whose, "accuracy (%)")
    drawing.legend(figure, panels[0], ["alone", "owned"])
    return figure


def plane(compared: Comparison) -> Figure:
    """Collaborative fairness against the accuracy of the best client: Fig. 3 of FedSAC; one point per method.

    Crosses are 95 % intervals over seeds.  A method whose fairness is not defined is a dashed line at its accuracy.
    """
    runs = drawing.runs_with(compared, has_contribution, "what clients reach alone")
    figure, (axes,) = drawing.panels(1, height=2.3)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    for i, (label, seeds) in zip(drawing.places(compared, runs), runs.items(), strict=True):
        numbers = [run.summary["collaboration"] for run in seeds]
        fairness, best = (np.array([row[key] for row in numbers], dtype=np.float64) for key in ("fairness", "max"))
        if not np.isfinite(fairness).all():
            axes.axhline(
                best.mean(), color=drawing.color(i), linestyle=(0, (4, 2)), linewidth=1.1, label=drawing.plain(label)
            )
            continue
        drawing.point(axes, fairness, best, label, i)
    axes.margins(0.08)
    left, right = axes.get_xlim()
    axes.set_xlim(max(left, -104), min(right, 104))  # fairness ends at 100, error bars may not
    drawing.labels(axes, "collaborative fairness (100 × Pearson)", "accuracy of the best client (%)")
    drawing.legend(figure, axes, list(runs))
    return figure


def clients(compared: Comparison) -> Figure:
    """Accuracy of every client's own model over the rounds: Fig. 5 of FedSAC; one panel per method.

    The colour is what a client reaches alone.  Of several seeds the lowest is drawn; of very many rounds, every n-th.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.ticker import MaxNLocator

    runs = drawing.runs_with(compared, has_contribution, "what clients reach alone")
    alone = {label: 100 * seeds[0].contribution for label, seeds in runs.items()}
    every = np.concatenate(list(alone.values()))
    sequence = ListedColormap(colormaps[SEQUENCE[0]](np.linspace(*SEQUENCE[1:])))
    colors = ScalarMappable(Normalize(np.nanmin(every), np.nanmax(every)), sequence)
    figure, panels = drawing.panels(len(runs), columns=min(2, len(runs)), height=1.35 if len(runs) > 1 else 1.9)
    for axes, (label, seeds) in zip(panels, runs.items(), strict=True):
        rounds, table = seeds[0].history.client_table()  # [R], [R, N]
        shown = np.unique(np.r_[np.arange(0, len(rounds), 1 + len(rounds) // 200), len(rounds) - 1])
        how: drawing.Style = {"linewidth": 0.9 if table.shape[1] <= 20 else 0.6, "markersize": 3}
        how["marker"] = "o" if len(rounds) == 1 else None
        for m in np.argsort(alone[label], kind="stable"):
            color = colors.to_rgba(alone[label][m])
            axes.plot(np.array(rounds)[shown], 100 * table[shown, m], color=color, **how)
        drawing.title(axes, label)
        drawing.whole_numbers(axes)
    bar = figure.colorbar(colors, ax=panels, aspect=40, pad=0.02, location="top", fraction=0.05)
    bar.set_label("accuracy reached alone (%)", size=8, color=INK)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(nbins=5)
    bar.ax.tick_params(labelsize=7, width=0.6, length=2.5, color=INK, labelcolor=INK)
    drawing.labels(figure, "round", "accuracy (%)")
    return figure


def neurons(compared: Comparison) -> Figure:
    """Which hidden units every client holds, after they last changed; one panel per method.

    In each group units are sorted by the number of clients that hold them, most on the left; clients by their standalone
    accuracy, where known, the best on top.  Of several seeds the lowest is drawn.
    """
    runs = drawing.runs_with(compared, has_units, "the clients' hidden units")
    firsts = {label: seeds[0].history for label, seeds in runs.items()}
    tables = {label: table[1] for label, run in firsts.items() if (table := unit_table(run))}
    n = max(map(len, tables.values()))
    figure, panels = drawing.panels(len(firsts), height=0.4 + (0.11 if n <= 20 else 1.9 / n) * max(n, 5))
    for axes, (label, run) in zip(panels, firsts.items(), strict=True):
        held, units, alone = tables[label], run.meta["units"], run.contribution
        order = np.arange(len(held)) if alone is None else np.argsort(alone, kind="stable")
        start, gap = 0, 0.02 * held.shape[1]
        ticks = []
        for g, (name, size) in enumerate(zip(units["names"], units["sizes"], strict=True)):
            of_group = held[order, start : start + size]
            of_group = of_group[:, np.argsort(-of_group.sum(axis=0), kind="stable")]
            left = start + g * gap
            spans = np.array([(row, *span) for row, units_ in enumerate(of_group) for span in _stretches(units_)])
            axes.barh(range(len(order)), size, left=left, color=FAINT, linewidth=0)
            if spans.size:
                rows, first, end = spans.T
                axes.barh(rows, end - first, left=left + first, color=drawing.color(0), linewidth=0)
            ticks.append((left + size / 2, f"{name} ({size})"))
            start += size
        axes.set_xlim(0, start + gap * (len(ticks) - 1))
        axes.set_ylim(-0.6, len(held) - 0.4)
        room = WIDTH * min(units["sizes"]) / sum(units["sizes"])  # inches of the narrowest group
        turned: drawing.Style = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        crowded = room < 0.06 * max(len(text) for _, text in ticks)
        at, texts = zip(*ticks, strict=True)
        axes.set_xticks(at, [*map(drawing.plain, texts)], **(turned if crowded else {}))
        few = len(order) <= 20
        axes.set_yticks(range(len(order)) if few else [], [str(m) for m in order] if few else [])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        drawing.title(axes, label)
    drawing.labels(figure, "hidden units, from those that most clients hold", "client")
    return figure


def unit_table(history: History) -> tuple[int, NDArray[np.bool_]] | None:
    """The round in which the clients' hidden units last changed, and those of each client since then.

    Returns
    -------
    The round and a table [N, K], units in the order of the groups of `meta["units"]`; None where clients hold the
    whole model, or the run did not record it.
    """
    sizes = (history.meta.get("units") or {}).get("sizes") or ()
    for record in reversed(history.records) if sizes else ():
        if rows := record.get("units", {}).get("bits"):
            bits = [np.unpackbits(np.frombuffer(bytes.fromhex(row), np.uint8))[: sum(sizes)] for row in rows]
            return record["round"], np.array(bits, dtype=bool)
    return None


def _stretches(held: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where stretches of True begin and end: `[1, 1, 0, 1]` gives `[(0, 2), (3, 4)]`."""
    edges = np.flatnonzero(np.diff(np.r_[False, held, False].astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def presence(compared: Comparison) -> Figure:
    """How often the clients of every group trained, and beside it the main measure that each method has on the group."""
    measure = compared.measure
    if not (shares := attended(compared)):
        raise ValueError("this figure shows clients that come and go, and in these runs all are always there.")
    names = [drawing.plain(name, drawing.SHORT) for name in shares]
    tested = any(name in method["groups"] for method in compared["methods"] for name in shares)
    few, rows = len(names) <= ROWS, range(len(names))
    room = max(0.2, 0.1 + drawing.height(names)) if few else 3 / len(names)
    figure, (left, *right) = drawing.panels(1 + tested, columns=1 + tested, height=room * len(names) + 0.3)
    left.barh(rows, [100] * len(names), 0.7, color=FAINT, linewidth=0)
    left.barh(rows, [float(method[0]) for method in shares.values()], 0.7, color=INK, linewidth=0)
    for axes in right:
        for i, method in enumerate(compared["methods"]):
            accuracy = np.array([method["groups"].get(name, {}).get("mean") for name in shares], dtype=np.float64)
            how: drawing.Style = {"color": drawing.color(i), "label": drawing.plain(method["method"]), "markersize": 4}
            axes.plot(accuracy, rows, MARKERS[i % len(MARKERS)], clip_on=False, **how)
        axes.grid(axis="x", color=FAINT, linewidth=0.5)
        drawing.legend(figure, axes, [method["method"] for method in compared["methods"]])
    shown = (("rounds trained (%)", (0, 100)), (measure.axis(), drawing.axis_ends(measure)))
    for axes, (what, ends) in zip((left, *right), shown, strict=False):
        axes.set_xlim(*ends)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(rows if few else [], names if few else [])
        drawing.labels(axes, what)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    return figure


def _has_clients(run: Run) -> bool:
    return bool(run.summary["clients_counted"])


def clients_differ(run: Run) -> bool:
    """Whether clients of one group differ: with one model and one test set they do not, and their order says nothing."""
    if not _has_clients(run):
        return False
    last = run.clients[1][-1]
    groups = np.array(run.history.client_groups)
    return any(len(np.unique(last[(groups == group) & np.isfinite(last)])) > 1 for group in set(groups))


def has_contribution(run: Run) -> bool:
    """Whether the contribution and the reward of every client are known."""
    return bool(run.summary["collaboration"]) and bool(np.isfinite(np.r_[run.contribution, run.reward]).all())


def has_units(run: Run) -> bool:
    """Whether a run recorded the hidden units of its clients."""
    return unit_table(run.history) is not None
