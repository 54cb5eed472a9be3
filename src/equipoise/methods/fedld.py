"""FedLD: margin control and principal gradients."""

from __future__ import annotations

from equipoise.core.catalogue import CatalogueEntry
from equipoise.methods.margin import PAPER, Margin
from equipoise.methods.margin import RELEASED as RELEASED_MARGIN
from equipoise.methods.principal import RELEASED as RELEASED_PRINCIPAL
from equipoise.methods.principal import Principal

CATALOGUE = {
    "fedld": CatalogueEntry(
        (Margin, Principal),
        "margin control and principal gradients: less loss to label skew",
        PAPER,
        {"released": {**RELEASED_MARGIN, **RELEASED_PRINCIPAL}},
    ),
}
