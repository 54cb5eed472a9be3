"""The report for a committee says in words what the numbers are, and no more than they show; two pages, on any screen."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from scipy.stats import fisher_exact

import browser
import equipoise as eq
from equipoise.cli.init import read as read_file
from equipoise.federation.history import History
from equipoise.metrics.intervals import wilson
from equipoise.metrics.thresholds import Aim
from equipoise.report import committee, provenance
from equipoise.report.statistics import Comparison
from equipoise.runs import directory as runs
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

ABOUT = {
    "title": "Who is seen <first> & why",
    "purpose": "Which patients are seen first. A doctor sees all.",
    "author": "A. Example",
    "contact": "a@example.org",
}
SECTIONS = ["missed", "purpose", "people", "threshold", "uncertain", "not-looked-at", "made", "contact"]


def text_of(page: str) -> str:
    body = re.sub(r"<script>.*?</script>", "", page[page.index("<body") :], flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def settings(path: Path, **more: Any) -> Path:
    """A table of 500 people at three hospitals, of whom few are women, and the settings of a run on it."""
    rng, rows = np.random.default_rng(1), ["age,pressure,sex,hospital,ill"]
    for k in range(500):
        age, woman = rng.normal(60, 9), rng.random() < 0.35
        ill = rng.random() < 1 / (1 + np.exp(-(age - 60) / 5 + woman))
        rows.append(
            f"{age:.1f},{rng.normal(130, 15):.0f},{('men', 'women')[woman]},{'abc'[k % 3]},{('no', 'yes')[int(ill)]}"
        )
    (path / "t.csv").write_text("\n".join(rows) + "\n")
    table = {"data": "t.csv", "rounds": 2, "validation": 0.3, "report": ABOUT, **more}
    table["set"] = {"label": "ill", "client": "hospital", "group": "sex"} | more.get("set", {})
    (path / "s.toml").write_text(tomli_w.dumps({k: v for k, v in table.items() if v is not None}))
    return path / "s.toml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("committee")


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> Path:
    """A run with a threshold, made once."""
    monkeypatch.chdir(folder)
    if not (folder / "runs/r").exists():
        assert equipoise("run", "--config", settings(folder), "--name", "r", "--no-report").status == 0
        assert equipoise("threshold", "runs/r", "--sensitivity", 0.9).status == 0
    return folder / "runs/r"


def test_with_a_threshold(run: Path, equipoise: Any) -> None:
    assert equipoise("report", run, "--for", "committee", "--output", "c.html").status == 0
    page = Path("c.html").read_text()
    assert re.findall(r'<section id="([^"]+)"', page) == SECTIONS
    text, chosen = text_of(page), History.from_run(run).threshold
    assert chosen is not None
    for words in ABOUT.values():
        assert words in text
    women = next(d for d in chosen["divisions"] if d["by"] == "sex")["groups"]["women"]
    share = women["sensitivity"]
    assert share["value"] is not None
    missed = f"{100 - 100 * share['value']:.0f} ({100 - 100 * share['high']:.0f} to {100 - 100 * share['low']:.0f})"  # type: ignore[operator]
    assert f"women {women['n']} {women['of_class']} {missed}" in text
    assert f"Threshold {chosen['threshold']:.4g}: class" in text
    assert "By site" in text
    assert "a sensitivity of at least 0.9" in text
    assert "People by anything but sex." in text
    assert "One seed" in text
    assert "It uses 2 columns: age, pressure." in text
    assert not re.search(r"\bnan\b|None|\bdict\b|\{|\}", text.replace("None was", ""))


def test_sentences_of_this_page_are_short(run: Path) -> None:
    page = committee.render([History.from_run(run)])
    for part in re.findall(r"<(?:p|li)>(.*?)</(?:p|li)>", page, flags=re.S):
        for sentence in re.split(r"(?<=[.:;]) ", text_of(f"<body>{part}")):
            assert len(sentence.split()) <= 40, sentence


def test_without_a_threshold(run: Path) -> None:
    history = History.from_run(run)
    bare = replace(history, meta={k: v for k, v in history.meta.items() if k != "threshold"})  # type: ignore[arg-type]
    text = text_of(committee.render([bare]))
    assert "None was chosen: each model predicts the more probable class." in text
    assert "Whether the probabilities are right, and other thresholds." in text
    assert "missed of 100" in text
    counts = history.records[-1]["groups"]["women"]["rates"]
    missed = 100 - 100 * counts["right"][1] / counts["true"][1]
    assert f"women {history.sizes['women']} {counts['true'][1]} {missed:.0f} (" in text


def test_of_another_round_it_is_no_threshold(run: Path) -> None:
    history = History.from_run(run)
    assert history.threshold is not None
    shorter = replace(history, records=history.records[:1])
    assert shorter.threshold is None
    assert "None was chosen" in text_of(committee.render([shorter]))


def test_several_runs(run: Path) -> None:
    history = History.from_run(run)
    other = replace(history, meta={**history.meta, "label": "other"})
    text = text_of(committee.render([history, other]))
    assert "fedavg, missed of 100" in text
    assert "other, false alarms of 100" in text
    assert "A report of a single run shows its threshold." in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_has_no_rates(seeds: int) -> None:
    """Runs of an embedded scenario with ten classes: accuracies by test set, and nothing that was not measured."""
    records = [
        {"round": 0, "ids": [0, 1], "groups": {"a": {"accuracy": 0.75, "n": 40}, "b": {"accuracy": 0.5, "n": 4}}}
    ]
    every = [
        eq.History(tuple(records), {"method": "fedavg", "seed": k, "classes": list("0123456789"), "least_group": 10})  # type: ignore[arg-type]
        for k in range(seeds)
    ]
    text = text_of(committee.render(every))
    assert "75.00" in text
    assert "50.00" not in text
    assert "fewer than 10 people, so nothing is shown about them here: b." in text
    assert (
        "Not stated. A committee needs it: write purpose in a table [report] of a file, and add --about FILE.toml"
        in text
    )
    assert "Not stated: author and contact." in text
    assert "Ask me." in text_of(committee.render(every, {"contact": "Ask me"}))


def test_numbers_to_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path, task="regression(unit=years)", set={"label": "age"}, report={}, validation=0.0)
    assert equipoise("run", "--config", path, "--name", "r", "--no-report").status == 0
    text = text_of(committee.render([History.from_run(tmp_path / "runs/r")]))
    assert "It predicts a number, the column age in years." in text
    assert "None: the model predicts a number, and decides nothing." in text
    assert "missed" not in text.lower()
    assert "RMSE (years)" in text


def group(of_class: int, sensitivity: float) -> Any:
    low, high = wilson(sensitivity, of_class)
    return {"of_class": of_class, "sensitivity": {"value": sensitivity, "low": low, "high": high}}


def missed(*groups: tuple[int, int]) -> list[Any]:
    return [group(n, 1 - k / n) for k, n in groups]


def test_what_chance_explains() -> None:
    """A permutation test of all groups, however small, and Newcombe's interval of two that does not say otherwise."""
    tell = committee._spread
    assert "may be chance" in tell([group(100, 0.90), group(100, 0.88), group(100, 0.86)])
    assert "more than chance" in tell([group(1000, 0.90), group(1000, 0.80), group(1000, 0.86)])
    assert "more than chance" in tell([group(1000, 0.90), group(1000, 0.80), group(10, 1.0)])
    assert "more than chance" in tell(missed((11, 37), (2, 86), (3, 60)))
    assert "may be chance" in tell(missed((1, 2), (0, 2), (0, 2)))
    assert "So few cases" in tell([group(100, 1.0), group(100, 1.0), group(100, 1.0)])
    low, high = newcombe(70, 80)
    said = committee._difference(group(100, 0.7), group(100, 0.8))
    assert f"10 points ({low:.0f} to {high:.0f}), which may be chance".replace("-", "−") in said


@pytest.mark.parametrize(
    "counts", [((7, 47), (8, 139)), ((11, 37), (2, 86)), ((5, 10), (0, 10)), ((4, 10), (0, 10)), ((3, 40), (3, 40))]
)
def test_two_groups_are_judged_as_fisher_does_and_the_interval_says_the_same(counts: Any) -> None:
    (k, n), (i, m) = counts
    said, chance = committee._difference(*missed(*counts)), fisher_exact([[k, n - k], [i, m - i]]).pvalue
    (low,) = re.findall(r"\((\S+) to", said)
    assert ("more than chance" in said) == (chance < 0.05) == (low not in ("0", "−0") and not low.startswith("−"))


def test_a_method_that_decides_by_group(run: Path) -> None:
    history = History.from_run(run)
    meta = {k: v for k, v in history.meta.items() if k != "threshold"}
    decided = replace(history, meta=meta | {"decides": "sex*age", "label": "t"})  # type: ignore[arg-type]
    text = text_of(committee.render([decided]))
    assert "The method t decides by sex and age: its model does not always predict the more probable class" in text
    assert "A threshold by sex and age uses sex and age of each person at prediction" in text
    assert "None was chosen" not in text
    several = text_of(committee.render([decided, replace(history, meta=meta)]))  # type: ignore[arg-type]
    assert "The method t decides by sex and age" in several
    assert "None was chosen: each other model predicts the more probable class." in several
    own = text_of(committee.render([replace(decided, meta={**decided.meta, "decides": ""})]))
    assert "The method t decides: its model" in own
    assert "disparate treatment" not in own


def test_the_report_of_a_run_that_decides_by_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path, method="fedavg+thresholds", validation=0.0)
    assert equipoise("run", "--config", path, "--name", "r", "--no-report").status == 0
    text = text_of(committee.render([History.from_run(tmp_path / "runs/r")]))
    assert "The method fedavg+thresholds decides by sex: its model" in text
    assert "disparate treatment" in text
    assert "None was chosen" not in text


def test_sites_whose_counts_are_hidden_are_in_the_sentence(run: Path) -> None:
    """As in the table: the worst site is named though few there are of the other class, and a site without a rate is, too."""
    history = History.from_run(run)
    chosen = history.threshold
    assert chosen is not None
    nothing = {"value": None, "low": None, "high": None}
    shown = {**chosen["divisions"][0]["groups"]["men"], **group(40, 0.95), "n": 90, "specificity": nothing}
    sites: Any = {
        "East": {**shown, "of_class": None, "sensitivity": nothing, "withheld": True},
        "North": shown,
        "South": shown | group(30, 0.90),
        "West": {**shown, **group(10, 0.8), "n": 17, "of_class": None},
    }
    by_site: Any = {**chosen, "divisions": [{"by": "client", "groups": sites}]}
    (text,) = list(committee._sentences(by_site))[1:]
    low, high = wilson(0.8, 10)
    assert f"the most are missed of West, 20 ({100 - 100 * high:.0f} to {100 - 100 * low:.0f}) of 100, and" in text
    assert "the fewest of North, 5" in text
    assert "judged without West, of which it is not shown how many are of class yes. Of East no rate is shown" in text
    (point,) = [point for point in committee._uncertain(Comparison.of([history]), by_site) if "fewest people" in point]
    assert "at most 17:" in point
    many: Any = {"by": "client", "groups": {"East": sites["East"], **{f"s{k}": shown for k in range(12)}}}
    assert "East" not in dict(committee._threshold_grid(many, chosen).rows)
    assert committee._cut(many["groups"]) == ": the worst 12 of 13"


@pytest.mark.parametrize("aim", [Aim("sensitivity", 0.9), Aim("specificity", 0.8), Aim("cost", 3), Aim("youden")])
def test_what_was_wanted_of_the_threshold_is_stated(run: Path, aim: Aim) -> None:
    history = History.from_run(run)
    chosen: Any = {**(history.threshold or {}), "rule": str(aim), "aim": {"kind": aim.kind, "value": aim.value}}
    text = " ".join(committee._uncertain(Comparison.of([history]), chosen))
    assert f"was chosen for {aim}, on other rows than those of the table" in text
    assert "rate is reached" not in text


def test_how_settings_were_chosen_is_in_plain_words(run: Path) -> None:
    """Of a page for researchers it is in draws and rounds."""
    history = History.from_run(run)
    told: Any = {"by": "mean", "draws": 4, "validation": 0.2, "rounds": 8, "seconds": 3.0, "trained": 32, "runs": 4}
    tuned, other, tested = (
        replace(history, meta={**history.meta, "label": label, **more})
        for label, more in (
            ("fedavg", {"tuned": told | {"settings": {}}}),
            ("b", {}),
            ("c", {"tuned": told | {"settings": {}, "by": "oracle"}}),
        )
    )
    text = text_of(committee.render([tuned]))
    assert "The settings of fedavg were chosen among 4 tried, on 20 % of the training rows, held out for that." in text
    assert not re.search(r"\bdraws?\b|Scores are|Choosing cost", text)
    text = text_of(committee.render([tuned, other, tested]))
    assert "The settings of b were taken as given, which may favour a method." in text
    assert "The settings of c were chosen among 4 tried for each, on the test rows themselves" in text
    assert "The settings of" not in text_of(committee.render([history]))
    assert "--tune" not in text_of(committee.render([history, other]))


def newcombe(a: int, b: int) -> tuple[float, float]:
    """Of b - a in 100 samples each, by statsmodels' formula of method 10, in points."""
    (l1, u1), (l2, u2) = (wilson(k / 100, 100) for k in (a, b))
    d = (b - a) / 100
    low = d - ((b / 100 - l2) ** 2 + (u1 - a / 100) ** 2) ** 0.5
    return 100 * low, 100 * (d + ((u2 - b / 100) ** 2 + (a / 100 - l1) ** 2) ** 0.5)


# the settings
def test_what_reports_say_is_no_part_of_a_run(run: Path, equipoise: Any) -> None:
    before = (run / "metrics.jsonl").read_text()
    config = runs.load(run)
    assert config.report == ABOUT
    assert "report" not in config.key()
    assert runs.identity(config) == runs.identity(replace(config, report=None))
    path = settings(run.parents[1], report={**ABOUT, "contact": "someone else"})
    assert equipoise("run", "--config", path, "--name", "r", "--no-report").status == 0
    assert (run / "metrics.jsonl").read_text() == before
    history = History.from_run(run)
    assert "someone else" in text_of(committee.render([history]))
    common, differing = provenance.settings({"fedavg": [history]})
    assert not any(name.startswith("report") for name, _ in [*common, *differing])
    assert equipoise("run", "--config", settings(run.parents[1]), "--name", "r", "--no-report").status == 0


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"titel": "x"}, r"s\.toml: Unknown field of \[report\] 'titel'\. Did you mean 'title'"),
        ({"title": 3}, r"s\.toml: \[report\] title must be text in quotes; found 3"),
        ("words", r"report must be a table, \[report\]; found 'words'"),
    ],
)
def test_a_table_that_is_wrong(tmp_path: Path, report: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_file(settings(tmp_path, report=report))


def test_init_shows_the_table(tmp_path: Path, equipoise: Any) -> None:
    assert equipoise("init", "--output", tmp_path / "e.toml").status == 0
    text = (tmp_path / "e.toml").read_text()
    assert read_file(tmp_path / "e.toml").get("report", {}) == {}
    (tmp_path / "f.toml").write_text(text.replace("# contact =", "contact ="))
    assert read_file(tmp_path / "f.toml")["report"] == {"contact": "name@hospital.example"}


def test_who_reads_it(run: Path, equipoise: Any) -> None:
    assert "committee" in equipoise("report", run, "--for", "ministers").err
    assert "Leave it out" in equipoise("report", run, "--for", "committee", "--figures").err


def test_words_of_another_file(run: Path, tmp_path: Path, equipoise: Any) -> None:
    words = tmp_path / "w.toml"
    words.write_text('[report]\nauthor = "B. Other"\n')
    done = equipoise("report", run, "--for", "committee", "--about", words, "--output", tmp_path / "c.html")
    assert done.status == 0, done.err
    text = text_of((tmp_path / "c.html").read_text())
    assert "B. Other" in text
    assert ABOUT["purpose"] in text
    assert "--about has no effect without --for committee" in equipoise("report", run, "--about", words).err
    words.write_text("[set]\n")
    assert "has no table [report] with title" in equipoise("report", run, "--for", "committee", "--about", words).err
    words.write_text('[report]\nowner = "x"\n')
    assert "Unknown field of [report] 'owner'" in equipoise("report", run, "--for", "committee", "--about", words).err
    missing = equipoise("report", run, "--for", "committee", "--about", tmp_path / "none.toml").err
    assert "no TOML file that can be read" in missing


def test_a_run_between_sites(run: Path) -> None:
    history = History.from_run(run)
    meta = {k: v for k, v in history.meta.items() if k not in ("data", "threshold", "scenario")}
    config = {k: v for k, v in history.meta["config"].items() if k not in ("data", "scenario", "report")}
    deployed = replace(history, meta=meta | {"config": {**config, "engine": "flower"}})  # type: ignore[arg-type]
    text = text_of(committee.render([deployed]))
    assert "fedavg on 3 sites" in text
    assert "The 3 sites kept their rows, and sent models or sums to a server." in text
    assert "Sites keep their rows, on which one could be chosen." in text
    assert "simulation" not in text
    bare = {k: v for k, v in deployed.meta.items() if k != "attributes"}
    text = text_of(committee.render([replace(deployed, meta=bare)]))  # type: ignore[arg-type]
    assert "sites send the server no numbers by sex, age or origin" in text
    assert "the rows say nothing" not in text


def test_groups_that_are_numbers_and_a_column_that_tells_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    """Groups are called sex 0 and sex 1 wherever they stand, and a leak is said once, on the terminal, too."""
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    coded = [line.replace(",women,", ",1,").replace(",men,", ",0,") for line in lines[1:]]
    told = [f"{line},{'sick' if line.endswith('yes') else 'fine'}" for line in coded]
    (tmp_path / "t.csv").write_text("\n".join([f"{lines[0]},diagnosis", *told]) + "\n")
    done = equipoise("run", "--config", path, "--name", "r", "--no-report")
    assert done.status == 0, done.err
    assert " ".join(done.out.split()).count("diagnosis tells the class") == 1
    for chosen in ((), ("--sensitivity", 0.9), ("--sensitivity", 0.9, "--by-group")):
        if chosen:
            assert equipoise("threshold", "runs/r", *chosen).status == 0
        text = text_of(committee.render([History.from_run(tmp_path / "runs/r")]))
        assert text.count("diagnosis tells the class") == 1
        assert "group 1" not in text
        assert "group 0" not in text
        assert re.search(r"had not seen: \d+ of sex 0, \d+ of sex 1", text)
        assert re.search(r"sex 0 \d+ \d+ \d+ \(", text)
        if chosen:
            assert re.search(r"the most are missed of sex [01], .* and the fewest of sex [01]", text)
            assert re.search(r"the most for (sex [01]|site [abc]), by", text)
        else:
            assert re.search(r"the lowest is sex [01] at", text)
        assert bool(re.search(r"0\.\d+ for sex 0, 0\.\d+ for sex 1", text)) == ("--by-group" in chosen)


@browser.needs_chromium
@pytest.mark.slow
def test_on_any_screen_and_on_paper(run: Path, tmp_path: Path) -> None:
    page = committee.write([History.from_run(run)], tmp_path / "c.html")
    for width in (1200, 390):
        for look in ((), (browser.DARK,)):
            assert browser.measured(page, "page.documentElement.scrollWidth", width, *look) <= width
    assert browser.printed(page, tmp_path / "c.pdf") <= 2
