"""One file per paper, each with its entries of the catalogue at its end; a new file is one more name here.

A file imports ``core``, ``submodels`` and other methods.
"""

from importlib import import_module

from equipoise.core.rule import CatalogueEntry

MODULES = (
    # clients that differ
    "fedavg", "fedprox", "scaffold", "moon", "feddyn", "fedproc", "fedproto", "fednova", "fedavgm", "fedopt", "ditto",
    # fairness to clients, by weights
    "afl", "qffl", "term", "propfair", "aaggff", "gifair", "eagle",
    # to groups of people
    "fairfed", "reweighing", "fairgrad", "fairbatch", "fedfb", "fedminmax", "fedgft", "ffalm", "thresholds", "logofair",
    # to clients, by contributions and directions
    "fedce", "fedga", "fedfv", "fedmgda", "fedmdfg", "fedlf", "fedpw",
    # flat minima, and data of unequal quality
    "sam", "gsam", "logit_adjust", "saga", "fedism",
    # domains and features
    "fphl", "fael", "fael_exact", "fedheal", "margin", "principal", "fedld", "fedgh", "fedbn", "fedpac",
    # rewards, and what they are compared with
    "fedsac", "fedrac", "cgsv", "fedave", "cffl", "iafl", "standalone", "centralised", "finetune",
    # privacy, and clients that lie
    "dp", "coordinatewise", "krum", "geometric_median", "clipping", "centred_clipping",
)  # fmt: skip
METHODS: dict[str, CatalogueEntry] = {
    name: entry for module in MODULES for name, entry in import_module(f"{__name__}.{module}").CATALOGUE.items()
}
ALIASES = {"fedismplus": "fedism+"}  # for shells and file names in which a plus sign is a nuisance
