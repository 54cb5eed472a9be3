"""What a network does in a step: seen once, before the first round, on copies of it and a few samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.core.copies import NetworkError, Place, class_attributes, copied, differences, named, same, unused
from equipoise.core.draws import generator_states, seeded
from equipoise.core.task import CLASSIFICATION, Task
from equipoise.data.batch import Inputs, count, cut, joined, unshared
from equipoise.system.suggestions import some
from equipoise.system.text import plural
from equipoise.system.tree import tree_map

TRIED = 5  # layers that are tried as the classifier, from the last
Caches = frozenset[tuple[str, str]]  # module and attribute


@dataclass(frozen=True)
class Observation:
    """What a network does in a step.

    ``head`` is its classifier, None if there is none, and ``candidates`` what could be named as one. ``random``: it draws
    random numbers. ``whole`` are the buffers of whole numbers (or of true and false) that training changes, ``replaced`` the
    buffers in whose place it puts other tensors. ``caches`` are attributes that a step overwrites before it reads them.
    ``mixes``: what it gives for a sample in training, or keeps, depends on the others of the batch.
    """

    head: str | None = None
    candidates: tuple[str, ...] = ()
    random: bool = False
    whole: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    caches: Caches = frozenset()
    mixes: bool = False


class Fault(NamedTuple):
    """What a network may not change as it runs: where, what is done to it, and what to do."""

    place: Place
    how: str
    todo: str


def observe(net: nn.Module, x: Inputs, head: str | None = None, task: Task = CLASSIFICATION) -> Observation:
    """Run copies of ``net`` on inputs ``x`` of B > 1 samples, and on others made of them, in training and in evaluation.

    The classifier is ``head``, by default the linear layer whose output are the logits, else the one called last.

    Raises
    ------
    NetworkError : what it gives are no logits that can be trained; it remembers what no client's model holds; ``head`` is not
        its classifier.
    """
    x = tree_map(Tensor.cpu, x)  # on the CPU, whose generators show whether they were used
    other = tree_map(_halved, x)
    training, evaluation = (_seen(net, x, other, train, task) for train in (True, False))
    return Observation(
        *_classifier(net, x, other, head, training.calls, training.logits),
        random=training.random or evaluation.random,
        whole=training.whole,
        replaced=(*training.replaced, *(n for n in evaluation.replaced if n not in training.replaced)),
        caches=training.caches | evaluation.caches,
        mixes=_mixes(net, x, other, training),
    )


def _halved(x: Tensor) -> Tensor:
    """Other inputs, also where numbers are indices."""
    return x if x.dtype == torch.bool else x / 2 if x.is_floating_point() else x // 2


class _Seen(NamedTuple):
    logits: Tensor
    calls: dict[str, Any]
    buffers: dict[str, Tensor]
    random: bool
    whole: tuple[str, ...]
    replaced: tuple[str, ...]
    caches: Caches


def _seen(net: nn.Module, x: Inputs, other: Inputs, train: bool, task: Task) -> _Seen:
    """What a copy of a network gives, and what changes in it by that."""
    heard: dict[str, Any] = {}
    copy, shared = _copy(net, train, heard), class_attributes(net)
    buffers = dict(copy.named_buffers())
    memory = {n: (p, p.data_ptr()) for n, p in copy.named_parameters()}
    logits, random = _step(copy, x, train)
    require_outputs(logits, count(x), train, task)
    calls = dict(heard)
    if train:
        logits.sum().backward()  # a hook may change something, too
    faults, attributes, whole = _changed(net, copy, train)
    now = dict(copy.named_parameters())
    moved = [n for n, (p, where) in memory.items() if now.get(n) is not p or p.data_ptr() != where]
    refused = {fault.place.path for fault in faults}
    faults += [Fault(Place.of(n, "parameter"), *_MADE["parameter"]) for n in moved if n not in refused]
    renewed = [n for n, v in class_attributes(net).items() if n in shared and not same(shared[n], v)]
    faults += [Fault(Place("", n, "class attribute"), *_MADE["class"]) for n in renewed]
    after = {n: b.detach().clone() for n, b in copy.named_buffers() if b.is_floating_point()}
    present = dict(copy.named_buffers(remove_duplicate=False))
    replaced = tuple(n for n, b in buffers.items() if present.get(n) is not b)
    if faults := faults or _remembered(net, copy, x, other, logits, attributes, train):
        places = some([str(fault.place) for fault in faults])
        raise NetworkError(_refusal(net, x, faults, train), harmless=f"what it keeps: {places}")
    caches = frozenset(map(attrgetter("module", "name"), attributes))
    return _Seen(logits, calls, after, random, tuple(whole), replaced, caches)


def _mixes(net: nn.Module, x: Inputs, other: Inputs, training: _Seen) -> bool:
    """Whether a sample of ``x`` in a batch with one of ``other`` gives, or leaves in buffers, something else than it did in training."""
    copy = _copy(net, True)
    logits, _ = _step(copy, joined([cut(part, slice(1)) for part in (x, other)]), True)
    after = {n: b.detach() for n, b in copy.named_buffers() if n in training.buffers}
    return not same(logits[0], training.logits[0]) or not same(after, training.buffers)


def _copy(net: nn.Module, train: bool, calls: dict[str, Any] | None = None) -> nn.Module:
    """A copy on the CPU, which notes in ``calls`` what its trainable modules give."""
    copy = copied(net).cpu().train(train)
    for name, module in copy.named_modules():
        if isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
            continue
        if isinstance(module, nn.GroupNorm | nn.LayerNorm):
            module.register_forward_pre_hook(partial(_refuse_single, name))
        if calls is not None and name and any(True for _ in module.parameters()):
            module.register_forward_hook(partial(_keep, calls, name))
    return copy


def _step(net: nn.Module, x: Inputs, train: bool) -> tuple[Any, bool]:
    """What a network gives, its random numbers drawn from one seed, and whether it draws any."""
    with seeded(0), torch.set_grad_enabled(train):
        before = generator_states()
        return net(unshared(x)), generator_states() != before


def _keep(calls: dict[str, Any], name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    calls.pop(name, None)  # a layer called again is the latest
    calls[name] = output


# what changes, and may not
_MADE = {  # by the kind of a place: what is done to it, and what to do
    "module": ("made or left out in forward", "Make modules in __init__."),
    "parameter": (
        "changed or made in forward",
        "Make parameters in __init__, and leave them to the optimiser: compute with a changed copy of one, or use torch.nn.utils.parametrizations.",
    ),
    "frozen": (
        "changed in forward, and not trained",
        "Make it a buffer, which is averaged as running statistics are: self.register_buffer(...) in __init__.",
    ),
    "max_norm": (
        "changed by max_norm wherever it is looked up, in evaluation too",
        "Leave out max_norm, and scale what the layer gives.",
    ),
    "class": (
        "changed in forward, and shared by all clients",
        "Make it a buffer of the network: self.register_buffer(...) in __init__.",
    ),
}


def _changed(net: nn.Module, copy: nn.Module, train: bool) -> tuple[list[Fault], list[Place], list[str]]:
    """What a step has changed in a copy: faults, attributes, and the names of buffers of whole numbers."""
    frozen = {n for n, p in net.named_parameters() if not p.requires_grad}
    embeddings = [(n, m) for n, m in net.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    renormed = [Place(n, "weight", "parameter") for n, m in embeddings if m.max_norm is not None]
    faults = [Fault(place, *_MADE["max_norm"]) for place in renormed]
    attributes, whole = list[Place](), list[str]()
    buffers, idle = dict(net.named_buffers()), unused(net)
    for place in differences(net, copy):
        if place.kind == "attribute":
            attributes.append(place)
        elif place.kind != "buffer":
            if place not in renormed:
                faults.append(Fault(place, *_MADE["frozen" if place.path in frozen else place.kind]))
        elif fault := _buffer_fault(net, copy, place, train):
            faults.append(fault)
        elif place.path not in idle and not buffers[place.path].is_floating_point():
            whole.append(place.path)
    return faults, attributes, whole


def _buffer_fault(net: nn.Module, copy: nn.Module, place: Place, train: bool) -> Fault | None:
    """Why a changed buffer cannot be part of a client's model; None if it can."""
    before, after = (dict(named(n, place.module)._buffers.items()).get(place.name) for n in (net, copy))
    if before is None or after is None or before.shape != after.shape or before.dtype != after.dtype:
        shape = "none" if after is None else f"{str(after.dtype).removeprefix('torch.')} {list(after.shape)}"
        old = "none" if before is None else f"{str(before.dtype).removeprefix('torch.')} {list(before.shape)}"
        change = f"{old} before a step and {shape} after it"
        return Fault(place, change, "Register a buffer in __init__, with the shape and dtype that it keeps.")
    if not train:
        return Fault(place, "changed in evaluation, which must change nothing", "Change it only if self.training.")
    if place.name in named(net, place.module)._non_persistent_buffers_set:
        return Fault(place, "changed in training, and not in the state dictionary", "Leave out persistent=False.")
    return None


def _remembered(
    net: nn.Module, copy: nn.Module, x: Inputs, other: Inputs, logits: Tensor, attributes: list[Place], train: bool
) -> list[Fault]:
    """What a step reads that an earlier one left, in ``attributes`` or elsewhere: whether a step depends on those before it."""
    if not attributes and not train:
        return []
    for name, module in net.named_modules():  # the model as it was
        buffers = named(copy, name)._buffers
        for key, buffer in module._buffers.items():
            if buffer is not None:
                buffers[key] = buffer.detach().cpu().clone()
    if not attributes:
        again, _ = _step(copy, x, train)
        if same(again, logits):
            return []
        place = Place("", type(net).__name__, "network")
        how = "gives something else for the same input, parameters, buffers and random numbers: it remembers outside of its modules, in a global variable for instance"
        return [Fault(place, how, "Register what it remembers as a buffer: self.register_buffer(...) in __init__.")]
    fresh = _copy(net, train)
    late = f"changed in {'training' if train else 'evaluation'}"
    expected, _ = _step(fresh, other, train)
    try:
        given, _ = _step(copy, other, train)
        if train:
            given.sum().backward()
            expected.sum().backward()
    except Exception as error:  # such as a graph that an earlier step left
        how = f"{late}, so that a second step fails with {type(error).__name__}"
        return [Fault(place, how, _register(net, copy, place)) for place in attributes]
    differing = set(differences(fresh, copy)).intersection(attributes)
    if not differing and not same(given, expected):
        differing = set(attributes)
    return [Fault(place, late, _register(net, copy, place)) for place in attributes if place in differing]


def _register(net: nn.Module, copy: nn.Module, place: Place) -> str:
    """The ``register_buffer`` line that makes an attribute part of the model."""
    first, now = (getattr(named(n, place.module), place.name, None) for n in (net, copy))
    if isinstance(first, bool | int | float):
        zero = type(first) is int and first == 0
        made = "torch.zeros((), dtype=torch.long)" if zero else f"torch.tensor({first!r})"
    elif isinstance(now, Tensor):
        kind = "" if now.dtype == torch.get_default_dtype() else f", dtype={now.dtype}"
        made = f"torch.zeros({tuple(now.shape)}{kind})"
    else:
        return "Keep it outside of the network, or as tensors of a fixed shape: self.register_buffer(...) in __init__."
    return f"In its place register a buffer, which is averaged as running statistics are: self.register_buffer({place.name!r}, {made})."


def _refusal(net: nn.Module, x: Inputs, faults: list[Fault], train: bool) -> str:
    """One message about all that a network may not change."""
    changes = [f"{fault.place} ({fault.how})" for fault in faults]
    todo = list(dict.fromkeys(fault.todo for fault in faults))[:3]
    renormed = any(fault.how == _MADE["max_norm"][0] for fault in faults)
    if train and not renormed and _settles(net, x, {fault.place for fault in faults}):
        todo = ["It changes in the first step only: call the network once before, net.train()(x), and give it then."]
    return f"The network keeps what is not part of a client's model: {some(changes)}. {' '.join(todo)}"


def _settles(net: nn.Module, x: Inputs, places: Iterable[Place]) -> bool:
    """Whether places stay as they are after the first step of a network."""
    try:
        later = _copy(net, True)
        _step(later, x, True)
        with torch.no_grad():
            for p in later.parameters():  # as training moves them
                p.mul_(1.01)
        first = copied(later)
        for _ in range(2):
            _step(later, x, True)
        return not {*places}.intersection(differences(first, later))
    except Exception:  # whatever the network raises
        return False


def _refuse_single(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse a normalisation of single values, which gives its shift whatever they are."""
    x = inputs[0] if inputs else None
    if not isinstance(x, Tensor) or x.dim() < 2:
        return
    if isinstance(module, nn.GroupNorm):
        groups, todo = module.num_groups, "Take fewer groups"
        n, kind = x[0].numel() // groups, f"GroupNorm of {groups} groups"
    else:
        shape = torch.Size(module.normalized_shape)  # type: ignore[arg-type]
        n, kind, todo = shape.numel(), f"LayerNorm over {list(shape)}", "Normalise over the features"
    if n == 1:
        raise NetworkError(
            f"{name!r}, a {kind}, normalises single values (its input has the shape {[*x.shape]}), and what it gives says nothing "
            f"of its input. {todo}, or leave it out."
        )


# the output and the classifier
def require_outputs(given: Any, n: int, train: bool, task: Task) -> None:
    """Require that what a network gave for ``n`` samples is what the task wants, such as logits, in training with a gradient."""
    if fault := _misfit(given, n, train, task):
        raise NetworkError(f"The network must give {task.output}; {fault}.")


def _misfit(logits: Any, n: int, train: bool, task: Task) -> str:
    """Why the output of a network for ``n`` samples is not what the task wants; empty if it is."""
    if isinstance(logits, Mapping):
        return f"it gives a dictionary with {', '.join(map(str, logits))}. Wrap it in a module that returns one entry"
    if isinstance(logits, (tuple, list)):
        return f"it gives a {type(logits).__name__} of {len(logits)}. Wrap it in a module that returns one entry"
    if not isinstance(logits, Tensor):
        return f"it gives {type(logits).__name__}. Let its forward return {task.output.partition(',')[0]}"
    shape = f"for {plural(n, 'sample')} it gives {list(logits.shape)}"
    if n == 1 and logits.dim() < 2:
        return f"{shape}. Write flatten(1) instead of squeeze(), which drops the axis of the samples too"
    if logits.dim() != 2 or len(logits) != n:
        return shape
    if todo := task.misfit(logits.shape[1]):
        return f"{shape}. {todo}"
    if not logits.is_floating_point():
        return f"it gives {logits.dtype}, which are no real numbers with fractions"
    if not train or logits.requires_grad:
        return ""
    return "its output has no gradient. Leave out detach() and no_grad() in its forward"


def _classifier(
    net: nn.Module, x: Inputs, other: Inputs, head: str | None, calls: dict[str, Any], logits: Tensor
) -> tuple[str | None, tuple[str, ...]]:
    """The name of the classifier, None if there is none, and what could be named as one."""
    trained = [n for n in reversed(calls) if any(p.requires_grad for p in named(net, n).parameters())]
    if head is not None:
        if head not in calls:
            raise NetworkError(
                f"The network never calls the layer {head!r}, whose inputs should be the features. "
                f"It calls: {some([*reversed(trained)]) or 'none with parameters'}."
            )
        if fault := _no_classifier(net, head, x, other, calls[head]):
            good = _candidates(net, trained, x, other, calls)
            raise NetworkError(f"head={head!r} is not the classifier: {fault}.{_say(good)}")
        return head, ()
    linear = [n for n in calls if isinstance(named(net, n), nn.Linear)]
    last = next((n for n in linear if calls[n] is logits), None)
    if last is not None:
        return last, ()
    after = _after(net, linear[-1], x, other, calls[linear[-1]]) if linear else None
    # the output of the layer called last, or scores of the classes that are made of it, are the logits
    if after is not None and (not after or calls[linear[-1]].shape == logits.shape):
        return linear[-1], ()
    return None, _candidates(net, trained, x, other, calls)


def _candidates(net: nn.Module, trained: list[str], x: Inputs, other: Inputs, calls: dict[str, Any]) -> tuple[str, ...]:
    return tuple(n for n in trained[:TRIED] if not _no_classifier(net, n, x, other, calls[n]))


def _say(candidates: Iterable[str]) -> str:
    all_of = " or ".join(f"head={name!r} (--head {name})" for name in candidates)
    otherwise = " Put the layers that make logits of features into one module, and name that."
    return f" Give {all_of}." if all_of else otherwise


def _no_classifier(net: nn.Module, name: str, x: Inputs, other: Inputs, output: Any) -> str:
    """Why a module is not the classifier; empty if the logits are made of its output, by nothing that is trained."""
    after = _after(net, name, x, other, output)
    if after is None:
        return "the logits are not made of its output alone"
    return f"{some(after)} {'is' if len(after) == 1 else 'are'} trained after it" if after else ""


def _after(net: nn.Module, name: str, x: Inputs, other: Inputs, output: Any) -> list[str] | None:
    """The trained parameters that make logits of a module's output; None if other things make them, too."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    copy, given = _copy(net, False), list[Tensor]()
    hook = named(copy, name).register_forward_hook(lambda _, inputs, out: given.append(out))
    try:
        expected, _ = _step(copy, x, False)
        hook.remove()
        leaf = given[-1].detach().requires_grad_()
        named(copy, name).register_forward_hook(lambda _, inputs, out: leaf)
        logits, _ = _step(copy, other, True)
        if len(given) != 1 or not logits.requires_grad or not same(logits, expected):
            return None
        parameters = {n: p for n, p in copy.named_parameters() if p.requires_grad}
        leaves = [*parameters.values()]
        gradients: Sequence[Tensor | None] = torch.autograd.grad(logits.sum(), leaves, allow_unused=True)
    except Exception:  # whatever the network raises when a layer gives what it usually does not
        return None
    return [n for n, g in zip(parameters, gradients, strict=True) if g is not None and not n.startswith(f"{name}.")]
