"""Masked sums on the server: what it stores between rounds, and one round, whose mean it answers for every client."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.core.rule import State
from equipoise.engines.job import Answer, Engine, Job
from equipoise.federation.trial import Trial, own_weights
from equipoise.flower.codec import Parcel, hiding, unpacked
from equipoise.flower.secagg import sums
from equipoise.flower.secagg.site import no_reports
from equipoise.flower.secagg.sums import MaskError, SumRequest, comparison, is_public_key, sha256, transcript
from equipoise.flower.server.sites import AWAY, Sites
from equipoise.flower.site.store import Receipt
from equipoise.records.record import Record
from equipoise.system import files, seals, text, tree
from equipoise.system.errors import ABSENT

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
            stored = seals.read_sealed(self.path, dict[str, Any])
            self.number, self.keys, self.opened = stored["number"], stored["keys"], tuple(stored["opened"])

    def store(self) -> None:
        """Write the file."""
        if self.path is not None:
            stored = {"number": self.number, "keys": self.keys, "opened": list(self.opened)}
            files.write_atomically(self.path, seals.sealed_json(stored))

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
        own_weights(trial, self.sizes)
        if collaborative:
            raise ValueError("secure=true: what a site reaches alone is not measured. Set collaborative=False.")

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
            if re.fullmatch("[0-9a-f]{64}", key) and is_public_key(key) and key not in self.keys.values():
                self.keys[names[m]] = key
            elif m in current.job.ids:
                current.lost[m] = got if isinstance(got, str) else "sent an unusable answer: no public key of its own"
        if new:
            self.store()
            log.warning("%s", comparison(self.keys, self.sizes))
        return [m for m in current.job.ids if m not in current.lost]

    def request_sum(self, t: int, training: str, ids: Sequence[int]) -> tuple[Parcel, SumRequest]:
        """The message that asks for a new sum, with a number that was never used, and its content."""
        self.number = max(self.number + 1, time.time_ns() // 10**6)
        self.store()
        fields: dict[str, Any] = {"number": self.number, "t": t, "training": training, "keys": self.keys}
        fields["sizes"] = {name: self.sizes[name] for name in self.keys}
        fields["sites"] = sorted(self.sites.members[m].name for m in ids)
        return Parcel(fields), SumRequest.read(fields, self.sites.exchange.experiment)


@dataclass
class MaskedRound:
    """One round of masked sums: which sites are left out and why, and the receipts of those that trained."""

    server: MaskedSites
    job: Job
    trial: Trial
    lost: dict[int, str] = field(default_factory=dict)
    shares: dict[str, Mapping[str, str]] = field(default_factory=dict)  # of whose seed, by for whom: encrypted
    hashes: dict[str, Mapping[str, str]] = field(default_factory=dict)  # of these shares
    receipts: dict[int, Receipt] = field(default_factory=dict)

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
        MaskError : too few are left, or too many dropped out between their masked vectors and their seeds.
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
                    raise MaskError(f"was left out, because the sum cannot be read: {error}") from None
        raise MaskError(f"was left out, because {len(ids)} sites are left for a masked sum, which needs {least:g}")

    def _masked_vectors(self, parcel: Parcel, request: SumRequest, ids: Sequence[int], n: int) -> dict[str, Tensor]:
        """The masked vectors of the sites, by name."""
        sites, vectors = self.server.sites, {}
        for m, got in sites.ask("train.sum", self.job.t, ids, lambda _: parcel):
            name = sites.members[m].name
            if isinstance(got, str):
                self.lost[m] = f"sent a masked vector earlier, and now {got}" if name in self.hashes else got
            elif (y := got.tensors.get("masked")) is None or y.dtype != torch.int64 or y.shape != (n + sums.ZEROS,):
                self.lost[m] = "sent an unusable answer: a masked vector of the right size is missing"
            elif not all(_one_per_site(got.fields.get(key), request.sites) for key in ("shares", "hashes")):
                self.lost[m] = "sent an unusable answer: the shares of its seed are missing"
            else:
                vectors[name], self.shares[name], self.hashes[name] = y, got.fields["shares"], got.fields["hashes"]
        return vectors

    def _seeds(self, request: SumRequest, ids: Sequence[int]) -> dict[str, bytes]:
        """The seeds of the sites' own masks, which unmask the sum, from the shares of those that answer.

        Raises
        ------
        MaskError : too few sites answer. None of the others can be left out: a late seed would unmask what its site sent.
        """
        sites, names = self.server.sites, {m: self.server.sites.members[m].name for m in ids}
        least, shares = sums.threshold(len(ids)), {name: dict[int, bytes]() for name in request.sites}
        self.server.opened = self.job.t, request.sites
        self.server.store()
        missing, end = dict.fromkeys(ids, ""), time.monotonic() + sites.exchange.deadline

        def make(m: int) -> Parcel:
            hidden = {name: self.shares[name][names[m]] for name in request.sites}
            return Parcel({"told": request.transcript, "shares": hidden})

        while True:
            for m, got in [*sites.ask("query.unmask", self.job.t, missing, make)]:
                for name, share in self._shares(got, names[m], request.sites):
                    shares[name][m] = share
                missing[m] = got if isinstance(got, str) else "sent shares that it did not receive"
                if m in shares[names[m]]:  # its own, which nobody else made
                    del missing[m]
            if not (lacking := [name for name, parts in shares.items() if len(parts) < least]):
                for m, why in missing.items():
                    log.warning("%s dropped out after its part of a sum, which others unmasked: it %s", names[m], why)
                return {name: sums.seed_of([*parts.values()][:least]) for name, parts in shares.items()}
            if time.monotonic() > end or not {AWAY, ABSENT} & {*map(text.key_of, missing.values())}:
                others = "; ".join(f"{names[m]} {reason}" for m, reason in missing.items())
                gone = others or f"{', '.join(lacking)} trained by other messages than the rest, or sent wrong shares"
                raise MaskError(
                    f"sent its part of a sum that was never unmasked: {gone}. That needs {least} of its {len(ids)} sites. Run again when "
                    "they are back; the round is repeated with the same sites"
                )
            time.sleep(sites.exchange.poll)

    def _shares(self, got: Parcel | str, reader: str, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The shares in an answer that are those of these sites for ``reader``, by site."""
        sent = None if isinstance(got, str) else got.fields.get("shares")
        for name, share in sent.items() if isinstance(sent, dict) else ():
            if name in sites and sha256(content := _bytes(share)) == self.hashes[name][reader]:
                yield name, content

    def answers(self) -> Iterator[Answer]:
        """Let the sites of the job train; the answer of every client is the weighted mean of all."""
        job, ids, update, reports = self.job, list[int](), torch.empty(0), list[State]()
        rows, members = {m: row for row, m in enumerate(job.ids)}, self.server.sites.members
        try:
            ids, total = self.total(*self._trained(self.server.meet(self)))
            w = own_weights(self.trial, {members[m].name: members[m].size for m in ids})
            update = total[: self.n_public] / (sum(w.values()) / sums.unit(w))
            reports = tree.tree_map(lambda x: x[None], self.reports(total[self.n_public :] / len(ids)))
        except MaskError as error:
            self.lost |= {m: str(error) for m in job.ids if m not in self.lost}
        for m, reason in self.lost.items():
            yield Answer((rows[m],), torch.empty(0), [], [], reason)
        for m in ids:
            received = job.received[rows[m]]
            change = update.to(received)
            if job.private is not None:
                change = torch.zeros_like(received).masked_scatter(~job.private, change)
            state = {key: x[None].to(received.device) for key, x in self.receipts[m].tensors().items()}
            yield Answer((rows[m],), (received + change)[None], reports, [state])


def _one_per_site(texts: Any, sites: Sequence[str]) -> bool:
    """Whether there is a text for each site."""
    return isinstance(texts, dict) and texts.keys() == {*sites} and all(isinstance(x, str) for x in texts.values())


def _bytes(sent: Any) -> bytes:
    """The bytes of hexadecimal text; none of anything else."""
    return bytes.fromhex(sent) if isinstance(sent, str) and re.fullmatch("([0-9a-f]{2})+", sent) else b""
