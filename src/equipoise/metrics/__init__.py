"""What is measured: accuracy and its spread, and statistics over seeds."""

from equipoise.metrics.performance import Fairness, Value, avg_std_worst, avg_std_worst_per_round, spread
from equipoise.metrics.statistics import Paired, Summary, paired, summary_over_seeds

__all__ = [
    "Fairness",
    "Paired",
    "Summary",
    "Value",
    "avg_std_worst",
    "avg_std_worst_per_round",
    "paired",
    "spread",
    "summary_over_seeds",
]
