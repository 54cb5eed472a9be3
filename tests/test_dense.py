"""Networks of dense layers: gradients and steps by products are those of autograd and of SGD."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.core.dense import Dense, Steps, layers_of
from equipoise.core.model import Bound, Model, Stacked
from equipoise.networks import MLP

ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU("tanh"),
    "two": lambda: nn.Sequential(nn.Tanh(), nn.ReLU()),
}


def sequential(activation: Any = nn.ReLU, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 5, bias), activation(), nn.Linear(5, 4), activation(), nn.Identity(), nn.Linear(4, 3, bias)]
    return nn.Sequential(nn.Flatten(), *layers).double()


def batch(*lead: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, 7, 2, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (*lead, 7), generator=generator)


def by_autograd(net: nn.Module, x: Tensor, objective: Any) -> Tensor:
    head = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    kept: list[Tensor] = []
    head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    logits = net(x)
    objective(logits, kept[-1]).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def objective(y: Tensor) -> Any:
    """One that looks at the features, too."""
    return lambda logits, features: (
        functional.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(y.shape).mean(-1)
        + (features**3).mean((-1, -2))
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_are_those_of_autograd(name: str, bias: bool) -> None:
    net, (x, y) = sequential(ACTIVATIONS[name], bias), batch()
    model = Model(net)
    assert model.dense is not None
    theta = model.initial.clone()
    expected = by_autograd(copy.deepcopy(net), x, objective(y))
    assert torch.allclose(Bound(model).gradient(theta, theta[:0], x, objective(y)), expected, rtol=0, atol=1e-14)
    several = torch.stack([theta, theta + 0.1, theta - 0.1])
    xs, ys = batch(3)
    together = Stacked(model).gradient(several, several[:, :0], xs, objective(ys))
    for k in range(3):
        alone = Bound(model).gradient(several[k], theta[:0], xs[k], objective(ys[k]))
        assert torch.allclose(together[k], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.0, 1e-2), (0.9, 0.0), (0.9, 1e-2), (1e-3, 0.1)])
def test_steps_are_those_of_sgd(momentum: float, weight_decay: float, stacked: bool) -> None:
    net = sequential(nn.Tanh)
    model = Model(net)
    assert model.dense is not None
    solver = torch.optim.SGD(net.parameters(), 0.1, momentum, weight_decay=weight_decay)
    theta = model.initial.expand(2, -1).clone() if stacked else model.initial.clone()
    steps = Steps(model.dense, theta, 0.1, momentum, weight_decay)
    for k in range(20):
        x, y = batch(seed=k)
        solver.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        solver.step()
        lead = [2] if stacked else []
        xs, ys = x.expand(*lead, *x.shape), y.expand(*lead, -1)
        steps.step(xs, lambda logits, _, ys=ys: (eq.Classification().slope(logits, ys)[1], None))
    expected = torch.cat([p.detach().flatten() for p in net.parameters()])
    for vector in theta if stacked else [theta]:
        assert torch.allclose(vector, expected, rtol=0, atol=1e-13)


def test_a_layer_alone_is_a_network() -> None:
    net, (x, y) = nn.Linear(6, 3).double(), batch()
    model = Model(net)
    assert model.dense is not None
    theta = model.initial.clone()
    got = Bound(model).gradient(theta, theta[:0], x.flatten(1), lambda z, _: functional.cross_entropy(z, y))
    functional.cross_entropy(net(x.flatten(1)), y).backward()
    assert torch.allclose(got, torch.cat([p.grad.flatten() for p in net.parameters()]), rtol=0, atol=1e-14)


def _hooked() -> nn.Module:
    net = sequential()
    net[1].register_forward_hook(lambda *_: None)
    return net


def _frozen(name: str) -> nn.Module:
    net = sequential()
    net.get_parameter(name).requires_grad_(False)
    return net


def _shared() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 3))


def _own_forward() -> nn.Module:
    net = sequential()
    net[1].forward = lambda x: x * 2
    return net


def _one_bias() -> nn.Module:
    net = sequential()
    net[1].bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    return net


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


OTHERS = {
    "a hook": _hooked,
    "a frozen weight": lambda: _frozen("3.weight"),
    "a frozen bias": lambda: _frozen("1.bias"),
    "a shared layer": _shared,
    "a forward pass of its own": _own_forward,
    "a class of its own": lambda: Doubled(nn.Linear(6, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
    "normalisation": lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "running statistics": lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "flattened later": lambda: nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, 3)),
    "weights computed from others": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 3)
    ),
    "a bias for all": _one_bias,
    "no layer": lambda: nn.Sequential(nn.Flatten(), nn.Identity()),
    "an activation first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("why", OTHERS)
def test_another_network_is_left_to_autograd(why: str) -> None:
    net = OTHERS[why]()
    names = [n for n, p in net.named_parameters() if p.requires_grad]
    assert layers_of(net, names, None) is None


def test_bf16_gpus_autocast_and_hooks_of_all_modules_are_left_to_autograd() -> None:
    model = Model(sequential())
    assert model.dense is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert model.dense is None
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert model.dense is None
    hook.remove()
    assert model.dense is not None
    model.bf16 = True
    assert model.dense is None
    model.bf16, model.initial = False, model.initial.to("meta")
    assert model.dense is None


class Scaled(MLP):
    """A class of the user's own that derives from ours."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 255)


class Stated(nn.Linear):
    """A user's network that calls something else by the name that ours has."""

    def dense_layers(self, of: str) -> str:
        return of


@pytest.mark.parametrize("net", [Scaled((6,), 3), Stated(6, 3)])
def test_a_class_of_the_users_own_is_left_to_autograd(net: nn.Module) -> None:
    assert Model(net).dense is None


def test_a_weight_may_be_registered_after_its_bias() -> None:
    net, (x, y) = sequential(), batch()
    weight = net[1].weight
    del net[1].weight
    net[1].weight = weight
    assert [*net[1]._parameters] == ["bias", "weight"]
    model = Model(net)
    assert model.dense is not None
    theta = model.initial.clone()
    got = Bound(model).gradient(theta, theta[:0], x, objective(y))
    assert torch.allclose(got, by_autograd(net, x, objective(y)), rtol=0, atol=1e-14)


def test_an_objective_may_change_its_outputs_in_place() -> None:
    net, (x, y) = sequential(nn.Sigmoid), batch()
    net.append(nn.Sigmoid())
    model = Model(net)
    assert model.dense is not None
    theta = model.initial.clone()

    def in_place(logits: Tensor, features: Tensor) -> Tensor:
        logits.sub_(logits.detach().amax(-1, keepdim=True))
        return functional.cross_entropy(logits, y) + features.mul_(2).square().mean()

    got = Bound(model).gradient(theta, theta[:0], x, in_place)
    assert torch.allclose(got, by_autograd(net, x, lambda z, h: in_place(z.clone(), h.clone())), rtol=0, atol=1e-14)


def test_gradients_that_a_solver_keeps_are_not_overwritten() -> None:
    model, (x, y) = Model(sequential()), batch()
    theta, bound = model.initial.clone(), Bound(model)
    first = bound.gradients(theta, theta[:0], x, objective(y))
    before = [part.clone() for part in first]
    bound.gradients(theta + 0.1, theta[:0], x, objective(y))
    assert all(torch.equal(a, b) for a, b in zip(first, before, strict=True))


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "scaffold", "fedproto", "fedld", "fedheal", "fedism+", "ditto", "moon"]
)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_training_is_that_of_autograd(method: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hook of the rules, with batches that are not full and clients that end before others."""
    clients = [(x[: 7 - k], y[: 7 - k]) for k in range(3) for x, y in [batch(seed=k)]]

    def trained() -> Tensor:
        federation = eq.Federation(
            sequential(), clients, method, eq.SGD(0.05, 0.9, 1e-3), batch_size=3, engine=engine, seed=1
        )
        federation.fit(2, progress=False)
        return torch.cat([p.detach().flatten() for p in federation.network().parameters()])

    calls, pairs = [], Dense.pairs
    monkeypatch.setattr(Dense, "pairs", lambda *given: calls.append(None) or pairs(*given))
    by_products = trained()
    assert calls
    monkeypatch.setattr(Model, "dense", None)
    by_autograd = trained()
    assert torch.allclose(by_products, by_autograd, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hidden", [[], [8], [8, 6]])
def test_the_perceptron_is_one(hidden: list[int]) -> None:
    net = MLP((2, 3), 3, hidden=hidden).double()
    x, _ = batch()
    h = x
    for module in net.dense_layers():
        h = module(h)
    assert torch.equal(h, net(x))
    model = Model(net)
    assert model.dense is not None
    assert len(model.dense.layers) == len(hidden) + 1
    assert model.dense.features == len(hidden)


class Smoothed(eq.Classification):
    """A task of the user's own: labels are smoothed."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        plain = super().losses(outputs, y)
        return 0.9 * plain - 0.1 * outputs.log_softmax(-1).mean(-1)


@pytest.mark.parametrize("padded", [False, True])
def test_the_slope_of_the_cross_entropy_is_that_of_autograd(padded: bool) -> None:
    outputs = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y, ok = batch(2)[1], torch.arange(7) < torch.tensor([[4], [0]]) if padded else None
    with torch.no_grad():
        loss, slope = eq.Classification().slope(outputs, y, ok)
    losses = eq.Classification().losses(outputs, y)
    expected = losses.mean(-1) if ok is None else (losses * ok).sum(-1) / ok.sum(-1).clamp(min=1)
    (by_autograd,) = torch.autograd.grad(expected.sum(), outputs)
    assert torch.allclose(loss, expected, rtol=0, atol=1e-14)
    assert torch.allclose(slope, by_autograd, rtol=0, atol=1e-15)


def test_another_loss_has_no_formula() -> None:
    outputs, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    assert Smoothed().slope(outputs, y) is None
    assert eq.Regression().slope(outputs[:, :1], y.double()) is None


@pytest.mark.parametrize("task", [Smoothed(), eq.Regression(), eq.Regression(loss="huber")])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_other_tasks_train_as_by_autograd(task: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = isinstance(task, eq.Regression)
    drawn = [batch(seed=k) for k in range(3)]
    clients = [(x[: 7 - k], (x.sum((1, 2)) if numbers else y)[: 7 - k]) for k, (x, y) in enumerate(drawn)]
    trained = []
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1 if numbers else 3)).double()
        federation = eq.Federation(net, clients, "fedavg", eq.SGD(0.05, 0.9), batch_size=3, engine=engine, task=task)
        federation.fit(2, progress=False)
        trained.append(torch.cat([p.detach().flatten() for p in federation.network().parameters()]))
        monkeypatch.setattr(Model, "dense", None)
    assert torch.allclose(*trained, rtol=0, atol=1e-12)
