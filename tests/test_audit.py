"""An audit of predictions that no run of ours made: numbers of fairlearn, hostile tables, and the page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fairlearn import metrics as fairlearn
from hypothesis import given, settings, strategies as st
from markupsafe import escape
from sklearn.metrics import precision_score
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.main import app
from equipoise.data.formats.predictions import read
from equipoise.data.tables.columns import Columns


def drawn(n: int = 400, seed: int = 0, **more: Any) -> pd.DataFrame:
    """People with a label, a probability, a decision, a sex, a race, an age and a site."""
    rng = np.random.default_rng(seed)
    p = rng.random(n).round(4)
    frame = {"y": (rng.random(n) < p).astype(int), "p": p, "pred": (p >= 0.5).astype(int)}
    frame |= {"sex": rng.choice(["f", "m"], n), "race": rng.choice(list("abc"), n), "age": rng.integers(18, 80, n)}
    return pd.DataFrame({**frame, "where": rng.choice(["north", "south"], n), **more})


def written(frame: pd.DataFrame, folder: Path, **how: Any) -> Path:
    frame.to_csv(path := folder / "people.csv", index=False, **how)
    return path


def treated(audit: eq.Audit, by: str = "sex") -> Any:
    return audit.document["people"][by]["treated"]


@given(st.integers(0, 50))
@settings(max_examples=10, deadline=None)
def test_gaps_are_those_of_fairlearn(seed: int) -> None:
    frame = drawn(seed=seed)
    made = eq.audit(frame, label="y", probability="p", group=["sex", "race"], least=1)
    joint = frame["sex"] + ", " + frame["race"]
    for by, group in (("sex", frame["sex"]), ("race", frame["race"]), ("sex and race", joint)):
        given_, y, predicted = {"sensitive_features": group}, frame["y"], frame["pred"]
        numbers = treated(made, by)
        precision = fairlearn.MetricFrame(metrics=precision_score, y_true=y, y_pred=predicted, **given_).difference()
        for key, value in {
            "demographic_parity": fairlearn.demographic_parity_difference(y, predicted, **given_),
            "demographic_parity_ratio": fairlearn.demographic_parity_ratio(y, predicted, **given_),
            "equal_opportunity": fairlearn.equal_opportunity_difference(y, predicted, **given_),
            "equalised_odds": fairlearn.equalized_odds_difference(y, predicted, **given_),
            "predictive_parity": precision,
        }.items():
            assert numbers[key] == pytest.approx(100 * value), key
        assert {*numbers["groups"]} == {*group}
    again = eq.audit(frame, label="y", prediction="pred", probability="p", group="sex", least=1)
    assert treated(again) == treated(made)
    turned = eq.audit(frame.assign(p=1 - frame["p"]), label="y", probability="p", group="sex", least=1, positive=0)
    for sex, numbers in treated(turned)["groups"].items():
        assert numbers["bias"] == pytest.approx(-treated(made)["groups"][sex]["bias"])


def test_sites_bands_calibration_and_unknown_people() -> None:
    frame = drawn(600)
    lost = frame.index[frame["where"] == "north"][:150]  # of one site and many of each age: of few, counts would tell
    frame.loc[lost, "sex"] = None
    made = eq.audit(frame, label="y", probability="p", group=["sex", "age:40,60"], site="where", threshold=0.3)
    people = made.document["people"]
    assert [*people] == ["sex", "age", "sex and age"]
    assert [*treated(made, "age")["groups"]] == ["< 40", ">= 40 and < 60", ">= 60"]
    assert (people["sex"]["unknown"], people["age"]["unknown"], people["sex and age"]["unknown"]) == (150, 0, 150)
    known = frame.drop(lost)
    for sex, rows in known.groupby("sex"):
        assert treated(made)["groups"][sex]["bias"] == pytest.approx(100 * (rows["p"].mean() - rows["y"].mean()))
        assert treated(made)["groups"][sex]["selection_rate"] == [pytest.approx(100 * (rows["p"] >= 0.3).mean())]
        north = rows[rows["where"] == "north"]
        inside = people["sex"]["sites"]["north"]["groups"][sex]
        assert (inside["n"], inside["selection_rate"]) == (len(north), pytest.approx(100 * (north["p"] >= 0.3).mean()))
    assert "Of 150 test samples sex is not known" in made.html()
    few = eq.audit(frame, label="y", probability="p", group="sex", least=200)
    assert few.document["people"]["sex"]["unknown"] is None
    assert "Of fewer than 200 test samples sex is not known" in few.html()
    assert "Largest gap inside a site" in made.html()
    assert f'<p class="headline">{made.headline}</p>' in made.html()
    assert len(made.headline.split()) <= 25
    assert f"<p>{escape(made.summary)}</p>" in made.html()
    assert "Largest gap inside a site" not in few.html()


def test_few_people_are_not_estimable_and_never_0() -> None:
    frame = drawn(200)
    frame.loc[frame["sex"] == "f", "y"] = 0
    made = eq.audit(frame, label="y", probability="p", group="sex")
    assert treated(made)["equal_opportunity"] is None
    assert treated(made)["demographic_parity"] is not None
    assert "equal opportunity not estimable" in made.summary
    assert "not estimable" in made.html()
    small = eq.audit(frame, label="y", probability="p", group="sex", least=1000)
    assert treated(small)["demographic_parity"] is None
    json.dumps(small.document, allow_nan=False)


def test_many_classes_and_numbers() -> None:
    frame = drawn(600, y=np.tile(list("abc"), 200), pred=np.tile(list("abcabd"), 100))
    frame["pred"] = frame["pred"].replace("d", "a")
    many = eq.audit(frame, label="y", prediction="pred", group="sex")
    assert treated(many)["worst_recall"] is not None
    of_c = eq.audit(frame, label="y", prediction="pred", group="sex", positive="c")
    assert treated(of_c)["groups"]["f"]["tpr"][0] == pytest.approx(50, abs=10)
    one = eq.audit(frame, label="y", probability="p", group="sex", positive="c")
    rows = frame[(frame["sex"] == "f") & (frame["y"] == "c")]
    assert treated(one)["groups"]["f"]["tpr"] == [pytest.approx(100 * (rows["p"] >= 0.5).mean())]
    numbers = drawn(200, y=np.arange(200) / 7, pred=np.arange(200) / 7 + 1)
    errors = eq.audit(numbers, label="y", prediction="pred", group="sex", task="regression")
    assert treated(errors)["groups"]["f"]["error"] == pytest.approx(1)
    assert treated(errors)["mae_gap"] == pytest.approx(0, abs=1e-9)
    for made in (many, of_c, one, errors):
        assert "<table" in made.html()


@pytest.mark.parametrize("positive", ["a", "b", "c"])
@pytest.mark.parametrize("classes", ["abc", "abcd"])
def test_a_probability_of_one_of_many_classes_is_calibrated_against_the_rest(classes: str, positive: str) -> None:
    frame = drawn(600, y=np.random.default_rng(1).choice([*classes], 600))
    frame["pred"] = frame["y"].replace("c", "a")
    made = eq.audit(frame, label="y", probability="p", prediction="pred", group="sex", positive=positive)
    for sex, rows in frame.groupby("sex"):
        numbers = treated(made)["groups"][sex]
        assert numbers["bias"] == pytest.approx(100 * (rows["p"].mean() - (rows["y"] == positive).mean()))
        assert numbers["selection_rate"] == [pytest.approx(100 * (rows["pred"] == positive).mean())]


def test_a_probability_of_a_class_that_no_name_tells_is_refused() -> None:
    frame = drawn(y=np.where(drawn()["y"], "sick", "well"))
    with pytest.raises(ValueError, match=r"--positive sick or --positive well"):
        eq.audit(frame, label="y", probability="p", group="sex")
    right = eq.audit(frame, label="y", probability="p", group="sex", positive="sick")
    assert right.document["notes"] == []
    wrong = eq.audit(frame, label="y", probability="p", group="sex", positive="well")
    (note,) = wrong.document["notes"]
    assert note.startswith("Worse than chance: its probability is lower for people of class well")
    assert note in wrong.html()
    named = frame.assign(pred=np.where(frame["pred"], "well", "sick"))
    notes = eq.audit(named, label="y", prediction="pred", group="sex").document["notes"]
    assert "an assumption" in notes[0]
    assert "predicted less often" in notes[1]


@pytest.mark.parametrize("task", [None, "regression"])
def test_several_rows_of_a_person_are_told(task: str | None) -> None:
    frame = drawn(subject=[f"p{k % 130}" for k in range(400)], pred=drawn()["y"])
    made = eq.audit(frame, label="y", prediction="pred", group="sex", task=task)
    assert made.document["notes"][0].startswith("400 rows of 130 people. Intervals take the rows of a person together")
    assert made.document["notes"][0] in made.html()
    once = frame.assign(subject=[f"p{k}" for k in range(400)])
    assert eq.audit(once, label="y", prediction="pred", group="sex", task=task).document["notes"] == []
    given_ = {"label": "y", "prediction": "pred", "group": "sex", "task": task}
    assert eq.audit(frame.rename(columns={"subject": "who"}), subject="who", **given_).document["notes"]


def test_exchanging_the_order_of_rows_and_columns_changes_nothing() -> None:
    frame = drawn()
    turned = frame.sample(frac=1, random_state=1)[[*frame.columns[::-1]]]
    first, second = (
        eq.audit(f, label="y", probability="p", group="sex", site="where").document["people"] for f in (frame, turned)
    )
    for key in ("treated", "sites", "unknown"):
        assert json.dumps(first["sex"][key]) == json.dumps(second["sex"][key])


@pytest.mark.parametrize("how", [{}, {"sep": ";", "decimal": ","}, {"encoding": "utf-8-sig"}, {"sep": "\t"}])
def test_files_as_programs_write_them(tmp_path: Path, how: dict[str, Any]) -> None:
    path = written(drawn(), tmp_path, **how)
    told = {"decimal": ","} if "decimal" in how else {}
    from_file = eq.audit(path, label="y", probability="p", group="sex", **told)
    assert treated(from_file) == treated(eq.audit(drawn(), label="y", probability="p", group="sex"))


HOSTILE: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"label": "truth"}, ["Unknown column 'truth'", "sex, race"]),
    ({}, {"label": None}, ["--label COLUMN"]),
    ({}, {"probability": None}, ["--probability COLUMN or --prediction COLUMN"]),
    ({}, {"group": None}, ["--group COLUMN"]),
    ({}, {"group": "gender", "label": "truth"}, ["2 problems", "'gender'", "'truth'"]),
    ({"sex": "f"}, {}, ["column sex: everybody is 'f'"]),
    ({"sex": ["f", "F"] * 200}, {}, ["'f' and 'F' differ only in capital letters"]),
    ({"sex": [None] * 400}, {}, ["column sex: every cell is missing"]),
    (
        {"p": [1.5] * 3 + [-2] + [0.5] * 396},
        {},
        ["column p: 4 of 400 probabilities are outside [0, 1] (1.5 in row 1", "percent"],
    ),
    ({"p": ["high"] + ["0.5"] * 399}, {}, ["column p", "1 of 400 is no number ('high' in row 1)"]),
    ({"p": [np.nan] + [0.5] * 399}, {}, ["column p", "1 of 400 is missing"]),
    (
        {"y": ["a", "b", "c", "a"] * 100},
        {},
        ["3 classes (a, b, c)", "column p is the probability of one", "--positive CLASS"],
    ),
    ({"y": 1}, {}, ["column y: everybody is of class '1'"]),
    ({"y": ["1", None] * 200}, {}, ["column y: the label is missing in 200 of 400"]),
    ({"y": [0.25, 0.5] * 200}, {}, ["column y: the label is 0.25", "--task regression"]),
    ({}, {"positive": "sick"}, ["column y: positive: ", "sick"]),
    ({}, {"prediction": "p"}, ["named for two purposes"]),
    (
        {"pred": ["yes", "no"] * 200},
        {"probability": None, "prediction": "pred"},
        ["'yes', 'no' is no class of column y (0, 1)"],
    ),
    (
        {"pred": [None, 1] * 200},
        {"probability": None, "prediction": "pred"},
        ["column pred: the prediction is missing"],
    ),
    ({"where": [None, "a"] * 200}, {"site": "where"}, ["column where: the site is missing in 200"]),
    ({}, {"group": "p"}, ["named for two purposes"]),
    ({"income": np.arange(400) / 3}, {"group": "income"}, ["different numbers", "--group income:"]),
    ({}, {"threshold": 1.5}, ["threshold"]),
    ({}, {"least": 0}, ["least"]),
]


@pytest.mark.parametrize(("cells", "options", "said"), HOSTILE)
def test_what_cannot_be_audited_is_refused_in_the_users_words(cells: Any, options: Any, said: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        eq.audit(drawn(**cells), **{"label": "y", "probability": "p", "group": "sex", **options})
    for words in said:
        assert words in str(error.value)


@pytest.mark.parametrize("source", [{"y": [1]}, [1, 2], None, 3, "nowhere.csv", "people.txt", drawn()[:0]])
def test_what_is_no_table_is_refused(source: Any) -> None:
    with pytest.raises(ValueError, match=r"frame|table"):
        eq.audit(source, label="y", probability="p", group="sex")


def command(path: Path, page: Path) -> list[str]:
    """The arguments of an audit by sex."""
    columns = {"label": "y", "probability": "p", "group": "sex", "output": str(page)}
    return ["audit", str(path), *(part for name, value in columns.items() for part in (f"--{name}", value))]


def test_the_command(tmp_path: Path) -> None:
    path, page = written(drawn(), tmp_path), tmp_path / "a.html"
    given_ = [*command(path, page), "--group", "race"]
    shown = CliRunner().invoke(app, [*given_, "--site", "where"])
    assert shown.exit_code == 0, shown.output
    flat = " ".join(shown.output.split())
    for words in (
        "By sex: equal opportunity",
        "demographic parity",
        "Fairness by sex and race",
        "calibration gap",
        "Largest gap inside a site",
    ):
        assert words in flat
    text = page.read_text()
    assert "Inside every site by race" in text
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    document = json.loads(CliRunner().invoke(app, [*given_, "--json"]).stdout)
    expected = eq.audit(path, label="y", probability="p", group=["sex", "race"]).document
    assert document == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("frame", "how", "advice"),
    [
        (drawn(where=["Köln"] * 400), {"encoding": "latin-1"}, "--set encoding=latin-1"),
        (drawn(race=["NA", "SA"] * 200), {}, "--set not_missing=NA"),
    ],
)
def test_advice_works_as_it_is_printed(tmp_path: Path, frame: pd.DataFrame, how: dict[str, Any], advice: str) -> None:
    path = written(frame, tmp_path, **how)
    given_ = command(path, tmp_path / "a.html")
    if "NA" in frame["race"].tolist():  # a site called NA
        given_ += ["--site", "race"]
    refused = CliRunner().invoke(app, given_)
    assert refused.exit_code
    assert advice in str(refused.exception)
    assert not CliRunner().invoke(app, [*given_, *shlex.split(advice)]).exit_code


def predictions(path: Path, **columns: Any) -> Path:
    """A table of 60 predictions, in which these columns are others."""
    rng = np.random.default_rng(0)
    usual = {"y": rng.integers(0, 2, 60), "p": rng.uniform(0.1, 0.9, 60).round(3), "g": ["a", "b"] * 30}
    pd.DataFrame({**usual, **columns}).to_csv(path, index=False, sep=";")
    return path


def test_zeros_far_from_other_probabilities_are_probabilities(tmp_path: Path) -> None:
    scores = np.where(np.arange(60) % 3, np.linspace(0.6, 0.9, 60).round(3), 0)
    path = predictions(tmp_path / "p.csv", p=scores)
    assert eq.audit(str(path), label="y", probability="p", group="g", positive="1")


def test_a_percentage_is_no_probability(tmp_path: Path) -> None:
    path = predictions(tmp_path / "p.csv", p=[f"0.{k + 10}%" for k in range(60)])
    with pytest.raises(ValueError, match="column p: every probability has '%'"):
        eq.audit(str(path), label="y", probability="p", group="g", positive="1")


def test_bands_have_the_signs_of_the_table(tmp_path: Path) -> None:
    """1.250 is above 500, and 900,5 is a number."""
    path = predictions(tmp_path / "p.csv", p=["0,31", "0,72"] * 30, inc=["1.250", "300,5", "900,5"] * 20)
    columns = Columns(label="y", group="inc:500", decimal=",")
    table = read(str(path), columns, probability="p", positive="1")
    values = [table.attributes["inc"][code] for code in table.s[:3, 0]]
    assert values == [">= 500", "< 500", ">= 500"]
    path = predictions(tmp_path / "q.csv", inc=["1.250", "300", "900"] * 20)
    with pytest.raises(ValueError, match="column inc: more than one reading is possible"):
        eq.audit(str(path), label="y", probability="p", group="inc:500", positive="1")
