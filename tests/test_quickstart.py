"""``equipoise quickstart``, and data that a package of the system has put in their place: Fashion-MNIST of Debian and Ubuntu."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import equipoise as eq
import fixture_data as made
from equipoise.cli.main import app
from equipoise.cli.run import STARTS
from equipoise.data.sets import catalog
from equipoise.data.sets.catalog import check
from equipoise.runs import directory as runs
from equipoise.runs.configuration import called, configure
from equipoise.scenarios import load
from equipoise.system import workers
from run_helpers import InProcess

SMALL = "fedsac-fashion(clients=2, samples=80)"
real = pytest.mark.skipif(
    not catalog.installed("fashion-mnist"), reason="Fashion-MNIST is not here: apt-get install dataset-fashion-mnist"
)


def ask(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the system's data sets, empty, and another one to work in."""
    monkeypatch.setattr(catalog, "INSTALLED", tmp_path / "datasets")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "datasets"


@pytest.mark.parametrize("name", STARTS)
def test_every_quickstart_is_a_comparison_that_is_understood(name: str, elsewhere: Path) -> None:
    made.fashion(elsewhere)
    command, *words = ["compare", *shlex.split(STARTS[name]), "--data", "my sets", "--jobs", "1"]
    group: Any = typer.main.get_command(app)
    given = group.commands[command].make_context(command, words).params
    scenario, options = called("--scenario", given["scenario"], "")
    for method in given["methods"]:
        assert configure(method, scenario, scenario_options=options, rounds=given["rounds"]).rounds <= 40


def test_a_quickstart_shows_the_command_that_it_runs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Worker", InProcess)
    made.mnist(elsewhere, 200, 20, folder="fashion-mnist")
    monkeypatch.setitem(
        STARTS, "fashion", f"fedavg fedprox --scenario '{SMALL}' --rounds 1 --steps 1 --no-report --name q"
    )
    first = ask("quickstart", "fashion", "--jobs", "1")
    assert first.exit_code == 0, first.exception
    command, *rest = first.stdout.splitlines()
    assert command.startswith("equipoise compare fedavg fedprox --scenario 'fedsac-fashion(clients=2, samples=80)'")
    assert ask(*shlex.split(command)[1:]).stdout.splitlines() == rest
    assert rest[0] == f"data: {elsewhere}, where a package of the system has put them"
    assert "fedprox" in str(rest)


def test_without_files_one_error_says_where_to_get_them(elsewhere: Path) -> None:
    for words in (
        ["quickstart", "fashion"],
        ["run", "--scenario", "fedsac-fashion"],
        ["compare", "fedavg", "--scenario", SMALL],
    ):
        error = str(ask(*words).exception)
        assert "fedsac-fashion reads fashion-mnist: say where the files are, with --data DIR." in error
        assert "`apt-get install dataset-fashion-mnist`" in error
        assert "`equipoise data get fashion-mnist --data data`" in error
    with pytest.raises(ValueError, match="apt-get install dataset-fashion-mnist"):
        eq.scenario("fedsac-fashion")
    with pytest.raises(
        ValueError, match=r"reads mnist, usps, svhn, syn: say where the files are, with --data DIR\. `equipoise"
    ):
        eq.scenario("fedheal-digits")
    made.fashion(elsewhere)
    next(elsewhere.rglob("t10k-labels*")).unlink()  # half a package is none
    assert "apt-get" in str(ask("run", "--scenario", "fedsac-fashion").exception)
    assert "Unknown quickstart 'fashon'. Did you mean 'fashion'?" in str(ask("quickstart", "fashon").exception)


def test_installed_files_are_found_and_named_in_one_line(elsewhere: Path) -> None:
    made.mnist(elsewhere, 200, 20, folder="fashion-mnist", packed=True)
    words = ["--scenario", SMALL, "--rounds", "1", "--steps", "1", "--no-report", "--network", "mlp(hidden=[4])"]
    done = ask("run", *words, "--name", "one")
    assert done.exit_code == 0, done.exception
    assert done.stdout.splitlines()[0] == f"data: {elsewhere}, where a package of the system has put them"
    assert runs.load(Path("runs/one")).data == str(elsewhere)
    for more in (["--data", str(elsewhere)], ["--json"]):
        assert "where a package" not in ask("run", *words, *more, "--name", more[0].strip("-")).stdout
    options = {"samples": 80, "clients": 2}
    named = configure("fedavg", "fedsac-fashion", scenario_options=options, data=str(elsewhere))
    assert configure("fedavg", "fedsac-fashion", scenario_options=options) == named


@real
def test_the_installed_files_are_the_publishers_and_a_network_learns_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split in check("fashion-mnist", catalog.INSTALLED):
        assert (split.verdict, split.genuine, split.unread) == ("OK", True, ())
    scenario = load("fedsac-fashion", 0, scene="cla")
    assert [len(client[1].unique()) for client in scenario.clients] == [*range(1, 11)]
    assert scenario.manifest["read"]["train"]["samples"] == 60_000
    config = configure("fedavg", "fedsac-fashion", scenario_options={"scene": "cla"}, rounds=3)
    fed, _ = runs.federation(config)
    fed.fit(3, progress=False)
    assert fed.records[-1]["groups"]["test"]["accuracy"] > 0.25  # guessing gives 0.1
