"""Asking nodes through a Flower grid: a parcel for each, and its answer or the reason why there is none."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from equipoise.federation.guard import DATA
from equipoise.flower.codec import LOST, CodecError, Parcel
from equipoise.system.errors import REFUSED
from equipoise.system.text import Said, visible

AWAY = "away"  # key of the reasons of sites that may answer later
KEYS = (LOST, REFUSED, DATA)  # that a site may send
CODES = {
    1: "cannot load its app; the site's log says why",
    2: "failed; the site's log says why",
    3: "did not answer in time",
    5: "is not reachable any more",
    8: "stopped in the middle of its work",
}


@dataclass
class Exchange:
    """The messages of one experiment.

    Parameters
    ----------
    grid : Flower's.
    experiment : :func:`equipoise.flower.server.consortium.description` of it, which every message holds.
    deadline : seconds a site has for an answer, > 0.
    poll : seconds between looks for answers, > 0.
    """

    grid: Grid
    experiment: dict[str, Any]
    deadline: float = 600.0
    poll: float = 0.3

    def ask(
        self, kind: str, nodes: Iterable[int], make: Callable[[int], Parcel], deadline: float, group: str
    ) -> Iterator[tuple[int, Parcel | str]]:
        """Send each node a parcel; give the answers as they come, or why there is none.

        Messages are made and sent one by one: together they may not fit into memory.

        Parameters
        ----------
        kind : of the message.
        make : gives the parcel of a node.
        deadline : seconds, > 0.
        group : Flower's group of the messages.
        """
        waiting: dict[str, int] = {}
        for node in nodes:
            parcel = make(node)
            content = replace(parcel, fields={**parcel.fields, "experiment": self.experiment}).records()
            message = Message(content, node, kind, ttl=deadline, group_id=group)
            number = next(iter(self.grid.push_messages([message])), None)
            if number:
                waiting[number] = node
            else:
                yield node, Said("could not be sent its part", AWAY)
        end = time.monotonic() + deadline
        while waiting:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                number = reply.metadata.reply_to_message_id
                if number in waiting:
                    yield waiting.pop(number), _read(reply)
            if waiting and not replies:
                if time.monotonic() > end:
                    break
                time.sleep(min(self.poll, max(0.0, end - time.monotonic())))
        yield from ((node, Said(f"did not answer within {deadline:g} s", AWAY)) for node in waiting.values())


def _read(reply: Message) -> Parcel | str:
    """The content of a reply, or why there is none; without the text of Flower's errors, which may contain data of a site."""
    if reply.has_error():
        code = reply.error.code
        return Said(CODES.get(code, f"failed (Flower's error {code}); the site's log says why"), AWAY)
    try:
        parcel = Parcel.of(reply.content)
    except CodecError as error:
        return f"sent an unusable answer: {error}"
    if "error" not in parcel.fields:
        return parcel
    name = f"({parcel.fields['name']}) " if "name" in parcel.fields else ""
    said = visible(" ".join(f"{name}{parcel.fields['error']}".split())[:500])
    key = parcel.fields.get("key")
    return Said(said, key if key in KEYS else "")
