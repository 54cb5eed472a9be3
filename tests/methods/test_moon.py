"""MOON: the contrastive loss in scalars, and which model is contrasted with which."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.model import Model
from equipoise.methods.moon import Moon, contrast
from helpers import (
    federation,
    fitted,
    network,
    normal,
    one_step_gradient,
    oracle_of,
    out_of,
    samples,
    visit_of,
    watched,
)


def cos(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (max(math.hypot(*a), 1e-8) * max(math.hypot(*b), 1e-8))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_eq_3_typed_out(temperature: float) -> None:
    z, near, far = (normal(6, 5, seed=s) for s in (1, 2, 3))
    got = contrast(z, near, far, temperature)
    for row, (a, g, p) in enumerate(zip(z.tolist(), near.tolist(), far.tolist(), strict=True)):
        up, down = math.exp(cos(a, g) / temperature), math.exp(cos(a, p) / temperature)
        assert float(got[row]) == pytest.approx(-math.log(up / (up + down)), abs=1e-12)


def test_previous_equal_to_global_is_ln_2_without_gradient() -> None:
    z = normal(4, 5).requires_grad_()
    other = normal(4, 5, seed=1)
    loss = contrast(z, other, other, 0.5)
    assert loss.tolist() == pytest.approx([math.log(2)] * 4)
    (g,) = torch.autograd.grad(loss.sum(), z)
    assert float(g.abs().max()) < 1e-15


def test_dead_features_have_no_direction() -> None:
    """All-zero features: the cosine is 0, the loss ln 2, nothing is NaN."""
    z = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    loss = contrast(z, normal(2, 5), normal(2, 5, seed=1), 0.5)
    assert loss.tolist() == pytest.approx([math.log(2)] * 2)
    loss.sum().backward()
    assert bool(z.grad.isfinite().all())


def vector(net: nn.Module, seed: int) -> torch.Tensor:
    """A whole model vector near the network's own, with positive statistics."""
    first = Model(net).initial
    return first + 0.3 * normal(len(first), seed=seed).abs()


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_gradient_against_plain_torch(kind: str) -> None:
    """The local network in training mode, the global and the previous one in eval mode and without gradient."""
    net = network(kind)
    x, y = samples(12, 1)
    at, received, previous = (vector(net, s) for s in (1, 2, 3))
    rule = Moon(mu=5.0, temperature=0.5)
    oracle = oracle_of(net, x, y, eq.SGD(1.0))
    state = {"previous": previous, "seen": torch.ones(1, dtype=torch.float64)}
    got = one_step_gradient([rule], oracle, at, received, [state], [{}])

    model = Model(net)
    local, fixed = model.network(at).train(), [model.network(v).eval() for v in (received, previous)]
    body = lambda n: nn.Sequential(*list(n)[:-1]) if kind == "mlp" else lambda x: torch.tanh(n.norm(n.a(x)))  # noqa: E731
    head = local[-1] if kind == "mlp" else local.head
    z = body(local)(x)
    with torch.no_grad():
        near, far = (body(n)(x) for n in fixed)
    pair = torch.stack([functional.cosine_similarity(z, other, dim=1) for other in (near, far)], 1) / 0.5
    con = functional.cross_entropy(pair, torch.zeros(12, dtype=torch.int64))
    loss = functional.cross_entropy(head(z), y) + 5.0 * con
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(local.parameters()))])
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)


def test_looking_at_other_models_does_not_move_the_statistics() -> None:
    net = network("batchnorm")
    x, y = samples(12, 1)
    at = Model(net).initial
    moved = []
    for mu in (0.0, 5.0):
        oracle = oracle_of(net, x, y, eq.SGD(0.1))
        state = {"previous": vector(net, 3), "seen": torch.ones(1, dtype=torch.float64)}
        trained, _, _, _ = visit_client([Moon(mu)], oracle, 0, 1, at, [state], [{}])
        moved.append(trained)
    P = Model(net).n_params
    assert torch.equal(moved[0][P:], moved[1][P:])
    assert not torch.equal(moved[0][P:], at[P:])
    assert not torch.equal(moved[0][:P], moved[1][:P])


def test_a_first_visit_has_no_contrastive_term() -> None:
    net = network()
    x, y = samples(9, 1)
    oracle = oracle_of(net, x, y, eq.SGD(1.0))
    rule, start = Moon(mu=5.0), Model(net).initial
    fed = federation(rule)
    state = {k: v[0] for k, v in fed.progress.clients[0].items()}
    assert float(rule.loss(out_of(oracle, start), visit_of(oracle, start, state))) == 0
    one, other = fitted("moon(mu=5)", 1).progress.vector, fitted("fedavg", 1).progress.vector
    assert torch.allclose(one, other, rtol=0, atol=1e-15)  # the gradient of fedavg's loss is a formula


def test_previous_is_the_clients_own_model_of_its_last_visit() -> None:
    """Before aggregation, and kept while the client is absent."""
    seen: list = []
    fed = federation("moon", participation=0.4, engine=watched(seen))
    for _ in range(4):
        fed.fit(1, progress=False)
        state = fed.progress.clients[0]
        answers = {job.ids[answer.rows[0]]: answer.trained[0] for job, answer in seen}  # the last of each
        for m in range(5):
            assert float(state["seen"][m]) == (m in answers)
            assert torch.equal(state["previous"][m], answers.get(m, fed.model.initial))
    assert len(answers) > 2
    assert not torch.equal(next(iter(answers.values())), fed.progress.vector)


def test_presets_and_ranges() -> None:
    assert eq.parse("moon:cifar10").rules == (Moon(mu=5.0),)
    assert copy.deepcopy(Moon()) == Moon(mu=1.0, temperature=0.5)
    with pytest.raises(ValueError, match=r"Moon: temperature must be >= 1e-06; found 0\."):
        Moon(temperature=0)
