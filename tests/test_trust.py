"""Run directories, configurations and files of others: nothing that they name is imported, written or contacted before the user agrees."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import equipoise as eq
from equipoise.cli.init import read
from equipoise.records.directory import members
from equipoise.runs import directory as runs, tracking
from equipoise.runs.configuration import RunError
from equipoise.system import own_code, seals, trust
from equipoise.system.seals import open_json, open_toml, sealed_json
from helpers import in_one, others_slow
from run_helpers import TINY, cache, config, equipoise, executed

EVIL = "from pathlib import Path\nPath({mark!r}).write_text('ran')\ndef net(**_): ...\nclass Rule: ...\nmoney = 1\n"
REFUSED = r"config\.toml is not of a run begun by you on this machine, and names "
READS = (
    ("privacy",),
    ("export",),
    ("pack",),
    ("resume",),
    ("analyse", "states"),
)
NAMES: dict[str, Any] = {  # settings of a run, by what they name
    "a network": {"network": "./evil.py:net"},
    "a network by its whole path": {"network": "{run}/evil.py:net"},
    "a rule": {"method": "dp(noise=2)+./evil.py:Rule"},
    "a module": {"network": "evilpkg.deep.nets:net"},
    "a measure": {"measures": "f1, ./evil.py:money"},
    "a solver": {"optimizer": "./evil.py:net"},
    "data": {"scenario": "own", "scenario_options": {}, "data": "./evil.py:net"},
    "an address": {"scenario": "own", "scenario_options": {}, "data": "hub:evil/data"},
    "a file": {"scenario": "own", "scenario_options": {}, "data": "/etc/hostname"},
    "weights": {"network": "resnet18", "network_options": {"weights": "/etc/hostname"}},
    "beside": {"own_code": {"evilpkg.deep": "0" * 64}},
    "an option": {"scenario_options": {"clients": 4, "lists": "/etc/hostname"}},
    "a file that cannot be": {"scenario": "own", "scenario_options": {}, "data": "\0"},
    "a scenario": {"scenario": "./evil.py:net", "scenario_options": {}},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return executed(tmp_path_factory.mktemp("whole") / "theirs", config("dp(noise=2)", rounds=1))


@pytest.fixture
def theirs(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that somebody else has made, with code beside it that leaves a mark; we are in the folder above."""
    shutil.copytree(whole, tmp_path / "theirs")
    (tmp_path / "theirs" / "evilpkg" / "deep").mkdir(parents=True)
    for file in ("evil.py", "evilpkg/__init__.py", "evilpkg/deep/__init__.py", "evilpkg/deep/nets.py"):
        (tmp_path / "theirs" / file).write_text(EVIL.format(mark=str(tmp_path / "mark")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "theirs"


def rewrite(run: Path, **changes: Any) -> None:
    """Change settings of a run as somebody would who writes its seal again, too."""
    table = open_toml((run / "config.toml").read_text()) | {"project": "."}
    text = tomli_w.dumps(table | changes).replace("{run}", run.as_posix())
    (run / "config.toml").write_text(seals.sealed_text(text))


@pytest.mark.parametrize(  # every name with one command, and one with all of them, are quick
    ("what", "reads"),
    [
        *[(what, READS[:1] if what == "data" else READS[1:2]) for what in NAMES if what != "a network"],
        *[pytest.param(what, READS, marks=[pytest.mark.slow] * (what != "a network")) for what in NAMES],
    ],
)
def test_nothing_that_others_name_is_run(theirs: Path, what: str, reads: Any, equipoise: Any) -> None:
    rewrite(theirs, **NAMES[what])
    path, modules = [*sys.path], {*sys.modules}
    for words in (*reads, *[("report",)] * (what in ("a network", "a measure"))):
        done = equipoise(*words, "theirs")
        assert not (theirs.parent / "mark").exists(), words
        assert done.status == (0 if words[0] in ("report", "privacy") else 1), (words, done)
        if done.status:
            assert re.fullmatch(
                f"error: theirs/{REFUSED}.*: if you trust that, give the same command again with --trust .*\n", done.err
            )
    assert equipoise("status", "theirs").status == 0
    assert equipoise("run", *TINY, "-r", "1", "--runs", ".", "--name", "theirs").status == 1
    assert not (theirs.parent / "mark").exists()
    assert str(theirs) not in {*sys.path} - {*path}
    assert not any("evil" in name for name in {*sys.modules} - modules)
    with pytest.raises(RunError, match=REFUSED):
        runs.execute(theirs, progress=False)


def test_it_is_run_once_the_user_agrees_and_only_by_that_command(theirs: Path, equipoise: Any) -> None:
    rewrite(theirs, network="./evil.py:net")
    done = equipoise("export", "theirs", "--trust")
    assert (theirs.parent / "mark").read_text() == "ran"
    assert len(re.findall(f"theirs/{REFUSED}.*evil.py:net\n", done.err)) <= 1  # told once
    (theirs.parent / "mark").unlink()
    assert re.search(REFUSED, equipoise("export", "theirs").err)
    assert not (theirs.parent / "mark").exists()


def test_what_is_agreed_to_is_said_first(theirs: Path, caplog: pytest.LogCaptureFixture, equipoise: Any) -> None:
    rewrite(theirs, network="./evil.py:net\x1b[2J")
    assert "\x1b" not in equipoise("export", "theirs").err
    rewrite(theirs, network="./evil.py:net")
    equipoise("analyse", "states", "theirs", "--trust")
    (said,) = [text for text in caplog.messages if "not of a run begun" in text]
    assert said.startswith("theirs/config.toml is not of a run begun by you on this machine, and names ")
    assert said.endswith("evil.py:net")


@pytest.mark.parametrize("to", ["tensorboard:{home}/elsewhere", "mlflow:http://127.0.0.1:9", "trackio:evil"])
def test_a_tracker_is_only_told_of(theirs: Path, to: str, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(tracking, "chosen", lambda to: asked.append(to) or ("none", ""))
    to = to.format(home=theirs.parent)
    rewrite(theirs, track=to)
    done = equipoise("resume", "theirs", "--no-report")
    assert done.status == 0
    assert f"The run names the tracker {to}. To send its rounds there, add: --track {to}" in " ".join(done.out.split())
    assert asked == []
    assert not (theirs.parent / "elsewhere").exists()
    assert "tracker" not in equipoise("resume", "theirs", "--json").out.replace('"track', "")


def test_the_tracker_of_the_command_is_asked(theirs: Path, equipoise: Any) -> None:
    pytest.importorskip("tensorboard")
    rewrite(theirs, track="mlflow:http://127.0.0.1:9")
    assert equipoise("resume", "theirs", "--no-report", "--track", "tensorboard:mine").status == 0
    assert [*Path("mine").rglob("events*")]


# links
@pytest.mark.parametrize("link", ["checkpoint", "best", ".claim", "metrics.jsonl", "models", "sites/x/y"])
def test_links_that_lead_out_of_a_run_are_agreed_to_first(theirs: Path, link: str, equipoise: Any) -> None:
    outside = theirs.parent / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    path = theirs / link
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(outside if "." not in link else outside / "mine")
    for words in (("resume", "theirs"), ("export", "theirs"), ("resume", "theirs", "--from", "1")):
        done = equipoise(*words)
        assert done.status == 1
        assert f"names {link} -> {outside}" in done.err
    assert (outside / "mine").read_text() == "mine"
    assert [*outside.iterdir()] == [outside / "mine"]


@pytest.mark.parametrize("name", ["../outside", "/etc", "a/b"])
def test_a_comparison_of_others_names_only_runs_in_it(theirs: Path, name: str) -> None:
    (theirs.parent / "comparison.json").write_text(sealed_json({"runs": [name]}))
    with pytest.raises(RunError, match=r"comparison\.json is damaged"):
        members(theirs.parent)


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": "../x.safetensors"},
        {"tensors": "/dev/zero"},
        {"best": "x"},
        {"rows": {"names": [], "files": [["../x", "0"]]}},
    ],
)
def test_a_checkpoint_of_others_names_only_files_in_it(theirs: Path, change: dict[str, Any]) -> None:
    pointer = theirs / "checkpoint" / "checkpoint.json"
    pointer.write_text(sealed_json(open_json(pointer.read_text()) | change))
    with pytest.raises(eq.CheckpointError, match=r"checkpoint\.json is damaged"):
        runs.trained(theirs)


# runs of one's own
BEGUN = ("run", *TINY[:2], "--network", "nets.py:build", "--epochs", "1", "-r", "2", "--keep-checkpoints", "2")
BEGUN += ("--name", "mine", "--no-report")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    Path("nets.py").write_text(
        "import math\nfrom torch import nn\ndef build(in_shape, n_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), n_classes))\n"
    )
    assert equipoise(*BEGUN).status == 0
    return tmp_path / "home"


def test_a_run_of_ones_own_goes_on_wherever_it_lies(own: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert equipoise("export", "runs/mine").status == 0
    moved = shutil.move(own, own.parent / "moved")
    monkeypatch.chdir(own.parent)
    assert equipoise("export", f"{moved}/runs/mine").status == 0
    assert equipoise("resume", f"{moved}/runs/mine", "--from", "1", "--no-report").status == 0
    Path(moved, "runs/mine").rename(own.parent / "moved/runs/renamed")
    assert equipoise("export", f"{moved}/runs/renamed").status == 0


def test_one_that_was_changed_does_not(own: Path, equipoise: Any) -> None:
    path = own / "runs/mine/config.toml"
    rewrite(path.parent, seed=3)
    assert re.search(REFUSED, equipoise("export", "runs/mine").err)
    assert equipoise("export", "runs/mine", "--trust").status == 1  # another run's checkpoint
    assert re.search(REFUSED, equipoise("export", "runs/mine").err)


def test_settings_that_a_command_changes_leave_it_ones_own(own: Path, equipoise: Any) -> None:
    assert equipoise("resume", "runs/mine", "--from", "1", "--norm-limit", "50", "--no-report").status == 0
    assert "norm_limit = 50" in Path("runs/mine/config.toml").read_text()
    assert equipoise("export", "runs/mine").status == 0


def test_the_command_that_began_a_run_makes_it_ones_own_again(
    own: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "other"))
    assert re.search(REFUSED, equipoise("export", "runs/mine").err)
    assert "holds a run with other settings" in equipoise(*BEGUN, "--lr", "0.5").err
    assert re.search(REFUSED, equipoise("export", "runs/mine").err)
    Path("runs/mine/models").symlink_to(own)
    assert equipoise(*BEGUN).status == 1
    Path("runs/mine/models").unlink()
    assert equipoise(*BEGUN).status == 0
    assert equipoise("export", "runs/mine").status == 0


def test_what_was_agreed_to_once_does_not_become_ones_own(
    own: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "other"))
    words = ("resume", "runs/mine", "--from", "1", "--norm-limit", "50", "--no-report")
    assert re.search(REFUSED, equipoise(*words).err)
    assert equipoise(*words, "--trust").status == 0
    assert not (own / "other").exists()
    assert re.search(REFUSED, equipoise("export", "runs/mine").err)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_which_runs_were_begun_is_nobodys_business(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "state"))
    for text in (b"a", b"b", b"a"):
        trust.enter(text)
    path = own / "state" / "equipoise" / "begun"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert re.fullmatch("([0-9a-f]{32}\n){2}", path.read_text())
    path.write_bytes(b"\xff\0 damaged\n" + path.read_bytes())
    assert trust.known(b"a")
    assert not trust.known(b"c")


@pytest.mark.parametrize("place", others_slow(["file/x", "\0", "/proc/no/such"], fast=(0,)))
def test_a_home_that_cannot_be_written_stops_no_run(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("XDG_STATE_HOME")
    if place != "\0":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / place) if place[0] != "/" else place)
    else:  # no home at all
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    monkeypatch.setenv(trust.VARIABLE, "")
    assert not trust.known(b"x")
    trust.enter(b"x")
    assert trust.known(b"x")  # here, and in processes that this one starts
    assert os.environ[trust.VARIABLE].strip()


# files of settings
@pytest.mark.parametrize(
    "text",
    [
        'network = "evil.py:net"',
        'method = "fedavg+./evil.py:Rule"',
        'measures = ["f1", "evil.py:money"]',
        'data = "evil.py:net"',
        'data = "hub:evil/data"',
        'track = "mlflow:http://127.0.0.1:9"',
        'optimizer = "evil.py:net"',
        '[methods."evil.py:Rule"]\nlr = 0.1',
        '[set]\ntask = "evil.py:Task"',
    ],
)
@pytest.mark.parametrize("command", [("run",), ("compare", "fedavg")])
def test_a_file_of_settings_is_agreed_to_before_it_is_used(
    theirs: Path, text: str, command: tuple[str, ...], equipoise: Any
) -> None:
    (theirs / "their.toml").write_text(f"rounds = 1\n{text}\n")
    done = equipoise(*command, "--config", "theirs/their.toml", "--no-report")
    assert done.status == 1
    assert "their.toml is not of a run begun by you on this machine, and names" in done.err
    assert "--trust" in done.err
    assert not (theirs.parent / "mark").exists()
    assert not Path("runs").exists()


def test_a_file_that_was_agreed_to_is_known_until_it_names_something_else(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agreed(trusts: str = "") -> bool:
        monkeypatch.setenv(trust.VARIABLE, trusts)
        try:
            read(Path("my.toml"))
        except RunError:
            return False
        return True

    Path("my.toml").write_text('network = "nets.py:build"\nrounds = 1\n')
    assert [agreed(), agreed(trust.EVERYTHING), agreed()] == [False, True, True]
    Path("nets.py").write_text(Path("nets.py").read_text() + "# other\n")
    Path("my.toml").write_text(Path("my.toml").read_text() + "lr = 0.1\n")
    assert agreed()  # one's own code and settings are worked on
    Path("other.py").write_text(Path("nets.py").read_text())
    Path("my.toml").write_text('network = "other.py:build"\nrounds = 1\n')
    assert not agreed()


def test_an_experiment_of_others_is_agreed_to_first(theirs: Path, equipoise: Any) -> None:
    folder = Path(runs.__file__).parent / "experiments"
    text = next(folder.rglob("*.toml")).read_text()
    (theirs / "their.toml").write_text(f'{text}\n[[row]]\nname = "x"\nmethod = "./theirs/evil.py:Rule"\n')
    done = equipoise("reproduce", "theirs/their.toml", "--embedded")
    assert "their.toml is not of a run begun by you on this machine, and names" in done.err
    assert not (theirs.parent / "mark").exists()


@pytest.mark.parametrize("command", ["benchmark", "submit"])
@pytest.mark.parametrize("place", ["methods", "train"])
def test_a_suite_of_others_is_agreed_to_first(theirs: Path, equipoise: Any, command: str, place: str) -> None:
    train = 'train = { network = "./theirs/evil.py:net" }' if place == "train" else ""
    rule = "./theirs/evil.py:Rule" if place == "methods" else "qffl"
    text = f'title = "T"\nmethods = ["fedavg", "{rule}"]\n[[scenario]]\nname = "d"\nscenario = "digits"\n{train}\n'
    (theirs / "their.toml").write_text(text)
    words = (
        ("benchmark", "theirs/their.toml")
        if command == "benchmark"
        else ("benchmark", "submit", "qffl", "--suite", "theirs/their.toml")
    )
    done = equipoise(*words)
    assert "their.toml is not of a run begun by you on this machine, and names" in done.err
    assert not (theirs.parent / "mark").exists()


def test_a_file_of_init_is_ones_own(own: Path, equipoise: Any) -> None:
    Path("data.py").write_text(
        "import torch\ndef clients():\n    return {n: (torch.randn(20, 3), torch.arange(20) % 2) for n in 'ab'}\n"
    )
    assert equipoise("init", "--data", "data.py:clients", "--output", "my.toml").status == 0
    assert equipoise("run", "--config", "my.toml", "--dry-run", "--rounds", "1").status == 0


# hashes of code
def test_looking_for_a_module_imports_no_package(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(theirs)
    assert own_code.source("evilpkg.deep.nets") == theirs / "evilpkg/deep/nets.py"
    assert own_code.source("evilpkg.deep") == theirs / "evilpkg/deep/__init__.py"
    assert own_code.source("evilpkg.nothing.nets") is None
    assert own_code.source("no.such") is None
    assert own_code.source("json.decoder") == Path(json.decoder.__file__)
    (theirs / "space" / "inner").mkdir(parents=True)
    (theirs / "space" / "inner" / "nets.py").write_text("")
    assert own_code.source("space.inner.nets") == theirs / "space/inner/nets.py"
    assert not (theirs.parent / "mark").exists()


# files that exhaust who reads them
DEEP = {
    "json": ["[" * 100_000 + "]" * 100_000, '{"a":' * 500 + "1" + "}" * 500, '{"a": ' + "[" * 150 + "]" * 150 + "}"],
    "toml": [f"a = {'[' * 5000}{']' * 5000}\n", f"{'.'.join('a' * 400)} = 1\n", f"[{'.'.join('a' * 2000)}]\n"],
}
LONG = {
    "json": ['{"a": ' + "9" * 5000 + "}", '{"round":' + "1" * 400 + "}"],
    "toml": [f"a = {'9' * 5000}\n", f"seed = 0x{'f' * 900}\n"],
}
QUICK = ((0, False), (1, True), (3, False))
FILES = {  # and a command or two that read them
    "config.toml": (("privacy",), ("export",), ("resume",), ("status",), ("track", "--to", "tensorboard:x")),
    "manifest.json": (("report",), ("export",), ("pack",)),
    "summary.json": (("report",), ("resume",)),
    "metrics.jsonl": (("report",), ("privacy",), ("resume", "--from", "1"), ("track", "--to", "tensorboard:x")),
    "failed.json": (("status",),),
    "checkpoint/checkpoint.json": (("report",), ("export",), ("status",)),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(  # the first of the deep and of the long, and a sealed one, are quick
    ("k", "sealed"),
    [
        pytest.param(k, sealed, marks=[pytest.mark.slow] * ((k, sealed) not in QUICK))
        for k in range(5)
        for sealed in (False, True)
    ],
)
def test_deep_nesting_and_long_numbers_are_a_sentence(
    theirs: Path, file: str, k: int, sealed: bool, equipoise: Any
) -> None:
    kind = "toml" if file.endswith("toml") else "json"
    text = [*DEEP[kind], *LONG[kind]][k]
    if sealed and kind == "toml":
        text = seals.sealed_text(text)
    elif sealed and file.endswith(".json"):
        text = f'{{\n "seal": "{seals._digest(f"{{{text[1:]}")}",{text[1:]}'
    (theirs / file).write_text(f"{text}\n{text}\n" if file.endswith("jsonl") else text)
    for words in FILES[file]:
        done = equipoise(*words, "theirs")
        assert done.status == (0 if words == ("status",) else done.status or 1), (words, done)
        assert len(done.err.splitlines()) == (words != ("status",)), (words, done.err)
        assert not re.search("defect|Recursion|Traceback", done.err + done.out), (words, done.err)
        assert len(done.err) < 900


@pytest.mark.parametrize("key", ["seed", "rounds", "threads", "batch_size", "least_group", "patience", "epochs"])
@pytest.mark.parametrize("size", others_slow([10**19, 10**299], fast=(1,)))
def test_settings_that_are_too_large_are_a_sentence(theirs: Path, key: str, size: int, equipoise: Any) -> None:
    rewrite(theirs, **{key: 7})
    path = theirs / "config.toml"
    path.write_text(re.sub(f"^{key} = 7$", f"{key} = {size}", path.read_text().split("\n", 1)[1], flags=re.M))
    for words in (("privacy",), ("export",), ("status",)):
        done = equipoise(*words, "theirs")
        assert "defect" not in done.err, (words, done)
        assert len(done.err.splitlines()) <= 2, done.err


@in_one("text", ["[" * 50 + "]" * 50, '{"a": [1e300, 12345678901234567890]}', '["' + "0" * 900 + '"]', '{"a": "x 1"}'])
def test_what_is_honest_is_read(text: str) -> None:
    assert seals.read_json(text) == json.loads(text)
    assert open_toml(f"a = {'[' * 50}{']' * 50}\nb = '{'9' * 900}'\n")["b"] == "9" * 900


# who may read them
@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
@pytest.mark.parametrize("method", ["scaffold", "ditto", "fedavg"])
def test_checkpoints_are_their_owners(tmp_path: Path, method: str) -> None:
    before = os.umask(0o002)
    try:
        run = executed(tmp_path / "run", config(method, rounds=2, keep_checkpoints=2))
    finally:
        os.umask(before)
    states = [*(run / "checkpoint").glob("*.safetensors")]
    assert states
    assert {stat.S_IMODE(path.stat().st_mode) for path in states} == {0o600}
    assert stat.S_IMODE((run / "metrics.jsonl").stat().st_mode) == 0o664
