"""What a run sends: bytes per client and round, and how much more than FedAvg that is."""

import math
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
    n = sum(len(one["down"]) for one in counted)
    if not n:
        raise ValueError("traffic needs at least one round with its bytes; found none.")
    down, up = (sum(sum(one[way]) for one in counted) / n for way in ("down", "up"))
    return Traffic(down, up)


def traffic_by_client(records: Sequence[Mapping[str, Any]], n: int) -> list[Traffic]:
    """What each client receives and sends in a round, on average over the rounds it answered in; NaN where in none.

    The bytes show it if a better client gets a larger part of the model.

    Parameters
    ----------
    records : of rounds, with ``"ids"`` and ``"bytes"``.
    n : clients of the federation.

    Raises
    ------
    ValueError : a round has bytes, but not one number per client that answered, or one of a client beyond ``n``.
    """
    found: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    for record in records:
        ids, sent = record.get("ids", ()), record.get("bytes")
        if sent is None:
            continue
        if not len(ids) == len(sent["down"]) == len(sent["up"]) or max(ids, default=-1) >= n:
            raise ValueError(
                f"round {record.get('round')}: expected bytes down and up for each of the clients in ids, below {n}; "
                f"found {len(sent['down'])} and {len(sent['up'])} for ids {list(ids)[:20]}."
            )
        for m, down, up in zip(ids, sent["down"], sent["up"], strict=True):
            found[m].append((down, up))
    return [
        Traffic(*(sum(way) / len(way) for way in zip(*of_client, strict=True)))
        if of_client
        else Traffic(math.nan, math.nan)
        for of_client in found
    ]


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
