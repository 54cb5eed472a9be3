"""A threshold that was chosen: sentences, tables of what it does by group, reliability and ROC curves."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from equipoise.privacy.suppression import text_of
from equipoise.records.history import worded
from equipoise.records.threshold import Chosen, Estimate, RatesAt
from equipoise.report import drawing
from equipoise.report.drawing import Figure
from equipoise.report.formatting import PERCENT, UNDEFINED, Cell, Grid, interval, number
from equipoise.report.notes import UNPROTECTED
from equipoise.system.text import Said

HEAD: Final = "Test rows"
EVERYONE: Final = "all"
VALIDATION: Final = "validation rows"
CURVES: Final = 6  # groups in a figure


def sentences(chosen: Chosen) -> Iterator[str]:
    """What was chosen, for what and on which rows."""
    rows, by_group, positive = chosen["rows"], chosen["by_group"], chosen["positive"]
    origin = "held out of training" if rows["source"] == "clients" else "of the server"
    if by_group is None:
        yield f"Threshold {chosen['threshold']:.4g}: class {positive} is predicted where its probability is at least that."
    else:
        by = by_group["attribute"]
        listed = ", ".join(f"{value:.4g} for {worded(by, name)}" for name, value in by_group["thresholds"].items())
        yield f"Thresholds by {by}: {listed}; {chosen['threshold']:.4g} where {by} is not known. Class {positive} is predicted from them on."
    cases = f"{rows['of_class']:,}" if rows["of_class"] is not None else f"fewer than {chosen['least']} or nearly all"
    yield f"Chosen for {chosen['rule']}, on {rows['n']:,} validation rows {origin}, {cases} of class {positive}."
    yield from missed_aims(chosen)
    yield from chosen["notes"]


def missed_aims(chosen: Chosen) -> Iterator[str]:
    """Where the interval on test rows is below the sensitivity or specificity that was asked for."""
    kind, asked = chosen["aim"]["kind"], chosen["aim"]["value"]
    if kind != "sensitivity" and kind != "specificity":
        return
    tested = dict(groups(chosen))
    for name, group in chosen["validation"].items():
        if name not in tested or (name == EVERYONE and chosen["by_group"] is not None):  # each group has its own
            continue
        on_test, validated = tested[name][kind], group[kind]  # type: ignore[literal-required]
        if on_test["high"] is not None and on_test["high"] < float(asked):
            before = f", and on the validation rows {_text(validated)}" * (validated["value"] is not None)
            yield (
                f"The test rows miss what was asked for: a {kind} of {100 * float(asked):g}{PERCENT}. It is {_text(on_test)} on them"
                f"{f', {name}' * (name != EVERYONE)}{before}. Expect what the test rows show."
            )


def rates(chosen: Chosen) -> Grid:
    """What the threshold does, a row for all test rows and for every group; those of validation rows are next to them."""
    keys: Final = ("sensitivity", "specificity", "selection_rate")

    def cells(group: RatesAt) -> tuple[Cell, ...]:
        return (*counts(group, chosen["least"]), *(_cell(group[key]) for key in keys))

    rows = []
    for name, group in groups(chosen):
        rows.append((name, cells(group)))
        if (validated := chosen["validation"].get(name)) is not None:
            rows.append((f"{name}, {VALIDATION}", cells(validated)))
    return Grid(("n", f"of {chosen['positive']}", *(f"{key.replace('_', ' ')} (%)" for key in keys)), tuple(rows))


def counts(group: RatesAt, least: int) -> list[Cell]:
    """How many samples a group has, and how many of them are of the positive class."""
    few = group["n"] is None and not group["withheld"]
    return [Cell(text_of(n, least, few=few)) for n in (group["n"], group["of_class"])]


def hidden(chosen: Chosen) -> str:
    """Why counts are not shown, in a sentence; nothing if all are."""
    every = [group for _, group in groups(chosen)] + [*chosen["validation"].values()]
    if not any(group["withheld"] or (group["n"] is not None and group["of_class"] is None) for group in every):
        return ""
    return f"{UNDEFINED}: fewer than {chosen['least']} are of one of the classes, or the number, taken from the total, would tell that of a smaller group. {UNPROTECTED}"


def probabilities(chosen: Chosen) -> Grid:
    """How good the probabilities are, a row for all test rows, for these recalibrated, and for every group."""
    rows = [(name, (_cell(x["auc"]), _plain(x["brier"]), _plain(x["ece"]))) for name, x in groups(chosen)]
    if (after := chosen["recalibration"]) is not None:
        cells = (Cell(UNDEFINED), _plain(after["brier"]), _plain(after["ece"]))
        rows.insert(1, (f"{EVERYONE}, after {after['kind']}", cells))
    return Grid(("AUC (%)", "Brier", "ECE"), tuple(rows))


def explained(chosen: Chosen) -> list[str]:
    """What the columns of both tables are."""
    positive = chosen["positive"]
    return [
        f"In brackets: 95{PERCENT} intervals (Wilson; AUC: Newcombe). The threshold was chosen on the validation rows, which makes "
        "their rates look better.",
        f"Sensitivity: of class {positive}, how many are recognised; specificity: of the others, how many are not taken for it; selection rate: of "
        "all, how many are taken for it.",
        Said("Brier, from 0 to 2, and ECE, over 15 bins of confidence: lower is better.", "probabilities"),
        " ".join(filter(None, (f"Nothing is shown of fewer than {chosen['least']}.", hidden(chosen)))),
    ]


def groups(chosen: Chosen) -> Iterator[tuple[str, RatesAt]]:
    """All test rows, and every group, by name."""
    yield EVERYONE, chosen["everyone"]
    for division in chosen["divisions"]:
        yield from ((f"{division['by']} {name}", group) for name, group in division["groups"].items())


def figure(chosen: Chosen) -> Figure:
    """Reliability of the probabilities on all test rows, and the ROC curves of the groups of the first division, or of all."""
    plot, (left, right) = drawing.panels(2, columns=2, height=1.7, sharey=False)
    bins = [[100 * float(row[key] or 0) for key in ("score", "value", "low", "high")] for row in chosen["reliability"]]
    score, share, low, high = np.array(bins or [[math.nan] * 4]).T
    look = drawing.mark(EVERYONE, 0) | {"markersize": 3, "elinewidth": 0.8}
    left.errorbar(score, share, yerr=np.abs([share - low, high - share]), **look)
    drawing.labels(left, "mean probability (%)", f"are {drawing.plain(chosen['positive'], drawing.SHORT)} (%)")
    divided = [(division["by"], division["groups"]) for division in chosen["divisions"][:1]]
    named = [(name, group) for _, by in divided for name, group in by.items() if group["roc"] is not None][:CURVES]
    named = named or [(EVERYONE, chosen["everyone"])] * (chosen["everyone"]["roc"] is not None)
    for i, (name, group) in enumerate(named):
        curve = 100 * np.array(group["roc"])
        drawing.line(right, np.linspace(0, 100, len(curve)), curve, name, i)
    drawing.labels(right, "false-positive rate (%)", "true-positive rate (%)")
    for axes in (left, right):
        axes.plot([0, 100], [0, 100], color=drawing.FAINT, linewidth=0.8, zorder=0)
        axes.set(xlim=(-2, 102), ylim=(-2, 102))
    return drawing.legend(plot, right, [name for name, _ in named])


CAPTION: Final = (
    "Left: reliability of the probabilities of the positive class on all test rows, in 10 bins of equal width, with 95\u00a0% intervals (Wilson); on the "
    "grey line they are right. Right: ROC curves of the groups; on the grey line the model does not distinguish the classes."
)


def _cell(estimate: Estimate) -> Cell:
    """A share in percent with its interval."""
    ends = [None if end is None else 100 * end for end in (estimate["value"], estimate["low"], estimate["high"])]
    return Cell(number(ends[0], 1), ends=interval(ends[1:], 1))


def _text(estimate: Estimate) -> str:
    """A share in a sentence, with its interval."""
    cell = _cell(estimate)
    return f"{cell.mean}{PERCENT} {cell.ends}"


def _plain(value: float | None) -> Cell:
    return Cell(number(value, 3))
