"""A consortium as its members meet it: the app, who is there, what goes wrong, and what never leaves a site."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from torch import nn

import equipoise as eq
from equipoise.cli.flower import overview
from equipoise.data.tables.columns import ordered
from equipoise.engines.sequential import sequential
from equipoise.federation import checkpoint
from equipoise.federation.checkpoint import CheckpointError
from equipoise.federation.fingerprint import agreed, code, unlike
from equipoise.federation.guard import QuorumError
from equipoise.federation.history import History
from equipoise.federation.method import Method
from equipoise.flower import InProcessGrid, Task, in_process, make_client_app, make_server_app, take
from equipoise.flower.codec import VERSION, CodecError, Parcel, change, changed, hiding, packed, unpacked
from equipoise.flower.deploy.checks import _node
from equipoise.flower.server.consortium import Consortium, description
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.settings import AppSettings, faults
from equipoise.flower.site.site import open_site
from equipoise.flower.site.store import Receipt, Store
from equipoise.flower.site.task import Blank
from equipoise.report.notes import without_model
from equipoise.runs import directory as runs
from equipoise.runs.configuration import FLOWER, RunError, configure
from equipoise.system import own_code
from equipoise.system.errors import SiteError
from equipoise.system.seals import open_json, sealed_json
from equipoise.system.tensor_files import TYPES
from helpers import (
    UNEQUAL,
    KeepHead,
    clients,
    consortium,
    fast_first,
    federation,
    fitted,
    generator,
    identical,
    in_one,
    network,
    normal,
    others_slow,
    samples,
    told,
)
from run_helpers import SIZES

SITES = ("north", "south", "east")
SECRET = "patient-4711"  # a word that only sites know


def task(node: Mapping[str, Any], _: Mapping[str, Any]) -> Task:
    """What a site would write: its data by its own settings; the server has none."""
    if "site" not in node:
        return Task(network())
    k = int(node["data-number"])
    if node.get("data-broken"):
        raise RuntimeError(f"cannot read /data/{SECRET}.csv")
    return Task(network(), samples(UNEQUAL[k], k), samples(30, k + 5))


CONFIG = {
    "method": "scaffold",
    "rounds": 3,
    "seed": 3,
    "epochs": 2,
    "batch-size": 8,
    "lr": 0.05,
    "momentum": 0.9,
    "min-sites": 3,
    "wait": 0.2,
    "deadline": 5.0,
    "poll": 0.01,
}


class Machines:
    """Three sites and a server in one process; what happens to messages can be changed."""

    def __init__(
        self,
        directory: Path,
        task: Any = task,
        sites: Iterable[str] = SITES,
        config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.config = {**CONFIG, "run-dir": str(directory / "run"), **(config or {}), **more}
        self.directory, self.task = directory, task
        self.nodes: list[dict[str, Any]] = [
            {
                "site": site,
                "data-number": SITES.index(site) if site in SITES else 0,
                "state-dir": str(directory / "states"),
            }
            for site in sites
        ]
        self.client = make_client_app(task)

    @property
    def run(self) -> Path:
        return self.directory / "run"

    def grid(self, client: ClientApp | None = None) -> InProcessGrid:
        return InProcessGrid(client or self.client, self.nodes, self.config)

    def serve(self, grid: InProcessGrid | None = None) -> History:
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=self.config)
        make_server_app(self.task)(grid or self.grid(), context)
        return History.from_run(self.run)


class Changed(InProcessGrid):
    """Messages pass through ``meddle(kind, site, reply)`` on their way back; None loses them."""

    def __init__(self, machines: Machines, meddle: Callable[[str, str, Message], Message | None]) -> None:
        super().__init__(machines.client, machines.nodes, machines.config)
        self.meddle = meddle

    def _answered(self, message: Message) -> Message:
        reply = super()._answered(message)
        site = str(self.contexts[message.metadata.dst_node_id].node_config["site"])
        return self.meddle(message.metadata.message_type, site, reply) or reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        while found := super().pull_messages(message_ids):
            if not found[0].metadata.__dict__.get("lost"):
                return found
        return []


def instead(reply: Message, content: RecordDict | Error) -> Message:
    """Another reply to the same message."""
    other = Message(content, reply_to=reply)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return other


def lost(reply: Message) -> Message:
    reply.metadata.__dict__["lost"] = True
    return reply


def in_simulation(method: str, rounds: int) -> eq.Federation:
    """The same experiment without messages. Natural order of the names: east, north, south."""
    order = (2, 0, 1)
    fed = eq.Federation(
        network(),
        [samples(UNEQUAL[k], k) for k in order],
        method,
        eq.SGD(0.05, 0.9),
        tests={SITES[k]: samples(30, k + 5) for k in order},
        groups=[SITES[k] for k in order],
        names=[SITES[k] for k in order],
        epochs=2,
        batch_size=8,
        seed=3,
        engine="sequential",
    )
    fed.fit(rounds, progress=False)
    return fed


@pytest.fixture
def simulated() -> eq.Federation:
    return in_simulation("scaffold", 3)


# a run
def test_an_app_writes_the_run_that_the_simulator_writes(tmp_path: Path, simulated: eq.Federation) -> None:
    machines = Machines(tmp_path)
    history = machines.serve()
    names = ("east", "north", "south")
    assert history.meta["client_names"] == list(names)
    for ours, record in zip(simulated.records, history.records, strict=True):
        for name in names:  # a site tests the global model on its own data
            theirs = record["groups"][name]  # not which samples are right, which sites keep
            assert theirs == {key: ours["groups"][name][key] for key in ("accuracy", "loss", "n")}
        assert record["clients"]["accuracy"] == ours["clients"]["accuracy"]
        assert record["weights"] == ours["weights"]
        assert record["bytes"] == ours["bytes"]
    there = {path.name for path in machines.run.iterdir()}
    assert there >= {
        "config.toml",
        "manifest.json",
        "metrics.jsonl",
        "checkpoint",
        "summary.json",
        "report.html",
        "sites.json",
    }
    page = (machines.run / "report.html").read_text()
    assert "<html" in page
    assert "north" in page


def test_sites_test_their_own_models_only_where_evaluations_are_costly(tmp_path: Path) -> None:
    """A server without test sets, and models of sites that are made of the global one: other rounds have scores of that one only."""
    fed = in_simulation("fedavg+finetune", 8)
    history = Machines(tmp_path, method="fedavg+finetune", rounds=8).serve()
    assert ["clients" in record for record in history.records] == ["clients" in record for record in fed.records]
    assert {"clients" in record for record in fed.records} == {True, False}
    for ours, record in zip(fed.records, history.records, strict=True):
        assert [record["groups"][name]["accuracy"] for name in fed.names] == [
            ours["groups"][name]["accuracy"] for name in fed.names
        ]
        assert record.get("clients", {}).get("accuracy") == ours.get("clients", {}).get("accuracy")


def test_sites_validate_and_the_server_stops_early(tmp_path: Path) -> None:
    config = {"rounds": 40, "validation": 0.3, "patience": 2, "stop-on": "loss", "lr": 0.9}
    machines = Machines(tmp_path, config=config)
    machines.nodes = [{**node, "least-group": 1} for node in machines.nodes]
    history = machines.serve()
    assert history.stopped == "the validation loss has not improved for 2 rounds"
    assert len(history) < 40
    assert History.from_run(tmp_path / "run").summary()["stopped_round"] == len(history) - 1
    assert set(history.records[-1]["validation"]) == {"accuracy", "loss", "n", "groups", "clients"}
    assert len(machines.serve()) == len(history)  # again: it stays stopped
    with pytest.raises(ValueError, match="sites keep no state of an earlier round"):
        Machines(tmp_path / "other", validation=0.3, select="best-validation").serve()


def test_every_site_is_left_with_its_model(tmp_path: Path) -> None:
    machines = Machines(tmp_path, method="ditto-personal")
    machines.serve()
    models = sorted((tmp_path / "states").rglob("model.safetensors"))
    assert [path.parent.name for path in models] == ["east", "north", "south"]
    states = [load_file(path) for path in models]
    for state in states:
        network().load_state_dict(state)
    assert not torch.equal(states[0]["0.weight"], states[1]["0.weight"])


def test_a_run_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    whole = Machines(tmp_path / "whole")
    whole.serve()
    machines = Machines(tmp_path / "parts", quorum=1.0)

    def fails_once(kind: str, site: str, reply: Message) -> Message:
        if kind == "train" and Parcel.of(reply.content).fields.get("receipt", [0])[0] == 2 and site == "south":
            return instead(reply, Error(5, "Node Unavailable"))
        return reply

    with pytest.raises(QuorumError, match="south: is not reachable any more"):
        machines.serve(Changed(machines, fails_once))
    assert len((machines.run / "metrics.jsonl").read_text().splitlines()) == 2
    machines.client = make_client_app(task)  # another process
    machines.serve()
    one, two = (
        [
            {k: v for k, v in json.loads(line).items() if k not in ("seconds", "times", "sent", "hash")}
            for line in (m.run / "metrics.jsonl").read_text().splitlines()
        ]
        for m in (whole, machines)
    )
    assert one == two


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.serve()
    before = (machines.run / "metrics.jsonl").read_bytes()
    machines.serve()
    assert (machines.run / "metrics.jsonl").read_bytes() == before


def test_a_touched_file_of_a_run_is_named(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.serve()
    for name, expected in (
        ("config.toml", "config.toml cannot be read, or was changed"),
        ("sites.json", "sites.json is damaged"),
        ("metrics.jsonl", r"metrics.jsonl: line \d is damaged"),
        ("checkpoint/checkpoint.json", r"checkpoint.json is damaged \(its content is not what was written\)"),
    ):
        before = (machines.run / name).read_bytes()
        middle = len(before) // 2
        (machines.run / name).write_bytes(before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :])
        with pytest.raises((RunError, CheckpointError), match=expected):
            machines.serve()
        (machines.run / name).write_bytes(before)


def test_another_run_in_the_directory_is_an_error(tmp_path: Path) -> None:
    Machines(tmp_path).serve()
    with pytest.raises(RunError, match="holds a run with other settings"):
        Machines(tmp_path, method="fedavg").serve()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        Machines(tmp_path, **{"run-dir": str(tmp_path / "other")}).serve()


# who is there
def test_sites_are_ordered_by_name_and_not_by_arrival(tmp_path: Path) -> None:
    one = Machines(tmp_path / "one").serve()
    two = Machines(tmp_path / "two", sites=("east", "south", "north")).serve()
    assert [{k: v for k, v in r.items() if k not in ("seconds", "times")} for r in one.records] == [
        {k: v for k, v in r.items() if k not in ("seconds", "times")} for r in two.records
    ]
    assert ordered(["site-10", "site-2", "a", "B-1"]) == ("B-1", "a", "site-2", "site-10")


def test_sites_may_be_named_in_an_order(tmp_path: Path) -> None:
    history = Machines(tmp_path, config={"sites": "south, north,east"}).serve()
    assert history.meta["client_names"] == ["south", "north", "east"]


def test_too_few_sites_is_an_error_that_names_those_that_came(tmp_path: Path) -> None:
    machines = Machines(tmp_path, sites=("north", "south"))
    with pytest.raises(RunError, match=r"at least 3 sites; connected and able to take part: north, south"):
        machines.serve()
    with pytest.raises(RunError, match=r"all of north, west"):
        Machines(tmp_path / "b", config={"sites": "north,west", "min-sites": 1}).serve()


def test_two_nodes_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Two nodes call themselves north"):
        Machines(tmp_path, sites=("north", "south", "north")).serve()


def test_a_site_with_another_network_is_named(tmp_path: Path) -> None:
    def other(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        mine = task(node, config)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        return Task(net, mine.train, mine.test) if node.get("site") == "south" else mine

    with pytest.raises(RunError, match=r"south has other parameters \([0-9a-f]{12}\) than the server"):
        Machines(tmp_path, other).serve()


def test_a_site_with_samples_of_another_shape_is_named(tmp_path: Path) -> None:
    def other(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        mine = task(node, config)
        x, y = mine.train or samples(1, 0)
        flat = nn.Sequential(nn.Flatten(), *network())
        return Task(flat, (x.view(-1, 2, 3), y)) if node.get("site") == "south" else Task(flat, mine.train)

    with pytest.raises(RunError, match=r"south has other samples \(shape \[2, 3\], float64\) than most sites"):
        Machines(tmp_path, other).serve()


@pytest.mark.parametrize(("shape", "says"), [
    ([2**27], r"east has other samples \(shape \[134217728\], float64\) than most sites"),
    ([2**40], "connected and able to take part: north, south"),
    ([2**31, 2**31, 2**31], "connected and able to take part: north, south"),
])  # fmt: skip
def test_no_sample_is_made_as_large_as_one_site_says(
    shape: list[int], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def huge(kind: str, site: str, reply: Message) -> Message:
        if (kind, site) != ("query.describe", "east"):
            return reply
        told = Parcel.of(reply.content)
        return instead(reply, replace(told, fields={**told.fields, "shape": shape}).records())

    made: list[tuple[int, ...]] = []
    of = Blank.__getitem__
    monkeypatch.setattr(
        Blank, "__getitem__", lambda blank, row: made.extend(part for _, part, _ in blank.kind) or of(blank, row)
    )
    machines = Machines(tmp_path, wait=0.01)
    with pytest.raises(RunError, match=says):
        machines.serve(Changed(machines, huge))
    assert not any(tuple(shape) == one for one in made)


# what all agree on
NAMES = ("age", "sex", "height", "weight", "pulse", SECRET)
CLASSES = ("healthy", "benign", "malign")
STATED: dict[str, tuple[Any, Any]] = {  # what most state, and what one site does
    "features": (NAMES, NAMES[::-1]),
    "classes": (CLASSES, ["healthy", "malign", "benign"]),
    "scaling": ({"age": [40, 12.5]}, {"age": [40, 12.4]}),
    "measures": (("accuracy", "auc"), ("f1",)),
}


def stating(said: Mapping[str, Mapping[str, Any]]) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Task]:
    """A task in which ``server`` and the sites state what is ``said`` of each."""
    return lambda node, config: replace(task(node, config), **said.get(str(node.get("site", "server")), {}))


@pytest.mark.parametrize("aspect", STATED)
def test_a_site_that_differs_from_the_server_is_named_and_no_value_is_sent(aspect: str, tmp_path: Path) -> None:
    right, other = ({aspect: value} for value in STATED[aspect])
    sent: list[str] = []

    def reads(kind: str, site: str, reply: Message) -> Message:
        sent.append(json.dumps(Parcel.of(reply.content).fields))
        return reply

    machines = Machines(tmp_path, stating({"server": right, "north": right, "south": other, "east": right}))
    with pytest.raises(RunError) as error:
        machines.serve(Changed(machines, reads))
    assert re.match(
        rf"south has other {aspect} \([0-9a-f]{{12}}\) than the server \([0-9a-f]{{12}}\)\. All", str(error.value)
    )
    assert len(sent) == 3
    for word in (SECRET, "malign", "12.5", "auc"):
        assert not any(word in text for text in (*sent, str(error.value)))


def test_without_the_server_most_sites_decide_and_without_most_the_groups_are_named(tmp_path: Path) -> None:
    right, other = ({"features": value} for value in STATED["features"])
    with pytest.raises(RunError, match=r"^south has other features \(\w+\) than most sites \(\w+\)\. All"):
        Machines(tmp_path / "a", stating({"north": right, "east": right, "south": other})).serve()
    with pytest.raises(RunError, match=r"^south has other features \(\w+\) than north \(\w+\)\. All"):
        Machines(tmp_path / "b", stating({"north": right, "south": other})).serve()
    four = {"a": {"x": "1"}, "b": {"x": "2"}, "c": {"x": "2", "y": "3"}, "d": {"x": "1"}, "e": {}}
    found = agreed(four, {})
    assert found == {"x": ("a, d", "1"), "y": ("most sites", "3")}
    assert {name: unlike(codes, found) for name, codes in four.items()} == {
        "a": "",
        "b": "has other x (2) than a, d (1)",
        "c": "has other x (2) than a, d (1)",
        "d": "",
        "e": "",
    }


def test_all_that_differ_are_named_with_all_in_which_they_do(tmp_path: Path) -> None:
    server, south = ({name: value[k] for name, value in STATED.items()} for k in (0, 1))
    said = {"server": server, "north": server | {"scaling": "none"}, "south": south, "east": server}
    with pytest.raises(RunError) as error:
        Machines(tmp_path, stating(said)).serve()
    text = str(error.value)
    assert text.startswith("north has other scaling (")
    assert re.findall(r"other (\w+) \(", text[text.index("south") :]) == ["features", "classes", "scaling", "measures"]


def test_a_site_gives_no_measure_that_its_own_task_does_not_name(tmp_path: Path) -> None:
    """Before the first round, and to a server that asks nevertheless; accuracy is measured always."""
    rates = {"server": {"measures": ("accuracy", "rates")}, "east": {"measures": ("rates",)}}
    with pytest.raises(RunError, match=r"north has other measures .*; south has other measures"):
        Machines(tmp_path, stating(rates)).serve()
    own = Task(network(), samples(20, 0), samples(30, 1), measures=("accuracy", "auc"))
    fields = description(Method.of("fedavg"), eq.SGD(0.1), eq.Settings(), ("accuracy", "rates"), "run")
    site = open_site("north", own, fields, Store(tmp_path / "n"), node_config={"least-group": 1})
    for asked in (["rates"], ["accuracy", "rates"], ["f1"], ["correct"], ["x"]):
        with pytest.raises(SiteError, match=r"measures accuracy, auc only, as its own task states"):
            site.answer("evaluate", Parcel({"measures": asked, "own": False}))


def test_what_only_some_state_is_compared_among_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines(tmp_path, stating({"north": {"classes": CLASSES}, "east": {"classes": [*CLASSES]}}), rounds=1)
    assert len(machines.serve()) == 1
    assert "south: classes not stated, so not compared there" in caplog.text
    assert "features" not in caplog.text


def test_a_site_that_comes_back_with_other_features_stays_outside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def changing(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        return replace(task(node, config), features=NAMES[::-1] if node.get("data-changed") else NAMES)

    machines = Machines(tmp_path, changing, rounds=2)
    grid = machines.grid(make_client_app(changing, keep=1))  # as in processes of their own
    serve = grid.push_messages

    def push(messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        if pushed[0].metadata.message_type == "evaluate" and pushed[0].metadata.dst_node_id == 2:  # south
            node = {**grid.contexts.pop(2).node_config, "data-changed": True}
            grid.contexts[99] = Context(99, 99, node, RecordDict(), machines.config)
            return []
        return serve(pushed)

    grid.push_messages = push  # type: ignore[method-assign]
    history = machines.serve(grid)
    assert [record["ids"] for record in history.records] == [[0, 1, 2], [0, 1]]
    assert history.records[1]["quarantined"] == [
        {"client": 2, "name": "south", "reason": "is not connected", "key": "absent"}
    ]
    assert re.search(r"south cannot take part: it has other features \(\w+\) than the server", caplog.text)


def test_a_resumed_run_compares_what_is_there_now(tmp_path: Path) -> None:
    """The run may have begun with a version that compared nothing, and all may have changed since."""
    first = Machines(tmp_path, stating({"server": {"features": NAMES}}), rounds=1)
    first.serve()
    kept = open_json((first.run / "sites.json").read_text())
    for site in kept["sites"]:
        del site["agreement"]
    (first.run / "sites.json").write_text(sealed_json(kept))
    both = {"features": NAMES[::-1]}
    Machines(tmp_path, stating({"server": both, "south": both}), rounds=1).serve()
    with pytest.raises(RunError, match=r"^south has other features \("):
        Machines(tmp_path, stating({"server": {"features": NAMES}, "south": both}), rounds=1).serve()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, r"south has other Equipoise version \(an earlier one\) than the server \(\S+, source \w{16}\)"),
        ({"Equipoise version": "0.0\x1b[2J"}, r"south has other Equipoise version \(0.0\\x1b\[2J\) than the server"),
        ({"Equipoise version": "9" * 5000}, r"south has other Equipoise version \(9{199}…\) than the server"),
        ([1], "Of others: node 2 does not describe itself as a site"),
    ],
)
def test_a_site_of_another_version_is_told_by_it(said: Any, words: str, tmp_path: Path) -> None:
    machines = Machines(tmp_path)

    def older(kind: str, site: str, reply: Message) -> Message:
        fields = Parcel.of(reply.content).fields
        told = {key: x for key, x in fields.items() if key != "agreement"} | (
            {} if said is None else {"agreement": said}
        )
        return instead(reply, Parcel(told).records()) if site == "south" else reply

    with pytest.raises(RunError, match=words):
        machines.serve(Changed(machines, older))


def test_a_network_of_other_code_is_told(tmp_path: Path) -> None:
    """Of the same parameters, in a file of the site's own; the library's and installed code have a version instead."""
    nets = {}
    for name, function in (("a", "tanh"), ("b", "relu")):
        (tmp_path / f"{name}.py").write_text(
            f"import torch\nclass Net(torch.nn.Linear):\n    def forward(self, x): return super().forward(x.{function}())\n"
        )
        nets[name] = own_code.load(f"{tmp_path}/{name}.py:Net")(6, 3).double()

    def other(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        return replace(task(node, config), net=nets["b" if node.get("site") == "south" else "a"])

    with pytest.raises(RunError, match=r"^south has other own code \(\w{12}\) than the server \(\w{12}\)\. All"):
        Machines(tmp_path, other).serve()
    assert own_code.defining(nets["a"]) == [own_code.digest(str(tmp_path / "a.py"))]
    assert own_code.defining(nn.Linear(1, 1), *Method.of("fedheal").rules) == []


@in_one(
    ("stated", "words"),
    [
        ({"features": "age"}, "features must be a list with a name for each of the features; found 'age'"),
        ({"features": 6}, "features must be a list"),
        ({"features": [0.5] * 6}, "features must hold text; found 0.5"),
        ({"features": NAMES[:5]}, r"features: a sample has the shape \[6\].*; found 5 names, 5 of them different"),
        ({"features": [*NAMES[:5], "age"]}, "found 6 names, 5 of them different"),
        ({"features": []}, "found 0 names"),
        ({"classes": ["healthy", "ill"]}, r"classes: the output has the shape \[3\].*; found 2 names"),
        ({"classes": {"healthy": 0}}, "found 1 names"),
        ({"scaling": torch.ones(2)}, r"scaling must be text, numbers.*give x.tolist\(\).*Tensor is not JSON"),
        ({"scaling": {"age": float("nan")}}, "scaling must be text, numbers.*not JSON compliant"),
        ({"scaling": {("age", "sex"): 1}}, "scaling must be text, numbers.*keys must be str"),
    ],
)
def test_what_cannot_be_stated_is_told(stated: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Task(network(), samples(5, 0), **stated).agreement(federation().trial, (6,))


def test_the_same_stated_in_another_way_is_the_same() -> None:
    trial = federation().trial

    def codes(**stated: Any) -> dict[str, str]:
        return Task(network(), samples(5, 0), **stated).agreement(trial, (6,))

    assert codes(features=NAMES, scaling={"b": 1, "a": (2, 3)}) == codes(
        features=[*NAMES], scaling={"a": [2.0, 3], "b": 1.0}
    )
    assert codes(measures=["accuracy"]) == codes() != codes(measures=["accuracy", "rates"])
    assert code("1") != code(1)


# what goes wrong
def test_a_site_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    machines = Machines(tmp_path)

    def fails(kind: str, site: str, reply: Message) -> Message:
        late = kind == "train" and site == "south"
        return instead(reply, Error(2, f"<class 'RuntimeError'>:<'{SECRET}'>")) if late else reply

    history = machines.serve(Changed(machines, fails))
    assert [record["quarantined"] for record in history.records] == 3 * [
        [{"client": 2, "name": "south", "reason": "failed; the site's log says why", "key": "away"}]
    ]
    assert [record["ids"] for record in history.records] == 3 * [[0, 1]]


@pytest.mark.parametrize(
    ("spare", "asked"), others_slow([(0, {}), (-1, {}), (0, {"steps": 7}), (-1, {"steps": 7})], fast=(0, 3))
)
def test_a_site_takes_no_more_steps_than_it_allows(spare: int, asked: dict[str, int], tmp_path: Path) -> None:
    """So many in one round, whatever the server asks: epochs of as many batches as its samples are, or steps."""
    machines = Machines(tmp_path, rounds=1, **asked)
    steps = asked.get("steps", 2 * -(-UNEQUAL[1] // 8))
    machines.nodes[1]["max-steps"] = steps + spare
    (record,) = machines.serve().records
    why = f"refuses: one message asks for {steps} gradient steps, more than its max-steps"
    assert record.get("quarantined", []) == (
        [{"client": 2, "name": "south", "reason": why, "key": "refused"}] if spare else []
    )


@pytest.mark.parametrize("spoilt", [1, 2, 5])
def test_how_many_samples_are_bad_stays_in_the_log_of_the_site(
    spoilt: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spoils(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        made = task(node, config)
        if node.get("site") == "south":
            made.train[0][:spoilt] = torch.nan
        return made

    machines = Machines(tmp_path, spoils, rounds=1)
    (record,) = machines.serve().records
    assert [lost["reason"] for lost in record["quarantined"]] == ["the data hold NaN or infinity"]
    assert f"the data hold NaN or infinity: correct {spoilt} of " in caplog.text


def test_the_manifest_of_a_run_that_has_ended_says_what_computed_it(tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=1)
    for _ in range(2):  # the second time no round is left
        history = machines.serve()
        assert [machine["round"] for machine in history.meta["machines"]] == [0]
        assert History.from_run(machines.run).meta == history.meta


@pytest.mark.parametrize("gone", [["south"], ["north", "south"]])
def test_a_site_that_is_away_at_the_end_is_named_until_it_has_its_model(gone: list[str], tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=1)

    def loses(kind: str, site: str, reply: Message) -> Message | None:
        away = kind == "query.finish" and site in gone
        return instead(reply, Error(2, "away")) if away else reply

    def told(history: History) -> tuple[bool, str]:
        page = (machines.run / "report.html").read_text()
        note = any("did not get the model" in text for text in without_model(history))
        assert note == ("did not get the model at the end of the run" in page)
        return note, overview(machines.run, None, None)["run"]["sites_without_model"]

    assert told(machines.serve(Changed(machines, loses))) == (True, ", ".join(gone))
    assert told(machines.serve()) == (False, None)
    assert len(list((tmp_path / "states").rglob("model.safetensors"))) == 3
    with pytest.raises(RunError, match="that was there at the end; the same command sends it to one that was away"):
        runs.load(machines.run)


SLIPS = {
    "threads": "two",
    "max-steps": 0,
    "max-epsilon": "x",
    "log": "xml",
    "secure": "yes",
    "peer": "peers.json",
    "state_dir": "/states",
    "delta": 2.0,
    "least-group": 1.5,
}


@pytest.mark.parametrize(
    "slip", [*({key: value} for key, value in SLIPS.items()), {"max-step": 9}, {"max_epsilon": 1.0}, SLIPS]
)
def test_a_slip_in_a_node_config_is_told_beforehand_and_keeps_the_site_out(
    slip: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All keys at once; the site's own log says why, and a server learns nothing of its node config."""
    machines = Machines(tmp_path, rounds=1)
    machines.nodes[1] |= slip
    told_before = [each.what for each in _node("south", {"state-dir": str(tmp_path), **slip}) if not each.ok]
    assert told_before == [f"south: {key}" for key in slip]
    with pytest.raises(RunError, match=r"\(south\) .*node-config cannot be used; its own log says more") as refused:
        machines.serve()
    assert not any(words in str(refused.value) for words in ("must be", "Did you mean", "xml", "two"))
    assert all(str(value) in caplog.text for value in faults(slip).values())


def test_keys_of_a_users_own_begin_with_data() -> None:
    own = {"data": 3, "data-path": "x", "data.table": True, "data_x": "", "database": 1}
    assert faults(own | {"delta": 1e-6, "partition-id": 0, "num-partitions": 3}) == {}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        *[(key, "secure") for key in ("Secure", "SECURE", "secured", "secur", "sec-ure")],
        *[(key, "peers") for key in ("peer", "Peers", "peers ")],
        *[(key, "state-dir") for key in ("state_dir", "statedir", "State-Dir")],
        *[("sites", "site"), ("max_epsilon", "max-epsilon"), ("least-groups", "least-group"), ("Data", "")],
        *[("", ""), ("x", ""), ("secure.", "secure"), ("s\u0435cure", "secure")],
    ],
)
def test_a_key_that_means_nothing_keeps_the_site_out_with_the_nearest(key: str, meant: str) -> None:
    """The last is with a letter that only looks like an e."""
    (fault,) = faults({key: True, "delta": 1e-6}).values()
    assert fault.startswith(f"unknown. Did you mean '{meant}'?" if meant else "unknown. A key of your own")
    assert fault.endswith(f"A key of your own function begins with data, such as data-{key}.")


@pytest.mark.parametrize("key", ["site", "state-dir", "device", "peers"])
def test_settings_in_words_are_words(key: str) -> None:
    assert faults({key: "x"}) == {}
    assert faults({key: True}) == {key: f"{key} must be text; found True."}


@pytest.mark.parametrize("name", ["\u00b2", "\u0663", "\u00bd", "9" * 200, "a, b", "../x", " ", "e\u0301", "-1"])
def test_a_site_may_have_any_name(name: str, tmp_path: Path) -> None:
    sites = ["north", name, "south"]
    machines = Machines(tmp_path, sites=sites, rounds=1)
    assert len(machines.serve().records[0]["ids"]) == 3


def test_steps_of_all_rounds_alone_are_asked_for_at_once(tmp_path: Path) -> None:
    fed = consortium("fedavg", states=tmp_path, tests={"t": samples(30, 8)}, server_validation=None)
    s = fed.trial.settings
    most = max(UNEQUAL) // s.batch_size * s.epochs * 3 + s.epochs * 3
    for context in grid_of(fed).contexts.values():
        context.node_config["max-steps"] = most
    fed.standalone(3)
    with pytest.raises(RunError, match=r"reaches alone is not known: .*refuses: .*max-steps"):
        fed.standalone(10**15)


@pytest.mark.parametrize("kind", ["evaluate", "query.finish", "train"])
def test_steps_that_a_rule_adds_count_too(kind: str, tmp_path: Path) -> None:
    """Training before a prediction, or before a round: no message asks for more steps than the site allows."""
    form = "every_round" if kind == "train" else "last"
    site = open_site(
        "here",
        Task(network(), samples(20, 1), samples(20, 2)),
        description(
            eq.parse(f"fedavg+finetune(form={form}, steps=1000)"),
            eq.SGD(0.05),
            AppSettings().settings,
            ("accuracy",),
            "run",
        ),
        Store(tmp_path),
        node_config={"max-steps": 999},
    )
    fields = {"client": 0, "t": 1, "rounds": 2, "receipt": [-1, "0" * 64], "model": {}, "saved": [], "measures": []}
    values = site.trial.setup.initial
    tensors = {"model/values": values, "initial": values, "messages/1/x": torch.zeros(1)}
    with pytest.raises(SiteError, match=r"asks for 1,00\d gradient steps"):
        site.answer(kind, Parcel({**fields, "own": True, "deploys": True}, tensors))


def test_a_late_site_is_left_out(tmp_path: Path) -> None:
    machines = Machines(tmp_path, deadline=0.05)

    def slow(kind: str, site: str, reply: Message) -> Message:
        return lost(reply) if kind == "train" and site == "east" else reply

    history = machines.serve(Changed(machines, slow))
    assert history.records[0]["quarantined"][0]["reason"] == "did not answer within 0.05 s"


def test_a_message_that_flower_lets_expire_is_late(tmp_path: Path) -> None:
    """Its error may come before the server's own patience ends, and the site's log says nothing of it."""
    machines = Machines(tmp_path, rounds=1)

    def expired(kind: str, site: str, reply: Message) -> Message:
        return instead(reply, Error(3, "Message Unavailable")) if (kind, site) == ("train", "south") else reply

    history = machines.serve(Changed(machines, expired))
    assert history.records[0]["quarantined"][0]["reason"] == "did not answer in time"


def test_a_site_that_goes_away_and_comes_back_takes_part_again(tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=4)
    grid = machines.grid()
    away: dict[int, Context] = {}
    serve = grid.push_messages

    def push(messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        if pushed[0].metadata.message_type == "evaluate":
            node = next(n for n, c in {**grid.contexts, **away}.items() if c.node_config["site"] == "south")
            if pushed[0].metadata.group_id == "1" and pushed[0].metadata.dst_node_id == node:
                away[node] = grid.contexts.pop(node)
                return []
            if pushed[0].metadata.group_id == "2" and 99 not in grid.contexts:
                grid.contexts[99] = Context(
                    99, 99, away[node].node_config, RecordDict(), machines.config
                )  # a new node id
        return serve(pushed)

    grid.push_messages = push  # type: ignore[method-assign]
    history = machines.serve(grid)
    assert [record["ids"] for record in history.records] == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert history.records[1]["quarantined"][0]["reason"] == "is not connected"
    assert history.records[1]["clients"]["accuracy"][2] is None


def tampered(change: Callable[[Parcel], Parcel]) -> Callable[[str, str, Message], Message]:
    """South's answers to training, changed on the way."""

    def meddle(kind: str, site: str, reply: Message) -> Message:
        if kind != "train" or site != "south":
            return reply
        return instead(reply, change(Parcel.of(reply.content)).records())

    return meddle


def with_tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Parcel], Parcel]:
    return lambda p: Parcel(p.fields, {**p.tensors, name: make(p.tensors[name])})


TAMPERED: dict[str, tuple[Callable[[Parcel], Parcel], str]] = {
    "nan": (with_tensor("model/values", lambda x: x * float("nan")), "the update holds NaN"),
    "infinity": (with_tensor("model/values", lambda x: x / 0), "the update holds infinity"),
    "far": (with_tensor("model/values", lambda x: x * 0 + 1e30), "the update holds 1e+30, which no training gives"),
    "too long": (
        with_tensor("model/values", lambda x: x + 1e4),
        "times as long as the median of the round, and norm_limit is 100",
    ),
    "short": (with_tensor("model/values", lambda x: x[:-1]), "a vector of 73 numbers was expected; found 72"),
    "type": (with_tensor("model/values", lambda x: x.float()), "a vector of torch.float64 was expected"),
    "nothing": (lambda p: Parcel(p.fields), "none is there"),
    "no receipt": (lambda p: Parcel({**p.fields, "receipt": None}, p.tensors), "there is no receipt"),
    "old receipt": (lambda p: Parcel({**p.fields, "receipt": [7, "00" * 32]}, p.tensors), "there is no receipt"),
    "report nan": (with_tensor("reports/0/dc", lambda x: x * float("nan")), "the report 'dc' holds NaN"),
    "report shape": (with_tensor("reports/0/dc", lambda x: x[:-1]), "another shape than those of other clients"),
    "no names": (lambda p: Parcel({**p.fields, "cut": [1]}, p.tensors), "it does not say what was cut out"),
    "strange rule": (
        lambda p: Parcel(p.fields, {**p.tensors, "reports/\u00b2/x": torch.zeros(1)}),
        "the method has 1 rules",
    ),
    "endless receipt": (
        lambda p: Parcel({**p.fields, "receipt": [float("inf"), "00" * 32]}, p.tensors),
        "there is no receipt",
    ),
    "unknown rule": (
        lambda p: Parcel(p.fields, {**p.tensors, "reports/7/x": torch.zeros(1)}),
        "the method has 1 rules",
    ),
}


@pytest.mark.parametrize(
    "what", fast_first(TAMPERED, ("nan", "far", "too long", "short", "no receipt", "report shape", "strange rule"))
)
def test_an_answer_that_cannot_be_used_is_quarantined(what: str, tmp_path: Path) -> None:
    change, reason = TAMPERED[what]
    machines = Machines(tmp_path, rounds=2)
    history = machines.serve(Changed(machines, tampered(change)))
    for record in history.records:
        assert record["ids"] == [0, 1]
        assert reason in record["quarantined"][0]["reason"]


def test_answers_that_come_twice_and_late_again_change_nothing(tmp_path: Path, simulated: eq.Federation) -> None:
    """Every look brings the new answer twice, and all that came before."""
    machines = Machines(tmp_path)

    class Echo(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            found = super().pull_messages(message_ids)
            self.__dict__.setdefault("before", []).extend(found)
            return [*self.__dict__["before"], *found] if found else []

    history = machines.serve(Echo(machines.client, machines.nodes, machines.config))
    assert [r["weights"] for r in history.records] == [r["weights"] for r in simulated.records]
    tensors, _ = checkpoint.read(machines.run / "checkpoint")
    assert torch.equal(torch.as_tensor(tensors["vector"]), simulated.progress.vector)


def test_an_answer_that_is_no_message_of_ours_is_quarantined(tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=1)

    def other(kind: str, site: str, reply: Message) -> Message:
        records = RecordDict({"fields": ConfigRecord({"json": "{"}), "tensors": ArrayRecord()})
        return instead(reply, records) if kind == "train" and site == "south" else reply

    history = machines.serve(Changed(machines, other))
    assert "cannot be read" in history.records[0]["quarantined"][0]["reason"]


def test_another_version_is_told(tmp_path: Path) -> None:
    records = Parcel({"a": 1}).records()
    told = json.loads(str(records.config_records["fields"]["json"]))
    records.config_records["fields"]["json"] = json.dumps({**told, "version": VERSION + 1})
    with pytest.raises(CodecError, match="install the same Equipoise everywhere"):
        Parcel.of(records)
    records.config_records["fields"]["json"] = json.dumps({**told, "version": "\u202e"})
    with pytest.raises(CodecError, match=r"of version \\u202e, and"):  # nothing that steers a terminal
        Parcel.of(records)
    records.array_records["tensors"]["x"] = Array("object", (1,), "of another version", b"")  # it is not looked at
    with pytest.raises(CodecError, match="install the same Equipoise everywhere"):
        Parcel.of(records)


@in_one(
    "array",
    [
        Array("F32", (3,), "bytes", bytes(11)),
        Array("F32", (2,), "bytes", bytes(12)),
        Array("F32", (-3,), "bytes", bytes(12)),
        Array("F32", (2**62, 12), "bytes", bytes(48)),
        Array("F32", (2**80, 0), "bytes", b""),
        Array("object", (1,), "bytes", bytes(8)),
        Array(np.zeros(3, np.float32)),
        Array(np.array(["text"])),
    ],
)
def test_an_array_that_is_none_is_refused(array: Array) -> None:
    records = Parcel({"a": 1}).records()
    records.array_records["tensors"]["x"] = array
    with pytest.raises(CodecError, match="cannot be read"):
        Parcel.of(records)


def test_a_message_holds_tensors_of_any_type_and_shape() -> None:
    tensors = {name: torch.ones(2, 3).to(dtype).t() for name, dtype in TYPES.items()}
    tensors |= {"number": torch.tensor(2.5), "empty": torch.zeros(0, 4), "stretched": torch.ones(1).expand(4)}
    parcel = Parcel({"a": [1, None]}, tensors)
    found = Parcel.of(parcel.records())
    assert found.fields == parcel.fields
    assert found.nbytes == parcel.nbytes
    assert {name: (x.dtype, x.tolist()) for name, x in found.tensors.items()} == {
        name: (x.dtype, x.tolist()) for name, x in tensors.items()
    }


def test_a_model_is_kept_only_where_its_change_may_be_sent(tmp_path: Path) -> None:
    """Of fedavg every entry counts as sent in every round, also where a unit that never fires keeps its weights."""
    for method, kept in (("fedavg", False), ("fedave", True)):
        net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        with torch.no_grad():
            net[0].bias[:4] = -1e3
        fed = consortium(method, net=net, states=tmp_path / method, participation=1.0)
        fed.fit(2, progress=False)
        assert any((tmp_path / method).rglob("base.safetensors")) == kept
        assert [r["sent"]["train"]["down"] for r in fed.records] == [r["bytes"]["down"] for r in fed.records]


def test_the_state_of_a_client_whose_answer_was_not_used_does_not_move(tmp_path: Path) -> None:
    """As in the simulator: south's second answer is lost, and its control variate stays that of the first round."""
    plain = Machines(tmp_path / "plain", rounds=3)
    seen: list[Any] = []

    def loses(kind: str, site: str, reply: Message) -> Message:
        if kind == "train" and site == "south":
            parcel = Parcel.of(reply.content)
            seen.append(parcel.fields["receipt"][0])
            if parcel.fields["receipt"][0] == 1:
                return instead(reply, Error(8, "gone"))
        return reply

    history = plain.serve(Changed(plain, loses))
    assert [record["ids"] for record in history.records] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    order = (2, 0, 1)

    def engine(job: Any) -> Any:
        for answer in sequential(job):
            if job.t == 1 and answer.rows == (2,):
                yield replace(answer, error="stopped in the middle of its work")
            else:
                yield answer

    fed = eq.Federation(
        network(),
        [samples(UNEQUAL[k], k) for k in order],
        "scaffold",
        eq.SGD(0.05, 0.9),
        epochs=2,
        batch_size=8,
        seed=3,
        engine=engine,
    )
    fed.fit(3, progress=False)
    assert [r["weights"] for r in fed.records] == [r["weights"] for r in history.records]
    tensors, _ = checkpoint.read(plain.run / "checkpoint")
    assert torch.equal(tensors["vector"], fed.progress.vector)


def test_a_lost_state_is_told_and_does_not_poison(tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=2)
    removed = []

    def removes(kind: str, site: str, reply: Message) -> Message:
        if kind == "train" and site == "south" and not removed:
            removed.extend((tmp_path / "states").rglob("south/state-*"))
            for path in removed:
                path.unlink()
        return reply

    history = machines.serve(Changed(machines, removes))
    assert removed
    assert "its state of round 0 is missing" in history.records[1]["quarantined"][0]["reason"]


def test_a_lost_model_is_sent_whole_again(tmp_path: Path) -> None:
    """A site whose memory of the last model is gone asks for all of it, and the result is the same."""
    plain = Machines(tmp_path / "plain").serve()
    machines = Machines(tmp_path / "lossy")

    def removes(kind: str, site: str, reply: Message) -> Message:
        for path in (tmp_path / "lossy" / "states").rglob(f"{site}/base.safetensors"):
            path.unlink()
        return reply

    history = machines.serve(Changed(machines, removes))
    strip = lambda h: [{k: v for k, v in r.items() if k not in ("seconds", "times", "sent")} for r in h.records]  # noqa: E731
    assert strip(plain) == strip(history)


# what never leaves a site
def test_no_words_of_a_site_reach_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Errors, paths and tracebacks stay in the site's log: no message holds them."""
    replies: list[bytes] = []

    def keeps(kind: str, site: str, reply: Message) -> Message:
        replies.append(
            str(reply.content.config_records["fields"]["json"]).encode()
            if reply.has_content()
            else repr(reply.error).encode()
        )
        return reply

    machines = Machines(tmp_path, **{"min-sites": 2})
    machines.nodes[1]["data-broken"] = True
    with caplog.at_level(logging.ERROR):
        machines.serve(Changed(machines, keeps))
    assert any(SECRET in (record.exc_text or "") for record in caplog.records if record.name == "equipoise.flower.app")
    assert any(b"RuntimeError" in reply for reply in replies)
    for reply in replies:
        assert SECRET.encode() not in reply
        assert b"/data/" not in reply
        assert b"Traceback" not in reply
        assert str(tmp_path).encode() not in reply


class Careless(nn.Module):
    """A network that names the data in its errors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x == 42).any()):
            raise ValueError(f"{SECRET}: {x}")
        return self.inner(x)


def test_what_training_raises_is_told_without_its_words(tmp_path: Path) -> None:
    def careless(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        mine = task(node, config)
        if node.get("site") == "south":
            x, y = mine.train
            x = x.clone()
            x[5:] = 42
            return Task(Careless(), (x, y), mine.test)
        return Task(Careless(), mine.train, mine.test)

    machines = Machines(tmp_path, careless)
    history = machines.serve()
    reason = history.records[0]["quarantined"][0]["reason"]
    assert reason == "failed with ValueError; its own log says more"


def test_private_coordinates_stay_at_home(tmp_path: Path) -> None:
    """Neither the model nor a report holds a value of a site's BatchNorm layers."""
    values: list[torch.Tensor] = []

    def keeps(kind: str, site: str, reply: Message) -> Message:
        if kind == "train":
            values.extend(x.flatten().double() for x in Parcel.of(reply.content).tensors.values())
        return reply

    def normed(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        mine = task(node, config)
        return Task(network("batchnorm"), mine.train, mine.test)

    machines = Machines(tmp_path, normed, method="scaffold+fedbn")
    machines.serve(Changed(machines, keeps))
    kept = [x for path in (tmp_path / "states").rglob("state-*") for x in _private(path)]
    sent = torch.cat(values)
    assert len(kept) == 9  # of three checkpoints
    for x in kept:
        moved = x[(x != 0) & (x != 1)]
        assert len(moved) > 5
        assert not torch.isin(moved, sent).any()


def _private(path: Path) -> list[torch.Tensor]:
    return [load_file(path)["own"].double()]


# pieces
def test_a_vector_survives_as_a_change() -> None:
    old = normal(50, seed=1)
    for count in (0, 1, 20, 50):
        new = old.clone()
        new[torch.randperm(50, generator=generator())[:count]] += 1
        parts = change(new, old)
        assert torch.equal(changed(parts, old, old), new)
        assert sum(x.nbytes for x in parts.values()) <= new.nbytes
    assert change(old, None).keys() == {"values"}


@in_one(
    "parts",
    [
        {"values": torch.ones(2, dtype=torch.float64), "index": torch.tensor([1, 9], dtype=torch.int32)},
        {"values": torch.ones(2, dtype=torch.float64), "index": torch.tensor([-1, 2], dtype=torch.int32)},
        {"values": torch.ones(2, dtype=torch.float64), "index": torch.tensor([1], dtype=torch.int32)},
        {"values": torch.ones(1, dtype=torch.float64), "bits": torch.tensor([255], dtype=torch.uint8)},
        {"values": torch.ones(1, dtype=torch.float64), "bits": torch.tensor([255.0])},
        {"values": torch.ones(1, dtype=torch.float64), "index": torch.tensor([float("inf")])},
    ],
)
def test_a_change_that_does_not_fit_is_refused(parts: dict[str, torch.Tensor]) -> None:
    with pytest.raises(CodecError):
        changed(parts, torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64))


@in_one(
    "x",
    [
        torch.tensor(3.0),
        torch.tensor([True, False]),
        torch.arange(4, dtype=torch.uint8),
        torch.zeros(0, 3),
        normal(2, 3),
    ],
)
def test_tensors_of_any_kind_travel(x: torch.Tensor) -> None:
    back = Parcel.of(Parcel({"é": [1.5, None]}, {"a/b": x}).records())
    assert back.fields == {"é": [1.5, None]}
    assert torch.equal(back.tensors["a/b"], x)
    assert back.tensors["a/b"].dtype == x.dtype


def test_what_is_private_is_cut_out_of_reports() -> None:
    private = torch.tensor([False, True, False, True, False])
    states = [{"v": torch.arange(3.0), "w": torch.arange(5.0), "n": torch.tensor(2)}, {}]
    tensors, cut = packed("reports", states, hiding(private, 3))
    assert {k: x.tolist() for k, x in tensors.items()} == {
        "reports/0/v": [0, 2],
        "reports/0/w": [0, 2, 4],
        "reports/0/n": 2,
    }
    back = unpacked(Parcel({"cut": cut}, tensors), "reports", 2, hiding(private, 3))
    assert back[0]["v"].tolist() == [0, 0, 2]
    assert back[0]["w"].tolist() == [0, 0, 2, 0, 4]
    assert back[1] == {}


def test_a_store_keeps_the_state_before_until_the_server_decides(tmp_path: Path) -> None:
    store = Store.at(tmp_path, "trial 1", "St. Mary/\u00fc")
    assert tmp_path in store.directory.parents
    first = store.keep(0, {"c": torch.ones(3)})
    second = store.keep(1, {"c": torch.zeros(3)})
    (store.directory / ".state-000002.safetensors.7.part").touch()
    for receipt, value in ((first, 1), (second, 0), (first, 1)):  # to look changes nothing
        found = store.recall(receipt)
        assert found is not None
        assert found["c"].tolist() == 3 * [value]
    store.settle({0, -1})
    assert [path.name for path in store.directory.iterdir()] == ["state-000000.safetensors"]
    with pytest.raises(SiteError, match="round 1 is missing"):
        store.recall(second)  # the server went on from the first, so the second is gone
    path = next(store.directory.glob("state-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(SiteError, match="round 0 is damaged"):
        store.recall(first)
    assert Receipt.of(first.tensors()) == first
    assert store.keep(5, {}) == Receipt(5)
    assert store.recall(Receipt(5)) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rounds": 0}, "rounds must be a whole number >= 1; found 0"),
        ({"batch-size": "x"}, "batch-size must be a whole number >= 1; found 'x'"),
        ({"batchsize": 3}, "Did you mean 'batch-size'"),
        (
            {"optimizer": "lion"},
            "optimizer must be one of sgd, adam, adamw, or a reference to your own, FILE.py:NAME; found 'lion'",
        ),
        ({"method": "fedhel"}, "fedheal"),
    ],
)
def test_a_slip_in_the_configuration_is_told(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        Machines(tmp_path, **config).serve()


def test_keys_of_the_apps_own_are_let_be() -> None:
    assert AppSettings.of({"data-path": "/x", "lr": 0.5, "my-own": 3}).lr == 0.5


def test_a_site_without_training_data_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines(tmp_path, lambda node, config: Task(network()))
    with pytest.raises(RunError, match="none"):
        machines.serve()
    assert any("has no training data" in record.getMessage() for record in caplog.records)


def test_rules_of_your_own_run_between_sites(tmp_path: Path) -> None:
    one = federation(KeepHead())
    one.fit(2, progress=False)
    two = in_process(
        network(),
        clients(),
        KeepHead(),
        eq.SGD(0.05, 0.9, 1e-4),
        epochs=2,
        batch_size=8,
        participation=0.8,
        seed=3,
        states=tmp_path,
    )
    two.fit(2, progress=False)
    assert torch.equal(one.progress.vector, two.progress.vector)


def test_a_personal_model_is_not_on_the_server(tmp_path: Path) -> None:
    fed = consortium("ditto-personal", states=tmp_path)
    fed.fit(1, progress=False)
    assert fed.predict(samples(4, 0)[0]).shape == (4,)
    with pytest.raises(ValueError, match=r"kept there as model\.safetensors"):
        fed.predict(samples(4, 0)[0], client=1)


def test_resuming_a_consortium_as_a_simulation_is_refused(tmp_path: Path) -> None:
    consortium("scaffold", states=tmp_path / "states").fit(1, directory=tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError, match="was begun with other data: the training data of the clients"):
        federation("scaffold").resume(tmp_path / "run")


def test_lazy_clients_and_streams_take_part(tmp_path: Path) -> None:
    data = [eq.Lazy(lambda k=k, n=n: samples(n, k), n) for k, n in enumerate(UNEQUAL)]
    fed = consortium("fedprox", data=data, net=network(), states=tmp_path)
    fed.fit(2, progress=False)
    assert identical(fitted("fedavg", 1), fitted("fedavg", 1))
    assert torch.equal(fed.progress.vector, fitted("fedprox", 2).progress.vector)
    assert told(fed)


def test_the_command_line_runs_a_scenario_between_sites(tmp_path: Path) -> None:
    """Killed after its first round, and gone on with; the same records as those of the simulator."""
    kept: list[list[dict[str, Any]]] = []

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 0:
            raise KeyboardInterrupt

    for engine in ("sequential", FLOWER):
        small = {"scenario_options": SIZES, "network": "mlp", "participation": 0.5, "steps": 2}
        config = configure("scaffold", "digits", rounds=2, engine=engine, **small)
        directory = tmp_path / engine
        runs.start(config, directory)
        if engine == FLOWER:
            with pytest.raises(KeyboardInterrupt):
                runs.execute(directory, progress=False, on_round=stop)
        history = runs.execute(directory, progress=False)
        sent = ("seconds", "times", "sent", "losses")  # and what sites keep
        kept.append([{k: v for k, v in r.items() if k not in sent} for r in history.records])
    assert kept[0] == kept[1]
    with pytest.raises(RunError, match=r"with them\. Run it with another engine"):
        runs.trained(tmp_path / FLOWER)


def test_noise_that_protects_is_the_sites_own_and_never_the_same(tmp_path: Path) -> None:
    """Two runs that agree in everything have other noise, which the server's seed does not tell."""
    ends = []
    for name in ("one", "two"):
        machines = Machines(tmp_path / name, method="fedavg+dp(clip=1, noise=1)", rounds=1)
        machines.serve()
        ends.append(checkpoint.read(machines.run / "checkpoint")[0]["vector"])
    one, two = (torch.as_tensor(x) for x in ends)
    assert float((one - two).std()) > 0.5


def test_a_site_can_refuse_every_other_method(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines(tmp_path, method="fedavg")
    machines.client = make_client_app(task, "fedavg+dp(clip=1, noise=1)")
    with pytest.raises(RunError, match="none"):
        machines.serve()
    assert any("the server has method = fedavg" in record.getMessage() for record in caplog.records)


def sums(n: Any = 30, right: Any = 2, loss: float = 5.0) -> dict[str, Any]:
    return {"sums": [n, loss, right, n, n]}


@pytest.mark.parametrize(
    "told",
    others_slow(
        [
            {},
            {"scores": 3},
            {"scores": {}},
            {"scores": {"south": {"sums": 30}}},
            {"scores": {"south": {"sums": ["x"] * 5}}},
            {"scores": {"south": {"sums": [[30.0]] * 5}}},
            {"scores": {"south": {"sums": [10**250] * 5}}},
            {"scores": {"south": sums(right=31)}},
            {"scores": {"south": sums(right=float("nan"))}},
            {"scores": {"south": sums(4)}},
            {"scores": {"south": sums(n=float("inf"))}},
            {"scores": {"south": sums(), "east": sums()}},
            {"scores": {"east": sums(10**9, 0)}},
            {"scores": {"south": {**sums(), "missing": 5}}},
            {"scores": {"south": sums(loss=-1.0)}},
            {"scores": {"south": sums(loss=float("nan"))}},  # though each sample has a prediction
        ],
        fast=(2, 6, 7, 13),
    ),
)
def test_scores_that_cannot_be_used_are_left_out(told: dict[str, Any], tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=1)

    def lies(kind: str, site: str, reply: Message) -> Message:
        return instead(reply, Parcel(told).records()) if kind == "evaluate" and site == "south" else reply

    history = machines.serve(Changed(machines, lies))
    assert list(history.records[0]["groups"]) == ["east", "north"]
    assert history.records[0]["clients"]["accuracy"][2] is None
    assert history.records[0]["groups"]["east"]["accuracy"] > 0
    assert history.records[0]["unmeasured"] == {"south": "sent scores that cannot be used"}


def test_sites_that_share_a_test_set_may_find_a_measure_undefined(tmp_path: Path) -> None:
    """North has one class only, so its area is not defined; that of the others counts, by their samples."""

    def shared(node: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        mine = task(node, config)
        x, y = mine.test if mine.test is not None else samples(2, 0)
        y = y * 0 if node.get("site") == "north" else y
        return replace(mine, test=None if mine.test is None else {"ward": (x, y)}, measures=("accuracy", "auc"))

    found: dict[str, Any] = {}

    def keeps(kind: str, site: str, reply: Message) -> Message:
        if kind == "evaluate":
            found[site] = Parcel.of(reply.content).fields["scores"]["ward"]
        return reply

    machines = Machines(tmp_path, shared, rounds=1)
    pooled = machines.serve(Changed(machines, keeps)).records[0]["groups"]["ward"]
    assert found["north"]["auc"] != found["north"]["auc"]
    assert pooled["auc"] == pytest.approx((found["east"]["auc"] + found["south"]["auc"]) / 2)
    rows = [score["sums"] for score in found.values()]
    assert pooled["accuracy"] == pytest.approx(sum(right / n for n, _, right, *_ in rows) / 3)


@pytest.mark.parametrize(
    "size", others_slow([float("inf"), 2**80, 10**18, 10_000_001, 0, -5, 1.5, "many"], fast=(0, 3, 6))
)
def test_a_site_that_describes_itself_as_no_site_could_stays_outside(size: Any, tmp_path: Path) -> None:
    """A number of samples may decide a weight: there is a largest."""
    machines = Machines(tmp_path, **{"min-sites": 2, "rounds": 1})

    def boasts(kind: str, site: str, reply: Message) -> Message:
        told = {**Parcel.of(reply.content).fields, "size": size}
        return instead(reply, Parcel(told).records()) if kind == "query.describe" and site == "north" else reply

    assert machines.serve(Changed(machines, boasts)).meta["client_names"] == ["east", "south"]


def test_a_size_that_is_too_large_is_said(tmp_path: Path) -> None:
    machines = Machines(tmp_path, **{"max-samples": 5})
    with pytest.raises(RunError, match=r"says that it has \d+ samples, and max-samples is 5"):
        machines.serve()


@pytest.mark.parametrize("loss", [1e30, 1e12])
def test_a_loss_that_nobody_can_have_ends_no_run(loss: float, tmp_path: Path) -> None:
    """AFL gives weight to a high loss; one that is out of range is not used, one within it costs a weight and no more."""
    machines = Machines(tmp_path, method="afl", rounds=2)

    def claims(kind: str, site: str, reply: Message) -> Message:
        change = with_tensor("reports/0/loss", lambda x: x * 0 + loss)
        return (
            instead(reply, change(Parcel.of(reply.content)).records()) if (kind, site) == ("train", "south") else reply
        )

    records = machines.serve(Changed(machines, claims)).records
    for record in records:
        lost = [q["reason"] for q in record.get("quarantined", [])]
        assert lost == (
            ["the report 'loss' holds 1e+30, which no training gives (beyond 1.1e+12)"] if loss > 1e20 else []
        )
        assert sum(record["weights"]) == pytest.approx(1)


def test_the_first_report_does_not_decide_what_a_report_is(tmp_path: Path) -> None:
    """East answers first, with another shape than the two others."""
    machines = Machines(tmp_path, rounds=1)

    def other(kind: str, site: str, reply: Message) -> Message:
        change = with_tensor("reports/0/dc", lambda x: x[:-1])
        return (
            instead(reply, change(Parcel.of(reply.content)).records()) if (kind, site) == ("train", "east") else reply
        )

    machines.nodes.reverse()
    record = machines.serve(Changed(machines, other)).records[0]
    assert record["ids"] == [1, 2]
    assert [q["name"] for q in record["quarantined"]] == ["east"]


@pytest.mark.parametrize("every", others_slow([1, 3], fast=(1,)))
def test_a_server_killed_before_it_saves_finds_the_states_of_its_checkpoint(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has let the sites train and evaluate, for which they make their own models, and has not written that down."""

    def make() -> Any:
        return consortium("ditto-personal", states=tmp_path / "states", tests={"t": samples(30, 8)}, participation=1.0)

    whole = consortium("ditto-personal", states=tmp_path / "whole", tests={"t": samples(30, 8)}, participation=1.0)
    whole.fit(6, directory=tmp_path / "one", progress=False)
    fed = make()
    test = Consortium.test

    def killed(consortium: Consortium, e: Any, tests: Any, now: Any, rounds: int) -> Any:
        test(consortium, e, tests, now, rounds)
        if now.t == 5:
            raise KeyboardInterrupt
        return test(consortium, e, tests, now, rounds)

    with monkeypatch.context() as patched:
        patched.setattr(Consortium, "test", killed)
        with pytest.raises(KeyboardInterrupt):
            fed.fit(6, directory=tmp_path / "run", progress=False, checkpoint_every=every)
    again = make()
    again.fit(again.resume(tmp_path / "run"), directory=tmp_path / "run", progress=False)
    one, two = ([{k: v for k, v in r.items() if k != "sent"} for r in told(f)] for f in (whole, again))
    assert one == two


def grid_of(fed: eq.Federation) -> Any:
    assert isinstance(fed.population, Consortium)
    return fed.population.sites.exchange.grid


def test_parts_that_are_private_are_not_sent_after_training_alone(tmp_path: Path) -> None:
    """What each site reaches alone is measured where that needs no part of a model that must stay at home."""
    sent: list[Parcel] = []
    fed = consortium(
        "scaffold+fedbn", kind="batchnorm", states=tmp_path, tests={"t": samples(30, 8)}, collaborative=True
    )
    answered = grid_of(fed)._answered

    def keeps(message: Message) -> Message:
        reply: Message = answered(message)
        if message.metadata.message_type == "train.alone":
            sent.append(Parcel.of(reply.content))
        return reply

    grid_of(fed)._answered = keeps
    alone = fed.standalone(1)
    assert len(sent) == len(UNEQUAL)
    assert not any(parcel.tensors for parcel in sent)
    assert alone["standalone_val"] is None
    assert all(0 <= x <= 1 for x in alone["standalone_test"])
    with pytest.raises(RunError, match="has no model to measure"):
        consortium("fedsac+fedbn", kind="batchnorm", states=tmp_path / "b").standalone(1)


def test_sites_average_what_they_reach_alone_themselves(tmp_path: Path) -> None:
    given: Any = {"tests": {"t": samples(30, 8)}, "collaborative": True, "contribution_rounds": 2}
    alone = consortium("fedavg", states=tmp_path / "a", **given).standalone(3)
    simulated = federation("fedavg", **given).standalone(3, progress=False)
    assert alone["standalone_test"] == pytest.approx(simulated["standalone_test"])
    assert (alone["averaged"], alone["standalone_val"]) == (2, None)
    with pytest.raises(RunError, match=r"contribution_rounds=2: .*the last of its models only"):
        consortium("fedsac", states=tmp_path / "b", contribution_rounds=2).standalone(3)


def test_an_accuracy_that_is_none_is_told_by_its_site(tmp_path: Path) -> None:
    fed = consortium("fedavg", states=tmp_path, tests={"t": samples(30, 8)}, server_validation=None)
    answered = grid_of(fed)._answered
    for sums in (
        [[30, 9.0, 31, 30, 30]],
        [[30, 9.0, 20, 30]],
        [[29, 9.0, 20, 29, 29]],
        [[30, 9.0, 20, 30, 30]] * 2,
        [],
        5,
    ):
        told = Parcel({"tallies": sums}).records()
        grid_of(fed)._answered = lambda message, told=told: instead(answered(message), told)
        with pytest.raises(
            RunError, match=r"client-0 reaches alone is not known: .*no scores of its tests that can be"
        ):
            fed.standalone(1)


def test_a_node_that_never_says_what_it_is_is_asked_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody waits for it each time."""
    machines = Machines(tmp_path, deadline=0.01, **{"min-sites": 2})
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += max(seconds, 1e-3)

    monkeypatch.setattr("equipoise.flower.server.sites.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("equipoise.flower.server.sites.time.sleep", sleep)
    asked: list[float] = []

    def hangs(kind: str, site: str, reply: Message) -> Message:
        if kind == "query.describe" and site == "south":
            asked.append(clock[0])
            return lost(reply)
        return reply

    told = description(Method.of("fedavg"), eq.SGD(), eq.Settings(batch_size=8), (), "x")
    roster = Sites(Exchange(Changed(machines, hangs), told, deadline=0.01))
    roster.gather(2, (), 1.0)
    while clock[0] < 3600:
        roster.meet()
        clock[0] += 10
    gaps = [round(b - a) for a, b in itertools.pairwise(asked)]
    assert 60 <= gaps[0] < gaps[1] < gaps[2]
    assert max(gaps) <= 620


def test_what_waited_in_vain_may_be_started_with_other_settings(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least 4"):
        Machines(tmp_path, method="fedavg", **{"min-sites": 4}).serve()
    Machines(tmp_path, rounds=1).serve()
    with pytest.raises(
        RunError,
        match=r"other settings: rounds is 1 there and 2 here\. Choose another run-dir, such as --config 'run-dir=.runs/two.', or delete it",
    ):
        Machines(tmp_path, rounds=2).serve()


def test_a_run_older_than_a_setting_had_its_default(tmp_path: Path) -> None:
    machines = Machines(tmp_path, rounds=1)
    machines.serve()
    path = machines.run / "config.toml"
    older = [line for line in path.read_text().splitlines()[1:] if not line.startswith("contribution_rounds")]
    path.write_text("\n".join(older))
    assert len(machines.serve()) == 1
    assert "contribution_rounds = 1" in path.read_text()


def test_the_threads_of_a_notebook_are_as_they_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    Machines(tmp_path, rounds=1, threads=before + 1).serve()
    assert torch.get_num_threads() == before


def test_a_site_that_was_killed_and_is_back_is_known_at_once(tmp_path: Path) -> None:
    """Its old node is counted as connected for a while, and answers nothing."""
    machines = Machines(tmp_path, rounds=2, deadline=0.05)
    grid = machines.grid()
    dead: list[int] = []
    serve = grid.push_messages

    def push(messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        if pushed and pushed[0].metadata.message_type == "evaluate" and not dead:
            dead.append(3)
            grid.contexts[99] = Context(99, 99, grid.contexts[3].node_config, RecordDict(), machines.config)
        numbers = serve(pushed)
        for message, number in zip(pushed, numbers, strict=True):
            if message.metadata.dst_node_id in dead:
                del grid._queue[number]
        return numbers

    grid.push_messages = push  # type: ignore[method-assign]
    history = machines.serve(grid)
    assert history.meta["client_names"][0] == "east"  # the third node
    assert [record["ids"] for record in history.records] == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("configured", "given", "unit"),
    [
        ("regression(centre=100, scale=60, unit=EUR)", "classification", "EUR"),
        ("regression(centre=100, scale=60)", "classification", ""),
        (
            "regression(centre=100, scale=60, loss=huber, unit=kg)",
            "regression(centre=100, scale=60, loss=huber, unit=kg)",
            "kg",
        ),
        ("", "regression(centre=100, scale=60, unit=years)", "years"),
    ],
)
def test_a_run_of_numbers_between_sites_reads_its_own_record(
    configured: str, given: str, unit: str, tmp_path: Path
) -> None:
    """To its end: summary, report, models of the sites; also when it is read again, or resumed."""

    def task(node: Mapping[str, Any], _: Mapping[str, Any]) -> Task:
        net = eq.network("mlp", (4,), 1, seed=0)
        if "site" not in node:
            return Task(net, task=given)
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(int(node["data-number"])))
        y = 100 + 60 * x[:, 0].double()
        return Task(net, train=(x[:25], y[:25]), test=(x[25:], y[25:]), task=given)

    machines = Machines(tmp_path, task, config={"method": "fedavg", "task": configured})
    first = machines.serve()
    again = machines.serve()
    for history in (first, again, History.from_run(machines.run)):
        assert history.meta["task"] == "regression"
        assert history.meta.get("unit", "") == unit
        assert history.main.name == "rmse"
        assert history.main.unit == unit
        assert history.records == first.records
    assert open_json((machines.run / "summary.json").read_text())["task"] == "regression"
    page = first.report(tmp_path / "report.html").read_text()
    assert f"of the global model on sites{unit and f' in {unit}'}, mean over" in page
    assert (machines.run / "report.html").exists()
    states = machines.directory / "states"
    assert len([*states.glob("*/*/model.safetensors")]) == 3
    take(states, tmp_path / "bundle", run=f"{next(states.glob('*/')).name}/north")
    predicted = eq.load(tmp_path / "bundle").predict(
        torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).numpy()
    )
    assert abs(predicted.mean() - 100) < 60
    assert 20 < predicted.std() < 120  # in the unit of the target


@pytest.mark.parametrize("make", [eq.Federation, in_process], ids=["simulated", "in process"])
@in_one(
    ("change", "message"),
    [
        ({"names": ["a"]}, "found 2 clients and 1 different names"),
        ({"names": ["a", "b", "b"]}, "found 2 clients and 2 different names among 3"),
        ({"names": "ab"}, "names must be a list"),
        ({"solver": 3}, "solver must be one of equipoise"),
        ({"groups": ["a"]}, "groups must name one test set per client .*found 1 entries"),
        ({"groups": ["a", "c"], "tests": {"a": (torch.zeros(2, 3), torch.tensor([0, 1]))}}, "found unknown c"),
        ({"strange": 1}, "Unknown keyword 'strange'"),
    ],
)
def test_clients_in_this_process_are_checked_as_those_of_a_simulation(
    make: Any, change: dict[str, Any], message: str
) -> None:
    clients = [(torch.zeros(2, 3), torch.tensor([0, 1]))] * 2
    with pytest.raises((ValueError, TypeError), match=message) as refused:
        make(nn.Linear(3, 2), clients, "fedavg", **change)
    names = str(refused.value).partition("All: ")[2].rstrip(".").split(", ")
    assert len(names) == len({*names})
