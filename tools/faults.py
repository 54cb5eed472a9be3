"""Break a federation of real processes on this machine, again and again, and look what comes of it.

    python tools/faults.py                        # all faults, about fifty minutes
    python tools/faults.py --write                # and keep the table in docs/security.md
    python tools/faults.py --only lost --seed 3   # the faults whose name contains a word, with one seed

A SuperLink and three SuperNodes with TLS and keys on loopback train a small network with SCAFFOLD, whose sites have a state to lose.
One fault follows the other in the rounds of a run, at a random moment; where the server is hit the same command is run again. A fault is
contained if all rounds are done in the end, nobody but the site that was hit is left out of one, and the record says why it was. After each
round the model must have the bits of a simulation in which the same sites are left out of the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from claims import filled
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

import equipoise as eq
from equipoise.engines.sequential import sequential
from equipoise.federation import checkpoint
from equipoise.flower.deploy import project
from equipoise.flower.deploy.local import ONLINE, LocalFederation, descendants, end, free_ports
from equipoise.system.errors import RunError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "security.md"
SITES = ("north", "south", "west")
DEADLINE = 90.0  # seconds a site may take
LIMIT = 1800.0  # seconds for one attempt of a run
SETTINGS: dict[str, Any] = {
    "method": "scaffold", "epochs": 1, "lr": 0.05, "momentum": 0.0, "weight-decay": 0.0, "batch-size": 8,
    "quorum": 0.3, "deadline": DEADLINE, "poll": 0.3,
}  # fmt: skip

TASK = '''
import json
from pathlib import Path

import psutil
import torch
from torch import nn

from equipoise.flower import Task
from equipoise.flower.codec import Parcel
from equipoise.flower.site import site as sites


def blobs(k, n=24):
    draw = torch.Generator().manual_seed(k)
    y = torch.arange(n) % 3
    return torch.randn(n, 8, generator=draw) + y[:, None], y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 2048), nn.ReLU(), nn.Linear(2048, 3))


def task(node_config, run_config):
    if "partition-id" not in node_config:
        return Task(network())
    k, how = node_config["partition-id"], Path(node_config["state-dir"]) / "fault"
    return Task(network(), train=blobs(k, 25 if how.exists() and how.read_text() == "other data" else 24))


def train(site, asked, train=sites.KINDS["train"]):
    """Send the answer of an earlier round again, if the site is told so."""
    state = site.store.directory.parent.parent
    kept, how = state / "answer.pt", state / "fault"
    if how.exists() and how.read_text() == "old answer" and kept.exists():
        return Parcel(*torch.load(kept))
    answer = train(site, asked)
    torch.save((answer.fields, answer.tensors), kept)
    return answer


sites.KINDS["train"] = train
'''

CLOCK = """
import datetime
import os
import time

AHEAD = float(os.environ.get("CLOCK_AHEAD", "0"))
if AHEAD:
    now, nanoseconds, plain = time.time, time.time_ns, datetime.datetime
    time.time, time.time_ns = lambda: now() + AHEAD, lambda: nanoseconds() + int(AHEAD * 1e9)

    class Ahead(plain):
        @classmethod
        def now(cls, tz=None):
            return plain.now(tz) + datetime.timedelta(seconds=AHEAD)

        @classmethod
        def utcnow(cls):
            return plain.now(datetime.timezone.utc).replace(tzinfo=None) + datetime.timedelta(seconds=AHEAD)

    datetime.datetime = Ahead
"""


@dataclass
class Try:
    """One fault, and what came of it."""

    fault: str
    seed: int
    site: str = ""
    rounds: tuple[int, int] = (0, 0)  # from the first that it could touch, to the first of the next fault
    contained: bool = False
    equal: bool = False
    said: list[str] = field(default_factory=list)
    refused: bool = True  # what should have been refused was

    @cached_property
    def draw(self) -> random.Random:
        """All that is random in it."""
        return random.Random(f"{self.fault} {self.seed}")


class Stopped(Exception):  # noqa: N818
    """An attempt that was ended from outside."""


Fault = Callable[["Campaign", random.Random, Try], Iterator[bool]]
STOP, ROUND = True, False  # what a fault waits for: the end of this attempt, or another complete round


class Campaign:
    """The federation that is broken, and one run after the other in it.

    Parameters
    ----------
    directory : of all that is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        project.init(directory / "app", SITES)
        (directory / "app" / "mytask.py").write_text(TASK)
        apps = directory / "app" / "myapp.py"
        apps.write_text(apps.read_text().replace("(task, METHOD)", "(task)"))  # these sites take part in any run
        (directory / "clock").mkdir()
        (directory / "clock" / "sitecustomize.py").write_text(CLOCK)
        path = os.pathsep.join([str(directory / "clock"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.local = LocalFederation(
            directory / "local", directory / "app", SITES, tls=True, patience=180.0, variables={"PYTHONPATH": path}
        )
        self.run, self.R, self.count, self.wait = directory, 0, 0, 240.0
        self.up = dict.fromkeys(SITES, 0.0)  # nodes that should be there, and when they are looked after next
        self.variables: dict[str, dict[str, str]] = {}  # of single sites

    def rounds(self, faults: Sequence[Sequence[tuple[str, int]]], until: float) -> tuple[list[Try], int]:
        """One run, in which these faults are made, one group after the other, until there is no time for more.

        Returns
        -------
        Those that were made, and how many groups they are.
        """
        self.count += 1
        self.run, self.R = self.directory / f"run-{self.count}", 2 * len(faults) + 2
        models: dict[int, torch.Tensor] = {}
        tries: list[list[Try]] = []
        rest, attempts, failed = list(faults), 0, 0
        going: Iterator[bool] | None = None
        since, after, pause = time.monotonic(), 1, 0.0

        def advance() -> bool:
            """Let the faults go on to what they wait for; whether that is the end of the attempt."""
            nonlocal going, after, since
            assert going is not None
            try:
                stop = next(going, None)
            except Exception as error:  # what is broken could not be mended: the others are tried all the same
                for one in tries[-1]:
                    one.said.append(f"{type(error).__name__}: {error}"[:300])
                    one.refused = False
                stop = None
            since, after = time.monotonic(), done(self.run) + 1
            if stop is None:
                going, after = None, max(1, done(self.run) + FAULTS[tries[-1][0].fault].alone)
            return bool(stop)

        def begin() -> Iterator[bool]:
            for one in (one for group in tries[-1:] for one in group):
                one.rounds = done(self.run), self.R
            each = [FAULTS[one.fault].make(self, one.draw, one) for one in tries[-1]]
            if len(each) == 1:
                yield from each[0]
                return
            while each := [fault for fault in each if next(fault, None) is not None]:
                yield ROUND

        def watch() -> None:
            nonlocal going, since, pause
            note(self.run, models)
            self.keep_up()
            if done(self.run) < after:
                since = time.monotonic()
                return
            if not tries and time.monotonic() > until:
                raise Stopped
            if going is None and rest and done(self.run) < self.R and whole(self.run) and time.monotonic() < until:
                for one in tries[-1] if tries else ():
                    one.rounds = one.rounds[0], done(self.run)
                group = [Try(name, seed) for name, seed in rest.pop(0)]
                sites = group[0].draw.sample(SITES, len(group))
                for one, site in zip(group, sites, strict=True):
                    one.site = site
                    print(f"after round {done(self.run)}: {one.fault} {one.seed}, {site}", file=sys.stderr, flush=True)
                tries.append(group)
                going, since, pause = begin(), time.monotonic(), group[0].draw.uniform(0, 8)
            if going is not None and time.monotonic() - since >= pause:
                pause = 0.0
                if advance():
                    raise Stopped

        while done(self.run) < self.R and failed < 4:
            attempts += 1
            said, outcome = self.attempt(self.R, watch)
            if outcome == "stopped" and not tries:
                return [], 0
            if outcome == "stopped":
                while going is not None and advance():
                    pass
            elif outcome == "failed":
                failed += 1
                print(f"attempt {attempts}: {said}", file=sys.stderr, flush=True)
                for one in tries[-1] if tries else ():
                    one.said.append(said)
        while going is not None:  # the run ended first: mend what is broken
            advance()
        note(self.run, models)
        judge(self.run, self.R, tries, models)
        print(f"run {self.count}: {done(self.run)} rounds, {attempts} attempts", file=sys.stderr, flush=True)
        return [one for group in tries for one in group], len(tries)

    def attempt(self, R: int, watch: Callable[[], None]) -> tuple[str, str]:
        """Run the command until the run ends or is stopped: what was said, and how it ended."""
        told = {**SETTINGS, "rounds": R, "min-sites": len(SITES), "wait": self.wait, "run-dir": str(self.run)}
        limit = time.monotonic() + 60
        while self.server_apps() and time.monotonic() < limit:  # one that was stopped holds its run until it has ended
            time.sleep(0.2)
        try:
            outcome = self.local.run(told, limit=LIMIT, watch=watch)
        except Stopped:
            return "", "stopped"
        except RunError as error:
            return str(error).splitlines()[0][:300], "failed"
        return outcome.reason, "completed" if outcome.completed else "failed"

    def state(self, site: str) -> Path:
        """The state directory of a site."""
        return self.local.directory / "sites" / site

    def keep_up(self) -> None:
        """Start nodes that have ended again, as a service manager does: of a killed one the SuperLink takes no other for a while."""
        for site in SITES:
            if not self.running(site) and site in self.up and time.monotonic() > self.up[site]:
                self.up[site] = time.monotonic() + 10
                kept, self.local.variables = (
                    self.local.variables,
                    {
                        **self.local.variables,
                        **self.variables.get(site, {}),
                    },
                )
                self.local.start_site(site, wait=False)
                self.local.variables = kept

    def running(self, name: str) -> bool:
        """Whether a process is there."""
        process = self.local._running.get(name)
        return process is not None and process.poll() is None

    def repair(self) -> None:
        """Start what is not running, as the next run needs it."""
        for name in ("superlink", *SITES):
            (self.state(name) / "fault").unlink(missing_ok=True)
        if not self.running("superlink"):
            self.local.start_server()
        self.keep_up()

    def kill(self, site: str) -> None:
        """SIGKILL of a node."""
        if self.running(site):
            self.local.kill(site)

    def end_app(self) -> None:
        """SIGKILL of the ServerApp's process, once it is there: one that began later would hold the run."""
        limit = time.monotonic() + 120
        while time.monotonic() < limit:
            if found := self.server_apps():
                end(found)
                return
            time.sleep(0.2)

    def server_apps(self) -> list[psutil.Process]:
        """The processes of the ServerApp."""
        link = self.local._running["superlink"]
        return [each for each in descendants(link.pid) if "flwr-serverapp" in commandline(each)]


def commandline(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def done(run: Path) -> int:
    """How many rounds are complete."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def whole(run: Path) -> bool:
    """Whether all sites took part in the last complete round: only then the next fault is not the last one's."""
    return not json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]).get("quarantined")


def note(run: Path, models: dict[int, torch.Tensor]) -> None:
    """Keep the model of the last checkpoint, by the number of rounds that it comes after."""
    if done(run) and done(run) not in models:
        with suppress(checkpoint.CheckpointError, OSError):
            tensors, meta = checkpoint.read(run / "checkpoint")
            models[int(meta["t"])] = torch.as_tensor(tensors["vector"])


def simulated(lost: Sequence[set[str]]) -> dict[int, torch.Tensor]:
    """The models of a simulation in which these sites are left out, round by round."""
    space: dict[str, Any] = {}
    exec(TASK.partition("\n\ndef task")[0], space)  # the data and the network of the app

    def engine(job: Any) -> Iterator[Any]:
        for answer in sequential(job):
            gone = SITES[job.ids[answer.rows[0]]] in lost[job.t]
            yield replace(answer, error="lost") if gone else answer

    data = [space["blobs"](k) for k in range(len(SITES))]
    fed = eq.Federation(
        space["network"](),
        data,
        "scaffold",
        eq.SGD(0.05),
        batch_size=8,
        names=list(SITES),
        engine=engine,
        norm_limit=100.0,
        quorum=0.3,
    )
    models = {}
    for t in range(len(lost)):
        fed.fit(1, progress=False)
        models[t + 1] = fed.progress.vector
    return models


def judge(run: Path, R: int, tries: Sequence[Sequence[Try]], models: dict[int, torch.Tensor]) -> None:
    """Whether the rounds are done, nobody else was harmed, the reasons are named, and the models are the simulator's."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] if done(run) else []
    lost = [{q["name"]: q["reason"] for q in row.get("quarantined", [])} for row in rows]
    right = simulated([set(of) for of in lost])
    for group in tries:
        first, last = group[0].rounds[0], max(group[0].rounds[1], group[0].rounds[0] + 1)
        hit = {one.site: one for one in group if one.site}
        known = [t for t in range(first + 1, last + 1) if t in models and t in right]
        others = [f"{name} {why}" for of in lost[first:last] for name, why in of.items() if name not in hit]
        for one in group:
            mine = [of[one.site] for of in lost[first:last] if one.site in of]
            one.said += [f"{one.site} {why}" for why in dict.fromkeys(mine)] + [f"besides: {why}" for why in others]
            one.contained = (
                len(rows) == R
                and not others
                and one.refused
                and all(re.search(FAULTS[one.fault].words, why) for why in mine)
            )
            one.equal = bool(known) and all(torch.equal(models[t], right[t]) for t in known)


# faults
AWAY = "did not answer|Flower's error 3|is not reachable|is not connected|stopped in the middle"


def killed_node(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """SIGKILL of a SuperNode, which is started again."""
    c.kill(one.site)
    yield ROUND


def killed_app(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """SIGKILL of the ServerApp's process."""
    c.end_app()
    yield STOP


def killed_link(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """SIGKILL of the SuperLink and of all that it started."""
    c.local.kill("superlink")
    yield STOP
    c.local.start_server()


def damaged(how: Callable[[Path, random.Random], None]) -> Fault:
    """A file of a site's state is damaged, and put back a round later."""

    def fault(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
        *_, path = sorted(c.state(one.site).glob(f"{c.run.name}-*/{one.site}/state*.safetensors"))
        content = path.read_bytes()
        how(path, draw)
        yield ROUND
        path.write_bytes(content)

    return fault


def cut(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))


def full_disk(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """A site can write no file as long as its state: RLIMIT_FSIZE of its node and all that it starts."""
    node = c.local._running[one.site].pid
    for most in (50_000, psutil.RLIM_INFINITY):
        for process in descendants(node):
            with suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, (most, psutil.RLIM_INFINITY))
        if most == 50_000:
            yield ROUND


def expired(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """The server's certificate has expired: a node that starts refuses it; once it is renewed, the run is gone on with.

    A node that was connected gives up as well, but its process goes on: all are started again, as the runbook says.
    """
    place = c.local.certificates
    good, patience = (place / "server.pem").read_bytes(), c.local.patience
    c.local.kill("superlink")
    yield STOP
    (place / "server.pem").write_bytes(outdated(place))
    c.local.patience = 20.0
    c.kill(one.site)
    try:
        with suppress(RunError):  # this program does not trust it either
            c.local.start_server()
        c.local.start_site(one.site, wait=False)
        limit, said = time.monotonic() + 90, None
        while time.monotonic() < limit and said is None and ONLINE not in c.local.log(one.site):
            time.sleep(0.5)
            said = re.search("(?i)certificate (has )?expired|certificate.verify.failed", c.local.log(one.site))
        one.refused = ONLINE not in c.local.log(one.site)
        one.said.append(
            f"the node: {said[0] if said else 'Connection attempt failed, retrying'}"
            if one.refused
            else "the node connects"
        )
    finally:
        (place / "server.pem").write_bytes(good)
        c.local.patience = patience
    for name in (*SITES, "superlink"):
        c.kill(name)
    c.local.start_server()


def outdated(place: Path) -> bytes:
    """The server's certificate, signed again by its authority, with an end that lies in the past."""
    old = x509.load_pem_x509_certificate((place / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((place / "ca.crt").read_bytes())
    key: Any = serialization.load_pem_private_key((place / "ca.key").read_bytes(), None)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(old.subject).issuer_name(authority.subject).public_key(old.public_key())
    )
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=30)).not_valid_after(now - timedelta(days=1))
    for extension in old.extensions:
        made = made.add_extension(extension.value, extension.critical)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def old_answer(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """A site sends the answer of an earlier round again."""
    (c.state(one.site) / "fault").write_text("old answer")
    yield ROUND
    (c.state(one.site) / "fault").unlink()


def other_data(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """The server is started again, and a site has other data then: it is refused until it has its own again."""
    c.end_app()
    yield STOP
    (c.state(one.site) / "fault").write_text("other data")
    c.wait = 60.0  # in which the others connect
    said, outcome = c.attempt(c.R, lambda: None)
    c.wait = 240.0
    one.refused = outcome == "failed" and "has other data than when the run began" in said
    one.said.append(re.sub(".*(?=Of others)", "", said))
    (c.state(one.site) / "fault").unlink()


def twin(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """A second node with the key, the name and the state directory of a site."""
    local, place = c.local, c.local.certificates
    words = ["--superlink", local.address, "--port", str(free_ports(1)[0])]
    words += ["--node-config", str(local.directory / f"{one.site}.toml"), "--root-certificates", str(place / "ca.crt")]
    local.launch("twin", "flower-supernode", [*words, "--auth-supernode-private-key", str(place / one.site)])
    yield ROUND
    there = ONLINE in local.log("twin")
    one.said.append(
        f"the second node is {'let in, in place of the first' if there else 'not let in: its key is in use'}"
    )
    c.kill("twin")


def off_clock(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """The clock of a site's node and app is an hour ahead or behind, as far as Python asks it."""
    by = draw.choice((3600, -3600))
    c.variables[one.site] = {"CLOCK_AHEAD": str(by)}
    c.kill(one.site)
    yield ROUND
    yield ROUND
    why = re.findall(r"(?i)[^\n]*(?:error|exit code|timestamp)[^\n]*", c.local.log(one.site))
    there = "the node connects" if ONLINE in c.local.log(one.site) else "the node does not connect"
    one.said.append(f"{by / 3600:+g} h: {there}{f', {why[-1].strip()[-100:]}' if why else ''}")
    del c.variables[one.site]
    c.kill(one.site)


class Kind(NamedTuple):
    """A kind of fault: what is done, how often, what it is called in the table, and the words by which a record names it."""

    make: Fault
    tries: int
    called: str
    words: str
    alone: bool = False  # the server is hit


DAMAGED = "its state of round .* is damaged"
FAULTS = {
    "lost state": Kind(
        damaged(lambda path, _: path.unlink()),
        7,
        "a file of a site's state is deleted",
        "its state of round .* is missing",
    ),
    "cut state": Kind(damaged(cut), 7, "a file of a site's state is cut off", DAMAGED),
    "flipped state": Kind(damaged(flip), 7, "a bit in a file of a site's state is changed", DAMAGED),
    "full disk": Kind(full_disk, 7, "a site can write no large file", "failed with (OSError|an error)"),
    "old answer": Kind(
        old_answer, 7, "a site sends the answer of an earlier round again", "there is no receipt of its state"
    ),
    "killed node": Kind(killed_node, 7, "SIGKILL of a SuperNode, started again", AWAY),
    "two of one name": Kind(twin, 3, "a second node with a site's key and name", AWAY),
    "clock": Kind(off_clock, 4, "a site's clock is an hour ahead or behind", AWAY),
    "killed app": Kind(killed_app, 5, "SIGKILL of the ServerApp, the same command again", AWAY, alone=True),
    "killed link": Kind(killed_link, 4, "SIGKILL of the SuperLink, started again", AWAY, alone=True),
    "other data": Kind(other_data, 3, "a site has other data when the server starts again", AWAY, alone=True),
    "expired": Kind(expired, 3, "the server's certificate has expired, and is renewed", AWAY, alone=True),
}
A_RUN = 6  # groups of faults in a run


def planned(only: str, seed: int | None) -> list[tuple[tuple[str, int], ...]]:
    """The faults that were asked for, in groups: two sites at once, or the server. The first ones are of every kind."""
    chosen = [
        ((k + 0.5) / kind.tries, name, k)
        for name, kind in FAULTS.items()
        if any(part in name for part in only.split(","))
        for k in (range(kind.tries) if seed is None else [seed])
    ]
    order = [(name, k) for _, name, k in sorted(chosen)]
    sites = [each for each in order if not FAULTS[each[0]].alone]
    groups = [tuple(sites[k : k + 2]) for k in range(0, len(sites), 2)]
    groups += [(each,) for each in order if FAULTS[each[0]].alone]
    where = {each: k for k, each in enumerate(order)}
    return sorted(groups, key=lambda group: where[group[0]])


def campaign(directory: Path, groups: Sequence[tuple[tuple[str, int], ...]], minutes: float) -> Iterator[list[Try]]:
    """These faults in one federation, as many as there is time for."""
    c, rest, until = Campaign(directory), list(groups), time.monotonic() + 60 * minutes
    with c.local:
        while rest and time.monotonic() < until:
            tries, made = c.rounds(rest[:A_RUN], until)
            rest = rest[made:]
            yield tries
            c.repair()


def table(found: Sequence[Try], *, said: bool = True) -> Iterator[str]:
    """The lines of the table, with or without a column for what was said."""
    rows = [["fault", "tries", "contained", "the simulator's bits", "what was said"], ["---", *["---:"] * 3, "---"]]
    for name, kind in FAULTS.items():
        if of := [one for one in found if one.fault == name]:
            words = "; ".join(dict.fromkeys(shown(text) for one in of for text in one.said)) or "nobody was left out"
            rows.append([kind.called, *counted(of), words])
    for row in [*rows, ["all", *counted(found), ""]]:
        yield f"| {' | '.join(row if said else row[:-1])} |"


def counted(tries: Sequence[Try]) -> list[str]:
    """How many there are, how many were contained, and how many had the simulator's bits."""
    return [str(len(tries)), str(sum(one.contained for one in tries)), str(sum(one.equal for one in tries))]


def shown(text: str) -> str:
    """What was said, without what differs from run to run."""
    text = re.sub(rf"\b({'|'.join(SITES)})\b", "SITE", text)
    text = re.sub(r"\b\d+(\.\d+)?\b", "n", text.replace("|", "/"))
    return re.sub(r"/[\w./-]+", "PATH", text)[:240]


def main() -> None:
    """Make the tries that were asked for, print the table; status 1 if one was not contained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help=f"faults whose name contains one of these texts, with commas: {', '.join(FAULTS)}"
    )
    parser.add_argument("--seed", type=int, help="only the try of this seed, of each")
    parser.add_argument("--minutes", type=float, default=90.0, help="after which no other fault is made (90)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="keep the table in docs/security.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    directory, found = Path(tempfile.mkdtemp(prefix="faults-")), []
    try:
        for tries in campaign(directory, planned(given.only, given.seed), given.minutes):
            found += tries
            for one in tries:
                what = f"{'contained' if one.contained else 'NOT CONTAINED'}, {'equal' if one.equal else 'NOT EQUAL'}"
                print(
                    f"{one.fault} {one.seed} {one.rounds}: {what}: {'; '.join(one.said)}", file=sys.stderr, flush=True
                )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    lines = list(table(found))
    print(json.dumps([asdict(one) for one in found], indent=1) if given.json else "\n".join(lines))
    if given.write:
        command = shlex.join(["python", "tools/faults.py", *sys.argv[1:]])
        lines = [f"Made by `{command}`; do not edit.", "", *table(found, said=False)]
        page = filled(PAGE.read_text(encoding="utf-8"), "faults", lines)
        PAGE.write_text(page, encoding="utf-8")
    sys.exit(not all(one.contained and one.equal for one in found))


if __name__ == "__main__":
    main()
