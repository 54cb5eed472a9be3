"""What a run will take: memory by part, disk, and seconds, before it starts.

Nothing of it is a table of constants. A round is *rehearsed* on the real federation: the server does its whole work on
answers for every client of the round, but only a few of these were really made, by clients with little data; the others
are made of them. Memory is what PyTorch then had at most; time follows from how long clients of several sizes took.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from equipoise.core import client_rows as rows
from equipoise.core.client_rows import Rows
from equipoise.core.draws import cohort_size
from equipoise.core.model import Model
from equipoise.core.oracle import EVALUATION_BATCH
from equipoise.core.rule import Setup, State, overrides
from equipoise.core.solver import Solver
from equipoise.core.tree import flatten, tree_map
from equipoise.data.samples import Absent, Samples, Stream, loaded
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.engines.stacked import stacked
from equipoise.federation import evaluation
from equipoise.federation.federation import Federation
from equipoise.federation.method import Method
from equipoise.federation.records import line
from equipoise.federation.round import Experiment, Progression, Record, one_round
from equipoise.federation.tensor_memory import Watch
from equipoise.system.errors import ExpectedError

LIMIT = "EQUIPOISE_MEMORY"  # environment variable: the memory a run may take, where that is not what is free
BUDGET = 2.0  # seconds that repeating measurements may take, beside one of each
LOOK = EVALUATION_BATCH  # samples of a test set, or of a client whose memory is watched
BATCHES = 3  # batches of the larger of the clients that are timed
STACKED = 1024  # clients that are timed together at most, where they are stacked
PROBE = 8 << 20  # bytes that are hashed and written to see how fast a checkpoint is
UNITS = {"": 1, "B": 1, **{f"{p}{b}": f**k for b, f in (("iB", 1024), ("B", 1000)) for k, p in enumerate("KMGT", 1)}}


class ForecastError(ExpectedError):
    """A run that does not fit into memory or on the disk."""


@dataclass(frozen=True)
class Part:
    """One part of a forecast: ``amount`` in bytes or seconds, and what it is made of."""

    name: str
    amount: float
    about: str = ""


@dataclass(frozen=True)
class Forecast:
    """What a run takes.

    ``rounds`` are planned, of ``clients`` clients ``cohort`` train in a round, ``steps`` local steps each on average;
    ``engine`` visits ``workers`` of them at a time, and ``why``. ``memory`` [bytes] are the parts that are there at once,
    of which the process ``held`` some already when ``free`` bytes more were free (None: not known). ``disk`` [bytes] is
    what the run leaves or needs on a disk with ``disk_free``. ``time`` are the seconds of a round, ``once`` those before
    the first. ``advice`` says how to need less memory.
    """

    rounds: int
    clients: int
    cohort: int
    steps: float
    engine: str
    why: str
    workers: int
    memory: tuple[Part, ...]
    held: int
    free: int | None
    disk: tuple[Part, ...]
    disk_free: int | None
    time: tuple[Part, ...]
    once: tuple[Part, ...]
    advice: str = ""

    @property
    def needed(self) -> float:
        """Bytes of memory at the moment of the greatest need."""
        return sum(part.amount for part in self.memory)

    @property
    def seconds_per_round(self) -> float:
        """Seconds of a round on average."""
        return sum(part.amount for part in self.time)

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.rounds * self.seconds_per_round + sum(part.amount for part in self.once)

    def check(self) -> Forecast:
        """Return the forecast itself if the run fits.

        Raises
        ------
        ForecastError : it does not: what is needed, what is free, which part is the largest, what to do.
        """
        _fits(self.memory, self.held, self.free, self.advice)
        on_disk = sum(part.amount for part in self.disk)
        if self.disk_free is not None and on_disk > self.disk_free:
            raise ForecastError(
                f"This run needs about {size(on_disk)} of disk, and {size(self.disk_free)} are free. "
                f"{_largest(self.disk)} Free some, or choose a directory on a larger disk."
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers and text, for JSON."""
        totals = {"needed": self.needed, "seconds_per_round": self.seconds_per_round, "seconds": self.seconds}
        return {**asdict(self), **totals}

    def __str__(self) -> str:
        """A table for people."""
        local = f"{self.steps:,.1f}".removesuffix(".0")
        at_once = f", {self.workers} at a time" if self.workers > 1 else ""
        first = [
            f"{self.rounds:,} rounds, {self.cohort:,} of {self.clients:,} clients in each, about {local} local steps a client",
            f"engine {self.engine}{at_once}: {self.why}",
        ]
        spare = "not known" if self.free is None else size(self.held + self.free)
        memory = _table("memory", self.memory, size, f"at most, of {spare} for this process")
        free = "" if self.disk_free is None else f"of {size(self.disk_free)} that are free"
        disk = [*_table("disk", self.disk, size, free), ""] if self.disk else []
        clock = _table("time of a round", self.time, duration, "a round")
        clock += _table("time before the first round", self.once, duration, "once") if self.once else []
        last = [f"the whole run: about {duration(self.seconds)}, if the machine stays as busy as it was just now"]
        return "\n".join([*first, "", *memory, "", *disk, *clock, "", *last])


def _table(title: str, parts: Sequence[Part], show: Callable[[float], str], about: str) -> list[str]:
    entries = [*parts, Part("together", sum(part.amount for part in parts), about)]
    wide = max(len(part.name) for part in entries)
    return [title, *(f"  {p.name:<{wide}}  {show(p.amount):>10}  {p.about}".rstrip() for p in entries)]


def size(amount: float) -> str:
    """Bytes for people: ``"3.2 GiB"``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(amount) >= scale:
            return f"{amount / scale:,.1f} {unit}"
    return f"{amount:.0f} B"


def duration(amount: float) -> str:
    """Seconds for people, to two digits: ``"1.2 s"``, ``"3 min"``, ``"2.5 h"``."""
    for unit, scale in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if amount >= 2 * scale or unit == "s":
            value = amount / scale
            return (
                f"{value:.0f} {unit}"
                if value >= 10
                else f"{value:.1f} {unit}"
                if value >= 0.1
                else f"{value:.2g} {unit}"
            )
    raise AssertionError


# what can be said without doing anything
def certain(model: Model, method: Method, solver: Solver, sizes: Tensor, participation: float) -> tuple[Part, ...]:
    """The parts of memory that a run takes for certain, by arithmetic alone and before its state is made.

    Parameters
    ----------
    model, method, solver : of the federation.
    sizes : training samples of each client [N].
    participation : share of the clients that train in a round.
    """
    N, M = len(sizes), cohort_size(len(sizes), participation)
    G = model.initial.nbytes
    private = int(method.private(model) is not None)
    copies = 1 + private
    parts = [
        Part("updates of the round", float(M * G * copies), f"{M:,} clients x {model.size:,} numbers" + _times(copies)),
        Part("training", 3.0 * G, "parameters, gradient and update of one client"),
    ]
    try:
        each, rest = _state(model, method, solver, sizes)
    except Exception:  # a rule may need what is only there in a federation; then its state is not certain
        return tuple(parts)
    each += [G] * private
    in_memory = sum(N * leaf for leaf in each if not rows.on_disk(leaf, N, M))
    return (*parts, Part("state of the method", float(in_memory + rest), f"of {N:,} clients, and of the server"))


def _times(copies: int) -> str:
    return f", {copies} times" if copies > 1 else ""


def _state(model: Model, method: Method, solver: Solver, sizes: Tensor) -> tuple[list[int], int]:
    """Bytes of every leaf of a method's state that each client adds, and of what does not grow with the clients."""

    def setup(n: int) -> Setup:
        head = model.head[: model.n_params]
        return Setup(model.initial, model.layout, sizes[:n].double(), solver, 1, 1, head)

    each, rest = [], 0
    for rule in method.rules:
        if overrides(rule, "client_state"):
            each += [int(leaf.nbytes) for leaf in flatten(rule.client_state(setup(1))).values()]
        if overrides(rule, "server_state"):
            one, two = (flatten(rule.server_state(setup(n))) for n in (1, min(2, len(sizes))))
            each += [two[name].nbytes - one[name].nbytes for name in one]
            rest += sum(one[name].nbytes - (two[name].nbytes - one[name].nbytes) for name in one)
    return each, rest


def check(
    model: Model, method: Method, solver: Solver, sizes: Tensor, participation: float, device: str = "cpu"
) -> None:
    """Refuse a run whose certain parts alone do not fit into the memory that is free now; costs no time.

    Raises
    ------
    ForecastError : what is needed, what is free, which part is the largest, what to do.
    """
    parts = certain(model, method, solver, sizes, participation)
    free = free_memory(torch.device(device))
    _fits(parts, 0, free, _advice(parts, len(sizes), cohort_size(len(sizes), participation), 0, free), sure=True)


def check_disk(now: Progression, directory: Path) -> None:
    """Refuse a run whose next checkpoint does not fit on the disk of its directory.

    Raises
    ------
    ForecastError : what is needed, what is free, what to do.
    """
    needed, free = _bytes(now.tensors().values()), shutil.disk_usage(_there(directory)).free
    if needed > free:
        raise ForecastError(
            f"A checkpoint of this run takes at least {size(needed)}, and {size(free)} are free on the disk of {directory}. "
            "Free some, or keep the run elsewhere (--runs)."
        )


def _fits(parts: Sequence[Part], held: int, free: int | None, advice: str, *, sure: bool = False) -> None:
    needed = sum(part.amount for part in parts)
    if free is None or needed <= held + free:
        return
    raise ForecastError(
        f"This run needs {'at least' if sure else 'about'} {size(needed)} of memory, and there are {size(held + free)} for it. "
        f"{_largest(parts)} {advice} "
        f"If more may be taken than is free now, set {LIMIT}, for example {LIMIT}={-(-int(needed) // (1 << 30)) + 1}GiB."
    )


def _largest(parts: Sequence[Part]) -> str:
    part = max(parts, key=lambda part: part.amount)
    return f"The largest part: {part.name}, {size(part.amount)}" + (f" ({part.about})." if part.about else ".")


def _advice(
    parts: Sequence[Part], N: int, M: int, held: int, free: int | None, engine: str = "", workers: int = 1
) -> str:
    """What to change, with the number that would fit where there is one."""
    largest = max(parts, key=lambda part: part.amount)
    others = sum(part.amount for part in parts) - largest.amount
    if largest.name == "updates of the round" and free is not None:
        fitting = int((held + free - others) / (largest.amount / M)) if M else 0
        if fitting >= 1:
            return f"Let fewer clients train in a round: participation {_share(fitting / N)} (--participation) would fit, {fitting:,} clients."
        return "Even one client a round does not fit: choose a smaller network (--network)."
    if largest.name == "state of the method":
        less = (
            "participation of at most 0.5, with which what absent clients remember is kept on disk"
            if 2 * M > N
            else "fewer clients"
        )
        return f"Choose {less}, a smaller network, or a method that remembers less of every client."
    if largest.name.startswith("training"):
        less = (
            "engine sequential, " if engine == "stacked" else f"fewer workers than {workers}, " if workers > 1 else ""
        )
        return f"Choose {less}a smaller batch (--batch-size) or a smaller network (--network)."
    if largest.name == "data":
        return "Give data sets that are read as they are needed (torch Datasets, with memory=...), or fewer samples."
    return "Choose a smaller network (--network) or fewer clients."


def _share(value: float) -> str:
    """A share rounded down to two digits."""
    digits = 1 - int(np.floor(np.log10(value)))
    return f"{np.floor(value * 10**digits) / 10**digits:.{max(digits, 1)}f}"


def free_memory(device: torch.device) -> int | None:
    """Bytes that may still be taken on a device; None where the system does not tell.

    The environment variable ``EQUIPOISE_MEMORY`` (such as ``8GiB``) is what may be taken, whatever is free.

    Raises
    ------
    ValueError : it cannot be read.
    """
    if told := os.environ.get(LIMIT):
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d+)?)\s*(\w*)\s*", told)
        if match is None or match[2] not in UNITS:
            raise ValueError(f"{LIMIT}={told}: expected a number of bytes, or one with a unit, for example 8GiB.")
        return int(float(match[1]) * UNITS[match[2]])
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [value for value in (_available(), *_of_the_group()) if value is not None]
    return min(found, default=None)


def _available() -> int | None:
    """What the system could give without taking it from a program."""
    if (told := _line(Path("/proc/meminfo"), "MemAvailable")) is not None:
        return told
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_the_group() -> Iterator[int]:
    """What a container may still take, in either version of control groups."""
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, now = (int((Path(folder) / name).read_text()) for name in (limit, used))
            stat = dict(text.split() for text in (Path(folder) / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or "max": no limit
            continue
        yield most - now + int(stat.get("inactive_file", 0))  # which the system gives back when asked


def resident(peak: bool = False) -> int:
    """Bytes of memory that this process has now, or had at most; 0 where the system does not tell."""
    return _line(Path("/proc/self/status"), "VmHWM" if peak else "VmRSS") or 0


def _line(path: Path, key: str) -> int | None:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", path.read_text(), flags=re.M)
    except OSError:
        return None
    return None if found is None else int(found[1]) << 10


# the rehearsal
class _Work(NamedTuple):
    """What a client does in a round: samples it has, steps it takes, and samples that these steps read."""

    samples: float
    steps: float
    read: float

    @staticmethod
    def of(samples: int, batch: int, epochs: int, steps: int | None) -> _Work:
        each = -(-samples // batch)
        taken = epochs * each if steps is None else steps
        return _Work(samples, taken, taken * samples / each)


def _cut(data: Samples | Stream, n: int) -> Samples | Stream:
    """The first ``n`` samples of a data set, or all where there are fewer."""
    if data.size <= n:
        return data
    if isinstance(data, Samples):
        return Samples(data.x[:n], data.y[:n], data.sizes.new_tensor(n), data.dtype, data.transform)
    return replace(data, size=n)


def _short(job: Job, rows: Sequence[int], n: int, *, epochs: int | None = None, steps: int | None = None) -> Job:
    """The job of the clients at ``rows``, the largest with at most ``n`` samples, for fewer epochs or steps."""
    part = job.part(rows)
    share = min(1.0, n / max(d.size for d in part.data))
    change: dict[str, Any] = {"data": [_cut(d, math.ceil(d.size * share)) for d in part.data]}
    s = part.settings
    change["settings"] = replace(s, epochs=epochs or s.epochs, steps=steps or s.steps)
    return replace(part, **change)


@dataclass
class _Seen:
    """What the rehearsal's engine saw."""

    job: Job
    visit: int = 0  # bytes that visiting takes beside what is there
    level: int = 0  # bytes there are when all have answered
    seconds: float = 0.0  # that went into making the answers


def _rehearse(
    e: Experiment, now: Progression, rounds: int, watch: Watch | None = None, width: int = 1
) -> tuple[_Seen, Progression, Record]:
    """One round in which one client, or a stack of ``width``, takes few steps, and the server does all its work."""
    seen: list[_Seen] = []

    def engine(job: Job) -> Iterator[Answer]:
        began = time.perf_counter()
        chosen = sorted(sorted(range(len(job.ids)), key=lambda row: job.data[row].size)[-width:])
        before = watch.start() if watch is not None else 0
        visit = stacked if width > 1 else sequential  # in this thread, which is the one that is watched
        answers = [_good(e, job, chosen, answer) for answer in visit(_short(job, chosen, LOOK, steps=2))]
        found = _Seen(job, 0 if watch is None else watch.peak - before)
        seen.append(found)
        source = [(answer, k, chosen[row]) for answer in answers for k, row in enumerate(answer.rows)]
        P = job.model.n_params
        for start in range(0, len(job.ids), width):
            rows, trained, told = range(start, min(start + width, len(job.ids))), [], []
            for row in rows:
                answer, k, of = source[row % len(source)]
                update = answer.trained[k] - job.received[of]
                update = torch.cat([update[:P].roll(row), update[P:]])  # no two clients send the same direction
                trained.append(job.received[row] + update)
                told.append(tree_map(lambda leaf, k=k: leaf[k : k + 1], [answer.reports, answer.states]))
            made = Answer(tuple(rows), torch.stack(trained), *tree_map(lambda *leaves: torch.cat(leaves), *told))
            del trained, told
            found.seconds += time.perf_counter() - began
            yield made
            del made
            began = time.perf_counter()
        answers.clear()
        source.clear()
        found.level = 0 if watch is None else watch.start()

    following, record = one_round(replace(e, engine=engine), now, rounds)
    return seen[0], following, record


def _good(e: Experiment, job: Job, rows: Sequence[int], answer: Answer) -> Answer:
    """An answer of the clients at ``rows`` of a job, unless it says that one of them failed."""
    if answer.error is not None:
        who = e.names[job.ids[rows[answer.rows[0]]]]
        raise ValueError(f"Nothing can be foretold, because {who} cannot train: {answer.error}") from answer.cause
    return answer


# time
class _Clock:
    """How long the clients of a job take, from the time of some that have little to do."""

    def __init__(self, e: Experiment, job: Job, at_once: int) -> None:
        self.e, self.job, self.device = e, job, job.received.device
        typical = statistics.median(d.size for d in job.data)
        near = sorted(range(len(job.ids)), key=lambda row: abs(job.data[row].size - typical))
        self.rows = sorted(near[:at_once])
        self.most = max(job.data[row].size for row in self.rows)
        self.groups = [[row] for row in range(len(self.rows))]  # clients whose answers come together
        self.peak = 0  # bytes that this process had at most, by when the clients had been visited
        self.costs = self._fit()

    @property
    def stack(self) -> int:
        """Clients in the largest group."""
        return max(map(len, self.groups))

    def _points(self, q: int) -> list[tuple[int, int]]:
        """Samples, and epochs (or steps), of the visits that are timed; ``q`` times as large ones as need be."""
        batch = self.job.settings.batch_size
        small, large, odd = (min(self.most, n) for n in (batch, BATCHES * batch * q, batch * q + max(2, batch // 8)))
        few, many = (
            (1, min(self.job.settings.epochs, 1 + q))
            if self.job.settings.steps is None
            else (min(self.job.settings.steps, n) for n in (2, 2 + 3 * q))
        )
        return [(small, few), (large, few), (large, many), (odd, many)]

    def _time(self, samples: int, length: int) -> tuple[float, NDArray[np.float64]]:
        """Seconds of visits, and what they are made of."""
        key = "epochs" if self.job.settings.steps is None else "steps"
        part = _short(self.job, self.rows, samples, **{key: length})
        groups: list[list[int]] = []

        def visit() -> None:
            groups.extend(list(_good(self.e, self.job, self.rows, answer).rows) for answer in self.e.engine(part))

        seconds = _seconds(visit, self.device)
        self.groups = groups
        return seconds, self._work(_longest(groups, [d.size for d in part.data]), length).sum(0)

    def _work(self, sizes: Sequence[int], length: int) -> NDArray[np.float64]:
        """For clients with so many samples: one visit, and the samples, steps and samples read in steps of it."""
        steps = None if self.job.settings.steps is None else length
        return np.array([[1, *_Work.of(n, self.job.settings.batch_size, length, steps)] for n in sizes])

    def _fit(self) -> NDArray[np.float64]:
        """Seconds of a visit, and more for each sample that is there, step, and sample that is read in a step."""
        self._time(*self._points(1)[0])  # the first time of anything is slow
        once, _ = self._time(*self._points(1)[1])
        q = 1
        while q < 64 and 8 * q * q * once < BUDGET / 2:
            q *= 2
        points, times = self._points(q), list[list[float]]()
        end = time.perf_counter() + BUDGET
        while len(times) < 7 and (not times or time.perf_counter() < end):
            found = [self._time(*point) for point in points]
            times.append([seconds for seconds, _ in found])
            self.peak = self.peak or resident(peak=True)
        self._time(*points[1])  # its groups are those of the whole job, as far as they can be known
        from scipy.optimize import nnls  # half a second and much memory, which every start would pay

        told = np.median(times, axis=0)
        work = np.stack([work for _, work in found])
        return np.asarray(nnls(work / told[:, None], np.ones(len(told)))[0])  # errors count in relation

    def visit(self, sizes: Sequence[int]) -> float:
        """Seconds of a visit on average, of clients with so many samples; those that are visited at once share them."""
        if self.stack > 1:
            sizes = _longest(self.groups, [self.job.data[row].size for row in self.rows])
        length = self.job.settings.epochs if self.job.settings.steps is None else self.job.settings.steps
        return float((self._work(sizes, length) @ self.costs).mean())


def _longest(groups: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[int]:
    """For every client the most samples in its group: who has few waits for the others."""
    return [max(sizes[row] for row in group) for group in groups for _ in group]


def _seconds(f: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    f()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _alone(e: Experiment, job: Job) -> Job:
    """A job in which clients train for themselves only."""
    method = Method.of("standalone")
    nothing: list[State] = [{} for _ in method.rules]
    return replace(
        job, rules=method.rules, states=nothing, messages=nothing, private=method.private(e.model), units=None, held=None, neurons=None
    )  # fmt: skip


def _evaluation(fed: Federation, e: Experiment, now: Progression, rounds: int) -> float:
    """Seconds of the evaluation of a round, on average over ``rounds`` more."""
    tests, sizes = fed.tests, [d.size for d in e.data]
    device, vector = now.vector.device, evaluation.published(e, now)
    some = _some(fed, 2 * e.workers)
    read = sum(d.size for d in some)

    def asked(f: Callable[[], Any]) -> float:
        """Seconds of a sample."""
        f()  # the first time of anything is slow
        return _seconds(f, device) / read

    samples = sum(d.size for d in tests.sets.values())
    last = now.t + rounds
    often = sum(t % evaluation.EVERY == 0 or t > last - evaluation.LAST for t in range(now.t + 1, last + 1)) / rounds
    plain = asked(lambda: evaluation.answers(e, vector, some))
    seconds = samples * plain
    if len(tests.measures) > 1:
        one, more = (asked(lambda m=m: [tests.score(e, vector, d, m) for d in some]) for m in ((), tests.measures))  # type: ignore[misc]
        seconds += samples * often * max(0.0, more - one)
    if not evaluation.personal(e, now):
        return seconds
    m = sizes.index(statistics.median_low(sizes))
    short = replace(e, data=(*e.data[:m], _cut(loaded(e.data[m]), BATCHES * e.settings.batch_size), *e.data[m + 1 :]))
    made = _seconds(lambda: evaluation.deployed(short, now, m), device)
    if e.method.overriding("deploy"):
        made *= sizes[m] / short.data[m].size
    own = samples if tests.groups is None else statistics.mean(tests.sets[name].size for name in tests.groups)
    return seconds + often * len(e.data) * (made + own * plain)


def _writing() -> float:
    """Seconds in which a byte of a checkpoint is hashed and written."""
    content = os.urandom(PROBE)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        hashlib.sha256(content)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return (time.perf_counter() - began) / PROBE


# all together
def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes of memory that tensors share or have to themselves."""
    found = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors if isinstance(x, Tensor)}
    return sum(found.values())


def _samples(data: Iterable[Any]) -> list[Tensor]:
    return [x for d in data if isinstance(d, Samples) for x in (d.x, d.y)]


def forecast(
    federation: Federation, rounds: int, *, directory: str | Path | None = None, progress: bool = True
) -> Forecast:
    """Foretell the memory, disk and time of ``rounds`` rounds, by rehearsing one; the federation stays as it is.

    It takes some seconds: about as long as two aggregations and twenty local steps.

    Parameters
    ----------
    federation : as it would be trained.
    rounds : >= 1.
    directory : where the run would be kept; None counts no checkpoints.
    progress : show on a terminal that something is being measured.

    Raises
    ------
    ForecastError : even what the run takes for certain does not fit, so that nothing was tried.
    ValueError : a client cannot train.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be a whole number >= 1; found {rounds!r}.")
    console = Console(stderr=True, quiet=not progress)
    with console.status("rehearsing a round") if progress and console.is_terminal else nullcontext():
        return _forecast(federation, rounds, None if directory is None else Path(directory))


def _forecast(fed: Federation, rounds: int, directory: Path | None) -> Forecast:
    e, now, choice = _with_contribution(fed), fed.progress, fed.engine_choice
    N, M, total = len(e.data), cohort_size(len(e.data), e.settings.participation), now.t + rounds
    device, sizes = now.vector.device, [d.size for d in e.data]
    workers = 1 if choice.engine == "sequential" else min(M, fed.workers)
    held = resident() if device.type == "cpu" else torch.cuda.memory_allocated(device)
    free = free_memory(device)
    sure = certain(e.model, e.method, e.solver, e.setup.sizes, e.settings.participation)[
        :2
    ]  # the state is there already
    _fits(sure, 0, free, _advice(sure, N, M, 0, free), sure=True)

    trial = _try(fed, e, now, total, STACKED if choice.engine == "stacked" else workers)
    clock = trial.clock
    kept: list[Any] = list(trial.last.tensors().values())
    absent = [x for x in kept if isinstance(x, Rows)]
    in_memory, on_disk = _bytes(kept), sum(_row(x) * len(x) for x in absent)
    changed = in_memory + M * sum(map(_row, absent))
    time_parts = [
        Part("clients", M * clock.visit(sizes), f"{M:,} visits" + (f", {workers} at a time" if workers > 1 else "")),
        Part("server", trial.server, "checks and aggregation"),
    ]
    if fed.tests.sets:
        time_parts.append(
            Part("evaluation", _evaluation(fed, e, trial.last, rounds), f"{len(fed.tests.sets)} test sets")
        )
    disk, once = list[Part](), list[Part]()
    if directory is not None:
        time_parts.append(Part("checkpoint", _writing() * changed, "if one is written every round"))
        disk.append(Part("checkpoint", 2.0 * (in_memory + on_disk), "the last one and the one that replaces it"))
        disk.append(Part("records", float(rounds * _line_length(fed, trial.record)), "metrics.jsonl"))
    if on_disk:
        disk.append(Part("absent clients", float(on_disk), f"what they remember, in {tempfile.gettempdir()}"))
    if alone := fed.collaborative and fed.alone is None:
        own = _Clock(e, _alone(e, trial.job), len(clock.rows))
        once.append(Part("every client alone", rounds * N * own.visit(sizes), f"{rounds:,} rounds of {N:,} clients"))
    memory = _memory(fed, e, trial, workers, total, held, 0 if directory is None else 2 * in_memory)
    if alone:
        memory.append(
            Part("clients alone", float(N * e.model.initial.nbytes), "their own models, for their contributions")
        )
    where = _there(Path(tempfile.gettempdir()) if directory is None else directory)
    return Forecast(
        rounds=rounds,
        clients=N,
        cohort=M,
        steps=statistics.mean(
            _Work.of(n, e.settings.batch_size, e.settings.epochs, e.settings.steps).steps for n in sizes
        ),
        engine=choice.engine,
        why=choice.why,
        workers=workers,
        memory=tuple(memory),
        held=held,
        free=free,
        disk=tuple(disk),
        disk_free=shutil.disk_usage(where).free if disk else None,
        time=tuple(time_parts),
        once=tuple(once),
        advice=_advice(memory, N, M, held, free, choice.engine, workers),
    )


def _line_length(fed: Federation, record: Record) -> int:
    """Bytes of a line of ``metrics.jsonl``, with an evaluation."""
    number = 1 / 3  # with as many digits as most
    scores = {name: dict.fromkeys(("loss", *fed.tests.measures), number) for name in fed.tests.sets}
    clients = {"clients": {"accuracy": [number] * len(fed.experiment.data)}} if scores else {}
    return len(line({**record, "groups": scores, **clients, "seconds": 0.1234}).encode())


class _Trial(NamedTuple):
    """What two rehearsals left: the job of the second, the state before and after it, its record, and seconds of the server.

    ``clock`` tells how long clients take, and ``peak`` how much memory this process had at most by then (0 if that was more before).
    """

    job: Job
    before: Progression
    last: Progression
    record: Record
    server: float
    clock: _Clock
    peak: int


def _try(fed: Federation, e: Experiment, now: Progression, rounds: int, at_once: int) -> _Trial:
    most = resident(peak=True)
    first, before, _ = _rehearse(
        e, now, rounds
    )  # the first time of anything is slow, and the state is not yet as it will be
    _look(fed, e, before)
    clock = _Clock(e, first.job, at_once)
    peak = clock.peak if clock.peak > most else 0
    began = time.perf_counter()
    seen, last, record = _rehearse(e, before, rounds, width=clock.stack)
    server = time.perf_counter() - began - seen.seconds
    return _Trial(seen.job, before, last, record, server, clock, peak)


def _look(fed: Federation, e: Experiment, now: Progression) -> None:
    """Evaluation of two batches for each worker."""
    evaluation.answers(e, evaluation.published(e, now), _some(fed, 2 * e.workers))


def _some(fed: Federation, n: int) -> list[Samples | Stream]:
    """The largest test sets, or parts of them, of ``n`` batches, if there are so many."""
    sets = sorted(fed.tests.sets.values(), key=lambda d: -d.size)[:n]
    return [_cut(d, LOOK * -(-n // len(sets))) for d in sets]


def _memory(
    fed: Federation, e: Experiment, trial: _Trial, workers: int, rounds: int, held: int, saving: int
) -> list[Part]:
    """The parts of memory; ``saving`` bytes are taken by writing a checkpoint."""
    clock = trial.clock
    with Watch() as watch:
        seen, _, _ = _rehearse(e, trial.before, rounds, watch, clock.stack)
        server = watch.peak - seen.level
        before = watch.start()
        _look(fed, replace(e, workers=1), trial.last)  # in this thread, which is the one that is watched
        looking = watch.peak - before
    batches = sum(-(-d.size // LOOK) for d in fed.tests.sets.values())
    M, N, sets = len(trial.job.ids), len(e.data), fed.tests.sets
    at_once = min(workers, -(-M // clock.stack))
    jobs = {
        f"training of {at_once * clock.stack:,} at a time": at_once * seen.visit,
        "aggregation": server,
        "evaluation": looking * max(1, min(e.workers, batches)),
        "writing a checkpoint": saving,
    }
    work = max(jobs, key=lambda name: jobs[name])
    data = _bytes(_samples([*e.data, *sets.values(), *([] if e.oracle is None else [e.oracle.source])]))
    came = [d for d, m in zip(trial.job.data, trial.job.ids, strict=True) if isinstance(e.data[m], Absent)]
    state, matrix = _bytes(trial.last.tensors().values()), M * e.model.initial.nbytes
    program = held - data - _bytes(fed.progress.tensors().values())
    parts = [
        Part("the program", float(max(0, program)), "Python, PyTorch and what else is loaded"),
        Part(
            "data",
            float(data + _bytes(_samples(came))),
            f"of {N:,} clients" + (f" and {len(sets)} test sets" if sets else ""),
        ),
        Part("state of the method", float(state), f"the model, and what {N:,} clients and the server remember"),
        Part("updates of the round", float(matrix), f"{M:,} clients x {e.model.size:,} numbers"),
        Part("answers beside them", float(max(0, seen.level - matrix)), "reports, and new states of the clients"),
        Part(work, float(jobs[work]), "what takes most beside that, at any one time"),
    ]
    unseen = trial.peak - sum(part.amount for part in parts)
    if unseen > 0:
        parts.append(
            Part("within operations", float(unseen), "scratch space that was measured, and what is kept for reuse")
        )
    if fed.engine_choice.engine == "processes":
        each = [_line(Path(f"/proc/{child.pid}/status"), "RssAnon") or 0 for child in multiprocessing.active_children()]
        parts.append(Part("worker processes", float(sum(each)), f"{len(each)} beside this one"))
    return parts


def _with_contribution(fed: Federation) -> Experiment:
    """The experiment, with clients that contribute alike where that is not known yet."""
    e = fed.experiment
    if not fed.collaborative or e.contribution is not None:
        return e
    return replace(e, contribution=torch.full_like(e.setup.sizes, 0.5))


def _row(x: Rows) -> int:
    """Bytes of a row of something on disk."""
    return x.default.nbytes


def _there(path: Path) -> Path:
    """The nearest folder of a path that exists."""
    return path if path.exists() else _there(path.absolute().parent)
