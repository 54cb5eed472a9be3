"""Help, lists, completion and reports start at once because they load no PyTorch; and what a shell is offered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import describe
import pytest
import typer

import equipoise as package
from equipoise.cli import completion, main as cli
from equipoise.cli.completion import FILE, catalogue
from equipoise.data.sets.catalog import SETS
from equipoise.methods import METHODS
from equipoise.networks import NETWORKS
from equipoise.runs.experiment import experiment_names
from equipoise.scenarios import SCENARIOS
from run_helpers import cache, config, equipoise, executed  # noqa: F401 (fixtures)

HEAVY = ("torch", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "flwr", "pydantic")


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Code in an interpreter of its own."""
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)


def every_command(command: Any, *name: str) -> list[list[str]]:
    """The words of every command and group."""
    inner = [words for n, each in getattr(command, "commands", {}).items() for words in every_command(each, *name, n)]
    return [[*name], *inner]


# what is loaded
def test_importing_the_package_imports_nothing_else() -> None:
    done = python(
        f"import sys, equipoise; print([n for n in {(*HEAVY, 'typer', 'rich')} if n in sys.modules], dir(equipoise))"
    )
    assert done.stderr == ""
    assert done.stdout.startswith("[] [")
    assert all(repr(name) in done.stdout for name in package.__all__)


def test_every_public_name_has_a_home() -> None:
    for name in package.__all__:
        getattr(package, name)
    with pytest.raises(AttributeError, match="module 'equipoise' has no attribute 'Fedration'"):
        package.__getattr__("Fedration")


@pytest.mark.share(3)
def test_commands_are_imported_without_libraries() -> None:
    code = f"import sys, equipoise.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(code).stdout.splitlines() == ["[]"]


def test_help_lists_and_completion_load_no_library() -> None:
    lines = [[*words, "--help"] for words in every_command(typer.main.get_command(cli.app))][::4]
    lines += [
        ["--version"],
        ["methods"],
        ["methods", "fedism+"],
        ["methods", "--json"],
        ["scenarios"],
        ["scenarios", "--json"],
    ]
    code = f"""
import os, sys
from equipoise.cli.main import main
for words in {lines}:
    sys.argv = ["equipoise", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, words
os.environ.update(_EQUIPOISE_COMPLETE="complete_bash", COMP_WORDS="equipoise run --method fedp", COMP_CWORD="3")
try:
    main()
except SystemExit:
    pass
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = python(code)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-6:] == ["fedprox", "fedproc", "fedproto", "fedpw", "fedpac", "[]"]


def test_a_report_is_made_without_pytorch(tmp_path: Path) -> None:
    run = executed(tmp_path / "run", config(rounds=1))
    code = f"""
import sys
from equipoise.cli.main import main
sys.argv = ["equipoise", "report", {str(run)!r}, "--output", {str(tmp_path / "report.html")!r}]
try:
    main()
finally:
    print([name for name in ("torch", "pandas", "sklearn") if name in sys.modules])
"""
    assert python(code).stdout.splitlines()[-1] == "[]"
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_the_shipped_catalogue_is_that_of_the_code() -> None:
    same = FILE.read_text(encoding="utf-8") == describe.as_json()
    assert same, "Methods, scenarios or networks have changed since it was written: run python tools/describe.py"


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
def test_a_stop_while_libraries_are_loaded_is_said_in_one_line(tmp_path: Path) -> None:
    code = f"""
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn":
            os.kill(os.getpid(), {int(signal.SIGINT)})
sys.meta_path.insert(0, Finder())
sys.argv = ["equipoise", "run", "--runs", {str(tmp_path)!r}]
from equipoise.cli.main import main
main()
"""
    done = python(code)
    assert done.returncode == 130
    assert done.stderr.startswith("error: Stopped. ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# completion
def names(offers: list[tuple[str, str]]) -> list[str]:
    return [name for name, text in offers if text]


def test_methods_are_completed_with_the_parts_of_sums() -> None:
    assert names(completion.methods("")) == list(METHODS)
    assert names(completion.methods("fedism")) == ["fedism", "fedism+"]
    assert names(completion.methods("fedprox+fedh")) == ["fedprox+fedheal", "fedprox+fedheal-exact", "fedprox+fedhgd"]
    assert names(completion.methods("moon+fedism++qf")) == ["moon+fedism++qffl"]
    assert "fedism+" in names(completion.methods("fedism+"))
    assert "fedprox+fedprox" not in names(completion.methods("fedprox+"))


def test_other_names_are_completed() -> None:
    assert names(completion.scenarios("")) == list(SCENARIOS)
    assert names(completion.networks("")) == list(NETWORKS)
    assert names(completion.data_sets("")) == list(SETS)
    assert names(completion.scenarios("digits-d")) == ["digits-dir"]
    assert completion.experiments("") == experiment_names()
    assert completion.experiments("fedheal/table5") == ["fedheal/table5"]


def test_directories_of_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completion.runs("") == []
    for place, file in {
        "runs/one": "config.toml",
        "runs/two": "comparison.json",
        "runs/old/three": "manifest.json",
    }.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / file).touch()
    (tmp_path / "runs" / "file").touch()
    (tmp_path / "runs" / ".hidden").mkdir()
    assert completion.runs("") == ["runs/old/", "runs/one", "runs/two"]
    assert completion.runs("r") == ["runs/"]
    assert completion.runs("runs/t") == ["runs/two"]
    assert completion.runs("runs/old/") == ["runs/old/three"]
    assert completion.runs(f"{tmp_path}/runs/on") == [f"{tmp_path}/runs/one"]


# what the lists say
def test_the_lists_are_those_of_the_catalogue(equipoise: Callable[..., Any]) -> None:  # noqa: F811
    assert json.loads(equipoise("methods", "--json").out) == catalogue()["methods"]
    assert json.loads(equipoise("methods", "fedismplus", "--json").out).keys() == {"fedism+"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux only")
@pytest.mark.parametrize(("kept", "pages"), [("1", True), ("0", False)])
def test_large_tensors_come_in_large_pages(kept: str, pages: bool) -> None:
    """They then begin at a page, where PyTorch otherwise asks for 64 bytes only."""
    begins = "import torch; print([torch.zeros(1 << 20).data_ptr() % 4096 for _ in range(9)])"
    code = f"import os; os.environ.pop('THP_MEM_ALLOC_ENABLE', None); import equipoise; {begins}"
    ended = python(code, EQUIPOISE_KEEP_MEMORY=kept)
    assert (not any(json.loads(ended.stdout))) == pages, ended.stderr
