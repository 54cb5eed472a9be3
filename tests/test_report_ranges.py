"""What a client reports has a range that its rule declares: who leaves it is left out and named, in a simulation as between sites."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.model import UNIT
from equipoise.core.rule import Bounds
from equipoise.methods import METHODS
from helpers import federation, fitted
from lying import Lies, left_out, liars, longer, saying

WHERE = ("simulated", "sites")
SIX = (9, 12, 8, 11, 10, 12)
ALL: dict[str, Any] = {"participation": 1.0, "epochs": 1, "sizes": (9, 12, 8, 11)}


@pytest.mark.parametrize("where", WHERE)
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
        ("fairfed", "accuracy", 1.5, r"holds 1\.5, which must be in \[0, 1\]"),
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


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_all_that_it_reports(name: str) -> None:
    """Honest clients of any size report exactly that, and nobody is left out; see also the methods' contract."""
    rules = eq.parse(name).rules
    assert all(rule.ranges or not rule.reports or name == "cffl" for rule in rules)
    assert all(isinstance(bounds, Bounds) for rule in rules for bounds in rule.ranges.values())


# the length of reports and of updates
@pytest.mark.parametrize("where", WHERE)
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
@pytest.mark.parametrize(("sizes", "who"), [(SIX[:4], (1,)), (SIX + SIX[:4], (1,)), (SIX + SIX[:4], (1, 4))])
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


@pytest.mark.parametrize("where", WHERE)
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


@pytest.mark.parametrize("attack", ["scaling", "model-replacement", "sign-flip"])
def test_simulated_attackers_send_no_negative_variance(attack: str) -> None:
    given = {"attack": attack, "attack_scale": 50.0, "attackers": 0.4, "kind": "batchnorm", "participation": 1.0}
    fed = fitted("fedavg", 3, **given)
    assert left_out(fed) == {}
    assert bool((fed.progress.vector[fed.model.named("running_var")] >= 0).all())
