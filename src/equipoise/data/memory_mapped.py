"""Images that stay on disk until they are needed, and what all kinds of samples have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Mapped(Dataset[tuple[Tensor, float]]):
    """Some of the images in a file, each read when it is needed; the labels are in memory.

    The file is opened anew for every fetch, so that a process that is given this object opens it, too; what was read
    stays in the system's cache and is no memory of this process.

    Parameters
    ----------
    path : a ``.npy`` file of uint8 images [N, C, H, W].
    rows : int64 [n], which of them these samples are.
    targets : int64 or float64 [n], their labels.

    Raises
    ------
    ValueError : the file holds no such images, or not as many as ``rows`` names.
    """

    path: Path
    rows: NDArray[np.int64] = field(compare=False, repr=False)
    targets: Tensor = field(compare=False, repr=False)
    shape: tuple[int, ...] = field(init=False, compare=False, repr=False)  # channels, height and width of an image
    start: int = field(init=False, compare=False, repr=False)  # byte of the file at which the first image begins

    def __post_init__(self) -> None:
        images = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if images.dtype != np.uint8 or images.ndim != 4 or not images.flags.c_contiguous:
            order = "" if images.flags.c_contiguous else " in Fortran's order"
            raise ValueError(
                f"{self.path}: expected uint8 images [n, C, H, W]; found {images.dtype} {images.shape}{order}."
            )
        if len(self.rows) != len(self.targets):
            raise ValueError(
                f"{self.path}: {len(self.rows)} images and {len(self.targets)} labels; they must be as many."
            )
        if len(self.rows) and not 0 <= self.rows.min() <= self.rows.max() < len(images):
            raise ValueError(f"{self.path}: holds {len(images)} images; found row {self.rows.max()} asked for.")
        object.__setattr__(self, "shape", tuple(images.shape[1:]))
        object.__setattr__(self, "start", images.offset)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, float]:
        x, y = self.gather([row])
        return x[0], y.item()

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, float]]:
        x, y = self.gather(rows)
        return list(zip(x, y.tolist(), strict=True))

    def gather(self, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, C, H, W] and labels [B] of some of the samples."""
        chosen = torch.as_tensor(rows, dtype=torch.int64).cpu()
        x = np.empty((len(chosen), *self.shape), np.uint8)
        size = math.prod(self.shape)
        # Read, not mapped: as fast as from memory and 1.6 times as fast as from a map, whose file nobody may cut short.
        with self.path.open("rb", buffering=0) as file:
            for image, row in zip(x, self.rows[chosen.numpy()].tolist(), strict=True):
                file.seek(self.start + row * size)
                if file.readinto(image) != size:
                    raise ValueError(f"{self.path}: ends before image {row}; something cut it short. Start again.")
        return torch.from_numpy(x), self.targets[chosen]

    def take(self, rows: Iterable[int] | Tensor) -> Mapped:
        """Some of these samples, in this order."""
        chosen = torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows), dtype=torch.int64)
        return Mapped(self.path, self.rows[chosen.numpy()], self.targets[chosen])


Data = tuple[Tensor, Tensor] | Mapped  # inputs [n, *shape] and labels [n]: int64 classes, or float64 numbers to predict


def take(data: Data, rows: Iterable[int] | Tensor) -> Data:
    """Some of the samples, in this order."""
    if isinstance(data, Mapped):
        return data.take(rows)
    chosen = torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows), dtype=torch.int64)
    return data[0][chosen], data[1][chosen]


def labels(data: Data) -> Tensor:
    """The labels [n]."""
    return data.targets if isinstance(data, Mapped) else data[1]


def shape(data: Data) -> tuple[int, ...]:
    """Shape of one sample."""
    return data.shape if isinstance(data, Mapped) else tuple(data[0].shape[1:])
