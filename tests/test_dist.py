"""The wheel, built and tried as `make dist` does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_is_built_and_runs_in_a_new_environment(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    installed = Path(sys.executable).parent
    command = ["make", "dist", "STAMP=", f"BIN={installed}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "report: .runs/" in done.stdout
    assert sorted(path.suffix for path in (tree / "dist").iterdir()) == [".gz", ".whl"]
    (wheel,) = (tree / "dist").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = {str(p.relative_to(tree / "src")) for p in (tree / "src").rglob("*") if p.is_file()}
    assert source <= packed
