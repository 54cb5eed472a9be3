"""Clients spread over worker processes: for networks and data that draw random numbers, and where threads wait for each other.

A worker gets the network, the rules and the solver once. What a round adds (received models, states, messages, samples)
lies in memory that all processes see, and so do the trained models; through pipes go numbers of clients, and reports and
states as plain bytes. A worker that dies is replaced, and its client is visited again.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import multiprocessing
import os
import signal
import tempfile
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from equipoise.core.alignment import ALIGNMENT
from equipoise.core.rule import State
from equipoise.core.tree import flatten
from equipoise.data.samples import Samples
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import OneByOne
from equipoise.system import memory

TRIES = 2  # visits of a client whose worker dies, before it is given up
PATIENCE = 10  # seconds for a worker that hung up to end
LASTING = ("model", "rules", "solver", "private", "neurons")  # fields of a job that are sent once, not in every round


class WorkerError(RuntimeError):
    """Worker processes that cannot be started, or cannot be told what to do."""


class Place(NamedTuple):
    """Where a tensor lies in a board; ``copies`` of its only row stand for that many clients, 0 if each has its own."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    copies: int


class Board:
    """Tensors in memory that other processes can open by its ``path``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.places: dict[str, Place] = {}
        end = 0
        for name, x in tensors.items():
            repeated = x.dim() > 0 and len(x) > 1 and x.stride(0) == 0
            shape = (1, *x.shape[1:]) if repeated else tuple(x.shape)
            self.places[name] = Place(end, shape, x.dtype, len(x) if repeated else 0)
            end += -(-x.element_size() * torch.Size(shape).numel() // ALIGNMENT) * ALIGNMENT
        if hasattr(os, "memfd_create"):  # memory without a name, gone with its last user
            descriptor = os.memfd_create("equipoise")
            self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
            weakref.finalize(self, os.close, descriptor)
        else:
            descriptor, self.path = tempfile.mkstemp(prefix="equipoise-")
            weakref.finalize(self, _remove, descriptor, self.path)
        os.ftruncate(descriptor, max(end, ALIGNMENT))
        self.tensors = look(self.path, self.places)
        for name, x in tensors.items():
            self.tensors[name].copy_(x[:1] if self.places[name].copies else x)


def _remove(descriptor: int, path: str) -> None:
    os.close(descriptor)
    os.unlink(path)  # noqa: PTH108 (runs when the interpreter ends, too)


def look(path: str, places: Mapping[str, Place]) -> dict[str, Tensor]:
    """The tensors of a board, one row each where all clients have the same; what is written to them all processes see."""
    end = max((p.start + p.dtype.itemsize * torch.Size(p.shape).numel() for p in places.values()), default=0)
    memory = torch.from_file(path, shared=True, size=max(end, 1), dtype=torch.uint8)
    found = {}
    for name, p in places.items():
        stop = p.start + p.dtype.itemsize * torch.Size(p.shape).numel()
        found[name] = (
            memory[p.start : stop].view(p.dtype).view(p.shape)
            if stop > p.start
            else torch.empty(p.shape, dtype=p.dtype)
        )
    return found


@dataclass
class Worker:
    """A process, the pipe to it, which lasting things it has, and the row of the client that it is at."""

    process: BaseProcess
    pipe: Connection
    has: set[int] = field(default_factory=set)
    row: int | None = None

    def send(self, *message: Any) -> None:
        """Send a message by value; ``OSError`` if the process is gone."""
        self.pipe.send_bytes(_packed(message))

    def receive(self) -> Any:
        """The next message; ``EOFError`` or ``OSError`` if the process is gone."""
        return ForkingPickler.loads(self.pipe.recv_bytes())

    def ended(self) -> None:
        """Wait for the end of a process that hung up; one that lingers is ended."""
        self.process.join(PATIENCE)
        self.process.terminate()
        self.process.join()


def _packed(message: tuple[Any, ...]) -> bytes:
    buffer = io.BytesIO()
    packer = ForkingPickler(buffer)
    packer.dispatch_table = copyreg.dispatch_table  # torch's own way would take a file descriptor for every tensor
    packer.dump(message)
    return buffer.getvalue()


class Processes:
    """Visit clients in ``n`` worker processes of one core each, the longest first.

    The result does not depend on ``n``: it is that of the sequential engine with one thread inside operations. The workers
    start with the first round and end with this object. They import the script that made them, so a script needs
    ``if __name__ == "__main__":``, and the classes of network, data and rules must be importable.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.number = 0  # of the job
        self.lasting: dict[int, Callable[[], Any]] = {}  # by number, what gives each while it is in use
        self.named = 0
        self.workers: list[Worker] = []
        weakref.finalize(self, _end, self.workers)

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready.

        Raises
        ------
        ValueError : the vectors are not on the CPU.
        WorkerError : workers do not start, or the network, a rule or the data cannot be sent to them.
        """
        if job.received.device.type != "cpu":
            raise ValueError("engine='processes' needs device='cpu'. On a GPU use engine='sequential' or 'stacked'.")
        self.number += 1
        number = self.number
        try:
            yield from self._answers(job)
        except BaseException:  # a round that is given up, perhaps in mid-message: the next begins with other workers
            if number == self.number:
                _end(self.workers)
                self.workers.clear()
            raise

    def _answers(self, job: Job) -> Iterator[Answer]:
        board = Board(_tensors(job))
        told = self._told(job, board)
        waiting, tries = deque(job.longest_first), [0] * len(job.ids)
        while len(self.workers) < min(self.n, len(waiting)):
            self.workers.append(_start())
        for k in range(len(self.workers)):
            self._brief(k, told)
        while waiting or any(worker.row is not None for worker in self.workers):
            for worker in self.workers:
                if worker.row is None and waiting:
                    worker.row = waiting.popleft()
                    tries[worker.row] += 1
                    with contextlib.suppress(OSError):  # a worker that is gone is found out below
                        worker.send("visit", worker.row)
            busy = {worker.pipe: k for k, worker in enumerate(self.workers) if worker.row is not None}
            for pipe in wait(list(busy)):
                k = busy[pipe]  # type: ignore[index]  # only these were waited for
                worker = self.workers[k]
                row = worker.row
                assert row is not None  # it is busy
                try:
                    number, error, content = worker.receive()
                except (EOFError, OSError):
                    worker.ended()
                    self.workers[k] = _start()
                    self._brief(k, told)
                    if tries[row] < TRIES:
                        waiting.appendleft(row)
                    else:
                        died = f"its worker process died {TRIES} times, last with exit code {worker.process.exitcode}"
                        yield Answer.failed(row, WorkerError(died))
                    continue
                if number != self.number:  # of a round that was given up
                    continue
                worker.row = None
                if error is not None:
                    yield Answer((row,), torch.empty(0), [], [], error, RuntimeError(content.decode()))
                else:
                    sent = load(content)
                    trained = sent.pop("trained", board.tensors["trained"][row])
                    yield _answer(row, trained, sent, len(job.rules))

    def _told(self, job: Job, board: Board) -> dict[str, Any]:
        """What a worker is told of a job, with lasting things by number."""
        samples = [
            (True, self._lasting(d.transform), d.dtype) if isinstance(d, Samples) else (False, self._lasting(d), None)
            for d in job.data
        ]
        numbers = {name: getattr(job, name) for name in NUMBERS}
        lasting = {name: self._lasting(getattr(job, name)) for name in LASTING}
        self.lasting = {n: known for n, known in self.lasting.items() if known() is not GONE}
        told = {"board": (board.path, board.places), "numbers": numbers, "lasting": lasting, "samples": samples}
        return {**told, "alive": set(self.lasting)}

    def _lasting(self, thing: Any) -> int:
        for number, known in self.lasting.items():
            if known() is thing:
                return number
        self.named += 1
        self.lasting[self.named] = _reference(thing)
        return self.named

    def _brief(self, k: int, told: dict[str, Any]) -> None:
        """Tell worker ``k`` of a job; one that died since the last is replaced."""
        for last in (False, True):
            worker = self.workers[k]
            worker.row = None
            try:
                for number in {*told["lasting"].values(), *(s[1] for s in told["samples"])} - worker.has:
                    self._give(worker, number)
                worker.has &= told["alive"]
                worker.send("job", self.number, told)
                while (answer := worker.receive())[0] != "ready":  # what it still says of a round that was given up
                    pass
            except (EOFError, OSError):
                worker.ended()
                if last:
                    raise WorkerError(
                        "Worker processes end as soon as they start. They import your script, so what it does must stand "
                        "under if __name__ == '__main__':, which a notebook or a console has not. Or use engine='workers'."
                    ) from None
                self.workers[k] = _start()
                continue
            if answer[1] is not None:
                raise WorkerError(f"{answer[1]} {CANNOT}")
            return

    def _give(self, worker: Worker, number: int) -> None:
        thing = self.lasting[number]()
        try:
            message = _packed(("keep", number, thing))
        except Exception as error:  # what cannot be pickled says so in many ways
            name = type(thing).__name__
            raise WorkerError(f"The {name} cannot be sent to worker processes ({error}). {CANNOT}") from None
        worker.pipe.send_bytes(message)
        worker.has.add(number)


GONE = object()


def _reference(thing: Any) -> Callable[[], Any]:
    """What gives a thing, and ``GONE`` once nobody else has it; small ones that cannot be let go are kept."""
    try:
        known = weakref.ref(thing)
    except TypeError:  # a tuple of rules, or None
        return lambda: thing
    return lambda: GONE if (found := known()) is None else found


CANNOT = "Define its class at the top of a module that can be imported, or use engine='workers' or 'sequential'."
NUMBERS = ("settings", "t", "rounds", "chances", "ids", "secret")


def _tensors(job: Job) -> dict[str, Tensor]:
    """All tensors of a job by name, and room for the trained models."""
    tree = {"states": job.states, "messages": job.messages}
    data = {f"x/{row}": d.x for row, d in enumerate(job.data) if isinstance(d, Samples)}
    data |= {f"y/{row}": d.y for row, d in enumerate(job.data) if isinstance(d, Samples)}
    some = {name: x for name, x in (("units", job.units), ("held", job.held)) if x is not None}
    trained = torch.empty(1, dtype=job.received.dtype).expand(job.received.shape)
    return {"received": job.received, **flatten(tree), **data, **some, "trained": trained.contiguous()}


def _answer(row: int, trained: Tensor, tensors: Mapping[str, Tensor], n_rules: int) -> Answer:
    return Answer((row,), trained[None], _parts(tensors, "reports", n_rules), _parts(tensors, "states", n_rules))


def _parts(tensors: Mapping[str, Tensor], name: str, n_rules: int) -> list[State]:
    """One dictionary per rule of the tensors named ``name/rule/key``."""
    found: list[State] = [{} for _ in range(n_rules)]
    for path, x in tensors.items():
        kind, _, rest = path.partition("/")
        if kind == name:
            rule, _, key = rest.partition("/")
            found[int(rule)][key] = x
    return found


def _start() -> Worker:
    context = multiprocessing.get_context("spawn")  # a fork of a process that has trained cannot train
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return Worker(process, ours)


def _end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()


def _work(pipe: Connection) -> None:
    """What a worker does all its life."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone, with nobody to be told
        _serve(pipe)


def _serve(pipe: Connection) -> None:
    """Do what is asked, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a stop from the keyboard is the parent's to handle
    torch.set_num_threads(1)
    memory.keep()
    worker, lasting = Worker(multiprocessing.current_process(), pipe), dict[int, Any]()
    number, job, visitor, trained = 0, None, None, torch.empty(0)
    problem: str | None = None
    while True:
        try:
            what, *told = worker.receive()
        except EOFError:  # the parent is gone
            return
        except Exception as error:
            problem = f"A worker process cannot read what it is sent ({type(error).__name__}: {error})."
            continue
        if what == "keep":
            lasting[told[0]] = told[1]
        elif what == "job":
            if problem is None:
                number = told[0]
                lasting = {n: thing for n, thing in lasting.items() if n in told[1]["alive"]}
                try:
                    job, trained = _job(told[1], lasting)
                    if visitor is None or visitor.bound.model is not job.model:
                        visitor = OneByOne(job.model)
                except Exception as error:
                    problem = f"A worker process cannot begin a round ({type(error).__name__}: {error})."
            worker.send("ready", problem)
        elif job is not None and visitor is not None:
            answer = next(visitor(job, [told[0]]))
            if answer.error is not None:
                lines = traceback.format_exception(answer.cause) if answer.cause else [answer.error]
                worker.send(number, answer.error, "".join(lines).encode())
                continue
            leaves = flatten({"reports": answer.reports, "states": answer.states})
            vector, place = answer.trained[0], trained[told[0]]
            if vector.shape == place.shape and vector.dtype == place.dtype:
                place.copy_(vector)
            else:  # the server will say what is wrong with it
                leaves["trained"] = vector
            worker.send(number, None, save({name: x.detach().contiguous().clone() for name, x in leaves.items()}))


def _job(told: dict[str, Any], lasting: Mapping[int, Any]) -> tuple[Job, Tensor]:
    """The job that was told, and where trained models go."""
    path, places = told["board"]
    tensors = look(path, places)
    for name, place in places.items():
        if place.copies:
            tensors[name] = tensors[name].expand(place.copies, *place.shape[1:])
    data = []
    for row, (inside, what, dtype) in enumerate(told["samples"]):
        y = tensors.get(f"y/{row}", torch.empty(0))
        samples = (
            Samples(tensors[f"x/{row}"], y, torch.tensor(len(y)), dtype, lasting[what]) if inside else lasting[what]
        )
        data.append(samples)
    kept = {name: lasting[number] for name, number in told["lasting"].items()}
    states, messages = (_parts(tensors, name, len(kept["rules"])) for name in ("states", "messages"))
    job = Job(
        **kept,
        **told["numbers"],
        received=tensors["received"],
        states=states,
        messages=messages,
        data=data,
        units=tensors.get("units"),
        held=tensors.get("held"),
    )
    return job, tensors["trained"]
