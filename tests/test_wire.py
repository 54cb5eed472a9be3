"""Messages carry what they must, and are as long as the simulator says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from equipoise.core import wire
from helpers import in_one, size_of


def vector(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@in_one("share", [0, 0.01, 0.2, 0.6, 0.99, 1])
@in_one("n", [1, 7, 8, 1000])
def test_a_change_arrives_whole_in_the_shortest_form(n: int, share: float) -> None:
    old = vector(n)
    changed = torch.rand(n, generator=torch.Generator().manual_seed(1)) < share
    new = torch.where(changed, vector(n, 2), old)
    message = wire.pack_change(new, old)
    assert torch.equal(wire.unpack_change(message, old), new)
    k = int((new != old).sum())
    forms = [8 * k, 4 * k + -(-n // 8), 4 * n]  # positions, a bit for every entry, all values
    assert size_of(message) == wire.change_size(k, n, 4) == min(forms)


def test_the_form_of_a_change() -> None:
    old = torch.zeros(1000)
    few, some, most = (old.index_fill(0, torch.arange(k), 1.0) for k in (5, 300, 999))
    assert [sorted(wire.pack_change(new, old)) for new in (few, some, most)] == [
        ["index", "values"],
        ["bits", "values"],
        ["values"],
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_change_of_another_type(dtype: torch.dtype) -> None:
    old = vector(64).to(dtype)
    new = torch.where(torch.arange(64) % 2 == 0, old, old + 1)[::2].contiguous()
    new[::3] += 1
    assert torch.equal(wire.unpack_change(wire.pack_change(new, old[::2]), old[::2]), new)


def test_a_change_of_another_width() -> None:
    old = vector(64).double()
    new = old.clone()
    new[3] += 1
    assert size_of(wire.pack_change(new, old)) == wire.change_size(1, 64, 8) == 12


@in_one("K", [1, 8, 13, 400])
def test_a_submodel_arrives_whole(K: int) -> None:
    units = torch.rand(K, generator=torch.Generator().manual_seed(K)) < 0.5
    held = torch.rand(3 * K + 5, generator=torch.Generator().manual_seed(1)) < 0.5
    theta = vector(3 * K + 5)
    message = wire.pack_submodel(theta, units, held)
    assert torch.equal(wire.unpack_units(message, K), units)
    assert torch.equal(wire.unpack_submodel(message, held), theta * held)
    assert size_of(message) == wire.submodel_size(int(held.sum()), K, 4) == 4 * int(held.sum()) + -(-K // 8)
    assert all(isinstance(part, Tensor) for part in message.values())  # nothing that would have to be pickled
