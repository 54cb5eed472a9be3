"""Figures of the global model on the groups, for a paper: Matplotlib figures at the width of a column.

All take a comparison of runs, and raise a ``ValueError`` if no run has the data that they show.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from equipoise.records.history import History
from equipoise.report import document as content, drawing
from equipoise.report.document import interval_of
from equipoise.report.drawing import INK, MARKERS, PALETTE, Axes, Curve, Figure, Vector
from equipoise.report.formatting import FAILED
from equipoise.report.statistics import Comparison, Run

TESTED: Final = {"avg": "AVG", "std": "STD", "worst": "worst group"}


def bars(compared: Comparison) -> Figure:
    """The main measure of the global model on every group, one bar per method; whiskers are 95 % intervals.

    The intervals are over seeds (Student's t); of a method with one seed over the test samples, where these are known.
    The bars are horizontal if there are many, or if the names of the groups are long.
    """
    measure = compared.measure
    runs = drawing.runs_with(compared, has_groups, f"{measure.noun} on groups")
    groups = list(dict.fromkeys(group for seeds in runs.values() for run in seeds for group in run.summary["groups"]))
    horizontal = len(runs) * len(groups) > 20 or sum(len(group) + 2 for group in groups) > 44
    names = [drawing.plain(group, drawing.SHORT) for group in groups]
    room = max(0.075 * (len(runs) + 2), drawing.height(names))
    figure, (axes,) = drawing.panels(1, height=room * len(groups) if horizontal else 1.9)
    width = 0.8 / len(runs)
    ends = _whiskers(compared, groups)
    for k, (i, label, seeds) in enumerate(drawing.numbered(compared, runs)):
        values = [[run.summary["groups"].get(group) for group in groups] for run in seeds]
        draw: Callable[..., object] = axes.barh if horizontal else axes.bar
        at = np.arange(len(groups)) + (k - (len(runs) - 1) / 2) * width
        look: drawing.Style = {"xerr" if horizontal else "yerr": ends[label.removesuffix(FAILED)]}
        look |= {"error_kw": {"elinewidth": 0.8, "ecolor": INK}, "color": drawing.color(i), "edgecolor": "white"}
        look |= {"linewidth": 0, "hatch": ["", "////", "...."][i // len(PALETTE) % 3], "label": drawing.plain(label)}
        draw(at, np.array(values, dtype=np.float64).mean(axis=0), 0.9 * width, **look)
    along, across = (axes.yaxis, axes.xaxis) if horizontal else (axes.xaxis, axes.yaxis)
    along.set_ticks(range(len(groups)), names)
    along.set_tick_params(length=0)
    across.set_label_text(measure.axis(), size=8, color=INK)
    if horizontal:
        axes.margins(y=0.01)
        axes.invert_yaxis()
        drawing.upright_grid(axes)
    (axes.set_xlim if horizontal else axes.set_ylim)(*drawing.axis_ends(measure))
    return drawing.legend(figure, axes, list(runs))


def _whiskers(comparison: Comparison, groups: Sequence[str]) -> dict[str, Vector | None]:
    """How far the 95 % interval of every group reaches below and above its mean [2, D], within what can be, by method."""
    whiskers: dict[str, Vector | None] = {}
    for method in comparison["methods"]:
        mean = np.array([method["groups"][group]["mean"] for group in groups], dtype=np.float64)
        half = np.array([method["groups"][group]["ci95"] for group in groups], dtype=np.float64)
        ends = np.array([interval_of(method, group) or (math.nan, math.nan) for group in groups], dtype=np.float64).T
        ends = np.where(np.isnan(half), ends, np.clip([mean - half, mean + half], *comparison.measure.ends))
        whiskers[method["method"]] = None if np.isnan(ends).all() else np.abs(ends - mean)
    return whiskers


def tradeoff(compared: Comparison) -> Figure:
    """Average of the main measure against its STD over the groups, one point per method: up and to the left is better for accuracy.

    Crosses are 95 % intervals over seeds.
    """
    measure = compared.measure
    runs = drawing.runs_with(compared, has_several_groups, f"{measure.noun} on several groups")
    figure, axes = drawing.plane(2.3)
    for i, label, seeds in drawing.numbered(compared, runs):
        avg, std = (np.array([run.summary[key] for run in seeds], dtype=np.float64) for key in ("avg", "std"))
        drawing.point(axes, std, avg, label, i)
    axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
    low, high = axes.get_ylim()
    least, most, room = *measure.ends, 2 * measure.point(high)
    axes.set_ylim(max(low, least - room), min(high, most + room))  # crosses may be longer
    drawing.labels(axes, measure.axis("STD over the groups", points=True), measure.axis(f"average {measure.noun}"))
    return drawing.legend(figure, axes, list(runs))


def differences(compared: Comparison) -> Figure:
    """Paired differences to the first method, with 95 % intervals over seeds; one panel per statistic of the groups.

    An interval that holds 0, the dashed line, does not distinguish the methods.
    """
    measure, differing = compared.measure, paired_differences(compared)
    span = measure.ends[1] - measure.ends[0]  # no difference is larger
    keys = [key for key in TESTED if any(key in tests for tests in differing.values())]
    if not keys:
        raise ValueError("this figure shows paired differences: expected two methods with two seeds each.")
    names = [drawing.plain(label, drawing.SHORT) for label in differing]
    figure, panels = drawing.panels(len(keys), height=0.36 + max(0.15, drawing.height(names)) * len(names))
    for axes, key in zip(panels, keys, strict=True):
        axes.axvline(0, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
        for row, (i, _, tests) in enumerate(drawing.numbered(compared, differing)):
            if key in tests:
                difference, half = tests[key]
                look: drawing.Style = {"color": drawing.color(i), "markersize": 3.5, "elinewidth": 1.2}
                axes.errorbar(difference, row, xerr=half, marker=MARKERS[i % len(MARKERS)], **look)
                for end, marker in ((-span, "<"), (span, ">")):
                    drawing.beyond(axes, end, row, [abs(difference + math.copysign(half, end)) > span], marker, i)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -span), min(high, span))
        drawing.rows(axes, names, edge=0.6)
        drawing.labels(axes, measure.axis(f"difference in {TESTED[key]}", points=True))
    return figure


def paired_differences(comparison: Comparison) -> dict[str, dict[str, tuple[float, float]]]:
    """Paired differences to the first method and halves of their 95 % intervals, by method and statistic, of the methods that have such."""
    differing: dict[str, dict[str, tuple[float, float]]] = {}
    for method in comparison["methods"][1:]:
        label = method["method"] + FAILED * bool(method["failed"])
        for key in TESTED:
            test = content.test_of(method, key)
            if test and (mean := test["difference"]) is not None and (half := test["ci95"]) is not None:
                differing.setdefault(label, {})[key] = mean, half
    return differing


def convergence(compared: Comparison) -> Figure:
    """Average and worst group over the rounds, one line per method; bands are 95 % intervals over seeds."""
    measure = compared.measure
    runs = drawing.runs_with(compared, has_groups, f"{measure.noun} on groups")
    worst = np.min if measure.better == "higher" else np.max
    reductions: list[tuple[Callable[..., Vector], str]] = [(np.mean, "average"), (worst, "worst group")]
    if not any(has_several_groups(run) for seeds in runs.values() for run in seeds):
        reductions = [(np.mean, measure.noun)]
    figure, panels = drawing.panels(len(reductions), height=1.5, sharex=True)
    tables = {label: [run.group_table(2) for run in seeds] for label, seeds in runs.items()}
    for axes, (reduce, name) in zip(panels, reductions, strict=True):
        for i, label, of_seeds in drawing.numbered(compared, tables):
            curves = [dict(zip(rounds, measure.scale * reduce(x, axis=1), strict=True)) for rounds, x in of_seeds]
            drawing.mean_line(axes, curves, label, i, measure.ends, 0.18)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, measure.ends[0]), min(high, measure.ends[1]))
        drawing.labels(axes, y=measure.axis(name))
    drawing.labels(panels[-1], "round")
    drawing.whole_numbers(panels[-1])
    return drawing.legend(figure, panels[0], list(runs))


def losses(compared: Comparison) -> Figure:
    """Loss of the global model on the test sets, and of the clients in training, round by round; one line per method.

    Of the test loss the mean over the groups; of the training losses the mean over the clients that took part. Of several seeds
    the line is the median, the band reaches from the lowest to the highest seed; that of the training losses from the lowest
    to the highest client. An axis is logarithmic where the losses differ by a factor of 100. It ends at `loss_limit`; a
    triangle there says that a run is beyond, or that its loss is not finite.
    """
    runs = drawing.runs_with(compared, lambda run: bool(loss_curve(run.history)), "a loss on groups")
    tests = {label: [[loss_curve(run.history)] for run in seeds] for label, seeds in runs.items()}
    training = {label: [*filter(None, (training_curves(r.history) for r in seeds))] for label, seeds in runs.items()}
    curves = {"test loss": tests} | ({"loss in training": training} if any(training.values()) else {})
    figure, panels = drawing.panels(len(curves), height=1.9 if len(curves) == 1 else 1.5)
    for axes, (title, by_method) in zip(panels, curves.items(), strict=True):
        _losses(axes, [*drawing.numbered(compared, by_method)])
        drawing.labels(axes, "round", title)
        drawing.whole_numbers(axes)
    return drawing.legend(figure, panels[0], list(runs))


def _losses(axes: Axes, methods: Sequence[tuple[int, str, Sequence[Sequence[Curve]]]]) -> None:
    """By method and seed: the curve of the line, and if they are known those of the lower and the upper end of its band."""
    end = loss_limit([curves[0] for _, _, seeds in methods for curves in seeds])
    drawn = []
    for i, label, seeds in methods:
        if not seeds:
            continue
        rounds = sorted(set.intersection(*(set(curves[0]) for curves in seeds)))
        values = np.array([[[curve[t] for t in rounds] for curve in curves] for curves in seeds])  # [seeds, 1 or 3, R]
        over = (values[:, 0] > end).any(axis=0)
        values = values.clip(max=end)
        drawn.append(values.ravel())
        drawing.line(axes, rounds, np.median(values[:, 0], axis=0), label, i)
        if values.shape[0] * values.shape[1] > 1:
            drawing.band(axes, rounds, values.min((0, 1)), values.max((0, 1)), i, 0.18)
        drawing.beyond(axes, rounds, end, over, "^", i)
    every = np.concatenate(drawn)
    if not drawing.logarithmic(axes, every):
        axes.set_ylim(bottom=0)
    if every.max(initial=0) == end:
        axes.set_ylim(top=end)


def training_curves(history: History) -> list[dict[int, float]]:
    """Mean, lowest and highest loss in training of the clients that took part, by round; empty if not recorded."""
    recorded = {r["round"]: np.array(r["losses"], dtype=np.float64) for r in history.records if r.get("losses")}
    rounds = {t: np.nan_to_num(losses, nan=math.inf) for t, losses in recorded.items()}
    return [{t: float(reduce(x)) for t, x in rounds.items()} for reduce in (np.mean, np.min, np.max)] if rounds else []


def loss_curve(history: History) -> dict[int, float]:
    """Mean over the groups of the test loss of the global model, by round; infinite where one is not finite."""
    curve = {}
    for record in history.records:
        of_groups = [score["loss"] for score in record.get("groups", {}).values() if "loss" in score]
        if of_groups:
            mean = float(np.mean(np.array(of_groups, dtype=np.float64)))  # None is NaN
            curve[record["round"]] = mean if math.isfinite(mean) else math.inf
    return curve


def loss_limit(curves: Sequence[Curve]) -> float:
    """Where the axis of losses ends: at 100 times the lowest of the runs' first losses, and not below 100."""
    firsts = [curve[min(curve)] for curve in curves if curve]
    return 100 * max(1.0, min((first for first in firsts if math.isfinite(first)), default=1.0))


def has_groups(run: Run) -> bool:
    """Whether a run was evaluated on a group."""
    return bool(run.summary["groups"])


def has_several_groups(run: Run) -> bool:
    """Whether a run was evaluated on several groups."""
    return len(run.summary["groups"]) > 1
