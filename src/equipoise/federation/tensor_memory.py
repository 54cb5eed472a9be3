"""How many bytes of tensors there are, and were at most, while something runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watch(TorchDispatchMode):
    """Counts what PyTorch makes inside a ``with``, in this thread: ``live`` bytes now, ``peak`` bytes at most.

    What was there before does not count, nor does the scratch space within an operation.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def start(self) -> int:
        """Let the peak begin anew from the bytes that are there now, and give these."""
        self.peak = self.live
        return self.live

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and see what it made."""
        kwargs = kwargs or {}
        self._meet((args, kwargs), counts=False)  # so that what is passed through is not taken for new
        made = func(*args, **kwargs)
        self._meet(made, counts=True)
        return made

    def _meet(self, tree: Any, *, counts: bool) -> None:
        for x in tree_leaves(tree):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                key = storage._cdata
                if key not in self._known:
                    n = storage.nbytes() if counts else 0
                    self._known[key] = weakref.ref(storage, partial(self._forget, key)), n
                    self.live += n
                    self.peak = max(self.peak, self.live)

    def _forget(self, key: int, _: Any) -> None:
        self.live -= self._known.pop(key)[1]
