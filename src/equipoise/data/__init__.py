"""The clients' data: tensors in memory, or any data set read as it is needed.

Imports ``system`` only.
"""

from equipoise.data.samples import Samples, Stream, read

__all__ = ["Samples", "Stream", "read"]
