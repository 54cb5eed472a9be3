"""What computed a run stands in its record, and who mixes processors is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import main as cli
from equipoise.federation import trial as trials
from equipoise.federation.history import History
from equipoise.report import comparison
from equipoise.report.html import render
from equipoise.system import environment
from helpers import federation as small, identical, samples

OTHER = {"processor": "Sixty-Four", "instructions": "NEON", "torch": "9.9", "linear_algebra": "accelerate"}


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    here = environment.machine()
    monkeypatch.setattr(trials, "machine", lambda device: {**here, **OTHER})


def test_a_machine_says_what_the_last_bits_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    machine = environment.machine()
    assert machine["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert machine["threads"] == torch.get_num_threads()
    assert all(machine[key] for key in ("system", "architecture", "processor", "torch", "linear_algebra", "cores"))
    text = environment.kind(machine)
    assert all(f"{machine[key]}" in text for key in ("processor", "instructions", "torch", "linear_algebra"))
    assert text.endswith("MKL_CBWR=AVX2")
    assert environment.kind({"system": "Linux", "processor": "x86_64", "cores": 2}) == ""  # of an earlier version


def test_a_run_goes_on_with_another_processor_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> eq.Federation:
        return small("scaffold", tests={"a": samples(20, 1)})

    straight = make()
    straight.fit(4, progress=False)
    make().fit(2, directory=tmp_path, progress=False)
    again = make()
    again.resume(tmp_path)
    assert [m["round"] for m in again.machines] == [0]
    elsewhere(monkeypatch)
    later = make()
    later.resume(tmp_path)
    assert [m["round"] for m in later.machines] == [0]  # to look at a run computes nothing of it
    assert not caplog.records
    later.fit(2, directory=tmp_path, progress=False)
    (said,) = caplog.messages
    assert "rounds before 2 were computed with " in said
    assert "here it is Sixty-Four · NEON · torch 9.9 · accelerate" in said
    assert "last bits may differ" in said
    assert identical(straight, later)
    assert [m["round"] for m in json.loads((tmp_path / "manifest.json").read_text())["machines"]] == [0, 2]
    history = History.from_run(tmp_path)
    assert [m["round"] for m in history.meta["machines"]] == [0, 2]
    (note,) = [x for x in comparison([history])["notes"] if "Computed with different processors or libraries" in x]
    assert "Sixty-Four" in note
    caplog.clear()
    third = make()
    third.resume(tmp_path)
    third.fit(1, directory=tmp_path, progress=False)  # still there
    assert not caplog.records


def test_a_table_of_runs_from_two_processors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(method: str) -> History:
        fed = small(method, tests={"a": samples(20, 1), "b": samples(20, 2)})
        fed.fit(2, progress=False)  # in which every client trains
        return fed.history

    one, two = run("fedavg"), run("fedprox")
    assert comparison([one, two])["notes"] == []
    elsewhere(monkeypatch)
    three = run("scaffold")
    (note,) = comparison([one, three])["notes"]
    assert note.startswith("Computed with different processors or libraries (")
    assert "Sixty-Four" in render([one, three])
    assert "different processors" not in render([one, two])


def test_a_checkpoint_of_an_earlier_version_goes_on_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small("scaffold").fit(2, directory=tmp_path, progress=False)
    path = tmp_path / "checkpoint" / "checkpoint.json"
    meta: dict[str, Any] = json.loads(path.read_text())
    del meta["machines"], meta["seal"]
    path.write_text(json.dumps(meta))
    again = small("scaffold")
    again.resume(tmp_path)
    again.fit(1, progress=False)
    assert not caplog.records
    assert [m["round"] for m in again.machines] == [2]


HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and torch.backends.mkl.is_available()
needs_avx2 = pytest.mark.skipif(not HAS_AVX2, reason="the switches are those of x86 processors and MKL")


@needs_avx2
def test_portable_starts_the_command_again_with_the_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    class StartedError(Exception):
        pass

    def start(path: str, words: list[str], variables: dict[str, str]) -> None:
        raise StartedError(path, words, variables)

    monkeypatch.setattr(os, "execve", start)
    monkeypatch.setattr(sys, "argv", ["equipoise", "--portable", "run", "-m", "fedavg"])
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    done = CliRunner().invoke(cli.app, ["--portable", "run", "-m", "fedavg"])
    assert isinstance(done.exception, StartedError)
    path, words, variables = done.exception.args
    assert path == sys.executable
    assert words[-5:] == ["-m", "equipoise", "run", "-m", "fedavg"]
    assert variables.items() >= environment.PORTABLE.items()


def test_portable_is_refused_where_the_instructions_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NEON")
    with pytest.raises(ValueError, match=r"--portable needs a processor with AVX2 .* found NEON"):
        environment.portable()


@needs_avx2
@pytest.mark.slow
def test_portable_runs_do_not_depend_on_the_instructions_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)  # a switch of the machine is kept, and recorded

    def run(name: str, *options: str, **switches: str) -> Any:
        words = ["run", "-m", "fedprox", "-s", "digits(clients=4)", "--network", "mlp(hidden=[64])", "--rounds", "2"]
        command = [
            sys.executable,
            "-m",
            "equipoise",
            *options,
            *words,
            "--json",
            "--runs",
            str(tmp_path),
            "--name",
            name,
        ]
        subprocess.run(command, env={**os.environ, **switches}, check=True, capture_output=True)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        (file,) = (tmp_path / name / "checkpoint").glob("state-*.safetensors")
        return load_file(file)["vector"], manifest["machines"][0]["switches"]

    plain, _ = run("plain")
    other, _ = run("other", ATEN_CPU_CAPABILITY="default", MKL_CBWR="SSE2")
    one, switches = run("one", "--portable")
    two, _ = run("two", "--portable", ATEN_CPU_CAPABILITY="default", MKL_CBWR="SSE2")
    assert not torch.equal(plain, other)  # or the comparison would say nothing
    assert torch.equal(one, two)
    assert switches == environment.PORTABLE
