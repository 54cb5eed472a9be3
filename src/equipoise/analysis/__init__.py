"""What a run can be asked afterwards: how its loss is made up, and how sharp its minimum is.

Imports runs and what is below them.
"""

from equipoise.analysis.decomposition import decomposition, trace
from equipoise.analysis.landscape import Landscape, filter_normalised, landscape

__all__ = ["Landscape", "decomposition", "filter_normalised", "landscape", "trace"]
