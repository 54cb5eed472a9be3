"""An experiment of a paper planned and run, one run after another, each kept where every experiment that needs it finds it."""

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any, Unpack

from equipoise import scenarios
from equipoise.data.contents import DataError
from equipoise.federation.history import History
from equipoise.records.meta import Content
from equipoise.report.reproduction import Chosen, Tried
from equipoise.runs import choosing, directory as runs, experiment as papers
from equipoise.runs.configuration import Layer, RunConfig, called, layered
from equipoise.runs.experiment import ColumnGroup, Condition, PaperExperiment, Row, read_experiment
from equipoise.runs.plan import Cell, How, Outcome, finish
from equipoise.scenarios.scenario import CLASSIFICATION, kind_of
from equipoise.system import files, hashes, own_code
from equipoise.system.errors import InputError, RunError
from equipoise.system.grouping import grouped

Draw = tuple[int, int | None]  # a seed, and the number of the division of the data, None for the seed's own


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment, where it is kept, and of how many rounds the experiment is."""

    part: str
    row: str
    seed: int
    config: RunConfig
    path: Path
    rounds: int

    @property
    def cell(self) -> tuple[str, str]:
        """The part and the row."""
        return self.part, self.row


@dataclass(frozen=True)
class Candidate:
    """Settings that a row may take, the trial runs that decide whether it does, and its runs if so."""

    settings: Mapping[str, Any]
    trials: tuple[PlannedRun, ...]
    runs: tuple[PlannedRun, ...]


@dataclass(frozen=True)
class ReproductionPlan:
    """The runs of an experiment, and the cells that cannot be run, with the reason.

    ``candidates`` are those of cells that choose, which have the first one's runs until ``chosen`` says what became of all. A
    ``trial`` has fewer rounds or seeds than the experiment, to try it; ``reads`` says whether it is of the user's files. ``calibration`` has
    the rows that say whether the divisions are the paper's, which are run first; ``asked`` says whether they are, or only read.
    """

    experiment: PaperExperiment
    runs: tuple[PlannedRun, ...]
    skipped: Mapping[tuple[str, str], str] = field(default_factory=dict)
    embedded: bool = False
    published: Mapping[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)
    candidates: Mapping[tuple[str, str], tuple[Candidate, ...]] = field(default_factory=dict)
    chosen: Mapping[tuple[str, str], Chosen] = field(default_factory=dict)
    trial: bool = False
    reads: bool = True
    calibration: "ReproductionPlan | None" = None
    asked: bool = True

    def seeds(self, part: str, rows: Iterable[str]) -> set[int]:
        """The seeds that all of some rows have in a part."""
        every = [{run.seed for run in self.runs if run.cell == (part, row)} for row in rows]
        return set.intersection(*every) if every else set()

    @property
    def first(self) -> tuple[PlannedRun, ...]:
        """The runs that calibrate, unless only other rows were asked for."""
        return self.calibration.runs if self.calibration is not None and self.asked else ()

    @property
    def trials(self) -> tuple[PlannedRun, ...]:
        """The trial runs of all candidates."""
        return tuple(run for several in self.candidates.values() for c in several for run in c.trials)


def plan(
    name: str,
    base: Path,
    *,
    data: str | None = None,
    embedded: bool = False,
    quick: bool = False,
    seeds: int | None = None,
    divisions: int | None = None,
    parts: Sequence[str] = (),
    rows: Sequence[str] = (),
    calibrating: PaperExperiment | None = None,
    **choices: Any,
) -> ReproductionPlan:
    """Say which runs an experiment takes, and where each is kept.

    Parameters
    ----------
    name : as in ``experiment_names()``, or a file.
    base : the directory of all experiments' runs, which share what they have in common.
    data : the folder with the real data sets.
    embedded : take the stand-ins that need no files.
    quick : take the rounds and seeds that the file has for a quick trial.
    seeds : how many, 0, 1, ...; None for as many as the file says.
    divisions : how many divisions of the data there are, each with all seeds; None for as many as the file says.
    parts, rows : names of those to run; empty for all.
    calibrating : what is planned in place of what the file says, without anything that calibrates it.
    choices : fields of :class:`equipoise.runs.configuration.RunConfig` that win over the file's, such as ``rounds=2``; and ``weights``, a file
        that the networks start from.

    Raises
    ------
    InputError : an unknown part or row, or nothing to run.
    ValueError : a setting that does not fit.
    """
    experiment = calibrating or read_experiment(name)
    if divisions is not None:
        experiment = experiment.model_copy(update={"divisions": divisions})
    _check_data(experiment, name, data, embedded)
    if quick:
        if (quick_trial := experiment.quick) is None:
            raise InputError(f"{name} has no quick trial in its file. Give --rounds and --seeds instead.")
        seeds, choices = quick_trial.seeds, {**choices, "rounds": quick_trial.rounds}
    _check_asked(experiment, name, seeds, parts, rows)
    if data is not None and not embedded:
        _check_files(name, experiment, data, parts)
    planned: list[PlannedRun] = []
    skipped: dict[tuple[str, str], str] = {}
    candidates: dict[tuple[str, str], tuple[Candidate, ...]] = {}
    choice = experiment.choice
    for part, row in _rows(experiment, parts, rows, embedded):
        if why := experiment.why_left_out(part, row, embedded=embedded):
            skipped[part.name, row.name] = why
            continue
        read = data if part.scenario in experiment.reads and not embedded else None
        cells = partial(_cells, base, part, part.condition(embedded=embedded), read)
        numbers = _draws(seeds or experiment.seeds_of(part, row), experiment.divisions)
        if choice is None or not row.choose:
            planned += cells(row, numbers, choices)
            continue
        trials = _draws(choice.seeds, experiment.divisions)
        fewer = [n for n in (choice.rounds, choices.get("rounds")) if n is not None]
        tried, held_out = {**choices, "rounds": min(fewer, default=None)}, {"validation": choice.validation}
        several = tuple(
            Candidate(own, cells(row.taking(own | held_out), trials, tried), cells(row.taking(own), numbers, choices))
            for own in row.candidates
        )
        candidates[part.name, row.name] = several
        planned += several[0].runs
    if not planned:
        reasons = "; ".join(dict.fromkeys(skipped.values()))
        raise InputError(f"{name}: nothing to run{f': {reasons}' if reasons else ''}.")
    trial = quick or any(run.config.rounds < run.rounds for run in planned)
    reads, first = bool(experiment.reads) and not embedded, None
    if calibrating is None and reads and (calibration := _calibration(experiment, name, planned)):
        by, other = calibration
        first = plan(by.of or name, base, data=data, seeds=seeds, rows=by.rows, calibrating=other, **choices)
    return _decided(
        ReproductionPlan(
            experiment, tuple(planned), skipped, embedded, papers.published(name), candidates,
            trial=trial, reads=reads, calibration=first, asked=not rows,
        )
    )  # fmt: skip


def _check_data(experiment: PaperExperiment, name: str, data: str | None, embedded: bool) -> None:
    """Require that it is said where the data are, of an experiment whose data are not embedded, and only of that."""
    if not experiment.reads:
        if embedded:
            raise InputError(f"{name}: its data are embedded already. Leave --embedded out.")
        scenarios.folder(experiment.part[0].scenario, data)
    elif not embedded and data is None:
        stands = not all(experiment.left_out(part, embedded=True) for part in experiment.part)
        instead = ", or take the stand-ins that need no download, with --embedded" * stands
        raise InputError(
            f"{name} trains on the data of the paper ({', '.join(experiment.reads)}): say where they are, with --data DIR{instead}."
        )


def _check_asked(
    experiment: PaperExperiment, name: str, seeds: int | None, parts: Sequence[str], rows: Sequence[str]
) -> None:
    """Require parts and rows that there are, and seeds that no trial run takes."""
    choice = experiment.choice
    if choice is not None and seeds and min(choice.seeds) < seeds:
        raise InputError(
            f"{name}: --seeds {seeds} takes in the seeds of its trial runs, {choice.seeds}. Give at most {min(choice.seeds)}."
        )
    _require(name, "part", parts, [part.name for part in experiment.part])
    _require(name, "row", rows, [row.name for row in experiment.row])


def _require(where: str, kind: str, names: Iterable[str], allowed: Sequence[str]) -> None:
    for problem in papers.strange(where, kind, names, allowed):
        raise InputError(problem)


def _rows(
    experiment: PaperExperiment, parts: Sequence[str], rows: Sequence[str], embedded: bool
) -> Iterator[tuple[ColumnGroup, Row]]:
    """The rows that are asked for in each part; of a part without embedded data all, as none is run."""
    for part in experiment.part:
        if not parts or part.name in parts:
            everything = not rows or experiment.left_out(part, embedded=embedded)
            yield from ((part, row) for row in experiment.of(part) if everything or row.name in rows)


def _calibration(
    experiment: PaperExperiment, name: str, planned: Sequence[PlannedRun]
) -> tuple[papers.Calibration, PaperExperiment] | None:
    """The rows that say whether the divisions are the paper's, and the experiment that has them on our data; None where there are none."""
    if (by := experiment.calibration) is None:
        return None
    other, of_ours = read_experiment(by.of or name), {run.part for run in planned}
    fixed = [row.name for row in other.row if not row.choose]
    _require(f"{name}: calibration", "column", [by.column], [*other.columns])
    _require(f"{name}: calibration", "row", by.rows, fixed)
    of_both = of_ours & {p.name for p in other.part if {*by.rows} & {row.name for row in other.of(p)}}
    same = [part for part in experiment.part if part.name in of_both]  # their rows on our data
    update = {"part": same, "divisions": experiment.divisions, "seeds": experiment.seeds}
    return (by, other.model_copy(update=update)) if same else None


def _draws(seeds: int | Sequence[int], divisions: int | None) -> list[Draw]:
    """Every seed with every division of the data, or with that of its own."""
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    return [(seed, division) for division in (range(divisions) if divisions else [None]) for seed in numbers]


def _check_files(name: str, experiment: PaperExperiment, data: str, parts: Sequence[str]) -> None:
    """Require the files of all parts that are asked for, and say of all at once what is missing."""
    problems, whole = dict[str, None](), list[str]()
    for part in experiment.part:
        if part.scenario in experiment.reads and (not parts or part.name in parts):
            try:
                scenarios.describe(part.scenario, data, **part.condition(embedded=False).options)
                whole += ["--part", part.name]
            except DataError as error:
                problems[str(error)] = None
    if problems:
        command = shlex.join(["equipoise", "reproduce", name, "--data", data, *whole])
        enough = f"\nOf the experiment there is enough for: `{command}`" * bool(whole)
        raise InputError("\n".join(problems) + enough)


def _cells(
    base: Path, part: ColumnGroup, condition: Condition, data: str | None, row: Row, draws: list[Draw], choices: Content
) -> tuple[PlannedRun, ...]:
    options = {**condition.options, **row.options}
    described = scenarios.describe(condition.scenario, data, **options)
    if kind_of(described.task) != CLASSIFICATION:
        raise InputError(
            f"part {part.name}: {condition.scenario} has numbers to predict, and the tables of experiments are of accuracies, in percent. "
            "Compare methods on it without an experiment: equipoise compare --help."
        )
    weights, network = choices.get("weights"), dict[str, Any]()
    if condition.network is not None:
        name, options = called("network", condition.network, "resnet10(width=64)")
        network = {"network": name, "network_options": {**options, **({"weights": weights} if weights else {})}}
    elif weights:
        raise InputError(
            f"part {part.name}: {condition.scenario} has a network of its own here, which takes no weights, and --weights "
            "would do nothing. Leave it out."
        )
    of_data = {"scenario": condition.scenario, "data": data, "scenario_options": condition.options}
    of_part = Layer("part", {**of_data, **condition.train, **part.set}, shared=True)
    typed = Layer("command line", {**{k: v for k, v in choices.items() if k != "weights"}, **network})
    meant = {"rounds": described.protocol.rounds, **condition.train, **row.train}["rounds"]
    planned = []
    for seed, division in draws:
        own = row.options if division is None else {**row.options, scenarios.DATA_SEED: division}
        named = {"method": row.method, "label": row.name, "seed": seed, "scenario_options": own}
        config = layered([of_part, Layer("row", {**named, **row.train, **row.set}), typed])[0]
        place = _place(base / "cells" / condition.scenario, config)
        planned.append(PlannedRun(part.name, row.name, config.seed, config, place, meant))
    return tuple(planned)


def _place(where: Path, config: RunConfig) -> Path:
    """The directory of a run: named by all that decides its result, so that every experiment that needs the run finds it.

    The user's code counts by its content, and data do not: a run says itself whether it saw others. Earlier versions counted where
    both are.
    """
    before = where / _stem(config)
    return before if before.exists() else where / _stem(runs.elsewhere(config))


def _stem(config: RunConfig) -> str:
    about = {name: value for name, value in config.key().items() if name != "label"}
    if config.weights is not None and config.weights.is_file():
        about["weights"] = hashes.file_hash(config.weights)  # the file's path says little
    content = json.dumps(about, sort_keys=True)
    name = runs.slug(own_code.short(config.method).split("(")[0])
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:10]}-seed{config.seed}"


def choose(planned: ReproductionPlan, **how: Unpack[How]) -> ReproductionPlan:
    """Run the trial runs that are missing, and take for every cell that chooses the candidate with the best validation.

    ``how`` they are run: ``jobs``, ``on_progress`` and ``lines``, see :class:`equipoise.runs.plan.How`.
    A candidate with a trial run that failed is out; a cell without any left is skipped, with the reason.
    """
    return _decided(planned, _completed(planned.trials, **how))


def _decided(planned: ReproductionPlan, failed: Mapping[Path, str] | None = None) -> ReproductionPlan:
    """The same with the choices that can be made: of cells whose trial runs all have ended."""
    ended = {run.path for run in planned.trials if runs.finished(run.path)} | (failed or {}).keys()
    chosen, skipped = dict(planned.chosen), dict(planned.skipped)
    runs_of: dict[tuple[str, str], Sequence[PlannedRun]] = {**grouped((run.cell, run) for run in planned.runs)}
    for (part, row), candidates in planned.candidates.items():
        if (part, row) in chosen or not {run.path for c in candidates for run in c.trials} <= ended:
            continue
        title = next(p.title or p.name for p in planned.experiment.part if p.name == part)
        by = "samples" if planned.experiment.choice is None else planned.experiment.choice.by
        tried = tuple(_tried(c, by, failed or {}) for c in candidates)
        chosen[part, row] = choice = Chosen(part, title, row, tried)
        runs_of[part, row] = () if choice.taken is None else candidates[tried.index(choice.taken)].runs
        if choice.taken is None:
            skipped[part, row] = f"each candidate's trial runs failed, those of {tried[0]} with {tried[0].why}"
    return replace(planned, runs=tuple(chain.from_iterable(runs_of.values())), chosen=chosen, skipped=skipped)


def _tried(candidate: Candidate, by: str, failed: Mapping[Path, str]) -> Tried:
    """The mean over trial runs of a criterion on what clients held out."""
    scores = []
    for trial in candidate.trials:
        why = failed.get(trial.path, "").partition(". ")[0]
        outcome = Outcome(Cell(trial, trial.config, trial.path), RunError(why) if why else None)
        result = choosing.judged([outcome], by, trial.rounds)
        if result.failed:
            return Tried(candidate.settings, math.nan, f"seed {trial.seed}: {result.failed}")
        scores.append(result.scores[by])
    return Tried(candidate.settings, mean(scores))


def run(planned: ReproductionPlan, **how: Unpack[How]) -> dict[tuple[str, str], str]:
    """Run what is missing, as :func:`choose` does; why those that failed did, by part and row.

    A finished run of the same settings is taken as it is, whichever experiment made it; a killed one goes on from its last
    complete round.
    """
    failed = _completed(planned.runs, **how)
    reasons = grouped((run.cell, f"seed {run.seed}: {failed[run.path]}") for run in planned.runs if run.path in failed)
    return {cell: first for cell, (first, *_) in reasons.items()}


def _completed(planned: Sequence[PlannedRun], **how: Unpack[How]) -> dict[Path, str]:
    cells = {run.path: Cell((run.part, run.row, run.seed), run.config, run.path) for run in planned}
    for path, cell in cells.items():  # two rows may be the same run
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(path.parent / f".{path.name}.lock", wait=True):
            runs.start(cell.config, path)
    return {outcome.cell.folder: outcome.why for outcome in finish([*cells.values()], **how) if outcome.why}


def histories(planned: ReproductionPlan) -> dict[tuple[str, str], list[History]]:
    """The finished runs, by part and row, in the order of the seeds."""
    ended = {cell: [History.from_run(path) for path in paths] for cell, paths in directories(planned).items()}
    # An experiment that shares a run may call it otherwise.
    return {cell: [replace(h, meta={**h.meta, "label": cell[1]}) for h in of_row] for cell, of_row in ended.items()}


def directories(planned: ReproductionPlan) -> dict[tuple[str, str], list[Path]]:
    """Where the finished runs are, by part and row, in the order of the seeds."""
    return grouped((run.cell, run.path) for run in planned.runs if runs.finished(run.path))
