"""One file per paper, each with its entries of the catalogue at its end; a new file is one more name here.

A file imports ``core``, ``submodels`` and other methods.
"""

from importlib import import_module

from equipoise.core.catalogue import CatalogueEntry

MODULES = (
    "fedavg",
    "fedprox",
    "scaffold",
    "moon",
    "feddyn",
    "fedproc",
    "fedproto",
    "fednova",
    "fedavgm",
    "fedopt",
    "ditto",
    "afl",
    "qffl",
    "term",
    "propfair",
    "aaggff",
    "gifair",
    "eagle",
    "fairfed",
    "reweighing",
    "fairgrad",
    "fairbatch",
    "fedfb",
    "fedminmax",
    "fedgft",
    "ffalm",
    "thresholds",
    "fedce",
    "fedga",
    "fedfv",
    "fedmgda",
    "fedmdfg",
    "fedlf",
    "fedpw",
    "sam",
    "gsam",
    "logit_adjust",
    "saga",
    "fedism",
    "fphl",
    "fael",
    "fael_exact",
    "fedheal",
    "margin",
    "principal",
    "fedld",
    "fedgh",
    "fedbn",
    "fedpac",
    "fedsac",
    "fedrac",
    "cgsv",
    "fedave",
    "cffl",
    "iafl",
    "standalone",
    "centralised",
    "finetune",
    "dp",
    "coordinatewise",
    "krum",
    "geometric_median",
    "clipping",
    "centred_clipping",
)
METHODS: dict[str, CatalogueEntry] = {
    name: entry for module in MODULES for name, entry in import_module(f"{__name__}.{module}").CATALOGUE.items()
}
ALIASES = {"fedismplus": "fedism+"}  # for shells and file names in which a plus sign is a nuisance
