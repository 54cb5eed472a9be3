"""Logit adjustment in scalars, with classes a client does not have, and for stacks of clients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.rule import Out
from equipoise.methods.logit_adjust import LogitAdjust
from helpers import federation, fitted, identical, network, normal, one_step_gradient, oracle_of, out_of, visit_of

COUNTS = [9, 3, 0, 1]


def labelled(counts: list[int] = COUNTS) -> torch.Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


def typed_out(z: list[float], y: int, counts: list[int], tau: float) -> float:
    total = sum(counts)
    shifted = [v + tau * math.log(n / total) if n else None for v, n in zip(z, counts, strict=True)]
    bottom = sum(math.exp(v) for v in shifted if v is not None)
    return math.log(bottom) - shifted[y]


def asked(counts: list[int] = COUNTS) -> tuple[eq.Rule, torch.Tensor]:
    y = labelled(counts)
    net = nn.Linear(5, len(counts)).double()
    return oracle_of(net, normal(len(y), 5), y, eq.SGD(1.0)), normal(6 * len(counts), seed=3)


@pytest.mark.parametrize("tau", [0.3, 1.0, 2.0])
def test_the_loss_typed_out(tau: float) -> None:
    oracle, theta = asked()
    out = out_of(oracle, theta)
    total = out.cross_entropy + LogitAdjust(tau).loss(out, visit_of(oracle, theta))
    rows = [typed_out(z, int(y), COUNTS, tau) for z, y in zip(out.logits.tolist(), out.y, strict=True)]
    assert float(total) == pytest.approx(sum(rows) / len(rows), abs=1e-12)


def test_a_class_the_client_does_not_have_gets_no_gradient() -> None:
    """Its column of the last layer stands still, and nothing is NaN."""
    oracle, theta = asked()
    g = one_step_gradient([LogitAdjust()], oracle, theta, theta, [{}], [{}])
    assert bool(g.isfinite().all())
    weight, bias = g[:20].view(4, 5), g[20:]
    assert float(weight[2].abs().max()) < 1e-15
    assert float(bias[2].abs()) < 1e-15
    assert float(bias.abs().max()) > 1e-3
    plain = one_step_gradient([], oracle, theta, theta, [], [])
    assert float(plain[22].abs()) > 1e-3


def test_tau_0_is_nothing_even_where_a_class_is_missing() -> None:
    oracle, theta = asked()
    assert float(LogitAdjust(0.0).loss(out_of(oracle, theta), visit_of(oracle, theta))) == 0.0


def test_balanced_classes_change_nothing() -> None:
    oracle, theta = asked([4, 4, 4])
    assert abs(float(LogitAdjust().loss(out_of(oracle, theta), visit_of(oracle, theta)))) < 1e-14


def test_one_class_only_leaves_nothing_to_learn() -> None:
    oracle, theta = asked([6, 0])
    g = one_step_gradient([LogitAdjust()], oracle, theta, theta, [{}], [{}])
    assert float(g.abs().max()) < 1e-15


def test_a_stack_of_clients_with_padding() -> None:
    """Two clients with classes of their own in one batch: the first has two samples, its third row is padding."""

    class Both:
        def class_counts(self, n: int) -> torch.Tensor:
            return torch.tensor([[2, 0, 1], [1, 1, 1]])

    z, y = normal(2, 3, 3), torch.tensor([[0, 2, 0], [0, 1, 2]])
    ok = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    out = Out(z, z, y, ok, lambda vector: vector)
    visit = visit_of(asked()[0], torch.zeros(2, 1))
    object.__setattr__(visit, "oracle", Both())
    got = out.cross_entropy + LogitAdjust().loss(out, visit)
    assert got.shape == (2,)
    for m, (counts, n) in enumerate((([2, 0, 1], 2), ([1, 1, 1], 3))):
        rows = [typed_out(z[m, k].tolist(), int(y[m, k]), counts, 1.0) for k in range(n)]
        assert float(got[m]) == pytest.approx(sum(rows) / n, abs=1e-12)


def test_prediction_is_without_the_shift() -> None:
    fed = fitted("logit-adjust", 1)
    x = normal(4, 6)
    assert torch.equal(fed.logits(x), fed.model.network(fed.progress.vector)(x).detach())
    assert not identical(fed, fitted("fedavg", 1))


def test_rare_classes_gain() -> None:
    """Where one class is rare at every client, training with the adjustment predicts it more often."""
    data = [(normal(40, 6, seed=k), (normal(40, seed=k + 9) > 1.2).long()) for k in range(3)]
    x = normal(200, 6, seed=50)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = nn.Linear(6, 2).double()
    share = [
        float(fitted(m, 10, net=net, data=data, participation=1.0).predict(x).double().mean())
        for m in ("fedavg", "logit-adjust")
    ]
    assert share[1] > share[0]


def test_range() -> None:
    assert eq.parse("logit-adjust(tau=0.5)").rules == (LogitAdjust(0.5),)
    with pytest.raises(ValueError, match=r"LogitAdjust: tau must be >= 0; found -1\."):
        LogitAdjust(-1)
    assert federation("logit-adjust", net=network()).method.overriding("loss") == [0]
