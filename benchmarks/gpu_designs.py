"""Ways to train the clients of a round on one GPU; ``benchmarks/gpu.py`` times them beside each other.

Every design trains the same clients from the same weights on the same batches, whose data lie on the device, and gives the
new global model. On a CPU a design does the same bookkeeping, with plain calls where a GPU would replay a graph, and without
streams; so its results can be checked there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from round import SOLVER
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

import equipoise as eq
from equipoise.core import draws
from equipoise.core.model import Model
from equipoise.federation.round import one_round
from equipoise.system.replay import SWITCH

WARM = 3  # steps before a capture: libraries set themselves up, and choose kernels

Round = Callable[[int | None], Tensor]  # trains at most so many steps of each client: the new global model [G]
Step = Callable[[], None]


@dataclass(frozen=True)
class Task:
    """Clients of one round and the batches they train on, on a device.

    ``x`` and ``y`` hold the samples of one client after another; ``rows`` [M, K, B] numbers them, -1 where a batch is not
    full and where a client has no more steps.
    """

    net: nn.Module
    model: Model
    x: Tensor
    y: Tensor
    rows: Tensor
    sizes: tuple[int, ...]
    widths: tuple[tuple[int, ...], ...]  # samples in each batch of each client
    batch: int
    epochs: int

    @staticmethod
    def of(net: nn.Module, sizes: Sequence[int], batch: int, epochs: int, shape: Sequence[int], classes: int) -> Task:
        """Random samples of clients of these sizes, where the network is and in its dtype."""
        model = Model(net)
        draw = torch.Generator().manual_seed(1)
        x = torch.randn(sum(sizes), *shape, generator=draw).to(model.initial)
        y = torch.randint(classes, (sum(sizes),), generator=draw).to(x.device)
        ids = range(len(sizes))
        drop = model.batch_norm
        index = draws.schedule(0, 0, ids, sizes, epochs, batch, drop_single=drop).index  # what seed 0 gives in round 0
        first = torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)
        used = [client[(client >= 0).any(1)] for client in index]  # short epochs have empty batches at their end
        rows = torch.full_like(index, -1)
        for m, own in enumerate(used):
            rows[m, : len(own)] = torch.where(own >= 0, own + first[m], -1)
        widths = tuple(tuple((own >= 0).sum(1).tolist()) for own in used)
        return Task(net, model, x, y, rows.to(x.device), tuple(sizes), widths, batch, epochs)

    @property
    def device(self) -> torch.device:
        """Where the samples lie."""
        return self.x.device

    @property
    def fewest(self) -> int:
        """Steps that every client has."""
        return min(map(len, self.widths))

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Samples and labels of each client."""
        return list(zip(self.x.split(self.sizes), self.y.split(self.sizes), strict=True))

    def empty(self) -> Tensor:
        """Room for the trained models [M, G]."""
        return self.model.initial.new_empty(len(self.sizes), self.model.size)

    def mean(self, trained: Tensor) -> Tensor:
        """The mean [G] of trained models [M, G], by samples; they are overwritten."""
        sizes = torch.tensor(self.sizes, dtype=trained.dtype, device=trained.device)
        return trained.mul_((sizes / sizes.sum())[:, None]).sum(0)  # no product, which TF32 might round

    def alike(self, most: int) -> list[list[int]]:
        """Clients that have batches of the same sizes, at most so many together, in order."""
        groups: list[list[int]] = []
        for m, widths in enumerate(self.widths):
            if groups and len(groups[-1]) < most and self.widths[groups[-1][0]] == widths:
                groups[-1].append(m)
            else:
                groups.append([m])
        return groups


@dataclass(frozen=True)
class Design:
    """One way to train the clients.

    Parameters
    ----------
    name : what the table calls it.
    make : sets it up for a task; the result trains one round.
    precision : ``"default"`` is PyTorch's own (TF32 in convolutions alone); ``"fp32"``, ``"tf32"`` in both convolutions and
        products, ``"bf16"`` autocast.
    channels_last : whether images and weights lie with their channels innermost.
    beside : clients that train at the same time.
    graph : whether a step is a CUDA graph.
    """

    name: str
    make: Callable[[Task, Design], Round]
    precision: str = "default"
    channels_last: bool = False
    beside: int = 1
    graph: bool = True

    def __str__(self) -> str:
        order = ", channels last" if self.channels_last else ""
        return f"{self.name}, {self.precision}{order}"

    def cast(self, device: torch.device) -> AbstractContextManager[object]:
        """Autocast, if asked for; a cache of casts would be wrong in a graph."""
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def build(self, task: Task) -> Round:
        """Set up for a task; what it needs of PyTorch's switches holds while it works, and no longer."""
        with switches(self.precision):
            run = self.make(task, self)

        def round_(most: int | None = None) -> Tensor:
            with switches(self.precision):
                return run(most)

        return round_


@contextmanager
def switches(precision: str) -> Iterator[None]:
    """PyTorch's switches for TF32, put back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    new = hasattr(cudnn, "conv")  # PyTorch 2.9 and later
    name, on, off = ("fp32_precision", "tf32", "ieee") if new else ("allow_tf32", True, False)
    wanted = {"default": (off, on), "fp32": (off, off), "tf32": (on, on), "bf16": (on, on)}[precision]
    places = (matmul, cudnn.conv if new else cudnn)
    before = [getattr(place, name) for place in places]
    try:
        for place, value in zip(places, wanted, strict=True):
            setattr(place, name, value)
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(place, name, value)


# what one would write by hand
def plain(task: Task, design: Design) -> Round:
    """One client after another, with ``torch.optim.SGD``; batches are drawn before."""
    memory = torch.channels_last if design.channels_last else torch.preserve_format
    images = task.x.dim() == 4 and design.channels_last
    x = task.x.contiguous(memory_format=torch.channels_last) if images else task.x
    net = copy.deepcopy(task.net).to(memory_format=memory).train()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    total = sum(task.sizes)
    batches = [
        [rows[k, :width].clone() for k, width in enumerate(widths)]
        for rows, widths in zip(task.rows, task.widths, strict=True)
    ]

    def run(most: int | None) -> Tensor:
        average = {name: torch.zeros_like(start[name]) for name in (*task.model.names, *task.model.buffer_names)}
        for size, order in zip(task.sizes, batches, strict=True):
            net.load_state_dict(start)
            optimiser = torch.optim.SGD(net.parameters(), SOLVER.lr, SOLVER.momentum, weight_decay=SOLVER.weight_decay)
            for rows in order[:most]:
                optimiser.zero_grad(set_to_none=True)
                with design.cast(x.device):
                    loss = functional.cross_entropy(net(x[rows]), task.y[rows])
                loss.backward()
                optimiser.step()
            state = net.state_dict()
            for name, value in average.items():
                value.add_(state[name], alpha=size / total)
        return torch.cat([value.reshape(-1) for value in average.values()])

    return run


# this library
def engine(name: str, chunk: int | None = None) -> Callable[[Task, Design], Round]:
    """A whole FedAvg round of the library by one of its engines, one client or stack at a time, with or without its graphs."""

    def make(task: Task, design: Design) -> Round:
        federation = eq.Federation(
            task.net,
            task.data(),
            "fedavg",
            SOLVER,
            batch_size=task.batch,
            epochs=task.epochs,
            engine=name,
            workers=1,
            chunk=chunk,
            device=task.device,
        )
        trial = federation.trial

        def run(most: int | None) -> Tensor:
            asked = trial if most is None else replace(trial, settings=replace(trial.settings, steps=most))
            with patch.dict(os.environ, {} if design.graph else {SWITCH: "0"}):
                return one_round(asked, federation.progress, 1)[0].vector

        return run

    return make


# candidates: clients whose steps never move in memory, so that they can be replayed
class Slot:
    """Room for one client: its step reads and writes the same memory whoever trains there.

    Batches are gathered on the device, at a step that the device counts. ``rows`` are [K, B], or [K, m, B] in a stack.
    """

    def __init__(self, task: Task, design: Design) -> None:
        self.task, self.design = task, design
        self.net = copy.deepcopy(task.model.net).train()
        if design.channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        named = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        self._settle([named[name] for name in (*task.model.names, *task.model.buffer_names)], task.rows[0])

    def _settle(self, tensors: list[Tensor], rows: Tensor) -> None:
        """Take the tensors that make the vector, trainable ones first, and room for batches."""
        self.tensors = tensors
        self.parameters = tensors[: len(self.task.model.names)]
        self.momenta = [torch.zeros_like(p) for p in self.parameters]  # in the parameter's order in memory
        self.rows = torch.zeros_like(rows)
        self.step_number = torch.zeros(1, dtype=torch.int64, device=rows.device)

    def _parts(self, vectors: Tensor) -> list[Tensor]:
        """The tensors of the network in vectors [..., G], as views."""
        model = self.task.model
        parts = vectors.split([*model.layout, *model.buffer_layout], -1)
        shapes = (*model.shapes, *model.buffer_shapes)
        return [part.view(*vectors.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]

    @torch.no_grad()
    def load(self, clients: Sequence[int]) -> None:
        """Begin with these clients: the global model, their batches, no momentum."""
        for tensor, part in zip(self.tensors, self._parts(self.task.model.initial), strict=True):
            tensor.copy_(part)
        torch._foreach_zero_(self.momenta)
        self._load_rows(clients)
        self.step_number.zero_()

    def _load_rows(self, clients: Sequence[int]) -> None:
        self.rows.copy_(self.task.rows[clients[0]])

    @torch.no_grad()
    def store(self, trained: Tensor, clients: Sequence[int]) -> None:
        """Put the trained models where they belong in [M, G]."""
        for tensor, part in zip(self.tensors, self._parts(self._room(trained, clients)), strict=True):
            part.copy_(tensor)

    def _room(self, trained: Tensor, clients: Sequence[int]) -> Tensor:
        return trained[clients[0]]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of a batch; of a stack, the sum over its clients."""
        if self.design.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return functional.cross_entropy(self.net(x), y)

    def step(self, width: int) -> None:
        """The next step, on ``width`` samples of each client."""
        rows = self.rows.index_select(0, self.step_number)[0, ..., :width]
        x, y = (value.index_select(0, rows.flatten()).unflatten(0, rows.shape) for value in (self.task.x, self.task.y))
        with self.design.cast(x.device):
            loss = self.loss(x, y)
        gradients = torch.autograd.grad(loss, self.parameters)
        # the fused step walks through memory: a gradient must lie as its parameter does
        ordered = [
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
            for g, p in zip(gradients, self.parameters, strict=True)
        ]
        with torch.no_grad():
            SOLVER.step(self.parameters, ordered, {"momentum": [*self.momenta]})
            self.step_number.add_(1)


class Stack(Slot):
    """Room for m clients, stepped as one tensor program by ``torch.vmap``."""

    def __init__(self, task: Task, design: Design, clients: int) -> None:
        self.task, self.design = task, design
        self.net = copy.deepcopy(task.model.net).train()
        self.names = (*task.model.names, *task.model.buffer_names)
        tensors = [part.clone() for part in self._parts(task.model.initial.expand(clients, -1).contiguous())]
        every = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        # what is not in the vector, such as counters of batches, which every client has of its own here
        self.rest = {n: t.detach().expand(clients, *t.shape).clone() for n, t in every.items() if n not in self.names}
        self._settle(tensors, task.rows[:clients].movedim(0, 1).contiguous())
        for parameter in self.parameters:
            parameter.requires_grad_()

    def _load_rows(self, clients: Sequence[int]) -> None:
        self.rows.copy_(self.task.rows[list(clients)].movedim(0, 1))

    def _room(self, trained: Tensor, clients: Sequence[int]) -> Tensor:
        return trained[clients[0] : clients[0] + len(clients)]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum over the clients of the mean loss of each."""

        def one(tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(self.net, tensors, (x,)), y)

        tensors = dict(zip(self.names, self.tensors, strict=True)) | self.rest
        return vmap(one)(tensors, x, y).sum()


def captured(slots: Sequence[Slot], width: int, design: Design, pool: object) -> Step:
    """The step of one or several slots as a CUDA graph, each slot on a branch of its own; on a CPU the steps themselves.

    What was loaded is spoilt.
    """

    def steps() -> None:
        for slot in slots:
            slot.step(width)

    if not design.graph or slots[0].task.device.type != "cuda":
        return steps
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM):
            for slot in slots:
                slot.step_number.zero_()
            steps()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    branches = [torch.cuda.Stream() for _ in slots[1:]]
    with torch.cuda.graph(graph, pool=pool):
        main = torch.cuda.current_stream()
        for branch, slot in zip(branches, slots[1:], strict=True):
            branch.wait_stream(main)
            with torch.cuda.stream(branch):
                slot.step(width)
        slots[0].step(width)
        for branch in branches:
            main.wait_stream(branch)
    return graph.replay


def _pool(task: Task) -> object:
    """Memory that graphs share which never run at the same time."""
    return torch.cuda.graph_pool_handle() if task.device.type == "cuda" else None


def branches(task: Task, design: Design) -> Round:
    """Clients with batches of the same sizes side by side in one graph; with ``beside=1`` one after another."""
    groups = task.alike(design.beside)
    slots = [Slot(task, design) for _ in range(max(map(len, groups)))]
    pool = _pool(task)
    replay: dict[tuple[int, int], Step] = {}
    for n, width in sorted({(len(g), w) for g in groups for w in task.widths[g[0]]}, reverse=True):
        replay[n, width] = captured(slots[:n], width, design, pool)

    def run(most: int | None) -> Tensor:
        trained = task.empty()
        for group in groups:
            used = list(zip(slots, group, strict=False))
            for slot, m in used:
                slot.load([m])
            for width in task.widths[group[0]][:most]:
                replay[len(group), width]()
            for slot, m in used:
                slot.store(trained, [m])
        return task.mean(trained)

    return run


def stacks(task: Task, design: Design) -> Round:
    """Clients with batches of the same sizes as one tensor program, by ``torch.vmap``."""
    groups = task.alike(design.beside)
    pool = _pool(task)
    slots = {n: Stack(task, design, n) for n in {len(g) for g in groups}}
    replay: dict[tuple[int, int], Step] = {}
    for n, width in sorted({(len(g), w) for g in groups for w in task.widths[g[0]]}, reverse=True):
        replay[n, width] = captured([slots[n]], width, design, pool)

    def run(most: int | None) -> Tensor:
        trained = task.empty()
        for group in groups:
            slot = slots[len(group)]
            slot.load(group)
            for width in task.widths[group[0]][:most]:
                replay[len(group), width]()
            slot.store(trained, group)
        return task.mean(trained)

    return run


BASELINE = Design("plain loop", plain, graph=False)
LIBRARY = tuple(
    Design(f"equipoise {name}" + ("" if graph else " without graphs"), engine(name), graph=graph)
    for name in ("sequential", "stacked")
    for graph in (True, False)
)
CONVOLUTIONS = (
    BASELINE,
    Design("plain loop", plain, "bf16", channels_last=True, graph=False),
    *LIBRARY,
    Design("graph", branches),
    Design("graph of 5 branches", branches, beside=5),
    Design("graph of 5 branches", branches, "bf16", channels_last=True, beside=5),
)
MANY = (
    BASELINE,
    *LIBRARY,
    Design("equipoise stacked, chunk 1,000", engine("stacked", 1000)),
    Design("graph of 20 branches", branches, beside=20),
    Design("graph of a stack of 1,000", stacks, beside=1000),
)
