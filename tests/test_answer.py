"""The answer of a report: a headline that the corrected tests support, in few words, and notices that are true."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from equipoise.federation.history import History
from equipoise.report import answer, render
from equipoise.report.statistics import Comparison
from test_regression_report import several as errors
from test_report import Page, made_up, several, unevaluated

pytestmark = pytest.mark.drawn
METHODS = ("fedavg", "afl", "fedheal", "qffl", "ditto")


def federation(seed: int) -> list[History]:
    """Runs of random methods that reach random accuracies: some differ from the first, some do not, some diverge."""
    random = np.random.default_rng(seed)
    methods, seeds = METHODS[: int(random.integers(2, 6))], int(random.integers(1, 6))
    groups = ["a", "b", "c", "d"][: int(random.integers(1, 5))]
    level = {method: 0.6 + random.choice([0, 0.1, -0.1]) * random.random() for method in methods}
    tilt = {method: random.choice([0.0, 0.05, 0.1]) for method in methods}
    runs = []
    for s in range(seeds):
        for method in methods:
            noise = 0.01 * random.standard_normal(len(groups))
            values = np.clip(level[method] - tilt[method] * np.arange(len(groups)) + noise, 0.02, 0.98)
            scores = {
                g: {"accuracy": round(float(a) * 500) / 500, "loss": 1.0, "n": 500}
                for g, a in zip(groups, values, strict=True)
            }
            runs.append(History([{"round": 0, "groups": scores}], {"method": method, "seed": s, "scenario": "toy"}))
    return runs


def holm(p: list[float]) -> list[float]:
    """Holm's correction, from its definition; NaN is no test."""
    order = sorted((value, place) for place, value in enumerate(p) if np.isfinite(value))
    corrected, before = [np.nan] * len(p), 0.0
    for rank, (value, place) in enumerate(order):
        before = max(before, min(1.0, (len(order) - rank) * value))
        corrected[place] = before
    return corrected


def shown(runs: list[History], statistic: Any) -> dict[str, float]:
    """The differences to the first method that Holm's correction shows at 5 %, computed from the records alone."""
    table: dict[str, list[float]] = {}
    for run in runs:
        values = [100 * score["accuracy"] for score in run.records[-1]["groups"].values()]
        table.setdefault(run.label, []).append(float(statistic(values)))
    first, *others = table
    means = {method: np.mean(values) for method, values in table.items()}
    ahead = (min if statistic is spread else max)(means, key=lambda method: means[method])
    pairs = dict.fromkeys((method, first) for method in others)
    pairs |= dict.fromkeys((ahead, method) for method in table if method != ahead and (method, ahead) not in pairs)
    p = []
    for a, b in pairs:
        difference = np.subtract(table[a], table[b])
        p.append(
            stats.ttest_1samp(difference, 0).pvalue if len(difference) > 1 and difference.std() > 1e-12 else np.nan
        )
    return {
        a: float(np.mean(np.subtract(table[a], table[b])))
        for (a, b), q in zip(pairs, holm(p), strict=True)
        if b == first and q < 0.05
    }


def spread(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


VERBS = {
    r"(?:raises|and) mean accuracy by ([\d.]+)": (np.mean, 1),
    r"costs ([\d.]+) points of mean accuracy": (np.mean, -1),
    r"raises the worst group(?:, \w+,)? by ([\d.]+)": (np.min, 1),
    r"lowers the worst group(?:, \w+,)? by ([\d.]+)": (np.min, -1),
    r"(?:narrows) the spread over groups by ([\d.]+)": (spread, -1),
    r"widens the spread over groups by ([\d.]+)": (spread, 1),
}


@pytest.mark.share(5)
@pytest.mark.parametrize("seed", range(80))
def test_every_part_of_a_headline_is_a_corrected_test(seed: int) -> None:
    runs = federation(seed)
    found = Comparison.of(runs)
    text = answer.headline(found.document)
    assert len(text.split()) <= answer.WORDS
    assert not set("()[]{}") & set(text)
    if len(found["seeds"]) == 1:
        assert text.startswith(("With this seed, ", "No method"))
        return
    by_statistic = {statistic: shown(runs, statistic) for statistic in (np.mean, np.min, spread)}
    if len(runs[0].groups) == 1:
        by_statistic = {np.mean: by_statistic[np.mean]}
    differing = set().union(*by_statistic.values())
    if not differing:
        assert "shown to differ" in text
        return
    first = found["methods"][0]["method"]
    if "is shown to be better than" in text.lower():
        better = [
            by_statistic.get(np.mean, {}),
            by_statistic.get(np.min, {}),
            {m: -d for m, d in by_statistic.get(spread, {}).items()},
        ]
        assert all(d < 0 for differences in better for d in differences.values())
    names = "|".join(map(re.escape, sorted({*METHODS}, key=len, reverse=True)))
    label, claimed = "", set()
    for word in re.finditer(rf"(?P<name>\b(?:{names})\b)|" + "|".join(f"(?:{verb})" for verb in VERBS), text):
        if word["name"]:
            label = word["name"]
            continue
        for verb, (statistic, sign) in VERBS.items():
            if m := re.fullmatch(verb, word[0]):
                claimed.add(label)
                assert sign * by_statistic[statistic][label] == pytest.approx(float(m[1]), abs=0.0501)
    assert claimed or "is shown to be better than" in text
    assert claimed <= differing
    leading = text.split()[0]
    nobody = "no other method is shown to differ" in text
    assert nobody == ("shown to be better" not in text and differing == {leading} and len(found["methods"]) > 2)
    assert all(method not in text for method in {*METHODS} - differing - {first})


def test_the_random_federations_have_every_kind_of_headline() -> None:
    texts = [answer.headline(Comparison.of(federation(seed)).document) for seed in range(80)]
    for part in (
        "narrows",
        "costs",
        "No method is shown to differ",
        "o method is shown to be better",
        "With this seed",
        "no other method",
        "differ",
    ):
        assert any(part in text for text in texts), part


def test_one_method_says_what_it_reaches() -> None:
    text = answer.headline(Comparison.of([made_up()]).document)
    assert (
        re.fullmatch(r"fedavg reaches [\d.]+\u00a0% on average over 3 groups, and [\d.]+\u00a0% on the worst\.", text)
        or "on average over" in text
    )


def test_errors_are_lowered_not_raised() -> None:
    found = Comparison.of(errors())
    text = answer.headline(found.document)
    for panel in answer.panels(found.document):
        for effect in panel.effects:
            if effect.better is not None and effect.test:
                assert effect.better == ((effect.test["difference"] > 0) == (panel.better == "higher"))
    assert "points" not in text


def test_failed_methods_are_in_no_claim() -> None:
    runs = several(3)
    for run in runs:
        if run.label == "afl":
            for record in run.records:
                record["losses"] = [float("nan")]
                for score in record["groups"].values():
                    score["loss"] = None
    found = Comparison.of(runs)
    if any(method["failed"] for method in found["methods"]):
        assert "afl" not in answer.headline(found.document)
        assert any("afl" in note for note in answer.notices(found.document))


def test_a_page_begins_with_the_answer_in_few_words() -> None:
    for runs in (several(3), several(1), errors(), [made_up()], [unevaluated()], federation(3)):
        html = render(runs)
        open_part = re.sub(r"<details.*", "", html, count=1, flags=re.DOTALL)
        text = Page(html[: html.index("<details")] + "</main></body></html>" if "<details" in html else html).text
        assert len(text.split()) <= 900
        assert open_part.index('class="headline"') < open_part.index("</main>") if "</main>" in open_part else True
        headline = re.search(r'class="headline">(.*?)</p>', html)
        assert headline is not None
        assert len(headline[1].split()) <= 25
        for paragraph in re.findall(r"<(?:p|li)[ >](.*?)</(?:p|li)>", open_part, flags=re.DOTALL):
            assert len(re.findall(r"\d[\d.,]*", re.sub(r"<[^>]*>|95&nbsp;%", "", paragraph))) <= 4, paragraph
        notices = re.findall(r"<li>(.*?)</li>", open_part)
        assert len(notices) <= answer.NOTICES
        assert all(len(sentence.split()) <= 25 for notice in notices for sentence in re.split(r"(?<=[.:;]) ", notice))


def test_the_parts_come_in_the_order_of_questions() -> None:
    html = render(several(3))
    names = ["who", "costs", "training", "statistics"]
    places = [html.index(f'<details id="{name}"') for name in names]
    assert all(a < b for a, b in pairwise(places))


def test_many_methods_show_the_first_and_those_that_serve_the_worst_best() -> None:
    runs = [made_up(f"m{k:02}", seed, lift=k / 30) for seed in range(2) for k in range(20)]
    shown_panels = answer.few(answer.panels(Comparison.of(runs).document), 8)
    assert all(len(panel.effects) == 8 for panel in shown_panels)
    assert [effect.method for effect in shown_panels[0].effects] == ["m00", *(f"m{k}" for k in range(13, 20))]
    assert "m05" in render(runs)


def clients(method: str, accuracy: float, failed: bool = False) -> History:
    """A run of six clients with tests of their own, whose worst is at half of the mean."""
    each = [accuracy / 2, *[accuracy] * 5]
    tested = {"all": {"accuracy": float(np.mean(each)), "loss": math.nan if failed else 1.0, "n": 600}}
    record = {"round": 0, "groups": tested, "clients": {"accuracy": each}, "losses": [math.nan if failed else 1.0] * 6}
    meta = {"method": method, "scenario": "toy", "client_names": [*"abcdef"], "client_groups": [""] * 6}
    return History([record], {**meta, "client_tests": True})


def test_the_worst_clients_of_the_headline_are_those_of_its_method() -> None:
    found = Comparison.of([clients("fedavg", 0.1, failed=True), clients("afl", 0.8)])
    assert [bool(method["failed"]) for method in found["methods"]] == [True, False]
    rows = [{**row, "bound": "lower" if row["method"] == "fedavg" else ""} for row in found["methods"]]
    alone = answer.headline({**found.document, "methods": rows})
    assert alone == "afl reaches 73.33\u00a0% on average, and 40.00\u00a0% with its worst clients."


def test_without_groups_the_best_is_not_that_for_the_worst_group() -> None:
    runs = []
    for s in range(3):
        made = clients("fedavg", 0.1, failed=True), clients("afl", 0.8 + s / 99), clients("qffl", 0.6 + s / 98)
        runs += [History(run.records, {**run.meta, "seed": s}) for run in made]
    text = answer.headline(Comparison.of(runs).document)
    assert text == "fedavg failed, and afl is the best on average."


def test_where_the_first_failed_and_two_cannot_be_distinguished_none_is_named() -> None:
    runs = []
    for s in range(3):
        swap = 0.1 * (s - 1)  # now one is better, now the other
        made = clients("fedavg", 0.1, failed=True), clients("afl", 0.7 + swap), clients("qffl", 0.7 - swap)
        runs += [History(run.records, {**run.meta, "seed": s}) for run in made]
    text = answer.headline(Comparison.of(runs).document)
    assert text == "fedavg failed, and no other method is shown to be the best on average."


def decided(method: str, seed: int, right: dict[str, list[int]]) -> History:
    """A run whose model is right about so many of 50 samples of each of two classes, by group."""
    groups = {}
    for group, rights in right.items():
        chosen = [rights[0] + 50 - rights[1], rights[1] + 50 - rights[0]]
        rates = {"true": [50, 50], "right": rights, "chosen": chosen}
        groups[group] = {"accuracy": sum(rights) / 100, "loss": 0.6, "n": 100, "rates": rates}
    return History([{"round": 0, "groups": groups}], {"method": method, "seed": seed, "scenario": "toy"})


LEARNED, GUESSED = [45, 44], [26, 25]


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([{"a": LEARNED, "b": GUESSED}] * 2, "On b no method is better than guessing."),
        ([{"a": LEARNED, "b": LEARNED}, {"a": LEARNED, "b": GUESSED}], "On b afl is no better than guessing."),
        ([{"a": LEARNED, "b": GUESSED}], "On b the model is no better than guessing."),
        (
            [{"a": LEARNED, "b": GUESSED, "c": LEARNED}, {"a": LEARNED, "b": GUESSED, "c": GUESSED}],
            "On b no method is better than guessing; on c afl is no better than guessing.",
        ),
        ([{"a": LEARNED, "b": LEARNED}] * 2, None),
    ],
)
def test_a_group_at_the_level_of_chance_is_named(groups: list[dict[str, list[int]]], sentence: str | None) -> None:
    methods = ("fedavg", "afl")
    runs = [decided(m, s, right) for s in range(3) for m, right in zip(methods, groups, strict=False)]
    found = [text for text in answer.warnings(Comparison.of(runs).document) if "guessing" in text]
    assert found == [sentence] * bool(sentence)


def test_a_method_that_guesses_with_one_seed_only_is_not_named() -> None:
    runs = [decided("fedavg", s, {"a": LEARNED, "b": GUESSED if s else LEARNED}) for s in range(3)]
    assert not any("guessing" in text for text in answer.warnings(Comparison.of(runs).document))


@pytest.mark.parametrize("useless", ["", "its own test says so"])
def test_a_group_is_judged_by_the_test_of_a_users_task_as_the_whole_is(useless: str) -> None:
    runs = [decided("fedavg", s, {"a": LEARNED, "b": LEARNED if useless else GUESSED}) for s in range(3)]
    for run in runs:
        for name, scores in run.records[0]["groups"].items():
            scores["useless"] = useless if name == "b" else ""
    found = [text for text in answer.warnings(Comparison.of(runs).document) if "guessing" in text]
    assert found == ["On b the model is no better than guessing."] * bool(useless)


def test_of_numbers_that_read_the_same_no_method_is_the_first() -> None:
    runs = [decided(m, s, {"a": LEARNED, "b": [40 + s, 40]}) for s in range(2) for m in ("fedavg", "afl")]
    page = render(runs)
    assert "has the highest average" not in page
    assert "ends with the highest average" not in page
    runs = [decided(m, s, {"a": LEARNED, "b": [40 + (m == "afl"), 40]}) for s in range(2) for m in ("fedavg", "afl")]
    assert "afl has the highest average" in render(runs)


@pytest.mark.parametrize("others", [1, 5])
def test_an_uncorrected_interval_beside_a_corrected_test_is_explained(others: int) -> None:
    """A p-value of .035 is below .05 alone, and is not where five methods are compared with the first."""
    runs = [decided("fedavg", s, {"a": [40, 40]}) for s in range(4)]
    runs += [decided(f"m{k}", s, {"a": [40 + n, 40]}) for k in range(others) for s, n in enumerate((2, 1, 3, 1))]
    document = Comparison.of(runs).document
    panels = answer.panels(document)
    (difference,) = {effect.test["low"] for effect in panels[0].effects if effect.test}
    assert difference is not None
    assert difference > 0
    assert ("The interval of a difference is not corrected" in answer.legend(document, panels)) == (others == 5)
