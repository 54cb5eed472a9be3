"""An experiment of a paper planned and run, one run after another, each kept where every experiment that needs it finds it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.data.locations import digest
from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.runs import directory as runs
from equipoise.runs.comparison import complete
from equipoise.runs.configuration import RunConfig, called, configure
from equipoise.runs.experiment import (
    ColumnGroup,
    Condition,
    ExperimentError,
    PaperExperiment,
    Row,
    published,
    read_experiment,
)
from equipoise.system import own_code
from equipoise.system.files import locked
from equipoise.system.suggestions import unknown


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment and where it is kept."""

    part: str
    row: str
    seed: int
    config: RunConfig
    path: Path


@dataclass(frozen=True)
class ReproductionPlan:
    """The runs of an experiment, and the cells that cannot be run, with the reason."""

    experiment: PaperExperiment
    runs: tuple[PlannedRun, ...]
    skipped: Mapping[tuple[str, str], str] = field(default_factory=dict)
    embedded: bool = False
    published: Mapping[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Rounds of all runs together."""
        return sum(run.config.rounds for run in self.runs)


def plan(
    name: str,
    base: Path,
    *,
    data: str | None = None,
    embedded: bool = False,
    seeds: int | None = None,
    parts: Sequence[str] = (),
    rows: Sequence[str] = (),
    **choices: Any,
) -> ReproductionPlan:
    """Say which runs an experiment takes, and where each is kept.

    Parameters
    ----------
    name : as in ``experiment_names()``, or a file.
    base : the directory of all experiments' runs, which share what they have in common.
    data : the folder with the real data sets.
    embedded : take the stand-ins that need no files.
    seeds : how many, 0, 1, ...; None for as many as the file says.
    parts, rows : names of those to run; empty for all.
    choices : fields of :class:`equipoise.runs.configuration.RunConfig` that win over the file's, such as ``rounds=2``; and ``weights``, a file
        that the networks start from.

    Raises
    ------
    ExperimentError : an unknown part or row, or nothing to run.
    ValueError : a setting that does not fit.
    """
    experiment = read_experiment(name)
    if not embedded and data is None:
        reads = dict.fromkeys(part.scenario for part in experiment.part)
        raise ExperimentError(
            f"{name} trains on the data of the paper ({', '.join(reads)}): say where they are, with --data DIR, or take the "
            "stand-ins that need no download, with --embedded."
        )
    for what, asked, there in (
        ("part", parts, [part.name for part in experiment.part]),
        ("row", rows, [row.name for row in experiment.row]),
    ):
        for one in asked:
            if one not in there:
                raise ExperimentError(f"{name}: {unknown(what, one, there)}")
    planned: list[PlannedRun] = []
    skipped: dict[tuple[str, str], str] = {}
    for part in experiment.part:
        if parts and part.name not in parts:
            continue
        if embedded and part.embedded is None:
            skipped |= {
                (part.name, row.name): "there is no embedded stand-in for these data" for row in experiment.of(part)
            }
            continue
        condition = part.condition(embedded=embedded)
        for row in experiment.of(part):
            if rows and row.name not in rows:
                continue
            if row.skip:
                skipped[part.name, row.name] = row.skip
                continue
            for seed in range(seeds or experiment.seeds):
                config = _config(part, condition, row, seed, None if embedded else data, choices)
                planned.append(
                    PlannedRun(part.name, row.name, seed, config, base / "cells" / config.scenario / _stem(config))
                )
    if not planned:
        reasons = "; ".join(dict.fromkeys(skipped.values()))
        raise ExperimentError(f"{name}: nothing to run{f': {reasons}' if reasons else ''}.")
    return ReproductionPlan(experiment, tuple(planned), skipped, embedded, published(name))


def _config(
    part: ColumnGroup, condition: Condition, row: Row, seed: int, data: str | None, choices: Mapping[str, Any]
) -> RunConfig:
    has = parse(row.method).parts
    overrides = {key: value for key, value in part.set.items() if key.split(".", 1)[0] in has} | row.set
    weights = choices.get("weights")
    chosen = {k: v for k, v in choices.items() if v is not None and k != "weights"}
    settings: dict[str, Any] = {**condition.train, **row.train, **chosen}
    if condition.network is not None:
        network, options = called("network", condition.network, "resnet10(width=64)")
        settings |= {"network": network, "network_options": {**options, **({"weights": weights} if weights else {})}}
    elif weights:
        raise ExperimentError(
            f"part {part.name}: {condition.scenario} has a network of its own here, which takes no weights, and --weights "
            "would do nothing. Leave it out."
        )
    options = {**condition.options, **row.options}
    config = configure(
        row.method, condition.scenario, overrides=overrides, seed=seed, scenario_options=options, data=data, **settings
    )
    return replace(config, label=row.name)


def _stem(config: RunConfig) -> str:
    """A name for all that decides a run's result, so that every experiment that needs the run finds it."""
    about = {name: value for name, value in config.table().items() if name != "label"}
    if config.weights is not None:
        about["weights"] = _digest(config.weights, config.weights.stat().st_mtime_ns)  # the file's path says little
    content = json.dumps(about, sort_keys=True)
    name = runs.slug(own_code.short(config.method).split("(")[0])
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:10]}-seed{config.seed}"


@lru_cache(maxsize=2)
def _digest(path: Path, changed: int) -> str:
    """Checksum of a file, made once for all cells; ``changed`` is its time of change."""
    return digest(path)


def run(
    planned: ReproductionPlan, *, jobs: int = 1, on_progress: Callable[[int, int], None] | None = None
) -> dict[tuple[str, str], str]:
    """Run what is missing, every one in a process of its own; why those that failed did, by part and row.

    A finished run of the same settings is taken as it is, whichever experiment made it; a killed one goes on from its last
    complete round.
    """
    own = {one.path: one.config for one in planned.runs}  # two rows may be the same run
    for path, config in own.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent / f".{path.name}.lock", wait=True):
            runs.start(config, path)
    total = sum(config.rounds for config in own.values())
    failed = complete(list(own), jobs, None if on_progress is None else lambda done: on_progress(done, total))
    reasons: dict[tuple[str, str], str] = {}
    for one in planned.runs:
        if one.path in failed:
            reasons.setdefault((one.part, one.row), f"seed {one.seed}: {failed[one.path]}")
    return reasons


def histories(planned: ReproductionPlan) -> dict[tuple[str, str], list[History]]:
    """The finished runs, by part and row, in the order of the seeds."""
    found: dict[tuple[str, str], list[History]] = {}
    for one in planned.runs:
        if runs.finished(one.path):
            run = History.from_run(one.path)
            # An experiment that shares the run may call it otherwise.
            found.setdefault((one.part, one.row), []).append(replace(run, meta={**run.meta, "label": one.row}))
    return found


def directories(planned: ReproductionPlan) -> dict[tuple[str, str], list[Path]]:
    """Where the finished runs are, by part and row, in the order of the seeds."""
    found: dict[tuple[str, str], list[Path]] = {}
    for one in planned.runs:
        if runs.finished(one.path):
            found.setdefault((one.part, one.row), []).append(one.path)
    return found
