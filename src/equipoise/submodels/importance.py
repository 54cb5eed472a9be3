"""The importance of every hidden unit: the loss of the network without it."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.core.hidden_units import CONVOLUTIONS, Group, Neurons
from equipoise.core.model import Bound, channels_last
from equipoise.data.batch import Inputs, count, cut, joined, unshared
from equipoise.submodels.discovery import trace
from equipoise.system.grouping import grouped
from equipoise.system.ranges import check_number

Lookup = Callable[[fx.Node], Any]
Values = dict[fx.Node, Any]
Batches = Iterable[tuple[Inputs, Tensor]]
CACHE = 1 << 21  # bytes of intermediate values to work on at a time: they stay in the cache of a processor
FEWEST = 64  # samples at a time, as far as memory allows
NO_SAMPLES = "Importance is a loss on samples, and there are none; give the server validation data."
COMPARED = 32  # samples on which the shortcut is compared with the plain computation


def naive(
    neurons: Neurons, vector: Tensor, batches: Batches, only: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """The same as :func:`ablation`, by one pass through all samples for each unit (or for those in ``only``)."""
    batches = [*batches]
    if not (samples := sum(len(y) for _, y in batches)):
        raise ValueError(NO_SAMPLES)
    bound, units = Bound(neurons.model), range(neurons.n) if only is None else only
    present = torch.ones(neurons.n, dtype=torch.bool, device=vector.device)
    total = [_total(bound, vector, batches)]
    for k in units:
        present[k] = False
        total.append(_total(bound, vector.where(neurons.held(present), 0), batches))
        present[k] = True
    losses = torch.stack(total) / samples
    return losses[1:], losses[0]


def _total(bound: Bound, vector: Tensor, batches: Batches) -> Tensor:
    theta, buffers = vector[: bound.model.n_params], vector[bound.model.n_params :].clone()
    losses = [bound.model.task.losses(bound.forward(theta, buffers, x)[0].double(), y).sum() for x, y in batches]
    return torch.stack(losses).sum() if losses else vector.new_zeros((), dtype=torch.float64)


def ablation(neurons: Neurons, vector: Tensor, batches: Batches, memory: int = 64 << 20) -> tuple[Tensor, Tensor]:
    r"""Mean cross-entropy without each hidden unit [K], and of the whole network [].

    .. math:: I_k = F(\theta_{-k}; V) - F(\theta; V)

    is the importance of unit k, the first result less the second. Wang, Wang, Lyu, Peng, Yang, Wen, Yu, Wang, Fan,
    KDD 2024, equation 3.

    What a unit adds to the outputs of its readers is subtracted there, and only the layers behind them are computed again,
    for the samples on which it adds anything; so a unit that is always 0 has importance 0 exactly. Units for which this is
    not possible are left to :func:`naive`.

    Parameters
    ----------
    neurons : the network and its hidden units.
    vector : the whole model [G].
    batches : the samples, as inputs [B, ...] and labels [B], in batches of any size.
    memory : > 0, about how many bytes of intermediate values to hold; at least one sample is processed at a time.

    Returns
    -------
    Losses, float64, in eval mode. Values that are not finite are returned as they are.

    Raises
    ------
    ValueError : no sample, or ``memory`` out of its range.
    """
    check_number("memory", memory, 0, meaning=" bytes", above=True)
    stream = iter(batches)
    first = next(((x, y) for x, y in stream if len(y)), None)
    if first is None:
        raise ValueError(NO_SAMPLES)
    stream = chain([first], stream)
    try:
        shortcut = _Shortcut(neurons, vector, cut(first[0], slice(COMPARED)))
    except Exception:  # the network's own Python code may raise anything when it is traced
        return naive(neurons, vector, stream)
    shortcut.compare(vector, cut(first[0], slice(COMPARED)))
    again = [*stream] if shortcut.plain else []
    total = torch.zeros(neurons.n, dtype=torch.float64, device=vector.device)
    base, samples = total.new_zeros(()), 0
    for x, y in _chunks(again or stream, shortcut.samples(memory)):
        losses, whole = shortcut.losses(x, y)
        total, base, samples = total + losses, base + whole, samples + len(y)
    total, base = total / samples, base / samples
    if shortcut.plain:
        total[shortcut.plain], base = naive(neurons, vector, again, shortcut.plain)
    return total, base


def _chunks(batches: Batches, size: int) -> Iterator[tuple[Inputs, Tensor]]:
    """The same samples in the same order, ``size`` at a time."""
    xs, ys, n = [], [], 0
    for x, y in batches:
        while len(y):
            take = size - n
            xs.append(cut(x, slice(take)))
            ys.append(y[:take])
            n += len(ys[-1])
            x, y = cut(x, slice(take, None)), y[take:]
            if n == size:
                yield (xs[0], ys[0]) if len(xs) == 1 else (joined(xs), torch.cat(ys))
                xs, ys, n = [], [], 0
    if n:
        yield joined(xs), torch.cat(ys)


class _Behind:
    """The nodes that depend on the units of one group: those that read them, and all behind these (``order``)."""

    def __init__(self, group: Group, first: int, graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
        self.group, self.first = group, first
        names = {id(modules[name]) for name in group.columns}
        read = [n for n in graph.nodes if n.op == "call_module" and id(modules[str(n.target)]) in names]
        if {id(modules[str(n.target)]) for n in read} != names:
            raise ValueError(f"torch.fx does not see all readers of {group.name!r}.")
        self.changed = changed = _dependent(graph, read)
        self.order = [n for n in graph.nodes if n in changed and n.op != "output"]
        self.readers = {n: modules[str(n.target)] for n in read}
        # readers whose input is not behind another reader; each is subtracted from
        self.direct = {n for n in read if not changed & {*n.all_input_nodes} and _linear(self.readers[n])}
        last = {n: node for node in graph.nodes for n in node.all_input_nodes}
        self.last_use = grouped((node, n) for n, node in last.items())  # nodes whose value is not needed after a node
        self.used = {*read}.union(*(node.all_input_nodes for node in self.order))


def _dependent(graph: fx.Graph, sources: Sequence[fx.Node]) -> set[fx.Node]:
    """Some nodes, and all that depend on them."""
    nodes = set[fx.Node]()
    for node in graph.nodes:
        if node in sources or nodes & {*node.all_input_nodes}:
            nodes.add(node)
    return nodes


def _linear(module: nn.Module) -> bool:
    """Whether the output of a layer is a sum over its input channels, with zeros around the image."""
    plain = getattr(module, "groups", 1) == 1 and getattr(module, "padding_mode", "zeros") == "zeros"
    return type(module) in (nn.Linear, *CONVOLUTIONS) and plain


class _Pass:
    """The values of one pass on ``n`` samples.

    ``transposed`` of a node are its values [units, B], each unit's in a row; ``finite`` is whether all are, so that a part can be subtracted.
    """

    def __init__(self, values: Values, n: int) -> None:
        self.values, self.n = values, n
        self.transposed = cache(lambda node: values[node].T.contiguous())
        self.finite = cache(lambda node: bool(values[node].isfinite().all()))


class _Shortcut:
    """The graph of a network at one vector, in eval mode, and the continuation behind each group of units.

    It is long because every step needs the graph, the modules and the cached values.
    """

    def __init__(self, neurons: Neurons, vector: Tensor, x: Inputs) -> None:
        self.neurons = neurons
        net = neurons.model.network(vector)
        for module in net.modules():
            if isinstance(module, _BatchNorm) and module.running_mean is None:
                raise ValueError("BatchNorm without statistics lets samples depend on each other.")
            if getattr(module, "inplace", False):
                module.__dict__["inplace"] = False  # cached values must not change
        self.net, self.modules = trace(net), dict(net.named_modules(remove_duplicate=False))
        self.graph = self.net.graph
        logits = next(n for n in self.graph.nodes if n.op == "output").args[0]
        if not isinstance(logits, fx.Node):
            raise ValueError("The output is not one tensor.")
        self.logits = logits
        self.plain: list[int] = []  # units that are left to the plain computation
        starts = [sum(neurons.sizes[:k]) for k in range(len(neurons.sizes))]
        self.groups = [_Behind(g, a, self.graph, self.modules) for g, a in zip(neurons.groups, starts, strict=True)]
        self.fed = _dependent(self.graph, [node for node in self.graph.nodes if node.op == "placeholder"])
        self.kept = {self.logits}
        for behind in self.groups:
            self.kept |= {n for n in behind.used if n not in behind.changed or n in behind.readers}
            self.kept |= {n.all_input_nodes[0] for n in behind.readers}
        self.bytes: dict[fx.Node, int] = {}  # of each value, for one sample
        # weights [in, out] of a linear layer, each unit's in a row
        self.transposed = cache(lambda module: _weight(module).T.contiguous())
        self.run(x, first=True)

    def samples(self, memory: int) -> int:
        """How many samples to work on at a time."""
        largest = max(self.bytes.values())
        peak = 3 * max([self.bytes[n] for b in self.groups for n in b.order if n in self.bytes] or [largest])
        cached = sum(self.bytes[n] for n in self.kept if n in self.bytes) + 2 * largest
        return max(1, min(max(CACHE // peak, FEWEST), memory // (cached + peak)))

    def call(self, node: fx.Node, lookup: Lookup) -> Any:
        """The value of a node from those of the nodes before it."""
        args, kwargs = fx.node.map_arg(node.args, lookup), fx.node.map_arg(node.kwargs, lookup)
        match node.op:
            case "call_module":
                return self.modules[str(node.target)](*args, **kwargs)
            case "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            case "call_function":
                return node.target(*args, **kwargs)  # type: ignore[operator]
            case _:  # get_attr
                return operator.attrgetter(str(node.target))(self.net)

    @torch.no_grad()
    def run(self, x: Inputs, first: bool = False) -> Values:
        """One pass through the network: the values that will be needed again."""
        if self.neurons.model.channels_last and isinstance(x, Tensor):
            x = channels_last(x)
        values: Values = {}
        last = {n: node for node in self.graph.nodes for n in node.all_input_nodes}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = node.args[0] if values else unshared(x)  # a further argument must have a default
            elif node.op != "output":
                before = [(v, v._version) for n in node.all_input_nodes if isinstance(v := values[n], Tensor)]
                values[node] = self.call(node, values.__getitem__)
                if any(v._version != version for v, version in before):
                    raise ValueError(f"{node.target} works in place.")
            if first and isinstance(v := values.get(node), Tensor):
                self.bytes[node] = v.nbytes // count(x) if node in self.fed else 0
            for n in node.all_input_nodes:
                if last[n] is node and n not in self.kept:
                    del values[n]
        return values

    @torch.no_grad()
    def losses(self, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the losses of the samples without each unit [K], and with all of them []."""
        forward = _Pass(self.run(x), len(y))
        base = self.neurons.model.task.losses(forward.values[self.logits].double(), y)
        whole = base.sum()
        total = whole.repeat(self.neurons.n)
        for behind in self.groups:
            if self.logits not in behind.changed or behind.first in self.plain:
                continue
            active = self.active(behind, forward)
            for unit in active.any(0).nonzero().flatten().tolist():
                rows = active[:, unit].nonzero().flatten()
                without = self.without(behind, unit, forward, rows).double()
                new = self.neurons.model.task.losses(without, y.index_select(0, rows))
                total[behind.first + unit] = base.index_copy(0, rows, new).sum()
        return total, whole

    def active(self, behind: _Behind, forward: _Pass) -> Tensor:
        """The samples on which a unit adds anything to its readers [B, size]."""
        parts: list[Tensor] = []
        for node, module in behind.readers.items():
            inputs, weight = forward.values[node.all_input_nodes[0]], _weight(module)
            on = (inputs != 0).movedim(-1 if type(module) is nn.Linear else 1, 1)
            on = on.reshape(forward.n, behind.group.size, -1).any(2)
            parts.append(on & (weight != 0).transpose(0, 1).reshape(behind.group.size, -1).any(1))
        return torch.stack(parts).any(0)

    @torch.no_grad()
    def without(self, behind: _Behind, unit: int, forward: _Pass, rows: Tensor) -> Tensor:
        """Logits [b, C] of the samples ``rows`` [b] without a unit."""
        new: Values = {}

        def lookup(node: fx.Node) -> Any:
            if node in new:
                return new[node]
            value = forward.values[node]
            if node not in self.fed:
                return value
            if isinstance(value, Tensor):
                return value.index_select(0, rows) if value.dim() and len(value) == forward.n else value
            if isinstance(value, torch.Size) and value[0] == forward.n:
                return torch.Size([len(rows), *value[1:]])
            return len(rows) if _counts_samples(node) else value

        for node in behind.order:
            if node in behind.readers:
                new[node] = self.reader_output(behind, node, unit, lookup, forward, rows)
            else:
                new[node] = self.call(node, lookup)
            for n in behind.last_use.get(node, ()):
                new.pop(n, None)
            if node is self.logits:
                break
        logits: Tensor = new[self.logits]
        return logits

    def reader_output(
        self, behind: _Behind, node: fx.Node, unit: int, lookup: Lookup, forward: _Pass, rows: Tensor
    ) -> Tensor:
        """The output of a reader without a unit."""
        module = behind.readers[node]
        weight = _weight(module)
        times = weight.shape[1] // behind.group.size
        mine = slice(unit * times, (unit + 1) * times)
        if node not in behind.direct or not forward.finite(node):
            weight = weight.clone()
            weight[:, mine] = 0
            output: Tensor = functional_call(module, {"weight": weight}, (lookup(node.all_input_nodes[0]),))
            return output
        z: Tensor = forward.values[node].index_select(0, rows)
        if type(module) is nn.Linear and z.dim() == 2 and times == 1:
            given = forward.transposed(node.all_input_nodes[0])[unit].index_select(0, rows)
            return torch.addcmul(z, given[:, None], self.transposed(module)[unit], value=-1)
        inputs: Tensor = forward.values[node.all_input_nodes[0]].index_select(0, rows)
        if isinstance(module, CONVOLUTIONS):
            share: Tensor = module._conv_forward(inputs[:, mine], weight[:, mine], None)
            return z - share
        return z - functional.linear(inputs[..., mine], weight[:, mine])

    def compare(self, vector: Tensor, x: Inputs) -> None:
        """Leave to the plain computation the groups in which the shortcut does not give its logits."""
        with torch.no_grad():
            forward = _Pass(self.run(x), count(x))
        bound = Bound(self.neurons.model)
        sizes = [bound.model.n_params, len(vector) - bound.model.n_params]
        tolerance = 1e-8 if vector.dtype == torch.float64 else 1e-4
        for behind in self.groups:
            active = self.active(behind, forward)
            unit = int(active.sum(0).argmax())
            rows = active[:, unit].nonzero().flatten()[::2]  # some only, in case samples depend on each other
            if not len(rows) or self.logits not in behind.changed:
                continue
            present = torch.ones(self.neurons.n, dtype=torch.bool, device=vector.device)
            present[behind.first + unit] = False
            theta, buffers = vector.where(self.neurons.held(present), 0).split(sizes)
            expected = bound.forward(theta, buffers, x)[0][rows]
            try:
                given = self.without(behind, unit, forward, rows)
                near = torch.allclose(given, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
            except Exception:  # the network may read the size of the batch in a way not handled here
                near = False
            if not near:
                self.plain += range(behind.first, behind.first + behind.group.size)


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _counts_samples(node: fx.Node) -> bool:
    """Whether a node is ``x.size(0)`` or ``x.shape[0]``."""
    if node.op == "call_method":
        return node.target == "size" and node.args[1:] == (0,)
    source = node.args[0] if node.args else None
    if node.target is not operator.getitem or node.args[1] != 0 or not isinstance(source, fx.Node):
        return False
    return (source.op, source.target) == ("call_method", "size") or source.target is getattr
