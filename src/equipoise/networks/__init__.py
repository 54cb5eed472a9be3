"""Networks by name: ``build("cnn", seed=0)``.

In each of them the classifier is the last ``nn.Linear`` in registration order, and no operation works in place, so that
``torch.func.vmap`` runs a stack of them.

Imports ``system``, and what ``data`` reads of files before they are opened.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from equipoise.networks.resnet import ResNet, ResNet10, resnet18, resnet50
from equipoise.networks.small import CNN, MLP
from equipoise.system import own_code
from equipoise.system.ranges import check_whole
from equipoise.system.suggestions import require_known, unknown

__all__ = ["CNN", "MLP", "NETWORKS", "NetworkEntry", "ResNet", "ResNet10", "build", "resnet18", "resnet50"]


RECIPE = "recipe"  # attribute of a network that :func:`build` made by name: its arguments, all but the seed and a file of weights
WEIGHTS = "weights"


@dataclass(frozen=True)
class NetworkEntry:
    """A line of the list of networks.

    Parameters
    ----------
    summary : one line for the reader.
    build : takes ``in_shape``, ``n_classes`` and the network's own options, which are its keyword-only parameters.
    """

    summary: str
    build: Callable[..., nn.Module]


_TORCHVISION = "ResNet-{} as in torchvision (options: stem=small for small images, weights=FILE)."
NETWORKS: dict[str, NetworkEntry] = {
    "mlp": NetworkEntry("Perceptron with two hidden layers of 200 (option: hidden).", MLP),
    "cnn": NetworkEntry("Three convolutional blocks 16/32/64 with GroupNorm (options: norm, width).", CNN),
    "resnet10": NetworkEntry("ResNet-10 with BatchNorm, 16 channels; 64 in the papers (option: width).", ResNet10),
    "resnet18": NetworkEntry(_TORCHVISION.format(18), resnet18),
    "resnet50": NetworkEntry(_TORCHVISION.format(50), resnet50),
}


def shapes(name: str, in_shape: Sequence[int], n_classes: int, **options: Any) -> dict[str, torch.Size]:
    """The shapes of the tensors of a network of ``NETWORKS``, see :func:`build`, for which no memory is taken."""
    with torch.device("meta"):
        return {key: x.shape for key, x in NETWORKS[name].build(in_shape, n_classes, **options).state_dict().items()}


def build(
    name: str, in_shape: Sequence[int] = (3, 32, 32), n_classes: int = 10, seed: int = 0, **options: Any
) -> nn.Module:
    """Build a network by name, its first values drawn from a seed.

    The same seed gives the same weights, whatever random numbers were drawn before, and draws none that others see.

    Parameters
    ----------
    name : a key of ``NETWORKS``, or a reference to a function or class of your own, ``nets.py:build`` or ``mypkg.nets:build``. It is
        called with ``in_shape`` and ``n_classes``, as far as its signature has them, and with the options, all by name.
    in_shape : shape of one input, (channels, height, width) for images.
    n_classes : >= 1, number of logits.
    seed : decides the initial weights.
    options : the network's own options, such as ``width=64``.

    Returns
    -------
    The network in training mode on the CPU.

    Raises
    ------
    ValueError if the name or an option is unknown, a value is out of its range, or a file of weights does not fit.
    """
    own = own_code.split(name)[0]
    if name not in NETWORKS and not own:
        raise ValueError(f"{unknown('network', name, NETWORKS)} Or one of your own: nets.py:build.")
    check_whole(f"{name}: n_classes", n_classes, 1)
    if not own:
        parameters = inspect.signature(NETWORKS[name].build).parameters.values()
        options_known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        require_known(f"option of network '{name}':", options_known, *options)
    # On the CPU and its generator alone: torch.manual_seed would reseed every accelerator too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if not own:
            net = NETWORKS[name].build(in_shape, n_classes, **options)
            recipe = {"name": name, "in_shape": [*map(int, in_shape)], "n_classes": int(n_classes)}
            vars(net)[RECIPE] = recipe | {key: value for key, value in options.items() if key != WEIGHTS}
            return net
        net = own_code.call("network", name, {"in_shape": tuple(in_shape), "n_classes": n_classes}, options)
    if not isinstance(net, nn.Module):
        raise ValueError(
            f"network {name} must give an nn.Module, from inputs to logits [batch, classes]; found {net!r}."
        )
    if any(isinstance(x, UninitializedParameter) for x in net.parameters()):
        raise ValueError(f"network {name}: give its lazy layers their sizes, which follow from in_shape.")
    return net
