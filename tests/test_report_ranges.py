"""What a client reports has a range that its rule declares: who leaves it is left out and named, in a simulation as between sites."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.model import UNIT
from equipoise.core.rule import Bounds
from equipoise.federation import round as rounds
from equipoise.flower.codec import Parcel
from equipoise.flower.server.consortium import Consortium
from equipoise.flower.server.sites import Known
from equipoise.methods import METHODS
from helpers import federation, fitted, in_one, others_slow, samples
from lying import Lies, asked, bent, left_out, liars, longer, saying

WHERE = ("simulated", "sites")
SIX = (9, 12, 8, 11, 10, 12)
ALL: dict[str, Any] = {"participation": 1.0, "epochs": 1, "sizes": (9, 12, 8, 11)}


@pytest.mark.parametrize("where", others_slow(WHERE, fast=(0,)))
@pytest.mark.parametrize(
    ("method", "key", "value", "why"),
    [
        ("qffl(q=0.5)", "loss", -1.0, "holds -1, which must be >= 0"),
        ("qffl(form=full)", "loss", -1e-9, "holds -1e-09, which must be >= 0"),
        ("afl", "loss", -1e12, r"holds -1e\+12, which must be >= 0"),
        ("fedfv", "loss", -2.0, "holds -2, which must be >= 0"),
        ("fednova", "a", -1.0, "holds -1, which must be >= 0"),
        ("fednova", "a", 1e-30, r"is 1e-30, which no 1 to 2 steps go: they go 0\.05 to \S+"),
        ("fednova", "a", 1e6, r"is 1e\+06, which no 1 to 2 steps go: they go 0\.05 to \S+"),
        ("fairfed:accuracy", "accuracy", 1.5, r"holds 1\.5, which must be in \[0, 1\]"),
        ("fedga(metric=accuracy)", "gap", -2.0, r"holds -2, which must be in \[-1, 1\]"),
        ("fedga", "seen", 7.0, r"holds 7, which must be in \[0, 1\]"),
        ("fedce", "metric", -0.1, r"holds -0\.1, which must be in \[0, 1\]"),
        ("saga(variant=L)", "value", -1.0, "holds -1, which must be >= 0"),
        ("fedpac", "V", -1.0, "holds -1, which must be >= 0"),
        ("fedpac", "share", 40.0, "counts 120 samples, and the client has 12"),
        ("fedproto", "share", 5.0, r"holds 5, which must be in \[0, 1\]"),
        ("fedproto(weighted=true)", "share", 1e9, r"counts 3e\+09 samples, and the client has 12"),
        ("fedproc", "share", -1.0, r"holds -1, which must be in \[0, 1\]"),
        ("cffl(by=classes)", "classes", 2.0, r"holds 2, which must be in \[0, 1\]"),
        ("fedave", "kl", -1.0, "holds -1, which must be >= -1e-06"),
    ],
)
def test_a_report_out_of_its_range_names_the_client(where: str, method: str, key: str, value: float, why: str) -> None:
    fed = liars(where, method, saying(value, key), **ALL)
    fed.fit(2, progress=False)
    assert left_out(fed).keys() == {"client-1"}
    assert re.fullmatch(f"the report '{key}' {why}", left_out(fed)["client-1"])
    assert bool(fed.progress.vector.isfinite().all())


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda sent, _: {key: x for key, x in sent.items() if key != "loss"}, "it reports nothing, where qffl reports 'loss'"),
    ],
)  # fmt: skip
def test_of_two_clients_the_one_that_reports_something_else_is_left_out(where: str, change: Lies, why: str) -> None:
    """The first, whose report would be that of most."""
    fed = liars(where, "qffl", change, ("client-0",), **{**ALL, "sizes": (9, 12)}, quorum=0.5)
    fed.fit(1, progress=False)
    assert left_out(fed) == {"client-0": why}


@pytest.mark.parametrize("where", ["simulated", "sites"])
def test_a_report_of_another_name_whose_length_is_compared(where: str) -> None:
    lie = lambda sent, _: {"zzz" if key == "dc" else key: x for key, x in sent.items()}  # noqa: E731
    fed = liars(where, "scaffold", lie, norm_limit=100.0)
    fed.fit(1, progress=False)
    assert "where scaffold reports 'dc'" in left_out(fed)["client-1"]


@in_one("name", METHODS)
def test_every_method_declares_all_that_it_reports(name: str) -> None:
    """Honest clients of any size report exactly that, and nobody is left out; see also the methods' contract."""
    rules = eq.parse(name).rules
    assert all(rule.declared.ranges or not rule.declared.reports or name == "cffl" for rule in rules)
    assert all(isinstance(bounds, Bounds) for rule in rules for bounds in rule.declared.ranges.values())


# the length of reports and of updates
@pytest.mark.parametrize("where", others_slow(WHERE, fast=(0,)))
@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("scaffold", "dc"),
        ("scaffold(option=1)", "dc"),
        ("fedproto", "proto"),
        ("fedproto(weighted=true)", "proto"),
        ("fedpac", "H"),
    ],
)
def test_a_report_that_is_too_long_names_the_client(where: str, method: str, key: str) -> None:
    fed = liars(where, method, longer(1e4, key), **ALL, norm_limit=100.0)
    fed.fit(2, progress=False)
    assert left_out(fed).keys() == {"client-1"}
    assert re.match(rf"the report '{key}' is \S+ times as long as the median of the round", left_out(fed)["client-1"])


@pytest.mark.parametrize("where", ["simulated", pytest.param("sites", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("sizes", "who"), others_slow([(SIX[:4], (1,)), (SIX + SIX[:4], (1,)), (SIX + SIX[:4], (1, 4))], fast=(0, 2))
)
@pytest.mark.parametrize(("method", "key"), [("fedavg", "model"), ("scaffold", "model"), ("scaffold", "dc")])
def test_where_lengths_grow_the_liar_is_left_out(
    where: str, sizes: tuple[int, ...], who: tuple[int, ...], method: str, key: str
) -> None:
    """Updates, or control variates, of below a hundred times the median each round, against the others': no round can tell by itself."""
    fed = liars(where, method, longer(-60, key), {f"client-{m}" for m in who}, **{**ALL, "sizes": sizes}, norm_limit=100.0)  # fmt: skip
    fed.fit(15, progress=False)
    assert left_out(fed).keys() == {f"client-{m}" for m in who}
    assert float(fed.progress.vector.abs().max()) < 100


def test_honest_clients_of_very_unequal_sizes_stay() -> None:
    for method in ("fedavg", "scaffold", "fedsac", "standalone", "fedproto(weighted=true)", "fedpac", "fednova"):
        fed = fitted(method, 5, sizes=(2, 3, 9, 120), norm_limit=100.0, participation=1.0)
        assert left_out(fed) == {}, method


@pytest.mark.parametrize(
    "lr", [lambda t: 1e-4 * 3**t, {"0": lambda t: 1e-4 * 3**t, "": 1e-5}, "cosine(0.005, warmup=5)"]
)
def test_lengths_that_grow_with_the_learning_rate_leave_nobody_out(lr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client whose updates always are the longest, as it has many more samples."""

    def run() -> dict[str, str]:
        fed = liars("simulated", "fedavg", longer(25), solver=eq.SGD(lr), norm_limit=40.0, **ALL)
        return left_out(fed.fit(6, progress=False) and fed)

    assert run() == {}
    monkeypatch.setattr(rounds, "_faster", lambda *_: 1.0)
    assert run().keys() == {"client-1"}


# running statistics
def counting() -> nn.Module:
    """A network whose training counts batches: its running statistics are plain means."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7, momentum=None), nn.Tanh(), nn.Linear(7, 3)).double()


def with_buffers(**values: float) -> Lies:
    """Send a model with other numbers in some tensors of BatchNorm."""
    model = federation("fedavg", net=counting()).model

    def lie(sent: dict[str, Tensor], received: Tensor) -> dict[str, Tensor]:
        theta = sent["model"].clone()
        for name, value in values.items():
            theta[model.named(name)] = value
        return {**sent, "model": theta}

    return lie


@pytest.mark.parametrize("where", others_slow(WHERE, fast=(0,)))
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"running_var": -12.0}, "a running variance of BatchNorm is -12, and none is below 0"),
        ({"running_var": -1e-5}, "a running variance of BatchNorm is -1e-05, and none is below 0"),
        ({"num_batches_tracked": -UNIT}, "BatchNorm has counted -1 batches in a round, and 0 to 200 is possible"),
        ({"num_batches_tracked": 201 * UNIT}, "BatchNorm has counted 201 batches in a round, and 0 to 200 is possible"),
        ({"num_batches_tracked": 2.0**29}, r"a count of the network is 9\.007e\+15, and 9007199254740992 is the most"),
    ],
)  # fmt: skip
def test_running_statistics_that_cannot_be_name_the_client(where: str, values: dict[str, float], why: str) -> None:
    fed = liars(where, "fedavg", with_buffers(**values), **ALL, net=counting())
    fed.fit(1, progress=False)
    assert left_out(fed).keys() == {"client-1"}
    assert re.fullmatch(why, left_out(fed)["client-1"])
    assert bool((fed.progress.vector[fed.model.named("running_var")] > 0).all())


def test_of_a_sum_no_variance_is_negative() -> None:
    """Where an answer is a mean over the clients, whose statistics nobody sees by themselves, nobody can be named."""
    fed = liars("simulated", "fedproto(weighted=true)", with_buffers(running_var=-12.0), **ALL, net=counting())
    fed.trial = replace(fed.trial, summed=True)
    fed.fit(2, progress=False)
    assert left_out(fed) == {}
    assert not fed.progress.vector[fed.model.named("running_var")].any()


@pytest.mark.parametrize("attack", ["scaling", "model-replacement", "sign-flip"])
def test_simulated_attackers_send_no_negative_variance(attack: str) -> None:
    given = {"attack": attack, "attack_scale": 50.0, "attackers": 0.4, "kind": "batchnorm", "participation": 1.0}
    fed = fitted("fedavg", 3, **given)
    assert left_out(fed) == {}
    assert bool((fed.progress.vector[fed.model.named("running_var")] >= 0).all())


# what a site says of its test sets, and of what it holds out
TESTS = {"a": samples(8, 1), "b": samples(12, 2)}
MEASURES = ("accuracy", "auc", "rates")
Change = Callable[[dict[str, Any]], Any]


def scored(states: Path, kind: str, lie: Change, **given: Any) -> eq.Federation:
    """A federation of four sites, one of which changes its answers of a kind."""

    def bend(what: str, site: str, answer: Parcel) -> Parcel:
        if what == kind and site == "client-1":
            lie(answer.fields)
        return answer

    fed = bent(asked("fedavg", states, TESTS, SIX[:4], **given), bend)
    fed.fit(2, progress=False)
    return fed


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What is recorded where the site does not say how the model does."""
    given: dict[str, Any] = {"measures": MEASURES}
    return scored(tmp_path_factory.mktemp("silent"), "evaluate", lambda fields: fields.clear(), **given).records


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What is recorded where the site tells what it counted of what it holds out."""
    lie: Change = lambda fields: None  # noqa: E731
    return scored(tmp_path_factory.mktemp("honest"), "evaluate.validation", lie, validation=0.25).records


PLACES = {"n": 0, "loss": 1, "right": 2, "true": 5, "chosen": 8, "end": 11}  # of the sums by three classes


def each(**values: Any) -> Change:
    """Every score of the site, with other sums or another field."""
    ends = dict(zip(PLACES, [*PLACES.values()][1:], strict=False))

    def lie(fields: dict[str, Any]) -> None:
        for score in fields["scores"].values():
            sums = dict(zip(ends, ([*score["sums"][PLACES[name] : end]] for name, end in ends.items()), strict=True))
            sums |= {name: x if isinstance(x, list) else [x] for name, x in values.items() if name in ends}
            score.update({name: x for name, x in values.items() if name not in ends}, sums=[*chain(*sums.values())])

    return lie


@pytest.mark.parametrize(
    "lie",
    others_slow(
        [
            each(loss=-1e308),
            each(loss=-1e-3),
            each(loss=float("nan")),
            each(loss=float("inf")),
            each(loss=1e300),
            each(missing=list(range(1000))),
            each(missing=[-1]),
            each(missing=[1, 1]),
            each(missing=[3]),
            each(chosen=[13, 0, 0]),
            each(chosen=[10**300, 0, 0]),
            each(chosen=[-1, 0, 0]),
            each(right=[0.5, 0, 0]),
            each(right=[0, 0, 0], true=[2**50, 0, 0], chosen=[0, 0, 0]),
            each(n=2**70, right=[0, 0, 0], true=[2**70, 0, 0], chosen=[0, 0, 0]),
            each(right=[0, 0, 0, 0], true=[8, 0, 0, 0], chosen=[0, 0, 0, 0]),
            each(sums_of="nobody", right=[2**63, 0, 0]),
            lambda fields: fields.update(scores=None),
            lambda fields: fields["scores"].pop("a"),
            lambda fields: fields["scores"].update(c=fields["scores"]["b"]),
            lambda fields: fields["scores"]["a"].update(sums=[]),
            lambda fields: fields["scores"]["a"].update(sums="many"),
        ],
        fast=(0, 2, 5, 9, 13, 15, 16, 18),
    ),
)
def test_scores_that_cannot_be_name_the_site(
    lie: Change, tmp_path: Path, caplog: pytest.LogCaptureFixture, silent: list[dict[str, Any]]
) -> None:
    given: dict[str, Any] = {"measures": MEASURES}
    fed = scored(tmp_path, "evaluate", lie, **given)
    assert "client-1 is not evaluated as others are after round 1: it" in caplog.text
    for record, other in zip(fed.records, silent, strict=True):
        assert (record["groups"], record["clients"]) == (other["groups"], other["clients"])
        assert record["clients"]["accuracy"][1] is None


@pytest.mark.parametrize(
    "told",
    others_slow(
        [
            [n, n * loss, right, n, n]
            for right, loss, n in [
                (1, 0.0, 2**53 - 1),
                (0, 0.5, 1),
                (3, 0.5, 4),
                (1, -1.0, 3),
                (1, float("nan"), 3),
                (1, 1e300, 3),
                (4, 0.5, 3),
            ]
        ],
        fast=(0, 2, 3),
    ),
)
def test_a_tally_that_cannot_be_names_the_site(
    told: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, honest: list[dict[str, Any]]
) -> None:
    """Three of twelve samples are held out."""
    fed = scored(tmp_path, "evaluate.validation", lambda fields: fields.update(found=told), validation=0.25)
    assert "client-1 is not validated as others are after round 1: it" in caplog.text
    assert all(record["validation"]["clients"]["accuracy"][1] is not None for record in honest)
    for record, other in zip(fed.records, honest, strict=True):
        mine, of = record["validation"]["clients"]["accuracy"], other["validation"]["clients"]["accuracy"]
        assert (mine[:1] + mine[2:], mine[1]) == (of[:1] + of[2:], None)
        assert record["validation"]["n"] == other["validation"]["n"] - 3


ABOUT = {"name": "a", "size": 9, "shape": [6], "dtype": "float32", "tests": ["a"], "test_sizes": {"a": 8}}


@in_one(
    "change",
    [
        {"test_sizes": {"a": 8.5}},
        {"test_sizes": {"a": 2**53}},
        {"test_sizes": {"a": -1}},
        {"test_sizes": [8]},
        {"tests": ["a", "a"]},
        {"tests": [str(k) for k in range(1001)]},
    ],
)
def test_a_description_that_cannot_be_is_none(change: dict[str, Any]) -> None:
    assert Known.of(ABOUT).test_sizes == {"a": 8}
    with pytest.raises((AttributeError, TypeError, ValueError)):
        Known.of({**ABOUT, **change})


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({}, "does not say how many samples its test sets have"),
        ({"a": 8}, "does not say how many samples its test sets have"),
        ({"a": 8, "b": 10**6}, "says that it has 1,000,000 samples, and max-samples is 999,999"),
    ],
)
def test_a_site_declares_its_test_sets(sizes: dict[str, int], why: str, tmp_path: Path) -> None:
    fed = asked("fedavg", tmp_path, TESTS, SIX[:3])
    roster = cast(Consortium, fed.population).sites
    roster.most = 999_999
    assert [site.test_sizes for site in roster.members] == [{"a": 8, "b": 12}] * 3
    assert roster._misfit(replace(roster.members[0], test_sizes=sizes), ()) == why
