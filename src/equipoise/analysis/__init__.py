"""Analyses of a finished run: the decomposition of its loss, the sharpness of its minimum, and the states of its clients.

Imports ``runs`` and lower layers.
"""

from equipoise.analysis.decomposition import decomposition, trace
from equipoise.analysis.landscape import Landscape, States, filter_normalised, landscape, states

__all__ = ["Landscape", "States", "decomposition", "filter_normalised", "landscape", "states", "trace"]
