"""The server's part in masked rounds: an engine that is sent masked vectors, and answers with their mean in every client's place."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.core.rule import Power, Rule, State, overrides
from equipoise.core.tree import tree_map
from equipoise.engines.job import Answer, Engine, Job
from equipoise.federation.fingerprint import digest
from equipoise.federation.method import Method, MethodError
from equipoise.federation.records import Record
from equipoise.federation.trial import Trial
from equipoise.flower.codec import UNFIT, Parcel, hiding, unpacked
from equipoise.flower.secagg import masks as secure
from equipoise.flower.secagg import sums as masked
from equipoise.flower.secagg.site import LIMIT, no_reports, setting, weights
from equipoise.flower.secagg.sums import MODEL, VALUES, MaskError, Opened, Sum
from equipoise.flower.site.store import Receipt
from equipoise.methods import METHODS

if TYPE_CHECKING:
    from equipoise.flower.server.sites import Sites

log = logging.getLogger(__name__)

DAY = 86_400_000  # milliseconds


class ClosedError(RuntimeError):
    """A sum that cannot be unmasked, so that the round is lost."""


def require(method: Method) -> Power | None:
    """What a method's weights follow from, if they are not known before the round.

    Raises
    ------
    MethodError : the server must see more than sums.
    """
    for rule, part in zip(method.rules, method.parts, strict=True):
        if why := problem(rule):
            can = [name for name in METHODS if not any(problem(r()) for r in METHODS[name].rules)]
            raise MethodError(
                f"secure=true: {part} cannot be used, because {why}, and the server sees sums only. Methods that can "
                f"be used, and sums of them: {', '.join(can)}. Choose among them, or set secure=false."
            )
    return next((rule.power for rule in method.rules if rule.power is not None), None)


def problem(rule: Rule) -> str:
    """Why a rule cannot be used where the server sees sums; empty if it can."""
    if rule.power is not None:
        return ""
    if rule.sees == "nothing":
        return "nothing is summed in it"
    if rule.sees != "sum":
        return "the server must see what single sites send"
    if rule.reports and not overrides(rule, "no_report"):
        return f"every site reports {rule.reports.removeprefix('its ')} to the server, and no_report does not say in which form"
    return ""


@dataclass
class MaskedSites:
    """What the server remembers of masked sums from one round to the next.

    The server is never sent a model, an update or a number of a site, but masked vectors, of which only the sum can be read. Its
    engine answers a round with the weighted mean of all in every client's place: a step that is a weighted sum comes out the same.

    Parameters
    ----------
    sites : who is asked.
    number : of the last sum. Every sum has its own, the milliseconds since 1970 or one more than the last: so a server that starts
        again, which remembers nothing, uses none twice.
    """

    sites: Sites
    number: int = 0
    known: dict[str, Introduction] = field(default_factory=dict)  # what the sites say of themselves
    opened: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)  # whose sums were, by round and phase

    @property
    def keys(self) -> dict[str, str]:
        """The sites' public keys."""
        return {name: one.key for name, one in self.known.items()}

    def engine(self, trial: Trial) -> Engine:
        """The engine of one round, in place of the sites."""
        return lambda job: answers(Round(self, job, trial))

    def check(self, trial: Trial, server: Sequence[State], collaborative: bool) -> None:
        """Refuse what cannot be done with sums alone, before anything is asked.

        Raises
        ------
        MethodError, ValueError : naming it.
        """
        if require(trial.method) is None:
            weights(trial, server, range(trial.setup.n_clients), trial.setup.initial)
        if collaborative:
            raise ValueError("secure=true: what each site reaches alone is not found out. Set collaborative=False.")

    def recorded(self, trial: Trial, record: Record) -> Record:
        """The record of a round with what the server knows of it, and without what it does not."""
        training = [counts for kind, counts in self.sites.traffic.items() if kind.startswith("train.")]
        up = [sum(counts.get(m, (0, 0))[1] for counts in training) for m in record["ids"]]
        known = {**record, "secure": True, "bytes": {**record["bytes"], "up": up}}
        power = require(trial.method)
        hidden = () if power is None else ("weights", *power.notes)  # each site knows only its own
        return {key: x for key, x in known.items() if key not in hidden}

    def introduced(self, this: Round) -> list[int]:
        """The clients of a round whose keys are known; each is asked once, also for the sums that it helped to unmask."""
        names, before = [site.name for site in self.sites.known], set(self.known)
        new = [m for m, name in enumerate(names) if name not in before]
        for m, got in self.sites.ask("query.keys", this.job.t, new, lambda _: Parcel()) if new else ():
            one = got if isinstance(got, str) else Introduction.of(got.fields)
            if isinstance(one, Introduction):
                self.known[names[m]] = one
            elif m in this.job.ids:
                this.lost[m] = one
        for name in set(self.known) - before:
            if self._disputed(name):
                del self.known[name]
                if (m := names.index(name)) in this.job.ids:
                    this.lost[m] = (
                        "shows another key than most sites have seen of it. If it lost its state-dir, start a new experiment"
                    )
        if set(self.known) != before:
            self.number = max(self.number, *(one.number for one in self.known.values()))
            self._believe(max(2.0, this.job.settings.quorum * len(this.job.ids)))
            log.warning("%s", masked.comparison(self.keys, this.sizes))
        return [m for m in this.job.ids if m not in this.lost]

    def _disputed(self, name: str) -> bool:
        """Whether more than half of the sites have seen another key of a site: fewer could be lying."""
        seen = [key for one in self.known.values() if (key := one.pinned.get(name)) is not None]
        return 2 * sum(key != self.known[name].key for key in seen) > len(self.known)

    def _believe(self, least: float) -> None:
        """Take a sum over at least so many sites to have been unmasked if more than half of them say so."""
        for phase in (VALUES, MODEL):
            said = {name: one.opened[phase] for name, one in self.known.items() if phase in one.opened}
            for one in said.values():
                if len(one.sites) >= least and 2 * sum(said.get(n) == one for n in one.sites) > len(one.sites):
                    self.opened.setdefault((one.round, phase), one.sites)

    def next(self, this: Round, phase: str, ids: Sequence[int], inputs: Mapping[str, Any]) -> Sum:
        """A new sum, with a number that was never used."""
        self.number = max(self.number + 1, _now())
        names = tuple(sorted(self.sites.known[m].name for m in ids))
        experiment = self.sites.exchange.experiment["name"]
        return Sum(experiment, self.number, this.job.t, phase, this.model, this.setting, names, LIMIT, inputs)


@dataclass(frozen=True)
class Introduction:
    """What a site says of itself: its public key, the number of its last sum, the last sums it helped to unmask, and the keys it has seen."""

    key: str
    number: int
    opened: dict[str, Opened]
    pinned: dict[str, str]

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Introduction | str:
        """From its answer, or why it cannot be one: nothing that one site says may keep the others from a sum."""
        try:
            opened = {str(phase): Opened.read(one) for phase, one in fields["opened"].items()}
            pinned = {str(name): str(key) for name, key in fields["pinned"].items()}
            one = Introduction(str(fields["key"]), int(fields["number"]), opened, pinned)
        except UNFIT:
            return "sent what cannot be used: it does not say its key and what it has unmasked"
        if not re.fullmatch("[0-9a-f]{64}", one.key) or not masked.usable(one.key):
            return "sent what cannot be used: its key is not a public key"
        if not 0 <= one.number <= _now() + DAY:
            return "sent what cannot be used: the number of its last sum lies in the future. If the clock of the server is right, it lies"
        return one


def _now() -> int:
    return time.time_ns() // 10**6


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
        n = self.n_public + sum(x.numel() for x in self.no_reports[0].values())
        if self.sizes:
            return self.total(MODEL, ids, n, {"sizes": self.sizes}, train=True)
        ids, total = self.total(VALUES, ids, secure.WORDS, {}, train=True)
        try:
            A, U = secure.narrow(total)
        except OverflowError:
            A, U = 0.0, 0.0
        if not (A > 0 and -1e-6 <= U <= len(ids)):
            raise ClosedError("was left out, because the sum is not one of weights: masks do not fit each other")
        ids, total = self.total(MODEL, ids, n + 1, {"sum": A, "sum_last": U})
        return ids, torch.cat([secure.mean(total[: self.n_public + 1])[1], total[self.n_public + 1 :]])

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
        zeros, cut = self.no_reports
        parts = mean.split([x.numel() for x in zeros.values()]) if zeros else ()
        found = {name: part.view_as(x).to(x) for (name, x), part in zip(zeros.items(), parts, strict=True)}
        hide = hiding(self.job.private, self.trial.model.n_params)
        told = unpacked(Parcel({"cut": cut}, found), "reports", len(self.job.rules), hide)
        ones = [{} if r.power is None else {r.power.report: self.job.received.new_ones(())} for r in self.job.rules]
        return [one or of for one, of in zip(ones, told, strict=True)]

    @property
    def sizes(self) -> dict[str, int]:
        """The samples of all sites of the experiment, where the weights follow from them; else nothing."""
        return {site.name: site.size for site in self.server.sites.known} if require(self.trial.method) is None else {}

    @cached_property
    def setting(self) -> str:
        """SHA-256 of what else all sites are sent to train with."""
        sites = self.server.sites
        messages, _ = sites.messages(self.job, 0)  # the same to all
        return setting(sites.exchange.experiment, self.job.rounds, Parcel(tensors=messages).part("messages"))

    @cached_property
    def model(self) -> str:
        """SHA-256 of what all sites are sent of the model."""
        job = self.job
        return digest(job.received[0] if job.private is None else job.received[0][~job.private])

    def total(
        self, phase: str, ids: list[int], n: int, inputs: Mapping[str, Any], *, train: bool = False
    ) -> tuple[list[int], Tensor]:
        """The sum [n] over the sites that answer; if some drop out, another sum without them.

        Parameters
        ----------
        inputs : what the clients of a sum need to make their vectors.
        train : the clients have yet to train.

        Raises
        ------
        ClosedError : too few are left, or too many have dropped out between their masked vectors and their seeds.
        """
        known, job = self.server.sites.known, self.job
        if before := self.server.opened.get((job.t, phase)):  # when the round was done the last time
            others = [m for m in ids if known[m].name not in before]
            self.lost |= dict.fromkeys(others, "was not there when a sum of this round was unmasked")
            ids = [m for m in ids if m not in others]
        least = max(2.0, job.settings.quorum * len(job.ids))
        while len(ids) >= least:
            if len(ids) == 2:
                log.warning("a masked sum over two sites hides neither from the other: each can subtract itself")
            asked = self.server.next(self, phase, ids, inputs)
            vectors = self._masked_vectors(asked, ids, n, train)
            ids = [m for m in ids if known[m].name in vectors]
            if len(ids) == len(asked.sites):
                total = masked.total(asked, vectors, self._seeds(asked, ids))
                if not asked.wide and n and float(total.abs().max()) > asked.limit * len(ids):
                    raise ClosedError("was left out, because the sum is out of range: masks do not fit each other")
                return ids, total
            train = False
        raise ClosedError(f"was left out, because {len(ids)} sites are left for a masked sum, and it takes {least:g}")

    def _masked_vectors(self, asked: Sum, ids: Sequence[int], n: int, train: bool) -> dict[str, Tensor]:
        """What the sites send for a sum, by name."""
        sites, kind = self.server.sites, "train.masked" if train else "train.again"
        found = {}

        def make(m: int) -> Parcel:
            parcel = sites.training(self.job, self.job.ids.index(m)) if train else self._reminder(m)
            return replace(parcel, fields={**parcel.fields, "sum": asdict(asked), "keys": self.server.keys})

        for m, got in sites.ask(kind, self.job.t, ids, make):
            if isinstance(got, str):
                self.lost[m] = got if train else f"sent a masked vector before; then it {got}"
            elif (y := got.tensors.get("masked")) is None or y.dtype != torch.int64 or y.shape != (n,):
                self.lost[m] = "sent what cannot be used: there is no masked vector of the right size"
            elif train and (receipt := Receipt.after(self.job.t, got.fields)) is None:
                self.lost[m] = "sent what cannot be used: there is no receipt of its state"
            elif not self._keep_shares(asked, sites.known[m].name, got.fields):
                self.lost[m] = "sent what cannot be used: there are no shares of its seed"
            else:
                found[sites.known[m].name] = y
                self.receipts |= {m: receipt} if train and receipt is not None else {}
        return found

    def _reminder(self, m: int) -> Parcel:
        """The state that a client's training built on."""
        row = self.job.ids.index(m)
        receipt = Receipt.of({key: x[row] for key, x in self.job.states[0].items()})
        return Parcel({"t": self.job.t, "rounds": self.job.rounds, "receipt": receipt.fields})

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
        self.server.opened[self.job.t, asked.phase] = asked.sites
        missing, end = dict.fromkeys(ids, ""), time.monotonic() + self.server.sites.exchange.deadline
        parcel = Parcel({"sum": asdict(asked)})
        while missing:
            for m, got in list(sites.ask("query.unmask", self.job.t, missing, lambda _: parcel)):
                seed = None if isinstance(got, str) else _bytes(got.fields.get("seed"))
                if seed is not None and masked.sha256(seed) == self.hashes[names[m]][names[m]]:
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
                    f"gave its part of a sum that was never unmasked: {gone}. It takes {masked.threshold(len(ids))} of its {len(ids)} "
                    "sites. Run again when they are back; the round is done again with the same sites"
                )
            time.sleep(sites.exchange.poll if missing else 0)
        return seeds

    def _recover(self, asked: Sum, gone: Sequence[str], here: Sequence[int], seeds: dict[str, bytes]) -> None:
        """Add the seeds of sites that have vanished to ``seeds``, if enough of the others are there to put them together."""
        sites, least = self.server.sites, masked.threshold(len(asked.sites))
        if len(here) < least:
            return

        def make(m: int) -> Parcel:
            hidden = {name: self.shares[name, sites.known[m].name] for name in gone}
            return Parcel({"sum": asdict(asked), "shares": hidden})

        found: dict[str, list[bytes]] = {name: [] for name in gone}
        for m, got in sites.ask("query.recover", self.job.t, here, make):
            shares = None if isinstance(got, str) else got.fields.get("shares")
            if not isinstance(shares, dict):
                continue
            for name in gone:
                share = _bytes(shares.get(name))
                if share is not None and masked.sha256(share) == self.hashes[name][sites.known[m].name]:
                    found[name].append(share)
        for name, shares in found.items():
            if len(shares) >= least:
                try:
                    seeds[name] = masked.recovered(shares[:least], self.hashes[name][name])
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
