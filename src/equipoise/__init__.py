"""Fair federated learning: published methods, exactly as published, that combine freely."""

from equipoise.checkpoint import CheckpointError
from equipoise.data.samples import Lazy
from equipoise.federation import Federation
from equipoise.forecasts import Forecast, ForecastError, forecast
from equipoise.guard import QuorumError
from equipoise.history import History
from equipoise.hyper import choice, number
from equipoise.method import METHODS, Method, MethodError, parse
from equipoise.model import Model
from equipoise.networks import NETWORKS
from equipoise.networks import build as network
from equipoise.rule import Briefing, Cohort, Out, Rule, Setup, Visit
from equipoise.scenarios import SCENARIOS, Images, Scenario
from equipoise.scenarios import load as scenario
from equipoise.solver import SGD, Adam

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
