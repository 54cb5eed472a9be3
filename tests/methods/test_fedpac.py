"""FedPAC: statistics, mixtures and training typed out, and what each client predicts with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import State
from equipoise.methods.fedpac import FedPAC
from equipoise.methods.fedproto import global_prototypes
from helpers import (
    clients,
    federation,
    fitted,
    in_one,
    network,
    normal,
    oracle_of,
    out_of,
    reported_prototypes,
    samples,
    visit_of,
)

C, D = 3, 7


def asked(n: int = 11, seed: int = 2, steps: int = 1, lr: float = 0.1) -> Oracle:
    return oracle_of(network(), *samples(n, seed), eq.SGD(lr, 0.5, 1e-3), steps)


def head(oracle: Oracle) -> Tensor:
    return oracle.head.nonzero().flatten()


def message(oracle: Oracle, known: list[float], seed: int = 5) -> State:
    here = torch.tensor(known, dtype=torch.float64)[:, None]
    return {"head": normal(len(head(oracle)), seed=seed), "proto": normal(C, D, seed=seed + 1) * here, "known": here}


def features(vector: Tensor, x: Tensor) -> Tensor:
    first, bias = vector[: 6 * 7].view(7, 6), vector[6 * 7 : 6 * 7 + 7]
    return torch.tanh(x @ first.T + bias)


def test_statistics_typed_out() -> None:
    x, y = samples(11, 2)
    y[y == 1] = 0  # nobody has class 1
    oracle = oracle_of(network(), x, y, eq.SGD(0.1), steps=1)
    theta = Model(network()).initial
    _, (report,), _, _ = visit_client(
        (FedPAC(),), oracle, 0, 9, theta, [{"where": head(oracle)}], [message(oracle, [0, 0, 0])]
    )
    z, n = features(theta, x), len(y)
    H, V = torch.zeros(C, D, dtype=torch.float64), 0.0
    for c in range(C):
        own = z[y == c]
        if len(own):
            share = len(own) / n
            H[c] = share * own.mean(0)
            V += share * float(own.square().sum(1).mean()) - share**2 * float(own.mean(0).square().sum())
    assert torch.allclose(report["H"], H, rtol=0, atol=1e-13)
    assert float(report["V"]) == pytest.approx(V / n, abs=1e-13)
    assert report["share"].tolist() == [int((y == c).sum()) for c in range(C)]


def test_a_visit_typed_out() -> None:
    """One epoch of the classifier from the client's own, then the features beside the targets; momentum starts anew."""
    rule, lr = FedPAC(lam=0.7, head_lr=0.3), 0.05
    oracle = asked(steps=2, lr=lr)
    told = message(oracle, [1, 0, 1])
    theta = Model(network()).initial
    trained, (report,), _, _ = visit_client((rule,), oracle, 3, 9, theta, [{"where": head(oracle)}], [told])
    x, y = samples(11, 2)
    z = features(theta, x)
    table = [told["proto"][c] if told["known"][c] else z[y == c].mean(0) for c in range(C)]
    targets = torch.stack([table[int(c)] for c in y])

    def logits(v: Tensor) -> Tensor:
        return features(v, x) @ v[49:70].view(3, 7).T + v[70:]

    def steps(v: Tensor, part: slice, rate: float, loss: Callable[[Tensor], Tensor], count: int) -> Tensor:
        momentum = None
        for _ in range(count):
            v = v.detach().requires_grad_()
            (g,) = torch.autograd.grad(loss(v), v)
            g = (g + 1e-3 * v.detach())[part]
            momentum = g if momentum is None else 0.5 * momentum + g
            v = v.detach().clone()
            v[part] -= rate * momentum
        return v

    v = theta.clone()
    v[49:] = told["head"]
    v = steps(v, slice(49, 73), 0.3, lambda v: cross_entropy(logits(v), y), 2)  # both steps are of one epoch
    body = lambda v: cross_entropy(logits(v), y) + 0.7 * (features(v, x) - targets).square().mean()  # noqa: E731
    v = steps(v, slice(0, 49), lr, body, 2)
    assert torch.allclose(trained, v, rtol=0, atol=1e-12)
    means = torch.stack([features(v, x)[y == c].mean(0) for c in range(C)])
    assert torch.allclose(report["proto"], means * report["share"][:, None], rtol=0, atol=1e-12)


def test_the_head_trains_for_one_epoch_only() -> None:
    """Of three: as many steps as one epoch has."""
    fed = federation("fedpac", epochs=3, participation=1.0)
    one = federation("fedpac", epochs=1, participation=1.0)
    for f in (fed, one):
        f.fit(1, progress=False)
    h = fed.model.head
    assert torch.allclose(fed.progress.vector[h], one.progress.vector[h], rtol=0, atol=1e-12)
    assert not torch.allclose(fed.progress.vector[~h], one.progress.vector[~h], rtol=0, atol=1e-4)


def test_the_first_round_has_no_alignment() -> None:
    oracle = asked()
    theta = Model(network()).initial
    for known, there in (([0, 0, 0], False), ([0, 1, 0], True)):
        visit = visit_of(oracle, theta, {"where": head(oracle)}, message(oracle, known))
        out = out_of(oracle, normal(len(theta)))
        assert bool(FedPAC().loss(out, visit) > 0) is there


def test_means_of_the_received_model_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, looks = asked(), []
    theta = Model(network()).initial
    passes = oracle.passes
    monkeypatch.setattr(oracle, "passes", lambda vector: looks.append(vector) or passes(vector))
    first, again = oracle.moments(theta, C), oracle.moments(theta, C)
    assert len(looks) == 1
    assert all(a is b for a, b in zip(first, again, strict=True))
    oracle.moments(theta.clone(), C)
    assert len(looks) == 2


def objective(a: Tensor, H: Tensor, V: Tensor, m: int) -> float:
    return float((a**2 * V).sum() + (H[m] - torch.einsum("j,jcd->cd", a, H)).square().sum())


def test_mixtures_are_the_best_of_many() -> None:
    """No better mixture in a cloud of others, for every client."""
    H, V = normal(5, C, D, seed=1) * 0.4, normal(5, seed=2).abs() + 0.01
    mixed = FedPAC(threshold=0.0)._mixtures(H, V)
    assert torch.allclose(mixed.sum(1), torch.ones(5, dtype=torch.float64))
    assert bool((mixed >= 0).all())
    cloud = torch.distributions.Dirichlet(torch.full((5,), 0.3)).sample((2000,)).double()
    for m in range(5):
        best = objective(mixed[m], H, V, m)
        near = [0.99 * mixed[m] + 0.01 * other for other in cloud[:200]]
        assert all(best <= objective(a, H, V, m) + 1e-10 for a in (*cloud, *near))


def test_small_shares_are_dropped() -> None:
    H, V = normal(4, C, D, seed=3), torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    every = FedPAC(threshold=0.0)._mixtures(H, V)
    limit = float(every.min()) + 1e-9
    some = FedPAC(threshold=limit)._mixtures(H, V)
    dropped = every <= limit
    assert bool(dropped.any())
    assert not some[dropped].any()
    assert torch.allclose(some.sum(1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(FedPAC(threshold=1.0)._mixtures(H, V), torch.eye(4, dtype=torch.float64))  # nothing is left


@in_one(
    ("H", "V"),
    [
        (torch.zeros(3, C, D), torch.zeros(3)),
        (torch.ones(3, C, D), torch.zeros(3)),
        (normal(3, C, D).float(), torch.zeros(3)),
        (normal(1, C, D).float(), torch.ones(1)),
        (1e-12 * normal(3, C, D).float(), 1e-30 * torch.ones(3)),
    ],
)
def test_odd_statistics_give_mixtures(H: Tensor, V: Tensor) -> None:
    mixed = FedPAC()._mixtures(H, V)
    assert torch.allclose(mixed.sum(1), torch.ones(len(V), dtype=torch.float64))
    assert bool((mixed >= 0).all())


def test_same_data_share_one_classifier_and_strangers_do_not() -> None:
    H = torch.zeros(4, C, D, dtype=torch.float64)
    H[:2, 0], H[2:, 1] = 5.0, -5.0
    mixed = FedPAC()._mixtures(H, torch.full((4,), 0.1, dtype=torch.float64))
    expected = torch.tensor([[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2, dtype=torch.float64)
    assert torch.allclose(mixed, expected, rtol=0, atol=1e-3)


def test_heads_go_to_their_clients() -> None:
    """The features are averaged by samples, the classifiers are mixed, and absent clients keep theirs."""
    fed = federation("fedpac", participation=0.6)
    fed.fit(1, progress=False)
    present, (server,) = fed.records[0]["ids"], fed.progress.server
    where = fed.model.head.nonzero().flatten()
    assert torch.equal(server["where"], where)
    for m in range(5):
        kept = torch.equal(server["heads"][m], fed.model.initial[where])
        assert kept == (m not in present)
    x, _ = samples(9, 1)
    m = present[0]
    mine = fed.progress.vector.clone()
    mine[where] = server["heads"][m]
    assert torch.equal(fed.logits(x, client=m), fed.model.network(mine)(x).detach())
    assert not torch.allclose(fed.logits(x, client=m), fed.logits(x, client=present[1]), rtol=0, atol=1e-9)
    assert fed.personal


def test_a_class_nobody_holds_keeps_its_prototype() -> None:
    data = clients((9, 9))
    data[0][1][:] = 0
    data[1][1][:] = torch.tensor([0, 1, 2] * 3)
    fed = federation("fedpac", data=data, participation=1.0)
    fed.fit(1, progress=False)
    assert fed.progress.server[0]["known"].flatten().tolist() == [1.0, 1.0, 1.0]
    before = fed.progress.server[0]["proto"]
    alone = federation("fedpac", data=[data[0], (data[1][0], 0 * data[1][1])], participation=1.0)
    alone.progress = replace(alone.progress, server=fed.progress.server)
    alone.fit(1, progress=False)
    after = alone.progress.server[0]["proto"]
    assert torch.equal(after[1:], before[1:])
    assert not torch.equal(after[0], before[0])


def test_with_fedbn_and_weights_of_another() -> None:
    fed = fitted("fedpac+fedbn+afl", 2, kind="batchnorm", sizes=(9, 13, 9, 13, 9))
    assert bool(fed.progress.vector.isfinite().all())
    with pytest.raises(eq.MethodError, match="each set where training starts"):
        eq.parse("fedpac+ditto")


def test_prototypes_by_samples_or_equally() -> None:
    counts = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    local = torch.tensor([[[0.0]], [[4.0]]], dtype=torch.float64)
    state = {"proto": torch.zeros(1, 1, dtype=torch.float64), "known": torch.zeros(1, 1, dtype=torch.float64)}
    for weighted, expected in ((True, 3.0), (False, 2.0)):
        assert float(global_prototypes(state, reported_prototypes(local, counts, weighted))["proto"]) == expected


def test_presets_and_bad_input() -> None:
    assert eq.parse("fedpac").rules == (FedPAC(lam=1.0, head_lr=0.1, threshold=0.001, weighted=True),)
    for text, message in (("lam=-1.0", "lam must be >= 0"), ("head_lr=0.0", "head_lr must be > 0")):
        with pytest.raises(ValueError, match=f"fedpac: {message}"):
            eq.parse(f"fedpac({text})")
