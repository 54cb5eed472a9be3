"""Values by key, in the order in which keys first appear."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of pairs of a key and a value, by key."""
    by_key = defaultdict[K, list[V]](list)
    for key, value in pairs:
        by_key[key].append(value)
    return dict(by_key)


def by_name(parts: Iterable[Mapping[K, V]]) -> dict[K, list[V]]:
    """The values of several mappings, by key: of each key those of the mappings that have it."""
    return grouped(chain.from_iterable(part.items() for part in parts))
