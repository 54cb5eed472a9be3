"""The numbers that summarise a run."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from equipoise.metrics import definitions
from equipoise.metrics.classification import RATES
from equipoise.metrics.collaborative import bounded_fairness, client_range, collaboration_gain, noise, rank_fairness
from equipoise.metrics.communication import full_model, traffic
from equipoise.metrics.definitions import spread
from equipoise.metrics.measures import ACCURACY, Measure, measures_of, named
from equipoise.metrics.performance import Value, best, best_round, gap, last_rounds, mean, or_none, percent
from equipoise.records.record import Record, number
from equipoise.records.results import Collaboration
from equipoise.records.treatment import Numbers
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
    another measure), and where samples have sensitive attributes `people`, see `equipoise.records.results.People`.

    Raises
    ------
    ValueError : there is no such measure, or `last` is below 1.
    """
    measure, main = named(measures_of(history.meta), name), history.main
    rounds, table = history.group_table(name)
    values = last_rounds(table, last)
    counts = history.group_counts
    numbers = {column.key: measure.shown(column.compute(values, counts, measure)) for column in definitions.GROUPS}
    groups = dict(zip(history.groups, values.tolist(), strict=True))
    worst = None if numbers["worst"] is None else history.groups[measure.worst_at(values)]
    clients = history.over_clients(last) if measure.main else np.empty(0)
    return {
        **{key: numbers.pop(key) for key in ("avg", "std", "worst")},
        "worst_group": worst,
        **numbers,
        "failure": history.failure(last) or None,
        "last": measure.shown(mean(table[-1] if len(table) else [])),
        "best": measure.shown(best_round(table, measure.best)),
        "groups": {group: measure.shown(Value(a, math.isfinite(a))) for group, a in groups.items()},
        "sizes": {group: n for group, n in history.shown_sizes.items() if group in groups},
        "small_groups": list(history.small_groups),
        "least_group": history.least_group,
        "clients": {key: or_none(value) for key, value in (spread(clients, main) if clients.size else {}).items()},
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
        **({"people": people} if measure.main and (people := history.people(last)) else {}),
        **({"task": task, "measure": name, "unit": measure.unit} if (task := history.meta.get("task")) else {}),
    }


def statistics(history: "History", numbers: Mapping[str, Any]) -> dict[str, Numbers]:
    """All statistics of a run by part, from its summary: those of each list of `equipoise.metrics.definitions` under their keys.

    Parameters
    ----------
    numbers : what :func:`summary` returned.
    """
    together = numbers["collaboration"]
    treated = {f"people {name}": people["treated"] for name, people in numbers.get("people", {}).items()}
    treated["group_fairness"] = numbers["group_fairness"]
    gaps = definitions.PARITY if history.main == ACCURACY else definitions.ERRORS
    return {
        "groups": {statistic.key: numbers[statistic.key] for statistic in definitions.GROUPS},
        "clients": numbers["clients"],
        "collaboration": {c.key: c.compute(together) for c in definitions.COLLABORATION} if together else {},
        **{name: {gap.key: part[gap.key] for gap in gaps} for name, part in treated.items() if part},
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
        if held_out := record.get("validation"):
            groups = {group: number(scores.get(measure.name)) for group, scores in held_out["groups"].items()}
            loss = number(held_out["loss"])
            return {
                "round": record["round"],
                measure.name: measure.scale * number(held_out.get(measure.name)),
                "loss": loss if math.isfinite(loss) else None,
                "worst": measure.scale * worst_of(held_out),
                "worst_group": [*groups][measure.worst_at([*groups.values()])] if len(groups) > 1 else None,
            }
    return None


def _collaboration(history: "History", last: int) -> Collaboration | None:
    contribution, (rounds, table) = history.contribution, history.client_table()
    if contribution is None or not table.size or history.main.better == "lower":
        return None
    contribution, table = map(history.honest_only, (contribution, table))
    reward = table[-1]
    fairness = history.fairness
    gain, bounds = collaboration_gain(contribution, reward), bounded_fairness(contribution, reward)
    worse_off, (top, middle, bottom) = gain.worse_off if gain.mean.defined else None, client_range(reward)
    n, contributed = history.tested, history.meta.get("contribution") or {}
    error, spread = noise(reward, n), mean(history.honest_only(np.array(contributed.get("spread", ()))))
    together = {
        "round": rounds[-1],
        "clients": len(reward),
        "tested": int(n) if n > 0 else None,
        "range": percent(gap(reward)),
        "noise": percent(Value(2 * math.sqrt(2) * error.value, error.defined)),
        "alone": {
            "noise": percent(noise(contribution, n)),
            "spread": percent(spread),
            "rounds": contributed.get("averaged", 1),
            "range": percent(gap(contribution)),
        },
        "fairness": or_none(fairness[-1]),
        "spearman": or_none(rank_fairness(contribution, reward)),
        "fairness_mean": or_none(mean([value.value for value in fairness[-last:]])),
        "fairness_oracle": max((value.value for value in fairness if value.defined), default=None),
        "max_mean": percent(mean([best(row).value for row in table[-last:]])),
        "max_oracle": percent(best([best(row).value for row in table])),
        "max": percent(top),
        "mean": percent(middle),
        "min": percent(bottom),
        "gain": {"mean": percent(gain.mean), "std": percent(gain.std), "worse_off": worse_off},
        "bcf": {
            "rate": percent(bounds.rate),
            "satisfied": bounds.satisfied,
            "lower_violations": list(bounds.lower_violations),
            "upper_violations": list(bounds.upper_violations),
            "literal_upper_violations": list(bounds.literal_upper_violations),
            "lower_margin": percent(bounds.worst_lower),
            "upper_margin": percent(bounds.worst_upper),
        },
        "bytes": _bytes(history.records),
    }
    return cast(Collaboration, together)


def _bytes(records: Sequence[Record]) -> dict[str, float | None] | None:
    sent = any(record.get("bytes", {}).get("down") for record in records)
    return {**traffic(records)._asdict(), "full": or_none(full_model(records))} if sent else None
