"""Runs on a SuperLink, through Flower's own command ``flwr``: submit, watch, stop."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from equipoise.system import files, workers
from equipoise.system.errors import RunError

FLWR = ("1.41", "1.42")  # the lowest version that works, and the last one that was tested
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "200", "NO_COLOR": "1"}
PATIENCE = 120.0  # seconds for one call of flwr, which takes some just to begin


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its number on the SuperLink, Flower's words for its status, and the reason if it failed."""

    run: int
    status: str
    reason: str = ""

    @property
    def finished(self) -> bool:
        """Whether it ended, in whatever way."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it ended well."""
        return self.status == "finished:completed"


def program(name: str) -> str:
    """The path of one of Flower's programs, of the environment this Python belongs to if it is there.

    Raises
    ------
    RunError : Flower is not installed.
    """
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None or find_spec("flwr") is None:
        raise RunError("Flower is not installed. Install it: pip install 'equipoise[flower]'.")
    return path


def environment(**more: str) -> dict[str, str]:
    """The environment for Flower's programs: they find each other, are quiet, send nothing about you, and import nothing from the current folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, workers.ISOLATED: "1", "PATH": path, **more}


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink as a connection in Flower's ``config.toml`` names it.

    ``variables`` is the environment of the calls (``FLWR_HOME`` says where that file is).
    """

    connection: str
    variables: Mapping[str, str]

    def call(self, *arguments: str, patience: float = PATIENCE, script: str = "") -> dict[str, Any]:
        """What ``flwr``, or a script of Python in its place, answers as JSON.

        Raises
        ------
        RunError : with Flower's own words, or because no answer came in ``patience`` seconds.
        """
        command = [program("flwr"), *arguments, "--format", "json"]
        command[:1] = workers.python("-c", script) if script else command[:1]
        try:
            done = subprocess.run(
                command, env=self.variables, capture_output=True, text=True, timeout=patience, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"flwr {arguments[0]} gave no answer in {patience:g} s. Is the SuperLink there?") from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {}
        if not answer or answer.get("success") is False:
            words = answer.get("error-message") or last_lines(done.stdout + done.stderr)
            raise RunError(f"flwr {' '.join(arguments[:2])} failed: {str(words).strip()}")
        return answer

    def submit(self, app: Path, config: Mapping[str, Any] | None = None) -> int:
        """Start a run of an app with some values of its run configuration changed; return the run's number."""
        with tempfile.NamedTemporaryFile("wb", suffix=".toml") as file:  # values of any kind, with no rules of quoting
            tomli_w.dump(dict(config or {}), file)
            file.flush()
            changes = ("--run-config", file.name) if config else ()
            return int(self.call("run", str(app), self.connection, *changes)["run-id"])

    def outcome(self, run: int) -> Outcome:
        """The status of a run."""
        answer = self.call("ls", self.connection, "--run-id", str(run))
        runs = answer.get("runs") or [{}]
        return Outcome(run, str(runs[0].get("status", "unknown")), str(runs[0].get("status-details") or ""))

    def nodes(self) -> list[dict[str, Any]]:
        """The SuperNodes that may connect: each with its ``node_id``, its ``status``, and its ``name`` if it has one."""
        from equipoise.flower.internals import NODES  # Flower is not there yet where a project is only written

        nodes = self.call("supernode", "list", self.connection, script=NODES).get("nodes_info", [])
        return [node for node in nodes if node["status"] != "unregistered"]

    def stop(self, run: int) -> None:
        """Stop a run."""
        self.call("stop", str(run), self.connection)

    def follow(self, run: int, log: Path, watch: Callable[[], None], limit: float | None = None) -> Outcome:
        """Wait until a run has ended; what its server prints goes to the file ``log``.

        Parameters
        ----------
        watch : called a few times per second; what it raises ends the waiting, not the run.
        limit : seconds after which the run is stopped, or None to wait as long as it takes.

        Raises
        ------
        RunError : the limit was reached, or the SuperLink answers no more.
        """
        began = time.monotonic()
        # One program that prints until the run ends: asking again and again would start a program each time.
        with files.open_private(log) as file:
            arguments = [program("flwr"), "log", str(run), self.connection, "--stream"]
            stream = subprocess.Popen(arguments, env=self.variables, stdout=file, stderr=subprocess.STDOUT)
            try:
                while True:
                    watch()
                    if stream.poll() is not None and (outcome := self.outcome(run)).finished:
                        return outcome
                    if limit is not None and time.monotonic() - began > limit:
                        self.stop(run)
                        raise RunError(
                            f"Run {run} was stopped: it took more than {limit:g} s. The log of its server: {log}."
                        )
                    time.sleep(0.2 if stream.poll() is None else 2.0)
            finally:
                stream.kill()
                stream.wait()


def last_lines(text: str, lines: int = 12) -> str:
    """What a log says at its end, or from where Flower gives up, without the colours of a terminal and empty lines."""
    printed = [line.rstrip() for line in plain(text).splitlines() if line.strip()]
    gave_up = [k for k, line in enumerate(printed) if "Exit Code:" in line]
    return "\n".join(printed[gave_up[-1] :][:lines] if gave_up else printed[-lines:])


def plain(text: str) -> str:
    """A text without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def ours(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a run's log that Flower did not write, up to an error, which the run's outcome says better."""
    flowers = re.compile(r"(INFO|DEBUG) +:|Using SuperLink: |Successfully installed ")
    for line in map(plain, lines):
        if re.match(r"ERROR +:", line):
            return
        if line.strip() and not flowers.match(line):
            yield line
