"""Cost of the importance of all hidden units: one pass for each unit over the shortcut.

Both sides get the same network and validation samples, and take turns.

    python benchmarks/importance.py            # print the table
    python benchmarks/importance.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.table import Table
from round import machine, options, show
from torch import Tensor, nn

from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Model
from equipoise.networks import build
from equipoise.submodels.discovery import find
from equipoise.submodels.importance import ablation, naive

BATCH = 512
CLOSE = 1e-6  # losses may differ by less


@dataclass(frozen=True)
class Workload:
    """A network, how many samples its units are judged on, and how many times as fast the shortcut must be."""

    name: str
    net: Callable[[], nn.Module]
    samples: int
    target: float | None = None

    def data(self) -> tuple[Neurons, Tensor, list[tuple[Tensor, Tensor]]]:
        """Its hidden units, its first weights, and the samples in batches."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(self.samples, 3, 32, 32, generator=draw)
        y = torch.randint(10, (self.samples,), generator=draw)
        model = Model(self.net())
        neurons = find(model, x[:8])
        return neurons, model.initial, list(zip(x.split(BATCH), y.split(BATCH), strict=True))


WORKLOADS = (
    Workload("MLP 3072-200-200-10", lambda: build("mlp"), 5000, 10),
    Workload("CNN with BatchNorm, width 16", lambda: build("cnn", norm="batch"), 128),
    Workload("ResNet-10, width 16", lambda: build("resnet10", width=16), 32),
)


@dataclass(frozen=True)
class Result:
    """How many times as fast the shortcut is, and how far its losses are from the plain ones."""

    name: str
    units: int
    samples: int
    seconds: float
    ratio: float
    low: float
    high: float
    target: float | None
    difference: float


def measure(work: Workload, alternations: int) -> Result:
    """Let the shortcut and the plain computation take turns."""
    neurons, vector, batches = work.data()
    ablation(neurons, vector, [(x[:64], y[:64]) for x, y in batches[:1]])  # warm up
    pairs, difference = [], 0.0
    for _ in range(alternations):
        (fast, found), (slow, expected) = (
            timed(lambda side=side: side(neurons, vector, batches)) for side in (ablation, naive)
        )
        pairs.append((fast, slow))
        difference = max(difference, *(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)))
    ratios = [slow / fast for fast, slow in pairs]
    fast, slow = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Result(
        work.name, neurons.n, work.samples, fast, slow / fast, min(ratios), max(ratios), work.target, difference
    )


def timed(run: Callable[[], tuple[Tensor, Tensor]]) -> tuple[float, tuple[Tensor, Tensor]]:
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found


COLUMNS = ("network", "units", "samples", "seconds", "times as fast", "range", "target", "difference")


def row(result: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.units}",
        f"{result.samples:,}",
        f"{result.seconds:.2f}",
        f"{result.ratio:.1f}",
        f"{result.low:.1f} to {result.high:.1f}",
        "" if result.target is None else f"{result.target:g}",
        f"{result.difference:.0e}",
    )


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="Importance of all hidden units")
    for column in grid.columns[1:]:
        column.justify = "right"
    for result in results:
        good = result.difference < CLOSE and result.ratio >= (result.target or 0)
        grid.add_row(*row(result), style=None if good else "red")
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *(row(r) for r in results)]
    return TEXT.format(
        command=shlex.join(["python", "benchmarks/importance.py", *sys.argv[1:]]),
        machine=where,
        threads=arguments.threads,
        alternations=arguments.alternations,
        batch=BATCH,
        table="\n".join("| " + " | ".join(cells) + " |" for cells in lines),
    )


TEXT = """# Importance of hidden units

Made by `{command}`; do not edit.

{machine}.

{table}

**times as fast**: median seconds of the plain computation (`naive`: the whole network in batches of {batch}, once for
each unit) over those of the shortcut (`ablation`), in {alternations} alternations; threads inside operations: {threads}, on both sides;
**seconds**: the median of the shortcut; **range**: the ratio of single alternations. **difference**: largest difference
of the mean losses of the two, in float32 networks at their first weights.
"""


def main() -> None:
    parser = options("Speed of the importance of hidden units, as a ratio.", "networks")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = machine()
    results = []
    for work in WORKLOADS:
        if arguments.only in work.name:
            print(f"{work.name} ...", file=sys.stderr)
            results.append(measure(work, arguments.alternations))
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
