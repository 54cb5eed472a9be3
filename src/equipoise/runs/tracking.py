"""Runs in an experiment tracker: MLflow, TensorBoard, Weights & Biases, Trackio.

What is sent is read from the files of a run, so it may be sent while the run trains, after it, or again: each round
arrives once.
"""

import logging
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from equipoise.federation import checkpoint
from equipoise.metrics import measures, performance
from equipoise.records.directory import ORDER, members
from equipoise.records.record import Record, by_client, large, number, parse
from equipoise.runs import directory as runs
from equipoise.runs.trackers import TRACKERS, Sink, Tracked, numbers, part
from equipoise.system import errors, files, suggestions

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between looks at the records of runs that train
PATIENCE = 120.0  # seconds that a tracker has for the last records
QUICK = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}  # where the user chose none


def chosen(to: str) -> tuple[str, str]:
    """Tracker and place of a text such as ``mlflow`` or ``mlflow:http://host:5000``.

    Raises
    ------
    ValueError : there is no such tracker, or its package is not installed.
    """
    name, _, place = to.partition(":")
    if name not in TRACKERS:
        raise ValueError(suggestions.unknown("tracker", name, TRACKERS))
    if find_spec(name) is None:
        raise ValueError(f"The tracker {name} is not installed. Install it: pip install 'equipoise[{name}]'.")
    return name, place


def round_numbers(record: Record, names: Sequence[str]) -> dict[str, float]:
    """The numbers of a record: all its own, those of every client that was tested, and AVG, STD and worst over groups."""
    apart = ("round", "bytes", "clients", "groups")
    sent = numbers({key: value for key, value in record.items() if key not in apart})
    groups = record.get("groups", {})
    for name, group in groups.items():
        sent |= {f"groups/{key}/{part(name)}": value for key, value in numbers(group).items() if key != "n"}
    clients = record.get("clients", {})
    main = measures.main_in(clients or next(iter(groups.values()), ()))
    each = zip(names, by_client(clients, main), strict=False)
    sent |= {f"clients/{main.name}/{part(name)}": a for name, a in each if a is not None}
    of_groups = [number(group.get(main.name)) for group in groups.values()]
    statistics = {"avg": performance.mean, "std": performance.std, "worst": main.worst}
    values = {f"{main.name}/{name}": compute(of_groups) for name, compute in statistics.items()}
    return sent | {name: value.value for name, value in values.items() if value.defined}


class Follower:
    """Sends what runs have recorded to a tracker, each round once, when it is told to look.

    Parameters
    ----------
    path : directory of a run or of a comparison, whose runs come and grow.
    to : tracker and place, see :func:`chosen`.

    Raises
    ------
    ValueError : see :func:`chosen`.
    """

    def __init__(self, path: Path, to: str) -> None:
        self.path, self.to = path, to
        self.tracker, self.place = chosen(to)
        self.open: dict[Path, tuple[Tracked, Sink]] = {}
        self.sent: dict[Path, int] = {}

    def look(self, *, last: bool = True) -> None:
        """Send every round that a checkpoint counts on, and close what is complete; if it is not the ``last`` look, a run alone not
        before it has its report.
        """
        for path in members(self.path):
            t, complete = _reached(path)
            if t == self.sent.get(path, 0) and not (complete and path in self.open):
                continue
            records, hashes = parse(files.read_regular(path / "metrics.jsonl").decode(), t)
            if path not in self.open:
                run = Tracked(path, hashes[0], path.parent.name if (path.parent / ORDER).exists() else "")
                self.open[path] = run, TRACKERS[self.tracker](run, self.place)
            run, sink = self.open[path]
            for record in records[self.sent.get(path, 0) :]:
                if record["round"] >= sink.begin:
                    begun = run.begun
                    counted = large(record, begun.least_group, begun.simulated)
                    sink.log(record["round"], round_numbers(counted, begun.client_names))
                    sink.begin = record["round"] + 1
            self.sent[path] = t
            if complete and (last or run.group or (path / "report.html").exists()):
                sink.close(run, complete=True)
                del self.open[path]

    def close(self) -> None:
        """Leave runs that still train, which may be sent on later."""
        for run, sink in self.open.values():
            sink.close(run, complete=False)
        self.open.clear()


def _reached(path: Path) -> tuple[int, bool]:
    """The rounds that the checkpoint of a run counts on, which no kill takes back, and whether these are all."""
    if not checkpoint.exists(path / "checkpoint"):
        return 0, False
    about = checkpoint.about(path / "checkpoint")
    t = int(about["t"])
    if (path / "config.toml").exists():
        return t, runs.finished(path)
    records, _ = parse(files.read_regular(path / "metrics.jsonl").decode(), t)
    return t, t == about.get("rounds") or "stopped" in records[-1]


def track(path: str | Path, to: str) -> int:
    """Send a run, or all runs of a comparison, to a tracker; what it has already is not sent twice.

    Parameters
    ----------
    path : directory of a run or of a comparison.
    to : ``mlflow``, ``tensorboard``, ``wandb`` or ``trackio``; after a colon where: an address of MLflow, a folder, a project.

    Returns
    -------
    How many rounds the tracker now has of them.

    Raises
    ------
    ValueError : no run there, or an unknown tracker.
    RunError : the tracker does not answer, or refuses.
    """
    follower = Follower(Path(path), to)
    if not any(_reached(run)[0] for run in members(Path(path))):
        hint = "Runs are in runs/; see: equipoise run --help."
        raise ValueError(f"{path} holds no run that has finished a round. {hint}")
    try:
        with _impatient():
            follower.look()
            follower.close()
    except Exception as error:  # of another library, whatever it raises
        raise errors.RunError(f"{to} did not take the records of {path}: {_short(error)}") from error
    return sum(follower.sent.values())


class Tracking:
    """Send runs while they train: ``with Tracking("runs/mine", "mlflow"): fed.fit(40, directory="runs/mine")``.

    A tracker that does not answer is named once; training goes on, and :func:`track` sends the run later.

    Parameters
    ----------
    path : directory of a run or of a comparison, which need not exist yet.
    to : as in :func:`track`; None sends nothing.

    Raises
    ------
    ValueError : an unknown tracker.
    """

    def __init__(self, path: str | Path, to: str | None) -> None:
        self.follower = None if to is None else Follower(Path(path), to)
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        if self.follower is not None:
            self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.ends.set()
        if self.follower is not None:
            self.thread.join(PATIENCE if kind is None else PAUSE)

    def _follow(self) -> None:
        follower, last = self.follower, False
        assert follower is not None
        try:
            with _impatient():
                while not last:
                    last = self.ends.wait(PAUSE)
                    follower.look(last=last)
                follower.close()
        except Exception as error:
            later = shlex.join(["equipoise", "track", str(follower.path), "--to", follower.to])
            message = "%s does not take the records: %s Training continues. Send them later: %s"
            log.warning(message, follower.to, _short(error), later)


@contextmanager
def _impatient() -> Iterator[None]:
    """MLflow would try again for minutes."""
    chosen = {name: value for name, value in QUICK.items() if name not in os.environ}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name in chosen:
            os.environ.pop(name, None)


def _short(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{text[:200].rstrip('.')}."
