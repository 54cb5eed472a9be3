"""Measures beside accuracy: well-known ones by name, and functions of one's own."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn

import equipoise as eq
from equipoise.flower import Task
from equipoise.flower.server.consortium import description
from equipoise.flower.settings import AppSettings
from equipoise.metrics.classification import KNOWN, Measure, divided
from equipoise.report.layout import sheets
from equipoise.report.statistics import Comparison
from equipoise.runs.configuration import configure
from helpers import in_one
from run_helpers import SIZES, Zygote, assert_same_run, cache, equipoise, executed, records, started, zygote


def cost(p: Any, y: Any) -> float:
    return 10.0 * float((p.argmax(1) != y).mean())


def sample(n: int = 200, C: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(C, 0.4), n)
    return p, rng.integers(0, C, n)


def client(seed: int, n: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def federation(method: Any = "fedavg", measures: Any = ("f1", cost), **more: Any) -> eq.Federation:
    torch.manual_seed(0)
    tests = {"a": client(10, 11), "b": client(11, 23)}
    given = {"tests": tests, "groups": ["a", "b", "b"], "engine": "sequential"} | more
    return eq.Federation(nn.Linear(4, 2), [client(k) for k in range(3)], method, measures=measures, **given)


# the values
def test_known_measures_are_those_of_other_libraries() -> None:
    p, y = sample()
    found = {name: measure(p, y)[0] for name, measure in KNOWN.items()}
    assert found["f1"] == metrics.f1_score(y, p.argmax(1), average="macro")
    assert found["kappa"] == metrics.cohen_kappa_score(y, p.argmax(1))
    assert found["log_loss"] == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean())
    assert found["brier"] == pytest.approx(np.mean([((p[k] - np.eye(4)[y[k]]) ** 2).sum() for k in range(len(y))]))


@pytest.mark.slow
def test_measures_of_torchmetrics_by_name() -> None:
    theirs = pytest.importorskip("torchmetrics.classification")
    p, y = sample()
    found = {name: measure(p, y)[0] for name, measure in KNOWN.items()}
    pairs = {"mcc": theirs.MulticlassMatthewsCorrCoef(4), "ece": theirs.MulticlassCalibrationError(4, n_bins=15)}
    for name, of in pairs.items():
        assert found[name] == pytest.approx(float(of(torch.from_numpy(p), torch.from_numpy(y))), abs=1e-6), name
    ((_, (mcc,))) = divided(["torchmetrics.classification:MulticlassMatthewsCorrCoef"])
    assert (mcc.name, mcc.better) == ("MulticlassMatthewsCorrCoef", "higher")
    assert mcc(p, y)[0] == pytest.approx(found["mcc"], abs=1e-6)


@in_one(
    ("measure", "expected"),
    [
        (KNOWN["mcc"], "ValueError: all samples are of one class"),
        (KNOWN["kappa"], "ValueError: all samples are of one class"),
        (Measure(lambda p, y: 1 / 0), "ZeroDivisionError: division by zero"),
        (Measure(lambda p, y: math.nan), "its value is nan"),
        (Measure(lambda p, y: "x"), "ValueError: could not convert string to float: 'x'"),
    ],
)
def test_what_is_not_defined_is_null_with_its_reason(measure: Measure, expected: str) -> None:
    p, _ = sample(5)
    assert measure(p, np.zeros(5, int)) == (None, expected)
    assert measure(p * np.nan, np.zeros(5, int)) == (None, "the model's outputs are not finite")
    assert KNOWN["mcc"](np.eye(2)[[0, 0]], np.array([0, 1])) == (None, "ValueError: all predictions are of one class")


def test_a_function_cannot_change_what_it_is_given() -> None:
    def greedy(p: Any, y: Any) -> float:
        p[:], y[:] = 0, 0
        return 1.0

    p, y = sample(5)
    before = p.copy(), y.copy()
    assert Measure(greedy)(p, y) == (1.0, "")
    assert all(map(np.array_equal, (p, y), before))


@in_one(
    ("given", "expected"),
    [
        (["f2"], r"Unknown measure 'f2'\. Did you mean 'f1'\? All: .* Or your own: mine\.py:cost\."),
        ([3], r"Measure: expected a function of probabilities and labels; found 3\."),
        (["f1", Measure(cost, "f1")], r"Two measures are called 'f1'\. Rename one: Measure\(function, name=\.\.\.\)\."),
        ([Measure(cost, "auc")], "Two measures are called 'auc'"),
        ("f1", r"measures must be several, such as \(\"accuracy\", \"f1\"\); found 'f1'"),
    ],
)  # fmt: skip
def test_what_is_no_measure_is_refused(given: Any, expected: str) -> None:
    with pytest.raises((ValueError, TypeError), match=expected):
        federation(measures=given)
    with pytest.raises(ValueError, match="Measure: better must be one of higher, lower, None; found 'up'"):
        Measure(cost, better="up")  # type: ignore[arg-type]


# in records
def test_records_have_groups_clients_and_all_samples() -> None:
    fed = federation()
    fed.fit(1, progress=False)
    record = fed.records[0]["measures"]
    wrong = {g: 10 * (1 - fed.records[0]["groups"][g]["accuracy"]) for g in "ab"}
    assert record["cost"]["groups"] == pytest.approx(wrong)
    assert record["cost"]["clients"] == pytest.approx([wrong["a"], wrong["b"], wrong["b"]])
    assert record["cost"]["all"] == pytest.approx((11 * wrong["a"] + 23 * wrong["b"]) / 34)
    assert (record["f1"]["better"], record["cost"]["better"], record["f1"]["undefined"]) == ("higher", None, {})
    assert fed.evaluate(*client(10, 11))["cost"] == pytest.approx(wrong["a"])


def test_clients_are_measured_with_their_own_models_and_test_sets() -> None:
    own = [client(20, 7), None, client(21, 9)]
    fed = federation("finetune", groups=None, client_tests=own)
    fed.fit(1, progress=False)
    found = fed.records[0]["measures"]["cost"]["clients"]
    right = fed.records[0]["clients"]["accuracy"]
    assert found[1] is right[1] is None
    assert [found[0], found[2]] == pytest.approx([10 - 10 * right[0], 10 - 10 * right[2]])


def test_clients_that_train_alone_are_measured_on_their_own_test_sets() -> None:
    fed = federation("standalone", groups=None, client_tests=[client(20, 7), None, client(21, 9)])
    fed.fit(1, progress=False)
    found, right = fed.records[0]["measures"]["cost"]["clients"], fed.records[0]["clients"]["accuracy"]
    assert found[1] is right[1] is None
    assert [found[0], found[2]] == pytest.approx([10 - 10 * right[0], 10 - 10 * right[2]])


def test_measures_follow_the_rounds_of_costly_evaluations() -> None:
    fed = federation()
    fed.fit(12, progress=False)
    assert [r["round"] for r in fed.records if "measures" in r] == [4, 7, 8, 9, 10, 11]


def test_a_measure_that_raises_is_told_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def picky(p: Any, y: Any) -> float:
        if len(y) == 11:
            raise KeyError("no such patients")
        return 1.0

    fed = federation(measures=[picky])
    fed.fit(6, progress=False)
    assert [r.message for r in caplog.records] == [
        "The measure picky cannot be computed for group a: KeyError: 'no such patients'. It is null there."
    ]
    found = fed.records[-1]["measures"]["picky"]
    assert (found["groups"], found["all"]) == ({"a": None, "b": 1.0}, 1.0)
    assert found["undefined"] == dict.fromkeys(("group a", "client client-0"), "KeyError: 'no such patients'")


def test_nothing_changes_where_there_are_none() -> None:
    with_, without = federation(), federation(measures=["accuracy"])
    with_.fit(2, progress=False)
    without.fit(2, progress=False)
    for one, other in zip(with_.records, without.records, strict=True):
        kept = {k: v for k, v in one.items() if k not in ("measures", "seconds")}
        assert kept == {k: v for k, v in other.items() if k != "seconds"}


# decisions
def of_people(n: int, seed: int, C: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of which women have the last class more often."""
    make = torch.Generator().manual_seed(seed)
    s = torch.randint(0, 2, (n,), generator=make)
    x = torch.randn(n, 3, generator=make)
    z = x[:, 0] + 1.5 * s + torch.randn(n, generator=make)
    return torch.cat([x, s[:, None]], 1), (z[:, None] > torch.linspace(0.2, 1.6, C - 1)).sum(1), s


def by_decisions(p: Any, y: Any, predicted: Any) -> float:
    return float(metrics.f1_score(y, predicted, average="macro"))


def of_counts(counts: Any) -> dict[str, float]:
    """F1, MCC and kappa of two classes by hand."""
    (tn, tp), true, chosen = counts["right"], counts["true"], counts["chosen"]
    fp, fn, n = chosen[1] - tp, true[1] - tp, sum(true)
    chance = sum(a * b for a, b in zip(true, chosen, strict=True)) / n**2
    return {
        "f1": tp / (2 * tp + fp + fn) + tn / (2 * tn + fp + fn),
        "mcc": (tp * tn - fp * fn) / math.sqrt(math.prod(map(float, (*true, *chosen)))),
        "kappa": ((tp + tn) / n - chance) / (1 - chance),
    }


@pytest.mark.parametrize(
    "method", ["fedavg", "fedavg+thresholds(metric=dp)", "fedheal+thresholds:randomised", "logofair"]
)
def test_measures_are_those_of_the_decisions(method: str) -> None:
    """Of the global model, of all samples, and of every client, whose decisions may be its own."""
    own = [of_people(200, 20), None, of_people(300, 21)]
    fed = eq.Federation(
        eq.network("mlp", (4,), 2, hidden=[8], seed=0),
        [of_people(n, n) for n in (300, 200, 100)],
        method,
        eq.SGD(0.2),
        tests={"a": of_people(500, 8), "b": of_people(400, 9)},
        client_tests=own,
        attributes={"sex": ["m", "f"]},
        positive=1,
        measures=["rates", "f1", "mcc", "kappa", Measure(by_decisions), "ece", "brier"],
    )
    record = fed.fit(6, progress=False).records[-1]
    groups, found = {name: score["rates"] for name, score in record["groups"].items()}, record["measures"]
    every = {key: [a + b for a, b in zip(groups["a"][key], groups["b"][key], strict=True)] for key in groups["a"]}
    for counts, value in (
        *((groups[g], lambda name, g=g: found[name]["groups"][g]) for g in "ab"),
        (every, lambda name: found[name]["all"]),
    ):
        hand = of_counts(counts)
        assert {name: value(name) for name in hand} == pytest.approx(hand)
        assert value("by_decisions") == value("f1")
    for m, data in enumerate(own):
        expected = None if data is None else fed.evaluate(data, client=m)["f1"]
        assert found["f1"]["clients"][m] == pytest.approx(expected)
        if data is not None:
            x, y, s = data
            assert expected == pytest.approx(metrics.f1_score(y, fed.predict(x, s, client=m), average="macro"))
    plain = fed.predict_proba(of_people(500, 8)[0]).double().numpy()
    ece = KNOWN["ece"](plain, of_people(500, 8)[1].numpy())[0]
    assert found["ece"]["groups"]["a"] == pytest.approx(ece, abs=1e-6)  # probabilities stay


def test_measures_of_three_classes_are_those_of_the_decisions() -> None:
    clients, (x, y, s) = [of_people(400, 1, 3), of_people(300, 2, 3)], of_people(600, 3, 3)
    net, more = eq.network("mlp", (4,), 3, hidden=[], seed=0), {"attributes": {"sex": ["m", "f"]}, "positive": 2}
    fed = eq.Federation(
        net, clients, "thresholds(metric=dp)", eq.SGD(0.2), tests={"t": (x, y, s)}, measures=["f1", "kappa"], **more
    )
    found, predicted = fed.fit(5, progress=False).records[-1]["measures"], fed.predict(x, s)
    assert (predicted != fed.predict(x)).any()
    assert found["f1"]["groups"]["t"] == pytest.approx(metrics.f1_score(y, predicted, average="macro"))
    assert found["kappa"]["groups"]["t"] == pytest.approx(metrics.cohen_kappa_score(y, predicted))


def test_a_function_without_decisions_is_null_where_they_differ() -> None:
    """It would be about predictions that nobody makes."""
    p, y = sample(C=2)
    decided = (p[:, 1] >= 0.2).astype(int)
    value, why = Measure(cost)(p, y, decided)
    assert value is None
    assert "third parameter, predicted" in why
    assert Measure(cost)(p, y, p.argmax(1)) == (cost(p, y), "")
    assert Measure(by_decisions)(p, y, decided)[0] == metrics.f1_score(y, decided, average="macro")
    assert Measure(lambda r, y: float(abs(r - y).mean()))(p[:, 0], y, p[:, 0] + 1)[1] == ""  # numbers are predictions


@pytest.mark.slow
def test_measures_of_torchmetrics_follow_the_decisions() -> None:
    pytest.importorskip("torchmetrics.classification")
    p, y = sample(C=2)
    decided = (p[:, 1] >= 0.2).astype(int)
    names = ("MulticlassMatthewsCorrCoef", "MulticlassAUROC")
    _, (mcc, area) = divided([f"torchmetrics.classification:{name}" for name in names])
    assert mcc(p, y, decided)[0] == pytest.approx(metrics.matthews_corrcoef(y, decided), abs=1e-6)
    assert area(p, y, decided)[0] == pytest.approx(metrics.roc_auc_score(y, p[:, 1]), abs=1e-6)


# runs
SETTINGS = {
    "scenario_options": SIZES, "network": "mlp", "network_options": {"hidden": [8]}, "rounds": 3, "epochs": 1, "batch_size": 8,
    "measures": "f1, brier",
}  # fmt: skip


def test_every_engine_gives_the_same(tmp_path: Path) -> None:
    found = {}
    for engine in ("sequential", "workers", "stacked", "flower-inproc"):
        executed(tmp_path / engine, configure("fedheal", engine=engine, **SETTINGS))
        found[engine] = [r["measures"][name] for r in records(tmp_path / engine) for name in ("f1", "brier")]
    for engine, of in found.items():
        for one, other in zip(of, found["sequential"], strict=True):
            assert [*one["clients"], one["all"]] == pytest.approx([*other["clients"], other["all"]], abs=1e-5), engine


def test_sites_refuse_measures_that_they_cannot_know(tmp_path: Path) -> None:
    batch_norm = SETTINGS | {"network": "resnet10", "network_options": {"width": 4}}
    with pytest.raises(ValueError, match=r"^f1 cannot be measured here: sites keep their test sets, and the models"):
        executed(tmp_path / "x", configure("fedbn", engine="flower-inproc", **batch_norm))
    with pytest.raises(
        ValueError, match=r"^Sites measure accuracy, .* as they run no code that a server names; found f1\."
    ):
        description(
            eq.parse("fedavg"), eq.SGD(), eq.Settings(), Task(nn.Linear(1, 1), measures=("auc", "f1")).measures, "x"
        )
    with pytest.raises(ValueError, match=r"^measures: sites measure what their own task says"):
        AppSettings.of({"measures": "f1"})


@pytest.mark.slow
def test_death_and_going_on_change_nothing(tmp_path: Path, zygote: Zygote) -> None:
    settings = configure("scaffold+fedheal", **SETTINGS)
    whole = executed(tmp_path / "whole", settings)
    for at in (12, 25):
        directory = started(tmp_path / str(at), settings)
        assert zygote.die(directory, at) != 0
        assert zygote.die(directory) == 0
        assert_same_run(whole, directory)


def test_the_command_line_files_and_their_code(tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import equipoise as eq\ndef cost(p, y):\n    return 3\nmoney = eq.Measure(cost, name='money lost', better='lower')\n"
    )
    (tmp_path / "run.toml").write_text(
        "rounds = 1\nscenario = 'digits(clients=4, train=[20, 20, 20, 20], test=[20, 20, 20, 20])'\nnetwork = 'mlp(hidden=[4])'\nmeasures = ['f1', 'mine.py:money']\n"
    )
    assert equipoise("run", "--config", "run.toml", "--name", "a", "--no-report", "--trust").status == 0
    assert records(Path("runs/a"))[0]["measures"]["money lost"]["all"] == 3
    (tmp_path / "mine.py").write_text("def cost(p, y):\n    return 4\n")
    assert "mine.py has changed since" in equipoise("resume", "runs/a").err
    assert "Unknown measure 'f2'" in equipoise("run", "--measures", "f2").err


# the report
def test_the_table_says_which_way_is_better() -> None:
    histories = []
    for method in ("fedavg", "standalone"):
        fed = federation(method, [Measure(cost, "money", "lower"), "mcc", lambda p, y: 1 / 0])
        fed.fit(2, progress=False)
        histories.append(fed.history)
    found = Comparison.of(histories)
    groups = np.mean(
        [[of["groups"][g] for g in "ab"] for r in histories[0].records for of in [r["measures"]["money"]]], axis=0
    )
    row = found["own_measures"]["money"]["methods"][0]
    assert (row["avg"]["mean"], row["worst"]["mean"]) == pytest.approx((groups.mean(), groups.max()))
    assert row["std"]["mean"] == pytest.approx(groups.std(ddof=1))
    alone = histories[1].records[-1]  # of clients alone, who have no global model
    assert alone["measures"]["money"]["clients"] == pytest.approx([10 - 10 * x for x in alone["clients"]["accuracy"]])
    assert (alone["measures"]["money"]["groups"], alone["measures"]["money"]["all"]) == ({"a": None, "b": None}, None)
    assert (
        found["own_measures"]["mcc"]["methods"][1]["avg"]["mean"] is None
    )  # of clients alone, who have no global model
    money, mcc, broken = (sheet for sheet in sheets(found) if sheet.name.startswith("measure-"))
    assert money.heading == "Measure money"
    assert money.grid.titles == ("AVG", "STD", "worst")
    assert "lower is better" in money.explanations[0]
    assert "higher is better" in mcc.explanations[0]
    assert broken.grid.titles == ("AVG", "STD")
    assert "neither way is better" in broken.explanations[0]
    assert broken.notes == ["Not defined for group a: ZeroDivisionError: division by zero."]
    json.dumps(found.document, allow_nan=False)
