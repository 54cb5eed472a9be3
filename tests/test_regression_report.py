"""The report of regression, on histories made up here: in the unit of the target, lower is better, nothing of classification."""

import io
import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from rich.console import Console

from equipoise.federation.history import History
from equipoise.federation.standing import Standing, accuracies
from equipoise.federation.stopping import EarlyStopping
from equipoise.metrics.definitions import INDICES
from equipoise.metrics.failure import guesses_mean
from equipoise.metrics.measures import ACCURACY, REGRESSION
from equipoise.records.validation import selected
from equipoise.report import comparison, latex, markdown, render, rich_table
from equipoise.report.comparisons import Comparison
from equipoise.report.provenance import settings
from equipoise.report.sentences import evidence, limits, verdict
from equipoise.report.sites import prometheus
from equipoise.runs.tracking import round_numbers
from helpers import write_records

pytestmark = pytest.mark.drawn

GROUPS = {"women": 52.0, "men": 60.0, "others": 71.0}
METHODS = {"fedavg": 0.0, "afl": -4.0, "qffl": 6.0}  # how far the worst group is moved


def scores(rmse, n=40):
    return {"rmse": rmse, "mae": 0.8 * rmse, "r2": 1 - (rmse / 77) ** 2, "loss": rmse**2 / 2, "n": n}


def run(method="fedavg", seed=0, rounds=7, scale=1.0, **meta):
    """A run that learns: errors fall, and `METHODS` says how far that of the worst group is from FedAvg's."""
    rng = np.random.default_rng([seed, len(method)])
    names = [*GROUPS, *GROUPS]
    records = []
    for t in range(rounds):
        errors = {
            group: scale * (end + METHODS[method] * (group == "others")) * (1 + 0.5**t) * (1 + 0.002 * rng.random())
            for group, end in GROUPS.items()
        }
        clients = [errors[group] + scale * m for m, group in enumerate(names)]
        held = {group: {k: v for k, v in scores(e).items() if k != "r2"} for group, e in errors.items()}
        validation = {k: v for k, v in scores(float(np.mean(list(errors.values()))), 120).items() if k != "r2"}
        validation |= {"groups": held, "clients": {"rmse": clients, "loss": [e**2 / 2 for e in clients]}}
        records.append(
            {
                "round": t,
                "seconds": 0.1,
                "groups": {group: scores(error) for group, error in errors.items()},
                "clients": {"rmse": clients, "n": [30] * len(clients)},
                "validation": validation,
                "ids": list(range(len(clients))),
                "losses": [e**2 / 2 for e in clients],
                "weights": [1 / len(clients)] * len(clients),
            }
        )
    about = {
        "scenario": "diabetes",
        "task": "regression",
        "unit": "mg/dl",
        "rounds": rounds,
        "client_names": list("abcdef"),
    }
    about |= {"client_groups": names, "client_tests": True}
    return History(tuple(records), {"method": method, "seed": seed, **about, **meta})


def several(seeds=3, **meta):
    return [run(method, seed, **meta) for seed in range(seeds) for method in METHODS]


# --- numbers


def test_summary_is_in_the_unit_of_the_target_and_the_worst_is_the_highest():
    history = run("fedavg")
    found = history.summary(3)
    table = np.array([[record["groups"][group]["rmse"] for group in GROUPS] for record in history.records[-3:]]).mean(0)
    assert found["avg"] == pytest.approx(table.mean())
    assert found["std"] == pytest.approx(table.std(ddof=1))
    assert (found["worst"], found["worst_group"]) == (pytest.approx(table.max()), "others")
    assert found["gap"] == pytest.approx(np.ptp(table))
    assert found["best"] == pytest.approx(
        min(np.mean([g["rmse"] for g in r["groups"].values()]) for r in history.records)
    )
    assert (found["measure"], found["unit"], found["task"]) == ("rmse", "mg/dl", "regression")
    clients = np.array([record["clients"]["rmse"] for record in history.records[-3:]]).mean(0)
    assert found["clients"]["worst10"] == pytest.approx(clients.max())
    assert found["clients"]["best10"] == pytest.approx(clients.min())
    assert found["clients"]["variance"] == pytest.approx(clients.var())
    last = history.records[-1]["validation"]
    assert found["validation"] == {
        "round": 6,
        "rmse": pytest.approx(last["rmse"]),
        "loss": pytest.approx(last["loss"]),
        "worst": pytest.approx(last["groups"]["others"]["rmse"]),
        "worst_group": "others",
    }
    assert "accuracy" not in json.dumps(found)


def test_other_measures_have_their_own_direction():
    history = run("fedavg")
    assert history.measures == ("rmse", "mae", "r2")
    r2 = history.summary(1, "r2")
    worst = history.records[-1]["groups"]["others"]
    assert (r2["worst"], r2["worst_group"]) == (pytest.approx(worst["r2"]), "others")
    assert history.summary(1, "mae")["worst"] == pytest.approx(worst["mae"])
    with pytest.raises(ValueError, match="rmse, mae, r2"):
        history.group_table("accuracy")
    with pytest.raises(ValueError, match="accuracy, balanced, auc, auc_ovr"):
        History([], {"method": "m"}).group_table("rmse")


def test_the_leading_method_is_that_with_the_lowest_error():
    found = comparison(several())
    assert {key: leader["leading"] for key, leader in found["leaders"].items()} == {
        "avg": "afl",
        "std": "afl",
        "worst": "afl",
        "gap": "afl",
        "client_std": "afl",
    }
    assert found["leaders"]["avg"]["best"] == "afl"
    assert found["measures"]["r2"]["leaders"]["worst"]["leading"] == "afl"
    afl = found["methods"][1]
    assert afl["versus"]["worst"]["difference"] == pytest.approx(-4, abs=0.5)
    assert afl["worst_groups"] == {"others": 3}
    assert (found["measure"], found["title"], found["unit"]) == ("rmse", "RMSE", "mg/dl")
    assert "accuracy" not in json.dumps(found, allow_nan=False)


def test_runs_of_several_tasks_or_units_are_not_compared():
    classified = History([{"round": 0}], {"method": "m", "scenario": "diabetes"})
    for other in (classified, run("afl", unit="mmol/l")):
        with pytest.raises(ValueError, match="one task"):
            comparison([run(), other])


# --- words


def words_of(found):
    """All that a reader sees of a comparison, but a page and its figures."""
    console = Console(file=io.StringIO(), width=200)
    console.print(rich_table(found, 200))
    texts = [console.file.getvalue(), str(found), markdown(found), latex(found), found.verdict, *found.evidence]
    return "\n".join([*texts, *limits(found), repr(found), found.table.to_csv(), found.tests.to_csv()])


def without_shares(text):
    """A text without shares of something else than errors: levels of intervals, tenths of the clients, weights; entropies, LaTeX comments."""
    shares = r"\b(?:95|10|5)(?:\\?,|~|\s)*\\?%|^% .*$|weight \(%\)|entropy and KL in nats|in nats, at most ln K|equality, in nats"
    return re.sub(shares, "", text, flags=re.MULTILINE)


WRONG = re.compile(r"accurac\w*|%|percent\w*|\bclass(?:es)?\b|\bpoints?\b|\bnats\b", re.IGNORECASE)


@pytest.mark.parametrize(
    "histories",
    [
        several(),
        several(1),
        several(2, unit=""),
        [run()],
        [run(), run("afl", select="best-validation")],
        several(2, rounds=12),
        [run(), run("afl", bound="lower", label="standalone"), run("qffl", bound="upper", label="centralised")],
        several(2, client_tests=None, client_groups=None),
    ],
    ids=["seeds", "one seed", "without unit", "one run", "selected", "long", "bounds", "without groups"],
)
def test_no_word_of_classification(histories):
    found = Comparison.of(histories)
    text = words_of(found)
    assert not WRONG.findall(without_shares(text)), text
    assert "RMSE" in text
    assert ("mg/dl" in text) == (histories[0].meta["unit"] != "")
    json.dumps(found.document, allow_nan=False)
    assert not re.search("accuracy", json.dumps(found.document))


# --- pages and figures


@pytest.fixture(scope="module")
def page():
    return render(Comparison.of(several()))


def test_no_word_of_classification_on_a_page(page):
    text = unescape(re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL))
    hints = " ".join(re.findall(r'data-hint="([^"]*)"', text))
    seen = without_shares(re.sub(r"<[^>]*>", " ", text) + hints)
    assert not WRONG.findall(seen)
    for words in ("RMSE on every group", "RMSE (mg/dl)", "average (mg/dl)", "STD over the groups (mg/dl)", "MAE", "R²"):
        assert words in seen, words
    assert "down and to the left is better" in seen
    assert "Lower is better." in hints
    assert "maxₖ aₖ over the groups" in hints


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_axes_hold_all_errors_and_begin_at_none(scale):
    found = Comparison.of(several(scale=scale))
    bars = found.figure("bars").axes[0]
    low, high = bars.get_ylim()
    assert low == 0
    assert 85 * scale < high < 150 * scale
    average, worst = found.figure("convergence").axes
    for axes, at in ((average, 67), (worst, 78)):
        ends = axes.lines[0].get_ydata()
        assert ends[-1] == pytest.approx(at * scale, rel=0.1)
        assert axes.get_ylim()[1] > 100 * scale
    left = found.figure("spread").axes[0].lines[0].get_ydata()
    assert list(left) == sorted(left, reverse=True)  # the worst first


def test_numbers_of_any_size_have_enough_digits():
    small, large = (str(Comparison.of(several(2, scale=scale))) for scale in (1e-3, 1e4))
    assert "0.07794" in small or "0.0779" in small
    assert re.search(r"\b779\d{3}\b", large)
    assert "±0.00 " not in small


def test_few_large_errors_are_no_shares_of_right_samples():
    """Below 1 an error could be taken for a share, and have an interval over test samples."""
    found = comparison([run("fedavg", scale=0.01), run("afl", scale=0.01)])
    assert [method["intervals"] for method in found["methods"]] == [None, None]
    assert [method["intervals"] for method in found["spread"]["methods"]] == [None, None]


# --- lines about a run that goes on


def test_lines_about_a_run_that_goes_on():
    history = run("fedavg")
    at = Standing.of(history.records, 7)
    last = {group: scores["rmse"] for group, scores in history.records[-1]["groups"].items()}
    assert (
        str(at)
        == f"round 7 of 7, RMSE {np.mean(list(last.values())):.1f} (mean of 3 groups), worst {last['others']:.1f} (others)"
    )
    assert accuracies(history.records[-1]) == [f"{group} {value:.1f}" for group, value in last.items()]
    names = [str(m) for m in range(12)]
    clients = {"rmse": [50.0 + m for m in range(12)]}
    assert Standing.of([{"round": 0, "clients": clients}], 1).worst == 61
    numbers = round_numbers(history.records[-1], names)
    assert numbers["rmse/worst"] == last["others"]
    assert numbers["clients/rmse/5"] == history.records[-1]["clients"]["rmse"][5]
    assert not [key for key in numbers if "accuracy" in key]
    gauges = prometheus(history.records, names, 7, "e")
    assert f'equipoise_rmse{{experiment="e",group="men"}} {last["men"]!r}' in gauges
    assert not re.search("accuracy", gauges)


def test_training_stops_where_errors_no_longer_fall():
    """The best round by validation has the lowest error, also in the worst group."""

    def record(t, rmse, worst):
        groups = {"a": {"rmse": rmse, "loss": 1.0}, "b": {"rmse": worst, "loss": 1.0}}
        return {"round": t, "validation": {"rmse": rmse, "loss": 1.0, "groups": groups}}

    records = [record(0, 9.0, 12.0), record(1, 7.0, 11.0), record(2, 8.0, 10.0), record(3, 8.5, 13.0)]
    assert selected(records) == 1
    assert EarlyStopping(2)(records[:3]) == ""
    assert EarlyStopping(2)(records) == "the validation RMSE has not improved for 2 rounds"
    assert EarlyStopping(1, "worst")(records[:3]) == ""
    assert EarlyStopping(1, "worst")(records) == "the validation RMSE of the worst group has not improved for 1 round"


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"task": None}, "the records hold rmse, which is no measure of classification"),
        ({"task": "classification"}, "found 'classification'"),
        ({"task": "regresion"}, "regression"),
    ],
)
def test_errors_are_never_read_as_accuracies(about, message):
    with pytest.raises(ValueError, match=message):
        run("fedavg", **about)


def test_a_model_that_predicts_the_mean_is_never_called_fair():
    """A constant has the most even errors, and an R² that is not above 0."""

    def constant(seed, r2=-0.02):
        history = run("fedavg", seed)
        groups = {group: {**scores(60.0), "r2": r2} for group in GROUPS}
        return History([{**record, "groups": groups} for record in history.records], {**history.meta, "label": "mean"})

    assert comparison([run("afl"), run("fedavg"), constant(0)])["leaders"]["std"]["leading"] == "afl"
    why = constant(0).failure()
    assert (
        why
        == "the global model is no better than guessing: its RMSE is 60.00, and always answering with the mean of each test set gives 59.41"
    )
    assert constant(0, 0.0).failure() != ""
    for learned in (0.02, 1.0, None):
        assert constant(0, learned).failure() == ""
    assert run("qffl").failure() == ""
    text = Comparison.of([run("afl"), constant(0)]).verdict
    assert "mean is no better than guessing" in text


def test_tables_of_rounds_have_the_columns_of_the_task():
    history = run("fedavg")
    assert list(history.frame().columns) == ["round", "group", "rmse", "loss", "mae", "r2"]
    assert list(history.clients().columns) == ["round", "client", "name", "group", "rmse"]
    frame = history.validation()
    assert list(frame.columns) == ["round", "rmse", "loss", "worst"]
    assert frame["worst"].iloc[-1] == history.records[-1]["validation"]["groups"]["others"]["rmse"]


def test_a_directory_keeps_task_and_unit(tmp_path):
    history = run("fedavg")
    write_records(history, tmp_path / "metrics.jsonl")
    (tmp_path / "config.toml").write_text('method = "fedavg"\nscenario = "diabetes"\n')
    about = {key: history.meta[key] for key in ("task", "unit", "client_groups", "client_names", "client_tests")}
    (tmp_path / "manifest.json").write_text(json.dumps(about))
    assert History.from_run(tmp_path).summary() == history.summary()


def test_who_has_what_speaks_of_no_classes():
    held = {
        "clients": [{"name": n, "size": 30, "counts": None, "group": g} for n, g in zip("abc", GROUPS, strict=True)]
    }
    held |= {"tests": [{"name": group, "size": 40, "counts": None} for group in GROUPS]}
    html = render(Comparison.of([run(holdings=held)]))
    assert "Clients and groups" in html
    assert "class" not in re.sub(r"<script>.*?</script>|<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL).lower()


def test_the_unit_of_a_variance():
    units = {
        unit: next(index.of(replace(REGRESSION[0], unit=unit)) for index in INDICES if index.key == "variance")
        for unit in ("mg/dl", "kg", "")
    }
    ends = {unit: index.formula.partition("/ K")[2] for unit, index in units.items()}
    assert ends == {"mg/dl": ", in (mg/dl)²", "kg": ", in kg²", "": ""}
    assert INDICES[2].of(ACCURACY).formula == "Σₖ (100 aₖ − 100 ā)² / K, in percent²"


@pytest.mark.parametrize(
    ("scale", "unit", "text"),
    [
        (1e-3, "", "avg 0.0670, std 0.0105, worst 0.0779 (others)"),
        (1.0, "mg/dl", "avg 67.0 mg/dl, std 10.5 mg/dl, worst 77.9 mg/dl (others)"),
        (1e4, "g", "avg 669543 g, std 104669 g, worst 779397 g (others)"),
    ],
)
def test_a_history_is_printed_with_digits_and_unit(scale, unit, text):
    assert text in repr(run(scale=scale, unit=unit))


@pytest.mark.parametrize("stop_on", ["accuracy", "loss", "worst"])
def test_settings_on_a_page_name_the_main_measure(stop_on):
    common, _ = settings({"fedavg": [run(config={"stop_on": stop_on})]})
    assert common == [("stop_on", stop_on.replace("accuracy", "rmse"))]
    classified = History([], {"method": "m", "config": {"stop_on": stop_on}})
    assert settings({"m": [classified]})[0] == [("stop_on", stop_on)]


def test_the_best_on_average_has_the_lowest_error():
    found = comparison(several())
    said = f"{verdict(found)} {' '.join(evidence(found))}"
    assert "afl has the lowest error, at RMSE " in said
    assert "The one with the lowest error: the lowest AVG is that of afl" in said
    tied = [run("fedavg", seed, label=label) for seed in range(3) for label in ("a", "b")]
    assert verdict(comparison(tied)).endswith("or the one with the lowest error.")
    assert "accurate" not in said + verdict(comparison(tied))


@pytest.mark.parametrize(
    ("bound", "worse", "said"),
    [
        ("upper", "qffl", "Here bound is worse than fedavg (AVG {}), so it bounds nothing: its learning rate"),
        ("lower", "afl", "Here bound is better than fedavg (AVG {}), so it bounds nothing."),
    ],
)
def test_what_bounds_nothing_is_worse_or_better(bound, worse, said):
    found = comparison([run(), run(worse, bound=bound, label="bound")])
    by_label = {method["method"]: method["avg"]["mean"] for method in found["methods"]}
    both = f"{by_label['bound']:.2f} and {by_label['fedavg']:.2f}"
    assert said.format(both) in " ".join(found["notes"])


@pytest.mark.parametrize(("error", "spread"), [(1.673, 1.67), (0.0012, 0.0011), (1234.5, 999.0)])
def test_a_useless_model_and_the_mean_have_the_same_digits(error, spread):
    why = guesses_mean([{"a": {"rmse": error, "r2": 1 - (error / spread) ** 2, "n": 9}}])
    texts = re.fullmatch(r"its RMSE is ([\d.]+), and .* gives ([\d.]+)", why).groups()
    assert len({len(text.partition(".")[2]) for text in texts}) == 1
    assert [float(text) for text in texts] == pytest.approx([error, spread], rel=1e-3)


def test_a_page_says_of_which_rounds_its_letters_are(page):
    one = unescape(render(Comparison.of([run("afl")], last=1)))
    assert "of group or client k, after the last round; " in one
    assert "averaged over the last evaluated rounds first" not in one
    assert "averaged over the last evaluated rounds first" in unescape(page)


def constant(history, *groups):
    """The same run, where the targets of some groups are all the same."""
    records = [
        {
            **record,
            "groups": {
                name: {**of, "r2": None if name in groups else of["r2"]} for name, of in record["groups"].items()
            },
        }
        for record in history.records
    ]
    return replace(history, records=tuple(records))


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (
            ["men"],
            "R² is not defined for men: all its targets are the same. AVG, STD and worst are over all groups, so",
        ),
        (["men", "others"], "R² is not defined for men and others: within each, all targets are the same. AVG, STD"),
    ],
)
def test_a_measure_that_is_not_defined_is_no_missing_test(groups, said):
    found = comparison([constant(run(method), *groups) for method in METHODS])
    r2 = found["measures"]["r2"]
    assert r2["methods"][0]["avg"]["mean"] is None
    assert all(method["untested"] == [] for method in r2["methods"])
    assert not any("not defined" in note for note in found["notes"] + found["measures"]["mae"]["notes"])
    for text in (words_of(Comparison.of([constant(run(), *groups)])), unescape(render([constant(run(), *groups)]))):
        assert said in " ".join(text.split())
        assert "not tested" not in text
        assert "in brackets" not in text


def test_a_measure_may_be_undefined_in_some_runs_or_untested():
    runs = [constant(run(seed=0), "men"), run(seed=1)]
    assert "R² is not defined for men in 1 of 2 runs: all its" in comparison(runs)["measures"]["r2"]["notes"][-1]
    alone = run(bound="lower", label="standalone")  # which has no R²
    for record in alone.records:
        for scores in record["groups"].values():
            del scores["r2"]
    assert "R² is not defined for men: all its" in comparison([runs[0], alone])["measures"]["r2"]["notes"][-1]
    away = run()
    records = [{**r, "groups": {k: v for k, v in r["groups"].items() if k != "men"}} for r in away.records[2:]]
    found = comparison([replace(away, records=(*away.records[:2], *records))])["measures"]["r2"]
    assert found["methods"][0]["untested"][0]["round"] == 1
    assert not any("not defined" in note for note in found["notes"])


def test_an_area_of_one_class_is_not_defined():
    scores = {"a": {"accuracy": 0.9, "auc": 0.8, "n": 90}, "b": {"accuracy": 0.7, "auc": None, "n": 90, "missing": [1]}}
    found = comparison([History([{"round": 0, "groups": scores}], {"method": "m"})])["measures"]["auc"]
    assert found["methods"][0]["untested"] == []
    assert " ".join(found["notes"][-2:]).startswith(
        "b has no test sample of class 1, which the AUC leaves out. One-vs-one macro AUC is not defined for b. AVG"
    )


def alone(seed: int) -> History:
    """A run whose clients train alone: of the groups it has the main measure only."""
    history = run("afl", seed, bound="lower", label="standalone")
    records = [
        {**r, "groups": {group: {"rmse": of["rmse"]} for group, of in r["groups"].items()}} for r in history.records
    ]
    return History(tuple(records), history.meta)


@pytest.mark.parametrize("seeds", [1, 2])
def test_an_empty_row_and_a_missing_spread_are_explained(seeds):
    found = Comparison.of([of for seed in range(seeds) for of in (run("fedavg", seed), alone(seed))])
    text = markdown(found.document)
    for noun in ("MAE", "R²"):
        assert f"standalone recorded no {noun} on the groups, so its row is empty." in text
    assert "recorded no RMSE" not in text
    assert ("One seed: there is no spread over seeds." in text) == (seeds == 1)
    assert ("±" in text) == (seeds > 1)
    assert "recorded no" not in markdown(comparison([run("fedavg", seed) for seed in range(seeds)]))
