"""Engines: ways to call :func:`equipoise.core.client.visit_client` for the clients of a round. All give the same result.

Imports ``core``, ``data``, ``submodels`` and ``system``.
"""

from collections.abc import Callable, Mapping

from equipoise.engines.job import Engine
from equipoise.engines.processes import Processes
from equipoise.engines.sequential import sequential
from equipoise.engines.workers import Stacks, Workers

ENGINES: Mapping[str, Callable[[int, int | None], Engine]] = {
    "sequential": lambda workers, chunk: sequential,
    "workers": lambda workers, chunk: Workers(workers),
    "processes": lambda workers, chunk: Processes(workers),
    "stacked": Stacks,
}
