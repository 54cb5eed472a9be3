"""What is measured: accuracy and its spread, and statistics over seeds."""

from equipoise.metrics.classification import MEASURES, classification
from equipoise.metrics.communication import Traffic, overhead, traffic
from equipoise.metrics.performance import Fairness, Value, avg_std_worst, avg_std_worst_per_round, spread
from equipoise.metrics.pooling import Moments, Pooled, pooled
from equipoise.metrics.statistics import Paired, Summary, paired, summary_over_seeds

__all__ = [
    "MEASURES",
    "Fairness",
    "Moments",
    "Paired",
    "Pooled",
    "Summary",
    "Traffic",
    "Value",
    "avg_std_worst",
    "avg_std_worst_per_round",
    "classification",
    "overhead",
    "paired",
    "pooled",
    "spread",
    "summary_over_seeds",
    "traffic",
]
