"""What is shown of counts of people: a number, that there are fewer than a least number, or nothing, as else a small count would follow."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

TINY = 1e-7  # of lengths and products of vectors of ones
WITHHELD = "–"  # a count that is not small, and from which a small one would follow
Key = Hashable
Array = NDArray[Any]
Flags = NDArray[np.bool_]
OfClasses = Mapping[int, tuple[int, int]]  # by class how many are of it, and how many are not
Sum = tuple[Key, Collection[Key]]  # a total and its parts; None: a total that is public


class OfClass(NamedTuple):
    """The people of a group who are of a class, or those who are not: the ``others``."""

    group: Key
    c: int
    others: bool = False


class Rest(NamedTuple):
    """The people of a total who are in none of some parts."""

    total: Key
    parts: tuple[Key, ...]


def _group(key: Key) -> Key:
    return key.group if isinstance(key, OfClass) else key


def enough(n: Any, least: float) -> Any:
    """Whether ``n`` people are enough for a number about them; of arrays and tensors each."""
    return n >= least


def text_of(n: int | None, least: int, *, few: bool = False) -> str:
    """A count as it is printed; None: it is of ``few`` people, or withheld."""
    if n is None:
        return f"< {least}" if few else WITHHELD
    return f"{n:,}"


def in_words(n: int, least: int) -> str:
    """A count in a sentence; of one below ``least`` only that."""
    return f"fewer than {least}" if n > 0 and not enough(n, least) else f"{n:,}"


def hidden(counts: Mapping[str, int], least: int, rest: int = 0) -> set[str]:
    """The names of counts that must not be shown next to their sum, to which a ``rest`` belongs that is not shown if it is small."""
    made = Publication(least, dict[Key, int](counts.items()))
    made.total([*counts], rest=rest)
    return counts.keys() & made.hidden()


@dataclass(frozen=True)
class Publication:
    """Counts of people that are shown together, and the sums between them.

    Parameters
    ----------
    least : >= 1, people.
    n : all that is shown, or follows from it, by key: groups, and of each those :class:`OfClass`.
    sums : of counts. A sum that does not hold, as that of people who are in several parts, tells nothing.
    silent : counts that are nowhere printed.
    """

    least: int
    n: dict[Key, int] = field(default_factory=dict)
    sums: list[Sum] = field(default_factory=list)
    silent: set[Key] = field(default_factory=set)

    def add(self, group: Key, n: int, of_class: OfClasses | None = None) -> None:
        """Add a group of ``n`` people, and by class how many are of it and how many are not."""
        self.n[group] = n
        for c, (k, others) in (of_class or {}).items():
            parts = OfClass(group, c), OfClass(group, c, others=True)
            self.n.update(zip(parts, (k, others), strict=True))
            self.silent.add(parts[1])
            self.sums.append((group, parts))
        if of_class and len(of_class) > 1:
            self.sums.append((group, [OfClass(group, c) for c in of_class]))

    def total(
        self, parts: Collection[Key], total: Key = None, rest: int = 0, of_class: OfClasses | None = None
    ) -> list[Key]:
        """Add that groups are the parts of a ``total``, or of all people if it is None; return the key of its rest, if it has any.

        The ``rest`` of all people is printed; that of a total is not, and follows from the counts.
        """
        if total is not None:
            rest, of_class = self._rest(total, parts)
        others = [Rest(total, tuple(parts))] * (rest > 0)
        for part in others:
            self.add(part, rest, of_class)
            self.silent.update([part] * (total is not None))
            for c, counts in (of_class or {}).items():
                if total is not None or not enough(min(counts), self.least):
                    self.silent.add(OfClass(part, c))
        self.sums.append((total, [*parts, *others]))
        for c, other in {key[1:] for key in self.n if isinstance(key, OfClass) and key.group in parts}:
            whole = None if total is None else OfClass(total, c, other)
            if whole is None or whole in self.n:
                keys = [OfClass(part, c, other) for part in (*parts, *others)]
                self.sums.append((whole, [key for key in keys if key in self.n]))
        return [*others]

    def _rest(self, total: Key, parts: Collection[Key]) -> tuple[int, OfClasses]:
        """The people of a total who are in none of its parts, and by class: negative if people are in several."""

        def left(*c: Any) -> int:
            whole, each = (OfClass(total, *c), [OfClass(part, *c) for part in parts]) if c else (total, parts)
            return self.n[whole] - sum(self.n.get(key, 0) for key in each)

        classes = [key.c for key in self.n if isinstance(key, OfClass) and key.group == total and not key.others]
        return left(), {c: pair for c in classes if min(pair := (left(c, False), left(c, True))) >= 0}

    def hidden(self, gone: Collection[Key] = ()) -> set[Key]:
        """The keys of counts that must not be shown: those below ``least``, and those from which, with all that is shown, such a count follows.

        0 of a class, or of all others, is below ``least``, too. A count below ``least`` is safe if linear algebra does not determine it, and the
        sums, of counts that are not negative, allow it to be ``least`` or more (complementary suppression, Cox 1980, JASA 75). Else the part is
        hidden that is of the smallest group in the sum that bounds it, or in sums that this is connected with; then totals. With a group its classes go.

        Parameters
        ----------
        gone : keys that are hidden elsewhere.
        """
        sums = tuple((total, tuple(parts)) for total, parts in self.sums)
        return {*_hidden(self.least, tuple(self.n.items()), sums, frozenset(self.silent), frozenset(gone))}


@lru_cache(maxsize=64)  # runs of several methods have the same people
def _hidden(
    least: int, counts: tuple[tuple[Key, int], ...], sums: tuple[Sum, ...], silent: frozenset[Key], gone: frozenset[Key]
) -> frozenset[Key]:
    n = dict(counts)
    keys = sorted(n, key=lambda key: (n[_group(key)], str(_group(key))))
    small = {key for key in keys if not enough(n[key], least) and n[_group(key)] > 0}
    unsaid = {*gone, *small, *(OfClass(key.group, key.c) for key in small if isinstance(key, OfClass))}
    few, away, quiet = (np.array([key in some for key in keys], dtype=bool) for some in (small, unsaid, silent))
    if not away.any():
        return frozenset()
    q, place = np.array([*map(n.__getitem__, keys)], dtype=np.int64), dict(zip(keys, range(len(keys)), strict=True))
    A, last = _equations(sums, q, place)
    printed = ~quiet & (q > 0) & np.array([not isinstance(_group(key), Rest) for key in keys])
    group = np.array([place[_group(key)] for key in keys])
    whole = group == np.arange(len(keys))
    away |= quiet

    def followed(A: Array, away: Flags) -> tuple[Array, Flags]:
        """The bounds, and which hidden counts linear algebra determines, and which of few are bounded below ``least``: [2, n]."""
        fixed = ~away | _determined(A, away)
        upper = _bounds(A, q, ~fixed)
        return upper, np.stack([away & fixed & (few | ~quiet), away & few & (upper.min(0, initial=np.inf) < least)])

    with threadpool_limits(
        limits=1, user_api="blas"
    ):  # of matrices so small, further threads only wait for one another
        for kind, most in (
            (whole, printed),
            (~whole, printed & ~whole),
        ):  # groups, with which their classes go; classes
            used = A[(A[:, ~whole] == 0).all(1) | ~kind[whole].any()]
            lost = followed(used, away | most)[1]  # whatever is hidden
            ranked = [np.flatnonzero(printed & kind & which) for which in (~last, last)]
            while True:
                away |= away[group] & ~quiet[group]
                upper, follows = followed(used, away)
                exposed = np.flatnonzero((follows & ~lost).any(0) & (kind | ~whole[kind].any()))
                ways = [way for j in exposed.tolist() if (way := _ways(used, upper, away, ranked, j)).size]
                if not ways:
                    break
                away[[way[0] for way in ways if way.size == 1] or min(ways, key=len)[0]] = True
    return frozenset(compress(keys, away))


def _equations(sums: Sequence[Sum], q: NDArray[np.int64], place: Mapping[Key, int]) -> tuple[Array, Flags]:
    """The sums of the counts q [n] that hold: 1 for parts, -1 for a total that is not public [R, n]; and which counts are totals of groups."""
    A, last = np.zeros((len(sums), len(q))), np.zeros(len(q), dtype=bool)
    for row, (total, parts) in zip(A, sums, strict=True):
        row[[place[part] for part in parts]] = 1
        if total is not None:
            row[place[total]] = -1
            last[place[total]] |= not row @ q and all(_group(part) != total for part in parts)
    return A[[total is None or not row @ q for row, (total, _) in zip(A, sums, strict=True)]], last


def _determined(A: Array, away: Flags) -> Flags:
    """Which hidden counts linear algebra determines, from the sums A [R, n] and what is not ``away`` [n]."""
    columns, place, alike = np.unique(A[:, away], axis=1, return_inverse=True, return_counts=True)
    size, basis = np.linalg.eigh(columns.T @ columns)
    alone = (np.abs(basis[:, size < TINY]) < TINY).all(1) & (alike == 1)  # of several in the same sums none follows
    determined = np.zeros_like(away)
    determined[away] = alone[place.reshape(-1)]
    return determined


def _bounds(A: Array, q: Array, free: Flags) -> Array:
    """The most that each of the ``free`` counts can be by each sum [R, n], given the others, none of which is negative."""
    low, high = np.where(free, 0, q).astype(float), np.where(free, q.sum(), q).astype(float)
    upper = np.full(A.shape, np.inf)
    for _ in range(len(A)):
        least = np.where(A > 0, low, -high * (A < 0)).sum(1, keepdims=True) - (A @ q)[:, None]
        most = np.where(A > 0, high, -low * (A < 0)).sum(1, keepdims=True) - (A @ q)[:, None]
        upper = np.where(A > 0, low - least, np.where(A < 0, low + most, np.inf))
        lower = np.where(A > 0, high - most, np.where(A < 0, high + least, -np.inf))
        before, low, high = (low, high), np.maximum(low, lower.max(0)), np.minimum(high, upper.min(0))
        if np.array_equal(before, (low, high)):
            break
    return upper


def _ways(A: Array, upper: Array, away: Flags, ranked: list[NDArray[np.int64]], j: int) -> NDArray[np.int64]:
    """What may be hidden so that the hidden count j does not follow: of the sum that bounds it most, or of those that this is connected with."""
    for candidates in ranked:
        rows, more = np.zeros(len(A), dtype=bool), np.arange(len(A)) == upper[:, j].argmin()
        while (rows != more).any():
            rows, columns = more, (A[more] != 0).any(0)
            ways: NDArray[np.int64] = candidates[columns[candidates] & ~away[candidates]]
            if ways.size:
                return ways
            more = rows | (A[:, columns & away] != 0).any(1)
    return np.empty(0, np.int64)


def exposed(sums: Flags, cell: Array, person: Array, least: int) -> Flags:
    """The cells [m] in parts of fewer than ``least`` people, of which alone a combination of sums is made.

    A part are cells that every sum counts alike. A combination tells of few if it leaves out every part that is large.

    Parameters
    ----------
    sums : which cells each of them counts [K, m].
    cell : the cell of each row, in 0..m - 1 [n].
    person : whom each row is about [n].
    least : >= 1, people.
    """
    parts, part = np.unique(sums, axis=1, return_inverse=True)
    part = part.reshape(-1)
    few = people_in(part[cell], person, parts.shape[1]) < least
    large = (parts * ~few).astype(float)
    size, basis = np.linalg.eigh(large @ large.T)
    alone: Flags = few & (np.abs(basis[:, size < TINY].T @ parts) > TINY).any(0)
    return alone[part]


def people_in(part: Array, person: Array, m: int) -> NDArray[np.int64]:
    """How many people there are in each of ``m`` parts, by the part and the person of each row [n]."""
    number = np.unique(person, return_inverse=True)[1]
    return np.bincount(np.unique(part * len(number) + number) // max(len(number), 1), minlength=m)


def shown(codes: NDArray[np.int64], person: Array, least: int) -> Flags:
    """The rows [n] whose attributes may count in sums by attribute, next to the sum of all rows; the others are unknown in every attribute.

    Rows in small cells go first, then those of the smallest combination of values, until the rest, too, is of ``least`` people or more.

    Parameters
    ----------
    codes : the value of each attribute [n, A], -1 if it is not known.
    person, least : as of :func:`exposed`.
    """
    values, cell = np.unique(codes, axis=0, return_inverse=True)
    cell, seen = cell.reshape(-1), np.ones(len(values), dtype=bool)
    sizes = people_in(cell, person, len(values))
    while seen.any():
        sums = [seen & (column == value) for column in values.T for value in np.unique(column[column >= 0])]
        alone = exposed(np.stack([np.ones_like(seen), *sums]), cell, person, least)
        if not alone.any():
            break
        if not (seen & alone).any():  # the rest is
            alone = np.arange(len(seen)) == np.where(seen, sizes, sizes.max() + 1).argmin()
        seen &= ~alone
    return seen[cell]
