"""The report of regression, on histories made up here: in the unit of the target, lower is better, nothing of classification."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from equipoise.federation.history import History
from equipoise.report import comparison, latex, markdown, rich_table
from equipoise.report.sentences import limits
from equipoise.report.statistics import Comparison

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
    """A text without what is a share of something else than errors: levels of intervals, tenths of the clients, LaTeX comments."""
    return re.sub(r"\b(95|10)(\\?,|&nbsp;|~|\s)*\\?%|^% .*$", "", text, flags=re.MULTILINE)


WRONG = re.compile(r"accurac\w*|%|percent\w*|\bclass(es)?\b|\bpoints?\b|\bnats\b", re.IGNORECASE)


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
