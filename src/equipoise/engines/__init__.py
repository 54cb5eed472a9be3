"""Engines: ways to call :func:`equipoise.client.visit_client` for the clients of a round. All give the same result."""

from equipoise.engines.choose import Choice, choose
from equipoise.engines.job import Answer, Engine, Job
from equipoise.engines.sequential import sequential
from equipoise.engines.stacked import stacked

ENGINES = {"sequential": sequential, "stacked": stacked}

__all__ = ["ENGINES", "Answer", "Choice", "Engine", "Job", "choose", "sequential", "stacked"]
