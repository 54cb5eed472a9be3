"""The learning task, one label for each sample: its loss and prediction, in training and evaluation alike."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def losses(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample [..., B] from logits [..., B, C] and labels [..., B]."""
    return functional.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


def predictions(logits: Tensor) -> Tensor:
    """The predicted class of each sample [..., B] from logits [..., B, C]; -1, no class, where the largest is not finite."""
    top, classes = logits.max(-1)
    return classes.masked_fill(~top.isfinite(), -1)


def correct(logits: Tensor, y: Tensor) -> Tensor:
    """Which samples are classified correctly, boolean [..., B]."""
    return predictions(logits) == y
