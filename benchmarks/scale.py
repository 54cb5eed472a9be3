"""What a round costs in time and memory, as clients, parameters and rounds grow.

The federations take turns, each time in a process of their own, so that what else the machine does touches all. Where there
are many clients they are lazy: their samples are made when they take part and dropped after the round. SCAFFOLD keeps a
vector as long as the model for every client.

    python benchmarks/scale.py            # print the table
    python benchmarks/scale.py --write    # and keep it in benchmarks/RESULTS.md, and its figure in docs/assets/cost.png
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
FEATURES, BATCHES = 256, 2  # of the dense networks, which are as large as is asked for
PARAMETERS, ROUNDS = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000), (10, 100, 1_000)
TIMED = 2  # rounds that are timed in each turn, after one that warms up
FEW, MANY, COHORT = 100, 10_000, 100  # what memory is compared between, and the clients of a round then
LINEAR, MEMORY = 0.99, 1.3  # least R2 of time against sampled clients, most times the memory
FIGURE = Path(__file__).parents[1] / "docs/assets/cost.png"


@dataclass(frozen=True)
class Place:
    """A federation: 0 parameters is the convolutional network, 0 rounds are those of a turn, without a directory."""

    method: str
    registered: int = 10
    sampled: int = 10
    parameters: int = 0
    rounds: int = 0

    def __str__(self) -> str:
        return f"{self.method}, {self.sampled:,} of {self.registered:,} clients, {self.parameters:,} parameters, {self.rounds:,} rounds"


PLACES = [
    *(Place(method, *at) for method in METHODS for at in POINTS),
    *(Place("fedavg", parameters=n) for n in PARAMETERS),
    *(Place("fedavg", parameters=PARAMETERS[0], rounds=r) for r in ROUNDS),
]


@dataclass(frozen=True)
class Result:
    """Of one federation: median, shortest and longest seconds of a round, and the peak memory of its process in MB."""

    place: Place
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


def dense(parameters: int) -> torch.nn.Module:
    """Two layers with about so many parameters."""
    torch.manual_seed(0)
    width = parameters // (FEATURES + CLASSES + 1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES))


def rows(k: int) -> tuple[Tensor, Tensor]:
    """The samples of client ``k`` of a dense network."""
    draw = torch.Generator().manual_seed(k)
    n = 32 * BATCHES
    return torch.randn(n, FEATURES, generator=draw), torch.randint(CLASSES, (n,), generator=draw)


def peak() -> int:
    """Largest memory that this process ever had, in bytes."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def point(place: Place) -> None:
    """Train one federation in this process, and print what a round took."""
    many = not place.parameters
    federation = eq.Federation(
        network() if many else dense(place.parameters),
        [eq.Lazy(samples(k), SAMPLES) if many else rows(k) for k in range(place.registered)],
        place.method,
        eq.SGD(0.01, 0.9),
        participation=place.sampled / place.registered,
        engine="sequential",
        batch_size=SAMPLES if many else 32,
        tests={"all": samples(place.registered)() if many else rows(place.registered)},
    )
    if place.rounds:
        with tempfile.TemporaryDirectory() as directory:
            begun = time.perf_counter()
            federation.fit(place.rounds, directory=directory, progress=False)
            seconds = [(time.perf_counter() - begun) / place.rounds]
    else:
        federation.fit(1 + TIMED, progress=False)
        seconds = [record["seconds"] for record in federation.records[1:]]
    print(json.dumps({"seconds": seconds, "peak": peak()}))


def measure(places: list[Place], alternations: int, threads: int) -> list[Result]:
    """Let the federations take turns."""
    seconds: dict[Place, list[float]] = {at: [] for at in places}
    peaks: dict[Place, float] = dict.fromkeys(places, 0)
    for turn in range(alternations):
        for at in places:
            print(f"turn {turn + 1} of {alternations}: {at} ...", file=sys.stderr)
            command = [sys.executable, __file__, "--point", json.dumps(asdict(at)), "--threads", str(threads)]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            seconds[at] += found["seconds"]
            peaks[at] = max(peaks[at], found["peak"] / 2**20)
    return [Result(at, statistics.median(s), min(s), max(s), peaks[at]) for at, s in seconds.items()]


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
    """What there is to say of each method that was measured with every number of clients."""
    found = []
    for method in dict.fromkeys(r.place.method for r in results):
        at = {(r.place.registered, r.place.sampled): r for r in clients(results, method)}
        if at.keys() < set(POINTS):
            continue
        few, many = at[FEW, COHORT], at[MANY, COHORT]
        seconds = [at[MANY, m].seconds for m in SAMPLED]
        r = float(np.corrcoef(SAMPLED, seconds)[0, 1])
        found.append(Growth(method, r * r, many.peak / few.peak, many.seconds / few.seconds))
    return found


def clients(results: list[Result], method: str) -> list[Result]:
    return [r for r in results if r.place.method == method and not r.place.parameters]


def said(results: list[Result]) -> list[str]:
    """What the table shows, one sentence each."""
    found = [str(one) for one in growth(results)]
    large = [r for r in results if r.place.parameters and not r.place.rounds]
    if len(large) == len(PARAMETERS):
        each = [r.seconds / r.place.parameters for r in large]
        found.append(
            f"a parameter takes {each[-1] / each[2]:.2f} times as long with {PARAMETERS[-1]:,} as with {PARAMETERS[2]:,}, and "
            f"{each[2] / each[1]:.2f} times as long with these as with {PARAMETERS[1]:,}"
        )
    long = [r for r in results if r.place.rounds]
    if len(long) == len(ROUNDS):
        found.append(
            f"a round of {ROUNDS[-1]:,} takes {long[-1].seconds / long[1].seconds:.2f} times as long as one of {ROUNDS[1]:,}"
        )
    return found


def figure(results: list[Result], where: str) -> None:
    """Time against clients, parameters and rounds, with the straight line through each and its slope."""
    import matplotlib.pyplot as plt

    from equipoise.report import drawing

    many = [r for r in clients(results, "fedavg") if r.place.registered == MANY]
    held = [r for r in clients(results, "fedavg") if r.place.sampled == COHORT]
    large = [r for r in results if r.place.parameters and not r.place.rounds]
    long = [r for r in results if r.place.rounds]
    panels = [
        (f"clients in a round, of {MANY:,}", [(r.place.sampled, r.seconds) for r in many], "ms a client", 1e3),
        (f"registered clients, {COHORT} in a round", [(r.place.registered, r.seconds) for r in held], "", 0.0),
        ("parameters", [(r.place.parameters, r.seconds) for r in large], "ns a parameter", 1e9),
        ("rounds", [(r.place.rounds, r.seconds * r.place.rounds) for r in long], "ms a round", 1e3),
    ]
    drawn, grid = plt.subplots(2, 2, figsize=(7.2, 4.8), constrained_layout=True)
    for axes, (title, points, unit, scale) in zip(grid.flat, panels, strict=True):
        x, y = map(np.array, zip(*points, strict=True))
        axes.loglog(x, y, "o", color=drawing.color(0), markersize=4)
        if unit:
            slope = float(np.median(y[-2:] / x[-2:]))
            axes.loglog(x, slope * x, color=drawing.INK, linewidth=0.8, label=f"{slope * scale:.3g} {unit}")
            axes.legend(frameon=False, fontsize=8)
        else:
            axes.set_ylim(y.min() / 10, y.max() * 10)
        axes.set_xlabel(title, size=8)
        axes.set_ylabel("seconds", size=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
    drawn.suptitle(where.split(";")[0], size=8)
    drawn.savefig(FIGURE, dpi=150)


COLUMNS = ("method", "registered", "sampled", "parameters", "rounds", "seconds a round", "range", "peak MB")


def row(r: Result) -> tuple[str, ...]:
    at, times = r.place, f"{r.low:.3f} to {r.high:.3f}"
    n = at.parameters or sum(p.numel() for p in network().parameters())
    counts = (f"{k:,}" for k in (at.registered, at.sampled, n, at.rounds or TIMED))
    return at.method, *counts, f"{r.seconds:.3f}", times, f"{r.peak:.0f}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="What a round costs", caption="\n".join(said(results)))
    for column in grid.columns[1:]:
        column.justify = "right"
    for result in results:
        grid.add_row(*row(result))
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *(row(r) for r in results)]
    if len(results) == len(PLACES):
        figure(results, where)
    return TEXT.format(
        command=shlex.join(["python", "benchmarks/scale.py", *sys.argv[1:]]),
        machine=where,
        growth="\n".join(f"- {one}." for one in said(results)),
        table="\n".join("| " + " | ".join(cells) + " |" for cells in lines),
        samples=SAMPLES,
        batches=BATCHES,
        threads=arguments.threads,
        alternations=arguments.alternations,
        rounds=TIMED,
    )


TEXT = """# Cost of a round

Made by `{command}`; do not edit.

{machine}.

{growth}

{table}

Clients: a network of three convolutions, {samples} samples a client in one batch; clients are lazy and random. Parameters: ten clients with
{batches} batches of 32 and a dense network of two layers. Rounds: the same with records and checkpoints in a directory, and the time is that of the whole
call over its rounds. The sequential engine, threads inside operations: {threads}. The federations take turns ({alternations}), each time in a process of
their own; where nothing else is said for {rounds} rounds after one that warms up. **seconds a round**: the median, with loading, training, aggregation and
evaluation; **range**: the shortest and the longest; **peak MB**: the largest memory the process had, to which Python and PyTorch alone
add some 250.
"""


def main() -> None:
    parser = options("Time of a round and peak memory as clients, parameters and rounds grow.", "federations")
    parser.add_argument("--point", metavar="JSON", help="measure this federation here, print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.point:
        point(Place(**json.loads(arguments.point)))
        return
    where = machine()
    places = [place for place in PLACES if arguments.only in str(place)]
    results = measure(places, arguments.alternations, arguments.threads)
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
