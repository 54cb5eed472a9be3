"""What a model does to people with each value of a sensitive attribute: in records, summaries and reports."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise import report, scenarios
from equipoise.core.task import CLASSIFICATION, Regression
from equipoise.flower import in_process
from equipoise.records.history import History
from equipoise.records.record import Record, parse, without
from equipoise.report import figures_of_clients, html
from equipoise.report.statistics import Comparison, _rate
from equipoise.runs import pack
from equipoise.system.terminal import Terminal
from helpers import UNEQUAL, clients, federation, in_one, network, samples, write_records

SOLVER = eq.SGD(0.05)
NAMES = {"sex": ["f", "m"], "age": ["young", "middle", "old"]}


def codes(n: int, seed: int) -> Tensor:
    """Two attributes, of two and three values, some of which are not known."""
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(-1, k, (n,), generator=draw) for k in (2, 3)], 1)


def people(sizes: tuple[int, ...] = UNEQUAL) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(x, y, codes(len(y), 10 + k)) for k, (x, y) in enumerate(clients(sizes))]


def evaluated(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return (*samples(n, seed), codes(n, seed))


def counted(predicted: Tensor, y: Tensor, s: Tensor) -> list[dict[str, Any]]:
    """The sums of classes by each attribute, and by all together, one sample after another."""
    every = []
    for column in [*s.T.tolist(), s.tolist()]:
        values = sorted(code for code in map(json.loads, {*map(json.dumps, column)}) if min(np.atleast_1d(code)) >= 0)
        of: dict[str, Any] = {name: [[0] * 3 for _ in values] for name in ("right", "true", "chosen")}
        unknown = 0
        for p, t, code in zip(predicted.tolist(), y.tolist(), column, strict=True):
            if code not in values:
                unknown += 1
                continue
            row = values.index(code)
            of["right"][row][t] += p == t
            of["true"][row][t] += 1
            of["chosen"][row][p] += 1
        every.append({"value": values, **of, **({"unknown": unknown} if unknown else {})})
    return every


def last(fed: eq.Federation) -> Record:
    fed.fit(2, progress=False)
    return fed.records[-1]


def test_a_record_has_the_sums_of_a_plain_loop() -> None:
    tests = {"a": evaluated(31, 1), "b": evaluated(17, 2), "without": samples(9, 3)}
    fed = federation(data=people(), tests=tests, groups=["a"] * len(UNEQUAL))
    by = last(fed)["by"]
    expected = {name: counted(fed.predict(x), y, s) for name, (x, y, *rest) in tests.items() for s in rest}
    assert by == {"groups": expected}
    assert expected.keys() == {"a", "b"}


@in_one(("method", "own"), [("fedavg", True), ("ditto", True), ("ditto", False), ("standalone", True)])
def test_a_record_has_the_sums_of_every_client(method: str, own: bool) -> None:
    N = len(UNEQUAL)
    mine: list[Any] = [evaluated(9 + m, m) for m in range(N)]
    mine[1] = None
    a = evaluated(31, 1)
    fed = federation(method, data=people(), tests={"a": a}, client_tests=mine if own else None, groups=["a"] * N)
    by = last(fed)["by"]
    assert ("groups" in by) == (method != "standalone")
    for m, found in enumerate(by["clients"]):
        if (of := mine[m] if own else a) is None:
            assert found is None
        else:
            assert found == counted(fed.predict(of[0], client=None if method == "fedavg" else m), of[1], of[2])


def test_a_record_of_numbers_has_their_sums() -> None:
    def numbers(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        x, y = samples(n, seed)
        return x, y.double() * 3 - 0.5, codes(n, seed)

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(samples(1, 0)[0].flatten(1).shape[1], 1)).double()
    tests = {"a": numbers(31, 1)}
    fed = eq.Federation(net, [numbers(12, k) for k in range(3)], tests=tests, task="regression", batch_size=4)
    of_sex, of_age, _ = last(fed)["by"]["groups"]["a"]
    x, y, s = tests["a"]
    error = fed.predict(x) - y
    for k, found in enumerate((of_sex, of_age)):
        assert found["value"] == [*range(2 + k)]
        assert found["unknown"] == int((s[:, k] < 0).sum())
        for row, value in enumerate(found["value"]):
            those = s[:, k] == value
            assert found["n"][row] == int(those.sum())
            sums = [found[key][row] for key in ("squares", "absolute", "error", "target")]  # type: ignore[literal-required]
            expected = [of[those].sum() for of in (error.square(), error.abs(), error, y)]
            assert np.allclose(sums, expected, rtol=1e-12, atol=1e-12)


def test_samples_without_attributes_leave_no_trace() -> None:
    fed = federation(data=clients(), tests={"a": samples(20, 1)})
    assert "by" not in last(fed)
    assert "attributes" not in fed.history.meta


def test_only_costly_rounds_have_them() -> None:
    fed = federation(data=people(), tests={"a": evaluated(20, 1)})
    fed.fit(14, progress=False)
    assert [r["round"] for r in fed.records if "by" in r] == [4, 9, 10, 11, 12, 13]


def test_a_set_without_them_joins_one_with_them() -> None:
    """A client of its own model is tested on two sets, of which only one has attributes."""
    a, bare = evaluated(20, 1), samples(9, 2)
    fed = federation("ditto", data=people(), tests={"a": a, "bare": bare})
    for m, found in enumerate(last(fed)["by"]["clients"]):
        expected = counted(fed.predict(a[0], client=m), a[1], a[2])
        for of in expected:
            of["unknown"] = of.get("unknown", 0) + 9
        assert found == expected


def test_a_test_set_without_attributes_is_unknown() -> None:
    a, bare = evaluated(20, 1), samples(9, 2)
    alone, both = (
        federation(data=people(), tests=tests, attributes=NAMES, least_group=1).fit(1, progress=False).people()
        for tests in ({"a": a}, {"a": a, "bare": bare})
    )
    for name in NAMES:
        assert both[name]["treated"] == alone[name]["treated"]
        assert both[name]["unknown"] == alone[name]["unknown"] + 9
        assert not both[name]["as_groups"]


def test_all_attributes_together_are_groups_if_these_are_few() -> None:
    """Six groups are shown, also in a report, and small ones of them are not; of fourteen nothing is recorded."""
    x, y, s = evaluated(130, 1)
    fed = federation(data=people(), tests={"a": (x, y, s)}, attributes=NAMES)
    run = fed.fit(1, progress=False)
    together = run.people(1)["sex and age"]
    treated: Any = together["treated"]
    assert together["unknown"] == int((s < 0).any(1).sum())
    sizes = []
    for name, codes_ in ((f"{a}, {b}", (i, j)) for i, a in enumerate("fm") for j, b in enumerate(NAMES["age"])):
        those = (s == torch.tensor(codes_)).all(1)
        sizes.append(n := int(those.sum()))
        expected = 100 * float((fed.predict(x[those]) == y[those]).double().mean()) if n >= 10 else None
        assert treated["groups"][name]["accuracy"] == (None if expected is None else pytest.approx(expected))
    assert min(sizes) < 10 <= max(sizes)
    compared = Comparison.of([run])
    assert "Fairness by sex and age" in html.render(compared)
    shown = io.StringIO()
    Terminal(file=shown, width=200).print(report.rich_table(compared.document, 200, details=False))
    assert "by age" not in shown.getvalue()  # but with details
    Terminal(file=shown, width=200).print(report.rich_table(compared.document, 200))
    assert "Fairness by sex and age" in shown.getvalue()
    many = {**NAMES, "age": list("abcdefg")}
    assert [*federation(data=people(), tests={"a": (x, y, s)}, attributes=many).fit(1, progress=False).people(1)] == [
        *NAMES
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_people_of_clients_that_train_alone_are_the_mean_over_their_models(shared: bool) -> None:
    """Each is tested on the test set of its group, or on all; a person counts once, however many models there are."""
    tests = {"a": evaluated(40, 1), "b": evaluated(25, 2)}
    groups = ["a", "b", "a", "a"][: len(UNEQUAL)] + ["b"] * (len(UNEQUAL) - 4)
    kind: dict[str, Any] = {} if shared else {"groups": groups}
    fed = federation("standalone", data=people(), tests=tests, attributes=NAMES, least_group=1, **kind)
    fed.fit(1, progress=False)
    found = fed.history.people()
    s = torch.cat([s for _, _, s in tests.values()])
    for k, (name, values) in enumerate(NAMES.items()):
        assert found[name]["unknown"] == int((s[:, k] < 0).sum())
        for code, value in enumerate(values):
            rates = found[name]["treated"]["groups"][value]
            assert rates["n"] == int((s[:, k] == code).sum())
            right = 0.0
            for group, (x, y, codes_) in tests.items():
                models = [m for m in range(len(UNEQUAL)) if shared or groups[m] == group]
                hits = [(fed.predict(x, client=m) == y)[codes_[:, k] == code].sum() for m in models]
                right += float(np.mean(hits))
            assert rates["accuracy"] == pytest.approx(100 * right / rates["n"])


def test_a_run_that_is_resumed_has_the_same(tmp_path: Path) -> None:
    whole, stopped = (federation(data=people(), tests={"a": evaluated(20, 1)}, attributes=NAMES) for _ in range(2))
    whole.fit(4, directory=tmp_path / "whole", progress=False)
    stopped.fit(4, directory=tmp_path / "parts", progress=False, on_round=lambda record: record["round"] == 1)
    again = federation(data=people(), tests={"a": evaluated(20, 1)}, attributes=NAMES)
    again.fit(again.resume(tmp_path / "parts"), directory=tmp_path / "parts", progress=False)
    each = [parse((tmp_path / name / "metrics.jsonl").read_text())[0] for name in ("whole", "parts")]
    assert each[0][-1]["by"] == each[1][-1]["by"] == whole.records[-1]["by"]
    assert eq.History.from_run(tmp_path / "parts").meta["attributes"] == NAMES


def test_sites_are_as_the_simulation_where_the_server_has_the_test_sets() -> None:
    """And no site tells a sum by attribute: of test sets that sites have, there is none."""
    tests = {"a": evaluated(20, 1)}
    options: dict[str, Any] = {"tests": tests, "seed": 3, "batch_size": 8, "attributes": NAMES}
    here = eq.Federation(network(), people(), "fedavg", SOLVER, **options)
    away = in_process(network(), people(), "fedavg", SOLVER, **options)
    assert last(here)["by"] == last(away)["by"]
    assert here.history.meta["attributes"] == away.history.meta["attributes"] == NAMES


def test_a_pack_of_a_version_without_them_gives_the_same_numbers(tmp_path: Path) -> None:
    fed = federation(data=people(), tests={"a": evaluated(20, 1)})
    fed.fit(2, directory=tmp_path / "now" / "run", progress=False)
    shutil.copytree(tmp_path / "now", tmp_path / "then", ignore=shutil.ignore_patterns("checkpoint"))
    run = {"path": "run", "state": None}
    alone: Any = json.loads(json.dumps(fed.records))
    for record in alone:
        record.get("by", {"groups": {"a": [0]}})["groups"]["a"].pop()  # nothing by both attributes together
    write_records(History(alone, fed.history.meta), tmp_path / "then" / "run" / "metrics.jsonl")
    assert pack._compared(run, tmp_path / "then", tmp_path / "now").same
    without_by = tuple(without(record, ("by",)) for record in fed.records)
    write_records(History(without_by, fed.history.meta), tmp_path / "then" / "run" / "metrics.jsonl")
    assert pack._compared(run, tmp_path / "then", tmp_path / "now").same
    assert not pack._compared(run, tmp_path / "now", tmp_path / "then").same


# names
def test_names_of_attributes_are_kept_once() -> None:
    fed = federation(data=people(), tests={"a": evaluated(20, 1)}, attributes=NAMES)
    assert fed.history.meta["attributes"] == NAMES
    assert "young" not in json.dumps(last(fed))
    assert federation(data=people()).history.meta["attributes"] == {"s[0]": [], "s[1]": []}
    one = [(x, y, s[:, 0]) for x, y, s in people()]
    assert federation(data=one).history.meta["attributes"] == {"s": []}


@in_one(
    ("given", "said"),
    [
        ({"sex": ["f", "m"]}, "the samples have 2, found sex"),
        ([["f", "m"], ["a", "b", "c"]], "the samples have 2, found none"),
        ({"sex": ["f"], "age": ["a", "b", "c"]}, r"attributes\['sex'\] must hold a different name for each code from 0 to 1; found f"),
        ({"sex": ["f", "m"], "age": ["a", "b", "a"]}, r"attributes\['age'\] must hold a different name for each code from 0 to 2; found a, b, a"),
        ({"sex": "fm", "age": ["a", "b", "c"]}, r"attributes\['sex'\] must be a list with a name for each of the values; found 'fm'"),
    ],
)  # fmt: skip
def test_names_that_cannot_be(given: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        federation(data=people(), attributes=given)


def test_names_where_there_are_no_attributes() -> None:
    with pytest.raises(ValueError, match="the samples have 0, found sex"):
        federation(data=clients(), attributes={"sex": ["f", "m"]})


# numbers derived from records
def history(
    rounds: list[dict[str, tuple[Any, Any, Any]]], clients: Any = None, *, task: str = "", **meta: Any
) -> History:
    """A run in which the global model predicted y of the people with s in every test set, in every round: (predicted, y, s)."""
    records: list[Any] = []
    for t, sets in enumerate(rounds):
        record: dict[str, Any] = {"round": t, "groups": {}, "by": {"groups": {}}}
        for name, (p, y, s) in sets.items():
            p, y, s = (torch.as_tensor(np.asarray(part)) for part in (p, y, s))
            of, outputs = given_outputs(p, task)
            record["groups"][name] = of.tally(outputs, y.double() if task else y).score()
            record["by"]["groups"][name] = sums_of(p, y, s, task)
        if clients is not None:
            record["clients"] = {
                ("rmse" if task else "accuracy"): [0.5] * len(clients),
                "n": [len(of[1]) for of in clients],
            }
            record["by"]["clients"] = [sums_of(*(torch.as_tensor(part) for part in of), task) for of in clients]
        records.append(record)
    given = {"task": task} if task else {"classes": ["no", "yes"]}
    return History(
        tuple(records), {"method": "m", "attributes": {"sex": ["f", "m"]}, "least_group": 1, **given, **meta}
    )  # type: ignore[typeddict-item]


def given_outputs(p: Tensor, task: str) -> tuple[Any, Tensor]:
    """A task, and outputs of a network that predicts p."""
    return (Regression(), p.double()[:, None]) if task else (CLASSIFICATION, torch.nn.functional.one_hot(p, 2).double())


def sums_of(p: Tensor, y: Tensor, s: Tensor, task: str) -> list[Any]:
    of, outputs = given_outputs(p, task)
    predicted, width = of.predictions(outputs), outputs.shape[-1]
    return of.people(predicted, y.double() if task else y, s[:, None], width)  # type: ignore[no-any-return]


PERSON = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(-1, 1))


@settings(max_examples=20, deadline=None)
@given(st.lists(PERSON, min_size=2, max_size=60), st.integers(1, 3))
def test_rates_are_those_of_fairlearn(drawn: list[tuple[int, int, int]], parts: int) -> None:
    """Whatever the division into test sets; where a rate is defined for both."""
    fairlearn = pytest.importorskip("fairlearn.metrics")
    rows = np.array(drawn)
    sets = {str(k): tuple(rows[k::parts].T) for k in range(parts) if len(rows[k::parts])}
    known = rows[rows[:, 2] >= 0]
    people = history([sets, sets]).people(2)["sex"]  # type: ignore[list-item]
    assert people["unknown"] == len(rows) - len(known)
    treated: Any = people["treated"]
    if len({*known[:, 2]}) < 2:
        assert treated is None
        return
    p, y, s = known.T
    assert treated["demographic_parity"] == pytest.approx(
        100 * fairlearn.demographic_parity_difference(y, p, sensitive_features=s)
    )
    for value, name in enumerate("fm"):
        those, of = known[s == value], treated["groups"][name]
        assert of["n"] == len(those)
        assert of["accuracy"] == pytest.approx(100 * (those[:, 0] == those[:, 1]).mean())
        assert of["selection_rate"] == [pytest.approx(100 * those[:, 0].mean())]
        positive = those[those[:, 1] == 1]
        assert of["tpr"] == [pytest.approx(100 * positive[:, 0].mean()) if len(positive) else None]
    if all((y[s == value] == 1).any() for value in (0, 1)):
        expected = fairlearn.equal_opportunity_difference(y, p, sensitive_features=s)
        assert treated["equal_opportunity"] == pytest.approx(100 * expected)


def test_errors_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    rounds = [
        {name: (rng.normal(size=n), rng.normal(size=n), rng.integers(-1, 2, n)) for name, n in (("a", 40), ("b", 23))}
        for _ in range(3)
    ]
    rounds = [{name: (p, rounds[0][name][1], rounds[0][name][2]) for name, (p, _, _) in of.items()} for of in rounds]
    people = history(rounds, task="regression").people(2)["sex"]
    y, s = (np.concatenate([rounds[0][name][k] for name in "ab"]) for k in (1, 2))
    errors = [np.concatenate([of[name][0] for name in "ab"]) - y for of in rounds[-2:]]
    expected = {
        name: {
            "n": int((s == k).sum()),
            "rmse": np.mean([np.sqrt((e[s == k] ** 2).mean()) for e in errors]),
            "mae": np.mean([np.abs(e[s == k]).mean() for e in errors]),
            "error": np.mean([e[s == k].mean() for e in errors]),
            "prediction": np.mean([(e + y)[s == k].mean() for e in errors]),
        }
        for k, name in enumerate("fm")
    }
    treated: Any = people["treated"]
    for name, of in expected.items():
        assert treated["groups"][name] == pytest.approx(of)
    for key in ("rmse", "mae", "error", "prediction"):
        assert treated[f"{key}_gap"] == pytest.approx(abs(expected["f"][key] - expected["m"][key]))
    assert people["unknown"] == int((s < 0).sum())
    assert people["averaged"] == [1, 2]


def test_too_few_people_have_no_number_and_are_in_no_gap() -> None:
    few: Any = {"a": ([0.0] * 12, [1.0] * 12, [0] * 9 + [1] * 3)}
    people = history([few], [few["a"], few["a"]], task="regression", least_group=5, client_tests=True).people()["sex"]
    treated: Any = people["treated"]
    assert treated["groups"]["m"] == dict.fromkeys(("n", "rmse", "mae", "error", "prediction"))
    assert treated["groups"]["f"] == {"n": None, "rmse": 1.0, "mae": 1.0, "error": -1.0, "prediction": 0.0}
    assert [treated[key] for key in ("rmse_gap", "mae_gap", "error_gap", "prediction_gap")] == [None] * 4
    # a client's 12 test samples are shown, so 9 would tell of 3
    assert people["clients"] == [{"f": {"n": None, "main": 1.0}, "m": {"n": None, "main": None}}] * 2


def test_every_client_is_divided_too() -> None:
    """A model that is as good for both sexes together, and for neither within a client."""
    p, y = [1] * 20, [1] * 10 + [0] * 10
    clients: Any = [(p, y, [0] * 10 + [1] * 10), (p, y, [1] * 10 + [0] * 10)]
    both: Any = {"all": (p * 2, y * 2, clients[0][2] + clients[1][2])}
    run = history([both], clients, client_tests=True, client_names=["north", "south"])
    people = run.people()["sex"]
    treated: Any = people["treated"]
    assert treated["accuracy_gap"] == 0
    inside = [{name: of["main"] for name, of in client.items()} for client in people["clients"] if client]
    assert inside == [{"f": 100.0, "m": 0.0}, {"f": 0.0, "m": 100.0}]
    page = html.render([run])
    table = re.sub(r"(\s*<[^>]*>\s*)+", " ", page[page.index("Every client by sex</h3>") :].partition("</table>")[0])
    assert re.findall(r"(?:north|south)(?: [0-9.]+)*", table) == [
        "north 10 10 100.00 0.00 100.00",
        "south 10 10 0.00 100.00 100.00",
    ]


def test_what_is_asked_for_must_be_a_round() -> None:
    with pytest.raises(ValueError, match="last must be a whole number >= 1, the rounds to average; found 0"):
        history([]).people(0)


# what is shown
@pytest.mark.parametrize("task", ["", "regression"])
def test_reports_show_them(task: str) -> None:
    rng = np.random.default_rng(1)

    def sets() -> Any:
        p, y = rng.integers(0, 2, (2, 60)) if not task else rng.normal(5, 1, (2, 60))
        return {"a": (p[:30], y[:30], rng.integers(-1, 2, 30)), "b": (p[30:], y[30:], rng.integers(-1, 2, 30))}

    runs = [history([sets()], task=task, seed=seed, label=label) for label in ("one", "two") for seed in (0, 1)]
    compared = Comparison.of(runs)
    (people,) = compared["people"].values()
    assert not people["as_groups"]
    assert {*people["methods"][0]["groups"]} == {"f", "m"}
    low, high = people["unknown"]
    assert 0 < low <= high
    heading = "Errors by sex" if task else "Rates by sex"
    titles = ["RMSE", "MAE", "mean error"] if task else ["accuracy", "selection"]
    page, text = html.render(compared), report.markdown(compared)
    shown = io.StringIO()
    Terminal(file=shown, width=200).print(report.rich_table(compared, 200))
    for where in (page, text, report.latex(compared), shown.getvalue()):
        for said in (
            heading,
            *titles,
            "Fairness by sex",
            f"Of {high} test samples sex is not known",
            "The worst value of sex is",
        ):
            assert said in " ".join(where.split()), said
    if task:
        assert "%" not in re.sub(r"95[\s\u00a0]%|<style.*?</style>|width: *\d+%", "", text)
    assert json.loads(json.dumps(compared.document))["people"]["sex"]["methods"][1]["method"] == "two"


def test_a_table_that_the_test_sets_show_is_not_shown_twice() -> None:
    of: Any = {"f": ([0, 1] * 6, [0] * 12, [0] * 12), "m": ([0, 1] * 6, [0] * 12, [1] * 12)}
    run = history([of], measures=["accuracy", "rates"])
    assert Comparison.of([run])["people"]["sex"]["as_groups"]
    assert "Rates by sex" in report.markdown(Comparison.of([run]))
    for record in run.records:
        for name in "fm":
            (sums,) = record["by"]["groups"][name]
            record["groups"][name]["rates"] = {key: sums[key][0] for key in ("right", "true", "chosen")}  # type: ignore[literal-required]
    text = report.markdown(Comparison.of([run]))
    assert "Rates by group" in text
    assert "by sex" not in text


def test_runs_without_attributes_say_nothing_of_them() -> None:
    fed = federation(data=clients(), tests={"a": samples(20, 1)})
    fed.fit(1, progress=False)
    assert "people" not in fed.history.summary()
    assert "people" not in Comparison.of([fed.history]).document


@pytest.mark.parametrize("method", ["fedavg", "standalone", "ditto"])
def test_diabetes_from_a_run_to_a_report(method: str) -> None:
    made = scenarios.load("diabetes", 0)
    net = eq.network("mlp", in_shape=(10,), n_classes=1)
    fed = eq.Federation(
        net, made.clients, method, tests=made.tests, client_tests=made.client_tests, task="regression", attributes=made.attributes
    )  # fmt: skip
    fed.fit(2, progress=False)
    people = fed.history.people(1)["sex"]
    assert people["as_groups"] == (method != "standalone")
    assert len([of for of in people["clients"] if of]) == len(made.clients)
    treated: Any = people["treated"]
    assert {*treated["groups"]} == {"1", "2"}
    if method != "standalone":  # each sex has a test set
        for value, name in (("1", "sex-1"), ("2", "sex-2")):
            scores = fed.records[-1]["groups"][name]
            assert treated["groups"][value]["rmse"] == pytest.approx(scores["rmse"])
            assert treated["groups"][value]["mae"] == pytest.approx(scores["mae"])
    assert "Errors by sex" in html.render([fed.history])


# the figure of weights
@pytest.mark.parametrize(("n", "groups", "labels"), [(3, False, 3), (9, False, 0), (4, True, 2)])
def test_weights_without_groups_have_no_mean_of_a_group(n: int, groups: bool, labels: int) -> None:
    """Few clients have a line each, many thin ones of one colour; groups have their mean beside these."""
    shares = [2 * (k + 1) / (n * (n + 1)) for k in range(n)]
    records: Any = [{"round": t, "ids": [*range(n)], "weights": shares} for t in range(3)]
    meta: Any = {"method": "m", "client_names": [f"c{k}" for k in range(n)]}
    meta |= {"client_groups": [f"g{k % 2}" for k in range(n)]} if groups else {}
    run = History(tuple(records), meta)
    figure = figures_of_clients.weights(Comparison.of([run]))
    bold = [line.get_ydata() for line in figure.axes[0].lines if line.get_linewidth() > 1.5]
    assert len(bold) == labels
    if not groups:
        assert sorted(float(line[0]) for line in bold) == pytest.approx([100 * share for share in shares[:labels]])
    caption = html.parts_of_captions(Comparison.of([run]))["grouped"]
    assert ("mean of its group" in caption) == groups


@pytest.mark.parametrize("values", [[0.1, 3.0], [2.0, 9.0], [0.5, 1.5]])
def test_the_interval_of_a_size_of_errors_does_not_go_below_zero(values: list[float]) -> None:
    """As two seeds that differ give it; that of a signed mean error does."""
    seeds = [{"rmse": x, "mae": x, "error": x} for x in values]
    of = {key: _rate(seeds, key) for key in ("rmse", "mae", "error")}
    assert of["rmse"]["low"] == of["mae"]["low"] == 0
    assert of["error"]["low"] is not None
    assert of["error"]["low"] < 0
    assert of["rmse"]["high"] == of["error"]["high"]
