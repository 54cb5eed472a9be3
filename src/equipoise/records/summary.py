"""The numbers that summarise a run."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.metrics.classification import RATES
from equipoise.metrics.collaborative import (
    bounded_fairness,
    client_range,
    collaboration_gain,
    noise,
    rank_fairness,
)
from equipoise.metrics.columns import GROUPS, spread
from equipoise.metrics.communication import full_model, traffic
from equipoise.metrics.groups import Counts, Rates, parity
from equipoise.metrics.intervals import of_rates, wilson
from equipoise.metrics.measures import Measure, measures_of, named
from equipoise.metrics.performance import Value, best, best_round, gap, last_rounds, mean
from equipoise.records.record import Record, number
from equipoise.records.results import Collaboration, GroupFairness, GroupRates, MeanBytes, RateIntervals
from equipoise.records.validation import worst_of

if TYPE_CHECKING:
    from equipoise.records.history import History


def summary(history: "History", last: int, name: str) -> dict[str, Any]:
    """AVG, STD and worst group of the global model, and the spread over clients, in percent, or the unit of the target.

    Every group is averaged over the last evaluated rounds first; AVG is the mean over groups, STD the standard
    deviation with ddof 1 (FedHEAL, Table 2).  Clients are reduced in the same order.

    Parameters
    ----------
    last : how many of the last evaluated rounds to average, at least 1.
    name : of a measure of the run's task, see `equipoise.metrics.measures`.

    Returns
    -------
    Plain types, ready for JSON, `None` where a number is not defined: `avg`, `std`, `worst`, `worst_group`; `gap`,
    the best group less the worst; `client_std`, the standard deviation (ddof 0) over clients that each have the
    value of their group; `last` and `best`, the mean over groups in the last and in the best evaluated round;
    `failure` (training diverged, or the model is no better than guessing; None if neither), `groups` (`{group: value}`), `sizes` (their test samples, as far as known),
    `small_groups` (those with fewer than `least_group`, of which there is no number), `clients` (see
    `equipoise.metrics.spread`, of the main measure; empty for another, when no client was evaluated, and where one model
    was tested on one test set for all), `clients_counted` (over how many clients that is: those with a test of at least `least_group` samples),
    `small_clients` (how many have fewer), `rounds` (how many were run), `averaged` (the rounds the groups were
    averaged over), `validation` (`{"round", "accuracy" (or another main measure), "loss", "worst", "worst_group"}` of the exported model on what clients hold out, the
    loss in nats; None if they hold nothing out), `selected_round` (the round whose model is exported, where that is the best by
    validation; else None), `stopped_round` and `stopped` (the last round and why training ended there, where validation did
    not improve; else None), `collaboration` (what clients get for what they contribute; None for another measure, and unless
    contributions are known and clients were evaluated; see `equipoise.records.results.Collaboration`), `group_fairness` (see there; None for
    another measure).

    Raises
    ------
    ValueError : there is no such measure, or `last` is below 1.
    """
    measure, main = named(measures_of(history.meta), name), history.main
    rounds, table = history.group_table(name)
    values = last_rounds(table, last)
    counts = history.group_counts
    numbers = {column.key: measure.shown(column.compute(values, counts, measure)) for column in GROUPS}
    groups = dict(zip(history.groups, values.tolist(), strict=True))
    worst = None if numbers["worst"] is None else history.groups[measure.worst_at(values)]
    clients = history.over_clients(last) if measure.main else np.empty(0)
    indices = spread(clients, main) if clients.size else {}
    return {
        **{key: numbers.pop(key) for key in ("avg", "std", "worst")},
        "worst_group": worst,
        **numbers,
        "failure": history.failure(last) or None,
        "last": measure.shown(mean(table[-1] if len(table) else [])),
        "best": measure.shown(best_round(table, measure.best)),
        "groups": {group: measure.shown(Value(a, math.isfinite(a))) for group, a in groups.items()},
        "sizes": {group: n for group, n in history.sizes.items() if group in groups},
        "small_groups": list(history.small_groups),
        "least_group": history.least_group,
        "clients": {key: _or_none(value) for key, value in indices.items()},
        "clients_counted": len(clients),
        "small_clients": history.small_clients,
        "rounds": len(history.records),
        "averaged": rounds[-last:],
        "validation": validation(history.exported.records, main),
        "selected_round": history.selected_round,
        "stopped_round": history.records[-1]["round"] if history.stopped else None,
        "stopped": history.stopped or None,
        "collaboration": _collaboration(history, last) if measure.main else None,
        "group_fairness": history.group_fairness(last) if measure.main and _rated(history) else None,
        **({"task": task, "measure": name, "unit": measure.unit} if (task := history.meta.get("task")) else {}),
    }


def _rated(history: "History") -> bool:
    """Whether rates are to be shown: they were asked for, as for a column of groups, or the class that they are about was given."""
    asked = history.meta.get("measures")
    return not asked or RATES in asked or bool(history.meta.get("positive"))


def validation(records: Sequence[Record], measure: Measure) -> dict[str, Any] | None:
    """The last results on what clients hold out: their round, the main measure and that of the worst group as they are shown, the loss.

    Where clients belong to no groups, `worst` is the mean over the worst 10 % of them.
    """
    for record in reversed(records):
        if found := record.get("validation"):
            groups = {group: number(scores.get(measure.name)) for group, scores in found["groups"].items()}
            loss = number(found["loss"])
            return {
                "round": record["round"],
                measure.name: measure.scale * number(found.get(measure.name)),
                "loss": loss if math.isfinite(loss) else None,
                "worst": measure.scale * worst_of(found),
                "worst_group": [*groups][measure.worst_at([*groups.values()])] if len(groups) > 1 else None,
            }
    return None


def group_fairness(
    records: Sequence[Record], last: int = 5, positive: int | None = None, least: int = 1
) -> GroupFairness | None:
    """How differently the global model treats the groups: rates of its decisions by group, and the gaps between groups.

    See `equipoise.metrics.parity`; a rate is over the last rounds in which the counts were recorded.

    Parameters
    ----------
    last : how many of the last evaluated rounds to average, at least 1.
    positive : the class that counts as positive; by default the second of two, and every one of more.
    least : >= 1, people that a rate must be about: one of fewer is not shown, and in no gap.

    Returns
    -------
    Plain types, see `equipoise.records.results.GroupFairness`; None where no counts were recorded for two groups (`measures=("rates",)`).
    """
    if last < 1:
        raise ValueError(f"last must be at least 1 round: found {last}.")
    counted = [
        (
            record["round"],
            {g: counts for g, of in record.get("groups", {}).items() if isinstance(counts := of.get(RATES), Mapping)},
        )
        for record in records
    ]
    chosen = [(t, of) for t, of in counted if of][-last:]
    every: dict[str, list[Counts]] = {}
    for _, groups in chosen:
        for name, of in groups.items():
            every.setdefault(name, []).append(of)
    if len(every) < 2:
        return None
    rounds = len(chosen)
    summed = {  # as if each had been counted in all of these rounds
        name: {key: (rounds / len(each) * np.sum([counts[key] for counts in each], axis=0)).tolist() for key in each[0]}
        for name, each in every.items()
    }
    fairness = parity(summed, positive, least * rounds)
    return {
        "accuracy_gap": _percent(fairness.accuracy),
        "equal_opportunity": _percent(fairness.equal_opportunity),
        "equalised_odds": _percent(fairness.equalised_odds),
        "demographic_parity": _percent(fairness.demographic_parity),
        "worst_recall": _percent(fairness.worst_recall),
        "of_class": dict(fairness.widest),
        "classes": list(fairness.classes),
        "groups": {
            name: _rates(rates, summed[name], every[name][-1], fairness.classes, rounds, least)
            for name, rates in fairness.rates.items()
        },
        "intervals": {key: ends.percent for key, ends in of_rates(summed, positive, rounds, least).items()},
        "undefined": [list(what) for what in fairness.undefined],
        "averaged": [t for t, _ in chosen],
    }


def _rates(rates: Rates, counts: Counts, latest: Counts, classes: Sequence[int], rounds: int, least: int) -> GroupRates:
    """The rates of one group with their intervals, from counts that are the sum of so many rounds, and those of its last round."""
    n, true = sum(counts["true"]) / rounds, [k / rounds for k in counts["true"]]
    about = {"tpr": true, "fpr": [n - k for k in true], "selection_rate": [n] * len(true)}
    hardest = rates.hardest
    ends = {key: [wilson(getattr(rates, key)[c].value, of[c]).percent for c in classes] for key, of in about.items()}
    intervals: RateIntervals = {
        "tpr": ends["tpr"],
        "fpr": ends["fpr"],
        "selection_rate": ends["selection_rate"],
        "accuracy": wilson(rates.accuracy.value, n).percent,
        "worst_recall": None if hardest is None else wilson(rates.worst_recall.value, true[hardest]).percent,
    }
    return {
        "n": size if (size := sum(latest["true"])) >= least else None,
        "accuracy": _percent(rates.accuracy),
        "tpr": [_percent(rates.tpr[c]) for c in classes],
        "fpr": [_percent(rates.fpr[c]) for c in classes],
        "selection_rate": [_percent(rates.selection_rate[c]) for c in classes],
        "of_class": [size if (size := latest["true"][c]) >= least else None for c in classes],
        "worst_recall": _percent(rates.worst_recall),
        "worst_class": hardest,
        "intervals": intervals,
    }


def _collaboration(history: "History", last: int) -> Collaboration | None:
    contribution, (rounds, table) = history.contribution, history.client_table()
    if contribution is None or not table.size or history.main.better == "lower":
        return None
    contribution, table = map(history.of_honest, (contribution, table))
    reward = table[-1]
    fairness = history.fairness
    gain, bounds = collaboration_gain(contribution, reward), bounded_fairness(contribution, reward)
    worse_off, (top, middle, bottom) = gain.worse_off if gain.mean.defined else None, client_range(reward)
    n, known = history.tested, history.meta.get("contribution") or {}
    error, spread = noise(reward, n), mean(history.of_honest(np.array(known.get("spread", ()))))
    return {
        "round": rounds[-1],
        "clients": len(reward),
        "tested": int(n) if n > 0 else None,
        "range": _percent(gap(reward)),
        "noise": _percent(Value(2 * math.sqrt(2) * error.value, error.defined)),
        "alone": {
            "noise": _percent(noise(contribution, n)),
            "spread": _percent(spread),
            "rounds": known.get("averaged", 1),
            "range": _percent(gap(contribution)),
        },
        "fairness": _or_none(fairness[-1]),
        "spearman": _or_none(rank_fairness(contribution, reward)),
        "fairness_mean": _or_none(mean([one.value for one in fairness[-last:]])),
        "fairness_oracle": max((one.value for one in fairness if one.defined), default=None),
        "max_mean": _percent(mean([best(row).value for row in table[-last:]])),
        "max_oracle": _percent(best([best(row).value for row in table])),
        "max": _percent(top),
        "mean": _percent(middle),
        "min": _percent(bottom),
        "gain": {"mean": _percent(gain.mean), "std": _percent(gain.std), "worse_off": worse_off},
        "bcf": {
            "rate": _percent(bounds.rate),
            "satisfied": bounds.satisfied,
            "lower_violations": list(bounds.lower_violations),
            "upper_violations": list(bounds.upper_violations),
            "literal_upper_violations": list(bounds.literal_upper_violations),
            "lower_margin": _percent(bounds.worst_lower),
            "upper_margin": _percent(bounds.worst_upper),
        },
        "bytes": _bytes(history.records),
    }


def _bytes(records: Sequence[Record]) -> MeanBytes | None:
    if not any(record.get("bytes", {}).get("down") for record in records):
        return None
    down, up = traffic(records)
    return {"down": down, "up": up, "full": _or_none(full_model(records))}


def _percent(value: Value) -> float | None:
    return 100 * value.value if value.defined else None


def _or_none(value: Value) -> float | None:
    return value.value if value.defined else None
