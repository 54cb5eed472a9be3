"""Samples of one client or of a stack of clients, ready for the network."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import index
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from equipoise.data.batch import Batch, Inputs, Shape, check_codes, listed, shape_of
from equipoise.data.memory_mapped import Mapped
from equipoise.data.precision import lost
from equipoise.system.errors import CODE, MEMORY, RunError, out_of_memory
from equipoise.system.suggestions import some
from equipoise.system.tensor_files import as_bytes
from equipoise.system.tree import flatten, tree_map

Transform = Callable[..., Inputs]  # (x, shift) -> inputs of the network
ROOM = 1 << 30  # bytes a data set may take where the system does not say what is free
VALUES = 512 * 3 * 64 * 64  # inputs of a network in one pass of an evaluation, at most: 512 images of 64 by 64
PIXELS, IMAGES = (
    64 * 32 * 32,
    16,
)  # of images whose activations stay in the cache: 64 of 32 by 32; at least so many images
COMPLEX = "{} holds complex numbers, whose imaginary part would be dropped. Give real numbers: abs(x), or real and imaginary part as channels, torch.view_as_real(x)."
CAST_NAN = {torch.iinfo(dtype).min for dtype in (torch.int32, torch.int64)}  # what becomes of NaN as a whole number
LOOKS = 32  # samples that are read twice: an augmentation may leave any one of them as it is, by chance
Draw = tuple[float, int]  # of what a client holds out for validation: its share, and the seed
NOTHING: Draw = (0.0, 0)
HASHED = 8  # samples of a data set that are hashed

UNLIKE = "some samples have {} sensitive attributes, and the first one {}. Give all as many, -1 where one is unknown."


@dataclass(frozen=True)
class Items(Dataset[tuple[Any, ...]]):
    """A data set of the user's that is read sample by sample.

    ``target`` is the type of the labels; ``attributes`` how many sensitive attributes each sample must have. Labels are flipped
    among so many classes as ``turned`` says, 0 for labels as they are.
    """

    dataset: Dataset[Any]
    target: torch.dtype
    attributes: int = 0
    turned: int = 0
    shape_and_labels: ClassVar[None] = None
    s: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # which was asked when it was read

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return self.gather(torch.tensor([row])).rows[0]

    @cached_property
    def targets(self) -> Tensor:
        """All labels [n], for which every sample is read."""
        return torch.cat([self.gather(torch.tensor([row])).y for row in range(len(self))])

    def gather(self, rows: Tensor) -> Batch:
        """Some of the samples.

        Raises
        ------
        ValueError : they have more or fewer sensitive attributes than the first one.
        """
        who = "A data set"
        batch = _collated([_sample(self.dataset, row, who, self.target) for row in rows.tolist()], who)
        if batch.attributes != self.attributes:
            raise ValueError(f"{who}: {UNLIKE.format(batch.attributes, self.attributes)}")
        return batch.flipped(self.turned) if self.turned else batch

    def take(self, rows: Tensor) -> Items:
        """Some of these samples, in this order."""
        return replace(self, dataset=Subset(self.dataset, rows.tolist()))

    def flipped(self, n_classes: int) -> Items:
        """The same with the label C - 1 - y in the place of y."""
        return replace(self, turned=0 if self.turned else n_classes)

    def stored(self) -> Iterator[bytes | memoryview]:
        """How many samples there are, and some of them that are the same when they are read twice."""
        yield str(len(self)).encode()
        for row in range(0, len(self), -(-len(self) // HASHED)):
            try:
                first, second = (self.gather(torch.tensor([row])) for _ in range(2))
            except Exception:  # of a user's data set: the guard keeps out a client that cannot be read
                continue
            if _equal(first, second):
                yield repr(first.kind).encode() if isinstance(first.x, dict) else b""
                yield from map(as_bytes, first.leaves.values())


@dataclass(frozen=True)
class Samples:
    """Samples of one client, or of a stack of clients, at hand.

    ``store`` holds them: a batch in memory, or data that are read when they are needed, because they are many or change each
    time. A stack is in memory, and its clients have ``each`` so many samples, one client after another.
    ``transform(x, shift)`` makes the inputs of the network; None casts to ``dtype``. ``people`` are those of :class:`OfPeople`.
    """

    store: Batch | Mapped | Items
    dtype: torch.dtype
    device: torch.device
    transform: Transform | None = None
    each: tuple[int, ...] = ()
    people: NDArray[np.int64] | None = None
    sizes: Tensor = field(init=False)
    first: Tensor | None = field(init=False)  # where the samples of each client of a stack begin [m]

    def __post_init__(self) -> None:
        sizes = torch.tensor(self.each or len(self.store), device=self.device)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "first", sizes.cumsum(0) - sizes if self.each else None)

    @property
    def content(self) -> Batch | None:
        """All samples, where they are in memory."""
        return self.store if isinstance(self.store, Batch) else None

    @property
    def size(self) -> int:
        """Samples of one client, or of the largest of a stack."""
        return max(self.each, default=len(self.store))

    @property
    def persons(self) -> int:
        """How many people the samples are about; as many as samples if they are not named."""
        return self.size if self.people is None else len(np.unique(self.people))

    @property
    def shape_and_labels(self) -> tuple[Shape, Tensor] | None:
        """Shape of one sample and the labels [n], if that takes no reading of samples."""
        return self.store.shape_and_labels

    @property
    def s(self) -> Tensor | None:
        """Codes of the sensitive attributes [n, A], if there are any and that takes no reading of samples."""
        return self.store.s

    @property
    def attributes(self) -> int:
        """How many sensitive attributes samples have."""
        return self.store.attributes

    def batch(self, rows: Tensor, shift: Tensor | None) -> Batch:
        """The samples ``rows`` [..., B] of each client, as inputs of the network."""
        where = rows if self.first is None else (rows + self.first[:, None]).flatten()
        batch = self.store.gather(where)
        if self.content is None:
            batch = batch.map(lambda leaf: leaf.to(self.device))
        x = ready(batch.x, None if shift is None else shift.flatten(0, -2), self.transform, self.dtype)
        batch = Batch(x, batch.y, batch.s)
        return batch if self.first is None else batch.map(lambda leaf: leaf.unflatten(0, rows.shape))

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [..., B] of the samples ``rows`` [..., B] of each client; where they are not known apart, every sample is read, once."""
        return self.store.targets.to(self.device)[rows if self.first is None else rows + self.first[:, None]]

    def take(self, rows: Tensor) -> Samples:
        """Some of one client's samples."""
        people = None if self.people is None else self.people[rows.cpu().numpy()]
        chosen = rows if self.content is None else rows.to(self.device)
        return replace(self, store=self.store.take(chosen), people=people)

    def flipped(self, n_classes: int) -> Samples:
        """The same samples with the label C - 1 - y in the place of y, where C is ``n_classes``."""
        return replace(self, store=self.store.flipped(n_classes))


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
class OfPeople:
    """Data of which several samples may be of one person: a client's, which holds these out for validation together, or not at all; or a test set's.

    Least sizes and intervals count the people of test sets. People with samples at several clients are never held out for validation.

    Parameters
    ----------
    data : what a client of :class:`equipoise.Federation` may be, except :class:`Lazy`.
    people : whole numbers [n], the same for all samples of one person, also at different clients and in different test sets; a person
        with a negative number is never held out.

    Raises
    ------
    TypeError, ValueError : where the data are read, if these are no whole numbers, or not one for each sample.
    """

    data: Any
    people: Any


@dataclass(frozen=True)
class Absent:
    """A client whose data are not in memory: :class:`Lazy`, as a federation knows it.

    ``like`` (name of the first client and shape of its samples; None: any), ``n_classes`` (0: any) and how many sensitive
    ``attributes`` there are (None: any) are what must be found when the data are loaded. ``part`` is which part of them is meant: the
    share that is held out, the seed, and whether it is what is held out; None for all. Labels are flipped among ``turned`` classes, if any.
    """

    lazy: Lazy
    who: str
    dtype: torch.dtype
    device: torch.device
    transform: Transform | None
    memory: int
    target: torch.dtype = torch.int64
    like: tuple[str, Shape] | None = None
    n_classes: int = 0
    attributes: int | None = None
    content: ClassVar[None] = None
    shape_and_labels: ClassVar[None] = None
    s: ClassVar[None] = None
    people: ClassVar[None] = None
    part: tuple[float, int, bool] | None = None
    turned: int = 0

    @property
    def size(self) -> int:
        """Samples of this client, or of its part."""
        n = self.lazy.size
        if self.part is None:
            return n
        held = n_held(n, self.part[0])
        return held if self.part[2] else n - held

    persons = size  # people are not named

    def flipped(self, n_classes: int) -> Absent:
        """The same samples with the label C - 1 - y in the place of y, where C is ``n_classes``."""
        return replace(self, turned=0 if self.turned else n_classes)

    def load(self) -> Samples:
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
        if self.attributes is not None:
            first = self.like[0] if self.like else "the first client"
            check_attributes({first: self.attributes, self.who: data.attributes})
        if self.part is not None:
            share, seed, held = self.part
            part = divided(data, share, seed, self.who)[held]
            assert part is not None  # there are samples to hold out, or this would be no part
            data = loaded(part)
        return data.flipped(self.turned) if self.turned else data


def n_held(n: int, share: float) -> int:
    """How many of a client's ``n`` samples it holds out: its share, rounded down; fewer than all for a share below 1."""
    return min(int(share * n + 1e-9), n - 1)


def divided(
    data: Samples | Absent, share: float, seed: int, who: str, people: NDArray[np.int64] | None = None
) -> tuple[Samples | Absent, Samples | Absent | None]:
    """What a client trains on, and what it holds out for validation; None if it has too few samples.

    Each class is held out in proportion, by systematic sampling in random order, where labels are known without reading
    samples. The draw depends on the seed and the client's name ``who`` only. ``people`` are those of :func:`at_one_client`.
    """
    n = data.size
    if not n_held(n, share):
        return data, None
    if isinstance(data, Absent):
        return replace(data, part=(share, seed, False)), replace(data, part=(share, seed, True))
    y = None if data.shape_and_labels is None else data.shape_and_labels[1].cpu().numpy()
    held = held_rows(n, y, share, seed, who, people)
    if not held.any():
        return data, None
    mine, others = (torch.from_numpy(np.flatnonzero(rows)) for rows in (~held, held))
    return data.take(mine), data.take(others)


def at_one_client(people: Sequence[NDArray[np.int64] | None]) -> list[Any]:
    """The person of each sample of every client, where people with samples at several clients have negative numbers: they are never held out."""
    numbers_of_clients = [np.unique(who) for who in people if who is not None]
    numbers, n_clients = np.unique(np.concatenate(numbers_of_clients or [np.empty(0, np.int64)]), return_counts=True)
    shared = numbers[(n_clients > 1) & (numbers >= 0)]
    return [None if who is None else np.where(np.isin(who, shared), -1 - who, who) for who in people]


def held_rows(
    n: int, y: NDArray[Any] | None, share: float, seed: int, who: str, people: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """Which of a client's ``n`` samples it holds out [n], for :func:`divided`; ``y`` are their labels, None if they are not known.

    ``people`` are the persons [n]: a share of them is held out, each with all samples; none whose number is negative.
    """
    rows, chosen = np.arange(n), np.zeros(n, bool)
    if people is not None:
        rows = np.sort(np.unique(people, return_index=True)[1])
        rows = rows[people[rows] >= 0]
    if len(rows) and (k := n_held(len(rows), share)):
        rng = np.random.default_rng(list(hashlib.sha256(f"{seed} {who}".encode()).digest()))
        order = rows[rng.permutation(len(rows))]
        if y is not None:
            order = order[np.argsort(y[order], kind="stable")]
        chosen[order[((np.arange(k) + rng.random()) * len(rows) / k).astype(np.int64)]] = True
    return chosen if people is None else np.isin(people, people[chosen])


def trained_on(y: Tensor, draw: Draw, who: str, people: NDArray[np.int64] | None = None) -> Tensor:
    """The labels of what a client trains on, of all that it has [n]."""
    return y[torch.from_numpy(~held_rows(len(y), y.cpu().numpy(), *draw, who, people)).to(y.device)]


class LoadError(RunError):
    """Data of a client that are needed, and cannot be loaded."""


@dataclass(frozen=True)
class Awaited:
    """Samples of an absent client that are loaded when somebody looks at them."""

    absent: Absent
    content: ClassVar[None] = None

    @cached_property
    def data(self) -> Samples:
        """The samples.

        Raises
        ------
        LoadError : naming the client, and why.
        """
        try:
            return self.absent.load()
        except Exception as error:  # whatever a user's function raises
            kind = MEMORY if out_of_memory(error) else CODE
            text = f"The data of {self.absent.who} cannot be loaded: {type(error).__name__}: {error}"
            raise LoadError(text, kind) from error

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.absent.size

    @property
    def sizes(self) -> Tensor:
        """Number of samples []."""
        return torch.tensor(self.size, device=self.absent.device)

    @property
    def shape_and_labels(self) -> tuple[Shape, Tensor] | None:
        """Shape of one sample and the labels [n], if they are known once the client's data are loaded."""
        return self.data.shape_and_labels

    def batch(self, rows: Tensor, shift: Tensor | None) -> Batch:
        """The samples ``rows`` [B], as inputs of the network."""
        return self.data.batch(rows, shift)

    def labels(self, rows: Tensor) -> Tensor:
        """Labels [B] of the samples ``rows`` [B]."""
        return self.data.labels(rows)


Source = Samples | Awaited  # samples of one client, or of a stack of clients, ready for the network


def at_once(data: Source, most: int) -> int:
    """How many samples to evaluate in one pass: ``most``, or fewer large ones, so that activations do not fill the memory."""
    numbers = sum(shape.numel() for shape in _shapes(data))
    return max(1, min(most, VALUES // max(1, numbers)))


def in_cache(data: Source, most: int) -> int:
    """The same for the cache of a processor: ``most``, or fewer images."""
    pixels = sum(shape[1:].numel() for shape in _shapes(data) if len(shape) > 2)
    return min(most, max(IMAGES, PIXELS // pixels)) if pixels and data.sizes.device.type == "cpu" else most


def _shapes(data: Source) -> list[torch.Size]:
    """The shapes of the inputs of a sample, as far as they are known without reading one."""
    about = data.shape_and_labels
    if about is None:
        return []
    return [*about[0].values()] if isinstance(about[0], dict) else [about[0]]


def check_attributes(counts: Mapping[str, int]) -> None:
    """Require that all clients have as many sensitive attributes, or none.

    Raises
    ------
    ValueError : naming clients with each number.
    """
    if len({*counts.values()}) > 1:
        by_number = {n: some([name for name in counts if counts[name] == n], 3) for n in sorted({*counts.values()})}
        have = "; ".join(f"{n or 'none'}: {names}" for n, names in by_number.items())
        raise ValueError(
            f"All clients, and test sets that have any, must have as many sensitive attributes s; found {have}. Give -1 where one is unknown."
        )


def loaded(data: Samples | Absent) -> Samples:
    """The samples, in memory or streamed; those of an absent client are loaded."""
    return data.load() if isinstance(data, Absent) else data


def check(data: Samples, who: str, like: tuple[str, Shape] | None, n_classes: int) -> None:
    """Require samples of a shape, that of a client ``like`` has (None: any), and labels in 0..``n_classes`` - 1 (0: any).

    A streamed sample of which nothing is known is checked when it is used.

    Raises
    ------
    ValueError : naming the client, what was expected and what was found.
    """
    if data.shape_and_labels is None:
        return
    shape, y = data.shape_and_labels
    if like is not None and shape != like[1]:
        shapes = f"{listed(shape)}, those of {like[0]} have {listed(like[1])}"
        raise ValueError(f"{who}: samples have shape {shapes}. All must agree.")
    low, high = int(y.min()), int(y.max())
    if n_classes and (low < 0 or high >= n_classes):
        range_found = f"{low}..{high}."
        if low in CAST_NAN:
            range_found = "NaN that was made a whole number. Look for labels that are missing or misspelt."
        raise ValueError(
            f"{who}: labels must be in 0..{n_classes - 1}, because the network has {n_classes} outputs; found {range_found}"
        )


def ready(x: Inputs, shift: Tensor | None, transform: Transform | None, dtype: torch.dtype) -> Inputs:
    """Network inputs of samples ``x`` [n, *shape]; a ``dtype`` of int64 leaves them as they are."""

    def cast(leaf: Tensor) -> Tensor:
        if leaf.is_complex():
            raise TypeError(COMPLEX.format("The input of the network"))
        return leaf if dtype == torch.int64 else leaf.to(dtype)

    made: Inputs = tree_map(cast, x if transform is None else transform(x, shift))
    return made


def joined(clients: Sequence[Samples]) -> Samples:
    """The samples of several clients that are in memory, one after another, as those of one."""
    named = [c.people for c in clients if c.people is not None]
    people = np.concatenate(named) if len(named) == len(clients) else None
    return replace(clients[0], store=Batch.joined([c.content for c in clients if c.content is not None]), people=people)


def stack(clients: Sequence[Samples]) -> Samples:
    """The samples of several clients that are in memory, as a stack."""
    return replace(joined(clients), each=tuple(c.size for c in clients))


def room() -> int:
    """Half of the memory that is free now, in bytes."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not every system says
        return ROOM


def read(
    data: Any,
    who: str,
    dtype: torch.dtype,
    device: torch.device,
    transform: Transform | None = None,
    memory: int = ROOM,
    target: torch.dtype = torch.int64,
) -> Samples | Absent:
    """Take a client's data as the user has it: ``(x, y)`` or ``(x, y, s)``, arrays or tensors, a mapping of these, a
    ``torch.utils.data.Dataset`` or :class:`Lazy`.

    A data set is read into memory once, unless it is larger than ``memory`` bytes or its first samples are others when asked
    for twice (random augmentation); then it is streamed.

    Parameters
    ----------
    data : x [n, *shape], labels y [n], integers (or numbers, see ``target``), and codes of sensitive attributes s, [n] or [n, A],
        if there are any; or a data set of such samples; :class:`Lazy` is not loaded.
    who : the client's name, for errors.
    dtype, device : of the network; a dtype of int64 leaves inputs as they are, for networks that look them up.
    transform : applied to every batch.
    memory : bytes this data set may take.
    target : int64 for classes, float64 for numbers.

    Raises
    ------
    TypeError, ValueError : naming the client, what was expected and what was found.
    """
    if isinstance(data, Samples | Absent):
        return data
    if isinstance(data, OfPeople):
        samples, people = read(data.data, who, dtype, device, transform, memory, target), np.asarray(data.people)
        if people.dtype.kind not in "iu" or people.shape != (samples.size,) or isinstance(samples, Absent):
            raise ValueError(
                f"{who}: people must be whole numbers [n], one for each of {samples.size} samples of data that are not Lazy; found {people.dtype} {list(people.shape)}."
            )
        return replace(samples, people=people.astype(np.int64))
    if isinstance(data, Lazy):
        return Absent(data, who, dtype, device, transform, memory, target)
    store = _unloaded(data, who, memory, target) if isinstance(data, Dataset) else data
    if not isinstance(store, Mapped | Items):
        store = _checked(store, who, dtype, target, transform).map(lambda leaf: leaf.to(device))
    return Samples(store, dtype, device, transform)


def _unloaded(data: Dataset[Any], who: str, memory: int, target: torch.dtype) -> Mapped | Items | Batch:
    """A data set of samples, or these, where they are few and the same each time."""
    if isinstance(data, IterableDataset):
        raise TypeError(f"{who}: an IterableDataset has no length or index; give a map-style Dataset or (x, y) arrays.")
    try:
        size = len(data)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        raise TypeError(f"{who}: {type(data).__name__} does not say how many samples it has (__len__).") from None
    if size == 0:
        raise ValueError(f"{who} has no sample. Give it at least one, or leave it out.")
    if isinstance(data, Mapped):
        return data
    looks = ((_sample(data, k, who, target), _sample(data, k, who, target)) for k in range(min(size, LOOKS)))
    first = _sample(data, 0, who, target)
    large = sum(leaf.nbytes for leaf in flatten(first.x).values()) * size > memory
    if large or not all(_equal(sample, again) for sample, again in looks):
        return Items(data, target, first.attributes)
    return _collated([_sample(data, k, who, target) for k in range(size)], who)


def _equal(first: Batch, second: Batch) -> bool:
    """Whether samples are the same to the last bit."""
    return first.kind == second.kind and all(map(torch.equal, first.leaves.values(), second.leaves.values()))


def _checked(given: Any, who: str, dtype: torch.dtype, target: torch.dtype, transform: Transform | None) -> Batch:
    """What a user gave as tensors, arrays or lists, as a batch that can be used."""
    batch = as_batch(given, who)
    x, y, s = batch.x, batch.y, batch.s
    leaves = {f"x[{name!r}]": leaf for name, leaf in x.items()} if isinstance(x, dict) else {"x": x}
    for what, leaf in leaves.items():
        if not leaf.dim():
            raise ValueError(
                f"{who}: {what} must hold one input per sample, of shape [n, ...]; found the single number {leaf.item()}."
            )
    _check_targets(y, who) if target.is_floating_point else _check_labels(y, who)
    (first, leaf), *others = leaves.items()
    for what, other in (*others, ("y", y)):
        if len(leaf) != len(other):
            counted = f"{len(other)}{' labels' * (what == 'y')}"
            raise ValueError(f"{who}: {first} holds {len(leaf)} samples and {what} {counted}; they must be as many.")
    if len(y) == 0:
        raise ValueError(f"{who} has no sample. Give it at least one, or leave it out.")
    if transform is None:
        for what, leaf in leaves.items():
            _check_range(leaf, f"{who}: {what}", dtype)
    return Batch(x, y.to(target), None if s is None else _codes(s, who, len(y)))


def as_batch(given: Any, who: str) -> Batch:
    """What a user gave as tensors, arrays or lists, as tensors.

    Raises
    ------
    TypeError : it is something else.
    """
    x, y, s = parts(given, who)
    return Batch(as_inputs(x, who), tensor(y, who, "y"), None if s is None else tensor(s, who, "s"))


def as_inputs(given: Any, who: str) -> Inputs:
    """Inputs as a tensor, or tensors by name in the order of the names.

    Raises
    ------
    TypeError : they are no numbers, or have no names.
    """
    if not isinstance(given, Mapping):
        return tensor(given, who, "x")
    if not given or not all(isinstance(name, str) and name for name in given):
        names = ", ".join(map(repr, [*given][:10])) or "none"
        raise TypeError(
            f"{who}: a dictionary of inputs x must have a tensor for each of its names, which are text and not empty; found {names}."
        )
    return {name: tensor(given[name], who, f"x[{name!r}]") for name in sorted(given)}


def parts(given: Any, who: str, expected: str = "expected a pair (x, y) or a torch Dataset") -> tuple[Any, Any, Any]:
    """x, y and s of what a user gave, s None if there is none."""
    if isinstance(given, Batch):
        return given.x, given.y, given.s
    if isinstance(given, Mapping) and {"x", "y"} <= given.keys() <= {"x", "y", "s"}:
        return given["x"], given["y"], given.get("s")
    if isinstance(given, (tuple, list)) and len(given) in (2, 3):
        return given[0], given[1], given[2] if len(given) == 3 else None
    if isinstance(given, Mapping):
        keys = ", ".join(map(repr, [*given][:10])) or "none"
        raise TypeError(f"{who}: a mapping must have the keys 'x' and 'y', and may have 's'; found {keys}.")
    several = f" of {len(given)}" if isinstance(given, (tuple, list)) else ""
    raise TypeError(f"{who}: {expected}; found {type(given).__name__}{several}.")


def _codes(s: Tensor, who: str, n: int) -> Tensor:
    """Codes of sensitive attributes as int64 [n, A]."""
    form = f"{list(s.shape)} of {s.dtype}"
    if s.dim() in (1, 2) and len(s) == n and s.numel() and not s.is_complex():
        wide = s.double()
        strange = wide[~((wide >= -1) & (wide < 2**53) & (wide == wide.round()))]
        if not len(strange):
            codes = s.to(torch.int64).reshape(n, -1)
            check_codes(codes, who)
            return codes
        form += f", with {strange[0].item():g}"
    raise ValueError(
        f"{who}: s must hold codes of sensitive attributes, whole numbers from 0 up or -1 for unknown, of shape [n] or [n, A] for n = {n} samples; found {form}."
    )


def _collated(samples: Sequence[Batch], who: str) -> Batch:
    """Samples one after another, which must be of one shape and have as many sensitive attributes."""
    A, shape = samples[0].attributes, shape_of(samples[0].x)
    if strange := [sample.attributes for sample in samples if sample.attributes != A]:
        raise ValueError(f"{who}: {UNLIKE.format(strange[0], A)}")
    if others := [other for sample in samples if (other := shape_of(sample.x)) != shape]:
        shapes = f"{listed(shape)} and {listed(others[0])}"
        raise ValueError(f"{who}: samples have shapes {shapes}. All must agree: resize or pad them in the data set.")
    return Batch.joined(samples)


def tensor(values: Any, who: str, what: str) -> Tensor:
    """A tensor from a tensor, an array, a table or lists of numbers.

    Raises
    ------
    TypeError : naming what was found in place of numbers, and what to do.
    """
    if isinstance(values, Tensor):
        if values.layout == torch.strided and not (values.is_nested or values.is_meta or values.is_quantized):
            return values.detach()
        form = "nested" if values.is_nested else "without numbers (meta)" if values.is_meta else str(values.layout)
        raise TypeError(f"{who}: {what} must be a dense tensor; found one that is {form}. Use {what}.to_dense().")
    try:
        array = np.empty(0, object) if isinstance(values, Dataset) else np.asarray(values)  # which may never end
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.dtype.kind in "biufc" and array.dtype != np.longdouble:
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        turned = any(step < 0 or step % array.itemsize for step in array.strides)  # a view that torch does not take
        return torch.as_tensor(array.copy() if turned else array)
    form, todo = _NO_NUMBERS.get(array.dtype.kind, (str(array.dtype), "Convert them to float32"))
    if array.dtype.kind in "US" and what in ("y", "s"):
        classes = "classes" if what == "y" else "values"
        todo = f"Number the {classes}, in one order for all clients: numpy.searchsorted(names, {what}), where names are those of all, sorted"
    raise TypeError(
        f"{who}: {what} must be a tensor or an array of numbers; found {type(values).__name__}: {form}. {todo}."
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
        raise ValueError(f"{who}: y must be one number per sample, [n]; found {list(y.shape)} of {y.dtype}{more}.")
    if bad := int((~y.isfinite()).sum()):
        raise ValueError(f"{who}: {bad} of {len(y)} targets are NaN or infinite. Correct or leave them out.")


def rounding(data: Samples | Absent) -> str:
    """Which numbers that differ are the same for a network of single precision, in a sentence; empty if hardly any are."""
    if data.content is None or data.transform is not None or data.dtype != torch.float32:
        return ""
    for name, x in flatten(data.content.x).items():
        if x.dtype == torch.float32 or x.dtype.itemsize < torch.float32.itemsize or x.is_complex():
            continue
        wide, narrow, sample = x.cpu().numpy(), x.to(torch.float32).cpu().numpy(), repr(name) if name else "a sample"
        if sentence := lost(wide, narrow, partial("number {} of {sample}".format, sample=sample)):
            return sentence
    return ""


def _check_range(x: Tensor, what: str, dtype: torch.dtype) -> None:
    """Require real numbers that stay finite when they become the network's ``dtype``."""
    if x.is_complex():
        raise TypeError(COMPLEX.format(what))
    if not dtype.is_floating_point or not len(x) or torch.finfo(dtype).max >= _largest(x.dtype):
        return
    lost = (x.isfinite() & ~x.to(dtype).isfinite()).nonzero()
    if len(lost):
        at = lost[0].tolist()
        raise ValueError(
            f"{what}{at} is {x[tuple(at)].item():g}, too large for the network's {str(dtype).removeprefix('torch.')}, "
            f"in which it becomes infinite; so do {len(lost)} numbers in all. Divide x by a constant, or use net.double()."
        )


def _largest(dtype: torch.dtype) -> float:
    return 1 if dtype == torch.bool else torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def _sample(dataset: Dataset[Any], row: int, who: str, target: torch.dtype) -> Batch:
    """One sample of a data set, as a batch."""
    which = f"{who}, sample {row}"
    given, y, s = parts(dataset[row], who, f"sample {row} must be a pair (x, label)")
    x: Inputs = tree_map(lambda leaf: leaf.unsqueeze(0), as_inputs(given, which))
    codes = None if s is None else _codes(tensor(s, which, "s").reshape(1, -1), which, 1)
    number = tensor(y, which, "y").reshape(1, -1)
    number = number[0] if number.numel() == 1 else number
    _check_targets(number, which) if target.is_floating_point else _check_labels(number, which)
    return Batch(x, number.to(target), codes)
