"""The sites of an experiment: how they are asked through a Flower grid, which are connected, whether they can take part, and what they train."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from equipoise.core import wire
from equipoise.core.rule import overrides
from equipoise.data.batch import Kind, Shape, listed
from equipoise.data.tables.columns import ordered
from equipoise.engines.job import Answer, Job
from equipoise.federation.fingerprint import agreed, unlike
from equipoise.flower import codec
from equipoise.flower.codec import CodecError, Parcel, Submodel
from equipoise.flower.server.scores import Classes
from equipoise.flower.site.store import Receipt
from equipoise.flower.site.task import VALUES
from equipoise.system import text, tree
from equipoise.system.errors import ABSENT, RunError

log = logging.getLogger(__name__)
Value = TypeVar("Value")

DESCRIBE = 120.0  # seconds a site may take to describe itself, if the deadline is longer
AGAIN = 60.0, 600.0  # seconds until a node that failed to describe itself is asked again: at first, and at most
MOST_TESTS = 1000  # test sets of a site: each has a place in every record
LARGEST = 2**30  # numbers in a sample: the server makes one of the shape that most sites have

AWAY = "away"  # key of the reasons of sites that may answer later
CODES = {
    1: "cannot load its app; the site's log says why",
    2: "failed; the site's log says why",
    3: "did not answer in time",
    5: "is not reachable any more",
    8: "stopped in the middle of its work",
}


# asking
@dataclass
class Exchange:
    """The messages of one experiment.

    Parameters
    ----------
    grid : Flower's.
    experiment : :func:`equipoise.flower.server.consortium.description` of it, which every message holds.
    deadline : seconds a site has for an answer, > 0.
    poll : seconds between looks for answers, > 0.
    """

    grid: Grid
    experiment: dict[str, Any]
    deadline: float = 600.0
    poll: float = 0.3

    def ask(
        self, kind: str, nodes: Iterable[int], make: Callable[[int], Parcel], deadline: float, group: str
    ) -> Iterator[tuple[int, Parcel | str]]:
        """Send each node a parcel; give the answers as they come, or why there is none.

        Messages are made and sent one by one: together they may not fit into memory.

        Parameters
        ----------
        kind : of the message.
        make : gives the parcel of a node.
        deadline : seconds, > 0.
        group : Flower's group of the messages.
        """
        waiting: dict[str, int] = {}
        for node in nodes:
            parcel = make(node)
            content = replace(parcel, fields={**parcel.fields, "experiment": self.experiment}).records()
            message = Message(content, node, kind, ttl=deadline, group_id=group)
            number = next(iter(self.grid.push_messages([message])), None)
            if number:
                waiting[number] = node
            else:
                yield node, text.Said("could not be sent its part", AWAY)
        end = time.monotonic() + deadline
        while waiting:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                number = reply.metadata.reply_to_message_id
                if number in waiting:
                    yield waiting.pop(number), _read(reply)
            if waiting and not replies:
                if time.monotonic() > end:
                    break
                time.sleep(min(self.poll, max(0.0, end - time.monotonic())))
        yield from ((node, text.Said(f"did not answer within {deadline:g} s", AWAY)) for node in waiting.values())


def _read(reply: Message) -> Parcel | str:
    """The content of a reply, or why there is none; without the text of Flower's errors, which may contain data of a site."""
    if reply.has_error():
        code = reply.error.code
        return text.Said(CODES.get(code, f"failed (Flower's error {code}); the site's log says why"), AWAY)
    try:
        parcel = Parcel.of(reply.content)
    except CodecError as error:
        return f"sent an unusable answer: {error}"
    if "error" not in parcel.fields:
        return parcel
    name = f"({parcel.fields['name']}) " if "name" in parcel.fields else ""
    words = text.visible(" ".join(f"{name}{parcel.fields['error']}".split())[:500])
    key = parcel.fields.get("key")
    return text.Said(words, key if key in codec.KEYS else "")


# what the server knows of one
@dataclass(frozen=True)
class Known:
    """What the server knows of a site: its name, its samples, its test sets and their samples, and the codes of what all must agree on."""

    name: str
    size: int
    shape: Shape
    dtype: str | dict[str, str]
    tests: tuple[str, ...]
    agreement: dict[str, str] = field(default_factory=dict, compare=False)
    test_sizes: dict[str, int] = field(default_factory=dict, compare=False)  # 0: too few for a number of it to be sent
    people: bool = field(default=False, compare=False)  # samples of one person are held out together

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Known:
        """From a site's description of itself, or from a run directory.

        Raises
        ------
        AttributeError, KeyError, OverflowError, TypeError, ValueError : the fields are not those of a description.
        """
        shape, dtype = _by_name(fields["shape"], torch.Size), _by_name(fields["dtype"], str)
        tests = tuple(map(text.name, fields["tests"]))
        codes = {text.name(aspect): text.name(code) for aspect, code in fields.get("agreement", {}).items()}
        codes = {"Equipoise version": "an earlier one", **codes, "samples": f"shape {listed(shape)}, {dtype}"}
        sizes = {text.name(test): n for test, n in fields.get("test_sizes", {}).items()}
        name, size, people = text.name(fields["name"]), int(fields["size"]), fields.get("people") is True
        site = Known(name, size, shape, dtype, tests, codes, sizes, people)
        if (
            any(type(n) is not int or not 0 <= n < 2**53 for n in (fields["size"], *sizes.values()))
            or site.size < 1
            or not len(tests) == len({*tests}) <= MOST_TESTS
            or not 1 <= len(site.kind) <= MOST_TESTS
            or any(min(part, default=0) < 0 or not isinstance(dtype, torch.dtype) for _, part, dtype in site.kind)
            or sum(math.prod(part) for _, part, _ in site.kind) > LARGEST
        ):
            raise ValueError(site.dtype)
        return site

    @property
    def kind(self) -> Kind:
        """Name, shape and type of each tensor of a sample."""
        shapes = self.shape if isinstance(self.shape, dict) else {"": self.shape}
        dtypes = self.dtype if isinstance(self.dtype, dict) else {"": self.dtype}
        return tuple((name, shapes[name], getattr(torch, dtypes[name])) for name in {**shapes, **dtypes})


def _by_name(given: Any, kind: Callable[[Any], Value]) -> Value | dict[str, Value]:
    """What was sent of a sample, or of each of its tensors."""
    return {text.name(name): kind(part) for name, part in given.items()} if isinstance(given, Mapping) else kind(given)


@dataclass
class Sites:
    """The sites of one experiment, asked by their numbers as clients, and at which node each of them is now.

    An engine of :class:`equipoise.Federation`: called with a job, it sends each site its part and yields the answers in the
    order of their arrival. For a site that is not connected, fails, or is late, the answer is the reason.

    Parameters
    ----------
    exchange : by which they are asked.
    most : samples that a site may say it has.
    """

    exchange: Exchange
    most: int = 2**53
    members: list[Known] = field(default_factory=list)  # in the order of the clients
    nodes: dict[str, int] = field(default_factory=dict)  # where each site is now
    agreed: dict[str, tuple[str, str]] = field(default_factory=dict)  # who decides on each aspect, and its code
    traffic: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # by kind and client: bytes down and up
    times: dict[int, tuple[float | None, float]] = field(default_factory=dict)  # of training, see Consortium.train
    # samples by class of the test sets of each site, as it said first
    classes: dict[int, Classes] = field(default_factory=dict)
    saved: list[list[int]] = field(default_factory=list)  # the rounds of each site's states in the checkpoints kept
    _seen: dict[int, str] = field(default_factory=dict)  # the site at each node
    _refused: dict[int, str] = field(default_factory=dict)  # why a connected node does not take part
    _failed: dict[int, tuple[float, float]] = field(default_factory=dict)  # when a node is asked again, next delay
    _bases: dict[int, tuple[str, Tensor]] = field(default_factory=dict)  # what each site keeps, by client
    _count: int = 0

    # who takes part
    def gather(self, least: int, names: Sequence[str], wait: float, earlier: Sequence[Known] = ()) -> list[Known]:
        """Wait for the sites: all of ``names`` if there are any, else at least ``least``, in the natural order of names.

        ``earlier`` are the sites of a run that is resumed, of which at least ``least`` must be connected.

        Raises
        ------
        RunError : they did not connect in ``wait`` seconds, or have samples of several shapes.
        """
        end = time.monotonic() + wait
        self.members = list(earlier)
        names = [] if earlier else names
        met: dict[str, Known] = {}
        while True:
            met |= {site.name: site for site in self.meet(names)}
            present = {name: site for name, site in met.items() if name in self.nodes}
            if len(present) >= least and set(names) <= present.keys():
                break
            if time.monotonic() > end:
                here = ", ".join(ordered(present)) or "none"
                wanted = f"all of {', '.join(names)}" if names else f"at least {least} sites"
                refusals = f" Of others: {'; '.join(self._refused.values())}." if self._refused else ""
                raise RunError(
                    f"Waited {wait:g} s for {wanted}; connected and able to take part: {here}.{refusals} Start the missing "
                    "SuperNodes (the log of each says why it does not connect), or change sites, min-sites or wait."
                )
            time.sleep(self.exchange.poll)
        before = {site.name: site for site in earlier}
        self.members = [(before | present)[name] for name in [*before] or names or ordered(present)]
        # one of the shape agreed on is made next
        _require_agreed({site.name: {"samples": site.agreement["samples"]} for site in self.members}, {})
        return self.members

    def meet(self, names: Sequence[str] = ()) -> list[Known]:
        """Let new nodes describe themselves, and forget nodes that are no longer connected; returns the new sites."""
        online = {node.node_id: text.name(node.name or "") for node in self.exchange.grid.get_nodes()}
        self.nodes = {name: node for name, node in self.nodes.items() if node in online}
        for by_node in (self._seen, self._failed, self._refused):
            for gone in by_node.keys() - online.keys():
                del by_node[gone]
        resting = {node for node, (until, _) in self._failed.items() if time.monotonic() < until}
        met = []
        for node, answer in self._describe([node for node in online if node not in self._seen.keys() | resting]):
            site = _known(answer, online[node])
            if isinstance(site, str):
                self._refused[node] = f"{online[node] or f'node {node}'} {site}"
                log.warning("%s", self._refused[node])
                _, rest = self._failed.get(node, (0.0, AGAIN[0]))  # doubled each time, as all sites wait for the answer
                self._failed[node] = time.monotonic() + rest, min(2 * rest, AGAIN[1])
                continue
            self._seen[node] = site.name
            if self._is_second(node, site.name):
                continue
            if problem := self._misfit(site, names):
                self._refused[node] = f"{site.name} {problem}"
                log.warning("%s cannot take part: it %s", site.name, problem)
                continue
            self._refused.pop(node, None)
            self.nodes[site.name] = node
            log.info("%s is connected with %s samples (%d so far)", site.name, f"{site.size:,}", len(self.nodes))
            # in an old run sites had no sizes of their test sets
            self.members = [site if old == site and not old.test_sizes else old for old in self.members]
            met.append(site)
        return met

    def _is_second(self, node: int, name: str) -> bool:
        """Whether another node has the name of a site, and answers: one that was killed counts as connected for another minute.

        Raises
        ------
        RunError : it does, before the first round.
        """
        other = self.nodes.get(name)
        if other is None or not any(isinstance(again, Parcel) for _, again in self._describe([other])):
            return False
        twice = f"Two nodes call themselves {name}: {other} and {node}. Give each site its own name, by site=... in --node-config or --name."
        if not self.agreed:
            raise RunError(twice)
        log.warning("%s The first continues to take part.", twice)
        return True

    def _describe(self, nodes: Sequence[int]) -> Iterator[tuple[int, Parcel | str]]:
        deadline = min(self.exchange.deadline, DESCRIBE)
        yield from self.exchange.ask("query.describe", nodes, lambda _: Parcel(), deadline, "describe")

    def _misfit(self, site: Known, names: Sequence[str]) -> str:
        """Why a site cannot take part in the run; empty if it can."""
        if problem := unlike(site.agreement, self.agreed):
            return problem
        if site.test_sizes.keys() != set(site.tests):
            return "does not say how many samples its test sets have"
        if (largest := max((site.size, *site.test_sizes.values()))) > self.most:
            return f"says that it has {largest:,} samples, and max-samples is {self.most:,}"
        if names and site.name not in names:
            return f"is not one of the sites {', '.join(names)}"
        if self.members and site not in self.members:
            same = [old for old in self.members if old.name == site.name]
            return "has other data than when the run began" if same else "came after the run began, with others"
        return ""

    def check(self, server: dict[str, str]) -> None:
        """Require that the connected sites agree with the ``server`` and with each other, and later those that connect then.

        Raises
        ------
        RunError : naming all that differ, and in what.
        """
        here = {site.name: site.agreement for site in self.members if site.name in self.nodes}
        self.agreed = _require_agreed(here, server)
        for aspect in self.agreed.keys() & {"features", "classes", VALUES, "scaling", "grey levels"}:
            if silent := [name for name, codes in here.items() if aspect not in codes]:
                log.warning("%s: %s not stated, so not compared there", ", ".join(silent), aspect)

    # what they are asked
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
            yield from ((m, text.Said("is not connected", ABSENT)) for m, node in nodes.items() if node is None)
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
                if isinstance(answer, str) and text.key_of(answer) == codec.LOST and not last:
                    rest.append(m)
                else:
                    yield m, answer
            if not rest:
                break

    def __call__(self, job: Job) -> Iterator[Answer]:
        """Let the sites of a job train."""
        rows = {m: row for row, m in enumerate(job.ids)}
        for m, got in self.ask("train", job.t, job.ids, lambda m: self.training(job, rows[m])):
            try:
                answer = got if isinstance(got, str) else _answered(job, rows[m], got)
            except CodecError as error:
                answer = f"sent an unusable answer: {error}"
            yield Answer((rows[m],), torch.empty(0), [], [], answer) if isinstance(answer, str) else answer

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
        return codec.packed("messages", states, codec.hiding(job.private, job.model.n_params))

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
            parts = codec.change(public, base if keep or same else None)
            fields["model"] = {} if parts.keys() == {"values"} else {"base": token}
            if keep and not same:
                self._count += 1
                new = f"{time.time_ns():x}-{self._count}"  # never one that a site has from an earlier process
                fields["model"]["keep"], self._bases[m] = new, (new, public)
        return {f"model/{name}": x for name, x in parts.items()}


def _require_agreed(sites: Mapping[str, Mapping[str, str]], server: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What :func:`equipoise.federation.fingerprint.agreed` gives, if all sites agree."""
    agreement = agreed(sites, server)
    if wrong := [f"{name} {reason}" for name, codes in sites.items() if (reason := unlike(codes, agreement))]:
        raise RunError(
            f"{'; '.join(wrong)}. All must agree: correct the task, or the installation, of those that do not. To see the codes "
            "of a site: equipoise flower check DIR --node-config FILE."
        )
    return agreement


def _known(answer: Parcel | str, registered: str) -> Known | str:
    """A site from its description of itself, or why there is none; a registered name replaces the one in the description."""
    if isinstance(answer, str):
        return answer
    try:
        return Known.of({**answer.fields, "name": registered or answer.fields["name"]})
    except codec.UNFIT:
        return "does not describe itself as a site"


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
    mask, uploads = codec.sent(job.rules, job.private, None if job.held is None else job.held[row])
    before = received if mask is None else received[mask]
    values = codec.changed(parts, before if uploads else None, before)
    trained = values if mask is None else received.masked_scatter(mask, values)
    reports = codec.unpacked(got, "reports", len(job.rules), codec.hiding(job.private, job.model.n_params))
    reports = tree.tree_map(lambda x: x[None].to(received.device), reports)
    if (receipt := Receipt.after(job.t, got.fields)) is None:
        raise CodecError("there is no receipt of its state.")
    return Answer((row,), trained[None], reports, [{key: x[None] for key, x in receipt.tensors().items()}])
