"""One federation over several processes, devices and machines, by ``torch.distributed``.

Rank 0 owns the run. The other ranks build the same federation, so each rank reads its data itself, and they stay in the
constructor of :class:`equipoise.Federation` until rank 0 ends. In a round, what all clients share is broadcast once; a client's own model,
state and message are sent to the rank that trains it, and its answer comes back as soon as it is trained. Messages are JSON and raw tensors.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import IO, Any

import torch
import torch.distributed
from torch import Tensor

from equipoise.core.model import Bound
from equipoise.data.samples import loaded
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import one_by_one, sequential
from equipoise.records.meta import Content
from equipoise.system import environment, memory
from equipoise.system.errors import CODE, InputError, RunError
from equipoise.system.tensor_files import NAMES, TYPES
from equipoise.system.text import Said, key_of
from equipoise.system.tree import flatten, numbered
from equipoise.system.workers import again

log = logging.getLogger(__name__)
dist: Any = torch.distributed  # much of it has no type, and some builds of PyTorch lack it
NAME = "distributed"
HERE = "127.0.0.1"
BEAT = 1.0  # seconds between signs of life of a rank that has nothing to send
PATIENCE = 120.0  # seconds without one after which a rank counts as lost
CONNECTING = 120.0  # seconds for ranks that have met to connect
PIECE = 1 << 24  # bytes of a tensor that are sent at a time, so that a slow line is no silence
JOINING = 1800.0  # seconds for all ranks to read their data
LINGER = 3.0  # seconds for rank 0 to print an error: torchrun ends it as soon as another rank ends with one
POLL = 0.05  # seconds between looks at what cannot be waited for
SLACK = 1.05  # a client stays with its rank as long as no rank takes this much longer than in the best dealing
VISITED = ("received", "states", "messages", "units", "held")  # fields of a job that have an entry for each client
TAG = 1  # of a message that nobody sends
FAILED = "failed"  # how the reason of a rank with an error begins
FOREVER = timedelta(days=365)
Send = Callable[[Tensor], object]


# how processes are started
def launched() -> bool:
    """Whether torchrun, or a program such as it, has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def rank() -> int:
    """The rank of this process, 0 if it is the only one."""
    return int(os.environ["RANK"]) if launched() else 0


def require(workers: int | None, device: str) -> None:
    """Require that it is clear which processes train, and let this one use its own GPU.

    Raises
    ------
    InputError : there are no processes, a number that contradicts torchrun's, or fewer GPUs than ranks.
    """
    if not launched() and workers is None:
        raise InputError(
            "engine='distributed' needs the processes that train. Start the command, or your script, with torchrun: "
            "torchrun --nproc-per-node 2 -m equipoise run ... --engine distributed; or give workers=2 (--workers 2) for processes of this host."
        )
    if launched() and workers not in (None, int(os.environ["WORLD_SIZE"])):
        raise InputError(
            f"workers={workers}, and torchrun has started {os.environ['WORLD_SIZE']} processes. Leave workers out."
        )
    if rank():
        logging.getLogger("equipoise").setLevel(logging.ERROR)  # rank 0 gives the same warnings
    if device.startswith("cuda") and torch.cuda.is_available():
        local, n = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if device != "cuda" or local >= n:
            raise InputError(
                f"device={device!r}: each rank takes the GPU of its number on its host, and rank {local} of {socket.gethostname()} finds {n}. "
                "Give device='cuda', and start at most one process for each GPU."
            )
        torch.cuda.set_device(local)


def _start(n: int, port: int) -> list["Child"]:
    """The ranks 1 to n - 1 on this host: this program with its arguments again."""
    if not hasattr(sys.modules["__main__"], "__file__") and "-c" not in sys.orig_argv:
        raise InputError(
            "engine='distributed' starts your program again in other processes, which a notebook or a console cannot. "
            "Write a script, or choose engine='workers' or 'processes'."
        )
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody else can connect
    variables = {"WORLD_SIZE": str(n), "MASTER_ADDR": HERE, "MASTER_PORT": str(port)}
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # rank 0 has the store already
    return [Child(k, {**os.environ, **variables, "RANK": str(k), "LOCAL_RANK": str(k)}) for k in range(1, n)]


class Child:
    """A rank that this process has started."""

    def __init__(self, rank: int, variables: Mapping[str, str]) -> None:
        self.rank = rank
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        command, none = again(), subprocess.DEVNULL
        self.process = subprocess.Popen(  # in its own session: Ctrl-C is for rank 0, which ends the others
            command, env=dict(variables), stdin=none, stdout=none, stderr=self.errors, start_new_session=True
        )

    @property
    def end(self) -> str:
        """How it has ended, in words; empty if it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(POLL)
            self.errors.seek(0)
            last = self.errors.read().decode(errors="replace").strip().splitlines()[-1:]
            return (
                f"was killed by signal {-status}"
                if status < 0
                else f"ended with status {status}{''.join(f' ({x})' for x in last)}"
            )
        return ""


def _own_store() -> Any:
    """A new store, at a free port to which only this host can connect."""
    listening = socket.create_server((HERE, 0))
    port, descriptor = listening.getsockname()[1], listening.detach()
    return dist.TCPStore(HERE, port, None, True, wait_for_workers=False, master_listen_fd=descriptor)


def _store() -> Any:
    """The store through which ranks meet."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    patience = timedelta(seconds=30 if agent else JOINING)
    store = dist.TCPStore(*_address(), None, not rank() and not agent, patience, wait_for_workers=False)
    return _of_attempt("equipoise", store)


def _address() -> tuple[str, int]:
    """Where the store is that this process was started with."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _of_attempt(name: str, store: Any) -> Any:
    """A part of a store that is new whenever torchrun starts all processes again."""
    return dist.PrefixStore(f"{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def leave() -> None:
    """Let ranks that wait for rank 0 end, if it has nothing to train."""
    with contextlib.suppress(RuntimeError):  # nobody is left
        _store().set("over", "1")


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """In another rank than 0: let rank 0 say what is wrong here before the ranks have met."""
    try:
        yield
    except Exception as error:
        store = _store()
        store.set(f"rank/{rank()}", json.dumps({"host": socket.gethostname(), "error": f"{error}"}))
        _welcomed(store)
        os._exit(1)  # it was welcome before, and rank 0 notices that it is gone


def _welcomed(store: Any) -> None:
    """Wait until rank 0 lets this one train; end if it does not, has nothing to train, or is gone."""
    with contextlib.suppress(RuntimeError):  # the store is gone
        while not store.check(["welcome"]):
            if store.check(["over"]):
                os._exit(0)
            if store.check(["refused"]):
                time.sleep(LINGER)
                os._exit(1)
            time.sleep(POLL)
        return
    os._exit(1)


# messages
def _bytes(x: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, which are not copied."""
    return x.reshape(-1).view(torch.uint8)


def _pieces(x: Tensor) -> Sequence[Tensor]:
    """The same in pieces of :data:`PIECE`; none of an empty tensor."""
    return _bytes(x).split(PIECE) if x.numel() else ()


def _listed(leaves: Mapping[str, Tensor]) -> list[tuple[str, str, list[int]]]:
    return [(name, NAMES[x.dtype], list(x.shape)) for name, x in leaves.items()]


def _send(send: Send, message: Content, tensors: Mapping[str, Tensor]) -> None:
    """Send a message and tensors by ``send``, which takes one tensor."""
    text = torch.frombuffer(bytearray(json.dumps({**message, "tensors": _listed(tensors)}).encode()), dtype=torch.uint8)
    send(torch.tensor([len(text)]))
    send(text)
    for x in tensors.values():
        for piece in _pieces(x.detach().contiguous()):
            send(piece)


def _receive(receive: Send, device: torch.device) -> tuple[Content, dict[str, Tensor]] | None:
    """A message and its tensors, as :func:`_send` sends them; None for a sign of life."""
    length = torch.zeros(1, dtype=torch.int64)
    receive(length)
    if not length.item():
        return None
    text = torch.empty(int(length), dtype=torch.uint8)
    receive(text)
    message = json.loads(text.numpy().tobytes())
    tensors = {name: torch.empty(shape, dtype=TYPES[kind], device=device) for name, kind, shape in message["tensors"]}
    for x in tensors.values():
        for piece in _pieces(x):
            receive(piece)
    return message, tensors


# dealing
def deal(costs: Sequence[float], before: Sequence[int | None], n: int) -> list[int]:
    """The rank of each client: the longest first to the rank with the least to do, or to its rank of ``before`` if that takes no longer.

    Parameters
    ----------
    costs : of each client, >= 0, in any unit.
    before : the rank of each client in an earlier round, if it has one.
    n : ranks, >= 1.
    """
    best = _dealt(costs, [None] * len(costs), n, 0.0)
    limit = SLACK * _longest(costs, best, n)
    sticky = _dealt(costs, before, n, limit)
    return sticky if _longest(costs, sticky, n) <= limit else best


def _dealt(costs: Sequence[float], before: Sequence[int | None], n: int, limit: float) -> list[int]:
    loads, ranks = [0.0] * n, [0] * len(costs)
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        k = before[row]
        if k is None or k >= n or loads[k] + costs[row] > limit:
            k = min(range(n), key=loads.__getitem__)
        ranks[row] = k
        loads[k] += costs[row]
    return ranks


def _longest(costs: Sequence[float], ranks: Sequence[int], n: int) -> float:
    return max(sum(cost for cost, k in zip(costs, ranks, strict=True) if k == rank) for rank in range(n))


# rank 0
class Ranks:
    """The other ranks, as rank 0 has them: a thread listens to each."""

    def __init__(self, group: Any, hosts: Sequence[str], device: torch.device) -> None:
        self.group, self.hosts, self.device = group, hosts, device
        self.busy = self.closed = False
        self.lost: dict[int, str] = {}
        self.heard: dict[int, float] = {}
        self.answers: queue.Queue[tuple[Content, dict[str, Tensor]]] = queue.Queue(1)  # few rows wait in memory
        self.sending: list[threading.Thread] = []
        self.listening = [threading.Thread(target=self._listen, args=(k,), daemon=True) for k in range(1, len(hosts))]
        for thread in self.listening:
            thread.start()

    def _listen(self, k: int) -> None:
        def receive(x: Tensor) -> None:
            self.heard[k] = time.monotonic()
            dist.recv(x, k, self.group)

        try:
            while not self.closed:
                if (received := _receive(receive, torch.device("cpu"))) is None:
                    continue
                message, tensors = received
                if "failed" in message:
                    self.lost[k] = f"{FAILED}: {message['failed']}"
                if {"failed", "end"} & message.keys():
                    return
                self._put(k, message, {name: x.to(self.device) for name, x in tensors.items()})
        except Exception:  # gloo's errors have no class of their own
            self.lost[k] = "has ended"

    def _put(self, k: int, message: Content, tensors: dict[str, Tensor]) -> None:
        """Let the engine have an answer; until then no other is received, and nobody counts as silent."""
        while not self.closed:
            self.heard[k] = time.monotonic()
            with contextlib.suppress(queue.Full):
                self.answers.put((message, tensors), timeout=BEAT)
                return

    def check(self, children: Sequence[Child]) -> None:
        """Require that all ranks are there.

        Raises
        ------
        RunError : naming the first that was lost, which may have ended the others, and its host.
        """
        if not self.lost and (silent := self._silent()):
            time.sleep(2 * BEAT)  # perhaps this process itself was stopped
            self.lost |= dict.fromkeys(silent & self._silent(), f"has given no sign of life for {PATIENCE:g} seconds")
        for k, why in [*self.lost.items()][:1]:
            if not k:
                raise RunError("The other ranks have ended. Start the program again.", CODE)
            ended = "" if why.startswith(FAILED) else "".join(child.end for child in children if child.rank == k)
            text = f"rank {k} on {self.hosts[k]} {ended or why}"
            raise RunError(f"{text}. The last complete round is kept: give the same command again.", CODE)

    def _silent(self) -> set[int]:
        return {k for k, heard in {**self.heard}.items() if time.monotonic() - heard > PATIENCE}

    def broadcast(self, x: Tensor, check: Callable[[], None]) -> None:
        """Send a tensor to all ranks; unlike a wait inside gloo, this can be stopped."""
        work, pause = dist.broadcast(x, 0, self.group, async_op=True), 1e-5
        while not work.is_completed():
            check()
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        try:
            work.wait()
        except RuntimeError:
            time.sleep(POLL)  # until the thread that listens has noticed, too
            check()
            raise

    def send(self, k: int, message: Content, rows: Sequence[int] = (), leaves: Sequence[Tensor] = ()) -> None:
        """Send a message, and the entries of some clients, to rank ``k``, in the background."""

        def send() -> None:
            send_tensor = partial(dist.send, dst=k, group=self.group)
            with contextlib.suppress(RuntimeError):  # who listens to it notices
                _send(send_tensor, message, {})
                for x in (x[row] for row in rows for x in leaves):
                    for piece in _pieces(x.detach().cpu().contiguous()):
                        send_tensor(piece)

        self.sending.append(threading.Thread(target=send, daemon=True))
        self.sending[-1].start()


@dataclass
class Distributed:
    """Visit clients in the processes that torchrun has started, or in ``n`` of this host, this one among them.

    The result does not depend on ``n``: it is that of the sequential engine with as many threads inside operations.
    Which rank trains a client follows from the seconds that it took before, at first from its samples.
    """

    n: int
    loads = True  # data that are loaded when a client trains are loaded by its rank
    children: list[Child] = field(default_factory=list)
    jobs: Sequence[Job] = ()  # of all clients, for each kind of training
    store: Any = None
    address: tuple[str, int] = (HERE, 0)  # of the store
    ranks: Ranks | None = None
    number: int = 0  # of the job
    seconds: dict[int, float] = field(default_factory=dict)  # of a client's last visits, the later ones counting more
    dealt: dict[int, int] = field(default_factory=dict)  # the rank of that

    def __post_init__(self) -> None:
        self.n = int(os.environ["WORLD_SIZE"]) if launched() else self.n
        if self.n == 1:
            return
        memory.keep()
        if not launched() and dist.is_initialized():
            raise RunError("There is a federation with this engine already, in other processes. End it first.", CODE)
        if launched():
            self.store, self.address = _store(), _address()
        else:
            self.store = _own_store()
            self.address = HERE, self.store.port
            weakref.finalize(self, _kill, self.children)
            self.children += _start(self.n, self.store.port)
            self.store = dist.PrefixStore("equipoise/0", self.store)

    def join(self, about: Content, unlike: Callable[[Content], str], jobs: Sequence[Job]) -> None:
        """Meet the other ranks. Except in rank 0 this does not return: the process trains clients until rank 0 ends.

        Parameters
        ----------
        about : what must agree in all ranks.
        unlike : in what that of another rank differs, in words; empty if in nothing.
        jobs : of all clients, one for each kind of training, without the vectors of a round.

        Raises
        ------
        RunError : a rank does not come, cannot begin, or has other settings, code or data.
        """
        self.jobs = jobs
        if self.n == 1:
            return
        if not rank() and self.store.add("federations", 1) > 1:
            raise RunError(
                "torchrun has started processes for one federation, and this is the second. Start each on its own.",
                CODE,
            )
        device = jobs[0].model.initial.device
        versions = {**environment.code(), "torch": torch.__version__}
        mine: Content = {"host": socket.gethostname(), "about": about, "code": versions}
        mine["kind"] = environment.kind(environment.machine(device))
        if rank():
            self.store.set(f"rank/{rank()}", json.dumps(mine))
            _welcomed(self.store)
            try:
                group = self._group(device)
            except Exception as error:  # gloo's errors have no class of their own
                self.store.set(f"alone/{rank()}", f"{error}")
                time.sleep(LINGER)
                os._exit(1)
            _serve(group, self.jobs, device)
        hosts: list[str] = [mine["host"]]
        try:
            for k in range(1, self.n):
                its = self._hello(k)
                hosts.append(its["host"])
                why = its.get("error") or unlike(its["about"])
                if not why and its["code"] != versions:
                    why = f"other code: {its['code']}, and rank 0 has {versions}"
                if why:
                    raise RunError(f"rank {k} on {its['host']} cannot train this federation: {why}", CODE)
                if its["kind"] != mine["kind"]:
                    unlike_bits = (
                        "rank %s on %s computes on %s, and rank 0 on %s: last bits may differ from those of one machine"
                    )
                    log.warning(unlike_bits, k, its["host"], its["kind"], mine["kind"])
        except BaseException:
            self.store.set("refused", "1")
            raise
        self.store.set("welcome", "1")
        self.ranks = Ranks(self._connected(device, hosts), hosts, device)
        weakref.finalize(self, _end, self.ranks, self.children)

    def _group(self, device: torch.device) -> Any:
        """The processes; None for torch's default group, if a user's script has none of its own."""
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if dist.is_initialized():
            return dist.new_group(backend=backend, timeout=FOREVER)
        # a connection of its own: who waits in one keeps all others from it
        store = dist.TCPStore(*self.address, None, False, timedelta(seconds=CONNECTING), wait_for_workers=False)
        store = _of_attempt("group", store)
        dist.init_process_group(backend, store=store, rank=rank(), world_size=self.n, timeout=FOREVER)
        return None

    def _connected(self, device: torch.device, hosts: Sequence[str]) -> Any:
        """The processes, once all have connected; this process can be stopped meanwhile.

        Raises
        ------
        RunError : one of them cannot, or is gone.
        """
        groups: list[Any] = []
        failures: list[Exception] = []

        def connect() -> None:
            try:
                groups.append(self._group(device))
            except Exception as error:  # gloo's errors have no class of their own
                failures.append(error)

        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        until = time.monotonic() + CONNECTING
        while thread.is_alive():
            thread.join(POLL)
            gone = {child.rank: child.end for child in self.children}
            gone |= {k: str(self.store.get(key)) for k in range(1, self.n) if self.store.check([key := f"alone/{k}"])}
            for k, why in gone.items():
                if why:
                    raise RunError(f"rank {k} on {hosts[k]} cannot connect to the others: {why}", CODE)
            if time.monotonic() > until:
                raise RunError(
                    f"The ranks on {', '.join(sorted({*hosts}))} have not connected within {CONNECTING:g} seconds.",
                    CODE,
                )
        if failures:
            raise RunError(f"rank 0 cannot connect to the others: {failures[0]}", CODE)
        return groups[0]

    def _hello(self, k: int) -> Content:
        """What rank ``k`` has to say before it trains."""
        until = time.monotonic() + JOINING
        while not self.store.check([f"rank/{k}"]):
            for child in self.children:
                if why := child.end:
                    raise RunError(f"rank {child.rank} on {socket.gethostname()} {why} before any training.", CODE)
            if time.monotonic() > until:
                raise RunError(f"rank {k} has not come within {JOINING:g} seconds. Look at what it has printed.", CODE)
            time.sleep(POLL)
        its: Content = json.loads(self.store.get(f"rank/{k}"))
        return its

    def check(self) -> None:
        """Require that all ranks are there, see :meth:`Ranks.check`."""
        if self.ranks is not None:
            self.ranks.check(self.children)

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready.

        Raises
        ------
        RunError : a rank is lost, or has failed.
        """
        kind = next((k for k, like in enumerate(self.jobs) if _alike(like, job)), None)
        if kind is None:  # of an analysis: the other ranks have no such job
            yield from sequential(replace(job, data=[loaded(d) for d in job.data]))
            return
        self.number += 1
        costs = self._costs(job)
        ranks = deal(costs, [self.dealt.get(m) for m in job.ids], self.n)
        self.dealt |= zip(job.ids, ranks, strict=True)
        longest_first = sorted(range(len(ranks)), key=lambda row: -costs[row])
        rows = [[row for row in longest_first if ranks[row] == k] for k in range(self.n)]
        if self.ranks is not None:
            self.ranks.busy = True
            try:
                self._send_job(job, kind, self.ranks, rows)
            except BaseException:  # perhaps in mid-message
                _end(self.ranks, self.children)
                raise
        left = len(ranks) - len(rows[0])
        for answer, seconds in _visited(job, rows[0]):
            self._time(job.ids[answer.rows[0]], seconds)
            yield answer
            while left and (more := self._answer(job, wait=False)) is not None:
                left -= 1
                yield more
        while left:
            if (more := self._answer(job, wait=True)) is not None:
                left -= 1
                yield more
        if self.ranks is not None:
            self.ranks.busy = False

    def _time(self, m: int, seconds: float) -> None:
        """Note what client ``m`` took; a single visit may have been disturbed by other programs."""
        self.seconds[m] = (self.seconds.get(m, seconds) + seconds) / 2

    def _costs(self, job: Job) -> list[float]:
        """How long each client takes: as it did, or by its samples as others did."""
        samples = [float(job.data[row].size) if job.settings.steps is None else 1.0 for row in range(len(job.ids))]
        timed = [(self.seconds[m], n) for m, n in zip(job.ids, samples, strict=True) if m in self.seconds]
        rate = sum(s for s, _ in timed) / sum(n for _, n in timed) if timed else 1.0
        return [self.seconds.get(m, rate * n) for m, n in zip(job.ids, samples, strict=True)]

    def _send_job(self, job: Job, kind: int, ranks: Ranks, rows: Sequence[Sequence[int]]) -> None:
        """Send the job to all ranks: what clients share to all at once, and to each what its clients have of their own."""
        while any(thread.is_alive() for thread in ranks.sending):  # of an abandoned round
            self.check()
            time.sleep(POLL)
        ranks.sending.clear()
        leaves = flatten({name: x for name in VISITED if (x := getattr(job, name)) is not None})
        shared = {name: x[0] for name, x in leaves.items() if x.stride(0) == 0 or not x[0].numel()}
        own = {name: x for name, x in leaves.items() if name not in shared}
        fields: Content = {"number": self.number, "kind": kind, "t": job.t, "rounds": job.rounds}
        fields |= {"threads": torch.get_num_threads(), "shared": _listed(shared)}
        fields |= {"own": _listed({name: x[0] for name, x in own.items()})}
        for k in range(1, self.n):
            its = {"rows": rows[k], "ids": [job.ids[row] for row in rows[k]]}
            ranks.send(k, {**fields, **its}, rows[k], [*own.values()])
        for x in shared.values():
            if x.numel():
                ranks.broadcast(_bytes(x.detach().contiguous()), self.check)

    def _answer(self, job: Job, *, wait: bool) -> Answer | None:
        """The next answer of another rank; None if there is none now."""
        self.check()
        assert self.ranks is not None
        try:
            message, tensors = self.ranks.answers.get(timeout=POLL) if wait else self.ranks.answers.get_nowait()
        except queue.Empty:
            return None
        if message["number"] != self.number:  # of an abandoned round
            return None
        row = message["row"]
        if not 0 <= row < len(job.ids):
            raise RunError(f"A rank answers for a client that it was not asked for (row {row}).", CODE)
        self._time(job.ids[row], message["seconds"])
        if "error" in message:
            cause = RuntimeError(message["cause"])
            return Answer((row,), torch.empty(0), [], [], Said(message["error"], message["key"]), cause)
        reports, states = (numbered(tensors, name, len(job.rules)) for name in ("reports", "states"))
        return Answer((row,), tensors["trained"][None], reports, states, losses=tensors["losses"])


def _alike(like: Job, job: Job) -> bool:
    """Whether two jobs are the same, except for the clients and the vectors of a round."""
    same = [(each.rules, each.solver, each.settings, each.secret) for each in (like, job)]
    return like.model is job.model and repr(same[0]) == repr(same[1])


def _visited(job: Job, rows: Sequence[int]) -> Iterator[tuple[Answer, float]]:
    """Visit the clients at ``rows``, whose data are loaded one after another, and measure the seconds."""
    bound = Bound(job.model)
    for row in rows:
        began = time.perf_counter()
        try:
            part = replace(job.part([row]), data=[loaded(job.data[row])])
            answer = next(one_by_one(part, bound, [0])).within([row])
        except Exception as error:  # whatever a user's function raises concerns this client only
            answer = Answer.failed(row, error)
        yield answer, time.perf_counter() - began


def _kill(children: Sequence[Child]) -> None:
    for child in children:
        child.process.kill()
        child.process.wait()


def _end(ranks: Ranks, children: Sequence[Child]) -> None:
    """Let the other ranks end, by a message if they wait for a job, otherwise as their connections end."""
    waiting = not (ranks.lost or ranks.busy)
    ranks.lost.setdefault(0, "")  # nobody is lost from here on
    if waiting:
        for k in range(1, len(ranks.hosts)):
            try:
                ranks.send(k, {"end": True})
            except RuntimeError:  # Python ends, and starts no thread any more
                with contextlib.suppress(RuntimeError):
                    _send(partial(dist.send, dst=k, group=ranks.group), {"end": True}, {})
    else:
        ranks.closed = True
        for k in range(1, len(ranks.hosts)):  # gloo closes all connections when a wait for one is too long
            with contextlib.suppress(RuntimeError):
                dist.irecv(torch.zeros(1), k, ranks.group, TAG).wait(timedelta(milliseconds=1))
    until = time.monotonic() + 5 * BEAT
    for thread in (*ranks.listening, *ranks.sending):  # none may be inside gloo when Python ends
        thread.join(max(0.0, until - time.monotonic()))
    _kill(children)
    if ranks.group is None and dist.is_initialized():
        dist.destroy_process_group()


# the other ranks
def _serve(group: Any, jobs: Sequence[Job], device: torch.device) -> None:
    """Train clients until rank 0 ends, then end this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides, and this ends with it
    outbox: queue.Queue[tuple[Content, Mapping[str, Tensor]]] = queue.Queue()
    sender = threading.Thread(target=_send_all, args=(group, outbox), daemon=True)
    sender.start()
    status = 0
    try:
        while True:
            message, _ = _receive(partial(dist.recv, src=0, group=group), device) or ({}, {})
            if "end" in message:
                outbox.put(({"end": True}, {}))
                break
            torch.set_num_threads(message["threads"])
            for answer, seconds in _visited(*_own(group, jobs, message, device)):
                outbox.put(_message(answer, message, seconds))
    except Exception as error:  # perhaps rank 0 is gone; then the sender ends this process
        status = 1
        outbox.put(({"failed": f"{type(error).__name__}: {error}"}, {}))
    sender.join()
    os._exit(status)


def _own(group: Any, jobs: Sequence[Job], message: Content, device: torch.device) -> tuple[Job, Sequence[int]]:
    """The job of this rank's clients, and their rows in it."""
    ids, like = message["ids"], jobs[message["kind"]]
    shared = {name: torch.empty(shape, dtype=TYPES[kind], device=device) for name, kind, shape in message["shared"]}
    for x in shared.values():
        if x.numel():
            dist.broadcast(_bytes(x), 0, group)
    own = {name: torch.empty([len(ids), *shape], dtype=TYPES[kind]) for name, kind, shape in message["own"]}
    for row in range(len(ids)):
        for x in own.values():
            for piece in _pieces(x[row]):
                dist.recv(piece, 0, group)
    leaves = {name: x.to(device) for name, x in own.items()}
    leaves |= {name: x.expand(len(ids), *x.shape) for name, x in shared.items()}
    fields: dict[str, Any] = {name: leaves.get(name) for name in ("received", "units", "held")}
    fields |= {name: numbered(leaves, name, len(like.rules)) for name in ("states", "messages")}
    data = [like.data[m] for m in ids]
    return replace(like, t=message["t"], rounds=message["rounds"], ids=tuple(ids), data=data, **fields), range(len(ids))


def _message(answer: Answer, job: Content, seconds: float) -> tuple[Content, Mapping[str, Tensor]]:
    """An answer to a job as rank 0 gets it."""
    about = {"number": job["number"], "row": job["rows"][answer.rows[0]], "seconds": seconds}
    if answer.error is not None:
        cause = "".join(traceback.format_exception(answer.cause)) if answer.cause else ""
        return {**about, "error": str(answer.error), "key": key_of(answer.error), "cause": cause}, {}
    tree = {"trained": answer.trained[0], "reports": answer.reports, "states": answer.states, "losses": answer.losses}
    return about, {name: x.detach().cpu() for name, x in flatten(tree).items()}


def _send_all(group: Any, outbox: "queue.Queue[tuple[Content, Mapping[str, Tensor]]]") -> None:
    """Send what is in the outbox, and signs of life between; end this process if rank 0 is gone."""
    send = partial(dist.send, dst=0, group=group)
    try:
        while True:
            try:
                message, tensors = outbox.get(timeout=BEAT)
            except queue.Empty:
                send(torch.zeros(1, dtype=torch.int64))
                continue
            _send(send, message, tensors)
            if "end" in message:
                return
    except Exception:  # gloo's errors have no class of their own
        os._exit(1)


@contextlib.contextmanager
def naming_lost(engine: object) -> Iterator[None]:
    """If the block is stopped because a rank is lost, as torchrun does by SIGTERM, raise the error that names it."""
    if not isinstance(engine, Distributed):
        yield
        return
    alone = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    try:
        if alone:
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        yield
    except RunError:
        raise
    except BaseException:
        time.sleep(10 * POLL * launched())  # until the threads that listen have noticed, too
        if engine.ranks is not None and next(iter(engine.ranks.lost), 0):
            engine.check()
        raise
    finally:
        if alone:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
