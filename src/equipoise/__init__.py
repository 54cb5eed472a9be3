"""Fair federated learning: published methods in the form of their papers, which combine freely.

Importing it imports nothing else that takes time: a name is looked up in its module when it is first used, and PyTorch loaded then.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from equipoise.system.version import __version__ as __version__

if TYPE_CHECKING:
    from equipoise.bundle.predictor import load as load
    from equipoise.core.model import Model as Model
    from equipoise.core.rates import Cosine as Cosine, Exponential as Exponential, Step as Step
    from equipoise.core.rule import (
        Bounds as Bounds,
        Briefing as Briefing,
        Cohort as Cohort,
        Out as Out,
        Rule as Rule,
        Setup as Setup,
        Visit as Visit,
    )
    from equipoise.core.settings import Settings as Settings
    from equipoise.core.solver import SGD as SGD, Adam as Adam
    from equipoise.core.task import Classification as Classification, Regression as Regression
    from equipoise.data.samples import Lazy as Lazy, OfPeople as OfPeople
    from equipoise.federation.checkpoint import CheckpointError as CheckpointError
    from equipoise.federation.federation import Federation as Federation
    from equipoise.federation.forecast import Forecast as Forecast, ForecastError as ForecastError, forecast as forecast
    from equipoise.federation.guard import QuorumError as QuorumError
    from equipoise.federation.history import History as History
    from equipoise.federation.method import Method as Method, MethodError as MethodError, parse as parse
    from equipoise.federation.stopping import EarlyStopping as EarlyStopping
    from equipoise.federation.thresholds import Threshold as Threshold, choose_threshold as choose_threshold
    from equipoise.methods import METHODS as METHODS
    from equipoise.metrics.classification import Measure as Measure
    from equipoise.networks import NETWORKS as NETWORKS, build
    from equipoise.report.audit import Audit as Audit, audit as audit
    from equipoise.report.comparisons import Comparison as Comparison
    from equipoise.runs.choosing import Tuning as Tuning
    from equipoise.runs.sweep import compare as compare, tune as tune
    from equipoise.runs.tracking import Tracking as Tracking, track as track
    from equipoise.scenarios import SCENARIOS as SCENARIOS, Images as Images, Scenario as Scenario, load as loader
    from equipoise.scenarios.shared import SharedSchema as SharedSchema
    from equipoise.system.ranges import choice as choice, number as number
    from equipoise.system.search import among as among, log_uniform as log_uniform, uniform as uniform
    from equipoise.testing import check_rule as check_rule

    network, scenario = build, loader

# Large pages, see system/memory.py: PyTorch looks once, before its first large tensor.
if os.environ.get("EQUIPOISE_KEEP_MEMORY") != "0":
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {  # the public names of each module; two have another name there
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
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"equipoise.{module}"), _RENAMED.get(name, name))
            globals()[name] = value
            return value
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
