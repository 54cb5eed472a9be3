"""Figures of the clients, for a paper: their models, contributions, hidden units, rounds and weights, and what methods measure of them.

All take a comparison of runs, and raise a ``ValueError`` if no run has the data that they show.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.records.history import History
from equipoise.records.record import Record
from equipoise.report import drawing
from equipoise.report.drawing import FAINT, INK, MARKERS, PALETTE, WIDTH, Axes, Figure, Vector
from equipoise.report.formatting import UNDEFINED
from equipoise.report.holdings import ROWS
from equipoise.report.layout import attended
from equipoise.report.statistics import Comparison, Run
from equipoise.system.grouping import grouped

# From dark to light, without the ends, which vanish on a white or dark page.
SEQUENCE: Final = ("plasma", 0.15, 0.82, 24)
MOST: Final = 200  # percent: a weight beyond, which only signed weights can have, is a mark at the edge


def spread(compared: Comparison) -> Figure:
    """The main measure of every client's model, clients sorted from worst to best; several seeds are averaged rank by rank.

    Where runs count different numbers of clients, the axis is the share of the clients, and curves are interpolated linearly
    between the worst client, at 0, and the best, at 100 %.
    """
    measure = compared.measure
    runs = drawing.runs_with(compared, _has_clients, f"the clients' {measure.plural}")
    figure, (axes,) = drawing.panels(1, height=1.9)
    way = 1 if measure.better == "higher" else -1
    values = {label: [r.shown.over_clients(compared.last) for r in seeds] for label, seeds in runs.items()}
    curves = {label: [np.sort(measure.scale * x)[::way] for x in of_seeds] for label, of_seeds in values.items()}
    numbers = {len(curve) for seeds in curves.values() for curve in seeds}
    n = max(numbers)
    shares = np.linspace(0, 1, n)
    for i, label, seeds in drawing.numbered(compared, curves):
        at = range(1, n + 1) if len(numbers) == 1 else 100 * shares
        ranked = np.mean([np.quantile(curve, shares)[::way] for curve in seeds] if len(numbers) > 1 else seeds, axis=0)
        axes.plot(at, ranked, markersize=3.2 if n <= 50 else 2, markeredgewidth=0.6, **drawing.mark(label, i))
    share = "" if len(numbers) == 1 else "share of the clients (%)"
    drawing.labels(axes, f"{share or 'client'}, from worst to best", measure.axis())
    drawing.whole_numbers(axes)
    return drawing.legend(figure, axes, list(runs))


def contributions(compared: Comparison) -> Figure:
    """What every client reaches alone beside what it owns in the end: Fig. 4 of FedSAC; one panel per method.

    Clients are in the order of what they reach alone, so that bars rise where reward follows contribution; of more than
    20 what they reach alone is a mark on the bar.  The number is the fairness.  Of several seeds the lowest is drawn.
    """
    runs = drawing.runs_with(compared, has_contribution, "what clients reach alone")
    n = max(len(seeds[0].contribution) for seeds in runs.values())
    height = 1.9 if len(runs) == 1 else 1.25 if n <= 20 else 1.0
    figure, panels = drawing.panels(len(runs), columns=1 if n > 20 or len(runs) == 1 else 2, height=height, sharey=True)
    for axes, (label, seeds) in zip(panels, runs.items(), strict=True):
        alone, owned = seeds[0].contribution, seeds[0].reward
        order = np.argsort(alone, kind="stable")
        alone, owned, at = 100 * alone[order], 100 * owned[order], np.arange(len(alone))
        if len(alone) > 20:
            axes.set_xticks([])
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
    both = np.concatenate([np.r_[run.contribution, run.reward] for run, *_ in runs.values()])
    low, high = (reduce(100 * both) for reduce in (np.nanmin, np.nanmax))
    panels[0].set_ylim(max(0.0, low - 0.35 * (high - low) - 1), min(100.0, high + 0.05 * (high - low) + 0.5))
    whose = "clients in the order of what they reach" if n > 20 else "client, in the order of what it reaches"
    drawing.labels(figure, f"{whose} alone", "accuracy (%)")
    return drawing.legend(figure, panels[0], ["alone", "owned"])


def plane(compared: Comparison) -> Figure:
    """Collaborative fairness against the accuracy of the best client: Fig. 3 of FedSAC; one point per method.

    Crosses are 95 % intervals over seeds.  A method whose fairness is not defined is a dashed line at its accuracy.
    """
    runs = drawing.runs_with(compared, has_contribution, "what clients reach alone")
    figure, axes = drawing.plane(2.3)
    for i, label, seeds in drawing.numbered(compared, runs):
        numbers = [run.summary["collaboration"] for run in seeds]
        fairness, best = (np.array([row[key] for row in numbers], dtype=np.float64) for key in ("fairness", "max"))
        if not np.isfinite(fairness).all():
            look: drawing.Style = {"color": drawing.color(i), "label": drawing.plain(label)}
            axes.axhline(best.mean(), linestyle=(0, (4, 2)), linewidth=1.1, **look)
            continue
        drawing.point(axes, fairness, best, label, i)
    left, right = axes.get_xlim()
    axes.set_xlim(max(left, -104), min(right, 104))  # fairness ends at 100, error bars may not
    drawing.labels(axes, "collaborative fairness (100 × Pearson)", "accuracy of the best client (%)")
    return drawing.legend(figure, axes, list(runs))


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
    figure, panels = drawing.panels([*runs], columns=min(2, len(runs)), height=1.35 if len(runs) > 1 else 1.9)
    for axes, (label, seeds) in zip(panels, runs.items(), strict=True):
        rounds, table = seeds[0].history.client_table()  # [R], [R, N]
        places = np.unique(np.r_[np.arange(0, len(rounds), 1 + len(rounds) // 200), len(rounds) - 1])
        look: drawing.Style = {"linewidth": 0.9 if table.shape[1] <= 20 else 0.6, "markersize": 3}
        look["marker"] = "o" if len(rounds) == 1 else None
        for m in np.argsort(alone[label], kind="stable"):
            axes.plot(np.array(rounds)[places], 100 * table[places, m], color=colors.to_rgba(alone[label][m]), **look)
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
    figure, panels = drawing.panels([*firsts], height=0.4 + (0.11 if n <= 20 else 1.9 / n) * max(n, 5))
    for axes, (label, run) in zip(panels, firsts.items(), strict=True):
        bits, units, alone = tables[label], run.meta["units"], run.contribution
        order = np.arange(len(bits)) if alone is None else np.argsort(alone, kind="stable")
        start, gap = 0, 0.02 * bits.shape[1]
        ticks = []
        for g, (name, size) in enumerate(zip(units["names"], units["sizes"], strict=True)):
            of_group = bits[order, start : start + size]
            of_group = of_group[:, np.argsort(-of_group.sum(axis=0), kind="stable")]
            left = start + g * gap
            edges = np.diff(np.pad(of_group, ((0, 0), (1, 1))).astype(np.int8))
            (rows, first), (_, end) = np.nonzero(edges == 1), np.nonzero(edges == -1)  # of stretches of held units
            axes.barh(range(len(order)), size, left=left, color=FAINT, linewidth=0)
            axes.barh(rows, end - first, left=left + first, color=drawing.color(0), linewidth=0)
            ticks.append((left + size / 2, f"{name} ({size})"))
            start += size
        axes.set_xlim(0, start + gap * (len(ticks) - 1))
        axes.set_ylim(-0.6, len(bits) - 0.4)
        room = WIDTH * min(units["sizes"]) / sum(units["sizes"])  # inches of the narrowest group
        at, texts = zip(*ticks, strict=True)
        drawing.names_below(axes, at, [*map(drawing.plain, texts)], room < 0.06 * max(map(len, texts)))
        shown = order if len(order) <= 20 else ()
        axes.set_yticks(range(len(shown)), [*map(str, shown)])
        drawing.bare(axes)
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
            look: drawing.Style = {"color": drawing.color(i), "label": drawing.plain(method["method"]), "markersize": 4}
            axes.plot(accuracy, rows, MARKERS[i % len(MARKERS)], clip_on=False, **look)
        axes.grid(axis="x", color=FAINT, linewidth=0.5)
        drawing.legend(figure, axes, [method["method"] for method in compared["methods"]])
    axes_of = (("rounds trained (%)", (0, 100)), (measure.axis(), drawing.axis_ends(measure)))
    for axes, (title, ends) in zip((left, *right), axes_of, strict=False):
        axes.set_xlim(*ends)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(rows if few else [], names if few else [])
        drawing.labels(axes, title)
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


def weights(compared: Comparison) -> Figure:
    """Weight of every client over the rounds, coloured by group, with the mean of each group; one panel per method.

    Without groups each client has a colour, or where there are more than colours, all have one.  The dashed line is an equal
    share.  Of several seeds the lowest is drawn; of very many clients or rounds, every n-th.
    """
    runs = drawing.runs_with(compared, has_recorded("weights"), "the clients' weights")
    firsts = {label: seeds[0].history for label, seeds in runs.items()}
    names = {label: run.client_groups if any(run.client_groups) else run.client_names for label, run in firsts.items()}
    groups = list(dict.fromkeys(group for of_run in names.values() for group in of_run))
    if len(groups) > len(drawing.PALETTE) and not any(any(run.client_groups) for run in firsts.values()):
        groups = [""]
    figure, panels = drawing.panels([*firsts], columns=min(2, len(firsts)), height=1.35 if len(firsts) > 1 else 1.9)
    for axes, (label, run) in zip(panels, firsts.items(), strict=True):
        rounds, table = map(np.array, run.weight_table())  # [R], [R, N]
        table *= 100
        for i, group in enumerate(groups):
            members = table[:, np.array(names[label]) == group] if group else table
            for column in members.T[:: 1 + len(members.T) // 100]:
                active = np.flatnonzero(np.isfinite(column))
                active = active[:: 1 + len(active) // 200]
                axes.plot(rounds[active], column[active], color=drawing.color(i), linewidth=0.6, alpha=0.35)
            if group:
                _mean(axes, rounds, members, group, i)
            for sign, marker in ((1, "^"), (-1, "v")):
                drawing.beyond(axes, rounds, sign * MOST, (sign * members > MOST).any(axis=1), marker, i)
        taking_part = np.isfinite(table).sum(axis=1)
        share = np.where(taking_part, 100 / taking_part.clip(1), np.nan)
        axes.plot(rounds, share, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
        drawing.whole_numbers(axes)
    every = np.concatenate([axis.get_ydata() for axes in panels for axis in axes.lines])
    every = every[np.isfinite(every)]
    panels[0].set_ylim(max(1.05 * every.min(initial=0), -MOST), min(1.05 * every.max(initial=0), MOST) or 1)
    drawing.labels(figure, "round", "weight (%)")
    return drawing.legend(figure, panels[0], groups) if any(groups) else figure


def _mean(axes: Axes, rounds: NDArray[np.int64], members: Vector, group: str, i: int) -> None:
    """The mean of a group's clients [R, n] in every round in which one of them was there."""
    count = np.isfinite(members).sum(axis=1)
    mean = np.nansum(members, axis=1)[count > 0] / count[count > 0]
    drawing.line(axes, rounds[count > 0], mean, group, i, linewidth=1.6, markersize=6)


class Quantity(NamedTuple):
    """What methods measure and record in every round.

    Parameters
    ----------
    title : of its panel.
    meaning : what it is, with its equation.
    lines : how many numbers there are of a round, the last the method's; 0 for one number per client.
    """

    title: str
    meaning: str
    lines: int = 0


MEASURED: Final = {
    "distances": Quantity(
        "distance d",
        "Distance d: squared length of the update that a client sent, of its kept entries (FedHEAL, Eq. 11); with distance=norms the sum "
        "of the lengths of its tensors.",
    ),
    "distance_variance": Quantity(
        "variance of distances",
        "Variance over the clients of the squared distance between their models and the mean model (FedHEAL, Eq. 10), with "
        "FedAvg's weights for that mean (dashed) and with those of the method.",
        2,
    ),
    "sharpness": Quantity(
        "sharpness S",
        "Sharpness S: how much a client's training loss rises at the search distance of the round (FedISM+, Eq. 10).",
    ),
    "perturbed_loss": Quantity(
        "perturbed loss L", "Perturbed loss L: a client's training loss at that distance (FedISM+, Eq. 11){loss}."
    ),
    "reputation": Quantity(
        "reputation", "Reputation: the standing that decides what a client gets (of FedSAC, Eqs. 5 and 6)."
    ),
    "kept": Quantity("share kept", "Share kept: of all entries of the updates (FedHEAL, Eq. 9).", 1),
    "step_length": Quantity(
        "length of the step", "Length of the step: divided by that of the plain mean of the updates.", 1
    ),
    "step_cosine": Quantity("cosine of the step", "Cosine of the step with that mean.", 1),
}


def measured(compared: Comparison, keys: Sequence[str] = tuple(MEASURED)) -> Figure:
    """What methods measured in every round, by group of clients; one panel per quantity and method.

    The line is the mean over a group's clients, the band reaches from the lowest to the highest.  Panels of one quantity have
    one scale, which is logarithmic where values differ by a factor of 100.  Of several seeds the lowest is drawn.

    Parameters
    ----------
    compared : the runs.
    keys : of `MEASURED`.
    """
    runs = drawing.runs_with(compared, lambda run: bool(measured_in([run.history], keys)), "what a method measured")
    firsts = {label: seeds[0].history for label, seeds in runs.items()}
    plotted = [(key, label) for key in keys for label, run in firsts.items() if measured_in([run], [key])]
    titles = [MEASURED[key].title + f", {label}" * (len(compared.runs) > 1) for key, label in plotted]
    single = len(titles) == 1
    figure, panels = drawing.panels(titles, columns=2 - single, height=1.9 if single else 1.25, sharey=False)
    tables = [measured_table(firsts[label], key) for key, label in plotted]
    by_client = [
        (axes, firsts[label]) for axes, (key, label) in zip(panels, plotted, strict=True) if not MEASURED[key].lines
    ]
    groups = list(dict.fromkeys(chain.from_iterable(run.client_groups for _, run in by_client)))
    for axes, (key, label), (rounds, table) in zip(panels, plotted, tables, strict=True):
        if MEASURED[key].lines:
            _measured_lines(axes, rounds, table)
        else:
            _measured_clients(axes, rounds, table, np.array(firsts[label].client_groups), groups)
        drawing.whole_numbers(axes)
    scales = ((key, (axes, table)) for axes, (key, _), (_, table) in zip(panels, plotted, tables, strict=True))
    for same in grouped(scales).values():
        _one_scale(*zip(*same, strict=True))
    drawing.labels(figure, "round")
    return drawing.legend(figure, by_client[0][0], groups) if any(groups) else figure


def _measured_lines(axes: Axes, rounds: NDArray[np.int64], table: Vector) -> None:
    """The numbers of a round as lines, the last, which is the method's, below the others."""
    for column, last in zip(table.T[::-1], (True, False), strict=False):
        look: drawing.Style = {"color": INK} if last else {"color": PALETTE[6], "linestyle": (0, (3, 1)), "zorder": 3}
        axes.plot(rounds, column, linewidth=1.1, marker="o" if len(rounds) == 1 else None, markersize=3, **look)


def _measured_clients(
    axes: Axes, rounds: NDArray[np.int64], table: Vector, of_client: NDArray[np.str_], groups: Sequence[str]
) -> None:
    """The numbers of the clients by group: their mean, and a band from the lowest to the highest."""
    for i, group in enumerate(groups):
        members = table[:, of_client == group]
        if (present := np.isfinite(members).any(axis=1)).any():
            _mean(axes, rounds, members, group, i)
            low, high = (reduce(members[present], axis=1) for reduce in (np.nanmin, np.nanmax))
            drawing.band(axes, rounds[present], low, high, i)


def _one_scale(panels: Sequence[Axes], tables: Sequence[Vector]) -> None:
    """Let panels have one scale, which is logarithmic where values differ by a factor of 100."""
    every = np.concatenate([np.ravel(table) for table in tables])
    drawing.logarithmic(panels[0], every[np.isfinite(every)])
    for axes in panels[1:]:
        axes.sharey(panels[0])
    panels[0].autoscale(axis="y")


def measured_in(histories: Sequence[History], keys: Sequence[str] = tuple(MEASURED)) -> list[str]:
    """Which of the quantities in `MEASURED` some run recorded."""
    return [key for key in keys if any(r.get(key) is not None for run in histories for r in run.records)]


def measured_table(history: History, key: str) -> tuple[NDArray[np.int64], Vector]:
    """The rounds [R] in which a run recorded a quantity, and its numbers [R, N], NaN for absent clients, or [R, lines]."""
    records = [record for record in history.records if record.get(key) is not None]
    lines = MEASURED[key].lines
    table = np.full((len(records), lines or len(history.client_groups)), np.nan)
    for row, record in zip(table, records, strict=True):
        row[slice(None) if lines else record["ids"]] = record.get(key)
    return np.array([record["round"] for record in records]), table


def consistency(compared: Comparison) -> Figure:
    """How steadily parameters were pushed one way, early and at the end: Fig. 2 of FedHEAL; one panel per method.

    The consistency of a parameter is the share of the rounds so far in which a client moved it the way it moves it now
    (Chen et al. 2024, Eq. 7): k of n rounds, and the bar of k reaches from (k - 1/2) / n to (k + 1/2) / n. The filled bars
    are the last recorded round, the outline is round 9, or the first recorded after it.  Counts of several seeds are
    added.  Of runs that recorded bins only, these are drawn.
    """
    runs = drawing.runs_with(compared, has_recorded("consistency"), "the consistency of updates")
    several = len(runs) > 1
    figure, panels = drawing.panels([*runs] if several else 1, columns=1 + several, height=1.6 if several else 2.0)
    for axes, seeds in zip(panels, runs.values(), strict=True):
        by_round = [{r["round"]: r for r in run.history.records if r.get("consistency")} for run in seeds]
        late = min(max(of_run) for of_run in by_round)
        for t in dict.fromkeys((late, next((t for t in sorted(by_round[0]) if t >= 9), late))):
            density, edges = density_of([of_run[t] for of_run in by_round if t in of_run])
            look: drawing.Style = {"color": drawing.color(0), "fill": True, "alpha": 0.75}
            if t != late:
                look = {"color": INK, "linewidth": 1.1}
            axes.stairs(density, edges, label=f"round {t}", **look)
        axes.set_xlim(-0.06, 1.06)
        axes.legend(fontsize=7, frameon=False, labelcolor=INK, loc="upper left")
    drawing.labels(figure, "update consistency", "density of the parameters")
    return figure


def density_of(records: Sequence[Record]) -> tuple[Vector, Vector]:
    """Density of the update entries over the consistency [K], and the edges [K + 1] between which it is so large.

    Parameters
    ----------
    records : with `agreement`, or with the bins `consistency`.
    """
    bars: list[tuple[Vector, Vector]] = []  # edges and counts
    for record in records:
        exact = [(np.arange(len(counts) + 1) - 0.5) / (len(counts) - 1) for counts in record.get("agreement") or ()]
        bins = record.get("consistency", ())
        binned = [np.linspace(0, 1, len(bins) + 1)]
        counts = record["agreement"] if exact else [bins]
        bars += zip(exact or binned, [np.asarray(row, dtype=np.float64) for row in counts], strict=True)
    edges = np.unique(np.concatenate([ends for ends, _ in bars]))
    middle, height = (edges[1:] + edges[:-1]) / 2, np.zeros(len(edges) - 1)
    for ends, bar in bars:
        at = np.searchsorted(ends, middle) - 1
        inside = (at >= 0) & (at < len(bar))
        height[inside] += (bar / np.diff(ends))[at[inside]]
    return height / max(sum(counts.sum() for _, counts in bars), 1), edges


def has_recorded(key: str) -> Callable[[Run], bool]:
    """Whether a run recorded something, in any round."""
    return lambda run: any(record.get(key) for record in run.history.records)
