"""Tiny runs, the command line in this process, and processes that can be killed at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from equipoise.cli import main as cli
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.system import workers

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d (?P<name>.+): round (?P<t>\d+) of (?P<rounds>\d+), accuracy (?P<accuracy>[\d.]+) \((?P<over>.+?)\), "
    r"worst (?P<worst>[\d.]+) \((?P<whose>.+)\), lr (?P<lr>[\d.e-]+)(, ends about (\d{4}-\d\d-\d\d )?\d\d:\d\d)?"
    r"(?P<all>, all end about (\d{4}-\d\d-\d\d )?\d\d:\d\d)?$"
)  # of log, about a run

SIZES = {"train": [24, 20, 28, 16], "test": [20, 20, 20, 20], "clients": 4}
SCENARIO = "digits(train=[24, 20, 28, 16], test=[20, 20, 20, 20], clients=4)"
TINY = ("--scenario", SCENARIO, "--network", "mlp(hidden=[8])", "--epochs", "1", "--batch-size", "8")
UNDRAWN = "TEST_WITHOUT_FIGURES"  # of the environment: set by `make test`
ZYGOTE = """
import json, os, sys
import run_helpers
for text in sys.stdin:
    order = json.loads(text)
    if (child := os.fork()) == 0:
        run_helpers.child(order)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The generated digits, made once for all tests and all processes of a session."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "equipoise-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_CACHE", str(directory))
        yield directory


def complaints(err: str) -> list[str]:
    """Lines on the standard error that are no log of rounds, which a run writes where there is no terminal."""
    return [line for line in err.splitlines() if not re.match(r"[\d-]{10} [\d:]{5} .*: round \d+ of \d+", line)]


# runs
def config(method: str = "scaffold+fedheal", **changes: Any) -> RunConfig:
    """A run of a second: 4 clients, 4 rounds of 3 steps, state on both sides, not everybody in every round."""
    settings = {
        "method": method, "label": method, "scenario": "digits", "scenario_options": SIZES, "network": "mlp", "network_options": {"hidden": [8]},
        "rounds": 4, "epochs": 1, "batch_size": 8, "lr": 0.05, "momentum": 0.5, "participation": 0.75,
    }  # fmt: skip
    return RunConfig(**(settings | changes))


def started(directory: Path, settings: RunConfig | None = None) -> Path:
    runs.start(settings or config(), directory)
    return directory


def executed(directory: Path, settings: RunConfig | None = None) -> Path:
    runs.execute(started(directory, settings), progress=False)
    return directory


def tensors(directory: Path) -> dict[str, Tensor]:
    """The tensors of the last checkpoint, of which there is one file."""
    (path,) = (directory / "checkpoint").glob("*.safetensors")
    return load_file(path)


def records(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` without their times; every line must be whole."""
    text = (directory / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "hash")} for line in text.splitlines()]


def assert_same_run(one: Path, two: Path) -> None:
    """Two finished runs have the same tensors, bit for bit, the same records and the same summary."""
    a, b = tensors(one), tensors(two)
    assert a.keys() == b.keys()
    assert [k for k in a if a[k].numpy().tobytes() != b[k].numpy().tobytes()] == []
    assert records(one) == records(two)
    assert (one / "summary.json").read_text() == (two / "summary.json").read_text()
    for directory in (one, two):
        assert list(directory.rglob("*.part")) == []


def without_figures(patch: pytest.MonkeyPatch) -> None:
    """Leave the figures of reports empty from now on, and draw none of them."""
    from equipoise.report import html

    drawings = html.drawings

    def undrawn(compared: Any) -> dict[str, None]:
        return {name: None for name, plot in drawings.PLOTS.items() if plot.has(compared)}

    patch.setattr(html, "drawings", SimpleNamespace(**vars(drawings) | {"draw_all": undrawn}))
    patch.setattr(html, "svg", lambda name, figure, methods=(): f'<svg aria-labelledby="caption-{name}"></svg>')


# the command line
class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command line in this process."""

    def call(*arguments: Any) -> Result:
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Result(int(end.value.code or 0), *capsys.readouterr())

    return call


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "equipoise", *map(str, arguments)]


def process(*arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=900, **settings)


# processes that die
class Zygote:
    """A process that has everything imported and forks a child per order, so that a death costs little.

    ``die(directory, at)`` runs what a directory describes in a child that kills itself before its ``at``-th change of a
    file there; ``at`` 0 never comes. It returns the signal the child died of, 0 where it reached the end. ``begin`` and
    ``end`` are its two halves; ``begin(arguments=..., errors=...)`` gives a command line and a file for its errors.
    """

    def __init__(self) -> None:
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-c", ZYGOTE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def begin(self, **order: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def end(self) -> int:
        assert self.process.stdout is not None
        status = int(self.process.stdout.readline())
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def die(self, directory: Path, at: int = 0) -> int:
        self.begin(directory=str(directory), at=at)
        return self.end()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def zygote(cache: Path) -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def child(order: dict[str, Any]) -> None:
    """What a forked child does; it never returns."""
    status = 1
    try:
        torch.set_num_threads(1)
        if UNDRAWN in os.environ:
            without_figures(pytest.MonkeyPatch())
        if "arguments" in order:
            with Path(order["errors"]).open("w") as file:
                os.dup2(file.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where the zygote answers
            sys.argv = ["equipoise", *order["arguments"]]
            cli.main()
        if order["at"]:
            _kill_before_change(order["directory"], order["at"])
        runs.execute(Path(order["directory"]), progress=False, from_round=order.get("from_round"))
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os._exit(status)


def _kill_before_change(directory: str, at: int) -> None:
    """Count what this process changes in a directory; die before one change, at a sync with the file cut short."""
    seen = 0
    sync = os.fsync

    def count() -> bool:
        nonlocal seen
        seen += 1
        return seen == at

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.truncate") or (
            event == "open" and _writes(arguments[1])
        )
        with suppress(TypeError):  # a descriptor in place of a path
            if changes and os.fspath(arguments[0]).startswith(directory) and count():
                os.kill(os.getpid(), signal.SIGKILL)

    def torn(descriptor: int) -> None:
        if count():
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 11))
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    sys.addaudithook(hook)
    os.fsync = torn


def _writes(mode: Any) -> bool:
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")


class InProcess:
    """A worker of a comparison in this process, one command at a time, where what it reads can be seen."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        assert not environment  # of a process that sees a GPU of its own
        self.environment = dict[str, str]()

    alive = True
    process = SimpleNamespace(terminate=lambda: None)
    turn = threading.Lock()

    def call(self, function: Callable[..., object], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        with self.turn:
            try:
                function(*json.loads(json.dumps(arguments)), **json.loads(json.dumps(keywords)))
            except (RunError, ValueError, TypeError) as error:
                raise RunError(str(error).rstrip("."), getattr(error, "kind", "")) from None

    def close(self) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a comparison or a choice are made in this process, as loading PyTorch in others takes most of their time."""
    monkeypatch.setattr(workers, "Worker", InProcess)
