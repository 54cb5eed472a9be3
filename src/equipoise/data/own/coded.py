"""Data of the user's own that a function makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from equipoise.data.contents import DataError
from equipoise.data.own.columns import Columns, UserData
from equipoise.data.own.tables import of_arrays
from equipoise.data.samples import Lazy
from equipoise.system import own_code

EXPECTED = (
    "Return a list with (x, y) or a data set for each client, a dictionary of these by the clients' names, or a dictionary of arrays "
    "x [n, ...], y [n] and, if you like, client, group and split [n]"
)


def read(reference: str, columns: Columns, seed: int) -> UserData:
    """Call a function, with ``seed`` if its signature has one, and take what it returns as it is: nothing is standardised.

    It returns a list with ``(x, y)``, a ``torch.utils.data.Dataset`` or :class:`Lazy` for each client; or a dictionary of these by
    the clients' names; or a dictionary of arrays as an ``.npz`` file has them. All samples are kept in memory.

    Raises
    ------
    OwnCodeError : the function is not there, or fails. DataError : it returns something else.
    """
    found = own_code.call("data", reference, {"seed": seed}, {})
    arrays = _arrays(reference, found)
    return of_arrays(reference, arrays, columns, {"function": own_code.short(reference)})


def _arrays(reference: str, found: Any) -> dict[str, NDArray[Any]]:
    if isinstance(found, Mapping) and {"x", "y"} <= found.keys():
        return {name: np.asarray(value) for name, value in found.items()}
    if not isinstance(found, Mapping | list | tuple) or not found:
        raise DataError(f"{reference} returned {_kind(found)}. {EXPECTED}.")
    names = list(found) if isinstance(found, Mapping) else [f"client-{k}" for k in range(1, len(found) + 1)]
    clients = list(found.values()) if isinstance(found, Mapping) else list(found)
    pairs = [_pair(f"{reference}, {name}", one) for name, one in zip(names, clients, strict=True)]
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        shapes = ", ".join(f"{name} {list(x.shape[1:])}" for name, (x, _) in zip(names, pairs, strict=True))
        raise DataError(f"{reference}: samples of all clients must have one shape; found {shapes}.")
    x, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return {"x": x, "y": y, "client": np.repeat([str(name) for name in names], [len(y) for _, y in pairs])}


def _pair(who: str, data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples and labels of one client."""
    try:
        data = data.load() if isinstance(data, Lazy) else data
        if isinstance(data, Dataset):
            samples = [data[k] for k in range(len(data))]  # type: ignore[arg-type]
            x, y = np.stack([np.asarray(x) for x, _ in samples]), np.asarray([int(y) for _, y in samples])
        else:
            x, y = (np.asarray(part) for part in data)
    except Exception as error:  # of the user's code
        raise DataError(
            f"{who}: {_kind(data)} cannot be read ({type(error).__name__}: {error}). {EXPECTED}."
        ) from error
    if not x.ndim or y.shape != x.shape[:1] or not len(y):
        raise DataError(
            f"{who}: expected x [n, ...] and y [n] with at least one sample; found {list(x.shape)} and {list(y.shape)}."
        )
    return x, y


def _kind(value: object) -> str:
    return f"an empty {type(value).__name__}" if value in ([], (), {}) else type(value).__name__
