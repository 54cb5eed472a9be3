"""Several runs at once: every method with every seed, side by side in a few processes."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Self

from equipoise.core.settings import simulated
from equipoise.federation import checkpoint
from equipoise.federation.history import History
from equipoise.records.directory import ORDER
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.runs.status import Watch
from equipoise.system.files import write_atomically
from equipoise.system.seals import sealed_json
from equipoise.system.threads import cores

log = logging.getLogger(__name__)

POLL = 0.2  # seconds between looks at the running processes
SELDOM = 10  # of these looks, between which lines about the runs are not due


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
    on_progress: Callable[[int, int], None] | None = None,
    lines: bool = False,
) -> list[History]:
    """Run what is not finished yet, and return every history in the order of ``configs``.

    Parameters
    ----------
    configs : the runs; a finished one of the same settings is reused, a killed one continues.
    base : directory of the comparison.
    jobs : processes at a time, >= 1. The results do not depend on it.
    on_progress : called with the rounds done and to do, over all runs.
    lines : write lines about every run to standard error, if that is no terminal.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be >= 1; found {jobs}.")
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
    if failed := complete(dict(zip(paths, configs, strict=True)), jobs, on_progress, lines=lines):
        named = "\n".join(f"{path.name}: {reason}" for path, reason in failed.items())
        rest = f"\nThe others are complete, in {base}." if len(failed) < len(paths) else ""
        raise RunError(f"{len(failed)} of {len(paths)} runs failed.\n{named}{rest}")
    return [History.from_run(path) for path in paths]


def complete(
    configs: Mapping[Path, RunConfig],
    jobs: int,
    on_progress: Callable[[int, int], None] | None = None,
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
    resume = ("resume", "--quiet", "--workers", str(max(1, cores() // jobs)), "--")
    resume = (*resume[:-1], *(("--until", str(until)) if until else ()), "--")
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

    commands = {path: [*resume, str(path)] for path in left}
    data = {path: _data(configs[path]) for path in left}
    failed = side_by_side(commands, jobs, look, data=data, kept=workers)
    watch.look()
    return failed


def _data(config: RunConfig) -> str:
    """What decides the data of a run."""
    return json.dumps([config.scenario, config.scenario_options, config.seed, config.data], sort_keys=True)


class Worker:
    """A process that runs ``equipoise`` commands one after another."""

    def __init__(self) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed below; a pipe would block the process when full)
        # -P: what lies in the current directory must not be imported in place of a module.
        command = [sys.executable, "-P", "-m", "equipoise", "work"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, encoding="utf-8"
        )

    @property
    def alive(self) -> bool:
        """Whether it can run another command."""
        return self.process.poll() is None

    def run(self, arguments: Sequence[str]) -> str | None:
        """Run a command; why it failed, if it did."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(list(arguments)) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            status, text = json.loads(answer)
            return _reason(status, text) if status else None
        status = self.process.wait()
        self.errors.seek(0)
        return _reason(status, self.errors.read().decode(errors="replace"))

    def close(self) -> None:
        """End it; it has nothing to do any more."""
        self.process.communicate()
        self.errors.close()


class Workers:
    """Processes by slot, and the data that each had last; they end with the block."""

    def __init__(self) -> None:
        self.by_slot: dict[int, Worker] = {}
        self.last: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.by_slot.values():
            if error[0] is not None:
                worker.process.terminate()
            worker.close()


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
    workers, last = kept.by_slot, kept.last
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
            if slot not in workers or not workers[slot].alive:
                workers[slot] = Worker()
            return path, workers[slot]

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
                for worker in workers.values():
                    worker.process.terminate()
            raise
    for future in serving:
        future.result()
    return {path: failed[path] for path in commands if path in failed}


def _reason(status: int, text: str) -> str:
    """What a command said last."""
    if status < 0:
        return f"killed by signal {-status}"
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("error: ").rstrip(".") if lines else f"ended with status {status}"


def _reached(path: Path, until: int | None) -> bool:
    """Whether a run has a state after so many rounds."""
    about = path / "checkpoint"
    return until is not None and checkpoint.exists(about) and checkpoint.about(about)["t"] >= until


def _rounds(path: Path) -> int:
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0
