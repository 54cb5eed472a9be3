"""The spread over many clients: what is recorded, what is shown in place of a table with one group, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import equipoise as eq
from equipoise import report
from equipoise.federation.history import History
from equipoise.metrics import seeds_needed
from equipoise.report import html
from equipoise.report.comparisons import Comparison
from equipoise.report.layout import every_client, sheets
from equipoise.report.sentences import seeds_change, verdict
from helpers import in_one, others_slow


def accuracies(n: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).uniform(0.3, 1, n).round(3).tolist()


def run(clients: list[float | None], label: str = "fedavg", seed: int = 0, n: int = 50, **meta: Any) -> History:
    sizes = [0 if a is None else n for a in clients]
    known = [a for a in clients if a is not None]
    record = {
        "round": 0,
        "groups": {"all": {"accuracy": float(np.mean(known)), "loss": 1.0, "n": sum(sizes)}},
        "clients": {"accuracy": clients, "n": sizes},
    }
    about = {"method": label, "scenario": "toy", "seed": seed, "rounds": 1, "client_tests": True, **meta}
    return History([record], about)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
@settings(max_examples=40)
def test_the_spread_by_hand(values: list[float]) -> None:
    found = run(values).summary()
    k, ordered = max(1, len(values) // 10), sorted(values)
    if not found["clients"]:
        assert len(set(values)) == 1 or len(values) < 2
        return
    expected = {
        "mean": sum(values) / len(values),
        "worst10": sum(ordered[:k]) / k,
        "best10": sum(ordered[-k:]) / k,
        "min": ordered[0],
        "std": (sum((a - sum(values) / len(values)) ** 2 for a in values) / len(values)) ** 0.5,
    }
    for key, value in expected.items():
        assert found["clients"][key] == pytest.approx(100 * value, abs=1e-9)


@pytest.mark.parametrize("n", others_slow([21, 100, 1000], fast=(0, 2)))
def test_many_clients_without_groups(n: int) -> None:
    """No column that measures nothing: neither the worst of one group nor the spread over it."""
    found = Comparison.of([run(accuracies(n), "fedavg"), run(accuracies(n, 1), "qffedavg")])
    measured = {sheet.name: sheet for sheet in sheets(found)}
    assert measured["accuracy"].grid.titles == ("all",)
    assert measured["spread"].grid.titles == ("mean", "STD₀", "worst 10\u00a0%", "best 10\u00a0%", "min")
    row = dict(zip(measured["spread"].grid.titles, measured["spread"].grid.rows[0][1], strict=True))
    worst = np.sort(100 * np.array(accuracies(n)))[: n // 10].mean()
    assert row["worst 10\u00a0%"].mean == f"{worst:.2f}"
    assert float(row["worst 10\u00a0%"].half) > 0
    assert f"Over the worst {n // 10} of {n} clients, the mean accuracy is fedavg {worst:.2f}" in verdict(found)
    for text in (str(found), report.latex(found.document), report.markdown(found.document), html.render(found)):
        assert f"{worst:.2f}" in text
    assert "Over the worst" in html.render(found)
    assert (every_client(found) is None) == (n > 100)


def test_over_seeds_the_differences_are_tested() -> None:
    low = [run(accuracies(40, s), "fedavg", s) for s in range(3)]
    high = [run([min(1, a + 0.1 + s / 100) for a in accuracies(40, s)], "afl", s) for s in range(3)]
    found = Comparison.of([*low, *high])["spread"]
    assert found["methods"][1]["versus"]["worst10"]["p"] < 0.05
    assert found["leaders"]["worst10"]["best"] == "afl"
    assert found["methods"][0]["intervals"] is None


def test_clients_with_few_samples_or_none() -> None:
    """They are in no number, and the table says how many there are."""
    clients: list[float | None] = [*accuracies(30), None]
    history = run(clients, config={"engine": "flower"})
    few = History([{**history.records[0], "clients": {"accuracy": clients, "n": [9, *[50] * 29, 0]}}], history.meta)
    found = Comparison.of([few])
    assert (found["spread"]["clients"], found["spread"]["small"], found["spread"]["untested"]) == (29, 1, 1)
    (sheet,) = (sheet for sheet in sheets(found) if sheet.name == "spread")
    said = " ".join(sheet.explanations)
    assert "1 client is left out for having fewer than 10 test samples: the numbers say nothing" in said
    assert "--least-group 5," in said
    assert "1 client is left out, not tested in all of these rounds." in said
    assert sheet.caption.startswith("Accuracy over 29 of 31 clients")
    assert "Over the worst 2 of the 29 clients that are counted, of 31 clients in all, the mean accuracy" in verdict(
        found
    )
    every = every_client(found)
    assert every is not None
    assert [cell.text for cell in every.grid.rows[0][1]] == ["< 10", "n < 10"]
    assert [cell.mean for cell in every.grid.rows[1][1]] == ["–", f"{100 * (clients[1] or 0):.2f}"]  # else 9 follows
    assert [cell.mean for cell in every.grid.rows[2][1]] == ["50", f"{100 * (clients[2] or 0):.2f}"]
    assert np.isnan(few.clients()["accuracy"].to_numpy()[[0, 30]]).all()
    points = found.figure("spread").axes[0].lines[0].get_ydata()
    assert len(points) == 29
    alone = History(few.records, {**few.meta, "least_group": 1})
    assert alone.summary()["clients_counted"] == 30


def test_one_model_on_one_test_set_says_nothing_of_clients() -> None:
    record = {
        "round": 0,
        "groups": {"all": {"accuracy": 0.8, "loss": 1.0, "n": 100}},
        "clients": {"accuracy": [0.8] * 50},
    }
    found = Comparison.of(
        [History([record], {"method": "fedavg", "client_groups": None, "client_names": [*map(str, range(50))]})]
    )
    assert found["spread"] is None
    assert any(note.startswith("All 50 clients are tested together") for note in found["notes"])
    assert "worst" not in str(found)


def clients(n: int, rows: int = 24) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x = [torch.randn(rows, 3, generator=draw) + 0.3 * (k % 7) for k in range(n)]
    return [(one, (one.sum(1) > 1).long()) for one in x]


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def test_recorded_by_default_from_own_data(tmp_path: Path) -> None:
    rows = ["a,b,label,client"]
    draw = np.random.default_rng(0)
    for k in range(30 * 60):
        a, b = draw.normal(size=2)
        rows.append(f"{a:.3f},{b:.3f},{int(a + b > 0)},site{k % 30}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    data = eq.scenario("own", data=tmp_path / "t.csv")
    assert list(data.tests) == ["all"]
    fed = eq.Federation(
        net_of(2), data.clients, tests=data.tests, client_tests=data.client_tests, names=data.client_names
    )
    history = fed.fit(1, progress=False)
    of = history.records[-1]["clients"]
    assert of["n"] == [12] * 30
    for m in (0, 7, 29):
        assert of["accuracy"][m] == fed.evaluate(*data.client_tests[m])["accuracy"]  # type: ignore[index,misc]
    assert history.summary()["clients_counted"] == 30


def net_of(features: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(features, 2)


@pytest.mark.parametrize("n", [3, 25])
def test_tests_of_clients_are_enough_in_python(n: int) -> None:
    """Up to twenty clients are groups; more are tested together, and apart."""
    data = clients(n)
    fed = eq.Federation(net(), data, client_tests=data)
    history = fed.fit(1, progress=False)
    assert len(history.groups) == (n if n <= 20 else 1)
    known = [float((fed.predict(x) == y).double().mean()) for x, y in data]
    assert history.client_table()[1][-1] == pytest.approx(known)
    assert history.summary()["avg"] == pytest.approx(100 * np.mean(known))
    compared = eq.compare(net(), data, ["fedavg"], 1, rounds=1, client_tests=data, progress=False)
    assert compared["methods"][0]["avg"]["mean"] is not None


def test_without_tests_it_is_said_before_the_first_round(caplog: pytest.LogCaptureFixture) -> None:
    eq.compare(net(), clients(3), ["fedavg", "afl"], 2, rounds=1, progress=False)
    assert [m for m in caplog.messages if "Nothing is tested" in m] == caplog.messages[:1]
    caplog.clear()
    eq.compare(net(), clients(3), ["fedavg"], 1, rounds=1, progress=False, client_tests=clients(3))
    assert not caplog.messages


def test_personal_models_and_bounds_have_it_too() -> None:
    data = clients(22)
    for method in ("ditto-personal", "standalone"):
        history = eq.Federation(net(), data, method, client_tests=data).fit(1, progress=False)
        assert history.records[-1]["clients"]["n"] == [24] * 22
        assert history.summary()["clients"]["worst10"] is not None


def test_early_stopping_looks_at_the_worst_clients_where_there_are_no_groups() -> None:
    from equipoise.records.validation import value

    fed = eq.Federation(net(), clients(30, 100), validation=0.2)
    record = fed.fit(1, progress=False).records[-1]
    of = sorted(record["validation"]["clients"]["accuracy"])
    assert value(record, "worst") == pytest.approx(sum(of[:3]) / 3)
    assert value(record, "worst") < value(record, "accuracy")  # type: ignore[operator]


def cut(label: str, seed: int, small: int, n: int = 40) -> History:
    """A run in which the last clients have few test samples, as many as the seed says."""
    history = run(accuracies(n, seed), label, seed, config={"engine": "flower"})
    sizes = [50] * (n - small) + [3] * small
    return History([{**history.records[0], "clients": {**history.records[0]["clients"], "n": sizes}}], history.meta)


@pytest.mark.parametrize("small", [(18, 14, 16), (0, 5, 0), (30, 30, 29)])
def test_seeds_that_count_different_clients(small: tuple[int, ...]) -> None:
    """The best clients stay in the figure, and numbers of clients are ranges over the seeds."""
    histories = [cut(label, s, k) for label in ("fedavg", "afl") for s, k in enumerate(small)]
    found = Comparison.of(histories)
    axes = found.figure("spread").axes[0]
    ends = [np.sort(run.shown.over_clients(5))[[0, -1]] for run in found.runs["fedavg"].values()]
    x, y = (np.asarray(of, dtype=float) for of in axes.lines[0].get_data())
    assert (x[0], x[-1]) == (0, 100)
    assert y[[0, -1]] == pytest.approx(100 * np.mean(ends, axis=0))
    assert np.all(np.diff(y) >= 0)
    assert "share of the clients" in axes.get_xlabel()
    low, high = 40 - max(small), 40 - min(small)
    (sheet,) = (sheet for sheet in sheets(found) if sheet.name == "spread")
    assert sheet.caption.startswith(f"Accuracy over {low} to {high} of 40 clients")
    assert f"{min(small)} to {max(small)} clients are left out for having fewer than" in " ".join(sheet.explanations)
    assert found["spread"]["ranges"]["clients"] == [low, high]
    page = " ".join(html.render(found).split())
    assert (
        f"Over {low} to {high} of 40 clients: without {min(small)} to {max(small)} with fewer than 10 test samples. "
        "Mean over seeds, rank by rank." in page
    )
    assert f"of the {low} to {high} clients that are counted, of 40 clients in all, the mean accuracy" in verdict(found)


@pytest.mark.parametrize("shift", [0.0, 0.04])
def test_a_method_without_spread_in_its_difference_is_not_missing(shift: float) -> None:
    seeds = range(3)
    moved = [run([a / 2 + shift for a in accuracies(30, s)], "fedprox", s) for s in seeds]
    same = [run([a / 2 for a in accuracies(30, s)], "fedavg", s) for s in seeds]
    other = [run([a / 2 + 0.01 * s for a in accuracies(30, s)], "afl", s) for s in seeds]
    found = Comparison.of([*same, *moved, *other])
    said = "the difference is +4.00 in every seed" if shift else "no difference in any seed"
    for text in (str(found), report.latex(found.document), report.markdown(found.document), html.render(found)):
        assert said in " ".join(text.split())


@in_one(
    ("sizes", "n", "shown"),
    [((12, 9), "< 10 to 12", False), ((9, 3), "< 10", False), ((12, 30), "12 to 30", True), ((30, 30), "30", True)],
)
def test_a_client_with_few_samples_with_some_seed_is_said_to_have_few(
    sizes: tuple[int, int], n: str, shown: bool
) -> None:
    values = accuracies(25)
    histories = []
    for seed, size in enumerate(sizes):
        history = run(values, seed=seed, config={"engine": "flower"})
        clients = {"accuracy": values, "n": [size, *[50] * 24]}
        histories.append(History([{**history.records[0], "clients": clients}], history.meta))
    sheet = every_client(Comparison.of(histories))
    assert sheet is not None
    cells = sheet.grid.rows[0][1]
    assert cells[0].text == n
    assert (cells[1].text == "n < 10") != shown
    assert cells[1].text != "–"


def of_a_function(seed: int, digest: str, rows: str, **config: Any) -> History:
    about = {"scenario": "own", "data": "data.py:clients", **config}
    return run(accuracies(25, seed), seed=seed, config=about, data={"sha256": digest, "rows": rows})


@in_one(
    ("digests", "rows", "config", "changed"),
    [
        (("a", "b"), ("r", "s"), {}, "the data"),
        (("a", "b"), ("r", "r"), {"scenario_options": {"clients": 25}}, "the data"),
        (("a", "a"), ("r", "s"), {"scenario_options": {"clients": 25}}, "the draw of the data"),
        (("a", "a"), ("r", "s"), {}, "which samples are for testing"),
        (("a", "a"), ("r", "r"), {}, ""),
    ],
)
def test_what_seeds_change_of_the_data_of_a_function(
    digests: tuple[str, ...], rows: tuple[str, ...], config: dict[str, Any], changed: str
) -> None:
    histories = [
        of_a_function(k, digest, of, **config) for k, (digest, of) in enumerate(zip(digests, rows, strict=True))
    ]
    assert seeds_change(histories)[0] == (changed or "the first model")
    sheet = every_client(Comparison.of(histories))
    assert sheet is not None
    text = " ".join(sheet.explanations)
    assert ("has other samples with each" in text) == (changed in ("the data", "the draw of the data"))


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.integers(1, 30))
@settings(max_examples=30)
def test_more_differences_need_more_seeds(values: list[float], tests: int) -> None:
    alone, together = seeds_needed(values), seeds_needed(values, level=0.05 / tests)
    assert alone is None or together is None or together >= alone


def test_seeds_that_did_not_do_are_not_said_to_be_enough() -> None:
    draw = np.random.default_rng(3)
    histories = [
        run([min(1, a * 0.8 + d) for a in accuracies(30, s)], f"m{k}", s)
        for k, gain in enumerate([0.0, *[0.02] * 9])
        for s, d in enumerate(gain + draw.normal(0, 0.006, 3))
    ]
    leaders = Comparison.of(histories)["spread"]["leaders"]
    known = [of["seeds_needed"] for leader in leaders.values() for of in leader["versus"].values() if not of["apart"]]
    assert len(known) > 9
    assert all(n is None or n > 3 for n in known)
