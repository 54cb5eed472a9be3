"""What happens to the gaps between groups of people: those of the first method, and of every other one against it, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from equipoise.metrics.groups import ESTIMABLE
from equipoise.metrics.measures import ACCURACY, Measure
from equipoise.report import document as content
from equipoise.report.formatting import PERCENT, number
from equipoise.report.notes import listed
from equipoise.report.statistics import gaps_of, without_bounds
from equipoise.system.text import plural

ABOUT: Final[Mapping[str, Sequence[str]]] = {  # of which people a gap is, if not of all
    "equal_opportunity": ("tpr",),
    "equalised_odds": ("tpr", "fpr"),
    "predictive_parity": ("ppv",),
}
NOT_ESTIMABLE: Final = "not estimable"
NAMED: Final = 3  # methods that a sentence names
SMALLER: Final[dict[bool, str]] = {True: "smaller", False: "larger"}


def few_people(parity: content.Parity, measure: Measure) -> dict[str, str]:
    """The gaps that fewer than `ESTIMABLE` people are behind in some group, by key: the smallest group, in words."""
    about = f"of class {parity['positive']}"
    words = {"": "", "tpr": f" {about}", "fpr": f" not {about}", "ppv": f" taken for class {parity['positive']}"}
    few: dict[str, str] = {}
    for column in gaps_of(parity, measure):
        sizes: list[tuple[int, str, str]] = []
        for group, rates in parity["methods"][0]["groups"].items():
            n, positive, selected = rates["n"], rates.get("of_class"), rates.get("selection_rate")
            chosen = selected and n is not None and selected["mean"] is not None and round(n * selected["mean"] / 100)
            others = None if n is None or positive is None else n - positive
            main = rates["accuracy"] if "accuracy" in rates else rates["rmse"]
            size = {
                "": _people(n, main),
                "tpr": _people(positive, rates.get("tpr")),
                "fpr": _people(others, rates.get("fpr")),
                "ppv": _people(chosen, rates.get("ppv")),
            }
            sizes += [(size[rate], rate, group) for rate in ABOUT.get(column.key, ("",))]
        large = [each for each in sizes if each[0] >= parity["least"]]  # others are in no gap
        smallest, rate, group = min(sizes if len({group for _, _, group in large}) < 2 else large)
        if smallest < ESTIMABLE:
            shown = f"< {parity['least']}" if smallest < parity["least"] else str(smallest)
            few[column.key] = f"{shown}{words[rate]} in {group}"
    return few


def _people(n: int | None, rate: content.Rate | None) -> int:
    """How many people a rate is about; without a number of them enough if there is a rate, and none if not."""
    return n if n else ESTIMABLE if rate and rate["mean"] is not None else 0


def columns(treated: content.Treated, measure: Measure) -> dict[str, str]:
    """The two gaps that sentences have, always both: titles by key."""
    if measure != ACCURACY:
        keys = ("error_gap", "mae_gap")
    else:
        many = treated.parity["positive"] is None
        keys = ("accuracy_gap", "worst_recall") if many else ("equal_opportunity", "demographic_parity")
    titles = {column.key: column.title for column in gaps_of(treated.parity, measure)}
    return {key: titles[key].removesuffix(" gap") for key in keys}


def changes(treated: content.Treated, measure: Measure) -> Iterator[str]:
    """The gaps of the first method with the noise of one test set, and which methods change them, by the paired tests over seeds."""
    methods = [method for method in without_bounds(treated.parity["methods"]) if not method["failed"]]
    if not methods or methods[0] is not treated.parity["methods"][0]:  # nothing to compare with
        return
    both, digits = columns(treated, measure), measure.digits if measure.of_target else 1
    first, *others = methods
    gaps = {key: content.number_of(first, key)["mean"] for key in both}
    few = few_people(treated.parity, measure)
    if all(gap is None for gap in gaps.values()):
        yield f"By {treated.attribute}, no gap in {' or '.join(both.values())} is estimable: too few people."
        return
    parts = []
    for key, title in both.items():
        gap = gaps[key]
        value = NOT_ESTIMABLE if gap is None else f"{number(gap, digits)} {measure.points}".rstrip()
        why = f" ({few[key]}{f': {NOT_ESTIMABLE}' * (gap is not None)})" if key in few else ""
        parts.append(f"{value} in {title}{why}")
    noise = [
        f"±{number(max(ends[1] - gap, gap - ends[0]), digits)}"
        for key, gap in gaps.items()
        if (ends := content.ends_of(first, key)) and gap is not None
    ]
    chance = f"; the people of one test set alone leave {' and '.join(noise)} (95{PERCENT} interval)" * bool(noise)
    yield f"By {treated.attribute}, {first['method']}'s gaps are {listed(parts)}{chance}."
    if not others:
        return
    several = len(treated.parity["seeds"]) > 1
    alike: dict[str, list[str]] = {}
    for method in others:
        values = " and ".join(number(content.number_of(method, key)["mean"], digits) for key in both)
        name = f"{method['method']} ({values})" if several else f"{values} with {method['method']}"
        alike.setdefault(_change(method, both) if several else "", []).append(name)
    if several:
        text = "; ".join(f"{what} with {_some(names)}" for what, names in alike.items())
        yield f"Paired over seeds (Holm, p < 0.05), in brackets the gaps in {' and '.join(both.values())}: {text}."
    else:
        yield f"They are {_some(alike[''])}, and one seed tests no difference."


def _change(method: content.Row, both: Mapping[str, str]) -> str:
    """What a method does to two gaps, as far as the tests against the first method show it."""
    shown: dict[str, bool] = {}
    for key, title in both.items():
        test = content.test_of(method, key)
        if test and test["difference"] is not None and test["holm"] is not None and test["holm"] < 0.05:
            shown[title] = test["difference"] < 0
    if not shown:
        return "no change is shown"
    if len(shown) == len(both) and len({*shown.values()}) == 1:
        return f"both gaps are {SMALLER[next(iter(shown.values()))]}"
    return " and ".join(f"the gap in {title} is {SMALLER[smaller]}" for title, smaller in shown.items())


def _some(names: list[str]) -> str:
    """The names of a few methods; of more the number of the others."""
    if len(names) <= NAMED + 1:
        return listed(names)
    return listed([*names[:NAMED], plural(len(names) - NAMED, "other")])
