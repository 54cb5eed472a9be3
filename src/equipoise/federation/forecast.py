"""The memory, disk space and time that a run will need, before it starts.

The sizes of data, states, updates and files are computed. Time, and the memory of everything else (Python, PyTorch,
activations), are measured in one round of the run, whose results are discarded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.core import client_rows as rows
from equipoise.core.draws import cohort_size
from equipoise.core.model import Model
from equipoise.core.rule import Setup, overrides
from equipoise.core.solver import Solver
from equipoise.federation import evaluation
from equipoise.federation.contribution import isolated
from equipoise.federation.federation import Federation
from equipoise.federation.method import Method
from equipoise.federation.round import one_round
from equipoise.federation.trial import Progression, Trial, begin
from equipoise.records.meta import Content
from equipoise.records.record import Record, Score, line
from equipoise.system import memory
from equipoise.system.errors import ExpectedError
from equipoise.system.terminal import Terminal
from equipoise.system.tree import flatten

SHORT = 5.0  # seconds: a shorter step is timed a second time, because the first run is slower
PROBE = 8 << 20  # bytes that are hashed and written to time a checkpoint

T = TypeVar("T")


class ForecastError(ExpectedError):
    """A run does not fit into memory or on the disk."""


@dataclass(frozen=True)
class Cost:
    """One line of a forecast: ``amount`` in bytes or seconds, and what it is for."""

    name: str
    amount: float
    about: str = ""


@dataclass(frozen=True)
class Forecast:
    """The memory, disk space and time that a run needs.

    ``rounds`` are planned. In a round ``cohort`` of ``clients`` clients train, with ``steps`` local steps each on average;
    ``engine`` visits ``workers`` of them at a time, chosen for the reason ``why``. ``memory`` [bytes] is the peak, of which
    the process ``held`` some already, with ``free`` bytes more available (None: unknown). ``disk`` [bytes] is needed on a
    disk with ``disk_free``. ``time`` [seconds] is that of a round, ``once`` that before the first.
    """

    rounds: int
    clients: int
    cohort: int
    steps: float
    engine: str
    why: str
    workers: int
    memory: tuple[Cost, ...]
    held: int
    free: int | None
    disk: tuple[Cost, ...]
    disk_free: int | None
    time: tuple[Cost, ...]
    once: tuple[Cost, ...]

    @property
    def needed(self) -> float:
        """Peak memory in bytes."""
        return _total(self.memory)

    @property
    def seconds_per_round(self) -> float:
        """Seconds of a round on average."""
        return _total(self.time)

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.rounds * self.seconds_per_round + _total(self.once)

    @property
    def advice(self) -> str:
        """How to need less memory."""
        return _advice(self.memory, self.clients, self.cohort, None if self.free is None else self.held + self.free)

    def check(self) -> Forecast:
        """Return the forecast itself if the run fits.

        Raises
        ------
        ForecastError : it does not fit; says what is needed, what is free, what needs most, what to do.
        """
        if self.free is not None:
            _refuse(self.memory, self.held + self.free, "about", self.clients, self.cohort)
        if self.disk_free is not None and _total(self.disk) > self.disk_free:
            raise ForecastError(
                f"This run needs about {size(_total(self.disk))} of disk, and {size(self.disk_free)} are free. "
                f"{_largest(self.disk)} Free some, or choose a directory on a larger disk."
            )
        return self

    def as_dict(self) -> Content:
        """Everything as numbers and text, for JSON."""
        more = ("needed", "seconds_per_round", "seconds", "advice")
        return {**asdict(self), **{name: getattr(self, name) for name in more}}

    def __str__(self) -> str:
        """A table for people."""
        at_once = f", {self.workers} at a time" if self.workers > 1 else ""
        spare = "not known" if self.free is None else size(self.held + self.free)
        return "\n".join(
            [
                f"{self.rounds:,} rounds, {self.cohort:,} of {self.clients:,} clients in each, about {self.steps:,.3g} local steps a client",
                f"engine {self.engine}{at_once}: {self.why}",
                *_table("memory", self.memory, size, f"at most, of {spare} for this process"),
                *_table("disk", self.disk, size, f"of {size(self.disk_free or 0)} that are free"),
                *_table("time of a round", self.time, duration, "a round"),
                *_table("time before the first round", self.once, duration, "once"),
                "",
                f"the whole run: about {duration(self.seconds)}, if its rounds are like the one that was timed and the machine "
                "stays as busy as it was just now",
            ]
        )


def _table(title: str, costs: Sequence[Cost], show: Callable[[float], str], about: str) -> list[str]:
    if not costs:
        return []
    lines = [*costs, Cost("together", _total(costs), about)]
    wide = max(len(cost.name) for cost in lines)
    return ["", title, *(f"  {c.name:<{wide}}  {show(c.amount):>10}  {c.about}".rstrip() for c in lines)]


def _total(costs: Iterable[Cost]) -> float:
    return sum(cost.amount for cost in costs)


def size(amount: float) -> str:
    """Bytes for people: ``"3.2 GiB"``."""
    unit, scale = next(
        ((u, s) for u, s in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)) if amount >= s), ("B", 1)
    )
    return f"{amount / scale:,.{0 if scale == 1 else 1}f} {unit}"


def duration(amount: float) -> str:
    """Seconds for people, to two digits: ``"1.2 s"``, ``"3.0 min"``, ``"25 h"``."""
    unit, scale = next(((u, s) for u, s in (("days", 86400), ("h", 3600), ("min", 60)) if amount >= 2 * s), ("s", 1))
    value = amount / scale
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}" if value < 0.1 else f"{value:.1f} {unit}"


def certain(model: Model, method: Method, solver: Solver, sizes: Tensor, participation: float) -> tuple[Cost, ...]:
    """The least memory that a run needs, computed before its state is made.

    Parameters
    ----------
    sizes : training samples of each client [N].
    participation : share of the clients that train in a round.
    """
    N, M = len(sizes), cohort_size(len(sizes), participation)
    G, private = model.initial.nbytes, int(method.private(model) is not None)
    copies = ", twice" if private else ""
    costs = (
        Cost("updates of the round", float(M * G * (1 + private)), f"{M:,} clients x {model.size:,} numbers{copies}"),
        Cost("training", 3.0 * G, "parameters, gradient and update of one client"),
    )
    try:
        each, rest = _state(model, method, solver, sizes)
    except Exception:  # a rule may need more of a federation than is known here; then its state is not counted
        return costs
    inside = sum(N * leaf for leaf in [*each, G * private] if not rows.on_disk(leaf, N, M))
    return (*costs, Cost("state of the method", float(inside + rest), f"of {N:,} clients, and of the server"))


def _state(model: Model, method: Method, solver: Solver, sizes: Tensor) -> tuple[list[int], int]:
    """Bytes of every leaf of a method's state per client, and of the state that does not depend on the clients."""

    def setup(n: int) -> Setup:
        head = model.head[: model.n_params]
        return Setup(model.initial, model.layout, sizes[:n].double(), solver, 1, 1, head)

    each, rest = [], 0
    for rule in method.rules:
        if overrides(rule, "client_state"):
            each += [int(leaf.nbytes) for leaf in flatten(rule.client_state(setup(1))).values()]
        if overrides(rule, "server_state"):
            one, two = (flatten(rule.server_state(setup(n))) for n in (1, min(2, len(sizes))))
            added = [two[name].nbytes - one[name].nbytes for name in one]
            each += added
            rest += sum(leaf.nbytes for leaf in one.values()) - sum(added)
    return each, rest


def check(
    model: Model, method: Method, solver: Solver, sizes: Tensor, participation: float, device: str = "cpu"
) -> None:
    """Refuse a run whose least memory is more than is free now; without a trial.

    Raises
    ------
    ForecastError : says what is needed, what is free, what needs most, what to do.
    """
    if (free := memory.free(torch.device(device))) is not None:
        costs = certain(model, method, solver, sizes, participation)
        _refuse(costs, free, "at least", len(sizes), cohort_size(len(sizes), participation))


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


def _refuse(costs: Sequence[Cost], room: int, how: str, N: int, M: int) -> None:
    if (needed := _total(costs)) > room:
        raise ForecastError(
            f"This run needs {how} {size(needed)} of memory, and there are {size(room)} for it. "
            f"{_largest(costs)} {_advice(costs, N, M, room)} If more may be taken than is free now, set {memory.LIMIT}, "
            f"for example {memory.LIMIT}={-(-int(needed) // (1 << 30)) + 1}GiB."
        )


def _largest(costs: Sequence[Cost]) -> str:
    cost = max(costs, key=lambda cost: cost.amount)
    return f"What takes most: {cost.name}, {size(cost.amount)}" + (f" ({cost.about})." if cost.about else ".")


def _advice(costs: Sequence[Cost], N: int, M: int, room: int | None) -> str:
    """What to change, with the number that would fit where there is one."""
    largest = max(costs, key=lambda cost: cost.amount)
    if largest.name == "updates of the round" and room is not None:
        fitting = int((room - _total(costs) + largest.amount) / (largest.amount / M))
        share = int(1000 * fitting / N) / 1000  # rounded down
        if share > 0:
            some = cohort_size(N, share)
            return f"Let fewer clients train in a round: participation {share:g} (--participation) would fit, {some:,} client{'s' * (some > 1)}."
        return "Even one client a round does not fit: choose a smaller network (--network)."
    if largest.name == "state of the method":
        less = (
            "fewer clients"
            if 2 * M <= N
            else "participation of at most 0.5, which stores the states of absent clients on disk"
        )
        return f"Choose {less}, a smaller network (--network), or a method that stores less for every client."
    if largest.name == "data":
        return "Give data sets that are read when needed (torch Datasets, with memory=...), or fewer samples."
    return "Choose fewer workers (--workers), a smaller batch (--batch-size) or a smaller network (--network)."


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
    if rounds < 1:
        raise ValueError(f"rounds must be a whole number >= 1; found {rounds!r}.")
    console = Terminal(stderr=True, quiet=not progress)
    with console.status("timing a round") if progress and console.is_terminal else nullcontext():
        return _forecast(federation, rounds, None if directory is None else Path(directory), keep)


def _forecast(fed: Federation, rounds: int, directory: Path | None, keep: int) -> Forecast:
    trial = replace(_with_contribution(fed), presence=None)  # a round with all that may be selected takes the most
    now, total = fed.progress, fed.progress.t + rounds
    N, M, device = len(trial.data), cohort_size(len(trial.data), trial.settings.participation), now.vector.device
    held, free = memory.taken(device), memory.free(device)
    if free is not None:  # the state is there already
        _refuse(
            certain(trial.model, trial.method, trial.solver, trial.setup.sizes, trial.settings.participation)[:2],
            free,
            "at least",
            N,
            M,
        )
    memory.watch(device)
    once, after, record = list[Cost](), now, Record()
    if fed.collaborative and fed.alone is None:
        solo = isolated(trial)
        seconds, _ = _timed(lambda last: one_round(solo, replace(last, t=0), rounds)[0], begin(solo), device)
        once.append(Cost("every client alone", rounds * seconds, f"{rounds:,} rounds of {N:,} clients"))
    seconds, (after, record) = _timed(
        lambda last: one_round(trial, replace(last[0], t=now.t), total), (now, record), device
    )
    time_of = [Cost("training", seconds, f"{M:,} clients and the server, in the round that was timed")]
    if sets := fed.tests.sets:
        seconds, tested = _evaluation(fed, trial, after, rounds)
        record = {**record, **tested, "seconds": 0.1234}
        time_of.append(
            Cost("evaluation", seconds, f"{len(sets)} test set{'s' * (len(sets) > 1)}, on average over the rounds")
        )
    tensors: list[Tensor | rows.Rows] = [*after.tensors().values()]
    state, on_disk = _bytes(tensors), sum(_row(x) * len(x) for x in tensors if isinstance(x, rows.Rows))
    disk = [Cost("absent clients", float(on_disk), f"their states, in {tempfile.gettempdir()}")] if on_disk else []
    peak = memory.most_taken(device)
    if directory is not None:
        changed = state + M * sum(_row(x) for x in tensors if isinstance(x, rows.Rows))
        time_of.append(Cost("checkpoint", _writing() * changed, "if one is written every round"))
        of = "the last one and the one that replaces it" if keep == 1 else f"at most, of the last {keep} and a new one"
        disk.insert(0, Cost("checkpoint", (1.0 + keep) * (state + on_disk), of))
        disk.insert(1, Cost("records", float(rounds * len(line(record, "").encode())), "metrics.jsonl"))
        peak = max(peak, memory.taken(device) + 2 * state)  # a checkpoint is made in memory, then written
    where = _there(Path(tempfile.gettempdir()) if directory is None else directory)
    return Forecast(
        rounds=rounds,
        clients=N,
        cohort=M,
        steps=statistics.mean(trial.settings.steps_of(d.size) for d in trial.data),
        engine=fed.engine_choice.engine,
        why=fed.engine_choice.why,
        workers=1 if fed.engine_choice.engine == "sequential" else min(M, fed.workers),
        memory=_memory(trial, sets.values(), M, state, peak),
        held=held,
        free=free,
        disk=tuple(disk),
        disk_free=shutil.disk_usage(where).free if disk else None,
        time=tuple(time_of),
        once=tuple(once),
    )


def _memory(trial: Trial, sets: Iterable[object], M: int, state: int, peak: float) -> tuple[Cost, ...]:
    """What takes the memory of a round of M clients, ``peak`` bytes in all."""
    data, N = (*trial.data, *sets, *(() if trial.oracle is None else (trial.oracle.source,))), len(trial.data)
    counted = [
        Cost(
            "data",
            float(_bytes(x for d in data if d.content is not None for x in d.content.leaves.values())),
            f"of {N:,} clients, and of tests",
        ),
        Cost("state of the method", float(state), f"the model, and the states of {N:,} clients and the server"),
        Cost(
            "updates of the round",
            float(M * trial.model.initial.nbytes),
            f"{M:,} clients x {trial.model.size:,} numbers",
        ),
    ]
    rest = Cost(
        "everything else",
        max(0.0, peak - _total(counted)),
        "Python, PyTorch, training and evaluation, as measured in a round",
    )
    return (*counted, rest)


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
    plain, _ = _timed(lambda _: fed.tests.scores(trial, evaluation.published(trial, after)), dict[str, Score](), device)
    return often * costly + (1 - often) * plain, record


def _writing() -> float:
    """Seconds to hash and write a byte of a checkpoint."""
    content = os.urandom(PROBE)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        hashlib.sha256(content)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return (time.perf_counter() - began) / PROBE


def _with_contribution(fed: Federation) -> Trial:
    """The experiment, with equal contributions if they are not known yet."""
    trial = fed.trial
    if not fed.collaborative or trial.contribution is not None:
        return trial
    return replace(trial, contribution=torch.full_like(trial.setup.sizes, 0.5))


def _bytes(tensors: Iterable[object]) -> int:
    """Bytes of memory of tensors, each shared storage counted once."""
    known = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors if isinstance(x, Tensor)}
    return sum(known.values())


def _row(x: rows.Rows) -> int:
    return x.default.nbytes


def _there(path: Path) -> Path:
    """The nearest folder of a path that exists."""
    return path if path.exists() else _there(path.absolute().parent)
