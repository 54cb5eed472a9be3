"""Programs that run in the background, each with its own log, and are ended with all their child processes."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from equipoise.flower.deploy.superlink import last_lines, program
from equipoise.system.errors import RunError
from equipoise.system.files import open_private


class Processes:
    """The running programs of one directory, by names that a user knows.

    Parameters
    ----------
    directory : where they run, and where ``NAME.log`` has what each prints.
    variables : the environment of all.
    patience : seconds for one to be ready.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str], patience: float) -> None:
        self.directory, self.variables, self.patience = directory, variables, patience
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, what: str, arguments: Iterable[str]) -> None:
        """Start Flower's program ``what`` under a name."""
        with open_private(self.directory / f"{name}.log") as file, _uninterrupted():
            self._running[name] = subprocess.Popen(
                [program(what), *arguments],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C is for this program, which then stops them in order
            )

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a process is ready.

        Raises
        ------
        RunError : it has ended, or takes too long; with the last lines of its log.
        """
        limit = time.monotonic() + self.patience
        while not ready():
            self.check(name)
            if time.monotonic() > limit:
                raise RunError(f"{name} was not ready in {self.patience:g} s. {self._end_of(name)}")
            time.sleep(0.1)

    def check(self, name: str) -> None:
        """Raise RunError, with the last lines of its log, if a process has ended."""
        if name in self._running and self._running[name].poll() is not None:
            raise RunError(f"{name} ended with status {self._running[name].returncode}. {self._end_of(name)}")

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _end_of(self, name: str) -> str:
        return f"The end of {self.directory / f'{name}.log'}:\n{last_lines(self.log(name))}"

    def kill(self, name: str) -> None:
        """End a process at once, and all that it started, as a power cut would."""
        process = self._running.pop(name)
        started = descendants(process.pid)
        process.kill()
        process.wait()
        end(started)

    def stop(self, last: str) -> None:
        """Stop all processes, ``last`` after the others: politely, then at once."""
        names = sorted(self._running, key=lambda name: name == last)
        started = [each for name in names for each in descendants(self._running[name].pid)]
        try:
            for group in (names[:-1], names[-1:]):
                for name in group:
                    self._running[name].terminate()
                limit = time.monotonic() + 10
                for name in group:
                    with suppress(subprocess.TimeoutExpired):
                        self._running[name].wait(max(0.1, limit - time.monotonic()))
        finally:
            for name in names:
                process = self._running.pop(name)
                process.kill()
                process.wait()
            end(started)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM while a program starts: one that is not known yet would be left running."""
    if threading.current_thread() is not threading.main_thread():  # signals do not come here
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def descendants(pid: int) -> list[psutil.Process]:
    """A process and all that it started, the youngest first; none if it has ended.

    Flower starts each app in a new session, which a signal to a process group does not reach.
    """
    try:
        parent = psutil.Process(pid)
        return [*reversed(parent.children(recursive=True)), parent]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process], patience: float = 5.0) -> None:
    """Kill processes, but none that has its number from one of them, and see them gone."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, patience)
