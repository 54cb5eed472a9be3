"""State is a tree: dictionaries and sequences whose leaves are tensors, or rows on disk, which behave like tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

ALIGNMENT = 64  # bytes: where torch begins every new tensor on a CPU
Aligned = TypeVar("Aligned")
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


def numbered(tensors: Mapping[str, Tensor], name: str, n: int) -> list[dict[str, Tensor]]:
    """A dictionary for each of ``n`` rules, or clients, of the tensors named ``name/number/key``."""
    parts: list[dict[str, Tensor]] = [{} for _ in range(n)]
    for path, x in tensors.items():
        kind, _, rest = path.partition("/")
        if kind == name:
            number, _, key = rest.partition("/")
            parts[int(number)][key] = x
    return parts


def unflatten(like: Tree, leaves: Mapping[str, Any], name: str = "") -> Tree:
    """Put named leaves back into the shape of ``like``; ``KeyError`` names a missing one."""
    if not isinstance(like, (dict, list, tuple)):
        return leaves[name]
    if isinstance(like, dict):
        return {key: unflatten(part, leaves, f"{name}/{key}" if name else str(key)) for key, part in like.items()}
    return type(like)(unflatten(part, leaves, f"{name}/{key}" if name else str(key)) for key, part in enumerate(like))


def aligned(tree: Aligned) -> Aligned:
    """The tensors of ``tree``, each as it is if it begins at a multiple of 64 bytes, else as a copy that does.

    On some processors (AMD's with Intel's MKL) a product adds up in another order when an operand does not begin at a
    multiple of 16 bytes. Rows of a matrix, parts of a vector and arrays out of a message begin anywhere, differently in
    every engine. So every tensor that a round, a client or a network receives passes through here. Rows stored on disk stay
    there: reading them makes new tensors.
    """
    return cast(Aligned, tree_map(_aligned, tree))


def _aligned(x: Any) -> Any:
    return x if not isinstance(x, Tensor) or x.data_ptr() % ALIGNMENT == 0 else x.clone()
