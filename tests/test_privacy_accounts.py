"""What deployed runs cost: the count from a run's records, and the account and the budget that a site keeps for itself."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import math
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.federation.guard import QuorumError
from equipoise.federation.method import Method
from equipoise.privacy import accounting
from equipoise.privacy.accounting import ACCOUNT, account, spend, together
from equipoise.system.errors import RunError, SiteError
from helpers import network, samples
from run_helpers import equipoise

pytest.importorskip("flwr")

from flwr.app import Error, Message

from equipoise.flower.app import make_client_app, serve
from equipoise.flower.codec import Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.server.consortium import description, federation
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.settings import AppSettings
from equipoise.flower.site import site as site_module
from equipoise.flower.site.task import Task

NAMES = ("east", "north", "south")  # clients 0, 1, 2
SPENT = "refuses: its privacy budget is spent"
DP = "fedavg+dp(noise=2)"


# the account
def node(directory: Path, epsilon: Any = 1e9, **more: Any) -> dict[str, Any]:
    return {"state-dir": str(directory), "max-epsilon": epsilon, **more}


@pytest.mark.parametrize(("noise", "most"), [(2.0, 1), (1.1, 3), (30.0, 7)])
def test_as_many_answers_as_the_budget_pays_for(noise: float, most: int, tmp_path: Path) -> None:
    own = node(tmp_path, accounting.spent(noise, most, 1e-6), delta=1e-6)
    for _ in range(most):
        assert spend(own, noise)
    before = (tmp_path / ACCOUNT).read_bytes()
    for _ in range(2):
        with pytest.raises(SiteError, match=f"^{SPENT}$"):
            spend(own, noise)
    assert (tmp_path / ACCOUNT).read_bytes() == before
    assert account(tmp_path / ACCOUNT) == {noise: most}
    assert together({noise: most}, 1e-6) == pytest.approx(accounting.spent(noise, most, 1e-6), rel=1e-12)
    assert spend(
        node(tmp_path, accounting.spent(noise, most + 1, 1e-6), delta=1e-6), noise
    )  # the owner allows one more


def test_answers_with_several_noises_against_numerical_composition(tmp_path: Path) -> None:
    import dp_accounting
    from dp_accounting import pld

    given = {6.0: 2, 10.0: 3, 25.0: 1}
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(z / 2), n) for z, n in given.items()]
    )
    found = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    assert together(given, 1e-5) == pytest.approx(found, rel=1e-3)
    for z, n in given.items():
        for _ in range(n):
            spend(node(tmp_path), z)
    assert account(tmp_path / ACCOUNT) == given
    assert together({}, 1e-5) == 0.0
    with pytest.raises(SiteError, match=SPENT):
        spend(node(tmp_path, together({**given, 8.0: 1}, 1e-5) * 0.999), 8.0)


def test_the_account_is_its_owner_s_and_is_written_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = node(tmp_path / "not" / "there")
    path = tmp_path / "not" / "there" / ACCOUNT
    spend(own, 2.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before, synced = path.read_bytes(), []

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        spend(own, 2.0)
    assert path.read_bytes() == before
    monkeypatch.setattr("os.fsync", synced.append)
    spend(own, 2.0)
    assert account(path) == {2.0: 2}
    assert len(synced) == 2  # the file, and the directory that has its name


def test_no_answer_is_missing_where_several_count_at_once(tmp_path: Path) -> None:
    own, outcomes = node(tmp_path, accounting.spent(2.0, 5, 1e-5)), []

    def several() -> None:
        for _ in range(2):
            try:
                outcomes.append(spend(own, 2.0))
            except SiteError:
                outcomes.append(False)

    threads = [threading.Thread(target=several) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == 3 * [False] + 5 * [True]
    assert account(tmp_path / ACCOUNT) == {2.0: 5}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: b"{}",
        lambda text: b'{"answers": []}',
        lambda text: b"\xff\xfe",
        lambda text: text[:-9],
        lambda text: text.replace(b"3", b"1"),
        lambda text: text + b" ",
    ],
)
def test_a_damaged_account_is_never_begun_anew(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / ACCOUNT
    for _ in range(3):
        spend(node(tmp_path), 2.5)
    path.write_bytes(damaged := damage(path.read_bytes()))
    for new in (0, 1):
        with pytest.raises(SiteError, match=r"refuses: The account of privacy, account\.json .* is damaged"):
            spend(node(tmp_path), 2.5, new)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"max-epsilon": 0}, "max-epsilon must be > 0 and finite; found 0"),
        ({"max-epsilon": "8"}, "max-epsilon must be a number > 0 and finite; found '8'"),
        ({"max-epsilon": True}, "max-epsilon must be a number > 0 and finite; found True"),
        ({"max-epsilon": math.nan}, "max-epsilon must be > 0 and finite; found nan"),
        ({"max-epsilon": math.inf}, "max-epsilon must be > 0 and finite; found inf"),
        ({"max-epsilon": 3.0, "delta": 0}, r"delta must be in \(0, 1\); found 0"),
        ({"max-epsilon": 3.0, "delta": "1e-5"}, r"delta must be a number in \(0, 1\); found '1e-5'"),
        ({"max-epsilon": 3.0, "state-dir": ""}, "needs noise of its own .* and state-dir"),
        ({"max-epsilon": -3.0}, r"max-epsilon must be > 0 and finite; found -3\.0"),
    ],
)
def test_a_budget_that_is_none(own: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=words):
        spend({"state-dir": str(tmp_path), **own}, 2.0)
    assert list(tmp_path.iterdir()) == []


def test_who_sets_no_budget_has_no_account(tmp_path: Path) -> None:
    assert not spend({"state-dir": str(tmp_path), "delta": "of my own"}, 0.0)
    assert list(tmp_path.iterdir()) == []


# sites with a budget
def task(own: Mapping[str, Any], _: Mapping[str, Any]) -> Task:
    if "site" not in own:
        return Task(network())
    k = (*NAMES, "west").index(str(own["site"]))
    return Task(
        network(str(own.get("data-net", "mlp"))), samples(12, k), None if own.get("data-untested") else samples(20, 7)
    )


class Lossy(InProcessGrid):
    """A grid whose messages may be lost or changed: ``meddle(kind, site, t)`` gives what is answered in place of the site."""

    meddle: Callable[[str, str, str], Any] = staticmethod(lambda kind, site, t: None)
    away: Callable[[], Iterable[str]] = staticmethod(lambda: ())

    def get_nodes(self) -> Any:
        gone = set(self.away())
        return [n for n in super().get_nodes() if self.contexts[n.node_id].node_config["site"] not in gone]

    def _answered(self, message: Message) -> Message:
        reply = super()._answered(message)
        site = str(self.contexts[message.metadata.dst_node_id].node_config["site"])
        other = self.meddle(message.metadata.message_type, site, message.metadata.group_id)
        if callable(other):
            other = other(Parcel.of(reply.content)).records()
        if other is None:
            return reply
        changed = Message(other, reply_to=reply)
        changed.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return changed


GONE = Error(2, "gone")


class Consortium:
    """Three sites, each with a state directory of its own, and what a server asks them to do."""

    def __init__(self, base: Path, own: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.base = base
        self.nodes = {
            n: {
                "site": n,
                "state-dir": str(base / "states" / n),
                "least-sites": 2,
                "least-group": 1,
                **(own or {}).get(n, {}),
            }
            for n in NAMES
        }
        self.grid: InProcessGrid | None = None

    def run(
        self,
        name: str = "run",
        method: str = DP,
        rounds: int = 2,
        *,
        meddle: Any = None,
        away: Any = None,
        simulated: bool = False,
        **settings: Any,
    ) -> eq.History:
        config = {
            "method": method,
            "rounds": rounds,
            "batch-size": 8,
            "min-sites": 3,
            "wait": 0.01,
            "deadline": 5.0,
            "poll": 0.001,
            "run-dir": str(self.base / name),
            "quorum": 0.3,
            **{key.replace("_", "-"): value for key, value in settings.items()},
        }
        app = make_client_app(task, simulated=simulated)  # another process
        grid = Lossy(app, list(self.nodes.values()), config)
        grid.meddle, grid.away = meddle or grid.meddle, away or grid.away
        return serve(grid, Task(network()), AppSettings.of(config))

    def answers(self, site: str = "south") -> dict[float, int]:
        return account(self.base / "states" / site / ACCOUNT)


def left_out(history: eq.History) -> list[dict[str, str]]:
    return [{q["name"]: q["reason"] for q in record.get("quarantined", [])} for record in history.records]


@pytest.mark.parametrize("secure", [False, True])
def test_a_budget_holds_across_experiments_and_processes(secure: bool, tmp_path: Path) -> None:
    """Three answers, of two experiments, each process new; then the site is left out and the others go on."""
    sites = Consortium(tmp_path, {"south": {"max-epsilon": accounting.spent(2.0, 3, 1e-5)}})
    first = sites.run("one", rounds=2, secure=secure)
    second = sites.run("two", rounds=3, secure=secure)
    assert left_out(first) == [{}, {}]
    assert left_out(second) == [{}, {"south": SPENT}, {"south": SPENT}]
    assert [record["ids"] for record in second.records] == [[0, 1, 2], [0, 1], [0, 1]]
    assert sites.answers() == {2.0: 3}
    assert sites.answers("east") == {}
    assert list((tmp_path / "states" / "east").rglob(ACCOUNT)) == []
    assert accounting.answers(second.records) == {0: 3, 1: 3, 2: 1}  # by the records of the server, too
    assert second.records[0]["clients"]["accuracy"][2] is not None
    assert second.records[2]["clients"]["accuracy"][2] is None  # it measures the models of its own rounds only


def test_a_run_whose_sites_have_all_spent_their_budgets_stops(tmp_path: Path) -> None:
    most = accounting.spent(2.0, 1, 1e-5)
    sites = Consortium(tmp_path, {n: {"max-epsilon": most} for n in NAMES})
    with pytest.raises(QuorumError, match=SPENT):
        sites.run(rounds=2)
    assert len(eq.History.from_run(tmp_path / "run")) == 1


def test_other_noise_counts_for_what_it_is_worth(tmp_path: Path) -> None:
    sites = Consortium(tmp_path, {"south": {"max-epsilon": together({2.0: 1, 8.0: 2}, 1e-3), "delta": 1e-3}})
    sites.run("one", rounds=1)
    history = sites.run("two", "dp(clip=3, noise=8)+moon", rounds=3)
    assert left_out(history) == [{}, {}, {"south": SPENT}]
    assert sites.answers() == {2.0: 1, 8.0: 2}


def test_an_answer_counts_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site dies after it has counted; nothing was sent, and it counts. A message that it cannot use costs nothing."""
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9}})
    visited = site_module._visited

    def dies(site: Any, job: Any) -> Any:
        if site.trial.names == ("south",):
            raise KeyboardInterrupt
        return visited(site, job)

    with monkeypatch.context() as patch:
        patch.setattr(site_module, "_visited", dies)
        with pytest.raises(KeyboardInterrupt):
            sites.run("one", rounds=1)
    assert sites.answers() == {2.0: 1}
    (tmp_path / "states" / "south" / ACCOUNT).unlink()
    state = sites.run(
        "two", rounds=1, meddle=lambda kind, site, t: GONE if (kind, site) == ("train", "south") else None
    )
    assert left_out(state) == [{"south": "failed; the site's log says why"}]
    assert sites.answers() == {2.0: 1}  # it was sent, and lost on the way


def test_without_a_writable_disk_nothing_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9}})

    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(accounting, "write_atomically", full)
    assert left_out(sites.run(rounds=1)) == [{"south": "failed with OSError; its own log says more"}]
    assert sites.answers() == {}


def masked_round(sites: Consortium, meddle: Any = None) -> eq.Federation:
    """The first round of one and the same experiment, by a server that remembers nothing."""
    told = description(Method.of(DP), eq.SGD(0.1), eq.Settings(batch_size=8), ("accuracy",), "trial")
    grid = Lossy(make_client_app(task), list(sites.nodes.values()), {})
    grid.meddle = meddle or grid.meddle
    there = Sites(Exchange(grid, told, deadline=5.0, poll=0.001))
    there.gather(3, [], 0.0)
    settings = eq.Settings(batch_size=8, quorum=0.3)
    fed = federation(Task(network()), there, DP, eq.SGD(0.1), settings=settings, secure=True)
    fed.fit(1, progress=False)
    return fed


def test_the_same_masked_answer_again_costs_nothing(tmp_path: Path) -> None:
    """After a site dropped out, and when a server that was stopped does the round again."""
    sites = Consortium(tmp_path, {n: {"max-epsilon": accounting.spent(2.0, 1, 1e-5)} for n in NAMES})
    asked: list[tuple[str, str]] = []

    def drops(kind: str, site: str, t: str) -> Any:
        asked.append((kind, site))
        return GONE if (kind, site) == ("train.sum", "east") else None

    one = masked_round(sites, drops)
    assert asked.count(("train.sum", "south")) == 2
    assert asked.count(("train.masked", "south")) == 1
    assert one.records[0]["ids"] == [1, 2]
    two = masked_round(sites, lambda kind, site, t: GONE if site == "east" and kind == "query.keys" else None)
    assert torch.equal(one.progress.vector, two.progress.vector)
    for site in NAMES:
        assert sites.answers(site) == {2.0: 1}
    assert accounting.answers(one.records) == {0: 1, 1: 1, 2: 1}


# what a budget does not allow
@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("fedavg", {}, "needs noise of its own"),
        ("scaffold", {}, "needs noise of its own"),
        ("dp(noise=0)", {}, "needs noise of its own"),
        (DP, {"simulated": True}, "needs noise of its own"),
        (DP, {"validation": 0.3}, r"allows no scores on training data \(validation\)"),
        ("ditto-personal+dp", {}, "allows no scores on its test data of a model that is partly its own"),
    ],
)
def test_nothing_of_the_training_data_is_sent_without_noise(
    method: str, settings: dict[str, Any], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Said at the first message, before anything is sent; without a budget the same run is nobody's business."""
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9}})
    with pytest.raises(RunError, match=f"refuses: max-epsilon.*{words}"):
        sites.run(method=method, **settings)
    assert sites.answers() == {}
    del sites.nodes["south"]["max-epsilon"]
    assert left_out(sites.run(method=method, rounds=1, **settings)) == [{}]


def test_a_site_without_test_data_may_keep_a_part_of_its_model(tmp_path: Path) -> None:
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9, "data-untested": True}})
    assert left_out(sites.run(method="ditto-personal+dp", rounds=1)) == [{}]
    assert sites.answers() == {1.0: 1}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"max-epsilon": -1}, "south.* refuses: its node-config cannot be used"),
        ({"max-epsilon": "four"}, "south.* refuses: its node-config cannot be used"),
        ({"max-epsilon": 3, "delta": 1.5}, "south.* refuses: its node-config cannot be used"),
        ({"max-epsilon": 3, "state-dir": ""}, "south.* refuses: max-epsilon needs .*state-dir"),
    ],
)
def test_a_slip_in_a_budget_is_said_at_the_first_message(own: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=words) as refused:
        Consortium(tmp_path, {"south": own}).run(state_dir=str(tmp_path / "of-the-server"))
    assert not any(value in str(refused.value) for value in ("found", "four", "1.5"))  # the site's own log has them
    assert not list(tmp_path.rglob(ACCOUNT))


def test_a_damaged_account_keeps_a_site_out(tmp_path: Path) -> None:
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9}})
    sites.run("one", rounds=1)
    path = tmp_path / "states" / "south" / ACCOUNT
    path.write_text(path.read_text().replace("2.0", "9.0"))
    with pytest.raises(RunError, match=r"south.* refuses: The account of privacy, account\.json .* is damaged"):
        sites.run("two", rounds=1)


def test_without_the_accountant_a_budget_keeps_a_site_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9}})
    with pytest.raises(
        RunError, match=r"south.* refuses: The privacy accountant is not installed.*equipoise\[privacy\]"
    ):
        sites.run(rounds=1)
    assert not list(tmp_path.rglob(ACCOUNT))


def test_no_other_message_depends_on_the_training_data(tmp_path: Path) -> None:
    """What a site says besides its updates is the same for any other data of as many samples, whatever the server asks."""
    said = []
    for k in (1, 2):
        data = samples(12, k), samples(20, 7)
        app = make_client_app(lambda own, _, data=data: Task(network(), *data))
        grid = InProcessGrid(app, [{"site": "south", **node(tmp_path / str(k))}], {})
        told = description(Method.of("moon+dp"), eq.SGD(0.1), eq.Settings(batch_size=8), ("accuracy",), "trial")
        start = network()
        vector = torch.cat([p.detach().flatten() for p in start.parameters()])
        fields = {"client": 0, "t": 0, "rounds": 2, "receipt": [-1, "0" * 64], "saved": [], "model": {}, "cut": {}}
        parcel = Parcel(
            {**fields, "own": True, "deploys": True, "measures": ["accuracy"], "experiment": told, "first": True},
            {"model/values": vector, "initial": vector},
        )
        kinds = ("train", "query.describe", "evaluate", "evaluate.validation", "train.alone", "query.finish")
        found: dict[str, Any] = {}
        for kind in kinds:
            after = replace(
                parcel, fields={**parcel.fields, "t": 1, "own": False}
            )  # only of the model that follows a round it counted in
            asked = after if kind == "evaluate" else parcel
            (number,) = grid.push_messages([Message(asked.records(), 1, kind, group_id="0")])
            (reply,) = grid.pull_messages([number])
            answer = Parcel.of(reply.content)
            if kind != "train":
                found[kind] = answer.fields, {name: x.tolist() for name, x in answer.tensors.items()}
        said.append(found)
    assert said[0] == said[1]
    assert said[0]["train.alone"][0]["error"] == "does not send a model that nothing protects"
    assert "error" not in said[0]["evaluate"][0]
    assert said[0]["query.describe"][0]["size"] == 12


# counted from a run
def rows(equipoise: Any, *words: Any) -> Any:
    ended = equipoise("privacy", *words, "--json")
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


@pytest.mark.parametrize("secure", [False, True])
def test_the_command_counts_by_site(secure: bool, tmp_path: Path, equipoise: Any) -> None:
    """Late or refused by the guard: it may have been sent. Not connected, or refused by the site: nothing was."""
    kind = "train.sum" if secure else "train"

    tested: list[str] = []

    def meddle(of: str, site: str, t: str) -> Any:
        tested.extend([t] * (of == "evaluate"))
        if of == kind and site == "east" and t == "1":
            return GONE
        if of == kind and site == "north" and t == "0":
            return lambda parcel: replace(parcel, tensors={name: x[:-1] for name, x in parcel.tensors.items()})
        return None

    sites = Consortium(tmp_path, {"south": {"max-epsilon": accounting.spent(2.0, 3, 1e-5)}})
    history = sites.run(rounds=5, meddle=meddle, away=lambda: ["north"] * (not secure and "4" in tested), secure=secure)
    why = left_out(history)
    assert why[0]["north"].startswith("sent an unusable answer")
    assert why[1] == {"east": "failed; the site's log says why"}
    assert why[-1] == {"south": SPENT} | ({} if secure else {"north": "is not connected"})  # a masked sum takes two
    assert why[2:4] == [{}, {"south": SPENT}]
    found = rows(equipoise, tmp_path / "run")
    assert {row["site"]: row["answers"] for row in found} == {"east": 5, "north": 4 + secure, "south": 3}
    for row in found:
        assert row["noise"] == 2
        assert row["epsilon"]["replace"] == pytest.approx(accounting.spent(2, row["answers"], 1e-5))
    ended = equipoise("privacy", tmp_path / "run", "--delta", "1e-6")
    assert ended.status == 0
    assert [line.split()[:2] for line in ended.out.splitlines()[1:4]] == [
        ["east", "5"],
        ["north", str(4 + secure)],
        ["south", "3"],
    ]


def test_a_site_that_goes_away_after_its_masked_answer_has_given_it(tmp_path: Path) -> None:
    """East drops out of the first sum, and south is away when a second one is asked for."""
    sites, asked = Consortium(tmp_path), list[str]()

    def drops(kind: str, site: str, t: str) -> Any:
        asked.append(kind)
        return GONE if (kind, site) == ("train.sum", "east") else None

    sites.nodes["west"] = {**sites.nodes["east"], "site": "west", "state-dir": str(tmp_path / "states" / "west")}
    away = lambda: ["south"] * ("train.sum" in asked)  # noqa: E731
    history = sites.run(rounds=1, meddle=drops, away=away, secure=True, min_sites=4)
    assert left_out(history)[0]["south"] == "sent a masked vector earlier, and now is not connected"
    assert accounting.answers(history.records) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_rounds_that_were_begun_in_vain_may_have_cost_an_answer(tmp_path: Path, equipoise: Any) -> None:
    """They are not in the records: all sites answered, none could be used, and the server stopped."""
    sites = Consortium(tmp_path, {"south": {"max-epsilon": 1e9}})

    def fails(kind: str, site: str, t: str) -> Any:
        return GONE if kind == "train" and t == "1" else None

    for _ in range(2):
        with pytest.raises(QuorumError):
            sites.run(rounds=3, meddle=fails)
    assert [row["answers"] for row in rows(equipoise, tmp_path / "run")] == [3, 3, 3]
    assert sites.answers() == {2.0: 3}
    sites.run(rounds=3)
    assert [row["answers"] for row in rows(equipoise, tmp_path / "run")] == [5, 5, 5]
    assert sites.answers() == {2.0: 5}
    sites.run(rounds=3)  # a finished run asks nobody
    assert [row["answers"] for row in rows(equipoise, tmp_path / "run")] == [5, 5, 5]


def test_the_command_needs_noise_in_the_run(tmp_path: Path, equipoise: Any) -> None:
    Consortium(tmp_path).run(method="fedavg", rounds=1)
    ended = equipoise("privacy", tmp_path / "run")
    assert ended.status == 2
    assert "its method fedavg adds no noise" in ended.err


def test_noise_is_found_beside_rules_that_are_not_known_here(tmp_path: Path, equipoise: Any) -> None:
    Consortium(tmp_path).run(method="fedavg+dp(noise=1e+1)", rounds=1)
    config = tmp_path / "run" / "config.toml"
    text = config.read_text().split("\n", 1)[1]
    config.write_text(text.replace('method = "fedavg+dp', 'method = "Mine(a=2)+dp'))
    assert "Mine(a=2)+dp" in config.read_text()
    assert {row["noise"] for row in rows(equipoise, tmp_path / "run")} == {10.0}


def test_the_command_shows_a_site_its_own_account(tmp_path: Path, equipoise: Any) -> None:
    for noise in (2.0, 2.0, 8.0):
        spend(node(tmp_path), noise)
    (row,) = rows(equipoise, tmp_path, "--epsilon", "30")
    given = {2.0: 2, 8.0: 1}
    assert row["answers"] == {"2.0": 2, "8.0": 1}
    assert row["epsilon"] == {r: pytest.approx(together(given, 1e-5, r)) for r in accounting.SENSITIVITY}
    assert row["left"] == pytest.approx(30 - together(given, 1e-5))
    assert "left" not in rows(equipoise, tmp_path)[0]
    assert "answers, 8.0" in equipoise("privacy", tmp_path).out
    (tmp_path / ACCOUNT).write_text("{}")
    ended = equipoise("privacy", tmp_path)
    assert ended.status == 2
    assert "is damaged" in ended.err
