"""What every system shares in the whole comparison: data, network, methods, numbers of training.

It is imported in the environments of all systems, so it needs torch, NumPy and scikit-learn only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jobs  # noqa: F401  # it mends torchvision, which FLGo and fluke import
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIENTS, SAMPLES, TESTED, CLASSES = 10, 143, 360, 10
BATCH, LR, MU, BETA, ALPHA = 32, 0.05, 0.1, 0.9, 0.5
ROUNDS = int(os.environ.get("WHOLE_ROUNDS", "25"))
SEEDS = 3
METHODS = ("fedavg", "fedprox", "scaffold", "fedavgm")
ARRAYS = Path(os.environ.get("WHOLE_ARRAYS", "digits.npz"))


def save_arrays(path: Path) -> None:
    """Divide the digits: each client has 143, of classes in proportions that it draws from a Dirichlet distribution."""
    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    test, pool = np.split(draw.permutation(len(y))[: TESTED + CLIENTS * SAMPLES], [TESTED])
    left, rows = [list(pool[y[pool] == k]) for k in range(CLASSES)], []
    for share in draw.dirichlet([ALPHA] * CLASSES, CLIENTS):
        for _ in range(SAMPLES):
            chances = (share + 1e-9) * [len(of_class) > 0 for of_class in left]
            rows.append(left[draw.choice(CLASSES, p=chances / chances.sum())].pop())
    x = (x - x[rows].mean(0)) / np.maximum(x[rows].std(0), 1e-6)
    client = np.concatenate([np.repeat(np.arange(CLIENTS), SAMPLES), np.arange(TESTED) % CLIENTS])
    split = np.repeat(["train", "test"], [len(rows), TESTED])
    order = [*rows, *test]
    np.savez(path, x=x[order].astype(np.float32), y=y[order], client=client, split=split)


def data() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Inputs [143, 64] and labels [143] of every client, and those of the test set."""
    arrays = np.load(ARRAYS)
    x, y, train = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), CLIENTS * SAMPLES
    clients = zip(x[:train].split(SAMPLES), y[:train].split(SAMPLES), strict=True)
    return [(p.clone(), q.clone()) for p, q in clients], (x[train:], y[train:])


def network() -> nn.Module:
    """An MLP 64-64-10."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


if __name__ == "__main__":
    save_arrays(Path(sys.argv[1]))
