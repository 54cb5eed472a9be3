"""Networks: the same from the same seed, alone in their random numbers, and one function for a stack of clients."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from equipoise.networks import NETWORKS, build

VARIANTS = [
    ("mlp", {}),
    ("mlp", {"hidden": ()}),
    ("cnn", {}),
    ("cnn", {"norm": "none"}),
    ("cnn", {"norm": "batch", "width": 6}),
    ("resnet10", {"width": 4}),
]


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("in_shape", [(3, 32, 32), (1, 28, 24)])
def test_maps_images_to_logits(name, options, in_shape):
    net = build(name, in_shape, 7, **options)
    assert net(torch.randn(2, *in_shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_classifier_is_the_last_linear_layer(name, options):
    net = build(name, n_classes=7, **options)
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    seen = []
    last.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = net(torch.randn(2, 3, 32, 32))
    assert seen[-1] is logits


def test_sizes_are_those_of_the_published_shapes():
    assert count(build("mlp")) == 3072 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    convolutions = 9 * (3 * 16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64)
    assert count(build("cnn")) == convolutions + 1024 * 64 + 64 + 64 * 10 + 10
    assert count(build("resnet10", width=64)) == 4_903_242  # the 3x3-stem ResNet-10 of FedHEAL
    assert count(build("resnet10")) == count(build("resnet10", width=16))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_seed_alone_decides_the_weights(name):
    torch.manual_seed(1)
    a = build(name, seed=5).state_dict()
    torch.manual_seed(2)
    b, c = build(name, seed=5).state_dict(), build(name, seed=6).state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(next(iter(a.values())), next(iter(c.values())))


def test_building_leaves_the_global_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build("cnn", seed=9)
    assert torch.equal(torch.rand(4), expected)


def test_group_norm_sees_one_image_at_a_time():
    net, x = build("cnn").double(), torch.randn(6, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(net(x)[:1], net(x[:1]))
    batch = build("cnn", norm="batch").double()
    assert not torch.allclose(batch(x)[:1], batch(x[:1]))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_stack_of_networks_equals_each_alone(name, options):
    """Logits, gradients and BatchNorm statistics in training mode, in float64, where rounding cannot hide an error."""
    m, batch = 3, 4
    nets = [build(name, (3, 16, 16), seed=k, **options).double() for k in range(m)]
    x = torch.randn(m, batch, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(m * batch).reshape(m, batch) % 10
    parameters, buffers = stack_module_state(nets)
    buffers = {key: value.clone() for key, value in buffers.items()}
    skeleton = build(name, (3, 16, 16), **options).double()

    def loss(parameters, buffers, x, y):
        return cross_entropy(functional_call(skeleton, (parameters, buffers), (x,)), y)

    vmap(loss)(parameters, buffers, x, y).sum().backward()
    for k, net in enumerate(nets):
        cross_entropy(net(x[k]), y[k]).backward()
        for key, parameter in net.named_parameters():
            torch.testing.assert_close(parameters[key].grad[k], parameter.grad, rtol=1e-9, atol=1e-12)
        for key, buffer in net.named_buffers():
            torch.testing.assert_close(buffers[key][k], buffer, rtol=1e-9, atol=1e-12)


def test_an_unknown_name_or_option_gets_the_nearest():
    with pytest.raises(
        ValueError, match=r"Unknown network 'resnet'\. Did you mean 'resnet10'\? All: mlp, cnn, resnet10"
    ):
        build("resnet")
    with pytest.raises(ValueError, match=r"Unknown option of network 'cnn': 'widht'\. Did you mean 'width'\?"):
        build("cnn", widht=8)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cnn", {"norm": "layer"}, "norm must be one of none, group, batch; found 'layer'"),
        ("cnn", {"width": 6}, "multiple of 4 for norm 'group'; found 6"),
        ("cnn", {"in_shape": (3, 4, 32)}, r"height >= 8, width >= 8\); found \(3, 4, 32\)"),
        ("mlp", {"hidden": (20, 0)}, r"every hidden width must be >= 1; found \[20, 0\]"),
        ("resnet10", {"width": 0}, "width must be >= 1; found 0"),
        ("resnet10", {"in_shape": (60,)}, r"must be \(channels, height, width\); found \(60,\)"),
        ("mlp", {"n_classes": 0}, "n_classes must be >= 1; found 0"),
    ],
)
def test_values_out_of_range_are_named(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(name, **arguments)
