"""A network as a function of one vector: what is in the vector, what is not, and what comes back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from equipoise.core.model import Bound, Model, Stacked
from equipoise.networks import build
from helpers import N_CLASSES, N_INPUTS, BatchNormNet, in_one, network, normal


class Tied(nn.Module):
    """The same layer under two names, a frozen tensor, an integer buffer and a head that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.frozen = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.unused = nn.Linear(4, 9)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.again(self.first(x)) * self.scale + self.frozen)


def vector_of(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    return model.initial[: model.n_params], model.initial[model.n_params :].clone()


def test_each_trainable_tensor_is_there_once() -> None:
    model = Model(Tied())
    assert model.names == ("first.weight", "first.bias", "unused.weight", "unused.bias", "out.weight", "out.bias")
    assert model.layout == (16, 4, 36, 9, 12, 3)
    assert model.n_params == 80
    assert model.buffer_names == ("scale",)
    assert model.size == 84
    assert torch.equal(model.layer.unique_consecutive(return_counts=True)[1], torch.tensor([16, 4, 36, 9, 12, 3, 4]))


def test_the_vector_is_the_network() -> None:
    net = Tied()
    model = Model(net)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    logits, features = Bound(model).forward(*vector_of(model), x)
    assert torch.allclose(logits, net(x))
    assert torch.allclose(features, net.first(net.first(x)) * 0.5 + 2)
    moved = model.initial + 0.1
    there = model.network(moved)
    assert torch.equal(there.first.weight, there.again.weight)
    assert torch.equal(there.frozen, net.frozen)
    assert torch.allclose(there.out.bias, net.out.bias + 0.1)
    assert torch.allclose(there.scale, net.scale + 0.1)
    assert int(there.count) == 3
    net.load_state_dict(model.state_dict(moved))
    assert torch.allclose(net(x), there(x))


def test_a_network_without_gradient_somewhere_stays_there() -> None:
    """The head that is never used has gradient 0, alone and in a stack."""
    model = Model(Tied())
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    theta, buffers = vector_of(model)
    objective = lambda logits, features: logits.square().mean((-1, -2))  # noqa: E731
    alone = Bound(model).gradient(theta, buffers, x, objective).clone()
    together = Stacked(model).gradient(
        theta.expand(2, -1), buffers.expand(2, -1).clone(), x.expand(2, -1, -1), objective
    )
    unused = (model.layer[:80] == 2) | (model.layer[:80] == 3)
    assert not alone[unused].any()
    assert alone[~unused].any()
    assert torch.allclose(together[0], alone, atol=1e-6)
    assert torch.equal(together[0], together[1])


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_gradient_and_statistics_are_autograds(kind: str) -> None:
    net = network(kind)
    model, x, y = Model(net), normal(9, N_INPUTS), torch.arange(9) % N_CLASSES
    objective = lambda logits, features: functional.cross_entropy(logits, y)  # noqa: E731
    theta, buffers = vector_of(model)
    got = Bound(model).gradient(theta, buffers, x, objective)
    there = copy.deepcopy(net).train()
    functional.cross_entropy(there(x), y).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in there.parameters()])
    assert torch.allclose(got, expected, rtol=0, atol=1e-14)
    statistics = [b.reshape(-1) for b in there.buffers() if b.is_floating_point()]
    assert torch.allclose(buffers, torch.cat(statistics) if statistics else buffers, rtol=0, atol=1e-14)
    assert kind == "mlp" or not torch.equal(buffers, model.initial[model.n_params :])


@in_one("kind", ["mlp", "batchnorm"])
@in_one("train", [True, False])
def test_a_stack_is_its_rows(kind: str, train: bool) -> None:
    """Logits, features, gradients, and for BatchNorm the statistics of every row (in a view of any stride)."""
    model = Model(network(kind))
    P, m = model.n_params, 3
    vectors = model.initial + 0.1 * normal(m, model.size).abs()
    x, y = normal(m, 8, N_INPUTS, seed=1), torch.arange(8) % N_CLASSES

    def objective(logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return -logits.log_softmax(-1)[..., torch.arange(8), y].mean(-1) + features.square().mean((-1, -2))

    bound, stacked = Bound(model), Stacked(model)
    buffers = vectors[:, P:].clone()
    gradients = stacked.gradient(vectors[:, :P], buffers, x, objective, train=train)
    logits, features = stacked.forward(vectors[:, :P], vectors[:, P:].clone(), x)
    for k in range(m):
        own = vectors[k, P:].clone()
        assert torch.allclose(
            gradients[k], bound.gradient(vectors[k, :P], own, x[k], objective, train=train), rtol=0, atol=1e-13
        )
        assert torch.allclose(buffers[k], own, rtol=0, atol=1e-14)
        one = (
            bound.forward(vectors[k, :P], own, x[k])
            if not train
            else bound.forward(vectors[k, :P], vectors[k, P:].clone(), x[k])
        )
        assert torch.allclose(logits[k], one[0], rtol=0, atol=1e-13)
        assert torch.allclose(features[k], one[1], rtol=0, atol=1e-13)
    if kind == "batchnorm":
        assert torch.equal(buffers, vectors[:, P:]) != train


def test_evaluation_moves_nothing() -> None:
    model = Model(network("batchnorm"))
    theta, buffers = vector_of(model)
    before = buffers.clone()
    bound = Bound(model)
    bound.forward(theta, buffers, normal(4, N_INPUTS))
    bound.gradient(theta, buffers, normal(4, N_INPUTS), lambda logits, _: logits.mean(), train=False)
    assert torch.equal(buffers, before)
    assert torch.equal(theta, model.initial[: model.n_params])


def test_meaning_of_coordinates() -> None:
    model = Model(BatchNormNet())
    names = [*model.names, *model.buffer_names]
    for mask, expected in (
        (model.head, {"head.weight", "head.bias"}),
        (model.norm, {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}),
    ):
        assert {names[int(k)] for k in model.layer[mask].unique()} == expected
        assert int(mask.sum()) == sum(
            n for name, n in zip(names, [*model.layout, *model.buffer_layout], strict=True) if name in expected
        )
    assert model.batch_norm
    assert not model.random
    assert Model(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))).random
    assert Model(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(2) if False else nn.Linear(2, 2))
    ).convolutional


def test_features_of_another_layer_or_of_none() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    model = Model(net, head="0")
    assert torch.equal(Bound(model).forward(*vector_of(model), x)[1], x)
    bare = Model(nn.Sequential(nn.Conv1d(4, 3, 1), nn.Flatten()))
    assert bare.head_name is None
    logits, features = Bound(bare).forward(*vector_of(bare), x[:, :, None])
    assert torch.equal(logits, features)
    assert not bare.head.any()


def frozen() -> nn.Module:
    net = nn.Linear(2, 2)
    for p in net.parameters():
        p.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("net", "head", "message"),
    [
        (frozen(), None, "no trainable parameter"),
        (nn.Linear(2, 2), "fc", "no module 'fc' to take features from. It has: "),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            None,
            r"mixes dtypes \(torch.float32, torch.float64\)",
        ),
    ],
)
def test_networks_that_cannot_be_used(net: nn.Module, head: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Model(net, head)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_reach_the_next_layer_with_their_channels_innermost(channels: int) -> None:
    """A single channel is in either order, and PyTorch goes by the strides."""
    x, seen = normal(4, channels, 8, 8), list[torch.Tensor]()
    model = Model(nn.Sequential(nn.Conv2d(channels, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 2)).double())
    model.try_channels_last(x)
    assert model.channels_last
    bound = Bound(model)
    for view in (bound.training, bound.evaluation):
        view.net[1].register_forward_hook(lambda _, given, out: seen.append(out))
    theta, buffers = vector_of(model)
    logits, _ = bound.forward(theta, buffers, x)
    bound.gradient(theta, buffers, x, lambda logits, _: logits.sum())
    assert len(seen) == 2
    assert all(out.stride() == (216, 1, 36, 6) for out in seen)
    assert torch.allclose(logits, model.network(model.initial)(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("width", "last"), [(4, False), (16, True)])
def test_a_narrow_shortcut_is_not_computed_with_channels_innermost(width: int, last: bool) -> None:
    """PyTorch 2.13 would write its gradient beyond its end, on processors without AVX-512, and crash now or later."""
    x = torch.randn(2, 3, 32, 32)
    model = Model(build("resnet10", (3, 32, 32), 10, width=width))
    model.try_channels_last(x)
    assert model.channels_last is last
    theta, buffers = vector_of(model)
    gradient = Bound(model).gradient(theta, buffers, x, lambda logits, _: logits.square().sum())
    assert float(gradient.norm()) > 0
