"""GPUs of this machine that runs share: what a process sees of them, and whether one has room for another run. `nvidia-smi` is asked, not PyTorch."""

from __future__ import annotations

import math
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from equipoise.system.errors import RunError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # in which nvidia-smi counts them, and CUDA unless it is told to
ALL: Final = "auto"
SPARE: Final = 1.1  # of what a run takes, for memory that later rounds need
PAUSE: Final = 1.0  # seconds between looks at a GPU that is full
WAIT: Final = 30  # seconds for nvidia-smi to answer


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Parameters
    ----------
    name : as users write it, such as cuda:1.
    entry : as ``CUDA_VISIBLE_DEVICES`` and ``nvidia-smi -i`` have it: an index, or a UUID.
    """

    name: str
    entry: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that sees this GPU alone."""
        return {**ORDER, VISIBLE: self.entry}

    @property
    def memory(self) -> tuple[float, float] | None:
        """MiB that are used, and all, without a limit if there is nobody to ask; None if there is no answer now."""
        try:
            answer = asked("memory.used,memory.total", "-i", self.entry)[0]
            if "[" in answer:  # [N/A], of a part of a GPU
                return 0.0, math.inf
            used, total = answer.split(",")
            return float(used), float(total)
        except (subprocess.SubprocessError, ValueError, IndexError):
            return None
        except OSError:
            return 0.0, math.inf


def asked(fields: str, *options: str) -> list[str]:
    """What `nvidia-smi` says of each GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT).stdout.split("\n")[:-1]


def gpus(text: str) -> list[Gpu]:
    """The GPUs that a text names: ``cuda:0,cuda:1``, or ``auto`` for all that this process sees.

    Raises
    ------
    ValueError : a text of another form, or a GPU that is named twice or is not there.
    RunError : there is no `nvidia-smi` that could name them.
    """
    visible = [entry.strip() for entry in os.environ.get(VISIBLE, "").split(",") if entry.strip()]
    if text == ALL:
        return [Gpu(f"cuda:{k}", entry) for k, entry in enumerate(visible or _indices())]
    named = [(name, name.removeprefix("cuda:")) for name in map(str.strip, text.split(","))]
    if any(name == number or not number.isdecimal() for name, number in named):
        raise ValueError(f"devices must be {ALL}, or GPUs with commas, cuda:0,cuda:1; found {text!r}.")
    if len({int(number) for _, number in named}) < len(named):
        raise ValueError(f"devices names a GPU twice: {text!r}. Leave one out.")
    if visible and (absent := [name for name, number in named if int(number) >= len(visible)]):
        raise ValueError(f"devices: {absent[0]} is not there: {VISIBLE} is {os.environ[VISIBLE]!r}.")
    return [Gpu(name, visible[int(number)] if visible else number) for name, number in named]


@cache
def _indices() -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in asked("index"))
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(
            f"devices={ALL}: nvidia-smi names no GPU ({error}). Name them: --devices cuda:0,cuda:1."
        ) from None


class Room:
    """The runs on a GPU. One starts when those before it have ended a round, and when there is memory for another.

    Parameters
    ----------
    gpu : which they share.
    progress : rounds that a run has ended, by its folder.
    """

    def __init__(self, gpu: Gpu, progress: Callable[[Path], int]) -> None:
        self.gpu, self.progress = gpu, progress
        self.running: set[Path] = set()
        self.new: dict[Path, int] = {}  # rounds that those of them had ended at their start that have ended none since
        self.need = 0.0  # MiB of one of them, at most
        self.lonely = 0  # runs that wait for the GPU alone, or have it
        self.changes, self.change, self.closed = 0, threading.Condition(), False

    @contextmanager
    def entered(self, folder: Path, *, alone: bool = False) -> Iterator[None]:
        """Wait until a run may start, and count it as long as the block lasts; no other starts beside one that is ``alone``.

        Raises
        ------
        RunError : the plan was stopped while the run waited.
        """
        with self.change:
            self.lonely += alone
        try:
            while not self._enters(folder, alone):
                with self.change:
                    self.change.wait(PAUSE)
            yield
        finally:
            with self.change:
                self.lonely -= alone
                self.running.discard(folder)
                self.new.pop(folder, None)
                self.changes += 1
                self.change.notify_all()

    def close(self) -> None:
        """Let no other run start."""
        self.closed = True
        with self.change:
            self.change.notify_all()

    def _enters(self, folder: Path, alone: bool) -> bool:
        """Whether a run starts now. The GPU is asked while others may start or end; then its answer does not count."""
        with self.change:
            changes, occupied, lonely = self.changes, bool(self.running), self.lonely
        rounds, memory = self.progress(folder), self._memory() if occupied and not lonely else None
        with self.change:
            if self.closed:
                raise RunError("it was stopped before it began")
            if changes != self.changes:
                return False
            if memory is not None:
                used, total = memory
                self.need = max(self.need, used / len(self.running))
                fits = total - used >= SPARE * self.need
            else:
                fits = not occupied and (alone or not lonely)
            if fits:
                self.running.add(folder)
                self.new[folder] = rounds
                self.changes += 1
            return fits

    def _memory(self) -> tuple[float, float] | None:
        """MiB that are used, and all, once all runs have ended a round; None before, or if the GPU does not answer now."""
        with self.change:
            new = dict(self.new)
        for folder, rounds in new.items():
            if self.progress(folder) <= rounds:
                return None
            with self.change:
                self.new.pop(folder, None)
        return self.gpu.memory
