"""Every count of people that a run shows, and which of them are hidden: decided once, for all tables together."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from equipoise.metrics.groups import Counts, people_of
from equipoise.privacy.suppression import Key, OfClass, Publication
from equipoise.records import treatment
from equipoise.records.threshold import hidden_in
from equipoise.records.treatment import SETS, Division, Words
from equipoise.system.grouping import by_name

if TYPE_CHECKING:
    from equipoise.records.history import History

SITES = 20  # of more, no count of people at a site is shown
CLIENTS = "client"  # what divides people by their own test sets


def unshown(history: "History", positive: int | None, last: int) -> set[Key]:
    """The keys of counts of a run that are not shown: `(division, value)`, also `(division, value, site)`, and of these `OfClass`.

    Parameters
    ----------
    history : the run. Hidden counts of a threshold that was chosen for it stay hidden.
    positive : the class whose people are counted; None: the second of two, every one of more.
    last : how many of the last evaluated rounds are shown.
    """
    made, spare, gone = Publication(history.least_group), dict[str, list[Key]](), set[Key]()
    _add_sets(made, history, positive, last)
    for k, names in enumerate(history.divisions):
        if not (rounds := treatment.sums_by_round(history, k, last)):
            continue
        rows = by_name(rows for _, rows, _ in rounds)
        keys = {words: (" and ".join(names), ", ".join(words)) for words in rows}
        for words, key in keys.items():
            made.add(key, *_counted(rows[words][-1], positive))
        spare[" and ".join(names)] = rests = made.total([*keys.values()], rest=rounds[-1][2])
        for name, by_value in _alone(history, k, keys):  # of all attributes together
            others = [*spare.get(name, ())]
            for value, parts in by_value.items():
                others += _add_parts(made, (name, value), parts)
            made.sums.extend((key, others) for key in rests)
        gone |= _add_sites(made, history, k, [value for _, value in keys.values()], positive)
    chosen = history.threshold_alone
    gone |= set() if chosen is None else hidden_in(chosen, 1 if positive is None else positive)
    return gone | made.hidden(gone)


def _add_sets(made: Publication, history: "History", positive: int | None, last: int) -> None:
    """Add the people in each test set, and those on whom each client is tested."""
    counted = by_name(groups for _, groups in treatment.counts_by_round(history.records)[-last:])
    for name, n in history.sizes.items():
        made.add((SETS, name), n, _classes(counted[name][-1], positive) if name in counted else {})
    made.total([(SETS, name) for name in history.sizes])
    own = history.client_sizes
    sizes = {name: n for name, n in history.sizes.items() if name in history.client_names}
    sizes = sizes if own is None else dict(zip(history.client_names, own.tolist(), strict=False))
    for name, n in sizes.items():
        same = history.sizes.get(name) == n and name in counted
        made.add((CLIENTS, name), n, _classes(counted[name][-1], positive) if same else {})
        if name in history.sizes:
            made.total([(SETS, name)], (CLIENTS, name))
    made.total([(CLIENTS, name) for name in sizes])


def _alone(history: "History", k: int, keys: Mapping[Words, Key]) -> Iterator[tuple[str, dict[str, list[Key]]]]:
    """If a division is by all attributes together, of each attribute by value the keys of the groups that have it."""
    for at, name in enumerate(history.attributes if len(history.divisions[k]) > 1 else ()):
        values = history.attributes[name]
        yield name, {value: [key for words, key in keys.items() if words[at] == value] for value in values}


def _add_sites(
    made: Publication, history: "History", k: int, values: Collection[str], positive: int | None
) -> set[Key]:
    """Add the people with each value at every site, in the last round that has them; return the keys of all if there are too many sites."""
    at = treatment.places(history)
    division = Division(" and ".join(history.divisions[k]), at)
    by_value: dict[str, list[Key]] = {value: [] for value in values}
    sites = {at.get(site, site): sums for site, sums in treatment.site_sums(history, treatment.latest(history)).items()}
    if len(sites) > SITES:
        every = {division.key(value, site) for value in values for site in sites}
        return every | {OfClass(key, 1 if positive is None else positive) for key in every}
    for site, sums in sites.items():
        rows, _ = treatment.summed(history, k, [sums])
        keys = {words: division.key(", ".join(words), site) for words in rows}
        for words, key in keys.items():
            if key not in made.n and (value := ", ".join(words)) in by_value:
                made.add(key, *_counted(rows[words], positive))
                by_value[value].append(key)
        for name, at_site in _alone(history, k, keys):
            for value, parts in at_site.items():
                _add_parts(made, (name, value, site), parts)
        for whole in ((SETS, site), (CLIENTS, site)):
            _add_parts(made, whole, [*keys.values()])
    for value, parts in by_value.items():
        _add_parts(made, division.key(value), parts)
    return set()


def _add_parts(made: Publication, whole: Key, groups: Sequence[Key]) -> list[Key]:
    """Add that those of some groups that are counted are in another one, if that is."""
    parts = [key for key in groups if key in made.n]
    return made.total(parts, whole) if whole in made.n and parts else []


def _counted(row: Mapping[str, Any], positive: int | None) -> tuple[int, dict[int, tuple[int, int]]]:
    """The people of a row, and those of classes, and all others."""
    if "true" not in row:
        return round(float(row.get("persons", row["n"]))), {}
    return round(max(people_of(row)["accuracy"], default=0)), _classes(cast(Counts, row), positive)


def _classes(counts: Counts, positive: int | None) -> dict[int, tuple[int, int]]:
    people, C = people_of(counts), len(counts["true"])
    classes = range(C) if positive is None and C != 2 else [1 if positive is None else positive]
    return {c: (round(people["tpr"][c]), round(people["fpr"][c])) for c in classes}
