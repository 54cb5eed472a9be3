"""FedProc: the prototypical contrast in scalars, and its fading."""

from __future__ import annotations

import math

import pytest
import torch

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.model import Model
from equipoise.methods.fedproc import FedProc
from helpers import N_CLASSES, fitted, network, normal, oracle_of, out_of, samples, visit_of

D = 7


def message(known: list[float]) -> dict[str, torch.Tensor]:
    there = torch.tensor(known, dtype=torch.float64)[:, None]
    return {"proto": normal(N_CLASSES, D, seed=4) * there, "known": there}


def cos(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@pytest.fixture
def client():
    net = network()
    x, y = samples(11, 1)
    return oracle_of(net, x, y, eq.SGD(1.0)), Model(net).initial, y


@pytest.mark.parametrize("known", [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_contrast_typed_out(client, known: list[float], temperature: float) -> None:
    """Classes without a prototype are not in the sum; their samples add 0 and stay in the denominator."""
    oracle, start, y = client
    out, told = out_of(oracle, start), message(known)
    P = told["proto"].tolist()
    total = 0.0
    for z, label in zip(out.features.tolist(), y.tolist(), strict=True):
        if known[label]:
            terms = {k: math.exp(cos(z, P[k]) / temperature) for k in range(N_CLASSES) if known[k]}
            total -= math.log(terms[label] / sum(terms.values()))
    got = FedProc(temperature=temperature)._contrast(out, visit_of(oracle, start, {}, told))
    assert float(got) == pytest.approx(total / len(y), abs=1e-13)
    if sum(known) == 1:
        assert float(got) == pytest.approx(0, abs=1e-15)


def test_the_contrast_fades_out() -> None:
    """a goes from 1 in the first round to 0 in the last, and a run of one round divides by nothing."""
    rule = FedProc()
    assert [rule._share(t, 5) for t in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert rule._share(0, 1) == 1.0


@pytest.mark.parametrize("t", [1, 3, 4])
def test_the_blend(client, t: int) -> None:
    oracle, start, _ = client
    out, rule = out_of(oracle, start), FedProc()
    visit = visit_of(oracle, start, {}, message([1.0, 1.0, 0.0]), t=t, rounds=5)
    a = 1 - t / 4
    expected = a * float(rule._contrast(out, visit)) + (1 - a) * float(out.cross_entropy)
    assert float(out.cross_entropy + rule.loss(out, visit)) == pytest.approx(expected, abs=1e-14)


def test_without_prototypes_it_is_cross_entropy(client) -> None:
    oracle, start, _ = client
    told = message([0.0, 0.0, 0.0])
    assert float(FedProc().loss(out_of(oracle, start), visit_of(oracle, start, {}, told))) == 0
    one, other = fitted("fedproc", 1).progress.vector, fitted("fedavg", 1).progress.vector
    assert torch.allclose(one, other, rtol=0, atol=1e-15)  # the gradient of fedavg's loss is a formula


def test_the_strict_first_round_trains_nothing(client) -> None:
    """As the released code: its factor of cross-entropy is 1 - a = 0."""
    oracle, start, _ = client
    told = message([0.0, 0.0, 0.0])
    trained, _, _, _ = visit_client([FedProc(strict=True)], oracle, 0, 5, start, [{}], [told])
    assert torch.equal(trained, start)
    later, _, _, _ = visit_client([FedProc(strict=True)], oracle, 2, 5, start, [{}], [told])
    assert not torch.equal(later, start)
    assert eq.parse("fedproc:released").rules == (FedProc(strict=True),)


def test_gradients_stay_finite_where_no_class_is_known(client) -> None:
    """The masked columns hold the lowest finite number, which must not turn into NaN on the way back."""
    oracle, start, _ = client
    for known in ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0]):
        trained, _, _, _ = visit_client([FedProc()], oracle, 1, 5, start, [{}], [message(known)])
        assert bool(trained.isfinite().all())
        assert not torch.equal(trained, start)
