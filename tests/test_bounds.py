"""What clients reach alone and with all data in one place: numbers beside a comparison, in no test and no verdict."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.federation.history import History
from equipoise.report import render, rich_table
from equipoise.report.sentences import limits, verdict
from equipoise.report.statistics import Comparison
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system import workers
from helpers import clients, consortium, federation, in_one, samples
from run_helpers import TINY, InProcess, cache, config, equipoise, started

GROUPS = ["a", "a", "b", "b", "b"]


def easy(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of which every model learns something in a few rounds."""
    x, _ = samples(n, seed)
    return x, (x[:, 0] > x.mean()).long()


SETS = {"a": easy(60, 1), "b": easy(60, 2)}


def trained(method: str, seed: int = 0, rounds: int = 4) -> eq.Federation:
    data = [easy(n, m) for m, n in enumerate((20, 24, 28, 22, 26))]
    given = {"solver": eq.SGD(0.5), "participation": 1.0, "server_validation": None}
    fed = federation(method, seed=seed, data=data, tests=SETS, groups=GROUPS, **given)
    fed.fit(rounds, progress=False)
    return fed


def compared(methods: list[str], seeds: int = 2) -> Comparison:
    return Comparison.of([trained(method, seed).history for method in methods for seed in range(seeds)])


def test_centralised_is_one_client_with_the_samples_of_all() -> None:
    every = [torch.cat(parts) for parts in zip(*clients(), strict=True)]
    fed = federation("centralised", tests=SETS, groups=GROUPS, epochs=2)
    one = federation("fedavg", data=[tuple(every)], tests=SETS, groups=None, epochs=2)
    for each in (fed, one):
        each.fit(3, progress=False)
    for mine, theirs in zip(fed.state_dict().values(), one.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    scores = [record["groups"] for record in fed.records]
    assert scores == [record["groups"] for record in one.records]
    assert fed.records[-1]["clients"]["accuracy"] == [scores[-1][group]["accuracy"] for group in GROUPS]
    assert not {"ids", "weights", "losses", "bytes"} & set(fed.records[-1])
    assert torch.equal(fed.predict(SETS["a"][0], client=3), fed.predict(SETS["a"][0]))


def test_centralised_takes_as_many_steps_as_the_clients_of_a_round() -> None:
    fed = federation("centralised", steps=3, participation=0.4)
    assert fed.trial.settings.steps == 3 * 2
    assert fed.trial.settings.participation == 1


def test_a_group_of_the_lower_bound_is_the_mean_over_its_clients() -> None:
    fed = trained("standalone")
    own = []
    for m, group in enumerate(GROUPS):
        x, y = SETS[group]
        own.append(float((fed.predict(x, client=m) == y).double().mean()))
    record = fed.records[-1]
    assert record["clients"]["accuracy"] == pytest.approx(own)
    assert {name: score["accuracy"] for name, score in record["groups"].items()} == pytest.approx(
        {"a": np.mean(own[:2]), "b": np.mean(own[2:])}
    )
    assert set(record["groups"]["a"]) == {"accuracy"}  # the mean of models that never met has no loss, and no samples
    assert fed.history.summary()["group_fairness"] is None


def test_without_groups_every_client_counts_for_every_test_set() -> None:
    fed = federation("standalone", tests=SETS, groups=None)
    fed.fit(1, progress=False)
    x, y = SETS["b"]
    by_hand = np.mean([float((fed.predict(x, client=m) == y).double().mean()) for m in range(5)])
    assert fed.records[-1]["groups"]["b"]["accuracy"] == pytest.approx(by_hand)


def test_a_test_set_without_clients_has_no_lower_bound() -> None:
    fed = federation("standalone", tests=SETS, groups=["a"] * 5)
    fed.fit(1, progress=False)
    assert fed.records[-1]["groups"]["b"]["accuracy"] != 0  # NaN
    assert fed.history.summary()["avg"] is None


def test_bounds_stand_last_and_in_no_verdict() -> None:
    found = compared(["standalone", "fedavg", "centralised", "fedprox(mu=1)"])
    document = found.document
    assert list(found.runs) == ["fedavg", "fedprox(mu=1)", "standalone", "centralised"]
    assert [method["bound"] for method in document["methods"]] == ["", "", "lower", "upper"]
    assert [method["versus"] is None for method in document["methods"]] == [True, False, True, True]
    for leader in document["leaders"].values():
        assert {leader["leading"], *leader["versus"]} == {"fedavg", "fedprox(mu=1)"}
    assert not {"standalone", "centralised"} & set(verdict(document).replace(",", " ").split())
    assert sum("in no verdict and no test" in note for note in document["notes"]) == 2
    alone = compared(["fedavg", "fedprox(mu=1)"]).document
    assert document["leaders"] == alone["leaders"]
    assert verdict(document) == verdict(alone)
    assert document["methods"][1] == alone["methods"][1]


def told(label: str, average: float, bound: str, seed: int = 0, **meta: Any) -> History:
    groups = {name: {"accuracy": average, "loss": 1.0, "n": 50} for name in ("a", "b")}
    about = {"client_groups": ["a", "b"], "client_names": ["x", "y"], "bound": bound, **meta}
    return History([{"round": 0, "groups": groups}], {"method": label, "seed": seed, "scenario": "toy", **about})


@in_one("alone", [0.5, 0.7, 0.9])
@in_one("together", [0.5, 0.7, 0.95])
def test_a_bound_that_the_numbers_contradict_is_not_called_one(alone: float, together: float) -> None:
    found = Comparison.of(
        [
            told("fedavg", 0.6, ""),
            told("afl", 0.8, ""),
            told("alone", alone, "lower"),
            told("central", together, "upper"),
        ]
    )
    notes = " ".join(found["notes"])
    for label, bound, crossed in (
        ("alone", "a lower bound", alone > 0.6),
        ("central", "an upper bound", together < 0.8),
    ):
        assert (f"{label} is {bound}, " in notes) == (not crossed)
        assert (f"so it is no {bound.split(' ', 1)[1]}" in notes) == crossed
    assert ("Here alone is above fedavg (AVG" in notes) == (alone > 0.6)
    assert ("Here central is below afl (AVG" in notes) == (together < 0.8)


@pytest.mark.parametrize("own_tests", [True, False])
def test_of_groups_of_people_alone_is_no_bound(own_tests: bool) -> None:
    """A hospital's model is tested on the women of all hospitals, which is not what it reaches on its own patients."""
    people = {"client_groups": None, "client_tests": own_tests}
    notes = " ".join(Comparison.of([told("fedavg", 0.8, ""), told("alone", 0.6, "lower", **people)])["notes"])
    assert "a lower bound" not in notes
    assert "A group's number of alone is no lower bound: it is the mean over the models of all clients" in notes
    assert ("is in the table over clients" in notes) == own_tests


def test_bounds_are_never_marked_as_best() -> None:
    from equipoise.report.layout import sheets

    for sheet in sheets(compared(["fedavg", "standalone", "centralised"])):
        for name, cells in sheet.grid.rows:
            assert not any(cell.best for cell in cells), (sheet.name, name)


def test_one_bound_alone_is_described(tmp_path: Path) -> None:
    for method in ("standalone", "centralised"):
        found = compared([method], seeds=1)
        assert f"{method} reaches" in verdict(found.document)
        render(found)
        rich_table(found.document)


def test_one_method_beside_bounds_has_no_tests() -> None:
    assert "Statistical tests" not in render(compared(["fedavg", "standalone", "centralised"]))
    assert "Statistical tests" in render(compared(["fedavg", "fedprox(mu=1)", "centralised"]))


def test_only_bounds_have_no_winner() -> None:
    found = compared(["standalone", "centralised"])
    assert found.document["leaders"] == {}
    assert "best" not in verdict(found.document)


def test_a_lower_bound_is_not_said_to_be_better_than_guessing() -> None:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    guessed = (x, torch.arange(40) % 2)
    tests = {"a": guessed, "b": guessed}
    torch.manual_seed(0)
    runs = [
        eq.Federation(nn.Linear(6, 2), [guessed] * 2, method, eq.SGD(1e-6), tests=tests)
        for method in ("centralised", "standalone")
    ]
    found = Comparison.of([fed.fit(1, progress=False) for fed in runs])
    assert [bool(of["failed"]) for of in found["methods"]] == [True, False]
    assert "Only standalone" not in verdict(found)


def test_centralised_data_must_be_here() -> None:

    lazy = [eq.Lazy(lambda k=k: samples(8, k), 8) for k in range(3)]
    with pytest.raises(ValueError, match="needs the data of all clients together"):
        eq.Federation(nn.Linear(6, 3), lazy, "centralised")


@in_one("part", ["fedbn", "finetune", "ditto", "fedsac", "cgsv", "standalone"])
def test_one_model_for_all_is_no_model_of_each_client(part: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{part}' keeps or changes something of each client, and 'centralised' has one"
    ):
        eq.Method.of(f"{part}+centralised")
    assert eq.Method.of("centralised+afl").sharing == "upper"


def test_clients_keep_their_names(tmp_path: Path, cache: Path) -> None:
    run = started(tmp_path / "run", config("centralised", rounds=1))
    history = runs.execute(run, progress=False)
    assert history.client_names == runs.trained(run).names
    assert len(history.client_names) == 4


def test_sites_keep_their_data() -> None:
    with pytest.raises(ValueError, match="needs the data of all clients in one place, and sites keep theirs"):
        consortium("centralised")
    with pytest.raises(ValueError, match=r"sites keep theirs\. Choose another engine"):  # before the other runs begin
        configure("centralised", engine="flower-inproc")


def test_the_command_line_adds_both(
    equipoise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "Worker", InProcess)
    given = ("--bounds", *TINY, "--rounds", 2, "--name", "b", "--runs", tmp_path, "--no-report", "--json", "--jobs", 1)
    done = equipoise("compare", "fedavg", "standalone", *given)
    assert done.status == 0, done.err
    assert [method["bound"] for method in json.loads(done.out)["methods"]] == ["", "lower", "upper"]


def test_a_lower_bound_has_no_global_model() -> None:
    fed = trained("standalone", rounds=1)
    for use in (fed.state_dict, lambda: fed.predict(SETS["a"][0]), lambda: fed.score(*SETS["a"])):
        with pytest.raises(ValueError, match="standalone has no global model: every client has its own"):
            use()
    assert fed.score(*SETS["a"], client=1) == pytest.approx(fed.records[-1]["clients"]["accuracy"][1])


def test_a_lower_bound_that_diverged_is_marked() -> None:
    fed = federation("standalone", data=[easy(20, m) for m in range(5)], tests=SETS, groups=GROUPS, solver=eq.SGD(1e4))
    fed.fit(3, progress=False)
    assert "training loss" in fed.history.failure()
    assert Comparison.of([fed.history])["methods"][0]["failed"]


def test_the_note_says_in_which_rounds_clients_trained_alone() -> None:
    fed = federation("standalone", tests=SETS, groups=GROUPS, participation=0.4)
    fed.fit(2, progress=False)
    assert any(
        "alone, in the rounds in which it took part (a group" in note for note in Comparison.of([fed.history])["notes"]
    )
    assert any("alone (a group" in note for note in compared(["standalone"], 1)["notes"])


@pytest.mark.parametrize("engine", ["sequential", "stacked", "workers"])
def test_centralised_resumes_bit_for_bit(engine: str, tmp_path: Path) -> None:
    given = {"engine": engine, "tests": SETS, "groups": GROUPS}
    whole, first, rest = (federation("centralised", **given) for _ in range(3))
    whole.fit(4, progress=False)
    first.fit(2, directory=tmp_path, progress=False)
    assert rest.resume(tmp_path) == 0
    rest.fit(2, directory=tmp_path, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), rest.state_dict().values(), strict=True))
    assert [r["groups"] for r in whole.records] == [r["groups"] for r in rest.records]
