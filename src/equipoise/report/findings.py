"""What figures and tables show, as their titles: a finding from the numbers where there is one, else what they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import numpy as np

from equipoise.report import answer, document as content
from equipoise.report.document import measure_of
from equipoise.report.figures_of_groups import loss_curve
from equipoise.report.formatting import PERCENT, number, with_unit
from equipoise.report.layout import Sheet, attended
from equipoise.report.statistics import Comparison
from equipoise.system.text import plural

MANY: Final = 4  # names that a title has


Panels = Mapping[str, answer.Panel]  # of the first figure, by what they are about


def figure(name: str, compared: Comparison, usual: str, shown: Sequence[answer.Panel]) -> str:
    """The title of a figure, by its name, with the panels of the first figure; the ``usual`` one where nothing is found."""
    finding = FIGURES.get(name)
    return (finding(compared, {panel.about: panel for panel in shown}) if finding else "") or usual


def table(sheet: Sheet, compared: Comparison) -> str:
    """The title of a table."""
    gaps = any(treated.gaps == sheet.name for treated in content.treated(compared.document))
    text = (_gaps if gaps else _leading)(sheet.name, compared)
    return f"{sheet.heading}: {text}" if text else sheet.heading


def worst_group(compared: Comparison) -> str:
    """Which group is served worst, by every method or by which."""
    methods = [method for method in compared["methods"] if not method["bound"] and not method["failed"]]
    worst = {
        method["method"]: next(iter(method["worst_groups"]), None) for method in methods if len(method["groups"]) > 1
    }
    groups = list(dict.fromkeys(group for method in methods for group in method["worst_groups"]))
    if not groups or len(compared["methods"][0]["groups"]) < 2 or None in worst.values() or len(groups) > MANY:
        return ""
    if len(groups) > 1:
        return f"{' or '.join(groups)} is served worst, depending on method and seed"
    every = "every method" if len(methods) == len(compared["methods"]) else "every method that learned"
    return f"{groups[0]} is served worst" + (f" by {every}" if len(worst) > 1 else "")


def served_worst(compared: Comparison) -> str:
    """Which group is served worst, or what the worst clients have."""
    return worst_group(compared) or _clients(compared)


def _average(panels: Panels) -> str:
    """Which method has the best average and which the lowest spread, as measured."""
    if not {"mean", "spread"} <= panels.keys():
        return ""
    best, even = (_first(panels[about]) for about in ("mean", "spread"))
    lowest = " and the lowest spread" if best == even else f", {even} the lowest spread"
    return f"{best} has the {'highest' if panels['mean'].better == 'higher' else 'lowest'} average{lowest}"


def _first(panel: answer.Panel) -> str:
    """The method with the best number of a panel."""
    return (max if panel.better == "higher" else min)(panel.effects, key=lambda effect: effect.mean or 0.0).method


def _differences(compared: Comparison, panels: Panels) -> str:
    """How many differences to the first method are shown."""
    effects = [effect for panel in panels.values() for effect in panel.effects if effect.test]
    n = sum(effect.better is not None for effect in effects)
    return f"{n or 'None'} of {plural(len(effects), 'difference')} to {compared['methods'][0]['method']} {'is' if n < 2 else 'are'} shown by corrected tests"


def _first_of_several(panels: Panels, about: str, text: str) -> str:
    """A sentence about the method with the best number of a panel; empty where fewer than two have one."""
    panel = panels.get(about)
    return text.format(_first(panel)) if panel and len(panel.effects) > 1 else ""


def _losses(compared: Comparison) -> str:
    """Between which numbers test losses end."""
    curves = [curve for run in compared.histories if (curve := loss_curve(run))]
    ends = [curve[max(curve)] for curve in curves]
    if not np.isfinite(ends).all():
        return ""
    low, high = number(min(ends)), number(max(ends))
    if min(ends) == max(ends):
        return f"The test loss ends at {low}"
    return f"Test losses end between {low} and {high}"


def _clients(compared: Comparison) -> str:
    """What the worst and the best client reach with the first method."""
    spread = compared.document["spread"]
    row = cast(content.Row, spread["methods"][0]) if spread else {}
    measure = compared.measure
    worst = content.mean_of(row, "min" if measure.better == "higher" else "max")
    best = content.mean_of(row, "best10")
    if worst is None or best is None:
        return ""
    return f"With {row['method']} the worst client has {with_unit(worst, measure)}, the best tenth {with_unit(best, measure)}"


def _presence(compared: Comparison) -> str:
    """Who trained most and least often."""
    shares = {name: float(share[0]) for name, share in attended(compared).items()}
    most, least = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    if shares[most] == shares[least]:
        return f"All trained in {shares[most]:.0f}{PERCENT} of the rounds"
    return f"{most} trained in {shares[most]:.0f}{PERCENT} of the rounds, {least} in {shares[least]:.0f}{PERCENT}"


_REWARDS: Final = "Rewards follow contributions most closely with {}"
FIGURES: Final[Mapping[str, Callable[[Comparison, Panels], str]]] = {
    "bars": lambda compared, _: worst_group(compared),
    "tradeoff": lambda _, panels: _average(panels),
    "differences": _differences,
    "convergence": lambda compared, panels: _first_of_several(
        panels, "mean", f"{{}} ends with the {compared.measure.highest} average"
    ),
    "losses": lambda compared, _: _losses(compared),
    "spread": lambda compared, _: _clients(compared),
    "plane": lambda _, panels: _first_of_several(panels, "reward", _REWARDS),
    "contributions": lambda _, panels: _first_of_several(panels, "reward", _REWARDS),
    "presence": lambda compared, _: _presence(compared),
}


def _leading(name: str, compared: Comparison) -> str:
    """Which method has the best average of a measure."""
    table = next((t for t in content.tables(compared.document) if t["measure"].replace("_", "-") == name), None)
    if table is None:
        return ""
    measure = measure_of(table)
    rows = [row for row in content.without_bounds(table["methods"]) if not row["failed"]]
    means = content.means_of(rows, "avg")
    if not means:
        return ""
    best = (max if measure.better == "higher" else min)(means, key=means.__getitem__)
    reached = with_unit(means[best], measure)
    return f"{reached} on average" if len(means) == 1 else f"{best} has the {measure.highest} average, {reached}"


def _gaps(name: str, compared: Comparison) -> str:
    """The largest gap of the first method."""
    treated = next(treated for treated in content.treated(compared.document) if treated.gaps == name)
    measure, row = compared.measure, cast(content.Row, treated.parity["methods"][0])
    lower = [c for c in content.gaps_of(treated.parity, measure) if c.better == "lower"]
    gaps = {column.title: gap for column in lower if (gap := content.mean_of(row, column.key)) is not None}
    if not gaps:
        return "no gap can be estimated"
    largest = max(gaps, key=gaps.__getitem__)
    size = f"{number(gaps[largest], 1)} {measure.points}".rstrip()
    return f"{row['method']}'s largest gap is {size}, in {largest.removesuffix(' gap')}"
