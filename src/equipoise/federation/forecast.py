"""The memory, disk space and time that a run will need, before it starts: one round is timed, and its results are discarded."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.core import client_rows as rows
from equipoise.core.draws import cohort_size
from equipoise.core.model import Model
from equipoise.federation import evaluation
from equipoise.federation.contribution import isolated
from equipoise.federation.federation import Federation
from equipoise.federation.round import one_round, only_mean
from equipoise.federation.trial import Progression, Trial, begin
from equipoise.records.meta import Content
from equipoise.records.record import Record, line
from equipoise.system import memory
from equipoise.system.devices import usable_device
from equipoise.system.errors import RunError
from equipoise.system.ranges import check_whole
from equipoise.system.terminal import Terminal

SHORT = 5.0  # seconds: a shorter step is timed a second time, because the first run is slower

T = TypeVar("T")


class ForecastError(RunError):
    """A run does not fit into memory or on the disk."""


@dataclass(frozen=True)
class Forecast:
    """The memory, disk space and time that a run needs.

    ``rounds`` are planned. In a round ``cohort`` of ``clients`` clients train, with ``steps`` local steps each on average;
    ``engine`` visits ``workers`` of them at a time, chosen for the reason ``why``. ``needed`` [bytes] is the peak of memory, as
    measured in a round, of which the process ``held`` some already, with ``free`` bytes more available (None: unknown). ``disk``
    [bytes] is needed on a disk with ``disk_free``. A round takes ``training`` and, on average, ``evaluation`` [seconds];
    ``alone`` is the time in which every client trains alone before, where the method needs that.
    """

    rounds: int
    clients: int
    cohort: int
    steps: float
    engine: str
    why: str
    workers: int
    needed: int
    held: int
    free: int | None
    disk: int
    disk_free: int
    training: float
    evaluation: float
    alone: float

    @property
    def seconds_per_round(self) -> float:
        """Seconds of a round on average."""
        return self.training + self.evaluation

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.rounds * self.seconds_per_round + self.alone

    def check(self) -> "Forecast":
        """Return the forecast itself if the run fits.

        Raises
        ------
        ForecastError : it does not fit; says what is needed, what is free, what to do.
        """
        if self.free is not None:
            _refuse(self.needed, self.held + self.free, "about", f"a round of {self.cohort:,} clients")
        if self.disk > self.disk_free:
            raise ForecastError(
                f"This run needs about {size(self.disk)} of disk, and {size(self.disk_free)} are free. "
                "Free some, or choose a directory on a larger disk."
            )
        return self

    def as_dict(self) -> Content:
        """Everything as numbers and text, for JSON."""
        return {**asdict(self), "seconds_per_round": self.seconds_per_round, "seconds": self.seconds}

    def __str__(self) -> str:
        """Lines for people."""
        at_once = f", {self.workers} at a time" if self.workers > 1 else ""
        spare = "not known" if self.free is None else size(self.held + self.free)
        alone = f", and once {duration(self.alone)} in which every client trains alone" if self.alone else ""
        return "\n".join(
            [
                f"{self.rounds:,} rounds, {self.cohort:,} of {self.clients:,} clients in each, about {self.steps:,.3g} local steps a client",
                f"engine {self.engine}{at_once}: {self.why}",
                "",
                f"memory  {size(self.needed)} at most, of {spare} for this process",
                f"disk    {size(self.disk)}, of {size(self.disk_free)} that are free",
                f"time    {duration(self.training)} of training and {duration(self.evaluation)} of evaluation in a round{alone}",
                "",
                f"the whole run: about {duration(self.seconds)}, if its rounds are like the one that was timed and the machine "
                "stays as busy as it was just now",
            ]
        )


def size(amount: float) -> str:
    """Bytes for people: ``"3.2 GiB"``."""
    units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    unit, scale = next(((unit, scale) for unit, scale in units if amount >= scale), ("B", 1))
    return f"{amount / scale:,.{0 if scale == 1 else 1}f} {unit}"


def duration(amount: float) -> str:
    """Seconds for people, to two digits: ``"1.2 s"``, ``"3.0 min"``, ``"25 h"``."""
    unit, scale = next(((u, s) for u, s in (("days", 86400), ("h", 3600), ("min", 60)) if amount >= 2 * s), ("s", 1))
    value = amount / scale
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}" if value < 0.1 else f"{value:.1f} {unit}"


def check_memory(model: Model, clients: int, private: bool, device: str | torch.device = "cpu") -> int:
    """Refuse a run whose least memory is more than is free now; without a trial.

    Parameters
    ----------
    clients : whose updates are in memory at a time.
    private : whether clients keep a part of the model, of which each has a copy.

    Returns
    -------
    The bytes of a round's updates if they are on disk, as memory is too small for them; otherwise 0.

    Raises
    ------
    ForecastError : says what is needed, what is free, what to do.
    ValueError : there is no such device.
    """
    row, device = model.initial, usable_device(str(device))
    updates, own = clients * row.nbytes, clients * row.nbytes * private
    if (free := memory.free(device)) is None or not rows.too_large(clients, row, device, own):
        return 0
    needed, about = own + rows.TRAINING * row.nbytes, f"{clients:,} clients x {model.size:,} numbers"
    if not rows.on_a_disk(device):
        needed, updates = needed + updates, 0
        about += f"; {tempfile.gettempdir()} is in memory, set TMPDIR to a directory on a disk" * (device.type == "cpu")
    _refuse(needed, free, "at least", about)
    if updates > (room := shutil.disk_usage(tempfile.gettempdir()).free):
        raise ForecastError(
            f"The updates of a round take {size(updates)} ({about}): {size(free)} of memory are free, and {size(room)} on the disk of "
            f"{tempfile.gettempdir()}. Let fewer clients train in a round (--participation), choose a smaller network (--network), "
            "or set TMPDIR to a directory on a larger disk."
        )
    return updates


def check_disk(now: Progression, directory: Path) -> None:
    """Refuse a run whose next checkpoint does not fit on the disk of its directory.

    Raises
    ------
    ForecastError : says what is needed, what is free, what to do.
    """
    needed, free = _bytes(now.tensors().values()), shutil.disk_usage(_there(directory)).free
    if needed > free:
        raise ForecastError(
            f"A checkpoint of this run takes at least {size(needed)}, and {size(free)} are free on the disk of {directory}. "
            "Free some, or choose another directory (--runs)."
        )


def _refuse(needed: int, room: int, how: str, about: str) -> None:
    if needed > room:
        raise ForecastError(
            f"This run needs {how} {size(needed)} of memory ({about}), and there are {size(room)} for it. Let fewer clients train "
            "in a round (--participation), or choose a smaller network (--network), fewer workers (--workers) or a smaller batch "
            f"(--batch-size). If more may be taken than is free now, set {memory.LIMIT}, for example "
            f"{memory.LIMIT}={-(-needed // (1 << 30)) + 1}GiB."
        )


def forecast(
    federation: Federation, rounds: int, *, directory: str | Path | None = None, keep: int = 1, progress: bool = True
) -> Forecast:
    """The memory, disk space and time that ``rounds`` more rounds will need; the federation does not change.

    One round is trained and evaluated, and its results are discarded. If it takes under five seconds a second one is timed.

    Parameters
    ----------
    federation : as it would be trained.
    rounds : >= 1.
    directory : of the run, which has ``keep`` checkpoints; None counts none.
    progress : show on a terminal that a round is being timed.

    Raises
    ------
    ForecastError : even the least memory of the run does not fit; no round was timed.
    QuorumError : too few clients can train.
    ValueError : ``rounds`` is below 1.
    """
    check_whole("rounds", rounds, 1)
    console = Terminal(stderr=True, quiet=not progress)
    with console.status("timing a round") if progress and console.is_terminal else nullcontext():
        return _forecast(federation, rounds, None if directory is None else Path(directory), keep)


def _forecast(fed: Federation, rounds: int, directory: Path | None, keep: int) -> Forecast:
    trial = replace(fed.trial, presence=None)  # a round with all that may be selected takes the most
    if fed.collaborative and trial.contribution is None:  # equal ones, if they are not known yet
        trial = replace(trial, contribution=torch.full_like(trial.setup.sizes, 0.5))
    now, total = fed.progress, fed.progress.t + rounds
    N, M, device = len(trial.data), cohort_size(len(trial.data), trial.settings.participation), now.vector.device
    held, free = memory.taken(device), memory.free(device)
    apart = 1 if only_mean(trial, M) else M
    updates = check_memory(trial.model, apart, trial.method.private(trial.model) is not None, device)
    memory.watch(device)
    alone = tested = 0.0
    if fed.collaborative and fed.alone is None:
        solo = isolated(trial)
        alone, _ = _timed(lambda last: one_round(solo, replace(last, t=0), rounds)[0], begin(solo), device)
    with memory.own_peak() if updates else nullcontext([0]) as own:
        training, (after, record) = _timed(
            lambda last: one_round(trial, replace(last[0], t=now.t), total), (now, Record()), device
        )
    if fed.tests.sets:
        tested, scores = _evaluation(fed, trial, after, rounds)
        record = {**record, **scores, "seconds": 0.1234}
    tensors: list[Tensor | rows.Rows] = [*after.tensors().values()]
    state, absent = _bytes(tensors), sum(x.default.nbytes * len(x) for x in tensors if isinstance(x, rows.Rows))
    # as much of the updates' file as the system keeps in memory is no need of the process
    disk, needed = absent, own[0] or int(memory.most_taken(device))
    if directory is not None:
        disk += (1 + keep) * (state + absent) + rounds * len(line(record, "").encode())  # checkpoints, records
        needed = max(needed, int(memory.taken(device)) + 2 * state)  # a checkpoint is made in memory, then written
    return Forecast(
        rounds=rounds,
        clients=N,
        cohort=M,
        steps=statistics.mean(trial.settings.steps_of(d.size) for d in trial.data),
        engine=fed.engine_choice.engine,
        why=fed.engine_choice.why,
        workers=1 if fed.engine_choice.engine == "sequential" else min(M, fed.workers),
        needed=needed,
        held=held,
        free=free,
        disk=disk,
        disk_free=shutil.disk_usage(_there(directory or Path(tempfile.gettempdir()))).free,
        training=training,
        evaluation=tested,
        alone=rounds * alone,
    )


def _timed(step: Callable[[T], T], last: T, device: torch.device) -> tuple[float, T]:
    """Seconds of a step, and its result; a short step is run twice, because the first run is slower."""
    for _ in range(2):
        began = time.perf_counter()
        last = step(last)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
        if seconds > SHORT:
            break
    return seconds, last


def _evaluation(fed: Federation, trial: Trial, after: Progression, rounds: int) -> tuple[float, Record]:
    """Seconds of the evaluation of a round, on average over the next ``rounds`` rounds, and its record."""
    device, last = after.vector.device, after.t - 1 + rounds
    often = sum(evaluation.costly(t, last) for t in range(after.t, last + 1)) / rounds
    costly, record = _timed(lambda _: fed.tests.record(trial, after, after.t), Record(), device)
    if often == 1:
        return costly, record
    vector = evaluation.published(trial, after)
    plain, _ = _timed(lambda _: [*fed.tests.answered(trial, vector, after.server)], list[str](), device)
    return often * costly + (1 - often) * plain, record


def _bytes(tensors: Iterable[object]) -> int:
    """Bytes of memory of tensors, each shared storage counted once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors if isinstance(x, Tensor)}
    return sum(storages.values())


def _there(path: Path) -> Path:
    """The nearest folder of a path that exists."""
    return path if path.exists() else _there(path.absolute().parent)
