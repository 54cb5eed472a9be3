"""Copies of a network: every client trains on one, so nothing may make them impossible or let them share what changes."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Iterator, Mapping, Set
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from equipoise.system.errors import InputError

# what nn.Module keeps for itself, hooks among it, and what an RNN keeps of its own parameters
INTERNAL = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs", "_flat_weights_names"}
PARTS = 256  # of a value that are looked at after every visit
SMALLEST = 16  # units in the last place by which two computations of the same may differ
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
OPAQUE = (*FUNCTIONS, type, types.ModuleType, weakref.ref, property, classmethod, staticmethod)
PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, range, slice)


class Place(NamedTuple):
    """Where something is in a network: its module ("" for the network itself), the name there, and its kind."""

    module: str
    name: str
    kind: str

    @staticmethod
    def of(path: str, kind: str) -> Place:
        """The place of a tensor by its name in the state dictionary."""
        module, _, name = path.rpartition(".")
        return Place(module, name, kind)

    @property
    def path(self) -> str:
        """The whole name."""
        return ".".join(filter(None, (self.module, self.name)))

    def __str__(self) -> str:
        return f"{self.kind} {self.path!r}"


class NetworkError(InputError):
    """A network that cannot be trained as it is, and what to do.

    The field ``harmless`` is what of it may leave a site, as the server's network has the same names: nothing of values and of others' errors.
    """


def copied(net: nn.Module) -> nn.Module:
    """A deep copy of a network, also where it holds computed tensors, as ``torch.nn.utils.weight_norm`` does."""
    memo: dict[int, Any] = {}
    for module in net.modules():
        for value in vars(module).values():
            for x in _computed(value):
                memo[id(x)] = x.detach().clone()  # PyTorch copies no tensor that has a history
    try:
        return copy.deepcopy(net, memo)
    except Exception as error:  # copying runs the user's code
        culprit = next(_uncopied(net), f"{type(net).__name__} ({type(error).__name__}: {error})")
        raise NetworkError(
            f"The network cannot be copied, and every client trains a copy. In the way is {culprit}. "
            "Make it in forward, or leave it out of the network."
        ) from error


def _computed(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors with a history in a value."""
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _computed(part, depth - 1)


def _uncopied(net: nn.Module) -> Iterator[str]:
    """In words, the attributes that cannot be copied."""
    for name, module in net.named_modules():
        for key, value in vars(module).items():
            if key in INTERNAL or any(True for _ in _computed(value)):
                continue
            try:
                copy.deepcopy(value)
            except Exception as error:
                yield f"{Place(name, key, 'attribute')}, of type {type(value).__name__} ({error})"


def differences(first: nn.Module, second: nn.Module) -> list[Place]:
    """Where two copies of a network differ: in parameters, buffers, attributes of their modules, or modules."""
    theirs, places = dict(second.named_modules()), list[Place]()
    for name, mine in first.named_modules():
        module = theirs.pop(name, None)
        if module is None:
            places.append(Place(name, "", "module"))
            continue
        pairs = {"parameter": (mine._parameters, module._parameters), "buffer": (mine._buffers, module._buffers)}
        for kind, (a, b) in {**pairs, "attribute": (own(mine), own(module))}.items():
            changed = [k for k in {**a, **b} if not (k in a and k in b and same(a[k], b[k]))]
            places += [Place(name, k, kind) for k in changed]
    return places + [Place(name, "", "module") for name in theirs]


def own(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that are neither PyTorch's nor parameters, buffers and modules."""
    return {k: v for k, v in vars(module).items() if k not in INTERNAL}


def class_attributes(net: nn.Module) -> dict[str, Any]:
    """Copies of what the classes of a network's modules hold themselves, which all copies of the network share, by name."""
    attributes: dict[str, Any] = {}
    for kind in {c for module in net.modules() for c in type(module).__mro__ if _users(c)}:
        for name, value in vars(kind).items():
            if not name.startswith("__") and not callable(value) and not isinstance(value, OPAQUE):
                try:
                    attributes[f"{kind.__name__}.{name}"] = copy.deepcopy(value)
                except Exception:  # what cannot be copied cannot be compared
                    continue
    return attributes


def _users(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc", "equipoise")


def same(a: Any, b: Any, compared: dict[tuple[int, int], Any] | None = None) -> bool:
    """Whether two values are the same, part by part; what cannot be looked into is."""
    if a is b or isinstance(a, OPAQUE):
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _equal(a.detach(), b.detach())
    if type(a) is not type(b):
        return False
    if isinstance(a, (*PLAIN, Set)):
        return bool(a == b or (a != a and b != b))
    if isinstance(a, np.ndarray):
        return _same_arrays(a, b, compared)
    if isinstance(a, torch.Generator):
        return torch.equal(a.get_state(), b.get_state())
    compared = {} if compared is None else compared
    if (id(a), id(b)) in compared:
        return True
    compared[id(a), id(b)] = a, b  # kept, so that no other object gets their numbers
    if isinstance(a, Mapping):
        return bool(a.keys() == b.keys()) and all(same(a[k], b[k], compared) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, compared) for x, y in zip(a, b, strict=True))
    return not differences(a, b) if isinstance(a, nn.Module) else same(_inside(a), _inside(b), compared)


def _same_arrays(a: NDArray[Any], b: NDArray[Any], compared: dict[tuple[int, int], Any] | None) -> bool:
    """Whether two arrays have the same shape, type and bits, or the same objects."""
    equal = a.shape == b.shape and a.dtype == b.dtype
    return equal and (a.tobytes() == b.tobytes() if a.dtype != object else same(a.tolist(), b.tolist(), compared))


def _inside(value: Any) -> list[Any]:
    """What an object of another class holds: what it would be made of again."""
    try:
        made = value.__reduce_ex__(4)
    except Exception:  # a lock, a file, a generator
        return []
    return [] if isinstance(made, str) else [list(part) if isinstance(part, Iterator) else part for part in made[1:]]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same, except for the rounding of one computation."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    b = b.to(a.device)
    if torch.equal(a, b) or not a.is_floating_point():
        return torch.equal(a, b)
    near = SMALLEST * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=near, atol=near * float(a.abs().nan_to_num(0, 0, 0).amax()), equal_nan=True)


def tensors(net: nn.Module, *, recurse: bool = True, remove_duplicate: bool = True) -> dict[str, Tensor]:
    """The parameters and buffers of a network by name; the options are those of ``named_parameters``."""
    parameters = net.named_parameters(recurse=recurse, remove_duplicate=remove_duplicate)
    return {**dict(parameters), **dict(net.named_buffers(recurse=recurse, remove_duplicate=remove_duplicate))}


def named(net: nn.Module, name: str) -> nn.Module:
    """The module of a name, also in a script, which does not say it."""
    modules: dict[str, nn.Module] = dict(net.named_modules(remove_duplicate=False))
    return modules[name]


def unused(net: nn.Module) -> frozenset[str]:
    """Names of counters of batches on which no output depends: those of normalisations with a momentum."""
    counting = [n for n, m in net.named_modules() if isinstance(m, _NormBase) and m.momentum is not None]
    return frozenset(Place(name, "num_batches_tracked", "buffer").path for name in counting)


class Watch:
    """What of a copy of a network must stay as it is from visit to visit: all but the tensors ``taken`` and ``caches``.

    Attributes of PyTorch's own modules are not looked at: these keep nothing.
    """

    def __init__(self, net: nn.Module, taken: Set[str], caches: Set[tuple[str, str]]) -> None:
        self.caches = caches
        self.modules = [(n, m) for n, m in net.named_modules() if type(m).__module__.partition(".")[0] != "torch"]
        self.tensors = [(n, m, {**m._parameters, **m._buffers}) for n, m in net.named_modules()]
        free = taken | unused(net)
        self.constants = [(n, b, b._version) for n, b in net.named_buffers() if n not in free]
        self.before = [self._now(name, module) for name, module in self.modules]

    def _now(self, name: str, module: nn.Module) -> dict[str, Any]:
        return {k: _frozen(v) for k, v in vars(module).items() if k not in INTERNAL and (name, k) not in self.caches}

    def changed(self) -> list[Place]:
        """What has changed."""
        places = [Place.of(n, "buffer") for n, b, version in self.constants if b._version != version]
        for (name, module), before in zip(self.modules, self.before, strict=True):
            if (now := self._now(name, module)) != before:
                names = [k for k in {**before, **now} if not (k in before and k in now and before[k] == now[k])]
                places += [Place(name, k, "attribute") for k in names]
        for name, module, tensors in self.tensors:
            for kind, present in (("parameter", module._parameters), ("buffer", module._buffers)):
                places += [Place(name, k, kind) for k, x in present.items() if tensors.get(k, present) is not x]
        return places


def _frozen(value: Any, left: list[int] | None = None) -> Any:
    """What tells a value from itself after a change; of what is large, the first :data:`PARTS` parts."""
    left = [PARTS] if left is None else left
    left[0] -= 1
    if left[0] < 0:
        return None
    if isinstance(value, PLAIN):
        return value if value == value else "nan"
    if isinstance(value, (*OPAQUE, nn.Module)):
        return id(value)
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.reshape(-1)[:: max(1, value.size // PARTS)].tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, Set):
        return id(value), len(value)
    if isinstance(value, Mapping):
        return len(value), [(k, _frozen(v, left)) for k, v in islice(value.items(), PARTS)]
    if isinstance(value, (list, tuple)):
        return len(value), [_frozen(v, left) for v in value[:PARTS]]
    return [_frozen(part, left) for part in _inside(value)]
