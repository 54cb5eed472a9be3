"""The wheel, built and tried as `make dist` does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import equipoise as eq

ROOT = Path(__file__).parents[1]


def copied(tree: Path) -> Path:
    """The tracked files as they are now."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    return tree


@pytest.mark.slow
def test_a_wheel_is_built_and_runs_in_a_new_environment(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    installed = Path(sys.executable).parent
    command = ["make", "dist", "SITES=", f"BIN={installed}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "report: .runs/" in done.stdout
    assert sorted(path.suffix for path in (tree / "dist").iterdir()) == [".gz", ".whl"]
    (wheel,) = (tree / "dist").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = {str(p.relative_to(tree / "src")) for p in (tree / "src").rglob("*") if p.is_file()}
    assert source <= packed


MADE = """
import sys, numpy, equipoise as eq
data = eq.scenario("heart")
net = eq.network("mlp", data.shape, data.outputs, seed=0, hidden=[7])
fed = eq.Federation(net, data.clients, tests=data.tests, names=data.client_names, classes=data.classes,
                    attributes=data.attributes, validation=0.3, positive=data.positive)
fed.fit(2, progress=False)
chosen = eq.choose_threshold(fed, sensitivity=0.8, by_group="sex")
fed.save_bundle("model", data=data.manifest, license="cc-by-4.0", threshold=chosen)
fed.save_bundle("smooth", data=data.manifest, recalibrate="platt")
"""
USED = """
import sys, pathlib, equipoise as eq
assert pathlib.Path(eq.__file__).is_relative_to(sys.prefix), eq.__file__
for name in ("model", "smooth"):
    model = eq.load(name)
    pathlib.Path(f"{name}.bits").write_bytes(model.predict_proba("new.csv").tobytes())
    pathlib.Path(f"{name}.txt").write_text(" ".join(map(str, model.predict("new.csv"))))
"""


@pytest.mark.slow
def test_a_bundle_predicts_the_same_where_only_the_wheel_is(tmp_path: Path) -> None:
    """Written by this environment, moved, loaded in a new one that has the wheel and what it requires; the same bits and decisions."""

    def call(*command: str | Path, where: Path) -> None:
        new = str(command[0]).startswith(str(tmp_path))  # its Python must see the wheel alone
        env = {name: value for name, value in os.environ.items() if not new or name != "PYTHONPATH"}
        done = subprocess.run([*map(str, command)], cwd=where, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr[-2000:]

    tree, here, away = copied(tmp_path / "tree"), tmp_path / "here", tmp_path / "elsewhere" / "in"
    here.mkdir()
    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", where=tree)
    call(sys.executable, "-m", "venv", tmp_path / "venv", where=tmp_path)
    python = tmp_path / "venv/bin/python"
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, "--constraint", ROOT / "constraints.txt", wheel, where=tmp_path)
    call(sys.executable, "-c", MADE, where=here)
    away.mkdir(parents=True)
    for name in ("model", "smooth"):
        (here / name).rename(away / name)
    rows = (ROOT / "src/equipoise/scenarios/heart.csv").read_text().splitlines()
    (away / "new.csv").write_text("\n".join(rows[:400]) + "\n")
    shutil.copy(away / "new.csv", here)
    call(python, "-c", USED, where=away)
    for name in ("model", "smooth"):
        model = eq.load(away / name)
        assert (away / f"{name}.bits").read_bytes() == model.predict_proba(here / "new.csv").tobytes()
        expected = model.predict(here / "new.csv")
        assert (away / f"{name}.txt").read_text().split(" ") == " ".join(map(str, expected)).split(" ")
        assert len({*expected}) == 2
    call(tmp_path / "venv/bin/equipoise", "predict", "model", "new.csv", "--output", "p.csv", where=away)
    assert len((away / "p.csv").read_text().splitlines()) == 400
