"""Analyses of a finished run: the decomposition of its loss, and the sharpness of its minimum.

Imports ``runs`` and lower layers.
"""

from equipoise.analysis.decomposition import decomposition, trace
from equipoise.analysis.landscape import Landscape, filter_normalised, landscape

__all__ = ["Landscape", "decomposition", "filter_normalised", "landscape", "trace"]
