"""FedISM and FedISM+: GSAM and SAGA with one search distance, fixed or growing."""

from equipoise.core.rule import CatalogueEntry
from equipoise.methods.gsam import GSAM
from equipoise.methods.saga import PAPER, SAGA

CATALOGUE = {
    "fedism": CatalogueEntry(
        (GSAM, SAGA),
        "GSAM and SAGA with one search distance: equal sharpness across clients",
        "Wu, Kuang, Yan, Yu: From Optimization to Generalization, IJCAI 2024",
        {"released": {"offset": 1e-10}},
        values={"rho": 0.05, "tau": 0.0},
        remarks="A hyper-parameter that both have is set for both. The tables of FedISM+ train every method, this one too, "
        "with ``logit-adjust``: ``logit-adjust+fedism``.",
        printed="FedISM",
    ),
    "fedism+": CatalogueEntry(
        (GSAM, SAGA),
        "GSAM and SAGA with a growing search distance",
        PAPER,
        {"S": {"variant": "S"}, "L": {"variant": "L"}, "released": {"offset": 1e-10}},
        values={"rho": 0.1, "tau": 0.5},
        remarks="Fair Federated Medical Image Classification Against Quality Shift via Inter-Client Progressive State "
        "Matching, Algorithm 1, Eqs. 14 and 18. A hyper-parameter that both have is set for both. T is the number of rounds "
        "planned, so ``fit(40)`` is not ``fit(20)`` twice. Eq. 14 writes a step of SAM; the text and the code take GSAM, and "
        "so do we. The tables of the paper train every method with Adam and with ``logit-adjust``: "
        "``logit-adjust+fedism+``. ``fedismplus`` is another spelling, where a plus sign is a nuisance.",
        printed="FedISM+",
    ),
}
