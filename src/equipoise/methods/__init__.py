"""One file per paper, each with its entry of the catalogue, or several, at its end; a new file is one more name here.

A file imports ``core``, ``submodels`` and other methods.
"""

from collections.abc import Mapping
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


def _entries(module: str) -> Mapping[str, CatalogueEntry]:
    """The entries of a file by name; a file with one method is called as that, with hyphens for underscores."""
    catalogue = import_module(f"{__name__}.{module}").CATALOGUE
    return {module.replace("_", "-"): catalogue} if isinstance(catalogue, CatalogueEntry) else catalogue


METHODS: dict[str, CatalogueEntry] = {name: entry for module in MODULES for name, entry in _entries(module).items()}
ALIASES = {"fedismplus": "fedism+"}  # for shells and file names in which a plus sign is a nuisance
