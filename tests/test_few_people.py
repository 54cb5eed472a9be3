"""What is not sent, tracked or drawn about few people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.settings import Settings
from equipoise.core.task import CLASSIFICATION
from equipoise.federation.history import History
from equipoise.federation.standing import Standing
from equipoise.flower.app import description, log_line
from equipoise.flower.codec import Parcel
from equipoise.flower.server import scores
from equipoise.flower.site.site import Site, open_site
from equipoise.flower.site.store import Store
from equipoise.flower.site.task import Task
from equipoise.records.record import large
from equipoise.report.sites import prometheus
from equipoise.report.statistics import comparison
from equipoise.runs.tracking import round_numbers
from equipoise.system.errors import SiteError
from helpers import in_one


def rows(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=draw), torch.randint(0, 2, (n,), generator=draw)


def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sizes: dict[str, int], **node: Any) -> dict[str, Any]:
    """What a real site with test sets of these sizes answers when it is asked for scores."""
    measures = ("accuracy", "rates")
    task = Task(torch.nn.Linear(3, 2), rows(30), {name: rows(n) for name, n in sizes.items()}, measures=measures)
    fields = description(eq.Method.of("fedavg"), eq.SGD(0.01), Settings(), measures, "x")
    site = open_site("here", task, fields, Store(tmp_path), node_config=node)
    monkeypatch.setattr(Site, "_received", lambda self, asked: (self.trial.setup.initial, None))
    return site.answer("evaluate", Parcel({"measures": list(measures), "own": False})).fields


def test_a_site_sends_no_number_about_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = asked(monkeypatch, tmp_path, {"men": 40, "women": 9})
    assert sent.keys() == {"scores"}
    assert sent["scores"].keys() == {"men"}
    assert len(sent["scores"]["men"]["sums"]) == 2 + 3 * 2
    tested = scores.Tested.of(sent, {"men": 40, "women": 0}, ["accuracy", "rates"], 2, CLASSIFICATION)
    assert isinstance(tested, scores.Tested)
    assert tested.hidden == ("women",)
    assert tested.own is not None
    assert int(tested.own.n) == sent["scores"]["men"]["sums"][0] == 40
    groups = scores.pooled([tested], ["accuracy", "rates"])
    assert groups["women"] == {"n": 0}
    record = {
        "round": 0,
        "ids": [0],
        "seconds": 1.0,
        "groups": groups,
        "clients": {"accuracy": [tested.own.main], "n": [40]},
    }
    history = History([record], {"method": "fedavg"})
    assert (history.groups, history.small_groups) == (("men",), ("women",))
    assert history.summary()["small_groups"] == ["women"]
    shown = large(record, 10)
    assert "women" not in log_line(shown)
    assert "women" not in prometheus([shown], ["here"], 1, "x")


def test_sites_that_have_enough_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = asked(monkeypatch, tmp_path / "a", {"women": 4})
    enough = asked(monkeypatch, tmp_path / "b", {"women": 12})
    sent = ((few, 0), (enough, 12))
    found = [scores.Tested.of(fields, {"women": n}, ["accuracy", "rates"], 2, CLASSIFICATION) for fields, n in sent]
    assert [one.own is None for one in found if isinstance(one, scores.Tested)] == [True, False]
    assert scores.pooled([one for one in found if isinstance(one, scores.Tested)], ["rates"])["women"]["n"] == 12


@pytest.mark.parametrize(("least", "shown"), [(1, 4), (5, 0), (4, 4)])
def test_the_site_itself_says_how_few(least: int, shown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = asked(monkeypatch, tmp_path, {"women": 4}, **{"least-group": least})["scores"]
    assert scores.keys() == ({"women"} if shown else set())


def test_a_site_that_sends_no_scores_for_a_large_set_is_refused() -> None:
    assert isinstance(
        scores.Tested.of({"scores": {}}, {"men": 40}, ["accuracy"], 2, CLASSIFICATION),
        str,
    )


def test_trackers_get_no_number_about_few() -> None:
    record = {
        "round": 0,
        "groups": {"a": {"accuracy": 0.5, "n": 100}, "b": {"accuracy": 1.0, "n": 3}},
        "clients": {"accuracy": [0.4, 0.9, None], "n": [20, 3, 0]},
    }
    found = round_numbers(large(record, 10), ["x", "y", "z"])
    assert found["accuracy/avg"] == 0.5
    assert not [name for name in found if name.endswith(("/b", "/y", "/z"))]
    assert round_numbers(record, ["x", "y", "z"])["accuracy/avg"] == 0.75
    simulated = round_numbers(large(record, 10, ["x", "y", "z"]), ["x", "y", "z"])
    assert simulated["clients/accuracy/y"] == 0.9
    assert not [name for name in simulated if name.endswith("/b")]


def test_no_bar_of_few_in_the_figure_of_the_data() -> None:
    from equipoise.report.holdings import who_has_what

    data = [rows(40), rows(4, 1)]
    fed = eq.Federation(torch.nn.Linear(3, 2), data, tests={"a": rows(50), "b": rows(3)})
    known = fed.holdings
    assert [one["size"] for one in known["clients"]] == [40, 4]  # what the owner of the data asks for has all
    figure = who_has_what(known, least=10)
    texts = [text.get_text() for text in figure.axes[-1].texts]
    assert {"–", "< 10"} <= set(texts)  # the number of the other would tell that of the small one
    assert not {"4", "3", "40", "50"} & set(texts)
    widths = [bar.get_width() for bar in figure.axes[-1].patches]
    assert sorted(widths)[:2] == [0, 0]


@in_one(("n", "least", "shown"), [(2, 10, False), (9, 10, False), (2, 1, True), (10, 10, True)])
def test_logs_and_gauges_have_no_number_about_few(n: int, least: int, shown: bool) -> None:
    """Also where a site sent the number, as its own minimum is lower."""
    groups = {"men": {"accuracy": 0.5, "loss": 1.0, "n": 40}, "other": {"accuracy": 1.0, "loss": 0.1, "n": n}}
    lost = [{"client": 1, "name": "b", "reason": "is not connected"}, {"client": 2, "name": "c", "reason": "is late"}]
    record = {"round": 0, "ids": [0], "seconds": 1.0, "groups": groups, "quarantined": lost}
    line = log_line(large(record, least))
    assert ("other" in line) == shown
    assert "men 50.0%" in line
    assert line.endswith("(left out: b: is not connected; c: is late)")
    assert ('group="other"' in prometheus([large(record, least)], ["a", "b", "c"], 1, "x")) == shown
    sites = {"round": 0, "groups": {}, "clients": {"accuracy": [0.4, 0.6, 1.0], "n": [40, 50, n]}}
    mean = Standing.of([large(sites, least)], 1).mean
    assert mean == pytest.approx(2 / 3 if shown else 0.5)


@pytest.mark.parametrize(("men", "said"), [(64, True), (95, False)])
def test_guessing_is_judged_by_the_groups_that_are_shown(men: int, said: bool) -> None:
    def scored(right: int, n: int) -> dict[str, Any]:
        half, hit = n // 2, right // 2
        rates = {"right": [hit, right - hit], "true": [half, n - half], "chosen": [half, n - half]}
        return {"accuracy": right / n, "n": n, "loss": 0.6, "rates": rates}

    groups = {"men": scored(men // 2 + 4 if said else 90, men), "other": scored(8, 8)}
    why = History([{"round": 0, "groups": groups}], {"method": "fedavg"}).failure()
    text = "its accuracy is 56.25\u00a0%, and always answering with the most frequent class gives 50.00\u00a0%, which 64 samples cannot"
    assert (text in why) == said == bool(why)


def test_a_bound_has_no_number_about_few_either() -> None:
    """Its scores, means of models that never met, have no samples of their own: the sizes are those of the test sets."""
    data, tests = [rows(40), rows(40, 1)], {"a": rows(50), "b": rows(60, 1), "c": rows(3, 2)}
    compared = eq.compare(
        torch.nn.Linear(3, 2), data, ["fedavg", "standalone"], 2, rounds=1, tests=tests, progress=False
    )
    for history in compared.histories:
        assert history.groups == ("a", "b")
        assert history.small_groups == ("c",)
    numbers = comparison(compared.histories)
    assert [[*method["groups"]] for method in numbers["methods"]] == [["a", "b"], ["a", "b"]]
    assert not [note for note in numbers["notes"] if "the same groups" in note]


VISITS = np.repeat(np.arange(40), [1 + k % 5 for k in range(40)])


def held_out(tmp_path: Path, validation: float, seed: int, people: bool = True, **node: Any) -> int:
    """The training samples of a site in a run, by which a server counts the visits of those that are held out."""
    x, y = rows(len(VISITS))
    task = Task(torch.nn.Linear(3, 2), eq.OfPeople((x, y), VISITS) if people else (x, y))
    settings = Settings(validation=validation, seed=seed)
    fields = description(eq.Method.of("fedavg"), eq.SGD(0.01), settings, ("accuracy",), f"{seed}")
    site = open_site("here", task, fields, Store(tmp_path), node_config=node, draws=tmp_path / "draws.json")
    return int(site.trial.setup.sizes[0])


def test_no_two_draws_of_a_site_are_few_people_apart(tmp_path: Path) -> None:
    n = held_out(tmp_path, 0.0, 3)
    with pytest.raises(SiteError, match=r"validation=0.03 and seed=0 would tell of fewer people than its least-group"):
        held_out(tmp_path, 0.03, 0)
    assert held_out(tmp_path, 0.5, 0) < n
    assert held_out(tmp_path, 0.5, 0) == held_out(tmp_path, 0.5001, 0)  # the same people
    with pytest.raises(SiteError, match="choose validation and seed of an earlier run"):
        [held_out(tmp_path, 0.5, seed) for seed in range(1, 5)]
    assert held_out(tmp_path, 0.0, 9) == n
    assert held_out(tmp_path, 0.03, 0, **{"least-group": 1}) < n
    (tmp_path / "draws.json").write_text('{"here": 3}')
    with pytest.raises(SiteError, match=r"draws.json is damaged"):
        held_out(tmp_path, 0.5, 0)


def test_what_is_held_out_may_be_few_if_it_always_is(tmp_path: Path) -> None:
    """Nothing is told of these rows, but models of all others and of all tell of them."""
    for _ in range(2):
        held_out(tmp_path / "one", 0.05, 0, people=False)
    for validation, seed in ((0.05, 1), (0.0, 0)):
        with pytest.raises(SiteError, match="would tell of fewer"):
            held_out(tmp_path / "one", validation, seed, people=False)
    with pytest.raises(SiteError, match="would tell of fewer"):
        [held_out(tmp_path / "two", 0.3, seed, people=False) for seed in range(5)]
    with pytest.raises(SiteError, match="would tell of fewer"):
        held_out(tmp_path / "three", 0.98, 0, people=False)  # one that trains on few people
