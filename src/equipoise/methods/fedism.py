"""FedISM and FedISM+: GSAM and SAGA with one search distance, fixed or growing."""

from __future__ import annotations

from equipoise.core.catalogue import CatalogueEntry
from equipoise.methods.gsam import GSAM
from equipoise.methods.saga import PAPER, SAGA

CATALOGUE = {
    "fedism": CatalogueEntry(
        (GSAM, SAGA),
        "GSAM and SAGA with one search distance: equal sharpness across clients",
        "Wu, Kuang, Yan, Yu: From Optimization to Generalization, IJCAI 2024",
        {"released": {"offset": 1e-10}},
        values={"rho": 0.05, "tau": 0.0},
    ),
    "fedism+": CatalogueEntry(
        (GSAM, SAGA),
        "GSAM and SAGA with a growing search distance",
        PAPER,
        {"S": {"variant": "S"}, "L": {"variant": "L"}, "released": {"offset": 1e-10}},
        values={"rho": 0.1, "tau": 0.5},
    ),
}
