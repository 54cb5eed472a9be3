"""Data of the user's own that a function makes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from equipoise.data.contents import DataError
from equipoise.data.formats.arrays import of_arrays, of_clients
from equipoise.data.samples import Lazy
from equipoise.data.tables.columns import Columns, UserData, listed
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
    returned = own_code.call("data", reference, {"seed": seed}, {})
    if isinstance(returned, Mapping) and {"x", "y"} <= returned.keys():
        _refuse_several(reference, returned["x"])
        arrays = {name: np.asarray(value) for name, value in returned.items()}
    elif not isinstance(returned, Mapping | list | tuple) or not len(returned):
        raise DataError(f"{reference} returned {type(returned).__name__}, or an empty one. {EXPECTED}.")
    else:
        clients: Any = returned
        if not isinstance(returned, Mapping):
            clients = {f"client-{k}": data for k, data in enumerate(returned, start=1)}
        pairs = {str(name): _pair(f"{reference}, {name}", data) for name, data in clients.items()}
        if len(pairs) < len(clients):
            raise DataError(
                f"{reference}: two clients have the same name as text: {listed(map(repr, clients))}. Rename one."
            )
        if len({x.shape[1:] for x, _ in pairs.values()}) > 1:
            shapes = ", ".join(f"{name} {list(x.shape[1:])}" for name, (x, _) in pairs.items())
            raise DataError(f"{reference}: samples of all clients must have one shape; found {shapes}.")
        if len({x.dtype == np.uint8 for x, _ in pairs.values()}) > 1:
            kinds = ", ".join(f"{name} {x.dtype}" for name, (x, _) in pairs.items())
            raise DataError(f"{reference}: samples of all clients must be bytes (uint8), or of none; found {kinds}.")
        arrays = of_clients([("", name, x, y) for name, (x, y) in pairs.items()])
    return of_arrays(reference, arrays, columns, {"function": own_code.short(reference)})


def _pair(who: str, data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples and labels of one client."""
    try:
        data = data.load() if isinstance(data, Lazy) else data
        if isinstance(data, Dataset):
            data = zip(*(data[k] for k in range(len(data))), strict=True)  # type: ignore[arg-type]
        x, y = data
        _refuse_several(who, x if isinstance(x, Mapping) else x[0])
        x, y = (np.stack([*map(np.asarray, part)]) for part in (x, y))
    except DataError:
        raise
    except Exception as error:  # of the user's code
        raise DataError(
            f"{who}: {type(data).__name__} cannot be read ({type(error).__name__}: {error}). {EXPECTED}."
        ) from error
    if y.shape != x.shape[:1]:
        raise DataError(f"{who}: expected x [n, ...] and y [n]; found {list(x.shape)} and {list(y.shape)}.")
    return x, y


def _refuse_several(who: str, x: object) -> None:
    """Require inputs that are one array."""
    if isinstance(x, Mapping):
        raise DataError(
            f"{who}: x is a dictionary of {listed(map(repr, x))}, and data that a function gives here have one array of inputs. Join them "
            "into one, or train in Python, where a network may take several: eq.Federation(net, clients)."
        )
