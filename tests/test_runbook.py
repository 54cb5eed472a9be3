"""The runbook works: its commands, one after the other in one shell, with a real server and real sites on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest

import equipoise
from equipoise.flower.deploy.certificates import read
from equipoise.flower.deploy.local import free_ports
from run_helpers import cache
from test_docs import blocks

__all__ = ["cache"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "runbook.md"
LIMIT = 3600.0  # seconds; about two minutes if nothing else runs


def wheel(directory: Path) -> None:
    """A wheel of the package as it is here, without a build."""
    info = f"equipoise-{equipoise.__version__}.dist-info"
    with zipfile.ZipFile(directory / f"equipoise-{equipoise.__version__}-py3-none-any.whl", "w") as file:
        for path in sorted((ROOT / "src").rglob("*.py")):
            file.write(path, path.relative_to(ROOT / "src"))
        file.writestr(f"{info}/METADATA", str(metadata("equipoise")))
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\nequipoise = equipoise.cli.main:main\n")
        file.writestr(f"{info}/RECORD", "")


def end_all(directory: Path) -> None:
    """Kill what still runs with a Flower home under the directory."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={directory}".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:  # it ended, or is not ours
            continue


@pytest.mark.slow
def test_every_command_of_the_runbook_works(tmp_path: Path, cache: Path) -> None:
    script = "\n".join(blocks(PAGE, "bash"))
    assert len(blocks(PAGE, "bash")) == PAGE.read_text().count("```") // 2, "every block is run"
    for known, free in zip(("8000", "9101", "9102", "9103"), free_ports(4), strict=True):
        script = script.replace(known, str(free))
    wheel(tmp_path)
    site_packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *site_packages]),  # what a wheelhouse would have
        **{f"PIP_{option}": "1" for option in ("NO_INDEX", "NO_DEPS", "IGNORE_INSTALLED")},
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    with (tmp_path / "shell.log").open("w") as log:
        try:
            done = subprocess.run(
                ["bash", "-euxo", "pipefail", "-c", script],
                cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
            )  # fmt: skip
        finally:
            end_all(tmp_path)
    told = (tmp_path / "shell.log").read_text()
    logs = "\n".join(f"--- {path}\n{path.read_text()[-2000:]}" for path in tmp_path.rglob("*.log"))
    assert done.returncode == 0, logs
    assert f"equipoise {equipoise.__version__}" in told
    assert re.search(r"[1-9]\d*% of the site's own test samples", told)
    assert "finished:stopped" in (tmp_path / "second.log").read_text()

    rows = [json.loads(line) for line in (tmp_path / "runs/second/metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["ids"] == [0, 1, 2]
    assert rows[3]["ids"] == [0, 1], "site-1 with its new key, without site-2"
    assert [q["name"] for q in rows[3]["quarantined"]] == ["site-2"]
    assert (tmp_path / "report/first.html").exists()

    (old,) = (tmp_path / "certs").glob("server-*.pem")
    assert read(old).not_valid_after_utc != read(tmp_path / "certs/server.pem").not_valid_after_utc
    assert not (tmp_path / "certs/ca.key").exists()
    inside = sorted((tmp_path / "site-0/state").iterdir())
    assert [path.name for path in inside if path.is_file()] == ["draws.json", "draws.lock"]
    first, second = (path for path in inside if path.is_dir())
    assert {path.name for path in first.rglob("*.safetensors")} == {"model.safetensors"}
    assert len({path.name for path in second.rglob("*.safetensors")}) > 1
