"""What the noise of :class:`~equipoise.methods.dp.DP` is worth: epsilon and delta.

Imports nothing of the library but ``system``.
"""
