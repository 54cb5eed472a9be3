"""Ditto: the personal steps typed out, which model anchors them, and who predicts with what."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.methods.ditto import Ditto, DittoPersonal
from helpers import UNEQUAL, Quadratic, StartAt, difference, federation, fitted, normal, samples, tensor

G = 3


def quadratic(seed: int = 0) -> Quadratic:
    root = normal(G, G, seed=seed)
    return Quadratic(root @ root.T / G + 0.5 * torch.eye(G, dtype=torch.float64), normal(G, seed=seed + 1))


@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_personal_steps_typed_out(lam: float) -> None:
    """v <- v - eta (A v - b + lam (v - W)) with the received W, whatever happens to w meanwhile."""
    client, W, v0 = quadratic(), normal(G, seed=7), normal(G, seed=8)
    A, b = client.A.tolist(), client.b.tolist()
    v = v0.tolist()
    for _ in range(4):
        g = [sum(A[i][j] * v[j] for j in range(G)) - b[i] for i in range(G)]
        v = [v[i] - 0.1 * (g[i] + lam * (v[i] - float(W[i]))) for i in range(G)]
    oracle = client.oracle(eq.SGD(0.1), 4)
    trained, (report,), (state,), _ = visit_client([DittoPersonal(lam)], oracle, 0, 1, W, [{"v": v0}], [{}])
    assert state["v"].tolist() == pytest.approx(v, abs=1e-14)
    assert report == {}
    alone, _, _, _ = visit_client([], oracle, 0, 1, W, [], [])
    assert torch.equal(trained, alone)  # the global track knows nothing of v
    uploaded, _, (kept,), _ = visit_client([Ditto(lam)], oracle, 0, 1, W, [{"v": v0}], [{}])
    assert torch.equal(uploaded, state["v"])  # the same steps, and v itself is sent
    assert torch.equal(kept["v"], uploaded)


def test_personal_models_are_averaged_by_samples() -> None:
    """One round of ``ditto``: the new global model is the mean of the v, which stay with the clients."""
    fed = fitted("ditto", 3, participation=1.0)
    v, sizes = fed.progress.clients[0]["v"], tensor(UNEQUAL)
    assert torch.allclose(fed.progress.vector, (sizes / sizes.sum()) @ v, rtol=0, atol=1e-13)
    assert float((v[0] - v[1]).abs().max()) > 1e-3


def test_without_the_pull_everybody_trains_alone() -> None:
    """lam = 0: v_m is what client m gets without any federation; sizes are unequal, so nothing else gives it."""
    together = fitted("ditto(lam=0)", 3, participation=1.0, solver=eq.SGD(0.1), batch_size=64, epochs=1)
    x, y = samples(13, 1)
    alone = fitted("fedavg", 3, participation=1.0, solver=eq.SGD(0.1), batch_size=64, epochs=1, data=[(x, y)])
    assert torch.allclose(together.progress.clients[0]["v"][1], alone.progress.vector, rtol=0, atol=1e-13)
    personal = fitted("ditto-personal(lam=0)", 3, participation=1.0, solver=eq.SGD(0.1), batch_size=64, epochs=1)
    assert torch.allclose(personal.progress.clients[0]["v"][1], alone.progress.vector, rtol=0, atol=1e-13)


def test_a_strong_pull_keeps_v_near_the_global_model() -> None:
    far, near = (fitted(f"ditto-personal(lam={lam})", 6, participation=1.0, solver=eq.SGD(0.05)) for lam in (0.0, 10.0))
    spread = [float((f.progress.clients[0]["v"] - f.progress.vector).norm(dim=1).max()) for f in (far, near)]
    assert spread[1] < spread[0] / 3


@pytest.mark.parametrize("method", ["ditto", "ditto-personal"])
def test_clients_predict_with_their_own_model(method: str) -> None:
    fed = fitted(method, 2, participation=1.0)
    x, _ = samples(9, 1)
    for m in (0, 3):
        mine = fed.model.network(fed.progress.clients[0]["v"][m])
        assert torch.equal(fed.logits(x, client=m), mine(x).detach())
    assert torch.equal(fed.logits(x), fed.model.network(fed.progress.vector)(x).detach())
    assert fed.personal


def test_absent_clients_keep_their_model() -> None:
    fed = federation("ditto", participation=0.4)
    before = fed.progress.clients[0]["v"]
    fed.fit(1, progress=False)
    after, here = fed.progress.clients[0]["v"], fed.records[0]["ids"]
    assert [not torch.equal(before[m], after[m]) for m in range(5)] == [m in here for m in range(5)]


def test_the_global_track_is_untouched() -> None:
    a, b = fitted("ditto-personal", 3), fitted("fedavg", 3)
    assert torch.equal(a.progress.vector, b.progress.vector)
    assert difference(fitted("ditto-personal", 3, engine="stacked"), a) < 1e-12


def test_two_rules_cannot_both_say_where_training_starts() -> None:
    with pytest.raises(eq.MethodError, match="each set where training starts"):
        eq.Method((Ditto(), StartAt()))
