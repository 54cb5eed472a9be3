"""Samples side by side: inputs, targets, and sensitive attributes where they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from equipoise.system.tensor_files import as_bytes
from equipoise.system.tree import flatten, tree_map

Inputs = Tensor | dict[str, Tensor]  # what a network takes: a tensor, or several by name
# name, shape and dtype of each tensor of a sample; "" of a single one
Kind = tuple[tuple[str, torch.Size, torch.dtype], ...]
MOST_VALUES = 1000  # of a sensitive attribute: each has a tally of its own
Shape = torch.Size | dict[str, torch.Size]  # of one sample, or of each of its tensors


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and sensitive attributes of some samples.

    Parameters
    ----------
    x : inputs [..., B, *shape], or a dictionary of several, in the order of their names.
    y : targets [..., B], of the dtype of the task.
    s : codes of A sensitive attributes [..., B, A], int64; -1 is unknown. None where clients have no such attributes. Never
        an input of the network.
    """

    x: Inputs
    y: Tensor
    s: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same with every tensor changed."""
        return Batch(tree_map(change, self.x), change(self.y), None if self.s is None else change(self.s))

    def gather(self, rows: Tensor) -> Batch:
        """The samples ``rows`` [B] of samples [n]."""
        return self.map(lambda leaf: leaf.index_select(0, rows))  # several times as fast as leaf[rows]

    take = gather

    def flipped(self, n_classes: int) -> Batch:
        """The same with the label C - 1 - y in the place of y, where C is ``n_classes``."""
        return Batch(self.x, n_classes - 1 - self.y, self.s)

    def stored(self) -> Iterator[bytes | memoryview]:
        """What tells these samples from others, without their sensitive attributes."""
        for name, leaf in flatten(self.x).items():
            yield f"{name} {leaf.dtype} {list(leaf.shape)}".lstrip().encode()
            yield as_bytes(leaf)
        yield as_bytes(self.y)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The samples [n] one by one, ``(x, y)`` or ``(x, y, s)``."""
        s = [] if self.s is None else [self.s]
        return [(tree_map(itemgetter(k), self.x), self.y[k].item(), *(part[k] for part in s)) for k in range(len(self))]

    @property
    def targets(self) -> Tensor:
        """The labels [n]."""
        return self.y

    @property
    def shape_and_labels(self) -> tuple[Shape, Tensor]:
        """Shape of one sample and the labels [n]."""
        return shape_of(self.x), self.y

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors by name, such as ``x`` and ``y`` or ``x/image``, without what is None."""
        return flatten({name: part for name, part in vars(self).items() if part is not None})

    @staticmethod
    def from_leaves(leaves: Mapping[str, Tensor]) -> Batch:
        """The batch of which these are the :attr:`leaves`."""
        several = {name.removeprefix("x/"): leaf for name, leaf in leaves.items() if name.startswith("x/")}
        return Batch(several or leaves["x"], leaves["y"], leaves.get("s"))

    @property
    def kind(self) -> Kind:
        """Name, shape and dtype of each tensor of one input, of samples [n]."""
        return tuple((name, leaf.shape[1:], leaf.dtype) for name, leaf in flatten(self.x).items())

    @property
    def attributes(self) -> int:
        """How many sensitive attributes A are given."""
        return 0 if self.s is None else self.s.shape[-1]

    @staticmethod
    def joined(parts: Sequence[Batch]) -> Batch:
        """The samples of several batches [n], one batch after another."""
        s = [part.s for part in parts if part.s is not None]
        x, y = joined([part.x for part in parts]), torch.cat([part.y for part in parts])
        return Batch(x, y, torch.cat(s) if s else None)


def check_codes(s: Tensor, who: str) -> None:
    """Require codes [n, A] that make groups of people.

    Raises
    ------
    ValueError : an attribute has more values than MOST_VALUES.
    """
    for k, codes in enumerate(s.unbind(1) if len(s) > MOST_VALUES else ()):
        if (n := len(codes[codes >= 0].unique())) > MOST_VALUES:
            raise ValueError(
                f"{who}: s[:, {k}] has {n:,} different values. s holds codes of sensitive attributes, such as sex or age band, of at most "
                f"{MOST_VALUES:,} values each, and no numbers of persons or rows: leave these out."
            )


def cut(x: Inputs, rows: slice) -> Inputs:
    """Some of the samples ``x`` [n, *shape]."""
    part: Inputs = tree_map(lambda leaf: leaf[rows], x)
    return part


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Inputs [n, *shape] of several batches, one batch after another."""
    whole: Inputs = tree_map(lambda *leaves: torch.cat(leaves), *parts)
    return whole


def unshared(x: Inputs) -> Inputs:
    """The same for a network, which may take entries out of a dictionary."""
    return dict(x) if isinstance(x, dict) else x


def count(x: Inputs) -> int:
    """How many samples ``x`` [n, *shape] holds."""
    return next(iter(flatten(x).values())).shape[:1].numel()


def finite(x: Inputs) -> Tensor:
    """Which of the samples ``x`` [n, *shape] hold finite numbers only [n]."""
    return torch.stack([leaf.reshape(len(leaf), -1).isfinite().all(1) for leaf in flatten(x).values()]).all(0)


def shape_of(x: Inputs) -> Shape:
    """Shape of one of the samples ``x`` [n, *shape]."""
    return {name: leaf.shape[1:] for name, leaf in x.items()} if isinstance(x, dict) else x.shape[1:]


def listed(shape: Shape, *lead: int) -> Any:
    """A shape as a list, or lists by name, after some dimensions more: as messages and JSON have it."""
    return {name: [*lead, *part] for name, part in shape.items()} if isinstance(shape, dict) else [*lead, *shape]
