"""What a run measured, round by round, and the numbers that summarise it."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.classification import RATES
from equipoise.metrics.collaborative import collaborative_fairness
from equipoise.metrics.failure import diverged, no_better
from equipoise.metrics.groups import Positive, positive_class
from equipoise.metrics.measures import Measure, main_of, measures_of, named
from equipoise.metrics.performance import Value, last_rounds
from equipoise.privacy.suppression import Key, enough
from equipoise.records import counts as people_counted, summary, treatment
from equipoise.records.directory import read
from equipoise.records.meta import Meta, Sharing, Tuned
from equipoise.records.record import Record, Score, by_client, check, clients_evaluated, judged_by, number, shorten
from equipoise.records.results import GroupFairness, People
from equipoise.records.threshold import Chosen, mark, masked, score_of, without
from equipoise.records.validation import BEST, selected, worst_of
from equipoise.system.ranges import check_whole
from equipoise.system.text import Said, plural

if TYPE_CHECKING:
    import pandas as pd

ATTENDANCE = ("trained", "late", "dropped", "absent", "not selected")  # what a client can do in a round
DIVERGED, GUESSES = "training diverged", "the global model is no better than guessing"  # keys of failures
LEAST = 10  # people that a number must be about, unless the run says otherwise
Table = NDArray[np.float64]

# Of the meta data: text would be one of letters.
LISTS = ("client_names", "client_groups", "measures", "classes", "header")


def worded(column: str, value: str) -> str:
    """What a group is called, of a value in the user's column: `sex 1` for the value 1 of the column sex, and a word as it is."""
    return value if len(value) >= 3 and any(map(str.isalpha, value)) else f"{column} {value}"


@dataclass(frozen=True, repr=False)
class History:
    """The records of one run, one per round, and its description.

    It has many short public names: all results and properties of a run that users need.

    Parameters
    ----------
    records : one per round, in increasing order of `"round"`, see `equipoise.records.record.Record`.
    meta : what the run was, see `equipoise.records.meta.Meta`.

    Raises
    ------
    ValueError : a record or the meta data does not follow this form.
    """

    records: tuple[Record, ...]
    meta: Meta = field(default_factory=Meta)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", tuple(self.records))
        if not isinstance(self.meta.get("method"), str):
            raise ValueError(
                f'a history needs the name of its method: expected meta["method"] to be a string such as "fedavg", '
                f"found {self.meta.get('method')!r}."
            )
        for key in LISTS:
            if isinstance(names := self.meta.get(key), str):
                raise ValueError(f'meta["{key}"] must be a list of names: found {shorten(names)}.')
        check(self.records)
        if (main := judged_by(self.records)) is not None and main.name != self.main.name:
            raise ValueError(
                f"the records hold {main.name}, which is no measure of {self.meta.get('task') or 'classification'}: "
                f'expected meta["task"] to say the task of the run, such as "regression", found {self.meta.get("task")!r}.'
            )
        _check_contribution(self.meta.get("contribution"), clients_evaluated(self.records))

    @classmethod
    def from_run(cls, path: str | os.PathLike[str]) -> Self:
        """Read a run directory: `config.toml`, `metrics.jsonl` and, where present, `manifest.json`, `summary.json`.

        A line cut off at the end of `metrics.jsonl`, which a killed run leaves behind, is ignored; where a resumed run
        wrote a round again, the later record counts.

        Parameters
        ----------
        path : the run directory.

        Raises
        ------
        ValueError : there is no run there, or a file in it cannot be understood.
        """
        records, meta = read(Path(path))
        try:
            return cls(records, meta)
        except ValueError as error:
            raise ValueError(f"{Path(path) / 'metrics.jsonl'}: {error}") from None

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.meta["method"])

    @property
    def label(self) -> str:
        """What tables and figures call this run: `meta["label"]`, or the method."""
        return str(self.meta.get("label") or self.method)

    @property
    def scenario(self) -> str:
        """Name of the scenario; empty when unknown."""
        return str(self.meta.get("scenario") or "")

    @property
    def seed(self) -> int:
        """Seed of the run; 0 when unknown."""
        return int(self.meta.get("seed") or 0)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Names of the test sets whose numbers are shown, in the order of their first appearance; see `small_groups`."""
        small = set(self.small_groups)
        every = dict.fromkeys(group for record in self.records for group in record.get("groups", ()))
        return tuple(group for group in every if group not in small)

    @property
    def group_words(self) -> dict[str, str]:
        """What groups are called whose values in the user's column are no words: `sex 1` for the value 1 of the column sex."""
        every = (*self.groups, *self.small_groups)
        column = next((name for name, values in self.attributes.items() if {*every} <= {*values}), None)
        if column is None:
            options = (self.meta.get("config") or {}).get("scenario_options") or {}
            column = options.get("group") if options.get("tests") in (None, "groups") else None
        return {group: worded(column, group) for group in every} if isinstance(column, str) else {}

    @property
    def least_group(self) -> int:
        """How many people a number must be about: no number is shown of a group of fewer, and it is in no AVG, STD or worst."""
        return int(self.meta.get("least_group") or LEAST)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """People in each test set, small ones too, as far as recorded; test samples if people are not named."""
        tests = (self.meta.get("holdings") or {}).get("tests", ())
        held = {test["name"]: test.get("people", test["size"]) for test in tests}
        scores = {name: score for record in self.records for name, score in record.get("groups", {}).items()}
        sizes = {name: score.get("persons", score.get("n", held.get(name))) for name, score in scores.items()}
        return {name: int(n) for name, n in sizes.items() if n is not None}

    @cached_property
    def shown_sizes(self) -> dict[str, int]:
        """Those of `sizes` that are shown: none below `least_group`, and none from which one of these follows."""
        return {name: n for name, n in self.sizes.items() if (treatment.SETS, name) not in self._gone}

    @cached_property
    def _gone(self) -> set[Key]:
        return self.unshown(self.positive and self.positive.number, 5)

    @cached_property
    def unshown(self) -> Callable[[int | None, int], set[Key]]:
        """The keys of counts that are not shown, of a positive class and so many last rounds, see `equipoise.records.counts.unshown`."""
        return cache(partial(people_counted.unshown, self))

    @cached_property
    def counted(self) -> str:
        """What a number n is of: people, if some have several test samples."""
        scores = (score for record in self.records for score in record.get("groups", {}).values())
        several = any(score["persons"] < score["n"] for score in scores if "persons" in score)
        return "people" if several else "test samples"

    @property
    def tested(self) -> float:
        """Test samples behind the accuracy of a client, of the one with the fewest; NaN where not known."""
        if (own := self.client_sizes) is not None:
            return float(min(own[own > 0], default=math.nan))
        n = [self.sizes.get(group, math.nan) for group in {*self.client_groups} - {""}] or [sum(self.sizes.values())]
        return float(min(n)) or math.nan

    @cached_property
    def small_groups(self) -> tuple[str, ...]:
        """Test sets with fewer people than `least_group`, here or in a run that this one is compared with: no number of them is shown."""
        elsewhere = self.meta.get("small_groups") or ()
        groups = dict.fromkeys(name for record in self.records for name in record.get("groups", ()))
        sizes, least = self.sizes, self.least_group
        few = (g for g in groups if g not in self.simulated and not enough(sizes.get(g, least), least))
        return tuple(dict.fromkeys((*few, *(g for g in groups if g in elsewhere))))

    @cached_property
    def untrained(self) -> tuple[str, ...]:
        """The clients of a simulation that were in no round: away, or never selected."""
        if "untrained" in self.meta:
            return tuple(self.meta["untrained"])
        trained = {m for record in self.records for m in record.get("ids", ())}
        absent = [name for m, name in enumerate(self.client_names) if m not in trained]
        return tuple(absent) if trained and not self.at_sites else ()

    @property
    def at_sites(self) -> bool:
        """Whether the clients are sites that keep their data."""
        return (self.meta.get("config") or {}).get("engine") == "flower"

    @property
    def simulated(self) -> tuple[str, ...]:
        """The names of clients that are no people: numbers of a test set of theirs are shown, however small it is."""
        return () if self.at_sites else self.client_names

    @cached_property
    def _n(self) -> int:
        """Clients in the federation, as far as the run has recorded."""
        named = (len(names or ()) for names in (self.meta.get("client_names"), self.meta.get("client_groups")))
        active = (1 + max(record["ids"]) for record in self.records if record.get("ids"))
        return max((*named, *clients_evaluated(self.records), *active), default=0)

    @property
    def client_names(self) -> tuple[str, ...]:
        """One name per client of the federation; its number if the run has no name for it."""
        names = [str(name) for name in self.meta.get("client_names") or ()]
        return tuple(names + [str(m) for m in range(len(names), self._n)])

    @property
    def client_groups(self) -> tuple[str, ...]:
        """The group of each client of the federation; empty strings where unknown."""
        groups = [str(group) for group in self.meta.get("client_groups") or ()]
        return tuple(groups + [""] * (self._n - len(groups)))

    @property
    def contribution(self) -> Table | None:
        """The accuracy in [0, 1] that each client reaches alone, on the test set; shape [N], None if unknown."""
        accuracies = (self.meta.get("contribution") or {}).get("standalone_test")
        return np.array([number(a) for a in accuracies]) if accuracies else None

    @cached_property
    def fairness(self) -> list[Value]:
        """Collaborative fairness in each round in which clients were evaluated; none where contributions are not known."""
        if self.contribution is None:
            return []
        c, rewards = self.honest_only(self.contribution), self.honest_only(self._client_table[1])
        return [collaborative_fairness(c, row) for row in rewards]

    @property
    def main(self) -> Measure:
        """The measure by which the models of this run are judged: accuracy, or that of another task."""
        return main_of(self.meta)

    @property
    def measures(self) -> tuple[str, ...]:
        """What was recorded of the global model on some group, in the order of `equipoise.metrics.measures`."""
        recorded = {name for record in self.records for result in record.get("groups", {}).values() for name in result}
        return tuple(measure.name for measure in measures_of(self.meta) if measure.name in recorded)

    @cached_property
    def spreads(self) -> bool:
        """Whether accuracies of clients can differ: False where one model was tested on one test set for all of them."""
        table = self._client_table[1]
        accuracies = table[:, np.isfinite(table).any(axis=0)]
        several = len(set(self.client_groups)) > 1 or bool(self.meta.get("client_tests"))
        two = accuracies.size > 0 and accuracies.shape[1] > 1
        return two and (several or bool((accuracies != accuracies[:, :1]).any()))

    @cached_property
    def client_sizes(self) -> NDArray[np.int64] | None:
        """People on whom each client is tested, or samples if they are not named, [N], 0 for none; None where they are not its own, or not recorded."""
        counts = [record["clients"]["n"] for record in self.records if "n" in record.get("clients", {})]
        return np.max(np.array(counts, dtype=np.int64), axis=0) if counts else None

    @property
    def shown_client_sizes(self) -> list[int | None]:
        """The same as far as it is shown, [N]: None of few, and where it would tell that of a client with few."""
        each = zip(self.client_names, [] if self.client_sizes is None else self.client_sizes.tolist(), strict=False)
        return [None if (people_counted.CLIENTS, name) in self._gone else n for name, n in each]

    @property
    def small_clients(self) -> int:
        """How many honest clients have tests of which no number is shown: of a small group, or their own at real sites."""
        return int(self.honest_only(self.tested_on_few).sum()) if self._client_table[1].size else 0

    @cached_property
    def tested_on_few(self) -> NDArray[np.bool_]:
        """Which clients have tests of fewer people than `least_group`, their group's, or their own at real sites; [N]."""
        if (n := self.client_sizes) is not None:
            return np.asarray((n > 0) & ~enough(n, self.least_group) & self.at_sites)
        return np.array([group in self.small_groups for group in self.client_groups], dtype=np.bool_)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty where they are not known."""
        data = self.meta.get("data")
        names = self.meta.get("classes") or (data.get("classes") if isinstance(data, Mapping) else ())
        return tuple(str(name) for name in names or ())

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """By the name of each sensitive attribute the names of its values, in the order of their codes; empty where samples have none."""
        return {str(name): tuple(map(str, values)) for name, values in (self.meta.get("attributes") or {}).items()}

    @property
    def divisions(self) -> tuple[tuple[str, ...], ...]:
        """By which sensitive attributes the sums of a record divide people: each, and of several all together, if that is recorded."""
        names = (*self.attributes,)
        return tuple((name,) for name in names) + (names,) * (len(names) > 1)

    @property
    def positive(self) -> Positive | None:
        """The class that true-positive rates are about; None where every class is compared with all others.

        Raises
        ------
        ValueError : the class that was given is none of this run's.
        """
        return self._class_named(self.meta.get("positive"))

    def _class_named(self, name: object) -> Positive | None:
        """The positive class where a name of it is given, and where not; names are numbers where the run has none."""
        results = (result.get(RATES) for record in self.records for result in record.get("groups", {}).values())
        counts = next((counts for counts in results if isinstance(counts, dict)), {"true": ()})
        return positive_class(name or None, self.classes or tuple(map(str, range(len(counts["true"])))))

    def failure(self, last: int = 5, which: str = "test loss") -> Said:
        """Why the model is of no use: training diverged, or it is no better than guessing, its key; empty if it is of use.

        The task of a user may bring its own test. Else a model must decide or rank better than a guess: with a chosen threshold at that one.

        Parameters
        ----------
        last : how many of the last evaluated rounds to judge by, at least 1.
        which : what the loss is.
        """
        records = [record for record in self.records if record.get("groups")]
        for record in reversed(records[-last:]):
            if why := record.get("diverged") or diverged(record["groups"], which=which):
                return Said(f"{DIVERGED}: {why}", DIVERGED)
        shown = self._scores_of(self.groups)
        counted = [groups for groups in shown if any(RATES in scores for scores in groups.values())][-last:]
        if self.threshold is not None and (decided := score_of(self.threshold)):
            counted = [{"": decided}]
        why = no_better(shown[-last:], counted)
        left = ", without the groups too small to be shown" * bool(self.small_groups)
        return Said(f"{GUESSES}{left}: {why}" * bool(why), GUESSES)

    def guessed(self, last: int = 5) -> list[str]:
        """The groups on whose test samples the model is no better than guessing, over the last rounds that tested them."""
        every = {group: self._scores_of([group])[-last:] for group in self.groups}
        return [group for group, rounds in every.items() if no_better(rounds, rounds)]

    def _scores_of(self, groups: Sequence[str]) -> list[dict[str, Mapping[str, Any]]]:
        """The scores of some groups, in each evaluated round."""
        evaluated = [record["groups"] for record in self.records if record.get("groups")]
        return [{name: scores for name, scores in of_round.items() if name in groups} for of_round in evaluated]

    @property
    def selected_round(self) -> int | None:
        """The round whose model is exported, where that is the best by validation; None where it is the last one."""
        return selected(self.records) if self.meta.get("select") == BEST else None

    @property
    def exported(self) -> Self:
        """The same up to the round whose model is exported."""
        t = self.selected_round
        return self if t is None else replace(self, records=tuple(r for r in self.records if r["round"] <= t))

    def on_held_out(self, *, clients: bool | None = None) -> Self:
        """The same run, where what clients hold out of their own samples is the test sets: by client, or by group; None: by group if groups exist.

        Settings are chosen by these numbers, which are those of the tables, so no set is too small for them.
        """
        records: list[Record] = []
        for record in self.records:
            if not (held_out := record.get("validation")):
                continue
            groups = held_out["groups"]
            by_each = len(groups) < 2 if clients is None else clients
            if by_each and (each := held_out.get("clients", {})).get(self.main.name):
                scores = zip(self.client_names, by_client(each, self.main), each["loss"], strict=False)
                scores_of = {name: {self.main.name: x, "loss": loss} for name, x, loss in scores if x is not None}
                groups = cast(dict[str, Score], scores_of)
            elif groups:  # what is about all of them together
                more = {key: value for key, value in held_out.items() if key in ("ranks", "useless")}
                first, *_ = groups
                groups = {**groups, first: cast(Score, {**groups[first], **more})}
            by = {"by": {"groups": {next(iter(groups)): held_out["by"]}}} if "by" in held_out else {}
            records.append(cast(Record, {"round": record["round"], "groups": groups, **by}))
        meta: Meta = {**self.of_any_size.meta, "client_groups": None, "client_tests": False}
        return replace(self, records=tuple(records), meta=meta)

    @property
    def of_any_size(self) -> Self:
        """The same run, where no test set is too small."""
        return replace(self, meta={**self.meta, "least_group": 1, "small_groups": []})

    @property
    def tuned(self) -> Tuned | None:
        """How the settings of this run were chosen; None of a run with given settings."""
        return self.meta.get("tuned")

    @property
    def threshold_alone(self) -> Chosen | None:
        """The threshold, also with counts that only other tables of the run hide."""
        chosen, records = self.meta.get("threshold"), self.exported.records
        if not chosen or not records or mark(records[-1]) != chosen["record"]:
            return None
        same = self.positive is not None and self.positive.name == chosen["positive"]
        return masked(chosen, self.least_group) if same else None

    @property
    def threshold(self) -> Chosen | None:
        """The threshold that was chosen for the exported model and this positive class; None if there is none, or either is another by now."""
        chosen, positive = self.threshold_alone, self.positive
        return chosen and positive and without(chosen, self.unshown(positive.number, 5), positive.number)

    @property
    def stopped(self) -> str:
        """Why training ended before its planned rounds, where validation did not improve; else empty."""
        return str(self.records[-1].get("stopped", "")) if self.records else ""

    @property
    def sharing(self) -> Sharing:
        """What the clients share."""
        return Sharing(self.meta.get("bound") or "")

    def honest_only(self, values: NDArray[Any]) -> NDArray[Any]:
        """Of one value per client [..., N], those of clients that do not attack; none where there are no values."""
        hostile = (self.meta.get("hostile") or {}).get("clients", [])
        return np.delete(values, hostile, axis=-1) if values.shape[-1] else values

    @property
    def group_counts(self) -> tuple[int, ...] | None:
        """Honest clients of each group of `groups`; None if the group of some client is unknown."""
        groups = self.client_groups
        honest = self.honest_only(np.array(groups)).tolist()
        return tuple(map(honest.count, self.groups)) if groups and set(groups) <= set(self.groups) else None

    def group_table(self, measure: str = "") -> tuple[list[int], Table]:
        """Rounds with an evaluation, and the scores of the global model on every group in them.

        Parameters
        ----------
        measure : a name of `equipoise.metrics.MEASURES`, or of another task's; some are evaluated in some rounds only. Empty: the main one.

        Returns
        -------
        The rounds [R] and the values, accuracies in [0, 1], shape [R, D], NaN where a group was not evaluated; groups are in
        the order of `groups`. Of a lower bound the mean over a group's clients, each with its own model.

        Raises
        ------
        ValueError : there is no such measure.
        """
        name = named(measures_of(self.meta), measure or self.main.name).name
        with_groups = ((record, record["groups"].values()) for record in self.records if record.get("groups"))
        main = name == self.main.name
        records = [record for record, scores in with_groups if main or any(name in score for score in scores)]
        cells = [[number(record["groups"].get(g, {}).get(name)) for g in self.groups] for record in records]
        return [record["round"] for record in records], np.array(cells).reshape(len(cells), len(self.groups))

    def client_table(self) -> tuple[list[int], Table]:
        """Rounds with an evaluation of the clients, and the accuracy, or another main measure, of the model each client predicts with.

        Returns
        -------
        The rounds [R] and the values, accuracies in [0, 1], shape [R, N], NaN where a client was not evaluated, or on fewer people than
        `least_group`: those of its group, or its own at a real site.
        """
        return self._client_table

    @cached_property
    def _client_table(self) -> tuple[list[int], Table]:
        records = [record for record in self.records if "clients" in record]
        cells = [[number(a) for a in by_client(record["clients"], self.main)] for record in records]
        table = np.array(cells).reshape(len(cells), -1 if cells else 0)
        table[:, self.tested_on_few[: table.shape[1]]] = math.nan
        return [record["round"] for record in records], table

    def over_clients(self, last: int = 5) -> Table:
        """The accuracies in [0, 1] over which the spread is measured: of honest clients that were tested, the mean of the last rounds.

        Parameters
        ----------
        last : how many of the last evaluated rounds to average, at least 1.
        """
        values = self.honest_only(last_rounds(self._client_table[1], last)) if self.spreads else np.empty(0)
        return values[np.isfinite(values)]

    def weight_table(self) -> tuple[list[int], Table]:
        """Rounds with the weights of the clients, and these: [R], and [R, N], NaN where a client did not take part."""
        records = [record for record in self.records if "weights" in record]
        table = np.full((len(records), self._n), math.nan)
        for row, record in zip(table, records, strict=True):
            row[record["ids"]] = [number(weight) for weight in record["weights"]]
        return [record["round"] for record in records], table

    def frame(self) -> "pd.DataFrame":
        """The global model on every group: one row per round and group, columns `round, group, accuracy, loss`.

        Other measures that were recorded have a column each, NaN in rounds without them.
        """
        import pandas as pd

        main = self.main.name
        columns = [main, "loss", *(name for name in self.measures if name != main)]
        rows = [
            (record["round"], group, *(number(result.get(name)) for name in columns))
            for record in self.records
            for group, result in record.get("groups", {}).items()
            if group not in self.small_groups
        ]
        return pd.DataFrame(rows, columns=["round", "group", *columns])

    def clients(self) -> "pd.DataFrame":
        """The clients' models: one row per round and client, columns `round, client, name, group, accuracy`."""
        import pandas as pd

        rounds, table = self.client_table()
        rows = [
            (t, m, name, group, accuracy)
            for t, row in zip(rounds, table, strict=True)
            for m, (name, group, accuracy) in enumerate(
                zip(self.client_names, self.client_groups, row.tolist(), strict=False)
            )
        ]
        return pd.DataFrame(rows, columns=["round", "client", "name", "group", self.main.name])

    @property
    def attendance(self) -> NDArray[np.int8] | None:
        """What each client did in every round, `[rounds, N]`: its place in `ATTENDANCE`; None if all are always there.

        A client whose update was refused counts as not selected.
        """
        records = [cast(Mapping[str, Any], record) for record in self.records if "absent" in record]
        table = np.full((len(records), self._n), len(ATTENDANCE) - 1, np.int8)
        for row, record in zip(table, records, strict=True):
            for place, key in enumerate(("ids", "late", "dropped", "absent")):
                row[record[key]] = place
        return table if records else None

    def presence(self) -> "pd.DataFrame":
        """How many rounds each client trained, was late, ..., where a simulation lets clients come and go.

        One row per client, columns `client, name, group` and those of `ATTENDANCE`; no row where all are always there.
        """
        import pandas as pd

        kinds = self.attendance
        table = np.empty((0, 0)) if kinds is None else kinds
        n = table.shape[1]
        who = {"client": range(n), "name": self.client_names[:n], "group": self.client_groups[:n]}
        return pd.DataFrame(who | {what: (table == k).sum(axis=0) for k, what in enumerate(ATTENDANCE)})

    def validation(self) -> "pd.DataFrame":
        """On what clients hold out of their own samples: one row per round, columns `round, accuracy, loss, worst`.

        All samples count the same; `worst` is the accuracy of the worst group.
        """
        import pandas as pd

        rows = [
            (record["round"], number(result.get(self.main.name)), number(result["loss"]), worst_of(result))
            for record in self.records
            if (result := record.get("validation"))
        ]
        return pd.DataFrame(rows, columns=["round", self.main.name, "loss", "worst"])

    def weights(self) -> "pd.DataFrame":
        """The weight of every client in every round, `[rounds, N]`, NaN where it did not take part.

        The index holds the rounds, the columns the numbers of the clients.
        """
        import pandas as pd

        rounds, table = self.weight_table()
        index = pd.Index(rounds, name="round", dtype="int64")
        return pd.DataFrame(table, index=index, columns=pd.RangeIndex(table.shape[1], name="client"))

    def summary(self, last: int = 5, measure: str = "") -> dict[str, Any]:
        """AVG, STD and worst group of the global model, and the spread over clients, in percent, or the unit of the target.

        Parameters
        ----------
        last : how many of the last evaluated rounds to average, at least 1.
        measure : a name of `equipoise.metrics.MEASURES`, or of another task's. Empty: the main one, accuracy.

        Returns
        -------
        What `equipoise.records.summary.summary` describes, in plain types: `avg`, `std`, `worst`, `groups`, ...; `None` where a
        number is not defined.

        Raises
        ------
        ValueError : there is no such measure, or `last` is below 1.
        """
        return summary.summary(self, last, measure or self.main.name)

    def statistics(self, last: int = 5, measure: str = "") -> dict[str, dict[str, float | None]]:
        """All statistics of `summary` in one table, by part and key; `None` where one is not defined.

        Parameters
        ----------
        last, measure : as in `summary`.

        Returns
        -------
        The parts `groups`, `clients` and `collaboration`; and if they were recorded `group_fairness`, and `people sex` of an attribute `sex`.
        """
        return summary.statistics(self, self.summary(last, measure))

    def group_fairness(self, last: int = 5, positive: int | str | None = None) -> GroupFairness | None:
        """How differently the global model treats the groups: gaps in accuracy and in the rates of its decisions.

        Parameters
        ----------
        last : how many of the last evaluated rounds to average, at least 1.
        positive : the class that counts as positive, its name or its number; by default `History.positive`.

        Returns
        -------
        See `equipoise.records.results.GroupFairness`; None where no counts were recorded for two groups.

        Raises
        ------
        ValueError : `last` is below 1, `positive` is no class, or the counts are damaged.
        """
        check_whole("last", last, 1, meaning=", the rounds to average")
        if not isinstance(positive, int):
            about = self.positive if positive is None else self._class_named(positive)
            positive = None if about is None else about.number
        shown = treatment.Division(least=self.least_group, hidden=self.unshown(positive, last))
        return treatment.rates(treatment.counts_by_round(self.records)[-last:], positive, shown)

    def people(self, last: int = 5) -> dict[str, People]:
        """How the global model treats people with each value of each sensitive attribute, and that of each client; empty without attributes.

        Of several attributes the last entry, "sex and race", is by all of them together, where these are few groups.

        Parameters
        ----------
        last : how many of the last evaluated rounds to average, at least 1.

        Raises
        ------
        ValueError : `last` is below 1.
        """
        check_whole("last", last, 1, meaning=", the rounds to average")
        every = {" and ".join(names): treatment.people(self, k, last) for k, names in enumerate(self.divisions)}
        return {name: people for name, people in every.items() if people is not None}

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        where = f" on {self.scenario}" if self.scenario else ""
        results = self.summary()
        shown = replace(self.main, scale=1)  # results are in the unit that is shown
        unit = f" {shown.unit}" if shown.of_target and shown.unit else ""
        measured = {key: results[key] for key in ("avg", "std", "worst") if results[key] is not None}
        numbers = [f"{key} {shown.brief(value)}{unit}" for key, value in measured.items()]
        worst = f" ({results['worst_group']})" if results["worst"] is not None else ""
        return (
            f"History({self.label}{where}, seed {self.seed}, {plural(len(self), 'round')}: "
            f"{', '.join(numbers) or 'not evaluated'}{worst})"
        )


def _check_contribution(contribution: object, evaluated: set[int]) -> None:
    """Require one contribution per client that was evaluated, or none."""
    if contribution is None:
        return
    accuracies: Any = contribution.get("standalone_test") if isinstance(contribution, Mapping) else 0
    listed = isinstance(accuracies, Sequence) and all(a is None or isinstance(a, int | float) for a in accuracies)
    if accuracies is not None and not listed:
        raise ValueError(
            'expected meta["contribution"] as {"standalone_test": [one accuracy per client]}, '
            f"found {shorten(contribution)}."
        )
    if accuracies and not evaluated <= {len(accuracies)}:
        raise ValueError(
            f"there must be one contribution per client of the federation: expected {evaluated.pop()}, "
            f"found {len(accuracies)}."
        )
