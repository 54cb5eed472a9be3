"""What happens to the gaps between groups of people: those of the first method, and of every other one against it, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from equipoise.metrics.groups import ESTIMABLE
from equipoise.metrics.measures import ACCURACY, Measure
from equipoise.report import document as content
from equipoise.report.formatting import PERCENT, number
from equipoise.report.notes import listed
from equipoise.report.statistics import gaps_of, without_bounds
from equipoise.system.grouping import grouped
from equipoise.system.text import plural

BEHIND: Final[
    Mapping[str, Sequence[str]]
] = {  # the rates of groups whose gap a measure is, if it does not have their name
    "equal_opportunity": ("tpr",),
    "equalised_odds": ("tpr", "fpr"),
    "demographic_parity": ("selection_rate",),
    "demographic_parity_ratio": ("selection_rate",),
    "predictive_parity": ("ppv",),
    "calibration_gap": ("bias",),
}
NOT_ESTIMABLE: Final = "not estimable"
NAMED: Final = 3  # methods that a sentence names
SMALLER: Final[dict[bool, str]] = {True: "smaller", False: "larger"}


def behind(key: str) -> Sequence[str]:
    """The rates of groups whose gap a measure is."""
    return BEHIND.get(key, (key.removesuffix("_gap"),))


def few_people(parity: content.Parity, measure: Measure) -> dict[str, str]:
    """The gaps that fewer than `ESTIMABLE` people are behind in some group, by key: the smallest group, in words."""
    about = f"of class {parity['positive']}"
    words = {"tpr": f" {about}", "fpr": f" not {about}", "ppv": f" taken for class {parity['positive']}"}
    few: dict[str, str] = {}
    several = parity["counted"] == "people"
    for column in gaps_of(parity, measure):
        sizes: list[tuple[int, str, str, bool]] = []
        for group, rates in parity["methods"][0]["groups"].items():
            row = cast(content.Row, rates)
            n, positive, share = rates["n"], rates.get("of_class"), content.mean_of(row, "selection_rate")
            size = {"tpr": positive, "fpr": None, "ppv": None}
            if n is not None and not several:  # who may have rows of both classes
                size["fpr"] = None if positive is None else n - positive
                size["ppv"] = None if share is None else round(n * share / 100)
            for rate in behind(column.key):
                key = rate if rate in size else "accuracy" if "accuracy" in rates else "rmse"
                estimated = content.mean_of(row, key) is not None
                people = _people(size.get(rate, n), n, parity["least"]) if estimated else 0
                sizes.append((people, rate, group, size.get(rate, 0) is None))
        large = [each for each in sizes if each[0] >= parity["least"]]  # others are in no gap
        smallest, rate, group, rest = min(sizes if len({each[2] for each in large}) < 2 else large)
        if smallest < ESTIMABLE:
            shown = f"< {parity['least']}" if smallest < parity["least"] else "at most " * rest + str(smallest)
            few[column.key] = f"{shown}{words.get(rate, '')} in {group}"
    return few


def _people(about: int | None, n: int | None, least: int) -> int:
    """How many people a rate is about that is shown, at most; enough if their number would tell that of a smaller group."""
    most = n if about is None else about
    return max(ESTIMABLE, least) if most is None else most


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
    gaps = {key: content.mean_of(first, key) for key in both}
    few = few_people(treated.parity, measure)
    if all(gap is None for gap in gaps.values()):
        yield f"By {treated.attribute}, no gap in {' or '.join(both.values())} is estimable: too few people."
        return
    parts = []
    for key, title in both.items():
        gap = gaps[key]
        value = NOT_ESTIMABLE if gap is None else f"{number(gap, digits)} {measure.points}".rstrip()
        why = f" ({'only ' * (gap is not None)}{few[key]})" if key in few else ""
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

    def named(method: content.Gaps) -> str:
        means = [content.mean_of(method, key) for key in both]
        values = " and ".join(NOT_ESTIMABLE if mean is None else number(mean, digits) for mean in means)
        return f"{method['method']} ({values})" if several else f"{values} with {method['method']}"

    if several:
        alike = grouped((_change(method, both), named(method)) for method in others)
        text = "; ".join(f"{what} with {_some(names)}" for what, names in alike.items())
        yield f"Paired over seeds (Holm, p < 0.05), in brackets the gaps in {' and '.join(both.values())}: {text}."
    else:
        yield f"They are {_some([*map(named, others)])}, and one seed tests no difference."


def _change(method: content.Row, both: Mapping[str, str]) -> str:
    """What a method does to two gaps, as far as the tests against the first method show it."""
    shown: dict[str, bool] = {}
    for key, title in both.items():
        test = content.test_of(method, key)
        if test and test["difference"] is not None and test["apart"]:
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
