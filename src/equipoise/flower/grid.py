"""Flower without processes: an unchanged app in this one."""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from equipoise.flower.internals import Run, begin_task, delivered, delivered_context, flatten_dict, number

log = logging.getLogger(__name__)


class InProcessGrid(Grid):
    """A grid whose nodes are calls of a ``ClientApp`` in this process: for tests, notebooks and simulation.

    Messages are answered when their replies are pulled, one after another. Messages, configs and states pass through Flower's own
    writing and reading. What a client raises becomes an error reply, as between machines.

    Parameters
    ----------
    client_app : Flower's, unchanged.
    node_configs : one for each node, as ``--node-config`` gives it: ``{"site": "hospital-0", ...}``.
    run_config : as in the app's ``pyproject.toml``. Tables inside either become keys with points, as Flower makes them.

    Raises
    ------
    ValueError : a config holds something other than bools, numbers and text.
    """

    def __init__(
        self, client_app: ClientApp, node_configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any]
    ) -> None:
        self.client_app = client_app
        self.contexts = {
            k: Context(1, k, flatten_dict(dict(node)), RecordDict(), flatten_dict(dict(run_config)))
            for k, node in enumerate(node_configs, start=1)
        }
        self._queue: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        begin_task()

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
            numbers.append(str(next(self._numbers)))
            number(message, numbers[-1])
            if message.has_content():
                message.content = delivered(message.content)
            self._queue[numbers[-1]] = message
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the first node of these answer that has not yet."""
        for message_id in message_ids:
            if (message := self._queue.pop(message_id, None)) is not None:
                return [self._answered(message)]
        return []

    def _answered(self, message: Message) -> Message:
        own = self.contexts[message.metadata.dst_node_id]
        try:
            context = delivered_context(own)
            reply = self.client_app(message, context)
            if reply.has_content():
                reply.content = delivered(reply.content)
            own.state = delivered(context.state)
            return reply
        except Exception as error:  # as in a separate process
            log.exception("node %d failed", message.metadata.dst_node_id)
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Let the nodes answer, one after another."""
        return [reply for key in self.push_messages(messages) for reply in self.pull_messages([key])]
