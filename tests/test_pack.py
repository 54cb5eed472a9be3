"""Runs in one file: what is in it, that it is checked before anything is believed or run, and that the numbers come out the same."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, example, given, settings, strategies as st

import equipoise as eq
from equipoise.records.record import lines
from equipoise.runs import directory as runs, pack as packs
from equipoise.runs.configuration import RunError, configure
from equipoise.runs.pack import ABOUT, opened
from equipoise.system import trust, workers
from equipoise.system.seals import open_json, sealed_json
from run_helpers import InProcess, cache, config, equipoise, executed, started
from test_copied import CODE, names_nobody, project, write_project

Files = dict[str, bytes]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made again in this process, which is quicker."""
    monkeypatch.setattr(workers, "Worker", InProcess)


def content(path: Path) -> Files:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(path: Path, files: Files, listed: bool = True) -> Path:
    """A zip file of these; its list has the right hashes, as a forger would write it, if it is to be ``listed``."""
    files = dict(files)
    if listed:
        about = open_json(files[ABOUT].decode())
        about["files"] = {
            name: {**about["files"].get(name, {"kind": "code"}), "bytes": len(of), "sha256": packs._sha(of)}
            for name, of in files.items()
            if name != ABOUT
        }
        files[ABOUT] = sealed_json(about).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, of in files.items():
            file.writestr(name, of)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A project with a run on a table, with code, and a pack of it; the data are not in it."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        write_project(folder)
        more = {"data": "my table.csv", "network": "mine.py:net"}
        executed(Path("runs/a"), configure("mine.py:Prox", "own", rounds=2, **more))
        packs.pack(Path("runs/a"), Path("a.zip"))
    return folder


@pytest.fixture
def packed(project: Path, made: Path) -> Path:
    """The same in the folder in which we are."""
    shutil.copytree(made, project, dirs_exist_ok=True)
    return project / "a.zip"


def test_a_pack_holds_all_but_the_data_and_has_the_same_bytes_again(packed: Path, tmp_path: Path) -> None:
    files = content(packed)
    run = {
        f"runs/a/{name}" for name in ("config.toml", "manifest.json", "metrics.jsonl", "summary.json", "report.html")
    }
    assert files.keys() == {ABOUT, "rerun.sh", "constraints.txt", "mine.py", "inner/scale.py", *run}
    about = packs.pack(Path("runs/a"), Path("b.zip"))
    assert Path("b.zip").read_bytes() == packed.read_bytes()
    assert about["sha256"] == packs._sha(packed.read_bytes())
    assert about["runs"][0]["data"] == {"name": "my table.csv", "inside": False}
    with zipfile.ZipFile(packed) as file:
        file.extractall(tmp_path / "mnt")
    names_nobody(tmp_path / "mnt")
    assert f"torch=={torch.__version__.partition('+')[0]}\n" in files["constraints.txt"].decode()
    inside = content_with_data = packs.pack(Path("runs/a"), Path("c.zip"), with_data=True)
    assert inside["files"].keys() - about["files"].keys() == {"my table.csv"}
    assert content_with_data["runs"][0]["data"]["inside"]
    assert eq.History.from_run(tmp_path / "mnt/runs/a").records == eq.History.from_run("runs/a").records


def test_the_numbers_come_out_the_same_elsewhere(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None, equipoise: Any
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "table.csv").write_bytes(Path("my table.csv").read_bytes())
    (away / "other.csv").write_bytes(Path("my table.csv").read_bytes().replace(b"6,", b"7,"))
    (tmp_path / "home" / "alice").rename(tmp_path / "home" / "gone")
    monkeypatch.setenv("HOME", str(away))
    monkeypatch.chdir(away)
    path = tmp_path / "home/gone/work/a.zip"
    checked = equipoise("verify", path)
    assert checked.status == 0
    assert "Nothing was run" in checked.out
    assert all(f"{digest}  {name}" in checked.out for name, digest in packs.code(_opened(path, away / "x")).items())
    lacking = equipoise("verify", path, "--run-code")
    assert lacking.status == 1
    assert "The data are not in the pack: say where my table.csv is, with --data PATH." in lacking.err
    same = equipoise("verify", path, "--run-code", "--data", "table.csv")
    assert (same.status, same.err) == (0, "")
    assert "runs/a: the same, bit for bit" in same.out
    other = equipoise("verify", path, "--run-code", "--data", "other.csv")
    assert other.status == 1
    assert "holds a run on other data" in other.out
    document = json.loads(equipoise("verify", path, "--run-code", "--data", "table.csv", "--json").out)
    assert (document["same"], document["runs"][0]["same"]) == (True, True)


def _opened(path: Path, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return opened(path, folder)


def test_another_result_is_said_with_its_size(packed: Path, project: Path, here: None, equipoise: Any) -> None:
    files = content(packed)
    records = list(eq.History.from_run("runs/a").records)
    group = next(iter(records[1]["groups"]))
    records[1]["groups"][group]["loss"] += 2**-20
    files["runs/a/metrics.jsonl"] = "".join(lines(records)).encode()
    del files["runs/a/summary.json"]
    found = equipoise("verify", zipped(project / "x.zip", files), "--run-code", "--data", "my table.csv")
    assert found.status == 1
    assert f"not the same: the largest difference is 9.54e-07, in round 1: groups {group} loss" in found.out
    assert "1 of 1 runs did not come out the same, with the same versions on the same kind of processor." in found.err
    about = open_json(files[ABOUT].decode())
    about["runs"][0]["versions"]["torch"] = "0.4"
    files[ABOUT] = sealed_json(about).encode()
    found = equipoise("verify", zipped(project / "x.zip", files), "--run-code", "--data", "my table.csv")
    assert "Another processor or version rounds otherwise" in found.err
    assert f"torch is 0.4 there and {torch.__version__.partition('+')[0]}" in found.err


def test_other_code_in_the_pack_is_refused_by_the_run(packed: Path, project: Path, here: None, equipoise: Any) -> None:
    files = content(packed)
    files["inner/scale.py"] = b"TWICE = 3.0\n"
    found = equipoise("verify", zipped(project / "x.zip", files), "--run-code", "--data", "my table.csv")
    assert found.status == 1
    assert "was begun with other code" in found.out


def test_names_that_lead_out_are_refused(packed: Path, project: Path) -> None:
    evil = ("../evil.py", "/evil.py", "a/../../evil.py", "a\\..\\evil.py", "C:evil.py", "./x.py", "a//x.py", "x/")
    for k, name in enumerate(evil):
        path = zipped(project / "x.zip", content(packed) | {name: b"print('evil')"})
        with pytest.raises(RunError, match="would be written outside of the folder"):
            _opened(path, project / f"x{k}")
        assert not [*(project / f"x{k}").iterdir()], name


@pytest.mark.parametrize(
    "files",
    [
        {"x" * 300: b"1"}, {"a": b"1", "a/b": b"2"}, {"a/b": b"1", "a": b"2"}, {"runs/a/summary.json": b"[1]"},
        {"runs/a/summary.json": b"", "runs/a/summary.json/b": b"2"},
    ],
)  # fmt: skip
def test_names_that_no_folder_can_hold_are_refused(packed: Path, project: Path, files: dict[str, bytes]) -> None:
    path = zipped(project / "x.zip", content(packed) | files)
    with pytest.raises(RunError, match=r"x\.zip.* damaged"):
        _opened(path, project / "x")


def test_links_and_what_is_not_listed_are_refused(packed: Path, project: Path) -> None:
    files = content(packed)
    for change, expected in (
        ({"more.py": b"x"}, "more.py is not listed"),
        ({"mine.py": files["mine.py"] + b"#"}, "mine.py has another size"),
        ({"mine.py": files["mine.py"].replace(b"2", b"3"), "inner/scale.py": b"TWICE = 2.5\n"}, "scale.py was changed"),
    ):
        if expected == "scale.py was changed" and len(files["inner/scale.py"]) != 12:
            continue
        with pytest.raises(RunError, match=expected):
            _opened(zipped(project / "x.zip", files | change, listed=False), project / expected)
    without = {name: of for name, of in files.items() if name != "mine.py"}
    with pytest.raises(RunError, match=r"mine\.py is missing"):
        _opened(zipped(project / "x.zip", without, listed=False), project / "missing")
    path = project / "link.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, of in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16 if name == "mine.py" else 0
            file.writestr(entry, of)
    with pytest.raises(RunError, match=r"mine\.py is a link"):
        _opened(path, project / "link")


def test_large_files_are_unpacked_in_pieces(packed: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(project / "x.zip", content(packed) | {"zeros.bin": bytes(16 << 20)})
    tracemalloc.start()
    _opened(path, project / "whole")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20
    assert (project / "whole" / "zeros.bin").stat().st_size == 16 << 20
    monkeypatch.setenv("EQUIPOISE_MEMORY", "1KiB")
    with pytest.raises(
        ValueError, match=r"x\.zip, runs/.* would take .* of memory"
    ):  # of records, which are read whole
        _opened(path, project / "less")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("pack.json", "{}")
    with pytest.raises(RunError, match=r"pack\.json is packed in way 14, expected is deflate"):
        _opened(path, project / "other")


def test_what_is_no_pack_is_refused(packed: Path, project: Path, equipoise: Any) -> None:
    files = content(packed)
    Path("no.zip").write_bytes(b"PK no")
    Path("empty.zip").write_bytes(b"")
    Path("cut.zip").write_bytes(packed.read_bytes()[:-100])
    whole = bytearray(packed.read_bytes())
    whole[len(whole) // 2] ^= 1
    Path("flipped.zip").write_bytes(whole)
    zipped(Path("other.zip"), {"a.txt": b"x"}, listed=False)
    about = open_json(files[ABOUT].decode())
    zipped(Path("newer.zip"), files | {ABOUT: sealed_json({**about, "format": 2}).encode()})
    zipped(Path("odd.zip"), files | {ABOUT: sealed_json({"format": 1, "files": 3}).encode()}, listed=False)
    zipped(Path("twice.zip"), files | {ABOUT: sealed_json({**about, "runs": about["runs"] * 2}).encode()})
    zipped(Path("edited.zip"), files | {ABOUT: files[ABOUT].replace(b"Prox", b"Frox")}, listed=False)
    for name, expected in (
        ("none.zip", "does not exist"),
        ("no.zip", "is no zip file, or is damaged"),
        ("empty.zip", "is no zip file, or is damaged"),
        ("cut.zip", "is no zip file, or is damaged"),
        ("flipped.zip", "is"),
        ("other.zip", "has no pack.json, so it was not made by equipoise pack"),
        ("newer.zip", "has the format 2, and this version of Equipoise reads 1"),
        ("odd.zip", "pack.json is not what equipoise pack writes"),
        ("twice.zip", "pack.json is not what equipoise pack writes"),
        ("edited.zip", "its content is not what was written"),
    ):
        found = equipoise("verify", name)
        assert found.status == 1, name
        assert expected in found.err
        assert found.err.count(name) == 1, found.err
    Path("runs").mkdir(exist_ok=True)
    assert (
        "runs is a directory, and a pack is one file. Make it first: equipoise pack runs"
        in equipoise("verify", "runs").err
    )


def test_records_that_do_not_give_the_summary_are_found(packed: Path, project: Path) -> None:
    files = content(packed)
    summary = open_json(files["runs/a/summary.json"].decode())
    summary["rounds"] = 7
    path = zipped(project / "x.zip", files | {"runs/a/summary.json": sealed_json(summary).encode()})
    with pytest.raises(RunError, match=r"summary\.json does not follow from its records: rounds"):
        _opened(path, project / "x")
    torn = files["runs/a/metrics.jsonl"].replace(b'"round":1', b'"round":2')
    with pytest.raises(RunError, match="a run in it is damaged"):
        _opened(zipped(project / "y.zip", files | {"runs/a/metrics.jsonl": torn}), project / "y")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@example(at=0.9996270497507466, bit=0)  # of the offset at which the list of files begins
def test_every_flipped_bit_is_found_or_means_nothing(packed: Path, project: Path, at: float, bit: int) -> None:
    whole = bytearray(packed.read_bytes())
    whole[int(at * len(whole))] ^= 1 << bit
    (project / "x.zip").write_bytes(whole)
    folder = project / f"x{at}-{bit}"
    folder.mkdir(exist_ok=True)
    try:
        opened(project / "x.zip", folder)
    except RunError:
        return
    before = content(packed)  # a time or a flag that nobody reads
    assert {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        name: of for name, of in before.items() if name != ABOUT
    }


def test_runs_of_python_are_checked_and_not_made_again(project: Path, equipoise: Any) -> None:
    data = eq.scenario("own", data="mine.py:clients")
    net = eq.network("mine.py:net", data.shape, 2)
    eq.compare(
        net, data.clients, ["fedavg", "fedprox"], 1, rounds=1, tests=data.tests, directory="runs/c", progress=False
    )
    Path("study.py").write_text("import equipoise\n")
    made = equipoise("pack", "runs/c", "--include", "study.py", "--include", "inner")
    assert made.status == 0
    assert made.out.count("it comes from a Python program") == 2
    files = content(Path("c.zip"))
    assert {"study.py", "inner/scale.py", "runs/c/comparison.json"} <= files.keys()
    assert "rerun.sh" not in files
    assert equipoise("verify", "c.zip").status == 0
    assert "made by a program in Python" in equipoise("verify", "c.zip", "--run-code").err


def test_what_cannot_be_packed_is_refused(project: Path, equipoise: Any) -> None:
    started(Path("runs/begun"), config())
    assert (
        "runs/begun is not complete. Finish it first: equipoise resume runs/begun."
        in equipoise("pack", "runs/begun").err
    )
    Path("runs/none").mkdir()
    assert "There is no run in runs/none" in equipoise("pack", "runs/none").err
    executed(Path("runs/a"), configure("fedavg", "own", rounds=1, data="my table.csv"))
    Path("my table.csv").unlink()
    assert "is gone, and --with-data needs it" in equipoise("pack", "runs/a", "--with-data").err
    assert "no.txt does not exist. Correct --include." in equipoise("pack", "runs/a", "--include", "no.txt").err
    assert "is a folder" in equipoise("pack", "runs/a", "--output", ".").err
    assert equipoise("pack", "runs/a").status == 0


def test_code_and_data_outside_of_the_project_are_packed_too(
    project: Path, monkeypatch: pytest.MonkeyPatch, here: None, equipoise: Any
) -> None:
    sub = project / "sub"
    sub.mkdir()
    (sub / "scale.py").write_text("TWICE = 5.0\n")
    monkeypatch.chdir(sub)
    executed(
        Path("runs/a"), configure("../mine.py:Prox", "own", rounds=1, data="../my table.csv", network="../mine.py:net")
    )
    about = packs.pack(Path("runs/a"), Path("a.zip"), with_data=True)
    (code,) = {name.split("/")[1] for name in about["files"] if name.startswith("elsewhere/") and name.endswith(".py")}
    names = {"elsewhere/my table.csv", f"elsewhere/{code}/mine.py", f"elsewhere/{code}/inner/scale.py"}
    assert {name for name in about["files"] if name.startswith("elsewhere/")} == names
    assert "runs/a: the same, bit for bit" in equipoise("verify", "a.zip", "--run-code").out


@pytest.mark.slow
def test_a_comparison_is_made_again_by_other_processes_and_by_the_script(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    command = (
        "compare",
        "fedavg",
        "mine.py:Prox",
        "--rounds",
        2,
        "--seeds",
        2,
        "--name",
        "c",
        "--data",
        "my table.csv",
    )
    assert equipoise(*command, "--network", "mine.py:net", "--no-report").status == 0
    assert equipoise("pack", "runs/c", "--with-data").status == 0
    found = equipoise("verify", "c.zip", "--run-code", "--jobs", 2)
    assert (found.status, found.out.count("the same, bit for bit")) == (0, 4)
    with zipfile.ZipFile("c.zip") as file:
        file.extractall(tmp_path / "x")
    program = tmp_path / "bin" / "equipoise"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m equipoise "$@"\n')
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", tmp_path / "x" / "rerun.sh"], env={**os.environ, **path}, cwd="/", capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for run in (tmp_path / "x/runs/c").glob("*-seed*"):
        again = tmp_path / "x/again/runs/c" / run.name
        assert (again / "summary.json").read_text() == (run / "summary.json").read_text()


def test_a_run_of_an_earlier_version_is_packed_without_its_paths(
    packed: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = project / "runs/a"
    known = runs.load(run)
    old = {k: v for k, v in known.table().items() if v is not None}
    (run / "config.toml").write_text(tomli_w.dumps(old))
    manifest = open_json((run / "manifest.json").read_text())
    manifest["data"]["source"], manifest["header"] = str(project / "my table.csv"), [f"method {project}/mine.py:Prox"]
    (run / "manifest.json").write_text(sealed_json(manifest))
    with pytest.raises(
        RunError, match=r"is not of a run begun by you on this machine, and names .*mine.py:Prox, .*my table.csv: if"
    ):
        packs.pack(run, project / "old.zip", with_data=True)
    monkeypatch.setenv(trust.VARIABLE, trust.EVERYTHING)
    packs.pack(run, project / "old.zip", with_data=True)
    with zipfile.ZipFile(project / "old.zip") as file:
        file.extractall(tmp_path / "mnt" / "old")
    names_nobody(tmp_path / "mnt" / "old")
    again = tmp_path / "mnt" / "again"
    about = _opened(project / "old.zip", tmp_path / "mnt" / "x")
    again.mkdir()
    assert about["files"]["mine.py"]["kind"] == "code"
