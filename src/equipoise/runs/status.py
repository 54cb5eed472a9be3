"""How the runs below a folder are going. Nothing is changed there, and no lock is taken that a run could want."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from equipoise.federation.checkpoint import POINTER
from equipoise.federation.directory import CHECKPOINT, FAILED, MANIFEST, METRICS
from equipoise.federation.standing import LAST, ProgressLog, Standing, shown_rate
from equipoise.records import history, record
from equipoise.records.directory import CHOSEN, TRIALS
from equipoise.runs.directory import finished
from equipoise.system import claims, errors, own_code, queues, seals
from equipoise.system.files import open_regular, read_regular

BLOCK = 1 << 16  # bytes that are read at a time from the end of a file
STATES = ("running", "complete", "queued", "stopped", "failed", "not begun", "damaged")


@dataclass(frozen=True)
class RunStatus:
    """How a run is going.

    Parameters
    ----------
    directory : of the run. method, seed : what it is.
    state : of :data:`STATES`. Queued is one with a task in the queue of a cluster. Stopped is one that was killed, or stopped by its
        user; ``resume`` goes on with both, and with a failed one.
    standing : how far it is.
    process : number of the process that runs it.
    written : when its last round was recorded, seconds since 1970; None before that.
    why : it waits in the queue, failed, or ended before its planned rounds, or cannot be read.
    lr : the learning rate of the next round, in words, where it is known.
    """

    directory: Path
    method: str
    seed: int | None
    state: str
    standing: Standing
    process: str | None = None
    written: float | None = None
    why: str = ""
    lr: str = ""

    @property
    def ends(self) -> float | None:
        """When a running one can be expected to end, seconds since 1970."""
        if self.state != "running" or self.written is None or (ends := self.standing.ends(self.written)) is None:
            return None
        return max(ends.timestamp(), time.time())


def run_status(directory: Path, tasks: Callable[[], Mapping[str, str]] = dict) -> RunStatus:
    """How a run is going, by its files, which may be replaced while they are read, and by the ``tasks`` of a queue."""
    try:
        return _read_status(directory, tasks)
    except (errors.RunError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return RunStatus(directory, "", None, "damaged", Standing(0, 0), why=str(error) or type(error).__name__)


def _read_status(directory: Path, tasks: Callable[[], Mapping[str, str]]) -> RunStatus:
    path = directory / "config.toml"
    config = seals.open_toml(read_regular(path).decode()) if path.exists() else {}
    about = manifest = {**_object(directory / MANIFEST)}
    if config:
        about = config
    elif "rounds" in (pointer := _object(directory / CHECKPOINT / POINTER, directory)):
        about["rounds"] = pointer["rounds"]
    last = _last(directory / METRICS)
    simulated = () if about.get("engine") == "flower" else manifest.get("client_names") or ()
    least = int(about.get("least_group") or history.LEAST)
    large = [record.large(each, least, simulated) for each in last]
    standing = Standing.of(large, int(about.get("rounds") or len(last)))
    process = claims.owner(directory / claims.CLAIM)
    ended = str(last[-1].get("stopped", "")) if last else ""
    failure, lr = _object(directory / FAILED), about.get("lr")
    complete = finished(directory) if config else ended or (last and standing.round >= standing.rounds)
    state, why = _state(complete, process, failure, last, ended)
    if state in ("stopped", "not begun") and (reason := queues.waits(directory, tasks)) is not None:
        state, why = "queued", reason
    method = own_code.short(str(about.get("label") or about.get("method") or ""))
    running = str(process) if state == "running" else None
    written = _ended(directory, last[-1]["round"]) if last else None
    rate = "" if lr is None else shown_rate(lr, standing.round, standing.rounds)
    return RunStatus(directory, method, about.get("seed"), state, standing, running, written, why, rate)


def _state(
    complete: object, process: object, failure: Mapping[str, Any], last: Sequence[object], ended: str
) -> tuple[str, str]:
    """One of :data:`STATES`, and why it failed, or ended before its planned rounds."""
    if complete:
        return "complete", ended
    if process is not None:
        return "running", ""
    if failure:
        return "failed", str(failure.get("error", ""))
    return "stopped" if last else "not begun", ended


def below(folder: Path) -> Iterator[RunStatus]:
    """How every run in a folder, or deeper, is going, without those of a finished choice of settings."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder. Give one with runs in it: equipoise status runs")
    tasks = cache(queues.tasks)
    for path, inner, files in os.walk(folder):
        settled = {TRIALS} if CHOSEN in files else set()
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in settled)
        if "config.toml" in files or (MANIFEST in files and {*files, *inner} & {METRICS, FAILED, CHECKPOINT}):
            inner[:] = []
            yield run_status(Path(path), tasks)


def all_end(runs: Sequence[RunStatus], jobs: int) -> datetime | None:
    """When all runs that are not complete end, if ``jobs`` go on at a time; None while no round of any has been timed."""
    timed = [seconds for run in runs if (seconds := run.standing.seconds) is not None]
    if not timed:
        return None
    usual, left = fmean(timed), [run.standing for run in runs if run.state not in ("complete", "failed", "damaged")]
    lasting = [(usual if at.seconds is None else at.seconds) * (at.rounds - at.round) for at in left]
    return datetime.fromtimestamp(time.time() + max([sum(lasting) / max(1, jobs), *lasting]))


class Watch:
    """Lines of a log about runs that other processes train, each named.

    Parameters
    ----------
    paths : of the runs. wanted : whether there are lines at all, where there is no terminal. jobs : runs at a time.
    """

    def __init__(self, paths: Sequence[Path], wanted: bool, jobs: int = 1) -> None:
        self.log = ProgressLog(wanted)
        self.paths, self.jobs = paths, jobs
        self.left = {path: _changed(path / METRICS) for path in paths if not finished(path)} if self.log.wanted else {}
        self.numbers: dict[Path, int] = {}  # which run in turn each is, as they begin
        self.statuses: dict[Path, tuple[tuple[float, ...], RunStatus]] = {}  # by when their files changed last
        self.before = len(paths) - len(self.left)

    def look(self) -> None:
        """Write the lines that are due."""
        for path, before in [*self.left.items()]:
            changed = _changed(path / METRICS)
            ended = finished(path)
            if changed == before and not ended:
                continue
            self.left[path] = changed
            if not ended and not self.log.due(str(path)):
                continue
            run = self._status(path)
            name = run.method if run.seed is None else f"{run.method}, seed {run.seed}"
            if ended:
                del self.left[path]
            end = None
            if len(self.paths) > 1:
                number = self.numbers.setdefault(path, self.before + len(self.numbers) + 1)
                name = f"run {number} of {len(self.paths)}, {name}"
                end = all_end([self._status(each) for each in self.paths], self.jobs) if self.left else None
            self.log.say(name, f"complete, {run.standing}" if ended else run.standing, run.lr, run.written, end)

    def _status(self, path: Path) -> RunStatus:
        """How a run is going; its files are read only if they have changed."""
        changed = tuple(_changed(path / name) for name in (METRICS, "summary.json", FAILED))
        if path not in self.statuses or self.statuses[path][0] != changed:
            self.statuses[path] = changed, run_status(path)
        return self.statuses[path][1]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _object(path: Path, folder: Path | None = None) -> Mapping[str, Any]:
    """The content of a JSON file; nothing if there is none."""
    try:
        content = seals.open_json(read_regular(path, folder).decode())
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def _last(path: Path) -> list[record.Record]:
    """The last records in ``metrics.jsonl``; a line that is being written is none."""
    try:
        with open_regular(path) as file:
            at, text = file.seek(0, os.SEEK_END), b""
            while at and text.count(b"\n") <= LAST + 1:
                size = min(at, BLOCK)
                at -= size
                file.seek(at)
                text = file.read(size) + text
    except FileNotFoundError:
        return []
    lines = text.split(b"\n")[1 if at else 0 : -1]
    return [seals.read_json(line.decode()) for line in lines[-LAST:] if line.strip()]


def _ended(directory: Path, t: int) -> float:
    """When round ``t`` ended: its checkpoint is from then; going on writes the records again, which count where it is gone."""
    kept = [file.stat().st_mtime for file in (directory / CHECKPOINT).glob(f"state-{t + 1:06d}*.safetensors")]
    return max(kept, default=(directory / METRICS).stat().st_mtime)
