"""A network as a pure function of one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules import module as every_module
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.core.copies import NetworkError, Place, Watch, copied, named, tensors, unused
from equipoise.core.dense import Dense, Objective, layers_of
from equipoise.core.observation import Observation
from equipoise.core.task import CLASSIFICATION, Task
from equipoise.data.batch import Inputs
from equipoise.system.suggestions import near, some
from equipoise.system.tree import aligned

UNIT = 2.0**-24  # of whole numbers in a vector: larger than what a masked sum rounds to, too small to count in a length
GLOBAL_HOOKS = [f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre")]
FEWEST = 1 << 16  # whole numbers that a dtype must hold for a counter of batches
Named = Mapping[str, Tensor]


class Model:
    """A network as a function of one flat vector ``theta`` [G], and the meaning of its coordinates.

    It is long because it holds all that the library knows of a network.

    The vector holds the P trainable scalars first, tensor by tensor in the order of ``named_parameters()`` (shared
    tensors once, frozen ones left out), then the floating buffers (BatchNorm running statistics), then the buffers of whole
    numbers that training changes, such as counters. A whole number n is stored as n times :data:`UNIT`, which is exact and so
    small that it weighs nothing in the length of an update; a mean of several is rounded where the network is run.

    Parameters
    ----------
    net : the network; it is copied, never changed. Its output are logits [B, C], or as the task defines.
    head : name of the classifier, whose input are the features; by default the ``nn.Linear`` registered last.
    random : whether training draws random numbers outside the network, as a transform may; random layers are detected.
    observed : what the network does in a step; without it, nothing but its floating buffers is taken to change.
    task : what the outputs mean.

    Attributes
    ----------
    initial : the network's own values [G].
    whole : names of the buffers of whole numbers, the last in the vector.
    most : beyond this, whole numbers are not exact in the vector: 2^24 in float32, 2^53 in float64.
    layout : sizes of the trainable tensors; ``names`` and ``shapes`` go with them.
    n_params : P.
    norm : [G], true on the scales, shifts and statistics of normalisation layers.
    head : [G], true on the classifier.
    variances, batches : the coordinates of running variances, and of BatchNorm's counts of batches.
    random : whether the network, or the transform of its inputs, draws random numbers in training (dropout).
    batch_norm : whether it normalises over the batch in training; BatchNorm whose parameters are frozen does not.
    mixes : whether a sample in training has an influence on what others of its batch give, as with BatchNorm.
    channels_last : whether images have their channels innermost in memory; see :meth:`try_channels_last`.
    bf16 : whether matrix products and convolutions round their inputs to bfloat16 (autocast); parameters, gradients and
        the loss keep their dtype.

    Raises
    ------
    NetworkError : no trainable parameter, an unknown ``head``, mixed dtypes, whole numbers that the vector cannot hold exactly, or
        a network that cannot be copied.
    """

    def __init__(
        self,
        net: nn.Module,
        head: str | None = None,
        random: bool = False,
        observed: Observation | None = None,
        task: Task = CLASSIFICATION,
    ) -> None:
        self.net, self.observed, self.task = copied(net), observed or Observation(), task
        parameters = {n: p for n, p in self.net.named_parameters() if p.requires_grad}
        buffers = {n: b for n, b in self.net.named_buffers() if b.is_floating_point()}
        dtype = _dtype(parameters, buffers)
        self.most, self.whole = round(2 / torch.finfo(dtype).eps), self.observed.whole
        every = dict(self.net.named_buffers())
        counts = {n: every[n] for n in self.whole}
        self._check_whole(counts, dtype)
        self._lay_out(parameters, buffers, counts)
        tensors = [*parameters.values(), *buffers.values(), *counts.values()]
        values = [t.detach() if t.is_floating_point() else self.written(t, dtype) for t in tensors]
        self.initial = torch.cat([*map(torch.flatten, values)]).clone()
        last_linear = next(reversed(self._modules_of(nn.Linear)), None)
        self.head_name = head if head is not None or observed is not None else last_linear
        if head is not None:
            self._check_module(head)
        self.norm = self.inside(_BatchNorm, nn.GroupNorm, nn.LayerNorm)
        self.head = self._mark([self.head_name is not None and inner(n, self.head_name) for n in self.tensors])
        self.variances, self.batches = map(self._buffers_called, ("running_var", "num_batches_tracked"))
        norms = self._modules_of(_BatchNorm)
        self.frozen_norms = tuple(n for n, norm in norms.items() if _frozen(norm))
        dropped = any(m.p for m in self._modules_of(nn.modules.dropout._DropoutNd).values())
        self.random = random or dropped or bool(self._modules_of(nn.RReLU))
        self.batch_norm = len(norms) > len(self.frozen_norms)
        self.mixes = self.batch_norm or self.observed.mixes
        self.convolutional = bool(self._modules_of(nn.modules.conv._ConvNd))
        self.channels_last = self.bf16 = False
        self._layers = layers_of(self.net, self.names, self.head_name)

    @cached_property
    def layer(self) -> Tensor:
        """For each coordinate the number of its tensor [G]."""
        return torch.repeat_interleave(torch.tensor([*self.layout, *self.buffer_layout]))

    @property
    def dense(self) -> Dense | None:
        """The layers, if the network is nothing else and is on a processor, and nothing outside it changes what it computes."""
        elsewhere = self.bf16 or self.initial.device.type != "cpu" or torch.is_autocast_enabled("cpu")
        return None if elsewhere or any(vars(every_module)[hooks] for hooks in GLOBAL_HOOKS) else self._layers

    def _lay_out(self, parameters: Named, buffers: Named, counts: Named) -> None:
        """Store where each tensor is in the vector."""
        self.counts = tuple((n, b.dtype, b.numel()) for n, b in counts.items())
        self.n_whole = sum(n for *_, n in self.counts)
        buffers = {**buffers, **counts}
        self.names, self.buffer_names = tuple(parameters), tuple(buffers)
        parts = parameters.values(), buffers.values()
        self.shapes, self.buffer_shapes = (tuple(t.shape for t in part) for part in parts)
        self.layout, self.buffer_layout = (tuple(t.numel() for t in part) for part in parts)
        self.n_params = sum(self.layout)

    def _modules_of(self, *kinds: type[nn.Module]) -> dict[str, Any]:
        """The modules of some kinds, by their names in the order of the network."""
        return {n: m for n, m in self.net.named_modules() if isinstance(m, kinds)}

    def _check_module(self, head: str) -> None:
        """Require that the network has a module of this name."""
        if head not in dict(self.net.named_modules()):
            layers = [n for n, m in self.net.named_modules() if n and any(True for _ in m.parameters())]
            raise NetworkError(
                f"The network has no module {head!r} to take features from.{near(head, layers)} It has: {some(layers) or 'no other with parameters'}."
            )

    def train(self, net: nn.Module, mode: bool) -> None:
        """Set a copy of the network to training or evaluation; BatchNorm whose parameters are frozen stays as it is."""
        net.train(mode)
        for name in self.frozen_norms:
            net.get_submodule(name).eval()

    def inside(self, *kinds: type[nn.Module]) -> Tensor:
        """Mark the coordinates [G] of the tensors that belong to modules of some kinds, such as ``nn.GroupNorm``."""
        modules = self._modules_of(*kinds)
        return self._mark([name.rpartition(".")[0] in modules for name in self.tensors])

    def named(self, word: str) -> Tensor:
        """Mark the coordinates [G] of the tensors with ``word`` in their name."""
        return self._mark([word in name for name in self.tensors])

    def _buffers_called(self, name: str) -> Tensor:
        """The coordinates of the buffers that modules call by a name."""
        return self._mark([n.rpartition(".")[2] == name for n in self.tensors]).nonzero().flatten()

    def _mark(self, tensors: list[bool]) -> Tensor:
        sizes = torch.tensor([*self.layout, *self.buffer_layout])
        return torch.tensor(tensors).repeat_interleave(sizes).to(self.initial.device)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors in the vector, in its order."""
        return (*self.names, *self.buffer_names)

    def _check_whole(self, counts: Named, dtype: torch.dtype) -> None:
        """Require whole numbers that the vector holds exactly."""
        most, kind = self.most, str(dtype).removeprefix("torch.")
        if counts and most < FEWEST:
            raise NetworkError(
                f"The network is of {kind}, which holds whole numbers up to {most} only, and {some([*counts])} changes in training. "
                "Use net.float()."
            )
        if large := [n for n, b in counts.items() if b.numel() and int(b.long().abs().max()) >= most]:
            raise NetworkError(
                f"{some(large)} of the network holds whole numbers of {most} or more, which {kind} cannot hold exactly, and changes in "
                "training. Let it begin lower, or use net.double()."
            )

    def written(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Whole numbers, or true and false, as the vector stores them, in their own shape."""
        return numbers.detach().to(dtype) * UNIT

    def read(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """The whole numbers nearest to those stored in a part of a vector, within the range of a dtype."""
        numbers = (part / UNIT).round()
        if dtype == torch.bool:
            return numbers > 0
        most, limits = self.most, torch.iinfo(dtype)
        return numbers.clamp(max(limits.min, -most), min(limits.max, most)).to(dtype)

    def require_exact(self, trained: Tensor) -> None:
        """Require that whole numbers in models [..., G] are still exact.

        Raises
        ------
        NetworkError : naming the buffer.
        """
        if not self.whole or not bool((beyond := trained[..., -self.n_whole :].abs() >= self.most * UNIT).any()):
            return
        parts = beyond.split([n for *_, n in self.counts], -1)
        large = [name for name, part in zip(self.whole, parts, strict=True) if bool(part.any())]
        raise NetworkError(
            f"{some(large)} of the network has come to {self.most} or more, beyond which "
            f"{str(trained.dtype).removeprefix('torch.')} does not hold whole numbers exactly. Use net.double()."
        )

    @property
    def size(self) -> int:
        """Number G of coordinates."""
        return len(self.initial)

    def seen(self, net: Callable[[Inputs], Tensor], x: Inputs, features: _Features) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and features [B, D] of inputs ``x`` by ``net``, computed in bfloat16 if :attr:`bf16`."""
        if not self.bf16:
            logits = net(x)
            return logits, features.take(logits)
        with torch.autocast(self.initial.device.type, torch.bfloat16, cache_enabled=False):
            logits = net(x)
        dtype = self.initial.dtype
        return logits.to(dtype), features.take(logits).to(dtype)

    def fixed(self) -> list[Tensor]:
        """The floating tensors of the network that are not in the vector: frozen parameters."""
        return [p for n, p in self.net.named_parameters() if n not in self.names]

    def try_channels_last(self, x: Inputs) -> None:
        """Use images with their channels innermost, which is faster on a CPU, if the network accepts them.

        One step on ``x`` [B, C, H, W], B > 1, shows whether it does: a network that calls ``view`` on an image may fail. A
        trained GroupNorm whose input has no gradient, as behind frozen layers, would crash PyTorch 2.13 in this order, and so
        would, on processors without AVX-512, the shortcut of a narrow ResNet.
        """
        if not isinstance(x, Tensor) or not self.convolutional or x.dim() != 4 or x.device.type != "cpu":
            return
        if any(map(narrow, self.net.modules())):
            return
        theta, buffers = self.initial.clone().split([self.n_params, self.size - self.n_params])
        bound, crashes = Bound(self), list[bool]()
        for m in bound.training.net.modules():
            if isinstance(m, nn.GroupNorm):
                m.register_forward_hook(
                    lambda _, given, out: crashes.append(out.requires_grad and not given[0].requires_grad)
                )
        try:
            with torch.random.fork_rng(devices=[]):
                bound.training(theta, buffers, x, train=True)
                self.channels_last = not any(crashes)
                bound.gradient(theta, buffers, x, lambda logits, features: logits.sum())
        except Exception:  # due to this order only, or training will raise it again
            self.channels_last = False

    def parts(self, theta: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Cut ``theta`` [..., P] and ``buffers`` [..., G - P] into named tensors [..., *shape], of their own dtypes."""
        lead = theta.shape[:-1]
        cut = [*theta.split(self.layout, -1), *(buffers.split(self.buffer_layout, -1) if self.buffer_names else ())]
        shapes = (*self.shapes, *self.buffer_shapes)
        parts = {n: part.view((*lead, *shape)) for n, part, shape in zip(self.tensors, cut, shapes, strict=True)}
        return parts | {name: self.read(parts[name], dtype) for name, dtype, _ in self.counts}

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """The network's state dictionary at a whole vector [G]; tensors that are not in it have their initial value."""
        state = {n: t.detach().clone() for n, t in self.net.state_dict().items()}
        parts = self.parts(vector[: self.n_params].detach(), vector[self.n_params :].detach())
        shared = {id(tensor): name for name, tensor in tensors(self.net).items()}
        for name, tensor in tensors(self.net, remove_duplicate=False).items():
            if (first := shared[id(tensor)]) in parts and name in state:
                state[name] = parts[first].clone().to(state[name].device)
        return state

    def watch(self, net: nn.Module) -> Watch:
        """What of a copy of the network no visit may change: all that is not in the vector, except caches."""
        return Watch(net, {*self.tensors}, self.observed.caches)

    def network(self, vector: Tensor) -> nn.Module:
        """A copy of the network at a whole vector [G], in eval mode."""
        net = copied(self.net)
        net.load_state_dict(self.state_dict(vector))
        return net.to(vector.device).eval()


def _dtype(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> torch.dtype:
    """The one dtype of a network that has something to train."""
    if not parameters:
        raise NetworkError("The network has no trainable parameter (requires_grad=True): there is nothing to train.")
    dtypes = {t.dtype for t in (*parameters.values(), *buffers.values())}
    if len(dtypes) > 1:
        raise NetworkError(
            f"The network mixes dtypes ({', '.join(sorted(map(str, dtypes)))}); convert it to one, for example net.float()."
        )
    return dtypes.pop()


def _frozen(module: nn.Module) -> bool:
    """Whether a module has parameters, and none of them is trained."""
    parameters = [*module.parameters()]
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def inner(name: str, module: str) -> bool:
    """Whether a tensor of a name is in a module or in one inside it."""
    return name.startswith(f"{module}.")


def narrow(module: nn.Module) -> bool:
    """Whether a layer's gradient is written beyond its end in channels-last order: a 1x1 convolution with a stride and few channels."""
    if not isinstance(module, nn.Conv2d) or max(module.kernel_size) > 1 or max(module.stride) == 1:
        return False
    return module.in_channels // module.groups < 16  # seen below 8, a register of AVX2; one of AVX-512 holds 16


def channels_last(x: Tensor) -> Tensor:
    """Images ``x`` [B, C, H, W] with their channels innermost in memory, said by their strides even if C is 1.

    PyTorch takes a single channel to be in either order, and goes by the strides when it chooses that of the next layer.
    """
    last = x.movedim(1, -1)
    return last.flatten().view(last.shape).movedim(-1, 1)


class _Features:
    """Remembers what entered the classifier in the last forward pass of ``net``."""

    def __init__(self, net: nn.Module, head: str | None) -> None:
        self.last: Tensor | None = None
        if head is not None:
            net.get_submodule(head).register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.last = inputs[0]

    def take(self, logits: Tensor) -> Tensor:
        """The features [B, D] of the pass that gave ``logits``; without a classifier, the logits themselves."""
        features, self.last = self.last, None
        return logits if features is None else features.flatten(1)


class Bound:
    """The network at one vector: its tensors are views of the vector, so nothing is copied."""

    def __init__(self, model: Model) -> None:
        self.model, self.training = model, _View(model)

    @cached_property
    def flat(self) -> Tensor:
        """Where gradients are, one after another [P]."""
        return torch.zeros_like(self.model.initial[: self.model.n_params])

    @cached_property
    def evaluation(self) -> _View:
        """A second copy: an evaluation in mid-step must not change the tensors that backward reads."""
        return _View(self.model)

    @torch.no_grad()
    def forward(self, theta: Tensor, buffers: Tensor, x: Inputs) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and features [B, D] in eval mode, without gradient."""
        given = self.evaluation(theta, buffers, x, train=False)
        self.evaluation.settle(buffers, False)
        return given

    def require_unchanged(self, trained: Tensor) -> None:
        """Require that a visit that gave models [..., G] has changed nothing but them.

        Raises
        ------
        NetworkError : naming what has changed, and what to do; the next visit begins with a new copy of the network.
        """
        views = [self.training, *([self.evaluation] if "evaluation" in vars(self) else [])]
        changed = [place for view in views for place in view.watch.changed()]
        if changed:
            self.training = _View(self.model)
            vars(self).pop("evaluation", None)
        refuse(changed)
        self.model.require_exact(trained)

    def gradient(
        self, theta: Tensor, buffers: Tensor, x: Inputs, objective: Objective, *, train: bool = True
    ) -> Tensor:
        """Gradient [P] of the objective, overwritten by the next call; in training mode the BatchNorm statistics in ``buffers`` move."""
        if (layers := self.model.dense) is not None:
            return layers.gradient(theta, x, objective, out=self.flat)
        parts = self._parts(theta, buffers, x, objective, train)
        with torch.no_grad():  # PyTorch 2.6 gives zeros that require gradients where the loss does not use a tensor
            return torch.cat(parts, out=self.flat)

    def cut(self, theta: Tensor) -> Sequence[Tensor]:
        """The tensors of the network, flat, as views, in the order of :meth:`gradients`."""
        parts: tuple[Tensor, ...] = theta.split(self.model.layout)
        return parts

    def gradients(self, theta: Tensor, buffers: Tensor, x: Inputs, objective: Objective) -> Sequence[Tensor]:
        """Gradient of each tensor of the network, flat, in training mode: the form that makes a step cheapest."""
        if (layers := self.model.dense) is not None:
            return self.cut(layers.gradient(theta, x, objective, out=torch.empty_like(theta)))
        return self._parts(theta, buffers, x, objective, True)

    def _parts(self, theta: Tensor, buffers: Tensor, x: Inputs, objective: Objective, train: bool) -> list[Tensor]:
        loss = objective(*self.training(theta, buffers, x, train=train))
        gradients = torch.autograd.grad(loss, self.training.parameters, materialize_grads=True)
        self.training.settle(buffers, train)  # not before: backward may read what a buffer was
        # autograd may give an expanded number, which is not contiguous
        return [(g.to_dense() if g.is_sparse else g).reshape(-1).contiguous() for g in gradients]


class _View:
    """A copy of the network whose tensors can be pointed at any vector."""

    def __init__(self, model: Model) -> None:
        self.model, self.net = model, copied(model.net)
        model.train(self.net, True)
        self.features = _Features(self.net, model.head_name)
        every = tensors(self.net)
        self.parameters = [every[n] for n in model.names]
        n_floating = len(model.buffer_names) - len(model.whole)
        self.buffers = [every[n] for n in model.buffer_names[:n_floating]]
        self.counts = [every[n] for n in model.whole]
        self.floating = model.size - model.n_params - model.n_whole
        replaced = [(Place.of(n, "buffer"), every[n]) for n in model.observed.replaced]
        self.replaced = [(named(self.net, place.module)._buffers, place.name, b) for place, b in replaced]
        self.watch = model.watch(self.net)

    def __call__(self, theta: Tensor, buffers: Tensor, x: Inputs, *, train: bool) -> tuple[Tensor, Tensor]:
        theta, x = aligned((theta, x))
        if self.parameters[0].data_ptr() != theta.data_ptr():  # else they are views of it already
            for p, part in zip(self.parameters, theta.split(self.model.layout), strict=True):
                p.data = part.view(p.shape)
        floating = buffers[: self.floating] if self.counts else buffers
        if self.buffers and self.buffers[0].data_ptr() != buffers.data_ptr():
            for b, part in zip(self.buffers, floating.split([b.numel() for b in self.buffers]), strict=True):
                b.data = part.view(b.shape)
        if self.counts:
            parts = buffers[self.floating :].split([b.numel() for b in self.counts])
            for b, part in zip(self.counts, parts, strict=True):
                b.copy_(self.model.read(part, b.dtype).view(b.shape))
        if self.net.training != train:
            self.model.train(self.net, train)
        x = channels_last(x) if self.model.channels_last and isinstance(x, Tensor) else x
        return self.model.seen(self.net, x, self.features)

    @torch.no_grad()
    def settle(self, buffers: Tensor, train: bool) -> None:
        """Take over what a pass left in buffers that it replaced, or that are no views of the vector."""
        for where, key, own in self.replaced:
            if (now := where[key]) is not own and now is not None:
                if train:
                    own.copy_(now)
                where[key] = own
        if train and self.counts:
            written = [self.model.written(b, buffers.dtype).reshape(-1) for b in self.counts]
            buffers[self.floating :].copy_(torch.cat(written))


class Stacked:
    """The network at a stack of vectors, by ``torch.vmap`` over the clients."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._renew()
        self.unused = unused(self.net)
        self.late = set[str]()  # what is in no vector and still changes
        self.flat, taken = torch.empty(0), {*model.tensors}
        self.constants = {n: t.detach() for n, t in tensors(self.net).items() if n not in taken}

    def _renew(self) -> None:
        self.net = copied(self.model.net)
        self.features = _Features(self.net, self.model.head_name)
        self.watch = self.model.watch(self.net)

    def require_unchanged(self, trained: Tensor) -> None:
        """Require that a visit that gave models [m, G] has changed nothing but them, as :meth:`Bound.require_unchanged` does."""
        changed = [*self.watch.changed(), *(Place.of(n, "buffer") for n in sorted(self.late))]
        self.late.clear()
        if changed:
            self._renew()
        refuse(changed)
        self.model.require_exact(trained)

    def _call(self, parts: dict[str, Tensor], buffers: Tensor, x: Inputs) -> tuple[Tensor, Tensor]:
        replaced = self.model.observed.replaced if self.net.training else ()

        def single(
            parts: dict[str, Tensor], constants: dict[str, Tensor], batch: Inputs
        ) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
            tensors = {**parts, **constants}  # in which functional_call puts what the network replaces
            given = self.model.seen(partial(functional_call, self.net, tensors), batch, self.features)
            return given, {n: tensors[n] for n in replaced}

        constants = {n: t.clone() for n, t in self.constants.items()}  # a counter of batches may be increased
        # vmap would update a copy of a strided buffer, and backward may need what a buffer was
        order = torch.contiguous_format
        parts = {n: p.clone(memory_format=order) if n in self.model.buffer_names else p for n, p in parts.items()}
        out: tuple[Tensor, Tensor]
        out, new = vmap(single, in_dims=(0, None, 0))(parts, constants, aligned(x))
        if self.net.training and self.model.buffer_names:
            flat = {n: _flat(new.get(n, parts[n]).detach()) for n in self.model.buffer_names}
            flat |= {n: self.model.written(flat[n], buffers.dtype) for n in self.model.whole}
            buffers.copy_(torch.cat([*flat.values()], -1))
        self.late |= {n for n, t in constants.items() if t._version and n not in self.unused}
        return out

    @torch.no_grad()
    def forward(self, theta: Tensor, buffers: Tensor, x: Inputs) -> tuple[Tensor, Tensor]:
        """Logits [m, B, C] and features [m, B, D] in eval mode, without gradient."""
        self.net.eval()
        return self._call(self.model.parts(aligned(theta), buffers), buffers, x)

    def gradient(
        self, theta: Tensor, buffers: Tensor, x: Inputs, objective: Objective, *, train: bool = True
    ) -> Tensor:
        """Gradients [m, P]. The result is overwritten by the next call."""
        if self.flat.shape != theta.shape:
            self.flat = torch.zeros_like(theta, memory_format=torch.contiguous_format)
        if (layers := self.model.dense) is not None:
            return layers.gradient(theta, x, objective, out=self.flat)
        self.model.train(self.net, train)
        parts = self.model.parts(aligned(theta.detach()), buffers)
        leaves = [parts[n].requires_grad_() for n in self.model.names]
        loss = objective(*self._call(parts, buffers, x)).sum()
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        with torch.no_grad():  # as in Bound.gradient
            return torch.cat([_flat(g) for g in gradients], -1, out=self.flat)

    def cut(self, theta: Tensor) -> Sequence[Tensor]:
        """One part: a step on strided views would cost more than gathering the gradients."""
        return (theta,)

    def gradients(self, theta: Tensor, buffers: Tensor, x: Inputs, objective: Objective) -> Sequence[Tensor]:
        """The gradients [m, P]."""
        return (self.gradient(theta, buffers, x, objective),)


Evaluator = Bound | Stacked  # the network at vectors of one client [P], or of a stack [m, P]


def refuse(changed: Sequence[Place]) -> None:
    """Raise ``NetworkError`` if something changed in a visit that no step before the first round had changed."""
    if changed:
        places = some([*map(str, changed)])
        raise NetworkError(
            f"The network changed, in training or evaluation, what is not part of a client's model: {places}. "
            "Make it a buffer, which is averaged as running statistics are: self.register_buffer(...) in __init__.",
            harmless=f"what it keeps: {places}",
        )


def _flat(x: Tensor) -> Tensor:
    """The entries of each client's tensor ``x`` [m, ...], which may be a single number: [m, n]."""
    return x.unsqueeze(-1).flatten(1)
