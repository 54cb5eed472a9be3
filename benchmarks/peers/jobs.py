"""What every system shares: the jobs, their data and networks, the options of a process, and its clock.

It is imported in the environments of all systems, so it needs torch and NumPy only.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

try:  # torchvision has no CPU build on PyPI: on CPU torch its operators are missing, and without these names it fails
    _operators = torch.library.Library("torchvision", "DEF")  # to import. FLGo and fluke import it; no job uses it.
    for _name in ("nms", "qnms"):
        _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except RuntimeError:
    pass

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-5
CLASSES = 10
FIRST = os.environ.get("RANK", "0") == "0"  # of several processes of one system


@dataclass(frozen=True)
class Job:
    """Clients, how many of them train in a round, and what each does: one epoch of its samples in batches."""

    title: str
    network: str
    clients: int
    cohort: int
    samples: int
    batch: int
    rounds: int
    shape: tuple[int, ...] = (3, 32, 32)
    double: bool = False

    @property
    def share(self) -> float:
        """Part of the clients that trains in a round."""
        return self.cohort / self.clients

    def checked(self) -> Job:
        """The same in float64 where everyone takes part, so that all systems must end at the same weights."""
        return replace(self, clients=self.cohort, double=True)

    def __str__(self) -> str:
        sampled = "" if self.cohort == self.clients else f" ({self.cohort} sampled)"
        return f"{self.title}, {self.clients:,}{sampled} x {self.samples}, batch {self.batch}"


JOBS = {
    "J1": Job("MLP 3072-200-200-10", "mlp 200 200", 10, 10, 500, 32, 5),
    "J2": Job("CNN, 2 convolutions", "cnn", 20, 20, 128, 64, 3),
    "J3": Job("ResNet-10, width 64", "resnet10", 6, 6, 64, 64, 2),
    "J4": Job("CNN, 2 convolutions", "cnn", 500, 50, 50, 10, 3),
    "J5a": Job("logistic regression 60-10", "mlp", 1000, 1000, 20, 10, 4, (60,)),
    "J5b": Job("MLP 60-192-192-10", "mlp 192 192", 1000, 1000, 20, 10, 3, (60,)),
}


class CNN(nn.Module):
    """The usual small network of federated papers: two 5x5 convolutions and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.fc2 = nn.Linear(1600, 128), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, 10] of images [B, 3, 32, 32]."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.shortcut = nn.Sequential()
        if stride != 1 or i != o:
            self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, i, h, w] to [B, o, h / stride, w / stride]."""
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


class ResNet10(nn.Module):
    """ResNet-10 for small images, 4.9 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        self.layers = nn.Sequential(Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2), Block(256, 512, 2))
        self.linear = nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, 10] of images [B, 3, 32, 32]."""
        x = self.layers(functional.relu(self.bn1(self.conv1(x))))
        return self.linear(functional.avg_pool2d(x, x.shape[2]).flatten(1))


def network(job: Job) -> nn.Module:
    """The network of a job, with the same weights every time."""
    torch.manual_seed(0)
    kind, *hidden = job.network.split()
    if kind == "mlp":
        widths = [int(np.prod(job.shape)), *map(int, hidden)]
        layers = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), nn.ReLU())]
        net: nn.Module = nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], CLASSES))
    else:
        net = {"cnn": CNN, "resnet10": ResNet10}[kind]()
    return net.double() if job.double else net


@cache
def data(job: Job) -> list[tuple[Tensor, Tensor]]:
    """Random images and labels of every client, the same in every system."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (job.clients, job.samples, *job.shape), np.uint8)
    y = draw.integers(0, CLASSES, (job.clients, job.samples))
    pixels = torch.from_numpy(x).to(torch.float64 if job.double else torch.float32).div_(127.5).sub_(1)
    return [(p.clone(), q.clone()) for p, q in zip(pixels, torch.from_numpy(y), strict=True)]


def arguments() -> argparse.Namespace:
    """The options of a system's process; ``job`` is the job itself, as it shall be run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=JOBS, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2, help="threads inside operations, or actors")
    parser.add_argument("--parallel", type=int, default=1, help="clients at a time, where a system has that option")
    parser.add_argument("--engine", default="auto", help="of Equipoise")
    parser.add_argument("--check", action="store_true", help="unshuffled, everyone, in float64")
    parser.add_argument("--drawn", action="store_true", help="the loop takes its batches in Equipoise's order")
    parser.add_argument("--save", help="file for the final parameters (.npy)")
    found = parser.parse_args()
    found.name, found.job = found.job, JOBS[found.job].checked() if found.check else JOBS[found.job]
    torch.set_num_threads(found.threads)
    return found


def tell(line: str) -> None:
    """A line for the runner, in one piece: other processes of the same system write to the same pipe."""
    sys.stdout.flush()
    os.write(1, f"{line}\n".encode())


class Clock:
    """Prints the seconds of every round, and the processor's, for the runner; the first mark begins the first round.

    Of several processes of one system the first tells both, the others the processor's.
    """

    def __init__(self) -> None:
        self.last: float | None = None
        self.spent = 0.0
        self.word = "ROUND" if FIRST else "OTHER"

    def mark(self) -> None:
        """End of a round, or the beginning of the first."""
        now, spent = time.perf_counter(), time.process_time()
        if self.last is not None:
            tell(f"{self.word} {now - self.last} {spent - self.spent}")
        self.last, self.spent = time.perf_counter(), time.process_time()


def finish(options: argparse.Namespace, parameters: Iterable[Tensor]) -> None:
    """Tell the runner the peak of the memory, and keep the parameters if it asked for them."""
    tell(f"PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}")
    if options.save and FIRST:
        np.save(options.save, torch.cat([p.detach().double().flatten() for p in parameters]).numpy())
    tell("DONE")
