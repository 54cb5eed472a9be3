"""The report for a committee: two printed pages, in words first, for readers who decide about a model and do not train any."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, cast

import numpy as np

from equipoise.metrics.intervals import newcombe
from equipoise.metrics.measures import ACCURACY
from equipoise.metrics.statistics import permuted
from equipoise.privacy.suppression import in_words
from equipoise.records.criteria import COLLABORATION, ORACLE
from equipoise.records.history import History, worded
from equipoise.records.meta import About, Content
from equipoise.records.threshold import USES_GROUP, Chosen, Division, Estimate, RatesAt, score_of
from equipoise.report import answer, document as content, rates, thresholds
from equipoise.report.document import interval_of, rate_of, treated, without_bounds
from equipoise.report.formatting import UNDEFINED, Cell, Grid, number
from equipoise.report.holdings import size, size_range, unsaid
from equipoise.report.layout import every_client
from equipoise.report.notes import listed, tuning_notes
from equipoise.report.page import Bullets, Page, Section, Table, Text, made_with
from equipoise.report.provenance import data_digest, quarantined, versions
from equipoise.report.sentences import failures, in_force, limits, plus_minus_of, unknown_values, verdict
from equipoise.report.statistics import Comparison
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import some
from equipoise.system.text import plural

ROWS: Final = 12  # groups in a table; of more the worst are shown
POINTS: Final = 6  # lines of a list
METHODS: Final = 3  # side by side
COLUMNS: Final = 20  # of a table, by name
WIDE: Final = 100  # people, of fewer an interval of a rate is wider than 20 points
ADD: Final = "write {} in a table [report] of a file, and add --about FILE.toml to the command of this report"

NO_PURPOSE: Final = f"Not stated. A committee needs it: {ADD.format('purpose')}."


def write(histories: Sequence[History] | Comparison, path: str | os.PathLike[str], about: About | None = None) -> Path:
    """Write the report of one or several runs for a committee, atomically; return its path.

    Parameters
    ----------
    histories : runs of one scenario, or a comparison of them.
    path : the HTML file to write, replaced if it exists.
    about : title, purpose, author and contact, over those in the settings of the runs.

    Raises
    ------
    ValueError : as for the report for researchers.
    """
    return page(Comparison.of(histories), about).save(path)


def render(histories: Sequence[History] | Comparison, about: About | None = None) -> str:
    """The report as a string of HTML."""
    return page(Comparison.of(histories), about).html()


def page(compared: Comparison, about: About | None = None) -> Page:
    """The report: who is missed how often first, then for what, by whom and how."""
    runs = compared.histories
    about = {**_about(runs), **(about or {})}
    chosen = runs[0].threshold if len(runs) == 1 else None
    facts = (about.get("author"), about.get("contact"), f"written {date.today().isoformat()}")
    limits_of_data = Bullets([*_limits_of_data(compared, chosen)])
    sections = [
        _missed(compared) if chosen is None else _missed_at(chosen, compared),
        Section("purpose", "Purpose", [Text(about.get("purpose") or NO_PURPOSE)]),
        Section("people", "Who is in the data, and who is not", [*map(Text, _rows(compared)), limits_of_data]),
        Section("threshold", "Threshold", [*map(Text, _threshold(runs, chosen))]),
        Section("uncertain", "What is uncertain", [Bullets([*_uncertain(compared, chosen)][:POINTS])]),
        Section("not-looked-at", "What was not looked at", [Bullets([*_not_looked_at(compared, chosen)])]),
        Section("made", "How it was made", [*map(Text, _made(compared))]),
        Section("contact", "Whom to ask", [*map(Text, _whom(about))]),
    ]
    title = about.get("title") or f"{some([*compared.runs], METHODS)} on {_data(runs[0])}"
    headline = answer.headline(_in_words(compared)) if chosen is None else _headline(chosen)
    return Page(
        title, "Report for a committee", [*filter(None, facts)], headline, sections=sections, footer=made_with(versions(runs)), narrow=True
    )  # fmt: skip


def _headline(chosen: Chosen) -> str:
    """How often a threshold misses and takes for the class, in a sentence without intervals."""
    missed, alarms = (_left_out(**chosen["everyone"][key]).mean for key in ("sensitivity", "specificity"))
    if UNDEFINED in (missed, alarms):
        return f"How many test rows of class {chosen['positive']} the model misses is not shown."
    return f"Of 100 test rows of class {chosen['positive']} the model misses {missed}; of 100 others it takes {alarms} for {chosen['positive']}."


def _about(runs: Sequence[History]) -> About:
    """What the table [report] of the runs says, of the first that says it."""
    about: dict[str, str] = {}
    for run in reversed(runs):
        about |= {key: text for key, text in ((run.meta.get("config") or {}).get("report") or {}).items() if text}
    return cast(About, about)


def _data(run: History) -> str:
    """What the data are called."""
    source = (run.meta.get("config") or {}).get("data")
    if run.at_sites:
        return plural(len(run.client_names), "site")
    return Path(str(source)).name if source and run.scenario == "own" else run.scenario or "data from Python"


def _predicted(run: History) -> str:
    """What is predicted, and for two classes what the words of the tables are."""
    options = (run.meta.get("config") or {}).get("scenario_options") or {}
    target = f"the column {options['label']}" if options.get("label") else "what the data have as labels"
    if run.main != ACCURACY:
        return f"It predicts a number, {target}{run.main.words}."
    if run.positive is not None and run.positive.other:
        return (
            f"It predicts {target}: {run.positive.name} or {run.positive.other}. Below, a person of class "
            f"{run.positive.name} who is predicted as {run.positive.other} is missed, and one of class {run.positive.other} who is predicted as "
            f"{run.positive.name} is a false alarm."
        )
    return f"It predicts {target}: {some(list(run.classes), 10)}."


def _rows(compared: Comparison) -> Iterator[str]:
    """From how many rows the model learnt, and on how many it was tested."""
    run, least = compared.histories[0], compared["least"]
    holdings = run.meta.get("holdings") or {}
    divisions = {
        tuple((each["name"], each["size"]) for part in ("clients", "tests") for each in (of_run or {}).get(part, ()))
        for of_run in (history.meta.get("holdings") for history in compared.histories)
    }
    model, it = ("The model", "It") if len(divisions) == 1 else ("In the first run, the model", "In the first run, it")
    if clients := holdings.get("clients"):
        total, range_ = in_words(sum(client["size"] for client in clients), least), size_range(clients, least)
        each = _sizes(clients, least) if len(clients) <= ROWS else f"each with {range_}" * bool(range_)
        absent = f"; {some(run.untrained)} trained in no round" * bool(run.untrained)
        sites = f"{plural(len(clients), 'site')}{f': {each}' * bool(each)}"
        yield f"{model} {'was given' if absent else 'learnt from'} {total} rows of {sites}{absent}."
    if tests := holdings.get("tests"):
        named = [{**test, "name": run.group_words.get(test["name"], test["name"])} for test in tests]
        each, total = _sizes(named, least), sum(test["size"] for test in tests)
        yield f"{it} was tested on {in_words(total, least)} rows that it had not seen{f': {each}' * (1 < len(tests) <= ROWS)}."


def _limits_of_data(compared: Comparison, chosen: Chosen | None) -> Iterator[str]:
    """What the data lack, and whom: notes on them, people without a value or hardly in them, sites that were left out."""
    run, least = compared.histories[0], compared["least"]
    notes = [text for text in (run.meta.get("data") or {}).get("notes") or () if text not in compared["notes"]]
    yield from (text if "." in text.split()[0] else f"{text[0].upper()}{text[1:]}" for text in notes[:POINTS])
    yield from (text for treatment in treated(compared.document) for text in unknown_values(treatment))
    small = [run.group_words.get(name, name) for name in compared["small"]]
    small += [name for name, group in _group_rates(chosen) if group["n"] is None and not group["withheld"]]
    if small:
        yield f"Hardly in the test rows, with fewer than {least} people, so nothing is shown about them here: {some([*dict.fromkeys(small)], ROWS)}."
    if left := dict.fromkeys(name for _, _, name, _, _ in quarantined(compared.histories)):
        yield f"Left out in some rounds of training, because no valid answer came: {some([*left], ROWS)}."
    yield "Not in the data: people of other sites and of later times, and anybody whose row was never recorded."


def _sizes(holders: Sequence[Content], least: int) -> str:
    """How many rows each has, where that does not tell with their sum how many one with fewer than ``least`` has."""
    unshown, few = unsaid(holders, least), (f"< {least}", f"fewer than {least} people")
    sizes = {holder["name"]: size(holder, unshown, least).replace(*few) for holder in holders}
    return ", ".join(f"{name} not shown" if n == UNDEFINED else f"{n} of {name}" for name, n in sizes.items())


def _group_rates(chosen: Chosen | None) -> Iterator[tuple[str, RatesAt]]:
    """What each group is called, with the threshold's rates of it."""
    for division in chosen["divisions"] if chosen is not None else ():
        yield from ((_worded(division, name), group) for name, group in division["groups"].items())


# who is missed
MISSED: Final = "Who is missed, and how often"
OFF: Final = "How far predictions are off, and for whom"
SAME_KIND: Final = "test rows of the same kind"


def _missed_at(chosen: Chosen, compared: Comparison) -> Section:
    """Who is missed how often at a threshold: a sentence for every division of the test rows, and a table of each."""
    before = "" if score_of(chosen) else "Before the threshold was chosen: "  # whose counts are hidden
    texts = [*(f"{before}{text}" for text in failures(compared.document)), _predicted(compared.histories[0])]
    tables = [Table(_threshold_grid(d, chosen), f"By {_called(d)}{_cut(d['groups'])}", "") for d in chosen["divisions"]]
    tables = tables or [Table(_threshold_grid({"by": "", "groups": {"all": chosen["everyone"]}}, chosen), head="")]
    caption = " ".join(filter(None, (BRACKETS.format(SAME_KIND), thresholds.hidden(chosen))))
    below = [Text(caption, "caption"), *map(Text, _sentences(chosen))]
    return Section("missed", MISSED, [*map(Text, texts), *tables, *below])


def _missed(compared: Comparison) -> Section:
    """Who is missed how often, or how far numbers are off: a verdict, and a table for every division of the test rows."""
    document, several = compared.document, len(compared["seeds"]) > 1
    heading, others = (MISSED, SAME_KIND) if compared.measure == ACCURACY else (OFF, "runs")
    tables = [Table(_parity_grid(each, compared), _by(each, compared), "") for each in treated(document)]
    groups = _cut(without_bounds(compared["methods"])[0]["groups"])
    tables = tables or [Table(_measure_grid(compared), f"By group{groups}", "")]
    own = any(run.client_sizes is not None for run in compared.histories)
    if own and (sheet := every_client(compared)) is not None and len(sheet.grid.rows) <= ROWS:
        tables.append(Table(sheet.grid, f"By site: {compared.measure.axis()}", ""))
    seeds = f"Numbers are means over {len(compared['seeds'])} runs that differ in their random seed." * several
    cells = [cell for table in tables for _, row in table.grid.rows for cell in row]
    below = [BRACKETS.format(others) * any(cell.ends and not cell.half for cell in cells)]
    below += [*(plus_minus_of(document) if any(cell.half for cell in cells) else ()), seeds]
    caption = [Text(" ".join(filter(None, below)), "caption")] * any(below)
    first, last = Text(_predicted(compared.histories[0])), Text(verdict(_in_words(compared)))
    return Section("missed", heading, [first, *tables, *caption, last])


def _in_words(compared: Comparison) -> content.Document:
    """A comparison whose groups are called what they are."""
    words = {group: word for run in compared.histories for group, word in run.group_words.items()}
    methods = []
    for method in compared["methods"]:
        groups = {words.get(group, group): cell for group, cell in method["groups"].items()}
        worst = [words.get(group, group) for group in method["worst_groups"]]
        methods.append({**method, "groups": groups, "worst_groups": worst})
    return cast(content.Document, {**compared.document, "methods": methods})


BRACKETS: Final = "In brackets: 95\u00a0% intervals, the range that fits the data: other {} would give other numbers."
CHANCE: Final = "may be chance"
MORE: Final = "is more than chance alone explains"


def _sentences(chosen: Chosen) -> Iterator[str]:
    """In words, what the threshold's rates are."""
    everyone, positive = chosen["everyone"], chosen["positive"]
    yield (
        f"Of 100 test rows of class {positive} the model misses {_per_hundred(everyone['sensitivity'])}. Of 100 others it takes "
        f"{_per_hundred(everyone['specificity'])} for {positive}, which are false alarms."
    )
    for division in chosen["divisions"]:
        every = {_worded(division, name): group for name, group in division["groups"].items()}
        rated = {name: group for name, group in every.items() if group["sensitivity"]["value"] is not None}
        if len(rated) < 2:
            continue
        ordered = sorted(rated, key=lambda name: rated[name]["sensitivity"]["value"] or 0.0)
        worst, best = rated[ordered[0]], rated[ordered[-1]]
        counted = {name: group for name, group in rated.items() if group["of_class"] is not None}
        tested = f"; tested were {worst['of_class'] or 0:,} and {best['of_class'] or 0:,} of class {positive}"
        uncounted = some([name for name in rated if name not in counted], ROWS)
        unrated = some([name for name in every if name not in rated], ROWS)
        texts = [
            f"By {_called(division)}, the most are missed of {ordered[0]}, {_per_hundred(worst['sensitivity'])} of 100, and the fewest of "
            f"{ordered[-1]}, {_per_hundred(best['sensitivity'])}{tested * (counted.keys() >= {ordered[0], ordered[-1]})}.",
            _difference(worst, best) if len(counted) == len(rated) == 2 else _spread([*counted.values()]),
            f"That is judged without {uncounted}, of which it is not shown how many are of class {positive}."
            * bool(uncounted),
            f"Of {unrated} no rate is shown: more may be missed there." * bool(unrated),
        ]
        yield " ".join(filter(None, texts))


def _called(division: Division) -> str:
    """What divides people, in this report's words."""
    return "site" if division["by"] == "client" else division["by"]


def _worded(division: Division, name: str) -> str:
    """What a group is called."""
    return worded(_called(division), name)


def _difference(worst: RatesAt, best: RatesAt) -> str:
    """The difference of two groups with its interval, from those of the two (Newcombe 1998, method 10), from 0 on where they may be alike."""
    shares = (group["sensitivity"] for group in (best, worst))
    (q, *of_q), (p, *of_p) = ([float(share[end] or 0) for end in ("value", "low", "high")] for share in shares)
    low, high = (100 * end for end in newcombe(q, of_q, p, of_p))
    more = _by_chance([worst, best]) < 0.05 and low >= 0.5  # which is shown as 1
    low = low if more else min(low, 0.0)
    return f"The difference is {plural(round(100 * (q - p)), 'point')} ({number(low, 0)} to {number(high, 0)}), which {MORE if more else CHANCE}."


def _spread(groups: Sequence[RatesAt]) -> str:
    """Whether the rates of all groups differ by more than chance, by a permutation test (.05)."""
    chance = _by_chance(groups) if len(groups) > 1 else math.nan
    if math.isnan(chance):
        return "So few cases cannot show whether the groups differ."
    return f"That the groups differ so much {CHANCE if chance >= 0.05 else MORE}."


def _by_chance(groups: Sequence[RatesAt]) -> float:
    """How probable it is that chance alone makes groups differ at least so much; NaN if all cases are alike."""
    cases = np.array([group["of_class"] or 0 for group in groups])
    return permuted(cases, np.rint(cases * [group["sensitivity"]["value"] or 0.0 for group in groups]).astype(int))


def _per_hundred(share: Estimate) -> str:
    """How many of 100 a rate leaves out, with its interval."""
    cell = _left_out(**share)
    return "an unknown number" if share["value"] is None else f"{cell.mean} {cell.ends}"


def _threshold_grid(division: Division, chosen: Chosen) -> Grid:
    """The table of the threshold's rates: the groups that are missed most often first."""
    groups, several = division["groups"], chosen["by_group"] is not None
    titles = ["tested", f"of class {chosen['positive']}", "missed of 100", "false alarms of 100"]
    titles += ["threshold"] * several

    def cells(group: RatesAt) -> tuple[Cell, ...]:
        shares = [_left_out(**group[key]) for key in ("sensitivity", "specificity")]
        return (*thresholds.counts(group, chosen["least"]), *shares, *[Cell(number(group["threshold"], 2))] * several)

    rows = _lowest({name: group["sensitivity"]["value"] for name, group in groups.items()})
    return Grid((*titles,), tuple((_worded(division, name), cells(groups[name])) for name in rows))


def _lowest(values: Mapping[str, float | None]) -> list[str]:
    """The groups of a table: all, or of more than `ROWS` those with the lowest values, and last those without any."""
    if len(values) <= ROWS:
        return [*values]
    return sorted(values, key=lambda name: math.inf if (value := values[name]) is None else value)[:ROWS]


def _cut(groups: Mapping[str, object]) -> str:
    """What the heading of a table states if not all groups are in it."""
    return f": the worst {ROWS} of {len(groups)}" * (len(groups) > ROWS)


def _by(treatment: content.Treated, compared: Comparison) -> str:
    """What divides people: an attribute, or that whose values the test sets are."""
    run = compared.histories[0]
    values = {name: {*map(str, groups)} for name, groups in run.attributes.items()}
    same = [name for name, groups in values.items() if {*run.groups, *run.small_groups} <= groups]
    return f"By {treatment.attribute or (same[0] if same else 'group')}"


def _parity_grid(treatment: content.Treated, compared: Comparison) -> Grid:
    """Who is missed how often with each method; errors of numbers; of many classes the one that is recognised worst."""
    parity, measure = treatment.parity, compared.measure
    methods = without_bounds(parity["methods"])[:METHODS]
    if measure != ACCURACY or parity["positive"] is None:
        return rates.grid({**parity, "methods": methods[:1]}, measure)
    first, whose = methods[0]["groups"], [f"{method['method']}, " * (len(methods) > 1) for method in methods]
    titles = (f"{of_method}{mistake} of 100" for of_method in whose for mistake in ("missed", "false alarms"))

    def cells(group: str, counts: content.RatesOfGroup) -> tuple[Cell, ...]:
        about = ((counts["n"], "accuracy"), (counts["of_class"], "tpr"))
        row = [rates.count(n, rate_of(counts, key), parity["least"]) for n, key in about]
        for method in methods:
            for key, show in (("tpr", _left_out), ("fpr", _share)):
                of_group = method["groups"].get(group)
                row.append(Cell(UNDEFINED) if of_group is None else _rate_cell(rate_of(of_group, key), show))
        return tuple(row)

    rows = _lowest({name: rate_of(counts, "tpr")["mean"] for name, counts in first.items()})
    grid_titles = ("tested", f"of class {parity['positive']}", *titles)
    return Grid(grid_titles, tuple((name, cells(name, first[name])) for name in rows))


def _share(value: float | None, low: float | None, high: float | None) -> Cell:
    """How many of 100, with the interval, without digits that it does not support."""
    if value is None:
        return Cell(UNDEFINED)
    ends = "" if low is None or high is None else f"({100 * low:.0f} to {100 * high:.0f})"
    return Cell(f"{100 * value:.0f}", ends=ends)


def _left_out(value: float | None, low: float | None, high: float | None) -> Cell:
    """How many of 100 a rate leaves out."""
    value, low, high = (None if number is None else 1 - number for number in (value, high, low))
    return _share(value, low, high)


def _rate_cell(rate: content.Rate, show: Callable[..., Cell]) -> Cell:
    """A rate of the document, which is in percent."""
    return show(*(None if (number := rate[key]) is None else number / 100 for key in ("mean", "low", "high")))


def _measure_grid(compared: Comparison) -> Grid:
    """The main measure by test set, where no rates were recorded."""
    methods, measure = without_bounds(compared["methods"])[:METHODS], compared.measure
    rows, sign = [], 1 if measure.better == "higher" else -1
    means = {group: cell["mean"] for group, cell in methods[0]["groups"].items()}
    for group in _lowest({group: None if mean is None else sign * mean for group, mean in means.items()}):
        n = compared["sizes"].get(group)
        row = [Cell(UNDEFINED if n is None else " to ".join(f"{k:,}" for k in ([n] if isinstance(n, int) else n)))]
        for method in methods:
            ends = interval_of(method, group)
            text = f"({number(ends[0], 1)} to {number(ends[1], 1)})" if ends else ""
            row.append(Cell(number(method["groups"][group]["mean"], measure.digits), ends=text))
        rows.append((compared.histories[0].group_words.get(group, group), tuple(row)))
    return Grid(("tested", *(measure.axis(f"{method['method']}, {measure.noun}") for method in methods)), tuple(rows))


# the rest
def _threshold(runs: Sequence[History], chosen: Chosen | None) -> Iterator[str]:
    """From which probability on a case is predicted, and how that was chosen."""
    if runs[0].main != ACCURACY:
        yield "None: the model predicts a number, and decides nothing."
    elif len(runs[0].classes) != 2:
        yield "None: the most probable class is predicted."
    elif chosen is None:
        reason, advice = "None was chosen: each", "Choose it: equipoise threshold RUN --help."
        if any(run.threshold for run in runs):
            reason = "Several runs are shown here, so the numbers above use none: each"
            advice = "A report of a single run shows its threshold."
        if runs[0].at_sites:
            advice = "Sites keep their rows, on which one could be chosen."
        suits = "That suits a task where both mistakes cost the same."
        other = " other" * any("decides" in run.meta for run in runs)
        yield from _decided(runs)
        if any("decides" not in run.meta for run in runs):
            yield f"{reason}{other} model predicts the more probable class. {suits} {advice}"
    else:
        decision, advice, *more = thresholds.sentences(chosen)
        yield from (f"{decision} {advice}", *more)


def _decided(runs: Sequence[History]) -> Iterator[str]:
    """By what methods decide that do not predict the more probable class."""
    for method, by in dict.fromkeys((run.label, run.meta["decides"]) for run in runs if "decides" in run.meta):
        named = " and ".join(by.split("*"))
        yield (
            f"The method {method} decides{f' by {named}' * bool(by)}: its model does not always predict the more probable class, and the numbers "
            f"above are those of its decisions.{f' {USES_GROUP.format(named)}' * bool(by)}"
        )


def _uncertain(compared: Comparison, chosen: Chosen | None) -> Iterator[str]:
    """What the numbers do not settle."""
    of_choice = tuning_notes(compared.histories)
    yield from _settings(compared.histories) if of_choice else ()
    yield from (text for text in compared["notes"] if text not in of_choice)
    yield from limits(compared)
    if chosen is not None:
        if (off := chosen["everyone"]["ece"]) is not None:
            yield f"The model's confidence is off by {100 * off:.1f} points on average (expected calibration error){_worst_ece(chosen)}."
        yield f"The threshold was chosen for {chosen['rule']}, on other rows than those of the table: these reach that only roughly."
    if fewest := _fewest(compared, chosen):
        yield f"The fewest people behind a rate above are {fewest}."


CHOSEN_ON: Final = {
    ORACLE: "the test rows themselves, which makes every number here too good",
    COLLABORATION: "rows of the server's",
}


def _settings(runs: Sequence[History]) -> Iterator[str]:
    """How the settings of methods were chosen, in plain words."""
    scope = " for each" * (len({run.label for run in runs}) > 1)

    def ways(run: History) -> Iterator[str]:
        if (tuned := run.tuned) is not None:
            held_out = f"{100 * tuned['validation']:g} % of the training rows, held out for that"
            rows = CHOSEN_ON.get(tuned["by"], held_out)
            useless = ", and none was of use" * (tuned.get("useless") == tuned["draws"])
            yield f"were chosen among {tuned['draws']} tried{scope}, on {rows}{useless}"
            if changed := tuned.get("changed"):
                yield f"were chosen before this was changed: {', '.join(changed)}"
        elif run.sharing.federated:
            yield "were taken as given, which may favour a method"

    by_way = grouped((way, run.label) for run in runs for way in ways(run))
    yield from (f"The settings of {some([*dict.fromkeys(labels)], METHODS)} {text}." for text, labels in by_way.items())


def _worst_ece(chosen: Chosen) -> str:
    """Of which group the confidence is off by most, as a part of a sentence."""
    every = [(group["ece"], name) for name, group in _group_rates(chosen) if group["ece"]]
    return f", the most for {max(every)[1]}, by {100 * max(every)[0]:.1f}" if every else ""


def _fewest(compared: Comparison, chosen: Chosen | None) -> str:
    """The fewest people that a rate of a class is about; where their number is not shown, at most all of the group."""
    keys, value = (("tpr", "fpr"), "mean") if chosen is None else (("sensitivity", "specificity"), "value")
    parities = [each.parity for each in treated(compared.document) if each.parity["positive"] is not None]
    recorded = (rate for parity in parities for rate in parity["methods"][0]["groups"].values())
    sizes, exact, several = list[int](), len(compared["seeds"]) == 1, compared.histories[0].counted == "people"
    for group in cast(Iterator[Content], recorded if chosen is None else (group for _, group in _group_rates(chosen))):
        n, cases = group["n"], group["of_class"]
        at_most = several or n is None or cases is None  # of several rows, some may be of the class
        others = n if at_most else n - cases
        behind = [size for key, size in zip(keys, (cases or n, others), strict=True) if group[key][value] is not None]
        sizes += [size for size in behind if size is not None]
        exact &= not (behind and at_most)
    wide = ": with so few, intervals are wide" * bool(sizes and min(sizes) < WIDE)
    return f"{'at most ' * (not exact)}{min(sizes):,}{wide}" if sizes else ""


def _not_looked_at(compared: Comparison, chosen: Chosen | None) -> Iterator[str]:
    """What nobody has measured: only what applies to these runs."""
    run = compared.histories[0]
    if attributes := [*run.attributes]:
        together = len(attributes) > 1 and " and ".join(attributes) not in compared.document.get("people", {})
        yield f"People by anything but {listed(attributes)}{', and by all at once' * together}."
    elif run.at_sites:
        yield "Groups of people: sites send the server no numbers by sex, age or origin. The card of each site's model has those of its own rows, if they name a group."
    else:
        yield "Groups of people: the rows say nothing of sex, age or origin that was measured by."
    if chosen is None and run.main == ACCURACY:
        yield f"Whether the probabilities are right{', and other thresholds' * (len(run.classes) == 2)}."
    yield "Whether the labels are right, and mean the same at every site."
    yield "What people do with a prediction, what follows for those concerned, and whether that is fair."
    yield "Whether the model gives away who was in the data."
    if not any(history.meta.get("hostile") for history in compared.histories):
        yield "Sites that send wrong updates, by accident or on purpose."
    if len(compared.runs) == 1:
        yield "Other methods, networks and settings."


def _made(compared: Comparison) -> Iterator[str]:
    """How the model was made."""
    run = compared.histories[0]
    config, sites = run.meta.get("config") or {}, len(run.client_names)
    labels = some([*compared.runs], METHODS)
    runs = "" if len(compared.histories) == 1 else f", {plural(len(compared.histories), 'run')}"
    text = f"{'Methods' if len(compared.runs) > 1 else 'Method'} {labels}: {plural(compared['rounds'], 'round')}{runs}."
    if run.at_sites:
        where = f"The {sites} sites kept their rows, and sent models or sums to a server."
    elif run.sharing.clients:
        where = f"This was a simulation on one machine: {plural(sites, 'site')} trained as if each kept its rows, and the rows were in one place."
    else:
        where = "All rows were in one place."
    yield f"{text} {where}"
    yield from in_force(compared.document)
    schema = (run.meta.get("data") or {}).get("schema") or {}
    if columns := [*schema.get("columns", {})]:
        out = [f"{name} ({why})" for name, why in schema.get("left_out", {}).items()]
        yield f"It uses {plural(len(columns), 'column')}: {some(columns, COLUMNS)}.{f' Left out: {some(out, POINTS)}.' if out else ''}"
    network = f"Network {config['network']}. " if config.get("network") else ""
    digest = f"The data have the SHA-256 {data_digest(run)[:12]}…. " if data_digest(run) else ""
    yield f"{network}{digest}The research report, equipoise report, has all settings, and the command that repeats it."


def _whom(about: Mapping[str, object]) -> Iterator[str]:
    """Who made it, and what of that is missing."""
    named = ", ".join(str(about[key]) for key in ("author", "contact") if about.get(key))
    if named:
        yield f"{named}."
    if missing := [key for key in ("author", "contact") if not about.get(key)]:
        yield f"Not stated: {listed(missing)}. To state it, {ADD.format(listed(missing))}."
