"""The hidden units of a network: from its graph or as the user gives them, and checked on inputs."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from equipoise.core.hidden_units import CONVOLUTIONS, Group, Neurons, own_tensors
from equipoise.core.model import Model
from equipoise.data.batch import Inputs, cut, unshared
from equipoise.system.suggestions import unknown

SAMPLES = 16  # inputs on which a group is checked
UNITS = 3  # units of every group that are checked
BY_HAND = (
    "To name the units yourself, give neurons={name: (modules that make the units, modules that read them)}, "
    'for example {"first": (["conv1", "bn1"], ["conv2"])}.'
)


def find(model: Model, x: Inputs, groups: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None) -> Neurons:
    """The hidden units of a network that :func:`torch.fx.symbolic_trace` can trace, checked on inputs ``x``.

    A linear layer or convolution makes a group of units. BatchNorm and convolutions of single channels join the group
    before them, element-wise functions, pooling, dropout and flattening do not change it, and a sum joins two groups. A
    group whose units are mixed (by GroupNorm, LayerNorm, softmax, concatenation) has none that can be removed: every
    submodel has all of it. Units whose values are the logits are not hidden.

    Parameters
    ----------
    model : the network.
    x : a few inputs, two at least, on the network's device.
    groups : the hidden units instead of those of the graph: for each group the modules that make its units (their
        normalisation included) and the modules that read them.

    Raises
    ------
    ValueError : the network has no hidden unit that can be removed; a name, a size or a group of ``groups`` is wrong.
    """
    x = cut(x, slice(SAMPLES))
    neurons = _discover(model, x) if groups is None else Neurons(model, _given(model, groups))
    draw = torch.Generator().manual_seed(0)
    for k in range(len(neurons.groups)):
        _check(neurons, k, x, draw, given=groups is not None)
    neurons.extractable = _agrees(neurons, x, draw)
    return neurons


# groups that the user gives
def _given(model: Model, groups: Mapping[str, Any]) -> list[Group]:
    modules = dict(model.net.named_modules(remove_duplicate=False))
    if not isinstance(groups, Mapping):
        raise TypeError(
            f"neurons must be a mapping from names to hidden units; found {type(groups).__name__}. {BY_HAND}"
        )
    if not groups:
        raise ValueError(f"The mapping of hidden units is empty. {BY_HAND}")
    given = []
    for name, entry in groups.items():
        sides = [] if isinstance(entry, str) else list(entry)
        if len(sides) != 2 or any(isinstance(side, str) or not side for side in sides):
            raise ValueError(
                f"Group {name!r} must be two lists, of modules that make its units and of modules that read them; found {entry!r}."
            )
        rows, columns = entry
        for module in (*rows, *columns):
            if module not in modules:
                raise ValueError(f"Group {name!r}: {unknown('module', module, modules)}")
        sizes = [t.shape[0] for module in rows for t in own_tensors(modules[module])]
        if not sizes:
            raise ValueError(f"Group {name!r}: none of {', '.join(rows)} has parameters, so they make no units.")
        given.append(Group(name, min(sizes), tuple(rows), tuple(columns)))
    return given


# checks on inputs
def _logits(model: Model, vector: Tensor, x: Inputs, read: Iterable[str] = ()) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits in eval mode, and the inputs of the modules ``read``."""
    net = model.network(vector)
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda module, given: inputs.update({name: given[0].clone()} if given else {})

    for name in read:
        net.get_submodule(name).register_forward_pre_hook(keep(name))
    with torch.no_grad():
        return net(unshared(x)), inputs


def _perturbed(model: Model, vector: Tensor, draw: torch.Generator, by: float) -> Tensor:
    """A vector plus noise, which is positive for statistics, as a variance must stay positive."""
    noise = torch.randn(model.size, generator=draw).to(vector)
    noise[model.n_params :].abs_()
    squares = torch.zeros(int(model.layer[-1]) + 1, dtype=torch.float64)
    squares.index_add_(0, model.layer, model.initial.detach().cpu().double().square())
    rms = (squares / torch.bincount(model.layer)).sqrt().to(vector)
    rms = torch.where(rms > 0, rms, 0.1)  # tensors of zeros must change too
    return vector + by * rms[model.layer.to(vector.device)] * noise


def _near(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-9 if a.dtype == torch.float64 else 1e-4
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * (1 + b.abs().max()))


def _check(neurons: Neurons, k: int, x: Inputs, draw: torch.Generator, given: bool) -> None:
    """Remove a few units of group ``k`` from their readers: the logits must not depend on their makers any more."""
    model, group = neurons.model, neurons.groups[k]
    units = torch.ones(neurons.n, dtype=torch.bool, device=model.initial.device)
    picked = torch.randperm(group.size, generator=draw)[:UNITS] + sum(neurons.sizes[:k])
    units[picked.to(units.device)] = False
    rows, columns = neurons.ends(units)
    vector = _perturbed(model, model.initial, draw, 0.3)
    base, before = _logits(model, vector * columns, x, group.columns)
    if not base.isfinite().all():
        raise ValueError(
            "The network gives logits that are not finite on the inputs on which its hidden units are checked."
        )
    unread = set(group.columns)
    moved = [vector * columns * rows, *(_perturbed(model, vector, draw, 3.0) * columns for _ in range(3))]
    for other in moved:
        after, inputs = _logits(model, torch.where(rows, vector * columns, other), x, group.columns)
        unread -= {name for name in unread if name in inputs and not torch.equal(inputs[name], before[name])}
        if not _near(after, base):
            raise ValueError(
                f"Group {group.name!r} does not hold together: without the columns of some of its units in "
                f"{', '.join(group.columns)}, the logits still depend on the rows of {', '.join(group.rows)}. "
                f"Name all modules that read the units. {BY_HAND if not given else ''}".rstrip()
            )
    if given and unread:
        raise ValueError(
            f"Group {group.name!r}: {', '.join(sorted(unread))} does not read units made by {', '.join(group.rows)}."
        )


def _agrees(neurons: Neurons, x: Inputs, draw: torch.Generator) -> bool:
    """Whether an extracted network gives the logits of the masked one."""
    model = neurons.model
    vector = _perturbed(model, model.initial, draw, 0.3)
    units = (torch.rand(neurons.n, generator=draw) < 0.5).to(vector.device)
    units[[sum(neurons.sizes[:k]) for k in range(len(neurons.sizes))]] = True
    try:
        small, index = neurons.extract(units)
        logits, _ = _logits(small, vector[index], x)
    except Exception:  # a fixed size in forward() may raise anything
        return False
    return _near(logits, _logits(model, vector * neurons.held(units), x)[0])


# groups in the graph of the network
ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Threshold, nn.Hardshrink,
    nn.Softshrink, nn.Tanhshrink, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)  # fmt: skip
POOL_NAMES = [f"{kind}Pool{d}d" for kind in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg", "LP") for d in (1, 2, 3)]
POOLS = tuple(getattr(nn, name) for name in POOL_NAMES if hasattr(nn, name))
ONE_INPUT = frozenset({
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus", "softsign",
    "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "threshold", "hardshrink", "softshrink", "tanhshrink", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "abs", "neg", "exp", "square", "clamp",
    "clamp_min", "clamp_max", "clip", "contiguous", "clone", "detach", "float", "double", "to",
})  # fmt: skip
SUMS = frozenset({"add", "sub", "mul"})  # of two tensors of units, unit by unit
SCALED = frozenset({"add", "sub", "mul", "truediv", "div", "pow"})  # a tensor of units and a number
SHAPED = frozenset({"flatten", "view", "reshape", "squeeze", "unsqueeze"})
NUMBERS = (int, float, torch.Size, torch.dtype, torch.device)  # properties of a tensor that a network may read
REDUCED = frozenset({"mean", "sum", "amax", "amin"})


@dataclass
class _Label:
    """What is known so far about units that can be removed only together."""

    size: int
    makers: list[str]
    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    why: str = ""  # the units cannot be removed one by one


@dataclass(frozen=True)
class _Tag:
    """Dimension ``dim`` of a tensor runs over the units of a label, ``times`` entries for each."""

    label: int
    dim: int
    times: int = 1


class _Tracker(fx.Interpreter):
    """Runs the graph of a network, and follows its units from the layers that make them to those that read them.

    It is long because it handles every kind of layer and function.
    """

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced)
        self.labels: list[_Label] = []
        self.same: list[int] = []  # a label, or the one that it was joined to
        self.tags: dict[fx.Node, _Tag] = {}
        self.shapes: dict[fx.Node, torch.Size] = {}
        self.calls: dict[str, tuple[_Tag | None, _Tag | None]] = {}
        self.logits: set[int] = set()
        owners: dict[int, int] = {}
        for module in traced.modules():
            for tensor in module.parameters(recurse=False):
                owners[id(tensor)] = owners.get(id(tensor), 0) + 1
        self.shared = {k for k, n in owners.items() if n > 1}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and follow the units that enter it."""
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = value.shape
        if (tag := self._follow(n, value)) is not None:
            self.tags[n] = tag
        return value

    def root(self, label: int) -> int:
        while self.same[label] != label:
            label = self.same[label]
        return label

    def of(self, tag: _Tag) -> _Label:
        return self.labels[self.root(tag.label)]

    def spoil(self, tags: Iterable[_Tag | None], why: str) -> None:
        for tag in tags:
            if tag is not None:
                self.of(tag).why = self.of(tag).why or why

    def join(self, a: _Tag, b: _Tag) -> _Tag:
        """Make one label of two."""
        first, second = sorted((self.root(a.label), self.root(b.label)))
        if first != second:
            kept, gone = self.labels[first], self.labels[second]
            for mine, others in ((kept.makers, gone.makers), (kept.rows, gone.rows), (kept.columns, gone.columns)):
                mine += [name for name in others if name not in mine]
            kept.why = kept.why or gone.why
            self.same[second] = first
            if second in self.logits:
                self.logits.add(first)
        return a

    def _follow(self, n: fx.Node, value: Any) -> _Tag | None:
        tags = [self.tags.get(node) for node in n.all_input_nodes]
        if n.op == "output":
            self.logits |= {self.root(tag.label) for tag in tags if tag is not None}
            return None
        if n.op == "call_module":
            return self._module(str(n.target), n, value, tags)
        if n.op not in ("call_function", "call_method") or not any(tags):
            return None  # a parameter, or the input
        name = str(n.target) if n.op == "call_method" else getattr(n.target, "__name__", str(n.target))
        tag = self._function(name.rstrip("_"), n, value) if isinstance(value, Tensor) else None
        if tag is None and not isinstance(value, NUMBERS):
            self.spoil(tags, f"{name}() mixes them, or may do so")
        return tag

    def _module(self, name: str, n: fx.Node, value: Any, tags: list[_Tag | None]) -> _Tag | None:
        module, tag = self.fetch_attr(name), tags[0] if tags else None
        kind = type(module)
        if kind in (nn.Linear, *CONVOLUTIONS) and "weight" in module._parameters and isinstance(value, Tensor):
            out = self._layer(name, module, n, tag, value)
        elif tag is None:
            return None
        else:
            out = self._keeps(name, module, n, tag, value)
        if out is None:
            norm = kind in (nn.GroupNorm, nn.LayerNorm)
            deed = "normalises; use BatchNorm instead (norm=batch)" if norm else "gets, or may do so"
            self.spoil(tags, f"{kind.__name__} {name!r} mixes the channels it {deed}")
        if name not in self.calls:
            self.calls[name] = (tag, out)
        elif own_tensors(module):  # called again: the same rows and columns serve both calls
            for first, second in zip(self.calls[name], (tag, out), strict=True):
                if first is not None and second is not None and self.of(first).size == self.of(second).size:
                    self.join(first, second)
                else:
                    self.spoil((first, second), f"{name!r} is called on something else too")
        return out

    def _layer(self, name: str, module: nn.Module, n: fx.Node, tag: _Tag | None, value: Tensor) -> _Tag | None:
        """A layer that reads units and makes others."""
        weight: Tensor = module.weight  # type: ignore[assignment]
        linear = type(module) is nn.Linear
        dim = value.dim() - 1 if linear else 1
        if not linear and value.dim() != weight.dim():
            return None  # an image without a batch
        if any(id(p) in self.shared for p in module.parameters(recurse=False)):
            self.spoil((tag,), f"{name!r} shares its parameters with another module")
            return None
        if not linear and module.groups != 1:
            if tag is None or weight.shape[1] != 1 or len(weight) != module.in_channels or tag.dim != 1:
                return None
            return self._keep_with(name, tag)
        if tag is not None:
            if tag.dim != dim or weight.shape[1] != self.of(tag).size * tag.times:
                return None
            if name not in self.of(tag).columns:
                self.of(tag).columns.append(name)
            if not weight.requires_grad:
                self.spoil((tag,), f"{name!r}, which reads them, is frozen")
        self.labels.append(_Label(len(weight), [name], [name]))
        self.same.append(len(self.same))
        return _Tag(len(self.labels) - 1, dim)

    def _keep_with(self, name: str, tag: _Tag) -> _Tag:
        if name not in self.of(tag).rows:
            self.of(tag).rows.append(name)
        return tag

    def _keeps(self, name: str, module: nn.Module, n: fx.Node, tag: _Tag, value: Any) -> _Tag | None:
        """A layer that treats every unit separately."""
        if not isinstance(value, Tensor):
            return None
        shape, kind = self.shapes[n.all_input_nodes[0]], type(module)
        if isinstance(module, (_BatchNorm, _InstanceNorm)):
            batch = len(shape) == _spatial(kind.__name__) + 2 or (len(shape) == 2 and isinstance(module, _BatchNorm))
            return self._keep_with(name, tag) if tag.dim == 1 and batch else None
        if kind in ELEMENTWISE or (isinstance(module, nn.PReLU) and module.num_parameters == 1):
            return tag
        if isinstance(module, nn.PReLU):
            return self._keep_with(name, tag) if tag.dim == 1 else None
        if kind in POOLS:
            return tag if tag.dim == 1 and len(shape) == _spatial(kind.__name__) + 2 else None
        return self._shaped(tag, shape, value.shape) if kind in (nn.Flatten, nn.Unflatten) else None

    def _function(self, name: str, n: fx.Node, value: Tensor) -> _Tag | None:
        nodes = [node for node in n.all_input_nodes if node in self.shapes]
        carriers = [node for node in nodes if node in self.tags]
        tag, shape = self.tags[carriers[0]], self.shapes[carriers[0]]
        if len(carriers) == 2 and name in SUMS:
            other = self.tags[carriers[1]]
            fits = (other.dim, other.times, self.of(other).size) == (tag.dim, tag.times, self.of(tag).size)
            plain = len(self.shapes[carriers[1]]) == len(shape)
            return self.join(tag, other) if fits and plain else None
        if len(carriers) != 1:
            return None
        if name in ONE_INPUT and len(nodes) == 1:
            return tag
        if name in SCALED and value.dim() == len(shape) and self._one_factor(name, n, carriers[0]):
            return tag
        if name in SHAPED:
            return self._shaped(tag, shape, value.shape)
        if name in REDUCED:
            return self._reduced(n, tag, shape, value.shape)
        return tag if "_pool" in name and len(shape) == _spatial(name) + 2 and tag.dim == 1 else None

    def _one_factor(self, name: str, n: fx.Node, units: fx.Node) -> bool:
        """Whether the hidden units in the value ``units`` are all multiplied by one number, or divided by it."""
        if "div" in name and n.args[0] is not units:  # a removed unit would be divided by
            return False
        right = len(self.shapes[units]) - self.tags[units].dim
        others = [self.shapes[node] for node in n.all_input_nodes if node in self.shapes and node is not units]
        return all(len(s) < right or s[-right] == 1 for s in others)

    def _shaped(self, tag: _Tag, before: torch.Size, after: torch.Size) -> _Tag | None:
        d = tag.dim
        if after[: d + 1] == before[: d + 1]:
            return tag
        if after[:d] == before[:d] and len(after) == d + 1 and after[d] == math.prod(before[d:]):
            return _Tag(tag.label, d, tag.times * math.prod(before[d + 1 :]))
        return None

    def _reduced(self, n: fx.Node, tag: _Tag, before: torch.Size, after: torch.Size) -> _Tag | None:
        dims = n.kwargs.get("dim", n.args[1] if len(n.args) > 1 else None)
        numbers = [dims] if isinstance(dims, int) else dims
        if not isinstance(numbers, (list, tuple)) or not all(isinstance(d, int) for d in numbers):
            return None
        gone = {int(d) % len(before) for d in numbers}
        if tag.dim in gone or 0 in gone:
            return None
        dim = tag.dim - sum(d < tag.dim for d in gone)
        return tag if len(after) == len(before) else _Tag(tag.label, dim, tag.times)


def _spatial(name: str) -> int:
    """Spatial dimensions of a layer or function by its name: 2 for ``MaxPool2d``; -1 where it does not say."""
    digit = name[-2:-1]
    return int(digit) if name.endswith("d") and digit.isdigit() else -1


def trace(net: nn.Module) -> fx.GraphModule:
    """The graph of a network; raises what :mod:`torch.fx` raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fx.symbolic_trace(net)


def _discover(model: Model, x: Inputs) -> Neurons:
    """The groups of hidden units in the order of the network, and for those left out why."""
    net = model.network(model.initial)
    for frozen, own in zip(net.parameters(), model.net.parameters(), strict=True):
        frozen.requires_grad_(own.requires_grad)
    try:
        tracker = _Tracker(trace(net))
        with torch.no_grad():
            tracker.run(unshared(x))
    except Exception as error:  # the network's own Python code may raise anything when it is traced
        text = str(error).partition("\n")[0]
        raise ValueError(
            f"The hidden units cannot be found: torch.fx cannot trace the network ({text}). {BY_HAND}"
        ) from error
    groups, left_out = [], {}
    logits = {tracker.root(k) for k in tracker.logits}
    for k, label in enumerate(tracker.labels):
        name = "+".join(label.makers)
        if tracker.root(k) != k or k in logits:
            continue
        if label.why or not label.columns:
            left_out[name] = label.why or "nothing reads them"
        else:
            groups.append(Group(name, label.size, tuple(label.rows), tuple(label.columns)))
    if not groups:
        reasons = "; ".join(f"{name}: {text}" for name, text in left_out.items()) or "no layer but the last makes units"
        raise ValueError(f"The network has no hidden units that can be removed one by one ({reasons}). {BY_HAND}")
    return Neurons(model, groups, left_out)
