"""No bit of a result depends on where in memory the tensors begin that a round, a client or a site is given.

The comparisons of bits can fail only where matrix products depend on it (AMD processors with MKL, for one);
what the hooks are given begins at 64 bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from test_every_method import NAMES, OF_CLIENTS
from torch import Tensor, nn

import equipoise as eq
from equipoise.engines import Stacks, Workers
from equipoise.engines.job import Answer, Engine, Job
from equipoise.engines.processes import Processes
from equipoise.engines.sequential import sequential
from equipoise.federation.trial import Progression
from equipoise.flower.codec import Parcel
from equipoise.flower.site.store import Store
from equipoise.system.tree import ALIGNMENT, aligned, flatten, tree_map
from equipoise.testing.federations import ROUNDS, people_settings
from helpers import REPRESENTATIVE, clients, consortium, federation, identical, network, samples, told

STEPS = cycle(range(1, 16))  # elements: every place that a tensor can have between two multiples of 64 bytes


def displaced(x: Any) -> Any:
    """The same numbers, which begin 1 to 15 elements behind a multiple of 64 bytes."""
    if not isinstance(x, Tensor) or not x.numel():
        return x
    step = next(STEPS)
    room = torch.empty(x.numel() + step + ALIGNMENT, dtype=x.dtype)
    first = -room.data_ptr() % ALIGNMENT // x.element_size() + step
    copy = room[first : first + x.numel()].view(x.shape)
    return copy.copy_(x.detach())


def displacing(engine: Engine) -> Engine:
    """The engine, of which neither what it is given nor what it answers begins where torch would place it."""

    def moved(job: Job) -> Iterator[Answer]:
        data = [replace(d, store=d.content.map(displaced)) for d in job.data]
        received = torch.stack([displaced(row) for row in job.received])
        parts = tree_map(displaced, (received, job.states, job.messages))
        received, states, messages = parts
        for answer in engine(replace(job, received=received, states=states, messages=messages, data=data)):
            trained, reports, states = tree_map(displaced, (answer.trained, answer.reports, answer.states))
            yield replace(answer, trained=trained, reports=reports, states=states)

    return moved


def loose(now: Progression) -> Progression:
    """What a run remembers, at such places."""
    for name in ("vector", "clients", "server", "given", "own"):
        object.__setattr__(now, name, tree_map(displaced, getattr(now, name)))
    return replace(now)  # as a checkpoint that was read, or the rules' new states


def pairs(name: str, dtype: torch.dtype, move: Callable[[Any], Any]) -> tuple[list[Any], nn.Module, dict[str, Any]]:
    """Clients, network and what else a federation needs, at places chosen by ``move``."""
    net = network().to(dtype)
    for p in net.parameters():
        p.data = move(p.data)
    of = [tuple(map(move, (x.to(dtype), y, *s))) for x, y, *s in clients(people=bool(people_settings(name)))]
    x, y = samples(30, 1)
    held = samples(40, 2)
    return of, net, {"tests": {"a": (move(x.to(dtype)), y)}, "server_validation": (move(held[0].to(dtype)), held[1])}


def run(name: str, dtype: torch.dtype, engine: Any, move: Callable[[Any], Any]) -> eq.Federation:
    data, net, more = pairs(name, dtype, move)
    fed = federation(name, data=data, net=net, engine=engine, **more)

    def again(record: dict[str, Any]) -> None:
        fed.progress = loose(fed.progress)

    fed.fit(ROUNDS, progress=False, on_round=None if move is same else again)
    return fed


def same(x: Any) -> Any:
    return x


ENGINES: dict[str, Callable[[], Engine]] = {
    "sequential": lambda: sequential,
    "workers": lambda: Workers(2),
    "processes": lambda: Processes(2),
    "stacked": lambda: Stacks(2),
}
FAST = {(name, "sequential", "float32") for name in ("fedavg", "scaffold", "fedproto+afl", "fedsac", "dp", "moon")}
FAST |= {(name, e, "float64") for name in ("moon", "fedsac") for e in ("workers", "stacked")}


AT_SITES = ("scaffold", "fedsac", "dp")  # the others wait for `make test-all`


def case(name: str, engine: str, dtype: str) -> Any:
    """The others wait for `make test-all`."""
    later = [] if (name, engine, dtype) in FAST else [pytest.mark.slow]
    return pytest.param(name, engine, dtype, id=f"{name}-{engine}-{dtype}", marks=later)


ONE_TYPE = ("workers", "processes", "stacked")  # of numbers, in turn: they call what `sequential` calls
CASES = [
    case(name, engine, dtype)
    for i, name in enumerate(NAMES)
    for j, engine in enumerate(ENGINES)
    for dtype in ("float32", "float64")
    if engine != "processes" or name in REPRESENTATIVE
    if engine not in ONE_TYPE or dtype == ("float32", "float64")[(i + j) % 2] or (name, engine, dtype) in FAST
]


@pytest.mark.parametrize(("name", "engine", "dtype"), CASES)
def test_no_bit_depends_on_where_tensors_begin(name: str, engine: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    straight = run(name, kind, ENGINES[engine](), same)
    askew = run(name, kind, displacing(ENGINES[engine]()), displaced)
    assert identical(straight, askew)
    assert told(straight) == told(askew)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in AT_SITES)) for name in OF_CLIENTS],
)
def test_nor_on_where_arrays_out_of_messages_and_files_begin(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sites(states: Path) -> Any:
        data, net, more = pairs(name, getattr(torch, dtype), same)
        fed = consortium(name, data=data, net=net, states=states, **more)
        fed.fit(ROUNDS, progress=False)
        return fed

    straight = sites(tmp_path / "one")
    read, recall, base = Parcel.of, Store.recall, Store.base
    moved: list[int] = []

    def of(records: Any) -> Parcel:
        parcel = read(records)
        moved.append(len(parcel.tensors))
        return Parcel(parcel.fields, tree_map(displaced, parcel.tensors))

    monkeypatch.setattr(Parcel, "of", staticmethod(of))
    monkeypatch.setattr(Store, "recall", lambda *args: tree_map(displaced, recall(*args)))
    monkeypatch.setattr(Store, "base", lambda *args: displaced(base(*args)))
    askew = sites(tmp_path / "two")
    assert sum(moved) > ROUNDS
    one, two = ({k: x for k, x in fed.progress.tensors().items() if "sha256" not in k} for fed in (straight, askew))
    assert one.keys() == two.keys()
    assert [k for k in one if not torch.equal(one[k], two[k])] == []
    assert told(straight) == told(askew)


def test_what_hooks_are_given_begins_at_64_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every machine, also where products do not depend on it."""
    begun: list[tuple[str, int]] = []

    def note(name: str, tree: Any) -> None:
        begun.extend((f"{name}/{key}", x.data_ptr() % ALIGNMENT) for key, x in flatten(tree).items())

    @dataclass(frozen=True)
    class Witness(eq.Rule):
        def client_state(self, setup: eq.Setup) -> dict[str, Tensor]:
            return {"v": setup.theta}

        def server_state(self, setup: eq.Setup) -> dict[str, Tensor]:
            return {"v": displaced(setup.theta)}

        def message(self, state: dict[str, Tensor], m: int) -> dict[str, Tensor]:
            return {"v": state["v"][1:]}

        def loss(self, out: eq.Out, visit: eq.Visit) -> Tensor:
            x = displaced(torch.randn(3, 6, dtype=torch.float64))
            visit.oracle.evaluator.forward(displaced(visit.start), visit.received[visit.n_params :], x)
            return torch.zeros(())

        def finish(self, theta: Tensor, visit: eq.Visit) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            note("client", {"received": visit.received, "state": visit.state, "message": visit.message})
            return {"v": displaced(theta)}, {"v": displaced(theta)}

        def aggregate(self, state: dict[str, Tensor], cohort: eq.Cohort) -> tuple[dict[str, Tensor], eq.Cohort]:
            note("server", {"state": state, "reports": cohort.reports, "updates": cohort.updates})
            return {"v": displaced(cohort.theta)}, cohort

    net = network()
    net.register_forward_pre_hook(lambda module, args: note("network", {"x": args[0]}))
    net.register_forward_pre_hook(lambda module, args: note("network", {"theta": next(module.parameters())}))
    fed = federation(Witness(), net=net, engine=displacing(sequential), tests={"a": samples(20, 1)})
    begun.clear()
    fed.fit(2, progress=False, on_round=lambda record: setattr(fed, "progress", loose(fed.progress)))
    assert {name for name, _ in begun} >= {
        "client/received", "client/state/v", "client/message/v", "network/x", "network/theta",
        "server/state/v", "server/reports/v", "server/updates",
    }  # fmt: skip
    assert [name for name, place in begun if place] == []


def test_only_what_begins_elsewhere_is_copied() -> None:
    whole = torch.arange(64.0)
    assert aligned(whole) is whole
    assert aligned(whole[16:]).data_ptr() == whole[16:].data_ptr()
    part = aligned({"a": [whole[1:9]], "b": ()})["a"][0]
    assert part.data_ptr() % ALIGNMENT == 0
    assert part.data_ptr() != whole[1:].data_ptr()
    assert torch.equal(part, whole[1:9])
