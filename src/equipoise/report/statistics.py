"""The numbers of several runs: of every run, over seeds, and against the first method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.classification import AREAS, MEASURES
from equipoise.metrics.columns import COLLABORATION, GROUPS, PARITY, Column, placed
from equipoise.metrics.pooling import Moments, last_rounds_together, moments
from equipoise.metrics.statistics import paired, summary_over_seeds
from equipoise.report import notes

if TYPE_CHECKING:
    from equipoise.federation.history import History

Table = NDArray[np.float64]
Numbers = dict[str, Any]
OverSeeds = dict[str, float | None]


@dataclass(frozen=True)
class Run:
    """The numbers of one run, each computed once.

    Parameters
    ----------
    history : its records.
    groups : by measure: the evaluated rounds, and the values of the groups in them, see `History.group_table`.
    clients : the rounds in which clients were evaluated, and their accuracies, see `History.client_table`.
    summaries : by measure: see `summary_of`.
    """

    history: History
    groups: Mapping[str, tuple[list[int], Table]]
    clients: tuple[list[int], Table]
    summaries: Mapping[str, Numbers]

    @property
    def summary(self) -> Numbers:
        """`History.summary` of the accuracy."""
        return self.summaries["accuracy"]

    @property
    def contribution(self) -> Table:
        """Accuracy that each client reaches alone; shape [N], empty if unknown."""
        contribution = self.history.contribution
        return np.empty(0) if contribution is None else contribution

    @property
    def reward(self) -> Table:
        """Accuracy of each client's own model in the last round with an evaluation of clients; shape [N]."""
        table = self.clients[1]
        return table[-1] if table.size else np.empty(0)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Any]):
    """Several runs of one scenario, and every number that tables, figures and pages show of them.

    As a mapping it is the JSON document that `comparison` describes.

    Parameters
    ----------
    runs : by method and seed; methods in the order of their first appearance, seeds in increasing order.
    histories : the runs in the order in which they were given.
    last : how many of the last evaluated rounds are averaged.
    document : everything in plain JSON types.
    """

    runs: Mapping[str, Mapping[int, Run]]
    histories: tuple[History, ...]
    last: int
    document: Numbers

    @classmethod
    def of(cls, histories: Sequence[History] | Comparison, last: int = 5) -> Comparison:
        """Compare runs; what is a comparison already is returned as it is.

        Raises
        ------
        ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
        """
        if isinstance(histories, Comparison):
            return histories
        grouped = by_label(histories)
        measures = [name for name in MEASURES if any(name in history.measures for history in histories)]
        every = tuple(dict.fromkeys(("accuracy", *measures)))
        runs = {
            label: {seed: _run(history, last, every) for seed, history in seeds.items()}
            for label, seeds in grouped.items()
        }
        found = {name: _of_measure(grouped, runs, last, name) for name in every}
        document = {
            **found["accuracy"],
            "measures": {name: found[name] for name in measures},
            "collaboration": _collaboration(grouped, runs),
            "group_fairness": _parity(grouped, runs),
        }
        return cls(runs, tuple(histories), last, document)

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)


def comparison(histories: Sequence[History], last: int = 5) -> Numbers:
    """Compare methods over seeds; the content of every table, in percent and plain JSON types.

    Parameters
    ----------
    histories : runs of one scenario, any number of seeds per method; the first method is the one compared with.
    last : how many of the last evaluated rounds to average, at least 1.

    Returns
    -------
    `scenario`; `rounds`, the longest run; `seeds`, all of them; `measure` and `title`, what was measured, here the
    accuracy; `averaged`, the value of `last`; `notes`, sentences about what makes the runs hard to compare; `methods`, a
    list of

    - `method`, the label, and `seeds`;
    - `avg`, `std`, `worst`, `gap`, `client_std`: over seeds, `{"mean", "std" (ddof 1), "ci95" (half-width)}`; within one
      seed they are those of `History.summary`, of another measure than the accuracy the means of those of every round;
    - `groups`: `{group: {"mean", "std", "ci95"}}`; `clients`: the same for every measure of
      `equipoise.metrics.spread`, empty when no client was evaluated;
    - `versus`: `{"method", "seeds", "avg", "std", "worst", "gap", "client_std"}` with `{"difference", "ci95", "p"}`, this
      method minus the first, paired over the `seeds` common seeds; null for the first method;
    - `pooled`: the same numbers as FedISM+ makes them, `{"groups", "avg", ..., "n"}` with `{"mean", "std" (ddof 0)}` over
      the last rounds of all seeds, see `equipoise.metrics.pooled`;

    and `measures`: all of this again for every measure that was recorded, `{name: ...}`;

    and `collaboration`: what clients get for what they contribute, null unless a run knows its clients' standalone
    accuracies; `{"scenario", "seeds", "clients", "notes", "methods"}`, for every method that does `method`, `seeds`,
    `alone` (its clients receive nothing), `satisfied` (no client is outside of its bounds, with any seed), and over seeds
    `fairness`, `spearman`, `max`, `mean`, `min`, `gain`, `worse_off` (clients), `bcf` (percent of the clients), `down` and
    `up` (percent of the whole model), `fairness_mean`, `fairness_oracle`, see `History.summary`; `versus` of `fairness`,
    `max` and `mean`.

    and `group_fairness`: how differently the groups are treated, null unless a run recorded `"rates"`; `{"scenario",
    "seeds", "notes", "methods"}`, for every such method `method`, `seeds` and over seeds `accuracy_gap`,
    `equal_opportunity`, `equalised_odds` and `demographic_parity`, see `History.group_fairness`; `versus` of all four.

    Numbers that are not defined are null.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    return Comparison.of(histories, last).document


def by_label(histories: Sequence[History]) -> dict[str, dict[int, History]]:
    """Runs by label and seed, labels in the order of their first appearance, seeds in increasing order.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    if not histories:
        raise ValueError("there is nothing to compare: expected at least one history, found none.")
    scenarios = sorted({history.scenario for history in histories})
    if len(scenarios) > 1:
        raise ValueError(
            f"only runs of one scenario can be compared: found {', '.join(name or '(no name)' for name in scenarios)}. "
            "Compare them scenario by scenario."
        )
    runs: dict[str, dict[int, History]] = {}
    for history in histories:
        seeds = runs.setdefault(history.label, {})
        if history.seed in seeds:
            raise ValueError(
                f"{history.label} with seed {history.seed} is given twice. "
                'Leave one out, or distinguish them by meta["label"].'
            )
        seeds[history.seed] = history
    return {label: dict(sorted(seeds.items())) for label, seeds in runs.items()}


def tables(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The comparisons by measure, one table each: the accuracy, then every other measure that was recorded."""
    return [comparison, *(of for name, of in comparison.get("measures", {}).items() if name != "accuracy")]


def columns_of(comparison: Mapping[str, Any]) -> list[Column]:
    """The statistics over groups that the table of a measure shows, from left to right."""
    methods, measure = comparison["methods"], comparison["measure"]
    return [
        column
        for column in placed(GROUPS)
        if column.shown(measure, len(methods[0]["groups"]))
        and not (column.optional and all(method[column.key]["mean"] is None for method in methods))
    ]


def summary_of(history: History, last: int, measure: str) -> Numbers:
    """Summary of a run; for another measure than the accuracy made in every round first, as the tables show it."""
    summary = history.summary(last, measure)
    if measure == "accuracy":
        return summary
    of_rounds = _pooled([(history, history.group_table(measure)[1])], history.groups, last)
    return summary | {column.key: of_rounds[column.key]["mean"] for column in GROUPS}


def over_seeds(values: Sequence[float | None]) -> OverSeeds:
    """Mean, standard deviation (ddof 1) and half of the 95 % interval of one number per seed; None where not defined."""
    found = summary_over_seeds([math.nan if value is None else value for value in values])
    return {"mean": _json(found.mean), "std": _json(found.std), "ci95": _json(found.ci95)}


def _run(history: History, last: int, measures: Sequence[str]) -> Run:
    return Run(
        history,
        {name: history.group_table(name) for name in measures},
        history.client_table(),
        {name: summary_of(history, last, name) for name in measures},
    )


def _of_measure(
    grouped: Mapping[str, Mapping[int, History]], runs: Mapping[str, Mapping[int, Run]], last: int, measure: str
) -> Numbers:
    every = [run for seeds in runs.values() for run in seeds.values()]
    histories = [run.history for run in every]
    groups = list(dict.fromkeys(group for history in histories for group in history.groups))
    summaries = {label: {seed: run.summaries[measure] for seed, run in seeds.items()} for label, seeds in runs.items()}
    first = next(iter(runs))
    methods = []
    for label, seeds in summaries.items():
        found = list(seeds.values())
        indices = dict.fromkeys(name for summary in found for name in summary["clients"])
        together = [(run.history, run.groups[measure][1]) for run in runs[label].values()]
        methods.append(
            {
                "method": label,
                "seeds": list(seeds),
                **{column.key: over_seeds([summary[column.key] for summary in found]) for column in GROUPS},
                "groups": {group: over_seeds([s["groups"].get(group) for s in found]) for group in groups},
                "clients": {name: over_seeds([s["clients"].get(name) for s in found]) for name in indices},
                "versus": None if label == first else _versus(first, seeds, summaries[first], GROUPS),
                "pooled": _pooled(together, groups, last),
            }
        )
    return {
        "scenario": histories[0].scenario,
        "measure": measure,
        "title": MEASURES[measure],
        "rounds": max(len(history) for history in histories),
        "averaged": min(last, max(len(run.groups[measure][0]) for run in every) or last),
        "seeds": sorted({history.seed for history in histories}),
        "notes": [
            *(notes.of_runs(grouped) if measure == "accuracy" else ()),
            *(notes.of_areas(histories) if measure in AREAS else ()),
        ],
        "methods": methods,
    }


def _collaboration(
    grouped: Mapping[str, Mapping[int, History]], runs: Mapping[str, Mapping[int, Run]]
) -> Numbers | None:
    """What clients get for what they contribute, of the runs that know what each client reaches alone."""
    found = {
        label: {seed: _rewards(run) for seed, run in seeds.items() if run.summary["collaboration"]}
        for label, seeds in runs.items()
    }
    found = {label: seeds for label, seeds in found.items() if seeds}
    if not found:
        return None
    first = next(iter(found))
    every = [summary for seeds in found.values() for summary in seeds.values()]
    reference = found[first]
    if notes.alone(reference):  # its fairness is 100 by construction: no test against it
        reference = {seed: {**summary, "fairness": None} for seed, summary in reference.items()}
    tested = [column for column in COLLABORATION if column.tested]
    return {
        "scenario": _scenario(grouped),
        "seeds": sorted({seed for seeds in found.values() for seed in seeds}),
        "clients": max(summary["clients"] for summary in every),
        "notes": list(notes.of_collaboration(grouped, found)),
        "methods": [
            {
                "method": label,
                "seeds": list(seeds),
                "alone": notes.alone(seeds),
                "satisfied": all(summary["satisfied"] for summary in seeds.values()),
                **{c.key: over_seeds([summary[c.key] for summary in seeds.values()]) for c in COLLABORATION},
                "versus": None if label == first else _versus(first, seeds, reference, tested),
            }
            for label, seeds in found.items()
        ],
    }


def _rewards(run: Run) -> Numbers:
    """The inputs of the columns of `COLLABORATION`, and their numbers."""
    known = run.summary["collaboration"] | {"contribution": run.contribution.tolist(), "reward": run.reward.tolist()}
    return {
        **known,
        "satisfied": known["bcf"]["satisfied"] and known["fairness"] is not None,
        **{column.key: column.compute(known) for column in COLLABORATION},
    }


def _parity(grouped: Mapping[str, Mapping[int, History]], runs: Mapping[str, Mapping[int, Run]]) -> Numbers | None:
    """How differently each method treats the groups, of the runs that recorded it."""
    found = {
        label: {
            seed: known | {column.key: column.compute(known) for column in PARITY}
            for seed, run in seeds.items()
            if (known := run.summary["group_fairness"])
        }
        for label, seeds in runs.items()
    }
    found = {label: seeds for label, seeds in found.items() if seeds}
    if not found:
        return None
    first = next(iter(found))
    return {
        "scenario": _scenario(grouped),
        "seeds": sorted({seed for seeds in found.values() for seed in seeds}),
        "notes": list(notes.of_parity(grouped, found)),
        "methods": [
            {
                "method": label,
                "seeds": list(seeds),
                **{column.key: over_seeds([of[column.key] for of in seeds.values()]) for column in PARITY},
                "versus": None if label == first else _versus(first, seeds, found[first], PARITY),
            }
            for label, seeds in found.items()
        ],
    }


def _scenario(grouped: Mapping[str, Mapping[int, History]]) -> str:
    return next(history.scenario for seeds in grouped.values() for history in seeds.values())


def _versus(
    first: str,
    seeds: Mapping[int, Numbers],
    reference: Mapping[int, Numbers],
    columns: Iterable[Column],
) -> Numbers:
    """Differences to the first method, paired over the common seeds."""
    common = [seed for seed in seeds if seed in reference]

    def test(key: str) -> OverSeeds:
        a, b = ([math.nan if s[seed][key] is None else s[seed][key] for seed in common] for s in (seeds, reference))
        found = paired(a, b)
        return {"difference": _json(found.difference), "ci95": _json(found.ci95), "p": _json(found.p)}

    return {"method": first, "seeds": len(common)} | {column.key: test(column.key) for column in columns}


def _pooled(runs: Sequence[tuple[History, Table]], groups: Sequence[str], last: int) -> Numbers:
    """The numbers of `equipoise.metrics.pooled` in percent, by key of the columns."""
    known = runs[0][0].group_counts if len({history.group_counts for history, _ in runs}) == 1 else None
    of_group = dict(zip(runs[0][0].groups, known or (), strict=False))
    counts = [of_group.get(group, 0) for group in groups] if of_group else None
    blocks = []
    for history, values in runs:
        column = dict(zip(history.groups, values.T, strict=True))
        absent = np.full(len(values), math.nan)
        blocks.append(np.stack([column.get(g, absent) for g in groups], 1) if groups else values)
    rows = last_rounds_together(blocks, last)

    def percent(found: Moments) -> OverSeeds:
        return {"mean": _json(100 * found.mean), "std": _json(100 * found.std) if len(rows) > 1 else None}

    return {
        "groups": {group: percent(moments(column)) for group, column in zip(groups, rows.T, strict=True)},
        **{c.key: percent(moments([c.compute(row, counts).value for row in rows])) for c in GROUPS},
        "n": len(rows),
    }


def _json(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
