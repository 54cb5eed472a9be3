"""Claims of a paper in an experiment file: verdicts over seeds, rows that choose by validation, quick trials."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from equipoise.cli import main as cli
from equipoise.federation.history import History
from equipoise.metrics.statistics import judge
from equipoise.report import reproduction
from equipoise.report.reproduction import Chosen, JudgedClaim, Tried, claims_csv
from equipoise.runs import agreement, directory as runs, reproduce
from equipoise.runs.experiment import read_experiment
from equipoise.system import workers
from equipoise.system.errors import InputError
from helpers import in_one
from run_helpers import InProcess

FILE = """
title = "What holds of a small paper"
paper = "Mine"
citation = "Nobody 2026"
about = "A small one."
seeds = 2
quick = {rounds = 1}

[columns]
AVG = "avg"
STD = "std"

[choice]
seeds = [100, 101]
rounds = 1

[[part]]
name = "one"
title = "One | part"
scenario = "digits"
options = {clients = 4, train = [60, 60, 60, 60], test = [12, 12, 12, 12]}
network = "mlp(hidden=[8])"
train = {rounds = 2, epochs = 5, batch_size = 8, lr = 0.01}
columns = ["AVG"]

[[part]]
name = "two"
scenario = "digits-iid"
network = "mlp(hidden=[8])"
train = {rounds = 2}
columns = ["AVG", "STD"]
seeds = 3

[[row]]
name = "Plain"

[[row]]
name = "Proximal"
method = "fedprox"
parts = ["one"]
choose = {"fedprox.mu" = [0.1, 1.0], lr = [0.001, 0.01]}

[[row]]
name = "Wild"
parts = ["one"]
choose = {lr = [1e30]}

[[claim]]
text = "Proximal is better"
source = "Section 4, Table 2"
column = "AVG"
row = "Proximal"
than = "Plain"
direction = "higher"

[[claim]]
text = "Plain is below 99"
source = "Table 1"
column = "AVG"
row = "Plain"
value = 99
direction = "not higher"
margin = 0.5
"""
PROXIMAL = ("one", "Proximal")


@pytest.fixture
def name(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text(FILE)
    return str(tmp_path / "mine.toml")


# statistics
def oracle(d: Sequence[float], direction: str, margin: float) -> tuple[float, float, str]:
    """By the definition, word for word."""
    low, high = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    t = {"higher": 0.0, "lower": 0.0, "not lower": -margin, "not higher": margin}[direction]
    upwards = direction in ("higher", "not lower")
    if (low > t) if upwards else (high < t):
        return low, high, "holds"
    return low, high, "does not hold" if (high < t if upwards else low > t) else "cannot be told"


def power(effect: float, n: int) -> float:
    """How often n seeds would show a mean of so many standard deviations."""
    return float(stats.ncf.sf(stats.t.ppf(0.975, n - 1) ** 2, 1, n - 1, n * effect**2))


@pytest.mark.parametrize("direction", ["higher", "lower", "not lower", "not higher"])
def test_a_verdict_follows_from_the_interval(direction: Any) -> None:
    random, seen = np.random.default_rng(0), set[str]()
    for _ in range(60):
        n, margin = int(random.integers(2, 9)), float(random.choice([0.0, 1.0]))
        d = random.normal(random.normal(0, 2), 1, n)
        low, high, verdict = oracle(d, direction, margin)
        found = judge(d, direction, margin)
        assert (found.mean, found.low, found.high, found.n) == pytest.approx((d.mean(), low, high, n))
        assert found.verdict == verdict
        seen.add(verdict)
        if verdict == "cannot be told":
            distance = abs(d.mean() - {"not lower": -margin, "not higher": margin}.get(direction, 0.0))
            needed = int(found.seeds_needed)
            assert needed == 1001 or power(distance / d.std(ddof=1), needed) >= 0.8
            assert needed == 2 or power(distance / d.std(ddof=1), needed - 1) < 0.8
        else:
            assert math.isnan(found.seeds_needed)
    assert len(seen) == 3


@in_one(
    ("d", "direction", "margin", "verdict", "needed"),
    [
        ([1.0, 1.0], "higher", 0, "holds", math.nan),  # no spread: the interval is the point
        ([0.0, 0.0], "higher", 0, "cannot be told", math.inf),
        ([0.0, 0.0], "not lower", 0, "cannot be told", math.inf),
        ([-2.0, -2.0], "not lower", 2, "cannot be told", math.inf),
        ([-2.0, -2.0], "not lower", 2.1, "holds", math.nan),
        ([-2.0, -2.0], "not lower", 1.9, "does not hold", math.nan),
        ([0.1 + 0.2 - 0.3, 0.0], "lower", 0, "cannot be told", math.inf),  # rounding is no difference
        ([-1.0, 1.0], "higher", 0, "cannot be told", math.inf),
        ([-1.0, 1.001], "higher", 0, "cannot be told", 1001),
        ([5.0], "higher", 0, "cannot be told", math.nan),
        ([], "higher", 0, "cannot be told", math.nan),
    ],
)
def test_verdicts_at_the_edges(d: list[float], direction: Any, margin: float, verdict: str, needed: float) -> None:
    found = judge(d, direction, margin)
    assert found.verdict == verdict
    assert found.seeds_needed == pytest.approx(needed, nan_ok=True)


# reading
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('row = "Proximal"\nthan', 'row = "Proximl"\nthan', "claim 1: Unknown row 'Proximl'.*Did you mean 'Proximal'"),
        ('than = "Plain"', 'than = "Plane"', "claim 1: Unknown row 'Plane'"),
        ('column = "AVG"\nrow = "Plain"', 'column = "AVGE"\nrow = "Plain"', "claim 2: Unknown column 'AVGE'"),
        ('than = "Plain"', 'than = "Proximal"', "claim 1: row and than are both Proximal. Name two rows"),
        ("value = 99\n", "", r"claim 2: expected than \(a row\) or value \(a number\); found neither"),
        ('than = "Plain"\n', 'than = "Plain"\nvalue = 3\n', "claim 1: expected than .*; found both"),
        ("margin = 0.5\n", "", "claim 2: margin: expected with not lower and not higher.*; found none with not higher"),
        ('"higher"\n', '"higher"\nmargin = 1\n', "claim 1: margin: .*found 1 with higher"),
        ("margin = 0.5", "margin = -0.5", "claim.2.margin: .*greater than or equal to 0; found -0.5"),
        ('direction = "higher"', 'direction = "better"', "claim.1.direction: .*'not lower'.*found 'better'"),
        ('"higher"\n', '"higher"\nparts = ["tow"]\n', "claim 1: Unknown part 'tow'"),
        ('"higher"\n', '"higher"\nparts = ["two"]\n', "claim 1: part two has no row Proximal"),
        ('"higher"\n', '"higher"\nseeds = {two = 3}\n', "claim 1: seeds: it is not made for part two"),
        ('"higher"\n', '"higher"\nseeds = {to = 3}\n', "claim 1: Unknown part 'to'. Did you mean 'two'"),
        ('"higher"\n', '"higher"\nseeds = {one = 101}\n', "choice.seeds: expected different seeds of 101 or more"),
        ('"AVG"\nrow = "Proximal"', '"STD"\nrow = "Proximal"', "claim 1: no part has the column STD and Proximal and Plain"),
        ("lr = [0.001, 0.01]}", "lrs = [0.001]}", "row Proximal: choose: Unknown setting of training 'lrs'"),
        ("lr = [0.001, 0.01]}", "seed = [0, 1]}", "row Proximal: choose: Unknown setting of training 'seed'"),
        ("lr = [0.001, 0.01]}", "lr = []}", "row.2.choose.lr: .*at least 1 item"),
        ("lr = [0.001, 0.01]}", "lr = [0.1]}\ntrain = {lr = 0.1}", "row Proximal: lr is both chosen and given"),
        ("[choice]\nseeds = [100, 101]\nrounds = 1", "", r"row Proximal: choose needs trial runs.*\[choice\]"),
        ("seeds = [100, 101]", "seeds = [2, 100]", r"choice.seeds: expected different seeds of 3 or more.*found \[2, 100\]"),
        ("seeds = [100, 101]", "seeds = [100, 100]", "choice.seeds: expected different seeds"),
        ("quick = {rounds = 1}", "quick = {}", "quick: expected rounds, seeds or both; found neither"),
    ],
)  # fmt: skip
def test_what_is_not_right_is_refused(name: str, old: str, new: str, message: str) -> None:
    assert old in FILE
    Path(name).write_text(FILE.replace(old, new, 1))
    with pytest.raises(InputError, match=f"mine.toml: {message}"):
        read_experiment(name)


def test_a_choice_needs_a_row_that_chooses(name: str) -> None:
    Path(name).write_text("\n".join(line for line in FILE.splitlines() if not line.startswith("choose")))
    with pytest.raises(InputError, match="choice: no row chooses"):
        read_experiment(name)


# planning
def test_a_plan_has_trial_runs_and_seeds_of_its_own(name: str, tmp_path: Path) -> None:
    plan = reproduce.plan(name, tmp_path)
    assert plan.chosen == {}
    candidates = plan.candidates[PROXIMAL]
    assert [[*c.settings.values()] for c in candidates] == [[0.1, 0.001], [0.1, 0.01], [1.0, 0.001], [1.0, 0.01]]
    trial, run = candidates[2].trials[1].config, candidates[2].runs[1].config
    assert (trial.seed, trial.validation, trial.rounds, trial.lr) == (101, 0.2, 1, 0.001)
    assert (run.seed, run.validation, run.rounds, run.lr) == (1, 0.0, 2, 0.001)
    assert "mu=1.0" in trial.method
    assert trial.method == run.method
    assert [c.seed for c in plan.runs if c.part == "one"] == [0, 1] * 3
    assert [c.seed for c in plan.runs if c.part == "two"] == [0, 1, 2]
    assert len(plan.trials) == 2 * 5
    assert read_experiment(name).runs() == len(plan.trials) + len(plan.runs)
    more = reproduce.plan(name, tmp_path, seeds=4)
    assert {c.seed for c in more.runs} == {0, 1, 2, 3}
    with pytest.raises(InputError, match=r"--seeds 101 .*trial runs, \[100, 101\]. Give at most 100"):
        reproduce.plan(name, tmp_path, seeds=101)


def test_errors_of_predicted_numbers_are_in_no_table_of_accuracies(name: str, tmp_path: Path) -> None:
    Path(name).write_text(FILE.replace("digits-iid", "diabetes"))
    with pytest.raises(InputError, match=r"part two: diabetes has numbers to predict.*equipoise compare --help"):
        reproduce.plan(name, tmp_path)


def test_a_quick_trial_has_the_files_rounds(name: str, tmp_path: Path) -> None:
    quick = reproduce.plan(name, tmp_path, quick=True)
    assert quick.trial
    assert {c.config.rounds for c in (*quick.runs, *quick.trials)} == {1}
    assert len(quick.runs) == len(reproduce.plan(name, tmp_path).runs)
    assert reproduce.plan(name, tmp_path, rounds=1).trial
    assert not reproduce.plan(name, tmp_path, rounds=2).trial  # as many as the file says
    assert {c.config.rounds for c in reproduce.plan(name, tmp_path, rounds=5).trials} == {1}  # never more than [choice]
    Path(name).write_text(FILE.replace("quick = {rounds = 1}", ""))
    with pytest.raises(InputError, match="has no quick trial"):
        reproduce.plan(name, tmp_path, quick=True)


def test_data_that_are_embedded_are_not_asked_for(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"its data are embedded already\. Leave --embedded out"):
        reproduce.plan(name, tmp_path, embedded=True)
    with pytest.raises(ValueError, match=r"scenario digits makes its own data.* would not be read"):
        reproduce.plan(name, tmp_path, data="x")
    result = agreement.collect(reproduce.plan(name, tmp_path))
    assert not result.embedded  # nothing is published that it could be compared with
    assert "embedded data that come with Equipoise, not of the paper's own" in reproduction.page(result).markdown()
    Path(name).with_suffix(".csv").write_text("row,part,column,mean,std\nPlain,one,AVG,70,\n")
    assert agreement.collect(reproduce.plan(name, tmp_path)).embedded


# running
@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An experiment of which the first part was run."""
    folder = tmp_path_factory.mktemp("claims")
    name = str(folder / "mine.toml")
    Path(name).write_text(FILE)
    command(folder, name, "--part", "one")
    return name, folder


def command(folder: Path, name: str, *more: str) -> None:
    """Run the command in this process, each run too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "Worker", InProcess)
        patch.setattr(sys, "argv", ["equipoise", "reproduce", name, "--runs", str(folder / "runs"), *more])
        with pytest.raises(SystemExit):
            cli.main()


def test_rows_choose_by_what_clients_hold_out(ran: tuple[str, Path]) -> None:
    name, folder = ran
    plan = reproduce.plan(name, folder / "runs" / "reproduce", parts=["one"])
    chosen = plan.chosen[PROXIMAL]
    means = []
    for candidate in plan.candidates[PROXIMAL]:
        of = [History.from_run(one.path).validation()["accuracy"].tail(5).mean() for one in candidate.trials]
        means.append(100 * float(np.mean(of)))
    assert [one.accuracy for one in chosen.tried] == pytest.approx(means)
    assert len({*means}) > 1
    best = plan.candidates[PROXIMAL][int(np.argmax(means))]
    assert chosen.taken is not None
    assert chosen.taken.settings == best.settings
    assert [c for c in plan.runs if c.row == "Proximal"] == list(best.runs)
    assert all(runs.finished(c.path) for c in best.runs)


def test_the_first_of_equal_candidates_is_taken() -> None:
    a, b, c = (Tried({"lr": lr}, accuracy) for lr, accuracy in ((1, 50.0), (2, 60.0), (3, 60.0)))
    assert Chosen("one", "One", "Row", (a, b, c)).taken is b
    assert Chosen("one", "One", "Row", (Tried({"lr": 1}, math.nan, "failed"), a)).taken is a
    assert Chosen("one", "One", "Row", (Tried({"lr": 1}, math.nan, "failed"),)).taken is None


def test_what_is_finished_is_not_run_again(ran: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, folder = ran
    summaries = sorted((folder / "runs").rglob("summary.json"))
    before = {path: path.stat().st_mtime_ns for path in summaries}
    assert len(before) == 8 + 4  # trial runs, and those of two rows; Wild has none
    command(folder, name, "--part", "one", "--json")
    assert {path: path.stat().st_mtime_ns for path in sorted((folder / "runs").rglob("summary.json"))} == before
    told = json.loads(capsys.readouterr().out)
    better, value, elsewhere = told["claims"]
    assert (better["row"], better["than"], better["seeds"], better["part"]) == ("Proximal", "Plain", 2, "one")
    of = {cell["row"]: np.array(cell["values"]) for cell in told["cells"]}
    low, high = stats.ttest_rel(of["Proximal"], of["Plain"]).confidence_interval(0.95)
    assert (better["low"], better["high"]) == pytest.approx((low, high), nan_ok=True)
    assert (value["value"], value["margin"]) == (99, 0.5)
    assert value["high"] < 0  # it would hold, but these runs have learnt nothing
    assert value["verdict"] == "cannot be told"
    assert value["why"].startswith("Plain, seed 0: the global model is no better than guessing")
    assert value["mean"] == pytest.approx(of["Plain"].mean() - 99)
    assert (elsewhere["part"], elsewhere["verdict"], elsewhere["why"]) == (
        "two",
        "not run",
        "not among what was asked for",
    )
    proximal, wild = told["chosen"]
    assert proximal["taken"] in [one["settings"] for one in proximal["candidates"]]
    assert wild["taken"] is None
    assert told["missing"]["one/Wild"].startswith(
        "each candidate's trial runs failed, those of lr=1e+30 with seed 100:"
    )


def test_every_form_has_the_claims(ran: tuple[str, Path]) -> None:
    folder = ran[1] / "runs" / "reproduce" / "mine"
    line = "Plain is below 99 (Table 1)"
    text, tex, page = ((folder / file).read_text() for file in ("table.md", "table.tex", "index.html"))
    assert all(line in of for of in (text, tex, page.replace("<wbr>", "")))
    assert r"| One \| part |" in text
    assert "<h2>What was chosen</h2>" in page
    assert tex.count(r"\begin{") == tex.count(r"\end{")
    lines = list(csv.DictReader(io.StringIO((folder / "claims.csv").read_text())))
    assert [(line["than"], line["value"], line["part"]) for line in lines] == [("Plain", "", "one"), ("", "99.0", "one"), ("", "99.0", "two")]  # fmt: skip


def test_a_quick_trial_never_says_that_a_claim_holds(ran: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, folder = ran
    command(folder, name, "--quick", "--part", "one", "--row", "Plain", "--json")
    claim = json.loads(capsys.readouterr().out)["claims"][1]
    assert claim["high"] < 0  # it would hold
    assert (claim["verdict"], claim["why"]) == ("cannot be told", "fewer rounds or seeds than the experiment has")
    assert (folder / "runs" / "reproduce" / "mine-quick" / "claims.csv").exists()
    command(folder, name, "--quick", "--rounds", "2")
    assert "--quick has rounds and seeds of its own" in capsys.readouterr().err


def test_the_forecast_has_trial_runs(ran: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, folder = ran
    command(folder, name, "--dry-run", "--part", "one", "--row", "Proximal", "--json")
    lines = json.loads(capsys.readouterr().out)["runs"]
    assert [line["trial"] for line in lines] == [True] * 8 + [False] * 2
    assert all(line["finished"] for line in lines)


# what is missing
def history(seed: int, accuracy: float) -> History:
    record = {"round": 0, "groups": {"test": {"accuracy": accuracy, "loss": 1.0}}, "clients": {"accuracy": [accuracy]}}
    return History((record,), {"method": "fedavg", "seed": seed})


@pytest.fixture
def judged(name: str, tmp_path: Path) -> Callable[..., JudgedClaim]:
    """The first claim in the first part, of accuracies by seed."""

    def of(
        proximal: dict[int, float],
        plain: dict[int, float],
        failed: dict[tuple[str, str], str] | None = None,
        chosen: Any = None,
        **more: Any,
    ) -> JudgedClaim:
        plan = reproduce.plan(name, tmp_path, **{"seeds": 4, **more})
        plan = replace(plan, chosen=dict.fromkeys(plan.candidates) if chosen is None else chosen)
        found = {
            ("one", row): [history(seed, a) for seed, a in values.items()]
            for row, values in (("Proximal", proximal), ("Plain", plain))
        }
        claim = plan.experiment.claim[0]
        return agreement._judgement(plan, claim, plan.experiment.claimed(claim)[0], failed or {}, found)

    return of


def test_seeds_are_paired_and_what_lacks_is_left_out(judged: Callable[..., JudgedClaim]) -> None:
    claim = judged({0: 0.5, 1: 0.7, 2: math.nan, 3: 0.6}, {3: 0.1, 1: 0.5, 2: 0.5})
    assert (claim.judgement.mean, claim.judgement.n) == pytest.approx((100 * (0.2 + 0.5) / 2, 2))
    assert claim.cells[4] == "2 of 4"
    one = judged({0: 0.5}, {0: 0.1}, seeds=1)
    assert one.cells[5] == "cannot be told: one seed gives no interval"
    none = judged({0: math.nan}, {0: 0.1}, {("one", "Plain"): "seed 3: it broke"})
    assert (none.verdict, none.why) == ("not run", "Plain: seed 3: it broke")
    unknown = judged({}, {}, parts=["two"])
    assert unknown.verdict == "not run"


def test_a_claim_may_have_more_seeds_than_the_table(name: str, tmp_path: Path) -> None:
    """The table takes those that all rows have, so that every row is of the same draws."""
    Path(name).write_text(FILE.replace('direction = "higher"', 'direction = "higher"\nseeds = {one = 4}'))
    plan = reproduce.plan(name, tmp_path)
    asked = {row: sorted(plan.seeds("one", [row])) for row in ("Plain", "Proximal", "Wild")}
    assert asked == {"Plain": [0, 1, 2, 3], "Proximal": [0, 1, 2, 3], "Wild": [0, 1]}
    assert read_experiment(name).runs() == len(plan.trials) + len(plan.runs)
    plan = replace(plan, chosen={cell: Chosen("one", "One", cell[1], ()) for cell in plan.candidates})
    values = {"Plain": [0.5, 0.52, 0.9, 0.91], "Proximal": [0.6, 0.61, 0.95, 0.97], "Wild": [0.1, 0.1]}
    found = {("one", row): [history(seed, a) for seed, a in enumerate(of)] for row, of in values.items()}
    result = agreement.collect(plan, {}, found)
    assert result.parts[0].entries["Plain", "AVG"].values == pytest.approx((50, 52))
    claim, lonely = (claim for claim in result.claims if claim.part == "one")
    assert (claim.judgement.n, claim.planned) == (4, 4)
    assert claim.judgement.mean == pytest.approx((10 + 9 + 5 + 6) / 4)
    assert (lonely.judgement.n, lonely.planned) == (4, 4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({0: 0.6, 1: 0.61}, "holds"),
        ({0: 0.4, 1: 0.41}, "does not hold here"),
        ({0: 0.5, 1: 0.6}, "cannot be told: about 18 seeds would tell"),
        ({0: 0.5, 1: 0.5}, "cannot be told: no number of seeds would tell"),
        ({0: 0.4, 1: 0.601}, "cannot be told: more than 1,000 seeds would tell"),
    ],
)
def test_verdicts_in_words(judged: Callable[..., JudgedClaim], values: dict[int, float], said: str) -> None:
    assert judged(values, {0: 0.5, 1: 0.5}, seeds=2).cells[5] == said


def test_seeds_that_are_left_decide_nothing(judged: Callable[..., JudgedClaim]) -> None:
    """Runs that fail are not any runs: those that are left may be the better ones."""
    all_, some = {0: 0.6, 1: 0.61, 2: 0.6}, {0: 0.5, 1: 0.5, 2: 0.5}
    assert judged(all_, some, seeds=3).verdict == "holds"
    crashed = judged({0: 0.6, 1: 0.61}, some, {("one", "Proximal"): "seed 2: it broke"}, seeds=3)
    assert crashed.judgement.verdict == "holds"  # of two seeds
    assert crashed.cells[4:] == ("2 of 3", "cannot be told: Proximal: seed 2: it broke")
    assert crashed.plain()["seeds_needed"] is None
    for lacking in ({**all_, 2: math.nan}, {0: 0.6, 1: 0.61}):
        assert judged(lacking, some, seeds=3).cells[5] == "cannot be told: not there, or not defined, for 1 of 3 seeds"
    assert judged(all_, some, seeds=3, chosen={}).cells[5] == "cannot be told: not chosen yet: Proximal"


def test_a_row_is_not_compared_with_itself(name: str, tmp_path: Path) -> None:
    Path(name).write_text(FILE.replace('name = "Wild"', 'name = "Same"').replace("choose = {lr = [1e30]}", "")
                          .replace('row = "Proximal"', 'row = "Same"').replace('"higher"', '"not lower"\nmargin = 1', 1))  # fmt: skip
    plan = reproduce.plan(name, tmp_path)
    found = {("one", row): [history(seed, 0.5) for seed in (0, 1)] for row in ("Same", "Plain")}
    claim = agreement.collect(plan, {}, found).claims[0]
    assert (claim.judgement.verdict, claim.verdict, claim.why) == (
        "holds",
        "cannot be told",
        "both rows are the same runs",
    )


def test_rows_of_other_data_are_not_compared(
    judged: Callable[..., JudgedClaim], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "_changed", lambda *_: True)
    claim = judged({0: 0.6, 1: 0.61}, {0: 0.5, 1: 0.5}, seeds=2)
    assert claim.cells[5] == "cannot be told: not all of these runs saw the same data"


def test_verdicts_point_to_doubts_about_the_runs(name: str, tmp_path: Path) -> None:
    result = agreement.collect(reproduce.plan(name, tmp_path))
    assert "Before you rely on a verdict" not in result.decided[0].explanations[0]
    parts = (replace(result.parts[0], doubts=("Computed by different versions.",)), *result.parts[1:])
    assert (
        result.decided[0].explanations[0].endswith("of embedded data that come with Equipoise, not of the paper's own.")
    )
    assert replace(result, parts=parts).decided[0].explanations[0].endswith("below the numbers of: One | part.")


def test_a_table_for_spreadsheets_runs_no_formula() -> None:
    claim = JudgedClaim("=1+1", "Table", "p", "P", "a", "b", None, "c", "higher", None, 0, judge([], "higher"), "why")
    assert "\u02bc=1+1" in claims_csv([claim])
