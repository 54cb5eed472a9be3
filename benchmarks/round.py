"""Speed of a round: Equipoise beside a plain PyTorch loop, as ratios.

Both sides train the same clients from the same weights on the same batches, and average what comes back. The plain loop
is what one would write by hand; its batches are drawn before the clock starts. Equipoise's side is a whole round, with
drawing, checks and records. The two take turns, so that what else the machine does touches both.

    python benchmarks/round.py            # print the table
    python benchmarks/round.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.core import draws
from equipoise.federation.round import one_round
from equipoise.networks import build
from equipoise.system import environment, memory

SOLVER = eq.SGD(lr=0.01, momentum=0.9, weight_decay=1e-4)
CLASSES = 10
TOLERANCE = 1e-9  # largest difference of the weights after a float64 round, relative to what the round changed
SHORTEST = 0.2  # seconds: shorter rounds are repeated until the clock has run that long

Weights = dict[str, Tensor]
Data = list[tuple[Tensor, Tensor]]


class TwoConvolutions(nn.Module):
    """The usual small network of federated papers: two 5x5 convolutions and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.hidden, self.classifier = nn.Linear(64 * 8 * 8, 128), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, 10] of images [B, 3, 32, 32]."""
        x = functional.max_pool2d(self.conv1(x).relu(), 2)
        x = functional.max_pool2d(self.conv2(x).relu(), 2)
        logits: Tensor = self.classifier(self.hidden(x.flatten(1)).relu())
        return logits


class LeNet(nn.Module):
    """LeNet for images of 28x28: two 5x5 convolutions and three dense layers, 62 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.dense = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.classifier = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, 10] of images [B, 1, 28, 28]."""
        x = functional.max_pool2d(self.conv1(x).relu(), 2)
        x = functional.max_pool2d(self.conv2(x).relu(), 2)
        logits: Tensor = self.classifier(self.dense(x.flatten(1)))
        return logits


@dataclass(frozen=True)
class Workload:
    """A network, its clients, and the speed-up this library promises."""

    name: str
    target: float
    network: Callable[[], nn.Module]
    clients: int
    samples: int
    batch: int
    shape: tuple[int, ...] = (3, 32, 32)

    def data(self) -> Data:
        """Random samples of every client."""
        draw = torch.Generator().manual_seed(1)
        sizes = (self.clients, self.samples)
        x = torch.randn(*sizes, *self.shape, generator=draw)
        y = torch.randint(CLASSES, sizes, generator=draw)
        return list(zip(x, y, strict=True))

    def __str__(self) -> str:
        return f"{self.name}, {self.clients:,} x {self.samples}, batch {self.batch}"


def _mlp(shape: tuple[int, ...], *hidden: int) -> Callable[[], nn.Module]:
    return lambda: build("mlp", shape, CLASSES, hidden=hidden)


IMAGE, GREY, ROW = (3, 32, 32), (1, 28, 28), (60,)
WORKLOADS = (
    Workload("MLP 3072-200-200-10", 1.7, _mlp(IMAGE, 200, 200), 10, 500, 32),
    Workload("CNN, 2 convolutions", 1.5, TwoConvolutions, 20, 128, 64),
    Workload("CNN, 3 convolutions", 1.5, lambda: build("cnn"), 20, 128, 64),
    Workload("ResNet-10, width 64", 1.2, lambda: build("resnet10", width=64), 4, 64, 64),
    Workload("ResNet-10, width 16", 1.6, lambda: build("resnet10"), 4, 128, 64),
    Workload("MLP 784-64-64-10", 2, _mlp(GREY, 64, 64), 40, 128, 32, GREY),
    Workload("LeNet", 1.7, LeNet, 40, 128, 32, GREY),
    Workload("logistic regression 60-10", 30, _mlp(ROW), 1000, 20, 10, ROW),
    Workload("MLP 60-32-10", 30, _mlp(ROW, 32), 1000, 20, 10, ROW),
)


@dataclass(frozen=True)
class Result:
    """How a workload went: ``ratio`` > 1 means that Equipoise is faster by that factor."""

    workload: str
    engine: str
    target: float
    ratio: float
    low: float
    high: float
    difference: float


def plain_round(net: nn.Module, weights: Weights, data: Data, batches: list[list[Tensor]]) -> Weights:
    """One round of FedAvg as one would write it by hand: the new weights."""
    total = sum(len(y) for _, y in data)
    average = {name: torch.zeros_like(value) for name, value in weights.items()}
    net.train()
    for (x, y), order in zip(data, batches, strict=True):
        net.load_state_dict(weights)
        optimiser = torch.optim.SGD(net.parameters(), SOLVER.lr, SOLVER.momentum, weight_decay=SOLVER.weight_decay)
        for rows in order:
            optimiser.zero_grad(set_to_none=True)
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
        for name, value in net.state_dict().items():
            if value.is_floating_point():
                average[name].add_(value, alpha=len(y) / total)
    return average


@dataclass(frozen=True)
class Sides:
    """One workload set up on both sides; each call trains the same round from the same weights."""

    plain: Callable[[], Weights]
    equipoise: Callable[[], Weights]
    start: Weights
    engine: str


def sides(work: Workload, dtype: torch.dtype, engine: str = "auto") -> Sides:
    net = work.network().to(dtype)
    data = [(x.to(dtype), y) for x, y in work.data()]
    federation = eq.Federation(net, data, "fedavg", SOLVER, batch_size=work.batch, engine=engine)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    trial, model = federation.trial, federation.trial.model
    ids, sizes, drop = range(len(data)), [len(y) for _, y in data], model.batch_norm
    index = draws.schedule(trial.settings.seed, 0, ids, sizes, 1, work.batch, drop_single=drop).index  # [M, K, B]
    batches = [[rows[rows >= 0] for rows in client] for client in index]

    def equipoise() -> Weights:
        after, _ = one_round(trial, federation.progress, 1)
        return model.state_dict(after.vector)

    chosen = federation.engine_choice.engine
    return Sides(lambda: plain_round(net, start, data, batches), equipoise, start, chosen)


def difference(work: Workload, engine: str) -> float:
    """Largest difference of the weights after a round of a few clients in float64, relative to the largest change."""
    both = sides(replace(work, clients=max(4, work.clients // 10)), torch.float64, engine)
    plain, ours = both.plain(), both.equipoise()
    names = [name for name, value in plain.items() if value.is_floating_point()]
    change = max(float((plain[n] - both.start[n]).abs().max()) for n in names)
    return max(float((plain[n] - ours[n]).abs().max()) for n in names) / change


def seconds(run: Callable[[], object]) -> float:
    """Time of one call, the mean of several where one is short."""
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < SHORTEST:
        run()
        calls += 1
    return (time.perf_counter() - began) / calls


def thrifty() -> None:
    """Let the C library give freed memory back as it does by itself in a plain loop, where it has seen large pieces come and go."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in ((-3, 32 << 20), (-1, 64 << 20), (-2, 128 << 10)):  # the most that its own rule reaches
            mallopt(name, value)


def measure(work: Workload, alternations: int, engine: str = "auto") -> Result:
    """Check that both sides end at the same weights, then let them take turns."""
    found = difference(work, engine)
    if not found < TOLERANCE:
        raise SystemExit(
            f"{work}: the sides end at different weights: {found:.1e} of the change, expected < {TOLERANCE}."
        )
    both = sides(work, torch.float32, engine)
    both.plain(), both.equipoise()  # warm up
    pairs = []
    for _ in range(alternations):
        thrifty()
        plain_seconds = seconds(both.plain)
        memory.keep()  # as every federation does
        pairs.append((plain_seconds, seconds(both.equipoise)))
    plain, ours = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    ratio = statistics.median(plain) / statistics.median(ours)
    return Result(str(work), both.engine, work.target, ratio, min(ratios), max(ratios), found)


def machine() -> str:
    """Processor, cores, versions, and what else the machine was doing."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, equipoise {eq.__version__}"
    busy = f"; load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return f"{environment.machine()['processor']}, {os.cpu_count()} cores; {platform.system()}; {versions}{busy}"


COLUMNS = ("workload", "engine", "times as fast", "range", "target", "difference")


def row(result: Result) -> tuple[str, ...]:
    digits = 2 if result.ratio < 10 else 1
    ratio, low, high = (f"{value:.{digits}f}" for value in (result.ratio, result.low, result.high))
    return result.workload, result.engine, ratio, f"{low} to {high}", f"{result.target:g}", f"{result.difference:.0e}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="FedAvg round: Equipoise beside a plain PyTorch loop")
    for column in grid.columns[2:]:
        column.justify = "right"
    for result in results:
        grid.add_row(*row(result), style=None if result.ratio >= result.target else "red")
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", "---", "---:", "---:", "---:", "---:"), *(row(r) for r in results)]
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return RESULTS.format(
        command=shlex.join(["python", "benchmarks/round.py", *sys.argv[1:]]),
        machine=where,
        threads=arguments.threads,
        alternations=arguments.alternations,
        table=grid,
    )


RESULTS = """# Speed of a round

Made by `{command}`; do not edit.

{machine}.

{table}

**times as fast**: median seconds of a FedAvg round by a plain sequential PyTorch loop over those by Equipoise, in
{alternations} alternations, both with {threads} threads inside operations; **range**: the same for single alternations.
The plain loop holds its data in memory, has the C library's own way with freed memory, uses `torch.optim.SGD` and has its batches drawn before the clock starts;
Equipoise's side is the whole round, with drawing, checks and records; its workers are as many as the plain loop has threads,
with one thread each. **difference**: largest difference of the weights
the two end at, in float64, after a round of a tenth of the clients (at least four), relative to the largest change in it.
"""


def keep(text: str, path: Path) -> None:
    """Put a page, which begins with a heading, in place of the one with this heading, or last."""
    pages = re.split(r"^(?=# )", path.read_text(), flags=re.M) if path.exists() else []
    heading = text.splitlines()[0]
    if not any(page.startswith(heading) for page in pages):
        pages.append(text)
    path.write_text("\n".join(text if p.startswith(heading) else p.rstrip("\n") + "\n" for p in pages if p.strip()))


def options(description: str, what: str) -> argparse.ArgumentParser:
    """The options that every benchmark of this folder has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--alternations", type=int, default=5, help="turns that each side takes (5)")
    parser.add_argument("--threads", type=int, default=2, help="threads inside operations, for both sides (2)")
    parser.add_argument("--only", default="", help=f"{what} whose name contains this text")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/RESULTS.md")
    return parser


def show(
    arguments: argparse.Namespace,
    where: str,
    results: list[Any],
    table: Callable[[list[Any]], Table],
    markdown: Callable[[list[Any], str, argparse.Namespace], str],
) -> None:
    """Print the results as was asked for, and keep them if that was asked."""
    if arguments.json:
        print(json.dumps({"machine": where, "results": [asdict(r) for r in results]}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 120).print(table(results))
    if arguments.write:
        keep(markdown(results, where, arguments), Path(__file__).with_name("RESULTS.md"))


def main() -> None:
    parser = options("Time a FedAvg round beside a plain PyTorch loop, as ratios.", "workloads")
    parser.add_argument("--engine", default="auto", help="auto, sequential, workers, processes or stacked (auto)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the clients and three alternations")
    arguments = parser.parse_args()
    where = machine()
    torch.set_num_threads(arguments.threads)
    works = [w for w in WORKLOADS if arguments.only.lower() in str(w).lower()]
    if arguments.quick:
        arguments.alternations = min(3, arguments.alternations)
        works = [replace(w, clients=max(2, w.clients // 5)) for w in works]
    results = []
    for work in works:
        print(f"{work} ...", file=sys.stderr)
        results.append(measure(work, arguments.alternations, arguments.engine))
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
