"""What the server stores of masked sums between rounds, and its requests to the sites."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.engines.job import Engine
from equipoise.federation.trial import Trial
from equipoise.flower.codec import Parcel
from equipoise.flower.secagg.masked_round import MaskedRound
from equipoise.flower.secagg.masks import comparison, is_public_key
from equipoise.flower.secagg.site import own_weights, require_own_weights
from equipoise.flower.secagg.sums import SumRequest
from equipoise.records.record import Record
from equipoise.system.files import write_atomically
from equipoise.system.seals import open_json, sealed_json

if TYPE_CHECKING:
    from equipoise.flower.server.sites import Sites

log = logging.getLogger(__name__)


@dataclass
class MaskedSites:
    """What the server stores of masked sums from one round to the next.

    The server never receives a model, an update or a number of a site, only masked vectors, of which the sum can be read. Its
    engine answers a round with the weighted mean of all instead of each client's update: a step that is a weighted sum is the same.

    Parameters
    ----------
    sites : that send vectors.
    path : of the file that outlives the server's process, None for none.
    number : of the last sum. Every sum has its own, the milliseconds since 1970 or one more than the last.
    keys : the public key of each site, as it was first sent.
    opened : the round of the last sum that was unmasked, and its sites.
    """

    sites: Sites
    path: Path | None = None
    number: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    opened: tuple[int, Sequence[str]] = -1, ()

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            stored = open_json(self.path.read_bytes().decode())
            self.number, self.keys, self.opened = stored["number"], stored["keys"], tuple(stored["opened"])

    def store(self) -> None:
        """Write the file."""
        if self.path is not None:
            stored = {"number": self.number, "keys": self.keys, "opened": list(self.opened)}
            write_atomically(self.path, sealed_json(stored))

    @property
    def sizes(self) -> dict[str, int]:
        """The samples of all sites of the experiment."""
        return {site.name: site.size for site in self.sites.members}

    def engine(self, trial: Trial) -> Engine:
        """The engine of one round, instead of the sites."""
        return lambda job: MaskedRound(self, job, trial).answers()

    def check(self, trial: Trial, collaborative: bool) -> None:
        """Refuse what needs more than sums, before any message.

        Raises
        ------
        MethodError, ValueError : naming it.
        """
        require_own_weights(trial.method)
        own_weights(trial, self.sizes)
        if collaborative:
            raise ValueError(
                "secure=true: the accuracy of each site that trains alone is not measured. Set collaborative=False."
            )

    def recorded(self, record: Record) -> Record:
        """The record of a round, without what the server does not see."""
        training = [counts for kind, counts in self.sites.traffic.items() if kind.startswith("train.")]
        up = [sum(counts.get(m, (0, 0))[1] for counts in training) for m in record["ids"]]
        return {**record, "secure": True, "bytes": {**record["bytes"], "up": up}}

    def meet(self, current: MaskedRound) -> list[int]:
        """The clients of a round whose keys are known; each is asked once."""
        names = [site.name for site in self.sites.members]
        new = [m for m, name in enumerate(names) if name not in self.keys]
        for m, got in self.sites.ask("query.keys", current.job.t, new, lambda _: Parcel()) if new else ():
            key = "" if isinstance(got, str) else str(got.fields.get("key"))
            if re.fullmatch("[0-9a-f]{64}", key) and is_public_key(key):
                self.keys[names[m]] = key
            elif m in current.job.ids:
                current.lost[m] = (
                    got if isinstance(got, str) else "sent an unusable answer: its key is not a public key"
                )
        if new:
            self.store()
            log.warning("%s", comparison(self.keys, self.sizes))
        return [m for m in current.job.ids if m not in current.lost]

    def request_sum(self, t: int, training: str, ids: Sequence[int]) -> tuple[Parcel, SumRequest]:
        """The message that asks for a new sum, with a number that was never used, and its content."""
        self.number = max(self.number + 1, time.time_ns() // 10**6)
        self.store()
        sites, sizes = sorted(self.sites.members[m].name for m in ids), {name: self.sizes[name] for name in self.keys}
        fields = {
            "number": self.number,
            "t": t,
            "training": training,
            "sites": sites,
            "sizes": sizes,
            "keys": self.keys,
        }
        return Parcel(fields), SumRequest.read(fields, self.sites.exchange.experiment)
