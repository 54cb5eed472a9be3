"""Send changed messages to sites and to a server, and look whether they keep what docs/security.md promises.

    python tools/fuzz_messages.py --messages 10000 --seed 0            # print the table
    python tools/fuzz_messages.py --messages 10000 --seed 0 --write    # and keep it in docs/security.md
    python tools/fuzz_messages.py --replay CASE                        # one case again, as it was printed

Small runs in this process give messages of every kind, each with the files that the site had when it came. Hypothesis draws one of
them and how to change it. A site is sent the changed message and then, if it refuses, the right one: it must answer that as if nothing had
happened. A server gets a changed answer in a run of one round, which must end as if the answer were right, or as if it had not come.
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from claims import filled
from flwr.app import Context, Error, Message, RecordDict
from fuzz_changes import CHANGE, Change, Draft, change
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from safetensors.torch import load
from torch import Tensor, nn

import equipoise as eq
from equipoise.federation.history import History
from equipoise.federation.method import Method
from equipoise.flower.app import make_client_app
from equipoise.flower.codec import KEYS as SENT, LOST, Parcel, changed
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.internals import number
from equipoise.flower.server.consortium import Consortium, description, federation
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.site.task import Task
from equipoise.metrics.classification import MEASURES
from equipoise.system import text
from equipoise.system.errors import RunError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "security.md"
NAMES = ("ward-a", "ward-b", "ward-c")
SECRET = "patient-4711"  # a word that only sites know
LIMIT = 20  # seconds for one message
MEMORY = 256 * 2**20  # bytes by which one message may make the process grow
RUNS: dict[str, dict[str, Any]] = {
    "scaffold": {"method": "scaffold"},
    "fedsac": {"method": "fedsac"},
    "fedbn": {"method": "fedbn", "normed": True},
    "fedavg, numbers": {"method": "fedavg", "numbers": True},
    "fedavg, masked": {"method": "fedavg", "secure": True},
    "ditto, masked": {"method": "ditto", "secure": True},
}
ANSWERS = {  # the fields that a site may send in answer to each kind of message, beside its name
    "query.describe": {"size", "shape", "dtype", "tests", "test_sizes", "agreement"},
    "train": {"receipt", "cut", "seconds"},
    "train.alone": {"failed", "tallies"},
    "evaluate": {"scores", "own"},
    "evaluate.validation": {"found"},
    "query.finish": set(),
    "query.keys": {"key", "number", "opened", "keys"},
    "train.masked": {"receipt", "seconds"},
    "train.sum": {"shares", "hashes"},
    "query.unmask": {"shares"},
}
PLACES = (str(Path.cwd()), str(Path.home()), sys.prefix, str(Path(eq.__file__).parent))  # of this machine
SCORES = {"sums", "missing", *MEASURES}  # of a test set: no sample by itself
KEYS = ("", *SENT)  # of an error
ONCE = {"shares", "hashes", "seconds"}  # fields that differ whenever they are made
MASKED = ("train.masked", "train.sum", "query.unmask")
WORK = re.compile(r'"(epochs|steps|rounds)": *[0-9]{4,}')  # as much training as a server likes to ask for: no case


@dataclass(frozen=True)
class Recorded:
    """A message of a right run: its kind, the site it went to, its content, and the files that the site had."""

    run: str
    kind: str
    site: str
    content: RecordDict
    files: Mapping[str, tuple[bytes, int]]


@dataclass(frozen=True)
class Case:
    """A message, by its number among those of its side, and what is changed in it."""

    side: str
    number: int
    changes: tuple[Change, ...]


# a limit counts processor time, as a busy machine is no hang; and many times as much real time, for what only waits
TIMERS = ((signal.SIGPROF, signal.ITIMER_PROF, 1), (signal.SIGALRM, signal.ITIMER_REAL, 60))


class Hangs(BaseException):
    """A message took too long."""


# small runs
class Normed(nn.Module):
    """A network with BatchNorm, which FedBN keeps at its sites."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        head: Tensor = self.head(torch.tanh(self.norm(self.a(x))))
        return head


def network(normed: bool, outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return (Normed() if normed else nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, outputs))).double()


def samples(n: int, k: int, numbers: bool = False) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(k), dtype=torch.float64) + 0.2 * k
    return x, 5 + x[:, 0] if numbers else (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def task_of(run: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Task]:
    numbers = RUNS[run].get("numbers", False)
    net = network(RUNS[run].get("normed", False), 1 if numbers else 3)
    what = "regression(centre=5, scale=2)" if numbers else "classification"

    def task(node: Mapping[str, Any], _: Mapping[str, Any]) -> Task:
        if "site" not in node:
            return Task(net, server_validation=samples(40, 9, numbers), task=what)
        k = NAMES.index(node["site"])
        return Task(net, samples((9, 14, 11)[k], k, numbers), samples(12, k + 5, numbers), task=what)

    return task


def nodes(run: str, states: Path) -> list[dict[str, Any]]:
    own = {"secure": True} if RUNS[run].get("secure") else {}
    own |= {"least-sites": 2} if "masked" in run else {}
    return [{"site": name, "state-dir": str(states), "data-ward": SECRET, **own} for name in NAMES]


@cache
def lasting(run: str, use: str = "site") -> tuple[Any, Path]:
    """An app that keeps its sites open, and their one state directory."""
    states = Path(tempfile.mkdtemp(prefix="fuzz-")).resolve()
    atexit.register(shutil.rmtree, states, ignore_errors=True)
    return make_client_app(task_of(run), keep=4, simulated=True), states / "states"


def play(run: str, folder: Path, rounds: int, least: int = 3) -> tuple[eq.Federation, History]:
    """A run of its server, sites and messages in a folder, and what is written of it."""
    secure = RUNS[run].get("secure", False)
    method = Method.of(RUNS[run]["method"])
    chosen = eq.Settings(seed=3, batch_size=4, validation=0.0 if secure else 0.3, quorum=0.5, norm_limit=100.0)
    server, solver = task_of(run)({}, {}), eq.SGD(0.05, 0.9)
    app, states = lasting(run, "server")
    shutil.rmtree(states, ignore_errors=True)
    told = description(method, solver, chosen, ("accuracy", "auc"), "trial")
    sites = Sites(Exchange(InProcessGrid(app, nodes(run, states), {}), told, deadline=0.3, poll=0.01))
    sites.gather(least, (), 0.0)
    fed = federation(server, sites, method, solver, secure=secure, settings=chosen)
    fed.prepare(rounds, progress=False)
    fed.fit(rounds, directory=folder, progress=False)
    if not secure:
        fed.standalone(1)
    assert isinstance(fed.population, Consortium)
    fed.population.finish(fed.trial, fed.progress)
    history = History.from_run(folder)
    json.dumps(history.summary())
    return fed, history


def site_of(grid: InProcessGrid, message: Message) -> str:
    return str(grid.contexts[message.metadata.dst_node_id].node_config["site"])


@contextmanager
def meddling(meddle: Callable[[InProcessGrid, Message, Callable[[Message], Message]], Message]) -> Iterator[None]:
    """Let a function stand between the grid and the sites."""
    answered = InProcessGrid._answered
    with patch.object(InProcessGrid, "_answered", lambda grid, m: meddle(grid, m, lambda m: answered(grid, m))):
        yield


def instead(reply: Message, content: RecordDict | Error) -> Message:
    """Another reply to the same message."""
    other = Message(content, reply_to=reply)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return other


@cache
def recorded() -> tuple[Recorded, ...]:
    """The messages of two rounds of every run; one site of the masked ones vanishes once, so that the others unmask its part."""
    found: list[Recorded] = []
    for run in RUNS:

        def keeps(
            grid: InProcessGrid, message: Message, answer: Callable[[Message], Message], run: str = run
        ) -> Message:
            kind, site = message.metadata.message_type, site_of(grid, message)
            states = Path(grid.contexts[1].node_config["state-dir"])
            found.append(Recorded(run, kind, site, message.content, files(states / "trial" / site)))
            reply = answer(message)
            unmasked = sum((one.run, one.kind, one.site) == (run, kind, site) for one in found)
            if (kind, site, unmasked) == ("query.unmask", "ward-c", 2):
                return instead(reply, Error(5, "away"))
            return reply

        with tempfile.TemporaryDirectory() as folder, meddling(keeps), told():
            play(run, Path(folder), 2)
    return tuple(found)


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Content and mode of all files of a directory."""
    return {p.name: (p.read_bytes(), p.stat().st_mode & 0o777) for p in sorted(directory.glob("*"))}


# one message to a site
SANDBOX: list[Path] = []  # where files may be written at this moment
WRITTEN: list[str] = []  # what was opened to be written, made or renamed elsewhere


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not SANDBOX or event not in (
        "open",
        "os.rename",
        "os.mkdir",
        "os.remove",
        "os.symlink",
        "os.link",
        "subprocess.Popen",
        "os.system",
        "socket.connect",
    ):
        return
    if event == "open" and not (int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        return
    path = str(arguments[1] if event in ("os.rename", "os.link") else arguments[0])
    if event == "open" and (not isinstance(arguments[0], str | bytes | os.PathLike) or path == os.devnull):
        return
    if SANDBOX[0] not in Path(os.path.realpath(path)).parents:
        WRITTEN.append(f"{event} {path}")


@cache
def _watching() -> None:
    sys.addaudithook(_watch)


@contextmanager
def told() -> Iterator[list[logging.LogRecord]]:
    """What is logged, and not printed."""
    seen: list[logging.LogRecord] = []
    handler, ours = logging.Handler(), [logging.getLogger(name) for name in ("equipoise", "flwr")]
    handler.emit = seen.append  # type: ignore[method-assign]
    before = [(each.handlers, each.propagate) for each in ours]
    for each in ours:
        each.handlers, each.propagate = [handler], False
    try:
        yield seen
    finally:
        for each, (handlers, propagate) in zip(ours, before, strict=True):
            each.handlers, each.propagate = handlers, propagate


@contextmanager
def bounded(limit: float) -> Iterator[list[str]]:
    """What a block broke of the bounds of time and memory."""
    broken: list[str] = []

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = [signal.signal(number, ring) for number, *_ in TIMERS]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _, timer, factor in TIMERS:
        signal.setitimer(timer, factor * limit)
    try:
        yield broken
    except Hangs:
        broken.append(f"took more than {limit:g} s")
    finally:
        for (number, timer, _), handler in zip(TIMERS, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
    if (grown := 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most)) > MEMORY:
        broken.append(f"took {grown >> 20} MB more memory")


@contextmanager
def same_draws() -> Iterator[None]:
    """Secrets that are the same every time, however many files are written, so that answers can be compared."""
    secret, name = iter(range(10**9)), iter(range(10**9))
    with (
        patch("secrets.token_bytes", lambda n=32: next(secret).to_bytes(8, "little") * (n // 8) + bytes(n % 8)),
        patch("secrets.token_hex", lambda n=32: f"{next(name):0{2 * n}x}"),  # of temporary files
    ):
        yield


def ask(one: Recorded, content: RecordDict) -> Message:
    """A site's reply to a message."""
    app, states = lasting(one.run)
    InProcessGrid(app, [], {})
    message = Message(content, 1, one.kind, group_id="0")
    number(message, "1")
    node = next(each for each in nodes(one.run, states) if each["site"] == one.site)
    with same_draws():
        reply: Message = app(message, Context(1, 1, node, RecordDict(), {}))
        return reply


def put(one: Recorded) -> Path:
    """The files of a site as they were."""
    _, states = lasting(one.run)
    shutil.rmtree(states, ignore_errors=True)
    directory = states / "trial" / one.site
    directory.mkdir(parents=True)
    for name, (content, mode) in one.files.items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(mode)
    return directory


def plain(reply: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An answer without what differs every time."""
    parcel = Parcel.of(reply.content)
    return {key: x for key, x in parcel.fields.items() if key not in ONCE}, parcel.tensors


def alike(one: Message, other: Message) -> bool:
    (fields, tensors), (theirs, others) = plain(one), plain(other)
    return (
        json.dumps(fields) == json.dumps(theirs)
        and tensors.keys() == others.keys()
        and all(torch.equal(x, others[k]) for k, x in tensors.items())
    )


@cache
def right(number: int) -> Message:
    """The answer to a message as it was recorded."""
    with told():
        put(recorded()[number])
        return ask(recorded()[number], recorded()[number].content)


def whole(one: Recorded) -> RecordDict:
    """The same message with the whole model in place of a change, as a server sends it that was told that the model is not here."""
    parcel = Parcel.of(one.content)
    vectors = load(one.files["base.safetensors"][0])
    token = parcel.fields["model"]["base"]
    like = vectors[token]
    vector = changed(parcel.part("model"), like, like)
    rest = {name: x for name, x in parcel.tensors.items() if not name.startswith("model/")}
    fields = {**parcel.fields, "model": {"base": None, "keep": "after"}}
    return Parcel(fields, rest | {"model/values": vector}).records()


def at_site(case: Case) -> tuple[str, str, list[str]]:
    """The kind of a message, what a site made of it, and which promises it broke."""
    number = case.number % len(recorded())
    one = recorded()[number]
    content = change(one.content, case.changes, bank())
    if WORK.search(str(content.config_records.get("fields", {}).get("json"))):
        return one.kind, "no case", []
    _watching()
    usual = right(number)
    with told() as log:
        directory = put(one)
        SANDBOX[:], WRITTEN[:] = [lasting(one.run)[1]], []
        try:
            with bounded(LIMIT) as broken:
                reply = ask(one, content)
        except Exception as error:
            return one.kind, "refused", [f"the site does not reply: {type(error).__name__}: {error}"]
        finally:
            SANDBOX.clear()
        if broken:
            return one.kind, "refused", broken
        broken += [f"outside of the state directory: {each}" for each in WRITTEN]
        broken += [
            f"tried to allocate: {each.exc_info[1]}"
            for each in log
            if each.exc_info and re.search("(?i)alloc|out of memory", str(each.exc_info[1]))
        ]
        said = str(reply.content.config_records["fields"]["json"])
        parcel = Parcel.of(reply.content)
        broken += leaks(one, said, parcel)
        if "error" not in parcel.fields:
            return one.kind, "taken", broken
        after = {name: x for name, x in files(directory).items() if name != "base.safetensors"}
        before = {name: x for name, x in one.files.items() if name != "base.safetensors"}
        once = one.kind in MASKED or (one.kind == "evaluate" and RUNS[one.run].get("secure"))  # of its answers
        if not once and after != before:
            broken.append(
                f"a refused message changed the site's files: {sorted(set(after.items()) ^ set(before.items()))[0][0]}"
            )
        again = ask(one, one.content)
        if Parcel.of(again.content).fields.get("key") == LOST:
            again = ask(one, whole(one))
        if once and "refuses" in str(Parcel.of(again.content).fields.get("error")):
            return one.kind, "refused for the round", broken
        if not alike(again, usual):
            broken.append(f"the right message is answered otherwise afterwards: {Parcel.of(again.content).fields}")
        return one.kind, "refused", broken


@cache
def bank() -> tuple[Draft, ...]:
    return tuple(Draft.of(one.content) for one in recorded())


def leaks(one: Recorded, said: str, parcel: Parcel) -> Iterator[str]:
    """What an answer tells that must not leave the site."""
    keys = [json.loads(one.files["masks.json"][0])["key"]] if "masks.json" in one.files else []
    for word in (SECRET, *PLACES, str(lasting(one.run)[1]), "Traceback", "tensor(", *keys):
        if word in said:
            yield f"the answer tells {word!r}: {said[:300]}"
    if "error" in parcel.fields:
        if (
            parcel.tensors
            or parcel.fields.keys() - {"error", "name", "key"}
            or parcel.fields.get("key", "") not in KEYS
        ):
            yield "an error comes with more than its words"
        return
    if strange := parcel.fields.keys() - ANSWERS[one.kind] - {"name"}:
        yield f"the answer has the fields {sorted(strange)}"
    if strange := {key for score in parcel.fields.get("scores", {}).values() for key in score} - SCORES:
        yield f"scores have {sorted(strange)}"
    sent = torch.cat([x.flatten().double() for x in parcel.tensors.values()] or [torch.zeros(0).double()])
    for name in ("own", "update"):
        for content, _ in one.files.values():
            for key, x in (load(content) if content[8:9] == b"{" else {}).items():
                kept = x.flatten().double()
                kept = kept[(kept != 0) & (kept != 1)]
                if key.rpartition("/")[2] == name and bool(torch.isin(kept, sent).any()):
                    yield f"the answer has numbers of {key}, which stay at the site"


# one answer to a server
def at_server(case: Case) -> tuple[str, str, list[str]]:
    """The kind of a message whose answer is changed, what the server made of it, and which promises it broke."""
    run, site, number = answers()[case.number % len(answers())]
    others = replies()  # now, as it takes runs of its own
    names = {site}  # without keys a site is who it says it is

    def meddle(reply: Message) -> Message:
        content = change(reply.content, case.changes, others)
        with suppress(Exception):
            names.add(text.name(Parcel.of(content).fields["name"]))
        return instead(reply, content)

    kind, ended = outcome(run, site, number, meddle)
    renamed = kind == "query.describe" and len(names) > 1
    if isinstance(ended, list):
        return kind, "refused", ended
    honest, without = right_end(run), end_without(run, site, number)
    broken = []
    if isinstance(ended, str):  # the run stopped, and says why
        named = any(name in ended for name in names) or f"node {1 + NAMES.index(site)} " in ended
        spoilt = kind in MASKED and "masks do not fit" in ended
        if not named and not spoilt:
            broken.append(f"the run stops without naming {site}: {ended}")
        if text.visible(ended) != ended:
            broken.append(f"an error with signs that steer a terminal: {ended!r}")
        return kind, "the run stops", broken
    lost = {q["name"] for record in ended.records for q in record.get("quarantined", [])}
    if lost - names:
        broken.append(f"others are thrown out: {sorted(lost - names)}")
    if not all(
        text.visible(q["reason"]) == q["reason"] for record in ended.records for q in record.get("quarantined", [])
    ):
        broken.append("a reason with signs that steer a terminal")
    if ended.vector in (honest.vector, getattr(without, "vector", None)):
        return kind, "refused" if ended.vector != honest.vector or lost else "no harm", broken
    trains = kind == "query.describe" or kind.startswith("train")
    described = kind == "query.describe" and lost == {
        site
    }  # falsely: it is let in, and left out of the round by its name
    if not trains or (lost and not renamed and not described):
        broken.append("the model is neither that of a run with the site nor that of one without it")
    return kind, "taken", broken


@dataclass(frozen=True)
class End:
    """What a run ended with."""

    vector: bytes
    records: list[dict[str, Any]]


def outcome(
    run: str, site: str, number: int, meddle: Callable[[Message], Message]
) -> tuple[str, End | str | list[str]]:
    """The kind of the answer ``number`` of a site that is changed, and how a run of one round ends: or what it breaks."""
    seen: list[str] = []

    def changes(grid: InProcessGrid, message: Message, answer: Callable[[Message], Message]) -> Message:
        reply = answer(message)
        if site_of(grid, message) != site:
            return reply
        seen.append(message.metadata.message_type)
        return meddle(reply) if len(seen) == number + 1 else reply

    def kind() -> str:
        return seen[number] if len(seen) > number else "none"

    with tempfile.TemporaryDirectory() as folder, told() as log, meddling(changes), bounded(LIMIT) as broken:
        try:
            fed, history = play(run, Path(folder), 1, least=2)
        except RunError as error:
            return kind(), str(error)
        except Exception as error:
            return kind(), [f"the server ends with {type(error).__name__}: {error}"]
        if any(text.visible(record.getMessage()) != record.getMessage() for record in log):
            broken.append("a line of the log with signs that steer a terminal")
        if not broken:
            return kind(), End(fed.progress.vector.numpy().tobytes(), history.records)
    return kind(), broken


@cache
def right_end(run: str) -> End:
    _, end = outcome(run, "", 0, lambda reply: reply)
    assert isinstance(end, End), end
    return end


@cache
def end_without(run: str, site: str, number: int) -> End | str | list[str]:
    return outcome(run, site, number, lambda reply: instead(reply, Error(5, "away")))[1]


@cache
def answers() -> tuple[tuple[str, str, int], ...]:
    """Every answer of every site in a run of one round: its run, its site, and its number."""
    found = []
    for run in RUNS:
        count: Counter[str] = Counter()

        def counts(
            grid: InProcessGrid, message: Message, answer: Callable[[Message], Message], count: Counter[str] = count
        ) -> Message:
            count[site_of(grid, message)] += 1
            return answer(message)

        with tempfile.TemporaryDirectory() as folder, told(), meddling(counts):
            play(run, Path(folder), 1)
        found += [(run, site, k) for site in NAMES for k in range(count[site])]
    return tuple(found)


@cache
def replies() -> tuple[Draft, ...]:
    """Right answers, which lend others their parts."""
    return tuple(Draft.of(right(k).content) for k in range(len(recorded())))


# many
def cases(side: str) -> st.SearchStrategy[Case]:
    return st.builds(Case, st.just(side), st.integers(0, 10**6), st.lists(CHANGE, min_size=1, max_size=3).map(tuple))


def verdict(case: Case) -> tuple[str, str, list[str]]:
    return at_site(case) if case.side == "site" else at_server(case)


def drawn(side: str, messages: int, start: int, use: Callable[[Case], None]) -> None:
    """Give so many cases to a function."""
    left = iter(range(messages))

    @seed(start)
    @settings(
        max_examples=messages + 1,  # of which Hypothesis may give one fewer
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(side))
    def each(case: Case) -> None:
        if next(left, None) is not None:
            use(case)

    each()


Found = dict[tuple[str, str], Counter[str]]
PARTS = 20  # in which all are drawn, so that those of a run that is cut short are of every kind


def fuzzed(messages: int, start: int, until: float) -> tuple[Found, list[tuple[Case, list[str]]]]:
    """What became of so many messages, or of those for which there is time, by side and kind; and the broken promises."""
    found: Found = {}
    wrong: list[tuple[Case, list[str]]] = []

    def use(case: Case) -> None:
        if time.monotonic() > until:
            return
        kind, what, broken = verdict(case)
        found.setdefault((case.side, kind), Counter())[what] += 1
        if broken:
            wrong.append((case, broken))

    for part in range(PARTS):
        if time.monotonic() > until:
            break
        n = messages * (part + 1) // PARTS - messages * part // PARTS
        drawn("site", n - n // 5, PARTS * start + part, use)
        drawn("server", n // 5, PARTS * start + part, use)  # each of which is a run
    return found, wrong


COLUMNS = {  # of the table: what is counted in each
    "messages": ("taken", "no harm", "refused", "refused for the round", "the run stops"),
    "refused, and nothing is changed": ("refused",),
    "refused for the round": ("refused for the round",),
    "the run stops and names the site": ("the run stops",),
    "taken as right, or without effect": ("taken", "no harm"),
}


def table(found: Found, wrong: list[tuple[Case, list[str]]], *, by_kind: bool = True) -> Iterator[str]:
    """The lines of the table: a row for each kind of message, or for each side."""
    yield f"| | {' | '.join(COLUMNS)} |"
    yield "|---|" + "---:|" * len(COLUMNS)
    for side, words in (("site", "to a site"), ("server", "answer to a server")):
        of_side = {kind: counts for (each, kind), counts in found.items() if each == side}
        rows = {f"{words}: `{kind}`": of_side.get(kind, Counter()) for kind in ANSWERS}
        for words_of_row, counts in (rows if by_kind else {words: sum(of_side.values(), Counter())}).items():
            if sum(counts[what] for what in COLUMNS["messages"]):
                yield f"| {words_of_row} | {' | '.join(str(sum(counts[w] for w in of)) for of in COLUMNS.values())} |"
    total = [sum(counts[w] for counts in found.values() for w in of) for of in COLUMNS.values()]
    yield f"| all | {' | '.join(map(str, total))} |"
    yield ""
    yield f"Promises broken: {len(wrong)}."


def read_case(text: str) -> Case:
    fields = json.loads(text)
    return Case(fields["side"], fields["number"], tuple(Change(**each) for each in fields["changes"]))


def main() -> None:
    """Draw messages, print the table; status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no other is drawn (no limit)")
    parser.add_argument("--replay", help="one case, as it was printed")
    parser.add_argument("--write", action="store_true", help="keep the table in docs/security.md")
    chosen = parser.parse_args()
    os.fsync = lambda _: None  # type: ignore[assignment]  # nothing here outlives a crash of the machine
    torch.set_num_threads(1)
    if chosen.replay:
        print(*verdict(read_case(chosen.replay)), sep="\n")
        return
    began = time.monotonic()
    found, wrong = fuzzed(chosen.messages, chosen.seed, began + 60 * chosen.minutes)
    for case, broken in wrong:
        print(f"{'; '.join(broken)}\n  --replay {shlex.quote(json.dumps(asdict(case)))}")
    lines = list(table(found, wrong))
    print("\n".join(lines))
    print(f"{time.monotonic() - began:.0f} s")
    if chosen.write:
        command = shlex.join(["python", "tools/fuzz_messages.py", *sys.argv[1:]])
        lines = [f"Made by `{command}`; do not edit.", "", *table(found, wrong, by_kind=False)]
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "changed messages", lines), encoding="utf-8")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
