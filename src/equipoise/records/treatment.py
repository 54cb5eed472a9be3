"""How the models of a run treat groups of people: those of its test sets, and those with each value of a sensitive attribute."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics import definitions
from equipoise.metrics.classification import RATES
from equipoise.metrics.definitions import Statistic, two_stated
from equipoise.metrics.gaps import Decisions, Errors, Estimate, Group, Row
from equipoise.metrics.groups import ESTIMABLE, OF_CLASS, Counts, added, people_of
from equipoise.metrics.intervals import NONE
from equipoise.metrics.measures import ACCURACY, Measure
from equipoise.metrics.performance import Value, percent
from equipoise.privacy.suppression import Key, OfClass, enough
from equipoise.records.record import Record, Sums
from equipoise.records.results import Ends, GroupFairness, People, Site
from equipoise.system.grouping import by_name

if TYPE_CHECKING:
    from equipoise.records.history import History

SETS: Final = "test set"  # what divides people, if it is no attribute
Numbers = dict[str, float | None]
Words = tuple[str, ...]  # the name of a value; by all attributes together one each


@dataclass(frozen=True)
class Division:
    """Test sets, or the values of an attribute, which divide people, and what is shown of these.

    Parameters
    ----------
    name : of the attribute, or of several: "sex and race".
    places : by site, where its people are counted, if not at itself.
    least : >= 1, people that a number must be about.
    hidden : the keys of counts that are not shown, see `equipoise.records.counts.unshown`.
    """

    name: str = SETS
    places: Mapping[str, str] = field(default_factory=dict)
    least: int = 1
    hidden: Collection[Key] = ()

    def key(self, value: str, site: str | None = None) -> Key:
        """The key of the counts of people with a value, or of those at a site."""
        return (self.name, value) if site is None else (self.name, value, self.places.get(site, site))

    def count(self, n: float, key: Key) -> int | None:
        """A count if it is shown: neither one of those that are hidden nor below ``least``."""
        return None if key in self.hidden or (n > 0 and not enough(n, self.least)) else round(n)


TEST_SETS: Final = Division()


def counts_by_round(records: Sequence[Record]) -> list[tuple[int, dict[str, Counts]]]:
    """The rounds with counts of the test sets, and these."""
    rounds = list[tuple[int, dict[str, Counts]]]()
    for record in records:
        scores = record.get("groups", {}).items()
        if counted := {g: counts for g, score in scores if isinstance(counts := score.get(RATES), Mapping)}:
            rounds.append((record["round"], counted))
    return rounds


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
    positive = history.positive
    c, unknown, classes = positive and positive.number, rounds[-1][2], history.main == ACCURACY
    name = " and ".join(history.divisions[k])
    division = Division(name, places(history), history.least_group, history.unshown(c, last))
    by_round = [by for record in history.records if (by := record.get("by")) and record["round"] >= rounds[0][0]]
    inside = by_name(
        {site: _joined(summed(history, k, [sums])[0]) for site, sums in site_sums(history, by).items()}
        for by in by_round
    )
    return {
        "treated": rates([(t, cast(Mapping[str, Counts], rows)) for t, rows, _ in rounds], c, division)
        if classes
        else errors([rows for _, rows, _ in rounds], division),
        "unknown": None if unknown > 0 and not enough(unknown, division.least) else unknown,
        "as_groups": _are_test_sets(history, k, by_round[-1].get("groups", {})),
        "clients": [
            _of_client(inside[client], history.main, division, client) if client in inside else None
            for client in history.client_names[: len(by_round[-1].get("clients", ()))]
        ],
        "sites": {} if classes and c is None else sites(inside, len(by_round), c if classes else None, division),
        "averaged": [t for t, _, _ in rounds],
    }


def latest(history: "History") -> Mapping[str, Any]:
    """The sums by sensitive attribute of the last record that has them."""
    return next((cast(Mapping[str, Any], record["by"]) for record in reversed(history.records) if "by" in record), {})


def places(history: "History") -> dict[str, str]:
    """Where each site's people are counted: at itself, or with others of its group, if these have one test set."""
    shared = latest(history).get("clients") and not history.meta.get("client_tests")
    return dict(zip(history.client_names, history.client_groups if shared else history.client_names, strict=True))


def _joined(rows: Mapping[Words, Row]) -> dict[str, Row]:
    return {", ".join(words): row for words, row in rows.items()}


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
    rounds: Mapping[str, Sequence[Mapping[str, Row]]], R: int, positive: int | None, division: Division
) -> dict[str, Site]:
    """How people are treated inside every site, over all of some rounds; a gap is between values with `ESTIMABLE` people or more.

    Parameters
    ----------
    rounds : by site, of each of its rounds the sums by value.
    R : how many rounds there are.
    positive : the class that rates are about; None of numbers that are predicted.
    division : what is shown.
    """
    least = max(division.least, ESTIMABLE)
    stated = two_stated(definitions.ERRORS if positive is None else definitions.PARITY)

    def gaps(
        of_site: Sequence[Mapping[str, Row]], chosen: Sequence[Statistic], level: float = 0.95
    ) -> dict[str, Estimate]:
        between: Decisions | Errors
        if positive is None:
            between = _errors(of_site, least, level)
        else:
            sums = _added(of_site, R)
            many = {value: x for value, x in sums.items() if enough(people_of(x)["accuracy"][0], least * R)}
            between = Decisions(many, positive, R, least, level)
        return {gap.key: gap.compute(between) if len(between.groups) > 1 else Estimate(None, NONE) for gap in chosen}

    estimable = sum(gaps(of_site, stated[:1])[stated[0].key].value is not None for of_site in rounds.values())
    by_site: dict[str, Site] = {}
    for site, of_site in rounds.items():
        estimates = gaps(of_site, stated, 1 - 0.05 / max(1, estimable))
        if positive is None:
            errors = _errors_by_value(of_site, division, site).items()
            groups = {value: {key: numbers[key] for key in ("n", "mae", "error")} for value, numbers in errors}
        else:
            groups = _rates_at(of_site, R, positive, division, site)
        by_site[site] = {
            "groups": groups,
            "gaps": {key: estimate.value for key, estimate in estimates.items()},
            "intervals": {key: estimate.ends and estimate.ends.ends for key, estimate in estimates.items()},
        }
    return by_site


def _rates_at(rounds: Sequence[Mapping[str, Row]], R: int, c: int, division: Division, site: str) -> dict[str, Numbers]:
    """The rates of a class by value at a site."""
    by_value: dict[str, Numbers] = {}
    for value, counts in _added(rounds, R).items():
        group, key = Group.of(counts, division.least, R), division.key(value, site)
        by_value[value] = {
            "n": division.count(group.people["accuracy"][c], key),
            "of_class": division.count(group.people["tpr"][c], OfClass(key, c)),
            "selection_rate": percent(group.rates.selection_rate[c]),
            "tpr": percent(group.rates.tpr[c]),
        }
    return by_value


def _of_client(rounds: Sequence[Mapping[str, Row]], main: Measure, division: Division, site: str) -> dict[str, Numbers]:
    """The main measure of a client's model for each value, the mean over some rounds."""
    by_value: dict[str, Numbers] = {}
    for value, rows in by_name(rounds).items():
        sizes = [float(row["true"].sum() if "true" in row else row["n"]) for row in rows]
        people = float(rows[-1].get("persons", sizes[-1]))
        measured = [
            row["right"].sum() / n if "right" in row else np.sqrt(row["squares"] / n)
            for row, n in zip(rows, sizes, strict=True)
        ]
        mean = float(np.mean(measured))
        by_value[value] = {
            "n": division.count(people, division.key(value, site)),
            "main": main.shown(Value(mean, enough(people, division.least) and math.isfinite(mean))),
        }
    return by_value


def errors(rounds: Sequence[Mapping[str, Row]], division: Division = TEST_SETS) -> dict[str, Any] | None:
    """How large the errors of a model are by group, the mean over some rounds, and how different; None of fewer than two.

    Parameters
    ----------
    rounds : of each the sums of every group, see `equipoise.records.record.Sums`.
    division : what is shown.
    """
    by_value = _errors_by_value(rounds, division)
    if len(by_value) < 2:
        return None
    numbers, intervals = _estimated(definitions.ERRORS, _errors(rounds, division.least))
    return {"intervals": intervals, **numbers, "groups": by_value}


def _errors(rounds: Sequence[Mapping[str, Row]], least: int, level: float = 0.95) -> Errors:
    """Of the values with so many people."""
    return Errors({value: rows for value, rows in by_name(rounds).items() if enough(_people(rows), least)}, level)


def _errors_by_value(
    rounds: Sequence[Mapping[str, Row]], division: Division, site: str | None = None
) -> dict[str, dict[str, Any]]:
    between = _errors(rounds, division.least)
    means = {key: between.means(key) for gap in definitions.ERRORS for key in gap.rates}
    return {
        value: {"n": division.count(_people(rows), division.key(value, site))}
        | {key: of_key[value][0] if value in of_key else None for key, of_key in means.items()}
        for value, rows in by_name(rounds).items()
    }


def _people(rows: Sequence[Row]) -> int:
    """How many people the errors of the last of some rounds are of."""
    return round(float(rows[-1].get("persons", rows[-1]["n"])))


def _estimated(gaps: Iterable[Statistic], between: Decisions | Errors) -> tuple[Numbers, dict[str, Ends]]:
    """Some gaps by their keys, and the intervals of those that have such."""
    estimates: dict[str, Estimate] = {gap.key: gap.compute(between) for gap in gaps}
    ends = {key: estimate.ends.ends for key, estimate in estimates.items() if estimate.ends is not None}
    return {key: estimate.value for key, estimate in estimates.items()}, ends


def _added(rounds: Iterable[Mapping[str, Mapping[str, Any]]], R: int) -> dict[str, Counts]:
    """The counts of every group as if it had been counted in all of R rounds."""
    return {name: added(each, R / len(each)) for name, each in by_name(rounds).items()}


def rates(
    rounds: Sequence[tuple[int, Mapping[str, Counts]]], positive: int | None = None, division: Division = TEST_SETS
) -> GroupFairness | None:
    """How differently a model treats groups: rates of its decisions by group, and the gaps between groups; None of fewer than two.

    See `equipoise.metrics.parity`; a rate is over all of some rounds.

    Parameters
    ----------
    rounds : with the counts of every group.
    positive : the class that counts as positive; by default the second of two, and every one of more.
    division : what is shown: a rate about too few people is in no gap.
    """
    last = {name: each[-1] for name, each in by_name(groups for _, groups in rounds).items()}
    if len(last) < 2:
        return None
    between = Decisions(_added((groups for _, groups in rounds), len(rounds)), positive, len(rounds), division.least)
    fairness = between.fairness
    numbers, intervals = _estimated(definitions.PARITY, between)
    treated = {
        **numbers,
        "to_overall": {key: percent(fairness.gap(key).to_overall) for key in ("accuracy", "tpr", "selection_rate")},
        "of_class": dict(fairness.widest),
        "classes": list(fairness.classes),
        "groups": {
            name: {
                **_sizes(last[name], fairness.classes, division, name),
                **_rates(group, between.calibrated[name], fairness.classes),
            }
            for name, group in between.rated.items()
        },
        "intervals": intervals,
        "undefined": [list(place) for place in fairness.undefined],
        "averaged": [t for t, _ in rounds],
    }
    return cast(GroupFairness, treated)


def _sizes(counts: Counts, classes: Sequence[int], division: Division, name: str) -> dict[str, Any]:
    """How many people are in a group, and how many of these are of each class; None if that or something that follows is about too few."""
    people, key = people_of(counts), division.key(name)
    return {
        "n": division.count(max(people["accuracy"], default=0), key),
        "of_class": [division.count(people["tpr"][c], OfClass(key, c)) for c in classes],
    }


def _rates(group: Group, calibrated: Numbers, classes: Sequence[int]) -> dict[str, Any]:
    """The rates of one group with their intervals."""
    rates = group.rates
    return {
        "accuracy": percent(rates.accuracy),
        **{key: [percent(rates.of(key, c)) for c in classes] for key in OF_CLASS},
        **calibrated,
        "worst_recall": percent(rates.worst_recall),
        "worst_class": rates.hardest,
        "intervals": {
            **{key: [group.interval(key, c).percent for c in classes] for key in OF_CLASS},
            **{key: group.interval(key).percent for key in ("accuracy", "worst_recall")},
        },
    }
