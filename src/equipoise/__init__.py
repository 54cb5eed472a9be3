"""Fair federated learning: published methods in the form of their papers, which combine freely.

Importing it imports nothing else that takes time: a name is looked up in its module when it is first used, and PyTorch loaded then.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from equipoise.system.version import __version__ as __version__

if TYPE_CHECKING:
    from equipoise.analysis.contribution import contributions
    from equipoise.bundle.predictor import load
    from equipoise.core.model import Model
    from equipoise.core.rates import Cosine, Exponential, Step
    from equipoise.core.rule import Bounds, Briefing, Cohort, Out, Rule, Setup, Visit
    from equipoise.core.settings import Settings
    from equipoise.core.solver import SGD, Adam
    from equipoise.core.task import Classification, Regression
    from equipoise.data.samples import Lazy, OfPeople
    from equipoise.federation.checkpoint import CheckpointError
    from equipoise.federation.federation import Federation
    from equipoise.federation.forecast import Forecast, ForecastError, forecast
    from equipoise.federation.guard import QuorumError
    from equipoise.federation.history import History
    from equipoise.federation.method import Method, MethodError, parse
    from equipoise.federation.stopping import EarlyStopping
    from equipoise.federation.thresholds import Threshold, choose_threshold
    from equipoise.federation.worth import ledger
    from equipoise.methods import METHODS
    from equipoise.metrics.classification import Measure
    from equipoise.networks import NETWORKS, build as network
    from equipoise.report.audit import Audit, audit
    from equipoise.report.comparisons import Comparison
    from equipoise.runs.choosing import Tuning
    from equipoise.runs.sweep import compare, tune
    from equipoise.runs.tracking import Tracking, track
    from equipoise.scenarios import SCENARIOS, Images, Scenario, load as scenario
    from equipoise.scenarios.shared import SharedSchema
    from equipoise.system.ranges import choice, number
    from equipoise.system.search import among, log_uniform, uniform
    from equipoise.testing import check_rule

# Large pages, see system/memory.py: PyTorch looks once, before its first large tensor.
if os.environ.get("EQUIPOISE_KEEP_MEMORY") != "0":
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {  # the public names of each module; two have another name there
    "analysis.contribution": ("contributions",),
    "bundle.predictor": ("load",),
    "core.model": ("Model",),
    "core.rates": ("Cosine", "Exponential", "Step"),
    "core.rule": ("Bounds", "Briefing", "Cohort", "Out", "Rule", "Setup", "Visit"),
    "core.settings": ("Settings",),
    "core.solver": ("SGD", "Adam"),
    "core.task": ("Classification", "Regression"),
    "data.samples": ("Lazy", "OfPeople"),
    "federation.checkpoint": ("CheckpointError",),
    "federation.federation": ("Federation",),
    "federation.forecast": ("Forecast", "ForecastError", "forecast"),
    "federation.guard": ("QuorumError",),
    "federation.history": ("History",),
    "federation.method": ("Method", "MethodError", "parse"),
    "federation.stopping": ("EarlyStopping",),
    "federation.thresholds": ("Threshold", "choose_threshold"),
    "federation.worth": ("ledger",),
    "methods": ("METHODS",),
    "metrics.classification": ("Measure",),
    "networks": ("NETWORKS", "network"),
    "runs.tracking": ("Tracking", "track"),
    "report.audit": ("Audit", "audit"),
    "report.comparisons": ("Comparison",),
    "runs.sweep": ("compare", "tune"),
    "runs.choosing": ("Tuning",),
    "scenarios": ("SCENARIOS", "Images", "Scenario", "scenario"),
    "scenarios.shared": ("SharedSchema",),
    "system.ranges": ("among", "choice", "log_uniform", "number", "uniform"),
    "testing": ("check_rule",),
}
_RENAMED = {"network": "build", "scenario": "load"}
__all__ = [
    "METHODS", "NETWORKS", "SCENARIOS", "SGD", "Adam", "Audit", "Bounds", "Briefing", "CheckpointError",
    "Classification", "Cohort", "Comparison", "Cosine", "EarlyStopping", "Exponential", "Federation", "Forecast",
    "ForecastError", "History", "Images", "Lazy", "Measure", "Method", "MethodError", "Model", "OfPeople", "Out",
    "QuorumError", "Regression", "Rule", "Scenario", "Settings", "Setup", "SharedSchema", "Step", "Threshold",
    "Tracking", "Tuning", "Visit", "among", "audit", "check_rule", "choice", "choose_threshold", "compare",
    "contributions", "forecast", "ledger", "load", "log_uniform", "network", "number", "parse", "scenario", "track", "tune", "uniform",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"equipoise.{module}"), _RENAMED.get(name, name))
            globals()[name] = value
            return value
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
