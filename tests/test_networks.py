"""Networks: the same from the same seed, alone in their random numbers, and one function for a stack of clients."""

import hashlib
import json
import math
import re
from functools import cache

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear, max_pool2d

import equipoise as eq
from equipoise.core.model import Model
from equipoise.networks import MLP, NETWORKS, NetworkEntry, build, resnet18, resnet50
from equipoise.networks.resnet import load_weights
from equipoise.runs import directory as runs
from equipoise.runs.configuration import called, configure
from equipoise.submodels.discovery import find
from helpers import in_one
from run_helpers import (
    SIZES,
    cache as folder,  # noqa: F401 (a fixture)
    executed,
)

VARIANTS = [
    ("mlp", {}),
    ("mlp", {"hidden": ()}),
    ("cnn", {}),
    ("cnn", {"norm": "none"}),
    ("cnn", {"norm": "batch", "width": 6}),
    ("resnet10", {"width": 4}),
]
LARGE = [("resnet18", {}), ("resnet18", {"stem": "small"}), ("resnet50", {})]


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("name", "options"), [*VARIANTS, *LARGE])
@pytest.mark.parametrize("in_shape", [(3, 32, 32), (1, 28, 24)])
def test_maps_images_to_logits(name, options, in_shape):
    net = build(name, in_shape, 7, **options)
    assert net(torch.randn(2, *in_shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "options"), [*VARIANTS, *LARGE])
def test_the_classifier_is_the_last_linear_layer(name, options):
    net = build(name, n_classes=7, **options)
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    seen = []
    last.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = net(torch.randn(2, 3, 32, 32))
    assert seen[-1] is logits


def test_sizes_are_those_of_the_published_shapes():
    assert count(build("mlp")) == 3072 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    convolutions = 9 * (3 * 16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64 + 64)
    assert count(build("cnn")) == convolutions + 1024 * 64 + 64 + 64 * 10 + 10
    assert count(build("resnet10", width=64)) == 4_903_242  # the 3x3-stem ResNet-10 of FedHEAL
    assert count(build("resnet10")) == count(build("resnet10", width=16))


@pytest.mark.parametrize("name", [n if n != "resnet50" else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
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


@pytest.mark.parametrize(
    ("name", "options"), [*VARIANTS, *(pytest.param(*large, marks=pytest.mark.slow) for large in LARGE)]
)
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
            torch.testing.assert_close(parameters[key].grad[k], parameter.grad, rtol=1e-9, atol=1e-10)
        for key, buffer in net.named_buffers():
            torch.testing.assert_close(buffers[key][k], buffer, rtol=1e-9, atol=1e-12)


def test_an_unknown_name_or_option_gets_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"Unknown network 'resnet1'\. Did you mean 'resnet18'\? All: mlp, cnn, resnet10, resnet18, resnet50",
    ):
        build("resnet1")
    with pytest.raises(ValueError, match=r"Unknown option of network 'cnn': 'widht'\. Did you mean 'width'\?"):
        build("cnn", widht=8)


@in_one(
    ("name", "arguments", "message"),
    [
        ("cnn", {"norm": "layer"}, "norm must be one of none, group, batch; found 'layer'"),
        ("cnn", {"width": 6}, "multiple of 4 for norm 'group'; found 6"),
        ("cnn", {"in_shape": (3, 4, 32)}, r"height >= 8, width >= 8\); found \(3, 4, 32\)"),
        *[
            ("mlp", {"hidden": h}, r"hidden must be a list of whole numbers >= 1.*; found")
            for h in ((20, 0), 8, "8", [8.5])
        ],
        ("cnn", {"width": "a"}, "width must be a whole number >= 1; found 'a'"),
        ("resnet18", {"weights": 3}, "weights must be the path of a file; found 3"),
        ("resnet10", {"width": 0}, "width must be a whole number >= 1; found 0"),
        ("resnet10", {"in_shape": (60,)}, r"must be \(channels, height, width\); found \(60,\)"),
        ("resnet18", {"stem": "large"}, "resnet18: stem must be one of imagenet, small; found 'large'"),
        ("resnet50", {"in_shape": (60,)}, r"resnet50: in_shape must be \(channels, height, width\); found \(60,\)"),
        ("mlp", {"n_classes": 0}, "n_classes must be a whole number >= 1; found 0"),
    ],
)
def test_values_out_of_range_are_named(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(name, **arguments)


# ResNet-18 and ResNet-50
@cache
def thousand(make):
    """A network for 1,000 classes; nobody changes it."""
    return make((3, 224, 224), 1000)


def test_resnets_have_as_many_values_as_torchvisions():
    for make, parameters, values in ((resnet18, 11_689_512, 11_699_132), (resnet50, 25_557_032, 25_610_205)):
        net = thousand(make)
        assert count(net) == parameters
        assert sum(x.numel() for x in net.state_dict().values()) == values  # with running statistics and counters


def test_names_are_torchvisions():
    small, large = (list(thousand(make).state_dict()) for make in (resnet18, resnet50))
    assert small[:7] == [
        "conv1.weight",
        *(f"bn1.{what}" for what in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
        "layer1.0.conv1.weight",
    ]
    assert small[-2:] == large[-2:] == ["fc.weight", "fc.bias"]
    assert (len(small), len(large)) == (122, 320)
    strided = {name.rpartition(".")[0] for name in small if "downsample" in name}
    assert strided == {f"layer{k}.0.downsample.{j}" for k in (2, 3, 4) for j in (0, 1)}
    assert {name.rpartition(".")[0] for name in large if name.startswith("layer1.0.")} == {
        f"layer1.0.{part}" for part in ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "downsample.0", "downsample.1")
    }


def naive(values, x, depths, bottleneck):
    """A ResNet in eval mode by its state dictionary alone, as torchvision's source spells it out."""

    def normed(x, name):
        mean, var, weight, bias = (values[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return batch_norm(x, mean, var, weight, bias)

    x = normed(conv2d(x, values["conv1.weight"], stride=2, padding=3), "bn1").clamp(min=0)
    x = max_pool2d(x, 3, 2, 1)
    for stage, depth in enumerate(depths, 1):
        for k in range(depth):
            block, stride = f"layer{stage}.{k}", 2 if stage > 1 and k == 0 else 1
            kernels = (0, 1, 0) if bottleneck else (1, 1)  # padding; the first 3x3 convolution has the stride
            strides, inner = (1, stride, 1) if bottleneck else (stride, 1), x
            for j, (padding, step) in enumerate(zip(kernels, strides, strict=True), 1):
                inner = conv2d(inner, values[f"{block}.conv{j}.weight"], stride=step, padding=padding)
                inner = normed(inner, f"{block}.bn{j}")
                inner = inner.clamp(min=0) if j < len(kernels) else inner
            if f"{block}.downsample.0.weight" in values:
                x = normed(conv2d(x, values[f"{block}.downsample.0.weight"], stride=stride), f"{block}.downsample.1")
            x = (inner + x).clamp(min=0)
    return linear(x.flatten(2).mean(2), values["fc.weight"], values["fc.bias"])


@pytest.mark.parametrize(
    ("name", "depths", "bottleneck"), [("resnet18", (2, 2, 2, 2), False), ("resnet50", (3, 4, 6, 3), True)]
)
def test_resnets_compute_what_torchvisions_do(name, depths, bottleneck):
    net = build(name, (3, 64, 48), 5).double().eval()
    draw = torch.Generator().manual_seed(0)
    for key, value in net.state_dict().items():
        if key.endswith(("running_mean", "running_var", "bias")):  # or their part in the sum could not be seen
            value.copy_(torch.rand(value.shape, generator=draw, dtype=torch.float64) + 0.5)
    x = torch.randn(2, 3, 64, 48, dtype=torch.float64, generator=draw)
    with torch.no_grad():
        torch.testing.assert_close(net(x), naive(net.state_dict(), x, depths, bottleneck))


def test_convolutions_begin_as_he_et_al_say():
    net = build("resnet18", (3, 224, 224), 10)
    for conv, fan_out in ((net.conv1, 64 * 49), (net.layer4[1].conv2, 512 * 9), (net.layer3[0].downsample[0], 256)):
        assert float(conv.weight.detach().std()) / math.sqrt(2 / fan_out) == pytest.approx(1, abs=0.02)


def test_a_small_stem_keeps_small_images():
    sizes = {}
    for stem in ("small", "imagenet"):
        net = build("resnet18", (1, 32, 32), 10, stem=stem).eval()
        net.layer1.register_forward_hook(lambda module, inputs, output, stem=stem: sizes.update({stem: output.shape}))
        net(torch.zeros(1, 1, 32, 32))
    assert sizes == {"small": (1, 64, 32, 32), "imagenet": (1, 64, 8, 8)}


@pytest.mark.slow
def test_hidden_units_of_a_resnet_are_found():
    neurons = find(Model(build("resnet18", (3, 16, 16), 7, stem="small")), torch.randn(4, 3, 16, 16))
    assert neurons.sizes == (64, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512)
    assert neurons.extractable
    assert not neurons.left_out


# weights from a file
class Small(nn.Module):
    def __init__(self, n_classes=3, channels=3):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, n_classes)


def same(a, b, but=()):
    one, two = a.state_dict(), b.state_dict()
    return all(torch.equal(one[key], two[key]) for key in one if key not in but)


@pytest.fixture(params=[".safetensors", ".pth", ".pt"])
def saved(request, tmp_path):
    """Writes values in each of the three kinds of file."""

    def save(values, name="weights"):
        path = tmp_path / (name + request.param)
        save_file(values, path) if request.param == ".safetensors" else torch.save(values, path)
        return path

    return save


def test_weights_are_put_in(saved):
    torch.manual_seed(0)
    given, net = Small(), Small()
    given.bn.running_mean.fill_(2.0)
    given.bn.num_batches_tracked.fill_(7)
    load_weights(net, saved(given.state_dict()), "small", "fc")
    assert same(given, net)


def test_the_classifier_stays_fresh_where_the_classes_differ(saved):
    given, net = Small(1000), Small()
    fresh = {key: value.clone() for key, value in net.fc.state_dict().items()}
    load_weights(net, saved(given.state_dict()), "small", "fc")
    assert torch.equal(given.conv.weight, net.conv.weight)
    assert all(torch.equal(value, fresh[key]) for key, value in net.fc.state_dict().items())
    without = {key: value for key, value in Small().state_dict().items() if not key.startswith("fc.")}
    load_weights(net, saved(without, "headless"), "small", "fc")
    assert torch.equal(without["conv.weight"], net.conv.weight)


def test_counters_of_batches_may_be_missing(saved):
    values = {key: value for key, value in Small().state_dict().items() if "tracked" not in key}
    load_weights(net := Small(), saved(values), "small", "fc")
    assert torch.equal(net.bn.running_var, values["bn.running_var"])


def test_weights_that_do_not_fit_are_named(saved):
    values = Small().state_dict()
    with pytest.raises(
        ValueError, match=r"small: the weights in .* it lacks conv\.bias\. Expected are torchvision's names"
    ):
        load_weights(Small(), saved({k: v for k, v in values.items() if k != "conv.bias"}), "small", "fc")
    with pytest.raises(ValueError, match="it has, and the network has not, extra"):
        load_weights(Small(), saved({**values, "extra": torch.ones(1)}), "small", "fc")
    with pytest.raises(ValueError, match=r"it has in another shape conv\.weight \[4, 1, 3, 3\] for \[4, 3, 3, 3\]"):
        load_weights(Small(), saved(Small(channels=1).state_dict()), "small", "fc")
    renamed = {f"module.{key}": value for key, value in values.items()}
    found = (
        r"it lacks conv\.weight, conv\.bias, bn\.weight and 3 more; it has, and the network has not, module\.bn\.bias, "
    )
    with pytest.raises(ValueError, match=found):
        load_weights(Small(), saved(renamed), "small", "fc")


def test_files_that_are_no_weights_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*none\.pth\. Give the path of a \.safetensors"):
        load_weights(Small(), tmp_path / "none.pth", "small", "fc")
    for name in ("torn.pth", "torn.pt", "torn.safetensors", "torn"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not a file of weights")
        with pytest.raises(ValueError, match=f"{name} cannot be read .*damaged, or holds more than tensors"):
            load_weights(Small(), tmp_path / name, "small", "fc")
    torch.save(Small(), tmp_path / "network.pth")  # a whole network runs code when it is read
    with pytest.raises(ValueError, match=r"network\.pth cannot be read .*Save the network's state_dict\(\) alone"):
        load_weights(Small(), tmp_path / "network.pth", "small", "fc")
    for found, kinds in (({"epoch": 3, "state_dict": {}}, "dict, int"), ([torch.ones(2)], "list")):
        torch.save(found, tmp_path / "other.pth")
        with pytest.raises(ValueError, match=f"must hold a state dictionary, tensors by name; found {kinds}"):
            load_weights(Small(), tmp_path / "other.pth", "small", "fc")


def test_a_resnet_begins_with_the_weights_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = thousand(resnet18)
    torch.save(given.state_dict(), tmp_path / "resnet18.pth")
    net = eq.network("resnet18", in_shape=(3, 64, 64), n_classes=5, seed=1, weights="~/resnet18.pth")
    assert same(given, net, but=("fc.weight", "fc.bias"))
    assert torch.equal(net.fc.weight, build("resnet18", n_classes=5, seed=1).fc.weight)
    wrong = re.escape("conv1.weight [64, 3, 7, 7] for [64, 3, 3, 3]")
    with pytest.raises(ValueError, match=rf"resnet18: .* another shape {wrong}.*stem=imagenet"):
        build("resnet18", weights="~/resnet18.pth", stem="small")


def begun(in_shape, n_classes, *, weights=None):
    """A network of little work that takes weights."""
    net = MLP(in_shape, n_classes, hidden=(4,))
    if weights is not None:
        load_weights(net, weights, "begun", "classifier")
    return net


def test_a_run_knows_the_file_of_its_weights(tmp_path, monkeypatch):
    """By its path from the project, and by its content."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(NETWORKS, "begun", NetworkEntry("Begun.", begun))
    torch.save(build("begun", seed=8).state_dict(), "begun.pt")
    name, options = called("--network", "begun(weights=./begun.pt)", "")
    settings = configure(
        "fedavg", scenario_options=SIZES, network=name, network_options=options, rounds=1, batch_size=8, lr=1e-9
    )
    assert settings.network_options == {"weights": str(tmp_path / "begun.pt")}
    directory = executed(tmp_path / "run", settings)
    found = json.loads((directory / "manifest.json").read_text())["weights"]
    digest = hashlib.sha256((tmp_path / "begun.pt").read_bytes()).hexdigest()
    assert found == {"file": "begun.pt", "sha256": digest}
    values = runs.trained(directory).state_dict()
    first = build("begun", seed=8).state_dict()
    assert all(torch.allclose(values[key], first[key], atol=1e-5) for key in first)
