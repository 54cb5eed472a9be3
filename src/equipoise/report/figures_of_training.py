"""Figures of the training, for a paper: weights of the clients, quantities that methods measure, update consistency.

All take a comparison of runs, and raise a ``ValueError`` if no run has the data that they show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from equipoise.report import drawing
from equipoise.report.drawing import INK, PALETTE, Vector
from equipoise.report.statistics import Comparison, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from equipoise.records.history import History
    from equipoise.records.record import Record

MOST: Final = 200  # percent: a weight beyond, which only signed weights can have, is a mark at the edge


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
    figure, panels = drawing.panels(len(firsts), columns=min(2, len(firsts)), height=1.35 if len(firsts) > 1 else 1.9)
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
        drawing.title(axes, label)
        drawing.whole_numbers(axes)
    every = np.concatenate([axis.get_ydata() for axes in panels for axis in axes.lines])
    every = every[np.isfinite(every)]
    panels[0].set_ylim(max(1.05 * every.min(initial=0), -MOST), min(1.05 * every.max(initial=0), MOST) or 1)
    drawing.labels(figure, "round", "weight (%)")
    if any(groups):
        drawing.legend(figure, panels[0], groups)
    return figure


def _mean(axes: Axes, rounds: NDArray[np.int64], members: Vector, group: str, i: int) -> None:
    """The mean of a group's clients [R, n] in every round in which one of them was there."""
    count = np.isfinite(members).sum(axis=1)
    mean = np.nansum(members, axis=1)[count > 0] / count[count > 0]
    drawing.line(axes, rounds[count > 0], mean, group, i, linewidth=1.6, markersize=6)


@dataclass(frozen=True)
class Quantity:
    """What a method measures and records in every round.

    Parameters
    ----------
    title : above a panel.
    caption : what it is, with its equation.
    lines : how many numbers there are of a round, the last the method's; 0 for one number per client.
    """

    title: str
    caption: str
    lines: int = 0


MEASURED: Final = {
    "distances": Quantity(
        "distance d",
        "Distance d: squared length of the update that a client sent, of its kept entries (FedHEAL, Eq. 11); with "
        "distance=norms the sum of the lengths of its tensors.",
    ),
    "distance_variance": Quantity(
        "variance of distances",
        "Variance over the clients of the squared distance between their models and the mean model (FedHEAL, Eq. 10), "
        "with FedAvg's weights for that mean (dashed) and with those of the method.",
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
    shown = [(key, label) for key in keys for label, run in firsts.items() if measured_in([run], [key])]
    by_client = [label for key, label in shown if not MEASURED[key].lines]
    groups = list(dict.fromkeys(chain.from_iterable(firsts[label].client_groups for label in by_client)))
    single = len(shown) == 1
    figure, panels = drawing.panels(len(shown), columns=2 - single, height=1.9 if single else 1.25, sharey=False)
    tables = [measured_table(firsts[label], key) for key, label in shown]
    for axes, (key, label), (rounds, table) in zip(panels, shown, tables, strict=True):
        if MEASURED[key].lines:
            _measured_lines(axes, rounds, table)
        else:
            _measured_clients(axes, rounds, table, np.array(firsts[label].client_groups), groups)
        drawing.title(axes, MEASURED[key].title + f", {label}" * (len(compared.runs) > 1))
        drawing.whole_numbers(axes)
    for key in dict.fromkeys(key for key, _ in shown):
        same = [k for k, (other, _) in enumerate(shown) if other == key]
        _one_scale([panels[k] for k in same], [tables[k][1] for k in same])
    drawing.labels(figure, "round")
    if any(groups):
        drawing.legend(figure, panels[[MEASURED[key].lines for key, _ in shown].index(0)], groups)
    return figure


def _measured_lines(axes: Axes, rounds: NDArray[np.int64], table: Vector) -> None:
    """The numbers of a round as lines, the last, which is the method's, below the others."""
    for column, last in zip(table.T[::-1], (True, False), strict=False):
        how: drawing.Style = {"color": INK} if last else {"color": PALETTE[6], "linestyle": (0, (3, 1)), "zorder": 3}
        axes.plot(rounds, column, linewidth=1.1, marker="o" if len(rounds) == 1 else None, markersize=3, **how)


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
    every = every[np.isfinite(every)]
    if 0 < 100 * every.min(initial=math.inf) <= every.max(initial=0):
        panels[0].set_yscale("log")
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
    figure, panels = drawing.panels(len(runs), columns=min(2, len(runs)), height=1.6 if len(runs) > 1 else 2.0)
    for axes, (label, seeds) in zip(panels, runs.items(), strict=True):
        by_round = [{r["round"]: r for r in run.history.records if r.get("consistency")} for run in seeds]
        late = min(max(of_run) for of_run in by_round)
        early = next((t for t in sorted(by_round[0]) if t >= 9), late)
        for t in dict.fromkeys((late, early)):
            density, edges = density_of([of_run[t] for of_run in by_round if t in of_run])
            how: drawing.Style = {"color": drawing.color(0), "fill": True, "alpha": 0.75}
            if t != late:
                how = {"color": INK, "linewidth": 1.1}
            axes.stairs(density, edges, label=f"round {t}", **how)
        axes.set_xlim(-0.06, 1.06)
        drawing.title(axes, label if len(runs) > 1 else "")
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
