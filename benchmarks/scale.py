"""Many registered clients: time of a round and peak memory, as the clients of a federation and those of a round grow.

The federations take turns, each time in a process of their own, so that what else the machine does touches all. Clients
are lazy: their samples are made when they take part and dropped after the round. SCAFFOLD keeps a vector as long as the
model for every client.

    python benchmarks/scale.py            # print the table
    python benchmarks/scale.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from round import machine, options, show
from torch import Tensor

import equipoise as eq

METHODS = ("fedavg", "scaffold")
SHAPE, CLASSES, SAMPLES = (3, 16, 16), 10, 10
REGISTERED, SAMPLED = (10, 100, 1_000, 10_000), (10, 30, 100, 300, 1_000)
POINTS = sorted({(n, m) for n in REGISTERED for m in (10, 100) if m <= n} | {(REGISTERED[-1], m) for m in SAMPLED})
ROUNDS = 2  # that are timed in each turn, after one that warms up
FEW, MANY, COHORT = 100, 10_000, 100  # what memory is compared between, and the clients of a round then
LINEAR, MEMORY = 0.99, 1.3  # least R2 of time against sampled clients, most times the memory


@dataclass(frozen=True)
class Result:
    """One federation: median, shortest and longest seconds of a round, and the peak memory of its process in MB."""

    method: str
    registered: int
    sampled: int
    seconds: float
    low: float
    high: float
    peak: float


def samples(k: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """What makes the samples of client ``k``, the same each time."""

    def load() -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(k)
        return torch.randn(SAMPLES, *SHAPE, generator=draw), torch.randint(CLASSES, (SAMPLES,), generator=draw)

    return load


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return eq.network("cnn", in_shape=SHAPE, n_classes=CLASSES)


def peak() -> int:
    """Largest memory that this process ever had, in bytes."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def point(method: str, registered: int, sampled: int) -> None:
    """Train one federation in this process, and print what it took."""
    federation = eq.Federation(
        network(),
        [eq.Lazy(samples(k), SAMPLES) for k in range(registered)],
        method,
        participation=sampled / registered,
        engine="sequential",
        batch_size=SAMPLES,
        tests={"all": samples(registered)()},
    )
    federation.fit(1 + ROUNDS, progress=False)
    seconds = [record["seconds"] for record in federation.records[1:]]
    print(json.dumps({"seconds": seconds, "peak": peak()}))


Point = tuple[str, int, int]  # method, registered and sampled clients


def measure(points: list[Point], alternations: int, threads: int) -> list[Result]:
    """Let the federations take turns."""
    seconds: dict[Point, list[float]] = {at: [] for at in points}
    peaks: dict[Point, float] = dict.fromkeys(points, 0)
    for turn in range(alternations):
        for at in points:
            print(f"turn {turn + 1} of {alternations}: {at[0]}, {at[2]:,} of {at[1]:,} ...", file=sys.stderr)
            command = [sys.executable, __file__, "--point", *map(str, at), "--threads", str(threads)]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            seconds[at] += found["seconds"]
            peaks[at] = max(peaks[at], found["peak"] / 2**20)
    return [Result(*at, statistics.median(s), min(s), max(s), peaks[at]) for at, s in seconds.items()]


@dataclass(frozen=True)
class Growth:
    """R2 of seconds against sampled clients; peak memory and time at many registered clients over those at few."""

    method: str
    linear: float
    memory: float
    time: float

    def __str__(self) -> str:
        return (
            f"{self.method}: R2 of time against sampled clients {self.linear:.4f} (target {LINEAR}); from {FEW} to "
            f"{MANY:,} registered clients, {COHORT} a round, memory grows {self.memory:.2f} times (target {MEMORY}) and time "
            f"{self.time:.2f} times"
        )


def growth(results: list[Result]) -> list[Growth]:
    """What there is to say of each method that was measured at every point."""
    found = []
    for method in dict.fromkeys(r.method for r in results):
        at = {(r.registered, r.sampled): r for r in results if r.method == method}
        if at.keys() < set(POINTS):
            continue
        few, many = at[FEW, COHORT], at[MANY, COHORT]
        seconds = [at[MANY, m].seconds for m in SAMPLED]
        r = float(np.corrcoef(SAMPLED, seconds)[0, 1])
        found.append(Growth(method, r * r, many.peak / few.peak, many.seconds / few.seconds))
    return found


COLUMNS = ("method", "registered", "sampled", "seconds a round", "range", "peak MB")


def row(r: Result) -> tuple[str, ...]:
    times = f"{r.low:.3f} to {r.high:.3f}"
    return r.method, f"{r.registered:,}", f"{r.sampled:,}", f"{r.seconds:.3f}", times, f"{r.peak:.0f}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="Many registered clients", caption="\n".join(map(str, growth(results))))
    for column in grid.columns[1:]:
        column.justify = "right"
    for result in results:
        grid.add_row(*row(result))
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *(row(r) for r in results)]
    return TEXT.format(
        command=shlex.join(["python", "benchmarks/scale.py", *sys.argv[1:]]),
        machine=where,
        growth="\n".join(f"- {one}." for one in growth(results)),
        table="\n".join("| " + " | ".join(cells) + " |" for cells in lines),
        parameters=sum(p.numel() for p in network().parameters()),
        samples=SAMPLES,
        threads=arguments.threads,
        alternations=arguments.alternations,
        rounds=ROUNDS,
    )


TEXT = """# Many registered clients

Made by `{command}`; do not edit.

{machine}.

{growth}

{table}

A network of three convolutions with {parameters:,} parameters, {samples} samples a client in one batch, the sequential engine, threads
inside operations: {threads}. The federations take turns ({alternations}), each time in a process of their own, for {rounds} rounds after one
that warms up; clients are lazy and random. **seconds a round**: the median, with loading, training, aggregation and
evaluation; **range**: the shortest and the longest; **peak MB**: the largest memory the process had. Python and PyTorch alone take the
larger part of it.
"""


def main() -> None:
    parser = options("Time of a round and peak memory with many registered clients.", "methods")
    parser.add_argument(
        "--point", nargs=3, metavar=("METHOD", "REGISTERED", "SAMPLED"), help="measure here, print JSON"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.point:
        method, registered, sampled = arguments.point
        point(method, int(registered), int(sampled))
        return
    where = machine()
    points = [(method, *at) for method in METHODS if arguments.only in method for at in POINTS]
    results = measure(points, arguments.alternations, arguments.threads)
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
