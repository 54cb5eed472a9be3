"""How the models of a run treat groups of people: those of its test sets, and those with each value of a sensitive attribute."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics import definitions
from equipoise.metrics.classification import RATES
from equipoise.metrics.definitions import Statistic, two_stated
from equipoise.metrics.gaps import Decisions, Errors, Estimate, Row
from equipoise.metrics.groups import ESTIMABLE, OF_CLASS, Counts, Positive, Rates, added, parity, people_of, rates_of
from equipoise.metrics.intervals import sizes_by, wilson
from equipoise.metrics.measures import ACCURACY
from equipoise.metrics.performance import Value, percent
from equipoise.privacy.suppression import Key, OfClass, count_of, enough
from equipoise.records.record import Record, Sums
from equipoise.records.results import Ends, GroupFairness, People, Site
from equipoise.system.grouping import by_name

if TYPE_CHECKING:
    from equipoise.records.history import History

SETS: Final = "test set"  # what divides people, if it is no attribute
Numbers = dict[str, float | None]
Keys = Callable[..., Key]  # of the counts of a group, from its name, and a site
Words = tuple[str, ...]  # the name of a value; by all attributes together one each


def plain(name: str, site: str = "") -> Key:
    """The key of the counts of a test set."""
    return SETS, name


def counts_by_round(records: Sequence[Record]) -> list[tuple[int, dict[str, Counts]]]:
    """The rounds with counts of the test sets, and these."""
    counted = [
        (
            record["round"],
            {
                g: counts
                for g, score in record.get("groups", {}).items()
                if isinstance(counts := score.get(RATES), Mapping)
            },
        )
        for record in records
    ]
    return [(t, groups) for t, groups in counted if groups]


def sums_by_round(history: "History", k: int, last: int) -> list[tuple[int, dict[Words, Row], int]]:
    """The ``last`` rounds with sums by the k-th of `History.divisions`, these over all test sets by value, and of how many samples none is known.

    They are of the global model, and a test set without attributes is all unknown. Without a global model they are of the model of each
    client on its own test set; on a test set that several clients share, the mean over their models.
    """
    rounds = list[tuple[int, dict[Words, Row], int]]()
    for record in reversed(history.records):
        if len(rounds) == last:
            break
        by = record.get("by", {})
        sets = {name: [sums] for name, sums in by.get("groups", {}).items()}
        bare = sum(history.sizes.get(name, 0) for name in record.get("groups", {}) if name not in sets) if sets else 0
        if "all" in by:
            sets, bare = {"": [by["all"]]}, 0
        elif not sets:
            names = history.client_names if history.meta.get("client_tests") else history.client_groups
            for name, sums in zip(names, by.get("clients", ()), strict=False):
                if sums is not None:
                    sets.setdefault(name, []).append(sums)
        if any(k < len(sums) for models in sets.values() for sums in models):
            rows, unknown = summed(history, k, sets.values())
            rounds.append((record["round"], rows, unknown + bare))
    return rounds[::-1]


def summed(history: "History", k: int, sets: Iterable[Sequence[Sequence[Sums]]]) -> tuple[dict[Words, Row], int]:
    """Sums over some data sets by the names of the value of the k-th of `History.divisions`, and how many samples have none that is known.

    Each data set has the sums of every model that was tested on it, of which it is the mean.
    """
    rows: dict[tuple[int, ...], dict[str, NDArray[np.float64]]] = {}
    unknown, told = 0, list[set[str]]()
    for models in sets:
        each = [cast(dict[str, list[Any]], sums[k]) for sums in models if k < len(sums)]
        columns = {key: np.mean([sums[key] for sums in each], axis=0) for key in each[0]} if each else {}
        unknown += int(columns.pop("unknown", 0))
        for at, code in enumerate(columns.pop("value", np.empty(0)).astype(int)):
            row = rows.setdefault((*np.atleast_1d(code).tolist(),), {})
            for key, column in columns.items():
                row[key] = row.get(key, np.zeros(())) + column[at]
        told.append({*columns})
    names = [history.attributes[name] for name in history.divisions[k]]
    for row in rows.values():  # a sum is known if every set with people has it
        for key in row.keys() - set.intersection(*filter(None, told)):
            row.pop(key)
    return {
        tuple(each[c] if c < len(each) else str(c) for c, each in zip(code, names, strict=True)): rows[code]
        for code in sorted(rows)
    }, unknown


def people(history: "History", k: int, last: int) -> People | None:
    """How people with each value of the k-th of `History.divisions` are treated, over the last rounds that know it; None if none does."""
    rounds = [(t, _joined(rows), unknown) for t, rows, unknown in sums_by_round(history, k, last)]
    if not rounds:
        return None
    gone, least = history.unshown(history.positive and history.positive.number, last), history.least_group
    keys = partial(key_of, " and ".join(history.divisions[k]), places(history))
    by_round = [by for record in history.records if (by := record.get("by")) and record["round"] >= rounds[0][0]]
    N = len(by_round[-1].get("clients", ()))
    own = [
        [_joined(summed(history, k, [[sums]])[0]) for by in by_round if (sums := by["clients"][m])] for m in range(N)
    ]
    inside = [
        {name: _joined(summed(history, k, [each])[0]) for name, each in site_sums(history, by).items()}
        for by in by_round
    ]
    return {
        "treated": _treated(history, rounds, keys, gone),
        "unknown": None if (unknown := rounds[-1][2]) > 0 and not enough(unknown, least) else unknown,
        "as_groups": _are_test_sets(history, k, by_round[-1].get("groups", {})),
        "clients": [
            _inside(history, rows, keys, name, gone) if rows else None
            for rows, name in zip(own, history.client_names, strict=False)
        ],
        "sites": sites(inside, history.positive, least, keys, gone)
        if history.main == ACCURACY
        else sites_of_numbers(inside, least, keys, gone),
        "averaged": [t for t, _, _ in rounds],
    }


def latest(history: "History") -> Mapping[str, Any]:
    """The sums by sensitive attribute of the last record that has them."""
    return next((cast(Mapping[str, Any], record["by"]) for record in reversed(history.records) if "by" in record), {})


def places(history: "History") -> dict[str, str]:
    """Where each site's people are counted: at itself, or with others of its group, if these have one test set."""
    shared = latest(history).get("clients") and not history.meta.get("client_tests")
    return dict(zip(history.client_names, history.client_groups if shared else history.client_names, strict=True))


def key_of(division: str, at: Mapping[str, str], name: str, site: str | None = None) -> Key:
    """The key of the counts of people with a value, or of those at a site."""
    return (division, name) if site is None else (division, name, at.get(site, site))


def _joined(rows: Mapping[Words, Row]) -> dict[str, Row]:
    return {", ".join(words): row for words, row in rows.items()}


def _treated(
    history: "History", rounds: Sequence[tuple[int, dict[str, Row], int]], keys: Keys, gone: Collection[Key]
) -> GroupFairness | dict[str, Any] | None:
    """The rates, or the errors of numbers, by the name of the value; None of fewer than two values."""
    least = history.least_group
    if history.main == ACCURACY:
        counts = [(t, cast(Mapping[str, Counts], rows)) for t, rows, _ in rounds]
        return rates(counts, history.positive and history.positive.number, least, keys, gone)
    of_rounds = [rows for _, rows, _ in rounds]
    return errors(of_rounds, least, keys, gone) if len(by_name(of_rounds)) > 1 else None


def _are_test_sets(history: "History", k: int, groups: Mapping[str, Sequence[Sums]]) -> bool:
    """Whether each value of the k-th of `History.divisions` has a test set, and each test set is people with one value."""
    sets = [sums[k] for sums in groups.values() if k < len(sums)]
    values = [str(code) for sums in sets for code in sums["value"]]
    return (
        all(record.get("groups", {}).keys() <= groups.keys() for record in history.records)
        and all(len(sums["value"]) == 1 and "unknown" not in sums for sums in sets)
        and len(values) == len({*values}) > 0
    )


def site_sums(history: "History", by: Mapping[str, Any]) -> dict[str, list[list[Sums]]]:
    """By site the sums of one round: of every client where these have models or test sets of their own, else of every test set."""
    if clients := by.get("clients"):
        return {name: [sums] for name, sums in zip(history.client_names, clients, strict=False) if sums}
    return {name: [sums] for name, sums in by.get("groups", {}).items()}


def sites(
    rounds: Sequence[Mapping[str, Mapping[str, Row]]],
    about: Positive | None,
    least: int,
    keys: Keys,
    gone: Collection[Key],
) -> dict[str, Site]:
    """How people are treated inside every site, over all of some rounds; a gap needs `ESTIMABLE` people of every value.

    Parameters
    ----------
    rounds : by site and value the sums.
    about : the positive class; nothing is returned without it.
    least : >= 1, people that a rate must be about.
    keys : of the counts of a site, by value.
    gone : keys of counts that are not shown.
    """
    if about is None or not all("true" in row for by in rounds for rows in by.values() for row in rows.values()):
        return {}
    R, c, most = len(rounds), about.number, max(least, ESTIMABLE)
    counts: dict[str, dict[str, Counts]] = {
        name: {value: added(rows, R / len(each)) for value, rows in by_name(each).items()}
        for name, each in by_name(rounds).items()
    }
    several = {
        name: groups
        for name, groups in counts.items()
        if sum(enough(people_of(sums)["accuracy"][0], most * R) for sums in groups.values()) > 1
    }
    estimable = sum(parity(groups, c, most * R).demographic_parity.defined for groups in several.values())
    level, stated = 1 - 0.05 / max(1, estimable), two_stated(definitions.PARITY)
    by_site: dict[str, Site] = {}
    for name, groups in counts.items():
        gaps, intervals = _estimated(stated, Decisions(groups, c, R, most, level)) if name in several else ({}, {})
        by_site[name] = {
            "groups": {
                value: _site_rates(group, c, R, least, keys(value, name), gone) for value, group in groups.items()
            },
            "gaps": {gap.key: gaps.get(gap.key) for gap in stated},
            "intervals": {gap.key: intervals.get(gap.key) for gap in stated},
        }
    return by_site


def sites_of_numbers(
    rounds: Sequence[Mapping[str, Mapping[str, Row]]], least: int, keys: Keys, gone: Collection[Key]
) -> dict[str, Site]:
    """As :func:`sites`, the errors of numbers that are predicted."""
    most, each = max(least, ESTIMABLE), by_name(rounds)
    stated = [gap.key for gap in two_stated(definitions.ERRORS)]
    estimable = sum(errors(rows, most)[stated[0]] is not None for rows in each.values())
    by_site: dict[str, Site] = {}
    for name, rows in each.items():
        gaps = errors(rows, most, level=1 - 0.05 / max(1, estimable))
        shown = errors(rows, least, partial(keys, site=name), gone)["groups"]
        by_site[name] = {
            "groups": {value: {key: x[key] for key in ("n", "mae", "error")} for value, x in shown.items()},
            "gaps": {key: gaps[key] for key in stated},
            "intervals": {key: gaps["intervals"][key] for key in stated},
        }
    return by_site


def _site_rates(counts: Counts, c: int, rounds: int, least: int, key: Key, gone: Collection[Key]) -> Numbers:
    rates, people = rates_of(counts, least * rounds), people_of(counts)
    return {
        "n": count_of(people["accuracy"][c] / rounds, key, least, gone),
        "of_class": count_of(people["tpr"][c] / rounds, OfClass(key, c), least, gone),
        "selection_rate": percent(rates.selection_rate[c]),
        "tpr": percent(rates.tpr[c]),
    }


def _inside(
    history: "History", rounds: Sequence[Mapping[str, Row]], keys: Keys, site: str, gone: Collection[Key]
) -> dict[str, Numbers]:
    """The main measure of a client's model for each value, the mean over some rounds."""
    by_value: dict[str, Numbers] = {}
    for name, each in by_name(rounds).items():
        sizes = [float(row["true"].sum() if "true" in row else row["n"]) for row in each]
        people = float(each[-1].get("persons", sizes[-1]))
        values = [
            row["right"].sum() / n if "right" in row else np.sqrt(row["squares"] / n)
            for row, n in zip(each, sizes, strict=True)
        ]
        mean = float(np.mean(values))
        by_value[name] = {
            "n": count_of(people, keys(name, site), history.least_group, gone),
            "main": history.main.shown(Value(mean, enough(people, history.least_group) and math.isfinite(mean))),
        }
    return by_value


def errors(
    rounds: Sequence[Mapping[str, Row]], least: int, keys: Keys = plain, gone: Collection[Key] = (), level: float = 0.95
) -> dict[str, Any]:
    """How large the errors of a model are by group, the mean over some rounds, and how different.

    Parameters
    ----------
    rounds : of each the sums of every group, see `equipoise.records.record.Sums`.
    least : >= 1, people that a number must be about.
    keys, gone : as of :func:`sites`.
    level : in (0, 1), of the intervals.
    """
    rows_of_groups = by_name(rounds)
    people = {name: round(float(rows[-1].get("persons", rows[-1]["n"]))) for name, rows in rows_of_groups.items()}
    between = Errors({name: rows for name, rows in rows_of_groups.items() if enough(people[name], least)}, level)
    means = {key: between.means(key) for gap in definitions.ERRORS for key in gap.rates}
    by_group: dict[str, dict[str, Any]] = {
        name: {"n": count_of(people[name], keys(name), least, gone)}
        | {key: of_key[name][0] if name in of_key else None for key, of_key in means.items()}
        for name in rows_of_groups
    }
    numbers, intervals = _estimated(definitions.ERRORS, between)
    return {"intervals": intervals, **numbers, "groups": by_group}


def _estimated(gaps: Iterable[Statistic], between: Decisions | Errors) -> tuple[Numbers, dict[str, Ends]]:
    """Some gaps by their keys, and the intervals of those that have such."""
    estimates: dict[str, Estimate] = {gap.key: gap.compute(between) for gap in gaps}
    ends = {key: estimate.ends for key, estimate in estimates.items() if estimate.ends is not None}
    return {key: estimate.value for key, estimate in estimates.items()}, {key: x.ends for key, x in ends.items()}


def rates(
    rounds: Sequence[tuple[int, Mapping[str, Counts]]],
    positive: int | None = None,
    least: int = 1,
    keys: Keys = plain,
    gone: Collection[Key] = (),
) -> GroupFairness | None:
    """How differently a model treats groups: rates of its decisions by group, and the gaps between groups; None of fewer than two.

    See `equipoise.metrics.parity`; a rate is over all of some rounds.

    Parameters
    ----------
    rounds : with the counts of every group.
    positive : the class that counts as positive; by default the second of two, and every one of more.
    least : >= 1, people that a rate must be about: one of fewer is not shown, and in no gap.
    keys, gone : as of :func:`sites`.
    """
    every = by_name(groups for _, groups in rounds)
    if len(every) < 2:
        return None
    R = len(rounds)
    sums = {name: added(each, R / len(each)) for name, each in every.items()}  # as if counted in all of these rounds
    between = Decisions(sums, positive, R, least)
    fairness, calibrated = between.fairness, between.calibrated
    numbers, intervals = _estimated(definitions.PARITY, between)
    treated = {
        **numbers,
        "to_overall": {key: percent(fairness.gap(key).to_overall) for key in ("accuracy", "tpr", "selection_rate")},
        "of_class": dict(fairness.widest),
        "classes": list(fairness.classes),
        "groups": {
            name: {
                **_sizes(every[name][-1], fairness.classes, least, keys(name), gone),
                **_rates(rates, sums[name], calibrated[name], fairness.classes, R),
            }
            for name, rates in fairness.rates.items()
        },
        "intervals": intervals,
        "undefined": [list(what) for what in fairness.undefined],
        "averaged": [t for t, _ in rounds],
    }
    return cast(GroupFairness, treated)


def _sizes(counts: Counts, classes: Sequence[int], least: int, key: Key, gone: Collection[Key]) -> dict[str, Any]:
    """How many people are in a group, and how many of these are of each class; None if that or something that follows is about too few."""
    people = people_of(counts)
    return {
        "n": count_of(max(people["accuracy"], default=0), key, least, gone),
        "of_class": [count_of(people["tpr"][c], OfClass(key, c), least, gone) for c in classes],
    }


def _rates(rates: Rates, counts: Counts, calibrated: Numbers, classes: Sequence[int], rounds: int) -> dict[str, Any]:
    """The rates of one group with their intervals, from counts that are the sum of so many rounds."""
    hardest = rates.hardest
    sizes = sizes_by(counts, rounds)
    ends = {key: [wilson(rates.of(key, c).value, sizes[key][c]).percent for c in classes] for key in OF_CLASS}
    worst = None if hardest is None else wilson(rates.worst_recall.value, sizes["tpr"][hardest]).percent
    intervals = {**ends, "accuracy": wilson(rates.accuracy.value, sizes["accuracy"][0]).percent, "worst_recall": worst}
    return {
        "accuracy": percent(rates.accuracy),
        **{key: [percent(rates.of(key, c)) for c in classes] for key in OF_CLASS},
        **calibrated,
        "worst_recall": percent(rates.worst_recall),
        "worst_class": hardest,
        "intervals": intervals,
    }
