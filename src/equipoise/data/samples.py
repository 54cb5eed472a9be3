"""Samples of one client or of a stack of clients, ready for the network."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from equipoise.data.memory_mapped import Mapped
from equipoise.data.precision import lost

Transform = Callable[..., Tensor]  # (x, shift) -> inputs of the network
MEMORY = 1 << 30  # bytes a data set may take where the system does not say what is free
VALUES = 512 * 3 * 64 * 64  # inputs of a network in one pass of an evaluation, at most: 512 images of 64 by 64
COMPLEX = (
    "{} holds complex numbers, whose imaginary part would be dropped. "
    "Give real numbers: abs(x), or real and imaginary part as channels, torch.view_as_real(x)."
)
CAST_NAN = {torch.iinfo(dtype).min for dtype in (torch.int32, torch.int64)}  # what becomes of NaN as a whole number
LOOKS = 32  # samples that are read twice: an augmentation may leave any one of them as it is, by chance


@dataclass(frozen=True)
class Samples:
    """Samples held as tensors.

    ``x`` [n, *shape] and ``y`` [n] are the samples of one client, or those of a stack one client after another;
    ``sizes`` [] or [m] says how many each has, ``first`` [m] where those of each client of a stack begin, and ``longest`` how
    many the largest of a stack has.
    ``transform(x, shift)`` makes the inputs of the network; None casts to ``dtype``.
    """

    x: Tensor
    y: Tensor
    sizes: Tensor
    dtype: torch.dtype
    transform: Transform | None = None
    first: Tensor | None = None
    longest: int | None = None

    def batch(self, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs [..., B, *shape] and labels [..., B] of the samples ``rows`` [..., B] of each client."""
        where = rows if self.first is None else rows + self.first[:, None]
        x = self.x.index_select(0, where.flatten())  # several times as fast as self.x[where]
        flat = None if shift is None else shift.flatten(0, -2)
        return ready(x, flat, self.transform, self.dtype).unflatten(0, where.shape), self.y[where]

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [..., B] of the samples ``rows`` [..., B] of each client."""
        return self.y[rows if self.first is None else rows + self.first[:, None]]

    @property
    def size(self) -> int:
        """Samples of one client, or of the largest of a stack."""
        return len(self.y) if self.longest is None else self.longest

    @property
    def known(self) -> tuple[torch.Size, Tensor]:
        """Shape of one sample and the labels [n]."""
        return self.x.shape[1:], self.y

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
    target: torch.dtype = torch.int64

    @property
    def sizes(self) -> Tensor:
        """Number of samples []."""
        return torch.tensor(self.size, device=self.device)

    @property
    def known(self) -> tuple[torch.Size, Tensor] | None:
        """Shape of one sample and the labels [n], if that takes no reading of samples."""
        if not isinstance(self.dataset, Mapped):
            return None
        return torch.Size(self.dataset.shape), self.dataset.targets[: self.size]

    def batch(self, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs [B, *shape] and labels [B] of the samples ``rows`` [B]."""
        if isinstance(self.dataset, Mapped):
            x, y = self.dataset.gather(rows)
        else:
            samples = [_sample(self.dataset, int(row), target=self.target) for row in rows]
            x, y = torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples], dtype=self.target)
        return ready(x.to(self.device), shift, self.transform, self.dtype), y.to(self.device)

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [B] of the samples ``rows`` [B]; where the labels are not known apart, every sample is read, once."""
        return self._labels[rows]

    @cached_property
    def _labels(self) -> Tensor:
        if isinstance(self.dataset, Mapped):
            return self.dataset.targets.to(self.device)
        targets = [_sample(self.dataset, k, target=self.target)[1] for k in range(self.size)]
        return torch.tensor(targets, dtype=self.target, device=self.device)


@dataclass(frozen=True)
class Lazy:
    """A client's data that are loaded when it takes part in a round, and dropped after it.

    Parameters
    ----------
    load : called without arguments; gives what a client of :class:`equipoise.Federation` may be, ``(x, y)`` or a
        ``torch.utils.data.Dataset``. Each call must give the same samples.
    size : how many samples that is, >= 1.

    Raises
    ------
    TypeError, ValueError : ``load`` cannot be called, or ``size`` is not a whole number >= 1.
    """

    load: Callable[[], Any]
    size: int

    def __post_init__(self) -> None:
        if not callable(self.load):
            raise TypeError(f"Lazy: load must be a function without arguments; found {type(self.load).__name__}.")
        try:
            size = 0 if isinstance(self.size, bool) else index(self.size)  # a count by NumPy is a number, too
        except TypeError:
            size = 0
        if size < 1:
            raise ValueError(f"Lazy: size must be a whole number >= 1; found {self.size!r}.")
        object.__setattr__(self, "size", size)


@dataclass(frozen=True)
class Absent:
    """A client whose data are not in memory: :class:`Lazy`, as a federation knows it.

    ``like`` (name of the first client and shape of its samples; None: any) and ``n_classes`` (0: any) are what must be
    found when the data are loaded. ``part`` is which part of them is meant: the share that is held out, the seed, and whether
    it is what is held out; None for all.
    """

    lazy: Lazy
    who: str
    dtype: torch.dtype
    device: torch.device
    transform: Transform | None
    memory: int
    target: torch.dtype = torch.int64
    like: tuple[str, torch.Size] | None = None
    n_classes: int = 0
    part: tuple[float, int, bool] | None = None

    @property
    def size(self) -> int:
        """Samples of this client, or of its part."""
        n = self.lazy.size
        if self.part is None:
            return n
        held = n_held(n, self.part[0])
        return held if self.part[2] else n - held

    def load(self) -> Samples | Stream:
        """The samples.

        Raises
        ------
        TypeError, ValueError : they are not what was promised, or not what :func:`read` takes; and whatever ``load`` raises.
        """
        given = self.lazy.load()
        if isinstance(given, Lazy):
            raise TypeError(f"{self.who}: load() gave another Lazy; it must give (x, y) or a torch Dataset.")
        data = loaded(read(given, self.who, self.dtype, self.device, self.transform, self.memory, self.target))
        if data.size != self.lazy.size:
            raise ValueError(f"{self.who}: Lazy promises {self.lazy.size} samples, and load() gave {data.size}.")
        check(data, self.who, self.like, self.n_classes)
        if self.part is None:
            return data
        share, seed, held = self.part
        kept = divided(data, share, seed, self.who)[held]
        assert isinstance(kept, Samples | Stream)
        return kept


def n_held(n: int, share: float) -> int:
    """How many of a client's ``n`` samples it holds out: its share, rounded down; fewer than all for a share below 1."""
    return min(int(share * n + 1e-9), n - 1)


def divided(
    data: Samples | Stream | Absent, share: float, seed: int, who: str
) -> tuple[Samples | Stream | Absent, Samples | Stream | Absent | None]:
    """What a client trains on, and what it holds out for validation; None if it has too few samples.

    Each class is held out in proportion, by systematic sampling in random order, where labels are known without reading
    samples. The draw depends on the seed and the client's name ``who`` only.
    """
    n = data.size
    if not (k := n_held(n, share)):
        return data, None
    if isinstance(data, Absent):
        return replace(data, part=(share, seed, False)), replace(data, part=(share, seed, True))
    rng = np.random.default_rng(list(hashlib.sha256(f"{seed} {who}".encode()).digest()))
    order = rng.permutation(n)
    if data.known is not None:
        order = order[np.argsort(data.known[1].cpu().numpy()[order], kind="stable")]
    held = np.zeros(n, bool)
    held[order[((np.arange(k) + rng.random()) * n / k).astype(np.int64)]] = True
    return _rows(data, np.flatnonzero(~held)), _rows(data, np.flatnonzero(held))


def _rows(data: Samples | Stream, rows: NDArray[np.int64]) -> Samples | Stream:
    if isinstance(data, Stream):
        of = data.dataset.take if isinstance(data.dataset, Mapped) else partial(Subset, data.dataset)
        return replace(data, dataset=of(rows.tolist()), size=len(rows))
    at = torch.from_numpy(rows).to(data.y.device)
    return replace(data, x=data.x[at], y=data.y[at], sizes=torch.tensor(len(rows), device=data.y.device))


@dataclass(frozen=True)
class Flipped(Dataset[tuple[Tensor, int]]):
    """The samples of a data set with flipped labels, see :func:`flipped`."""

    dataset: Dataset[Any]
    n_classes: int

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        x, y = _sample(self.dataset, row)
        return x, self.n_classes - 1 - y


def flipped(data: Samples | Stream, n_classes: int) -> Samples | Stream:
    """The same samples with the label C - 1 - y in the place of y, where C is ``n_classes``."""
    if isinstance(data, Samples):
        return replace(data, y=n_classes - 1 - data.y)
    of = data.dataset
    turned = replace(of, targets=n_classes - 1 - of.targets) if isinstance(of, Mapped) else Flipped(of, n_classes)
    return replace(data, dataset=turned)


class LoadError(RuntimeError):
    """Data of a client that are needed, and cannot be loaded."""


@dataclass(frozen=True)
class Awaited:
    """Samples of an absent client that are loaded when somebody looks at them."""

    absent: Absent

    @cached_property
    def data(self) -> Samples | Stream:
        """The samples.

        Raises
        ------
        LoadError : naming the client, and why.
        """
        try:
            return self.absent.load()
        except Exception as error:  # whatever a user's function raises
            raise LoadError(
                f"The data of {self.absent.who} cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.absent.size

    @property
    def sizes(self) -> Tensor:
        """Number of samples []."""
        return torch.tensor(self.size, device=self.absent.device)

    def batch(self, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs [B, *shape] and labels [B] of the samples ``rows`` [B]."""
        return self.data.batch(rows, shift)

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [B] of the samples ``rows`` [B]."""
        return self.data.labels(rows)


def loaded(data: Samples | Stream | Absent) -> Samples | Stream:
    """The samples, in memory or streamed; those of an absent client are loaded."""
    return data.load() if isinstance(data, Absent) else data


def at_once(data: object, most: int) -> int:
    """How many samples to evaluate in one pass: ``most``, or fewer large ones, so that activations do not fill the memory."""
    if isinstance(data, Awaited):
        return at_once(data.data, most)
    known = data.known if isinstance(data, Samples | Stream) else None
    return most if known is None else max(1, min(most, VALUES // max(1, known[0].numel())))


def check(data: Samples | Stream, who: str, like: tuple[str, torch.Size] | None, n_classes: int) -> None:
    """Require samples of a shape, that of a client ``like`` has (None: any), and labels in 0..``n_classes`` - 1 (0: any).

    A streamed sample of which nothing is known is checked when it is used.

    Raises
    ------
    ValueError : naming the client, what was expected and what was found.
    """
    if data.known is None:
        return
    shape, y = data.known
    if like is not None and shape != like[1]:
        shapes = f"{list(shape)}, those of {like[0]} have {list(like[1])}"
        raise ValueError(f"{who}: samples have shape {shapes}. All must agree.")
    low, high = int(y.min()), int(y.max())
    if n_classes and (low < 0 or high >= n_classes):
        range_found = f"{low}..{high}."
        if low in CAST_NAN:
            range_found = "NaN that was made a whole number. Look for labels that are missing or misspelt."
        raise ValueError(
            f"{who}: labels must be in 0..{n_classes - 1}, because the network has {n_classes} outputs; found {range_found}"
        )


def ready(x: Tensor, shift: Tensor | None, transform: Transform | None, dtype: torch.dtype) -> Tensor:
    """Network inputs of samples ``x`` [n, *shape]; a ``dtype`` of int64 leaves them as they are."""
    x = x if transform is None else transform(x, shift)
    if x.is_complex():
        raise TypeError(COMPLEX.format("The input of the network"))
    return x if dtype == torch.int64 else x.to(dtype)


def stack(clients: Sequence[Samples]) -> Samples:
    """Put the samples of several clients one after another."""
    x, y = torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients])
    each = [c.size for c in clients]
    sizes = torch.tensor(each, device=y.device)
    return Samples(x, y, sizes, clients[0].dtype, clients[0].transform, sizes.cumsum(0) - sizes, max(each))


def room() -> int:
    """Half of the memory that is free now, in bytes."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not every system says
        return MEMORY


def read(
    data: Any,
    who: str,
    dtype: torch.dtype,
    device: torch.device,
    transform: Transform | None = None,
    memory: int = MEMORY,
    target: torch.dtype = torch.int64,
) -> Samples | Stream | Absent:
    """Take a client's data as the user has it: ``(x, y)`` arrays or tensors, a ``torch.utils.data.Dataset`` or :class:`Lazy`.

    A data set is read into memory once, unless it is larger than ``memory`` bytes or its first samples are others when asked
    for twice (random augmentation); then it is streamed.

    Parameters
    ----------
    data : ``(x, y)`` with x [n, *shape] and labels y [n], integers (or numbers, see ``target``), or a data set of such pairs; :class:`Lazy` is not loaded.
    who : the client's name, for errors.
    dtype, device : of the network; a dtype of int64 leaves inputs as they are, for networks that look them up.
    transform : applied to every batch.
    memory : bytes this data set may take.
    target : int64 for classes, float64 for numbers.

    Raises
    ------
    TypeError, ValueError : naming the client, what was expected and what was found.
    """
    if isinstance(data, Samples | Stream | Absent):
        return data
    if isinstance(data, Lazy):
        return Absent(data, who, dtype, device, transform, memory, target)
    if isinstance(data, Mapped) and len(data):
        return Stream(data, len(data), dtype, device, transform, target)
    if isinstance(data, IterableDataset):
        raise TypeError(f"{who}: an IterableDataset has no length or index; give a map-style Dataset or (x, y) arrays.")
    if isinstance(data, Dataset):
        try:
            size = len(data)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            raise TypeError(f"{who}: {type(data).__name__} does not say how many samples it has (__len__).") from None
        if size == 0:
            raise ValueError(f"{who} has no sample. Give it at least one, or leave it out.")
        looks = ((_sample(data, k, who, target)[0], _sample(data, k, who, target)[0]) for k in range(min(size, LOOKS)))
        if _sample(data, 0, who, target)[0].nbytes * size > memory or not all(
            torch.equal(x, again) for x, again in looks
        ):
            return Stream(data, size, dtype, device, transform, target)
        samples = [_sample(data, k, who, target) for k in range(size)]
        if len(shapes := {x.shape for x, _ in samples}) > 1:
            found = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise ValueError(f"{who}: samples have shapes {found}. All must agree: resize or pad them in the data set.")
        data = (torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples], dtype=target))
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        several = f" of {len(data)}" if isinstance(data, (tuple, list)) else ""
        raise TypeError(f"{who}: expected a pair (x, y) or a torch Dataset; found {type(data).__name__}{several}.")
    x, y = tensor(data[0], who, "x"), tensor(data[1], who, "y")
    if not x.dim():
        raise ValueError(
            f"{who}: x must hold one input per sample, of shape [n, ...]; found the single number {x.item()}."
        )
    _check_targets(y, who) if target.is_floating_point else _check_labels(y, who)
    if len(x) != len(y):
        raise ValueError(f"{who}: x holds {len(x)} samples and y {len(y)} labels; they must be as many.")
    if len(y) == 0:
        raise ValueError(f"{who} has no sample. Give it at least one, or leave it out.")
    if transform is None:
        _check_range(x, who, dtype)
    return Samples(x.to(device), y.to(device, target), torch.tensor(len(y), device=device), dtype, transform)


def tensor(values: Any, who: str, what: str) -> Tensor:
    """A tensor from a tensor, an array, a table or lists of numbers.

    Raises
    ------
    TypeError : naming what was found in place of numbers, and what to do.
    """
    if isinstance(values, Tensor):
        if values.layout == torch.strided and not (values.is_nested or values.is_meta or values.is_quantized):
            return values.detach()
        found = "nested" if values.is_nested else "without numbers (meta)" if values.is_meta else str(values.layout)
        raise TypeError(
            f"{who}: {what} must be a dense tensor; found one that is {found}. Convert it: {what}.to_dense()."
        )
    try:
        array = np.empty(0, object) if isinstance(values, Dataset) else np.asarray(values)  # which may never end
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.dtype.kind in "biufc" and array.dtype != np.longdouble:
        return torch.as_tensor(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
    found, todo = _NO_NUMBERS.get(array.dtype.kind, (str(array.dtype), "Convert them to float32"))
    if array.dtype.kind in "US" and what == "y":
        todo = "Number the classes, in one order for all clients: numpy.searchsorted(names, y), where names are those of all, sorted"
    raise TypeError(
        f"{who}: {what} must be a tensor or an array of numbers; found {type(values).__name__}: {found}. {todo}."
    )


_NO_NUMBERS = {  # by NumPy's letter for the kind: what it is, and what to do
    "O": ("no numbers, or rows of different lengths", "Make it one array: numpy.array(..., dtype=float)"),
    "U": ("words", "Replace words by numbers"),
    "S": ("words", "Replace words by numbers"),
    "M": ("dates", "Replace dates by numbers, such as days"),
    "m": ("durations", "Replace durations by numbers, such as days"),
}


def _check_labels(y: Tensor, who: str) -> None:
    """Require one whole number per sample."""
    kind = f"{list(y.shape)} of {y.dtype}"
    if y.dim() == 2 and y.shape[1] > 1:
        kind += ". One-hot rows become labels by y.argmax(1)"
    elif y.dim() == 2:
        kind += ". A column becomes labels by y.reshape(-1)"
    elif y.dim() == 1 and not y.is_complex():
        strange = y[~((y.abs() < 2**53) & (y == y.round()))] if y.is_floating_point() else y[:0]
        if not len(strange):
            return
        kind += f', with {strange[0].item():g}. Numbers to predict need task="regression"'
    raise ValueError(f"{who}: y must be one integer label per sample, of shape [n]; found {kind}.")


def _check_targets(y: Tensor, who: str) -> None:
    """Require one finite number per sample."""
    if y.dim() != 1 or y.is_complex() or y.dtype == torch.bool:
        more = ". A column becomes targets by y.reshape(-1)" if y.dim() == 2 and y.shape[1] == 1 else ""
        raise ValueError(
            f"{who}: y must be one number per sample, of shape [n]; found {list(y.shape)} of {y.dtype}{more}."
        )
    if bad := int((~y.isfinite()).sum()):
        raise ValueError(
            f"{who}: {bad} of {len(y)} targets are NaN or infinite. Correct them, or leave these samples out."
        )


def rounding(data: Samples) -> str:
    """Which numbers that differ are the same for a network of single precision, in a sentence; empty if hardly any are."""
    exact = data.x.dtype == torch.float32 or data.x.dtype.itemsize < torch.float32.itemsize
    if data.transform is not None or data.dtype != torch.float32 or exact or data.x.is_complex():
        return ""
    rounded = data.x.to(torch.float32)
    return lost(data.x.cpu().numpy(), rounded.cpu().numpy(), lambda k: f"number {k} of a sample")


def _check_range(x: Tensor, who: str, dtype: torch.dtype) -> None:
    """Require real numbers that stay finite when they become the network's ``dtype``."""
    if x.is_complex():
        raise TypeError(COMPLEX.format(f"{who}: x"))
    if not dtype.is_floating_point or not len(x) or torch.finfo(dtype).max >= _largest(x.dtype):
        return
    lost = (x.isfinite() & ~x.to(dtype).isfinite()).nonzero()
    if len(lost):
        at = lost[0].tolist()
        raise ValueError(
            f"{who}: x{at} is {x[tuple(at)].item():g}, too large for the network's {str(dtype).removeprefix('torch.')}, "
            f"in which it becomes infinite; so do {len(lost)} numbers in all. Divide x by a constant, or use net.double()."
        )


def _largest(dtype: torch.dtype) -> float:
    return 1 if dtype == torch.bool else torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def _sample(
    dataset: Dataset[Any], row: int, who: str = "A data set", target: torch.dtype = torch.int64
) -> tuple[Tensor, Any]:
    pair = dataset[row]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        several = f" of {len(pair)}" if isinstance(pair, (tuple, list, dict)) else ""
        raise TypeError(f"{who}: sample {row} must be a pair (x, label); found {type(pair).__name__}{several}.")
    x, y = tensor(pair[0], f"{who}, sample {row}", "x"), pair[1]
    if target.is_floating_point:
        number = tensor(y, f"{who}, sample {row}", "y")
        _check_targets(number.reshape(-1), f"{who}, sample {row}")
        return x, float(number)
    try:
        label = int(y)
        whole = bool(label == y)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        whole = False
    if not whole:
        raise TypeError(f"{who}: the label of sample {row} must be a whole number; found {str(y)[:80]}.")
    return x, label
