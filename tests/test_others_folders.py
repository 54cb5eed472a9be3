"""Folders that somebody else may have made: what lies in them is neither run nor followed out of them, and what is new stays its owner's."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.bundle import files as bundles
from equipoise.federation import directory as kept
from equipoise.privacy.accounting import spend
from equipoise.report import drawing
from equipoise.runs import pack, status
from equipoise.system import files, own_code, workers
from equipoise.system.claims import CLAIM, claimed
from equipoise.system.errors import RunError
from equipoise.system.seals import open_toml
from run_helpers import cache, config, equipoise, executed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no such links, pipes and modes")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return executed(tmp_path_factory.mktemp("whole") / "theirs", config("fedavg", rounds=1))


@pytest.fixture
def theirs(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in the current folder, next to a file of the user's."""
    shutil.copytree(whole, tmp_path / "here" / "theirs")
    (tmp_path / "mine").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here" / "theirs"


def instead(path: Path, kind: str) -> None:
    """Put a link, a pipe, a device or a huge file in the place of a file."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.parents[2] / "mine")


# reading
SAID = {
    "link": "is a link that leads out of",
    "device": "is a link that leads out of",
    "pipe": "is a pipe or a device",
    "huge": "has more than 2,147,483,648 bytes",
}


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "config.toml", "summary.json"])
def test_a_report_reads_regular_files_of_the_run(theirs: Path, name: str, kind: str, equipoise: Any) -> None:
    instead(theirs / name, kind)
    done = equipoise("report", "theirs")
    assert (done.status, SAID[kind] in done.err, name in done.err) == (1, True, True), done.err


@pytest.mark.parametrize(
    "command", [("pack",), ("status",), ("privacy",), ("export",), ("track", "--to", "tensorboard:x")]
)
def test_so_does_every_command(theirs: Path, command: tuple[str, ...], equipoise: Any) -> None:
    for name in ("metrics.jsonl", "checkpoint/checkpoint.json"):
        shutil.copy(theirs / name, theirs / "before")
        instead(theirs / name, "pipe")
        done = equipoise(command[0], "theirs", *command[1:])
        assert done.status in (0, 1, 2)  # not still reading
        (theirs / name).unlink()
        shutil.move(theirs / "before", theirs / name)


def test_status_names_the_file(theirs: Path) -> None:
    os.mkfifo(theirs / CLAIM)
    assert "is a pipe" in status.run_status(theirs).why


def test_a_folder_is_followed_no_more_than_a_file(theirs: Path) -> None:
    shutil.move(theirs / "checkpoint", theirs.parent / "elsewhere")
    (theirs / "checkpoint").symlink_to(theirs.parent / "elsewhere")
    with pytest.raises(RunError, match=r"checkpoint\.json is a link that leads out of"):
        eq.History.from_run(theirs)


def test_links_within_a_run_are_followed(theirs: Path) -> None:
    before = eq.History.from_run(theirs).records
    (theirs / "metrics.jsonl").rename(theirs / "records")
    (theirs / "metrics.jsonl").symlink_to("records")
    theirs.rename(theirs.parent.parent / "moved")
    theirs.symlink_to(theirs.parent.parent / "moved")  # whoever gives the run has named it
    assert eq.History.from_run(theirs).records == before


@pytest.mark.parametrize("ordered", [False, True])
def test_a_comparison_takes_no_run_from_elsewhere(theirs: Path, ordered: bool, equipoise: Any) -> None:
    shutil.move(theirs, theirs.parent.parent / "own")
    Path("both").mkdir()
    Path("both/a").symlink_to(theirs.parent.parent / "own")
    if ordered:
        Path("both/comparison.json").write_text(json.dumps({"runs": ["a"]}))
    done = equipoise("report", "both")
    assert (done.status, "both/a is a link that leads out of both" in done.err) == (1, True), done.err


@pytest.mark.parametrize("package", ["records", "federation", "bundle", "flower/site", "privacy", "analysis"])
def test_files_of_others_are_read_by_one_function(package: str) -> None:
    direct = re.compile(r"\.read_(text|bytes)\(|\.open\(|[^._]open\(")
    paths = Path(eq.__file__).parent.joinpath(package).rglob("*.py")
    assert not [path.name for path in paths if direct.search(path.read_text())]


# copying
@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    data = [(torch.randn(30, 4), torch.arange(30) % 2) for _ in range(2)]
    fed = eq.Federation(eq.network("mlp", (4,), 2, hidden=[4]), data, tests={"t": data[0]})
    fed.fit(1, progress=False)
    fed.save_bundle(folder := tmp_path_factory.mktemp("bundle") / "b")
    return folder


def test_a_bundle_is_copied_without_what_it_does_not_list(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "b")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "b/notes.txt").symlink_to(tmp_path / "mine")
    (tmp_path / "b/more.txt").write_text("more")
    bundles.take(tmp_path / "b", tmp_path / "home")
    assert {path.name for path in (tmp_path / "home").iterdir()} == {path.name for path in bundle.iterdir()}
    assert eq.load(tmp_path / "home").predict(torch.zeros(1, 4)) == eq.load(bundle).predict(torch.zeros(1, 4))
    (tmp_path / "b/README.md").unlink()
    (tmp_path / "b/README.md").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=r"README\.md is a link that leads out of"):
        bundles.take(tmp_path / "b", tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("inner", ["x.csv", "deep/x.csv", "deep"])
def test_a_pack_includes_nothing_from_elsewhere(theirs: Path, inner: str) -> None:
    (Path("extra") / inner).parent.mkdir(parents=True)
    (Path("extra") / inner).symlink_to(theirs.parent.parent / "mine")
    with pytest.raises(RunError, match="is a link that leads out of extra"):
        pack.pack(theirs, Path("p.zip"), include=[Path("extra")])


def test_a_pack_has_the_code_that_the_run_lists_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "nets.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    listed = replace(config("fedavg", network="./nets.py:net"), own_code=own_code.hashes(f"{tmp_path}/nets.py:net"))
    pack._code(pack.Contents(), listed, tmp_path)
    (tmp_path / "helper.py").unlink()
    fewer = replace(listed, own_code=own_code.hashes(f"{tmp_path}/nets.py:net"))
    (tmp_path / "mine").write_text("mine = 1")
    (tmp_path / "helper.py").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=r"helper\.py is not among the code that the run was begun with"):
        pack._code(pack.Contents(), fewer, tmp_path)


def test_the_script_of_a_pack_quotes_names(theirs: Path) -> None:
    name = "-n x' $(touch ran) '; `touch ran` \"$(touch ran)\"\ntouch ran #"
    theirs.rename(theirs.parent / name)
    pack.pack(theirs.parent / name, Path("p.zip"))
    shutil.unpack_archive("p.zip", "out")
    Path("bin").mkdir()
    for command in ("equipoise", "cp"):
        Path("bin", command).write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> said\n')
        Path("bin", command).chmod(0o755)
    subprocess.run(["sh", "out/rerun.sh"], env={"PATH": f"{Path('bin').absolute()}:/usr/bin:/bin"}, check=True)
    assert not [*Path().rglob("ran")]
    assert Path("out/said").read_text().endswith(f"resume --trust again/runs/{name}\n")


# writing
def test_new_files_go_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / ".r.guessed.part").symlink_to(tmp_path / "mine")
    with pytest.raises(FileExistsError):
        files.write_atomically(tmp_path / "r", "theirs")
    for name in ("r", "log", "records", "drawn.png"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "mine")
    (tmp_path / ".r.guessed.part").unlink(missing_ok=True)
    files.write_atomically(tmp_path / "r", "theirs")
    with files.open_private(tmp_path / "log") as file:
        file.write(b"theirs")
    with pytest.raises(OSError, match="symbolic links"):
        files.append(tmp_path / "records", "theirs")
    from matplotlib.figure import Figure

    drawing.save({"drawn": Figure()}, tmp_path, ["png"])
    assert (tmp_path / "mine").read_text() == "mine"
    assert {name: (tmp_path / name).is_symlink() for name in ("r", "log", "drawn.png")} == dict.fromkeys(
        ("r", "log", "drawn.png"), False
    )


def test_two_writers_of_one_process_have_files_of_their_own(tmp_path: Path) -> None:
    first = files.write_atomically(
        tmp_path / "r", (part for part in [b"a", files.write_atomically(tmp_path / "r", "b").read_bytes()])
    )  # type: ignore[arg-type]
    assert first.read_bytes() == b"ab"


def test_figures_go_into_no_folder_elsewhere(theirs: Path, equipoise: Any) -> None:
    (theirs.parent.parent / "paper").mkdir()
    Path("report-figures").symlink_to(theirs.parent.parent / "paper")
    done = equipoise("report", "theirs", "--figures")
    assert (done.status, "report-figures is a link that leads out of" in done.err) == (1, True), done.err
    assert not [*(theirs.parent.parent / "paper").iterdir()]


@pytest.mark.parametrize("name", ["checkpoint", "best"])
def test_states_go_into_no_folder_elsewhere(tmp_path: Path, name: str) -> None:
    """Also of a federation in Python, which asks nobody; old states are removed, and nothing of the user's is."""
    data = [(torch.randn(30, 4), torch.arange(30) % 2) for _ in range(2)]
    fed = eq.Federation(torch.nn.Linear(4, 2), data, tests={"t": data[0]})
    fed.fit(1, directory=tmp_path / "run", progress=False)
    (tmp_path / "mine/deep").mkdir(parents=True)
    (tmp_path / "mine/state-000000.safetensors").write_text("mine")
    shutil.rmtree(tmp_path / "run" / name, ignore_errors=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=f"{name}.* is a link that leads out of"):
        fed.fit(1, directory=tmp_path / "run", progress=False)
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"deep", "state-000000.safetensors"}


# modes
@pytest.fixture(params=[0, 0o002, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_what_is_private_is_its_owners_under_any_umask(tmp_path: Path, umask: int) -> None:
    pytest.importorskip("dp_accounting")
    assert spend({"max-epsilon": 50.0, "state-dir": str(tmp_path / "state/deep")}, 5.0)
    with files.open_private(tmp_path / "state/a.log"), files.locked(tmp_path / "state/.lock", private=True):
        (tmp_path / "state/begun").touch(0o666)
        files.append(tmp_path / "state/begun", "x", private=True)
    assert {name: mode & 0o077 for name, mode in modes(tmp_path).items()} == dict.fromkeys(modes(tmp_path), 0)


def test_nobody_else_writes_bundles_and_keys(bundle: Path, tmp_path: Path, umask: int) -> None:
    local = pytest.importorskip("equipoise.flower.deploy.local")
    bundles.take(bundle, tmp_path / "home")
    local.certify(tmp_path / "new/certs", ["a"])
    assert {name: mode & 0o022 for name, mode in modes(tmp_path).items()} == dict.fromkeys(modes(tmp_path), 0)
    assert {stat.S_IMODE((tmp_path / "new/certs" / name).stat().st_mode) for name in ("a", "ca.key")} == {0o600}


# other processes
def test_looking_for_a_module_leaves_the_path_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evilpkg").mkdir()
    (tmp_path / "evilpkg/nets.py").write_text("")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert own_code.source("evilpkg.nets") == tmp_path / "evilpkg/nets.py"
    assert own_code.hashes("evilpkg.nets:net")["evilpkg.nets"]
    assert sys.path == before


MODULES = ("json", "typer", "struct", "multiprocessing", "equipoise", "uarray", "flwr", "click")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules that leave a mark."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise ImportError\n"
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_imports_nothing_from_the_current_folder(hostile: Path) -> None:
    subprocess.run(workers.python("-c", "import json, struct"), check=True)
    with workers.isolated():
        subprocess.run([sys.executable, "-c", "import json, struct"], check=True)
        inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import struct'], check=True)"
        subprocess.run([sys.executable, "-c", inner], check=True)
    assert not (hostile / "ran").exists()


def test_nor_do_the_workers_of_a_federation(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import spawn

    processes = pytest.importorskip("equipoise.engines.processes")
    monkeypatch.setattr(
        spawn,
        "get_command_line",
        lambda **_: [sys.executable, "-c", "open('flag', 'w').write(str(__import__('sys').flags.safe_path))"],
    )
    worker = processes._start()
    worker.process.join()
    assert (hostile / "flag").read_text() == "True"


def test_nor_do_flowers_programs(hostile: Path) -> None:
    superlink = pytest.importorskip("equipoise.flower.deploy.superlink")
    script = "import json, struct; print(json.dumps({'success': True}))"
    link = superlink.SuperLink("none", superlink.environment())
    assert link.call("ls", script=script)["success"]
    subprocess.run([sys.executable, "-c", "import json"], env=dict(link.variables), check=True)
    assert not (hostile / "ran").exists()


def test_every_python_is_started_by_the_same_function() -> None:
    import ast

    source = Path(eq.__file__).parent
    starting = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "sys.executable" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.List) and any(ast.unparse(x) == "sys.executable" for x in node.elts)
    }
    assert starting == {"system/workers.py"}


def test_a_file_of_two_names_is_not_changed_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "metrics.jsonl").hardlink_to(tmp_path / "mine")
    (tmp_path / ".lock").hardlink_to(tmp_path / "mine")
    (tmp_path / CLAIM).hardlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="is also another file"):
        files.append(tmp_path / "metrics.jsonl", "theirs")
    with pytest.raises(RunError, match="is also another file"), files.locked(tmp_path / ".lock"):
        pass
    with pytest.raises(RunError, match="Process unknown is at"), claimed(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_file_larger_than_the_free_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(1 << 25)
    assert len(files.read_regular(tmp_path / "model.safetensors")) == 1 << 25
    monkeypatch.setenv("EQUIPOISE_MEMORY", "30MiB")
    with pytest.raises(RunError, match="33,554,432 bytes, and 31,457,280 of the memory are free"):
        files.read_regular(tmp_path / "model.safetensors")


def test_keys_of_many_parts_are_refused_before_they_are_read() -> None:
    for text in ("a" + ".a" * 1100 + " = 1", "[a" + ' . "a"' * 1100 + "]"):
        with pytest.raises(ValueError, match="nested too deeply"):
            open_toml(text)
    assert open_toml("a" + ".a" * 90 + " = 1")
    assert open_toml(f"a = {[0.5] * 2000}")


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_figures_take_no_settings_from_the_current_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.chdir(tmp_path)
    (tmp_path / "matplotlibrc").write_text("text.usetex: true\n") if kind == "file" else os.mkfifo("matplotlibrc")
    with matplotlib.rc_context({"text.usetex": True}):  # as matplotlib would have read it
        if kind == "pipe":
            with pytest.raises(RunError, match="is a pipe or a device"):
                drawing.panels(1, height=1)
            return
        _, (axes,) = drawing.panels(1, height=1)
        assert not axes.set_title("a").get_usetex()
