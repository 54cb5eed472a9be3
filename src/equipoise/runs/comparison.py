"""Several runs at once: every method with every seed, side by side in a few processes."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from equipoise.core.settings import simulated
from equipoise.federation import checkpoint
from equipoise.federation.history import History
from equipoise.records.directory import CHOSEN, CONDITIONS, ORDER
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.runs.status import Watch
from equipoise.system.files import open_regular, write_atomically
from equipoise.system.seals import sealed_json
from equipoise.system.workers import Worker, Workers, cores

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # called with what is done and to do
POLL = 0.5  # seconds between looks at the running processes
SELDOM = 4  # of these looks, between which lines about the runs are not due


def directories(base: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """One run directory per configuration, inside ``base``."""
    return [base / f"{runs.slug(c.label)}-seed{c.seed}" for c in configs]


def fitting(configs: Sequence[RunConfig]) -> int:
    """How many of these runs to have at a time: as many as the processor has cores for, on a GPU one."""
    if any(config.device != "cpu" for config in configs):
        return 1
    return max(1, min(cores() // max((config.threads for config in configs), default=1), len(configs)))


def compare(
    configs: Sequence[RunConfig],
    base: Path,
    *,
    jobs: int = 1,
    on_progress: Progress | None = None,
    lines: bool = False,
    workers: Workers | None = None,
) -> list[History]:
    """Run what is not finished yet, and return every history in the order of ``configs``.

    Parameters
    ----------
    configs : the runs; a finished one of the same settings is reused, a killed one continues.
    base : directory of the comparison.
    jobs : processes at a time, >= 1. The results do not depend on it.
    on_progress : called with the rounds done and to do, over all runs.
    lines : write lines about every run to standard error, if that is no terminal.
    workers : processes that are there already; None: new ones.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be >= 1; found {jobs}.")
    if any((base / name).exists() for name in (CONDITIONS, CHOSEN)):
        raise RunError(f"{base} holds a benchmark, or a choice of settings. Choose another --name.")
    paths = directories(base, configs)
    for k, path in enumerate(paths):
        if path in paths[:k]:
            raise ValueError(f"The method {configs[k].label} is given twice. Name each once.")
    if simulated(configs[0]):
        runs.check(configs[0])
    if why := runs.assumed(configs[0]):
        log.warning("%s", why)
    begins: dict[str, RunConfig] = {}  # of each method the first seed, as of configs[0]
    for config, path in zip(configs, paths, strict=True):
        if not runs.finished(path):
            begins.setdefault(config.label, config)
    if begins:
        runs.check_networks([*begins.values()])
    for label, config in begins.items():
        for why in runs.doubts(config):
            log.warning("%s: %s", label, why)
    for config, path in zip(configs, paths, strict=True):
        runs.start(config, path)
    write_atomically(base / ORDER, sealed_json({"runs": [path.name for path in paths]}))
    if failed := complete(dict(zip(paths, configs, strict=True)), jobs, on_progress, lines=lines, workers=workers):
        named = "\n".join(f"{path.name}: {reason}" for path, reason in failed.items())
        rest = f"\nThe others are complete, in {base}." if len(failed) < len(paths) else ""
        raise RunError(f"{len(failed)} of {len(paths)} runs failed.\n{named}{rest}")
    return [History.from_run(path) for path in paths]


def complete(
    configs: Mapping[Path, RunConfig],
    jobs: int = 1,
    on_progress: Progress | None = None,
    *,
    lines: bool = False,
    until: int | None = None,
    workers: Workers | None = None,
) -> dict[Path, str]:
    """Run to the end what the directories describe, or ``until`` so many rounds; why those that failed did.

    Runs on the same data follow one another in one process, which reads the data once.

    Parameters
    ----------
    configs : by the directory of the run, begun by :func:`equipoise.runs.directory.start`; a finished one is left as it is.
    jobs : processes at a time, >= 1.
    on_progress : called with the rounds done and to do, over all runs.
    lines : write lines about every run to standard error, if that is no terminal.
    until : rounds after which a run pauses; None: it goes to its end.
    workers : processes that are kept for further calls; None: new ones.
    """
    resume = ["resume", "--quiet", "--workers", str(max(1, cores() // jobs))]
    resume += ["--until", str(until)] if until else []
    left = [path for path in configs if not (runs.finished(path) or _reached(path, until))]
    watch = Watch([*configs], lines, jobs)
    ended: dict[Path, int] = {}  # their records are read once: of many long runs they are much
    total, polls = sum(min(config.rounds, until or config.rounds) for config in configs.values()), itertools.count()

    def look(_: int) -> None:
        if next(polls) % SELDOM == 0:
            watch.look()
        if on_progress is not None:
            ended.update({path: _rounds(path) for path in configs if path not in ended and runs.finished(path)})
            on_progress(sum(ended.get(path) or _rounds(path) for path in configs), total)

    commands = {path: [*resume, "--", str(path)] for path in left}
    of_data = {path: [c.scenario, c.scenario_options, c.seed, c.data] for path, c in configs.items()}
    data = {path: json.dumps(of_data[path], sort_keys=True) for path in left}
    failed = side_by_side(commands, jobs, look, data=data, kept=workers)
    watch.look()
    return failed


def side_by_side(
    commands: Mapping[Path, Sequence[str]],
    jobs: int,
    on_poll: Callable[[int], None] | None = None,
    *,
    data: Mapping[Path, str] | None = None,
    kept: Workers | None = None,
) -> dict[Path, str]:
    """Run an ``equipoise`` command for each path, some at a time; why those that failed did.

    Parameters
    ----------
    commands : the arguments, by path.
    jobs : processes at a time, >= 1.
    on_poll : called after each look at the processes with the number of commands that have ended.
    data : what data the command of each path needs; a process prefers those that it had last, then those that no other has.
    kept : processes that are kept for further calls; None: new ones.
    """
    if kept is None:
        with Workers() as own:
            return side_by_side(commands, jobs, on_poll, data=data, kept=own)
    needed = dict.fromkeys(commands, "") | dict(data or {})
    waiting, ended, failed = list(commands), list[Path](), dict[Path, str]()
    last = kept.last
    lock = threading.Lock()

    def take(slot: int) -> tuple[Path, Worker] | None:
        with lock:
            if not waiting:
                return None
            others = {kind for k, kind in last.items() if k != slot}
            runs_on = Counter(needed[path] for path in waiting)

            def cost(path: Path) -> tuple[bool, bool, int]:
                kind = needed[path]
                return kind != last.get(slot), kind in others, -runs_on[kind]

            path = min(waiting, key=cost)  # the first of those that are alike
            waiting.remove(path)
            last[slot] = needed[path]
            return path, kept.worker(slot)

    def serve(slot: int) -> None:
        while (taken := take(slot)) is not None:
            path, worker = taken
            if (reason := worker.run(commands[path])) is not None:
                failed[path] = reason
            ended.append(path)

    if not commands:
        return {}
    with ThreadPoolExecutor(min(jobs, len(commands))) as pool:
        serving = [pool.submit(serve, slot) for slot in range(min(jobs, len(commands)))]
        try:
            while True:
                left = wait(serving, POLL).not_done
                if on_poll is not None:
                    on_poll(len(ended))
                if not left:
                    break
        except BaseException:
            with lock:
                waiting.clear()
                for worker in kept.by_slot.values():
                    worker.process.terminate()
            raise
    for future in serving:
        future.result()
    return {path: failed[path] for path in commands if path in failed}


def _reached(path: Path, until: int | None) -> bool:
    """Whether a run has a state after so many rounds."""
    about = path / "checkpoint"
    return until is not None and checkpoint.exists(about) and checkpoint.about(about)["t"] >= until


def _rounds(path: Path) -> int:
    try:
        with open_regular(path / "metrics.jsonl") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0
