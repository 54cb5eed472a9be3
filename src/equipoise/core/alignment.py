"""Where tensors begin in memory: matrix products may depend on it in their last bits."""

from typing import Any, TypeVar, cast

from torch import Tensor

from equipoise.system.tree import tree_map

ALIGNMENT = 64  # bytes: where torch begins every new tensor on a CPU


Tree = TypeVar("Tree")


def aligned(tree: Tree) -> Tree:
    """The tensors of ``tree``, each as it is if it begins at a multiple of 64 bytes, else as a copy that does.

    On some processors (AMD's with Intel's MKL) a product adds up in another order when an operand does not begin at a
    multiple of 16 bytes. Rows of a matrix, parts of a vector and arrays out of a message begin anywhere, differently in
    every engine. So every tensor that a round, a client or a network receives passes through here. Rows stored on disk stay
    there: reading them makes new tensors.
    """
    return cast(Tree, tree_map(_aligned, tree))


def _aligned(x: Any) -> Any:
    return x if not isinstance(x, Tensor) or x.data_ptr() % ALIGNMENT == 0 else x.clone()
