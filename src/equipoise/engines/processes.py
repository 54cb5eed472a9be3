"""Clients spread over worker processes: for networks and data that draw random numbers, and where threads wait for each other.

A worker gets the network, the rules and the solver once. What a round adds (received models, states, messages, samples)
and the trained models are in shared memory; pipes carry only client numbers, and reports and states as plain bytes.
A worker that dies is replaced, and its client is visited again.
"""

import contextlib
import copyreg
import io
import multiprocessing
import os
import signal
import tempfile
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

from equipoise.core.model import Bound
from equipoise.data.batch import Batch
from equipoise.data.samples import Samples
from equipoise.engines.job import Answer, Job, draws, fields_of
from equipoise.engines.sequential import one_by_one
from equipoise.system import memory, own_code
from equipoise.system.errors import CODE, InputError, RunError
from equipoise.system.tree import ALIGNMENT, flatten, numbered
from equipoise.system.workers import isolated

TRIES = 2  # visits of a client whose worker dies, before it is given up
PATIENCE = 10  # seconds for a worker that hung up to end
CONSTANT = ("model", "rules", "solver", "private", "neurons")  # fields of a job that are sent once, not in every round


class Place(NamedTuple):
    """Where a tensor is in a board. ``copies``: clients that share its only row, 0 if each has its own."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    copies: int

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.dtype.itemsize * torch.Size(self.shape).numel()


class Board:
    """Tensors in shared memory, which other processes open by its ``path``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.places: dict[str, Place] = {}
        end = 0
        for name, x in tensors.items():
            repeated = x.dim() > 0 and len(x) > 1 and x.stride(0) == 0
            shape = (1, *x.shape[1:]) if repeated else tuple(x.shape)
            self.places[name] = Place(end, shape, x.dtype, len(x) if repeated else 0)
            end = -(-self.places[name].stop // ALIGNMENT) * ALIGNMENT
        if hasattr(os, "memfd_create"):  # memory without a name, gone with its last user
            descriptor = os.memfd_create("equipoise")
            self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        else:
            descriptor, self.path = tempfile.mkstemp(prefix="equipoise-")
            weakref.finalize(self, os.unlink, self.path)
        weakref.finalize(self, os.close, descriptor)  # before the other
        os.ftruncate(descriptor, max(end, ALIGNMENT))
        self.tensors = shared_tensors(self.path, self.places)
        for name, x in tensors.items():
            self.tensors[name].copy_(x[:1] if self.places[name].copies else x)


def shared_tensors(path: str, places: Mapping[str, Place]) -> dict[str, Tensor]:
    """The tensors of a board, in shared memory; a single row where all clients have the same."""
    end = max((p.stop for p in places.values()), default=0)
    memory = torch.from_file(path, shared=True, size=max(end, 1), dtype=torch.uint8)
    return {name: memory[p.start : p.stop].view(p.dtype).view(p.shape) for name, p in places.items()}


@dataclass
class Worker:
    """A process, the pipe to it, the numbers of the constant objects that it holds, and the row of the client it visits."""

    process: BaseProcess
    pipe: Connection
    holds: set[int] = field(default_factory=set)
    row: int | None = None

    def send(self, *message: Any) -> None:
        """Send a message by value; ``OSError`` if the process is gone."""
        self.pipe.send_bytes(_packed(message))

    def receive(self) -> Any:
        """The next message; ``EOFError`` or ``OSError`` if the process is gone."""
        return ForkingPickler.loads(self.pipe.recv_bytes())

    def close(self) -> None:
        """Wait for a process that closed its pipe to end; terminate it if it does not."""
        self.process.join(PATIENCE)
        self.process.terminate()
        self.process.join()


def _packed(message: tuple[Any, ...]) -> bytes:
    buffer = io.BytesIO()
    packer = ForkingPickler(buffer)
    packer.dispatch_table = copyreg.dispatch_table  # torch's reducers would take a file descriptor for every tensor
    packer.dump(message)
    return buffer.getvalue()


def can_be_sent(thing: Any) -> bool:
    """Whether worker processes can be sent an object."""
    try:
        _packed(("keep", 0, thing))
    except Exception:  # pickling fails with many kinds of errors
        return False
    return True


class Processes:
    """Visit clients in ``n`` worker processes of one core each, the longest first.

    The result does not depend on ``n``: it is that of the sequential engine with one thread inside operations. The workers
    start with the first round and end with this object. They import the script that made them, so a script needs
    ``if __name__ == "__main__":``, and the classes of network, data and rules must be importable.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.number = 0  # of the job
        self.constants: dict[int, Callable[[], Any]] = {}  # by number, references to objects that workers hold
        self.last_constant = 0
        self.workers: list[Worker] = []
        weakref.finalize(self, _end, self.workers)

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready.

        Raises
        ------
        ValueError : the vectors are not on the CPU.
        RunError : workers do not start, or the network, a rule or the data cannot be sent to them.
        """
        if job.received.device.type != "cpu":
            raise ValueError("engine='processes' needs device='cpu'. On a GPU use engine='sequential' or 'stacked'.")
        self.number += 1
        number = self.number
        try:
            yield from self._answers(job)
        except BaseException:  # the round was abandoned, perhaps in mid-message: the next begins with new workers
            if number == self.number:
                _end(self.workers)
                self.workers.clear()
            raise

    def _answers(self, job: Job) -> Iterator[Answer]:
        board = Board(_tensors(job))
        message = self._message(job, board)
        waiting, tries = deque(job.longest_first), [0] * len(job.ids)
        while len(self.workers) < min(self.n, len(waiting)):
            self.workers.append(_start())
        for k in range(len(self.workers)):
            self._send_job(k, message, job)
        while waiting or any(worker.row is not None for worker in self.workers):
            for worker in self.workers:
                if worker.row is None and waiting:
                    worker.row = waiting.popleft()
                    tries[worker.row] += 1
                    with contextlib.suppress(OSError):  # a worker that is gone is replaced below
                        worker.send("visit", worker.row)
            busy = {worker.pipe: k for k, worker in enumerate(self.workers) if worker.row is not None}
            for pipe in wait(list(busy)):
                k = busy[pipe]  # type: ignore[index]  # only these were waited for
                worker = self.workers[k]
                row = worker.row
                assert row is not None  # it is busy
                try:
                    number, words, content = worker.receive()
                except (EOFError, OSError):
                    worker.close()
                    self.workers[k] = _start()
                    self._send_job(k, message, job)
                    if tries[row] < TRIES:
                        waiting.appendleft(row)
                    else:
                        died = f"its worker process died {TRIES} times, last with exit code {worker.process.exitcode}"
                        yield Answer.failed(row, ChildProcessError(died))
                    continue
                if number != self.number:  # of an abandoned round
                    continue
                worker.row = None
                leaves = {"trained": board.tensors["trained"][row], **load(content)}
                yield Answer.of(row, words, leaves, len(job.rules))

    def _message(self, job: Job, board: Board) -> dict[str, Any]:
        """What a worker needs to know of a job, with constant objects by number."""
        samples = [(self._constant(d if d.content is None else d.transform), d.dtype) for d in job.data]
        fields = {name: getattr(job, name) for name in FIELDS}
        constants = {name: self._constant(getattr(job, name)) for name in CONSTANT}
        self.constants = {n: reference for n, reference in self.constants.items() if reference() is not GONE}
        message = {"board": (board.path, board.places), "fields": fields, "constants": constants, "samples": samples}
        return {**message, "alive": set(self.constants)}

    def _constant(self, thing: Any) -> int:
        """The number of a constant object, a new one if it has none."""
        for number, reference in self.constants.items():
            if reference() is thing:
                return number
        self.last_constant += 1
        self.constants[self.last_constant] = _reference(thing)
        return self.last_constant

    def _send_job(self, k: int, message: dict[str, Any], job: Job) -> None:
        """Send the message about a job to worker ``k``, which is replaced if it has died."""
        for last in (False, True):
            worker = self.workers[k]
            worker.row = None
            try:
                for number in {
                    *message["constants"].values(),
                    *(number for number, _ in message["samples"]),
                } - worker.holds:
                    self._send_constant(worker, number, job)
                worker.holds &= message["alive"]
                worker.send("job", self.number, message)
                while (answer := worker.receive())[0] != "ready":  # answers of an abandoned round
                    pass
            except (EOFError, OSError):
                worker.close()
                if last:
                    raise RunError(
                        "Worker processes end as soon as they start. They import your script, so put what it does under "
                        f"if __name__ == '__main__': (a notebook or a console cannot). Or use {_others(job)}.",
                        CODE,
                    ) from None
                self.workers[k] = _start()
                continue
            if answer[1] is not None:
                raise RunError(f"{answer[1]} {_instead(job)}", CODE)
            return

    def _send_constant(self, worker: Worker, number: int, job: Job) -> None:
        thing = self.constants[number]()
        try:
            message = _packed(("keep", number, thing))
        except Exception as error:  # pickling fails with many kinds of errors
            name = type(thing).__name__
            raise RunError(f"The {name} cannot be sent to worker processes ({error}). {_instead(job)}", CODE) from None
        worker.pipe.send_bytes(message)
        worker.holds.add(number)


def _others(job: Job) -> str:
    """The engines that can train the same, in words."""
    return "engine='sequential'" if draws(job) else "engine='workers' or 'sequential'"


def _instead(job: Job) -> str:
    """What to do where something cannot be sent."""
    return f"If its class is inside a function, define it at the top of a module that can be imported; otherwise use {_others(job)}."


GONE = object()


def _reference(thing: Any) -> Callable[[], Any]:
    """A weak reference that gives ``GONE`` after the object's end; a strong one where Python has no weak ones."""
    try:
        weak = weakref.ref(thing)
    except TypeError:  # a tuple of rules, or None
        return lambda: thing
    return lambda: GONE if (alive := weak()) is None else alive


FIELDS = ("settings", "t", "rounds", "chances", "ids", "secret")  # sent with every job


def _tensors(job: Job) -> dict[str, Tensor]:
    """All tensors of a job by name, and room for the trained models."""
    data = [{} if d.content is None else d.content.leaves for d in job.data]
    return job.leaves | flatten({"data": data, "trained": torch.empty(job.received.shape, dtype=job.received.dtype)})


def _start() -> Worker:
    context = multiprocessing.get_context("spawn")  # a fork of a process that has trained cannot train
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, own_code.files()), daemon=True)
    with isolated():
        process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return Worker(process, ours)


def _end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()


def _work(pipe: Connection, files: Sequence[str]) -> None:
    """The main function of a worker; ``files`` are the user's own code."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        _serve(pipe, files)


def _serve(pipe: Connection, files: Sequence[str]) -> None:
    """Answer messages until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles a stop from the keyboard
    torch.set_num_threads(1)
    memory.keep()
    worker, constants = Worker(multiprocessing.current_process(), pipe), dict[int, Any]()
    number, job, bound, trained = 0, None, None, torch.empty(0)
    problem: str | None = None
    for file in files:
        with contextlib.suppress(InputError):  # what is gone may not be needed
            own_code.run_file(file)
    while True:
        try:
            kind, *content = worker.receive()
        except EOFError:  # the parent is gone
            return
        except Exception as error:
            problem = f"A worker process cannot read what it is sent ({type(error).__name__}: {error})."
            continue
        if kind == "keep":
            constants[content[0]] = content[1]
        elif kind == "job":
            if problem is None:
                number = content[0]
                constants = {n: thing for n, thing in constants.items() if n in content[1]["alive"]}
                try:
                    job, trained = _job(content[1], constants)
                    if bound is None or bound.model is not job.model:
                        bound = Bound(job.model)
                except Exception as error:
                    problem = f"A worker process cannot begin a round ({type(error).__name__}: {error})."
            worker.send("ready", problem)
        elif job is not None and bound is not None:
            row = content[0]
            words, leaves = next(one_by_one(job, bound, [row])).sent()
            vector, place = leaves.get("trained"), trained[row]
            if vector is not None and vector.shape == place.shape and vector.dtype == place.dtype:
                place.copy_(leaves.pop("trained"))  # if not, the server reports what is wrong with it
            worker.send(number, words, save({name: x.contiguous().clone() for name, x in leaves.items()}))


def _job(message: dict[str, Any], constants: Mapping[int, Any]) -> tuple[Job, Tensor]:
    """The job of a message, and the tensor for the trained models."""
    path, places = message["board"]
    tensors = shared_tensors(path, places)
    for name, place in places.items():
        if place.copies:
            tensors[name] = tensors[name].expand(place.copies, *place.shape[1:])
    leaves = numbered(tensors, "data", len(message["samples"]))
    data = [
        Samples(Batch.from_leaves(held), dtype, torch.device("cpu"), constants[number]) if held else constants[number]
        for held, (number, dtype) in zip(leaves, message["samples"], strict=True)
    ]
    constant = {name: constants[number] for name, number in message["constants"].items()}
    own = fields_of(tensors, len(constant["rules"]))
    return Job(**constant, **message["fields"], **own, data=data), tensors["trained"]
