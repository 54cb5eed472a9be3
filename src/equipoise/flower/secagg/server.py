"""What the server stores of masked sums between rounds, and its requests to the sites."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from equipoise.engines.job import Engine
from equipoise.federation.trial import Trial
from equipoise.flower.codec import UNFIT, Parcel
from equipoise.flower.secagg.masked_round import MaskedRound
from equipoise.flower.secagg.masks import comparison, is_public_key
from equipoise.flower.secagg.memory import UnmaskedSum
from equipoise.flower.secagg.site import own_weights, require_own_weights, require_score
from equipoise.flower.secagg.sums import SumRequest
from equipoise.records.record import Record, without

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
    scores : sites' scores are masked, and their updates sent in the clear, times the weights that follow; else updates are masked.
    number : of the last sum. Every sum has its own, the milliseconds since 1970 or one more than the last. So a server that starts
        again, and stores nothing, uses none twice.
    """

    sites: Sites
    scores: bool = False
    number: int = 0
    introductions: dict[str, SiteIntroduction] = field(default_factory=dict)  # what each site sent of itself
    opened: dict[int, tuple[str, ...]] = field(default_factory=dict)  # whose sums were, by round
    silent: int = 0  # how many sites of the last sum sent zeros

    @property
    def keys(self) -> dict[str, str]:
        """The sites' public keys."""
        return {name: site.key for name, site in self.introductions.items()}

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
        if self.scores:
            require_score(trial.method)
        else:
            require_own_weights(trial.method)
            own_weights(trial, self.sizes)
        if collaborative:
            raise ValueError(
                "secure=true: the accuracy of each site that trains alone is not measured. Set collaborative=False."
            )

    def recorded(self, trial: Trial, record: Record) -> Record:
        """The record of a round, without what the server does not see."""
        training = [counts for kind, counts in self.sites.traffic.items() if kind.startswith("train.")]
        up = [sum(counts.get(m, (0, 0))[1] for counts in training) for m in record["ids"]]
        # each site knows only its own
        hidden = ("weights", *require_score(trial.method)[1].notes) if self.scores else ()
        if self.silent:
            what = "sent zeros, because their training gave no usable numbers: their own logs state which sites and why"
            log.warning("round %d: %d of %d sites %s", record["round"], self.silent, len(up), what)
        shown: Record = {**record, "secure": True, "silent": self.silent, "bytes": {**record["bytes"], "up": up}}
        return without(shown, hidden)

    def meet(self, current: MaskedRound) -> list[int]:
        """The clients of a round whose keys are known; each is asked once, and also names the sums that it helped to unmask."""
        names, before = [site.name for site in self.sites.members], set(self.introductions)
        new = [m for m, name in enumerate(names) if name not in before]
        for m, got in self.sites.ask("query.keys", current.job.t, new, lambda _: Parcel()) if new else ():
            introduction = got if isinstance(got, str) else SiteIntroduction.of(got.fields)
            if isinstance(introduction, SiteIntroduction):
                self.introductions[names[m]] = introduction
            elif m in current.job.ids:
                current.lost[m] = introduction
        for name in set(self.introductions) - before:
            if self._disputed(name):
                del self.introductions[name]
                if (m := names.index(name)) in current.job.ids:
                    current.lost[m] = (
                        "shows a different key than most sites have seen of it. If it lost its state-dir, start a new experiment"
                    )
        if set(self.introductions) != before:
            numbers = sorted(site.number for site in self.introductions.values())
            self.number = max(
                self.number, numbers[(len(numbers) - 1) // 2]
            )  # more than half have seen it, or a higher one
            self._believe(max(2.0, current.job.settings.quorum * len(current.job.ids)))
            log.warning("%s", comparison(self.keys, self.sizes))
        return [m for m in current.job.ids if m not in current.lost]

    def _disputed(self, name: str) -> bool:
        """Whether more than half of the sites have seen a different key of a site: fewer could be lying."""
        seen = [key for site in self.introductions.values() if (key := site.keys.get(name)) is not None]
        return 2 * sum(key != self.introductions[name].key for key in seen) > len(self.introductions)

    def _believe(self, least: float) -> None:
        """Store a sum over at least this number of sites as unmasked if more than half of them report it."""
        said = {name: site.opened for name, site in self.introductions.items() if site.opened is not None}
        for opened in said.values():
            if len(opened.sites) >= least and 2 * sum(said.get(n) == opened for n in opened.sites) > len(opened.sites):
                self.opened.setdefault(opened.round, opened.sites)

    def request_sum(self, t: int, training: str, ids: Sequence[int]) -> tuple[Parcel, SumRequest]:
        """The message that asks for a new sum, with a number that was never used, and its content."""
        self.number = max(self.number + 1, time.time_ns() // 10**6)
        sites, sizes = sorted(self.sites.members[m].name for m in ids), {name: self.sizes[name] for name in self.keys}
        fields = {
            "number": self.number,
            "t": t,
            "training": training,
            "scores": self.scores,
            "sites": sites,
            "sizes": sizes,
            "keys": self.keys,
        }
        return Parcel(fields), SumRequest.read(fields, self.sites.exchange.experiment)


@dataclass(frozen=True)
class SiteIntroduction:
    """What a site sends of itself: its public key, the number of its last sum, the last sum it helped to unmask, and the keys it has seen."""

    key: str
    number: int
    opened: UnmaskedSum | None
    keys: dict[str, str]

    @staticmethod
    def of(fields: Mapping[str, Any]) -> SiteIntroduction | str:
        """From its answer, or why it cannot be used: nothing that a single site sends may keep the others from a sum."""
        try:
            seen = {str(name): str(key) for name, key in fields["keys"].items()}
            introduction = SiteIntroduction(
                str(fields["key"]), int(fields["number"]), UnmaskedSum.read(fields["opened"]), seen
            )
        except UNFIT:
            return "sent an unusable answer: its key, or the sum it has unmasked, is missing"
        if not re.fullmatch("[0-9a-f]{64}", introduction.key) or not is_public_key(introduction.key):
            return "sent an unusable answer: its key is not a public key"
        return introduction
