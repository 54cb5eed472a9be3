"""The commands that keep a federation going: what they say and do, with answers recorded from a real SuperLink."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise.flower.deploy import checks, superlink
from equipoise.flower.deploy.certificates import days_left, make_certificates, problems, read
from equipoise.flower.deploy.checks import CheckResult
from equipoise.flower.secagg import sums
from equipoise.flower.site.store import Store
from equipoise.records.record import lines as record_lines
from equipoise.runs.status import run_status
from equipoise.system.claims import claimed
from equipoise.system.errors import InputError
from run_helpers import equipoise

__all__ = ["equipoise"]

NODES = """{"nodes_info": [
 {"node_id": "1450765179807468549", "owner_aid": "<id:none>", "owner_name": "none", "status": "unregistered",
  "registered_at": "2026-11-25T07:19:30.581279+00:00", "last_activated_at": "2026-11-25T07:19:48.130296+00:00",
  "unregistered_at": "2026-11-25T07:19:57.551096+00:00", "online_until": 1795591197.551096,
  "heartbeat_interval": 30.0, "public_key": "LS0t", "name": "removed"},
 {"node_id": "8042019806644451464", "owner_aid": "<id:none>", "owner_name": "none", "status": "online",
  "registered_at": "2026-11-25T07:08:11.561296+00:00", "last_activated_at": "2026-11-25T07:08:32.330435+00:00",
  "online_until": 1795591248.438541, "heartbeat_interval": 30.0, "public_key": "LS0t", "name": "site-0"},
 {"node_id": "11261304073110380635", "owner_aid": "<id:none>", "owner_name": "none", "status": "offline",
  "registered_at": "2026-11-25T07:08:17.561296+00:00", "last_activated_at": "2026-11-25T07:08:33.330435+00:00",
  "last_deactivated_at": "2026-11-25T07:31:48.330435+00:00", "online_until": 1795591248.438541,
  "heartbeat_interval": 30.0, "public_key": "LS0t", "name": "site-1"},
 {"node_id": "6421079670476600102", "owner_aid": "<id:none>", "owner_name": "none", "status": "registered",
  "registered_at": "2026-11-25T07:33:17.561296+00:00", "heartbeat_interval": 30.0, "public_key": "LS0t",
  "name": "late-comer"}
 ], "now": "2026-11-25T07:34:02.247519+00:00"}"""
RUNS = """{"success": true, "runs": [
 {"run-id": "16608653772611792496", "federation-id": "@none/default", "fab-id": "me/app", "fab-name": "app",
  "fab-version": "0.1.0", "fab-hash": "deaf3521", "status": "running", "status-details": "N/A", "elapsed": 337.727003,
  "pending-at": "2026-11-25 07:09:16Z", "starting-at": "2026-11-25 07:09:17Z", "running-at": "2026-11-25 07:09:21Z",
  "finished-at": "N/A", "network-traffic": {"inbound-bytes": 44131, "outbound-bytes": 82599, "total-bytes": 126730}},
 {"run-id": "14095837860935894700", "federation-id": "@none/default", "fab-id": "me/app", "fab-name": "app",
  "fab-version": "0.1.0", "fab-hash": "deaf3521", "status": "finished:stopped", "status-details": "N/A", "elapsed": 3.7,
  "pending-at": "2026-11-25 06:09:16Z", "starting-at": "2026-11-25 06:09:17Z", "running-at": "2026-11-25 06:09:21Z",
  "finished-at": "2026-11-25 07:14:59Z"}
]}"""


class Link:
    """Answers of a SuperLink with two sites and a run that goes on and one that ended; what was asked is remembered."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.nodes, self.runs = json.loads(NODES), json.loads(RUNS)

    def call(self, *words: str, patience: float = 0.0, script: str = "") -> dict[str, Any]:
        self.asked.append(words)
        return {"ls": self.runs, "supernode": self.nodes if script else {"success": True}, "stop": {}}[words[0]]

    @property
    def changed(self) -> list[tuple[str, ...]]:
        return [words for words in self.asked if words[:2] != ("supernode", "list") and words[0] != "ls"]


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(checks, "reach", lambda name: CheckResult("", name == "it", f"there is no {name}"))
    monkeypatch.setattr(superlink.SuperLink, "call", lambda self, *words, **more: made.call(*words, **more))
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twelve rounds of sixty, of three sites: one late in the last two rounds, one removed since."""
    base = tmp_path / "run"
    base.mkdir()
    (base / "config.toml").write_text('method = "fedheal"\nrounds = 60\nscenario = "sites"\n')
    (base / "sites.json").write_text(json.dumps({"sites": [{"name": n} for n in ("site-0", "site-1", "gone")]}))
    (base / "metrics.jsonl").write_text("".join(record_lines(map(record, range(12)))))
    return base


def record(t: int) -> dict[str, Any]:
    made: dict[str, Any] = {"round": t, "ids": [0, 1, 2], "weights": [0.4, 0.3, 0.3]}
    made["sent"] = {"train": {"down": [10, 20, 30], "up": [1, 2, 3]}, "evaluate": {"down": [5, 5, 5], "up": [0, 0, 0]}}
    made["times"] = {"site": [1.0, 2.0, 3.0], "answered": [1.5, 2.5, 3.5]}
    if t >= 10:
        made |= {"ids": [0, 2], "weights": [0.5, 0.5], "times": {"site": [1.0, 3.0], "answered": [1.5, 9.5]}}
        made["quarantined"] = [{"client": 1, "name": "site-1", "reason": "did not answer within 600 s"}]
    return made


# status
def test_status_is_one_view_of_run_server_and_certificates(equipoise: Any, link: Link, run: Path) -> None:
    make_certificates(run.parent / "certs", ["fl.example.org"], days=90)
    done = equipoise("flower", "status", run, "--connection", "it", "--certs", run.parent / "certs", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    told = found["run"]
    assert (told["method"], told["state"], told["round"], told["rounds"]) == ("fedheal", "stopped", 12, 60)
    assert told["bytes"] == sum(path.stat().st_size for path in run.iterdir())
    assert told["free_bytes"] > 0
    first, late, gone, stranger = found["sites"]
    assert (first["site"], first["state"], first["since"]) == ("site-0", "online", "2026-11-25 07:08Z")
    assert (first["missing"], first["of"], first["seconds"], first["missing_because"]) == (0, 10, 1.5, None)
    assert (first["received_bytes"], first["sent_bytes"]) == (12 * 15, 12)
    assert (late["missing"], late["missing_because"]) == (2, "did not answer within 600 s")
    assert late["seconds"] == 2.5
    assert (gone["site"], gone["state"], gone["seconds"]) == ("gone", "not registered", 9.5)
    assert (stranger["site"], stranger["missing"], stranger["sent_bytes"]) == ("late-comer", None, 0)
    assert [(each["certificate"], each["days_left"] < 91) for each in found["certificates"]] == [
        ("server.pem", True),
        ("ca.crt", False),
    ]
    assert found["unknown"] == []
    shown = equipoise("flower", "status", run, "--connection", "it")
    assert "round: 12" in shown.out
    assert "late-comer" in shown.out


def test_status_works_with_parts_missing(equipoise: Any, link: Link, run: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:  # as where the extra is not installed
        patch.setitem(sys.modules, "equipoise.flower.deploy.certificates", None)
        alone = json.loads(equipoise("flower", "status", run, "--json").out)
    assert [site["state"] for site in alone["sites"]] == [None, None, None]
    assert link.asked == []
    assert "there is no --connection" in alone["unknown"][0]
    dead = json.loads(equipoise("flower", "status", run, "--connection", "dead", "--json").out)
    assert dead["unknown"] == ["which sites are online (there is no dead)"]
    assert dead["run"]["round"] == 12
    elsewhere = json.loads(equipoise("flower", "status", tmp_path, "--connection", "it", "--json").out)
    assert elsewhere["run"] == {}
    assert "holds none" in elsewhere["unknown"][0]
    assert [site["site"] for site in elsewhere["sites"]] == ["site-0", "site-1", "late-comer"]
    nothing = equipoise("flower", "status", tmp_path)
    assert nothing.status == 2
    assert "holds no run" in nothing.err


def test_status_of_a_project_is_that_of_its_run(equipoise: Any, run: Path) -> None:
    (run.parent / "pyproject.toml").write_text('[tool.flwr.app.config]\nrun-dir = "run"\n')
    assert json.loads(equipoise("flower", "status", run.parent, "--json").out)["run"]["directory"] == str(run)


def test_cells_without_a_value_say_why(equipoise: Any, link: Link, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    begun = equipoise("flower", "status", run).out
    assert "last round ended: not yet" in begun
    row = next(line for line in begun.splitlines() if line.startswith("site-0"))
    assert "not known" in row
    assert "not yet" in row
    (run / "metrics.jsonl").write_text("".join(record_lines(map(record, range(12)))))
    (run / "summary.json").write_text("{}")
    ended = equipoise("flower", "status", run).out
    assert "ended" in next(line for line in ended.splitlines() if line.startswith("site-0"))


def test_status_of_a_run_that_begins_or_goes_on(equipoise: Any, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    with claimed(run):
        found = json.loads(equipoise("flower", "status", run, "--json").out)
    assert found["run"]["state"] == f"running as process {os.getpid()}"
    assert (found["run"]["round"], found["run"]["last_round_ended"]) == (0, None)
    assert [site["of"] for site in found["sites"]] == [0, 0, 0]
    (run / "summary.json").write_text("{}")
    assert json.loads(equipoise("flower", "status", run, "--json").out)["run"]["state"] == "complete"
    assert equipoise("flower", "status", run).status == 0


@pytest.mark.parametrize("name", ["config.toml", "sites.json", "metrics.jsonl"])
def test_a_damaged_file_is_told(name: str, equipoise: Any, run: Path) -> None:
    text = (run / name).read_text()
    (run / name).write_text(text.replace('"', "", 1) if name != "metrics.jsonl" else text.replace("600 s", "6 s"))
    done = equipoise("flower", "status", run)
    assert done.status == 2
    assert f"A file of the run {run} is damaged" in done.err


# stop
def test_the_only_run_is_stopped(equipoise: Any, link: Link) -> None:
    done = equipoise("flower", "stop", "it")
    assert done.status == 0, done.err
    assert link.changed == [("stop", "16608653772611792496", "it")]
    assert "equipoise flower run DIR it" in done.out


def test_what_cannot_be_stopped_is_told(equipoise: Any, link: Link) -> None:
    ended = equipoise("flower", "stop", "it", "14095837860935894700")
    assert "has finished:stopped" in ended.err
    assert "Run 7 is not known. Running at it: 16608653772611792496." in equipoise("flower", "stop", "it", 7).err
    assert "there is no dead" in equipoise("flower", "stop", "dead").err
    link.runs["runs"].append({**link.runs["runs"][0], "run-id": "8", "status": "pending"})
    assert "16608653772611792496, 8. Say which one to stop." in equipoise("flower", "stop", "it").err
    link.runs["runs"] = []
    nothing = equipoise("flower", "stop", "it")
    assert nothing.status == 1
    assert "There is nothing to stop" in nothing.err
    assert link.changed == []


# sites
def test_sites_are_listed_without_those_that_were_removed(equipoise: Any, link: Link) -> None:
    found = json.loads(equipoise("flower", "sites", "it", "--json").out)["sites"]
    assert [(site["site"], site["state"]) for site in found] == [
        ("site-0", "online"),
        ("site-1", "offline"),
        ("late-comer", "registered"),
    ]
    assert "site-1" in equipoise("flower", "sites", "it").out
    link.nodes["nodes_info"] = []
    assert "No site is registered" in equipoise("flower", "sites", "it").out


def test_a_site_is_removed_by_its_name_and_only_when_told_twice(equipoise: Any, link: Link) -> None:
    asked = equipoise("flower", "sites", "it", "--remove", "site-1")
    assert asked.status == 0
    assert "nothing was done" in asked.out
    assert link.changed == []
    for name in ("removed", "site-7", ""):
        strange = equipoise("flower", "sites", "it", "--remove", name, "--yes")
        assert strange.status == 1
        assert "Registered: late-comer, site-0, site-1." in strange.err
    assert link.changed == []
    (node,) = [n["node_id"] for n in link.nodes["nodes_info"] if n.get("name") == "site-1"]
    assert "is removed" in equipoise("flower", "sites", "it", "--remove", "site-1", "--yes").out
    assert link.changed == [("supernode", "unregister", node, "it")]


@pytest.mark.parametrize("command", [["status", "--connection"], ["stop"], ["sites"]])
def test_without_flower_it_says_so(
    command: list[str], equipoise: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "reach", lambda name: CheckResult("", True, ""))
    monkeypatch.setattr(superlink, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    done = equipoise("flower", *command, "it")
    assert "Install it: pip install 'equipoise[flower]'" in done.err + done.out.replace("\n", " ")


# clean
@pytest.fixture
def states(tmp_path: Path) -> Path:
    """Three experiments of 200, 100 and 0 days ago, and what is not an experiment."""
    import torch

    base = tmp_path / "state"
    for name, days in (("trial-0123abcd", 200), ("flower-00000001", 100), ("flower-00000002", 0)):
        store = Store.at(base, name, "site-0")
        store.keep(3, {"c": torch.ones(100)})
        store.keep_base("token", torch.ones(10))
        store.keep_model({"w": torch.ones(10)})
        bundle = store.directory / "bundle"
        bundle.mkdir()
        (bundle / "model.safetensors").write_bytes(b"as above")
        sums.read_memory(store.directory / "masks.json")
        for path in store.directory.rglob("*"):
            os.utime(path, times=(time.time() - 86400 * days,) * 2)
    shutil.copytree(base / "trial-0123abcd", base / "home")
    shutil.copytree(base / "trial-0123abcd", base / "notes-0123abcd")
    (base / "notes-0123abcd" / "site-0" / "thesis.txt").write_text("mine")
    (base / "link-0123abcd").symlink_to(base / "home")
    (base / "linked-0123abcd" / "site-0").mkdir(parents=True)
    (base / "linked-0123abcd" / "site-0" / "base.safetensors").symlink_to(base / "gone")
    (base / "site.toml").write_text("")
    return base


def files(base: Path) -> set[str]:
    return {str(path.relative_to(base)) for path in base.rglob("*")}


def test_nothing_is_removed_without_yes(equipoise: Any, states: Path) -> None:
    before = files(states)
    listed = equipoise("flower", "clean", states).out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [
        "trial-0123abcd",
        "flower-00000001",
        "flower-00000002",
    ]
    asked = equipoise("flower", "clean", states, "--older-than", 150, "--models")
    assert asked.status == 0
    assert "to remove" in asked.out
    assert files(states) == before


def test_old_experiments_are_removed_but_their_models_stay(equipoise: Any, states: Path) -> None:
    before = files(states)
    assert equipoise("flower", "clean", states, "--older-than", 150, "--yes").status == 0
    names = ("state-000003.safetensors", "base.safetensors", "masks.json", "answers.lock")
    gone = {f"trial-0123abcd/site-0/{name}" for name in names}
    assert files(states) == before - gone
    assert equipoise("flower", "clean", states, "flower-00000001", "--models", "--yes").status == 0
    left = {path for path in before - gone if not path.startswith("flower-00000001")}
    assert files(states) == left
    assert equipoise("flower", "clean", states, "--older-than", 0, "--models", "--yes").status == 0
    assert files(states) == {path for path in left if not path.startswith("trial")}, "the newest one stays"


@pytest.mark.parametrize(
    "name", ["flower-00000002", "home", "notes-0123abcd", "link-0123abcd", "linked-0123abcd", "..", "flower-0000000"]
)
def test_what_is_in_use_or_unknown_is_not_removed(name: str, equipoise: Any, states: Path) -> None:
    before = files(states)
    done = equipoise("flower", "clean", states, name, "--models", "--yes")
    assert done.status == 2
    assert f"{name} cannot be removed" in done.err
    assert files(states) == before


def test_a_directory_without_experiments(equipoise: Any, tmp_path: Path) -> None:
    assert "There is no experiment" in equipoise("flower", "clean", tmp_path).out
    missing = equipoise("flower", "clean", tmp_path / "none")
    assert missing.status == 2
    assert "is not a directory" in missing.err


# certificates
def test_renewing_keeps_the_old_certificate_beside(equipoise: Any, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a.example.org"], days=10)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    begins = f"{read(tmp_path / 'server.pem').not_valid_before_utc:%Y%m%d-%H%M%S}"
    done = equipoise("flower", "certs", tmp_path, "--renew", "--days", 90)
    assert done.status == 0, done.err
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("server.pem", "server.key"):
        assert after[name.replace("server", f"server-{begins}")] == before[name]
        assert after[name] != before[name]
    assert {name: after[name] for name in ("ca.crt", "ca.key")} == {name: before[name] for name in ("ca.crt", "ca.key")}
    assert problems(tmp_path / "server.pem", tmp_path / "ca.crt", "a.example.org") == []
    assert days_left(read(tmp_path / "server.pem")) in (89, 90)
    assert (tmp_path / f"server-{begins}.key").stat().st_mode & 0o077 == 0
    if len({read(tmp_path / name).not_valid_before_utc for name in ("server.pem", f"server-{begins}.pem")}) == 1:
        with pytest.raises(InputError, match="exists already and is not overwritten"):
            make_certificates(tmp_path, (), renew=True)


def test_what_cannot_be_renewed_stays_as_it_is(tmp_path: Path) -> None:
    make_certificates(tmp_path / "other", ["a.example.org"])
    make_certificates(tmp_path / "ours", ["a.example.org"])
    ours = tmp_path / "ours"
    with pytest.raises(InputError, match="neither a host name"):
        make_certificates(ours, ["https://a"], renew=True)
    (ours / "ca.key").rename(tmp_path / "ca.key")
    before = {path: path.read_bytes() for path in ours.iterdir()}
    with pytest.raises(InputError, match=r"no ca\.key.*kept offline"):
        make_certificates(ours, (), renew=True)
    shutil.copy(tmp_path / "other" / "ca.key", ours / "ca.key")
    with pytest.raises(InputError, match="is not the key of"):
        make_certificates(ours, (), renew=True)
    (ours / "ca.key").unlink()
    assert {path: path.read_bytes() for path in ours.iterdir()} == before
    with pytest.raises(InputError, match=r"no server\.pem"):
        make_certificates(tmp_path / "new", ["a.example.org"], renew=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_when_the_last_round_ended_is_no_time_of_a_file_that_is_written_again(rounds: int, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('method = "fedavg"\nrounds = 9\n')
    lines = "".join(f'{{"round": {t}, "seconds": 1.0}}\n' for t in range(rounds))
    (tmp_path / "metrics.jsonl").write_text(lines)
    (tmp_path / "checkpoint").mkdir()
    for t in range(1, rounds + 1):
        state = tmp_path / "checkpoint" / f"state-{t:06d}.safetensors"
        state.write_bytes(b"")
        os.utime(state, (1e9 + t, 1e9 + t))
    os.utime(tmp_path / "metrics.jsonl", (2e9, 2e9))
    assert run_status(tmp_path).written == 1e9 + rounds
    (tmp_path / "metrics.jsonl").write_text(lines + f'{{"round": {rounds}, "seconds": 1.0}}\n')
    os.utime(tmp_path / "metrics.jsonl", (2e9, 2e9))
    assert run_status(tmp_path).written == 2e9
