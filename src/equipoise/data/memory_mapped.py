"""Images that stay on disk until they are needed, and what all kinds of samples have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from equipoise.data.batch import Batch, check_codes
from equipoise.system import hashes
from equipoise.system.tensor_files import as_bytes


@dataclass(frozen=True)
class Mapped(Dataset[tuple[Any, ...]]):
    """Some of the images in a file, each read when it is needed; the labels are in memory.

    The file is opened anew for every fetch, so that a process that is given this object opens it, too; what was read
    stays in the system's cache and is no memory of this process.

    Parameters
    ----------
    path : a ``.npy`` file of uint8 images [N, C, H, W].
    rows : int64 [n], which of them these samples are.
    targets : int64 or float64 [n], their labels.
    s : int64 [n, A], codes of their sensitive attributes, -1 for unknown; None if there are none.

    Raises
    ------
    ValueError : the file holds no such images, or a sensitive attribute has too many values; and, where they are read, it lacks some.
    """

    path: Path
    rows: NDArray[np.int64] = field(compare=False, repr=False)
    targets: Tensor = field(compare=False, repr=False)
    s: Tensor | None = field(default=None, compare=False, repr=False)
    shape: tuple[int, ...] = field(init=False, compare=False, repr=False)  # channels, height and width of an image
    start: int = field(init=False, compare=False, repr=False)  # byte of the file at which the first image begins

    def __post_init__(self) -> None:
        images = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if images.dtype != np.uint8 or images.ndim != 4 or not images.flags.c_contiguous:
            order = "C" if images.flags.c_contiguous else "Fortran's"
            content = f"{images.dtype} {images.shape} in {order} order"
            raise ValueError(f"{self.path}: expected uint8 images [n, C, H, W] in C order; found {content}.")
        if self.s is not None:
            check_codes(self.s, str(self.path))
        object.__setattr__(self, "shape", tuple(images.shape[1:]))
        object.__setattr__(self, "start", images.offset)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return self.gather([row]).rows[0]

    @property
    def shape_and_labels(self) -> tuple[torch.Size, Tensor]:
        """Shape of one sample and the labels [n]."""
        return torch.Size(self.shape), self.targets

    @property
    def attributes(self) -> int:
        """How many sensitive attributes samples have."""
        return 0 if self.s is None else self.s.shape[1]

    def gather(self, rows: Sequence[int] | Tensor) -> Batch:
        """Some of the samples."""
        chosen = torch.as_tensor(rows, dtype=torch.int64).cpu()
        return Batch(self.images(chosen), self.targets[chosen], None if self.s is None else self.s[chosen])

    def images(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Some of the images, uint8 [B, C, H, W]."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        x = np.empty((len(chosen), *self.shape), np.uint8)
        size = math.prod(self.shape)
        # Read, not mapped: as fast as from memory and 1.6 times as fast as from a map, whose file nobody may cut short.
        with self.path.open("rb", buffering=0) as file:
            for image, row in zip(x, self.rows[chosen.numpy()].tolist(), strict=True):
                file.seek(self.start + row * size)
                if file.readinto(image) != size:
                    raise ValueError(f"{self.path}: ends before image {row}; something cut it short. Start again.")
        return torch.from_numpy(x)

    def take(self, rows: Iterable[int] | Tensor) -> Mapped:
        """Some of these samples, in this order."""
        at = _index(rows)
        return Mapped(self.path, self.rows[at.numpy()], self.targets[at], None if self.s is None else self.s[at])

    def flipped(self, n_classes: int) -> Mapped:
        """The same with the label C - 1 - y in the place of y."""
        return replace(self, targets=n_classes - 1 - self.targets)

    def stored(self) -> Iterator[bytes | memoryview]:
        """What tells these samples from others, without their sensitive attributes."""
        yield hashes.file_hash(self.path).encode()
        yield self.rows.tobytes()
        yield as_bytes(self.targets)


# inputs [n, *shape], labels [n] (int64 classes, or float64 numbers to predict), and codes of sensitive attributes, if any
Data = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | Mapped


def take(data: Data, rows: Iterable[int] | Tensor) -> Data:
    """Some of the samples, in this order."""
    if isinstance(data, Mapped):
        return data.take(rows)
    chosen = _index(rows)
    x, y, *s = (leaf[chosen] for leaf in data)
    return (x, y, s[0]) if s else (x, y)


def _index(rows: Iterable[int] | Tensor) -> Tensor:
    return torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows), dtype=torch.int64)


def labels(data: Data) -> Tensor:
    """The labels [n]."""
    return data.targets if isinstance(data, Mapped) else data[1]


def shape(data: Data) -> tuple[int, ...]:
    """Shape of one sample."""
    return data.shape if isinstance(data, Mapped) else tuple(data[0].shape[1:])
