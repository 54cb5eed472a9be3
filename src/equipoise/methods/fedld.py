"""FedLD: margin control and principal gradients."""

from equipoise.core.rule import CatalogueEntry
from equipoise.methods.margin import PAPER, RELEASED as RELEASED_MARGIN, Margin
from equipoise.methods.principal import RELEASED as RELEASED_PRINCIPAL, WHOLE, Principal

CATALOGUE = CatalogueEntry(
    (Margin, Principal),
    "margin control and principal gradients: less loss to label skew",
    PAPER,
    {"paper": WHOLE, "released": {**RELEASED_MARGIN, **RELEASED_PRINCIPAL}},
    remarks="``paper`` takes the axes of the whole update, as the equations are printed. "
    "``released`` is the loss and the aggregation of the authors' code, which also trains in evaluation mode, "
    "warms the learning rate up from 0, and runs its aggregation over running statistics and counters; none of this is "
    "in the paper, nor here.",
    printed="FedLD",
)
