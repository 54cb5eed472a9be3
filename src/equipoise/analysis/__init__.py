"""Analyses of a finished run: the decomposition of its loss, the sharpness of its minimum, and the states of its clients.

Imports ``runs`` and lower layers.
"""

from equipoise.analysis.decomposition import decomposition, trace
from equipoise.analysis.landscape import Landscape, filter_normalised, landscape
from equipoise.analysis.states import States, states

__all__ = ["Landscape", "States", "decomposition", "filter_normalised", "landscape", "states", "trace"]
