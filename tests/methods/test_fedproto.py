"""FedProto: prototypes in scalars, the pull on each sample, and what happens to classes nobody holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import equipoise as eq
from equipoise.core import maths
from equipoise.core.model import Model
from equipoise.core.rule import Trained
from equipoise.methods.fedproto import FedProto, global_prototypes, local_prototypes
from helpers import (
    N_CLASSES,
    Server,
    clients,
    federation,
    fitted,
    network,
    normal,
    oracle_of,
    out_of,
    reported_prototypes,
    samples,
    visit_of,
    watched,
)

D = 7  # features of the test network


def message(known: list[float], seed: int = 4) -> dict[str, torch.Tensor]:
    there = torch.tensor(known, dtype=torch.float64)[:, None]
    return {"proto": normal(N_CLASSES, D, seed=seed) * there, "known": there}


@pytest.mark.parametrize("known", [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_pull_typed_out(known: list[float]) -> None:
    """Mean over samples and feature dimensions; a sample whose class has no prototype adds 0 and counts."""
    net = network()
    x, y = samples(11, 1)
    oracle, start = oracle_of(net, x, y, eq.SGD(1.0)), Model(net).initial
    out, told = out_of(oracle, start), message(known)
    total = 0.0
    for z, label in zip(out.features.tolist(), y.tolist(), strict=True):
        if known[label]:
            total += sum((a - b) ** 2 for a, b in zip(z, told["proto"][label].tolist(), strict=True)) / D
    got = FedProto(lam=0.7).loss(out, visit_of(oracle, start, {}, told))
    assert float(got) == pytest.approx(0.7 * total / 11, abs=1e-14)


def test_local_prototypes_typed_out() -> None:
    """Mean features at the trained model, in eval mode; a class without samples has count 0."""
    net = network("batchnorm")
    x, y = samples(15, 2)
    y = y.clamp(max=1)
    oracle, trained = (
        oracle_of(net, x, y, eq.SGD(1.0)),
        Model(net).initial + 0.2 * normal(len(Model(net).initial)).abs(),
    )
    visit = visit_of(oracle, trained)
    visit = replace(visit, done=Trained(trained[: oracle.n_params], trained))
    got, weighted = (local_prototypes(visit, N_CLASSES, w) for w in (False, True))
    there = Model(net).network(trained).eval()
    features = torch.tanh(there.norm(there.a(x))).tolist()
    for c in range(N_CLASSES):
        mine = [z for z, label in zip(features, y.tolist(), strict=True) if label == c]
        assert int(got["share"][c]) == min(len(mine), 1)
        assert int(weighted["share"][c]) == len(mine)
        expected = [sum(column) / len(mine) for column in zip(*mine, strict=True)] if mine else [0.0] * D
        assert got["proto"][c].tolist() == pytest.approx(expected, abs=1e-14)
        assert weighted["proto"][c].tolist() == pytest.approx([len(mine) * z for z in expected], abs=1e-14)
    assert got["share"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("weighted", [False, True])
def test_global_prototypes_typed_out(weighted: bool) -> None:
    local, counts = (
        normal(4, N_CLASSES, D),
        torch.tensor([[3.0, 0, 2], [0, 0, 5], [1, 0, 1], [9, 0, 0]], dtype=torch.float64),
    )
    before = {"proto": normal(N_CLASSES, D, seed=9), "known": torch.ones(N_CLASSES, 1, dtype=torch.float64)}
    after = global_prototypes(before, reported_prototypes(local, counts, weighted))
    for c in range(N_CLASSES):
        holders = [m for m in range(4) if counts[m, c] > 0]
        for i in range(D):
            total = sum(float(counts[m, c]) for m in holders) if weighted else len(holders)
            share = [(float(counts[m, c]) if weighted else 1) / total for m in holders] if holders else []
            expected = (
                sum(s * float(local[m, c, i]) for s, m in zip(share, holders, strict=True))
                if holders
                else float(before["proto"][c, i])
            )
            assert float(after["proto"][c, i]) == pytest.approx(expected, abs=1e-14)


def test_a_class_is_unknown_until_somebody_holds_it() -> None:
    server = Server(FedProto(), normal(2), [1, 1], n_classes=2, n_features=3)
    assert server.state[0]["known"].flatten().tolist() == [0, 0]
    local = normal(1, 2, 3)
    counts = torch.tensor([[0.0, 4.0]], dtype=torch.float64)
    server.round(normal(1, 2), [0], [reported_prototypes(local, counts)])
    assert server.state[0]["known"].flatten().tolist() == [0, 1]
    server.round(normal(1, 2), [1], [reported_prototypes(local + 1, 1 - counts.clamp(max=1))])
    assert server.state[0]["known"].flatten().tolist() == [1, 1]
    assert torch.equal(server.state[0]["proto"][1], local[0, 1])  # nobody held it in the second round


def test_the_model_is_averaged_by_samples() -> None:
    server = Server(FedProto(), torch.zeros(2, dtype=torch.float64), [1, 3], n_classes=2, n_features=3)
    updates = normal(2, 2)
    server.round(updates, reports=[reported_prototypes(normal(2, 2, 3), torch.ones(2, 2, dtype=torch.float64))])
    assert torch.allclose(server.theta, 0.25 * updates[0] + 0.75 * updates[1])


def test_the_first_round_is_fedavg_and_the_second_is_not() -> None:
    one, other = fitted("fedproto(lam=3)", 1).progress.vector, fitted("fedavg", 1).progress.vector
    assert torch.allclose(one, other, rtol=0, atol=1e-15)  # the gradient of fedavg's loss is a formula
    assert not torch.allclose(
        fitted("fedproto(lam=3)", 2).progress.vector, fitted("fedavg", 2).progress.vector, atol=1e-3
    )


def test_prototypes_of_a_federation_are_those_of_its_clients() -> None:
    """After one round: the mean over clients of class means at each client's own trained model."""
    data = clients()
    seen: list = []
    fed = federation("fedproto", data=data, participation=1.0, engine=watched(seen))
    fed.fit(1, progress=False)
    trained = [answer.trained[0] for _, answer in seen]
    sums, holders = torch.zeros(N_CLASSES, D, dtype=torch.float64), torch.zeros(N_CLASSES)
    for (x, y), vector in zip(data, trained, strict=True):
        z = fed.model.network(vector)[:2](x).detach()
        for c in y.unique().tolist():
            sums[c] += z[y == c].mean(0)
            holders[c] += 1
    assert torch.allclose(fed.progress.server[0]["proto"], maths.class_means(sums, holders), rtol=0, atol=1e-13)


def test_presets() -> None:
    assert eq.parse("fedproto:marsfl").rules == (FedProto(lam=2.0),)
    assert eq.parse("fedproto:weighted").rules == (FedProto(weighted=True),)
    assert eq.parse("fedproto").rules == (FedProto(lam=1.0, weighted=False),)
