"""Regression: targets are numbers. Against scikit-learn, a naive loop of every rule's equations, other engines, and bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import r2_score, root_mean_squared_error
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import equipoise as eq
from equipoise.core.tally import together
from equipoise.core.task import CLASSIFICATION, Regression, task_of
from equipoise.flower.app import in_process
from equipoise.flower.site.task import Task as SiteTask
from equipoise.testing import checks
from equipoise.testing.federations import Subject
from helpers import in_one, others_slow

W = torch.tensor([30.0, -12.0, 5.0], dtype=torch.float64)


def numbers(n: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Inputs [n, 3] and targets [n] about 150, in the unit of the targets."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=draw) + shift
    return x, 150 + x @ W + 4 * torch.randn(n, dtype=torch.float64, generator=draw)


CLIENTS = [numbers(n, n, n / 20) for n in (12, 20, 9)]
TESTS = {"a": numbers(30, 1), "b": numbers(17, 2, 1.0)}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1).double()


def federation(method: Any = "fedavg", net: nn.Module | None = None, clients: Any = None, **more: Any) -> eq.Federation:
    given: dict[str, Any] = {"tests": TESTS, "batch_size": 5, "task": "regression", **more}
    return eq.Federation(net or linear(), clients or CLIENTS, method, eq.SGD(0.05), **given)


# measures
def test_measures_are_in_the_unit_of_the_targets() -> None:
    fed = federation()
    for name, (x, y) in TESTS.items():
        p = fed.predict(x).numpy()
        found = fed.evaluate()[name]
        assert found["rmse"] == pytest.approx(root_mean_squared_error(y, p))
        assert found["r2"] == pytest.approx(r2_score(y, p))
        assert found["n"] == len(y)
        assert "accuracy" not in found


def test_scores_of_several_sets_are_those_of_all_samples() -> None:
    fed = federation()
    task = fed.model.task
    whole = tuple(torch.cat(parts) for parts in zip(*TESTS.values(), strict=True))
    every = fed.evaluate(*whole)
    pooled = together(task.tally(fed.logits(x), y) for x, y in TESTS.values()).score()
    assert pooled == pytest.approx(every, rel=1e-12)


# the task
@pytest.mark.parametrize(("loss", "formula"), [
    ("squared", lambda e: e * e),
    ("absolute", abs),
    ("huber", lambda e: e * e / 2 if abs(e) < 1 else abs(e) - 0.5),
])  # fmt: skip
def test_losses_are_their_formulas(loss: str, formula: Any) -> None:
    task = Regression(loss, centre=10.0, scale=4.0)
    outputs, y = torch.tensor([[0.1], [-2.0], [3.0]], dtype=torch.float64), torch.tensor([11.0, 9.0, 30.0])
    expected = [formula(f - (t - 10) / 4) for (f,), t in zip(outputs.tolist(), y.tolist(), strict=True)]
    assert task.losses(outputs, y.double()).tolist() == pytest.approx(expected, rel=1e-12)
    assert task.predictions(outputs).tolist() == pytest.approx([10 + 4 * f for (f,) in outputs.tolist()])


def test_centre_and_scale_are_those_of_all_clients() -> None:
    y = torch.cat([y for _, y in CLIENTS])
    task = federation().model.task
    assert isinstance(task, Regression)
    assert (task.centre, task.scale) == pytest.approx((float(y.mean()), float(y.std(unbiased=False))))
    given = federation(task=Regression(centre=100.0)).model.task
    assert isinstance(given, Regression)
    assert given.centre == 100.0
    assert given.scale == pytest.approx(float(y.std(unbiased=False)))


@in_one(("text", "task"), [
    ("classification", CLASSIFICATION), ("regression", Regression()), ("regression(loss=huber)", Regression("huber")),
    (" regression( scale = 2, centre=-1e3 ,unit=mmHg)", Regression(centre=-1000.0, scale=2.0, unit="mmHg")),
])  # fmt: skip
def test_a_task_as_text(text: str, task: Any) -> None:
    assert task_of(text) == task
    assert task_of(str(task)) == task


@in_one(("given", "why"), [
    ("regresion", "regression"), ("regression(los=huber)", "Unknown option 'los'. Did you mean 'loss'"),
    ("regression(loss=cubed)", "one of squared, absolute, huber; found 'cubed'"),
    ("regression(scale=0)", "scale must be a finite number > 0"), ("regression(centre=x)", "centre|float"), ("regression(centre=nan)", "finite"),
    ("regression(", "regression"), ("classification(loss=huber)", "Unknown option 'loss'"), ("", "task"),
])  # fmt: skip
def test_what_is_no_task(given: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        task_of(given)
    with pytest.raises(TypeError, match='such as "regression"'):
        task_of(3)


# rules, against loops over their equations
def trained(theta: Tensor, x: Tensor, y: Tensor, steps: int, lr: float, correction: Tensor | float = 0.0) -> Tensor:
    """Full batches of a linear model: theta [4] are three weights and a bias."""
    for _ in range(steps):
        e = x @ theta[:3] + theta[3] - y
        theta = theta - lr * (torch.cat([2 * (e[:, None] * x).mean(0), 2 * e.mean()[None]]) + correction)
    return theta


def standardised(fed: eq.Federation) -> list[tuple[Tensor, Tensor]]:
    task = fed.model.task
    assert isinstance(task, Regression)
    assert task.scale is not None
    return [(x, (y - task.centre) / task.scale) for x, y in CLIENTS]


FULL = {"batch_size": 64, "steps": 3}


def test_fedavg_is_the_loop() -> None:
    fed = federation("fedavg", **FULL)
    theta, data = fed.progress.vector.clone(), standardised(fed)
    for _ in range(4):
        models = torch.stack([trained(theta, x, y, 3, 0.05) for x, y in data])
        sizes = torch.tensor([float(len(y)) for _, y in data]).double()
        theta = sizes / sizes.sum() @ models
        fed.progress, _ = one(fed)
    assert torch.allclose(fed.progress.vector, theta, rtol=0, atol=1e-12)


def test_qffl_is_the_loop() -> None:
    q, lr = 2.0, 0.05
    fed = federation(f"qffl(q={q}, form=full, eps=0)", **FULL)
    theta, data = fed.progress.vector.clone(), standardised(fed)
    for _ in range(3):
        rows, h = [], 0.0
        for x, y in data:
            loss = float((x @ theta[:3] + theta[3] - y).square().mean())
            delta = (theta - trained(theta, x, y, 3, lr)) / lr
            rows.append(loss**q * delta)
            h += q * loss ** (q - 1) * float(delta.square().sum()) + loss**q / lr
        theta = theta - torch.stack(rows).sum(0) / h
        fed.progress, _ = one(fed)
    assert torch.allclose(fed.progress.vector, theta, rtol=0, atol=1e-10)


def test_scaffold_is_the_loop() -> None:
    lr, K = 0.05, 3
    fed = federation("scaffold", **FULL)
    theta, data = fed.progress.vector.clone(), standardised(fed)
    c, own = torch.zeros(4).double(), [torch.zeros(4).double() for _ in data]
    for _ in range(3):
        models, new = [], []
        for (x, y), c_i in zip(data, own, strict=True):
            model = trained(theta, x, y, K, lr, c - c_i)
            models.append(model)
            new.append(c_i - c + (theta - model) / (K * lr))
        theta, c = torch.stack(models).mean(0), c + sum(n - o for n, o in zip(new, own, strict=True)) / 3  # type: ignore[assignment]
        own = new
        fed.progress, _ = one(fed)
    assert torch.allclose(fed.progress.vector, theta, rtol=0, atol=1e-10)


def test_fedheal_is_the_loop() -> None:
    """Algorithm 1, a parameter at a time: keep what agrees with its history, then weigh by how far clients moved."""
    tau, beta, M = 0.4, 0.3, len(CLIENTS)
    fed = federation(f"fedheal(tau={tau}, beta={beta})", **FULL)
    theta, data = fed.progress.vector.clone(), standardised(fed)
    rises = [[0] * 4 for _ in data]
    sizes = [len(y) for _, y in data]
    p, change = [n / sum(sizes) for n in sizes], [0.0] * M
    dropped = 0
    for t in range(1, 9):
        updates = [(trained(theta, x, y, 3, 0.05) - theta).tolist() for x, y in data]
        keeps = [[False] * 4 for _ in data]
        for m, update in enumerate(updates):
            for i, delta in enumerate(update):
                rises[m][i] += delta >= 0
                share = rises[m][i] / t
                keeps[m][i] = (share if delta >= 0 else 1 - share) >= tau
                dropped += not keeps[m][i]
        moved = [
            sum(delta**2 for delta, kept in zip(*pair, strict=True) if kept)
            for pair in zip(updates, keeps, strict=True)
        ]
        change = [(1 - beta) * dp + beta * d / sum(moved) for dp, d in zip(change, moved, strict=True)]
        p = [a + b for a, b in zip(p, change, strict=True)]
        p = [a / sum(p) for a in p]
        for i in range(4):
            mass = sum(p[m] for m in range(M) if keeps[m][i])
            if mass:
                theta[i] += sum(p[m] * updates[m][i] for m in range(M) if keeps[m][i]) / mass
        fed.progress, _ = one(fed)
    assert dropped
    assert torch.allclose(fed.progress.vector, theta, rtol=0, atol=1e-10)


def one(fed: eq.Federation) -> Any:
    from equipoise.federation.round import one_round

    return one_round(fed.trial, fed.progress, 10)


@pytest.mark.parametrize("loss", others_slow(["squared", "huber"], fast=(1,)))
@pytest.mark.parametrize(
    "method", ["fedheal", "afl", "ditto", "fedprox+fedheal", "principal", "fedism+", "sam", "saga", "median"]
)
def test_methods_without_classes_learn_in_every_engine(method: str, loss: str) -> None:
    task, subject = f"regression(loss={loss})", Subject(method)
    before = subject.federation(task=task, **checks.with_numbers()).evaluate()["a"]["rmse"]
    assert checks.numbers_to_predict(subject, task).evaluate()["a"]["rmse"] < 0.8 * before


def test_data_sets_and_lazy_clients_are_as_good_as_arrays() -> None:
    sets = [TensorDataset(x, y) for x, y in CLIENTS]
    lazy = [eq.Lazy(lambda k=k: CLIENTS[k], len(CLIENTS[k][1])) for k in range(3)]  # type: ignore[misc]
    fixed: dict[str, Any] = {"task": "regression(centre=150, scale=30)"}
    ends = []
    for clients, more in ((None, {}), (sets, {}), (sets, {"memory": 0}), (lazy, {})):
        fed = federation(clients=clients, **fixed, **more)
        for _ in range(2):
            fed.progress, _ = one(fed)
        ends.append(fed.progress.vector)
    assert all(torch.equal(ends[0], end) for end in ends[1:])


# bad input
def spoilt(change: Any) -> list[tuple[Tensor, Any]]:
    return [CLIENTS[0], (CLIENTS[1][0], change(CLIENTS[1][1].clone())), CLIENTS[2]]


def with_nan(y: Tensor) -> Tensor:
    y[3], y[5] = math.nan, math.inf
    return y


@in_one(("more", "why"), [
    ({"clients": spoilt(with_nan)}, "client-1: 2 of 20 targets are NaN or infinite"),
    ({"clients": [(x, torch.full_like(y, 7.0)) for x, y in CLIENTS]}, "All targets are 7, so there is nothing to learn"),
    ({"clients": spoilt(lambda y: y.reshape(-1, 1))}, r"client-1: y must be one number per sample.*reshape\(-1\)"),
    ({"clients": spoilt(lambda y: torch.stack([y, y], 1))}, r"client-1: y must be one number per sample, \[n\]; found \[20, 2\]"),
    ({"clients": spoilt(lambda y: y > 150)}, "client-1: y must be one number per sample"),
    ({"clients": spoilt(lambda y: [str(v) for v in y.tolist()])}, "client-1: y must be a tensor or an array of numbers"),
    ({"net": nn.Linear(3, 2).double()}, 'for 2 samples it gives .2, 2.. Give it one output for task="regression"'),
    ({"task": "classification"}, 'client-0: y must be one integer label.*Numbers to predict need task="regression"'),
    ({"method": "logit-adjust"}, "logit-adjust needs classes, and a regression has none"),
    ({"method": "fedavg+fedproto"}, "fedproto needs classes"),
    ({"method": "fedsac"}, "fedsac needs classes"),
    ({"method": "fedpac"}, "fedpac needs classes"),
    ({"measures": ("auc", "f1")}, "auc, f1 need classes, and a regression has none: it has rmse, mae and r2"),
    ({"attack": "label-flip", "attackers": 1}, "attack='label-flip' changes classes"),
    ({"clients": [eq.Lazy(lambda: CLIENTS[0], 12)]}, "say their centre and scale"),
])  # fmt: skip
def test_bad_input_is_one_sentence(more: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        federation(**more)


def test_a_regression_has_no_probabilities() -> None:
    with pytest.raises(ValueError, match=r"use predict\(x\)"):
        federation().predict_proba(TESTS["a"][0])


def test_a_classifier_of_one_output_is_told_so() -> None:
    x = CLIENTS[0][0]
    with pytest.raises(ValueError, match="Give it one output per class"):
        eq.Federation(linear(), [(x, torch.arange(len(x)) % 2)], batch_size=4)


def test_sites_are_the_simulator() -> None:
    """Sites know centre and scale in figures, and send errors of which the server makes those of all samples of a set."""
    ours = federation(validation=0.2)
    theirs = in_process(
        linear(), CLIENTS, "fedavg", eq.SGD(0.05), tests=TESTS, batch_size=5, task="regression", validation=0.2
    )
    ours.fit(3, progress=False)
    theirs.fit(3, progress=False)
    assert torch.equal(ours.progress.vector, theirs.progress.vector)
    mine, other = ours.records[-1], theirs.records[-1]
    assert mine["clients"]["rmse"] == pytest.approx(other["clients"]["rmse"])
    for name in TESTS:
        assert {key: mine["groups"][name][key] for key in ("rmse", "mae")} == pytest.approx(
            {key: other["groups"][name][key] for key in ("rmse", "mae")}
        )
    assert mine["validation"]["rmse"] == pytest.approx(other["validation"]["rmse"])


def test_a_masked_regression_is_the_simulated_one() -> None:
    ours, theirs = (
        federation(),
        in_process(
            linear(), CLIENTS, "fedavg", eq.SGD(0.05), tests=TESTS, batch_size=5, task="regression", secure=True
        ),
    )
    ours.fit(2, progress=False)
    theirs.fit(2, progress=False)
    assert torch.allclose(ours.progress.vector, theirs.progress.vector, rtol=0, atol=1e-11)


def test_between_sites_centre_and_scale_are_given() -> None:
    with pytest.raises(ValueError, match=r"needs a centre and a scale.*the same at all nodes"):
        _ = SiteTask(linear(), CLIENTS[0], task="regression").meaning
    assert SiteTask(linear(), CLIENTS[0], task="regression(centre=150, scale=30)").meaning == Regression(
        centre=150.0, scale=30.0
    )
