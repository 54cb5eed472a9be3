"""A rule of a user's own."""

from dataclasses import dataclass

from equipoise.methods.fedprox import FedProx


@dataclass(frozen=True)
class Mine(FedProx):
    """FedProx under a different name.

    Differs: nothing.
    """
