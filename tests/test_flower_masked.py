"""Masked sums between machines: keys, transcripts, seeds; and whole runs in which the server sees nothing but sums."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields as fields_of, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from safetensors.torch import load_file
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Cohort, Rule, State, Visit
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation import fingerprint
from equipoise.federation.method import Method, more_than_sums
from equipoise.methods import METHODS
from equipoise.testing.federations import people_settings
from helpers import UNEQUAL, clients, in_one, network, normal, others_slow, samples, tensor

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.serverapp import Grid
from fuzz_changes import places

from equipoise.flower.app import in_process, make_client_app, serve
from equipoise.flower.codec import Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.internals import create_shares
from equipoise.flower.secagg import server as masked_sites, site as masked_site, sums
from equipoise.flower.secagg.server import MaskedSites
from equipoise.flower.secagg.sums import MaskError, SiteMemory, SumRequest
from equipoise.flower.server.consortium import Consortium, description, federation
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.settings import AppSettings
from equipoise.flower.site import site as site_of
from equipoise.flower.site.task import Task
from equipoise.system.errors import RunError

NAMES = ("ward-a", "ward-b", "ward-c")
SIZE = 10
SOLVER = eq.SGD(0.05, 0.9, 1e-4)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here outlives a crash of the machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Met:
    """Sites in one directory, as functions of their memories; all have :data:`SIZE` samples."""

    def __init__(self, base: Path, names: Sequence[str] = NAMES) -> None:
        self.names = tuple(names)
        self.paths = {name: base / name / "masks.json" for name in names}
        self.keys = {name: key_at(path) for name, path in self.paths.items()}
        self.sent: dict[tuple[str, str], sums.MaskedVector] = {}  # by transcript and site
        self.seeds: dict[tuple[str, str], bytes] = {}  # that no site sends

    def ask(self, number: int, *, names: Sequence[str] = (), **changed: Any) -> SumRequest:
        fields = {"number": number, "t": 0, "training": "once", "sites": list(names or self.names)}
        fields |= {"sizes": dict.fromkeys(self.names, SIZE), "keys": self.keys}
        return SumRequest.read({**fields, **changed}, {"name": "trial"})

    def masked(
        self,
        asked: SumRequest,
        name: str,
        x: Tensor,
        *,
        least: int = 2,
        model: str = "",
        peers: Mapping[str, str] | None = None,
    ) -> sums.MaskedVector:
        model = model or f"model of round {asked.round}"

        def made(memory: SiteMemory) -> tuple[SiteMemory, sums.MaskedVector]:
            memory = sums.check_sum(memory, asked, name, SIZE, peers, least)
            sums.check_model(memory, model, asked.round, name)
            return sums.masked_vector(memory, asked, name, x, {"model": model, "used": "", "receipt": []})

        def shared(seed: bytes, least: int, n: int) -> list[bytes]:
            self.seeds[asked.transcript, name] = seed
            return create_shares(seed, least, n)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sums, "create_shares", shared)
            vector = sums.change_memory(self.paths[name], made)
        self.sent[asked.transcript, name] = vector
        return vector

    def send(self, asked: SumRequest, rows: Mapping[str, Tensor], **more: Any) -> dict[str, Tensor]:
        return {name: self.masked(asked, name, x, **more).vector for name, x in rows.items()}

    def shares_of(self, asked: SumRequest, name: str, hidden: Mapping[str, str]) -> dict[str, bytes]:
        return sums.change_memory(
            self.paths[name], lambda memory: sums.shares_of(memory, asked.transcript, name, hidden)
        )

    def unmask(self, asked: SumRequest, by: Sequence[str] = ()) -> dict[str, bytes]:
        """The seeds of all sites, from the shares that some of them give."""
        hidden = {name: self.sent[asked.transcript, name].shares for name in asked.sites}
        given = [self.shares_of(asked, name, {n: x[name] for n, x in hidden.items()}) for name in by or asked.sites]
        least = sums.threshold(len(asked.sites))
        return {name: sums.seed_of([shares[name] for shares in given][:least]) for name in asked.sites}


def key_at(path: Path) -> str:
    return sums.public_key(sums.read_memory(path).key)


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


def near(found: Tensor, rows: Mapping[str, Tensor]) -> bool:
    return torch.allclose(found, torch.stack(list(rows.values())).sum(0), rtol=0, atol=1e-9)


# a sum
@pytest.mark.parametrize("n", [2, 3, 4, 7, 16])
def test_the_sum_is_the_sum(n: int, tmp_path: Path) -> None:
    """To the finest resolution that 64 bits leave, and up to the ends of the range."""
    sites = Met(tmp_path, [f"site-{k:02d}" for k in range(n)])
    asked, rows, bits = sites.ask(1), contents(names=sites.names), sums.fractional_bits(n)
    ends = tensor([sums.LIMIT, -sums.LIMIT])
    sent = sites.send(asked, {name: torch.cat([x, ends]) for name, x in rows.items()})
    total = sums.total(sent, sites.unmask(asked))
    assert torch.equal(total[50:], n * ends)
    assert float((total[:50] - torch.stack(list(rows.values())).sum(0)).abs().max()) <= n * 2.0 ** -(bits + 1) + 1e-14
    assert n * sums.LIMIT < 2.0 ** (63 - bits) <= 2 * n * sums.LIMIT


def test_what_is_sent_looks_uniform_and_so_does_the_sum_before_it_is_unmasked(sites: Met) -> None:
    asked, zero = sites.ask(1), torch.zeros(20_000).double()
    sent = sites.send(asked, dict.fromkeys(NAMES, zero))
    assert all(uniform(y) for y in sent.values())
    a, b, c = sent.values()
    assert uniform(a + b + c)  # their own masks are still in it
    own = [sums.keystream(seed, len(a)) for seed in sites.unmask(asked).values()]
    assert uniform(a + b - own[0] - own[1])
    assert not bool((a + b + c - own[0] - own[1] - own[2]).any())  # the tests above can fail


def test_a_missing_seed_or_vector_leaves_the_sum_masked(sites: Met) -> None:
    asked = sites.ask(1)
    sent, seeds = sites.send(asked, contents()), sites.unmask(asked)
    with pytest.raises(KeyError, match="ward-c"):
        sums.total(sent, {name: seeds[name] for name in NAMES[:2]})
    for wrong in ({n: sent[n] for n in NAMES[1:]}, sent | {"ward-a": sent["ward-a"] + 1}):
        with pytest.raises(MaskError, match="the masks do not cancel"):
            sums.total(wrong, seeds)


@pytest.mark.parametrize(
    "lie",
    [
        {"number": 2},
        {"t": 1},
        {"training": "another"},
        {"names": NAMES[:2]},
        {"names": NAMES[1:]},
        {"sizes": {**dict.fromkeys(NAMES, SIZE), "ward-a": 11}},
        {"more": None},
    ],
    ids=str,
)
def test_masks_of_sites_that_were_told_different_things_do_not_cancel(sites: Met, lie: dict[str, Any]) -> None:
    """So a server cannot tell one site that two take part, and another that three do; nor anything else."""
    asked, zero = sites.ask(1), torch.zeros(20_000).double()
    other = sites.ask(lie.pop("number", 1), **lie)
    told = {n: other if n == "ward-b" else asked for n in NAMES}
    sent = {n: sites.masked(told[n], n, zero).vector for n in NAMES}
    own = [sums.keystream(sites.seeds[told[n].transcript, n], len(zero) + sums.ZEROS) for n in NAMES]
    assert uniform(torch.stack(list(sent.values())).sum(0) - torch.stack(own).sum(0))


def test_the_version_of_the_code_is_in_a_transcript(sites: Met, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sites.ask(1).transcript
    monkeypatch.setattr(sums, "__version__", "0")
    assert sites.ask(1).transcript != before


# numbers
def test_a_number_is_used_once(sites: Met) -> None:
    rows = contents()
    first = sites.send(sites.ask(4), rows)
    for number in (4, 3):
        with pytest.raises(MaskError, match=rf"sum {number} after 4: masks are never used twice"):
            sites.send(sites.ask(number), rows)
    again = sites.send(sites.ask(5), rows)
    assert not any(bool((again[name] == first[name]).any()) for name in NAMES)


def test_a_refused_sum_uses_no_number_and_a_made_one_is_on_disk(sites: Met) -> None:
    with pytest.raises(MaskError, match="at least"):
        sites.send(sites.ask(1), {"ward-a": tensor([1.0])}, least=4)
    sites.send(sites.ask(1), {"ward-a": tensor([1.0])})
    assert json.loads(sites.paths["ward-a"].read_text())["number"] == 1


@pytest.mark.parametrize("wrong", [3e6, -3e6, math.nan, math.inf])
def test_a_site_with_numbers_out_of_range_is_in_no_sum(sites: Met, wrong: float) -> None:
    """Zeros in their place would select the others: a server could make all but one leave the range."""
    rows = {name: tensor([0.125, 1.0]) for name in NAMES}
    with pytest.raises(MaskError, match="The training of ward-b gave numbers that no sum holds"):
        sites.send(sites.ask(1), {**rows, "ward-b": tensor([0.125, wrong])})


# which sums are unmasked
def test_a_late_vector_shows_nothing(sites: Met) -> None:
    """Site c's vector of an aborted sum comes after the sum of the others was unmasked: the first stays masked."""
    rows = {name: torch.zeros(20_000).double() for name in NAMES}
    one, two = sites.ask(1), sites.ask(2, names=NAMES[:2])
    late = sites.send(one, rows)
    assert not bool(sums.total(sites.send(two, {n: rows[n] for n in two.sites}), sites.unmask(two)).any())
    assert uniform(torch.stack(list(late.values())).sum(0))
    for name in NAMES[:2]:
        with pytest.raises(MaskError, match=f"{name} unmasks only its last sum, number 2"):
            sites.shares_of(one, name, {})


def test_of_a_round_one_sum_is_unmasked(sites: Met) -> None:
    rows = contents()
    asked = sites.ask(1, t=3)
    sites.send(asked, rows)
    sites.unmask(asked)
    assert sites.unmask(asked) == {name: sites.seeds[asked.transcript, name] for name in NAMES}  # asked twice
    fewer = {name: rows[name] for name in NAMES[:2]}
    with pytest.raises(MaskError, match="unmasked round 3 over ward-a, ward-b, ward-c: another sum of round 3 could"):
        sites.send(sites.ask(2, t=3, names=NAMES[:2]), fewer)
    for wrong in ({"t": 2}, {"t": 3, "training": "another"}):
        with pytest.raises(MaskError, match=f"unmasked round 3 over .*: another sum of round {wrong['t']} could"):
            sites.send(sites.ask(2, **wrong), rows)
    again = sites.ask(2, t=3)  # a server that lost the result
    assert near(sums.total(sites.send(again, rows), sites.unmask(again)), rows)
    sites.send(sites.ask(4, t=4, names=NAMES[:2]), fewer)


def test_the_last_sum_of_a_round_is_unmasked_and_no_other(sites: Met) -> None:
    """The server gets masked vectors of two sums before it unmasks one."""
    one, two = sites.ask(1), sites.ask(2, training="another")
    for asked in (one, two):
        sites.send(asked, contents())
    sites.unmask(two)
    with pytest.raises(MaskError, match="ward-a unmasks only its last sum"):
        sites.shares_of(one, "ward-a", {})
    with pytest.raises(MaskError, match="another sum of round 0 could reveal one site"):
        sites.send(sites.ask(3), contents())
    sites.send(sites.ask(3, training="another"), contents())


@pytest.mark.parametrize("names", [NAMES, NAMES[:2]])
@pytest.mark.parametrize("unmasked", [True, False])
def test_a_model_is_in_the_sums_of_one_round(sites: Met, names: Sequence[str], unmasked: bool) -> None:
    """Or the difference of two sums would be the update of a site, or of one batch of it."""
    rows = contents()
    asked = sites.ask(1, t=3)
    sites.send(asked, rows, model="same")
    if unmasked:
        sites.unmask(asked)
    sites.send(sites.ask(2, t=3), rows, model="same")
    for t in (4, 9):
        with pytest.raises(MaskError, match=f"The model of round {t} is that of round 3"):
            sites.send(sites.ask(9, t=t, names=names), {n: rows[n] for n in names}, model="same")
    sites.send(sites.ask(9, t=9, names=names), {n: rows[n] for n in names}, model="other")


@pytest.mark.parametrize(
    ("n", "m", "allowed"), [(3, 2, True), (4, 3, True), (6, 4, True), (6, 3, False), (9, 4, False)]
)
def test_two_sums_of_a_round_that_could_both_be_unmasked_are_refused(
    n: int, m: int, allowed: bool, tmp_path: Path
) -> None:
    """Those who unmask the one need not be those who unmask the other: a site takes part in one of the two, before either is."""
    sites = Met(tmp_path, tuple("abcdefghi"[:n]))
    rows = contents(names=sites.names)
    sites.send(sites.ask(1), rows)
    sites.send(sites.ask(2, names=sites.names[: n - 1]), {name: rows[name] for name in sites.names[: n - 1]})
    fewer = sites.ask(3, names=sites.names[:m])
    for name in fewer.sites:
        if allowed:
            sites.masked(fewer, name, rows[name])
        else:
            with pytest.raises(MaskError, match="Another sum of this round could be unmasked, too"):
                sites.masked(fewer, name, rows[name])
    if not allowed:  # in the next round they may
        sites.masked(sites.ask(4, t=1, names=sites.names[:m]), sites.names[0], rows[sites.names[0]])


def test_a_site_does_not_go_back_to_an_earlier_round(tmp_path: Path) -> None:
    """Its memory of the sums of that round is gone: six unmask one over nine, and the other three would unmask their own."""
    sites = Met(tmp_path, tuple("abcdefghi"))
    rows, three = contents(names=sites.names), tuple("ghi")
    asked = sites.ask(1)
    sites.send(asked, rows)
    sites.unmask(asked, by=sites.names[:6])
    few = {name: rows[name] for name in three}
    sites.send(sites.ask(2, t=1, names=three), few)
    with pytest.raises(MaskError, match="g took part in a sum of round 1, and now in none of round 0"):
        sites.send(sites.ask(3, names=three), few)


def test_two_sums_that_differ_by_a_site_take_more_sites_than_there_are(tmp_path: Path) -> None:
    """The server lets three of four sites unmask a sum without the fourth, and wants one of the fourth and two others."""
    assert all(sums.threshold(n) + sums.threshold(n - 1) > n for n in range(3, 200))
    assert [sums.threshold(n) for n in (2, 3, 4, 5, 6, 9, 10)] == [2, 2, 3, 4, 4, 6, 7]
    sites = Met(tmp_path, ("a", "b", "c", "d"))
    rows, one = contents(names=sites.names), sites.ask(1)
    sent = {name: sites.masked(one, name, x) for name, x in rows.items()}
    seeds = sites.unmask(one, by=("a", "b", "c"))
    assert near(sums.total({name: y.vector for name, y in sent.items()}, seeds), rows)
    assert sites.unmask(one, by=("a", "b"))["d"] != seeds["d"]  # two shares of three
    two = sites.ask(2, names=("b", "c", "d"))
    sites.masked(two, "d", rows["d"])  # it has unmasked nothing
    for name in ("b", "c"):
        with pytest.raises(MaskError, match="another sum of round 0 could reveal one site"):
            sites.masked(two, name, rows[name])


@given(st.lists(st.sets(st.integers(0, 8), min_size=2).map(frozenset), min_size=1, max_size=5, unique=True))
@example([frozenset({0, 1, 2}), frozenset({0, 3, 4}), frozenset({1, 2, 3, 4})])
@example([frozenset({0, 1}), frozenset({0, 1, 2}), frozenset({3, 4, 5})])
def test_no_sums_of_a_round_single_out_a_site(sets: list[frozenset[int]]) -> None:
    """Each site helps one sum: sets whose combination is one site need more helpers than there are sites in them."""
    telling: list[set[frozenset[int]]] = []
    for size in range(1, len(sets) + 1):
        for some in itertools.combinations(sets, size):
            if any(smaller <= {*some} for smaller in telling):
                continue
            matrix = torch.tensor([[float(k in s) for k in range(9)] for s in some], dtype=torch.float64)
            rank = int(torch.linalg.matrix_rank(matrix))
            if any(torch.linalg.matrix_rank(torch.vstack([matrix, row])) == rank for row in torch.eye(9).double()):
                telling.append({*some})
                assert sum(sums.threshold(len(s)) for s in some) > len(frozenset().union(*some))


def test_a_share_is_for_one_site_and_one_sum(sites: Met) -> None:
    one, rows = sites.ask(1), contents()
    first = {name: sites.masked(one, name, x) for name, x in rows.items()}
    hidden = first["ward-c"].shares["ward-a"]
    share = sites.shares_of(one, "ward-a", {"ward-c": hidden})["ward-c"]
    assert sums.sha256(share) == first["ward-c"].hashes["ward-a"]
    assert sites.shares_of(one, "ward-b", {"ward-c": hidden}) == {}
    with pytest.raises(MaskError, match="A share of ward-x was asked for, which is not one of the sites of the sum"):
        sites.shares_of(one, "ward-b", {"ward-x": hidden})
    two = sites.ask(2)
    sites.send(two, rows)
    with pytest.raises(MaskError, match="ward-a unmasks only its last sum"):
        sites.shares_of(one, "ward-a", {"ward-c": hidden})
    assert sites.shares_of(two, "ward-a", {"ward-c": hidden, "ward-b": 3}) == {}  # type: ignore[dict-item]


def test_a_site_does_not_read_the_shares_of_its_own_seed_for_others(sites: Met) -> None:
    """Both of a pair encrypt by the same key: all of them would be its whole seed."""
    asked = sites.ask(1)
    sites.send(asked, contents())
    own = sites.sent[asked.transcript, "ward-b"].shares
    assert [*sites.shares_of(asked, "ward-b", own)] == ["ward-b"]


@in_one("shares", [[b""], [b"x"], [bytes(20), b""], [bytes(20)] * 4, [bytes(52), bytes(4), bytes(7)]])
def test_shares_of_any_form_are_no_seed(shares: list[bytes]) -> None:
    assert len(sums.seed_of(shares)) == sums.SEED


# keys, members and the site's own files
def test_what_a_pair_shares_is_its_own_and_of_one_transcript(sites: Met) -> None:
    private = {n: sums.read_memory(sites.paths[n]).key for n in NAMES}
    made = {
        (n, o, told): sums.pair_keys(private[n], sites.keys[o], told) for n in NAMES for o in NAMES for told in "xy"
    }
    assert all(made[n, o, told] == made[o, n, told] for n, o, told in made)
    assert len({key for both in made.values() for key in both}) == 2 * 2 * 6  # two keys, two transcripts, six pairs
    for wrong in ("00" * 32, "12", "xy"):
        with pytest.raises(MaskError, match="is not the public key of a site"):
            sums.pair_keys(private["ward-a"], wrong, "x")


def test_who_is_in_a_sum(sites: Met, tmp_path: Path) -> None:
    stranger, x = key_at(tmp_path / "stranger"), tensor([1.0])
    sites.send(sites.ask(1), dict.fromkeys(NAMES, x))
    before = sites.paths["ward-a"].read_bytes()
    sizes = dict.fromkeys(NAMES, SIZE)
    for changed, reason in {
        "changed key": (
            {"keys": sites.keys | {"ward-b": stranger}},
            "The key of ward-b changed since ward-a first",
        ),
        "own key": ({"keys": sites.keys | {"ward-a": stranger}}, "a key of ward-a that is not its own"),
        "samples": ({"sizes": sizes | {"ward-c": 9}}, "The samples of ward-c changed since ward-a first saw"),
        "own samples": ({"sizes": sizes | {"ward-a": 9}}, "ward-a has 10 samples, and the others receive 9"),
        "without it": ({"names": NAMES[1:]}, "ward-a was asked for its part of a sum without it"),
    }.values():
        with pytest.raises(MaskError, match=reason):
            sites.masked(sites.ask(2, **changed), "ward-a", x)
    with pytest.raises(MaskError, match=r"ward-a takes part in sums over at least 3 sites .*; found 2"):
        sites.masked(sites.ask(2, names=NAMES[:2]), "ward-a", x, least=3)
    assert sites.paths["ward-a"].read_bytes() == before


@pytest.mark.parametrize("changed", [
    {"number": 1.0}, {"number": True}, {"t": "0"}, {"training": None}, {"sizes": None}, {"keys": {}},
    {"keys": {"ward-a": "00"}}, {"sizes": dict.fromkeys(NAMES, 0)}, {"sizes": dict.fromkeys(NAMES, 1.5)},
    {"keys": dict.fromkeys(NAMES, 3)}, {"names": ("ward-a",)}, {"names": ("ward-b", "ward-a")},
    {"names": ("ward-a", "ward-a")}, {"names": ("ward-a", "ward-x")}, {"sites": "ward-a"}, {"sites": []},
], ids=str)  # fmt: skip
def test_a_message_that_describes_no_sum(sites: Met, changed: dict[str, Any]) -> None:
    with pytest.raises(MaskError):
        sites.ask(**({"number": 1} | changed))


def test_peers_from_elsewhere(sites: Met, tmp_path: Path) -> None:
    """They are compared for every site that the message names, whether or not it is in the sum, or was seen before."""
    path, x = tmp_path / "peers.json", tensor([1.0])

    def tried(peers: Any, number: int, **changed: Any) -> None:
        path.write_text(json.dumps(peers))
        sites.masked(sites.ask(number, **changed), "ward-a", x, peers=sums.read_peers(path))

    tried(sites.keys, 1)
    for peers, reason in (
        (sites.keys | {"ward-b": sites.keys["ward-c"]}, "The key of ward-b is not that in the file of peers"),
        ({"ward-b": sites.keys["ward-b"]}, "The key of ward-c is not that in the file of peers of ward-a"),
        ([1], r"peers\.json, is missing or not of the form"),
        ({"ward-b": 1}, r"peers\.json, is missing or not of the form"),
    ):
        for names in (NAMES, NAMES[:2]):
            with pytest.raises(MaskError, match=reason):
                tried(peers, 2, names=names)


def test_a_fingerprint_depends_on_every_key(sites: Met, tmp_path: Path) -> None:
    said = sums.comparison(sites.keys, {"ward-a": 3})
    assert re.search(", fingerprint ([0-9a-f]{4}-){7}[0-9a-f]{4}[.] It must be the same at all sites", said)
    assert said == sums.comparison(dict(reversed(sites.keys.items())), {"ward-a": 3})
    assert said != sums.comparison(sites.keys, {"ward-a": 4})
    assert said != sums.comparison(sites.keys | {"ward-b": key_at(tmp_path / "other")}, {"ward-a": 3})


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_key_is_its_owner_s_alone(sites: Met) -> None:
    path = sites.paths["ward-a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(MaskError, match=r"Others can read masks\.json with this site's key"):
        sums.read_memory(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key": "00", "opened": {}, "more": 1}'])
def test_a_damaged_memory_is_an_error_and_no_new_key(sites: Met, text: str) -> None:
    path = sites.paths["ward-a"]
    path.write_text(text)
    with pytest.raises(MaskError, match=r"masks\.json with this site's key is damaged"):
        sums.read_memory(path)
    assert path.read_text() == text


def test_the_stream_is_of_its_own_for_every_key() -> None:
    """A longer one begins as a shorter does."""
    stream = sums.keystream(b"s" * 32, 20_000)
    assert not bool((stream == sums.keystream(b"t" * 32, 20_000)).any())
    assert uniform(stream)
    assert torch.equal(stream[:10], sums.keystream(b"s" * 32, 10))
    assert len(sums.keystream(b"s" * 32, 0)) == 0


# whole runs
def both(
    method: Any, participation: float = 1.0, states: Path | None = None, **more: Any
) -> tuple[eq.Federation, eq.Federation]:
    """A simulation, and the same by masked sums, which waits for nobody."""
    kind = "batchnorm" if "fedbn" in str(method) else "mlp"
    given: dict[str, Any] = {"epochs": 2, "batch_size": 8, "participation": participation, "seed": 3, "quorum": 0.5}
    data, more = (
        clients(more.pop("sizes", UNEQUAL), people=bool(people_settings(method))),
        people_settings(method) | more,
    )
    simulated = eq.Federation(network(kind), data, method, SOLVER, engine="sequential", **given | more)
    fed = in_process(network(kind), data, method, SOLVER, secure=True, states=states, **given | more)
    exchange = at(fed).sites.exchange
    exchange.deadline = exchange.poll = 0.001
    return simulated, fed


def masked(method: str = "fedavg", **more: Any) -> eq.Federation:
    return both(method, **more)[1]


SUMMED = [name for name, entry in METHODS.items() if not any(more_than_sums(rule()) for rule in entry.rules)]


def at(fed: eq.Federation) -> Consortium:
    """Where the clients of a federation are."""
    assert isinstance(fed.population, Consortium)
    return fed.population


def masks_of(fed: eq.Federation) -> MaskedSites:
    masks = at(fed).masked
    assert masks is not None
    return masks


def allow(fed: eq.Federation, **node_config: Any) -> None:
    """What the owners of all sites set."""
    for context in cast(InProcessGrid, at(fed).sites.exchange.grid).contexts.values():
        context.node_config.update({key.replace("_", "-"): x for key, x in node_config.items()})


def distance(a: eq.Federation, b: eq.Federation) -> float:
    return float((a.progress.vector - b.progress.vector).abs().max())


def left_out(fed: eq.Federation, t: int = -1) -> dict[str, str]:
    return {q["name"]: q["reason"] for q in fed.records[t].get("quarantined", [])}


class Wire:
    """What goes over the wire, and ways to cut and to bend it.

    ``cut(kind, site, n)`` says whether the n-th message of a kind to a site gets lost on the way ``"down"`` or its answer on the way
    ``"up"``; ``change`` is what a server that lies sends in place of a message, ``bend`` what a site that lies answers.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up: list[tuple[str, str, Parcel]] = []
        self.down: list[tuple[str, str, Parcel]] = []
        self.cut: Callable[[str, str, int], str] = lambda kind, site, n: ""
        self.change: Callable[[str, str, Parcel], Parcel] = lambda kind, site, parcel: parcel
        self.bend: Callable[[str, str, Parcel], Parcel] = lambda kind, site, parcel: parcel
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
            told = self.bend(kind, site, Parcel.of(reply.content))
            self.up.append((kind, site, told))
            reply.content = told.records()
            return reply

        monkeypatch.setattr(InProcessGrid, "_answered", watched)

    def sent(self, kind: str) -> list[str]:
        """The sites that messages of a kind went to."""
        return [site for k, site, _ in self.down if k == kind]

    def lies(self, name: str, kind: str, **fields: Any) -> None:
        """A site says something else than what is so."""
        self.bend = lambda k, site, p: replace(p, fields=p.fields | fields) if (k, site) == (kind, name) else p


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def without(lost: Mapping[int, Sequence[int]]) -> Callable[[Job], Iterator[Answer]]:
    """The sequential engine, in which clients ``lost[t]`` fail in round t."""

    def engine(job: Job) -> Iterator[Answer]:
        rest = [row for row, m in enumerate(job.ids) if m not in lost.get(job.t, ())]
        for answer in sequential(job.part(rest)):
            yield answer.within(rest)

    return engine


def simulate(simulated: eq.Federation, rounds: int, lost: Mapping[int, Sequence[int]] | None = None) -> None:
    if lost:
        simulated.trial = replace(simulated.trial, engine=without(lost))
    simulated.fit(rounds, progress=False)


def test_which_methods_need_only_sums() -> None:
    assert {"fedavg", "fedprox", "moon", "ditto", "fedbn", "margin", "sam", "logit-adjust", "finetune"} < {*SUMMED}
    assert {"scaffold", "fedproto", "fedproc", "dp", "feddyn"} < {*SUMMED}
    assert not {"saga", "fedism", "fedism+", "afl", "qffl", "fairfed", "fednova", "fedpac"} & {*SUMMED}
    assert not {"fedheal", "fedsac", "standalone", "krum", "median"} & {*SUMMED}


MASKED = [
    *(name for name in SUMMED if name != "thresholds"),
    "thresholds(bins=10)",  # with 100, its report is longer than this network, and sites ask for larger sums
    "fedavg:uniform",
    "fedavg(weights=population)",
    "scaffold(option=1)+fedbn",
    "fedproto:weighted",
    "fedproto+scaffold",
]
FAST = ("fedavg:uniform", "dp", "scaffold(option=1)+fedbn")


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.slow] * (m not in FAST)) for m in MASKED])
@pytest.mark.share(2)
def test_a_masked_run_is_the_simulated_one(method: str, wire: Wire) -> None:
    """To fixed point, and also where a third of the sites vanish between their vectors and their seeds."""
    simulated, fed = both(method, sizes=(*UNEQUAL, 11))
    start = fed.progress.vector
    wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and site in ("client-1", "client-4") and n else ""
    for federated in (simulated, fed):
        federated.fit(3, progress=False)
    assert distance(simulated, fed) < (1e-10 if "fedbn" in method else 1e-11)  # BatchNorm makes a rounding larger
    assert float((fed.progress.vector - start).abs().max()) > 1e-2  # it has moved
    assert all(record["secure"] and "quarantined" not in record for record in fed.records)
    assert [r["weights"] for r in fed.records] == [pytest.approx(r["weights"]) for r in simulated.records]
    assert len(wire.sent("query.unmask")) == 3 * 6


@pytest.mark.parametrize("method", others_slow(["fedavg", "fedavg(weights=population)", "scaffold"], fast=(1,)))
def test_some_take_part_in_a_round(method: str) -> None:
    simulated, fed = both(method, participation=0.8)
    for federated in (simulated, fed):
        federated.fit(3, progress=False)
    assert distance(simulated, fed) < 1e-11
    assert {len(record["ids"]) for record in fed.records} == {4}


def test_large_sites_and_counters_of_batches_fit_into_a_sum() -> None:
    """What is masked is as large as updates are, however many samples weigh them."""
    w = {"a": 10.0**6, "b": 3.0 * 10**6, "c": 1.0}
    steps = 10.0**5  # that a counter of a BatchNorm layer has moved
    scaled = {name: x / sums.unit(w) * steps for name, x in w.items()}
    assert all(x < sums.LIMIT for x in scaled.values())
    assert sums.unit(dict.fromkeys("abc", 1.0)) == 1
    assert math.log2(sums.unit(w)).is_integer()


def test_a_network_of_float32() -> None:
    """The step is exact to the resolution of the model's own numbers."""
    data = [(x.float(), y) for x, y in clients()]
    given = {"epochs": 2, "batch_size": 8, "seed": 3}
    simulated = eq.Federation(network().float(), data, "fedavg", SOLVER, engine="sequential", **given)
    fed = in_process(network().float(), data, "fedavg", SOLVER, secure=True, **given)
    for federated in (simulated, fed):
        federated.fit(1, progress=False)
    assert distance(simulated, fed) <= 2.0**-22


def holds(parcel: Parcel, x: Tensor) -> bool:
    """Whether any four numbers that follow one another in ``x`` are in a message, bit for bit or nearly."""
    for sent in parcel.tensors.values():
        if sent.dtype == torch.int64:
            sent = sent.double() * 2.0 ** -sums.fractional_bits(5)
        flat = sent.double().flatten()
        if len(flat) >= 4 and any(
            torch.allclose(flat[k : k + 4], x[:4].double(), rtol=1e-6, atol=1e-9) for k in range(len(flat) - 3)
        ):
            return True
    return False


@pytest.mark.parametrize("method", others_slow(["fedavg", "fedbn", "scaffold", "fedproto", "fairgrad"], fast=(0, 2, 4)))
def test_no_update_travels_in_the_clear(method: str, wire: Wire, tmp_path: Path) -> None:
    fed = masked(method, states=tmp_path)
    start, private = fed.progress.vector, fed.trial.private
    start = start if private is None else start[~private]
    fed.fit(1, progress=False)
    for name, size in zip(fed.trial.names, UNEQUAL, strict=True):
        (path,) = tmp_path.rglob(f"{name}/update.safetensors")
        kept = {key.rpartition("/")[2]: x for key, x in load_file(path).items()}
        update, key = kept["update"], sums.read_memory(path.with_name("masks.json")).key
        assert float(update.norm()) > 0.1
        reports = [kept[report].flatten() for report in ("dc", "proto", "n", "right") if report in kept]
        assert len(reports) == {"scaffold": 1, "fedproto": 1, "fairgrad": 2}.get(method, 0)
        secret = [update, start + update, size * update, size / 8 * update, *reports, *(x / 5 for x in reports)]
        for kind, site, parcel in wire.up:
            assert not any(holds(parcel, x) for x in secret), (kind, site)
            assert key not in json.dumps(parcel.fields)
    wire.up.clear()
    fed = both("fedavg")[0]
    in_process(network(), clients(), "fedavg", SOLVER, epochs=2, batch_size=8, seed=3).fit(1, progress=False)
    assert any(holds(parcel, start + update) for _, _, parcel in wire.up) or method != "fedavg"  # it can fail


# sites that vanish
@pytest.mark.parametrize("how", others_slow(["down", "up"], fast=(1,)))
@pytest.mark.parametrize("kind", ["train.masked", "train.sum"])
def test_who_vanishes_before_the_sum_is_left_out(kind: str, how: str, wire: Wire) -> None:
    """Whether it never trained, or its vector is lost (or late): the others are asked for another sum, and nobody trains twice."""
    simulated, fed = both("fedavg")
    wire.cut = lambda k, site, n: how if (k, site, n) == (kind, "client-4", 1) else ""
    fed.fit(3, progress=False)
    assert left_out(fed, 1) == {"client-4": "is not reachable any more"}
    simulate(simulated, 3, {1: [4]})
    assert distance(simulated, fed) < 1e-11
    assert len(wire.sent("train.masked")) == 15
    assert len(wire.sent("train.sum")) == (14 if kind == "train.masked" else 19)


CUTS = st.tuples(
    st.sampled_from(["query.keys", "train.masked", "train.sum", "query.unmask"]),
    st.sampled_from([f"client-{m}" for m in range(4)]),
    st.sampled_from(["down", "up"]),
)


@settings(max_examples=5)
@given(st.sets(CUTS, max_size=5))
@example({("query.unmask", "client-0", "down"), ("query.unmask", "client-1", "up")})
@example({("query.keys", f"client-{m}", "down") for m in range(4)})
def test_a_round_in_which_sites_vanish_is_that_of_the_others_or_names_them(cuts: set[tuple[str, str, str]]) -> None:
    """At any message and in any number: never an error that is not told in words, and never another result."""
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        simulated, fed = both("fedavg", sizes=UNEQUAL[:4], quorum=0.75)
        wire.cut = lambda kind, site, n: next((how for k, s, how in cuts if (k, s) == (kind, site)), "")
        said = ""
        try:
            fed.fit(1, progress=False)
        except eq.QuorumError as error:
            said = str(error)
        if said:
            assert fed.progress.t == 0
            assert "4 of 4 clients" in said or all(name in said for name in named(cuts))
            return
        simulate(simulated, 1, {0: [m for m in range(4) if m not in fed.records[0]["ids"]]})
        assert distance(simulated, fed) < 1e-11


def named(cuts: set[tuple[str, str, str]]) -> set[str]:
    """Who must be named: whose vector never came, or else whose seed."""
    early = {site for kind, site, _ in cuts if kind in ("query.keys", "train.masked", "train.sum")}
    return early or {site for kind, site, _ in cuts if kind == "query.unmask"}


def test_a_seed_that_is_lost_is_asked_for_again(wire: Wire) -> None:
    simulated, fed = both("fedavg")
    at(fed).sites.exchange.deadline = 5.0
    wire.cut = lambda kind, site, n: (
        ["down", "up", ""][min(n, 2)] if kind == "query.unmask" and site in ("client-3", "client-4") else ""
    )
    fed.fit(2, progress=False)
    simulated.fit(2, progress=False)
    assert distance(simulated, fed) < 1e-11
    assert not left_out(fed, 0) | left_out(fed, 1)


def test_where_more_than_a_third_vanish_the_round_waits_for_the_same_sites(wire: Wire) -> None:
    """A sum without them could be compared with the one that their seeds would open."""
    simulated, fed = both("fedavg")
    simulated.fit(2, progress=False)
    fed.fit(1, progress=False)
    before = fed.progress
    gone = ["client-3", "client-4"]
    wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and site in gone else ""
    with pytest.raises(
        eq.QuorumError,
        match=r"never unmasked: client-3 is not reachable any more; client-4 is not reachable any more\. That needs 4 of its 5 sites",
    ):
        fed.fit(1, progress=False)
    assert fed.progress is before
    wire.cut = lambda kind, site, n: "down" if site in gone else ""
    with pytest.raises(eq.QuorumError, match=r"unmasked round 1 over .*client-4.*Resume with these"):
        fed.fit(1, progress=False)
    gone.clear()
    fed.fit(1, progress=False)
    assert distance(simulated, fed) < 1e-11


def test_one_that_refuses_its_seed_does_not_end_the_wait_for_the_others(wire: Wire) -> None:
    """Two of five are missing at first: with the one that comes back there are enough for the other's."""
    simulated, fed = both("fedavg")
    at(fed).sites.exchange.deadline = 5.0
    wire.lies("client-2", "query.unmask", error="refuses: it does not want to")
    wire.cut = lambda kind, site, n: "down" if (kind, site, n) == ("query.unmask", "client-3", 0) else ""
    for federated in (simulated, fed):
        federated.fit(1, progress=False)
    assert distance(simulated, fed) < 1e-11
    assert not left_out(fed)


def test_too_few_are_left(wire: Wire) -> None:
    fed = masked()
    wire.cut = lambda kind, site, n: "down" if kind == "train.masked" and site < "client-3" else ""
    with pytest.raises(eq.QuorumError, match=r"because 2 sites are left for a masked sum, which needs 2\.5"):
        fed.fit(1, progress=False)
    assert "query.unmask" not in [kind for kind, _, _ in wire.down]  # what nobody uses stays masked


def test_a_server_that_starts_again_goes_on(wire: Wire, tmp_path: Path) -> None:
    """It asks for the last number that was used, and nothing else is lost with it."""
    first, second = (masked("scaffold", participation=0.8, states=tmp_path / "sites") for _ in range(2))
    first.fit(2, directory=tmp_path / "run", progress=False)
    second.resume(tmp_path / "run")
    second.fit(2, progress=False)
    numbers = [parcel.fields["number"] for kind, _, parcel in wire.down if kind == "train.sum"]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4
    simulated = both("scaffold", participation=0.8)[0]
    for _ in range(2):
        simulated.fit(2, progress=False)
    assert distance(second, simulated) < 1e-11


def test_a_round_that_was_unmasked_without_a_site_is_done_again_without_it(wire: Wire, tmp_path: Path) -> None:
    """The server stopped before its checkpoint; the site is back, and has to wait for the next round."""
    for lost in ("client-3", ""):
        fed = masked(states=tmp_path)
        wire.cut = lambda kind, site, n, lost=lost: "down" if kind == "train.masked" and site == lost else ""  # type: ignore[misc]
        fed.fit(1, progress=False)
        assert [*left_out(fed)] == ["client-3"]
    fed.fit(1, progress=False)
    assert left_out(fed, 0) == {"client-3": "did not take part when a sum of this round was unmasked"}
    assert left_out(fed, 1) == {}


def test_noise_is_not_drawn_again_for_the_same_round(tmp_path: Path) -> None:
    """Else the mean of many answers of one round would be without it: the update of a round is made once."""
    made = []
    for _ in range(2):
        fed = masked("dp", states=tmp_path)
        fed.fit(1, progress=False)
        made.append((fed.progress.vector, {p: p.read_bytes() for p in tmp_path.rglob("update.safetensors")}))
    assert torch.equal(made[0][0], made[1][0])
    assert made[0][1] == made[1][1]
    assert len(made[0][1]) == 5


def test_noise_is_not_drawn_again_after_another_round_was_trained(tmp_path: Path, wire: Wire) -> None:
    """The update of an unmasked round gives way to that of the next; then the first is not made again."""
    fed = masked("dp", states=tmp_path)
    wire.cut = lambda kind, site, n: "down" if kind == "query.unmask" and n > 0 else ""
    with pytest.raises(eq.QuorumError):
        fed.fit(2, progress=False)
    with pytest.raises(eq.QuorumError, match="took part in a sum of round 1, and now in none of round 0"):
        masked("dp", states=tmp_path).fit(2, progress=False)


# a server that lies
def other(x: Any) -> Any:
    """Another value of the same type."""
    match x:
        case bool():
            return not x
        case int() | float():
            return x + 1
        case str():
            return f"{x}0"
        case list():
            return [*x, 0]
        case dict():
            return {**x, "more": 0}
    return 0


def changed(parcel: Parcel, where: int, how: str) -> Parcel:
    """A message in which the value at a place of its fields, or a tensor, is another, gone, or renamed."""
    fields, tensors = copy.deepcopy(parcel.fields), dict(parcel.tensors)
    spots = list(places(fields))
    if where < len(spots):
        parent, key = spots[where]
        old = parent.pop(key)
        if isinstance(parent, list):
            parent[key:key] = [other(old)] * (how == "another")
        elif how != "gone":
            parent[key if how == "another" else f"{key}x"] = other(old) if how == "another" else old
    else:
        name = list(tensors)[where - len(spots)]
        x = tensors.pop(name)
        if how != "gone":
            tensors[name if how == "another" else f"{name}x"] = (
                x + 1e-6 * torch.arange(len(x)) if how == "another" else x
            )
    return replace(parcel, fields=fields, tensors=tensors)


@pytest.mark.parametrize("kind", others_slow(["train.masked", "train.sum"], fast=(1,)))
@pytest.mark.parametrize(("method", "step"), [("fedavg", 9), pytest.param("scaffold", 1, marks=pytest.mark.slow)])
@pytest.mark.share(4)
def test_no_field_of_a_message_is_another_for_one_site(
    kind: str, method: str, step: int, tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one of three sites is told otherwise: it refuses, or the sum stays masked. It is asked for the sum of what it was told."""
    fed = masked(method, sizes=(3, 4, 5), states=tmp_path, epochs=1)
    allow(fed, least_sites=3 - (method == "scaffold"))  # all three, in either
    read, total = list[Tensor](), sums.total

    def spy(*args: Any) -> Tensor:
        read.append(total(*args))
        return read[-1]

    monkeypatch.setattr(sums, "total", spy)
    again = masked(method, sizes=(3, 4, 5), states=tmp_path, epochs=1)
    allow(again, least_sites=3 - (method == "scaffold"))
    fed.fit(1, progress=False)
    assert len(read) == 1  # what is tried can be seen
    (right,) = (parcel for k, site, parcel in wire.down if (k, site) == (kind, "client-1"))
    ends = set[str]()
    n = len(list(places(right.fields))) + len(right.tensors)
    for where in range(0, n, step):
        for how in ("another", "gone", "renamed"):
            shutil.rmtree(tmp_path / "run")
            masks_of(again).keys.clear()
            masks_of(again).opened = -1, ()
            transcripts: dict[str, str] = {}

            def lie(
                k: str,
                site: str,
                parcel: Parcel,
                where: int = where,
                how: str = how,
                transcripts: dict[str, str] = transcripts,
            ) -> Parcel:
                if site != "client-1":
                    return parcel
                if k == kind:
                    parcel = changed(parcel, where, how)
                elif k == "train.sum":
                    parcel.fields["training"] = transcripts["train.masked"]
                elif k == "query.unmask":
                    parcel.fields["told"] = transcripts["train.sum"]
                transcripts[k] = sums.transcript(parcel.fields, parcel.tensors if k == "train.masked" else None)
                return parcel

            wire.change = lie
            with pytest.raises(eq.QuorumError) as caught:
                again.fit(1, progress=False)
            assert len(read) == 1, (where, how)
            assert "client-1" in str(caught.value) or "3 of 3 clients" in str(caught.value), (where, how)
            ends.add("noise" if "trained by other messages than the rest" in str(caught.value) else "refused")
    assert ends == {"noise", "refused"}


class Thief:
    """A server that asks the sites for more sums of a round than the method needs, and keeps what it can read."""

    def __init__(self, fed: eq.Federation, monkeypatch: pytest.MonkeyPatch, *lies: dict[str, Any]) -> None:
        """After the sum of a round it asks for others, with a field of the message or the list of clients as in ``lies``."""
        self.sums, self.refused = list[Tensor](), list[str]()
        honest, message = masked_sites.MaskedRound.total, MaskedSites.request_sum
        lie: dict[str, Any] = {}

        def following(masks: MaskedSites, t: int, training: str, ids: Sequence[int]) -> tuple[Parcel, SumRequest]:
            parcel, _ = message(masks, t, training, ids)
            fields = {**parcel.fields, **{key: x for key, x in lie.items() if key != "ids"}}
            return Parcel(fields), SumRequest.read(fields, masks.sites.exchange.experiment)

        def total(this: masked_sites.MaskedRound, training: str, ids: list[int]) -> Any:
            answer = honest(this, training, ids)
            for each in lies:
                lie.update(each)
                before = dict(this.lost)
                this.server.opened = -1, ()
                try:
                    self.sums.append(honest(this, training, lie.get("ids", ids))[1])
                except MaskError:
                    self.refused += [why for m, why in this.lost.items() if m not in before]
                this.lost = before
                lie.clear()
            return answer

        monkeypatch.setattr(MaskedSites, "request_sum", following)
        monkeypatch.setattr(masked_sites.MaskedRound, "total", total)
        fed.fit(1, progress=False)


@pytest.mark.parametrize("rounds", [0, 1])
def test_no_update_follows_from_other_sums_of_a_round(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K sums over the same K sites with other weights would be K equations, and two over nested sets a difference."""
    fed = masked()
    if rounds:
        fed.fit(rounds, progress=False)
    sizes = masks_of(fed).sizes
    weighted = [{"sizes": sizes | {f"client-{m}": 90}} for m in range(5)]
    thief = Thief(fed, monkeypatch, *weighted, {"ids": [0, 1, 2, 3]}, {"ids": [1, 2, 3, 4]}, {"training": "00"})
    assert thief.sums == []
    assert len(thief.refused) == 5 * 5 + 4 + 4 + 5
    assert all("refuses: " in why for why in thief.refused)
    assert sum("The samples of client" in why for why in thief.refused) == 5 * 4
    assert sum("another sum of round" in why for why in thief.refused) == 8


def test_other_training_of_a_round_that_was_unmasked_is_refused(wire: Wire, tmp_path: Path) -> None:
    """Also by a server that starts again, and says it remembers nothing."""
    masked(states=tmp_path).fit(1, progress=False)
    wire.change = lambda kind, site, p: (
        replace(p, tensors={name: x + 1 for name, x in p.tensors.items()}) if kind == "train.masked" else p
    )
    before = len(wire.up)
    with pytest.raises(eq.QuorumError, match=r"unmasked round 0 over .*: another sum of round 0 could"):
        masked(states=tmp_path).fit(1, progress=False)
    assert not any(parcel.tensors for _, _, parcel in wire.up[before:])


def test_a_server_that_swaps_keys_is_found_out(wire: Wire, tmp_path: Path) -> None:
    stranger = key_at(tmp_path / "stranger")
    fed = masked()
    fed.fit(1, progress=False)

    def swapped(kind: str, site: str, parcel: Parcel) -> Parcel:
        if kind == "train.sum" and site == "client-1":
            parcel.fields["keys"]["client-2"] = stranger
        return parcel

    wire.change = swapped
    fed.fit(1, progress=False)
    assert left_out(fed)["client-1"].startswith("refuses: The key of client-2 changed since client-1 first saw it")


def test_a_server_that_uses_a_number_twice_gets_nothing(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = masked()
    fed.fit(1, progress=False)
    masks_of(fed).number, before = 0, len(wire.up)
    monkeypatch.setattr(masked_sites.time, "time_ns", lambda: 10**6)
    with pytest.raises(eq.QuorumError, match=r"sum 1 after \d{13}: masks are never used twice"):
        fed.fit(1, progress=False)
    assert not any(parcel.tensors for _, _, parcel in wire.up[before:])


def test_the_configuration_of_a_run_is_the_same_at_all_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may be made of it: a server could let all but one site train on next to nothing."""
    fed = masked()
    fed.fit(1, progress=False)
    grid = cast(InProcessGrid, at(fed).sites.exchange.grid)
    for context in grid.contexts.values():
        context.run_config["scale"] = 0.0 if context.node_config["site"] != "client-2" else 1.0
    with pytest.raises(eq.QuorumError, match="The run's configuration is not the one that it saw first"):
        fed.fit(1, progress=False)


@pytest.mark.parametrize("kinds", [("train.masked",), ("train.sum",), ("train.masked", "train.sum")], ids=str)
def test_a_configuration_that_differs_at_one_site_gives_noise_or_a_refusal(kinds: Sequence[str]) -> None:
    """From the first message on, and whichever of the two messages it comes with."""
    fed = masked()
    grid = cast(InProcessGrid, at(fed).sites.exchange.grid)
    asked = grid._answered

    def configured(message: Message) -> Message:
        context = grid.contexts[message.metadata.dst_node_id]
        context.run_config.clear()
        if context.node_config["site"] == "client-2" and message.metadata.message_type in kinds:
            context.run_config["scale"] = 0.5
        return asked(message)

    grid.__dict__["_answered"] = configured
    if len(kinds) == 1:
        fed.fit(1, progress=False)
        assert "The run's configuration is not the one that it saw first" in left_out(fed)["client-2"]
        return
    with pytest.raises(eq.QuorumError, match="client-2 trained by other messages than the rest"):
        fed.fit(1, progress=False)


def of_numbers(model: Any) -> Any:
    """The same network, whose targets are numbers."""
    other_model = copy.copy(model)
    object.__setattr__(other_model, "task", eq.Regression("squared", 0.0, 1.0))
    return other_model


OF_JOB = sorted({f.name for f in fields_of(Job)} - {*fingerprint.OF_CLIENT})


@pytest.mark.parametrize("name", OF_JOB)
@pytest.mark.share(2)
def test_whatever_differs_in_the_job_of_one_site_its_masks_do_not_cancel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every field of a job that is not the site's own, found by its type."""
    honest = masked_site.job_of

    def differing(site: Any, asked: Parcel) -> Any:
        job, own = honest(site, asked)
        if site.trial.names[0] != "client-2":
            return job, own
        value = getattr(job, name)
        made: Any = {
            "model": lambda: of_numbers(value),
            "rules": lambda: (*value, *eq.parse("fedprox").rules),
            "solver": lambda: eq.SGD(0.06, 0.9, 1e-4),
            "settings": lambda: replace(value, batch_size=value.batch_size + 1),
            "chances": lambda: (*value, 7),
            "messages": lambda: [{**value[0], "more": torch.ones(1)}, *value[1:]],
        }.get(name)
        changed_value = made() if made else other(value) if isinstance(value, int) else torch.ones_like(job.received)
        return replace(job, **{name: changed_value}), own

    def trained(site: Any, fields: Any, job: Job, own: Any) -> Parcel:
        return site_of.train(site, fields, honest_jobs[site.trial.names[0]], own)

    honest_jobs: dict[str, Job] = {}

    def noted(site: Any, asked: Parcel) -> Any:
        honest_jobs[site.trial.names[0]] = honest(site, asked)[0]
        return differing(site, asked)

    monkeypatch.setattr(masked_site, "job_of", noted)
    monkeypatch.setattr(masked_site, "train", trained)
    with pytest.raises(eq.QuorumError, match="client-2 trained by other messages than the rest"):
        masked().fit(1, progress=False)


@pytest.mark.parametrize(
    "change",
    [
        {"base": "T"},
        {"keep": "T"},
        {"units": 3},
    ],
    ids=str,
)
def test_a_masked_message_has_the_whole_model(change: dict[str, Any], wire: Wire) -> None:
    wire.change = lambda kind, site, p: (
        replace(p, fields={**p.fields, "model": change}) if kind == "train.masked" else p
    )
    with pytest.raises(eq.QuorumError, match="its round or model is missing"):
        masked().fit(1, progress=False)


@pytest.mark.parametrize(("changed", "lost", "reason"), [
    ({"client-2": 10**6}, ["client-2"], "refuses: client-2 has 9 samples, and the others receive 1000000"),
    ({"client-1": -3}, None, "needs its number, round and training, the samples"),
])  # fmt: skip
def test_samples_that_are_told_wrong(
    changed: dict[str, int], lost: list[str] | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = masked()
    wrong = masks_of(fed).sizes | changed
    monkeypatch.setattr(MaskedSites, "sizes", property(lambda this: wrong))
    if lost is None:
        with pytest.raises(eq.QuorumError, match=reason):
            fed.fit(1, progress=False)
        return
    fed.fit(1, progress=False)
    assert [*left_out(fed)] == lost
    assert reason in left_out(fed)[lost[0]]


@pytest.mark.parametrize("how", ["nearly the same model", "another experiment"])
def test_what_a_server_that_lies_can_still_do(
    how: str, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums over nested sets, whose difference is one site's update: if this fails, the documentation promises too little."""
    read, total, training = list[Tensor](), sums.total, Sites.masked_training

    def spy(*args: Any) -> Tensor:
        read.append(total(*args))
        return read[-1]

    def first_model(sites: Sites, job: Job) -> Parcel:
        parcel = training(sites, job)
        values = job.model.initial + 1e-9 * job.t
        return replace(parcel, tensors={"model/values": values})

    monkeypatch.setattr(sums, "total", spy)
    monkeypatch.setattr(Sites, "masked_training", first_model)
    given: dict[str, Any] = {"batch_size": 64, "epochs": 1, "sizes": (8,) * 5}
    fed = masked(states=tmp_path / "one", **given)
    fed.fit(1, progress=False)
    (path,) = (tmp_path / "one").rglob("client-4/update.safetensors")
    update = load_file(path)["update"]
    wire.cut = lambda kind, site, n: "down" if kind == "train.masked" and site == "client-4" else ""
    other = fed if how == "nearly the same model" else masked(states=tmp_path / "two", **given)
    other.fit(1, progress=False)
    shown = (read[0] - read[1])[: len(update)]
    assert float(torch.cosine_similarity(shown, update, dim=0)) > 0.999


def test_all_but_one_that_collude_know_the_last(sites: Met) -> None:
    asked, rows = sites.ask(1), contents()
    total = sums.total(sites.send(asked, rows), sites.unmask(asked))
    assert near(total - rows["ward-a"] - rows["ward-b"], {"ward-c": rows["ward-c"]})


def test_half_of_the_sites_and_a_server_that_lies_may_know_another(tmp_path: Path) -> None:
    """They unmask a sum of a round with a, which the others believe to have dropped out, and one without a."""
    sites = Met(tmp_path, tuple("abcdef"))
    rows, (every, fewer) = contents(names=sites.names), (sites.ask(1), sites.ask(2, names=tuple("bcdef")))
    first = sites.send(every, rows)
    theirs = {name: sums.read_memory(sites.paths[name]) for name in "def"}  # who keep what others forget
    second = sites.send(fewer, {name: rows[name] for name in fewer.sites})
    hidden = {name: {n: sites.sent[every.transcript, n].shares[name] for n in every.sites} for name in "adef"}
    shares = [sums.shares_of(theirs[name], every.transcript, name, hidden[name])[1] for name in "def"]
    shares.append(sites.shares_of(every, "a", hidden["a"]))
    seeds = {name: sums.seed_of([given[name] for given in shares]) for name in every.sites}
    assert near(sums.total(first, seeds) - sums.total(second, sites.unmask(fewer)), {"a": rows["a"]})


def test_a_lie_within_the_range_is_in_the_sum(sites: Met) -> None:
    asked, rows = sites.ask(1), {**contents(), "ward-b": torch.full((50,), 1e6).double()}
    assert near(sums.total(sites.send(asked, rows), sites.unmask(asked)), rows)


def test_every_test_that_the_documentation_names_is_there() -> None:
    tests = Path(__file__).parent
    named = re.findall("`(test_[a-z_]+)`", (tests.parent / "docs" / "secure.md").read_text(encoding="utf-8"))
    written = "".join((tests / f"test_flower_{name}.py").read_text(encoding="utf-8") for name in ("masked", "attacks"))
    assert len(named) > 15
    assert [name for name in named if f"def {name}(" not in written] == []


# a site that lies, or does not want to
def test_a_site_that_shares_another_seed_than_it_used_is_noticed(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum stays masked; who it was is not found out."""
    right, honest = sums.create_shares, sums.masked_vector

    def wrong(memory: SiteMemory, asked: SumRequest, site: str, *more: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if site == "client-2":
                patch.setattr(sums, "create_shares", lambda seed, least, n: right(bytes(32), least, n))
            return honest(memory, asked, site, *more)

    monkeypatch.setattr(sums, "masked_vector", wrong)
    with pytest.raises(eq.QuorumError, match="the sum cannot be read: the masks do not cancel"):
        masked().fit(1, progress=False)


@pytest.mark.parametrize("shares", others_slow([{}, {"client-2": "00" * 52}, [1], {"client-0": 7}], fast=(1,)))
def test_the_shares_of_the_others_stand_in_for_wrong_ones(
    shares: Any, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    simulated, fed = both("fedavg")
    wire.lies("client-2", "query.unmask", shares=shares)
    for federated in (simulated, fed):
        federated.fit(2, progress=False)
    assert distance(simulated, fed) < 1e-11
    assert "client-2 dropped out after its part of a sum" in caplog.text
    assert "it sent shares that it did not receive" in caplog.text


def test_too_many_wrong_shares_lose_the_round(wire: Wire) -> None:
    fed = masked()
    wire.bend = lambda kind, site, p: Parcel({"shares": {}}) if kind == "query.unmask" and site > "client-2" else p
    with pytest.raises(eq.QuorumError, match="client-3 sent shares that it did not receive; client-4 sent"):
        fed.fit(1, progress=False)
    assert fed.progress.t == 0


def test_a_site_whose_shares_nobody_can_read_is_named(wire: Wire) -> None:
    fed = masked()
    others = {f"client-{m}": "gAAAA" for m in range(5)}
    wire.lies("client-2", "train.sum", shares=others)
    with pytest.raises(eq.QuorumError, match="client-2 sent shares"):
        fed.fit(1, progress=False)


@pytest.mark.parametrize("site", others_slow(["client-0", "client-3"], fast=(0,)))
def test_a_vector_of_noise_is_noticed(site: str, wire: Wire) -> None:
    """The sum stays masked; whose vector it was is not found out."""
    wire.bend = lambda kind, name, p: (
        replace(p, tensors={"masked": p.tensors["masked"] * 3}) if (kind, name) == ("train.sum", site) else p
    )
    with pytest.raises(eq.QuorumError, match="the sum cannot be read: the masks do not cancel"):
        masked().fit(1, progress=False)


@pytest.mark.parametrize(
    "wrong",
    others_slow([{"masked": torch.zeros(3, dtype=torch.int64)}, {"masked": torch.zeros(75).double()}, {}], fast=(0,)),
)
def test_a_vector_that_is_none(wrong: dict[str, Tensor], wire: Wire) -> None:
    fed = masked()
    wire.bend = lambda kind, site, p: replace(p, tensors=wrong) if (kind, site) == ("train.sum", "client-3") else p
    fed.fit(1, progress=False)
    assert left_out(fed) == {"client-3": "sent an unusable answer: a masked vector of the right size is missing"}


@pytest.mark.parametrize("wrong", others_slow([
    {"key": "00"}, {"key": "00" * 32}, {"key": "xy" * 32}, {"key": None}, {"key": 3},
], fast=(1,)), ids=str)  # fmt: skip
def test_a_site_that_says_what_cannot_be_keeps_nobody_from_a_sum(wrong: dict[str, Any], wire: Wire) -> None:
    """A key that is none would make all others refuse."""
    simulated, fed = both("fedavg")
    wire.lies("client-3", "query.keys", **wrong)
    fed.fit(2, progress=False)
    assert [*left_out(fed, 0), *left_out(fed, 1)] == ["client-3", "client-3"]
    simulate(simulated, 2, {0: [3], 1: [3]})
    assert distance(simulated, fed) < 1e-11


def test_a_site_with_the_key_of_another_is_left_out(wire: Wire, sites: Met) -> None:
    """A third site's masks with the two would be one stream, once added and once subtracted: its vector would be bare."""
    fed, first = masked(), list[str]()

    def copies(kind: str, site: str, p: Parcel) -> Parcel:
        if kind == "query.keys":
            first.append(p.fields["key"])
            return replace(p, fields=p.fields | ({"key": first[0]} if site == "client-3" else {}))
        return p

    wire.bend = copies
    fed.fit(1, progress=False)
    assert left_out(fed) == {"client-3": "sent an unusable answer: no public key of its own"}
    with pytest.raises(MaskError, match="different public keys of all sites"):  # of a server that does not care
        sites.ask(1, keys=sites.keys | {"ward-c": sites.keys["ward-a"]})


def test_a_server_whose_clock_was_ahead_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of sums come from the clock, and the server stores the last one."""
    monkeypatch.setattr(masked_sites.time, "time_ns", lambda: 2**62)
    first = masked(states=tmp_path)
    first.fit(1, directory=tmp_path / "run", progress=False)
    monkeypatch.undo()
    second = masked(states=tmp_path)
    second.resume(tmp_path / "run")
    second.fit(1, progress=False)
    assert [record["ids"] for record in second.records] == [[0, 1, 2, 3, 4]] * 2


def test_a_site_that_changes_its_key_is_left_out_alone(tmp_path: Path) -> None:
    """The others would refuse every sum with it: the key counts that the server received first, also if it starts again."""
    masked(states=tmp_path / "sites").fit(1, directory=tmp_path / "run", progress=False)
    (path,) = (tmp_path / "sites").rglob("client-3/masks.json")
    path.unlink()
    second = masked(states=tmp_path / "sites")
    second.resume(tmp_path / "run")
    second.fit(1, progress=False)
    assert left_out(second)["client-3"].startswith(
        "refuses: client-3 was asked to continue from a state that is not its last one"
    )
    assert second.records[1]["ids"] == [0, 1, 2, 4]


def test_a_site_that_the_sum_would_show_stays_away() -> None:
    """The sum is then nearly its own update; the others do the round without it."""
    fed = masked(sizes=(400, 4, 6, 5))
    fed.fit(1, progress=False)
    assert left_out(fed)["client-0"].startswith("refuses: client-0 would be more than 75% of the sum")
    assert fed.records[0]["weights"] == pytest.approx([4 / 15, 6 / 15, 5 / 15])


def test_where_no_training_gives_numbers_the_round_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "LIMIT", 1e-9)
    with pytest.raises(eq.QuorumError, match="gave numbers that no sum holds"):
        masked().fit(1, progress=False)


@pytest.mark.parametrize("method", others_slow(["fedavg", "fedprox+fedproto", "scaffold", "fedbn"], fast=(1,)))
def test_a_site_whose_training_fails_leaves_the_sum_by_name(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say why, keeps its state, and is in the next round; the round is that of the others."""
    fed, honest = masked(method, states=tmp_path), site_of.visit

    def failing(job: Job, *rest: Any) -> Answer:
        answer = honest(job, *rest)
        if job.ids == (1,):
            answer.trained[:] = math.nan
        elif job.ids == (2,) and 2 in failed:
            raise RuntimeError("a number of client-2's own: 0.12345")
        return answer

    failed = (1,) if method == "scaffold" else (1, 2)  # whose reports take one site more
    fed.fit(1, progress=False)
    monkeypatch.setattr(site_of, "visit", failing)
    fed.fit(1, progress=False)
    assert fed.records[1]["ids"] == [m for m in range(5) if m not in failed]
    assert left_out(fed, 1) == {f"client-{m}": "has no usable update of round 1; its own log says more" for m in failed}
    monkeypatch.setattr(site_of, "visit", honest)
    fed.fit(1, progress=False)
    assert fed.records[2]["ids"] == [0, 1, 2, 3, 4]


# what is refused before anything is asked
@pytest.mark.parametrize(("method", "reason"), [
    ("fedheal", "fedheal cannot be used, because the server must see what each site sends"),
    ("fedprox+afl", "afl cannot be used, because it weighs a site by the reports of others"),
    ("fedism+", "fedism[+] cannot be used, because it weighs a site by the reports of others"),
    ("standalone", "standalone cannot be used, because nothing is summed in it"),
])  # fmt: skip
def test_other_methods_are_refused_before_anything_is_sent(method: str, reason: str, tmp_path: Path) -> None:
    class Deaf:
        """Whoever asks it anything fails."""

    chosen = AppSettings.of({"method": method, "secure": True, "run-dir": str(tmp_path / "run")})
    with pytest.raises(eq.MethodError, match=reason) as caught:
        serve(cast(Grid, Deaf()), Task(network()), chosen)
    assert "Usable methods, also in sums: fedavg, " in str(caught.value)
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_rules_of_ones_own_that_need_more_than_sums_are_refused() -> None:
    @dataclass(frozen=True)
    class Sly(Rule):
        sees = "sum"

        def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
            return state, replace(cohort, coefficients=cohort.uniform)

    @dataclass(frozen=True)
    class Weighs(Rule):
        sees = "sum"

        def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
            return state, replace(cohort, weights=cohort.weights.square())

    @dataclass(frozen=True)
    class Counts(Rule):
        sees = "sum"
        reports = "its steps"

        def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
            return {"steps": visit.travel[0]}, visit.state

    for rule, reason in {
        Sly: "does more than weigh the updates",
        Weighs: "weighs a site by more than its own samples",
        Counts: "every site reports steps to the server, and no_report does not define",
    }.items():
        with pytest.raises(eq.MethodError, match=reason):
            masked(rule())


def test_what_clients_reach_alone_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="what a site reaches alone is not measured"):
        in_process(network(), clients(), "fedavg", SOLVER, secure=True, collaborative=True, tests={"a": samples(9, 1)})
    assert list(tmp_path.iterdir()) == []  # the sites' states, of a federation that was not made


# what the owners of sites see and set
def test_the_keys_are_shown_once_to_be_compared(caplog: pytest.LogCaptureFixture) -> None:
    masked(sizes=UNEQUAL[:3]).fit(2, progress=False)
    found = re.findall("fingerprint ([0-9a-f-]{39})", caplog.text)
    assert len(found) == 4  # the server and three sites
    assert len(set(found)) == 1
    assert len(set(re.findall("(client-[012]): its public key for masked sums is [0-9a-f]{64}", caplog.text))) == 3


def test_two_sites_are_warned(caplog: pytest.LogCaptureFixture) -> None:
    fed = masked(sizes=UNEQUAL[:2])
    with pytest.raises(eq.QuorumError, match="takes part in sums over at least 3"):
        fed.fit(1, progress=False)
    allow(fed, least_sites=2)
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
        sites.gather(3, [], 0.0)
        chosen = eq.Settings(batch_size=8, quorum=0.5)
        fed = federation(Task(network()), sites, "fedavg", SOLVER, settings=chosen, secure=secure)
        allow(fed, **({} if "least-sites" in node else {"least_sites": 2}))
        fed.fit(1, progress=False)
        return left_out(fed).get("b", "")

    assert trained({"secure": True}, False) == "refuses: it takes part in masked sums only"
    assert trained({"secure": True}, True) == ""
    peers = tmp_path / "peers.json"
    peers.write_text("{}")
    assert trained({"secure": True, "peers": str(peers)}, True).startswith("refuses: The key of a is missing")
    with pytest.raises(eq.QuorumError, match="b takes part in sums over at least 4 sites"):
        trained({"least-sites": 4}, True)


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

    with pytest.raises(eq.QuorumError, match="refuses: The key of b is missing in the file of peers of a"):
        run()
    keys = dict(re.findall("([abc]): its public key for masked sums is ([0-9a-f]{64})", caplog.text))
    peers.write_text(json.dumps(keys))
    assert [record["ids"] for record in run().records] == [[0, 1, 2]] * 2


def test_long_vectors(tmp_path: Path) -> None:
    """Updates of a hundred thousand numbers are added exactly."""
    sites = Met(tmp_path)
    rows, asked = contents(100_000), sites.ask(1)
    assert near(sums.total(sites.send(asked, rows), sites.unmask(asked)), rows)


@pytest.mark.parametrize("content", ["", "[]", '{\n "seal": "', "\0"])
def test_a_server_names_its_damaged_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "masks.json").write_text(content)
    with pytest.raises(RunError, match=r"masks\.json is damaged \(.*\)\. Put it back, or begin in another folder\."):
        MaskedSites(cast(Sites, None), tmp_path / "masks.json")
