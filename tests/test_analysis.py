"""The loss decomposition, the landscape, and the commands that draw them."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st

from equipoise.analysis import decomposition, filter_normalised, landscape, trace
from equipoise.core.client import visit_client
from equipoise.core.oracle import Oracle
from equipoise.federation.history import History
from equipoise.metrics.decomposition import decompose
from equipoise.report import analysis as draw
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunError, configure
from helpers import UNEQUAL, KeepHead, clients, federation, network, write_records
from run_helpers import equipoise

OPTIONS = {"clients": 4, "train": [8, 8, 8, 8], "test": [10, 10, 10, 10]}


def run_of(directory: Path, method: str = "fedavg", seed: int = 0, **more: Any) -> Path:
    config = configure(
        method,
        "digits",
        seed=seed,
        rounds=3,
        epochs=1,
        network="mlp",
        network_options={"hidden": [8]},
        scenario_options=OPTIONS,
        **more,
    )
    runs.start(config, directory)
    return directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedprox"):
        runs.execute(run_of(base / method, method), progress=False)
    return base


# the decomposition
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_the_terms_sum_to_the_global_loss(m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cross, after, n = rng.uniform(0, 3, (m, m)), rng.uniform(0, 3, m), rng.integers(1, 50, m)
    found = decompose(cross, after, n)
    p = n / n.sum()
    assert found.total == pytest.approx(p @ after, abs=1e-12)
    shift = sum(p[i] * p[j] * (cross[i, j] - cross[i, i]) for i in range(m) for j in range(m))
    assert found.shift == pytest.approx(shift, abs=1e-12)
    assert found.local == pytest.approx(sum(p[i] * cross[i, i] for i in range(m)), abs=1e-12)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected losses \[2, 2\] and \[2\] for 2 sizes; found \[2, 3\] and \[2\]"):
        decompose([[1, 2, 3], [1, 2, 3]], [1, 2], [1, 1])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_trace_measures_the_local_models_of_the_run(engine: str) -> None:
    """Against every client trained by hand from the model of the round, and against a federation that only trains."""
    fed, twin = (federation("fedprox", engine=engine, epochs=1) for _ in range(2))
    rows = trace(fed, 3, every=2)
    assert [row["round"] for row in rows] == [1, 2]
    twin.fit(3, progress=False)
    assert torch.equal(fed.progress.vector, twin.progress.vector)

    by_hand = federation("fedprox", epochs=1)
    by_hand.fit(2, progress=False)
    start, trial = by_hand.progress.vector, by_hand.trial
    by_hand.fit(1, progress=False)
    ids = by_hand.records[-1]["ids"]

    def oracle(m: int) -> Oracle:
        from equipoise.core.draws import schedule

        drawn = schedule(
            trial.settings.seed, 2, [m], [trial.data[m].size], 1, trial.settings.batch_size, drop_single=False
        ).of(0)
        return Oracle(trial.bound, trial.data[m], trial.solver, drawn, trial.model.n_params)

    models = [visit_client(trial.method.rules, oracle(m), 2, 3, start, [{}], [{}])[0] for m in ids]
    cross = [[float(oracle(j).loss(w)) for j in ids] for w in models]
    after = [float(oracle(j).loss(by_hand.progress.vector)) for j in ids]
    found = decompose(cross, after, [UNEQUAL[m] for m in ids])
    assert rows[-1] == pytest.approx(
        {"method": "fedprox", "round": 2, **found._asdict(), "total": found.total}, abs=1e-9
    )


def test_other_methods_start_from_the_same_model() -> None:
    """One round of another method, tried beside FedAvg, is what that method does in its first round from there."""
    fed = federation("fedavg", participation=1.0)
    rows = {(row["method"], row["round"]): row for row in trace(fed, 2, others=["fedavg:uniform", "fedprox(mu=5)"])}
    assert len(rows) == 6
    plain, uniform, prox = (rows[name, 1] for name in ("fedavg", "fedavg:uniform", "fedprox(mu=5)"))
    assert uniform["shift"] == plain["shift"]  # the server alone differs
    assert uniform["aggregation"] != plain["aggregation"]
    assert prox["shift"] < plain["shift"]
    alone = federation("fedavg", participation=1.0)
    alone.fit(2, progress=False)
    assert torch.equal(alone.progress.vector, fed.progress.vector)


def test_equal_clients_have_no_shift_and_one_client_no_aggregation_loss() -> None:
    (data,) = clients((20,))
    same = federation("fedavg", data=[data, data, data], batch_size=64, participation=1.0)
    assert trace(same, 1)[0]["shift"] == pytest.approx(0, abs=1e-12)
    alone = federation("fedavg", data=[data], participation=1.0)
    row = trace(alone, 1)[0]
    assert (row["shift"], row["aggregation"]) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize(
    ("method", "kind"), [("fedbn", "batchnorm"), ("afl(averaged=true)", "mlp"), (KeepHead(), "mlp")]
)
def test_the_total_is_the_loss_of_the_model_given_out(method: Any, kind: str) -> None:
    fed = federation(method, kind=kind, participation=1.0)
    row = trace(fed, 3)[-1]
    found = [fed.evaluate(*data)["loss"] for data in clients()]
    assert row["total"] == pytest.approx(np.average(found, weights=UNEQUAL), abs=1e-9)


def test_other_methods_with_parts_of_their_own_start_from_the_same_model() -> None:
    """FedBN, tried for a round after FedAvg trained, starts from FedAvg's BatchNorm and not from the first one."""
    fed = federation("fedavg", kind="batchnorm", participation=1.0)
    rows = [row for row in trace(fed, 6, others=["fedbn"]) if row["round"] == 5]
    assert rows[0]["local"] == pytest.approx(rows[1]["local"], abs=1e-9)
    with pytest.raises(ValueError, match="this federation has trained for 6"):
        trace(fed, 2)


def test_trace_of_a_client_in_quarantine() -> None:
    data = clients()
    x, y = data[1]
    data[1] = (torch.full_like(x, torch.nan), y)
    rows = trace(federation("fedavg", data=data, participation=1.0), 1)
    assert np.isfinite(rows[0]["total"])


def test_decomposition_of_a_run_is_kept_and_goes_on(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trained / "fedavg"
    heard: list[tuple[int, int]] = []
    first = decomposition(path, 2, on_round=lambda *now: heard.append(now))
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert [row["round"] for row in first] == [1, 2]
    every = decomposition(path, 1)
    assert [row for row in every if row["round"] in (1, 2)] == first
    monkeypatch.setattr(runs, "federation", None)  # nothing is trained again
    assert decomposition(path, 2) == first
    final = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    assert final["round"] == 2


def test_a_run_that_was_only_begun_serves(tmp_path: Path) -> None:
    rows = decomposition(run_of(tmp_path / "begun"), 3, ["fedprox(mu=1)"])
    assert [(row["round"], row["method"]) for row in rows] == [(2, "fedprox(mu=1)"), (2, "fedavg")]


def test_a_repetition_that_differs_is_refused(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run")
    runs.execute(path, progress=False)
    history = History.from_run(path)
    history.records[1]["weights"].reverse()
    history.records[1]["weights"][0] += 0.1
    write_records(history, path / "metrics.jsonl")
    shutil.rmtree(path / "checkpoint")
    with pytest.raises(RunError, match="round 1 gives its clients other weights"):
        decomposition(path)
    assert not (path / "decomposition.json").exists()


def test_a_damaged_file_and_bad_numbers(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run")
    (path / "decomposition.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        decomposition(path)
    with pytest.raises(ValueError, match="rounds must be a whole number >= 1; found 0"):
        trace(federation(), 0)


# the landscape
def test_filters_keep_the_length_of_the_model() -> None:
    theta, raw = torch.randn(20, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    d = filter_normalised(raw, theta, [(3, 2, 2), (4,), (2, 2)])
    for part in (slice(0, 4), slice(4, 8), slice(8, 12), slice(16, 18), slice(18, 20)):
        assert float(d[part].norm()) == pytest.approx(float(theta[part].norm()), rel=1e-9)
    assert not d[12:16].any()
    assert torch.allclose(filter_normalised(5 * raw, theta, [(3, 2, 2), (4,), (2, 2)]), d, atol=1e-9)
    with pytest.raises(ValueError, match="shapes of 16 values"):
        filter_normalised(raw, theta, [(3, 2, 2), (4,)])


def test_landscape_is_the_loss_around_the_model(trained: Path) -> None:
    heard: list[tuple[int, int]] = []
    found = landscape(
        [trained / "fedavg", trained / "fedprox"],
        "fonts",
        points=5,
        grid=3,
        draws=2,
        on_point=lambda *now: heard.append(now),
    )
    assert heard[-1] == (2 * (2 * 5 + 9), 2 * (2 * 5 + 9))
    for path, one in zip(("fedavg", "fedprox"), found, strict=True):
        fed, _ = runs.federation(runs.load(trained / path))
        fed.resume(trained / path)
        here = fed.evaluate()["fonts"]["loss"]
        assert one.line[:, 2].tolist() == pytest.approx([here, here])
        assert one.grid[1, 1] == pytest.approx(here)
        P = fed.model.n_params
        raw = torch.randn(P, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
        step = filter_normalised(raw, fed.progress.vector[:P], fed.model.shapes)
        fed.progress = replace(fed.progress, vector=fed.progress.vector + step)
        assert one.line[0, -1] == pytest.approx(fed.evaluate()["fonts"]["loss"], rel=1e-6)
        assert one.grid[2, 1] == pytest.approx(one.line[0, -1], rel=1e-6)
    frame = found[0].frame()
    assert len(frame) == 2 * 5 + 9
    assert set(frame["kind"]) == {"line", "plane"}


def test_landscape_of_the_worst_group_by_default_and_without_a_plane(trained: Path) -> None:
    (one,) = landscape([trained / "fedavg"], points=3, grid=0, draws=1)
    assert one.group == json.loads((trained / "fedavg" / "summary.json").read_text())["worst_group"]
    assert one.grid.shape == (0, 0)


def test_bad_landscapes(trained: Path, tmp_path: Path) -> None:
    for wrong, message in (
        ({"points": 4}, "must be odd"),
        ({"grid": 2}, "must be odd"),
        ({"draws": 0}, "draws must be a whole number >= 1"),
        ({"span": 0.0}, "span must be > 0"),
        ({"group": "font"}, "Did you mean 'fonts'"),
    ):
        with pytest.raises(ValueError, match=message):
            landscape([trained / "fedavg"], **{"points": 3, "grid": 0, "draws": 1, **wrong})
    with pytest.raises(ValueError, match="holds no trained model yet"):
        landscape([run_of(tmp_path / "begun")])
    other = configure(
        "fedavg", "digits", rounds=1, network="mlp", network_options={"hidden": [9]}, scenario_options=OPTIONS
    )
    runs.start(other, tmp_path / "wider")
    runs.execute(tmp_path / "wider", progress=False)
    with pytest.raises(ValueError, match="has another network than the first run"):
        landscape([trained / "fedavg", tmp_path / "wider"], points=3, grid=0)


# figures and commands
def test_figures_show_what_they_are_given(trained: Path) -> None:
    rows = {"a": [{"round": t, "local": 1 - t / 9, "shift": t / 9, "aggregation": -t / 9} for t in range(4)], "b": []}
    rows["b"] = [{**row, "local": 2 * row["local"]} for row in rows["a"]]
    panels = draw.decomposition(rows).axes
    assert [line.get_ydata().tolist() for line in panels[0].lines] == [[r["local"] for r in rows[k]] for k in "ab"]
    found = landscape([trained / "fedavg", trained / "fedprox"], "fonts", points=3, grid=3, draws=2)
    (axes,) = draw.lines(found).axes
    assert axes.lines[1].get_ydata().tolist() == found[1].line.mean(0).tolist()
    assert len(draw.planes(found).axes) == 3  # two runs and a colour bar


def test_heterogeneity_figure_takes_means_and_sizes() -> None:
    rows = [
        {
            "method": method,
            "alpha": alpha,
            "seed": seed,
            "round": t,
            "shift": s / alpha,
            "aggregation": -a * (seed + 1),
            "total": s,
        }
        for method, s, a in (("fedavg", 1.0, 2.0), ("principal", 1.0, 1.0), ("margin", 0.5, 2.0))
        for alpha in (1.0, 0.1)
        for seed in (0, 1)
        for t in (1, 3)
    ]
    shift, aggregation, _ = draw.heterogeneity(pd.DataFrame(rows)).axes
    assert [line.get_ydata().tolist() for line in shift.lines] == [[1, 10], [0.5, 5]]  # principal trains as fedavg does
    assert [line.get_ydata().tolist() for line in aggregation.lines] == [[3, 3], [1.5, 1.5], [3, 3]]


def test_commands(trained: Path, tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = equipoise("analyse", "decomposition", str(trained / "fedavg"), "--json")
    assert [row["round"] for row in json.loads(done.out)["fedavg"]] == [0, 1, 2]
    done = equipoise(
        "analyse",
        "landscape",
        str(trained / "fedavg"),
        str(trained / "fedprox"),
        "--points=3",
        "--grid=3",
        "--draws=1",
    )
    assert done.status == 0, done.err
    assert {p.name for p in (tmp_path / "landscape").iterdir()} == {
        "landscape.csv",
        *(f"landscape-{d}.{e}" for d in ("1d", "2d") for e in ("png", "pdf")),
    }
    for arguments, message in (
        (["decomposition", "nowhere"], "No run in nowhere"),
        (["landscape", str(trained / "fedavg"), "--group", "font"], "Did you mean 'fonts'"),
        (["decomposition", str(trained / "fedavg"), "--try", "fedheel"], "Did you mean 'fedheal'"),
    ):
        done = equipoise("analyse", *arguments)
        assert done.status == 2
        assert message in done.err.replace("\n", " ")
        assert done.err.count("\n") == 1


def test_the_network_is_not_changed() -> None:
    net = network()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    trace(federation(net=net), 1)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_run_that_needs_contributions_is_taken_apart(tmp_path: Path) -> None:
    """They are found out first, as by the run itself."""
    options = {"clients": 3, "samples": 90, "test": [10, 10, 20, 20]}
    config = configure(
        "fedsac", "digits-pow", scenario_options=options, network="mlp", network_options={"hidden": [8]}, rounds=2
    )
    runs.start(config, tmp_path / "run")
    history = runs.execute(tmp_path / "run", progress=False)
    rows = decomposition(tmp_path / "run")
    assert [row["round"] for row in rows] == [0, 1]
    assert np.isfinite([row["total"] for row in rows]).all()
    assert len(history) == 2
    with pytest.raises(ValueError, match=r"fedsac.* cannot be tried for one round .* needs contribution, neurons"):
        decomposition(tmp_path / "run", 1, ["fedsac(beta=2)"])
