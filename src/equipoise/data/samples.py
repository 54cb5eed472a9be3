"""Samples of one client or of a stack of clients, ready for the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

Transform = Callable[..., Tensor]  # (x, shift) -> inputs of the network
MEMORY = 1 << 30  # bytes a data set may take where the machine does not tell what is free
LOOKS = 32  # samples that are read twice: an augmentation may leave any one of them as it is, by chance


@dataclass(frozen=True)
class Samples:
    """Samples held as tensors.

    ``x`` [n, *shape] and ``y`` [n] are the samples of one client, or those of a stack one client after another;
    ``sizes`` [] or [m] says how many each has, and ``first`` [m] where those of each client of a stack begin.
    ``transform(x, shift)`` makes the inputs of the network; None casts to ``dtype``.
    """

    x: Tensor
    y: Tensor
    sizes: Tensor
    dtype: torch.dtype
    transform: Transform | None = None
    first: Tensor | None = None

    def batch(self, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs [..., B, *shape] and labels [..., B] of the samples ``rows`` [..., B] of each client."""
        where = rows if self.first is None else rows + self.first[:, None]
        x = self.x.index_select(0, where.flatten())  # several times as fast as self.x[where]
        flat = None if shift is None else shift.flatten(0, -2)
        return ready(x, flat, self.transform, self.dtype).unflatten(0, where.shape), self.y[where]

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [..., B] of the samples ``rows`` [..., B] of each client."""
        return self.y[rows if self.first is None else rows + self.first[:, None]]

    @cached_property
    def size(self) -> int:
        """Samples of one client."""
        return int(self.sizes)

    @cached_property
    def kind(self) -> tuple[torch.Size, torch.dtype]:
        """Shape and dtype of one sample."""
        return self.x.shape[1:], self.x.dtype


@dataclass(frozen=True)
class Stream:
    """Samples of one client read from a data set when they are needed, because they are many or change each time."""

    dataset: Dataset[Any]
    size: int
    dtype: torch.dtype
    device: torch.device
    transform: Transform | None = None

    @property
    def sizes(self) -> Tensor:
        """Number of samples []."""
        return torch.tensor(self.size, device=self.device)

    def batch(self, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs [B, *shape] and labels [B] of the samples ``rows`` [B]."""
        samples = [_sample(self.dataset, int(row)) for row in rows]
        x = torch.stack([x for x, _ in samples]).to(self.device)
        y = torch.tensor([y for _, y in samples], device=self.device)
        return ready(x, shift, self.transform, self.dtype), y

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [B] of the samples ``rows`` [B]; every sample is read, once."""
        return self._labels[rows]

    @cached_property
    def _labels(self) -> Tensor:
        return torch.tensor([_sample(self.dataset, k)[1] for k in range(self.size)], device=self.device)


def ready(x: Tensor, shift: Tensor | None, transform: Transform | None, dtype: torch.dtype) -> Tensor:
    """Network inputs of samples ``x`` [n, *shape]; a ``dtype`` of int64 leaves them as they are."""
    x = x if transform is None else transform(x, shift)
    return x if dtype == torch.int64 else x.to(dtype)


def stack(clients: Sequence[Samples]) -> Samples:
    """Put the samples of several clients one after another."""
    x, y = torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients])
    sizes = torch.tensor([c.size for c in clients], device=y.device)
    return Samples(x, y, sizes, clients[0].dtype, clients[0].transform, sizes.cumsum(0) - sizes)


def room() -> int:
    """Half of the memory that is free now, in bytes."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not every system tells
        return MEMORY


def read(
    data: Any,
    who: str,
    dtype: torch.dtype,
    device: torch.device,
    transform: Transform | None = None,
    memory: int = MEMORY,
) -> Samples | Stream:
    """Take a client's data as the user has it: ``(x, y)`` arrays or tensors, or a ``torch.utils.data.Dataset``.

    A data set is read into memory once, unless it is larger than ``memory`` bytes or its first samples are others when asked
    for twice (random augmentation); then it is streamed.

    Parameters
    ----------
    data : ``(x, y)`` with x [n, *shape] and integer labels y [n], or a data set of such pairs.
    who : the client's name, for errors.
    dtype, device : of the network; a dtype of int64 leaves inputs as they are, for networks that look them up.
    transform : applied to every batch.
    memory : bytes this data set may take.

    Raises
    ------
    TypeError, ValueError : naming the client, what was expected and what was found.
    """
    if isinstance(data, Samples | Stream):
        return data
    if isinstance(data, IterableDataset):
        raise TypeError(f"{who}: an IterableDataset has no length or index; give a map-style Dataset or (x, y) arrays.")
    if isinstance(data, Dataset):
        size = len(data)  # type: ignore[arg-type]
        if size == 0:
            raise ValueError(f"{who} has no sample. Give it at least one, or leave it out.")
        looks = ((_sample(data, k)[0], _sample(data, k)[0]) for k in range(min(size, LOOKS)))
        if _sample(data, 0)[0].nbytes * size > memory or not all(torch.equal(x, again) for x, again in looks):
            return Stream(data, size, dtype, device, transform)
        samples = [_sample(data, k) for k in range(size)]
        if len(shapes := {x.shape for x, _ in samples}) > 1:
            found = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise ValueError(f"{who}: samples have shapes {found}. All must agree: resize or pad them in the data set.")
        data = (torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples]))
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise TypeError(f"{who}: expected a pair (x, y) or a torch Dataset; found {type(data).__name__}.")
    x, y = _tensor(data[0], who, "x"), _tensor(data[1], who, "y")
    if len(x) != len(y):
        raise ValueError(f"{who}: x holds {len(x)} samples and y {len(y)} labels; they must be as many.")
    if len(y) == 0:
        raise ValueError(f"{who} has no sample. Give it at least one, or leave it out.")
    if y.dim() != 1 or (y.is_floating_point() and not torch.equal(y, y.round())):
        raise ValueError(
            f"{who}: y must be one integer label per sample, of shape [n]; found {list(y.shape)} of {y.dtype}."
        )
    return Samples(x.to(device), y.to(device, torch.int64), torch.tensor(len(y), device=device), dtype, transform)


def _tensor(values: Any, who: str, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{who}: {what} must be a tensor or an array of numbers; found {type(values).__name__} ({error})."
        ) from None


def _sample(dataset: Dataset[Any], row: int) -> tuple[Tensor, int]:
    x, y = dataset[row]
    return torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x, int(y)
