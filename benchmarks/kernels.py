"""The server's half of a round: its time as a multiple of what moving the bytes alone takes, and its peak memory.

Every rule gets the same matrix of float32 updates, twenty clients of a ResNet-10 of width 64, and makes ``aggregate`` and
the step. What moving the bytes takes is measured in turns with it: the bytes that must pass between memory and processor
at least, over the bandwidth. Memory is measured in a process per rule (on Linux): the most the process holds during the
round, less what it held before the matrix was built, as a multiple of the matrix.

    python benchmarks/kernels.py            # print the table
    python benchmarks/kernels.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from round import machine, options, show
from torch import Tensor

from equipoise.core import compiled, maths
from equipoise.core.model import Model
from equipoise.core.rule import Cohort, Setup, State
from equipoise.federation.method import Method, parse
from equipoise.networks import build
from equipoise.system.memory import keep

CLIENTS, EARLIER = 20, 3  # rounds before the one that is timed
SIZES = torch.arange(1, CLIENTS + 1, dtype=torch.float64)
MOST = 1.2  # the peak as a multiple of the matrix, itself included, beside what the rule remembers
ENTRY, COUNT, BIT = 1.0, 1 / 4, 1 / 32  # what one of each per update takes, in matrices


@dataclass(frozen=True)
class Kernel:
    """A rule, what it must move at least (in matrices, beside the step that it writes), and the target for its time."""

    name: str
    moves: float
    target: float | None = None
    loop: Callable[[list[dict[str, Tensor]]], object] | None = None


@dataclass(frozen=True)
class Result:
    """Time of a rule as a multiple of its floor, the same of a loop over tensors by name, and its peak in matrices."""

    kernel: str
    milliseconds: float
    floor: float
    ratio: float
    low: float
    high: float
    target: float | None
    loop: float | None
    memory: float
    most: float


# the rules
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

    def submodels(self) -> Tensor | None:
        """For FedSAC: client m holds the first (m + 1) / M of every tensor [M, P]."""
        if not any("submodel" in rule.declared.owns for rule in self.method.rules):
            return None
        held = torch.zeros(self.updates.shape, dtype=torch.bool)
        for part in held.split(self.layout, 1):
            for m, row in enumerate(part):
                row[: part.shape[1] * (m + 1) // CLIENTS] = True
        return held

    def round(self, states: list[State], held: Tensor | None = None) -> tuple[list[State], Tensor]:
        """What the rules remember afterwards, and the step [P]."""
        theta = self.updates[0]
        cohort = Cohort(
            t=EARLIER,
            rounds=10,
            n_clients=CLIENTS,
            theta=theta,
            updates=self.updates,
            ids=torch.arange(CLIENTS),
            sizes=SIZES,
            weights=maths.simplex(SIZES),
            layout=self.layout,
            buffer_updates=self.updates[:, :0],
            received=theta.expand(CLIENTS, -1),
            kept=theta.expand(CLIENTS, -1),
            reports={"loss": torch.linspace(1, 2, CLIENTS)},
            held=held,
        )
        reports, after = cohort.reports, []
        for rule, state in zip(self.method.rules, states, strict=True):
            state, cohort = rule.aggregate(state, replace(cohort, reports=reports))
            after.append(state)
        return after, cohort.step()

    def bytes(self, *states: list[State]) -> int:
        """What the rules remember, less the matrix itself."""
        tensors = [x for some in states for state in some for x in state.values()]
        return sum(x.nbytes for x in tensors if x.data_ptr() != self.updates.data_ptr())


def updates(n_params: int) -> Tensor:
    """Random updates [M, P] of which every client shares a part; about half of the pairs conflict."""
    draw = torch.Generator().manual_seed(0)
    matrix = torch.empty(CLIENTS, n_params)
    for row in matrix:
        torch.randn(n_params, generator=draw, out=row)
    return matrix.mul_(1e-3)


def layout() -> tuple[int, ...]:
    return Model(build("resnet10", width=64)).layout


# as one would write it: dictionaries of tensors by name
def mean_by_name(clients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    p = maths.simplex(SIZES).tolist()
    return {name: sum(w * u[name] for w, u in zip(p, clients, strict=True)) for name in clients[0]}


def gram_by_name(clients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    K = torch.zeros(CLIENTS, CLIENTS)
    for i in range(CLIENTS):
        for j in range(i, CLIENTS):
            K[i, j] = K[j, i] = sum(float((clients[i][name] * clients[j][name]).sum()) for name in clients[0])
    torch.linalg.eigh(K)
    return mean_by_name(clients)


def fedheal_by_name(clients: list[dict[str, Tensor]], tau: float = 0.3, beta: float = 0.4) -> dict[str, Tensor]:
    """One round of FPHL and FAEL with float32 histories and masks, which are made here and not kept."""
    p = maths.simplex(SIZES)
    history = [{name: torch.full_like(u, 0.5) for name, u in client.items()} for client in clients]
    masks, d = [], torch.zeros(CLIENTS)
    for m, client in enumerate(clients):
        masks.append({})
        for name, u in client.items():
            up = (history[m][name] * (EARLIER - 1) + (u >= 0).float()) / EARLIER
            masks[m][name] = (torch.where(u >= 0, up, 1 - up) >= tau).float()
            d[m] += ((u * masks[m][name]) ** 2).sum()
    p = maths.simplex(p + beta * maths.simplex(d))
    step = {}
    for name in clients[0]:
        total = sum(p[m] * masks[m][name] for m in range(CLIENTS))
        step[name] = sum(p[m] * masks[m][name] * clients[m][name] for m in range(CLIENTS)) / total.clamp(min=1e-12)
    return step


KERNELS = (
    Kernel("fedavg", ENTRY, 1.5, mean_by_name),
    Kernel("principal", 2 * ENTRY, 5, gram_by_name),
    Kernel("principal(scope=model)", 2 * ENTRY),
    Kernel("fedgh", 2 * ENTRY, 5),
    Kernel("fedfv", 2 * ENTRY, 5),
    Kernel("fedhgd", 2 * ENTRY),
    Kernel("fael", 2 * ENTRY),
    Kernel("fphl", 2 * (ENTRY + COUNT + BIT)),
    Kernel("fedheal", 2 * (ENTRY + COUNT + BIT), 5, fedheal_by_name),
    Kernel("fedsac", ENTRY + COUNT),
    Kernel("median", ENTRY, 3),
    Kernel("krum", 2 * ENTRY, 3),
    Kernel("geometric-median", 2 * ENTRY, 3),
    Kernel("centred-clipping", 2 * ENTRY, 3),
    Kernel("clipping", 2 * ENTRY, 3),
)


# time
def once(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def bandwidth(matrix: Tensor, other: Tensor) -> float:
    """Bytes a second between memory and processor: the most that reading a matrix, or copying it, achieves."""
    read = [once(run) for run in (matrix.sum, matrix.amax, lambda: matrix.view(-1).dot(matrix.view(-1)))]
    return matrix.nbytes / min(*read, once(lambda: other.copy_(matrix)) / 2)


def by_name(server: Server) -> list[dict[str, Tensor]]:
    parts = server.updates.split(server.layout, 1)
    return [{str(k): part[m] for k, part in enumerate(parts)} for m in range(CLIENTS)]


def measure(kernel: Kernel, alternations: int) -> Result:
    """Let a rule and the bandwidth take turns."""
    keep()  # as every federation does
    sizes = layout()
    server = Server(parse(kernel.name), sizes, updates(sum(sizes)))
    held, states = server.submodels(), server.states()
    for _ in range(EARLIER):
        states = server.round(states, held)[0]
    other = torch.empty_like(server.updates)
    bytes_ = kernel.moves * server.updates.nbytes + server.updates[0].nbytes
    bandwidth(server.updates, other)  # warm up
    pairs = [
        (once(lambda: server.round(states, held)), bytes_ / bandwidth(server.updates, other))
        for _ in range(alternations)
    ]
    ours, floors = zip(*pairs, strict=True)
    floor = min(floors)
    loop = None
    if kernel.loop is not None:
        loop = once(lambda: kernel.loop(by_name(server))) / floor  # type: ignore[misc]
    most = MOST + server.bytes(states, server.round(states, held)[0]) / server.updates.nbytes
    if held is not None:
        most += held.nbytes / server.updates.nbytes
    if any("updates" in rule.declared.owns for rule in server.method.rules):
        most += 1  # shorter updates beside those that came
    ratios = [a / floor for a in ours]
    ratio = statistics.median(ours) / floor
    return Result(
        kernel.name,
        1e3 * statistics.median(ours),
        1e3 * floor,
        ratio,
        min(ratios),
        max(ratios),
        kernel.target,
        loop,
        measured(kernel.name),
        most,
    )


# memory
def held_bytes(what: str) -> int:
    """Bytes this process holds (``VmRSS``), or has held at most since it was last told to forget (``VmHWM``)."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), flags=re.M)
    assert found is not None
    return int(found[1]) * 1024


def memory(name: str) -> float:
    """Peak of a round as a multiple of the matrix; to be called in a process of its own."""
    method, sizes = parse(name), layout()
    small = Server(method, (1,) * len(sizes), updates(len(sizes)))
    large, compiled.LARGE = compiled.LARGE, 0
    for _ in range(2):
        small.round(
            small.round(small.states(), small.submodels())[0], small.submodels()
        )  # load and compile what is loaded and compiled at first
    compiled.LARGE = large
    before = held_bytes("VmRSS")
    server = Server(method, sizes, updates(sum(sizes)))
    held = server.submodels()
    states = server.round(server.states(), held)[0]  # a second round has the history that a run has
    Path("/proc/self/clear_refs").write_text("5")
    after = server.round(states, held)  # noqa: F841 (what is remembered before and after is there at the same time)
    return (held_bytes("VmHWM") - before) / server.updates.nbytes


def measured(name: str) -> float:
    """The same, from a process of its own whose allocator gives back at once what is freed."""
    command = [sys.executable, __file__, "--memory", name, "--threads", str(torch.get_num_threads())]
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=at_once).stdout)


# the table
COLUMNS = ("rule", "ms", "floor, ms", "times the floor", "range", "target", "by name", "peak, in matrices", "at most")


def row(result: Result) -> tuple[str, ...]:
    target, loop = ("" if x is None else f"{x:.{n}f}" for x, n in ((result.target, 1), (result.loop, 0)))
    return (
        result.kernel,
        f"{result.milliseconds:.0f}",
        f"{result.floor:.0f}",
        f"{result.ratio:.1f}",
        f"{result.low:.1f} to {result.high:.1f}",
        target,
        loop,
        f"{result.memory:.2f}",
        f"{result.most:.2f}",
    )


def misses(result: Result) -> Iterator[bool]:
    yield result.target is not None and result.ratio > result.target
    yield round(result.memory, 2) > round(result.most, 2)


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="Server's half of a round: 20 clients, 4.9 million parameters")
    for column in grid.columns[1:]:
        column.justify = "right"
    for result in results:
        grid.add_row(*row(result), style="red" if any(misses(result)) else None)
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *(row(r) for r in results)]
    nbytes = CLIENTS * sum(layout()) * 4
    return TEXT.format(
        command=shlex.join(["python", "benchmarks/kernels.py", *sys.argv[1:]]),
        machine=where,
        bandwidth=max(
            (k.moves * nbytes + nbytes / CLIENTS) / r.floor / 1e6
            for r in results
            for k in KERNELS
            if k.name == r.kernel
        ),
        threads=arguments.threads,
        alternations=arguments.alternations,
        table="\n".join("| " + " | ".join(cells) + " |" for cells in lines),
    )


TEXT = """# The server's half of a round

Made by `{command}`; do not edit.

{machine}; {bandwidth:.1f} GB/s between memory and processor.

{table}

**ms**: median of `aggregate` and the step on 20 clients' updates of a ResNet-10 (4.9 million float32 parameters, 38 tensors,
392 MB), in {alternations} alternations with {threads} threads. **floor**: what moving the bytes alone takes, at the best
bandwidth seen in the same alternations (the best of a copy, which reads and writes, a sum, a maximum and a scalar product):
the step is written; the updates are read once for the mean, the median and FedSAC, twice for all others, whose weights depend on all
of the updates; FPHL and FedHEAL also read and write a byte of counts and write and read a bit of mask for each update,
FedSAC reads a byte of mask. **range**: of single alternations. **by name**: the same as one would write it with dictionaries
of tensors by name, once, as a multiple of the same floor. **peak, in matrices**: the most a process of its own holds during
the round (`VmHWM`, reset before it), less what it held before the matrix was built, over the size of the matrix; so 1 is
the matrix alone. **at most**: 1.2, and what the rule remembers before and after the round (FPHL's counts, a byte each;
FedHGD's history, a vector), FedSAC's submodels, or the matrix of the updates that clipping has shortened. The C library is told to give back freed memory at once
(`MALLOC_MMAP_THRESHOLD_=65536`). FedFV runs under full participation and remembers the matrix itself; the updates it
remembers from the round before, a second matrix in a run, are not counted.
"""


def main() -> None:
    parser = options("Time and memory of the server's half of a round.", "rules")
    parser.add_argument("--memory", default="", help="print the peak of one rule in this process, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        print(memory(arguments.memory))
        return
    where = machine()
    results = []
    for kernel in KERNELS:
        if arguments.only in kernel.name:
            print(f"{kernel.name} ...", file=sys.stderr)
            results.append(measure(kernel, arguments.alternations))
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
