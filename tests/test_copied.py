"""A run survives its folder: copied, moved, renamed, on another machine, of another user."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.runs import directory as runs, reproduce
from equipoise.runs.configuration import RunError, configure
from equipoise.system import own_code, places
from helpers import others_slow
from run_helpers import assert_same_run, cache, equipoise, executed, started

MINE = """
from dataclasses import dataclass

import torch

import equipoise as eq


@dataclass(frozen=True)
class Prox(eq.Rule):
    mu: float = eq.number(0.01, low=0)

    def correction(self, theta, visit):
        from inner.scale import TWICE
        return TWICE * self.mu * (theta - visit.start)


def net(in_shape, n_classes):
    return torch.nn.Linear(in_shape[0], n_classes)


def clients(seed):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(seed))
    return [(x + k, (x[:, 0] > 0).long()) for k in range(2)]
"""
TABLE = "a,b,client,label\n" + "".join(
    f"{k % 7},{k % 5},{'north' if k % 2 else 'south'},{int(k % 7 > 3)}\n" for k in range(60)
)
CODE: dict[str, Any] = {"data": "mine.py:clients", "network": "mine.py:net"}


def write_project(folder: Path) -> None:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "scale.py").write_text("TWICE = 2.0\n")
    (folder / "mine.py").write_text(MINE)
    (folder / "my table.csv").write_text(TABLE)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user ``alice``, with code and data, in which we are."""
    home = tmp_path / "home" / "alice"
    folder = home / "work"
    write_project(folder)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def moved(project: Path, monkeypatch: pytest.MonkeyPatch, where: str = "mnt/other/place") -> Path:
    """The project copied to where another user is, the first one's folder gone, and we somewhere else."""
    base = project.parents[2]
    shutil.copytree(project, base / where)
    (base / "home" / "alice").rename(base / "home" / "gone")
    (base / "home" / "bob").mkdir()
    monkeypatch.setenv("HOME", str(base / "home" / "bob"))
    monkeypatch.chdir(base)
    return base / where


def names_nobody(folder: Path) -> None:
    """No file below a folder has a user's name or a whole path."""
    base = str(folder).partition("/mnt/")[0].partition("/home/")[0]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for word in ("alice", "bob", base):
            assert word.encode() not in content, (path, word)


@pytest.mark.parametrize(
    "data", others_slow(["my table.csv", "~/work/my table.csv", "./inner/../my table.csv", None], fast=(1, 3))
)
def test_a_copied_run_goes_on_elsewhere_with_the_same_bits(
    project: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any, data: str | None
) -> None:
    settings = ("fedheal+mine.py:Prox", "own") if data is None else ("fedheal", "own")
    more = CODE if data is None else {"data": str(Path(data).expanduser().absolute())}
    config = configure(*settings, rounds=3, **more)
    whole = executed(Path("runs/whole"), config)
    begun = started(Path("runs/begun"), config)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.execute(begun, progress=False, on_round=stop)
    there = moved(project, monkeypatch)
    assert equipoise("resume", there / "runs/begun").status == 0
    assert_same_run(there / "runs/whole", there / "runs/begun")
    for command in (("export", there / "runs/whole"), ("report", there / "runs/whole", "-o", there / "runs/r.html")):
        assert equipoise(*command).status == 0
    names_nobody(there / "runs")
    assert whole.name == "whole"


def test_the_same_command_takes_a_copied_comparison_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    command = ("compare", "fedavg", "mine.py:Prox(mu=0.1)", "--rounds", 1, "--name", "c", "--no-report", "--jobs", 1)
    options = ("--data", "mine.py:clients", "--network", "mine.py:net")
    for method in ("fedavg", "mine.py:Prox(mu=0.1)"):
        config = configure(method, "own", rounds=1, **CODE)
        executed(Path("runs/c") / f"{runs.slug(config.label)}-seed0", config)
    there = moved(project, monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in there.rglob("metrics.jsonl")}
    monkeypatch.chdir(there)
    assert equipoise(*command, *options).status == 0
    assert before == {path: path.stat().st_mtime_ns for path in there.rglob("metrics.jsonl")}


def test_data_that_moved_are_the_same_by_content(
    project: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    run = ("run", "--rounds", 1, "--name", "a", "--no-report", "--data")
    assert equipoise(*run, "my table.csv").status == 0
    Path("my table.csv").rename("renamed.csv")
    refused = equipoise("export", "runs/a")
    assert refused.status == 1
    assert "Say where they are now: equipoise resume runs/a --data PATH." in refused.err
    assert equipoise("export", "runs/a", "--data", "renamed.csv").status == 0
    assert equipoise("resume", "runs/a", "--data", "renamed.csv", "--no-report").status == 0
    assert equipoise("export", "runs/a").status == 0
    assert equipoise(*run, "renamed.csv").status == 0
    Path("other.csv").write_text(TABLE.replace("6,", "7,"))
    for other in (equipoise("resume", "runs/a", "--data", "other.csv"), equipoise(*run, "other.csv")):
        assert other.status == 1
        assert "holds a run on other data" in other.err
    assert equipoise("export", "runs/a").status == 0  # it has the old ones still


def test_code_is_known_by_its_content(project: Path, equipoise: Any) -> None:
    config = configure("mine.py:Prox", "own", rounds=1, **CODE)
    assert {*(config.own_code or {})} == {f"{project}/{name}" for name in ("mine.py", "inner/scale.py")}
    executed(Path("runs/a"), config)
    Path("src").mkdir()
    for name in ("mine.py", "inner"):
        Path(name).rename(f"src/{name}")
    assert "mine.py is gone" in equipoise("export", "runs/a").err
    command = ("run", "--rounds", 1, "--name", "a", "--no-report", "--method", "src/mine.py:Prox")
    options = ("--data", "src/mine.py:clients", "--network", "src/mine.py:net")
    assert equipoise(*command, *options).status == 0
    assert equipoise("export", "runs/a").status == 0
    Path("src/inner/scale.py").write_text("TWICE = 3.0\n")
    for again in (equipoise("export", "runs/a"), equipoise(*command, *options)):
        assert again.status == 1
    assert "inner/scale.py has changed since" in equipoise("export", "runs/a").err


def test_code_of_a_module_and_what_it_imports(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pkg" / "sub").mkdir(parents=True)
    (project / "pkg" / "__init__.py").write_text("")
    (project / "pkg" / "sub" / "more.py").write_text("from .. import third\nimport json\n")
    (project / "pkg" / "third.py").write_text("import no_such_module\n")
    (project / "pkg" / "rules.py").write_text(MINE + "\n\ndef later():\n    from .sub.more import json\n")
    known = own_code.hashes("fedavg+pkg.rules:Prox")
    beside = ("pkg/third.py", "pkg/sub/more.py", "inner/scale.py", "pkg/__init__.py")
    assert known.keys() == {"pkg.rules", *(f"{project}/{name}" for name in beside)}
    assert known["pkg.rules"] == own_code.digest("pkg/rules.py")
    assert own_code.by_content("fedavg+pkg.rules:Prox", known) == f"fedavg+{known['pkg.rules']}.py:Prox"
    of_earlier = {f"{project}/pkg/rules.py": "0" * 64}
    assert own_code.by_content("pkg.rules:Prox(mu=1)", of_earlier) == f"{'0' * 64}.py:Prox(mu=1)"


def test_a_run_of_an_earlier_version_has_whole_paths_and_opens(project: Path, equipoise: Any) -> None:
    config = configure("mine.py:Prox", "own", rounds=1, **CODE)
    executed(Path("runs/a"), config)
    old = {k: v for k, v in config.table().items() if v is not None}
    old["own_code"] = {f"{project}/mine.py": own_code.digest("mine.py")}
    import tomli_w

    Path("runs/a/config.toml").write_text(tomli_w.dumps(old))
    with pytest.raises(RunError, match="is not of a run begun by you on this machine, and names"):
        runs.load(Path("runs/a"))
    assert runs.load(Path("runs/a"), checked=False).method == f"{project}/mine.py:Prox"
    runs.start(config, Path("runs/a"))
    assert equipoise("export", "runs/a").status == 0
    Path("runs/a/config.toml").write_text(tomli_w.dumps(old))
    shown = eq.History.from_run("runs/a").meta["config"]
    assert str(project) not in json.dumps(shown)


def test_python_keeps_no_whole_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> eq.Federation:
        data = eq.scenario("own", data="mine.py:clients")
        return eq.Federation(eq.network("mine.py:net", data.shape, 2), data.clients, "mine.py:Prox", tests=data.tests)

    make().fit(1, directory="runs/a", progress=False)
    data = eq.scenario("own", data="mine.py:clients")
    net = eq.network("mine.py:net", data.shape, 2)
    compared = {"rounds": 1, "seeds": 1, "directory": "runs/c", "tests": data.tests, "progress": False}
    table = eq.compare(net, data.clients, ["fedavg", "mine.py:Prox"], **compared)
    table.report("runs/report.html")
    there = moved(project, monkeypatch)
    monkeypatch.chdir(there)
    assert make().resume("runs/a") == 0
    eq.compare(net, data.clients, ["fedavg", "mine.py:Prox"], **compared)
    names_nobody(there / "runs")


def test_a_path_outside_of_the_project(project: Path) -> None:
    base, home = project.parents[2], project.parents[0]
    assert places.portable(project / "x.csv", project) == "x.csv"
    assert places.portable(home / "x.csv", project) == "../x.csv"
    assert places.portable(home / "x.csv", base / "elsewhere") == "~/x.csv"
    assert places.portable("/data/x.csv", Path("/work/here")) == "../../data/x.csv"


@given(
    st.lists(st.sampled_from(["a", "b+c", "(d)", "e,f", ".g", "é=", "h i"]), min_size=1, max_size=4), st.integers(0, 3)
)
def test_every_path_comes_back(names: list[str], up: int) -> None:
    project = Path("/some/where/deep")
    path = Path(os.path.normpath(project.joinpath(*[".."] * up, *names, "x.py")))
    assert places.located(places.portable(path, project), project) == str(path)
    reference = f"fedavg+{path}:Prox(mu=1)"
    short = own_code.moved(reference, lambda p: places.portable(p, project))
    assert own_code.moved(short, lambda p: places.located(p, project)) == reference


def test_a_run_whose_project_is_gone_is_looked_for_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed(Path("runs/a"), configure("fedavg", "own", data=str(project / "my table.csv"), rounds=1))
    there = project.parents[2] / "archive/2026/deep"
    there.parent.mkdir(parents=True)
    shutil.move("runs/a", there)
    assert len(runs.trained(there).records) == 1  # we are in the project
    monkeypatch.chdir(there)
    with pytest.raises(RunError, match=r"are not at .*my table\.csv\. Say where they are now"):
        runs.trained(there)


def test_an_experiment_finds_its_runs_where_the_project_is_now(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(data: str) -> Path:
        config = configure("mine.py:Prox", "own", rounds=1, data=str(Path(data).absolute()), network="mine.py:net")
        return reproduce._place(Path("cells"), config)

    here = place("my table.csv")
    there = moved(project, monkeypatch)
    monkeypatch.chdir(there)
    assert place("my table.csv") == here
    Path("inner/scale.py").write_text("TWICE = 2.5\n")
    assert place("my table.csv") == here  # its directory refuses what a rule imports, if it was changed
    Path("mine.py").write_text(MINE + "# changed\n")
    assert place("my table.csv") != here
    embedded = configure("fedavg", rounds=1)
    assert reproduce._place(Path("cells"), embedded).name == reproduce._stem(embedded)  # as it ever was


def test_an_experiment_goes_on_in_the_directories_of_an_earlier_version(project: Path) -> None:
    config = configure("mine.py:Prox", "own", rounds=1, data="my table.csv", network="mine.py:net")
    now, before = reproduce._place(Path("cells"), config), Path("cells") / reproduce._stem(config)
    assert now != before
    before.mkdir(parents=True)
    assert reproduce._place(Path("cells"), config) == before


@pytest.mark.parametrize("track", ["mlflow:http://localhost:5000", "tensorboard", "tensorboard:logs", "wandb:team/x"])
def test_an_address_of_a_tracker_is_no_path(project: Path, track: str) -> None:
    written = places.written({"method": "fedavg", "track": track}, project / "runs/a", project)
    assert written == {"method": "fedavg", "track": track}


def test_a_folder_of_a_tracker_is_relative_too(project: Path) -> None:
    written = places.written({"track": f"tensorboard:{project}/my logs"}, project / "runs/a", project)
    assert written == {"project": "../..", "track": "tensorboard:./my logs"}
    assert places.read(written, project / "runs/a") == {"track": f"tensorboard:{project}/my logs"}


def test_reasons_in_records_name_no_folder(project: Path) -> None:
    home = project.parent
    assert places.private({"why": [f"{project}/x.png is gone", f"{home}/y", 3, None]}) == {
        "why": ["x.png is gone", "~/y", 3, None]
    }


def test_other_data_are_not_taken_for_moved_ones_where_that_cannot_be_checked(project: Path) -> None:
    config = configure("fedavg", "own", rounds=1, data="my table.csv")
    run = executed(Path("runs/a"), config)
    Path("other.csv").write_text(TABLE.replace("6,", "7,"))
    other = configure("fedavg", "own", rounds=1, data="other.csv")
    with pytest.raises(RunError, match="holds a run on other data"):
        runs.start(other, run)
    (run / "manifest.json").unlink()
    with pytest.raises(RunError, match="holds a run with other settings"):
        runs.start(other, run)
    assert runs.load(run).data == str(project / "my table.csv")
    begun = started(Path("runs/b"), config)  # nothing is trained there yet
    runs.start(other, begun)
    assert runs.load(begun).data == str(project / "other.csv")
