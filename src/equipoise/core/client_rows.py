"""One row for each client, stored on disk: memory holds only the rows that are read."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.system import memory

IN_MEMORY = 32 << 20  # bytes that the rows of all clients may take in memory
TRAINING = 3  # copies of the model that one client in training takes


def on_disk(nbytes: int, clients: int, cohort: int) -> bool:
    """Whether rows of ``nbytes`` are stored on disk: they are large, and at most half of the clients train in a round."""
    return 2 * cohort <= clients and nbytes > 0 and clients * nbytes > IN_MEMORY


def too_large(n: int, row: Tensor, device: torch.device, more: int = 0) -> bool:
    """Whether n rows such as ``row``, a client in training and ``more`` bytes exceed the free memory of a device, as far as that is known."""
    free = memory.free(device)
    return free is not None and (n + TRAINING) * row.nbytes + more > free


def on_a_disk(device: torch.device) -> bool:
    """Whether what is too large for a device may be in a temporary file: it is a processor, and these files are not in its memory."""
    return device.type == "cpu" and not memory.holds(tempfile.gettempdir())


def matrix(n: int, row: Tensor) -> Tensor:
    """A new matrix [n, ...] for n rows such as ``row``; of a processor, in a temporary file on a disk if memory is too small for it.

    The system reads the file, and writes to it, as the matrix is used; that is slower, and the numbers are the same.

    Raises
    ------
    OSError : the disk has too little space for the file.
    """
    shape, nbytes = (n, *row.shape), n * row.nbytes
    if not nbytes or row.device.type != "cpu" or not too_large(n, row, row.device) or not on_a_disk(row.device):
        return row.new_empty(shape)
    with tempfile.TemporaryFile() as file:
        try:
            file.truncate(nbytes)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, and no signal later
                os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some file systems cannot reserve
                raise _full(error, f"the models of {n:,} clients: {nbytes:,} bytes") from None
        return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=row.dtype).view(shape)


def _full(error: OSError, what: str) -> OSError:
    """The same error; of a full disk, with words."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    advice = "Free some, or set TMPDIR to a directory on a larger disk"
    return OSError(error.errno, f"No space is left in {tempfile.gettempdir()} for {what}. {advice}")


class Copy(NamedTuple):
    """Where a checkpoint stores a row: under ``name`` in a file with ``nbytes`` bytes of rows."""

    directory: Path
    file: str
    sha256: str
    nbytes: int
    name: str


class Slot:
    """The place of one row in a file; it is reused once no version of the rows refers to it."""

    __slots__ = ("copy", "file", "place")

    def __init__(self, file: _File, place: int) -> None:
        self.file, self.place = file, place
        self.copy: Copy | None = None

    def __del__(self) -> None:
        self.file.free.append(self.place)


class _File:
    """A temporary file for rows of ``size`` bytes. It has no name, and is deleted with its last reference."""

    def __init__(self, size: int) -> None:
        self.size, self.end = size, 0
        self.free: list[int] = []
        self.lock = Lock()
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it lives as long as its slots)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()

    def write(self, rows: Tensor) -> list[Slot]:
        """Write rows [m, ...] to free places."""
        with self.lock:
            again = sorted(self.free.pop() for _ in range(min(len(self.free), len(rows))))
            fresh = range(self.end, self.end + len(rows) - len(again))
            self.end = fresh.stop
            slots = [Slot(self, place) for place in (*again, *fresh)]
            try:
                for place, part in self._runs([slot.place for slot in slots], rows):
                    self.file.seek(place)
                    while part:
                        part = part[self.file.write(part) :]
            except OSError as error:
                states = f"the states of absent clients: {self.end:,} rows of {self.size:,} bytes"
                raise _full(error, states) from None
        return slots

    def read(self, slots: Sequence[Slot], into: Tensor) -> None:
        """Read the rows of the slots into a contiguous tensor [m, ...]."""
        with self.lock:
            for place, part in self._runs([slot.place for slot in slots], into):
                self.file.seek(place)
                while part:
                    n = self.file.readinto(part)
                    if not n:
                        raise OSError(errno.EIO, "The temporary file with the states of absent clients was cut short")
                    part = part[n:]

    def _runs(self, places: Sequence[int], rows: Tensor) -> Iterator[tuple[int, memoryview]]:
        """For each run of consecutive places: where it begins in the file, and the bytes of its rows."""
        content = memoryview(_bytes(rows).numpy())  # type: ignore[arg-type]  # an array is a buffer
        for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
            (first, place), *more = run
            yield place * self.size, content[first * self.size : (first + 1 + len(more)) * self.size]


def _bytes(x: Tensor) -> Tensor:
    return x.reshape(-1).view(torch.uint8)


class Rows:
    """One row [...] for each of N clients, read like a tensor [N, ...] that cannot be changed in place.

    ``rows[k]``, ``rows[2:5]``, ``rows[[4, 1]]`` and ``rows[ids]`` give copies. ``index_copy`` gives new rows, which share
    the unchanged ones with the old; both stay valid. A row that was never written is ``default``.

    Parameters
    ----------
    default : a row [...] with at least one entry.
    n : how many clients there are, >= 1.
    """

    def __init__(self, default: Tensor, n: int) -> None:
        self.default = default.detach().clone()
        self._n, self._file = n, _File(default.nbytes)
        self.slots: Mapping[int, Slot] = {}  # of the rows that were written

    def __len__(self) -> int:
        return self._n

    @property
    def shape(self) -> torch.Size:
        """[N, ...]."""
        return torch.Size((self._n, *self.default.shape))

    @property
    def dtype(self) -> torch.dtype:
        """Of every row."""
        return self.default.dtype

    @property
    def device(self) -> torch.device:
        """The device to which rows are read."""
        return self.default.device

    def dim(self) -> int:
        """Number of dimensions, that of the clients among them."""
        return 1 + self.default.dim()

    def to(self, device: torch.device) -> Rows:
        """The same rows, read to another device."""
        return self._like(self.default.to(device), self.slots)

    def _like(self, default: Tensor, slots: Mapping[int, Slot]) -> Rows:
        new = object.__new__(Rows)
        new.default, new._n, new._file, new.slots = default, self._n, self._file, slots
        return new

    def __getitem__(self, key: Any) -> Tensor:
        """The row [...] of one client, or those [m, ...] of a slice, list or tensor of clients.

        Raises
        ------
        IndexError : there is no such client.
        """
        if isinstance(key, int):
            return self[[range(self._n)[key]]][0]
        selected = torch.arange(self._n)[key.cpu() if isinstance(key, Tensor) else key]
        if selected.dim() == 0:
            return self[int(selected)]
        ids: list[int] = selected.tolist()
        values = self.default.cpu().repeat(len(ids), *[1] * self.default.dim())
        written = [k for k, m in enumerate(ids) if m in self.slots]
        slots = [self.slots[ids[k]] for k in written]
        if len(written) == len(ids):
            self._file.read(slots, values)
        elif written:
            read = values[: len(written)].clone()
            self._file.read(slots, read)
            values[written] = read
        return values.to(self.device)

    def index_copy(self, dim: int, ids: Tensor, values: Tensor) -> Rows:
        """New rows in which the clients ``ids`` [m], each named once, have ``values`` [m, ...].

        Raises
        ------
        ValueError : values of another shape or dtype, or ``dim`` is not 0.
        OSError : the disk is full; these rows stay valid.
        """
        names = ids.tolist()
        expected = (len(names), *self.default.shape)
        if dim != 0 or values.shape != expected or values.dtype != self.dtype:
            raise ValueError(
                f"Rows take values of shape {list(expected)} of {self.dtype} along dimension 0; "
                f"found {list(values.shape)} of {values.dtype} along {dim}."
            )
        values, blank = values.detach().cpu().contiguous(), _bytes(self.default.cpu())
        some = [k for k, m in enumerate(names) if m in self.slots or not torch.equal(_bytes(values[k]), blank)]
        written = self._file.write(values if len(some) == len(names) else values[some])
        changed = {names[k]: slot for k, slot in zip(some, written, strict=True)}
        return self._like(self.default, {**self.slots, **changed})
