"""Several runs at once: every method with every seed, side by side in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from equipoise.federation.history import History
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.system.files import write_atomically
from equipoise.system.threads import cores

ORDER = "comparison.json"  # the runs of a comparison, the reference first
POLL = 0.2  # seconds between looks at the running processes


def directories(base: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """One run directory per configuration, inside ``base``."""
    return [base / f"{runs.slug(c.label)}-seed{c.seed}" for c in configs]


def members(base: Path) -> list[Path]:
    """Runs inside a directory: those of its comparison in the order they were named, else by name."""
    if any((base / name).exists() for name in ("config.toml", "manifest.json")):  # a run from Python has no config
        return [base]
    if (base / ORDER).exists():
        return [base / name for name in json.loads((base / ORDER).read_text(encoding="utf-8"))]
    return sorted(path.parent for path in base.glob("*/config.toml"))


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
) -> list[History]:
    """Run what is not finished yet, and return every history in the order of ``configs``.

    Parameters
    ----------
    configs : the runs; a finished one of the same settings is taken as it is, a killed one goes on.
    base : directory of the comparison.
    jobs : processes at a time, >= 1. The results do not depend on it.
    on_progress : called with the rounds done and to do, over all runs.

    Raises
    ------
    RunError : some runs failed; the others are complete, and the same command goes on from there.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be >= 1; found {jobs}.")
    paths = directories(base, configs)
    for k, path in enumerate(paths):
        if path in paths[:k]:
            raise ValueError(f"The method {configs[k].label} is given twice. Name each once.")
    for config, path in zip(configs, paths, strict=True):
        runs.start(config, path)
    write_atomically(base / ORDER, json.dumps([path.name for path in paths], indent=1))
    total = sum(c.rounds for c in configs)
    failed = complete(paths, jobs, None if on_progress is None else lambda done: on_progress(done, total))
    if failed:
        named = "; ".join(f"{path.name}: {reason}" for path, reason in failed.items())
        raise RunError(
            f"{len(failed)} of {len(paths)} runs failed. {named}. The others are complete; the same command goes on from there."
        )
    return [History.from_run(path) for path in paths]


def complete(paths: Sequence[Path], jobs: int, on_progress: Callable[[int], None] | None = None) -> dict[Path, str]:
    """Run to the end what the directories describe; why those that failed did.

    Parameters
    ----------
    paths : directories of runs, each begun by :func:`equipoise.runs.directory.start`; a finished one is left as it is.
    jobs : processes at a time, >= 1.
    on_progress : called with the rounds done over all runs.
    """
    resume = ("resume", "--quiet", "--workers", str(max(1, cores() // jobs)), "--")
    return side_by_side(
        {path: [*resume, str(path)] for path in paths if not runs.finished(path)},
        jobs,
        None if on_progress is None else lambda _: on_progress(sum(_rounds(path) for path in paths)),
    )


def side_by_side(
    commands: Mapping[Path, Sequence[str]], jobs: int, on_poll: Callable[[int], None] | None = None
) -> dict[Path, str]:
    """Run an ``equipoise`` command for each path in a process of its own; why those that failed did.

    Parameters
    ----------
    commands : the arguments, by path.
    jobs : processes at a time, >= 1.
    on_poll : called after each look at the processes with the number of those that have ended.
    """
    waiting = list(commands)
    running: dict[Path, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    failed: dict[Path, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                path = waiting.pop(0)
                # -P: what lies in the current directory must not be imported in place of a module.
                command = [sys.executable, "-P", "-m", "equipoise", *commands[path]]
                errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed below; a pipe would block the child when full)
                running[path] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors), errors
            time.sleep(POLL)
            for path, (process, said) in list(running.items()):
                if process.poll() is not None:
                    del running[path]
                    with said:
                        if process.returncode:
                            failed[path] = _reason(process.returncode, said)
            if on_poll is not None:
                on_poll(len(commands) - len(waiting) - len(running))
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, said in running.values():
            process.wait()
            said.close()
    return failed


def _reason(status: int, errors: IO[bytes]) -> str:
    """What a child process said last."""
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip().splitlines()
    if status < 0:
        return f"killed by signal {-status}"
    return said[-1].removeprefix("error: ").rstrip(".") if said else f"ended with status {status}"


def _rounds(path: Path) -> int:
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0
