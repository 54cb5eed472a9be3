"""The names in the code, and the tools around a commit: its subject, a version, files that a host of repositories reads."""

from __future__ import annotations

import ast
import re
from datetime import date
from pathlib import Path

import pytest
import release
import subject

from helpers import in_one

ROOT = Path(__file__).parents[1]
UNTELLING = ("found", "known", "one", "of", "there")
PUBLIC = {
    "runs/experiment.py: of",  # a key of [calibration] in the files of experiments
    "testing/hooks.py: found",  # users read ContractError.found
}


@pytest.mark.share(6)
def test_values_are_called_by_what_they_hold() -> None:
    source, names = ROOT / "src/equipoise", set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name) | ast.ExceptHandler(_, name) | ast.MatchAs(_, name):
                    if name in UNTELLING:
                        names.add(f"{path.relative_to(source).as_posix()}: {name}")
    assert names == PUBLIC


@in_one(
    ("message", "fault"),
    [
        ("Why it is made\n\nDetails " + 200 * "x", ""),
        (72 * "x", ""),
        (73 * "x", "73 characters"),
        (f'Revert "{70 * "x"}"', ""),
        ("", "no subject"),
        ("\n\nbelow", "no subject"),
    ],
)
def test_a_long_subject_is_refused(message: str, fault: str) -> None:
    assert fault in subject.fault(message)
    assert bool(fault) == bool(subject.fault(message))


def files() -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in release.NAMES}


def test_a_release_writes_one_version_everywhere() -> None:
    texts = files() | {
        "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n- a change\n\n## [0.1.0] - 2025-01-01\n\n- old\n"
    }
    made = release.released("9.0.1", texts, date(2027, 1, 2))
    written = "".join(text for name, text in made.items() if name != "CHANGELOG.md")
    versions = re.findall(r'^(?:__)?version[_ =:]+"?([\d.]+)|equipoise-([\d.]+)-py3', written, flags=re.M)
    assert {"".join(found) for found in versions} == {"9.0.1"}
    assert len(versions) == 6
    assert made["CHANGELOG.md"].splitlines()[2:8] == [
        "## [Unreleased]",
        "",
        "## [9.0.1] - 2027-01-02",
        "",
        "- a change",
        "",
    ]
    assert made["CHANGELOG.md"].endswith("## [0.1.0] - 2025-01-01\n\n- old\n")
    with pytest.raises(ValueError, match="nothing under"):
        release.released("9.0.2", made, date(2027, 1, 2))


@pytest.mark.parametrize(("version", "words"), [("1", "such as"), ("0.0.1", "after"), ("v0.2.0", "such as")])
def test_what_is_no_next_version_is_refused(version: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        release.released(version, files(), date(2027, 1, 2))


def test_the_citation_has_the_version_of_the_package() -> None:
    versions = re.findall(r'^version[ =:]+"?([\d.]+)', "\n".join(list(files().values())[:2]), flags=re.M)
    assert len(set(versions)) == 1


def test_the_workflow_calls_targets_that_exist() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), flags=re.M))
    known = {name for line in targets for name in line.split()}
    called = {
        name for line in re.findall(r"make ([\w -]+?)(?: PYTHON|$)", workflow, flags=re.M) for name in line.split()
    }
    assert called | {"test-lowest", "test-newest"} <= known
    assert {"test", "check", "dist"} <= called
