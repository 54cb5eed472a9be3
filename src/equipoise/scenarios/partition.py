"""Ways to divide samples among clients. Every function is pure and returns one list of sample indices per client."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState
from numpy.typing import ArrayLike, NDArray

from equipoise.system.errors import InputError
from equipoise.system.ranges import check_number, check_whole
from equipoise.system.suggestions import require_known
from equipoise.system.text import plural

Indices = NDArray[np.int64]
Shares = NDArray[np.float64]
# from the samples of each class, clients, alpha and a generator to samples in the order in which they were dealt [n], and whose each is [n]
Draw = Callable[[Sequence[Indices], int, float, Any], tuple[Any, ...]]

UNMET = "unmet"  # kind of errors: no partition meets the request
SMALLEST_ALPHA = 0.01  # below it most draws of numpy's older generator come out as 0/0
EXPONENT = 1.65911332899  # of POW, as released by CFFL
RECIPES = ("released", "exact")  # of the sizes of POW
PILOT, HOPELESS = 20, 15  # if each of the first draws leaves this many clients short, thousands of draws will too


@contextmanager
def errors_of(scenario: str) -> Iterator[None]:
    """Name the scenario in an error of a partition.

    Raises
    ------
    ValueError : instead of an error of the kind :data:`UNMET`.
    """
    try:
        yield
    except InputError as error:
        if error.kind != UNMET:
            raise
        raise ValueError(f"{scenario}: {error.fields['fault']}") from None


def _unmet(partition: str, fault: str) -> InputError:
    """The error that no partition meets the request; ``fault`` states why, and what to do, without the name of the partition."""
    return InputError(f"{partition}: {fault}", UNMET, fault=fault)


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
    check("iid", n, clients)
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
    domain_of = np.asarray(domains, dtype=np.int64)
    numbers, sizes = np.unique(domain_of, return_counts=True)
    if clients_per_domain < 1 or not sizes.size or clients_per_domain > sizes.min():
        expected = f"expected 1 to {int(min(sizes, default=0))} clients per domain, found {clients_per_domain}."
        raise _unmet("by_domain", f"each client needs at least one sample: {expected}")
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(np.flatnonzero(domain_of == number)) for number in numbers]
    return [part.tolist() for rows in shuffled for part in np.array_split(rows, clients_per_domain)]


def domain_samples(
    labels: Sequence[ArrayLike],
    domains: Sequence[int],
    share: float,
    seed: int,
    *,
    cover: bool = False,
    overlap: bool = True,
    names: Sequence[str] | None = None,
) -> list[list[int]]:
    """Give every client a share of one domain, which leaves most of the domain unused: FedHEAL's clients.

    Client by client, what is left of its domain is shuffled, and the first ``int(share * n)`` of its n samples are
    taken (Chen, Huang and Ye 2024, as released: 0.01 of the digits, 0.1 of Office-Caltech with ``cover``).

    Parameters
    ----------
    labels : per domain, the class of each sample.
    domains : per client, the number of its domain.
    share : in (0, 1], of the domain's samples.
    seed : in 0..2**32 - 1, of NumPy's older generator.
    cover : whether a client gets one sample of each class that it lacks, in place of one of a class of which it has
        several.
    overlap : whether such a sample is drawn from the whole domain, as released, so that it may be another client's too;
        otherwise it is one that nobody has, as long as there is any of its class.
    names : of the domains, for errors; their numbers if None.

    Returns
    -------
    Positions in the client's domain; without ``cover``, disjoint among the clients of a domain.

    Raises
    ------
    ValueError if a parameter is out of range, a domain does not suffice for its clients, or a client's samples are
    fewer than the classes to cover.
    """
    classes = [np.asarray(y) for y in labels]
    if any(y.ndim != 1 for y in classes) or not set(domains) <= set(range(len(classes))):
        raise ValueError(
            "domain_samples: labels must be one class per sample of each domain, and domains a number in "
            f"0..{len(classes) - 1} per client; found labels {[list(y.shape) for y in classes]} and domains {sorted(set(domains))}."
        )
    check_number("domain_samples: share", share, 0, 1, above=True)
    check_whole("domain_samples: seed", seed, 0, 2**32 - 1)

    rng = RandomState(seed)
    left = [np.arange(len(y)) for y in classes]
    parts: list[list[int]] = []
    for d in domains:
        y, size, order = classes[d], int(share * len(classes[d])), rng.permutation(left[d])
        least = len(np.unique(y)) if cover else 1
        if not least <= size <= len(order):
            fault = (
                f"client {len(parts) + 1} takes {size} of the {len(order)} samples that are left of domain "
                f"{d if names is None else names[d]}: expected {least} to {len(order)}, with share={share}. "
                f"{'Raise' if size < least else 'Lower'} share."
            )
            raise _unmet("domain_samples", fault)
        part = order[:size]
        if cover:
            part = _covering(part, y, rng, order[:0] if overlap else order[size:])
        left[d] = order[~np.isin(order, part)]
        parts.append(part.tolist())
    return parts


def bands(numbers: ArrayLike, count: int) -> Indices:
    """The band of each number [n], from 0: by the quantiles 1 / count, 2 / count, ..., so that bands hold about as many numbers.

    Equal numbers are in one band, so there may be fewer than ``count``. A number at a quantile is in the upper band.
    """
    values = np.asarray(numbers, np.float64)
    edges = np.unique(np.quantile(values, np.arange(1, count) / count))
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1].astype(np.int64)


def every_tenth(n: int) -> tuple[list[int], list[int]]:
    """Training and test positions of n samples in a given order: of every ten the first eight, and the last two.

    The split of Office-Caltech in FedHEAL, as released, whose images are sorted by class and file name.
    """
    return [i for i in range(n) if i % 10 <= 7], [i for i in range(n) if i % 10 > 7]


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
    min_size : >= 0, samples that every client must have; all is drawn again until they do.
    redraws : >= 1, draws after which to give up; earlier if the first ones are far from it.

    Returns
    -------
    Disjoint lists that together hold 0..n - 1.

    Raises
    ------
    ValueError if a parameter is out of range. InputError if no draw gives every client ``min_size`` samples.
    """
    return _drawn("dirichlet", partial(classwise, cap=cap), labels, clients, alpha, seed, min_size, redraws)


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
    draw = partial(classwise, cap=True)
    return _drawn("retina", draw, labels, clients, alpha, seed, min_size, redraws, older=True, shuffled=True)


def quality(
    labels: ArrayLike, clients: int, corrupted: int, alpha: float, seed: int, *, min_size: int = 1, redraws: int = 1000
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
    min_size, redraws : as in ``dirichlet``. Released: a ``min_size`` of 0.

    Returns
    -------
    Disjoint lists, each ascending, that together hold 0..n - 1.

    Raises
    ------
    ValueError if a parameter is out of range, or no draw gives every client ``min_size`` samples.
    """
    clean = clients - corrupted

    def draw(classes: Sequence[Indices], clients: int, alpha: float, rng: Any) -> tuple[Any, ...]:
        owner = np.empty(sum(map(len, classes)), np.int64)
        for members in classes:
            split = int(np.round(clean / clients * len(members)))  # halves go to the even number
            # Both shares before both choices: the order of the released code. No shares of nobody.
            shares = [_shares(k, alpha, rng) if k else None for k in (clean, corrupted)]
            for pool, p, first in zip(np.split(members, [split]), shares, (0, clean), strict=True):
                if p is not None:
                    owner[pool] = first + rng.choice(len(p), len(pool), p=p)
        return np.arange(len(owner)), owner

    return _drawn("quality", draw, labels, clients, alpha, seed, min_size, redraws, corrupted, older=True)


def power_ramp(clients: int, exponent: float = EXPONENT) -> Shares:
    """Share of each client, an arithmetic ramp [clients] that sums to one and whose last is 16 times the first.

    Its ends are the 1 % and 99 % quantiles of the distribution ``x ** exponent`` on [0, 1] (CFFL, as released). The
    sizes do not follow a power law, whatever their name.
    """
    low, high = 0.01 ** (1 / exponent), 0.99 ** (1 / exponent)
    b = np.linspace(low, high, clients)
    return np.asarray(b / b.sum())


def power_sizes(
    n: int, clients: int, *, recipe: str = "released", exponent: float = EXPONENT, min_size: int = 1
) -> list[int]:
    r"""Sizes of the partition POW: client 1 has 0.12 and the last client 1.88 times the mean.

    .. math:: n_i = \left\lceil \frac{b_i}{\sum_j b_j} \lfloor n / N \rfloor N \right\rceil

    with b of ``power_ramp`` and the last cut at what is left (CFFL, CGSV, FedAVE and FedSAC, as released by the
    first three). ``"exact"`` shares all n samples by largest remainders instead. Where the clients are so many that
    rounding up costs the last one much, the released sizes may end with a smaller one, and up to N - 1 samples may be
    nobody's.

    Parameters
    ----------
    n : samples to share; at least 85 per client leave the smallest one 10.
    clients : N, in 1..n.
    recipe : "released" or "exact".
    exponent : > 0, a of the quantiles above.
    min_size : >= 1, samples that every client must have.

    Returns
    -------
    Samples per client, the smallest client first.

    Raises
    ------
    ValueError if a parameter is out of range, or a client would have fewer than ``min_size`` samples.
    """
    check("power_sizes", n, clients)
    require_known("recipe of power_sizes:", RECIPES, recipe)
    check_number("power_sizes: exponent", exponent, 0, above=True, below=True)
    check_whole("power_sizes: min_size", min_size, 1)
    if recipe == "exact":
        sizes = _largest_remainder(power_ramp(clients, exponent) * n, n)
    else:
        ends = np.minimum(np.cumsum(power_nominal(n, clients, exponent)), n)  # a slice ends where the list does
        sizes = np.diff(ends, prepend=0).tolist()
    if min(sizes) < min_size:
        fault = f"of {clients} clients that share {n} samples one would have {min(sizes)}: expected {min_size} or more."
        raise _unmet("power_sizes", f"{fault} Give more samples per client.")
    return sizes


def power_nominal(n: int, clients: int, exponent: float = EXPONENT) -> list[int]:
    """Released sizes of POW before the last is cut at the end of the list; parameters as in ``power_sizes``."""
    return [int(size) for size in np.ceil(power_ramp(clients, exponent) * (n // clients * clients))]


def power(
    n: int, clients: int, seed: int, *, recipe: str = "released", exponent: float = EXPONENT, min_size: int = 1
) -> list[list[int]]:
    """Partition POW: shuffle n samples and cut them into parts of growing size, whose labels are alike.

    Parameters
    ----------
    n, clients, recipe, exponent, min_size : as in ``power_sizes``.
    seed : >= 0; the same seed gives the same parts.

    Returns
    -------
    Disjoint lists, the smallest first; "exact" ones together hold 0..n - 1.

    Raises
    ------
    ValueError as in ``power_sizes``.
    """
    sizes = power_sizes(n, clients, recipe=recipe, exponent=exponent, min_size=min_size)
    order = _generator("power", seed).permutation(n)
    return [part.tolist() for part in np.split(order, np.cumsum(sizes))[:-1]]


def class_ramp_counts(clients: int, classes: int, m: int) -> list[list[int]]:
    r"""Samples of each class that each client of the partition CLA holds: the first few classes, client by client more.

    Client j owns its first ``int(linspace(1, C, N)_j)`` classes, with ``m // that`` samples each and the remainder in
    its last class (CFFL, CGSV, FedAVE and FedSAC, as released by the first three). A federation of one client is the
    first of many: it owns one class.

    Parameters
    ----------
    clients : N, >= 1.
    classes : C, >= 1.
    m : >= C, samples of every client.

    Returns
    -------
    Per client, samples of class 0..C - 1; every row sums to ``m``.

    Raises
    ------
    ValueError if a parameter is out of range.
    """
    if clients < 1 or classes < 1:
        raise ValueError(
            f"class_ramp: expected at least one client and one class, found {clients} clients and {classes} classes."
        )
    check_whole("class_ramp: m", m, 1)
    if m < classes:
        fault = f"a client needs a sample of each of the {classes} classes: expected {classes} or more, found {m}."
        raise _unmet("class_ramp", fault)
    owned = np.linspace(1, classes, clients).astype(np.int64).tolist()
    return [[m // c] * (c - 1) + [m // c + m % c] + [0] * (classes - c) for c in owned]


def class_ramp(labels: ArrayLike, clients: int, m: int, seed: int, *, replacement: bool = False) -> list[list[int]]:
    """Partition CLA: clients of equal size that own 1, 2, ... of the classes, nested; see ``class_ramp_counts``.

    Clients draw independently, so they overlap: everybody owns the first class, which would hardly suffice for
    disjoint parts.

    Parameters
    ----------
    labels : [n], the class of each sample.
    clients : in 1..n, number of parts.
    m : >= the number of classes, samples of every client.
    seed : >= 0; the same seed gives the same parts.
    replacement : draw each class with replacement, as released: a client may hold a sample twice. The remainder of a
        client comes from the head of its last class, which is then nobody else's; so shuffle samples that come sorted.

    Returns
    -------
    Lists of ``m`` indices, which may overlap; each without repetition unless ``replacement``.

    Raises
    ------
    ValueError if a parameter is out of range, or a class has too few samples.
    """
    pools = _by_class("class_ramp", labels, clients)
    rng = _generator("class_ramp", seed)
    parts: list[list[int]] = []
    for j, counts in enumerate(class_ramp_counts(clients, len(pools), m)):
        last = int(np.count_nonzero(counts)) - 1
        part: list[int] = []
        for c, count in enumerate(counts[: last + 1]):
            rest = m % (last + 1) if replacement and c == last else 0
            needed = rest if replacement else count
            # With replacement one sample is enough to draw from, before the remainder is taken away.
            if len(pools[c]) < max(needed, 1):
                other = "fewer clients" if replacement else "draw with replacement (recipe=released of a scenario)"
                fault = (
                    f"client {j + 1} needs {max(needed, 1)} different samples of class {c} (in ascending order), which has "
                    f"{len(pools[c])} left. Take fewer samples per client, or {other}."
                )
                raise _unmet("class_ramp", fault)
            if replacement:
                part += rng.choice(pools[c], count - rest).tolist() + pools[c][:rest].tolist()
                pools[c] = pools[c][rest:]
            else:
                part += rng.permutation(pools[c])[:count].tolist()
        parts.append(part)
    return parts


def mixtures(
    labels: ArrayLike,
    clients: int,
    alpha: float,
    seed: int,
    *,
    tolerance: float = 1e-6,
    patience: int = 500,
    released: bool = False,
) -> list[list[int]]:
    r"""Give every client a class mixture of its own, at equal sizes: the Dirichlet partition of FLGo.

    Client i draws ``q_i ~ Dir(alpha * p)`` [C], where p are the shares of the classes among all samples. Client by
    client, a mixture is exchanged for the best of N new draws as long as that brings the mean of all mixtures nearer
    to p, until their squared distance is at most the tolerance, which grows tenfold after every ``patience``
    exchanges. Each class is then cut in proportion to the clients' shares of it (FLGo and FedRAC, as released, in
    distribution). Another experiment than ``dirichlet``: sizes are nearly equal, and as p sums to one, alpha is
    spread over the classes, which makes labels far less even at the same alpha.

    Parameters
    ----------
    labels : [n], the class of each sample.
    clients : N, in 1..n.
    alpha : >= 0.01; of ten classes 1 leaves a client about five, and 10 nearly all.
    seed : >= 0; the same seed gives the same parts.
    tolerance : > 0, squared distance of the mean mixture to p at the start.
    patience : >= 1.
    released : draw as FLGo 0.0.15 does after ``numpy.random.seed(seed)``: classes in the order of their first samples, which are not
        shuffled.

    Returns
    -------
    Disjoint lists, each shuffled unless ``released``, that together hold 0..n - 1.

    Raises
    ------
    ValueError if a parameter is out of range. InputError if a client is left without samples.
    """
    check_whole("mixtures: patience", patience, 1)
    check_number("mixtures: tolerance", tolerance, 0, above=True, below=True)

    def draw(classes: Sequence[Indices], clients: int, alpha: float, rng: Any) -> tuple[Any, ...]:
        order, owner = list[Indices](), list[Indices]()
        if released:
            classes = sorted(classes, key=lambda members: int(members[0]))
        prior = np.array([len(members) for members in classes]) / sum(map(len, classes))
        q = _balanced(prior, clients, alpha, tolerance, patience, rng)
        for members, share in zip(classes, q.T, strict=True):
            # A class that no mixture has (one in a very low alpha) is dealt evenly.
            share = share / share.sum() if share.sum() > 0 else np.full(clients, 1 / clients)
            order.append(members if released else rng.permutation(members))
            owner.append(_cut(share, len(members)))
        return np.concatenate(order), np.concatenate(owner)

    return _drawn("mixtures", draw, labels, clients, alpha, seed, 1, 1, older=released, shuffled=not released)


def holdout(
    labels: ArrayLike, seed: int, *, fraction: float = 0.1, stratified: bool = True
) -> tuple[list[int], list[int]]:
    """Set samples aside for the server before the others are divided among clients.

    Parameters
    ----------
    labels : [n], the class of each sample.
    seed : >= 0; the same seed sets the same samples aside.
    fraction : in (0, 1), the share set aside, rounded to whole samples.
    stratified : whether every class gives its share, to within one sample; otherwise samples are drawn from all.

    Returns
    -------
    What the server holds and what remains, disjoint and ascending, together 0..n - 1.

    Raises
    ------
    ValueError if a parameter is out of range, or one of the two would be empty.
    """
    pools = _by_class("holdout", labels, 1)
    check_number("holdout: fraction", fraction, 0, 1, above=True, below=True)
    n = sum(map(len, pools))
    size = int(np.rint(fraction * n))
    if not 0 < size < n:
        fault = f"{fraction} of {n} samples, rounded, is {size}: expected 1 to {n - 1}. Give more samples."
        raise _unmet("holdout", fault)
    rng = _generator("holdout", seed)
    if stratified:
        counts = _largest_remainder(np.array([len(pool) * size / n for pool in pools]), size)
        held = np.concatenate([rng.permutation(pool)[:count] for pool, count in zip(pools, counts, strict=True)])
    else:
        held = rng.permutation(n)[:size]
    return sorted(held.tolist()), np.setdiff1d(np.arange(n), held).tolist()


def _covering(part: Indices, y: NDArray[Any], rng: RandomState, unused: Indices) -> Indices:
    """Exchange samples until every class of ``y`` is there, for ``unused`` ones first; draws are those of the released code."""
    names = np.unique(y)
    for missing in names[~np.isin(names, y[part])]:
        free = unused[y[unused] == missing]
        new = rng.choice(free if len(free) else np.flatnonzero(y == missing))
        has = np.array([np.count_nonzero(y[part] == name) for name in names])
        spare = names[rng.choice(np.flatnonzero(has >= 2))]
        gone = rng.choice(np.flatnonzero(y[part] == spare))
        part = np.append(np.delete(part, gone), new)
    return part


def _balanced(prior: Shares, clients: int, alpha: float, tolerance: float, patience: int, rng: Generator) -> Shares:
    """Mixtures [clients, classes] whose mean is near ``prior``; see ``mixtures``."""

    def draw() -> Shares:
        return np.asarray(rng.dirichlet(alpha * prior, clients))

    def distance(total: Shares) -> Shares:
        return np.asarray(np.square(total / clients - prior).sum(-1))

    q, tries, i = draw(), 0, 0
    while (now := distance(q.sum(0))) > tolerance:
        new = draw()
        away = distance(q.sum(0) - q[i] + new)
        if away.min() < now:
            q[i] = new[away.argmin()]
        i, tries = (i + 1) % clients, tries + 1
        if tries == patience:
            tolerance, tries = tolerance * 10, 0
    return q


def _largest_remainder(share: Shares, total: int) -> list[int]:
    """Round to whole numbers that sum to ``total``, those with the largest remainders up; ties go to the first."""
    whole = np.floor(share).astype(np.int64)
    up = np.argsort(whole - share, kind="stable")[: total - int(whole.sum())]
    whole[up] += 1
    return [int(k) for k in whole]


def _generator(who: str, seed: int) -> Generator:
    check_whole(f"{who}: seed", seed, 0)
    return np.random.default_rng(seed)


def check(who: str, n: int, clients: int, alpha: float = 1.0, corrupted: int = 0, min_size: int = 1) -> None:
    """Require of a partition what can be said before the labels are known.

    Parameters
    ----------
    who : name of the partition, for errors.
    n : number of samples.
    clients, alpha, corrupted, min_size : as in ``quality``.

    Raises
    ------
    ValueError if a parameter is out of its range. InputError if the samples do not suffice.
    """
    check_whole(f"{who}: clients", clients, 0)
    if not 1 <= clients <= n:
        fault = f"each client needs at least one sample: expected 1 to {n} clients for {n} samples, found {clients}."
        raise _unmet(who, fault)
    check_number(f"{who}: alpha", alpha, SMALLEST_ALPHA, below=True)
    check_whole(f"{who}: corrupted", corrupted, 0, clients, ", the number of clients")
    check_whole(f"{who}: min_size", min_size, 0)
    if min_size * clients > n:
        fault = (
            f"{clients} clients that share {n} samples have at most {n // clients} each: expected {min_size} or more."
        )
        raise _unmet(who, fault)


def _by_class(who: str, labels: ArrayLike, clients: int) -> list[Indices]:
    """Samples of each class, ascending; there are as many samples as clients at least."""
    classes: NDArray[Any] = np.asarray(labels)
    if classes.ndim != 1:
        raise ValueError(f"{who}: labels must be one class per sample, [n]; found {list(classes.shape)}.")
    absent = [label is None or label != label for label in classes.tolist()] if classes.dtype.kind in "fO" else []
    lost = np.flatnonzero(absent)
    if len(lost):  # they are of no class, and would be nobody's
        raise ValueError(
            f"{who}: the label is missing, NaN or None, in {len(lost):,} of {len(classes):,} samples, the first of them {lost[0]}. "
            "Fill it in, or leave these samples out."
        )
    check(who, len(classes), clients)
    return [np.flatnonzero(classes == label) for label in np.unique(classes)]


def classwise(
    classes: Sequence[Indices], clients: int, alpha: float, rng: Generator | RandomState, *, cap: bool
) -> tuple[Indices, Indices, Shares]:
    """One draw of ``dirichlet``, whatever the sizes.

    Parameters
    ----------
    classes : per class, the samples of it.
    clients, alpha, cap : as in ``dirichlet``.
    rng : source of the draw.

    Returns
    -------
    The samples with their owners, for :func:`parts_of`, and the shares [classes, clients] they were cut by.
    """
    n = sum(map(len, classes))
    held = np.zeros(clients, np.int64)
    order, owner = list[Indices](), list[Indices]()
    shares = np.empty((len(classes), clients))
    for row, members in zip(shares, classes, strict=True):
        shuffled = members.copy()
        rng.shuffle(shuffled)
        row[:] = _shares(clients, alpha, rng)
        if cap:
            open_ = row * (held < n / clients)
            if open_.sum() > 0:
                row[:] = open_ / open_.sum()
        mine = _cut(row, len(members))
        held += np.bincount(mine, minlength=clients)
        order.append(shuffled)
        owner.append(mine)
    return np.concatenate(order), np.concatenate(owner), shares


def _cut(share: Shares, n: int) -> Indices:
    """Whose each of n samples in a row is [n], cut at ``floor(cumsum(share) * n)``."""
    ends = (share.cumsum() * n).astype(np.int64)
    ends[-1] = n
    return np.repeat(np.arange(len(share)), np.diff(ends, prepend=0))


def parts_of(order: Indices, owner: Indices, clients: int) -> list[list[int]]:
    """The samples of each client, in the order in which they were dealt."""
    ends = np.bincount(owner, minlength=clients).cumsum()[:-1]
    return [part.tolist() for part in np.split(order[np.argsort(owner, kind="stable")], ends)]


def names_of(parts: Iterable[Iterable[int]], n: int) -> tuple[str, ...]:
    """The name of the client of each of ``n`` samples; nothing of those that are in no part."""
    whose = {int(row): f"client-{k}" for k, part in enumerate(parts, start=1) for row in part}
    return tuple(whose.get(row, "") for row in range(n))


def _shares(k: int, alpha: float, rng: Generator | RandomState) -> Shares:
    """Draw ``Dir(alpha, ..., alpha)`` [k], again where numpy's older generator gives 0/0, as it may for a small alpha."""
    while True:
        shares = np.asarray(rng.dirichlet(np.full(k, alpha)))
        if np.isfinite(shares).all():
            return shares


def _drawn(
    name: str,
    draw: Draw,
    labels: ArrayLike,
    clients: int,
    alpha: float,
    seed: int,
    min_size: int,
    redraws: int,
    corrupted: int = 0,
    *,
    older: bool = False,
    shuffled: bool = False,
) -> list[list[int]]:
    """The parts of the first draw that gives every client enough samples.

    Parameters
    ----------
    name : of the partition, for errors.
    draw : one draw.
    labels, clients, alpha, seed, min_size, redraws : as in ``dirichlet``.
    corrupted : as in ``quality``.
    older : whether NumPy's older generator draws.
    shuffled : whether the parts are shuffled at last.

    Raises
    ------
    ValueError : a parameter is out of range. InputError : no draw does.
    """
    classes = _by_class(name, labels, clients)
    check(name, sum(map(len, classes)), clients, alpha, corrupted, min_size)
    check_whole(f"{name}: seed", seed, 0, 2**32 - 1 if older else np.inf)
    check_whole(f"{name}: redraws", redraws, 1)
    rng: Any = RandomState(seed) if older else np.random.default_rng(seed)
    fewest_short = clients
    for k in range(redraws):
        order, owner, *_ = draw(classes, clients, alpha, rng)
        short = int((np.bincount(owner, minlength=clients) < min_size).sum())
        if not short:
            parts = parts_of(order, owner, clients)
            for part in parts if shuffled else ():
                rng.shuffle(part)
            return parts
        fewest_short = min(fewest_short, short)
        if k + 1 == PILOT and fewest_short >= HOPELESS:
            break
    fault = (
        f"{len(owner)} samples were never divided among {clients} clients at alpha={alpha} so that each has {min_size} or more: in "
        f"{plural(k + 1, 'draw')} {fewest_short} of them or more had fewer. Take fewer clients, or a higher alpha."
    )
    raise _unmet(name, fault)
