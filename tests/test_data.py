"""Clients' data as the user has it: arrays, tensors, data sets; and every way to get them wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import equipoise as eq
from equipoise.data.samples import Samples, read, stack
from helpers import clients, federation, fitted, identical, in_one, samples, told

CPU = torch.device("cpu")


def take(data: Any, who: str = "ward 7", **settings: Any) -> Samples:
    return read(data, who, torch.float64, CPU, **settings)


class Lines(IterableDataset):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(6), 0)])


class Noisy(Dataset):
    """Another sample each time it is asked, as random augmentation gives."""

    def __init__(self, n: int, seed: int) -> None:
        self.x, self.y = samples(n, seed)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return self.x[k] + 0.1 * torch.randn(6, dtype=torch.float64), int(self.y[k])


class Flipped(Noisy):
    """Every sample is mirrored, or not, at the toss of a coin."""

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        x = self.x[k]
        return (x.flip(0) if torch.rand(()) < 0.5 else x), int(self.y[k])


class Counted(TensorDataset):
    """Counts how often a sample is read."""

    reads = 0

    def __getitem__(self, k: int) -> Any:
        self.reads += 1
        return super().__getitem__(k)


def test_arrays_tensors_lists_and_data_sets_are_the_same_data() -> None:
    x, y = samples(9, 1)
    forms = [
        (x, y),
        (x.numpy(), y.numpy()),
        [x.tolist(), y.tolist()],
        TensorDataset(x, y),
        (x, y.double()),
        (x, y.to(torch.uint8)),
    ]
    for data in forms:
        got = take(data)
        assert got.content is not None
        assert torch.equal(got.content.x.double(), x)
        assert torch.equal(got.content.y, y)
        assert got.content.y.dtype == torch.int64
        assert got.size == 9
    assert take(take((x, y))).size == 9


@pytest.mark.parametrize("method", ["fedavg", "fedproto+afl"])
def test_in_memory_or_streamed_gives_the_same(method: str) -> None:
    """The same samples, read once or whenever needed."""
    held = fitted(method, 2)
    sets = [Counted(*c) for c in clients()]
    read_once = fitted(method, 2, data=sets)
    reads = [s.reads for s in sets]
    streams = [take(TensorDataset(*c), memory=0) for c in clients()]
    assert all(s.content is None for s in streams)
    streamed = fitted(method, 2, data=streams)
    assert identical(held, read_once)
    assert identical(held, streamed)
    assert told(held) == told(streamed)
    assert all(n < 8 * len(s) for n, s in zip(reads, sets, strict=True))


def test_a_data_set_that_changes_is_streamed() -> None:
    assert take(Noisy(9, 1)).content is None
    assert take(Counted(*samples(9, 1))).content is not None


def test_a_data_set_that_changes_now_and_then_is_streamed() -> None:
    """Half of the time two looks at one sample agree by chance; forty samples do not."""
    for seed in range(12):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            assert take(Flipped(40, 1)).content is None


def test_a_large_data_set_is_streamed() -> None:
    x, y = samples(9, 1)
    assert take(TensorDataset(x, y), memory=9 * 6 * 8 - 1).content is None
    assert take(TensorDataset(x, y), memory=9 * 6 * 8).content is not None


def test_random_data_depends_on_seed_round_and_client_only() -> None:
    """Whatever was drawn before, and whoever stands beside it."""
    sets = lambda: [Noisy(n, k) for k, n in enumerate((7, 9, 5))]  # noqa: E731
    torch.manual_seed(1)
    first = fitted("fedavg", 2, data=sets(), participation=1.0)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = federation("fedavg", data=sets(), participation=1.0)
    torch.rand(17)
    again.fit(2, progress=False)
    assert identical(first, again)
    other = fitted("fedavg", 2, data=sets(), participation=1.0, seed=4)
    assert not identical(first, other)
    plain = fitted("fedavg", 2, data=[samples(n, k) for k, n in enumerate((7, 9, 5))], participation=1.0)
    assert not identical(first, plain)
    torch.set_rng_state(state)
    before = torch.rand(3)
    torch.set_rng_state(state)
    again.fit(1, progress=False)
    assert torch.equal(torch.rand(3), before)  # the user's own random numbers go on where they were


def test_a_stack_is_its_clients() -> None:
    each = [take(c) for c in clients((5, 2, 7))]
    together = stack(each)
    rows = torch.tensor([[4, 0, 1], [1, 1, 0], [6, 5, 0]])
    whole = together.batch(rows, None)
    assert whole.x.shape == (3, 3, 6)
    for m, alone in enumerate(each):
        one = alone.batch(rows[m], None)
        assert torch.equal(whole.x[m], one.x)
        assert torch.equal(whole.y[m], one.y)


def test_a_transform_sees_the_shift_of_each_sample() -> None:
    x, y = samples(6, 1)

    def move(x: Tensor, shift: Tensor | None) -> Tensor:
        return x if shift is None else x + shift.sum(-1, keepdim=True)

    data = take((x, y), transform=move)
    rows, shift = torch.tensor([3, 0]), torch.tensor([[1, 2], [0, 5]])
    assert torch.equal(data.batch(rows, shift).x, x[rows] + torch.tensor([[3.0], [5.0]]))
    streamed = take(TensorDataset(x, y), transform=move, memory=0)
    assert torch.equal(streamed.batch(rows, shift).x, data.batch(rows, shift).x)
    assert torch.equal(data.batch(rows, None).x, x[rows])


def test_whole_numbers_become_the_networks_dtype_batch_by_batch() -> None:
    data = take((np.arange(12, dtype=np.uint8).reshape(4, 3), [0, 1, 0, 1]))
    assert data.content.x.dtype == torch.uint8
    assert data.batch(torch.tensor([1]), None).x.dtype == torch.float64


x, y = samples(4, 1)


@in_one(
    ("data", "error", "message"),
    [
        ((x[:0], y[:0]), ValueError, r"ward 7 has no sample\. Give it at least one, or leave it out\."),
        (TensorDataset(x[:0], y[:0]), ValueError, "ward 7 has no sample"),
        ((x, y[:3]), ValueError, r"ward 7: x holds 4 samples and y 3 labels; they must be as many\."),
        (
            (x, y + 0.5),
            ValueError,
            r"ward 7: y must be one integer label per sample, of shape \[n\]; found \[4\] of torch\.float32, with 0\.5\.",
        ),
        (
            (x, y[:, None]),
            ValueError,
            r"ward 7: y must be one integer label per sample, of shape \[n\]; found \[4, 1\]",
        ),
        (Lines(), TypeError, "ward 7: an IterableDataset has no length or index; give a map-style Dataset"),
        (x, TypeError, r"ward 7: expected a pair \(x, y\) or a torch Dataset; found Tensor\."),
        ((x, y, y, y), TypeError, r"ward 7: expected a pair \(x, y\) or a torch Dataset; found tuple of 4\."),
        ({"x": x, "label": y}, TypeError, "must have the keys .x. and .y., and may have .s.; found"),
        (None, TypeError, "found NoneType"),
        ((["a", "b"], [0, 1]), TypeError, "ward 7: x must be a tensor or an array of numbers; found list"),
        ((x, ["cat", "dog", "cat", "dog"]), TypeError, "ward 7: y must be a tensor or an array of numbers; found list"),
        (([[1.0], [1.0, 2.0]], [0, 1]), TypeError, "ward 7: x must be a tensor or an array of numbers; found list"),
    ],
)
def test_data_that_cannot_be_used(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        take(data)


class Ragged(Dataset):
    """Samples of different shapes."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return torch.zeros(2 + k), 0


def test_a_data_set_of_mixed_shapes_names_its_client() -> None:
    with pytest.raises(ValueError, match=r"ward 7: samples have shapes \[2\] and \[3\]\. All must agree"):
        take(Ragged())


@in_one(
    ("change", "message"),
    [
        (
            {"data": [samples(4, 0), (x[:, :5], y)]},
            r"client-1: samples have shape \[5\], those of client-0 have \[6\]\. All must agree\.",
        ),
        (
            {"data": [samples(4, 0), (x, y + 2)]},
            r"client-1: labels must be in 0\.\.2, because the network has 3 outputs; found [23]\.\.[34]\.",
        ),
        (
            {"data": [(x, y - 1), samples(4, 0)]},
            r"client-0: labels must be in 0\.\.2, because the network has 3 outputs; found -1\.\.",
        ),
        ({"tests": {"b": (x, y + 2)}}, r"test set 'b': labels must be in 0\.\.2"),
        ({"tests": {"b": (x[:, :5], y)}}, r"test set 'b': samples have shape \[5\]"),
        ({"tests": {"b": (x[:0], y[:0])}}, "test set 'b' has no sample"),
        (
            {"data": [(x[:, :5], y)]},
            r"The network does not take the data of client-0: an input of shape \[1, 5\] gives RuntimeError",
        ),
        ({"data": [samples(4, 0)], "names": ["a", "b"]}, "found 1 clients and 2 different names"),
    ],
)
def test_a_federation_checks_its_data(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federation(**change)


def test_a_federation_needs_a_client() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        eq.Federation(torch.nn.Linear(2, 2), [])
