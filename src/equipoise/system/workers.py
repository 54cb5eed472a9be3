"""Processes that call functions of this package, and how many of them a processor has cores for; without PyTorch, so that they start at once."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from equipoise.system import trust
from equipoise.system.errors import CODE, MEMORY, RunError
from equipoise.system.gpus import Room

log = logging.getLogger(__name__)

PER_DEVICE = "-per-device"  # behind the number of calls at a time of each device
ISOLATED = "PYTHONSAFEPATH"  # in the environment: what :func:`python` does, for those who start Python themselves


def read_jobs(jobs: str) -> tuple[int, bool]:
    """How many calls at a time a text such as ``2`` or ``2-per-device`` states, and whether that is on each device.

    Raises
    ------
    ValueError : neither.
    """
    number = jobs.removesuffix(PER_DEVICE)
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"--jobs {jobs}: expected a number >= 1, or one for each of --devices, 2{PER_DEVICE}.")
    return int(number), number != jobs


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


def again() -> list[str]:
    """The command of this process, for others that do the same."""
    return [sys.executable, *sys.orig_argv[1:]]


@contextmanager
def isolated() -> Iterator[None]:
    """Let every Python that is started in the block, whoever writes its command, be one as of :func:`python`."""
    before = os.environ.get(ISOLATED)
    os.environ[ISOLATED] = "1"
    try:
        yield
    finally:
        os.environ.pop(ISOLATED) if before is None else os.environ.update({ISOLATED: before})


def line_of(function: Callable[..., object], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """A call of a function of a module, with arguments that JSON has, as ``equipoise work`` reads it."""
    name = f"{function.__module__}:{function.__qualname__}"
    return json.dumps([os.environ.get(trust.VARIABLE, ""), name, arguments, keywords])


class Worker:
    """A process that calls functions of this package one after another."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = {**(environment or {})}
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed below; a pipe would block the process when full)
        self.process = subprocess.Popen(
            python("-m", "equipoise", "work"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            encoding="utf-8",
            env={**os.environ, **self.environment},
        )

    @property
    def alive(self) -> bool:
        """Whether it can call another function."""
        return self.process.poll() is None

    def call(self, function: Callable[..., object], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Call a function of a module, with arguments that JSON has.

        Raises
        ------
        RunError : with the kind and the text of the error there, or how the process has ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{line_of(function, arguments, keywords)}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            status, kind, text = json.loads(answer)
        else:
            status, kind = self.process.wait(), CODE
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip().splitlines() or [f"ended with status {status}"]
            text = f"killed by signal {-status}" if status < 0 else lines[-1]
        if status or not answer:
            raise RunError(text.rstrip("."), kind)

    def close(self) -> None:
        """End it; it has nothing to do any more."""
        if not self.errors.closed:
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

    def worker(self, slot: int, environment: Mapping[str, str] | None = None) -> Worker:
        """The process of a slot; a new one if there is none, if it has ended, or if it has not these variables."""
        worker = self.by_slot.get(slot)
        if worker is not None and worker.alive and worker.environment != {**(environment or {})}:
            worker.process.terminate()
            worker.close()
        if worker is None or not worker.alive:
            worker = self.by_slot[slot] = Worker(environment)
        return worker


class Processes(ThreadPoolExecutor):
    """Calls functions in processes, some at a time; those that need the same data follow one another in one process, which reads the data once.

    Parameters
    ----------
    jobs : processes at a time, >= 1. No result depends on it.
    kept : processes that are kept for further calls; None: new ones.
    rooms : GPUs, of which each process sees one; the first argument of a call is then the folder of its run.
    """

    def __init__(self, jobs: int, kept: Workers | None = None, rooms: Sequence[Room] = ()) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be >= 1; found {jobs}.")
        super().__init__(jobs)
        self.jobs, self.free, self.own = jobs, {*range(jobs)}, kept is None
        self.kept, self.rooms = kept or Workers(), rooms
        self.waiting: dict[Future[Any], tuple[Callable[..., object], Sequence[Any], Mapping[str, Any]]] = {}
        self.lock, self.stopped = threading.Lock(), False

    def submit(self, function: Callable[..., object], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call a function of a module with arguments that JSON has; ``needs``, one of its keywords, is what data it reads."""
        future: Future[Any] = Future()
        with self.lock:
            self.waiting[future] = function, arguments, keywords
        super().submit(self._serve)
        return future

    def _serve(self) -> None:
        """Call one of the functions that wait in a free process."""
        with self.lock:
            if not self.waiting:  # they were stopped
                return
            slot, last = min(self.free), self.kept.last
            others = {needs for k, needs in last.items() if k != slot}
            needs = {future: str(keywords.get("needs", "")) for future, (*_, keywords) in self.waiting.items()}
            # the first of those whose data this process had last, else of those whose data no other had
            future = min(needs, key=lambda future: (needs[future] != last.get(slot), needs[future] in others))
            call = self.waiting.pop(future)
            last[slot] = needs[future]
            self.free.remove(slot)
        try:
            self._call(slot, *call)
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)
        finally:
            self.free.add(slot)

    def _call(
        self, slot: int, function: Callable[..., object], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """Call a function in the process of a slot; if a GPU that it shares had too little memory, once more, alone on it."""
        if not self.rooms:
            self._process(slot).call(function, arguments, keywords)
            return
        room, folder = self.rooms[slot % len(self.rooms)], Path(arguments[0])
        for alone in (False, True):
            with room.entered(folder, alone=alone):
                try:
                    self._process(slot, room.gpu.environment).call(function, arguments, keywords)
                    return
                except RunError as error:
                    if alone or error.kind != MEMORY:
                        raise
                    log.warning("%s: the memory of %s ran out. It continues alone there.", folder.name, room.gpu.name)
                    self.kept.by_slot[slot].close()  # while it counts as one of those on the GPU

    def _process(self, slot: int, environment: Mapping[str, str] | None = None) -> Worker:
        """The process of a slot, unless all were stopped."""
        with self.lock:
            if self.stopped:
                raise RunError("it was stopped before it began")
            return self.kept.worker(slot, environment)

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            for room in self.rooms:
                room.close()
            with self.lock:
                self.stopped = True
                self.waiting.clear()
                for worker in self.kept.by_slot.values():
                    worker.process.terminate()
        super().__exit__(*error)
        if self.own:
            self.kept.__exit__(*error)
