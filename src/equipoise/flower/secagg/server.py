"""The server's part in masked rounds: an engine that is sent masked vectors, and answers with their mean in every client's place."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.core.rule import State
from equipoise.engines.job import Answer, Engine, Job
from equipoise.federation.trial import Trial
from equipoise.flower.codec import UNFIT, Parcel, hiding, unpacked
from equipoise.flower.secagg import sums
from equipoise.flower.secagg.site import no_reports, own_weights, require_own_weights, require_score
from equipoise.flower.secagg.sums import MaskError, Opened, Sum
from equipoise.flower.site.store import Receipt
from equipoise.records.record import Record, without
from equipoise.system.tree import tree_map

if TYPE_CHECKING:
    from equipoise.flower.server.sites import Sites

log = logging.getLogger(__name__)


class ClosedError(RuntimeError):
    """A sum that cannot be unmasked, so that the round is lost."""


@dataclass
class MaskedSites:
    """What the server remembers of masked sums from one round to the next.

    The server is never sent a model, an update or a number of a site, but masked vectors, of which only the sum can be read. Its
    engine answers a round with the weighted mean of all in every client's place: a step that is a weighted sum comes out the same.

    Parameters
    ----------
    sites : who is asked.
    scores : sites' scores are masked, and their updates sent in the clear, times the weights that follow; else updates are masked.
    number : of the last sum. Every sum has its own, the milliseconds since 1970 or one more than the last: so a server that starts
        again, which remembers nothing, uses none twice.
    """

    sites: Sites
    scores: bool = False
    number: int = 0
    known: dict[str, Introduction] = field(default_factory=dict)  # what the sites say of themselves
    opened: dict[int, tuple[str, ...]] = field(default_factory=dict)  # whose sums were, by round
    silent: int = 0  # how many sites of the last sum sent zeros

    @property
    def keys(self) -> dict[str, str]:
        """The sites' public keys."""
        return {name: site.key for name, site in self.known.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The samples of all sites of the experiment."""
        return {site.name: site.size for site in self.sites.known}

    def engine(self, trial: Trial) -> Engine:
        """The engine of one round, in place of the sites."""
        return lambda job: answers(Round(self, job, trial))

    def check(self, trial: Trial, collaborative: bool) -> None:
        """Refuse what cannot be done with sums alone, before anything is asked.

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
            raise ValueError("secure=true: what each site reaches alone is not found out. Set collaborative=False.")

    def recorded(self, trial: Trial, record: Record) -> Record:
        """The record of a round with what the server knows of it, and without what it does not."""
        training = [counts for kind, counts in self.sites.traffic.items() if kind.startswith("train.")]
        up = [sum(counts.get(m, (0, 0))[1] for counts in training) for m in record["ids"]]
        # each site knows only its own
        hidden = ("weights", *require_score(trial.method)[1].notes) if self.scores else ()
        if self.silent:
            what = "sent zeros, because training gave no numbers that can be used: their own logs say which and why"
            log.warning("round %d: %d of %d sites %s", record["round"], self.silent, len(up), what)
        shown: Record = {**record, "secure": True, "silent": self.silent, "bytes": {**record["bytes"], "up": up}}
        return without(shown, hidden)

    def introduced(self, this: Round) -> list[int]:
        """The clients of a round whose keys are known; each is asked once, also for the sums that it helped to unmask."""
        names, before = [site.name for site in self.sites.known], set(self.known)
        new = [m for m, name in enumerate(names) if name not in before]
        for m, got in self.sites.ask("query.keys", this.job.t, new, lambda _: Parcel()) if new else ():
            introduction = got if isinstance(got, str) else Introduction.of(got.fields)
            if isinstance(introduction, Introduction):
                self.known[names[m]] = introduction
            elif m in this.job.ids:
                this.lost[m] = introduction
        for name in set(self.known) - before:
            if self._disputed(name):
                del self.known[name]
                if (m := names.index(name)) in this.job.ids:
                    this.lost[m] = (
                        "shows another key than most sites have seen of it. If it lost its state-dir, start a new experiment"
                    )
        if set(self.known) != before:
            numbers = sorted(site.number for site in self.known.values())
            self.number = max(
                self.number, numbers[(len(numbers) - 1) // 2]
            )  # more than half have seen it, or a higher one
            self._believe(max(2.0, this.job.settings.quorum * len(this.job.ids)))
            log.warning("%s", sums.comparison(self.keys, self.sizes))
        return [m for m in this.job.ids if m not in this.lost]

    def _disputed(self, name: str) -> bool:
        """Whether more than half of the sites have seen another key of a site: fewer could be lying."""
        seen = [key for site in self.known.values() if (key := site.keys.get(name)) is not None]
        return 2 * sum(key != self.known[name].key for key in seen) > len(self.known)

    def _believe(self, least: float) -> None:
        """Take a sum over at least so many sites to have been unmasked if more than half of them say so."""
        said = {name: site.opened for name, site in self.known.items() if site.opened is not None}
        for opened in said.values():
            if len(opened.sites) >= least and 2 * sum(said.get(n) == opened for n in opened.sites) > len(opened.sites):
                self.opened.setdefault(opened.round, opened.sites)

    def next(self, t: int, training: str, ids: Sequence[int]) -> tuple[Parcel, Sum]:
        """The message for a new sum, with a number that was never used, and what it says."""
        self.number = max(self.number + 1, time.time_ns() // 10**6)
        sites, sizes = sorted(self.sites.known[m].name for m in ids), {name: self.sizes[name] for name in self.keys}
        fields = {
            "number": self.number,
            "t": t,
            "training": training,
            "scores": self.scores,
            "sites": sites,
            "sizes": sizes,
            "keys": self.keys,
        }
        return Parcel(fields), Sum.read(fields, self.sites.exchange.experiment)


@dataclass(frozen=True)
class Introduction:
    """What a site says of itself: its public key, the number of its last sum, the last sum it helped to unmask, and the keys it has seen."""

    key: str
    number: int
    opened: Opened | None
    keys: dict[str, str]

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Introduction | str:
        """From its answer, or why it cannot be one: nothing that one site says may keep the others from a sum."""
        try:
            seen = {str(name): str(key) for name, key in fields["keys"].items()}
            introduction = Introduction(str(fields["key"]), int(fields["number"]), Opened.read(fields["opened"]), seen)
        except UNFIT:
            return "sent what cannot be used: it does not say its key and what it has unmasked"
        if not re.fullmatch("[0-9a-f]{64}", introduction.key) or not sums.is_public_key(introduction.key):
            return "sent what cannot be used: its key is not a public key"
        return introduction


@dataclass
class Round:
    """One round of masked sums: who was lost and why, and the receipts of those who trained."""

    server: MaskedSites
    job: Job
    trial: Trial
    lost: dict[int, str] = field(default_factory=dict)
    shares: dict[tuple[str, str], str] = field(default_factory=dict)  # of whose seed, for whom: encrypted
    hashes: dict[str, Mapping[str, str]] = field(default_factory=dict)  # of the seed of a site, and of its shares
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def mean(self, ids: list[int]) -> tuple[list[int], Tensor]:
        """Who counts, the weighted mean of their updates, without private coordinates, and the mean of their reports.

        Raises
        ------
        ClosedError, MaskError : there is none.
        """
        training, ids = self._trained(ids)
        ids, total = self.total(training, ids)
        if self.server.scores:
            return ids, self._weighted(training, ids, total)
        known = [self.server.sites.known[m] for m in ids]
        weights = own_weights(self.trial, {site.name: site.size for site in known})
        self.server.silent = len(ids) - round(float(total[-1]))
        if self.server.silent == len(ids):
            raise ClosedError(
                "sent zeros, as all others: no training gave numbers that can be used. Their own logs say why"
            )
        update = total[: self.n_public] / (sum(weights.values()) / sums.unit(weights))
        reports = total[self.n_public : -1] / len(ids)
        return ids, torch.cat([update, reports])

    def _weighted(self, training: str, ids: Sequence[int], sums_of_scores: Tensor) -> Tensor:
        """The sum of the sites' updates, each of which comes times its weight.

        Raises
        ------
        ClosedError : one is missing, and with it a weight that nobody else knows.
        """
        parcel = Parcel({"t": self.job.t, "training": training, "sums": sums_of_scores.tolist()})
        updates, missing = dict[int, Tensor](), list[str]()
        for m, got in self.server.sites.ask("train.weighted", self.job.t, ids, lambda _: parcel):
            x = "" if isinstance(got, str) else got.tensors.get("update")
            if isinstance(x, Tensor) and x.shape == (self.n_public,) and bool(x.isfinite().all()):
                updates[m] = x.double()
            else:
                why = got if isinstance(got, str) else "sent what cannot be used"
                missing.append(f"{self.server.sites.known[m].name} {why}")
        if missing:
            raise ClosedError(
                f"gave its score to a sum, of which not all updates came: {'; '.join(missing)}. Run again when they are back"
            )
        return torch.stack([updates[m] for m in ids]).sum(0)

    def _trained(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """Let sites train, all by the same message: its transcript, and those who did."""
        sites = self.server.sites
        parcel = sites.masked_training(self.job)
        training = sums.transcript({**parcel.fields, "experiment": sites.exchange.experiment}, parcel.tensors)
        for m, got in sites.ask("train.masked", self.job.t, ids, lambda _: parcel):
            if isinstance(got, str):
                self.lost[m] = got
            elif (receipt := Receipt.after(self.job.t, got.fields)) is None:
                self.lost[m] = "sent what cannot be used: there is no receipt of its state"
            else:
                self.receipts[m] = receipt
        return training, [m for m in ids if m in self.receipts]

    @property
    def n_public(self) -> int:
        """Coordinates of the model that are not private."""
        return len(self.job.received[0]) - (0 if self.job.private is None else int(self.job.private.sum()))

    @cached_property
    def no_reports(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """What is summed besides the updates, see :func:`~equipoise.flower.secagg.site.no_reports`."""
        return no_reports(self.trial)

    def reports(self, mean: Tensor) -> list[State]:
        """What each client's reports would be if all had sent the same, from their ``mean``: of a rule that sums them it has the same result."""
        if self.server.scores:
            return [
                {} if r.declared.power is None else {r.declared.power.report: self.job.received.new_ones(())}
                for r in self.job.rules
            ]
        zeros, cut = self.no_reports
        parts = mean.split([x.numel() for x in zeros.values()]) if zeros else ()
        tensors = {name: part.view_as(x).to(x) for (name, x), part in zip(zeros.items(), parts, strict=True)}
        hide = hiding(self.job.private, self.trial.model.n_params)
        return unpacked(Parcel({"cut": cut}, tensors), "reports", len(self.job.rules), hide)

    def total(self, training: str, ids: list[int]) -> tuple[list[int], Tensor]:
        """The sum [n] over the sites that answer, of what they trained; if some drop out, another sum without them.

        Raises
        ------
        ClosedError : too few are left, or too many have dropped out between their masked vectors and their seeds.
        """
        known, job = self.server.sites.known, self.job
        if before := self.server.opened.get(job.t):  # when the round was done the last time
            others = [m for m in ids if known[m].name not in before]
            self.lost |= dict.fromkeys(others, "was not there when a sum of this round was unmasked")
            ids = [m for m in ids if m not in others]
        n = 2 if self.server.scores else self.n_public + sum(x.numel() for x in self.no_reports[0].values()) + 1
        least = max(2.0, job.settings.quorum * len(job.ids))
        while len(ids) >= least:
            if len(ids) == 2:
                log.warning("a masked sum over two sites hides neither from the other: each can subtract itself")
            parcel, asked = self.server.next(job.t, training, ids)
            vectors = self._masked_vectors(parcel, asked, ids, n)
            ids = [m for m in ids if known[m].name in vectors]
            if len(ids) == len(asked.sites):
                try:
                    return ids, sums.total(vectors, self._seeds(asked, ids))
                except MaskError as error:
                    raise ClosedError(f"was left out, because nothing can be read of the sum: {error}") from None
        raise ClosedError(f"was left out, because {len(ids)} sites are left for a masked sum, and it takes {least:g}")

    def _masked_vectors(self, parcel: Parcel, asked: Sum, ids: Sequence[int], n: int) -> dict[str, Tensor]:
        """What the sites send for a sum, by name."""
        sites, vectors = self.server.sites, {}
        for m, got in sites.ask("train.sum", self.job.t, ids, lambda _: parcel):
            name = sites.known[m].name
            if isinstance(got, str):
                self.lost[m] = f"sent a masked vector before; then it {got}" if name in self.hashes else got
            elif (y := got.tensors.get("masked")) is None or y.dtype != torch.int64 or y.shape != (n + sums.ZEROS,):
                self.lost[m] = "sent what cannot be used: there is no masked vector of the right size"
            elif not self._keep_shares(asked, name, got.fields):
                self.lost[m] = "sent what cannot be used: there are no shares of its seed"
            else:
                vectors[name] = y
        return vectors

    def _keep_shares(self, asked: Sum, name: str, fields: Mapping[str, Any]) -> bool:
        """Keep the encrypted shares of a site's seed; False if it did not send them."""
        shares, hashes = fields.get("shares"), fields.get("hashes")
        others = {*asked.sites} - {name}
        if not isinstance(shares, dict) or shares.keys() != others:
            return False
        if not isinstance(hashes, dict) or hashes.keys() != {*asked.sites}:
            return False
        self.shares |= {(name, other): str(text) for other, text in shares.items()}
        self.hashes[name] = hashes
        return True

    def _seeds(self, asked: Sum, ids: Sequence[int]) -> dict[str, bytes]:
        """The seeds of the sites' own masks, which unmask the sum; those of sites that have vanished from the shares of the others.

        Raises
        ------
        ClosedError : too few sites are there. None of the others can be left out: coming late, its seed would unmask what it has sent.
        """
        sites, seeds = self.server.sites, dict[str, bytes]()
        names = {m: sites.known[m].name for m in ids}
        self.server.opened[self.job.t] = asked.sites
        missing, end = dict.fromkeys(ids, ""), time.monotonic() + self.server.sites.exchange.deadline
        parcel = Parcel({"told": asked.told})
        while missing:
            for m, got in list(sites.ask("query.unmask", self.job.t, missing, lambda _: parcel)):
                seed = None if isinstance(got, str) else _bytes(got.fields.get("seed"))
                if seed is not None and sums.sha256(seed) == self.hashes[names[m]][names[m]]:
                    seeds[names[m]] = seed
                    del missing[m]
                else:
                    missing[m] = got if isinstance(got, str) else "sent no seed, or another one than it has used"
            if missing:
                self._recover(asked, [names[m] for m in missing], [m for m in ids if m not in missing], seeds)
                missing = {m: why for m, why in missing.items() if names[m] not in seeds}
            if missing and (
                time.monotonic() > end or all(why.startswith(("refuses", "sent")) for why in missing.values())
            ):
                gone = "; ".join(f"{names[m]} {why}" for m, why in missing.items())
                raise ClosedError(
                    f"gave its part of a sum that was never unmasked: {gone}. It takes {sums.threshold(len(ids))} of its {len(ids)} "
                    "sites. Run again when they are back; the round is done again with the same sites"
                )
            time.sleep(sites.exchange.poll if missing else 0)
        return seeds

    def _recover(self, asked: Sum, gone: Sequence[str], here: Sequence[int], seeds: dict[str, bytes]) -> None:
        """Add the seeds of sites that have vanished to ``seeds``, if enough of the others are there to put them together."""
        sites, least = self.server.sites, sums.threshold(len(asked.sites))
        if len(here) < least:
            return

        def make(m: int) -> Parcel:
            hidden = {name: self.shares[name, sites.known[m].name] for name in gone}
            return Parcel({"told": asked.told, "shares": hidden})

        given: dict[str, list[bytes]] = {name: [] for name in gone}
        for m, got in sites.ask("query.recover", self.job.t, here, make):
            shares = None if isinstance(got, str) else got.fields.get("shares")
            if not isinstance(shares, dict):
                continue
            for name in gone:
                share = _bytes(shares.get(name))
                if share is not None and sums.sha256(share) == self.hashes[name][sites.known[m].name]:
                    given[name].append(share)
        for name, shares in given.items():
            if len(shares) >= least:
                try:
                    seeds[name] = sums.recovered(shares[:least], self.hashes[name][name])
                    log.warning("%s vanished after its part of a sum, which the others unmasked without it", name)
                except MaskError as error:
                    log.warning("%s %s", name, error)


def _bytes(text: Any) -> bytes | None:
    """Of hexadecimal text; None if it is not."""
    return bytes.fromhex(text) if isinstance(text, str) and re.fullmatch("([0-9a-f]{2})+", text) else None


def answers(this: Round) -> Iterator[Answer]:
    """Let the sites of the job train: the weighted mean of their updates in every client's place."""
    job = this.job
    rows = {m: row for row, m in enumerate(job.ids)}
    ids: list[int] = []
    try:
        ids, mean = this.mean(this.server.introduced(this))
    except (ClosedError, MaskError) as error:
        this.lost |= {m: str(error) for m in job.ids if m not in this.lost}
    for m, why in this.lost.items():
        yield Answer((rows[m],), torch.empty(0), [], [], why)
    for m in ids:
        received = job.received[rows[m]]
        change = mean[: this.n_public].to(received)
        if job.private is not None:
            change = torch.zeros_like(received).masked_scatter(~job.private, change)
        reports = tree_map(lambda x: x[None], this.reports(mean[this.n_public :]))
        state = {key: x[None].to(received.device) for key, x in this.receipts[m].tensors().items()}
        yield Answer((rows[m],), (received + change)[None], reports, [state])
