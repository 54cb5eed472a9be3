"""The scripts in findings/, which are run by people: they parse, install pinned packages only, and are about others."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


def test_there_are_findings() -> None:
    assert len(SCRIPTS) >= 10
    assert {path.name for path in FOLDER.iterdir()} == {"README.md", *(path.name for path in SCRIPTS)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_findings_parse() -> None:
    for path in SCRIPTS:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path.name
        for code in re.findall(r"<<'PY'\n(.*?)\nPY\n", path.read_text(encoding="utf-8"), re.DOTALL):
            compile(code, path.name, "exec")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_finding_installs_pinned_packages_of_others(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    installs = [line for line in text.splitlines() if re.search(r"\b(pip3?|uv)\b.*\b(install|add)\b", line)]
    packages = [word for line in installs for word in shlex.split(line.partition("install")[2]) if word[0] != "-"]
    assert packages
    assert all(re.fullmatch(r"[\w.\-]+(\[[\w,\-]+\])?==[\d.]+", package) for package in packages)
    assert "equipoise" not in text.lower()
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert "set -euo pipefail\n" in text
    assert "mktemp -d" in text
    versions = {package.partition("==")[2] for package in packages}
    assert any(version in text.partition("set -euo")[0] for version in versions)  # it states the version it is about
    assert text.splitlines()[-1].startswith('echo "As found: ')
