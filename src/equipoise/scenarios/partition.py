"""Ways to divide samples among clients. Every function is pure and returns one list of sample indices per client."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]
Shares = NDArray[np.float64]

SMALLEST_ALPHA = 0.01  # below it most draws of numpy's older generator come out as 0/0


def iid(n: int, clients: int, seed: int) -> list[list[int]]:
    """Shuffle n samples and deal them into parts whose sizes differ by at most one.

    Parameters
    ----------
    n : number of samples.
    clients : in 1..n, number of parts.
    seed : >= 0; the same seed gives the same parts.

    Returns
    -------
    Disjoint lists that together hold 0..n - 1.

    Raises
    ------
    ValueError if ``clients`` is not in 1..n, because every client needs a sample.
    """
    if not 1 <= clients <= n:
        raise ValueError(
            f"iid: each client needs at least one sample: expected 1 to {n} clients for {n} samples, found {clients}."
        )
    return [part.tolist() for part in np.array_split(np.random.default_rng(seed).permutation(n), clients)]


def by_domain(domains: Sequence[int], clients_per_domain: int, seed: int) -> list[list[int]]:
    """Give every client samples of one domain only, each domain being shuffled and dealt among its own clients.

    Parameters
    ----------
    domains : per sample, the number of its domain.
    clients_per_domain : from 1 to the size of the smallest domain.
    seed : >= 0; the same seed gives the same parts.

    Returns
    -------
    Disjoint lists that together hold every index, the clients of the lowest-numbered domain first.

    Raises
    ------
    ValueError if a domain has fewer samples than clients.
    """
    of = np.asarray(domains, dtype=np.int64)
    numbers, sizes = np.unique(of, return_counts=True)
    if clients_per_domain < 1 or not sizes.size or clients_per_domain > sizes.min():
        raise ValueError(
            "by_domain: each client needs at least one sample: "
            f"expected 1 to {min(sizes, default=0)} clients per domain, found {clients_per_domain}."
        )
    rng = np.random.default_rng(seed)
    return [
        part.tolist()
        for number in numbers
        for part in np.array_split(rng.permutation(np.flatnonzero(of == number)), clients_per_domain)
    ]


def dirichlet(
    labels: ArrayLike,
    clients: int,
    alpha: float,
    seed: int,
    *,
    cap: bool = False,
    min_size: int = 10,
    redraws: int = 1000,
) -> list[list[int]]:
    """Give every client a random share of each class: the lower ``alpha``, the more the clients' labels differ.

    For each class l in ascending order, shares ``p ~ Dir(alpha, ..., alpha)`` [clients] are drawn and the shuffled
    samples of the class are cut at ``floor(cumsum(p) * n_l)`` (Hsu et al. 2019; Li et al. 2022, NIID-Bench).

    Parameters
    ----------
    labels : [n], the class of each sample.
    clients : in 1..n, number of parts.
    alpha : >= 0.01; 0.1 leaves most clients few classes, 100 makes them nearly alike.
    seed : >= 0; the same seed gives the same parts.
    cap : whether a client that has n / clients samples gets none of the classes that follow, unless all have as many.
    min_size : >= 0, samples every client must have at least; all is drawn again until they do.
    redraws : >= 1, draws after which to give up.

    Returns
    -------
    Disjoint lists that together hold 0..n - 1.

    Raises
    ------
    ValueError if a parameter is out of range, or no draw gives every client ``min_size`` samples.
    """
    classes = _classes("dirichlet", labels, clients, alpha, seed, min_size, redraws)
    rng = np.random.default_rng(seed)
    return _drawn("dirichlet", lambda: classwise(classes, clients, alpha, cap, rng)[0], alpha, min_size, redraws)


def retina(
    labels: ArrayLike, clients: int, alpha: float, seed: int = 2022, *, min_size: int = 10, redraws: int = 1000
) -> list[list[int]]:
    """Capped ``dirichlet`` from NumPy's older generator, each part shuffled: the splits of the Retina data of SSL-FL.

    Yan et al. 2023, as released; FedLD uses its splits. Only the random numbers differ from those of ``dirichlet``:
    use this to repeat the released draw, and ``dirichlet`` otherwise.

    Parameters
    ----------
    labels, clients, alpha, min_size, redraws : as in ``dirichlet``.
    seed : in 0..2**32 - 1.

    Returns
    -------
    Disjoint lists that together hold 0..n - 1.

    Raises
    ------
    ValueError as in ``dirichlet``.
    """
    classes = _classes("retina", labels, clients, alpha, seed, min_size, redraws, 2**32)
    rng = RandomState(seed)
    parts = _drawn("retina", lambda: classwise(classes, clients, alpha, True, rng)[0], alpha, min_size, redraws)
    for part in parts:
        rng.shuffle(part)
    return parts


def quality(
    labels: ArrayLike,
    clients: int,
    corrupted: int,
    alpha: float,
    seed: int,
    *,
    min_size: int = 1,
    redraws: int = 1000,
) -> list[list[int]]:
    """Divide each class between clean and corrupted clients in proportion to their numbers, then unevenly among each.

    Of the n_k samples of class k, in the order given, the first ``round(n_k * (clients - corrupted) / clients)``
    belong to the clean clients. Shares ``p ~ Dir(alpha, ..., alpha)`` are drawn for the clean clients and for the
    corrupted ones, and each sample picks its client by them (FedISM+, as released; the lists it released follow from
    its labels and seed 2024).

    Parameters
    ----------
    labels : [n], the class of each sample. Shuffle samples that come sorted: the last of each class are corrupted.
    clients : in 1..n, number of parts.
    corrupted : in 0..clients; the last so many clients are the corrupted ones.
    alpha : >= 0.01, how evenly a class is spread.
    seed : in 0..2**32 - 1, of NumPy's older generator.
    min_size : >= 0, samples every client must have at least; all is drawn again until they do. Released: 0.
    redraws : >= 1, draws after which to give up.

    Returns
    -------
    Disjoint lists, each ascending, that together hold 0..n - 1.

    Raises
    ------
    ValueError if a parameter is out of range, or no draw gives every client ``min_size`` samples.
    """
    classes = _classes("quality", labels, clients, alpha, seed, min_size, redraws, 2**32)
    if not 0 <= corrupted <= clients:
        raise ValueError(f"quality: corrupted must be in 0..{clients}, the number of clients; found {corrupted}.")
    rng = RandomState(seed)
    clean = clients - corrupted

    def attempt() -> list[list[int]]:
        owner = np.empty(sum(map(len, classes)), np.int64)
        for members in classes:
            split = int(np.round(clean / clients * len(members)))  # halves go to the even number
            # Both shares before both choices: the order of the released code. No shares of nobody.
            shares = [_shares(k, alpha, rng) if k else None for k in (clean, corrupted)]
            for pool, p, first in zip(np.split(members, [split]), shares, (0, clean), strict=True):
                if p is not None:
                    owner[pool] = first + rng.choice(len(p), len(pool), p=p)
        return [np.flatnonzero(owner == k).tolist() for k in range(clients)]

    return _drawn("quality", attempt, alpha, min_size, redraws)


def classwise(
    classes: Sequence[Indices], clients: int, alpha: float, cap: bool, rng: Generator | RandomState
) -> tuple[list[list[int]], Shares]:
    """One draw of ``dirichlet``, whatever the sizes.

    Parameters
    ----------
    classes : per class, the samples of it.
    clients, alpha, cap : as in ``dirichlet``.
    rng : source of the draw.

    Returns
    -------
    The parts, and the shares [classes, clients] they were cut by.
    """
    n = sum(map(len, classes))
    parts: list[list[int]] = [[] for _ in range(clients)]
    shares = np.empty((len(classes), clients))
    for row, members in zip(shares, classes, strict=True):
        shuffled = members.copy()
        rng.shuffle(shuffled)
        row[:] = _shares(clients, alpha, rng)
        if cap:
            open_ = row * np.array([len(part) < n / clients for part in parts])
            if open_.sum() > 0:
                row[:] = open_ / open_.sum()
        cuts = (row.cumsum() * len(members)).astype(np.int64)[:-1]
        for part, piece in zip(parts, np.split(shuffled, cuts), strict=True):
            part.extend(piece.tolist())
    return parts, shares


def _shares(k: int, alpha: float, rng: Generator | RandomState) -> Shares:
    """Draw ``Dir(alpha, ..., alpha)`` [k], again where numpy's older generator gives 0/0, as it may for a small alpha."""
    while True:
        shares = np.asarray(rng.dirichlet(np.full(k, alpha)))
        if np.isfinite(shares).all():
            return shares


def _drawn(
    who: str, attempt: Callable[[], list[list[int]]], alpha: float, min_size: int, redraws: int
) -> list[list[int]]:
    best = 0
    for _ in range(redraws):
        parts = attempt()
        smallest = min(map(len, parts))
        if smallest >= min_size:
            return parts
        best = max(best, smallest)
    raise ValueError(
        f"{who}: in none of {redraws} draws did each of the {len(parts)} clients get min_size={min_size} samples; at "
        f"best the smallest had {best}. Raise alpha, here {alpha}, lower min_size, or take fewer clients or more data."
    )


def _classes(
    who: str,
    labels: ArrayLike,
    clients: int,
    alpha: float,
    seed: int,
    min_size: int,
    redraws: int,
    seeds: float = np.inf,
) -> list[Indices]:
    """Check what the class-wise partitions have in common, and return the samples of each class."""
    of: NDArray[Any] = np.asarray(labels)
    if of.ndim != 1:
        raise ValueError(f"{who}: labels must be one class per sample, [n]; found {list(of.shape)}.")
    if not 1 <= clients <= len(of):
        raise ValueError(
            f"{who}: each client needs at least one sample: expected 1 to {len(of)} clients for {len(of)} samples, "
            f"found {clients}."
        )
    if not SMALLEST_ALPHA <= alpha < np.inf:
        raise ValueError(f"{who}: alpha must be at least {SMALLEST_ALPHA} and finite; found {alpha}.")
    if not 0 <= seed < seeds:
        raise ValueError(f"{who}: seed must be >= 0{' and < 2**32' if np.isfinite(seeds) else ''}; found {seed}.")
    if redraws < 1:
        raise ValueError(f"{who}: redraws must be >= 1; found {redraws}.")
    if not 0 <= min_size * clients <= len(of):
        raise ValueError(
            f"{who}: min_size must be in 0..{len(of) // clients}, as {clients} clients share {len(of)} samples; "
            f"found {min_size}."
        )
    return [np.flatnonzero(of == label) for label in np.unique(of)]
