"""What `make test` runs of tests that take long: so many of their cases as their share of time pays for."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from record_seconds import measured

from conftest import SECONDS, affordable

ROOT = Path(__file__).parents[1]


def test_cases_that_the_share_pays_for_are_spread() -> None:
    assert affordable(1.0, 0.3, 5) == set()
    assert affordable(0.1, 0.3, 9) == {0, 3, 6}
    assert affordable(0.1, 20.0, 4) == {0, 1, 2, 3}


def test_every_recorded_test_exists() -> None:
    files = {name.split("::")[0] for name in SECONDS}
    defined = {
        f"{file}::{node.name}"
        for file in files
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert not SECONDS.keys() - defined, "delete them from tests/seconds.json, or give them their new names"


def test_seconds_are_those_of_a_report(tmp_path: Path) -> None:
    cases = "".join(
        f'<testcase classname="tests.methods.test_a" name="{name}" time="{seconds}"/>'
        for name, seconds in (("test_long[1]", 0.2), ("test_long[2]", 0.4), ("test_short", 0.1))
    )
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    seconds = measured(tmp_path / "report.xml")
    assert json.loads(json.dumps(seconds)) == {
        "tests/methods/test_a.py::test_long": 0.3,
        "tests/methods/test_a.py::test_short": 0.0,
    }
