"""Hidden units: what is found, what belongs to them, and the smaller networks made of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional

from equipoise.core.hidden_units import Group, Neurons
from equipoise.core.model import Bound, Model
from equipoise.networks import build
from equipoise.submodels.discovery import find
from golden_neurons import ADAPTERS
from helpers import generator, in_one, others_slow
from test_golden import ENTRIES, check


class Residual(nn.Module):
    """A stem, a block with an identity, one with a shortcut, in place and through functions; C(0) = cos(0) != 0 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.a, self.b = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 1)
        self.c, self.shortcut = nn.Conv2d(6, 4, 3, padding=1, stride=2), nn.Conv2d(6, 4, 1, stride=2)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4 * 16, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = x.size(0)
        x = self.relu(self.bn(self.stem(x)))
        x = self.relu(x + self.b(torch.sigmoid(self.a(x))))
        x = functional.relu(torch.add(self.c(x), self.shortcut(x)))
        return self.head(functional.softplus(self.fc(x.view(n, -1))))


class Depthwise(nn.Module):
    """A convolution of each channel by itself, a gate for each channel, and PReLU with a slope for each."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.each, self.act = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.PReLU(8)
        self.squeeze, self.excite = nn.Linear(8, 5), nn.Linear(5, 8)
        self.project, self.norm, self.head = nn.Conv2d(8, 6, 1), nn.InstanceNorm2d(6, affine=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.each(self.expand(x)))
        gate = torch.sigmoid(self.excite(torch.tanh(self.squeeze(x.mean((2, 3))))))
        x = self.project(x * gate.unsqueeze(-1).unsqueeze(-1))
        return self.head(functional.adaptive_avg_pool2d(self.norm(x).exp(), 1).flatten(1))


class Tokens(nn.Module):
    """A layer on the last of three dimensions; the residual stream is normalised over its units."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(8, 6), nn.LayerNorm(6)
        self.up, self.down, self.head = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.mean(1))
        return self.head((x + self.down(functional.gelu(self.up(self.norm(x))))).mean(1))


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ELU(), nn.Dropout2d(0.5), nn.AvgPool2d(2), nn.Flatten(),
        nn.BatchNorm1d(45), nn.Linear(45, 6, bias=False), nn.BatchNorm1d(6), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(6, 3),
    )  # fmt: skip


def ours(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: build(name, in_shape=(3, 8, 8), n_classes=3, **options)


NETS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "mlp": (ours("mlp", hidden=(9, 7)), {"hidden.0": 9, "hidden.1": 7}),
    "cnn": (ours("cnn", norm="none", width=4), {"blocks.0": 4, "blocks.3": 8, "blocks.6": 16, "hidden": 64}),
    "cnn-batch": (ours("cnn", norm="batch", width=4), {"blocks.0": 4, "blocks.4": 8, "blocks.8": 16, "hidden": 64}),
    "cnn-group": (ours("cnn", norm="group", width=4), {"hidden": 64}),
    "resnet10": (
        ours("resnet10", width=2),
        {
            "stem+stages.0.conv2": 2,
            "stages.0.conv1": 2,
            "stages.1.conv1": 4,
            "stages.1.conv2+stages.1.shortcut.0": 4,
            "stages.2.conv1": 8,
            "stages.2.conv2+stages.2.shortcut.0": 8,
            "stages.3.conv1": 16,
            "stages.3.conv2+stages.3.shortcut.0": 16,
        },
    ),
    "sequential": (sequential, {"0": 5, "7": 6}),
    "residual": (Residual, {"stem+b": 6, "a": 5, "c+shortcut": 4, "fc": 7}),
    "depthwise": (Depthwise, {"expand+excite": 8, "squeeze": 5, "project": 6}),
    "tokens": (Tokens, {"up": 9}),
}


def images(n: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=generator(seed), dtype=torch.float64)


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[Neurons, Tensor]:
    """A network's hidden units, and a vector at which every tensor has values of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = NETS[name][0]().to(dtype)
    model = Model(net)
    neurons = find(model, images().to(dtype))
    vector = model.initial + 0.1 * torch.rand(model.size, generator=generator(1), dtype=torch.float64).to(dtype)
    return neurons, vector


def some(neurons: Neurons, seed: int = 0) -> Tensor:
    """About half of the units, and one of each group at least."""
    units = torch.rand(neurons.n, generator=generator(seed)) < 0.5
    for part in units.split(neurons.sizes):
        part[0] = True
    return units


def logits(model: Model, vector: Tensor, x: Tensor) -> Tensor:
    return Bound(model).forward(vector[: model.n_params], vector[model.n_params :].clone(), x)[0]


def silenced(neurons: Neurons, vector: Tensor, units: Tensor, x: Tensor) -> Tensor:
    """Logits of the network in which what readers get from removed units is set to zero, by hooks."""
    net = neurons.model.network(vector)
    for group, kept in zip(neurons.groups, units.split(neurons.sizes), strict=True):
        for name in group.columns:
            module = net.get_submodule(name)
            dim = -1 if isinstance(module, nn.Linear) else 1

            def hook(module: nn.Module, inputs: tuple[Tensor], kept: Tensor = kept, dim: int = dim) -> tuple[Tensor]:
                (x,) = inputs
                mask = kept.repeat_interleave(x.shape[dim] // len(kept)).to(x.dtype)
                return (x * mask.view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())]),)

            module.register_forward_pre_hook(hook)
    with torch.no_grad():
        return net(x)


# what is found
@pytest.mark.parametrize("name", NETS)
def test_units_of_a_network(name: str) -> None:
    neurons, _ = made(name)
    assert dict(zip(neurons.names, neurons.sizes, strict=True)) == NETS[name][1]
    assert neurons.n == sum(NETS[name][1].values())
    assert neurons.extractable
    assert neurons.names[0] in repr(neurons)


def test_ends_of_a_residual_sum() -> None:
    groups = {g.name: g for g in made("residual")[0].groups}
    assert groups["stem+b"] == Group("stem+b", 6, ("stem", "bn", "b"), ("a", "c", "shortcut"))
    assert groups["a"] == Group("a", 5, ("a",), ("b",))
    assert groups["c+shortcut"].columns == ("fc",)
    groups = {g.name: g for g in made("depthwise")[0].groups}
    assert groups["expand+excite"].rows == ("expand", "each", "act", "excite")
    assert groups["expand+excite"].columns == ("squeeze", "project")


def test_what_mixes_units_is_left_out() -> None:
    assert set(made("cnn-group")[0].left_out) == {"blocks.0", "blocks.4", "blocks.8"}
    assert "GroupNorm 'blocks.1' mixes" in made("cnn-group")[0].left_out["blocks.0"]
    assert "norm=batch" in made("cnn-group")[0].left_out["blocks.0"]
    assert "LayerNorm 'norm' mixes" in made("tokens")[0].left_out["embed+down"]


@in_one(
    ("mix", "why"),
    [
        (lambda h: torch.softmax(h, 1), "softmax"),
        (lambda h: torch.cat([h, h], 1)[:, :6], "cat"),
        (lambda h: h.flip(1), "flip"),
        (lambda h: h @ torch.eye(6, dtype=torch.float64), "matmul"),
        (lambda h: h / h.norm(dim=1, keepdim=True), "norm"),
        (lambda h: 1 / (1 + h), "truediv"),
        (lambda h: h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6), "transpose|view"),
        (lambda h: h.chunk(2, 1)[0].repeat(1, 2), "chunk"),
        (lambda h: h + torch.arange(6.0).double(), "add"),
        (lambda h: h.cumsum(1), "cumsum"),
    ],
)
def test_functions_that_mix(mix: Callable[[Tensor], Tensor], why: str) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(192, 6), nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.third(self.second(mix(self.first(x.flatten(1)))).relu())

    neurons = find(Model(Mixed().double()), images())
    assert neurons.names == ("second",)
    assert re.search(why, neurons.left_out["first"])


@in_one(
    "keep",
    [
        lambda h: h.clamp(min=0) * 2 + 1,
        lambda h: (h / 3 - 0.5).abs() ** 2,
        lambda h: h * h,
        lambda h: h.reshape(h.shape[0], -1),
        lambda h: functional.dropout(functional.leaky_relu(h), 0.3, False),
        lambda h: h.unsqueeze(2).mean(2),
        lambda h: functional.max_pool1d(h.unsqueeze(2), 1).squeeze(2),
        lambda h: 2 - h,
    ],
)
def test_functions_that_keep_units_apart(keep: Callable[[Tensor], Tensor]) -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(192, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(keep(self.first(x.flatten(1))))

    neurons = find(Model(Kept().double()), images())
    assert neurons.groups == (Group("first", 5, ("first",), ("second",)),)


class Shared(nn.Module):
    """One layer called on the input's units and on others, one activation for all, and one layer called twice alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.twice, self.head = (nn.Linear(a, b) for a, b in ((192, 6), (6, 6), (6, 4), (4, 3)))
        self.norm, self.act = nn.BatchNorm1d(6), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.first(x.flatten(1))))
        x = self.norm(self.act(self.again(self.again(x))))
        return self.head(self.act(self.twice(x)) + self.act(self.twice(-x)))


def test_shared_layers_share_their_units() -> None:
    neurons = find(Model(Shared().double()), images())
    assert neurons.groups == (
        Group("first+again", 6, ("first", "norm", "again"), ("again", "twice")),
        Group("twice", 4, ("twice",), ("head",)),
    )
    units = some(neurons)
    vector = neurons.model.initial
    assert torch.allclose(
        logits(neurons.model, vector * neurons.held(units), images()), silenced(neurons, vector, units, images())
    )


def test_a_layer_called_on_inputs_and_on_units() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.again, self.hidden, self.head = nn.Linear(192, 192), nn.Linear(192, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.hidden(self.again(self.again(x.flatten(1)).relu())).relu())

    neurons = find(Model(Recurrent().double()), images())
    assert neurons.names == ("hidden",)
    assert neurons.left_out == {"again": "'again' is called on something else too"}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = (nn.Linear(a, b) for a, b in ((192, 6), (6, 6), (6, 6), (6, 3)))
        self.c.weight = self.b.weight
        self.head.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.c(self.b(self.a(x.flatten(1)).relu()).relu()).relu())


def test_shared_and_frozen_tensors_are_left_alone() -> None:
    with pytest.raises(ValueError, match=r"shares its parameters with another module.*neurons=\{name"):
        find(Model(Tied().double()), images())
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    ).double()
    net[3].weight.requires_grad_(False)
    neurons = find(Model(net), images())
    assert neurons.left_out == {"1": "'3', which reads them, is frozen"}
    assert neurons.extractable  # what makes the units may be frozen, and is cut too
    small, _ = neurons.extract(some(neurons))
    assert not small.net[3].weight.requires_grad
    assert len(small.net[3].weight) < 5


@pytest.mark.parametrize("name", ["linear", "group", "unread"])
def test_no_hidden_units(name: str) -> None:
    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aside, self.head = nn.Linear(192, 4), nn.Linear(192, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.aside(x.flatten(1))
            return self.head(x.flatten(1))

    nets: dict[str, tuple[nn.Module, str]] = {
        "linear": (nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), "no layer but the last makes units"),
        "group": (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3)),
            "GroupNorm '1' mixes the channels it normalises; use BatchNorm instead [(]norm=batch[)]",
        ),
        "unread": (Unread(), "nothing reads them"),
    }
    net, why = nets[name]
    with pytest.raises(ValueError, match=f"no hidden units.*{why}.*neurons="):
        find(Model(net.double()), images())


class Dynamic(nn.Module):
    """What torch.fx cannot read, with a size written into it."""

    def __init__(self, flatten: int | None = None) -> None:
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 5, 3),
            nn.Linear(80, 3),
        )
        self.flatten = flatten or 80

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            x = x * 2
        return self.head(torch.tanh(self.conv2(torch.relu(self.bn1(self.conv1(x))))).view(-1, self.flatten))


MAPPING = {"one": (["conv1", "bn1"], ["conv2"]), "two": (["conv2"], ["head"])}


def test_a_mapping_by_hand() -> None:
    model = Model(Dynamic().double())
    with pytest.raises(ValueError, match=r"torch.fx cannot trace the network.*neurons=\{name"):
        find(model, images())
    neurons = find(model, images(), MAPPING)
    assert neurons.groups == (
        Group("one", 4, ("conv1", "bn1"), ("conv2",)),
        Group("two", 5, ("conv2",), ("head",)),
    )
    assert not neurons.extractable  # the size in forward()
    assert not neurons.fits(some(neurons))
    assert find(model, images(), {"one": MAPPING["one"]}).extractable
    units = some(neurons)
    assert torch.allclose(
        logits(model, model.initial * neurons.held(units), images()),
        silenced(neurons, model.initial, units, images()),
    )


@in_one(
    ("mapping", "message"),
    [
        ({}, "mapping of hidden units is empty"),
        ({"one": (["conv1"], ["conv9"])}, "Group 'one': Unknown module 'conv9'.*conv1"),
        ({"one": (["conv1"],)}, "must be two lists"),
        ({"one": ("conv1", "conv2")}, "must be two lists"),
        ({"one": "12"}, "must be two lists"),
        ({"one": ([], ["conv2"])}, "must be two lists"),
        ({"one": (["conv1"], ["head"])}, "does not hold together"),
        ({"one": (["conv1", "conv2"], ["head"])}, "has 4 units, which does not fit 'conv2'"),
        ({"one": (["conv1"], ["conv1"])}, "does not fit 'conv1': dimension 1"),
        ({"one": (["conv1"], ["bn1"])}, "'bn1' .* cannot read its units"),
        ({"one": (["bn1"], ["conv2"]), "two": (["conv1", "bn1"], ["conv2"])}, "belong to another group"),
        ({"one": (["conv1", "bn1"], ["conv2"]), "two": (["conv2"], ["conv2"])}, "does not fit 'conv2'"),
        ({"": (["flatten"], ["conv2"])}, "Unknown module 'flatten'"),
    ],
)
def test_a_wrong_mapping(mapping: dict[str, tuple[Sequence[str], Sequence[str]]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(Model(Dynamic().double()), images(), mapping)


def test_a_reader_too_few_or_too_many() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = nn.Linear(192, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            a = self.act(self.a(x.flatten(1)))
            return self.d(self.act(self.c(self.act(self.b(a)))) + a)

    model = Model(Two().double())
    with pytest.raises(ValueError, match="does not hold together"):
        find(model, images(), {"a": (["a"], ["b"])})  # d reads a too
    with pytest.raises(ValueError, match="Group 'b': d does not read units made by b"):
        find(model, images(), {"b": (["b"], ["c", "d"])})
    with pytest.raises(ValueError, match="none of act has parameters"):
        find(model, images(), {"b": (["act"], ["c"])})
    assert find(model, images(), {"b": (["b"], ["c"])}).groups == (find(model, images()).groups[1],)


def test_inputs_on_which_nothing_can_be_tried() -> None:
    with pytest.raises(ValueError, match="logits that are not finite"):
        find(Model(ours("mlp")().double()), images() * torch.inf)


# coordinates of a submodel
def held_by_loops(neurons: Neurons, units: Tensor) -> Tensor:
    """Entry by entry, from the names."""
    model = neurons.model
    row = {name: (g, k) for k, g in enumerate(neurons.groups) for name in g.rows}
    column = {name: (g, k) for k, g in enumerate(neurons.groups) for name in g.columns}
    kept, out = units.split(neurons.sizes), []
    shapes = (*model.shapes, *model.buffer_shapes)
    for name, shape in zip((*model.names, *model.buffer_names), shapes, strict=True):
        module, _, attribute = name.rpartition(".")
        for index in torch.cartesian_prod(*(torch.arange(s) for s in shape)).view(-1, len(shape)).tolist():
            ok = True
            if module in row:
                group, k = row[module]
                ok = ok and bool(kept[k][index[0] // (shape[0] // group.size)])
            if module in column and attribute == "weight":
                group, k = column[module]
                ok = ok and bool(kept[k][index[1] // (shape[1] // group.size)])
            out.append(ok)
    return torch.tensor(out)


@in_one("name", ["mlp", "sequential", "residual", "depthwise", "tokens"])
def test_an_entry_is_held_if_both_its_ends_are(name: str) -> None:
    neurons, _ = made(name)
    units = torch.stack([some(neurons, seed) for seed in range(3)])
    found = neurons.held(units)
    assert found.shape == (3, neurons.model.size)
    for one, held in zip(units, found, strict=True):
        assert torch.equal(held, held_by_loops(neurons, one))
    assert torch.equal(neurons.held(units.view(3, 1, -1))[:, 0], found)
    assert neurons.held(torch.ones(neurons.n)).all()


@pytest.mark.parametrize("dtype", others_slow([torch.float64, torch.float32], fast=(0,)))
@pytest.mark.parametrize("name", NETS)
def test_a_removed_unit_gives_nothing(name: str, dtype: torch.dtype) -> None:
    neurons, vector = made(name, dtype)
    x = images(seed=5).to(dtype)
    for seed in range(3):
        units = some(neurons, seed)
        found = logits(neurons.model, vector * neurons.held(units), x)
        assert torch.allclose(
            found, silenced(neurons, vector, units, x), rtol=1e-4 if dtype == torch.float32 else 1e-10
        )
    assert not torch.allclose(found, logits(neurons.model, vector, x))


@given(seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
@settings(max_examples=25, deadline=None)
def test_submodels_are_nested_and_meet(seeds: tuple[int, int]) -> None:
    neurons = RESIDUAL[0]
    a, b = (some(neurons, seed) for seed in seeds)
    held = neurons.held(torch.stack([a, b, a & b, a | b]))
    assert torch.equal(held[2], held[0] & held[1])
    assert (held[3] >= (held[0] | held[1])).all()


RESIDUAL = made("residual")


def test_a_wrong_number_of_units() -> None:
    neurons, _ = made("mlp")
    for call in (neurons.held, neurons.extract, neurons.fits):
        with pytest.raises(ValueError, match=r"\[..., 16\] booleans"):
            call(torch.ones(15, dtype=torch.bool))


# smaller networks
@pytest.mark.parametrize("name", NETS)
def test_an_extracted_network_is_the_masked_one(name: str) -> None:
    neurons, vector = made(name)
    x = images(seed=7)
    for seed in range(3):
        units = some(neurons, seed)
        held = neurons.held(units)
        assert neurons.fits(units)
        small, index = neurons.extract(units)
        assert index.dtype == torch.int64
        assert torch.equal(index.sort().values, held.nonzero().flatten())
        assert torch.equal(small.initial, neurons.model.initial[index])
        assert small.names == neurons.model.names
        assert small.n_params == int((index < neurons.model.n_params).sum())
        assert small.head_name == neurons.model.head_name
        assert torch.allclose(logits(small, vector[index], x), logits(neurons.model, vector * held, x))
    everything, index = neurons.extract(torch.ones(neurons.n, dtype=torch.bool))
    assert torch.equal(index, torch.arange(neurons.model.size))
    assert str(everything.net) == str(neurons.model.net)
    assert neurons.model.net is not everything.net


def test_layers_know_their_new_size() -> None:
    neurons, _ = made("depthwise")
    units = torch.ones(neurons.n, dtype=torch.bool)
    units[:3] = False
    net = neurons.extract(units)[0].net
    assert (net.expand.out_channels, net.each.in_channels, net.each.groups, net.each.out_channels) == (5, 5, 5, 5)
    assert (net.act.num_parameters, net.squeeze.in_features, net.project.in_channels) == (5, 5, 5)
    assert (net.project.out_channels, net.norm.num_features, net.head.in_features) == (6, 6, 6)


@pytest.mark.parametrize("name", [name for name in NETS if name != "sequential"])  # dropout draws other numbers
def test_a_step_of_training_agrees(name: str) -> None:
    neurons, vector = made(name)
    model, x, y = neurons.model, images(16, seed=9), torch.arange(16) % 3
    units = some(neurons, 4)
    held = neurons.held(units)
    small, index = neurons.extract(units)

    def step(model: Model, vector: Tensor) -> tuple[Tensor, Tensor]:
        theta, buffers = vector[: model.n_params], vector[model.n_params :].clone()
        gradient = Bound(model).gradient(theta, buffers, x, lambda out, features: functional.cross_entropy(out, y))
        return gradient.clone(), buffers

    large, moved = step(model, vector * held)
    alone, moved_alone = step(small, vector[index])
    scattered = torch.zeros_like(large)
    scattered[index[: small.n_params]] = alone
    assert large[held[: model.n_params]].abs().max() > 1e-6
    assert torch.allclose(scattered, large * held[: model.n_params], rtol=1e-8, atol=1e-12)
    assert torch.allclose(moved_alone, moved[held[model.n_params :]], rtol=1e-10, atol=1e-12)
    if moved.numel():
        assert not torch.allclose(
            moved[held[model.n_params :]], (vector * held)[model.n_params :][held[model.n_params :]]
        )


def test_no_unit_left() -> None:
    neurons, vector = made("mlp")
    units = torch.zeros(neurons.n, dtype=torch.bool)
    assert neurons.fits(units)
    small, index = neurons.extract(units)
    assert torch.allclose(logits(small, vector[index], images()), vector[-3:].expand(6, 3))
    neurons, _ = made("cnn-batch")
    units = torch.ones(neurons.n, dtype=torch.bool)
    units[:4] = False
    assert not neurons.fits(units)
    with pytest.raises(ValueError, match=r"'blocks.0' has no unit left, and BatchNorm2d, Conv2d needs one"):
        neurons.extract(units)


def test_the_network_is_not_changed() -> None:
    net = Residual().double()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = Model(net)
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        neurons = find(model, images())
        neurons.extract(some(neurons))
    assert not leaked
    assert net.relu.inplace
    assert model.net.training
    for name, tensor in model.net.state_dict().items():
        assert torch.equal(tensor, before[name])
    state = torch.get_rng_state()
    find(model, images())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e["id"] in ADAPTERS], ids=lambda e: e["id"])
def test_known_answers(entry: dict[str, object]) -> None:
    check(entry)
