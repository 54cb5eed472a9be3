"""A lying server against strict sites, in one process: what worked once, and what is like it, gives noise or a refusal."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.settings import Settings
from equipoise.federation.guard import QuorumError
from equipoise.flower.app import make_client_app
from equipoise.flower.codec import LOST, Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.secagg import server as masked_server, site as masked_site, sums
from equipoise.flower.server.consortium import description, federation
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.site.site import Site
from equipoise.flower.site.store import Store
from equipoise.flower.site.task import Task
from equipoise.system.text import key_of
from helpers import others_slow

pytestmark = pytest.mark.share(1.3)

NAMES = ("a", "b", "c", "d")
Lie = Callable[[str, str, Parcel], Parcel]


class Lab:
    """Sites with ``secure``, ``peers`` and strict limits, and a server that may change what it tells each of them.

    ``lie(kind, site, parcel)`` gives what a site receives in place of a parcel; ``updates`` has what the sites have kept to themselves, by
    round and name; ``refusals`` has what they said.
    """

    def __init__(
        self,
        home: Path,
        method: str = "fedavg",
        *,
        names: tuple[str, ...] = NAMES,
        net: nn.Module | None = None,
        data: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        tests: bool = False,
        peers: bool = True,
        secure: bool = True,
        app_method: str | None = None,
        node: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        torch.manual_seed(0)
        self.names, self.home = names, home
        self.net = net or eq.network("mlp", (8,), 2, seed=0)
        self.data = data or {
            name: (torch.randn(40 + 4 * k, 8), torch.randint(0, 2, (40 + 4 * k,))) for k, name in enumerate(names)
        }
        tasks = {name: Task(self.net, train=self.data[name], test=self.data[name] if tests else None) for name in names}
        strict = {"secure": True, "least-sites": 3, "most-weight": 0.5} if secure else {}
        self.nodes: list[dict[str, Any]] = [
            {"site": name, "state-dir": str(home / name), **strict, **(node or {})} for name in names
        ]
        for one in self.nodes if peers else ():
            one["peers"] = str(home / "peers.json")
        self.settings = Settings(**{"batch_size": 16, "norm_limit": None, **changes})
        client = make_client_app(lambda node_config, _: tasks[str(node_config["site"])], app_method)
        told = description(eq.parse(method), eq.SGD(lr=0.05), self.settings, ("accuracy",), "run")
        self.lie: Lie = lambda kind, site, parcel: parcel
        self.refusals: list[str] = []
        self.updates: dict[tuple[int, str], Tensor] = {}
        self.grid = InProcessGrid(client, self.nodes, {})
        answered = self.grid._answered

        def watched(message: Message) -> Message:
            kind = message.metadata.message_type
            name = str(self.grid.contexts[message.metadata.dst_node_id].node_config["site"])
            message.content = self.lie(kind, name, Parcel.of(message.content)).records()
            reply = answered(message)
            if not reply.has_error() and "error" in (fields := Parcel.of(reply.content).fields):
                self.refusals.append(f"{name}: {fields['error']}")
            return reply

        self.grid._answered = watched  # type: ignore[method-assign]
        self.sites = Sites(Exchange(self.grid, told, deadline=20.0, poll=0.001))
        self.sites.gather(len(names), names, 0.0)
        if peers:
            self.write_peers(names)
        self.fed = federation(
            Task(self.net), self.sites, method, eq.SGD(lr=0.05), settings=self.settings, secure=secure
        )

    def write_peers(self, names: tuple[str, ...]) -> None:
        asked = self.sites.ask("query.keys", 0, range(len(self.names)), lambda _: Parcel())
        keys = {self.names[m]: got.fields["key"] for m, got in asked if isinstance(got, Parcel)}
        (self.home / "peers.json").write_text(json.dumps({name: keys[name] for name in names}))

    def fit(self, rounds: int = 1) -> str:
        """Train; what stopped it, if something did."""
        try:
            self.fed.fit(rounds, progress=False)
        except QuorumError as error:
            return str(error)
        return ""

    def ask(self, kind: str, name: str, fields: Mapping[str, Any], **tensors: Tensor) -> Parcel | str:
        parcel = Parcel(dict(fields), {key.replace("__", "/"): x for key, x in tensors.items()})
        ((_, got),) = self.sites.ask(kind, 0, [self.names.index(name)], lambda _: parcel)
        return got


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, str], Tensor]:
    """Every site's own numbers of every round, as it masks them."""
    seen: dict[tuple[int, str], Tensor] = {}
    honest = sums.masked_vector

    def spy(memory: Any, asked: sums.SumRequest, site: str, values: Tensor, *rest: Any) -> Any:
        seen[asked.round, site] = values.clone()
        return honest(memory, asked, site, values, *rest)

    monkeypatch.setattr(sums, "masked_vector", spy)
    return seen


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """All that the server could read of the sums of a run."""
    seen: list[Tensor] = []
    honest = sums.total

    def spy(*args: Any) -> Tensor:
        seen.append(honest(*args))
        return seen[-1]

    monkeypatch.setattr(sums, "total", spy)
    return seen


def other(**changed: Any) -> Callable[[Parcel], Parcel]:
    """The same message in another experiment."""
    return lambda p: replace(p, fields={**p.fields, "experiment": {**p.fields["experiment"], **changed}})


def alone(updates: Mapping[tuple[int, str], Tensor], totals: list[Tensor]) -> float:
    """How near any sum is to a multiple of one site's numbers: 1 is exactly."""
    return max(float(torch.cosine_similarity(total[: len(x)], x, dim=0)) for total in totals for x in updates.values())


@pytest.mark.parametrize(
    "method", others_slow(["saga", "fedism", "fedism+", "afl", "qffl", "fairfed:accuracy", "krum"], fast=(0, 3))
)
def test_a_site_refuses_weights_that_follow_from_others_numbers(method: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.lie = lambda kind, site, p: other(method=method)(p) if kind == "train.masked" else p
    assert "4 of 4" in (said := lab.fit()) or "refuses" in said
    assert all("refuses" in text or "cannot be used" in text for text in lab.refusals)
    assert len(lab.refusals) == 4
    with pytest.raises(ValueError, match="secure=true"):
        Lab(tmp_path / "other", method)


OTHERS: list[dict[str, Any]] = [
    {"method": "krum"},
    {"method": "fedavg(weights=uniform)"},
    {"method": "median"},
    {"method": "fedprox(mu=1)"},
    {"solver": {"kind": "SGD", "lr": 1e-9}},
    {"batch_size": 1},
    {"seed": 7},
    {"measures": []},
]


QUICK = ((0, "train.masked", "bcd"), (0, "train.sum", "a"), (1, "train.masked", "a"))


@pytest.mark.parametrize(
    ("change", "kind", "lied_to"),
    [
        pytest.param(change, kind, to, marks=[pytest.mark.slow] * ((OTHERS.index(change) % 4, kind, to) not in QUICK))
        for change in OTHERS for kind in ("train.masked", "train.sum") for to in ("a", "bcd")
    ],
)  # fmt: skip
@pytest.mark.share(2)
def test_no_sum_over_sites_that_were_told_different_experiments(
    kind: str, change: dict[str, Any], lied_to: str, tmp_path: Path, updates: dict[Any, Tensor], totals: list[Tensor]
) -> None:
    lab = Lab(tmp_path)
    lab.lie = lambda k, site, p: other(**change)(p) if k == kind and site in lied_to else p
    said = lab.fit()
    assert lab.fed.records == [] or "quarantined" in lab.fed.records[0]
    assert said or len(lab.fed.records[0]["ids"]) == 3  # who refuses is left out, and the others go on
    assert not totals or alone(updates, totals) < 0.9


@pytest.mark.parametrize(("change", "words"), others_slow([
    ({"t": 1}, "no update of this training and round"),
    ({"training": "00" * 32}, "no update of this training and round"),
    ({"number": 0}, "never used twice"),
    ({"number": "1"}, "needs its number, round and training"),
    ({"sites": ["a", "b"]}, "sums over at least 3"),
    ({"sites": ["a", "b", "c", "z"]}, "at least two sites, sorted"),
    ({"sites": ["d", "c", "b", "a"]}, "sorted"),
    ({"sizes": {"a": 40, "b": 44, "c": 48, "d": 9}}, "the others receive 9"),
    ({"sizes": {"a": 40, "b": 44, "c": 48, "d": 0}}, "needs its number"),
    ({"sizes": {"a": 40}}, "of all sites"),
    ({"keys": None}, "of all sites"),
    ({"experiment": {"method": "fedavg(weights=uniform)"}}, "is not that of the training"),
    ({"experiment": {"batch_size": 8}}, "is not that of the training"),
], fast=(0, 2, 3, 5, 7, 11)))  # fmt: skip
def test_what_all_sites_are_told_of_a_sum_must_fit_what_they_know(
    change: dict[str, Any], words: str, tmp_path: Path, totals: list[Tensor]
) -> None:
    """The same lie to all, so that their masks would cancel."""
    lab = Lab(tmp_path)

    def lie(kind: str, site: str, p: Parcel) -> Parcel:
        changed = {**change, "experiment": {**p.fields["experiment"], **change.get("experiment", {})}}
        return replace(p, fields={**p.fields, **changed}) if kind == "train.sum" else p

    lab.lie = lie
    assert lab.fit()
    assert any(words in text for text in lab.refusals)
    assert totals == []


def test_one_message_more_gives_no_second_sum(
    tmp_path: Path, updates: dict[Any, Tensor], totals: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lets everybody mask for one sum, then for another over fewer, and asks each half to unmask another one."""
    lab = Lab(tmp_path)
    honest = masked_server.MaskedRound.total
    seeds: list[Any] = []

    def twice(this: masked_server.MaskedRound, training: str, ids: list[int]) -> Any:
        n = this.n_public
        first, a = this.server.request_sum(0, training, ids)
        this._masked_vectors(first, a, ids, n)
        second, b = this.server.request_sum(0, training, ids[:3])
        this._masked_vectors(second, b, ids[:3], n)
        for m in ids:
            seeds.extend(
                (m, told == a.transcript, lab.ask("query.unmask", lab.names[m], {"told": told, "shares": {}}))
                for told in (a.transcript, b.transcript)
            )
        return honest(this, training, ids)

    monkeypatch.setattr(masked_server.MaskedRound, "total", twice)
    lab.fit()
    given = {(m, first) for m, first, got in seeds if isinstance(got, Parcel)}
    assert given == {(0, False), (1, False), (2, False), (3, True)}  # the last sum that each took part in
    assert not any((m, True) in given and (m, False) in given for m in range(4))


def test_peers_that_come_later_are_compared_for_every_site(tmp_path: Path) -> None:
    """The server leaves its own sites x and y out of the keys that it shows, or shows all: no sum with them."""
    names = ("a", "b", "c", "x", "y")
    lab = Lab(tmp_path, names=names, peers=False)
    assert lab.fit() == ""
    lab.write_peers(("a", "b", "c"))
    for node in lab.grid.contexts.values():
        if node.node_config["site"] in "abc":
            node.node_config["peers"] = str(tmp_path / "peers.json")
    assert "file of peers" in lab.fit()

    def lie(kind: str, site: str, p: Parcel) -> Parcel:
        if kind != "train.sum" or site not in "abc":
            return p
        shown = {key: {n: x for n, x in p.fields[key].items() if n in "abc"} for key in ("keys", "sizes")}
        return replace(p, fields={**p.fields, **shown})

    lab.lie = lie
    assert "refuses" in lab.fit()
    assert len(lab.fed.records) == 1


def test_one_model_in_two_rounds_over_nested_sets(
    tmp_path: Path, totals: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, batch_size=64)
    first = lab.fed.progress.vector.clone()
    honest = masked_server.MaskedRound._trained

    def again(this: masked_server.MaskedRound, ids: list[int]) -> Any:
        this.job = replace(this.job, received=first.expand(len(this.job.ids), -1).clone())
        return honest(this, ids[: 4 - this.job.t])

    monkeypatch.setattr(masked_server.MaskedRound, "_trained", again)
    assert lab.fit() == ""
    assert "The model of round 1 is that of round 0" in lab.fit()
    assert len(totals) == 1


@pytest.mark.parametrize("method", others_slow(["scaffold", "feddyn"], fast=(0,)))
def test_a_server_does_not_choose_the_state_of_a_site(method: str, tmp_path: Path, totals: list[Tensor]) -> None:
    """All but one from their first state, by one message to all: the difference to the round before would be the one's."""
    lab = Lab(tmp_path, method)
    assert lab.fit() == ""

    def lie(kind: str, site: str, p: Parcel) -> Parcel:
        if kind != "train.masked":
            return p
        first = {
            name: [m, -1, "00" * 32] if name != "d" else [m, *rest] for name, (m, *rest) in p.fields["clients"].items()
        }
        return replace(p, fields={**p.fields, "clients": first})

    lab.lie = lie
    assert "a state that is not its last one" in lab.fit()
    lab.lie = lambda kind, site, p: p
    assert lab.fit() == ""
    assert len(totals) == 2


def test_a_zero_of_the_other_sign_is_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, batch_size=64)
    first = lab.fed.progress.vector.clone()
    honest = masked_server.MaskedRound._trained

    def again(this: masked_server.MaskedRound, ids: list[int]) -> Any:
        this.job = replace(this.job, received=first.expand(4, -1).clone())
        this.job.received[:, 0] = -0.0 if this.job.t else 0.0
        return honest(this, ids[: 4 - this.job.t])

    monkeypatch.setattr(masked_server.MaskedRound, "_trained", again)
    assert lab.fit() == ""
    assert "The model of round 1 is that of round 0" in lab.fit()


def test_a_model_that_comes_as_a_change_is_measured_and_trained(tmp_path: Path) -> None:
    """Inputs that are always 0 leave weights as they were, so that the server sends what has changed."""
    torch.manual_seed(0)
    data = {name: (torch.cat([torch.randn(40, 2), torch.zeros(40, 6)], 1), torch.arange(40) % 2) for name in NAMES}
    lab = Lab(tmp_path, net=nn.Linear(8, 2), data=data, tests=True)
    assert lab.fit(3) == ""
    assert lab.refusals == []
    assert all(None not in record["clients"]["accuracy"] for record in lab.fed.records)


def test_a_guarded_site_measures_its_own_model_from_its_own_state(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "ditto-personal", tests=True)
    made_up = torch.ones_like(lab.fed.progress.vector)

    def lie(kind: str, site: str, p: Parcel) -> Parcel:
        if kind != "evaluate":
            return p
        return replace(p, fields={**p.fields, "receipt": [-1, "00" * 32]}, tensors={**p.tensors, "initial": made_up})

    lab.lie = lie
    assert lab.fit() == ""
    assert lab.refusals
    assert all("its own model is that of its last round" in text for text in lab.refusals)


def vector_with(lab: Lab, bias: list[float]) -> Tensor:
    made = torch.zeros_like(lab.fed.progress.vector)
    made[-2:] = torch.tensor(bias)
    return made


@pytest.mark.parametrize("guard", [{"secure": True}, {"max-epsilon": 50.0}])
def test_a_guarded_site_measures_no_model_made_up(guard: dict[str, Any], tmp_path: Path) -> None:
    """Neither before the first round, nor another one after a round, nor one under another method; each question once."""
    secure = "secure" in guard
    method = "fedavg" if secure else "fedavg+dp(noise=1, clip=1)"
    lab = Lab(tmp_path, method, tests=True, secure=secure, peers=secure, node=guard)
    fields = {"client": 0, "t": 0, "rounds": 2, "receipt": [-1, "00" * 32], "model": {}, "cut": {}, "own": False}
    fields |= {"deploys": False, "measures": []}
    made_up = vector_with(lab, [6.0, 0.0])
    asked: list[Parcel] = []

    def watch(kind: str, site: str, p: Parcel) -> Parcel:
        asked.extend([p] if kind == "evaluate" and site == "a" else [])
        return p

    for t in range(3):
        assert "only the model" in str(lab.ask("evaluate", "a", {**fields, "t": t}, model__values=made_up))
    lab.lie = watch
    assert lab.fit() == ""
    assert lab.fed.records[0]["clients"]["accuracy"][0] is not None
    (question,) = asked
    same = {key: x for key, x in question.fields.items() if key != "experiment"}
    values = question.tensors["model/values"]
    lab.lie = lambda kind, site, p: p
    assert isinstance(lab.ask("evaluate", "a", same, model__values=values), Parcel)  # the same again
    assert "already" in str(lab.ask("evaluate", "a", same, model__values=made_up))
    assert "already" in str(lab.ask("evaluate", "a", {**same, "measures": []}, model__values=values))
    assert "only the model" in str(lab.ask("evaluate", "a", {**same, "t": 2}, model__values=made_up))
    lab.lie = lambda kind, site, p: other(method="finetune")(p)
    assert "refuses" in str(lab.ask("evaluate", "a", {**same, "own": True}, model__values=made_up))


def test_who_measured_another_model_does_not_train_the_right_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path, tests=True)
    lab.lie = lambda kind, site, p: (
        replace(p, tensors={"model/values": p.tensors["model/values"] + 1}) if kind == "evaluate" and site == "b" else p
    )
    assert lab.fit(2) == ""
    (left_out,) = lab.fed.records[1]["quarantined"]
    assert left_out["name"] == "b"
    assert "a different model" in left_out["reason"]


def test_a_model_that_was_measured_and_never_trained_from_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server may leave a site out of the round whose model it has made up; the site says so when it is back."""
    lab = Lab(tmp_path, tests=True)
    lab.lie = lambda kind, site, p: (
        replace(p, tensors={"model/values": p.tensors["model/values"] + 1}) if kind == "evaluate" and site == "b" else p
    )
    assert lab.fit(2) == ""
    lab.lie = lambda kind, site, p: p
    assert lab.fit() == ""
    assert "b measured a model after round 0 that it never trained from" in caplog.text
    assert "quarantined" not in lab.fed.records[2]


def test_numbers_of_a_guarded_site_are_counts_or_short(tmp_path: Path) -> None:
    lab = Lab(tmp_path, tests=True)
    sent: list[Parcel] = []
    answered = lab.grid._answered

    def watched(message: Message) -> Message:
        reply = answered(message)
        sent.extend([Parcel.of(reply.content)] if message.metadata.message_type == "evaluate" else [])
        return reply

    lab.grid._answered = watched  # type: ignore[method-assign]
    lab.fit()
    assert len(sent) == 4
    for parcel in sent:
        assert parcel.fields.keys() == {"scores", "name"}
        for told in parcel.fields["scores"].values():
            n, loss, *counts = told.pop("sums")
            assert told == {}
            assert [count % 1 for count in counts] == [0, 0, 0]
            assert loss / n == pytest.approx(round(loss / n, 3), abs=1e-12)
            assert loss != 0


@pytest.mark.parametrize("kind", ["train", "train.alone", "evaluate.validation"])
def test_a_secure_site_answers_nothing_in_the_clear(kind: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, tests=True)
    assert "masked sums only" in str(lab.ask(kind, "a", {"t": 0}))


def test_the_defaults_are_those_of_a_hospital(tmp_path: Path) -> None:
    """Three sites at least, and no update that is more than three quarters of a sum."""
    lab = Lab(tmp_path, names=("a", "b"), secure=False, peers=False)
    lab.fed = federation(Task(lab.net), lab.sites, "fedavg", eq.SGD(lr=0.05), settings=lab.settings, secure=True)
    assert "sums over at least 3" in lab.fit()
    sizes = {"a": 200, "b": 20, "c": 20}
    data = {name: (torch.randn(n, 8), torch.arange(n) % 2) for name, n in sizes.items()}
    lab = Lab(tmp_path / "large", names=tuple(sizes), data=data, secure=False, peers=False)
    lab.fed = federation(Task(lab.net), lab.sites, "fedavg", eq.SGD(lr=0.05), settings=lab.settings, secure=True)
    assert "more than 75% of the sum" in lab.fit()
    assert masked_site.LEAST_SITES == 3


def test_who_is_to_train_is_compared_before_training(tmp_path: Path) -> None:
    """The members of a round and the least number of them, not only those of a sum."""
    lab = Lab(tmp_path)
    clients = {name: [m, -1, "00" * 32] for m, name in enumerate(NAMES)}
    vector = lab.fed.progress.vector
    for wrong, words in (
        ({"a": clients["a"]}, "a takes part in sums over at least 3 sites"),
        ({**clients, "stranger": [4, -1, "00" * 32]}, "The key of stranger is missing in the file of peers of a"),
        ({"b": clients["b"]}, "a is not among the clients of this message"),
        (None, "a is not among the clients of this message"),
    ):
        fields = {"t": 0, "rounds": 1, "clients": wrong, "model": {}, "cut": {}, "saved": []}
        assert words in str(lab.ask("train.masked", "a", fields, model__values=vector))
    assert not list(tmp_path.rglob("update.safetensors"))


def test_a_report_as_long_as_an_update_takes_one_site_more(tmp_path: Path) -> None:
    """A curious site of three would have two equations for the updates of the two others."""
    three = Lab(tmp_path / "three", "scaffold", names=NAMES[:3])
    assert "takes part in sums over at least 4" in three.fit()
    assert Lab(tmp_path / "four", "scaffold").fit() == ""
    assert Lab(tmp_path / "classes", "fedproto", names=NAMES[:3]).fit() == ""  # means of features are shorter


@pytest.mark.parametrize("guard", [{"secure": True}, {"max-epsilon": 50.0}])
def test_a_site_that_cannot_store_its_model_does_not_say_so(
    guard: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = "secure" in guard
    lab = Lab(tmp_path, "fedavg" if secure else "dp", node=guard, secure=secure, peers=secure)
    assert lab.fit() == ""

    def fails(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("a loss of 0.12345 at this site")

    monkeypatch.setattr(Site, "_used", fails)
    fields = {"client": 0, "t": 1, "rounds": 1, "receipt": [0, "00" * 32], "model": {}, "own": True, "saved": []}
    answered = lab.ask("query.finish", "a", fields, model__values=lab.fed.progress.vector)
    assert isinstance(answered, Parcel)
    assert answered.fields == {"name": "a"}


def test_a_change_of_a_model_of_another_network_is_refused_before_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, "scaffold", secure=False, peers=False)
    assert lab.fit() == ""
    before = {path: path.read_bytes() for path in tmp_path.rglob("a/*.safetensors")}
    assert any("state-" in path.name for path in before)
    monkeypatch.setattr(Store, "base", lambda *_: torch.zeros(3))
    fields = {"client": 0, "t": 1, "rounds": 1, "receipt": [7, "00" * 32], "model": {"base": "x"}, "own": True}
    more = {"cut": {}, "deploys": False, "first": True, "saved": []}
    nothing = torch.zeros(0)
    answered = lab.ask("query.finish", "a", fields | more, model__values=nothing, model__index=nothing.long())
    assert answered == "lacks the model that was sent last"
    assert key_of(answered) == LOST
    assert {path: path.read_bytes() for path in tmp_path.rglob("a/*.safetensors")} == before


def test_two_questions_at_once_are_answered_one_by_one(tmp_path: Path) -> None:
    """Else each would see that the site has measured nothing yet."""
    lab = Lab(tmp_path, tests=True, batch_size=64)
    seen: list[dict[str, Any]] = []
    lab.lie = lambda kind, site, p: seen.append(p.fields) or p if kind == "evaluate" and site == "a" else p  # type: ignore[func-returns-value]
    assert lab.fit() == ""
    path = next(tmp_path.rglob("a/questions.json"))
    path.write_text(
        json.dumps({k: x for k, x in json.loads(path.read_text()).items() if k not in ("measured", "bound")})
    )
    answers: list[Parcel] = []
    models = [lab.fed.progress.vector + k for k in range(4)]
    node = next(n for n, c in lab.grid.contexts.items() if c.node_config["site"] == "a")

    def ask(vector: Tensor) -> None:
        fields = {key: x for key, x in seen[-1].items() if key != "model"} | {"model": {}}
        parcel = Parcel(fields, {"model/values": vector})
        message = Message(parcel.records(), dst_node_id=node, message_type="evaluate")
        answers.append(Parcel.of(lab.grid._answered(message).content))

    threads = [threading.Thread(target=ask, args=(x,)) for x in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted("error" in x.fields for x in answers) == [False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "t"),
    [
        pytest.param(kind, t, marks=[pytest.mark.slow] * (t is not True and (kind, t) != ("train.masked", None)))
        for kind in ("evaluate", "train", "train.masked")
        for t in (1.5, None, "1", True, float("inf"))
    ],
)
def test_a_round_that_is_no_number_changes_nothing(kind: str, t: Any, tmp_path: Path) -> None:
    masked = kind == "train.masked"
    guard = {"secure": True} if masked else {"max-epsilon": 50.0}
    lab = Lab(tmp_path, "fedavg" if masked else "dp", node=guard, secure=masked, peers=masked)
    assert lab.fit() == ""
    before = [path.read_bytes() for path in sorted(tmp_path.rglob("a/*.json"))]
    lab.lie = lambda k, site, p: replace(p, fields={**p.fields, "t": t}) if k == kind and site == "a" else p
    lab.fit()
    if kind != "evaluate":
        assert "a" in {q["name"] for q in lab.fed.records[-1].get("quarantined", [])}
        assert [path.read_bytes() for path in sorted(tmp_path.rglob("a/*.json"))] == before
    lab.lie = lambda k, site, p: p
    assert lab.fit() == ""
    assert lab.fed.records[-1]["ids"] == [0, 1, 2, 3]


def test_a_damaged_update_is_made_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.fit() == ""
    for path in tmp_path.rglob("a/update.safetensors"):
        path.write_bytes(b"nothing")
    assert lab.fit() == ""
    assert lab.fed.records[-1]["ids"] == [0, 1, 2, 3]


def test_noise_is_not_drawn_again_by_a_site_that_does_not_unmask(tmp_path: Path) -> None:
    """The others do, time after time, a sum of the same sites in which its noise would be new."""
    lab, sent = Lab(tmp_path, "dp(clip=1, noise=1)"), list[Parcel]()

    def lie(kind: str, site: str, p: Parcel) -> Parcel:
        if kind == "train.masked":
            sent.append(p)
        return replace(p, fields={**p.fields, "told": ""}) if (kind, site) == ("query.unmask", "d") else p

    lab.lie = lie
    assert lab.fit() == ""
    fields = {key: x for key, x in sent[0].fields.items() if key != "experiment"}
    values = sent[0].tensors["model/values"]
    assert isinstance(lab.ask("train.masked", "d", {**fields, "saved": [7]}, model__values=values), Parcel)
    again = str(lab.ask("train.masked", "d", fields, model__values=values))
    assert again == "refuses: d took part in a sum of round 0, and no longer has its update"


@pytest.mark.parametrize(("name", "text"), others_slow([
    ("questions.json", "[]"), ("questions.json", '{"round": "1"}'), ("questions.json", "[" * 9999), ("masks.json", "[" * 9999),
    ("masks.json", '{"key": "ab", "asked": null, "opened": null}'), ("masks.json", '{"models": null, "asked": null, "opened": null}'),
], fast=(0, 2, 4)))  # fmt: skip
def test_a_damaged_file_of_a_site_is_named(name: str, text: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.fit() == ""
    for path in tmp_path.rglob(f"a/{name}"):
        path.write_text(text)
        path.chmod(0o600)
    lab.fit()
    assert f"{name}" in lab.refusals[-1]
    assert "damaged" in lab.refusals[-1]
    assert "Error" not in lab.refusals[-1]
