"""FedAvg against the sum typed out, and against training on the pooled data."""

import pytest
import torch

import equipoise as eq
from equipoise.methods.fedavg import FedAvg
from helpers import Server, clients, federation, fitted, in_one, network, normal, oracle_of


def naive(W: list[float], updates: list[list[float]], sizes: list[int], ids: list[int], weights: str) -> list[float]:
    total = sum(sizes[m] for m in (range(len(sizes)) if weights == "population" else ids))
    after = list(W)
    for i in range(len(W)):
        for row, m in zip(updates, ids, strict=True):
            after[i] += row[i] * (1 / len(ids) if weights == "uniform" else sizes[m] / total)
    return after


@in_one("weights", ["samples", "uniform", "population"])
@in_one("ids", [[0, 1, 2, 3], [1, 3], [2]])
def test_the_sum_typed_out(weights: str, ids: list[int]) -> None:
    W, updates, sizes = normal(6, seed=1), normal(len(ids), 6, seed=2), [10, 30, 5, 15]
    server = Server(FedAvg(weights=weights), W, sizes)
    cohort = server.round(updates, ids)
    assert server.theta.tolist() == pytest.approx(naive(W.tolist(), updates.tolist(), sizes, ids, weights), abs=1e-14)
    assert float(cohort.weights.sum()) == pytest.approx(1)


def test_by_hand() -> None:
    """Models 2 and 6 of clients with 1 and 3 samples, from 1: by samples 1 + (1 + 3 * 5) / 4 = 5."""
    server = Server(FedAvg(), torch.ones(1, dtype=torch.float64), [1, 3])
    server.round(torch.tensor([[1.0], [5.0]], dtype=torch.float64))
    assert server.theta.tolist() == [5.0]


def test_buffers_are_averaged_in_full_under_population_weights() -> None:
    """A small step of the parameters must not leave the running statistics between two models."""
    updates, buffers = normal(2, 3), normal(2, 2, seed=5)
    server = Server(
        FedAvg(weights="population"),
        torch.zeros(3, dtype=torch.float64),
        [10, 30, 60],
        buffers=torch.ones(2, dtype=torch.float64),
    )
    server.round(updates, [0, 1], buffer_updates=buffers)
    assert torch.allclose(server.buffers, 1 + 0.25 * buffers[0] + 0.75 * buffers[1])
    assert torch.allclose(server.theta, 0.1 * updates[0] + 0.3 * updates[1])


def test_one_full_step_is_a_step_on_the_pooled_data() -> None:
    data = clients()
    x, y = (torch.cat(part) for part in zip(*data, strict=True))
    pooled = oracle_of(network(), x, y, eq.SGD(0.3))
    fed = federation("fedavg", data=data, solver=eq.SGD(0.3), epochs=1, batch_size=64, participation=1.0)
    fed.fit(1, progress=False)
    start = fed.model.initial
    assert torch.allclose(fed.progress.vector, start - 0.3 * pooled.gradient(start), rtol=0, atol=1e-14)


def test_no_rule_at_all_is_fedavg() -> None:
    assert torch.equal(fitted((), 2).progress.vector, fitted("fedavg", 2).progress.vector)


def test_the_presets_differ() -> None:
    assert eq.parse("fedavg") != eq.parse("fedavg:uniform")
    with pytest.raises(
        ValueError,
        match=r"FedAvg: weights must be one of samples, uniform, population, or a list of numbers >= 0, such as \[1, 2, 3\]; found 'equal'\.",
    ):
        FedAvg(weights="equal")


def test_fixed_weights_of_each_client() -> None:
    """Those of the absent do not count; in Python a list and a tuple are the same."""
    W, updates = normal(4), normal(2, 4, seed=1)
    server = Server(FedAvg(weights=[1, 5, 3]), W, [10, 10, 40])  # type: ignore[arg-type]
    server.round(updates, [0, 2])
    assert torch.allclose(server.theta, W + updates[0] / 4 + 3 * updates[1] / 4, rtol=0, atol=1e-15)
    method = eq.parse("fedavg(weights=[1, 5, 3])")
    assert method.rules == (FedAvg(weights=(1, 5, 3)),)
    assert method == eq.parse(str(method)) == eq.parse("fedavg", {"fedavg.weights": [1, 5, 3]})
    assert (
        eq.parse("fedprox(mu=0.5)+gifair(groups=[0,1], coeff=0.2)").text
        == "fedprox(mu=0.5)+gifair(groups=[0, 1], coeff=0.2)"
    )
    with pytest.raises(
        ValueError, match=r"^FedAvg: weights has 3 numbers, and there are 2 clients\. Give one for each"
    ):
        Server(FedAvg(weights=(1, 5, 3)), W, [10, 10])


def test_rates_of_several_rules_multiply() -> None:
    """SCAFFOLD's server rate 0.5 on the third of the population that takes part: a sixth of the mean update."""
    updates = normal(2, 4)
    server = Server("scaffold(eta=0.5)+fedavg(weights=population)", torch.zeros(4, dtype=torch.float64), [10, 10, 40])
    server.round(updates, [0, 1], [{"dc": updates}, {}])
    assert torch.allclose(server.theta, updates.mean(0) / 6, rtol=0, atol=1e-15)
