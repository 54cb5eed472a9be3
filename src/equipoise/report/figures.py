"""Every figure of the report, by name: what draws it, which runs have it, and its caption."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from equipoise.records.history import History
from equipoise.report import drawing, figures_of_clients as of_clients, figures_of_groups as of_groups, rates
from equipoise.report.drawing import Figure
from equipoise.report.holdings import Holdings, example_images, who_has_what
from equipoise.report.layout import attended
from equipoise.report.statistics import Comparison, Run
from equipoise.system.suggestions import require_known


class Plot(NamedTuple):
    """A figure of the report.

    Parameters
    ----------
    draw : makes it.
    has : something that is true if the runs hold the data for it.
    heading : on a page; in brackets, what depends on the runs.
    """

    draw: Callable[[Comparison], Figure]
    has: Callable[[Comparison], object]
    heading: str


def held(comparison: Comparison) -> Holdings:
    """Who has what in the first run that knows it, see `equipoise.data.holdings`; empty if none does."""
    return next((holdings for history in comparison.histories if (holdings := history.meta.get("holdings"))), {})


def of_runs(has: Callable[[Run], bool]) -> Callable[[Comparison], object]:
    """Those of the runs that have something."""
    return lambda comparison: comparison.runs_with(has)


DATA: Final = ("data", "examples")  # figures of the data, in which no method failed
PLOTS: Final = {
    "data": Plot(lambda compared: who_has_what(held(compared), compared["least"]), held, "Clients{classes} and groups"),
    "examples": Plot(
        lambda compared: example_images(held(compared)), lambda compared: held(compared).get("examples"), "Examples"
    ),
    "bars": Plot(of_groups.bars, of_runs(of_groups.has_groups), "{title} by group"),
    "rates": Plot(
        lambda compared: rates.figure(compared["group_fairness"], list(compared.runs)),
        lambda compared: compared["group_fairness"],
        "Rates by group",
    ),
    "tradeoff": Plot(
        of_groups.tradeoff,
        lambda compared: len(compared.runs) > 1 and compared.runs_with(of_groups.has_several_groups),
        "{title} and fairness",
    ),
    "differences": Plot(of_groups.differences, of_groups.paired_differences, "Differences and their intervals"),
    "convergence": Plot(of_groups.convergence, of_runs(of_groups.has_groups), "Convergence"),
    "losses": Plot(of_groups.losses, of_runs(lambda run: bool(of_groups.loss_curve(run.history))), "Loss over rounds"),
    "plane": Plot(of_clients.plane, of_runs(of_clients.has_contribution), "Fairness of contribution and reward"),
    "contributions": Plot(of_clients.contributions, of_runs(of_clients.has_contribution), "Contribution and reward"),
    "clients": Plot(of_clients.clients, of_runs(of_clients.has_contribution), "Clients over the rounds"),
    "neurons": Plot(of_clients.neurons, of_runs(of_clients.has_units), "Hidden units by client"),
    "spread": Plot(of_clients.spread, of_runs(of_clients.clients_differ), "Clients from worst to best"),
    "presence": Plot(of_clients.presence, attended, "Who trained how often"),
    "weights": Plot(of_clients.weights, of_runs(of_clients.has_recorded("weights")), "Weights"),
    "measured": Plot(
        of_clients.measured, lambda compared: of_clients.measured_in(compared.histories), "What the method measured"
    ),
    "consistency": Plot(of_clients.consistency, of_runs(of_clients.has_recorded("consistency")), "Update consistency"),
}
CAPTIONS: Final = {  # by name; in brackets, what is stated only where it applies
    "data": "{holdings}{seed}",
    "examples": "A few of the clients' images, by group.{seed}",
    "bars": "{title} on every group, {when}.{whiskers}",
    "rates": "How the global model treats the people of each group{positive}, {when}, with 95 % intervals. Groups with too few people have none.",
    "tradeoff": "Average {noun} against its standard deviation over the groups, {when}: {up} and to the left is better.{crosses}",
    "differences": "Paired differences to {first}, with 95 % intervals over seeds. Where an interval holds 0, the dashed line, these seeds do not "
    "distinguish the methods. No interval is corrected for the number of differences; the verdict is. A lower STD is fairer. Bounds, which are not "
    "tested, are not here.",
    "convergence": "Average over the groups and worst group, round by round{complete}.{worst}{bands}",
    "losses": "Loss of the global model on the test sets, mean over the groups{tests}.{training}{range}{beyond}",
    "plane": "Collaborative fairness against the accuracy of the best client: up and right is better.{crosses}{dashed}",
    "contributions": "Accuracy that every client reaches alone, and that of the model it gets; clients sorted by the accuracy they reach alone. "
    "The number is the fairness; the axis need not begin at 0.{seed}",
    "clients": "Accuracy of the model of every client, round by round; the colour is the accuracy it reaches alone.{seed}",
    "neurons": "Hidden units that every client holds (filled), those that most clients hold on the left; clients in the order of their standalone "
    "accuracy, the best on top.{seed}",
    "spread": "{title} of the model each client predicts with, {when}, clients sorted from worst to best, each tested on {tested}.{clients}{ranks}",
    "presence": "Share of the rounds in which a client trained, mean over the clients of a group and over seeds; on the right the {noun} of the "
    "global model on the group, {when}, if it has a test set.",
    "weights": "Weight of every client{grouped}. The dashed line is an equal share.{seed}",
    "measured": "{measured} Line: mean over the clients of a group; band: from the lowest to the highest client.{seed}",
    "consistency": "Update consistency: the share of rounds in which a client moved a parameter the way it moves it now. Mass at the right means "
    "that clients keep moving in the same direction.{kept}",
}


def draw(compared: Comparison, name: str) -> Figure:
    """The figure of a name.

    Raises
    ------
    ValueError : the runs hold no data for it.
    """
    available = [key for key, plot in PLOTS.items() if plot.has(compared)]
    require_known("figure of these runs", available, name)
    return PLOTS[name].draw(compared)


def draw_all(histories: Sequence[History] | Comparison) -> dict[str, Figure]:
    """Every figure that the histories hold the data for, by name."""
    compared = Comparison.of(histories) if histories else None
    return {name: plot.draw(compared) for name, plot in PLOTS.items() if compared is not None and plot.has(compared)}


def save_all(
    histories: Sequence[History] | Comparison,
    directory: str | os.PathLike[str],
    formats: Sequence[str] = ("pdf", "png"),
) -> list[Path]:
    """Write every figure that the histories hold the data for; return the paths.

    Parameters
    ----------
    histories : runs of one scenario, or a comparison of them.
    directory : where to write; made if missing.
    formats : endings that matplotlib knows; `pdf` and `svg` are vector graphics, `png` is written at 300 dots per inch.
    """
    return drawing.save(draw_all(histories), directory, formats)
