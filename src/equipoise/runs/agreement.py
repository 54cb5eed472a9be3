"""Ours beside the paper's: the numbers of an experiment's runs, cell by cell, with the published ones."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from statistics import fmean
from typing import Any

from equipoise.federation.history import History
from equipoise.metrics.statistics import Summary, judge, summary_over_seeds
from equipoise.report import reproduction
from equipoise.report.notes import alike, faint, measured_alone, mixed_machines, releases
from equipoise.report.reproduction import AVERAGED, FEW, LEAST, STATISTICS, JudgedClaim, ReproducedValue, Result
from equipoise.runs.experiment import Claim, ColumnGroup
from equipoise.runs.reproduce import PlannedRun, ReproductionPlan as Plan, histories
from equipoise.scenarios import DATA_SEED
from equipoise.system.grouping import grouped
from equipoise.system.text import plural

Ended = Mapping[tuple[str, str], Sequence[History]]  # the finished runs, by part and row
Entries = Mapping[tuple[str, str], ReproducedValue]  # the cells of a part, by row and column
Reasons = Mapping[tuple[str, str], str]  # why cells have no numbers, by part and row


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
    group, measure = statistic.partition(":")[2], measure or history.main.name
    if statistic.startswith("group:"):
        number = reproduction.group_numbers(history, last, measure).get("groups", {}).get(group)
    else:
        number = STATISTICS[statistic].compute(history, last, measure)
    return math.nan if number is None else float(number)


def collect(planned: Plan, failed: Reasons | None = None, ended: Ended | None = None) -> Result:
    """Ours beside the paper's: every cell with its mean, its spread over seeds and the published number.

    Parameters
    ----------
    planned : the runs.
    failed : what :func:`run` gave.
    ended : what :func:`histories` gave; None reads them.
    """
    ended = histories(planned) if ended is None else ended
    experiment = planned.experiment
    reasons = {**planned.skipped, **(failed or {})}
    run = {cell.part for cell in planned.runs}
    shown = [_block(planned, part, reasons, ended) for part in experiment.part if part.name in run]
    left = {part.title or part.name: planned.skipped[part.name, row.name] for part in experiment.part if part.name not in run
            for row in experiment.of(part) if (part.name, row.name) in planned.skipped}  # fmt: skip
    note = " ".join([*experiment.note.split(), *(f"Not run: {title}: {why}." for title, why in left.items())])
    paper_elsewhere = not planned.reads and bool(planned.published)
    return Result(
        title=f"{experiment.paper}: {experiment.title}", citation=experiment.citation, about=" ".join(experiment.about.split()),
        note=note, embedded=planned.embedded or paper_elsewhere, parts=tuple(shown), ours=tuple((c.what, c.why) for c in experiment.ours),
        settings={part: _settings(planned, part) for part in dict.fromkeys(cell.part for cell in planned.runs)},
        claims=tuple(_judgement(planned, claim, part, reasons, ended) for claim in experiment.claim for part in experiment.claimed(claim)),
        chosen=tuple(planned.chosen.values()), reads=planned.reads,
        calibrated=tuple(calibrated(planned, failed or {})),
    )  # fmt: skip


def _block(planned: Plan, part: ColumnGroup, reasons: Reasons, ended: Ended) -> reproduction.Block:
    """The cells of a part, and why some are empty."""
    experiment, condition = planned.experiment, part.condition(embedded=planned.embedded)
    ran = {cell.row for cell in planned.runs if cell.part == part.name}
    rows = [row.name for row in experiment.of(part) if row.name in ran or (part.name, row.name) in reasons]
    seeds = planned.seeds(part.name, ran)  # a claim may have more, of other draws than the rows beside it
    of_part = {row: [h for h in ended.get((part.name, row), []) if h.seed in seeds] for row in ran}
    entries = {
        (row, column): _entry(planned, part.name, row, column, of_part.get(row, []))
        for row, column in product(rows, condition.columns)
    }
    return reproduction.Block(
        part.name, part.title or part.name, condition.scenario, tuple(condition.columns), tuple(rows), entries,
        {row: reasons[part.name, row] for row in rows if (part.name, row) in reasons},
        max(map(len, of_part.values()), default=0),
        _measured({column: experiment.columns[column] for column in condition.columns}), tuple(_doubts(planned, part.name, entries, of_part, ended)),
        experiment.divisions or 0,
    )  # fmt: skip


def division(history: History) -> int | None:
    """The number of the division of the data that a run shares with others; None if its seed draws its own."""
    config = history.meta.get("config") or {}
    number: int | None = (config.get("scenario_options") or {}).get(DATA_SEED)
    return number


def _rewards(histories: Iterable[History]) -> list[dict[str, Any]]:
    """What summaries say of contributions and rewards, of the runs that know them."""
    return [rewards for history in histories if (rewards := history.summary()["collaboration"])]


def _draw(history: History) -> str:
    """Which of the runs of a row one is."""
    shared = division(history)
    return f"{'' if shared is None else f'division {shared}, '}seed {history.seed}"


def _units(pairs: Iterable[tuple[int | None, float]]) -> tuple[list[float], float]:
    """What an interval is over, of values with their divisions: the values of one division, or the means of several.

    Also the standard deviation within a division, pooled over them; NaN unless there are several with several values.
    """
    groups = grouped(pairs)
    if len(groups) < 2:
        return [number for group in groups.values() for number in group], math.nan
    free = sum(len(group) - 1 for group in groups.values())
    squares = sum((number - fmean(group)) ** 2 for group in groups.values() for number in group)
    return [fmean(group) for group in groups.values()], math.sqrt(squares / free) if free else math.nan


def _entry(planned: Plan, part: str, row: str, column: str, runs: Sequence[History]) -> ReproducedValue:
    """A cell, of the runs of a row in a part."""
    spec = planned.experiment.columns[column]
    defined = [(division(h), v) for h in runs if not math.isnan(v := value(h, spec))]
    units, within = _units(defined)
    over = summary_over_seeds(units) if units else Summary(math.nan, math.nan, math.nan, 0)
    paper = planned.published.get((row, part, planned.experiment.beside.get(column, column)), (None, None))
    narrow = defined and _correlates(spec) and faint({row: _rewards(runs)})
    return ReproducedValue(
        tuple(v for _, v in defined), over.mean, over.std, over.ci95, paper[0], paper[1],
        within, len({where for where, _ in defined} - {None}), "≈" if narrow else "",
    )  # fmt: skip


def _correlates(spec: str) -> bool:
    """Whether a column is a correlation of contributions with rewards."""
    return spec in STATISTICS and STATISTICS[spec].correlates


def calibrated(planned: Plan, failed: Reasons) -> Iterator[reproduction.Calibrated]:
    """Of the rows by which an experiment calibrates, how near to the paper's numbers ours are, part by part.

    Parameters
    ----------
    failed : why cells have no numbers, as :func:`equipoise.runs.reproduce.run` says it.
    """
    if (first := planned.calibration) is None or (by := planned.experiment.calibration) is None:
        return
    ended = histories(first)
    for part, row in product(dict.fromkeys(cell.part for cell in first.runs), by.rows):
        runs = ended.get((part, row), [])
        left = sum(cell.cell == (part, row) for cell in first.runs) - len(runs)
        entry = _entry(first, part, row, by.column, runs)
        reasons = [
            *(["the paper has no number"] if entry.paper is None else []),
            *(why[part, row] for why in (first.skipped, failed) if (part, row) in why),
            *([f"runs that have not ended: {left}" if left and planned.asked else "not among what was asked for"] if left or not runs else []),
            *(why for h in runs if (why := h.failure())),
            *(["fewer rounds than the experiment has"] if first.trial else []),
            *(["not defined for all seeds"] if len(entry.values) < len(runs) else []),
            *([FEW] if (entry.divisions if entry.divisions > 1 else len(entry.values)) < LEAST else []),
        ]  # fmt: skip
        yield reproduction.Calibrated(part, row, by.column, entry, next(iter(reasons), ""))


def _judgement(planned: Plan, claim: Claim, part: ColumnGroup, reasons: Reasons, ended: Ended) -> JudgedClaim:
    """A claim in a part it is made for, with what the seeds say of it; open unless all its rows have all seeds."""
    experiment, seeds = planned.experiment, planned.seeds(part.name, claim.rows)
    cells = {row: [c for c in planned.runs if c.cell == (part.name, row) and c.seed in seeds] for row in claim.rows}
    asked, divisions = len(cells[claim.row]), experiment.divisions or 0
    runs = [[h for h in ended.get((part.name, row), []) if h.seed in seeds] for row in claim.rows]
    differences: list[tuple[int | None, float]] = []
    broken = [f"{row}: {reasons[part.name, row]}" for row in claim.rows if (part.name, row) in reasons]
    if claim.column not in part.condition(embedded=planned.embedded).columns:
        undecided = f"there is no column {claim.column} with these data"
    elif differences := _differences(claim, experiment.columns[claim.column], runs):
        useless = "; ".join(f"{h.label}, {_draw(h)}: {why}" for h in chain(*runs) if (why := h.failure()))
        incomplete = _incomplete(len(differences), asked, broken)
        undecided = next(filter(None, (*_open(planned, claim, part.name, cells, ended), useless, incomplete)), "")
    else:
        none = "not defined for any seed" if all(cells.values()) else "not among what was asked for"
        undecided = "; ".join(broken or [none])
    return JudgedClaim(
        claim.text, claim.source, part.name, part.title or part.name, claim.row, claim.than, claim.value, claim.column,
        claim.direction, claim.margin, divisions if divisions > 1 else asked,
        judge(_units(differences)[0], claim.direction, claim.margin or 0.0), undecided,
    )  # fmt: skip


def _incomplete(n: int, asked: int, broken: Sequence[str]) -> str:
    """Why so many differences say nothing: the seeds that are left may be those that favour a row."""
    if n == asked:
        return "one seed gives no interval" * (asked == 1)
    return "; ".join(broken or [f"not there, or not defined, for {asked - n} of {asked} seeds"])


def _differences(claim: Claim, column: str, runs: Sequence[Sequence[History]]) -> list[tuple[int | None, float]]:
    """What a claim's row has more than the other, or than a value, by division and seed."""
    values = [{(division(h), h.seed): value(h, column) for h in of_row} for of_row in runs]
    less = dict.fromkeys(values[0], claim.value) if claim.value is not None else values[1]
    pairs = [(draw, v - w) for draw, v in values[0].items() if (w := less.get(draw)) is not None]
    return [(draw[0], d) for draw, d in pairs if math.isfinite(d)]


def _open(
    planned: Plan, claim: Claim, part: str, runs: Mapping[str, Sequence[PlannedRun]], ended: Ended
) -> Iterator[str]:
    """Why a claim cannot be judged by these runs, whatever their numbers are."""
    if planned.trial:
        yield "fewer rounds or seeds than the experiment has"
    if claim.than is not None and [run.path for run in runs[claim.row]] == [run.path for run in runs[claim.than]]:
        yield "both rows are the same runs"
    if unchosen := [row for row in claim.rows if (part, row) in planned.candidates.keys() - planned.chosen.keys()]:
        yield f"not chosen yet: {', '.join(unchosen)}"
    yield "not all of these runs saw the same data" * _changed([*chain(*runs.values())], ended)


def _measured(columns: Mapping[str, str]) -> str:
    """In which unit and rounds the numbers of columns are, by what the file says of them."""
    statistics = {column: STATISTICS.get(spec.split(" ")[0]) for column, spec in columns.items()}
    columns_by_unit = grouped((AVERAGED if s is None else s.measured, column) for column, s in statistics.items())
    if len(columns_by_unit) == 1:
        return next(iter(columns_by_unit))
    return "; ".join(f"{', '.join(names)} {how}" for how, names in columns_by_unit.items())


def _doubts(
    planned: Plan, part: str, entries: Entries, of_part: Mapping[str, Sequence[History]], ended: Ended
) -> Iterator[str]:
    """What makes the numbers of a part less than they seem."""
    cells = [cell for cell in planned.runs if cell.part == part]
    fewer = {(cell.config.rounds, cell.rounds) for cell in cells if cell.config.rounds < cell.rounds}
    for rounds, meant in sorted(fewer):
        yield f"These are numbers after {plural(rounds, 'round')}; the experiment has {meant}."
    undefined = [
        f"{row} {column} with {lost} of {runs_}"
        for (row, column), entry in entries.items()
        if (lost := (runs_ := len(of_part.get(row, ()))) - len(entry.values))
    ]
    if planned.experiment.divisions == 1:
        yield "All seeds share one division of the data, and no interval covers another one: --divisions 3 has three."
    if undefined:
        yield f"Not defined, and left out of the means: {', '.join(undefined)} seeds."
    runs = {cell.row: ended.get(cell.cell, ()) for cell in cells}
    yield from (f"{row}, {_draw(h)}: {why}." for row, of_row in runs.items() for h in of_row if (why := h.failure()))
    if _changed(cells, ended):
        where = {str(cell.path.parent) for cell in cells}
        yield f"Not all of these runs saw the same data: the files changed between them. Delete {', '.join(sorted(where))}, and run all again."
    if any(map(_correlates, planned.experiment.columns.values())):
        rewards = {row: _rewards(runs) for row, runs in of_part.items()}
        noise = faint(rewards)
        yield from filter(None, [alike(rewards), noise and f"≈ {noise}", measured_alone(rewards)])
    histories = [*chain(*runs.values())]
    yield from mixed_machines(histories)
    yield from releases(histories)


def _changed(cells: Sequence[PlannedRun], ended: Ended) -> bool:
    """Whether runs of one seed, one division and the same options saw different data."""
    trained = grouped(
        (
            json.dumps([cell.config.scenario_options, cell.seed], sort_keys=True),
            history.meta.get("data", {}).get("sha256"),
        )
        for cell in cells
        for history in ended.get(cell.cell, ())
        if (history.seed, division(history)) == (cell.seed, cell.config.scenario_options.get(DATA_SEED))
    )
    return any(len({*map(str, hashes)}) > 1 for hashes in trained.values())


def _settings(planned: Plan, part: str) -> str:
    """How the runs of a part were trained, in one line: of the first of its cells."""
    c = next(cell.config for cell in planned.runs if cell.part == part)
    work = f"{c.steps} local steps" if c.steps else plural(c.epochs, "local epoch")
    momentum = f", momentum {c.momentum:g}" if c.optimizer == "sgd" else ""
    others = " (the first row; others as they chose)" * any(where == part for where, _ in planned.chosen)
    options = f"({', '.join(f'{k}={v}' for k, v in c.network_options.items())})" if c.network_options else ""
    return (
        f"{c.scenario}, {c.network}{options}: {c.rounds} rounds, {work} of batch {c.batch_size}, {c.optimizer} with learning rate "
        f"{c.lr}{momentum}, weight decay {c.weight_decay:g}{others}"
    )
