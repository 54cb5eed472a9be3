"""What is measured: accuracy, its spread, what clients get for what they give, and statistics over seeds.

Imports ``system`` only.
"""

from equipoise.metrics.classification import MEASURES, classification
from equipoise.metrics.collaborative import (
    Bounds,
    Gain,
    alpha_bounded_rate,
    bounded_fairness,
    client_range,
    collaboration_gain,
    collaborative_fairness,
    rank_fairness,
)
from equipoise.metrics.communication import Traffic, full_model, overhead, traffic, traffic_by_client
from equipoise.metrics.definitions import spread
from equipoise.metrics.failure import diverged, guesses
from equipoise.metrics.groups import Groups, Parity, Rates, class_counts, group_fairness, parity, rates_of
from equipoise.metrics.performance import Fairness, Value, avg_std_worst, avg_std_worst_per_round
from equipoise.metrics.pooling import Moments, Pooled, pooled
from equipoise.metrics.statistics import Paired, Summary, holm, paired, seeds_needed, summary_over_seeds

__all__ = [
    "MEASURES",
    "Bounds",
    "Fairness",
    "Gain",
    "Groups",
    "Moments",
    "Paired",
    "Parity",
    "Pooled",
    "Rates",
    "Summary",
    "Traffic",
    "Value",
    "alpha_bounded_rate",
    "avg_std_worst",
    "avg_std_worst_per_round",
    "bounded_fairness",
    "class_counts",
    "classification",
    "client_range",
    "collaboration_gain",
    "collaborative_fairness",
    "diverged",
    "full_model",
    "group_fairness",
    "guesses",
    "holm",
    "overhead",
    "paired",
    "parity",
    "pooled",
    "rank_fairness",
    "rates_of",
    "seeds_needed",
    "spread",
    "summary_over_seeds",
    "traffic",
    "traffic_by_client",
]
