"""FairFed: the weights in scalars, with and without clipping, absent clients, and what FFL4MIA computes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.federation.method import MethodError
from equipoise.methods.fairfed import FairFed, gaps
from helpers import UNEQUAL, Server, clients, federation, in_one, normal, samples, tensor

COHORTS = [[0, 1, 2, 3], [1, 2], [0, 2, 3], [3], [0, 1, 2, 3], [0, 3]]


def accuracies(n: int, seed: int) -> list[float]:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


@in_one("clip", [True, False])
@in_one("beta", [0.0, 0.1, 1.0])
def test_the_equation_typed_out(beta: float, clip: bool) -> None:
    """Means over those present; the others keep what they have."""
    sizes, W = [5, 50, 10, 35], normal(3)
    server = Server(FairFed(metric="accuracy", beta=beta, clip=clip), W, sizes)
    start = [n / sum(sizes) for n in sizes]
    bar, theta = list(start), W.tolist()
    for t, ids in enumerate(COHORTS):
        updates, acc = normal(len(ids), 3, seed=10 + t), accuracies(len(ids), t)
        cohort = server.round(updates, ids, [{"accuracy": tensor(acc)}])
        here = sum(sizes[m] for m in ids)
        overall = sum(sizes[m] / here * a for m, a in zip(ids, acc, strict=True))
        delta = [abs(a - overall) for a in acc]
        for m, d in zip(ids, delta, strict=True):
            bar[m] -= beta * (d - sum(delta) / len(ids))
            bar[m] = max(bar[m], 0.0) if clip else bar[m]
        if sum(bar[m] for m in ids) <= 0:
            for m in ids:
                bar[m] = start[m]
        omega = [bar[m] / sum(bar[j] for j in ids) for m in ids]
        theta = [x + sum(w * float(u[g]) for w, u in zip(omega, updates, strict=True)) for g, x in enumerate(theta)]
        assert server.state[0]["bar"].tolist() == pytest.approx(bar, abs=1e-12), t
        assert server.theta.tolist() == pytest.approx(theta, abs=1e-10), t
        if clip:
            assert cohort.weights.tolist() == pytest.approx(omega, abs=1e-12)
            assert cohort.coefficients is None


def test_one_round_by_hand() -> None:
    """Accuracies 1 and 0.5 of equal clients and a third at 0.6: mean 0.7, gaps 0.3, 0.2, 0.1."""
    server = Server(FairFed(metric="accuracy", beta=1.0), torch.zeros(1, dtype=torch.float64), [1, 1, 1])
    cohort = server.round(normal(3, 1), reports=[{"accuracy": tensor([1.0, 0.5, 0.6])}])
    assert cohort.weights.tolist() == pytest.approx([1 / 3 - 0.1, 1 / 3, 1 / 3 + 0.1])


@given(seed=st.integers(0, 10**6), M=st.integers(1, 6), clip=st.booleans())
def test_weights_stay_weights(seed: int, M: int, clip: bool) -> None:
    """Without clipping the sum of the state never changes; the weights are convex in any case."""
    server = Server(
        FairFed(metric="accuracy", beta=1.0, clip=clip), torch.zeros(1, dtype=torch.float64), range(1, M + 1)
    )
    for t in range(4):
        cohort = server.round(normal(M, 1), reports=[{"accuracy": tensor(accuracies(M, seed + t))}])
        assert float(cohort.weights.sum()) == pytest.approx(1)
        assert bool((cohort.weights >= 0).all())
        total = float(server.state[0]["bar"].sum())
        assert total >= 1 - 1e-12 if clip else total == pytest.approx(1)


def test_a_negative_weight_moves_away_but_not_the_buffers() -> None:
    """The published rule: the third client is far off and has few samples."""
    buffers = normal(3, 2)
    server = Server(
        FairFed(metric="accuracy", beta=1.0, clip=False),
        torch.zeros(2, dtype=torch.float64),
        [5, 4, 1],
        buffers=tensor([0.0, 0.0]),
    )
    updates = normal(3, 2, seed=1)
    cohort = server.round(updates, reports=[{"accuracy": tensor([0.9, 0.9, 0.1])}], buffer_updates=buffers)
    assert float(cohort.coefficients[2]) < 0
    assert float(cohort.coefficients.sum()) == pytest.approx(1)
    assert torch.allclose(server.theta, cohort.coefficients @ updates)
    positive = cohort.coefficients.clamp(min=0)
    assert torch.allclose(server.buffers, positive / positive.sum() @ buffers)


def test_those_without_weight_start_anew_when_alone() -> None:
    server = Server(FairFed(metric="accuracy", beta=10.0), torch.zeros(1, dtype=torch.float64), [1, 1, 8])
    server.round(normal(3, 1), reports=[{"accuracy": tensor([0.0, 0.1, 1.0])}])
    assert server.state[0]["bar"][0] == 0
    cohort = server.round(normal(1, 1), [0], [{"accuracy": tensor([0.3])}])
    assert cohort.weights.tolist() == [1.0]
    assert float(server.state[0]["bar"][0]) == pytest.approx(0.1)


def test_a_group_metric_takes_the_place_of_the_accuracy() -> None:
    p, accuracy = tensor([0.5, 0.3, 0.2]), tensor([0.9, 0.5, 0.4])
    overall = 0.5 * 0.9 + 0.3 * 0.5 + 0.2 * 0.4
    assert gaps(accuracy, p).tolist() == pytest.approx([abs(a - overall) for a in (0.9, 0.5, 0.4)])
    metric = tensor([0.2, math.nan, -0.3])
    assert gaps(accuracy, p, metric, 0.1).tolist() == pytest.approx([0.1, abs(0.5 - overall), 0.4])


def test_released_typed_out() -> None:
    """Nothing in the first round; the mean accuracy lacks its sum; the normalised weights are carried."""
    sizes, beta = [5, 50, 10, 35], 0.7
    server = Server(eq.parse("fairfed:ffl4mia(beta=0.7)"), torch.zeros(1, dtype=torch.float64), sizes)
    p = [n / sum(sizes) for n in sizes]
    w = list(p)
    for t in range(5):
        acc = accuracies(4, t)
        cohort = server.round(normal(4, 1), reports=[{"accuracy": tensor(acc)}])
        if t > 0:
            delta = [abs(a - q * a) for a, q in zip(acc, p, strict=True)]
            w = [max(x - beta * (d - sum(delta) / 4), 0.0) for x, d in zip(w, delta, strict=True)]
            w = [x / sum(w) for x in w]
        assert cohort.weights.tolist() == pytest.approx(w, abs=1e-12)
        assert server.state[0]["bar"].tolist() == pytest.approx(w, abs=1e-12)


def test_presets_and_what_they_own() -> None:
    assert eq.parse("fairfed").rules == (FairFed(),)
    assert eq.parse("fairfed:accuracy").rules == (FairFed(metric="accuracy"),)
    assert eq.parse("fairfed:published").rules == (FairFed(clip=False),)
    assert eq.parse("fairfed:ffl4mia").rules == (FairFed(metric="accuracy", form="ffl4mia", balanced=True),)
    assert FairFed().owns == {"weights"}
    with pytest.raises(MethodError, match="each set"):
        eq.parse("fairfed:published+fedfv")


@pytest.mark.parametrize("values", [{"beta": -0.1}, {"clip": 1}, {"form": "official"}])
def test_bad_values(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"FairFed: {next(iter(values))} must be"):
        FairFed(**values)


@pytest.mark.parametrize("balanced", [False, True])
def test_the_accuracy_is_that_of_the_received_model(balanced: bool) -> None:
    data = clients()
    fed = federation(f"fairfed:accuracy(beta=0.3, balanced={balanced})", participation=1.0)
    accuracy = []
    for x, y in data:
        right = fed.model.network(fed.model.initial)(x).argmax(-1) == y
        parts = [right[y == k].double().mean() for k in y.unique()] if balanced else [right.double().mean()]
        accuracy.append(float(torch.stack(parts).mean()))
    fed.fit(1, progress=False)
    server = Server(FairFed(metric="accuracy", beta=0.3), normal(1), UNEQUAL)
    expected = server.round(normal(5, 1), reports=[{"accuracy": tensor(accuracy)}]).weights
    assert fed.records[0]["weights"] == pytest.approx(expected.tolist(), abs=1e-12)
    assert len({*accuracy}) > 1


def test_two_equal_clients_keep_equal_weights() -> None:
    fed = federation("fairfed:accuracy", data=[samples(8, 1), samples(8, 1)], participation=1.0, batch_size=8)
    fed.fit(3, progress=False)
    assert all(r["weights"] == pytest.approx([0.5, 0.5]) for r in fed.records)
