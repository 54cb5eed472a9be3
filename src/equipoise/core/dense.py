r"""Networks of dense layers, at one vector or at a stack of vectors: gradients by products of whole batches, without autograd between layers.

.. math:: z_l = h_{l-1} W_l^\top + b_l, \quad h_l = a_l(z_l), \quad d_l = (d_{l+1} W_{l+1}) \odot a_l'(z_l), \quad
    \partial L / \partial W_l = d_l^\top h_{l-1}

A product adds to what is in its place, so SGD's momentum takes it up without a gradient in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipoise.data.batch import Inputs
from equipoise.system.tree import aligned

Objective = Callable[[Tensor, Tensor], Tensor]  # (logits, features) -> loss, one per client
# (logits, features) -> the gradient of the objective by each, None: it is 0
Slopes = Callable[[Tensor, Tensor], tuple[Tensor | None, Tensor | None]]
Pairs = Sequence[tuple[Tensor, Tensor]]  # by layer d_l [..., B, o] and h_{l-1} [..., B, i]
aten = torch.ops.aten


class Activation(NamedTuple):
    """A function of each number, and its backward pass, of the gradient of the result, the number, and the result."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]


def _gelu(form: str) -> Activation:
    """The Gaussian error linear unit, exact ("none") or by "tanh"."""
    return Activation(
        partial(functional.gelu, approximate=form), lambda d, z, _: aten.gelu_backward(d, z, approximate=form)
    )


ACTIVATIONS: Mapping[str, Activation] = {
    "ReLU": Activation(torch.relu, lambda d, _, h: aten.threshold_backward(d, h, 0)),
    "Tanh": Activation(torch.tanh, lambda d, _, h: aten.tanh_backward(d, h)),
    "Sigmoid": Activation(torch.sigmoid, lambda d, _, h: aten.sigmoid_backward(d, h)),
    "GELU": _gelu("none"),
    "GELU tanh": _gelu("tanh"),
}


class Layer(NamedTuple):
    """The places of a layer's weight and bias among the tensors of the network, and the :data:`ACTIVATIONS` of its outputs."""

    weight: int
    bias: int | None
    activations: tuple[str, ...]


@dataclass(frozen=True)
class Dense:
    """The layers of a network, in the order of the forward pass.

    Parameters
    ----------
    layers : of the network, at least one.
    shapes : of its tensors, in the order of the vector.
    features : the layer whose inputs are the features; None: the logits are.
    """

    layers: tuple[Layer, ...]
    shapes: tuple[torch.Size, ...]
    features: int | None

    def cut(self, theta: Tensor) -> list[Tensor]:
        """The tensors of the network [..., *shape], as views of the vector [..., P]."""
        parts = theta.split([shape.numel() for shape in self.shapes], -1)
        return [part.view(*theta.shape[:-1], *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @torch.no_grad()
    def pairs(self, tensors: Sequence[Tensor], x: Tensor, slopes: Slopes) -> Pairs:
        """What the gradients are products of, for inputs x [..., B, ...] with the tensors of :meth:`cut`."""
        before = [x.flatten(tensors[self.layers[0].weight].dim() - 1)]
        passed = list[list[tuple[Activation, Tensor, Tensor]]]()
        for weight, bias, activations in self.layers:
            h = _affine(before[-1], tensors[weight], None if bias is None else tensors[bias])
            passed.append([])
            for activation in map(ACTIVATIONS.__getitem__, activations):
                z, h = h, activation.forward(h)
                passed[-1].append((activation, z, h))
            before.append(h)
        last = len(self.layers)
        features = last if self.features is None else self.features
        by_logits, by_features = slopes(before[last], before[features])
        pairs, d = list[tuple[Tensor, Tensor]](), torch.zeros_like(before[last]) if by_logits is None else by_logits
        for place in reversed(range(last)):
            for activation, z, h in reversed(passed[place]):
                d = activation.backward(d, z, h)
            pairs.append((d, before[place]))
            if place:
                d = d @ tensors[self.layers[place].weight]
                d = d if by_features is None or place != features else d + by_features
        return pairs[::-1]

    def add(self, pairs: Pairs, tensors: Sequence[Tensor], *, keep: float = 0.0, factor: float = 1.0) -> None:
        """Let tensors be ``keep`` times themselves plus ``factor`` times the gradients."""
        for (weight, bias, _), (d, h) in zip(self.layers, pairs, strict=True):
            product = torch.addmm if d.dim() == 2 else torch.baddbmm
            product(tensors[weight], d.mT, h, beta=keep, alpha=factor, out=tensors[weight])
            if bias is not None:
                start = tensors[bias].mul_(keep) if keep else tensors[bias].zero_()
                start.add_(d.sum(-2), alpha=factor)

    def gradient(self, theta: Tensor, x: Inputs, objective: Objective, out: Tensor) -> Tensor:
        """The gradient [..., P], written to ``out``."""
        theta, inputs = aligned((theta.detach(), cast(Tensor, x)))
        self.add(self.pairs(self.cut(theta), inputs, partial(by_autograd, objective)), self.cut(out))
        return out


def by_autograd(objective: Objective, logits: Tensor, features: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of an objective by logits and features, which may be the same tensor."""
    wanted = [t.detach().requires_grad_() for t in ([logits] if features is logits else [logits, features])]
    with torch.enable_grad():
        own = [t.clone() for t in wanted]  # which an objective may change in place
        loss = objective(own[0], own[-1]).sum()
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, wanted, allow_unused=True)
    return gradients[0], gradients[1] if len(wanted) > 1 else None


class Steps:
    r"""SGD on a dense network, in place, equal to :class:`equipoise.core.solver.SGD` but for the order of sums.

    .. math:: v = b + (\lambda / \rho) \theta, \quad b \gets \rho v + g, \quad \theta \gets \theta - \eta b

    Parameters
    ----------
    dense : the layers.
    theta : [..., P]; each step changes it.
    eta, rho, decay : learning rate, momentum, and weight decay lambda.
    """

    def __init__(self, dense: Dense, theta: Tensor, eta: float, rho: float, decay: float) -> None:
        self.dense, self.theta, self.eta, self.rho, self.decay = dense, theta, eta, rho, decay
        self.tensors = dense.cut(theta)
        self.slots = [theta * (decay / rho)] if rho else []
        self.momenta = dense.cut(self.slots[0]) if rho else []

    @torch.no_grad()
    def step(self, x: Inputs, slopes: Slopes) -> None:
        """A step on a batch x [..., B, ...]."""
        pairs = self.dense.pairs(self.tensors, aligned(cast(Tensor, x)), slopes)
        if not self.slots:
            if self.decay:
                self.theta.add_(self.theta, alpha=-self.eta * self.decay)
            self.dense.add(pairs, self.tensors, keep=1.0, factor=-self.eta)
            return
        self.dense.add(pairs, self.momenta, keep=self.rho)
        self.theta.add_(self.slots[0], alpha=-self.eta)
        if self.decay:
            self.slots[0].add_(self.theta, alpha=self.decay / self.rho)


def _affine(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """H W^T + b, for one client or a stack."""
    if bias is None:
        return h @ weight.mT
    return torch.addmm(bias, h, weight.mT) if h.dim() == 2 else torch.baddbmm(bias.unsqueeze(-2), h, weight.mT)


def layers_of(net: nn.Module, names: Sequence[str], head: str | None) -> Dense | None:
    """The layers of a network; None if it is of another kind, or does anything else.

    Parameters
    ----------
    net : the network.
    names : of its trainable parameters, in the order of the vector.
    head : name of its classifier; None: it has none.
    """
    chain, tensors = _chain(net), {id(p): n for n, p in net.named_parameters()}
    frozen = len(tensors) != len(names)
    if not chain or frozen or any(map(_altered, net.modules())) or any(True for _ in net.buffers()):
        return None
    flattens = type(chain[0]) is nn.Flatten and (chain[0].start_dim, chain[0].end_dim) == (1, -1)
    layers, linears = list[Layer](), list[nn.Linear]()
    for module in chain[flattens:]:
        activation = _named(module)
        if type(module) is nn.Linear and _usual(module):
            own = {name: names.index(tensors[id(p)]) for name, p in module.named_parameters()}
            layers.append(Layer(own["weight"], own.get("bias"), ()))
            linears.append(module)
        elif activation and layers:
            layers[-1] = layers[-1]._replace(activations=(*layers[-1].activations, activation))
        elif type(module) is not nn.Identity:
            return None
    used = [place for layer in layers for place in (layer.weight, layer.bias) if place is not None]
    heads = [k for k, module in enumerate(linears) if head is not None and module is net.get_submodule(head)]
    if not layers or sorted(used) != [*range(len(names))] or len(heads) != (head is not None):
        return None  # tensors that are shared or unused, or features from elsewhere
    shapes = {name: p.shape for name, p in net.named_parameters()}
    return Dense(tuple(layers), tuple(shapes[name] for name in names), heads[0] if heads else None)


def _usual(linear: nn.Linear) -> bool:
    """Whether a layer has a weight, and a bias of its outputs or none."""
    tensors = dict(linear.named_parameters())
    bias = tensors.pop("bias", None)
    return [*tensors] == ["weight"] and (bias is None or bias.shape == linear.weight.shape[:1])


def _named(module: nn.Module) -> str:
    """The name in :data:`ACTIVATIONS` of a module of PyTorch; empty if it has none."""
    if type(module) is nn.GELU:
        return "GELU" + " tanh" * (module.approximate == "tanh")
    name = type(module).__name__
    return name if name in ACTIVATIONS and type(module) is getattr(nn, name) else ""


def _chain(net: nn.Module) -> list[nn.Module]:
    """The modules that a network applies in turn; none if that is not known."""
    if type(net) is nn.Linear:
        return [net]
    if type(net) is nn.Sequential:
        return [part for child in net for part in (_chain(child) if type(child) is nn.Sequential else [child])]
    ours = type(net).__module__.startswith("equipoise.networks.")  # a derived class may do something else
    dense_layers = vars(type(net)).get("dense_layers") if ours else None
    return [*dense_layers(net)] if dense_layers else []


def _altered(module: nn.Module) -> bool:
    """Whether a module has hooks, or a forward pass of its own."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or "forward" in vars(module)
