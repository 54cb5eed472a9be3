"""The content of a comparison, as typed dictionaries in plain JSON types: an undefined number is null.

`Document` is all of it. In a row of a table, the numbers of the columns of `equipoise.metrics.definitions` stand under their keys, and
`number_of` reads them; so do the rates of a group, which `rate_of` reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NotRequired, TypedDict, TypeVar, cast

from equipoise.metrics import definitions
from equipoise.metrics.definitions import Statistic
from equipoise.metrics.measures import ACCURACY, Measure, main_in, measures_of, named
from equipoise.report import columns
from equipoise.system.text import Said

Numbers = Mapping[str, Any]  # of one run, see `History.summary`
Row = Mapping[str, object]  # a method in any of the tables


class Pooled(TypedDict):
    """A number over rounds or seeds: its mean and standard deviation; null where not defined."""

    mean: float | None
    std: float | None


class OverSeeds(Pooled):
    """A number over the seeds (ddof 1), with half of its 95 % interval."""

    ci95: float | None


class Rate(OverSeeds):
    """A rate of a group: over how many seeds, and the wider of its intervals, over them or the test samples."""

    seeds: int
    low: float | None
    high: float | None


class Difference(TypedDict):
    """A method less another one, in one column.

    Attributes
    ----------
    difference : the mean over common seeds.
    low, high : its 95 % interval, with one seed that over the test samples.
    p, holm, family : of the paired t-test, and corrected for the family, which is all differences that are shown of a column: of every
        method to the first, and of the leading one to every other.
    seeds : how many are common.
    apart : whether the two are distinguishable.
    ci95 : half of the 95 % interval, of differences to the first method.
    seeds_needed : for a test of power 0.8, of differences of the leading method; null if it is above 1000 or the spread is unknown.
    """

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    holm: float | None
    family: int
    seeds: int
    apart: bool
    ci95: NotRequired[float | None]
    seeds_needed: NotRequired[int | None]


class Leader(TypedDict):
    """Which method leads in a column.

    Attributes
    ----------
    leading : the one with the best mean among those that did not fail.
    best : the same if it is distinguishable from all others, else null.
    tied : the others that are not distinguishable from it.
    versus : by other method.
    """

    leading: str
    best: str | None
    tied: list[str]
    versus: dict[str, Difference]


class Versus(TypedDict):
    """A method less the first one, paired over the common seeds: under the key of each column a `Difference`.

    Attributes
    ----------
    method, seeds : the first method, and how many seeds are common.
    """

    method: str
    seeds: int


class Compared(TypedDict):
    """A row of a table: the label of its method, its seeds, and its differences to the first method, null for that."""

    method: str
    seeds: list[int]
    versus: Versus | None


class Bounded(Compared):
    """A row of a table that may be of a bound.

    `bound` is "lower" or "upper" of what is no method but a bound, else empty. Bounds come last, and are in no test, verdict or choice of
    the best.
    """

    bound: str


class Table(TypedDict):
    """A table of methods: the scenario, all seeds, and by key of a column its leading method."""

    scenario: str
    seeds: list[int]
    leaders: dict[str, Leader]


class Untested(TypedDict):
    """A group without a test in one of the averaged rounds: it has no value, and so AVG, STD and worst have none.

    Attributes
    ----------
    group, seed : which.
    round : that of its last test, null if it never was tested.
    accuracy, rmse : the main measure then.
    """

    group: str
    seed: int
    round: int | None
    accuracy: NotRequired[float | None]
    rmse: NotRequired[float | None]


class Measured(Bounded):
    """A method's numbers of a measure: next to these the statistics of `equipoise.metrics.definitions.GROUPS` over seeds, by key.

    Within one seed they are those of `History.summary`, of another measure than the main one the means of those of every round.

    Attributes
    ----------
    groups, clients : by group; and by index of `equipoise.metrics.spread`, empty when no client was evaluated.
    failed : by seed, why training diverged or the model is no better than guessing, see `equipoise.metrics.failure`.
    intervals : of one seed, the 95 % intervals `[low, high]` over the test samples of `groups` (in their order) and of `avg`, `std`,
        `worst`, `gap`; null with more seeds, and where the samples are not known.
    worst_groups : names of the worst group, by how many seeds have it there.
    untested : groups without a number.
    guessed : groups on whose test samples the model is no better than guessing with every seed, see `equipoise.metrics.failure`.
    pooled : the same numbers as FedISM+ makes them, `{"groups", "avg", ..., "n"}` with mean and std (ddof 0) over the last rounds of all
        seeds, the mean and the standard deviation (ddof 0) over all of them.
    """

    groups: dict[str, OverSeeds]
    clients: dict[str, OverSeeds]
    failed: dict[str, Said]
    intervals: dict[str, Any] | None
    worst_groups: dict[str, int]
    untested: list[Untested]
    guessed: list[str]
    pooled: dict[str, Any]


class OfMeasure(Table):
    """The numbers of one measure.

    Attributes
    ----------
    task, unit : the task and the unit of its target if that is no classification.
    measure, title : what was measured.
    rounds, averaged : the longest run, and how many of its last evaluated rounds are averaged.
    exported, exports, shown : which round's model is exported, in words; whether one can be; of one round that is not averaged, which
        it is.
    least, counted, sizes, small : how many people a number must be about; what a number n is of; test samples, or people, by group, the
        lowest and highest number of several runs; groups with fewer, of which there is no number.
    notes : sentences about what makes the runs hard to compare.
    methods : see `Measured`.
    """

    task: NotRequired[str]
    unit: NotRequired[str]
    measure: str
    title: str
    rounds: int
    averaged: int
    exports: bool
    exported: str
    shown: str
    least: int
    counted: str
    sizes: dict[str, int | list[int]]
    small: list[str]
    notes: list[str]
    methods: list[Measured]


class Rewarded(Compared):
    """What clients get for what they contribute with a method: next to these the numbers of `equipoise.metrics.definitions.COLLABORATION`, by key.

    Attributes
    ----------
    alone, satisfied : whether its clients receive nothing; whether no client is outside of its bounds, with any seed.
    """

    alone: bool
    satisfied: bool


class Rewards(Table):
    """What clients get for what they contribute, of the methods that know it: see `Rewarded`, `OfMeasure`."""

    clients: int
    notes: list[str]
    methods: list[Rewarded]


class OverClients(Bounded):
    """The spread over clients with a method: next to these the indices of `equipoise.metrics.definitions.INDICES` that are shown, by key.

    Attributes
    ----------
    intervals : of one seed.
    failed : see `Measured`.
    """

    intervals: dict[str, list[float] | None] | None
    failed: bool


class Spread(Table):
    """The spread over clients that are tested on samples of their own, or are more than 20.

    Attributes
    ----------
    tenth, every, clients : how many are the worst and the best 10 %, how many there are, and how many are counted.
    ranges : the least and the most of these numbers over the runs; each itself is the most.
    samples : lowest, median and highest number of a client's test samples, each null if it is not shown; null if not its own.
    small, untested : clients with fewer than `least`, and those not tested in all of these rounds, which are left out.
    least, methods : see `OfMeasure`, `OverClients`.
    """

    clients: int
    tenth: int
    every: int
    small: int
    untested: int
    ranges: dict[str, list[int]]
    samples: list[int | None] | None
    least: int
    methods: list[OverClients]


class RatesOfGroup(TypedDict):
    """How a method treats the people of a group.

    Attributes
    ----------
    n, of_class : test samples, and those of the positive class; null if too few.
    worst_class, worst_recall : where every class is compared with all others, the one that is recognised worst over the seeds, and its recall.
    accuracy, tpr, fpr, selection_rate, ppv, npv, bias, calibration_error : over the seeds with which the rate is about enough people.
    rmse, mae, error, prediction : for regression, instead of these, in the unit of the target; `error` is the mean of predicted less true.
    """

    worst_class: NotRequired[str | None]
    n: int | None
    of_class: NotRequired[int | None]


class Gaps(Bounded):
    """How differently a method treats the groups: next to these the gaps of `equipoise.metrics.definitions.PARITY`, or `ERRORS`, by key.

    They are over the seeds that have them, see `History.group_fairness`.

    Attributes
    ----------
    groups : by group.
    intervals : `[low, high]` over the test samples, ends averaged over the seeds.
    worst_groups : of a sensitive attribute, the worst value, by how many seeds have it there.
    clients : of a sensitive attribute and the model of each client: `groups`, by value the main measure with its test samples of each seed, `n`,
        null if too few; and the `gap` between values. Empty where clients share a model and test sets.
    sites : of a sensitive attribute, by site `groups`, by value the numbers and rates of its people, and `gaps`, over the seeds that have them.
    largest : by gap, the largest inside a site: `gap` over the seeds, and `worst`, where it is, by how many seeds; of how many `sites`, of
        which `few`, from low to high, have too few people; and `larger`, by how many seeds, sites with a gap beyond that of all people.
    failed : see `Measured`.
    """

    groups: dict[str, RatesOfGroup]
    intervals: dict[str, tuple[float, float] | None]
    worst_groups: NotRequired[dict[str, int]]
    clients: NotRequired[list[dict[str, Any]]]
    sites: NotRequired[dict[str, dict[str, Any]]]
    largest: NotRequired[dict[str, dict[str, Any]]]
    failed: bool


class Parity(Table):
    """How differently the groups are treated, of the methods that recorded it.

    Attributes
    ----------
    positive : the name of the class that rates are about; null where each is compared with all others.
    least, counted : people that a rate must be about; what a number n is of.
    unknown, as_groups : of a sensitive attribute, `[low, high]` over the runs: test samples of which the value is not known, null if few; and whether the
        test sets are the same people as the values.
    notes, methods : see `OfMeasure`, `Gaps`.
    """

    notes: list[str]
    positive: str | None
    least: int
    counted: str
    unknown: NotRequired[list[int | None]]
    as_groups: NotRequired[bool]
    methods: list[Gaps]


class Document(OfMeasure):
    """Everything that tables, figures and pages show of several runs: the main measure, see `OfMeasure`, and these parts.

    Attributes
    ----------
    measures : by name, the numbers of every measure that was recorded, the main one too.
    collaboration : what clients get for what they contribute; null unless a run knows what its clients reach alone.
    spread : over clients; null where they cannot differ.
    group_fairness : how differently the groups are treated; null unless a run was to record `"rates"`.
    people : where samples have sensitive attributes, by attribute how differently people with each value are treated, all test sets together.
    other_rounds : the main measure of the exported model where tables show the mean over rounds, else over the last rounds that are `averaged`;
        `methods` as in `Measured` and `Gaps`, without tests. Null where there was one round only.
    validation : the exported models on what clients hold out of their own samples: of the `methods`, over seeds, the `round`, the main measure
        under its name, that of the `worst` group of clients, the `loss`, and `test` and `test_worst` on the test sets; and by how many seeds
        which are the worst, `worst_groups` and `test_worst_groups`. Null where nothing was held out.
    in_force : by method with any its hyper-parameters, in words.
    own_measures : by name, the measures that are none of `equipoise.metrics.MEASURES`: which way is `better`, why one is `undefined` for some
        group, and of the `methods` in its own unit `avg`, `std`, and `worst` where a way is better, over seeds.
    """

    measures: dict[str, OfMeasure]
    collaboration: Rewards | None
    spread: Spread | None
    group_fairness: Parity | None
    in_force: NotRequired[dict[str, str]]
    people: NotRequired[dict[str, Parity]]
    other_rounds: dict[str, Any] | None
    validation: dict[str, Any] | None
    own_measures: dict[str, dict[str, Any]]


class Treated(NamedTuple):
    """How people are treated: those of each test set, or with each value of a sensitive ``attribute``, the ``number``-th.

    ``joined`` is whether that is all attributes together.
    """

    parity: Parity
    attribute: str = ""
    number: int = 0
    joined: bool = False

    @property
    def noun(self) -> str:
        """What divides the people."""
        return self.attribute or "group"

    @property
    def rates(self) -> str:
        """The name of the table of the rates."""
        return f"people-{self.number}" if self.attribute else "group-rates"

    @property
    def gaps(self) -> str:
        """The name of the table of the gaps."""
        return f"people-{self.number}-gaps" if self.attribute else "group-fairness"

    @property
    def gaps_heading(self) -> str:
        """The heading of the table of the gaps."""
        return f"Fairness by {self.attribute}" if self.attribute else "Group fairness"

    def rates_heading(self, measure: Measure) -> str:
        """The heading of the table of the rates, or errors of numbers."""
        return f"{'Rates' if measure == ACCURACY else 'Errors'} by {self.noun}"


def by_attribute(comparison: Document) -> list[Treated]:
    """How people with each value of every sensitive attribute are treated, and of several attributes by all together."""
    people = comparison.get("people", {})
    names = [*people]
    joined = [k > 1 and name == " and ".join(names[:k]) for k, name in enumerate(names)]
    return [
        Treated(people[name], name, k, all_of) for k, (name, all_of) in enumerate(zip(names, joined, strict=True), 1)
    ]


def treated(comparison: Document) -> list[Treated]:
    """How groups of people are treated: those of the test sets, and by sensitive attribute, where the test sets do not show it already."""
    by_group = comparison["group_fairness"]
    by_value = [entry for entry in by_attribute(comparison) if not (by_group and entry.parity["as_groups"])]
    return [Treated(by_group), *by_value] if by_group else by_value


AnyMethod = TypeVar("AnyMethod", Measured, Gaps)
AnyRow = TypeVar("AnyRow", Measured, Gaps, OverClients)
UNKNOWN: Final[OverSeeds] = {"mean": None, "std": None, "ci95": None}  # a number that a method does not have


def number_of(row: Row, key: str) -> OverSeeds:
    """The number of a column in a row, unknown of a row without it."""
    return cast(OverSeeds, row.get(key, UNKNOWN))


def mean_of(row: Row, key: str) -> float | None:
    """The mean over the seeds of the number of a column."""
    return number_of(row, key)["mean"]


def means_of(rows: Iterable[Row], key: str) -> dict[str, float]:
    """The mean over the seeds of the number of a column, by method, of those that have it."""
    return {str(row["method"]): mean for row in rows if (mean := mean_of(row, key)) is not None}


def row_of(rows: Iterable[AnyRow], label: str) -> AnyRow | None:
    """The row of a method; None if it has none."""
    return next((row for row in rows if row["method"] == label), None)


def rate_of(group: RatesOfGroup, key: str) -> Rate:
    """A rate, or an error of numbers, of a group."""
    return cast(Mapping[str, Rate], group)[key]


def rates_by_group(method: Gaps, key: str) -> dict[str, float]:
    """The mean of a rate, or an error of numbers, by group, of those that have it."""
    rates = {group: cast(Mapping[str, Rate], of_group).get(key) for group, of_group in method["groups"].items()}
    return {group: rate["mean"] for group, rate in rates.items() if rate and rate["mean"] is not None}


def test_of(row: Row, key: str) -> Difference | None:
    """A row less the first method in a column; None where that is not tested."""
    return cast(Mapping[str, Difference], row.get("versus") or {}).get(key)


def change_of(row: Row, key: str) -> float | None:
    """The difference of a row to the first method in a column, if a test shows one."""
    test = test_of(row, key)
    return test["difference"] if test and test["apart"] else None


def tests_of(rows: Iterable[Row], tested: Iterable[Statistic]) -> list[Difference]:
    """The differences of rows to the first method that are tested in some columns."""
    return [test for row in rows for column in tested if (test := test_of(row, column.key))]


def last_of(test: Untested) -> float | None:
    """The main measure in the last test of a group."""
    return cast(Mapping[str, float | None], test)[main_in(test).name]


def ends_of(row: Row, key: str) -> Any:
    """The 95 % interval of a column over the test samples of one seed, or those of the groups; None where there is none."""
    return cast(Mapping[str, Any], row.get("intervals") or {}).get(key)


def without_bounds(methods: Sequence[AnyMethod]) -> list[AnyMethod]:
    """Rows of methods, without bounds where there are others."""
    return [method for method in methods if not method["bound"]] or list(methods)


def gaps_of(fairness: Parity, measure: Measure = ACCURACY, *, calibration: bool = False) -> Sequence[Statistic]:
    """The gaps between groups that tables show, from left to right; ``measure`` is the main one, and those of ``calibration`` are extra."""
    if measure != ACCURACY:
        return [column.of(measure) for column in definitions.ERRORS]
    return [gap for gap in definitions.PARITY if gap.column and gap.shown(fairness["positive"] is None, calibration)]


def interval_of(method: Row, group: str) -> Sequence[float] | None:
    """The 95 % interval of a method on a group over the test samples of its one seed; None where it is not known."""
    return dict(zip(cast(Iterable[str], method["groups"]), ends_of(method, "groups") or (), strict=False)).get(group)


def tables(comparison: Document) -> list[OfMeasure]:
    """The comparisons by measure, one table each: the accuracy, then every other measure that was recorded."""
    return [comparison, *(other for name, other in comparison["measures"].items() if name != comparison["measure"])]


def measure_of(comparison: OfMeasure) -> Measure:
    """What a comparison shows, with as many digits as its numbers need."""
    return named(measures_of(comparison), comparison["measure"]).sized(*means(comparison["methods"]))


def means(methods: Iterable[Measured]) -> list[float]:
    """The numbers of some methods on groups."""
    return [cell["mean"] for method in methods for cell in method["groups"].values() if cell["mean"] is not None]


def columns_of(comparison: OfMeasure) -> list[Statistic]:
    """The statistics over groups that the table of a measure shows, from left to right."""
    methods, measure = comparison["methods"], measure_of(comparison)
    placed = [column for column in columns.over_groups(measure) if column.shown(measure, len(methods[0]["groups"]))]
    return [c for c in placed if not (c.optional and all(mean_of(method, c.key) is None for method in methods))]
