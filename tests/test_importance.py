"""Importance of hidden units: the shortcut against one pass for each unit."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional

from equipoise.core.model import Model
from equipoise.submodels import importance
from equipoise.submodels.discovery import find
from equipoise.submodels.importance import ablation, naive
from helpers import fast_first, generator, others_slow, tensor
from test_neurons import MAPPING, NETS, Dynamic, images, made, silenced


def data(n: int = 21, seed: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return images(n, seed).to(dtype), torch.randint(3, (n,), generator=generator(seed))


def batches(n: int = 21, size: int = 8, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    x, y = data(n, dtype=dtype)
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.fixture
def shortcut(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts what is left to the plain computation."""
    calls: list[int] = []

    def spied(neurons: Any, vector: Tensor, given: Any, only: Any = None) -> Any:
        calls.append(neurons.n if only is None else len(only))
        return naive(neurons, vector, given, only)

    monkeypatch.setattr(importance, "naive", spied)
    return calls


@pytest.mark.parametrize("name", fast_first(NETS, set(NETS) - {"resnet10"}))
def test_by_hooks(name: str) -> None:
    """The oracle: what readers get from a unit is set to zero, one unit after another."""
    neurons, vector = made(name)
    x, y = data()
    losses, base = naive(neurons, vector, batches())
    assert losses.shape == (neurons.n,)
    assert losses.dtype == base.dtype == torch.float64
    for k in range(0, neurons.n, 5):
        units = torch.arange(neurons.n) != k
        expected = functional.cross_entropy(silenced(neurons, vector, units, x), y)
        assert torch.allclose(losses[k], expected, rtol=1e-10)
    whole = functional.cross_entropy(silenced(neurons, vector, torch.ones(neurons.n, dtype=torch.bool), x), y)
    assert torch.allclose(base, whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), others_slow([(torch.float64, 1e-11), (torch.float32, 1e-5)], fast=(0,))
)
@pytest.mark.parametrize("name", fast_first(NETS, set(NETS) - {"resnet10"}))
def test_the_shortcut_is_exact(name: str, dtype: torch.dtype, tolerance: float, shortcut: list[int]) -> None:
    neurons, vector = made(name, dtype)
    given = batches(dtype=dtype)
    losses, base = ablation(neurons, vector, iter(given))
    expected, whole = naive(neurons, vector, given)
    assert not shortcut
    assert losses.dtype == base.dtype == torch.float64
    assert (losses - expected).abs().max() < tolerance * (1 + whole)
    assert (base - whole).abs() < tolerance * (1 + whole)
    assert (expected - whole).abs().max() > 1e-3


@pytest.mark.parametrize("memory", others_slow([1, 50_000, 1 << 30], fast=(0, 1)))
@pytest.mark.parametrize("size", [1, 5, 100])
def test_neither_memory_nor_batches_matter(memory: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    neurons, vector = made("residual")
    monkeypatch.setattr(importance, "FEWEST", 4)
    monkeypatch.setattr(importance, "CACHE", memory)
    losses, base = ablation(neurons, vector, batches(size=size), memory)
    expected, whole = naive(neurons, vector, [data()])
    assert (losses - expected).abs().max() < 1e-12
    assert (base - whole).abs() < 1e-12


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6), take=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_pieces_are_the_same_samples(sizes: list[int], take: int) -> None:
    y = torch.arange(sum(sizes))
    given = [(part.view(-1, 1).double(), part) for part in y.split(sizes)]
    found = list(importance._chunks(given, take))
    assert torch.equal(torch.cat([y[:0], *(b for _, b in found)]), y)
    assert all(torch.equal(a[:, 0].long(), b) for a, b in found)
    assert [len(b) for _, b in found[:-1]] == [take] * (len(found) - 1)


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-batch", pytest.param("resnet10", marks=pytest.mark.slow)])
def test_a_dead_unit_has_importance_zero(name: str) -> None:
    """Never active (in every group that is behind ReLU), or read with weight zero."""
    neurons, vector = made(name, torch.float32)
    net = neurons.model.network(vector)
    dead = []
    for group, first in zip(neurons.groups, (sum(neurons.sizes[:k]) for k in range(len(neurons.sizes))), strict=True):
        for row in group.rows:  # its last module has a shift
            module = net.get_submodule(row)
            if module.bias is not None:
                module.weight.data[1] = 0
                module.bias.data[1] = 0
        dead += [first + 1] + [first + 2] * (group.size > 2)
        for column in group.columns:
            weight = net.get_submodule(column).weight
            times = weight.shape[1] // group.size
            weight.data[:, 2 * times : 3 * times] = 0
    model = Model(net)
    neurons = find(model, images().float())
    losses, base = ablation(neurons, model.initial, batches(200, 64, torch.float32))
    assert (losses[dead] == base).all()
    others = torch.ones(neurons.n, dtype=torch.bool)
    others[dead] = False
    assert (losses[others] != base).float().mean() > 0.5


def test_what_is_not_finite_is_given_as_it_is() -> None:
    """A unit at infinity: the network has no loss, and without the unit only where its share is not infinity times 0."""
    neurons, vector = made("mlp")
    x, y = data()
    x[3] = 1e308  # overflows in the first layer
    given = [(x, y)]
    losses, base = ablation(neurons, vector, given)
    expected, whole = naive(neurons, vector, given)
    assert not base.isfinite()
    assert base.isnan() == whole.isnan()
    assert torch.equal(losses.isnan(), expected.isnan())
    assert torch.equal(losses.isinf(), expected.isinf())


def test_a_reader_at_infinity_without_one_unit() -> None:
    """The sum overflows, what is left of it does not: nothing may be subtracted from infinity."""
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 3), nn.ReLU(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)
    ).double()
    neurons = find(Model(net), images())
    net[1].weight.data.zero_()
    net[1].bias.data.copy_(tensor([1e300, 1.0, 2.0]))
    net[3].weight.data.copy_(tensor([[1e10, 0.3, 0.2], [1e10, -0.1, 0.2]]))
    vector = Model(net).initial
    losses, base = ablation(neurons, vector, [data()])
    expected, whole = naive(neurons, vector, [data()])
    assert expected[0].isfinite()
    assert torch.allclose(losses, expected, rtol=1e-12, atol=0)
    assert torch.allclose(base, whole, rtol=1e-12, atol=0)


class Awkward(nn.Module):
    """Sizes of the batch asked for in several ways, a value changed in place, or BatchNorm without statistics."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 7, 1), nn.Conv2d(7, 4, 3)
        self.hidden, self.head = nn.Linear(144, 5), nn.Linear(5, 3)
        self.norm = nn.BatchNorm1d(5, track_running_stats=how != "batch statistics")
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        n, shape = x.shape[0], x.size()
        x = self.conv(self.first(x).sigmoid())
        match self.how:
            case "shape":
                x = torch.tanh(x).view(n, -1)
            case "size":
                x = torch.tanh(x).view(shape[0], -1)
            case "numel":
                x = torch.tanh(x).view(shape.numel() // 192, 144)
            case _:
                x = torch.tanh(x).flatten(1)
        x = self.norm(self.hidden(x))
        return self.head(x.relu_() if self.how == "in place" else x.relu())


@pytest.mark.parametrize(
    ("how", "plain"),
    [("shape", []), ("size", []), ("numel", [7]), ("in place", [16]), ("batch statistics", [16])],
)
def test_what_the_shortcut_cannot_do_is_computed_plainly(how: str, plain: list[int], shortcut: list[int]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model(Awkward(how).double())
    neurons = find(model, images())
    losses, base = ablation(neurons, model.initial, iter(batches()))
    expected, whole = naive(neurons, model.initial, batches())
    assert (losses - expected).abs().max() < 1e-12
    assert (base - whole).abs() < 1e-12
    assert shortcut == plain


class Together(nn.Module):
    """Samples that see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(192, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x.flatten(1)).relu()
        return self.head((self.b(x) * (1 + self.b(x).std())).sigmoid())


def test_samples_that_see_each_other(shortcut: list[int]) -> None:
    model = Model(Together().double())
    neurons = find(model, images(), {"a": (["a"], ["b"])})
    losses, base = ablation(neurons, model.initial, batches())
    expected, whole = naive(neurons, model.initial, batches())
    assert shortcut == [4]
    assert torch.equal(losses, expected)
    assert torch.equal(base, whole)


def test_a_network_that_cannot_be_traced(shortcut: list[int]) -> None:
    model = Model(Dynamic().double())
    neurons = find(model, images(), MAPPING)
    losses, base = ablation(neurons, model.initial, iter(batches()))
    expected, whole = naive(neurons, model.initial, batches())
    assert shortcut == [9]
    assert torch.equal(losses, expected)
    assert torch.equal(base, whole)


def test_some_units_only() -> None:
    neurons, vector = made("mlp")
    every, base = naive(neurons, vector, batches())
    some, same = naive(neurons, vector, batches(), [3, 12])
    assert torch.equal(some, every[[3, 12]])
    assert torch.equal(base, same)


def test_bad_input() -> None:
    neurons, vector = made("mlp")
    x, y = data(0)
    for call in (ablation, naive):
        for nothing in ([], [(x, y)]):
            with pytest.raises(ValueError, match="there are none"):
                call(neurons, vector, nothing)
    with pytest.raises(ValueError, match="memory must be > 0 bytes; found 0"):
        ablation(neurons, vector, batches(), memory=0)


def test_nothing_is_changed_or_said() -> None:
    neurons, vector = made("residual")
    before, first = vector.clone(), neurons.model.initial.clone()
    given = batches()
    x = given[0][0].clone()
    state = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        one = ablation(neurons, vector, given)
    assert not leaked
    assert torch.equal(vector, before)
    assert torch.equal(neurons.model.initial, first)
    assert torch.equal(given[0][0], x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one, ablation(neurons, vector, given), strict=True))
