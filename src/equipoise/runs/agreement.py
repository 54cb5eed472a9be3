"""Ours beside the paper's: the numbers of an experiment's runs, cell by cell, with the published ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from equipoise.federation.history import History
from equipoise.metrics.statistics import judge, summary_over_seeds
from equipoise.report.claims import JudgedClaim
from equipoise.report.notes import mixed_machines, releases
from equipoise.report.reproduction import AVERAGED, STATISTICS, Block, ReproducedValue, Result, of_groups
from equipoise.runs.reproduce import PlannedRun, ReproductionPlan, histories


def value(history: History, spec: str, last: int = 5) -> float:
    """The number of one run that a column shows, in percent; NaN where it is not defined.

    Parameters
    ----------
    spec : ``"STATISTIC [MEASURE]"``: avg, std, worst, gap, client_std or group:NAME of a measure (accuracy); or fairness,
        spearman, max, mean or min, of what clients get for what they contribute; or mean_client, the accuracy of the
        clients' own models, or traffic, the MiB that a client receives and sends in a round.
    last : rounds that make a number of the first kind but ``last`` and ``best``; all others are of the last round.
    """
    statistic, _, measure = spec.partition(" ")
    if statistic.startswith("group:"):
        group = statistic.removeprefix("group:")
        found = of_groups(history, last, measure or "accuracy").get("groups", {}).get(group)
    else:
        found = STATISTICS[statistic].compute(history, last, measure or "accuracy")
    return math.nan if found is None else float(found)


def collect(
    planned: ReproductionPlan,
    failed: Mapping[tuple[str, str], str] | None = None,
    found: Mapping[tuple[str, str], Sequence[History]] | None = None,
) -> Result:
    """Ours beside the paper's: every cell with its mean, its spread over seeds and the published number.

    Parameters
    ----------
    planned : the runs.
    failed : what :func:`run` gave.
    found : what :func:`histories` gave; None reads them.
    """
    found = histories(planned) if found is None else found
    experiment = planned.experiment
    reasons = {**planned.skipped, **(failed or {})}
    shown = []
    for part in experiment.part:
        if not any(cell.part == part.name for cell in planned.runs):
            continue
        condition = part.condition(embedded=planned.embedded)
        columns = condition.columns
        entries: dict[tuple[str, str], ReproducedValue] = {}
        ran = {cell.row for cell in planned.runs if cell.part == part.name}
        rows = [row for row in experiment.of(part) if row.name in ran or (part.name, row.name) in reasons]
        seeds = planned.seeds(
            part.name, ran
        )  # a claim may have more, which would be of other draws than the rows beside it
        of_part = {row: [h for h in found.get((part.name, row), []) if h.seed in seeds] for row in ran}
        for row in rows:
            for column in columns:
                ours = [value(h, experiment.columns[column]) for h in of_part.get(row.name, [])]
                seen = [v for v in ours if not math.isnan(v)]
                over = summary_over_seeds(seen) if seen else None
                mean, std = planned.published.get((row.name, part.name, column), (None, None))
                entries[row.name, column] = ReproducedValue(
                    tuple(seen), over.mean if over else math.nan, over.std if over else math.nan,
                    over.ci95 if over else math.nan, mean, std,
                )  # fmt: skip
        shown.append(
            Block(
                part.name, part.title or part.name, condition.scenario, tuple(columns), tuple(row.name for row in rows), entries,
                {row.name: reasons[part.name, row.name] for row in rows if (part.name, row.name) in reasons},
                max(map(len, of_part.values()), default=0),
                _measured({column: experiment.columns[column] for column in columns}), tuple(_doubts(planned, part.name, entries, of_part, found)),
            )
        )  # fmt: skip
    left = {part.title or part.name: planned.skipped[part.name, row.name] for part in experiment.part for row in experiment.of(part)
            if (part.name, row.name) in planned.skipped and part.name not in {one.name for one in shown}}  # fmt: skip
    note = " ".join([*experiment.note.split(), *(f"Not run: {title}: {why}." for title, why in left.items())])
    paper_elsewhere = not planned.reads and bool(planned.published)
    return Result(
        title=f"{experiment.paper}: {experiment.title}", citation=experiment.citation, about=" ".join(experiment.about.split()),
        note=note, embedded=planned.embedded or paper_elsewhere, parts=tuple(shown), ours=tuple((c.what, c.why) for c in experiment.ours),
        settings={part: _settings(planned, part) for part in dict.fromkeys(cell.part for cell in planned.runs)},
        claims=tuple(_judged(planned, reasons, found)), chosen=tuple(planned.chosen.values()), reads=planned.reads,
    )  # fmt: skip


def _judged(
    planned: ReproductionPlan,
    reasons: Mapping[tuple[str, str], str],
    found: Mapping[tuple[str, str], Sequence[History]],
) -> Iterator[JudgedClaim]:
    """Every claim in every part it is made for, with what the seeds say of it; open unless all its rows have all seeds."""
    experiment = planned.experiment
    for claim in experiment.claim:
        for part in experiment.claimed(claim):
            seeds = planned.seeds(part.name, claim.rows)
            cells = [c for c in planned.runs if c.part == part.name and c.row in claim.rows and c.seed in seeds]
            paths = {row: [cell.path for cell in cells if cell.row == row] for row in claim.rows}
            broken = [f"{row}: {reasons[part.name, row]}" for row in claim.rows if (part.name, row) in reasons]
            there = claim.column in part.condition(embedded=planned.embedded).columns
            told = broken or ["not defined for any seed" if all(paths.values()) else "not among what was asked for"]
            told = told if there else [f"there is no column {claim.column} with these data"]
            values = [
                {
                    h.seed: value(h, experiment.columns[claim.column])
                    for h in found.get((part.name, row), [])
                    if h.seed in seeds
                }
                for row in claim.rows
            ]
            less = dict.fromkeys(values[0], claim.value) if claim.value is not None else values[1]
            pairs = [(v, w) for seed, v in values[0].items() if (w := less.get(seed)) is not None]
            seen = [v - w for v, w in pairs if there and math.isfinite(v - w)]
            asked = len(paths[claim.row])
            unchosen = [
                row for row in claim.rows if (part.name, row) in planned.candidates.keys() - planned.chosen.keys()
            ]
            useless = [f"{h.label}, seed {h.seed}: {why}" for row in claim.rows
                       for h in found.get((part.name, row), []) if h.seed in seeds and (why := h.failure())]  # fmt: skip
            if claim.than is not None and paths[claim.row] == paths[claim.than]:
                undecided = ["both rows are the same runs"]
            elif unchosen:
                undecided = [f"not chosen yet: {', '.join(unchosen)}"]
            elif _changed(cells, found):
                undecided = ["not all of these runs saw the same data"]
            elif useless or len(seen) == asked:
                undecided = useless or ["one seed gives no interval"] * (asked == 1)
            else:  # the seeds that are left may be those that favour a row
                undecided = broken or [f"not there, or not defined, for {asked - len(seen)} of {asked} seeds"]
            yield JudgedClaim(
                claim.text, claim.source, part.name, part.title or part.name, claim.row, claim.than, claim.value, claim.column,
                claim.direction, claim.margin, asked,
                judge(seen, claim.direction, claim.margin or 0.0),
                "; ".join(told) if not seen else "fewer rounds or seeds than the experiment has" if planned.trial else "; ".join(undecided),
            )  # fmt: skip


def _measured(columns: Mapping[str, str]) -> str:
    """In which unit and rounds the numbers of columns are, by what the file says of them."""
    of: dict[str, list[str]] = {}
    for column, spec in columns.items():
        statistic = STATISTICS.get(spec.split(" ")[0])
        of.setdefault(AVERAGED if statistic is None else statistic.measured, []).append(column)
    return next(iter(of)) if len(of) == 1 else "; ".join(f"{', '.join(names)} {how}" for how, names in of.items())


def _doubts(
    planned: ReproductionPlan,
    part: str,
    entries: Mapping[tuple[str, str], ReproducedValue],
    of_part: Mapping[str, Sequence[History]],
    found: Mapping[tuple[str, str], Sequence[History]],
) -> Iterator[str]:
    """What makes the numbers of a part less than they seem."""
    cells = [cell for cell in planned.runs if cell.part == part]
    fewer = {(cell.config.rounds, cell.rounds) for cell in cells if cell.config.rounds < cell.rounds}
    for rounds, meant in sorted(fewer):
        yield f"These are numbers after {rounds} round{'s' * (rounds != 1)}; the experiment has {meant}."
    undefined = [
        f"{row} {column} with {lost} of {runs_}"
        for (row, column), entry in entries.items()
        if (lost := (runs_ := len(of_part.get(row, ()))) - len(entry.values))
    ]
    if undefined:
        yield f"Not defined, and left out of the means: {', '.join(undefined)} seeds."
    for row in dict.fromkeys(cell.row for cell in cells):
        for history in found.get((part, row), ()):
            if why := history.failure():
                yield f"{row}, seed {history.seed}: {why}."
    if _changed(cells, found):
        where = {str(cell.path.parent) for cell in cells}
        yield f"Not all of these runs saw the same data: the files changed between them. Delete {', '.join(sorted(where))}, and run all again."
    histories = [history for cell in cells for history in found.get((part, cell.row), ())]
    yield from mixed_machines(histories)
    yield from releases(histories)


def _changed(cells: Sequence[PlannedRun], found: Mapping[tuple[str, str], Sequence[History]]) -> bool:
    """Whether runs of one seed and the same options saw different data."""
    trained: dict[str, set[str]] = {}
    for cell in cells:
        for history in found.get((cell.part, cell.row), ()):
            if history.seed == cell.seed:
                same = json.dumps([cell.config.scenario_options, cell.seed], sort_keys=True)
                trained.setdefault(same, set()).add(str(history.meta.get("data", {}).get("sha256")))
    return any(len(of) > 1 for of in trained.values())


def _settings(planned: ReproductionPlan, part: str) -> str:
    """How the runs of a part were trained, in one line: of the first of its cells."""
    c = next(cell.config for cell in planned.runs if cell.part == part)
    work = f"{c.steps} local steps" if c.steps else f"{c.epochs} local epoch{'s' * (c.epochs != 1)}"
    momentum = f", momentum {c.momentum:g}" if c.optimizer == "sgd" else ""
    others = " (the first row; others as they chose)" * any(where == part for where, _ in planned.chosen)
    options = f"({', '.join(f'{k}={v}' for k, v in c.network_options.items())})" if c.network_options else ""
    return (
        f"{c.scenario}, {c.network}{options}: {c.rounds} rounds, {work} of batch {c.batch_size}, {c.optimizer} with learning rate "
        f"{c.lr}{momentum}, weight decay {c.weight_decay:g}{others}"
    )
