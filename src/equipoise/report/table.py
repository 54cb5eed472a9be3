"""Several runs as one table: for the terminal, for LaTeX, for Markdown, and as plain JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from equipoise.metrics.classification import AREAS, MEASURES
from equipoise.metrics.pooling import Moments, pooled
from equipoise.metrics.statistics import holm, paired, summary_over_seeds
from equipoise.system.environment import kind

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from equipoise.federation.history import History

Comparison = dict[str, Any]

STATISTICS: Final = {"avg": "AVG", "std": "STD", "worst": "worst", "gap": "gap", "client_std": "client STD"}
_LOWER: Final = ("std", "gap", "client_std")  # is better
COLLABORATION: Final = {  # what clients get for what they contribute: title, larger is better, digits
    "fairness": ("fairness", True, 2),
    "spearman": ("Spearman", True, 2),
    "max": ("max", True, 2),
    "mean": ("mean", True, 2),
    "min": ("min", True, 2),
    "gain": ("gain", True, 2),
    "worse_off": ("worse off", False, 1),
    "bcf": ("BCF", True, 1),
    "down": ("down", False, 1),
    "up": ("up", False, 1),
}
PARITY: Final = {  # between groups, in points; lower is fairer
    "accuracy_gap": "accuracy gap",
    "equal_opportunity": "equal opportunity",
    "equalised_odds": "equalised odds",
    "demographic_parity": "demographic parity",
}
TESTED: Final = ("fairness", "max", "mean")  # against the first method; keys and titles are the same
_NARROW: Final = {  # in a terminal
    "fairness": "fair-\nness",
    "Spearman": "Spear-\nman",
    "worse off": "worse\noff",
    **{title: title.replace(" ", "\n") for title in PARITY.values()},
}
_TOLD: Final = {  # what a method took for contributions
    "standalone_val": "measured on the server's validation data; the table measures them on the test set",
    "standalone_test": "measured on the test set, of which training should know nothing",
    "given": "that it was given, and the table takes them for the accuracies reached alone",
}
FEW: Final = 5  # clients: a correlation of fewer says little
UNDEFINED: Final = "–"
_PERCENT: Final = "\u00a0%"  # not to be torn from its number


def by_label(histories: Sequence[History]) -> dict[str, dict[int, History]]:
    """Runs by label and seed, labels in the order of their first appearance, seeds in increasing order.

    Parameters
    ----------
    histories
        Runs of one scenario.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
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
                'Leave one out, or tell them apart with meta["label"].'
            )
        seeds[history.seed] = history
    return {label: dict(sorted(seeds.items())) for label, seeds in runs.items()}


def comparison(histories: Sequence[History], last: int = 5) -> Comparison:
    """Compare methods over seeds; the content of every table, in percent and plain JSON types.

    Parameters
    ----------
    histories
        Runs of one scenario, any number of seeds per method; the first method is the one compared with.
    last
        How many of the last evaluated rounds to average, at least 1.

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
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    runs = by_label(histories)
    measures = [name for name in MEASURES if any(name in history.measures for history in histories)]
    found = {name: _measured(runs, last, name) for name in dict.fromkeys(("accuracy", *measures))}
    of_accuracy = found["accuracy"]
    of_accuracy["notes"] = [*_notes(runs), *of_accuracy["notes"]]
    return {
        **of_accuracy,
        "measures": {name: found[name] for name in measures},
        "collaboration": _collaboration(runs, last),
        "group_fairness": _parity(runs, last),
    }


def tables(comparison: Comparison) -> list[Comparison]:
    """What has a table of its own: the accuracy, then every other measure that was recorded.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    return [comparison, *(found for name, found in comparison.get("measures", {}).items() if name != "accuracy")]


def _measured(runs: dict[str, dict[int, History]], last: int, measure: str) -> Comparison:
    histories = [run for seeds in runs.values() for run in seeds.values()]
    summaries = {
        label: {k: summary_of(run, last, measure) for k, run in seeds.items()} for label, seeds in runs.items()
    }
    groups = list(dict.fromkeys(group for history in histories for group in history.groups))
    first = next(iter(runs))
    methods = []
    for label, seeds in summaries.items():
        found = list(seeds.values())
        spreads = dict.fromkeys(name for summary in found for name in summary["clients"])
        methods.append(
            {
                "method": label,
                "seeds": list(seeds),
                **{key: _over_seeds([summary[key] for summary in found]) for key in STATISTICS},
                "groups": {group: _over_seeds([s["groups"].get(group) for s in found]) for group in groups},
                "clients": {name: _over_seeds([s["clients"].get(name) for s in found]) for name in spreads},
                "versus": None if label == first else _versus(first, seeds, summaries[first]),
                "pooled": _pooled(list(runs[label].values()), groups, last, measure),
            }
        )
    return {
        "scenario": histories[0].scenario,
        "measure": measure,
        "title": MEASURES[measure],
        "rounds": max(len(history) for history in histories),
        "averaged": min(last, max(len(run.group_table(measure)[0]) for run in histories) or last),
        "seeds": sorted({history.seed for history in histories}),
        "notes": list(_missing(histories)) if measure in AREAS else [],
        "methods": methods,
    }


def _parity(runs: dict[str, dict[int, History]], last: int) -> Comparison | None:
    """How differently each method treats the groups, of the runs that recorded it."""
    found = {
        label: {k: of for k, run in seeds.items() if (of := run.group_fairness(last))} for label, seeds in runs.items()
    }
    found = {label: seeds for label, seeds in found.items() if seeds}
    if not found:
        return None
    first = next(iter(found))
    return {
        "scenario": next(iter(next(iter(runs.values())).values())).scenario,
        "seeds": sorted({seed for seeds in found.values() for seed in seeds}),
        "notes": list(_parity_notes(runs, found)),
        "methods": [
            {
                "method": label,
                "seeds": list(seeds),
                **{key: _over_seeds([of[key] for of in seeds.values()]) for key in PARITY},
                "versus": None if label == first else _versus(first, seeds, found[first], tuple(PARITY)),
            }
            for label, seeds in found.items()
        ],
    }


def _parity_notes(runs: dict[str, dict[int, History]], found: dict[str, dict[int, dict[str, Any]]]) -> Iterator[str]:
    every = [of for seeds in found.values() for of in seeds.values()]
    named = next((names for run in runs[next(iter(found))].values() if (names := _class_names(run))), [])

    def name(c: int) -> str:
        return named[c] if c < len(named) else str(c)

    if max(len(of["classes"]) for of in every) > 1:
        yield "Every class is compared with all others, and the largest difference counts."
    else:
        yield f"The positive class is {name(every[0]['classes'][0])}."
    absent: dict[str, set[int]] = {}
    for group, what, c in (one for of in every for one in of["undefined"]):
        if what == "tpr":
            absent.setdefault(group, set()).add(c)
    for group, classes in absent.items():
        which = f"class{'es' * (len(classes) > 1)} {', '.join(map(name, sorted(classes)))}"
        yield f"{group} has no test sample of {which}, so it has no true positive rate of it and is left out there."
    if without := [label for label in runs if label not in found]:
        yield f"{_listed(without)} recorded no rates."


def _class_names(run: History) -> list[str]:
    """Names of the classes, if the run knows them."""
    data = run.meta.get("data")
    return [str(name) for name in data.get("classes") or ()] if isinstance(data, dict) else []


def _collaboration(runs: dict[str, dict[int, History]], last: int) -> Comparison | None:
    """The clients' side of a comparison, of the runs that know what each client reaches alone."""
    found = {
        label: {k: _flat(run, known) for k, run in seeds.items() if (known := run.summary(last)["collaboration"])}
        for label, seeds in runs.items()
    }
    found = {label: seeds for label, seeds in found.items() if seeds}
    if not found:
        return None
    first = next(iter(found))
    keys = (*COLLABORATION, "fairness_mean", "fairness_oracle")
    every = [summary for seeds in found.values() for summary in seeds.values()]
    reference = found[first]
    if _alone(reference):  # 100 by construction: nothing to be tested against
        reference = {seed: {**summary, "fairness": None} for seed, summary in reference.items()}
    return {
        "scenario": next(iter(next(iter(runs.values())).values())).scenario,
        "seeds": sorted({seed for seeds in found.values() for seed in seeds}),
        "clients": max(summary["clients"] for summary in every),
        "notes": list(_collaboration_notes(runs, found)),
        "methods": [
            {
                "method": label,
                "seeds": list(seeds),
                "alone": _alone(seeds),
                "satisfied": all(summary["satisfied"] for summary in seeds.values()),
                **{key: _over_seeds([summary[key] for summary in seeds.values()]) for key in keys},
                "versus": None if label == first else _versus(first, seeds, reference, TESTED),
            }
            for label, seeds in found.items()
        ],
    }


def _alone(seeds: dict[int, dict[str, Any]]) -> bool:
    """Whether the clients of a method receive nothing, with any seed."""
    return all(summary["down"] == 0 for summary in seeds.values())


def _flat(run: History, found: dict[str, Any]) -> dict[str, Any]:
    """One number per column of a run's `History.summary()["collaboration"]`; bytes as percent of the whole model."""
    sent = found["bytes"] or {}
    share = {way: 100 * sent[way] / sent["full"] if sent.get("full") else None for way in ("down", "up")}
    return {
        **found,
        "contribution": () if run.contribution is None else run.contribution.tolist(),
        "gain": found["gain"]["mean"],
        "worse_off": found["gain"]["worse_off"],
        "bcf": None if found["fairness"] is None else found["bcf"]["rate"],  # bounds on a fairness that there is not
        "satisfied": found["bcf"]["satisfied"] and found["fairness"] is not None,
        **share,
    }


def _collaboration_notes(
    runs: dict[str, dict[int, History]], found: dict[str, dict[int, dict[str, Any]]]
) -> Iterator[str]:
    if without := [label for label in runs if label not in found]:
        yield f"The standalone accuracies of {_listed(without)} are not known: no fairness of contribution and reward."
    few = sorted({summary["clients"] for seeds in found.values() for summary in seeds.values()} & set(range(FEW)))
    if few:
        yield (
            f"A correlation over {few[0]} client{'s' * (few[0] > 1)} says little (over two it is 100 or −100): "
            f"judge fairness by {FEW} clients or more."
        )
    equal = [
        label
        for label, seeds in found.items()
        if any(s["max"] is not None and s["max"] == s["min"] for s in seeds.values())
    ]
    if equal:
        hint = f" Add finetune, as in {equal[0]}+finetune, to compare what each client makes of it."
        yield (
            f"Fairness of {_listed(equal)} is not defined: all clients have the same accuracy, as they do with one model."
            + ("" if any("finetune" in label for label in found) else hint)
        )
    every = [run.contribution for seeds in runs.values() for run in seeds.values() if run.contribution is not None]
    if any(len(set(contribution.tolist())) < 2 for contribution in every):
        yield "All clients reach the same accuracy alone, so that there is no contribution to be fair to."
    if alone := [label for label, seeds in found.items() if _alone(seeds)]:
        yield f"Clients of {_listed(alone)} receive nothing: they have what they contribute, so fairness says nothing here."
    for used, what in _TOLD.items():
        by = [
            label
            for label, seeds in found.items()
            if any((runs[label][seed].meta.get("contribution") or {}).get("used") == used for seed in seeds)
        ]
        if by:
            yield f"{_listed(by)} rewarded contributions {what}."
    for seed in sorted({seed for seeds in found.values() for seed in seeds}):
        told = {tuple(seeds[seed]["contribution"]) for seeds in found.values() if seed in seeds}
        if len(told) > 1:
            yield f"With seed {seed} the runs know different standalone accuracies: compare their fairness with care."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def summary_of(run: History, last: int, measure: str) -> dict[str, Any]:
    """Summary of a run; for another measure than the accuracy made in every round first, as the tables show it."""
    summary = run.summary(last, measure)
    if measure == "accuracy":
        return summary
    of_rounds = _pooled([run], run.groups, last, measure)
    return summary | {key: of_rounds[key]["mean"] for key in STATISTICS}


def _pooled(runs: Sequence[History], groups: Sequence[str], last: int, measure: str) -> dict[str, Any]:
    """The numbers of `equipoise.metrics.pooled` in percent, by the names they have elsewhere."""
    same = len({run.group_counts for run in runs}) == 1
    of_group = dict(zip(runs[0].groups, runs[0].group_counts or (), strict=False)) if same else {}
    blocks = []
    for run in runs:
        _, values = run.group_table(measure)
        column = dict(zip(run.groups, values.T, strict=True))
        blocks.append(
            np.stack([column.get(g, np.full(len(values), math.nan)) for g in groups], 1) if groups else values
        )
    found = pooled(blocks, last, [of_group.get(g, 0) for g in groups] if of_group else None)

    def percent(moments: Moments) -> dict[str, float | None]:
        return {"mean": _json(100 * moments.mean), "std": _json(100 * moments.std) if found.n > 1 else None}

    moments = (found.average, found.std, found.worst, found.gap, found.client_std)
    return {
        "groups": {group: percent(m) for group, m in zip(groups, found.groups, strict=True)},
        **{key: percent(m) for key, m in zip(STATISTICS, moments, strict=True)},
        "n": found.n,
    }


def _missing(histories: Sequence[History]) -> Iterator[str]:
    """What an area leaves out."""
    found: dict[str, set[int]] = {}
    for run in histories:
        for record in run.records:
            for group, result in record.get("groups", {}).items():
                if result.get("missing"):
                    found.setdefault(group, set()).update(result["missing"])
    for group, classes in found.items():
        which = f"class{'es' * (len(classes) > 1)} {', '.join(map(str, sorted(classes)))}"
        yield f"{group} has no test sample of {which}, which the AUC leaves out."


def _over_seeds(values: Sequence[float | None]) -> dict[str, float | None]:
    found = summary_over_seeds([math.nan if value is None else value for value in values])
    return {"mean": _json(found.mean), "std": _json(found.std), "ci95": _json(found.ci95)}


def _versus(
    first: str,
    seeds: dict[int, dict[str, Any]],
    reference: dict[int, dict[str, Any]],
    keys: Iterable[str] = tuple(STATISTICS),
) -> dict[str, Any]:
    common = [seed for seed in seeds if seed in reference]

    def test(key: str) -> dict[str, float | None]:
        a, b = ([math.nan if s[seed][key] is None else s[seed][key] for seed in common] for s in (seeds, reference))
        found = paired(a, b)
        return {"difference": _json(found.difference), "ci95": _json(found.ci95), "p": _json(found.p)}

    return {"method": first, "seeds": len(common)} | {key: test(key) for key in keys}


def _json(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _notes(runs: dict[str, dict[int, History]]) -> Iterator[str]:
    histories = [run for seeds in runs.values() for run in seeds.values()]
    rounds = max(max(len(run) for run in histories), *(int(run.meta.get("rounds") or 0) for run in histories))
    for run in histories:
        if len(run) < rounds:
            yield f"{run.label}, seed {run.seed}, stopped after {len(run)} of {rounds} rounds."
    all_seeds = {run.seed for run in histories}
    for label, seeds in runs.items():
        if missing := sorted(all_seeds - set(seeds)):
            yield f"{label} has no run with seed {', '.join(map(str, missing))}."
    groups = {frozenset(run.groups) for run in histories}
    if len(groups) > 1:
        yield "Not all runs were evaluated on the same groups; AVG, STD and worst are not comparable between them."
    yield from mixed_machines(histories)


def mixed_machines(histories: Iterable[History]) -> Iterator[str]:
    """A sentence if runs, or parts of one, were computed with different processors or libraries.

    Parameters
    ----------
    histories
        The runs; those that do not know what computed them are left out.
    """
    machines = [machine for run in histories for machine in run.meta.get("machines") or ()]
    kinds = dict.fromkeys(text for machine in machines if (text := kind(machine)))
    if len(kinds) > 1:
        yield (
            f"Computed with different processors or libraries ({'; '.join(kinds)}): the last bits of each step differ, and "
            "training makes such differences grow."
        )


class Cell(NamedTuple):
    """One entry of a table: the mean, its spread over seeds, the difference to the first method, whether it is best."""

    mean: str
    spread: str = ""
    difference: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        """Mean and spread in one line."""
        return f"{self.mean} ±{self.spread}" if self.spread else self.mean


class Grid(NamedTuple):
    """A comparison laid out for reading: titles of the columns, and name and cells of every row."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


class _Column(NamedTuple):
    title: str
    path: tuple[str, ...]
    upwards: bool = True
    digits: int = 2
    key: str = ""  # in `versus`, for a statistic
    ranked: bool = True  # whether the best value is told from the others


def statistics(comparison: Comparison) -> dict[str, str]:
    """The statistics over groups that a table shows, by key, with their titles.

    AVG, STD and worst for the accuracy; for another measure the gap in place of the STD of two groups, the STD over
    clients for an AUC, and of one group its AVG alone.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    keys, groups = ["avg", "std", "worst"], len(comparison["methods"][0]["groups"])
    if comparison["measure"] != "accuracy":
        if groups < 2:
            return {"avg": STATISTICS["avg"]}
        keys[1] = "gap" if groups == 2 else "std"
        if comparison["measure"] in AREAS and any(
            method["client_std"]["mean"] is not None for method in comparison["methods"]
        ):
            keys.append("client_std")
    return {key: STATISTICS[key] for key in keys}


def grid(comparison: Comparison) -> Grid:
    """Lay out the values of every group and the statistics over them.

    Of the accuracy: mean and spread over seeds. Of another measure: FedISM+'s mean and spread over rounds and seeds.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    root = () if comparison["measure"] == "accuracy" else ("pooled",)
    groups = [_Column(group, (*root, "groups", group)) for group in comparison["methods"][0]["groups"]]
    statistics_ = [
        _Column(title, (*root, key), upwards=key not in _LOWER, key=key)
        for key, title in statistics(comparison).items()
    ]
    return _lay_out(comparison["methods"], groups + statistics_)


def collaboration_grid(comparison: Comparison) -> Grid | None:
    """Lay out what clients get for what they contribute, or `None` when no run knows their standalone accuracies.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    found = comparison["collaboration"]
    if found is None:
        return None
    columns = [
        _Column(title, (key,), up, digits, key if key in TESTED else "", key not in ("down", "up"))
        for key, (title, up, digits) in COLLABORATION.items()
    ]
    content = _lay_out(found["methods"], columns)
    where = list(COLLABORATION).index("bcf")
    rows = []
    for method, (name, cells) in zip(found["methods"], content.rows, strict=True):
        shown = list(cells)
        if method["satisfied"]:
            shown[where] = shown[where]._replace(mean="yes", spread="")
        rows.append((name, tuple(shown)))
    return Grid(content.titles, tuple(rows))


def group_fairness(histories: Sequence[History], last: int = 5) -> dict[str, Any] | None:
    """The table of how differently the groups are treated, or `None` when no run recorded `"rates"`.

    Parameters
    ----------
    histories
        Runs of one scenario.
    last
        How many of the last evaluated rounds to average, at least 1.

    Returns
    -------
    `caption`, a sentence; `grid`, a `Grid`; `legend`, sentences about the columns.
    """
    found = _parity(by_label(histories), last)
    return None if found is None else _parity_table(found)


def _parity_table(found: Comparison) -> dict[str, Any]:
    where = f" on {found['scenario']}" if found["scenario"] else ""
    legend = [
        "Differences in points between the groups that fare best and worst, lower is fairer: accuracy gap, of the accuracy; "
        "equal opportunity, of the true positive rate; equalised odds, the larger of those of the true and the false positive "
        "rate; demographic parity, of the share of samples that are taken for the class.",
        *found["notes"],
    ]
    several = len(found["seeds"])
    return {
        "caption": f"Group fairness{where}: how differently the global model treats the groups, over the last rounds.",
        "grid": _lay_out(found["methods"], [_Column(title, (key,), False, 2, key) for key, title in PARITY.items()]),
        "legend": [*legend, f"±: standard deviation over {several} seeds."] if several > 1 else legend,
    }


def _lay_out(methods: list[dict[str, Any]], columns: list[_Column]) -> Grid:
    by_column = [list(_cells(methods, column)) for column in columns]
    rows = ((method["method"], cells) for method, cells in zip(methods, zip(*by_column, strict=True), strict=True))
    return Grid(tuple(column.title for column in columns), tuple(rows))


def _cells(methods: list[dict[str, Any]], column: _Column) -> Iterator[Cell]:
    numbers = [reduce(getitem, column.path, method) for method in methods]
    means = [_number(n["mean"], column.digits) for n in numbers]
    by_construction = column.path[0] in ("fairness", "spearman")  # of clients that have what they contribute
    judged = [column.ranked and not (by_construction and method["alone"]) for method in methods]
    known = {float(mean) for mean, counts in zip(means, judged, strict=True) if counts and mean != UNDEFINED}
    top = (max if column.upwards else min)(known, default=math.nan)
    for method, mean, n, counts in zip(methods, means, numbers, judged, strict=True):
        yield Cell(
            mean.replace("-", "−"),
            "" if n["std"] is None else _number(n["std"], column.digits),
            difference(method["versus"][column.key]) if column.key and method["versus"] else "",
            counts and len(known) > 1 and mean != UNDEFINED and float(mean) == top,
        )


def _number(value: float | None, digits: int = 2) -> str:
    return UNDEFINED if value is None else f"{round(value, digits) + 0.0:.{digits}f}"  # never -0.00


def difference(found: dict[str, float | None], corrected: float | None = None) -> str:
    """A paired difference in words: `+2.10 ±0.80, p=.031`, or nothing when it rests on fewer than two seeds.

    Parameters
    ----------
    found
        One entry of `versus`: `{"difference", "ci95", "p"}`.
    corrected
        The p-value to quote instead, corrected for the number of methods by Holm.
    """
    if found["difference"] is None or found["ci95"] is None or found["p"] is None:
        return ""
    quoted = found["p"] if corrected is None else corrected
    p = "p<.001" if quoted < 0.001 else f"p={quoted:.3f}".replace("=0", "=")
    p = p if corrected is None else f"Holm {p}"
    return f"{found['difference']:+.2f} ±{found['ci95']:.2f}, {p}".replace("-", "−")


class Sheet(NamedTuple):
    """A table with all that is said about it: a caption, sentences below it, and differences to the first method."""

    caption: str
    grid: Grid
    sentences: list[str]
    test: list[str]
    differences: list[str]
    narrow: bool = False  # whether it takes all of a terminal
    head: str = "Method"  # what the names of the rows are, in LaTeX


def sheets(comparison: Comparison) -> list[Sheet]:
    """What there is to show of a comparison, a table each: every measure, then what clients get for what they give.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    shown = []
    for found in tables(comparison):
        notes = [*legend(found), *found["notes"]]
        shown.append(_sheet(found, caption(found), grid(found), notes, list(statistics(found).values())))
    if content := collaboration_grid(comparison):
        found = comparison["collaboration"]
        notes = [*collaboration_legend(comparison), *found["notes"]]
        shown.append(_sheet(found, collaboration_caption(comparison), content, notes, TESTED)._replace(narrow=True))
    if between := comparison.get("group_fairness"):
        table = _parity_table(between)
        sheet = _sheet(between, table["caption"], table["grid"], table["legend"], list(PARITY.values()))
        shown.append(sheet._replace(narrow=True))
    return shown


def _sheet(found: Comparison, caption: str, content: Grid, sentences: list[str], tested: Sequence[str]) -> Sheet:
    lines = list(differences(content, tested))
    texts = [f"{name}: {'; '.join(f'{title} {text}' for title, text in of.items() if text)}." for name, of in lines]
    test = (
        f"Differences are to {found['methods'][0]['method']}, paired by seed: mean, ± half of the 95 % "
        "confidence interval, p-value of the paired t-test (not corrected for the number of methods)."
    )
    return Sheet(caption, content, sentences, [test] if texts else [], texts)


def differences(content: Grid, tested: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The methods that differ from the first in a way that can be tested, and by how much, by title.

    Parameters
    ----------
    content
        A table.
    tested
        The titles of its columns to show.
    """
    for name, cells in content.rows:
        found = {t: c.difference for t, c in zip(content.titles, cells, strict=True)}
        if any(found[title] for title in tested):
            yield name, {title: found[title] for title in tested}


def rich_table(comparison: Comparison, width: int = 1000) -> Group:
    """A comparison for the terminal: one row per method, the best value of each column in bold; one table per measure.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    width
        Columns of the terminal, >= 1; what does not fit beside the rest stands in a table below.
    """
    from rich.console import Group

    said: set[str] = set()
    shown: list[Table | str] = []
    for sheet in sheets(comparison):
        # The sentences take the width of the table, and that of the accuracy is wide enough.
        for part in _folded(sheet, width):
            shown += [*([""] if shown else []), _rich_table(part, said, 60 if shown else None)]
    return Group(*shown)


def _folded(sheet: Sheet, width: int) -> list[Sheet]:
    """A table as several below each other, each with some of the columns, where it is wider than the terminal."""
    if sheet.narrow:  # made to fit, and folds its names
        return [sheet]
    names = max(len("method"), *(len(name) for name, _ in sheet.grid.rows))
    blocks: list[list[int]] = [[]]
    free = room = width - names - 2  # an edge on either side
    for k, title in enumerate(sheet.grid.titles):
        cells = [text for _, row in sheet.grid.rows for text in (row[k].mean, f"±{row[k].spread}")]
        need = 1 + max(6, len(title), *map(len, cells))
        if blocks[-1] and need > free:
            blocks.append([])
            free = room
        blocks[-1].append(k)
        free -= need
    parts = [
        sheet._replace(
            grid=sheet.grid._replace(
                titles=tuple(sheet.grid.titles[k] for k in block),
                rows=tuple((name, tuple(row[k] for k in block)) for name, row in sheet.grid.rows),
            ),
            caption=sheet.caption if block is blocks[0] else "",
            sentences=[],
            test=[],
            differences=[],
        )
        for block in blocks
    ]
    # What is said below the table stands below its last part.
    last = sheet._replace(caption=parts[-1].caption, grid=parts[-1].grid)
    return [*parts[:-1], last]


def _rich_table(sheet: Sheet, said: set[str], min_width: int | None) -> Table:
    """One table; sentences below it that were `said` below another are left out, the others added."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0),
        title=Text(sheet.caption),
        title_justify="left",
        title_style="italic",
        min_width=min_width,
    )
    sentences = [s for s in (*sheet.sentences, *sheet.test) if s not in said]
    said.update(sentences)
    table.caption = Text("\n".join([*sentences, *sheet.differences]))
    table.caption_justify = "left"
    table.add_column("method", no_wrap=not sheet.narrow, overflow="fold" if sheet.narrow else "ellipsis")
    for title in sheet.grid.titles:
        name, width = (_NARROW.get(title, title), 4) if sheet.narrow else (title, 6)
        table.add_column(Text(name), justify="right", no_wrap=True, min_width=width)
    for name, cells in sheet.grid.rows:
        texts = []
        for cell in cells:
            text = Text(cell.mean, style="bold green" if cell.best else "")
            text.append(f"\n±{cell.spread}" if cell.spread else "", style="not bold dim default")
            texts.append(text)
        table.add_row(Text(name), *texts)
    return table


def markdown(comparison: Comparison) -> str:
    """A comparison as Markdown, a table per measure: the best of each column in bold, differences in a list below.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    return "\n".join(map(_markdown, sheets(comparison)))


def _markdown(sheet: Sheet) -> str:
    titles, rows = sheet.grid

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [sheet.caption, "", row(["method", *titles]), "|---|" + "---:|" * len(titles)]
    lines += [row([name, *(f"**{cell.text}**" if cell.best else cell.text for cell in cells)]) for name, cells in rows]
    notes = [*sheet.sentences, *sheet.test, *sheet.differences]
    lines += ["", *(f"- {text}" for text in notes)]
    return "\n".join(lines).rstrip() + "\n"


def latex(comparison: Comparison) -> str:
    """A comparison in LaTeX for the package booktabs: a `table` per measure, the best value of each column in bold.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    return "\n".join(map(_latex, sheets(comparison)))


def _latex(sheet: Sheet) -> str:
    titles, rows = sheet.grid

    def entry(cell: Cell) -> str:
        mean = tex(cell.mean)
        mean = rf"\textbf{{{mean}}}" if cell.best else mean
        return rf"{mean}\,{{\scriptsize$\pm$\,{cell.spread}}}" if cell.spread else mean

    body = [" & ".join([tex(name), *map(entry, cells)]) + r" \\" for name, cells in rows]
    text = " ".join([sheet.caption, *sheet.sentences])
    comments = [*sheet.test, *sheet.differences]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{tex(text)}}}",
            rf"  \begin{{tabular}}{{l{'r' * len(titles)}}}",
            r"    \toprule",
            "    " + " & ".join([sheet.head, *map(tex, titles)]) + r" \\",
            r"    \midrule",
            *("    " + line for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            *("% " + " ".join(comment.split()) for comment in comments),
            "",
        ]
    )


def tex(text: str) -> str:
    """Text for LaTeX, with what it reads as something else escaped.

    Parameters
    ----------
    text
        Plain text.
    """
    special = {character: "\\" + character for character in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "\u00a0": "~",
        "₀": "$_0$",
        "²": "$^2$",
        "×": r"$\times$",
    }
    return "".join(special.get(character, character) for character in text)


def caption(comparison: Comparison) -> str:
    """What the numbers of a comparison are, in one sentence.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    where = f" on {comparison['scenario']}" if comparison["scenario"] else ""
    last = f"the last {comparison['averaged']} evaluated rounds" if comparison["averaged"] > 1 else "the last round"
    what = f"{comparison['title']} of the global model{where} in percent"
    return f"{what}, mean over {last}."


def legend(comparison: Comparison) -> list[str]:
    """What the columns of a table are, a sentence each.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    keys, several = statistics(comparison), len(comparison["seeds"])
    text = []
    if "std" in keys:
        text.append("STD: standard deviation over the groups (ddof 1), lower is fairer.")
    if "gap" in keys:
        text.append("gap: the better group less the worse, lower is fairer.")
    if "client_std" in keys:
        text.append("client STD: standard deviation over clients that each have the value of their group (ddof 0).")
    if comparison["measure"] != "accuracy":
        if max(method["pooled"]["n"] for method in comparison["methods"]) > 1:
            of = f" and {several} seeds" if several > 1 else ""
            text.append(f"±: standard deviation (ddof 0) over these rounds{of}, pooled as in FedISM+.")
    elif several > 1:
        text.append(f"±: standard deviation over {several} seeds.")
    return text


def collaboration_caption(comparison: Comparison) -> str:
    """What the numbers about contribution and reward are, in a sentence.

    Parameters
    ----------
    comparison
        What `comparison` returned, with a `collaboration`.
    """
    scenario = comparison["collaboration"]["scenario"]
    where = f" on {scenario}" if scenario else ""
    return f"Collaborative fairness{where}: what every client gets for what it contributes, after the last round."


def collaboration_legend(comparison: Comparison) -> list[str]:
    """What the columns about contribution and reward are, a sentence each.

    Parameters
    ----------
    comparison
        What `comparison` returned, with a `collaboration`.
    """
    several = len(comparison["collaboration"]["seeds"])
    text = [
        "fairness: 100 times the Pearson correlation over clients between the accuracy each reaches alone and that of "
        "the model it owns; Spearman: 100 times that of their ranks.",
        "max, mean, min: accuracy of the clients' own models in percent; gain: mean difference to training alone, in "
        "points; worse off: clients it is negative for.",
        "BCF: clients in percent that are better off than alone, and not rewarded beyond halfway from their contribution "
        "to the best reward; yes: all.",
        "down, up: bytes per client and round in percent of the whole model.",
    ]
    return [*text, f"±: standard deviation over {several} seeds."] if several > 1 else text


def verdict(comparison: Comparison) -> str:
    """What a comparison shows, in plain language and without more certainty than the seeds allow.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    methods, seeds = comparison["methods"], len(comparison["seeds"])
    if all(method["avg"]["mean"] is None for method in methods):
        return "No method was evaluated on all groups in the last rounds, so there is nothing to judge yet."
    if len(methods) == 1:
        text, tests = _judge_one(methods[0]), list[float]()
    else:
        text, tests = _judge_many(methods)
        text += _objections(comparison)
    text += _rewards(comparison)
    if seeds == 1:
        other = "another can reverse the order" if len(methods) > 1 else "another can look different"
        return f"{text} This is one seed, and one seed proves nothing: {other}. Run at least three."
    if seeds == 2 and tests:
        return f"{text} Two seeds are few to judge a difference by; run at least three."
    if any(p >= 0.05 for p in tests):
        return f"{text} With {seeds} seeds, a difference with p above 0.05 cannot be told from chance."
    return text


def _judge_one(method: dict[str, Any]) -> str:
    groups = {group: accuracy["mean"] for group, accuracy in method["groups"].items()}
    text = f"{method['method']} reaches {method['avg']['mean']:.2f}{_PERCENT} on average over {_count(groups)}"
    if len(groups) == 1:
        return f"{text}."
    low = min(groups, key=lambda group: groups[group])
    return (
        f"{text}, with a standard deviation of {_number(method['std']['mean'])} points between them; "
        f"the worst is {low} at {groups[low]:.2f}{_PERCENT}."
    )


def _judge_many(methods: list[dict[str, Any]]) -> tuple[str, list[float]]:
    """Sentences about the lowest STD and the best worst group, and the p-values they quote."""
    first, groups = methods[0], _count(methods[0]["groups"])
    sentences: list[str] = []
    tests: list[float] = []

    def against(method: dict[str, Any], key: str, unit: str) -> str:
        if method is first or first[key]["mean"] is None:
            return ""
        text = f", against {first[key]['mean']:.2f}{unit} for {first['method']}"
        corrected = _corrected(methods[1:], key)[methods.index(method) - 1] if len(methods) > 2 else None
        if found := difference(method["versus"][key], corrected):
            tests.append(method["versus"][key]["p"] if corrected is None else corrected)
            return f"{text} (paired difference {found})"
        return text

    fairest = _extreme(methods, "std", min)
    kindest = _extreme(methods, "worst", max) if len(first["groups"]) > 1 else None
    if fairest is not None:
        who = (
            f"No method is fairer than {first['method']}" if fairest is first else f"{fairest['method']} is the fairest"
        )
        std = fairest["std"]["mean"]
        sentences.append(
            f"{who}: its accuracy varies least over {groups}, by {std:.2f} points (STD){against(fairest, 'std', '')}."
        )
    if kindest is not None:
        who = "It also" if kindest is fairest else kindest["method"]
        worst = kindest["worst"]["mean"]
        sentences.append(
            f"{who} serves the worst group best, at {worst:.2f}{_PERCENT}{against(kindest, 'worst', _PERCENT)}."
        )
    if fairest is not None and (more := against(fairest, "avg", _PERCENT)):
        whose = "Its" if kindest is fairest else "The"
        avg, reference = fairest["avg"]["mean"], first["avg"]["mean"]
        of_whom = "" if kindest is fairest else f" of {fairest['method']}"
        how = "the same" if abs(avg - reference) < 0.005 else "higher" if avg > reference else "lower"
        sentences.append(f"{whose} average accuracy{of_whom} is {how}: {avg:.2f}{_PERCENT}{more}.")
    if not sentences:
        top = _extreme(methods, "avg", max) or first
        sentences.append(f"{top['method']} is the most accurate, at {top['avg']['mean']:.2f}{_PERCENT} on average.")
    return " ".join(sentences), tests


def _corrected(methods: list[dict[str, Any]], key: str) -> list[float]:
    """The p-values of a statistic, corrected for how many methods are tested: the best of many is picked by what it shows."""
    found = [method["versus"][key]["p"] for method in methods]
    return [float(p) for p in holm([math.nan if p is None else p for p in found])]


def _objections(comparison: Comparison) -> str:
    """Which other measures name another method that serves the worst group best."""
    kindest = _extreme(comparison["methods"], "worst", max)
    found: dict[str, list[str]] = {}
    for other in tables(comparison)[1:]:
        best = _extreme(other["methods"], "worst", max)
        if len(other["methods"][0]["groups"]) > 1 and best and kindest and best["method"] != kindest["method"]:
            what = other["title"].split(" (")[0]
            found.setdefault(best["method"], []).append(what[0].lower() + what[1:])
    return "".join(f" By {' and '.join(whats)}, {who} serves the worst group best." for who, whats in found.items())


def _rewards(comparison: Comparison) -> str:
    """Which method's rewards follow contribution best, and what its best client has of it."""
    methods = comparison["collaboration"]["methods"] if comparison["collaboration"] else []
    fairest = _extreme([method for method in methods if not method["alone"]], "fairness", max)
    if fairest is None:
        return ""
    highest = _extreme(methods, "max", max) or fairest
    top, best = fairest["max"]["mean"], highest["max"]["mean"]
    text = f" What clients get follows what they contribute best with {fairest['method']}"
    if sum(method["fairness"]["mean"] is not None for method in methods if not method["alone"]) == 1:
        text = f" With {fairest['method']}, what clients get follows what they contribute"
    text += f": fairness {fairest['fairness']['mean']:.2f} of 100, and {top:.2f}{_PERCENT} for the best client"
    if highest is fairest:
        return f"{text}{', the highest of all methods' if len(methods) > 1 else ''}."
    return f"{text}, against {best:.2f}{_PERCENT} with {highest['method']}."


def _extreme(methods: list[dict[str, Any]], key: str, choose: Callable[..., Any]) -> dict[str, Any] | None:
    known = [method for method in methods if method[key]["mean"] is not None]
    found: dict[str, Any] | None = choose(known, key=lambda method: method[key]["mean"], default=None)
    return found


def _count(groups: Sized) -> str:
    return f"{len(groups)} group{'s' * (len(groups) != 1)}"
