"""Thresholds are chosen on validation rows, by an aim; what they do is measured by group on test rows, with intervals."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score

import equipoise as eq
from equipoise.federation.history import History
from equipoise.metrics.calibration import (
    Recalibration,
    auc,
    calibration,
    histogram,
    reliability,
    roc,
)
from equipoise.metrics.intervals import wilson
from equipoise.metrics.thresholds import CERTAIN, Aim, choose, decided
from equipoise.records.directory import read
from equipoise.records.threshold import masked
from equipoise.report import html, thresholds as shown
from equipoise.system.seals import open_json, sealed_json, typed
from run_helpers import cache, equipoise

pytestmark = pytest.mark.drawn
__all__ = ["cache", "equipoise"]

SAMPLES = st.lists(
    st.tuples(st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.25, 0.5, 1.0])), st.booleans()),
    min_size=2,
    max_size=40,
).filter(lambda rows: len({y for _, y in rows}) == 2)
AIMS = st.one_of(
    st.builds(Aim, st.sampled_from(["sensitivity", "specificity"]), st.sampled_from([0.1, 1 / 3, 0.5, 0.9, 1.0])),
    st.builds(Aim, st.just("cost"), st.sampled_from([0.2, 1.0, 5.0])),
    st.just(Aim("youden")),
)


def arrays(rows: list[tuple[float, bool]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array([p for p, _ in rows]), np.array([y for _, y in rows])


# choosing
@given(SAMPLES, AIMS)
def test_no_threshold_does_better(rows: list[tuple[float, bool]], aim: Aim) -> None:
    """Against every threshold that there is, tried one after the other."""
    p, y = arrays(rows)

    def counts(t: float) -> tuple[int, int]:
        return int((y & (p >= t)).sum()), int((~y & (p < t)).sum())

    P, N = int(y.sum()), int((~y).sum())
    t = choose(aim, p, y)
    tp, tn = counts(t)
    for every in (*p, CERTAIN):
        other_tp, other_tn = counts(every)
        if aim.kind == "sensitivity":
            assert tp >= aim.value * P - 1e-9
            assert other_tp < aim.value * P - 1e-9 or other_tn <= tn
        elif aim.kind == "specificity":
            assert tn >= aim.value * N - 1e-9
            assert other_tn < aim.value * N - 1e-9 or other_tp <= tp
        elif aim.kind == "cost":
            assert aim.value * (P - tp) + N - tn <= aim.value * (P - other_tp) + N - other_tn + 1e-9
        else:
            assert tp / P + tn / N >= other_tp / P + other_tn / N - 1e-9
    assert (decided(p.astype(np.float32), t) == decided(p, t)).all()
    assert (p.astype(np.float32) >= np.float32(t)).tolist() == decided(p, t).tolist()  # in single precision, too


def test_by_hand() -> None:
    p, y = [0.1, 0.2, 0.4, 0.6, 0.8, 0.9], [0, 0, 1, 0, 1, 1]
    assert choose(Aim("sensitivity", 1.0), p, y) == pytest.approx(0.3)
    assert choose(Aim("sensitivity", 0.6), p, y) == pytest.approx(0.7)
    assert choose(Aim("specificity", 1.0), p, y) == pytest.approx(0.7)
    assert choose(Aim("specificity", 0.6), p, y) == pytest.approx(0.3)
    assert choose(Aim("cost", 5.0), p, y) == pytest.approx(0.3)
    assert choose(Aim("cost", 0.2), p, y) == pytest.approx(0.7)
    assert choose(Aim("youden"), p, y) == pytest.approx(0.3)  # of equal ones the lowest
    assert choose(Aim("specificity", 1.0), [0.2, 1.0], [1, 0]) == CERTAIN  # nobody is taken for positive


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "in one way: .* Found none"),
        ({"sensitivity": 0.9, "youden": True}, "Found sensitivity, youden"),
        ({"sensitivity": 0.0}, r"sensitivity must be a number in \(0, 1\].* found 0.0"),
        ({"sensitivity": 90}, "such as 0.9; found 90"),
        ({"specificity": math.nan}, "found nan"),
        ({"specificity": True}, "found True"),
        ({"cost": "5:0"}, "such as 5:1; found '5:0'"),
        ({"cost": "five"}, "found 'five'"),
        ({"cost": "1:2:3"}, "found '1:2:3'"),
        ({"cost": -1}, "found -1"),
    ],
)
def test_an_aim_that_is_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Aim.of(**given)


def test_aims() -> None:
    assert Aim.of(cost="5:2") == Aim.of(cost=2.5) == Aim("cost", 2.5)
    assert str(Aim.of(sensitivity=0.9)) == "a sensitivity of at least 0.9"


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        ([0.1, 0.2], [1, 1], "both classes; found 2 of the positive class and 0 others"),
        ([0.1, math.nan, 7], [1, 0, 1], "2 of 3 are not"),
        ([0.1, 0.2], [0, 2], "positive must be true or false"),
        ([0.1, 0.2], [0], r"found \(2,\) and \(1,\)"),
    ],
)
def test_what_is_no_classifier(p: list[float], y: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(Aim("youden"), p, y)


# calibration
@given(SAMPLES)
def test_calibration_against_scikit_learn(rows: list[tuple[float, bool]]) -> None:
    p, y = arrays(rows)
    assert calibration(p, y)["brier"] == pytest.approx(2 * brier_score_loss(y, p))
    bins = reliability(p, y)
    assert sum(each.n for each in bins) == len(p)
    assert sum(each.n * each.share for each in bins) == pytest.approx(y.sum())
    assert all(each.low <= each.score <= each.high for each in bins)
    area, interval = auc(p, y)
    assert area.value == pytest.approx(roc_auc_score(y, p))
    assert 0 <= interval.low <= area.value <= interval.high <= 1
    curve = roc(p, y)
    assert curve[-1] == 1
    assert curve[0] == max((y & (p > p[~y].max())).sum() / y.sum(), 0)  # without a false alarm
    assert (np.diff(curve) >= 0).all()


def test_an_area_without_error_has_an_interval_that_narrows() -> None:
    few, many = (auc([0.1] * n + [0.9] * n, [0] * n + [1] * n)[1] for n in (5, 50))
    assert few.high == many.high == 1
    assert 0.5 < few.low < many.low < 1
    assert not auc([0.1, 0.2], [1, 1])[0].defined


def test_the_interval_of_an_area_covers() -> None:
    """Scores of N(1, 1) and N(0, 1), whose area is Phi(1 / sqrt 2)."""
    rng, true, inside = np.random.default_rng(0), 0.5 * (1 + math.erf(0.5)), 0
    for _ in range(120):
        z = np.concatenate([rng.normal(1, 1, 15), rng.normal(0, 1, 25)])
        interval = auc(1 / (1 + np.exp(-z)), [1] * 15 + [0] * 25)[1]
        inside += interval.low <= true <= interval.high
    assert 0.9 <= inside / 120 <= 0.99


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_recalibration_from_sums(kind: str) -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(3000)
    y = rng.random(3000) < truth
    logit = np.log(truth) - np.log1p(-truth)
    p = 1 / (1 + np.exp(-3 * logit - 1))  # far too sure
    sites = [slice(0, 500), slice(500, 1800), slice(1800, 3000)]
    sums = [histogram(p[site], y[site]) for site in sites]
    fit = Recalibration.fitted(kind, sum(sums))
    assert fit == Recalibration.fitted(kind, histogram(p, y))  # any division into sites
    assert typed(Recalibration, json.loads(json.dumps(asdict(fit)))) == fit
    before, after = calibration(p, y), calibration(fit(p), y)
    assert after["ece"] < before["ece"] / 3
    assert after["brier"] < before["brier"]
    assert (np.diff(fit(np.sort(p))) >= 0).all()
    if kind == "platt":
        assert fit.numbers == pytest.approx((1 / 3, -1 / 3), abs=0.06)
    of_site = Recalibration.fitted(kind, sums[0])
    assert of_site != fit


def test_recalibration_refuses() -> None:
    with pytest.raises(ValueError, match="both classes; found 0 of the positive class and 2 others"):
        Recalibration.fitted("platt", histogram([0.1, 0.9], [0, 0]))
    with pytest.raises(ValueError, match=r"Unknown recalibration 'plat'.*platt"):
        Recalibration.fitted("plat", histogram([0.1, 0.9], [0, 1]))
    apart = Recalibration.fitted("platt", histogram([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]))
    assert math.isfinite(apart.numbers[0])  # classes that do not overlap


# a federation
def people(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=make)
    s = torch.randint(0, 2, (n,), generator=make)
    y = (x[:, 0] + 0.5 * s + torch.randn(n, generator=make) > 0.3).long()
    return x, y, s


def trained(tests: Any = None, **more: Any) -> eq.Federation:
    settings = {"validation": 0.4, "classes": ["well", "ill"], "attributes": {"sex": ["men", "women"]}} | more
    tests = {"north": people(80, 8), "south": people(60, 9)} if tests is None else tests
    torch.manual_seed(0)
    clients, solver = [people(60, k) for k in range(3)], eq.SGD(lr=0.1)
    fed = eq.Federation(torch.nn.Linear(4, 2), clients, solver=solver, tests=tests, **settings)
    fed.fit(3, progress=False)
    return fed


@pytest.fixture(scope="module")
def federation() -> eq.Federation:
    return trained()


def test_of_a_federation(federation: eq.Federation) -> None:
    chosen = eq.choose_threshold(federation, sensitivity=0.9)
    held = federation.held
    assert held is not None
    rows = [d.store for d in held.sets if d is not None]
    p = torch.cat([federation.predict_proba(batch.x)[:, 1] for batch in rows]).numpy()
    y = torch.cat([batch.y for batch in rows]).numpy()
    assert chosen.value == pytest.approx(choose(Aim("sensitivity", 0.9), p, y), rel=1e-6)  # of other batches
    assert chosen.document["rows"]["n"] == len(y) == 72
    x, true, _ = people(80, 8)
    taken = chosen.decide(federation.predict_proba(x)[:, 1])
    by = {division["by"]: division["groups"] for division in chosen.document["divisions"]}
    assert list(by) == ["sex", "test set"]
    ill = true.numpy() == 1
    assert by["test set"]["north"]["sensitivity"]["value"] == pytest.approx(taken[ill].mean())
    assert by["test set"]["north"]["of_class"] == ill.sum()
    men = [(s == 0).numpy() for _, _, s in (people(80, 8), people(60, 9))]
    assert by["sex"]["men"]["n"] == sum(map(np.sum, men))
    assert "sensitivity 0." in repr(chosen)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("by_group", [False, True])
def test_rates_and_their_intervals(positive: int, by_group: bool) -> None:
    fed = trained(positive=["well", "ill"][positive])
    chosen = eq.choose_threshold(fed, youden=True, by_group=by_group)
    x, y, s = (torch.cat(parts) for parts in zip(people(80, 8), people(60, 9), strict=True))
    groups = [["men", "women"][code] for code in s.tolist()]
    taken = chosen.decide(fed.predict_proba(x)[:, positive], groups if by_group else None)
    everyone, cases = chosen.document["everyone"], y.numpy() == positive
    shares = {
        "sensitivity": taken[cases],
        "specificity": ~taken[~cases],
        "selection_rate": taken,
    }
    for name, each in shares.items():
        low, high = wilson(each.mean(), len(each))
        assert everyone[name] == pytest.approx({"value": each.mean(), "low": low, "high": high})  # type: ignore[literal-required]
    assert everyone["threshold"] == (None if by_group else chosen.value)


@pytest.mark.parametrize(
    "method", ["fedavg+thresholds", "fedavg+thresholds:randomised", "logofair", "fedprox+thresholds"]
)
def test_a_method_that_decides_itself_takes_no_threshold(method: str) -> None:
    """It would undo the decisions that its report and its bundle have."""
    with pytest.raises(ValueError, match=r"decides itself, by sex, .* such as fedavg\."):
        eq.choose_threshold(trained(method=method), youden=True)


def test_test_rows_do_not_choose(federation: eq.Federation) -> None:
    x, y, s = people(80, 8)
    poisoned = trained({"north": (x * 1000, 1 - y, s), "south": people(60, 9)})
    for aim in ({"youden": True}, {"cost": 5, "by_group": True}, {"specificity": 0.8, "recalibrate": "platt"}):
        one, other = (eq.choose_threshold(fed, **aim).document for fed in (federation, poisoned))  # type: ignore[arg-type]
        assert {k: one[k] for k in ("threshold", "by_group", "rows", "hash")} == {  # type: ignore[literal-required]
            k: other[k]  # type: ignore[literal-required]
            for k in ("threshold", "by_group", "rows", "hash")
        }
        assert one["everyone"] != other["everyone"]


def test_by_group(federation: eq.Federation) -> None:
    chosen = eq.choose_threshold(federation, sensitivity=0.8, by_group=True)
    assert chosen.by_group.keys() == {"men", "women"}
    assert any("uses sex of each person at prediction" in note for note in chosen.document["notes"])
    same = [0.5 * (chosen.by_group["men"] + chosen.by_group["women"])] * 2
    assert chosen.decide(same, ["men", "women"]).sum() == 1
    assert chosen.decide([chosen.value], ["unknown"]).all()
    with pytest.raises(ValueError, match="give groups, the sex of each sample"):
        chosen.decide(same)
    with pytest.raises(ValueError, match="Unknown attribute 'age'"):
        eq.choose_threshold(federation, youden=True, by_group="age")


def test_few_are_not_shown(federation: eq.Federation) -> None:
    fed = trained({"north": people(80, 8), "tiny": people(6, 9)}, least_group=30)
    by = {d["by"]: d["groups"] for d in eq.choose_threshold(fed, youden=True).document["divisions"]}
    tiny = by["test set"]["tiny"]
    assert {name: value for name, value in tiny.items() if name != "threshold" and not isinstance(value, dict)} == {
        "n": None,
        "of_class": None,
        "roc": None,
        "brier": None,
        "ece": None,
        "withheld": False,
    }
    assert tiny["sensitivity"] == tiny["auc"] == {"value": None, "low": None, "high": None}


# counts that tell those of a smaller group
def counted(n: int, of_class: int) -> Any:
    """Rates of which only the counts are of interest, as they are before anything is hidden."""
    rate = {"value": 0.5, "low": 0.4, "high": 0.6}
    few = dict.fromkeys(("sensitivity", "specificity", "selection_rate", "auc"), rate)
    return {
        "n": n,
        "of_class": of_class,
        "threshold": 0.5,
        **few,
        "roc": [0.0],
        "brier": 0.1,
        "ece": 0.1,
        "withheld": False,
    }


@given(
    st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1)), min_size=1, max_size=6),
    st.integers(1, 20),
    st.integers(0, 30),
    st.floats(0, 1),
)
@example([(80, 0.5), (70, 0.4)], 20, 3, 0.7)  # nobody is hidden but those of whom the group is not known
@example([(80, 0.5), (70, 0.4)], 20, 30, 0.05)
def test_what_is_hidden_cannot_be_subtracted(
    parts: list[tuple[int, float]], least: int, unknown: int, share: float
) -> None:
    """Of no hidden groups, or of unknown ones, a reader gets a number of people, cases or others that is below the least."""
    counts = {f"g{k}": (n, round(n * share)) for k, (n, share) in enumerate(parts)}
    N, P = (sum(each[k] for each in counts.values()) + more for k, more in enumerate((unknown, round(unknown * share))))
    document: Any = {
        "everyone": counted(N, P),
        "divisions": [{"by": "sex", "groups": {name: counted(*each) for name, each in counts.items()}}],
        "validation": {"all": counted(N, P)} | {name: counted(*each) for name, each in counts.items()},
        "reliability": [{"n": n} for n, _ in (*counts.values(), (unknown, 0)) if n],
        "rows": {"n": N, "of_class": P},
        "least": 0,
    }
    made: Any = masked(document, least)
    everyone = made["everyone"]
    bins = [each["n"] for each in made["reliability"]]
    assert all(n >= least for n in bins)
    assert not bins or sum(bins) == N or N - sum(bins) >= least
    for groups in (made["divisions"][0]["groups"], {k: v for k, v in made["validation"].items() if k != "all"}):
        assert all(of["n"] in (None, counts[name][0]) for name, of in groups.items())
        assert all(of["n"] is None or of["n"] >= least for of in groups.values())
        for of in groups.values():
            assert of["of_class"] is None or min(of["of_class"], of["n"] - of["of_class"]) >= least
            assert not of["withheld"] or (of["of_class"] is None and of["sensitivity"]["value"] is None)
        if everyone["n"] is not None:
            left = N - sum(of["n"] for of in groups.values() if of["n"] is not None)
            assert left == 0 or left >= least or all(of["n"] is None for of in groups.values())
        if everyone["of_class"] is not None:
            shown = [name for name, of in groups.items() if of["of_class"] is not None]
            n, cases = N - sum(counts[name][0] for name in shown), P - sum(counts[name][1] for name in shown)
            assert n == 0 or min(cases, n - cases) >= least or not shown


def test_two_groups_of_which_one_is_small() -> None:
    """The rows of the other go with it, and a table does not call that one small."""
    groups = {"men": counted(80, 40), "women": counted(7, 3)}
    document: Any = {
        "everyone": counted(87, 43), "divisions": [{"by": "sex", "groups": groups}], "validation": {"all": counted(50, 20)},
        "reliability": [], "rows": {"n": 50, "of_class": 20}, "least": 0, "positive": "ill",
    }  # fmt: skip
    rows = dict(shown.rates(masked(document, 10)).rows)
    assert [cell.text for cell in rows["sex women"]][:2] == ["< 10", "< 10"]
    assert {cell.text for cell in rows["sex men"]} == {"–"}
    assert [cell.text for cell in rows["all"]][:2] == ["87", "43"]
    assert "smaller group" in shown.hidden(masked(document, 10))
    assert shown.hidden(masked(document, 1)) == ""


# what was asked for
@pytest.mark.parametrize(
    ("aim", "high", "said"),
    [
        ({"kind": "sensitivity", "value": 0.9}, 0.89, "a sensitivity of 90"),
        ({"kind": "sensitivity", "value": 0.9}, 0.91, None),
        ({"kind": "specificity", "value": 0.8}, 0.79, "a specificity of 80"),
        ({"kind": "cost", "value": 5.0}, 0.1, None),
        ({"kind": "youden", "value": 1.0}, 0.1, None),
    ],
)
def test_a_rate_that_test_rows_do_not_confirm_is_said(
    federation: eq.Federation, aim: Any, high: float, said: str | None
) -> None:
    document: Any = eq.choose_threshold(federation, sensitivity=0.9).document
    sure, short = ({"value": end - 0.06, "low": end - 0.1, "high": end} for end in (0.99, high))
    everyone = {**document["everyone"], "sensitivity": short, "specificity": short}
    texts = [*shown.missed_aims({**document, "aim": aim, "everyone": everyone})]
    assert len(texts) == (said is not None)
    if said is not None:
        assert said in texts[0]
        assert f"on the validation rows {100 * document['validation']['all'][aim['kind']]['value']:.1f}" in texts[0]
        assert texts[0] in [*shown.sentences({**document, "aim": aim, "everyone": everyone})]
    by_group: Any = eq.choose_threshold(federation, sensitivity=0.9, by_group=True).document
    (division,) = [each for each in by_group["divisions"] if each["by"] == "sex"]
    women = {**division["groups"]["women"], "sensitivity": short, "specificity": short}
    men = {**division["groups"]["men"], "sensitivity": sure, "specificity": sure}
    changed = {**division, "groups": {"men": men, "women": women}}
    texts = [*shown.missed_aims({**by_group, "aim": aim, "divisions": [changed]})]
    assert [", sex women, and on the validation rows" in text for text in texts] == [True] * (said is not None)


def test_rates_on_validation_rows_are_those_that_were_chosen(federation: eq.Federation) -> None:
    for aim in (0.7, 0.9):
        document = eq.choose_threshold(federation, sensitivity=aim).document
        held = document["validation"]["all"]
        assert held["n"] == document["rows"]["n"]
        assert held["sensitivity"]["value"] is not None
        assert held["sensitivity"]["value"] >= aim
        names = [name for name, _ in shown.rates(document).rows]
        assert names[:2] == ["all", "all, validation rows"]
    by_group = eq.choose_threshold(federation, sensitivity=0.8, by_group=True).document
    assert [*by_group["validation"]] == ["all", "sex men", "sex women"]
    assert all((of["sensitivity"]["value"] or 1) >= 0.8 for of in by_group["validation"].values())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"validation": 0.0}, r"holds out no rows for validation.*--validation 0\.2"),
        ({"method": "standalone"}, "has no global model"),
        ({"tests": {}}, "no test rows"),
    ],
)
def test_what_has_no_threshold(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.choose_threshold(trained(**more), youden=True)


def test_other_tasks_and_untrained_models() -> None:
    data = [(torch.randn(20, 4), torch.arange(20) % 3)]
    three = eq.Federation(torch.nn.Linear(4, 3), data, tests={"all": data[0]}, validation=0.2)
    with pytest.raises(ValueError, match="decides between two classes, and this federation has 3 classes"):
        eq.choose_threshold(three, youden=True)
    two = eq.Federation(torch.nn.Linear(4, 2), [(data[0][0], data[0][1] % 2)], validation=0.2)
    with pytest.raises(ValueError, match="has not been trained"):
        eq.choose_threshold(two, youden=True)


def test_of_the_round_that_validation_chose() -> None:
    fed = trained(select="best-validation")
    document = eq.choose_threshold(fed, youden=True).document
    assert document["round"] == fed.history.selected_round
    history = fed.history
    assert replace(history, meta={**history.meta, "threshold": document}).threshold == document
    elsewhere = replace(history, meta={**history.meta, "threshold": {**document, "record": "0" * 64}})
    assert elsewhere.threshold is None


def test_rows_of_the_server() -> None:
    fed = trained(validation=0.0, server_validation=people(40, 20))
    assert eq.choose_threshold(fed, youden=True).document["rows"]["source"] == "server"


def test_rows_without_attributes_are_of_people_unknown() -> None:
    x, y, _ = people(80, 8)
    fed = trained({"north": (x, y), "south": people(60, 9)}, validation=0.0, server_validation=people(40, 20)[:2])
    document = eq.choose_threshold(fed, youden=True).document
    by = {division["by"]: division["groups"] for division in document["divisions"]}
    assert sum(of["n"] or 0 for of in by["sex"].values()) == 60
    assert document["everyone"]["n"] == 140
    with pytest.raises(ValueError, match="men 0 and 0, women 0 and 0"):
        eq.choose_threshold(fed, youden=True, by_group=True)
    bare = trained({"north": (x, y)}, least_group=1)
    assert eq.choose_threshold(bare, youden=True, by_group=True).document["divisions"] == []


def test_a_group_without_cases_is_named() -> None:
    def without(n: int, seed: int) -> Any:
        x, y, s = people(n, seed)
        return x, y * (s == 0), s  # no woman is ill

    fed = eq.Federation(
        torch.nn.Linear(4, 2),
        [without(60, k) for k in range(3)],
        tests={"all": people(50, 9)},
        validation=0.4,
        attributes={"sex": ["men", "women"]},
    )
    fed.fit(1, progress=False)
    with pytest.raises(ValueError, match=r"of sex these have so many .*: women 0 and \d+"):
        eq.choose_threshold(fed, youden=True, by_group=True)


# the command
@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("table") / "t.csv"
    rows = ["age,pressure,sex,hospital,ill"]
    for k in range(240):
        age, pressure, sex = rng.normal(60, 9), rng.normal(130, 15), rng.integers(2)
        ill = rng.random() < 1 / (1 + np.exp(-(age - 60) / 6 - sex + 0.5))
        rows.append(f"{age:.1f},{pressure:.0f},{('women', 'men')[sex]},{'abc'[k % 3]},{('no', 'yes')[int(ill)]}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def run(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    options = ("--data", table, "--set", "label=ill", "--set", "client=hospital", "--set", "group=sex")
    assert equipoise("run", *options, "--rounds", 2, "--validation", 0.3, "--name", "r", "--no-report").status == 0
    return tmp_path / "runs" / "r"


def test_the_command(run: Path, equipoise: Any) -> None:
    result = equipoise("threshold", run, "--cost", "5:1")
    assert result.status == 0, result.err
    assert "a missed case costs 5 times a false alarm" in result.out
    assert "sex women" in result.out
    assert "client a" in result.out
    kept = open_json((run / "threshold.json").read_text())
    shown = json.loads(equipoise("threshold", run, "--cost", "5:1", "--json").out)
    assert shown == kept
    records, meta = read(run)
    assert meta["threshold"] == kept
    assert kept["round"] == records[-1]["round"] == 1
    page = html.render([History.from_run(run)])
    assert "Threshold and calibration" in page
    assert f"Threshold {kept['threshold']:.4g}: class yes is predicted" in page
    assert 'id="figure-threshold-0"' in page
    by_group = json.loads(equipoise("threshold", run, "--youden", "--by-group", "--json").out)
    assert by_group["by_group"]["thresholds"].keys() == {"men", "women"}
    assert "in place of" not in result.out
    assert (
        "threshold.json, in place of the one that was there"
        in equipoise("threshold", run, "--by-group", "--youden").out
    )
    assert "note: A threshold by sex uses sex of each person" in equipoise("export", run, "--bundle", "b").err


def test_the_threshold_of_another_model_does_not_count(run: Path, equipoise: Any) -> None:
    assert equipoise("threshold", run, "--youden").status == 0
    path = run / "threshold.json"
    content, history = open_json(path.read_text()), History.from_run(run)
    assert history.threshold == content
    path.write_text(sealed_json(content | {"record": "0" * 64}))
    assert History.from_run(run).threshold is None
    assert replace(history, meta={**history.meta, "positive": "no"}).threshold is None


def test_fewer_than_a_report_shows_are_masked(run: Path, equipoise: Any) -> None:
    assert equipoise("threshold", run, "--youden").status == 0
    history, path = History.from_run(run), run / "threshold.json"
    asked = replace(history, meta={**history.meta, "least_group": 20}).threshold
    assert asked is not None
    groups = [of for division in asked["divisions"] for of in division["groups"].values()]
    assert all(n is None or n >= 20 for of in groups for n in (of["n"], of["of_class"]))
    assert any(of["sensitivity"]["value"] is None for of in groups)
    assert all(of["of_class"] is not None or of["sensitivity"]["value"] is None for of in groups)
    assert all(each["n"] >= 20 for each in asked["reliability"])
    assert history.threshold == open_json(path.read_text())
    whole = path.read_text()
    path.write_text(json.dumps({k: v for k, v in open_json(whole).items() if k not in ("rows", "aim")}))
    with pytest.raises(ValueError, match=r"threshold\.json: it lacks aim, rows\. The run is intact"):
        read(run)
    path.write_text(whole.replace('"round": 1', '"round": 2'))
    with pytest.raises(ValueError, match=r"not what was written.*give the command equipoise threshold again"):
        read(run)


def test_the_command_refuses(run: Path, equipoise: Any, table: Path) -> None:
    assert "Found none" in equipoise("threshold", run).err
    assert "found 1.5" in equipoise("threshold", run, "--sensitivity", 1.5).err
    assert "Unknown attribute 'age'" in equipoise("threshold", run, "--youden", "--attribute", "age").err
    assert not (run / "threshold.json").exists()
    options = ("--data", table, "--set", "label=ill", "--set", "client=hospital", "--rounds", 1, "--name", "bare")
    assert equipoise("run", *options, "--no-report").status == 0
    result = equipoise("threshold", "runs/bare", "--youden")
    assert result.status == 2
    assert "--validation 0.2" in result.err
