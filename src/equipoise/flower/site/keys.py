"""The keys of a site's node config that Equipoise reads, and what each may be: one check for a site that runs and for what is tried beforehand."""

from collections.abc import Mapping
from typing import Any, Final

from equipoise.system.logs import FORMS
from equipoise.system.ranges import Options, Range, check
from equipoise.system.suggestions import near

KEYS: Final[Mapping[str, Range | Options]] = {
    "threads": Range(0, whole=True),
    "least-group": Range(1, whole=True),
    "least-count": Range(1, whole=True),
    "max-steps": Range(1),
    "max-epsilon": Range(0, above=True, below=True),
    "delta": Range(0, 1, above=True, below=True),
    "secure": Options((True, False)),
    "least-sites": Range(2, whole=True),
    "most-weight": Range(0, 1),
    "log": Options(FORMS),
}


def faults(node_config: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with the keys of a node config that Equipoise reads, by key: a value out of its range, or a slip in a name."""
    wrong: dict[str, str] = {}
    long = [key for key in KEYS if len(key) > len("secure")]  # a short word is easily like a key of the user's own
    for key, value in node_config.items():
        if key not in KEYS and (meant := near(key, long, cutoff=0.85)):
            wrong[key] = f"unknown.{meant} A key of your own needs a name less like it."
        elif key in KEYS:
            try:
                check(key, value, KEYS[key])
            except ValueError as error:
                wrong[key] = str(error)
    return wrong
