"""Flower without processes: an unchanged app in this one."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, cast

import numpy as np
from flwr.app import Array, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

log = logging.getLogger(__name__)


class InProcessGrid(Grid):
    """A grid whose nodes are calls of a ``ClientApp`` in this process: for tests, notebooks and simulation.

    Messages are answered when their replies are pulled, one after another. What a client raises becomes an error reply, as
    elsewhere. From the first grid on, Flower's arrays in this process are made and read faster, with the same bytes.

    Parameters
    ----------
    client_app : Flower's, unchanged.
    node_configs : one for each node, as ``--node-config`` gives it: ``{"site": "hospital-0", ...}``.
    run_config : as in the app's ``pyproject.toml``.
    """

    def __init__(
        self, client_app: ClientApp, node_configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any]
    ) -> None:
        self.client_app = client_app
        self.contexts = {
            k: Context(run_id=1, node_id=k, node_config=dict(node), state=RecordDict(), run_config=dict(run_config))
            for k, node in enumerate(node_configs, start=1)
        }
        self._queue: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        for name in ("run_id", "node_id", "task_id"):  # a message cannot be made outside of a task
            if getattr(TaskIdentity, f"_{name}") is None:
                setattr(TaskIdentity, name, 1)
        for name, function in (("from_numpy_ndarray", staticmethod(written)), ("numpy", read)):
            setattr(Array, name, function)

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """There is no run that a SuperLink would know."""
        return cast(Run, None)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages to be answered; their numbers."""
        numbers: list[str] = []
        for message in messages:
            number = str(next(self._numbers))
            message.metadata.__dict__.update(_message_id=number, _run_id=1, _src_node_id=0)
            if message.has_content():
                message.content = copied(message.content)
            self._queue[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the first node of these answer that has not yet."""
        for number in message_ids:
            if (message := self._queue.pop(number, None)) is not None:
                return [self._answered(message)]
        return []

    def _answered(self, message: Message) -> Message:
        try:
            reply = self.client_app(message, self.contexts[message.metadata.dst_node_id])
            if reply.has_content():
                reply.content = copied(reply.content)
            return reply
        except Exception as error:  # as in a separate process
            log.exception("node %d failed", message.metadata.dst_node_id)
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Let the nodes answer, one after another."""
        return [reply for number in self.push_messages(messages) for reply in self.pull_messages([number])]


# Flower's arrays are what numpy.save writes. With its header remembered, that takes a tenth of the time.
SLOWLY_WRITTEN, SLOWLY_READ, NOTHING = Array.from_numpy_ndarray, Array.numpy, ("", b"", 0)


def written(x: np.ndarray[Any, Any]) -> Array:
    """What ``Array.from_numpy_ndarray`` makes of an array."""
    kind, header, _ = _form(x.dtype, x.shape) if type(x) is np.ndarray and x.flags.c_contiguous else NOTHING
    if not header:
        return SLOWLY_WRITTEN(x)
    made = Array.__new__(Array)
    made.__dict__.update(dtype=kind, shape=x.shape, stype="numpy.ndarray", data=b"".join((header, x.data)))
    return made


def read(array: Array) -> np.ndarray[Any, Any]:
    """What ``Array.numpy`` gives: the reader's own copy."""
    kind, header, size = _form(array.dtype, array.shape)
    if header and array.stype == "numpy.ndarray" and len(array.data) >= size and array.data.startswith(header):
        return np.ndarray(array.shape, kind, array.data, len(header)).copy()
    return SLOWLY_READ(array)


@functools.lru_cache(maxsize=4096)
def _form(dtype: str | np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, bytes, int]:
    """The name of a type, the header of an array of it, and the bytes of both; nothing if these are no plain numbers."""
    try:
        kind = np.dtype(dtype)
    except TypeError:  # one with fields
        return NOTHING
    if kind.kind not in "biufc" or kind.isbuiltin != 1:
        return NOTHING
    file = BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return str(kind), file.getvalue(), file.tell() + math.prod(shape) * kind.itemsize


def copied(content: RecordDict) -> RecordDict:
    """The records as a receiver's own; to fill them by Flower's functions checks each entry again, which takes longer."""
    made = content.copy()
    for key, record in content.items():
        made.__dict__["_data"][key] = mine = record.copy()
        mine.__dict__["_data"].update((name, _copied(x)) for name, x in record.items())
    return made


def _copied(x: Any) -> Any:
    if isinstance(x, Array):
        made = Array.__new__(Array)
        made.__dict__.update(x.__dict__)
        return made
    return list(x) if isinstance(x, list) else x
