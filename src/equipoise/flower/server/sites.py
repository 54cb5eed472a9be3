"""The server's view of the sites of one experiment: an engine that lets them train by asking them through a Flower grid."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from equipoise.core import wire
from equipoise.core.rule import overrides
from equipoise.engines.job import Answer, Job
from equipoise.flower.codec import LOST, CodecError, Parcel, Submodel, change, changed, hiding, packed, sent, unpacked
from equipoise.flower.server.roster import Roster
from equipoise.flower.server.scores import Classes
from equipoise.flower.site.store import Receipt
from equipoise.system.errors import ABSENT
from equipoise.system.text import Said, key_of
from equipoise.system.tree import tree_map


@dataclass
class Sites(Roster):
    """The sites of one experiment, asked by their numbers as clients.

    An engine of :class:`equipoise.Federation`: called with a job, it sends each site its part and yields the answers in the
    order of their arrival. For a site that is not connected, fails, or is late, the answer is the reason.
    """

    traffic: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # by kind and client: bytes down and up
    times: dict[int, tuple[float | None, float]] = field(default_factory=dict)  # of training, see Consortium.train
    # samples by class of the test sets of each site, as it said first
    classes: dict[int, Classes] = field(default_factory=dict)
    saved: list[list[int]] = field(default_factory=list)  # the rounds of each site's states in the checkpoints kept
    _bases: dict[int, tuple[str, Tensor]] = field(default_factory=dict)  # what each site keeps, by client
    _count: int = 0

    def ask(
        self, kind: str, t: int, clients: Iterable[int], make: Callable[[int], Parcel], deadline: float | None = None
    ) -> Iterator[tuple[int, Parcel | str]]:
        """Send each client a parcel; yields the answers in the order of their arrival, or why there is none.

        Parameters
        ----------
        kind : of the message, in round ``t``.
        make : gives the parcel of a client.
        deadline : seconds, > 0; default: that of the experiment.
        """
        self.meet()
        counts, began = self.traffic.setdefault(kind, {}), dict[int, float]()
        rest = list(clients)
        for last in (False, True):
            nodes = {m: self.nodes.get(self.members[m].name) for m in rest}
            yield from ((m, Said("is not connected", ABSENT)) for m, node in nodes.items() if node is None)
            here = {node: m for m, node in nodes.items() if node is not None}

            def part(node: int, here: Mapping[int, int] = here) -> Parcel:
                parcel = make(here[node])
                counts.setdefault(here[node], [0, 0])[0] += parcel.nbytes
                began[here[node]] = time.monotonic()
                return parcel

            rest = []
            for node, answer in self.exchange.ask(kind, list(here), part, deadline or self.exchange.deadline, str(t)):
                m = here[node]
                if isinstance(answer, str):
                    self._bases.pop(m, None)  # its stored model is unknown now: the next one is sent in full
                else:
                    counts[m][1] += answer.nbytes
                    if kind in ("train", "train.masked"):
                        waited = time.monotonic() - began[m]
                        seconds: Any = answer.fields.get("seconds")  # anything: the site says it
                        plausible = type(seconds) in (int, float) and 0 <= seconds <= waited
                        self.times[m] = round(seconds, 4) if plausible else None, round(waited, 4)
                if isinstance(answer, str) and key_of(answer) == LOST and not last:
                    rest.append(m)
                else:
                    yield m, answer
            if not rest:
                break

    def __call__(self, job: Job) -> Iterator[Answer]:
        """Let the sites of a job train."""
        rows = {m: row for row, m in enumerate(job.ids)}
        for m, got in self.ask("train", job.t, job.ids, lambda m: self.training(job, rows[m])):
            row = rows[m]
            if isinstance(got, str):
                yield Answer((row,), torch.empty(0), [], [], got)
                continue
            try:
                yield _answered(job, row, got)
            except CodecError as error:
                yield Answer((row,), torch.empty(0), [], [], f"sent an unusable answer: {error}")

    def training(self, job: Job, row: int) -> Parcel:
        """What the client at ``row`` of a job is sent."""
        m = job.ids[row]
        receipt = Receipt.of({key: x[row] for key, x in job.states[0].items()})
        fields: dict[str, Any] = {"client": m, "t": job.t, "rounds": job.rounds, "receipt": receipt.fields}
        fields["saved"] = self.saved[m] if self.saved else []
        messages, fields["cut"] = self.messages(job, row)
        units, held = (None if x is None else x[row] for x in (job.units, job.held))
        again = any(overrides(rule, "reward") for rule in job.rules)  # else every entry changes until the next round
        model = self.model(m, job.received[row], job.private, (units, held), fields, keep=again)
        if receipt.t < 0 and _stateful(job):
            fields["first"] = job.private is None and torch.equal(job.received[row], job.model.initial)
            if not fields["first"]:
                messages["initial"] = job.model.initial
        return Parcel(fields, model | messages)

    def masked_training(self, job: Job) -> Parcel:
        """What every client of a masked round is sent: the same, the states of all among it."""
        receipts = [Receipt.of({key: x[row] for key, x in job.states[0].items()}) for row in range(len(job.ids))]
        clients = {self.members[m].name: [m, *receipt.fields] for m, receipt in zip(job.ids, receipts, strict=True)}
        fields: dict[str, Any] = {"t": job.t, "rounds": job.rounds, "clients": clients, "model": {}}
        fields["saved"] = sorted(set().union(*self.saved)) if self.saved else []
        messages, fields["cut"] = self.messages(job, 0)  # the same to all, or their sum stays masked
        public = job.received[0] if job.private is None else job.received[0][~job.private]
        if min(receipt.t for receipt in receipts) < 0 and _stateful(job):
            messages["initial"] = job.model.initial
        return Parcel(fields, {"model/values": public} | messages)

    def messages(self, job: Job, row: int) -> tuple[dict[str, Tensor], dict[str, int]]:
        """The tensors of the rules' messages to the client at ``row`` of a job, and the whole length of those cut."""
        states = [{k: x[row] for k, x in state.items()} for state in job.messages]
        return packed("messages", states, hiding(job.private, job.model.n_params))

    def model(
        self, m: int, vector: Tensor, private: Tensor | None, part: Submodel, fields: dict[str, Any], keep: bool = True
    ) -> dict[str, Tensor]:
        """The message with a model [G] for client ``m``: its submodel, or the change of the model that it stores.

        What the client needs to read it is added to ``fields``. Only what it is told to ``keep`` is the base of a later change.
        """
        (units, held), fields["model"] = part, {}
        visible = None if private is None else ~private
        if units is not None and held is not None:
            parts = wire.pack_submodel(vector, units, held if visible is None else held & visible)
        else:
            public = vector if visible is None else vector[visible]
            token, base = self._bases.get(m, (None, None))
            same = base is not None and torch.equal(base, public)
            parts = change(public, base if keep or same else None)
            fields["model"] = {} if parts.keys() == {"values"} else {"base": token}
            if keep and not same:
                self._count += 1
                new = f"{time.time_ns():x}-{self._count}"  # never one that a site has from an earlier process
                fields["model"]["keep"], self._bases[m] = new, (new, public)
        return {f"model/{name}": x for name, x in parts.items()}


def _stateful(job: Job) -> bool:
    """Whether a client has state that depends on the initial model."""
    return job.private is not None or any(overrides(rule, "client_state") for rule in job.rules)


def _answered(job: Job, row: int, got: Parcel) -> Answer:
    """A site's reply to its training, as an engine answers.

    Raises
    ------
    CodecError : the reply is not complete or does not fit.
    """
    received, parts = job.received[row], got.part("model")
    parts = {name: x.to(received.device) for name, x in parts.items()}
    mask, uploads = sent(job.rules, job.private, None if job.held is None else job.held[row])
    before = received if mask is None else received[mask]
    values = changed(parts, before if uploads else None, before)
    trained = values if mask is None else received.masked_scatter(mask, values)
    reports = unpacked(got, "reports", len(job.rules), hiding(job.private, job.model.n_params))
    reports = tree_map(lambda x: x[None].to(received.device), reports)
    if (receipt := Receipt.after(job.t, got.fields)) is None:
        raise CodecError("there is no receipt of its state.")
    return Answer((row,), trained[None], reports, [{key: x[None] for key, x in receipt.tensors().items()}])
