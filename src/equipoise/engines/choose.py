"""Which engine suits a network and its clients, by a fixed rule: the choice never depends on timing or load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from equipoise.data.samples import Samples, Stream
from equipoise.model import Model

SMALL = 100_000  # parameters: below it a dense step is mostly overhead, which a stack shares


class Choice(NamedTuple):
    """An engine's name and why it was chosen."""

    engine: str
    why: str


def choose(model: Model, data: Sequence[Samples | Stream], n_participants: int) -> Choice:
    """Take ``stacked`` for many clients of a small dense network, else ``sequential``."""
    if n_participants < 4:
        return Choice("sequential", f"{n_participants} clients a round are too few to stack")
    if model.random:
        return Choice("sequential", "the network draws random numbers in training")
    if any(isinstance(d, Stream) for d in data):
        return Choice("sequential", "some data is streamed")
    if model.convolutional:
        return Choice("sequential", "a convolution fills the processor on its own")
    if model.n_params > SMALL:
        return Choice("sequential", f"{model.n_params:,} parameters fill the processor on their own")
    return Choice("stacked", f"{n_participants} clients of a dense network with {model.n_params:,} parameters")
