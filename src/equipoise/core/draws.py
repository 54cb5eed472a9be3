"""Random numbers that do not depend on the order in which they are drawn.

Every number is a hash of ``(seed, round, client, purpose, position)``. So the batches of a client are the same whether
it runs alone, in a stack or on another machine, and one call draws for thousands of clients.

The hash is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), chained over the parts of the key. It can be
inverted, so noise that must stay secret (:func:`normal`) is drawn from SHAKE-256.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# what a number is for: no two purposes share numbers
PARTICIPANTS, ORDER, SHIFT, NOISE, THERE, DROPOUT, SPEED, ATTACKS, REWARDS, RECOVERY = range(10)
PAIRS = 1 << 14  # normal numbers drawn at a time: they fit in the cache, and torch does not split them over threads


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bits(seed: int, t: int, clients: Sequence[int], purpose: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One random 64-bit integer for each of the ``positions`` [M, ...] of each of M clients in round ``t``."""
    with np.errstate(over="ignore"):
        key = np.zeros(1, np.uint64)
        for part in (seed % 2**64, t, purpose):
            key = _mix(key + GOLDEN + np.uint64(part))
        keys = _mix(key + GOLDEN + np.asarray(clients, np.uint64))  # [M]
        keys = keys.reshape(-1, *[1] * (positions.ndim - 1))
        return _mix(keys + GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))


def noise(seed: int, t: int, client: int) -> int:
    """Seed of the global generators for one client's visit, for networks and data sets that draw random numbers."""
    return int(bits(seed, t, [client], NOISE, np.zeros((1, 1), np.int64))[0, 0] >> np.uint64(1))


def key(seed: int, t: int, client: int, secret: bytes | None = None) -> bytes:
    """The key of the normal numbers of one client's visit: 32 bytes, from ``secret`` if there is one, else from ``seed``."""
    if secret is not None and len(secret) < 32:
        raise ValueError(f"A secret has at least 32 random bytes, as of secrets.token_bytes(32); found {len(secret)}.")
    return hashlib.sha256(repr((int(seed) if secret is None else secret, t, client)).encode()).digest()


def normal(key: bytes, purpose: str, n: int) -> Tensor:
    r"""Independent standard normal numbers [n] from a ``key``; numbers of different ``purpose`` are independent.

    .. math:: \sqrt{-2 \ln u}\,(\cos 2 \pi v, \sin 2 \pi v)

    Box and Muller, Annals of Mathematical Statistics 1958, in float64, of u in (0, 1] and v in [0, 1) with 53 bits each
    from SHAKE-256. No number is beyond 8.6.
    """
    drawn = torch.empty(n, dtype=torch.float64)
    for block, at in enumerate(range(0, n, 2 * PAIRS)):
        stream = hashlib.shake_256(key + block.to_bytes(8, "little") + purpose.encode()).digest(16 * PAIRS)
        lots = torch.from_numpy((np.frombuffer(stream, "<u8") >> np.uint64(11)) * 2.0**-53)
        radius, angle = (1 - lots[:PAIRS]).log_().mul_(-2).sqrt_(), lots[PAIRS:] * (2 * math.pi)
        drawn[at : at + 2 * PAIRS] = torch.cat([radius * angle.cos(), radius * angle.sin()])[: n - at]
    return drawn


def cohort_size(n_clients: int, share: float) -> int:
    """How many clients train in a round: ``max(1, floor(share * N))``; the slack absorbs the rounding of 0.29 * 100."""
    return max(1, math.floor(share * n_clients + 1e-9))


def participants(seed: int, t: int, n_clients: int, share: float, present: NDArray[np.bool_] | None = None) -> Tensor:
    """Ids of the clients of round ``t``, ascending: ``max(1, floor(share * N))`` of them, each equally likely.

    Where only some are ``there`` [N], as many of these; all of them if they are fewer.
    """
    count = cohort_size(n_clients, share)
    ids = np.arange(n_clients) if present is None else np.flatnonzero(present)
    if count >= len(ids):
        return torch.from_numpy(ids)
    lots = bits(seed, t, [0], PARTICIPANTS, np.arange(n_clients)[None])[0][ids]
    return torch.from_numpy(np.sort(ids[np.argsort(lots, kind="stable")[:count]]))


def uniform(seed: int, t: int, clients: Sequence[int], purpose: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each client in round ``t``."""
    lots = bits(seed, t, clients, purpose, np.zeros((len(clients), 1), np.int64))[:, 0]
    return (lots >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator_states() -> tuple[object, ...]:
    """The states of all global generators (torch, NumPy, ``random``), which change with every number drawn."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    numpy_state = [x.tobytes() if isinstance(x, np.ndarray) else x for x in state["state"].values()]
    return torch.get_rng_state().numpy().tobytes(), numpy_state, state["has_gauss"], random.getstate()


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed every global generator (torch, NumPy, ``random``) inside, and restore it after; None does nothing."""
    if seed is None:
        yield
        return
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 (a user's data set may use it)
    # every GPU in use is named: otherwise torch warns if there are several
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:  # not torch.manual_seed, which notes a traceback for GPUs that are not in use, and seeds them later
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@dataclass(frozen=True)
class Schedule:
    """The batches of a visit: which samples every step of every client reads, drawn before any engine is chosen.

    ``index`` [M, K, B] numbers the samples of each client, -1 where a batch is not full; ``shift`` [M, K, B, k] are the
    random numbers of each sample's transform, or None. The steps are ``epochs`` times as many as those of one epoch, unless
    ``length`` [M] says how many make an epoch of each client. ``counted`` [M, K] are :attr:`counts`, where they are known.
    """

    index: Tensor
    shift: Tensor | None
    epochs: int = 1
    length: Tensor | None = None
    counted: Tensor | None = None

    @property
    def counts(self) -> Tensor:
        """Samples of each batch [M, K], on the CPU: a step must not wait for a GPU to say how many it has."""
        return (self.index >= 0).sum(-1).cpu() if self.counted is None else self.counted

    def of(self, client: int) -> Schedule:
        """The schedule of one client."""
        parts = self.shift, self.length, self.counted
        shift, length, counted = (None if part is None else part[client] for part in parts)
        return replace(self, index=self.index[client], shift=shift, length=length, counted=counted)

    def to(self, device: torch.device) -> Schedule:
        """The same with the batches on a device."""
        shift = None if self.shift is None else self.shift.to(device)
        return replace(self, index=self.index.to(device), shift=shift, counted=self.counts)

    def first(self, epochs: int) -> Schedule:
        """The steps of the first ``epochs``, or all if there are fewer."""
        if self.length is not None:
            step = torch.arange(self.index.shape[-2])
            on = step < epochs * self.length.unsqueeze(-1)  # [..., K]
            index = torch.where(on.unsqueeze(-1).to(self.index.device), self.index, -1)
            return replace(self, index=index, counted=torch.where(on, self.counts, 0))
        steps = epochs * self.index.shape[-2] // self.epochs
        shift = None if self.shift is None else self.shift[..., :steps, :, :]
        return Schedule(self.index[..., :steps, :], shift, epochs, counted=self.counts[..., :steps])

    def cycle(self, steps: int) -> Schedule:
        """``steps`` batches of each client: its own in their order, from the first again after the last."""
        empty = self.counts == 0  # [..., K]
        batches = empty.to(torch.uint8).argsort(stable=True, dim=-1)  # a client's own first
        taken = batches.gather(-1, torch.arange(steps) % (~empty).sum(-1, keepdim=True).clamp(min=1))  # [..., steps]
        on = taken.to(self.index.device)
        shift = None if self.shift is None else self.shift.take_along_dim(on[..., None, None], -3)
        return Schedule(self.index.take_along_dim(on[..., None], -2), shift, counted=self.counts.gather(-1, taken))


def chances(transform: object) -> tuple[int, ...]:
    """How many values each random number can have that ``transform(x, shift)`` receives for a sample in training.

    The transform's attribute ``chances``. If it has only ``crop``, in pixels: (dy, dx), each in 0..2 * crop.
    """
    crop = getattr(transform, "crop", 0)
    values = tuple(map(int, getattr(transform, "chances", (2 * crop + 1,) * 2 if crop else ())))
    if values and min(values) < 1:
        name = type(transform).__name__
        raise ValueError(f"{name}: chances must be whole numbers >= 1, one for each random number; found {values}.")
    return values


def schedule(
    seed: int,
    t: int,
    ids: Sequence[int],
    sizes: Sequence[int],
    epochs: int,
    batch_size: int,
    *,
    chances: Sequence[int] = (),
    drop_single: bool,
    steps: int | None = None,
) -> Schedule:
    """Shuffle the samples of each client once per epoch and cut them into batches.

    Each sample gets a random number in 0..n - 1 for every n in ``chances``.
    With ``steps`` every client takes that many batches, from as many epochs as it needs; ``epochs`` is then ignored.
    ``drop_single`` leaves out a last batch of one sample where there are others, for
    networks with BatchNorm: the statistics of one sample mean nothing.
    """
    n = np.asarray(sizes, np.int64)[:, None, None]  # [M, 1, 1]
    widest = int(n.max())
    width = min(batch_size, widest)
    most = -(-widest // width)  # batches in the longest epoch
    counts = -(-n[:, 0] // width)  # [M, 1], in an epoch of each client
    if drop_single and width > 1:
        counts = counts - ((counts > 1) & (n[:, 0] % width == 1))
    if steps is not None:
        epochs = int((-(-steps // counts)).max())
    place = np.arange(widest)  # within an epoch
    position = np.arange(epochs)[:, None] * n + place  # within the client's round: [M, E, W]
    padding = np.broadcast_to(place >= n, position.shape)
    lots = bits(seed, t, ids, ORDER, position)
    lots[padding] = np.iinfo(np.uint64).max  # sorts last
    order = np.argsort(lots, axis=2, kind="stable")
    order[padding] = -1
    full = (len(n), epochs, most * width)
    index = np.full(full, -1, np.int64)
    index[:, :, :widest] = order
    index = index.reshape(len(n), epochs * most, width)
    index[np.arange(epochs * most) % most >= counts] = -1
    shift = None
    if k := len(chances):
        lots = bits(seed, t, ids, SHIFT, position[..., None] * k + np.arange(k))
        shift = np.zeros((*full, k), np.int64)
        shift[:, :, :widest] = (lots % np.asarray(chances, np.uint64)).astype(np.int64)
        shift = shift.reshape(*index.shape, k)
    if steps is not None:
        step = np.arange(steps)
        taken = (step // counts * most + step % counts)[:, :, None]  # the batches one after another, without the gaps
        index = np.take_along_axis(index, taken, 1)
        shift = None if shift is None else np.take_along_axis(shift, taken[..., None], 1)
    length = None if steps is None else torch.from_numpy(counts[:, 0])
    return Schedule(torch.from_numpy(index), None if shift is None else torch.from_numpy(shift), epochs, length)
