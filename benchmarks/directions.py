"""Cost of the rules that turn the step: time beside a plain weighted mean, and peak memory beside the updates.

Every rule gets the same matrix of float32 updates, twenty clients of a ResNet-10 of width 64, and makes the server's half
of a round under full participation: ``aggregate`` and the step. Times are those of whole rounds, taken in turns with a
plain mean. Memory is measured in a process per rule (on Linux): the most the process holds during the round, less what it
held before the matrix was built, as a multiple of the matrix.

    python benchmarks/directions.py            # print the table
    python benchmarks/directions.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from round import machine, options, seconds, show
from torch import Tensor

from equipoise import maths
from equipoise.method import Method, parse
from equipoise.model import Model
from equipoise.networks import build
from equipoise.rule import Cohort, Setup, State

CLIENTS = 20
SIZES = torch.arange(1, CLIENTS + 1, dtype=torch.float64)
METHODS = ("fedavg", "principal", "principal(scope=tensor)", "fedgh", "fedhgd", "fedfv")
MOST = 1.2  # the peak as a multiple of the matrix, itself included


@dataclass(frozen=True)
class Result:
    """Time of a rule as a multiple of a plain weighted mean's, and its peak as a multiple of the matrix."""

    method: str
    ratio: float
    low: float
    high: float
    memory: float


@dataclass(frozen=True)
class Server:
    """The server's half of a round, on one matrix of updates [M, P] of tensors of the sizes ``layout``."""

    method: Method
    layout: tuple[int, ...]
    updates: Tensor

    def states(self) -> list[State]:
        """What the rules remember before the first round; FedFV's updates of earlier rounds are left out.

        They are not read under full participation, and replaced by the matrix itself.
        """
        theta = self.updates[0].clone()
        one = Setup(theta[:1], (1,), SIZES)
        setup = Setup(theta, self.layout, SIZES)
        return [rule.server_state(one if type(rule).__name__ == "FedFV" else setup) for rule in self.method.rules]

    def round(self, states: list[State]) -> tuple[list[State], Tensor]:
        """What the rules remember afterwards, and the step [P]."""
        weights = maths.simplex(SIZES)
        theta = self.updates[0]
        cohort = Cohort(
            t=1,
            rounds=10,
            n_clients=CLIENTS,
            theta=theta,
            updates=self.updates,
            ids=torch.arange(CLIENTS),
            sizes=SIZES,
            weights=weights,
            layout=self.layout,
            buffer_updates=self.updates[:, :0],
            reports={"loss": torch.linspace(1, 2, CLIENTS)},
        )
        reports, after = cohort.reports, []
        for rule, state in zip(self.method.rules, states, strict=True):
            state, cohort = rule.aggregate(state, replace(cohort, reports=reports))
            after.append(state)
        return after, cohort.step()


def updates(n_params: int) -> Tensor:
    """Random updates [M, P] of which every client shares a part; about half of the pairs conflict."""
    draw = torch.Generator().manual_seed(0)
    matrix = torch.empty(CLIENTS, n_params)
    for row in matrix:
        torch.randn(n_params, generator=draw, out=row)
    return matrix.mul_(1e-3)


def layout() -> tuple[int, ...]:
    return Model(build("resnet10", width=64)).layout


def held(what: str) -> int:
    """Bytes this process holds (``VmRSS``), or has held at most since it was last told to forget (``VmHWM``)."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), flags=re.M)
    assert found is not None
    return int(found[1]) * 1024


def memory(name: str) -> float:
    """Peak of a round as a multiple of the matrix; to be called in a process of its own."""
    method, sizes = parse(name), layout()
    small = Server(method, (1,) * len(sizes), updates(len(sizes)))
    for _ in range(2):
        small.round(small.round(small.states())[0])  # whatever is loaded at the first call is loaded now
    before = held("VmRSS")
    server = Server(method, sizes, updates(sum(sizes)))
    states = server.round(server.states())[0]  # a second round has the history that a run has
    Path("/proc/self/clear_refs").write_text("5")
    server.round(states)
    return (held("VmHWM") - before) / server.updates.nbytes


def measured(name: str) -> float:
    """The same, from a process of its own whose allocator gives back at once what is freed."""
    command = [sys.executable, __file__, "--memory", name]
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=at_once).stdout)


def measure(name: str, alternations: int) -> Result:
    """Let a rule and a plain weighted mean take turns."""
    sizes = layout()
    server = Server(parse(name), sizes, updates(sum(sizes)))
    weights = maths.simplex(SIZES).to(server.updates.dtype)
    states = server.round(server.states())[0]
    weights @ server.updates  # warm up
    pairs = [
        (seconds(lambda: server.round(states)), seconds(lambda: weights @ server.updates)) for _ in range(alternations)
    ]
    ours, plain = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    ratio = statistics.median(ours) / statistics.median(plain)
    return Result(name, ratio, min(ratios), max(ratios), measured(name))


COLUMNS = ("method", "times a mean", "range", "peak, in matrices", "at most")


def row(result: Result) -> tuple[str, ...]:
    span = f"{result.low:.1f} to {result.high:.1f}"
    return result.method, f"{result.ratio:.1f}", span, f"{result.memory:.2f}", f"{MOST:g}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="Server's half of a round: 20 clients, 4.9 million parameters")
    for column in grid.columns[1:]:
        column.justify = "right"
    for result in results:
        grid.add_row(*row(result), style=None if round(result.memory, 2) <= MOST else "red")
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", "---:", "---:", "---:", "---:"), *(row(r) for r in results)]
    return TEXT.format(
        command=shlex.join(["python", "benchmarks/directions.py", *sys.argv[1:]]),
        machine=where,
        threads=arguments.threads,
        alternations=arguments.alternations,
        table="\n".join("| " + " | ".join(cells) + " |" for cells in lines),
    )


TEXT = """# Cost of the rules that turn the step

Made by `{command}`; do not edit.

{machine}.

{table}

**times a mean**: median seconds of `aggregate` and the step over those of one weighted mean of the same matrix (20 clients,
4.9 million float32 parameters of a ResNet-10, 38 tensors), in {alternations} alternations, both with {threads} threads;
**range**: the same for single alternations. **peak, in matrices**: the most a process of its own holds during the round
(`VmHWM`, reset before it), less what it held before the matrix was built, over the size of the matrix (392 MB); so 1 is
the matrix alone. The C library is told to give back freed memory at once (`MALLOC_MMAP_THRESHOLD_=65536`). FedHGD's
history, a vector, is counted. FedFV runs under full participation and remembers the matrix itself; the updates it
remembers from the round before, a second matrix in a run, are not counted.
"""


def main() -> None:
    parser = options("Time and memory of the rules that turn the step, as ratios.", "methods")
    parser.add_argument("--memory", default="", help="print the peak of one method in this process, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        print(memory(arguments.memory))
        return
    where = machine()
    results = []
    for name in METHODS:
        if arguments.only in name:
            print(f"{name} ...", file=sys.stderr)
            results.append(measure(name, arguments.alternations))
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
