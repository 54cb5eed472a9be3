"""The answer of a comparison, before the evidence: its title, a headline, what each method reaches and changes, and what to be careful with.

Figures and tables of the evidence have titles, too: a finding from the numbers where there is one, else what they are of.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from typing import Final, NamedTuple, cast

import numpy as np

from equipoise.metrics.definitions import COLLABORATION, GROUPS, INDICES, Statistic
from equipoise.metrics.measures import ACCURACY
from equipoise.records.history import History
from equipoise.records.meta import LEAK
from equipoise.report import document as content, notes, sentences
from equipoise.report.figures_of_groups import loss_curve
from equipoise.report.formatting import FAILED, PERCENT, Cell, Grid, ends_of_test, interval, number, p_value, with_unit
from equipoise.report.layout import Sheet, attended
from equipoise.report.rates import two_gaps
from equipoise.report.statistics import Comparison
from equipoise.system.grouping import grouped
from equipoise.system.text import key_of, plural

WORDS: Final = 25  # of the headline, at most
NOTICES: Final = 3
NAMED: Final = 4  # groups that a title names
# what panels are about, in the order in which changes to the better are named, and those to the worse
GAINS: Final = ("gap", "worst", "reward", "spread", "mean")
COSTS: Final = ("mean", "worst", "gap", "spread", "reward")


class Effect(NamedTuple):
    """What a method reaches in a panel: its mean, 95 % interval, and difference to the first method.

    `better` is whether the difference, by the test corrected for all of its column, is to the better or to the worse; None where neither is
    shown. `place` is that of the method among all.
    """

    method: str
    place: int
    mean: float | None
    low: float | None
    high: float | None
    test: content.Difference | None
    better: bool | None


class Panel(NamedTuple):
    """One statistic of the methods; `about` is what it says of fairness: mean, worst, spread, gap or reward."""

    about: str
    title: str
    noun: str
    note: str
    better: str
    digits: int
    unit: str
    effects: Sequence[Effect]

    @property
    def scale(self) -> str:
        """What the numbers are, their unit, and which way is better."""
        unit = "%" if self.unit == "points" and self.about in ("mean", "worst") else self.unit
        return ", ".join(filter(None, (self.note, unit, f"{self.better} is better")))

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest number and end of an interval, of different ones."""
        numbers = [x for e in self.effects for x in (e.mean, e.low, e.high) if x is not None]
        low, high = min(numbers), max(numbers)
        return (low, high) if low < high else (low - 1, high + 1)

    @property
    def ends(self) -> tuple[str, str]:
        """The ends of the axis."""
        low, high = self.span
        return number(low, self.digits), number(high, self.digits)

    def x(self, value: float) -> str:
        """Where a number is on an axis of 240 points, with room for the marks."""
        low, high = self.span
        return f"{5 + 230 * (value - low) / (high - low):.1f}"

    def number(self, effect: Effect) -> str:
        """What a method reaches."""
        return number(effect.mean, self.digits)

    def change(self, effect: Effect) -> str:
        """The difference to the first method, in brackets."""
        difference = effect.test and effect.test["difference"]
        return "" if difference is None else f"({number(difference, self.digits, sign=True)})"

    def text(self, effect: Effect) -> str:
        """A number with its interval and the difference to the first method, in words."""
        text = f"{effect.method}: {self.number(effect)} {self.interval(effect)}".rstrip()
        if not effect.test or effect.test["difference"] is None:
            return text
        p = effect.test["holm"] if effect.test["family"] > 1 else effect.test["p"]
        return f"{text}; difference {self.tested(effect)}" + (f", p {p_value(p)}" if p is not None else "")

    def interval(self, effect: Effect) -> str:
        """The 95 % interval of a number."""
        return interval((effect.low, effect.high), self.digits)

    def tested(self, effect: Effect) -> str:
        """The difference to the first method, with its 95 % interval."""
        test = effect.test
        if test is None or test["difference"] is None:
            return ""
        return f"{number(test['difference'], self.digits, sign=True)} {ends_of_test(test, self.digits)}".rstrip()


def panels(comparison: content.Document) -> list[Panel]:
    """What the first figure shows: mean, worst group and spread of the main measure, the gap between people, the reward of contributions.

    Methods that failed are not shown, unless all did: their numbers would hide those of the others.
    """
    return [panel for panel in _panels(comparison) if panel.effects]


def _panels(comparison: content.Document) -> Iterator[Panel]:
    measure, rows, over = content.measure_of(comparison), comparison["methods"], comparison["spread"]
    places = {row["method"]: place for place, row in enumerate(rows)}
    most = 100.0 if measure.points == "points" else math.inf
    groups, clients, rewarded = ({entry.key: entry for entry in x} for x in (GROUPS, INDICES, COLLABORATION))
    some = not all(row["failed"] for row in rows)

    def panel(about: str, rows: Iterable[object], entry: Statistic, title: str, noun: str, note: str = "") -> Panel:
        key, better = entry.key, entry.of(measure).better
        ends = measure.ends if about in ("mean", "worst") else (-100.0, 100.0) if about == "reward" else (0.0, most)
        shown = [cast(content.Row, row) for row in rows]
        effects = [_effect(row, key, better, ends, places) for row in shown if not (some and row.get("failed"))]
        unit, digits = ("points", 2) if about == "reward" else (measure.points, measure.digits)
        return Panel(about, title, noun, note, better, digits, unit, [e for e in effects if e.mean is not None])

    yield panel("mean", rows, groups["avg"], f"Mean {measure.noun}", f"mean {measure.noun}")
    if len(rows[0]["groups"]) > 1:
        worst = {group for row in rows if not row["failed"] for group in row["worst_groups"]}
        name = f", {next(iter(worst))}," if len(worst) == 1 else ""
        note = "".join(worst if name else ())
        yield panel("worst", rows, groups["worst"], "Worst group", f"the worst group{name}", note)
        yield panel("spread", rows, groups["std"], "Spread over groups", "the spread over groups", "standard deviation")
    elif over:
        worst_clients = "worst client" if over["tenth"] == 1 else f"worst {over['tenth']} clients"
        title, noun = worst_clients.capitalize(), f"the {worst_clients}"
        yield panel("worst", over["methods"], clients["worst10"], title, noun, "their mean" * (over["tenth"] > 1))
        spread = ("Spread over clients", "the spread over clients", "standard deviation")
        yield panel("spread", over["methods"], clients["std"], *spread)
    for treated in _people(comparison):
        key, title = next(iter(two_gaps(treated, measure).items()))
        gap = next(entry for entry in content.gaps_of(treated.parity, measure) if entry.key == key)
        noun, note = f"the {treated.noun} gap in {title}", f"highest less lowest, {gap.difference.format(seeds='')}"
        yield panel("gap", treated.parity["methods"], gap, f"Gap by {treated.noun}", noun, note)
    if rewards := comparison["collaboration"]:
        noun, note = "collaborative fairness", "100 × correlation of what clients give and get"
        yield panel("reward", rewards["methods"], rewarded["fairness"], "Collaborative fairness", noun, note)


def _people(comparison: content.Document) -> list[content.Treated]:
    """Those whose treatment the answer is about: with each value of the first attribute, else of each group; empty if not recorded."""
    return sorted(content.treated(comparison), key=lambda treated: not treated.attribute)[:1]


def few(shown: Sequence[Panel], n: int) -> list[Panel]:
    """The same of at most ``n`` methods: the first one, and those that serve best those who are served worst."""
    if not shown or len(shown[0].effects) <= n:
        return [*shown]
    panel = next((panel for panel in shown if panel.about == "worst"), shown[0])
    first, *others = panel.effects
    ranked = sorted(others, key=lambda effect: effect.mean or 0.0, reverse=panel.better == "higher")
    named = {first.method, *(effect.method for effect in ranked[: n - 1])}
    return [panel._replace(effects=[e for e in panel.effects if e.method in named]) for panel in shown]


def _effect(row: content.Row, key: str, better: str, ends: tuple[float, float], places: Mapping[str, int]) -> Effect:
    """A row of a table in one column, whose numbers are between ``ends``."""
    method, values, test = str(row["method"]), content.number_of(row, key), content.test_of(row, key)
    mean, half = values["mean"], values["ci95"]
    low, high = content.ends_of(row, key) or (None, None)
    if mean is not None and half is not None:
        low, high = max(mean - half, ends[0]), min(mean + half, ends[1])
    change = None if row.get("failed") else content.change_of(row, key)
    shown = (change > 0) == (better == "higher") if change else None
    name = f"{method}{FAILED * bool(row.get('failed'))}"
    return Effect(name, places[method], mean, low, high, test, shown)


def headline(comparison: content.Document, shown: Sequence[Panel] | None = None) -> str:
    """What the corrected tests show, in a sentence of at most 25 words: who changes what for whom, and at which cost.

    Parameters
    ----------
    comparison : everything about some runs.
    shown : its :func:`panels`, if they are known.
    """
    if nothing := sentences.nothing_shown(comparison):
        return nothing
    rows, shown = comparison["methods"], panels(comparison) if shown is None else shown
    learners = sentences.who_learned(comparison)
    learned = [row["method"] for row in learners]
    first = rows[0]["method"]
    if not learned:
        name = f"{first} did not learn: it" if len(rows) == 1 else "No method learned enough to be compared: each"
        return f"{name} diverged, or is no better than guessing."
    if len(content.without_bounds(rows)) == 1 or not shown:
        return _one(comparison, learners[0])
    seed = "With this seed, " if len(comparison["seeds"]) == 1 else ""
    if first not in learned:
        return f"{seed}{first} failed, and {_best_of_all(comparison)}."
    every = [(panel, effect) for panel in shown for effect in panel.effects if effect.better is not None]
    changes = {label: [change for change in every if change[1].method == label] for label in learned if label != first}
    return seed + _compared(first, changes, len(comparison["seeds"]), WORDS - len(seed.split()))


def _best_of_all(comparison: content.Document) -> str:
    """Which method is shown to be the best, for the worst group where there are groups."""
    several = len(comparison["methods"][0]["groups"]) > 1
    key, whom = ("worst", "for the worst group") if several else ("avg", "on average")
    leader = comparison["leaders"].get(key)
    best = leader["best"] if leader else None  # of two that cannot be distinguished there is none
    return f"{best} is the best {whom}" if best else f"no other method is shown to be the best {whom}"


Changes = Sequence[tuple[Panel, Effect]]


def _compared(first: str, changes: Mapping[str, Changes], seeds: int, words: int) -> str:
    """The headline of several methods, of what each is shown to change against the first, of at most so many ``words``."""
    if not changes:
        return f"{first} alone learned enough to be judged; no other method did."

    leading = max(changes, key=lambda method: _merit(changes[method]))
    better = _changes([change for change in changes[leading] if change[1].better])
    worse = _changes([change for change in changes[leading] if not change[1].better])
    if not better:
        return _none_better(
            first, {method: of_method for method, of_method in changes.items() if of_method}, seeds, words
        )
    differing = [method for method in changes if changes[method] and method != leading]
    closes = [f"; no other method is shown to differ from {first}" * (len(changes) > 1)]
    if differing:
        verb = "differs" if len(differing) == 1 else "differ"
        names = notes.listed(differing) if len(differing) < 3 else plural(len(differing), "other method")
        closes = [f"; {names} {verb} from {first}, too", f"; {plural(len(differing), 'other')} {verb}, too"]
    if len(differing) == 1:
        closes.insert(0, f"; {differing[0]} {_changes(changes[differing[0]], 1)[0]}")
    cost = f" but {worse[0]}" if worse else ""
    for close in closes:
        for gains in (better[:2], better[:1]):
            if len((text := f"{leading} {_joined(gains)}{cost}{close}.").split()) <= words:
                return text
    return f"{leading} {better[0]}{cost}."


def _merit(changes: Changes) -> tuple[bool, int, int, float]:
    """How good it is what a method changes: whether it is any, for whom, how much."""
    fair = [bool(effect.better) for panel, effect in changes if panel.about != "mean"]
    better = _in_order(changes, GAINS, better=True)
    return bool(better), sum(fair) - fair.count(False), len(better), abs(_difference(better[0][1])) if better else 0.0


def _none_better(first: str, worse: Mapping[str, Changes], seeds: int, words: int) -> str:
    """The headline where no method changes anything to the better, of those that change something to the ``worse``."""
    none = "No method" if seeds > 1 else "no method"  # which follows "With this seed"
    if not worse:
        return f"{none} is shown to differ from {first}" + (f" with {seeds} seeds." if seeds > 1 else ".")
    for n in (2, 1):  # changes that are named of each
        named = [f"{method} {_joined(_changes(changes, n))}" for method, changes in worse.items()]
        text = f"{notes.listed(named)}; no method is shown to be better than {first}."
        if len(text.split()) <= words:
            return text
    names = notes.listed([*worse]) if len(worse) < 3 else plural(len(worse), "method")
    return f"{none} is shown to be better than {first}, and {names} {'is' if len(worse) == 1 else 'are'} worse in a respect."


def _changes(changes: Changes, n: int | None = None) -> list[str]:
    """What a method changes, at most ``n`` of it: to the better first for those served worst, to the worse first at its cost."""
    shown = (*_in_order(changes, GAINS, better=True), *_in_order(changes, COSTS, better=False))
    return [_change(panel, effect) for panel, effect in shown][:n]


def _in_order(changes: Changes, abouts: Sequence[str], *, better: bool) -> list[tuple[Panel, Effect]]:
    """The changes to the better, or to the worse, in the order of what they are about."""
    chosen = [change for change in changes if bool(change[1].better) == better]
    return sorted(chosen, key=lambda change: abouts.index(change[0].about))


def _joined(gains: Sequence[str]) -> str:
    """Gains in a row, a verb that they share once."""
    first, *others = gains
    return " and ".join([first, *(gain.removeprefix(first.split()[0] + " ") for gain in others)])


def _difference(effect: Effect) -> float:
    return (effect.test["difference"] if effect.test else None) or 0.0


def _change(panel: Panel, effect: Effect) -> str:
    """What a method does to a statistic, with a verb."""
    amount = abs(_difference(effect))
    digits = 1 if panel.unit == "points" and amount >= 0.05 else panel.digits
    by = f"{number(amount, digits)} {panel.unit}".rstrip()
    if panel.about == "mean" and panel.better == "higher":
        return f"raises {panel.noun} by {by}" if effect.better else f"costs {by} of {panel.noun}"
    if panel.about in ("gap", "spread"):
        return f"{'narrows' if effect.better else 'widens'} {panel.noun} by {by}"
    up = bool(effect.better) == (panel.better == "higher")
    whose = f"the error of {panel.noun}" if panel.about == "worst" and panel.better == "lower" else panel.noun
    return f"{'raises' if up else 'lowers'} {whose} by {by}"


def _one(comparison: content.Document, row: content.Measured) -> str:
    """What the one method reaches."""
    label, measure = row["method"], content.measure_of(comparison)
    average, worst = content.mean_of(row, "avg"), content.mean_of(row, "worst")
    if average is None:
        return f"{label} was not tested on every group in each of the last rounds."
    text = f"{label} reaches {sentences.reaching(average, measure)}"
    if (missed := _missed(comparison, label)) and len(f"{text} on average; {missed}".split()) <= WORDS:
        return f"{text} on average; {missed}"
    if len(row["groups"]) == 1 or worst is None:
        over = comparison["spread"]
        own = content.row_of(over["methods"], label) if over else None
        at = content.mean_of(own, "worst10") if own else None
        return f"{text} on average" + ("." if at is None else f", and {with_unit(at, measure)} with its worst clients.")
    groups = plural(len(row["groups"]), "group")
    return f"{text} on average over {groups}, and {with_unit(worst, measure)} on the worst."


def _missed(comparison: content.Document, label: str) -> str:
    """In which groups of people a method misses the most and the fewest of the positive class; empty where that is not known."""
    for treated in _people(comparison):
        parity = treated.parity
        row = content.row_of(parity["methods"], label)
        if row is None or parity["positive"] is None or content.measure_of(comparison) != ACCURACY:
            return ""
        missed = {group: 100 - rate for group, rate in content.rates_by_group(row, "tpr").items()}
        if len(missed) > 1:
            most, fewest = max(missed, key=missed.__getitem__), min(missed, key=missed.__getitem__)
            least = f"{missed[fewest]:.0f}{PERCENT} in {fewest}"
            return f"of class {parity['positive']} it misses {missed[most]:.0f}{PERCENT} in {most}, {least}."
    return ""


def title(compared: Comparison) -> str:
    """The data, what is predicted, and whom the groups divide, in the user's words."""
    run = compared.histories[0]
    config = run.meta.get("config") or {}
    options, own = config.get("scenario_options") or {}, compared["scenario"] == "own"
    data = PurePath(str(config.get("data") or "")).stem if own else ""
    predicted = str(options.get("label") or options.get("target") or _classes(run))
    by = [treated.attribute for treated in content.by_attribute(compared.document) if not treated.joined]
    groups = list(compared["methods"][0]["groups"])
    divided = by or (groups if 1 < len(groups) <= NAMED else [plural(len(groups), "group")] * (len(groups) > 1))
    text = data or compared["scenario"] or "A federation"
    text += f": {predicted or compared.measure.noun}"
    return text + (f", {'by' if by else 'in'} {notes.listed(divided)}" if divided else "")


def _classes(run: History) -> str:
    """The positive of two classes, or how many there are; empty if numbers are predicted."""
    if run.positive is not None and len(run.classes) == 2:
        return run.positive.name
    return f"{len(run.classes)} classes" if run.classes else ""


def notices(comparison: content.Document) -> list[str]:
    """What to be careful with, at most three sentences; all stand below."""
    every = warnings(comparison)
    rest = f"{len(every) - NOTICES + 1} more warnings stand below."
    return every if len(every) <= NOTICES else [*every[: NOTICES - 1], rest]


def warnings(comparison: content.Document) -> list[str]:
    """All that to be careful with, the most important first."""
    of_people = [note for treated in content.treated(comparison) for note in treated.parity["notes"]]
    notes_by = grouped((key_of(note), note) for note in dict.fromkeys((*comparison["notes"], *of_people)))
    untuned = "Nothing was tuned, which may favour one of the methods: --tune 16 chooses settings on held-out training samples."
    first = (LEAK, notes.UNEQUAL, notes.CHANGED, notes.UNTUNED)
    return [
        *notes_by.get(LEAK, ()),
        *filter(None, [sentences.failed_methods(comparison["methods"])]),
        *notes_by.get(notes.UNEQUAL, ()),
        *filter(None, [sentences.untested_groups(comparison["methods"]), sentences.guessed_groups(comparison)]),
        *notes_by.get(notes.CHANGED, ()),
        *_seeds(comparison),
        *[untuned] * (notes.UNTUNED in notes_by),
        *chain.from_iterable(notes_by[key] for key in notes_by if key not in first),
    ]


def _seeds(comparison: content.Document) -> Iterator[str]:
    """That there are too few seeds, and how many would do."""
    n = len(comparison["seeds"])
    if n == 1:
        yield sentences.one_seed(comparison["methods"])
        return
    if n == 2:  # how many would do is not known from two
        yield sentences.TWO_SEEDS
        return
    for key, whom in (("worst", "for the worst group"), ("avg", "on average")):
        leader = comparison["leaders"].get(key)
        versus = leader["versus"] if leader else {}
        tied = {label: test.get("seeds_needed") for label, test in versus.items() if not test["apart"]}
        needed = {label: seeds for label, seeds in tied.items() if seeds}
        if leader and needed:
            first = comparison["methods"][0]["method"]  # with which all are compared
            label = first if first in needed else min(needed, key=needed.__getitem__)
            yield f"{n} seeds do not tell {leader['leading']} from {label} {whom}; about {needed[label]} would, if they differ as measured."
            return


def legend(comparison: content.Document, shown: Sequence[Panel]) -> str:
    """What the marks of the figure are."""
    seeds = len(comparison["seeds"])
    over = f"{seeds} seeds" if seeds > 1 else "the test samples"
    text = f"Dots: means; lines: 95{PERCENT} intervals over {over}."
    if not any(effect.test for panel in shown for effect in panel.effects):
        return text
    test = "a paired test over the seeds" if seeds > 1 else "its interval over the test samples"
    first = comparison["methods"][0]["method"]
    doubted = any(_excludes_zero(e.test) and e.better is None for panel in shown for e in panel.effects)
    uncorrected = " The interval of a difference is not corrected: alone it can exclude zero." * doubted
    return f"{text} In brackets: the difference to {first}; green is better and orange worse, where {test}, corrected for all methods, shows it.{uncorrected}"


def _excludes_zero(test: content.Difference | None) -> bool:
    """Whether the interval of a difference, which is not corrected, excludes zero."""
    low, high = (test["low"], test["high"]) if test else (None, None)
    return low is not None and high is not None and not low <= 0 <= high


def table(shown: Sequence[Panel]) -> Grid:
    """The numbers of the figure, a row per method."""
    places = {effect.method: effect.place for panel in shown for effect in panel.effects}
    by_panel = [{effect.method: effect for effect in panel.effects} for panel in shown]

    def cell(panel: Panel, effect: Effect | None) -> Cell:
        """A number, and below it the difference to the first method, of that its own interval."""
        if effect is None:
            return Cell(number(None))
        ends = panel.tested(effect) or panel.interval(effect)
        return Cell(panel.number(effect), ends=ends, best=bool(effect.better), worse=effect.better is False)

    methods = sorted(places, key=places.__getitem__)
    rows = tuple((method, tuple(map(cell, shown, [by.get(method) for by in by_panel]))) for method in methods)
    return Grid(tuple(panel.title for panel in shown), rows)


Panels = Mapping[str, Panel]  # of the first figure, by what they are about


def title_of_figure(name: str, compared: Comparison, usual: str, shown: Sequence[Panel]) -> str:
    """The title of a figure, by its name, with the panels of the first figure; the ``usual`` one where nothing is found."""
    finding = FIGURES.get(name)
    return (finding(compared, {panel.about: panel for panel in shown}) if finding else "") or usual


def title_of_table(sheet: Sheet, compared: Comparison) -> str:
    """The title of a table."""
    of_gaps = [treated for treated in content.treated(compared.document) if treated.gaps == sheet.name]
    text = _gaps(of_gaps[0], compared) if of_gaps else _leading(sheet.name, compared)
    return f"{sheet.heading}: {text}" if text else sheet.heading


def _worst_group(compared: Comparison) -> str:
    """Which group is served worst, by every method or by which."""
    methods = [method for method in compared["methods"] if not method["bound"] and not method["failed"]]
    worst = [next(iter(method["worst_groups"]), None) for method in methods if len(method["groups"]) > 1]
    groups = list(dict.fromkeys(group for method in methods for group in method["worst_groups"]))
    if not groups or len(compared["methods"][0]["groups"]) < 2 or None in worst or len(groups) > NAMED:
        return ""
    if len(groups) > 1:
        return f"{' or '.join(groups)} is served worst, depending on method and seed"
    every = "every method" if len(methods) == len(compared["methods"]) else "every method that learned"
    return f"{groups[0]} is served worst" + (f" by {every}" if len(worst) > 1 else "")


def served_worst(compared: Comparison) -> str:
    """Which group is served worst, or what the worst clients have."""
    return _worst_group(compared) or _clients(compared)


def _average(panels: Panels) -> str:
    """Which method has the best average and which the lowest spread, as measured."""
    if not {"mean", "spread"} <= panels.keys():
        return ""
    best, even = (_first(panels[about]) for about in ("mean", "spread"))
    if not best or not even:
        return ""
    lowest = " and the lowest spread" if best == even else f", {even} the lowest spread"
    return f"{best} has the {'highest' if panels['mean'].better == 'higher' else 'lowest'} average{lowest}"


def _first(panel: Panel) -> str:
    """The method with the best number of a panel; empty if another's reads the same."""
    return _alone({e.method: e.mean for e in panel.effects if e.mean is not None}, panel.better, panel.digits)


def _alone(means: Mapping[str, float], better: str, digits: int) -> str:
    """The method with the best number; empty if another's reads the same."""
    best = (max if better == "higher" else min)(means.values())
    first = [method for method, mean in means.items() if number(mean, digits) == number(best, digits)]
    return first[0] if len(first) == 1 else ""


def _differences(compared: Comparison, panels: Panels) -> str:
    """How many differences to the first method are shown."""
    effects = [effect for panel in panels.values() for effect in panel.effects if effect.test]
    n = sum(effect.better is not None for effect in effects)
    return f"{n or 'None'} of {plural(len(effects), 'difference')} to {compared['methods'][0]['method']} {'is' if n < 2 else 'are'} shown by corrected tests"


def _first_of_several(panels: Panels, about: str, text: str) -> str:
    """A sentence about the method with the best number of a panel; empty where fewer than two have one."""
    panel = panels.get(about)
    first = _first(panel) if panel and len(panel.effects) > 1 else ""
    return text.format(first) if first else ""


def _losses(compared: Comparison) -> str:
    """Between which numbers test losses end."""
    curves = [curve for run in compared.histories if (curve := loss_curve(run))]
    ends = [curve[max(curve)] for curve in curves]
    if not np.isfinite(ends).all():
        return ""
    low, high = number(min(ends)), number(max(ends))
    return f"The test loss ends at {low}" if min(ends) == max(ends) else f"Test losses end between {low} and {high}"


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
    "bars": lambda compared, _: _worst_group(compared),
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
    measure = content.measure_of(table)
    means = content.means_of([row for row in content.without_bounds(table["methods"]) if not row["failed"]], "avg")
    if not means:
        return ""
    best = _alone(means, measure.better, measure.digits)
    if not best:
        return ""
    reached = with_unit(means[best], measure)
    return f"{reached} on average" if len(means) == 1 else f"{best} has the {measure.highest} average, {reached}"


def _gaps(treated: content.Treated, compared: Comparison) -> str:
    """The largest gap of the first method."""
    measure, row = compared.measure, cast(content.Row, treated.parity["methods"][0])
    lower = [c for c in content.gaps_of(treated.parity, measure) if c.better == "lower"]
    gaps = {column.title: gap for column in lower if (gap := content.mean_of(row, column.key)) is not None}
    if not gaps:
        return "no gap can be estimated"
    largest = max(gaps, key=gaps.__getitem__)
    size = f"{number(gaps[largest], 1)} {measure.points}".rstrip()
    return f"{row['method']}'s largest gap is {size}, in {largest.removesuffix(' gap')}"
