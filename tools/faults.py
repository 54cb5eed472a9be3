"""Break a federation of real processes on this machine, again and again, and look what comes of it.

    python tools/faults.py                        # all faults, about half an hour
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
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from claims import filled
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

import equipoise as eq
from equipoise.engines.sequential import sequential
from equipoise.federation import checkpoint
from equipoise.flower.deploy import project
from equipoise.flower.deploy.local import LocalFederation, free_ports
from equipoise.flower.deploy.processes import descendants, end
from equipoise.flower.deploy.superlink import FlowerError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "security.md"
SITES = ("north", "south", "west")
DEADLINE = 60.0  # seconds a site may take
LIMIT = 1800.0  # seconds for one attempt of a run
SETTINGS: dict[str, Any] = {
    "method": "scaffold", "epochs": 1, "lr": 0.05, "momentum": 0.0, "weight-decay": 0.0, "batch-size": 8,
    "min-sites": 3, "deadline": DEADLINE, "poll": 0.3,
}  # fmt: skip

TASK = '''
import json
from pathlib import Path

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
        (directory / "clock").mkdir()
        (directory / "clock" / "sitecustomize.py").write_text(CLOCK)
        path = os.pathsep.join([str(directory / "clock"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.local = LocalFederation(
            directory / "local", directory / "app", SITES, tls=True, variables={"PYTHONPATH": path}
        )
        self.run, self.R, self.count, self.wait = directory, 0, 0, 120.0

    def rounds(self, faults: Sequence[tuple[str, int]], until: float) -> tuple[list[Try], int]:
        """One run, in which these faults are made one after the other; those that were made before its end, and its attempts."""
        self.count += 1
        self.run, self.R = self.directory / f"run-{self.count}", len(faults) + 2
        R = self.R
        models: dict[int, torch.Tensor] = {}
        tries, rest, attempts, failed = [], list(faults), 0, 0
        going: Iterator[bool] | None = None
        since, after, pause = time.monotonic(), 1, 0.0

        def advance() -> bool:
            """Let the fault go on to what it waits for; whether that is the end of the attempt."""
            nonlocal going, after, since, pause
            assert going is not None
            try:
                stop = next(going, None)
            except Exception as error:  # what is broken could not be mended: the others are tried all the same
                tries[-1].said.append(f"{type(error).__name__}: {error}"[:300])
                stop, tries[-1].refused = None, False
            since, after = time.monotonic(), done(self.run) + 1
            if stop is None:
                going, after, pause = None, max(1, done(self.run)), 0.0
            return bool(stop)

        def watch() -> None:
            nonlocal going, since, pause
            note(self.run, models)
            if done(self.run) < after:
                since = time.monotonic()
                return
            if going is None and rest and done(self.run) < R and time.monotonic() < until:
                name, seed = rest.pop(0)
                draw = random.Random(f"{name} {seed}")
                one = Try(
                    name, seed, draw.choice([s for s in SITES if not tries or s != tries[-1].site]), (done(self.run), R)
                )
                if tries:
                    tries[-1].rounds = (tries[-1].rounds[0], done(self.run))
                tries.append(one)
                going, since, pause = FAULTS[name][0](self, draw, one), time.monotonic(), draw.uniform(0, 8)
            if going is not None and time.monotonic() - since >= pause:
                pause = 0.0
                if advance():
                    raise Stopped

        while done(self.run) < R and failed < 4:
            attempts += 1
            said, outcome = self.attempt(R, watch)
            if outcome == "stopped":
                while going is not None and advance():
                    pass
            elif outcome == "failed":
                failed += 1
                if tries:
                    tries[-1].said.append(said)
        if going is not None:  # the run ended first: mend what is broken
            for _ in going:
                pass
        note(self.run, models)
        judge(self.run, R, tries, models)
        return tries, attempts

    def attempt(self, R: int, watch: Callable[[], None]) -> tuple[str, str]:
        """Run the command until the run ends or is stopped: what was said, and how it ended."""
        told = {**SETTINGS, "rounds": R, "wait": self.wait, "run-dir": str(self.run)}
        try:
            outcome = self.local.run(told, limit=LIMIT, watch=watch)
        except Stopped:
            return "", "stopped"
        except FlowerError as error:
            return str(error).splitlines()[0][:300], "failed"
        return outcome.reason, "completed" if outcome.completed else "failed"

    def state(self, site: str) -> Path:
        """The state directory of a site."""
        return self.local.directory / "sites" / site

    def restart(self, site: str, **variables: str) -> None:
        """Start a site again, with more variables if need be."""
        kept = self.local._processes.variables
        self.local._processes.variables = {**kept, **variables}
        try:
            self.local.start_site(site)
        finally:
            self.local._processes.variables = kept

    def running(self, name: str) -> bool:
        """Whether a process is there."""
        process = self.local._processes._running.get(name)
        return process is not None and process.poll() is None

    def repair(self) -> None:
        """Start what is not running, as the next run needs it."""
        for name in ("superlink", *SITES):
            (self.state(name) / "fault").unlink(missing_ok=True)
            if not self.running(name):
                with suppress(FlowerError):
                    self.local.start_server() if name == "superlink" else self.local.start_site(name)

    def end_app(self) -> None:
        """SIGKILL of the ServerApp's process."""
        link = self.local._processes._running["superlink"]
        end([each for each in descendants(link.pid) if b"flwr-serverapp" in commandline(each[0])])


def commandline(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def done(run: Path) -> int:
    """How many rounds are complete."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


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
    )
    models = {}
    for t in range(len(lost)):
        fed.fit(1, progress=False)
        models[t + 1] = fed.progress.vector
    return models


def judge(run: Path, R: int, tries: Sequence[Try], models: dict[int, torch.Tensor]) -> None:
    """Whether the rounds are done, nobody else was harmed, the reasons are named, and the models are the simulator's."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] if done(run) else []
    lost = [{q["name"]: q["reason"] for q in row.get("quarantined", [])} for row in rows]
    right = simulated([set(of) for of in lost])
    before = ""
    for one in tries:
        first, last = one.rounds
        mine = [of for of in lost[first : max(last, first + 1)] if of]
        one.said += list(dict.fromkeys(f"{one.site} {of[one.site]}" for of in mine if one.site in of))
        others = {name for of in mine for name in of} - {one.site, before}
        named = all(re.search(FAULTS[one.fault][2], of.get(one.site, "")) for of in mine if one.site in of)
        one.contained = len(rows) == R and not others and named and one.refused
        if others:
            one.said.append(f"left out besides: {', '.join(sorted(others))}")
        known = [t for t in range(first + 1, max(last, first + 1) + 1) if t in models and t in right]
        one.equal = bool(known) and all(torch.equal(models[t], right[t]) for t in known)
        before = one.site


# faults
AWAY = "did not answer|is not reachable|is not connected|stopped in the middle"


def killed_node(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """SIGKILL of a SuperNode, which is started again."""
    c.local.kill(one.site)
    time.sleep(draw.uniform(0, 2))
    c.restart(one.site)
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
    """A file of a site's state is damaged, and put back a round later if the site does not make it again itself."""

    def fault(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
        files = sorted(c.state(one.site).glob(f"{c.run.name}-*/{one.site}/[sb]*.safetensors"))
        path = draw.choice(files)
        content = path.read_bytes()
        how(path, draw)
        yield ROUND
        if path.name.startswith("state"):
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
    node = c.local._processes._running[one.site].pid
    for most in (50_000, resource.RLIM_INFINITY):
        for pid, _ in descendants(node):
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        if most == 50_000:
            yield ROUND


def expired(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """The server's certificate has expired: a node that starts refuses it; once it is renewed, the run is gone on with."""
    place = c.local.certificates
    good, patience = (place / "server.pem").read_bytes(), c.local._processes.patience
    c.local.kill("superlink")
    yield STOP
    (place / "server.pem").write_bytes(outdated(place))
    c.local._processes.patience = 15.0
    try:
        with suppress(FlowerError):  # this program does not trust it either
            c.local.start_server()
        c.local.kill(one.site)
        with suppress(FlowerError):
            c.local.start_site(one.site)
            one.refused = False
        why = re.search(r"[^\n]*CERTIFICATE[^\n]*|[^\n]*certificate has expired[^\n]*", c.local.log(one.site))
        one.refused = one.refused and why is not None
        one.said.append(
            f"the node: {re.search('certificate[^.,)]*', why[0].lower())[0]}" if why else c.local.log(one.site)[-200:]
        )
    finally:
        (place / "server.pem").write_bytes(good)
        c.local._processes.patience = patience
    for name in ("superlink", one.site):
        with suppress(KeyError):
            c.local.kill(name)
    c.local.start_server()
    c.local.start_site(one.site)


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
    c.wait = 10.0
    said, outcome = c.attempt(c.R, lambda: None)
    c.wait = 120.0
    one.refused = outcome == "failed" and "has other data than when the run began" in said
    one.said.append(re.sub(".*(?=Of others)", "", said))
    (c.state(one.site) / "fault").unlink()


def twin(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """A second node with the key, the name and the state directory of a site."""
    local, place = c.local, c.local.certificates
    words = ["--superlink", local.address, "--port", str(free_ports(1)[0])]
    words += ["--node-config", str(local.directory / f"{one.site}.toml"), "--root-certificates", str(place / "ca.crt")]
    local._processes.start("twin", "flower-supernode", [*words, "--auth-supernode-private-key", str(place / one.site)])
    yield ROUND
    found = re.search(r"Exit Code: \d+", local.log("twin"))
    one.said.append(
        "the second node ends" if found or not c.running("twin") else "the second node works beside the first"
    )
    local.kill("twin")


def off_clock(c: Campaign, draw: random.Random, one: Try) -> Iterator[bool]:
    """The clock of a site's node and app is an hour ahead or behind, as far as Python asks it."""
    by = draw.choice((3600, -3600))
    c.local.kill(one.site)
    try:
        c.restart(one.site, CLOCK_AHEAD=str(by))
        one.said.append(f"{by / 3600:+g} h: the node connects")
    except FlowerError:
        why = re.findall(r"(?i)[^\n]*(?:error|exit code|timestamp)[^\n]*", c.local.log(one.site))
        one.said.append(f"{by / 3600:+g} h: the node ends, {why[-1].strip()[-100:] if why else 'and says nothing'}")
    yield ROUND
    with suppress(KeyError):
        c.local.kill(one.site)
    c.restart(one.site)


FAULTS: dict[str, tuple[Fault, str, str]] = {  # what is done, its name in the table, and the words by which it is named
    "lost state": (
        damaged(lambda path, _: path.unlink()),
        "a file of a site's state is deleted",
        "its state of round .* is missing",
    ),
    "cut state": (damaged(cut), "a file of a site's state is cut off", "its state of round .* is damaged"),
    "flipped state": (
        damaged(flip),
        "a bit in a file of a site's state is changed",
        "its state of round .* is damaged",
    ),
    "full disk": (full_disk, "a site can write no large file", "failed with (OSError|an error)"),
    "old answer": (old_answer, "a site sends the answer of an earlier round again", "there is no receipt of its state"),
    "killed node": (killed_node, "SIGKILL of a SuperNode, started again", AWAY),
    "killed app": (killed_app, "SIGKILL of the ServerApp, the same command again", AWAY),
    "killed link": (killed_link, "SIGKILL of the SuperLink, started again", AWAY),
    "other data": (other_data, "a site has other data when the server starts again", AWAY),
    "two of one name": (twin, "a second node with a site's key and name", AWAY),
    "clock": (off_clock, "a site's clock is an hour ahead or behind", AWAY),
    "expired": (expired, "the server's certificate has expired, and is renewed", AWAY),
}
A_RUN = 12  # faults of a run


def campaign(directory: Path, chosen: Sequence[tuple[str, int]], minutes: float) -> Iterator[list[Try]]:
    """The faults of these names and seeds, in one federation, as many as there is time for."""
    c, rest, until = Campaign(directory), list(chosen), time.monotonic() + 60 * minutes
    with c.local:
        while rest and time.monotonic() < until:
            tries, attempts = c.rounds(rest[:A_RUN], until)
            rest = rest[len(tries) :]
            print(f"run {c.count}: {done(c.run)} rounds, {attempts} attempts", file=sys.stderr, flush=True)
            yield tries
            c.repair()


def table(found: Sequence[Try]) -> Iterator[str]:
    """The lines of the table."""
    yield "| fault | tries | contained | the simulator's bits | what was said |"
    yield "|---|---:|---:|---:|---|"
    for name, (_, words, _) in FAULTS.items():
        if of := [one for one in found if one.fault == name]:
            said = "; ".join(dict.fromkeys(shown(text) for one in of for text in one.said)) or "nobody was left out"
            yield f"| {words} | {len(of)} | {sum(o.contained for o in of)} | {sum(o.equal for o in of)} | {said} |"
    yield f"| all | {len(found)} | {sum(o.contained for o in found)} | {sum(o.equal for o in found)} | |"


def shown(text: str) -> str:
    """What was said, without what differs from run to run."""
    text = re.sub(rf"\b({'|'.join(SITES)})\b", "SITE", text)
    text = re.sub(r"\b\d+(\.\d+)?\b", "n", text.replace("|", "/"))
    return re.sub(r"/[\w./-]+", "PATH", text)[:240]


def main() -> None:
    """Make the tries that were asked for, print the table; status 1 if one was not contained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"faults whose name contains this text: {', '.join(FAULTS)}")
    parser.add_argument("--seed", type=int, help="only the try of this seed, of each")
    parser.add_argument("--tries", type=int, default=6, help="tries of each fault (6)")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no other fault is made (60)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="keep the table in docs/security.md")
    given = parser.parse_args()
    seeds = range(given.tries) if given.seed is None else [given.seed]
    chosen = [(name, seed) for seed in seeds for name in FAULTS if given.only in name]
    torch.set_num_threads(1)
    directory, found = Path(tempfile.mkdtemp(prefix="faults-")), []
    try:
        for tries in campaign(directory, chosen, given.minutes):
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
        page = filled(PAGE.read_text(encoding="utf-8"), "faults", [f"Made by `{command}`; do not edit.", "", *lines])
        PAGE.write_text(page, encoding="utf-8")
    sys.exit(not all(one.contained and one.equal for one in found))


if __name__ == "__main__":
    main()
