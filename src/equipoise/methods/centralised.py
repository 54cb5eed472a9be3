"""Centralised: one model trained on the data of all clients in one place."""

from dataclasses import dataclass

from equipoise.core.rule import CatalogueEntry, Rule
from equipoise.records.meta import Sharing


@dataclass(frozen=True)
class Centralised(Rule):
    r"""Put the data of all clients together and train on their union, which no federation may do: what sharing would reach.

    .. math:: \theta^{t+1} = \theta^t + \Delta, \qquad \Delta \text{ from local training on } \textstyle\bigcup_m D_m

    The usual upper bound of comparisons in federated learning; no paper's own.

    Differs: a round is as many passes over the union as a round of the other methods is over a client's data; with a fixed number of
    steps it is that number times the clients of a round. It is tested on the same groups, and every client predicts with it. Other
    rules in a sum see one client that has all data. Simulation only.
    """

    sees = "nothing"
    sharing = Sharing.DATA


CATALOGUE = CatalogueEntry(
    (Centralised,), "one model trained on all data in one place: an upper bound", "the usual upper bound"
)
