"""Runs as directories: configuration, execution, comparison, the papers' experiments.

Imports everything but ``cli`` and ``analysis``.
"""

from equipoise.runs.configuration import RunConfig, RunError, configure
from equipoise.runs.directory import execute, load, start, trained
from equipoise.runs.plan import compare

__all__ = ["RunConfig", "RunError", "compare", "configure", "execute", "load", "start", "trained"]
