"""The numbers of several runs: of every run, over seeds, and against the first method."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics import definitions, performance
from equipoise.metrics.classification import AREAS, CORRECT
from equipoise.metrics.definitions import OWN, Statistic
from equipoise.metrics.groups import OF_CLASS
from equipoise.metrics.intervals import Draws, Outcome, difference, interval, resampled
from equipoise.metrics.measures import ACCURACY, Measure, measures_of, named
from equipoise.metrics.statistics import holm, paired, seeds_needed, summary_over_seeds
from equipoise.records import results
from equipoise.records.meta import Content, Sharing
from equipoise.records.summary import statistics
from equipoise.report import columns, document as content, notes
from equipoise.report.document import Numbers
from equipoise.system.grouping import by_name
from equipoise.system.text import Said, plural

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.records.history import History

Table = NDArray[np.float64]
# More clients have a table of their spread, also where they share the test sets of their groups.
FEW_CLIENTS: Final = 20
LAST: Final = 5  # rounds that are averaged, as in the papers' tables


@dataclass(frozen=True)
class Run:
    """The numbers of one run, each computed once.

    Parameters
    ----------
    history : its records.
    shown : those that its numbers are of: up to the round of the exported model where only that is shown, else all.
    groups : by measure: the evaluated rounds, and the values of the groups in them, see `History.group_table`.
    clients : the rounds in which clients were evaluated, and the main measure of each, see `History.client_table`; empty where
        they cannot differ.
    tested : results on every test set in the last rounds, from which intervals of one seed are computed; None if unknown.
    summaries : by measure: see `summary_of`.
    """

    history: History
    shown: History
    groups: Mapping[str, tuple[list[int], Table]]
    clients: tuple[list[int], Table]
    summaries: Mapping[str, Numbers]
    tested: tuple[Outcome, ...] | None = None

    @property
    def summary(self) -> Numbers:
        """`History.summary` of the main measure."""
        return self.summaries[self.history.main.name]

    def group_table(self, last: int) -> tuple[list[int], Table]:
        """The rounds of which the last are averaged, and the main measure of the groups in them, shape [R, D]."""
        shown = _shown(self.history, last)
        return self.groups[self.history.main.name] if shown is self.shown else shown.group_table()

    @property
    def people(self) -> Mapping[str, results.People]:
        """By sensitive attribute how people with each of its values are treated, see `History.people`."""
        return cast(Mapping[str, results.People], self.summary.get("people", {}))

    @property
    def failure(self) -> Said:
        """Whether training diverged, or the model is no better than guessing, and why; empty if neither."""
        return self.summary["failure"] or Said("")

    @property
    def contribution(self) -> Table:
        """Accuracy that each client reaches alone; shape [N], empty if unknown."""
        contribution = self.history.contribution
        return np.empty(0) if contribution is None else contribution

    @property
    def reward(self) -> Table:
        """Accuracy of each client's own model in the last round with an evaluation of clients; shape [N]."""
        table = self.shown.client_table()[1]
        return table[-1] if table.size else np.empty(0)


Runs = Mapping[str, Mapping[int, Run]]  # by method and seed
NumbersOfRuns = Mapping[str, Mapping[int, Numbers]]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Any]):
    """The runs and the numbers of an `equipoise.Comparison`, which documents its fields and also writes."""

    runs: Runs
    histories: tuple[History, ...]
    last: int
    document: content.Document

    @classmethod
    def of(cls, histories: Sequence[History] | Comparison, last: int | None = None) -> Self:
        """Compare runs; what is a comparison already is returned as it is.

        Parameters
        ----------
        histories : runs of one scenario.
        last : how many of the last evaluated rounds are averaged, at least 1. Default: 5, as in the papers' tables; of the
            user's own data 1, the round of the model that is exported.

        Raises
        ------
        ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
        """
        if isinstance(histories, Comparison):
            return histories if isinstance(histories, cls) else cls(**vars(histories))
        histories = _alike(histories)
        grouped = by_label(histories)
        last = last or (1 if all(history.scenario == "own" for history in histories) else LAST)
        main, *others = measures_of(histories[0].meta)
        recorded = set(chain.from_iterable(history.measures for history in histories))
        measures = [measure for measure in (main, *others) if measure.name in recorded]
        every = tuple(dict.fromkeys((main, *measures)))
        runs = {label: {s: _run(run, last, every) for s, run in seeds.items()} for label, seeds in grouped.items()}
        by_measure = {measure.name: _measured(runs, last, measure) for measure in every}
        in_force = {label: [run.meta.get("in_force", "") for run in seeds.values()] for label, seeds in grouped.items()}
        stated = {label: " or ".join(dict.fromkeys(texts)) for label, texts in in_force.items() if all(texts)}
        more = {"in_force": stated, "people": _people(runs)}
        document: content.Document = {
            **by_measure[main.name],
            "measures": {measure.name: by_measure[measure.name] for measure in measures},
            "collaboration": _collaboration(runs),
            "spread": _spread(runs, last),
            "group_fairness": _parity(runs, lambda run: run.summary["group_fairness"]),
            **cast(content.Document, {key: part for key, part in more.items() if part}),
            "other_rounds": _other_rounds(runs, 1 if last > 1 else LAST),
            "validation": _validation(runs),
            "own_measures": _own_measures(runs, last),
        }
        return cls(runs, tuple(histories), last, document)

    @property
    def measure(self) -> Measure:
        """The main measure, with as many digits as its numbers need."""
        return content.measure_of(self.document)

    @property
    def table(self) -> pd.DataFrame:
        """The main measure, accuracy in percent, a row per method; columns are pairs: a statistic or group, and `mean`, `std` or `ci95` over the seeds.

        `ci95` is half of the 95 % interval, which tables show as ±.
        """
        import pandas as pd

        rows = {}
        for method in self["methods"]:
            numbers: Content = {c.title: content.number_of(method, c.key) for c in content.columns_of(self.document)}
            numbers |= method["groups"]
            rows[method["method"]] = {(title, key): x for title, cell in numbers.items() for key, x in cell.items()}
        return pd.DataFrame.from_dict(rows, orient="index", dtype=float).rename_axis("method")

    @property
    def tests(self) -> pd.DataFrame:
        """Paired differences to the first method with their 95 % interval, p, and p by Holm, as everywhere; NaN if undefined."""
        import pandas as pd

        keys = ["difference", "low", "high", "p", "holm"]
        rows = [
            {"method": method["method"], "statistic": c.title, **{key: method["versus"][c.key][key] for key in keys}}
            for c in content.columns_of(self.document)
            for method in self["methods"]
            if method["versus"]
        ]
        return pd.DataFrame(rows, columns=["method", "statistic", *keys]).astype(dict.fromkeys(keys, float))

    @property
    def best(self) -> str | None:
        """The method that is shown to be the best on average: told apart from all others, as in `verdict`; None if none is."""
        return self["leaders"].get("avg", {}).get("best")  # type: ignore[no-any-return]

    def runs_with(self, has: Callable[[Run], bool]) -> dict[str, list[Run]]:
        """The runs that have something, by method; without methods of which none has it."""
        chosen = {label: [run for run in seeds.values() if has(run)] for label, seeds in self.runs.items()}
        return {label: runs for label, runs in chosen.items() if runs}

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.runs)}; {plural(len(self['seeds']), 'seed')}, {plural(self['rounds'], 'round')})"

    def __getitem__(self, key: str) -> Any:
        return cast(Content, self.document)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)


def comparison(histories: Sequence[History], last: int | None = None) -> content.Document:
    """Compare methods over seeds; the content of every table, in percent and plain JSON types.

    Parameters
    ----------
    histories : runs of one scenario, any number of seeds per method; the first method is the one compared with.
    last : how many of the last evaluated rounds to average, see `Comparison.of`.

    Returns
    -------
    See `equipoise.report.document.Document`; numbers that are not defined are null.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    return Comparison.of(histories, last).document


def _alike(histories: Sequence[History]) -> Sequence[History]:
    """The same runs, where a group that is too small in one of them is left out of all: averages are over the same groups."""
    small = sorted({group for history in histories for group in history.small_groups})
    return [replace(run, meta={**run.meta, "small_groups": small}) for run in histories] if small else histories


def by_label(histories: Sequence[History]) -> dict[str, dict[int, History]]:
    """Runs by label and seed: labels in the order of their first appearance, bounds last; seeds in increasing order.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    if not histories:
        raise ValueError("there is nothing to compare: expected at least one history, found none.")
    scenarios = sorted({history.scenario for history in histories})
    if len(scenarios) > 1:
        raise ValueError(
            f"only runs of one scenario can be compared: found {', '.join(name or '(no name)' for name in scenarios)}. Compare them scenario by scenario."
        )
    if len({(history.meta.get("task"), history.main) for history in histories}) > 1:
        raise ValueError(
            "only runs of one task can be compared, whose targets have one unit. Compare them task by task."
        )
    runs: dict[str, dict[int, History]] = {}
    for history in histories:
        seeds = runs.setdefault(notes.marked(history.label, (history.tuned or {}).get("by")), {})
        if history.seed in seeds:
            raise ValueError(
                f"{history.label} with seed {history.seed} is given twice. "
                'Leave one out, or distinguish them by meta["label"].'
            )
        seeds[history.seed] = history
    methods_first = sorted(runs, key=lambda label: any(not run.sharing.federated for run in runs[label].values()))
    return {label: dict(sorted(runs[label].items())) for label in methods_first}


def summary_of(history: History, last: int, measure: str) -> Numbers:
    """Summary of a run; for another measure than the main one made in every round first, as the tables show it."""
    summary = history.summary(last, measure)
    if measure == history.main.name:
        return summary
    shown = named(measures_of(history.meta), measure)
    of_rounds = _pooled([(history, history.group_table(measure)[1])], history.groups, last, shown)
    return summary | {column.key: of_rounds[column.key]["mean"] for column in definitions.GROUPS}


def over_seeds(values: Sequence[float | None]) -> content.OverSeeds:
    """Mean, standard deviation (ddof 1) and half of the 95 % interval of one number per seed; None where not defined."""
    mean, std, half, _ = summary_over_seeds([math.nan if value is None else value for value in values])
    return {"mean": _json(mean), "std": _json(std), "ci95": _json(half)}


def _shown(history: History, last: int) -> History:
    """The records whose last rounds are averaged; of one round alone, that of the exported model is the last."""
    return history.exported if last == 1 else history


def _run(history: History, last: int, measures: Sequence[Measure]) -> Run:
    shown = _shown(history, last)
    groups = {measure.name: shown.group_table(measure.name) for measure in measures}
    clients = shown.client_table() if history.spreads else ([], np.empty((0, 0)))
    tested = _tested(shown, performance.last_rounds(groups[history.main.name][1], last), last)
    return Run(history, shown, groups, clients, {name: summary_of(shown, last, name) for name in groups}, tested)


def _tested(history: History, accuracies: Table, last: int) -> tuple[Outcome, ...] | None:
    """How the models of the last rounds did on every sample of each test set, as far as recorded, right or wrong."""
    if history.main != ACCURACY:
        return None
    scores = [record["groups"] for record in history.records if record.get("groups")][-last:]
    outcomes = []
    for group, accuracy in zip(history.groups, accuracies.tolist(), strict=True):
        group_scores = [score.get(group, {}) for score in scores]
        latest: Mapping[str, Any] = group_scores[-1] if group_scores else {}
        n, visits = latest.get("n"), latest.get("visits")
        if not n or not math.isfinite(accuracy):
            return None
        right = None
        if all(CORRECT in score and (score.get("n"), score.get("visits")) == (n, visits) for score in group_scores):
            bits = (np.frombuffer(bytes.fromhex(score[CORRECT]), np.uint8) for score in group_scores)
            right = np.mean([np.unpackbits(packed, count=n) for packed in bits], axis=0)
            right = np.add.reduceat(right, np.cumsum([0, *visits[:-1]])) if visits else right
        outcomes.append(Outcome(accuracy, latest.get("persons", n), right, np.array(visits, float) if visits else None))
    return tuple(outcomes) or None


def _measured(runs: Runs, last: int, measure: Measure) -> content.OfMeasure:
    name, every = measure.name, _every(runs)
    histories = [run.history for run in every]
    summaries = {label: {seed: run.summaries[name] for seed, run in seeds.items()} for label, seeds in runs.items()}
    draws = _draws({label: seeds for label, seeds in runs.items() if not _bound(seeds)}) if measure.main else {}
    groups = list(dict.fromkeys(chain.from_iterable(history.groups for history in histories)))

    def more(label: str, of_seeds: Sequence[Numbers]) -> Content:
        """What only the tables of measures have of a method."""
        together = [(run.history, run.groups[name][1]) for run in runs[label].values()]
        return {
            "groups": _by_key([summary["groups"] for summary in of_seeds], groups),
            "clients": _by_key([summary["clients"] for summary in of_seeds]),
            "failed": {str(seed): run.failure for seed, run in runs[label].items() if run.failure},
            "intervals": _intervals(draws[label]) if label in draws else None,
            "worst_groups": _worst_groups(summary["worst_group"] for summary in of_seeds),
            "untested": _untested(runs[label], measure, last),
            "guessed": _guessed(runs[label].values(), last),
            "pooled": _pooled(together, groups, last, measure),
        }

    table = _table(runs, [column.of(measure) for column in definitions.GROUPS], summaries, more, draws=draws)
    averaged = min(last, max(len(run.groups[name][0]) for run in every) or last)
    exported = _exported(histories)
    last_evaluated = all(run.groups[name][0][-1:] == [r["round"] for r in run.shown.records[-1:]] for run in every)
    about: Mapping[str, str] = {"task": task, "unit": measure.unit} if (task := histories[0].meta.get("task")) else {}
    measured: Content = {
        **about,
        **table,
        "measure": name,
        "title": measure.title,
        "rounds": max(map(len, histories)),
        "averaged": averaged,
        "exports": not any(run.at_sites for run in histories),
        "exported": exported,
        "shown": exported if last_evaluated else "the last evaluated round",
        "least": max(history.least_group for history in histories),
        "counted": histories[0].counted,
        "sizes": _sizes(histories),
        "small": list(dict.fromkeys(chain.from_iterable(history.small_groups for history in histories))),
        "notes": [*_notes(runs, table["methods"], measure, last, averaged)],
    }
    return cast(content.OfMeasure, measured)


def _by_key(parts: Sequence[Numbers], keys: Iterable[str] = ()) -> dict[str, content.OverSeeds]:
    """Numbers over the seeds, by their key; of some keys, or of all that there are."""
    keys = keys or dict.fromkeys(chain.from_iterable(parts))
    return {key: over_seeds([numbers.get(key) for numbers in parts]) for key in keys}


def _notes(runs: Runs, methods: list[content.Measured], measure: Measure, last: int, averaged: int) -> Iterator[str]:
    """What makes runs hard to compare, or numbers unknown."""
    rounds = {label: [len(run.groups[measure.name][0]) for run in seeds.values()] for label, seeds in runs.items()}
    if measure.main:
        histories = _histories(runs)
        shown = {label: {seed: run.shown for seed, run in seeds.items()} for label, seeds in runs.items()}
        yield from notes.tuning_notes([run.history for run in _every(runs)])
        yield from notes.run_notes(histories)
        yield from notes.bound_notes(histories, methods, measure.sized(*content.means(methods)))
        yield from notes.size_notes(shown, last)
    yield from notes.short_notes(rounds, averaged)
    if measure.name in AREAS:
        yield from notes.area_notes([run.history for run in _every(runs)])
    if not measure.main:
        yield from notes.unrecorded_notes(measure, [label for label, of_runs in rounds.items() if not any(of_runs)])
    evaluated = [run for run in _every(runs) if run.groups[measure.name][0]]
    yield from notes.undefined_notes(measure, [_undefined(run, measure, last) for run in evaluated])


def _every(runs: Runs) -> list[Run]:
    return [run for seeds in runs.values() for run in seeds.values()]


def _histories(runs: Runs) -> dict[str, dict[int, History]]:
    return {label: {seed: run.history for seed, run in seeds.items()} for label, seeds in runs.items()}


def _recorded(runs: Runs, numbers: Callable[[Run], Numbers | None]) -> dict[str, dict[int, Numbers]]:
    """Numbers of the runs that have them, by label and seed; without methods that have none."""
    recorded = {label: {s: n for s, run in seeds.items() if (n := numbers(run))} for label, seeds in runs.items()}
    return {label: seeds for label, seeds in recorded.items() if seeds}


def _bound(seeds: Mapping[int, Run]) -> Sharing:
    """Which bound a method is, empty of a method proper."""
    return next(iter(seeds.values())).history.sharing


def _failed(seeds: Mapping[int, Run]) -> bool:
    """Whether a method failed with any seed."""
    return any(run.failure for run in seeds.values())


def _worst_groups(of_runs: Iterable[str | None]) -> dict[str, int]:
    """The worst group, by how many runs have it there, most first; None of a run that has none."""
    return dict(Counter(group for group in of_runs if group is not None).most_common())


def _worst_of(groups: Sequence[str], values: Table, worst_at: Callable[[Table], int]) -> str | None:
    """The group with the worst value; None where one of them is not known, or there is only one."""
    return groups[worst_at(values)] if len(groups) > 1 and np.isfinite(values).all() else None


def _guessed(runs: Iterable[Run], last: int) -> list[str]:
    """The groups on which a method is no better than guessing with every seed."""
    every = [run.shown.guessed(last) for run in runs]
    return [group for group in every[0] if all(group in guessed for guessed in every)]


def _untested(runs: Mapping[int, Run], measure: Measure, last: int) -> list[content.Untested]:
    """The groups that were not tested in one of the last rounds, with the round of their last test and what it gave."""
    untested = []
    for seed, run in runs.items():
        rounds, table = run.groups[measure.name]
        undefined = _undefined(run, measure, last)
        for group, values in zip(run.history.groups, table.T, strict=True):
            if not np.isfinite(values[-last:]).all() and group not in undefined:
                tests = np.flatnonzero(np.isfinite(values))
                t, a = (rounds[tests[-1]], measure.scale * float(values[tests[-1]])) if tests.size else (None, None)
                untested.append({"group": group, "seed": seed, "round": t, run.history.main.name: a})
    return cast(list[content.Untested], untested)


def _undefined(run: Run, measure: Measure, last: int) -> list[str]:
    """The groups that were tested in each of the last rounds, and on which a measure is not defined all the same."""
    (rounds, table), (tests, main) = (run.groups[name] for name in (measure.name, run.history.main.name))
    tested = np.isfinite(main[np.isin(tests, rounds[-last:])]).all(axis=0)
    without = np.atleast_1d(tested & ~np.isfinite(table[-last:]).all(axis=0))
    return [group for group, undefined in zip(run.history.groups, without, strict=True) if undefined]


def _sizes(histories: Sequence[History]) -> dict[str, int | list[int]]:
    """Test samples of every group that is not too small, or the lowest and highest number in several runs."""
    groups = {group for history in histories for group in history.groups}
    sizes = by_name(history.shown_sizes for history in histories)
    return {group: n[0] if len({*n}) == 1 else [min(n), max(n)] for group, n in sizes.items() if group in groups}


def _draws(runs: Runs) -> dict[str, Draws]:
    """By method, accuracies of the groups on other test samples of the kind [draws, D], where each method has one seed,
    and all were tested on the same groups.
    """
    only = {label: next(iter(seeds.values())) for label, seeds in runs.items() if len(seeds) == 1}
    tested = {label: run.tested for label, run in only.items() if run.tested is not None}
    alike = {(run.history.groups, run.history.seed, *[x.n for x in run.tested or ()]) for run in only.values()}
    if len(tested) < len(runs) or len(alike) != 1:
        return {}
    return dict(zip(tested, resampled([*tested.values()]), strict=True))


def _intervals(draws: Draws) -> Content:
    """95 % intervals over the test samples, of every group and of the statistics over them, in percent."""
    alone = zip(draws.others.T, draws.observed, strict=True)
    mean = definitions.GROUPS[0]
    groups = [interval(Draws(others[:, None], observed[None]), mean).percent for others, observed in alone]
    return {"groups": groups, **_of_draws(definitions.GROUPS, draws)}


def _of_draws(statistics: Iterable[Statistic], draws: Draws) -> dict[str, list[float] | None]:
    return {statistic.key: interval(draws, statistic).percent for statistic in statistics if statistic.draws}


def _table(
    runs: Runs,
    statistics: Sequence[Statistic],
    by_method: NumbersOfRuns,
    more: Callable[[str, Sequence[Numbers]], Content],
    *,
    ranked: Collection[str] | None = None,
    alone: Collection[str] | None = None,
    partly: bool = False,
    draws: Mapping[str, Draws] | None = None,
) -> Content:
    """What all tables of methods share: the scenario, all seeds, the leading method of every column, and a row for every method.

    A row has the numbers over the seeds, and the differences to the first method.

    The leading method of a column is that with the best mean. It can be told apart from another if the paired test over their
    common seeds says so at 5 %; with one seed, if the interval of the difference over the test samples leaves out zero. All
    differences of a column are one family: p is corrected by Holm for their number, and the interval by Bonferroni.

    Parameters
    ----------
    runs : all runs.
    statistics : what to compare, a column each.
    by_method : by method and seed, these numbers, of the runs that have them.
    more : what else the row of a method has, by its label and its numbers of every seed.
    ranked : the methods that can be the leading one of a column, by default those that did not fail.
    alone : of the table of rewards, in which no method is a bound, those that cannot be the leading one of a column about rewards.
    partly : whether a column is of those seeds of a method only that have its number, where any has.
    draws : of one seed, by method, what other test samples might have shown, see `_draws`.
    """
    bounds = {label: _bound(runs[label]) for label in by_method}
    racing = [label for label, shares in bounds.items() if shares.federated or alone is not None] or [*bounds][:1]
    ranked = [label for label in racing if not _failed(runs[label])] if ranked is None else ranked
    columns = [(column, _defined(by_method, column.key) if partly else by_method) for column in statistics]
    judged = {}
    for column, summaries in columns:
        able = [label for label in racing if label in ranked and not (column.rewards and label in (alone or ()))]
        if column.tested:
            judged[column.key] = _judged(column, summaries, racing, able, draws or {})
    of_first, methods = columns[0][1], []
    for label, of_seeds in by_method.items():
        numbers = {c.key: over_seeds([x[c.key] for x in rows[label].values()]) for c, rows in columns}
        row: Content = {"method": label, "seeds": list(of_seeds), **numbers, "versus": None}
        if label in racing[1:]:
            common = sum(seed in of_first[racing[0]] for seed in of_first[label])
            tests = {key: versus[label] for key, (versus, _) in judged.items()}
            row["versus"] = {"method": racing[0], "seeds": common, **tests}
        row |= {"bound": bounds[label]} if alone is None else {}
        methods.append(row | more(label, [*of_seeds.values()]))
    seeds = sorted(set().union(*by_method.values()))
    leaders = {key: leader for key, (_, leader) in judged.items() if leader is not None}
    return {"scenario": _every(runs)[0].history.scenario, "seeds": seeds, "leaders": leaders, "methods": methods}


def _defined(by_method: NumbersOfRuns, key: str) -> NumbersOfRuns:
    """By method the seeds that have a number; all of a method of which none has it."""
    every = by_method.items()
    return {label: {s: x for s, x in seeds.items() if x[key] is not None} or seeds for label, seeds in every}


def _judged(
    column: Statistic, summaries: NumbersOfRuns, racing: Sequence[str], able: Sequence[str], draws: Mapping[str, Draws]
) -> tuple[dict[str, Content], content.Leader | None]:
    """The differences of methods to the first in a column, and of those that are ``able`` to lead what the leading one is ahead of, if any."""
    first, *others = racing
    ahead, rivals = _leading(column, {label: summaries[label] for label in able}, first)
    pairs = dict.fromkeys((label, first) for label in others)
    pairs |= dict.fromkeys((ahead, label) for label in rivals if (label, ahead) not in pairs)
    family = {(a, b): _paired(summaries[a], summaries[b], column.key) for a, b in pairs}
    _correct(family, column, draws)
    against = {r: family[ahead, r] if (ahead, r) in family else _turned(family[r, ahead]) for r in rivals}
    tied = [label for label, test in against.items() if not test["apart"]]
    versus: Any = {label: {key: test[key] for key in AGAINST} | _more(test) for label, test in against.items()}
    leader: content.Leader = {"leading": ahead, "best": None if tied else ahead, "tied": tied, "versus": versus}
    return {label: {key: family[label, first][key] for key in TESTED} for label in others}, leader if rivals else None


def _leading(column: Statistic, summaries: Mapping[str, Mapping[int, Numbers]], first: str) -> tuple[str, list[str]]:
    """The method with the best mean of a column, the first one where none has a number, and those it is ahead of."""
    every = {label: [numbers[column.key] for numbers in seeds.values()] for label, seeds in summaries.items()}
    means = {label: float(np.mean(values)) for label, values in every.items() if None not in values}
    ahead = (max if column.better == "higher" else min)(means, key=lambda label: means[label], default=first)
    return ahead, [label for label in means if label != ahead] if column.better else []


AGAINST: Final = ("difference", "low", "high", "p", "holm", "family", "seeds", "apart")
TESTED: Final = (*AGAINST, "ci95")
COUNTED: Final = ("n", "of_class")  # numbers of people
OF_ONE_RUN: Final = ("intervals", "worst_class", "worst_recall")  # no numbers over seeds follow from these alone


def _correct(family: Mapping[tuple[str, str], Content], column: Statistic, draws: Mapping[str, Draws]) -> None:
    """Add to differences of two methods what depends on how many there are, and with one seed the intervals over test samples."""
    sampled = [pair for pair in family if column.draws and all(label in draws for label in pair)]
    p_values = np.array([test["p"] for test in family.values()], dtype=np.float64)  # None is NaN
    corrected = holm(p_values)
    judged = len(sampled) or int(np.isfinite(corrected).sum())
    for ((a, b), test), p, p_holm in zip(family.items(), p_values, corrected, strict=True):
        smaller = int((p_values < p).sum())
        test |= {"holm": _json(p_holm), "family": judged, "apart": bool(p_holm < 0.05), "seeds": len(test["each"])}
        test["level"] = 0.05 / max(1, judged - smaller)  # at which Holm's procedure tests this difference
        if (a, b) in sampled:
            low, high = (100 * end for end in difference(draws[a], draws[b], column))
            ends = difference(draws[a], draws[b], column, 1 - 0.05 / judged)
            test |= {"low": _json(low), "high": _json(high), "apart": ends.low > 0 or ends.high < 0}


def _more(test: Numbers) -> Content:
    """How many seeds would tell two methods apart at the level of this difference, where those that there are do not."""
    n, asked = len(test["each"]), not test["apart"]
    needed = seeds_needed(test["each"], level=test["level"]) if asked and n > 1 else None
    return {"seeds_needed": None if needed is None else max(needed, n + 1)}


def _turned(test: Content) -> Content:
    """The difference the other way round."""
    turned = {key: None if test[key] is None else 0.0 - test[key] for key in ("difference", "low", "high")}
    return test | {"difference": turned["difference"], "low": turned["high"], "high": turned["low"]}


def _collaboration(runs: Runs) -> content.Rewards | None:
    """What clients get for what they contribute, of the runs that know what each client reaches alone."""
    rewards = _recorded(runs, lambda run: _rewards(run) if run.summary["collaboration"] else None)
    if not rewards:
        return None
    alone = [label for label, seeds in rewards.items() if notes.alone(seeds)]
    compared = {label: dict(seeds) for label, seeds in rewards.items()}
    if (first := next(iter(rewards))) in alone:  # its fairness is 100 by construction: no test against it
        compared[first] = {seed: {**summary, "fairness": None} for seed, summary in rewards[first].items()}

    def more(label: str, _: Sequence[Numbers]) -> Content:
        """What only this table has of a method."""
        summaries = rewards[label].values()
        return {
            "alone": label in alone,
            "satisfied": all(summary["satisfied"] for summary in summaries),
            "fairness": over_seeds([summary["fairness"] for summary in summaries]),  # also where no test is against it
        }

    table = _table(runs, definitions.COLLABORATION, compared, more, ranked=[*rewards], alone=alone)
    table["clients"] = max(summary["clients"] for seeds in rewards.values() for summary in seeds.values())
    return cast(content.Rewards, table | {"notes": list(notes.collaboration_notes(_histories(runs), rewards))})


def _rewards(run: Run) -> Numbers:
    """The statistics of `COLLABORATION`, and what notes need."""
    numbers = run.summary["collaboration"]
    return {
        **numbers,
        **statistics(run.shown, run.summary)["collaboration"],
        "contribution": run.history.honest_only(run.contribution).tolist(),
        "satisfied": numbers["bcf"]["satisfied"] and numbers["fairness"] is not None,
    }


def _spread(runs: Runs, last: int) -> content.Spread | None:
    """The spread over clients that are tested on samples of their own, or with models of their own, of the runs that have it."""
    by_method = _recorded(runs, lambda run: run.summary["clients"])
    of_methods = {label: [runs[label][seed] for seed in seeds] for label, seeds in by_method.items()}
    shown = [*chain.from_iterable(of_methods.values())]
    # not where the table of collaboration has the clients, and not of few who share a test set
    if any(run.summary["collaboration"] for run in shown) or not any(map(_clients_matter, shown)):
        return None
    draws = _draws_of_clients(of_methods, last)
    personal = {label for label in by_method if any(run.history.meta.get("personal") for run in runs[label].values())}
    failed = {label: _failed(runs[label]) and label not in personal for label in by_method}

    def more(label: str, _: Sequence[Numbers]) -> Content:
        """What only this table has of a method."""
        of_one = draws.get(label)
        return {"intervals": of_one and _of_draws(definitions.INDICES, of_one), "failed": failed[label]}

    able = [label for label in by_method if not failed[label]]
    numbers = ranges(shown)
    spread: Content = {
        **_table(runs, columns.spread_of(shown[0].history.main), by_method, more, ranked=able, draws=draws),
        **{key: most for key, (_, most) in numbers.items()},
        "ranges": numbers,
        "samples": _test_samples(shown),
        "least": max(run.history.least_group for run in shown),
    }
    return cast(content.Spread, spread)


def _test_samples(runs: Iterable[Run]) -> list[int | None] | None:
    """Lowest, median and highest number of test samples of the clients that are counted, null if not shown; None where they have none of their own."""
    tested = [(n, run.history) for run in runs if (n := run.history.client_sizes) is not None]
    sizes = [k for n, run in tested for k in n[(n > 0) & ~run.tested_on_few].tolist()]
    told = ((k, shown) for n, run in tested for k, shown in zip(n.tolist(), run.shown_client_sizes, strict=False))
    untold = {k for k, shown in told if shown is None}
    ends = [min(sizes), int(np.median(sizes)), max(sizes)] if sizes else []
    return [None if n in untold else n for n in ends] or None


def _clients_matter(run: Run) -> bool:
    """Whether clients have tests of their own, or are the only ones that differ, or are many."""
    few_groups = len((*run.history.groups, *run.history.small_groups)) < 2
    return bool(run.history.meta.get("client_tests")) or few_groups or len(run.history.client_names) > FEW_CLIENTS


def ranges(runs: Iterable[Run]) -> dict[str, list[int]]:
    """The least and the most of what `_counted` says of runs."""
    counts = [_counted(run) for run in runs]
    return {key: [end(count[key] for count in counts) for end in (min, max)] for key in (counts or [{}])[0]}


def _counted(run: Run) -> dict[str, int]:
    """Over how many honest clients the spread is, how many the worst tenth are, of how many, and how many are left out."""
    every = len(run.history.honest_only(np.zeros(len(run.history.client_names))))
    n, small = run.summary["clients_counted"], run.summary["small_clients"]
    return {"clients": n, "tenth": performance.tenth(n), "every": every, "small": small, "untested": every - n - small}


def _draws_of_clients(runs: Mapping[str, Sequence[Run]], last: int) -> dict[str, Draws]:
    """By method, accuracies of the clients on other test samples of the kind [draws, N], where each method has one seed."""
    # only that is a share of samples
    if any(len(seeds) != 1 or seeds[0].history.main != ACCURACY for seeds in runs.values()):
        return {}
    outcomes = {}
    for label, (run,) in runs.items():
        n, values = run.history.client_sizes, run.shown.over_clients(last)
        if n is None:
            return {}
        honest = run.history.honest_only(np.where(run.history.tested_on_few, 0, n))
        counted = honest[honest > 0]
        if len(counted) != len(values):  # some client was not tested in all of these rounds
            return {}
        outcomes[label] = [Outcome(a, k) for a, k in zip(values.tolist(), counted.tolist(), strict=True)]
    if len({len(numbers) for numbers in outcomes.values()}) != 1 or not all(outcomes.values()):
        return {}
    n_draws = max(1000, min(4000, 400_000 // len(next(iter(outcomes.values())))))
    return dict(zip(outcomes, resampled([*outcomes.values()], n_draws), strict=True))


def _parity(runs: Runs, treated: Callable[[Run], Numbers | None]) -> content.Parity | None:
    """How differently each method treats groups, of the runs that recorded it; ``treated`` are the numbers of one."""
    numbers = _every(runs)[0].history.main != ACCURACY
    measured = [gap for gap in (definitions.ERRORS if numbers else definitions.PARITY) if gap.column]
    by_method = _recorded(runs, treated)
    if not by_method:
        return None
    first = next(iter(by_method))
    about = next(iter(runs[first].values())).history
    several = not numbers and len(next(iter(by_method[first].values()))["classes"]) > 1
    words = {} if numbers else about.group_words

    def more(label: str, seeds: Sequence[Numbers]) -> Content:
        """What only these tables have of a method."""
        intervals = [gaps.get("intervals", {}) for gaps in seeds]
        return {
            "groups": _treated_groups(seeds, words, about.classes if several else None),
            "intervals": {c.key: _mean_ends([ends.get(c.key) for ends in intervals]) for c in measured},
            "failed": _failed(runs[label]),
        }

    parity: Content = {
        **_table(runs, measured, by_method, more, partly=True),
        "notes": [] if numbers else list(notes.parity_notes(_histories(runs), by_method)),
        "positive": None if numbers or several or about.positive is None else about.positive.name,
        "least": about.least_group,
        "counted": about.counted,
    }
    return cast(content.Parity, parity)


def _people(runs: Runs) -> dict[str, content.Parity]:
    """By sensitive attribute, how differently each method treats people with its values, and so within every client."""
    measure = _every(runs)[0].history.main
    by_attribute: dict[str, content.Parity] = {}
    for name in dict.fromkeys(name for run in _every(runs) for name in run.people):
        of_runs = {label: [run.people[name] for run in by.values() if name in run.people] for label, by in runs.items()}
        parity = _parity(runs, lambda run, name=name: (people := run.people.get(name)) and people["treated"])  # type: ignore[misc]
        if parity is None:
            continue
        every = [*chain.from_iterable(of_runs.values())]
        unknown = sorted((entry["unknown"] for entry in every), key=lambda n: 1 if n is None else n)  # None: few
        methods = [{**method, **_people_of_method(of_runs[method["method"]], measure)} for method in parity["methods"]]
        by_attribute[name] = {
            **parity,
            "methods": cast(list[content.Gaps], methods),
            "unknown": [unknown[0], unknown[-1]],
            "as_groups": all(entry["as_groups"] for entry in every),
        }
    return by_attribute


def _people_of_method(seeds: Sequence[results.People], measure: Measure) -> Content:
    """What the row of a method has of people with the values of an attribute only, over the seeds, see `document.Gaps`."""
    n = min(len(people["clients"]) for people in seeds)
    sites = {site: _site(of_seeds) for site, of_seeds in by_name(people["sites"] for people in seeds).items()}
    gaps = next(iter(sites.values()))["gaps"] if sites else {}
    rated = [people["treated"]["groups"] for people in seeds if people["treated"]]
    return {
        "worst_groups": _worst_groups(_worst_value(groups, measure) for groups in rated),
        "clients": [_inside([people["clients"][m] or {} for people in seeds]) for m in range(n)],
        "sites": sites,
        "largest": {key: _largest_inside(seeds, key) for key in gaps},
    }


def _worst_value(groups: Mapping[str, Numbers], measure: Measure) -> str | None:
    """The value whose people have the worst main measure, of those with enough people."""
    shown = {name: numbers[measure.name] for name, numbers in groups.items() if numbers[measure.name] is not None}
    return [*shown][measure.worst_at([*shown.values()])] if len(shown) > 1 else None


def _inside(seeds: Sequence[Mapping[str, Numbers]]) -> Content:
    """The people of a client with each value: how many test samples, and the main measure over the seeds; and the gap between values."""
    by_value: Content = {}
    for name, rows in by_name(seeds).items():
        by_value[name] = {**_mean_of_known(rows, "main"), "n": [values["n"] for values in rows]}
    return {
        "groups": by_value,
        "gap": over_seeds([performance.gap_between(values["main"] for values in client.values()) for client in seeds]),
    }


def _site(seeds: Sequence[results.Site]) -> Content:
    """How the people of a site are treated, over the seeds."""
    gaps = [site["gaps"] for site in seeds]
    by_value = by_name(cast(Mapping[str, Numbers], site["groups"]) for site in seeds)
    return {
        "groups": {value: _of_group(rows, _mean_of_known) for value, rows in by_value.items()},
        "gaps": {key: _mean_of_known(gaps, key) for key in gaps[0]},
    }


def _of_group(rows: Sequence[Numbers], reduced: Callable[[Sequence[Numbers], str], Any]) -> Content:
    """The numbers of a group over the seeds, by key: how many people there are, and all others ``reduced``."""
    keys = [key for key in rows[0] if key not in OF_ONE_RUN]
    return {key: _usual(rows, key) if key in COUNTED else reduced(rows, key) for key in keys}


def _largest_inside(seeds: Sequence[results.People], key: str) -> Content:
    """The largest gap inside a site, of those that can be estimated, and the sites in which it is larger than overall beyond chance."""
    sites = [seed["sites"].items() for seed in seeds]
    gaps = [{name: gap for name, site in of_seed if (gap := site["gaps"][key]) is not None} for of_seed in sites]
    larger: Counter[str] = Counter()
    for seed in seeds:
        if (overall := cast(Numbers, seed["treated"] or {}).get(key)) is not None:
            intervals = {name: site["intervals"][key] for name, site in seed["sites"].items()}
            larger.update(name for name, ends in intervals.items() if ends and ends[0] > overall)
    few = [len(seed["sites"]) - len(of_seed) for seed, of_seed in zip(seeds, gaps, strict=True)]
    return {
        "gap": over_seeds([max(of_seed.values()) for of_seed in gaps if of_seed] or [None]),
        "worst": _worst_groups(max(of_seed, key=of_seed.__getitem__, default=None) for of_seed in gaps),
        "sites": max(len(seed["sites"]) for seed in seeds),
        "few": [min(few), max(few)],
        "larger": dict(larger.most_common()),
    }


def _treated_groups(seeds: Sequence[Numbers], words: Mapping[str, str], classes: Sequence[str] | None) -> Content:
    """Every group's rates, or errors of numbers, over the seeds of a method.

    A rate is over the `seeds` with which it is about enough people. `low` to `high` is Wilson's interval over the test samples of
    a seed, its ends averaged over the seeds, which all draw from the same people; widened to that over the seeds where this is wider.
    Of errors it is the interval over the seeds.

    Parameters
    ----------
    seeds : of each, what `History.group_fairness` returned, or `equipoise.records.treatment.errors`.
    words : what groups are called, by name, if otherwise.
    classes : names of the classes, where each is compared with all others, so that one is the worst.
    """
    by_group: Content = {}
    for group, rows in by_name(cast(Mapping[str, Numbers], gaps["groups"]) for gaps in seeds).items():
        worst = {} if classes is None or "worst_class" not in rows[0] else _worst_class(rows, classes)
        by_group[words.get(group, group)] = _of_group(rows, _rate) | worst
    return by_group


def _usual(rows: Sequence[Numbers], key: str) -> int | None:
    """How many people of a group there are, the mean over the seeds with enough."""
    counts = [n for rates in rows if (n := _about(rates[key])) is not None]
    return round(sum(counts) / len(counts)) if counts else None


def _worst_class(rows: Sequence[Numbers], classes: Sequence[str]) -> Content:
    """The class that is recognised worst over the seeds, one for all of these, and its recall; None where no seed has one."""
    rated = [rates for rates in rows if rates["worst_class"] is not None]
    recalls = {c: _rate(rated, "tpr", c) for c in range(len(rows[0]["tpr"]))}
    defined = [c for c, recall in recalls.items() if rated and recall["seeds"] == len(rated)]
    worst = min(defined, key=lambda c: recalls[c]["mean"] or 0.0, default=None)
    if worst is None:
        return {"worst_class": None, "worst_recall": _rate([], "tpr")}
    return {"worst_class": classes[worst] if worst < len(classes) else str(worst), "worst_recall": recalls[worst]}


def _about(number: Any, c: int = 0) -> Any:
    """A number of a group; of a list by class that of one class."""
    return number[c] if isinstance(number, list) else number


def _rate(rows: Sequence[Numbers], key: str, c: int = 0) -> content.Rate:
    """A rate or an error of a group, by its key, of the seeds that have it; one that classes have of one class."""
    values = [value for rates in rows if (value := _about(rates[key], c)) is not None]
    rate = over_seeds(values or [None])
    mean, half = rate["mean"], rate["ci95"]
    intervals = [ends for rates in rows if (ends := rates.get("intervals", {}).get(key))]
    ends = _mean_ends([of_seed[c] if key in OF_CLASS else of_seed for of_seed in intervals])
    low, high = ends or (None, None)
    if mean is not None and half is not None:
        low, high = mean - half, mean + half
        if ends is not None:
            low, high = max(0.0, min(ends[0], low)), min(100.0, max(ends[1], high))
        elif key in ("rmse", "mae"):
            low = max(0.0, low)  # a size of errors
    return {**rate, "seeds": len(values), "low": low, "high": high}


def _mean_ends(intervals: Sequence[Sequence[float] | None]) -> tuple[float, float] | None:
    """The ends of intervals, averaged over those that are known."""
    ends = [interval for interval in intervals if interval is not None]
    return (float(np.mean([low for low, _ in ends])), float(np.mean([high for _, high in ends]))) if ends else None


def _mean_of_known(seeds: Iterable[Numbers | None], key: str) -> content.OverSeeds:
    """A number over the seeds that have it."""
    return over_seeds([numbers[key] for numbers in seeds if numbers and numbers[key] is not None] or [None])


def _other_rounds(runs: Runs, last: int) -> Content | None:
    """The main measure of the exported model where tables average rounds; where they show it, the mean over rounds."""
    evaluated = max(len(run.group_table(2)[0]) for run in _every(runs))
    if evaluated < 2:
        return None
    methods = [_row_of_rounds(label, [*seeds.values()], last) for label, seeds in runs.items()]
    return {"averaged": min(last, evaluated), "methods": methods}


def _row_of_rounds(label: str, runs: Sequence[Run], last: int) -> Content:
    measure = runs[0].history.main
    values = [performance.last_rounds(run.group_table(last)[1], last) for run in runs]
    groups, histories = [run.history.groups for run in runs], [_shown(run.history, last) for run in runs]
    rated = [history for history, run in zip(histories, runs, strict=True) if run.summary["group_fairness"]]
    parity = [gaps for history in rated if (gaps := history.group_fairness(last))]
    by_group = [zip(groups[k], (measure.scale * row).tolist(), strict=True) for k, row in enumerate(values)]
    numbers = {c.key: [measure.scale * c.compute(a, None, measure).value for a in values] for c in definitions.GROUPS}
    return {
        "method": label,
        "failed": any(history.failure(last) for history in histories),
        "worst_groups": _worst_groups(map(_worst_of, groups, values, repeat(measure.worst_at))),
        "groups": _by_key([*map(dict, by_group)]),
        **{key: over_seeds(of_seeds) for key, of_seeds in numbers.items()},
        **{c.key: _mean_of_known(parity, c.key) for c in definitions.PARITY if c.column and parity},
    }


def _exported(histories: Sequence[History]) -> str:
    """The round whose model is exported, in words."""
    selects = [history.selected_round is not None for history in histories]
    if not any(selects):
        return "the last round"
    best = f"the round with the best validation {histories[0].main.noun}"
    return best if all(selects) else f"the last round, or {best} where that was selected"


def _validation(runs: Runs) -> Content | None:
    """The exported models on what clients hold out of their own samples, beside what they reach on the test sets."""
    methods = []
    for label, seeds in runs.items():
        validated = [run.history for run in seeds.values() if any("validation" in r for r in run.history.records)]
        summaries = [summary for run in validated if (summary := run.exported.summary(1))["validation"]]
        if summaries:
            validations = [summary["validation"] for summary in summaries]
            keys = ("round", validated[0].main.name, "worst", "loss")
            method: Content = {
                "method": label,
                "failed": any(history.exported.failure(1) for history in validated),
                "bound": validated[0].sharing,
                **{key: over_seeds([result[key] for result in validations]) for key in keys},
                "test": over_seeds([summary["avg"] for summary in summaries]),
                "test_worst": over_seeds([summary["worst"] for summary in summaries]),
                "worst_groups": _worst_groups(validation["worst_group"] for validation in validations),
                "test_worst_groups": _worst_groups(summary["worst_group"] for summary in summaries),
            }
            methods.append(method)
    return {"methods": methods} if methods else None


def _own_measures(runs: Runs, last: int) -> dict[str, Content]:
    """The measures beside those of ``MEASURES``, each over the groups of the global model, in its own unit."""
    records = [r["measures"] for run in _every(runs) for r in run.shown.records if "measures" in r]
    measures: dict[str, Content] = {}
    for name, better in {name: measure["better"] for record in records for name, measure in record.items()}.items():
        scores = [record[name] for record in records if name in record]
        undefined = {where: reason for score in scores for where, reason in score["undefined"].items()}
        methods = [_row_of_own_measure(label, seeds, name, better, last) for label, seeds in runs.items()]
        measures[name] = {"better": better, "undefined": undefined, "methods": methods}
    return measures


def _row_of_own_measure(label: str, seeds: Mapping[int, Run], name: str, better: str | None, last: int) -> Content:
    """A method's numbers of a measure of the user's own."""
    tables = [_on_groups(run, name, last) for run in seeds.values()]
    worst_at = partial(performance.extreme_at, choose=np.argmin if better == "higher" else np.argmax)
    groups = [run.history.groups for run in seeds.values()]
    return {
        "method": label,
        "failed": _failed(seeds),
        "worst_groups": _worst_groups(map(_worst_of, groups, tables, repeat(worst_at)) if better else ()),
        **{c.key: over_seeds([c.compute(row, better).value for row in tables]) for c in OWN if c.shown(better)},
    }


def _on_groups(run: Run, name: str, last: int) -> Table:
    """A measure of the user's own on every group [D], the mean over the last rounds that have it; NaN where it is not defined."""
    records = [r["measures"][name]["groups"] for r in run.shown.records if name in r.get("measures", {})]
    if not records:
        return np.full(2, math.nan)
    table = np.array([[row.get(group) for group in run.history.groups] for row in records], float)
    return performance.last_rounds(table, last)


def _paired(seeds: Mapping[int, Numbers], reference: Mapping[int, Numbers], key: str) -> Content:
    """The difference of a number over common seeds: `each`, its mean, interval, and p-value; None where not defined."""
    common = [seed for seed in seeds if seed in reference]
    a, b = ([math.nan if s[seed][key] is None else s[seed][key] for seed in common] for s in (seeds, reference))
    mean, half, p, *_ = paired(a, b)
    numbers = {"difference": mean, "ci95": half, "low": mean - half, "high": mean + half, "p": p}
    return {"each": np.subtract(a, b), **{name: _json(number) for name, number in numbers.items()}}


def _pooled(runs: Sequence[tuple[History, Table]], groups: Sequence[str], last: int, measure: Measure) -> Content:
    """Mean and deviation over all rounds of all runs, as FedISM+ pools them, by key of the columns."""
    counts_of_groups = runs[0][0].group_counts if len({history.group_counts for history, _ in runs}) == 1 else None
    of_group = dict(zip(runs[0][0].groups, counts_of_groups or (), strict=False))
    counts = [of_group.get(group, 0) for group in groups] if of_group else None
    blocks = []
    for history, values in runs:
        column = dict(zip(history.groups, values.T, strict=True))
        absent = np.full(len(values), math.nan)
        blocks.append(np.stack([column.get(g, absent) for g in groups], 1) if groups else values)
    rows = performance.last_rounds_together(blocks, last)

    def shown(pooled: performance.Moments) -> content.Pooled:
        std = _json(measure.scale * pooled.std) if len(rows) > 1 else None
        return {"mean": _json(measure.scale * pooled.mean), "std": std}

    numbers = {c.key: [c.compute(row, counts, measure).value for row in rows] for c in definitions.GROUPS}
    return {
        "groups": {group: shown(performance.moments(column)) for group, column in zip(groups, rows.T, strict=True)},
        **{key: shown(performance.moments(values)) for key, values in numbers.items()},
        "n": len(rows),
    }


def _json(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
