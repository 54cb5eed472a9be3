"""SAGA: what a client measures, and the weights of many rounds in scalars."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import equipoise as eq
from equipoise.engines.job import Answer, Job
from equipoise.methods.saga import SAGA
from helpers import (
    UNEQUAL,
    Server,
    clients,
    difference,
    federation,
    fitted,
    in_one,
    network,
    normal,
    oracle_of,
    samples,
    tensor,
    visit_of,
    watched,
)


class Naive:
    """The server in scalars: one weight per client that was ever seen."""

    def __init__(self, q: float, beta: float, floor: float = 1e-10, offset: float = 0.0) -> None:
        self.q, self.beta, self.floor, self.offset = q, beta, floor, offset
        self.last: dict[int, float] = {}

    def round(self, ids: list[int], values: list[float]) -> list[float]:
        v = [max(x, self.floor) for x in values]
        if self.offset:
            v = [x / sum(v) + self.offset for x in v]
        fresh = [x**self.q / sum(y**self.q for y in v) for x in v]
        known = sum(self.last.get(m, 0.0) for m in ids)
        w = [
            self.beta * f + (1 - self.beta) * self.last.get(m, 0.0) / known if known else f
            for m, f in zip(ids, fresh, strict=True)
        ]
        self.last |= dict(zip(ids, w, strict=True))
        return w


def weights(server: Server, ids: list[int], values: list[float]) -> list[float]:
    cohort = server.round(torch.zeros(len(ids), 1).double(), ids, [{"value": tensor(values)}])
    return cohort.weights.tolist()


@in_one("offset", [0.0, 1e-10, 1e-2])
@in_one(("q", "beta"), [(2.0, 0.5), (0.5, 0.9), (0.0, 0.5), (5.0, 1.0), (1.0, 0.1)])
def test_many_rounds_typed_out(q: float, beta: float, offset: float) -> None:
    """Changing cohorts, clients that return, clients never seen before, and values below the floor."""
    server = Server(SAGA(q=q, beta=beta, offset=offset), torch.zeros(1).double(), [1.0] * 6)
    naive = Naive(q, beta, offset=offset)
    for t, ids in enumerate([[0, 1, 2], [2, 3], [4], [5], [0, 1, 2, 3, 4, 5], [1, 5], [0, 2, 4]]):
        values = (normal(len(ids), seed=t) + 0.5).tolist()
        assert weights(server, ids, values) == pytest.approx(naive.round(ids, values), abs=1e-12)
    assert server.state[0]["w"].tolist() == pytest.approx([naive.last[m] for m in range(6)], abs=1e-12)


@given(
    values=st.lists(st.floats(-1, 100), min_size=1, max_size=8),
    q=st.floats(0, 30),
    beta=st.floats(0.01, 1),
    scale=st.floats(0.01, 100),
)
def test_weights_are_convex_and_in_the_order_of_the_values(
    values: list[float], q: float, beta: float, scale: float
) -> None:
    M = len(values)
    rule = SAGA(q=q, beta=beta)
    w = weights(Server(rule, torch.zeros(1).double(), [1.0] * M), list(range(M)), values)
    assert sum(w) == pytest.approx(1, abs=1e-12)
    assert all(x >= 0 for x in w)
    for i in range(M):
        for j in range(M):
            assert values[i] > values[j] or w[i] <= w[j] + 1e-12
    positive = tensor([abs(v) + 0.01 for v in values])
    assert torch.allclose(rule._fresh(positive), rule._fresh(scale * positive), rtol=0, atol=1e-9)


def test_nothing_is_sharp_gives_equal_weights() -> None:
    """Not the shares of samples."""
    server = Server(SAGA(), torch.zeros(1).double(), [1, 50, 7])
    assert weights(server, [0, 1, 2], [-1.0, 0.0, 1e-11]) == pytest.approx([1 / 3] * 3)


def test_a_large_power_neither_overflows_nor_divides_by_zero() -> None:
    server = Server(SAGA(q=400.0, beta=1.0), torch.zeros(1).double(), [1] * 3)
    assert weights(server, [0, 1, 2], [1e-9, 2e-9, 2e-9]) == pytest.approx([0, 0.5, 0.5], abs=1e-12)
    assert weights(server, [0, 1, 2], [1e9, 1.0, 1e-10]) == pytest.approx([1, 0, 0], abs=1e-12)


def test_a_client_seen_for_the_first_time_has_only_new_weight() -> None:
    server = Server(SAGA(beta=0.25, q=1.0), torch.zeros(1).double(), [1] * 3)
    assert weights(server, [0, 1], [1.0, 3.0]) == pytest.approx([0.25, 0.75])
    assert weights(server, [1, 2], [1.0, 1.0]) == pytest.approx([0.25 * 0.5 + 0.75, 0.25 * 0.5])


# what a client measures
def test_the_measurement_typed_out() -> None:
    """Sharpness and perturbed loss by autograd on the whole data set, on the model handed out."""
    x, y = samples(13, 1)
    net = network()
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()
    oracle = oracle_of(network(), x, y, eq.SGD(1.0))
    mean = lambda: nn.functional.cross_entropy(net(x), y)  # noqa: E731
    mean().backward()
    g = torch.cat([p.grad.flatten() for p in net.parameters()])
    rho = 0.2 * math.sqrt(3 / 8)
    before = float(mean().detach())
    nn.utils.vector_to_parameters(theta + rho * g / g.norm(), net.parameters())
    after = float(mean().detach())
    for variant, expected in (("S", after - before), ("L", after)):
        rule = SAGA(variant=variant, rho=0.2, tau=0.5)
        report, state = rule.finish(theta + 1, visit_of(oracle, theta, t=2, rounds=8))
        assert report["value"].shape == ()
        assert float(report["value"]) == pytest.approx(expected, abs=1e-12)
        assert state == {}


def test_for_small_rho_sharpness_is_rho_times_the_length_of_the_gradient() -> None:
    oracle = oracle_of(network(), *samples(13, 1), eq.SGD(1.0))
    theta = federation().model.initial
    length = float(oracle.gradient(theta).norm())
    for rho in (1e-3, 1e-4):
        report, _ = SAGA(rho=rho, tau=0.0).finish(theta, visit_of(oracle, theta))
        assert float(report["value"]) == pytest.approx(rho * length, rel=10 * rho)


def test_it_does_not_see_what_training_did() -> None:
    """The values of the first round are those of the initial model, whatever trains afterwards."""
    reports: list[Tensor] = []
    for epochs, solver in ((1, eq.SGD(0.1)), (4, eq.Adam(0.05))):
        seen: list[tuple[Job, Answer]] = []
        fitted("saga", 1, epochs=epochs, solver=solver, participation=1.0, engine=watched(seen))
        reports.append(torch.cat([answer.reports[0]["value"] for _, answer in seen]))
    assert torch.equal(reports[0], reports[1])
    assert reports[0].shape == (len(UNEQUAL),)


def test_buffers_stay_and_are_used_as_they_are() -> None:
    """BatchNorm in eval mode: moving the running statistics changes the value, measuring does not change them."""
    oracle = oracle_of(network("batchnorm"), *samples(13, 1), eq.SGD(1.0))
    vector = federation(kind="batchnorm").model.initial
    other = vector.clone()
    other[oracle.n_params :] += 0.5
    kept = vector.clone()
    a, b = (SAGA(tau=0.0).finish(v, visit_of(oracle, v))[0]["value"] for v in (vector, other))
    assert torch.equal(vector, kept)
    assert float((a - b).abs()) > 1e-6


def test_a_fitted_client_without_gradient_reports_nothing_sharp() -> None:
    """No direction to move in: S is exactly 0, and L the loss."""
    net = nn.Linear(2, 2).double()
    x, y = torch.zeros(4, 2).double(), torch.tensor([0, 1, 0, 1])
    theta = torch.zeros(6).double()
    oracle = oracle_of(net, x, y, eq.SGD(1.0))
    S, L = (SAGA(variant=v).finish(theta, visit_of(oracle, theta))[0]["value"] for v in "SL")
    assert float(S) == 0.0
    assert float(L) == pytest.approx(math.log(2))


def test_in_float32_the_difference_is_taken_in_float64() -> None:
    """One report in the network's dtype; the two means agree to more digits than float32 can hold of either."""
    x, y = samples(400, 1)
    oracle = oracle_of(network().float(), x.float(), y, eq.SGD(1.0))
    theta = federation().model.initial.float()
    exact = oracle_of(network(), x.float().double(), y, eq.SGD(1.0))
    rule = SAGA(rho=1e-3, tau=0.0)
    got = rule.finish(theta, visit_of(oracle, theta))[0]["value"]
    expected = rule.finish(theta.double(), visit_of(exact, theta.double()))[0]["value"]
    assert got.dtype == torch.float32
    assert float(got) == pytest.approx(float(expected), rel=2e-4)


def test_l_at_rho_0_is_the_weights_of_q_ffl() -> None:
    a = fitted("saga(variant=L, rho=0, beta=1)", 3, sizes=(9, 9, 9, 9), participation=1.0)
    b = fitted("fedavg+qffl(q=2)", 3, sizes=(9, 9, 9, 9), participation=1.0)
    assert float((a.progress.vector - b.progress.vector).abs().max()) < 1e-9


def test_the_sharper_client_counts_more() -> None:
    """One client's labels are noise: its gradient is longer than those of the others once they agree."""
    data = clients((30, 30, 30, 30))
    fed = fitted("saga(q=4)", 1, data=data, participation=1.0)
    values = [
        float(
            SAGA(q=4.0).finish(
                fed.model.initial, visit_of(oracle_of(network(), x, y, eq.SGD(1.0)), fed.model.initial, t=0, rounds=1)
            )[0]["value"]
        )
        for x, y in data
    ]
    w = fed.records[0]["weights"]
    assert sorted(range(4), key=values.__getitem__) == sorted(range(4), key=w.__getitem__)


@pytest.mark.parametrize("method", ["saga", "saga:L", "saga:released"])
def test_engines_agree(method: str) -> None:
    a, b = (fitted(method, 4, engine=e, solver=eq.Adam(0.01)) for e in ("sequential", "stacked"))
    assert difference(a, b) < 1e-10


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_what_is_recorded(engine: str) -> None:
    """Sharpness and perturbed loss of the model handed out; L records the latter alone. Neither takes a byte more than the value."""
    S, L = (fitted(f"saga(variant={v})", 1, engine=engine, participation=1.0).records[0] for v in "SL")
    start, oracles = federation().model.initial, [oracle_of(network(), x, y, eq.SGD(1.0)) for x, y in clients()]
    assert len(S["sharpness"]) == len(oracles)
    for oracle, sharpness, perturbed in zip(oracles, S["sharpness"], S["perturbed_loss"], strict=True):
        g = oracle.gradient(start)
        expected = float(oracle.loss(start + 0.1 * g / g.norm()))
        assert perturbed == pytest.approx(expected, abs=1e-9)
        assert sharpness == pytest.approx(expected - float(oracle.loss(start)), abs=1e-9)
    assert L["perturbed_loss"] == pytest.approx(S["perturbed_loss"])
    assert "sharpness" not in L
    assert S["bytes"] == L["bytes"]


def test_presets_and_ranges() -> None:
    assert eq.parse("saga:L").rules == (SAGA(variant="L"),)
    assert eq.parse("saga:released").rules == (SAGA(offset=1e-10),)
    for wrong, message in (
        ({"variant": "X"}, "variant must be one of S, L; found 'X'"),
        ({"beta": 0.0}, r"beta must be in \(0, 1\]; found 0\.0"),
        ({"q": -1.0}, r"q must be >= 0; found -1\.0"),
        ({"floor": 0.0}, r"floor must be > 0; found 0\.0"),
    ):
        with pytest.raises(ValueError, match=f"SAGA: {message}"):
            SAGA(**wrong)
