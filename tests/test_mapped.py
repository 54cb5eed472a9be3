"""Images that stay on disk train as those in memory do, and are checked as those are."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data.memory_mapped import Mapped, labels, shape, take
from equipoise.federation.checkpoint import CheckpointError


def stored(path: Path, n: int = 40, side: int = 8) -> tuple[Mapped, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=draw)
    np.save(path, x.numpy())
    return Mapped(path, np.arange(n), torch.arange(n) % 4), x


def test_rows_are_those_of_the_file(tmp_path: Path) -> None:
    data, x = stored(tmp_path / "x.npy")
    some = data.take([5, 3, 3, 39]).take(torch.tensor([3, 0]))
    assert len(some) == 2
    assert torch.equal(some[0][0], x[39])
    assert some[0][1] == 39 % 4
    found = data.gather([7, 0, 7])
    assert torch.equal(found.x, x[[7, 0, 7]])
    assert found.y.tolist() == [3, 0, 3]
    assert [int(t) for _, t in [data[2], data[1]]] == [2, 1]
    assert data.shape == shape(data) == shape((x, found.y)) == (3, 8, 8)
    assert labels(take((x, torch.arange(40)), [4, 2])).tolist() == [4, 2]
    assert labels(take(data, range(3))).tolist() == [0, 1, 2]


def test_it_goes_to_another_process_as_a_path(tmp_path: Path) -> None:
    data, x = stored(tmp_path / "x.npy")
    told = pickle.dumps(data.take([1, 2]))
    assert len(told) < 5_000
    assert torch.equal(pickle.loads(told)[1][0], x[2])


@pytest.mark.parametrize("engine", ["auto", "sequential", pytest.param("processes", marks=pytest.mark.slow)])
def test_training_is_that_of_images_in_memory(tmp_path: Path, engine: str) -> None:
    data, x = stored(tmp_path / "x.npy")
    parts = [range(15), range(15, 40)]

    def trained(clients: list, test: object, engine: str) -> torch.Tensor:
        fed = eq.Federation(
            eq.network("cnn", in_shape=(3, 8, 8), n_classes=4, width=4),
            clients,
            "fedprox",
            eq.SGD(lr=0.05),
            tests={"all": test},
            transform=eq.Images(mean=(0.5,), std=(0.25,), crop=1),
            batch_size=8,
            engine=engine,
            workers=1,
        )
        fed.fit(rounds=2, progress=False)
        return torch.cat([fed.progress.vector, torch.tensor([fed.records[-1]["groups"]["all"]["loss"]])])

    y = labels(data)
    memory = trained([(x[list(p)], y[list(p)]) for p in parts], (x, y), "sequential")
    disk = trained([data.take(p) for p in parts], data, engine)
    assert torch.equal(memory, disk)


def test_what_is_wrong_is_told_before_training(tmp_path: Path) -> None:
    data, _ = stored(tmp_path / "x.npy")
    other, _ = stored(tmp_path / "large.npy", side=16)
    net = eq.network("cnn", in_shape=(3, 8, 8), n_classes=3, width=4)
    images = eq.Images(mean=(0.5,), std=(0.25,))
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.2, because the network has 3 outputs; found 0\.\.3"):
        eq.Federation(net, [data], transform=images)
    with pytest.raises(ValueError, match=r"samples have shape \[3, 16, 16\], those of client-0 have \[3, 8, 8\]"):
        eq.Federation(eq.network("cnn", in_shape=(3, 8, 8), n_classes=4, width=4), [data, other], transform=images)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 8, 8)))
    with pytest.raises(ValueError, match=r"x\.npy: expected uint8 images .* in C order; found float64"):
        Mapped(tmp_path / "x.npy", np.arange(4), torch.arange(4))
    data, _ = stored(tmp_path / "y.npy", n=4)
    with pytest.raises(ValueError, match="ends before image 4"):
        Mapped(data.path, np.array([0, 4]), torch.zeros(2, dtype=torch.int64)).gather([1])
    rows = np.zeros(1001, np.int64)
    with pytest.raises(ValueError, match=r"y.npy: s\[:, 0\] has 1,001 different values"):
        Mapped(data.path, rows, torch.zeros(1001, dtype=torch.int64), torch.arange(1001)[:, None])


def test_the_hash_of_a_run_knows_the_labels(tmp_path: Path) -> None:
    """So that a checkpoint of other labels is refused."""
    data, _ = stored(tmp_path / "x.npy")
    images = eq.Images(mean=(0.5,), std=(0.25,))

    def federation(clients: list) -> eq.Federation:
        return eq.Federation(eq.network("cnn", in_shape=(3, 8, 8), n_classes=4, width=4), clients, transform=images)

    federation([data]).fit(rounds=1, directory=tmp_path / "run", progress=False)
    changed = Mapped(data.path, data.rows, data.targets.flip(0))
    with pytest.raises(CheckpointError, match="was begun with other data: the training data of the clients"):
        federation([changed]).resume(tmp_path / "run")
