"""Multilayer perceptron."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from equipoise.system.ranges import Range


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
        widths = [math.prod(in_shape), *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.classifier = nn.Linear(widths[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x).relu()
        out: Tensor = self.classifier(x)
        return out
