"""Ways to divide samples among clients. Every function is pure and returns one list of sample indices per client."""

from collections.abc import Sequence

import numpy as np


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
