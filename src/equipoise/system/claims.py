"""Claims on folders by processes of any machine that shares them, also on file systems without locks (NFS).

A claim is a file that only one process can create. Its owner touches it every few seconds. A claim is given up if its process on this machine is
gone, or if it was not touched for long: ages are compared on the clock of the file system, so clocks of machines may differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from equipoise.system.errors import CLAIMED, RunError
from equipoise.system.files import PART, open_regular, read_regular, require_own, write_new

CLAIM: Final = ".claim"  # the file, in the folder that is claimed
BEAT: Final = 15.0  # seconds between touches
PATIENCE: Final = 180.0  # seconds without a touch, after which others take a claim over; NFS caches times for up to 60
SMALL: Final = 1000  # bytes of a claim at most


@cache
def machine() -> str:
    """The name of a machine, of its last start, and of the table of processes in which a number names one process."""
    parts = [socket.gethostname()]
    for source in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        with contextlib.suppress(OSError):
            parts.append(str(source.readlink()) if source.is_symlink() else source.read_text().strip())
    return " ".join(parts)


def _started(process: int) -> str:
    """When a process of this machine started, in its own units; empty if it has ended or there is no way to see it."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a killed process whose parent does not ask for it stays listed
    return ""


@dataclass(frozen=True)
class Claim:
    """What a claim states.

    Parameters
    ----------
    machine : see :func:`machine`; empty, as all else, if the claim cannot be read.
    process : number of the process.
    started : when the process started, if its machine states that.
    token : different for each claim.
    """

    machine: str = ""
    process: int = 0
    started: str = ""
    token: str = ""

    @classmethod
    def read(cls, path: Path) -> Claim | None:
        """The claim in a file; None if the file does not exist. A link that leads nowhere cannot be read, and is in the way."""
        try:
            content: dict[str, Any] = json.loads(read_regular(path, most=SMALL))
            return cls(str(content["machine"]), int(content["process"]), str(content["started"]), str(content["token"]))
        except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            missing = isinstance(error, FileNotFoundError) and not path.is_symlink()
            return None if missing else cls()  # damaged, or not written yet

    def __str__(self) -> str:
        number = str(self.process or "unknown")
        return number if self.machine in ("", machine()) else f"{number} on {self.machine.partition(' ')[0]}"

    def abandoned(self, age: Callable[[], float]) -> bool:
        """Whether its process on this machine has ended, or it was not touched for long."""
        if self.machine == machine() and self.started:
            return _started(self.process) != self.started
        return age() > PATIENCE


def _age(path: Path) -> float:
    """Seconds since a file was touched, on the clock of its file system; 0 if the file or its folder is gone."""
    probe = path.with_name(f".{path.name}.{secrets.token_hex(4)}.now")
    try:
        with open_regular(path) as file:  # opening asks the server, a mere look may be answered from a cache
            touched = os.fstat(file.fileno()).st_mtime
        return write_new(probe, b"\n") - touched
    except (OSError, RunError):
        return 0.0
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def owner(path: Path) -> Claim | None:
    """The claim in a file, if its process may still be working, by the clock of this machine; nothing is changed."""
    claim = Claim.read(path)
    with contextlib.suppress(OSError):
        if claim is not None and claim.abandoned(lambda: time.time() - path.stat().st_mtime):
            return None
    return claim


class Held:
    """A claim of this process; see also :func:`require_claim`."""

    def __init__(self, path: Path, claim: Claim) -> None:
        self.path, self.claim, self._ended = path, claim, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @property
    def ours(self) -> bool:
        """Whether the file still holds this claim."""
        return Claim.read(self.path) == self.claim

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with contextlib.suppress(OSError, RunError):  # a server that is away for a moment
                if self.ours:  # also again, once it has been put back
                    os.utime(self.path)

    def release(self) -> None:
        """Give the claim up."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError, RunError):
            if self.ours:
                self.path.unlink()


def has_claim(directory: Path) -> bool:
    """Whether this process has the claim of a directory."""
    claim = Claim.read(directory / CLAIM)
    return claim is not None and (claim.machine, claim.process) == (machine(), os.getpid())


def require_claim(directory: Path) -> None:
    """Require that this process still has the claim of a directory: another may have taken it over, as after a long suspension.

    Raises
    ------
    RunError : naming who has it now.
    """
    if not has_claim(directory):
        raise RunError(
            f"{directory} was taken over by process {Claim.read(directory / CLAIM) or 'unknown'}, because this one gave no sign of life "
            f"for {PATIENCE:g} seconds. Nothing is lost: that process continues."
        )


def take(path: Path) -> Held:
    """Claim by a file that does not exist, or whose claim is abandoned.

    Raises
    ------
    BlockingIOError : with the claim that is in the way.
    OSError : the folder cannot be written.
    """
    claim = Claim(machine(), os.getpid(), _started(os.getpid()), secrets.token_hex(8))
    content = json.dumps(claim.__dict__).encode()
    while True:
        part = path.with_name(f".{path.name}.{claim.token}{PART}")
        try:  # a kill at any moment leaves no claim, or a whole one
            write_new(part, content)
            try:
                os.link(part, path)
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links
                write_new(path, content)
            return Held(path, claim)
        except FileExistsError:
            other = Claim.read(path)
        finally:
            part.unlink(missing_ok=True)
        if other is not None:
            if not other.abandoned(partial(_age, path)):
                raise BlockingIOError(str(other))
            _remove(path, other)


def _remove(path: Path, abandoned: Claim) -> None:
    """Remove an abandoned claim, and no other: a process that was faster may have put its own there."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if Claim.read(aside) != abandoned:
            with contextlib.suppress(OSError):  # where the next one has claimed it already, its owner will notice
                os.link(aside, path)
        aside.unlink()


@contextlib.contextmanager
def claimed(directory: Path, *holds: str, wait: str = "Wait until it ends") -> Iterator[None]:
    """Hold the claim of a directory, which is made if it is missing, while the block runs.

    ``holds`` is what the directory must hold, see :func:`equipoise.system.files.require_own`; ``wait`` what a user can do while another process has
    the claim.

    Raises
    ------
    RunError : naming the process that has it.
    """
    if holds:
        require_own(directory, *holds)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        held = take(directory / CLAIM)
    except BlockingIOError as error:
        raise RunError(f"Process {error} is at {directory} already. {wait}, or stop it first.", CLAIMED) from None
    try:
        yield
    finally:
        held.release()
