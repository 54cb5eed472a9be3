"""Steps that a GPU replays, on a machine without one: a graph is recorded and done again on the CPU, operation by operation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import equipoise as eq
from equipoise.methods import METHODS
from equipoise.system import replay
from helpers import fast_first, fitted, identical, told

CPU = torch.device("cpu")
WAITS = {"_local_scalar_dense", "nonzero", "equal"}


class Outside:
    """A tensor that a graph did not make: it knows the place in memory, and does not keep it."""

    def __init__(self, x: Tensor) -> None:
        self.storage = StorageWeakRef(x.untyped_storage())
        self.dtype, self.where = x.dtype, (x.storage_offset(), x.size(), x.stride())

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        assert storage is not None, "a graph reads or writes memory that was given back"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.where)


class Graph(TorchDispatchMode):
    """``torch.cuda.CUDAGraph`` on a CPU: what is sent while it records is not done, and is done by every replay.

    A replay does the same operations on the same memory, and leaves what they give where it was. A CPU cannot but do what it
    records; so what this wrote outside the graph is put back at the end.
    """

    made = 0
    given_up = 0

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.own: set[int] = set()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def capture_begin(self, pool: object, mode: str) -> None:
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        for memory, value in self.before.values():
            memory.copy_(value)
        Graph.made += 1

    def reset(self) -> None:
        self.sent.clear()
        Graph.given_up += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing\nSearch for it in the manual.")
        kwargs = kwargs or {}
        for x in tree_leaves((args, kwargs)):  # not all that is written is marked so: BatchNorm's statistics
            self._remember(x)
        known = {_place(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        # detached, as a network's tensors are pointed elsewhere later
        kept = tree_map_only(Tensor, lambda x: x.detach() if _place(x) in self.own else Outside(x), (args, kwargs))
        out = func(*args, **kwargs)
        new = [x.detach() for x in tree_leaves(out) if isinstance(x, Tensor) and _place(x) not in known]
        self.own |= {_place(x) for x in new}
        self.sent.append((func, *kept, new))
        return out

    def _remember(self, x: Any) -> None:
        if isinstance(x, Tensor) and _place(x) not in self.own and _place(x) not in self.before:
            memory = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
            self.before[_place(x)] = memory, memory.clone()

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, new in self.sent:
            args, kwargs = tree_map_only(Outside, Outside.tensor, (args, kwargs))
            out = func(*args, **kwargs)
            found = [x for x in tree_leaves(out) if isinstance(x, Tensor)] if new else []
            for place, x in zip(new, found, strict=True):
                place.copy_(x)


def _place(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


class Generator:
    """The GPU's generator of random numbers, which a graph that was never finished leaves waiting."""

    def __init__(self) -> None:
        self.waits = True

    def clone_state(self) -> Generator:
        return Generator()

    def graphsafe_set_state(self, other: Generator) -> None:
        assert other is not self
        self.waits = False


class Stream:
    """``torch.cuda.Stream``: who waited for whom."""

    now: Stream

    def __init__(self, device: object = None) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> replay._CudaGraphs:
    """The graphs of a GPU, for tensors on the CPU."""
    usual = Stream()
    Stream.now = usual

    @contextmanager
    def stream(one: Stream) -> Iterator[None]:
        Stream.now = one
        yield
        Stream.now = usual

    for name, value in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: (0, 1),
        "stream": stream,
        "current_stream": lambda device: Stream.now,
        "current_device": lambda: 0,
        "default_generators": (Generator(),),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Graph, "made", 0)
    monkeypatch.setattr(Graph, "given_up", 0)
    made = replay._CudaGraphs(CPU)
    monkeypatch.setattr(replay, "graphs", lambda device: made)
    return made


class Waits(nn.Sequential):
    """A network whose forward pass asks for a value."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if float(x.detach().sum()) < 1e9 else 2)


def trained(method: str, engine: str = "sequential", **given: Any) -> eq.Federation:
    """Two rounds of clients with two to nine steps an epoch."""
    return fitted(method, 2, engine=engine, batch_size=2, **{"kind": "batchnorm"} | given)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", fast_first(sorted(METHODS), ("scaffold", "ditto-personal", "fedsac", "dp")))
def test_replayed_steps_give_the_same_bits(graphs, monkeypatch, method, engine):
    found = trained(method, engine, epochs=1)
    assert Graph.made
    monkeypatch.setattr(replay, "graphs", lambda device: None)
    sent = trained(method, engine, epochs=1)
    assert identical(found, sent)
    assert told(found) == told(sent)


@pytest.mark.parametrize("solver", [eq.Adam(), eq.SGD("layers(0.01, head=0.1)", 0.9), eq.SGD(0.1, clip=0.5)], ids=str)
def test_every_solver_is_replayed(graphs, monkeypatch, solver):
    found = trained("fedprox", solver=solver)
    assert Graph.made
    monkeypatch.setattr(replay, "graphs", lambda device: None)
    assert identical(found, trained("fedprox", solver=solver))


def test_a_graph_is_made_where_enough_steps_are_alike(graphs):
    total, sent = torch.zeros(2), []

    def step(k: Tensor, kind: str) -> None:
        assert Stream.now is graphs.stream
        sent.append(kind)
        total[0 if kind == "full" else 1].add_(k[0] + 1.0)

    replay.in_turn(step, ["full", "full", "rest", "full"] * 2 + ["full"], CPU, replay=True)
    assert total.tolist() == [1 + 2 + 4 + 5 + 6 + 8 + 9, 3 + 7]
    assert sent == ["full", "full", "rest", "rest"]  # of the second, the operations of the graph
    assert Graph.made == 1
    usual = Stream.now
    assert graphs.stream.waited == [usual]
    assert usual.waited == [graphs.stream]


@pytest.mark.parametrize(("n", "may"), [(4, True), (20, False)])
def test_few_steps_and_those_that_move_in_memory_are_sent(graphs, n, may):
    seen = []
    replay.in_turn(lambda k, kind: seen.append(k), [0] * n, CPU, replay=may)
    assert seen == [*range(n)]


def test_what_no_graph_can_hold_is_sent_and_said_once(graphs, monkeypatch, caplog):
    torch.manual_seed(0)
    net = Waits(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with caplog.at_level(logging.WARNING):
        found = trained("fedavg", net=net)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert said[0].endswith("no CUDA graph can be made: operation not permitted when stream is capturing")
    assert Graph.given_up == 1
    assert not torch.cuda.default_generators[0].waits
    monkeypatch.setattr(replay, "graphs", lambda device: None)
    assert identical(found, trained("fedavg", net=net))


def test_another_error_while_a_graph_is_made_is_the_clients(graphs):
    def broken() -> None:
        raise ValueError("no such sample")

    with pytest.raises(ValueError, match="no such sample"):
        graphs.capture(broken)
    assert graphs.refused is None
    total = torch.zeros(1)
    graphs.capture(lambda: total.add_(1))()
    assert total == 1


def test_a_network_that_draws_random_numbers_is_not_replayed(graphs):
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3)).double()
    trained("fedavg", net=net)
    assert not Graph.made


def test_where_there_are_graphs(monkeypatch):
    assert replay.graphs(CPU) is None
    monkeypatch.setenv(replay.SWITCH, "0")
    assert replay.graphs(torch.device("cuda", 0)) is None
