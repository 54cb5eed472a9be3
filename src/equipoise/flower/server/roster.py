"""The sites of an experiment: how they are asked through a Flower grid, which are connected, and whether they can take part."""

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

from equipoise.data.batch import Kind, Shape, listed
from equipoise.data.tables.columns import ordered
from equipoise.federation.fingerprint import agreed, unlike
from equipoise.flower.codec import KEYS, UNFIT, CodecError, Parcel
from equipoise.flower.site.task import VALUES
from equipoise.system import text
from equipoise.system.errors import RunError
from equipoise.system.text import Said, visible

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
                yield node, Said("could not be sent its part", AWAY)
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
        yield from ((node, Said(f"did not answer within {deadline:g} s", AWAY)) for node in waiting.values())


def _read(reply: Message) -> Parcel | str:
    """The content of a reply, or why there is none; without the text of Flower's errors, which may contain data of a site."""
    if reply.has_error():
        code = reply.error.code
        return Said(CODES.get(code, f"failed (Flower's error {code}); the site's log says why"), AWAY)
    try:
        parcel = Parcel.of(reply.content)
    except CodecError as error:
        return f"sent an unusable answer: {error}"
    if "error" not in parcel.fields:
        return parcel
    name = f"({parcel.fields['name']}) " if "name" in parcel.fields else ""
    words = visible(" ".join(f"{name}{parcel.fields['error']}".split())[:500])
    key = parcel.fields.get("key")
    return Said(words, key if key in KEYS else "")


# who takes part
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
class Roster:
    """The sites of one experiment, and at which node each of them is now.

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
    _seen: dict[int, str] = field(default_factory=dict)  # the site at each node
    _refused: dict[int, str] = field(default_factory=dict)  # why a connected node does not take part
    _failed: dict[int, tuple[float, float]] = field(default_factory=dict)  # when a node is asked again, next delay

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
            for gone in [node for node in by_node if node not in online]:
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
            other = self.nodes.get(site.name)
            # one that was killed counts as connected for another minute
            if other is not None and any(isinstance(again, Parcel) for _, again in self._describe([other])):
                twice = f"Two nodes call themselves {site.name}: {other} and {node}. Give each site its own name, by site=... in --node-config or --name."
                if not self.agreed:  # before the first round
                    raise RunError(twice)
                log.warning("%s The first continues to take part.", twice)
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


def _require_agreed(sites: Mapping[str, Mapping[str, str]], server: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What :func:`equipoise.federation.fingerprint.agreed` gives, if all sites agree."""
    agreement = agreed(sites, server)
    if wrong := [f"{name} {why}" for name, codes in sites.items() if (why := unlike(codes, agreement))]:
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
    except UNFIT:
        return "does not describe itself as a site"
