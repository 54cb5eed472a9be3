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
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from equipoise.core.model import Bound
from equipoise.data.samples import loaded
from equipoise.engines.job import Answer, Job, fields_of
from equipoise.engines.sequential import visit
from equipoise.records.meta import Content
from equipoise.system import environment, memory
from equipoise.system.errors import CODE, InputError, RunError
from equipoise.system.tensor_files import NAMES, TYPES
from equipoise.system.tree import numbered
from equipoise.system.workers import again

log = logging.getLogger(__name__)
dist: Any = torch.distributed  # much of it has no type, and some builds of PyTorch lack it
NAME = "distributed"
HERE = "127.0.0.1"
BEAT = 1.0  # seconds between signs of life of a rank that has nothing to send
PATIENCE = 120.0  # seconds without one after which a rank counts as lost
CONNECTING = 120.0  # seconds for ranks that have met to connect
PIECE = 1 << 24  # bytes of a tensor that are sent at a time, so that a slow line is no silence
WAITING = 256 << 20  # bytes of models that may wait in a rank until rank 0 receives them, which trains clients, too
JOINING = 1800.0  # seconds for all ranks to read their data
LINGER = 3.0  # seconds for rank 0 to print an error: torchrun ends it as soon as another rank ends with one
POLL = 0.05  # seconds between looks at what cannot be waited for
FAILED = "failed"  # how the reason of a rank with an error begins
TRAIN = "train"  # the verdict of rank 0 that others train
FOREVER = timedelta(days=365)
Action = Callable[..., object]
Named = Mapping[str, Tensor]


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
    return [Child({**os.environ, **variables, "RANK": str(k), "LOCAL_RANK": str(k)}) for k in range(1, n)]


class Child(subprocess.Popen[bytes]):
    """A rank that this process has started."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.said, none = tempfile.TemporaryFile(), subprocess.DEVNULL  # noqa: SIM115 (it lives as long as the process)
        # in its own session: Ctrl-C is for rank 0, which ends the others
        super().__init__(again(), env=variables, stdin=none, stdout=none, stderr=self.said, start_new_session=True)

    @property
    def end(self) -> str:
        """How it has ended, in words; empty if it has not."""
        try:
            status = self.wait(POLL)
        except subprocess.TimeoutExpired:
            return ""
        self.said.seek(0)
        last = "".join(f" ({line})" for line in self.said.read().decode(errors="replace").strip().splitlines()[-1:])
        words = f"ended with status {status}{last}"
        return words if status >= 0 else f"was killed by signal {-status}"


# the store through which ranks meet: "rank/K" is what rank K has to say, "problem" why one cannot train, and
# "verdict" what rank 0 lets all others do: train, or end with a status
def _own_store() -> Any:
    """A new store, at a free port to which only this host can connect."""
    listening = socket.create_server((HERE, 0))
    port, descriptor = listening.getsockname()[1], listening.detach()
    return dist.TCPStore(HERE, port, None, True, wait_for_workers=False, master_listen_fd=descriptor)


def _store() -> Any:
    """The store with whose address this process was started."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    patience = timedelta(seconds=30 if agent else JOINING)
    host, port, serves = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), not rank() and not agent
    return _part("equipoise", dist.TCPStore(host, port, None, serves, patience, wait_for_workers=False))


def _part(name: str, store: Any) -> Any:
    """A part of a store that is new whenever torchrun starts all processes again."""
    return dist.PrefixStore(f"{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def leave() -> None:
    """Let ranks that wait for rank 0 end, if it has nothing to train."""
    with contextlib.suppress(RuntimeError):  # nobody is left
        _store().set("verdict", "0")


@contextlib.contextmanager
def reporting(doing: str = "train this federation", store: Any = None) -> Iterator[None]:
    """Let rank 0 say what is wrong here before it trains; another rank ends."""
    try:
        yield
    except Exception as error:
        store = store or _store()
        store.set("problem", f"rank {rank()} on {socket.gethostname()} cannot {doing}: {error}")
        if rank():
            _welcomed(store)  # or not, until rank 0 has looked
            time.sleep(LINGER)
            os._exit(1)


def _welcomed(store: Any) -> None:
    """Wait until rank 0 lets this one train; end if it does not, has nothing to train, or is gone."""
    with contextlib.suppress(RuntimeError):  # the store is gone
        while not store.check(["verdict"]):  # a wait inside the store could not be stopped
            time.sleep(POLL)
        if (verdict := store.get("verdict").decode()) == TRAIN:
            return
        time.sleep(LINGER * int(verdict))
        os._exit(int(verdict))
    os._exit(1)


# messages
def _pieces(x: Tensor) -> Sequence[Tensor]:
    """The bytes of a tensor in pieces of :data:`PIECE`, none if it is empty; a contiguous one is not copied."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8).split(PIECE) if x.numel() else ()


def _send(send: Action, message: Content, tensors: Named) -> None:
    """Send a message and tensors by ``send``, which sends one tensor."""
    listed = [(name, NAMES[x.dtype], list(x.shape)) for name, x in tensors.items()]
    text = torch.frombuffer(bytearray(json.dumps({**message, "tensors": listed}).encode()), dtype=torch.uint8)
    for part in (torch.tensor([len(text)]), text, *tensors.values()):
        for piece in _pieces(part):
            send(piece)


def _receive(receive: Action, device: torch.device | None = None) -> tuple[Content, dict[str, Tensor]]:
    """A message and its tensors, which ``receive`` fills one after another; on the CPU if no device is given."""

    def received(x: Tensor) -> Tensor:
        for piece in _pieces(x):
            receive(piece)
        return x

    length = received(torch.zeros(1, dtype=torch.int64))
    message = json.loads(received(torch.empty(int(length), dtype=torch.uint8)).numpy().tobytes())
    room = {n: torch.empty(shape, dtype=TYPES[kind], device=device) for n, kind, shape in message.pop("tensors")}
    return message, {name: received(x) for name, x in room.items()}


def _send_all(outbox: "queue.Queue[Action]", beat: Action, failed: Action) -> None:
    """Send what is in the outbox, and a sign of life when there has been nothing for a while."""
    while True:
        send = beat
        with contextlib.suppress(queue.Empty):
            send = outbox.get(timeout=BEAT)
        try:
            send()
        except Exception as error:  # gloo's errors have no class of their own
            failed(error)


def _started(action: Action, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=action, args=arguments, daemon=True)
    thread.start()
    return thread


# rank 0
def deal(costs: Sequence[float], n: int) -> list[list[int]]:
    """The clients of each of ``n`` ranks: the longest first, to the rank with the least to do; ``costs`` are in any unit."""
    loads, rows = [0.0] * n, [list[int]() for _ in range(n)]
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        k = min(range(n), key=loads.__getitem__)
        rows[k].append(row)
        loads[k] += costs[row]
    return rows


class Ranks:
    """The other ranks, as rank 0 has them: a thread listens to each, and one sends to all."""

    def __init__(self, group: Any, hosts: Sequence[str], children: Sequence[Child]) -> None:
        self.group, self.hosts, self.children = group, hosts, children
        self.sends = [partial(_send, partial(dist.send, dst=k, group=group)) for k in range(1, len(hosts))]
        self.left = 0  # answers of the round
        self.lost: dict[int, str] = {}  # why; of rank 0, why it cannot send
        self.heard: dict[int, float] = {}
        self.answers: queue.Queue[tuple[Content, dict[str, Tensor]]] = queue.Queue(1)  # few rows wait in memory
        self.outbox: queue.Queue[Action] = queue.Queue()

        def failed(error: Exception) -> None:  # of gloo as a rank is lost, which who listens to it finds out, too
            self.lost.setdefault(0, f"{FAILED}: {type(error).__name__}: {error}")

        self.threads = [_started(_send_all, self.outbox, lambda: None, failed)]
        self.threads += [_started(self._listen, k) for k in range(1, len(hosts))]

    def _listen(self, k: int) -> None:
        def receive(x: Tensor) -> None:
            self.heard[k] = time.monotonic()
            dist.recv(x, k, self.group)

        try:
            while True:
                message, tensors = _receive(receive)
                if FAILED in message:
                    self.lost[k] = f"{FAILED}: {message[FAILED]}"
                elif message:
                    del self.heard[k]  # it is not silent while this process is busy
                    self.answers.put((message, tensors))
        except Exception:  # gloo's errors have no class of their own
            self.lost.setdefault(k, "has ended")

    def check(self) -> None:
        """Require that all ranks are there.

        Raises
        ------
        RunError : naming the first that was lost, which may have ended the others, and its host.
        """
        if not self.lost and (silent := self._silent()):
            time.sleep(2 * BEAT)  # perhaps this process itself was stopped
            self.lost |= dict.fromkeys(silent & self._silent(), f"has given no sign of life for {PATIENCE:g} seconds")
        until = time.monotonic() + BEAT
        while [*self.lost] == [0] and time.monotonic() < until:  # until the threads that listen have noticed, too
            with contextlib.suppress(queue.Empty):
                self.answers.get(timeout=POLL)
            ended = {k: why for k, child in enumerate(self.children, 1) if (why := child.end)}
            self.lost |= {k: why for k, why in ended.items() if k not in self.lost}
        if self.lost:
            k, why = min([*self.lost.items()], key=lambda item: not item[0])
            if k and self.children and not why.startswith(FAILED):
                why = self.children[k - 1].end or why
            if launched() and _in_main_thread() and _ours(signal.getsignal(signal.SIGTERM)):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends all others, but this prints why
            text = f"rank {k} on {self.hosts[k]} {why}"
            raise RunError(f"{text}. The last complete round is kept: give the same command again.", CODE)

    def _silent(self) -> set[int]:
        return {k for k, heard in {**self.heard}.items() if time.monotonic() - heard > PATIENCE}

    def send(
        self,
        job: Content,
        shared: Named,
        clients: Sequence[Sequence[tuple[int, int]]],
        own: Named,
        received: threading.Event,
    ) -> None:
        """Send a job and what all clients share, until all have ``received`` it; and to each rank, its clients and what they have of their own."""
        for send in self.sends:
            send({}, {})
        _send(partial(dist.broadcast, src=0, group=self.group), job, shared)
        if any(x.is_cuda for x in shared.values()):
            torch.cuda.synchronize()
        received.set()
        for send, its in zip(self.sends, clients[1:], strict=True):
            tree = {f"own/{k}/{name}": x[row].cpu() for k, (row, _) in enumerate(its) for name, x in own.items()}
            send({"clients": its}, tree)


class Distributed:
    """Visit clients in the processes that torchrun has started, or in ``n`` of this host, this one among them.

    The result does not depend on ``n``: it is that of the sequential engine with as many threads inside operations.
    Which rank trains a client follows from the seconds that it took before, at first from its samples.
    """

    loads = True  # data that are loaded when a client trains are loaded by its rank

    def __init__(self, n: int) -> None:
        self.n = int(os.environ["WORLD_SIZE"]) if launched() else n
        self.children: list[Child] = []
        self.jobs: Sequence[Job] = ()  # of all clients, for each kind of training
        self.group: Any = None
        self.ranks: Ranks | None = None
        self.number = 0  # of the job
        self.seconds: dict[int, float] = {}  # of a client's last visits, the later ones counting more
        if self.n == 1:
            return
        memory.keep()
        if launched():
            self.store = _store()
            return
        if dist.is_initialized():
            raise RunError("There is a federation with this engine already, in other processes. End it first.", CODE)
        self.store = _part("equipoise", store := _own_store())
        weakref.finalize(self, _kill, self.children)
        self.children += _start(self.n, store.port)

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
        second = "torchrun has started processes for one federation, and this is the second. Start each on its own."
        if not rank() and self.store.add("federations", 1) > 1:
            raise RunError(second, CODE)
        device = jobs[0].model.initial.device
        code, kind = {**environment.code(), "torch": torch.__version__}, environment.kind(environment.machine(device))
        mine: Content = {"host": socket.gethostname(), "about": about, "code": code, "kind": kind}
        if rank():
            self.store.set(f"rank/{rank()}", json.dumps(mine))
            _welcomed(self.store)
            self._connect(device)
            _serve(self.group, jobs, device)
        hosts, verdict = [str(mine["host"])], "1"
        try:
            hosts += [self._met(k, mine, unlike) for k in range(1, self.n)]
            verdict = TRAIN
        finally:
            self.store.set("verdict", verdict)
        _started(self._connect, device)  # so that this process can be stopped meanwhile
        late = f"The ranks on {', '.join(sorted({*hosts}))} have not connected within {CONNECTING:g} seconds."
        self._wait(lambda: self.group is not None, CONNECTING, "cannot connect to the others: {}", late)
        self.ranks = Ranks(self.group, hosts, self.children)
        weakref.finalize(self, _end, self.ranks)

    def _met(self, k: int, mine: Content, unlike: Callable[[Content], str]) -> str:
        """The host of rank ``k``, which can train the same federation."""
        late = f"rank {k} has not come within {JOINING:g} seconds. Look at what it has printed."
        self._wait(lambda: self.store.check([f"rank/{k}"]), JOINING, "{} before any training.", late)
        its: Content = json.loads(self.store.get(f"rank/{k}"))
        code = f"other code: {its['code']}, and rank 0 has {mine['code']}"
        if why := unlike(its["about"]) or code * (its["code"] != mine["code"]):
            raise RunError(f"rank {k} on {its['host']} cannot train this federation: {why}", CODE)
        if its["kind"] != mine["kind"]:
            bits = "rank %s on %s computes on %s, and rank 0 on %s: last bits may differ from those of one machine"
            log.warning(bits, k, its["host"], its["kind"], mine["kind"])
        return str(its["host"])

    def _connect(self, device: torch.device) -> None:
        """Make the group of the processes: torch's default group, if a user's script has none of its own."""
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with reporting("connect to the others", self.store):
            if dist.is_initialized():
                self.group = dist.new_group(backend=backend, timeout=FOREVER)
                return
            # a connection of its own: who waits in one keeps all others from it
            at, patience = self.store.underlying_store, timedelta(seconds=CONNECTING)
            store = _part("group", dist.TCPStore(at.host, at.port, None, False, patience, wait_for_workers=False))
            dist.init_process_group(backend, store=store, rank=rank(), world_size=self.n, timeout=FOREVER)
            self.group = dist.group.WORLD

    def _wait(self, ready: Callable[[], bool], seconds: float, ended: str, late: str) -> None:
        """Wait until something is ready.

        Raises
        ------
        RunError : a rank has a problem, or has ``ended``; or it is too ``late``.
        """
        until = time.monotonic() + seconds
        while not ready():
            if self.store.check(["problem"]):
                raise RunError(self.store.get("problem").decode(), CODE)
            for k, child in enumerate(self.children, 1):
                if why := child.end:
                    raise RunError(f"rank {k} on {socket.gethostname()} {ended.format(why)}", CODE)
            if time.monotonic() > until:
                raise RunError(late, CODE)
            time.sleep(POLL)

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready.

        Raises
        ------
        RunError : a rank is lost, or has failed.
        """
        ranks, kind = self.ranks, next((k for k, like in enumerate(self.jobs) if _alike(like, job)), None)
        bound = Bound(job.model)
        if ranks is None or kind is None:  # of an analysis: the other ranks have no such job
            yield from (_visited(job, row, bound)[0] for row in range(len(job.ids)))
            return
        self.number += 1
        rows = deal(self._costs(job), self.n)
        shared = {name: x[0] for name, x in job.leaves.items() if x.stride(0) == 0 or not x[0].numel()}
        own = {name: x for name, x in job.leaves.items() if name not in shared}
        fields: Content = {"number": self.number, "kind": kind, "t": job.t, "rounds": job.rounds}
        fields["threads"] = torch.get_num_threads()
        clients = [[(row, job.ids[row]) for row in its] for its in rows]
        ranks.left = len(job.ids)
        received = threading.Event()
        ranks.outbox.put(partial(ranks.send, fields, shared, clients, own, received))
        while job.received.is_cuda and not received.wait(POLL):  # or a rank that is lost would stop the GPU of this one
            ranks.check()
        visits, patience = (_visited(job, row, bound) for row in rows[0]), 0.0
        while ranks.left:
            ready = self._received(ranks, job, patience) or next(visits, None)
            patience = 0 if ready else POLL
            if ready:
                answer, seconds = ready
                m = job.ids[answer.rows[0]]
                self.seconds[m] = (self.seconds.get(m, seconds) + seconds) / 2  # other programs may disturb a visit
                ranks.left -= 1
                yield answer

    def _costs(self, job: Job) -> list[float]:
        """How long each client takes: as it did, or by its samples as others did."""
        samples = [float(job.data[row].size) if job.settings.steps is None else 1.0 for row in range(len(job.ids))]
        timed = [(self.seconds[m], n) for m, n in zip(job.ids, samples, strict=True) if m in self.seconds]
        rate = sum(s for s, _ in timed) / sum(n for _, n in timed) if timed else 1.0
        return [self.seconds.get(m, rate * n) for m, n in zip(job.ids, samples, strict=True)]

    def _received(self, ranks: Ranks, job: Job, patience: float) -> tuple[Answer, float] | None:
        """The next answer of another rank, and what it took; None if there is none within some seconds."""
        ranks.check()
        with contextlib.suppress(queue.Empty):
            while True:
                message, tensors = ranks.answers.get(timeout=patience)
                if message["number"] == self.number:  # of no abandoned round
                    leaves = {name: x.to(job.received.device) for name, x in tensors.items()}
                    return Answer.of(message["row"], message["words"], leaves, len(job.rules)), message["seconds"]
        return None


def _alike(like: Job, job: Job) -> bool:
    """Whether two jobs are the same, except for the clients and the vectors of a round."""
    same = [(each.rules, each.solver, each.settings, each.secret) for each in (like, job)]
    return like.model is job.model and repr(same[0]) == repr(same[1])


def _visited(job: Job, row: int, bound: Bound) -> tuple[Answer, float]:
    """Visit one client, whose data are loaded now, and measure the seconds."""
    began = time.perf_counter()
    try:
        part = replace(job.part([row]), data=[loaded(job.data[row])])
        answer = visit(part, bound, 0).within([row])
    except Exception as error:  # whatever a user's function raises concerns this client only
        answer = Answer.failed(row, error)
    return answer, time.perf_counter() - began


def _kill(children: Sequence[Child]) -> None:
    for child in children:
        child.kill()
        child.wait()


def _end(ranks: Ranks) -> None:
    """Let the other ranks end, by a message if they wait for a job, otherwise as their connections end."""
    if ranks.lost or ranks.left:
        # gloo closes all connections when a wait for one is too long: for a message that nobody sends, as they have the tag 0
        for k in range(1, len(ranks.hosts)):
            with contextlib.suppress(RuntimeError):
                dist.irecv(torch.zeros(1), k, ranks.group, 1).wait(timedelta(milliseconds=1))
    else:
        for send in ranks.sends:
            ranks.outbox.put(partial(send, {"end": True}, {}))
    ranks.outbox.put(sys.exit)  # of the thread that sends
    until = time.monotonic() + 5 * BEAT
    while any(thread.is_alive() for thread in ranks.threads) and time.monotonic() < until:
        with contextlib.suppress(queue.Empty):  # none may be inside gloo when Python ends
            ranks.answers.get(timeout=POLL)
    if dist.is_initialized() and ranks.group is dist.group.WORLD:
        dist.destroy_process_group()


# the other ranks
def _serve(group: Any, jobs: Sequence[Job], device: torch.device) -> None:
    """Train clients until rank 0 ends, then end this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides, and this ends with it
    outbox: queue.Queue[Action] = queue.Queue(max(4, WAITING // max(1, jobs[0].model.initial.nbytes)))
    send, receive = partial(_send, partial(dist.send, dst=0, group=group)), partial(dist.recv, src=0, group=group)
    sender = _started(_send_all, outbox, partial(send, {}, {}), lambda _: os._exit(1))
    try:
        while not _receive(receive)[0]:  # the end
            _round(group, jobs, device, lambda about, leaves: outbox.put(partial(send, about, leaves)))
    except Exception as error:
        time.sleep(LINGER * isinstance(error, RuntimeError))  # of gloo if another rank is lost, which rank 0 notices
        outbox.put(partial(send, {FAILED: f"{type(error).__name__}: {error}"}, {}))
        outbox.put(partial(os._exit, 1))
        sender.join()
    os._exit(0)


def _round(group: Any, jobs: Sequence[Job], device: torch.device, answer: Callable[[Content, Named], object]) -> None:
    """Train the clients of this rank in a round, of which nothing is kept."""
    fields, shared = _receive(partial(dist.broadcast, src=0, group=group), device)
    clients, own = _receive(partial(dist.recv, src=0, group=group))
    torch.set_num_threads(fields["threads"])
    like = jobs[fields["kind"]]
    bound = Bound(like.model)
    for row, job in _own(like, fields, shared, clients["clients"], own):
        answered, seconds = _visited(job, 0, bound)
        words, leaves = answered.sent()
        about = {"number": fields["number"], "row": row, "seconds": seconds, "words": words}
        answer(about, {name: x.cpu() for name, x in leaves.items()})


def _own(like: Job, fields: Content, shared: Named, clients: Sequence[Any], own: Named) -> Iterator[tuple[int, Job]]:
    """The jobs of this rank's clients, one of each, and their rows in that of the round."""
    for (row, m), its in zip(clients, numbered(own, "own", len(clients)), strict=True):
        leaves = {name: x.to(like.received.device)[None] for name, x in (*shared.items(), *its.items())}
        more = {"t": fields["t"], "rounds": fields["rounds"], **fields_of(leaves, len(like.rules))}
        yield row, replace(like, ids=(m,), data=[like.data[m]], **more)


@contextlib.contextmanager
def naming_lost(engine: object) -> Iterator[None]:
    """If the block is stopped because a rank is lost, as torchrun does by SIGTERM, raise the error that names it."""
    ranks = engine.ranks if isinstance(engine, Distributed) else None
    alone = isinstance(engine, Distributed) and _in_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    try:
        if alone:
            signal.signal(signal.SIGTERM, _leave)
        yield
    except BaseException as error:
        if ranks is not None and not isinstance(error, RunError):
            time.sleep(10 * POLL * launched())  # until the threads that listen have noticed, too
            ranks.check()
        raise
    finally:
        if alone and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _ours(handler: object) -> bool:
    """Whether a handler of signals is that of Python or of this module, and no user's."""
    return handler in (signal.SIG_DFL, _leave)


def _in_main_thread() -> bool:
    """Whether this code may handle signals."""
    return threading.current_thread() is threading.main_thread()
