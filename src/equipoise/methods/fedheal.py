"""FedHEAL: FPHL and FAEL, or its exact form."""

from equipoise.core.rule import CatalogueEntry
from equipoise.methods.fael import FAEL, RELEASED as RELEASED_FAEL
from equipoise.methods.fael_exact import FAELExact
from equipoise.methods.fphl import FPHL, PAPER, RELEASED as RELEASED_FPHL

CATALOGUE = {
    "fedheal": CatalogueEntry(
        (FPHL, FAEL),
        "FPHL and FAEL: equal accuracy across domains",
        PAPER,
        {"released": {**RELEASED_FPHL, **RELEASED_FAEL}, "office": {"tau": 0.4}},
        remarks="Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity, Algorithm 1: FAEL on "
        "what FPHL kept. ``released`` is what the authors' code computes; ``office`` has the paper's value for "
        "Office-Caltech. [Where paper and code differ](decisions.md) has one row per difference.",
        printed="FedHEAL",
    ),
    "fedheal-exact": CatalogueEntry(
        (FPHL, FAELExact), "FPHL and the exact solution of FedHEAL's Eq. 10", PAPER, printed="FedHEAL (exact)"
    ),
}
