"""Fair federated learning: published methods, exactly as published, that combine freely."""

from equipoise.core.model import Model
from equipoise.core.rule import Briefing, Cohort, Out, Rule, Setup, Visit
from equipoise.core.solver import SGD, Adam
from equipoise.data.samples import Lazy
from equipoise.federation.checkpoint import CheckpointError
from equipoise.federation.federation import Federation
from equipoise.federation.forecast import Forecast, ForecastError, forecast
from equipoise.federation.guard import QuorumError
from equipoise.federation.history import History
from equipoise.federation.method import Method, MethodError, parse
from equipoise.methods import METHODS
from equipoise.networks import NETWORKS
from equipoise.networks import build as network
from equipoise.scenarios import SCENARIOS, Images, Scenario
from equipoise.scenarios import load as scenario
from equipoise.system.ranges import choice, number

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "NETWORKS",
    "SCENARIOS",
    "SGD",
    "Adam",
    "Briefing",
    "CheckpointError",
    "Cohort",
    "Federation",
    "Forecast",
    "ForecastError",
    "History",
    "Images",
    "Lazy",
    "Method",
    "MethodError",
    "Model",
    "Out",
    "QuorumError",
    "Rule",
    "Scenario",
    "Setup",
    "Visit",
    "choice",
    "forecast",
    "network",
    "number",
    "parse",
    "scenario",
]
