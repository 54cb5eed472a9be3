"""Plans of runs. A cell is a run with its folder and its last round; an executor trains it, in this process or in others; an outcome is its end."""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self, TypedDict, Unpack

from equipoise.core.settings import simulated
from equipoise.engines import distributed
from equipoise.federation import checkpoint, directory
from equipoise.federation.history import History
from equipoise.records.directory import CHOSEN, CONDITIONS, ORDER
from equipoise.runs import directory as runs, status
from equipoise.runs.configuration import RunConfig
from equipoise.system import claims, files, seals, trust
from equipoise.system.errors import CLAIMED, CODE, MEMORY, QUEUE, SETTINGS, RunError, out_of_memory
from equipoise.system.gpus import Gpu, Room, gpus
from equipoise.system.queues import RAY, SLURM, Others, Queue, Ray, Slurm, dask, launch_of
from equipoise.system.workers import PER_DEVICE, Processes, Workers, cores, read_jobs

log = logging.getLogger(__name__)

Progress = Callable[..., None]  # called with the rounds done and to do, over all cells
POLL = 0.5  # seconds between looks at the running processes
FOLDER = ".queue"  # next to runs that a cluster trains: answers and logs
# a process trains one run at a time: torch has one random generator, and the environment is shared
TURN = threading.Lock()
SELDOM = 4  # of these looks, between which lines about the runs are not due


@dataclass(frozen=True)
class Cell:
    """A run of a plan.

    Parameters
    ----------
    key : what its planner calls it.
    config : its configuration; of Python what its federation is built from.
    folder : where it is kept.
    until : rounds in all after which it pauses; None: it goes to its end.
    """

    key: Any
    config: Any
    folder: Path
    until: int | None = None

    @property
    def goal(self) -> int:
        """After how many rounds it pauses or ends."""
        rounds: int = self.config.rounds
        return min(rounds, self.until or rounds)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to train."""
        state = self.folder / directory.CHECKPOINT
        paused = self.until and checkpoint.exists(state) and checkpoint.about(state)["t"] >= self.until
        return bool(runs.finished(self.folder) or paused)


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: the error that ended it before its time, if one did, and its history."""

    cell: Cell
    error: RunError | None = None
    trained: History | None = None

    @classmethod
    def of(cls, cell: Cell, future: Future[Any]) -> Self:
        """That of a future; an error of another kind than a run's is raised."""
        try:
            return cls(cell, trained=future.result())
        except RunError as error:
            if error.kind == QUEUE:
                raise
            return cls(cell, error)

    @property
    def why(self) -> str:
        """Why it failed; empty if it did not."""
        return "" if self.error is None else str(self.error)

    def require(self) -> None:
        """Raise the error that ended it, if one did."""
        if self.error is not None:
            raise self.error

    @cached_property
    def history(self) -> History | None:
        """What it has recorded, if anything."""
        recorded = self.trained is None and (self.cell.folder / directory.METRICS).exists()
        return History.from_run(self.cell.folder) if recorded else self.trained


class Here(Executor):
    """Calls functions in this process, at once. An error that other settings cannot help is raised where it is."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call a function."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **keywords))
        except RunError as error:
            if error.kind != SETTINGS:
                raise
            future.set_exception(error)
        return future


def run(
    cells: Iterable[Cell], submit: Callable[[Cell], Future[Any]], look: Callable[[], object] = lambda: None
) -> Iterator[Outcome]:
    """The outcomes of cells that some executor trains, as they end.

    Parameters
    ----------
    cells : made when the one before has been handed to the executor.
    submit : hands a cell to the executor.
    look : called now and then while cells train.
    """
    waiting = dict[Future[Any], Cell]()
    for cell in cells:
        waiting[future := submit(cell)] = cell
        if future.done():
            yield Outcome.of(waiting.pop(future), future)
    while waiting:
        done = wait(waiting, POLL).done
        look()
        for future in [future for future in waiting if future in done]:
            yield Outcome.of(waiting.pop(future), future)


class How(TypedDict, total=False):
    """How cells are trained; no result depends on it.

    Attributes
    ----------
    jobs : processes at a time, >= 1, or a text such as "2-per-device"; without it, as many as fit.
    on_progress : called with the rounds done and to do, over all cells.
    lines : write lines about every run to standard error, if that is no terminal.
    workers : processes that are there already, and kept for further calls; without them, new ones.
    on : the executor of another library, see :func:`executor`; without it, what the cells' settings state.
    """

    on: Any
    jobs: int | str | None
    on_progress: Progress | None
    lines: bool
    workers: Workers | None


def finish(cells: Sequence[Cell], **how: Unpack[How]) -> list[Outcome]:
    """Train runs that are begun in their folders, those that have ended already excepted; their outcomes, in order.

    Parameters
    ----------
    cells : with a :class:`equipoise.runs.configuration.RunConfig`, each in a folder of :func:`equipoise.runs.directory.start`.
    how : see :class:`How`.
    """
    _require_single([cell.config for cell in cells])
    jobs, on_progress = at_once(how.get("jobs"), [cell.config for cell in cells]), how.get("on_progress")
    left = [cell for cell in cells if not cell.ended]
    watch = status.Watch([cell.folder for cell in cells], how.get("lines", False), jobs)
    ended: dict[Path, int] = {}  # their records are read once: of many long runs they are much
    goals = {cell.folder: cell.goal for cell in cells}
    total, looks = sum(goals.values()), itertools.count()

    def look() -> None:
        if next(looks) % SELDOM == 0:
            watch.look()
        if on_progress is not None:
            ended.update({path: _rounds(path) for path in goals if path not in ended and runs.finished(path)})
            on_progress(sum(min(goal, ended.get(path) or _rounds(path)) for path, goal in goals.items()), total)

    def submit(cell: Cell) -> Future[Any]:
        config: RunConfig = cell.config
        needs = json.dumps([config.scenario, config.scenario_options, config.seed, config.data], sort_keys=True)
        if not isinstance(where, Processes):
            return where.submit(train_once_free, str(cell.folder.resolve()), cell.until)
        return where.submit(train, str(cell.folder), max(1, cores() // jobs), cell.until, needs=needs)

    rooms = [Room(gpu, _rounds) for gpu in devices([cell.config for cell in left])]
    with executor(how.get("on"), left) or Processes(jobs, how.get("workers"), rooms) as where:
        outcomes = {id(outcome.cell): outcome for outcome in run(left, submit, look)}
    watch.look()
    return [outcomes.get(id(cell), Outcome(cell)) for cell in cells]


def devices(configs: Sequence[RunConfig]) -> list[Gpu]:
    """The GPUs of this machine that the runs are to share; none if they state no :attr:`RunConfig.devices`."""
    stated = next((config.devices for config in configs if config.devices is not None), None)
    return [] if stated is None else gpus(stated)


def _require_single(configs: Iterable[RunConfig]) -> None:
    """Refuse runs of which each would need several processes that the user starts."""
    if any(config.engine == distributed.NAME for config in configs):
        raise ValueError(
            "The engine distributed trains a single run: equipoise run, without --on. Several runs at a time use a machine as well: "
            "choose another engine, with --jobs or --on."
        )


def executor(on: Any, cells: Sequence[Cell]) -> Queue | None:
    """What trains cells elsewhere; None: this machine does.

    Parameters
    ----------
    on : an object with `submit`; None: what the setting ``on`` of the cells states.
    cells : in folders that all machines share.

    Raises
    ------
    ValueError : no such place.
    RunError : its package or its commands are missing, or it does not answer.
    """
    stated = next((cell.config.on for cell in cells), None)
    if on is not None and not hasattr(on, "submit"):
        raise ValueError(f"on must be an object with submit(function, *arguments), such as an executor; found {on!r}.")
    if on is not None or stated is None:
        return None if on is None else Others(on, answered)
    place, launch = launch_of(stated)
    if place == SLURM:
        return Slurm(cells[0].folder.parent / FOLDER, launch, _rounds)
    return Others(Ray(launch.cpus, launch.gpus) if place == RAY else dask(place), answered, own=True)


def answered(line: str, _: str = "") -> tuple[int, str, str]:
    """The status of a call that a line states, with the kind and the text of its error; another process may be asked for it.

    The second argument makes it another call, see :class:`equipoise.system.queues.Others`.
    """
    agreed, name, arguments, keywords = json.loads(line)
    try:
        with TURN, trust.agreed(agreed):
            resolve_name(name)(*arguments, **keywords)
    except Exception as error:  # an answer, too: only a worker that is lost gives none
        expected = isinstance(error, RunError | ValueError | TypeError | OSError | ImportError | OverflowError)
        if expected or out_of_memory(error):
            kind = MEMORY if out_of_memory(error) else getattr(error, "kind", "")
            return 1, kind, str(error) or type(error).__name__
        return 1, CODE, f"{type(error).__name__}: {error}"
    return 0, "", ""


def directories(base: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """One run directory per configuration, inside ``base``."""
    return [base / f"{runs.slug(c.label)}-seed{c.seed}" for c in configs]


def compare(configs: Sequence[RunConfig], base: Path, **how: Unpack[How]) -> list[History]:
    """Run what is not finished yet, and return every history in the order of ``configs``.

    Parameters
    ----------
    configs : the runs; a finished one of the same settings is reused, a killed one continues.
    base : directory of the comparison.
    how : the runs are trained, see :class:`equipoise.runs.plan.How`.
    """
    _require_single(configs)
    if any((base / name).exists() for name in (CONDITIONS, CHOSEN)):
        raise RunError(f"{base} holds a benchmark, or a choice of settings. Choose another --name.")
    paths = directories(base, configs)
    cells = [Cell(path.name, config, path) for config, path in zip(configs, paths, strict=True)]
    for k, path in enumerate(paths):
        if path in paths[:k]:
            raise ValueError(f"The method {configs[k].label} is given twice. Name each once.")
    if simulated(configs[0]):
        runs.check(configs[0])
    if why := runs.assumed(configs[0]):
        log.warning("%s", why)
    begins: dict[str, RunConfig] = {}  # of each method the first seed, as of configs[0]
    for cell in cells:
        if not runs.finished(cell.folder):
            begins.setdefault(cell.config.label, cell.config)
    if begins:
        runs.check_networks([*begins.values()])
    for label, config in begins.items():
        for why in runs.doubts(config):
            log.warning("%s: %s", label, why)
    for cell in cells:
        runs.start(cell.config, cell.folder)
    files.write_atomically(base / ORDER, seals.sealed_json({"runs": [path.name for path in paths]}))
    if failed := [outcome for outcome in finish(cells, **how) if outcome.why]:
        named = "\n".join(f"{outcome.cell.folder.name}: {outcome.why}" for outcome in failed)
        rest = f"\nThe others are complete; their page: equipoise report {base}" * (len(failed) < len(paths))
        raise RunError(f"{len(failed)} of {len(paths)} runs failed.\n{named}{rest}")
    return [History.from_run(path) for path in paths]


def train(
    folder: str, workers: int | None = None, until: int | None = None, *, data: str | None = None, needs: str = ""
) -> None:
    """Continue the run in a folder, as ``equipoise resume --quiet`` does; an executor may call it in any process.

    ``needs`` is what data it reads: an executor may prefer a process that has read them.
    """
    runs.execute(Path(folder), progress=False, workers=workers, until=until, data=data)


def train_once_free(folder: str, until: int | None = None) -> None:
    """As :func:`train`, once nobody else trains the run: a process may continue after its machine, or its command, was given up."""
    deadline, reached = 0.0, -1
    while True:
        try:
            return train(folder, until=until)
        except RunError as error:
            if (rounds := _rounds(Path(folder))) > reached:
                deadline, reached = time.monotonic() + 2 * claims.PATIENCE, rounds
            if error.kind != CLAIMED or time.monotonic() > deadline:
                raise
        time.sleep(1)


def at_once(jobs: int | str | None, configs: Sequence[RunConfig]) -> int:
    """How many of these runs to have at a time.

    Parameters
    ----------
    jobs : as :class:`How` has it; None: as many as the processor has cores for, on each GPU one.

    Raises
    ------
    ValueError : no such number, or one of each device, without devices.
    """
    if isinstance(jobs, int):
        return jobs
    number, per_device = read_jobs(jobs or f"1{PER_DEVICE}")
    if not per_device:
        return number
    if n_devices := len(devices(configs)):
        return n_devices * number
    if jobs is not None:
        raise ValueError(f"--jobs {jobs} needs --devices, such as --devices auto.")
    if any(config.device != "cpu" for config in configs):
        return 1
    return max(1, min(cores() // max((config.threads for config in configs), default=1), len(configs)))


def _rounds(path: Path) -> int:
    try:
        with files.open_regular(path / directory.METRICS) as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0
