"""The server side: an engine whose clients are sites behind a Flower grid, and the federation that trains by it."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from equipoise.core import wire
from equipoise.core.rule import overrides
from equipoise.core.settings import Settings
from equipoise.core.solver import SGD, Adam, Solver
from equipoise.core.tree import tree_map
from equipoise.data.samples import Samples, Stream
from equipoise.engines.choose import EngineChoice
from equipoise.engines.job import Answer, Job
from equipoise.federation.evaluation import costly, handed, published
from equipoise.federation.federation import Alone, Federation, structure
from equipoise.federation.method import Method
from equipoise.federation.round import Progression, Record, begin, looking
from equipoise.flower.codec import LOST, UNFIT, CodecError, Parcel, change, changed, hiding, packed, unpacked
from equipoise.flower.secagg.server import MaskedSites
from equipoise.flower.site.store import Receipt
from equipoise.flower.site.task import Blank, Task
from equipoise.metrics.classification import RATES
from equipoise.metrics.groups import rates_of

log = logging.getLogger(__name__)

DESCRIBE = 120.0  # seconds a site may take to say what it is, where the deadline is longer
AGAIN = 60.0, 600.0  # seconds until a node that could not say is asked again: at first, and at most


class SitesError(RuntimeError):
    """Sites that are missing, or that do not fit together."""


@dataclass(frozen=True)
class Known:
    """What the server knows of a site: its name, its samples, and the names of its test sets."""

    name: str
    size: int
    shape: tuple[int, ...]
    dtype: str
    tests: tuple[str, ...]
    structure: dict[str, Any]

    @staticmethod
    def of(told: Mapping[str, Any]) -> Known:
        """From what a site said, or a run directory has.

        Raises
        ------
        AttributeError, KeyError, OverflowError, TypeError, ValueError : it says something else.
        """
        shape, tests = tuple(int(n) for n in told["shape"]), tuple(str(test) for test in told["tests"])
        known = Known(str(told["name"]), int(told["size"]), shape, str(told["dtype"]), tests, dict(told["structure"]))
        if (
            known.size < 1
            or min(shape, default=0) < 0
            or not isinstance(getattr(torch, known.dtype, None), torch.dtype)
        ):
            raise ValueError(known.dtype)
        return known

    @property
    def data(self) -> Blank:
        """Stands for the site's samples."""
        return Blank(self.size, self.shape, getattr(torch, self.dtype))


@dataclass
class Sites:
    """The sites of one experiment behind a grid: who they are, and how they are asked.

    An engine of :class:`equipoise.Federation`: called with a job, it sends each site its part and gives the answers as they
    come. A site that is not connected, fails, or is late answers with the reason.

    Parameters
    ----------
    grid : Flower's.
    told : :func:`description` of the experiment.
    deadline : seconds a site has for an answer, > 0.
    poll : seconds between looks for answers, > 0.
    """

    grid: Grid
    told: dict[str, Any]
    deadline: float = 600.0
    poll: float = 0.3
    known: list[Known] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)  # where each site is now
    traffic: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # by kind and client: bytes down and up
    structure: dict[str, Any] | None = None  # of the server's network
    saved: list[int] = field(default_factory=list)  # the round of each site's state in the last checkpoint
    _seen: dict[int, str] = field(default_factory=dict)  # what each node turned out to be
    _refused: dict[int, str] = field(default_factory=dict)  # why a node that is connected does not take part
    _failed: dict[int, tuple[float, float]] = field(default_factory=dict)  # when a node is asked again, and then waits
    _bases: dict[int, tuple[str, Tensor]] = field(default_factory=dict)  # what each site keeps, by client
    _count: int = 0

    # who is there
    def gather(self, least: int, names: Sequence[str], wait: float, known: Sequence[Known] = ()) -> list[Known]:
        """Wait for the sites: all of ``names`` if there are any, else at least ``least``, in the natural order of names.

        Where a run goes on, ``known`` are its sites, of which at least ``least`` must be there.

        Raises
        ------
        SitesError : they did not come in ``wait`` seconds, or do not agree.
        """
        end = time.monotonic() + wait
        self.known = list(known)
        names = [] if known else names
        found: dict[str, Known] = {}
        while True:
            found |= {site.name: site for site in self._meet(names)}
            present = {name: site for name, site in found.items() if name in self.nodes}
            if len(present) >= least and set(names) <= present.keys():
                break
            if time.monotonic() > end:
                here = ", ".join(sorted(present, key=natural)) or "none"
                wanted = f"all of {', '.join(names)}" if names else f"at least {least} sites"
                why = f" Of others: {'; '.join(self._refused.values())}." if self._refused else ""
                raise SitesError(
                    f"Waited {wait:g} s for {wanted}; connected and able to take part: {here}.{why} Start the missing "
                    "SuperNodes (the log of each says why it does not connect), or change sites, min-sites or wait."
                )
            time.sleep(self.poll)
        if not known:
            self.known = [present[name] for name in list(names) or sorted(present, key=natural)]
        for site in self.known[1:]:
            if (site.shape, site.dtype) != (self.known[0].shape, self.known[0].dtype):
                raise SitesError(
                    f"{site.name} has samples of shape {list(site.shape)} and type {site.dtype}, {self.known[0].name} of shape "
                    f"{list(self.known[0].shape)} and type {self.known[0].dtype}. All must agree: mend the task of one."
                )
        return self.known

    def _meet(self, names: Sequence[str] = ()) -> list[Known]:
        """Ask nodes that are new who they are, and forget those that are gone."""
        online = {node.node_id: node.name for node in self.grid.get_nodes()}
        self.nodes = {name: node for name, node in self.nodes.items() if node in online}
        self._seen = {node: name for node, name in self._seen.items() if node in online}
        self._failed = {node: again for node, again in self._failed.items() if node in online}
        resting = {node for node, (until, _) in self._failed.items() if time.monotonic() < until}
        self._refused = {node: why for node, why in self._refused.items() if node in online}
        met = []
        for node, answer in self._describe([node for node in online if node not in self._seen.keys() | resting]):
            site = None if isinstance(answer, str) else _known(answer, online[node])
            if site is None:
                said = answer if isinstance(answer, str) else "does not describe itself as a site"
                self._refused[node] = f"{online[node] or f'node {node}'} {said}"
                log.warning("%s", self._refused[node])
                _, rest = self._failed.get(node, (0.0, AGAIN[0]))  # the longer the more often: all wait for it
                self._failed[node] = time.monotonic() + rest, min(2 * rest, AGAIN[1])
                continue
            self._seen[node] = site.name
            if (other := self.nodes.get(site.name)) is not None and self._answers(other):
                twice = (
                    f"Two nodes call themselves {site.name}: {other} and {node}. Give each site its own name, by "
                    "site=... in --node-config or by registering it with --name."
                )
                if not self.structure:  # the run has not begun
                    raise SitesError(twice)
                log.warning("%s The first goes on taking part.", twice)
                continue
            if problem := self._misfit(site, names):
                self._refused[node] = f"{site.name} {problem}"
                log.warning("%s cannot take part: it %s", site.name, problem)
                continue
            self._refused.pop(node, None)
            self.nodes[site.name] = node
            met.append(site)
        return met

    def _describe(self, nodes: Sequence[int]) -> Iterator[tuple[int, Parcel | str]]:
        yield from self._exchange("query.describe", nodes, lambda _: Parcel(), min(self.deadline, DESCRIBE), "describe")

    def _answers(self, node: int) -> bool:
        """Whether there is somebody at a node: one that was killed is counted as connected for another minute."""
        return any(isinstance(answer, Parcel) for _, answer in self._describe([node]))

    def _misfit(self, site: Known, names: Sequence[str]) -> str:
        """Why a site cannot take part in what is going on; empty if it can."""
        if problem := _unlike(site, self.structure):
            return problem
        if names and site.name not in names:
            return f"is not one of the sites {', '.join(names)}"
        if self.known and site not in self.known:
            same = [old for old in self.known if old.name == site.name]
            return "has other data than when the run began" if same else "came after the run began, with others"
        return ""

    def check(self, structure: dict[str, Any]) -> None:
        """Require that every site has the server's network, now and when others come.

        Raises
        ------
        SitesError : naming the first that has another.
        """
        self.structure = structure
        for site in self.known:
            if problem := _unlike(site, structure):
                raise SitesError(f"{site.name} {problem}")

    # asking
    def ask(
        self, kind: str, t: int, clients: Iterable[int], make: Callable[[int], Parcel], deadline: float | None = None
    ) -> Iterator[tuple[int, Parcel | str]]:
        """Send each client a parcel; give the answers as they come, or why there is none.

        Parameters
        ----------
        kind : of the message, in round ``t``.
        make : gives the parcel of a client.
        deadline : seconds, > 0; default: that of the experiment.
        """
        self._meet()
        counts = self.traffic.setdefault(kind, {})
        rest = list(clients)
        for last in (False, True):
            nodes = {m: self.nodes.get(self.known[m].name) for m in rest}
            yield from ((m, "is not connected") for m, node in nodes.items() if node is None)
            here = {node: m for m, node in nodes.items() if node is not None}

            def part(node: int, here: Mapping[int, int] = here) -> Parcel:
                parcel = make(here[node])
                counts.setdefault(here[node], [0, 0])[0] += parcel.nbytes
                return parcel

            rest = []
            for node, answer in self._exchange(kind, list(here), part, deadline or self.deadline, str(t)):
                m = here[node]
                if isinstance(answer, str):
                    self._bases.pop(m, None)  # nobody knows what it has now: the next model is sent whole
                else:
                    counts[m][1] += answer.nbytes
                if answer == LOST and not last:
                    rest.append(m)
                else:
                    yield m, answer
            if not rest:
                break

    def _exchange(
        self, kind: str, nodes: Iterable[int], make: Callable[[int], Parcel], deadline: float, group: str
    ) -> Iterator[tuple[int, Parcel | str]]:
        """The same, by node. Messages are made and sent one by one: together they may not fit into memory."""
        waiting: dict[str, int] = {}
        for node in nodes:
            parcel = make(node)
            content = replace(parcel, told={**parcel.told, "experiment": self.told}).records()
            message = Message(content, node, kind, ttl=deadline, group_id=group)
            number = next(iter(self.grid.push_messages([message])), None)
            if number:
                waiting[number] = node
            else:
                yield node, "could not be sent its part"
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
        yield from ((node, f"did not answer within {deadline:g} s") for node in waiting.values())

    # as an engine
    def __call__(self, job: Job) -> Iterator[Answer]:
        """Let the sites of a job train."""
        rows = {m: row for row, m in enumerate(job.ids)}
        for m, got in self.ask("train", job.t, job.ids, lambda m: self._training(job, rows[m])):
            row = rows[m]
            if isinstance(got, str):
                yield Answer((row,), torch.empty(0), [], [], got)
                continue
            try:
                yield _answered(job, row, got)
            except CodecError as error:
                yield Answer((row,), torch.empty(0), [], [], f"sent what cannot be used: {error}")

    def _training(self, job: Job, row: int) -> Parcel:
        m = job.ids[row]
        receipt = Receipt.of({key: x[row] for key, x in job.states[0].items()})
        told: dict[str, Any] = {
            "client": m,
            "t": job.t,
            "rounds": job.rounds,
            "receipt": receipt.told,
            "saved": self.saved[m] if self.saved else -1,
        }
        messages, told["cut"] = packed(
            "messages",
            [{k: x[row] for k, x in state.items()} for state in job.messages],
            hiding(job.private, job.model.n_params),
        )
        units = None if job.units is None else job.units[row]
        model = self.model(m, job.received[row], job.private, units, None if job.held is None else job.held[row], told)
        if receipt.t < 0 and self._stateful(job):
            told["first"] = job.private is None and torch.equal(job.received[row], job.model.initial)
            if not told["first"]:
                messages["initial"] = job.model.initial
        return Parcel(told, model | messages)

    @staticmethod
    def _stateful(job: Job) -> bool:
        """Whether a client remembers something that starts from the first model."""
        return job.private is not None or any(overrides(rule, "client_state") for rule in job.rules)

    def model(
        self,
        m: int,
        vector: Tensor,
        private: Tensor | None,
        units: Tensor | None,
        held: Tensor | None,
        told: dict[str, Any],
    ) -> dict[str, Tensor]:
        """A model [G] for client ``m``: its submodel, or the change of what it keeps; how to read it goes into ``told``."""
        told["model"] = {}
        shown = None if private is None else ~private
        if units is not None and held is not None:
            parts = wire.pack_submodel(vector, units, held if shown is None else held & shown)
        else:
            public = vector if shown is None else vector[shown]
            token, base = self._bases.get(m, (None, None))
            if base is not None and torch.equal(base, public):
                parts, told["model"] = change(public, base), {"base": token, "keep": token}
            else:
                self._count += 1
                new = f"{time.time_ns():x}-{self._count}"  # none that a site may still have from another process
                parts = change(public, base)
                told["model"] = {"base": None if parts.keys() == {"values"} else token, "keep": new}
                self._bases[m] = new, public
        return {f"model/{name}": x for name, x in parts.items()}


def description(
    method: Method,
    solver: Solver,
    settings: Settings,
    measures: Iterable[str],
    name: str,
) -> dict[str, Any]:
    """What every message says of the experiment ``name``, so that a site's process can begin anywhere.

    Raises
    ------
    ValueError : a solver that a message cannot describe.
    """
    if not isinstance(solver, SGD | Adam):
        raise ValueError(f"Sites can train with SGD or Adam; found {type(solver).__name__}.")
    return {
        "name": name,
        "method": str(method),
        "solver": {"kind": type(solver).__name__, **asdict(solver)},
        **settings.decisive,
        "measures": list(measures),
    }


def natural(name: str) -> list[Any]:
    """Sorts ``site-2`` before ``site-10``."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def _known(answer: Parcel, registered: str | None) -> Known | None:
    """What a site said of itself; the name it is registered under, if it is, counts more than what it says."""
    try:
        return Known.of({**answer.told, "name": registered or answer.told["name"]})
    except UNFIT:
        return None


def _unlike(site: Known, structure: dict[str, Any] | None) -> str:
    """What a site's network differs in; empty if in nothing."""
    other = [what for what, ours in (structure or {}).items() if site.structure.get(what) != ours]
    return f"has a network with other {other[0]} than the server's. Give the same network everywhere." if other else ""


def _read(reply: Message) -> Parcel | str:
    """The content of a reply, or why there is none; what Flower says of an error may hold a site's own words, and stays out."""
    if reply.has_error():
        return CODES.get(reply.error.code, f"failed (Flower's error {reply.error.code}); the site's log says why")
    try:
        parcel = Parcel.of(reply.content)
    except CodecError as error:
        return f"sent what cannot be used: {error}"
    if "error" not in parcel.told:
        return parcel
    who = f"({parcel.told['name']}) " if "name" in parcel.told else ""
    return " ".join(f"{who}{parcel.told['error']}".split())[:500]


CODES = {
    1: "cannot load its app; the site's log says why",
    2: "failed; the site's log says why",
    5: "is not reachable any more",
    8: "stopped in the middle of its work",
}


def _answered(job: Job, row: int, got: Parcel) -> Answer:
    """A site's reply to its training, as an engine answers.

    Raises
    ------
    CodecError : it is not what a site must send.
    """
    received, parts = job.received[row], got.part("model")
    parts = {name: x.to(received.device) for name, x in parts.items()}
    shown = None if job.private is None else ~job.private
    if any(overrides(rule, "upload") for rule in job.rules):
        mask, before = shown, received if shown is None else received[shown]
        values = changed(parts, before, before)
    else:
        masks = [x for x in (shown, None if job.held is None else job.held[row]) if x is not None]
        mask = torch.stack(masks).all(0) if masks else None
        values = changed(parts, None, received if mask is None else received[mask])
    trained = values if mask is None else received.masked_scatter(mask, values)
    reports = unpacked(got, "reports", len(job.rules), hiding(job.private, job.model.n_params))
    reports = tree_map(lambda x: x[None].to(received.device), reports)
    if (receipt := Receipt.after(job.t, got.told)) is None:
        raise CodecError("there is no receipt of its state.")
    return Answer((row,), trained[None], reports, [{key: x[None] for key, x in receipt.tensors().items()}])


class Consortium(Federation):
    """A federation whose clients are sites behind a Flower grid: they keep their data, states, private coordinates and test sets.

    Parameters
    ----------
    task : the server's own.
    sites : that have been gathered.
    secure : the server sees sums of updates only, see :class:`equipoise.flower.secagg.server.MaskedSites`.
    settings : what governs training; its ``engine`` is the sites.
    more : ``contribution``, ``collaborative`` and ``workers``, as for :class:`equipoise.Federation`.
    """

    def __init__(
        self,
        task: Task,
        sites: Sites,
        method: Any,
        solver: Solver,
        *,
        settings: Settings,
        secure: bool = False,
        **more: Any,
    ) -> None:
        self.sites = sites
        own = task.tests("server")
        tested = [set(site.tests) for site in sites.known]
        one_each = all(len(names) == 1 and names <= own.keys() for names in tested)
        groups = [next(iter(names)) for names in tested] if own and one_each else None
        self._has_all = bool(own) and (groups is not None or all(names == set(own) for names in tested))
        super().__init__(
            task.net,
            [site.data for site in sites.known],
            method,
            solver,
            tests=own,
            validation=task.validation,
            transform=task.transform,
            head=task.head,
            neurons=task.neurons,
            measures=task.measures,
            names=[site.name for site in sites.known],
            groups=groups,
            settings=replace(settings, engine=sites),
            memory=0,  # nobody reads these samples
            **more,
        )
        self.engine_choice = EngineChoice("flower", "every client is a site that is asked by messages")
        self.experiment = replace(self.experiment, away=True)
        self.progress = begin(self.experiment)
        private = self.experiment.private
        self._hides = private is not None and bool(private.any())
        sites.check(structure(self.model, self.experiment.neurons))
        self._masked = MaskedSites(sites, lambda: (self.experiment, self.progress.server)) if secure else None
        if self._masked is not None:
            self._masked.check(self.collaborative)
            self.experiment = replace(self.experiment, engine=self._masked)

    def _round(self, rounds: int) -> Record:
        record = super()._round(rounds)
        if self._masked is not None:
            self._masked.amend(record)
        return record

    def save(self, directory: str | Path, rounds: int | None = None) -> None:
        """As :meth:`equipoise.Federation.save`; from then on the sites keep their states of this checkpoint."""
        super().save(directory, rounds)
        self.sites.saved = self.progress.clients[0]["round"].tolist()

    def resume(self, directory: str | Path) -> int:
        """As :meth:`equipoise.Federation.resume`, with the states that the sites have kept."""
        rest = super().resume(directory)
        self.sites.saved = self.progress.clients[0]["round"].tolist()
        return rest

    def _can_test(self, sets: Mapping[str, Samples | Stream]) -> bool:
        return bool(sets) or all(site.tests for site in self.sites.known)

    def _examined(self, now: Progression, rounds: int) -> Record:
        """Scores of the global model by test set, and the accuracy of what each site predicts with, found by the sites.

        Where nothing is private and the server has all test sets, it tests the global model itself. Where something is, there
        is no global model to test: what stands for it are the sites' own models. Sets that several sites have count by samples.
        """
        e, sites, counts = self.experiment, self.sites, costly(now.t, rounds)
        measures = list(self.tests.measures) if counts else []
        if self._has_all and not self.personal:
            return {**self.tests.record(e, now, rounds), **self._measured()}
        asked, C = [m for m, site in enumerate(sites.known) if site.tests], e.setup.n_classes
        here = bool(self.tests.sets) and not (self._hides and asked)
        vector = published(e, now)
        record: Record = {"groups": self.tests.scores(e, vector, measures)} if here else {}
        own = self.personal and (counts or self._hides)
        if not asked or (here and not own):
            return {**record, **self._measured()}

        def make(m: int) -> Parcel:
            told: dict[str, Any] = {"measures": measures, "own": own}
            if not own:
                tensors = sites.model(m, vector, None, None, None, told)
                return Parcel(told, tensors)
            handed_out, tensors = self._handed(now, m)
            both = not here and not self._hides
            return Parcel(told | handed_out, tensors | ({"global": vector} if both else {}))

        found: dict[int, Tested] = {}
        for m, answer in sites.ask("evaluate", now.t, asked, make):
            tested = answer if isinstance(answer, str) else Tested.of(answer.told, sites.known[m].tests, measures, C)
            if isinstance(tested, Tested):
                found[m] = tested
            else:
                log.warning("%s is not evaluated after round %d: it %s", sites.known[m].name, now.t, tested)
        if not here:
            record["groups"] = _pooled([found[m] for m in sorted(found)])
        if counts or not self.personal:
            accuracy = [found[m].accuracy if m in found else None for m in range(len(sites.known))]
            record["clients"] = {"accuracy": accuracy}
        return {**record, **self._measured()}

    def _measured(self) -> Record:
        """Bytes of the tensors that each site was sent, and sent, in this round: by kind of message, counted in the messages."""
        N = range(len(self.sites.known))
        sent = {
            kind: {way: [counts.get(m, [0, 0])[k] for m in N] for k, way in enumerate(("down", "up"))}
            for kind, counts in self.sites.traffic.items()
        }
        self.sites.traffic.clear()
        return {"sent": sent}

    def _handed(self, now: Progression, m: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What client ``m`` needs to make the model that it predicts with."""
        e = self.experiment
        given = handed(e, now, m)
        receipt = Receipt.of({key: x[m] for key, x in now.clients[0].items()})
        told: dict[str, Any] = {"client": m, "t": now.t, "receipt": receipt.told}
        messages, told["cut"] = packed("messages", given.messages, hiding(e.private, e.model.n_params))
        told["deploys"] = bool(given.messages)
        held = None if given.units is None or e.neurons is None else e.neurons.held(given.units)
        model = self.sites.model(m, given.vector, e.private, given.units, held, told)
        if receipt.t < 0:
            messages["initial"] = e.setup.initial
        return told, model | messages

    def standalone(self, rounds: int, *, progress: bool = True) -> Alone:
        """What each site reaches when it trains on its own data alone: every site finds out for itself.

        Where the server has validation data, it is sent the models and measures on them, too.

        Raises
        ------
        SitesError : a site does not answer; or it keeps a part of every model to itself, which then cannot be measured here.
        """
        e, sites = self.experiment, self.sites
        N = len(sites.known)
        judged = e.oracle is not None and not self._hides
        if self._hides and "contribution" in self.method.needs:
            raise SitesError(
                f"{self.method} measures what each site reaches alone on the server's validation data, and keeps a part of "
                "every model at its site, so that the server has no model to measure. Leave one of the two out of method."
            )

        def make(m: int) -> Parcel:
            return Parcel({"client": m, "t": 0, "rounds": rounds, "model": judged}, {"initial": e.setup.initial})

        tested: list[float | None] = [None] * N
        scores: list[float] = [0.0] * N
        for m, answer in sites.ask("train.alone", 0, range(N), make, sites.deadline * rounds):
            name = sites.known[m].name
            if isinstance(answer, str):
                raise SitesError(f"What {name} reaches alone is not known: it {answer}.")
            if failed := answer.told.get("failed"):
                log.warning("%s cannot train alone to the end (it %s); its last good model counts", name, failed)
            try:
                tested[m] = _fraction(answer.told["accuracy"]) if sites.known[m].tests else None
                vector = changed(answer.part("model"), None, e.setup.initial.cpu()) if judged else e.setup.initial
                if not vector.isfinite().all():
                    raise CodecError("its model is not finite.")
            except (CodecError, *UNFIT) as error:
                why = str(error) if isinstance(error, CodecError) else "there is no accuracy in [0, 1]."
                raise SitesError(
                    f"What {name} reaches alone is not known: it sent what cannot be used: {why}"
                ) from None
            if judged and e.oracle is not None:
                vector = vector.to(e.setup.initial.device)
                with looking(e, 0):
                    scores[m] = float(e.oracle.score(vector)[0])
        complete = tested if all(x is not None for x in tested) else None
        return {"standalone_test": complete, "standalone_val": scores if judged else None, "rounds": rounds}

    def finish(self) -> list[str]:
        """Let every site keep the model that it predicts with; the names of those that could not be reached."""
        sites = self.sites
        lost = []
        for m, answer in sites.ask("query.finish", self.progress.t, range(len(sites.known)), self._finishing):
            if isinstance(answer, str):
                log.warning("%s did not get its model: it %s", sites.known[m].name, answer)
                lost.append(sites.known[m].name)
        return lost

    def _finishing(self, m: int) -> Parcel:
        told, tensors = self._handed(self.progress, m)
        return Parcel({**told, "saved": self.sites.saved[m] if self.sites.saved else -1}, tensors)

    def _vector(self, client: int | None) -> Tensor:
        if client is not None and self.personal:
            raise ValueError(
                f"The model that {self.sites.known[client].name} predicts with is made at the site, and kept there as "
                "model.safetensors in its state directory. Leave client out for the global model."
            )
        return super()._vector(client)


@dataclass(frozen=True)
class Tested:
    """What a site found on its test sets: scores, samples, and the accuracy over all samples of the model it predicts with."""

    scores: dict[str, dict[str, Any]]
    sizes: dict[str, int]
    accuracy: float

    @staticmethod
    def of(told: Mapping[str, Any], tests: Iterable[str], measures: Iterable[str], n_classes: int) -> Tested | str:
        """From what a site with these ``tests`` said when it was asked for ``measures``; why it cannot be used, if it cannot."""
        try:
            scores = {name: _score(told["scores"][name], measures, n_classes) for name in tests}
            sizes = {name: int(told["sizes"][name]) for name in scores}
            if not all(0 < n < 2**53 for n in sizes.values()):
                raise ValueError("sizes")
            return Tested(scores, sizes, _fraction(told["accuracy"]))
        except UNFIT:
            return "sent scores that cannot be used"


def _score(told: Mapping[str, Any], measures: Iterable[str], n_classes: int) -> dict[str, Any]:
    """What a site said of one of its test sets; a measure other than accuracy may be NaN, where it is not defined."""
    score: dict[str, Any] = {"accuracy": _fraction(told["accuracy"]), "loss": float(told["loss"])}
    score |= {name: _fraction(told[name], nan=True) for name in measures if name not in score and name != RATES}
    if RATES in measures:
        score[RATES] = _counts(told[RATES], n_classes)
    missing = [int(c) for c in told.get("missing", ())]
    return {**score, "missing": missing} if missing else dict(score)


def _counts(told: Any, n_classes: int) -> dict[str, list[int]] | float:
    """Counts per class that fit together; or NaN, where the model gave no number.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError, OverflowError : they are none.
    """
    if isinstance(told, float) and math.isnan(told):
        return told
    counts = {name: [int(count) for count in told[name]] for name in ("right", "true", "chosen")}
    if len(counts["true"]) != (n_classes or len(counts["true"])) or not 0 < sum(counts["true"]) < 2**53:
        raise ValueError("counts")
    rates_of(counts)
    return counts


def _fraction(told: Any, *, nan: bool = False) -> float:
    """A number in [0, 1].

    Raises
    ------
    TypeError, ValueError, OverflowError : it is none.
    """
    if not (0 <= (x := float(told)) <= 1 or (nan and math.isnan(x))):
        raise ValueError(told)
    return x


def _pooled(found: Sequence[Tested]) -> dict[str, dict[str, Any]]:
    """Scores by test set; those of sets of one name, which several sites have, are averaged by samples."""
    groups: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for tested in found:
        for name, score in tested.scores.items():
            groups.setdefault(name, []).append((tested.sizes[name], score))
    return {name: dict(parts[0][1]) if len(parts) == 1 else _averaged(parts) for name, parts in groups.items()}


def _averaged(parts: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Means by samples; of a measure, over the sites where it is defined."""

    def mean(key: str) -> float:
        known = [(n, score[key]) for n, score in parts if key == "loss" or not math.isnan(score[key])]
        return sum(n * x for n, x in known) / sum(n for n, _ in known) if known else math.nan

    means: dict[str, Any] = {key: mean(key) for key in parts[0][1] if key not in ("missing", RATES)}
    if known := [score[RATES] for _, score in parts if isinstance(score.get(RATES), dict)]:
        means[RATES] = {name: np.sum([counts[name] for counts in known], axis=0).tolist() for name in known[0]}
    missing = sorted({x for _, score in parts for x in score.get("missing", [])})
    return {**means, "missing": missing} if missing else dict(means)
