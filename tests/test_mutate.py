"""The tool that changes code to try the tests: what it changes, and what it reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mutate
import pytest

TOOL = Path(mutate.__file__)


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b", {"x = (a <= b)"}),
        ("x = a is not b", {"x = (a is b)"}),
        ("x = a + b * c", {"x = (a - b * c)", "x = a + (b / c)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = 2", {"x = (3)", "x = (1)"}),
        ("x = True", {"x = (False)"}),
        ("f(a, b, c=d)", {"(f(b, a, c=d))", "(f(a, b))", "pass"}),
        ("'é'; x = '→' if a else -b", {"'é'; x = (-b if a else '→')", "'é'; x = '→' if a else (b)"}),
        ("a[i] = b", {"pass"}),
        ("def f():\n    return x", {"def f():\n    return"}),
        ("def f(a: int = b) -> 3:\n    return", set()),
        ("zip(a, b, strict=True)", {"(zip(b, a, strict=True))", "pass"}),
        ("raise ValueError(f'{a + 1} of {b - 1}')", {"pass"}),
        ("x = f'{a + 1}'", set()),
    ],
)
def test_what_is_changed(source: str, changed: set[str]) -> None:
    assert {mutate.mutated(source, mutant) for mutant in mutate.mutants("x.py", source)} == changed


def test_a_change_is_the_same_when_lines_move(tmp_path: Path) -> None:
    source = "def f(a):\n    a += 1\n    a += 1\n    return a\n"
    before, after = mutate.mutants("x.py", source), mutate.mutants("x.py", f"# moved\n\n{source}")
    assert [mutant.key for mutant in before] == [mutant.key for mutant in after]
    assert len({mutant.key for mutant in before}) == len(before)
    (tmp_path / "before.jsonl").write_text(json.dumps({"mutant": mutate.asdict(before[3])}) + "\n")
    assert mutate.draw(after, 300, 0, tmp_path / "before.jsonl") == [after[3]]
    assert mutate.draw(before, 2, 7, None) == mutate.draw(before, 2, 7, None)


FILES = {
    "src/equipoise/core/sums.py": "LIMIT = 3\n\n\ndef add(a, b):\n    return a + b\n\n\ndef half(a):\n    c = a + 1\n    return a / 2\n"
    "\n\ndef unused(a):\n    return a < 2\n",
    "src/equipoise/__init__.py": "",
    "src/equipoise/methods/__init__.py": "",
    "src/equipoise/engines/__init__.py": "",
    "src/equipoise/federation/round.py": "",
    "src/equipoise/cli/main.py": "",
    "src/equipoise/flower/server.py": "",
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow']\nfilterwarnings = ['error']\n",
    "tests/conftest.py": "import gc\n\n\ndef pytest_collection_finish():\n    gc.freeze()\n",
    "tests/test_sums.py": "from functools import cache\n\nfrom equipoise.core.sums import add, half\n\n\n"
    "@cache\ndef seven():\n    return add(3, 4)\n\n\ndef test_first():\n    assert seven()\n\n\ndef test_add():\n    assert seven() == 7\n"
    "\n\ndef test_half():\n    assert half(4) == 2\n",
}


def test_changes_are_killed_survive_or_are_not_covered(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    command = [sys.executable, str(TOOL), "--folder", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    results = [json.loads(line) for line in (tmp_path / "mutants.jsonl").read_text().splitlines()]
    outcomes = {(r["mutant"]["scope"], r["mutant"]["kind"][:8]): r["outcome"] for r in results}
    assert outcomes["add", "arithmet"] == outcomes["half", "nothing "] == "killed"
    assert outcomes["half", "arithmet"] in ("killed", "survived")  # the division or the sum
    assert outcomes["unused", "comparis"] == "not covered"
    assert {r["outcome"] for r in results if r["mutant"]["statement"] == "c = a + 1"} == {"survived"}
    assert all(
        "test_add" in r["killer"]
        for r in results
        if r["mutant"]["kind"] == "arithmetic" and r["mutant"]["scope"] == "add"
    )
    assert (tmp_path / "tree/src/equipoise/core/sums.py").read_text() == FILES["src/equipoise/core/sums.py"]
    assert f"| core | {sum(r['outcome'] == 'killed' for r in results)} | 0 |" in printed
    assert "core/sums.py:9 in half" in printed

    before = (tmp_path / "mutants.jsonl").stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{len(results)} are done" in again
    assert (tmp_path / "mutants.jsonl").stat().st_mtime_ns == before
