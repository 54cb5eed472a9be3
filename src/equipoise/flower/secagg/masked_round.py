"""One round of masked sums on the server: an engine that is sent masked vectors, and answers with their mean for every client."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.core.rule import State
from equipoise.engines.job import Answer, Job
from equipoise.federation.trial import Trial
from equipoise.flower.codec import Parcel, hiding, unpacked
from equipoise.flower.secagg import sums
from equipoise.flower.secagg.masks import MaskError, sha256, transcript
from equipoise.flower.secagg.site import no_reports, own_weights
from equipoise.flower.secagg.sums import SumRequest
from equipoise.flower.site.store import Receipt
from equipoise.system.tree import tree_map

if TYPE_CHECKING:
    from equipoise.flower.secagg.server import MaskedSites

log = logging.getLogger(__name__)


class LostRoundError(RuntimeError):
    """A sum that cannot be unmasked, so that the round is lost."""


@dataclass
class MaskedRound:
    """One round of masked sums: which sites are left out and why, and the receipts of those that trained."""

    server: MaskedSites
    job: Job
    trial: Trial
    lost: dict[int, str] = field(default_factory=dict)
    shares: dict[tuple[str, str], str] = field(default_factory=dict)  # of whose seed, for whom: encrypted
    hashes: dict[str, str] = field(default_factory=dict)  # of the seed of a site
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def mean(self, ids: list[int]) -> tuple[list[int], Tensor]:
        """The clients that count, the weighted mean of their updates without private coordinates, and the mean of their reports.

        Raises
        ------
        LostRoundError, MaskError : it cannot be computed.
        """
        training, ids = self._trained(ids)
        ids, total = self.total(training, ids)
        sites = [self.server.sites.members[m] for m in ids]
        weights = own_weights(self.trial, {site.name: site.size for site in sites})
        update = total[: self.n_public] / (sum(weights.values()) / sums.unit(weights))
        return ids, torch.cat([update, total[self.n_public :] / len(ids)])

    def _trained(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """Let sites train, all by the same message: its transcript, and the clients that did."""
        sites = self.server.sites
        parcel = sites.masked_training(self.job)
        training = transcript({**parcel.fields, "experiment": sites.exchange.experiment}, parcel.tensors)
        for m, got in sites.ask("train.masked", self.job.t, ids, lambda _: parcel):
            if isinstance(got, str):
                self.lost[m] = got
            elif (receipt := Receipt.after(self.job.t, got.fields)) is None:
                self.lost[m] = "sent an unusable answer: the receipt of its state is missing"
            else:
                self.receipts[m] = receipt
        return training, [m for m in ids if m in self.receipts]

    @property
    def n_public(self) -> int:
        """Coordinates of the model that are not private."""
        return len(self.job.received[0]) - (0 if self.job.private is None else int(self.job.private.sum()))

    def reports(self, mean: Tensor) -> list[State]:
        """The reports of each client as if all had sent the ``mean``: a rule that sums them has the same result."""
        zeros, cut = no_reports(self.trial)
        parts = mean.split([x.numel() for x in zeros.values()]) if zeros else ()
        tensors = {name: part.view_as(x).to(x) for (name, x), part in zip(zeros.items(), parts, strict=True)}
        hide = hiding(self.job.private, self.trial.model.n_params)
        return unpacked(Parcel({"cut": cut}, tensors), "reports", len(self.job.rules), hide)

    def total(self, training: str, ids: list[int]) -> tuple[list[int], Tensor]:
        """The sum [n] over the sites that answer, of what they trained; if some drop out, a new sum without them.

        Raises
        ------
        LostRoundError : too few are left, or too many dropped out between their masked vectors and their seeds.
        """
        sites, job = self.server.sites.members, self.job
        if self.server.opened[0] == job.t:  # in an earlier attempt at this round
            others = [m for m in ids if sites[m].name not in self.server.opened[1]]
            self.lost |= dict.fromkeys(others, "did not take part when a sum of this round was unmasked")
            ids = [m for m in ids if m not in others]
        n = self.n_public + sum(x.numel() for x in no_reports(self.trial)[0].values())
        least = max(2.0, job.settings.quorum * len(job.ids))
        while len(ids) >= least:
            if len(ids) == 2:
                log.warning("a masked sum over two sites hides neither from the other: each can subtract itself")
            parcel, request = self.server.request_sum(job.t, training, ids)
            vectors = self._masked_vectors(parcel, request, ids, n)
            ids = [m for m in ids if sites[m].name in vectors]
            if len(ids) == len(request.sites):
                try:
                    return ids, sums.total(vectors, self._seeds(request, ids))
                except MaskError as error:
                    raise LostRoundError(f"was left out, because the sum cannot be read: {error}") from None
        raise LostRoundError(f"was left out, because {len(ids)} sites are left for a masked sum, which needs {least:g}")

    def _masked_vectors(self, parcel: Parcel, request: SumRequest, ids: Sequence[int], n: int) -> dict[str, Tensor]:
        """The masked vectors of the sites, by name."""
        sites, vectors = self.server.sites, {}
        for m, got in sites.ask("train.sum", self.job.t, ids, lambda _: parcel):
            name = sites.members[m].name
            if isinstance(got, str):
                self.lost[m] = f"sent a masked vector earlier, and now {got}" if name in self.hashes else got
            elif (y := got.tensors.get("masked")) is None or y.dtype != torch.int64 or y.shape != (n + sums.ZEROS,):
                self.lost[m] = "sent an unusable answer: a masked vector of the right size is missing"
            elif not self._keep_shares(request, name, got.fields):
                self.lost[m] = "sent an unusable answer: the shares of its seed are missing"
            else:
                vectors[name] = y
        return vectors

    def _keep_shares(self, request: SumRequest, name: str, fields: Mapping[str, Any]) -> bool:
        """Keep the encrypted shares of a site's seed, and its hash; False if it did not send them."""
        shares, seed = fields.get("shares"), fields.get("seed")
        if not isinstance(shares, dict) or shares.keys() != {*request.sites} - {name} or not isinstance(seed, str):
            return False
        self.shares |= {(name, other): str(text) for other, text in shares.items()}
        self.hashes[name] = seed
        return True

    def _seeds(self, request: SumRequest, ids: Sequence[int]) -> dict[str, bytes]:
        """The seeds of the sites' own masks, which unmask the sum; those of sites that dropped out come from the shares of the others.

        Raises
        ------
        LostRoundError : too few sites answer. None of the others can be left out: a late seed would unmask what its site sent.
        """
        sites, seeds = self.server.sites, dict[str, bytes]()
        names = {m: sites.members[m].name for m in ids}
        self.server.opened = self.job.t, request.sites
        self.server.store()
        missing, end = dict.fromkeys(ids, ""), time.monotonic() + self.server.sites.exchange.deadline
        parcel = Parcel({"told": request.transcript})
        while missing:
            for m, got in list(sites.ask("query.unmask", self.job.t, missing, lambda _: parcel)):
                seed = None if isinstance(got, str) else _bytes(got.fields.get("seed"))
                if seed is not None and sha256(seed) == self.hashes[names[m]]:
                    seeds[names[m]] = seed
                    del missing[m]
                else:
                    missing[m] = got if isinstance(got, str) else "sent no seed, or one that it has not used"
            if missing:
                self._recover(request, [names[m] for m in missing], [m for m in ids if m not in missing], seeds)
                missing = {m: why for m, why in missing.items() if names[m] not in seeds}
            if missing and (
                time.monotonic() > end or all(why.startswith(("refuses", "sent")) for why in missing.values())
            ):
                gone = "; ".join(f"{names[m]} {why}" for m, why in missing.items())
                raise LostRoundError(
                    f"sent its part of a sum that was never unmasked: {gone}. That needs {sums.threshold(len(ids))} of its {len(ids)} "
                    "sites. Run again when they are back; the round is repeated with the same sites"
                )
            time.sleep(sites.exchange.poll if missing else 0)
        return seeds

    def _recover(self, request: SumRequest, gone: Sequence[str], here: Sequence[int], seeds: dict[str, bytes]) -> None:
        """Add the seeds of sites that dropped out to ``seeds``, if enough of the others answer to reconstruct them."""
        sites, least = self.server.sites, sums.threshold(len(request.sites))
        if len(here) < least:
            return

        def make(m: int) -> Parcel:
            hidden = {name: self.shares[name, sites.members[m].name] for name in gone}
            return Parcel({"told": request.transcript, "shares": hidden})

        received: dict[str, list[bytes]] = {name: [] for name in gone}
        for _, got in sites.ask("query.recover", self.job.t, here, make):
            shares = None if isinstance(got, str) else got.fields.get("shares")
            if not isinstance(shares, dict):
                continue
            for name in gone:
                if (share := _bytes(shares.get(name))) is not None:
                    received[name].append(share)
        for name, shares in received.items():
            if len(shares) >= least:
                try:
                    seeds[name] = sums.recovered(shares[:least], self.hashes[name])
                    log.warning("%s dropped out after its part of a sum, which the others unmasked without it", name)
                except MaskError as error:
                    log.warning("%s %s", name, error)

    def answers(self) -> Iterator[Answer]:
        """Let the sites of the job train; the answer of every client is the weighted mean of all."""
        job = self.job
        rows = {m: row for row, m in enumerate(job.ids)}
        ids: list[int] = []
        try:
            ids, mean = self.mean(self.server.meet(self))
            reports = tree_map(lambda x: x[None], self.reports(mean[self.n_public :]))
        except (LostRoundError, MaskError) as error:
            self.lost |= {m: str(error) for m in job.ids if m not in self.lost}
        for m, why in self.lost.items():
            yield Answer((rows[m],), torch.empty(0), [], [], why)
        for m in ids:
            received = job.received[rows[m]]
            change = mean[: self.n_public].to(received)
            if job.private is not None:
                change = torch.zeros_like(received).masked_scatter(~job.private, change)
            state = {key: x[None].to(received.device) for key, x in self.receipts[m].tensors().items()}
            yield Answer((rows[m],), (received + change)[None], reports, [state])


def _bytes(text: Any) -> bytes | None:
    """The bytes of hexadecimal text; None of anything else."""
    return bytes.fromhex(text) if isinstance(text, str) and re.fullmatch("([0-9a-f]{2})+", text) else None
