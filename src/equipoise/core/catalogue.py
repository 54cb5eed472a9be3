"""An entry of the catalogue of methods."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from equipoise.core.rule import Rule


class CatalogueEntry(NamedTuple):
    """One name of the catalogue: its rules, where they come from, named sets of hyper-parameters.

    ``values`` are the defaults of this name where they are not those of its rules (FedISM is FedISM+ with another radius).
    ``remarks`` say what the docstrings of the rules do not.
    """

    rules: tuple[type[Rule], ...]
    summary: str
    citation: str
    presets: Mapping[str, Mapping[str, Any]] = {}
    values: Mapping[str, Any] = {}
    remarks: str = ""

    @property
    def defaults(self) -> dict[str, Any]:
        """Every hyper-parameter of this name with its default."""
        own = {f.name: f.default for rule in self.rules for f in fields(rule)}
        return {**own, **self.values}
