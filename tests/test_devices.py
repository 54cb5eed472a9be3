"""Rounds with ``device="cuda"``, on a machine without a GPU: no tensor may be made in the wrong place.

Tensors are where they always are; what they say of their device, and which may be used together, is as on a GPU.
"""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import equipoise as eq
from equipoise.core import client_rows as rows
from equipoise.federation import inputs as frame
from equipoise.methods import METHODS
from equipoise.system import replay
from equipoise.system.devices import usable_device
from helpers import fast_first

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
MAKERS = {
    getattr(torch, name)
    for name in [
        "tensor",
        "as_tensor",
        "zeros",
        "ones",
        "full",
        "empty",
        "eye",
        "arange",
        "linspace",
        "randn",
        "rand",
        "randint",
        "randperm",
    ]
}
MOVES = {"copy_", "_foreach_copy_"}  # these may read from another device
LOOKUPS = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"}  # a GPU takes an index from the CPU
# the program waits until a GPU has come so far and sent the values
WAITS = {
    "tolist",
    "item",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__format__",
    "cpu",
    "nonzero",
    "equal",
    "unique",
    "masked_select",
    "repeat_interleave",
    "bincount",
    "linalg_eigh",
    "linalg_solve",
}


class Places:
    """Where the memory of each tensor is said to be; what PyTorch makes by itself goes with anything."""

    def __init__(self) -> None:
        self.known: dict[int, torch.device] = {}
        self.alive: list[Any] = []  # a place in memory must not be given to another tensor

    def of(self, x: Tensor) -> torch.device | None:
        while torch._C._functorch.is_functorch_wrapped_tensor(x):
            x = torch._C._functorch.get_unwrapped(x)
        return self.known.get(x.untyped_storage()._cdata)

    def put(self, x: Tensor, where: torch.device) -> None:
        storage = x.untyped_storage()
        self.known.setdefault(storage._cdata, where)
        self.alive.append(storage)


class Together(TorchDispatchMode):
    """Every operation must find its tensors on one device, and leaves its results there."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if name in LOOKUPS:
            tensors = tensors[:1]
        found = {self.places.of(x) for x in tensors if x.dim()} - {None}
        if len(found) > 1 and name not in MOVES:
            raise RuntimeError(
                f"{name}: expected all tensors on one device, found {[self.places.of(x) for x in tensors]}"
            )
        out = func(*args, **(kwargs or {}))
        where = found or {self.places.of(x) for x in tensors} - {None}
        if len(where) == 1 and name not in MOVES:
            for x in tree_flatten(out)[0]:
                if isinstance(x, Tensor):
                    self.places.put(x, *where)
        return out


def _by_mask(index: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_flatten(index)[0])


class Pretend(TorchFunctionMode):
    """Let ``device="cuda"`` be asked for, and tensors tell where they are said to be."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places
        self.waits: Counter[str] = Counter()  # by the line of the library that waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in WAITS or (name in ("__getitem__", "__setitem__") and _by_mask(args[1])):
            self._wait(name, args[0])
        if func == Tensor.device.__get__:
            return self.places.of(args[0]) or CPU
        if name in ("numpy", "__array__") and self.places.of(args[0]) == GPU:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        asked = kwargs.pop("device", None)
        if name in ("to", "cpu", "cuda"):
            return self._moved(name, args, asked, kwargs)
        out = func(*args, **kwargs)
        if name == "__deepcopy__" and (where := self.places.of(args[0])) is not None:
            self.places.put(out, where)
        if func in MAKERS or (
            asked is not None and name.startswith(("new_", "zeros", "ones", "empty", "full", "rand"))
        ):
            reused = isinstance(out, Tensor) and self.places.of(out) is not None  # as_tensor of a tensor
            if isinstance(out, Tensor) and not reused:
                self.places.put(out, GPU if asked is not None and torch.device(asked).type == "cuda" else CPU)
        return out

    def _wait(self, name: str, x: Tensor) -> None:
        """Note that the program waits for the values of a tensor, and where."""
        if self.places.of(x) == GPU:
            ours = [line for line in traceback.extract_stack() if "equipoise" in Path(line.filename).parts]
            where = f"{Path(ours[-1].filename).stem}.{ours[-1].name}: {ours[-1].line}" if ours else "the test"
            self.waits[f"{name} in {where}"] += 1

    def _moved(self, name: str, args: Any, asked: Any, kwargs: Any) -> Tensor:
        x, dtype = args[0], kwargs.get("dtype")
        for part in args[1:]:
            if isinstance(part, Tensor):
                asked, dtype = self.places.of(part), part.dtype
            elif isinstance(part, str | torch.device):
                asked = part
            elif isinstance(part, torch.dtype):
                dtype = part
        x = x if dtype is None else x.to(dtype)
        asked = {"cpu": CPU, "cuda": GPU}.get(name, asked)
        where = None if asked is None else GPU if torch.device(asked).type == "cuda" else CPU
        if where is None or where == (self.places.of(x) or CPU):
            return x
        if name == "to" and where == CPU:
            self._wait(name, x)
        out = x.clone()
        self.places.known[out.untyped_storage()._cdata] = where
        self.places.alive.append(out.untyped_storage())
        return out


class Sending:
    """In place of CUDA graphs, which tests/test_replay.py looks at: steps are numbered on the device, and every one is sent."""

    aside = staticmethod(nullcontext)

    def capture(self, call: Any) -> Any:
        return call


@pytest.fixture
def pretend(monkeypatch):
    monkeypatch.setattr(frame, "usable_device", torch.device)
    monkeypatch.setattr(replay, "graphs", lambda device: Sending() if device.type == "cuda" else None)
    places, real = Places(), torch.from_numpy

    def from_numpy(array: Any) -> Tensor:  # the one maker that modes do not see
        out = real(array)
        places.put(out, CPU)
        return out

    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    with ExitStack() as stack:
        stack.enter_context(Together(places))
        yield stack.enter_context(Pretend(places))


def clients(n: int = 5, *, people: bool = False) -> list[tuple[np.ndarray, ...]]:
    """Clients of three classes; of two classes, with an attribute, where groups of ``people`` are treated."""
    draw = np.random.default_rng(0)
    each = [
        (
            draw.normal(size=(k, 6)).astype(np.float32),
            draw.integers(2 if people else 3, size=k),
            draw.integers(2, size=k),
        )
        for k in [9, 9, 7, 12, 5][:n]
    ]
    return each if people else [pair[:2] for pair in each]


def network(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def test_the_pretence_holds(pretend):
    near, far = torch.zeros(3), torch.zeros(3, device="cuda")
    assert near.device == CPU
    assert far.device == (far * 2).device == near.to("cuda").device == GPU
    assert far.cpu().device == near.device
    assert torch.equal(far[torch.arange(2)], far[:2])  # an index may be on the CPU
    assert (far + torch.tensor(1.0)).device == GPU  # so may a number
    for mixed in (
        lambda: near + far,
        lambda: torch.cat([near, far]),
        lambda: far.index_select(0, torch.arange(2)),
        lambda: far.index_select(0, torch.from_numpy(np.arange(2))),
    ):
        with pytest.raises(RuntimeError, match="one device"):
            mixed()
    with pytest.raises(TypeError, match="numpy"):
        far.numpy()
    weight = torch.ones(3, device="cuda", requires_grad=True)
    (found,) = torch.autograd.grad((weight * far).sum(), [weight])
    assert found.device == GPU
    doubled = torch.vmap(lambda row: row + torch.zeros(3, device=row.device))(torch.zeros(2, 3, device="cuda"))
    assert doubled.device == GPU


@pytest.mark.parametrize("engine", ["sequential", pytest.param("stacked", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", fast_first(sorted(METHODS)))
def test_a_round_stays_on_its_device(pretend, method, engine, tmp_path):
    people = "sensitive" in eq.parse(method).needs
    held_out, test = clients(2, people=people)
    more = {"attributes": {"sex": ("f", "m")}, "positive": 1} if people else {}
    fed = eq.Federation(
        network(2 if people else 3),
        clients(people=people),
        method,
        eq.SGD(lr=0.05, momentum=0.9),
        engine=engine,
        workers=1,  # the pretence holds in this thread
        device="cuda",
        batch_size=4,
        seed=1,
        participation=0.8,
        tests={"a": test, "b": held_out},
        server_validation=held_out,
        contribution=[0.5, 0.6, 0.7, 0.8, 0.9],
        measures=("accuracy", "balanced"),
        **more,
    )
    fed.fit(2, progress=False, directory=tmp_path)
    assert not [r["quarantined"] for r in fed.records if "quarantined" in r]
    assert all(x.device == GPU for x in fed.progress.tensors().values())
    sexes = test[2] if people else None
    assert fed.predict(test[0], sexes, client=0 if method == "standalone" else None).device == GPU


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_run_that_goes_on_and_looks_around_stays_on_its_device(pretend, monkeypatch, tmp_path, on_disk):
    monkeypatch.setattr(rows, "IN_MEMORY", 0 if on_disk else 1 << 20)  # what absent clients remember
    test = clients(1)[0]

    def begun() -> eq.Federation:
        settings = {"batch_size": 4, "collaborative": True, "participation": 0.4, "tests": {"a": test}}
        return eq.Federation(network(), clients(), "fedbn+scaffold", device="cuda", workers=1, **settings)

    begun().fit(1, directory=tmp_path, progress=False)
    fed = begun()
    fed.resume(tmp_path)
    fed.fit(1, directory=tmp_path, progress=False)
    assert fed.progress.t == 2
    assert isinstance(fed.progress.own, rows.Rows) == on_disk
    assert not [r["quarantined"] for r in fed.records if "quarantined" in r]
    assert all(x.device == GPU for x in fed.progress.tensors().values())
    assert fed.logits(test[0], client=1).device == GPU
    assert 0 <= fed.evaluate(*test)["accuracy"] <= 1
    assert all(p.device == GPU for p in fed.network(client=0).parameters())


def waits(pretend, method: str, engine: str, n: int, epochs: int) -> Counter[str]:
    """Of a round after the first."""
    settings = {"batch_size": 4, "workers": 1, "tests": {"a": clients(1)[0]}, "seed": 1, "epochs": epochs}
    settings |= {
        "engine": engine,
        "chunk": 2 if engine == "stacked" else None,
    }  # stacks of several clients, and several of them
    fed = eq.Federation(network(), clients() * n, method, eq.SGD(0.05, 0.9), device="cuda", **settings)
    fed.fit(1, progress=False)
    pretend.waits.clear()
    fed.fit(1, progress=False)
    return Counter(pretend.waits)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    "method", fast_first(["fedavg", "fedheal", "fedism+", "fedld", "fedproto", "scaffold"], {"fedavg"})
)
def test_no_step_and_no_client_waits_for_the_gpu(pretend, method, engine):
    once = waits(pretend, method, engine, 1, 1)
    assert waits(pretend, method, engine, 2, 1) == once
    assert waits(pretend, method, engine, 1, 3) == once
    assert sum(once.values()) < (25 if method == "fedavg" else 60), once


@pytest.mark.parametrize("name", ["cuda:2", "cuda"])
def test_a_device_is_looked_for_before_anything_is_computed(monkeypatch, name):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    if name == "cuda":
        assert usable_device(name) == torch.device("cuda")
        assert torch.backends.cudnn.deterministic
    else:
        with pytest.raises(ValueError, match=r"device 'cuda:2' is not there; found 2 GPUs, the first is cuda:0\."):
            usable_device(name)
