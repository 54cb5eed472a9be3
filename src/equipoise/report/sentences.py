"""What a comparison shows and what it cannot show, in English: captions, legends, the verdict, the limits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, cast

import numpy as np

from equipoise.metrics.groups import ESTIMABLE
from equipoise.metrics.measures import ACCURACY, Measure
from equipoise.records.history import DIVERGED, History
from equipoise.report import document as content, notes
from equipoise.report.document import columns_of, gaps_of, measure_of, tables, without_bounds
from equipoise.report.formatting import PERCENT, difference, interval, number, p_value, same_in_every_seed, with_unit
from equipoise.report.provenance import data_digest, mixed
from equipoise.report.rates import FEW, changes, explained, few_people, missed
from equipoise.report.statistics import Comparison, Run, ranges
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import some
from equipoise.system.text import Said, key_of, noun, plural, span


def when(comparison: content.OfMeasure) -> str:
    """The rounds that tables and figures are of."""
    n = comparison["averaged"]
    return f"mean over the last {n} evaluated rounds" if n > 1 else f"after {comparison['shown']}"


def of_measure(comparison: content.OfMeasure) -> list[str]:
    """What the numbers of a table are, and its columns, a sentence each."""
    columns, words = columns_of(comparison), measure_of(comparison).words
    text = [f"{comparison['title']} of the global model{_on(comparison)}{words}, {when(comparison)}."]
    text += [f"n: {comparison['counted']}."] * bool(comparison["sizes"] or comparison["small"])
    if comparison["small"]:
        seeds = " with some seed" * (len(comparison["seeds"]) > 1)
        few = "a number about so few is not shown, and is in no AVG, STD or worst (--least-group)"
        text.append(f"n < {comparison['least']}{seeds}: {few}. {notes.UNPROTECTED}")
        unshown = comparison["sizes"] and {*comparison["methods"][0]["groups"]} - comparison["sizes"].keys()
        text += [notes.FOLLOWS.format(comparison["least"])] * bool(unshown)
    text += [column.explanation for column in columns if column.explanation]
    if any(column.key == "worst" for column in columns) and len(comparison["methods"][0]["groups"]) > 1:
        text += worst_named(comparison["methods"])
    return [*text, *untested(comparison), *plus_minus(comparison["methods"])]


def in_force(comparison: content.Document) -> list[str]:
    """The hyper-parameters of every method that has any, in a sentence."""
    texts = [f"{label}: {text}" for label, text in comparison.get("in_force", {}).items()]
    return [Said(f"Hyper-parameters in force: {'; '.join(texts)}.", "in-force")] * bool(texts)


def worst_named(methods: Sequence[content.Row], key: str = "worst_groups", name: str = "The worst group") -> list[str]:
    """Which group is the worst one, by method; empty where there is only one.

    Parameters
    ----------
    methods : with their `method`, and under the key how many seeds have which group as the worst one.
    key, what : where that is, and what it is called.
    """
    every = [(str(method["method"]), cast(Mapping[str, int], method[key])) for method in methods]
    named = grouped(
        (notes.listed([_seen(group, n, len(worst) > 1) for group, n in worst.items()]), label)
        for label, worst in every
        if worst
    )
    whose = [groups if len(named) == 1 else f"{groups} for {some(labels)}" for groups, labels in named.items()]
    return [f"{name} is {'; '.join(whose)}."] if named else []


def untested(comparison: content.OfMeasure) -> list[str]:
    """Groups that were not tested in all of the averaged rounds, since when, and what the last test gave."""
    averaged, measure = comparison["averaged"], measure_of(comparison)
    which = f"in each of the last {averaged} evaluated rounds" if averaged > 1 else "in the round that is shown"
    runs: dict[str, list[str]] = {}
    for method in comparison["methods"]:
        for test in method["untested"]:
            t = test["round"]
            last = "never" if t is None else f"last in round {t}, at {with_unit(content.last_of(test), measure)}"
            run = method["method"] + (f" with seed {test['seed']}" if len(comparison["seeds"]) > 1 else "")
            runs.setdefault(f"{test['group']} was not tested {which} ({last})", []).append(run)
    if not runs:
        return []
    alone = len(comparison["methods"]) == 1
    sentences = [f"{text}{'' if alone else f' in the run of {some(labels)}'}." for text, labels in runs.items()]
    brackets = any(test["round"] is not None for method in comparison["methods"] for test in method["untested"])
    return [*sentences, *["What is in brackets is of a group's last test, and enters no AVG, STD or worst."] * brackets]


def plus_minus(methods: Sequence[content.Row]) -> list[str]:
    """What ± is in a table of these methods, half of the 95 % interval, and over what; or why there is none."""
    seeds = sorted({len(cast(list[int], method["seeds"])) for method in methods})
    text = "One seed: there is no spread over seeds."
    if seeds[-1] > 1:
        over = f"{seeds[-1]} seeds" if len(seeds) == 1 else "the seeds of a method"
        text = f"±: half of the 95{PERCENT} interval over {over} (Student's t)."
    elif any(map(_has_intervals, methods)):
        text = f"±: half of the 95{PERCENT} interval over the test samples of this one seed."
    return [Said(text, "plus-minus")]


def _has_intervals(method: content.Row) -> bool:
    """Whether any number of a method has an interval over test samples."""
    return any(cast(Mapping[str, object], method.get("intervals") or {}).values())


def plus_minus_of(comparison: content.OfMeasure) -> list[str]:
    """What ± is in tables whose numbers have no interval over test samples."""
    return plus_minus([{**method, "intervals": None} for method in comparison["methods"]])


def number_of_clients(ranges: Mapping[str, Sequence[int]], worst: str = "") -> str:
    """Over how many of how many clients numbers are: `22 to 26 of 100 clients`.

    Parameters
    ----------
    ranges : of `equipoise.report.statistics`, the least and the most of the runs.
    worst : which of those that are counted.
    """
    every, (low, high) = plural(ranges["every"][1], "client"), ranges["clients"]
    if low == ranges["every"][1]:
        return f"{worst}{' of ' * bool(worst)}{every}"
    counted = span(low, high)
    return f"{worst} of the {counted} clients that are counted, of {every} in all" if worst else f"{counted} of {every}"


def left_out(comparison: Comparison) -> str:
    """A sentence, after a blank, about clients of which a table or figure over clients has no number; empty if there are none."""
    runs = [run for seeds in comparison.runs.values() for run in seeds.values() if run.clients[1].size]
    if not runs:
        return ""
    counts, least = ranges(runs), max(run.history.least_group for run in runs)
    parts = [f"{span(*counts['small'])} with fewer than {least} test samples"] * (counts["small"][1] > 0)
    untested = f"{span(*counts['untested'])} without a test in some or all of these rounds"
    parts += [untested] * (counts["untested"][1] > 0)
    return f" Over {number_of_clients(counts)}: without {notes.listed(parts)}." if parts else ""


def of_spread(comparison: content.OfMeasure, spread: content.Spread) -> list[str]:
    """What the numbers about the spread over clients are, and their columns, a sentence each."""
    measure = measure_of(comparison)
    lowest = f"{measure.lowest} value"
    if spread["tenth"] > 1:
        lowest = f"{span(*spread['ranges']['tenth'])} {lowest}s"
    text = [
        f"{measure.title} over {number_of_clients(spread['ranges'])}{_on(spread)}{measure.words}, {when(comparison)}: each with the model that it predicts with.",
        f"mean: over the clients, each counting the same; STD₀: their standard deviation (ddof 0); worst and best 10{PERCENT}: mean of the "
        f"{lowest}, and of as many of the {measure.highest}, as in q-FFL (0.1 K rounded down, at least 1); "
        f"{'min' if measure.better == 'higher' else 'max'}: the {measure.lowest}.",
    ]
    if spread["samples"]:
        low, middle, high = spread["samples"]
        median = f" (median {middle:,})" if middle is not None and low != high else ""
        if high is not None:
            ends = f"up to {high:,}" if low is None else span(f"{low:,}", f"{high:,}")
            chance = "of few, chance alone makes clients differ"
            text.append(f"A client has {ends} test samples of its own{median}: {chance}.")
    if spread["small"]:
        text.append(
            f"{_left_out(spread['ranges']['small'])} left out for having fewer than {spread['least']} test samples: the numbers say "
            f"nothing about that. --least-group {max(1, spread['least'] // 2)}, or a larger part of each client's samples for testing, counts more of them."
        )
    if spread["untested"]:
        text.append(f"{_left_out(spread['ranges']['untested'])} left out, not tested in all of these rounds.")
    return [*text, *plus_minus(spread["methods"])]


def _left_out(ends: Sequence[int]) -> str:
    return f"{span(*ends)} {noun('client', ends[1])} {'is' if ends[1] == 1 else 'are'}"


def of_collaboration(comparison: content.OfMeasure, rewards: content.Rewards) -> list[str]:
    """What the numbers about contribution and reward are, and their columns, a sentence each."""
    last = "the last round" if comparison["averaged"] > 1 else comparison["exported"]
    return [
        f"Collaborative fairness{_on(rewards)}: what every client gets for what it contributes, after {last}.",
        "fairness: 100 times the Pearson correlation over clients between the accuracy each reaches alone and that of "
        "the model it gets; Spearman: 100 times that of their ranks.",
        "max, mean, min: accuracy of the clients' own models in percent; gain: mean difference to training alone, in "
        "points; worse off: clients for which it is negative.",
        "BCF: percentage of clients that are better off than alone, and whose reward is at most halfway from their contribution to the best reward; yes: all.",
        "down, up: bytes per client and round in percent of the whole model.",
        *plus_minus(rewards["methods"]),
    ]


def of_rates(comparison: content.OfMeasure, treated: content.Treated) -> list[str]:
    """What the rates by group are, and their columns, a sentence each."""
    measure, people = measure_of(comparison), "of each group"
    if treated.attribute:
        people = f"with each value of {treated.attribute}, all test sets together (a sample in several of them counts in each)"
    heading, subject = treated.rates_heading(measure), f"how the global model treats the people {people}"
    text = f"{heading}{_on(treated.parity)}: {subject}, {_rounds(comparison)}."
    return [text, *explained(treated.parity, measure), *unknown_values(treated)]


def unknown_values(treated: content.Treated) -> list[str]:
    """Of how many test samples a sensitive attribute is not known."""
    if not treated.attribute or (most := treated.parity["unknown"][1]) == 0:
        return []
    who = f"fewer than {treated.parity['least']} test samples" if most is None else plural(most, "test sample")
    return [f"Of {who} {treated.attribute} is not known: they are in no row, and in no gap."]


def _rounds(comparison: content.OfMeasure) -> str:
    """The rounds that rates and gaps are of."""
    return "over the last rounds" if comparison["averaged"] > 1 else f"after {comparison['exported']}"


def of_gaps(comparison: content.OfMeasure, treated: content.Treated) -> list[str]:
    """What the numbers about the treatment of groups are, their columns, and what to know about them, a sentence each."""
    measure, parity = measure_of(comparison), treated.parity
    numbers, seeds = measure != ACCURACY, ", in each seed" * (len(parity["seeds"]) > 1)
    columns = gaps_of(parity, measure)
    text = "; ".join(f"{c.title}, {c.difference.format(seeds=seeds)}" for c in columns if c.difference)
    values = worst_named(parity["methods"], name=f"The worst value of {treated.attribute}") if treated.attribute else []
    text = f"Differences{measure.words if numbers else ' in points'} between the groups with the highest and the lowest value, lower is fairer: {text}."
    people = f"people who differ in {treated.attribute}" if treated.attribute else "the groups"
    return [
        f"{treated.gaps_heading}{_on(parity)}: how differently the global model treats {people}, {_rounds(comparison)}.",
        Said(text, "differences"),
        *(column.explanation for column in columns if column.explanation),
        *(Said(text, "worst-value") for text in values),
        *(Said(text, "gaps") for text in _gaps(parity, measure)),
        *_not_estimable(parity, measure),
        *(Said(text, "calibration") for text in _calibration(parity)),
        *_inside(parity, measure),
        *parity["notes"],
        *plus_minus(parity["methods"]),
    ]


def _gaps(parity: content.Parity, measure: Measure) -> Iterator[str]:
    """The intervals of the gaps over the test samples, with several seeds of the first method only."""
    several = len(parity["seeds"]) > 1
    averaged = " of one seed, ends averaged over the seeds" * several
    for method in parity["methods"][: 1 if several else None]:
        shown = gaps_of(parity, measure)
        intervals = {column.title: ends for column in shown if (ends := method["intervals"][column.key])}
        if intervals:
            digits = measure.digits if measure.of_target else 2
            listed = ", ".join(f"{title} {interval(ends, digits)}" for title, ends in intervals.items())
            yield f"{method['method']}, 95{PERCENT} intervals over the test samples{averaged}: {listed}."


def _calibration(parity: content.Parity) -> Iterator[str]:
    """How far the probabilities of each group are from what is true, of the first method."""
    method = parity["methods"][0]
    biases = content.rates_by_group(method, "bias")
    ends = [end(biases, key=biases.__getitem__) for end in (min, max)] if len(biases) > FEW else [*biases]
    listed = [f"{number(biases[group], 1, sign=True)} in {group}" for group in ends]
    if listed:
        gap = content.mean_of(method, "calibration_gap")
        lowest = f", the lowest and the highest of {len(biases)} groups" * (len(biases) > FEW)
        yield f"Calibration of {method['method']}, mean probability less share of the class in points{lowest}: {', '.join(listed)}; calibration gap {number(gap, 1)}."


def _inside(parity: content.Parity, measure: Measure) -> Iterator[str]:
    """The largest gaps inside sites, and where a site is less fair than all people together."""
    methods = [method for method in parity["methods"] if method.get("largest")]
    titles = {column.key: column.title for column in gaps_of(parity, measure)}
    digits = measure.digits if measure.of_target else 1
    for method in methods[:1]:
        parts = []
        for key, inside in method["largest"].items():
            size = "not estimable"
            if inside["worst"]:
                size = f"{number(inside['gap']['mean'], digits)} in {' or '.join([*inside['worst']][:3])}"
            has = "has" if inside["few"][1] == 1 else "have"
            left = f", {span(*inside['few'])} of {inside['sites']} sites {has} too few people" * bool(inside["few"][1])
            parts.append(f"{titles[key]} {size}{left}")
        text = f"Largest gap inside a site between groups of {ESTIMABLE} people or more, {method['method']}: {'; '.join(parts)}."
        yield Said(text, "inside")
    several = len(parity["seeds"]) > 1
    for key in dict.fromkeys(key for method in methods for key in method["largest"]):
        larger = {method["method"]: method["largest"][key]["larger"].items() for method in methods}
        seen = {label: [_seen(site, n, several) for site, n in sites] for label, sites in larger.items() if sites}
        where = [f"{label} in {notes.listed(sites)}" for label, sites in seen.items()]
        if where:
            yield f"The gap of all people hides sites with a larger one in {titles[key]}, beyond chance: {'; '.join(where)}."


def _seen(name: str, seeds: int, several: bool) -> str:
    """A name, and with how many seeds it was seen, if there are several."""
    return f"{name} ({plural(seeds, 'seed')})" if several else name


def _not_estimable(parity: content.Parity, measure: Measure) -> Iterator[str]:
    """Which gaps rest on so few people that their numbers show nothing, or have none, each with the smallest group."""
    smallest, first = few_people(parity, measure), parity["methods"][0]

    def advice(key: str) -> str:
        if content.mean_of(first, key) is None:
            return "or if nobody counts in the denominator, nothing is shown"
        ends = content.ends_of(first, key) is not None or len(parity["seeds"]) > 1
        return "read the intervals, not the numbers" if ends else "chance alone can make the numbers"

    columns = [column for column in gaps_of(parity, measure) if column.key in smallest]
    texts = grouped((advice(column.key), f"{column.title} ({smallest[column.key]})") for column in columns)
    for advised, listed in texts.items():
        yield f"With fewer than {ESTIMABLE} people in a group, {advised}: {', '.join(listed)}."


def _on(table: content.OfMeasure | content.Spread | content.Rewards | content.Parity) -> str:
    """The scenario, where it is known."""
    return f" on {table['scenario']}" if table["scenario"] else ""


TWO_SEEDS: Final = "Two seeds say little about chance: run at least three before you rely on a difference."
MOST: Final = 5  # sentences of the first paragraph of a page


def verdict(comparison: content.Document) -> str:
    """What a comparison shows in at most five sentences, without more certainty than seeds and test samples allow.

    Where people have sensitive attributes, two more are about the gaps between them, by the first attribute.
    """
    people = _people(comparison)
    return " ".join([*_shown_and_left(comparison)[0], *(people[0] if people else ())])


def evidence(comparison: content.Document) -> list[str]:
    """The numbers behind the verdict, a line each: what it had no room for, differences, their intervals and p-values."""
    learned = who_learned(comparison)
    people = [" ".join(gaps) for gaps in _people(comparison)[1:]]
    lines = [*_shown_and_left(comparison)[1], *people, *_reasons(comparison)]
    digits = measure_of(comparison).digits
    lines += _intervals_of_one(learned[0], digits) if len(learned) == 1 else _differences(comparison)
    return [*lines, *_brackets(comparison, several=len(learned) > 1)]


def _people(comparison: content.Document) -> list[list[str]]:
    """What happens to the gaps between people, by attribute."""
    measure, by_attribute = measure_of(comparison), content.by_attribute(comparison)
    every = [[*changes(treated, measure)] for treated in by_attribute if not treated.joined]
    return [gaps for gaps in every if gaps]


def who_learned(comparison: content.OfMeasure) -> list[content.Measured]:
    """The methods that did not fail, without bounds where there are others."""
    return [method for method in without_bounds(comparison["methods"]) if not method["failed"]]


def _shown_and_left(comparison: content.Document) -> tuple[list[str], list[str]]:
    """The sentences of the first paragraph in their order, and those for which it has no room."""
    ranked = [(rank, text) for rank, text in _ranked(comparison) if text]
    first = {text for _, text in sorted(ranked, key=lambda sentence: sentence[0])[:MOST]}
    every = [text for _, text in ranked]
    return [text for text in every if text in first], [text for text in every if text not in first]


def _ranked(comparison: content.Document) -> Iterator[tuple[int, str]]:
    """Every sentence about a comparison in the order of reading, with its rank: the lowest are kept where there are too many."""
    if nothing := nothing_shown(comparison):
        yield 0, nothing
        return
    methods, seeds, learned = comparison["methods"], len(comparison["seeds"]), who_learned(comparison)
    yield 0, missed(comparison["group_fairness"]) if comparison["group_fairness"] else ""
    yield 1, failed_methods(methods)
    yield 2, untested_groups(methods)
    yield from _of_learned(comparison, learned)
    if len({*comparison["small"], *methods[0]["groups"]}) < 2 and (over := comparison["spread"]):
        spread = _over_clients(over, measure_of(comparison))
        yield 2, spread
        if spread:
            able = [method for method in over["methods"] if not method["failed"]]
            yield from ((4, text) for text in _shown(able, CLAIMED_OF_CLIENTS, measure_of(comparison)))
    yield from ((6, text) for text in _rewards(comparison))
    yield 3, TWO_SEEDS * (seeds == 2 and len(learned) > 1)
    yield 0, one_seed(methods) * (seeds == 1 and bool(learned))


def _of_learned(comparison: content.Document, learned: Sequence[content.Measured]) -> Iterator[tuple[int, str]]:
    """What the methods that learned reach on the groups, with the ranks of the sentences."""
    methods, measure = comparison["methods"], measure_of(comparison)
    if len(learned) == 1:
        only = len(without_bounds(methods)) > 1 and learned[0]["bound"] != "lower"  # which is not judged
        yield 3, _only_method(learned[0], only, measure)
    elif learned:
        titles = CLAIMED if len(learned[0]["groups"]) > 1 else {"avg": CLAIMED["avg"]}
        yield from ((4, text) for text in (*_claims(comparison, learned), *_shown(learned, titles, measure)))
        yield from ((7, text) for text in _by_other_measures(comparison))


def one_seed(methods: Sequence[content.Row]) -> str:
    """That one seed does not show what another changes."""
    other = "another can reverse the order" if len(methods) > 1 else "another can give other numbers"
    return f"This is one seed, and one seed proves nothing: {other}; run at least three."


def nothing_shown(comparison: content.Document) -> str:
    """Why there is nothing to say; empty where there is something."""
    methods = comparison["methods"]
    if comparison["small"] and not any(method["groups"] for method in methods):
        return f"Every test set has fewer than {comparison['least']} samples, so no number is shown: choose --least-group 1, in Python least_group=1, to see them anyway."
    numbers = [cell["mean"] for method in methods for cell in method["groups"].values()]
    if all(mean is None for mean in numbers) and not any(m["untested"] for m in methods if m["groups"]):
        return "No method was evaluated on any group, so there is nothing to compare yet."
    return ""


def _over_clients(spread: content.Spread, measure: Measure) -> str:
    """What the worst clients have, by method; of many methods the first and the one with the best number."""
    defined = content.means_of(spread["methods"], "worst10")
    if len(defined) > 3:
        best = (max if measure.better == "higher" else min)(defined, key=lambda label: defined[label])
        defined = {label: defined[label] for label in dict.fromkeys((next(iter(defined)), best))}
    if not defined:
        return ""
    values = notes.listed([f"{label} {with_unit(value, measure)}" for label, value in defined.items()])
    worst = "the worst client" if spread["tenth"] == 1 else f"the worst {span(*spread['ranges']['tenth'])}"
    return f"Over {number_of_clients(spread['ranges'], worst)}, the mean {measure.noun} is {values}."


def failed_methods(methods: Sequence[content.Measured]) -> str:
    """Which methods failed: their numbers are neither fair nor unfair; empty if none did."""
    if not (failed := [method for method in methods if method["failed"]]):
        return ""
    runs = sum(len(method["failed"]) for method in failed)
    every = sum(len(method["seeds"]) for method in failed)
    part = "" if runs == every else f" in {runs} of {plural(every, 'run')}"
    single = len(failed) == 1
    guessing = f"{'is' if single else 'are'} no better than guessing"
    diverged = {reason.key == DIVERGED for method in failed for reason in method["failed"].values()}
    state = f"diverged, or {guessing}" if len(diverged) > 1 else "diverged" if True in diverged else guessing
    names = _few([method["method"] for method in failed], "method")
    return f"{names} {state}{part}, so {'its' if single else 'their'} numbers show neither fairness nor unfairness."


def _few(names: Sequence[str], noun: str) -> str:
    """Names that can be read aloud; of more than three their number."""
    return notes.listed(names) if len(names) <= 3 else plural(len(names), noun)


def untested_groups(methods: Sequence[content.Measured]) -> str:
    """Which groups were not tested at the end."""
    groups = list(dict.fromkeys(test["group"] for method in methods for test in method["untested"]))
    if not groups:
        return ""
    rounds = {test["round"] for method in methods for test in method["untested"] if test["round"] is not None}
    since = f" (last in round {max(rounds)})" if len(groups) == 1 and len(rounds) == 1 else ""
    were = "was" if len(groups) == 1 else "were"
    return f"{_few(groups, 'group')} {were} not tested in each of the last rounds{since}, so average, spread and worst group are not known."


def guessed_groups(comparison: content.OfMeasure) -> str:
    """On which groups methods that learned are no better than guessing; empty if on none."""
    learned = who_learned(comparison)
    groups = list(learned[0]["groups"]) if learned else []
    methods = {group: [m["method"] for m in learned if group in m["guessed"]] for group in groups}
    all_guess = [group for group in groups if len(methods[group]) == len(learned)]
    some_guess = [group for group in groups if methods[group] and group not in all_guess]
    some_methods = list(dict.fromkeys(chain.from_iterable(methods[group] for group in some_guess)))
    texts = []
    if all_guess:
        who = "no method is better" if len(learned) > 1 else "the model is no better"
        texts.append(f"{_few(all_guess, 'group')} {who} than guessing")
    if some_guess:
        are = "is" if len(some_methods) == 1 else "are"
        texts.append(f"{_few(some_guess, 'group')} {_few(some_methods, 'method')} {are} no better than guessing")
    return f"On {'; on '.join(texts)}." if texts and len(groups) > 1 else ""


def failures(comparison: content.OfMeasure) -> list[str]:
    """A sentence for each method that failed with some seed: its numbers are neither fair nor unfair."""
    return [f"{reason} Its numbers show neither fairness nor unfairness." for reason in _reasons(comparison)]


def _reasons(comparison: content.OfMeasure) -> Iterator[str]:
    """Why methods failed, a sentence for each and kind of failure."""
    for method in comparison["methods"]:
        for kind, seeds in grouped((reason.key, seed) for seed, reason in method["failed"].items()).items():
            which = f"{noun('seed', len(seeds))} {notes.listed(seeds)}"
            reason = method["failed"][seeds[0]].removeprefix(f"{kind}: ")
            example = f"with seed {seeds[0]} " if len(seeds) > 1 else ""
            yield f"{method['method']}, {which}: {kind} ({example}{reason})."


def _only_method(method: content.Measured, only: bool, measure: Measure) -> str:
    """What the one method that learned reaches; ``only`` if others did not."""
    groups = {group: cell["mean"] for group, cell in method["groups"].items() if cell["mean"] is not None}
    name = f"Only {method['method']} is better than guessing with every seed: it" if only else method["method"]
    if (average := content.mean_of(method, "avg")) is None:
        if not groups:
            return f"{name} has no group that was tested in each of the last rounds."
        reached = notes.listed([f"{reaching(value, measure)} on {group}" for group, value in [*groups.items()][:4]])
        return f"{name} reaches {reached}."
    text = f"{name} reaches {reaching(average, measure)}"
    if len(groups) == 1:
        return f"{text} on {next(iter(groups))}."
    worst = [*groups][measure.worst_at([*groups.values()])]
    return (
        f"{text} on average over {plural(len(groups), 'group')}, with a standard deviation of {points(content.mean_of(method, 'std'), measure)} "
        f"between them; the {measure.lowest} is {worst} at {with_unit(groups[worst], measure)}."
    )


def reaching(value: float | None, measure: Measure) -> str:
    """A number that a method reaches: `81.20 %`, `RMSE 54.31`."""
    return ("" if measure.unit == "%" else f"{measure.noun} ") + with_unit(value, measure)


def points(value: float | None, measure: Measure) -> str:
    """A difference or spread of numbers, with its unit."""
    return f"{number(value, measure.digits)} {measure.points}".rstrip()


def _intervals_of_one(method: content.Measured, digits: int = 2) -> Iterator[str]:
    """The 95 % intervals of what the first paragraph says of one method."""
    keys = [("avg", "AVG"), *([("std", "STD"), ("worst", "worst")] if len(method["groups"]) > 1 else [])]
    for key, title in keys:
        (mean, half), ends = itemgetter("mean", "ci95")(content.number_of(method, key)), content.ends_of(method, key)
        if mean is not None and half is not None:
            ends = [mean - half, mean + half]
        if content.mean_of(method, "avg") is not None and mean is not None and ends:
            yield f"{method['method']}, {title}: {number(mean, digits)} {interval(ends, digits)}."


def _against(leader: content.Leader, label: str, digits: int) -> str:
    """How the leading method compares with another: the difference, its interval, the p-value, and the seeds it would take."""
    test = leader["versus"][label]
    if test["difference"] is not None and test["low"] is None and test["seeds"] > 1:
        return f"{label} ({same_in_every_seed(test['difference'], digits)})"
    if test["difference"] is None or test["low"] is None or test["high"] is None:
        return label
    ends = interval((test["low"], test["high"]), digits, sign=True)
    text = f"{label} ({number(test['difference'], digits, sign=True)} {ends}"
    if test["holm"] is not None:
        text += f", {'Holm ' * (test['family'] > 1)}p {p_value(test['holm'])}"
    if not test["apart"] and test["seeds"] > 1:
        text += f", about {n} seeds" if (n := test["seeds_needed"]) else ", more than 1000 seeds"
    return f"{text})"


def _judged(comparison: content.Document) -> Iterator[tuple[str, content.Leader, str, str, str]]:
    """Of every claim that these runs can be asked about: its key, its leader, what is claimed, the sentence where it is shown, and the value."""
    by_label, measure = {method["method"]: method for method in comparison["methods"]}, measure_of(comparison)
    for key in ("std", "worst", "avg"):
        leader = comparison["leaders"].get(key)
        if not leader or (key == "worst" and len(comparison["methods"][0]["groups"]) == 1):
            continue
        method, of_label = by_label[leader["leading"]], f"is that of {leader['leading']}"
        mean, several, worst = content.mean_of(method, key), len(method["groups"]) > 1, [*method["worst_groups"]]
        amount, reached, apart = with_unit(mean, measure), reaching(mean, measure), points(mean, measure)
        if key == "std":
            claim, value = "the fairest", f"the lowest STD {of_label}, {apart}"
            shown = f"is the fairest: its {measure.noun} varies least over {plural(len(method['groups']), 'group')}, by {apart}"
        elif key == "worst":
            groups = notes.listed(worst) if worst else ""
            claim = "the best for the worst group"
            value = f"the {measure.highest} worst {of_label}, {amount} ({groups})"
            shown = f"serves the worst group best: {reached} on {groups}"
        else:
            accurate = measure.better == "higher"
            claim = "the most accurate" if accurate else "the one with the lowest error"
            value = f"the {measure.highest} {'AVG' if several else measure.noun} {of_label}, {amount}"
            shown = f"{'is the most accurate' if accurate else 'has the lowest error'}, at {reached}{' on average' * several}"
        yield key, leader, claim, shown, value


def _claims(comparison: content.Document, learned: Sequence[content.Measured]) -> Iterator[str]:
    """Who is the fairest, the best for the worst group, the most accurate: a winner only where it can be distinguishable from all others."""
    seed = "With this seed, " if len(comparison["seeds"]) == 1 else ""
    tied = []
    for key, leader, claim, shown, _ in _judged(comparison):
        if leader["best"]:
            yield f"{seed}{leader['best']} {shown}."
        elif not any(_difference(method, key, learned) for method in learned):
            tied.append(claim)
    if tied:
        last = f"{', '.join(tied[:-1])} or {tied[-1]}" if len(tied) > 1 else tied[0]
        yield f"{'No method' if len(learned) > 2 else 'Neither method'} is shown to be {last}."


CLAIMED: Final = {"worst": "worst group", "avg": "average", "std": "STD over groups"}
CLAIMED_OF_CLIENTS: Final = {"worst10": f"worst 10{PERCENT} of clients", "std": "STD over clients"}


def _difference(method: content.Row, key: str, judged: Sequence[content.Row]) -> content.Difference | None:
    """A method less the first one in a column, where that did not fail and the two are distinguishable."""
    test, first = content.test_of(method, key), cast(Mapping[str, object], method["versus"] or {}).get("method")
    return test if test and test["apart"] and any(other["method"] == first for other in judged) else None


def _shown(methods: Sequence[content.Compared], titles: Mapping[str, str], measure: Measure) -> Iterator[str]:
    """What a method is shown to gain or lose against the first, a sentence for each with any."""
    for method in methods:
        tests = {title: test for key, title in titles.items() if (test := _difference(method, key, methods))}
        if tests and (versus := method["versus"]):
            over, digits = "seeds" if versus["seeds"] > 1 else "test samples", measure.digits
            parts = [f"{title} {difference(test, digits, p=False)}" for title, test in tests.items()]
            unit = f" {measure.points}".rstrip()
            yield f"Against {versus['method']}, {method['method']}: {', '.join(parts)}{unit} (95{PERCENT} intervals over the {over})."


def _differences(comparison: content.Document) -> Iterator[str]:
    """What the leading method of every claim is ahead of, with intervals."""
    digits = measure_of(comparison).digits
    for _, leader, claim, _, value in _judged(comparison):
        apart = [label for label in leader["versus"] if label not in leader["tied"]]
        text = f"{claim[0].upper()}{claim[1:]}: {value}"
        if apart:
            text += f"; distinguishable from {_all(leader, apart, digits)}"
        if leader["tied"]:
            text += f"; not distinguishable from {_all(leader, leader['tied'], digits)}"
        yield f"{text}."
    for other, leader, measure in _leaders_by_other_measures(comparison):
        yield f"The worst group by {other}: the {measure.highest} is that of {leader['leading']}; distinguishable from {_all(leader, leader['versus'], measure.digits)}."
    if (rewards := _fairness(comparison)) is not None:
        which = rewards["versus"] if rewards["best"] else rewards["tied"]
        yield f"Rewards: the highest fairness is that of {rewards['leading']}; {'' if rewards['best'] else 'not '}distinguishable from {_all(rewards, which)}."


def _brackets(comparison: content.Document, *, several: bool) -> Iterator[str]:
    """What stands in brackets, where any interval is known: of the differences of ``several`` methods, or of the numbers of one."""
    leaders = [leader for _, leader, *_ in _judged(comparison)]
    leaders += [leader for _, leader, _ in _leaders_by_other_measures(comparison)]
    leaders += filter(None, [_fairness(comparison)])
    tests = [test for leader in leaders for test in leader["versus"].values() if test["low"] is not None]
    if not (tests if several else any(any(_intervals_of_one(method)) for method in who_learned(comparison))):
        return
    family = max((test["family"] for test in tests), default=1)
    which = "the difference and its" if several else "the"
    if len(comparison["seeds"]) == 1:
        rule = " Two methods are distinguishable if the interval corrected for {} differences, which is wider, excludes zero."
        yield f"In brackets: {which} 95{PERCENT} interval over the test samples.{rule.format(family) * (family > 1)}"
        return
    holm = ""
    if family > 1:
        holm = f" by Holm, corrected for the {family} differences of a column, which the interval is not"
        holm += " (each method to the first and to the leading one; not those that are the same in every seed)"
    seeds = ", and how many seeds would be needed to distinguish them" * any(not test["apart"] for test in tests)
    yield f"In brackets: {which} 95{PERCENT} interval over the seeds{f', p{holm}{seeds}' * several}."


def _all(leader: content.Leader, labels: Iterable[str], digits: int = 2) -> str:
    return notes.listed([_against(leader, label, digits) for label in labels])


def _leaders_by_other_measures(comparison: content.Document) -> Iterator[tuple[str, content.Leader, Measure]]:
    """The measures by which another method is shown to serve the worst group best, in words, and its leader."""
    kindest = ahead["best"] if (ahead := comparison["leaders"].get("worst")) else None
    for other in tables(comparison)[1:]:
        leader = other["leaders"].get("worst")
        if len(other["methods"][0]["groups"]) > 1 and leader and leader["best"] and leader["best"] != kindest:
            measure = measure_of(other)
            worst = next(row["worst_groups"] for row in other["methods"] if row["method"] == leader["best"])
            yield f"{measure.noun} ({notes.listed([*worst])})", leader, measure


def _by_other_measures(comparison: content.Document) -> Iterator[str]:
    """The measures by which another method is shown to serve the worst group best."""
    measures = grouped((leader["leading"], name) for name, leader, _ in _leaders_by_other_measures(comparison))
    for method, words in measures.items():
        yield f"By {' and '.join(words)}, {method} serves the worst group best."


def _fairness(comparison: content.Document) -> content.Leader | None:
    """Who leads in rewarding contributions, where several seeds say so."""
    together = comparison["collaboration"]
    return together["leaders"].get("fairness") if together and len(together["seeds"]) > 1 else None


def _rewards(comparison: content.Document) -> Iterator[str]:
    """How closely what clients get follows what they contribute, and the reward of the best client."""
    if not (together := comparison["collaboration"]):
        return
    rows = [method for method in together["methods"] if not method["alone"]]
    fairness, best = content.means_of(rows, "fairness"), content.means_of(rows, "max")
    if not fairness:
        return

    def of(label: str) -> str:
        return f"{fairness[label]:.2f} of 100, with {best[label]:.2f}{PERCENT} for the best client"

    if (leader := _fairness(comparison)) is None:
        values = "; ".join(f"{label} {of(label)}" for label in [*fairness][:3])
        yield f"Fairness of contribution and reward: {values}."
    elif leader["best"]:
        yield f"What clients get follows what they contribute best with {leader['best']}: fairness {of(leader['best'])}."
    else:
        yield f"No method is shown to reward contributions best: {leader['leading']} has a fairness of {of(leader['leading'])}."


def limits(histories: Sequence[History] | Comparison) -> list[str]:
    """What the numbers cannot show, a sentence each: only what applies to these runs."""
    return [*_limits(Comparison.of(histories))]


def _limits(comparison: Comparison) -> Iterator[str]:
    histories, methods, measure = comparison.histories, comparison.document["methods"], comparison.measure
    yield from _few_seeds(comparison)
    if len(methods) > 1:
        yield (
            f"Seeds change {notes.listed(seeds_change(histories))}. The results do not cover other data, networks or "
            "hyper-parameters; a method tuned longer than its rival appears better than it is."
        )
    if all(embedded(history) for history in histories):
        yield (
            "The data are the small sets that come with Equipoise, made to compare methods in minutes: the "
            f"{measure.plural} and the order of methods may differ on another task."
        )
    federated = [history for history in histories if history.sharing.federated]
    lengths = sorted({len(run) for run in federated})
    if len(lengths) > 1 and len({run.label for run in federated}) > 1:
        yield f"Not all runs trained for as many rounds ({lengths[0]} to {lengths[-1]}): a difference between methods may come from the rounds."
    if rising := [label for label, seeds in comparison.runs.items() if _improves(list(seeds.values()), measure)]:
        yield (
            f"Still {'rising' if measure.better == 'higher' else 'falling'} in the end, by more than "
            f"{'1 point' if measure.unit == '%' else 'a hundredth'} from the five rounds before to the last five: "
            f"{', '.join(rising)}. More rounds may change the order."
        )
    yield from _even_but_poor(methods, measure)
    for seed in comparison["seeds"]:
        if _differ([run for run in histories if run.seed == seed]):
            yield f"With seed {seed} not all runs had the same data: their SHA-256 differ. Compare them with care."
    if mixed(histories):
        yield "Not all runs were made with the same source and versions, see Environment."


def _few_seeds(comparison: Comparison) -> Iterator[str]:
    """What so few seeds cannot show."""
    n, measure, document = len(comparison["seeds"]), comparison.measure, comparison.document
    changed = notes.listed(seeds_change(comparison.histories))
    gaps = any(_has_intervals(method) for part in content.treated(document) for method in part.parity["methods"])
    rows = [*document["methods"], *(document["spread"] or {"methods": []})["methods"]]
    if n == 1:
        shown = "no number here shows what"
        if gaps or any(map(_has_intervals, rows)):
            shown = "intervals are over the test samples of these models, and do not cover what"
        yield f"One seed: {shown} another seed changes: {changed}."
        if measure.unit != "%":
            but = ", except of gaps between people" * gaps
            yield f"No interval over the test samples{but}: it needs the error of each sample, and runs record sums of errors only."
    elif n < 5:
        wide = {2: "9.0", 3: "2.5", 4: "1.6"}[n]
        yield (
            f"{n} seeds: Student's t has {plural(n - 1, 'degree')} of freedom, and half of the 95 % interval is {wide} standard deviations, so "
            "only large differences are significant. A p-value above 0.05 does not mean that methods are equal."
        )


def _even_but_poor(methods: Sequence[content.Measured], measure: Measure) -> Iterator[str]:
    """The method that is even because it is poor on all groups."""
    rows = [method for method in methods if not method["failed"] and not method["bound"]]
    spreads, averages = content.means_of(rows, "std"), content.means_of(rows, "avg")
    learned = {label: averages[label] for label in spreads if label in averages}
    if len(learned) > 1:
        even = min(learned, key=spreads.__getitem__)
        best, worst = measure.best([*learned.values()]).value, measure.worst([*learned.values()]).value
        if measure.ahead(best, learned[even]) > measure.point(best) and learned[even] == worst:
            yield f"{even} has the lowest STD and the {measure.lowest} average: a model that is poor on all groups also has a low STD."


def _differ(runs: Sequence[History]) -> bool:
    """Whether runs of one seed had other data."""
    digests = {digest for run in runs if (digest := data_digest(run))}
    files = [run.meta.get("contents", {}).items() for run in runs]  # hashes of what was read of the user's
    read = {tuple(sorted(item for item in hashes if item[0] != "attributes")) for hashes in files if hashes}
    return len(digests) > 1 or len(read) > 1


def seeds_change(histories: Sequence[History]) -> list[str]:
    """What another seed changes, as far as the runs say; the order of samples in any case."""
    return [part for part in (drawn(histories), _first(histories), "the order of samples") if part]


def drawn(histories: Sequence[History]) -> str:
    """What a seed draws of the data; empty if it is nothing, or not known."""
    configs = [history.meta.get("config") or {} for history in histories]
    if not all(configs) or any(run.at_sites for run in histories):
        return ""  # given from Python, or what sites have: the same for every seed
    data = [history.meta.get("data") or {} for history in histories]
    if len({history.seed for history in histories}) == 1:
        same = not any(map(embedded, histories))  # of one seed it is not known
    else:
        same = len({(entry.get("sha256"), entry.get("rows")) for entry in data}) == 1
    if same:
        return ""
    own = all(config.get("scenario") == "own" for config in configs)
    if own and len({entry.get("sha256") for entry in data}) > 1:  # of all samples: a function that takes the seed
        return Said("the data", "data")
    divided = any((config.get("scenario_options") or {}).get("clients") for config in configs)
    return "which samples are for testing" if own and not divided else Said("the draw of the data", "data")


def other_clients(histories: Sequence[History]) -> list[str]:
    """A sentence for tables with a row per client, where a client has other samples with each seed."""
    changed = drawn(histories) if len({history.seed for history in histories}) > 1 else ""
    if key_of(changed) != "data":
        return []
    return [f"Seeds change {changed}: under one name a client has other samples with each."]


def _first(histories: Sequence[History]) -> str:
    """Whether a seed changes the first model."""
    for history in histories:
        config = history.meta.get("config") or {}
        weights = (config.get("network_options") or {}).get("weights")
        if history.at_sites or not (config or history.meta.get("first")) or weights:
            return ""
    seeds = {history.seed for history in histories}
    same = len(seeds) > 1 and len({history.meta.get("first") or history.seed for history in histories}) == 1
    from_python = len(seeds) == 1 and not all(history.meta.get("config") for history in histories)
    return "" if same or from_python else "the first model"


def embedded(history: History) -> bool:
    """Whether a run was made on data that come with Equipoise."""
    config = history.meta.get("config") or {}
    return bool(config) and not config.get("data") and not history.at_sites


def tested_on(histories: Sequence[History]) -> str:
    """On what the model that a client predicts with is tested."""
    return " or ".join(dict.fromkeys(_tested_on(history) for history in histories))


def _tested_on(history: History) -> str:
    if history.at_sites:
        return "the test samples of its own site"
    groups = history.client_groups
    if history.meta.get("client_tests") or (groups and all(groups) and len(set(groups)) == len(groups)):
        return "test samples of its own"
    return "the test set of its group" if groups and all(groups) else "all test samples"


def _improves(runs: Sequence[Run], measure: Measure) -> bool:
    of_groups = [run.group_table(5)[1] for run in runs]
    if any(len(rounds) < 10 for rounds in of_groups):
        return False
    gains = [measure.scale * measure.ahead(a[-5:].mean(), a[-10:-5].mean()) for a in of_groups]
    return float(np.mean(gains)) > measure.point(float(np.mean([a[-10:-5].mean() for a in of_groups])))
