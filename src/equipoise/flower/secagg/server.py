"""The server's part in masked rounds: an engine that is sent masked vectors, and answers with their mean in every client's place."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.core.rule import Cohort, Power, Rule, State
from equipoise.engines.job import Answer, Engine, Job
from equipoise.federation.method import Method, MethodError
from equipoise.federation.records import Record
from equipoise.federation.trial import Trial
from equipoise.flower.codec import UNFIT, Parcel
from equipoise.flower.secagg import masks as secure
from equipoise.flower.secagg import sums as masked
from equipoise.flower.secagg.site import CEILING, MODEL, VALUES
from equipoise.flower.secagg.sums import MaskError, Sum
from equipoise.flower.site.store import Receipt
from equipoise.methods import METHODS

if TYPE_CHECKING:
    from equipoise.flower.server.sites import Sites

log = logging.getLogger(__name__)

LIMIT = 2.0**20  # of weighted updates
FINEST = 2.0**-16  # the least sum of the numbers that give the weights; where it is less, it is measured again
TRIES = 20
Inputs = Callable[[Sequence[int]], Mapping[str, Any]]  # what the clients of a sum need to make their vectors


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
    return f"every site reports {rule.reports.removeprefix('its ')} to the server" if rule.reports else ""


def weights(
    trial: Trial, server: Sequence[State], ids: Sequence[int], vector: Tensor, t: int = 0, rounds: int = 1
) -> Tensor:
    """The weights [M] that the rules will give the clients ``ids`` in round ``t``, known before there are updates.

    ``server`` is the server's state, ``vector`` [G] the global model.

    Raises
    ------
    MethodError : the rules do more than to weigh the updates.
    """
    n, at = len(ids), torch.tensor(ids, device=vector.device)
    P = trial.model.n_params
    zero, sizes = torch.zeros_like(vector).expand(n, -1), trial.setup.sizes[at]
    cohort = Cohort(
        t=t,
        rounds=rounds,
        n_clients=trial.setup.n_clients,
        theta=vector[:P],
        updates=zero[:, :P],
        ids=at,
        sizes=sizes,
        weights=sizes / sizes.sum(),
        layout=trial.model.layout,
        buffer_updates=zero[:, P:],
        received=vector.expand(n, -1),
        kept=vector.expand(n, -1),
        seed=trial.settings.seed,
    )
    for rule, state in zip(trial.method.rules, server, strict=True):
        _, cohort = rule.aggregate(state, cohort)
    if any(x is not None for x in (cohort.coefficients, cohort.mask, cohort.buffer_mask)):
        raise MethodError("secure=true: a rule of the method does more than to weigh the updates. Set secure=false.")
    return cohort.weights


@dataclass
class MaskedSites:
    """What the server remembers of masked sums from one round to the next.

    The server is never sent a model, an update or a number of a site, but masked vectors, of which only the sum can be read. Its
    engine answers a round with the weighted mean of all in every client's place: a step that is a weighted sum comes out the same.

    Parameters
    ----------
    sites : who is asked.
    number : of the last sum; every sum has its own.
    reference : a typical value of the numbers that give the weights, if any do; 0 before the first round.
    """

    sites: Sites
    number: int = 0
    reference: float = 0.0
    keys: dict[str, str] = field(default_factory=dict)  # the sites' public ones
    opened: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)  # whose sums were, by round and phase

    def engine(self, trial: Trial, server: Sequence[State]) -> Engine:
        """The engine of one round, in place of the sites; ``server`` is the server's state, from which the weights follow."""
        return lambda job: answers(Round(self, job, trial, server))

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
        """The clients of a round whose keys are known; each is asked once, also for the last sum that it took part in."""
        known = [site.name for site in self.sites.known]
        new, before = [m for m, name in enumerate(known) if name not in self.keys], len(self.keys)
        for m, got in self.sites.ask("query.keys", this.job.t, new, lambda _: Parcel()) if new else ():
            if isinstance(got, str):
                this.lost |= {m: got} if m in this.job.ids else {}
            elif not self._learn(known[m], got):
                this.lost |= {m: "sent what cannot be used: there is no key"} if m in this.job.ids else {}
        if len(self.keys) > before:
            log.warning("%s", masked.comparison(self.keys))
        return [m for m in this.job.ids if m not in this.lost]

    def _learn(self, name: str, got: Parcel) -> bool:
        """Take what a site says of itself; False if it does not."""
        fields = got.fields
        try:
            opened = {(int(t), str(phase)): tuple(map(str, sites)) for phase, (t, sites) in fields["opened"].items()}
            key, number = str(fields["key"]), int(fields["number"])
        except UNFIT:
            return False
        if not re.fullmatch("[0-9a-f]{64}", key) or not 0 <= number < 2**53:
            return False
        self.keys[name], self.number = key, max(self.number, number)
        self.opened |= opened
        return True

    def next(self, job: Job, phase: str, ids: Sequence[int], inputs: Mapping[str, Any]) -> Sum:
        """A new sum, with a number that was never used."""
        self.number += 1
        names = tuple(sorted(self.sites.known[m].name for m in ids))
        limit = LIMIT if phase == MODEL else CEILING * len(ids)
        return Sum(self.sites.exchange.experiment["name"], self.number, job.t, phase, names, limit, inputs)


@dataclass
class Round:
    """One round of masked sums: who was lost and why, and the receipts of those who trained."""

    server: MaskedSites
    job: Job
    trial: Trial
    state: Sequence[State]  # the server's, when the round begins
    lost: dict[int, str] = field(default_factory=dict)
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def mean(self, ids: list[int]) -> tuple[list[int], Tensor]:
        """Who counts, and the weighted mean of their updates, without private coordinates.

        Raises
        ------
        ClosedError, MaskError : there is none.
        """
        job, server, trial, state = self.job, self.server, self.trial, self.state
        power = require(trial.method)
        n = len(job.received[0]) - (0 if job.private is None else int(job.private.sum()))
        if power is None:

            def known(ids: Sequence[int]) -> Mapping[str, Any]:
                w = weights(trial, state, ids, job.received[0], job.t, job.rounds).tolist()
                return {"weights": {server.sites.known[m].name: x for m, x in zip(ids, w, strict=True)}}

            return self.total(MODEL, ids, n, known, train=True)
        ids, inputs = self._weigh(ids, power)
        ids, total = self.total(MODEL, ids, n + 1, partial(_given, inputs))
        return ids, secure.mean(total)[1]

    def _weigh(self, ids: list[int], power: Power) -> tuple[list[int], dict[str, float]]:
        """The sums from which each site knows its weight, and the reference that they were measured with."""
        server = self.server
        reference = server.reference or power.typical
        for attempt in range(TRIES):
            inputs = {"reference": reference}
            ids, total = self.total(VALUES, ids, 2, partial(_given, inputs), train=attempt == 0)
            A, U = total.tolist()
            if not (A >= 0 and -1e-6 <= U <= len(ids)):
                raise ClosedError("was left out, because the sum is not one of weights: masks do not fit each other")
            measured = secure.reference(A, len(ids), power.q, reference)
            lower = reference * 2.0 ** (-40 / power.q) if power.q else reference
            reference = max(measured if A > 0 else lower, power.floor)
            if FINEST <= A < CEILING * len(ids):  # no value was clipped, and no weight was lost to rounding
                server.reference = reference
                return ids, {**inputs, "sum": A, "sum_last": U}
        raise ClosedError("was left out, because the numbers that give the weights are too far apart")

    def total(
        self, phase: str, ids: list[int], n: int, content: Inputs, *, train: bool = False
    ) -> tuple[list[int], Tensor]:
        """The sum [n] over the sites that answer; if some drop out, another sum without them.

        Parameters
        ----------
        content : gives what the clients of a sum need to make their vectors.
        train : the clients have yet to train.

        Raises
        ------
        ClosedError : too few are left, or one has dropped out between its masked vector and its seed.
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
            asked = self.server.next(job, phase, ids, content(ids))
            vectors = self._masked_vectors(asked, ids, n, train)
            ids = [m for m in ids if known[m].name in vectors]
            if len(ids) == len(asked.sites):
                total = masked.total(asked, vectors, self._seeds(asked, ids))
                if n and float(total.abs().max()) > asked.limit * len(ids):
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
                self.lost[m] = got
            elif (y := got.tensors.get("masked")) is None or y.dtype != torch.int64 or y.shape != (n,):
                self.lost[m] = "sent what cannot be used: there is no masked vector of the right size"
            elif train and (receipt := Receipt.after(self.job.t, got.fields)) is None:
                self.lost[m] = "sent what cannot be used: there is no receipt of its state"
            else:
                found[sites.known[m].name] = y
                self.receipts |= {m: receipt} if train and receipt is not None else {}
        return found

    def _reminder(self, m: int) -> Parcel:
        """The state that a client's training built on."""
        row = self.job.ids.index(m)
        receipt = Receipt.of({key: x[row] for key, x in self.job.states[0].items()})
        return Parcel({"t": self.job.t, "receipt": receipt.fields})

    def _seeds(self, asked: Sum, ids: Sequence[int]) -> dict[str, bytes]:
        """The seeds of the sites' own masks, which unmask the sum.

        Raises
        ------
        ClosedError : one does not come. It cannot be left out: coming late, it would unmask what it has sent.
        """
        sites, seeds = self.server.sites, dict[str, bytes]()
        self.server.opened[self.job.t, asked.phase] = asked.sites
        missing, end = dict.fromkeys(ids, ""), time.monotonic() + self.server.sites.exchange.deadline
        parcel = Parcel({"sum": asdict(asked)})
        while missing:
            for m, got in list(sites.ask("query.unmask", self.job.t, missing, lambda _: parcel)):
                seed = None if isinstance(got, str) else got.fields.get("seed")
                if isinstance(seed, str) and re.fullmatch("[0-9a-f]{64}", seed):
                    seeds[sites.known[m].name] = bytes.fromhex(seed)
                    del missing[m]
                else:
                    missing[m] = got if isinstance(got, str) else "sent no seed"
            if missing and (time.monotonic() > end or any(why.startswith("refuses") for why in missing.values())):
                gone = "; ".join(f"{sites.known[m].name} {why}" for m, why in missing.items())
                raise ClosedError(
                    f"gave its part of a sum that was never unmasked: {gone}. Run again when it is back; the round is done "
                    "again with the same sites"
                )
            time.sleep(sites.exchange.poll if missing else 0)
        return seeds


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
        change = mean.to(received)
        if job.private is not None:
            change = torch.zeros_like(received).masked_scatter(~job.private, change)
        reports = [{} if r.power is None else {r.power.report: received.new_ones(1)} for r in job.rules]
        state = {key: x[None].to(received.device) for key, x in this.receipts[m].tensors().items()}
        yield Answer((rows[m],), (received + change)[None], reports, [state])


def _given(inputs: Mapping[str, Any], ids: Sequence[int]) -> Mapping[str, Any]:
    """The same, whoever takes part."""
    return inputs
