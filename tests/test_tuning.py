"""Settings chosen with equal draws on held-out training samples, while test data are sealed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import networks
from equipoise.core.rates import rate, scaled
from equipoise.engines.job import OUT_OF_MEMORY
from equipoise.federation import guard
from equipoise.federation.guard import QuorumError
from equipoise.federation.method import Method, MethodError
from equipoise.methods import METHODS
from equipoise.records.criteria import failed, scores
from equipoise.records.history import History
from equipoise.report import tuning as shown
from equipoise.report.formatting import Grid
from equipoise.report.notes import ALIKE, AS_GIVEN, NOTHING
from equipoise.report.page import Pictures, Table
from equipoise.runs import choosing, directory, unchanged
from equipoise.runs.choosing import Budget, decide, edges, random_shares, settled, space_of, tuned_method
from equipoise.runs.configuration import Layer, RunError, configure
from equipoise.runs.plan import Cell, Outcome, compare, train
from equipoise.system.errors import CODE, MEMORY, SETTINGS
from equipoise.system.seals import sealed_text
from equipoise.system.search import among, log_uniform, read, uniform
from equipoise.system.text import Said
from equipoise.system.workers import Worker
from helpers import Twice, in_one
from run_helpers import SIZES, TINY, config, equipoise as equipoise, here as here, records, started

pytestmark = pytest.mark.usefixtures("here")

GROUPS = ["a", "b", "b", "a"]


def part(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + 0.4 * seed > 0.5).long()


def net() -> nn.Module:
    return nn.Linear(4, 2)


CLIENTS = [part(40, k) for k in range(4)]
GIVEN: dict[str, Any] = {"groups": GROUPS, "solver": eq.SGD(0.05), "batch_size": 8, "progress": False}


def tuned(methods: Any = ("fedavg", "fedprox"), rounds: int = 4, **more: Any) -> eq.Tuning:
    return eq.tune(net, CLIENTS, methods, rounds=rounds, **{"draws": 4, **GIVEN, **more})


def without_seconds(document: Any) -> Any:
    if isinstance(document, dict):
        return {
            key: without_seconds(value) for key, value in document.items() if key not in ("seconds", "chosen", "seal")
        }
    return [without_seconds(each) for each in document] if isinstance(document, list) else document


@dataclass(frozen=True)
class Counted(eq.Rule):
    n: int = eq.number(3, low=1, high=9, whole=True, search=log_uniform(1, 9))


# draws and rungs
def test_methods_share_the_draws_of_what_they_share() -> None:
    fedavg, fedprox = (space_of(eq.parse(name)) for name in ("fedavg", "fedprox"))
    assert fedavg == {}
    assert fedprox == {"fedprox.mu": log_uniform(1e-3, 1)}
    for d in (1, 2, 9):
        one, other = (settled(space, 0.05, random_shares(space, 7, d)) for space in (fedavg, fedprox))
        assert one["lr"] == other["lr"]
        assert 0.005 <= one["lr"] <= 0.5
        assert 1e-3 <= other["fedprox.mu"] <= 1
    assert random_shares(fedprox, 7, 1) != random_shares(fedprox, 8, 1)


def test_a_value_of_the_user_is_not_searched() -> None:
    assert space_of(eq.parse("fedprox(mu=0.5)")) == {}
    space = {"fedprox.mu": among(0.1, 1.0)}
    for text in ("fedprox(mu=0.5)", "fedprox(mu=0.01)"):  # the default, too
        assert space_of(eq.parse(text), space) == space_of(eq.parse(text)) == {}
    assert space_of(eq.parse("fedprox", {"fedprox.mu": 0.01}), space) == {}
    assert space_of(Method(eq.parse("fedprox(mu=0.5)").rules, parts=("fedprox",)), space) == space  # a rule from Python


def test_sixteen_draws_cost_five_whole_runs() -> None:
    budget = Budget(draws=16)
    assert budget.rungs(40) == {5: 1, 10: 1, 20: 1, 40: 0}
    assert budget.planned(40) == 16 * 5 + 8 * 5 + 4 * 10 + 2 * 20 == 5 * 40
    assert Budget(draws=2).rungs(40) == {40: 0}
    assert Budget(draws=16, halving=False, trials=3).planned(40) == 16 * 40 * 3
    assert Budget(draws=16).rungs(3) == {1: 3, 3: 0}  # three halvings after one round
    assert Budget(draws=16).planned(3) == 16 + 2 * 2
    assert Budget(draws=16).rungs(1) == {1: 0}


def test_a_parameter_has_only_values_that_it_may_have() -> None:
    for space, values in ((log_uniform(1, 4), {1, 2, 3, 4}), (uniform(0.5, 3.2), {1, 2, 3})):
        searched = space_of(eq.Method.of(Counted()), {"Counted.n": space})["Counted.n"]
        drawn = [searched.at(k / 200) for k in range(200)]
        assert set(drawn) == values
        assert all(isinstance(value, int) for value in drawn)
        assert min(map(drawn.count, values)) >= 20
    for text, fault in (
        ("uniform(1.2, 1.8)", "ends"),
        ("log(1, 40)", "n: a value must be"),
        ("1,a", "whole number .* found 'a'"),
    ):
        with pytest.raises(ValueError, match=fault):
            tuned([Counted()], search={"Counted.n": text})
    assert tuned([Counted()], draws=2, rounds=1).choices["Counted"].spaces["Counted.n"].whole  # type: ignore[union-attr]


def test_a_schedule_is_not_replaced_by_numbers() -> None:
    solver, text = eq.SGD("cosine(0.05)"), r"numbers would replace the schedule cosine\(0.05\)"
    for search in ("log(0.01, 1)", "0.01,0.1"):
        with pytest.raises(ValueError, match=text):
            tuned(solver=solver, search={"lr": search})
    schedules = among("cosine(0.1)", "cosine(0.2)")
    assert tuned(["fedavg"], solver=solver, rounds=2, search={"lr": schedules}).choices["fedavg"].tried


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("log(0.001, 1)", log_uniform(0.001, 1)),
        ("uniform(0,2)", uniform(0, 2)),
        ("1, 2,4", among(1, 2, 4)),
        ([1, 2], among(1, 2)),
    ],
)
def test_spaces_are_read(text: object, space: object) -> None:
    assert read("x", text) == space


@in_one(
    ("space", "fault"),
    [
        *[(space, r"expected log\(0.001, 1\)") for space in ("log(1)", "1", "", [1], 5, "log(0.1")],
        *[(space, "must be finite numbers in order") for space in ("uniform(2, 1)", "uniform(0, inf)", "log(a, 1)")],
        ("log(0, 1)", "and above 0"),
        ("loguniform(0.1, 1)", "Did you mean 'log_uniform'"),
    ],
)
def test_spaces_that_are_none_are_refused(space: object, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"search fedprox\.mu: .*{fault}"):
        read("fedprox.mu", space)


@in_one(
    ("field", "fault"),
    [
        (lambda: eq.number(1, 0, 9, search=(1, 2)), r"search must be eq.log_uniform.* found \(1, 2\)"),  # type: ignore[arg-type]
        (lambda: eq.number(1, 0, 9, search=uniform(-1, 8)), r"search: a value must be .* in 0..9; found -1"),
        (lambda: eq.number(1, 0, 9, search=uniform(1.2, 1.8)), "two whole numbers"),
        (lambda: eq.choice("a", "b", search=among("a", "c")), "one of a, b; found 'c'"),
        (lambda: among([1, 2, 3]), r"among\(\[1, 2, 3\]\): expected two values or more"),
    ],
)
def test_a_wrong_search_is_refused_where_it_is_declared(field: Callable[[], object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        field()


@pytest.mark.parametrize(
    ("kind", "default", "right"), [(float, 1, "int"), (int | None, None, "float"), ("int", 1.0, "float")]
)
def test_the_annotation_of_a_number_agrees_with_its_default(kind: Any, default: Any, right: str) -> None:
    fields = [("k", kind, eq.number(default, 0, search=eq.uniform(1, 3)))]
    make_dataclass("Plain", [("k", kind, eq.number(default, 0))], bases=(eq.Rule,), frozen=True)()  # nothing is drawn
    made = make_dataclass("Mine", fields, bases=(eq.Rule,), frozen=True)
    with pytest.raises(ValueError, match=f"Mine: k must be annotated {right}"):
        made()


def test_draws_of_an_interval_are_as_likely_everywhere() -> None:
    values = [log_uniform(0.01, 1).at((k + 0.5) / 100) for k in range(100)]
    assert sum(value < 0.1 for value in values) == 50
    assert [log_uniform(0.01, 1).edge(x) for x in (0.01, 0.1, 0.99)] == ["lower", "", "upper"]
    narrow = [uniform(1000, 1001).at(k / 10) for k in range(10)]
    assert narrow == pytest.approx([1000 + k / 10 for k in range(10)])
    assert uniform(0.5, 1).at(0.123) == 0.561
    assert [among(1, 2, 3).at(x) for x in (0.0, 0.34, 0.999)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "twice"),
    [("0.05", "0.1"), ("cosine(0.1, final=0.01)", "cosine(0.2, warmup=0, final=0.02)"), ("step(0.1)", "step(0.2)"),
     ("layers(0.01, head=0.1, blocks=0)", "layers(0.02, head=0.2, blocks=0)")],
)  # fmt: skip
def test_a_learning_rate_is_scaled(given: str, twice: str) -> None:
    assert scaled(rate(given), 2) == rate(twice)


def test_a_function_of_python_is_not_tuned() -> None:
    with pytest.raises(ValueError, match="cannot be tuned"):
        scaled(rate(lambda t: 0.1), 2)


# criteria
def held_out_history(main: str = "accuracy", meta: dict[str, Any] | None = None) -> History:
    rounds = [
        {
            "round": t,
            "validation": {
                main: 0.5, "loss": 1.0, "n": 40,
                "groups": {"a": {main: 0.4 + t / 100, "loss": 1.0, "n": 20}, "b": {main: 0.8 - t / 100, "loss": 1.0, "n": 20}},
                "clients": {main: [0.1 * (k + 1) for k in range(10)], "loss": [1.0] * 10},
            },
        }
        for t in range(8)
    ]  # fmt: skip
    return History(tuple(rounds), {"method": "fedavg", "client_names": [str(k) for k in range(10)], **(meta or {})})  # type: ignore[arg-type, typeddict-item]


def test_criteria_are_the_numbers_of_tables_over_the_last_five_rounds() -> None:
    found = scores(held_out_history())
    a, b = (100 * fmean(x) for x in ([0.4 + t / 100 for t in range(3, 8)], [0.8 - t / 100 for t in range(3, 8)]))
    expected = {
        "mean": (a + b) / 2,
        "samples": 50.0,
        "worst": a,
        "mean-std": (a + b) / 2 - np.std([a, b], ddof=1),
        "worst10": 10.0,
    }
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined == {"eo", "collaboration"}
    assert {k: v for k, v in found.items() if k not in undefined} == pytest.approx(expected)


def test_errors_are_better_the_lower() -> None:
    found = scores(held_out_history("rmse", {"task": "regression"}))
    assert found["mean"] == pytest.approx(-0.6)
    assert found["worst"] == pytest.approx(-0.75)
    assert found["worst10"] == pytest.approx(-1.0)


def test_without_groups_the_clients_are_judged() -> None:
    history = held_out_history()
    for record in history.records:
        record["validation"]["groups"] = {"all": record["validation"]["groups"]["a"]}
    assert scores(history)["worst"] == pytest.approx(10)
    assert scores(history)["mean"] == pytest.approx(55)


def test_equal_opportunity_is_that_of_the_rows_held_out() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for k in range(3):
        x, y = part(400, k)
        clients.append((x, y, torch.randint(0, 2, (400,), generator=generator)))
    fed = eq.Federation(net(), clients, "fedavg", eq.SGD(0.3), validation=0.5, seed=3)
    fed.fit(5, progress=False)
    held = [data for data in fed.held.sets if data is not None]  # type: ignore[union-attr]
    rates = []
    for value in (0, 1):
        right = true = 0
        for data in held:
            batch = data.batch(torch.arange(data.size), None)
            rows = (batch.y == 1) & (batch.s[:, 0] == value)
            true += int(rows.sum())
            right += int((fed.network()(batch.x[rows]).argmax(-1) == 1).sum())
        rates.append(100 * right / true)
    by_hand = -abs(rates[0] - rates[1])
    last = History(fed.history.records[-1:], fed.history.meta)
    assert scores(last)["eo"] == pytest.approx(by_hand)


# choosing
def test_the_best_draw_is_that_of_a_plain_search() -> None:
    tuning = tuned(["fedprox"], draws=5, by="worst", halving=False)
    reached = {}
    for d in range(5):
        space = space_of(eq.parse("fedprox"))
        settings = settled(space, 0.05, random_shares(space, 0, d)) if d else {"lr": 0.05, "fedprox.mu": 0.01}
        torch.manual_seed(10_000)
        fed = eq.Federation(
            net(), CLIENTS, f"fedprox(mu={settings['fedprox.mu']})", eq.SGD(settings["lr"]), seed=10_000, groups=GROUPS,
            validation=0.2, batch_size=8,
        )  # fmt: skip
        fed.fit(4, progress=False)
        groups = [record["validation"]["groups"] for record in fed.records]
        reached[d] = 100 * min(fmean(float(g[name]["accuracy"] or 0) for g in groups) for name in ("a", "b"))
    choice = tuning.choices["fedprox"]
    assert {t.trial.draw: t.last.scores["worst"] for t in choice.tried} == pytest.approx(reached)
    useful = [t.trial.draw for t in choice.tried if not t.last.failed]
    assert choice.taken.trial.draw == max(useful, key=lambda d: (reached[d], -d))


@pytest.mark.share(3)
def test_halving_continues_the_better_half_bit_for_bit() -> None:
    halved, whole = (tuned(["fedprox"], draws=8, by="mean", halving=halving, rounds=8) for halving in (True, False))
    trials = {t.trial.draw: t for t in whole.choices["fedprox"].tried}
    reached = [t.last.rounds for t in halved.choices["fedprox"].tried]
    assert sorted(reached) == [2] * 4 + [4] * 2 + [8] * 2
    for tried in halved.choices["fedprox"].finished:
        assert tried.last.scores["mean"] == trials[tried.trial.draw].last.scores["mean"]
    first = sorted(halved.choices["fedprox"].tried, key=lambda t: (-t.results[0].scores["mean"], t.trial.draw))
    usable = [t for t in first if not t.results[0].failed]
    assert {t.trial.draw for t in usable[:4]} >= {
        t.trial.draw for t in halved.choices["fedprox"].tried if t.last.rounds > 2
    } - {t.trial.draw for t in first if t.results[0].failed}


@pytest.mark.parametrize("stop", [7, 14, 17])  # in the first, second and last rung
def test_a_choice_that_is_stopped_and_continued_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    more: dict[str, Any] = {"methods": ["fedprox"], "draws": 10, "rounds": 8, "by": "worst"}
    whole = tuned(directory=tmp_path / "whole", **more)
    again = tuned(directory=tmp_path / "whole", **more)
    assert (again.digest, again.document()) == (whole.digest, whole.document())
    fits = []
    fit = eq.Federation.fit

    def failing(fed: Any, *arguments: Any, **more: Any) -> Any:
        fits.append(fed)
        if len(fits) == stop:
            raise KeyboardInterrupt
        return fit(fed, *arguments, **more)

    monkeypatch.setattr(eq.Federation, "fit", failing)
    with pytest.raises(KeyboardInterrupt):
        tuned(directory=tmp_path / "stopped", **more)
    monkeypatch.undo()
    assert not (tmp_path / "stopped" / "chosen.toml").exists()
    continued = tuned(directory=tmp_path / "stopped", **more)
    assert without_seconds(continued.document()) == without_seconds(whole.document())


@pytest.mark.parametrize("by", ["mean", "eo"])
def test_every_draw_has_its_criterion_at_every_rung(by: str) -> None:
    generator = torch.Generator().manual_seed(0)
    people = [(x, y, torch.randint(0, 2, (len(x),), generator=generator)) for x, y in CLIENTS]
    given = {**GIVEN, "groups": None, "rounds": 12, "draws": 8, "by": by, "solver": eq.SGD(0.3)}
    for method in ("fedavg", "ditto-personal", "cgsv"):
        choice = eq.tune(net, people, [method], **given).choices[method]
        assert sorted(tried.last.rounds for tried in choice.tried) == [3] * 4 + [6] * 2 + [12] * 2
        assert all(math.isfinite(result.scores[by]) for tried in choice.tried for result in tried.results)
        useful = [t for t in choice.tried if not t.results[0].failed]
        first = sorted(useful, key=lambda t: (-t.results[0].scores[by], t.trial.draw))
        assert {t.trial.draw for t in first[:4]} <= {t.trial.draw for t in choice.tried if t.last.rounds > 3}


def test_a_criterion_that_is_defined_late_is_no_bad_draw() -> None:
    def histories(trials: Any, until: int, _: bool) -> dict[Any, list[Outcome]]:
        return {trial: [Outcome(Cell(trial, None, Path()), trained=fake(trial.draw, until))] for trial in trials}

    def fake(draw: int, until: int) -> History:  # the models of clients are equal until the last rounds
        received = [{"accuracy": [0.5, 0.5 + draw / 100 * (t > 2)]} for t in range(until)]
        held_out = {
            "accuracy": 0.5 + draw / 10,
            "loss": 0.5,
            "groups": {"all": {"accuracy": 0.5 + draw / 10, "loss": 0.5}},
        }
        name = "the server's validation data"
        records = [
            {
                "round": t,
                "groups": {name: {"accuracy": 0.5, "loss": 0.5, "n": 50}},
                "clients": each,
                "validation": held_out,
            }
            for t, each in enumerate(received)
        ]
        alone = {"standalone_test": [0.4, 0.6], "rounds": 8, "seconds": 2.0}
        return History(records, {"method": "cgsv", "contribution": alone})  # type: ignore[arg-type]

    chosen = decide({"cgsv": {}}, {"cgsv": 0.1}, Budget(draws=4, by="collaboration"), 8, histories).choices["cgsv"]
    assert [t.trial.draw for t in chosen.finished] == [2, 3]  # the better means went on, and both are then equally fair
    assert [t.results[0].scores["collaboration"] for t in chosen.finished] == pytest.approx([math.nan] * 2, nan_ok=True)
    assert chosen.cost == (4, 4 * 8 + 4 * 4 + 2 * 4, 8.0)  # with the rounds and seconds of clients alone
    never = decide({"cgsv": {}}, {"cgsv": 0.1}, Budget(draws=4, by="collaboration"), 4, histories)
    assert (never.choices["cgsv"].settled, never.choices["cgsv"].settings) == (False, {})
    assert any(
        "collaboration is not defined in all runs of any of its draws" in text
        for text in shown.sentences(never.document())
    )


def test_results_on_test_data_cannot_change_a_choice() -> None:
    tests = {"a": part(100, 1), "b": part(100, 2)}
    turned = {name: (x, 1 - y) for name, (x, y) in tests.items()}
    documents = [tuned(tests=each, by="worst").document() for each in (tests, turned)]
    assert without_seconds(documents[0]) == without_seconds(documents[1])
    oracles = [tuned(tests=each, by="oracle").document() for each in (tests, turned)]
    assert without_seconds(oracles[0]) != without_seconds(oracles[1])
    assert "too good" in shown.budget(oracles[0])
    assert [row[0] for row in shown.rows(oracles[0])] == ["fedavg (oracle)", "fedprox (oracle)"]


def test_a_sealed_choice_names_no_test_loss() -> None:
    rates = {"true": [5, 5], "right": [5, 0], "chosen": [10, 0]}
    held_out = {"accuracy": 0.5, "loss": 31.8, "n": 10}
    record = {"round": 0, "validation": {**held_out, "groups": {"a": {**held_out, "rates": rates}}}}
    why = failed(History([record], {"method": "fedavg"}))  # type: ignore[list-item]
    assert why.startswith("training diverged: its validation loss is 31.8")


def test_collaborative_fairness_is_that_on_the_servers_data(tmp_path: Path) -> None:
    held_out, test = part(50, 2), part(60, 3)
    given = {
        "groups": None,
        "collaborative": True,
        "server_validation": held_out,
        "by": "collaboration",
        "draws": 2,
        "solver": eq.SGD(0.5),
    }
    documents = [
        tuned(["finetune", "fedavg"], 5, tests={"all": (x, y)}, directory=tmp_path / str(k), **given).document()
        for k, (x, y) in enumerate([test, (test[0], 1 - test[1])])
    ]
    assert without_seconds(documents[0]) == without_seconds(documents[1])
    chosen = documents[0]["methods"]
    run = History.from_run(tmp_path / "0" / "trials" / f"finetune-draw{chosen['finetune']['draw']:02d}-seed10000")
    alone = np.array(run.meta["contribution"]["standalone_test"])
    received = [record["clients"]["accuracy"] for record in run.records if "clients" in record]
    fairness = [100 * np.corrcoef(alone, each)[0, 1] for each in received[-5:]]
    assert chosen["finetune"]["score"] == pytest.approx(fmean(fairness))
    assert chosen["fedavg"]["score"] is None
    text = "fedavg: collaboration is not defined in all runs of any of its draws, so the defaults are taken. It is not where"
    assert any(sentence.startswith(text) for sentence in shown.sentences(documents[0]))
    for lacking in ("collaborative", "server_validation"):
        with pytest.raises(ValueError, match="by=collaboration needs data for collaborative fairness"):
            tuned(["cgsv"], **{**given, lacking: None})
    with pytest.raises(ValueError, match="every client receives the same model by fedavg, fedprox"):
        tuned(**given)


def test_clients_train_alone_only_where_that_decides() -> None:
    given: dict[str, Any] = {"groups": None, "collaborative": True, "server_validation": part(50, 2), "draws": 2}
    hidden = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    for method, by, rounds in (("fedavg", "mean", 6), ("fedsac", "mean", 12), ("cgsv", "collaboration", 12)):
        tuning = eq.tune(hidden, CLIENTS, [method], rounds=3, by=by, **{**GIVEN, **given, "solver": eq.SGD(0.5)})
        assert tuning.choices[method].cost[:2] == (2, rounds)


@dataclass(frozen=True)
class Peeks(eq.Rule):
    """A rule that measures contributions on test data."""

    needs = frozenset({"contribution_on_test"})


def test_a_rule_that_looks_at_test_data_is_refused() -> None:
    with pytest.raises(MethodError, match="test data are sealed"):
        tuned({"mine": Peeks()})
    with pytest.raises(MethodError, match=r"fedsac:published measures contributions on test data"):
        tuned(["fedsac:published"])


def test_a_sealed_run_is_built_without_test_data() -> None:
    sealed = config("fedavg", sealed=True, validation=0.25)
    fed, data = directory.federation(sealed)
    assert not data.tests
    assert data.client_tests is None
    assert not fed.tests.sets
    assert directory.federation(config("fedavg"))[0].tests.sets  # or the test could not fail


def test_a_client_that_is_left_out_is_the_test_set() -> None:
    whole, less = unchanged.data_of(config("fedavg")), unchanged.data_of(config("fedavg", left_out="photo-1"))
    k = whole.client_names.index("photo-1")
    assert len(less.clients) == len(whole.clients) - 1
    assert [*less.tests] == ["photo-1"]
    assert torch.equal(less.tests["photo-1"][1], whole.clients[k][1])  # type: ignore[index]
    people = tuple(torch.arange(n) for n in whole.sizes)
    known = replace(whole, people=people, tested=(dict.fromkeys(whole.tests, people[0]), None)).leaving("photo-1")
    assert torch.equal(known.test_sets[0]["photo-1"].people, people[k])  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="nobody: expected one of at least two clients"):
        unchanged.data_of(config("fedavg", left_out="nobody"))


def test_a_client_that_takes_no_part_can_be_the_criterion() -> None:
    tuning = tuned(["fedavg"], draws=2, rounds=3, by="leave-one-client-out")
    for tried in tuning.choices["fedavg"].finished:
        lr = tried.trial.settings.get("lr", 0.05)
        reached = []
        for k in range(4):
            torch.manual_seed(10_000)
            others = [c for m, c in enumerate(CLIENTS) if m != k]
            fed = eq.Federation(
                net(), others, "fedavg", eq.SGD(lr), tests={"left": CLIENTS[k]}, seed=10_000, batch_size=8
            )
            fed.fit(3, progress=False)
            reached.append(100 * fmean(float(r["groups"]["left"]["accuracy"] or 0) for r in fed.records))
        assert tried.last.scores["leave-one-client-out"] == pytest.approx(fmean(reached))
    few = [part(6, 0), part(40, 1), part(40, 2)]
    choice = eq.tune(net, few, ["fedavg"], rounds=2, by="leave-one-client-out", draws=2, progress=False).choices[
        "fedavg"
    ]
    assert all(math.isfinite(tried.last.scores["leave-one-client-out"]) for tried in choice.finished)
    names = {"groups": None, "names": list("abcd"), "availability": {"a": 0.5}}
    with pytest.raises(ValueError, match="without a: availability: no group or client is called 'a'"):
        tuned(["fedavg"], by="leave-one-client-out", **names)
    with pytest.raises(MethodError, match="standalone has no global model"):
        tuned(["standalone"], by="leave-one-client-out")


def test_draws_that_diverge_are_last() -> None:
    tuning = tuned(["fedavg"], draws=4, by="mean", search={"lr": "1e30,1e31"}, rounds=4, solver=eq.SGD(0.3))
    choice = tuning.choices["fedavg"]
    assert choice.settings == {}
    assert all(tried.last.failed for tried in choice.tried if tried.trial.draw)
    assert "3 of 4 draws diverged or guess" in str(tuning)


def test_a_value_at_the_end_of_its_range_is_reported() -> None:
    shares = {"lr": 0.97, "fedprox.mu": 0.02, "other": 0.99}
    assert edges({"fedprox.mu": log_uniform(0.001, 1)}, shares) == {"lr": "upper", "fedprox.mu": "lower"}
    assert edges({"lr": uniform(0, 1)}, {"lr": 0.5}) == edges({"lr": among(1, 2)}, shares) == edges({}, {}) == {}
    document = tuned().document()
    document["methods"]["fedprox"] |= {"edges": {"lr": "upper"}, "settings": {"lr": 0.5}}
    assert any(
        text.startswith("fedprox: lr = 0.5 is at the upper end of its range") for text in shown.sentences(document)
    )


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"by": "best"}, ValueError, "by must be one of mean, samples, worst"),
        ({"draws": 0}, ValueError, "draws must be a whole number >= 1"),
        ({"validation": 0}, ValueError, r"validation must be in \(0, 1\)"),
        ({"search": {"fedprox.mo": "0.1,1"}}, ValueError, r"fedprox\.mu"),
        ({"search": {"lr": "0.1"}}, ValueError, "expected log"),
        ({"search": {"lr": "uniform(-1, 0.1)"}}, ValueError, "search lr: lr must be > 0"),
        ({"search": {"lr": "a,b"}}, ValueError, "search lr: "),
        ({"method": "fedavg"}, TypeError, "give methods"),
        ({"sampler": "grid"}, ValueError, "sampler must be one of random, optuna"),
        ({"by": "eo"}, ValueError, r"by=eo needs classes, and groups of people"),
        ({"by": "oracle"}, ValueError, r"by=oracle needs test data"),
        ({"methods": {"a b": "fedavg", "a-b": "fedprox"}}, ValueError, "'a b' and 'a-b' would share the folder a-b"),
        ({"select": "best-validation"}, ValueError, "settings are chosen by the last rounds"),
        ({"search": [("lr", "0.1,1")]}, TypeError, "search must be a dictionary"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(more: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tuned(**more)


def test_a_comparison_says_what_was_tuned_and_what_was_not() -> None:
    tests = {"a": part(60, 1), "b": part(60, 2)}
    plain = eq.compare(net, CLIENTS, ["fedavg", "fedprox"], 2, rounds=2, tests=tests, **GIVEN)
    assert plain["notes"][0] == NOTHING.format(AS_GIVEN)
    for rates, clause in (((0.1, 0.1), ALIKE), ((0.1, 0.2), AS_GIVEN)):
        of_rates = [
            replace(run, meta={**run.meta, "config": {"lr": rates[run.label == "fedprox"]}}) for run in plain.histories
        ]
        assert eq.Comparison.of(of_rates)["notes"][0] == NOTHING.format(clause)
    compared = eq.compare(net, CLIENTS, ["fedavg", "fedprox"], 2, rounds=2, tests=tests, tune=2, by="worst", **GIVEN)
    assert compared["notes"][0] == (
        "Chosen by the worst group of clients (the worst client where these belong to none), on 20 % of each client's training samples; 2 draws for each method. "
        "Scores are over the last 2 rounds."
    )
    assert compared["notes"][1].startswith("Choosing cost 4 runs, 8 rounds, ")
    assert re.match(
        r"Chosen: fedavg \((the defaults: )?lr=[\d.]+\); fedprox \((the defaults: )?lr=[\d.]+, fedprox.mu=[\d.]+\)\.$",
        compared["notes"][2],
    )
    oracle = [
        replace(run, meta={**run.meta, "tuned": {**run.meta["tuned"], "by": "oracle"}}) for run in compared.histories
    ]
    assert [row["method"] for row in eq.Comparison.of(oracle)["methods"]] == ["fedavg (oracle)", "fedprox (oracle)"]
    settings = {history.label: (history.tuned or {})["settings"] for history in compared.histories}
    rates_of = {history.label: history.records[0] for history in compared.histories}
    assert {*settings} == {*rates_of} == {"fedavg", "fedprox"}


def test_a_comparison_that_chooses_first_is_kept_and_continued(tmp_path: Path) -> None:
    tests = {"a": part(60, 1), "b": part(60, 2)}
    one, other = (
        eq.compare(net, CLIENTS, ["fedavg"], 2, rounds=2, tests=tests, tune=2, directory=tmp_path / "c", **GIVEN)
        for _ in range(2)
    )
    assert one["notes"] == other["notes"]
    chosen = (tmp_path / "c" / "choosing" / "chosen.toml").read_text()
    assert (tmp_path / "c" / "choosing" / "tuning.html").exists()
    kept = History.from_run(tmp_path / "c" / "fedavg-seed0").tuned
    assert kept == one.histories[0].tuned
    for other_choice in ({"tune": 2, "by": "worst"}, {"tune": 3}):  # nothing is lost of the one that was reported
        with pytest.raises(RunError, match="runs beside it have its settings"):
            eq.compare(
                net, CLIENTS, ["fedavg"], 2, rounds=2, tests=tests, directory=tmp_path / "c", **GIVEN, **other_choice
            )
    assert (tmp_path / "c" / "choosing" / "chosen.toml").read_text() == chosen


def test_a_comparison_takes_a_choice(tmp_path: Path) -> None:
    tests = {"a": part(60, 1), "b": part(60, 2)}
    methods = ["fedavg", "fedprox"]
    choice = tuned(methods, draws=4, trials=2, sampler="random", search={"lr": "log(0.01, 1)"})
    given = {**GIVEN, "rounds": 4, "tests": tests}
    compared = eq.compare(net, CLIENTS, methods, 1, tune=choice, **given)
    for history in compared.histories:
        assert history.tuned == {**choice.tuned(history.label), "changed": []}
    assert "4 draws for each method" in " ".join(str(compared).split())
    longer = eq.compare(net, CLIENTS, ["fedprox"], 1, tune=choice, **{**given, "rounds": 6})
    assert "after the choice: fedprox (rounds)" in " ".join(str(longer).split())
    for wrong, text in (
        ({"methods": ["fedavg", "qffl"]}, r"the settings of fedavg, fedprox were chosen.*found methods=\['qffl'\]"),
        ({"solver": eq.SGD(0.3)}, r"the settings of fedavg, fedprox were chosen.*found solver=SGD\(lr=0.3"),
        ({"stop": eq.EarlyStopping(2), "validation": 0.2}, "settings are chosen by the last rounds"),
        ({"seeds": [10_001]}, r"settings are chosen with \[10000, 10001\]"),
        ({"by": "worst"}, "They are chosen already"),
    ):
        with pytest.raises(ValueError, match=text):
            eq.compare(net, CLIENTS, **{**given, "methods": methods, "tune": choice, **wrong})  # type: ignore[arg-type]
    for wrong_choice in ("chosen.toml", choice.chosen):
        with pytest.raises(TypeError, match=r"or the Tuning that eq\.tune"):
            eq.compare(net, CLIENTS, methods, 1, tune=wrong_choice, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({}, []),
        ({"rounds": 3, "validation": 0.2, "engine": "sequential", "names": list("wxyz")}, ["rounds"]),
        ({"validation": 0.4}, ["validation"]),
        ({"settings": eq.Settings(validation=0.4, norm_limit=3.0)}, ["norm_limit", "validation"]),
        ({"epochs": 2, "settings": eq.Settings(steps=3)}, ["epochs", "steps"]),
        ({"clients": [part(40, k) for k in (0, 1, 2, 4)]}, ["clients"]),
        ({"clients": [(x, 1 - y) for x, y in CLIENTS]}, ["clients"]),
        ({"groups": ["a", "b", "a", "b"]}, ["groups"]),
        ({"start": lambda: nn.Sequential(nn.Linear(4, 2), nn.Identity())}, ["net"]),
        ({"start": lambda: nn.Linear(4, 2).requires_grad_(False).requires_grad_()}, []),
        ({"start": lambda: _filled(nn.Linear(4, 2))}, ["values of net"]),
        ({"transform": lambda x, shift: 2 * x}, ["transform"]),
    ],
)
def test_what_differs_from_what_was_chosen_for_is_named(more: dict[str, Any], changed: list[str]) -> None:
    given = {
        **GIVEN,
        "rounds": 2,
        "tests": {"a": part(60, 1), "b": part(60, 2)},
        "clients": CLIENTS,
        "start": net,
    } | more
    choice = tuned(["fedavg", "fedprox"], 2, draws=2)
    compared = eq.compare(given.pop("start"), given.pop("clients"), ["fedprox"], 1, tune=choice, **given)
    assert sorted(compared.histories[0].tuned.get("changed", ())) == changed
    named = f"Changed after the choice: fedprox ({', '.join(changed)})."
    assert (named in compared["notes"]) == bool(changed)


def _filled(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


def test_the_share_that_is_held_out_may_stand_in_the_settings() -> None:
    assert tuned(["fedavg"], 2, draws=1, settings=eq.Settings(validation=0.4)).budget.validation == 0.4
    assert tuned(["fedavg"], 2, draws=1, settings=eq.Settings(validation=0.4), validation=0.3).budget.validation == 0.3


def test_data_that_no_settings_can_help_end_the_choice() -> None:
    with pytest.raises(eq.QuorumError, match="the data hold NaN"):
        eq.tune(net, [(x * math.nan, y) for x, y in CLIENTS], ["fedavg"], rounds=2, draws=2, **GIVEN)


@pytest.mark.parametrize(
    ("function", "more", "text"),
    [
        (eq.tune, {"measures": "f1"}, "measures must be several"),
        (eq.tune, {"stop": eq.EarlyStopping(2)}, "tune.* takes no stop.*settings are chosen by the last rounds"),
        (eq.tune, {"seeds": 3}, "tune.* takes no seeds: give them to eq.compare"),
        (eq.tune, {"lr": 0.1}, "lr belongs to the local optimiser: solver=eq.SGD"),
        (eq.compare, {"tune": 2, "trials": 2}, "compare.* takes no trials: give it to eq.tune"),
    ],
)
def test_keywords_that_belong_elsewhere_say_where(function: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        function(net, CLIENTS, ["fedavg"], rounds=2, **{**GIVEN, **more})


def test_a_comparison_of_methods_that_were_not_tuned_alike_says_so() -> None:
    tests = {"a": part(60, 1), "b": part(60, 2)}
    runs = [
        eq.compare(net, CLIENTS, [method], 1, rounds=2, tests=tests, **({"tune": 2, "by": by} if by else {}), **GIVEN)
        for method, by in (("fedavg", "worst"), ("fedprox", "mean"), ("scaffold", ""))
    ]
    notes = eq.Comparison.of([history for compared in runs for history in compared.histories])["notes"]
    assert notes[0] == "Methods were not tuned alike, so a difference between them may be one of tuning."
    assert notes[1].startswith("fedavg: Chosen by the worst group")
    assert notes[2].startswith("fedprox: Chosen by the mean over groups")
    assert "Not tuned: scaffold." in notes


@pytest.mark.parametrize(
    ("more", "text"),
    [({"by": "worst"}, "Add tune=16"), ({"tune": 2, "seeds": [10_000]}, r"settings are chosen with \[10000\]")],
)
def test_a_comparison_from_python_refuses_what_it_would_not_do(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eq.compare(net, CLIENTS, ["fedavg"], rounds=2, tests={"a": part(60, 1), "b": part(60, 2)}, **GIVEN, **more)


def test_an_own_rule_is_tuned_where_it_says() -> None:
    @dataclass(frozen=True)
    class Mine(eq.Rule):
        strength: float = eq.number(0.5, low=0, high=9, search=eq.uniform(2, 3))

    tuning = tuned({"mine": Mine()}, draws=3, halving=False)
    drawn = [t.trial.settings["Mine.strength"] for t in tuning.choices["mine"].tried if t.trial.draw]
    assert len(drawn) == 2
    assert all(2 <= value <= 3 for value in drawn)
    method, solver = tuning.chosen["mine"]
    assert eq.Federation(net(), CLIENTS, method, solver).method.rules == method.rules


def test_a_sampler_that_learns_is_repeatable(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    one, other = (tuned(["fedprox"], draws=8, sampler="optuna", rounds=4).document() for _ in range(2))
    assert without_seconds(one) == without_seconds(other)
    random = tuned(["fedprox"], draws=8, rounds=4).document()
    drawn = [{t["draw"]: t["settings"] for t in each["methods"]["fedprox"]["trials"]} for each in (one, random)]
    assert drawn[0][1] == drawn[1][1]  # nothing is known before the first quarter
    assert drawn[0][7] != drawn[1][7]


# the command line
@pytest.mark.share(6)
def test_a_choice_is_a_file_for_other_commands(tmp_path: Path, equipoise: Any) -> None:
    base = ("--runs", tmp_path, "--rounds", 4, *TINY)
    done = equipoise("tune", "fedavg", "fedprox", "--draws", 4, "--by", "worst", "--name", "t", *base, "--json")
    document = json.loads(done.out)
    path = tmp_path / "t" / "chosen.toml"
    assert document["chosen"] == hashlib.sha256(path.read_bytes()).hexdigest()
    chosen = tomllib.loads(path.read_text())
    assert {"lr"} <= chosen["methods"]["fedprox"].keys() <= {"lr", "fedprox.mu"}
    compared = equipoise("compare", "fedavg", "fedprox", "--config", path, "--runs", tmp_path, "--name", "c", "--json")
    notes = json.loads(compared.out)["notes"]
    assert notes[0].startswith("Chosen by the worst group")
    run = directory.load(tmp_path / "c" / "fedprox-seed0")
    assert run.lr == chosen["methods"]["fedprox"]["lr"]
    assert run.tuned is not None
    assert run.tuned["settings"] == chosen["tuned"]["fedprox"]["settings"]
    assert run.tuned["chosen"] == document["chosen"]
    assert not run.tuned["changed"]
    words = ("compare", "fedavg", "fedprox", "--config", path, "--runs", tmp_path, "--json")
    other = json.loads(equipoise(*words, "--lr", 0.3, "--set", "fedprox.mu=0.7", "--rounds", 3).out)["notes"]
    changed = "fedavg (rounds, lr); fedprox(mu=0.7) (rounds, lr, fedprox.mu)"
    assert f"Changed after the choice: {changed}." in other
    assert "chosen already" in equipoise("tune", "fedavg", "--config", path, "--runs", tmp_path).err
    alone = equipoise("run", "--method", "fedprox", "--config", path, "--runs", tmp_path, "--json")
    assert json.loads(alone.out)["methods"][0]["method"] == "fedprox"
    text = path.read_text()
    path.write_text(sealed_text(text.partition("\n")[2].replace('code = ""', 'code = "of before"')))
    recoded = equipoise("compare", "fedavg", "fedprox", "--config", path, "--runs", tmp_path, "--name", "d", "--json")
    assert "Changed after the choice: fedavg (its code); fedprox (its code)." in recoded.out
    path.write_text(text)
    unclear = equipoise("run", "--config", path, "--runs", tmp_path)
    assert (unclear.status, "several methods" in unclear.err) == (2, True)
    path.write_text(path.read_text().replace("lr = ", "lr = 1"))
    again = ("run", "--method", "fedprox", "--config", path, "--runs", tmp_path, "--json")
    assert "was changed after it was written" in equipoise(*again).err
    path.write_text(path.read_text().split("\n", 1)[1])  # as the message advises: the settings are the user's now
    assert "Chosen by" not in equipoise(*again).out


def test_a_choice_knows_its_table_and_the_settings_of_its_runs(tmp_path: Path, equipoise: Any) -> None:
    table = tmp_path / "t.csv"
    rows = [f"{k},{k % 7},{'abcd'[k % 4]},{['no', 'yes'][k % 3 == 0]}" for k in range(240)]
    table.write_text("\n".join(["age,dose,site,ill", *rows]))
    data = ("--data", table, "--set", "label=ill", "--set", "client=site", "--rounds", 2, "--runs", tmp_path)
    assert equipoise("tune", "fedavg", *data, "--draws", 2, "--name", "t").status == 0

    def changed(name: str, *words: object) -> str:
        command = ("compare", "fedavg", "--config", tmp_path / "t" / "chosen.toml", "--runs", tmp_path, "--json")
        notes = json.loads(equipoise(*command, "--name", name, *words).out)["notes"]
        return next((note for note in notes if note.startswith("Changed")), "")

    assert not changed("same", "--threads", 2, "--validation", 0.2)
    moved = tmp_path / "moved.csv"
    moved.write_text(table.read_text())
    assert not changed("moved", "--data", moved)
    more = ("--validation", 0.3, "--participation", 0.5, "--set", "test=0.4", "--patience", 2)
    assert "fedavg (test, patience, participation, validation)" in changed("more", *more)
    assert not changed("typed", "--task", "classification", "--set", "test=0.2", "--optimizer", "sgd")
    assert "fedavg (norm_limit, quorum)" in changed("free", "--norm-limit", 9, "--quorum", 0.9)
    table.write_text(text := "\n".join(["age,dose,site,ill", *rows[:-1], "1,1,a,yes"]))
    assert "fedavg (the training data of the clients)" in changed("rows")
    assert f"or delete {tmp_path / 't'}." in equipoise("tune", "fedavg", *data, "--draws", 2, "--name", "t").err
    assert equipoise("tune", "fedavg", *data, "--draws", 2, "--name", "t2").status == 0
    table.write_text(text + "\n")  # as a row that no trial trained with
    words = ("compare", "fedavg", "--config", tmp_path / "t2" / "chosen.toml", "--runs", tmp_path, "--name", "file")
    assert "fedavg (t.csv)" in " ".join(equipoise(*words).out.split())


def test_a_choice_knows_the_users_code_and_may_be_used_as_it_says(
    tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from torch import nn\ndef net(in_shape, n_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(3072, n_classes))\n"
    (tmp_path / "net.py").write_text(code)
    given = (
        "--scenario",
        "digits(train=[24, 20, 28, 16], test=[20, 20, 20, 20], clients=4)",
        "--network",
        "net.py:net",
    )
    tuned = equipoise("tune", "fedavg", *given, "--rounds", 2, "--draws", 2, "--name", "t")
    advice = shlex.split(tuned.out.replace("\n", " ").partition("Test them: equipoise ")[2])
    assert "Changed" not in equipoise(*advice).out
    (tmp_path / "net.py").write_text(code + "# changed")
    said = equipoise("compare", "fedavg", "--config", "runs/t/chosen.toml", "--name", "c").out
    assert "after the choice: fedavg (network)" in " ".join(said.split())


@pytest.mark.parametrize("value", [0.5, 0.01])  # 0.01 is the default
def test_a_value_of_the_users_stays_in_the_choice(tmp_path: Path, equipoise: Any, value: float) -> None:
    base = ("--runs", tmp_path, "--rounds", 2, *TINY, "--set", f"fedprox.mu={value}", "--name", "t")
    document = json.loads(equipoise("tune", "fedavg", "fedprox", "--draws", 2, *base, "--json").out)
    assert not [trial for trial in document["methods"]["fedprox"]["trials"] if "fedprox.mu" in trial["settings"]]
    assert "Leave one of them out" in equipoise("tune", "fedprox", *base, "--search", "fedprox.mu=1,2").err
    chosen = tomllib.loads((tmp_path / "t" / "chosen.toml").read_text())
    assert [each.get("fedprox.mu") for each in chosen["methods"].values()] == [None, value]
    words = (
        "run",
        "--method",
        "fedprox",
        "--config",
        tmp_path / "t" / "chosen.toml",
        "--runs",
        tmp_path,
        "--name",
        "r",
    )
    equipoise(*words)
    run = directory.load(tmp_path / "r")
    assert (run.method, run.tuned and run.tuned["changed"]) == ("fedprox" + "(mu=0.5)" * (value == 0.5), [])


def test_a_comparison_chooses_first(tmp_path: Path, equipoise: Any) -> None:
    command = (
        "compare",
        "fedavg",
        "fedprox",
        "--tune",
        4,  # so that the defaults may be dropped halfway, and have no score
        "--by",
        "mean",
        "--runs",
        tmp_path,
        "--name",
        "c",
        "--rounds",
        4,
        *TINY,
    )
    done = equipoise(*command)
    assert "Chosen by the mean over groups" in done.out.replace("\n", " ")
    assert (tmp_path / "c" / "choosing" / "chosen.toml").exists()
    page = (tmp_path / "c" / "choosing" / "tuning.html").read_text()
    assert "How settings were chosen" in page
    assert "fedprox.mu" in page
    assert 'href="choosing/tuning.html"' in (tmp_path / "c" / "report.html").read_text()
    assert equipoise(*command).out.splitlines()[-1] == done.out.splitlines()[-1]  # nothing is trained a second time
    assert "trials" not in equipoise("status", tmp_path).out
    packed = tmp_path / "c.zip"
    assert equipoise("pack", tmp_path / "c", "--output", packed).status == 0
    assert "runs/c/choosing/tuning.json" in zipfile.ZipFile(packed).namelist()
    assert equipoise("verify", packed).status == 0
    for folder in (tmp_path / "c" / "choosing", tmp_path / "c" / "choosing" / "trials"):
        assert "chose settings, and have no results on test data" in equipoise("report", folder).err


def test_a_comparison_without_a_choice_replaces_none_with_one(tmp_path: Path, equipoise: Any) -> None:
    words = ("compare", "fedavg", "--runs", tmp_path, "--name", "c", "--rounds", 1, *TINY)
    assert equipoise(*words, "--tune", 1).status == 0  # the choice is the defaults
    report = (tmp_path / "c" / "report.html").read_bytes()
    assert "settings were chosen by tuning, and these are not. Choose another --name" in equipoise(*words).err
    assert (tmp_path / "c" / "report.html").read_bytes() == report
    for place in ("c", "c/chosen.toml"):
        missed = equipoise("run", "--config", tmp_path / place).err
        assert f"are in {tmp_path / 'c' / 'choosing' / 'chosen.toml'}" in missed.replace("\n", " ")
    given = {**GIVEN, "rounds": 1, "tests": {"a": part(60, 1), "b": part(60, 2)}, "directory": tmp_path / "p"}
    eq.compare(net, CLIENTS, ["fedavg"], 1, tune=1, **given)
    with pytest.raises(eq.CheckpointError, match="tune is given there and not given here"):
        eq.compare(net, CLIENTS, ["fedavg"], 1, **given)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("tune", "fedavg", "--by", "best"), "by must be one of mean"),
        (("tune", "fedavg", "--patience", "3"), "patience"),
        (("tune", "fedsac:published"), "test data are sealed"),
        (("tune", "fedavg", "--search", "mu=1,2"), "setting 'mu'"),
        (("tune", "fedavg", "--search", "lr=1,2", "--search", "lr=1,3"), "--search lr=1,3: lr is given twice"),
        (("tune", "fedavg", "fedavg"), "given twice"),
        (("tune", "term(t=-1)", "term(t= 1)"), "would share the folder"),
        (("tune", "fedavg", "--by", "collaboration"), "every client receives the same model by fedavg"),
        (("tune", "cgsv", "--by", "collaboration"), "needs data for collaborative fairness"),
        (("tune", "fedavg", "--by", "eo", "--scenario", "diabetes"), "needs classes, and groups of people"),
        (("tune", "fedavg", "--engine", "flower-inproc"), "settings are chosen in simulations"),
        (("tune", "fedavg", "--set", "fedprox.mu=1"), "is not part of any of fedavg"),
        (("tune", "fedavg", "--validation", "0"), "validation must be in"),
        (("compare", "fedavg", "--by", "worst"), "without --tune 16. Add that"),
        (("compare", "fedavg", "--tune", "3", "--patience", "5"), "settings are chosen by the last rounds"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, equipoise: Any, words: tuple[str, ...], text: str) -> None:
    assert text in equipoise(*words, "--runs", tmp_path, *TINY).err
    assert not [*tmp_path.glob("*/trials")]


@pytest.mark.parametrize(
    ("name", "command", "text"),
    [
        ("conditions.json", "tune", "holds runs that choose no settings"),
        ("conditions.json", "compare", "holds a benchmark"),
        ("chosen.toml", "compare", "a choice of settings. Choose another --name"),
    ],
)
def test_a_folder_of_another_command_is_refused(
    tmp_path: Path, equipoise: Any, name: str, command: str, text: str
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / name).write_text("{}")
    assert text in equipoise(command, "fedavg", "--runs", tmp_path, "--name", "x", *TINY).err
    assert [path.name for path in (tmp_path / "x").iterdir()] == [name]


def failed_with(text: str, kind: str) -> RunError:
    error = RunError(text)
    error.kind = kind
    return error


def test_rounds_of_an_earlier_rung_count_once_and_the_file_names_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the second rung has the rounds of the first, too."""
    seen, shared = list[int](), dict[str, Any]()

    def finish(cells: Any, how: Any) -> list[Outcome]:
        goals = sum(cell.goal for cell in cells)
        how["on_progress"](goals, goals)
        return []

    def choose(subject: Any, _: Budget, base: Path, train: Any, __: Path) -> None:
        shared.update(subject.shared)
        cells = [Cell(k, config(rounds=8), base / str(k)) for k in range(4)]
        train([replace(cell, until=2) for cell in cells])
        train([replace(cell, until=4) for cell in cells[:2]])
        train(cells[:1])

    monkeypatch.setattr(choosing, "_trained", finish)
    monkeypatch.setattr(choosing, "choose", choose)
    table = {"scenario": "digits", "rounds": 8, "on": "slurm"}
    candidates = choosing.Candidates({"fedprox": "fedprox"}, Layer("", table))
    how: Any = {"jobs": 1, "on_progress": lambda now, _: seen.append(now)}
    choosing.choose_in_processes(candidates, Budget(draws=4), tmp_path / "t", **how)
    assert seen == [4 * 2, 2 * 2 + 2 * 4, 2 * 2 + 4 + 8]
    assert shared == {"scenario": "digits", "rounds": 8}


def test_a_trial_that_fails_whatever_its_settings_is_no_bad_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kind of the error, whatever its words are."""
    whys = [failed_with("killed by signal 9", CODE), failed_with("some words", SETTINGS)]
    monkeypatch.setattr(choosing, "finish", lambda cells, *_, **__: [*map(Outcome, cells, whys)])
    candidates = choosing.Candidates({"fedavg": "fedavg"}, Layer("", {"scenario": "digits", "rounds": 2}))
    with pytest.raises(RunError, match="fedavg cannot be tuned: killed by signal 9"):
        choosing.choose_in_processes(candidates, Budget(draws=2), tmp_path / "killed")
    whys[0] = whys[1]
    assert (
        choosing.choose_in_processes(candidates, Budget(draws=2), tmp_path / "diverged").choices["fedavg"].settings
        == {}
    )
    whys[:] = [failed_with("training diverged in all of them", "")] * 2
    with pytest.raises(RunError, match="training diverged in all"):
        choosing.choose_in_processes(candidates, Budget(draws=2), tmp_path / "wrong")


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        ([Said("TypeError: unsupported operand", CODE), Said("training diverged: x", guard.DIVERGED)], CODE),
        ([Said("the data hold NaN or infinity: x", guard.DATA)], CODE),
        ([Said("training diverged: x", guard.DIVERGED), "its update is not finite"], SETTINGS),
        ([Said("memory ran out: x", OUT_OF_MEMORY)], MEMORY),
    ],
)
def test_the_kind_of_a_missed_quorum_follows_from_the_reasons(reasons: list[str], kind: str) -> None:
    with pytest.raises(eq.QuorumError) as caught:
        guard.quorum(0, 4, 0.5, [(f"client-{k}", reason) for k, reason in enumerate(reasons)])
    assert caught.value.kind == kind


def test_a_worker_tells_the_kind_of_an_error(tmp_path: Path) -> None:
    started(tmp_path / "run", config("fedavg", rounds=1, lr=1e30))
    worker, kinds = Worker(), dict[str, str]()
    for name in ("nothing", "run", "killed"):
        if name == "killed":
            worker.process.kill()
        with pytest.raises(RunError) as caught:
            worker.call(train, [str(tmp_path / name), 1], {})
        kinds[name] = caught.value.kind
    assert kinds == {"nothing": "", "run": SETTINGS, "killed": CODE}
    assert str(caught.value) == "killed by signal 9"
    worker.close()


@pytest.mark.slow
def test_a_killed_choice_continues_to_the_same_bits(tmp_path: Path) -> None:
    def command(name: str, jobs: int) -> list[str]:
        words = ["tune", "fedavg", "fedprox", "--draws", "4", "--rounds", "8", "--runs", str(tmp_path), "--name", name]
        return [sys.executable, "-m", "equipoise", *words, *TINY, "--jobs", str(jobs)]

    subprocess.run(command("whole", 1), check=True, capture_output=True)
    for pause in (4, 7, 10):
        process = subprocess.Popen(
            command("killed", 2), start_new_session=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        time.sleep(pause)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command("killed", 2), check=True, capture_output=True)
    whole, killed = (json.loads((tmp_path / name / "tuning.json").read_text()) for name in ("whole", "killed"))
    assert without_seconds(whole) == without_seconds(killed)


@dataclass(frozen=True)
class Late(eq.Rule):
    """Its updates are infinite from a round on."""

    after: int = 5

    def upload(self, update: torch.Tensor, visit: Any) -> torch.Tensor:
        return update if visit.t < self.after else update * math.nan


@dataclass(frozen=True)
class Faulty(eq.Rule):
    def upload(self, update: torch.Tensor, visit: Any) -> torch.Tensor:
        return update + visit.nothing


def test_a_fault_of_a_rule_is_no_bad_draw() -> None:
    with pytest.raises(QuorumError, match="AttributeError: 'Visit' object has no attribute 'nothing'"):
        tuned([Faulty()], draws=2)


def test_draws_that_diverge_late_cost_what_they_trained() -> None:
    tuning = tuned({"late": Late()}, 8, search={"lr": "log(0.1, 1)"}, solver=eq.SGD(0.3))
    choice, said = tuning.choices["late"], "\n".join(shown.sentences(tuning.document()))
    assert choice.cost[:2] == (4, 4 * 4 + 2 * (5 - 4))  # rounds 4 to 8 of the better two end in round 5
    assert "late: none of the draws that were trained to the end (2) is of use, so the defaults are taken" in said
    assert "in Python halving=False" in said
    assert not choice.settled


def test_python_and_a_command_make_the_same_folders_with_the_same_bits(tmp_path: Path) -> None:
    """Of a choice of settings, which leaves clients out, and of a comparison: the executor decides nothing."""
    shared: dict[str, Any] = {"network": "mlp", "network_options": {"hidden": [8]}, "rounds": 1, "batch_size": 8}
    shared |= {"lr": 0.05, "participation": 0.75, "scenario_options": {**SIZES, "data_seed": 0}}
    plain = configure("fedprox", "digits", **shared)
    data = unchanged.data_of(plain)
    given: dict[str, Any] = {"groups": data.client_groups, "names": data.client_names, "transform": data.transform}
    given |= {"classes": data.classes or None, "solver": plain.solver, "settings": plain.settings, "progress": False}

    def start(seed: int) -> nn.Module:
        return networks.build("mlp", data.shape, data.outputs, seed=seed, hidden=[8])

    one, other, by = tmp_path / "python", tmp_path / "command", "leave-one-client-out"
    candidates = choosing.Candidates({"fedprox": "fedprox"}, Layer("", {"scenario": "digits", **shared}))
    there = choosing.choose_in_processes(candidates, Budget(draws=2, by=by), other / "t", jobs=1)
    here = eq.tune(start, data.holders, ["fedprox"], rounds=1, draws=2, by=by, directory=one / "t", **given)
    assert without_seconds(here.document()) == without_seconds(there.document())
    compare([configure("fedprox", "digits", seed=seed, **shared) for seed in range(2)], other / "c")
    eq.compare(start, data.holders, ["fedprox"], 2, rounds=1, directory=one / "c", tests=data.tests, **given)
    found = [
        {path.parent.relative_to(base).as_posix(): path.parent for path in base.rglob("metrics.jsonl")}
        for base in (one, other)
    ]
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 2 * (1 + len(data.client_names)) + 2
    for name in found[0]:
        assert records(found[0][name]) == records(found[1][name]), name
    assert (one / "c" / "comparison.json").read_bytes() == (other / "c" / "comparison.json").read_bytes()
    assert {path.name for path in (one / "t").iterdir()} == {path.name for path in (other / "t").iterdir()}


def test_every_method_takes_its_settings_from_python() -> None:
    for name in METHODS:
        method, shares = eq.parse(name), dict.fromkeys(("lr", *space_of(eq.parse(name))), 0.4)
        settings = settled(space_of(method), 0.1, shares)
        taken, solver = tuned_method(method, eq.SGD(0.5), settings)
        given = {key: value for key, value in settings.items() if key != "lr"}
        assert taken.rules == eq.parse(name, given).rules
        assert solver.lr == settings["lr"]


def test_nothing_is_beyond_the_end_of_what_a_setting_may_be() -> None:
    edge = space_of(eq.parse("fedmgda"))["fedmgda.eps"]
    assert (edge.edge(0.01), edge.edge(0.99)) == ("", "")
    assert space_of(eq.parse("fedprox"))["fedprox.mu"].edge(0.99) == "upper"
    document = tuned(["fedavg"], draws=2, rounds=1, solver=eq.SGD("cosine(0.05)")).document()
    document["methods"]["fedavg"] |= {"edges": {"lr": "upper"}, "settings": {"lr": "cosine(0.5)"}}
    assert "give another to search further" in "".join(shown.sentences(document))


def test_draws_that_guess_are_last_and_the_better_of_them_first() -> None:
    noise = [
        (x, torch.randint(0, 2, (len(x),), generator=torch.Generator().manual_seed(k)))
        for k, (x, _) in enumerate(CLIENTS)
    ]
    given = {name: value for name, value in GIVEN.items() if name != "groups"}
    tuning = eq.tune(
        net, noise, ["fedavg"], rounds=2, draws=5, halving=False, search={"lr": "log(1e-6, 1e-5)"}, **given
    )
    tried = tuning.choices["fedavg"].tried
    assert all("no better than guessing" in each.last.failed for each in tried)
    assert [each.last.scores["mean"] for each in tried] == sorted(
        (each.last.scores["mean"] for each in tried), reverse=True
    )
    assert tuning.choices["fedavg"].settings == {}


def test_an_executor_chooses_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what clients reach alone, a stop after some of its runs, and runs of a comparison after the choice."""
    rewards = {"collaborative": True, "server_validation": part(50, 9), "by": "collaboration", "groups": None}
    with Twice(3) as on:
        for name, methods, more in (("plain", ("fedavg", "fedprox"), {}), ("alone", ("cgsv",), rewards)):
            here = tuned(methods, 8, directory=tmp_path / name / "here", **more)
            there = tuned(methods, 8, directory=tmp_path / name / "there", on=on, **more)
            assert without_seconds(there.document()) == without_seconds(here.document())
            assert there.chosen == here.chosen
        again = tuned(("fedavg", "fedprox"), 8, directory=tmp_path / "plain" / "there", on=on, progress=True)
        assert without_seconds(again.document()) == without_seconds(tuned(rounds=8).document())
        both = [
            eq.compare(net, CLIENTS, ["fedavg"], 2, rounds=4, tune=2, directory=tmp_path / where, on=executor, **GIVEN)
            for where, executor in (("c", None), ("d", on))
        ]
    assert [records_of(run) for run in both[0].histories] == [records_of(run) for run in both[1].histories]
    with pytest.raises(ValueError, match="on: give a directory that all processes share"):
        tuned(on=ThreadPoolExecutor(1))
    with pytest.raises(TypeError, match=r"on must be an object with submit"):
        tuned(on="slurm", directory=tmp_path / "e")


def records_of(run: eq.History) -> list[Any]:
    return [without_seconds({**record}) for record in run.records]


def test_a_choice_is_made_again_only_from_runs_that_can_serve_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuned(["fedavg"], 2, directory=tmp_path / "t", draws=2)
    for name, value in (("validation", 0.3), ("seed", 1), ("by", "oracle"), ("sampler", "optuna"), ("rounds", 3)):
        more: dict[str, Any] = {"rounds": 2, "draws": 2, "tests": {"a": part(50, 1), "b": part(50, 2)}, name: value}
        with pytest.raises(RunError, match=f"holds a choice with {name}="):
            tuned(["fedavg"], directory=tmp_path / "t", **more)
    assert not caplog.records
    tuned(["fedavg"], 2, directory=tmp_path / "t", draws=3, by="worst")
    assert "holds a choice with draws=2; one with 3 replaces it" in caplog.text


def test_the_defaults_without_a_score_are_explained() -> None:
    document = tuned(["fedavg"], draws=4, rounds=8).document()
    assert "After 4 of 8 rounds only the better 2 of 4 draws went on." in shown.sentences(document)
    method = document["methods"]["fedavg"]
    method["default"] = None
    for trial in method["trials"]:
        if trial["draw"] == 0:
            trial["rungs"] = [{"rounds": 4}, {"rounds": 8}]
            trial["failed"] = "the global model is no better than guessing"
    assert any("the defaults are of no use (the global model is no" in text for text in shown.sentences(document))


def test_a_choice_from_python_names_no_data(tmp_path: Path, equipoise: Any, caplog: pytest.LogCaptureFixture) -> None:
    tuned(["fedavg"], draws=2, rounds=2, directory=tmp_path / "t")
    ended = equipoise("run", "--config", tmp_path / "t" / "chosen.toml", "--runs", tmp_path)
    assert (ended.status, "names no data" in ended.err) == (2, True)
    tuned({"mine": "fedprox(mu=5.0)", "fedprox": "fedprox(mu=4.0)"}, draws=1, rounds=2, directory=tmp_path / "u")
    words = (
        "run",
        "--method",
        "fedprox",
        "--config",
        tmp_path / "u" / "chosen.toml",
        "--runs",
        tmp_path,
        "--name",
        "p",
    )
    said = " ".join(equipoise(*words, "--rounds", 3, *TINY).out.split())
    assert "after the choice: fedprox (all that Python was given, rounds)" in said
    assert directory.load(tmp_path / "p").method == "fedprox(mu=4.0)"
    equipoise(*words[:-1], "q", "--method", "qffl", "--rounds", 2, *TINY)
    assert "qffl: no settings were chosen; the file has those of mine, fedprox" in caplog.text
    assert (
        equipoise("run", "--config", tmp_path / "t" / "chosen.toml", "--runs", tmp_path, "--rounds", 2, *TINY).status
        == 0
    )


def test_every_draw_has_a_point_or_is_named() -> None:
    document = tuned(["fedprox"], halving=False).document()
    method = document["methods"]["fedprox"]
    assert method["defaults"] == {"lr": 0.05, "fedprox.mu": 0.01}
    default, guessing, undefined, diverged = sorted(method["trials"], key=lambda trial: trial["draw"])
    default["failed"], guessing["failed"], diverged["failed"] = None, "guesses", "diverged"
    undefined["rungs"][-1] = {"rounds": 4}
    diverged["rungs"][-1]["mean"], method["settings"] = -1e30, {}
    method["default"] = default["rungs"][-1]["mean"]
    figure = shown.sensitivity("fedprox", method, "mean")
    assert figure is not None
    figure.canvas.draw()
    for panel in figure.axes:
        points = {line.get_xdata()[0]: line.get_fillstyle() for line in panel.lines if line.get_marker() == "o"}
        name = panel.get_xlabel()
        assert points == {method["defaults"][name]: "full", guessing["settings"][name]: "none"}
        assert [line.get_xdata()[0] in points for line in panel.lines if line.get_linestyle() == ":"] == [True]
        assert [line.get_linestyle() for line in panel.lines].count("--") == 1
    ticks = [label.get_window_extent() for panel in figure.axes for label in panel.get_xticklabels()]
    assert not any(one.overlaps(other) for k, one in enumerate(ticks) for other in ticks[:k])

    def of_method() -> tuple[Grid, str]:
        blocks = shown.page(document).sections[1].blocks
        (grid,) = (block.grid for block in blocks if isinstance(block, Table))
        (caption,) = (picture.caption for block in blocks if isinstance(block, Pictures) for picture in block.pictures)
        return grid, caption

    grid, caption = of_method()
    assert "; dashed: the score of the defaults." in caption
    method["default"] = None  # not trained to the end
    assert "dashed" not in of_method()[1]
    figure = shown.sensitivity("fedprox", method, "mean")
    assert figure is not None
    assert "--" not in [line.get_linestyle() for panel in figure.axes for line in panel.lines]
    assert "Without a point: 2 draws (2, 3), whose mean is not defined or out of range." in caption
    assert "the defaults: lr=0.05, fedprox.mu=0.01" in [cells[0].mean for _, cells in grid.rows]
    assert [cells[1].mean for name, cells in grid.rows if name[0] == "2"] == ["–"]  # after how many rounds
