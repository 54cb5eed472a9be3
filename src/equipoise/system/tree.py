"""State is a tree: dictionaries and sequences whose leaves are tensors, or rows on disk, which behave like tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

Tree = Any  # Tensor | dict[str, Tree] | list[Tree] | tuple[Tree, ...]


def tree_map(f: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``f`` to the leaves at the same place of every tree."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: tree_map(f, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(tree_map(f, *parts) for parts in zip(*trees, strict=True))
    return f(*trees)


def span(rows: Sequence[int]) -> slice | list[int]:
    """Index of ``rows``: a slice where they are consecutive, which copies nothing."""
    first, last = rows[0], rows[-1] + 1
    return slice(first, last) if list(rows) == list(range(first, last)) else list(rows)


def flatten(tree: Tree, name: str = "", sep: str = "/") -> dict[str, Tensor]:
    """Name every leaf by its path: ``{"server": [{"c": x}]}`` gives ``{"server/0/c": x}``."""
    if not isinstance(tree, (dict, list, tuple)):
        return {name: tree}
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    leaves: dict[str, Tensor] = {}
    for key, part in parts:
        leaves |= flatten(part, f"{name}{sep}{key}" if name else str(key), sep)
    return leaves


def unflatten(like: Tree, leaves: Mapping[str, Any], name: str = "") -> Tree:
    """Put named leaves back into the shape of ``like``; ``KeyError`` names a missing one."""
    if not isinstance(like, (dict, list, tuple)):
        return leaves[name]
    if isinstance(like, dict):
        return {key: unflatten(part, leaves, f"{name}/{key}" if name else str(key)) for key, part in like.items()}
    return type(like)(unflatten(part, leaves, f"{name}/{key}" if name else str(key)) for key, part in enumerate(like))
