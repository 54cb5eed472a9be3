"""What a run sends: bytes per client and round, and how much more than FedAvg that is."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equipoise.metrics.performance import UNDEFINED, Value
from equipoise.system.ranges import check_number


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
    n = sum(len(sent["down"]) for sent in counted)
    if not n:
        raise ValueError("traffic needs at least one round with its bytes; found none.")
    down, up = (sum(sum(sent[way]) for sent in counted) / n for way in ("down", "up"))
    return Traffic(down, up)


def full_model(records: Sequence[Mapping[str, Any]]) -> Value:
    """Bytes of the whole model, which FedAvg sends in each direction; undefined if no round recorded it."""
    sizes = [record["bytes"]["full"] for record in records if record.get("bytes", {}).get("full")]
    return Value(float(sizes[-1]), True) if sizes else UNDEFINED


def overhead(method: float, fedavg: float) -> float:
    """How many times the bytes of FedAvg a method sends, both ways: 1 is as much.

    Wu et al., arXiv 2503.09587, Table V: FedISM+ sends 4 bytes more than FedAvg's 93,516,096.
    """
    check_number("overhead: the bytes of FedAvg", fedavg, 0, above=True)
    return method / fedavg
