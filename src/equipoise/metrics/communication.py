"""What a run sends: bytes per client and round, and how much more than FedAvg that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Traffic(NamedTuple):
    """Mean bytes of one client in one round: ``down`` to the client, ``up`` from it."""

    down: float
    up: float

    @property
    def total(self) -> float:
        """Both ways."""
        return self.down + self.up


def traffic(records: Sequence[Mapping[str, Any]]) -> Traffic:
    """What a client receives and sends in a round, on average over the clients and rounds of a run.

    Parameters
    ----------
    records : of rounds, as in ``History.records``: what a client need not send (private parameters) is not counted, and
        messages and reports of the method are.

    Raises
    ------
    ValueError : no client answered in any round.
    """
    counted = [record["bytes"] for record in records if "bytes" in record]
    n = sum(len(one["down"]) for one in counted)
    if not n:
        raise ValueError("traffic needs at least one round with its bytes; found none.")
    down, up = (sum(sum(one[way]) for one in counted) / n for way in ("down", "up"))
    return Traffic(down, up)


def overhead(method: float, fedavg: float) -> float:
    """How many times the bytes of FedAvg a method sends, both ways: 1 is as much.

    Wu et al., arXiv 2503.09587, Table V: FedISM+ sends 4 bytes more than FedAvg's 93,516,096.
    """
    if not fedavg > 0:
        raise ValueError(f"overhead: the bytes of FedAvg must be > 0; found {fedavg:g}.")
    return method / fedavg
