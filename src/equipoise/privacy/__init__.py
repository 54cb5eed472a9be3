"""What the noise of :class:`~equipoise.methods.dp.DP` is worth: epsilon and delta.

Imports nothing of the library but ``system``.
"""

from equipoise.privacy.accounting import SENSITIVITY, Relation, answers, noise_for, spent

__all__ = ["SENSITIVITY", "Relation", "answers", "noise_for", "spent"]
