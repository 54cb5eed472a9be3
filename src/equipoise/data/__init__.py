"""The clients' data: tensors in memory, or any data set read as it is needed.

Imports ``system`` only.
"""

from equipoise.data.batch import Batch
from equipoise.data.samples import Samples, read

__all__ = ["Batch", "Samples", "read"]
