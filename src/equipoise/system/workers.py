"""Processes that run ``equipoise`` commands, and how many of them a processor has cores for; without PyTorch, so that they start at once."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Self

from equipoise.system import trust
from equipoise.system.errors import CODE
from equipoise.system.text import Said

ISOLATED = "PYTHONSAFEPATH"  # in the environment: what :func:`python` does, for those who start Python themselves


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage while libraries are imported: there is none, and that takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def python(*arguments: str) -> list[str]:
    """The command of another process of this Python, which imports nothing from the current folder by itself."""
    return [sys.executable, "-P", *arguments]


@contextmanager
def isolated() -> Iterator[None]:
    """Let every Python that is started in the block, whoever writes its command, be one as of :func:`python`."""
    before = os.environ.get(ISOLATED)
    os.environ[ISOLATED] = "1"
    try:
        yield
    finally:
        os.environ.pop(ISOLATED) if before is None else os.environ.update({ISOLATED: before})


class Worker:
    """A process that runs ``equipoise`` commands one after another."""

    def __init__(self) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed below; a pipe would block the process when full)
        self.process = subprocess.Popen(
            python("-m", "equipoise", "work"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            encoding="utf-8",
        )

    @property
    def alive(self) -> bool:
        """Whether it can run another command."""
        return self.process.poll() is None

    def run(self, arguments: Sequence[str]) -> Said | None:
        """Run a command; why it failed, if it did, with the kind of the error as key."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([os.environ.get(trust.VARIABLE, ""), *arguments]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            status, kind, text = json.loads(answer)
            return Said(text.rstrip("."), kind) if status else None
        status = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines() or [f"ended with status {status}"]
        return Said(f"killed by signal {-status}" if status < 0 else lines[-1].rstrip("."), CODE)

    def close(self) -> None:
        """End it; it has nothing to do any more."""
        self.process.communicate()
        self.errors.close()


class Workers:
    """Processes by slot, and the data that each had last; they end with the block.

    The first ``n`` start at once, to load PyTorch while this process does, and the others when they are needed.
    """

    def __init__(self, n: int = 0) -> None:
        self.by_slot = {slot: Worker() for slot in range(n)}
        self.last: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for slot, worker in self.by_slot.items():
            if error[0] is not None or slot not in self.last:  # one without a command may still be loading
                worker.process.terminate()
        with ThreadPoolExecutor() as pool:
            [*pool.map(lambda worker: worker.close(), self.by_slot.values())]

    def worker(self, slot: int) -> Worker:
        """The process of a slot; a new one if there is none, or if it has ended."""
        if slot not in self.by_slot or not self.by_slot[slot].alive:
            self.by_slot[slot] = Worker()
        return self.by_slot[slot]
