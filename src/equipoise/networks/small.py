"""Small networks: a multilayer perceptron, and a convolutional network for 32x32 images."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor, nn

from equipoise.system.ranges import Range, check_option, check_whole

Norm = Literal["none", "group", "batch"]
GROUPS = 4
DEEPEST = 1000  # hidden layers
NEAR_ZERO = 0.01


class MLP(nn.Module):
    """Fully connected layers with ReLU between them, on the flattened input.

    Parameters
    ----------
    in_shape : shape of one input, such as (3, 32, 32) or (60,).
    n_classes : >= 1, number of logits.
    hidden : width of each hidden layer, each >= 1; empty for a linear classifier.

    Maps [B, *in_shape] to logits [B, n_classes].

    Raises
    ------
    ValueError if a width is no whole number >= 1.
    """

    def __init__(
        self, in_shape: Sequence[int] = (3, 32, 32), n_classes: int = 10, *, hidden: Sequence[int] = (200, 200)
    ) -> None:
        super().__init__()
        if not isinstance(hidden, list | tuple) or not all(width in Range(1, whole=True) for width in hidden):
            raise ValueError(f"mlp: hidden must be a list of whole numbers >= 1, such as [200, 200]; found {hidden!r}.")
        if len(hidden) > DEEPEST:
            raise ValueError(f"mlp: hidden has {len(hidden):,} layers, and at most {DEEPEST:,} are built.")
        widths = [math.prod(in_shape), *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.classifier = nn.Linear(widths[-1], n_classes)

    def dense_layers(self) -> list[nn.Module]:
        """The modules that :meth:`forward` applies in turn."""
        return [nn.Flatten(), *(part for layer in self.hidden for part in (layer, nn.ReLU())), self.classifier]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x).relu()
        out: Tensor = self.classifier(x)
        return out


class CNN(nn.Module):
    """Three blocks of convolution, normalisation, pooling and ReLU, one more normalisation, a hidden layer of 64 and the classifier.

    The blocks have ``width``, ``2 width`` and ``4 width`` channels, and each halves the image. The weights of the hidden layer are drawn as
    He et al. (ICCV 2015) do, those of the classifier near zero. With these two and the last normalisation training begins at once;
    without them it begins on a plateau, where careful or signed steps (SAM, FedLD) stayed for 30 rounds.

    Parameters
    ----------
    in_shape : channels, height and width of an image, both sides >= 8 pixels.
    n_classes : >= 1, number of logits.
    norm : ``"group"`` (four groups of channels) sees one image at a time, so clients share no statistics;
        ``"batch"`` is BatchNorm; ``"none"`` leaves normalisation out.
    width : >= 1, channels of the first block; a multiple of 4 for ``"group"``.

    Maps [B, C, H, W] to logits [B, n_classes].

    Raises
    ------
    ValueError if the shape is not that of an image of at least 8x8 pixels, or ``norm`` or ``width`` is out of range.
    """

    def __init__(
        self, in_shape: Sequence[int] = (3, 32, 32), n_classes: int = 10, *, norm: Norm = "group", width: int = 16
    ) -> None:
        super().__init__()
        if len(in_shape) != 3 or min(in_shape[1:]) < 8:
            raise ValueError(f"cnn: in_shape must be (channels, height >= 8, width >= 8); found {tuple(in_shape)}.")
        check_option("cnn: norm", norm, get_args(Norm))
        check_whole("cnn: width", width, 1)
        if norm == "group" and width % GROUPS:
            raise ValueError(f"cnn: width must be >= 1, and a multiple of {GROUPS} for norm 'group'; found {width}.")
        channels, height, length = in_shape
        layers: list[nn.Module] = []
        for out in (width, 2 * width, 4 * width):
            # A normalisation layer has a shift of its own, which makes a bias before it idle.
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=norm == "none"), *_norm(norm, out)]
            # Pooling before ReLU is the same function, and leaves ReLU a quarter of the values.
            layers += [nn.MaxPool2d(2), nn.ReLU()]
            channels = out
        self.blocks = nn.Sequential(*layers, *_norm(norm, channels))
        self.hidden = nn.Linear(channels * (height // 8) * (length // 8), 64)
        self.classifier = nn.Linear(64, n_classes)
        nn.init.kaiming_normal_(self.hidden.weight, nonlinearity="relu")
        nn.init.normal_(self.classifier.weight, std=NEAR_ZERO)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.classifier(self.hidden(self.blocks(x).flatten(1)).relu())
        return out


def _norm(norm: Norm, channels: int) -> list[nn.Module]:
    return [] if norm == "none" else [nn.GroupNorm(GROUPS, channels) if norm == "group" else nn.BatchNorm2d(channels)]
