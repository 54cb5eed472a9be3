"""Rates of a classifier's decisions by group of people: their table, their figure, who is missed how often, and the gaps, in sentences.

``fairness`` is everywhere ``Comparison["group_fairness"]``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np

from equipoise.metrics.definitions import two_stated
from equipoise.metrics.groups import ESTIMABLE
from equipoise.metrics.measures import ACCURACY, Measure
from equipoise.privacy.suppression import enough, text_of
from equipoise.report import document as content, drawing
from equipoise.report.document import ends_of, gaps_of, mean_of, rate_of, without_bounds
from equipoise.report.drawing import Figure
from equipoise.report.formatting import PERCENT, UNDEFINED, Cell, Grid, interval, number
from equipoise.report.notes import FOLLOWS, UNPROTECTED, listed
from equipoise.system.grouping import grouped
from equipoise.system.text import Said, plural

FEW: Final = 4  # groups that a sentence names one by one
TITLES: Final = {  # of two classes, or of one against the rest
    "accuracy": "accuracy",
    "tpr": "true-positive rate",
    "fpr": "false-positive rate",
    "selection_rate": "selection rate",
}
OF_MANY: Final = {"accuracy": "accuracy", "worst_recall": "recall of the worst class"}
OF_NUMBERS: Final = {"rmse": "RMSE", "mae": "MAE", "error": "mean error", "prediction": "mean prediction"}


def titles(fairness: content.Parity, measure: Measure = ACCURACY) -> dict[str, str]:
    """The rates that are shown, by key: with one positive class its rates, with many the recall of the worst one; of numbers their errors."""
    return OF_NUMBERS if measure != ACCURACY else OF_MANY if fairness["positive"] is None else TITLES


def count(n: int | None, rate: content.Rate | None, least: int) -> Cell:
    """How many people a rate is about; a dash if there are enough, and their number would tell that of a smaller group."""
    return Cell(text_of(n, least, few=rate is None or rate["mean"] is None))


def grid(fairness: content.Parity, measure: Measure = ACCURACY, shown: Mapping[str, str] | None = None) -> Grid:
    """The table of the rates, by default of those of `titles`: a row per group, and method if there are several."""
    shown = titles(fairness, measure) if shown is None else shown
    digits, few = measure.digits if measure.of_target else 1, f"< {fairness['least']}"
    rows: dict[str, dict[str, Cell]] = {}
    for method in fairness["methods"]:
        for group, rates in method["groups"].items():
            name = f"{method['method']}, {group}" if len(fairness["methods"]) > 1 else group
            row = rows[name] = {"n": count(rates["n"], rate_of(rates, next(iter(shown))), fairness["least"])}
            for key, title in shown.items():
                if key == "tpr":
                    row[f"of {fairness['positive']}"] = count(rates["of_class"], rate_of(rates, key), fairness["least"])
                row[measure.axis(title)] = _cell(rate_of(rates, key), few, digits)
                if key == "worst_recall":
                    row["worst class"] = Cell(rates["worst_class"] or UNDEFINED)
    return Grid(tuple(next(iter(rows.values()))), tuple((name, tuple(row.values())) for name, row in rows.items()))


def explained(fairness: content.Parity, measure: Measure = ACCURACY) -> list[str]:
    """What the columns of that table are, a sentence each."""
    several, shown = len(fairness["seeds"]) > 1, titles(fairness, measure)
    every = [rates for method in fairness["methods"] for rates in method["groups"].values()]
    brackets = any(rate_of(rates, key)["low"] is not None for rates in every for key in shown)
    over = "over the test samples (Wilson)" if measure == ACCURACY else "over the seeds (Student's t)"
    if several and measure == ACCURACY:
        over += ", the mean of its ends over the seeds; or that over the seeds (Student's t), where it reaches farther"
    size = f"n: {fairness['counted']}.{f' In brackets: 95{PERCENT} interval {over}.' * brackets}"
    if measure != ACCURACY:
        meaning = "Mean error: mean of predicted less true; above 0, too much is predicted for the people of the group."
        return [size, meaning, *_few(fairness, shown)]
    text = "Recall of the worst class: of the test samples of the class that is recognised worst in the group, how many are recognised."
    if fairness["positive"] is not None:
        text = (
            f"True-positive rate: of the test samples of class {fairness['positive']}, how many are recognised; the rest is missed. "
            "False-positive rate: of the others, how many are taken for it. Selection rate: of all, how many are taken for it."
        )
    return [*filter(None, [missed(fairness)]), size, text, *_few(fairness, shown)]


def _few(fairness: content.Parity, titles: Mapping[str, str]) -> Iterator[str]:
    """The numbers that are about too few people, and those that are about enough with some of the seeds only."""
    every = [rates for method in fairness["methods"] for rates in method["groups"].values()]
    if fairness["least"] > 1 and any(rate_of(rates, key)["mean"] is None for rates in every for key in titles):
        noun = "rate" if titles is not OF_NUMBERS else "number"
        text = f"n < {fairness['least']}: a {noun} about so few is not shown, and is in no gap (--least-group). {UNPROTECTED}"
        yield Said(text, "few")
    sizes = [(rates, rates["n"], next(iter(titles))) for rates in every]
    sizes += [(rates, rates["of_class"], "tpr") for rates in every if "tpr" in titles]
    if any(n is None and rate_of(rates, key)["mean"] is not None for rates, n, key in sizes):
        yield FOLLOWS.format(fairness["least"])
    rated = grouped(
        (f"in group {group} over {k} of {n} seeds", title)
        for method in fairness["methods"]
        for group, rates in method["groups"].items()
        for key, title in titles.items()
        if 0 < (k := rate_of(rates, key)["seeds"]) < (n := len(method["seeds"]))
    )
    for where, few in rated.items():
        yield f"{listed([*dict.fromkeys(few)]).capitalize()} {where}: with the others about fewer than {fairness['least']} {fairness['counted']}."


def narrow(titles: Sequence[str]) -> dict[str, str]:
    """Titles in a narrow terminal, by title: a word a line."""
    return {title: "\n".join(title.replace(" (%)", "\u00a0(%)").split(" ")) for title in titles}


def _cell(rate: content.Rate, few: str, digits: int) -> Cell:
    """A rate with its 95 % interval."""
    if rate["mean"] is None:
        return Cell(f"n {few}")
    return Cell(number(rate["mean"], digits), ends=interval((rate["low"], rate["high"]), digits))


def missed(fairness: content.Parity) -> str:
    """Who is missed how often: the first sentence of a report on groups of people; empty where no rate is known."""
    positive = fairness["positive"]
    many = positive is None
    key = "worst_recall" if many else "tpr"
    about = "the class that it recognises worst" if many else f"class {positive}"
    first, *others = without_bounds(fairness["methods"])
    rated = {group: rates for group, rates in first["groups"].items() if rate_of(rates, key)["mean"] is not None}
    if not rated:
        return ""

    def missing(group: str) -> str:
        rate, worst = rate_of(rated[group], key), f", class {rated[group]['worst_class']}," if many else ""
        between = "" if rate["low"] is None else f" ({_missed(rate['high'])} to {_missed(rate['low'])})"
        return f"{_missed(rate['mean'])} in group {group}{worst}{between}"

    ordered = sorted(rated, key=lambda group: rate_of(rated[group], key)["mean"] or 0.0)
    shown = ordered if len(ordered) <= FEW else [ordered[0], ordered[-1]]
    text = f"Of 100 test samples of {about}, {first['method']} misses {listed([*map(missing, shown)])}"
    if len(ordered) > FEW:
        text += f", the most and the fewest of {len(ordered)} groups"
    for other in others:
        text += f"; {other['method']} " + listed([_in_group(other["groups"].get(group), key) for group in shown])
    if hidden := [group for group in first["groups"] if group not in rated]:
        few = f"fewer than {fairness['least']}" if fairness["least"] > 1 else "none"
        text += f"; of {'some class' if many else about} there are {few} in group {listed(hidden)}"
    return Said(f"{text}.", "missed")


def _in_group(rates: content.RatesOfGroup | None, key: str) -> str:
    """How many of 100 are missed in a group, of many classes with the class; a dash where it has no such rate."""
    if rates is None or (mean := rate_of(rates, key)["mean"]) is None:
        return UNDEFINED
    return _missed(mean) + (f" (class {rates['worst_class']})" if key == "worst_recall" else "")


def _missed(percent: float | None) -> str:
    return "" if percent is None else f"{100 - percent:.0f}"


def figure(fairness: content.Parity, every: Sequence[str] = ()) -> Figure:
    """The rates of every group with their 95 % intervals, a panel per rate; groups with too few people have none.

    Parameters
    ----------
    fairness : `Comparison["group_fairness"]`.
    every : all methods in their order, those without rates too, so that each has its colour of other figures.
    """
    shown, methods = titles(fairness), fairness["methods"]
    groups = list(dict.fromkeys(group for method in methods for group in method["groups"]))
    names = [drawing.plain(group, drawing.SHORT) for group in groups]
    room = max(0.2, drawing.height(names), 0.09 * (len(methods) + 1))
    plot, panels = drawing.panels(len(shown), columns=2, height=room * len(groups) + 0.35)
    for axes, (key, title) in zip(panels, shown.items(), strict=True):
        for k, method in enumerate(methods):
            i = every.index(method["method"]) if every else k
            rows = np.arange(len(groups)) + (k - (len(methods) - 1) / 2) * 0.7 / len(methods)
            rates = [rate_of(of_group, key) if (of_group := method["groups"].get(group)) else None for group in groups]
            numbers = [(rate["mean"], rate["low"], rate["high"]) if rate else [None] * 3 for rate in rates]
            mean, low, high = np.array(numbers, dtype=np.float64).T
            look = drawing.mark(method["method"], i) | {"fillstyle": "full", "markersize": 3.5, "elinewidth": 1.0}
            axes.errorbar(mean, rows, xerr=np.nan_to_num(np.abs([mean - low, high - mean])), **look)
        axes.set_xlim(-2, 102)
        drawing.rows(axes, names)
        drawing.labels(axes, f"{title} (%)")
    drawing.legend(plot, panels[0], [method["method"] for method in methods])
    return plot


# what happens to the gaps
NOT_ESTIMABLE: Final = "not estimable"
NAMED: Final = 3  # methods that a sentence names
SMALLER: Final[dict[bool, str]] = {True: "smaller", False: "larger"}


def few_people(parity: content.Parity, measure: Measure) -> dict[str, str]:
    """The gaps that fewer than `ESTIMABLE` people are behind in some group, by key: the smallest group, in words."""
    about = f"of class {parity['positive']}"
    words = {"tpr": f" {about}", "fpr": f" not {about}", "ppv": f" taken for class {parity['positive']}"}
    groups, few = parity["methods"][0]["groups"].items(), dict[str, str]()
    for column in gaps_of(parity, measure):
        sizes = [
            (*_people(rates, rate, parity), rate, group)
            for group, rates in groups
            for rate in column.rates or (measure.name,)  # of a gap between no rates it is all people
        ]
        large = [size for size in sizes if enough(size[0], parity["least"])]  # others are in no gap
        several = len({group for *_, group in large}) > 1
        smallest, rest, rate, group = min(large if several else sizes, key=lambda size: (size[0], *size[2:]))
        if smallest < ESTIMABLE:
            shown = "at most " * rest + str(smallest) if enough(smallest, parity["least"]) else f"< {parity['least']}"
            few[column.key] = f"{shown}{words.get(rate, '')} in {group}"
    return few


def _people(rates: content.RatesOfGroup, rate: str, parity: content.Parity) -> tuple[int, bool]:
    """How many people of a group a rate that is shown is about, and whether that is at most; enough if their number would tell that of a smaller group."""
    row, n, positive = cast(content.Row, rates), rates["n"], rates.get("of_class")
    size, share = {"tpr": positive, "fpr": None, "ppv": None}, mean_of(row, "selection_rate")
    if n is not None and parity["counted"] != "people":  # who may have rows of both classes
        size["fpr"] = None if positive is None else n - positive
        size["ppv"] = None if share is None else round(n * share / 100)
    key = rate if rate in size else "accuracy" if "accuracy" in rates else "rmse"
    most = n if (about := size.get(rate)) is None else about
    people = max(ESTIMABLE, parity["least"]) if most is None else most
    return people if mean_of(row, key) is not None else 0, size.get(rate, 0) is None


def two_gaps(treated: content.Treated, measure: Measure) -> dict[str, str]:
    """The two gaps that sentences have, always both: titles by key."""
    columns = two_stated(gaps_of(treated.parity, measure))[::-1]
    return {column.key: column.title.removesuffix(" gap") for column in columns}


def changes(treated: content.Treated, measure: Measure) -> Iterator[str]:
    """The gaps of the first method with the noise of one test set, and which methods change them, by the paired tests over seeds."""
    methods = [method for method in without_bounds(treated.parity["methods"]) if not method["failed"]]
    if not methods or methods[0] is not treated.parity["methods"][0]:  # nothing to compare with
        return
    both, digits = two_gaps(treated, measure), measure.digits if measure.of_target else 1
    first, *others = methods
    gaps = {key: mean_of(first, key) for key in both}
    few = few_people(treated.parity, measure)
    if all(gap is None for gap in gaps.values()):
        yield f"By {treated.attribute}, no gap in {' or '.join(both.values())} is estimable: too few people."
        return
    parts = []
    for key, title in both.items():
        gap = gaps[key]
        value = NOT_ESTIMABLE if gap is None else f"{number(gap, digits)} {measure.points}".rstrip()
        remark = f" ({'only ' * (gap is not None)}{few[key]})" if key in few else ""
        parts.append(f"{value} in {title}{remark}")
    noise = [interval(ends, digits) for key, gap in gaps.items() if (ends := ends_of(first, key)) and gap is not None]
    chance = f"; the people of one test set alone leave {' and '.join(noise)} (95{PERCENT} interval)" * bool(noise)
    yield f"By {treated.attribute}, {first['method']}'s gaps are {listed(parts)}{chance}."
    if not others:
        return
    several = len(treated.parity["seeds"]) > 1

    def named(method: content.Gaps) -> str:
        means = [mean_of(method, key) for key in both]
        values = " and ".join(NOT_ESTIMABLE if mean is None else number(mean, digits) for mean in means)
        return f"{method['method']} ({values})" if several else f"{values} with {method['method']}"

    if several:
        alike = grouped((_change(method, both), named(method)) for method in others)
        text = "; ".join(f"{change} with {_some(names)}" for change, names in alike.items())
        yield f"Paired over seeds (Holm, p < 0.05), in brackets the gaps in {' and '.join(both.values())}: {text}."
    else:
        yield f"They are {_some([*map(named, others)])}, and one seed tests no difference."


def _change(method: content.Row, both: Mapping[str, str]) -> str:
    """What a method does to two gaps, as far as the tests against the first method show it."""
    changed = {title: content.change_of(method, key) for key, title in both.items()}
    shown = {title: change < 0 for title, change in changed.items() if change is not None}
    if not shown:
        return "no change is shown"
    if len(shown) == len(both) and len({*shown.values()}) == 1:
        return f"both gaps are {SMALLER[next(iter(shown.values()))]}"
    return " and ".join(f"the gap in {title} is {SMALLER[smaller]}" for title, smaller in shown.items())


def _some(names: list[str]) -> str:
    """The names of a few methods; of more the number of the others."""
    return listed(names if len(names) <= NAMED + 1 else [*names[:NAMED], plural(len(names) - NAMED, "other")])
