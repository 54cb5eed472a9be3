"""Masked sums between machines: keys, labels, seeds; and whole runs in which the server sees nothing but sums."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from equipoise.flower.secagg.masks import DropOutError, shake
from safetensors.torch import load_file
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Cohort, Rule, State, Visit
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.method import Method
from equipoise.flower.secagg import masks as secure
from equipoise.methods import METHODS
from helpers import clients, network, normal, samples, tensor

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.serverapp import Grid

from equipoise.flower.app import in_process, make_client_app, serve
from equipoise.flower.codec import Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.secagg import server as masked_sites
from equipoise.flower.secagg import site as masked_site
from equipoise.flower.secagg import sums as masked
from equipoise.flower.secagg.server import require
from equipoise.flower.secagg.sums import MaskError, Sum
from equipoise.flower.server.consortium import Consortium, description, federation
from equipoise.flower.server.exchange import Exchange
from equipoise.flower.server.sites import Sites
from equipoise.flower.settings import AppSettings
from equipoise.flower.site.site import Site
from equipoise.flower.site.task import Task

NAMES = ("ward-a", "ward-b", "ward-c")


def memory_at(path: Path) -> masked.Memory:
    return masked.change(path, lambda memory: (memory, memory))


def key_at(path: Path) -> str:
    return masked.public(memory_at(path).key)


class Met:
    """Sites that have met, in one directory."""

    def __init__(self, base: Path, names: Sequence[str] = NAMES) -> None:
        self.names = tuple(names)
        self.paths = {name: base / name / "masks.json" for name in names}
        self.keys = {name: key_at(path) for name, path in self.paths.items()}
        for name in names:
            self.pin(name, self.keys)

    def pin(self, name: str, keys: Mapping[str, str], peers: Mapping[str, str] | None = None) -> None:
        masked.change(self.paths[name], lambda memory: (masked.pinned(memory, keys, name, peers), None))

    def ask(self, number: int, *, t: int = 0, phase: str = "model", names: Sequence[str] = ()) -> Sum:
        return Sum("trial", number, t, phase, "", "", tuple(names or self.names))

    def send(self, asked: Sum, contents: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.give(asked, name, x) for name, x in contents.items()}

    def give(self, asked: Sum, name: str, x: Tensor, least: int = 2) -> Tensor:
        return self.masked(asked, name, x, least).vector

    def masked(self, asked: Sum, name: str, x: Tensor, least: int = 2) -> masked.Masked:
        return masked.change(self.paths[name], lambda memory: masked.masked_vector(memory, asked, name, x, least))

    def own_seed(self, asked: Sum, name: str) -> bytes:
        return masked.change(self.paths[name], lambda memory: masked.own_seed(memory, asked, name))

    def shares_of(self, asked: Sum, name: str, hidden: Mapping[str, str]) -> dict[str, bytes]:
        return masked.change(self.paths[name], lambda memory: masked.shares_of(memory, asked, name, hidden))

    def open(self, asked: Sum) -> dict[str, bytes]:
        return {name: self.own_seed(asked, name) for name in asked.sites}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here outlives a crash of the machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def sites(tmp_path: Path) -> Met:
    return Met(tmp_path)


def contents(n: int = 50, names: Sequence[str] = NAMES) -> dict[str, Tensor]:
    return {name: normal(n, seed=k) for k, name in enumerate(names)}


def uniform(x: Tensor) -> bool:
    """Whether the bytes of 64-bit integers look uniform: chi-square over 256 values within six standard deviations."""
    counts = torch.bincount(x.view(torch.uint8).long(), minlength=256).double()
    expected = counts.sum() / 256
    return abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 6 * math.sqrt(2 * 255)


# a sum
def test_the_sum_is_the_sum(sites: Met) -> None:
    asked, rows = sites.ask(1), contents()
    found = masked.total(asked, sites.send(asked, rows), sites.open(asked))
    assert torch.allclose(found, sum(rows.values()), rtol=0, atol=3 * 2.0**-40)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "limit"), [(2, 2.0**10), (3, 2.0**20), (100, 2.0**20), (7, 1.0)])
def test_the_resolution_is_the_finest_that_fits(n: int, limit: float) -> None:
    asked = Sum("trial", 1, 0, "model", "", "", tuple(f"site-{k:03d}" for k in range(n)), limit)
    assert n * limit < 2.0 ** (63 - asked.secure.bits) <= 2 * n * limit
    with pytest.raises(ValueError, match="does not fit"):
        replace(asked.secure, bits=asked.secure.bits + 1)


def test_numbers_at_the_ends_of_the_range_are_added(sites: Met) -> None:
    asked = sites.ask(1)
    rows = {name: tensor([2.0**20, -(2.0**20)]) for name in NAMES}
    assert masked.total(asked, sites.send(asked, rows), sites.open(asked)).tolist() == [3 * 2.0**20, -3 * 2.0**20]


def test_what_is_sent_looks_uniform_and_so_does_the_sum_before_it_is_opened(sites: Met) -> None:
    asked, zero = sites.ask(1), torch.zeros(20_000).double()
    sent = sites.send(asked, dict.fromkeys(NAMES, zero))
    assert all(uniform(y) for y in sent.values())
    a, b, c = sent.values()
    assert uniform(a + b + c)  # their own masks are still in it
    seeds = sites.open(asked)
    own = [masked.chacha(seed, asked.label, 20_000) for seed in seeds.values()]
    assert uniform(a + b - own[0] - own[1])
    assert not bool((a + b + c - own[0] - own[1] - own[2]).any())  # the tests above can fail


def test_a_missing_seed_or_summand_leaves_the_sum_closed(sites: Met) -> None:
    asked = sites.ask(1)
    sent, seeds = sites.send(asked, contents()), sites.open(asked)
    with pytest.raises(KeyError, match="ward-c"):
        masked.total(asked, sent, {name: seeds[name] for name in NAMES[:2]})
    with pytest.raises(DropOutError, match="no masked vector of client 0"):
        masked.total(asked, {name: sent[name] for name in NAMES[1:]}, seeds)


def test_sites_that_are_asked_for_different_sums_do_not_cancel(sites: Met) -> None:
    """So a server cannot tell one site that two take part, and another that three do."""
    asked, zero = sites.ask(1), torch.zeros(20_000).double()
    sent = sites.send(asked, {"ward-a": zero, "ward-b": zero})
    other = replace(asked, sites=("ward-b", "ward-c"))
    sent |= {"ward-c": sites.give(other, "ward-c", zero)}
    own = [sites.own_seed(other if n == "ward-c" else asked, n) for n in NAMES]
    assert uniform(sum(sent.values()) - sum(masked.chacha(s, asked.label, 20_000) for s in own))  # type: ignore[arg-type]


# labels
def test_a_number_is_used_once(sites: Met) -> None:
    rows = contents()
    first = sites.send(sites.ask(4), rows)
    for number in (4, 3):
        with pytest.raises(
            MaskError, match=rf"asked for sum number {number} and has taken part in number 4: masks are never"
        ):
            sites.send(sites.ask(number), rows)
    again = sites.send(sites.ask(5), rows)
    assert not any(bool((again[name] == first[name]).any()) for name in NAMES)
    assert memory_at(sites.paths["ward-a"]).number == 5  # a server that starts again asks, and goes on from there


def test_a_refused_sum_uses_no_number_and_a_made_one_is_on_disk(sites: Met) -> None:
    with pytest.raises(MaskError, match="outside the range"):
        sites.send(sites.ask(1), {"ward-a": tensor([1.0, 2.0**21])})
    sent = sites.send(sites.ask(1), {"ward-a": tensor([1.0])})
    assert json.loads(sites.paths["ward-a"].read_text())["number"] == 1
    assert sent["ward-a"].dtype == torch.int64


@pytest.mark.parametrize("wrong", [3e6, -3e6, math.nan, math.inf])
def test_an_error_of_range_tells_no_number(sites: Met, wrong: float) -> None:
    with pytest.raises(MaskError) as caught:
        sites.send(sites.ask(1), {"ward-b": tensor([0.125, wrong])})
    assert str(caught.value) == (
        "ward-b has numbers outside the range [-1.04858e+06, 1.04858e+06] of a masked sum. Its training may have diverged."
    )


# openings
def test_a_late_summand_shows_nothing(sites: Met) -> None:
    """Site c's summand of an aborted sum comes after the sum of the others was unmasked: the first stays closed."""
    rows = {name: torch.zeros(20_000).double() for name in NAMES}
    late = sites.send(sites.ask(1), rows)
    two = sites.ask(2, names=NAMES[:2])
    sent = sites.send(two, {name: rows[name] for name in two.sites})
    opened = masked.total(two, sent, sites.open(two))
    assert not bool(opened.any())
    assert uniform(sum(late.values()))  # type: ignore[arg-type]
    for name in NAMES[:2]:
        with pytest.raises(MaskError, match="Sum number 1 cannot be unmasked: the last one here is number 2"):
            sites.own_seed(sites.ask(1), name)


def test_an_opened_round_is_given_to_the_same_sites_only(sites: Met) -> None:
    rows = contents()
    asked = sites.ask(1, t=3)
    sites.send(asked, rows)
    sites.open(asked)
    assert sites.own_seed(asked, "ward-a") == sites.own_seed(asked, "ward-a")  # asked twice
    with pytest.raises(
        MaskError, match="asked for round 3 over ward-a, ward-b, and unmasked round 3 over ward-a, ward-b, ward-c"
    ):
        sites.send(sites.ask(2, t=3, names=NAMES[:2]), contents(names=NAMES[:2]))
    with pytest.raises(MaskError, match="asked for round 2 over"):
        sites.send(sites.ask(2, t=2), rows)
    again = sites.ask(2, t=3)  # a server that lost the result
    found = masked.total(again, sites.send(again, rows), sites.open(again))
    assert torch.allclose(found, sum(rows.values()), rtol=0, atol=1e-9)  # type: ignore[arg-type]
    sites.send(sites.ask(3, t=3, phase="values", names=NAMES[:2]), contents(names=NAMES[:2]))  # phases are apart
    sites.send(sites.ask(4, t=4, names=NAMES[:2]), contents(names=NAMES[:2]))


# keys
def test_secrets_are_those_of_a_pair_and_an_experiment(tmp_path: Path) -> None:
    key = {name: (tmp_path / name, key_at(tmp_path / name)) for name in NAMES}
    private = {name: json.loads(path.read_text())["key"] for name, (path, _) in key.items()}
    a, b, c = (masked.shared_secret(private["ward-a"], key[n][1], "x") for n in ("ward-b", "ward-c", "ward-b"))
    assert a == c == masked.shared_secret(private["ward-b"], key["ward-a"][1], "x")
    assert len({a, b, masked.shared_secret(private["ward-a"], key["ward-b"][1], "y")}) == 3
    for wrong in ("00" * 32, "12", "xy"):
        with pytest.raises(MaskError, match="is not the public key of a site"):
            masked.shared_secret(private["ward-a"], wrong, "x")


def test_a_changed_key_is_refused(sites: Met, tmp_path: Path) -> None:
    stranger = key_at(tmp_path / "stranger")
    before = sites.paths["ward-a"].read_bytes()
    with pytest.raises(MaskError, match=r"The key of ward-b has changed since ward-a first saw it.*Nothing was sent"):
        sites.pin("ward-a", sites.keys | {"ward-b": stranger})
    with pytest.raises(MaskError, match=r"shown to the others as ward-a's is not its own"):
        sites.pin("ward-a", sites.keys | {"ward-a": stranger})
    assert sites.paths["ward-a"].read_bytes() == before


def test_a_site_that_is_not_known_is_not_masked_for(sites: Met) -> None:
    names = ("ward-a", "ward-x")
    with pytest.raises(MaskError, match="ward-a does not know the key of ward-x"):
        sites.send(sites.ask(1, names=names), {"ward-a": tensor([1.0])})


def test_peers_from_elsewhere(sites: Met, tmp_path: Path) -> None:
    known = tmp_path / "peers.json"
    fresh = Met(tmp_path / "fresh")
    known.write_text(json.dumps({n: fresh.keys[n] for n in NAMES}))
    fresh.pin("ward-a", fresh.keys, masked.read_peers(known))
    known.write_text(json.dumps({"ward-a": fresh.keys["ward-a"], "ward-b": sites.keys["ward-b"]}))
    with pytest.raises(MaskError, match="The key of ward-b is another one there, in the file of peers of ward-a"):
        fresh.pin("ward-a", fresh.keys, masked.read_peers(known))
    known.write_text(json.dumps({"ward-b": fresh.keys["ward-b"]}))
    with pytest.raises(MaskError, match="The key of ward-c is not there, in the file of peers"):
        fresh.pin("ward-a", fresh.keys, masked.read_peers(known))
    known.write_text("[1]")
    with pytest.raises(MaskError, match=r"peers\.json, is not there or not of the form"):
        fresh.pin("ward-a", fresh.keys, masked.read_peers(known))


def test_a_fingerprint_depends_on_every_key(sites: Met, tmp_path: Path) -> None:
    one = masked.fingerprint(sites.keys, {"ward-a": 3})
    assert one == masked.fingerprint(dict(reversed(sites.keys.items())), {"ward-a": 3})
    assert one != masked.fingerprint(sites.keys, {"ward-a": 4})
    assert one != masked.fingerprint(sites.keys | {"ward-b": key_at(tmp_path / "other")}, {"ward-a": 3})
    assert len(one) == 39


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_key_is_its_owner_s_alone(sites: Met) -> None:
    path = sites.paths["ward-a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(MaskError, match=r"masks\.json with this site's key can be read by others"):
        memory_at(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key": "00", "opened": {}, "more": 1}'])
def test_a_damaged_memory_is_an_error_and_no_new_key(sites: Met, text: str) -> None:
    path = sites.paths["ward-a"]
    path.write_text(text)
    with pytest.raises(MaskError, match=r"masks\.json with this site's key is damaged"):
        memory_at(path)
    assert path.read_text() == text


# who takes part
@pytest.mark.parametrize("names", [(), ("a",), ("b", "a"), ("a", "a")])
def test_a_sum_is_over_two_sites_at_least(names: tuple[str, ...]) -> None:
    with pytest.raises(MaskError, match="at least two sites, sorted, each named once"):
        Sum("trial", 1, 0, "model", "", "", names)


def test_a_site_may_want_more(sites: Met) -> None:
    asked = sites.ask(1, names=NAMES[:2])
    with pytest.raises(
        MaskError, match="A sum over 2 sites was asked for, and ward-a takes part in sums over 3 at least"
    ):
        sites.give(asked, "ward-a", tensor([1.0]), least=3)


# streams
def test_the_stream() -> None:
    """Of its own for every secret and label; a longer one begins as a shorter does."""
    one, two = masked.chacha(b"s" * 32, "x", 1000), masked.chacha(b"s" * 32, "y", 1000)
    assert not bool((one == two).any())
    assert not bool((one == masked.chacha(b"t" * 32, "x", 1000)).any())
    assert uniform(masked.chacha(b"s" * 32, "x", 20_000))
    assert torch.equal(one[:10], masked.chacha(b"s" * 32, "x", 10))
    assert not torch.equal(one, shake(b"s" * 32, "x", 1000))
    assert len(masked.chacha(b"s" * 32, "x", 0)) == 0


# whole runs
def both(method: str, participation: float = 0.8, states: Path | None = None) -> tuple[eq.Federation, eq.Federation]:
    """A simulation, and the same by masked sums."""
    kind = "batchnorm" if "fedbn" in method else "mlp"
    given: dict[str, Any] = {"epochs": 2, "batch_size": 8, "participation": participation, "seed": 3, "quorum": 0.5}
    simulated = eq.Federation(network(kind), clients(), method, SOLVER, engine="sequential", **given)
    return simulated, in_process(network(kind), clients(), method, SOLVER, secure=True, states=states, **given)


SOLVER = eq.SGD(0.05, 0.9, 1e-4)
SUMMED = [name for name, entry in METHODS.items() if not any(masked_sites.problem(rule()) for rule in entry.rules)]


def at(fed: eq.Federation) -> Consortium:
    """Where the clients of a federation are."""
    assert isinstance(fed.population, Consortium)
    return fed.population


def patience(fed: eq.Federation) -> Exchange:
    """How long the sites are waited for."""
    return at(fed).sites.exchange


def distance(a: eq.Federation, b: eq.Federation) -> float:
    return float((a.progress.vector - b.progress.vector).abs().max())


class Wire:
    """What goes over the wire, and a way to cut it: ``cut(kind, site, n)`` says what becomes of the n-th such message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up: list[tuple[str, str, Parcel]] = []
        self.down: list[tuple[str, str, Parcel]] = []
        self.cut: Callable[[str, str, int], str] = lambda kind, site, n: ""
        self.change: Callable[[str, str, Parcel], Parcel] = lambda kind, site, parcel: parcel
        answered = InProcessGrid._answered

        def watched(grid: InProcessGrid, message: Message) -> Message:
            kind = message.metadata.message_type
            site = str(grid.contexts[message.metadata.dst_node_id].node_config["site"])
            n = sum((kind, site) == (k, s) for k, s, _ in self.down)
            asked = self.change(kind, site, Parcel.of(message.content))
            self.down.append((kind, site, asked))
            message.content = asked.records()
            what = self.cut(kind, site, n)
            reply = None if what == "down" else answered(grid, message)
            if what or reply is None:
                return Message(Error(5, "gone"), reply_to=message)
            self.up.append((kind, site, Parcel.of(reply.content)))
            return reply

        monkeypatch.setattr(InProcessGrid, "_answered", watched)

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.down]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def without(lost: Mapping[int, int]) -> Callable[[Job], Iterator[Answer]]:
    """The sequential engine, in which client ``lost[t]`` fails in round t."""

    def engine(job: Job) -> Iterator[Answer]:
        rest = [row for row, m in enumerate(job.ids) if m != lost.get(job.t)]
        for answer in sequential(job.part(rest)):
            yield answer.within(rest)

    return engine


def test_which_methods_need_only_sums() -> None:
    assert {"fedavg", "fedprox", "moon", "ditto", "fedbn", "margin", "sam", "gsam", "logit-adjust", "finetune"} < {
        *SUMMED
    }
    assert {"saga", "fedism", "fedism+"} < {*SUMMED}
    assert {"scaffold", "fedproto", "fedproc"} < {*SUMMED}
    assert not {"fednova", "fedpac", "afl", "qffl", "fedheal", "fedsac", "standalone"} & {*SUMMED}


MASKED = [
    *SUMMED,
    "fedavg:uniform",
    "fedavg(weights=population)",
    "fedism+:L",
    "saga(q=0)",
    "saga(q=9,beta=0.3)+fedprox",
    "scaffold(option=1)+fedbn",
    "fedproto:weighted",
    "fedproto+scaffold+saga",
]
FAST = (
    "fedavg",
    "fedavg(weights=population)",
    "feddyn",
    "fedbn",
    "dp",
    "fedism+",
    "saga(q=9,beta=0.3)+fedprox",
    "scaffold(option=1)+fedbn",
    "fedproto+scaffold+saga",
)


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.slow] * (m not in FAST)) for m in MASKED])
def test_a_masked_run_is_the_simulated_one(method: str) -> None:
    simulated, fed = both(method)
    simulated.fit(3, progress=False)
    fed.fit(3, progress=False)
    assert distance(simulated, fed) < 1e-10
    assert distance(simulated, both(method)[0]) > 1e-2  # it has moved
    assert all(record["secure"] and "quarantined" not in record for record in fed.records)
    if require(fed.method) is None:
        assert [r["weights"] for r in fed.records] == [r["weights"] for r in simulated.records]


def test_the_weights_of_saga_are_known_to_the_sites_alone(tmp_path: Path) -> None:
    simulated, fed = both("fedism+(beta=0.4)", states=tmp_path)
    simulated.fit(4, progress=False)
    fed.fit(4, progress=False)
    known = {path.parent.name: json.loads(path.read_text())["weights"] for path in tmp_path.rglob("masks.json")}
    last = [list(known[name].values())[-1] if name in known else 0.0 for name in fed.trial.names]
    k = [rule.power is not None for rule in fed.method.rules].index(True)
    assert last == pytest.approx(simulated.progress.server[k]["w"].tolist(), abs=1e-9)
    assert len(set(last)) == 5
    assert not any({"weights", "sharpness", "perturbed_loss"} & record.keys() for record in fed.records)
    n = len(fed.progress.vector)
    assert fed.records[1]["bytes"]["up"] == [8 * (n + 1 + secure.WORDS)] * 4
    assert "secure" not in simulated.records[0]


def test_a_run_whose_weights_nobody_knows_has_a_report(tmp_path: Path) -> None:
    tests = {"a": samples(30, 1), "b": samples(30, 4)}
    fed = in_process(network(), clients(), "saga", SOLVER, secure=True, tests=tests)
    history = fed.fit(2, directory=tmp_path, progress=False)
    assert history.summary()
    assert "Weight of every client" not in history.report(tmp_path / "report.html").read_text()
    assert eq.History.from_run(tmp_path).records[1]["secure"]


def test_a_network_of_float32() -> None:
    """The step is exact to the resolution of the model's own numbers."""
    data = [(x.float(), y) for x, y in clients()]
    given = {"epochs": 2, "batch_size": 8, "seed": 3}
    simulated = eq.Federation(network().float(), data, "fedavg", SOLVER, engine="sequential", **given)
    fed = in_process(network().float(), data, "fedavg", SOLVER, secure=True, **given)
    simulated.fit(1, progress=False)
    fed.fit(1, progress=False)
    assert distance(simulated, fed) <= 2.0**-22


def stored(path: Path) -> Tensor:
    """The update in a site's file."""
    (update,) = (x for key, x in load_file(path).items() if key.endswith("/update"))
    return update


def holds(parcel: Parcel, x: Tensor) -> bool:
    """Whether any four numbers that follow one another in ``x`` are in a message, bit for bit or nearly."""
    for sent in parcel.tensors.values():
        if sent.dtype == torch.int64:
            sent = sent.double() * 2.0 ** -masked.Sum("", 1, 0, "", "", "", ("a", "b", "c", "d")).secure.bits
        flat = sent.double().flatten()
        if len(flat) >= len(x) and any(
            torch.allclose(flat[k : k + len(x)], x.double(), rtol=1e-6, atol=1e-9)
            for k in range(len(flat) - len(x) + 1)
        ):
            return True
    return False


@pytest.mark.parametrize("method", ["fedavg", "saga", "fedbn", "scaffold", "fedproto"])
def test_no_update_travels_in_the_clear(method: str, wire: Wire, tmp_path: Path) -> None:
    fed = both(method, states=tmp_path, participation=1.0)[1]
    fed.fit(1, progress=False)
    start, word = fed.trial.setup.initial, fed.trial.names
    private = fed.trial.private
    start = start if private is None else start[~private]
    for name in word:
        (path,) = tmp_path.rglob(f"{name}/update.safetensors")
        kept = load_file(path)
        update = stored(path)
        assert float(update.norm()) > 0.1
        memory = json.loads(path.with_name("masks.json").read_text())
        w = memory["weights"].get("0") or fed.records[0]["weights"][word.index(name)]
        reports = [x.flatten() for key, x in kept.items() if key.endswith(("/dc", "/proto"))]
        assert len(reports) == (method in ("scaffold", "fedproto"))
        secret = [update, start + update, w * update, *reports, *(x / len(word) for x in reports)]
        for kind, site, parcel in wire.up:
            assert not any(holds(parcel, x[:4]) for x in secret), (kind, site)
            assert memory["key"] not in json.dumps(parcel.fields)
            if method == "saga":
                (value,) = (x for key, x in kept.items() if key.endswith("/value"))
                assert not any(f"{float(v):.6g}"[:7] in json.dumps(parcel.fields) for v in (value, w))
    wire.up.clear()
    given = {"epochs": 2, "batch_size": 8, "seed": 3}
    in_process(network(), clients(), "fedavg", SOLVER, **given).fit(1, progress=False)
    assert any(holds(parcel, (start + update)[:4]) for _, _, parcel in wire.up) or method != "fedavg"  # it can fail


# sites that vanish
@pytest.mark.parametrize("how", ["down", "up"])
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedprox", marks=pytest.mark.slow), "saga"])
def test_who_drops_out_while_it_trains_is_left_out(method: str, how: str, wire: Wire) -> None:
    """Whether it never trained, or its summand is lost (or late): the others are asked for another sum."""
    simulated, fed = both(method)
    gone = fed.trial.names[4]
    wire.cut = lambda kind, site, n: how if (kind, site, n) == ("train.masked", gone, 1) else ""
    fed.fit(4, progress=False)
    (t,) = [record["round"] for record in fed.records if "quarantined" in record]
    assert fed.records[t]["quarantined"] == [{"client": 4, "name": gone, "reason": "is not reachable any more"}]
    simulated.trial = replace(simulated.trial, engine=without({t: 4}))
    simulated.fit(4, progress=False)
    assert distance(simulated, fed) < 1e-10
    first, again = (wire.kinds().count(kind) for kind in ("train.masked", "train.again"))
    assert first == 16  # nobody trained twice
    assert again == (3 if method != "saga" else 3 + 15)


def test_who_drops_out_once_the_weights_are_known_is_divided_out(wire: Wire, tmp_path: Path) -> None:
    """Its share of the sum A stays in the others' weights, which are divided by their sum."""
    simulated, fed = both("saga(beta=1)", states=tmp_path, participation=1.0)
    gone = fed.trial.names[2]
    wire.cut = lambda kind, site, n: "up" if kind == "train.again" and site == gone else ""
    fed.fit(1, progress=False)
    simulated.fit(1, progress=False)
    assert [q["name"] for q in fed.records[0]["quarantined"]] == [gone]
    w = tensor(simulated.records[0]["weights"])
    there = [0, 1, 3, 4]
    updates = torch.stack([stored(next(tmp_path.rglob(f"client-{m}/update.safetensors"))) for m in range(5)])
    expected = simulated.trial.setup.initial + (w[there, None] * updates[there]).sum(0) / w[there].sum()
    assert torch.allclose(fed.progress.vector, expected, rtol=0, atol=1e-9)


def test_an_opening_that_is_lost_is_asked_for_again(wire: Wire) -> None:
    simulated, fed = both("fedavg")
    patience(fed).poll = 0.001
    wire.cut = lambda kind, site, n: (
        ["down", "up", ""][min(n, 2)] if (kind, site) == ("query.unmask", "client-4") else ""
    )
    fed.fit(2, progress=False)
    simulated.fit(2, progress=False)
    assert distance(simulated, fed) < 1e-10
    assert all("quarantined" not in record for record in fed.records)


@pytest.mark.parametrize("method", ["fedavg", "saga"])
@pytest.mark.parametrize("lost", [("client-4",), ("client-0",)])
def test_the_sum_of_a_site_that_vanishes_is_unmasked_by_the_others(
    method: str, lost: tuple[str, ...], wire: Wire
) -> None:
    """Up to a third may vanish between their masked vectors and their seeds: the round is done with all updates."""
    simulated, fed = both(method, participation=1.0)
    simulated.fit(3, progress=False)
    wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and site in lost else ""
    fed.fit(3, progress=False)
    assert distance(simulated, fed) < 1e-10
    assert all("quarantined" not in record for record in fed.records)
    asked = [site for kind, site, _ in wire.down if kind == "query.recover"]
    assert len(asked) == 4 * 3 * (1 + (method == "saga"))
    assert not {*asked} & {*lost}


def test_where_more_than_a_third_vanish_the_round_waits_for_the_same_sites(wire: Wire) -> None:
    """A sum without them could be compared with the one that their seeds would open."""
    simulated, fed = both("fedavg", participation=1.0)
    patience(fed).deadline = patience(fed).poll = 0.001
    simulated.fit(2, progress=False)
    fed.fit(1, progress=False)
    before = fed.progress
    gone = ["client-3", "client-4"]
    wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and site in gone else ""
    with pytest.raises(
        eq.QuorumError,
        match=r"never unmasked: client-3 is not reachable any more; client-4 is not reachable any more\. It takes 4 of its 5 sites",
    ):
        fed.fit(1, progress=False)
    assert fed.progress is before
    assert "query.recover" not in wire.kinds()  # what would not be enough is not asked for
    wire.cut = lambda kind, site, n: "down" if site in gone else ""
    with pytest.raises(eq.QuorumError, match=r"and unmasked round 1 over .*client-4.*Resume with the same sites"):
        fed.fit(1, progress=False)
    gone.clear()
    fed.fit(1, progress=False)
    assert distance(simulated, fed) < 1e-10


def test_one_that_refuses_its_seed_does_not_end_the_wait_for_the_others(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five are missing at first: with the one that comes back there are enough for the other's."""
    simulated, fed = both("fedavg", participation=1.0)
    patience(fed).poll = 0.001
    unmask = masked_site.KINDS["query.unmask"]

    def refusing(site: Site, asked: Parcel) -> Parcel:
        if site.trial.names == ("client-2",):
            raise MaskError("It does not want to.")
        return unmask(site, asked)

    monkeypatch.setitem(masked_site.KINDS, "query.unmask", refusing)
    wire.cut = lambda kind, site, n: "down" if (kind, site, n) == ("query.unmask", "client-3", 0) else ""
    simulated.fit(1, progress=False)
    fed.fit(1, progress=False)
    assert distance(simulated, fed) < 1e-10
    assert "quarantined" not in fed.records[0]


@pytest.mark.parametrize("how", ["wrong", "seed"])
def test_a_site_whose_shares_are_wrong_is_named(
    how: str, wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It vanishes, or sends another seed than it has used: the sum stays masked, and nobody else is blamed."""
    fed = both("fedavg", participation=1.0)[1]
    patience(fed).deadline = patience(fed).poll = 0.001
    right, unmask = masked.create_shares, masked_site.KINDS["query.unmask"]
    liar = "client-2"

    def wrong(memory: masked.Memory, asked: Sum, site: str, *more: Any, **other: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if site == liar:
                patch.setattr(masked, "create_shares", lambda seed, least, n: right(bytes(32), least, n))
            return make(memory, asked, site, *more, **other)

    def lying(site: Site, asked: Parcel) -> Parcel:
        found = unmask(site, asked)
        return replace(found, fields={"seed": "00" * 32}) if site.trial.names == (liar,) else found

    make = masked.masked_vector
    monkeypatch.setattr(masked, "masked_vector", wrong)
    if how == "seed":
        monkeypatch.setitem(masked_site.KINDS, "query.unmask", lying)
    else:
        wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and site == liar else ""
    with pytest.raises(
        eq.QuorumError, match=r"never unmasked: client-2 (sent no seed|is not reachable)[^;]*It takes 4"
    ):
        fed.fit(1, progress=False)
    assert "client-2 has sent shares that are not of its seed" in caplog.text


def test_a_wrong_seed_is_put_together_from_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site cannot stop a round by sending another seed than it has used, and the result is right."""
    simulated, fed = both("fedavg", participation=1.0)
    unmask = masked_site.KINDS["query.unmask"]

    def lying(site: Site, asked: Parcel) -> Parcel:
        found = unmask(site, asked)
        return replace(found, fields={"seed": "00" * 32}) if site.trial.names == ("client-2",) else found

    monkeypatch.setitem(masked_site.KINDS, "query.unmask", lying)
    simulated.fit(2, progress=False)
    fed.fit(2, progress=False)
    assert distance(simulated, fed) < 1e-10


def test_too_few_are_left(wire: Wire) -> None:
    fed = both("fedavg", participation=1.0)[1]
    wire.cut = lambda kind, site, n: (
        "down" if kind == "train.masked" and site in ("client-0", "client-1", "client-2") else ""
    )
    with pytest.raises(eq.QuorumError, match=r"because 2 sites are left for a masked sum, and it takes 2\.5"):
        fed.fit(1, progress=False)
    assert "query.unmask" not in wire.kinds()  # what nobody uses stays closed


def test_a_server_that_starts_again_goes_on(wire: Wire, tmp_path: Path) -> None:
    """It asks for the last number that was used, and nothing else is lost with it."""
    first = both("saga", states=tmp_path / "sites")[1]
    first.fit(2, directory=tmp_path / "run", progress=False)
    second = both("saga", states=tmp_path / "sites")[1]
    second.resume(tmp_path / "run")
    second.fit(2, progress=False)
    numbers = [parcel.fields["sum"]["number"] for kind, _, parcel in wire.down if kind.startswith("train")]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) >= 8
    simulated = both("saga")[0]
    for _ in range(2):
        simulated.fit(2, progress=False)
    assert distance(second, simulated) < 1e-10


# servers and sites that misbehave
def test_a_server_that_swaps_keys_is_found_out(wire: Wire, tmp_path: Path) -> None:
    stranger = key_at(tmp_path / "stranger")
    fed = both("fedavg", participation=1.0)[1]
    fed.fit(1, progress=False)

    def swapped(kind: str, site: str, parcel: Parcel) -> Parcel:
        if kind != "train.masked" or site != "client-1":
            return parcel
        return replace(parcel, fields={**parcel.fields, "keys": {**parcel.fields["keys"], "client-2": stranger}})

    wire.change = swapped
    fed.fit(1, progress=False)
    (found,) = fed.records[1]["quarantined"]
    assert found["name"] == "client-1"
    assert found["reason"].startswith("refuses: The key of client-2 has changed since client-1 first saw it")


def test_a_server_that_uses_a_number_twice_gets_nothing(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = both("fedavg", participation=1.0)[1]
    fed.fit(1, progress=False)
    masks = at(fed).masked
    assert masks is not None
    masks.number, before = 0, len(wire.up)
    monkeypatch.setattr(masked_sites, "_now", lambda: 1)
    with pytest.raises(
        eq.QuorumError, match=r"was asked for sum number 1 and has taken part in number \d{13}: masks are never"
    ):
        fed.fit(1, progress=False)
    assert not any(parcel.tensors for _, _, parcel in wire.up[before:])


def test_a_server_that_wants_one_site_alone_gets_nothing(wire: Wire) -> None:
    """It tells client 2 that it counts most, and the others that they count little."""
    fed = both("saga", participation=1.0)[1]

    def weighed(kind: str, site: str, parcel: Parcel) -> Parcel:
        asked = dict(parcel.fields.get("sum", {}))
        if asked.get("phase") != "model":
            return parcel
        asked["inputs"] = {**asked["inputs"], "sum": asked["inputs"]["sum"] * (1 if site == "client-2" else 1e6)}
        return replace(parcel, fields={**parcel.fields, "sum": asked})

    wire.change = weighed
    with pytest.raises(eq.QuorumError, match="the sum is out of range: masks do not fit each other"):
        fed.fit(1, progress=False)


def told(**inputs: Any) -> Callable[[str, str, Parcel], Parcel]:
    """What goes down the wire of a server that tells the sites something else about every sum."""

    def change(kind: str, site: str, parcel: Parcel) -> Parcel:
        asked = parcel.fields.get("sum")
        lie = {**asked, "inputs": {**asked["inputs"], **inputs}} if asked else None
        return replace(parcel, fields={**parcel.fields, "sum": lie}) if lie else parcel

    return change


def sizes_of(fed: eq.Federation, **changed: int) -> dict[str, int]:
    return {site.name: site.size for site in at(fed).sites.known} | {k.replace("_", "-"): n for k, n in changed.items()}


class Thief:
    """A server that asks the sites for more sums of a round than the method needs, and keeps what it is sent."""

    def __init__(self, fed: eq.Federation) -> None:
        self.fed, masks = fed, at(fed).masked
        assert masks is not None
        self.masks, self.sums, self.refused = masks, list[Tensor](), list[str]()

    def fit(self, monkeypatch: pytest.MonkeyPatch, phase: str, *lies: Mapping[str, Any]) -> None:
        """A round in which the sum of ``phase`` is asked for again, each time with other inputs."""
        honest = masked_sites.Round.total

        def total(this: masked_sites.Round, asked: str, ids: list[int], n: int, inputs: Any, **more: Any) -> Any:
            found = honest(this, asked, ids, n, inputs, **more)
            for lie in lies if asked == phase else ():
                before = dict(this.lost)
                try:
                    self.sums.append(honest(this, asked, ids, n, {**inputs, **lie})[1])
                except masked_sites.ClosedError:
                    self.refused += [why for m, why in this.lost.items() if m not in before]
                this.lost = before
            return found

        monkeypatch.setattr(masked_sites.Round, "total", total)
        self.fed.fit(1, progress=False)


@pytest.mark.parametrize("first", [False, True])
def test_no_update_follows_from_sums_with_other_weights(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """K sums over the same K sites with other weights would be K equations: a site gives one sum of a round."""
    thief = Thief(both("fedavg", participation=1.0)[1])
    if not first:
        thief.fed.fit(1, progress=False)
    lies = [{"sizes": sizes_of(thief.fed, **{f"client_{m}": 90})} for m in range(5)]
    thief.fit(monkeypatch, "model", *lies)
    assert thief.sums == []
    assert len(thief.refused) == 25
    assert all("it refuses: Other weights were told in round" in why for why in thief.refused)


@pytest.mark.parametrize("phase", ["values", "model"])
def test_no_value_follows_from_sums_with_other_references(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAGA's sites are told nothing for the sum of their values, and one sum for that of their models."""
    thief = Thief(both("saga", participation=1.0)[1])
    lies = [{"reference": 2.0**k} if phase == "values" else {"sum": 2.0**k} for k in range(1, 6)]
    thief.fit(monkeypatch, phase, *lies)
    assert thief.sums == []
    assert len(thief.refused) == 25
    assert all("refuses: Other weights were told in round" in why for why in thief.refused)


def lied_to(site_told_right: str, change: Callable[[Parcel], Parcel]) -> Callable[[str, str, Parcel], Parcel]:
    """A server that tells one site the truth, and the others something else, for every training."""
    return lambda kind, site, parcel: change(parcel) if kind == "train.masked" and site != site_told_right else parcel


@pytest.mark.parametrize("method", ["fedavg", "saga"])
@pytest.mark.parametrize("what", ["lr", "rounds"])
def test_who_trains_with_other_settings_is_in_no_sum(method: str, what: str, wire: Wire) -> None:
    """With a learning rate of next to nothing for the others, the sum would be one site's update."""

    def change(parcel: Parcel) -> Parcel:
        experiment = parcel.fields["experiment"]
        solver = {**experiment["solver"], "lr": 1e-30}
        lie = {"experiment": {**experiment, "solver": solver}} if what == "lr" else {"rounds": 10**6}
        return replace(parcel, fields={**parcel.fields, **lie})

    wire.change = lied_to("client-2", change)
    with pytest.raises(eq.QuorumError, match="the update of another model, or of other settings, than were sent"):
        both(method, participation=1.0)[1].fit(1, progress=False)


def test_a_site_knows_itself_when_it_counted_last(wire: Wire) -> None:
    """Told that they never did, all others would give no last weight, and the sum of these be that of one site."""
    fed = both("saga", participation=1.0)[1]
    fed.fit(1, progress=False)
    sums: list[float] = []
    narrow = secure.narrow

    def seen(total: Tensor) -> tuple[float, float]:
        found = narrow(total)
        sums.append(found[1])
        return found

    change = lambda parcel: replace(parcel, fields={**parcel.fields, "receipt": [-1, "00" * 32]})  # noqa: E731
    wire.change = lied_to("client-2", change)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure, "narrow", seen)
        fed.fit(1, progress=False)
    assert sums == pytest.approx([1.0], abs=1e-9)


@pytest.mark.parametrize(
    "wrong", [{"sum": math.inf}, {"sum": 1e-18}, {"sum": math.nan}, {"sum_last": math.inf}, {"sum_last": -1.0}]
)
def test_a_refusal_tells_no_number_and_is_given_once(wrong: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    fed = both("saga", participation=1.0)[1]
    total = masked_sites.Round.total
    tries: list[str] = []

    def lying(this: masked_sites.Round, phase: str, ids: list[int], n: int, inputs: Any, **more: Any) -> Any:
        if phase == "model":
            with pytest.raises(masked_sites.ClosedError):
                total(this, phase, ids, n, {**inputs, **wrong}, **more)
            tries.extend(this.lost.values())
            this.lost.clear()
        return total(this, phase, ids, n, inputs, **more)

    monkeypatch.setattr(masked_sites.Round, "total", lying)
    with pytest.raises(eq.QuorumError, match="Other weights were told in round 0"):
        fed.fit(1, progress=False)
    assert len(tries) == 5
    assert not any(re.search(r"\d{3}", why) for why in tries)


def test_a_sum_that_is_no_number_ends_the_round_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = both("saga", participation=1.0)[1]
    right = masked_site.KINDS["train.masked"]

    def train(site: Site, asked: Parcel) -> Parcel:
        found = right(site, asked)
        noise = torch.full_like(found.tensors["masked"], -1)
        return replace(found, tensors={"masked": noise}) if site.trial.names == ("client-3",) else found

    monkeypatch.setitem(masked_site.KINDS, "train.masked", train)
    with pytest.raises(eq.QuorumError, match="the sum is not one of weights"):
        fed.fit(1, progress=False)


def test_a_round_of_saga_is_done_again_with_the_same_sums(tmp_path: Path) -> None:
    """A server that stopped before its checkpoint tells the sites the same sum, to the last bit."""
    made = []
    for _ in range(4):
        fed = both("saga(q=3)", participation=1.0, states=tmp_path)[1]
        fed.fit(1, progress=False)
        made.append(fed.progress.vector)
    assert all(torch.equal(made[0], other) for other in made)


def test_noise_is_not_drawn_again_after_another_round_was_trained(tmp_path: Path, wire: Wire) -> None:
    """The update of an unmasked round gives way to that of the next; then the first is not made again."""
    fed = both("dp", participation=1.0, states=tmp_path)[1]
    wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and n > 0 else ""
    patience(fed).deadline = patience(fed).poll = 0.001
    with pytest.raises(eq.QuorumError):
        fed.fit(2, progress=False)
    again = both("dp", participation=1.0, states=tmp_path)[1]
    with pytest.raises(eq.QuorumError, match="has unmasked round 0, and has not its update any more"):
        again.fit(2, progress=False)


def test_a_second_sum_is_not_unmasked_either(sites: Met) -> None:
    """The server gets masked vectors of two sums before it unmasks one: a site remembers the last, and gives no seed of another."""
    one, two = sites.ask(1), replace(sites.ask(2), inputs={"sum": 2.0})
    sites.send(one, contents())
    sites.send(two, contents())
    sites.open(two)
    with pytest.raises(MaskError, match="Sum number 1 cannot be unmasked"):
        sites.own_seed(one, "ward-a")
    three = replace(sites.ask(3), inputs={"sum": 3.0})
    with pytest.raises(MaskError, match=r"ward-a was asked for round 0 over .* with another model, or other weights"):
        sites.send(three, contents())
    with pytest.raises(MaskError, match="with another model, or other weights"):
        sites.send(replace(sites.ask(3), model="another", inputs={"sum": 2.0}), contents())


def test_two_sums_that_differ_by_a_site_take_more_sites_than_there_are(tmp_path: Path) -> None:
    """The server lets three of four sites unmask a sum without the fourth, and wants one of the fourth and two others."""
    assert all(masked.threshold(n) + masked.threshold(n - 1) > n for n in range(3, 200))
    assert [masked.threshold(n) for n in (2, 3, 4, 5, 6, 9, 10)] == [2, 2, 3, 4, 4, 6, 7]
    sites = Met(tmp_path, ("a", "b", "c", "d"))
    rows, one = contents(names=sites.names), sites.ask(1)
    sent = {name: sites.masked(one, name, x) for name, x in rows.items()}
    shares = [sites.shares_of(one, name, {"d": sent["d"].shares[name]})["d"] for name in ("a", "b", "c")]
    seeds = {name: sites.own_seed(one, name) for name in ("a", "b", "c")}
    seeds["d"] = masked.recovered(shares, sent["d"].hashes["d"])
    found = masked.total(one, {name: y.vector for name, y in sent.items()}, seeds)
    assert torch.allclose(found, sum(rows.values()), rtol=0, atol=1e-9)  # type: ignore[arg-type]
    with pytest.raises(MaskError, match="has sent shares that are not of its seed"):
        masked.recovered(shares[:2], sent["d"].hashes["d"])
    two = sites.ask(2, names=("b", "c", "d"))
    sites.masked(two, "d", rows["d"])  # it has unmasked nothing
    for name in ("b", "c"):
        with pytest.raises(MaskError, match="the difference of two sums could show one site"):
            sites.masked(two, name, rows[name])


def test_a_share_is_for_one_site_and_one_sum(sites: Met) -> None:
    one = sites.ask(1)
    first = {name: sites.masked(one, name, x) for name, x in contents().items()}
    hidden = first["ward-c"].shares["ward-a"]
    assert (
        masked.sha256(sites.shares_of(one, "ward-a", {"ward-c": hidden})["ward-c"]) == first["ward-c"].hashes["ward-a"]
    )
    assert sites.shares_of(one, "ward-b", {"ward-c": hidden}) == {}
    with pytest.raises(MaskError, match="A share of ward-b was asked for, which is no other site"):
        sites.shares_of(one, "ward-b", {"ward-b": hidden})
    two = sites.ask(2)
    for name, x in contents().items():
        sites.masked(two, name, x)
    with pytest.raises(MaskError, match="Sum number 1 cannot be unmasked"):
        sites.shares_of(one, "ward-a", {"ward-c": hidden})
    assert sites.shares_of(two, "ward-a", {"ward-c": hidden, "ward-b": 3}) == {}  # type: ignore[dict-item]


@pytest.mark.parametrize(("changed", "lost", "reason"), [
    ({"client_2": 10**6}, ["client-2"], "refuses: client-2 has 9 samples, and the others are told 1000000"),
    ({"client_1": -3}, None, "refuses: The sizes of all sites must be whole numbers >= 1"),
])  # fmt: skip
def test_samples_that_are_told_wrong(
    changed: dict[str, int], lost: list[str] | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = both("fedavg", participation=1.0)[1]
    wrong = {site.name: site.size for site in at(fed).sites.known}
    wrong |= {name.replace("_", "-"): n for name, n in changed.items()}
    monkeypatch.setattr(masked_sites.Round, "sizes", property(lambda this: wrong))
    if lost is None:
        with pytest.raises(eq.QuorumError, match=reason):
            fed.fit(1, progress=False)
        return
    fed.fit(1, progress=False)
    assert [q["name"] for q in fed.records[0]["quarantined"]] == lost
    assert reason in fed.records[0]["quarantined"][0]["reason"]


def test_noise_is_not_drawn_again_for_the_same_round(tmp_path: Path) -> None:
    """Else the mean of many answers of one round would be without it: the update of a round is made once."""
    made = []
    for _ in range(2):
        fed = both("dp", participation=1.0, states=tmp_path)[1]
        fed.fit(1, progress=False)
        made.append((fed.progress.vector, {p: p.read_bytes() for p in tmp_path.rglob("update.safetensors")}))
    assert torch.equal(made[0][0], made[1][0])
    assert made[0][1] == made[1][1]
    assert len(made[0][1]) == 5


def test_a_site_that_the_sum_would_show_stays_away() -> None:
    """The sum is then nearly its own update; the others do the round without it."""
    fed = in_process(network(), clients((400, 4, 6, 5)), "fedavg", SOLVER, secure=True)
    fed.fit(1, progress=False)
    (lost,) = fed.records[0]["quarantined"]
    assert lost["name"] == "client-0"
    assert lost["reason"].startswith(
        "refuses: The update of client-0 would be more than 95% of the sum, which would show it"
    )
    assert fed.records[0]["weights"] == pytest.approx([4 / 15, 6 / 15, 5 / 15])


def test_the_update_of_a_round_goes_into_sums_of_that_round(wire: Wire) -> None:
    """Otherwise a server could have the same update in two open sums."""

    def later(kind: str, site: str, parcel: Parcel) -> Parcel:
        asked = parcel.fields.get("sum")
        return replace(parcel, fields={**parcel.fields, "sum": {**asked, "round": 7}}) if asked else parcel

    wire.change = later
    with pytest.raises(eq.QuorumError, match="A sum of round 7 was asked for with the update of round 0"):
        both("fedavg")[1].fit(1, progress=False)


def test_only_what_the_method_sums_is_summed(wire: Wire) -> None:
    def renamed(kind: str, site: str, parcel: Parcel) -> Parcel:
        asked = parcel.fields.get("sum")
        return replace(parcel, fields={**parcel.fields, "sum": {**asked, "phase": "values"}}) if asked else parcel

    wire.change = renamed
    with pytest.raises(eq.QuorumError, match="Something is to be summed that is not part of the method: 'values'"):
        both("fedavg")[1].fit(1, progress=False)


@pytest.mark.parametrize(
    ("method", "kind", "key"), [("fedavg", "train.masked", "sizes"), ("saga", "train.again", "sum_last")]
)
def test_what_a_sum_lacks_is_named(method: str, kind: str, key: str, wire: Wire) -> None:
    def lacking(sent: str, site: str, parcel: Parcel) -> Parcel:
        if sent != kind:
            return parcel
        asked = parcel.fields["sum"]
        inputs = {name: x for name, x in asked["inputs"].items() if name != key}
        return replace(parcel, fields={**parcel.fields, "sum": {**asked, "inputs": inputs}})

    wire.change = lacking
    with pytest.raises(eq.QuorumError, match=f"refuses: A sum was asked for without its '{key}'"):
        both(method)[1].fit(1, progress=False)


@pytest.mark.parametrize(("wrong", "reason"), [
    ({"masked": torch.zeros(3, dtype=torch.int64)}, "there is no masked vector of the right size"),
    ({"masked": torch.zeros(73).double()}, "there is no masked vector of the right size"),
    ({}, "there is no masked vector of the right size"),
])  # fmt: skip
def test_a_summand_that_is_none(wrong: dict[str, Tensor], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = both("fedavg", participation=1.0)[1]
    right = masked_site.KINDS["train.masked"]

    def train(site: Site, asked: Parcel) -> Parcel:
        found = right(site, asked)
        return replace(found, tensors=wrong) if site.trial.names == ("client-3",) else found

    monkeypatch.setitem(masked_site.KINDS, "train.masked", train)
    fed.fit(1, progress=False)
    assert [q["reason"] for q in fed.records[0]["quarantined"]] == [f"sent what cannot be used: {reason}"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "00"},
        {"key": "00" * 32},
        {"key": "xy" * 32},
        {"number": math.inf},
        {"number": -1},
        {"number": 10**30},
        {"number": 2**53 - 1},
        {"opened": {"model": [math.inf, ["ward-a"], ""]}},
        {"opened": [1]},
        {"pinned": 3},
    ],
    ids=str,
)
def test_a_site_that_says_what_cannot_be_keeps_nobody_from_a_sum(wrong: dict[str, Any], wire: Wire) -> None:
    """A key that is none would make all others refuse, and a number without an end would stop the server."""
    simulated, fed = both("fedavg", participation=1.0)
    right = masked_site.KINDS["query.keys"]

    def lying(site: Site, asked: Parcel) -> Parcel:
        found = right(site, asked)
        return Parcel(found.fields | wrong) if site.trial.names == ("client-3",) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_site.KINDS, "query.keys", lying)
        fed.fit(2, progress=False)
    assert [q["name"] for record in fed.records for q in record["quarantined"]] == ["client-3", "client-3"]
    simulated.trial = replace(simulated.trial, engine=without({0: 3, 1: 3}))
    simulated.fit(2, progress=False)
    assert distance(simulated, fed) < 1e-10


@pytest.mark.parametrize("others", [["client-3", "client-9"], ["client-3"], ["client-0", "client-3"]])
def test_a_false_claim_of_what_was_unmasked_keeps_nobody_from_a_sum(others: list[str], wire: Wire) -> None:
    fed = both("fedavg", participation=1.0)[1]
    right = masked_site.KINDS["query.keys"]

    def lying(site: Site, asked: Parcel) -> Parcel:
        found = right(site, asked)
        wrong = {"opened": {"model": [0, others, "00"]}}
        return Parcel(found.fields | wrong) if site.trial.names == ("client-3",) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_site.KINDS, "query.keys", lying)
        fed.fit(1, progress=False)
    assert fed.records[0]["ids"] == ([0, 1, 2, 4] if len(others) == 1 else [0, 1, 2, 3, 4])


@pytest.mark.parametrize("whom", [["client-0"], ["client-0", "client-1", "client-2", "client-4"]])
def test_a_false_claim_of_others_keys_keeps_nobody_from_a_sum(whom: list[str], tmp_path: Path) -> None:
    """Also at the first start, when nobody else has seen a key."""
    fed = both("fedavg", participation=1.0)[1]
    right, stranger = masked_site.KINDS["query.keys"], key_at(tmp_path / "stranger")

    def lying(site: Site, asked: Parcel) -> Parcel:
        found = right(site, asked)
        wrong = {"pinned": dict.fromkeys(whom, stranger)}
        return Parcel(found.fields | wrong) if site.trial.names == ("client-3",) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_site.KINDS, "query.keys", lying)
        fed.fit(1, progress=False)
    assert "quarantined" not in fed.records[0]


@pytest.mark.parametrize("shares", [[b""], [b"x"], [bytes(20), b""], [bytes(20)] * 4, [bytes(52), bytes(4), bytes(7)]])
def test_shares_of_any_form_are_no_seed(shares: list[bytes]) -> None:
    with pytest.raises(MaskError, match="has sent shares that are not of its seed"):
        masked.recovered(shares, masked.sha256(bytes(32)))


def test_a_site_that_changes_its_key_is_left_out_alone(wire: Wire, tmp_path: Path) -> None:
    """The others would refuse every sum with it: what most have seen counts, also for a server that starts again."""
    first = both("fedavg", participation=1.0, states=tmp_path / "sites")[1]
    first.fit(1, directory=tmp_path / "run", progress=False)
    (path,) = (tmp_path / "sites").rglob("client-3/masks.json")
    path.unlink()
    second = both("fedavg", participation=1.0, states=tmp_path / "sites")[1]
    second.resume(tmp_path / "run")
    second.fit(1, progress=False)
    (lost,) = second.records[1]["quarantined"]
    assert lost["name"] == "client-3"
    assert lost["reason"].startswith("shows another key than most sites have seen of it")
    assert second.records[1]["ids"] == [0, 1, 2, 4]


def test_seeds_that_are_not_those_of_the_masks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = both("fedavg", participation=1.0)[1]
    real = masked.own_seed
    monkeypatch.setattr(
        masked,
        "own_seed",
        lambda memory, asked, site: (memory, bytes(32)) if site > "client-2" else real(memory, asked, site),
    )
    with pytest.raises(
        eq.QuorumError, match="client-3 sent no seed, or another one than it has used; client-4 sent no"
    ):
        fed.fit(1, progress=False)
    assert fed.progress.t == 0


def test_updates_out_of_range_stay_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_sites, "LIMIT", 1e-9)
    monkeypatch.setattr(masked_site, "LIMIT", 1e-9)
    with pytest.raises(
        eq.QuorumError, match=r"refuses: client-0 has numbers outside the range \[-1e-09, 1e-09\] of a masked sum"
    ):
        both("fedavg")[1].fit(1, progress=False)


# what is refused
@pytest.mark.parametrize(("method", "reason"), [
    ("fedheal", "fedheal cannot be used, because the server must see what single sites send"),
    ("fedprox+afl", "afl cannot be used, because the server must see what single sites send"),
    ("fednova", "fednova cannot be used, because the server must see what single sites send"),
    ("saga:released", "saga cannot be used, because the server must see what single sites send"),
    ("standalone", "standalone cannot be used, because nothing is summed in it"),
])  # fmt: skip
def test_other_methods_are_refused_before_anything_is_sent(method: str, reason: str, tmp_path: Path) -> None:
    class Deaf:
        """Whoever asks it anything fails."""

    settings = AppSettings.of({"method": method, "secure": True, "run-dir": str(tmp_path / "run")})
    with pytest.raises(eq.MethodError) as caught:
        serve(cast(Grid, Deaf()), Task(network()), settings)
    assert str(caught.value).startswith(
        f"secure=true: {reason}, and the server sees sums only. Methods that can be used"
    )
    assert "fedprox" in str(caught.value)
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_rule_that_does_more_than_weigh_is_refused() -> None:
    @dataclass(frozen=True)
    class Sly(Rule):
        sees = "sum"

        def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
            return state, replace(cohort, coefficients=cohort.uniform)

    with pytest.raises(eq.MethodError, match="does more than to weigh the updates"):
        in_process(network(), clients(), Sly(), SOLVER, secure=True)


def test_a_rule_whose_reports_have_no_known_form_is_refused() -> None:
    @dataclass(frozen=True)
    class Counts(Rule):
        sees = "sum"
        reports = "its steps"

        def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
            return {"steps": visit.travel[0]}, visit.state

    with pytest.raises(eq.MethodError, match="every site reports steps to the server, and no_report does not say"):
        in_process(network(), clients(), Counts(), SOLVER, secure=True)


def test_what_clients_reach_alone_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="what each site reaches alone is not found out"):
        in_process(network(), clients(), "fedavg", SOLVER, secure=True, collaborative=True, tests={"a": samples(9, 1)})
    assert list(tmp_path.iterdir()) == []  # the sites' states, of a federation that was not made


def test_the_keys_are_shown_once_to_be_compared(caplog: pytest.LogCaptureFixture) -> None:
    fed = in_process(network(), clients()[:3], "fedavg", SOLVER, secure=True)
    fed.fit(2, progress=False)
    found = re.findall("fingerprint ([0-9a-f-]{39})", caplog.text)
    assert len(found) == 4  # the server and three sites
    assert len(set(found)) == 1
    assert len(set(re.findall("(client-[012]): its public key for masked sums is [0-9a-f]{64}", caplog.text))) == 3


def test_two_sites_are_warned(caplog: pytest.LogCaptureFixture) -> None:
    fed = in_process(network(), clients()[:2], "fedavg", SOLVER, secure=True)
    with caplog.at_level("WARNING"):
        fed.fit(1, progress=False)
    assert "a masked sum over two sites hides neither from the other: each can subtract itself" in caplog.text


def test_what_the_owner_of_a_site_asks_for(tmp_path: Path) -> None:
    """Masked sums only, over four sites at least, with those whose keys it was told."""
    data = dict(zip(("a", "b", "c"), clients(), strict=False))
    told = description(Method.of("fedavg"), SOLVER, eq.Settings(batch_size=8), ("accuracy",), "trial")

    def trained(node: dict[str, Any], secure: bool) -> str:
        app = make_client_app(lambda n, _: Task(network(), data.get(str(n["site"]))))
        nodes = [{"site": name, "state-dir": str(tmp_path / name), **(node if name == "b" else {})} for name in data]
        told["name"] += "."  # another experiment, with new keys
        sites = Sites(Exchange(InProcessGrid(app, nodes, {}), dict(told), deadline=5.0, poll=0.001))
        sites.roster.gather(3, [], 0.0)
        fed = federation(Task(network()), sites, "fedavg", SOLVER, settings=eq.Settings(batch_size=8), secure=secure)
        fed.fit(1, progress=False)
        (lost,) = fed.records[0].get("quarantined", [{"name": "b", "reason": ""}])
        assert lost["name"] == "b"
        return str(lost["reason"])

    assert trained({"secure": True}, False) == "refuses: it takes part in masked sums only"
    assert trained({"least-sites": 4}, True).startswith("refuses: A sum over 3 sites was asked for, and b takes part")
    peers = tmp_path / "peers.json"
    peers.write_text("{}")
    assert trained({"secure": True, "peers": str(peers)}, True).startswith("refuses: The key of a is not there")
    assert trained({"secure": True, "least-sites": 3}, True) == ""


def test_a_round_that_was_opened_without_a_site_is_done_again_without_it(wire: Wire, tmp_path: Path) -> None:
    """The server stopped after the opening and before its checkpoint; the site is back, and has to wait for the next round."""
    for lost in ("client-3", ""):
        fed = both("fedavg", participation=1.0, states=tmp_path)[1]
        wire.cut = lambda kind, site, n, lost=lost: "down" if kind == "train.masked" and site == lost else ""  # type: ignore[misc]
        fed.fit(1, progress=False)
        (found,) = fed.records[0]["quarantined"]
        assert found["name"] == "client-3"
    fed.fit(1, progress=False)
    assert found["reason"] == "was not there when a sum of this round was unmasked"
    assert "quarantined" not in fed.records[1]


def test_long_vectors() -> None:
    """An update of a hundred thousand numbers, and the sum of three, is exact."""
    names = ("a", "b", "c")
    keys = {n: "".join(f"{(7 * k + i) % 256:02x}" for i in range(32)) for k, n in enumerate(names, start=1)}
    public = {n: masked.public(key) for n, key in keys.items()}
    asked = Sum("x", 1, 0, "model", "", "", names)
    memories = {n: masked.Memory(key, public) for n, key in keys.items()}
    rows = {n: normal(100_000, seed=k) for k, n in enumerate(names)}
    made = {n: masked.masked_vector(memories[n], asked, n, rows[n]) for n in names}
    seeds = {n: bytes.fromhex(after.seed) for n, (after, _) in made.items()}
    total = masked.total(asked, {n: sent.vector for n, (_, sent) in made.items()}, seeds)
    assert float((total - sum(rows.values())).abs().max()) <= 3 * 2.0 ** -(asked.secure.bits + 1) + 1e-15


def test_peers_are_written_after_the_first_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run stops at once, prints the keys, and goes on with them when the file has them."""
    names, peers = ("a", "b", "c"), tmp_path / "peers.json"
    peers.write_text("{}")
    data = dict(zip(names, clients(), strict=False))
    app = make_client_app(lambda node, _: Task(network(), data[str(node["site"])]))
    nodes = [{"site": name, "state-dir": str(tmp_path / name), "peers": str(peers)} for name in names]
    told = {"method": "fedavg", "secure": True, "rounds": 2, "min-sites": 3, "run-dir": str(tmp_path / "run")}

    def run() -> eq.History:
        return serve(InProcessGrid(app, nodes, {}), Task(network()), AppSettings.of(told))

    with pytest.raises(eq.QuorumError, match="refuses: The key of b is not there, in the file of peers of a"):
        run()
    keys = dict(re.findall("([abc]): its public key for masked sums is ([0-9a-f]{64})", caplog.text))
    peers.write_text(json.dumps(keys))
    assert [record["ids"] for record in run().records] == [[0, 1, 2]] * 2
