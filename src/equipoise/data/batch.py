"""Samples side by side: inputs, targets, and sensitive attributes where they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.system.tensor_files import as_bytes


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and sensitive attributes of some samples.

    Parameters
    ----------
    x : inputs [..., B, *shape].
    y : targets [..., B], of the dtype of the task.
    s : codes of A sensitive attributes [..., B, A], int64; -1 is unknown. None where clients have no such attributes. Never
        an input of the network.
    """

    x: Tensor
    y: Tensor
    s: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same with every tensor changed."""
        return Batch(change(self.x), change(self.y), None if self.s is None else change(self.s))

    def gather(self, rows: Tensor) -> Batch:
        """The samples ``rows`` [B] of samples [n]."""
        return self.map(lambda leaf: leaf.index_select(0, rows))  # several times as fast as leaf[rows]

    take = gather

    def flipped(self, n_classes: int) -> Batch:
        """The same with the label C - 1 - y in the place of y, where C is ``n_classes``."""
        return Batch(self.x, n_classes - 1 - self.y, self.s)

    def stored(self) -> Iterator[bytes | memoryview]:
        """What tells these samples from others, without their sensitive attributes."""
        yield f"{self.x.dtype} {list(self.x.shape)}".encode()
        yield as_bytes(self.x)
        yield as_bytes(self.y)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def targets(self) -> Tensor:
        """The labels [n]."""
        return self.y

    @property
    def known(self) -> tuple[torch.Size, Tensor]:
        """Shape of one sample and the labels [n]."""
        return self.x.shape[1:], self.y

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors by name, without what is None."""
        return {name: leaf for name, leaf in vars(self).items() if leaf is not None}

    @property
    def kind(self) -> tuple[torch.Size, torch.dtype]:
        """Shape and dtype of one input, of samples [n]."""
        return self.x.shape[1:], self.x.dtype

    @property
    def attributes(self) -> int:
        """How many sensitive attributes A are given."""
        return 0 if self.s is None else self.s.shape[-1]

    @staticmethod
    def joined(parts: Sequence[Batch]) -> Batch:
        """The samples of several batches [n], one batch after another."""
        s = [part.s for part in parts if part.s is not None]
        x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
        return Batch(x, y, torch.cat(s) if s else None)
