"""Which class is positive: how it is known, said, chosen and kept, from the command line, files, Python and between sites."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.federation.history import History
from equipoise.flower.settings import AppSettings
from equipoise.metrics.groups import NEGATIVE, POSITIVE, positive_class
from equipoise.report.provenance import commands, headers
from equipoise.runs.configuration import configure
from equipoise.runs.directory import federation
from helpers import in_one
from run_helpers import cache, equipoise, without_figures

__all__ = ["cache", "equipoise"]


@in_one(
    ("classes", "name"),
    [
        (("0", "1"), "1"),
        (("no", "yes"), "yes"),
        (("False", "True"), "True"),
        (("negative", "positive"), "positive"),
        (("case", "control"), "case"),  # the first of the alphabet
        (("Absent", "Present"), "Present"),
        (("-1", "1"), "1"),
        (("n", "Y"), "Y"),
    ],
)
def test_two_classes_whose_names_tell(classes: tuple[str, str], name: str) -> None:
    found = positive_class(None, classes)
    assert found is not None
    assert (found.name, found.why) == (name, "names")
    assert found.sentence == f"The positive class is {name}."


@in_one("classes", [("disease", "healthy"), ("<=50K", ">50K"), ("1", "2"), ("benign", "malignant")])
def test_two_classes_whose_names_do_not_tell(classes: tuple[str, str]) -> None:
    """The second counts, which is said with the words that choose the other."""
    found = positive_class(None, classes)
    assert found is not None
    assert (found.number, found.why) == (1, "assumed")
    assert "an assumption" in found.sentence
    assert f"positive={classes[0]!r}" in found.sentence
    other = positive_class(classes[0], classes)
    assert other is not None
    assert (other.number, other.why, other.sentence) == (0, "given", f"The positive class is {classes[0]}.")


@pytest.mark.parametrize("classes", [("healthy", "disease"), ("<=50K", ">50K"), ("it's", "not so")])
def test_the_advice_works_in_each_place(classes: tuple[str, str]) -> None:
    """Typed as it is printed: in the command line, and among the settings of a run between sites."""
    found = positive_class(None, classes)
    assert found is not None
    words = shlex.split(found.sentence.split("--positive ")[1].split(", in Python")[0])
    assert words == [classes[0]]
    (setting,) = shlex.split(found.sentence.split("between sites -c ")[1].removesuffix("."))
    assert AppSettings.of(tomllib.loads(setting)).positive == classes[0]


@in_one("engine", ["flower", "sequential"])
@in_one("chosen", ["healthy", "disease"])
def test_a_page_with_another_positive_class_says_it_everywhere(engine: str, chosen: str) -> None:
    config = {"method": "fedavg", "scenario": "own", "rounds": 1, "engine": engine, "positive": ""}
    assumed = positive_class(None, ("healthy", "disease"))
    assert assumed is not None
    meta = {"method": "fedavg", "classes": ["healthy", "disease"], "config": config, "header": ["x", assumed.sentence]}
    run = History([{"round": 0}], {**meta, "positive": chosen})
    assert headers([run]) == [("", ["x", f"The positive class is {chosen}."])]
    (again,) = commands([run])
    assert (f'positive="{chosen}"' if engine == "flower" else f"--positive {chosen}") in again
    assert headers([History([{"round": 0}], meta)]) == [("", ["x", assumed.sentence])]


def test_no_word_is_both() -> None:
    assert not NEGATIVE & POSITIVE


@given(st.lists(st.text(min_size=1, max_size=4), min_size=2, max_size=5, unique=True), st.data())
def test_any_class_can_be_chosen_by_its_name(classes: list[str], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(classes) - 1))
    found = positive_class(classes[k], classes)
    assert found is not None
    assert (found.number, found.name, found.why) == (k, classes[k], "given")
    assert positive_class(None, classes) is None or len(classes) == 2


def test_what_a_file_reads_as_a_number_is_the_class_of_that_text() -> None:
    assert positive_class(1000.0, ("1e3", "2e3")).number == 0  # type: ignore[union-attr]
    assert positive_class(True, ("false", "true")).number == 1  # type: ignore[union-attr]
    assert positive_class(7, ("007", "7")).number == 1  # type: ignore[union-attr]
    assert positive_class(7, ("007", "008")).number == 0  # type: ignore[union-attr]
    for wrong in (1000.0, 3, "healthi"):
        with pytest.raises(ValueError, match=r"positive: Unknown class .* All: 1e3, 1000"):
            positive_class(wrong, ("1e3", "1000"))


def flat(equipoise: Any, *arguments: Any, status: int = 0) -> str:
    """What a command says, in one line."""
    done = equipoise(*arguments)
    assert done.status == status, done.err
    return " ".join(f"{done.out} {done.err}".split())


def table(folder: Path, words: tuple[str, str] = ("disease", "healthy")) -> Path:
    draw = np.random.default_rng(0)
    rows = ["a,b,sex,label,client"]
    for k in range(240):
        sex, a = "fm"[k % 2], draw.normal() + 0.7 * (k % 2 == 0)
        label = words[int(a + 0.3 * draw.normal() < 0.6)]
        rows.append(f"{a:.3f},{draw.normal():.3f},{sex},{label},{'xyz'[k % 3]}")
    path = folder / "t.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_on_the_command_line(tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assumed and said; by an option, by the data's own, and in a file; kept in configuration, summary, page and model."""
    without_figures(monkeypatch)
    data, runs = table(tmp_path), tmp_path / "runs"
    base = ["--data", str(data), "--set", "group=sex", "--rounds", "1", "--runs", str(runs), "--name"]
    said = flat(equipoise, "run", *base, "assumed", "--no-report")
    assert "The positive class is healthy: an assumption" in " ".join(said.split())
    before = json.loads((runs / "assumed" / "summary.json").read_text())["group_fairness"]
    again = flat(
        equipoise, "run", *base, "assumed", "--positive", "disease"
    )  # no training depends on it: the finished run goes on
    assert "The positive class is disease." in again
    after = json.loads((runs / "assumed" / "summary.json").read_text())["group_fairness"]
    assert (before["classes"], after["classes"]) == ([1], [0])
    assert before["accuracy_gap"] == after["accuracy_gap"]
    assert before["groups"]["f"]["tpr"] == pytest.approx([100 - after["groups"]["f"]["fpr"][0]])
    assert "The positive class is disease." in (runs / "assumed" / "report.html").read_text()
    assert 'positive = "disease"' in (runs / "assumed" / "config.toml").read_text()
    flat(equipoise, "export", str(runs / "assumed"))
    from safetensors import safe_open

    with safe_open(runs / "assumed" / "models" / "global.safetensors", "pt") as file:
        about = file.metadata()
    assert (about["positive"], about["positive is"], about["classes"]) == ("disease", "given", '["disease", "healthy"]')

    of_data = flat(equipoise, "run", *base, "of-data", "--set", "positive=disease", "--no-report")
    assert "The positive class is disease." in of_data
    manifest = json.loads((runs / "of-data" / "manifest.json").read_text())
    assert manifest["data"]["positive"] == "disease"
    file_ = tmp_path / "run.toml"
    for text in ('positive = "disease"\n[set]\ngroup = "sex"\n', '[set]\ngroup = "sex"\npositive = "disease"\n'):
        file_.write_text(f'data = "t.csv"\nrounds = 1\n{text}')
        assert "The positive class is disease." in flat(
            equipoise, "run", "-c", str(file_), "--runs", str(runs), "--no-report"
        )
    assert "The positive class is disease." in flat(
        equipoise, "compare", "fedavg", "-c", str(file_), "--runs", str(runs), "--no-report"
    )
    page = flat(equipoise, "report", str(runs / "assumed"), "--positive", "healthy", "-o", str(tmp_path / "r.html"))
    assert "The positive class is healthy." in page


@pytest.mark.parametrize(
    "more",
    [["--positive", "diseas"], ["--set", "positive=diseas"], ["--positive", "healthy", "--set", "positive=disease"]],
)
def test_a_class_that_is_not_there(tmp_path: Path, equipoise: Any, more: list[str]) -> None:
    said = flat(
        equipoise,
        "run",
        "--data",
        str(table(tmp_path)),
        "--set",
        "group=sex",
        *more,
        "--runs",
        str(tmp_path / "r"),
        status=2,
    )
    assert "disease" in said
    assert "healthy" in said
    assert not (tmp_path / "r").exists()


def test_other_scenarios_have_it_too() -> None:
    """Of many classes one against the rest."""
    config = configure("fedavg", "digits", positive="3", measures="rates", scenario_options={"clients": 4})
    fed = federation(config)[0]
    assert "The positive class is 3, against all others." in fed.header
    with pytest.raises(ValueError, match="Unknown class '10'"):
        configure("fedavg", "digits", positive="10")


def test_in_python(tmp_path: Path) -> None:
    data = eq.scenario("own", data=table(tmp_path), group="sex", positive="disease")
    assert (data.classes, data.positive) == (("disease", "healthy"), "disease")
    about: dict[str, Any] = {"tests": data.tests, "measures": data.measures, "classes": data.classes}

    def net() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(2, 2)

    fed = eq.Federation(net(), data.clients, positive=data.positive, **about)
    fed.fit(1, directory=tmp_path / "run", progress=False)
    found = fed.history.group_fairness()
    assert found == History.from_run(tmp_path / "run").group_fairness()
    assert found is not None
    assert found["classes"] == [0]
    assert found == fed.history.group_fairness(positive=0) == fed.history.group_fairness(positive="disease")
    assert fed.history.group_fairness(positive="healthy") == fed.history.group_fairness(positive=1)
    compared = eq.compare(net(), data.clients, ["fedavg"], 1, rounds=1, progress=False, positive="disease", **about)
    assert "The positive class is disease." in compared["group_fairness"]["notes"]
    with pytest.raises(ValueError, match="Unknown class 'ill'"):
        eq.Federation(net(), data.clients, positive="ill", **about)
    with pytest.raises(ValueError, match="classes must have 2 different names"):
        eq.Federation(net(), data.clients, tests=data.tests, classes=["one"])
    with pytest.raises(ValueError, match="Unknown class 'ill'"):
        fed.history.group_fairness(positive="ill")


def test_between_sites(tmp_path: Path) -> None:
    assert AppSettings.of({"positive": ""}).positive is None
    assert AppSettings.of({"positive": "sick"}).config()["positive"] == "sick"
    assert AppSettings().table()["positive"] == ""
    data = eq.scenario("own", data=table(tmp_path), group="sex")
    from equipoise import flower

    fed = flower.in_process(
        torch.nn.Linear(2, 2), data.clients, tests=data.tests, measures=("rates",), names=data.client_names,
        classes=data.classes, positive="disease",
    )  # fmt: skip
    history = fed.fit(1, progress=False)
    assert history.positive is not None
    assert history.positive.name == "disease"
