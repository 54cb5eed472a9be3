"""Engines: ways to call :func:`equipoise.core.client.visit_client` for the clients of a round. All give the same result.

Imports ``core``, ``data``, ``submodels`` and ``system``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from equipoise.core.model import Model
from equipoise.data.samples import Absent, Samples
from equipoise.engines import distributed
from equipoise.engines.job import Engine
from equipoise.engines.processes import Processes
from equipoise.engines.sequential import sequential
from equipoise.engines.stacked import Stacks, Workers

ENGINES: Mapping[str, Callable[[int, int | None], Engine]] = {
    "sequential": lambda workers, chunk: sequential,
    "workers": lambda workers, chunk: Workers(workers),
    "processes": lambda workers, chunk: Processes(workers),
    "stacked": Stacks,
    distributed.NAME: lambda workers, chunk: distributed.Distributed(workers),
}
SMALL = 100_000  # parameters: below it a dense step is mostly overhead, which a stack shares


class EngineChoice(NamedTuple):
    """An engine's name and why it was chosen."""

    engine: str
    why: str


def choose(
    model: Model, data: Sequence[Samples | Absent], n_participants: int, threads: int, stacks: Callable[[], bool]
) -> EngineChoice:
    """Take ``stacked`` for many clients of a small dense network, ``workers`` where cores can share clients, else ``sequential``.

    ``stacks`` tries whether the network can be run for several clients at a time; it is called where ``stacked`` would be taken.
    ``threads`` are those that torch uses inside operations. The number of workers must not matter here: ``workers`` and
    ``sequential`` give the same bits only with one thread.
    """
    if model.random:
        return EngineChoice(
            "sequential", "the network, or the transform of its inputs, draws random numbers in training"
        )
    if any(d.content is None for d in data):
        return EngineChoice("sequential", "some data is streamed")
    small = model.n_params <= SMALL and not model.convolutional
    if n_participants >= 4 and small and stacks():
        return EngineChoice(
            "stacked", f"{n_participants} clients of a dense network with {model.n_params:,} parameters"
        )
    kind = "a convolutional" if model.convolutional else "a dense"
    network = f"{kind} network of {model.n_params:,} parameters"
    if model.initial.device.type != "cpu":
        return EngineChoice("sequential", f"{network} on a {model.initial.device.type} device")
    if n_participants < max(threads, 2):
        few = f", fewer than {threads} threads inside operations" if threads > 1 else ""
        return EngineChoice("sequential", f"{n_participants} of the clients at a time{few}")
    return EngineChoice("workers", f"{n_participants} clients of {network}, one core each")
