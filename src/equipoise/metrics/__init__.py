"""What is measured: accuracy, its spread, what clients get for what they give, and statistics over seeds.

Imports ``system`` only.
"""

from equipoise.metrics.classification import MEASURES, classification
from equipoise.metrics.collaborative import (
    Bounds,
    Gain,
    bounded_fairness,
    client_range,
    collaboration_gain,
    collaborative_fairness,
    rank_fairness,
)
from equipoise.metrics.communication import Traffic, full_model, overhead, traffic
from equipoise.metrics.definitions import spread
from equipoise.metrics.failure import diverged, guesses
from equipoise.metrics.groups import Parity, Rates, class_counts, parity, rates_of
from equipoise.metrics.performance import Value
from equipoise.metrics.statistics import (
    Paired,
    Probabilities,
    Summary,
    critical_difference,
    friedman,
    holm,
    mean_ranks,
    paired,
    seeds_needed,
    signed_rank,
    summary_over_seeds,
)

__all__ = [
    "MEASURES", "Bounds", "Gain", "Paired", "Parity", "Probabilities", "Rates", "Summary", "Traffic", "Value",
    "bounded_fairness", "class_counts", "classification", "client_range", "collaboration_gain",
    "collaborative_fairness", "critical_difference", "diverged", "friedman", "full_model", "guesses", "holm",
    "mean_ranks", "overhead", "paired", "parity", "rank_fairness", "rates_of", "seeds_needed", "signed_rank",
    "spread", "summary_over_seeds", "traffic",
]  # fmt: skip
