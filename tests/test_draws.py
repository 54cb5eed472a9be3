"""Random numbers depend on who asks for what, and on nothing else."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, strategies as st

from equipoise.core import draws
from helpers import in_one


def plan(
    ids: list[int],
    sizes: list[int],
    *,
    seed: int = 1,
    t: int = 0,
    epochs: int = 2,
    batch: int = 4,
    crop: int = 0,
    single: bool = False,
) -> draws.Schedule:
    return draws.schedule(
        seed, t, ids, sizes, epochs, batch, chances=(2 * crop + 1,) * 2 if crop else (), drop_single=single
    )


def splitmix(z: int) -> int:
    """The finaliser of SplitMix64 in Python's whole numbers."""
    wrap = 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % wrap
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % wrap
    return z ^ (z >> 31)


@given(
    seed=st.integers(0, 2**64 - 1),
    t=st.integers(0, 10**6),
    client=st.integers(0, 10**6),
    position=st.integers(0, 10**6),
)
def test_bits_typed_out(seed: int, t: int, client: int, position: int) -> None:
    golden, key = 0x9E3779B97F4A7C15, 0
    for part in (seed, t, draws.ORDER, client):
        key = splitmix((key + golden + part) % 2**64)
    expected = splitmix((key + golden * (position + 1)) % 2**64)
    assert int(draws.bits(seed, t, [client], draws.ORDER, np.array([[position]]))[0, 0]) == expected


def test_bits_are_uniform_and_unrelated() -> None:
    lots = draws.bits(0, 0, range(20), draws.ORDER, np.tile(np.arange(5000), (20, 1))) / 2.0**64
    assert abs(lots.mean() - 0.5) < 0.005
    assert abs(lots.var() - 1 / 12) < 0.001
    assert np.abs(np.corrcoef(lots) - np.eye(20)).max() < 0.08


def test_every_part_of_the_key_matters() -> None:
    position = np.arange(50)[None]
    first = draws.bits(1, 2, [3], draws.ORDER, position)
    for other in (
        draws.bits(2, 2, [3], draws.ORDER, position),
        draws.bits(1, 3, [3], draws.ORDER, position),
        draws.bits(1, 2, [4], draws.ORDER, position),
        draws.bits(1, 2, [3], draws.SHIFT, position),
    ):
        assert not (first == other).any()


@given(n=st.integers(1, 60), hundredths=st.integers(1, 100), seed=st.integers(0, 1000))
def test_participants(n: int, hundredths: int, seed: int) -> None:
    share = hundredths / 100
    ids = draws.participants(seed, 3, n, share)
    assert len(ids) == max(1, hundredths * n // 100)  # in whole numbers: 0.29 * 100 is 28.999999999999996
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert set(ids.tolist()) <= set(range(n))
    assert torch.equal(ids, draws.participants(seed, 3, n, share))


def test_each_client_is_as_likely() -> None:
    counts = torch.zeros(10)
    for t in range(2000):
        counts[draws.participants(5, t, 10, 0.3)] += 1
    assert counts.sum() == 6000
    assert float((counts - 600).abs().max()) < 90  # four standard deviations of 600 * 0.7


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), epochs=st.integers(1, 3), batch=st.integers(1, 25))
def test_every_epoch_reads_every_sample_once(sizes: list[int], epochs: int, batch: int) -> None:
    index = plan(list(range(len(sizes))), sizes, epochs=epochs, batch=batch).index
    steps = index.shape[1] // epochs
    for m, n in enumerate(sizes):
        for e in range(epochs):
            rows = index[m, e * steps : (e + 1) * steps].flatten()
            assert sorted(rows[rows >= 0].tolist()) == list(range(n))
        filled = (index[m] >= 0).sum(1)
        assert all(int(k) in (0, n % min(batch, max(sizes)), min(batch, max(sizes))) for k in filled)
        assert all(bool((row[: int(k)] >= 0).all()) for row, k in zip(index[m], filled, strict=True))  # padding last


@given(sizes=st.lists(st.integers(1, 20), min_size=2, max_size=5), crop=st.integers(0, 3))
def test_a_clients_plan_does_not_depend_on_its_neighbours(sizes: list[int], crop: int) -> None:
    ids = [10 + m for m in range(len(sizes))]
    together = plan(ids, sizes, crop=crop)
    for m, n in enumerate(sizes):
        alone = plan([ids[m]], [n], crop=crop)
        for e in range(2):
            a, b = (p.index.view(len(p.index), 2, -1)[k, e] for p, k in ((together, m), (alone, 0)))
            assert a[a >= 0].tolist() == b[b >= 0].tolist()
            if crop:
                x, y = (p.shift.view(len(p.shift), 2, -1, 2)[k, e] for p, k in ((together, m), (alone, 0)))
                assert torch.equal(x[a >= 0], y[b >= 0])


def test_orders_differ_between_epochs_rounds_clients_and_seeds() -> None:
    base = plan([0], [30], batch=30).index
    assert not torch.equal(base[0, 0], base[0, 1])
    for other in (plan([0], [30], batch=30, t=1), plan([1], [30], batch=30), plan([0], [30], batch=30, seed=2)):
        assert not torch.equal(base, other.index)


def test_every_order_is_as_likely() -> None:
    """Three samples have six orders; over 3,000 clients each comes up 500 times, give or take."""
    index = plan(list(range(3000)), [3] * 3000, epochs=1, batch=3).index[:, 0]
    _, counts = index.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert float((counts - 500).abs().max()) < 85


def test_shifts_cover_the_crop() -> None:
    shift = plan([0], [3000], epochs=1, batch=64, crop=2).shift
    assert sorted(shift.unique().tolist()) == [0, 1, 2, 3, 4]
    assert plan([0], [5]).shift is None


@in_one(("n", "batch", "left"), [(9, 4, 8), (9, 8, 8), (1, 4, 1), (8, 4, 8), (5, 1, 5)])
def test_a_last_batch_of_one_is_left_out_for_batchnorm(n: int, batch: int, left: int) -> None:
    """Where there are others; batches of one were asked for."""
    index = plan([0], [n], epochs=2, batch=batch, single=True).index
    assert int((index >= 0).sum()) == 2 * left


# steps in place of epochs
def in_steps(
    sizes: list[int], steps: int, batch: int = 8, *, drop_single: bool = False, crop: int = 0
) -> draws.Schedule:
    ids = list(range(len(sizes)))
    chances = (2 * crop + 1,) * 2 if crop else ()
    return draws.schedule(3, 1, ids, sizes, 99, batch, chances=chances, drop_single=drop_single, steps=steps)


def test_every_client_takes_as_many_steps() -> None:
    drawn = in_steps([5, 33, 8], 7, crop=2)
    assert drawn.index.shape == (3, 7, 8)
    assert drawn.shift is not None
    assert drawn.shift.shape == (3, 7, 8, 2)
    assert (drawn.index >= 0).any(-1).all()


def test_steps_are_epochs_one_after_another() -> None:
    """Each epoch is a permutation of the client's samples, the batches those of as many epochs."""
    drawn = in_steps([20], 7)  # epochs of three batches: 8, 8, 4
    for epoch in range(2):
        seen = drawn.index[0, 3 * epoch : 3 * epoch + 3].flatten()
        assert sorted(seen[seen >= 0].tolist()) == list(range(20))
    whole = draws.schedule(3, 1, [0], [20], 3, 8, drop_single=False)
    assert torch.equal(drawn.index[0], whole.index[0, :7])


def test_steps_do_not_depend_on_who_stands_beside() -> None:
    together, alone = (
        in_steps([20, 5, 41], 9, crop=1),
        draws.schedule(3, 1, [1], [5], 1, 8, chances=(3, 3), drop_single=False, steps=9),
    )
    width = alone.index.shape[-1]
    assert torch.equal(together.index[1, :, :width], alone.index[0])
    assert (together.index[1, :, width:] == -1).all()
    assert together.shift is not None
    assert alone.shift is not None
    assert torch.equal(together.shift[1, :, :width], alone.shift[0])


def test_batches_of_one_sample_are_passed_over() -> None:
    drawn = in_steps([17, 9, 1], 4, drop_single=True)
    assert (drawn.index[:2] >= 0).sum(-1).tolist() == [[8] * 4, [8] * 4]
    assert (drawn.index[2] >= 0).sum(-1).tolist() == [1] * 4  # there is nothing else


def test_the_first_epoch_of_some_steps() -> None:
    first = in_steps([20, 5, 41], 4).first(1)
    assert (first.index >= 0).any(-1).sum(-1).tolist() == [3, 1, 4]
    one = in_steps([20, 5, 41], 4).of(1).first(2)
    assert (one.index >= 0).any(-1).sum(-1).tolist() == 2
