"""Whether a division is the paper's, before anything is concluded; several divisions; what is of which rounds."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from scipy import stats

import fixture_data
from equipoise.federation.history import History
from equipoise.report import reproduction
from equipoise.report.notes import alike, faint
from equipoise.report.reproduction import STATISTICS, Calibrated, ReproducedValue
from equipoise.runs import agreement, reproduce
from equipoise.runs.experiment import read_experiment
from equipoise.scenarios import load
from equipoise.system.errors import InputError
from run_helpers import command

FILE = """
title = "Alone first"
paper = "Mine"
citation = "Nobody 2026"
about = "A small one."
seeds = 3
divisions = 1

[columns]
max = "max"
"best round" = "max_best"

[beside]
"best round" = "max"

[calibration]
rows = ["Standalone", "FedAvg"]
column = "max"

[parts]
scenario = "fedsac-fashion"
network = "mlp(hidden=[4])"
train = {rounds = 2, steps = 1, batch_size = 4}

[[part]]
name = "pow"
title = "POW"
options = {clients = 2, samples = 85}

[[part]]
name = "dir"
title = "DIR"
options = {clients = 2, samples = 85, scene = "dir"}
embedded = {scenario = "digits-dir", options = {clients = 2}}

[[row]]
name = "FedAvg"
method = "fedavg"

[[row]]
name = "Standalone"
method = "standalone"

[[row]]
name = "q-FFL"
method = "qffl"

[[claim]]
text = "q-FFL is better"
source = "here"
column = "max"
row = "q-FFL"
than = "FedAvg"
direction = "higher"
"""
PUBLISHED = "row,part,column,mean,std\nStandalone,pow,max,50,1\nFedAvg,pow,max,60,2\nStandalone,dir,max,40,\nFedAvg,dir,max,60,1\nq-FFL,dir,max,60,1\n"
OTHER = """
title = "Fairness of the same"
paper = "Mine"
citation = "Nobody 2026"
about = "Another one."
seeds = 3
divisions = 1
columns = {fairness = "fairness"}
calibration = {of = "CALIBRATES", rows = ["Standalone"], column = "max"}

[[part]]
name = "dir"
title = "DIR"
scenario = "fedsac-fashion"
network = "mlp(hidden=[4])"
train = {rounds = 2, steps = 1, batch_size = 4}
options = {clients = 2, samples = 85, scene = "dir"}

[[row]]
name = "Fair"
method = "fedavg"
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    fixture_data.fashion(tmp_path / "data", 200, 40)
    (tmp_path / "mine.toml").write_text(FILE)
    (tmp_path / "mine.csv").write_text(PUBLISHED)
    (tmp_path / "other.toml").write_text(OTHER.replace("CALIBRATES", str(tmp_path / "mine.toml")))
    return str(tmp_path / "mine.toml")


def planned(name: str, tmp_path: Path, **more: Any) -> reproduce.ReproductionPlan:
    return reproduce.plan(name, tmp_path / "runs", data=str(tmp_path / "data"), **more)


def history(of: reproduce.PlannedRun, best: float) -> History:
    """A run whose best client ends with an accuracy."""
    record = {"round": 0, "groups": {"test": {"accuracy": best, "n": 40}}, "clients": {"accuracy": [best, best / 2]}}
    meta = {"method": "fedavg", "label": of.row, "seed": of.seed, "contribution": {"standalone_test": [0.5, 0.4]}}
    return History((record,), {**meta, "config": {"scenario_options": of.config.scenario_options}})


def ended(values: dict[tuple[str, str], list[float]]) -> Any:
    """In place of ``histories``: runs with these accuracies, in the order of their draws."""

    def histories(plan: reproduce.ReproductionPlan) -> dict[tuple[str, str], list[History]]:
        by_cell: dict[tuple[str, str], list[History]] = {}
        for (part, row), of in values.items():
            cells = [one for one in plan.runs if (one.part, one.row) == (part, row)]
            if cells:
                by_cell[part, row] = [history(one, a) for one, a in zip(cells, of, strict=False)]
        return by_cell

    return histories


# planning
def test_calibration_is_planned_of_the_same_runs(mine: str, tmp_path: Path) -> None:
    plan = planned(mine, tmp_path)
    assert plan.calibration is not None
    assert {(one.part, one.row) for one in plan.calibration.runs} == {
        (part, row) for part in ("pow", "dir") for row in ("Standalone", "FedAvg")
    }
    assert {one.path for one in plan.calibration.runs} < {one.path for one in plan.runs}
    assert all(one.config.scenario_options["data_seed"] == 0 for one in plan.runs)
    other = planned(str(tmp_path / "other.toml"), tmp_path)
    assert other.calibration is not None
    assert [(one.part, one.row, one.seed) for one in other.calibration.runs] == [
        ("dir", "Standalone", s) for s in range(3)
    ]
    assert {one.path for one in other.calibration.runs} < {one.path for one in plan.calibration.runs}
    assert not planned(mine, tmp_path, rows=["q-FFL"]).asked
    assert reproduce.plan(mine, tmp_path, embedded=True).calibration is None


def test_another_reading_is_calibrated_on_its_own_data(mine: str, tmp_path: Path) -> None:
    """What the other experiment gives are rows and published numbers, and no division."""
    other = tmp_path / "other.toml"
    text = other.read_text().replace('scene = "dir"}', 'scene = "dir", recipe = "mixtures"}')
    other.write_text(text.replace("rounds = 2", "rounds = 3").replace("seeds = 3", "seeds = 4"))
    first = planned(str(other), tmp_path, divisions=2).calibration
    assert first is not None
    assert len(first.runs) == 8
    assert {(one.config.scenario_options["recipe"], one.config.rounds, one.config.method) for one in first.runs} == {
        ("mixtures", 3, "standalone")
    }
    assert first.published["Standalone", "dir", "max"] == (40, None)


def test_every_division_has_all_seeds(mine: str, tmp_path: Path) -> None:
    plan = planned(mine, tmp_path, divisions=3, seeds=2, parts=["pow"], rows=["FedAvg"])
    assert [(one.config.scenario_options["data_seed"], one.seed) for one in plan.runs] == [(d, s) for d in range(3) for s in range(2)]  # fmt: skip
    assert len({one.path for one in plan.runs}) == 6
    assert read_experiment(mine).runs() == 18
    text = FILE.replace("divisions = 1\n", "")
    Path(mine).write_text(text)
    assert all("data_seed" not in one.config.scenario_options for one in planned(mine, tmp_path).runs)


def test_files_are_divided_by_the_seed_of_their_own(mine: str, tmp_path: Path) -> None:
    options: Any = {"data": tmp_path / "data", "clients": 2, "samples": 40, "scene": "dir"}
    fixed = [load("fedsac-fashion", seed, data_seed=1, **options) for seed in (0, 5)]
    as_ever = load("fedsac-fashion", 1, **options)
    assert fixed[0].manifest == fixed[1].manifest == as_ever.manifest
    assert load("fedsac-fashion", 5, **options).manifest["clients"] != as_ever.manifest["clients"]
    with pytest.raises(ValueError, match="data_seed must be a whole number"):
        load("fedsac-fashion", 5, data_seed=[1], **options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"best round" = "max"\n', '"best rounds" = "max"\n', "beside: Unknown column 'best rounds'"),
        ('rows = ["Standalone", "FedAvg"]', 'rows = ["Alone"]', "calibration: Unknown row 'Alone'"),
        ('rows = ["Standalone", "FedAvg"]', "rows = []", "calibration.rows: .*at least 1 item"),
        ('column = "max"\n\n[parts]', 'column = "fairness"\n\n[parts]', "calibration: Unknown column 'fairness'"),
        (
            'method = "standalone"\n',
            'method = "standalone"\nchoose = {lr = [0.1]}\n\n[choice]\nseeds = [100]\n',
            "calibration: Unknown row 'Standalone'",
        ),
        ("divisions = 1", "divisions = 0", "divisions: .*greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_named(mine: str, tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    Path(mine).write_text(FILE.replace(old, new))
    with pytest.raises(InputError, match=message):
        planned(mine, tmp_path)


# the rule
@given(st.lists(st.floats(0, 100), min_size=3, max_size=6), st.floats(0, 100), st.one_of(st.none(), st.floats(0, 5)))
def test_a_row_fits_within_two_deviations_of_both(seen: list[float], paper: float, std: float | None) -> None:
    n = len(seen)
    mean = sum(seen) / n
    s = math.sqrt(sum((v - mean) ** 2 for v in seen) / (n - 1))
    row = Calibrated("p", "Alone", "max", ReproducedValue(tuple(seen), mean, s, math.nan, paper, std))
    limit = 2 * math.sqrt(s**2 + (std or 0) ** 2)
    if abs(abs(mean - paper) - limit) > 1e-9:
        assert row.fits == (abs(mean - paper) <= limit)
    assert ("higher" in str(row)) == (mean >= paper)
    unknown = row._replace(why="it broke")
    assert unknown.fits is None
    assert str(unknown).endswith(": it broke")


def test_every_form_says_whether_a_part_is_calibrated(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {
        ("pow", "Standalone"): [0.49, 0.50, 0.51],
        ("pow", "FedAvg"): [0.61, 0.60, 0.62],
        ("dir", "Standalone"): [0.70, 0.71, 0.72],
        ("dir", "FedAvg"): [0.60, 0.60],
    }
    monkeypatch.setattr(agreement, "histories", ended(runs))
    result = agreement.collect(planned(mine, tmp_path))
    assert [(one.part, one.row, one.fits) for one in result.calibrated] == [
        ("pow", "Standalone", True), ("pow", "FedAvg", True), ("dir", "Standalone", False), ("dir", "FedAvg", None),
    ]  # fmt: skip
    fits, not_ = result.calibration("pow"), result.calibration("dir")
    assert fits == (
        "Calibrated: the division is the paper's within its spread. Standalone max 50.00 ±1.00, the paper's 50.00 ±1.00: "
        "0.00 higher, 2.83 allowed; FedAvg max 61.00 ±1.00, the paper's 60.00 ±2.00: 1.00 higher, 4.47 allowed."
    )
    assert not_ == (
        "Not calibrated: Standalone does not fit; the division, or how clients train alone, is not the paper's, so differences of "
        "other rows to the paper's need not be due to their methods. Standalone max 71.00 ±1.00, the paper's 40.00: 31.00 higher, "
        "2.00 allowed; FedAvg max 60.00 ±0.00, the paper's 60.00 ±1.00: runs that have not ended: 1."
    )
    assert result.fits.startswith(
        "Whether the division is the paper's. POW: calibrated; DIR: not calibrated. A row fits if"
    )
    text, page, source = (
        reproduction.page(result).markdown(),
        reproduction.page(result).html(),
        reproduction.page(result).latex(),
    )
    for said, title in ((fits, "## POW"), (not_, "## DIR"), (result.fits, "Source")):
        start = text.index(title)
        assert start < text.index(f"**{said}**") < text.index("| FedAvg |", start)
        escaped = said.replace("'", "&#39;")
        assert f'<p class="note">{escaped}</p>' in page
    assert page.index("; the division of 1 of 2 parts is not the paper&#39;s.") < page.index("DIR: not calibrated")
    assert page.index("DIR: not calibrated") < page.index("What the paper claims")
    assert "Not calibrated: Standalone does not fit" in source
    told = json.loads(json.dumps(reproduction.as_dict(result), allow_nan=False))
    assert told["calibrated"] == {"pow": fits, "dir": not_}
    assert [one["fits"] for one in told["calibration"]] == [True, True, False, None]


def test_what_was_not_run_or_not_to_its_end_calibrates_nothing(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "histories", ended({("dir", "Standalone"): [0.40, 0.41, 0.42]}))

    def first(plan: reproduce.ReproductionPlan, failed: Any = None) -> str:
        (row, *_) = [one for one in agreement.calibrated(plan, failed or {}) if one.part == "dir"]
        return f"None: {row.why}" if row.fits is None else f"{row.fits} {row}"

    assert first(planned(mine, tmp_path)).startswith("True Standalone max 41.00 ±1.00")
    assert first(planned(mine, tmp_path, rounds=1)) == "None: fewer rounds than the experiment has"
    assert first(planned(mine, tmp_path, seeds=2)) == "None: fewer than three seeds or divisions"
    broke = {("dir", "Standalone"): "seed 2: it broke"}
    assert first(planned(mine, tmp_path), broke) == "None: seed 2: it broke"
    other = planned(str(tmp_path / "other.toml"), tmp_path)
    assert first(other).startswith("True Standalone max 41.00 ±1.00")
    monkeypatch.setattr(agreement, "histories", ended({}))
    assert first(planned(mine, tmp_path, rows=["q-FFL"])) == "None: not among what was asked for"
    assert first(planned(mine, tmp_path)) == "None: runs that have not ended: 3"
    (row, *_) = agreement.calibrated(planned(mine, tmp_path), {})
    assert "Not known: whether the division is the paper's cannot be told" in reproduction.calibration([row])


# rewards that do not differ
@given(
    st.lists(st.integers(0, 200), min_size=2, max_size=6), st.integers(200, 10_000), st.booleans(),
)  # fmt: skip
def test_rewards_closer_than_their_noise_are_marked(right: list[int], n: int, own: bool) -> None:
    """By the rule as it reads: two standard errors of a difference of two accuracies, each on n samples of its own."""
    rewards = [k / n for k in right]
    record = {"round": 0, "groups": {"test": {"accuracy": 0.5, "n": n}}, "clients": {"accuracy": rewards}}
    if own:
        record["clients"] |= {"n": [n] * len(right)}
    alone = [0.1 * k for k in range(len(right))]
    run = History((record,), {"method": "cgsv", "client_tests": own, "contribution": {"standalone_test": alone}})
    known = run.summary()["collaboration"]
    p = sum(rewards) / len(rewards)
    limit = 2 * math.sqrt(p * (1 - p) / n + p * (1 - p) / n)
    assert known["tested"] == n
    assert known["noise"] == pytest.approx(100 * limit)
    assert known["range"] == pytest.approx(100 * (max(rewards) - min(rewards)))
    c = sum(alone) / len(alone)
    assert known["alone"]["range"] == pytest.approx(100 * (max(alone) - min(alone)))
    assert known["alone"]["noise"] == pytest.approx(100 * math.sqrt(c * (1 - c) / n))
    said, same = faint({"CGSV": [known]}), alike({"CGSV": [known]})
    gap = max(rewards) - min(rewards)
    if abs(gap - limit) > 1e-9:
        assert bool(said) == (0 < gap < limit)
    assert bool(same) == (len(set(rewards)) == 1)
    if said:
        assert f"({max(right) - min(right)} of {n:,} test samples)" in said


def test_a_correlation_over_one_image_is_marked(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def histories(plan: reproduce.ReproductionPlan) -> dict[tuple[str, str], list[History]]:
        runs = {}
        for row, best in (("Fair", 0.8), ("Close", 0.7001), ("Same", 0.7)):
            accuracies = [0.7, 0.7, best]
            record = {
                "round": 0,
                "groups": {"test": {"accuracy": 0.7, "n": 10_000}},
                "clients": {"accuracy": accuracies},
            }
            meta = {"method": "cgsv", "label": row, "contribution": {"standalone_test": [0.4, 0.5, 0.6]}}
            runs["dir", row] = [History((record,), {**meta, "seed": one.seed}) for one in plan.runs if one.row == row]
        return runs

    monkeypatch.setattr(agreement, "histories", histories)
    other = tmp_path / "other.toml"
    more = '\n[[row]]\nname = "Close"\n[[row]]\nname = "Same"\n'
    other.write_text(OTHER.replace("calibration = ", "# ").replace("divisions = 1", "") + more)
    result = agreement.collect(planned(str(other), tmp_path))
    (part,) = result.parts
    assert [part.entries[row, "fairness"].mark for row in part.rows] == ["", "≈", ""]
    assert "| Close | 86.60≈ ±0.00" in reproduction.page(result).markdown()
    assert "86.60≈ ±0.00" in reproduction.page(result).html()
    assert r"86.60$\approx$ $\pm$0.00" in reproduction.page(result).latex()
    assert [cell["noise"] for cell in reproduction.as_dict(result)["cells"]] == [False, True, False]
    said = " ".join(reproduction.sentences(result, part))
    assert "≈ Rewards differ by less than two standard errors of a difference between accuracies, so their fairness may be noise: " \
           "Close 0.01 of 1.30 points (1 of 10,000 test samples)." in said  # fmt: skip
    assert "Fairness of Same is not defined: all clients have the same accuracy" in said
    assert (
        "What a client reaches alone is the accuracy after the last round of training alone; its standard error over test samples is 0.50 points, and clients span 20.00."
        in said
    )


# divisions
@given(st.integers(2, 4).flatmap(lambda d: st.integers(1, 4).flatmap(lambda s: st.lists(
    st.lists(st.floats(0, 100), min_size=s, max_size=s), min_size=d, max_size=d))))  # fmt: skip
def test_both_spreads_equal_naive_loops(table: list[list[float]]) -> None:
    units, within = agreement._units((d, v) for d, of in enumerate(table) for v in of)
    means = [sum(of) / len(of) for of in table]
    assert units == pytest.approx(means)
    if len(table[0]) > 1:
        of_each = [sum((v - m) ** 2 for v in of) / (len(of) - 1) for of, m in zip(table, means, strict=True)]
        assert within == pytest.approx(math.sqrt(sum(of_each) / len(of_each)), abs=1e-9)
    else:
        assert math.isnan(within)
    alone, nothing = agreement._units((None, v) for of in table for v in of)
    assert alone == [v for of in table for v in of]
    assert math.isnan(nothing)


def test_an_interval_over_divisions_is_of_their_means(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.array([[0.50, 0.52], [0.60, 0.62], [0.55, 0.59]])
    higher = table + np.array([[0.1, 0.3], [0.0, 0.2], [0.1, 0.1]])
    runs = {("pow", "FedAvg"): table.ravel().tolist(), ("pow", "q-FFL"): higher.ravel().tolist(), ("pow", "Standalone"): [0.5] * 6}  # fmt: skip
    monkeypatch.setattr(agreement, "histories", ended(runs))
    result = agreement.collect(planned(mine, tmp_path, divisions=3, seeds=2, parts=["pow"]))
    (part,) = result.parts
    entry = part.entries["FedAvg", "max"]
    means = 100 * table.mean(axis=1)
    assert entry.mean == pytest.approx(means.mean())
    assert entry.std == pytest.approx(means.std(ddof=1))
    assert entry.ci95 == pytest.approx(stats.t.ppf(0.975, 2) * means.std(ddof=1) / math.sqrt(3))
    assert entry.within == pytest.approx(100 * math.sqrt(table.var(axis=1, ddof=1).mean()))
    assert (entry.divisions, len(entry.values)) == (3, 6)
    assert reproduction.ours(entry) == f"56.33 ±{entry.ci95:.2f} ({entry.within:.2f}, {entry.std:.2f})"
    assert "over 3 divisions of the data" in reproduction.sentences(result, part)[0]
    claim = next(claim for claim in result.claims if claim.part == "pow")
    assert (claim.judgement.n, claim.planned) == (3, 3)
    assert claim.judgement.mean == pytest.approx(100 * (0.2 + 0.1 + 0.1) / 3)
    assert not part.doubts
    monkeypatch.setattr(agreement, "histories", ended({key: of[:3] for key, of in runs.items()}))
    (part,) = agreement.collect(planned(mine, tmp_path, parts=["pow"])).parts
    assert any("All seeds share one division of the data" in said for said in part.doubts)
    assert math.isnan(part.entries["FedAvg", "max"].within)
    assert part.entries["FedAvg", "best round"].paper == 60  # beside it, too


# rounds
accuracies = st.floats(0, 1)


@given(
    st.lists(st.lists(accuracies, min_size=3, max_size=3), min_size=1, max_size=30),
    st.lists(accuracies, min_size=3, max_size=3),
)
@example([[0.0, 0.0, 1.0]], [0.0, 0.0, 5e-283])
def test_statistics_over_rounds_equal_naive_loops(rounds: list[list[float]], alone: list[float]) -> None:
    records = [{"round": t, "groups": {"test": {"accuracy": 0.5}}, "clients": {"accuracy": a}} for t, a in enumerate(rounds)]  # fmt: skip
    run = History(tuple(records), {"method": "cgsv", "contribution": {"standalone_test": alone}})

    def of(name: str) -> float | None:
        return STATISTICS[name].compute(run, 5, "accuracy")

    best = [100 * max(a) for a in rounds]
    last = best[-20:]
    assert of("max_best") == pytest.approx(max(best))
    assert of("max_last20") == pytest.approx(sum(last) / len(last))
    fair = [STATISTICS["fairness"].compute(History((r,), run.meta), 5, "accuracy") for r in records]
    defined = [f for f in fair if f is not None]
    assert of("fairness_best") == (pytest.approx(max(defined)) if defined else None)
    known = [f for f in fair[-20:] if f is not None]
    assert of("fairness_last20") == (pytest.approx(sum(known) / len(known)) if len(known) == len(fair[-20:]) else None)
    without = History(tuple(records), {"method": "cgsv"})
    assert STATISTICS["fairness_best"].compute(without, 5, "accuracy") is None


@pytest.mark.slow
def test_the_command_calibrates_first(mine: str, tmp_path: Path) -> None:
    asked = command("reproduce", mine, "--data", tmp_path / "data", "--part", "dir", "--runs", tmp_path / "runs")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("DIR: ") < done.stdout.index("Alone first")
    page = (tmp_path / "runs" / "reproduce" / "mine" / "index.html").read_text()
    assert "All seeds share one division of the data" in page
