"""What the noise of :class:`~equipoise.methods.dp.DP` is worth: epsilon and delta.

Imports nothing of the library.
"""

from equipoise.privacy.accounting import Relation, answers, noise_for, spent

__all__ = ["Relation", "answers", "noise_for", "spent"]
