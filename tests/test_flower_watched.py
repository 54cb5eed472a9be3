"""What those see who keep a deployed run going: times of sites, log lines as JSON, metrics for Prometheus; and who may read a site's files."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message

import equipoise as eq
from equipoise.federation.guard import QuorumError
from equipoise.federation.history import History
from equipoise.flower.codec import Parcel
from equipoise.flower.deploy import local
from equipoise.flower.server.consortium import Consortium
from equipoise.flower.settings import AppSettings
from equipoise.report.html import render
from equipoise.report.layout import every_site
from equipoise.report.sites import at_sites, prometheus
from equipoise.report.statistics import Comparison
from equipoise.system.errors import RunError
from equipoise.system.files import open_private, write_atomically
from equipoise.system.logs import JsonLines, logging_as
from equipoise.system.seals import open_json
from helpers import consortium, fitted, told
from test_flower import SECRET, Changed, Machines, instead

QUICK = {"method": "fedavg", "epochs": 1, "rounds": 2}
SIGNS = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report is drawn, which takes longest."""
    monkeypatch.setattr(History, "report", lambda *_: None)


posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")


# times
def meddle(fed: eq.Federation, with_: Callable[[str, str, Parcel], Parcel]) -> None:
    """Let what sites answer pass through ``with_(kind, site, answer)``."""
    assert isinstance(fed.population, Consortium)
    grid: Any = fed.population.sites.exchange.grid
    answered = grid._answered

    def changed(message: Message) -> Message:
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        reply = answered(message)
        parcel = with_(kind, str(grid.contexts[node].node_config["site"]), Parcel.of(reply.content))
        return instead(reply, parcel.records())

    grid._answered = changed


@pytest.mark.parametrize("secure", [False, True])
def test_times_of_training_and_of_answers_are_recorded(secure: bool) -> None:
    fed = consortium(secure=secure, epochs=1)
    fed.fit(2, progress=False)
    for record in fed.records:
        times = record["times"]
        assert [len(times[key]) for key in ("site", "answered")] == [len(record["ids"])] * 2
        assert all(0 < site <= answered for site, answered in zip(times["site"], times["answered"], strict=True))
    assert "times" not in fitted("fedavg", 1, epochs=1).records[0]


LIES: list[Any] = [math.nan, "soon", 1e300, "missing", -1.0, 10**250, math.inf, True, None, [1.0], {"s": 1}]


@pytest.mark.parametrize("secure", [False, True])
def test_what_a_site_says_of_its_time_harms_nobody(secure: bool) -> None:
    """A number out of range is unknown; the others, their times and the model are as if the site had said nothing of it."""
    honest, lying = (consortium(secure=secure, sizes=(9, 7, 8), participation=1.0, epochs=1) for _ in range(2))

    def lies(kind: str, site: str, answer: Parcel) -> Parcel:
        if site != "client-1" or kind not in ("train", "train.masked"):
            return answer
        lie = LIES[answer.fields["receipt"][0]]
        fields = {key: x for key, x in answer.fields.items() if key != "seconds"}
        return Parcel(fields if lie == "missing" else {**fields, "seconds": lie}, answer.tensors)

    meddle(lying, lies)
    for fed in (honest, lying):
        fed.fit(4 if secure else len(LIES), progress=False)
    for record in lying.records:
        site, answered = record["times"]["site"], record["times"]["answered"]
        assert site[1] is None
        assert all(x > 0 for x in [*answered, *(x for m, x in enumerate(site) if m != 1)])
    assert told(honest) == told(lying)
    assert torch.equal(honest.progress.vector, lying.progress.vector)


def test_a_site_that_is_late_has_no_time_and_is_told_of(tmp_path: Path) -> None:
    machines = Machines(tmp_path, **QUICK)

    def fails(kind: str, site: str, reply: Message) -> Message:
        late = kind == "train" and site == "south" and Parcel.of(reply.content).fields["receipt"][0] == 1
        return instead(reply, Error(5, "gone")) if late else reply

    history = machines.serve(Changed(machines, fails))
    assert [len(record["times"]["site"]) for record in history.records] == [3, 2]
    page = (machines.run / "report.html").read_text()
    row = re.search(r'<section id="sites">.*?>south<.*?</tr>', page, re.DOTALL)
    assert row is not None
    assert "is not reachable any more" in row.group()
    site = at_sites(history.records, history.client_names)[2]
    assert (site.name, [t for t, *_ in site.answers]) == ("south", [0])
    assert site.left_out == ["is not reachable any more"]


# the report
def made_up(**more: Any) -> History:
    sent = {"train": {"down": [4000, 4000], "up": [2000, 1000]}, "evaluate": {"down": [1000, 0], "up": [0, 0]}}
    lost = {"client": 1, "name": "b", "reason": "did not answer within 5 s"}
    records = [
        {"round": 0, "ids": [0, 1], "seconds": 3.0},  # of a version without times
        {"round": 1, "ids": [1, 0], "seconds": 3.0, "sent": sent, "times": {"site": [9.0, None], "answered": [11.0, 1.5]}},
        {"round": 2, "ids": [0], "seconds": 3.0, "sent": sent, "times": {"site": [0.5], "answered": [2.5]}, "quarantined": [lost]},
    ]  # fmt: skip
    return History(records, {"method": "fedavg", "seed": 0, "client_names": ["a", "b"], **more})


def test_the_report_says_how_every_site_did() -> None:
    sheet = every_site(Comparison.of([made_up()]))
    assert sheet is not None
    cells = {name: [cell.mean for cell in row] for name, row in sheet.grid.rows}
    assert cells["a"] == ["3", "0.50", "2.00", "10.0\u00a0kB", "4.00\u00a0kB", "0", "–"]
    assert cells["b"] == ["2", "9.00", "11.00", "8.00\u00a0kB", "2.00\u00a0kB", "1", "did not answer within 5 s"]
    both = every_site(Comparison.of([made_up(), made_up(seed=1)]))
    assert both is not None
    assert [name for name, _ in both.grid.rows][::2] == ["a, fedavg, seed 0", "a, fedavg, seed 1"]


def test_a_simulation_has_no_sites_in_its_report() -> None:
    simulated = History([{"round": 0, "ids": [0]}], {"method": "fedavg", "client_names": ["a"]})
    assert every_site(Comparison.of([simulated])) is None
    assert 'id="sites"' not in render([simulated])
    many = [str(k) for k in range(101)]
    record = {"round": 0, "ids": [0], "times": {"site": [1.0], "answered": [1.0]}}
    assert every_site(Comparison.of([History([record], {"method": "fedavg", "client_names": many})])) is None


# Prometheus
SERIES = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (\S+)')


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The gauges in a text of Prometheus' format, by their labels; every line must be as the format has it."""
    assert text.endswith("\n")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    lines = text[:-1].split("\n")
    while lines:
        help_, kind = lines.pop(0), lines.pop(0)
        match = re.fullmatch(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) [^\\]+", help_)
        assert match is not None, help_
        gauge = match[1]
        assert kind == f"# TYPE {gauge} gauge"
        assert gauge not in found  # all lines of a gauge stand together
        found[gauge] = {}
        while lines and not lines[0].startswith("#"):
            line = lines.pop(0)
            series = SERIES.fullmatch(line)
            assert series is not None, line
            assert series[1] == gauge
            assert re.fullmatch(r"[+-]?(\d+(\.\d+)?(e[+-]?\d+)?|Inf)|NaN", series[3]), line
            labels = re.findall(r'([a-z]+)="((?:[^"\\\n]|\\[\\"n])*)"', series[2])
            key = tuple((name, re.sub(r"\\.", lambda sign: SIGNS[sign[0]], x)) for name, x in labels)
            assert key not in found[gauge]
            found[gauge][key] = float(series[3])
        assert found[gauge]
    return found


def test_prometheus_reads_the_state_of_a_run() -> None:
    strange = 'a "b" \\n {c}, d="e"\nf\\'
    groups = {strange: {"accuracy": 0.5, "loss": math.nan}, "x": {"accuracy": 1.0, "loss": math.inf}}
    times = {"site": [None, 1e-05], "answered": [2, 1]}
    records = [*made_up().records, {"round": 3, "ids": [0, 1], "seconds": 2.5, "groups": groups, "times": times}]
    found = parsed(prometheus(records, [strange, "b"], 40, strange))
    run, (a, b) = (("experiment", strange),), ((("experiment", strange), ("site", name)) for name in (strange, "b"))
    assert found["equipoise_rounds_complete"] == {run: 4}
    assert found["equipoise_rounds_planned"] == {run: 40}
    assert found["equipoise_round_seconds"] == {run: 2.5}
    assert found["equipoise_sites_known"] == found["equipoise_sites_answered"] == {run: 2}
    assert found["equipoise_site_last_round"] == {a: 4, b: 4}
    assert found["equipoise_site_training_seconds"] == {b: 1e-05}  # what is not known has no line
    assert found["equipoise_site_answered_seconds"] == {a: 2, b: 1}
    assert found["equipoise_site_down_bytes"] == {a: 10_000, b: 8000}
    assert found["equipoise_site_up_bytes"] == {a: 4000, b: 2000}
    assert found["equipoise_site_left_out"] == {a: 0, b: 1}
    assert found["equipoise_accuracy"] == {(*run, ("group", strange)): 0.5, (*run, ("group", "x")): 1.0}
    loss = found["equipoise_loss"]
    assert math.isnan(loss[*run, ("group", strange)])
    assert loss[*run, ("group", "x")] == math.inf


def test_a_gauge_has_one_text_whatever_the_run() -> None:
    """Of two files of a folder with different texts of one gauge, node_exporter drops the lines of the second."""
    kinds: list[dict[str, float]] = [
        {"accuracy": 0.5, "loss": 0.7},
        {"rmse": 3.0, "mae": 2.0, "r2": 0.1, "loss": 0.7},
        {"rmse": math.nan, "loss": math.inf},
        {"loss": 0.1},
        {},
    ]
    texts: dict[str, set[str]] = {}
    for scores in kinds:
        text = prometheus(
            [{"round": 0, "ids": [0], "seconds": 1.0, "groups": {"a": {**scores, "n": 50}}}], ["a"], 3, "run"
        )
        parsed(text)
        for line in re.findall("^# (?:HELP|TYPE) .*", text, re.M):
            texts.setdefault(" ".join(line.split()[1:3]), set()).add(line)
    assert {"HELP equipoise_loss", "HELP equipoise_accuracy", "HELP equipoise_rmse"} <= texts.keys()
    assert {name: found for name, found in texts.items() if len(found) > 1} == {}


@pytest.mark.usefixtures("unreported")
def test_the_metrics_are_of_the_last_complete_round(tmp_path: Path) -> None:
    machines = Machines(tmp_path, **QUICK, quorum=1.0)

    def fails(kind: str, site: str, reply: Message) -> Message:
        late = kind == "train" and site == "south" and Parcel.of(reply.content).fields["receipt"][0] == 1
        return instead(reply, Error(5, "gone")) if late else reply

    with pytest.raises(QuorumError):
        machines.serve(Changed(machines, fails))
    found = parsed((machines.run / "metrics.prom").read_text())
    assert list(found["equipoise_rounds_complete"].values()) == [1]
    history = machines.serve()
    found, last = parsed((machines.run / "metrics.prom").read_text()), history.records[-1]
    (((_, experiment),), complete) = next(iter(found["equipoise_rounds_complete"].items()))
    assert complete == 2
    assert experiment == open_json((machines.run / "sites.json").read_text())["experiment"]
    for m, name in enumerate(history.client_names):
        key = (("experiment", experiment), ("site", name))
        assert found["equipoise_site_training_seconds"][key] == last["times"]["site"][m]
        assert found["equipoise_site_up_bytes"][key] == sum(
            counts["up"][m] for record in history.records for counts in record["sent"].values()
        )
        assert (
            found["equipoise_accuracy"][("experiment", experiment), ("group", name)] == last["groups"][name]["accuracy"]
        )


@pytest.mark.usefixtures("unreported")
# logs
def test_log_lines_are_json_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the server and of the sites, with the traceback of a site in its own lines only."""
    machines = Machines(tmp_path, **QUICK, log="json")
    broken = {"site": 'we"st\n', "data-number": 0, "state-dir": str(tmp_path / "states"), "data-broken": True}
    machines.nodes.append(broken)
    capsys.readouterr()
    handlers = list(logging.getLogger("equipoise").handlers)
    machines.serve()
    assert logging.getLogger("equipoise").handlers == handlers
    assert logging.getLogger("equipoise").propagate
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for line in lines:
        assert {"time", "level", "logger", "message", "experiment"} <= line.keys()
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)
        assert line["logger"].startswith("equipoise.")
    assert len({line["experiment"] for line in lines}) == 1
    site = [line for line in lines if "site" in line]
    assert {(line["site"], line["kind"], line["level"]) for line in site} == {('we"st\n', "query.describe", "ERROR")}
    assert "RuntimeError" in site[0]["traceback"]
    assert SECRET in site[0]["traceback"]
    servers = [line for line in lines if "site" not in line]
    assert SECRET not in json.dumps(servers)
    assert "traceback" not in json.dumps(servers)
    assert [(line["round"], line["message"][:16]) for line in servers if "round" in line] == [
        (0, "round 1: 3 sites"),
        (1, "round 2: 3 sites"),
    ]


@pytest.mark.usefixtures("unreported")
def test_a_site_chooses_the_form_of_its_own_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines = Machines(tmp_path, **QUICK | {"method": "scaffold"})
    machines.nodes[0] |= {"log": "json", "state-dir": str(tmp_path / "file")}
    (tmp_path / "file").write_text("not a directory")
    capsys.readouterr()
    with pytest.raises(RunError, match=r"north\) failed with FileExistsError; its own log says more"):
        machines.serve()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert {(line["site"], line.get("round"), line["kind"]) for line in lines} == {("north", None, "query.describe")}
    with pytest.raises(ValueError, match="log must be one of text, json; found 'yaml'"), logging_as("yaml", {}):
        raise AssertionError
    with pytest.raises(ValueError, match="log must be one of text, json"):
        AppSettings.of({"log": "yaml"})


def test_what_a_message_says_of_itself_makes_one_line() -> None:
    """Text and whole numbers only: a server may send anything as a round."""
    about = {"site": "a\u2028b\n", "round": math.nan, "kind": {"x": 1}, "experiment": "\ud800"}
    record = logging.LogRecord("equipoise.x", logging.ERROR, "x.py", 1, "two\nlines %s", ("\x1b[31m",), None)
    line = JsonLines(about).format(record)
    assert "\n" not in line
    assert line.isascii()
    found = json.loads(line)
    assert (found["message"], found["site"]) == ("two\nlines \x1b[31m", "a\u2028b\n")
    assert not {"round", "kind", "traceback"} & found.keys()


# who may read
def modes(base: Path) -> dict[str, int]:
    return {str(path.relative_to(base)): stat.S_IMODE(path.stat().st_mode) for path in base.rglob("*")}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.usefixtures("unreported")
@posix
@pytest.mark.parametrize(
    ("mask", "more"), [(0, {"method": "ditto-personal"}), (0o027, {"method": "feddyn", "secure": True})]
)
def test_only_its_owner_reads_what_a_site_writes(mask: int, more: dict[str, Any], tmp_path: Path) -> None:
    """Whatever the umask, also files that others could read before; directories that were there stay as they are."""
    machines = Machines(tmp_path, **{**QUICK, **more})
    (tmp_path / "states").mkdir(mode=0o755)
    (tmp_path / "states").chmod(0o755)

    def opens(kind: str, site: str, reply: Message) -> Message:
        for path in (tmp_path / "states").rglob("*.safetensors"):
            path.chmod(0o644)
        return reply

    with umask(mask):
        machines.serve(Changed(machines, opens))
        (tmp_path / "states").chmod(0o755)
        machines.config["run-dir"] = str(tmp_path / "again")
        machines.serve()
    found = modes(tmp_path / "states")
    again = {name: mode for name, mode in found.items() if name.startswith("again")}
    names = {Path(name).name for name in again}
    assert names >= {"base.safetensors", "model.safetensors"}
    assert names >= (
        {"masks.json", "answers.lock", "update.safetensors"} if "secure" in more else {"state-000001.safetensors"}
    )
    assert {mode for name, mode in again.items() if Path(name).suffix} == {0o600}
    assert {mode for name, mode in again.items() if not Path(name).suffix} == {0o700}
    assert stat.S_IMODE((tmp_path / "states").stat().st_mode) == 0o755


@posix
def test_a_private_file_is_private_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "made" / "here" / "file"
    with umask(0):
        write_atomically(path, "first", private=True)
        path.chmod(0o666)
        write_atomically(path, "second", private=True)
        assert modes(tmp_path) == {"made": 0o700, "made/here": 0o700, "made/here/file": 0o600}
        assert path.read_text() == "second"
        write_atomically(tmp_path / "public" / "file", "x")
        assert modes(tmp_path)["public/file"] == 0o666
        (tmp_path / "log").write_text("an old log that others could read")
        (tmp_path / "log").chmod(0o644)
        reader = (tmp_path / "log").open()
        with open_private(tmp_path / "log") as file:
            file.write(b"new")
        assert reader.read() == "new"  # who follows the log goes on with it
        reader.close()
    assert modes(tmp_path)["log"] == 0o600


@posix
def test_the_logs_of_processes_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "program", str)
    (tmp_path / "site-0.log").write_text("old")
    (tmp_path / "site-0.log").chmod(0o644)
    here = local.LocalFederation(tmp_path, tmp_path, patience=1.0)
    with umask(0):
        here.launch("site-0", "true", [])
    here.stop()
    assert modes(tmp_path)["site-0.log"] == 0o600
