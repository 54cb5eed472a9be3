"""Every sentence, table and mark of a report is true for its runs."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.federation.history import History
from equipoise.metrics import class_counts
from equipoise.report import markdown, render, rich_table
from equipoise.report.comparisons import Comparison
from equipoise.report.formatting import UNDEFINED
from equipoise.report.layout import every_client, over_clients, sheets
from equipoise.report.provenance import conditions, headers
from equipoise.report.rendering import save_latex
from equipoise.report.sentences import limits
from equipoise.runs.configuration import configure
from helpers import others_slow
from run_helpers import cache, equipoise, executed

Call = Callable[..., Any]


def run(
    method: str, seed: int = 0, rounds: int = 3, groups: Sequence[str] = ("a", "b"), *, rates: bool = False, **meta: Any
) -> History:
    """A run whose accuracies follow from method and seed."""
    rng = np.random.default_rng([seed, *method.encode()])
    records = []
    for t in range(rounds):
        scores: dict[str, Any] = {}
        for group in groups:
            y = rng.integers(0, 2, 60)
            predicted = np.where(rng.random(60) < 0.8, y, 1 - y)
            scores[group] = {"accuracy": float((predicted == y).mean()), "loss": 0.5, "n": 60}
            if rates:
                scores[group]["rates"] = class_counts(y, predicted, 2)
        records.append({"round": t, "seconds": 0.1, "groups": scores})
    return History(records, {"method": method, "seed": seed, "scenario": "own", "rounds": rounds, **meta})


# --- a table shows what there is
def everything(histories: Sequence[History], tmp_path: Path) -> str:
    """Every form in which runs are shown."""
    found = Comparison.of(histories)
    save_latex(found, tmp_path)
    return markdown(found) + str(found) + render(found)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rates": {"rates": True},
    "other groups": {"groups": ("b", "c", "d")},
    "one group": {"groups": ("c",)},
    "lower bound": {"bound": "lower"},
    "upper bound": {"bound": "upper", "rates": True},
}


@pytest.mark.parametrize("seeds", others_slow([1, 2], fast=(1,)))
@pytest.mark.parametrize(
    "kinds",
    others_slow([[*pair] for pair in itertools.permutations(KINDS, 2)], fast=range(0, 30, 3)),
    ids=" then ".join,
)
def test_runs_with_different_measures_stand_in_one_table(kinds: list[str], seeds: int) -> None:
    histories = [run(kind.replace(" ", "-"), seed, **KINDS[kind]) for kind in kinds for seed in range(seeds)]
    found = Comparison.of(histories)
    json.dumps(found.document, allow_nan=False)
    assert str(found)
    for sheet in sheets(found):
        assert all(len(cells) == len(sheet.grid.titles) for _, cells in sheet.grid.rows)


@pytest.mark.drawn
def test_own_measures_that_some_runs_lack(tmp_path: Path) -> None:
    def with_measure(method: str, name: str, better: str) -> History:
        plain = run(method)
        of = {"value": None, "better": better, "groups": {"a": 0.3, "b": 0.4}, "undefined": {}}
        return History([{**r, "measures": {name: of}} for r in plain.records], plain.meta)

    text = everything([run("none"), with_measure("cost", "cost", "lower"), with_measure("size", "size", "")], tmp_path)
    assert "Measure cost" in text
    assert "Measure size" in text


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A table of people of two groups at three sites."""
    rng = np.random.default_rng(0)
    with (tmp_path / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "height", "label", "client", "group"])
        for k in range(120):
            age, height = rng.normal(size=2)
            writer.writerow([age, height, "yes" if age > 0 else "no", f"site-{k % 3}", "fm"[k % 2]])
    return tmp_path / "people.csv"


def test_bounds_beside_groups_of_people(tmp_path: Path, people: Path, equipoise: Call) -> None:
    """`compare --bounds` on a table with clients and groups: clients that train alone have no rates."""
    for method in ("fedavg", "standalone", "centralised"):
        told = {"scenario": "own", "data": str(people), "rounds": 2, "batch_size": 32}
        executed(tmp_path / "runs" / method, configure(method, **told))
    ended = equipoise("report", *(tmp_path / "runs").iterdir(), "--output", tmp_path / "report.html")
    assert (ended.status, ended.err) == (0, "")
    text = (tmp_path / "report.html").read_text()
    assert "Group fairness" in text
    assert "recorded no rates" in text


def test_training_is_not_lost_with_a_report(
    tmp_path: Path, people: Path, equipoise: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise KeyError("accuracy_gap")

    monkeypatch.setattr("equipoise.report.html.write", fails)
    ended = equipoise(
        "run", "--method", "fedavg", "--data", people, "--rounds", 1, "--runs", tmp_path, "--name", "kept"
    )
    assert ended.status == 1
    (command,) = re.findall(r"`(equipoise report [^`]+)`", ended.err)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    again = equipoise(*shlex.split(command)[1:])
    assert (again.status, again.err) == (0, "")


# --- real sites
def deployed(home: Path, gone: range) -> History:
    """A run at three sites in one process, of which the last is away while the model of these rounds is trained and tested."""
    flwr = pytest.importorskip("flwr.app")
    import equipoise as eq
    from equipoise.flower import InProcessGrid, Task, make_client_app, make_server_app

    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 60, 4)).astype("float32")
    y = (x[:, :, 0] > 0).astype(int)

    def task(node: Any, _: Any) -> Task:
        net = eq.network("mlp", (4,), 2, seed=0, hidden=(4,))
        if "site" not in node:
            return Task(net)
        k = int(node["data-number"])
        return Task(net, train=(x[k, :30], y[k, :30]), test={node["site"]: (x[k, 30:], y[k, 30:])})

    class Away(InProcessGrid):
        rounds = 0

        def get_node_ids(self) -> list[int]:
            return [node for node in super().get_node_ids() if node != 3 or self.rounds not in gone]

        def push_messages(self, messages: Any) -> list[str]:
            sent = list(messages)
            if any("train" in message.metadata.message_type and message.metadata.dst_node_id == 1 for message in sent):
                self.rounds += 1
            return super().push_messages(sent)

    nodes = [{"site": f"hospital-{k}", "data-number": k, "state-dir": str(home / "states")} for k in range(3)]
    told = {"method": "fedavg", "rounds": 4, "lr": 0.2, "min-sites": 3, "run-dir": str(home / "run"), "poll": 0.01}
    grid = Away(make_client_app(task), nodes, told)
    make_server_app(task)(grid, flwr.Context(1, 0, {}, flwr.RecordDict(), told))
    return History.from_run(home / "run")


def test_a_page_of_real_sites_says_what_is_true_of_them(tmp_path: Path) -> None:
    history = deployed(tmp_path, range(2, 9))
    page = (tmp_path / "run" / "report.html").read_text()
    for false in (
        "small sets that come with",
        "equipoise run ",
        "answers failed the check",
        "No method was evaluated",
        "its own group",
    ):
        assert false not in page
    tested = [r["round"] for r in history.records if "hospital-2" in r["groups"]]
    assert 0 < len(tested) < len(history)
    last = 100 * history.records[tested[-1]]["groups"]["hospital-2"]["accuracy"]
    assert f"(last in round {tested[-1]}, at {last:.2f}\u00a0%)" in page
    assert f'<td class="">({last:.2f})' in page.replace("end", "")
    assert "is not connected" in page
    assert "no answer came, or it did not pass the check" in page
    assert "on the test samples of its own site" in page
    assert "equipoise flower run . federation -c" in page
    assert (
        f"fedavg reaches {100 * np.mean([r['groups']['hospital-0']['accuracy'] for r in history.records]):.2f}" in page
    )


def test_a_site_that_is_back_has_numbers(tmp_path: Path) -> None:
    history = deployed(tmp_path, range(1, 2))
    assert any("hospital-2" not in r["groups"] for r in history.records)
    found = Comparison.of([history], last=1)
    assert "on average over 3 groups" in found.verdict
    assert "not tested" not in " ".join([found.verdict, *sheets(found)[0].sentences])


def test_a_site_that_was_never_tested_is_named() -> None:
    records = [
        {"round": t, "groups": {"all": {"accuracy": 0.5, "n": 90}}, "clients": {"accuracy": [0.5, None, 0.6]}}
        for t in range(3)
    ]
    meta = {"method": "fedavg", "client_names": ["a", "b", "c"], "config": {"method": "fedavg", "engine": "flower"}}
    notes = Comparison.of([History(records, meta)])["notes"]
    assert "fedavg, seed 0: b was never tested, so no number here is about it." in notes


def test_a_site_whose_scores_do_not_count_is_named() -> None:
    records = [
        {
            "round": t,
            "groups": {"all": {"accuracy": 0.5, "n": 90}},
            **({"unmeasured": {"b": "sent scores that cannot be used"}} if t else {}),
        }
        for t in range(3)
    ]
    notes = Comparison.of([at_sites(records)])["notes"]
    assert (
        "fedavg, seed 0: in 2 of 3 rounds b was not measured as others were: it sent scores that cannot be used."
        in notes
    )


def at_sites(records: list[dict[str, Any]]) -> History:
    meta = {"method": "fedavg", "client_names": ["a", "b", "c"], "client_tests": True}
    return History(records, {**meta, "config": {"method": "fedavg", "engine": "flower"}})


@pytest.mark.parametrize(
    ("n", "accuracy", "ids", "said"),
    [
        (
            8,
            0.5,
            [0, 1, 2],
            "b has too few test samples to show (n < 10), so no accuracy here is that of such a site alone.",
        ),
        (0, None, [0, 1, 2], "b trained, but sent no score of a test: no accuracy here is that of such a site."),
        (0, None, [0, 2], "b was never tested, so no number here is about it."),
        (80, 0.5, [0, 1, 2], ""),
    ],
)
def test_why_a_site_has_no_accuracy(n: int, accuracy: float | None, ids: list[int], said: str) -> None:
    clients = {"accuracy": [0.5, accuracy, 0.6], "n": [40, n, 50]}
    records = [
        {"round": t, "ids": ids, "groups": {"all": {"accuracy": 0.5, "n": 90}}, "clients": clients} for t in range(3)
    ]
    history = at_sites(records)
    comparison = Comparison.of([history])
    about = [note for note in comparison["notes"] if " b " in note]
    assert about == ([f"fedavg, seed 0: {said}"] if said else [])
    why = "1 with fewer than 10 test samples" if n else "1 without a test in some or all of these rounds"
    texts = [sheet.explanations[0] for sheet in over_clients(Comparison.of([history]))]
    assert all((f"Over 2 of 3 clients: without {why}." in text) == bool(said) for text in texts)
    assert texts
    spread = next(sheet for sheet in sheets(comparison) if sheet.name == "spread")
    assert f"Accuracy over {'2 of 3' if said else '3'} clients" in spread.caption
    page = render([history])
    assert page.count("Over 2 of 3 clients") == (3 if said else 0)
    row = dict(every_client(Comparison.of([history])).grid.rows)["b"]  # type: ignore[union-attr]
    assert row[0].mean == ("80" if n == 80 else "< 10" if n else UNDEFINED)


@pytest.mark.parametrize(("engine", "exports"), [("flower", False), ("sequential", True), ("vmap", True)])
def test_a_model_is_exported_where_it_can_be(engine: str, exports: bool) -> None:
    records = [{"round": t, "groups": {"x": {"accuracy": 0.5 + t / 10, "n": 50}}} for t in range(3)]
    history = History(records, {"method": "fedavg", "config": {"method": "fedavg", "engine": engine}})
    assert ("xported" in render([history])) == exports


@pytest.mark.parametrize(
    ("away", "said"), [([], None), ([1], "In 1 of 3 rounds fewer than all 3 sites"), ([0, 2], "In 2 of 3")]
)
def test_how_a_run_ran_says_who_was_away(away: list[int], said: str | None) -> None:
    history = at_sites([{"round": t, "ids": [0, 1] if t in away else [0, 1, 2]} for t in range(3)])
    history = History(history.records, {**history.meta, "header": ["3 clients, 3 a round"]})
    ((_, lines),) = headers([history])
    assert lines[-1].startswith(said) if said else lines == ["3 clients, 3 a round"]
    assert "also decides the result" in conditions([history])


def test_clients_of_a_small_group_are_counted_as_small() -> None:
    groups = {"x": {"accuracy": 0.5, "n": 50}, "y": {"accuracy": 0.6, "n": 40}, "z": {"accuracy": 1.0, "n": 4}}
    record = {"round": 0, "groups": groups, "clients": {"accuracy": [0.5, 0.6, 1.0]}}
    history = History([record], {"method": "fedavg", "client_groups": ["x", "y", "z"]})
    assert (history.summary()["clients_counted"], history.summary()["small_clients"]) == (2, 1)


def test_a_test_set_that_shrinks_is_said() -> None:
    """Sites may share the name of a test set; where one is away, its samples are missing."""
    records = [{"round": t, "groups": {"all": {"accuracy": 0.5, "n": 90 if t < 4 else 60}}} for t in range(6)]
    notes = Comparison.of([History(records, {"method": "fedavg"})])["notes"]
    assert (
        "fedavg, seed 0: in 2 of 5 shown rounds all was tested on fewer samples (down to 60) than in others (90)."
        in notes
    )
    for least in (88, 92, 98):  # the difference would tell how few the absent site has
        few = [{"round": t, "groups": {"all": {"accuracy": 0.5, "n": 100 if t < 4 else least}}} for t in range(6)]
        notes = Comparison.of([History(few, {"method": "fedavg"})])["notes"]
        numbers = " (down to 88) than in others (100)" if least == 88 else " than in others"
        assert f"fedavg, seed 0: in 2 of 5 shown rounds all was tested on fewer samples{numbers}." in notes
    whole = [History(records[:4], {"method": "fedavg"})]
    assert not any("fewer samples" in note for note in Comparison.of(whole)["notes"])


# --- what a seed changes
def test_clients_from_python_are_the_same_for_every_seed() -> None:
    import torch

    import equipoise as eq

    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 30, 2)).astype("float32")
    data = [(x[k], (x[k, :, 0] > 0).astype(int)) for k in range(3)]
    for net, changed in (
        (torch.nn.Linear(2, 2), "Seeds change the order of samples."),
        (lambda: torch.nn.Linear(2, 2), "Seeds change the first model and the order of samples."),
    ):
        found = eq.compare(net, data, ["fedavg", "afl"], seeds=2, rounds=1, tests={"all": data[0]}, progress=False)
        assert any(text.startswith(changed) for text in limits(found))


@pytest.mark.parametrize(
    ("split", "changed"),
    [(False, "which samples are for testing, the first model"), (True, "the first model and the order")],
)
def test_rows_of_a_table_that_say_where_they_belong_are_not_drawn(tmp_path: Path, split: bool, changed: str) -> None:
    rng = np.random.default_rng(0)
    with (tmp_path / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "height", "label", "client", *["split"] * split])
        for k in range(60):
            age, height = rng.normal(size=2)
            part = ["train", "train", "test"][k // 2 % 3]
            writer.writerow([age, height, "yes" if age > 0 else "no", f"site-{k % 2}", *[part] * split])
    runs = []
    for method in ("fedavg", "afl"):
        for seed in (0, 1):
            told = {"scenario": "own", "data": str(tmp_path / "people.csv"), "rounds": 1, "seed": seed}
            runs.append(executed(tmp_path / f"{method}-{seed}", configure(method, **told)))
    text = " ".join(limits([History.from_run(run) for run in runs]))
    assert f"Seeds change {changed}" in text


# --- one family
def test_one_seed_tells_apart_at_the_level_of_all_differences() -> None:
    """An interval that leaves out zero alone is not enough where several differences are shown."""

    def tested(method: str, right: int) -> History:
        scores = {"all": {"accuracy": right / 400, "loss": 0.5, "n": 400}}
        return History([{"round": 0, "groups": scores}], {"method": method})

    for lead in range(250, 330):
        two = Comparison.of([tested("a", 240), tested("b", lead)])
        four = Comparison.of([tested("a", 240), tested("c", 240), tested("d", 240), tested("b", lead)])
        if two.best == "b" and four.best is None:
            break
    else:
        pytest.fail("no difference is told apart alone and not among five")
    versus = four["leaders"]["avg"]["versus"]["a"]
    assert (versus["low"], versus["high"]) == pytest.approx(
        [four["methods"][3]["versus"]["avg"][end] for end in ("low", "high")]
    )
    assert versus["low"] > 0
    assert not versus["apart"]
    assert "corrected for 5 differences" in four.evidence[-1]
